# No id comes twice when servers are suspended for longer than their leases, and
# when the clocks of servers or of the registry are wrong: a server raises its mark
# until its lease ends, and never past its fence, and the next holder begins at the
# fence.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

# How far a server's clock may lead the registry's in "servers' clocks".
use constant SLACK_S => 400;

my $past_fence =
  qr/^The fence is \S+ \S+, the next id is of |^The registry's clock is at \d{4}-[^,]*, and its lease on worker_id 5 is for ids before \d{4}-[^,]*, but this server's clock is at \d{4}-/;
my $logs_clocks =
  qr/WARNING:  the registry has not granted a lease.*\n.*DETAIL:  The registry's clock is at /;
my $ahead = qr/^Ids of worker_id 5 of datacenter_id 0 begin at .*, ahead of the server's clock/;

# A server's failed attempts to renew its lease.
sub failures_of
{
	my ($server) = @_;
	return value_of($server, 'SELECT lease_failures FROM snowflake_stat()');
}

# Tests that a suspended holder issues no id when it is resumed after another
# server has got its worker id.  The sessions go on first, before the worker has
# noticed anything.
sub stays_silent
{
	my ($server, $client, $worker) = @_;

	resume($server, $worker);
	gets_errors($client, $server->name . ', resumed, refuses ids');
	gets_no_ids($client, $server->name . ', resumed, issues no id');
	return;
}

# Tests that a client receives no ids for a moment.
sub gets_no_ids
{
	my ($client, $what) = @_;
	my $before = () = ids_of($client);

	let_pass(0.3);
	return is(scalar(() = ids_of($client)), $before, $what);
}

# ----- a server is suspended, and the registry's clock is set -----

sub suspended
{
	my $registry = new_registry({ lease_duration => '10 s' });
	my ($first, $second) =
	  map { leasing_server($_, $registry, wants(5)) } 'first', 'second';
	my $first_client = new_client(start_server($first));

	start_server($second);
	refuses($second, qr/^worker_id 5 of datacenter_id 0 is leased by first/,
		'the second server is refused the worker id that the first one has');
	my $second_client = new_client($second, 'without ids');
	my $worker = worker_pid($first);
	gets_ids($first_client, 'the first server issues ids before it is suspended');
	suspend($first);
	gets_ids($second_client, 'while the first server is suspended, the second gets its worker id');
	stays_silent($first, $first_client, $worker);
	resume($first);
	refuses($first, qr/^worker_id 5 of datacenter_id 0 is leased by second/,
		'the first server is told that the second one has the lease');
	wait_for_grant($registry, $second);
	is_undisturbed($second_client, 'the second server issues ids all the time');

	# Set the registry's clock forward, so that every lease seems to be over.
	# Keep the holder from a renewal meanwhile: the fence of the renewal would be
	# as far ahead, and the other server would wait for that fence.
	my $claim_again = keep_from_claims($second);
	set_clock($registry, 3600);
	gets_ids($first_client, q{the registry's clock is set forward: the first server gets the lease});
	$claim_again->();
	refuses($second, qr/^worker_id 5 of datacenter_id 0 is leased by first/,
		q{the registry's clock is set forward: the second server is refused the worker id});
	gets_ids($first_client, q{the registry's clock is set forward: the first server goes on});
	set_clock($registry, 0);
	wait_for_grant($registry, $first) for 1 .. 2;
	is_undisturbed($first_client,
		q{the registry's clock is set back: the first server issues ids all the time});
	is_unique();
	return;
}

# ----- servers' clocks disagree -----

sub servers_clocks
{
	my $registry = new_registry(
		{ lease_duration => '4 s', slack => SLACK_S . ' s' });
	my ($fast, $slow) = map {
		leasing_server($_, $registry, wants(5), 'snowflake.clock_tolerance = 5s')
	} 'fast', 'slow';

	# The next holder's clock is behind the last one's.
	start_server($fast, SLACK_S);
	my $fast_client = new_client($fast);
	start_server($slow, -300);
	my $slow_client = new_client($slow, 'without ids');
	my $worker = worker_pid($fast);
	gets_ids($fast_client, 'a server whose clock is fast issues ids');
	suspend($fast);
	my $suspended_at = test_time();
	refuses($slow, $ahead,
		'the server whose clock is slow does not get the worker id of the suspended one');

	# Keep the slow server's clock half a second before the last ids of the fast
	# one.  The fence is 4 s after them, and a claim may be 5 s before it.
	my $is_leased = sub {
		set_clock($slow, SLACK_S - (test_time() - $suspended_at) - 0.5);
		return lease_of($registry, 5, 'name') eq 'slow';
	};
	ok(wait_for($is_leased), 'the slow server gets the lease');
	gets_no_ids($slow_client,
		'the slow server issues no ids for the time in which the fast one has issued ids');
	set_clock($slow, SLACK_S);
	gets_ids($slow_client, 'the slow server issues ids when its clock is past the fence');
	stays_silent($fast, $fast_client, $worker);

	# Resume the fast server with its clock set back.  If it issues ids, nobody
	# else may have them: is_unique() tests that at the end.
	set_clock($fast, SLACK_S - 15);
	let_pass(0.5);
	resume($fast);
	$fast->stop;

	# Under "advance" ids may be ahead of the clock, up to the fence.  After a crash
	# the server begins at its mark, which is ahead.
	my $last = first_id($slow);
	set_clock($slow, SLACK_S - 100);
	like((sqlstate_of($slow, 'SELECT snowflake_nextval()'))[2],
		qr/set "snowflake.clock_policy" to "advance"/,
		'the hint of a server with a lease names "advance" for ids that are ahead');
	$slow->append_conf('postgresql.conf',
		"snowflake.clock_policy = advance\nsnowflake.clock_tolerance = 300s");
	$slow->stop('immediate');
	start_server($slow, SLACK_S - 100);
	goes_on($slow, $last, 'under "advance" a server whose ids are ahead by more than its lease lasts');
	set_clock($slow, SLACK_S);
	new_client($slow);
	is_unique();
	return;
}

# A server whose clock has been set back gives its worker id back: its ids are before
# the fence, and the next holder begins there.
sub released
{
	my $registry = new_registry({ lease_duration => '60 s' });
	my ($first, $next) = map { leasing_server($_, $registry, wants(5)) } 'first', 'next';
	my $last = first_id(start_server($first));

	set_clock($first, -2);
	$first->stop;
	is(lease_of($registry, 5, 'state, fence > to_timestamp(' . timestamp_of($last) . ')'), 'released|t', 'the fence of a lease that is released is after its ids');
	start_server($next, -2);
	cmp_ok(scalar first_id($next), '>', $last, 'the next holder begins after these ids');
	return;
}

# A server's clock is a hundred days ahead for a while.
sub server_ahead
{
	my $registry = new_registry({ lease_duration => '4 s', slack => '2 s' });
	my $server = start_server(leasing_server('server', $registry, wants(5)));
	my $last = first_id($server);

	set_clock($server, 100 * 86400);
	refuses($server, $past_fence, 'a server whose clock is a hundred days ahead issues no id');
	logs($server, 0, $logs_clocks, 'the log of a server whose clock is ahead names both clocks');
	cmp_ok(failures_of($server), '>', 0, 'renewals by a server whose clock is ahead count as failures');
	let_pass(4);
	is(lease_of($registry, 5, q{fence < clock_timestamp() + interval '7 s'}), 't', 'the fence does not follow the clock of that server');
	set_clock($server, 0);
	goes_on($server, $last, 'the server whose clock is right again');
	cmp_ok(timestamp_of(scalar first_id($server)), '<', test_time() + 1, 'ids do not lead the clock that is right again');
	return;
}

# ----- the registry's clock is wrong for a while -----

# The registry's clock is an hour behind for a while, and then a day ahead for a
# moment.  A server that crashes and is moved after that gets its lease from a
# registry that is made anew.
sub registrys_clock
{
	my $registry = new_registry({ lease_duration => '10 s' });
	my $server = start_server(leasing_server('server', $registry, wants(5)));
	my $last = first_id($server);

	set_clock($registry, -3600);
	logs($server, 0, $logs_clocks, 'the registry is behind: the log names both clocks');
	refuses($server, $past_fence, 'the registry is behind: no id is issued past the fence');
	is(worker_id_at($server), '', 'the registry is behind: the server shows no worker id');
	my $failures = failures_of($server);
	let_pass(3);
	my $more = failures_of($server) - $failures;
	ok($more > 0 && $more < 36, "the server claims with pauses ($more failures in 3 s)");
	set_clock($registry, 0);
	goes_on($server, $last, q{the server, when the registry's clock is right});

	set_clock($registry, 86400);
	wait_for_grant($registry, $server);
	set_clock($registry, 0);
	my $client = new_client($server);
	wait_for_grant($registry, $server);
	is_undisturbed($client, 'the holder issues ids after a lease far in the future');
	$last = first_id($server);
	kill_hard($server);
	my $moved = start_server(copy_of($server, 'moved'));
	refuses($moved, $ahead, 'the moved server is refused until the far fence');
	$registry->safe_psql('postgres', q{
DROP EXTENSION snowflake_registry;
CREATE EXTENSION snowflake_registry;
SELECT snowflake_registry.configure('10 s', '1 s')});
	refuses($moved, qr/^The registry is new, /, 'the moved server waits for a registry that was made anew');
	my $id = first_id($moved, 90);
	cmp_ok($id, '>', $last, 'ids go on under a registry that was made anew');
	cmp_ok(timestamp_of($id), '<', test_time() + 1, 'ids after a far fence do not lead the clock');
	is_unique($id);
	return;
}

run_scenarios(
	q{servers' clocks} => \&servers_clocks,
	'suspended servers' => \&suspended,
	q{the registry's clock} => \&registrys_clock,
	'a lease is released' => \&released,
	'a server ahead' => \&server_ahead);
done_testing();
