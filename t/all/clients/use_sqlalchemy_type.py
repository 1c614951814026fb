# needs: sqlalchemy.dialects.postgresql.psycopg psycopg asyncpg
"""SQLAlchemy with psycopg 3 and asyncpg, and keys of the type snowflake, without and
with its registration."""
import asyncio
import warnings

from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryLoader, IntLoader
from sqlalchemy import (BigInteger, Column, ForeignKey, MetaData, Text, create_engine,
                        event, func, select, text, update)
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.exc import CompileError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, declarative_base, relationship, selectinload
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import UserDefinedType

from check import check

Base = declarative_base()
warnings.simplefilter("ignore")


class Customer(Base):
    __tablename__ = "customers"
    id = Column(BigInteger, primary_key=True, server_default=text("snowflake_id()"))
    orders = relationship("Order", back_populates="customer")


class Order(Base):
    __tablename__ = "lines"
    id = Column(BigInteger, primary_key=True, server_default=text("snowflake_id()"))
    customer_id = Column(ForeignKey("customers.id"))
    item = Column(Text)
    customer = relationship("Customer", back_populates="orders")


class Snowflake(UserDefinedType):
    cache_ok = True

    def get_col_spec(self, **kwargs):
        return "snowflake"


def register_snowflake(connection):
    info = TypeInfo.fetch(connection, "snowflake")
    if info:  # not before CREATE EXTENSION
        info.register(connection)
        connection.adapters.register_loader(info.oid, IntLoader)
        connection.adapters.register_loader(info.oid, Int8BinaryLoader)


# What an application does: each returns True.
def get(session, order):
    session.expunge(order)
    return session.get(Order, order.id).item == "a"


def where(session, order):
    return session.scalars(select(Order).where(Order.id == order.id)).one() is order


def in_(session, order):
    return session.scalars(select(Order).where(Order.id.in_([order.id]))).one() is order


def filter_by(session, order):
    return session.query(Order).filter_by(id=order.id).count() == 1


def update_(session, order):
    return session.execute(update(Order).where(Order.id == order.id).values(item="b")).rowcount == 1


def flush(session, order):
    session.add(Customer(orders=[Order(item="c"), Order(item="d")]))
    order.item = "b"
    session.flush()
    return True


def load(session, order):
    customer = session.scalars(select(Customer).options(selectinload(Customer.orders))).one()
    return customer.orders == [order]


def arrays(session, order):
    return session.scalar(select(func.array_agg(Order.id))) == [order.id]


USES = [get, where, in_, filter_by, update_, flush, load, arrays]


def failures(session):
    """Returns the names of those that fail."""
    names = []
    for use in USES:
        try:
            order = session.scalars(select(Order)).one()
            if not use(session, order):
                names.append(use.__name__)
        except DBAPIError:
            names.append(use.__name__)
        session.rollback()
        session.expunge_all()
    return names


def failures_of(engine):
    with Session(engine) as session:
        return failures(session)


async def failures_of_asyncpg(register):
    engine = create_async_engine("postgresql+asyncpg://")
    if register:
        @event.listens_for(engine.sync_engine, "connect")
        def on_connect(connection, record):
            connection.run_async(lambda c: c.set_builtin_type_codec("snowflake", codec_name="int8"))
    async with AsyncSession(engine) as session:
        names = await session.run_sync(failures)
    await engine.dispose()
    return names


def reflected(engine):
    """Returns the DDL of the table as it is in the database, or "no DDL"."""
    metadata = MetaData()
    metadata.reflect(engine, only=["customers"])
    try:
        return str(CreateTable(metadata.tables["customers"]).compile(engine))
    except CompileError:
        return "no DDL"


engine = create_engine("postgresql+psycopg://")
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add(Customer(orders=[Order(item="a")]))
    session.commit()
check(failures_of(engine), [], "bigint, psycopg: all is right")
check(asyncio.run(failures_of_asyncpg(False)), [], "bigint, asyncpg: all is right")
with engine.begin() as connection:
    connection.execute(text("ALTER TABLE lines ALTER id TYPE snowflake, ALTER customer_id TYPE snowflake"))
    connection.execute(text("ALTER TABLE customers ALTER id TYPE snowflake"))
engine.dispose()

check(failures_of(engine), ["where", "in_", "filter_by", "update_", "arrays"], "snowflake, psycopg: these fail")
check(asyncio.run(failures_of_asyncpg(False)),
      ["get", "where", "in_", "filter_by", "update_", "flush", "load"],
      "snowflake, asyncpg: these fail")
check(reflected(engine), "no DDL", "snowflake: a reflected table has no DDL")
engine.dispose()


@event.listens_for(engine, "connect")
def on_connect(connection, record):
    register_snowflake(connection)


ischema_names["snowflake"] = Snowflake
check(failures_of(engine), [], "registered, psycopg: all is right")
check(asyncio.run(failures_of_asyncpg(True)), [], "registered, asyncpg: all is right")
check("id snowflake DEFAULT snowflake_id()" in reflected(engine), True, "registered: a reflected table has its DDL")
