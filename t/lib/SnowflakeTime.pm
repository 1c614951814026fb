# The time of a test and of its servers.
#
# A test that waits for what a server does by itself, after a time, calls
# slow_down() before it starts servers.  From then on the clocks of all its
# servers run SLOWNESS times slower than the real ones while the test works: a
# lease of seconds outlasts any number of steps, however slow the machine is.
# Time passes as it does in reality only while the test waits for something, in
# wait_for(), let_pass() or while_time_passes(); and a turn of such a wait lets
# $longest_turn_s pass at most, so that a machine which takes longer for a turn
# gets more turns.  test_time() is the time of the servers, in which a test
# measures.
#
# Without slow_down() the servers' clocks are the real ones.
package SnowflakeTime;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(min);
use POSIX ();
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
  while_time_passes
);
our @EXPORT_OK = qw(make_pace_file);

use constant {
	SLOWNESS => 10,
	BY_ITSELF_S => 0.3,
	POLL_S => 0.05,             # between two looks of a wait
	CLOCK_BOOTTIME => 7,        # Linux
	NS_PER_S => 1_000_000_000
};

# A test that measures a shorter time makes the turns shorter.
our $longest_turn_s = 0.1;

my $pace_file;
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

# Slows the clocks down of the servers that this process starts from now on.
sub slow_down
{
	($pace_file, my @began) = make_pace_file(SLOWNESS);
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
	return $began_passing + (clock_gettime(CLOCK_MONOTONIC) - $began) / SLOWNESS + passed();
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

# Ends a turn of a wait, which began at a time of the real clock: lets the time
# pass that the turn has taken, but $longest_turn_s at most.
sub end_turn
{
	my ($turn_began) = @_;
	my $took = clock_gettime(CLOCK_MONOTONIC) - $turn_began;

	skip_time(min($took, $longest_turn_s) * (1 - 1 / SLOWNESS));
	return min($took, $longest_turn_s);
}

# Calls a function until it returns something true, for 30 seconds at most or
# as many as are given.  Returns what the function returned last.
sub wait_for
{
	my ($function, $seconds) = @_;
	my $left_s = $seconds // 30;
	my $outcome;

	for (;;)
	{
		my $turn_began = clock_gettime(CLOCK_MONOTONIC);
		my $began_at = test_time();

		$outcome = $function->();
		return $outcome if $outcome || $left_s <= 0;
		sleep min(POLL_S, $longest_turn_s);
		my $turn_s = end_turn($turn_began);

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
		my $turn_began = clock_gettime(CLOCK_MONOTONIC);

		sleep min(POLL_S, $longest_turn_s, $seconds);
		$seconds -= end_turn($turn_began);
	}
	return;
}

# Calls a function until it returns something true, such as that a server has
# answered: at once if it can be, and time passes only after BY_ITSELF_S.
sub wait_for_answer
{
	my ($function) = @_;
	my $began_waiting = clock_gettime(CLOCK_MONOTONIC);

	until ($function->())
	{
		my $turn_began = clock_gettime(CLOCK_MONOTONIC);
		my $waited_s = $turn_began - $began_waiting;

		sleep min(POLL_S, $longest_turn_s / 2, $waited_s / 5);
		end_turn($turn_began) if $waited_s > BY_ITSELF_S;
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
		let_pass($longest_turn_s) while getppid == $parent;
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

# The seconds that something takes, by the servers' time.
sub seconds_of
{
	my ($function) = @_;
	my $begin = test_time();

	while_time_passes($function);
	return test_time() - $begin;
}

1;
