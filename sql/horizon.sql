-- The horizon: every transaction that took a smaller id has ended, and no
-- smaller id will be issued.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
CREATE TABLE events (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), what text);
-- where this session's transaction holds the horizon: at its first id, or NULL
CREATE VIEW held AS
SELECT horizon = snowflake_horizon() AS holds, horizon <= min(id) AS at_first_id
  FROM snowflake_stat_backend() LEFT JOIN events ON true
 WHERE pid = pg_backend_pid() GROUP BY horizon;
-- how many rows are below and above the horizon
CREATE VIEW read AS
SELECT count(*) FILTER (WHERE id < horizon) AS below, count(*) FILTER (WHERE id >= horizon) AS above
  FROM snowflake_horizon() AS horizon, events;

-- rows of transactions that have ended are below, and later ids are not
INSERT INTO events (what) VALUES ('one'), ('two'), ('three') RETURNING what;
SELECT * FROM read;
SELECT * FROM held;
SELECT snowflake_horizon() AS horizon \gset
SELECT snowflake_horizon() = :horizon AS idle, snowflake_nextval() >= :horizon AS later;

-- the present transaction's rows are not below, not even after a savepoint is
-- rolled back
TRUNCATE events;
BEGIN;
INSERT INTO events (what) VALUES ('first');
SELECT * FROM held;
SAVEPOINT s;
INSERT INTO events (what) VALUES ('second');
ROLLBACK TO s;
SELECT * FROM held;
SELECT * FROM read;
COMMIT;
SELECT * FROM held;
SELECT * FROM read;

-- a rollback and an error end the transaction, too
BEGIN;
INSERT INTO events (what) VALUES ('rolled back');
ROLLBACK;
SELECT * FROM held;
INSERT INTO events (what) SELECT 'failed' || 1 / (2 - n) FROM generate_series(1, 2) AS n;
SELECT * FROM held;

-- a transaction whose ids only a savepoint took
BEGIN;
SAVEPOINT s;
SELECT snowflake_nextval() > 0 AS issued;
ROLLBACK TO s;
SELECT holds FROM held;
COMMIT;

-- a procedure that commits in the middle
TRUNCATE events;
CREATE PROCEDURE commit_often() LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1 .. 3 LOOP
    INSERT INTO events (what) VALUES (i);
    RAISE NOTICE '%: before the commit % below', i, (SELECT below FROM read);
    COMMIT;
    RAISE NOTICE '%: after the commit % below', i, (SELECT below FROM read);
  END LOOP;
END
$$;
CALL commit_often();
-- and that commits in the middle of snowflake_nextvals()
CREATE PROCEDURE commit_often_in_a_loop() LANGUAGE plpgsql AS $$
DECLARE
  issued bigint;
  wrong int := 0;
  horizon bigint := 0;
BEGIN
  FOR issued IN SELECT snowflake_nextvals(100) LOOP
    COMMIT;
    horizon := snowflake_horizon();
    wrong := wrong + (issued >= horizon)::int;
  END LOOP;
  RAISE NOTICE '% ids are not below the horizon after their transaction', wrong;
END
$$;
CALL commit_often_in_a_loop();

-- snowflake_nextvals() through a cursor, slowly
TRUNCATE events;
BEGIN;
DECLARE many CURSOR FOR SELECT snowflake_nextvals(3);
MOVE 1 FROM many;
INSERT INTO events (what) VALUES ('between');
MOVE 1 FROM many;
SELECT * FROM held;
COMMIT;
-- a cursor WITH HOLD takes its ids before the commit
DECLARE held_ids CURSOR WITH HOLD FOR SELECT snowflake_nextval() AS id FROM generate_series(1, 3);
SELECT snowflake_horizon() AS horizon \gset
CREATE TABLE fetched (id bigint);
DO $$
DECLARE
  ids refcursor := 'held_ids';
  fetched bigint;
BEGIN
  FOR i IN 1 .. 3 LOOP
    FETCH ids INTO fetched;
    INSERT INTO fetched VALUES (fetched);
  END LOOP;
END
$$;
SELECT count(*), bool_and(id < :horizon) AS below FROM fetched;
CLOSE held_ids;

-- ids of COPY, and of a deferred trigger
TRUNCATE events;
BEGIN;
COPY events (what) FROM stdin;
copied
\.
SELECT * FROM held;
COMMIT;
SELECT * FROM read;
CREATE TABLE causes (what text);
CREATE FUNCTION take_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO events (what) VALUES (NEW.what);
  RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER take_id AFTER INSERT ON causes DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION take_id();
TRUNCATE events;
BEGIN;
INSERT INTO causes VALUES ('deferred');
SELECT * FROM held;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT * FROM held;
COMMIT;
INSERT INTO causes VALUES ('at the commit');
SELECT * FROM read;

-- the horizon of a table is for who cannot read the table, and for the present
-- transaction as well
CREATE TABLE others (id bigint DEFAULT snowflake_nextval());
INSERT INTO events (what) VALUES ('of a table');
SELECT snowflake_horizon('events') = snowflake_horizon() AS same, snowflake_horizon('events') > max(id) AS above FROM events;
BEGIN;
INSERT INTO events (what) VALUES ('of a table');
INSERT INTO others DEFAULT VALUES;
SELECT snowflake_horizon('events') <= max(id) AS waits FROM events;
SELECT pid = pg_backend_pid() AS own, prepared_xid, xact_start = now() AS since_now, horizon IS NOT NULL AS holds FROM snowflake_stat_backend('events');
COMMIT;
SELECT snowflake_horizon('events') > max(id) AS above FROM events;
SELECT count(*) FROM snowflake_stat_backend('events');
SELECT snowflake_horizon(NULL) IS NULL AS strict;

-- never back, not even for more tables than are remembered
SELECT max(snowflake_horizon(oid::regclass)) > 0 AS asked FROM pg_class WHERE relkind = 'r' AND NOT relisshared;
SELECT snowflake_horizon('events') > max(id) AS above FROM events;

-- only a table has a horizon
CREATE VIEW events_view AS SELECT * FROM events;
CREATE MATERIALIZED VIEW events_copy AS SELECT * FROM events;
CREATE SEQUENCE events_numbers;
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE events_elsewhere (id bigint) SERVER nowhere;
DO $$
DECLARE
  name text;
  state text;
  message text;
BEGIN
  FOREACH name IN ARRAY '{events_view, events_copy, events_numbers, events_elsewhere, events_pkey, 4294967295}'::text[] LOOP
    BEGIN
      PERFORM snowflake_horizon(name::regclass);
      RAISE NOTICE '%: no error', name;
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
      RAISE NOTICE '%: % %', name, state, message;
    END;
    BEGIN
      PERFORM snowflake_stat_backend(name::regclass);
      RAISE NOTICE '%: no error', name;
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
      RAISE NOTICE '%: %', name, state;
    END;
  END LOOP;
END
$$;
DROP FOREIGN DATA WRAPPER nothing CASCADE;
DROP SEQUENCE events_numbers;
DROP MATERIALIZED VIEW events_copy;
DROP VIEW events_view;

-- other users ask for it, too
CREATE ROLE snowflake_horizon_user;
SET ROLE snowflake_horizon_user;
SELECT snowflake_horizon() > 0 AS horizon;
SELECT snowflake_horizon('events') > 0 AS horizon;
SELECT count(*) AS others FROM snowflake_stat_backend('events') WHERE pid <> pg_backend_pid();
SELECT * FROM events;
RESET ROLE;
DROP ROLE snowflake_horizon_user;

-- a parallel worker has no horizon
CREATE FUNCTION horizon_of_worker() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN snowflake_horizon(); END';
SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
\set VERBOSITY sqlstate
SELECT horizon_of_worker();
\set VERBOSITY default
RESET ALL;
DROP FUNCTION horizon_of_worker;
DROP VIEW held, read;
DROP TABLE events, causes, fetched, others;
DROP FUNCTION take_id;
DROP PROCEDURE commit_often, commit_often_in_a_loop;
