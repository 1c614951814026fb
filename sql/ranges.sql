-- A range of time is a range of the primary key: plans of such queries.
-- The test works with any snowflake.layout.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';

-- a row a minute for the last 40 days, and an hour ahead
CREATE TABLE visits (id bigint PRIMARY KEY, n int);
INSERT INTO visits
SELECT snowflake_encode(date_trunc('minute', now()) - n * interval '1 minute', 0, 0, 0), n
  FROM generate_series(-60, 40 * 24 * 60) AS n;
VACUUM ANALYZE visits;

-- Returns a plan without its constants, and without the line by which PostgreSQL
-- 19 names the scan that a Result replaces.
CREATE FUNCTION plan(query text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    CONTINUE WHEN line LIKE '%Replaces: Scan on %';
    RETURN NEXT regexp_replace(line, '''\d+''::bigint', 'CONST', 'g');
  END LOOP;
END $$;

-- the plan uses the index: a bound is folded to a constant, or is evaluated once
-- if it depends on now()
SELECT plan($$ SELECT * FROM visits WHERE id >= snowflake_min_id('2030-01-01 00:00+00') AND id < snowflake_min_id('2030-01-01 01:00+00') $$);
SELECT plan($$ SELECT * FROM visits WHERE id > snowflake_max_id('2035-01-01 00:00+00') $$);
SELECT plan($$ SELECT * FROM visits WHERE id >= snowflake_min_id(now() - interval '1 hour') $$);
SELECT plan($$ SELECT * FROM visits ORDER BY id DESC LIMIT 10 $$);
-- not folded to a constant: NULL, and an instant that depends on the session
SELECT plan($$ SELECT * FROM visits WHERE id >= snowflake_min_id(NULL) $$);
SELECT plan($$ SELECT * FROM visits WHERE id >= snowflake_min_id(date '2035-01-01') $$);
-- the constant is what the function returns
SELECT snowflake_min_id('2030-05-06 07:08:09.123456+00') = min_id AND snowflake_max_id('2030-05-06 07:08:09.123456+00') = max_id AS same
  FROM (SELECT snowflake_min_id(t) AS min_id, snowflake_max_id(t) AS max_id
          FROM (SELECT timestamptz '2030-05-06 07:08:09.123456+00' AS t OFFSET 0) AS o) AS at_run_time;

-- snowflake_issued_between() is inlined to two bounds of the index, whether its
-- arguments are constants, now() or a subquery; with NULL it selects no row
SELECT plan($$ SELECT * FROM visits WHERE snowflake_issued_between(id, '2030-01-01 00:00+00', '2030-01-01 01:00+00') $$);
SELECT plan($$ SELECT * FROM visits WHERE snowflake_issued_between(id, now() - interval '1 hour', now()) $$);
SELECT count(*) FILTER (WHERE line LIKE '%Index Cond: ((id >= %) AND (id <= %') AS inlined
  FROM plan($$ SELECT * FROM visits AS v WHERE snowflake_issued_between(v.id, (SELECT now()), 'infinity') $$) AS line;
SELECT count(*) FILTER (WHERE line LIKE '%One-Time Filter: false') AS never
  FROM plan($$ SELECT * FROM visits WHERE snowflake_issued_between(id, NULL, '2030-01-01 01:00+00') $$) AS line;
-- "since" is inclusive and "until" exclusive, to the microsecond; an id's time is
-- the beginning of its tick
SELECT of, snowflake_issued_between(id, at, at + interval '1 ms') AS own,
       snowflake_issued_between(id, at - interval '1 us', at) AS before,
       snowflake_issued_between(id, at + interval '1 us', at + interval '1 ms') AS within,
       snowflake_issued_between(id, at, at + interval '1 us') AS first_us,
       snowflake_issued_between(id, at, at) AS nothing,
       snowflake_issued_between(id, at + interval '1 ms', at) AS backwards,
       snowflake_issued_between(id, '-infinity', 'infinity') AS always
  FROM (VALUES ('first', snowflake_min_id('2028-05-06 07:08:09.123+00')), ('last', snowflake_max_id('2028-05-06 07:08:09.123+00'))) AS v(of, id),
       CAST('2028-05-06 07:08:09.123+00' AS timestamptz) AS at;
-- at the ends of the span, beyond them, and for numbers that are no ids
SELECT of, snowflake_issued_between(id, first_instant, last_instant) AS span,
       snowflake_issued_between(id, '-infinity', first_instant) AS before,
       snowflake_issued_between(id, '1900-01-01', first_instant + interval '1 us') AS first_tick,
       snowflake_issued_between(id, last_instant, '3000-01-01') AS last_tick,
       snowflake_issued_between(id, '-infinity', 'infinity') AS always,
       snowflake_issued_between(id, 'infinity', '-infinity') AS never
  FROM snowflake_node(), LATERAL (VALUES ('none', -1), ('first', 0), ('last', snowflake_max_id('infinity') - 1)) AS v(of, id);
-- a NULL argument has the effect that it has on BETWEEN
SELECT snowflake_issued_between(NULL, '-infinity', 'infinity') IS NULL AS id,
       snowflake_issued_between(0, NULL, 'infinity') IS NULL AS since,
       snowflake_issued_between(0, '-infinity', NULL) IS NULL AS until,
       snowflake_issued_between(0, NULL, '-infinity') AS before_all_the_same;
-- snowflake_issued_between() selects the rows that its definition by
-- snowflake_timestamp() selects
SELECT count(*) AS wrong
  FROM visits, (VALUES (interval '3 days 7 us', interval '2 days -3 us'), ('1 min', '0'), ('-20 min', '-30 min')) AS v(since, until)
 WHERE snowflake_issued_between(id, now() - since, now() - until)
       <> (snowflake_timestamp(id) >= now() - since AND snowflake_timestamp(id) < now() - until);

-- estimates are within a factor of two, and the rows are those of the range
CREATE FUNCTION rows_of(query text, OUT estimated float8, OUT actual float8)
LANGUAGE plpgsql AS $$
DECLARE
  plan json;
BEGIN
  EXECUTE 'EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ' || query INTO plan;
  estimated := plan -> 0 -> 'Plan' ->> 'Plan Rows';
  actual := plan -> 0 -> 'Plan' ->> 'Actual Rows';
END $$;
SELECT since, until, actual,
       estimated BETWEEN actual / 2 AND actual * 2 AS close
  FROM (VALUES (interval '1 hour', interval '0'), ('6 hours', '0'), ('1 day', '12 hours'),
               ('10 days', '9 days'), ('30 days', '0'), ('20 days', '19 days 20 hours')) AS v(since, until),
       LATERAL rows_of(format($$
         SELECT * FROM visits
          WHERE id >= snowflake_min_id(date_trunc('minute', now()) - interval %L)
            AND id < snowflake_min_id(date_trunc('minute', now()) - interval %L) $$, since, until));
-- an estimate by constants is within a factor of two, too
SELECT actual, estimated BETWEEN actual / 2 AND actual * 2 AS close
  FROM rows_of(format($$
         SELECT * FROM visits WHERE id >= snowflake_min_id(%L) AND id < snowflake_min_id(%L) $$,
         date_trunc('minute', now()) - interval '5 days', date_trunc('minute', now()) - interval '4 days'));
-- an estimate by the parameters of a prepared statement is within a factor of two
SET plan_cache_mode = force_custom_plan;
PREPARE span(timestamptz, timestamptz) AS
  SELECT * FROM visits WHERE id >= snowflake_min_id($1) AND id < snowflake_min_id($2);
SELECT actual, estimated BETWEEN actual / 2 AND actual * 2 AS close
  FROM rows_of($$ EXECUTE span(date_trunc('minute', now()) - interval '1 day', date_trunc('minute', now())) $$);
RESET plan_cache_mode;

-- partitions are pruned at plan time by constants, and at run time by now()
CREATE TABLE events (id bigint, n int) PARTITION BY RANGE (id);
CREATE TABLE events_old PARTITION OF events
  FOR VALUES FROM (0) TO (snowflake_min_id('2025-01-01 00:00+00'));
CREATE TABLE events_2025_01 PARTITION OF events
  FOR VALUES FROM (snowflake_min_id('2025-01-01 00:00+00')) TO (snowflake_min_id('2025-02-01 00:00+00'));
CREATE TABLE events_2025_02 PARTITION OF events
  FOR VALUES FROM (snowflake_min_id('2025-02-01 00:00+00')) TO (snowflake_min_id('2025-03-01 00:00+00'));
CREATE TABLE events_new PARTITION OF events
  FOR VALUES FROM (snowflake_min_id('2025-03-01 00:00+00')) TO (MAXVALUE);
SELECT plan($$ SELECT * FROM events WHERE id >= snowflake_min_id('2025-01-10 00:00+00') AND id < snowflake_min_id('2025-01-11 00:00+00') $$);
SELECT plan($$ SELECT * FROM events WHERE id >= snowflake_min_id('2025-01-10 00:00+00') AND id <= snowflake_max_id('2025-02-11 00:00+00') $$);
SELECT plan($$ DELETE FROM events WHERE id < snowflake_min_id('2025-01-01 00:00+00') $$);
SELECT plan($$ SELECT * FROM events WHERE id >= snowflake_min_id(now()) $$);
SELECT plan($$ SELECT * FROM events WHERE snowflake_issued_between(id, '2025-01-10 00:00+00', '2025-01-11 00:00+00') $$);
-- a range that ends at partition bounds scans no other partition
SELECT plan($$ SELECT * FROM events WHERE snowflake_issued_between(id, '2025-01-01 00:00+00', '2025-03-01 00:00+00') $$);
SELECT plan($$ SELECT * FROM events WHERE snowflake_issued_between(id, '-infinity', '2025-02-01 00:00+00') $$);
SELECT plan($$ SELECT * FROM events WHERE snowflake_issued_between(id, now() - interval '1 hour', now()) $$);
-- a generic plan prunes at run time, too
SET plan_cache_mode = force_generic_plan;
PREPARE of_events(timestamptz) AS SELECT * FROM events WHERE id >= snowflake_min_id($1);
SELECT plan($$ EXECUTE of_events('2025-02-10 00:00+00') $$);
SELECT plan($$ EXECUTE of_events('2025-03-10 00:00+00') $$);
PREPARE between_of_events(timestamptz, timestamptz) AS SELECT * FROM events WHERE snowflake_issued_between(id, $1, $2);
SELECT plan($$ EXECUTE between_of_events('2025-01-10 00:00+00', '2025-02-10 00:00+00') $$);
RESET plan_cache_mode;
-- an init plan prunes while the query runs
CREATE FUNCTION never_executed(query text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  line text;
  lines bigint := 0;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || query LOOP
    lines := lines + (line LIKE '%events_%(never executed)')::int;
  END LOOP;
  RETURN lines;
END $$;
SELECT never_executed('SELECT * FROM events WHERE id >= (SELECT snowflake_min_id(now()))'),
       never_executed('SELECT * FROM events WHERE snowflake_issued_between(id, (SELECT now()), (SELECT now() + interval ''1 day''))') AS between_them,
       never_executed('SELECT * FROM events') AS of_all;

-- Although the planner folds the functions, they are not IMMUTABLE: an index
-- would keep the bounds of an old layout.
CREATE INDEX ON visits (n) WHERE id >= snowflake_min_id('2025-01-01 00:00+00');
ALTER TABLE visits ADD COLUMN bound bigint GENERATED ALWAYS AS (snowflake_min_id('2025-01-01 00:00+00')) STORED;

-- folding checks the privilege to call the function
CREATE ROLE regress_snowflake_outsider;
REVOKE EXECUTE ON FUNCTION snowflake_min_id(timestamptz) FROM PUBLIC;
SET ROLE regress_snowflake_outsider;
SELECT snowflake_min_id('2025-01-01 00:00+00');
RESET ROLE;
GRANT EXECUTE ON FUNCTION snowflake_min_id(timestamptz) TO PUBLIC;
DROP ROLE regress_snowflake_outsider;

DEALLOCATE span;
DEALLOCATE of_events;
DEALLOCATE between_of_events;
DROP TABLE visits, events;
DROP FUNCTION plan, rows_of, never_executed;
