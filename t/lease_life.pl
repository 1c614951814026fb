# The life of a lease: each server gets a worker id of its own from a registry,
# renews the lease, gives it back at a clean stop, keeps it over restarts and crashes,
# and shows it.  While the registry is down a server issues ids for as long as its
# lease lasts, and no longer.  A data directory that is set back does not resume its
# lease.  The lease_* files of all/ have what can go wrong.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

# ----- restarts -----

sub restarts
{
	my $registry = new_registry({ lease_duration => '60 s' });
	my @server =
	  map { leasing_server("server_$_", $registry, 'restart_after_crash = on') } 0 .. 2;
	my ($clean, $immediate, $crash) = @server;
	my %last = map { $_->name => scalar first_id(start_server($_)) } @server;

	for my $node (@server)
	{
		my $holder = value_of($node, 'SELECT lease_holder FROM snowflake_node()');

		is(lease_of($registry, worker_id_of($last{ $node->name }), 'holder'),
			$holder, 'the registry shows ' . $node->name . ' as the holder of its worker id');
	}
	is_deeply([ sort map { worker_id_of($_) } values %last ],
		[ 0 .. 2 ], 'the servers have a worker id each');

	# A clean stop.
	my $worker_id = worker_id_of($last{ $clean->name });
	$clean->stop;
	is( lease_of($registry, $worker_id,
			q{state, fence BETWEEN clock_timestamp() - interval '10 s' AND clock_timestamp() + interval '1 s'}),
		'released|t', 'a clean stop releases the lease, and lowers the fence to about the time of the last id');
	like(logged($clean), qr/LOG:  snowflake worker_id $worker_id has been given back to the registry/,
		'the log says that the worker id was given back');
	start_server($clean);
	goes_on($clean, $last{ $clean->name }, 'after a clean stop');

	# Change the incarnation in the registry, as another claim in the name of
	# this holder would, so that the server does not know the newest lease.
	$registry->safe_psql('postgres',
		"UPDATE snowflake_registry.node SET incarnation = incarnation + 1 WHERE worker_id = $worker_id");
	$clean->stop;
	is(lease_of($registry, $worker_id, 'state'), 'held', 'a stop does not release a lease that the server does not know');
	like(logged($clean), qr/LOG:  snowflake worker_id $worker_id could not be given back to the registry/,
		'the log says that the worker id was not given back');
	start_server($clean);
	is(worker_id_of(scalar first_id($clean)), 3, 'after a stop without a release the server gets another worker id');

	# Crashes.
	$immediate->stop('immediate');
	start_server($immediate);
	goes_on($immediate, $last{ $immediate->name }, 'after an immediate stop');

	# The registry does not answer, and the lease worker has not stopped waiting for it.
	suspend($registry);
	$immediate->stop('immediate');
	start_server($immediate);
	my $claim_again = keep_from_claims($immediate);
	is((sqlstate_of($immediate, 'SELECT snowflake_nextval()'))[0], '55000', 'a lease of the last start is not in force before the registry is asked');
	$claim_again->();
	goes_on($immediate, $last{ $immediate->name }, 'without an answer');
	resume($registry);

	my $victim = SnowflakeSession->new($crash);
	my $offset = -s $crash->logfile;
	kill 'KILL', $victim->{pid};
	logs($crash, $offset, qr/reinitializing.*ready to accept connections/s,
		'a backend is killed, and the server starts all processes again');
	goes_on($crash, $last{ $crash->name }, 'after a crash');

	shows_its_lease($crash, $last{ $crash->name });
	return;
}

# Views and functions that show the lease.
sub shows_its_lease
{
	my ($node, $last) = @_;
	my $worker_id = worker_id_of($last);

	is( value_of($node, qq{
SELECT worker_id_source, worker_id = $worker_id, lease_holder ~ '^[-0-9a-f]{36}/[0-9a-f]+/[0-9]+\$',
       lease_expires_at BETWEEN now() AND now() + interval '60 s'
  FROM snowflake_node()}),
		'registry|t|t|t', 'snowflake_node() shows the lease');
	is( value_of($node, q{
CREATE ROLE watcher IN ROLE pg_monitor;
CREATE ROLE passer_by;
SET ROLE watcher;
SELECT lease_holder IS NULL, lease_expires_at IS NULL FROM snowflake_node();
SET ROLE passer_by;
SELECT lease_holder IS NULL, lease_expires_at IS NULL FROM snowflake_node()}),
		"f|f\nt|f", 'snowflake_node() shows the holder to members of pg_monitor only');
	is(value_of($node, 'SELECT lease_renewals > 0 FROM snowflake_stat()'), 't', 'snowflake_stat() counts renewals');

	my $offset = -s $node->logfile;
	value_of($node,
		q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'snowflake registry'});
	logs($node, $offset, qr/is leased to this server until/,
		'the lease worker is terminated, and a new one leases a worker id');
	goes_on($node, $last, 'under the new lease worker');
	is( value_of($node, 'SELECT snowflake_stat_reset(); SELECT lease_renewals, lease_failures FROM snowflake_stat()'),
		"\n0|0", 'snowflake_stat_reset() resets renewals and failures');
	return;
}

# ----- the registry is down -----

sub down
{
	my $registry = new_registry({ lease_duration => '12 s' });
	my $unreachable = qr/^The registry (?:cannot be reached|has not answered)/;
	my $holder = start_server(leasing_server('holder', $registry));
	my $late = leasing_server('late', $registry);
	my $last = first_id($holder);

	# Wait for a renewal, so that nearly the whole lease is still to come.
	wait_for_renewals($holder, 1);
	my $client = new_client($holder);
	$registry->stop;
	start_server($late);
	refuses($late, $unreachable, 'a server that starts without a registry issues no ids');
	is_undisturbed($client, 'ids go on while the registry is down');

	# The fence bounds the ids of a lease that still runs, whatever the clock says:
	# 12 s and the slack of 1 s after the last renewal at most.
	set_clock($holder, 20);
	my ($state, $message) = sqlstate_of($holder, 'SELECT snowflake_nextval()');
	like("$state $message", qr/^55000 .* past the fence of the lease/, 'a clock past the fence gets no id');
	set_clock($holder, 0);
	$last = first_id($holder);
	for my $mode ('fast', 'immediate')
	{
		$last = first_id($holder);
		$holder->stop($mode);
		start_server($holder);
		goes_on($holder, $last, "a holder that restarts within its lease after a stop, $mode");
	}

	# A session refuses ids after the lease even if the worker is suspended.
	$client = new_client($holder);
	my $ends = value_of($holder, 'SELECT lease_expires_at FROM snowflake_node()');
	my $claim_again = keep_from_claims($holder);
	gets_errors($client, 'at the end of the lease ids are refused');
	$claim_again->();
	my $newest = (ids_of($client))[-1];
	is(value_of($holder, "SELECT snowflake_timestamp($newest) <= '$ends'::timestamptz + '550 ms'"),
		't', 'no id is later than the end of the lease by more than two intervals of the mark');
	refuses($holder, qr/^The registry cannot be reached/, 'the refusal says that the registry cannot be reached');
	$holder->stop;
	start_server($holder);
	refuses($holder, $unreachable, 'a holder that restarts after its lease issues no ids');

	start_server($registry);
	my $id = first_id($holder, 90);
	cmp_ok($id, '>', $last, 'the holder issues ids again after the quarantine that the start of the registry begins');
	is(worker_id_of($id), worker_id_of($last), 'the holder has its worker id again');
	isnt(worker_id_of(scalar first_id($late, 90)),
		worker_id_of($last), 'the other server gets another worker id');
	is_unique();
	return;
}

# ----- a data directory that is set back in place -----

# The directory's lease has been released since, and another server has the worker id.
# With the registry silent, only the timeline tells that the lease may be over.
sub set_back
{
	my $registry = new_registry({ lease_duration => '60 s' });
	my $server = start_server(leasing_server('server', $registry, wants(5)));
	my $directory = $server->data_dir;
	my $saved = PostgreSQL::Test::Utils::tempdir();

	first_id($server);
	$server->stop('immediate');
	system_or_bail('cp', '-a', "$directory/.", $saved);
	start_server($server);
	first_id($server);
	$server->stop;
	my $heir = start_server(leasing_server('heir', $registry, wants(5)));
	first_id($heir);

	# A holder is a directory with its inode.
	system_or_bail('sh', '-c', 'rm -r "$1"/* && cp -a "$0/." "$1"', $saved, $directory);
	$server->append_conf('postgresql.conf', 'restore_command = false');
	append_to_file("$directory/recovery.signal", '');
	suspend($registry);
	start_server($server);
	refuses($server, qr/^The registry cannot be reached/, 'a lease of another timeline is not resumed');
	let_pass(5);
	is((sqlstate_of($server, 'SELECT snowflake_nextval()'))[0], '55000', 'the server issues no id of the worker id that another has');
	resume($registry);
	return;
}

# The registry knows the directory's lease, of which ids are lost.
sub recovered_in_place
{
	my $registry = new_registry({ lease_duration => '30 s' });
	my $server = start_server(leasing_server('server', $registry, wants(5)));
	my $directory = $server->data_dir;

	first_id($server);
	$server->backup('earlier');
	my $lost = first_id($server);
	$server->stop('immediate');
	system_or_bail('sh', '-c', 'rm -r "$1"/* && cp -a "$0/." "$1"', $server->backup_dir . '/earlier', $directory);
	$server->append_conf('postgresql.conf', 'restore_command = false');
	append_to_file("$directory/recovery.signal", '');
	start_server($server, -1);
	refuses($server, qr/is leased by/, 'a lease of another timeline is not renewed');
	cmp_ok(scalar first_id($server, 90), '>', $lost, 'after its end, ids begin after those that were lost, although the clock is behind');
	return;
}

run_scenarios(
	'restarts' => \&restarts,
	'recovered in place' => \&recovered_in_place,
	'the registry is down' => \&down,
	'set back' => \&set_back);
done_testing();
