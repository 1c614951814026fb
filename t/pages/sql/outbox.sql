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
CREATE ROLE app LOGIN;
CREATE ROLE mailer LOGIN;
-- RUN doc/outbox.md: GRANT INSERT (id, event)
-- The two consumers begin with the oldest row, and with the next one.
INSERT INTO outbox (event) VALUES ('before');
-- RUN doc/outbox.md: INSERT INTO consumer
SELECT event FROM read_outbox('report');
-- The application cannot set a position.  A reader with these privileges reads three
-- batches, of two, two and no rows.
\set owner :USER
\c - app
INSERT INTO outbox (event) VALUES ('one'), ('two'), ('three');
INSERT INTO outbox (position, event) VALUES (1, 'early');
\c - mailer
SELECT event FROM read_outbox('mail', 2);
SELECT event FROM read_outbox('mail', 2);
SELECT event FROM read_outbox('mail', 2);
INSERT INTO consumer VALUES ('another');
\c - :owner
SELECT event FROM read_outbox('report');
SELECT name, count(*) AS read FROM outbox JOIN consumer ON outbox.position < consumer.position
 GROUP BY name ORDER BY name;
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

-- Partitions that all consumers have read are dropped.  While a consumer has read
-- nothing, none is, and without consumers the statement is an error.
CREATE TABLE outbox_2025_01 PARTITION OF outbox
    FOR VALUES FROM (snowflake_min_id('2025-01-01')) TO (snowflake_min_id('2025-02-01'));
CREATE TABLE outbox_2025_02 PARTITION OF outbox
    FOR VALUES FROM (snowflake_min_id('2025-02-01')) TO (snowflake_min_id('2025-03-01'));
CREATE VIEW old_partitions AS
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox'::regclass AND inhrelid::regclass::text LIKE 'outbox_2025%' ORDER BY 1;
INSERT INTO consumer VALUES ('slow', 0), ('slower', snowflake_min_id('2025-02-10'));
-- RUN doc/outbox.md: CALL snowflake_partitions.drop_before
SELECT * FROM old_partitions;
DELETE FROM consumer WHERE name = 'slow';
CALL snowflake_partitions.drop_before('outbox', outbox_read_until());
SELECT * FROM old_partitions;
CREATE TABLE kept AS TABLE consumer;
DELETE FROM consumer;
\set VERBOSITY sqlstate
CALL snowflake_partitions.drop_before('outbox', outbox_read_until());
\set VERBOSITY default
SELECT * FROM old_partitions;
INSERT INTO consumer TABLE kept;
DELETE FROM consumer WHERE name = 'slower';
DROP TABLE kept;
DROP VIEW old_partitions;

-- who holds the horizon: nobody, and then the present transaction
CREATE TEMPORARY VIEW holders AS
-- RUN doc/outbox.md: SELECT pid, usename
SELECT count(*) FROM holders;
INSERT INTO outbox (event) VALUES ('new');
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
DROP FUNCTION read_outbox, outbox_read_until;
DROP TABLE job, outbox, consumer;
DROP ROLE app, mailer;
