-- snowflake_convert(): keys become snowflakes, and the columns that reference
-- them bigint.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
\set SHOW_CONTEXT never
\pset format unaligned

-- describes the tables of a schema: columns, defaults, constraints, sequences
CREATE FUNCTION shape(of_schema name) RETURNS TABLE (object text, definition text)
BEGIN ATOMIC
  SELECT * FROM (
    SELECT attrelid::regclass::text || '.' || attname,
           concat_ws(' ', format_type(atttypid, atttypmod), pg_get_expr(adbin, adrelid),
                     'identity ' || nullif(attidentity::text, ''))
      FROM pg_attribute
      JOIN pg_class AS t ON t.oid = attrelid AND relkind IN ('r', 'p')
      LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
     WHERE attnum > 0 AND relnamespace = to_regnamespace(quote_ident(of_schema))
    UNION ALL
    SELECT conrelid::regclass::text || ': ' || conname,
           pg_get_constraintdef(oid) || coalesce(' -- ' || obj_description(oid, 'pg_constraint'), '')
      FROM pg_constraint
     WHERE contype = 'f' AND conparentid = 0 AND connamespace = to_regnamespace(quote_ident(of_schema))
    UNION ALL
    SELECT 'sequence ' || oid::regclass::text, ''
      FROM pg_class WHERE relkind = 'S' AND relnamespace = to_regnamespace(quote_ident(of_schema))
  ) AS s(object, definition)
  ORDER BY object COLLATE "C";
END;

-- every kind of key and of reference
CREATE SCHEMA "Old shop";
SET search_path = "Old shop", public;
CREATE TABLE customer (id serial PRIMARY KEY, name text, invited_by integer REFERENCES customer);
CREATE TABLE "order" (
  id integer GENERATED ALWAYS AS IDENTITY,
  "customer's id" integer NOT NULL REFERENCES customer ON UPDATE CASCADE ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED,
  PRIMARY KEY ("customer's id", id)
);
COMMENT ON CONSTRAINT "order_customer's id_fkey" ON "order" IS 'whose order it is';
CREATE TABLE line (
  customer integer, "order" integer, n smallint DEFAULT 1, quantity integer CHECK (quantity > 0),
  CONSTRAINT "of order" FOREIGN KEY (customer, "order") REFERENCES "order" MATCH FULL ON DELETE SET NULL
);
CREATE TABLE payment (customer integer PRIMARY KEY);
ALTER TABLE payment ADD FOREIGN KEY (customer) REFERENCES customer NOT VALID;
CREATE TABLE refund (payment integer REFERENCES payment DEFERRABLE, also bigint REFERENCES customer);
CREATE INDEX ON line (customer) WHERE customer > 0;
INSERT INTO customer (name, invited_by) VALUES ('Ann', NULL), ('Bob', 1), ('Cid', 2);
INSERT INTO "order" ("customer's id") VALUES (1), (2), (2);
INSERT INTO line VALUES (1, 1, 1, 5), (2, 2, 1, 3);
INSERT INTO payment VALUES (1), (2);
INSERT INTO refund VALUES (1, 1);

SET search_path = '';
-- a dry run changes nothing
SELECT md5(string_agg(s::text, '' ORDER BY s)) AS before FROM public.shape('Old shop') AS s \gset
SELECT * FROM public.snowflake_convert('"Old shop".customer', 'id', true);
SELECT md5(string_agg(s::text, '' ORDER BY s)) = :'before' AS unchanged FROM public.shape('Old shop') AS s;
-- the dry run's statements, executed one by one, do what the function does
BEGIN;
SELECT * FROM public.snowflake_convert('"Old shop".customer', 'id', true) \gexec
SELECT md5(string_agg(s::text, '' ORDER BY s)) AS by_psql FROM public.shape('Old shop') AS s \gset
ROLLBACK;
-- LIMIT limits the rows of the result, not the conversion
SELECT count(*) FROM (SELECT public.snowflake_convert('"Old shop".customer', 'id') LIMIT 1) AS first;
SELECT md5(string_agg(s::text, '' ORDER BY s)) = :'by_psql' AS same FROM public.shape('Old shop') AS s;
SELECT * FROM public.shape('Old shop');
SET search_path = "Old shop", public;
SELECT conname, convalidated FROM pg_constraint
 WHERE contype = 'f' AND conrelid IN ('payment'::regclass, 'refund'::regclass) ORDER BY conname COLLATE "C";
-- a column that is converted already needs no statement
SELECT * FROM snowflake_convert('customer', 'id');
-- the rows have not changed, new ids are larger, and references can hold them
INSERT INTO customer (name, invited_by) VALUES ('Dan', 3) RETURNING id = snowflake_currval() AS is_currval;
INSERT INTO "order" ("customer's id") VALUES (snowflake_currval());
SELECT name, CASE WHEN id < 10 THEN id END AS old_id, invited_by,
       (SELECT count(*) FROM "order" WHERE "customer's id" = customer.id) AS orders
  FROM customer ORDER BY id;
INSERT INTO payment VALUES (99);

-- Only the other column of the composite key is still an integer.  A DEFAULT
-- replaces its GENERATED ALWAYS AS IDENTITY.
SELECT * FROM snowflake_convert('"order"', 'id');
INSERT INTO "order" ("customer's id") VALUES (1) RETURNING id > 1000000 AS is_large;
SELECT * FROM shape('Old shop') WHERE object LIKE '%order.%' OR object LIKE '%"order"%';
SET client_min_messages = warning;
DROP SCHEMA "Old shop" CASCADE;
RESET client_min_messages;
CREATE SCHEMA shop;
SET search_path = shop, public;

-- each kind of key
CREATE TABLE a (id smallserial PRIMARY KEY);
CREATE TABLE b (id bigserial PRIMARY KEY);
CREATE TABLE c (id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);
CREATE TABLE d (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
CREATE TABLE e (id integer PRIMARY KEY);
CREATE TABLE f (id bigint PRIMARY KEY DEFAULT 7);
CREATE TEMP TABLE g (id serial PRIMARY KEY);
SELECT t, s FROM unnest('{a,b,c,d,e,f}'::regclass[]) AS t, snowflake_convert(t, 'id') AS s;
SELECT count(*) FROM snowflake_convert('g', 'id');
INSERT INTO g DEFAULT VALUES;
SELECT * FROM shape('shop');
INSERT INTO a DEFAULT VALUES RETURNING id = snowflake_currval() AS is_currval;
DROP TABLE a, b, c, d, e, f, g;

-- tables whose keys and references are bigint already are not rewritten
CREATE TABLE a (id bigserial PRIMARY KEY);
CREATE TABLE b (a bigint REFERENCES a);
CREATE TABLE c (a integer REFERENCES a);
CREATE VIEW v AS SELECT id FROM a;
INSERT INTO a VALUES (1);
SELECT pg_relation_filenode('a') AS a, pg_relation_filenode('a_pkey') AS a_pkey,
       pg_relation_filenode('b') AS b, pg_relation_filenode('c') AS c \gset
SELECT * FROM snowflake_convert('a', 'id');
SELECT pg_relation_filenode('a') = :a AS a, pg_relation_filenode('a_pkey') = :a_pkey AS a_pkey,
       pg_relation_filenode('b') = :b AS b, pg_relation_filenode('c') = :c AS c;
-- another call widens a narrow reference that was added later
CREATE TABLE d (a integer REFERENCES a);
SELECT * FROM snowflake_convert('a', 'id');
DROP VIEW v;
DROP TABLE a, b, c, d;

-- a WARNING names keys that are larger than new keys, and only such keys
CREATE TABLE a (id bigint PRIMARY KEY, n integer);
INSERT INTO a VALUES (9223372036854775807, 1);
\set VERBOSITY terse
SELECT count(*) FROM snowflake_convert('a', 'id', true);
SELECT count(*) FROM snowflake_convert('a', 'id');
SELECT count(*) FROM snowflake_convert('a', 'n');
CREATE TABLE b (a integer REFERENCES a);
SELECT count(*) FROM snowflake_convert('a', 'id');
\set VERBOSITY default
DROP TABLE a, b;

-- a sequence that another object uses, or that no column owns, is not dropped
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (n integer DEFAULT nextval('a_id_seq'));
CREATE SEQUENCE nobodys;
CREATE TABLE c (id integer PRIMARY KEY DEFAULT nextval('nobodys'));
CREATE TABLE d (id serial PRIMARY KEY);
CREATE VIEW v AS SELECT nextval('d_id_seq');
SELECT t, s FROM unnest('{a,c,d}'::regclass[]) AS t, snowflake_convert(t, 'id') AS s;
INSERT INTO b DEFAULT VALUES RETURNING n;
DROP VIEW v;
DROP TABLE a, b, c, d;
DROP SEQUENCE nobodys;

-- partitions follow their parent, on both sides of a foreign key
CREATE TABLE a (id serial, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE a1 PARTITION OF a FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE a2 PARTITION OF a FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') PARTITION BY LIST (day);
CREATE TABLE a21 PARTITION OF a2 DEFAULT;
CREATE TABLE b (a integer, day date, FOREIGN KEY (a, day) REFERENCES a ON DELETE CASCADE) PARTITION BY HASH (day);
CREATE TABLE b1 PARTITION OF b FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO a (day) VALUES ('2024-06-01'), ('2025-06-01');
INSERT INTO b SELECT * FROM a;
SELECT * FROM snowflake_convert('a', 'id');
INSERT INTO a21 (day) VALUES ('2025-07-01') RETURNING id = snowflake_currval() AS is_currval;
INSERT INTO b SELECT * FROM a WHERE day = '2025-07-01';
DELETE FROM a WHERE day < '2025-07-01';
SELECT a = snowflake_currval() AS is_currval FROM b;
SELECT * FROM shape('shop');
SELECT * FROM snowflake_convert('a', 'id');
SELECT * FROM snowflake_convert('a1', 'id');
DROP TABLE a, b;
-- a table partitioned by the key itself
CREATE TABLE a (id bigserial PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE a1 PARTITION OF a DEFAULT;
SELECT * FROM snowflake_convert('a', 'id');
INSERT INTO a DEFAULT VALUES RETURNING id = snowflake_currval() AS is_currval;
DROP TABLE a;
CREATE TABLE a (id serial PRIMARY KEY) PARTITION BY RANGE (id);
SELECT * FROM snowflake_convert('a', 'id');
DROP TABLE a;

-- an inheritor has two parents: the parent that is not converted keeps its column
CREATE TABLE a (id bigint);
CREATE TABLE b (id bigint);
CREATE TABLE ab () INHERITS (a, b);
SELECT * FROM snowflake_convert('a', 'id');
SELECT * FROM shape('shop');
DROP TABLE ab, a, b;
-- the type of a column with two parents cannot change
CREATE TABLE a (id integer);
CREATE TABLE b (id integer);
CREATE TABLE ab () INHERITS (a, b);
SELECT * FROM snowflake_convert('a', 'id');
DROP TABLE ab, a, b;

-- the error names all obstacles, and nothing changes
CREATE DOMAIN key_of_a AS integer;
CREATE TABLE a (id serial PRIMARY KEY, twice integer GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE b (a integer REFERENCES a, c key_of_a REFERENCES a);
CREATE VIEW v AS SELECT id FROM a;
CREATE MATERIALIZED VIEW w AS SELECT a FROM b;
CREATE RULE r AS ON DELETE TO b WHERE old.a = 3 DO INSTEAD NOTHING;
CREATE FUNCTION f() RETURNS integer BEGIN ATOMIC SELECT max(id) FROM a; END;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER u BEFORE UPDATE OF a ON b FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE POLICY p ON b USING (a > 0);
CREATE TABLE row_of_a (a a);
SET client_min_messages = error;
CREATE PUBLICATION regress_snowflake FOR TABLE a (id), b WHERE (a > 1);
RESET client_min_messages;
SELECT * FROM snowflake_convert('a', 'id');
\set VERBOSITY sqlstate
SELECT * FROM snowflake_convert('a', 'id', true);
\set VERBOSITY default
SELECT * FROM shape('shop') WHERE object ~ '^(a|b)\.';
DROP PUBLICATION regress_snowflake;
DROP VIEW v;
DROP MATERIALIZED VIEW w;
DROP FUNCTION f();
DROP TABLE a, b, row_of_a;
-- obstacles: a table of a composite type, and a column that references two keys
CREATE TYPE row_with_id AS (id integer);
CREATE TABLE a OF row_with_id (PRIMARY KEY (id));
SELECT * FROM snowflake_convert('a', 'id');
DROP TABLE a;
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (id serial PRIMARY KEY, too integer UNIQUE REFERENCES a);
CREATE TABLE c (shared integer REFERENCES a REFERENCES b);
CREATE TABLE d (a bigint REFERENCES a REFERENCES b (too));
SELECT * FROM snowflake_convert('a', 'id');
ALTER TABLE c DROP CONSTRAINT c_shared_fkey1;
SELECT count(*) FROM snowflake_convert('a', 'id');
DROP TABLE a, b, c, d;
-- a trigger, a view and a CHECK that do not name the column are no obstacles
CREATE TABLE a (id serial PRIMARY KEY, t text, CHECK (id > 0));
CREATE INDEX ON a ((id + 1));
CREATE STATISTICS s ON id, t FROM a;
CREATE TRIGGER u BEFORE UPDATE OF t ON a FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE VIEW v AS SELECT t FROM a;
SELECT * FROM snowflake_convert('a', 'id');
DROP VIEW v;
DROP TABLE a;

-- a conversion that cannot add a foreign key again changes nothing
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (a integer REFERENCES a);
SET session_replication_role = replica;
INSERT INTO b VALUES (5);
RESET session_replication_role;
SELECT * FROM snowflake_convert('a', 'id');
SELECT * FROM shape('shop');
DROP TABLE a, b;

-- columns that cannot be keys
CREATE TABLE a (id serial PRIMARY KEY, t text, g integer GENERATED ALWAYS AS (1) STORED);
CREATE TABLE b (id integer PRIMARY KEY REFERENCES a);
CREATE VIEW v AS SELECT 1 AS id;
SELECT snowflake_convert('a', 't');
SELECT snowflake_convert('a', 'g');
SELECT snowflake_convert('a', 'none');
SELECT snowflake_convert('a', 'ctid');
SELECT snowflake_convert('b', 'id');
SELECT snowflake_convert('v', 'id');
SELECT snowflake_convert('a_id_seq', 'last_value');
SELECT snowflake_convert(1::regclass, 'id');
SELECT snowflake_convert(NULL, 'id');
DROP TABLE a, b;
DROP VIEW v;

-- a conversion is refused in a transaction whose snapshot does not show the
-- changes of other sessions; a dry run is allowed there
CREATE TABLE a (id serial PRIMARY KEY);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT snowflake_convert('a', 'id', true);
SELECT snowflake_convert('a', 'id');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT snowflake_convert('a', 'id');
ROLLBACK;
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
SELECT count(*) FROM snowflake_convert('a', 'id');
COMMIT;
DROP TABLE a;

-- the caller must own all tables that change
CREATE ROLE regress_snowflake_owner;
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (a integer REFERENCES a);
GRANT ALL ON SCHEMA shop TO regress_snowflake_owner;
GRANT ALL ON a, b TO regress_snowflake_owner;
SET ROLE regress_snowflake_owner;
SELECT snowflake_convert('a', 'id');
RESET ROLE;
ALTER TABLE a OWNER TO regress_snowflake_owner;
SET ROLE regress_snowflake_owner;
SELECT snowflake_convert('a', 'id', true);
\set VERBOSITY sqlstate
SELECT snowflake_convert('a', 'id');
\set VERBOSITY default
RESET ROLE;
-- the caller need not own a table that does not change
ALTER TABLE b ALTER a TYPE bigint;
ALTER TABLE a ALTER id TYPE bigint;
SET ROLE regress_snowflake_owner;
SELECT snowflake_convert('a', 'id');
RESET ROLE;
DROP TABLE a, b;

-- the conversion uses no object of the table's owner that has the name of a
-- system object
CREATE FUNCTION shop.snowflake_nextval() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
CREATE FUNCTION shop.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$SELECT 'DROP TABLE shop.a'$$;
CREATE TABLE shop.pg_class (oid oid);
SET search_path = shop, pg_catalog, public;
CREATE TABLE a (id serial PRIMARY KEY);
SELECT * FROM public.snowflake_convert('a', 'id');
RESET search_path;
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'shop.a'::regclass;
DROP TABLE shop.a, shop.pg_class;

-- the extension works in another schema
CREATE SCHEMA "My ids";
ALTER EXTENSION snowflake SET SCHEMA "My ids";
CREATE TABLE shop.a (id serial PRIMARY KEY);
SELECT * FROM "My ids".snowflake_convert('shop.a', 'id');
ALTER EXTENSION snowflake SET SCHEMA public;
SELECT * FROM snowflake_convert('shop.a', 'id');

SET client_min_messages = warning;
DROP SCHEMA "My ids", shop CASCADE;
DROP FUNCTION shape(name);
DROP ROLE regress_snowflake_owner;
