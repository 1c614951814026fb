# The states of script/fresh: functions state_*, each with a comment that says
# what the machine is like and what has to happen.  Run by bash as root inside the
# root directory.  "with packages" has script/fresh install the packages first.
#
# The checkout is in /srv/snowflake.

set -euo pipefail

home=/home/newcomer
checkout=$home/snowflake

# ----- helpers -----

fail() { # message
    echo "FAILED: $*"
    exit 1
}

# Runs a command line in the checkout as an ordinary user, whose locale is $LANG.
newcomer() { # command line
    echo "newcomer$ $1"
    runuser -u newcomer -- env -i HOME="$home" USER=newcomer LANG="${LANG:-C.UTF-8}" \
        PATH=/usr/local/bin:/usr/bin:/bin DEMO_SECONDS=1 \
        bash -c "cd $checkout && $1"
}

get_checkout() {
    cp -r /srv/snowflake "$checkout"
    chown -R newcomer: "$checkout"
}

# Runs a command as the newcomer.  It has to fail with a message of at most 15
# lines, which the regular expressions match.
refuses() { # command line, regular expressions...
    local command=$1 output
    shift

    if output=$(newcomer "$command" 2>&1); then
        printf '%s\n' "$output"
        fail "succeeds: $command"
    fi
    printf '%s\n' "$output"
    [ "$(wc -l <<<"$output")" -le 15 ] || fail "too many lines"
    for expression; do
        grep -qE -e "$expression" <<<"$output" || fail "no message: $expression"
    done
}

install() { # packages
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

major() {
    apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p'
}

install_all_packages() {
    apt-get -qq update
    echo 'create_main_cluster = off' >/etc/postgresql-common/createcluster.conf
    install gcc libc6-dev "postgresql-$(major)" "postgresql-server-dev-$(major)" \
        perl libipc-run-perl
}

# The picture of the demo has bars, whose numbers have no comma.
has_bars() {
    local picture=$checkout/demo_results/activity.svg bars

    bars=$(grep -o '<rect [^>]*>' "$picture" |
        grep -cE ' width="[0-9.]+".* height="[0-9.]+"' || true)
    echo "$bars bars"
    [ "$bars" -gt 20 ] || fail "the picture has $bars bars"
}

# Lists where only the demo could leave a file, or a file of the demo anywhere.
list_files() {
    find /tmp /var/tmp /home /root /run /dev/shm /srv /opt /usr/local \
        /var/lib/postgresql -path "$checkout" -prune -o -print 2>/dev/null || true
    find /etc /usr/sbin /var/lib '(' -name '*snowflake*' -o -name policy-rc.d ')'
}

# No process of an ordinary user is left.
nothing_runs() {
    local processes

    processes=$(find /proc -maxdepth 1 -name '[0-9]*' ! -user root \
        -exec sed -n '1p' {}/cmdline ';' 2>/dev/null | tr '\0' ' ')
    [ -z "$processes" ] || fail "still runs: $processes"
}

# ----- states for .ci/run -----

# A machine without PostgreSQL and compiler, in German; the user has sudo.  "make
# demo" leaves nothing but the installed packages and files in the checkout.
state_bare() {
    export LANG=de_DE.UTF-8
    get_checkout
    list_files >/before
    newcomer "make demo"
    has_bars
    nothing_runs
    list_files >/after
    diff /before /after || fail "files are left"
}

# A server with data runs, in an older minor version than the archive's newest,
# without headers.  "make demo" installs the headers of this version and leaves
# the server as it is.
state_older_minor() {
    local version before

    apt-get -qq update
    [ "$(versions | wc -l)" -gt 1 ] || offer_older_version
    version=$(versions | head -n 1)
    run_server "$version"
    before=$(server_packages; postmaster)
    get_checkout
    newcomer "make demo"
    has_bars
    diff <(echo "$before") <(server_packages; postmaster) || fail "not the same server"
    is_well
}

# ----- running servers -----

# Lists the archive's versions of PostgreSQL, the oldest first.
versions() {
    apt-cache madison "postgresql-$(major)" | awk '{print $3}' | sort -Vu
}

# Adds a source of packages with PostgreSQL's newest version, which calls itself
# an older one.
offer_older_version() {
    local name deb version

    version=$(versions | tail -n 1)
    mkdir /srv/older
    cd /srv/older
    for name in postgresql{,-client,-server-dev}-"$(major)" libpq5 libpq-dev; do
        apt-get -qq download "$name"
        dpkg-deb -R "$name"_*.deb contents
        rm "$name"_*.deb
        deb=$name.deb
        sed -i "s/$version/$version~older/" contents/DEBIAN/control
        dpkg-deb -Zgzip -z1 -b contents "$deb" >/dev/null
        rm -r contents
        dpkg-deb -f "$deb"
        printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" \
            "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d ' ' -f 1)"
    done >Packages
    cd /
    echo "deb [trusted=yes] file:/srv/older ./" >/etc/apt/sources.list.d/older.list
    apt-get -qq update
}

# Installs a server, which Debian starts, and gives it data.
run_server() { # version
    install "postgresql-$(major)=$1" "postgresql-client-$(major)=$1" "libpq5=$1"
    pg_ctlcluster "$(major)" main start
    query "CREATE TABLE numbers AS SELECT generate_series(1, 1000) AS n" >/dev/null
}

query() { # SQL
    runuser -u postgres -- psql -X -At -v ON_ERROR_STOP=1 -c "$1"
}

server_packages() {
    dpkg-query -W "postgresql-$(major)" "postgresql-client-$(major)" libpq5
}

postmaster() {
    sed -n '1s/^/postmaster /p' "/var/lib/postgresql/$(major)/main/postmaster.pid"
}

# A new session of the server loads a library and finds the data.
is_well() {
    query 'DO $$ BEGIN PERFORM 1; END $$' >/dev/null || fail "plpgsql does not load"
    [ "$(query "SELECT sum(n) FROM numbers")" = 500500 ] || fail "the data is gone"
}

"$@"
