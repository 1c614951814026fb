-- snowflake_activity(): insert activity over time.  The test works with any
-- snowflake.layout.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
\set SHOW_CONTEXT never

-- An id a minute for three hours, of two nodes in turn, and a row without an id.
CREATE SCHEMA "Odd Schema";
CREATE TABLE "Odd Schema"."Vis""its" ("The id" bigint, n int);
INSERT INTO "Odd Schema"."Vis""its"
SELECT snowflake_encode('2028-10-29 00:00+00'::timestamptz + n * interval '1 minute', 0, n % 2, 3), n
  FROM generate_series(0, 179) AS n;
INSERT INTO "Odd Schema"."Vis""its" VALUES (NULL, 180);
CREATE INDEX ON "Odd Schema"."Vis""its" ("The id");

SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour');
-- since is inclusive, until is exclusive
SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '15 minutes', '2028-10-29 00:14', '2028-10-29 00:46');
SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour', since => '2028-10-29 02:58');
SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour', until => '2028-10-29 00:03');
SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour', '2028-10-30', '2028-10-31');
SELECT sum(ids) FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour', '-infinity', 'infinity');

-- the query uses the index, and only one partition
CREATE TABLE pages (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CALL snowflake_create_partitions('pages', '2028-01-01', '2028-04-01', '1 month');
INSERT INTO pages SELECT snowflake_encode('2028-01-01 00:00+00'::timestamptz + n * interval '1 hour', 0, 0, 0)
  FROM generate_series(0, 24 * 91 - 1) AS n;
ANALYZE pages;
BEGIN;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SELECT * FROM snowflake_activity('pages', 'id', '1 day', '2028-03-01', '2028-03-02');
SELECT relname, pg_stat_get_xact_numscans(indexrelid) > 0 AS scanned,
       pg_stat_get_xact_tuples_returned(indexrelid) < 30 AS no_more
  FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
 WHERE relname LIKE 'pages_%' ORDER BY relname;
COMMIT;

-- days and months follow the calendar of the time zone; all hours are equally
-- long
SET TimeZone = 'Europe/Berlin';
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '1 day', '2028-03-25', '2028-03-28') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '6 hours', '2028-03-26', '2028-03-27') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '1 week', '2028-02-28', '2028-03-20') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '1 month') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '2 months') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('pages', 'id', '1 year') GROUP BY bucket ORDER BY bucket;
-- Where a day has two midnights, it begins at the first.  The zone has the rules
-- of Havana up to 2025.
CREATE TABLE nights AS
SELECT snowflake_encode('2026-10-24 00:00+00'::timestamptz + n * interval '20 minutes', 0, 0, 0) AS id
  FROM generate_series(0, 3 * 24 * 11 - 1) AS n;
SET TimeZone = 'HAV5HDT4,M3.2.0/0,M11.1.0/1';
SELECT bucket, sum(ids) FROM snowflake_activity('nights', 'id', '1 day', '2026-10-31', '2026-11-03') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('nights', 'id', '1 month', '2026-10-31') GROUP BY bucket ORDER BY bucket;
SELECT bucket, sum(ids) FROM snowflake_activity('nights', 'id', '1 hour', '2026-10-31 23:00', '2026-11-01 02:00') GROUP BY bucket ORDER BY bucket;
SET TimeZone = 'Atlantic/Azores';
SELECT bucket, sum(ids) FROM snowflake_activity('nights', 'id', '1 day', '2026-10-24', '2026-10-27') GROUP BY bucket ORDER BY bucket;
-- a day without midnight begins at 01:00
SET TimeZone = 'Africa/Cairo';
TRUNCATE nights;
INSERT INTO nights SELECT snowflake_encode('2026-04-22 22:00+00'::timestamptz + n * interval '20 minutes', 0, 0, 0) FROM generate_series(0, 3 * 71 - 1) AS n;
SELECT bucket, sum(ids) FROM snowflake_activity('nights', 'id', '1 day') GROUP BY bucket ORDER BY bucket;
DROP TABLE nights;
-- a zone that is half an hour off UTC's hours
SET TimeZone = 'Asia/Kolkata';
SELECT bucket, sum(ids) FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour') GROUP BY bucket ORDER BY bucket;
SET TimeZone = 'UTC';

-- the caller's privileges and row security apply
CREATE ROLE regress_snowflake_reader;
SET ROLE regress_snowflake_reader;
\set VERBOSITY terse
SELECT * FROM snowflake_activity('pages', 'id', '1 year');
\set VERBOSITY default
RESET ROLE;
GRANT SELECT ON pages TO regress_snowflake_reader;
ALTER TABLE pages ENABLE ROW LEVEL SECURITY;
CREATE POLICY january ON pages USING (id < snowflake_min_id('2028-02-01 00:00+00'));
SET ROLE regress_snowflake_reader;
SELECT * FROM snowflake_activity('pages', 'id', '1 year');
RESET ROLE;
SELECT sum(ids) FROM snowflake_activity('pages', 'id', '1 year');
REVOKE ALL ON pages FROM regress_snowflake_reader;
DROP ROLE regress_snowflake_reader;

-- no name is looked up in the caller's search_path
CREATE FUNCTION "Odd Schema".date_bin(interval, timestamptz, text) RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
CREATE FUNCTION "Odd Schema".snowflake_timestamp(bigint) RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
SET search_path = "Odd Schema";
SELECT sum(ids), min(bucket) FROM public.snowflake_activity('"Vis""its"', 'The id', '1 hour');
RESET search_path;
-- an overload of the extension's function is not called
CREATE TABLE narrow AS SELECT 1 AS id;
CREATE FUNCTION public.snowflake_timestamp(integer) RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
SELECT bucket IS NULL AS overloaded, ids FROM snowflake_activity('narrow', 'id', '1 year');
DROP FUNCTION public.snowflake_timestamp(integer);
DROP TABLE narrow;
DROP FUNCTION "Odd Schema".date_bin(interval, timestamptz, text);
DROP FUNCTION "Odd Schema".snowflake_timestamp(bigint);
-- errors
SELECT * FROM snowflake_activity('pages', 'id', '0');
SELECT * FROM snowflake_activity('pages', 'id', '-1 hour');
SELECT * FROM snowflake_activity('pages', 'id', '1 month 1 day');
SELECT * FROM snowflake_activity('pages', 'id', '1 day 1 hour');
SELECT * FROM snowflake_activity(NULL, 'id', '1 hour');
SELECT * FROM snowflake_activity('pages', NULL, '1 hour');
SELECT * FROM snowflake_activity('pages', 'id', NULL);
SELECT * FROM snowflake_activity(0, 'id', '1 hour');
SELECT * FROM snowflake_activity('pages', 'idx', '1 hour');
SELECT * FROM snowflake_activity('pg_class', 'relname', '1 hour');
\set VERBOSITY sqlstate
SELECT * FROM snowflake_activity('pages', 'id"; DROP TABLE pages; --', '1 hour');
\set VERBOSITY terse
INSERT INTO "Odd Schema"."Vis""its" VALUES (-1, 0);
SELECT * FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour');
SELECT count(*) FROM snowflake_activity('"Odd Schema"."Vis""its"', 'The id', '1 hour', since => '2028-01-01');
\set VERBOSITY default

DROP TABLE pages, "Odd Schema"."Vis""its";
DROP SCHEMA "Odd Schema";
