# needs: psql
# postgres_fdw: a condition on an id of the type is sent to the other server only if the
# extension is named.
. ./check.sh

psql -c "CREATE EXTENSION postgres_fdw;
    CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), item text);
    INSERT INTO typed (item) SELECT 'item' FROM generate_series(1, 3)"
psql -c "CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw
        OPTIONS (host '$PGHOST', port '$PGPORT', dbname '$PGDATABASE');
    CREATE USER MAPPING FOR CURRENT_USER SERVER other OPTIONS (user '$PGUSER');
    CREATE SCHEMA far;
    IMPORT FOREIGN SCHEMA public LIMIT TO (orders, typed) FROM SERVER other INTO far"
remote() { # table
    psql -c "EXPLAIN (VERBOSE) SELECT FROM far.$1 WHERE id = 1 FOR UPDATE" |
        sed -n "s/.*Remote SQL: .* FROM public.$1//p"
}
check "$(remote orders)" ' WHERE ((id = 1)) FOR UPDATE' 'bigint: one row is locked'
check "$(remote typed)" ' FOR UPDATE' 'snowflake: the whole table is locked'
psql -c "ALTER SERVER other OPTIONS (ADD extensions 'snowflake')"
check "$(remote typed)" ' WHERE ((id = 1)) FOR UPDATE' 'with the extension named: one row is locked'
