# A registry that has forgotten leases, because it was created anew, restored
# from a dump, or was a standby that lagged; and clocks that are wrong for a
# while.  No id comes twice, and a server that holds a lease keeps its worker id
# and goes on.  The test prints how long servers are without ids.
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

# What a quarantine lasts beyond lease_duration and largest_lead, as a new
# registry has it.  Scenarios set less, except where the slack matters.
use constant SLACK_S => 30;

my $directory = PostgreSQL::Test::Utils::tempdir();

# The refusal of a newcomer in a quarantine.
my $in_quarantine =
  qr/^The registry is new, or may have forgotten leases at \d{4}-[^;]*; servers without a lease get worker ids from \d{4}-/;

# ----- what scenarios share -----

# Tests that a server has claimed, and that the registry has granted a lease or
# has refused because of a quarantine.
sub wait_for_first_answer
{
	my ($server) = @_;
	return ok(
		wait_for(
			sub {
				$server->safe_psql('postgres',
					'SELECT lease_renewals > 0 FROM snowflake_stat') eq 't'
				  || refusal_of($server) =~ $in_quarantine;
			}),
		$server->name . ' has an answer of the registry');
}

# Waits until a server issues an id, tests how long this took since an instant,
# and returns the id.
sub has_id_within
{
	my ($server, $since, $seconds, $what) = @_;
	my $id = first_id($server, $seconds + 60);
	my $took = time - $since;

	cmp_ok($took, '<=', $seconds, sprintf '%s: %.1f s without ids', $what, $took);
	return $id;
}

# ----- a registry that is created anew while servers run -----

sub created_anew
{
	my $lease_s = 12;
	my @constants = (lease_duration => "$lease_s s", largest_lead => '1 s');
	my $registry = new_registry('registry', {@constants});
	my $conninfo = $registry->connstr('postgres');
	my $any = start_server(leasing_server('any', $conninfo));
	my $fixed = start_server(leasing_server('fixed', $conninfo, wants(5)));
	my @clients = map { new_client($_) } $any, $fixed;
	my %worker_id = map { $_->name => worker_id_of(first_id($_)) } $any, $fixed;

	$registry->safe_psql('postgres', 'DROP EXTENSION snowflake_registry CASCADE');
	my $since = time;
	make_registry($registry, @constants, is_open => 0);
	my $rival = start_server(leasing_server('rival', $conninfo, wants(5)));
	my $newcomer = start_server(leasing_server('newcomer', $conninfo));
	refuses($newcomer, $in_quarantine, 'a newcomer waits');
	has_id_within($newcomer, $since, $lease_s + 1 + SLACK_S + 10,
		'a newcomer after a registry was created anew');
	new_client($newcomer);
	refuses($rival, qr/^worker_id 5 of datacenter_id 0 is leased by fixed/,
		'the rival of a holder is refused');
	is_undisturbed($_, "$_->{name} has issued ids all the time") for @clients;
	is(worker_id_at($_), $worker_id{ $_->name }, $_->name . ' has kept its worker id')
	  for $any, $fixed;
	is_unique(at_least => 1000);
	return;
}

# ----- a dump that is older than a lease -----

# The dump has no row of the holder's worker id.  The holder comes forward before
# another server gets the worker id, and the registry believes the holder.
sub old_dump
{
	my $registry = new_registry('registry', { lease_duration => '12 s' });
	my $restored = new_registry('restored');
	my $either = hosts_of($registry, $restored);
	my $dump = "$directory/$$.sql";
	my $held = qr/^worker_id 5 of datacenter_id 0 is leased by holder/;

	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'),
		'-f', $dump);
	my $holder = start_server(leasing_server('holder', $either, wants(5)));
	my $client = new_client($holder);
	$registry->stop('immediate');
	system_or_bail('psql', '-XqAt', '-o', '/dev/null', '-v',
		'ON_ERROR_STOP=1', '-d', $restored->connstr('postgres'), '-f', $dump);

	my $rival = start_server(leasing_server('rival', $either, wants(5)));
	my $rival_client = new_client($rival, 'without ids at first');
	refuses($rival, qr/$in_quarantine|$held/,
		'the rival does not get the worker id before the holder comes forward');
	wait_for_grant($restored, $holder);
	refuses($rival, $held,
		'the rival does not get the worker id after the holder has come forward');
	is_undisturbed($client, 'the holder has issued ids all the time');
	is(scalar(my @ids = ids_of($rival_client)), 0, 'the rival has issued no id');
	is_unique();
	return;
}

# ----- a standby that lags is started without standby.signal -----

# The lease lasts longer than the standby takes to start on a busy machine.
sub no_promotion
{
	my $registry = new_registry('registry', { lease_duration => '40 s' });
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
		qr/WARNING:  the registry has not granted a lease.*\n[^\n]*DETAIL:  The registry answers with an error: schema "snowflake_registry" does not exist/,
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
		{ lease_duration => '10 s', largest_lead => '2 s', slack => '3 s' },
		$ahead_s);
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
	my $newcomer = start_server(leasing_server('newcomer', $either, wants(7)));
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

# ----- the registry and a database fail over together -----

# The promoted database is another holder than its primary was.
sub fails_over_together
{
	my $lease_s = 12;
	my $registry = new_registry('registry',
		{ lease_duration => "$lease_s s", slack => SLACK_S . ' s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my %primary = (
		any => start_server(leasing_server('any', $either)),
		fixed => start_server(leasing_server('fixed', $either, wants(5))));
	my %last = map { $_ => scalar first_id($primary{$_}) } keys %primary;
	my %heir = map { $_ => new_standby($primary{$_}, "${_}_heir") } keys %primary;

	cut_off($registry, $standby);
	for my $name (keys %primary)
	{
		$last{$name} = first_id($primary{$name});
		$primary{$name}->wait_for_catchup($heir{$name}, 'replay',
			$primary{$name}->lsn('flush'));
	}
	$_->stop('immediate') for $registry, values %primary;
	my $since = time;
	$_->promote for $standby, values %heir;
	for my $name (sort keys %heir)
	{
		my $id = has_id_within($heir{$name}, $since, $lease_s + 60,
			"the promoted database ($name)");
		cmp_ok($id, '>', $last{$name}, "$name: its ids are larger than those before");
		new_client($heir{$name});
	}
	is(worker_id_at($heir{fixed}), 5, 'the promoted database has its configured worker id');
	is_unique(others => [ values %last ]);
	return;
}

# ----- restarts after a failover -----

# Newcomers wait for a minute and a half.  None of the restarted servers waits, no
# matter when the server stops.  The new registry does not know of some leases;
# their holders resume them after a crash.
sub restarts
{
	my $registry = new_registry('registry',
		{ lease_duration => '30 s', slack => '60 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my %server = map {
		my ($name, @conf) = @$_;
		$name => leasing_server($name, $either, @conf)
	} ['known'], [ 'given', wants(20) ], ['between'], ['lost'],
	  [ 'lost_given', wants(25) ];
	my %last;

	for my $name (qw(known given between))
	{
		start_server($server{$name});
		first_id($server{$name});
	}
	cut_off($registry, $standby);
	for my $name (qw(lost lost_given))
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
	for my $name (qw(known given between))
	{
		my $offset = -s $server{$name}->logfile;

		$last{$name} = first_id($server{$name});
		$server{$name}->stop;
		like(logged($server{$name}, $offset),
			qr/has been given back to the registry/, "$name: a stop releases the lease");
		start_server($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, after a failover");
	}
	for my $name (qw(lost lost_given))
	{
		$last{$name} = first_id($server{$name});
		$server{$name}->stop('immediate');
		start_server($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, after a failover");
	}
	refuses(start_server(leasing_server('newcomer', $either)),
		$in_quarantine, 'a newcomer waits');
	return;
}

# ----- clocks that are wrong for a while -----

# A server's failed attempts to renew its lease.
sub failures_of
{
	my ($server) = @_;
	return $server->safe_psql('postgres',
		'SELECT lease_failures FROM snowflake_stat');
}

my $past = qr/^The registry's clock is at \d{4}-[^,]*, and its lease on worker_id \d+ is for ids before \d{4}-[^,]*, but this server's clock is at \d{4}-/;

# A server's clock is a hundred days ahead for a while.
sub wrong_clock
{
	my $registry = new_registry('registry',
		{ lease_duration => '4 s', largest_lead => '2 s' });
	my $standby = new_standby($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my $wrong = start_server(leasing_server('wrong', $either));
	my $last = first_id($wrong);
	my $offset = -s $wrong->logfile;

	set_clock($wrong, 100 * 86400);
	refuses($wrong, qr/^The fence is |$past/, 'a server whose clock is a hundred days ahead issues no id');
	logs($wrong, $offset, qr/WARNING:  the registry has not granted a lease.*\n.*DETAIL:  The registry's clock is at /,
		'its log names both clocks');
	cmp_ok(failures_of($wrong), '>', 0, 'the renewals are failures');
	sleep 4;
	set_clock($wrong, 0);
	my ($id, $seconds) = first_id($wrong);
	cmp_ok($seconds, '<', AT_ONCE_S, 'the server issues ids at once when its clock is right');
	cmp_ok($id, '>', $last, 'the ids after the wrong clock are larger');
	cmp_ok(timestamp_of($id), '<', time + 1, 'the ids after the wrong clock do not lead the clock');

	$registry->wait_for_catchup($standby, 'replay', $registry->lsn('flush'));
	$registry->stop('immediate');
	my $since = time;
	$standby->promote;
	has_id_within(start_server(leasing_server('newcomer', $either)),
		$since, 4 + 2 + 2 + 10, 'a newcomer after a failover');
	return;
}

# The registry's clock is an hour behind for a while.
sub registry_behind
{
	my $registry = new_registry('registry', { lease_duration => '6 s' });
	my $server = start_server(leasing_server('server', $registry->connstr('postgres')));
	my $last = first_id($server);
	my $offset = -s $server->logfile;

	set_clock($registry, -3600);
	logs($server, $offset, qr/WARNING:  the registry has not granted a lease.*\n.*DETAIL:  The registry's clock is at /,
		'the log names both clocks');
	refuses($server, qr/^The fence is |$past/, 'no id is issued past the fence');
	my $failures = failures_of($server);
	sleep 5;
	my $more = failures_of($server) - $failures;
	cmp_ok($more, '>', 0, 'the renewals are failures');
	cmp_ok($more, '<', 60, "the server does not claim without a pause ($more failures in 5 s)");
	set_clock($registry, 0);
	my ($id, $seconds) = first_id($server);
	note sprintf 'first id %.1f s after the clock was set right', $seconds;
	cmp_ok($seconds, '<', AT_ONCE_S, 'the server issues ids when the clock is right');
	cmp_ok($id, '>', $last, 'the ids are larger than those before');
	return;
}

# The registry's clock is a day ahead for a moment.  A guarded server that
# crashes then and is moved is refused, and free() helps.
sub registry_ahead
{
	my $registry = new_registry('registry', { lease_duration => '6 s' });
	my $server = start_server(leasing_server('server', $registry->connstr('postgres'), wants(5)));
	my $moved = server_named('moved');

	first_id($server);
	set_clock($registry, 86400);
	wait_for_grant($registry, $server);
	set_clock($registry, 0);
	my $client = new_client($server);
	wait_for_grant($registry, $server);
	is_undisturbed($client, 'the holder issues ids');
	my $last = first_id($server);
	kill_hard($server);
	mkdir $moved->basedir;
	system_or_bail('cp', '-a', $server->data_dir, $moved->data_dir);
	unlink $moved->data_dir . '/postmaster.pid';
	settle($moved);
	start_server($moved);
	refuses($moved, qr/^Ids of worker_id 5 of datacenter_id 0 begin at .*, ahead of the server's clock/,
		'the moved server is refused until the far fence');
	my $since = time;
	$registry->safe_psql('postgres', 'SELECT snowflake_registry.free(0, 5)');
	my $id = has_id_within($moved, $since, 1 + 10, 'the moved server, freed');
	cmp_ok($id, '>', $last, 'its ids are larger than those before');
	cmp_ok(timestamp_of($id), '<', time + 1, 'its ids do not lead the clock');
	is_unique(others => [$id]);
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
		name => 'created anew',
		nodes => [qw(registry any fixed rival newcomer)],
		run => \&created_anew
	},
	{
		name => 'fails over together',
		nodes => [qw(registry standby any fixed any_heir fixed_heir)],
		run => \&fails_over_together
	},
	{
		name => 'an old dump',
		nodes => [qw(registry restored holder rival)],
		run => \&old_dump
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
		name => 'a slow clock',
		nodes => [qw(registry standby holder victim rival next newcomer)],
		run => \&slow_clock
	},
	{
		name => 'crash after coming forward',
		nodes => [qw(registry standby holder next)],
		run => \&crash_after_coming_forward
	},
	{
		name => 'restarts',
		nodes => [
			qw(registry standby known given lost lost_given between newcomer)
		],
		run => \&restarts
	},
	{
		name => 'a wrong clock',
		nodes => [qw(registry standby wrong newcomer)],
		run => \&wrong_clock
	},
	{
		name => 'a registry behind',
		nodes => [qw(registry server)],
		run => \&registry_behind
	},
	{
		name => 'a registry ahead',
		nodes => [qw(registry server moved)],
		run => \&registry_ahead
	},
	{
		name => 'a registry is moved',
		nodes => [qw(registry holder)],
		run => \&moved
	},
	{
		name => 'free after a death',
		nodes => [qw(registry old new)],
		run => \&certified_dead
	});
done_testing();
