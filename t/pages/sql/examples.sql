-- README.md and doc/functions.md.  The output of the README's statements differs
-- from run to run, so it is not shown; an error would be.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS snowflake CASCADE;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';

CREATE TABLE customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text);
\o /dev/null
-- RUN README.md: CREATE EXTENSION snowflake;
-- RUN README.md: -- the rows of a period
\o

-- what the README shows
INSERT INTO customers (name) VALUES ('Ann') RETURNING id = snowflake_currval();
SELECT item, issued_at BETWEEN now() - interval '1 min' AND now() AS is_recent
  FROM orders, snowflake_decode(id) ORDER BY id;
SELECT count(*) FROM orders
 WHERE snowflake_issued_between(id, now() - interval '1 day', clock_timestamp() + interval '1 s');
SELECT snowflake_to_text(2123963931868688386, 58), snowflake_from_text('5vxJ5t9SsPw', 58);

-- RUN doc/functions.md: CREATE TABLE messages
INSERT INTO messages VALUES (175928847299117063) RETURNING *;
SELECT snowflake_timestamp(1551205041815357441, '2011-08-24 21:07:01.721+00', '40/0/13/10');

-- ids for old rows, of which four are of two times
CREATE TABLE old_orders (number integer PRIMARY KEY, created_at timestamptz NOT NULL, id bigint UNIQUE);
INSERT INTO old_orders VALUES (3, '2025-10-01 12:00:00.5+00'), (1, '2025-10-01 12:00+00'), (2, '2025-10-01 12:00+00'), (4, '2025-10-01 12:00:00.5+00');
-- RUN doc/functions.md: UPDATE old_orders
SELECT number, snowflake_format(id) FROM old_orders ORDER BY id;

-- what a role needs after a REVOKE, and no more than that
CREATE ROLE shop LOGIN;
GRANT ALL ON orders TO shop;
CREATE SCHEMA site AUTHORIZATION shop;
CREATE TABLE site.visits (LIKE visits INCLUDING ALL) PARTITION BY RANGE (id);
ALTER TABLE site.visits OWNER TO shop;
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public, snowflake_partitions FROM PUBLIC;
\o /dev/null
-- RUN doc/functions.md: GRANT EXECUTE ON FUNCTION snowflake_nextval()
\o
\set owner :USER
\c - shop
INSERT INTO orders (item) VALUES ('plum');
COPY orders (item) FROM stdin;
quince
\.
SELECT item FROM orders WHERE snowflake_issued_between(id, now() - interval '1 hour', 'infinity') ORDER BY id;
CALL snowflake_partitions.create_range('site.visits', '2026-11-01', '2026-11-03', '1 day');
CALL snowflake_partitions.drop_before('site.visits', '2026-11-02');
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'site.visits'::regclass;
SELECT 1::snowflake, 2::smallint::snowflake, 3::numeric::snowflake, 4::real::snowflake, 5::float8::snowflake;
SELECT snowflake_nextvals(1);
\c - :owner
SET client_min_messages = warning;
DROP SCHEMA site CASCADE;
DROP EXTENSION snowflake CASCADE;
DROP TABLE orders, visits, messages, old_orders, customers;
DROP ROLE shop;
