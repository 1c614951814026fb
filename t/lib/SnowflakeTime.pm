# The time of a test and of its servers.
#
# A test that waits for what a server does by itself, after a time, calls
# slow_down() before it starts servers.  From then on the clocks of all its
# servers stand nearly still while the test works: a lease of seconds outlasts any
# number of steps, however slow the machine is.  Time passes only while the test
# waits for something, in wait_for(), let_pass(), or a call that waits by itself
# (while_time_passes()): by turns, in each of which as much time passes as the
# busiest process of the servers and of the test has slept.  A process that
# waits for a processor or for a disk holds the time up, and one that works makes
# it slow, so that no deadline passes before a process could do its work.
# test_time() is the time of the servers, in which a test measures.
#
# Without slow_down() the servers' clocks are the real ones.
package SnowflakeTime;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max min);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC CLOCK_REALTIME);

our @EXPORT = qw(
  slow_down
  pace_environment
  test_time
  seconds_of
  wait_for
  wait_for_answer
  let_pass
  skip_time
);
our @EXPORT_OK = qw(make_pace_file);

use constant {
	SLOWNESS => 100,            # unless slow_down() is given another
	BY_ITSELF_S => 1,           # most calls that could wait end earlier
	POLL_S => 0.05,             # between two looks of a wait
	SLOWNESS_OF_WORK => 5,      # a process may work without end
	CLOCK_BOOTTIME => 7,        # Linux
	NS_PER_S => 1_000_000_000
};

# A test that measures a shorter time makes the turns shorter.
our $longest_turn_s = 0.1;

my ($pace_file, $slowness);
my ($began, $began_passing);
my $passed_s = 0;
my $passer;                     # the process of while_time_passes()

# Makes the file by which the clocks of servers run so many times slower from now on;
# clock.c reads it.  Returns its path, and the present time of each clock in ns.
sub make_pace_file
{
	my ($slowness) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/pace';
	my @began = map { int(NS_PER_S * clock_gettime($_)) }
	  CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME;

	append_to_file($file, pack 'q5', $slowness, 0, @began);
	return ($file, @began);
}

# Slows the clocks down of the servers that this process starts from now on, by
# SLOWNESS or so many times as are given.
sub slow_down
{
	($slowness) = (@_, SLOWNESS);
	($pace_file, my @began) = make_pace_file($slowness);
	$began = $began[1] / NS_PER_S;
	$began_passing = $began[0] / NS_PER_S;
	$passed_s = 0;
	return;
}

# The environment of a server whose clocks are to be slow.
sub pace_environment
{
	return defined $pace_file ? (CLOCK_PACE_FILE => $pace_file) : ();
}

# Returns the time of the servers in seconds since 1970: of a server whose clock
# is right.
sub test_time
{
	return clock_gettime(CLOCK_REALTIME) unless defined $pace_file;
	return $began_passing + (clock_gettime(CLOCK_MONOTONIC) - $began) / $slowness + passed();
}

# Returns how many seconds were let pass.  The process of while_time_passes()
# writes the file while there is one.
sub passed
{
	return $passed_s unless defined $passer;

	open my $fh, '<:raw', $pace_file or die "$pace_file: $!";
	sysseek $fh, 8, 0;
	sysread($fh, my $bytes, 8) == 8 or die "$pace_file: $!";
	close $fh;
	return unpack('q', $bytes) / NS_PER_S;
}

# Puts the servers' slow clocks forward by so many seconds, at once.
sub skip_time
{
	my ($seconds) = @_;

	return if !defined $pace_file || defined $passer;
	$passed_s += $seconds;

	# Write in place and at once: servers have the file mapped.
	open my $fh, '+<:raw', $pace_file or die "$pace_file: $!";
	sysseek $fh, 8, 0;
	defined syswrite $fh, pack 'q', int(NS_PER_S * $passed_s) or die "$pace_file: $!";
	close $fh;
	return;
}

# ----- turns of a wait -----

# The children of a process.
sub children
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/task/$pid/children" or return;
	return split ' ', <$fh> // '';
}

# The processes of all servers, and those that the test has started.
sub processes
{
	my ($test) = @_;
	my @pids = map { $_->{_pid} // () } @PostgreSQL::Test::Cluster::all_nodes;
	my @new = ($test, @pids);

	while (my $parent = shift @new)
	{
		my @children = grep { $_ != $$ } children($parent);

		push @pids, @children;
		push @new, @children;
	}
	return @pids;
}

# What each process has done so far: for how many ns it has waited for a processor,
# has been on one, and whether it waits for a disk now.
sub work_of
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/schedstat" or return undef;
	my ($on_processor, $waited) = (<$fh> // '') =~ /^(\d+) (\d+)/ or return undef;
	open $fh, '<', "/proc/$pid/stat" or return undef;
	return { on_processor => $on_processor, waited => $waited, is_at_disk => (<$fh> // '') =~ /\) D / ? 1 : 0 };
}

# How long a process has been busy since an earlier time, in seconds.
sub busy_s
{
	my ($before, $now) = @_;

	return 0 unless defined $now;
	return $longest_turn_s if $now->{is_at_disk};
	return ($now->{waited} - ($before->{waited} // 0)
		  + ($now->{on_processor} - ($before->{on_processor} // 0)) * (1 - 1 / SLOWNESS_OF_WORK))
	  / NS_PER_S;
}

# Waits for a turn, and lets the time pass that all processes have slept meanwhile.
# Returns how much time has passed.
sub wait_a_turn
{
	my ($seconds, $test) = @_;
	my %before;

	%before = map { $_ => scalar work_of($_) } processes($test // $$) if defined $pace_file;
	my $began_waiting = clock_gettime(CLOCK_MONOTONIC);
	sleep min(POLL_S, $longest_turn_s, $seconds);
	my $slept_s = min($longest_turn_s, clock_gettime(CLOCK_MONOTONIC) - $began_waiting);
	return $slept_s unless defined $pace_file;

	my $busy_s = max(0, map { busy_s($before{$_} // {}, scalar work_of($_)) } processes($test // $$));
	my $passed_s = max(0, $slept_s - $busy_s);
	skip_time($passed_s);
	return $passed_s;
}

# ----- waits -----

# Calls a function until it returns something true, for 30 seconds at most or
# as many as are given.  Returns what the function returned last.
sub wait_for
{
	my ($function, $seconds) = @_;
	my $left_s = $seconds // 30;

	for (;;)
	{
		my $began_at = test_time();
		my $outcome = $function->();

		return $outcome if $outcome || $left_s <= 0;
		my $turn_s = wait_a_turn(POLL_S);

		# The function may have let time pass itself.
		$left_s -= defined $pace_file ? test_time() - $began_at : $turn_s;
	}
	return;
}

# Lets so many seconds pass.
sub let_pass
{
	my ($seconds) = @_;

	while ($seconds > 0)
	{
		$seconds -= wait_a_turn($seconds);
	}
	return;
}

# Calls a function until it returns something true, such as that a server has
# answered.  Lets time pass meanwhile, if the answer may depend on it.
sub wait_for_answer
{
	my ($function, $can_wait) = @_;
	my $began_waiting = clock_gettime(CLOCK_MONOTONIC);

	until ($function->())
	{
		my $waited_s = clock_gettime(CLOCK_MONOTONIC) - $began_waiting;

		if ($waited_s < POLL_S || !$can_wait)
		{
			sleep min(POLL_S, $waited_s / 5);
		}
		else
		{
			wait_a_turn(POLL_S);
		}
	}
	return;
}

# Calls a function that waits by itself, such as one that stops a server, and
# lets time pass meanwhile: after BY_ITSELF_S, because most calls do not wait.
sub while_time_passes
{
	my ($function) = @_;

	return $function->() if !defined $pace_file || defined $passer;

	my $parent = $$;
	my $pid = fork // die "fork: $!\n";
	if ($pid == 0)
	{
		sleep BY_ITSELF_S;
		wait_a_turn(POLL_S, $parent) while getppid == $parent;
		POSIX::_exit(0);
	}
	$passer = $pid;
	my @outcome = eval { $function->() };
	my $error = $@;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	$passed_s = passed();
	undef $passer;
	die $error if $error ne '';
	return wantarray ? @outcome : $outcome[0];
}

# What may wait by itself.
for my $name (qw(psql stop))
{
	no strict 'refs';
	no warnings 'redefine';
	my $real = PostgreSQL::Test::Cluster->can($name);

	*{"PostgreSQL::Test::Cluster::$name"} = sub {
		my @arguments = @_;
		my $is_list = wantarray;

		return while_time_passes(sub { return $is_list ? $real->(@arguments) : scalar $real->(@arguments) });
	};
}

# The seconds that something takes, by the servers' time.
sub seconds_of
{
	my ($function) = @_;
	my $begin = test_time();

	while_time_passes($function);
	return test_time() - $begin;
}

1;
