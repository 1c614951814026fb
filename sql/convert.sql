-- snowflake_convert.key() and revert(): scripts that make keys snowflakes, and
-- the columns that reference them bigint, and back.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_convert;
RESET client_min_messages;
\set SHOW_CONTEXT never
\pset format unaligned
SELECT current_user AS superuser \gset
-- The roles connect, by password where the server asks for one.
\set password none
\getenv password PGPASSWORD
-- the output names the roles
CREATE ROLE regress_snowflake_admin SUPERUSER LOGIN PASSWORD :'password';
\c - regress_snowflake_admin
CREATE ROLE regress_snowflake_owner LOGIN PASSWORD :'password';
CREATE ROLE regress_snowflake_other LOGIN PASSWORD :'password';
CREATE SCHEMA "Old shop" AUTHORIZATION regress_snowflake_owner;
CREATE SCHEMA shop AUTHORIZATION regress_snowflake_owner;

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
    SELECT 'sequence ' || oid::regclass::text, seqtypid::regtype::text
      FROM pg_class JOIN pg_sequence ON seqrelid = oid WHERE relnamespace = to_regnamespace(quote_ident(of_schema))
  ) AS s(object, definition)
  ORDER BY object COLLATE "C";
END;
-- the lines of a script; sizes differ by machine, hashes by PostgreSQL's version
CREATE FUNCTION short(script text) RETURNS SETOF text LANGUAGE sql AS
$$SELECT regexp_replace(regexp_replace(line, '\d+ (kB|bytes)', 'N kB'), '[0-9a-f]{64}', 'N')
    FROM string_to_table(script, E'\n') AS line$$;

-- runs the script that a query returns
CREATE PROCEDURE run(query text) LANGUAGE plpgsql AS $$
DECLARE
  script text[];
  statement text;
BEGIN
  EXECUTE 'SELECT ARRAY(SELECT ' || query || ')' INTO script;
  FOREACH statement IN ARRAY script LOOP
    EXECUTE statement;
  END LOOP;
END $$;


-- every kind of key and of reference
\c - regress_snowflake_owner
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
CREATE INDEX ON line ((customer + 1)) WHERE customer > 0;
ALTER INDEX line_expr_idx ALTER COLUMN 1 SET STATISTICS 77;
CREATE STATISTICS "Old shop".pair ON customer, n FROM line;
ALTER STATISTICS "Old shop".pair SET STATISTICS 55;
INSERT INTO customer (name, invited_by) VALUES ('Ann', NULL), ('Bob', 1), ('Cid', 2);
INSERT INTO "order" ("customer's id") VALUES (1), (2), (2);
INSERT INTO line VALUES (1, 1, 1, 5), (2, 2, 1, 3);
INSERT INTO payment VALUES (1), (2);
INSERT INTO refund VALUES (1, 1);
SET search_path = '';
CREATE TABLE shop.before AS SELECT * FROM public.shape('Old shop');

-- the script says what it does, and making it changes nothing
SELECT public.short(s) FROM snowflake_convert.key('"Old shop".customer', 'id') AS s;
TABLE shop.before EXCEPT SELECT * FROM public.shape('Old shop');
-- another role, a superuser too, cannot run it, nor after SET ROLE
\c - regress_snowflake_admin
SET search_path = '';
CALL public.run($$snowflake_convert.key('"Old shop".customer', 'id')$$);
SET ROLE regress_snowflake_owner;
CALL public.run($$snowflake_convert.key('"Old shop".customer', 'id')$$);
RESET ROLE;
-- its owner can, also row by row
\c - regress_snowflake_owner
SET search_path = '';
\set ECHO none
SELECT snowflake_convert.key('"Old shop".customer', 'id') \gexec
\set ECHO all
SELECT * FROM public.shape('Old shop');
SET search_path = "Old shop", public;
SELECT conname, convalidated FROM pg_constraint
 WHERE contype = 'f' AND conrelid IN ('payment'::regclass, 'refund'::regclass) ORDER BY conname COLLATE "C";
SELECT attrelid::regclass, attstattarget FROM pg_attribute WHERE attrelid = 'line_expr_idx'::regclass;
SELECT stxname, stxstattarget FROM pg_statistic_ext WHERE stxname = 'pair';
-- a key that is converted needs no statement
SELECT public.short(s) FROM snowflake_convert.key('customer', 'id') AS s;
-- the rows have not changed, and the script leads back while all ids are small
BEGIN;
INSERT INTO customer (name, invited_by) VALUES ('Dan', 3) RETURNING id = snowflake_currval() AS is_currval;
INSERT INTO "order" ("customer's id") VALUES (snowflake_currval());
SELECT name, CASE WHEN id < 10 THEN id END AS old_id, invited_by,
       (SELECT count(*) FROM "order" WHERE "customer's id" = customer.id) AS orders
  FROM customer ORDER BY id;
ROLLBACK;
CALL run($$snowflake_convert.key('"order"', 'id')$$);
SELECT public.short(s) FROM snowflake_convert.revert('{"\"Old shop\".customer.id": {"type": "integer", "sequence": "\"Old shop\".customer_id_seq"}}') AS s;
CALL run($$snowflake_convert.revert('{"\"Old shop\".order.id": {"type": "integer", "identity": "ALWAYS", "sequence": "\"Old shop\".order_id_seq"},
                                       "\"Old shop\".customer.id": {"type": "integer", "sequence": "\"Old shop\".customer_id_seq", "as": "integer"},
                                       "\"Old shop\".refund.also": {"type": "bigint"}}')$$);
RESET search_path;
TABLE shop.before EXCEPT SELECT * FROM public.shape('Old shop');
INSERT INTO "Old shop".customer DEFAULT VALUES RETURNING id;
INSERT INTO "Old shop"."order" ("customer's id") VALUES (1) RETURNING id;

-- each kind of key, and back
SET search_path = shop, public;
CREATE TABLE a (id smallserial PRIMARY KEY);
CREATE TABLE b (id bigserial PRIMARY KEY);
CREATE TABLE c (id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);
CREATE TABLE d (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
CREATE TABLE e (id integer PRIMARY KEY);
CREATE TABLE f (id bigint PRIMARY KEY DEFAULT 7);
SELECT snowflake_convert.key('f', 'id');
ALTER TABLE f ALTER id DROP DEFAULT;
TRUNCATE before; INSERT INTO before SELECT * FROM shape('shop');
CREATE TABLE script AS SELECT t, row_number() OVER () AS n, s FROM unnest('{a,b,c,d,e,f}'::regclass[]) AS t, snowflake_convert.key(t, 'id') AS s;
CALL run($$s FROM script ORDER BY t, n$$);
SELECT * FROM shape('shop') WHERE object !~ '^(before|script)';
INSERT INTO d DEFAULT VALUES RETURNING id = snowflake_currval() AS is_currval;
CALL run($$snowflake_convert.revert(substring(s FROM '''(.*)''')::jsonb) FROM script WHERE s ~ '^-- back'$$);
DROP TABLE script;
TABLE before EXCEPT SELECT * FROM shape('shop');
INSERT INTO d DEFAULT VALUES RETURNING id > 1000000 AS follows_the_new_id;
SELECT snowflake_convert.revert('{"shop.a.id": {"type": "integer", "sequence": ""}}');
CALL run($$snowflake_convert.key('a', 'id')$$);
SELECT snowflake_convert.revert('{"shop.a.id": {"type": "text", "sequence": ""}}');
SELECT snowflake_convert.revert('{"shop.a.id": {"type": "integer", "identity": "SOMETIMES", "sequence": "s"}}');
SELECT snowflake_convert.revert('{"shop.a.id": {"type": "integer", "identity": "ALWAYS", "sequence": "s", "options": "); DROP TABLE a"}}');
SELECT snowflake_convert.revert('{"shop.a.id": {"sequence": ""}}');
SELECT snowflake_convert.revert('{"shop.a.id": "integer"}');
SELECT snowflake_convert.revert('{"shop.a.id": {"type": "integer"}}');
SELECT snowflake_convert.revert('{"shop.a.none": {"type": "integer", "sequence": ""}}');
SELECT snowflake_convert.revert('{}');
SELECT snowflake_convert.revert('[]');
DROP TABLE a, b, c, d, e, f;

-- tables whose keys and references are bigint already are not rewritten
CREATE TABLE a (id bigserial PRIMARY KEY);
CREATE TABLE b (a bigint REFERENCES a);
CREATE TABLE c (a integer REFERENCES a);
CREATE VIEW v AS SELECT id FROM a;
SELECT pg_relation_filenode('a') AS a, pg_relation_filenode('a_pkey') AS a_pkey,
       pg_relation_filenode('b') AS b, pg_relation_filenode('c') AS c \gset
CALL run($$snowflake_convert.key('a', 'id')$$);
SELECT pg_relation_filenode('a') = :a AS a, pg_relation_filenode('a_pkey') = :a_pkey AS a_pkey,
       pg_relation_filenode('b') = :b AS b, pg_relation_filenode('c') = :c AS c;
-- another script widens a narrow reference that was added later
CREATE TABLE d (a integer REFERENCES a);
SELECT short(s) FROM snowflake_convert.key('a', 'id') AS s;
DROP VIEW v;
DROP TABLE a, b, c, d;

-- sequences that another object uses, or that no column owns
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (n integer DEFAULT nextval('a_id_seq'), m bigint DEFAULT currval('a_id_seq'));
CREATE SEQUENCE nobodys;
CREATE TABLE c (id integer PRIMARY KEY DEFAULT nextval('nobodys'));
CREATE SEQUENCE unused OWNED BY c.id;
SELECT short(s) FROM snowflake_convert.key('a', 'id') AS s;
SELECT short(s) FROM snowflake_convert.key('c', 'id') AS s;
-- a sequence that the DEFAULT finds by its name at run time
CREATE TABLE d (id integer PRIMARY KEY DEFAULT nextval('nobodys'::text));
SELECT short(s) FROM snowflake_convert.key('d', 'id') AS s WHERE s ~ '^-- key';
DROP TABLE a, b, c, d;
DROP SEQUENCE nobodys;

-- The script that converts names the sequence, its options and the references of
-- other types, and so the way back to what was there: sequences that no column
-- owns, names that PostgreSQL has shortened, and options.
CREATE PROCEDURE there_and_back(rel regclass) LANGUAGE plpgsql AS $$
DECLARE
  back text := (SELECT substring(s FROM 'back: SELECT (.*);') FROM snowflake_convert.key(rel, 'id') AS s WHERE s ~ '^-- back');
BEGIN
  RAISE NOTICE '%', back;
  CALL public.run(format('snowflake_convert.key(%L, ''id'')', rel));
  CALL public.run(back);
END $$;
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (id integer PRIMARY KEY DEFAULT nextval('a_id_seq'));
TRUNCATE before; INSERT INTO before SELECT * FROM shape('shop');
CREATE TABLE script AS SELECT row_number() OVER () AS n, s FROM snowflake_convert.schema('{shop}', except_keys => '{}') AS s;
CALL run($$s FROM script ORDER BY n$$);
CREATE TABLE back AS SELECT substring(s FROM 'back: SELECT (.*);') AS call FROM script WHERE s ~ '^-- back';
DO $$DECLARE call text := (SELECT b.call FROM shop.back AS b); BEGIN CALL public.run(call); END$$;
DROP TABLE script, back;
TABLE before EXCEPT SELECT * FROM shape('shop');
DROP TABLE b, a;
CREATE SEQUENCE nobodys START 500 INCREMENT 10 CACHE 5;
CREATE TABLE a (id integer PRIMARY KEY DEFAULT nextval('nobodys'));
CREATE TABLE b (id integer PRIMARY KEY DEFAULT nextval('nobodys'), a smallint REFERENCES a);
CREATE TABLE a_name_that_is_long_enough_to_be_cut_and_so_is_its_sequence_s (
  id integer GENERATED ALWAYS AS IDENTITY (START 7 MAXVALUE 99 CYCLE) PRIMARY KEY, b bigint REFERENCES b);
INSERT INTO a VALUES (1), (3);
INSERT INTO b DEFAULT VALUES;
TRUNCATE before; INSERT INTO before SELECT * FROM shape('shop') UNION ALL SELECT seqrelid::regclass::text, pg_sequence::text FROM pg_sequence WHERE seqrelid = 'nobodys'::regclass;
CALL there_and_back('a');
CALL there_and_back('b');
CALL there_and_back('a_name_that_is_long_enough_to_be_cut_and_so_is_its_sequence_s');
TABLE before EXCEPT (SELECT * FROM shape('shop') UNION ALL SELECT seqrelid::regclass::text, pg_sequence::text FROM pg_sequence);
INSERT INTO b DEFAULT VALUES RETURNING id;
INSERT INTO a_name_that_is_long_enough_to_be_cut_and_so_is_its_sequence_s DEFAULT VALUES RETURNING id;
DROP TABLE a_name_that_is_long_enough_to_be_cut_and_so_is_its_sequence_s, b, a;
DROP SEQUENCE nobodys;
DROP PROCEDURE there_and_back(regclass);
-- the event trigger does not convert an empty table again
CREATE TABLE a (id serial PRIMARY KEY);
CALL run($$snowflake_convert.key('a', 'id')$$);
\c - regress_snowflake_admin
SET search_path = shop, public;
CREATE EVENT TRIGGER regress_snowflake ON ddl_command_end EXECUTE FUNCTION snowflake_convert.new_tables();
\c - regress_snowflake_owner
SET search_path = shop, public;
SET snowflake_convert.schemas = 'shop';
CALL run($$snowflake_convert.revert('{"shop.a.id": {"type": "integer", "sequence": "shop.a_id_seq", "as": "integer"}}')$$);
SELECT * FROM shape('shop') WHERE object = 'a.id';
RESET snowflake_convert.schemas;
\c - regress_snowflake_admin
SET search_path = shop, public;
DROP EVENT TRIGGER regress_snowflake;
\c - regress_snowflake_owner
SET search_path = shop, public;
DROP TABLE a;

-- partitions follow their parent, on both sides of a foreign key
CREATE TABLE a (id serial, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE a1 PARTITION OF a FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE a2 PARTITION OF a FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') PARTITION BY LIST (day);
CREATE TABLE a21 PARTITION OF a2 DEFAULT;
CREATE TABLE b (a integer, day date, FOREIGN KEY (a, day) REFERENCES a ON DELETE CASCADE) PARTITION BY HASH (day);
CREATE TABLE b1 PARTITION OF b FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO a (day) VALUES ('2024-06-01'), ('2025-06-01');
INSERT INTO b SELECT * FROM a;
TRUNCATE before; INSERT INTO before SELECT * FROM shape('shop');
CALL run($$snowflake_convert.key('a', 'id')$$);
BEGIN;
INSERT INTO a21 (day) VALUES ('2025-07-01') RETURNING id = snowflake_currval() AS is_currval;
INSERT INTO b SELECT * FROM a WHERE day = '2025-07-01';
DELETE FROM a WHERE day < '2025-07-01';
SELECT a = snowflake_currval() AS is_currval FROM b;
ROLLBACK;
SELECT * FROM shape('shop') WHERE object NOT LIKE 'before%';
SELECT snowflake_convert.key('a1', 'id');
CALL run($$snowflake_convert.revert('{"shop.a.id": {"type": "integer", "sequence": "shop.a_id_seq", "as": "integer"}}')$$);
TABLE before EXCEPT SELECT * FROM shape('shop');
DROP TABLE a, b;

-- the error names all obstacles; views are none
CREATE DOMAIN key_of_a AS integer;
CREATE TABLE a (id serial PRIMARY KEY, twice integer GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE b (a integer REFERENCES a, c key_of_a REFERENCES a);
CREATE VIEW v AS SELECT id FROM a;
CREATE FUNCTION f() RETURNS integer BEGIN ATOMIC SELECT max(id) FROM a; END;
CREATE POLICY p ON b USING (a > 0);
CREATE TABLE row_of_a (a a);
SELECT snowflake_convert.key('a', 'id');
DROP FUNCTION f();
DROP TABLE row_of_a;
ALTER TABLE a DROP twice;
ALTER TABLE b DROP c;
DROP POLICY p ON b;
CALL run($$snowflake_convert.key('a', 'id')$$);
DROP VIEW v;
DROP TABLE a, b;
CREATE TABLE a (id serial PRIMARY KEY) PARTITION BY RANGE (id);
SELECT snowflake_convert.key('a', 'id');
DROP TABLE a;
CREATE TABLE a (id integer);
CREATE TABLE b (id integer);
CREATE TABLE ab () INHERITS (a, b);
SELECT snowflake_convert.key('a', 'id');
DROP TABLE ab, a, b;
CREATE TYPE row_with_id AS (id integer);
CREATE TABLE a OF row_with_id (PRIMARY KEY (id));
SELECT snowflake_convert.key('a', 'id');
DROP TABLE a;
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (id serial PRIMARY KEY);
CREATE TABLE c (shared integer REFERENCES a REFERENCES b);
SELECT snowflake_convert.key('a', 'id');
DROP TABLE a, b, c;

-- columns that cannot be keys
CREATE TABLE a (id serial PRIMARY KEY, t text, g integer GENERATED ALWAYS AS (1) STORED);
CREATE TABLE b (id integer PRIMARY KEY REFERENCES a);
CREATE VIEW v AS SELECT 1 AS id;
SELECT snowflake_convert.key('a', 't');
SELECT snowflake_convert.key('a', 'g');
SELECT snowflake_convert.key('a', 'none');
SELECT snowflake_convert.key('a', 'ctid');
SELECT snowflake_convert.key('b', 'id');
SELECT snowflake_convert.key('v', 'id');
SELECT snowflake_convert.key(1::regclass, 'id');
SELECT snowflake_convert.key(NULL, 'id');
DROP TABLE a, b;
DROP VIEW v;

-- a script that fails changes nothing: a row without its key, an expression that
-- does not take bigint
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (a integer REFERENCES a);
\c - regress_snowflake_admin
SET search_path = shop, public;
SET session_replication_role = replica;
INSERT INTO b VALUES (5);
RESET session_replication_role;
\c - regress_snowflake_owner
SET search_path = shop, public;
CALL run($$snowflake_convert.key('a', 'id')$$);
SELECT * FROM shape('shop') WHERE object ~ '^[ab]\.';
TRUNCATE b;
CREATE FUNCTION only_integer(integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $1';
ALTER TABLE a ADD CHECK (only_integer(id) > 0);
\set VERBOSITY terse
CALL run($$snowflake_convert.key('a', 'id') OFFSET 1$$);
\set VERBOSITY default
SELECT * FROM shape('shop') WHERE object ~ '^[ab]\.';
ALTER TABLE a DROP CONSTRAINT a_id_check;

-- Expressions are parsed anew when types change: a function or operator outside
-- pg_catalog could be somebody else's then.
CREATE FUNCTION near(integer, integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2)';
CREATE OPERATOR <-> (FUNCTION = near, LEFTARG = integer, RIGHTARG = integer);
CREATE FUNCTION any_of(anyarray, numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE DOMAIN small AS smallint;
CREATE TYPE small_range AS RANGE (subtype = integer);
CREATE FUNCTION of_range(small_range) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE FUNCTION of_domain(small) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE TABLE f (id serial PRIMARY KEY, a integer REFERENCES a, CONSTRAINT distance CHECK (id <-> 1 < 100));
CREATE INDEX by_distance ON f ((id <-> 1));
CREATE INDEX by_any ON f (id) WHERE any_of('{}'::integer[], id);
CREATE STATISTICS two ON (id <-> 1), (id <-> 2) FROM f;
CREATE POLICY of_f ON f USING (id <-> 1 < 100);
CREATE TRIGGER when_near BEFORE UPDATE OF id ON f FOR EACH ROW WHEN (OLD.id <-> NEW.id > 1) EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE VIEW near_view AS SELECT id FROM f WHERE id <-> 1 < 100;
CREATE RULE near_rule AS ON DELETE TO f WHERE OLD.id <-> 1 > 100 DO INSTEAD NOTHING;
CREATE VIEW ranges AS SELECT of_range(small_range(id, NULL)) FROM f;
CREATE VIEW domains AS SELECT of_domain(id::small) FROM f;
CREATE TYPE grade AS ENUM ('1', '2');
CREATE TYPE graded AS (g grade);
\c - regress_snowflake_admin
SET search_path = shop, public;
CREATE CAST (integer AS grade) WITH INOUT;
\c - regress_snowflake_owner
SET search_path = shop, public;
CREATE VIEW cast_view AS SELECT id::grade FROM f;
CREATE VIEW domain_view AS SELECT id::small FROM f;
CREATE VIEW tree AS WITH RECURSIVE t AS (SELECT id, NULL::integer AS up FROM f UNION ALL SELECT f.id, t.id FROM f JOIN t ON t.id = f.id) SELECT id FROM t;
CREATE VIEW subscript AS SELECT ('{1}'::integer[])[id], id::oid FROM f;
CREATE INDEX by_class ON f USING brin (id int4_bloom_ops);
CREATE TEMP VIEW passing AS SELECT id FROM f;
CREATE VIEW row_view AS SELECT ROW(id)::graded FROM f;
CREATE VIEW fine AS SELECT id + 1 AS next, '#' || id AS text, id::bigint AS wide, coalesce(a, 5::bigint) AS wider FROM f;
SELECT snowflake_convert.key('f', 'id');
DROP VIEW passing;
-- the statements that it says drop what is in the way
CREATE TABLE drops AS SELECT DISTINCT substring(s FROM '(?:ALTER|DROP) .*;$') AS drop FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ '^-- left out: shop.f';
CALL run($$drop FROM drops$$);
CALL run($$snowflake_convert.key('f', 'id')$$);
SELECT * FROM shape('shop') WHERE object = 'f.id';
DROP TABLE f, drops CASCADE;
DROP FUNCTION near(integer, integer), of_range(small_range), any_of(anyarray, numeric), of_domain(small) CASCADE;
DROP TYPE small_range, small, grade CASCADE;
DROP TYPE graded;
-- so are expressions of PostgreSQL's own functions and operators that are not the
-- same for a bigint
CREATE TABLE g (id serial PRIMARY KEY, day date, n integer, EXCLUDE USING gist (int4range(id, n) WITH &&),
                CONSTRAINT fine CHECK (id + n > 0 AND -id / 2 < 5 AND id IN (1, 5) AND num_nulls(id, n) < 2 AND CASE WHEN id > 1 THEN 1 ELSE 0 END = 1),
                CONSTRAINT modulo CHECK (id % 2 >= 0), CONSTRAINT first CHECK (coalesce(id, 0) > 0), CONSTRAINT larger CHECK (greatest(id, 1) > 0),
                CONSTRAINT cased CHECK (CASE WHEN n > 1 THEN id ELSE 0 END = 1), CONSTRAINT listed CHECK ('{1,2}'::integer[] @> ARRAY[id]),
                CONSTRAINT ranged CHECK (int4range(1, 1000) @> id));
CREATE POLICY of_g ON g USING (repeat('x', id) <> '');
CREATE TRIGGER of_g BEFORE UPDATE OF id ON g FOR EACH ROW WHEN (NEW.day + NEW.id > 'today') EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE INDEX of_g ON g (day) WHERE make_date(2000, 1, id) > day;
CREATE RULE of_g AS ON DELETE TO g WHERE OLD.day + OLD.id > 'today' DO INSTEAD NOTHING;
SELECT snowflake_convert.key('g', 'id');
CREATE TABLE drops AS SELECT DISTINCT substring(s FROM '(?:ALTER|DROP) .*;$') AS drop FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ '^-- left out: shop.g';
CALL run($$drop FROM drops$$);
CALL run($$snowflake_convert.key('g', 'id')$$);
SELECT * FROM shape('shop') WHERE object = 'g.id';
DROP TABLE g, drops CASCADE;
-- ANALYZE follows: the planner knows the new columns
CREATE TABLE f (id serial PRIMARY KEY, a integer REFERENCES a);
INSERT INTO f SELECT FROM generate_series(1, 100);
CREATE INDEX f_expr ON f ((a + 1));
CALL run($$snowflake_convert.key('f', 'id')$$);
SELECT tablename, attname FROM pg_stats WHERE schemaname = 'shop' AND tablename ~ '^f' ORDER BY 1, 2;
CALL run($$snowflake_convert.key('a', 'id')$$);
SELECT tablename, attname FROM pg_stats WHERE schemaname = 'shop' AND tablename ~ '^f' ORDER BY 1, 2;
CALL run($$snowflake_convert.revert('{"shop.a.id": {"type": "integer", "sequence": "shop.a_id_seq", "as": "integer"}}')$$);
DROP TABLE f;

-- a reference that is added after the script was made is found before the commit
CREATE TABLE script AS SELECT row_number() OVER () AS n, s FROM snowflake_convert.key('a', 'id') AS s;
CREATE TABLE c (a integer REFERENCES a);
CALL run($$s FROM script ORDER BY n$$);
SELECT * FROM shape('shop') WHERE object ~ '^[abc]\.';
DROP TABLE c;
DROP TABLE a, b, script;

-- The way back reads the largest key of all rows, and hides rows from the owner
-- again.
CREATE TABLE hidden (id serial PRIMARY KEY, n integer);
CREATE TABLE of_hidden (hidden integer REFERENCES hidden);
CREATE POLICY first ON hidden USING (n = 1);
INSERT INTO hidden (n) SELECT generate_series(1, 5);
INSERT INTO of_hidden SELECT id FROM hidden;
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CALL public.run($$snowflake_convert.key('shop.hidden', 'id')$$);
ALTER TABLE hidden NO FORCE ROW LEVEL SECURITY;
SELECT sum(id), count(*) FROM hidden;
ALTER TABLE hidden FORCE ROW LEVEL SECURITY;
CALL public.run($$snowflake_convert.revert('{"shop.hidden.id": {"type": "integer", "sequence": "shop.hidden_id_seq"}}')$$);
SELECT relforcerowsecurity FROM pg_class WHERE oid = 'hidden'::regclass;
INSERT INTO hidden (n) VALUES (1) RETURNING id;
DROP TABLE hidden, of_hidden;

-- The script has to run as one role: all that changes belongs to the key's owner.
\c - regress_snowflake_admin
SET search_path = shop, public;
GRANT ALL ON SCHEMA shop TO regress_snowflake_other;
CREATE TABLE a (id serial PRIMARY KEY);
CREATE TABLE b (id bigserial PRIMARY KEY, a integer REFERENCES a);
CREATE VIEW v AS SELECT id FROM a;
CREATE TABLE c (id bigserial PRIMARY KEY);
ALTER VIEW v OWNER TO regress_snowflake_other;
ALTER TABLE b OWNER TO regress_snowflake_other;
ALTER TABLE a OWNER TO regress_snowflake_owner;
\c - regress_snowflake_other
SET search_path = shop, public;
SELECT snowflake_convert.key('a', 'id');
-- the owner of the schema could exchange names, unless it has the rights of the tables' owner
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s;
\c - regress_snowflake_admin
SET search_path = shop, public;
GRANT regress_snowflake_other TO regress_snowflake_owner;
\c - regress_snowflake_other
SET search_path = shop, public;
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s;
CALL run($$snowflake_convert.schema('{shop}')$$);
\c - regress_snowflake_admin
SET search_path = shop, public;
ALTER TABLE c OWNER TO regress_snowflake_owner;
CREATE TABLE mine (id serial PRIMARY KEY);
\c - regress_snowflake_other
SET search_path = shop, public;
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s;
\c - regress_snowflake_admin
SET search_path = shop, public;
DROP VIEW v;
DROP TABLE a, b, c, mine;

-- Who owns a type can make a cast of it, and of what is made of it; a trigger of a
-- view is parsed anew, too, and a reference's DEFAULT cast anew.
\c - regress_snowflake_other
SET search_path = shop, public;
CREATE TYPE mood AS ENUM ('ok');
CREATE FUNCTION number(mood) RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE CAST (mood AS integer) WITH FUNCTION number(mood) AS ASSIGNMENT;
\c - regress_snowflake_owner
SET search_path = shop, public;
CREATE DOMAIN state AS mood;
CREATE DOMAIN states AS mood[];
CREATE FUNCTION is_on(anyelement) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TABLE moods (id serial PRIMARY KEY, s state, ss states, j jsonb, CONSTRAINT of_state CHECK (id > 0 AND s::text <> 'x'));
CREATE TABLE of_mood (m integer DEFAULT 'ok'::mood REFERENCES moods);
CREATE VIEW of_states AS SELECT id, ss::text[] FROM moods;
CREATE VIEW triggered AS SELECT id FROM moods;
CREATE TRIGGER when_on BEFORE INSERT ON triggered FOR EACH STATEMENT WHEN (is_on(current_user)) EXECUTE FUNCTION nothing();
SELECT snowflake_convert.key('moods', 'id');
-- 17 has JSON_VALUE
DROP VIEW triggered, of_states;
ALTER TABLE moods DROP CONSTRAINT of_state;
SELECT current_setting('server_version_num')::integer >= 170000 AS has_json \gset
\if :has_json
CREATE VIEW of_json AS SELECT id, json_value(j, '$.a' RETURNING mood)::text FROM moods;
\else
CREATE VIEW of_json AS SELECT id, s::mood::text FROM moods;
\endif
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'of_json';
DROP TABLE moods CASCADE;
-- expressions and arrays of a row type; what belongs to a view's type and rule
CREATE TABLE rowed (id serial PRIMARY KEY);
CREATE VIEW of_row AS SELECT (row(1)::rowed)::text;
CREATE TABLE arrayed (id serial PRIMARY KEY);
CREATE TABLE of_array (a arrayed[]);
CREATE TABLE plain (id serial PRIMARY KEY);
CREATE VIEW of_plain AS SELECT id FROM plain;
COMMENT ON RULE "_RETURN" ON of_plain IS 'a rule';
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'rowed|arrayed|plain';
-- what only a partition's index has, and ALTER TYPE would lose
CREATE TABLE whole (id serial, n integer, PRIMARY KEY (n, id)) PARTITION BY LIST (n);
CREATE TABLE part PARTITION OF whole DEFAULT;
ALTER TABLE part REPLICA IDENTITY USING INDEX part_pkey;
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'whole';
ALTER TABLE part REPLICA IDENTITY DEFAULT;
ALTER INDEX part_pkey SET (fillfactor = 50);
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'whole';
ALTER INDEX part_pkey RESET (fillfactor);
SELECT count(*) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'left out.*whole';
DROP TABLE whole, of_mood, rowed, arrayed, of_array, plain CASCADE;
-- a column's privileges that another role has granted
CREATE TABLE granted (id serial PRIMARY KEY);
CREATE VIEW of_granted AS SELECT id FROM granted;
GRANT SELECT (id) ON of_granted TO regress_snowflake_other WITH GRANT OPTION;
\c - regress_snowflake_other
SET search_path = shop, public;
GRANT SELECT (id) ON of_granted TO PUBLIC;
\c - regress_snowflake_owner
SET search_path = shop, public;
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'of_granted';
DROP TABLE granted CASCADE;
-- another role's sequence, which the way back could not use
\c - regress_snowflake_other
SET search_path = shop, public;
CREATE SEQUENCE theirs AS integer;
GRANT USAGE ON SEQUENCE theirs TO regress_snowflake_owner;
\c - regress_snowflake_owner
SET search_path = shop, public;
CREATE TABLE of_theirs (id integer PRIMARY KEY DEFAULT nextval('theirs'));
SELECT short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'of_theirs';
DROP TABLE of_theirs;
-- with new ids the way back leads to bigint
CREATE TABLE wide (id serial PRIMARY KEY);
CALL run($$snowflake_convert.key('wide', 'id')$$);
INSERT INTO wide DEFAULT VALUES;
CALL run($$snowflake_convert.revert('{"shop.wide.id": {"type": "bigint", "sequence": "shop.wide_id_seq", "as": "bigint"}}')$$);
SELECT max(id) > 1000000 AS is_new, max(id) + 1 = nextval('wide_id_seq') AS is_next FROM wide;
DROP TABLE wide;
-- without the extension, its schema could be a stranger's
CREATE TABLE page (id serial PRIMARY KEY);
CREATE TABLE script AS SELECT row_number() OVER () AS n, s FROM snowflake_convert.key('page', 'id') AS s;
\c - regress_snowflake_admin
BEGIN;
DROP EXTENSION snowflake_convert;
SET SESSION AUTHORIZATION regress_snowflake_owner;
CALL run('s FROM shop.script ORDER BY n');
ROLLBACK;
SET search_path = shop, public;
DROP TABLE page, script;
\c - regress_snowflake_admin
SET search_path = shop, public;
DROP TYPE mood CASCADE;
DROP SEQUENCE theirs;
REVOKE regress_snowflake_other FROM regress_snowflake_owner;

-- what new ids may not fit
\c - regress_snowflake_owner
SET search_path = shop, public;
CREATE TABLE page (id serial PRIMARY KEY CONSTRAINT small CHECK (id < 2147483647), n integer CHECK (n < 5),
                   CONSTRAINT between_two CHECK (id BETWEEN 1 AND 1000000),
                   CONSTRAINT turned CHECK (2000000000 >= id),
                   CONSTRAINT fine CHECK (id > 0 AND id <> 5));
CREATE TABLE cast_key (id bigserial PRIMARY KEY, few integer GENERATED ALWAYS AS (id::integer) STORED,
                       CHECK (id::smallint <> 5));
CREATE INDEX of_cast ON cast_key ((id::integer));
CREATE TABLE revision (rev_page integer, page_id integer, "otherId" smallint, n integer, of integer REFERENCES page,
                       memberid integer, creator integer, page_is_new smallint);
CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS 'DECLARE key CONSTANT int4 := NEW.id; BEGIN PERFORM shop.called(NEW.id); RETURN NEW; END';
CREATE FUNCTION called(n integer) RETURNS integer LANGUAGE sql AS 'SELECT $1';
CREATE TRIGGER narrow BEFORE INSERT ON page FOR EACH ROW EXECUTE FUNCTION counts();
CREATE FUNCTION cancel(page_id integer, reason text) RETURNS void LANGUAGE sql AS 'DELETE FROM shop.page WHERE id = $1';
CREATE FUNCTION last() RETURNS bigint LANGUAGE sql AS $$INSERT INTO shop.page DEFAULT VALUES; SELECT lastval() + currval('shop.page_id_seq')$$;
CREATE FUNCTION atomic() RETURNS bigint BEGIN ATOMIC SELECT n::integer FROM page; END;
CREATE FUNCTION harmless(n integer) RETURNS integer LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION wide(id bigint) RETURNS bigint LANGUAGE sql AS 'SELECT id FROM shop.page';
SELECT short(s) FROM snowflake_convert.key('page', 'id') AS s WHERE s ~ '^--';
SELECT s FROM snowflake_convert.key('cast_key', 'id') AS s WHERE s ~ 'may not pass';
DROP TABLE cast_key;
CREATE TABLE cast_key (id bigserial PRIMARY KEY);
CREATE VIEW of_cast AS SELECT id::integer FROM cast_key;
SELECT s FROM snowflake_convert.key('cast_key', 'id') AS s WHERE s ~ 'may not pass';
DROP VIEW of_cast;
DROP TABLE cast_key;
-- arrays, domains, ranges and other schemas, and foreign tables, which are in the way
CREATE DOMAIN page_number AS integer;
CREATE TABLE "Old shop".notes (page_ids integer[], page page_number, of_page int4range, old_page integer);
SELECT short(s) FROM snowflake_convert.key('page', 'id') AS s WHERE s ~ 'stay|also';
DROP TABLE "Old shop".notes;
SELECT line FROM snowflake_convert.key('page', 'id', also => '{shop.revision.rev_page,"shop.revision.\"otherId\""}') AS s, short(s) AS line WHERE line ~ '^(--|    EXECUTE .ALTER)';
SELECT snowflake_convert.key('page', 'id', also => '{shop.revision.rev}');
SELECT snowflake_convert.key('page', 'id', also => '{revision.rev_page}');

-- A name with a line break does not end its comment, in no function.
CREATE TABLE "a
DROP TABLE shop.page; --" (id serial PRIMARY KEY, "b
DROP TABLE shop.page; --_id" integer);
CREATE FUNCTION of_name("c
DROP TABLE shop.page; --" integer) RETURNS integer LANGUAGE sql AS 'SELECT 1 FROM "a
DROP TABLE shop.page; --"';
CREATE TABLE script AS
SELECT s FROM snowflake_convert.schema('{shop}', except_keys => '{shop.page.id}') AS s UNION ALL
SELECT snowflake_convert.schema('{shop}', also => ARRAY[format('shop.%I.%I', E'a\nDROP TABLE shop.page; --', E'b\nDROP TABLE shop.page; --_id')]);
SELECT bool_and(line ~ '^--') AS are_all_comments FROM script, regexp_split_to_table(s, '[\n\r]') AS line WHERE s ~ '^--';
SELECT short(s) FROM script WHERE s ~ '^-- [klw]' LIMIT 5;
CALL run($$snowflake_convert.schema('{shop}')$$);
SELECT count(*) FROM page;
SELECT snowflake_convert.schema('{}', also => '{shop.revision.n}');

-- nothing writes: every function works in a read-only transaction
SELECT p.oid::regprocedure AS function, provolatile AS v, proparallel AS p, proconfig[1]
  FROM pg_proc AS p JOIN pg_depend AS d ON (d.classid, d.objid, d.deptype) = ('pg_proc'::regclass, p.oid, 'e')
  JOIN pg_extension AS e ON e.oid = d.refobjid
 WHERE e.extname = 'snowflake_convert' AND p.proname IN ('key', 'revert', 'schema', 'run_as', 'check_unchanged')
 ORDER BY 1;
\c - regress_snowflake_owner
SET search_path = '';
BEGIN READ ONLY;
CREATE TEMP TABLE t ();
ROLLBACK;
BEGIN READ ONLY;
SELECT count(*) > 1 AS has_script FROM snowflake_convert.schema('{shop,Old shop}');
SELECT count(*) > 1 AS has_script FROM snowflake_convert.key('"Old shop".customer', 'id', '{shop.revision.n}');
SELECT count(*) > 1 AS has_script FROM snowflake_convert.revert('{"shop.page.id": {"type": "bigint", "sequence": "shop.page_id_seq"}}');
CALL snowflake_convert.run_as(current_user);
CALL snowflake_convert.check_unchanged('{shop.page}', '{id}', 1, '{}', '');
ROLLBACK;

\c - regress_snowflake_admin
SET client_min_messages = warning;
DROP SCHEMA "Old shop", shop CASCADE;
DROP FUNCTION public.shape(name), public.short(text);
DROP PROCEDURE public.run(text);
\c - :superuser
DROP OWNED BY regress_snowflake_owner, regress_snowflake_other;
DROP ROLE regress_snowflake_owner, regress_snowflake_other, regress_snowflake_admin;
