"""SQLAlchemy: one INSERT for many objects needs the ids beforehand."""
from sqlalchemy import (BigInteger, Column, ForeignKey, Identity, Integer, Text,
                        create_engine, event, text)
from sqlalchemy.orm import Session, declarative_base

from check import check

Base = declarative_base()


class Post(Base):
    __tablename__ = "posts"
    id = Column(BigInteger, primary_key=True,
                server_default=text("snowflake_nextval()"))
    item = Column(Text)


New = declarative_base()


class Person(New):
    __tablename__ = "person"
    id = Column(Integer, primary_key=True)
    parent = Column(ForeignKey("person.id"))


class Invoice(New):
    __tablename__ = "invoice"
    id = Column(Integer, Identity(), primary_key=True)
    person = Column(ForeignKey("person.id"))


def give_ids(session, context, instances):
    """Draws the ids of all new posts by one query."""
    posts = [p for p in session.new if isinstance(p, Post) and p.id is None]
    if posts:
        query = text("SELECT snowflake_nextvals(:count)")
        for post, post_id in zip(posts, session.scalars(query, {"count": len(posts)})):
            post.id = post_id


engine = create_engine("postgresql+psycopg2://")
Base.metadata.create_all(engine)
statements = []
event.listen(engine, "before_cursor_execute",
             lambda *arguments: statements.append(arguments[2]))


def add_all(session):
    """Returns how many statements insert 1000 posts, and whether the ids match."""
    posts = [Post(item=str(n)) for n in range(1000)]
    statements.clear()
    session.add_all(posts)
    session.flush()
    count = len(statements)
    ids = {post.item: post.id for post in posts}
    rows = session.execute(text("SELECT id::text, item FROM posts"))
    return count, {item: int(row_id) for row_id, item in rows} == ids


with Session(engine) as session:
    check(add_all(session), (1000, True), "by the default alone: one INSERT a row")
    session.rollback()
    event.listen(session, "before_flush", give_ids)
    check(add_all(session), (2, True), "give_ids(): one query and one INSERT")
    session.rollback()
    post = Post(item="one")
    session.add(post)
    session.flush()
    check(session.get(Post, post.id).item, "one", "get() finds the row")

with engine.begin() as connection:
    connection.execute(text("SET LOCAL snowflake_convert.schemas = 'public'"))
    New.metadata.create_all(connection)
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
