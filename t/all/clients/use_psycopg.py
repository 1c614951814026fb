# needs: psycopg
"""psycopg 3: ids are ints, in text and binary format, prepared and in batches; those of
the type snowflake are, too, once it is registered."""
import psycopg
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryLoader, IntLoader

from check import check

INSERT = "INSERT INTO orders (item) VALUES (%s) RETURNING id"


def register_snowflake(connection):
    info = TypeInfo.fetch(connection, "snowflake")
    if info:  # not before CREATE EXTENSION
        info.register(connection)
        connection.adapters.register_loader(info.oid, IntLoader)
        connection.adapters.register_loader(info.oid, Int8BinaryLoader)


def read(connection, binary):
    """Returns a snowflake, an array of them, and what array_agg() returns."""
    with connection.cursor(binary=binary) as cursor:
        return cursor.execute("SELECT max(id)::snowflake, '{1,2}'::snowflake[],"
                              " array_agg(5::snowflake) FROM typed").fetchone()


with psycopg.connect("") as connection:
    ids = [connection.execute(INSERT, ("one",)).fetchone()[0],
           connection.execute(INSERT, ("two",), prepare=True).fetchone()[0]]
    with connection.cursor(binary=True) as cursor:
        ids += cursor.execute(INSERT, ("three",)).fetchone()
        cursor.executemany(INSERT, [("four",), ("five",)], returning=True)
        ids += cursor.fetchone()
        cursor.nextset()
        ids += cursor.fetchone()
        with cursor.copy("COPY orders (item) FROM STDIN") as copy:
            copy.write_row(("six",))
    stored = connection.execute("SELECT id::text FROM orders ORDER BY id")
    texts = [text for (text,) in stored]
    check(ids, [int(text) for text in texts[:5]], "RETURNING, and executemany()")
    check(len(texts), 6, "COPY gives ids")

    connection.execute("CREATE TABLE typed AS SELECT max(id)::snowflake AS id FROM orders")
    connection.execute("ALTER TABLE typed ADD ids snowflake[] DEFAULT '{1,2}'")
    newest = int(texts[-1])
    check(read(connection, False), (str(newest), "{1,2}", "{5}"), "snowflake: text")
    check(read(connection, True)[0], newest.to_bytes(8, "big"),
          "snowflake: 8 bytes in binary format")
    register_snowflake(connection)
    for binary in False, True:
        check(read(connection, binary), (newest, [1, 2], [5]),
              f"registered: ints, binary={binary}")
    count = "SELECT count(*) FROM typed WHERE "
    check(connection.execute(count + "id = %s AND id = ANY(%s)", (newest, [newest])).fetchone(),
          (1,), "registered: ints find the row")
    check(connection.execute(count + "ids @> %s::snowflake[]", ([1],)).fetchone(),
          (1,), "an array of ints is cast")
    try:
        connection.execute(count + "ids @> %s", ([newest],))
        error = ""
    except psycopg.errors.UndefinedFunction as raised:
        error = str(raised)
    check("snowflake[] @> bigint[]" in error, True, "without a cast it is an error")
