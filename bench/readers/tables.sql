-- The tables of one sample, and the readers.
SET client_min_messages = warning;
DROP TABLE IF EXISTS outbox, consumer, bench_delivered, bench_run, bench_unrelated CASCADE;
DROP FUNCTION IF EXISTS read_outbox, read_by_server;

CREATE TABLE outbox (
    position bigint NOT NULL UNIQUE DEFAULT snowflake_nextval(),
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    event    text NOT NULL
) PARTITION BY RANGE (position);
CREATE INDEX ON outbox (xid);
SELECT format('CREATE TABLE outbox_first PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (%s)', border),
       format('CREATE TABLE outbox_second PARTITION OF outbox FOR VALUES FROM (%s) TO (MAXVALUE)', border)
  FROM snowflake_min_id(now() + interval '10 s') AS border \gexec
CREATE TABLE consumer (name text PRIMARY KEY, position bigint NOT NULL DEFAULT 0);
INSERT INTO consumer (name) VALUES ('reader');
CREATE TABLE bench_delivered (position bigint, xid xid, at timestamptz);
CREATE TABLE bench_run (is_over boolean);
INSERT INTO bench_run VALUES (false);
CREATE TABLE bench_unrelated (id bigint DEFAULT snowflake_nextval());

-- Writes straight into a partition.
CREATE OR REPLACE FUNCTION bench_write_partition() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_first (event) VALUES ('of the first partition');
EXCEPTION WHEN check_violation THEN
    INSERT INTO outbox_second (event) VALUES ('of the second partition');
END
$$;

-- Reads once.
CREATE OR REPLACE PROCEDURE bench_read_once(reader text) LANGUAGE plpgsql AS $$
DECLARE
    since bigint := (SELECT position FROM consumer);
    until bigint;
BEGIN
    CASE reader
    WHEN 'snowflake_horizon(''outbox'')' THEN
        INSERT INTO bench_delivered
        SELECT position, NULL, clock_timestamp() FROM read_outbox('reader', 1000);
    WHEN 'snowflake_horizon()' THEN
        INSERT INTO bench_delivered
        SELECT position, NULL, clock_timestamp() FROM read_by_server('reader', 1000);
    WHEN 'pg_snapshot_xmin' THEN
        until := pg_snapshot_xmin(pg_current_snapshot())::text;
        INSERT INTO bench_delivered
        SELECT position, NULL, clock_timestamp() FROM outbox
         WHERE xid >= since::text::xid8 AND xid < until::text::xid8 ORDER BY xid, position;
        UPDATE consumer SET position = until;
    WHEN 'SKIP LOCKED' THEN
        WITH taken AS (
            DELETE FROM outbox WHERE position IN (
                SELECT position FROM outbox ORDER BY position LIMIT 1000 FOR UPDATE SKIP LOCKED)
            RETURNING position, xmin)
        INSERT INTO bench_delivered SELECT position, xmin, clock_timestamp() FROM taken;
    WHEN 'max(position)' THEN
        WITH new AS (
            INSERT INTO bench_delivered
            SELECT position, NULL, clock_timestamp() FROM outbox
             WHERE position > since ORDER BY position LIMIT 1000
            RETURNING position)
        UPDATE consumer SET position = (SELECT max(position) FROM new) WHERE EXISTS (SELECT FROM new);
    END CASE;
END
$$;

-- Reads every 10 ms until the run is over, and then for another second.
CREATE OR REPLACE PROCEDURE bench_read(reader text) LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT (SELECT is_over FROM bench_run) LOOP
        CALL bench_read_once(reader);
        COMMIT;
        PERFORM pg_sleep(0.01);
        COMMIT;
    END LOOP;
    FOR n IN 1..100 LOOP
        CALL bench_read_once(reader);
        COMMIT;
        PERFORM pg_sleep(0.01);
        COMMIT;
    END LOOP;
END
$$;

-- A queue's rows are gone when they are delivered.
CREATE VIEW bench_result AS
SELECT count(*) AS rows,
       count(*) FILTER (WHERE times = 0) AS missed,
       sum(greatest(times - 1, 0)) AS twice,
       round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)) AS p50,
       round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)) AS p99,
       round(max(ms)) AS largest
  FROM (SELECT count(d.position) AS times,
               extract(epoch FROM min(d.at) - max(pg_xact_commit_timestamp(coalesce(d.xid, o.xmin))))::float * 1000 AS ms
          FROM (SELECT position, xmin FROM outbox) AS o FULL JOIN bench_delivered AS d USING (position)
         GROUP BY position) AS row;
