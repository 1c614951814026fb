-- doc/partitions.md: jobs that create partitions ahead of the clock and drop those
-- behind it, a query that watches them, and the transaction that mends the table
-- after a time without jobs.
-- Notices name partitions by their days.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_partitions;
\set VERBOSITY terse

-- In this time zone it is noon, so that no day ends during the test.
SELECT set_config('TimeZone', '<noon>' || extract(hour FROM now() AT TIME ZONE 'UTC') - 12, false) <> '' AS it_is_noon;

-- pg_cron's function, with which a test says when the jobs run
CREATE SCHEMA cron;
CREATE TABLE cron.job (jobid serial PRIMARY KEY, jobname text, command text);
CREATE FUNCTION cron.schedule(job_name text, schedule text, command text) RETURNS int
LANGUAGE sql AS $$ INSERT INTO cron.job (jobname, command) VALUES (job_name, command) RETURNING jobid $$;

-- RUN doc/partitions.md: CREATE TABLE visits
-- RUN doc/partitions.md: SELECT cron.schedule
CREATE VIEW watched AS
-- RUN doc/partitions.md: SELECT EXISTS

-- The days of the first and of the last partition, counted from today.
CREATE VIEW days AS
SELECT min(day) - current_date AS first, max(day) - current_date AS last, count(*)
  FROM pg_inherits, to_date(substring(inhrelid::regclass::text, '\d{4}_\d\d_\d\d$'), 'YYYY_MM_DD') AS day
 WHERE inhparent = 'visits'::regclass AND day IS NOT NULL;
-- A row of so many days ago.
CREATE FUNCTION visit(days int) RETURNS void LANGUAGE sql AS $$
INSERT INTO visits VALUES (snowflake_min_id(now() - days * interval '1 day'), days || ' days ago') $$;

SELECT * FROM days;

-- A day after the last runs, the jobs drop the oldest partition and create one more.
CALL snowflake_partitions.drop_before('visits', now() + interval '1 month');
CALL snowflake_partitions.create_range('visits', date_trunc('day', now() - interval '31 days'), now() + interval '6 days', '1 day');
SELECT * FROM days;
SELECT command FROM cron.job ORDER BY jobid \gexec
SELECT * FROM days;
SELECT visit(0);
SELECT in_default, date_trunc('day', ready_for) AS ready_for FROM watched;

-- The jobs were off for longer than partitions were ready.  New rows are in the
-- default partition, and so is one that is older than all partitions.
CALL snowflake_partitions.drop_before('visits', now() + interval '1 month');
CALL snowflake_partitions.create_range('visits', date_trunc('day', now() - interval '50 days'), now() - interval '13 days', '1 day');
SELECT visit(days_ago) FROM unnest(ARRAY[60, 40, 5, 0]) AS days_ago;
SELECT * FROM days;
SELECT in_default, date_trunc('day', ready_for) AS ready_for FROM watched;
SELECT command FROM cron.job WHERE jobname = 'visits: create' \gexec

-- The transaction creates the partitions, moves rows there, and leaves what is
-- older than 30 days in the default partition.
SELECT id AS last_id FROM visits ORDER BY id DESC LIMIT 1 \gset
\o /dev/null
-- RUN doc/partitions.md: CALL snowflake_partitions.drop_before
\o
SELECT * FROM days;
SELECT page, tableoid = 'visits_default'::regclass AS in_default, id = :last_id AS is_last FROM visits ORDER BY id;
SELECT command FROM cron.job ORDER BY jobid \gexec
SELECT * FROM days;

DROP VIEW watched, days;
DROP TABLE visits;
DROP FUNCTION visit;
DROP SCHEMA cron CASCADE;
