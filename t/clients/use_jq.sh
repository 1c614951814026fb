# jq computes with numbers as JavaScript does: ids of 63 bits as text only.
set -e
psql() { command psql -XAtq "$@"; }
check() { # got, wanted, what
    if [ "$1" = "$2" ]; then echo "ok - $3"; else
        echo "not ok - $3"
        echo "# got $1, wanted $2"
    fi
}

id=$(psql -c "SELECT snowflake_nextvals(2) OFFSET 1")
number=$(psql -c "SELECT json_build_object('id', $id)" | jq '.id + 0')
check "$([ "$number" = "$id" ] || echo rounded)" rounded 'a number that jq computes with is rounded'
text=$(psql -c "SELECT json_build_object('id', '$id'::text)" | jq -r .id)
check "$text" "$id" 'text is exact'
