-- The statements of README.md and doc/functions.md, word for word, which
-- script/check-docs checks.  The output of the README's differs from run to run,
-- so it is not shown; an error would be.  Roles have a name here that no role of a
-- server in use has.
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
-- id snowflake if browsers read it: later it cannot change
CREATE TABLE visits (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), page text) PARTITION BY RANGE (id);
CALL snowflake_create_partitions('visits', '2026-11-01', '2027-02-01', '1 month');
CALL snowflake_drop_partitions('visits', now() - interval '1 year');

-- how many rows each worker id inserted in each hour
SELECT date_trunc('hour', snowflake_timestamp(id)) AS hour, snowflake_worker_id(id) AS worker_id, count(*)
  FROM orders GROUP BY 1, 2 ORDER BY 1, 2;

-- short links
SELECT snowflake_to_text(2123963931868688386, 58);   -- 5vxJ5t9SsPw

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

-- ids for old rows, of which four are of two times
CREATE TABLE old_orders (number integer PRIMARY KEY, created_at timestamptz NOT NULL, id bigint UNIQUE);
INSERT INTO old_orders VALUES (3, '2025-10-01 12:00:00.5+00'), (1, '2025-10-01 12:00+00'), (2, '2025-10-01 12:00+00'), (4, '2025-10-01 12:00:00.5+00');
UPDATE old_orders SET id = new.id
  FROM (SELECT number, snowflake_encode(created_at, 0, 15, (row_number() OVER tick)::integer - 1) AS id
          FROM old_orders WINDOW tick AS (PARTITION BY snowflake_min_id(created_at) ORDER BY created_at, number)) AS new
 WHERE old_orders.number = new.number;
SELECT number, snowflake_format(id) FROM old_orders ORDER BY id;

-- what a role needs after a REVOKE, and no more than that
-- The role connects, by password where the server asks for one.
\set password none
\getenv password PGPASSWORD
CREATE ROLE regress_snowflake_shop LOGIN PASSWORD :'password';
GRANT ALL ON orders TO regress_snowflake_shop;
CREATE SCHEMA shop AUTHORIZATION regress_snowflake_shop;
CREATE TABLE shop.visits (LIKE visits INCLUDING ALL) PARTITION BY RANGE (id);
ALTER TABLE shop.visits OWNER TO regress_snowflake_shop;
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public FROM PUBLIC;
\o /dev/null
\set ECHO none
GRANT EXECUTE ON FUNCTION snowflake_nextval(), snowflake_copy_nextval() TO regress_snowflake_shop;   -- the second for COPY in batches
GRANT EXECUTE ON FUNCTION snowflake_issued_between(bigint, timestamptz, timestamptz),
    snowflake_first_id_since(timestamptz), snowflake_last_id_before(timestamptz) TO regress_snowflake_shop;
-- the procedures for partitions
SELECT format('GRANT EXECUTE ON ROUTINE %s TO regress_snowflake_shop', oid::regprocedure) FROM pg_proc
 WHERE proname ~ '^snowflake_(.*partition|day_start$|encode$|min_id$|last_id_before$)' \gexec
\set ECHO all
\o
\set owner :USER
\c - regress_snowflake_shop
INSERT INTO orders (item) VALUES ('plum');
COPY orders (item) FROM stdin;
quince
\.
SELECT item FROM orders WHERE snowflake_issued_between(id, now() - interval '1 hour', 'infinity') ORDER BY id;
CALL snowflake_create_partitions('shop.visits', '2026-11-01', '2026-11-03', '1 day');
CALL snowflake_drop_partitions('shop.visits', '2026-11-02');
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'shop.visits'::regclass;
SELECT snowflake_nextvals(1);
\c - :owner
SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
DROP EXTENSION snowflake CASCADE;
DROP TABLE orders, visits, messages, old_orders;
DROP ROLE regress_snowflake_shop;
