# needs: sqlalchemy.dialects.postgresql.psycopg psycopg2
"""SQLAlchemy: one INSERT for many objects needs a sentinel, or a converted key."""
from sqlalchemy import (BigInteger, Column, ForeignKey, Identity, Text,
                        create_engine, event, insert, insert_sentinel, text)
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session, declarative_base

from check import check

Base = declarative_base()


class Post(Base):
    __tablename__ = "posts"
    id = Column(BigInteger, primary_key=True,
                server_default=text("snowflake_id()"))
    item = Column(Text)


class Line(Base):
    __tablename__ = "lines"
    id = Column(BigInteger, primary_key=True,
                server_default=text("snowflake_id()"))
    item = Column(Text)
    sentinel = insert_sentinel()


New = declarative_base()


class Note(New):
    __tablename__ = "notes"
    id = Column(BigInteger, primary_key=True)
    item = Column(Text)


class Mark(New):
    __tablename__ = "marks"
    __table_args__ = {"implicit_returning": False}
    id = Column(BigInteger, primary_key=True)


class Person(New):
    __tablename__ = "person"
    id = Column(BigInteger, primary_key=True)
    parent = Column(ForeignKey("person.id"))


class Invoice(New):
    __tablename__ = "invoice"
    id = Column(BigInteger, Identity(), primary_key=True)
    person = Column(ForeignKey("person.id"))


engine = create_engine("postgresql+psycopg2://")
Base.metadata.create_all(engine)
statements = []
event.listen(engine, "before_cursor_execute",
             lambda *arguments: statements.append(arguments[2]))


def add_all(session, model):
    """Returns how many statements insert 1000 rows, and whether the ids match."""
    objects = [model(item=str(n)) for n in range(1000)]
    statements.clear()
    session.add_all(objects)
    session.flush()
    count = len(statements)
    ids = {each.item: each.id for each in objects}
    rows = session.execute(text(f"SELECT id::text, item FROM {model.__tablename__}"))
    return count, {item: int(row_id) for row_id, item in rows} == ids


with engine.begin() as connection:
    connection.execute(text("SET LOCAL snowflake_convert.schemas = 'public'"))
    New.metadata.create_all(connection)
with Session(engine) as session:
    check(add_all(session, Post), (1000, True), "add_all() by the default alone: one INSERT a row")
    session.rollback()
    check(add_all(session, Line), (1, True), "add_all() with insert_sentinel(): one INSERT")
    check(add_all(session, Note), (1, True), "add_all() with a converted key: one INSERT")
    session.rollback()
    statements.clear()
    rows = session.execute(insert(Post).returning(Post.id), [{"item": str(n)} for n in range(200)])
    check((len(set(rows)), len(statements)), (200, 1), "insert().returning(): one INSERT")
    post = Post(item="one")
    session.add(post)
    session.flush()
    check(session.get(Post, post.id).item, "one", "get() finds the row")

with Session(engine) as session:
    mother = Person()
    session.add(mother)
    session.flush()
    child = Person(parent=mother.id)
    invoice = Invoice(person=mother.id)
    session.add_all([child, invoice])
    session.commit()
    check(min(mother.id, invoice.id) > 2**53, True,
          "the event trigger converts the keys of new tables")
    check(session.get(Person, child.id).parent, mother.id,
          "rows of new tables find each other")

with Session(engine) as session:
    session.add(Mark())
    try:
        session.flush()
        error = ""
    except StatementError as raised:
        error = str(raised)
    check('relation "marks_id_seq" does not exist' in error, True,
          "implicit_returning=False asks for the sequence, which is gone")
