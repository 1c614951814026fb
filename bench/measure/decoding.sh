# shellcheck shell=bash disable=SC2154  # what bench/run has set
# How long it takes to read ids.  Sourced by bench/run, not executed.
#
# The tables fit into shared_buffers, and are in shared_buffers after the insert.

measure_decoding() {
    local repeat peer peers name from

    query standard -v rows="$rows" <<'SQL'
CREATE TABLE bench_ids AS SELECT id FROM snowflake_nextvals(:rows) AS id;
CREATE TABLE bench_ids_x10 (id bigint);
INSERT INTO bench_ids_x10 SELECT snowflake_nextvals(:rows * 10);
VACUUM ANALYZE bench_ids, bench_ids_x10;
SQL
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t peers < <(rotated "$repeat" \
            "no function|max(id)|bench_ids_x10" \
            "no-op|max(bench_same(id))|bench_ids_x10" \
            "snowflake_timestamp|max(snowflake_timestamp(id))|bench_ids_x10")
        sample_reading 10
        mapfile -t peers < <(rotated "$repeat" \
            "no-op record|max(d.a)|bench_ids, LATERAL bench_record(id) AS d" \
            "snowflake_decode|max(d.issued_at)|bench_ids, LATERAL snowflake_decode(id) AS d")
        sample_reading 1
    done
}

# Measures each of "peers", and records the time per row.
sample_reading() { # times BENCH_ROWS
    local peer name expression from taken

    for peer in "${peers[@]}"; do
        IFS='|' read -r name expression from <<<"$peer"
        taken=$(query standard -v rows="$((rows * $1))" <<SQL
SELECT clock_timestamp() AS begun \gset
SELECT $expression AS result FROM $from \gset
SELECT round(extract(epoch FROM clock_timestamp() - :'begun')
             * 1000000000 / :rows, 1);
SQL
)
        record decoding "$name" 1 "$repeat" "ns a row" "$taken"
    done
}
