-- doc/examples/outbox.sql, and the statements of doc/outbox.md; script/check-docs checks
-- that each is here.
-- Positions are not shown, because each run has others.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;

-- workers that share
CREATE TABLE job (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), event text NOT NULL);
INSERT INTO job (event) VALUES ('one');
\o /dev/null
DELETE FROM job WHERE id IN (
    SELECT id FROM job ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id, event;
\o
SELECT count(*) AS left FROM job;

\getenv sources PG_ABS_SRCDIR
\set example :sources '/doc/examples/outbox.sql'
\i :example
SET client_min_messages = warning;
CALL snowflake_create_partitions('outbox', date_trunc('month', now()), now() + interval '1 month', '1 month');
RESET client_min_messages;
-- three batches, of two, one and no rows
INSERT INTO outbox (event) VALUES ('one'), ('two'), ('three');
SELECT event FROM read_outbox('mail', 2);
SELECT event FROM read_outbox('mail', 2);
SELECT event FROM read_outbox('mail', 2);
\o /dev/null
SELECT * FROM read_outbox('search');
\o
SELECT name, count(*) AS read FROM outbox JOIN consumer ON outbox.position < consumer.position
 GROUP BY name ORDER BY name;

-- a new consumer begins with the oldest row, or with the next one
INSERT INTO consumer VALUES ('export');                                -- begins with the oldest row
INSERT INTO consumer VALUES ('report', snowflake_horizon('outbox'));   -- begins now
INSERT INTO outbox (event) VALUES ('new');
SELECT event FROM read_outbox('export');
SELECT event FROM read_outbox('report');
SELECT tableoid::regclass = 'outbox_default'::regclass AS in_default, count(*) FROM outbox GROUP BY 1;

-- errors
SELECT event FROM read_outbox('nobody');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT event FROM read_outbox('mail');
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN;
UPDATE consumer SET position = position + 1000000000000;
SELECT event FROM read_outbox('mail');
ROLLBACK;
\set VERBOSITY terse
INSERT INTO outbox (position, event) VALUES (NULL, 'an ORM that fills the column');
\set VERBOSITY default

-- the slowest consumer has the rows of all partitions that are dropped
CREATE TABLE outbox_2025_01 PARTITION OF outbox
    FOR VALUES FROM (snowflake_min_id('2025-01-01')) TO (snowflake_min_id('2025-02-01'));
SELECT snowflake_timestamp(min(position)) AS slowest FROM consumer \gset
CALL snowflake_drop_partitions('outbox', :'slowest');

-- nothing holds the horizon
SELECT pid, usename, state, left(query, 40) AS query, gid, owner, now() - b.xact_start AS open_for
  FROM snowflake_stat_backend('outbox') AS b
  LEFT JOIN pg_stat_activity USING (pid)
  LEFT JOIN pg_prepared_xacts ON transaction = prepared_xid
 ORDER BY horizon NULLS FIRST;

-- the present transaction holds it
BEGIN;
INSERT INTO outbox (event) VALUES ('four');
SELECT event FROM read_outbox('mail');
SELECT pid = pg_backend_pid() AS this_session FROM (
SELECT pid, usename, state, left(query, 40) AS query, gid, owner, now() - b.xact_start AS open_for
  FROM snowflake_stat_backend('outbox') AS b
  LEFT JOIN pg_stat_activity USING (pid)
  LEFT JOIN pg_prepared_xacts ON transaction = prepared_xid
 ORDER BY horizon NULLS FIRST
) AS holders;
COMMIT;

-- for a standby, and for rows of several servers
SELECT worker_id AS node FROM snowflake_node() \gset
SELECT position AS since FROM consumer WHERE name = 'mail' \gset
\o /dev/null
SELECT snowflake_horizon('outbox') AS horizon \gset
SELECT pg_logical_emit_message(false, '', '') AS lsn \gset
SELECT * FROM outbox
 WHERE position >= :since AND position < :horizon AND snowflake_worker_id(position) = :node
 ORDER BY position;
\o
SELECT count(*) AS rows FROM outbox
 WHERE position >= :since AND position < :horizon AND snowflake_worker_id(position) = :node;

DROP FUNCTION read_outbox;
DROP TABLE job, outbox, consumer;
