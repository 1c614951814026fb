# The states of script/fresh: functions state_*, each with a comment that says
# what the machine is like and what has to happen.  Run by bash as root inside the
# root directory.
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

as_root_in_checkout() { # command line
    echo "root# $1"
    bash -c "cd $checkout && $1"
}

get_checkout() {
    cp -r /srv/snowflake "$checkout"
    chown -R newcomer: "$checkout"
}

apt_install() { # packages
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

major() {
    apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p'
}

# Fails unless the PostgreSQL of the machine has the files of its packages, with
# their checksums, and no other files.
is_as_packaged() {
    local packages changes

    [ -e /usr/lib/postgresql ] || return 0
    packages=$(find /usr/lib/postgresql /usr/share/postgresql ! -type d \
        -exec dpkg-query -S {} + | cut -d : -f 1 | sort -u) ||
        fail "files of no package"
    # shellcheck disable=SC2086 # a list of words
    changes=$(dpkg --verify $packages)
    [ -z "$changes" ] || fail "changed files: $changes"
    echo "as packaged: "$packages
}

# Lists where only the demo could leave a file, or a file of the demo anywhere.
list_files() {
    find /tmp /var/tmp /home /root /dev/shm /srv -path "$checkout" -prune -o -print
    find /opt /run /usr/local ! -type d ! -path /run/adduser
    find /etc /usr/sbin /var/lib -name '*snowflake*' -o -name policy-rc.d
    find /var/lib/postgresql 2>/dev/null | sed 1d || true
}

# Prints the processes of ordinary users.
user_processes() {
    find /proc -maxdepth 1 -name '[0-9]*' ! -user root \
        -exec sed -n 1p {}/cmdline ';' 2>/dev/null | tr '\0' ' '
}

# ----- states that .ci/run needs; the others are for a release -----

# A machine without PostgreSQL and compiler, in German; the user has sudo.  "make
# demo" leaves nothing but the installed packages and files in the checkout.
state_bare() {
    export LANG=de_DE.UTF-8
    get_checkout
    list_files | sort >/before
    newcomer "make demo"
    [ -z "$(user_processes)" ] || fail "still runs: $(user_processes)"
    list_files | sort >/after
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
    diff <(echo "$before") <(server_packages; postmaster) || fail "not the same server"
    is_well
}

# Two versions run side by side.  The README's block, with each version in turn,
# installs into this one, and leads to its cluster.
state_two_versions() {
    local version other before

    apt-get -qq update
    other=$(offer_other_version)
    apt_install "postgresql-$other" "postgresql-$(major)"
    get_checkout
    start_cluster "$other"
    start_cluster "$(major)"
    for version in "$other" "$(major)"; do
        [ "$version" -ge 15 ] || continue
        before=$(other_versions "$version")
        readme_block "$version"
        diff <(echo "$before") <(other_versions "$version") ||
            fail "changed another version than $version"
    done
}

# ----- the README's block -----

# Starts a Debian cluster, which Debian 13 makes for the newest version only.  This
# machine's own servers may leave no TCP port to it.
start_cluster() { # major version
    [ -d "/etc/postgresql/$1/main" ] || pg_createcluster "$1" main
    echo "listen_addresses = ''" >"/etc/postgresql/$1/main/conf.d/local.conf"
    pg_ctlcluster "$1" main start
}

# Adds the packages of another Debian release, and prints its version of
# PostgreSQL.
offer_other_version() {
    local other=bookworm major=15 file=/etc/apt/sources.list.d/other.list

    ! grep -q bookworm /etc/os-release || { other=bullseye; major=13; }
    sed -n "s/ [a-z]* main$/ $other main/p" /etc/apt/sources.list | head -n 1 >"$file"
    apt-get -qq update
    echo "$major"
}

# Prints the files and the postmasters of all versions but one.
other_versions() { # version
    find /usr/lib/postgresql /usr/share/postgresql -type f ! -path "*/postgresql/$1/*" \
        -exec md5sum {} + | sort
    find /var/lib/postgresql -name postmaster.pid ! -path "*/$1/main/*" -exec head -n 1 {} +
}

# Runs the README's block as the newcomer, or as root without sudo, and its SQL in
# the psql that it opens.
readme_block() { # major version, user
    local block sql output run=newcomer

    echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes
    block=$(sed -n '/^NN=/,/^```/{s/^NN=17/NN='"$1"'/; /^```/!p}' "$checkout/README.md")
    sql=$(sed -n '/^CREATE EXTENSION snowflake;/,/^```/{/^```/!p}' "$checkout/README.md")
    if [ "${2:-}" = root ]; then
        block=$(sed 's/sudo -u postgres/runuser -u postgres --/; s/sudo //' <<<"$block")
        run=as_root_in_checkout
    fi
    output=$("$run" "set -e
$block <<'SQL'
$sql
SQL")
    is_installed=1
    printf '%s\n' "$output"
    grep -qE '^ +[0-9]{19} \| pear  \| .* \| +0 \| +1 \| +[01]$' <<<"$output" ||
        fail "no ids of worker id 1"
    [ "$(runuser -u postgres -- psql -XAt --cluster "$1/main" -c 'SELECT count(*) FROM orders')" = 2 ] ||
        fail "the rows are in another cluster"
}

# A machine with a server only, without sudo, which the README's block as root
# changes.
state_readme_as_root() {
    apt-get -qq update
    apt_install "postgresql-$(major)"
    start_cluster "$(major)"
    get_checkout
    rm /usr/bin/sudo
    readme_block "$(major)" root
}

# PostgreSQL is built from source in /usr/local/pgsql, and there is no other.  The
# demo needs no root, and leaves it as it is; then it gets the extension.
state_from_source() {
    local pgsql=/usr/local/pgsql sql

    apt-get -qq update
    apt_install gcc libc6-dev bzip2 xz-utils bison flex perl
    build_postgresql "/var/cache/apt/archives/pgsql-$(major).tar"
    get_checkout
    find "$pgsql" -type f -exec md5sum {} + >/before
    mv /usr/bin/sudo /
    newcomer "make demo PG_CONFIG=$pgsql/bin/pg_config"
    mv /sudo /usr/bin/
    find "$pgsql" -type f -exec md5sum {} + | diff /before - || fail "changed files"

    sql=$(sed -n '/^CREATE EXTENSION snowflake;/,/^```/{/^```/!p}' "$checkout/README.md")
    newcomer "set -e
PG_CONFIG=$pgsql/bin/pg_config
make PG_CONFIG=\$PG_CONFIG && sudo make install PG_CONFIG=\$PG_CONFIG
printf '%s\n' 'snowflake.worker_id = 1' \"shared_preload_libraries = 'snowflake'\" | sudo tee /etc/snowflake.conf
$pgsql/bin/initdb -A trust -D $home/data >/dev/null
echo \"include = '/etc/snowflake.conf'\" >>$home/data/postgresql.conf
$pgsql/bin/pg_ctl -w -D $home/data -l $home/log start
$pgsql/bin/psql -X -v ON_ERROR_STOP=1 postgres <<'SQL'
$sql
SQL
$pgsql/bin/pg_ctl -D $home/data stop"
}

# Builds PostgreSQL from Debian's source package in /usr/local/pgsql, and keeps it
# in a file for the next run.
build_postgresql() { # file
    local version

    [ ! -e "$1" ] || { tar -C / -xf "$1"; return; }
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
    apt-get -qq update
    mkdir /srv/source
    cd /srv/source
    # A mirror may not have the newest.
    for version in $(apt-cache showsrc "postgresql-$(major)" |
        sed -n 's/^Version: //p' | sort -Vru); do
        ! apt-get -qq source --download-only "postgresql-$(major)=$version" || break
    done
    tar -xf ./*.orig.tar.* --strip-components=1
    (./configure --prefix=/usr/local/pgsql --without-icu --without-readline \
        --without-zlib CFLAGS=-O0 && make -s -j2 && make -s install) >/build.log 2>&1 ||
        { tail /build.log; fail "no build"; }
    tar -C / -cf "$1.new" usr/local/pgsql
    mv "$1.new" "$1"
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
        apt-get -qq download "$name" 2>/dev/null
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
    apt_install "postgresql-$(major)=$1" "postgresql-client-$(major)=$1" "libpq5=$1"
    start_cluster "$(major)"
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

# ----- packages -----

# An ordinary user builds Debian's packages, and runs "make installcheck" as a
# superuser of another name than postgres, by password: the tests connect as roles of
# their own, which peer authentication refuses.
state_package_build() {
    apt_install build-essential debhelper postgresql-all
    get_checkout
    newcomer "dpkg-buildpackage -us -uc -b"
    apt_install "$home/postgresql-$(major)-snowflake_"*.deb
    newcomer "script/check-docs /usr/share/doc/postgresql-$(major)-snowflake"
    [ -d "/etc/postgresql/$(major)/main" ] || pg_createcluster "$(major)" main
    printf '%s\n' "shared_preload_libraries = 'snowflake'" "snowflake.worker_id = 7" \
        >"/etc/postgresql/$(major)/main/conf.d/snowflake.conf"
    sed -i 's/^\(local  *all  *all  *\)peer/\1scram-sha-256/' "/etc/postgresql/$(major)/main/pg_hba.conf"
    start_cluster "$(major)"
    runuser -u postgres -- psql -qc "CREATE ROLE newcomer SUPERUSER LOGIN PASSWORD 'secret'"
    # A server outside the root directory can have taken the default port.
    newcomer "PGPORT=$(pg_lsclusters -h | awk -v major="$(major)" '$1 == major { print $3 }') PGPASSWORD=secret make installcheck TAP_TESTS="
}

# Set by states that install the extension.
is_installed=

"$@"
[ -n "$is_installed" ] || is_as_packaged
