-- Creates the peers' functions.  The psql variable "peers" is the path of the
-- compiled peers.c.

CREATE FUNCTION bench_noop() RETURNS bigint
AS :'peers', 'bench_noop' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION bench_counter() RETURNS bigint
AS :'peers', 'bench_counter' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION bench_clock() RETURNS bigint
AS :'peers', 'bench_clock' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION bench_same(bigint) RETURNS bigint
AS :'peers', 'bench_same' LANGUAGE C STABLE STRICT;

CREATE FUNCTION bench_record(
    bigint, OUT a timestamptz, OUT b integer, OUT c integer, OUT d integer)
AS :'peers', 'bench_record' LANGUAGE C STABLE STRICT;

CREATE SEQUENCE bench_cache_1;
CREATE SEQUENCE bench_cache_100 CACHE 100;

-- A snowflake as people write it in PL/pgSQL, without an extension: milliseconds
-- since an epoch, the number of the shard, and a remainder of a sequence.
CREATE SEQUENCE bench_plpgsql_sequence;

CREATE FUNCTION bench_plpgsql(OUT id bigint) LANGUAGE plpgsql AS $$
DECLARE
    epoch_ms CONSTANT bigint := 1314220021721;
    shard CONSTANT integer := 5;
    now_ms bigint;
BEGIN
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    id := (now_ms - epoch_ms) << 23
        | (shard << 10)
        | (nextval('bench_plpgsql_sequence') % 1024);
END;
$$;
