# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Ids per second against the number of sessions, and what one id costs.
# Sourced by bench/run, not executed.
#
# cluster | ids in a statement | name | call
# A statement makes so many ids that its own cost does not matter, and so few
# that each of 64 sessions finishes several statements in a sample; up to 8
# sessions it makes five times as many.  At the ceiling a statement waits longer
# than it works, so it can make fewer.
ids_series=(
    "standard|2000|default layout|snowflake_nextval()"
    "wide|20000|snowflake|snowflake_nextval()"
    "wide|5000|nextval CACHE 1|nextval('bench_cache_1')"
    "wide|20000|nextval CACHE 100|nextval('bench_cache_100')"
    "wide|5000|gen_random_uuid|gen_random_uuid()"
    "wide|2000|PL/pgSQL snowflake|bench_plpgsql()"
    "wide|20000|snowflake_nextvals|snowflake_nextvals"
    "wide|20000|no-op|bench_noop()"
)
# The cost of a row, in one session.
clock_series="wide|20000|clock|bench_clock()"

measure_ids() {
    local repeat sessions series peers

    [ -z "${BENCH_PGEDGE:-}" ] ||
        ids_series+=("wide|5000|pgEdge|bench_pgedge('bench_pgedge_sequence')")
    ! has_uuidv7 wide || ids_series+=("wide|5000|uuidv7|uuidv7()")
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
    done
}

sample_ids() { # sessions, repeat, series
    local cluster batch name call duration=$seconds

    # Many sessions take longer to connect and to end.
    [ "$1" -le 8 ] || duration=$((2 * seconds))
    IFS='|' read -r cluster batch name call <<<"$3"
    [ "$1" -gt 8 ] || batch=$((batch * 5))
    if [ "$call" = snowflake_nextvals ]; then
        load "$cluster" "$1" "$duration" \
            "SELECT snowflake_nextvals($batch) OFFSET $batch;"
    else
        load "$cluster" "$1" "$duration" "$(calling "$call" "$batch")"
    fi
    record_rate ids "$name" "$1" "$2" ids/s "$batch"
}
