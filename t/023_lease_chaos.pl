# No id comes twice among servers that lease their worker ids.  Three servers
# contend for two worker ids, while faults hit the servers and the registry.
# Clients keep every id that they receive from any server.
#
# The seed chooses the order of the faults.  Several faults can be in progress
# at a time.  The faults of a server are:
#
# - Its clock steps back or ahead, by milliseconds up to minutes.
# - A backend or a worker gets SIGKILL.
# - The worker "snowflake registry" is terminated, or is suspended while the
#   rest of the server runs.
# - The postmaster gets SIGKILL, or the server is stopped, immediately or fast.
#   After a crash the mark's page may also be damaged, but only if the recovery
#   rewrites the page from WAL.  The server starts again before or after the
#   end of its lease.
# - The whole server is suspended, in some cases beyond its lease.
# - A copy of its data directory, a base backup or a promoted standby starts
#   beside it, or while it is stopped or suspended, and issues ids, too.
# - A base backup or a promoted standby replaces it for good.
#
# Every such copy has the mark's page of the original, with the mark and the
# lease.  The registry did not grant this lease to the copy, so the copy has to
# claim a worker id of its own.
#
# The faults of the registry are clean stops, crashes, suspensions, steps of
# its clock, ended sessions, and the replacement by its standby:
#
# - A synchronous standby has every lease when it is promoted.  In half of the
#   cases the old registry is suspended before, and comes back for a while.
# - An asynchronous standby is cut off for a while before, so that it misses
#   the last leases.  The old registry is stopped for good.  The standby is
#   either promoted or started without standby.signal.  A start without the
#   file makes it a registry that was set back.  Then either the DBA declares
#   this, or the claim of a holder shows it to the registry.
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
# - every server issued ids.
#
# A registry whose clock is ahead grants fences that are ahead, too, and the
# next holder of a worker id issues no ids before the fence.  So the test puts
# all clocks forward to the registry's clock when such a fault ends.
#
#   CHAOS_SECONDS   how long new faults begin (15)
#   CHAOS_SEED      chooses the same order of faults as in an earlier run with
#                   this seed; the timing still differs
#   CHAOS_FAULTS    uses only these faults, whose names are separated by commas
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(min shuffle sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeFaults;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeServer qw(settle);
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	SERVERS => 3,
	LAYOUT => '41/5/1/12',
	EPOCH_S => 1288834974.657,
	BITS_BELOW_TICK => 18,
	LEASE_S => 4,
	LEAD_S => 2,
	REGISTRY_WORKER => 'snowflake registry',
};

# The most seconds until a server has ids again on a machine with few
# processors: after a failover of the registry, and without a failover.
use constant {
	NEWCOMER_S => 2 * (LEASE_S + LEAD_S) + 5,
	HOLDER_S => 8,
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
	mark_worker_killed => 1,
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
	registry_set_back => 4);

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

my $directory = PostgreSQL::Test::Utils::tempdir();
my $began = now();
my %counts;                     # of faults
my $marks_damaged = 0;
my $unnoticed = 0;              # registries set back that did not notice it
my $chaos = SnowflakeChaos->new(
	directory => $directory,
	seed => $seed,
	batch => sub { return $statements{ $_[0] }->() });

# ----- servers and their clocks -----

# The servers.  Each is a hash with the fields
#
#   name               of its node; begins with "copy" if it is a copy
#   node               its PostgreSQL::Test::Cluster
#   skew_s             the lasting difference of its clock from $common_s
#   step_s             the temporary step of its clock
#   state              "up", "down", "suspended" or "gone"
#   suspended          the processes of a suspended server
#   suspended_workers  the workers that are suspended alone
#   clients            the numbers of its clients
my @servers;
my ($registry, $standby, $former);
my $common_s = 0;               # how far all clocks have been put forward
my $nodes = SERVERS;            # the number in the newest name of a node
my $client_errors = 0;
my $is_taking_over = 0;         # is the standby cut off or being promoted?

sub adjust_clock
{
	my ($server) = @_;
	set_clock($server->{node},
		$common_s + $server->{skew_s} + $server->{step_s});
	return;
}

sub put_forward
{
	my ($by_s) = @_;

	$common_s += $by_s;
	adjust_clock($_)
	  for grep { defined } @servers, $registry, $standby, $former;
	log_event(sprintf 'all clocks %+.3f s', $by_s);
	return;
}

sub step_server
{
	my ($server, $by_s, $for_s) = @_;

	log_event(sprintf '%s: clock %+.3f s for %.3f s',
		$server->{name}, $by_s, $for_s);
	$server->{step_s} = $by_s;
	adjust_clock($server);
	after(
		$for_s,
		sub {
			# The registry granted fences by the clock that was ahead.  All
			# clocks have to reach these fences.
			put_forward($by_s) if $by_s > 0 && $server == $registry;
			$server->{step_s} = 0;
			adjust_clock($server);
		});
	return;
}

sub track
{
	my ($node, $skew_s) = @_;
	my $server = {
		name => $node->name,
		node => $node,
		skew_s => $skew_s,
		step_s => 0,
		state => 'down',
		clients => []
	};

	adjust_clock($server);
	return $server;
}

sub bring_back
{
	my ($server) = @_;

	start_server($server->{node});
	$server->{state} = 'up';
	log_event("$server->{name}: started");
	return;
}

sub stop_server
{
	my ($server, $mode) = @_;

	log_event("$server->{name}: stops, $mode");
	continue_processes($server);
	continue_workers($server);
	$server->{node}->stop($mode);
	$server->{state} = 'down';
	return;
}

sub suspend_server
{
	my ($server) = @_;

	$server->{suspended} = [ shuffle suspend($server->{node}) ];
	$server->{state} = 'suspended';
	return;
}

sub continue_processes
{
	my ($server) = @_;

	# Processes come back in any order.
	for my $pid (@{ delete $server->{suspended} // [] })
	{
		kill 'CONT', $pid;
		usleep(rand 20_000) if rand() < 0.3;
	}
	return;
}

sub resume_server
{
	my ($server) = @_;

	continue_processes($server);
	$server->{state} = 'up';
	log_event("$server->{name}: resumed");
	return;
}

sub suspend_for
{
	my ($server, $for_s) = @_;

	log_event(sprintf '%s: suspended for %.3f s', $server->{name}, $for_s);
	suspend_server($server);
	after($for_s, sub { resume_server($server) });
	return;
}

sub is_up
{
	my ($server) = @_;
	return defined $server && $server->{state} eq 'up';
}

# Returns a random server that is up, or nothing.
sub any_server
{
	return (shuffle grep { is_up($_) } @servers)[0];
}

# Returns a random server that is up and whose clock has no step, or nothing.
sub any_clock
{
	return (shuffle grep { is_up($_) && $_->{step_s} == 0 } @servers)[0];
}

# Returns a random number of seconds, from far below to above a lease.
sub around_lease_s
{
	return rand() < 0.3 ? rand 2 : 1.5 + rand(1.2 * LEASE_S);
}

# ----- faults of a server -----

# Each function returns false if there is no server now that it can be done to.

my %fault;

$fault{back_by_ms} = sub {
	my $server = any_clock() // return 0;
	step_server($server, -0.001 - rand 0.2, 0.02 + rand 0.5);
	return 1;
};

$fault{back_by_s} = sub {
	my $server = any_clock() // return 0;
	step_server($server, -1 - rand 3, 0.5 + rand 3);
	return 1;
};

$fault{back_by_minutes} = sub {
	my $server = any_clock() // return 0;
	step_server($server, -30 - rand 150, 0.5 + rand 4);
	return 1;
};

$fault{ahead_by_s} = sub {
	my $server = any_clock() // return 0;
	step_server($server, 0.2 + rand 3, 0.5 + rand 3);
	return 1;
};

$fault{ahead_by_minutes} = sub {
	my $server = any_clock() // return 0;
	step_server($server, 30 + rand 150, 0.5 + rand 4);
	return 1;
};

sub signal_process
{
	my ($name, $signal) = @_;
	my $server = any_server() // return 0;
	my ($pid) = shuffle processes_of($server->{node}, $name);

	return 0 unless defined $pid && kill($signal, $pid) == 1;
	log_event("$server->{name}: SIG$signal to $pid, $name");
	return 1;
}

$fault{backend_killed} = sub { signal_process('postgres \[local\]', 'KILL') };

$fault{mark_worker_killed} = sub { signal_process('snowflake high-water mark', 'KILL') };

$fault{registry_worker_killed} = sub { signal_process(REGISTRY_WORKER, 'KILL') };

# pg_terminate_backend() sends this signal as well.
$fault{registry_worker_ended} = sub { signal_process(REGISTRY_WORKER, 'TERM') };

$fault{registry_worker_suspended} = sub {
	my $server = any_server() // return 0;
	my ($pid) = processes_of($server->{node}, REGISTRY_WORKER);
	my $for_s = around_lease_s();

	return 0 unless defined $pid && kill('STOP', $pid) == 1;
	log_event(sprintf '%s: registry worker suspended for %.3f s',
		$server->{name}, $for_s);
	push @{ $server->{suspended_workers} }, $pid;
	after($for_s, sub { continue_workers($server) });
	return 1;
};

sub continue_workers
{
	my ($server) = @_;

	# Resume only processes that are still workers of this server, because
	# another process may have got the pid.  If the server is suspended or
	# down, resume none.
	my %is_ours = map { $_ => 1 }
	  is_up($server) ? processes_of($server->{node}, REGISTRY_WORKER) : ();
	my @pids =
	  grep { $is_ours{$_} } @{ delete $server->{suspended_workers} // [] };
	kill 'CONT', @pids;
	return;
}

sub start_again_after
{
	my ($server, $for_s) = @_;
	after($for_s, sub { bring_back($server) });
	return;
}

$fault{postmaster_killed} = sub {
	my $server = any_server() // return 0;

	take_down($server, 'killed');
	start_again_after($server, around_lease_s());
	return 1;
};

# Ends a server; "how" is "fast", "immediate" or "killed".  In half of the
# crashes, damages the mark's page.
sub take_down
{
	my ($server, $how) = @_;

	if ($how eq 'killed')
	{
		continue_workers($server);
		end_node($server->{node}, 'killed');
		$server->{state} = 'down';
		log_event("$server->{name}: postmaster killed");
	}
	else
	{
		stop_server($server, $how);
	}
	return if $how eq 'fast' || rand() < 0.5;
	my $damage = damage_mark($server->{node}) // return;
	log_event("$server->{name}: $damage");
	$marks_damaged++;
	return;
}

sub stop_and_start
{
	my ($mode) = @_;
	my $server = any_server() // return 0;

	take_down($server, $mode);
	start_again_after($server, around_lease_s());
	return 1;
}

$fault{immediate_stop} = sub { stop_and_start('immediate') };

$fault{fast_stop} = sub { stop_and_start('fast') };

$fault{suspended} = sub {
	my $server = any_server() // return 0;

	# The worker may be suspended already; it is resumed with all others.
	delete $server->{suspended_workers};
	suspend_for($server, around_lease_s());
	return 1;
};

# Changes parameters, so that a server's ids may lead the clock or come in
# blocks.
$fault{parameters} = sub {
	my $server = any_server() // return 0;

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

# Returns how many seconds of a server's lease are left, by its own clock.
sub lease_left_s
{
	my ($server) = @_;

	return try_value_of($server->{node},
		'SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM snowflake_node'
	) || 0;
}

# Returns a server whose data directory is a copy of another server's, as that
# was at one moment.
sub copied_server
{
	my ($original, $name) = @_;
	my $is_running = is_up($original);

	suspend_server($original) if $is_running;
	my $copy = track(copy_of($original->{node}, $name . ++$nodes),
		$original->{skew_s});
	if ($is_running)
	{
		continue_processes($original);
		$original->{state} = 'up';
	}
	return $copy;
}

# Returns a base backup as a server that is not started yet, or nothing if the
# backup failed.
sub restored_backup
{
	my ($original, $name) = @_;
	my $backup = track(PostgreSQL::Test::Cluster->new($name . ++$nodes),
		$original->{skew_s});

	base_backup($original->{node}, $backup->{node}) or return;
	settle($backup->{node});
	return $backup;
}

# Returns a standby that has replayed the WAL up to now, or nothing if it does
# not do so in time.
sub caught_up_standby
{
	my ($original, $name) = @_;
	my $standby = restored_backup($original, $name) // return;
	my $until = now() + 10;
	my $lsn;

	$standby->{node}->append_conf('postgresql.conf',
		"primary_conninfo = '" . $original->{node}->connstr . "'");
	$standby->{node}->append_conf('standby.signal', '');
	bring_back($standby);
	$lsn = try_value_of($original->{node}, 'SELECT pg_current_wal_flush_lsn()');
	while (defined $lsn && now() < $until)
	{
		return $standby
		  if (try_value_of($standby->{node},
				"SELECT pg_last_wal_replay_lsn() >= '$lsn'") // '') eq 't';
		let_pass(0.05);
	}
	stop_server($standby, 'immediate');
	return;
}

sub draw_ids
{
	my ($server) = @_;

	push @{ $server->{clients} },
	  $chaos->start_clients_of($server->{node}, qw(single many));
	return;
}

sub remove_copy
{
	my ($copy) = @_;

	# A copy that is suspended or stopped comes back first.
	unless (is_up($copy))
	{
		after(0.2, sub { remove_copy($copy) });
		return;
	}
	$chaos->command($copy->{name}, 0, 'none');
	stop_server($copy, (qw(fast immediate))[ rand 2 ]);
	$client_errors += $chaos->wait_for_clients(@{ $copy->{clients} });
	log_event("$copy->{name}: removed");
	$copy->{state} = 'gone';
	$copy->{node}->clean_node;
	return;
}

# Returns the server whose lease ends last, and how many seconds of the lease
# are left.  Returns nothing if no server is up.
sub newest_lease
{
	my %left_s = map { $_->{name} => lease_left_s($_) }
	  grep { is_up($_) } @servers;
	my ($server) = sort { $left_s{ $b->{name} } <=> $left_s{ $a->{name} } }
	  grep { is_up($_) } @servers;

	return defined $server ? ($server, $left_s{ $server->{name} }) : ();
}

# Starts a copy of the server whose lease ends last.  There is at most one copy
# at a time.  The original runs on, or it is suspended or stopped and comes
# back while the copy runs.  With "alone" the original runs on, but the
# registry is suspended for a while, so that the copy finds no registry.  The
# first copy of a run is always "alone", and its original has a lease.
$fault{copied} = sub {
	my ($original, $left_s) = newest_lease();
	my $how =
	  (qw(alone beside beside suspended stopped released backup standby))
	  [ rand 8 ];
	my $copy;

	return 0
	  if !defined $original || grep { $_->{state} ne 'gone' } copies();
	unless ($counts{copied})
	{
		return 0 if $left_s < 1;
		$how = 'alone';
	}
	suspend_for($registry, 1 + rand 2)
	  if $how eq 'alone' && is_up($registry);
	stop_server($original, 'immediate') if $how eq 'stopped';
	stop_server($original, 'fast') if $how eq 'released';
	$copy =
	    $how eq 'backup' ? restored_backup($original, 'copy')
	  : $how eq 'standby' ? caught_up_standby($original, 'copy')
	  : copied_server($original, 'copy');
	return 0 unless defined $copy;
	if ($how eq 'suspended')
	{
		suspend_for($original, 2 + rand(1.2 * LEASE_S));
	}
	elsif ($how eq 'stopped' || $how eq 'released')
	{
		start_again_after($original, rand(1.2 * LEASE_S));
	}
	log_event("$copy->{name}: copy of $original->{name}, $how");
	push @servers, $copy;
	bring_up($copy);
	draw_ids($copy);
	after(3 + rand 5, sub { remove_copy($copy) });
	return 1;
};

# Starts a server, or promotes it if it runs, because it is then a standby.
# Sets its clock first, because all clocks may have been put forward since the
# copy was made.
sub bring_up
{
	my ($server) = @_;

	adjust_clock($server);
	if (is_up($server))
	{
		$server->{node}->promote;
		log_event("$server->{name}: promoted");
		return;
	}
	bring_back($server);
	return;
}

sub copies
{
	return grep { $_->{name} =~ /^copy/ } @servers;
}

# Returns the servers that are not copies and have not been replaced.
sub members
{
	return grep { $_->{name} =~ /^server/ && $_->{state} ne 'gone' } @servers;
}

# Replaces a server by its base backup or its standby.  The original runs on
# for a moment after the backup is taken, or while the standby follows it, and
# then ends.  Its data directory is not removed: the inode is part of a
# holder's identity, so no new data directory may get the same inode.
$fault{replaced} = sub {
	my ($original) = shuffle grep { is_up($_) } members();
	my $is_standby = rand() < 0.5;
	my $server;

	return 0 unless defined $original;
	$server =
	    $is_standby
	  ? caught_up_standby($original, 'server')
	  : restored_backup($original, 'server');
	return 0 unless defined $server;
	let_pass(rand 1);

	# Give up if the original's clock has a step now, because the clock of the
	# new server would not have that step.
	unless (is_up($original) && $original->{step_s} == 0)
	{
		stop_server($server, 'immediate') if is_up($server);
		return 0;
	}
	take_down($original, (qw(fast immediate killed))[ rand 3 ]);
	$chaos->command($original->{name}, 0, 'none');
	$client_errors += $chaos->wait_for_clients(@{ $original->{clients} });
	$original->{state} = 'gone';
	log_event("$server->{name}: in place of $original->{name}, "
		  . ($is_standby ? 'promoted' : 'from a base backup'));
	push @servers, $server;
	bring_up($server);
	draw_ids($server);
	return 1;
};

# ----- faults of the registry -----

$fault{registry_stopped} = sub {
	return 0 unless is_up($registry);
	stop_server($registry, (qw(fast immediate))[ rand 2 ]);
	start_again_after($registry, around_lease_s());
	return 1;
};

$fault{registry_suspended} = sub {
	return 0 unless is_up($registry);
	suspend_for($registry, around_lease_s());
	return 1;
};

$fault{registry_killed} = sub {
	return 0 unless is_up($registry);
	end_node($registry->{node}, 'killed');
	$registry->{state} = 'down';
	log_event("$registry->{name}: killed");
	start_again_after($registry, around_lease_s());
	return 1;
};

# Steps the registry's clock back or ahead for a while, in some cases so far
# ahead that leases seem to be over.  The clock is not stepped while the
# standby is cut off: the registry would grant fences that are far ahead, and
# the standby could learn them neither from its data nor from its own clock.
$fault{registry_clock} = sub {
	return 0
	  unless is_up($registry) && $registry->{step_s} == 0 && !$is_taking_over;
	step_server($registry,
		(-1 - rand 60, 0.5 + rand 4, 4 + rand 60)[ rand 3 ],
		0.5 + rand 3);
	return 1;
};

# Ends or cancels the registry's sessions for a second.  A server that claims
# meanwhile gets no answer, an error, or an answer with a warning.
$fault{registry_sessions_ended} = sub {
	return 0 unless is_up($registry);
	my $until = now() + 1;
	my $signal = (qw(TERM INT))[ rand 2 ];
	my $ended = 0;

	while (now() < $until)
	{
		$ended += kill $signal,
		  processes_of($registry->{node}, 'postgres \[local\]');
		tend();
		return 1 unless is_up($registry);
	}
	log_event("registry: $ended times SIG$signal to sessions");
	return 1;
};

# The ports of the registry and its standby.  Each server tries both.
my @registry_ports;

sub track_registry
{
	my ($port) = @_;
	return track(
		PostgreSQL::Test::Cluster->new('registry' . ++$nodes, port => $port),
		0);
}

sub make_registry_standby
{
	my ($port) = grep { $_ != $registry->{node}->port } @registry_ports;

	# The registry may be down or suspended just now.
	unless (is_up($registry))
	{
		upkeep_after(0.3, \&make_registry_standby);
		return;
	}
	$registry->{node}->backup('base');
	$standby = track_registry($port);
	$standby->{node}
	  ->init_from_backup($registry->{node}, 'base', has_streaming => 1);
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf',
		$registry->{node}->backup_dir . '/base');
	bring_back($standby);
	$standby->{is_synchronous} = rand() < 0.3;
	if ($standby->{is_synchronous})
	{
		write_conf($registry->{node}, 'replication.conf',
			"synchronous_standby_names = '\"$standby->{name}\"'");
		$registry->{node}->reload;
	}
	upkeep_after(0.5, \&look_for_standby);
	return;
}

# Waits until the standby streams.  If it is to be synchronous, the registry
# must also wait for it at each commit, so that it has every lease that is
# granted.
sub look_for_standby
{
	my $state = $standby->{is_synchronous} ? 'sync' : 'async';
	my $is_ready = is_up($registry)
	  && (try_value_of($registry->{node},
			"SELECT true FROM pg_stat_replication WHERE state = 'streaming'"
			  . " AND sync_state = '$state'") // '') eq 't';

	$standby->{is_ready} = $is_ready;
	log_event("$standby->{name}: ready, $state") if $is_ready;
	upkeep_after(0.3, \&look_for_standby) unless $is_ready;
	return;
}

# Returns whether the standby can become the registry now.
sub is_standby_ready
{
	return
		 is_up($registry)
	  && $registry->{step_s} == 0
	  && !$is_taking_over
	  && defined $standby
	  && $standby->{is_ready};
}

# Lets the standby replay all WAL up to now, and then cuts it off.  Calls "how"
# later, which makes the standby the registry.
sub cut_standby_off
{
	my ($how) = @_;
	my $lsn = try_value_of($registry->{node}, 'SELECT pg_current_wal_lsn()')
	  // return 0;
	my $until = now() + 2;

	while ((try_value_of($standby->{node},
				"SELECT pg_last_wal_replay_lsn() >= '$lsn'") // '') ne 't')
	{
		return 0 if now() > $until;
		usleep(10_000);
	}
	$is_taking_over = 1;
	$standby->{node}->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->{node}->reload;
	log_event("$standby->{name}: cut off");
	after(0.2 + rand 3, $how);
	return 1;
}

$fault{registry_failover} = sub {
	return 0 unless is_standby_ready();
	return cut_standby_off(\&promote_standby) unless $standby->{is_synchronous};
	$is_taking_over = 1;
	promote_standby();
	return 1;
};

$fault{registry_set_back} = sub {
	return 0 unless is_standby_ready() && !$standby->{is_synchronous};
	return cut_standby_off(\&set_back);
};

# Treats the standby as the registry from now on.  The caller has stopped the
# old registry, or has suspended it; a suspended one later runs on for a while.
sub switch_registry
{
	$former = $registry;
	$registry = $standby;
	undef $standby;
	$is_taking_over = 0;
	write_conf($registry->{node}, 'replication.conf', '');
	return;
}

sub promote_standby
{
	my $comes_back = $standby->{is_synchronous} && rand() < 0.5;

	# The registry may be suspended or down just now.
	unless (is_up($registry))
	{
		after(0.2, \&promote_standby);
		return;
	}
	if ($comes_back)
	{
		suspend_server($registry);
		log_event("$registry->{name}: suspended");
	}
	else
	{
		stop_server($registry, 'immediate');
	}

	# In half of the cases the clock of the new registry is at first behind the
	# old registry's, by up to a lease.
	$standby->{skew_s} = rand() - 0.5;
	if (rand() < 0.5 && $registry->{skew_s} > -1)
	{
		my $behind = $standby;

		$behind->{skew_s} = $registry->{skew_s} - rand LEASE_S;
		after(
			1 + rand 4,
			sub {
				$behind->{skew_s} = rand() - 0.5;
				adjust_clock($behind);
			});
	}
	adjust_clock($standby);
	switch_registry();
	$registry->{node}->promote;
	log_event(sprintf '%s: promoted, clock %+.3f s',
		$registry->{name}, $registry->{skew_s} - $former->{skew_s});

	my $for_s = $comes_back ? 1 + rand 4 : 0;
	after($for_s, sub { resume_server($former) }) if $comes_back;
	upkeep_after($for_s + rand 3, \&remove_former);
	return;
}

# Returns whether a running server holds a lease that the standby does not
# know, and will renew the lease in time for the standby to learn of it.
sub is_somebody_there
{
	my $sql =
	  'SELECT worker_id, granted_fence FROM snowflake_registry.node';
	my %known =
	  map { split /\|/ } split /\n/, try_value_of($standby->{node}, $sql) // '';
	my %fence = map { split /\|/ } split /\n/,
	  try_value_of($registry->{node}, $sql) // '';

	for my $server (grep { is_up($_) } members())
	{
		my $worker_id =
		  try_value_of($server->{node}, 'SELECT worker_id FROM snowflake_node')
		  // '';

		return 1
		  if $worker_id ne ''
		  && ($fence{$worker_id} // '') ne ($known{$worker_id} // '')
		  && !@{ $server->{suspended_workers} // [] }
		  && lease_left_s($server) > LEASE_S / 2;
	}
	return 0;
}

# Returns what changes when a registry notices that it has forgotten leases: it
# begins an era or, if the grace of an earlier era covers the holder's row, it
# raises the floor.
sub noticed_by
{
	my ($node) = @_;
	return try_value_of($node,
		"SELECT floor_era || ' ' || floor FROM snowflake_registry.setting");
}

# Makes the standby the registry without a promotion, so that it stays on the
# same timeline.  It lacks the leases that the old registry granted last, like
# a registry whose data directory was replaced by an older copy.
sub set_back
{
	unless (is_up($registry))
	{
		after(0.2, \&set_back);
		return;
	}
	my $is_declared = !is_somebody_there() || rand() < 0.3;
	my $noticed = noticed_by($standby->{node});
	my $node = $standby->{node};

	stop_server($registry, 'immediate');
	stop_server($standby, (qw(fast immediate))[ rand 2 ]);
	unlink $node->data_dir . '/standby.signal' or die "standby.signal: $!";
	$standby->{skew_s} = $registry->{skew_s};
	adjust_clock($standby);
	switch_registry();
	bring_back($registry);
	if ($is_declared)
	{
		$node->safe_psql('postgres',
			'SELECT snowflake_registry.declare_restored()');
	}
	log_event("$registry->{name}: set back"
		  . ($is_declared ? ', declared' : ', silently'));
	upkeep_after(rand 3, \&remove_former);

	# Do nothing else until the registry has noticed, because another fault
	# could keep the holder from renewing.
	my $until = now() + LEASE_S;
	until ((noticed_by($node) // '') ne ($noticed // ''))
	{
		next if now() < $until && usleep(50_000);
		log_event("$registry->{name}: nobody has noticed");
		$unnoticed++;
		last;
	}
	return;
}

sub remove_former
{
	stop_server($former, 'immediate') if is_up($former);
	$former->{node}->clean_node;
	undef $former;
	upkeep_after(1, \&make_registry_standby);
	return;
}

# ----- what clients have received -----

my %server_of;                  # a server's name, by its client's number

sub worker_bit_of
{
	my ($id) = @_;
	return $id >> 12 & 1;
}

sub instant_of
{
	my ($id) = @_;
	return ($id >> BITS_BELOW_TICK) / 1000 + EPOCH_S;
}

# Returns for each worker id the places in the order of its ids where one
# server's id is followed by another server's.  A server that gets a worker id
# begins after all ids that the last holder may have issued, so there is at
# most one such place for each grant.  If there are more places than grants,
# two servers had the worker id at once, even if by chance no id came twice.
sub count_changes
{
	my (%last, %changes);

	$chaos->each_id(
		sub {
			my ($id, $client) = @_;
			my $worker_id = worker_bit_of($id);
			my $server = $server_of{$client};

			return if ($last{$worker_id} // '') eq $server;
			push @{ $changes{$worker_id} },
			  sprintf '%.3f %s', instant_of($id), $server
			  if defined $last{$worker_id};
			$last{$worker_id} = $server;
		});
	return %changes;
}

# Returns for each worker id how often the servers' logs say that a server got
# the lease, resumed it or lost it.
sub count_grants
{
	my %grants;

	for my $server (@servers)
	{
		my $log = slurp_file($server->{node}->logfile);

		$grants{$1}++
		  while $log =~
		  /snowflake worker_id (\d+) .*(?:leased to this server until|is still leased to|leased to this server no more)/g;
	}
	return %grants;
}

# Prints an id that came twice, and the leases at about its time.
sub tell_of_duplicate
{
	my ($id, @clients) = @_[ 0 .. 2 ];
	my $worker_id = worker_bit_of($id);
	my $at = instant_of($id);

	diag(sprintf 'id %d of worker_id %d and %.3f came to %s', $id, $worker_id,
		$at, join ' and ', map { "client $_ of $server_of{$_}" } @clients);
	diag(
		try_value_of(
			$registry->{node}, qq{
			SELECT at, lease FROM history
			WHERE lease->>'worker_id' = '$worker_id'
			  AND (lease->>'fence')::timestamptz
				BETWEEN to_timestamp($at) - interval '10 s'
				    AND to_timestamp($at) + interval '10 s'
			ORDER BY number}) // '');
	return;
}

END
{
	my $status = $?;

	# Let suspended processes run on even if the test dies, so that they can be
	# stopped.
	if (defined $chaos && $$ == $chaos->{main_pid})
	{
		kill 'CONT', map {
			@{ $_->{suspended} // [] }, @{ $_->{suspended_workers} // [] }
		} @servers, grep { defined } $registry, $standby, $former;
	}
	$? = $status;
}

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };

my @conf = split /\n/, q{
restart_after_crash = on
max_connections = 30
shared_buffers = 16MB
wal_level = replica
max_wal_senders = 4
wal_keep_size = 256MB
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_retrieve_retry_interval = 100ms
autovacuum = off
log_statement = none
log_replication_commands = off
log_checkpoints = off
log_min_messages = log
log_min_error_statement = panic};

@registry_ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
$registry = track_registry($registry_ports[0]);
$registry->{node}->init(allows_streaming => 1);
$registry->{node}->append_conf(
	'postgresql.conf', join("\n", @conf) . q{
include 'replication.conf'
});
write_conf($registry->{node}, 'replication.conf', '');
bring_back($registry);
$registry->{node}->safe_psql(
	'postgres', q{
	CREATE EXTENSION snowflake_registry;
	SELECT snowflake_registry.configure(
		lease_duration => '} . LEASE_S . q{ s',
		largest_lead => '} . LEAD_S . q{ s',
		layout => '} . LAYOUT . q{');
	CREATE ROLE fleet LOGIN;
	SELECT snowflake_registry.allow('fleet');

	CREATE TABLE history (
		number bigint GENERATED ALWAYS AS IDENTITY,
		at timestamptz DEFAULT clock_timestamp(),
		lease jsonb);
	CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.history (lease) VALUES (to_jsonb(NEW));
		RETURN NULL;
	END $$;
	CREATE TRIGGER history AFTER UPDATE ON snowflake_registry.node
		FOR EACH ROW EXECUTE FUNCTION keep_history();
});

my $conninfo = sprintf 'host=%s,%s port=%d,%d dbname=postgres user=fleet',
  ($registry->{node}->host) x 2, @registry_ports;
for my $i (0 .. SERVERS - 1)
{
	my $server = track(
		leased_node(
			"server$i", $conninfo, @conf,
			"snowflake.layout = '" . LAYOUT . "'",
			"snowflake.registry_name = 'server$i'",
			"include 'parameters.conf'"),
		-0.4 + rand 0.8);

	write_parameters($server->{node}, block_size => (1, 64, 1)[$i]);
	bring_back($server);
	$server->{node}->safe_psql('postgres', 'CREATE EXTENSION snowflake');
	push @servers, $server;
}
draw_ids($_) for @servers;
make_registry_standby();

# Draw faults until the time is over and every kind of fault has happened, but
# for a minute more at most.  A fault that cannot be done now is drawn again
# later.  Other faults are drawn with it, because it may have to wait for one
# of them: while the registry's standby is synchronous, for example, the
# registry cannot be set back before it has failed over.
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
log_event('all in order again');
let_pass(0.1) while is_fault_due();
my @originals = members();
write_parameters($_->{node}, clock_policy => 'wait', clock_tolerance => 60_000)
  for @originals;
continue_workers($_) for @originals;

# There is one server more than there are worker ids.  So stop one server at a
# time, and expect ids of all others.
my $limit_s = NEWCOMER_S;
for my $server (@originals)
{
	my $begin = now();

	stop_server($server, 'fast');
	my $is_good = $chaos->get_ids_until(\&tend, $begin + $limit_s,
		map { @{ $_->{clients} } } grep { is_up($_) } @originals);
	ok($is_good,
		sprintf "servers have ids again within %d s, those beside %s (%.1f s)",
		$limit_s, $server->{name}, now() - $begin);
	bring_back($server);
	$limit_s = HOLDER_S;
}
$chaos->command($_->{name}, 0, 'none') for @originals;
$client_errors +=
  $chaos->wait_for_clients(map { @{ $_->{clients} } } @originals);
is($client_errors, 0, 'clients end without an error');

my %total = (ids => 0, disorder => 0, wrong_errors => 0, errors => {});
my %issued;
for my $server (@servers)
{
	my $before = $total{ids};

	for my $client (@{ $server->{clients} })
	{
		$chaos->examine($client, \%total, \%allowed_errors);
		$server_of{$client} = $server->{name};
	}
	$issued{ $server->{name} } = $total{ids} - $before;
}
my $duplicates = $chaos->count_duplicates(\&tell_of_duplicate);
my %changes = count_changes();
my %grants = count_grants();

note("seed $seed: $total{ids} ids in "
	  . int(now() - $began) . ' s, '
	  . sum0(values %counts) . ' faults, '
	  . ($total{errors}{'55000'} // 0) . ' refusals, '
	  . sum0(values %grants) . ' grants, '
	  . sum0(map { scalar @$_ } values %changes)
	  . " hand-overs, $marks_damaged marks damaged, "
	  . "$duplicates duplicates");
note("faults: $_ $counts{$_}") for sort keys %counts;
note("errors: $_ $total{errors}{$_}") for sort keys %{ $total{errors} };
note("ids: $_->{name} $issued{$_->{name}}") for @originals;
note('ids: ' . copies() . ' copies '
	  . sum0(map { $issued{ $_->{name} } } copies()));

is(scalar(grep { $issued{ $_->{name} } == 0 } @originals),
	0, 'every server issued ids');
cmp_ok(scalar keys %changes, '>', 0, 'worker ids changed hands');
is($unnoticed, 0, 'a registry that was set back has noticed');
is($duplicates, 0, 'no id came twice');
for my $worker_id (sort keys %changes)
{
	my @seen = @{ $changes{$worker_id} };

	cmp_ok(scalar @seen, '<=', $grants{$worker_id} // 0,
		"worker_id $worker_id: no two servers have had it at once")
	  or diag(join "\n", @seen > 100 ? @seen[ 0 .. 99 ] : @seen);
}
is($total{disorder}, 0, "every client's ids increase");
is($total{wrong_errors}, 0, 'only errors that the rules name');

$_->{node}->stop for @originals, grep { defined } $standby, $registry;

done_testing();
