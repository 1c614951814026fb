# PostgreSQL 17 and later without preload: three statements, and a running server
# issues ids.  The first session that issues an id fixes the node, and every
# session goes by that node until the next start, whatever the parameters say.
# While no node is fixed, a session that could not read the configuration
# faithfully neither issues nor decodes: no default takes the place of a value.
# Sessions go on when the library is replaced under them.
#
# SNOWFLAKE_PRELOAD=0 runs other files on servers without preload: see t/README.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
plan skip_all => 'needs PostgreSQL 17' if $node->pg_version < 17;
$node->init;
$node->append_conf('postgresql.conf',
	"max_connections = 30\nrestart_after_crash = on\nfsync = off\ninclude 'case.conf'");
configure($node);
$node->start;

use constant NODE_OF_ID =>
  'SELECT datacenter_id, worker_id FROM snowflake_decode(snowflake_nextval())';
use constant PENDING => 'SELECT pending_restart FROM snowflake_node()';

# Statements that depend on the node.
my @dependents = (
	NODE_OF_ID,
	'SELECT snowflake_timestamp(1)',
	"SELECT snowflake_min_id('2030-01-01 00:00+00')",
	"SELECT count(*) FROM snowflake_activity('log', 'id', '1 day', now())");
my $parallel = q{
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0};

# Replaces the server's parameters, and waits until new sessions have them.
sub reload_with
{
	my (@settings) = @_;
	my $offset = -s $node->logfile;

	configure($node, @settings);
	$node->reload;
	logs($node, $offset, qr/received SIGHUP/, "reload with: @settings");

	# The postmaster signals its children before it starts a new one.
	value_of($node, 'SELECT');
	return;
}

# Restarts the server without a worker id, so that no node is fixed.
sub restart_unfixed
{
	configure($node);
	$node->restart;
	return;
}

# Executes statements in a new session of a user.  Returns the output, the whole
# text of errors and warnings, and of these the warnings of the library:
# PostgreSQL itself warns of values that a library's parameter cannot have.
sub run_as
{
	my ($user, @statements) = @_;
	my ($rc, $out, $err) = $node->psql(
		'postgres',
		join('; ', "\\set VERBOSITY verbose\nSELECT", @statements),
		on_error_stop => 0,
		extra_params => [ '-U', $user ]);
	my $warnings = join "\n", grep { !/cannot be changed now|invalid value/ }
	  $err =~ /^.*?(WARNING: .*)/mg;
	$out =~ s/^\n//;
	return ($out, $err, $warnings);
}

# A session of a user without any rights but on the tables of the test.
sub plain_session
{
	my $session = SnowflakeSession->new($node);
	$session->rows('SET SESSION AUTHORIZATION plain');
	return $session;
}

# Tests that a session refuses each statement that depends on the node, with
# this SQLSTATE and message.
sub refuses
{
	my ($session, $state, $message, $what) = @_;
	for my $sql (@dependents)
	{
		$session->ask($sql);
		my $outcome = $session->outcome;
		is($outcome->{state}, $state, "$what: $sql is refused");
		like($outcome->{message}, $message, "$what: the message has the parameter");
	}
	return;
}

# Tests that a session executes each statement that depends on the node.
sub goes_on
{
	my ($session, $what) = @_;
	is(join(' ', map { $session->state_of($_) } @dependents), '   ', "$what: everything goes on");
	return;
}

# ----- three statements -----

my $early = SnowflakeSession->new($node);
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION snowflake');
like($err, qr/NOTICE:  .* until snowflake.worker_id is set\nHINT:  .*a file in conf\.d/,
	'CREATE EXTENSION says which setting is missing');
configure($node, 'snowflake.worker_id = 1');
value_of($node, 'SELECT pg_reload_conf()');
is(value_of($node, NODE_OF_ID), '0|1', 'the first id after a reload');
is($early->value(NODE_OF_ID), '0|1',
	'a session that was there before CREATE EXTENSION issues ids');
($rc, $out, $err) = $node->psql('postgres',
	'DROP EXTENSION snowflake; CREATE EXTENSION snowflake');
is($err, '', 'CREATE EXTENSION raises no NOTICE if the worker id is set');
$early->quit;
value_of($node, q{
CREATE ROLE plain LOGIN;
CREATE TABLE log (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE log_first PARTITION OF log FOR VALUES FROM (0) TO (4194304);
ALTER TABLE log OWNER TO plain; ALTER TABLE log_first OWNER TO plain;
CREATE TABLE many AS SELECT generate_series(1, 20000) AS n; ANALYZE many;
GRANT SELECT ON many TO plain;
CREATE FUNCTION wrapped() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN snowflake_nextval(); END';
CREATE FUNCTION seconds(id bigint) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
 AS 'BEGIN RETURN extract(epoch FROM public.snowflake_timestamp(id)); END'});

# ----- before the first id -----

restart_unfixed();
is( value_of($node,
		'SELECT datacenter_id, worker_id, high_water_mark, pending_restart FROM snowflake_node()'),
	'0|||',
	'before the first id, snowflake_node() shows the configuration');
is(value_of($node, 'SELECT ids_issued, last_id FROM snowflake_stat()'),
	'0|', 'before the first id, snowflake_stat() has counted none');
my ($state, $message, $hint) = sqlstate_of($node, NODE_OF_ID);
is($state, 'F0000', 'without a worker id there is no id');
like($hint, qr/reload the configuration/, 'the hint says that a reload is enough');
my $plan = "EXPLAIN (VERBOSE) SELECT snowflake_min_id('2030-01-01 00:00+00')";
like(value_of($node, $plan), qr/Output: snowflake_min_id/, 'before the first id, the planner computes no bound');

# ----- the node is fixed -----

reload_with('snowflake.worker_id = 2', 'snowflake.datacenter_id = 3');
is(value_of($node, NODE_OF_ID), '3|2', 'a refused id has fixed no node');
like(value_of($node, $plan), qr/Output: '\d+'::bigint/,
	'after the first id, the planner computes bounds');
is(value_of($node, PENDING), '', 'snowflake_node() shows no pending change while sessions read what is fixed');
my $session = SnowflakeSession->new($node);
is($session->value(NODE_OF_ID), '3|2', 'another session issues ids of the fixed node');
reload_with(
	'snowflake.worker_id = 4',
	'snowflake.datacenter_id = 5',
	"snowflake.layout = '42/5/5/11'",
	"snowflake.epoch = '2012-01-01 00:00+00'");
($rc, $out, $err) =
  $node->psql('postgres', NODE_OF_ID . '; ' . NODE_OF_ID . '; ' . PENDING);
is( $out,
	"3|2\n3|2\nsnowflake.datacenter_id = 5, snowflake.worker_id = 4, snowflake.layout = 42/5/5/11, snowflake.epoch = 2012-01-01 00:00+00",
	'a session with other parameters goes by the fixed node, and snowflake_node() shows both');
is($err, '', 'a session with other parameters is not warned');
is( value_of($node, "SET timezone = 'UTC'; SELECT snowflake_format(0)"),
	'2010-11-04 01:42:54.657, #0, @(0,0)',
	'a session that issues no id decodes by the fixed layout and epoch');
is($session->value(NODE_OF_ID), '3|2', 'a reload does not change the node of a session');
$session->quit;
($state, $message) = sqlstate_of($node, 'SELECT snowflake_encode(now(), 0, 99, 0)');
is($state, '22003', 'a value that does not fit the fixed layout is refused');
reload_with('snowflake.worker_id = 6');
$node->restart;
is(value_of($node, NODE_OF_ID), '0|6', 'a restart changes the node');

# A layout by which ids could come again is refused, and not fixed.
restart_unfixed();
reload_with('snowflake.worker_id = 6', "snowflake.layout = '42/5/5/11'",
	"snowflake.epoch = '2026-01-01 00:00+00'");
is((sqlstate_of($node, NODE_OF_ID))[0],
	'22023', 'a layout by which ids could come again is refused');
reload_with('snowflake.worker_id = 6');
is(value_of($node, NODE_OF_ID), '0|6',
	'after a refused layout, ids of the former layout need no restart');

# ----- values in the wrong place -----

# The first one is the server's own value.
my @server = ('snowflake.worker_id = 7', "snowflake.epoch = '2010-11-04 01:42:54.657+00'");
for my $case (
	[ 'database', 'ALTER DATABASE postgres', 'snowflake.epoch', '2010-11-04 01:42:54.657+00' ],
	[ 'global', 'ALTER ROLE ALL', 'snowflake.worker_id', 9 ],
	[ 'user', 'ALTER ROLE plain', 'snowflake.clock_policy', 'advance' ],
	[ 'client', 'PGOPTIONS', 'snowflake.layout', '41/5/5/12' ])
{
	my ($source, $where, $name, $value) = @$case;
	my $put = sub {
		return $ENV{PGOPTIONS} = "-c $name=$value" if $source eq 'client';
		return value_of($node, "$where SET $name = '$value'");
	};
	local $ENV{PGOPTIONS} = '';

	restart_unfixed();
	reload_with(@server);
	$put->();
	for my $sql (@dependents)
	{
		my (undef, $err) = run_as('plain', $sql);
		like($err,
			qr/ERROR:  55P02: parameter "$name" can be set for the whole server only\nDETAIL:  It is set to "\Q$value\E"; source: $source\.\nHINT:  Remove it there/,
			"$where $name, no fixed node: $sql");
	}
	like((run_as('plain', "SELECT snowflake_timestamp(0, '2015-01-01 00:00+00')"))[0],
		qr/^201[45]/, "$where $name: decoding by an explicit epoch goes on");
	$ENV{PGOPTIONS} = '';
	value_of($node, "$where RESET $name") unless $source eq 'client';

	is((run_as('plain', NODE_OF_ID))[0], '0|7', "$where $name: without the value ids are issued");
	$put->();
	my ($out, $err, $warnings) = run_as('plain', @dependents);
	unlike($err, qr/ERROR/, "$where $name, fixed node: everything goes on");
	is($warnings, '', "$where $name, fixed node: no warning");
	like($out, qr/^0\|7$/m, "$where $name, fixed node: the node is the fixed one");
	$ENV{PGOPTIONS} = '';
	value_of($node, "$where RESET $name") unless $source eq 'client';
}
restart_unfixed();
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 1');
{
	my $client = SnowflakeSession->new($node);

	$client->rows('SET snowflake.datacenter_id = 9');
	$client->rows('SET snowflake.nonsense = 9');
	is($client->value(NODE_OF_ID), '1|7', "a session's SET before its first id has no effect");
	is($client->state_of('SET snowflake.datacenter_id = 9'), '55P02', 'a session cannot SET the datacenter after its first id');
	$client->quit;
}

# No user but a superuser is shown the registry's connection string.
restart_unfixed();
reload_with(@server);
value_of($node, "ALTER ROLE plain SET snowflake.registry = 'password=secret'");
($out, $err) = run_as('plain', 'SET client_min_messages = error', NODE_OF_ID);
like($err, qr/55P02: parameter "snowflake.registry"/, 'a registry that is set for a role is refused');
unlike($err, qr/secret/, 'a registry that is set for a role is not shown');
value_of($node, "ALTER ROLE plain RESET snowflake.registry");
reload_with(@server, "snowflake.registry = 'secret'");
($out, $err) = run_as('plain', 'SET client_min_messages = error', 'SELECT snowflake_timestamp(1)');
like($err, qr/22023: invalid value for parameter "snowflake.registry"\n.*HINT:  It is a connection string/s, 'a bad registry is refused');
unlike($err, qr/secret/, 'a bad registry is not shown');

# ----- typos -----

# One session has loaded the library before the reload, one has not, and one
# begins after the reload.
for my $case (
	[ 'snowflake.datacenter_id', 'two', '22023' ],
	[ 'snowflake.layout', '41/5', '22023' ],
	[ 'snowflake.epoch', '2010-11-04', '22023' ],
	[ 'snowflake.clock_policy', 'maybe', '22023' ],
	[ 'snowflake.datacentre_id', '2', '42704' ])
{
	my ($name, $value, $expected) = @$case;
	my $message = qr/parameter "$name"/;

	restart_unfixed();
	reload_with('snowflake.worker_id = 7');
	my %session = map { $_ => plain_session() } qw(loaded present);
	is($session{loaded}->state_of('SELECT snowflake_timestamp(1)'), '', 'a session decodes before the typo');
	reload_with('snowflake.worker_id = 7', "$name = '$value'");
	$session{new} = plain_session();
	refuses($session{$_}, $expected, $message, "$name = $value, no fixed node, $_ session")
	  for sort keys %session;
	($out, $err) = run_as('plain', $dependents[1]);
	like($err, qr/ERROR: .*"\Q$value\E"/s, "$name = $value: the error has the value");
	like($err, qr/source: configuration file/, "$name = $value: the error says where the value is set");

	reload_with('snowflake.worker_id = 7');
	is(value_of($node, NODE_OF_ID), '0|7', "$name = $value: ids after a correction");
	reload_with('snowflake.worker_id = 7', "$name = '$value'");
	$session{late} = plain_session();
	goes_on($session{$_}, "$name = $value, fixed node, $_ session") for sort keys %session;
	is((run_as('plain', @dependents))[2], '', "$name = $value, fixed node: no warning");
	$_->quit for values %session;
}

# A reload takes the new values beside a bad one, and keeps the former one of that.
restart_unfixed();
reload_with('snowflake.worker_id = 1', 'snowflake.datacenter_id = 2');
$session = plain_session();
is($session->value('SELECT datacenter_id, worker_id FROM snowflake_node()'), '2|1', 'a session reads the configuration');
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 3x');
refuses($session, '22023', qr/parameter "snowflake.datacenter_id"/, 'a reload that is taken by half');
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 3');
is($session->value(NODE_OF_ID), '3|7', 'after a correction the session issues ids');
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 3x');
like($session->value(PENDING), qr/invalid value for parameter "snowflake.datacenter_id"/,
	'pending_restart says what a session cannot read');
$session->quit;

# Names have no case.
restart_unfixed();
reload_with('snowflake.worker_id = 7', 'Snowflake.Datacenter_ID = 3');
{
	local $ENV{PGOPTIONS} = '-c snowflake.datacenter_id=9';
	is((sqlstate_of($node, NODE_OF_ID))[0], '55P02', "another spelling of the name hides no client's value");
}
is(value_of($node, NODE_OF_ID), '3|7', 'a name in another spelling counts');

# A transaction that loads the library and aborts.
restart_unfixed();
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 3');
is(value_of($node, "BEGIN; LOAD 'snowflake'; ROLLBACK; " . NODE_OF_ID), '3|7',
	'parameters stay as they are when the transaction that loads the library aborts');

# ----- a registry -----

restart_unfixed();
for my $settings (
	[ 'snowflake.worker_id_source = registry', "snowflake.registry = 'host=nowhere'" ],
	[ 'snowflake.worker_id_source = registry' ],
	[ 'snowflake.worker_id = 1', "snowflake.registry = 'host=nowhere'" ])
{
	reload_with(@$settings);
	($state, $message, $hint) = sqlstate_of($node, NODE_OF_ID);
	is($state, '55000', "@$settings: no id");
	like($hint, qr/shared_preload_libraries/, "@$settings: the hint names the preload");
}

# ----- the first ids after a start, asked for at once -----

# Half of the sessions have loaded the library before the reload, and cannot read
# the new parameters before their statement ends.
for my $round (1 .. 3)
{
	restart_unfixed();
	reload_with('snowflake.worker_id = 10');
	my $gate = SnowflakeSession->new($node);
	$gate->rows('SELECT pg_advisory_lock(1)');
	my @sessions;
	my $start_session = sub {
		push @sessions, SnowflakeSession->new($node);
		$sessions[-1]->rows("LOAD 'snowflake'");
		$sessions[-1]->ask(
			'SELECT id, snowflake_worker_id(id) FROM (SELECT pg_advisory_xact_lock_shared(1) OFFSET 0) AS g, LATERAL (SELECT snowflake_nextval() AS id FROM generate_series(1, 1000)) AS i');
	};
	$start_session->() for 1 .. 6;
	reload_with('snowflake.worker_id = 11');
	$start_session->() for 1 .. 6;
	$node->poll_query_until('postgres',
		"SELECT count(*) = 12 FROM pg_stat_activity WHERE wait_event = 'advisory'");
	$gate->rows('SELECT pg_advisory_unlock(1)');
	my @rows = map { my (undef, @ids) = $_->answer; @ids } @sessions;
	is(scalar(uniq @rows), 12000, "round $round: every session gets its ids, and none comes twice");
	like(join(' ', uniq map { s/.*\|//r } @rows), qr/^1[01]$/, "round $round: all ids are of one node");
	$_->quit for @sessions, $gate;
}

# ----- parallel workers -----

my $ids_of_leader = q{
SELECT count(DISTINCT id), min(snowflake_datacenter_id(id)), max(snowflake_datacenter_id(id)), min(snowflake_worker_id(id))
  FROM (SELECT snowflake_nextval() AS id FROM many) AS i};
restart_unfixed();
reload_with('snowflake.worker_id = 12', 'snowflake.datacenter_id = 2');
is(value_of($node, "$parallel; $ids_of_leader"),
	'20000|2|2|12', 'the first ids after a start are those of a query that could be parallel');
for my $load ('SELECT', "LOAD 'snowflake'")
{
	my ($out, $err) = run_as('plain', $load, $parallel, 'SET parallel_leader_participation = off', 'SELECT count(wrapped()) FROM many');
	like($err, qr/ERROR:  25000: snowflake ids cannot be issued in a parallel worker\nHINT:  Label the function .* PARALLEL RESTRICTED/,
		"$load: a parallel worker issues no id");
}

# ----- a crash, after which the node is fixed anew -----

configure($node, 'snowflake.worker_id = 13', 'snowflake.datacenter_id = 2');
$node->reload;
my $last = value_of($node, 'SELECT max(id) FROM snowflake_nextvals(5000) AS id');
$session = SnowflakeSession->new($node);
$session->rows(NODE_OF_ID);
kill 'KILL', $session->{pid};
ok($node->poll_query_until('postgres', "SELECT pg_postmaster_start_time() IS NOT NULL AND $session->{pid} NOT IN (SELECT pid FROM pg_stat_activity)"),
	'the server comes back after a crash');
my $next = first_id($node);
cmp_ok($next, '>', $last, 'ids go on after a crash');
is(worker_id_of($next), 13, 'the first id after a crash fixes the node anew');
is(value_of($node, 'SELECT ids_issued < 100 FROM snowflake_stat()'),
	't', 'a crash resets the counters');

# ----- a library that is replaced -----

# A session of a newer library finds the older one's shared memory, which has
# another version: the test puts the version there.  At its promised place is the
# fixed node, by which both libraries decode.
$node->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
restart_unfixed();
reload_with('snowflake.worker_id = 14', 'snowflake.datacenter_id = 2');
my $decode = 'SELECT count(seconds(n)), min(seconds(n)) FROM many';
my $decoded = '20000|1288834974.657000';
my $older = SnowflakeSession->new($node);
is($older->value(NODE_OF_ID), '2|14', 'a session of the older library issues an id');
reload_with('snowflake.worker_id = 15', "snowflake.epoch = '2020-01-01 00:00+00'");
my @segments = grep { substr(slurp_file($_), 0, 20) eq pack 'l x4 C x3 l2', 1, 1, 2, 14 }
  glob $node->data_dir . '/pg_dynshmem/mmap.*';
is(scalar(@segments), 1, 'the version and the fixed node are at their promised places');
open my $segment, '+<:raw', $segments[0] or die "$segments[0]: $!";
print $segment pack 'l', 2;
close $segment or die "$segments[0]: $!";
my $newer = SnowflakeSession->new($node);
for my $case ([ 'older', $older ], [ 'newer', $newer ])
{
	my ($which, $session) = @$case;
	$session->rows($_) for split /;/, "$parallel; SET parallel_leader_participation = off";
	is($session->value('SELECT count(*) FROM many'), 20000, "$which library: a parallel query");
	is($session->value($decode), $decoded, "$which library: parallel workers decode by the fixed node");
	is($session->value('SELECT datacenter_id, worker_id FROM snowflake_node()'), '2|14',
		"$which library: snowflake_node() shows the fixed node");
}
is($older->value(NODE_OF_ID), '2|14', 'older library: ids go on');
is($older->value('SELECT ids_issued FROM snowflake_stat()'), 2, 'older library: counters go on');
for my $sql (NODE_OF_ID, 'SELECT snowflake_horizon()', 'SELECT * FROM snowflake_stat()',
	'SELECT * FROM snowflake_stat_backend()', 'SELECT snowflake_stat_reset()')
{
	$newer->ask($sql);
	my $outcome = $newer->outcome;
	is($outcome->{state}, '55000', "newer library: $sql is refused");
	like($outcome->{hint}, qr/^Restart the server/, "newer library: the hint says what to do");
}
$_->quit for $older, $newer;
configure($node, 'snowflake.worker_id = 14');
$node->restart;
is(value_of($node, NODE_OF_ID), '0|14', 'a restart ends it');

# ----- another layout, whose first use is in a parallel operation -----

$node->stop;
unlink mark_file($node);
my @other = ('snowflake.worker_id = 16', "snowflake.layout = '30/10/10/13\@1s'", "snowflake.epoch = '2020-01-01 00:00+00'");
configure($node, @other);
$node->start;
value_of($node, q{
CREATE TABLE ids AS SELECT snowflake_min_id('2021-01-01 00:00+00') + n AS id FROM many;
ANALYZE ids; GRANT SELECT ON ids TO plain});
my $by_workers = 'SELECT count(*) FROM ids WHERE seconds(id) + 0 = 1609459200';
for my $first ('CREATE INDEX ON ids (seconds(id)); SET enable_seqscan = off; SELECT count(*) FROM ids WHERE seconds(id) = 1609459200',
	$by_workers)
{
	my $case = 'first use in parallel, ' . substr $first, 0, 6;
	my $session = SnowflakeSession->new($node);

	$session->rows($_) for split /;/, "$parallel; SET parallel_leader_participation = off";
	my @counts = map { $session->rows($_) } split /;/, $first;
	is($counts[-1], 20000, "$case: workers decode by the server's layout and epoch");
	is($session->value('SELECT snowflake_timestamp(min(id)) = \'2021-01-01 00:00+00\' FROM ids'),
		't', "$case: the leader does, too");
	$session->quit;
}

# PostgreSQL hands a leader's values to its workers: the default in place of a bad
# value, though a reload has corrected the value since; and what the leader has
# SET, though the library is not loaded yet.
$node->restart;
value_of($node, q{
CREATE FUNCTION run(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result record;
BEGIN
    PERFORM pg_advisory_lock_shared(2);
    EXECUTE sql INTO result;
    RETURN result::text;
END $$});
reload_with(@other, 'snowflake.epoch = nonsense');
$session = SnowflakeSession->new($node);
$session->rows($_) for split /;/, "LOAD 'snowflake'; $parallel; SET parallel_leader_participation = off";
is($session->state_of($by_workers), '22023', 'workers refuse a bad value');
my $gate = SnowflakeSession->new($node);
$gate->rows('SELECT pg_advisory_lock(2)');
$session->ask("SELECT run(\$\$$by_workers\$\$)");
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'");
reload_with(@other);
$gate->quit;
my $outcome = $session->outcome;
is($outcome->{state}, '55P02', 'workers of a leader that has read a bad value do not decode by the default');
like($outcome->{message}, qr/"snowflake.epoch" could not be read in a parallel operation/, 'the message has the parameter');
like($outcome->{hint}, qr/^Connect again/, 'the hint says what to do');
is($session->state_of('SELECT snowflake_timestamp(1)'), '', 'the leader decodes after the reload');
$session->quit;
$session = SnowflakeSession->new($node);
$session->rows($_) for split /;/, "SET snowflake.layout = '41/5/5/12'; SET snowflake.datacenter_id = 9; $parallel";
is($session->state_of($by_workers), '55P02', "a leader's SET is no worker's configuration");
$session->quit;
value_of($node, NODE_OF_ID);
($out, $err) = run_as('plain', "SET snowflake.layout = '41/5/5/12'", $parallel, $by_workers);
is($out, 20000, 'with a fixed node, workers decode whatever the leader has SET');

$node->stop;

done_testing();
