# The tools that come with PostgreSQL, and pgbouncer: all ways to dump and
# restore, pg_upgrade, COPY through psql, pgbench's protocols, a pooler,
# foreign tables.  Ids are kept, and the ids after them are larger.
#
#   oldinstall   the directory, with bin/, of the PostgreSQL to upgrade from,
#                which has to have the extension; by default the tested one
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(usleep);

my $directory = PostgreSQL::Test::Utils::tempdir();
my @tables = qw(orders visits parted child);

# Creates the tables of an application, with every kind of DEFAULT for ids.
sub create_application
{
	my ($node, $database, $schema) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql(
		$database, qq{
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION snowflake SCHEMA $schema;
SET search_path = public, $schema;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int,
	made_at timestamptz GENERATED ALWAYS AS
		(snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12')) STORED);
CREATE INDEX ON orders (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00'));
CREATE VIEW recent AS SELECT id, n FROM orders WHERE id >= snowflake_min_id(now() - interval '1 day');
CREATE TABLE visits (n int);
ALTER TABLE visits ADD id bigint PRIMARY KEY DEFAULT snowflake_nextval();
CREATE TABLE parted (n int, id bigint DEFAULT snowflake_nextval() PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (MAXVALUE);
CREATE TABLE child (more text) INHERITS (visits);
}
		  . insert_statements(2000));
	return;
}

sub insert_statements
{
	my ($rows) = @_;
	return join '',
	  map { "INSERT INTO $_ (n) SELECT generate_series(1, $rows);\n" } @tables;
}

# A fingerprint of all rows of all tables.
sub fingerprint
{
	my ($node, $database) = @_;
	return $node->safe_psql(
		$database,
		join ' UNION ALL ',
		map { "SELECT '$_', count(*), md5(string_agg(t::text, ',' ORDER BY id)) FROM ONLY $_ AS t" }
		  map { $_ eq 'parted' ? 'part' : $_ } @tables);
}

# Tests that a copy's tables have the rows of the source, and that new ids are
# larger.
sub check_copy
{
	my ($source, $node, $database, $what, $worker_id) = @_;

	is(fingerprint($node, $database), $source, "$what: all rows are there");
	my $largest = largest_id($node, $database);
	$node->safe_psql($database, insert_statements(500));
	for my $table (@tables)
	{
		is( $node->safe_psql(
				$database,
				"SELECT count(*), count(*) - count(DISTINCT id), count(*) FILTER (WHERE id > $largest),
						count(*) FILTER (WHERE id > $largest AND (id >> 12) & 31 <> $worker_id)
				   FROM " . ($table eq 'visits' ? "ONLY $table" : $table)),
			'2500|0|500|0',
			"$what: $table: new ids are larger, and of this node");
	}
	return;
}

sub largest_id
{
	my ($node, $database) = @_;
	return $node->safe_psql($database,
		'SELECT max(id) FROM ('
		  . join(' UNION ALL ', map { "SELECT id FROM $_" } @tables)
		  . ') AS t');
}

my $node = snowflake_node('node', 'max_prepared_transactions = 2');
$node->start;
create_application($node, 'app', 'public');
create_application($node, 'app_of_schema', 'ids');
my $app = fingerprint($node, 'app');
my $app_of_schema = fingerprint($node, 'app_of_schema');

# pg_dump, and the programs that restore its output.
sub dump_database
{
	my ($file, @options) = @_;
	$node->command_ok([ 'pg_dump', '-f', "$directory/$file", @options ],
		"pg_dump @options");
	return "$directory/$file";
}

sub new_database
{
	my ($database) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	return $database;
}

sub run_file
{
	my ($database, $file) = @_;
	$node->command_ok(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $database, '-f', $file ],
		"psql -f into $database");
	return;
}

my $plain = dump_database('plain.sql', 'app');
run_file(new_database('plain'), $plain);
check_copy($app, $node, 'plain', 'plain', 7);

my $custom = dump_database('custom', '-Fc', 'app');
$node->command_ok(
	[ 'pg_restore', '-j', '4', '-e', '-d', new_database('custom'), $custom ],
	'pg_restore -j 4');
check_copy($app, $node, 'custom', 'custom format, four jobs', 7);

my $schema_only = dump_database('schema.sql', '-s', 'app');
my $data_only = dump_database('data.sql', '-a', 'app');
run_file(new_database('halves'), $schema_only);
is($node->safe_psql('halves', 'SELECT count(*) FROM orders'),
	'0', 'pg_dump -s restores no rows');
run_file('halves', $data_only);
check_copy($app, $node, 'halves', 'schema, then data', 7);

my $inserts = dump_database('inserts.sql', '--inserts', 'app');
run_file(new_database('inserts'), $inserts);
check_copy($app, $node, 'inserts', '--inserts', 7);

my $of_schema = dump_database('of_schema.sql', 'app_of_schema');
run_file(new_database('of_schema'), $of_schema);
check_copy($app_of_schema, $node, 'of_schema',
	'extension in a schema of its own', 7);

# Restores into a database that has the extension in another schema: the dump
# names the schema that the extension had in the source.
new_database('elsewhere');
$node->safe_psql('elsewhere',
	'CREATE SCHEMA ids; CREATE EXTENSION snowflake SCHEMA ids');
my ($rc, undef, $stderr) =
  $node->psql('elsewhere', "\\i $plain", on_error_stop => 1);
isnt($rc, 0, 'the restore stops if the database has the extension in another schema');
like(
	$stderr,
	qr/function public\.snowflake_\w+\(.*\) does not exist/,
	'the restore names the function that it does not find');
$node->safe_psql('postgres', 'DROP DATABASE elsewhere');
new_database('elsewhere');
$node->safe_psql('elsewhere',
	'CREATE EXTENSION snowflake; ALTER SCHEMA public RENAME TO ids; CREATE SCHEMA public');
$node->safe_psql('elsewhere', 'DROP EXTENSION snowflake; CREATE EXTENSION snowflake SCHEMA public');
run_file('elsewhere', $plain);
check_copy($app, $node, 'elsewhere', 'the extension made again in the schema of the dump', 7);

# pg_dumpall, into a server of another worker id
$node->command_ok([ 'pg_dumpall', '-f', "$directory/all.sql" ], 'pg_dumpall');
my $other = snowflake_node('other', 'snowflake.worker_id = 8');
$other->start;

# The script goes on after an error, because it creates the role that runs this
# test, which exists already.
$other->psql('postgres', "\\i $directory/all.sql", on_error_stop => 0);
check_copy($app, $other, 'app', 'pg_dumpall', 8);
check_copy($app_of_schema, $other, 'app_of_schema', 'pg_dumpall, schema', 8);
$other->stop;

# COPY through psql, in every format, with the ids and without
for my $format (qw(text csv binary))
{
	my $file = "$directory/copy.$format";
	my $largest = largest_id($node, 'app');

	$node->safe_psql(
		'app', qq{
CREATE TABLE copied (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
\\copy orders (id, n) TO '$file' (FORMAT $format)
\\copy copied FROM '$file' (FORMAT $format)
});
	is( $node->safe_psql(
			'app',
			'SELECT count(*) FROM (SELECT id, n FROM orders INTERSECT TABLE copied) AS s'
		),
		'2000',
		"COPY $format keeps given ids");
	is( $node->safe_psql(
			'app', qq{
TRUNCATE copied;
\\copy orders (n) TO '$file' (FORMAT $format)
\\copy copied (n) FROM '$file' (FORMAT $format)
SELECT count(*), count(DISTINCT id), min(id) > $largest FROM copied;
DROP TABLE copied;
}),
		'2000|2000|t',
		"COPY $format without ids: each row gets an id of its own");
}

# Two databases of one server, at once, and every protocol of pgbench
my $script = "$directory/insert.sql";
PostgreSQL::Test::Utils::append_to_file($script,
	"INSERT INTO bench (client) VALUES (:client_id) RETURNING id;\n");
$node->safe_psql($_,
	'CREATE TABLE bench (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int)'
) for 'app', 'plain';
for my $protocol (qw(simple extended prepared))
{
	my @runs = map {
		IPC::Run::start(
			[
				'pgbench', '-n', '-c', '4', '-t', '500', '-M', $protocol,
				'-f', $script, $node->connstr($_)
			],
			'>', \my $out, '2>', \my $err)
	} 'app', 'plain';
	is(scalar(grep { $_->finish } @runs), 2, "pgbench -M $protocol inserts in two databases");
}
my %seen;
$seen{$_}++
  for map { split /\n/, $node->safe_psql($_, 'SELECT id FROM bench') } 'app',
  'plain';
is(scalar(keys %seen), 2 * 3 * 4 * 500,
	'no id comes twice in two databases of one server');

# A transaction that is prepared, and committed later by another session
$node->safe_psql('app',
	"BEGIN; INSERT INTO bench (client) VALUES (-1); PREPARE TRANSACTION 'p'");
$node->restart;
is( $node->safe_psql(
		'app', q{
INSERT INTO bench (client) VALUES (-2);
COMMIT PREPARED 'p';
SELECT string_agg(client::text, ' ' ORDER BY id) FROM bench WHERE client < 0}),
	'-1 -2',
	'a prepared transaction keeps its ids over a restart');

# postgres_fdw evaluates the default of the foreign table on the local server,
# and does not use the default of the remote table.
SKIP:
{
	skip 'postgres_fdw is not installed', 2
	  if $node->safe_psql('app',
		q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}
	  ) eq '0';
	my $local = snowflake_node('local', 'snowflake.worker_id = 9');
	$local->start;
	$local->safe_psql(
		'postgres', sprintf q{
CREATE EXTENSION snowflake;
CREATE EXTENSION postgres_fdw;
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%s', dbname 'app', use_remote_estimate 'on');
CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
CREATE FOREIGN TABLE bench (id bigint NOT NULL DEFAULT snowflake_nextval(), client int) SERVER remote;
CREATE FOREIGN TABLE bench_no_default (id bigint, client int) SERVER remote OPTIONS (table_name 'bench');
INSERT INTO bench (client) SELECT -9 FROM generate_series(1, 500);
}, $node->host, $node->port);
	is( $node->safe_psql(
			'app',
			'SELECT count(DISTINCT id), min(snowflake_worker_id(id)), max(snowflake_worker_id(id)) FROM bench WHERE client = -9'
		),
		'500|9|9',
		'postgres_fdw: the default is evaluated locally');
	my (undef, undef, $refusal) = $local->psql('postgres',
		'INSERT INTO bench_no_default (client) VALUES (1)');
	like($refusal, qr/null value in column "id"/,
		'postgres_fdw: without a local default NULL is sent');
	$local->stop;
}

# pgbouncer in transaction mode, with one server connection for two clients
my ($pgbouncer) = grep { -x } '/usr/sbin/pgbouncer',
  map { "$_/pgbouncer" } split /:/, $ENV{PATH};
SKIP:
{
	skip 'pgbouncer is not installed', 6 unless defined $pgbouncer;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $host = $node->host;
	my $user = $node->safe_psql('postgres', 'SELECT current_user');

	PostgreSQL::Test::Utils::append_to_file("$directory/users", qq{"$user" ""\n});
	PostgreSQL::Test::Utils::append_to_file(
		"$directory/pgbouncer.ini", sprintf qq{
[databases]
app = host=%s port=%s dbname=app
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $host
auth_type = trust
auth_file = $directory/users
pool_mode = transaction
default_pool_size = 1
}, $host, $node->port);
	my $pooler = IPC::Run::start([ $pgbouncer, "$directory/pgbouncer.ini" ],
		'<', \undef, '>', "$directory/pgbouncer.log", '2>&1');
	for (1 .. 100)
	{
		last if -S "$host/.s.PGSQL.$port";
		usleep(50_000);
	}
	my @clients = map {
		my %client = (stdin => '', stdout => '');
		$client{run} = IPC::Run::start(
			[ 'psql', '-XAtq', "host=$host port=$port dbname=app" ],
			'<', \$client{stdin}, '>', \$client{stdout}, '2>&1',
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		\%client
	} 1 .. 2;
	my $ask = sub {
		my ($client, $sql) = @_;
		$client->{stdout} = '';
		$client->{stdin} .= "$sql\n";
		$client->{run}->pump until $client->{stdout} =~ /\n/;
		return $client->{stdout} =~ s/\n\z//r;
	};
	my $insert = 'INSERT INTO bench (client) VALUES (-3) RETURNING id;';
	my $one = $ask->($clients[0], $insert);
	my $two = $ask->($clients[1], $insert);

	like($one, qr/^\d+$/, 'pgbouncer: RETURNING brings the id');
	cmp_ok($two, '>', $one, 'pgbouncer: the id of the next client is larger');
	is($ask->($clients[0], 'SELECT snowflake_currval();'),
		$two,
		"pgbouncer: outside a transaction snowflake_currval() may be another client's id");
	is( $ask->(
			$clients[0],
			'BEGIN; INSERT INTO bench (client) VALUES (-4) RETURNING id = snowflake_currval();'
		),
		't',
		"pgbouncer: inside a transaction snowflake_currval() is the client's own id");
	is($ask->($clients[0], 'COMMIT; SELECT 1;'), '1', 'pgbouncer: the transaction ends');
	$_->{run}->finish for @clients;
	my ($out, $err) = ('', '');
	ok( IPC::Run::run(
			[
				'pgbench', '-n', '-c', '8', '-t', '200', '-f', $script,
				"host=$host port=$port dbname=app"
			],
			'>', \$out, '2>', \$err),
		'pgbouncer: pgbench with eight clients') || diag($err);
	$pooler->signal('TERM');
	$pooler->kill_kill;
}
$node->stop;

# pg_upgrade from a server whose clock was a minute ahead.  pg_upgrade does not
# copy the page of the mark.
{
	my @old = defined $ENV{oldinstall} ? (install_path => $ENV{oldinstall}) : ();
	my @conf = ("shared_preload_libraries = 'snowflake'",
		'snowflake.worker_id = 7');
	my $old = PostgreSQL::Test::Cluster->new('old', @old);
	my $new = PostgreSQL::Test::Cluster->new('new');

	for my $server ($old, $new)
	{
		$server->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
		$server->append_conf('postgresql.conf', join("\n", @conf) . "\n");
	}
	start_server($old, 60);
	create_application($old, 'app', 'public');
	my $rows = fingerprint($old, 'app');
	my $largest = largest_id($old, 'app');
	$old->stop;

	chdir $directory or die "$directory: $!";
	PostgreSQL::Test::Utils::command_ok(
		[
			'pg_upgrade', '--no-sync',
			'-d', $old->data_dir, '-D', $new->data_dir,
			'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
			'-s', $new->host, '-p', $old->port, '-P', $new->port
		],
		'pg_upgrade');
	ok(!-e mark_file($new), 'pg_upgrade does not copy the page of the mark');

	# Without the page, only the clock keeps ids from coming again.
	$new->start;
	is(fingerprint($new, 'app'), $rows, 'pg_upgrade: all rows are there');
	is( $new->safe_psql('app', "SELECT snowflake_nextval() > $largest"),
		'f',
		'pg_upgrade: without the page, ids begin at the clock');
	$new->stop;

	# With the page, the new server knows the mark of the old one.
	PostgreSQL::Test::Utils::system_or_bail('cp', '-p', mark_file($old),
		mark_file($new));
	$new->start;
	my ($state, $message) = sqlstate_of($new, '\c app
SELECT snowflake_nextval()');
	is($state, '55000', 'pg_upgrade: with the page, a clock that is behind is refused');
	like($message, qr/ms behind the last snowflake id/, 'the message says how far the clock is behind');
	$new->stop;
	start_server($new, 60);
	check_copy($rows, $new, 'app', 'pg_upgrade, when the clock has caught up', 7);
	$new->stop;
}

done_testing();
