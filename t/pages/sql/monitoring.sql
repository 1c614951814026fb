-- doc/monitoring.md: the ids a minute of each node, and leases.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION snowflake_registry;
SET TimeZone = 'UTC';

-- two rows a minute for two hours and for the next half hour, and rows of another node
CREATE TABLE visits (id bigint PRIMARY KEY, n int);
INSERT INTO visits
SELECT snowflake_encode(date_trunc('minute', now()) - n * interval '30 s', 0, 1, 0), n
  FROM generate_series(-60, 240) AS n;
INSERT INTO visits
SELECT snowflake_encode(date_trunc('minute', now()) - n * interval '1 minute', 0, 0, 0), n
  FROM generate_series(-60, 40 * 24 * 60) AS n;
VACUUM ANALYZE visits;

-- the last hour only, by the index
BEGIN;
CREATE VIEW activity AS
-- RUN doc/monitoring.md: SELECT date_trunc
SELECT metric, sum(ids) AS ids, max(ids) AS a_minute FROM activity GROUP BY metric ORDER BY metric;
CREATE FUNCTION plan_has(part text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) SELECT * FROM activity' LOOP
    IF line LIKE part THEN RETURN true; END IF;
  END LOOP;
  RETURN false;
END $$;
SELECT plan_has('%Index Cond: ((id >= %) AND (id <= %');
ROLLBACK;

-- one lease that is held, one that has expired, and one that was released
SELECT count(*) FROM snowflake_registry.configure();
INSERT INTO snowflake_registry.node (datacenter_id, worker_id, holder, name, incarnation, began, fence, top, seen_at, expires_at, released_at, quarantine)
SELECT 1, worker_id, worker_id, '', worker_id, now(), now(), now(), now(), now() + lasts, released_at, quarantine
  FROM snowflake_registry.setting, (VALUES (1, interval '1 hour', NULL), (2, '-1 hour', NULL), (3, '1 hour', now())) AS lease (worker_id, lasts, released_at);
-- RUN doc/monitoring.md: SELECT datacenter_id

DROP TABLE visits;
DROP EXTENSION snowflake_registry;
