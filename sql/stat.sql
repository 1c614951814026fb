-- This server's node and counters.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;

-- the configuration, and the values derived from it
SELECT datacenter_id = current_setting('snowflake.datacenter_id')::int AS datacenter,
       worker_id = current_setting('snowflake.worker_id')::int AS worker,
       worker_id_source,
       snowflake_max_id(now()) = snowflake_max_id(now(), epoch, layout)
       AND (layout = nullif(current_setting('snowflake.layout'), '')) IS NOT FALSE AS layout,
       snowflake_timestamp(0) = epoch
       AND (epoch = nullif(current_setting('snowflake.epoch'), '')::timestamptz) IS NOT FALSE AS epoch,
       tick_interval, first_instant = epoch AS first,
       last_instant = snowflake_timestamp(snowflake_max_id('infinity')) AS last,
       ids_per_second = 1000 * (1 + snowflake_sequence(snowflake_max_id(now()))) AS ids_per_second,
       in_recovery
  FROM snowflake_node();

-- the counters of this session, before it has issued ids and afterwards
SELECT count(*) FROM snowflake_stat_backend() WHERE pid = pg_backend_pid();
SELECT snowflake_stat_reset();
SELECT ids_issued, sequence_waits, sequence_wait_time, clock_regressions, max_regression,
       clock_wait_time, clock_refusals, stats_reset BETWEEN now() - interval '1 min' AND now() AS reset
  FROM snowflake_stat();
SELECT count(snowflake_nextval()) FROM generate_series(1, 100);
SELECT count(*) FROM snowflake_nextvals(1000);
SELECT ids_issued, last_id = snowflake_currval() AS last_id,
       last_issued_at = snowflake_timestamp(last_id) AS last_issued_at,
       clock_regressions, clock_refusals, lead
  FROM snowflake_stat();
SELECT ids_issued, last_id = snowflake_currval() AS last_id, clock_waits
  FROM snowflake_stat_backend() WHERE pid = pg_backend_pid();
-- the mark is ahead of the last id
SELECT high_water_mark > snowflake_timestamp(snowflake_currval()) AS ahead FROM snowflake_node();

-- a call waits when all ids of a tick are issued, and each wait is counted once;
-- t/ids_waits.pl tests the same with ticks that a slow machine spends, too
SELECT snowflake_stat_reset();
CREATE TEMP TABLE issued AS SELECT id FROM snowflake_nextvals(50000) AS id;
SELECT ids_issued,
       sequence_waits <= (SELECT 1 + count(*) FROM issued -- 1: the tick that the session was in
                           WHERE snowflake_sequence(id) = snowflake_sequence(snowflake_max_id(now()))) AS waited,
       sequence_wait_time BETWEEN sequence_waits * interval '1 us' AND interval '1 min' AS time_waited,
       clock_wait_time
  FROM snowflake_stat();

-- the totals keep the counts of a session that has ended
SELECT ids_issued AS before FROM snowflake_stat() \gset
\c
SELECT ids_issued >= :before AS kept FROM snowflake_stat();
SELECT count(*) FROM snowflake_stat_backend() WHERE pid = pg_backend_pid();
SELECT snowflake_currval();
SELECT snowflake_nextval() > 0 AS issued;
SELECT ids_issued, last_id = snowflake_currval() AS last_id
  FROM snowflake_stat_backend() WHERE pid = pg_backend_pid();

-- the extension has no views: tools that own a schema drop those that they do
-- not know
SELECT count(*) AS views FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid = 'pg_class'::regclass
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake');

-- other users see the counters, but not each other's sessions, and cannot reset
CREATE ROLE snowflake_stat_user;
SET ROLE snowflake_stat_user;
SELECT count(*) = 1 AS one FROM snowflake_stat() WHERE ids_issued > 0;
SELECT count(*) AS others FROM snowflake_stat_backend() WHERE pid <> pg_backend_pid();
SELECT count(*) AS own FROM snowflake_stat_backend();
SELECT snowflake_stat_reset();
RESET ROLE;
DROP ROLE snowflake_stat_user;
