-- Round trips for random layouts and fields.  The test composes ids by plain
-- arithmetic, without the extension's functions.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';
SELECT setseed(0.415512) IS NOT NULL AS seeded;

CREATE TEMP TABLE layouts AS
SELECT n, ticks, datacenter, worker, sequence, tick_us,
       format('%s/%s/%s/%s', ticks, datacenter, worker, sequence)
         || CASE tick_us WHEN 1000 THEN '' WHEN 1000000 THEN '@1s'
                         ELSE '@' || tick_us || 'us' END AS layout,
       timestamptz '1990-01-01 00:00+00' + random() * interval '40 years' AS epoch
  FROM (SELECT n,
               20 + floor(random() * 22)::int AS ticks,
               floor(random() * 7)::int AS datacenter,
               floor(random() * 7)::int AS worker,
               floor(random() * 8)::int AS sequence,
               (ARRAY[1, 7, 1000, 10000, 1000000])[1 + floor(random() * 5)::int]::bigint AS tick_us
          FROM generate_series(1, 1000) AS n) AS widths;

-- each layout with random fields, and with every field at its smallest and
-- largest
CREATE TEMP TABLE ids AS
SELECT l.*, f.*,
       (((tick << datacenter) + datacenter_id << worker)
         + worker_id << sequence) + sequence_no AS id
  FROM layouts AS l
 CROSS JOIN LATERAL (
       SELECT floor(random() * (1::bigint << ticks))::bigint AS tick,
              floor(random() * (1 << datacenter))::int AS datacenter_id,
              floor(random() * (1 << worker))::int AS worker_id,
              floor(random() * (1 << sequence))::int AS sequence_no
         FROM generate_series(1, 10)
        WHERE n > 0             -- each layout gets random numbers of its own
        UNION ALL
       VALUES (0::bigint, 0, 0, 0)
        UNION ALL
       SELECT (1::bigint << ticks) - 1, (1 << datacenter) - 1,
              (1 << worker) - 1, (1 << sequence) - 1) AS f;
SELECT count(*), count(DISTINCT layout) > 900 AS many_layouts,
       count(DISTINCT tick) > 10000 AS many_ticks FROM ids;

SELECT count(*) AS wrong
  FROM ids, snowflake_decode(id, epoch, layout) AS d
 WHERE (d.datacenter_id, d.worker_id, d.sequence) IS DISTINCT FROM
       (ids.datacenter_id, ids.worker_id, ids.sequence_no)
    OR (extract(epoch FROM d.issued_at) - extract(epoch FROM epoch)) * 1000000
       IS DISTINCT FROM tick::numeric * tick_us;

-- the tick's smallest and largest id, from its first and its last microsecond
SELECT count(*) AS wrong
  FROM ids,
       snowflake_timestamp(id, epoch, layout) AS first,
       LATERAL (SELECT first + (tick_us - 1) * interval '00:00:00.000001' AS last) AS l,
       LATERAL (SELECT tick << datacenter + worker + sequence AS lowest,
                       (tick + 1 << datacenter + worker + sequence) - 1 AS highest) AS b
 WHERE snowflake_min_id(first, epoch, layout) <> lowest
    OR snowflake_min_id(last, epoch, layout) <> lowest
    OR snowflake_max_id(first, epoch, layout) <> highest
    OR snowflake_max_id(last, epoch, layout) <> highest;

-- the largest id of a layout plus 1 is no id of the layout
CREATE FUNCTION is_refused(id bigint, epoch timestamptz, layout text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM snowflake_timestamp(id, epoch, layout);
  RETURN false;
EXCEPTION WHEN numeric_value_out_of_range THEN
  RETURN true;
END $$;
SELECT count(*) AS accepted
  FROM layouts,
       LATERAL (SELECT 1::bigint << ticks + datacenter + worker + sequence AS id) AS past
 WHERE NOT is_refused(id, epoch, layout) OR is_refused(id - 1, epoch, layout);
DROP FUNCTION is_refused;
