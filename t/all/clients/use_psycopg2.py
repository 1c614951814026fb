# needs: psycopg2
"""psycopg2: ids are ints."""
import psycopg2
import psycopg2.extras

from check import check

connection = psycopg2.connect("")
cursor = connection.cursor()
cursor.execute("INSERT INTO orders (item) VALUES ('one') RETURNING id")
ids = [cursor.fetchone()[0]]
ids += [row_id for (row_id,) in psycopg2.extras.execute_values(
    cursor, "INSERT INTO orders (item) VALUES %s RETURNING id",
    [("two",), ("three",)], fetch=True)]
cursor.execute("SELECT id::text FROM orders ORDER BY id")
check(ids, [int(text) for (text,) in cursor], "RETURNING, and execute_values()")
connection.commit()
