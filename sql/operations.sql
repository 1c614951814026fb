-- The statements of doc/operations.md, doc/patroni.md and doc/restore.md, word for
-- word, which script/check-docs checks.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE SCHEMA operations;
SET search_path = operations, public;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);

-- a server that was restored
INSERT INTO orders VALUES (1), (2);
\o /dev/null
SELECT datacenter_id, worker_id, layout, epoch, in_recovery FROM snowflake_node();
SELECT snowflake_nextval() > max(id) AS is_larger FROM orders;   -- on a primary
SELECT setting, applied, sourcefile FROM pg_file_settings WHERE name = 'snowflake.worker_id';
\o
SELECT in_recovery, snowflake_nextval() > max(id) AS is_larger FROM snowflake_node(), orders GROUP BY 1;

-- The newest ids by all ways to write a DEFAULT.  A table without one is left out.
CREATE TABLE "Order Items" ("Id" bigint DEFAULT public.snowflake_id(), orders bigint);
CREATE TABLE typed (id snowflake DEFAULT (snowflake_nextval() + 0)) PARTITION BY RANGE (id);
CREATE TABLE typed_default PARTITION OF typed DEFAULT;
CREATE TABLE old (id bigint);
INSERT INTO "Order Items" VALUES (3), (4);
INSERT INTO typed VALUES (5);
INSERT INTO old VALUES (6);
\t on
SELECT format('SELECT %L AS "column", max(%I) AS newest FROM %s',
              attrelid::regclass || '.' || attname, attname, attrelid::regclass)
  FROM pg_depend JOIN pg_proc AS p ON p.oid = refobjid
  JOIN pg_attrdef AS d ON d.oid = objid JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
 WHERE classid = 'pg_attrdef'::regclass AND refclassid = 'pg_proc'::regclass
   AND proname IN ('snowflake_nextval', 'snowflake_id')
 ORDER BY attrelid \gexec

DROP SCHEMA operations CASCADE;
