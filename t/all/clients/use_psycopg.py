# needs: psycopg
"""psycopg 3: ids are ints, in text and binary format, prepared and in batches."""
import psycopg

from check import check

INSERT = "INSERT INTO orders (item) VALUES (%s) RETURNING id"

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
