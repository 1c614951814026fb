-- Issuing, on a server with a worker id: ids as a column DEFAULT.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
-- snowflake_currval() fails, because this session has not issued an id yet
SELECT snowflake_currval();

CREATE TABLE orders (
  id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
  item text
);
INSERT INTO orders (item) VALUES ('apple'), ('pear'), ('plum');
INSERT INTO orders (item) VALUES ('fig') RETURNING id = snowflake_currval() AS is_currval;
INSERT INTO orders (item) SELECT 'nut ' || n FROM generate_series(1, 20000) AS n;
COPY orders (item) FROM STDIN;
date
lime
\.
-- ids are in the order of the inserts, of this node, and issued during this run
SELECT count(*), count(DISTINCT id),
       bool_and(snowflake_worker_id(id) = current_setting('snowflake.worker_id')::int) AS worker,
       bool_and(snowflake_datacenter_id(id) = current_setting('snowflake.datacenter_id')::int) AS datacenter,
       bool_and(snowflake_timestamp(id) BETWEEN now() - interval '10 minutes' AND clock_timestamp()) AS time
  FROM orders;
SELECT item FROM orders WHERE item NOT LIKE 'nut%' ORDER BY id;
-- later rows have larger ids: the heap's order is the order of the ids
SELECT count(*) AS out_of_order
  FROM (SELECT id, lag(id) OVER (ORDER BY ctid) AS previous FROM orders) AS o
 WHERE id <= previous;
-- no id in the future
SELECT count(*) AS ahead FROM generate_series(1, 10000)
 WHERE snowflake_timestamp(snowflake_nextval()) > clock_timestamp();

-- the second name is the same function
SELECT snowflake_nextval() < snowflake_id() AS is_increasing, snowflake_currval() < snowflake_id() AS is_next;

-- many ids at once
SELECT count(*), count(DISTINCT id) FROM snowflake_nextvals(100000) AS id;
SELECT count(*) AS out_of_order
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS previous
          FROM snowflake_nextvals(100000) WITH ORDINALITY AS v(id, n)) AS o
 WHERE id <= previous;
SELECT count(*) FROM snowflake_nextvals(0);
SELECT count(*) FROM snowflake_nextvals(NULL);
SELECT snowflake_nextvals(-1);
SELECT max(id) = snowflake_currval() AS is_currval FROM snowflake_nextvals(1000) AS id;
-- the planner knows how many
CREATE FUNCTION rows_of(call text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  plan json;
BEGIN
  EXECUTE 'EXPLAIN (FORMAT JSON) SELECT FROM ' || call INTO plan;
  RETURN plan -> 0 -> 'Plan' ->> 'Plan Rows';
END $$;
SELECT call, rows_of(call) FROM unnest(ARRAY['snowflake_nextvals(5)', 'snowflake_nextvals(1 + 99999)', 'snowflake_nextvals(0)', 'snowflake_nextvals(NULL)',
  'snowflake_nextvals(-1)', 'snowflake_nextvals(extract(century FROM now())::int)', '(VALUES (3)) AS v(n), snowflake_nextvals(n * 4)']) AS call;
DROP FUNCTION rows_of;

-- unlike currval(), the last id outlives DISCARD, which a pool of connections runs
-- between two clients
SELECT snowflake_currval() AS last \gset
DISCARD SEQUENCES;
SELECT snowflake_currval() = :last AS is_currval;

-- a call issues all its ids at once, whenever its rows are fetched, and a later
-- call gets a larger id
SELECT count(*) AS rows, max(a) < min(b) AS in_order,
       count(*) FILTER (WHERE a <= previous_a OR b <= previous_b) AS out_of_order
  FROM (SELECT a, b, lag(a) OVER (ORDER BY n) AS previous_a, lag(b) OVER (ORDER BY n) AS previous_b
          FROM (SELECT snowflake_nextvals(10000) AS a, snowflake_nextval() AS b,
                       generate_series(1, 10000) AS n) AS v) AS o;
BEGIN;
DECLARE many CURSOR FOR SELECT snowflake_nextvals(3) AS id;
FETCH 1 FROM many \gset first_
SELECT snowflake_nextval() AS later \gset
FETCH 1 FROM many \gset second_
SELECT :first_id < :second_id AND :second_id < :later AS in_order, snowflake_currval() = :later AS is_currval;
COMMIT;

-- in a parallel plan the leader issues the ids, and a worker issues none
CREATE TABLE many_rows AS SELECT n FROM generate_series(1, 50000) AS n;
ALTER TABLE many_rows SET (parallel_workers = 2);
ANALYZE many_rows;
CREATE FUNCTION mislabelled() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS
  'BEGIN RETURN snowflake_nextval(); END';
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
EXPLAIN (COSTS OFF) SELECT snowflake_nextval() AS id FROM many_rows;
SELECT count(DISTINCT id), max(id) = snowflake_currval() AS is_currval
  FROM (SELECT snowflake_nextval() AS id FROM many_rows) AS ids;
\set SHOW_CONTEXT never
SELECT count(mislabelled()) FROM many_rows;
\echo :LAST_ERROR_SQLSTATE
\set SHOW_CONTEXT errors
-- the settings also force plans that need no worker into one
SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT snowflake_nextval() < snowflake_nextval() AS increasing;
INSERT INTO orders (item) SELECT 'forced ' || n FROM generate_series(1, 1000) AS n;
SELECT count(*), max(id) = snowflake_currval() AS is_currval FROM orders WHERE item LIKE 'forced %';
RESET ALL;
DROP FUNCTION mislabelled;

-- no session changes the parameters, not even a superuser's
SET snowflake.clock_policy = 'advance';
\set VERBOSITY sqlstate
SET snowflake.worker_id = 3;
\set VERBOSITY default
ALTER SYSTEM SET snowflake.layout = '41/5/5';
ALTER SYSTEM SET snowflake.epoch = 'yesterday';

-- the library refuses calls by functions of pgEdge's extension, which has the same name
\set VERBOSITY terse
CREATE FUNCTION of_other(regclass) RETURNS bigint AS '$libdir/snowflake', 'snowflake_nextval' LANGUAGE C;
SELECT of_other('pg_class');
DROP FUNCTION of_other;
CREATE FUNCTION of_other(regclass) RETURNS bigint AS '$libdir/snowflake', 'snowflake_currval' LANGUAGE C;
SELECT of_other('pg_class');
DROP FUNCTION of_other;
\set VERBOSITY default

-- every object has a comment, and every function the right volatility
\pset format unaligned
SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments,
       p.provolatile, p.proparallel, p.proisstrict,
       obj_description(p.oid, 'pg_proc') IS NOT NULL AS comment
  FROM pg_depend AS d
  JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'snowflake'
  JOIN pg_proc AS p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
 WHERE d.deptype = 'e'
 ORDER BY p.proname, pg_get_function_identity_arguments(p.oid) COLLATE "C";
\pset format aligned

-- the extension stays in its schema
ALTER EXTENSION snowflake SET SCHEMA pg_catalog;
DROP TABLE orders, many_rows;
