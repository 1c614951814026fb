# Leased worker ids under faults: the registry is down, comes back, fails over
# to a standby that does not have all leases, or is restored from a dump;
# servers are suspended for longer than their leases; the clocks of servers
# differ, and are set; the network holds requests and answers back.  A server
# issues ids for as long as its lease lasts, and no id comes twice.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRegistry;
use SnowflakeRelay;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

# How far a server's clock may lead the registry's in "clocks disagree".
use constant LARGEST_LEAD_S => 400;

# Why a registry that may have forgotten leases grants none.
use constant QUARANTINE => qr/^The registry is new, or may have forgotten leases at /;

my $directory = PostgreSQL::Test::Utils::tempdir();

# A server, not started yet, that leases.  The server refuses ids while its
# clock is behind the last id by more than the default clock_tolerance.
sub server
{
	my ($name, $registry, @conf) = @_;

	return leasing_server($name, $registry, 'snowflake.clock_tolerance = 5s',
		@conf);
}

# The name of the server that has leased a worker id last, and has not released
# it; '' if there is none.
sub holder_of
{
	my ($registry, $worker_id) = @_;
	return $registry->safe_psql('postgres',
		"SELECT name FROM snowflake_registry.lease WHERE datacenter_id = 0 AND worker_id = $worker_id AND state <> 'released'"
	);
}

sub stat_of
{
	my ($node, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM snowflake_stat");
}

sub wait_for_renewals
{
	my ($node, $count) = @_;
	my $before = stat_of($node, 'lease_renewals');

	wait_for(sub { stat_of($node, 'lease_renewals') >= $before + $count })
	  or die $node->name . " does not renew its lease\n";
	return;
}

# Tests that a server issues no id now, and why.
sub is_refused_now
{
	my ($node, $pattern, $name) = @_;
	return like(refusal_of($node), $pattern, $name);
}

# ----- the registry is down, and is restored -----

sub registry_down
{
	my $registry = new_registry('registry', { lease_duration => '12s' });
	my $restored = server_named('restored');
	my $either = hosts_of($registry, $restored);
	my $holder = server('holder', $either);
	my $late = server('late', $either);
	my $new = server('new', $either);
	my ($client, $seconds);

	start_server($holder);
	my $worker_id = worker_id_of(scalar first_id($holder));

	# Wait for a renewal, so that nearly the whole lease is still to come.
	wait_for_renewals($holder, 1);
	$client = new_client($holder);
	$registry->stop;
	my $down_since = time;

	start_server($late);
	is_refused_now($late, qr/^The registry (?:cannot be reached|has not answered)/,
		'a server starts while the registry is down, and issues no ids');
	sleep 0.5;
	is_undisturbed($client, 'ids go on while the registry is down');

	$holder->restart;
	my ($state, $id) = sqlstate_of($holder, 'SELECT snowflake_nextval()');
	is($state, '', 'a holder that restarts within its lease issues ids at once')
	  or diag(sprintf '%.1f s after the registry went down', time - $down_since);
	is(worker_id_of($id), $worker_id, 'the restarted holder keeps its worker id');
	$holder->stop('immediate');
	$holder->start;
	($state, $id) = sqlstate_of($holder, 'SELECT snowflake_nextval()');
	is($state, '', 'after a crash the holder issues ids at once');
	$client = new_client($holder);

	my $ends = $holder->safe_psql('postgres',
		'SELECT lease_expires_at FROM snowflake_node');

	# A session refuses ids after the lease even if the worker is suspended.
	my $claim_again = keep_from_claims($holder);
	wait_for_error($client, 'at the end of the lease ids are refused');
	$claim_again->();
	my $newest = (ids_of($client))[-1];
	is( $holder->safe_psql(
			'postgres',
			"SELECT snowflake_timestamp($newest) <= '$ends'::timestamptz + '50 ms'"
		),
		't',
		'no id is more than 50 ms later than the end of the lease');
	is_refused_now($holder, qr/^The registry cannot be reached/,
		'the refusal says that the registry cannot be reached');
	$holder->restart;
	is_refused_now($holder, qr/^The registry (?:cannot be reached|has not answered)/,
		'a holder that restarts after its lease issues no ids');

	$registry->start;
	($id, $seconds) = first_id($holder);

	cmp_ok($seconds, '<', 5, 'the holder issues ids again within 5 s of the start of the registry');
	is(worker_id_of($id), $worker_id, 'the holder has its worker id again');
	my $late_worker_id = worker_id_of(scalar first_id($late));
	isnt($late_worker_id, $worker_id, 'the server that started without a registry gets another worker id');
	$client = new_client($holder);

	# Restore the registry into another database cluster, where the holders
	# then renew their leases.
	my $dump = "$directory/registry.sql";
	$restored->init;
	start_server($restored);
	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'),
		'-f', $dump);
	system_or_bail('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$restored->connstr('postgres'), '-f', $dump);
	$registry->stop('immediate');
	start_server($new);
	refuses($new, QUARANTINE,
		'a registry that was restored grants no worker id at first');
	my $new_worker_id = worker_id_of(scalar first_id($new, 90));
	ok($new_worker_id != $worker_id && $new_worker_id != $late_worker_id,
		'after the quarantine the newcomer gets a worker id that nobody has');
	wait_for_renewals($holder, 1);
	is_undisturbed($client, 'the holder issues ids while the registry is restored');
	is_unique(at_least => 500);
	return;
}

# ----- the registry fails over -----

sub failover
{
	my $registry = new_registry('registry', { lease_duration => '12s' });
	my $standby = server_named('standby');
	my $either = hosts_of($registry, $standby);
	my $known = server('known', $either);
	my $lost = server('lost', $either);
	my $new = server('new', $either);
	my $rival = server('rival', $either, wants(2));
	my $again = server('again', $either);

	$registry->backup('base');
	$standby->init_from_backup($registry, 'base', has_streaming => 1);
	start_server($standby);
	start_server($known);
	my $known_client = new_client($known);
	is(worker_id_of(scalar first_id($known)), 0, 'a server gets a worker id');
	start_server($again);
	is(worker_id_of(scalar first_id($again)), 1, 'the second server gets another worker id');
	wait_for_renewals($known, 2);

	# The standby does not learn of the claims that follow.
	cut_off($registry, $standby);
	start_server($lost);
	my $lost_client = new_client($lost);
	is(worker_id_of(scalar first_id($lost)),
		2, 'the third server gets a third worker id');
	$registry->stop('immediate');
	isnt(holder_of($standby, 2),
		'lost', 'the standby does not have the lease of the third server');
	new_ids($_), new_errors($_) for ($known_client, $lost_client);

	$standby->promote;
	$again->restart;
	my ($id, $seconds) = first_id($again);
	cmp_ok($seconds, '<', 3,
		'a holder that restarts after the failover issues ids at once');
	is(worker_id_of($id), 1, 'the restarted holder keeps its worker id');
	start_server($rival);
	start_server($new);
	new_client($_, 'without ids at first') for ($rival, $new);

	# The holder whose lease was lost may come forward before its rival claims.
	my $held = qr/^worker_id 2 of datacenter_id 0 is leased by lost/;
	my $quarantine = QUARANTINE;
	refuses($new, QUARANTINE, 'a newcomer gets no lease in the quarantine');
	refuses($rival, qr/$quarantine|$held/, 'a rival gets no lease in the quarantine');
	is(worker_id_of(scalar first_id($new, 90)),
		3, 'after the quarantine the newcomer gets a worker id that nobody has');
	is_refused_now($rival, $held,
		'the rival does not get the worker id whose lease was lost');
	wait_for_renewals($known, 1);
	is_undisturbed($known_client, 'a holder whose lease the standby had issues ids all the time');
	is_undisturbed($lost_client, 'a holder whose lease was lost issues ids all the time');
	is_unique(at_least => 500);
	return;
}

# ----- a server is suspended, and the registry's clock is set -----

sub suspended
{
	my $registry = new_registry('registry', { lease_duration => '4s' });
	my $first = server('first', $registry, wants(5));
	my $second = server('second', $registry, wants(5));

	start_server($first);
	first_id($first);
	my $first_client = new_client($first);
	start_server($second);
	refuses($second,
		qr/^worker_id 5 of datacenter_id 0 is leased by first/,
		'the second server is refused the worker id that the first one has');
	my $second_client = new_client($second, 'without ids at first');
	new_ids($first_client);
	wait_for_ids($first_client, 'the first server issues ids');

	my $worker = worker_pid($first);
	suspend($first);
	wait_for_ids($second_client, 'while the first server is suspended, the second gets its worker id');

	# Resume sessions first, before their server's worker has noticed anything.
	new_ids($first_client);
	resume($first, $worker);
	wait_for_error($first_client, 'the first server, resumed, refuses ids at once');
	sleep 0.3;
	is(scalar(my @ids = new_ids($first_client)), 0, 'the first server, resumed, issues no id');
	resume($first);
	refuses($first,
		qr/^worker_id 5 of datacenter_id 0 is leased by second/,
		'the first server is told that the second one has the lease');
	new_errors($second_client);
	wait_for_renewals($second, 1);
	is_undisturbed($second_client, 'the second server issues ids all the time');
	is(scalar(@ids = new_ids($first_client)), 0, 'the first server issues no id meanwhile');
	$second->stop;
	wait_for_ids($first_client, 'after a stop of the second server the first one issues ids again');

	start_server($second);
	$second_client = new_client($second, 'without ids at first');
	wait_for_error($second_client, 'the second server is up again, and refuses ids');

	# Set the registry's clock forward, so that every lease seems to be over.
	# Keep the first server from a renewal meanwhile: the fence of the renewal
	# would be as far ahead, and the second server would wait for that fence.
	my $claim_again = keep_from_claims($first);
	set_clock($registry, 3600);
	ok(wait_for(sub { holder_of($registry, 5) eq 'second' }),
		'the registry\'s clock is set forward: the second server gets the lease');
	wait_for_ids($second_client, 'the second server issues ids by that lease');
	$claim_again->();
	refuses($first, qr/^worker_id 5 of datacenter_id 0 is leased by/,
		'the first server is refused the worker id');
	new_errors($second_client);
	set_clock($registry, 0);
	wait_for_renewals($second, 2);
	is_undisturbed($second_client,
		'the registry\'s clock is set back: the second server issues ids all the time');
	is_unique(at_least => 500);
	return;
}

# ----- clocks disagree -----

sub clocks
{
	my $registry = new_registry('registry',
		{ lease_duration => '4s', largest_lead => LARGEST_LEAD_S . 's' });
	my $fast = server('fast', $registry, wants(5));
	my $slow = server('slow', $registry, wants(5));

	# The next holder's clock is behind the last one's.
	start_server($fast, LARGEST_LEAD_S);
	first_id($fast);
	my $fast_client = new_client($fast);
	start_server($slow, -300);
	my $slow_client = new_client($slow, 'without ids at first');
	new_ids($fast_client);
	wait_for_ids($fast_client, 'a server whose clock is fast issues ids');
	sleep 1;
	my $worker = worker_pid($fast);
	suspend($fast);
	my $suspended_at = time;
	refuses($slow, qr/^Ids of worker_id 5 of datacenter_id 0 begin at .*, ahead of the server's clock/,
		'the server whose clock is slow does not get the worker id of the suspended one');
	is(scalar(my @ids = new_ids($slow_client)),
		0, 'the server whose clock is slow issues no ids before the fence');

	# Set the slow server's clock to 1 s before the last ids of the fast one.
	set_clock($slow,
		LARGEST_LEAD_S - (time - $suspended_at) - 1);
	sleep 1.5;
	is(scalar(@ids = new_ids($slow_client)), 0, 'the server whose clock is slow issues no ids for the time in which the fast one has issued ids');
	set_clock($slow, LARGEST_LEAD_S);
	wait_for_ids($slow_client, 'the server whose clock was slow issues ids when its clock is past the fence');

	# Both servers try to issue ids at the same time, by the same clock.
	new_ids($fast_client);
	new_errors($fast_client);
	resume($fast, $worker);
	wait_for_error($fast_client, 'the fast server, resumed, refuses ids');
	sleep 0.3;
	is(scalar(@ids = new_ids($fast_client)), 0, 'the fast server, resumed, issues no id');

	# Resume the fast server with its clock set back.  If it issues ids, nobody
	# else may have them: is_unique() tests that at the end.
	set_clock($fast, LARGEST_LEAD_S - 15);
	sleep 0.5;
	resume($fast);
	set_clock($fast, LARGEST_LEAD_S);
	wait_for_renewals($slow, 1);

	# The next holder's clock is ahead of the last one's.
	$slow->stop;
	new_ids($fast_client);
	wait_for_ids($fast_client, 'the fast server gets the worker id again');
	my $next = start_server($slow, LARGEST_LEAD_S + 2);
	my $next_client = new_client($next, 'without ids at first');
	wait_for_error($next_client, 'the next holder is up, and refuses ids');
	$worker = worker_pid($fast);
	suspend($fast);
	wait_for_ids($next_client, 'the next holder, whose clock is ahead, issues ids');
	set_clock($fast, LARGEST_LEAD_S + 2);
	new_ids($fast_client);
	new_errors($fast_client);
	resume($fast, $worker);
	wait_for_error($fast_client, 'the fast server, resumed for the second time, refuses ids');
	sleep 0.3;
	is(scalar(@ids = new_ids($fast_client)), 0, 'the fast server, resumed for the second time, issues no id');
	resume($fast);

	# The clock is past the fence.
	new_ids($next_client);
	new_errors($next_client);
	my $failures = stat_of($next, 'lease_failures');
	set_clock($next, LARGEST_LEAD_S + 60);
	ok( wait_for(
			sub {
				slurp_file($next_client->{err}) =~
				  /55000: snowflake ids cannot be issued because the clock is past the fence of the lease/;
			}),
		'a server whose clock is past the fence refuses ids');
	ok(wait_for(sub { stat_of($next, 'lease_failures') > $failures }),
		'a renewal whose fence has passed is a failure');
	new_ids($next_client);
	sleep 0.3;
	is(scalar(@ids = new_ids($next_client)), 0,
		'after this renewal the server issues no ids either');
	set_clock($next, LARGEST_LEAD_S + 2);
	wait_for_ids($next_client, 'ids are issued when the clock is before the fence again', 5);
	new_errors($next_client);
	wait_for_renewals($next, 1);
	is_undisturbed($next_client, 'ids go on after the next renewal');

	# After a step back, the clock has to reach the last id again.
	set_clock($next, LARGEST_LEAD_S - 28);
	my (undef, $message) = sqlstate_of($next, 'SELECT snowflake_nextval()');
	like(
		$message,
		qr/^the clock is \d+\.\d+ ms behind the last snowflake id/,
		'a server whose clock is behind the last id refuses ids');
	wait_for_renewals($next, 2);
	new_ids($next_client);
	set_clock($next, LARGEST_LEAD_S + 2);
	wait_for_ids($next_client, 'ids are issued when the clock is right, by the same lease', 5);
	is_unique(at_least => 500);
	return;
}

# ----- the network holds bytes back -----

# Holds back the next claim of a server that holds a lease.  Later claims pass.
sub hold_renewal
{
	my ($relay) = @_;

	$relay->hold('up', 'snowflake_registry.claim');
	ok(wait_for(sub { $relay->count_held > 0 }), 'a renewal is held back');
	$relay->hold_nothing_new;
	return;
}

# Lets a request that is held back go to the registry after its sender has
# gone.
sub let_go_late
{
	my ($relay, $name) = @_;
	my $answers = $relay->count_late_answers;

	$relay->let_go;
	ok(wait_for(sub { $relay->count_late_answers > $answers }), $name);
	return;
}

sub network
{
	my $registry = new_registry('registry', {});
	my $relay = SnowflakeRelay->new($registry);
	my $silent = SnowflakeRelay->new($registry);
	at_end(sub { $_->stop for $relay, $silent });
	$silent->hold('up');
	my $first = server('first', $relay->connection_string, wants(5));
	my $second = server('second', $registry, wants(5));
	my $unanswered = server('unanswered', $silent->connection_string);

	# Each claim of this server waits up to ten seconds for an answer.
	cmp_ok(seconds_of(sub { start_server($unanswered) }),
		'<', 8, 'a start does not wait for a registry that is silent');
	is_refused_now($unanswered, qr/^The registry has not answered yet/,
		'a server with a silent registry issues no ids');

	# A server's first claim reaches the registry after its second claim.
	$relay->hold('up', 'snowflake_registry.claim');
	start_server($first);
	ok(wait_for(sub { $relay->count_held > 0 }), 'the first claim is held back');
	$relay->hold_nothing_new;
	is(worker_id_of(scalar first_id($first)), 5, 'a later claim is granted');
	my $client = new_client($first);
	let_go_late($relay, 'the first claim reaches the registry late');
	wait_for_renewals($first, 2);
	is_undisturbed($client, 'ids go on after the late claim');

	# The registry's answers come too late, first for a while and then until
	# the lease has ended.
	wait_for_renewals($first, 1);
	my $failures = stat_of($first, 'lease_failures');
	$relay->hold('down', 'snowflake_registry.claim');
	ok(wait_for(sub { stat_of($first, 'lease_failures') > $failures }),
		'answers are held back: the lease is not renewed');
	$relay->let_go;
	wait_for_renewals($first, 2);
	is_undisturbed($client, 'answers arrive again, and ids have been issued all the time');

	$relay->hold('down', 'snowflake_registry.claim');
	wait_for_error($client, 'answers are held back for longer: the lease ends, and ids are refused');
	is_refused_now($first, qr/^The registry cannot be reached, does not answer in time/,
		'the refusal says that the registry does not answer in time');
	$relay->let_go;
	new_ids($client);
	wait_for_ids($client, 'answers arrive again, and ids are issued', 10);

	# A release arrives after the server has started again.
	$relay->hold('up', 'snowflake_registry.release');
	cmp_ok(seconds_of(sub { $first->stop }), '<', 3,
		'a stop does not wait for an answer to a release');
	is($relay->count_held, 1, 'a release is held back');
	$relay->hold_nothing_new;
	start_server($first);
	first_id($first);
	$client = new_client($first);
	wait_for_ids($client, 'the server issues ids after its restart');
	$failures = stat_of($first, 'lease_failures');
	let_go_late($relay, 'the release reaches the registry late');
	is(lease_of($registry, 5, 'state'), 'held', 'the late release releases nothing');
	wait_for_renewals($first, 2);
	is_undisturbed($client, 'ids go on after the late release');
	is(stat_of($first, 'lease_failures'),
		$failures, 'no renewal has failed since the late release');

	# A renewal arrives after the release.
	hold_renewal($relay);
	$first->stop;
	my $lease = lease_row($registry, 5);
	let_go_late($relay, 'a renewal reaches the registry after the release');
	is(lease_row($registry, 5), $lease, 'the late renewal of a released lease changes nothing');

	# A renewal arrives after another server has got the worker id.
	start_server($first);
	first_id($first);
	start_server($second);
	refuses($second, qr/is leased by first/,
		'the other server is refused the worker id');
	hold_renewal($relay);
	$first->stop;
	first_id($second);
	my $second_client = new_client($second);
	my $claim_again = keep_from_claims($second);
	$lease = lease_row($registry, 5);
	let_go_late($relay, 'a renewal reaches the registry after the claim of another server');
	is(lease_row($registry, 5), $lease, 'the late renewal of another server\'s worker id changes nothing');
	$claim_again->();

	# A claim arrives after its server has gone.
	$relay->hold('up', 'snowflake_registry.claim');
	start_server($first);
	ok(wait_for(sub { $relay->count_held > 0 }), 'a claim is held back');
	$relay->hold_nothing_new;
	$first->stop;
	$claim_again = keep_from_claims($second);
	$lease = lease_row($registry, 5);
	let_go_late($relay, 'the claim reaches the registry after its server has stopped');
	is(lease_row($registry, 5), $lease, 'the late claim changes nothing');
	$claim_again->();
	new_ids($second_client);
	wait_for_ids($second_client, 'the holder issues ids after the late claim');

	cmp_ok(seconds_of(sub { $unanswered->stop }),
		'<', 3, 'a stop does not wait for a registry that is silent');
	is_unique(at_least => 500);
	return;
}

# The scenarios that take longest come first.
run_scenarios(
	{
		name => 'the registry is down, and restored',
		nodes => [qw(registry restored holder late new)],
		run => \&registry_down
	},
	{
		name => 'the network holds bytes back',
		nodes => [qw(registry first second unanswered)],
		run => \&network
	},
	{
		name => 'clocks disagree',
		nodes => [qw(registry fast slow)],
		run => \&clocks
	},
	{
		name => 'a server is suspended',
		nodes => [qw(registry first second)],
		run => \&suspended
	},
	{
		name => 'the registry fails over',
		nodes => [qw(registry standby known lost new rival again)],
		run => \&failover
	});
done_testing();
