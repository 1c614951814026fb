"""Inserts by psycopg2; prints each id and its type."""
import psycopg2
import psycopg2.extras

connection = psycopg2.connect("")
cursor = connection.cursor()


def show(value):
    print(value, type(value).__name__)


cursor.execute("INSERT INTO orders (item) VALUES (%s) RETURNING id", ("one",))
show(cursor.fetchone()[0])
for (row_id,) in psycopg2.extras.execute_values(
        cursor, "INSERT INTO orders (item) VALUES %s RETURNING id",
        [("two",), ("three",)], fetch=True):
    show(row_id)
connection.commit()
