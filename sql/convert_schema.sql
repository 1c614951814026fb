-- snowflake_convert.schema(): rewrites each table once, and puts views back.
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
CREATE SCHEMA shop;
CREATE SCHEMA "Other one";
-- the lines of a script; PostgreSQL's versions print queries differently, and
-- sizes differ by machine
CREATE FUNCTION public.short(script text) RETURNS SETOF text LANGUAGE sql AS $$
SELECT regexp_replace(regexp_replace(regexp_replace(regexp_replace(line, '\d+ (kB|bytes)', 'N kB'), ', MAINTAIN', ''),
                      '(AS SELECT|BEGIN ATOMIC| DO) .*$', '\1 ...'), '[0-9a-f]{64}', 'N')
  FROM regexp_split_to_table(script, E'\n(?=    (?:CALL|EXECUTE|SET) |END )') AS line
$$;
-- runs the script that a query returns
CREATE PROCEDURE public.run(query text) LANGUAGE plpgsql AS $$
DECLARE
  script text[];
  statement text;
BEGIN
  EXECUTE 'SELECT ARRAY(SELECT ' || query || ')' INTO script;
  FOREACH statement IN ARRAY script LOOP
    EXECUTE statement;
  END LOOP;
END $$;
CREATE ROLE regress_snowflake_reader LOGIN PASSWORD :'password';
CREATE ROLE regress_snowflake_clerk LOGIN PASSWORD :'password';
-- the output names the owner of the tables
CREATE ROLE regress_snowflake_owner SUPERUSER LOGIN PASSWORD :'password';
\c - regress_snowflake_owner
SET search_path = shop, public;

-- keys that reference each other, a composite key, and a table with several
-- columns to convert
CREATE TABLE customer (id serial PRIMARY KEY, favourite integer, name text);
CREATE TABLE product (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, best_customer integer REFERENCES customer);
ALTER TABLE customer ADD FOREIGN KEY (favourite) REFERENCES product;
CREATE TABLE orders (id bigserial, customer integer NOT NULL REFERENCES customer, product integer REFERENCES product,
                     PRIMARY KEY (id, customer));
CREATE TABLE line (orders bigint, customer integer, n integer, PRIMARY KEY (orders, customer, n),
                   FOREIGN KEY (orders, customer) REFERENCES orders (id, customer) ON DELETE CASCADE);
CREATE TABLE "Other one"."My notes" ("Its id" serial PRIMARY KEY, product integer REFERENCES product);
CREATE TABLE done (id bigint PRIMARY KEY DEFAULT snowflake_nextval());
CREATE TABLE follows (done integer REFERENCES done);
CREATE TABLE country (code integer PRIMARY KEY, name text);
CREATE TABLE no_key (n serial);
INSERT INTO customer (name) VALUES ('Ann'), ('Bob');
INSERT INTO product (best_customer) VALUES (1), (2);
INSERT INTO orders (customer, product) VALUES (1, 1), (2, 2);
INSERT INTO line SELECT id, customer, 1 FROM orders;

-- views, rules, triggers and policies that name the keys
CREATE VIEW customers WITH (security_barrier, security_invoker) AS SELECT id, name FROM customer;
CREATE VIEW anns WITH (check_option = local) AS SELECT * FROM customers WHERE name = 'Ann';
CREATE MATERIALIZED VIEW totals AS SELECT c.id, count(o.id) FROM customers AS c LEFT JOIN orders AS o ON o.customer = c.id GROUP BY c.id;
COMMENT ON VIEW customers IS 'it''s a \ view';
COMMENT ON COLUMN customers.name IS 'a name';
ALTER VIEW customers ALTER name SET DEFAULT 'nobody';
GRANT SELECT, INSERT ON customers TO regress_snowflake_reader WITH GRANT OPTION;
GRANT SELECT (name), UPDATE (name, id) ON anns TO regress_snowflake_reader;
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER on_view INSTEAD OF INSERT ON customers FOR EACH ROW EXECUTE FUNCTION noted();
COMMENT ON TRIGGER on_view ON customers IS 'instead';
CREATE RULE on_anns AS ON DELETE TO anns DO INSTEAD DELETE FROM customers WHERE id = OLD.id;
CREATE TRIGGER of_columns BEFORE UPDATE OF id, name ON customer FOR EACH ROW WHEN (NEW.id > 0) EXECUTE FUNCTION noted();
ALTER TABLE customer DISABLE TRIGGER of_columns;
CREATE CONSTRAINT TRIGGER late AFTER UPDATE OF product ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noted();
CREATE RULE on_product AS ON UPDATE TO product WHERE NEW.id < 0 DO ALSO DELETE FROM country WHERE code = NEW.id;
CREATE VIEW fine AS SELECT name FROM customer;
CREATE POLICY own ON orders AS RESTRICTIVE FOR UPDATE TO regress_snowflake_reader, regress_snowflake_clerk USING (customer > 0) WITH CHECK (id > 0);
CREATE POLICY all_rows ON product USING (id > 0);
COMMENT ON POLICY own ON orders IS 'own orders';
SET client_min_messages = error;
CREATE PUBLICATION regress_snowflake_some FOR TABLE customer (id, name), product WHERE (id > 5);
RESET client_min_messages;

CREATE VIEW state AS
SELECT c.oid::regclass::text AS name, c.relkind, c.reloptions::text, coalesce(c.relacl, acldefault('r', c.relowner))::text, obj_description(c.oid, 'pg_class'),
       pg_get_userbyid(c.relowner), c.relispopulated, CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END
  FROM pg_class AS c WHERE relnamespace = 'shop'::regnamespace AND relkind IN ('v', 'm', 'i') AND relname <> 'state'
UNION ALL
SELECT attrelid::regclass || '.' || attname, 'c'::"char", array_remove(attoptions, (SELECT o FROM unnest(attoptions) AS o WHERE o LIKE 'pg\_attver=%'))::text, attacl::text, col_description(attrelid, attnum),
       CASE WHEN attstattarget >= 0 THEN attstattarget::text END, attnotnull, pg_get_expr(adbin, adrelid)
  FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relkind IN ('v', 'm'))
   AND attnum > 0 AND attrelid::regclass::text <> 'state'
UNION ALL
SELECT tgname || ' on ' || tgrelid::regclass, tgenabled, NULL, NULL, obj_description(oid, 'pg_trigger'), NULL, NULL, pg_get_triggerdef(oid)
  FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT rulename || ' on ' || ev_class::regclass, ev_enabled, NULL, NULL, obj_description(oid, 'pg_rewrite'), NULL, NULL, pg_get_ruledef(oid)
  FROM pg_rewrite WHERE ev_class::regclass::text !~ '^(pg_|information_schema|snowflake)'  AND rulename <> '_RETURN'
UNION ALL
SELECT stxname, 's', NULL, NULL, obj_description(oid, 'pg_statistic_ext'), pg_get_userbyid(stxowner), NULL, pg_get_statisticsobjdef(oid) FROM pg_statistic_ext
UNION ALL
SELECT polname || ' on ' || polrelid::regclass, polcmd, polroles::regrole[]::text, pg_get_expr(polwithcheck, polrelid), obj_description(oid, 'pg_policy'), polpermissive::text, NULL, pg_get_expr(polqual, polrelid) FROM pg_policy
UNION ALL
SELECT pubname || ' of ' || tablename, 'p', attnames::text, NULL, NULL, NULL, NULL, rowfilter FROM pg_publication_tables;
-- what a script does not put back is in the way
SELECT public.short(s) FROM snowflake_convert.schema('{shop,Other one}') AS s WHERE s ~ '^-- left';
DROP MATERIALIZED VIEW totals;
DROP TRIGGER of_columns ON customer;
DROP TRIGGER late ON orders;
DROP POLICY own ON orders;
DROP POLICY all_rows ON product;
DROP RULE on_anns ON anns;
DROP RULE on_product ON product;
ALTER VIEW customers ALTER name DROP DEFAULT;
DROP PUBLICATION regress_snowflake_some;
CREATE TABLE before AS SELECT * FROM state;
CREATE TABLE files AS SELECT oid, relname, relfilenode FROM pg_class
 WHERE relkind = 'r' AND relnamespace IN ('shop'::regnamespace, '"Other one"'::regnamespace) AND relname <> 'before';

-- the script describes itself, and making it changes nothing
SELECT public.short(s) FROM snowflake_convert.schema('{shop,Other one}') AS s;
TABLE state EXCEPT TABLE before;

-- it rewrites each table once
CREATE TABLE rewritten (tab text);
CREATE FUNCTION count_rewrite() RETURNS event_trigger LANGUAGE plpgsql AS
$$BEGIN INSERT INTO shop.rewritten VALUES (pg_event_trigger_table_rewrite_oid()::regclass); END$$;
CREATE EVENT TRIGGER regress_snowflake_rewrite ON table_rewrite EXECUTE FUNCTION count_rewrite();
CALL public.run($$snowflake_convert.schema('{shop,Other one}')$$);
DROP EVENT TRIGGER regress_snowflake_rewrite;
SELECT tab, count(*) FROM rewritten GROUP BY tab ORDER BY tab;
SELECT attrelid::regclass, attname, atttypid::regtype, pg_get_expr(adbin, adrelid)
  FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE attrelid IN (SELECT oid FROM files) AND attnum > 0 ORDER BY attrelid, attnum;
SELECT 'before' AS at, * FROM (TABLE before EXCEPT TABLE state) AS s UNION ALL
SELECT 'after', * FROM (TABLE state EXCEPT TABLE before) AS s ORDER BY 2, 1;
SELECT conrelid::regclass, conname, convalidated FROM pg_constraint WHERE contype = 'f' AND connamespace = 'shop'::regnamespace ORDER BY 1, 2;
-- after the conversion the keys that are left alone are listed
SELECT * FROM snowflake_convert.schema('{shop,Other one}');

-- A view that was put back has its old privileges, not the default privileges of
-- new tables.
GRANT ALL ON SCHEMA shop TO regress_snowflake_clerk;
\c - regress_snowflake_clerk
SET search_path = shop, public;
CREATE TABLE clerks (id serial PRIMARY KEY);
CREATE VIEW its AS SELECT id FROM clerks;
ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT ALL ON TABLES TO regress_snowflake_reader;
CREATE VIEW given AS SELECT id FROM clerks;
REVOKE UPDATE ON given FROM regress_snowflake_clerk;
\c - regress_snowflake_owner
SET search_path = shop, public;
TRUNCATE before; INSERT INTO before TABLE state;
\c - regress_snowflake_clerk
SET search_path = shop, public;
CALL public.run($$snowflake_convert.key('clerks', 'id')$$);
\c - regress_snowflake_owner
SET search_path = shop, public;
SELECT 'before' AS at, * FROM (TABLE before EXCEPT TABLE state) AS s UNION ALL
SELECT 'after', * FROM (TABLE state EXCEPT TABLE before) AS s ORDER BY 2, 1;

-- an obstacle keeps one key and its references from being converted, and no other
-- key
CREATE TABLE a (id serial PRIMARY KEY, by_function bigint GENERATED ALWAYS AS (id + 1) STORED);
CREATE TABLE b (id serial PRIMARY KEY, a integer REFERENCES a);
CREATE TABLE c (a integer REFERENCES a, b integer REFERENCES b);
CREATE TABLE free (id serial PRIMARY KEY);
SELECT public.short(s) FROM snowflake_convert.schema('{shop}', except_keys => '{shop.product.id,shop.done.id}') AS s;
CALL public.run($$snowflake_convert.schema('{shop}')$$);
SELECT attrelid::regclass, atttypid::regtype FROM pg_attribute WHERE attrelid IN ('a'::regclass, 'b'::regclass, 'free'::regclass) AND attname = 'id' ORDER BY 1;
ALTER TABLE a DROP by_function;

CREATE VIEW used AS SELECT id FROM a;
CREATE FUNCTION of_view() RETURNS SETOF used LANGUAGE sql AS 'SELECT * FROM shop.used';
CREATE TABLE of_type (u used);
CREATE VIEW homeless AS SELECT id FROM a;
ALTER VIEW homeless OWNER TO regress_snowflake_reader;
CREATE FUNCTION of_a() RETURNS bigint BEGIN ATOMIC SELECT id FROM a; END;
-- what a view that is made again would lose: a grant by another role
CREATE VIEW granted AS SELECT id FROM a;
GRANT SELECT ON granted TO regress_snowflake_reader WITH GRANT OPTION;
SET ROLE regress_snowflake_reader;
GRANT SELECT ON granted TO regress_snowflake_clerk;
RESET ROLE;
SELECT public.short(s) FROM snowflake_convert.schema('{shop}') AS s;
DROP VIEW used, homeless, granted CASCADE;
DROP FUNCTION of_a();

-- A view that a bigint would break keeps its key from being converted.
CREATE VIEW of_date AS SELECT CURRENT_DATE + (id + 1) AS day FROM a;
CREATE VIEW of_view AS SELECT id + 1 AS id FROM a;
CREATE VIEW of_of_view AS SELECT substr('snowflake', id) FROM of_view;
CREATE VIEW of_both AS SELECT abs(id), id % 5 AS a, id << 1 AS b, mod(id, 5), to_char(id, '9'), id = ANY ('{1}') AS c, id::float8 AS d, substr('snowflake', 3), sum(id) OVER () FROM a;
SELECT snowflake_convert.key('shop.a', 'id');
DROP VIEW of_date, of_view CASCADE;
CALL public.run($$snowflake_convert.key('a', 'id')$$);
DROP VIEW of_both;
CALL public.run($$snowflake_convert.revert('{"shop.a.id": {"type": "integer", "sequence": "shop.a_id_seq", "as": "integer"}}')$$);

-- The way back restores sequences, defaults and identities of inheritors and
-- partitions.
CREATE TABLE up (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n integer);
CREATE TABLE down () INHERITS (up);
ALTER TABLE down ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START WITH 100 INCREMENT BY 7);
CREATE TABLE bare () INHERITS (up);
CREATE TABLE other () INHERITS (up);
CREATE UNLOGGED SEQUENCE other_id_seq AS integer OWNED BY other.id;
ALTER TABLE other ALTER id SET DEFAULT nextval('other_id_seq');
CREATE TABLE divided (id integer GENERATED BY DEFAULT AS IDENTITY, n integer, PRIMARY KEY (id, n)) PARTITION BY LIST (n);
CREATE TABLE of_divided PARTITION OF divided DEFAULT;
CREATE TABLE rising (id integer GENERATED BY DEFAULT AS IDENTITY (MINVALUE -5 START WITH 1) PRIMARY KEY);
CREATE TABLE sinking (id integer GENERATED BY DEFAULT AS IDENTITY (INCREMENT BY -1 MINVALUE 1 MAXVALUE 100) PRIMARY KEY);
CREATE TABLE falling (id integer GENERATED BY DEFAULT AS IDENTITY (INCREMENT BY -1) PRIMARY KEY);
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO regress_snowflake_clerk;
SELECT setval('up_id_seq', 77), setval('down_id_seq', 170), setval('other_id_seq', 42), setval('divided_id_seq', 5, false);
COMMENT ON SEQUENCE other_id_seq IS 'a sequence';
GRANT USAGE ON SEQUENCE other_id_seq, divided_id_seq TO regress_snowflake_reader;
CREATE VIEW columns AS
SELECT attrelid::regclass, attname, atttypid::regtype, attidentity, pg_get_expr(adbin, adrelid) FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE attrelid = ANY ('{up,down,bare,other,divided,of_divided}'::regclass[]) AND attnum > 0
UNION ALL
SELECT NULL, relname, seqtypid::regtype, relpersistence, concat_ws(' ', obj_description(seqrelid, 'pg_class'), seqstart, seqincrement, seqmin, seqmax, coalesce(relacl, acldefault('s', relowner)), pg_sequence_last_value(seqrelid))
  FROM pg_sequence JOIN pg_class AS c ON c.oid = seqrelid WHERE relname ~ '^(up|down|other|divided|rising|sinking)_';
CREATE TABLE columns_before AS TABLE columns;
CREATE TABLE script AS SELECT row_number() OVER () AS n, s FROM snowflake_convert.schema('{shop}') AS s;
INSERT INTO falling SELECT FROM generate_series(1, 2);
CALL public.run('s FROM shop.script ORDER BY n');
SELECT attrelid, attname, atttypid, pg_get_expr FROM columns WHERE attname = 'id' ORDER BY 1;
SELECT substring(s FROM 'back: SELECT (.*);') AS call FROM script WHERE s ~ '^-- back' \gset
CALL public.run(:'call');
(TABLE columns_before EXCEPT TABLE columns) UNION ALL (TABLE columns EXCEPT TABLE columns_before);
INSERT INTO falling DEFAULT VALUES RETURNING id;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON SEQUENCES FROM regress_snowflake_clerk;
DROP TABLE up, divided, rising, sinking, falling, script, columns_before CASCADE;

-- For a bigint, a view could use another function of the same name afterwards.
CREATE FUNCTION twice(integer) RETURNS integer LANGUAGE sql AS 'SELECT $1';
CREATE VIEW of_function AS SELECT twice(id) FROM a;
SELECT public.short(s) FROM snowflake_convert.schema('{shop}') AS s WHERE s ~ 'in the way';
DROP VIEW of_function;

-- A view's constants stay the same, whatever settings the session that makes the
-- script and the session that runs it have.
CREATE TABLE dated (id serial PRIMARY KEY, d date, f float8);
CREATE VIEW constants AS
SELECT id, 'a\'::text AS a, ' b; --'::text AS b FROM dated WHERE d < '2026-02-03' AND f < '0.30000000000000004' AND d::timestamp + '-1 day +2 hours' < now();
CREATE TABLE definition AS SELECT pg_get_viewdef('constants') AS d;
SET datestyle = sql, dmy; SET intervalstyle = sql_standard; SET extra_float_digits = -10;
-- from 19 on, always on
SELECT current_setting('server_version_num')::integer < 190000 AS has_switch \gset
\if :has_switch
SET standard_conforming_strings = off;
\endif
CREATE TABLE script AS SELECT row_number() OVER () AS n, s FROM snowflake_convert.key('dated', 'id') AS s;
SET datestyle = sql, mdy;
CALL public.run('s FROM shop.script ORDER BY n');
RESET standard_conforming_strings; RESET datestyle; RESET intervalstyle; RESET extra_float_digits;
SELECT pg_get_viewdef('constants') = d AS is_same FROM definition;
DROP TABLE dated, definition, script CASCADE;

-- errors
SELECT snowflake_convert.schema('{nowhere}');
SELECT snowflake_convert.schema('{NULL}');
SELECT snowflake_convert.schema('{}');
SELECT snowflake_convert.schema(NULL);
SELECT snowflake_convert.schema('{shop}', except_keys => '{shop.customers}');
SELECT snowflake_convert.schema('{shop}', also => '{shop.a.nothing}');
CREATE TABLE generated (n integer, m integer GENERATED ALWAYS AS (n) STORED);
SELECT snowflake_convert.schema('{shop}', also => '{shop.generated.n}');

-- partitions and inheritors are converted with their parents
CREATE TABLE parent (id serial PRIMARY KEY, k integer);
CREATE TABLE child (extra text) INHERITS (parent);
CREATE TABLE parted (id serial, k integer, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE part_2 PARTITION OF parted DEFAULT;
CREATE VIEW of_part AS SELECT id FROM part_1;
CREATE TRIGGER any_column AFTER UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION noted();
CREATE TABLE by_key (id serial PRIMARY KEY) PARTITION BY RANGE (id);
SELECT public.short(s) FROM snowflake_convert.schema('{shop}') AS s;
CALL public.run($$snowflake_convert.schema('{shop}')$$);
SELECT attrelid::regclass, atttypid::regtype FROM pg_attribute WHERE attrelid IN ('child'::regclass, 'part_2'::regclass, 'of_part'::regclass) AND attname = 'id' ORDER BY 1;

SET client_min_messages = warning;
DROP SCHEMA shop, "Other one" CASCADE;
DROP OWNED BY regress_snowflake_reader, regress_snowflake_clerk;
\c - :superuser
DROP ROLE regress_snowflake_reader, regress_snowflake_clerk, regress_snowflake_owner;
DROP FUNCTION short(text);
DROP PROCEDURE run(text);
