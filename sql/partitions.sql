-- Range partitions by the time of ids, by the server's own layout, whichever
-- that is.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';

-- the partitions of a table and the instants that their bounds stand for;
-- "exact" is that the bounds are the smallest ids of these
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

-- months, over a leap day; until is within the last
SELECT snowflake_create_partitions('"Odd Schema"."Even""ts"', '2027-12-01', '2028-04-15', '1 month');
SELECT * FROM partitions_of('"Odd Schema"."Even""ts"');
-- those there are are skipped, those that follow are made
BEGIN;
SELECT * FROM snowflake_create_partitions('"Odd Schema"."Even""ts"', '2027-12-01', '2028-05-01', '1 month');
-- reads and writes go on meanwhile
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
-- overlaps, by another step, phase and time zone; nothing is made
SELECT snowflake_create_partitions('events', '2027-11-01', '2029-01-01', '3 months');
SELECT snowflake_create_partitions('events', '2027-12-01', '2028-02-01', '1 day');
SET TimeZone = 'Europe/Berlin';
SELECT snowflake_create_partitions('events', '2028-02-01', '2028-03-01', '1 month');
SET TimeZone = 'UTC';
-- gaps above and below
SELECT snowflake_create_partitions('events', '2028-03-01', '2028-04-01', '1 month');
SELECT snowflake_create_partitions('events', '2027-11-01', '2027-12-01', '1 month');
SELECT name FROM partitions_of('events');
-- on both sides, and a year that follows
SELECT snowflake_create_partitions('events', '2027-12-01', '2028-12-31', '1 month');
SELECT snowflake_create_partitions('events', '2029-01-01', '2030-01-01', '1 year');
-- one is filled in where it is missing
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
-- a name that is taken
CREATE TABLE events_2027_11 ();
\set VERBOSITY terse
SELECT snowflake_create_partitions('events', '2027-10-01', '2027-12-01', '1 month');
\set VERBOSITY default
DROP TABLE events_2027_11;
-- a default partition is none in the way, as long as it holds no such rows
CREATE TABLE events_default PARTITION OF events DEFAULT;
INSERT INTO events SELECT snowflake_min_id('2027-10-10');
SELECT snowflake_create_partitions('events', '2027-11-01', '2027-12-01', '1 month');
\set VERBOSITY terse
SELECT snowflake_create_partitions('events', '2027-10-01', '2027-11-01', '1 month');
\set VERBOSITY default
DROP TABLE events;

-- days of 23 and of 25 hours, and hours: the one that comes twice is b
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
-- a day without midnight does not move those that follow
SET TimeZone = 'Asia/Beirut';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('days', '2024-03-30', '2024-04-03', '1 day');
SELECT * FROM partitions_of('days');
SET TimeZone = 'UTC';
DROP TABLE days, hours;

-- months and years of one length each
CREATE TABLE months (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM snowflake_create_partitions('months', '2024-02-01', '2034-01-15', '1 month');
SELECT count(*), bool_and(exact), bool_and(ends = begins + interval '1 month') AS months,
       bool_and(name = 'months_' || to_char(begins, 'YYYY_MM')) AS names FROM partitions_of('months');
DROP TABLE months;

-- names of 63 bytes keep their end, and whole characters
CREATE TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345 (id bigint) PARTITION BY RANGE (id);
SELECT p, length(p::text) FROM snowflake_create_partitions('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345', '2028-10-29', '2028-10-29 02:00', '1 hour') AS p;
DROP TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345;

-- within a transaction, and undone with it; of a temporary table, too
CREATE TEMP TABLE brief (id bigint) PARTITION BY RANGE (id);
BEGIN;
SELECT snowflake_create_partitions('brief', '2028-01-01', '2028-03-01', '1 month');
ROLLBACK;
SELECT count(*) FROM partitions_of('brief');
-- the schema that comes first in the search_path does not matter
SET search_path = pg_catalog;
SELECT public.snowflake_create_partitions('pg_temp.brief', '2028-01-01', '2028-02-01', '1 month') AS made;
SELECT count(*) FROM pg_class WHERE relname = 'brief_2028_01' AND relnamespace = pg_my_temp_schema();
RESET search_path;
DROP TABLE brief;

-- what cannot be
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
-- its layout is not for the expected output to know
\set VERBOSITY sqlstate
SELECT snowflake_create_partitions('t', '1990-01-01', '1991-01-01', '1 year');
SELECT snowflake_create_partitions('t', '2290-01-01', '2291-01-01', '1 year');
SELECT snowflake_create_partitions('t', '2028-01-01', '2291-01-01', '1 year');
SELECT snowflake_create_partitions('t', last_year, last_year + interval '1 day', '1 year')
  FROM date_trunc('year', snowflake_timestamp(snowflake_max_id('infinity'))) AS last_year;
\set VERBOSITY default
-- an epoch within the first partition is its beginning
SELECT snowflake_create_partitions('t', '2000-01-01', '2030-01-01', '30 years');
SELECT name FROM partitions_of('t') WHERE exact;
-- somebody else's
CREATE ROLE regress_snowflake_stranger;
SET ROLE regress_snowflake_stranger;
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '1 month');
RESET ROLE;
DROP ROLE regress_snowflake_stranger;
BEGIN READ ONLY;
SELECT snowflake_create_partitions('t', '2028-01-01', '2028-02-01', '1 month');
ROLLBACK;
DROP TABLE t, plain, by_list, by_two, by_expression, by_int;
DROP FUNCTION partitions_of;
