# No id comes twice: clients keep every id that they receive, outside the
# server, while everything goes wrong that the rules speak of.
#
# The seed chooses the order of the faults.
#
# In place: the clock steps back by milliseconds, by seconds (within the
# tolerance and beyond) and by an hour, and ahead by as much; backends and the
# worker get SIGKILL, and the postmaster makes its shared memory anew; the
# postmaster gets SIGKILL; immediate and fast stops, half of them with a start
# while the clock is behind; after a crash, the page of the mark is torn in its
# file, or the file is removed, where WAL is going to mend it; the worker is
# stopped, or ended; parameters change; the server gets another worker id.
#
# Another server takes over, in ways that lib/SnowflakeTakeOver.pm deals.
#
# Ids may be lost with the old primary.  Only these may come again.  Kept are
# the ids that
#
#   - are in the data of the server that goes on,
#   - a client had received before another one asked for one of these,
#   - a client had received at all, if the clients were paused and the server
#     had replayed everything; or if a standby took over from a primary that
#     was stopped in order,
#   - a client that INSERTs had received with synchronous replication.
#
# At the end: no id came twice, to any clients; ids of a node, and of each
# client, are above all that were issued before a stop, except after a change
# of the worker id; no client saw an error that the rules do not name, or
# waited for longer than TIMEOUT_S; a worker id never used before gets ids at
# once, even if all others are ahead of the clock; and all clients get ids
# again.
#
# lib/clock.c moves the clock.
#
# In a third of the runs the page of the mark is full of the marks of other
# worker ids from the beginning.  In half of the runs nothing is flushed unless
# somebody asks for it.
#
#   CHAOS_SECONDS             how long (30)
#   CHAOS_SEED                repeats the order of an earlier run, though not
#                             its timing
#   CHAOS_CLOCK_POLICY        the clock_policy, in place of changing ones
#   CHAOS_SYNCHRONOUS_COMMIT  on or off; the seed chooses if it is not set
#
# also with: snowflake.block_size = 64; snowflake.generators = 8
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(any max min sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeFaults;
use SnowflakeServer;
use SnowflakeServer qw(settle);
use SnowflakeTakeOver;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	HOUR => 3600,
	SLOWEST_CLOCK_S => 3,

	# How soon a new worker id gets its first id, on a machine that is busy.
	PROMPT_S => 10,

	# How much the mark may add to the time of a new server's first id.
	LEAD_S => 2,

	# Nodes that the mark's page has room for, and how many may lie ahead.
	NODES_ON_PAGE => 16,
	NODES_AHEAD => 6,
};

# What clients do, and how many of each.
my %clients = (single => 2, many => 2, insert => 2);

# Faults, and how many cards of each are in the deck.
my %deck = (
	back_by_ms => 2,
	back_by_s => 2,
	back_beyond_tolerance => 1,
	back_by_an_hour => 1,
	ahead => 1,
	forward => 1,
	backend_killed => 2,
	worker_killed => 1,
	worker_stopped => 1,
	worker_ended => 1,
	postmaster_killed => 3,
	immediate_stop => 2,
	fast_stop => 2,
	renamed => 1,
	standby_restarted => 1,
	parameters => 3,
	take_over => 10);

# The errors that the rules name, and their messages.
my %allowed_errors = (
	'23505' => qr/^duplicate key value violates unique constraint/,
	'55000' => qr/^the clock is \d+\.\d{3} ms behind the last snowflake id$/,
	'57P01' =>
	  qr/^terminating connection|^canceling the wait for synchronous replication/,
	'57P02' => qr/^terminating connection because of crash/,
	'57P03' => qr/^the database system is/,
	'08006' => qr//,
	'25006' => qr/during recovery|in a read-only transaction/);

my $seconds = $ENV{CHAOS_SECONDS} || 30;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
my $synchronous_commit = $ENV{CHAOS_SYNCHRONOUS_COMMIT}
  // (qw(on off))[ $seed % 2 ];
my $has_checksums = $seed % 4 < 2;
my $has_former_workers = $seed % 3 == 0;
my $wal_writer_delay = (qw(200ms 10s))[ $seed % 8 < 4 ];
my @policies =
  defined $ENV{CHAOS_CLOCK_POLICY}
  ? $ENV{CHAOS_CLOCK_POLICY}
  : qw(wait error advance);
srand($seed);
note("seed $seed, $seconds s, policy @policies, "
	  . "synchronous_commit $synchronous_commit, "
	  . "wal_writer_delay $wal_writer_delay, "
	  . ($has_checksums ? '' : 'no ')
	  . 'checksums, '
	  . ($has_former_workers ? '' : 'no ')
	  . 'former workers');

my $directory = PostgreSQL::Test::Utils::tempdir();
my $began = now();
my %counts;                     # of faults
my $chaos = SnowflakeChaos->new(
	directory => $directory,
	seed => $seed,
	batch => \&statements);

# ----- clients -----

# Commands the clients of a kind, "all" or "nobody"; for eras see
# SnowflakeChaos.
my $era = 0;

sub command_clients
{
	my ($who, $server, $of_era) = @_;

	return $chaos->command('control', $of_era // $era, $who,
		$server ? $server->{node}->connstr('postgres') : '');
}

# The statements of one batch.
sub statements
{
	my ($kind, $of_era, $number) = @_;

	return "SELECT snowflake_nextval();\n" x 20 if $kind eq 'single';
	return 'SELECT snowflake_nextvals(' . (1 + int rand 200) . ");\n"
	  if $kind eq 'many';
	return
	  "INSERT INTO taken (client, era) VALUES ($number, $of_era) RETURNING id;\n"
	  x 8
	  . "INSERT INTO taken (client, era) SELECT $number, $of_era"
	  . ' FROM generate_series(1, '
	  . (1 + int rand 10)
	  . ") RETURNING id;\n";
}

# Waits until all clients have ended their batches and begin no other.
sub pause_clients
{
	my $until = now() + TIMEOUT_S;
	my $command_number = command_clients('nobody');

	for my $number (0 .. sum0(values %clients) - 1)
	{
		until (-e "$directory/paused.$number.$command_number")
		{
			die "a client does not pause\n" if now() > $until;
			tend();
			usleep(2_000);
		}
	}
	unlink glob("$directory/paused.*");
	return;
}

# ----- servers and their clocks -----

# A server: its node, how far its clock is from the real one when it is in
# order, and its worker id's number.
my ($primary, $standby);
my $servers = 0;
my %parameters = (
	clock_policy => $policies[0],
	clock_tolerance => 5000,
	sequence_start => 'zero',
	high_water_interval => 100);
my ($clock_due, $stopped_worker, $worker_due);

# The primary's worker id by its number: (datacenter_id, worker_id).  Each
# number has the time that its ids may have come to.
my $worker_number = 7;
my %newest_of_worker = ($worker_number => 0);
my ($step_s, $late_ids, $marks_damaged) = (0, 0, 0);
my $first_id_at;

# The time by the primary's clock.
sub primary_time
{
	return time() + $primary->{in_order} + $step_s;
}

# To be called before the primary or its clock changes.
sub remember_newest
{
	$newest_of_worker{$worker_number} =
	  max($newest_of_worker{$worker_number}, primary_time() + LEAD_S);
	return;
}

# A number of seconds up to an hour, of any order of magnitude.
sub some_seconds
{
	return HOUR**rand() - 1 + rand 0.1;
}

sub set_clock_of
{
	my ($server, $offset_s) = @_;

	set_clock($server->{node}, $server->{in_order} + $offset_s);
	return;
}

sub step_primary
{
	my ($offset_s, $for_s) = @_;

	log_event(sprintf 'clock %+.3f s for %.3f s', $offset_s, $for_s);
	remember_newest();
	$step_s = $offset_s;
	set_clock_of($primary, $step_s);
	$clock_due = now() + $for_s;
	return;
}

sub put_clock_in_order
{
	my ($forward_s) = @_;

	remember_newest();
	$primary->{in_order} += $forward_s // 0;
	$step_s = 0;
	set_clock_of($primary, 0);
	log_event('clock in order') if defined $clock_due;
	undef $clock_due;
	return;
}

sub continue_worker
{
	kill 'CONT', $stopped_worker if defined $stopped_worker;
	undef $stopped_worker;
	return;
}

# Ends what is due; a later fault may have ended it before.
tend_also(
	sub {
		put_clock_in_order() if defined $clock_due && now() >= $clock_due;
		continue_worker() if defined $stopped_worker && now() >= $worker_due;
	});

sub add_server
{
	my ($in_order) = @_;
	my $server = {
		node => PostgreSQL::Test::Cluster->new('server' . ++$servers),
		in_order => $in_order
	};

	set_clock_of($server, 0);
	return $server;
}

sub has_postmaster
{
	my ($server) = @_;
	return defined $server->{node}{_pid};
}

# Ends a server: "fast", "immediate", or "killed".
sub end_life
{
	my ($server, $how) = @_;

	continue_worker();
	end_node($server->{node}, $how);
	return;
}

sub discard_server
{
	my ($server) = @_;

	end_life($server, 'immediate');
	$server->{node}->clean_node;
	return;
}

# Damages the page of the mark after a crash, in half of the cases.
sub damage_mark_of
{
	my ($server) = @_;
	my $damage = rand() < 0.5 ? damage_mark($server->{node}) : undef;

	return unless defined $damage;
	log_event($damage);
	$marks_damaged++;
	return;
}

sub write_identity
{
	my ($server) = @_;

	write_conf(
		$server->{node}, 'identity.conf',
		'snowflake.datacenter_id = ' . int($worker_number / 32),
		'snowflake.worker_id = ' . $worker_number % 32);
	$server->{worker_number} = $worker_number;
	return;
}

sub write_all_parameters
{
	write_parameters($_->{node}, %parameters)
	  for grep { defined } $primary, $standby;
	return;
}

sub write_replication
{
	my ($server, @lines) = @_;

	write_conf($server->{node}, 'replication.conf', @lines);
	$server->{node}->reload if has_postmaster($server);
	return;
}

sub write_library
{
	my ($server, $library) = @_;

	write_conf($server->{node}, 'library.conf',
		"shared_preload_libraries = '$library'");
	return;
}

# Without workers, parameters are too low for a standby that takes queries.
sub write_workers
{
	my ($server, $number) = @_;

	write_conf(
		$server->{node}, 'workers.conf',
		"max_worker_processes = $number",
		'hot_standby = ' . ($number ? 'on' : 'off'));
	return;
}

# Writes what belongs to one server alone into files that postgresql.conf
# includes.  The files come with every base backup.
sub settle_server
{
	my ($server, @recovery) = @_;

	settle($server->{node});
	write_conf($server->{node}, 'upstream.conf', @recovery);
	write_identity($server);
	write_library($server, 'snowflake');
	write_workers($server, 8);
	write_replication($server, "synchronous_commit = $synchronous_commit");
	return;
}

# Has a standby replay what another server has.
sub follow
{
	my ($server, $upstream) = @_;

	settle_server($server,
		"primary_conninfo = '" . $upstream->{node}->connstr . "'");
	write_signal($server->{node}, 'standby');
	return;
}

# A base backup, as a server that is not started yet.
sub base_backup_of
{
	my ($source) = @_;
	my $server = add_server($primary->{in_order});

	base_backup($source->{node}, $server->{node})
	  or die "no base backup can be taken\n";
	settle_server($server);
	return $server;
}

sub make_standby
{
	# Remove old rows, which are of no use and take time to copy.
	wait_until($primary->{node},
		'WITH d AS (DELETE FROM taken WHERE era < '
		  . ($era - 1)
		  . ') SELECT true');
	$standby = base_backup_of($primary);
	follow($standby, $primary);
	write_all_parameters();
	set_clock_of($standby, -rand SLOWEST_CLOCK_S);
	start_server($standby->{node});
	log_event('new standby');
	return;
}

sub pid_of
{
	my ($backend_type) = @_;
	my @pids = split /\n/, try_value_of($primary->{node},
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$backend_type'"
		  . ' AND pid <> pg_backend_pid() ORDER BY pid') // '';
	my $chance = rand;

	return @pids ? $pids[ $chance * @pids ] : undef;
}

# ----- worker ids -----

sub new_worker_number
{
	return 1 + max keys %newest_of_worker;
}

# A worker id that has had ids before, none of them ahead of a clock; in half
# of the cases the oldest one.  A new worker id if there is none.
sub former_worker_number
{
	my ($clock) = @_;
	my @numbers =
	  grep { $_ != $worker_number && $newest_of_worker{$_} < $clock }
	  sort { $newest_of_worker{$a} <=> $newest_of_worker{$b} }
	  keys %newest_of_worker;
	my $chance = max(0, 2 * rand() - 1);

	return @numbers ? $numbers[ $chance * @numbers ] : new_worker_number();
}

# How far the clock is to be behind.  In half of the cases the newest ids of
# the worker id are ahead of it then.
sub seconds_before_newest
{
	return rand(2 * max(0, primary_time() - $newest_of_worker{$worker_number}));
}

# Tests that a worker id never used before gets an id at once.  It has to wait
# if there is no room for it on the mark's page, or if the clock is behind the
# first server's beginning.
sub expect_prompt_id
{
	my ($server) = @_;
	my $until = now() + PROMPT_S;
	my $id;

	return
	  if keys %newest_of_worker >= NODES_ON_PAGE
	  || primary_time() < $first_id_at;
	until (defined $id || now() > $until)
	{
		$id = try_value_of($server->{node}, 'SELECT snowflake_nextval()');
	}
	if (defined $id)
	{
		$chaos->add_id($id, $era);
		return;
	}
	my (undef, undef, $error) =
	  $server->{node}->psql('postgres', 'SELECT snowflake_nextval()');
	diag("worker $worker_number, never used before, gets no id: $error");
	$late_ids++;
	return;
}

# Lets all clocks pass the ids that are ahead of them, before there are too
# many of these: a new worker id would begin after the oldest of them.
sub pass_ids_ahead
{
	my $clock = primary_time();

	return
	  if NODES_AHEAD > grep { $_ > $clock + SLOWEST_CLOCK_S }
	  values %newest_of_worker;
	put_clock_in_order(max(values %newest_of_worker) - $clock);
	log_event('clock forward, past all');
	return;
}

# ----- eras -----

# Ends the present era for the server that has its data, and begins the next.
sub next_era
{
	my ($server, %kept) = @_;
	my $rows = value_when_there_is_one($server->{node},
		"SELECT id, client FROM taken WHERE era = $era");

	$chaos->end_era(
		$era,
		rows => { map { split /\|/ } split /\n/, $rows },
		%kept);
	$era++;
	return;
}

# ----- faults in place -----

my %fault;

$fault{back_by_ms} = sub {
	step_primary(-0.001 - rand 0.2, 0.02 + rand 0.5);
	let_pass(rand 0.3);
	return;
};

$fault{back_by_s} = sub {
	step_primary(-1 - rand 3, 0.2 + rand 2);
	let_pass(rand 1);
	return;
};

$fault{back_beyond_tolerance} = sub {
	step_primary(-$parameters{clock_tolerance} / 1000 - 1 - rand 3,
		0.2 + rand 1);
	let_pass(rand 1);
	return;
};

$fault{back_by_an_hour} = sub {
	step_primary(-HOUR, 0.2 + rand 1);
	let_pass(rand 1);
	return;
};

# The clock stays forward for good.
$fault{forward} = sub {
	put_clock_in_order(0.001 + rand 2);
	log_event('clock forward');
	return;
};

# The clock and the ids go ahead.  The way out is a new worker id, or a clock
# that stays ahead.
$fault{ahead} = sub {
	my $ahead_s = some_seconds();

	step_primary($ahead_s, TIMEOUT_S);
	let_pass(0.2 + rand 0.5);
	if (rand() < 0.5)
	{
		put_clock_in_order($ahead_s);
		return;
	}
	put_clock_in_order();
	change_worker_id(new_worker_number());
	return;
};

# Kills a process by SIGKILL.  The postmaster then ends all other processes and
# makes its shared memory anew.
sub kill_backend
{
	my ($backend_type) = @_;
	my $offset = -s $primary->{node}->logfile;
	my $pid = pid_of($backend_type);

	continue_worker();
	if (!defined $pid || kill('KILL', $pid) != 1)
	{
		log_event("no $backend_type to kill");
		return;
	}
	log_event("$backend_type killed");
	$primary->{node}->wait_for_log(
		qr/all server processes terminated; reinitializing/, $offset);
	wait_until($primary->{node}, 'SELECT true');
	return;
}

$fault{backend_killed} = sub { kill_backend('client backend') };

$fault{worker_killed} = sub { kill_backend('snowflake high-water mark') };

# While the worker is stopped, sessions move the mark themselves; the worker
# then goes on from a mark that it has not written.
$fault{worker_stopped} = sub {
	my $for_s = 0.2 + rand 1.5;
	my $pid = pid_of('snowflake high-water mark');

	continue_worker();
	return unless defined $pid && kill('STOP', $pid) == 1;
	log_event(sprintf 'worker stopped for %.3f s', $for_s);
	$stopped_worker = $pid;
	$worker_due = now() + $for_s;
	let_pass(rand 1);
	return;
};

$fault{worker_ended} = sub {
	my $pid = pid_of('snowflake high-water mark');

	kill 'TERM', $pid if defined $pid;
	log_event('worker ended');
	return;
};

# How far a clock is behind when ids begin again: by anything, or by so much
# that it is shortly before the newest ids.
sub seconds_behind
{
	my ($stopped_at) = @_;

	return some_seconds() if rand() < 0.5;
	return now() - $stopped_at + rand 3;
}

# Starts the primary; in half of the cases its clock is behind.
sub start_again
{
	my ($behind_s) = @_;
	my $for_s = 0.5 + rand 2;

	step_primary(-$behind_s, $for_s) if rand() < 0.5;
	start_server($primary->{node});
	log_event('started');
	return;
}

# Ends the primary and starts it.  Before some crashes nobody commits, so that
# only marks are flushed.
sub end_and_start
{
	my ($how) = @_;
	my $stopped_at;

	if ($how ne 'fast' && rand() < 0.5)
	{
		command_clients((qw(single many))[ rand 2 ], $primary);
		log_event('no commits');
		let_pass(0.2 + rand 0.6);
	}
	$stopped_at = now();
	end_life($primary, $how);
	$chaos->note_stop;
	log_event("ended, $how");
	damage_mark_of($primary) unless $how eq 'fast';
	start_again(seconds_behind($stopped_at));
	command_clients('all', $primary);
	let_pass(0.3);
	return;
}

$fault{postmaster_killed} = sub { end_and_start('killed') };

$fault{immediate_stop} = sub { end_and_start('immediate') };

$fault{fast_stop} = sub { end_and_start('fast') };

# Gives the primary another worker id.  No ids are lost.
sub change_worker_id
{
	my ($number) = @_;
	my $is_new = !exists $newest_of_worker{$number};

	pause_clients();
	next_era($primary, is_all => 1, is_other_node => 1);
	remember_newest();
	end_life($primary, (qw(fast immediate killed))[ rand 3 ]);
	$chaos->note_stop;
	$worker_number = $number;
	$newest_of_worker{$number} //= 0;
	log_event("worker $number" . ($is_new ? ', new' : ''));
	write_identity($primary);
	start_again($is_new ? some_seconds() : seconds_before_newest());
	expect_prompt_id($primary) if $is_new;
	command_clients('all', $primary);
	return;
}

$fault{renamed} = sub {
	put_clock_in_order();
	change_worker_id(
		rand() < 0.5
		? new_worker_number()
		: former_worker_number(primary_time()));
	return;
};

$fault{standby_restarted} = sub {
	make_standby() unless defined $standby;
	end_life($standby, (qw(fast immediate))[ rand 2 ]);
	start_server($standby->{node});
	log_event('standby restarted');
	return;
};

$fault{parameters} = sub {
	my $policy = $policies[ rand @policies ];

	# A session that waits may wait for as long as the tolerance.
	my $most_ms = $policy eq 'advance' ? 60_000 : 5000;

	%parameters = (
		clock_policy => $policy,
		clock_tolerance => 1000 + int rand($most_ms - 1000),
		sequence_start => (qw(zero random))[ rand 2 ],
		high_water_interval => int 10 * 100**rand);
	log_event(
		join ' ', 'parameters', map { $parameters{$_} } sort keys %parameters);
	write_all_parameters();
	return;
};

# ----- another server takes over -----

# Moves ids ahead of the clock, as far as the policy allows; or moves the clock
# ahead as well, and in one case sets the clock right again.  Returns how many
# seconds clocks have to go forward by.
sub lead_clock
{
	my ($lead) = @_;
	my $lead_s = rand($parameters{clock_tolerance}) / 1000;

	return 0
	  if $lead eq 'none'
	  || $lead eq 'by_policy' && !any { $_ eq 'advance' } @policies;
	put_clock_in_order();
	if ($lead eq 'by_policy')
	{
		$parameters{clock_policy} = 'advance';
		write_all_parameters();
		step_primary(-$lead_s, TIMEOUT_S);
		let_pass(0.3);
		return 0;
	}
	$lead_s = some_seconds();
	step_primary($lead_s, TIMEOUT_S);
	let_pass(0.3);
	put_clock_in_order() if $lead eq 'corrected';
	return $lead_s;
}

# Commits something without an id.  Returns an LSN after the commit.
sub commit_something
{
	my $output = value_when_there_is_one(
		$primary->{node}, q{
		SET synchronous_commit = local;
		SELECT pg_logical_emit_message(true, 'chaos', '') IS NULL;
		SELECT pg_current_wal_insert_lsn()});

	return $output =~ s/.*\n//sr;
}

sub replicate_synchronously
{
	write_replication(
		$primary,
		'synchronous_commit = remote_apply',
		"synchronous_standby_names = '*'");
	wait_until($primary->{node},
		'SELECT count(*) = 1 FROM pg_stat_replication'
		  . " WHERE sync_state = 'sync'");
	return;
}

# Returns the server that is to take over, which is made here if there is none.
sub find_successor
{
	my ($how) = @_;
	my $server = $standby;

	return base_backup_of($primary) if $how->{origin} eq 'backup';
	if ($how->{origin} eq 'restore')
	{
		$server = base_backup_of($primary);
		$how->{restore_after} = commit_something();
		$how->{timeline} = hex substr value_when_there_is_one($primary->{node},
			'SELECT pg_walfile_name(pg_current_wal_insert_lsn())'), 0, 8;
		return $server;
	}
	if ($how->{origin} eq 'standby_backup')
	{
		# The backup begins at a checkpoint that the standby has replayed.
		wait_for_replay(
			$standby->{node},
			value_when_there_is_one(
				$primary->{node},
				"CHECKPOINT;\nSELECT pg_current_wal_insert_lsn()"));
		return base_backup_of($standby);
	}
	if ($how->{origin} eq 'cascade')
	{
		$server = base_backup_of($standby);
		follow($server, $standby);
		start_server($server->{node});
	}
	wait_for_replay($server->{node}, commit_something());
	return $server;
}

# Writes or removes the signal file and its parameters, while the server is
# stopped.
sub write_recovery
{
	my ($server, $old, $how) = @_;

	if ($how->{origin} eq 'restore')
	{
		my $target =
		  commit_after($old->{node}, $how->{restore_after}, $how->{timeline});

		log_event("restored to $target");
		write_conf(
			$server->{node}, 'upstream.conf',
			"restore_command = 'cp \""
			  . $old->{node}->data_dir
			  . "/pg_wal/%f\" \"%p\"'",
			"recovery_target_lsn = '$target'",
			'recovery_target_action = promote');
		write_signal($server->{node}, 'recovery');
		return;
	}
	write_conf($server->{node}, 'upstream.conf');
	write_signal($server->{node}, $how->{has_signal} ? 'standby' : undef);
	return;
}

# Ends the recovery of the server that takes over.
sub end_recovery
{
	my ($server, $old, $how) = @_;
	my $is_bare = $how->{way} eq 'no_library';
	my $has_no_workers = $how->{after} eq 'no_worker';

	if ($how->{way} eq 'restartpoint')
	{
		value_when_there_is_one($server->{node}, "CHECKPOINT;\nSELECT 1");
	}
	if (!has_postmaster($server) || $how->{way} ne 'promotion' || $has_no_workers)
	{
		end_life($server, (qw(fast immediate))[ rand 2 ])
		  if has_postmaster($server);
		write_recovery($server, $old, $how);
		write_library($server, '') if $is_bare;
		write_workers($server, 0) if $has_no_workers;
		start_server($server->{node});
	}
	$server->{node}->promote
	  if $how->{has_signal} && $how->{origin} ne 'restore';
	wait_until($server->{node}, 'SELECT NOT pg_is_in_recovery()');
	if ($is_bare)
	{
		try_value_of($server->{node}, 'CHECKPOINT') if rand() < 0.5;
		end_life($server, (qw(fast immediate killed))[ rand 3 ]);
		log_event('recovered without the library');
		write_library($server, 'snowflake');
		start_server($server->{node});
	}

	# These hold from the next start on.
	write_workers($server, 8);
	write_conf($server->{node}, 'upstream.conf');
	return;
}

# How far the new server's clock is from the real one when it is in order.
sub clock_of_successor
{
	my ($old, $how, $forward_s) = @_;
	my $in_order = $old->{in_order};

	$in_order += $forward_s if $how->{node} eq 'same';
	$in_order -= rand SLOWEST_CLOCK_S if $how->{clock} eq 'slower';
	$in_order += some_seconds() if $how->{clock} eq 'ahead';
	return $in_order;
}

# Makes the old primary a standby of the new one.  The old primary's clients
# may come late, so it becomes another server for them, at another port.
sub rewind
{
	my ($old) = @_;
	my $server = add_server($old->{in_order});

	# pg_rewind sees a promotion by the checkpoint after it.
	value_when_there_is_one($primary->{node}, "CHECKPOINT;\nSELECT 1");
	rename $old->{node}->data_dir, $server->{node}->data_dir
	  or die 'rename: ' . $old->{node}->data_dir . ": $!";
	$old->{node}->clean_node;
	PostgreSQL::Test::Utils::system_or_bail(
		'pg_rewind', '--no-sync',
		'--target-pgdata', $server->{node}->data_dir,
		'--source-server', $primary->{node}->connstr('postgres'));
	follow($server, $primary);
	$standby = $server;
	write_all_parameters();
	set_clock_of($standby, -rand SLOWEST_CLOCK_S);
	start_server($standby->{node});
	log_event('old primary rewound');
	return;
}

$fault{take_over} = sub {
	my %how = deal_take_over();
	my ($old, $old_worker_number) = ($primary, $worker_number);
	my $is_early = $how{way} ne 'no_library' && rand() < 0.5;

	log_event(join ' ', "era $era ends:", map { "$_ $how{$_}" } sort keys %how);
	make_standby() if !defined $standby && $how{origin} =~ /standby|cascade/;
	my $forward_s = lead_clock($how{lead});
	pause_clients() if $how{load} eq 'nothing';
	replicate_synchronously() if $how{load} eq 'synchronous';

	# the old primary
	my $new = find_successor(\%how);
	let_pass(rand 0.5);
	commit_something() for 1 .. 2;
	my $stopped_at = now();
	end_life($old, $how{ending});
	$chaos->note_stop;
	remember_newest();
	log_event("old primary ended, $how{ending}");
	my $is_all = $how{load} eq 'nothing'
	  || $how{ending} eq 'fast' && $how{origin} eq 'standby';

	# the new one
	undef $clock_due;
	$step_s = 0;
	$new->{in_order} = clock_of_successor($old, \%how, $forward_s);
	$primary = $new;
	$worker_number = new_worker_number() if $how{node} eq 'new';
	$worker_number = former_worker_number(primary_time())
	  if $how{node} eq 'former';
	my $is_new = !exists $newest_of_worker{$worker_number};
	$newest_of_worker{$worker_number} //= 0;
	if ($new->{worker_number} != $worker_number)
	{
		log_event("worker $worker_number" . ($is_new ? ', new' : ''));
		write_identity($new);
		if (has_postmaster($new))
		{
			end_life($new, 'fast');
			start_server($new->{node});
		}
	}
	undef $standby if defined $standby && $standby == $new;
	discard_server($standby) if defined $standby;
	undef $standby;
	write_all_parameters();
	set_clock_of($new, 0);
	my $behind_s =
	    $how{node} eq 'former' && !$is_new ? seconds_before_newest()
	  : $how{clock} eq 'behind' ? seconds_behind($stopped_at)
	  : $how{lead} eq 'corrected' && $how{node} eq 'same' ? $forward_s
	  : 0;
	step_primary(-$behind_s, TIMEOUT_S) if $behind_s > 0;
	command_clients('all', $new, $era + 1) if $is_early;
	end_recovery($new, $old, \%how);
	log_event(sprintf 'recovered, clock %+.3f s', $new->{in_order});
	if ($how{after} eq 'crash')
	{
		let_pass(rand 0.1);
		end_life($new, (qw(immediate killed))[ rand 2 ]);
		$chaos->note_stop;
		log_event('crashed');
		damage_mark_of($new);
		start_server($new->{node});
	}
	write_replication($new, "synchronous_commit = $synchronous_commit");
	next_era(
		$new,
		is_all => $is_all,
		kind => $how{load} eq 'synchronous' ? 'insert' : '',
		is_other_node => $worker_number != $old_worker_number);
	command_clients('all', $new);
	expect_prompt_id($new) if $is_new;
	step_primary(-$behind_s, 0.3 + rand 1) if $behind_s > 0;
	let_pass(0.3 + rand 0.3);
	end_and_start('fast') if $how{after} eq 'no_worker' && rand() < 0.5;
	if ($how{old} eq 'rewound')
	{
		rewind($old);
	}
	else
	{
		$old->{node}->clean_node;
	}
	pass_ids_ahead();
	return;
};

END
{
	my $status = $?;

	# Do this also when the test ends in the middle.
	kill 'CONT', $stopped_worker if defined $stopped_worker;
	$? = $status;
}

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };

$primary = add_server(0);
$primary->{node}->init(
	allows_streaming => 1,
	extra => [
		'--wal-segsize=1', $has_checksums ? '--data-checksums' : ()
	]);
$primary->{node}->append_conf(
	'postgresql.conf', q{
restart_after_crash = on
max_connections = 40
shared_buffers = 16MB
autovacuum = off
wal_keep_size = 256MB
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_retrieve_retry_interval = 100ms
log_statement = none
log_replication_commands = off
log_checkpoints = off
log_min_messages = log
log_min_error_statement = panic
wal_writer_delay = } . $wal_writer_delay . q{
include 'identity.conf'
include 'parameters.conf'
include 'replication.conf'
include 'library.conf'
include 'workers.conf'
include 'upstream.conf'
});
settle_server($primary);
write_all_parameters();
start_server($primary->{node});
$primary->{node}->safe_psql(
	'postgres', q{
	CREATE EXTENSION snowflake;
	CREATE TABLE taken (
		id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
		client int,
		era int);
});
if ($has_former_workers)
{
	for (0 .. NODES_ON_PAGE)
	{
		$chaos->add_id($_, $era, 0)
		  for split /\n/, $primary->{node}->safe_psql('postgres',
			'SELECT snowflake_nextvals(10)');
		remember_newest();
		$newest_of_worker{ ++$worker_number } = 0;
		write_identity($primary);
		end_life($primary, 'immediate');
		start_server($primary->{node});
	}
}
$first_id_at = time();
command_clients('all', $primary);
for my $kind (sort keys %clients)
{
	$chaos->start_client($kind, 'control') for 1 .. $clients{$kind};
}
let_pass(1);
make_standby();

# Every kind of fault at least once, however slow the machine is.
my @hand;
my $until = now() + $seconds;
my $kinds = keys(%deck) + take_over_kinds();
while (now() < $until || keys(%counts) + keys(%{ take_over_counts() }) < $kinds)
{
	@hand = shuffled(\%deck) unless @hand;
	my $name = pop @hand;

	$fault{$name}->();
	$counts{$name}++;
	let_pass(rand 0.5);
	$chaos->check_clients;
}

# Put everything in order again.
continue_worker();
put_clock_in_order();
put_clock_in_order(max(0, max(values %newest_of_worker) - primary_time()));
%parameters = (%parameters, clock_policy => 'wait', clock_tolerance => 60_000);
write_all_parameters();
wait_until($primary->{node}, 'SELECT snowflake_nextval() > 0');
my @clients = 0 .. sum0(values %clients) - 1;
ok($chaos->get_ids(\&tend, @clients),
	'all clients get ids when all is in order');
command_clients('none');
is($chaos->wait_for_clients(@clients), 0, 'clients end without an error');

next_era($primary, is_all => 1);
my %total =
  (ids => 0, lost => 0, disorder => 0, wrong_errors => 0, errors => {});
$chaos->find_newest_rows($_) for @clients;
$chaos->examine($_, \%total, \%allowed_errors) for @clients;
$chaos->keep_other_rows;
my $duplicates = $chaos->count_duplicates(
	sub {
		diag("id $_[0] came to clients $_[1] and $_[2], in eras $_[3] and $_[4]"
		);
	});
my $overlaps = $chaos->count_overlaps(
	sub { $_[0] >> 12 & 1023 },
	sub {
		diag("id $_[0] of era $_[1] is above id $_[2] of era $_[3], and older");
	});

note("seed $seed, synchronous_commit $synchronous_commit: "
	  . "$total{ids} ids in " . int(now() - $began) . ' s, '
	  . sum0(@counts{ keys %deck })
	  . " faults, $era eras, $total{lost} ids lost, "
	  . ($total{errors}{'55000'} // 0)
	  . " refusals, $marks_damaged marks damaged, $overlaps overlaps, "
	  . "$duplicates duplicates");
%counts = (%counts, %{ take_over_counts() });
note("faults: $_ $counts{$_}") for sort keys %counts;
note("errors: $_ $total{errors}{$_}") for sort keys %{ $total{errors} };

cmp_ok($total{ids}, '>', 100 * $seconds, 'clients got ids');
is($duplicates, 0, 'no id came twice');
is($overlaps, 0, 'ids of a node are above all from before a stop');
is($total{errors}{'23505'} // 0, 0, 'none was in the table already');
is($total{disorder}, 0, "every client's ids increase");
is($total{wrong_errors}, 0, 'only errors that the rules name');
is($late_ids, 0, 'a worker id never used before gets ids at once');

# A short run may have no such card; t/028_mark_page.pl always damages the
# page.
cmp_ok($marks_damaged, '>', 0, 'the page of the mark was damaged')
  if $seconds >= 120;

$_->{node}->stop for grep { defined } $standby, $primary;

done_testing();
