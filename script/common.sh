# Functions that the scripts share: packages, the build, and the ordinary user
# that servers run as.  Sourced by bash, not executed.

set -euo pipefail

# Output of apt and awk is read below, and cd must not print where it went.
export LC_ALL=C
unset CDPATH

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PG_CONFIG=${PG_CONFIG:-pg_config}

# The caller's PGHOST, PGPORT and the like must not lead to another server.
for variable in "${!PG@}"; do
    [ "$variable" = PG_CONFIG ] || unset "$variable"
done

say() {
    printf '\n== %s\n' "$*"
}

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

can_be_root() {
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && sudo true; }
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "This command needs root, and there is no sudo: $*"
    fi
}

# Keeps Debian from creating or starting a cluster when it installs a server: by
# a drop-in for postgresql-common, and by policy-rc.d, which Debian asks before
# it starts a service.  allow_servers removes both after the installation.  The lock
# has two runs install one after the other, because both use these files.
no_cluster=/etc/postgresql-common/createcluster.d/snowflake-setup.conf
no_service=/usr/sbin/policy-rc.d
servers_are_forbidden=
no_service_is_ours=

forbid_servers() {
    exec 8</etc/apt
    flock --timeout 1200 8 || die "Another run is installing packages; wait for it."
    servers_are_forbidden=1
    as_root install -d -m 755 /etc/postgresql-common "${no_cluster%/*}"
    echo 'create_main_cluster = off' | as_root tee "$no_cluster" >/dev/null
    if [ ! -e "$no_service" ]; then
        no_service_is_ours=1
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$no_service" >/dev/null
        as_root chmod 755 "$no_service"
    fi
}

allow_servers() {
    [ -n "$servers_are_forbidden" ] || return 0
    as_root rm -f "$no_cluster"
    as_root rmdir --ignore-fail-on-non-empty "${no_cluster%/*}"
    [ -z "$no_service_is_ours" ] || as_root rm -f "$no_service"
    servers_are_forbidden=
    no_service_is_ours=
    exec 8<&-
}

# Runs apt-get, and shows only the last lines of its output, and only if it
# fails.  Waits up to five minutes while another process, such as apt-daily, has
# apt's or dpkg's lock.
run_apt() { # arguments of apt-get
    local output deadline=$((SECONDS + 300)) waits=

    apt_warnings=
    until output=$(as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq "$@" 2>&1); do
        if [[ $output != *'ould not get lock'* ]] || [ "$SECONDS" -ge "$deadline" ]; then
            tail -n 8 <<<"$output" >&2
            return 1
        fi
        [ -n "$waits" ] || echo "Another process has the lock of apt or dpkg; waiting for it."
        waits=1
        sleep 2
    done
    # An update that could not reach a mirror warns and succeeds.
    apt_warnings=$(grep '^[WE]:' <<<"$output" | tail -n 4) || true
}

# Lets apt know today's versions, once.  A failure shows in the installation.
lists_are_updated=
update_lists() {
    [ -z "$lists_are_updated" ] || return 0
    lists_are_updated=1
    run_apt update || true
    update_warnings=$apt_warnings
}

# Fails, and names the packages that somebody else has to install.
cannot_install() { # reason, packages
    die "These Debian packages are missing: ${*:2}
$1"
}

# Installs Debian packages by name.
install_packages() {
    say "Installing $*"
    command -v apt-get >/dev/null ||
        cannot_install "There is no apt-get here: install what these packages have." "$@"
    can_be_root ||
        cannot_install "Become root, or a user who may use sudo, to install them." "$@"
    update_lists
    refuse_to_change_servers "$@"
    forbid_servers
    run_apt -y --no-install-recommends install "$@" ||
        cannot_install "apt-get could not install them.${update_warnings:+
$update_warnings}" "$@"
    allow_servers
}

# Sessions of a running server whose files were replaced by those of another
# minor version can fail.
refuse_to_change_servers() { # packages
    local changes

    changes=$(apt-get -s --no-install-recommends install "$@" 2>/dev/null |
        grep -oE '^(Inst|Remv) postgresql-[0-9]+ \[[^]]*\]( \([^ ]*)?' |
        sed -E 's/^Inst ([^ ]*) \[(.*)\] \(/\1 \2 to /; s/^Remv (.*)/\1 would be removed/') || true
    [ -z "$changes" ] ||
        die "apt would change an installed PostgreSQL server to install these packages: $*
    $changes
Upgrade the server when it may restart, and run this command again:
    apt-get install ${changes%% *}"
}

# Prints a package with the version of another one if that is installed.
in_version_of() { # package, other package
    local version

    # shellcheck disable=SC2016 # a format of dpkg-query
    version=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$2" 2>/dev/null |
        sed -n 's/^installed //p') || true
    echo "$1${version:+=$version}"
}

# Prints PG_CONFIG's major version, from its output or from its path.
pg_major() {
    local version

    if version=$("$PG_CONFIG" --version 2>/dev/null); then
        version=${version#PostgreSQL }
        echo "${version%%[!0-9]*}"
    elif [[ $PG_CONFIG =~ $debian_pg_config ]]; then
        echo "${BASH_REMATCH[1]}"
    fi
}

# Prints the major version that the distribution's package "postgresql" installs.
distribution_major() {
    apt-cache depends postgresql 2>/dev/null |
        sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1 || true
}

have_server() {
    [ -x "$("$PG_CONFIG" --bindir 2>/dev/null)/postgres" ]
}

have_headers() {
    [ -f "$("$PG_CONFIG" --pgxs 2>/dev/null)" ] &&
        [ -f "$("$PG_CONFIG" --includedir-server)/postgres.h" ]
}

# Where Debian has the pg_config of a version.  The path may be given before that
# version is installed.
debian_pg_config='^/usr/lib/postgresql/([0-9]+)/bin/pg_config$'

# Makes PG_CONFIG an absolute path, since sudo has a PATH of its own.  Debian's
# pg_config can be that of a newer client: prefer an installed server.
find_pg_config() {
    local server

    if [ "$PG_CONFIG" = pg_config ] && ! have_server; then
        server=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -n 1) || true
        PG_CONFIG=${server:+${server%postgres}}pg_config
    fi
    if [[ $("$PG_CONFIG" --version 2>/dev/null) == PostgreSQL\ * ]]; then
        PG_CONFIG=$(realpath -s "$(command -v "$PG_CONFIG")")
    elif [ "$PG_CONFIG" != pg_config ] && ! [[ $PG_CONFIG =~ $debian_pg_config ]]; then
        die "PG_CONFIG=$PG_CONFIG is not the pg_config of a PostgreSQL."
    fi
}

find_pg_config

# Prints the packages that have the missing parts of PostgreSQL, with the headers
# in the installed server's version if apt has that.
postgresql_packages() { # major version
    local server=postgresql-$1
    local headers=("postgresql-server-dev-$1")

    have_server || echo "$server"
    ! have_headers || return 0
    if [ "$(in_version_of "$server" "$server")" != "$server" ]; then
        headers=("$(in_version_of "${headers[0]}" "$server")" "$(in_version_of libpq-dev libpq5)")
        apt-get -s install "${headers[@]}" >/dev/null 2>&1 ||
            headers=("postgresql-server-dev-$1")
    fi
    printf '%s\n' "${headers[@]}"
}

# Prints the name of a package unless the command, which it has, is there.
package_for() {
    command -v "$1" >/dev/null || echo "$2"
}

# Adds to the array "missing" the packages that have what PG_CONFIG lacks.  Sets
# "major".
find_postgresql() {
    if [[ $PG_CONFIG == /* && $PG_CONFIG != /usr/bin/pg_config ]] &&
        ! [[ $PG_CONFIG =~ $debian_pg_config ]]; then
        die "The PostgreSQL of PG_CONFIG=$PG_CONFIG lacks its server or the server's headers."
    fi
    major=$(pg_major)
    if command -v apt-get >/dev/null; then
        ! can_be_root || update_lists
        major=${major:-$(distribution_major)}
    fi
    [ -n "$major" ] ||
        cannot_install "Become root, or a user who may use sudo, and run apt-get update and this command again; or set PG_CONFIG= to the pg_config of a PostgreSQL." \
            "${missing[@]}" postgresql postgresql-server-dev-all
    mapfile -t -O "${#missing[@]}" missing < <(postgresql_packages "$major")
}

# Installs a compiler, a PostgreSQL to build with, and the given packages, unless
# they are installed.
ensure_packages() {
    local missing=("$@")
    local major

    mapfile -t -O "${#missing[@]}" missing < <(package_for cc gcc)
    [ -f /usr/include/stdio.h ] || missing+=(libc6-dev)
    if ! have_server || ! have_headers; then
        find_postgresql
    fi

    if [ "${#missing[@]}" -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
    if ! have_server || ! have_headers; then
        PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config
        if ! have_server || ! have_headers; then
            die "PostgreSQL $major is installed but $PG_CONFIG does not work."
        fi
    fi
}

# Installs what script/test needs, and the given packages.
ensure_packages_for_tests() { # packages
    local missing=("$@")

    mapfile -t -O "${#missing[@]}" missing < <(package_for prove perl)
    perl -e 'use IPC::Run' 2>/dev/null || missing+=(libipc-run-perl)
    ensure_packages "${missing[@]}"
}

# PostgreSQL's server does not run as root.
as_server_user() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid="$server_user" --regid="$(id -g "$server_user")" --init-groups \
            env HOME="$work" TMPDIR="$work" "$@"
    else
        env TMPDIR="$work" "$@"
    fi
}

# Makes $work, a directory of the server's user, which clean_up removes.  The
# directory is not below TMPDIR, which the server's user may not be able to read,
# and whose path may be too long for the name of a socket.  Tests load libraries
# from there, so the file system must not be mounted noexec.  $memory is empty or a
# file system to prefer.
memory=
make_work_directory() {
    local base

    trap '' INT TERM HUP
    for base in $memory /tmp /var/tmp; do
        work=$(mktemp -d "$base/snowflake.XXXXXX")
        install -m 755 /dev/null "$work/x"
        [ ! -x "$work/x" ] || break
        rm -r "$work"
        work=
    done
    clean_up_at_end
    [ -n "$work" ] || die "/tmp and /var/tmp are mounted noexec; remount one: mount -o remount,exec /tmp"
    rm "$work/x"
    server_user=$(id -un)
    if [ "$(id -u)" -eq 0 ]; then
        server_user=postgres
        id postgres >/dev/null 2>&1 || server_user=nobody
        chown "$server_user:" "$work"
    fi
    cd "$work"
}

# Builds from scratch: make does not detect objects of another PostgreSQL.
build() { # directory, arguments of make
    make -s -C "$1" PG_CONFIG="$PG_CONFIG" clean
    make -s -C "$1" PG_CONFIG="$PG_CONFIG" -j2 "${@:2}" all
}

# Makes $work, and in it a PostgreSQL that has the extension, so that nothing
# outside of $work changes.  Sets $pg_bin, where its programs are.
make_work_with_extension() { # arguments of make
    say "Building the extension for $("$PG_CONFIG" --version)"
    make_work_directory
    mkdir "$work/build"
    cp -r "$tree"/{Makefile,META.json,src,*.control,*--*.sql} "$work/build/"
    build "$work/build" "$@"
    copy_postgresql "$work/postgresql"
    make -s -C "$work/build" PG_CONFIG="$PG_CONFIG" DESTDIR="$work/postgresql" install
    if [ "$(id -u)" -eq 0 ]; then
        chown -hR "$server_user:" "$work/postgresql"
    fi
    chmod -R u+rwX,go+rX "$work/postgresql"
}

# Copies PG_CONFIG's PostgreSQL to the same paths below another root directory.
# PostgreSQL finds its files relative to its programs, so these are copied, and
# the other files are links.
copy_postgresql() { # root directory
    local bin library directory
    local programs=(postgres initdb psql pgbench createdb createuser dropdb dropuser
        clusterdb reindexdb vacuumdb)

    bin=$("$PG_CONFIG" --bindir)
    library=$("$PG_CONFIG" --pkglibdir)
    mkdir -p "$1$bin"
    (cd "$bin" && cp -L "${programs[@]}" pg_* "$1$bin/")
    for directory in "$library" "$("$PG_CONFIG" --sharedir)"; do
        mkdir -p "$1$directory"
        cp -rs "$directory/." "$1$directory/"
        find "$1$directory" -name 'snowflake*' -prune -exec rm -r {} +
    done
    pg_bin=$1$bin
    [ "$("$pg_bin/pg_config" --pkglibdir)" = "$1$library" ] ||
        die "The PostgreSQL of $PG_CONFIG does not find its files relative to its programs."
}

# A directory that root has made in the checkout belongs to the checkout's owner.
give_to_owner() { # directory
    [ "$(id -u)" -ne 0 ] || chown -R --reference="$tree" "$1"
}

# Prints the processes that have a path in $work among their arguments.
processes_in_work() {
    # The bracket keeps grep from finding itself.
    grep -l -e "${work%?}[${work: -1}]/" /proc/[0-9]*/cmdline 2>/dev/null |
        cut -d / -f 3
}

# Ends the servers and clients in $work, and removes $work.  A server whose start
# was interrupted may not have written its postmaster.pid yet.
remove_work() {
    local signal=QUIT tries left

    cd /
    for tries in {1..100}; do
        mapfile -t left < <(processes_in_work)
        [ "${#left[@]}" -gt 0 ] || break
        [ "$tries" -lt 50 ] || signal=KILL
        kill -s "$signal" "${left[@]}" 2>/dev/null || true
        sleep 0.1
    done
    rm -rf "$work" 2>/dev/null || { sleep 1; rm -rf "$work"; }
    work=
}

# Further signals do not interrupt the cleaning up.
work=
clean_up() {
    trap '' INT TERM HUP
    allow_servers
    [ -z "$work" ] || remove_work
}

clean_up_at_end() {
    trap clean_up EXIT
    trap 'clean_up; exit 130' INT TERM HUP
}

clean_up_at_end
