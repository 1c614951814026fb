-- Range partitions by the time of ids.  The test works with any snowflake.layout.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_partitions;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
\set SHOW_CONTEXT never

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

-- each object has a comment, and others may not create objects in the schema
SELECT identity FROM pg_depend, pg_identify_object(classid, objid, 0)
 WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake_partitions')
   AND coalesce(obj_description(objid, classid::regclass::name), '') = '';
SELECT array_agg(privilege_type::text) FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'snowflake_partitions' AND grantee = 0;

CREATE SCHEMA "Odd Schema";
CREATE TABLE "Odd Schema"."Even""ts" (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int) PARTITION BY RANGE (id);

-- months, over a leap day; "until" is within the last partition
CALL snowflake_partitions.create_range('"Odd Schema"."Even""ts"', '2027-12-01', '2028-04-15', '1 month');
SELECT * FROM partitions_of('"Odd Schema"."Even""ts"');
-- existing partitions are skipped, and the following ones are created
BEGIN;
SELECT part, deadline, awaited
  FROM snowflake_partitions.attempt('"Odd Schema"."Even""ts"', false, '2027-12-01', '2028-06-01', '1 month', '1 s', NULL, NULL);
-- the locks allow reads and writes
SELECT mode FROM pg_locks WHERE relation = '"Odd Schema"."Even""ts"'::regclass AND pid = pg_backend_pid();
COMMIT;
CALL snowflake_partitions.create_range('"Odd Schema"."Even""ts"', '2028-02-01', '2028-07-01', '1 month');
-- an id at each side of a bound
INSERT INTO "Odd Schema"."Even""ts"
SELECT id FROM snowflake_min_id('2028-03-01') AS bound, unnest(ARRAY[bound - 1, bound]) AS id
RETURNING tableoid::regclass, snowflake_timestamp(id) < '2028-03-01 00:00:00+00' AS before;
DROP TABLE "Odd Schema"."Even""ts";
DROP SCHEMA "Odd Schema";

CREATE TABLE events (id bigint, n int) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('events', '2028-01-01', '2028-02-01', '1 month');
-- New partitions that overlap existing ones, because the step, the start or the
-- time zone differs, are refused, and no partition is created.
CALL snowflake_partitions.create_range('events', '2027-11-01', '2029-01-01', '3 months');
CALL snowflake_partitions.create_range('events', '2027-12-01', '2028-02-01', '1 day');
SET TimeZone = 'Europe/Berlin';
CALL snowflake_partitions.create_range('events', '2028-02-01', '2028-03-01', '1 month');
SET TimeZone = 'UTC';
-- one snapshot would hide what has changed during a wait for a lock
SET default_transaction_isolation = 'repeatable read';
\set VERBOSITY terse
CALL snowflake_partitions.create_range('events', '2028-02-01', '2028-03-01', '1 month');
CALL snowflake_partitions.drop_before('events', '2028-02-01');
\set VERBOSITY default
RESET default_transaction_isolation;
-- a gap may remain after the existing partitions, or before them
CALL snowflake_partitions.create_range('events', '2028-03-01', '2028-04-01', '1 month');
CALL snowflake_partitions.create_range('events', '2027-11-01', '2027-12-01', '1 month');
SELECT name FROM partitions_of('events');
-- gaps on both sides, and a following year
CALL snowflake_partitions.create_range('events', '2027-12-01', '2028-12-31', '1 month');
CALL snowflake_partitions.create_range('events', '2029-01-01', '2030-01-01', '1 year');
-- a missing partition is created
DROP TABLE events_2028_05;
CALL snowflake_partitions.create_range('events', '2028-01-01', '2028-12-01', '1 month');
-- MINVALUE and MAXVALUE are bounds, too
CREATE TABLE events_before PARTITION OF events FOR VALUES FROM (MINVALUE) TO (0);
\set VERBOSITY terse
CALL snowflake_partitions.create_range('events', '2027-11-01', '2027-12-01', '1 month');
DROP TABLE events_before;
\set VERBOSITY default
CREATE TABLE events_after PARTITION OF events FOR VALUES FROM (snowflake_min_id('2031-01-01')) TO (MAXVALUE);
CALL snowflake_partitions.create_range('events', '2032-01-01', '2033-01-01', '1 year');
CALL snowflake_partitions.create_range('events', '2030-01-01', '2031-01-01', '1 year');
-- a table has the name of a new partition already
CREATE TABLE events_2027_10 ();
\set VERBOSITY terse
CALL snowflake_partitions.create_range('events', '2027-10-01', '2027-12-01', '1 month');
\set VERBOSITY default
DROP TABLE events_2027_10;
-- a default partition is no obstacle unless it has rows of the new partition
CREATE TABLE events_default PARTITION OF events DEFAULT;
INSERT INTO events SELECT snowflake_min_id('2027-10-10');
CALL snowflake_partitions.create_range('events', '2027-11-01', '2027-12-01', '1 month');
\set VERBOSITY terse
CALL snowflake_partitions.create_range('events', '2027-10-01', '2027-11-01', '1 month');
\set VERBOSITY default
DROP TABLE events;

-- Days have 23 or 25 hours.  If an hour comes twice, the second partition of the
-- two has a "b" in its name.
SET TimeZone = 'Europe/Berlin';
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2028-03-25', '2028-03-28', '1 day');
SELECT name, ends - begins AS length, exact FROM partitions_of('days');
CREATE TABLE hours (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('hours', '2028-10-29 01:00', '2028-10-29 04:00', '1 hour');
SELECT name, ends - begins AS length, exact FROM partitions_of('hours');
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2028-10-28', '2028-10-31', '1 day');
SELECT name, ends - begins AS length, exact FROM partitions_of('days');
-- a day without midnight does not shift the following days
SET TimeZone = 'Asia/Beirut';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2024-03-30', '2024-04-03', '1 day');
SELECT * FROM partitions_of('days');
-- Where summer time begins at midnight, the day begins at 01:00: if it is the
-- first day of the call, if it is a later day, and if its partition exists
-- already.  A week that begins on this day begins at 01:00, too.
SET TimeZone = 'Africa/Cairo';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2026-04-24', '2026-04-26', '1 day');
CALL snowflake_partitions.create_range('days', '2026-04-22', '2026-04-27', '1 day');
CALL snowflake_partitions.create_range('days', date_trunc('day', timestamptz '2026-04-24 09:00'), '2026-04-28', '1 day');
SELECT *, ends - begins AS length FROM partitions_of('days');
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2026-04-24', '2026-05-15', '7 days');
SELECT * FROM partitions_of('days');
-- A day with two midnights begins at the first; the caller may give either of the
-- two.  The zone has the rules of Havana up to 2025.
SET TimeZone = 'HAV5HDT4,M3.2.0/0,M11.1.0/1';
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2026-11-01', '2026-11-02', '1 day');
CALL snowflake_partitions.create_range('days', '2026-11-01 00:00-04', '2026-11-03', '1 day');
CALL snowflake_partitions.create_range('days', '2026-10-30', '2026-11-01', '1 day');
CALL snowflake_partitions.create_range('days', '2026-10-31', '2026-11-01 00:00-04', '1 day');
SELECT *, ends - begins AS length FROM partitions_of('days');
\set VERBOSITY terse
CALL snowflake_partitions.create_range('days', '2026-11-01 00:30-05', '2026-11-05', '1 day');
CALL snowflake_partitions.create_range('days', '2026-11-01 00:00-04', '2026-11-01 00:00-05', '1 day');
\set VERBOSITY default
-- a month that begins with a day of two midnights
DROP TABLE days;
CREATE TABLE days (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('days', '2026-10-01', '2026-12-01', '1 month');
CALL snowflake_partitions.create_range('days', '2026-11-01', '2027-01-01', '1 month');
SELECT * FROM partitions_of('days');
SET TimeZone = 'UTC';
DROP TABLE days, hours;

-- steps of several months and years
CREATE TABLE months (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('months', '2024-02-01', '2034-01-15', '1 month');
SELECT count(*), bool_and(exact), bool_and(ends = begins + interval '1 month') AS months,
       bool_and(name = 'months_' || to_char(begins, 'YYYY_MM')) AS names FROM partitions_of('months');
DROP TABLE months;

-- a name of 63 bytes keeps its suffix and whole characters, and differs from the
-- names of other tables' partitions
CREATE TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345 (id bigint) PARTITION BY RANGE (id);
CREATE TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890 (id bigint) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345', '2028-10-29', '2028-10-29 02:00', '1 hour');
CALL snowflake_partitions.create_range('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890', '2028-10-29', '2028-10-29 02:00', '1 hour');
CALL snowflake_partitions.create_range('a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890', '2028-10-29', '2028-10-29 02:00', '1 hour');
DROP TABLE a_name_that_is_so_long_that_no_date_can_be_appended_to_it_12345,
           a_name_that_is_so_long_that_no_date_can_be_appended_to_it_67890;

-- the statements make partitions in a transaction of the caller's, here of a
-- temporary table; the procedure needs its own
CREATE TEMP TABLE brief (id bigint) PARTITION BY RANGE (id);
BEGIN;
\set ECHO none
SELECT unnest(statements) FROM snowflake_partitions.missing('brief', '2028-01-01', '2028-03-01', '1 month') \gexec
\set ECHO all
SELECT name FROM partitions_of('brief');
SELECT part FROM snowflake_partitions.missing('brief', '2028-01-01', '2028-03-01', '1 month');
CALL snowflake_partitions.create_range('brief', '2028-03-01', '2028-04-01', '1 month');
ROLLBACK;
SELECT count(*) FROM partitions_of('brief');
-- partitions are created in the parent's schema, not in the first of search_path
SET search_path = pg_catalog;
SET client_min_messages = warning;
CALL snowflake_partitions.create_range('pg_temp.brief', '2028-01-01', '2028-02-01', '1 month');
RESET client_min_messages;
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
CALL snowflake_partitions.create_range('plain', '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('by_list', '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('by_two', '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('by_expression', '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('by_int', '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range(0, '2028-01-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('t', '2028-01-02', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('t', '2028-02-01', '2029-02-01', '1 year');
CALL snowflake_partitions.create_range('t', '2028-02-01 01:00', '2029-02-01', '1 day');
CALL snowflake_partitions.create_range('t', '2028-02-01 01:00:01', '2029-02-01', '1 hour');
CALL snowflake_partitions.create_range('t', '2028-02-01', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('t', '-infinity', '2028-02-01', '1 month');
CALL snowflake_partitions.create_range('t', '2028-02-01', 'infinity', '1 month');
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '0');
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '-1 month');
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '1 month 1 day');
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '90 minutes');
CALL snowflake_partitions.create_range('t', '2025-01-01', '2028-02-01', '1 hour');
CALL snowflake_partitions.create_range('t', NULL, '2028-02-01', '1 hour');
-- the expected output must not depend on the server's layout
\set VERBOSITY sqlstate
CALL snowflake_partitions.create_range('t', '1990-01-01', '1991-01-01', '1 year');
CALL snowflake_partitions.create_range('t', '2290-01-01', '2291-01-01', '1 year');
CALL snowflake_partitions.create_range('t', '2028-01-01', '2291-01-01', '1 year');
SELECT part
  FROM date_trunc('year', snowflake_timestamp(snowflake_max_id('infinity'))) AS last_year,
       snowflake_partitions.missing('t', last_year, last_year + interval '1 day', '1 year');
\set VERBOSITY default
-- a partition that would begin before the epoch begins at the epoch
CALL snowflake_partitions.create_range('t', '2000-01-01', '2030-01-01', '30 years');
SELECT name FROM partitions_of('t') WHERE exact;
-- another role's table
CREATE ROLE regress_snowflake_stranger;
\set VERBOSITY terse
SET SESSION AUTHORIZATION regress_snowflake_stranger;
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '1 month');
RESET SESSION AUTHORIZATION;
\set VERBOSITY default
DROP ROLE regress_snowflake_stranger;
BEGIN READ ONLY;
CALL snowflake_partitions.create_range('t', '2028-01-01', '2028-02-01', '1 month');
ROLLBACK;
DROP TABLE t, plain, by_list, by_two, by_expression, by_int;

-- A partition is what CREATE TABLE ... PARTITION OF makes.
SET allow_in_place_tablespaces = on;
SELECT current_user AS super \gset
-- The roles connect, by password where the server asks for one.
\set password none
\getenv password PGPASSWORD
CREATE ROLE regress_snowflake_owner LOGIN PASSWORD :'password';
CREATE ROLE regress_snowflake_member LOGIN IN ROLE regress_snowflake_owner PASSWORD :'password';
CREATE ROLE regress_snowflake_reader LOGIN PASSWORD :'password';
CREATE TABLESPACE regress_snowflake_space LOCATION '';
GRANT CREATE ON TABLESPACE regress_snowflake_space TO regress_snowflake_owner;
CREATE SCHEMA owned AUTHORIZATION regress_snowflake_owner;
CREATE SCHEMA lent;
GRANT CREATE, USAGE ON SCHEMA lent TO regress_snowflake_owner;
GRANT USAGE ON SCHEMA owned TO regress_snowflake_reader;
\c - regress_snowflake_owner
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
ALTER DEFAULT PRIVILEGES IN SCHEMA owned GRANT SELECT ON TABLES TO regress_snowflake_reader;
CREATE TABLE owned.log (
  dropped int,
  id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
  n int NOT NULL DEFAULT 1 CHECK (n > 0),
  twice int GENERATED ALWAYS AS (n * 2) STORED,
  counted bigint GENERATED ALWAYS AS IDENTITY,
  t text COLLATE "C",
  other bigint REFERENCES owned.log
) PARTITION BY RANGE (id) TABLESPACE regress_snowflake_space;
ALTER TABLE owned.log DROP dropped, ALTER t SET STORAGE EXTERNAL, ALTER n SET STATISTICS 50, ENABLE ROW LEVEL SECURITY;
CREATE INDEX ON owned.log (lower(t)) WHERE n > 5;
CREATE STATISTICS owned.log_stat ON n, t FROM owned.log;
CREATE FUNCTION owned.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER logged AFTER INSERT ON owned.log FOR EACH ROW EXECUTE FUNCTION owned.nothing();
COMMENT ON COLUMN owned.log.n IS 'a number';
GRANT INSERT ON owned.log TO regress_snowflake_reader;
CALL snowflake_partitions.create_range('owned.log', '2028-01-01', '2028-03-01', '1 month');
CREATE TABLE owned.by_hand PARTITION OF owned.log FOR VALUES FROM (snowflake_min_id('2028-03-01')) TO (snowflake_min_id('2028-04-01'));
CREATE VIEW pg_temp.shapes AS
SELECT oid AS tab, 'table' AS what, to_jsonb(c) - '{oid,relname,reltype,relfilenode,relpartbound,relfrozenxid,relminmxid,reltoastrelid}'::text[] AS shape FROM pg_class AS c
UNION ALL SELECT attrelid, 'column', to_jsonb(a) - '{attrelid,attoptions}'::text[] FROM pg_attribute AS a WHERE attnum > 0
UNION ALL SELECT adrelid, 'default', to_jsonb(pg_get_expr(adbin, adrelid)) FROM pg_attrdef
UNION ALL SELECT conrelid, 'constraint', to_jsonb(c) - '{oid,conname,conrelid,conindid,conparentid}'::text[] FROM pg_constraint AS c WHERE contype <> 'n'
UNION ALL SELECT indrelid, 'index', to_jsonb(i) - '{indexrelid,indrelid}'::text[] FROM pg_index AS i
UNION ALL SELECT tgrelid, 'trigger', to_jsonb(t) - '{oid,tgrelid,tgname,tgparentid,tgconstraint,tgconstrindid}'::text[] FROM pg_trigger AS t
UNION ALL SELECT objoid, 'comment', to_jsonb(description) FROM pg_description
UNION ALL SELECT stxrelid, 'statistics', to_jsonb(s) FROM pg_statistic_ext AS s;
-- How many triggers a foreign key has differs between minor versions.
SELECT what, count(*) > 0 AS has_some, count(*) - 2 * (SELECT count(*) FROM (
         SELECT shape FROM pg_temp.shapes AS a WHERE tab = 'owned.log_2028_01'::regclass AND a.what = s.what INTERSECT ALL
         SELECT shape FROM pg_temp.shapes AS b WHERE tab = 'owned.by_hand'::regclass AND b.what = s.what) AS same) AS different
  FROM pg_temp.shapes AS s WHERE tab IN ('owned.log_2028_01'::regclass, 'owned.by_hand'::regclass)
 GROUP BY what ORDER BY what;
DROP VIEW pg_temp.shapes;
SELECT relname, spcname, has_table_privilege('regress_snowflake_reader', c.oid, 'SELECT') AS readable
  FROM pg_class AS c LEFT JOIN pg_tablespace AS t ON t.oid = reltablespace
 WHERE relnamespace = 'owned'::regnamespace AND relkind = 'r' ORDER BY relname;

-- Only the owner may call the functions: others would run the owner's code.  After
-- SET ROLE, that code can go back to the session's role, so a superuser is refused,
-- and a member of the owner is not.  (The tests connect for that: SET SESSION
-- AUTHORIZATION is refused like SET ROLE.)
\set VERBOSITY terse
\c - regress_snowflake_member
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
CALL snowflake_partitions.drop_before('owned.log', '2028-02-01');
\c - regress_snowflake_reader
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
CALL snowflake_partitions.drop_before('owned.log', '2028-02-01', dry_run => true);
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
\set VERBOSITY default
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
\set VERBOSITY terse
SET ROLE regress_snowflake_owner;
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
RESET ROLE;
SET SESSION AUTHORIZATION regress_snowflake_owner;
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
RESET SESSION AUTHORIZATION;
\c - regress_snowflake_member
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
SET ROLE regress_snowflake_owner;
CALL snowflake_partitions.drop_before('owned.log', '2000-01-01');
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
-- all partitions, and all tables that foreign keys connect, are of one owner
ALTER TABLE owned.by_hand OWNER TO regress_snowflake_reader;
\c - regress_snowflake_owner
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
CALL snowflake_partitions.drop_before('owned.log', '2028-02-01', dry_run => true);
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
ALTER TABLE owned.by_hand OWNER TO regress_snowflake_owner;
CREATE TABLE refers (id bigint REFERENCES owned.log);
CREATE TABLE refs (id int PRIMARY KEY);
ALTER TABLE owned.log ADD ref int REFERENCES refs;
\c - regress_snowflake_owner
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
\set VERBOSITY default
CALL snowflake_partitions.drop_before('owned.log', '2028-02-01');
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
DROP TABLE refers;
\c - regress_snowflake_owner
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
CALL snowflake_partitions.create_range('owned.log', '2028-04-01', '2028-05-01', '1 month');
\set VERBOSITY terse
ALTER TABLE owned.log DROP ref;

-- Dropping: the partitions that end at or before an instant, in order.
CALL snowflake_partitions.drop_before('owned.log', '2028-01-31 23:59:59.9999');
CALL snowflake_partitions.drop_before('owned.log', '2028-03-01 00:00:00.0005', dry_run => true);
CALL snowflake_partitions.drop_before('owned.log', '2028-02-01');
SELECT name FROM partitions_of('owned.log');
-- a default partition and a partition up to MAXVALUE are not dropped
CREATE TABLE owned.log_rest PARTITION OF owned.log DEFAULT;
CREATE TABLE owned.log_after PARTITION OF owned.log FOR VALUES FROM (snowflake_min_id('2028-04-01')) TO (MAXVALUE);
CALL snowflake_partitions.drop_before('owned.log', '2290-01-01');
CALL snowflake_partitions.drop_before('owned.log', '2290-01-01');
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'owned.log'::regclass ORDER BY inhrelid::regclass::text;
-- a dry run takes no locks, and works in a read-only transaction
BEGIN READ ONLY;
CALL snowflake_partitions.drop_before('owned.log', '2028-01-01', dry_run => true);
SELECT mode FROM pg_locks WHERE relation = 'owned.log'::regclass AND pid = pg_backend_pid();
COMMIT;
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
-- a partition with partitions of its own, in another schema, with a name that
-- needs quotes; PostgreSQL's refusal to drop a partition is passed on
CREATE TABLE "Old ones" (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE lent."Part 1" PARTITION OF "Old ones" FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
CREATE TABLE lent."Part ""1a""" PARTITION OF lent."Part 1" FOR VALUES FROM (0) TO (500);
CREATE TABLE refers (id bigint REFERENCES "Old ones");
INSERT INTO "Old ones" VALUES (1);
INSERT INTO refers VALUES (1);
\set VERBOSITY sqlstate
CALL snowflake_partitions.drop_before('"Old ones"', '2028-01-01');
DELETE FROM refers;
CREATE VIEW looks AS SELECT * FROM lent."Part 1";
CALL snowflake_partitions.drop_before('"Old ones"', '2028-01-01');
DROP VIEW looks;
\set VERBOSITY terse
SELECT count(*) FROM partitions_of('"Old ones"');
CALL snowflake_partitions.drop_before('"Old ones"', '2028-01-01');
SELECT count(*) FROM partitions_of('"Old ones"');
CALL snowflake_partitions.drop_before('"Old ones"', '2028-01-01');
DROP TABLE "Old ones", refers;
-- exact to the tick: a partition with one id of the instant's tick is not dropped
CREATE TABLE days_plain (id bigint);
CREATE TABLE edges (id bigint) PARTITION BY RANGE (id);
CREATE TABLE edges_1 PARTITION OF edges FOR VALUES FROM (MINVALUE) TO (snowflake_min_id('2028-01-01') + 1);
CALL snowflake_partitions.drop_before('edges', '2028-01-01');
CALL snowflake_partitions.drop_before('edges', timestamptz '2028-01-01' + interval '1 us');
-- errors
CALL snowflake_partitions.drop_before('edges', 'infinity');
CALL snowflake_partitions.drop_before('edges', '-infinity');
CALL snowflake_partitions.drop_before('days_plain', '2028-01-01');
CALL snowflake_partitions.drop_before('pg_class', '2028-01-01');
CALL snowflake_partitions.drop_before(0, '2028-01-01');
CALL snowflake_partitions.drop_before('edges', NULL);
CALL snowflake_partitions.drop_before('edges', '2028-01-01 00:00+00', lock_timeout => '0');
CALL snowflake_partitions.create_range('edges', '2028-01-01', '2028-02-01', '1 day', lock_timeout => '-1 s');
DROP TABLE edges, days_plain;
\set VERBOSITY default

-- Each day the owner creates the partitions of the next three days and drops
-- those older than two days, over the beginning and the end of summer time.
CREATE TABLE days_seen (zone text, day date, partitions int, first timestamptz, last timestamptz, rows bigint);
CREATE PROCEDURE roll(zone text, first_day date) LANGUAGE plpgsql AS $$
DECLARE
  day date;
BEGIN
  PERFORM set_config('TimeZone', zone, false);
  EXECUTE 'CREATE TABLE owned.roll (id bigint PRIMARY KEY) PARTITION BY RANGE (id)';
  FOR n IN 0 .. 6 LOOP
    day := first_day + n;
    CALL snowflake_partitions.create_range('owned.roll', date_trunc('day', day + interval '9 hours')::timestamptz, day + interval '3 days', '1 day');
    CALL snowflake_partitions.drop_before('owned.roll', (day - 2)::timestamptz);
    -- an id each half hour that is of this day
    INSERT INTO owned.roll SELECT snowflake_encode(t, 0, 0, 0)
      FROM generate_series(day::timestamptz - interval '2 hours', day::timestamptz + interval '27 hours', '30 minutes') AS t
     WHERE t::date = day;
    INSERT INTO days_seen SELECT zone, day, count(*), min(begins), max(ends), (SELECT count(*) FROM owned.roll) FROM partitions_of('owned.roll');
  END LOOP;
  DROP TABLE owned.roll;
END $$;
GRANT ALL ON days_seen TO regress_snowflake_owner;
\c - regress_snowflake_owner
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
CALL roll('Africa/Cairo', '2026-04-20');
SELECT day, partitions, first, last, rows FROM days_seen WHERE zone = 'Africa/Cairo' ORDER BY day;
CALL roll('HAV5HDT4,M3.2.0/0,M11.1.0/1', '2026-10-29');
SELECT day, partitions, first, last, rows FROM days_seen WHERE zone = 'HAV5HDT4,M3.2.0/0,M11.1.0/1' ORDER BY day;
\c - :super
SET TimeZone = 'UTC'; SET DateStyle = 'ISO';
DROP PROCEDURE roll;
DROP TABLE days_seen;

-- In zones whose days have begun at other times than midnight, the clock shows
-- the day's midnight or later when it begins, and an earlier time before.
CREATE FUNCTION odd_days(zone text, OUT odd int, OUT wrong int) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('TimeZone', zone, true);
  SELECT count(*) FILTER (WHERE start::time <> '00:00' OR start <> day::timestamptz),
         count(*) FILTER (WHERE start::timestamp < day OR EXISTS (
           SELECT FROM generate_series(start - interval '1 us', start - interval '26 hours', '-10 minutes') AS t WHERE t::timestamp >= day))
    INTO odd, wrong
    FROM generate_series(timestamp '2010-12-01', '2024-01-01', '1 day') AS day, snowflake_partitions.day_start(day) AS start
   WHERE (day + interval '2 days')::timestamptz - (day - interval '2 days')::timestamptz <> interval '4 days';
END $$;
SELECT count(*) FILTER (WHERE odd > 5) > 10 AS are_odd, sum(wrong) AS wrong
  FROM unnest('{Africa/Cairo,Africa/Casablanca,America/Asuncion,America/Campo_Grande,America/Cuiaba,America/Havana,America/Nuuk,
                America/Santiago,America/Sao_Paulo,America/Scoresbysund,Antarctica/Casey,Asia/Amman,Asia/Beirut,Asia/Damascus,Asia/Gaza,
                Asia/Hebron,Asia/Pyongyang,Asia/Tehran,Atlantic/Azores,Australia/Lord_Howe,Pacific/Apia,Pacific/Fiji}'::text[]) AS zone,
       odd_days(zone);
DROP FUNCTION odd_days;
SET TimeZone = 'UTC';

SET client_min_messages = warning;
DROP SCHEMA owned, lent CASCADE;
DROP TABLESPACE regress_snowflake_space;
DROP ROLE regress_snowflake_owner, regress_snowflake_member, regress_snowflake_reader;
DROP FUNCTION partitions_of;

-- The extensions need no schema public, and outlast it.  A name is cut between bytes where
-- the database's encoding has no characters.
SELECT current_database() AS database \gset
DROP DATABASE IF EXISTS regress_snowflake_ascii;
CREATE DATABASE regress_snowflake_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C';
\c regress_snowflake_ascii
SET client_min_messages = warning;
CREATE SCHEMA ids;
CREATE EXTENSION snowflake SCHEMA ids;
CREATE EXTENSION snowflake_convert;
DROP SCHEMA public;
CREATE EXTENSION snowflake_partitions;
CREATE EXTENSION snowflake_registry;
SET search_path = ids;
DO $$ BEGIN
  EXECUTE format('CREATE TABLE %I (id bigint PRIMARY KEY) PARTITION BY RANGE (id)', repeat(convert_from('\xe9', 'SQL_ASCII'), 50));
END $$;
SELECT right(name, 20)
  FROM pg_class, snowflake_partitions.name_of(oid, 'day', '2026-01-01 00:00') AS name
 WHERE relkind = 'p';
\c :database
DROP DATABASE regress_snowflake_ascii;
