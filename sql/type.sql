-- The type snowflake: a bigint that JSON has as a string.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_partitions;
CREATE SCHEMA type;
SET search_path = type, public;
SET TimeZone = 'UTC';

CREATE TABLE posts (id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), n integer);
INSERT INTO posts VALUES (2126648077073780737, 1), ('9007199254740993', 2), (-1, 3), (4, 4);

-- JSON has strings, in rows, arrays and objects, and reads strings and numbers
SELECT row_to_json(p) FROM posts AS p;
SELECT json_agg(id ORDER BY n), jsonb_agg(DISTINCT id), to_jsonb(array_agg(id ORDER BY n)), json_build_object('id', max(id)::snowflake) FROM posts;
SELECT json_object_agg(n, id), (SELECT to_json(id) FROM posts WHERE n = 1) FROM posts;
SELECT jsonb_populate_record(NULL::posts, to_jsonb(p)) = p AS same FROM posts AS p;
SELECT id, id + 1 AS next FROM json_to_recordset('[{"id": "2126648077073780737"}, {"id": 2126648077073780737}]') AS r(id snowflake);
-- an id as text, as a client sends it back
SELECT n FROM posts WHERE id = '2126648077073780737';
-- as a parameter, which the type's name in function notation must not take for a float
PREPARE by_cast AS SELECT n FROM posts WHERE id = $1::snowflake;
EXECUTE by_cast('2126648077073780737');
EXECUTE by_cast('9007199254740993');
\set VERBOSITY terse
PREPARE by_call AS SELECT n FROM posts WHERE id = snowflake($1);
SELECT n FROM posts WHERE id = snowflake('2126648077073780737') OR id = snowflake('9007199254740993'::text) OR id = snowflake(4::bigint) ORDER BY n;
SELECT n FROM posts WHERE id = snowflake(9007199254740993.0);
SELECT n FROM posts WHERE id = '2126648077073780737.5';
INSERT INTO posts VALUES ('9223372036854775808');
\set VERBOSITY default

-- ALTER TABLE ... TYPE, and back, rewrites neither the table nor an index, but one
-- with an expression or a WHERE: PostgreSQL does not compare these
CREATE TABLE old (id bigint PRIMARY KEY CHECK (id > 0.5), parent bigint REFERENCES old);
CREATE INDEX old_hash ON old USING hash (id);
CREATE INDEX old_brin ON old USING brin (id);
CREATE INDEX old_by_time ON old (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00'), parent) WHERE id > 0;
INSERT INTO old SELECT n, nullif(n - 1, 0) FROM generate_series(1, 1000) AS n;
CREATE TABLE files AS SELECT relname, relfilenode FROM pg_class WHERE relnamespace = 'type'::regnamespace AND relname LIKE 'old%';
ALTER TABLE old ALTER id TYPE snowflake, ALTER parent TYPE snowflake;
SELECT row_to_json(o) FROM old AS o WHERE id = 2;
SELECT relname, c.relfilenode = f.relfilenode AS same_file FROM files AS f JOIN pg_class AS c USING (relname) ORDER BY 1;
ALTER TABLE old ADD CHECK (id::bigint > 0.5);
ALTER TABLE old ALTER parent TYPE bigint;
SELECT row_to_json(o) FROM old AS o WHERE id = 2;
ALTER TABLE old ALTER id TYPE bigint;
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'old'::regclass AND contype = 'c' ORDER BY conname;
SELECT row_to_json(o) FROM old AS o WHERE id = 2;
SELECT relname, c.relfilenode = f.relfilenode AS same_file FROM files AS f JOIN pg_class AS c USING (relname) ORDER BY 1;

-- Every operator and function that takes a bigint takes a snowflake, and returns
-- the same type.
CREATE FUNCTION type_of(expression text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  type text;
BEGIN
  EXECUTE 'CREATE TEMP VIEW expression AS SELECT ' || expression;
  SELECT atttypid::regtype INTO type FROM pg_attribute WHERE attrelid = 'expression'::regclass;
  DROP VIEW expression;
  RETURN type;
EXCEPTION WHEN OTHERS THEN
  RETURN sqlstate;
END $$;
CREATE TABLE expressions AS
  SELECT concat('NULL::' || nullif(oprleft, 0)::regtype, ' ', oprname, ' NULL::', oprright::regtype) AS of_bigint
    FROM pg_operator WHERE 'bigint'::regtype IN (oprleft, oprright) AND oprnamespace = 'pg_catalog'::regnamespace
  UNION ALL
  SELECT format('%I(%s)', proname, (SELECT string_agg('NULL::' || type::regtype, ', ') FROM unnest(proargtypes) AS type))
    FROM pg_proc WHERE 'bigint'::regtype = ANY (proargtypes) AND pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('a', 'f');
ANALYZE expressions;
SELECT count(*) FILTER (WHERE type_of(of_bigint) ~ '[a-z]') > 200 AS are_many,
       string_agg(of_snowflake, E'\n') FILTER (WHERE type_of(of_bigint) <> type_of(of_snowflake)) AS differ
  FROM expressions, replace(of_bigint, '::bigint', '::snowflake') AS of_snowflake;

-- What both types are with others.  SQLSTATE 42883, 42804 and 42846: write id::bigint.
SELECT expression, type_of(regexp_replace(expression, '\mid\M', 'NULL::bigint', 'g')) AS of_bigint, type_of(regexp_replace(expression, '\mid\M', 'NULL::snowflake', 'g')) AS of_snowflake
  FROM unnest(ARRAY[
    'id = 5', 'id = 5::smallint', 'id = ''5''', 'id = NULL', 'id + 1', '1::smallint + id', 'id + id', 'max(id)', 'sum(id)',
    'id::float8', 'id::float4', 'id::numeric', 'id::integer', 'id::smallint', 'id::text', 'float8(id)',
    'coalesce(id, 0)', 'coalesce(0, id)', 'greatest(id, 5::smallint)', 'CASE WHEN true THEN 1 ELSE id END', 'ARRAY[1, id]', 'lag(id) OVER ()',
    'id > 1.5', 'id IN (1, 2.5)', 'nullif(id, 1.5)', 'id IS DISTINCT FROM 1.5', 'id + 1.5', 'id = 1.5::float8', 'sqrt(id)', 'coalesce(id, 1.5)', 'id::oid']) AS expression;
SELECT 5::smallint::snowflake, 5.4::snowflake, 5.6::float8::snowflake, 5::float4::snowflake, '5'::text::snowflake, pg_typeof(s) FROM (SELECT 1::snowflake UNION SELECT 1) AS t(s);
CREATE FUNCTION plus(a snowflake, b bigint) RETURNS snowflake LANGUAGE plpgsql AS $$
DECLARE
  sum snowflake := a + b;
BEGIN
  FOR i IN 1 .. 2 LOOP
    sum := sum + i;
  END LOOP;
  IF sum > a AND sum <> 0 THEN
    RETURN sum;
  END IF;
END $$;
SELECT plus(1, 2::snowflake), plus(1::bigint, 2), plus('1', '2');

-- What a primary key's index serves
CREATE TABLE visits (id snowflake PRIMARY KEY, post snowflake NOT NULL);
INSERT INTO visits SELECT n, n FROM generate_series(1, 10000) AS n;
CREATE INDEX ON visits USING hash (post);
ANALYZE visits;
CREATE FUNCTION plan_has(query text, pattern text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    IF line ~ pattern THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;
SELECT condition, plan_has('SELECT FROM visits WHERE ' || condition, 'Index Cond') AS uses_index
  FROM unnest(ARRAY['id = 5', 'id = ''5''', 'id = 5::smallint', 'id = 5::bigint', '5 = id', 'id IN (1, 2)', 'id = ANY (''{1,2}'')', 'id = ANY (ARRAY[1, 2]::snowflake[])',
    'id BETWEEN 5 AND 9', 'id IN (SELECT 1::bigint)', '(id, post) > (9990, 1)', 'post = 5', 'snowflake_issued_between(id, now(), ''infinity'')']) AS condition;
SELECT plan_has('SELECT FROM (SELECT id::snowflake AS id FROM old) AS view WHERE id = ''5''', 'Index Cond') AS by_view;
SELECT plan_has('SELECT max(id), min(id) FROM visits', 'Index Only Scan') AS max, plan_has('SELECT id FROM visits ORDER BY id DESC LIMIT 1', 'Index') AS order_by,
       plan_has('SELECT FROM visits AS v JOIN generate_series(1::bigint, 5) AS n ON n = v.id', 'Index Cond') AS nested_loop;
SET enable_nestloop = off;
SELECT plan_has('SELECT FROM visits AS v JOIN posts AS p ON p.id = v.post', 'Hash Cond') AS hash_join;
SET enable_hashjoin = off;
SELECT plan_has('SELECT FROM visits AS v JOIN (SELECT n::bigint FROM posts) AS p ON p.n = v.id', 'Merge Cond') AS merge_join;
RESET enable_nestloop;
RESET enable_hashjoin;
PREPARE by_id AS SELECT post FROM visits WHERE id = $1;
PREPARE by_ids AS SELECT post FROM visits WHERE id = ANY ($1) ORDER BY id;
EXECUTE by_id('5');
EXECUTE by_ids('{5,6}');

-- Keys: between both types, ON CONFLICT, MERGE
CREATE TABLE notes (id bigint PRIMARY KEY, post bigint REFERENCES posts ON UPDATE CASCADE, visit integer REFERENCES visits);
CREATE TABLE remarks (note snowflake REFERENCES notes ON DELETE CASCADE, ids snowflake[], UNIQUE (note, ids));
INSERT INTO notes VALUES (1, 4, 5);
INSERT INTO remarks VALUES (1, '{1,2}'), (1, ARRAY[3, 4]) ON CONFLICT (note, ids) DO NOTHING;
INSERT INTO remarks VALUES (1, ARRAY[1, 2]::bigint[]) ON CONFLICT (note, ids) DO UPDATE SET ids = excluded.ids || 5::snowflake RETURNING ids, to_json(ids);
\set VERBOSITY sqlstate
INSERT INTO notes VALUES (2, 5);
INSERT INTO remarks VALUES (2);
\set VERBOSITY default
UPDATE posts SET id = 40 WHERE id = 4;
MERGE INTO posts USING (VALUES (40, 5), (50, 5)) AS s(id, n) ON posts.id = s.id
  WHEN MATCHED THEN UPDATE SET n = s.n
  WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.n);
SELECT p.id, p.n, notes.id AS note FROM posts AS p LEFT JOIN notes ON post = p.id WHERE p.n >= 5 ORDER BY 1;
DELETE FROM notes;
SELECT count(*) FROM remarks;

-- Grouping, statistics, other indexes, materialized views, domains
SELECT count(DISTINCT post % 10::snowflake), count(*) FROM (SELECT DISTINCT post FROM visits) AS v;
SELECT post % 3 AS rest, min(id), max(id), rank() OVER (ORDER BY min(id)) FROM visits GROUP BY 1 ORDER BY rest;
CREATE STATISTICS visits_statistics ON id, post FROM visits;
ANALYZE visits;
SELECT dependencies IS NOT NULL AS has_dependencies, s.n_distinct = -1 AS is_unique, histogram_bounds IS NOT NULL AS has_histogram
  FROM pg_stats_ext JOIN pg_stats AS s USING (schemaname, tablename) WHERE statistics_name = 'visits_statistics' AND attname = 'id';
CREATE INDEX visits_brin ON visits USING brin (post);
CREATE INDEX remarks_gin ON remarks USING gin (ids);
INSERT INTO remarks (ids) VALUES ('{7,8}');
SET enable_seqscan = off;
SELECT plan_has('SELECT FROM visits WHERE post BETWEEN 5 AND 9', 'visits_brin') AS brin, plan_has('SELECT FROM remarks WHERE ids @> ''{7}''', 'remarks_gin') AS gin;
SELECT ids FROM remarks WHERE ids @> '{7}';
RESET enable_seqscan;
CREATE MATERIALIZED VIEW seen AS SELECT id, n FROM posts;
CREATE UNIQUE INDEX ON seen (id);
UPDATE posts SET n = n + 1;
REFRESH MATERIALIZED VIEW CONCURRENTLY seen;
SELECT count(*) FROM seen JOIN posts USING (id, n);
CREATE DOMAIN post_id AS snowflake CHECK (VALUE > 0);
CREATE TABLE of_domain (id post_id PRIMARY KEY DEFAULT snowflake_nextval());
INSERT INTO of_domain VALUES (DEFAULT), (5);
SELECT id, to_json(id) FROM of_domain WHERE id = 5;
CREATE TYPE pair AS (a snowflake, b snowflake);
SELECT to_json(ROW(1, 2)::pair), ROW(1, 2)::pair = ROW(1, 2)::pair AS eq, ROW(1, 2)::pair < ROW(1, 3)::pair AS lt, ARRAY[1, 2]::snowflake[] < ARRAY[1, 3]::snowflake[] AS array_lt;

-- Partitions by list and hash; by range, with the procedures
CREATE TABLE listed (id snowflake) PARTITION BY LIST (id);
CREATE TABLE listed_1 PARTITION OF listed FOR VALUES IN (1, '2');
CREATE TABLE hashed (id snowflake PRIMARY KEY) PARTITION BY HASH (id);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO listed VALUES (1), (2);
INSERT INTO hashed SELECT generate_series(1, 100);
SELECT plan_has('SELECT FROM hashed WHERE id = 5', 'hashed_0') <> plan_has('SELECT FROM hashed WHERE id = 5', 'hashed_1') AS pruned,
       (SELECT count(*) FROM hashed JOIN visits USING (id)) AS joined;
SET client_min_messages = notice;
CREATE TABLE clicks (id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), n integer) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('clicks', '2026-01-01', '2028-01-01', '1 year');
CALL snowflake_partitions.create_range('clicks', '2027-01-01', '2029-01-01', '1 year');
INSERT INTO clicks VALUES (snowflake_encode('2026-06-01', 0, 1, 0), 1), (snowflake_encode('2028-06-01', 0, 1, 1), 2);
SELECT tableoid::regclass, n, snowflake_sequence(id) FROM clicks ORDER BY id;
SELECT plan_has(query, 'clicks_2026') AS of_2026, plan_has(query, 'clicks_2027') AS of_2027
  FROM (SELECT 'SELECT FROM clicks WHERE snowflake_issued_between(id, ''2027-02-01'', ''2027-03-01'')') AS q(query);
CALL snowflake_partitions.drop_before('clicks', '2027-01-01');
SET client_min_messages = warning;
INSERT INTO posts DEFAULT VALUES;
SELECT count(*) FROM posts WHERE n IS NULL AND id < snowflake_horizon('posts');

DROP SCHEMA type CASCADE;
