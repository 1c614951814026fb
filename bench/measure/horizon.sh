# shellcheck shell=bash disable=SC2154  # what bench/run has set
# What a reader costs that asks for the horizon while eight sessions insert, and
# how long the reader's statement takes.  Sourced by bench/run, not executed.

horizon_readers=(nobody "SELECT pg_current_snapshot()" "SELECT snowflake_horizon()")

measure_horizon() {
    local repeat reader readers

    compile_latency
    create_target "id bigint PRIMARY KEY DEFAULT snowflake_nextval()" 1
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t readers < <(rotated "$repeat" "${horizon_readers[@]}")
        for reader in "${readers[@]}"; do
            sample_horizon "$repeat" "$reader"
        done
    done
}

sample_horizon() { # repeat, reader
    local pid=''

    if [ "$2" != nobody ]; then
        "$work/latency" "host=$work/tmp_check/standard dbname=postgres" 1 \
            "$seconds" 0 "$2" >"$work/statistics" &
        pid=$!
    fi
    load standard 8 "$seconds" "INSERT INTO bench_target (payload) VALUES (1);"
    record_rate horizon "$2" 8 "$1" rows/s 1
    [ -n "$pid" ] || return 0
    wait "$pid"
    record_statistics '^p' horizon "$2" 8 "$1"
}
