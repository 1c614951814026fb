# The servers of t/chaos/primary.pl: a primary, its standby, and their clients.
#
# The clients draw ids from whichever server is the primary.  Another server
# may become the primary: see SnowflakeTakeOver.  The stages of the clients
# change with the primary's data and worker id: see SnowflakeLedger.
#
# Each server has its own parameters in files that its postgresql.conf includes.
# A base backup has them, too, and settle_server() then writes all of them anew
# except parameters.conf:
#
#   identity.conf     its worker id
#   parameters.conf   snowflake.clock_policy and others
#   replication.conf  synchronous_commit, synchronous_standby_names
#   library.conf      shared_preload_libraries
#   workers.conf      max_worker_processes
#   upstream.conf     the server that it replays from, or its recovery target
package SnowflakeChaosCluster;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use SnowflakeChaosServer;
use SnowflakeFaults;
use SnowflakeServer;
use SnowflakeServer qw(settle);
use SnowflakeTest;
use SnowflakeWorkerIds;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  HOUR_S
  SLOWEST_CLOCK_S
  some_seconds
);

use constant {
	# The largest difference between the right clocks of a primary and its
	# successor.
	SLOWEST_CLOCK_S => 3,

	# How many seconds the first id of a new worker id may take, on a busy
	# machine.
	PROMPT_S => 10,

	# The worker id that the first primary begins with.
	FIRST_WORKER_ID => 7,

	HOUR_S => 3600,
};

# Returns the servers of a run, none of which is made yet.  Parameters are the
# clients (a SnowflakeChaos), their ledger, the number of clients, the values
# of snowflake.clock_policy to choose among, and synchronous_commit.
sub new
{
	my ($class, %self) = @_;
	my $cluster = bless {
		%self,
		primary => undef,
		standby => undef,           # of the primary, if there is one
		servers => 0,               # how many the test has made
		stage => 0,
		worker_ids => SnowflakeWorkerIds->new(FIRST_WORKER_ID),

		# Worker ids never used before: how many got an id within PROMPT_S, and
		# how many did not.
		prompt_ids => 0,
		late_ids => 0,

		clock_due => undef,         # when the primary's clock is right again
		first_id_at => undef,       # when the clients began to draw ids
		parameters => {
			clock_policy => $self{policies}[0],
			clock_tolerance => 5000,
			sequence_start => 'zero',
			high_water_interval => 500
		}
	}, $class;

	# Put the clock in order when its step is over, unless another fault has
	# done so already.
	tend_also(
		sub {
			$cluster->put_clock_in_order
			  if defined $cluster->{clock_due}
			  && now() >= $cluster->{clock_due};
		});
	return $cluster;
}

# ----- clients -----

# Commands the clients of a kind, or "all", to draw ids from a server; clients
# of other kinds pause.  Without a server, "who" is "pause" or "end", a command
# for all clients.  The stage is the present one unless it is given.
sub command_clients
{
	my ($self, $who, $server, $stage) = @_;

	return $self->{clients}->command('control', $stage // $self->{stage}, $who,
		$server ? $server->{node}->connstr('postgres') : '');
}

# Waits until all clients have ended their batches and begin no other.
sub pause_clients
{
	my ($self) = @_;
	my $directory = $self->{clients}{directory};
	my $until = now() + TIMEOUT_S;
	my $command_number = $self->command_clients('pause');

	for my $number (0 .. $self->{client_count} - 1)
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

# Ends the present stage, and begins the next.  The server has the data that go
# on; for the other parameters see end_stage() of SnowflakeLedger.
sub next_stage
{
	my ($self, $server, %kept) = @_;
	my $rows = value_when_there_is_one($server->{node},
		"SELECT id, client FROM taken WHERE stage = $self->{stage}");

	$self->{ledger}->end_stage(
		$self->{stage},
		rows => { map { split /\|/ } split /\n/, $rows },
		%kept);
	$self->{stage}++;
	return;
}

# ----- the primary's clock -----

# Returns a number of seconds up to an hour, of any order of magnitude.
sub some_seconds
{
	return HOUR_S**rand() - 1 + rand 0.1;
}

# Returns the time by the primary's clock.
sub primary_time
{
	my ($self) = @_;
	return time() + $self->{primary}{skew_s} + $self->{primary}{step_s};
}

# Notes the time up to which the primary may have issued ids.  The caller is
# about to change the primary, its clock or its worker id.
sub note_time
{
	my ($self) = @_;

	$self->{worker_ids}->note_time($self->primary_time);
	return;
}

# Steps the primary's clock for some seconds.
sub step_primary
{
	my ($self, $step_s, $for_s) = @_;

	log_event(sprintf 'clock %+.3f s for %.3f s', $step_s, $for_s);
	$self->note_time;
	$self->{primary}->step_clock($step_s);
	$self->{clock_due} = now() + $for_s;
	return;
}

# Ends the step of the primary's clock, and puts the clock forward for good.
sub put_clock_in_order
{
	my ($self, $forward_s) = @_;

	$self->note_time;
	$self->{primary}{skew_s} += $forward_s // 0;
	$self->{primary}->step_clock(0);
	log_event('clock in order') if defined $self->{clock_due};
	undef $self->{clock_due};
	return;
}

# Lets the primary's clock pass the ids of all worker ids.
sub pass_all_ids
{
	my ($self) = @_;

	$self->put_clock_in_order(
		max(0, $self->{worker_ids}->newest_of_all - $self->primary_time));
	return;
}

# Lets the primary's clock pass the ids of all worker ids, if too many worker
# ids have ids ahead of the clock.
sub pass_ids_ahead
{
	my ($self) = @_;

	return
	  unless $self->{worker_ids}
	  ->are_too_many_ahead($self->primary_time + SLOWEST_CLOCK_S);
	$self->pass_all_ids;
	log_event('clock forward, past all ids');
	return;
}

# Returns by how many seconds the clock is to be behind when a server starts
# after a stop: up to an hour, or so many that the clock shows a time shortly
# before the stop.
sub seconds_behind
{
	my ($self, $stopped_at) = @_;

	return some_seconds() if rand() < 0.5;
	return now() - $stopped_at + rand 3;
}

# Returns how far the clock is to be behind: by up to twice the time since the
# newest ids of the primary's worker id.  So in half of the cases these ids are
# ahead of the clock.
sub seconds_around_newest
{
	my ($self) = @_;

	return rand(
		2 * $self->{worker_ids}->seconds_since_newest($self->primary_time));
}

# ----- configuration -----

# Writes the present worker id for a server, and notes that the server has it.
sub write_identity
{
	my ($self, $server) = @_;

	write_conf($server->{node}, 'identity.conf',
		$self->{worker_ids}->parameters);
	$server->{worker_id} = $self->{worker_ids}->present;
	return;
}

# Writes the parameters of the primary and its standby.
sub write_all_parameters
{
	my ($self) = @_;

	write_parameters($_->{node}, %{ $self->{parameters} })
	  for grep { defined } $self->{primary}, $self->{standby};
	return;
}

# Changes some of the parameters of the primary and its standby.
sub change_parameters
{
	my ($self, %parameters) = @_;

	$self->{parameters} = { %{ $self->{parameters} }, %parameters };
	$self->write_all_parameters;
	return;
}

# Writes how a server replicates: as the run's synchronous_commit says, unless
# lines of postgresql.conf are given.
sub write_replication
{
	my ($self, $server, @lines) = @_;

	@lines = ("synchronous_commit = $self->{synchronous_commit}")
	  unless @lines;
	write_conf($server->{node}, 'replication.conf', @lines);
	$server->{node}->reload if $server->is_up;
	return;
}

# Writes whether a server has the library.
sub write_library
{
	my ($self, $server, $has_library) = @_;

	write_conf($server->{node}, 'library.conf',
		$has_library ? preload_line() : "shared_preload_libraries = ''");
	return;
}

# Writes how many workers a server may have.  With max_worker_processes = 0 a
# hot standby refuses to start, because its primary has more.
sub write_workers
{
	my ($self, $server, $count) = @_;

	write_conf(
		$server->{node}, 'workers.conf',
		"max_worker_processes = $count",
		'hot_standby = ' . ($count ? 'on' : 'off'));
	return;
}

# Writes all that belongs to one server alone.  The lines say where the server
# recovers from.
sub settle_server
{
	my ($self, $server, @recovery) = @_;

	settle($server->{node});
	write_conf($server->{node}, 'upstream.conf', @recovery);
	$self->write_identity($server);
	$self->write_library($server, 1);
	$self->write_workers($server, 8);
	$self->write_replication($server);
	return;
}

# ----- servers -----

# Returns a new server without a data directory.
sub add_server
{
	my ($self, $skew_s) = @_;
	my $name = 'server' . ++$self->{servers};

	return SnowflakeChaosServer->new(PostgreSQL::Test::Cluster->new($name),
		$skew_s);
}

# Makes and starts the first primary.
sub make_primary
{
	my ($self, %how) = @_;
	my $primary = $self->add_server(0);
	my $node = $primary->{node};

	$self->{primary} = $primary;
	$node->init(
		allows_streaming => 1,
		extra => [
			'--wal-segsize=1', $how{has_checksums} ? '--data-checksums' : ()
		]);
	$node->append_conf(
		'postgresql.conf',
		join "\n",
		chaos_conf(),
		'max_connections = 40',
		"wal_writer_delay = $how{wal_writer_delay}",
		map { "include '$_.conf'" }
		  qw(identity parameters replication library workers upstream));
	$self->settle_server($primary);
	$self->write_all_parameters;
	$primary->start;
	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION snowflake;
		CREATE TABLE taken (
			id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
			client int,
			stage int);
	});
	return;
}

# Has the primary issue ids under some worker ids, one after the other.
sub use_worker_ids
{
	my ($self, $count) = @_;
	my ($primary, $worker_ids) = @$self{qw(primary worker_ids)};

	for (1 .. $count)
	{
		my $ids = $primary->{node}
		  ->safe_psql('postgres', 'SELECT snowflake_nextvals(10)');

		$self->{ledger}->add_id($_, $self->{stage}, 0) for split /\n/, $ids;
		$self->note_time;
		$worker_ids->take($worker_ids->present + 1);
		$self->write_identity($primary);
		$primary->end_life('immediate');
		$primary->start;
	}
	return;
}

# Returns a server from a base backup of another one; not started yet.
sub base_backup_of
{
	my ($self, $source) = @_;
	my $server = $self->add_server($self->{primary}{skew_s});

	base_backup($source->{node}, $server->{node})
	  or die "no base backup can be taken\n";
	$self->settle_server($server);
	return $server;
}

# Has a stopped server follow another one from its next start.
sub follow
{
	my ($self, $server, $upstream) = @_;

	$self->settle_server($server,
		"primary_conninfo = '" . $upstream->{node}->connstr . "'");
	write_signal($server->{node}, 'standby');
	return;
}

# Starts a stopped server as the standby of the primary.
sub start_standby
{
	my ($self, $server) = @_;

	$self->follow($server, $self->{primary});
	$self->{standby} = $server;
	$self->write_all_parameters;
	$server->step_clock(-rand SLOWEST_CLOCK_S);
	$server->start;
	return;
}

# Makes a standby of the primary.
sub make_standby
{
	my ($self) = @_;

	# Remove old rows, which are of no use and take time to copy.
	wait_until($self->{primary}{node},
		'WITH d AS (DELETE FROM taken WHERE stage < '
		  . ($self->{stage} - 1)
		  . ') SELECT true');
	$self->start_standby($self->base_backup_of($self->{primary}));
	log_event('new standby');
	return;
}

# Removes the standby for good, if there is one.
sub discard_standby
{
	my ($self) = @_;
	my $standby = $self->{standby} // return;

	$standby->end_life('immediate');
	$standby->{node}->clean_node;
	undef $self->{standby};
	return;
}

# Returns a process of the primary, or nothing if there is none of this type.
sub pid_of
{
	my ($self, $backend_type) = @_;
	my @pids = split /\n/, try_value_of($self->{primary}{node},
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$backend_type'"
		  . ' AND pid <> pg_backend_pid() ORDER BY pid') // '';
	my $chance = rand;

	return @pids ? $pids[ $chance * @pids ] : undef;
}

# ----- stops and starts of the primary -----

# Ends a server that issues ids, and notes the stop in the ledger.
sub end_life
{
	my ($self, $server, $how) = @_;

	$server->end_life($how);
	$self->{ledger}->note_stop;
	return;
}

# Starts the primary; in half of the cases its clock is behind.
sub start_again
{
	my ($self, $behind_s) = @_;
	my $for_s = 0.5 + rand 2;

	$self->step_primary(-$behind_s, $for_s) if rand() < 0.5;
	$self->{primary}->start;
	log_event('started');
	return;
}

# Ends the primary and starts it.  Before some crashes, and each "cut", the
# clients only call functions and commit nothing, so that only the WAL writer
# flushes marks.  Before a cut it does not: then the last marks are lost, and in
# half of the cases the clock shows a time shortly before the cut.
sub end_and_start
{
	my ($self, $how) = @_;
	my $primary = $self->{primary};
	my $stopped_at;

	if ($how eq 'cut' || $how ne 'fast' && rand() < 0.5)
	{
		$self->command_clients((qw(single many))[ rand 2 ], $primary);
		log_event('no commits');
		let_pass(0.2 + rand 0.6);
		if ($how eq 'cut')
		{
			$self->suspend_wal_writer(TIMEOUT_S);
			let_pass(rand 1.5);
		}
	}
	$stopped_at = now();
	$self->end_life($primary, $how);
	log_event("ended, $how");
	$primary->damage_page if $how ne 'fast' && rand() < 0.5;
	$self->start_again(
		$how eq 'cut'
		? now() - $stopped_at + rand 3
		: $self->seconds_behind($stopped_at));
	$self->command_clients('all', $primary);
	let_pass(0.3);
	return;
}

# Suspends the primary's WAL writer for some seconds.
sub suspend_wal_writer
{
	my ($self, $for_s) = @_;
	my ($pid) = processes_of($self->{primary}{node}, qr/walwriter/);

	$self->{primary}->resume_workers;
	return
	  unless defined $pid
	  && $self->{primary}->suspend_worker_for($pid, $for_s);
	log_event(sprintf 'WAL writer suspended for %.3f s', $for_s);
	return;
}

# Kills a session of the primary.
sub kill_backend
{
	my ($self) = @_;
	my $pid = $self->pid_of('client backend');
	my $is_done = defined $pid && $self->{primary}->kill_process($pid);

	log_event($is_done ? 'backend killed' : 'no backend to kill');
	return;
}

# ----- changes of the primary's worker id -----

# Gives the primary another worker id.  Reads the rows after the crash, because
# with synchronous_commit = off the crash loses some of them.
sub change_worker_id
{
	my ($self, $worker_id) = @_;
	my $primary = $self->{primary};
	my $is_new;

	$self->pause_clients;
	$self->note_time;
	$self->end_life($primary, (qw(fast immediate killed))[ rand 3 ]);
	$is_new = $self->{worker_ids}->take($worker_id);
	log_event("worker id $worker_id" . ($is_new ? ', new' : ''));
	$self->write_identity($primary);
	$self->start_again(
		$is_new ? some_seconds() : $self->seconds_around_newest);
	$self->next_stage($primary, is_all => 1, is_other_node => 1);
	$self->expect_prompt_id if $is_new;
	$self->command_clients('all', $primary);
	return;
}

# Tests that a worker id never used before gets an id at once.  There is no
# test if the worker id may have to wait, because the mark's page has no room
# for it, or because the clock is before the time when the clients began to
# draw ids: the floor of the page may be just before that time.
sub expect_prompt_id
{
	my ($self) = @_;
	my $node = $self->{primary}{node};
	my $until = now() + PROMPT_S;
	my $sql = 'SELECT snowflake_nextval()';
	my $id;

	return
	  if !$self->{worker_ids}->has_room
	  || $self->primary_time < $self->{first_id_at};
	until (defined $id || now() > $until)
	{
		$id = try_value_of($node, $sql);
	}
	if (defined $id)
	{
		$self->{ledger}->add_id($id, $self->{stage});
		$self->{prompt_ids}++;
		return;
	}
	my (undef, undef, $error) = $node->psql('postgres', $sql);
	diag('worker id '
		  . $self->{worker_ids}->present
		  . ", never used before, gets no id: $error");
	$self->{late_ids}++;
	return;
}

1;
