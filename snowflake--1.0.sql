-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake" to load this file. \quit

--
-- The extension's schema
--
-- Its owner may be any role, and it may hold any role's functions.  So a name is
-- looked up there only if it is written @extschema@.name.  Calls of the
-- extension's functions have arguments of the exact types, so that no other
-- function matches better.  The row lock keeps the schema's owner from renaming
-- it until the extension is created.  PL/pgSQL binds names when it runs, and so
-- names objects of pg_catalog only.
--
SET LOCAL search_path TO pg_catalog, pg_temp;
SELECT FROM pg_namespace
 WHERE oid = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake')
   FOR SHARE;

--
-- The type: a bigint that JSON has as a string
--
-- PostgreSQL writes a value of a type that it does not know as a JSON string,
-- which programs read exactly.  In all else a snowflake is a bigint: the casts in
-- both directions change no bit and are implicit, so the operators, the functions
-- and the operator classes of bigint serve a snowflake, and ALTER TABLE ... TYPE
-- rewrites neither the table nor its indexes.
--
-- The other casts are bigint's, but those to numeric and to floating-point types
-- are not implicit: "id = id" could then mean numbers of either type.
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
COMMENT ON TYPE @extschema@.snowflake IS 'an id: a bigint that JSON has as a string';

CREATE FUNCTION @extschema@.snowflake(integer)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int48';

CREATE FUNCTION @extschema@.snowflake(smallint)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int28';

CREATE FUNCTION @extschema@.snowflake(numeric)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'numeric_int8';

CREATE FUNCTION @extschema@.snowflake(double precision)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'dtoi8';

CREATE FUNCTION @extschema@.snowflake(real)
RETURNS @extschema@.snowflake LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'ftoi8';

-- The function of a cast has the cast's types exactly.  With bigint's functions,
-- pg_upgrade would have to create the first two casts before the others.
CREATE CAST (@extschema@.snowflake AS bigint) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (bigint AS @extschema@.snowflake) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (integer AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake(integer) AS IMPLICIT;
CREATE CAST (smallint AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake(smallint) AS IMPLICIT;
CREATE CAST (numeric AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake(numeric) AS ASSIGNMENT;
CREATE CAST (double precision AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake(double precision) AS ASSIGNMENT;
CREATE CAST (real AS @extschema@.snowflake) WITH FUNCTION @extschema@.snowflake(real) AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS integer) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS smallint) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS numeric) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS double precision) WITH INOUT AS ASSIGNMENT;
CREATE CAST (@extschema@.snowflake AS real) WITH INOUT AS ASSIGNMENT;

--
-- Planner support: for functions that return the first or the last id of an
-- instant, and for snowflake_nextval() and snowflake_id()
--

CREATE FUNCTION @extschema@.snowflake_bound_support(internal)
RETURNS internal LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_bound_support';

CREATE FUNCTION @extschema@.snowflake_copy_support(internal)
RETURNS internal LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'snowflake_copy_support';

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
'snowflake_nextval() for tools that take a default with "nextval" in its text for a sequence''s';

-- COPY FROM calls this function in place of the two above.  It issues ids, too,
-- but is labelled STABLE, so that COPY inserts rows in batches.
CREATE FUNCTION @extschema@.snowflake_copy_nextval()
RETURNS bigint LANGUAGE C STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_copy_nextval';

CREATE FUNCTION @extschema@.snowflake_nextvals(count integer)
RETURNS SETOF bigint LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'snowflake_nextvals';
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
'the same for the transactions that write to a table, if the statement that inserts a row takes its id';

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
'was an id issued at since or later, and before until?';

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

-- Only a superuser may call it.
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
'the counters of each session, and who holds the horizon of the server or of a table; only the own session without pg_read_all_stats';

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

--
-- Days of the session's time zone
--

-- A day begins when clocks first show its midnight or later.  In Cairo, where
-- summer time begins at midnight, such a day begins at 01:00.  In Havana, where
-- summer time ends with a second midnight, such a day begins at the first, and
-- PostgreSQL's cast returns the second.
CREATE FUNCTION @extschema@.snowflake_day_start(day timestamp)
RETURNS timestamptz LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN day::timestamptz::timestamp = day
     AND (day::timestamptz - interval '3 hours')::timestamp = day - interval '3 hours'
    THEN day::timestamptz
    ELSE (SELECT min(instant)
            FROM generate_series(day::timestamptz - interval '26 hours', day::timestamptz, interval '1 minute') AS instant
           WHERE instant::timestamp >= day)
END;

--
-- Partitions, by the time of ids
--
-- The functions run with the caller's rights.  The caller is the owner of all
-- tables that a statement reads or locks, so no statement runs code of another
-- role.  Who has connected may be a member of the owner, which is a group then.
--

-- Raises an error unless the table is one that the functions can serve, and the caller
-- is its owner.
CREATE FUNCTION @extschema@.snowflake_check_partitioned(parent regclass)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- SET SESSION AUTHORIZATION changes session_user, but not this role.
    login oid := coalesce((SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid())), 10);
    owner oid;
    detached regclass;
BEGIN
    -- One snapshot would hide what has changed during a wait for a lock.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'partitions cannot be created or dropped at isolation level "%"', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state', HINT = 'SET default_transaction_isolation = ''read committed'' before.';
    END IF;
    SELECT c.relowner INTO owner
      FROM pg_class AS c
      JOIN pg_partitioned_table AS p ON p.partrelid = c.oid
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
     WHERE c.oid = parent AND p.partstrat = 'r' AND p.partnatts = 1
       AND a.atttypid IN ('bigint'::regtype, '@extschema@.snowflake'::regtype);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table % is not partitioned by the range of a bigint or snowflake column', parent
            USING ERRCODE = 'wrong_object_type',
                  HINT = 'Create it with PARTITION BY RANGE and its id as the only column of the key.';
    END IF;

    -- The owner's code can run below with the rights of the caller and, after SET ROLE,
    -- of who has connected: the owner, or a member of it, which has the owner's rights
    -- already, but no superuser, and not a member of pg_execute_server_program,
    -- pg_read_server_files or pg_write_server_files, which are as good as one; before
    -- 16, CREATEROLE grants them to anybody.
    IF pg_get_userbyid(owner) <> current_user
       OR owner <> login AND (NOT pg_has_role(login, owner, 'MEMBER')
                               OR EXISTS (SELECT FROM pg_roles AS s
                                          WHERE (s.rolsuper OR s.rolcreaterole OR s.rolname ~ '^pg_.*_server_') AND pg_has_role(login, s.oid, 'MEMBER'))) THEN
        RAISE EXCEPTION 'must be owner of table %', parent
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('Connect as role "%s" or as a member of it without the rights of a superuser, CREATEROLE or a role pg_*_server_*, and SET ROLE to it.', pg_get_userbyid(owner));
    END IF;

    SELECT inhrelid INTO detached FROM pg_inherits WHERE inhparent = parent AND inhdetachpending;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % is being detached', detached, parent
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('If DETACH PARTITION ... CONCURRENTLY was interrupted: ALTER TABLE %s DETACH PARTITION %s FINALIZE', parent, detached);
    END IF;
END
$$;

-- Raises an error if another role than the caller owns the parent, a table that
-- partitioning or a foreign key connects with it, or a schema of one.
CREATE FUNCTION @extschema@.snowflake_check_partition_owners(parent regclass)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- A query of pg_roles would not find a role that was renamed after its snapshot, and
    -- a NULL would let every table pass.
    owner oid := quote_ident(current_user)::regrole;
    found_table regclass;
BEGIN
    WITH RECURSIVE tree (relid) AS (
        SELECT relid::oid FROM pg_partition_ancestors(parent)
        UNION
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.relid)
    SELECT c.oid INTO found_table
      FROM pg_class AS c
      JOIN pg_namespace AS n ON n.oid IN (c.relnamespace, (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake'))
      JOIN pg_database AS d ON d.datname = current_database()
     WHERE (c.relowner <> owner
            -- A schema's owner could exchange names, unless it has the rights of the tables' owner.
            OR NOT pg_has_role(CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END, owner, 'USAGE'))
       AND (c.oid IN (SELECT relid FROM tree)
            OR c.oid IN (SELECT conrelid FROM pg_constraint JOIN tree ON relid = confrelid WHERE contype = 'f')
            OR c.oid IN (SELECT confrelid FROM pg_constraint JOIN tree ON relid = conrelid WHERE contype = 'f'))
     ORDER BY c.relname
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table %, its schema, or that of the extension belongs to another role than %', found_table, parent
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Partitioning or a foreign key connects both, so code of that role could run.',
                  HINT = format('Give the table and its schema to role "%s" or, if that role is no superuser, GRANT it to the schema''s owner.', current_user);
    END IF;
END
$$;

-- Bound by OID, because only the second check makes sure of the extension's schema.
CREATE FUNCTION @extschema@.snowflake_check_partitions(parent regclass)
RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.snowflake_check_partitioned(parent);
    SELECT @extschema@.snowflake_check_partition_owners(parent);
END;

-- Returns the tables, with the lock modes, that PostgreSQL locks against writers
-- while it drops a partition or, if "part" is NULL, while it attaches one.
CREATE FUNCTION @extschema@.snowflake_partition_locks(parent regclass, part regclass)
RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE tree (relid) AS (
        SELECT part::oid
        UNION ALL
        SELECT partdefid FROM pg_partitioned_table WHERE partrelid = parent
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.relid),
    modes (relid, mode) AS (
        SELECT parent::oid, CASE WHEN part IS NULL THEN 'SHARE UPDATE EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END
        UNION
        SELECT relid, 'ACCESS EXCLUSIVE' FROM tree
        UNION
        SELECT CASE parent WHEN confrelid THEN conrelid ELSE confrelid END,
               CASE WHEN part IS NULL THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END
          FROM pg_constraint
         WHERE contype = 'f'
           AND (parent = confrelid
                OR parent = conrelid AND (part IS NULL OR EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = part))))
    SELECT array_agg(format('%I.%I IN %s MODE', n.nspname, c.relname, m.mode) ORDER BY c.oid <> parent, c.oid, m.mode)
      FROM modes AS m
      JOIN pg_class AS c ON c.oid = m.relid AND c.relkind IN ('r', 'p')
      JOIN pg_namespace AS n ON n.oid = c.relnamespace;
END;

-- Waits for a lock only while the transaction holds none of the others, so no
-- writer can be in a deadlock with this function: the next attempt begins with
-- the lock that was not free.
CREATE FUNCTION @extschema@.snowflake_lock_partitions(parent regclass, part regclass, deadline timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
AS $$
DECLARE
    locks text[];
    awaited text;
    wanted text;
BEGIN
    LOOP
        PERFORM set_config('lock_timeout',
            least(2147483647, greatest(1, ceil(extract(epoch FROM deadline - clock_timestamp()) * 1000)))::text, true);
        BEGIN
            PERFORM @extschema@.snowflake_check_partitions(parent);
            locks := @extschema@.snowflake_partition_locks(parent, part);
            wanted := CASE WHEN awaited = ANY (locks) THEN awaited ELSE locks[1] END;
            EXECUTE 'LOCK TABLE ONLY ' || wanted;
            FOREACH wanted IN ARRAY locks LOOP
                EXECUTE concat('LOCK TABLE ONLY ', wanted, ' NOWAIT');
            END LOOP;
            -- The names and the owners may have changed during the wait.
            PERFORM @extschema@.snowflake_check_partitions(parent);
            EXIT WHEN locks = @extschema@.snowflake_partition_locks(parent, part);
            RAISE lock_not_available;
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            IF clock_timestamp() >= deadline THEN
                RAISE EXCEPTION 'could not lock table % in time', split_part(wanted, ' IN ', 1)
                    USING ERRCODE = 'lock_not_available',
                          DETAIL = CASE WHEN part IS NULL THEN format('A new partition of %s needs the lock.', parent)
                                        ELSE format('Dropping partition %s needs the lock.', part) END,
                          HINT = 'Earlier partitions are done. Call again, or give a longer lock_timeout.';
            END IF;
            awaited := wanted;
        END;
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.snowflake_partition_bounds(parent regclass)
RETURNS TABLE (part regclass, lower bigint, upper bigint) LANGUAGE sql STABLE STRICT PARALLEL SAFE
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

CREATE FUNCTION @extschema@.snowflake_partition_steps(since timestamptz, until timestamptz, step interval, OUT unit text, OUT steps integer)
RETURNS record LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
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
    -- With -1, there are no partitions, and snowflake_check_new_partitions() raises an error.
    steps := CASE WHEN isfinite(since) AND isfinite(until)
                  THEN least(extract(epoch FROM until - since) / extract(epoch FROM step), 10000) + 2
                  ELSE -1 END;
END
$$;

-- Returns the instants at which the wanted partitions begin, and the last one's
-- end.  Steps count from the first: a short month must not shorten later steps.
-- Steps of hours are elapsed time, others follow the calendar.
CREATE FUNCTION @extschema@.snowflake_partition_starts(since timestamptz, until timestamptz, step interval, unit text, steps integer)
RETURNS SETOF timestamptz LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    -- Without DISTINCT, a day that the time zone leaves out would be a partition.
    WITH counted AS (
        SELECT DISTINCT ON (start) start,
               -- A day with two midnights begins at the first; "until" can be the second.
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

-- Returns the names, as SQL text, of the partitions that begin at these instants.
CREATE FUNCTION @extschema@.snowflake_partition_names(parent regclass, unit text, starts timestamptz[])
RETURNS text[] LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    SELECT array_agg(quote_ident(base || to_char(start, patterns ->> unit)
               -- When summer time ends, an hour comes twice: the second gets a "b".
               || CASE WHEN unit = 'hour' AND to_char(start, 'HH24') = to_char(start - interval '1 hour', 'HH24') THEN 'b' ELSE '' END) ORDER BY n)
      FROM unnest(starts) WITH ORDINALITY AS s (start, n),
           -- If the name and the longest suffix have more than 63 bytes together, cut the name
           -- to whole characters, and append a hash of the name.
           (SELECT CASE WHEN octet_length(c.relname) <= 48 THEN c.relname
                        ELSE (SELECT left(c.relname, length) || '_' || left(encode(sha256(convert_to(c.relname, 'UTF8')), 'hex'), 8)
                                FROM generate_series(39, 1, -1) AS length
                               WHERE octet_length(left(c.relname, length)) <= 39 LIMIT 1) END
              FROM pg_class AS c WHERE c.oid = parent) AS t (base),
           (VALUES ('{"year": "_YYYY", "month": "_YYYY_MM", "day": "_YYYY_MM_DD", "hour": "_YYYY_MM_DD_HH24"}'::jsonb)) AS p (patterns);
END;

-- Raises an error unless the wanted partitions have names that tell when they begin, and
-- fit between those that are there.
CREATE FUNCTION @extschema@.snowflake_check_new_partitions(
    parent regclass, since timestamptz, until timestamptz, unit text, starts timestamptz[],
    bounds bigint[], parts regclass[], lowers bigint[], uppers bigint[], step interval, lock_timeout interval)
RETURNS void LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := cardinality(bounds) - 1;
    overlapping integer;
    below regclass;
    above regclass;
BEGIN
    IF bounds IS NULL OR lock_timeout > interval '0' IS NOT TRUE THEN
        RAISE EXCEPTION 'cannot create partitions since % until % by a step of % with a lock_timeout of %', since, until, step, lock_timeout
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give two finite instants, the earlier first, a step, and a lock_timeout above 0.';
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

    SELECT n, part INTO overlapping, above
      FROM generate_series(1, wanted) AS n, unnest(parts, lowers, uppers) AS present (part, lower, upper)
     WHERE lower < bounds[n + 1] AND upper > bounds[n] AND (lower, upper) <> (bounds[n], bounds[n + 1])
     ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % would overlap partition %',
                        (@extschema@.snowflake_partition_names(parent, unit, starts))[overlapping], parent, above
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
END
$$;

CREATE FUNCTION @extschema@.snowflake_attach_partition(
    parent regclass, since timestamptz, until timestamptz, unit text, starts timestamptz[],
    bounds bigint[], parts regclass[], lowers bigint[], uppers bigint[], step interval, lock_timeout interval)
RETURNS regclass LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    home regnamespace;
    names text[];
    options text;
BEGIN
    PERFORM @extschema@.snowflake_check_new_partitions(parent, since, until, unit, starts, bounds, parts, lowers, uppers, step, lock_timeout);
    names := @extschema@.snowflake_partition_names(parent, unit, starts);
    options := (SELECT concat(' USING ' || quote_ident(a.amname), ' TABLESPACE ' || quote_ident(t.spcname))
                  FROM pg_class AS c
                  LEFT JOIN pg_am AS a ON a.oid = c.relam
                  LEFT JOIN pg_tablespace AS t ON t.oid = c.reltablespace
                 WHERE c.oid = parent);
    -- Unlike PARTITION OF, LIKE and ATTACH PARTITION let readers and writers of
    -- the parent go on.  ATTACH makes indexes, foreign keys and triggers.
    FOR i IN 1 .. cardinality(bounds) - 1 LOOP
        CONTINUE WHEN EXISTS (SELECT FROM unnest(lowers) AS lower WHERE lower = bounds[i]);
        PERFORM @extschema@.snowflake_lock_partitions(parent, NULL::regclass, clock_timestamp() + lock_timeout);
        -- Another session may have created partitions during the wait.
        IF parts IS DISTINCT FROM (SELECT array_agg(part ORDER BY part) FROM @extschema@.snowflake_partition_bounds(parent)) THEN
            RETURN @extschema@.snowflake_create_partition(parent, since, until, step, lock_timeout);
        END IF;
        -- The schema may have got another name during the wait.
        home := (SELECT relnamespace FROM pg_class WHERE oid = parent);
        EXECUTE format('CREATE TABLE %s.%s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION)%s',
                       home, names[i], parent, options);
        EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s.%s FOR VALUES FROM (%s) TO (%s)',
                       parent, home, names[i], bounds[i], bounds[i + 1]);
        RETURN concat(home, '.', names[i])::regclass;
    END LOOP;
    RETURN NULL;
END
$$;

-- Creates the first of the range partitions that does not exist yet.
CREATE FUNCTION @extschema@.snowflake_create_partition(
    parent regclass, since timestamptz,
    until timestamptz, step interval, lock_timeout interval DEFAULT '10 s')
RETURNS regclass LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.snowflake_check_partitions(parent);
    SELECT made
      FROM @extschema@.snowflake_partition_steps(since, until, step) AS steps,
           -- An end outside the layout's span is an error of snowflake_encode().
           LATERAL (SELECT array_agg(start ORDER BY n),
                           array_agg(CASE n WHEN 1 THEN @extschema@.snowflake_min_id(start)
                                            ELSE @extschema@.snowflake_encode(start, 0, 0, 0) END ORDER BY n)
                      FROM @extschema@.snowflake_partition_starts(since, until, step, steps.unit, steps.steps)
                           WITH ORDINALITY AS s (start, n)) AS wanted (starts, bounds),
           (SELECT array_agg(part ORDER BY part), array_agg(lower ORDER BY part), array_agg(upper ORDER BY part)
              FROM @extschema@.snowflake_partition_bounds(parent)) AS present (parts, lowers, uppers),
           @extschema@.snowflake_attach_partition(parent, since, until, steps.unit, starts, bounds, parts, lowers, uppers, step, lock_timeout) AS made;
END;

-- A procedure with a SET clause cannot COMMIT: the bodies of the procedures must
-- not depend on search_path, types neither, and each transaction is one call of a function.
CREATE PROCEDURE @extschema@.snowflake_create_partitions(
    parent regclass, since timestamptz,
    until timestamptz, step interval, lock_timeout interval DEFAULT '10 s') LANGUAGE plpgsql
AS $$
DECLARE
    made pg_catalog.regclass;
BEGIN
    LOOP
        made := @extschema@.snowflake_create_partition(parent, since, until, step, lock_timeout);
        EXIT WHEN made IS NULL;
        COMMIT;
        RAISE NOTICE 'created partition %', made;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE @extschema@.snowflake_create_partitions(regclass, timestamptz, timestamptz, interval, interval) IS
'create the range partitions of a table partitioned by its snowflake ids, each in a transaction';

CREATE FUNCTION @extschema@.snowflake_drop_partition(parent regclass, before timestamptz, lock_timeout interval, dry_run boolean)
RETURNS text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + lock_timeout;
    parts regclass[];
    locked regclass;
    name text;
BEGIN
    IF (isfinite(before + lock_timeout) AND lock_timeout > interval '0') IS NOT TRUE THEN
        RAISE EXCEPTION 'cannot drop partitions before % with a lock_timeout of %', before, lock_timeout
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a finite instant, and a lock_timeout above 0.';
    END IF;
    PERFORM @extschema@.snowflake_check_partitions(parent);
    LOOP
        SELECT array_agg(part ORDER BY lower) INTO parts
          FROM @extschema@.snowflake_partition_bounds(parent)
         WHERE upper < '9223372036854775807'
           AND upper - 1 <= @extschema@.snowflake_last_id_before(before);
        IF dry_run IS NOT FALSE OR parts IS NULL THEN
            FOREACH name IN ARRAY coalesce(parts, '{}') LOOP
                RAISE NOTICE 'would drop partition %', name;
            END LOOP;
            RETURN NULL;
        END IF;
        EXIT WHEN parts[1] = locked;
        locked := parts[1];
        PERFORM @extschema@.snowflake_lock_partitions(parent, locked, deadline);
    END LOOP;

    name := locked;
    -- PostgreSQL does not drop a partition that a foreign key references.  Of others,
    -- a DETACH would lock the tables that the parent references.
    IF EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = locked) THEN
        EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', parent, name);
    END IF;
    EXECUTE format('DROP %s %s', (SELECT CASE relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END FROM pg_class WHERE oid = locked), name);
    RETURN name;
END
$$;

CREATE PROCEDURE @extschema@.snowflake_drop_partitions(
    parent regclass, before timestamptz,
    lock_timeout interval DEFAULT '10 s', dry_run boolean DEFAULT false) LANGUAGE plpgsql
AS $$
DECLARE
    dropped pg_catalog.text;
BEGIN
    LOOP
        dropped := @extschema@.snowflake_drop_partition(parent, before, lock_timeout, dry_run);
        EXIT WHEN dropped IS NULL;
        COMMIT;
        RAISE NOTICE 'dropped partition %', dropped;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE @extschema@.snowflake_drop_partitions(regclass, timestamptz, interval, boolean) IS
'drop the range partitions whose ids were all issued before an instant, each in a transaction';

-- The other functions are no interface.
DO $$
DECLARE
    object record;
BEGIN
    FOR object IN SELECT identified.type, identified.identity
                    FROM pg_depend, pg_identify_object(classid, objid, 0) AS identified
                   WHERE (refclassid, deptype) = ('pg_extension'::regclass, 'e')
                     AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake')
                     AND obj_description(objid, classid::regclass::name) IS NULL LOOP
        EXECUTE format('COMMENT ON %s %s IS %L', object.type, object.identity,
                       CASE object.type WHEN 'cast' THEN 'of the type snowflake' ELSE 'internal' END);
    END LOOP;
END
$$;

-- Tell the DBA now, not at the first INSERT, if the library was not preloaded: only
-- then does the server know the library's parameters.
DO $$
BEGIN
    -- CREATE EXTENSION sets client_min_messages to warning for its script, or leaves it
    -- at error.
    IF current_setting('client_min_messages') = 'warning'
       AND NOT EXISTS (SELECT FROM pg_settings WHERE name = 'snowflake.worker_id') THEN
        PERFORM set_config('client_min_messages', 'notice', true);
        RAISE NOTICE 'snowflake_nextval() issues no ids until the library "snowflake" is loaded at the server''s start'
            USING HINT = E'Add these lines to postgresql.conf or a file in conf.d, and restart the server:\n'
                          'shared_preload_libraries = ''snowflake''   # with what is there already\n'
                          'snowflake.worker_id = N                  # a number that no other server has';
        -- Only a subtransaction that is rolled back sets the parameter back.
        RAISE SQLSTATE 'SNOWF';
    END IF;
EXCEPTION WHEN SQLSTATE 'SNOWF' THEN
    NULL;
END
$$;

-- If the schema was renamed before the row lock, all functions went to another
-- schema of its name.
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
