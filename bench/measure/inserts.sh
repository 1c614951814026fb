# shellcheck shell=bash disable=SC2154  # what bench/run has set
# How long it takes to insert rows, by the type of their key.  Sourced by
# bench/run, not executed.
#
# fsync is off: the noise of a shared disk would be larger than the differences.
#
# name | column
insert_peers=(
    "bigint supplied|id bigint PRIMARY KEY"
    "snowflake|id bigint PRIMARY KEY DEFAULT snowflake_nextval()"
    "bigserial|id bigserial PRIMARY KEY"
    "identity|id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    "counter|id bigint PRIMARY KEY DEFAULT bench_counter()"
    "uuid v4|id uuid PRIMARY KEY DEFAULT gen_random_uuid()"
)

measure_inserts() {
    local repeat way peer peers

    ! has_uuidv7 standard ||
        insert_peers+=("uuid v7|id uuid PRIMARY KEY DEFAULT uuidv7()")
    [ -z "${BENCH_PGEDGE:-}" ] ||
        insert_peers+=("pgEdge|id bigint PRIMARY KEY DEFAULT bench_pgedge('bench_pgedge_sequence')")
    configure standard fsync off
    prepare_rows
    sample_insert 0 "INSERT ... SELECT" "${insert_peers[0]}" >/dev/null
    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t peers < <(rotated "$repeat" "${insert_peers[@]}")
        for way in "INSERT ... SELECT" COPY; do
            for peer in "${peers[@]}"; do
                sample_insert "$repeat" "$way" "$peer"
            done
        done
        sample_single_rows "$repeat"
    done
    configure standard fsync on
}

# Makes the rows for all peers, as a table and as files.
prepare_rows() {
    query standard -v rows="$rows" -v work="$work" <<'SQL'
CREATE TABLE bench_source AS
SELECT id, row_number() OVER ()::integer AS payload
  FROM snowflake_nextvals(:rows) AS id;
VACUUM ANALYZE bench_source;
SELECT format('COPY bench_source (payload) TO %L', :'work' || '/payload.copy'),
       format('COPY bench_source TO %L', :'work' || '/supplied.copy') \gexec
SQL
}

# Repeat 0 warms up, and is not recorded.
sample_insert() { # repeat, way, peer
    local name column taken processor bytes statement
    local columns=payload file=payload

    IFS='|' read -r name column <<<"$3"
    if [ "$name" = "bigint supplied" ]; then
        columns="id, payload" file=supplied
    fi
    case $2 in
    COPY) statement="COPY bench_target ($columns) FROM '$work/$file.copy'" ;;
    *) statement="INSERT INTO bench_target ($columns)
                  SELECT $columns FROM bench_source" ;;
    esac
    create_target "$column"
    # The first number of schedstat is the process's time on a processor.
    read -r taken processor bytes < <(query standard <<SQL
SELECT pg_read_file('/proc/self/schedstat') AS used, clock_timestamp() AS begun \gset
$statement;
SELECT extract(epoch FROM clock_timestamp() - :'begun'),
       (split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::numeric -
        split_part(:'used', ' ', 1)::numeric) / 1e9,
       pg_relation_size('bench_target_pkey');
SQL
)
    [ "$1" -gt 0 ] || return 0
    record inserts "$name" 1 "$1" "$2 s" "$taken"
    record inserts "$name" 1 "$1" "$2 processor s" "$processor"
    record inserts "$name" 1 "$1" "$2 index bytes" "$bytes"
}

# Inserts single rows, each in its own transaction, in sessions that take turns
# between the keys: a noisy machine disturbs both alike.  Each key comes as often
# after the other one as after itself, because the second of two is slower.
sample_single_rows() { # repeat
    local sessions peer
    local snowflake='INSERT INTO bench_snowflake (payload) VALUES (1);'
    local bigserial='INSERT INTO bench_bigserial (payload) VALUES (1);'

    for sessions in 1 8; do
        query standard -c 'SET client_min_messages = warning' \
            -c 'DROP TABLE IF EXISTS bench_snowflake, bench_bigserial' \
            -c "CREATE TABLE bench_snowflake (${insert_peers[1]#*|}, payload integer)" \
            -c "CREATE TABLE bench_bigserial (${insert_peers[2]#*|}, payload integer)" \
            -c CHECKPOINT
        load standard "$sessions" "$seconds" "$snowflake
$bigserial
$bigserial
$snowflake" -r
        for peer in snowflake bigserial; do
            record inserts "$peer" "$sessions" "$1" "single row us" \
                "$(awk "/INSERT INTO bench_$peer/ { ms += \$1 } END { print ms * 500 }" "$work/pgbench.out")"
        done
    done
}
