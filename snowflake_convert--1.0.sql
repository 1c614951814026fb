/*
 * snowflake_convert 1.0: scripts that turn serial and identity keys into
 * snowflakes.
 *
 * The functions read the catalogue and return the text of a script.  They
 * execute nothing: the tables' owner looks at the script, and runs it.
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake_convert" to load this file. \quit

-- Without "schema" in the control file, CREATE EXTENSION does not use a schema
-- of this name that somebody has made before: this statement fails then.
CREATE SCHEMA snowflake_convert;
GRANT USAGE ON SCHEMA snowflake_convert TO PUBLIC;
COMMENT ON SCHEMA snowflake_convert IS
'scripts that turn serial and identity keys into snowflakes';

-- Names below are looked up here.  The bodies pin the same path.
SET LOCAL search_path TO pg_catalog, pg_temp;
