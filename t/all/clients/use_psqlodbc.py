# needs: pyodbc
"""psqlODBC, by pyodbc: ids come by RETURNING; @@IDENTITY has none."""
import os

import pyodbc

from check import check

connection = pyodbc.connect(
    "Driver=PostgreSQL Unicode;Server={PGHOST};Port={PGPORT};Database={PGDATABASE};Uid={PGUSER}"
    .format_map(os.environ), autocommit=True)
cursor = connection.cursor()
(returned,), = cursor.execute("INSERT INTO orders (item) VALUES ('one') RETURNING id").fetchall()
(stored,), = cursor.execute("SELECT id::text FROM orders").fetchall()
check(str(returned), stored, "RETURNING")
cursor.execute("INSERT INTO orders (item) VALUES ('two')")
check(cursor.execute("SELECT @@IDENTITY").fetchval(), None, "@@IDENTITY is NULL")

row = cursor.execute("SELECT id::snowflake, '{1,2}'::snowflake[], '{1,2}'::bigint[] FROM orders"
                     " WHERE id::snowflake = ?", returned).fetchone()
check(tuple(row), (stored, "{1,2}", "{1,2}"), "snowflake: a str, arrays as text, as those of bigint")
