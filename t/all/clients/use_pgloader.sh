# needs: pgloader
# pgloader: a COPY takes ids from the default; keys that it brings are converted after
# the load, as the event trigger sees the primary key only when the table has rows.
. ./check.sh

target=postgresql://$PGUSER@$PGHOST:$PGPORT/$PGDATABASE
printf 'one\ntwo\n' >"$directory/orders.csv"
cat >"$directory/orders.load" <<END
LOAD CSV FROM '$directory/orders.csv' (item)
INTO $target?tablename=orders (item) WITH fields terminated by ',';
END
pgloader "$directory/orders.load" >"$directory/log"
check "$(psql -c 'SELECT count(*), min(id) > 2^53 FROM orders')" '2|t' 'a CSV file: rows have snowflakes'

python3 - "$directory/shop.db" <<'END'
import sqlite3
import sys

shop = sqlite3.connect(sys.argv[1])
shop.executescript("""
    CREATE TABLE posts (id integer PRIMARY KEY AUTOINCREMENT, item text);
    CREATE TABLE notes (id integer PRIMARY KEY, post_id integer REFERENCES posts (id));
    INSERT INTO posts (item) VALUES ('one'), ('two');
    INSERT INTO notes (post_id) VALUES (2);
""")
shop.commit()
END
psql -c "ALTER DATABASE $PGDATABASE SET snowflake_convert.schemas = 'public'"
pgloader "sqlite://$directory/shop.db" "$target" >"$directory/log"
check "$(psql -c "INSERT INTO posts (item) VALUES ('three') RETURNING id")" 3 \
    'a database: the event trigger leaves a table with rows'
psql -c "SELECT snowflake_convert.schema('{public}')" | psql
check "$(psql -c "INSERT INTO posts (item) VALUES ('four') RETURNING id > 2^53")" t \
    'the conversion after the load makes snowflakes'
check "$(psql -c 'SELECT item FROM notes JOIN posts ON posts.id = post_id')" two 'references find their rows'
