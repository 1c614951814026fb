# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Ids per second against the number of sessions, and what one id costs.
# Sourced by bench/run, not run.
#
# cluster | block_size | ids in a statement | name | call
# So many that the cost of a statement does not count, and so few that each
# of 64 sessions finishes several in a sample; five times as many up to 8.
# At the ceiling a statement waits longer than it works, so it can be smaller.
ids_series=(
    "standard|1|2000|default layout|snowflake_nextval()"
    "wide|1|20000|snowflake|snowflake_nextval()"
    "wide|64|20000|snowflake block_size=64|snowflake_nextval()"
    "wide|1|10000|nextval CACHE 1|nextval('bench_cache_1')"
    "wide|1|20000|nextval CACHE 100|nextval('bench_cache_100')"
    "wide|1|5000|gen_random_uuid|gen_random_uuid()"
    "wide|1|2000|PL/pgSQL snowflake|bench_plpgsql()"
    "wide|1|20000|snowflake_nextvals|snowflake_nextvals"
    "wide|1|20000|no-op|bench_noop()"
)
# this tells what a row costs, in one session
clock_series="wide|1|20000|clock|bench_clock()"

measure_ids() {
    local repeat sessions series peers

    # once unrecorded, so that nobody is the first to use a cluster
    load standard 1 1 "$(calling 'snowflake_nextval()' 10000)"
    load wide 1 1 "$(calling 'snowflake_nextval()' 10000)"
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        for sessions in 1 2 8 64; do
            peers=("${ids_series[@]}")
            [ "$sessions" -gt 1 ] || peers+=("$clock_series")
            mapfile -t peers < <(rotated "$repeat" "${peers[@]}")
            for series in "${peers[@]}"; do
                sample_ids "$sessions" "$repeat" "$series"
            done
        done
        sample_generators "$repeat"
    done
}

sample_ids() { # sessions, repeat, series
    local cluster block_size batch name call duration=$seconds

    # so many sessions take longer to come in and to go
    [ "$1" -le 8 ] || duration=$((2 * seconds))
    IFS='|' read -r cluster block_size batch name call <<<"$3"
    [ "$1" -gt 8 ] || batch=$((batch * 5))
    configure "$cluster" snowflake.block_size "$block_size"
    if [ "$call" = snowflake_nextvals ]; then
        load "$cluster" "$1" "$duration" \
            "SELECT snowflake_nextvals($batch) OFFSET $batch;"
    else
        load "$cluster" "$1" "$duration" "$(calling "$call" "$batch")"
    fi
    record_rate ids "$name" "$1" "$2" ids/s "$batch"
}

# Each session has a generator of its own, so that the ceiling is one a
# session: ids for as many tables.
sample_generators() { # repeat
    local sessions batch=10000

    choose_generators
    for sessions in 1 2 8; do
        load generators "$sessions" "$seconds" \
            "SELECT rel FROM bench_generator WHERE n = :client_id \gset
$(calling 'snowflake_nextval(:rel)' "$batch")"
        record_rate ids "8 generators" "$sessions" "$1" ids/s "$batch"
    done
}

# Finds a table for each of the generators.  The server does not tell which
# one a table has; but of tables asked in one tick after a rest, it is the
# first of each generator that gets sequence 0.  The tick may end in between,
# so it is tried until it did not.
choose_generators() {
    local attempt

    [ -z "$(query generators -c "SELECT to_regclass('bench_generator')")" ] ||
        return 0
    query generators <<'SQL'
SELECT format('CREATE TABLE bench_table_%s ()', n)
  FROM generate_series(1, 200) AS n \gexec
CREATE TABLE bench_generator (n bigint, rel integer);
SQL
    for ((attempt = 1; attempt <= 20; attempt++)); do
        query generators <<'SQL'
TRUNCATE bench_generator;
INSERT INTO bench_generator
WITH tables AS MATERIALIZED (
    SELECT oid::integer AS rel FROM pg_class WHERE relname ~ '^bench_table_'
), ids AS MATERIALIZED (
    SELECT rel, snowflake_nextval(rel) AS id FROM tables
), ticks AS (
    SELECT *, min(snowflake_timestamp(id)) OVER () AS first FROM ids
)
SELECT row_number() OVER () - 1 AS n, rel FROM ticks
 WHERE snowflake_timestamp(id) = first AND snowflake_sequence(id) = 0;
SQL
        [ "$(query generators -c 'SELECT count(*) FROM bench_generator')" \
            -ne 8 ] || return 0
    done
    die "The tables of bench/measure/ids.sh do not reach all generators."
}
