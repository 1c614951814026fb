# needs: asyncpg
"""asyncpg: ids are ints; those of the type snowflake are, too, once it is registered."""
import asyncio

import asyncpg

from check import check


async def failure(call):
    """Returns the error's message."""
    try:
        await call
    except (asyncpg.DataError, asyncpg.InternalClientError) as raised:
        return str(raised)
    return ""


async def main():
    connection = await asyncpg.connect()
    ids = [await connection.fetchval(
        "INSERT INTO orders (item) VALUES ('one') RETURNING id")]
    ids += [row["id"] for row in await connection.fetch(
        "INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id",
        ["two", "three"])]
    await connection.copy_records_to_table(
        "orders", columns=["item"], records=[("four",)])
    rows = await connection.fetch("SELECT id::text FROM orders ORDER BY id")
    stored = [int(row["id"]) for row in rows]
    check(ids, stored[:3], "RETURNING, one row and several")
    check(len(stored), 4, "copy_records_to_table() gives ids")

    await connection.execute(
        "CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), ids snowflake[] DEFAULT '{1,2}')")
    await connection.execute("INSERT INTO typed DEFAULT VALUES")
    read = "SELECT id, ids, id::bigint AS number FROM typed"
    by_id = "SELECT ids FROM typed WHERE id = $1"
    row = await connection.fetchrow(read)
    check(tuple(row), (str(row["number"]), ["1", "2"], row["number"]), "snowflake: text")
    check("an integer" in await failure(connection.fetchval(by_id, row["id"])), True,
          "snowflake: the text is refused as a parameter")
    copy = {"columns": ["id", "ids"], "records": [(7, [1, 2])]}
    check("no binary format encoder" in await failure(connection.copy_records_to_table("typed", **copy)), True,
          "snowflake: copy_records_to_table() is refused")

    await connection.set_builtin_type_codec("snowflake", codec_name="int8")
    row = await connection.fetchrow(read)
    check(tuple(row), (row["number"], [1, 2], row["number"]), "registered: ints")
    check(await connection.fetchval(by_id, row["id"]), [1, 2], "registered: an int finds the row")
    check(await connection.fetchval("SELECT count(*) FROM typed WHERE ids @> $1", [1]), 1,
          "registered: an array of ints is taken as its type")
    check(await connection.copy_records_to_table("typed", **copy), "COPY 1",
          "registered: copy_records_to_table()")
    await connection.close()

asyncio.run(main())
