"""Inserts by SQLAlchemy's ORM into a table that SQLAlchemy creates."""
from sqlalchemy import BigInteger, Column, Text, create_engine, text
from sqlalchemy.orm import Session, declarative_base

Base = declarative_base()


class Order(Base):
    __tablename__ = "orders"
    id = Column(BigInteger, primary_key=True,
                server_default=text("snowflake_nextval()"))
    item = Column(Text)


engine = create_engine("postgresql+psycopg2://")
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
with Session(engine) as session:
    orders = [Order(item=item) for item in ("one", "two", "three")]
    for order in orders:
        session.add(order)
        session.flush()
        print(order.id, type(order.id).__name__)
    ids = [order.id for order in orders]
    session.commit()
with Session(engine) as session:
    items = [session.get(Order, row_id).item for row_id in ids]
    assert items == ["one", "two", "three"], items
