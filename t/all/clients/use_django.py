# needs: django psycopg2
"""Django: BigAutoField, and a migration that sets the default; Django's own tables
stay as they are."""
import io
import os
import tempfile

import django
from django.conf import settings

from check import check

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"],
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
    "USER": os.environ.get("PGUSER", ""),
    "TEST": {"NAME": "test_django"},
}}, INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
apps = tempfile.TemporaryDirectory()
shop = os.path.join(apps.name, "shop")
os.makedirs(os.path.join(shop, "migrations"))
os.sys.path.append(apps.name)


def write(name, lines):
    with open(os.path.join(shop, name), "w", encoding="utf-8") as file:
        file.write(lines)


write("__init__.py", "")
write("migrations/__init__.py", "")
write("models.py", """
import django
from django.db import models
class Post(models.Model):
    item = models.TextField()
class Note(models.Model):
    post = models.ForeignKey(Post, models.CASCADE)
class Line(models.Model):
    item = models.TextField()
if django.VERSION >= (5, 0):
    class Snowflake(models.Func):
        function = "snowflake_nextval"
        output_field = models.BigIntegerField()
    class Visit(models.Model):
        id = models.BigIntegerField(primary_key=True, db_default=Snowflake())
        item = models.TextField()
        class Meta:
            managed = False
            db_table = "orders"
""")
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import DataError, connection  # noqa: E402
from django.db.models import AutoField  # noqa: E402
from shop import models  # noqa: E402
from shop.models import Line, Note, Post  # noqa: E402

call_command("makemigrations", "shop", verbosity=0)
write("migrations/0002_snowflakes.py", """
from django.contrib.postgres.operations import CreateExtension
from django.db import migrations
class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [CreateExtension("snowflake"), migrations.RunSQL([
        f"ALTER TABLE {table} ALTER id DROP IDENTITY IF EXISTS, ALTER id SET DEFAULT snowflake_id()"
        for table in ("shop_post", "shop_note")])]
""")
call_command("migrate", verbosity=0)


def query(sql):
    """Returns the first column of a query's rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


posts = [Post.objects.create(item="one")]
posts += Post.objects.bulk_create([Post(item="two"), Post(item="three")])
stored = [int(text) for text in query("SELECT id::text FROM shop_post ORDER BY id")]
check([post.id for post in posts], stored, "create() and bulk_create()")
check(min(stored) > 2**53, True, "the migration's default makes the ids")
check(Post.objects.get(pk=stored[0]).item, "one", "get() finds the row")
note, _ = Note.objects.bulk_create([Note(post=post) for post in posts[:2]])
check(Note.objects.get(post_id=stored[0]).id, note.id, "a foreign key finds its row")

dump = os.path.join(apps.name, "dump.json")
call_command("dumpdata", "shop", output=dump, verbosity=0)
call_command("flush", interactive=False, verbosity=0)
call_command("loaddata", dump, verbosity=0)
check([post.id for post in Post.objects.order_by("id")], stored,
      "dumpdata, flush and loaddata keep the ids")
check(Post.objects.create(item="four").id > stored[-1], True,
      "after loaddata, ids go on")
call_command("makemigrations", "shop", check_changes=True, verbosity=0)
check(True, True, "makemigrations has nothing to change")

with connection.cursor() as cursor:
    cursor.execute("\n".join(query("SELECT snowflake_convert.key('shop_line', 'id')")))
lines = Line.objects.bulk_create([Line(item="one"), Line(item="two")])
check(min(line.id for line in lines) > 2**53, True, "a converted key: bulk_create()")

described = io.StringIO()
call_command("inspectdb", "shop_line", stdout=described)
check("id = models.BigIntegerField(primary_key=True)" in described.getvalue(), True,
      "inspectdb writes BigIntegerField")
Line.objects.all().delete()
narrow = AutoField(primary_key=True)
narrow.set_attributes_from_name("id")
narrow.model = Line
with connection.schema_editor() as editor:
    editor.alter_field(Line, Line._meta.get_field("id"), narrow)
try:
    Line.objects.create(item="three")
    error = None
except DataError as raised:
    error = str(raised).strip()
check(error, "integer out of range", "AlterField to AutoField keeps the default, and rows fail")

if django.VERSION >= (5, 0):
    visits = models.Visit.objects.bulk_create([models.Visit(item="one"), models.Visit(item="two")])
    check([isinstance(visit.id, int) for visit in visits], [False, False],
          "db_default: bulk_create() returns no ids")
    check(models.Visit(item="one") == models.Visit(item="two"), True,
          "db_default: two new objects are equal")
check(query("SELECT snowflake_convert.key('django_content_type', 'id')")[0],
      "-- stays integer: public.django_content_type (id)", "Django's own tables stay integer")

connection.creation.create_test_db(verbosity=0, autoclobber=True)
check(Post.objects.create(item="one").id > 2**53, True, "a test database has snowflakes")
connection.creation.destroy_test_db(os.environ["PGDATABASE"], verbosity=0)
