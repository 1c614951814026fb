-- doc/examples/outbox.sql, and doc/outbox.md.  Positions are not shown: each run has
-- others.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_partitions;
RESET client_min_messages;

-- workers that share
CREATE TABLE job (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), event text NOT NULL);
INSERT INTO job (event) VALUES ('one');
\o /dev/null
-- RUN doc/outbox.md: DELETE FROM job
\o
SELECT count(*) AS left FROM job;

-- RUN doc/examples/outbox.sql
SET client_min_messages = warning;
-- RUN doc/outbox.md: CALL snowflake_partitions.create_range
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
-- RUN doc/outbox.md: INSERT INTO consumer
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
-- RUN doc/outbox.md: SELECT snowflake_timestamp

-- who holds the horizon: nobody, and then the present transaction
CREATE TEMPORARY VIEW holders AS
-- RUN doc/outbox.md: SELECT pid, usename
SELECT count(*) FROM holders;
BEGIN;
INSERT INTO outbox (event) VALUES ('four');
SELECT event FROM read_outbox('mail');
SELECT pid = pg_backend_pid() AS this_session, usename = current_user AS is_user, state, gid, open_for IS NOT NULL AS is_open FROM holders;
COMMIT;

-- for a standby, and for rows of several servers
SELECT worker_id AS node FROM snowflake_node() \gset
SELECT position AS since FROM consumer WHERE name = 'mail' \gset
\o /dev/null
-- RUN doc/outbox.md: SELECT snowflake_horizon
-- RUN doc/outbox.md: SELECT * FROM outbox
\o
SELECT count(*) AS rows FROM outbox
 WHERE position >= :since AND position < :horizon AND snowflake_worker_id(position) = :node;

DROP VIEW holders;
DROP FUNCTION read_outbox;
DROP TABLE job, outbox, consumer;
