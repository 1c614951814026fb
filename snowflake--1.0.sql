-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake" to load this file. \quit

--
-- The extension's schema
--
-- Its owner may be any role, and it may have functions of any role.  So a name is
-- looked up in the schema only if it is written @extschema@.name.  Calls of the
-- extension's functions have arguments of the exact types, so that no other
-- function matches better.  The row lock keeps the schema's owner from renaming
-- the schema until the extension is created.  PL/pgSQL looks names up when it
-- runs, so PL/pgSQL code names only objects of pg_catalog.
--
SET LOCAL search_path TO pg_catalog, pg_temp;
SELECT FROM pg_namespace
 WHERE oid = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake')
   FOR SHARE;

-- PostgreSQL's own error would not say what to do.  doc/errors.md has the error for
-- the other functions.
DO $$
DECLARE
    taken text;
BEGIN
    SELECT 'type or table snowflake' INTO taken FROM pg_type WHERE (typnamespace, typname) = ('@extschema@'::regnamespace, 'snowflake')
    UNION ALL
    SELECT 'function ' || proname FROM pg_proc
     WHERE pronamespace = '@extschema@'::regnamespace AND pronargs = 0 AND proname IN ('snowflake_nextval', 'snowflake_id', 'snowflake_currval');
    IF FOUND THEN
        RAISE EXCEPTION 'schema % has a % already', '@extschema@', taken
            USING ERRCODE = 'duplicate_object',
                  HINT = 'Give the extension a schema of its own: CREATE SCHEMA ids; CREATE EXTENSION snowflake SCHEMA ids;';
    END IF;
END
$$;

--
-- The type: a bigint that JSON has as a string
--
-- PostgreSQL writes a value of a type that it does not know as a JSON string,
-- which programs read exactly.  The type is for casts of bigint columns, because most
-- drivers and schema tools do not know it.  The casts in both directions change
-- no bit and are implicit, so the operators, the functions and the operator classes
-- of bigint serve a snowflake, and a filter on a cast key uses the key's index.  The
-- polymorphic operators, those of arrays and ranges, do not take both types.
--
-- The other casts, of numbers and text, are bigint's, but those to numeric and to
-- floating-point types are not implicit: "id = id" could then mean numbers of
-- either type.
--

CREATE TYPE @extschema@.snowflake;

CREATE FUNCTION @extschema@.snowflake_in(cstring)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int8in';

CREATE FUNCTION @extschema@.snowflake_out(@extschema@.snowflake)
RETURNS cstring LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int8out';

CREATE FUNCTION @extschema@.snowflake_recv(internal)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int8recv';

CREATE FUNCTION @extschema@.snowflake_send(@extschema@.snowflake)
RETURNS bytea LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int8send';

CREATE TYPE @extschema@.snowflake (
    INPUT = @extschema@.snowflake_in,
    OUTPUT = @extschema@.snowflake_out,
    RECEIVE = @extschema@.snowflake_recv,
    SEND = @extschema@.snowflake_send,
    LIKE = pg_catalog.int8,
    CATEGORY = 'N');
COMMENT ON TYPE @extschema@.snowflake IS 'an id that JSON has as a string: tables keep bigint, and a view or query casts it where PostgreSQL makes JSON';

-- No function has the type's name: "snowflake($1)" would take its parameter for a
-- double precision, which rounds ids.
CREATE FUNCTION @extschema@.snowflake_from_integer(integer)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int48';

CREATE FUNCTION @extschema@.snowflake_from_smallint(smallint)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int28';

CREATE FUNCTION @extschema@.snowflake_from_numeric(numeric)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'numeric_int8';

CREATE FUNCTION @extschema@.snowflake_from_double(double precision)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'dtoi8';

CREATE FUNCTION @extschema@.snowflake_from_real(real)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'ftoi8';

-- The function of a cast has the cast's types exactly.  With bigint's functions,
-- pg_upgrade would have to create the first two casts before the others.
CREATE CAST (@extschema@.snowflake AS bigint) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (bigint AS @extschema@.snowflake) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (integer AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake_from_integer(integer) AS IMPLICIT;
CREATE CAST (smallint AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake_from_smallint(smallint) AS IMPLICIT;
CREATE CAST (numeric AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake_from_numeric(numeric) AS ASSIGNMENT;
CREATE CAST (double precision AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake_from_double(double precision) AS ASSIGNMENT;
CREATE CAST (real AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake_from_real(real) AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS integer) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS smallint) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS numeric) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS double precision) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS real) WITH INOUT AS ASSIGNMENT;

--
-- Planner support: for functions that return the first or the last id of an
-- instant, for snowflake_nextval() and snowflake_id(), and for snowflake_nextvals()
--

CREATE FUNCTION @extschema@.snowflake_bound_support(internal)
RETURNS internal LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_bound_support';

CREATE FUNCTION @extschema@.snowflake_copy_support(internal)
RETURNS internal LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_copy_support';

CREATE FUNCTION @extschema@.snowflake_rows_support(internal)
RETURNS internal LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_rows_support';

--
-- Issuing
--

CREATE FUNCTION @extschema@.snowflake_nextval()
RETURNS bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_nextval'
SUPPORT @extschema@.snowflake_copy_support;
COMMENT ON FUNCTION @extschema@.snowflake_nextval() IS 'issue the next id';

CREATE FUNCTION @extschema@.snowflake_id()
RETURNS bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_nextval'
SUPPORT @extschema@.snowflake_copy_support;
COMMENT ON FUNCTION @extschema@.snowflake_id() IS
'snowflake_nextval() by another name, for tools that mistake every default whose text has "nextval" for that of a sequence';

-- COPY FROM calls this function in place of the two above.  The function does the
-- same as they do, but is labelled STABLE, so that COPY inserts rows in batches.
CREATE FUNCTION @extschema@.snowflake_copy_nextval()
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_copy_nextval';

CREATE FUNCTION @extschema@.snowflake_nextvals(count integer)
RETURNS SETOF bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_nextvals'
SUPPORT @extschema@.snowflake_rows_support;
COMMENT ON FUNCTION @extschema@.snowflake_nextvals(integer) IS 'issue "count" ids, in increasing order';

-- PARALLEL RESTRICTED: a parallel worker does not know the leader's last id.
CREATE FUNCTION @extschema@.snowflake_currval()
RETURNS bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_currval';
COMMENT ON FUNCTION @extschema@.snowflake_currval() IS 'the last id issued in this session';

CREATE FUNCTION @extschema@.snowflake_horizon()
RETURNS bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_horizon';
COMMENT ON FUNCTION @extschema@.snowflake_horizon() IS
'an id below which every transaction of this server has ended; a later statement reads the rows below it';

CREATE FUNCTION @extschema@.snowflake_horizon(rel regclass)
RETURNS bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_horizon';
COMMENT ON FUNCTION @extschema@.snowflake_horizon(regclass) IS
'an id below which every transaction that writes to this table has ended, if the statement that inserts a row takes its id';

--
-- Decoding, by the server's layout and epoch
--

CREATE FUNCTION @extschema@.snowflake_decode(
    id bigint,
    OUT issued_at timestamptz, OUT datacenter_id integer, OUT worker_id integer, OUT sequence integer)
RETURNS record LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_decode';
COMMENT ON FUNCTION @extschema@.snowflake_decode(bigint) IS 'the fields of an id';

CREATE FUNCTION @extschema@.snowflake_timestamp(id bigint)
RETURNS timestamptz LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_timestamp';
COMMENT ON FUNCTION @extschema@.snowflake_timestamp(bigint) IS 'when an id was issued';

CREATE FUNCTION @extschema@.snowflake_datacenter_id(id bigint)
RETURNS integer LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_datacenter_id';
COMMENT ON FUNCTION @extschema@.snowflake_datacenter_id(bigint) IS 'the datacenter id of the server that issued an id';

CREATE FUNCTION @extschema@.snowflake_worker_id(id bigint)
RETURNS integer LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_worker_id';
COMMENT ON FUNCTION @extschema@.snowflake_worker_id(bigint) IS 'the worker id of the server that issued an id';

CREATE FUNCTION @extschema@.snowflake_sequence(id bigint)
RETURNS integer LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_sequence';
COMMENT ON FUNCTION @extschema@.snowflake_sequence(bigint) IS 'the sequence of an id within its tick';

CREATE FUNCTION @extschema@.snowflake_encode(
    issued_at timestamptz, datacenter_id integer, worker_id integer, sequence integer)
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_encode';
COMMENT ON FUNCTION @extschema@.snowflake_encode(timestamptz, integer, integer, integer) IS 'the id with these fields';

CREATE FUNCTION @extschema@.snowflake_min_id(instant timestamptz)
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_min_id'
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_min_id(timestamptz) IS 'the smallest id of an instant''s tick';

CREATE FUNCTION @extschema@.snowflake_max_id(instant timestamptz)
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_max_id'
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_max_id(timestamptz) IS 'the largest id of an instant''s tick';

-- snowflake_issued_between() is inlined, so that a query can use the key's index
-- and prune partitions.  If a bound is a subquery, PostgreSQL inlines the
-- function only if the body uses that bound once; so each bound has a function of
-- its own.
-- The smallest id issued at an instant or later.
CREATE FUNCTION @extschema@.snowflake_first_id_since(instant timestamptz)
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_first_id_since'
SUPPORT @extschema@.snowflake_bound_support;

-- The largest id issued before an instant.
CREATE FUNCTION @extschema@.snowflake_last_id_before(instant timestamptz)
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_last_id_before'
SUPPORT @extschema@.snowflake_bound_support;

CREATE FUNCTION @extschema@.snowflake_issued_between(id bigint, since timestamptz, until timestamptz)
RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN id OPERATOR(pg_catalog.>=) @extschema@.snowflake_first_id_since(since)
   AND id OPERATOR(pg_catalog.<=) @extschema@.snowflake_last_id_before(until);
COMMENT ON FUNCTION @extschema@.snowflake_issued_between(bigint, timestamptz, timestamptz) IS
'whether an id was issued at or after "since", and before "until"';

CREATE FUNCTION @extschema@.snowflake_format(id bigint)
RETURNS text LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_format';
COMMENT ON FUNCTION @extschema@.snowflake_format(bigint) IS
'an id as people read it: time in the session''s zone, #sequence, @(datacenter,worker)';

--
-- Decoding ids made elsewhere, by a layout and an epoch that the caller gives
--

CREATE FUNCTION @extschema@.snowflake_decode(
    id bigint, epoch timestamptz, layout text DEFAULT '41/5/5/12',
    OUT issued_at timestamptz, OUT datacenter_id integer, OUT worker_id integer, OUT sequence integer)
RETURNS record LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_decode';
COMMENT ON FUNCTION @extschema@.snowflake_decode(bigint, timestamptz, text) IS 'the fields of an id of this epoch and layout';

CREATE FUNCTION @extschema@.snowflake_timestamp(id bigint, epoch timestamptz, layout text DEFAULT '41/5/5/12')
RETURNS timestamptz LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_timestamp';
COMMENT ON FUNCTION @extschema@.snowflake_timestamp(bigint, timestamptz, text) IS
'when an id of this epoch and layout was issued';

CREATE FUNCTION @extschema@.snowflake_min_id(instant timestamptz, epoch timestamptz, layout text DEFAULT '41/5/5/12')
RETURNS bigint LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_min_id';
COMMENT ON FUNCTION @extschema@.snowflake_min_id(timestamptz, timestamptz, text) IS
'the smallest id of an instant''s tick, by this epoch and layout';

CREATE FUNCTION @extschema@.snowflake_max_id(instant timestamptz, epoch timestamptz, layout text DEFAULT '41/5/5/12')
RETURNS bigint LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_max_id';
COMMENT ON FUNCTION @extschema@.snowflake_max_id(timestamptz, timestamptz, text) IS
'the largest id of an instant''s tick, by this epoch and layout';

--
-- Monitoring
--

CREATE FUNCTION @extschema@.snowflake_node(
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT worker_id_source text,
    OUT layout text,
    OUT epoch timestamptz,
    OUT tick_interval interval,
    OUT ids_per_second bigint,
    OUT first_instant timestamptz,
    OUT last_instant timestamptz,
    OUT high_water_mark timestamptz,
    OUT in_recovery boolean,
    OUT lease_holder text,
    OUT lease_expires_at timestamptz)
RETURNS record LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_node';
COMMENT ON FUNCTION @extschema@.snowflake_node() IS 'this server''s node and layout';

-- The function itself checks that its caller is a superuser.
CREATE FUNCTION @extschema@.snowflake_change_layout()
RETURNS void LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'snowflake_change_layout';
COMMENT ON FUNCTION @extschema@.snowflake_change_layout() IS
'make the configured layout and epoch those of the data''s new ids';

CREATE FUNCTION @extschema@.snowflake_stat(
    OUT ids_issued bigint,
    OUT last_id bigint,
    OUT last_issued_at timestamptz,
    OUT sequence_waits bigint,
    OUT sequence_wait_time interval,
    OUT clock_regressions bigint,
    OUT max_regression interval,
    OUT clock_wait_time interval,
    OUT clock_refusals bigint,
    OUT lead interval,
    OUT high_water_writes bigint,
    OUT lease_renewals bigint,
    OUT lease_failures bigint,
    OUT stats_reset timestamptz)
RETURNS record LANGUAGE C VOLATILE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_stat';
COMMENT ON FUNCTION @extschema@.snowflake_stat() IS 'the counters of all sessions since the last reset';

CREATE FUNCTION @extschema@.snowflake_stat_backend(
    rel regclass DEFAULT NULL,
    OUT pid integer,
    OUT prepared_xid xid,
    OUT ids_issued bigint,
    OUT sequence_waits bigint,
    OUT clock_waits bigint,
    OUT last_id bigint,
    OUT xact_start timestamptz,
    OUT horizon bigint)
RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100 AS 'MODULE_PATHNAME', 'snowflake_stat_backend';
COMMENT ON FUNCTION @extschema@.snowflake_stat_backend(regclass) IS
'the counters of each session, and which sessions hold back the horizon of the server or of a table; roles without pg_read_all_stats see only their own session';

CREATE FUNCTION @extschema@.snowflake_stat_reset()
RETURNS void LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_stat_reset';
COMMENT ON FUNCTION @extschema@.snowflake_stat_reset() IS 'make snowflake_stat() count from zero again';
REVOKE EXECUTE ON FUNCTION @extschema@.snowflake_stat_reset() FROM PUBLIC;

--
-- Ids as text
--

CREATE FUNCTION @extschema@.snowflake_to_text(id bigint, base integer)
RETURNS text LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_to_text';
COMMENT ON FUNCTION @extschema@.snowflake_to_text(bigint, integer) IS 'an id as text in base 2, 16, 32, 36, 58 or 62';

CREATE FUNCTION @extschema@.snowflake_from_text(text text, base integer)
RETURNS bigint LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_from_text';
COMMENT ON FUNCTION @extschema@.snowflake_from_text(text, integer) IS
'the id that a text in base 2, 16, 32, 36, 58 or 62 stands for';

-- The other objects are internal, but for the casts.
DO $$
DECLARE
    object record;
BEGIN
    FOR object IN SELECT identified.type, identified.identity
                    FROM pg_depend, pg_identify_object(classid, objid, 0) AS identified
                   WHERE (refclassid, deptype) = ('pg_extension'::regclass, 'e')
                     AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake')
                     AND obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)) IS NULL LOOP
        EXECUTE format('COMMENT ON %s %s IS %L', object.type, object.identity,
                       CASE object.type WHEN 'cast' THEN 'of the type snowflake' ELSE 'internal' END);
    END LOOP;
END
$$;

-- Tell the DBA now, not at the first INSERT, if the library was not preloaded: only
-- then does the server know the library's parameters.
DO $$
DECLARE
    preload record;
BEGIN
    SELECT setting, coalesce(sourcefile, source) AS origin INTO preload FROM pg_settings WHERE name = 'shared_preload_libraries';
    IF NOT EXISTS (SELECT FROM pg_settings WHERE name = 'snowflake.worker_id') THEN
        RAISE WARNING 'snowflake_nextval() issues no ids until the library "snowflake" is loaded at the server''s start'
            USING DETAIL = format('"shared_preload_libraries" is "%s" (source: %s).', preload.setting, preload.origin),
                  HINT = 'Add "snowflake" to it, set "snowflake.worker_id" to a number that no other server has, and restart the server.';
    END IF;
END
$$;

-- If the schema was renamed before this script had locked its row, the functions
-- were created in another schema that had got its name.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_depend AS d
                 JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                 JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                WHERE e.extname = 'snowflake' AND p.pronamespace <> e.extnamespace) THEN
        RAISE EXCEPTION 'the schema of extension "snowflake" was renamed meanwhile';
    END IF;
END
$$;
