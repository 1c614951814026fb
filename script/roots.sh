# Root directories of Debian releases, made by debootstrap and entered by chroot,
# for script/matrix and script/fresh.  Sourced by bash after common.sh, not
# executed.
#
#   DEBIAN_MIRROR   the source of their packages; by default this machine's own
#                   mirror

# Installs debootstrap, sets $mirror, and takes the lock of the directory in which
# the root directories are kept.
prepare_roots() { # directory
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

    mkdir -p "$1"
    directory=$(realpath "$1")
    exec 9>"$directory/lock"
    flock -n 9 || die "Another run uses $directory; wait for it."
}

# Prints where this machine gets packages: from "Debian" or "Debian-Security".
find_mirror() { # label
    # apt knows a label only after it has downloaded the package lists.
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        "Label: $1" | head -n 1
}

# Removes a root directory, unless something is mounted below it: rm -rf would
# follow the mount, even to the host's own devices.
remove_root() { # root
    if grep -qF " $1/" /proc/self/mountinfo; then
        die "Something is mounted in $1; unmount it first."
    fi
    rm -rf --one-file-system "$1"
}

# Makes a root directory.  The caller gives the directory its final name when it
# is complete.
make_root() { # root, suite, options of debootstrap
    local scripts=/usr/share/debootstrap/scripts
    local script=$scripts/$2

    # This machine's debootstrap may not know the newest release.
    [ -e "$script" ] || script=$scripts/sid
    say "Making a Debian $2 in ${1%.new}"
    remove_root "$1"
    quietly debootstrap --variant=minbase "${@:3}" "$2" "$1" "$mirror" "$script"
}

# Runs a command, and shows its output only if it fails.
quietly() {
    local output

    output=$("$@" 2>&1) || {
        printf '%s\n' "$output" >&2
        return 1
    }
}

# Copies apt's configuration, such as proxies, to a root directory, but no hooks
# of packages that the root directory lacks.
copy_apt_settings() { # root
    apt-config dump | grep -E '^Acquire::(http|https|Check|Retries|Force)' \
        >"$1/etc/apt/apt.conf.d/80host" || true
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
}

# Copies the files that git tracks, as they are now, without build products.
copy_tree() { # tree, directory
    rm -rf "$2"
    mkdir "$2"
    (
        cd "$1" || exit
        comm -z -23 <(git ls-files -z | sort -z) <(git ls-files -z -d | sort -z) |
            tar --null -T - -cf -
    ) | tar -C "$2" --no-same-owner -xf -
}

# Runs a command in a root directory.  Mounts and processes there end with the
# command, or after $time_limit.  $more_mounts is shell code that mounts more, and may set $root to
# another directory.
in_root() { # root, command
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
            mount -t proc proc "$root/proc"
            mount -t tmpfs tmpfs "$root/dev/shm"
            mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
            exec chroot "$root" env -i HOME=/root LC_ALL=C \
                PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
        ' "$root" "$@"
}
