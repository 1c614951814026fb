# needs: pgcopydb
# pgcopydb: a copy has the rows, the extension and the default.
. ./check.sh

copy=${PGDATABASE}_copy
psql -c 'INSERT INTO orders (item) SELECT n FROM generate_series(1, 49) AS n'
psql -c "CREATE DATABASE $copy"
pgcopydb clone --dir "$directory/work" --source "dbname=$PGDATABASE" --target "dbname=$copy" \
    >"$directory/log" 2>&1 || cat "$directory/log"
ids='SELECT string_agg(id::text, chr(10) ORDER BY id) FROM orders'
check "$(psql -d "$copy" -c "$ids")" "$(psql -c "$ids")" 'a copy has the same ids'
check "$(psql -d "$copy" -c "INSERT INTO orders SELECT RETURNING id > (SELECT max(id) FROM orders)")" t \
    'ids go on in the copy'
