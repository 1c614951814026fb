-- Range partitions by the time of ids.  The test works with any snowflake.layout.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';

-- Lists the partitions of a table with the instants of their bounds; "exact" if
-- the bounds are the smallest ids of these instants.
CREATE FUNCTION partitions_of(parent regclass)
RETURNS TABLE (name name, begins timestamptz, ends timestamptz, exact boolean)
BEGIN ATOMIC
  SELECT relname, date_trunc('minute', snowflake_timestamp(b[1]::bigint) + interval '10 s'),
         date_trunc('minute', snowflake_timestamp(b[2]::bigint) + interval '10 s'),
         b[1]::bigint IN (0, snowflake_min_id(date_trunc('minute', snowflake_timestamp(b[1]::bigint) + interval '10 s')))
         AND b[2]::bigint = snowflake_min_id(date_trunc('minute', snowflake_timestamp(b[2]::bigint) + interval '10 s'))
    FROM pg_inherits
    JOIN pg_class ON pg_class.oid = inhrelid,
         regexp_match(pg_get_expr(relpartbound, inhrelid), '^FOR VALUES FROM \(''(\d+)''\) TO \(''(\d+)''\)$') AS b
   WHERE inhparent = parent
   ORDER BY b[1]::bigint;
END;

CREATE SCHEMA "Odd Schema";
CREATE TABLE "Odd Schema"."Even""ts" (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int) PARTITION BY RANGE (id);

-- months, over a leap day; "until" is within the last partition
SELECT snowflake_create_partitions('"Odd Schema"."Even""ts"', '2027-12-01', '2028-04-15', '1 month');
SELECT * FROM partitions_of('"Odd Schema"."Even""ts"');
-- existing partitions are skipped, and the following ones are created
BEGIN;
SELECT * FROM snowflake_create_partitions('"Odd Schema"."Even""ts"', '2027-12-01', '2028-05-01', '1 month');
-- the locks allow reads and writes
SELECT mode FROM pg_locks WHERE relation = '"Odd Schema"."Even""ts"'::regclass AND pid = pg_backend_pid();
COMMIT;
SELECT * FROM snowflake_create_partitions('"Odd Schema"."Even""ts"', '2028-02-01', '2028-07-01', '1 month') AS made;
-- an id at each side of a bound
INSERT INTO "Odd Schema"."Even""ts"
SELECT id FROM snowflake_min_id('2028-03-01') AS bound, unnest(ARRAY[bound - 1, bound]) AS id
RETURNING tableoid::regclass, snowflake_timestamp(id) < '2028-03-01 00:00:00+00' AS before;
DROP TABLE "Odd Schema"."Even""ts";
DROP SCHEMA "Odd Schema";

CREATE TABLE events (id bigint, n int) PARTITION BY RANGE (id);
SELECT count(*) FROM snowflake_create_partitions('events', '2028-01-01', '2028-02-01', '1 month');
-- New partitions that overlap existing ones, because the step, the start or the
-- time zone differs, are refused, and no partition is created.
SELECT snowflake_create_partitions('events', '2027-11-01', '2029-01-01', '3 months');
SELECT snowflake_create_partitions('events', '2027-12-01', '2028-02-01', '1 day');
SET TimeZone = 'Europe/Berlin';
SELECT snowflake_create_partitions('events', '2028-02-01', '2028-03-01', '1 month');
SET TimeZone = 'UTC';
-- a gap may remain after the existing partitions, or before them
SELECT snowflake_create_partitions('events', '2028-03-01', '2028-04-01', '1 month');
SELECT snowflake_create_partitions('events', '2027-11-01', '2027-12-01', '1 month');
SELECT name FROM partitions_of('events');
-- gaps on both sides, and a following year
SELECT snowflake_create_partitions('events', '2027-12-01', '2028-12-31', '1 month');
SELECT snowflake_create_partitions('events', '2029-01-01', '2030-01-01', '1 year');
-- a missing partition is created
DROP TABLE events_2028_05;
SELECT snowflake_create_partitions('events', '2028-01-01', '2028-12-01', '1 month');
-- MINVALUE and MAXVALUE are bounds, too
CREATE TABLE events_before PARTITION OF events FOR VALUES FROM (MINVALUE) TO (0);
\set VERBOSITY terse
SELECT snowflake_create_partitions('events', '2027-11-01', '2027-12-01', '1 month');
DROP TABLE events_before;
\set VERBOSITY default
CREATE TABLE events_after PARTITION OF events FOR VALUES FROM (snowflake_min_id('2031-01-01')) TO (MAXVALUE);
SELECT snowflake_create_partitions('events', '2032-01-01', '2033-01-01', '1 year');
SELECT snowflake_create_partitions('events', '2030-01-01', '2031-01-01', '1 year');
-- a table has the name of a new partition already
CREATE TABLE events_2027_11 ();
\set VERBOSITY terse
SELECT snowflake_create_partitions('events', '2027-10-01', '2027-12-01', '1 month');
\set VERBOSITY default
DROP TABLE events_2027_11;
-- a default partition is no obstacle unless it has rows of the new partition
CREATE TABLE events_default PARTITION OF events DEFAULT;
INSERT INTO events SELECT snowflake_min_id('2027-10-10');
SELECT snowflake_create_partitions('events', '2027-11-01', '2027-12-01', '1 month');
\set VERBOSITY terse
SELECT snowflake_create_partitions('events', '2027-10-01', '2027-11-01', '1 month');
\set VERBOSITY default
DROP TABLE events;

-- Days have 23 or 25 hours.  If an hour comes twice, the second partition of the
-- two has a "b" in its name.
SET TimeZone = 'Europe/Berlin';
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2028-03-25', '2028-03-28', '1 day');
SELECT name, ends - begins AS length, exact FROM partitions_of('days');
CREATE TABLE hours (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('hours', '2028-10-29 01:00', '2028-10-29 04:00', '1 hour');
SELECT name, ends - begins AS length, exact FROM partitions_of('hours');
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2028-10-28', '2028-10-31', '1 day');
SELECT name, ends - begins AS length, exact FROM partitions_of('days');
-- a day without midnight does not shift the following days
SET TimeZone = 'Asia/Beirut';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2024-03-30', '2024-04-03', '1 day');
SELECT * FROM partitions_of('days');
-- Where summer time begins at midnight, the day begins at 01:00: if it is the
-- first day of the call, if it is a later day, and if its partition exists
-- already.  A week that begins on this day begins at 01:00, too.
SET TimeZone = 'Africa/Cairo';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2026-04-24', '2026-04-26', '1 day');
SELECT snowflake_create_partitions('days', '2026-04-22', '2026-04-27', '1 day');
SELECT snowflake_create_partitions('days', date_trunc('day', timestamptz '2026-04-24 09:00'), '2026-04-28', '1 day');
SELECT *, ends - begins AS length FROM partitions_of('days');
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2026-04-24', '2026-05-15', '7 days');
SELECT * FROM partitions_of('days');
-- A day with two midnights begins at the first; the caller may give either of the
-- two.  The zone has the rules of Havana up to 2025.
SET TimeZone = 'HAV5HDT4,M3.2.0/0,M11.1.0/1';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2026-11-01', '2026-11-02', '1 day');
SELECT snowflake_create_partitions('days', '2026-11-01 00:00-04', '2026-11-03', '1 day');
SELECT snowflake_create_partitions('days', '2026-10-30', '2026-11-01', '1 day');
SELECT snowflake_create_partitions('days', '2026-10-31', '2026-11-01 00:00-04', '1 day');
SELECT *, ends - begins AS length FROM partitions_of('days');
\set VERBOSITY terse
SELECT snowflake_create_partitions('days', '2026-11-01 00:30-05', '2026-11-05', '1 day');
SELECT snowflake_create_partitions('days', '2026-11-01 00:00-04', '2026-11-01 00:00-05', '1 day');
\set VERBOSITY default
-- a month that begins with a day of two midnights
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2026-10-01', '2026-12-01', '1 month');
SELECT snowflake_create_partitions('days', '2026-11-01', '2027-01-01', '1 month');
SELECT * FROM partitions_of('days');
SET TimeZone = 'UTC';
DROP TABLE days, hours;

-- steps of several months and years
CREATE TABLE months (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM snowflake_create_partitions('months', '2024-02-01', '2034-01-15', '1 month');
SELECT count(*), bool_and(exact), bool_and(ends = begins + interval '1 month') AS months,
       bool_and(name = 'months_' || to_char(begins, 'YYYY_MM')) AS names FROM partitions_of('months');
DROP TABLE months;

-- a name of 63 bytes keeps its suffix and whole characters, and differs from the
-- names of other tables' partitions
CREATE TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345 (id bigint) PARTITION BY RANGE (id);
CREATE TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890 (id bigint) PARTITION BY RANGE (id);
SELECT p, octet_length(p::text) FROM snowflake_create_partitions('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345', '2028-10-29', '2028-10-29 02:00', '1 hour') AS p;
SELECT p, octet_length(p::text) FROM snowflake_create_partitions('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890', '2028-10-29', '2028-10-29 02:00', '1 hour') AS p;
SELECT count(*) FROM snowflake_create_partitions('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890', '2028-10-29', '2028-10-29 02:00', '1 hour');
DROP TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345,
           a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890;

-- a ROLLBACK undoes the creation of partitions, here of a temporary table
CREATE TEMP TABLE brief (id bigint) PARTITION BY RANGE (id);
BEGIN;
SELECT snowflake_create_partitions('brief', '2028-01-01', '2028-03-01', '1 month');
ROLLBACK;
SELECT count(*) FROM partitions_of('brief');
-- partitions are created in the parent's schema, not in the first of search_path
SET search_path = pg_catalog;
SELECT public.snowflake_create_partitions('pg_temp.brief', '2028-01-01', '2028-02-01', '1 month') AS made;
SELECT count(*) FROM pg_class WHERE relname = 'brief_2028_01' AND relnamespace = pg_my_temp_schema();
RESET search_path;
DROP TABLE brief;

-- errors
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
CREATE TABLE plain (id bigint);
CREATE TABLE by_list (id bigint) PARTITION BY LIST (id);
CREATE TABLE by_two (id bigint, n int) PARTITION BY RANGE (id, n);
CREATE TABLE by_expression (id bigint) PARTITION BY RANGE ((id + 1));
CREATE TABLE by_int (id int) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('plain', '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('by_list', '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('by_two', '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('by_expression', '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('by_int', '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions(0, '2028-01-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('t', '2028-01-02', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('t', '2028-02-01', '2029-02-01', '1 year');
SELECT snowflake_create_partitions('t', '2028-02-01 01:00', '2029-02-01', '1 day');
SELECT snowflake_create_partitions('t', '2028-02-01 01:00:01', '2029-02-01', '1 hour');
SELECT snowflake_create_partitions('t', '2028-02-01', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('t', '-infinity', '2028-02-01', '1 month');
SELECT snowflake_create_partitions('t', '2028-02-01', 'infinity', '1 month');
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '0');
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '-1 month');
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '1 month 1 day');
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '90 minutes');
SELECT snowflake_create_partitions('t', '2025-01-01', '2028-02-01', '1 hour');
SELECT snowflake_create_partitions('t', NULL, '2028-02-01', '1 hour');
-- the expected output must not depend on the server's layout
\set VERBOSITY sqlstate
SELECT snowflake_create_partitions('t', '1990-01-01', '1991-01-01', '1 year');
SELECT snowflake_create_partitions('t', '2290-01-01', '2291-01-01', '1 year');
SELECT snowflake_create_partitions('t', '2028-01-01', '2291-01-01', '1 year');
SELECT snowflake_create_partitions('t', last_year, last_year + interval '1 day', '1 year')
  FROM date_trunc('year', snowflake_timestamp(snowflake_max_id('infinity'))) AS last_year;
\set VERBOSITY default
-- a partition that would begin before the epoch begins at the epoch
SELECT snowflake_create_partitions('t', '2000-01-01', '2030-01-01', '30 years');
SELECT name FROM partitions_of('t') WHERE exact;
-- another role's table
CREATE ROLE regress_snowflake_stranger;
SET ROLE regress_snowflake_stranger;
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '1 month');
RESET ROLE;
DROP ROLE regress_snowflake_stranger;
BEGIN READ ONLY;
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '1 month');
ROLLBACK;
DROP TABLE t, plain, by_list, by_two, by_expression, by_int;

-- The statements run as the table's owner, whoever calls.
SET allow_in_place_tablespaces = on;
CREATE ROLE regress_snowflake_owner;
CREATE ROLE regress_snowflake_member IN ROLE regress_snowflake_owner;
CREATE ROLE regress_snowflake_reader;
CREATE ROLE regress_snowflake_stranger;
CREATE TABLESPACE regress_snowflake_space LOCATION '';
GRANT CREATE ON TABLESPACE regress_snowflake_space TO regress_snowflake_owner;
CREATE SCHEMA owned AUTHORIZATION regress_snowflake_owner;
CREATE SCHEMA lent;
GRANT CREATE, USAGE ON SCHEMA lent TO regress_snowflake_owner;
GRANT USAGE ON SCHEMA owned TO regress_snowflake_stranger;
SET ROLE regress_snowflake_owner;
ALTER DEFAULT PRIVILEGES IN SCHEMA owned GRANT SELECT ON TABLES TO regress_snowflake_reader;
-- code in an expression runs as the owner or not at all
CREATE FUNCTION owned.planted(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF current_user <> 'regress_snowflake_owner' THEN
    RAISE EXCEPTION 'planted code runs as %', current_user;
  END IF;
  RETURN n;
END $$;
CREATE TABLE owned.log (id bigint PRIMARY KEY, n int) PARTITION BY RANGE (id) TABLESPACE regress_snowflake_space;
CREATE INDEX ON owned.log ((n + owned.planted(1))) WHERE n > owned.planted(2);
CREATE TABLE owned.by_planted (id bigint) PARTITION BY RANGE ((id + owned.planted(3)));
CREATE TABLE lent.log (id bigint) PARTITION BY RANGE (id);
RESET ROLE;
-- a new session has no cached plans of this code
\c
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
SELECT snowflake_create_partitions('owned.log', '2028-01-01', '2028-03-01', '1 month');
SET ROLE regress_snowflake_member;
SELECT snowflake_create_partitions('owned.log', '2028-03-01', '2028-04-01', '1 month');
RESET ROLE;
SELECT relname, relowner::regrole, spcname, has_table_privilege('regress_snowflake_reader', pg_class.oid, 'SELECT') AS readable
  FROM pg_class LEFT JOIN pg_tablespace ON pg_tablespace.oid = reltablespace
 WHERE relnamespace = 'owned'::regnamespace AND relkind = 'r' ORDER BY relname;
-- the session's user and settings have not changed
SELECT current_user = session_user AS same, current_setting('search_path') AS search_path;
-- the session's user and settings have not changed after an error either
\set VERBOSITY terse
SELECT snowflake_create_partitions('owned.by_planted', '2028-01-01', '2028-03-01', '1 month');
SELECT snowflake_drop_partitions('owned.by_planted', '2028-01-01', dry_run => true);
SELECT current_user = session_user AS same, current_setting('search_path') AS search_path;
-- the owner can alter the partitions
SET ROLE regress_snowflake_owner;
ALTER TABLE owned.log ADD more text;
RESET ROLE;
-- the owner, not the caller, needs CREATE on the schema
REVOKE CREATE ON SCHEMA lent FROM regress_snowflake_owner;
\set VERBOSITY sqlstate
SELECT snowflake_create_partitions('lent.log', '2028-01-01', '2028-03-01', '1 month');
\set VERBOSITY terse
GRANT CREATE ON SCHEMA lent TO regress_snowflake_owner;
SET ROLE regress_snowflake_member;
SELECT snowflake_create_partitions('lent.log', '2028-01-01', '2028-03-01', '1 month');
RESET ROLE;
-- a temporary table of another session is refused
SET ROLE regress_snowflake_owner;
CREATE TEMP TABLE brief (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('brief', '2028-01-01', '2028-02-01', '1 month');
RESET ROLE;
SELECT snowflake_create_partitions('brief', '2028-02-01', '2028-03-01', '1 month');
SET ROLE regress_snowflake_owner;
SELECT regexp_replace(statement, 'pg_temp_\d+', 'pg_temp', 'g') FROM snowflake_drop_partitions('brief', '2028-02-01') AS statement;
RESET ROLE;
DROP TABLE brief;

-- Dropping: the partitions that end at or before an instant, in order.
SELECT snowflake_drop_partitions('owned.log', '2028-01-31 23:59:59.9999');
SELECT snowflake_drop_partitions('owned.log', '2028-03-01 00:00:00.0005', dry_run => true);
SELECT count(*) FROM partitions_of('owned.log');
SET ROLE regress_snowflake_stranger;
SELECT snowflake_drop_partitions('owned.log', '2028-03-01', dry_run => true);
SELECT snowflake_drop_partitions('owned.log', '2028-03-01');
SET ROLE regress_snowflake_member;
SELECT snowflake_drop_partitions('owned.log', '2028-02-01');
RESET ROLE;
SELECT name FROM partitions_of('owned.log');
-- only its owner or a superuser can drop a partition of another role
SET ROLE regress_snowflake_owner;
CREATE TABLE owned.by_hand PARTITION OF owned.log FOR VALUES FROM (MINVALUE) TO (snowflake_min_id('2028-01-01'));
RESET ROLE;
ALTER TABLE owned.by_hand OWNER TO CURRENT_USER;
SET ROLE regress_snowflake_owner;
SELECT snowflake_drop_partitions('owned.log', '2028-03-01');
SELECT snowflake_drop_partitions('owned.log', '2028-03-01', dry_run => true);
RESET ROLE;
SELECT snowflake_drop_partitions('owned.log', '2028-03-01');
SELECT relname, relispartition FROM pg_class WHERE relnamespace = 'owned'::regnamespace AND relkind = 'r' ORDER BY relname;
-- a default partition and a partition up to MAXVALUE are not dropped
SET ROLE regress_snowflake_owner;
CREATE TABLE owned.log_rest PARTITION OF owned.log DEFAULT;
CREATE TABLE owned.log_after PARTITION OF owned.log FOR VALUES FROM (snowflake_min_id('2028-04-01')) TO (MAXVALUE);
RESET ROLE;
SELECT snowflake_drop_partitions('owned.log', '2290-01-01');
SELECT snowflake_drop_partitions('owned.log', '2290-01-01');
SELECT relname FROM pg_class WHERE relnamespace = 'owned'::regnamespace AND relispartition AND relkind = 'r' ORDER BY relname;
-- a partition with partitions of its own, in another schema, with a name that
-- needs quotes; PostgreSQL's refusal to drop a partition is passed on
CREATE TABLE "Old ones" (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE lent."Part 1" PARTITION OF "Old ones" FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
CREATE TABLE lent."Part ""1a""" PARTITION OF lent."Part 1" FOR VALUES FROM (0) TO (500);
CREATE TABLE refers (id bigint REFERENCES "Old ones");
INSERT INTO "Old ones" VALUES (1);
INSERT INTO refers VALUES (1);
\set VERBOSITY sqlstate
SELECT snowflake_drop_partitions('"Old ones"', '2028-01-01');
DELETE FROM refers;
CREATE VIEW looks AS SELECT * FROM lent."Part 1";
SELECT snowflake_drop_partitions('"Old ones"', '2028-01-01');
DROP VIEW looks;
\set VERBOSITY terse
SELECT count(*) FROM partitions_of('"Old ones"');
SELECT snowflake_drop_partitions('"Old ones"', '2028-01-01');
SELECT count(*) FROM partitions_of('"Old ones"');
SELECT snowflake_drop_partitions('"Old ones"', '2028-01-01');
DROP TABLE "Old ones", refers;
-- exact to the tick: a partition with one id of the instant's tick is not dropped
CREATE TABLE days_plain (id bigint);
CREATE TABLE edges (id bigint) PARTITION BY RANGE (id);
CREATE TABLE edges_1 PARTITION OF edges FOR VALUES FROM (MINVALUE) TO (snowflake_min_id('2028-01-01') + 1);
SELECT snowflake_drop_partitions('edges', '2028-01-01');
SELECT snowflake_drop_partitions('edges', timestamptz '2028-01-01' + interval '1 us');
-- a dry run takes the locks of a query, and works in a read-only transaction
BEGIN READ ONLY;
SELECT snowflake_drop_partitions('owned.log', '2028-01-01', dry_run => true);
SELECT mode FROM pg_locks WHERE relation = 'owned.log'::regclass AND pid = pg_backend_pid();
SELECT snowflake_drop_partitions('owned.log', '2028-01-01');
ROLLBACK;
-- errors
SELECT snowflake_drop_partitions('edges', 'infinity');
SELECT snowflake_drop_partitions('edges', '-infinity');
SELECT snowflake_drop_partitions('days_plain', '2028-01-01');
SELECT snowflake_drop_partitions('pg_class', '2028-01-01');
SELECT snowflake_drop_partitions(0, '2028-01-01');
SELECT snowflake_drop_partitions('edges', NULL);
DROP TABLE edges, days_plain;
\set VERBOSITY default

-- Each day a superuser creates the partitions of the next three days and drops
-- those older than two days, over the beginning and the end of summer time.
CREATE TABLE days_seen (zone text, day date, partitions int, first timestamptz, last timestamptz, rows bigint);
CREATE FUNCTION roll(zone text, first_day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  day date;
BEGIN
  PERFORM set_config('TimeZone', zone, false);
  EXECUTE 'CREATE TABLE owned.roll (id bigint PRIMARY KEY) PARTITION BY RANGE (id)';
  ALTER TABLE owned.roll OWNER TO regress_snowflake_owner;
  FOR n IN 0 .. 6 LOOP
    day := first_day + n;
    PERFORM snowflake_create_partitions('owned.roll', date_trunc('day', day + interval '9 hours')::timestamptz, day + interval '3 days', '1 day');
    PERFORM snowflake_drop_partitions('owned.roll', (day - 2)::timestamptz);
    -- an id each half hour that is of this day
    INSERT INTO owned.roll SELECT snowflake_encode(t, 0, 0, 0)
      FROM generate_series(day::timestamptz - interval '2 hours', day::timestamptz + interval '27 hours', '30 minutes') AS t
     WHERE t::date = day;
    INSERT INTO days_seen SELECT zone, day, count(*), min(begins), max(ends), (SELECT count(*) FROM owned.roll) FROM partitions_of('owned.roll');
  END LOOP;
  IF EXISTS (SELECT FROM pg_class WHERE relname LIKE 'roll\_%' AND relowner <> 'regress_snowflake_owner'::regrole) THEN
    RAISE 'a partition belongs to somebody else';
  END IF;
  DROP TABLE owned.roll;
END $$;
SELECT roll('Africa/Cairo', '2026-04-20');
SELECT day, partitions, first, last, rows FROM days_seen WHERE zone = 'Africa/Cairo' ORDER BY day;
SELECT roll('HAV5HDT4,M3.2.0/0,M11.1.0/1', '2026-10-29');
SELECT day, partitions, first, last, rows FROM days_seen WHERE zone = 'HAV5HDT4,M3.2.0/0,M11.1.0/1' ORDER BY day;
SET TimeZone = 'UTC';
DROP FUNCTION roll;
DROP TABLE days_seen;

SET client_min_messages = warning;
DROP SCHEMA owned, lent CASCADE;
DROP TABLESPACE regress_snowflake_space;
DROP ROLE regress_snowflake_owner, regress_snowflake_member, regress_snowflake_reader, regress_snowflake_stranger;
DROP FUNCTION partitions_of;
