-- doc/public-ids.md.
-- A PostgreSQL without contrib has no pgcrypto, and public_ids_1.out.
SELECT count(*) = 0 AS is_missing FROM pg_available_extensions WHERE name = 'pgcrypto' \gset
\if :is_missing
  \echo pgcrypto is not installed
  \quit
\endif
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE SCHEMA public_ids;
SET search_path = public_ids, public;
CREATE TABLE orders (id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), item text);

-- RUN doc/public-ids.md: CREATE EXTENSION pgcrypto
-- RUN doc/public-ids.md: PREPARE new_order

\set key '\'\\x000102030405060708090a0b0c0d0e0f\''
EXECUTE new_order('apple', :key) \gset
EXECUTE find_order(:'public_id', :key);
-- a stranger's UUID, and one by another key
EXECUTE find_order('5eaba5de-0000-4000-8000-000000000000', :key);
EXECUTE find_order(:'public_id', '\x00');
SELECT private_id('5eaba5de-0000-4000-8000-000000000000', :key), private_id(:'public_id', '\x00');

-- AES-128 of FIPS 197 is what pgcrypto computes, so another program can, too
SELECT public_id(2124881502633201664, :key);
SELECT private_id(public_id(id, :key), :key) = id AS is_same
  FROM unnest('{0, 1, 2124881502633201664, 9223372036854775807}'::bigint[]) AS id;
SELECT public_id(NULL, :key) IS NULL AND private_id(NULL, :key) IS NULL AS is_strict;

-- the primary key's index, whether the plan knows the UUID or not
INSERT INTO orders (item) SELECT 'pear' FROM generate_series(1, 2000);
ANALYZE orders;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE find_order(:'public_id', :key);
RESET plan_cache_mode;

DEALLOCATE ALL;
DROP EXTENSION pgcrypto CASCADE;
DROP SCHEMA public_ids CASCADE;
