# needs: psycopg2
"""psycopg2: ids are ints; those of the type snowflake are, too, once it is registered."""
import psycopg2
import psycopg2.extras
from psycopg2.extensions import INTEGER, new_array_type, new_type, register_type

from check import check


def register_snowflake(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'snowflake'::regtype::oid, 'snowflake[]'::regtype::oid")
        oid, array_oid = cursor.fetchone()
    snowflake = new_type((oid,), "snowflake", INTEGER)
    register_type(snowflake, connection)
    register_type(new_array_type((array_oid,), "snowflake[]", snowflake), connection)


connection = psycopg2.connect("")
cursor = connection.cursor()
cursor.execute("INSERT INTO orders (item) VALUES ('one') RETURNING id")
ids = [cursor.fetchone()[0]]
ids += [row_id for (row_id,) in psycopg2.extras.execute_values(
    cursor, "INSERT INTO orders (item) VALUES %s RETURNING id",
    [("two",), ("three",)], fetch=True)]
cursor.execute("SELECT id::text FROM orders ORDER BY id")
check(ids, [int(text) for (text,) in cursor], "RETURNING, and execute_values()")

READ = "SELECT max(id)::snowflake, '{1,2}'::snowflake[] FROM orders"
cursor.execute(READ)
check(cursor.fetchone(), (str(ids[2]), "{1,2}"), "snowflake: text")
register_snowflake(connection)
cursor.execute(READ)
check(cursor.fetchone(), (ids[2], [1, 2]), "registered: ints")
connection.commit()
