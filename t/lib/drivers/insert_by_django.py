"""Inserts by Django's ORM into a table that Django creates, whose serial the
program replaces by a snowflake, as RunSQL in a migration does."""
import os

import django
from django.conf import settings

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"],
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
}})
django.setup()

from django.db import connection, models  # noqa: E402


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    item = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


with connection.cursor() as cursor:
    cursor.execute("DROP TABLE orders")
with connection.schema_editor() as editor:
    editor.create_model(Order)
    editor.execute("ALTER TABLE orders ALTER id SET DEFAULT snowflake_nextval()")
created = [Order.objects.create(item="one")]
created += Order.objects.bulk_create([Order(item="two"), Order(item="three")])
for order in created:
    assert Order.objects.get(pk=order.pk).item == order.item
    print(order.pk, type(order.pk).__name__)
