-- doc/json.md.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE SCHEMA json;
SET search_path = json, public;
CREATE TABLE customers (id bigint PRIMARY KEY);
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), customer bigint REFERENCES customers, related bigint[], item text);
INSERT INTO customers VALUES (2124881502633201000);
INSERT INTO orders VALUES (2124881502633201664, 2124881502633201000, '{2124881502633201665}', 'apple'), (2124881502633201665, NULL, NULL, 'pear');

\o /dev/null
-- RUN doc/json.md: SELECT json_agg(id)
\o
-- RUN doc/json.md: CREATE VIEW api_orders
SELECT item FROM api_orders WHERE to_json(id)::text = '"2124881502633201665"';

-- the key's index, by a client's string, in joins, ranges and ORDER BY
SET enable_seqscan = off;
PREPARE by_id AS SELECT item FROM api_orders WHERE id = $1;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE by_id('2124881502633201665');
EXPLAIN (COSTS OFF) SELECT item FROM api_orders WHERE id < '2124881502633201665' ORDER BY id DESC LIMIT 1;
EXPLAIN (COSTS OFF) SELECT item FROM api_orders JOIN customers AS c ON c.id = customer WHERE api_orders.id = '2124881502633201664';
RESET enable_seqscan;
RESET plan_cache_mode;

-- what can be written through the view
\set VERBOSITY terse
INSERT INTO api_orders (id, item) VALUES ('5', 'plum');
UPDATE api_orders SET customer = NULL;
\set VERBOSITY default
UPDATE api_orders SET item = 'grape' WHERE id = '2124881502633201665' RETURNING id, item;
DELETE FROM api_orders WHERE id = '2124881502633201665' RETURNING id;
INSERT INTO orders (item) VALUES ('plum') RETURNING to_json(id::snowflake)::text ~ '^"\d+"$' AS is_string;

-- security_invoker: the role that asks needs the table's rights
CREATE ROLE reader_of_json;
GRANT USAGE ON SCHEMA json TO reader_of_json;
GRANT SELECT ON api_orders TO reader_of_json;
SET ROLE reader_of_json;
SELECT item FROM api_orders;
RESET ROLE;
DROP OWNED BY reader_of_json;
DROP ROLE reader_of_json;

DELETE FROM orders WHERE item = 'plum';
-- RUN doc/json.md: SELECT json_build_object
SELECT json_agg(o) FROM newest_orders() AS o;
SELECT json_build_object('id', max(id)::snowflake, 'number', max(id)) FROM orders;

-- a column of the type; what uses it goes first
\set VERBOSITY terse
ALTER TABLE orders ALTER id TYPE snowflake;
\set VERBOSITY default
DROP VIEW api_orders;
DROP FUNCTION newest_orders();
CREATE TABLE documents AS SELECT id, to_jsonb(o) AS document FROM orders AS o;
-- RUN doc/json.md: SET lock_timeout
RESET lock_timeout;
ALTER TABLE documents ALTER id TYPE snowflake;
INSERT INTO documents SELECT id, to_jsonb(o) FROM orders AS o;

-- documents of one row: half of them are found, but by ->>
SELECT count(*) FILTER (WHERE document @> jsonb_build_object('id', id)) AS contain_string,
       count(*) FILTER (WHERE document -> 'id' = to_jsonb(id::bigint)) AS equal_number,
       count(*) FILTER (WHERE document @@ '$.id == 2124881502633201664') AS by_jsonpath,
       count(*) FILTER (WHERE (document ->> 'id')::bigint = id) AS by_text
  FROM documents;
\set VERBOSITY terse
SELECT (document -> 'id')::bigint FROM documents;

-- arrays and ranges
SELECT id <@ int8range(1, 5) FROM orders;
SELECT array_agg(id) = array_agg(id::bigint) FROM orders;
SELECT array_agg(id) @> related FROM orders GROUP BY related;
SELECT array_agg(id) && related FROM orders GROUP BY related;
\set VERBOSITY default
SELECT id::bigint <@ int8range(1, 5) AS range, array_agg(id::bigint) @> related AS contains, pg_typeof(array_agg(id)) FROM orders GROUP BY id;

\set VERBOSITY sqlstate
CREATE TABLE parts (id bigint) PARTITION BY RANGE (id);
ALTER TABLE parts ALTER id TYPE snowflake;
\set VERBOSITY default

DROP SCHEMA json CASCADE;
