# Functions that the scripts share: packages, the build, and the ordinary user
# that servers run as.  Sourced by bash, not executed.

set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PG_CONFIG=${PG_CONFIG:-pg_config}

# A relative path must still be valid after the script has changed directory.
if [[ $PG_CONFIG == */* && -e $PG_CONFIG ]]; then
    PG_CONFIG=$(realpath "$PG_CONFIG")
fi

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
# it starts a service.  allow_servers removes both after the installation.
no_cluster=/etc/postgresql-common/createcluster.d/snowflake-setup.conf
no_service=/usr/sbin/policy-rc.d
no_service_is_ours=

forbid_servers() {
    trap allow_servers EXIT
    trap 'exit 130' INT TERM HUP
    as_root install -d -m 755 /etc/postgresql-common "${no_cluster%/*}"
    echo 'create_main_cluster = off' | as_root tee "$no_cluster" >/dev/null
    if [ ! -e "$no_service" ]; then
        no_service_is_ours=1
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$no_service" >/dev/null
        as_root chmod 755 "$no_service"
    fi
}

allow_servers() {
    as_root rm -f "$no_cluster"
    as_root rmdir --ignore-fail-on-non-empty "${no_cluster%/*}"
    if [ -n "$no_service_is_ours" ]; then
        as_root rm -f "$no_service"
        no_service_is_ours=
    fi
    trap - EXIT INT TERM HUP
}

# Installs Debian packages by name.
install_packages() {
    local output

    say "Installing $*"
    command -v apt-get >/dev/null ||
        die "There is no apt-get here; install what these Debian packages have: $*"
    as_root apt-get -qq update
    forbid_servers
    # Show apt-get's output only if it fails.
    if ! output=$(as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@" 2>&1); then
        printf '%s\n' "$output" >&2
        die "apt-get could not install: $*"
    fi
    allow_servers
}

# Prints PG_CONFIG's major version, from its output or from its path.
pg_major() {
    local version

    if version=$("$PG_CONFIG" --version 2>/dev/null); then
        version=${version#PostgreSQL }
        echo "${version%%[!0-9]*}"
    elif [[ $PG_CONFIG =~ /postgresql/([0-9]+)/bin/pg_config$ ]]; then
        echo "${BASH_REMATCH[1]}"
    fi
}

# Prints the major version that the distribution's package "postgresql" installs.
distribution_major() {
    as_root apt-get -qq update
    apt-cache depends postgresql |
        sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1
}

have_server_and_headers() {
    [ -f "$("$PG_CONFIG" --pgxs 2>/dev/null)" ] &&
        [ -x "$("$PG_CONFIG" --bindir)/postgres" ]
}

# Prints the name of a package unless the command, which it has, is there.
package_for() {
    command -v "$1" >/dev/null || echo "$2"
}

# Installs a compiler, a PostgreSQL to build with, and the given packages, unless
# they are installed.
ensure_packages() {
    local missing=("$@")
    local major

    mapfile -t -O "${#missing[@]}" missing < <(package_for cc gcc)
    [ -f /usr/include/stdio.h ] || missing+=(libc6-dev)

    if ! have_server_and_headers; then
        major=$(pg_major)
        if [ -z "$major" ] && command -v apt-get >/dev/null; then
            major=$(distribution_major)
        fi
        [ -n "$major" ] ||
            die "No PostgreSQL found; set PG_CONFIG= to its pg_config."
        missing+=("postgresql-$major" "postgresql-server-dev-$major")
    fi

    if [ "${#missing[@]}" -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
    if ! have_server_and_headers; then
        PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config
        have_server_and_headers ||
            die "PostgreSQL $major is installed but $PG_CONFIG does not work."
    fi
    pg_bin=$("$PG_CONFIG" --bindir)
}

# Builds from scratch: make does not detect objects of another PostgreSQL.
build() {
    make -s -C "$tree" PG_CONFIG="$PG_CONFIG" clean
    make -s -C "$tree" PG_CONFIG="$PG_CONFIG" -j2 "$@"
}

build_and_install() {
    say "Building and installing the extension for $("$PG_CONFIG" --version)"
    build all
    install_extension
}

install_extension() {
    as_root make -s -C "$tree" PG_CONFIG="$PG_CONFIG" install
}

# PostgreSQL's server does not run as root.
if [ "$(id -u)" -eq 0 ]; then
    server_user=postgres
else
    server_user=$(id -un)
fi

as_server_user() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid="$server_user" --regid="$server_user" --init-groups \
            env HOME="$work" TMPDIR="$work" "$@"
    else
        env TMPDIR="$work" "$@"
    fi
}

# Makes $work, a directory of the server's user, and removes it at the end.  The
# directory is not below TMPDIR, which the server's user may not be able to read,
# and whose path may be too long for the name of a socket.
make_work_directory() {
    work=$(mktemp -d /tmp/snowflake.XXXXXX)
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    if [ "$(id -u)" -eq 0 ]; then
        chown "$server_user:" "$work"
    fi
    cd "$work"
}

# Stops the servers that still run in $work, and removes $work.
clean_up() {
    local data

    cd /
    for data in "$work"/data "$work"/*/data "$work"/tmp_check/*/pgdata; do
        [ -f "$data/postmaster.pid" ] || continue
        as_server_user "$pg_bin/pg_ctl" -D "$data" -m immediate stop \
            >/dev/null 2>&1 || true
    done
    rm -rf "$work"
}
