-- doc/operations.md, doc/patroni.md and doc/restore.md.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE SCHEMA operations;
SET search_path = operations, public;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);

-- a server that was restored
INSERT INTO orders VALUES (1), (2);
\o /dev/null
-- RUN doc/restore.md: SELECT datacenter_id
-- RUN doc/patroni.md: SELECT setting
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
-- RUN doc/operations.md: SELECT format(

DROP SCHEMA operations CASCADE;
