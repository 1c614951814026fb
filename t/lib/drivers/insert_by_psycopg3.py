"""Inserts by psycopg 3, with results in text and binary format, and prepared."""
import psycopg


def show(value):
    print(value, type(value).__name__)


INSERT = "INSERT INTO orders (item) VALUES (%s) RETURNING id"
with psycopg.connect("") as connection:
    show(connection.execute(INSERT, ("one",)).fetchone()[0])
    show(connection.execute(INSERT, ("two",), prepare=True).fetchone()[0])
    with connection.cursor(binary=True) as cursor:
        show(cursor.execute(INSERT, ("three",)).fetchone()[0])
