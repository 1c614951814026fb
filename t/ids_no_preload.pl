# PostgreSQL 17 and later without preload: three statements, and a running server
# issues ids.  The first session that issues an id fixes the node, and every
# session goes by that node until the next start, whatever it has read.  No value
# that is wrong or in the wrong place counts, and no default takes its place.
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
	"restart_after_crash = on\nfsync = off\ninclude 'case.conf'");
configure($node);
$node->start;

use constant NODE_OF_ID =>
  'SELECT datacenter_id, worker_id FROM snowflake_decode(snowflake_nextval())';
use constant PENDING => 'SELECT pending_restart FROM snowflake_node';

# Replaces the server's parameters, and waits until new sessions have them.
sub reload_with
{
	my (@settings) = @_;
	my $offset = -s $node->logfile;

	configure($node, @settings);
	$node->reload;
	logs($node, $offset, qr/received SIGHUP/, "reload with: @settings");
	return;
}

# Restarts the server without a worker id, so that no node is fixed.
sub restart_unfixed
{
	configure($node);
	$node->restart;
	return;
}

# ----- three statements -----

my $early = SnowflakeSession->new($node);
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION snowflake');
like($err, qr/NOTICE:  .* until snowflake.worker_id is set\nHINT:  ALTER SYSTEM/,
	'CREATE EXTENSION says which statement comes next');
value_of($node, "ALTER SYSTEM SET snowflake.worker_id = 1");
value_of($node, 'SELECT pg_reload_conf()');
is(value_of($node, NODE_OF_ID), '0|1', 'the first id after a reload');
is($early->value(NODE_OF_ID), '0|1',
	'a session that was there before CREATE EXTENSION issues ids');
($rc, $out, $err) = $node->psql('postgres',
	'DROP EXTENSION snowflake; CREATE EXTENSION snowflake');
is($err, '', 'CREATE EXTENSION raises no NOTICE if the worker id is set');
$early->quit;
value_of($node, 'ALTER SYSTEM RESET ALL');

# ----- before the first id -----

restart_unfixed();
is( value_of($node,
		'SELECT datacenter_id, worker_id, high_water_mark, pending_restart FROM snowflake_node'),
	'0|||',
	'before the first id, snowflake_node shows the configuration');
is(value_of($node, 'SELECT ids_issued, last_id FROM snowflake_stat'),
	'0|', 'before the first id, snowflake_stat has counted none');
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
is(value_of($node, PENDING), '', 'snowflake_node shows no pending change while sessions read what is fixed');
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
	'a session with other parameters goes by the fixed node, and snowflake_node shows both');
is(scalar(() = $err =~ /WARNING:  the node of snowflake ids cannot be changed without restarting/g),
	1, 'a session with other parameters is warned once');
is( value_of($node,
		'SELECT snowflake_worker_id(snowflake_currval()), snowflake_format(0) FROM snowflake_nextval()'),
	'2|2010-11-04 01:42:54.657, #0, @(0,0)',
	'a session with other parameters decodes by the fixed layout and epoch');
is( value_of($node, "SET timezone = 'UTC'; SELECT snowflake_format(0)"),
	'2010-11-04 01:42:54.657, #0, @(0,0)',
	'a session that issues no id decodes by the fixed layout and epoch');
is($session->value(NODE_OF_ID), '3|2', 'a reload does not change the node of a session');
$session->quit;
($state, $message) = sqlstate_of($node, 'SELECT snowflake_encode(now(), 0, 99, 0)');
is($state, '22003', 'a value that does not fit the fixed layout is refused');
reload_with('snowflake.worker_id = 2', 'snowflake.datacenter_id = 3');
($rc, $out, $err) = $node->psql('postgres', NODE_OF_ID . '; ' . PENDING);
is("$out$err", "3|2\n", 'with the former values there is no warning');
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

restart_unfixed();
reload_with('snowflake.worker_id = 7', 'snowflake.datacenter_id = 1');
for my $case (
	[ 'ALTER DATABASE postgres', 'snowflake.datacenter_id = 9' ],
	[ 'ALTER ROLE ALL', 'snowflake.worker_id = 9' ],
	[ 'ALTER DATABASE postgres', 'snowflake.clock_policy = advance' ])
{
	my ($where, $setting) = @$case;
	my ($name) = split / /, $setting;

	value_of($node, "$where SET $setting");
	($state, $message) = sqlstate_of($node, NODE_OF_ID);
	is($state, '55P02', "$where SET $setting: no id");
	like($message, qr/"$name"/, "$where SET $setting: the message has the parameter's name");
	is(value_of($node, 'SELECT snowflake_worker_id(910499571847892992)'),
		25, "$where SET $setting: ids are decoded");
	value_of($node, "$where RESET $name");
}
{
	local $ENV{PGOPTIONS} = '-c snowflake.datacenter_id=9';
	is((sqlstate_of($node, NODE_OF_ID))[0], '55P02', 'a value of a client: no id');
}
{
	my $client = SnowflakeSession->new($node);

	$client->rows('SET snowflake.datacenter_id = 9');
	$client->rows('SET snowflake.nonsense = 9');
	is($client->value(NODE_OF_ID), '1|7', "a session's SET before its first id has no effect");
	is($client->state_of('SET snowflake.datacenter_id = 9'), '55P02', 'a session cannot SET the datacenter after its first id');
	$client->quit;
}

# ----- a registry -----

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

value_of($node,
	'CREATE TABLE many AS SELECT generate_series(1, 20000) AS n; ANALYZE many');
my $parallel = q{
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0; SET parallel_leader_participation = off};
my $ids_of_workers = q{
SELECT count(DISTINCT id), min(snowflake_datacenter_id(id)), max(snowflake_datacenter_id(id)), min(snowflake_worker_id(id))
  FROM (SELECT snowflake_nextval() AS id FROM many) AS i};
restart_unfixed();
reload_with('snowflake.worker_id = 12', 'snowflake.datacenter_id = 2');
like(value_of($node, "$parallel; EXPLAIN $ids_of_workers"),
	qr/Parallel Seq Scan/, 'the ids are issued by parallel workers');
is(value_of($node, "$parallel; $ids_of_workers"),
	'20000|2|2|12', 'the first ids after a start are those of parallel workers');

# A leader that has not loaded the library cannot end the hold of its workers on
# the horizon.  The planner does not look into a function in PL/pgSQL, so only
# the workers load the library.
value_of($node,
	q{CREATE FUNCTION wrapped() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN snowflake_nextval(); END'});
my $by_wrapper = 'SELECT count(wrapped()) FROM many';
($rc, $out, $err) =
  $node->psql('postgres', "\\set VERBOSITY verbose\n$parallel; $by_wrapper");
like($err,
	qr/ERROR:  55000: cannot issue .* because its session has not loaded .*\n.*HINT:  Execute LOAD 'snowflake'/,
	'workers of a leader that has not loaded the library issue no ids');
is(value_of($node, "LOAD 'snowflake'; $parallel; $by_wrapper"),
	20000, 'workers of a leader that has loaded the library issue ids');

# PostgreSQL puts the default in place of a bad value.  If a reload corrects the
# value while the leader's statement runs, the leader still has the default, and
# hands it to its workers.
value_of($node, q{
CREATE FUNCTION of_workers(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result record;
BEGIN
    PERFORM pg_advisory_lock_shared(2);
    EXECUTE sql INTO result;
    RETURN result::text;
END $$});
restart_unfixed();
reload_with('snowflake.worker_id = 12', 'snowflake.datacenter_id = two');
my $gate = SnowflakeSession->new($node);
$session = SnowflakeSession->new($node);
$session->rows("LOAD 'snowflake'");
$session->rows($_) for split /;/, $parallel;
is($session->state_of($ids_of_workers), '22023', 'workers refuse a bad value as a leader does');
$gate->rows('SELECT pg_advisory_lock(2)');
$session->ask("SELECT of_workers(\$\$$ids_of_workers\$\$)");
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'");
reload_with('snowflake.worker_id = 12', 'snowflake.datacenter_id = 2');
$gate->quit;
is(join(' ', $session->answer), ' (20000,2,2,12)',
	'workers of a leader that has read a bad value go by the corrected value');
is($session->state_of(NODE_OF_ID), '22023',
	'the leader refuses ids until its session ends');
$session->quit;

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
is(value_of($node, 'SELECT ids_issued < 100 FROM snowflake_stat'),
	't', 'a crash resets the counters');
$node->stop;

done_testing();
