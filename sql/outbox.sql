-- The statements of doc/outbox.md; script/check-docs checks that each is here.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
CREATE TABLE outbox (
    id    bigint PRIMARY KEY DEFAULT snowflake_nextval(),
    event text NOT NULL
);
CREATE TABLE consumer (
    name     text PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0   -- rows below are read
);
INSERT INTO consumer (name) VALUES ('mail');

-- two statements; ids are not shown, because each run has others
INSERT INTO outbox (event) VALUES ('one'), ('two');
\pset tuples_only on
\o /dev/null
SELECT snowflake_horizon() AS horizon, position FROM consumer WHERE name = 'mail' \gset
SELECT id, event FROM outbox WHERE id >= :position AND id < :horizon ORDER BY id;
UPDATE consumer SET position = :horizon WHERE name = 'mail';
\o
\pset tuples_only off
SELECT count(*) AS read FROM outbox, consumer WHERE id < position;

-- a function
INSERT INTO outbox (event) VALUES ('three');
\o /dev/null
CREATE FUNCTION read_outbox(consumer_name text) RETURNS SETOF outbox LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    since   bigint;
    horizon bigint;
BEGIN
    -- one session at a time for each consumer
    SELECT position INTO STRICT since FROM consumer WHERE name = consumer_name FOR UPDATE;
    horizon := snowflake_horizon();
    RETURN QUERY SELECT * FROM outbox WHERE id >= since AND id < horizon ORDER BY id;
    UPDATE consumer SET position = horizon WHERE name = consumer_name;
END
$$;
SELECT * FROM read_outbox('mail');
\o
SELECT count(*) AS read FROM outbox, consumer WHERE id < position;
INSERT INTO outbox (event) VALUES ('four');
SELECT event FROM read_outbox('mail');
SELECT event FROM read_outbox('mail');
SELECT event FROM read_outbox('nobody');

-- workers that share
\o /dev/null
DELETE FROM outbox WHERE id IN (
    SELECT id FROM outbox ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id, event;
\o
SELECT count(*) AS left FROM outbox;

-- nothing holds the horizon
SELECT b.pid, a.usename, a.datname, a.state, now() - a.xact_start AS open_for, left(a.query, 40) AS query
  FROM snowflake_stat_backend AS b JOIN pg_stat_activity AS a USING (pid)
 WHERE b.horizon IS NOT NULL
 ORDER BY b.horizon LIMIT 5;
SELECT gid, database, owner, now() - prepared AS open_for FROM pg_prepared_xacts ORDER BY prepared;

-- the present transaction holds it
BEGIN;
INSERT INTO outbox (event) VALUES ('five');
SELECT event FROM read_outbox('mail');
SELECT pid = pg_backend_pid() AS this_session FROM (
SELECT b.pid, a.usename, a.datname, a.state, now() - a.xact_start AS open_for, left(a.query, 40) AS query
  FROM snowflake_stat_backend AS b JOIN pg_stat_activity AS a USING (pid)
 WHERE b.horizon IS NOT NULL
 ORDER BY b.horizon LIMIT 5
) AS b;
COMMIT;

-- for a standby
SELECT snowflake_horizon() AS horizon \gset
SELECT pg_current_wal_insert_lsn() AS lsn \gset
SELECT count(*) AS below FROM outbox WHERE id < :horizon;

DROP TABLE outbox, consumer CASCADE;
