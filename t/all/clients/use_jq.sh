# needs: jq
# jq computes with numbers as JavaScript does: ids of 63 bits as text only.
. ./check.sh

id=$(psql -c "SELECT snowflake_nextvals(2) OFFSET 1")
number=$(psql -c "SELECT json_build_object('id', $id)" | jq '.id + 0')
check "$([ "$number" = "$id" ] || echo rounded)" rounded 'a number that jq computes with is rounded'
text=$(psql -c "SELECT json_build_object('id', '$id'::text)" | jq -r .id)
check "$text" "$id" 'text is exact'
