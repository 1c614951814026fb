# Which server gets a worker id from a registry, which server is refused, and
# what both say: two servers want one worker id, a datacenter is full,
# another server takes a lease over, the layout or the registry is another one,
# a role has no rights, a claim waits for another one, and many servers claim at
# once.  sql/registry.sql has the rules of claims.
use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $host_library = build_library('host');
my $unreachable =
  qr/^The registry cannot be reached, does not answer in time, or does not let this server in\.$/;

# ----- two servers want one worker id -----

sub one_worker_id
{
	my $registry = new_registry({});
	my $one = start_server(leasing_server('one', $registry, wants(17), 'log_min_messages = debug2'));
	my $client = new_client($one);
	my $other = start_server(leasing_server('other', $registry, wants(17), 'log_min_messages = debug2'));
	my $held = qr/^worker_id 17 of datacenter_id 0 is leased by one until \d{4}-/;

	refuses($other, $held, 'another server with the same configured worker id is refused');
	is_deeply(
		[ sqlstate_of($other, 'SELECT snowflake_nextval()') ],
		[
			'55000', 'snowflake ids cannot be issued because this server holds no lease on a worker id',
			q{Ids are issued as soon as the registry grants a lease; the server's log says more.}
		],
		'the refused call has a SQLSTATE, a message and a hint');
	is( value_of($other, 'SELECT worker_id IS NULL, lease_holder IS NULL, lease_expires_at IS NULL FROM snowflake_node()'),
		't|t|t', 'snowflake_node() shows no worker id and no lease');
	my $refusal = refusal_of($other);
	ok(wait_for(sub { refusal_of($other) ne $refusal }),
		'the reason of the refusal changes when the holder renews its lease');
	is(value_of($other, 'SELECT lease_failures > 1 AND lease_renewals = 0 FROM snowflake_stat()'),
		't', 'snowflake_stat() counts failures');
	is(scalar(() = logged($other) =~ /WARNING:  the registry has not granted a lease/g),
		1, 'the log has the first refusal only');

	my @claim = (
		qr/DEBUG:  connecting to host "[^"]+", 1 of 1 in snowflake.registry\n/,
		qr/DEBUG:  claiming snowflake worker_id 17 of datacenter_id 0 with incarnation -?\d+\n/);
	my $again = qr/DEBUG:  the registry has not granted a lease again: worker_id 17 of datacenter_id 0 is leased by one until/;
	like(logged($other), qr/$claim[0](?s:.*)$claim[1](?s:.*)$again/, 'at debug2 the log has a connection, its claim and the answer');

	my $derived = leasing_server('derived', $registry,
		'snowflake.worker_id_source = hostname');
	append_to_file("$directory/facts", "name pg-17\n");
	local %ENV = (%ENV, preload($host_library), HOST_FACTS => "$directory/facts");
	start_server($derived);
	refuses($derived, $held, 'a server that derived the same worker id from its host name is refused');
	is_undisturbed($client, 'the holder issues ids while others are refused');
	logs($one, 0, qr/DEBUG:  the registry grants snowflake worker_id 17 for \d+ us, with ids from \S+ \S+ to /, 'the log has the grant');
	logs($one, 0, qr/$claim[1].*DETAIL:  The lease held is on worker_id 17, with incarnation -?\d+ and fence /, 'the log has the next claim');
	$_->stop for $other, $one;
	is(worker_id_of(scalar first_id($derived)),
		17, 'the server that derived the worker id leases it when the others have stopped');
	return;
}

# ----- servers without a configured worker id -----

# A datacenter of two worker ids is full.
sub full_datacenter
{
	my $layout = '41/5/1/12';
	my $registry = new_registry({ layout => $layout });
	my @conf = ("snowflake.layout = '$layout'", 'snowflake.datacenter_id = 3');
	my ($one, $two, $three) =
	  map { leasing_server($_, $registry, @conf) } 'one', 'two', 'three';
	my $leases = q{SELECT string_agg(datacenter_id || ':' || name, ' ' ORDER BY 1) FROM
		(SELECT datacenter_id, name FROM snowflake_registry.lease ORDER BY 1, 2) AS l};

	first_id(start_server($_)) for $one, $two;
	start_server($three);
	refuses($three, qr/^All worker ids of datacenter_id 3 are leased, the first of them until \d{4}-/,
		'a third server in a datacenter of two worker ids is refused');
	my $elsewhere = leasing_server('elsewhere', $registry, @conf, 'snowflake.datacenter_id = 4');
	first_id(start_server($elsewhere));
	is(value_of($registry, $leases), '3:one 3:two 4:elsewhere',
		'a server of another datacenter leases a worker id there');
	my $free = worker_id_at($one);
	$one->stop;
	first_id($three);
	is(worker_id_at($three), $free, 'the third server gets the worker id that is given back, without a restart');

	# A server would go on with the lease on its page, but for the datacenter.
	$elsewhere->stop('immediate');
	$elsewhere->append_conf('postgresql.conf', 'snowflake.datacenter_id = 5');
	$registry->stop;
	start_server($elsewhere);
	wait_for(sub { value_of($elsewhere, 'SELECT lease_failures FROM snowflake_stat()') >= 2 });
	like(refusal_of($elsewhere), qr/^The registry cannot be reached/,
		'a server that has moved to another datacenter does not go on with its lease');
	return;
}

sub large_layout
{
	my $layout = '32/0/31/0@100ms';
	my $epoch = '2025-01-01 00:00+00';
	my $registry = new_registry({ layout => $layout, epoch => $epoch });
	my $server = start_server(leasing_server('server', $registry, wants(2147483647),
			"snowflake.layout = '$layout'", "snowflake.epoch = '$epoch'"));

	is(first_id($server) & 0x7FFFFFFF, 2147483647, 'the last of two billion worker ids is leased');
	return;
}

# ----- a server loses its lease -----

# If a machine is cloned with its memory, two servers have one identity.  The
# test makes the claim by which the clone renews the lease.
sub clone
{
	my $registry = new_registry({});
	my $server = start_server(leasing_server('server', $registry));
	my $session = SnowflakeSession->new($server);
	my $old = worker_id_of(scalar first_id($server));
	my @ids = $session->rows('SELECT * FROM snowflake_nextvals(1000)');

	# The clone's claim is to have the incarnation of a renewal.
	wait_for_grant($registry, $server);
	is( value_of($registry, q{
		SELECT c.worker_id FROM snowflake_registry.node AS n, snowflake_registry.setting AS s,
			snowflake_registry.claim(
				datacenter_id => n.datacenter_id, wanted_worker_id => NULL,
				holder => n.holder, name => n.name, next_incarnation => 7,
				begins_by => clock_timestamp(),
				layout => s.layout, epoch => s.epoch,
				last_worker_id => n.worker_id, incarnation => n.incarnation,
				held_fence => n.fence) AS c}),
		$old, 'the clone renews the lease');

	# The session goes on.  Calls fail only while the server has no worker id.
	ok( wait_for(sub {
			$session->ask('SELECT * FROM snowflake_nextvals(100)');
			my ($error, @more) = $session->answer;
			die "unexpected $error\n" unless $error =~ /^(55000)?$/;
			push @ids, @more;
			@more && worker_id_of($more[-1]) != $old }),
		'an open session of the server goes on with another worker id');
	is(scalar(grep { $ids[$_] <= $ids[ $_ - 1 ] } 1 .. $#ids), 0, 'the ids of the session increase');
	logs($server, 0, qr/LOG:  snowflake worker_id $old is no longer leased to this server\n.*DETAIL:  The registry does not know of this lease/,
		'the log says that the lease was lost');
	like(lease_row($registry, $old), qr/\|7\|/, 'the clone keeps the lease');
	return;
}

# A transaction holds the horizon while its server changes its lease.  The horizon
# before the first id of a new lease is above the ids of the lease before,
# although these have the same tick and a larger worker id.
sub next_horizon
{
	my %layout = (layout => '31/5/5/12@1s', epoch => '2020-01-01 00:00+00');
	my $registry = new_registry({%layout});
	my $server = leasing_server('server', $registry, map { "snowflake.$_ = '$layout{$_}'" } sort keys %layout);
	my $row = q{INSERT INTO snowflake_registry.node SELECT 0, %d, 'other', '', NULL, 1, now(), now(), now(), now(), now() + '%s', NULL, (SELECT quarantine FROM snowflake_registry.setting)};

	$registry->safe_psql('postgres', sprintf $row, 4, '1 h');
	start_server($server);
	first_id($server);
	is(worker_id_at($server), 5, 'the server leases worker id 5');
	my $session = SnowflakeSession->new($server);
	$session->rows('BEGIN');
	my $held = $session->value('SELECT snowflake_nextval()');
	my $before = value_of($server, 'SELECT snowflake_horizon()');
	$registry->safe_psql('postgres', sprintf($row, 3, '-1 s') . '; ' . sprintf($row, 31, '1 h'));

	# Early in a tick an id raises no mark beyond the tick.
	my $last = value_of($server, q{SELECT pg_sleep(1.05 - mod(extract(epoch FROM clock_timestamp()), 1)); SELECT snowflake_nextval()}) =~ s/.*\n//sr;
	$registry->safe_psql('postgres', q{UPDATE snowflake_registry.node SET holder = 'clone' WHERE worker_id = 5});
	ok(wait_for(sub { worker_id_at($server) eq '3' }), 'the server loses its lease, and leases worker id 3');
	my $horizon = value_of($server, 'SELECT snowflake_horizon()');
	cmp_ok($horizon, '>=', $before, 'the horizon does not go back');
	cmp_ok($horizon, '<=', $held, 'an open transaction of worker id 5 holds the horizon');
	$session->rows('COMMIT');
	cmp_ok(value_of($server, 'SELECT snowflake_horizon()'), '>', $last, 'the horizon is above the ids of worker id 5');
	return;
}

# A lease of the layout before is not resumed: other servers may go on by that
# layout, until their leases end.
sub another_layout
{
	my $registry = new_registry({ lease_duration => '12 s' });
	my $server = leasing_server('server', $registry, "include 'case.conf'");
	my $other = leasing_server('other', $registry);

	start_with_case($server);
	my $client = new_client(start_server($other));
	first_id($server);
	$server->stop('immediate');
	$registry->safe_psql('postgres', q{SELECT snowflake_registry.configure(layout => '41/4/6/12')});
	start_with_case($server, q{snowflake.layout = '41/4/6/12'});
	is((sqlstate_of($server, 'SELECT snowflake_nextval()'))[0], '22023', 'a server with another layout than its data claims no lease');
	wait_for(sub { (sqlstate_of($server, 'SELECT snowflake_change_layout()'))[0] eq '' });
	refuses($server, qr/^The registry is new, or may have forgotten leases/, 'a server with another layout waits');
	unlike(logged($server), qr/still leased/, 'the server does not resume its lease');
	logs($other, 0, qr/DETAIL:  The server's layout "41\/5\/5\/12" and epoch .* are not the registry's/,
		'a server with the layout before is not renewed');
	gets_errors($client, 'the ids of the layout before end');
	cmp_ok(scalar first_id($server, 90), '>', (ids_of($client))[-1], 'ids of the new layout are larger');
	return;
}

# ----- who may claim -----

sub start_with_case
{
	my ($node, @settings) = @_;

	configure($node, @settings);
	return start_server($node);
}

# Two registries may grant one worker id to two servers, so a server must not go
# on with the lease of another registry.
sub who_may_claim
{
	my $registry = new_registry({ lease_duration => '60 s' });
	my $password = 'password=Xyzzy.37';
	my $base = 'host=' . $registry->host . ' port=' . $registry->port;
	my $server = leasing_server('server', $registry, "include 'case.conf'");

	$registry->safe_psql('postgres', $_)
	  for 'CREATE DATABASE empty', 'CREATE DATABASE bare',
	  q{SET password_encryption = 'scram-sha-256'; CREATE ROLE leaser LOGIN PASSWORD 'Xyzzy.37'};
	make_registry($registry, database => 'apart');
	$registry->safe_psql('bare', 'CREATE EXTENSION snowflake_registry');
	$registry->safe_psql($_, q{SELECT snowflake_registry.allow('leaser')}) for 'bare', 'apart';
	my $hba = $registry->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "local all leaser scram-sha-256\n$rules");
	$registry->reload;

	start_with_case($server);
	my $last = first_id($server);
	my $answers = 'The registry answers with an error: ';
	for my $case (
		[ 'another registry, with no password', 'user=leaser dbname=apart', $unreachable, 'no password supplied' ],
		[
			'a role without rights', "user=leaser $password dbname=postgres",
			qr/^\Q$answers\Epermission denied for schema snowflake_registry\.$/,
			'permission denied for schema snowflake_registry'
		],
		[ 'a database that is not there', 'dbname=nowhere', $unreachable, 'database "nowhere" does not exist' ],
		[
			'a database without the extension', 'dbname=empty',
			qr/^\Q$answers\Eschema "snowflake_registry" does not exist\.$/,
			'schema "snowflake_registry" does not exist\.$'
		],
		[
			'a registry that is not configured', "user=leaser $password dbname=bare",
			qr/snowflake_registry\.configure\(\)/, 'snowflake_registry\.configure\(\)'
		])
	{
		my ($name, $connection, $reason, $cause) = @$case;
		my $offset = -s $server->logfile;

		$server->stop('immediate');
		start_with_case($server, "snowflake.registry = '$base $connection'");
		refuses($server, $reason, "$name: the reason for users");
		like(
			logged($server, $offset),
			qr/WARNING:  the registry has not granted a lease on a snowflake worker_id\n[^\n]*DETAIL:  [^\n]*(?:\n\t[^\n]*)*$cause/m,
			"$name: the log says why");
	}
	$server->stop('immediate');
	start_with_case($server);
	goes_on($server, $last, 'the server, with its first registry again');
	$server->stop;

	start_with_case($server, "snowflake.registry = '$base user=leaser $password dbname=apart'");
	like(first_id($server), qr/^\d+$/, 'a role that is allowed to claim gets a worker id for its server');
	$server->safe_psql('postgres', 'CREATE ROLE ordinary');
	my $settings = q{SELECT count(*) FROM pg_settings WHERE name = 'snowflake.registry'};
	is((sqlstate_of($server, 'SET ROLE ordinary; SHOW snowflake.registry'))[0],
		'42501', 'an ordinary user cannot show the registry');
	is(value_of($server, "SET ROLE ordinary; $settings"), '0', 'an ordinary user does not find the registry in pg_settings');
	like(value_of($server, 'SHOW snowflake.registry'), qr/\Q$password\E/, 'a superuser can show the registry');
	is(value_of($server, $settings), '1', 'a superuser finds the registry in pg_settings');
	$server->stop;
	is($registry->safe_psql('apart', 'SELECT state FROM snowflake_registry.lease'),
		'released', 'the role that is allowed to claim may also release the lease');
	unlike(logged($server), qr/Xyzzy/, 'the password is in no log');
	return;
}

# ----- claims in SQL -----

# A claim for a holder, as a server makes it.
sub claim
{
	my ($holder, $layout) = @_;
	return "SELECT worker_id FROM snowflake_registry.claim('$layout', '2020-01-01 00:00+00', 0, NULL, "
	  . "$holder, '', clock_timestamp(), NULL, NULL, NULL, 1)";
}

# A role that owns only a database makes a registry there, by CREATE EXTENSION or by
# running the script of the extension in psql.
sub registry_without_superuser
{
	my $registry = start_server(new_server('registry'));
	my ($as_dba, $as_member) = map { [ extra_params => [ '-U', $_ ] ] } 'dba', 'member';
	my $script = value_of($registry, q{SELECT setting || '/extension/snowflake_registry--1.0.sql' FROM pg_config WHERE name = 'SHAREDIR'});
	my $functions = q{SELECT count(*), string_agg(DISTINCT proowner::regrole::text, ' ') FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace};
	my $run = sub {
		my $errors;
		IPC::Run::run([ 'psql', '-Xq', '-U', 'dba', @_, '-d', $registry->connstr('managed'), '-f', $script ],
			'>', \my $ignored, '2>', \$errors);
		return $errors;
	};

	$registry->safe_psql('postgres', 'CREATE ROLE dba LOGIN; CREATE ROLE member LOGIN');
	$registry->safe_psql('postgres', 'CREATE DATABASE managed OWNER dba');
	$registry->safe_psql('managed', 'CREATE EXTENSION snowflake_registry', @$as_dba);
	my $made = $registry->safe_psql('managed', $functions);
	like($made, qr/^\d+\|dba$/, 'the owner of a database may create the extension');
	$registry->safe_psql('managed', 'DROP EXTENSION snowflake_registry', @$as_dba);

	is($run->('-1', '-v', 'ON_ERROR_STOP=1'), '', 'the owner of a database may run the script of the extension');
	is($registry->safe_psql('managed', $functions), $made, 'the script makes the same functions as CREATE EXTENSION');
	$registry->safe_psql('managed', q{
SELECT snowflake_registry.configure('60 s', '5 s', '41/0/16/6', '2020-01-01 00:00+00'), snowflake_registry.allow('member');
UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp()}, @$as_dba);
	is($registry->safe_psql('managed', claim(q{'a'}, '41/0/16/6'), @$as_member), 0, 'the registry of this database grants a worker id');
	like(($registry->psql('managed', 'SELECT * FROM snowflake_registry.node', @$as_member))[2],
		qr/permission denied for table node/, 'a server may not read the tables of this registry');

	$registry->safe_psql('managed', 'SET client_min_messages = warning; DROP SCHEMA snowflake_registry CASCADE', @$as_dba);
	$registry->safe_psql('managed', 'GRANT CREATE ON DATABASE managed TO member; SET ROLE member; CREATE SCHEMA snowflake_registry; GRANT ALL ON SCHEMA snowflake_registry TO PUBLIC');
	like($run->(), qr/schema "snowflake_registry" already exists/, q{the script fails if another role has made the schema already});
	is( $registry->safe_psql('managed', q{SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'snowflake_registry'::regnamespace}),
		0, 'the script makes nothing in the schema of another role');
	return;
}

# An open transaction keeps other servers waiting, for as long as lock_timeout.  100
# sessions then claim at once, where all 65,536 worker ids were leased before.
# There a server would claim again after lock_timeout, but pgbench does not.
sub many_claims
{
	my $layout = '41/0/16/6';
	my $registry = new_server('registry');
	my $read = q{SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relid = 'snowflake_registry.node'::regclass};

	$registry->append_conf('postgresql.conf', 'max_connections = 130');
	start_server($registry);
	make_registry($registry, layout => $layout, epoch => '2020-01-01 00:00+00');
	my ($one, $other) = map { SnowflakeSession->new($registry) } 1, 2;
	$one->rows('BEGIN');
	is($one->value(claim(q{'one'}, $layout)), 0, 'a claim in an open transaction gets a worker id');
	is($other->state_of(claim(q{'other'}, $layout)), '55P03', 'another claim waits, and fails');
	$one->rows('ROLLBACK');
	is($other->value(claim(q{'other'}, $layout)), 0, 'after the ROLLBACK the worker id is free');
	$_->quit for $one, $other;

	$registry->safe_psql('postgres', $_)
	  for (
		q{CREATE ROLE server LOGIN; SELECT snowflake_registry.allow('server')},
		q{ALTER FUNCTION snowflake_registry.claim SET lock_timeout = '3min'},
		'DELETE FROM snowflake_registry.node',
		q{INSERT INTO snowflake_registry.node SELECT 0, w, 'g' || w, '', NULL, 1, now(), now(), now(), now(), CASE WHEN w % 50 = 0 THEN now() ELSE now() + interval '1 h' END, CASE WHEN w % 50 = 0 THEN now() END, (SELECT quarantine FROM snowflake_registry.setting) FROM generate_series(0, 65535) AS w},
		'VACUUM ANALYZE snowflake_registry.node');
	my $before = $registry->safe_psql('postgres', $read);
	$registry->pgbench(
		'--no-vacuum --client=100 --jobs=2 --transactions=2 --username=server',
		0, [], [],
		'100 sessions claim twice each',
		{ claim => "\\set n random(1, 9000000000000000000)\n" . claim(q{'at once ' || :n}, $layout) . ';' });
	cmp_ok($registry->safe_psql('postgres', $read) - $before, '<', 200 * 100, '200 claims read few rows each');
	is($registry->safe_psql('postgres', q{SELECT count(*) || ' ' || count(DISTINCT worker_id) FROM snowflake_registry.lease WHERE holder LIKE 'at once %' AND state = 'held'}),
		'200 200', '200 servers have 200 different worker ids');
	return;
}

run_scenarios(
	'who may claim' => \&who_may_claim,
	'a registry without a superuser' => \&registry_without_superuser,
	'many claims' => \&many_claims,
	'one worker id' => \&one_worker_id,
	'a full datacenter' => \&full_datacenter,
	'a clone' => \&clone,
	'another layout' => \&another_layout,
	'the next horizon' => \&next_horizon,
	'a layout of 31 bits' => \&large_layout);
done_testing();
