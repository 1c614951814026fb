# needs: asyncpg
"""asyncpg: ids are ints."""
import asyncio

import asyncpg

from check import check


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
    await connection.close()

asyncio.run(main())
