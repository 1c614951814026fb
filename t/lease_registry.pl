# The registry by itself, asked in SQL by a role that has only what allow() grants.
# No object of the role changes a claim; over restarts and from a dump a worker id
# has one holder; the owner of a database can make a registry; and the registry
# serves 200 servers at once.  sql/registry.sql has the rules of claims.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('registry');
my $tmp = PostgreSQL::Test::Utils::tempdir();
my @as_server = (extra_params => [ '-U', 'server' ]);
my @as_dba = (extra_params => [ '-U', 'dba' ]);

$node->init;
$node->append_conf('postgresql.conf', 'max_connections = 130');
$node->start;
$node->safe_psql('postgres',
	'CREATE ROLE server LOGIN; CREATE ROLE outsider LOGIN; CREATE ROLE dba LOGIN');

# ask() calls claim() as a server does; any role may call ask().  "last" is the
# last lease, as "worker_id incarnation", and "fence" the fence of the lease that
# is held, as an interval from now.  The answer is the worker id or the refusal.
my $asking = <<'SQL';
CREATE FUNCTION ask(holder text, next_incarnation bigint, last text DEFAULT NULL, fence interval DEFAULT NULL)
RETURNS text
LANGUAGE sql AS $$
    SELECT coalesce(a.worker_id::text, a.refusal) FROM snowflake_registry.claim(
        layout => '41/0/16/6', epoch => '2020-01-01 00:00+00', datacenter_id => 0, wanted_worker_id => NULL,
        holder => holder, name => '', begins_by => clock_timestamp(),
        last_worker_id => split_part(last, ' ', 1)::integer, incarnation => split_part(last, ' ', 2)::bigint,
        held_fence => clock_timestamp() + fence, next_incarnation => next_incarnation) AS a $$;
GRANT EXECUTE ON FUNCTION ask TO PUBLIC;
SQL
my $configure = q{SELECT snowflake_registry.configure('60 s', '5 s', '41/0/16/6', '2020-01-01 00:00+00'), snowflake_registry.allow('server')};
my $reopen = 'UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp()';

# Sessions of the registry's owner and of a server.
my ($owner, $server);

sub connect_all
{
	$owner = SnowflakeSession->new($node);
	$server = SnowflakeSession->new($node);
	$server->rows('SET SESSION AUTHORIZATION server');
	return;
}

sub ask
{
	my ($session, $holder, @claim) = @_;
	return $session->value('SELECT ask(' . join(', ', map { "'$_'" } $holder, @claim) . ')');
}

$node->safe_psql('postgres', "CREATE EXTENSION snowflake_registry; $asking $configure; $reopen");
connect_all();

#
# What a server's session can do
#
$node->safe_psql('postgres', 'CREATE SCHEMA attic AUTHORIZATION server');
$server->rows($_)
  for (
	'CREATE TEMP TABLE setting (trap integer)', 'CREATE TEMP TABLE node (trap integer)',
	'CREATE TEMP TABLE pg_database (oid oid, datname name)', 'CREATE TEMP TABLE ran (n integer)',
	q{CREATE FUNCTION attic.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO pg_temp.ran VALUES (1); RETURN 'infinity'; END $f$},
	q{CREATE FUNCTION attic.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO pg_temp.ran VALUES (1); RETURN true; END $f$},
	'CREATE OPERATOR attic.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = attic.later)',
	'CREATE OPERATOR attic.>= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = attic.later)',
	q{SELECT set_config('search_path', 'attic, pg_temp, pg_catalog, public', false)},
	'SET synchronous_commit = off');
is( $server->value(
		q{SELECT worker_id || ' ' || (fence < pg_catalog.now() + interval '75 s') FROM snowflake_registry.claim('41/0/16/6', '2020-01-01 00:00+00', 0, NULL, 'trapper', '', pg_catalog.now(), NULL, NULL, NULL, 1)}),
	'0 true', q{a claim uses no table, function or operator of the caller's search_path});
is($server->value('SELECT count(*) FROM pg_temp.ran'), 0, q{a claim runs no function of the caller's schemas});
$server->rows(q{SELECT set_config('search_path', 'public', false)});

# An open transaction keeps other servers waiting, for as long as lock_timeout.
my $other = SnowflakeSession->new($node);
$other->rows('BEGIN');
is(ask($other, 'holdup', 1), 1, 'a claim in an open transaction gets a worker id');
is($server->state_of(q{SELECT ask('waiter', 1)}), '55P03', 'another claim waits, and fails');
$other->rows('ROLLBACK');
is(ask($server, 'waiter', 1), 1, 'after the ROLLBACK the worker id is free');
$other->{psql}->quit;

#
# Restarts
#
is(ask($server, 'holder', 1), 2, 'a server gets a worker id');
$_->{psql}->quit for $server, $owner;
$node->restart;
connect_all();
is(ask($server, 'newcomer', 1), 'quarantine', 'after a restart a newcomer waits');
is(ask($server, 'holder', 2, '2 1', '30 s'), 2, 'after a restart a holder renews its lease');
$_->{psql}->quit for $server, $owner;
kill_hard($node);
$node->start;
connect_all();
is(ask($server, 'newer', 1), 'quarantine', 'after kill -9 a newcomer waits');
is(ask($server, 'holder', 3, '2 2', '30 s'), 2, 'after kill -9 a holder renews its lease');
is(ask($server, 'forgotten', 8, '9 7', '30 s'), 9, 'after kill -9 a holder is believed that the registry does not know');

is($owner->state_of('ALTER EXTENSION snowflake_registry SET SCHEMA attic'), '0A000', 'the registry cannot be moved to another schema');
$owner->rows($reopen);

#
# A dump
#
my $dump = "$tmp/dump.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump of a registry');
is(ask($server, 'holder', 4, '2 3', '60 s'), 2, 'a holder renews its lease after the dump');
is(ask($server, 'forgotten again', 1), 10, 'a server gets a worker id after the dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], 'psql restores the dump');

sub restored
{
	my ($arguments) = @_;
	return $node->safe_psql('restored', "SELECT ask($arguments)", @as_server);
}
is(restored(q{'newcomer', 9}), 'quarantine', 'the restored registry lets a newcomer wait');
is(restored(q{'forgotten again', 2, '10 1', '30 s'}), 10, 'a holder that the dump does not have keeps its worker id');
is(restored(q{'holder', 5, '2 4', '67 s'}), 2, 'a holder whose last renewal the dump does not have renews its lease');

#
# A role that owns only a database makes a registry there by running the script
# of the extension in psql
#
my $script = $node->safe_psql('postgres', q{SELECT setting || '/extension/snowflake_registry--1.0.sql' FROM pg_config WHERE name = 'SHAREDIR'});
my $functions = q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace};
$node->safe_psql('postgres', 'CREATE DATABASE managed OWNER dba');
$node->command_ok([ 'psql', '-Xq', '-1', '-U', 'dba', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('managed'), '-f', $script ],
	'psql runs the script of the extension');
$node->safe_psql('managed', "$asking $configure; $reopen", @as_dba);
is($node->safe_psql('managed', q{SELECT ask('a', 1)}, @as_server), 0, 'the registry of this database grants a worker id');
like(($node->psql('managed', 'SELECT * FROM snowflake_registry.node', @as_server))[2],
	qr/permission denied for table node/, 'a server may not read the tables of this registry');
is($node->safe_psql('managed', $functions), $owner->value($functions), 'the registry has the same functions as one that CREATE EXTENSION makes');
$node->safe_psql('managed', 'SET client_min_messages = warning; DROP SCHEMA snowflake_registry CASCADE', @as_dba);
$node->safe_psql('managed', 'CREATE EXTENSION snowflake_registry', @as_dba);
is( $node->safe_psql('managed', q{SELECT DISTINCT proowner::regrole FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace}),
	'dba', q{the owner of a database may create the extension});
$node->safe_psql('managed', 'DROP EXTENSION snowflake_registry', @as_dba);
$node->safe_psql('managed', 'GRANT CREATE ON DATABASE managed TO outsider; SET ROLE outsider; CREATE SCHEMA snowflake_registry; GRANT ALL ON SCHEMA snowflake_registry TO PUBLIC');
my $error;
IPC::Run::run([ 'psql', '-Xq', '-U', 'dba', '-d', $node->connstr('managed'), '-f', $script ], '>', \my $ignored, '2>', \$error);
like($error, qr/schema "snowflake_registry" already exists/, q{the script fails if another role has made the schema already});
is( $node->safe_psql('managed', q{SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'snowflake_registry'::regnamespace}),
	0, 'the script makes nothing in the schema of another role');

#
# 200 servers at once, where all 65,536 worker ids were leased before.  A server
# would claim again after lock_timeout, but pgbench does not.
#
my $read = q{SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relid = 'snowflake_registry.node'::regclass};

$owner->rows(q{ALTER FUNCTION snowflake_registry.claim SET lock_timeout = '3min'});
$owner->rows('DELETE FROM snowflake_registry.node');
$owner->rows(q{INSERT INTO snowflake_registry.node SELECT 0, w, 'g' || w, '', NULL, 1, now(), now(), now(), now(), CASE WHEN w % 50 = 0 THEN now() ELSE now() + interval '1 h' END, CASE WHEN w % 50 = 0 THEN now() END, true FROM generate_series(0, 65535) AS w});
$owner->rows('VACUUM ANALYZE snowflake_registry.node');
$_->{psql}->quit for $server, $owner;
connect_all();
my $before = $owner->value($read);
$node->pgbench(
	'--no-vacuum --client=100 --jobs=2 --transactions=2 --username=server',
	0, [], [],
	'100 sessions claim twice each',
	{ claim => q{
\set n random(1, 9000000000000000000)
SELECT ask('at once ' || :n, :n);
} });
cmp_ok($owner->value($read) - $before, '<', 200 * 100, '200 claims read few rows each');
is($owner->value(q{SELECT count(*) || ' ' || count(DISTINCT worker_id) FROM snowflake_registry.lease WHERE holder LIKE 'at once %' AND state = 'held'}),
	'200 200', '200 servers have 200 different worker ids');

$_->{psql}->quit for $server, $owner;
$node->stop;
done_testing();
