# No id comes twice among servers that lease their worker ids.  Three servers
# contend for two worker ids, and clients keep every id that they receive from
# any server, while everything goes wrong that the rules speak of.
#
# The seed chooses the order of the faults; several go on at a time.  Of a
# server: its clock steps back or ahead, by milliseconds up to minutes;
# backends and workers get SIGKILL; the registry's worker is ended, or
# suspended alone; the postmaster gets SIGKILL, and the page of the mark is
# damaged where WAL mends it; the server is stopped, immediately or fast, and
# started within the lease or after it; the whole server is suspended, beyond
# its lease in most cases; a copy of its data directory, a base backup or a
# promoted standby starts beside it, or while it is stopped or suspended, and
# draws ids, too; and a base backup or a standby takes its place for good.
# Each of these carries the mark and the lease in its page, but the lease was
# not granted to it, so it asks for a worker id of its own.
#
# Of the registry: clean stops and crashes; a suspension; a clock that steps;
# its sessions are ended; its standby takes over.  A synchronous standby has
# heard of everything; then the old registry comes back for a while in half of
# the cases.  Another standby is cut off for a while before, so that it has not
# heard of the last leases, and the old registry is stopped for good first.
# Such a standby is promoted, and its clock is behind the old one's in half of
# the cases; or it is started without standby.signal, as a data directory that
# was set back, and then either the DBA declares that, or a holder finds it
# out.
#
# At the end: every server has ids again within the bound of a failover after
# the last fault, and within seconds where there is no failover; no id came
# twice, to any clients; no two servers had a worker id at once; each client's
# ids increase, all the time; no client saw an error that the rules do not
# name; each server issued ids.
#
# A registry whose clock was ahead has granted fences that no other server may
# pass, so all clocks are put forward to its clock then.
#
#   CHAOS_SECONDS   how long the faults go on (15)
#   CHAOS_SEED      repeats the order of an earlier run, though not its timing
#   CHAOS_FAULTS    only these, a list with commas between
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

# How soon a server has ids again, after a failover of the registry and without
# one, on a machine with few processors.
use constant {
	NEWCOMER_S => 2 * (LEASE_S + LEAD_S) + 5,
	HOLDER_S => 8,
};

# What clients do: the statements of one batch.
my %statements = (
	single => sub { return "SELECT snowflake_nextval();\n" x 20 },
	many => sub {
		return 'SELECT snowflake_nextvals(' . (1 + int rand 400) . ");\n";
	});

# Faults, and how many cards of each are in the deck.
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

# The errors that the rules name, and their messages.
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
my $unnoticed = 0;              # set back, and nobody has found it out
my $chaos = SnowflakeChaos->new(
	directory => $directory,
	seed => $seed,
	batch => sub { return $statements{ $_[0] }->() });

# ----- servers and their clocks -----

# A server: its node; how far its clock is from what all others have, and how
# far it is stepped for a while; its state ("up", "down", "suspended", "gone");
# the processes that are suspended; its clients.  Its name says whether it is a
# copy.
my @servers;
my ($registry, $standby, $former);
my $common_s = 0;               # that all clocks have been put forward
my $nodes = SERVERS;            # numbers their names
my $client_errors = 0;
my $is_taking_over = 0;         # the standby, from its being cut off on

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
			# Others have to go where the registry's clock has been.
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

# Any server that is up, or nothing.
sub any_server
{
	return (shuffle grep { is_up($_) } @servers)[0];
}

# A server that is up and whose clock is in order, or nothing.
sub any_clock
{
	return (shuffle grep { is_up($_) && $_->{step_s} == 0 } @servers)[0];
}

# A number of seconds within a lease, or beyond it in most cases.
sub around_lease_s
{
	return rand() < 0.3 ? rand 2 : 1.5 + rand(1.2 * LEASE_S);
}

# ----- faults of a server: each returns false if no server can suffer it -----

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

	# Resume workers of this server alone: another process may have the
	# number.  Leave them suspended while the whole server is.
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

# Ends a server: "fast", "immediate", or "killed".  After a crash, the page of
# the mark is damaged in half of the cases.
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

# Changes parameters, so that ids may be ahead of the clock, or come in blocks.
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

# How long a server's lease goes on, by its own clock.
sub lease_left_s
{
	my ($server) = @_;

	return try_value_of($server->{node},
		'SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM snowflake_node'
	) || 0;
}

# A copy of a server's data directory as it is at one moment.
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

# A base backup, as a server that is not started yet; nothing if no backup
# could be taken.
sub restored_backup
{
	my ($original, $name) = @_;
	my $backup = track(PostgreSQL::Test::Cluster->new($name . ++$nodes),
		$original->{skew_s});

	base_backup($original->{node}, $backup->{node}) or return;
	settle($backup->{node});
	return $backup;
}

# A standby that has replayed everything up to now; nothing if it does not do
# so in time.
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

# The server whose lease goes on for longest, and for how long; nothing if no
# server is up.
sub newest_lease
{
	my %left_s = map { $_->{name} => lease_left_s($_) }
	  grep { is_up($_) } @servers;
	my ($server) = sort { $left_s{ $b->{name} } <=> $left_s{ $a->{name} } }
	  grep { is_up($_) } @servers;

	return defined $server ? ($server, $left_s{ $server->{name} }) : ();
}

# Starts a copy of the server whose lease goes on for longest; there is one
# copy at a time at most.  The original goes on, or comes back meanwhile.  With
# "alone" it goes on as well, but there is no registry to ask for a while.  The
# first copy is "alone", of a server that has a lease.
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

# Starts a server; a standby, which runs, is promoted.  Clocks may have been
# put forward meanwhile.
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

# Servers that are not copies, and not replaced.
sub members
{
	return grep { $_->{name} =~ /^server/ && $_->{state} ne 'gone' } @servers;
}

# A base backup or a standby takes the place of its original.  The original
# goes on for a while after the backup, and ends while the standby follows it.
# Its data directory stays, because a new one must not get its inode, which is
# part of a holder's identity.
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

	# Give up if the clock is stepped: it would be set right for both, later.
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

# Steps the registry's clock back for a while, or ahead, even so far that
# leases seem to be over.  Not while a standby is cut off: the standby has to
# know of fences that are far ahead, which its own clock does not tell.
$fault{registry_clock} = sub {
	return 0
	  unless is_up($registry) && $registry->{step_s} == 0 && !$is_taking_over;
	step_server($registry,
		(-1 - rand 60, 0.5 + rand 4, 4 + rand 60)[ rand 3 ],
		0.5 + rand 3);
	return 1;
};

# Ends or cancels the registry's sessions.  Whatever servers have asked for,
# there is no answer, or an error, or an answer with a warning.
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

# The registry and its standby have these two ports, which servers know.
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

# The standby may take over as soon as nothing is granted without it; or, if it
# is not synchronous, when it has heard of everything up to now.
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

# Is there a standby that can take over?
sub is_standby_ready
{
	return
		 is_up($registry)
	  && $registry->{step_s} == 0
	  && !$is_taking_over
	  && defined $standby
	  && $standby->{is_ready};
}

# Cuts the standby off once it has heard of everything up to now.  It takes
# over later.
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

# Makes the standby the registry.  The old registry ends; if it is suspended,
# it goes on for a while at the same time.
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

	# In half of the cases the clock is behind by up to a lease, until it is
	# set.
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

# Does a server that will come forward in time hold a lease that the standby
# does not know of?
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

# The last era that began because the registry knew that it had forgotten
# leases.
sub era_of
{
	my ($node) = @_;
	return try_value_of($node, 'SELECT floor_era FROM snowflake_registry.setting') // 0;
}

# The standby becomes the registry as a data directory that is older than what
# has been granted, on the same timeline.
sub set_back
{
	unless (is_up($registry))
	{
		after(0.2, \&set_back);
		return;
	}
	my $is_declared = !is_somebody_there() || rand() < 0.3;
	my $era = era_of($standby->{node});
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

	# Leave the holder alone meanwhile.
	my $until = now() + LEASE_S;
	until (era_of($node) > $era)
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

my %server_of;                  # by client's number

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

# How often, by worker id, one server's ids are followed by another's.  A
# server that gets a worker id begins after all ids that its last holder may
# have issued.  So that is no more often than servers got the worker id;
# otherwise two servers had it at once, even if by chance no id came twice.
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

# How often a server got each worker id, or lost it and got it again, as the
# servers' logs say.
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

# Prints what is known of an id that came twice.
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

	# Do this also when the test ends in the middle.
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

# Every kind of fault at least once, also on a slow machine.  A fault that
# finds nobody is dealt again, for a minute at most, and others with it: while
# the registry's standby is synchronous, for example, the registry cannot be
# set back before it has failed over.
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
		@hand = shuffle sort keys %deck unless @hand;
		push @hand, $name;
	}
	let_pass(rand($is_done ? 0.8 : 0.1));
	$chaos->check_clients;
}

# Put everything in order again: what is due happens, and copies end.
log_event('all in order again');
let_pass(0.1) while is_fault_due();
my @originals = members();
write_parameters($_->{node}, clock_policy => 'wait', clock_tolerance => 60_000)
  for @originals;
continue_workers($_) for @originals;

# There is a worker id for all servers but one.
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
