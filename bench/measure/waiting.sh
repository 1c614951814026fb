# shellcheck shell=bash disable=SC2154  # what bench/run has set
# What waiting for the next tick costs.  Sourced by bench/run, not executed.
#
# Sessions that want more ids than the default layout has use the processors to
# make ids and to wait.  One session with a layout in which no session waits
# shows the cost of making ids alone.

measure_waiting() {
    local repeat series sessions peers batch=5000

    for ((repeat = 1; repeat <= repeats; repeat++)); do
        mapfile -t peers < <(rotated "$repeat" "standard|1" "standard|8" \
            "standard|64" "wide|1")
        for series in "${peers[@]}"; do
            sessions=${series#*|}
            sample_processors "${series%|*}" "$sessions"
            record_rate waiting "${series%|*}" "$sessions" "$repeat" ids/s \
                "$batch"
            record waiting "${series%|*}" "$sessions" "$repeat" cores "$cores"
        done
    done
}

# Sets "cores" to the number of processors that the cluster uses under load.
sample_processors() { # cluster, sessions
    local pid

    perl "$bench/cpu.pl" "$(postmaster_pid "$1")" 1 "$seconds" \
        >"$work/cores" &
    pid=$!
    load "$1" "$2" "$((seconds + 2))" \
        "$(calling 'snowflake_nextval()' "$batch")"
    wait "$pid"
    cores=$(<"$work/cores")
}
