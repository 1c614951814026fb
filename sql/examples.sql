-- The statements of README.md and doc/functions.md, word for word, which
-- script/check-docs checks.  The output of the README's differs from run to run,
-- so it is not shown; an error would be.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS snowflake CASCADE;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';

\o /dev/null
CREATE EXTENSION snowflake;   -- in each database that uses it
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
INSERT INTO orders (item) VALUES ('apple'), ('pear');
SELECT id, item, d.* FROM orders, snowflake_decode(id) AS d;

-- the rows of a period, by the primary key's index
SELECT * FROM orders WHERE snowflake_issued_between(id, now() - interval '1 day', now());

-- partitions by time without a time column; begin with the present month
CREATE TABLE visits (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), page text) PARTITION BY RANGE (id);
CALL snowflake_create_partitions('visits', '2026-11-01', '2027-02-01', '1 month');
CALL snowflake_drop_partitions('visits', now() - interval '1 year');

-- how many rows each worker id inserted in each hour
SELECT date_trunc('hour', snowflake_timestamp(id)) AS hour, snowflake_worker_id(id) AS worker_id, count(*)
  FROM orders GROUP BY 1, 2 ORDER BY 1, 2;

-- short links
SELECT snowflake_to_text(2123963931868688386, 58);   -- 5vxJ5t9SsPw

-- an id for an old row: give the node (0, 15) to no server
SELECT snowflake_encode('2026-10-01 12:00+00', 0, 15, 0);
\o

-- what the README shows
SELECT item, issued_at BETWEEN now() - interval '1 min' AND now() AS is_recent
  FROM orders, snowflake_decode(id) ORDER BY id;
SELECT count(*) FROM orders
 WHERE snowflake_issued_between(id, now() - interval '1 day', clock_timestamp() + interval '1 s');
SELECT snowflake_to_text(2123963931868688386, 58), snowflake_from_text('5vxJ5t9SsPw', 58);

CREATE TABLE messages (
    id        bigint PRIMARY KEY,
    issued_at timestamptz GENERATED ALWAYS AS (snowflake_timestamp(id, '2015-01-01 00:00:00+00')) STORED
);
INSERT INTO messages VALUES (175928847299117063) RETURNING *;
SELECT snowflake_timestamp(1551205041815357441, '2011-08-24 21:07:01.721+00', '40/0/13/10');
DROP TABLE orders, visits, messages;
