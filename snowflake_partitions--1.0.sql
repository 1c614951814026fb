/*
 * snowflake_partitions 1.0: range partitions by the time of snowflake ids.
 *
 * All functions run with the caller's rights.  The caller owns all tables that a
 * statement reads or locks, so no statement runs code of another role.
 *
 * A call holds no lock on a table while it waits for one.  Each attempt to make a
 * change is a transaction of its own.  It waits for one lock at most, while it has no
 * other.  Then it takes all locks of the change without waiting, and makes the
 * change.  If one of them is not free, the transaction ends, which gives everything
 * back, and the next attempt waits for that lock.  The change itself can need what
 * LOCK TABLE does not lock, such as an index, a schema or a name.  For these the
 * transaction waits for up to 10 ms while it holds its locks.  If that is too short,
 * the transaction ends, and the next attempt begins 100 ms later.
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake_partitions" to load this file. \quit

-- The control file names pg_catalog, and not this schema: this statement fails if
-- somebody has made a schema of this name before.
CREATE SCHEMA snowflake_partitions;
COMMENT ON SCHEMA snowflake_partitions IS 'range partitions by the time of snowflake ids';

-- Names below are looked up in this path.  The bodies set the same path, or are bound
-- by OID.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- ALTER DEFAULT PRIVILEGES may have granted more, such as CREATE to a role whose functions
-- would then be found in the schema.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
          FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
         WHERE n.nspname = 'snowflake_partitions' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA snowflake_partitions FROM %s', grantee);
    END LOOP;
END
$$;
GRANT USAGE ON SCHEMA snowflake_partitions TO PUBLIC;

--
-- Instants and ids
--

-- The schema of extension "snowflake" can belong to any role.  The row lock keeps its
-- owner from renaming it.  Arguments have the exact types, so that no function that
-- somebody has put there matches better.
DO $$
DECLARE
    home text;
BEGIN
    SELECT quote_ident(n.nspname) INTO home FROM pg_namespace AS n
     WHERE n.oid = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake') FOR SHARE;
    -- An end outside the layout's span is an error of snowflake_encode(); the first
    -- partition may begin before the epoch.
    EXECUTE format('CREATE FUNCTION snowflake_partitions.bound(start timestamptz, is_first boolean) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE '
                   'RETURN CASE WHEN is_first THEN %1$s.snowflake_min_id(start) ELSE %1$s.snowflake_encode(start, 0, 0, 0) END', home);
    EXECUTE format('CREATE FUNCTION snowflake_partitions.last_id_before(instant timestamptz) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE '
                   'RETURN %s.snowflake_last_id_before(instant)', home);
END
$$;
COMMENT ON FUNCTION snowflake_partitions.bound(timestamptz, boolean) IS 'internal: the bound of a partition that begins at an instant';
COMMENT ON FUNCTION snowflake_partitions.last_id_before(timestamptz) IS 'internal: the largest id issued before an instant';

-- A day begins when clocks first show its midnight or later.  In Cairo, where
-- summer time begins at midnight, such a day begins at 01:00.  In Havana, where
-- summer time ends with a second midnight, such a day begins at the first, and
-- PostgreSQL's cast returns the second.
CREATE FUNCTION snowflake_partitions.day_start(day timestamp)
RETURNS timestamptz LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN day::timestamptz::timestamp = day
     AND (day::timestamptz - interval '3 hours')::timestamp = day - interval '3 hours'
    THEN day::timestamptz
    ELSE (SELECT min(instant)
            FROM generate_series(day::timestamptz - interval '26 hours', day::timestamptz, interval '1 minute') AS instant
           WHERE instant::timestamp >= day)
END;
COMMENT ON FUNCTION snowflake_partitions.day_start(timestamp) IS 'internal: when a day begins in the session''s time zone';

-- Steps count from the first: a short month must not shorten later steps.  Steps of
-- hours are elapsed time, others follow the calendar.
CREATE FUNCTION snowflake_partitions.starts(since timestamptz, until timestamptz, step interval, unit text)
RETURNS SETOF timestamptz LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    -- Without DISTINCT, a day that the time zone leaves out would be a partition.
    WITH counted AS (
        SELECT DISTINCT ON (start) start,
               -- A day with two midnights begins at the first; "until" can be the second.
               start < until AND (unit = 'hour' OR day < until::timestamp) AS wanted
          FROM generate_series(0, least(extract(epoch FROM until - since) / extract(epoch FROM step), 10000)::integer + 2) AS n,
               LATERAL (SELECT date_trunc(unit, since::timestamp) + n * step) AS d (day),
               LATERAL (SELECT CASE unit WHEN 'hour' THEN date_trunc(unit, since) + n * step
                                         ELSE snowflake_partitions.day_start(day) END) AS s (start)
         ORDER BY start, n)
    SELECT start
      FROM (SELECT start, wanted, lag(wanted) OVER (ORDER BY start) AS follows FROM counted) AS ordered
     WHERE wanted OR follows
     ORDER BY start;
END;
COMMENT ON FUNCTION snowflake_partitions.starts(timestamptz, timestamptz, interval, text) IS
'internal: when the partitions of an interval begin, and when the last one ends';

CREATE FUNCTION snowflake_partitions.name_of(parent regclass, unit text, start timestamptz)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN (
    -- If the name and the longest suffix have more than 63 bytes together, cut the name
    -- to whole characters, and append a hash of the name.
    SELECT format('%s.%I', c.relnamespace::regnamespace,
                  CASE WHEN octet_length(c.relname) <= 48 THEN c.relname
                       ELSE (SELECT left(c.relname, length) || '_' || left(encode(sha256(convert_to(c.relname, getdatabaseencoding())), 'hex'), 8)
                               FROM generate_series(39, 1, -1) AS length
                              WHERE octet_length(left(c.relname, length)) <= 39 LIMIT 1) END
                  || to_char(start, CASE unit WHEN 'year' THEN '_YYYY' WHEN 'month' THEN '_YYYY_MM' WHEN 'day' THEN '_YYYY_MM_DD' ELSE '_YYYY_MM_DD_HH24' END)
                  -- When summer time of one hour ends, an hour occurs twice: the second gets
                  -- a "b".  Longer summer times are not told apart.
                  || CASE WHEN unit = 'hour' AND to_char(start, 'HH24') = to_char(start - interval '1 hour', 'HH24') THEN 'b' ELSE '' END)
      FROM pg_class AS c
     WHERE c.oid = parent);
COMMENT ON FUNCTION snowflake_partitions.name_of(regclass, text, timestamptz) IS 'internal: the name of the partition that begins at an instant';

--
-- The partitions that exist, and those that are missing or expired
--

-- Raises an error unless the table is one that the functions can serve, and the caller
-- owns it and all that the statements below read or lock.
CREATE FUNCTION snowflake_partitions.check_parent(parent regclass)
RETURNS void LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- SET SESSION AUTHORIZATION changes session_user, but not this role.
    login oid := coalesce((SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid())), 10);
    -- A query of pg_roles would not find a role that was renamed after its snapshot, and
    -- a NULL would let every table pass.
    caller oid := quote_ident(current_user)::regrole;
    owner oid;
    other regclass;
    schema_owner regrole;
BEGIN
    -- One snapshot would hide what has changed during a wait for a lock.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'partitions cannot be created or dropped at isolation level "%"', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state', HINT = 'First SET default_transaction_isolation = ''read committed''.';
    END IF;
    SELECT c.relowner INTO owner
      FROM pg_class AS c
      JOIN pg_partitioned_table AS p ON p.partrelid = c.oid
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
     WHERE c.oid = parent AND p.partstrat = 'r' AND p.partnatts = 1
       AND (a.atttypid = 'bigint'::regtype
            OR EXISTS (SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'snowflake'
                        WHERE (d.classid, d.objid, d.refclassid, d.deptype) = ('pg_type'::regclass, a.atttypid, 'pg_extension'::regclass, 'e')));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table % is not partitioned by the range of a bigint or snowflake column', parent
            USING ERRCODE = 'wrong_object_type',
                  HINT = 'Create it with PARTITION BY RANGE and its id as the only column of the key.';
    END IF;

    -- The owner's code can run below with the rights of the caller and, after SET ROLE,
    -- of the role that has connected.  So that role has to be the owner, or a member of
    -- it, which has the owner's rights already.  It must not be a superuser, nor a member
    -- of pg_execute_server_program, pg_read_server_files or pg_write_server_files, which
    -- have as much power.  Before 16, a role with CREATEROLE can grant these to anybody.
    IF owner <> caller
       OR owner <> login AND (NOT pg_has_role(login, owner, 'MEMBER')
                               OR EXISTS (SELECT FROM pg_roles AS s
                                          WHERE (s.rolsuper OR s.rolcreaterole OR s.rolname ~ '^pg_.*_server_') AND pg_has_role(login, s.oid, 'MEMBER'))) THEN
        RAISE EXCEPTION 'must be owner of table %', parent
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('Connect as role "%s" or as a member of it without the rights of a superuser, CREATEROLE or a role pg_*_server_*, and SET ROLE to it.', pg_get_userbyid(owner));
    END IF;

    SELECT inhrelid INTO other FROM pg_inherits WHERE inhparent = parent AND inhdetachpending;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % is being detached', other, parent
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('If DETACH PARTITION ... CONCURRENTLY was interrupted: ALTER TABLE %s DETACH PARTITION %s FINALIZE', parent, other);
    END IF;

    WITH RECURSIVE tree (relid) AS (
        SELECT relid::oid FROM pg_partition_ancestors(parent)
        UNION
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.relid)
    SELECT c.oid, CASE WHEN c.relowner = owner THEN s.holder END INTO other, schema_owner
      FROM pg_class AS c
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
      JOIN pg_database AS d ON d.datname = current_database(),
           LATERAL (SELECT CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END) AS s(holder)
     -- A schema's owner could exchange names, unless it has the rights of the tables' owner.
     WHERE (c.relowner <> owner OR NOT pg_has_role(s.holder, owner, 'USAGE'))
       AND (c.oid IN (SELECT relid FROM tree)
            OR c.oid IN (SELECT conrelid FROM pg_constraint JOIN tree ON relid = confrelid WHERE contype = 'f')
            OR c.oid IN (SELECT confrelid FROM pg_constraint JOIN tree ON relid = conrelid WHERE contype = 'f'))
     ORDER BY c.relname
     LIMIT 1;
    IF FOUND AND schema_owner IS NULL THEN
        RAISE EXCEPTION 'table % belongs to another role than %', other, parent
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Partitioning or a foreign key connects the two tables, so code of that role could run.',
                  HINT = format('Give the table to role "%s".', current_user);
    ELSIF FOUND THEN
        RAISE EXCEPTION 'the schema of table % belongs to role "%"', other, pg_get_userbyid(schema_owner)
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'That role could put a table of its own in the place of this one, so its code could run.',
                  HINT = format('Give the schema to role "%1$s" or, if that role is no superuser, GRANT "%1$s" TO "%2$s", which has to inherit its rights.',
                                current_user, pg_get_userbyid(schema_owner));
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_partitions.check_parent(regclass) IS 'internal: an error unless the caller may change the partitions of a table';

-- pg_get_expr() is given no table, because it would wait for the table's lock.
CREATE FUNCTION snowflake_partitions.present(parent regclass)
RETURNS TABLE (part regclass, lower bigint, upper bigint) LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.oid::regclass,
           coalesce(bound[1]::bigint, '-9223372036854775808'),
           coalesce(bound[2]::bigint, '9223372036854775807')
      FROM pg_inherits AS i
      JOIN pg_class AS c ON c.oid = i.inhrelid,
           regexp_match(pg_get_expr(c.relpartbound, 0),
                        '^FOR VALUES FROM [(](?:''(.*)''|MINVALUE)[)] TO [(](?:''(.*)''|MAXVALUE)[)]$') AS bound
     WHERE i.inhparent = parent AND bound IS NOT NULL;
END;
COMMENT ON FUNCTION snowflake_partitions.present(regclass) IS 'internal: the partitions of a table, with their bounds';

CREATE FUNCTION snowflake_partitions.missing(parent regclass, since timestamptz, until timestamptz, step interval)
RETURNS TABLE (part text, statements text[]) LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    months integer := extract(year FROM step) * 12 + extract(month FROM step);
    days integer := extract(day FROM step);
    seconds numeric := extract(epoch FROM step - make_interval(months => months, days => days));
    unit text := CASE WHEN months > 0 AND days = 0 AND seconds = 0 AND months % 12 = 0 THEN 'year'
                      WHEN months > 0 AND days = 0 AND seconds = 0 THEN 'month'
                      WHEN months = 0 AND days > 0 AND seconds = 0 THEN 'day'
                      WHEN months = 0 AND days = 0 AND seconds > 0 AND seconds % 3600 = 0 THEN 'hour' END;
    starts timestamptz[];
    bounds bigint[];
    wanted integer;
    overlapping integer;
    below regclass;
    above regclass;
    has_gap boolean;
BEGIN
    PERFORM snowflake_partitions.check_parent(parent);
    IF step IS NOT NULL AND unit IS NULL THEN
        RAISE EXCEPTION 'invalid step of partitions: "%"', step
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give one hour or more in whole years, months, days or hours, not mixed.';
    END IF;
    IF isfinite(since) AND isfinite(until) THEN
        starts := ARRAY(SELECT snowflake_partitions.starts(since, until, step, unit));
    END IF;
    wanted := cardinality(starts) - 1;
    IF wanted > 0 IS NOT TRUE THEN
        RAISE EXCEPTION 'cannot create partitions since % until % by a step of %', since, until, step
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give two finite instants, the earlier first, and a step.';
    END IF;
    -- A partition's name has to show when the partition begins.
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
    bounds := ARRAY(SELECT snowflake_partitions.bound(start, n = 1) FROM unnest(starts) WITH ORDINALITY AS s (start, n) ORDER BY n);

    SELECT greatest(width_bucket(lower, bounds), 1) AS n, p.part INTO overlapping, above
      FROM snowflake_partitions.present(parent) AS p
     WHERE lower < bounds[wanted + 1] AND upper > bounds[1]
       AND (lower, upper) IS DISTINCT FROM (bounds[width_bucket(lower, bounds)], bounds[width_bucket(lower, bounds) + 1])
     ORDER BY lower LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'partition % of % would overlap partition %',
                        snowflake_partitions.name_of(parent, unit, starts[overlapping]), parent, above
            USING ERRCODE = 'invalid_object_definition',
                  HINT = 'Use the step and the time zone that the existing partitions were made with.';
    END IF;
    SELECT (array_agg(p.part ORDER BY upper DESC) FILTER (WHERE upper <= bounds[1]))[1],
           (array_agg(p.part ORDER BY lower) FILTER (WHERE lower >= bounds[wanted + 1]))[1],
           max(upper) FILTER (WHERE upper <= bounds[1]) < bounds[1] OR min(lower) FILTER (WHERE lower >= bounds[wanted + 1]) > bounds[wanted + 1]
      INTO below, above, has_gap
      FROM snowflake_partitions.present(parent) AS p;
    IF has_gap THEN
        RAISE EXCEPTION 'there would be a gap between partitions of %', parent
            USING ERRCODE = 'invalid_object_definition',
                  DETAIL = format('The new partitions would be from %s to %s, and the nearest others are %s.',
                                  starts[1], starts[wanted + 1], concat_ws(' and ', below, above)),
                  HINT = 'Begin where the last partition ends, and end where the next one begins.';
    END IF;

    -- Unlike PARTITION OF, LIKE and ATTACH PARTITION let readers and writers of
    -- the parent go on.  ATTACH makes indexes, foreign keys and triggers.
    RETURN QUERY
        SELECT name, ARRAY[
                   format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION)%s%s',
                          name, parent, ' USING ' || quote_ident(a.amname), ' TABLESPACE ' || quote_ident(t.spcname)),
                   format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', parent, name, bounds[n], bounds[n + 1])]
          FROM generate_series(1, wanted) AS n,
               LATERAL (SELECT snowflake_partitions.name_of(parent, unit, starts[n])) AS named (name),
               pg_class AS c
          LEFT JOIN pg_am AS a ON a.oid = c.relam
          LEFT JOIN pg_tablespace AS t ON t.oid = c.reltablespace
         WHERE c.oid = parent AND NOT EXISTS (SELECT FROM snowflake_partitions.present(parent) WHERE lower = bounds[n])
         ORDER BY n;
END
$$;
COMMENT ON FUNCTION snowflake_partitions.missing(regclass, timestamptz, timestamptz, interval) IS
'the partitions that create_range() would create, each with its statements, for the caller to run in one transaction';

CREATE FUNCTION snowflake_partitions.expired(parent regclass, before timestamptz)
RETURNS TABLE (part text, statements text[]) LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM snowflake_partitions.check_parent(parent);
    IF isfinite(before) IS NOT TRUE THEN
        RAISE EXCEPTION 'cannot drop partitions before %', before
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a finite instant.';
    END IF;
    -- PostgreSQL does not drop a partition that a foreign key references, so detach it
    -- first.  Do not detach others: that would lock the tables that the parent references.
    RETURN QUERY
        SELECT p.part::text, array_remove(ARRAY[
                   CASE WHEN EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = p.part)
                        THEN format('ALTER TABLE %s DETACH PARTITION %s', parent, p.part) END,
                   format('DROP %s %s', CASE c.relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, p.part)], NULL)
          FROM snowflake_partitions.present(parent) AS p
          JOIN pg_class AS c ON c.oid = p.part
         WHERE upper < '9223372036854775807' AND upper - 1 <= snowflake_partitions.last_id_before(before)
         ORDER BY upper;
END
$$;
COMMENT ON FUNCTION snowflake_partitions.expired(regclass, timestamptz) IS 'internal: the partitions that drop_before() would drop, with the statements';

--
-- Locks and changes
--

-- These are the tables, with the lock modes, that PostgreSQL locks against writers
-- while it drops a partition or, if "part" is NULL, while it attaches one.
CREATE FUNCTION snowflake_partitions.locks(parent regclass, part regclass)
RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE tree (relid) AS (
        SELECT part::oid WHERE part IS NOT NULL
        UNION ALL
        SELECT partdefid FROM pg_partitioned_table WHERE partrelid = parent
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.relid),
    modes (relid, mode) AS (
        SELECT parent::oid, CASE WHEN part IS NULL THEN 'SHARE UPDATE EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END
        UNION
        SELECT relid, 'ACCESS SHARE' FROM pg_partition_ancestors(parent) WHERE relid <> parent
        UNION
        SELECT relid, 'ACCESS EXCLUSIVE' FROM tree
        UNION
        -- A drop changes the other tables of foreign keys only if one of these references the
        -- partition, or is not the parent's.
        SELECT other, CASE WHEN part IS NULL THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END
          FROM pg_constraint AS k, unnest(ARRAY[k.conrelid, k.confrelid]) AS other
         WHERE k.contype = 'f' AND (other <> parent OR k.conrelid = k.confrelid)
           AND (parent IN (k.conrelid, k.confrelid) OR EXISTS (SELECT FROM tree WHERE relid IN (k.conrelid, k.confrelid)))
           AND (part IS NULL
                OR EXISTS (SELECT FROM pg_constraint AS o
                            WHERE o.contype = 'f' AND (o.confrelid = part OR o.conparentid = 0 AND o.conrelid IN (SELECT relid FROM tree)))))
    SELECT array_agg(format('%I.%I IN %s MODE', n.nspname, c.relname, m.mode) ORDER BY c.oid <> parent, c.oid, m.mode)
      FROM modes AS m
      JOIN pg_class AS c ON c.oid = m.relid AND c.relkind IN ('r', 'p')
      JOIN pg_namespace AS n ON n.oid = c.relnamespace;
END;
COMMENT ON FUNCTION snowflake_partitions.locks(regclass, regclass) IS 'internal: the locks that a change needs';

-- Tries once to create or to drop the next partition, and returns the partition, or NULL.
-- The deadline is NULL before the first attempt, after a success, and if nothing is left
-- to do.  After a failure, "awaited" is the lock that the next attempt waits for, or NULL
-- if LOCK TABLE cannot take it.  The next attempt needs a transaction of its own: only the
-- end of this one gives everything back.
CREATE FUNCTION snowflake_partitions.attempt(
    parent regclass, dropping boolean, since timestamptz, until timestamptz, step interval, lock_timeout interval,
    INOUT deadline timestamptz, INOUT awaited text, OUT part text)
RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    change text[];
    locks text[];
    taken text[];
    statement text;
    changing boolean := false;
    timeout interval;
    suffix text := ' IN [A-Z ]+ MODE$';
BEGIN
    deadline := coalesce(deadline, clock_timestamp() + lock_timeout);
    IF (isfinite(deadline) AND lock_timeout > interval '0') IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid lock_timeout: "%"', lock_timeout
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give an interval above 0.';
    END IF;
    timeout := deadline - clock_timestamp();
    BEGIN
        PERFORM set_config('lock_timeout', '10ms', true);
        PERFORM snowflake_partitions.check_parent(parent);
        IF awaited IS NOT NULL THEN
            -- CREATE INDEX CONCURRENTLY has this lock on the table, or gets it first, and then waits
            -- for transactions with older snapshots, such as this one: this one ends before
            -- PostgreSQL finds a deadlock.  It waits longer for VACUUM and ANALYZE, which have the
            -- same lock: PostgreSQL interrupts an autovacuum only after deadlock_timeout.
            IF EXISTS (SELECT FROM pg_locks
                        WHERE relation = to_regclass(regexp_replace(awaited, suffix, '')) AND mode = 'ShareUpdateExclusiveLock'
                          AND pid NOT IN (SELECT pid FROM pg_stat_get_progress_info('VACUUM')
                                          UNION ALL SELECT pid FROM pg_stat_get_progress_info('ANALYZE'))) THEN
                timeout := least(timeout, current_setting('deadlock_timeout')::interval / 2);
            END IF;
            PERFORM set_config('lock_timeout', least(2147483647, greatest(1, ceil(extract(epoch FROM timeout) * 1000)))::text, true);
            EXECUTE 'LOCK TABLE ONLY ' || awaited;
            PERFORM set_config('lock_timeout', '10ms', true);
        END IF;
        LOOP
            IF dropping THEN
                SELECT e.part, e.statements INTO part, change FROM snowflake_partitions.expired(parent, until) AS e LIMIT 1;
            ELSE
                SELECT m.part, m.statements INTO part, change FROM snowflake_partitions.missing(parent, since, until, step) AS m LIMIT 1;
            END IF;
            locks := snowflake_partitions.locks(parent, CASE WHEN dropping THEN part::regclass END);
            -- Names, owners and partitions may have changed before all locks were taken.
            EXIT WHEN part IS NULL OR taken = locks || change;
            taken := locks || change;
            FOREACH awaited IN ARRAY locks LOOP
                EXECUTE concat('LOCK TABLE ONLY ', awaited, ' NOWAIT');
            END LOOP;
        END LOOP;
        awaited := NULL;
        changing := true;
        FOREACH statement IN ARRAY coalesce(change, '{}') LOOP
            EXECUTE statement;
        END LOOP;
        deadline := NULL;
    EXCEPTION WHEN lock_not_available OR undefined_table OR invalid_schema_name THEN
        -- Until all locks are taken, another session can rename or drop what a name means.
        IF SQLSTATE <> '55P03' AND (changing OR clock_timestamp() >= deadline) THEN
            RAISE;
        ELSIF clock_timestamp() >= deadline THEN
            RAISE EXCEPTION 'could not lock % in time', CASE WHEN awaited IS NULL THEN format('what a change of table %s needs', parent) ELSE 'table ' || regexp_replace(awaited, suffix, '') END
                USING ERRCODE = 'lock_not_available',
                      DETAIL = format(CASE WHEN dropping THEN 'Dropping a partition of %s needs the lock.' ELSE 'A new partition of %s needs the lock.' END, parent),
                      HINT = 'Earlier partitions are done. Call again, or give a longer lock_timeout.';
        END IF;
        awaited := CASE SQLSTATE WHEN '55P03' THEN awaited END;
        part := NULL;
    END;
END
$$;
COMMENT ON FUNCTION snowflake_partitions.attempt(regclass, boolean, timestamptz, timestamptz, interval, interval, timestamptz, text) IS
'internal: tries to create or to drop the next partition';

--
-- The procedures
--

-- A procedure with a SET clause cannot COMMIT, so the bodies of the procedures must not
-- depend on search_path: they use no operators, and types and functions by their schema.
CREATE PROCEDURE snowflake_partitions.change(
    parent regclass, dropping boolean, since timestamptz, until timestamptz, step interval, lock_timeout interval) LANGUAGE plpgsql
AS $$
DECLARE
    deadline pg_catalog.timestamptz;
    awaited pg_catalog.text;
    part pg_catalog.text;
BEGIN
    LOOP
        SELECT a.deadline, a.awaited, a.part INTO deadline, awaited, part
          FROM snowflake_partitions.attempt(parent, dropping, since, until, step, lock_timeout, deadline, awaited) AS a;
        EXIT WHEN deadline IS NULL AND part IS NULL;
        COMMIT;
        IF part IS NULL THEN
            PERFORM pg_catalog.pg_sleep(CASE WHEN awaited IS NULL THEN '0.1'::pg_catalog.float8 ELSE '0.005'::pg_catalog.float8 END);
        ELSE
            RAISE NOTICE '% partition %', CASE WHEN dropping THEN 'dropped' ELSE 'created' END, part;
        END IF;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE snowflake_partitions.change(regclass, boolean, timestamptz, timestamptz, interval, interval) IS
'internal: creates or drops partitions, each in a transaction';

CREATE PROCEDURE snowflake_partitions.create_range(
    parent regclass, since timestamptz, until timestamptz, step interval, lock_timeout interval DEFAULT '3 s') LANGUAGE plpgsql
AS $$
BEGIN
    CALL snowflake_partitions.change(parent, false, since, until, step, lock_timeout);
END
$$;
COMMENT ON PROCEDURE snowflake_partitions.create_range(regclass, timestamptz, timestamptz, interval, interval) IS
'create the range partitions of a table partitioned by its snowflake ids, each in a transaction';

CREATE PROCEDURE snowflake_partitions.drop_before(
    parent regclass, before timestamptz, lock_timeout interval DEFAULT '3 s', dry_run boolean DEFAULT false) LANGUAGE plpgsql
AS $$
DECLARE
    part pg_catalog.text;
BEGIN
    IF dry_run IS FALSE THEN
        CALL snowflake_partitions.change(parent, true, NULL::pg_catalog.timestamptz, before, NULL::pg_catalog.interval, lock_timeout);
    ELSE
        FOR part IN SELECT e.part FROM snowflake_partitions.expired(parent, before) AS e LOOP
            RAISE NOTICE 'would drop partition %', part;
        END LOOP;
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_partitions.drop_before(regclass, timestamptz, interval, boolean) IS
'drop the range partitions whose ids were all issued before an instant, each in a transaction';
