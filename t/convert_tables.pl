# Converting tables on a server in use: psql runs scripts and the way back, other
# sessions use the tables meanwhile, a converted database is dumped and restored,
# ids go on after those of other software, and Django, SQLAlchemy and Rails run
# their migrations.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('migration', "snowflake_convert.schemas = '*'");
my $directory = PostgreSQL::Test::Utils::tempdir();

my $shop = q{
CREATE SCHEMA shop;
CREATE TABLE shop.customer (id serial PRIMARY KEY, name text);
CREATE TABLE shop."Order" (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer integer NOT NULL REFERENCES shop.customer ON DELETE CASCADE DEFERRABLE);
COMMENT ON CONSTRAINT "Order_customer_fkey" ON shop."Order" IS E'it''s \\\\ here';
CREATE INDEX ON shop."Order" (customer);
INSERT INTO shop.customer (name) VALUES ('Ann'), ('Bob');
INSERT INTO shop."Order" (customer) VALUES (1), (2);
};
my $event_trigger = q{
CREATE EXTENSION IF NOT EXISTS snowflake_convert;
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
};

# A database's dump, without the lines that differ from one dump to the next.
sub dump_of
{
	my ($database) = @_;
	my $dump = '';

	IPC::Run::run [ 'pg_dump', '-d', $node->connstr($database) ],
	  '>', \$dump
	  or die "pg_dump failed";
	return join "\n", grep { !/^(--|\\(un)?restrict|$)/ } split /\n/, $dump;
}

# Writes a script; returns its path.
sub script
{
	my ($name, $text) = @_;

	open my $fh, '>', "$directory/$name" or die "$directory/$name: $!";
	print $fh $text;
	close $fh or die "$directory/$name: $!";
	return "$directory/$name";
}

# The output of a command.  Its error messages go to the test's log.
sub output_of
{
	my @command = @_;
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run \@command, '>', \$stdout, '2>', \$stderr;
	diag($stderr) if $stderr ne '';
	chomp $stdout;
	return $stdout;
}

$node->start;

# Makes a script, and runs it by psql as its owner; returns what psql says.  The
# test trusts the code of its own tables; others connect as the owner.
sub run_script
{
	my ($database, $function, $role) = @_;
	my $text = $node->safe_psql($database, "SELECT $function");
	my ($stdout, $stderr);

	IPC::Run::run [
		'psql', '-Xq', '-d', $node->connstr($database),
		'-c', "SET SESSION AUTHORIZATION $role", '-f', script('script.sql', $text)
	  ],
	  '>', \$stdout, '2>', \$stderr;
	return $stderr;
}

# The owner runs the scripts.  The dump differs by the keys alone, and the
# scripts of revert() lead back to the dump before.
$node->safe_psql('postgres', q{
CREATE ROLE keeper;
CREATE DATABASE depot OWNER keeper;
});
$node->safe_psql('depot', q{
CREATE EXTENSION snowflake_convert CASCADE;
SET ROLE keeper;
CREATE SCHEMA depot;
CREATE TABLE depot.place (id serial PRIMARY KEY, first_item integer, name text);
CREATE TABLE depot.item (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, place integer REFERENCES depot.place, n integer);
ALTER TABLE depot.place ADD FOREIGN KEY (first_item) REFERENCES depot.item;
CREATE INDEX shifted ON depot.item ((place + 1));
ALTER INDEX depot.shifted ALTER COLUMN 1 SET STATISTICS 300;
CREATE STATISTICS depot.of_item ON place, n FROM depot.item;
ALTER STATISTICS depot.of_item SET STATISTICS 200;
COMMENT ON STATISTICS depot.of_item IS 'two columns';
CREATE TABLE depot.note (id integer, item_id integer, text text);
INSERT INTO depot.place (name) VALUES ('here'), ('there');
INSERT INTO depot.item (place, n) SELECT 1 + n % 2, n FROM generate_series(1, 1000) AS n;
CREATE VIEW depot.items WITH (security_barrier) AS SELECT id, place FROM depot.item WHERE n > 0 WITH CASCADED CHECK OPTION;
COMMENT ON VIEW depot.items IS E'it''s \\ here';
COMMENT ON COLUMN depot.items.place IS 'where';
ALTER VIEW depot.items ALTER place SET DEFAULT 1;
CREATE VIEW depot.by_place AS SELECT p.name, count(*) AS items FROM depot.items AS i JOIN depot.place AS p ON p.id = i.place GROUP BY p.id;
CREATE MATERIALIZED VIEW depot.summary WITH (fillfactor = 50) AS SELECT * FROM depot.by_place;
CREATE UNIQUE INDEX of_name ON depot.summary (name);
COMMENT ON INDEX depot.of_name IS 'by name';
CREATE MATERIALIZED VIEW depot.later AS SELECT id FROM depot.items WITH NO DATA;
CREATE FUNCTION depot.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER instead INSTEAD OF UPDATE ON depot.by_place FOR EACH ROW EXECUTE FUNCTION depot.note();
CREATE TRIGGER of_id BEFORE UPDATE OF id ON depot.item FOR EACH ROW WHEN (NEW.id <> 0) EXECUTE FUNCTION depot.note();
CREATE RULE gone AS ON DELETE TO depot.item WHERE OLD.id < 0 DO INSTEAD NOTHING;
CREATE POLICY of_place ON depot.item USING (place > 0);
CREATE PUBLICATION of_items FOR TABLE depot.item (id, n) WHERE (id > 0);
GRANT SELECT ON depot.items TO pg_monitor WITH GRANT OPTION;
GRANT UPDATE (place), SELECT (id) ON depot.items TO pg_read_all_stats;
GRANT SELECT ON depot.summary TO PUBLIC;
REVOKE DELETE ON depot.by_place FROM keeper;
});
my $before = dump_of('depot');
my $schema = q{snowflake_convert.schema('{depot}', also => '{depot.note.item_id}')};
my $script = $node->safe_psql('depot', "SELECT $schema");
like($script, qr/^-- key depot.item .* back by (snowflake_convert.revert\('depot.item', 'id', 'integer', 'always', 'depot.item_id_seq'\))$/m, 'a script says the way back');
is(dump_of('depot'), $before, 'making a script changes nothing');

# Whoever is not the owner, a superuser too, runs nothing of the script, even if
# psql goes on after errors, from a file or row by row.
for my $sql ($script, "SELECT $schema \\gexec\n")
{
	my (undef, undef, $errors) = $node->psql('depot', $sql, on_error_stop => 0);

	like($errors, qr/ERROR:  this script has to run as role "keeper", not as/, 'a superuser who is not the owner is refused');
	is(dump_of('depot'), $before, 'the refused script changes nothing');
}

is(run_script('depot', $schema, 'keeper'), '', 'the owner runs the script');
my $after = dump_of('depot');
my %lines;
$lines{$_}++ for split /\n/, $after;
$lines{$_}-- for split /\n/, $before;
is_deeply([ grep { $lines{$_} > 0 } sort keys %lines ],
	[
		'    first_item bigint,',
		'    id bigint DEFAULT public.snowflake_nextval() NOT NULL,',
		'    item_id bigint,',
		'    place bigint,'
	],
	'the dump of a converted schema has keys that are snowflakes');
is_deeply(
	[ grep { $lines{$_} < 0 && !/SEQUENCE|_id_seq|ADD GENERATED ALWAYS AS IDENTITY|^    (id|first_item|place|item_id) integer|^    (AS integer|START WITH 1|INCREMENT BY 1|NO MINVALUE|NO MAXVALUE|CACHE 1;?)$|^\);$/ } sort keys %lines ],
	[], 'the dump of a converted schema differs by nothing else');
is($node->safe_psql('depot', q{SELECT string_agg(name || items, ' ' ORDER BY name) FROM depot.summary}),
	'here500 there500', 'a materialised view that had data has data again');
is($node->safe_psql('depot', q{SELECT snowflake_convert.schema('{depot}')}), '-- no key to convert', 'a converted schema needs no script');
my @back = $script =~ /back by (.*)$/mg;
$back[0] =~ s/\)$/, '{"depot.note.item_id": "integer"}')/;
is(join('', map { run_script('depot', $_, 'keeper') } @back), '', 'the owner runs the scripts of revert()');
is(dump_of('depot'), $before, 'revert() leads back to the schema before');
is($node->safe_psql('depot', q{INSERT INTO depot.item DEFAULT VALUES RETURNING id; INSERT INTO depot.place DEFAULT VALUES RETURNING id}),
	"1001\n3", 'the sequences go on after the largest keys');

# A script that fails changes nothing: a materialised view that cannot be
# filled, and with another setting for the schema's names.
$node->safe_psql('depot', q{SET ROLE keeper; CREATE TABLE depot.zero (n integer); INSERT INTO depot.zero VALUES (1);
CREATE MATERIALIZED VIEW depot.quotient AS SELECT i.id / z.n AS q FROM depot.items AS i, depot.zero AS z;
UPDATE depot.zero SET n = 0});
$before = dump_of('depot');
like(run_script('depot', $schema, 'keeper'), qr/ERROR:  division by zero/, 'a materialised view that cannot be filled stops the script');
is(dump_of('depot'), $before, 'the script that was stopped changes nothing');

# An INSERT that was prepared before the conversion still works after it.  The
# script waits for a session that uses the table, but no longer than 5 s.
$node->safe_psql('postgres', "CREATE EXTENSION snowflake_convert CASCADE; $shop");
my $session = SnowflakeSession->new($node);
$session->rows(q{PREPARE add AS INSERT INTO shop.customer (name) VALUES ('Cid') RETURNING id > 1000000});
is($session->value('EXECUTE add'), 'f', 'before the conversion a prepared INSERT gets a small key');
$session->rows('BEGIN');
$session->rows('SELECT FROM shop."Order"');
my $customer = q{snowflake_convert.key('shop.customer', 'id')};
my $user = $node->safe_psql('postgres', 'SELECT quote_ident(current_user)');
like(run_script('postgres', $customer, $user), qr/ERROR:  canceling statement due to lock timeout/, 'a script waits for a table in use until lock_timeout');
is($node->safe_psql('postgres',
		q{SELECT atttypid::regtype FROM pg_attribute WHERE attrelid = 'shop.customer'::regclass AND attname = 'id'}),
	'integer', 'a script that has timed out changes nothing');
$session->rows('COMMIT');
is(run_script('postgres', $customer, $user), '', 'a superuser runs the script of its own tables');
is($session->value('EXECUTE add'), 't', 'after the conversion the same prepared INSERT gets a snowflake');
$session->quit;

# A script locks a partition that is older than its parent after the parent,
# as other statements do.
$node->safe_psql('postgres', q{
CREATE TABLE shop.older (k integer, id integer NOT NULL);
CREATE TABLE shop.parent (k integer, id serial) PARTITION BY LIST (k);
CREATE TABLE shop.younger PARTITION OF shop.parent FOR VALUES IN (2);
ALTER TABLE shop.parent ATTACH PARTITION shop.older FOR VALUES IN (1);
});
my ($lock) = $node->safe_psql('postgres', q{SELECT snowflake_convert.key('shop.parent', 'id')}) =~ /'(LOCK TABLE .* ACCESS EXCLUSIVE MODE)'/;
my $inserts = SnowflakeSession->new($node);
my $converts = SnowflakeSession->new($node);
$inserts->rows('BEGIN');
$inserts->rows('INSERT INTO shop.parent VALUES (2)');
$converts->rows('BEGIN');
$converts->ask($lock);
$node->poll_query_until('postgres',
	"SELECT count(*) > 0 FROM pg_locks WHERE pid = $converts->{pid} AND NOT granted")
  or die 'the script does not wait';
is($inserts->state_of('INSERT INTO shop.parent VALUES (1)'), '', 'an INSERT into partitions does not deadlock with a script');
$inserts->rows('COMMIT');
is(($converts->answer)[0], '', 'a script does not deadlock with an INSERT into partitions');
$converts->rows('ROLLBACK');
$_->quit for $inserts, $converts;

# The script foretells how many entries of the lock table it takes.
my $locks = $node->safe_psql('postgres', q{
DO $$BEGIN
FOR i IN 1 .. 40 LOOP
  EXECUTE format('CREATE TABLE shop.many%s (id serial PRIMARY KEY, name text, other integer REFERENCES shop.many%s, more integer)', i, greatest(i - 1, 1));
  EXECUTE format('CREATE VIEW shop.view%s AS SELECT id, other FROM shop.many%s', i, i);
END LOOP;
END$$;
SELECT snowflake_convert.schema('{shop}', except_keys => '{shop.parent.id}')});
my ($foretold) = $locks =~ /^-- locks: about (\d+);/m;
my $taken = $node->safe_psql('postgres', "BEGIN; $locks" .
	'; SELECT count(DISTINCT (locktype, relation, classid, objid)) FROM pg_locks WHERE pid = pg_backend_pid() AND NOT fastpath; ROLLBACK');
cmp_ok($foretold, '>', 0.8 * $taken, "a script foretells its locks ($foretold, and takes $taken)");
cmp_ok($foretold, '<', 1.5 * $taken, 'and not many more');

# ALTER DATABASE sets snowflake_convert.schemas for new sessions of one
# database.
$node->safe_psql('postgres', $event_trigger);
$node->safe_psql('postgres',
	q{ALTER DATABASE postgres SET snowflake_convert.schemas = 'shop'});
$node->safe_psql('postgres',
	'CREATE TABLE other (id serial PRIMARY KEY); CREATE TABLE shop.new (id serial PRIMARY KEY)');
is( $node->safe_psql('postgres',
		q{SELECT attrelid::regclass, atttypid::regtype FROM pg_attribute
		   WHERE attrelid IN ('other'::regclass, 'shop.new'::regclass) AND attname = 'id' ORDER BY 1}
	),
	"other|integer\nshop.new|bigint",
	'snowflake_convert.schemas applies to one database');

# Temporary tables keep their sequences.
is($node->safe_psql('postgres',
		q{SET snowflake_convert.schemas = '*';
		CREATE TABLE pg_temp.a (id serial PRIMARY KEY);
		SET search_path = pg_temp;
		CREATE TABLE b (id serial PRIMARY KEY);
		SELECT count(*) FROM pg_sequences WHERE schemaname LIKE 'pg_temp%'}),
	'2', 'a table in schema pg_temp keeps its serial key');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET snowflake_convert.schemas');

# With "none", a dump is restored unchanged into a database that converts new
# tables.
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->safe_psql('restored', "CREATE EXTENSION snowflake; $event_trigger");
$node->safe_psql('postgres', 'CREATE DATABASE converted');
$node->safe_psql('converted', "CREATE EXTENSION snowflake_convert CASCADE; $shop CREATE TABLE still_serial (id serial PRIMARY KEY)");
run_script('converted', $_, $user) for q{snowflake_convert.key('shop.customer', 'id')}, q{snowflake_convert.key('shop."Order"', 'id')};
$node->safe_psql('converted', $event_trigger);
script('dump.sql', dump_of('converted') =~ s/CREATE EVENT TRIGGER .*?;//sr);
$node->command_ok(
	[
		'psql', '-Xq1', '-v', 'ON_ERROR_STOP=1', '-d',
		$node->connstr('restored'), '-c', "SET snowflake_convert.schemas = 'none'", '-f', "$directory/dump.sql"
	],
	'a dump is restored while the event trigger is enabled');
is(dump_of('restored'), dump_of('converted'), 'the restored database is as it was dumped');

# pgEdge has an extension named snowflake, too.  The test makes by hand what
# that extension leaves behind when it is dropped: a serial's sequence with
# values beyond its MAXVALUE, and an identity's sequence whose column has no
# identity any more.  A dump of such tables cannot be restored before their
# conversion.
$node->safe_psql('postgres', 'CREATE DATABASE leftovers');
$node->safe_psql('leftovers', q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE ROLE clerk;
GRANT CREATE ON SCHEMA public TO clerk;
CREATE TABLE of_serial (id bigserial PRIMARY KEY, "Also" bigint);
SELECT setval('of_serial_id_seq', 514686482145882112);
ALTER TABLE of_serial ALTER id DROP DEFAULT;
CREATE TABLE of_shared (id bigserial PRIMARY KEY);
CREATE TABLE takes (n bigint DEFAULT nextval('of_shared_id_seq'));
SELECT setval('of_shared_id_seq', 514686482145882112);
ALTER TABLE of_shared ALTER id DROP DEFAULT;
SET ROLE clerk;
CREATE TABLE "Of identity" ("Its id" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
INSERT INTO "Of identity" VALUES (DEFAULT), (DEFAULT);
RESET ROLE;
CREATE TABLE was_converted (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);
UPDATE pg_sequence SET seqmax = 4 WHERE seqrelid IN ('of_serial_id_seq'::regclass, 'of_shared_id_seq'::regclass);
UPDATE pg_attribute SET attidentity = ''
 WHERE attidentity <> '' AND attrelid IN ('"Of identity"'::regclass, 'was_converted'::regclass);
ALTER TABLE was_converted ALTER id SET DEFAULT snowflake_nextval();
});

sub restores
{
	my ($name) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	return system('psql', '-Xq', '-o', '/dev/null', '-v', 'ON_ERROR_STOP=1',
		'-d', $node->connstr($name), '-f',
		script("$name.sql", dump_of('leftovers'))) == 0;
}
ok(!restores('leftovers_as_left'), 'the dump of such tables cannot be restored');
is(run_script('leftovers', q{snowflake_convert.key('of_serial', 'id')}, $user), '', 'a key with such a sequence is converted');
my $in_the_way = qr/In the way:\nsequence .* of an identity that column .* no longer has: a superuser has to execute (UPDATE .*)\n/;
for my $key (q{'"Of identity"', 'Its id'}, q{'was_converted', 'id'})
{
	my (undef, undef, $stderr) = $node->psql('leftovers', "SELECT snowflake_convert.key($key)");

	like($stderr, $in_the_way, 'what only a superuser can repair is in the way');
	$node->safe_psql('leftovers', ($stderr =~ $in_the_way)[0]);
}
is(run_script('leftovers', q{snowflake_convert.key('"Of identity"', 'Its id')}, 'clerk'), '', 'after the repair the owner converts the column');
# The last two statements are as in doc/migration.md.
$node->safe_psql('leftovers', q{
INSERT INTO "Of identity" DEFAULT VALUES;
ALTER TABLE was_converted ALTER id DROP IDENTITY;
DROP SEQUENCE of_serial_id_seq;
ALTER SEQUENCE of_shared_id_seq AS bigint MAXVALUE 9223372036854775807});
ok(restores('leftovers_put_right'), 'after the repair the dump can be restored');

# The ORMs run their own migrations, which create integer and bigint keys,
# while the event trigger converts new tables.  An ORM that is not installed is
# skipped: script/test does not install the packages for this test alone.
my $django = script('django_site.py', <<'PYTHON');
import os
import sys
import django
from django.conf import settings
host, port, database, auto_field = sys.argv[1:]
os.makedirs(os.path.join(os.path.dirname(__file__), database, "shop"))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), database))
open(os.path.join(sys.path[0], "shop", "__init__.py"), "w").close()
with open(os.path.join(sys.path[0], "shop", "models.py"), "w") as models:
    models.write("""
from django.db import models
class Order(models.Model):
    buyer = models.ForeignKey("auth.User", models.CASCADE)
    replaces = models.ForeignKey("self", models.CASCADE, null=True)
class Line(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
""")
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "NAME": database}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models." + auto_field)
django.setup()
from django.core.management import call_command
call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
from django.contrib.auth.models import Group, User
from shop.models import Line, Order
user = User.objects.create_user("ann")
group = Group.objects.create(name="staff")
user.groups.add(group)
order = Order.objects.create(buyer=user, replaces=Order.objects.create(buyer=user))
Line.objects.create(order=order)
print(user.pk > 2**32, User.objects.get(pk=user.pk).username, group.user_set.get().pk == user.pk,
      Line.objects.get(order__buyer=user, order=order.pk).order.replaces_id < order.pk)
PYTHON
my $rails = script('active_record.rb', <<'RUBY');
require 'active_record'
host, port, database = ARGV
ActiveRecord::Base.establish_connection(adapter: 'postgresql', host: host, port: port, database: database)
ActiveRecord::Migration.verbose = false
class CreateBooks < ActiveRecord::Migration[6.0]
  def change
    create_table(:authors) { |t| t.string :name }
    create_table(:books) { |t| t.string :title; t.references :author, foreign_key: true }
    create_table(:tags, id: :serial) { |t| t.string :name }
    create_table(:taggings, id: :serial) { |t| t.integer :tag_id }
    add_foreign_key :taggings, :tags
    create_table(:pages, id: :bigint, default: -> { 'snowflake_nextval()' }) { |t| t.string :title }
  end
end
class Author < ActiveRecord::Base; has_many :books; end
class Book < ActiveRecord::Base; belongs_to :author; end
class Tag < ActiveRecord::Base; end
class Tagging < ActiveRecord::Base; end
class Page < ActiveRecord::Base; end
CreateBooks.migrate(:up)
author = Author.create!(name: 'Ann')
book = author.books.create!(title: 'Snow')
tag = Tag.create!(name: 'cold')
Tagging.create!(tag_id: tag.id)
puts [author.id > 2**32, Page.create!(title: 'One').id > author.id, book.reload.author.name, Tagging.first.tag_id == tag.id].join(' ')
RUBY
my $sqlalchemy = script('alchemy.py', <<'PYTHON');
import sys
import sqlalchemy as sa
from sqlalchemy.orm import Session, declarative_base
host, port, database = sys.argv[1:]
Base = declarative_base()
class Person(Base):
    __tablename__ = "person"
    id = sa.Column(sa.Integer, primary_key=True)
    parent = sa.Column(sa.ForeignKey("person.id"))
class Order(Base):
    __tablename__ = "orders"
    id = sa.Column(sa.BigInteger, primary_key=True, server_default=sa.text("snowflake_nextval()"))
class Invoice(Base):
    __tablename__ = "invoice"
    id = sa.Column(sa.Integer, sa.Identity(), primary_key=True)
engine = sa.create_engine(f"postgresql+psycopg2:///{database}?host={host}&port={port}")
Base.metadata.create_all(engine)
with Session(engine) as session:
    mother = Person()
    session.add(mother)
    session.flush()
    child = Person(parent=mother.id)
    order = Order()
    session.add_all([child, order])
    session.commit()
    print(mother.id > 2**32, session.get(Person, child.id).parent == mother.id, order.id > mother.id)
PYTHON
my $keys = q{
SELECT count(*) >= 3, count(*) FILTER (WHERE t <> 'bigint'::regtype OR d IS DISTINCT FROM 'snowflake_nextval()')
  FROM (SELECT atttypid AS t, pg_get_expr(adbin, adrelid) AS d
          FROM pg_constraint
          JOIN pg_attribute ON attrelid = conrelid AND attnum = ANY (conkey)
          LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
         WHERE contype = 'p' AND connamespace = 'public'::regnamespace) AS keys};
for my $orm (
	[
		'django_auto', 'True ann True True',
		"/usr/bin/python3 -c 'import django, psycopg2'",
		'python3-django and python3-psycopg2',
		'/usr/bin/python3', $django, 'AutoField'
	],
	[
		'django_big_auto', 'True ann True True',
		"/usr/bin/python3 -c 'import django, psycopg2'",
		'python3-django and python3-psycopg2',
		'/usr/bin/python3', $django, 'BigAutoField'
	],
	[
		'sqlalchemy', 'True True True',
		"/usr/bin/python3 -c 'import sqlalchemy, psycopg2'",
		'python3-sqlalchemy and python3-psycopg2',
		'/usr/bin/python3', $sqlalchemy
	],
	[
		'rails', 'true true Ann true',
		"ruby -e 'require \"active_record\"; require \"pg\"'",
		'ruby-activerecord and ruby-pg', 'ruby', $rails
	])
{
	my ($database, $expected, $check, $packages, $program, $file, @arguments) =
	  @$orm;

  SKIP:
	{
		skip "$packages are not installed", 2
		  if system("$check >/dev/null 2>&1") != 0;
		$node->safe_psql('postgres', "CREATE DATABASE $database");
		$node->safe_psql($database, "CREATE EXTENSION snowflake; $event_trigger");
		is( output_of(
				$program, $file, $node->host, $node->port, $database,
				@arguments),
			$expected,
			"$database: the program reads its keys, and finds and references rows by them");
		is($node->safe_psql($database, $keys), 't|0', "$database: every key is a snowflake");
	}
}
$node->stop;

# The test computes ids as other software makes them: 41 bits of milliseconds
# since 2023, 10 bits for the node, and 12 bits for a counter.  With this
# layout and epoch, new ids are larger than the computed ones, and all ids
# decode.
my $peer = snowflake_node('peer', "snowflake.layout = '41/0/10/12'",
	"snowflake.epoch = '2023-01-01 00:00:00+00'",
	'snowflake.worker_id = 1000');
$peer->start;
is( $peer->safe_psql('postgres', q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE TABLE event (id bigint PRIMARY KEY, made_at timestamptz);
INSERT INTO event
SELECT (floor((extract(epoch FROM t) - 1672531200) * 1000)::bigint << 22) | (1000 << 12) | n, t
  FROM generate_series(1, 3) AS n, LATERAL (SELECT clock_timestamp() - interval '1 day' * n AS t) AS t;
SELECT substring(s FROM 'SELECT max.*') FROM snowflake_convert.key('event', 'id') AS s WHERE s ~ 'SELECT max' \gexec
SELECT snowflake_convert.key('event', 'id') \gexec
INSERT INTO event (made_at) VALUES (clock_timestamp());
SELECT count(*), bool_and(abs(extract(epoch FROM snowflake_timestamp(id) - made_at)) < 0.1),
       bool_and(snowflake_worker_id(id) = 1000), max(id) = snowflake_currval(),
       array_agg(snowflake_sequence(id) ORDER BY id)
  FROM event;
}),
	"t\n4|t|t|t|{3,2,1,0}",
	"new ids follow the ids of other software with the same layout and epoch");
$peer->stop;

done_testing();
