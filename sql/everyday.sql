-- Everyday SQL around id bigint PRIMARY KEY DEFAULT snowflake_nextval().
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE SCHEMA everyday;
SET search_path = everyday, public;

-- Checks the ids of a table: all different, of this node, and issued during this
-- run.
CREATE FUNCTION check_ids(rel regclass, OUT rows bigint, OUT repeated bigint, OUT of_other_nodes bigint, OUT of_other_times bigint)
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('SELECT count(*), count(*) - count(DISTINCT id),
    count(*) FILTER (WHERE snowflake_worker_id(id) <> current_setting(%L)::int),
    count(*) FILTER (WHERE snowflake_timestamp(id) NOT BETWEEN now() - interval %L AND clock_timestamp())
    FROM %s', 'snowflake.worker_id', '10 minutes', rel) INTO rows, repeated, of_other_nodes, of_other_times;
END $$;
CREATE TABLE notes (
  id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
  key text UNIQUE,
  n int DEFAULT 0
);

-- COPY with and without ids in its data
COPY notes (key, n) FROM STDIN (FORMAT csv, HEADER);
key,n
a,1
b,2
\.
COPY notes FROM STDIN (FORMAT csv);
42,given,3
\.
SELECT key, id = 42 AS is_given FROM notes ORDER BY key;
DELETE FROM notes WHERE id = 42;

-- prepared statements, with a generic plan and with custom plans
PREPARE add(text) AS INSERT INTO notes (key) VALUES ($1) RETURNING id = snowflake_currval() AS is_currval;
SET plan_cache_mode = force_generic_plan;
EXECUTE add('generic 1');
EXECUTE add('generic 2');
SET plan_cache_mode = force_custom_plan;
EXECUTE add('custom 1');
EXECUTE add('custom 2');
RESET plan_cache_mode;
PREPARE next AS SELECT snowflake_nextval() AS id;
SET plan_cache_mode = force_generic_plan;
EXECUTE next \gset first_
EXECUTE next \gset second_
SELECT :first_id < :second_id AS not_folded;
RESET plan_cache_mode;
DEALLOCATE ALL;
SELECT * FROM check_ids('notes');

-- INSERT ... ON CONFLICT: the existing row keeps its id
SELECT id AS a_id FROM notes WHERE key = 'a' \gset
INSERT INTO notes (key) VALUES ('a') ON CONFLICT DO NOTHING RETURNING id;
INSERT INTO notes (key, n) VALUES ('a', 10), ('c', 10)
  ON CONFLICT (key) DO UPDATE SET n = excluded.n
  RETURNING key, n, id = :a_id AS is_id_of_a, id > :a_id AS is_larger;
-- MERGE
MERGE INTO notes USING (VALUES ('a', 20), ('d', 20)) AS s(key, n) ON notes.key = s.key
  WHEN MATCHED THEN UPDATE SET n = s.n
  WHEN NOT MATCHED THEN INSERT (key, n) VALUES (s.key, s.n);
SELECT key, n, id = :a_id AS is_id_of_a FROM notes WHERE key IN ('a', 'd') ORDER BY key;
-- UPDATE to the DEFAULT gives another id
UPDATE notes SET id = DEFAULT WHERE key = 'a' RETURNING id > :a_id AS is_larger;
-- two inserts in one statement, one of which references the other
CREATE TABLE remarks (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), note bigint REFERENCES notes);
WITH parent AS (INSERT INTO notes (key) VALUES ('parent') RETURNING id)
INSERT INTO remarks (note) SELECT id FROM parent, generate_series(1, 3) RETURNING id > note AS is_larger;
SELECT * FROM check_ids('notes');

-- ALTER TABLE ... ADD COLUMN ... DEFAULT: each row gets an id of its own
CREATE TABLE old AS SELECT n FROM generate_series(1, 5000) AS n;
ALTER TABLE old ADD COLUMN id bigint DEFAULT snowflake_nextval();
ALTER TABLE old ADD PRIMARY KEY (id);
SELECT * FROM check_ids('old');
-- CREATE TABLE AS, SELECT INTO, materialized views
CREATE TABLE made AS SELECT snowflake_nextval() AS id, n FROM old;
SELECT * FROM check_ids('made');
SELECT snowflake_nextval() AS id, n INTO made_too FROM old;
SELECT * FROM check_ids('made_too');
CREATE MATERIALIZED VIEW seen AS SELECT snowflake_nextval() AS id, n FROM old;
SELECT * FROM check_ids('seen');
SELECT max(id) AS largest FROM seen \gset
REFRESH MATERIALIZED VIEW seen;
SELECT c.*, (SELECT min(id) FROM seen) > :largest AS larger FROM check_ids('seen') AS c;
CREATE TABLE like_old (LIKE old INCLUDING ALL);
INSERT INTO like_old (n) SELECT n FROM old;
SELECT * FROM check_ids('like_old');

-- a trigger in place of a default
CREATE TABLE triggered (id bigint PRIMARY KEY, n int);
CREATE FUNCTION set_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.id := coalesce(NEW.id, snowflake_nextval());
  RETURN NEW;
END $$;
CREATE TRIGGER set_id BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION set_id();
INSERT INTO triggered (n) SELECT generate_series(1, 1000);
SELECT * FROM check_ids('triggered');
INSERT INTO triggered VALUES (5, 0) RETURNING id;

-- a generated column and an expression index, by the IMMUTABLE functions
CREATE TABLE dated (
  id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
  made_at timestamptz GENERATED ALWAYS AS (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12')) STORED
);
INSERT INTO dated VALUES (2123963931868688386), (DEFAULT);
SELECT made_at AT TIME ZONE 'UTC' AS made_at FROM dated WHERE id = 2123963931868688386;
SELECT count(*) AS differ FROM dated
 WHERE made_at IS DISTINCT FROM snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12');
CREATE INDEX dated_by_time ON dated (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12'));
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF)
SELECT id FROM dated WHERE snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12') = '2026-11-21 02:17:17.356+00';
SELECT id FROM dated WHERE snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12') = '2026-11-21 02:17:17.356+00';
RESET enable_seqscan;
RESET enable_bitmapscan;
-- STABLE functions are refused in an index and in a generated column
\set VERBOSITY sqlstate
CREATE INDEX ON dated (snowflake_timestamp(id));
ALTER TABLE dated ADD COLUMN t timestamptz GENERATED ALWAYS AS (snowflake_timestamp(id)) STORED;
\set VERBOSITY default

-- a partitioned table: the parent's DEFAULT serves every partition
CREATE TABLE parted (id bigint DEFAULT snowflake_nextval(), n int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parted_before PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (1000);
CREATE TABLE parted_now PARTITION OF parted FOR VALUES FROM (1000) TO (MAXVALUE);
INSERT INTO parted (n) SELECT generate_series(1, 1000);
INSERT INTO parted_now (n) SELECT generate_series(1, 1000);
INSERT INTO parted VALUES (999, 0);
SELECT tableoid::regclass AS partition, count(*) FROM parted GROUP BY 1 ORDER BY 1;
SELECT * FROM check_ids('parted_now');
-- inheritance
CREATE TABLE child (more text) INHERITS (notes);
INSERT INTO child (more) SELECT generate_series(1, 100);
SELECT * FROM check_ids('child');
DROP TABLE child;

-- views: the DEFAULT of the table, or a DEFAULT of the view
CREATE VIEW notes_view AS SELECT id, key, n FROM notes;
INSERT INTO notes_view (key) VALUES ('by view') RETURNING id = snowflake_currval() AS is_currval;
CREATE TABLE bare (id bigint PRIMARY KEY, n int);
CREATE VIEW bare_view AS TABLE bare;
ALTER VIEW bare_view ALTER id SET DEFAULT snowflake_nextval();
INSERT INTO bare_view (n) VALUES (1) RETURNING id = snowflake_currval() AS is_currval;

-- a domain's default
CREATE DOMAIN flake AS bigint DEFAULT snowflake_nextval() CHECK (VALUE > 0);
CREATE TABLE of_domain (id flake PRIMARY KEY, n int);
INSERT INTO of_domain (n) SELECT generate_series(1, 1000);
SELECT * FROM check_ids('of_domain');

-- a ROLLBACK gives no id back; a read-only transaction may issue ids
SELECT snowflake_nextval() AS start \gset
BEGIN;
INSERT INTO notes (key) VALUES ('kept 1') RETURNING id AS kept \gset
SAVEPOINT here;
INSERT INTO notes (key) VALUES ('lost') RETURNING id AS lost \gset
ROLLBACK TO here;
SELECT snowflake_currval() = :lost AS currval_is_of_the_session;
INSERT INTO notes (key) VALUES ('kept 2') RETURNING :start < :kept AND :kept < :lost AND :lost < id AS increasing;
COMMIT;
BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT snowflake_nextval() > :lost AS increasing;
COMMIT;

-- a role needs EXECUTE on snowflake_nextval() for an INSERT that uses the DEFAULT
CREATE ROLE regress_snowflake_user;
GRANT USAGE ON SCHEMA everyday TO regress_snowflake_user;
GRANT ALL ON notes TO regress_snowflake_user;
\set VERBOSITY sqlstate
SET ROLE regress_snowflake_user;
INSERT INTO notes (key) VALUES ('allowed') RETURNING id = snowflake_currval() AS is_currval;
RESET ROLE;
BEGIN;
REVOKE EXECUTE ON FUNCTION snowflake_nextval() FROM PUBLIC;
SET LOCAL ROLE regress_snowflake_user;
SAVEPOINT here;
INSERT INTO notes (key) VALUES ('refused');
ROLLBACK TO here;
SELECT snowflake_nextval();
ROLLBACK TO here;
-- an INSERT with an explicit id calls no function, and needs no privilege on it
INSERT INTO notes VALUES (1, 'given') RETURNING id;
ROLLBACK;
\set VERBOSITY default

-- the extension in a schema that is in no search_path
BEGIN;
DROP EXTENSION snowflake CASCADE;
CREATE SCHEMA "Else, where";
CREATE EXTENSION snowflake SCHEMA "Else, where";
CREATE EXTENSION snowflake_partitions;
CREATE TABLE there (id bigint PRIMARY KEY DEFAULT "Else, where".snowflake_nextval()) PARTITION BY RANGE (id);
\set ECHO none
SELECT unnest(statements) FROM snowflake_partitions.missing('there', date_trunc('day', now()), now() + interval '1 day', '1 day') \gexec
\set ECHO all
SELECT count(*) FROM pg_inherits WHERE inhparent = 'there'::regclass;
INSERT INTO there DEFAULT VALUES RETURNING id = "Else, where".snowflake_currval() AS is_currval;
SELECT count(worker_id) FROM "Else, where".snowflake_node();
SELECT "Else, where".snowflake_issued_between(id, now() - interval '1 day', 'infinity') FROM there;
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'there'::regclass;
ROLLBACK;

-- a schema that has names of the extension's
\set SHOW_CONTEXT never
BEGIN;
DROP EXTENSION snowflake CASCADE;
CREATE SCHEMA taken;
CREATE TABLE taken.snowflake (id bigint);
SAVEPOINT before;
CREATE EXTENSION snowflake SCHEMA taken;
ROLLBACK TO before;
DROP TABLE taken.snowflake;
CREATE FUNCTION taken.snowflake_id() RETURNS bigint LANGUAGE sql RETURN 1;
SAVEPOINT before;
CREATE EXTENSION snowflake SCHEMA taken;
ROLLBACK TO before;
CREATE SCHEMA ids;
CREATE EXTENSION snowflake SCHEMA ids;
CREATE TABLE taken.snowflake (id bigint DEFAULT ids.snowflake_nextval());
SELECT taken.snowflake_id(), ids.snowflake_id() > 1 AS is_id;
ROLLBACK;
\set SHOW_CONTEXT errors

-- DROP EXTENSION: refused while a default needs it; CASCADE drops the default
-- alone
\set VERBOSITY sqlstate
DROP EXTENSION snowflake;
BEGIN;
SELECT count(*) AS rows FROM notes \gset
DROP EXTENSION snowflake CASCADE;
SELECT count(*) = :rows AS keeps_rows FROM notes;
SELECT attnotnull AS keeps_not_null, atthasdef AS keeps_default FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'id';
SELECT count(*) AS primary_keys FROM pg_constraint WHERE conrelid = 'notes'::regclass AND contype = 'p';
INSERT INTO notes (key) VALUES ('no id');
ROLLBACK;
\set VERBOSITY default

DROP SCHEMA everyday CASCADE;
DROP ROLE regress_snowflake_user;
