/* snowflake--1.0.sql */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake" to load this file. \quit

-- What the planner asks

CREATE FUNCTION snowflake_bound_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'snowflake_bound_support'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_bound_support(internal) IS
'planner support for snowflake_min_id and snowflake_max_id';

CREATE FUNCTION snowflake_nextvals_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'snowflake_nextvals_support'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_nextvals_support(internal) IS
'planner support for snowflake_nextvals';

-- Issuing

CREATE FUNCTION snowflake_nextval()
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_nextval'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_nextval() IS
'issue the next id';

CREATE FUNCTION snowflake_nextval(generator regclass)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_nextval_of_relation'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_nextval(regclass) IS
'issue the next id of the generator that a relation maps to';

CREATE FUNCTION snowflake_nextvals(count integer)
RETURNS SETOF bigint
AS 'MODULE_PATHNAME', 'snowflake_nextvals'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE
SUPPORT snowflake_nextvals_support;
COMMENT ON FUNCTION snowflake_nextvals(integer) IS
'issue so many ids, in increasing order';

-- A parallel worker has issued nothing in its own session.
CREATE FUNCTION snowflake_currval()
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_currval'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION snowflake_currval() IS
'the last id issued in this session';

-- Decoding, by the server's layout and epoch

CREATE FUNCTION snowflake_decode(
    id bigint,
    OUT issued_at timestamptz,
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT sequence integer)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_decode'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_decode(bigint) IS
'the fields of an id';

CREATE FUNCTION snowflake_timestamp(id bigint)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'snowflake_timestamp'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_timestamp(bigint) IS
'when an id was issued';

CREATE FUNCTION snowflake_datacenter_id(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_datacenter_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_datacenter_id(bigint) IS
'the datacenter that an id was issued in';

CREATE FUNCTION snowflake_worker_id(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_worker_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_worker_id(bigint) IS
'the worker that an id was issued by';

CREATE FUNCTION snowflake_sequence(id bigint)
RETURNS integer
AS 'MODULE_PATHNAME', 'snowflake_sequence'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_sequence(bigint) IS
'the sequence of an id within its tick';

CREATE FUNCTION snowflake_encode(
    issued_at timestamptz,
    datacenter_id integer,
    worker_id integer,
    sequence integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_encode'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_encode(timestamptz, integer, integer, integer) IS
'the id of these fields';

CREATE FUNCTION snowflake_min_id(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_min_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT snowflake_bound_support;
COMMENT ON FUNCTION snowflake_min_id(timestamptz) IS
'the smallest id of an instant''s tick';

CREATE FUNCTION snowflake_max_id(instant timestamptz)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_max_id'
LANGUAGE C STABLE STRICT PARALLEL SAFE
SUPPORT snowflake_bound_support;
COMMENT ON FUNCTION snowflake_max_id(timestamptz) IS
'the largest id of an instant''s tick';

CREATE FUNCTION snowflake_format(id bigint)
RETURNS text
AS 'MODULE_PATHNAME', 'snowflake_format'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_format(bigint) IS
'an id as people read it: time in the session''s zone, #sequence, @(datacenter,worker)';

-- Decoding, by a layout and an epoch given: for ids made elsewhere

CREATE FUNCTION snowflake_decode(
    id bigint,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12',
    OUT issued_at timestamptz,
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT sequence integer)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_decode_explicit'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_decode(bigint, timestamptz, text) IS
'the fields of an id of this epoch and layout';

CREATE FUNCTION snowflake_timestamp(
    id bigint,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'snowflake_timestamp_explicit'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_timestamp(bigint, timestamptz, text) IS
'when an id of this epoch and layout was issued';

CREATE FUNCTION snowflake_min_id(
    instant timestamptz,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_min_id_explicit'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_min_id(timestamptz, timestamptz, text) IS
'the smallest id of an instant''s tick, by this epoch and layout';

CREATE FUNCTION snowflake_max_id(
    instant timestamptz,
    epoch timestamptz,
    layout text DEFAULT '41/5/5/12')
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_max_id_explicit'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_max_id(timestamptz, timestamptz, text) IS
'the largest id of an instant''s tick, by this epoch and layout';

-- Seeing

CREATE FUNCTION snowflake_node(
    OUT datacenter_id integer,
    OUT worker_id integer,
    OUT worker_id_source text,
    OUT layout text,
    OUT epoch timestamptz,
    OUT tick_interval interval,
    OUT ids_per_second bigint,
    OUT first_instant timestamptz,
    OUT last_instant timestamptz,
    OUT high_water_mark timestamptz,
    OUT in_recovery boolean)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_node'
LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_node() IS
'for the view snowflake_node';

CREATE VIEW snowflake_node AS SELECT * FROM snowflake_node();
COMMENT ON VIEW snowflake_node IS
'who this server is, and what its layout holds';
GRANT SELECT ON snowflake_node TO PUBLIC;

CREATE FUNCTION snowflake_stat(
    OUT ids_issued bigint,
    OUT last_id bigint,
    OUT last_issued_at timestamptz,
    OUT sequence_waits bigint,
    OUT sequence_wait_time interval,
    OUT clock_regressions bigint,
    OUT max_regression interval,
    OUT clock_wait_time interval,
    OUT clock_refusals bigint,
    OUT high_water_writes bigint,
    OUT lead interval,
    OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'snowflake_stat'
LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_stat() IS
'for the view snowflake_stat';

CREATE VIEW snowflake_stat AS
SELECT ids_issued, last_id, last_issued_at, sequence_waits,
       sequence_wait_time, clock_regressions, max_regression,
       clock_wait_time, clock_refusals, lead, high_water_writes, stats_reset
  FROM snowflake_stat();
COMMENT ON VIEW snowflake_stat IS
'what all sessions have done since the last reset';
GRANT SELECT ON snowflake_stat TO PUBLIC;

CREATE FUNCTION snowflake_stat_backend(
    OUT pid integer,
    OUT ids_issued bigint,
    OUT sequence_waits bigint,
    OUT clock_waits bigint,
    OUT last_id bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'snowflake_stat_backend'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION snowflake_stat_backend() IS
'for the view snowflake_stat_backend';

CREATE VIEW snowflake_stat_backend AS SELECT * FROM snowflake_stat_backend();
COMMENT ON VIEW snowflake_stat_backend IS
'what each session has done; with the rights of pg_read_all_stats all of them';
GRANT SELECT ON snowflake_stat_backend TO PUBLIC;

CREATE FUNCTION snowflake_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'snowflake_stat_reset'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION snowflake_stat_reset() IS
'let snowflake_stat count from zero';
REVOKE EXECUTE ON FUNCTION snowflake_stat_reset() FROM PUBLIC;
-- Ids as text

CREATE FUNCTION snowflake_to_text(id bigint, base integer)
RETURNS text
AS 'MODULE_PATHNAME', 'snowflake_to_text'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_to_text(bigint, integer) IS
'an id as text in base 2, 16, 32, 36, 58 or 62';

CREATE FUNCTION snowflake_from_text(text text, base integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'snowflake_from_text'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_from_text(text, integer) IS
'the id that a text in base 2, 16, 32, 36, 58 or 62 stands for';

-- Partitions by time

CREATE FUNCTION snowflake_create_partitions(
    parent regclass,
    since timestamptz,
    until timestamptz,
    step interval)
RETURNS SETOF regclass
AS 'MODULE_PATHNAME', 'snowflake_create_partitions'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION snowflake_create_partitions(regclass, timestamptz, timestamptz, interval) IS
'create the range partitions of a table partitioned by its snowflake ids';

-- Looking at tables by their ids

-- Not safe for parallel workers: the table may be a temporary one.
CREATE FUNCTION snowflake_activity(
    rel regclass,
    col name,
    bucket interval,
    since timestamptz DEFAULT NULL,
    until timestamptz DEFAULT NULL)
RETURNS TABLE (
    bucket timestamptz,
    datacenter_id integer,
    worker_id integer,
    ids bigint)
AS 'MODULE_PATHNAME', 'snowflake_activity'
LANGUAGE C STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION snowflake_activity(regclass, name, interval, timestamptz, timestamptz) IS
'how many ids of a table were issued when, and by which node';
