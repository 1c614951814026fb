# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Taking and recording samples.  Sourced by bench/run, not run.

# Writes one sample down, and says so.
record() { # measurement, peer, sessions, repeat, unit, value
    (IFS=,; echo "$*") >>"$results/samples.csv"
    printf "%-8s %2d/%d  %-30s %2d sessions  %14s %s\n" \
        "$1" "$4" "$repeats" "$2" "$3" "$6" "$5"
}

# Prints a list, another item first in each repeat: nobody always comes
# after the same neighbour, and a drift of the machine hits all alike.
rotated() { # repeat, items...
    local first=$((($1 - 1) % ($# - 1)))
    shift

    printf '%s\n' "${@:first + 1}" "${@:1:first}"
}

# Runs a script of pgbench's in so many sessions at once.  Each transaction
# is in $work/pgbench_log* then.
load() { # cluster, sessions, seconds, script
    local cluster=$1 sessions=$2 duration=$3

    rm -f "$work"/pgbench_log*
    as_server_user tee "$work/script.sql" >/dev/null <<<"$4"
    as_server_user "$pg_bin/pgbench" -h "$work/tmp_check/$cluster" -n \
        -M prepared -c "$sessions" -j "$((sessions < 2 ? 1 : 2))" \
        -T "$duration" -f "$work/script.sql" \
        -l --log-prefix="$work/pgbench_log" postgres \
        >"$work/pgbench.out" 2>&1 || { cat "$work/pgbench.out" >&2; exit 1; }
}

# Records the rate of the last load, of which each transaction counts for so
# many.
record_rate() { # measurement, peer, sessions, repeat, unit, count
    local value

    # a sample that the machine spoilt is missing, and the run goes on
    value=$(perl "$bench/rate.pl" "$6" "$work"/pgbench_log*) || return 0
    record "${@:1:5}" "$value"
}

# A statement that calls a function so often and does little else, the same
# for every peer.  Of what SQL offers this costs least a row: 20 ns with a
# function that does nothing.  An aggregate over generate_series() in a
# subquery costs 25, over a table 27, over generate_series() in FROM, which
# is materialised, 71.  OFFSET discards the rows where they are made.
calling() { # call, count
    echo "SELECT $1, generate_series(1, $2) OFFSET $2;"
}
