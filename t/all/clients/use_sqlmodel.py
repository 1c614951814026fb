# needs: sqlmodel psycopg2
"""SQLModel: the column is a BigInteger, or ids are 32 bits; relations, batches, and what
an API sends."""
from typing import List, Optional

from pydantic import field_serializer
from sqlalchemy import BigInteger, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Field, Relationship, Session, SQLModel, create_engine, select

from check import check

SNOWFLAKE = {"sa_type": BigInteger, "primary_key": True,
             "sa_column_kwargs": {"server_default": text("snowflake_id()")}}


class Post(SQLModel, table=True):
    id: Optional[int] = Field(default=None, **SNOWFLAKE)
    item: str
    notes: List["Note"] = Relationship(back_populates="post")


class Note(SQLModel, table=True):
    id: Optional[int] = Field(default=None, **SNOWFLAKE)
    post_id: int = Field(sa_type=BigInteger, foreign_key="post.id")
    post: Post = Relationship(back_populates="notes")


class Narrow(SQLModel, table=True):
    __tablename__ = "notes_of_narrow"
    id: Optional[int] = Field(default=None, **SNOWFLAKE)
    post_id: int = Field(foreign_key="post.id")


class PostOfApi(SQLModel):
    id: int
    item: str

    @field_serializer("id")
    def id_as_string(self, value):
        return str(value)


engine = create_engine("postgresql+psycopg2://")
SQLModel.metadata.create_all(engine)
with Session(engine) as session:
    post = Post(item="one", notes=[Note(), Note()])
    session.add(post)
    session.add_all([Post(item="two"), Post(item="three")])
    session.commit()
    stored = [row[0] for row in session.execute(text("SELECT id::bigint FROM post ORDER BY id"))]
    check(post.id in stored and len(stored) == 3, True, "add() and add_all(): ints, and exact")
    check([note.post_id for note in session.get(Post, post.id).notes], [post.id] * 2, "a relation finds its rows")
    check(session.exec(select(Post).where(Post.id == post.id)).one().item, "one", "where() finds the row")
    api = PostOfApi.model_validate(post, from_attributes=True)
    check(api.model_dump_json(), f'{{"id":"{post.id}","item":"one"}}', "field_serializer: JSON has a string")
    session.add(Narrow(post_id=post.id))
    try:
        session.flush()
        error = ""
    except DBAPIError as raised:
        error = str(raised)
    check("integer out of range" in error, True, "a reference that is an int is 32 bits")
