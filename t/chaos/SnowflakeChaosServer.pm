# A server of a chaos test: its node, its clock, whether it runs, which of its
# processes are suspended, and when it crashed.
#
# A server's clock differs from the real clock by the sum of three numbers of
# seconds: how far the test has put forward the clocks of all servers, the
# lasting difference of this server ("skew_s"), and a temporary step ("step_s").
package SnowflakeChaosServer;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max min shuffle);
use SnowflakeFaults;
use SnowflakeServer;
use SnowflakeTest;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  chaos_conf
  put_forward
  marks_damaged
  crashes
);

my $main_pid = $$;
my @servers;                    # all that the test has made
my $common_s = 0;               # how far all clocks have been put forward
my $marks_damaged = 0;
my @crashes;

# Lets suspended processes run on even if the test dies, so that they can be
# stopped.
END
{
	my $status = $?;

	if ($$ == $main_pid)
	{
		kill 'CONT',
		  map { (@{ $_->{suspended} }, @{ $_->{suspended_workers} }) } @servers;
	}
	$? = $status;
}

# Returns the lines of postgresql.conf for a server of a chaos test: it is
# small, it logs little, it keeps the WAL that a standby or pg_rewind needs, it
# waits for processes that are suspended, and only checkpoints write the page of
# the mark.
sub chaos_conf
{
	return split /\n/, q{restart_after_crash = on
shared_buffers = 16MB
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

# Returns a server for a PostgreSQL::Test::Cluster that does not run yet.  The
# fields are
#
#   name               of its node
#   node               its PostgreSQL::Test::Cluster
#   skew_s, step_s     see above
#   state              "up", "down" or "suspended"; a test may add others
#   suspended          the processes of a suspended server
#   suspended_workers  workers that are suspended while the server runs
#   clocks             when its clock was set, by now(), and by how many seconds it
#                      has differed from the real one since
#   crashed_at         when it crashed, by now(), until it has recovered
sub new
{
	my ($class, $node, $skew_s) = @_;
	my $server = bless {
		name => $node->name,
		node => $node,
		skew_s => $skew_s,
		step_s => 0,
		state => 'down',
		suspended => [],
		suspended_workers => [],
		clocks => []
	}, $class;

	push @servers, $server;
	$server->adjust_clock;
	return $server;
}

# ----- the clock -----

# Sets the clock to what the server's fields say.
sub adjust_clock
{
	my ($self) = @_;

	my $offset_s = $common_s + $self->{skew_s} + $self->{step_s};

	set_clock($self->{node}, $offset_s);
	push @{ $self->{clocks} }, [ now(), $offset_s ];
	return;
}

# Returns the earliest time that the clock showed between two instants by now().
sub earliest_time
{
	my ($self, $from, $to) = @_;
	my $real = time() - now();
	my @clocks = @{ $self->{clocks} };
	my @times;

	for my $i (0 .. $#clocks)
	{
		my ($since, $offset_s) = @{ $clocks[$i] };

		push @times, max($from, $since) + $real + $offset_s
		  if $since <= $to && ($i == $#clocks || $clocks[ $i + 1 ][0] >= $from);
	}
	return min @times;
}

# Steps the clock to so many seconds ahead of its right time.
sub step_clock
{
	my ($self, $step_s) = @_;

	$self->{step_s} = $step_s;
	$self->adjust_clock;
	return;
}

# Steps the clock for some seconds.  After these seconds calls a function, and
# then sets the clock right.
sub step_clock_for
{
	my ($self, $step_s, $for_s, $at_end) = @_;

	log_event(sprintf '%s: clock %+.3f s for %.3f s',
		$self->{name}, $step_s, $for_s);
	$self->step_clock($step_s);
	after(
		$for_s,
		sub {
			$at_end->() if defined $at_end;
			$self->step_clock(0);
		});
	return;
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

# ----- starts and ends -----

# Returns whether the server runs and is not suspended.
sub is_up
{
	my ($self) = @_;
	return $self->{state} eq 'up';
}

# Starts the server.
sub start
{
	my ($self) = @_;

	start_server($self->{node});
	$self->{state} = 'up';
	$self->note_crash if defined $self->{crashed_at};
	return;
}

# Notes that the server has recovered from a crash, and which marks it has
# recovered.  At the end of a crash recovery the page is in its file.  After the
# recovery of a standby or from a backup it need not be.  With hot_standby = off
# pg_ctl returns before the recovery has ended, so wait for an answer.
sub note_crash
{
	my ($self) = @_;
	my $node = $self->{node};
	my $data = $node->data_dir;
	my $from = $self->{crashed_at};

	undef $self->{crashed_at};
	return if grep { -e "$data/$_.signal" } qw(standby recovery);
	value_when_there_is_one($node, 'SELECT 1');
	push @crashes,
	  {
		server => $self,
		from => $from,
		to => now(),
		page => -e mark_file($node) ? read_page($node) : undef
	  };
	return;
}

# Returns the crashes of all servers: the server, the instants by now() between
# which it crashed and recovered, and the page that it has recovered, if any.
sub crashes
{
	return @crashes;
}

# Kills a process of the server by SIGKILL.  The postmaster then ends all other
# processes and makes its shared memory anew.  Returns false if the process has
# ended.
sub kill_process
{
	my ($self, $pid) = @_;
	my $node = $self->{node};
	my $offset = -s $node->logfile;

	$self->resume_workers;
	$self->{crashed_at} = now();
	if (kill('KILL', $pid) != 1)
	{
		undef $self->{crashed_at};
		return 0;
	}
	$node->wait_for_log(
		qr/reinitializing.*database system is ready to accept connections/s,
		$offset);
	$self->note_crash;
	return 1;
}

# Starts the server, and logs that.
sub bring_back
{
	my ($self) = @_;

	$self->start;
	log_event("$self->{name}: started");
	return;
}

# Brings the server back in some seconds.
sub start_again_after
{
	my ($self, $for_s) = @_;

	after($for_s, sub { $self->bring_back });
	return;
}

# Ends the server: "fast", "immediate", "killed", or "cut".  Before a cut,
# processes that are suspended stay so.
sub end_life
{
	my ($self, $how) = @_;

	if ($how eq 'cut')
	{
		$self->{suspended_workers} = [];
	}
	else
	{
		$self->resume_processes;
		$self->resume_workers;
	}
	$self->{crashed_at} = $how eq 'fast' ? undef : now();
	end_node($self->{node}, $how);
	$self->{state} = 'down';
	return;
}

# Stops the server in a mode of pg_ctl, and logs that.
sub stop
{
	my ($self, $mode) = @_;

	log_event("$self->{name}: stops, $mode");
	$self->end_life($mode);
	return;
}

# Damages the page of the mark after a crash, if the recovery rewrites the page
# from WAL.
sub damage_page
{
	my ($self) = @_;
	my $damage = damage_mark($self->{node}) // return;

	log_event("$self->{name}: $damage");
	$marks_damaged++;
	return;
}

# Returns how many pages of the mark were damaged in this run.
sub marks_damaged
{
	return $marks_damaged;
}

# ----- suspension -----

# Suspends the whole server.
sub suspend_all
{
	my ($self) = @_;

	# Workers that are suspended already are resumed with all others.
	$self->{suspended_workers} = [];
	$self->{suspended} = [ shuffle suspend($self->{node}) ];
	$self->{state} = 'suspended';
	return;
}

# Resumes the processes of a suspended server, in any order.
sub resume_processes
{
	my ($self) = @_;
	my @pids = @{ $self->{suspended} };

	$self->{suspended} = [];
	for my $pid (@pids)
	{
		kill 'CONT', $pid;
		usleep(rand 20_000) if rand() < 0.3;
	}
	return;
}

# Resumes a suspended server.
sub resume_all
{
	my ($self) = @_;

	$self->resume_processes;
	$self->{state} = 'up';
	return;
}

# Resumes a suspended server, and logs that.
sub come_back
{
	my ($self) = @_;

	$self->resume_all;
	log_event("$self->{name}: resumed");
	return;
}

# Suspends the whole server for some seconds.
sub suspend_for
{
	my ($self, $for_s) = @_;

	log_event(sprintf '%s: suspended for %.3f s', $self->{name}, $for_s);
	$self->suspend_all;
	after($for_s, sub { $self->come_back });
	return;
}

# Suspends one worker of the server for some seconds.  Returns false if the
# worker has ended.
sub suspend_worker_for
{
	my ($self, $pid, $for_s) = @_;

	return 0 unless kill('STOP', $pid) == 1;
	push @{ $self->{suspended_workers} }, $pid;
	after($for_s, sub { $self->resume_workers });
	return 1;
}

# Resumes the workers that are suspended while the server runs.
sub resume_workers
{
	my ($self) = @_;
	my @pids = @{ $self->{suspended_workers} };

	# Resume only processes that are still workers of this server, because
	# another process may have got the pid.  If the server is suspended or
	# down, resume none.
	my %is_ours = map { $_ => 1 }
	  @pids && $self->is_up
	  ? processes_of($self->{node}, qr/snowflake|walwriter/)
	  : ();
	$self->{suspended_workers} = [];
	kill 'CONT', grep { $is_ours{$_} } @pids;
	return;
}

1;
