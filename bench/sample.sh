# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Takes and records samples.  Sourced by bench/run, not executed.

# Records one sample, and prints it.
record() { # measurement, peer, sessions, repeat, unit, value
    (IFS=,; echo "$*") >>"$results/samples.csv"
    printf "%-8s %2d/%d  %-30s %2d sessions  %14s %s\n" \
        "$1" "$4" "$repeats" "$2" "$3" "$6" "$5"
}

# Records what latency.c has printed to $work/statistics: the lines that match a
# pattern.  Each unit begins with "prefix".
record_statistics() { # pattern, measurement, peer, sessions, repeat, prefix
    local statistic value

    while read -r statistic value; do
        record "${@:2:4}" "${6:-}$statistic us" "$value"
    done < <(grep -E "$1" "$work/statistics")
}

# Prints a list that begins with another item in each repeat, so that a drift of
# the machine's speed affects all items alike.
rotated() { # repeat, items...
    local first=$((($1 - 1) % ($# - 1)))
    shift

    printf '%s\n' "${@:first + 1}" "${@:1:first}"
}

# Runs a pgbench script in several sessions at the same time, and logs each
# transaction to $work/pgbench_log*.
load() { # cluster, sessions, seconds, script, options of pgbench
    local cluster=$1 sessions=$2 duration=$3

    rm -f "$work"/pgbench_log*
    as_server_user tee "$work/script.sql" >/dev/null <<<"$4"
    as_server_user "$pg_bin/pgbench" -h "$work/tmp_check/$cluster" -n \
        -M prepared -c "$sessions" -j "$((sessions < 2 ? 1 : 2))" \
        -T "$duration" -f "$work/script.sql" \
        "${@:5}" -l --log-prefix="$work/pgbench_log" postgres \
        >"$work/pgbench.out" 2>&1 || { cat "$work/pgbench.out" >&2; exit 1; }
}

# Records the rate of the last load; each transaction counts for "count" ids.
record_rate() { # measurement, peer, sessions, repeat, unit, count
    local value

    # If a sample fails because the machine was too slow, the run goes on, and the
    # report says so.
    value=$(perl "$bench/rate.pl" "$6" "$work"/pgbench_log*) || value=
    record "${@:1:5}" "$value"
}

# Prints a statement that calls a function many times, and does little else.
# OFFSET discards the rows as soon as they are made.  With a function that does
# nothing, a row costs 20 ns, the least of four forms: an aggregate costs 25 ns
# over generate_series() in a subquery, 27 ns over a table, and 71 ns over
# generate_series() in FROM, which PostgreSQL materialises.
calling() { # call, count
    echo "SELECT $1, generate_series(1, $2) OFFSET $2;"
}
