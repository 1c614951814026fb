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
