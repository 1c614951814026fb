# needs: alembic psycopg2
"""Alembic: autogenerate has nothing to change if the model names the default, and
narrows a converted key if the model has the integer that there was."""
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (BigInteger, Column, ForeignKey, Integer, MetaData, Table,
                        create_engine, text)

from check import check


def model(key_type, **key):
    metadata = MetaData()
    Table("posts", metadata, Column("id", key_type, primary_key=True, **key))
    Table("notes", metadata,
          Column("post_id", key_type, ForeignKey("posts.id"), primary_key=True,
                 autoincrement=False))
    return metadata


def differences(connection, metadata):
    context = MigrationContext.configure(connection, opts={
        "compare_type": True, "compare_server_default": True,
        "include_name": lambda name, kind, parents:
            kind != "table" or name in ("posts", "notes")})
    return sorted((change[0][0], change[0][2], change[0][3])
            for change in compare_metadata(context, metadata))


before = model(Integer)
after = model(BigInteger, server_default=text("snowflake_id()"))
engine = create_engine("postgresql+psycopg2://")
with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
    after.create_all(connection)
    check(differences(connection, after), [], "a table that the model has made")
    after.drop_all(connection)

    before.create_all(connection)
    make = text("SELECT snowflake_convert.schema('{public}')")
    for line in connection.scalars(make).all():
        if line.startswith("-- widen: "):
            connection.exec_driver_sql(line.removeprefix("-- widen: "))
    connection.exec_driver_sql("\n".join(connection.scalars(make)))
    check(differences(connection, after), [], "a converted table, and its new model")
    check(differences(connection, before),
          [("modify_type", "notes", "post_id"), ("modify_type", "posts", "id")],
          "a converted table, and its old model: autogenerate narrows the key")
