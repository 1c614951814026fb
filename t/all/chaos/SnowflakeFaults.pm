# A server under faults: its clock steps, its processes are killed or suspended,
# and it is stopped and started.  A fault may end later: after() sets the time,
# and tend() calls the functions whose time has come.
package SnowflakeFaults;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(min shuffle);
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(is_alive settle suspend_postmaster);
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

our @EXPORT = qw(
  now
  log_event
  draw
  after
  is_due
  tend
  let_pass
  put_forward
  chaos_conf
  write_parameters
  base_backup
  write_signal
  try_value
);

my $main_pid = $$;
my @servers;                    # all that the test has made
my @due;                        # [when, function], earliest first
my $common_s = 0;               # how far all clocks have been put forward

# Resumes suspended processes even if the test dies, so that they can be ended.
END
{
	my $status = $?;

	if ($$ == $main_pid)
	{
		resume($_->{node}) for @servers;
	}
	$? = $status;
}

# ----- time -----

# Returns the time in seconds by a clock that nobody sets.
sub now
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# Prints what happens now, with the time.
sub log_event
{
	my ($text) = @_;

	note(sprintf '%8.3f %s', time(), $text);
	return;
}

# Has a function called in so many seconds.
sub after
{
	my ($for_s, $function) = @_;

	@due = sort { $a->[0] <=> $b->[0] } @due, [ now() + $for_s, $function ];
	return;
}

# Returns whether a function has still to be called.
sub is_due
{
	return scalar @due;
}

# Calls the functions whose time has come.
sub tend
{
	(shift @due)->[1]->() while @due && $due[0][0] <= now();
	return;
}

# Waits for so many seconds, and calls tend() meanwhile.
sub let_pass
{
	my ($for_s) = @_;
	my $until = now() + $for_s;

	tend();
	while ((my $left_s = $until - now()) > 0)
	{
		usleep(1_000_000 * min(0.01, $left_s));
		tend();
	}
	return;
}

# Draws a card from a hand.  An empty hand is first filled from a deck, a hash
# from each card to how often it is in the deck.
sub draw
{
	my ($hand, $deck) = @_;

	@$hand = shuffle map { ($_) x $deck->{$_} } sort keys %$deck unless @$hand;
	return pop @$hand;
}

# ----- servers -----

# Returns the lines of postgresql.conf for a server of a chaos test: it is
# small, it keeps the WAL that a standby needs, it waits for processes that are
# suspended, and only checkpoints write the mark's page.
sub chaos_conf
{
	return split /\n/, q{restart_after_crash = on
shared_buffers = 16MB
max_connections = 40
wal_keep_size = 256MB
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_retrieve_retry_interval = 100ms
autovacuum = off
bgwriter_lru_maxpages = 0
log_statement = none
log_replication_commands = off
log_checkpoints = off
log_min_messages = log
log_min_error_statement = panic};
}

# Returns a server under faults for a PostgreSQL::Test::Cluster that does not
# run.  Its clock differs from the real one by "skew_s" and, for a while, by
# "step_s".  Its state is "up", "down" or "suspended".
sub new
{
	my ($class, $node, $skew_s) = @_;
	my $self = bless {
		name => $node->name,
		node => $node,
		skew_s => $skew_s // 0,
		step_s => 0,
		steps => 0,
		state => 'down'
	}, $class;

	push @servers, $self;
	$self->adjust_clock;
	return $self;
}

sub is_up
{
	my ($self) = @_;
	return $self->{state} eq 'up';
}

sub adjust_clock
{
	my ($self) = @_;

	set_clock($self->{node}, $common_s + $self->{skew_s} + $self->{step_s});
	return;
}

# Returns the time by the server's clock when that has no step.
sub right_time
{
	my ($self) = @_;
	return time() + $common_s + $self->{skew_s};
}

# Puts the clocks of all servers forward for good.
sub put_forward
{
	my ($by_s) = @_;

	$common_s += $by_s;
	$_->adjust_clock for @servers;
	log_event(sprintf 'all clocks %+.3f s', $by_s);
	return;
}

# Steps the clock for some seconds.  Then sets the clock right, and calls a
# function, unless another step has begun.
sub step_clock
{
	my ($self, $step_s, $for_s, $at_end) = @_;
	my $number = ++$self->{steps};

	log_event(sprintf '%s: clock %+.3f s for %.3f s', $self->{name}, $step_s, $for_s);
	$self->{step_s} = $step_s;
	$self->adjust_clock;
	after(
		$for_s,
		sub {
			return if $self->{steps} != $number;
			$self->{step_s} = 0;
			$self->adjust_clock;
			$at_end->() if defined $at_end;
		});
	return;
}

sub start
{
	my ($self) = @_;

	start_server($self->{node});
	$self->{state} = 'up';
	log_event("$self->{name}: started");
	return;
}

# Ends the server: "fast" or "immediate" as by pg_ctl; "killed", if only the
# postmaster gets SIGKILL, so that the other processes end by themselves; "cut",
# if all processes get SIGKILL at once, also those that are suspended.
sub end
{
	my ($self, $how) = @_;
	my $node = $self->{node};

	log_event("$self->{name}: ends, $how");
	resume($node) if $how ne 'cut';
	$how =~ /^(?:killed|cut)$/
	  ? kill_hard($node, only_postmaster => $how eq 'killed')
	  : $node->stop($how);
	$self->{state} = 'down';
	return;
}

# Starts a stopped server as the standby of another one.
sub follow
{
	my ($self, $upstream) = @_;

	$self->{node}->append_conf('postgresql.conf',
		"primary_conninfo = '" . $upstream->{node}->connstr . "'");
	write_signal($self->{node}, 'standby');
	$self->start;
	return;
}

# Suspends the whole server for some seconds.  Its workers resume later than its
# sessions, by up to half a second.
sub suspend_for
{
	my ($self, $for_s) = @_;

	log_event(sprintf '%s: suspended for %.3f s', $self->{name}, $for_s);
	suspend($self->{node});
	$self->{state} = 'suspended';
	after(
		$for_s,
		sub {
			resume($self->{node}, processes_of($self->{node}, 'snowflake'));
			$self->{state} = 'up';
			log_event("$self->{name}: resumed");
			after(rand 0.5, sub { resume($self->{node}) if $self->is_up });
		});
	return;
}

# Suspends a process for some seconds.  Returns false if there is none of this
# title.
sub suspend_process
{
	my ($self, $title, $for_s) = @_;
	my ($pid) = processes_of($self->{node}, $title);

	return 0 unless defined $pid && kill('STOP', $pid) == 1;
	log_event(sprintf '%s: %s suspended for %.3f s', $self->{name}, $title, $for_s);
	after($for_s, sub { resume($self->{node}) if $self->is_up });
	return 1;
}

# Kills a process, so that the postmaster ends all others and makes its shared
# memory anew.  Calls a function first, whose changes of the configuration are
# read by all sessions that begin after the crash.  Returns false if there is no
# process of this title.
sub kill_process
{
	my ($self, $title, $configure) = @_;
	my $node = $self->{node};
	my $offset = -s $node->logfile;
	my ($pid) = shuffle processes_of($node, $title);

	return 0 unless defined $pid;
	resume($node);

	# A process that is about to exit would not die of the signal.
	suspend_postmaster($_) for $node->{_pid}, $pid;
	my $is_killed = is_alive($pid) && kill('KILL', $pid) == 1;
	if ($is_killed)
	{
		log_event("$self->{name}: $title killed");
		$configure->() if defined $configure;
		kill 'HUP', $node->{_pid};
	}
	resume($node);
	$node->wait_for_log(
		qr/reinitializing.*database system is ready to accept connections/s,
		$offset)
	  if $is_killed;
	return $is_killed;
}

# Writes a server's parameters, and has the server read them if it runs.
sub write_parameters
{
	my ($node, %of) = @_;

	write_conf($node, 'parameters.conf',
		map { "snowflake.$_ = $of{$_}" } sort keys %of);
	$node->reload if defined $node->{_pid};
	return;
}

# Takes a base backup of a server into a new node's data directory.  Returns
# whether that succeeded.
sub base_backup
{
	my ($source, $node) = @_;

	return 0
	  if PostgreSQL::Test::Utils::system_log(
		'pg_basebackup', '--pgdata', $node->data_dir,
		'--dbname', $source->connstr('postgres'),
		'--checkpoint', 'fast', '--no-sync') != 0;
	settle($node);
	return 1;
}

# Writes a signal file, "standby" or "recovery", or none, for a stopped server.
sub write_signal
{
	my ($node, $signal) = @_;
	my $data = $node->data_dir;

	unlink "$data/standby.signal", "$data/recovery.signal";
	$node->append_conf("$signal.signal", '') if defined $signal;
	return;
}

# Returns a statement's output, or nothing if the statement fails or the server
# does not answer.
sub try_value
{
	my ($node, $sql) = @_;
	my ($rc, $stdout);
	my $is_done = eval {
		($rc, $stdout) = $node->psql(
			'postgres', $sql,
			timeout => 30,
			timed_out => \my $is_late);
		1;
	};

	# A broken pipe is no error: psql has ended before it read the statement.
	die $@ unless $is_done || $@ =~ /Broken pipe/;
	return defined $rc && $rc == 0 ? $stdout : undef;
}

1;
