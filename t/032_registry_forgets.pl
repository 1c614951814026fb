# A registry that has forgotten leases, because it was restored from a dump or
# was a standby that lagged, or whose clock is behind the former registry's.  No
# id comes twice.  A server that holds a lease, or was the last to hold it, gets
# ids at once.
#
# Servers' clocks may be ahead of the real clock, or behind it.  The registry's
# clock is right unless a scenario says otherwise.
use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRegistry;
use SnowflakeRegistry qw(AT_ONCE_S);
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(settle);
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $directory = PostgreSQL::Test::Utils::tempdir();

# The refusal of a newcomer in a grace.
my $in_grace =
  qr/^The registry has been switched over or restarted, and may not know of all leases; it grants worker ids to new holders from \d{4}-/;

# ----- what scenarios share -----

# Tests that a server has claimed, and that the registry has granted a lease or
# has refused because of a grace.
sub wait_for_first_answer
{
	my ($server) = @_;
	return ok(
		wait_for(
			sub {
				$server->safe_psql('postgres',
					'SELECT lease_renewals > 0 FROM snowflake_stat') eq 't'
				  || refusal_of($server) =~ $in_grace;
			}),
		$server->name . ' has an answer of the registry');
}

# ----- a dump that is older than a raise of lease_duration -----

# The holder's lease lasts longer than the lease_duration in the dump.  The
# holder comes forward before another server gets the worker id, and the
# registry believes the holder.
sub old_dump
{
	my ($former, $lead, $present, $holder_restarts) = @_;
	my $registry = new_registry('registry',
		{ lease_duration => $former, largest_lead => $lead });
	my $restored = new_registry('restored');
	my $either = hosts_of($registry, $restored);
	my $holder = start_server(leasing_server('holder', $either, wants(5)));
	my $client = new_client($holder);
	my $dump = "$directory/$$.sql";
	my $held = qr/^worker_id 5 of datacenter_id 0 is leased by holder/;

	# Makes the holder claim now; otherwise it would renew in a minute.
	my $claim_now = sub {
		return unless $holder_restarts;
		$holder->stop('immediate');
		start_server($holder);
		$client = new_client($holder);
	};

	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'),
		'-f', $dump);
	set_registry($registry, lease_duration => $present);
	$claim_now->();
	ok( wait_for(
			sub {
				$holder->safe_psql('postgres',
					"SELECT lease_expires_at > clock_timestamp() + 0.8 * interval '$present' FROM snowflake_node"
				) eq 't';
			}),
		'the holder has a longer lease');
	$registry->stop('immediate');

	# Give the restored registry another history: with the same history it
	# would only open a window.
	$restored->safe_psql('postgres', 'CREATE TABLE other ()')
	  if $holder_restarts;
	system_or_bail('psql', '-XqAt', '-o', '/dev/null', '-v',
		'ON_ERROR_STOP=1', '-d', $restored->connstr('postgres'), '-f', $dump);

	my $rival = start_server(leasing_server('rival', $either, wants(5)));
	my $rival_client = new_client($rival, 'without ids at first');
	refuses($rival, qr/$in_grace|$held/, 'the rival does not get the worker id before the holder comes forward');
	$claim_now->();
	refuses($rival, $held, 'the rival does not get the worker id after the holder has come forward');
	wait_for_grant($restored, $holder) unless $holder_restarts;
	is_undisturbed($client, 'the holder has issued ids all the time');
	is(scalar(my @ids = ids_of($rival_client)), 0, 'the rival has issued no id');
	is_unique();
	return;
}

# A raise of lease_duration takes effect when all leases of the former duration
# are over.  A raise is limited, so that a registry that is restored from an
# earlier dump still waits long enough for the holders.
sub raise
{
	my $registry = new_registry('registry',
		{ lease_duration => '6 s', largest_lead => '1 s' });
	my $holder = start_server(leasing_server('holder', $registry->connstr('postgres')));
	my $id = first_id($holder);
	my $lasts = 'expires_at - seen_at';
	my $configure = 'SELECT snowflake_registry.configure';

	my ($state, $message) =
	  sqlstate_of($registry, "$configure(lease_duration => '15 s')");
	is($state, '22023', 'a large raise is refused');
	is($message, 'lease_duration cannot be raised from 00:00:06 to 00:00:15',
		'the message names both durations');
	$registry->safe_psql('postgres', "$configure(lease_duration => '14 s')");
	is((sqlstate_of($registry, "$configure(lease_duration => '5 s')"))[0],
		'55006', 'the constants cannot be changed before a raise has taken effect');
	my $is_early;
	ok( wait_for(
			sub {
				$is_early ||= $registry->safe_psql('postgres',
					"SELECT count(*) FROM snowflake_registry.lease WHERE $lasts > '6 s' AND seen_at < (SELECT former_until FROM snowflake_registry.setting)"
				);
				return lease_of($registry, worker_id_of($id), $lasts) eq '00:00:14';
			}),
		'a raise takes effect');
	ok(!$is_early, 'a lease of the raised duration is granted only after a lease and a lead of the former constants');
	is((sqlstate_of($registry, "$configure(lease_duration => '15 s')"))[0],
		'22023', 'a second raise is limited by the duration before the first one');
	$registry->safe_psql('postgres', "$configure(lease_duration => '3 s')");
	wait_for_grant($registry, $holder) for 1 .. 2;
	is(lease_of($registry, worker_id_of($id), $lasts),
		'00:00:03', 'a shorter duration takes effect at once');
	return;
}

# ----- a standby that lags is started without standby.signal -----

# The lease lasts longer than the standby takes to start on a busy machine.
sub no_promotion
{
	my $registry = new_registry('registry', { lease_duration => '20 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start_server(leasing_server('holder', $either));
	my $client = new_client($holder);
	my $go_on = keep_from_claims($holder);
	$registry->stop('immediate');
	$standby->stop;
	unlink $standby->data_dir . '/standby.signal' or die "standby.signal: $!";
	start_server($standby);
	is( $standby->safe_psql('postgres',
			'SELECT timeline_id FROM pg_control_checkpoint()'),
		1,
		'the standby without a signal file stays on its timeline');
	my $newcomer = start_server(leasing_server('newcomer', $either));
	wait_for_first_answer($newcomer);
	$go_on->();
	my $id = first_id($newcomer, 90);
	new_client($newcomer);
	isnt(worker_id_of($id), worker_id_of(first_id($holder)),
		'the newcomer gets another worker id than the holder that the registry had forgotten');
	is_undisturbed($client, 'the holder has issued ids all the time');
	is_unique();
	return;
}

# Makes a registry and its standby, and a holder of worker id 5 that the standby
# does not know.  The holder's clock is ahead.  Stops the registry.  Returns the
# standby, the connection string to both, and the holder.
sub unknown_holder
{
	my $registry = new_registry('registry',
		{ lease_duration => '3 s', largest_lead => '5 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start_server(leasing_server('holder', $either, wants(5)), 4.5);
	first_id($holder);
	$registry->stop('immediate');
	return ($standby, $either, $holder);
}

# Starts the next holder of worker id 5, whose clock is behind, and tests that
# its first id is larger than the last id of the former holder.
sub begins_after
{
	my ($either, $last, $what) = @_;
	my $next = start_server(leasing_server('next', $either, wants(5)), -6);

	return cmp_ok(scalar first_id($next, 60), '>', $last, $what);
}

# The standby is started without a promotion, and the only holder, whose clock
# was ahead, is dead, so that no holder comes forward.  The next holder's clock
# is behind.
sub no_promotion_no_holder
{
	my ($standby, $either, $holder) = unknown_holder();
	my $last = first_id($holder);

	kill_hard($holder);
	$standby->stop;
	unlink $standby->data_dir . '/standby.signal' or die "standby.signal: $!";
	start_server($standby);
	begins_after($either, $last, 'the next holder begins after the ids of the dead one');
	return;
}

# ----- a registry that is moved -----

sub moved
{
	my $registry = new_registry('registry', { lease_duration => '6 s' });
	my $holder = start_server(leasing_server('holder', $registry->connstr('postgres')));
	my $client = new_client($holder);
	my $offset = -s $holder->logfile;

	my ($state) = sqlstate_of($registry,
		'CREATE SCHEMA elsewhere; ALTER EXTENSION snowflake_registry SET SCHEMA elsewhere');
	is($state, '0A000', 'ALTER EXTENSION SET SCHEMA is refused');

	$registry->safe_psql('postgres',
		'ALTER SCHEMA snowflake_registry RENAME TO moved');
	logs(
		$holder, $offset,
		qr/WARNING:  the registry has not granted a lease.*\n[^\n]*DETAIL:  schema "snowflake_registry" does not exist/,
		'a server logs that the schema of the registry does not exist');
	unlike(logged($holder, $offset),
		qr/CREATE EXTENSION|configure/, 'no log line tells anybody to create another registry');
	$registry->safe_psql('postgres',
		'ALTER SCHEMA moved RENAME TO snowflake_registry');
	wait_for_grant($registry, $holder);
	is_undisturbed($client, 'the holder has issued ids all the time');
	return;
}

# ----- a holder comes forward, and crashes -----

# The new registry knows the fence of the holder only from the holder itself.
# The holder's ids are later than the clock of the next holder.
sub crash_after_coming_forward
{
	my ($standby, $either, $holder) = unknown_holder();

	$standby->promote;
	wait_for_grant($standby, $holder);
	my $last = first_id($holder);
	kill_hard($holder);
	begins_after($either, $last, 'the next holder begins after the last id of the crashed one');
	return;
}

# ----- the new primary's clock is behind -----

sub slow_clock
{
	my $ahead_s = 2.5;
	my $registry = new_registry('registry',
		{ lease_duration => '10 s', largest_lead => '2 s' }, $ahead_s);
	my $standby = new_standby($registry, 'standby', 0);
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start_server(leasing_server('holder', $either, wants(5)), $ahead_s);
	my $victim = start_server(leasing_server('victim', $either, wants(6)), $ahead_s + 1.5);
	my $client = new_client($holder);
	my $last = first_id($victim);
	$registry->stop('immediate');
	$last = first_id($victim);
	kill_hard($victim);
	$standby->promote;

	# One holder is alive and comes forward.  The other one is dead.
	my $rival = start_server(leasing_server('rival', $either, wants(5)));
	my $next = start_server(leasing_server('next', $either, wants(6)), -8);
	my $newcomer = start_server(leasing_server('newcomer', $either));
	wait_for_grant($standby, $holder);
	refuses($rival, qr/^worker_id 5 of datacenter_id 0 is leased by /,
		'a rival does not get the worker id of the holder that has come forward');
	my $id = first_id($next, 90);
	cmp_ok($id, '>', $last, 'the next holder begins after the ids of the dead one');
	new_client($newcomer);
	is_undisturbed($client, 'the living holder has issued ids all the time');
	is_unique(others => [ $last, $id ]);
	return;
}

# ----- restarts after a failover -----

# Newcomers wait for half a minute.  None of the restarted servers waits,
# whether the new registry knows the server's lease or not, and no matter when
# the server stops.
sub restarts
{
	my $registry = new_registry('registry', { lease_duration => '30 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my %server = map {
		my ($name, @conf) = @$_;
		$name => leasing_server($name, $either, @conf)
	} ['known'], [ 'given', wants(20) ], ['lost'],
	  [ 'lost_given', wants(21) ], ['between'], ['immediate'];
	my %last;

	for my $name (qw(known given))
	{
		start_server($server{$name});
		first_id($server{$name});
	}
	cut_off($registry, $standby);
	for my $name (qw(lost lost_given between immediate))
	{
		start_server($server{$name});
		first_id($server{$name});
	}
	$last{$_} = first_id($server{$_}) for keys %server;

	$registry->stop('immediate');
	$server{between}->stop;
	start_server($server{between});
	goes_on($server{between}, $last{between}, 'restarted without a registry');
	$last{between} = first_id($server{between});
	$server{between}->stop;

	$standby->promote;
	start_server($server{between});
	goes_on($server{between}, $last{between},
		'stopped without a registry, and started with the new one');
	for my $name (qw(known given lost lost_given between))
	{
		my $offset = -s $server{$name}->logfile;

		$last{$name} = first_id($server{$name});
		$server{$name}->stop;
		like(logged($server{$name}, $offset),
			qr/has been given back to the registry/, "$name: a stop releases the lease");
		start_server($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, after a failover");
	}
	$server{immediate}->stop('immediate');
	start_server($server{immediate});
	goes_on($server{immediate}, $last{immediate}, 'immediate, after a failover');

	# Restart two servers again, after every holder has come forward.
	for my $name (qw(known lost))
	{
		$last{$name} = first_id($server{$name});
		$server{$name}->stop;
		start_server($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, after a second restart");
	}
	refuses(start_server(leasing_server('newcomer', $either)),
		$in_grace, 'a newcomer waits');
	return;
}

# ----- a server whose clock is wrong for a while -----

sub wrong_clock
{
	my $registry = new_registry('registry',
		{ lease_duration => '4 s', largest_lead => '2 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my $wrong = start_server(leasing_server('wrong', $either));
	my $last = first_id($wrong);

	set_clock($wrong, 365 * 86400);
	wait_for_grant($registry, $wrong);
	refuses($wrong, qr/^The fence is /, 'a server whose clock is a year ahead issues no id');
	sleep 4;
	set_clock($wrong, 0);
	my ($id, $seconds) = first_id($wrong);
	cmp_ok($seconds, '<', AT_ONCE_S, 'the server issues ids at once when its clock is right');
	cmp_ok($id, '>', $last, 'the ids after the wrong clock are larger');
	cmp_ok(timestamp_of($id), '<', time + 1, 'the ids after the wrong clock do not lead the clock');

	$registry->wait_for_catchup($standby, 'replay', $registry->lsn('flush'));
	$registry->stop('immediate');
	$standby->promote;
	ok(first_id(start_server(leasing_server('newcomer', $either)), 60),
		'after a failover a newcomer does not wait for a year');
	is( $standby->safe_psql(
			'postgres',
			"SELECT grants_from - clock_timestamp() < '6 s' AND (SELECT max(fence) FROM snowflake_registry.lease) < clock_timestamp() + '20 s' FROM snowflake_registry.setting"
		),
		't',
		'the grace ends within a lease and a lead, and no fence is 20 s ahead');
	return;
}

# ----- a holder that is certified dead -----

# A data directory has moved.  The registry cannot tell the moved server from a
# copy of a server that is alive.
sub certified_dead
{
	my $registry = new_registry('registry', { lease_duration => '10 min' });
	my $old = start_server(leasing_server('old', $registry->connstr('postgres'), wants(7)));
	my $client = new_client($old);
	my $new = start_server(leasing_server('new', $registry->connstr('postgres'), wants(8)));
	first_id($new);
	my ($state) =
	  sqlstate_of($registry, 'SELECT snowflake_registry.free(0, 9)');
	is($state, 'P0002', 'a worker id that nobody had cannot be freed');

	my $last = first_id($old);
	$old->stop('immediate');
	$new->stop;
	rmtree($new->data_dir);
	system_or_bail('cp', '-a', $old->data_dir, $new->data_dir);
	rmtree($old->data_dir);
	settle($new);
	unlink $new->data_dir . '/postmaster.pid';
	start_server($new);
	refuses(
		$new,
		qr/^worker_id 7 of datacenter_id 0 is leased by old\b.* until \d{4}-/,
		'a server in a moved directory is refused while the lease of the former server is in force');
	is(lease_of($registry, 7, 'state'), 'held', 'the registry shows the lease of the former server as held');
	$registry->safe_psql('postgres', 'SELECT snowflake_registry.free(0, 7)');
	my ($id, $seconds) = first_id($new);
	cmp_ok($seconds, '<', 8,
		'after free() the moved server gets an id within seconds');
	is(worker_id_of($id), 7, 'after free() the moved server has the worker id');
	cmp_ok($id, '>', $last, 'after free() ids are larger than the last id of the former server');
	new_client($new);
	is_unique();
	return;
}

# ----- all -----

run_scenarios(
	{
		name => 'an old dump',
		nodes => [qw(registry restored holder rival)],
		run => sub { old_dump('2 s', '1 s', '6 s') }
	},
	{
		name => 'a very old dump',
		nodes => [qw(registry restored holder rival)],
		run => sub { old_dump('60 s', '5 s', '1 day', 'holder restarts') }
	},
	{
		name => 'a raise',
		nodes => [qw(registry holder)],
		run => \&raise
	},
	{
		name => 'no promotion',
		nodes => [qw(registry standby holder newcomer)],
		run => \&no_promotion
	},
	{
		name => 'no promotion and no holder',
		nodes => [qw(registry standby holder next)],
		run => \&no_promotion_no_holder
	},
	{
		name => 'a registry is moved',
		nodes => [qw(registry holder)],
		run => \&moved
	},
	{
		name => 'crash after coming forward',
		nodes => [qw(registry standby holder next)],
		run => \&crash_after_coming_forward
	},
	{
		name => 'a slow clock',
		nodes => [qw(registry standby holder victim rival next newcomer)],
		run => \&slow_clock
	},
	{
		name => 'restarts',
		nodes => [
			qw(registry standby known given lost lost_given between immediate newcomer)
		],
		run => \&restarts
	},
	{
		name => 'a wrong clock',
		nodes => [qw(registry standby wrong newcomer)],
		run => \&wrong_clock
	},
	{
		name => 'free after a death',
		nodes => [qw(registry old new)],
		run => \&certified_dead
	});
done_testing();
