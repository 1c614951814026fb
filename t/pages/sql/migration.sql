-- doc/migration.md: the event trigger, and tables of pgEdge's extension.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION snowflake_convert;
CREATE DATABASE mydb;
CREATE SCHEMA shop;
-- RUN doc/migration.md: CREATE EVENT TRIGGER
SELECT setconfig FROM pg_db_role_setting JOIN pg_database AS d ON d.oid = setdatabase WHERE datname = 'mydb';
SET snowflake_convert.schemas = 'public, shop';
CREATE TABLE shop.posts (id bigserial PRIMARY KEY);
SET snowflake_convert.schemas = 'none';
CREATE TABLE shop.others (id bigserial PRIMARY KEY);
SELECT attrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
 WHERE attrelid IN ('shop.posts'::regclass, 'shop.others'::regclass) ORDER BY 1;
DROP EVENT TRIGGER snowflakes;
DROP DATABASE mydb;
DROP EXTENSION snowflake_convert;

-- A function stands for pgEdge's.
CREATE SCHEMA snowflake;
CREATE FUNCTION snowflake.nextval(regclass) RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 1';
CREATE SEQUENCE orders_id_seq MAXVALUE 100;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake.nextval('orders_id_seq'));
INSERT INTO orders VALUES (snowflake_min_id(now() - interval '1 hour'));
-- RUN doc/migration.md: SELECT adrelid::regclass
ALTER TABLE orders ALTER id DROP DEFAULT;
DROP SCHEMA snowflake CASCADE;
ALTER SEQUENCE orders_id_seq OWNED BY orders.id;
ALTER TABLE orders ALTER id SET DEFAULT nextval('orders_id_seq');
\o /dev/null
-- RUN doc/migration.md: CREATE EXTENSION snowflake_convert CASCADE
\o
-- RUN doc/migration.md: SELECT schemaname
DROP EXTENSION snowflake_convert;
DROP TABLE orders;
DROP SCHEMA shop CASCADE;
