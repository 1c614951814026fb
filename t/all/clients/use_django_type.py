# needs: django psycopg
"""Django with psycopg 3, and keys of the type snowflake: related rows are missing, or made
anew, until the type is registered."""
import io
import os
import tempfile

import django
from django.conf import settings
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryLoader, IntLoader

from check import check

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"],
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
    "USER": os.environ.get("PGUSER", ""),
}}, INSTALLED_APPS=["django.contrib.postgres", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
apps = tempfile.TemporaryDirectory()
os.sys.path.append(apps.name)
os.mkdir(os.path.join(apps.name, "shop"))
for name, text in {"__init__.py": "", "models.py": """
from django.contrib.postgres.fields import ArrayField
from django.db import models
class Tag(models.Model):
    name = models.TextField()
class Post(models.Model):
    item = models.TextField()
    tags = models.ManyToManyField(Tag)
    related = ArrayField(models.BigIntegerField(), default=list)
"""}.items():
    with open(os.path.join(apps.name, "shop", name), "w", encoding="utf-8") as file:
        file.write(text)
django.setup()

from django.contrib.postgres.aggregates import ArrayAgg  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import ProgrammingError, connection  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from shop.models import Post, Tag  # noqa: E402


def register_snowflake(connection):
    info = TypeInfo.fetch(connection, "snowflake")
    if info:  # not before CREATE EXTENSION
        info.register(connection)
        connection.adapters.register_loader(info.oid, IntLoader)
        connection.adapters.register_loader(info.oid, Int8BinaryLoader)


def register_on_connect(connection, **kwargs):
    if connection.vendor == "postgresql":
        register_snowflake(connection.connection)


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def contains():
    """Returns how many posts have an array with 1, or the error."""
    try:
        return Post.objects.filter(related__contains=[1]).count()
    except ProgrammingError as raised:
        return str(raised).split("\n")[0]


def use(post):
    """What an application sees: of what a post's key is, its tags by prefetch_related(),
    whether set() of the same keys keeps the rows, whether in_bulk() has the post, and
    of what an array's elements are."""
    prefetched = Post.objects.prefetch_related("tags").get()
    before = execute("SELECT id::text FROM shop_post_tags ORDER BY 1")
    Post.objects.get().tags.set([int(tag.pk) for tag in Tag.objects.all()])
    after = execute("SELECT id::text FROM shop_post_tags ORDER BY 1")
    aggregate = Post.objects.aggregate(keys=ArrayAgg("id"))["keys"]
    return (type(prefetched.pk), sorted(tag.name for tag in prefetched.tags.all()),
            before == after, post in Post.objects.in_bulk([post]), type(aggregate[0]),
            Post.objects.filter(pk__in=[post]).count())


with connection.schema_editor() as editor:
    editor.create_model(Tag)
    editor.create_model(Post)
tables = {"shop_tag": ["id"], "shop_post": ["id"], "shop_post_tags": ["id", "post_id", "tag_id"]}
for table in tables:
    execute(f"ALTER TABLE {table} ALTER id DROP IDENTITY IF EXISTS, ALTER id SET DEFAULT snowflake_id()")
post = Post.objects.create(item="one", related=[1, 2])
post.tags.set(Tag.objects.bulk_create([Tag(name="a"), Tag(name="b")]))
RIGHT = (int, ["a", "b"], True, True, int, 1)
check(use(post.pk), RIGHT, "bigint: all is right")
execute("CREATE VIEW api_post AS SELECT id::snowflake AS id, item FROM shop_post")
check(execute("SELECT json_agg(p)::text FROM api_post AS p")[0][0],
      f'[{{"id":"{post.pk}","item":"one"}}]', "bigint: a view makes the JSON")
execute("DROP VIEW api_post")

for table, columns in tables.items():
    execute(f"ALTER TABLE {table} " + ", ".join(f"ALTER {column} TYPE snowflake" for column in columns))
connection.close()
tags = [] if django.VERSION < (5,) else ["a", "b"]
check(use(post.pk), (str, tags, False, False, str, 1),
      "snowflake: set() makes each row anew, in_bulk() has no such key; before 5.0 no tags")
described = io.StringIO()
call_command("inspectdb", "shop_tag", stdout=described)
check("id = models.TextField(primary_key=True)" in described.getvalue(), True,
      "snowflake: inspectdb writes TextField")

connection.close()
connection_created.connect(register_on_connect)
check(use(post.pk), RIGHT, "registered: all is right")
check(contains(), 1, "an ArrayField stays bigint[]")
execute("ALTER TABLE shop_post ALTER related DROP DEFAULT, ALTER related TYPE snowflake[]")
check(contains(), "operator does not exist: snowflake[] @> bigint[]",
      "an ArrayField of snowflake[]: contains is an error")
