-- The examples of doc/functions.md.  script/check-docs checks that each statement
-- of that page is in this file.  If a statement is the same in both, it also has
-- to have the output that the page shows.  Where an output changes from run to
-- run, the statement here checks the form of the output.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_convert;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
SET IntervalStyle = 'postgres';

-- issuing
SELECT snowflake_nextval() \gset
SELECT :snowflake_nextval > 0 AS issued;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
INSERT INTO orders (item) VALUES ('apple') RETURNING id \gset
SELECT clock_timestamp() - snowflake_timestamp(:id) BETWEEN '-1 s' AND '1 min' AS recent;
SELECT count(*), count(DISTINCT id), min(id) > :snowflake_nextval AS later FROM (
SELECT * FROM snowflake_nextvals(3) AS id
) AS ids;
SELECT snowflake_nextval() = snowflake_currval() AS same;

-- decoding by an explicit epoch and layout
SELECT * FROM snowflake_decode(175928847299117063, '2015-01-01 00:00:00+00');
SELECT snowflake_timestamp(1551205041815357441, '2011-08-24 21:07:01.721+00', '40/0/13/10');
CREATE TABLE messages (
    id        bigint PRIMARY KEY,
    issued_at timestamptz GENERATED ALWAYS AS (snowflake_timestamp(id, '2015-01-01 00:00:00+00')) STORED
);
INSERT INTO messages VALUES (175928847299117063) RETURNING *;
SELECT snowflake_timestamp(1, '2015-01-01 00:00:00+00', '41/5/5/13');
SELECT snowflake_min_id('2017-09-15 09:35:04.848+00', '2016-01-01 00:00:00+00'),
       snowflake_max_id('2017-09-15 09:35:04.848+00', '2016-01-01 00:00:00+00');

-- ids as text
SELECT base, snowflake_to_text(2123963931868688386, base)
  FROM unnest(ARRAY[16, 32, 36, 58, 62]) AS base;
SELECT snowflake_from_text('5vxJ5t9SsPw', 58);
SELECT snowflake_from_text('5vxJ5t9SsP0', 58);

-- tables
CREATE TABLE clicks (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), page text) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('clicks', '2026-12-01', '2027-03-01', '1 month');
SELECT snowflake_create_partitions('clicks', '2026-11-01', '2026-12-01', '1 month');
SELECT snowflake_drop_partitions('clicks', '2026-12-01');
CREATE TABLE sales AS
SELECT snowflake_encode(t, 0, 0, 0) AS id
  FROM generate_series(timestamptz '2026-11-19 00:00+00', '2026-11-20 11:59+00', '1 minute') AS t;
CREATE INDEX ON sales (id);
SELECT * FROM snowflake_activity('sales', 'id', '6 hours', since => '2026-11-19 12:00+00') ORDER BY bucket;

-- converting
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
    EXECUTE FUNCTION snowflake_convert.new_tables();
SET snowflake_convert.schemas = 'public';
CREATE TABLE products (id serial PRIMARY KEY, name text);
SELECT column_name, data_type, column_default FROM information_schema.columns WHERE table_name = 'products' ORDER BY ordinal_position;
DROP EVENT TRIGGER snowflakes;
DROP EXTENSION snowflake_convert;

-- views
SELECT datacenter_id, worker_id, layout, tick_interval, ids_per_second, last_instant FROM snowflake_node \gset
SELECT :datacenter_id >= 0 AND :worker_id >= 0 AND :ids_per_second > 0
       AND interval :'tick_interval' > '0' AND timestamptz :'last_instant' > now() AS sound;
SELECT ids_issued, last_id, last_issued_at, sequence_waits, lead FROM snowflake_stat \gset
SELECT :ids_issued >= 6 AND :last_id >= snowflake_currval()
       AND timestamptz :'last_issued_at' = snowflake_timestamp(:last_id)
       AND :sequence_waits >= 0 AND interval :'lead' >= '0' AS sound;
SELECT ids_issued, sequence_waits, clock_waits, last_id FROM snowflake_stat_backend WHERE pid = pg_backend_pid() \gset
SELECT :ids_issued AS ids_issued, :last_id = snowflake_currval() AS last, :sequence_waits >= 0 AND :clock_waits >= 0 AS sound;
SELECT snowflake_stat_reset();
SELECT ids_issued FROM snowflake_stat;

-- decoding by the server's own layout and epoch; the page shows the default ones
SELECT layout <> '41/5/5/12' OR epoch <> '2010-11-04 01:42:54.657+00' AS other_layout
  FROM snowflake_node \gset
\if :other_layout
DROP TABLE orders, messages, clicks, sales, products;
\quit
\endif
SELECT * FROM snowflake_decode(2123963931868688386);
SELECT * FROM snowflake_decode(-1);
SELECT snowflake_timestamp(2123963931868688386);
SELECT snowflake_datacenter_id(2123963931868688386);
SELECT snowflake_worker_id(2123963931868688386);
SELECT snowflake_sequence(2123963931868688386);
SELECT snowflake_format(2123963931868688386);
SELECT snowflake_encode('2026-11-21 02:17:17.356+00', 3, 7, 2);
SELECT snowflake_encode('2026-11-21 02:17:17.356+00', 3, 32, 2);
SELECT snowflake_issued_between(2123963931868688386, '2026-11-21 02:17:17.356+00', '2026-11-21 02:17:17.357+00') AS within,
       snowflake_issued_between(2123963931868688386, '2026-11-21 02:17+00', '2026-11-21 02:17:17.356+00') AS before;
CREATE TABLE logins (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), who text);
EXPLAIN (COSTS OFF) SELECT * FROM logins WHERE snowflake_issued_between(id, now() - interval '1 hour', now());
DROP TABLE logins;
SELECT snowflake_min_id('2026-11-21 02:17:17.356+00'), snowflake_max_id('2026-11-21 02:17:17.356+00');
CREATE TABLE events (
    id   bigint DEFAULT snowflake_nextval(),
    kind text
) PARTITION BY RANGE (id);
CREATE TABLE events_2026_11 PARTITION OF events
    FOR VALUES FROM (snowflake_min_id('2026-11-01 00:00+00')) TO (snowflake_min_id('2026-12-01 00:00+00'));
CREATE TABLE events_2026_12 PARTITION OF events
    FOR VALUES FROM (snowflake_min_id('2026-12-01 00:00+00')) TO (snowflake_min_id('2027-01-01 00:00+00'));
EXPLAIN (COSTS OFF) SELECT * FROM events WHERE id >= snowflake_min_id('2026-12-07 00:00+00');
DROP TABLE orders, messages, clicks, sales, products, events;
