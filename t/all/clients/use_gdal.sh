# needs: ogrinfo
# GDAL: a bigint key is the number of a feature; of the type snowflake it is not.
. ./check.sh

psql -c "CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), item text);
    INSERT INTO orders (item) VALUES ('one'), ('two');
    INSERT INTO typed SELECT * FROM orders"
features() { # table
    ogrinfo -q -ro "PG:host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE tables=$1" "$1" |
        sed -n 's/^OGRFeature([a-z]*)://p' | xargs
}
check "$(features orders)" "$(psql -c 'SELECT id FROM orders ORDER BY id' | xargs)" 'bigint: features have the ids'
check "$(features typed)" '0 1' 'snowflake: features are numbered from 0'
