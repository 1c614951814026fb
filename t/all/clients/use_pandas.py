# needs: pandas numpy sqlalchemy psycopg2
"""pandas and NumPy: a bigint column with a NULL becomes float64, which rounds."""
import io

import numpy
import pandas
from sqlalchemy import create_engine, text

from check import check

engine = create_engine("postgresql+psycopg2://")
with engine.begin() as connection:
    connection.execute(text("""
        CREATE TABLE replies (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), parent bigint);
        INSERT INTO orders (item) SELECT 'item ' || n FROM generate_series(1, 49) AS n;
        INSERT INTO replies (parent) VALUES (NULL);
        INSERT INTO replies (parent) SELECT id FROM orders ORDER BY id"""))
    stored = [int(i) for i in connection.scalars(text("SELECT id::text FROM orders ORDER BY id"))]
query = "SELECT * FROM replies ORDER BY id"


def exact(ids):
    """Returns how many of the 49 ids are those stored."""
    return sum(int(i) == wanted for i, wanted in zip(ids, stored, strict=True))


orders = pandas.read_sql("SELECT * FROM orders ORDER BY id", engine)
check(exact(orders["id"]), 49, "read_sql(): a column without NULL is exact")
replies = pandas.read_sql(query, engine)
parents = replies["parent"].dropna()
check((str(parents.dtype), exact(parents) < 25), ("float64", True), "read_sql(): a column with a NULL is rounded")
joined = replies.merge(orders, left_on="parent", right_on="id")
check(len(joined) > 49, True, "merge(): rounded ids find rows of others")
parents = pandas.read_sql(query, engine, dtype={"parent": "Int64"})["parent"].dropna()
check(exact(parents) < 25, True, "read_sql(): dtype comes too late")

replies = pandas.read_sql(query, engine, dtype_backend="numpy_nullable")
check(exact(replies["parent"].dropna()), 49, "read_sql(): dtype_backend is exact")
joined = replies.merge(orders, left_on="parent", right_on="id")
check(len(joined), 49, "merge(): exact ids find their rows")

csv = replies.to_csv(index=False)
check(exact(pandas.read_csv(io.StringIO(csv))["parent"].dropna()) < 25, True,
      "read_csv(): a column with a NULL is rounded")
parents = pandas.read_csv(io.StringIO(csv), dtype_backend="numpy_nullable")["parent"]
check(exact(parents.dropna()), 49, "read_csv(): dtype_backend is exact")

lines = [str(i) for i in stored]
check(exact(numpy.loadtxt(lines)) < 25, True, "loadtxt() rounds")
check(exact(numpy.loadtxt(lines, dtype=numpy.int64)), 49, "loadtxt(): dtype int64 is exact")
