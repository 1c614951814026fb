-- The obstacles and warnings of snowflake_convert(): a dry run lists what ALTER
-- TABLE would refuse, and warns of objects that would refuse new keys.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
\set SHOW_CONTEXT never
\pset format unaligned
CREATE SCHEMA shop;
SET search_path = shop, public;

-- expressions with functions that accept integers only: ALTER TABLE refuses to
-- change the column's type because of each of them
CREATE FUNCTION only_integer(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE ''called''; END';
CREATE FUNCTION differs(integer, integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 <> $2';
CREATE OPERATOR <!> (LEFTARG = integer, RIGHTARG = integer, FUNCTION = differs, COMMUTATOR = <!>);
CREATE TABLE a (id serial, name text, "Two words" date);
ALTER TABLE a ADD CONSTRAINT "its check" CHECK (only_integer(id) > 0);
ALTER TABLE a ADD CONSTRAINT fine CHECK (id > 0 AND name <> 'x' AND "Two words" > '2000-01-01');
CREATE INDEX by_expression ON a (name, only_integer(id));
CREATE INDEX by_predicate ON a (name) WHERE id <!> 3;
CREATE INDEX by_builtin ON a (chr(id));
CREATE INDEX fine_too ON a ((id + 1)) WHERE id > 5;
SELECT * FROM snowflake_convert('a', 'id', true);
\set VERBOSITY terse
ALTER TABLE a ALTER id TYPE bigint;
\set VERBOSITY default
ALTER TABLE a DROP CONSTRAINT "its check";
DROP INDEX by_expression, by_predicate, by_builtin;
SELECT count(*) FROM snowflake_convert('a', 'id');
DROP TABLE a;

-- an operator class for integers only
CREATE OPERATOR CLASS integers FOR TYPE integer USING btree AS
  OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(integer, integer);
CREATE TABLE a (id serial PRIMARY KEY);
CREATE INDEX by_class ON a (id integers);
SELECT * FROM snowflake_convert('a', 'id', true);
DROP TABLE a;

-- row types that other types contain
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TYPE pair AS (a a, n integer);
CREATE TYPE deep AS (pairs pair[]);
CREATE DOMAIN named AS deep;
CREATE TABLE of_pair (p pair);
CREATE TABLE of_domain (d named);
SELECT * FROM snowflake_convert('a', 'id', true);
DROP TABLE of_pair, of_domain;
SELECT count(*) FROM snowflake_convert('a', 'id');
DROP TABLE a CASCADE;

-- objects that allow the conversion, and then refuse new keys
CREATE TABLE a (id serial PRIMARY KEY CONSTRAINT small CHECK (id < 2147483647), n integer CHECK (n < 5),
                CONSTRAINT between_two CHECK (id BETWEEN 1 AND 1000000),
                CONSTRAINT turned CHECK (2000000000 >= id),
                CONSTRAINT fine CHECK (id > 0 AND id <> 5));
CREATE TABLE b (a_id integer REFERENCES a, CONSTRAINT b_check CHECK (a_id <= 4000000000), "a" integer);
CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS 'DECLARE key integer; BEGIN key := NEW.a_id; RETURN NEW; END';
CREATE FUNCTION harmless() RETURNS trigger LANGUAGE plpgsql AS 'DECLARE key bigint; BEGIN RETURN NEW; END';
CREATE TRIGGER narrow BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION counts();
CREATE TRIGGER wide BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION harmless();
SELECT count(*) FROM snowflake_convert('a', 'id', true);
DROP TABLE a, b;

-- Larger keys are found in spite of row security, in partitions, and by any index
-- that begins with the key; without such an index the table is not read.
CREATE ROLE regress_snowflake_told;
GRANT ALL ON SCHEMA shop TO regress_snowflake_told;
SET ROLE regress_snowflake_told;
CREATE TABLE a (id bigint PRIMARY KEY);
INSERT INTO a VALUES (9223372036854775807);
ALTER TABLE a ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE TABLE b (id bigint, day date) PARTITION BY LIST (day);
CREATE TABLE b1 PARTITION OF b FOR VALUES IN ('2024-01-01');
CREATE TABLE b2 PARTITION OF b DEFAULT;
CREATE INDEX ON b (id DESC NULLS FIRST, day);
INSERT INTO b VALUES (1, '2024-01-01'), (9223372036854775806, NULL), (NULL, NULL);
CREATE TABLE c (id bigint);
INSERT INTO c VALUES (9223372036854775807);
CREATE INDEX ON c (id) WHERE id > 0;
CREATE INDEX ON c ((-id));
\set VERBOSITY terse
SELECT count(*) FROM snowflake_convert('a', 'id', true);
SELECT count(*) FROM snowflake_convert('b', 'id', true);
SELECT count(*) FROM snowflake_convert('c', 'id', true);
SELECT count(*) FROM snowflake_convert('a', 'id');
RESET ROLE;

-- the conversion does not contact the server of a foreign table that inherits:
-- here the server does not exist
CREATE FOREIGN DATA WRAPPER regress_snowflake_none;
CREATE SERVER regress_snowflake_nowhere FOREIGN DATA WRAPPER regress_snowflake_none;
CREATE TABLE d (id bigint PRIMARY KEY);
CREATE FOREIGN TABLE d1 () INHERITS (d) SERVER regress_snowflake_nowhere;
INSERT INTO d VALUES (9223372036854775807);
SELECT count(*) FROM snowflake_convert('d', 'id', true);
\set VERBOSITY default

-- a table that Citus has distributed: the test imitates Citus's catalogue
CREATE TABLE e (id serial PRIMARY KEY);
SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass);
INSERT INTO pg_dist_partition VALUES ('e');
SELECT * FROM snowflake_convert('e', 'id', true);
DROP TABLE pg_catalog.pg_dist_partition;
RESET allow_system_table_mods;
SELECT count(*) FROM snowflake_convert('e', 'id', true);

SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
DROP FOREIGN DATA WRAPPER regress_snowflake_none CASCADE;
DROP OWNED BY regress_snowflake_told;
DROP ROLE regress_snowflake_told;
