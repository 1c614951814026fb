# shellcheck shell=bash disable=SC2154  # what bench/run has set
# The throw-away clusters that bench/run measures on.  Sourced, not executed.

# Prints a cluster's data directory, where clean_up of script/common.sh finds it.
data_directory() { # cluster
    echo "$work/tmp_check/$1/pgdata"
}

# Makes and starts a cluster.  Its parameters turn off what makes samples differ
# at random: parallel plans, JIT, autovacuum, and checkpoints by time or by size.
# With synchronous_commit = off no session waits for a flush, so that the figures
# of nextval(), which writes WAL, do not include the disk.
start_cluster() { # cluster, settings...
    local cluster=$1 data
    shift

    data=$(data_directory "$cluster")
    as_server_user mkdir -p "${data%/*}"
    as_server_user "$pg_bin/initdb" -D "$data" -A trust -U postgres -N \
        --no-locale -E UTF8 >/dev/null
    as_server_user tee -a "$data/postgresql.conf" >/dev/null <<CONF
shared_preload_libraries = 'snowflake'
snowflake.worker_id = 1
listen_addresses = ''
unix_socket_directories = '${data%/*}'
synchronous_commit = off
shared_buffers = 1GB
max_wal_size = 16GB
checkpoint_timeout = 1d
autovacuum = off
jit = off
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
$(printf '%s\n' "$@")
CONF
    as_server_user "$pg_bin/pg_ctl" -D "$data" -l "$work/log.$cluster" -w \
        start >/dev/null || { cat "$work/log.$cluster" >&2; exit 1; }
    query "$cluster" -c 'CREATE EXTENSION snowflake'
    query "$cluster" -v peers="$work/peers.so" -f "$work/peers.sql"
}

query() { # cluster, psql's arguments...
    local cluster=$1
    shift

    as_server_user "$pg_bin/psql" -X -q -At -F ' ' -v ON_ERROR_STOP=1 \
        -h "$work/tmp_check/$cluster" -d postgres "$@"
}

# Changes a parameter that needs no restart.  Sessions that begin after the
# function has returned have the value.
configure() { # cluster, parameter, value
    [ "$(query "$1" -c "SHOW $2")" != "$3" ] || return 0
    query "$1" -c "ALTER SYSTEM SET $2 = '$3'" -c 'SELECT pg_reload_conf()' \
        >/dev/null
    until [ "$(query "$1" -c "SHOW $2")" = "$3" ]; do
        sleep 0.01
    done
}

# PostgreSQL 18 has uuidv7().
has_uuidv7() { # cluster
    [ "$(query "$1" -c "SELECT to_regprocedure('uuidv7()') IS NOT NULL")" = t ]
}

postmaster_pid() { # cluster
    head -n 1 "$(data_directory "$1")/postmaster.pid"
}

# Makes an empty table "bench_target" with a key.
create_target() { # column
    query standard -c 'SET client_min_messages = warning' \
        -c 'DROP TABLE IF EXISTS bench_target' \
        -c "CREATE TABLE bench_target ($1, payload integer)" -c CHECKPOINT
}

# The server's user may not be able to read the checkout.
compile_peers() {
    compile_library peers "$bench/peers.c"
    cp "$bench/peers.sql" "$work/"
    chmod go+r "$work/peers.sql"
}

compile_library() { # name, source
    local flags

    flags="$("$PG_CONFIG" --cppflags) $("$PG_CONFIG" --cflags)"
    flags+=" $("$PG_CONFIG" --cflags_sl) -I$("$PG_CONFIG" --includedir-server)"
    # shellcheck disable=SC2086 # flags are a list of words
    cc $flags -shared -o "$work/$1.so" "$2"
    chmod go+r "$work/$1.so"
}

# Both libraries have functions of the same names, so pgEdge's is loaded second,
# and its function is created under another name.
compile_pgedge() {
    pgedge_preload=()
    [ -n "${BENCH_PGEDGE:-}" ] || return 0
    compile_library pgedge "$BENCH_PGEDGE/snowflake.c"
    pgedge_preload=("shared_preload_libraries = 'snowflake, $work/pgedge'")
}

# The library defines snowflake.node too late for a value in postgresql.conf.
create_pgedge() { # cluster
    [ -n "${BENCH_PGEDGE:-}" ] || return 0
    configure "$1" snowflake.node 1
    query "$1" -c "CREATE SEQUENCE bench_pgedge_sequence" \
        -c "CREATE FUNCTION bench_pgedge(regclass) RETURNS bigint
            AS '$work/pgedge', 'snowflake_nextval' LANGUAGE C STRICT"
}

compile_latency() {
    cc -O2 -I"$("$PG_CONFIG" --includedir)" -L"$("$PG_CONFIG" --libdir)" \
        -Wl,-rpath,"$("$PG_CONFIG" --libdir)" \
        -o "$work/latency" "$bench/latency.c" -lpq
}
