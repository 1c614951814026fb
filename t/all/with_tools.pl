# The tools that come with PostgreSQL, and pgbouncer: dump and restore, COPY
# through psql, foreign tables, a pooler, pg_upgrade.  Ids are kept, and new ids
# are larger.
#
#   oldinstall   the directory, with bin/, of the PostgreSQL to upgrade from,
#                which has to have the extension; by default the tested one
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my @tables = qw(orders visits parted child);

# Creates the tables of an application, with every kind of DEFAULT for ids.
sub create_application
{
	my ($node, $database, $schema) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, qq{
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION snowflake SCHEMA $schema;
SET search_path = public, $schema;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int,
	made_at timestamptz GENERATED ALWAYS AS
		(snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12')) STORED);
CREATE INDEX ON orders (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00'));
CREATE VIEW recent AS SELECT id, n FROM orders WHERE id >= snowflake_min_id(now() - interval '1 day');
CREATE TABLE visits (n int);
ALTER TABLE visits ADD id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), ADD CHECK (id > 1);
CREATE TABLE parted (n int, id bigint DEFAULT snowflake_nextval() PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (MAXVALUE);
CREATE TABLE child (more text) INHERITS (visits);
} . insert_statements(500));
	return;
}

sub insert_statements
{
	my ($rows) = @_;
	return join '', map { "INSERT INTO $_ (n) SELECT generate_series(1, $rows);\n" } @tables;
}

# An aggregate of the rows of each table.
sub of_each_table
{
	my ($node, $database, $aggregate) = @_;
	return $node->safe_psql($database, join ' UNION ALL ',
		map { "SELECT '$_', $aggregate FROM " . ($_ eq 'visits' ? "ONLY $_" : $_) . ' AS t' } @tables);
}

sub fingerprint
{
	return of_each_table(@_, q{count(*), md5(string_agg(t::text, ',' ORDER BY id))});
}

sub largest_id
{
	my ($node, $database) = @_;
	return (sort { $b <=> $a } of_each_table($node, $database, 'max(id)') =~ /\d+/g)[0];
}

# Tests that a copy has the rows of its source, and that new ids are larger.
sub check_copy
{
	my ($source, $node, $database, $worker_id) = @_;

	is(fingerprint($node, $database), $source, "$database: all rows are there");
	my $largest = largest_id($node, $database);
	$node->safe_psql($database, insert_statements(100));
	is(of_each_table($node, $database, "count(*) - count(DISTINCT id), count(*) FILTER (WHERE id > $largest AND (id >> 12) & 31 = $worker_id)"),
		join("\n", map { "$_|0|100" } @tables), "$database: new ids are larger, and of this node");
	return;
}

my $node = snowflake_node('node');
$node->start;
create_application($node, 'app', 'public');
my $app = fingerprint($node, 'app');

# Dumps the application, and restores the dump.  Returns the errors.
sub restore
{
	my ($database, @options) = @_;
	my $file = "$directory/$database";
	my $stderr = '';

	system_or_bail('pg_dump', '-d', $node->connstr('app'), '-f', $file, @options);
	IPC::Run::run [
		"@options" eq '-Fc' ? ('pg_restore', '-j', '4', '-e') : ('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f'),
		$file, '-d', $node->connstr($database)
	  ], '>', '/dev/null', '2>', \$stderr;
	return $stderr;
}

for ([ 'plain', '' ], [ 'custom_format', '-Fc' ], [ 'schema_then_data', '-s', '-a' ], [ 'inserts', '--inserts' ])
{
	my ($database, @options) = @$_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	is(join('', map { restore($database, split) } @options), '', "$database: pg_dump @options is restored");
	check_copy($app, $node, $database, 7);
}

# A dump names the schema that the extension had in the source.
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', 'CREATE SCHEMA ids; CREATE EXTENSION snowflake SCHEMA ids');
like(restore('elsewhere'), qr/"?public\.snowflake\w*(?:\(.*\))?"? does not exist/,
	'a database with the extension in another schema: the restore names what it does not find');
$node->safe_psql('elsewhere', 'DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP EXTENSION snowflake; CREATE EXTENSION snowflake SCHEMA public');
is(restore('elsewhere'), '', 'the extension made again in the schema of the dump: the dump is restored');
check_copy($app, $node, 'elsewhere', 7);

# pg_dumpall, into a server of another worker id.  The script goes on after an
# error, because it creates the role that runs this test, which exists already.
my $other = snowflake_node('other', 'snowflake.worker_id = 8');
$other->start;
create_application($node, 'of_schema', 'ids');
my $of_schema = fingerprint($node, 'of_schema');
$node->command_ok([ 'pg_dumpall', '-f', "$directory/all.sql" ], 'pg_dumpall succeeds');
$other->psql('postgres', "\\i $directory/all.sql", on_error_stop => 0);
check_copy($app, $other, 'app', 8);
check_copy($of_schema, $other, 'of_schema', 8);

# COPY through psql
my $largest = largest_id($node, 'app');
is($node->safe_psql('app', qq{
CREATE TABLE copied (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
\\copy orders (id, n) TO '$directory/copy' (FORMAT binary)
\\copy copied FROM '$directory/copy' (FORMAT binary)
SELECT count(*) FROM (SELECT id, n FROM orders INTERSECT TABLE copied) AS s;
\\copy copied (n) FROM PROGRAM 'seq 1000'
SELECT count(*), count(DISTINCT id) FROM copied WHERE id > $largest;
}), "500\n1000|1000", 'COPY keeps given ids, and gives an id to each row without one');

# Two databases of one server, at once
my $script = "$directory/insert.sql";
append_to_file($script,
	"INSERT INTO bench (client) VALUES (:client_id) RETURNING id;\n");
$node->safe_psql($_, 'CREATE TABLE bench (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int)') for 'app', 'plain';
my @runs = map {
	IPC::Run::start([ 'pgbench', '-n', '-c', '4', '-t', '200', '-M', 'prepared', '-f', $script, $node->connstr($_) ],
		'>', \my $out, '2>', \my $err)
} 'app', 'plain';
is(scalar(grep { $_->finish } @runs), 2, 'pgbench inserts in two databases');
my %seen = map { $_ => 1 } map { split /\n/, $node->safe_psql($_, 'SELECT id FROM bench') } 'app', 'plain';
is(scalar(keys %seen), 2 * 4 * 200, 'no id comes twice in two databases of one server');

# postgres_fdw evaluates the default of the foreign table on the local server,
# and does not use the default of the remote table.
SKIP:
{
	skip 'postgres_fdw is not installed', 2
	  if $node->safe_psql('app', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';
	$other->safe_psql('postgres', sprintf q{
CREATE EXTENSION snowflake;
CREATE EXTENSION postgres_fdw;
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%s', dbname 'app', use_remote_estimate 'on');
CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
CREATE FOREIGN TABLE bench (id bigint NOT NULL DEFAULT snowflake_nextval(), client int) SERVER remote;
CREATE FOREIGN TABLE bench_no_default (id bigint, client int) SERVER remote OPTIONS (table_name 'bench');
INSERT INTO bench (client) SELECT -9 FROM generate_series(1, 500);
}, $node->host, $node->port);
	is($node->safe_psql('app', 'SELECT count(DISTINCT id), min(snowflake_worker_id(id)), max(snowflake_worker_id(id)) FROM bench WHERE client = -9'),
		'500|8|8', 'postgres_fdw: the default is evaluated locally');
	like((sqlstate_of($other, 'INSERT INTO bench_no_default (client) VALUES (1)'))[1], qr/null value in column "id"/,
		'postgres_fdw: without a local default NULL is sent');
}
$other->stop;

# pgbouncer in transaction mode, with one server connection for two clients
my ($pgbouncer) = grep { -x } '/usr/sbin/pgbouncer', map { "$_/pgbouncer" } split /:/, $ENV{PATH};
SKIP:
{
	skip 'pgbouncer is not installed', 5 unless defined $pgbouncer;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $host = $node->host;
	my $user = $node->safe_psql('postgres', 'SELECT current_user');

	append_to_file("$directory/users", qq{"$user" ""\n});
	append_to_file("$directory/pgbouncer.ini", qq{
[databases]
app = host=$host port=@{[ $node->port ]} dbname=app
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $host
auth_type = trust
auth_file = $directory/users
pool_mode = transaction
default_pool_size = 1
});
	my $pooler = IPC::Run::start([ $pgbouncer, "$directory/pgbouncer.ini" ],
		'<', \undef, '>', "$directory/pgbouncer.log", '2>&1');
	wait_for(sub { -S "$host/.s.PGSQL.$port" }) or die 'pgbouncer does not start';
	my @clients = map {
		my %client = (stdin => '', stdout => '');
		$client{run} = IPC::Run::start([ 'psql', '-XAtq', "host=$host port=$port dbname=app" ],
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
	my ($one, $two) = map { $ask->($_, 'INSERT INTO bench (client) VALUES (-3) RETURNING id;') } @clients;

	cmp_ok($two, '>', $one, 'pgbouncer: RETURNING brings the id, and that of the next client is larger');
	is($ask->($clients[0], 'SELECT snowflake_currval();'), $two,
		"pgbouncer: outside a transaction snowflake_currval() may be another client's id");
	is($ask->($clients[0], 'BEGIN; INSERT INTO bench (client) VALUES (-4) RETURNING id = snowflake_currval();'), 't',
		"pgbouncer: inside a transaction snowflake_currval() is the client's own id");
	is($ask->($clients[0], 'COMMIT; SELECT 1;'), '1', 'pgbouncer: the transaction ends');
	$_->{run}->finish for @clients;
	my $errors = '';
	ok(IPC::Run::run([ 'pgbench', '-n', '-c', '8', '-t', '200', '-f', $script, "host=$host port=$port dbname=app" ],
			'>', '/dev/null', '2>', \$errors), 'pgbouncer: pgbench with eight clients') || diag($errors);
	$pooler->signal('TERM');
	$pooler->kill_kill;
}
$node->stop;

# pg_upgrade from a server whose clock was a minute ahead.  pg_upgrade does not
# copy the page of the mark.
my $old = PostgreSQL::Test::Cluster->new('old', defined $ENV{oldinstall} ? (install_path => $ENV{oldinstall}) : ());
my $new = PostgreSQL::Test::Cluster->new('new');
for my $server ($old, $new)
{
	$server->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
	$server->append_conf('postgresql.conf', "shared_preload_libraries = 'snowflake'\nsnowflake.worker_id = 7\n");
}
start_server($old, 3600);
create_application($old, 'upgraded', 'public');
my $rows = fingerprint($old, 'upgraded');
$largest = largest_id($old, 'upgraded');
$old->stop;
chdir $directory or die "$directory: $!";
command_ok(
	[
		'pg_upgrade', '--no-sync',
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-s', $new->host, '-p', $old->port, '-P', $new->port
	],
	'pg_upgrade succeeds');
ok(!-e mark_file($new), 'pg_upgrade does not copy the page of the mark');
$new->start;
is($new->safe_psql('upgraded', "SELECT snowflake_nextval() > $largest"), 'f',
	'pg_upgrade: without the page, ids begin at the clock');
$new->stop;
system_or_bail('cp', '-p', mark_file($old), mark_file($new));
start_server($new, 0);
my (undef, undef, $error) = $new->psql('upgraded', "\\set VERBOSITY verbose\nSELECT snowflake_nextval()");
like($error, qr/ERROR:  55000: .*behind the last snowflake id/,
	'pg_upgrade: with the page, a clock that is behind is refused, and the message says how far it is behind');
set_clock($new, 3600);
check_copy($rows, $new, 'upgraded', 7);
$new->stop;

done_testing();
