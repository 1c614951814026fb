# Root directories of Debian releases, made by debootstrap and entered by chroot.
# Sourced by bash after common.sh, not executed.  The scripts that source this file
# need root, and install no package on this machine but those that their heads name
# and debootstrap.
#
# Each script keeps its root directories, and the packages that apt has downloaded,
# for its next run.  Remove a root directory to have it made of newer packages.
#
#   DEBIAN_MIRROR    the source of the packages; by default this machine's own mirror
#   XDG_CACHE_HOME   the root directories are in snowflake-NAME of this directory;
#                    by default of ~/.cache

# Installs debootstrap, sets $mirror and $directory, which has the root directories,
# and takes the lock of this directory.
prepare_roots() { # name
    [ "$(id -u)" -eq 0 ] ||
        die "script/${0##*/} uses debootstrap and chroot; run it as root."
    unshare --mount --pid --ipc --fork true ||
        die "script/${0##*/} needs mount namespaces, which this machine refuses."
    if ! command -v debootstrap >/dev/null; then
        install_packages debootstrap debian-archive-keyring
    fi
    mirror=${DEBIAN_MIRROR:-$(find_mirror Debian)}
    if [ -z "$mirror" ]; then
        apt-get -qq update
        mirror=$(find_mirror Debian)
    fi
    [ -n "$mirror" ] ||
        die "This machine is no Debian; set DEBIAN_MIRROR= to a mirror."
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    [ -z "${http_proxy:-}" ] || export http_proxy

    directory=${XDG_CACHE_HOME:-$HOME/.cache}/snowflake-$1
    export debs=$directory/packages
    mkdir -p "$debs"
    exec 9>"$directory/lock"
    flock -n 9 || die "Another run uses $directory; wait for it."
}

# Prints where this machine gets packages: from "Debian" or "Debian-Security".
find_mirror() { # label
    # apt knows a label only after it has downloaded the package lists.
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        "Label: $1" | head -n 1
}

# Makes a root directory, unless there is one that was made in the same way: of the
# same release, by the same text of a function and of those whose names begin with its
# name, and of the same arguments and $also_made_of.  The function fills the directory,
# which gets its name only when it is complete.
ensure_root() { # root, suite or suite/architecture, function, its further arguments
    local root=$1 new=$1.new suite=${2%/*} architecture=() made_of
    local scripts=/usr/share/debootstrap/scripts
    local script=$scripts/$suite

    made_of=$(printf '%s\n' "${@:2}" "${also_made_of:-}"
        compgen -A function "$3" | while read -r function; do declare -f "$function"; done)
    if [ "$made_of" != "$(cat "$root/srv/made_of" 2>/dev/null)" ]; then
        say "Making a Debian $2 in $root"
        [[ $2 != */* ]] || architecture=("--arch=${2#*/}")
        # This machine's debootstrap may not know the newest release.
        [ -e "$script" ] || script=$scripts/sid
        remove_root "$new"
        configure_dpkg "$new"
        quietly debootstrap --variant=minbase "--cache-dir=$debs" "${architecture[@]}" \
            "$suite" "$new" "$mirror" "$script"
        copy_apt_settings "$new"
        "$3" "$new" "${@:4}"
        printf '%s\n' "$made_of" >"$new/srv/made_of"
        remove_root "$root"
        mv "$new" "$root"
    fi
    copy_apt_settings "$root"
}

# Removes a root directory, unless something is mounted below it: rm -rf would
# follow the mount, even to the host's own devices.
remove_root() { # root
    if grep -qF " $1/" /proc/self/mountinfo; then
        die "Something is mounted in $1; unmount it first."
    fi
    rm -rf --one-file-system "$1"
}

# Lets dpkg not wait for the disk: a directory that is not complete is made anew.
configure_dpkg() { # root
    mkdir -p "$1/etc/dpkg/dpkg.cfg.d"
    echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/80host"
}

# Copies apt's configuration, such as proxies, to a root directory, but no hooks
# of packages that the root directory lacks.
copy_apt_settings() { # root
    apt-config dump | grep -E '^Acquire::(http|https|Check|Retries|Force)' \
        >"$1/etc/apt/apt.conf.d/80host" || true
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
}

# Runs a command, and shows its output only if it fails.
quietly() {
    local output

    output=$("$@" 2>&1) || {
        printf '%s\n' "$output" >&2
        return 1
    }
}

# Runs a command in a root directory.  Mounts and processes there end with the
# command, or after $time_limit.  apt uses the packages of earlier runs.
# $more_mounts is shell code that mounts more, and may set $root to another
# directory.
in_root() { # root, settings of variables, command
    local root=$1
    shift

    timeout --foreground --signal=KILL "${time_limit:-infinity}" \
        unshare --mount --pid --ipc --fork --kill-child \
        bash -c "
            set -e
            root=\$0
            mount --make-rprivate /
            ${more_mounts:-}
            "'
            mount --bind "$debs" "$root/var/cache/apt/archives"
            mount -t proc proc "$root/proc"
            mount -t tmpfs tmpfs "$root/dev/shm"
            mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
            exec chroot "$root" env -i HOME=/root LC_ALL=C \
                PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
        ' "$root" "$@"
}

# Calls a function of common.sh in a root directory.
call_in_root() { # root, PG_CONFIG or "", function, its arguments
    cp "$tree/script/common.sh" "$1/srv/"
    # shellcheck disable=SC2016 # the shell inside expands it
    in_root "$1" PG_CONFIG="$2" bash -c '. /srv/common.sh; "$@"' bash "${@:3}"
}

install_in_root() { # root, packages
    call_in_root "$1" '' install_packages "${@:2}"
}

# Installs packages, and what script/test needs with a version of PostgreSQL.
install_for_tests() { # root, major version, packages
    call_in_root "$1" "/usr/lib/postgresql/$2/bin/pg_config" \
        ensure_packages_for_tests make "${@:3}"
}

# Copies the tree to a root directory, and runs script/test there.
test_in_root() { # root, major version, settings of variables
    copy_tree "$1/root/snowflake"
    in_root "$1" \
        PG_CONFIG="/usr/lib/postgresql/$2/bin/pg_config" \
        PROVE_TESTS="${PROVE_TESTS:-}" PROVE_FLAGS="${PROVE_FLAGS:-}" \
        PROVE_JOBS="${PROVE_JOBS:-}" "${@:3}" \
        /root/snowflake/script/test t t/all
}

# Copies the files that git tracks, as they are now, without build products.
copy_tree() { # directory
    rm -rf "$1"
    mkdir "$1"
    (
        cd "$tree" || exit
        comm -z -23 <(git ls-files -z | sort -z) <(git ls-files -z -d | sort -z) |
            tar --null -T - -cf -
    ) | tar -C "$1" --no-same-owner -xf -
}
