# shellcheck shell=bash disable=SC2154  # what bench/run has set
# Prints the conditions of a run, as a list in Markdown.  Sourced, not executed.

write_conditions() {
    cat <<MD
- Date: $(date -u '+%Y-%m-%d %H:%M') UTC; extension at commit $(extension_commit)
- Processor: $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores; load average at the start $load_at_start, at the end $(cut -d ' ' -f 1-3 /proc/loadavg)
- Kernel: $(uname -sr); clock source $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource 2>/dev/null || echo unknown)
- $(query standard -c 'SELECT version()')
- Flags: \`$("$PG_CONFIG" --cflags)\`
- Settings of the clusters: \`$(cluster_settings)\`; \`fsync = off\` for the inserts
- Repeats: $repeats; a sample of a load: $seconds s; rows of an insert: $rows
MD
}

extension_commit() {
    git -c safe.directory="$tree" -C "$tree" describe --always --dirty \
        2>/dev/null || echo unknown
}

# The parameters that start_cluster() has set, without paths and ports.
cluster_settings() {
    query standard -c "
        SELECT replace(string_agg(name || ' = ' || current_setting(name), ', '
                          ORDER BY name), '$work/', '')
          FROM pg_settings
         WHERE sourcefile ~ 'postgresql.conf\$'
           AND name !~ '^lc_|director|address|imezone|DateStyle|TimeZone|text_search|dynamic'"
}
