# needs: dataset psycopg2
"""dataset, which reads and makes tables without a model: ids are ints, and exact; its own
tables have sequences unless the event trigger converts them."""
import warnings

import dataset

from check import check

warnings.simplefilter("ignore")


def connect():
    return dataset.connect("postgresql+psycopg2://", engine_kwargs={"isolation_level": "AUTOCOMMIT"})


def texts(db, table):
    return [row["id"] for row in db.query(f"SELECT id::text FROM {table} ORDER BY id")]


db = connect()
orders = db["orders"]
one = orders.insert({"item": "one"})
orders.insert_many([{"item": "two"}, {"item": "three"}])
ids = [int(text) for text in texts(db, "orders")]
check((one, [row["id"] for row in orders.find(order_by="id")]), (ids[0], ids), "insert(), insert_many() and find()")
orders.upsert({"id": one, "item": "new"}, ["id"])
check([row["item"] for row in orders.find(id=[one])], ["new"], "upsert() changes the row")

db.query("ALTER DATABASE use_dataset_py SET snowflake_convert.schemas = 'public'")
db.close()
db = connect()
notes = db.create_table("notes", primary_id="id", primary_type=db.types.bigint)
check(notes.insert({"order_id": one}) > 2**53, True, "the event trigger converts the key of a new table")
check(notes.find_one(order_id=one)["order_id"], one, "a column made from an id is a bigint")

db.query("ALTER TABLE orders ALTER id TYPE snowflake")
db.close()
orders = connect()["orders"]
check(orders.find_one(item="two")["id"], str(ids[1]), "snowflake: a str")
check(orders.find_one(id=str(ids[1]))["item"], "two", "snowflake: a str finds the row")
