# shellcheck shell=bash disable=SC2154  # what bench/run has set
# What the high-water mark writes.  Sourced by bench/run, not executed.
#
# The load issues ids and writes nothing else.  Each mark is one WAL record.
# The measurement of an idle server begins after the last mark.

measure_wal() {
    local repeat state states

    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t states < <(rotated "$repeat" issuing idle)
        for state in "${states[@]}"; do
            "sample_wal_$state"
            record wal "$state" 1 "$repeat" marks/s "${sample% *}"
            record wal "$state" 1 "$repeat" bytes/s "${sample#* }"
        done
    done
}

wal_position() {
    query standard -c "SELECT high_water_writes, pg_current_wal_insert_lsn() - '0/0', extract(epoch FROM clock_timestamp()) FROM snowflake_stat()"
}

# Sets "sample" to the marks and the bytes per second between two positions.
sample_between() { # position, position
    sample=$(awk -v before="$1" -v after="$2" 'BEGIN {
        split(before, b); split(after, a); s = a[3] - b[3]
        printf "%.2f %.1f", (a[1] - b[1]) / s, (a[2] - b[2]) / s }')
}

sample_wal_issuing() {
    local before

    query standard -c 'SELECT snowflake_nextval()' >/dev/null
    before=$(wal_position)
    load standard 1 "$seconds" "$(calling 'snowflake_nextval()' 5000)"
    sample_between "$before" "$(wal_position)"
}

sample_wal_idle() {
    local before

    sleep 1
    before=$(wal_position)
    sleep "$seconds"
    sample_between "$before" "$(wal_position)"
}
