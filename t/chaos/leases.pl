# No id comes twice among servers that lease their worker ids.  Three servers
# contend for two worker ids, while faults hit the servers and the registry.
# Clients keep every id that they receive from any server.
#
# The seed chooses the order of the faults.  Several faults can be in progress
# at a time.  The faults of a server are:
#
# - Its clock steps back or ahead, by milliseconds up to minutes.
# - A backend or the registry's worker gets SIGKILL.
# - The worker "snowflake registry" is terminated, or is suspended while the
#   rest of the server runs.
# - The postmaster gets SIGKILL, or the server is stopped, immediately or fast.
#   After a crash the mark's page may also be damaged, but only if the recovery
#   rewrites the page from WAL.  The server starts again before or after the
#   end of its lease.
# - The whole server is suspended, in some cases beyond its lease.
# - A copy of the server's data directory, a base backup or a promoted standby
#   starts beside the server, or while the server is stopped or suspended, and
#   issues ids, too.
# - A base backup or a promoted standby replaces the server for good.
#
# Every such copy has the mark's page of the original, with the mark and the
# lease.  The registry did not grant this lease to the copy, so the copy has to
# claim a worker id of its own.
#
# The faults of the registry are clean stops, crashes, suspensions, steps of
# its clock, ended sessions, its creation anew, and the replacement by its
# standby:
#
# - A synchronous standby has every lease when it is promoted.  In half of the
#   cases the old registry is first suspended, and comes back for a while.
# - An asynchronous standby is first cut off for a while, so that it misses the
#   last leases.  The old registry is stopped for good.  The standby is
#   either promoted or started without standby.signal.  After a start without
#   this file, the registry has been set back, and has to notice that.
# - After a promotion, the new registry's clock is behind the old registry's in
#   half of the cases.
#
# At the end the test checks that
#
# - every server gets ids again within the time that a failover may cost, and
#   within seconds where there is no failover;
# - no id came twice, whichever clients received it;
# - no two servers had one worker id at the same time;
# - the ids of each client always increase;
# - clients received only the errors of %allowed_errors;
# - in a run of a minute or more, worker ids passed from one server to another
#   even before the faults ended.
#
# A registry whose clock is ahead grants fences that are ahead, too, and the
# next holder of a worker id issues no ids before the fence.  So the test puts
# all clocks forward to the registry's clock when such a fault ends.
#
# The servers are in SnowflakeFleet.pm, the registry and its standby in
# lib/SnowflakeRegistryPair.pm, the ids in SnowflakeLedger.pm, and the
# history of the leases in lib/SnowflakeLeaseHistory.pm.
#
#   CHAOS_SECONDS   the seconds in which new faults begin (15)
#   CHAOS_SEED      chooses the same order of faults as in an earlier run with
#                   this seed; the timing still differs
#   CHAOS_FAULTS    uses only these faults, whose names are separated by commas
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib", $FindBin::RealBin;
use List::Util qw(shuffle sum0);
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeChaosServer;
use SnowflakeFaults;
use SnowflakeFleet;
use SnowflakeLeaseHistory;
use SnowflakeLedger;
use SnowflakeRegistryPair;
use SnowflakeServer;
use Test::More;
use Time::HiRes qw(time);

use constant {
	SERVERS => 3,
	LEASE_S => 4,
	LEAD_S => 2,
	SLACK_S => 6,
	REGISTRY_WORKER => 'snowflake registry',
};

# The most seconds until a server has ids again on a machine with few
# processors: after a failover of the registry, and without a failover.
use constant {
	FAILOVER_S => LEASE_S + LEAD_S + SLACK_S + 5,
	USUAL_S => 8,
};

# The statements of one batch, by the kind of the client.
my %statements = (
	single => sub { return "SELECT snowflake_nextval();\n" x 20 },
	many => sub {
		return 'SELECT snowflake_nextvals(' . (1 + int rand 400) . ");\n";
	});

# How often each fault is in the deck, from which the test draws the faults.
my %deck = (
	back_by_ms => 2,
	back_by_s => 2,
	back_by_minutes => 1,
	ahead_by_s => 2,
	ahead_by_minutes => 1,
	backend_killed => 2,
	registry_worker_killed => 3,
	registry_worker_ended => 4,
	registry_worker_suspended => 3,
	postmaster_killed => 2,
	immediate_stop => 2,
	fast_stop => 4,
	suspended => 6,
	copied => 5,
	replaced => 2,
	parameters => 2,
	registry_stopped => 2,
	registry_killed => 2,
	registry_suspended => 2,
	registry_clock => 2,
	registry_sessions_ended => 2,
	registry_failover => 5,
	registry_set_back => 4,
	registry_created_anew => 1);

# The errors that a client may receive, and their messages.
my %allowed_errors = (
	'55000' =>
	  qr/^the clock is \d+\.\d{3} ms behind (?:the last snowflake id|the fence of the worker id's last holder)$|^snowflake ids cannot be issued because (?:this server holds no lease on a worker id|the clock is past the fence of the lease on the worker id|they are further ahead of the clock than the lease on the worker id lasts)$/,
	'53300' => qr/^sorry, too many clients|^remaining connection slots/,
	'57P01' => qr/^terminating connection/,
	'57P02' => qr/^terminating connection because of crash/,
	'57P03' => qr/^the database system is/,
	'08006' => qr//);

my $seconds = $ENV{CHAOS_SECONDS} || 15;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
srand($seed);
note("seed $seed, $seconds s");

if (defined $ENV{CHAOS_FAULTS})
{
	my %wanted = map { $_ => 1 } split /,/, $ENV{CHAOS_FAULTS};
	delete @deck{ grep { !$wanted{$_} } keys %deck };
}

my $began = now();
my %counts;                     # of faults
my $chaos = SnowflakeChaos->new(
	directory => PostgreSQL::Test::Utils::tempdir(),
	seed => $seed,
	batch => sub { return $statements{ $_[0] }->() });
my $ledger = SnowflakeLedger->new(
	$chaos,
	node_of => \&worker_bit_of,
	tick_of => \&tick_of,
	time_of => \&instant_of);
my $fleet = SnowflakeFleet->new($chaos);
my $registries = SnowflakeRegistryPair->new(
	fleet => $fleet,
	lease_s => LEASE_S,
	lead_s => LEAD_S,
	slack_s => SLACK_S,
	layout => LAYOUT);

# Returns a random number of seconds, from far below to above a lease.
sub around_lease_s
{
	return rand() < 0.3 ? rand 2 : 1.5 + rand(1.2 * LEASE_S);
}

# ----- faults of a server -----

# Each function returns false if the fault cannot happen to any server now.

my %fault;

# Takes any server whose clock is right, and steps its clock ahead (1) or back
# (-1): by $least_s and up to $more_s more, for $for_s and up to $for_more_s
# more.
sub step_any_clock
{
	my ($sign, $least_s, $more_s, $for_s, $for_more_s) = @_;
	my $server = $fleet->any_server_with_right_clock // return 0;
	my $step_s = $sign * ($least_s + rand $more_s);

	$server->step_clock_for($step_s, $for_s + rand $for_more_s);
	return 1;
}

$fault{back_by_ms} = sub { step_any_clock(-1, 0.001, 0.2, 0.02, 0.5) };

$fault{back_by_s} = sub { step_any_clock(-1, 1, 3, 0.5, 3) };

$fault{back_by_minutes} = sub { step_any_clock(-1, 30, 150, 0.5, 4) };

$fault{ahead_by_s} = sub { step_any_clock(1, 0.2, 3, 0.5, 3) };

$fault{ahead_by_minutes} = sub { step_any_clock(1, 30, 150, 0.5, 4) };

# Sends a signal to a process of any server.
sub signal_process
{
	my ($name, $signal) = @_;
	my $server = $fleet->any_server // return 0;
	my ($pid) = shuffle processes_of($server->{node}, $name);

	return 0
	  unless defined $pid
	  && ( $signal eq 'KILL'
		? $server->kill_process($pid)
		: kill($signal, $pid) == 1);
	log_event("$server->{name}: SIG$signal to $pid, $name");
	return 1;
}

$fault{backend_killed} = sub { signal_process('postgres \[local\]', 'KILL') };

$fault{registry_worker_killed} = sub { signal_process(REGISTRY_WORKER, 'KILL') };

# pg_terminate_backend() sends this signal as well.
$fault{registry_worker_ended} = sub { signal_process(REGISTRY_WORKER, 'TERM') };

$fault{registry_worker_suspended} = sub {
	my $server = $fleet->any_server // return 0;
	my ($pid) = processes_of($server->{node}, REGISTRY_WORKER);
	my $for_s = around_lease_s();

	return 0
	  unless defined $pid && $server->suspend_worker_for($pid, $for_s);
	log_event(sprintf '%s: registry worker suspended for %.3f s',
		$server->{name}, $for_s);
	return 1;
};

# Ends a server; "how" is "fast", "immediate" or "killed".  After half of the
# crashes, damages the mark's page.
sub take_down
{
	my ($server, $how) = @_;

	if ($how eq 'killed')
	{
		$server->end_life('killed');
		log_event("$server->{name}: postmaster killed");
	}
	else
	{
		$server->stop($how);
	}
	$server->damage_page unless $how eq 'fast' || rand() < 0.5;
	return;
}

# Ends any server, and starts the server again before or after the end of its
# lease.
sub end_and_start
{
	my ($how) = @_;
	my $server = $fleet->any_server // return 0;

	take_down($server, $how);
	$server->start_again_after(around_lease_s());
	return 1;
}

$fault{postmaster_killed} = sub { end_and_start('killed') };

$fault{immediate_stop} = sub { end_and_start('immediate') };

$fault{fast_stop} = sub { end_and_start('fast') };

$fault{suspended} = sub {
	my $server = $fleet->any_server // return 0;
	$server->suspend_for(around_lease_s());
	return 1;
};

# Changes parameters, so that a server's ids may lead the clock or come in
# blocks.
$fault{parameters} = sub {
	my $server = $fleet->any_server // return 0;

	write_parameters(
		$server->{node},
		clock_policy => (qw(wait error advance))[ rand 3 ],
		clock_tolerance => 1000 + int rand 4000,
		block_size => (1, 64, 1000)[ rand 3 ],
		sequence_start => (qw(zero zero random))[ rand 3 ],
		high_water_interval => 50 + int rand 950);
	return 1;
};

# ----- copies -----

# Starts a copy of the server whose lease ends last.  There is at most one copy
# at a time.  The original runs on, or it is suspended or stopped and comes
# back later.  With "no_registry" the original runs on, but the registry is
# suspended for a while, so that the copy finds no registry.  The first copy of
# a run always has "no_registry", and its original has a lease.
$fault{copied} = sub {
	my ($original, $left_s) = $fleet->newest_lease;
	my $how =
	  (qw(no_registry beside beside suspended stopped released backup standby))
	  [ rand 8 ];
	my $copy;

	return 0 if !defined $original || $fleet->has_copy;
	unless ($counts{copied})
	{
		return 0 if $left_s < 1;
		$how = 'no_registry';
	}
	$registries->{registry}->suspend_for(1 + rand 2)
	  if $how eq 'no_registry' && $registries->is_up;
	$original->stop('immediate') if $how eq 'stopped';
	$original->stop('fast') if $how eq 'released';
	$copy =
	    $how eq 'backup' ? $fleet->restored_backup($original, 'copy')
	  : $how eq 'standby' ? $fleet->caught_up_standby($original, 'copy')
	  : $fleet->copied_server($original, 'copy');
	return 0 unless defined $copy;
	if ($how eq 'suspended')
	{
		$original->suspend_for(2 + rand(1.2 * LEASE_S));
	}
	elsif ($how eq 'stopped' || $how eq 'released')
	{
		$original->start_again_after(rand(1.2 * LEASE_S));
	}
	log_event("$copy->{name}: copy of $original->{name}, $how");
	$fleet->add_copy($copy);
	after(3 + rand 5, sub { $fleet->remove_copy($copy) });
	return 1;
};

# Replaces a server by its base backup or its standby.  The original runs on
# for a moment after the backup is taken, or while the standby follows it, and
# then ends.
$fault{replaced} = sub {
	my ($original) = shuffle grep { $_->is_up } $fleet->members;
	my $is_standby = rand() < 0.5;
	my $server;

	return 0 unless defined $original;
	$server =
	    $is_standby
	  ? $fleet->caught_up_standby($original, 'server')
	  : $fleet->restored_backup($original, 'server');
	return 0 unless defined $server;
	let_pass(rand 1);

	# Give up if the original's clock has a step now, because the clock of the
	# new server would not have that step.
	unless ($original->is_up && $original->{step_s} == 0)
	{
		$server->stop('immediate') if $server->is_up;
		return 0;
	}
	take_down($original, (qw(fast immediate killed))[ rand 3 ]);
	$fleet->retire($original);
	log_event("$server->{name}: in place of $original->{name}, "
		  . ($is_standby ? 'promoted' : 'from a base backup'));
	$fleet->add_copy($server);
	return 1;
};

# ----- faults of the registry -----

$fault{registry_stopped} = sub {
	return 0 unless $registries->is_up;
	$registries->{registry}->stop((qw(fast immediate))[ rand 2 ]);
	$registries->{registry}->start_again_after(around_lease_s());
	return 1;
};

$fault{registry_suspended} = sub {
	return 0 unless $registries->is_up;
	$registries->{registry}->suspend_for(around_lease_s());
	return 1;
};

$fault{registry_killed} = sub {
	my $registry = $registries->{registry};

	return 0 unless $registry->is_up;
	$registry->end_life('killed');
	log_event("$registry->{name}: killed");
	$registry->start_again_after(around_lease_s());
	return 1;
};

# Steps the registry's clock back or ahead for a while, in some cases so far
# ahead that leases seem to be over.
$fault{registry_clock} = sub {
	return 0 unless $registries->may_step_clock;
	$registries->step_clock_for(
		(-1 - rand 60, 0.5 + rand 4, 4 + rand 60)[ rand 3 ],
		0.5 + rand 3);
	return 1;
};

# Ends or cancels the registry's sessions for a second.  A server that claims
# meanwhile gets no answer, or an error.
$fault{registry_sessions_ended} = sub {
	return 0 unless $registries->is_up;
	my $until = now() + 1;
	my $signal = (qw(TERM INT))[ rand 2 ];
	my $ended = 0;

	while (now() < $until)
	{
		$ended += kill $signal,
		  processes_of($registries->{registry}{node}, 'postgres \[local\]');
		tend();
		return 1 unless $registries->is_up;
	}
	log_event("registry: $ended times SIG$signal to sessions");
	return 1;
};

$fault{registry_failover} = sub { $registries->fail_over };

$fault{registry_set_back} = sub { $registries->begin_set_back };

$fault{registry_created_anew} = sub { $registries->create_anew };

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };

my @conf = (
	'max_connections = 30',
	'wal_level = replica',
	'max_wal_senders = 4');

$registries->make_registry(@conf);
for my $i (0 .. SERVERS - 1)
{
	$fleet->add_server(
		$registries->conninfo,
		-0.4 + rand 0.8,
		(1, 64, 1)[$i],
		@conf, "snowflake.layout = '" . LAYOUT . "'");
}
$fleet->draw_ids($_) for $fleet->servers;
$registries->make_standby;

# Draw faults until the time is over and every kind of fault has happened, but
# for a minute more at most.  A fault that cannot happen now is drawn again
# later, together with other faults, because one of these may have to come
# first.  For example, a registry with a synchronous standby cannot be set back
# before it has failed over.
my @hand = shuffle sort keys %deck;
my $until = now() + $seconds;
while (now() < $until || keys %counts < keys %deck && now() < $until + 60)
{
	@hand = shuffled(\%deck) unless @hand;
	my $name = shift @hand;
	my $is_done = $fault{$name}->();

	if ($is_done)
	{
		$counts{$name}++;
	}
	elsif (!$counts{$name})
	{
		@hand = shuffle sort keys %deck unless grep { $_ ne $name } @hand;
		push @hand, $name unless grep { $_ eq $name } @hand;
	}
	let_pass(rand($is_done ? 0.8 : 0.1));
	$chaos->check_clients;
}

# Wait until every fault has ended and every copy has been removed.
log_event('no new faults');
let_pass(0.1) while is_fault_due();
my @originals = $fleet->members;
write_parameters($_->{node}, clock_policy => 'wait', clock_tolerance => 60_000)
  for @originals;
$_->resume_workers for @originals;

# From here on, worker ids pass from one server to another in every run.
my $calm_at = $fleet->slowest_time(@originals);

# There is one server more than there are worker ids.  So stop one server at a
# time, and expect ids of all others.
my $limit_s = FAILOVER_S;
for my $server (@originals)
{
	my $begin = now();

	$server->stop('fast');
	my $is_good = $chaos->get_ids_until(\&tend, $begin + $limit_s,
		$fleet->clients_of(grep { $_->is_up } @originals));
	ok($is_good,
		sprintf "all servers but %s have ids within %d s (%.1f s)",
		$server->{name}, $limit_s, now() - $begin);
	$server->bring_back;
	$limit_s = USUAL_S;
}
$fleet->dismiss_clients(@originals);
$fleet->await_clients(@originals);
is($fleet->{client_errors}, 0, 'clients end without an error');

# ----- what the ids say -----

my @servers = $fleet->servers;
my %server_of;                  # a server's name, by its client's number
for my $server (@servers)
{
	$server_of{$_} = $server->{name} for $fleet->clients_of($server);
}
$ledger->note_crashes([ crashes() ], \%server_of);
my %received = $ledger->read_clients(\%allowed_errors, sort keys %server_of);
my %issued = map { $_->{name} => sum0(@received{ $fleet->clients_of($_) }) }
  @servers;
my $duplicates = $ledger->count_duplicates(
	sub {
		tell_of_duplicate($registries->{registry}, \%server_of, @_[ 0 .. 2 ]);
	});
my %hand_overs = count_hand_overs($ledger, \%server_of);
my $early_hand_overs = grep { (split)[0] < $calm_at }
  map { @$_ } values %hand_overs;
my %grants = count_grants(@servers);

note("seed $seed: $ledger->{ids} ids in "
	  . int(now() - $began) . ' s, '
	  . sum0(values %counts) . ' faults, '
	  . $ledger->errors_of('55000') . ' refusals, '
	  . sum0(values %grants) . ' grants, '
	  . sum0(map { scalar @$_ } values %hand_overs)
	  . " hand-overs ($early_hand_overs early), "
	  . marks_damaged()
	  . " marks damaged, $duplicates duplicates");
note(scalar(crashes()) . " crashes; by the exception of promise 1, "
	  . "$ledger->{excused}{duplicate} ids came again, and "
	  . "$ledger->{excused}{order} ids are not larger than an earlier one");
note_counts(faults => \%counts);
note_counts(errors => $ledger->{errors});
note("ids: $_->{name} $issued{$_->{name}}") for @originals;
note('ids: ' . $fleet->copies . ' copies '
	  . sum0(map { $issued{ $_->{name} } } $fleet->copies));

# In a short run, or with some faults only, each server may keep its worker id.
cmp_ok($early_hand_overs, '>', 0, 'worker ids passed from one server to another before the faults ended')
  if $seconds >= 60 && !defined $ENV{CHAOS_FAULTS};
is($registries->{unnoticed}, 0, 'every registry that was set back has noticed it');
is($duplicates, 0, 'no id came twice');
for my $worker_id (sort keys %hand_overs)
{
	my @seen = @{ $hand_overs{$worker_id} };

	cmp_ok(scalar @seen, '<=', $grants{$worker_id} // 0,
		"worker_id $worker_id: no two servers have had it at once")
	  or diag(join "\n", @seen > 100 ? @seen[ 0 .. 99 ] : @seen);
}
$ledger->test_clients;

$_->{node}->stop
  for @originals, grep { defined } @$registries{qw(standby registry)};

done_testing();
