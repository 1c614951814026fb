-- doc/registry.md: the role of a server, and a server that leaves.
SET client_min_messages = warning;
\o /dev/null
-- RUN doc/registry.md: CREATE EXTENSION snowflake_registry
\o
CREATE ROLE server3 LOGIN;
SELECT snowflake_registry.allow('server3');
-- a server can ask, and cannot change what the registry knows
\set owner :USER
\c - server1
SELECT count(*) > 0 AS is_told FROM snowflake_registry.about();
DELETE FROM snowflake_registry.node;
\c - :owner
SET client_min_messages = warning;
-- RUN doc/registry.md: REVOKE ALL ON SCHEMA
SELECT rolname, rolconnlimit FROM pg_roles WHERE rolname LIKE 'server_' ORDER BY 1;
DROP EXTENSION snowflake_registry;
DROP ROLE server1;
