# shellcheck shell=bash disable=SC2154  # what bench/run has set
# How long a single insert takes after a pause and with slow flushes, beside
# bigserial.  Sourced by bench/run, not executed.
#
# The server's flushes are sleeps (slow_flush.c), so that a disk's noise is not
# measured, too.  The pause is two intervals of the mark: after it
# each id needs a new mark.
#
# shortest and longest flush, ms | synchronous_commit | sessions | pause, ms |
# duration of a sample, as a multiple of BENCH_SECONDS
flush_loads=(
    "5-5|on|1|500|3"
    "5-5|off|1|500|3"
    "205-205|on|1|0|2"
    "205-205|on|4|0|2"
    "205-205|on|64|0|2"
    "100-400|on|1|0|3"
    "205-205|off|1|0|1"
)

# Samples of pauses are long, so there are fewer.
measure_flushes() {
    local repeat load peer peers
    local repeats=$(((repeats + 1) / 2))

    compile_latency
    start_slow_cluster
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        for load in "${flush_loads[@]}"; do
            mapfile -t peers < <(rotated "$repeat" snowflake bigserial)
            for peer in "${peers[@]}"; do
                sample_flushes "$repeat" "$load" "$peer"
            done
        done
    done
}

start_slow_cluster() {
    cc -O2 -fPIC -shared -o "$work/slow_flush.so" "$bench/slow_flush.c"
    LD_PRELOAD=$work/slow_flush.so SLOW_FLUSH=$work/flush \
        start_cluster slow "fsync = on" "wal_sync_method = fdatasync"
    query slow <<'SQL'
CREATE TABLE bench_snowflake (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n integer);
CREATE TABLE bench_bigserial (id bigserial PRIMARY KEY, n integer);
SQL
}

sample_flushes() { # repeat, load, peer
    local flush commit sessions pause factor

    IFS='|' read -r flush commit sessions pause factor <<<"$2"
    configure slow synchronous_commit "$commit"
    echo "${flush/-/ }" >"$work/flush"
    "$work/latency" "host=$work/tmp_check/slow dbname=postgres" "$sessions" \
        "$((factor * seconds))" "$pause" \
        "INSERT INTO bench_$3 (n) VALUES (1) RETURNING id" >"$work/statistics"
    rm "$work/flush"
    record_statistics '^(p50|p99|mean) ' flushes "$3" "$sessions" "$1" "$flush $commit "
}
