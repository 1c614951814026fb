/*
 * snowflake--1.0.sql
 *
 * The sections of this script:
 *
 *   The extension's schema       where names are looked up while the script runs
 *   Planner support              what the planner calls for the functions below
 *   Issuing                      new ids
 *   Decoding                     an id's fields, by the server's layout
 *   Decoding ids made elsewhere  an id's fields, by a layout and epoch of the caller's
 *   Monitoring                   this server's node, and counters
 *   Ids as text                  other bases than 10
 *   Days                         when a day of the session's time zone begins
 *   Partitions                   range partitions by the time of ids
 *   Activity                     a table's ids over time
 *   Converting a column          the catalogue queries of snowflake_convert()
 *   Converting schemas           the catalogue queries of snowflake_convert_schema()
 *   Converting new tables        the event trigger
 *   Registry                     a check before a server depends on a registry
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake" to load this file. \quit

--
-- The extension's schema
--
-- Its owner may be any role, and it may hold any role's functions.  So no name
-- is looked up there unless it is written @extschema@.name, and calls of the
-- extension's functions have arguments of the exact types: a function that
-- matches better cannot exist.  The row lock keeps the schema's owner from
-- renaming it until the extension is created.  PL/pgSQL binds names when it
-- runs, and so names objects of pg_catalog only.
--
SET LOCAL search_path TO pg_catalog, pg_temp;
SELECT FROM pg_namespace
 WHERE oid = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake')
   FOR SHARE;

--
-- Planner support
--

CREATE FUNCTION @extschema@.snowflake_bound_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'snowflake_bound_support'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_bound_support(internal) IS
'planner support for functions that return the first or the last id of an instant';

CREATE FUNCTION @extschema@.snowflake_nextvals_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'snowflake_nextvals_support'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_nextvals_support(internal) IS
'planner support for snowflake_nextvals';

CREATE FUNCTION @extschema@.snowflake_copy_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'snowflake_copy_support'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_copy_support(internal) IS
'planner support for snowflake_nextval';

--
-- Issuing
--

CREATE FUNCTION @extschema@.snowflake_nextval()
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_nextval'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_copy_support;
COMMENT ON FUNCTION @extschema@.snowflake_nextval() IS
'issue the next id';

-- COPY FROM calls this function in place of snowflake_nextval().  It issues ids,
-- too, but is labelled STABLE, so that COPY inserts rows in batches.
CREATE FUNCTION @extschema@.snowflake_copy_nextval()
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_copy_nextval'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_copy_nextval() IS
'internal: COPY calls it in place of snowflake_nextval()';

CREATE FUNCTION @extschema@.snowflake_nextvals(count integer)
RETURNS SETOF bigint
AS 'MODULE_PATHNAME', 'snowflake_nextvals'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_nextvals_support;
COMMENT ON FUNCTION @extschema@.snowflake_nextvals(integer) IS
'issue "count" ids, in increasing order';

-- PARALLEL RESTRICTED: a parallel worker does not know the leader's last id.
CREATE FUNCTION @extschema@.snowflake_currval()
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_currval'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.snowflake_currval() IS
'the last id issued in this session';

--
-- Decoding, by the server's layout and epoch
--

CREATE FUNCTION @extschema@.snowflake_decode(
    id bigint,
    OUT issued_at timestamptz,
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT sequence integer)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_decode'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_decode(bigint) IS
'the fields of an id';

CREATE FUNCTION @extschema@.snowflake_timestamp(id bigint)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'snowflake_timestamp'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_timestamp(bigint) IS
'when an id was issued';

CREATE FUNCTION @extschema@.snowflake_datacenter_id(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_datacenter_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_datacenter_id(bigint) IS
'the datacenter id of the server that issued an id';

CREATE FUNCTION @extschema@.snowflake_worker_id(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_worker_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_worker_id(bigint) IS
'the worker id of the server that issued an id';

CREATE FUNCTION @extschema@.snowflake_sequence(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_sequence'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_sequence(bigint) IS
'the sequence of an id within its tick';

CREATE FUNCTION @extschema@.snowflake_encode(
    issued_at timestamptz,
    datacenter_id integer,
    worker_id integer,
    sequence integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_encode'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_encode(timestamptz, integer, integer, integer) IS
'the id with these fields';

CREATE FUNCTION @extschema@.snowflake_min_id(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_min_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_min_id(timestamptz) IS
'the smallest id of an instant''s tick';

CREATE FUNCTION @extschema@.snowflake_max_id(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_max_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_max_id(timestamptz) IS
'the largest id of an instant''s tick';

-- snowflake_issued_between() is inlined, so that a query can use the key's index
-- and prune partitions.  If a bound is a subquery, PostgreSQL inlines the
-- function only if the body uses that bound once; so each bound has a function of
-- its own.
CREATE FUNCTION @extschema@.snowflake_first_id_since(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_first_id_since'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_first_id_since(timestamptz) IS
'for snowflake_issued_between: the smallest id issued at an instant or later';

CREATE FUNCTION @extschema@.snowflake_last_id_before(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_last_id_before'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT @extschema@.snowflake_bound_support;
COMMENT ON FUNCTION @extschema@.snowflake_last_id_before(timestamptz) IS
'for snowflake_issued_between: the largest id issued before an instant';

CREATE FUNCTION @extschema@.snowflake_issued_between(
    id bigint,
    since timestamptz,
    until timestamptz)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN id OPERATOR(pg_catalog.>=) @extschema@.snowflake_first_id_since(since)
   AND id OPERATOR(pg_catalog.<=) @extschema@.snowflake_last_id_before(until);
COMMENT ON FUNCTION @extschema@.snowflake_issued_between(bigint, timestamptz, timestamptz) IS
'was an id issued at since or later, and before until?';

CREATE FUNCTION @extschema@.snowflake_format(id bigint)
RETURNS text
AS 'MODULE_PATHNAME', 'snowflake_format'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_format(bigint) IS
'an id as people read it: time in the session''s zone, #sequence, @(datacenter,worker)';

--
-- Decoding ids made elsewhere, by a layout and an epoch that the caller gives
--

CREATE FUNCTION @extschema@.snowflake_decode(
    id bigint,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12',
    OUT issued_at timestamptz,
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT sequence integer)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_decode'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_decode(bigint, timestamptz, text) IS
'the fields of an id of this epoch and layout';

CREATE FUNCTION @extschema@.snowflake_timestamp(
    id bigint,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'snowflake_timestamp'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_timestamp(bigint, timestamptz, text) IS
'when an id of this epoch and layout was issued';

CREATE FUNCTION @extschema@.snowflake_min_id(
    instant timestamptz,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_min_id'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_min_id(timestamptz, timestamptz, text) IS
'the smallest id of an instant''s tick, by this epoch and layout';

CREATE FUNCTION @extschema@.snowflake_max_id(
    instant timestamptz,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_max_id'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
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
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_node'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_node() IS
'for the view snowflake_node';

CREATE VIEW @extschema@.snowflake_node AS SELECT * FROM @extschema@.snowflake_node();
COMMENT ON VIEW @extschema@.snowflake_node IS
'this server''s node and layout';
GRANT SELECT ON @extschema@.snowflake_node TO PUBLIC;

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
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_stat'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_stat() IS
'for the view snowflake_stat';

CREATE VIEW @extschema@.snowflake_stat AS SELECT * FROM @extschema@.snowflake_stat();
COMMENT ON VIEW @extschema@.snowflake_stat IS
'the counters of all sessions since the last reset';
GRANT SELECT ON @extschema@.snowflake_stat TO PUBLIC;

CREATE FUNCTION @extschema@.snowflake_stat_backend(
    OUT pid integer,
    OUT ids_issued bigint,
    OUT sequence_waits bigint,
    OUT clock_waits bigint,
    OUT last_id bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'snowflake_stat_backend'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION @extschema@.snowflake_stat_backend() IS
'for the view snowflake_stat_backend';

CREATE VIEW @extschema@.snowflake_stat_backend AS SELECT * FROM @extschema@.snowflake_stat_backend();
COMMENT ON VIEW @extschema@.snowflake_stat_backend IS
'the counters of each session; a user without the rights of pg_read_all_stats sees only the present session''s';
GRANT SELECT ON @extschema@.snowflake_stat_backend TO PUBLIC;

CREATE FUNCTION @extschema@.snowflake_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'snowflake_stat_reset'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.snowflake_stat_reset() IS
'make snowflake_stat count from zero again';
REVOKE EXECUTE ON FUNCTION @extschema@.snowflake_stat_reset() FROM PUBLIC;

--
-- Ids as text
--

CREATE FUNCTION @extschema@.snowflake_to_text(id bigint, base integer)
RETURNS text
AS 'MODULE_PATHNAME', 'snowflake_to_text'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_to_text(bigint, integer) IS
'an id as text in base 2, 16, 32, 36, 58 or 62';

CREATE FUNCTION @extschema@.snowflake_from_text(text text, base integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_from_text'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.snowflake_from_text(text, integer) IS
'the id that a text in base 2, 16, 32, 36, 58 or 62 stands for';

--
-- Days of the session's time zone
--

-- A day begins when clocks first show its midnight or later.  Where summer time
-- begins at midnight, as in Cairo, this is 01:00; where it ends at midnight, as
-- in Havana, the first of two midnights, and PostgreSQL returns the second.
CREATE FUNCTION @extschema@.snowflake_day_start(day timestamp)
RETURNS timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN day::timestamptz::timestamp = day
     AND (day::timestamptz - interval '3 hours')::timestamp = day - interval '3 hours'
    THEN day::timestamptz
    ELSE (SELECT min(instant)
            FROM generate_series(day::timestamptz - interval '26 hours', day::timestamptz, interval '1 minute') AS instant
           WHERE instant::timestamp >= day)
END;
COMMENT ON FUNCTION @extschema@.snowflake_day_start(timestamp) IS
'internal: the instant at which a day of the session''s time zone begins';

--
-- Partitions, by the time of ids
--
-- The functions run with the caller's rights.  The caller is the owner of all
-- tables that a statement reads or locks, so no statement runs code of another
-- role.
--

CREATE FUNCTION @extschema@.snowflake_lock_partitions(parent regclass, lock_mode text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner oid;
    found_table regclass;
BEGIN
    SELECT c.relowner INTO owner
      FROM pg_class AS c
      JOIN pg_partitioned_table AS p ON p.partrelid = c.oid
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
     WHERE c.oid = parent AND p.partstrat = 'r' AND p.partnatts = 1 AND a.atttypid = 'bigint'::regtype;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table % is not partitioned by the range of a bigint column', parent
            USING ERRCODE = 'wrong_object_type',
                  HINT = 'Create it with PARTITION BY RANGE and its id as the only column of the key.';
    END IF;

    -- A member of the owner, or a superuser, would run the owner's code.
    IF pg_get_userbyid(owner) <> current_user THEN
        RAISE EXCEPTION 'must be owner of table %', parent
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('A member of that role can SET ROLE %I first.', pg_get_userbyid(owner));
    END IF;

    -- A schema's owner must not exchange tables that a superuser's statements
    -- name.  Row locks keep schemas from being renamed.
    IF lock_mode <> 'ACCESS SHARE' AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        PERFORM FROM pg_namespace FOR SHARE;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', parent, lock_mode);

    SELECT inhrelid INTO found_table FROM pg_inherits WHERE inhparent = parent AND inhdetachpending;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % is being detached', found_table, parent
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('If DETACH PARTITION ... CONCURRENTLY was interrupted: ALTER TABLE %s DETACH PARTITION %s FINALIZE', parent, found_table);
    END IF;

    WITH RECURSIVE tree (relid) AS (
        SELECT parent::oid
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.relid)
    SELECT c.oid INTO found_table
      FROM pg_class AS c
     WHERE c.relowner <> owner
       AND (c.oid IN (SELECT relid FROM tree)
            OR c.oid IN (SELECT conrelid FROM pg_constraint JOIN tree ON relid = confrelid WHERE contype = 'f')
            OR c.oid IN (SELECT confrelid FROM pg_constraint JOIN tree ON relid = conrelid WHERE contype = 'f'))
     ORDER BY c.relname
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table % belongs to another role than %', found_table, parent
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'It is a partition, or a foreign key connects both, so code of its owner could run.',
                  HINT = 'Give both tables to one role, or drop the foreign key.';
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.snowflake_lock_partitions(regclass, text) IS
'internal: lock a partitioned table, if all tables concerned belong to the caller';

CREATE FUNCTION @extschema@.snowflake_partition_bounds(parent regclass)
RETURNS TABLE (part regclass, lower bigint, upper bigint)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.oid::regclass,
           coalesce(bound[1]::bigint, '-9223372036854775808'),
           coalesce(bound[2]::bigint, '9223372036854775807')
      FROM pg_inherits AS i
      JOIN pg_class AS c ON c.oid = i.inhrelid,
           regexp_match(pg_get_expr(c.relpartbound, c.oid),
                        '^FOR VALUES FROM \((?:''(.*)''|MINVALUE)\) TO \((?:''(.*)''|MAXVALUE)\)$') AS bound
     WHERE i.inhparent = parent AND bound IS NOT NULL;
END;
COMMENT ON FUNCTION @extschema@.snowflake_partition_bounds(regclass) IS
'internal: the partitions of a table, without the default partition';

CREATE FUNCTION @extschema@.snowflake_partition_steps(
    since timestamptz,
    until timestamptz,
    step interval,
    OUT unit text,
    OUT steps integer)
RETURNS record
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    months integer := extract(year FROM step) * 12 + extract(month FROM step);
    days integer := extract(day FROM step);
    seconds numeric := extract(epoch FROM step - make_interval(months => months, days => days));
BEGIN
    unit := CASE WHEN months > 0 AND days = 0 AND seconds = 0 AND months % 12 = 0 THEN 'year'
                 WHEN months > 0 AND days = 0 AND seconds = 0 THEN 'month'
                 WHEN months = 0 AND days > 0 AND seconds = 0 THEN 'day'
                 WHEN months = 0 AND days = 0 AND seconds > 0 AND seconds % 3600 = 0 THEN 'hour' END;
    IF unit IS NULL THEN
        RAISE EXCEPTION 'invalid step of partitions: "%"', step
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give one hour or more in whole years, months, days or hours, not mixed.';
    END IF;
    -- Without steps, snowflake_attach_partitions() raises an error.
    steps := CASE WHEN isfinite(since) AND isfinite(until)
                  THEN least(extract(epoch FROM until - since) / extract(epoch FROM step), 10000) + 2
                  ELSE -1 END;
END
$$;
COMMENT ON FUNCTION @extschema@.snowflake_partition_steps(timestamptz, timestamptz, interval) IS
'internal: the unit of a step, and how many steps there are at most';

-- Returns the instants at which the wanted partitions begin, and the last one's
-- end.  Steps count from the first: a short month must not shorten later steps.
-- Steps of hours are elapsed time, others follow the calendar.
CREATE FUNCTION @extschema@.snowflake_partition_starts(
    since timestamptz,
    until timestamptz,
    step interval,
    unit text,
    steps integer)
RETURNS SETOF timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    -- Without DISTINCT, a day that the time zone leaves out would be a partition.
    WITH counted AS (
        SELECT DISTINCT ON (start) start,
               -- "until" can be the second midnight of a day that begins at the first.
               start < until AND (unit = 'hour' OR day < until::timestamp) AS wanted
          FROM generate_series(0, steps) AS n,
               LATERAL (SELECT date_trunc(unit, since::timestamp) + n * step) AS d (day),
               LATERAL (SELECT CASE unit WHEN 'hour' THEN date_trunc(unit, since) + n * step
                                         ELSE @extschema@.snowflake_day_start(day) END) AS s (start)
         ORDER BY start, n)
    SELECT start
      FROM (SELECT start, wanted, lag(wanted) OVER (ORDER BY start) AS follows FROM counted) AS ordered
     WHERE wanted OR follows
     ORDER BY start;
END;
COMMENT ON FUNCTION @extschema@.snowflake_partition_starts(timestamptz, timestamptz, interval, text, integer) IS
'internal: the instants at which partitions begin';

CREATE FUNCTION @extschema@.snowflake_attach_partitions(
    parent regclass,
    since timestamptz,
    until timestamptz,
    unit text,
    starts timestamptz[],
    bounds bigint[],
    parts regclass[],
    lowers bigint[],
    uppers bigint[])
RETURNS SETOF regclass
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := cardinality(bounds) - 1;
    patterns jsonb := '{"year": "_YYYY", "month": "_YYYY_MM", "day": "_YYYY_MM_DD", "hour": "_YYYY_MM_DD_HH24"}';
    home text;
    options text;
    base text;
    names text[];
    overlapping integer;
    below regclass;
    above regclass;
BEGIN
    IF bounds IS NULL THEN
        RAISE EXCEPTION 'cannot create partitions since % until %', since, until
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give two finite instants, the earlier first.';
    END IF;
    -- A partition's name has to tell when the partition begins.
    IF since <> starts[1] AND (unit = 'hour' OR date_trunc(unit, since::timestamp) <> since::timestamp) THEN
        RAISE EXCEPTION '% is not the beginning of % % in time zone "%"',
                        since, CASE unit WHEN 'hour' THEN 'an' ELSE 'a' END, unit, current_setting('TimeZone')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Begin at %s, or use date_trunc().', starts[1]);
    END IF;
    IF wanted > 10000 THEN
        RAISE EXCEPTION 'cannot create more than 10000 partitions at once'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Give a longer step or a shorter time.';
    END IF;

    -- A name of more than 63 bytes with its longest suffix is cut to whole
    -- characters, and a hash of it appended.
    SELECT quote_ident(n.nspname), concat(' USING ' || quote_ident(a.amname), ' TABLESPACE ' || quote_ident(t.spcname)),
           CASE WHEN octet_length(c.relname) <= 48 THEN c.relname
                ELSE (SELECT left(c.relname, length) || '_' || left(encode(sha256(convert_to(c.relname, 'UTF8')), 'hex'), 8)
                        FROM generate_series(39, 1, -1) AS length
                       WHERE octet_length(left(c.relname, length)) <= 39 LIMIT 1) END
      INTO home, options, base
      FROM pg_class AS c
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
      LEFT JOIN pg_am AS a ON a.oid = c.relam
      LEFT JOIN pg_tablespace AS t ON t.oid = c.reltablespace
     WHERE c.oid = parent;
    -- When summer time ends, an hour comes twice: the second gets a "b".
    SELECT array_agg(quote_ident(base || to_char(start, patterns ->> unit)
               || CASE WHEN unit = 'hour' AND to_char(start, 'HH24') = to_char(start - interval '1 hour', 'HH24') THEN 'b' ELSE '' END) ORDER BY n)
      INTO names
      FROM unnest(starts) WITH ORDINALITY AS s (start, n);

    SELECT n, part INTO overlapping, above
      FROM generate_series(1, wanted) AS n, unnest(parts, lowers, uppers) AS present (part, lower, upper)
     WHERE lower < bounds[n + 1] AND upper > bounds[n] AND (lower, upper) <> (bounds[n], bounds[n + 1])
     ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % would overlap partition %', names[overlapping], parent, above
            USING ERRCODE = 'invalid_object_definition',
                  HINT = 'Use the step and the time zone that the existing partitions were made with.';
    END IF;
    SELECT (array_agg(part ORDER BY upper DESC) FILTER (WHERE upper <= bounds[1]))[1],
           (array_agg(part ORDER BY lower) FILTER (WHERE lower >= bounds[wanted + 1]))[1]
      INTO below, above
      FROM unnest(parts, lowers, uppers) AS present (part, lower, upper);
    IF uppers[array_position(parts, below)] < bounds[1] OR lowers[array_position(parts, above)] > bounds[wanted + 1] THEN
        RAISE EXCEPTION 'there would be a gap between partitions of %', parent
            USING ERRCODE = 'invalid_object_definition',
                  DETAIL = format('The new partitions would be from %s to %s, and the nearest others are %s.',
                                  starts[1], starts[wanted + 1], concat_ws(' and ', below, above)),
                  HINT = 'Begin where the last partition ends, and end where the next one begins.';
    END IF;

    -- Unlike PARTITION OF, LIKE and ATTACH PARTITION let readers and writers of
    -- the parent go on.  ATTACH makes indexes, foreign keys and triggers.
    FOR i IN 1 .. wanted LOOP
        CONTINUE WHEN EXISTS (SELECT FROM unnest(lowers) AS lower WHERE lower = bounds[i]);
        EXECUTE format('CREATE TABLE %s.%s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION)%s',
                       home, names[i], parent, options);
        EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s.%s FOR VALUES FROM (%s) TO (%s)',
                       parent, home, names[i], bounds[i], bounds[i + 1]);
        RETURN NEXT concat(home, '.', names[i])::regclass;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.snowflake_attach_partitions(regclass, timestamptz, timestamptz, text, timestamptz[], bigint[], regclass[], bigint[], bigint[]) IS
'internal: create partitions with these bounds, unless they exist';

CREATE FUNCTION @extschema@.snowflake_create_partitions(
    parent regclass,
    since timestamptz,
    until timestamptz,
    step interval)
RETURNS SETOF regclass
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.snowflake_lock_partitions(parent, 'SHARE UPDATE EXCLUSIVE'::text);
    SELECT made
      FROM @extschema@.snowflake_partition_steps(since, until, step) AS steps,
           -- An end outside the layout's span is an error of snowflake_encode().
           LATERAL (SELECT array_agg(start ORDER BY n),
                           array_agg(CASE n WHEN 1 THEN @extschema@.snowflake_min_id(start)
                                            ELSE @extschema@.snowflake_encode(start, 0, 0, 0) END ORDER BY n)
                      FROM @extschema@.snowflake_partition_starts(since, until, step, steps.unit, steps.steps)
                           WITH ORDINALITY AS s (start, n)) AS wanted (starts, bounds),
           (SELECT array_agg(part), array_agg(lower), array_agg(upper)
              FROM @extschema@.snowflake_partition_bounds(parent)) AS present (parts, lowers, uppers),
           @extschema@.snowflake_attach_partitions(parent, since, until, steps.unit, starts, bounds, parts, lowers, uppers) AS made;
END;
COMMENT ON FUNCTION @extschema@.snowflake_create_partitions(regclass, timestamptz, timestamptz, interval) IS
'create the range partitions of a table partitioned by its snowflake ids';

CREATE FUNCTION @extschema@.snowflake_detach_partitions(parent regclass, parts regclass[], before timestamptz, dry_run boolean)
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part regclass;
    statement text;
BEGIN
    IF NOT isfinite(before) THEN
        RAISE EXCEPTION 'cannot drop partitions before %', before
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a finite instant.';
    END IF;
    FOREACH part IN ARRAY coalesce(parts, '{}') LOOP
        FOREACH statement IN ARRAY ARRAY[
            format('ALTER TABLE %s DETACH PARTITION %s;', parent, part),
            format('DROP %s %s;', (SELECT CASE relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END FROM pg_class WHERE oid = part), part)]
        LOOP
            IF NOT dry_run THEN
                EXECUTE statement;
            END IF;
            RETURN NEXT statement;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.snowflake_detach_partitions(regclass, regclass[], timestamptz, boolean) IS
'internal: detach and drop partitions';

CREATE FUNCTION @extschema@.snowflake_drop_partitions(
    parent regclass,
    before timestamptz,
    dry_run boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.snowflake_lock_partitions(parent, CASE WHEN dry_run THEN 'ACCESS SHARE' ELSE 'SHARE UPDATE EXCLUSIVE' END::text);
    SELECT statement
      FROM (SELECT array_agg(part ORDER BY lower)
              FROM @extschema@.snowflake_partition_bounds(parent)
             WHERE upper < '9223372036854775807'
               AND upper - 1 <= @extschema@.snowflake_last_id_before(before)) AS old (parts),
           @extschema@.snowflake_detach_partitions(parent, parts, before, dry_run) AS statement;
END;
COMMENT ON FUNCTION @extschema@.snowflake_drop_partitions(regclass, timestamptz, boolean) IS
'detach and drop the range partitions whose ids were all issued before an instant';

--
-- Activity: a table's ids over time
--

-- Counts ids by node and by a time that no bucket's bound divides: the step or,
-- for days and months, a quarter of an hour, as time zones' offsets are multiples
-- of that.  Returns the smallest and the largest id of each group.
CREATE FUNCTION @extschema@.snowflake_count_ids(
    rel regclass,
    col name,
    step interval,
    since bigint,
    until bigint,
    epoch timestamptz,
    layout text,
    tick_interval interval)
RETURNS TABLE (first bigint, last bigint, ids bigint)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bits integer[] := regexp_match(layout, '^\d+/(\d+)/(\d+)/(\d+)');
    tick_us bigint := extract(epoch FROM tick_interval) * 1000000;
    months integer := extract(year FROM step) * 12 + extract(month FROM step);
    days integer := extract(day FROM step);
    group_us bigint := extract(epoch FROM step - make_interval(months => months, days => days)) * 1000000;
    first_us bigint;
    col_type oid;
BEGIN
    IF rel IS NULL OR col IS NULL OR step IS NULL THEN
        RAISE EXCEPTION 'arguments "rel", "col" and "step" of snowflake_activity() must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF least(months, days, group_us) < 0 OR (months > 0)::integer + (days > 0)::integer + (group_us > 0)::integer <> 1 THEN
        RAISE EXCEPTION 'invalid step of snowflake_activity(): "%"', step
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give a positive length in months, in days, or in hours and less, not mixed.';
    END IF;
    SELECT coalesce(nullif(t.typbasetype, 0), t.oid) INTO col_type
      FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
     WHERE a.attrelid = rel AND a.attname = col AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'column "%" of relation % does not exist', col, rel
            USING ERRCODE = 'undefined_column';
    ELSIF col_type NOT IN ('bigint'::regtype, 'integer'::regtype, 'smallint'::regtype) THEN
        RAISE EXCEPTION 'column "%" of relation % has type %', col, rel, col_type::regtype
            USING ERRCODE = 'datatype_mismatch', HINT = 'Give a column that holds ids: its type is bigint.';
    END IF;

    IF group_us = 0 THEN
        group_us := 15 * 60 * 1000000;
    END IF;
    first_us := mod((extract(epoch FROM epoch - timestamp '2001-01-01'::timestamptz) * 1000000)::bigint, group_us);
    -- The column in WHERE is not cast, so that its index can be used.
    RETURN QUERY EXECUTE format('SELECT min(id), max(id), count(*)'
        '  FROM (SELECT r.%1$I::bigint AS id FROM %2$s AS r'
        '         WHERE r.%1$I IS NOT NULL AND ($1 IS NULL OR r.%1$I >= $1) AND ($2 IS NULL OR r.%1$I < $2)) AS ids'
        ' GROUP BY ((id >> $3) * $4 + $5) / $6, (id >> $7) & $8', col, rel)
        USING since, until, bits[1] + bits[2] + bits[3], tick_us, first_us + CASE WHEN first_us < 0 THEN group_us ELSE 0 END, group_us,
              bits[3], (1::bigint << (bits[1] + bits[2])) - 1;
END
$$;
COMMENT ON FUNCTION @extschema@.snowflake_count_ids(regclass, name, interval, bigint, bigint, timestamptz, text, interval) IS
'internal: count a table''s ids by node and time';

-- PARALLEL RESTRICTED: the table may be temporary.
CREATE FUNCTION @extschema@.snowflake_activity(
    rel regclass,
    col name,
    step interval,
    since timestamptz DEFAULT NULL,
    until timestamptz DEFAULT NULL)
RETURNS TABLE (
    bucket timestamptz,
    datacenter_id integer,
    worker_id integer,
    ids bigint)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
    -- Both ends of a group are decoded: an error shows a number that is no id.
    SELECT coalesce(instant, @extschema@.snowflake_day_start(day)), datacenter, worker, sum(counted.ids)::bigint
      FROM @extschema@.snowflake_node() AS node,
           -- OFFSET 0: once for all groups
           (SELECT (extract(year FROM step) * 12 + extract(month FROM step))::integer, extract(day FROM step) > 0 OFFSET 0)
               AS s (months, is_days),
           @extschema@.snowflake_count_ids(rel, col, step,
               @extschema@.snowflake_min_id(since), @extschema@.snowflake_min_id(until),
               node.epoch, node.layout, node.tick_interval) AS counted,
           LATERAL (SELECT @extschema@.snowflake_timestamp(first),
                           @extschema@.snowflake_datacenter_id(first),
                           @extschema@.snowflake_worker_id(last))
               AS fields (issued_at, datacenter, worker),
           LATERAL (SELECT CASE WHEN months = 0 AND NOT is_days
                                THEN date_bin(step, issued_at, timestamp '2001-01-01'::timestamptz) END,
                           CASE WHEN months > 0
                                THEN date_trunc('month', issued_at::timestamp)
                                     - make_interval(months => (extract(year FROM issued_at) * 12 + extract(month FROM issued_at) - 1)::integer % months)
                                WHEN is_days
                                THEN date_bin(step, issued_at::timestamp, timestamp '2001-01-01') END)
               AS buckets (instant, day)
     GROUP BY instant, day, datacenter, worker
     ORDER BY 1, 2, 3;
END;
COMMENT ON FUNCTION @extschema@.snowflake_activity(regclass, name, interval, timestamptz, timestamptz) IS
'how many ids of a table each node issued, by time';

SET LOCAL search_path TO @extschema@, pg_temp;

--
-- Converting a column
--
-- These SQL functions read the catalogue; src/convert.c calls them and executes
-- the statements that they return.  Their bodies refer to each other and to
-- snowflake_nextval() by OID, so they work in every schema.  Names in their
-- results are qualified, because their search_path contains no user's schema.  A
-- snowflake is a column whose DEFAULT calls snowflake_nextval().
--

CREATE FUNCTION snowflake_convert_columns(rels regclass[], cols name[])
RETURNS TABLE (
    tab regclass,
    attnum smallint,
    attname name,
    keys integer[],         -- the given columns, counted from 1, whose type this column must have
    is_key boolean,         -- a given column, or the same column of an inheritor
    is_inherited boolean,   -- ALTER TABLE on the parent changes this column, too
    is_narrow boolean)      -- not bigint yet
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off    -- use indexes only; see below
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
BEGIN ATOMIC
    -- The catalogue may have thousands of partitions, and the planner expects a
    -- recursion to reach most rows.  So each step has to use an index.
    -- pg_constraint has no index on the referenced table, but pg_depend has one.
    WITH RECURSIVE reached(key, tab, attnum, attname, is_key) AS (
        SELECT k.key::integer, a.attrelid, a.attnum, a.attname, true
          FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(rel, col, key)
          JOIN pg_attribute AS a ON a.attrelid = k.rel AND a.attname = k.col AND NOT a.attisdropped
        UNION
        SELECT r.key, next.tab, next.attnum, next.attname, r.is_key AND next.is_inheritor
          FROM reached AS r,
               LATERAL (
                   SELECT a.attrelid, a.attnum, a.attname, false
                     FROM pg_depend AS d
                     JOIN pg_constraint AS k ON k.oid = d.objid
                     JOIN pg_attribute AS a ON a.attrelid = k.conrelid
                                           AND a.attnum = k.conkey[array_position(k.confkey, r.attnum)]
                    WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, r.tab, r.attnum)
                      AND d.classid = 'pg_constraint'::regclass
                      AND k.contype = 'f' AND k.confrelid = r.tab
                   UNION ALL
                   -- A column has the same name and type in parents and children.
                   SELECT c.attrelid, c.attnum, c.attname, true
                     FROM pg_inherits,
                          LATERAL (SELECT * FROM pg_attribute
                                    WHERE attrelid = inhrelid AND attname = r.attname
                                   OFFSET 0) AS c   -- keeps the planner from looking up attname in all tables first
                    WHERE inhparent = r.tab
                   UNION ALL
                   SELECT p.attrelid, p.attnum, p.attname, false
                     FROM pg_inherits
                     JOIN pg_attribute AS p ON p.attrelid = inhparent AND p.attname = r.attname
                    WHERE inhrelid = r.tab
               ) AS next(tab, attnum, attname, is_inheritor)
    )
    SELECT r.tab::regclass, r.attnum, a.attname, array_agg(DISTINCT r.key), bool_or(r.is_key),
           a.attinhcount > 0, a.atttypid <> 'bigint'::regtype
      FROM reached AS r
      JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (r.tab, r.attnum)
     GROUP BY r.tab, r.attnum, a.attname, a.attinhcount, a.atttypid;
END;
COMMENT ON FUNCTION snowflake_convert_columns(regclass[], name[]) IS
'internal: columns, and all columns that must have the same type because of inheritance or foreign keys';

-- Does a column's DEFAULT call snowflake_nextval()?
CREATE FUNCTION snowflake_convert_is_done(tab regclass, attnum smallint)
RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_attrdef AS f
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_attrdef'::regclass, f.oid)
         WHERE (f.adrelid, f.adnum) = (tab, attnum)
           AND d.refclassid = 'pg_proc'::regclass
           AND d.refobjid = 'snowflake_nextval()'::regprocedure);
END;
COMMENT ON FUNCTION snowflake_convert_is_done(regclass, smallint) IS
'internal: whether a column takes its DEFAULT from snowflake_nextval()';

-- Finds the snowflakes that a column references, directly or through other
-- columns.  If the column is a snowflake, the result has the column, too.
CREATE FUNCTION snowflake_convert_sources(tab regclass, attnum smallint)
RETURNS TABLE (key_tab regclass, key_attname name)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE referenced(tab, attnum) AS (
        SELECT tab::oid, attnum
        UNION
        SELECT k.confrelid, k.confkey[i]
          FROM referenced AS r
          JOIN pg_constraint AS k ON k.conrelid = r.tab AND k.contype = 'f',
               generate_subscripts(k.conkey, 1) AS i
         WHERE k.conkey[i] = r.attnum
    )
    SELECT a.attrelid::regclass, a.attname
      FROM referenced AS r
      JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (r.tab, r.attnum)
     WHERE snowflake_convert_is_done(r.tab, r.attnum);
END;
COMMENT ON FUNCTION snowflake_convert_sources(regclass, smallint) IS
'internal: the snowflakes that a column references, directly or through other columns, or is itself';

-- Finds the sequence of a serial column: the column owns the sequence, and the
-- column's DEFAULT calls nextval() on the sequence.
CREATE FUNCTION snowflake_convert_sequence(tab regclass, attnum smallint)
RETURNS regclass
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT o.objid::regclass
      FROM pg_depend AS o
      JOIN pg_class AS s ON s.oid = o.objid AND s.relkind = 'S'
      JOIN pg_depend AS u ON (u.refclassid, u.refobjid) = ('pg_class'::regclass, s.oid)
      JOIN pg_attrdef AS f ON (u.classid, u.objid) = ('pg_attrdef'::regclass, f.oid)
     WHERE o.classid = 'pg_class'::regclass
       AND (o.refclassid, o.refobjid, o.refobjsubid) = ('pg_class'::regclass, tab, attnum)
       AND o.deptype = 'a'
       AND (f.adrelid, f.adnum) = (tab, attnum)
     LIMIT 1;
END;
COMMENT ON FUNCTION snowflake_convert_sequence(regclass, smallint) IS
'internal: the sequence that makes a column serial, or NULL';

-- Finds inherited NOT NULL constraints.  Since PostgreSQL 18 they have names,
-- and ALTER COLUMN TYPE fails if an inheritor has a NOT NULL constraint of its
-- own with another name: PostgreSQL first adds the parent's constraint to the
-- inheritor, and a column can have only one.  Before PostgreSQL 18,
-- pg_constraint has no NOT NULL constraints and the result is empty.
CREATE FUNCTION snowflake_convert_not_nulls(rels regclass[], cols name[])
RETURNS TABLE (
    tab regclass,
    attname name,
    conname name,
    parent regclass,
    parent_conname name,
    is_partition boolean,
    is_in_the_way boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.tab, c.attname, k.conname, p.conrelid::regclass, p.conname, t.relispartition,
           k.conislocal AND k.conname <> p.conname
      FROM snowflake_convert_columns(rels, cols) AS c
      JOIN pg_class AS t ON t.oid = c.tab
      JOIN pg_constraint AS k ON k.conrelid = c.tab AND k.contype = 'n' AND k.conkey[1] = c.attnum
      JOIN pg_inherits ON inhrelid = c.tab
      JOIN pg_attribute AS a ON a.attrelid = inhparent AND a.attname = c.attname
      JOIN pg_constraint AS p ON p.conrelid = inhparent AND p.contype = 'n' AND p.conkey[1] = a.attnum
     WHERE c.is_narrow AND k.coninhcount > 0;
END;
COMMENT ON FUNCTION snowflake_convert_not_nulls(regclass[], name[]) IS
'internal: inherited NOT NULL constraints of columns that become bigint, and whether a constraint makes the change fail';

-- Finds the foreign keys that contain or reference a column which becomes bigint.
-- The conversion drops them first and adds them last, so that PostgreSQL checks
-- each foreign key only once.
CREATE FUNCTION snowflake_convert_foreign_keys(rels regclass[], cols name[])
RETURNS TABLE (key oid, conname name, tab regclass, references_tab regclass)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH narrow AS MATERIALIZED (
        SELECT * FROM snowflake_convert_columns(rels, cols) WHERE is_narrow
    )
    SELECT k.oid, k.conname, k.conrelid::regclass, k.confrelid::regclass
      FROM pg_constraint AS k
     WHERE k.contype = 'f' AND k.conparentid = 0
       AND EXISTS (SELECT FROM narrow AS n
                    WHERE n.tab = k.conrelid AND n.attnum = ANY (k.conkey)
                       OR n.tab = k.confrelid AND n.attnum = ANY (k.confkey));
END;
COMMENT ON FUNCTION snowflake_convert_foreign_keys(regclass[], name[]) IS
'internal: the foreign keys that are dropped and added again when a column becomes bigint';

-- Finds the sequences that pgEdge's extension of the same name has left with a
-- column: an identity column's sequence after attidentity was cleared, and a
-- serial column's sequence whose value is beyond its MAXVALUE.  A dump with such
-- a sequence cannot be restored.
CREATE FUNCTION snowflake_convert_leftovers(tab regclass, attnum smallint)
RETURNS TABLE (sequence regclass, is_identity boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.seqrelid::regclass, o.deptype = 'i'
      FROM pg_depend AS o
      JOIN pg_sequence AS s ON s.seqrelid = o.objid
      JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (tab, snowflake_convert_leftovers.attnum)
     WHERE o.classid = 'pg_class'::regclass
       AND (o.refclassid, o.refobjid, o.refobjsubid)
           = ('pg_class'::regclass, tab, snowflake_convert_leftovers.attnum)
       AND (o.deptype = 'i' AND a.attidentity = '' OR
            o.deptype = 'a' AND
            -- pg_sequence_last_value() locks the sequence.  So call it only for a
            -- MAXVALUE that is not the type's, not for every serial column.
            CASE WHEN s.seqmax <> CASE s.seqtypid WHEN 'smallint'::regtype THEN 32767
                                                  WHEN 'integer'::regtype THEN 2147483647
                                                  ELSE 9223372036854775807 END
                      AND has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                 THEN pg_sequence_last_value(s.seqrelid) > s.seqmax END);
END;
COMMENT ON FUNCTION snowflake_convert_leftovers(regclass, smallint) IS
'internal: sequences that pgEdge''s extension has left with a column, and with which a dump cannot be restored';

-- Lists the statements of a conversion.  The steps: -1 and 0 repair what pgEdge's
-- extension has left, 1 drops foreign keys, 2 drops inheritors' identities, 3 to
-- 5 change the columns, 6 drops sequences, 7 and 8 add foreign keys again.
CREATE FUNCTION snowflake_convert_statements(rels regclass[], cols name[])
RETURNS TABLE (
    tab regclass,
    other regclass,         -- the sequence, or the table referenced
    statement text,
    needs_superuser boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reached AS MATERIALIZED (
        SELECT * FROM snowflake_convert_columns(rels, cols)
    ), undone AS MATERIALIZED (
        SELECT unnest(keys) AS key
          FROM reached
         WHERE is_key AND NOT snowflake_convert_is_done(tab, attnum)
    ), columns AS MATERIALIZED (
        SELECT c.*, a.attidentity, t.relispartition,
               c.is_key AND EXISTS (SELECT FROM undone AS u WHERE u.key = ANY (c.keys)) AS wants_default
          FROM reached AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
    ), foreign_keys AS MATERIALIZED (
        SELECT key AS oid, f.tab, conname, references_tab FROM snowflake_convert_foreign_keys(rels, cols) AS f
    ), leftovers AS MATERIALIZED (
        SELECT c.tab, c.attname, l.sequence, l.is_identity
          FROM columns AS c,
               LATERAL snowflake_convert_leftovers(c.tab, c.attnum) AS l
         WHERE c.is_key
    ), actions AS (
        SELECT c.tab, c.attnum, v.place, format('ALTER COLUMN %I %s', c.attname, v.action) AS action
          FROM columns AS c,
               LATERAL (VALUES (1, 'DROP IDENTITY', c.wants_default AND c.attidentity <> ''),
                               (2, 'TYPE bigint', c.is_narrow),
                               (3, format('SET DEFAULT %s', 'snowflake_nextval()'::regprocedure),
                                c.wants_default)) AS v(place, action, is_wanted)
         WHERE v.is_wanted AND NOT c.is_inherited
    ), sequences AS (
        SELECT c.tab, snowflake_convert_sequence(c.tab, c.attnum) AS sequence
          FROM columns AS c
         WHERE c.wants_default
        UNION
        SELECT l.tab, l.sequence FROM leftovers AS l WHERE NOT l.is_identity
    ), not_nulls AS MATERIALIZED (
        SELECT * FROM snowflake_convert_not_nulls(rels, cols) WHERE NOT is_partition
    ), not_inherited(tab, attname, conname, height) AS (
        -- ALTER COLUMN TYPE leaves the inheritors' constraints alone while the
        -- parent's is NO INHERIT.  An inherited constraint cannot be altered, so
        -- the constraints of all ancestors become NO INHERIT, top down.
        SELECT parent, attname, parent_conname, 1 FROM not_nulls WHERE is_in_the_way
        UNION
        SELECT n.parent, n.attname, n.parent_conname, i.height + 1
          FROM not_inherited AS i
          JOIN not_nulls AS n ON (n.tab, n.attname) = (i.tab, i.attname)
    ), ancestors AS (
        SELECT tab, conname, max(height) AS height
          FROM not_inherited
         GROUP BY tab, conname
    ), dropped_sequences AS MATERIALIZED (
        SELECT tab, sequence
          FROM sequences AS s
         WHERE sequence IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_depend AS d
                            WHERE (d.refclassid, d.refobjid) = ('pg_class'::regclass, s.sequence)
                              AND d.deptype <> 'i'
                              AND NOT (d.classid = 'pg_attrdef'::regclass AND EXISTS (
                                  SELECT FROM pg_attrdef AS f
                                    JOIN columns AS c ON (c.tab, c.attnum) = (f.adrelid, f.adnum)
                                   WHERE f.oid = d.objid AND c.wants_default)))
    ), steps(step, place, tab, other, statement) AS (
        -- DROP IDENTITY finds the sequence only if attidentity is set again.
        SELECT -1, 0, tab, NULL::regclass, format('UPDATE pg_catalog.pg_attribute SET attidentity = ''d'' '
                                  'WHERE attrelid = %L::pg_catalog.regclass AND attname = %L', tab, attname)
          FROM leftovers
         WHERE is_identity
        UNION ALL
        SELECT 0, 0, tab, NULL, format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY', tab, attname)
          FROM leftovers
         WHERE is_identity
        UNION ALL
        SELECT 0, 1, tab, sequence, format('ALTER SEQUENCE %s AS bigint NO CYCLE MAXVALUE 9223372036854775807', sequence)
          FROM leftovers
         WHERE NOT is_identity AND sequence NOT IN (SELECT d.sequence FROM dropped_sequences AS d)
        UNION ALL
        SELECT 1, 0, tab, NULL, format('ALTER TABLE %s DROP CONSTRAINT %I', tab, conname)
          FROM foreign_keys
        UNION ALL
        -- An inheritor has an identity of its own; a partition has its parent's.
        SELECT 2, 0, tab, NULL, format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY', tab, attname)
          FROM columns
         WHERE wants_default AND is_inherited AND NOT relispartition AND attidentity <> ''
        UNION ALL
        -- NO INHERIT from the top down, INHERIT from the bottom up.
        SELECT 3, -height, tab, NULL, format('ALTER TABLE %s ALTER CONSTRAINT %I NO INHERIT', tab, conname)
          FROM ancestors
        UNION ALL
        SELECT 4, 0, tab, NULL, format('ALTER TABLE %s %s', tab, string_agg(action, ', ' ORDER BY attnum, place))
          FROM actions
         GROUP BY tab
        UNION ALL
        SELECT 5, height, tab, NULL, format('ALTER TABLE %s ALTER CONSTRAINT %I INHERIT', tab, conname)
          FROM ancestors
        UNION ALL
        SELECT 6, 0, tab, sequence, format('DROP SEQUENCE %s', sequence)
          FROM dropped_sequences
        UNION ALL
        SELECT 7, 0, tab, references_tab, format('ALTER TABLE %s ADD CONSTRAINT %I %s', tab, conname, pg_get_constraintdef(oid))
          FROM foreign_keys
        UNION ALL
        SELECT 8, 0, tab, NULL, format('COMMENT ON CONSTRAINT %I ON %s IS %L', conname, tab,
                              obj_description(oid, 'pg_constraint'))
          FROM foreign_keys
         WHERE obj_description(oid, 'pg_constraint') IS NOT NULL
    )
    SELECT tab, other, statement || ';', step = -1
      FROM steps
     ORDER BY step, place, tab <> ALL (rels), tab::text COLLATE "C", statement COLLATE "C";
END;
COMMENT ON FUNCTION snowflake_convert_statements(regclass[], name[]) IS
'internal: the statements that convert columns, in order, and the table that each is about';

-- Returns true if a query on a table cannot run code of the table's owner.  The
-- planner evaluates CHECKs, the predicates of indexes, and the expressions of
-- indexes and statistics.  If a foreign key has a column of a user-defined type,
-- the planner inlines the casts of that type.  A query also reads the table's
-- inheritors or partitions, so a table that has any is not plain.
CREATE FUNCTION snowflake_convert_is_plain(tab regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM pg_class WHERE oid = tab AND relkind = 'r' AND NOT relhassubclass)
       AND NOT EXISTS (SELECT FROM pg_index
                        WHERE indrelid = tab AND (indpred IS NOT NULL OR indexprs IS NOT NULL))
       AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = tab AND contype = 'c')
       AND NOT EXISTS (SELECT FROM pg_statistic_ext WHERE stxrelid = tab AND stxexprs IS NOT NULL)
       AND NOT EXISTS (SELECT FROM pg_constraint AS k
                         JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
                        WHERE k.conrelid = tab AND k.contype = 'f' AND a.atttypid >= 16384);
END;
COMMENT ON FUNCTION snowflake_convert_is_plain(regclass) IS
'internal: whether a query on a table runs no code of its owner';

-- Lists the objects that keep ALTER COLUMN TYPE from changing the columns.
CREATE FUNCTION snowflake_convert_obstacles(rels regclass[], cols name[], puts_back boolean)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reached AS MATERIALIZED (
        SELECT * FROM snowflake_convert_columns(rels, cols)
    ), foreign_keys AS MATERIALIZED (
        SELECT * FROM snowflake_convert_foreign_keys(rels, cols)
    ), narrow AS MATERIALIZED (
        SELECT c.tab, c.attnum, a.atttypid, a.attinhcount, t.reltype, t.reloftype,
               format('column %I of table %s', c.attname, c.tab) AS description
          FROM reached AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
         WHERE c.is_narrow
    ), row_types(tab, type) AS (
        -- The tables' row types, and the arrays, domains, ranges and composite types
        -- that contain a row type.
        SELECT tab, reltype FROM narrow WHERE reltype <> 0
        UNION
        SELECT w.tab, next.type
          FROM row_types AS w,
               LATERAL (
                   SELECT typarray FROM pg_type WHERE oid = w.type AND typarray <> 0
                   UNION ALL
                   SELECT oid FROM pg_type WHERE typbasetype = w.type
                   UNION ALL
                   SELECT unnest(ARRAY[rngtypid, rngmultitypid]) FROM pg_range WHERE rngsubtype = w.type
                   UNION ALL
                   SELECT t.reltype FROM pg_attribute AS a
                     JOIN pg_class AS t ON t.oid = a.attrelid AND t.relkind = 'c'
                    WHERE a.atttypid = w.type AND NOT a.attisdropped
               ) AS next(type)
    ), obstacles(description) AS (
        SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
          FROM narrow AS n
          JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass
                             AND (d.refobjid, d.refobjsubid) = (n.tab, n.attnum)
         WHERE d.classid IN ('pg_policy'::regclass, 'pg_publication_rel'::regclass, 'pg_proc'::regclass)
            OR d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass) AND NOT puts_back
            OR d.classid = 'pg_class'::regclass AND d.objsubid > 0
            OR d.classid = 'pg_attrdef'::regclass AND NOT EXISTS (
                SELECT FROM pg_attrdef AS f
                 WHERE f.oid = d.objid AND (f.adrelid, f.adnum) = (n.tab, n.attnum))
        UNION
        SELECT format('%s, of type %s', description, format_type(atttypid, NULL))
          FROM narrow
         WHERE atttypid NOT IN ('smallint'::regtype, 'integer'::regtype)
        UNION
        SELECT format('%s, inherited from several tables', description)
          FROM narrow
         WHERE attinhcount > 1
        UNION
        SELECT format('%s, of a table of type %s', description, format_type(reloftype, NULL))
          FROM narrow
         WHERE reloftype <> 0
        UNION
        -- ATTACH PARTITION replaces the partition's constraint by the parent's.
        SELECT format('NOT NULL constraint %I of partition %s, whose name is not that of the parent''s constraint: '
                      'detach and attach the partition first', conname, tab)
          FROM snowflake_convert_not_nulls(rels, cols)
         WHERE is_partition AND is_in_the_way
        UNION
        -- The columns of a partition key depend on their own table.
        SELECT format('%s, in its partition key', description)
          FROM narrow AS n
          JOIN pg_depend AS d ON (d.classid, d.objid, d.objsubid) = ('pg_class'::regclass, n.tab, n.attnum)
                             AND (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, n.tab, 0)
         WHERE d.deptype = 'i'
        UNION
        -- A column that references two columns needs values that fit both.
        SELECT format('column %I of table %s, which references column %I of table %s as well',
                      c.attname, c.tab, f.attname, f.attrelid::regclass)
          FROM reached AS c
          JOIN pg_constraint AS k ON k.conrelid = c.tab AND k.contype = 'f' AND k.conparentid = 0
                                 AND c.attnum = ANY (k.conkey)
          JOIN pg_attribute AS f ON f.attrelid = k.confrelid
                                AND f.attnum = k.confkey[array_position(k.conkey, c.attnum)]
         WHERE f.atttypid IN ('smallint'::regtype, 'integer'::regtype)
           AND NOT EXISTS (SELECT FROM reached AS o
                            WHERE (o.tab, o.attnum) = (f.attrelid, f.attnum))
        UNION
        SELECT format(CASE WHEN w.type IN (r.oid, r.typarray)
                           THEN 'column %I of table %s, whose type is that of table %s'
                           ELSE 'column %I of table %s, whose type contains that of table %s' END,
                      u.attname, u.attrelid::regclass, w.tab)
          FROM row_types AS w
          JOIN narrow AS n ON n.tab = w.tab
          JOIN pg_type AS r ON r.oid = n.reltype
          JOIN pg_attribute AS u ON u.atttypid = w.type AND NOT u.attisdropped
          JOIN pg_class AS t ON t.oid = u.attrelid AND t.relkind IN ('r', 'p', 'm', 'f')
        UNION
        -- ALTER TABLE requires the same owner for parents and inheritors, and code
        -- of another role's table must not run as this table's owner.
        SELECT format('table %s, which does not belong to %I as table %s does',
                      i.inhrelid::regclass, pg_get_userbyid(p.relowner), p.oid::regclass)
          FROM reached AS c
          JOIN pg_inherits AS i ON i.inhrelid = c.tab
          JOIN pg_class AS t ON t.oid = i.inhrelid
          JOIN pg_class AS p ON p.oid = i.inhparent
         WHERE (c.is_key OR c.is_narrow) AND t.relowner <> p.relowner
        UNION
        SELECT format('foreign key constraint %I of table %s: checking it would run code of table %s, '
                      'which belongs to another role', f.conname, f.tab, f.references_tab)
          FROM foreign_keys AS f
          JOIN pg_class AS t ON t.oid = f.tab
          JOIN pg_class AS r ON r.oid = f.references_tab
         WHERE t.relowner <> r.relowner AND NOT snowflake_convert_is_plain(r.oid)
        UNION
        SELECT format('foreign key constraint %I of table %s: role %I may not reference table %s',
                      f.conname, f.tab, pg_get_userbyid(t.relowner), f.references_tab)
          FROM foreign_keys AS f
          JOIN pg_class AS t ON t.oid = f.tab
         WHERE NOT has_any_column_privilege(t.relowner, f.references_tab, 'REFERENCES')
        UNION
        -- ALTER COLUMN TYPE needs an operator class for bigint: the default one, if
        -- the index has a default operator class, else one of the same name.
        SELECT format('operator class %s of index %s', p.opcname, x.indexrelid::regclass)
          FROM narrow AS n
          JOIN pg_index AS x ON x.indrelid = n.tab
         CROSS JOIN LATERAL generate_subscripts(x.indclass, 1) AS i
          JOIN pg_opclass AS p ON p.oid = x.indclass[i]
         WHERE x.indkey[i] = n.attnum
           AND NOT EXISTS (SELECT FROM pg_opclass AS o
                            WHERE o.opcmethod = p.opcmethod
                              AND o.opcintype IN ('bigint'::regtype, 'anyelement'::regtype)
                              AND CASE WHEN p.opcdefault THEN o.opcdefault ELSE o.opcname = p.opcname END)
    )
    SELECT description FROM obstacles ORDER BY description COLLATE "C";
END;
COMMENT ON FUNCTION snowflake_convert_obstacles(regclass[], name[], boolean) IS
'internal: the objects that keep columns, and the columns that reference them, from becoming bigint';

-- Lists the expressions of CHECKs, indexes and statistics that name a column
-- which becomes bigint.  Each expression is part of a query, in which the column
-- is bigint already, and tableoid and whole-row references are those of the table.
-- src/convert.c only parses and analyzes the query: an error shows that an
-- operator or a function does not accept bigint.
CREATE FUNCTION snowflake_convert_expressions(rels regclass[], cols name[])
RETURNS TABLE (description text, query text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH narrow AS MATERIALIZED (
        SELECT tab, attnum FROM snowflake_convert_columns(rels, cols) WHERE is_narrow
    ), expressions(classid, objid, tab, expression) AS (
        SELECT 'pg_constraint'::regclass, k.oid, k.conrelid, pg_get_expr(k.conbin, k.conrelid)
          FROM pg_constraint AS k
         WHERE k.contype = 'c'
           AND EXISTS (SELECT FROM narrow AS n WHERE n.tab = k.conrelid AND n.attnum = ANY (k.conkey))
        UNION ALL
        SELECT 'pg_class'::regclass, x.indexrelid, x.indrelid, e.expression
          FROM pg_index AS x,
               LATERAL (
                   SELECT pg_get_expr(x.indpred, x.indrelid) WHERE x.indpred IS NOT NULL
                   UNION ALL
                   SELECT pg_get_indexdef(x.indexrelid, i + 1, false)
                     FROM generate_subscripts(x.indkey, 1) AS i
                    WHERE x.indkey[i] = 0
               ) AS e(expression)
         WHERE EXISTS (SELECT FROM narrow AS n
                         JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid)
                                                = ('pg_class'::regclass, n.tab, n.attnum)
                        WHERE n.tab = x.indrelid
                          AND (d.classid, d.objid) = ('pg_class'::regclass, x.indexrelid))
        UNION ALL
        SELECT 'pg_statistic_ext'::regclass, x.oid, x.stxrelid, e.expression
          FROM pg_statistic_ext AS x,
               LATERAL unnest(pg_get_statisticsobjdef_expressions(x.oid)) AS e(expression)
         WHERE EXISTS (SELECT FROM narrow AS n
                         JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid)
                                                = ('pg_class'::regclass, n.tab, n.attnum)
                        WHERE n.tab = x.stxrelid
                          AND (d.classid, d.objid) = ('pg_statistic_ext'::regclass, x.oid))
        UNION ALL
        -- ALTER COLUMN TYPE looks an exclusion constraint's operators up by name, too.
        SELECT 'pg_constraint'::regclass, k.oid, k.conrelid,
               format('%1$I OPERATOR(%2$I.%3$s) %1$I', a.attname, s.nspname, o.oprname)
          FROM pg_constraint AS k
         CROSS JOIN LATERAL generate_subscripts(k.conkey, 1) AS i
          JOIN pg_operator AS o ON o.oid = k.conexclop[i]
          JOIN pg_namespace AS s ON s.oid = o.oprnamespace
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (k.conrelid, k.conkey[i])
         WHERE k.contype = 'x'
           AND EXISTS (SELECT FROM narrow AS n WHERE (n.tab, n.attnum) = (k.conrelid, k.conkey[i]))
    )
    SELECT pg_describe_object(e.classid, e.objid, 0),
           format('SELECT (SELECT %s FROM (SELECT %s) AS "as bigint") FROM %s', e.expression,
                  (SELECT string_agg(format('NULL::%s AS %I',
                                            CASE WHEN EXISTS (SELECT FROM narrow AS n
                                                               WHERE (n.tab, n.attnum) = (a.attrelid, a.attnum))
                                                 THEN 'bigint'
                                                 ELSE format_type(a.atttypid, a.atttypmod) END,
                                            a.attname), ', ')
                     FROM pg_attribute AS a
                    WHERE a.attrelid = e.tab AND a.attnum > 0 AND NOT a.attisdropped),
                  e.tab::regclass)
      FROM expressions AS e
     ORDER BY 1, 2;
END;
COMMENT ON FUNCTION snowflake_convert_expressions(regclass[], name[]) IS
'internal: queries with the expressions that ALTER COLUMN TYPE parses again; ALTER COLUMN TYPE fails if one of these queries does not parse';

-- Finds the CHECKs of a column that have a bound which new ids exceed, by a
-- regular expression on the CHECK's text.
CREATE FUNCTION snowflake_convert_bounds(tab regclass, attnum smallint)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT format('%s: %s', pg_describe_object('pg_constraint'::regclass, k.oid, 0),
                           pg_get_constraintdef(k.oid))
      FROM pg_attribute AS a
      JOIN pg_constraint AS k ON k.conrelid = a.attrelid AND k.contype = 'c' AND a.attnum = ANY (k.conkey),
           LATERAL (SELECT pg_get_expr(k.conbin, k.conrelid),
                           regexp_replace(quote_ident(a.attname), '([^[:alnum:]_])', '\\\1', 'g'))
               AS e(expression, name),
           LATERAL regexp_matches(e.expression,
                                  format('(?:^|[^[:alnum:]_."])%s\)*(?:::bigint)? (?:<=?|=) \(*''?(\d{1,30})', e.name)
                                  || format('|(\d{1,30})''?(?:::\w+)?\)* (?:>=?|=) \(*%s(?![[:alnum:]_"])', e.name),
                                  'g') AS m
     WHERE (a.attrelid, a.attnum) = (tab, snowflake_convert_bounds.attnum)
       AND coalesce(m[1], m[2])::numeric < snowflake_min_id(now());
END;
COMMENT ON FUNCTION snowflake_convert_bounds(regclass, smallint) IS
'internal: CHECKs of a column with a bound that new ids exceed';

-- Lists the doubts about a conversion: objects that do not keep a column from
-- becoming bigint, but may refuse new ids afterwards.  Finds these objects by
-- regular expressions on their text.
CREATE FUNCTION snowflake_convert_doubts(rels regclass[], cols name[])
RETURNS SETOF text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT c.*, a.atttypid FROM snowflake_convert_columns(rels, cols) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
    ), doubts(description) AS (
        SELECT b FROM columns AS c, LATERAL snowflake_convert_bounds(c.tab, c.attnum) AS b
        UNION
        SELECT format('%s: function %s names the type integer',
                      pg_describe_object('pg_trigger'::regclass, g.oid, 0), g.tgfoid::regprocedure)
          FROM columns AS c
          JOIN pg_trigger AS g ON g.tgrelid = c.tab AND NOT g.tgisinternal
          JOIN pg_proc AS p ON p.oid = g.tgfoid
         WHERE c.is_narrow AND p.prosrc ~* '\m(int|int2|int4|integer|smallint)\M'
        UNION
        -- currval() fails, because the key's DEFAULT no longer calls nextval().
        SELECT format('%s: %s', pg_describe_object('pg_attrdef'::regclass, f.oid, 0),
                      pg_get_expr(f.adbin, f.adrelid))
          FROM columns AS c
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid)
                                 = ('pg_class'::regclass, snowflake_convert_sequence(c.tab, c.attnum))
                             AND d.classid = 'pg_attrdef'::regclass
          JOIN pg_attrdef AS f ON f.oid = d.objid
         WHERE c.is_key AND (f.adrelid, f.adnum) <> (c.tab, c.attnum)
           AND pg_get_expr(f.adbin, f.adrelid) ~ '\mcurrval\('
    )
    SELECT description FROM doubts ORDER BY description COLLATE "C";
END;
COMMENT ON FUNCTION snowflake_convert_doubts(regclass[], name[]) IS
'internal: CHECKs with a bound that new ids exceed, triggers with integer variables, and defaults of currval()';

-- Raises an error for a column that cannot become a snowflake.
CREATE FUNCTION snowflake_convert_check(rel regclass, col name)
RETURNS void
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    t pg_class;
    a pg_attribute;
    other text;
BEGIN
    SELECT * INTO t FROM pg_class WHERE oid = rel;
    SELECT * INTO a FROM pg_attribute
     WHERE attrelid = rel AND attname = col AND attnum > 0 AND NOT attisdropped;
    IF t.oid IS NULL THEN
        RAISE undefined_table USING
            MESSAGE = format('relation with OID %s does not exist', rel::oid);
    ELSIF t.relkind NOT IN ('r', 'p') THEN
        RAISE wrong_object_type USING
            MESSAGE = format('"%s" is not a table', rel),
            HINT = 'Only columns of tables and partitioned tables can be converted.';
    ELSIF a.attname IS NULL THEN
        RAISE undefined_column USING
            MESSAGE = format('column "%s" of table "%s" does not exist', col, rel);
    ELSIF a.attgenerated <> '' THEN
        RAISE generated_always USING
            MESSAGE = format('column "%s" of table "%s" is a generated column', col, rel),
            HINT = 'A generated column has no DEFAULT.';
    ELSIF a.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN
        RAISE datatype_mismatch USING
            MESSAGE = format('column "%s" of table "%s" has type %s',
                             col, rel, format_type(a.atttypid, a.atttypmod)),
            HINT = 'Only columns of type smallint, integer or bigint can be converted.';
    END IF;

    IF a.attinhcount > 0 THEN
        SELECT string_agg(inhparent::regclass::text, ', ' ORDER BY inhseqno) INTO other
          FROM pg_inherits WHERE inhrelid = rel;
        RAISE invalid_table_definition USING
            MESSAGE = format('column "%s" of table "%s" is inherited', col, rel),
            HINT = format('Convert the column of the parent, %s; its inheritors and partitions follow.', other);
    END IF;
    SELECT format('column "%s" of table "%s"', r.attname, r.attrelid::regclass) INTO other
      FROM pg_constraint AS k
      JOIN pg_attribute AS r ON r.attrelid = k.confrelid
                            AND r.attnum = k.confkey[array_position(k.conkey, a.attnum)]
     WHERE k.contype = 'f' AND k.conrelid = rel AND k.conparentid = 0;
    IF other IS NOT NULL THEN
        RAISE feature_not_supported USING
            MESSAGE = format('column "%s" of table "%s" references %s', col, rel, other),
            HINT = 'Convert the referenced column. The conversion includes the columns that reference it.';
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_convert_check(regclass, name) IS
'internal: raises an error unless a column can become a snowflake';

-- src/convert.c says why this function is in C.
CREATE FUNCTION snowflake_convert(rel regclass, col name, dry_run boolean DEFAULT false)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'snowflake_convert'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off;
COMMENT ON FUNCTION snowflake_convert(regclass, name, boolean) IS
'make a key column bigint DEFAULT snowflake_nextval(), and the columns that reference it bigint; returns the statements';

--
-- Converting schemas
--
-- A conversion of schemas drops the views, rules and triggers that name a key,
-- and puts them back.  src/convert_schema.c executes the statements.
--

-- Lists the keys to convert.  A key whose values neither a sequence nor
-- snowflake_nextval() makes may be a natural key, and is not converted.  Such a
-- key is listed as left alone if it is the only column of a primary key.  A
-- snowflake is listed only if a part of its conversion is still to do, such as a
-- column that references the snowflake and is not bigint yet.
CREATE FUNCTION snowflake_convert_keys(schemas name[])
RETURNS TABLE (
    tab regclass,
    attname name,
    is_left_alone boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH keys AS MATERIALIZED (
        SELECT t.oid::regclass AS tab, a.attname, a.attnum, a.attidentity,
               snowflake_convert_is_done(t.oid, a.attnum) AS is_done,
               (SELECT pg_get_expr(f.adbin, f.adrelid) FROM pg_attrdef AS f
                 WHERE (f.adrelid, f.adnum) = (t.oid, a.attnum)) AS expression
          FROM pg_namespace AS s
          JOIN pg_class AS t ON t.relnamespace = s.oid AND t.relkind IN ('r', 'p') AND t.relpersistence <> 't'
          JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
                                AND a.attinhcount = 0 AND a.attgenerated = ''
                                AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
         WHERE s.nspname = ANY (schemas)
           AND EXISTS (SELECT FROM pg_constraint AS k
                        WHERE k.contype = 'p' AND k.conrelid = t.oid AND a.attnum = ANY (k.conkey)
                           OR k.contype = 'f' AND k.confrelid = t.oid AND a.attnum = ANY (k.confkey))
           -- A column that references another key is converted with that key.
           AND NOT EXISTS (SELECT FROM pg_constraint AS k
                            WHERE k.contype = 'f' AND k.conrelid = t.oid AND k.conparentid = 0
                              AND a.attnum = ANY (k.conkey))
           AND NOT EXISTS (SELECT FROM pg_depend AS d
                            WHERE (d.classid, d.objid, d.deptype) = ('pg_class'::regclass, t.oid, 'e'))
    ), generated AS (
        SELECT *, attidentity <> '' OR coalesce(expression ~ '\mnextval\(', false)
                  OR EXISTS (SELECT FROM snowflake_convert_leftovers(tab, attnum)) AS is_generated
          FROM keys
    )
    SELECT tab, attname, NOT is_done AND NOT is_generated
      FROM generated
     WHERE CASE WHEN is_done AND NOT is_generated
                THEN EXISTS (SELECT FROM snowflake_convert_columns(ARRAY[tab], ARRAY[attname]) AS c
                              WHERE c.is_narrow OR c.is_key AND NOT snowflake_convert_is_done(c.tab, c.attnum))
                ELSE is_generated
                     OR EXISTS (SELECT FROM pg_constraint AS k
                                 WHERE k.contype = 'p' AND k.conrelid = tab AND k.conkey = ARRAY[attnum]) END
     ORDER BY tab::text COLLATE "C", attnum;
END;
COMMENT ON FUNCTION snowflake_convert_keys(name[]) IS
'internal: the keys of schemas to convert, and the keys that are left alone because no sequence makes them';

-- Describes keys, for the comments of a dry run.
CREATE FUNCTION snowflake_convert_describe(rels regclass[], cols name[])
RETURNS TABLE (key integer, description text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT * FROM snowflake_convert_columns(rels, cols)
    ), tables AS (
        SELECT k.key, count(*) AS count, sum(pg_total_relation_size(k.tab)) AS size
          FROM (SELECT DISTINCT unnest(keys), tab FROM columns WHERE is_narrow) AS k(key, tab)
          JOIN pg_class AS t ON t.oid = k.tab AND t.relkind = 'r'
         GROUP BY k.key
    ), refs AS (
        SELECT k.key, string_agg(format('%s (%I)', c.tab, c.attname), ', '
                                 ORDER BY c.tab::text COLLATE "C", c.attnum) AS list
          FROM columns AS c,
               LATERAL unnest(c.keys) AS k(key)
          JOIN pg_class AS t ON true
         WHERE NOT c.is_key AND NOT c.is_inherited AND t.oid = c.tab
         GROUP BY k.key
    )
    SELECT k.key::integer,
           format('key %s (%I): %s, %s%s', k.tab, k.col, format_type(a.atttypid, NULL),
                  CASE WHEN t.size IS NULL THEN 'rewrites no table'
                       ELSE format('rewrites %s table%s of %s', t.count, CASE WHEN t.count > 1 THEN 's' END,
                                   pg_size_pretty(t.size)) END,
                  '; referenced by ' || r.list)
      FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(tab, col, key)
      JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col
      LEFT JOIN tables AS t ON t.key = k.key
      LEFT JOIN refs AS r ON r.key = k.key
     ORDER BY k.key;
END;
COMMENT ON FUNCTION snowflake_convert_describe(regclass[], name[]) IS
'internal: the keys to convert, in words: type, size of the tables that are rewritten, references';

-- Lists the views and materialised views on columns that become bigint, and the
-- views on these views.  "place" is how many views a view depends on.
CREATE FUNCTION snowflake_convert_views(rels regclass[], cols name[])
RETURNS TABLE (view regclass, place bigint, is_circular boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE views(oid) AS (
        SELECT v.oid
          FROM snowflake_convert_columns(rels, cols) AS c
          JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass
                             AND (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum)
          JOIN pg_rewrite AS r ON r.oid = d.objid
          JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind IN ('v', 'm')
         WHERE c.is_narrow
        UNION
        SELECT u.oid
          FROM views AS v
          JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass
                             AND (d.refclassid, d.refobjid) = ('pg_class'::regclass, v.oid)
          JOIN pg_rewrite AS r ON r.oid = d.objid
          JOIN pg_class AS u ON u.oid = r.ev_class AND u.relkind IN ('v', 'm')
    ), uses(oid, used) AS (
        SELECT v.oid, w.oid
          FROM views AS v
          JOIN pg_rewrite AS r ON r.ev_class = v.oid AND r.ev_type = '1'
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_rewrite'::regclass, r.oid)
                             AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
                             AND d.refobjid <> r.ev_class   -- OLD and NEW are the view itself
          JOIN pg_class AS w ON w.oid = d.refobjid AND w.relkind IN ('v', 'm')
        UNION
        SELECT u.oid, w.oid
          FROM uses AS u
          JOIN pg_rewrite AS r ON r.ev_class = u.used AND r.ev_type = '1'
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_rewrite'::regclass, r.oid)
                             AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
                             AND d.refobjid <> r.ev_class   -- OLD and NEW are the view itself
          JOIN pg_class AS w ON w.oid = d.refobjid AND w.relkind IN ('v', 'm')
    )
    SELECT v.oid::regclass, count(u.used), coalesce(bool_or(u.used = v.oid), false)
      FROM views AS v
      LEFT JOIN uses AS u ON u.oid = v.oid
     GROUP BY v.oid;
END;
COMMENT ON FUNCTION snowflake_convert_views(regclass[], name[]) IS
'internal: the views that are dropped and put back when columns become bigint';

-- Lists the rules and triggers that name a column which becomes bigint, or a
-- view of snowflake_convert_views(), and the rules and triggers of these views.
CREATE FUNCTION snowflake_convert_rules(rels regclass[], cols name[])
RETURNS TABLE (classid oid, objid oid, tab regclass, name name, is_of_view boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT view FROM snowflake_convert_views(rels, cols)
    ), depending AS (
        SELECT d.classid, d.objid
          FROM snowflake_convert_columns(rels, cols) AS c
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum)
         WHERE c.is_narrow AND d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass)
        UNION
        SELECT d.classid, d.objid
          FROM views AS v
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = ('pg_class'::regclass, v.view)
         WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass)
    )
    SELECT d.classid, d.objid, r.ev_class::regclass, r.rulename, v.view IS NOT NULL
      FROM depending AS d
      JOIN pg_rewrite AS r ON r.oid = d.objid AND r.ev_type <> '1'
      LEFT JOIN views AS v ON v.view = r.ev_class
     WHERE d.classid = 'pg_rewrite'::regclass
    UNION ALL
    SELECT d.classid, d.objid, g.tgrelid::regclass, g.tgname, v.view IS NOT NULL
      FROM depending AS d
      JOIN pg_trigger AS g ON g.oid = d.objid AND NOT g.tgisinternal AND g.tgparentid = 0
      LEFT JOIN views AS v ON v.view = g.tgrelid
     WHERE d.classid = 'pg_trigger'::regclass;
END;
COMMENT ON FUNCTION snowflake_convert_rules(regclass[], name[]) IS
'internal: the rules and triggers that are dropped and put back when columns become bigint';

-- Lists the statements that create a view as it is now, without its rules and
-- triggers.  A materialised view is created empty, and filled later.
CREATE FUNCTION snowflake_convert_view_statements(view regclass)
RETURNS TABLE (place integer, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH v AS MATERIALIZED (
        SELECT c.*, CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END AS kind
          FROM pg_class AS c
         WHERE c.oid = view
    ), options AS (
        SELECT string_agg(format('%s=%L', left(o, strpos(o, '=') - 1), substr(o, strpos(o, '=') + 1)), ', '
                          ORDER BY place) AS list
          FROM (SELECT 0, o FROM v, unnest(v.reloptions) AS o
                UNION ALL
                SELECT 1, 'toast.' || o FROM v JOIN pg_class AS t ON t.oid = v.reltoastrelid, unnest(t.reloptions) AS o
               ) AS s(place, o)
    ), indexes AS MATERIALIZED (
        SELECT x.indexrelid::regclass AS index, x.indisclustered, i.reltablespace, i.relname, x.indrelid
          FROM pg_index AS x
          JOIN pg_class AS i ON i.oid = x.indexrelid
         WHERE x.indrelid = view
    ), grants AS (
        SELECT a.attnum, a.attname, a.acl
          FROM (SELECT 0, NULL::name, coalesce(v.relacl, acldefault('r', v.relowner)) FROM v
                 WHERE v.relacl IS NOT NULL
                    OR EXISTS (SELECT FROM pg_default_acl AS f WHERE f.defaclrole = v.relowner AND f.defaclobjtype = 'r'
                                                                 AND f.defaclnamespace IN (0, v.relnamespace))
                UNION ALL
                SELECT attnum, attname, attacl FROM pg_attribute
                 WHERE attrelid = view AND attacl IS NOT NULL AND NOT attisdropped) AS a(attnum, attname, acl)
    ), steps(place, ord, statement) AS (
        SELECT 0, 0, format('CREATE %s %s%s%s%s AS %s%s', v.kind, view,
                            CASE WHEN v.relkind = 'm' AND m.amname <> current_setting('default_table_access_method')
                                 THEN format(' USING %I', m.amname) END,
                            ' WITH (' || o.list || ')',
                            CASE WHEN v.relkind = 'm'
                                      AND (v.reltablespace <> 0 OR current_setting('default_tablespace') <> '')
                                 THEN format(' TABLESPACE %I', s.spcname) END,
                            rtrim(ltrim(pg_get_viewdef(view)), ';'),
                            CASE v.relkind WHEN 'm' THEN E'\n WITH NO DATA' END)
          FROM v
         CROSS JOIN options AS o
          LEFT JOIN pg_am AS m ON m.oid = v.relam
          LEFT JOIN pg_tablespace AS s
            ON s.oid = CASE v.reltablespace
                       WHEN 0 THEN (SELECT dattablespace FROM pg_database WHERE datname = current_database())
                       ELSE v.reltablespace END
        UNION ALL
        SELECT 1, 0, format('ALTER %s %s OWNER TO %I', v.kind, view, pg_get_userbyid(v.relowner))
          FROM v
         WHERE pg_get_userbyid(v.relowner) <> current_user
        UNION ALL
        SELECT 2, f.adnum, format('ALTER VIEW %s ALTER COLUMN %I SET DEFAULT %s', view, a.attname,
                                  pg_get_expr(f.adbin, f.adrelid))
          FROM pg_attrdef AS f
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (f.adrelid, f.adnum)
         WHERE f.adrelid = view
        UNION ALL
        SELECT 3, a.attnum, format('ALTER MATERIALIZED VIEW %s ALTER COLUMN %I %s', view, a.attname, s.action)
          FROM v
          JOIN pg_attribute AS a ON a.attrelid = v.oid AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pg_type AS t ON t.oid = a.atttypid,
               LATERAL (
                   SELECT format('SET STATISTICS %s', a.attstattarget) WHERE a.attstattarget >= 0
                   UNION ALL
                   SELECT format('SET STORAGE %s', CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL'
                                                   WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)
                    WHERE a.attstorage <> t.typstorage
                   UNION ALL
                   SELECT format('SET COMPRESSION %s', CASE a.attcompression WHEN 'p' THEN 'pglz' ELSE 'lz4' END)
                    WHERE a.attcompression <> ''
                   UNION ALL
                   -- Some servers, such as PostgreSQL 15.20, store an option pg_attver, which pg_dump skips, too.
                   SELECT format('SET (%s)', string_agg(o, ', ')) FROM unnest(a.attoptions) AS o
                    WHERE o NOT LIKE 'pg\_attver=%' HAVING count(*) > 0
               ) AS s(action)
         WHERE v.relkind = 'm'
        UNION ALL
        SELECT 4, 0, pg_get_indexdef(i.index) FROM indexes AS i
        UNION ALL
        SELECT 5, 0, format('ALTER INDEX %s SET TABLESPACE %I', i.index, s.spcname)
          FROM indexes AS i
          LEFT JOIN pg_tablespace AS s
            ON s.oid = CASE i.reltablespace
                       WHEN 0 THEN (SELECT dattablespace FROM pg_database WHERE datname = current_database())
                       ELSE i.reltablespace END
         WHERE i.reltablespace <> 0 OR current_setting('default_tablespace') <> ''
        UNION ALL
        SELECT 5, 1, format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', i.index, a.attnum, a.attstattarget)
          FROM indexes AS i
          JOIN pg_attribute AS a ON a.attrelid = i.index AND a.attstattarget >= 0
        UNION ALL
        SELECT 5, 2, format('ALTER MATERIALIZED VIEW %s CLUSTER ON %I', view, i.relname)
          FROM indexes AS i
         WHERE i.indisclustered
        UNION ALL
        SELECT 5, 3, format('COMMENT ON INDEX %s IS %L', i.index, obj_description(i.index, 'pg_class'))
          FROM indexes AS i
         WHERE obj_description(i.index, 'pg_class') IS NOT NULL
        UNION ALL
        SELECT 6, 0, pg_get_statisticsobjdef(x.oid) FROM pg_statistic_ext AS x WHERE x.stxrelid = view
        UNION ALL
        SELECT 7, s.ord, format('%s STATISTICS %I.%I %s', s.verb, n.nspname, x.stxname, s.action)
          FROM pg_statistic_ext AS x
          JOIN pg_namespace AS n ON n.oid = x.stxnamespace,
               LATERAL (VALUES (0, 'ALTER', 'SET STATISTICS ' || x.stxstattarget, x.stxstattarget >= 0),
                               (1, 'COMMENT ON', format('IS %L', obj_description(x.oid, 'pg_statistic_ext')),
                                obj_description(x.oid, 'pg_statistic_ext') IS NOT NULL),
                               (2, 'ALTER', format('OWNER TO %I', pg_get_userbyid(x.stxowner)),
                                pg_get_userbyid(x.stxowner) <> current_user)) AS s(ord, verb, action, is_wanted)
         WHERE x.stxrelid = view AND s.is_wanted
        UNION ALL
        -- The new view has default privileges: revoke them before the grants.
        SELECT 8, 0, format('REVOKE ALL ON TABLE %s FROM PUBLIC, %s', view,
                            (SELECT string_agg(DISTINCT quote_ident(pg_get_userbyid(r.oid)), ', ')
                               FROM (SELECT v.relowner
                                     UNION
                                     SELECT e.grantee FROM pg_default_acl AS f, aclexplode(f.defaclacl) AS e
                                      WHERE f.defaclrole = v.relowner AND f.defaclobjtype = 'r'
                                        AND f.defaclnamespace IN (0, v.relnamespace) AND e.grantee <> 0) AS r(oid)))
          FROM v
          JOIN grants AS g ON g.attnum = 0
        UNION ALL
        SELECT 9, (g.attnum * 10000 + min(e.ord))::integer,
               format('GRANT %s ON TABLE %s TO %s%s',
                      string_agg(e.privilege_type || coalesce(' (' || quote_ident(g.attname) || ')', ''), ', ' ORDER BY e.ord), view,
                      CASE e.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(e.grantee)) END,
                      CASE WHEN e.is_grantable THEN ' WITH GRANT OPTION' END)
          FROM grants AS g,
               LATERAL aclexplode(g.acl) WITH ORDINALITY AS e(grantor, grantee, privilege_type, is_grantable, ord)
         GROUP BY g.attnum, g.attname, e.grantee, e.is_grantable
        UNION ALL
        SELECT 10, d.objsubid, CASE d.objsubid
                               WHEN 0 THEN format('COMMENT ON %s %s IS %L', v.kind, view, d.description)
                               ELSE format('COMMENT ON COLUMN %s.%I IS %L', view, a.attname, d.description) END
          FROM v
          JOIN pg_description AS d ON (d.classoid, d.objoid) = ('pg_class'::regclass, v.oid)
          LEFT JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (v.oid, d.objsubid)
    )
    SELECT row_number() OVER (ORDER BY s.place, s.ord, s.statement COLLATE "C")::integer, s.statement
      FROM steps AS s;
END;
COMMENT ON FUNCTION snowflake_convert_view_statements(regclass) IS
'internal: the statements that create a view as it is now, without its rules and triggers';

-- Lists the statements that drop views, rules and triggers before a conversion,
-- and put them back after it.
CREATE FUNCTION snowflake_convert_put_back(rels regclass[], cols name[])
RETURNS TABLE (
    step integer,           -- negative: drop; 0, 1: put back; 2: fill materialised views
    tab regclass,
    owner oid,              -- the role that executes the statement
    statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT v.*, c.relowner, c.relkind, c.relispopulated,
               CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END AS kind
          FROM snowflake_convert_views(rels, cols) AS v
          JOIN pg_class AS c ON c.oid = v.view
    ), rules AS MATERIALIZED (
        SELECT r.*, c.relowner, CASE r.classid WHEN 'pg_trigger'::regclass THEN 'TRIGGER' ELSE 'RULE' END AS kind,
               coalesce(g.tgenabled, w.ev_enabled) AS enabled,
               coalesce(obj_description(r.objid, 'pg_trigger'), obj_description(r.objid, 'pg_rewrite')) AS description,
               CASE r.classid WHEN 'pg_trigger'::regclass THEN pg_get_triggerdef(r.objid)
                              ELSE rtrim(pg_get_ruledef(r.objid), ';') END AS definition
          FROM snowflake_convert_rules(rels, cols) AS r
          JOIN pg_class AS c ON c.oid = r.tab
          LEFT JOIN pg_trigger AS g ON r.classid = 'pg_trigger'::regclass AND g.oid = r.objid
          LEFT JOIN pg_rewrite AS w ON r.classid = 'pg_rewrite'::regclass AND w.oid = r.objid
    ), steps(step, place, name, ord, tab, owner, statement) AS (
        -- A rule of a view may depend on another view: drop rules before views.
        SELECT -2, 0, r.name::text, 0, r.tab, r.relowner, format('DROP %s %I ON %s', r.kind, r.name, r.tab)
          FROM rules AS r
         WHERE NOT r.is_of_view OR r.kind = 'RULE'
        UNION ALL
        SELECT -1, -v.place, v.view::text, 0, v.view, v.relowner, format('DROP %s %s', v.kind, v.view)
          FROM views AS v
        UNION ALL
        SELECT 0, v.place, v.view::text, s.place, v.view, v.relowner, s.statement
          FROM views AS v, LATERAL snowflake_convert_view_statements(v.view) AS s
        UNION ALL
        SELECT 1, 0, r.name::text, s.ord, r.tab, r.relowner, s.statement
          FROM rules AS r,
               LATERAL (
                   SELECT 0, r.definition
                   UNION ALL
                   SELECT 1, format('ALTER TABLE %s %s %s %I', r.tab,
                                    CASE r.enabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA'
                                                   ELSE 'ENABLE ALWAYS' END, r.kind, r.name)
                    WHERE r.enabled <> 'O'
                   UNION ALL
                   SELECT 2, format('COMMENT ON %s %I ON %s IS %L', r.kind, r.name, r.tab, r.description)
                    WHERE r.description IS NOT NULL
               ) AS s(ord, statement)
        UNION ALL
        SELECT 2, v.place, v.view::text, 0, v.view, v.relowner, format('REFRESH MATERIALIZED VIEW %s', v.view)
          FROM views AS v
         WHERE v.relkind = 'm' AND v.relispopulated
    )
    SELECT s.step, s.tab, s.owner, s.statement || ';'
      FROM steps AS s
     ORDER BY s.step, s.place, s.tab::text COLLATE "C", s.name COLLATE "C", s.ord;
END;
COMMENT ON FUNCTION snowflake_convert_put_back(regclass[], name[]) IS
'internal: the statements that drop views, rules and triggers, and put them back when columns have become bigint';

-- Lists the objects that a view, or a table's rules and triggers, depend on.
CREATE FUNCTION snowflake_convert_bound(rel regclass)
RETURNS TABLE (classid oid, objid oid)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT d.refclassid, d.refobjid
      FROM (SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class = rel
            UNION ALL
            SELECT 'pg_trigger'::regclass, oid FROM pg_trigger WHERE tgrelid = rel AND NOT tgisinternal
            UNION ALL
            SELECT 'pg_attrdef'::regclass, f.oid FROM pg_attrdef AS f
              JOIN pg_class AS c ON c.oid = f.adrelid AND c.relkind = 'v'
             WHERE f.adrelid = rel
            UNION ALL
            SELECT 'pg_class'::regclass, x.indexrelid FROM pg_index AS x
              JOIN pg_class AS c ON c.oid = x.indrelid AND c.relkind = 'm'
             WHERE x.indrelid = rel
            UNION ALL
            SELECT 'pg_statistic_ext'::regclass, x.oid FROM pg_statistic_ext AS x
              JOIN pg_class AS c ON c.oid = x.stxrelid AND c.relkind = 'm'
             WHERE x.stxrelid = rel
           ) AS part(classid, objid)
      JOIN pg_depend AS d ON (d.classid, d.objid) = (part.classid, part.objid)
     WHERE (d.refclassid, d.refobjid) <> ('pg_class'::regclass, rel)
       AND d.deptype IN ('n', 'a')
       AND d.refclassid <> 'pg_constraint'::regclass;
END;
COMMENT ON FUNCTION snowflake_convert_bound(regclass) IS
'internal: the objects that a view, or a table''s rules and triggers, are bound to';

-- Lists the reasons why views, rules and triggers cannot be put back, or why
-- putting them back would run code of another role.
CREATE FUNCTION snowflake_convert_put_back_obstacles(rels regclass[], cols name[])
RETURNS TABLE (description text, is_by_hand boolean)   -- can a user remove the obstacle by hand?
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE views AS MATERIALIZED (
        SELECT v.*, c.relname, c.relowner, c.relnamespace, c.relkind, c.relpersistence, c.relispopulated, c.relacl,
               c.relreplident, t.oid AS type, t.typarray,
               pg_describe_object('pg_class'::regclass, c.oid, 0) AS description
          FROM snowflake_convert_views(rels, cols) AS v
          JOIN pg_class AS c ON c.oid = v.view
          JOIN pg_type AS t ON t.oid = c.reltype
    ), rules AS MATERIALIZED (
        SELECT r.*, c.relowner, pg_describe_object(r.classid, r.objid, 0) AS description
          FROM snowflake_convert_rules(rels, cols) AS r
          JOIN pg_class AS c ON c.oid = r.tab
    ), put_back(tab, owner, description) AS (
        SELECT view::oid, relowner, description FROM views
        UNION
        SELECT tab::oid, relowner, 'table ' || tab FROM rules WHERE NOT is_of_view
    ), bound AS MATERIALIZED (
        SELECT p.*, b.classid, b.objid,
               CASE b.classid WHEN 'pg_class'::regclass THEN (SELECT relnamespace FROM pg_class WHERE oid = b.objid)
                              WHEN 'pg_proc'::regclass THEN (SELECT pronamespace FROM pg_proc WHERE oid = b.objid)
                              WHEN 'pg_type'::regclass THEN (SELECT typnamespace FROM pg_type WHERE oid = b.objid)
                              WHEN 'pg_operator'::regclass THEN (SELECT oprnamespace FROM pg_operator WHERE oid = b.objid)
               END AS namespace
          FROM put_back AS p, LATERAL snowflake_convert_bound(p.tab) AS b
    ), parts(classid, objid) AS (
        SELECT 'pg_class'::regclass::oid, view::oid FROM views
        UNION ALL
        SELECT 'pg_class'::regclass, x.indexrelid FROM views AS v JOIN pg_index AS x ON x.indrelid = v.view
        UNION ALL
        SELECT 'pg_statistic_ext'::regclass, x.oid FROM views AS v JOIN pg_statistic_ext AS x ON x.stxrelid = v.view
        UNION ALL
        SELECT 'pg_attrdef'::regclass, f.oid FROM views AS v JOIN pg_attrdef AS f ON f.adrelid = v.view
        UNION ALL
        SELECT 'pg_rewrite'::regclass, r.oid FROM views AS v JOIN pg_rewrite AS r ON r.ev_class = v.view
        UNION ALL
        SELECT classid, objid FROM rules
    ), reads(view, owner, tab) AS (
        SELECT view::oid, relowner, view::oid FROM views WHERE relkind = 'm' AND relispopulated
        UNION
        SELECT s.view, s.owner, next.tab
          FROM reads AS s,
               LATERAL (
                   SELECT d.refobjid
                     FROM pg_rewrite AS r
                     JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_rewrite'::regclass, r.oid)
                                        AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
                    WHERE r.ev_class = s.tab AND r.ev_type = '1'
                   UNION ALL
                   SELECT inhrelid FROM pg_inherits WHERE inhparent = s.tab
               ) AS next(tab)
    ), obstacles(description) AS (
        SELECT format('%s depends on %s', pg_describe_object(d.classid, d.objid, d.objsubid), v.description)
          FROM views AS v
          JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = v.view
                              OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (v.type, v.typarray)
         WHERE d.deptype <> 'i' AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM parts)
           -- The view's own array type depends on its row type.
           AND NOT (d.classid = 'pg_type'::regclass AND d.objid = v.typarray)
        UNION
        SELECT format('%s depends on extension %I', pg_describe_object(d.classid, d.objid, 0), e.extname)
          FROM parts AS p
          JOIN pg_depend AS d ON (d.classid, d.objid) = (p.classid, p.objid)
                             AND d.refclassid = 'pg_extension'::regclass AND d.deptype IN ('e', 'x')
          JOIN pg_extension AS e ON e.oid = d.refobjid
        UNION
        SELECT format('%s is defined by itself', description) FROM views WHERE is_circular
        UNION
        SELECT format('%s is temporary', description) FROM views WHERE relpersistence = 't'
        UNION
        SELECT format('%s has a replica identity', description) FROM views WHERE relkind = 'm' AND relreplident <> 'd'
        UNION
        SELECT format('%s has a security label of provider %s', v.description, l.provider)
          FROM views AS v
          JOIN pg_seclabel AS l ON (l.classoid, l.objoid) = ('pg_class'::regclass, v.view)
        UNION
        SELECT format('%s has privileges that role %I, who is not its owner, has granted', v.description,
                      pg_get_userbyid(e.grantor))
          FROM views AS v,
               LATERAL (SELECT v.relacl WHERE v.relacl IS NOT NULL
                        UNION ALL
                        SELECT attacl FROM pg_attribute WHERE attrelid = v.view AND attacl IS NOT NULL) AS a(acl),
               LATERAL aclexplode(a.acl) AS e
         WHERE e.grantor <> v.relowner
        UNION
        SELECT format('statistics object %I of %s belongs to another role', x.stxname, v.description)
          FROM views AS v
          JOIN pg_statistic_ext AS x ON x.stxrelid = v.view
         WHERE x.stxowner <> v.relowner
        UNION
        -- The owner of each view, rule and trigger puts it back.
        SELECT format('%s: its owner, role %I, lacks CREATE on schema %I', v.description,
                      pg_get_userbyid(v.relowner), s.nspname)
          FROM views AS v
          JOIN pg_namespace AS s ON s.oid = v.relnamespace
         WHERE NOT has_schema_privilege(v.relowner, s.oid, 'CREATE')
        UNION
        SELECT format('%s: its owner, role %I, lacks USAGE on schema %I', b.description,
                      pg_get_userbyid(b.owner), s.nspname)
          FROM bound AS b
          JOIN pg_namespace AS s ON s.oid = b.namespace
         WHERE NOT has_schema_privilege(b.owner, s.oid, 'USAGE')
        UNION
        SELECT format('%s: its owner, role %I, lacks EXECUTE on function %s', r.description,
                      pg_get_userbyid(r.relowner), g.tgfoid::regprocedure)
          FROM rules AS r
          JOIN pg_trigger AS g ON r.classid = 'pg_trigger'::regclass AND g.oid = r.objid
         WHERE NOT has_function_privilege(r.relowner, g.tgfoid, 'EXECUTE')
        UNION
        SELECT format('%s is enabled or disabled differently on partition %s', r.description, g.tgrelid::regclass)
          FROM rules AS r
          JOIN pg_trigger AS p ON r.classid = 'pg_trigger'::regclass AND p.oid = r.objid
          JOIN pg_trigger AS g ON g.tgparentid = p.oid
         WHERE g.tgenabled <> p.tgenabled
        UNION
        -- To parse a constant PostgreSQL calls its type's input function, which
        -- evaluates the CHECKs of a domain.
        SELECT format('%s: making it again may run code of type %s, which belongs to another role', b.description,
                      t.oid::regtype)
          FROM bound AS b
          JOIN pg_type AS t ON b.classid = 'pg_type'::regclass AND t.oid = b.objid
          LEFT JOIN pg_type AS e ON e.oid = t.typelem
          JOIN pg_roles AS o ON o.oid = t.typowner
         WHERE t.typowner <> b.owner AND NOT o.rolsuper AND 'e' NOT IN (t.typtype, coalesce(e.typtype, '-'))
        UNION
        -- The planner evaluates predicates of indexes, which the table's owner may
        -- add while the conversion runs.
        SELECT format('%s: filling it may run code of %s, which belongs to another role', v.description,
                      pg_describe_object('pg_class'::regclass, t.oid, 0))
          FROM reads AS s
          JOIN views AS v ON v.view = s.view
          JOIN pg_class AS t ON t.oid = s.tab
          JOIN pg_roles AS o ON o.oid = t.relowner
         WHERE t.relowner <> s.owner AND NOT o.rolsuper
    ), not_own(description) AS (
        -- The caller must have the rights of every owner.
        SELECT format('%s belongs to role %I, which you are not a member of', p.description, pg_get_userbyid(p.owner))
          FROM put_back AS p
         WHERE NOT pg_has_role(p.owner, 'USAGE')
        UNION
        SELECT format('table %s belongs to role %I, which you are not a member of', c.tab, pg_get_userbyid(t.relowner))
          FROM snowflake_convert_columns(rels, cols) AS c
          JOIN pg_class AS t ON t.oid = c.tab
         WHERE (c.is_key OR c.is_narrow) AND NOT pg_has_role(t.relowner, 'USAGE')
        UNION
        SELECT format('%s: a superuser has to execute %s', s.tab, s.statement)
          FROM snowflake_convert_statements(rels, cols) AS s
         WHERE s.needs_superuser
           AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    )
    SELECT o.description, true FROM obstacles AS o
    UNION ALL
    SELECT n.description, false FROM not_own AS n
     ORDER BY 2, 1;
END;
COMMENT ON FUNCTION snowflake_convert_put_back_obstacles(regclass[], name[]) IS
'internal: why views, rules and triggers cannot be put back when columns have become bigint';

-- Lists the statements with which a user can drop obstacles and put them back:
-- functions, policies and publications, and all views if the conversion cannot
-- put a view back.
CREATE FUNCTION snowflake_convert_by_hand(rels regclass[], cols name[])
RETURNS TABLE (is_before boolean, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH changed(classid, objid, subid) AS MATERIALIZED (
        SELECT 'pg_class'::regclass, tab::oid, attnum::integer FROM snowflake_convert_columns(rels, cols) WHERE is_narrow
        UNION ALL
        SELECT p.classid, p.objid, NULL
          FROM snowflake_convert_views(rels, cols) AS v
          JOIN pg_type AS t ON t.typrelid = v.view,
               LATERAL (VALUES ('pg_class'::regclass, v.view::oid), ('pg_type'::regclass, t.oid),
                               ('pg_type'::regclass, t.typarray)) AS p(classid, objid)
    ), depending AS MATERIALIZED (
        SELECT DISTINCT d.classid, d.objid
          FROM changed AS c
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = (c.classid, c.objid)
                             AND d.refobjsubid = coalesce(c.subid, d.refobjsubid)
         WHERE d.classid IN ('pg_proc'::regclass, 'pg_policy'::regclass, 'pg_publication_rel'::regclass)
    ), steps(step, name, ord, statement) AS (
        SELECT s.step, f.oid::regprocedure::text, s.ord, s.statement
          FROM depending AS d
          JOIN pg_proc AS f ON d.classid = 'pg_proc'::regclass AND f.oid = d.objid,
               LATERAL (
                   SELECT -3, 0, format('DROP ROUTINE %s', f.oid::regprocedure)
                   UNION ALL
                   SELECT 3, 0, rtrim(pg_get_functiondef(f.oid), E'\n') WHERE f.prokind <> 'a'
                   UNION ALL
                   SELECT 3, 1, format('ALTER ROUTINE %s OWNER TO %I', f.oid::regprocedure, pg_get_userbyid(f.proowner))
                   UNION ALL
                   SELECT 3, 2, format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', f.oid::regprocedure)
                    WHERE f.proacl IS NOT NULL
                   UNION ALL
                   SELECT 3, 3, format('GRANT EXECUTE ON ROUTINE %s TO %s', f.oid::regprocedure,
                                       CASE e.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(e.grantee)) END)
                     FROM aclexplode(f.proacl) AS e
               ) AS s(step, ord, statement)
        UNION ALL
        SELECT s.step, p.polname::text, 0, s.statement
          FROM depending AS d
          JOIN pg_policy AS p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid,
               LATERAL (VALUES
                   (-3, format('DROP POLICY %I ON %s', p.polname, p.polrelid::regclass)),
                   (3, format('CREATE POLICY %I ON %s AS %s FOR %s TO %s%s%s', p.polname, p.polrelid::regclass,
                              CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
                              CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                                            WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
                              (SELECT string_agg(CASE r WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
                                 FROM unnest(p.polroles) AS r),
                              ' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')',
                              ' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')'))
               ) AS s(step, statement)
        UNION ALL
        SELECT s.step, u.pubname::text, 0, s.statement
          FROM depending AS d
          JOIN pg_publication_rel AS r ON d.classid = 'pg_publication_rel'::regclass AND r.oid = d.objid
          JOIN pg_publication AS u ON u.oid = r.prpubid,
               LATERAL (VALUES
                   (-3, format('ALTER PUBLICATION %I DROP TABLE %s', u.pubname, r.prrelid::regclass)),
                   (3, format('ALTER PUBLICATION %I ADD TABLE %s%s%s', u.pubname, r.prrelid::regclass,
                              (SELECT format(' (%s)', string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum))
                                 FROM pg_attribute AS a
                                WHERE r.prattrs IS NOT NULL AND a.attrelid = r.prrelid
                                  AND a.attnum = ANY (r.prattrs::smallint[])),
                              ' WHERE (' || pg_get_expr(r.prqual, r.prrelid) || ')'))
               ) AS s(step, statement)
    ), views AS (
        SELECT p.step, row_number() OVER () AS ord, p.statement
          FROM snowflake_convert_put_back(rels, cols) AS p
         WHERE EXISTS (SELECT FROM snowflake_convert_put_back_obstacles(rels, cols) AS o WHERE o.is_by_hand)
    )
    SELECT a.step < 0, a.statement
      FROM (SELECT step, name, ord, statement || ';' FROM steps
            UNION ALL
            SELECT step, '', ord, statement FROM views) AS a(step, name, ord, statement)
     ORDER BY a.step, a.name COLLATE "C", a.ord, a.statement COLLATE "C";
END;
COMMENT ON FUNCTION snowflake_convert_by_hand(regclass[], name[]) IS
'internal: the statements that remove the obstacles to a conversion by hand, and put them back';

CREATE FUNCTION snowflake_convert_schema(schemas name[], dry_run boolean DEFAULT false)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'snowflake_convert_schema'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off;
COMMENT ON FUNCTION snowflake_convert_schema(name[], boolean) IS
'convert, in some schemas, all keys whose values sequences make, rewriting each table once; returns the statements';

--
-- Converting new tables
--
-- The event trigger converts the keys of new tables.  An event trigger has no
-- arguments, so the setting snowflake_convert.schemas chooses the schemas.  The
-- setting can be made for a database, a role or a session, so a single migration
-- can create tables that are not converted.  A column that cannot be converted
-- stays as it was written, with a WARNING: DDL never fails because of the event
-- trigger.
--

-- Finds the integer columns that have to become bigint because a foreign key of
-- one of the given tables references a snowflake: the columns of the foreign key,
-- and the columns that reference these.
CREATE FUNCTION snowflake_convert_new_references(tabs regclass[])
RETURNS TABLE (
    tab regclass,
    attnum smallint,
    key_tab regclass,
    key_attname name)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- snowflake_convert_columns() also finds columns of older tables.
    SELECT DISTINCT ON (c.tab, c.attnum) c.tab, c.attnum, s.key_tab, s.key_attname
      FROM unnest(tabs) AS t(tab)
      JOIN pg_constraint AS k ON k.conrelid = t.tab AND k.contype = 'f' AND k.conparentid = 0,
           unnest(k.conkey) AS referencing(attnum),
           pg_attribute AS a,
           LATERAL snowflake_convert_sources(a.attrelid, a.attnum) AS s,
           LATERAL snowflake_convert_columns(ARRAY[a.attrelid::regclass], ARRAY[a.attname]) AS c
      JOIN pg_attribute AS f ON (f.attrelid, f.attnum) = (c.tab, c.attnum)
     WHERE (a.attrelid, a.attnum) = (t.tab, referencing.attnum) AND a.attinhcount = 0
       AND f.atttypid IN ('smallint'::regtype, 'integer'::regtype) AND NOT c.is_inherited
     ORDER BY c.tab, c.attnum, s.key_tab, s.key_attname;
END;
COMMENT ON FUNCTION snowflake_convert_new_references(regclass[]) IS
'internal: integer columns that must become bigint because foreign keys of these tables reference snowflakes';

-- Finds the tables of other owners that foreign keys connect with a column.
-- PostgreSQL checks a foreign key by a query on both tables; see
-- snowflake_convert_is_plain().
CREATE FUNCTION snowflake_convert_other_owners(rel regclass, attnum smallint)
RETURNS TABLE (tab regclass)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT CASE WHEN k.conrelid = rel THEN k.confrelid ELSE k.conrelid END::regclass
      FROM pg_constraint AS k
      JOIN pg_class AS r ON r.oid = k.confrelid
      JOIN pg_class AS t ON t.oid = k.conrelid
     WHERE k.contype = 'f' AND k.conparentid = 0 AND r.relowner <> t.relowner
       AND (k.conrelid = rel AND snowflake_convert_other_owners.attnum = ANY (k.conkey) OR
            k.confrelid = rel AND snowflake_convert_other_owners.attnum = ANY (k.confkey));
END;
COMMENT ON FUNCTION snowflake_convert_other_owners(regclass, smallint) IS
'internal: the tables of other owners that a column references, or that reference the column';

CREATE FUNCTION snowflake_convert_new_tables()
RETURNS event_trigger
AS 'MODULE_PATHNAME', 'snowflake_convert_new_tables'
LANGUAGE C
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION snowflake_convert_new_tables() IS
'for CREATE EVENT TRIGGER ... ON ddl_command_end: serial and identity primary keys of new tables become snowflakes';

SET LOCAL search_path TO pg_catalog, pg_temp;

--
-- Registry: the registry itself is the extension snowflake_registry
--

CREATE FUNCTION @extschema@.snowflake_registry_check(conninfo text)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'snowflake_registry_check'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.snowflake_registry_check(text) IS
'try a registry before a server depends on it: a sentence each about connection, rights, layout and clock';
REVOKE EXECUTE ON FUNCTION @extschema@.snowflake_registry_check(text) FROM PUBLIC;

-- Without preload no id is issued: tell the DBA now, not at the first INSERT.
DO $$
BEGIN
    IF NOT 'snowflake' = ANY (regexp_split_to_array(current_setting('shared_preload_libraries'), '[\s",]+')) THEN
        -- CREATE EXTENSION sets client_min_messages to warning for its script.
        PERFORM set_config('client_min_messages', 'notice', true);
        RAISE NOTICE 'snowflake_nextval() issues no ids until the library is preloaded'
            USING HINT = 'Add "snowflake" to shared_preload_libraries, set snowflake.worker_id, and restart the server.';
        PERFORM set_config('client_min_messages', 'warning', true);
    END IF;
END
$$;

-- With the row lock above, all of the above went to one schema, or none.
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
