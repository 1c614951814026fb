# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Ids per second against the number of sessions, and what one id costs.
# Sourced by bench/run, not executed.
#
# cluster | block_size | ids in a statement | name | call
# A statement makes so many ids that its own cost does not matter, and so few
# that each of 64 sessions finishes several statements in a sample; up to 8
# sessions it makes five times as many.  At the ceiling a statement waits longer
# than it works, so it can make fewer.
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
# The cost of a row, in one session.
clock_series="wide|1|20000|clock|bench_clock()"

measure_ids() {
    local repeat sessions series peers

    # One sample that is not recorded, to warm up the cluster.
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

    # Many sessions take longer to connect and to end.
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

# Each session has a generator of its own, and so a ceiling of its own, like
# sessions that insert into different tables.
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

# Finds a table for each generator.  The server does not show a table's
# generator.  But if ids for all tables are issued in one tick after a rest, the
# first table of each generator gets sequence 0.  If the tick has ended before the
# last table, the function tries again.
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
