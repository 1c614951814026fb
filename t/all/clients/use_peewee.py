# needs: peewee psycopg2
"""Peewee: BigAutoField on a table that the event trigger has converted."""
import os

from peewee import SQL, BigAutoField, BigIntegerField, IntegrityError, Model, PostgresqlDatabase, TextField

from check import check

database = PostgresqlDatabase(os.environ["PGDATABASE"], host=os.environ["PGHOST"],
                              port=os.environ["PGPORT"], user=os.environ["PGUSER"])


class Post(Model):
    id = BigAutoField()
    item = TextField()

    class Meta:
        database = database


class Line(Model):
    id = BigIntegerField(primary_key=True, constraints=[SQL("DEFAULT snowflake_nextval()")])
    item = TextField()

    class Meta:
        database = database


database.execute_sql("SET snowflake_convert.schemas = 'public'")
database.create_tables([Post, Line])
posts = [Post.create(item="one"), Post(item="two"), Post(item="three")]
Post.bulk_create(posts[1:])
stored = [int(i) for (i,) in database.execute_sql("SELECT id::text FROM post ORDER BY id")]
check([post.id for post in posts], stored, "BigAutoField: create() and bulk_create()")
check(min(stored) > 2**53, True, "the event trigger converts the key")
check(Post.get_by_id(stored[0]).item, "one", "get_by_id() finds the row")

check(Line.create(item="one").id > 2**53, True, "BigIntegerField: create()")
try:
    Line.bulk_create([Line(item="two")])
    message = None
except IntegrityError as error:
    message = str(error)
check('null value in column "id"' in message, True, "BigIntegerField: bulk_create() fails")

database.execute_sql("ALTER TABLE post ALTER id TYPE snowflake")
check(Post.get_by_id(stored[0]).id, stored[0], "snowflake: BigAutoField makes an int")
check(database.execute_sql("SELECT id FROM post ORDER BY id").fetchone()[0], str(stored[0]),
      "snowflake: SQL gives the driver's str")
