# Converting tables on a server in use: psql executes the output of a dry run,
# other sessions use the tables during a conversion, a converted database is
# dumped and restored, ids go on after those of other software, and Django,
# SQLAlchemy and Rails run their migrations.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('migration');
my $directory = PostgreSQL::Test::Utils::tempdir();

my $shop = q{
CREATE EXTENSION snowflake;
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
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert_new_tables();
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

# psql runs the dry run's statements with the same result as the function.
my @conversions = (
	q{SELECT snowflake_convert('shop.customer', 'id'%s)},
	q{SELECT snowflake_convert('shop."Order"', 'id'%s)});
for my $database ('by_function', 'by_psql')
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, $shop);
}
my $before = dump_of('by_psql');
for my $conversion (@conversions)
{
	my $statements =
	  $node->safe_psql('by_psql', sprintf($conversion, ', dry_run => true'));

	is( $node->safe_psql('by_function', sprintf($conversion, '')),
		$statements, 'the dry run lists the statements that the conversion executes');
	is(dump_of('by_psql'), $before, 'the dry run changes nothing');
	$node->command_ok(
		[
			'psql', '-XqAt1', '-v', 'ON_ERROR_STOP=1', '-d',
			$node->connstr('by_psql'), '-f',
			script('statements.sql', $statements)
		],
		'psql executes the statements of the dry run');
	is(dump_of('by_psql'), dump_of('by_function'), 'the statements do what the function does');
	$before = dump_of('by_psql');
}
like($before, qr/DEFAULT public\.snowflake_nextval\(\)/, 'a converted database has the new DEFAULT');
unlike($before, qr/serial|integer|SEQUENCE/, 'a converted database has no serial, integer or sequence');

# An INSERT that was prepared before the conversion still works after it.  The
# conversion waits for a session that uses the table, but no longer than
# lock_timeout.
$node->safe_psql('postgres', $shop);
my ($in, $out, $err) = ('', '', '');
my $session = IPC::Run::start(
	[ 'psql', '-XAtq', $node->connstr('postgres') ],
	'<', \$in, '>', \$out, '2>', \$err,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

sub in_session
{
	my ($sql) = @_;

	$out = $err = '';
	$in .= "$sql;\n\\echo done\n";
	$session->pump until $out =~ /^done$/m || $err ne '';
	return $out =~ s/done\n$//r;
}

in_session(q{PREPARE add AS INSERT INTO shop.customer (name) VALUES ('Cid') RETURNING id > 1000000; EXECUTE add; EXECUTE add});
is(in_session(q{EXECUTE add}), "f\n", 'before the conversion a prepared INSERT gets a small key');
in_session('BEGIN; SELECT FROM shop."Order"');
my ($state) = sqlstate_of($node,
	q{SET lock_timeout = '100ms'; SELECT snowflake_convert('shop.customer', 'id')});
is($state, '55P03', 'a conversion waits for a table in use until lock_timeout');
is( $node->safe_psql('postgres',
		q{SELECT atttypid::regtype FROM pg_attribute WHERE attrelid = 'shop.customer'::regclass AND attname = 'id'}
	),
	'integer',
	'a conversion that has timed out changes nothing');
in_session('COMMIT');
$node->safe_psql('postgres', q{SELECT snowflake_convert('shop.customer', 'id')});
is(in_session(q{EXECUTE add}), "t\n", 'after the conversion the same prepared INSERT gets a snowflake');
is($err, '', 'the prepared INSERT raises no error');
$in .= "\\q\n";
$session->finish;

# A foreign key that another session is about to add is converted as well.
$node->safe_psql('postgres', q{
CREATE TABLE shop.early (id serial PRIMARY KEY);
CREATE TABLE shop.late (early integer PRIMARY KEY);
});
my $adds = SnowflakeSession->new($node);
my $converts = SnowflakeSession->new($node);
$adds->rows('BEGIN');
$adds->rows('ALTER TABLE shop.late ADD FOREIGN KEY (early) REFERENCES shop.early');
my $waits_for_lock =
  "SELECT count(*) = 1 FROM pg_locks WHERE pid = $converts->{pid} AND NOT granted AND relation = 'shop.%s'::regclass";
$converts->ask(q{SELECT snowflake_convert('shop.early', 'id')});
$node->poll_query_until('postgres', sprintf($waits_for_lock, 'early'))
  or die 'the conversion does not wait';
$adds->rows('COMMIT');
is(($converts->answer)[0], '', 'a conversion waits for a session that adds a foreign key');
$_->quit for $adds, $converts;
is( $node->safe_psql('postgres',
		q{SELECT attrelid::regclass, atttypid::regtype FROM pg_attribute
		   WHERE attrelid = 'shop.late'::regclass AND attnum > 0}
	),
	"shop.late|bigint",
	'the referencing column of the added foreign key becomes bigint');

# Two tables reference each other.  Conversions of the one and of the other
# lock tables in the same order.
$node->safe_psql('postgres', q{
CREATE TABLE shop.one (id serial PRIMARY KEY, two integer);
CREATE TABLE shop.two (id serial PRIMARY KEY, one integer REFERENCES shop.one);
ALTER TABLE shop.one ADD FOREIGN KEY (two) REFERENCES shop.two;
CREATE TABLE shop.both (id integer PRIMARY KEY, one integer REFERENCES shop.one, two integer REFERENCES shop.two);
});
my $holds = SnowflakeSession->new($node);
my @opposite = map { SnowflakeSession->new($node) } 0 .. 1;
$holds->rows('BEGIN');
$holds->rows('LOCK TABLE shop.one IN ACCESS SHARE MODE');
my @asked = map { "SELECT count(*) > 0 FROM snowflake_convert('shop.$_', 'id')" } ('one', 'two');
for my $i (0 .. 1)
{
	$opposite[$i]->ask($asked[$i]);
	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_locks WHERE pid = $opposite[$i]{pid} AND NOT granted")
	  or die 'the conversion does not wait';
}
$holds->rows('COMMIT');
is_deeply([ map { ($_->answer)[0] } @opposite ], ['', ''], 'conversions of tables that reference each other do not deadlock');
$_->quit for $holds, @opposite;

# A conversion locks a partition that is older than its parent after the
# parent, as other statements do.
$node->safe_psql('postgres', q{
CREATE TABLE shop.older (k integer, id integer NOT NULL);
CREATE TABLE shop.parent (k integer, id serial) PARTITION BY LIST (k);
CREATE TABLE shop.younger PARTITION OF shop.parent FOR VALUES IN (2);
ALTER TABLE shop.parent ATTACH PARTITION shop.older FOR VALUES IN (1);
});
my $inserts = SnowflakeSession->new($node);
$converts = SnowflakeSession->new($node);
$inserts->rows('BEGIN');
$inserts->rows('INSERT INTO shop.parent VALUES (2)');
$converts->ask(q{SELECT count(*) > 0 FROM snowflake_convert('shop.parent', 'id')});
$node->poll_query_until('postgres',
	"SELECT count(*) > 0 FROM pg_locks WHERE pid = $converts->{pid} AND NOT granted")
  or die 'the conversion does not wait';
is($inserts->state_of('INSERT INTO shop.parent VALUES (1)'), '', 'an INSERT into partitions does not deadlock with a conversion');
$inserts->rows('COMMIT');
is(($converts->answer)[0], '', 'a conversion does not deadlock with an INSERT into partitions');
$_->quit for $inserts, $converts;

# A whole schema: the dump differs by the keys alone, and psql runs the dry
# run's statements with the same result.
my $depot = q{
CREATE EXTENSION snowflake;
CREATE SCHEMA depot;
CREATE TABLE depot.place (id serial PRIMARY KEY, first_item integer, name text);
CREATE TABLE depot.item (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, place integer REFERENCES depot.place, n integer);
ALTER TABLE depot.place ADD FOREIGN KEY (first_item) REFERENCES depot.item;
INSERT INTO depot.place (name) VALUES ('here'), ('there');
INSERT INTO depot.item (place, n) SELECT 1 + n % 2, n FROM generate_series(1, 1000) AS n;
CREATE VIEW depot.items WITH (security_barrier) AS SELECT id, place FROM depot.item WHERE n > 0 WITH CASCADED CHECK OPTION;
COMMENT ON VIEW depot.items IS E'it''s \\\\ here';
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
GRANT SELECT ON depot.items TO pg_monitor WITH GRANT OPTION;
GRANT UPDATE (place), SELECT (id) ON depot.items TO pg_read_all_stats;
GRANT SELECT ON depot.summary TO PUBLIC;
REVOKE DELETE ON depot.by_place FROM CURRENT_USER;
};
for my $database ('whole_by_function', 'whole_by_psql')
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, $depot);
}
$before = dump_of('whole_by_psql');
my $script = $node->safe_psql('whole_by_psql', q{SELECT snowflake_convert_schema('{depot}', true)});
is(dump_of('whole_by_psql'), $before, 'a dry run of a schema changes nothing');
is( $node->safe_psql('whole_by_function', q{SELECT snowflake_convert_schema('{depot}')}),
	$script =~ s/^--.*\n//mgr, 'the conversion of a schema executes the statements of its dry run');
my $after = dump_of('whole_by_function');
my %lines;
$lines{$_}++ for split /\n/, $after;
$lines{$_}-- for split /\n/, $before;
my @removed = grep { $lines{$_} < 0 } sort keys %lines;
my @added = grep { $lines{$_} > 0 } sort keys %lines;
is_deeply(\@added,
	[
		'    first_item bigint,',
		'    id bigint DEFAULT public.snowflake_nextval() NOT NULL,',
		'    place bigint,'
	],
	'the dump of a converted schema has keys that are snowflakes');
is_deeply(
	[ grep { !/SEQUENCE|_id_seq|ADD GENERATED ALWAYS AS IDENTITY|^    (id|first_item|place) integer|^    (AS integer|START WITH 1|INCREMENT BY 1|NO MINVALUE|NO MAXVALUE|CACHE 1;?)$|^\);$/ } @removed ],
	[], 'the dump of a converted schema differs by nothing else');
$node->command_ok(
	[
		'psql', '-XqAt1', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d',
		$node->connstr('whole_by_psql'), '-f', script('whole.sql', $script)
	],
	'psql executes the script of the dry run of a schema');
is(dump_of('whole_by_psql'), $after, 'the script does what the function does');
is($node->safe_psql('whole_by_function', q{SELECT string_agg(name || items, ' ' ORDER BY name) FROM depot.summary}),
	'here500 there500', 'a materialised view that had data has data again');
is($node->safe_psql('whole_by_function', q{SELECT snowflake_convert_schema('{depot}', true)}), '', 'a dry run of a converted schema lists no statement');

# The whole conversion is rolled back if a materialised view cannot be filled.
$node->safe_psql('postgres', 'CREATE DATABASE whole_fails');
$node->safe_psql('whole_fails', "$depot; CREATE TABLE depot.zero (n integer); INSERT INTO depot.zero VALUES (1);
CREATE MATERIALIZED VIEW depot.quotient AS SELECT i.id / z.n AS q FROM depot.items AS i, depot.zero AS z;
UPDATE depot.zero SET n = 0");
$before = dump_of('whole_fails');
like(($node->psql('whole_fails', q{SELECT snowflake_convert_schema('{depot}')}))[2],
	qr/ERROR:  division by zero/, 'a materialised view that cannot be filled stops the conversion');
is(dump_of('whole_fails'), $before, 'the conversion that was stopped changes nothing');
$node->safe_psql('whole_fails', 'DROP MATERIALIZED VIEW depot.quotient');

# Views are locked before tables, as a query locks them, and in one order.
my $reads = SnowflakeSession->new($node);
@opposite = map { SnowflakeSession->new($node) } 0 .. 1;
$_->rows("\\c whole_fails\nSELECT 1") for $reads, @opposite;
$reads->rows('BEGIN');
$reads->rows('SELECT count(*) FROM depot.items');
for my $i (0 .. 1)
{
	$opposite[$i]->ask(q{SELECT count(*) FROM snowflake_convert_schema('{depot}')});
	$node->poll_query_until('whole_fails',
		"SELECT count(*) = $i + 1 FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
	  or die 'the conversion does not wait';
}
is($reads->state_of('SELECT count(*) FROM depot.place'), '', 'a query of views and tables does not deadlock with conversions of the schema');
$reads->rows('COMMIT');
my @both = map { [ $_->answer ] } @opposite;
is_deeply([ map { $_->[0] } @both ], [ '', '' ], 'two conversions of one schema do not deadlock');
is($both[1][1], '0', 'the second conversion of the schema finds nothing to do');
$_->quit for $reads, @opposite;

# Statistics and CHECK constraints are parsed again with bigint columns.
$node->safe_psql('postgres', q{
CREATE FUNCTION shop.of_integer(integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE TABLE shop.counted (id serial PRIMARY KEY, n integer);
CREATE STATISTICS shop.fits ON (id + 1), n FROM shop.counted;
CREATE STATISTICS shop.fits_not ON shop.of_integer(id), n FROM shop.counted;
CREATE TABLE shop.checked (id serial PRIMARY KEY);
CREATE FUNCTION shop.of_row(shop.checked) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
ALTER TABLE shop.checked ADD CHECK (id > 0 AND shop.of_row(checked) AND tableoid <> 0);
});
my (undef, undef, $in_the_way) = $node->psql('postgres', q{SELECT snowflake_convert('shop.counted', 'id', true)});
like($in_the_way, qr/In the way:\nstatistics object shop.fits_not: function shop.of_integer\(bigint\) does not exist\nHINT/,
	'statistics with a function for integers only are in the way');
is($node->safe_psql('postgres', q{SELECT count(*) FROM snowflake_convert('shop.checked', 'id')}), '2',
	'a CHECK with a function of the whole row is not in the way');

# ALTER DATABASE sets snowflake_convert.schemas for new sessions of one
# database.
$node->safe_psql('postgres', $event_trigger);
$node->safe_psql('postgres',
	q{ALTER DATABASE postgres SET snowflake_convert.schemas = 'shop, app'});
$node->safe_psql('postgres',
	'CREATE TABLE other (id serial PRIMARY KEY); CREATE TABLE shop.new (id serial PRIMARY KEY)');
is( $node->safe_psql('postgres',
		q{SELECT attrelid::regclass, atttypid::regtype FROM pg_attribute
		   WHERE attrelid IN ('other'::regclass, 'shop.new'::regclass) AND attname = 'id' ORDER BY 1}
	),
	"other|integer\nshop.new|bigint",
	'snowflake_convert.schemas applies to one database');

# A CHECK that new keys fail raises a warning; other CHECKs do not.
my (undef, undef, $bounded) = $node->psql('postgres',
	q{CREATE TABLE shop.small (id serial PRIMARY KEY CHECK (id < 100)); CREATE TABLE shop.positive (id serial PRIMARY KEY CHECK (id > 0))});
like($bounded, qr/WARNING:  new keys of column "id" of table "shop.small" may be refused\nDETAIL:  constraint small_id_check on table shop.small: CHECK \(\(id < 100\)\)/,
	'a WARNING names a CHECK that new keys of the new table fail');
unlike($bounded, qr/positive/, 'no WARNING names a CHECK that new keys pass');

# A DEFAULT that reads the sequence of a converted key raises a warning.
# Temporary tables keep their sequences.
my (undef, undef, $doubts) = $node->psql('postgres',
	q{CREATE TABLE shop.tree (id serial PRIMARY KEY, root bigint DEFAULT currval('shop.tree_id_seq'))});
like($doubts, qr/^psql:<stdin>:1: WARNING:  new keys of column "id" of table "shop.tree" may be refused\nDETAIL:  default value for column root of table shop.tree: currval\('shop.tree_id_seq'::regclass\)\nHINT/,
	'a WARNING names a DEFAULT that reads the sequence of the key');
is($node->safe_psql('postgres',
		q{RESET snowflake_convert.schemas;
		CREATE TABLE pg_temp.a (id serial PRIMARY KEY);
		SET search_path = pg_temp;
		CREATE TABLE b (id serial PRIMARY KEY);
		SELECT count(*) FROM pg_sequences WHERE schemaname LIKE 'pg_temp%'}),
	'2', 'a table in schema pg_temp keeps its serial key');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET snowflake_convert.schemas');

# A dump is restored unchanged into a database that converts new tables.
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->safe_psql('restored', "CREATE EXTENSION snowflake; $event_trigger");
$node->safe_psql('by_function', 'CREATE TABLE still_serial (id serial PRIMARY KEY)');
$node->safe_psql('by_function', $event_trigger);
script('dump.sql', dump_of('by_function') =~ s/CREATE EVENT TRIGGER .*?;//sr);
$node->command_ok(
	[
		'psql', '-Xq1', '-v', 'ON_ERROR_STOP=1', '-d',
		$node->connstr('restored'), '-f', "$directory/dump.sql"
	],
	'a dump is restored while the event trigger is enabled');
is(dump_of('restored'), dump_of('by_function'), 'the restored database is as it was dumped');

# pgEdge has an extension named snowflake, too.  The test makes by hand what
# that extension leaves behind when it is dropped: a serial's sequence with
# values beyond its MAXVALUE, and an identity's sequence whose column has no
# identity any more.  A dump of such tables cannot be restored before their
# conversion.
$node->safe_psql('postgres', 'CREATE DATABASE leftovers');
$node->safe_psql('leftovers', q{
CREATE EXTENSION snowflake;
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
my (undef, $leftover_statements) = $node->psql('leftovers', q{
SELECT snowflake_convert('of_serial', 'id');
SELECT snowflake_convert('of_shared', 'id');
SELECT snowflake_convert('was_converted', 'id')});
is( $leftover_statements, <<'STATEMENTS' =~ s/\n\z//r, 'the conversion repairs what pgEdge has left');
ALTER TABLE public.of_serial ALTER COLUMN id SET DEFAULT public.snowflake_nextval();
DROP SEQUENCE public.of_serial_id_seq;
ALTER SEQUENCE public.of_shared_id_seq AS bigint NO CYCLE MAXVALUE 9223372036854775807;
ALTER TABLE public.of_shared ALTER COLUMN id SET DEFAULT public.snowflake_nextval();
UPDATE pg_catalog.pg_attribute SET attidentity = 'd' WHERE attrelid = 'public.was_converted'::pg_catalog.regclass AND attname = 'id';
ALTER TABLE public.was_converted ALTER COLUMN id DROP IDENTITY;
STATEMENTS
like( ($node->psql('leftovers', q{SET ROLE clerk; SELECT snowflake_convert('"Of identity"', 'Its id')}))[2],
	qr/ERROR:  table "public."Of identity"" has a sequence that only a superuser can remove\n.*\nHINT:.* let a superuser execute: UPDATE pg_catalog.pg_attribute SET attidentity = 'd' WHERE attrelid = 'public."Of identity"'::pg_catalog.regclass AND attname = 'Its id';/,
	'an owner who is no superuser gets a HINT with the statement for a superuser');
$node->safe_psql('leftovers', q{
UPDATE pg_catalog.pg_attribute SET attidentity = 'd' WHERE attrelid = 'public."Of identity"'::pg_catalog.regclass AND attname = 'Its id';
SET ROLE clerk;
SELECT snowflake_convert('"Of identity"', 'Its id');
INSERT INTO "Of identity" DEFAULT VALUES;
});
is($node->safe_psql('leftovers', q{
SELECT snowflake_convert(c.oid, 'id') FROM pg_class AS c WHERE relname IN ('of_serial', 'of_shared', 'was_converted')}),
	'', 'after the repair there is nothing left to convert');
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
CREATE EXTENSION snowflake;
CREATE TABLE event (id bigint PRIMARY KEY, made_at timestamptz);
INSERT INTO event
SELECT (floor((extract(epoch FROM t) - 1672531200) * 1000)::bigint << 22) | (1000 << 12) | n, t
  FROM generate_series(1, 3) AS n, LATERAL (SELECT clock_timestamp() - interval '1 day' * n AS t) AS t;
SELECT * FROM snowflake_convert('event', 'id');
INSERT INTO event (made_at) VALUES (clock_timestamp());
SELECT count(*), bool_and(abs(extract(epoch FROM snowflake_timestamp(id) - made_at)) < 0.1),
       bool_and(snowflake_worker_id(id) = 1000), max(id) = snowflake_currval(),
       array_agg(snowflake_sequence(id) ORDER BY id)
  FROM event;
}),
	"ALTER TABLE public.event ALTER COLUMN id SET DEFAULT public.snowflake_nextval();\n"
	  . '4|t|t|t|{3,2,1,0}',
	"new ids follow the ids of other software with the same layout and epoch");
$peer->stop;

done_testing();
