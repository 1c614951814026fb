"""Django: BigAutoField on a converted table, and new tables of Django's own."""
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
}}, INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "shop"], DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")


def write(directory, name, lines):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(lines)


apps = tempfile.TemporaryDirectory()
shop = os.path.join(apps.name, "shop")
os.makedirs(os.path.join(shop, "migrations"))
write(shop, "__init__.py", "")
write(shop, "migrations/__init__.py", "")
write(shop, "models.py", """
from django.db import models
class Post(models.Model):
    item = models.TextField()
class Note(models.Model):
    post = models.ForeignKey(Post, models.CASCADE)
""")
os.sys.path.append(apps.name)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.contrib.auth.models import Group, User  # noqa: E402
from shop.models import Note, Post  # noqa: E402

call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", "shop", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("SELECT snowflake_convert.schema('{public}')")
    cursor.execute("\n".join(line for (line,) in cursor.fetchall()))
    cursor.execute("SET snowflake_convert.schemas = 'public'")
call_command("migrate", verbosity=0)

user = User.objects.create_user("ann")
user.groups.add(Group.objects.create(name="staff"))
keys = [user.pk, user.groups.get().pk, User.groups.through.objects.get().pk]
check(min(keys) > 2**53, True, "the event trigger converts the keys of new tables")
check(Group.objects.get().user_set.get().pk, user.pk, "rows of new tables find each other")

posts = [Post.objects.create(item="one")]
posts += Post.objects.bulk_create([Post(item="two"), Post(item="three")])
with connection.cursor() as cursor:
    cursor.execute("SELECT id::text FROM shop_post ORDER BY id")
    stored = [int(text) for (text,) in cursor.fetchall()]
check([post.id for post in posts], stored, "create() and bulk_create()")
check(Post.objects.get(pk=stored[0]).item, "one", "get() finds the row")
note = Note.objects.create(post=posts[0])
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
