# What the programs of this directory for sh share.
set -e
psql() { command psql -XAtq "$@"; }
check() { # got, wanted, what
    if [ "$1" = "$2" ]; then echo "ok - $3"; else
        echo "not ok - $3"
        echo "# got $1, wanted $2"
    fi
}
directory=$(mktemp -d)
trap 'rm -r "$directory"' EXIT
