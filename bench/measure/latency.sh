# shellcheck shell=bash disable=SC2154  # what bench/run has set
# How long a statement takes that issues one id, in eight connections.  Sourced
# by bench/run, not executed.
#
# On a shared machine percentiles change from one second to the next, so there
# are many short samples.

latency_statements=("SELECT snowflake_nextval()"
    "SELECT nextval('bench_cache_1')" "SELECT 1")

measure_latency() {
    local repeat statement statements
    local repeats=$((repeats * 4))

    compile_latency
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t statements < <(rotated "$repeat" "${latency_statements[@]}")
        for statement in "${statements[@]}"; do
            sample_latency "$repeat" "$statement"
        done
    done
}

sample_latency() { # repeat, statement
    "$work/latency" "host=$work/tmp_check/standard dbname=postgres" 8 \
        "$(((seconds + 1) / 2))" 0 "$2" >"$work/statistics"
    record_statistics '^p' latency "$2" 8 "$1"
}
