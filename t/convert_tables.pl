# Tables get snowflakes as keys.  Tables that are in use are converted by scripts
# that psql runs as their owner, and the scripts of the way back lead to the same
# dump.  A script that fails leaves its tables as they were.  The event trigger
# converts new tables, but not those of a dump or of an extension's script.
use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use File::Path qw(make_path);
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $event_trigger = q{
CREATE EXTENSION IF NOT EXISTS snowflake_convert CASCADE;
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
};

# Makes an installation like the server's, and adds files to the directory of
# its extensions.  PostgreSQL finds all other files relative to its own program,
# so the function copies postgres and pg_ctl, and links to the rest.  Returns the
# directory of the programs.
sub copy_installation
{
	my ($node, $root, %files) = @_;
	my ($programs, $shared, $libraries) = map { $node->config_data($_) } qw(--bindir --sharedir --pkglibdir);

	make_path("$root$programs", "$root$shared/extension", dirname("$root$libraries"));
	for my $program ('postgres', 'pg_ctl')
	{
		copy("$programs/$program", "$root$programs/$program") or die $!;
		chmod 0755, "$root$programs/$program" or die $!;
	}
	symlink($libraries, "$root$libraries") or die $!;
	-e "$root$_" or symlink($_, "$root$_") or die $! for glob("$shared/* $shared/extension/*");
	append_to_file("$root$shared/extension/$_", $files{$_}) for keys %files;
	return "$root$programs";
}

# A database's dump, without the lines that differ from one dump to the next.
sub dump_of
{
	my ($node, $database) = @_;
	my $dump = '';

	IPC::Run::run [ 'pg_dump', '-d', $node->connstr($database) ], '>', \$dump
	  or die "pg_dump failed";
	return join "\n", grep { !/^(--|\\(un)?restrict|$)/ } split /\n/, $dump;
}

# Runs a text by psql, which goes on after errors; returns the errors.
sub run_text
{
	my ($node, $database, $text, @options) = @_;
	my $stderr;

	IPC::Run::run [ 'psql', '-Xq', '-d', $node->connstr($database), @options, '-f', '-' ],
	  '<', \$text, '>', '/dev/null', '2>', \$stderr;
	return $stderr;
}

my $node = snowflake_node('node', 'wal_level = logical');
{
	local $ENV{PATH} = copy_installation(
		$node,
		PostgreSQL::Test::Utils::tempdir_short(),
		'library.control' => "default_version = '1.0'\n",
		'library--1.0.sql' => 'CREATE TABLE book (id bigserial PRIMARY KEY, buyer bigint REFERENCES customer);',
		'library--1.0--1.1.sql' => q{
CREATE TABLE copy (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, book bigint REFERENCES book);
ALTER TABLE copy ADD buyer bigint REFERENCES customer;
}) . ":$ENV{PATH}";
	$node->start;
}

# Runs a text as the owner of the tables.
sub as_keeper
{
	my ($text) = @_;
	return run_text($node, 'depot', $text, '-U', 'keeper');
}

# ----- there and back -----

# Tables with what depends on keys: views, triggers, policies, indexes, statistics.
# The integer key is widened first, by the statements of the script's comments.
$node->safe_psql('postgres', 'CREATE ROLE keeper LOGIN; CREATE DATABASE depot OWNER keeper');
$node->safe_psql('depot', q{
CREATE EXTENSION snowflake_convert CASCADE;
SET ROLE keeper;
CREATE SCHEMA depot;
CREATE TABLE depot.place (id bigserial PRIMARY KEY, first_item integer, name text);
CREATE TABLE depot.item (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, place bigint REFERENCES depot.place, n integer);
ALTER TABLE depot.place ADD FOREIGN KEY (first_item) REFERENCES depot.item;
CREATE TABLE depot.sold (id serial PRIMARY KEY, item integer REFERENCES depot.item);
CREATE INDEX shifted ON depot.item ((place + 1));
CREATE STATISTICS depot.of_item ON place, n FROM depot.item;
CREATE TABLE depot.note (id bigint, item_id integer, text text);
CREATE TABLE depot.kept (id bigserial PRIMARY KEY);
INSERT INTO depot.place (name) VALUES ('here'), ('there');
INSERT INTO depot.item (place, n) SELECT 1 + n % 2, n FROM generate_series(1, 1000) AS n;
});
sub add_to_depot
{
	$node->safe_psql('depot', q{
SET ROLE keeper;
CREATE VIEW depot.items WITH (security_barrier) AS SELECT id, place FROM depot.item WHERE n > 0 WITH CASCADED CHECK OPTION;
CREATE MATERIALIZED VIEW depot.by_place AS SELECT p.name, count(*) AS items FROM depot.items AS i JOIN depot.place AS p ON p.id = i.place GROUP BY p.id;
CREATE FUNCTION depot.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER instead INSTEAD OF UPDATE ON depot.items FOR EACH ROW EXECUTE FUNCTION depot.note();
CREATE TRIGGER of_id BEFORE UPDATE OF id ON depot.place FOR EACH ROW WHEN (NEW.id > 0) EXECUTE FUNCTION depot.note();
CREATE POLICY positive ON depot.place USING (id > 0);
GRANT SELECT ON depot.items TO pg_monitor WITH GRANT OPTION;
GRANT USAGE ON SEQUENCE depot.place_id_seq TO pg_monitor;
});
	return;
}
my $make = q{SELECT snowflake_convert.schema('{depot}', except_keys => '{depot.kept.id}')};

# The statements in a script's comments, as doc/migration.md takes them out.
sub statements_of
{
	my ($keyword, $script) = @_;
	return join '', $script =~ /^-- $keyword: (.*\n)/mg;
}

is(as_keeper(statements_of('widen', $node->safe_psql('depot', $make) . "\n")), '', 'the owner runs the statements that widen the integer keys');
unlike($node->safe_psql('depot', $make), qr/^-- (widen|stays|in the way)/m, 'no integer key is left, and nothing is in the way');
like($node->safe_psql('depot', $make), qr/^-- integers .*: depot.note \(item_id\)$/m, 'a column without a foreign key is named');
add_to_depot();
my $before = dump_of($node, 'depot');
my $script = $node->safe_psql('depot', $make) . "\n";
is(dump_of($node, 'depot'), $before, 'making a script changes nothing');

# A session that uses the tables has prepared an INSERT.
my $session = SnowflakeSession->new($node);
$session->rows("\\c depot\nPREPARE add AS INSERT INTO depot.place (name) VALUES ('new') RETURNING id > 1000000");
$session->rows('BEGIN');
is($session->value('EXECUTE add'), 'f', 'before the conversion a prepared INSERT gets a small key');
like(as_keeper($script =~ s/lock_timeout CONSTANT pg_catalog.interval := '\K5s'/300ms'/gr),
	qr/ERROR:  could not lock depot.place and 5 other relations within 0.3 s/, 'a script waits for a table in use until lock_timeout');
$session->rows('ROLLBACK');

# The prepared INSERT has used up a value of a sequence.
$before =~ s/(place_id_seq', )2/${1}3/;
is(dump_of($node, 'depot'), $before, 'a script that has timed out changes nothing');

# The catalogue's row of a sequence waits for its last writer, and before PostgreSQL
# 18, where GRANT locks the sequence, no lock shows that.
$session->rows('BEGIN');
$session->rows('GRANT USAGE ON SEQUENCE depot.item_id_seq TO pg_monitor');
like(as_keeper("SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';\n$script"),
	qr/ERROR:  (?:canceling statement due to lock timeout|could not lock depot.item_id_seq)/, 'a script does not wait for a transaction that has changed privileges');
$session->rows('ROLLBACK');
is(as_keeper($script), '', 'the owner runs the script');
$session->rows('BEGIN');
is($session->value('EXECUTE add'), 't', 'after the conversion the same prepared INSERT gets a snowflake');
$session->rows('ROLLBACK');

my $after = dump_of($node, 'depot');
my %lines;
$lines{$_}++ for split /\n/, $after;
$lines{$_}-- for split /\n/, $before;
is_deeply([ map { ($_) x $lines{$_} } grep { $lines{$_} > 0 } sort keys %lines ],
	[ ('    id bigint DEFAULT public.snowflake_id() NOT NULL,') x 3 ],
	'the dump of a converted schema has keys that are snowflakes');
is_deeply(
	[ grep { $lines{$_} < 0 && !/SEQUENCE|_id_seq|ADD GENERATED ALWAYS AS IDENTITY|^    id bigint NOT NULL|^    (AS integer|START WITH 1|INCREMENT BY 1|NO MINVALUE|NO MAXVALUE|CACHE 1;?)$|^\);$/ } sort keys %lines ],
	[], 'the dump of a converted schema differs by nothing else');
$node->safe_psql('postgres', 'CREATE DATABASE restored OWNER keeper');
$node->safe_psql('restored', $event_trigger);
is(run_text($node, 'restored', "SET snowflake_convert.schemas = 'none';\n$after"), '', 'a dump is restored while the event trigger is enabled');
is(dump_of($node, 'restored') =~ s/\n(?:CREATE|ALTER) EVENT TRIGGER [^;]*;//gr, $after, 'the restored database is as it was dumped');

my $last = $node->safe_psql('depot', 'SELECT snowflake_nextval()');
is(as_keeper(statements_of('back', $script)), '', 'the owner runs the statements that lead back');
my @dumps = map { s/^SELECT pg_catalog.setval\('depot\.(?!kept)\w+', \K\d+, \w+//gmr } $before, dump_of($node, 'depot');
is($dumps[1], $dumps[0], 'they lead to the schema before');
$session->rows('EXECUTE add');
is($session->value(q{SELECT max(id) = currval('depot.place_id_seq') FROM depot.place}), 't', 'after them the same prepared INSERT gets a key of the sequence');
$session->quit;
is($node->safe_psql('depot', "INSERT INTO depot.item DEFAULT VALUES RETURNING id > $last; INSERT INTO depot.place DEFAULT VALUES RETURNING id > $last"),
	"t\nt", 'the sequences go on after new ids');

# ----- tables of an extension's script -----

$node->safe_psql('postgres', "$event_trigger
CREATE TABLE customer (id bigserial PRIMARY KEY);
CREATE EXTENSION library;
ALTER EXTENSION library UPDATE TO '1.1';
CREATE TABLE loan (id bigserial PRIMARY KEY, copy bigint REFERENCES copy, customer bigint REFERENCES customer);
");
is($node->safe_psql('postgres', q{
SELECT attrelid::regclass, snowflake_convert.is_snowflake(attrelid, attnum)
  FROM pg_attribute WHERE attrelid IN ('customer'::regclass, 'book'::regclass, 'copy'::regclass, 'loan'::regclass) AND attname = 'id' ORDER BY attrelid}),
	"customer|t\nbook|f\ncopy|f\nloan|t",
	'tables of another extension keep their keys, tables of the user are converted');
is($node->safe_psql('postgres', q{SELECT s FROM snowflake_convert.key('book', 'id') AS s WHERE s ~ 'in the way'}),
	'-- in the way of public.book (id): its table belongs to an extension', 'and scripts do not convert them');
is($node->safe_psql('postgres', q{
SET snowflake_convert.schemas = 'none';
CREATE TABLE person (id bigserial PRIMARY KEY);
CREATE TABLE author () INHERITS (person);
ALTER EXTENSION library ADD TABLE author;
SELECT s FROM snowflake_convert.key('person', 'id') AS s WHERE s ~ 'in the way'}),
	'-- in the way of public.person (id): table public.author belongs to an extension', 'nor a key that one of them inherits');
is($node->safe_psql('postgres', 'INSERT INTO book DEFAULT VALUES RETURNING id'), '1',
	'a table of another extension has serial keys from 1 on');

# ----- the scripts under other settings -----

# What CREATE EXTENSION reads is stored: constraints, bodies and comments.
my $members = q{
SELECT identified.identity, obj_description(objid, relname), pg_get_functiondef(p.oid), pg_get_constraintdef(k.oid)
  FROM pg_depend AS d
  JOIN pg_class ON pg_class.oid = d.classid
 CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS identified
  LEFT JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid AND p.prokind = 'f'
  LEFT JOIN pg_constraint AS k ON d.classid = 'pg_class'::regclass AND k.conrelid = d.objid
 WHERE (refclassid, deptype) = ('pg_extension'::regclass, 'e') AND identified.identity ~ 'snowflake'
 ORDER BY 1, 2, 4};
my $as_usual;
for my $setting ('', 'quote_all_identifiers = on', 'standard_conforming_strings = off')
{
	my $database = $setting || 'usual';
	my $set = $setting && "SET $setting;";
	my ($result) = $node->psql('postgres', $set);

	next if $result != 0;    # PostgreSQL 19 has standard strings only
	$node->safe_psql('postgres', qq(CREATE DATABASE "$database" TEMPLATE template0));
	$node->safe_psql($database, "SET client_min_messages = error; $set"
		  . join(' ', map { "CREATE EXTENSION $_;" } qw(snowflake snowflake_convert snowflake_partitions snowflake_registry)));
	if (!$setting)
	{
		$as_usual = $node->safe_psql($database, $members);
		next;
	}
	is($node->safe_psql($database, $members), $as_usual, "with $setting the extensions are the same");
}

# Whoever can create a function in the extensions' schemas can have it called.
is($node->safe_psql('postgres', q{
CREATE ROLE builder;
CREATE DATABASE granted TEMPLATE template0;
\\c granted
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO builder, PUBLIC;
SET client_min_messages = error;
CREATE EXTENSION snowflake;
CREATE EXTENSION snowflake_convert;
CREATE EXTENSION snowflake_partitions;
CREATE EXTENSION snowflake_registry;
SELECT count(*) FILTER (WHERE has_schema_privilege('builder', oid, 'CREATE')), count(*) FROM pg_namespace WHERE nspname ~ '^snowflake_'}),
	'0|3', 'default privileges let no role create objects in the schemas of the extensions');
$node->stop;

# ----- tables that pgEdge's extension leaves -----

# pgEdge has an extension named snowflake, too, with 41 bits of milliseconds since
# 2023, 10 bits for the node, and 12 bits for a counter.  The test makes by hand
# what that extension leaves behind: its ids, and a serial's sequence with values
# beyond its MAXVALUE.
my $peer = snowflake_node('peer', "snowflake.layout = '41/0/10/12'", "snowflake.epoch = '2023-01-01 00:00:00+00'",
	'snowflake.worker_id = 1000');
$peer->start;
is($peer->safe_psql('postgres', q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE TABLE event (id bigserial PRIMARY KEY, made_at timestamptz);
INSERT INTO event
SELECT (floor((extract(epoch FROM t) - 1672531200) * 1000)::bigint << 22) | (1000 << 12) | n, t
  FROM generate_series(1, 3) AS n, LATERAL (SELECT clock_timestamp() - interval '1 day' * n AS t) AS t;
SELECT setval('event_id_seq', max(id)) IS NULL FROM event;
ALTER TABLE event ALTER id DROP DEFAULT;
UPDATE pg_sequence SET seqmax = 4 WHERE seqrelid = 'event_id_seq'::regclass;
SELECT substring(s FROM 'SELECT max.*') FROM snowflake_convert.key('event', 'id') AS s WHERE s ~ 'SELECT max' \gexec
SELECT snowflake_convert.key('event', 'id') \gexec
INSERT INTO event (made_at) VALUES (clock_timestamp());
SELECT count(*), bool_and(abs(extract(epoch FROM snowflake_timestamp(id) - made_at)) < 0.1),
       bool_and(snowflake_worker_id(id) = 1000), max(id) = snowflake_currval(),
       array_agg(snowflake_sequence(id) ORDER BY id)
  FROM event;
}), "f\nt\n4|t|t|t|{3,2,1,0}", 'new ids follow the ids of other software with the same layout and epoch');
$peer->stop;

done_testing();
