# What a test does to a server from outside: starts it with a clock that can be
# set, sets the clock, suspends and resumes the server, kills it, copies its
# data directory, writes its configuration, and reads its log.
package SnowflakeServer;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::SysV qw(IPC_RMID);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  start_server
  set_clock
  process_of
  processes_of
  worker_pid
  suspend
  resume
  kill_hard
  copy_of
  standby_node
  configure
  write_conf
  value_of
  logged
  logs
);
our @EXPORT_OK = qw(
  build_library
  clock_library
  preload
  write_clock
  is_alive
  remove_locks
  suspend_postmaster
  replace_file
  settle
  words_of_postmaster
);

# How long the processes of a server may take to end after SIGKILL.
use constant END_S => 120;

# A start takes so long for servers whose clocks are slow: the first id waits for
# the end of two intervals of the mark after the last one.
use constant START_S => 0.6;

# ----- libraries of the tests -----

# Builds a library from its source beside this file.  Returns its path.
sub build_library
{
	my ($name) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . "/$name.so";
	my $source = __FILE__ =~ s/SnowflakeServer.pm$/$name.c/r;

	system_or_bail('cc', '-shared', '-fPIC', '-O1', '-o', $library, $source, '-ldl');
	return $library;
}

# The environment variable that preloads a library and all that are preloaded
# already.
sub preload
{
	my ($library) = @_;
	return (LD_PRELOAD => join(' ', $ENV{LD_PRELOAD} // (), $library));
}

# ----- the clock -----

my ($clock_directory, $clock_library);

# The path of the library that sets a server's clock; see clock.c.  A test that
# forks calls this first, so that its children share one library.
sub clock_library
{
	$clock_directory //= PostgreSQL::Test::Utils::tempdir();
	return $clock_library //= build_library('clock');
}

sub clock_file
{
	my ($node) = @_;

	clock_library();
	return "$clock_directory/" . $node->name . '.clock';
}

# Starts a server with a clock that set_clock() sets, and returns the server.
# The clock is so many seconds ahead of test_time().  Without that number the
# clock keeps its offset, or is right if it was never set.  If the server does
# not start, dies, which unlike a bail-out lets prove run the other files; with
# fail_ok returns undef.
sub start_server
{
	my ($node, $clock_s, %parameters) = @_;
	my $file = clock_file($node);

	set_clock($node, $clock_s // 0) if defined $clock_s || !-e $file;
	local %ENV =
	  (%ENV, preload(clock_library()), CLOCK_OFFSET_FILE => $file, pace_environment());
	if ($node->start(%parameters, fail_ok => 1))
	{
		skip_time(START_S);
		return $node;
	}
	return undef if $parameters{fail_ok};
	die $node->name . " does not start; its log:\n" . logged($node);
}

# Sets a server's clock to so many seconds ahead of test_time().
sub set_clock
{
	my ($node, $offset_s) = @_;

	write_clock(clock_file($node), $offset_s);
	return;
}

# Sets the clock of all servers that run with this file.
sub write_clock
{
	my ($file, $offset_s) = @_;
	my $bytes = pack 'q', int(1_000_000 * $offset_s);

	append_to_file($file, $bytes) unless -e $file;

	# Write in place and at once: servers have the file mapped.
	open my $fh, '+<:raw', $file or die "$file: $!";
	defined syswrite $fh, $bytes or die "$file: $!";
	close $fh;
	return;
}

# ----- processes -----

sub children_of
{
	my ($parent) = @_;
	my @children;

	for my $file (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $file or next;
		my $stat = <$fh> // next;
		push @children, $1 if $stat =~ /^(\d+) \(.*\) \S $parent /s;
	}
	return @children;
}

# Returns the letter of a process's state; '' if there is no such process.
sub state_of
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/stat" or return '';
	return (<$fh> // '') =~ /\) (\S) / ? $1 : '';
}

# Returns whether a process still runs.  A process that has ended keeps its pid
# until its parent has read its status.
sub is_alive
{
	my ($pid) = @_;
	return state_of($pid) !~ /^[ZX]?$/;
}

# The processes of a server whose titles match a pattern.  A process that has just
# been forked has no title yet.
sub processes_of
{
	my ($node, $title) = @_;
	my @pids;

	for my $pid (children_of($node->{_pid}))
	{
		open my $fh, '<', "/proc/$pid/cmdline" or next;
		my ($is_titled, $of) = (<$fh> // '') =~ /^(postgres: )(.*)/s;
		push @pids, $pid if $is_titled && $of =~ $title;
	}
	return @pids;
}

# Waits until a server has a process whose title matches a pattern, and returns the
# process.
sub process_of
{
	my ($node, $title) = @_;
	my $pid;

	wait_for(sub { ($pid) = processes_of($node, $title) })
	  or die $node->name . ": no process \"$title\" runs\n";
	return $pid;
}

# Waits until the worker that leases runs, and returns its process.
sub worker_pid
{
	my ($node) = @_;
	return process_of($node, qr/snowflake registry/);
}

# Suspends a postmaster, and returns its children.
sub suspend_postmaster
{
	my ($postmaster) = @_;
	my $until = time + END_S;

	# A process stops only a moment after the signal was sent.  Until then the
	# postmaster may start another child.
	kill 'STOP', $postmaster;
	until (state_of($postmaster) =~ /^[TtZX]?$/)
	{
		die "postmaster $postmaster does not stop\n" if time > $until;
		sleep 0.0002;
	}
	return children_of($postmaster);
}

# Suspends all processes of a server, and returns their pids.
sub suspend
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @children = suspend_postmaster($postmaster);

	kill 'STOP', @children;
	return ($postmaster, @children);
}

# Resumes all processes of a server except some.
sub resume
{
	my ($node, @except) = @_;
	my $postmaster = $node->{_pid} // return;

	for my $pid ($postmaster, children_of($postmaster))
	{
		kill 'CONT', $pid unless grep { $_ == $pid } @except;
	}
	return;
}

# Kills all processes of a server at once.  With "only_postmaster", waits until
# the other processes have detected the postmaster's death and ended: before that,
# a new postmaster would refuse to start.
sub kill_hard
{
	my ($node, %how) = @_;
	my $postmaster = $node->{_pid};
	my @children = suspend_postmaster($postmaster);

	$node->kill9;
	kill 'KILL', @children unless $how{only_postmaster};
	wait_for(sub { !grep { is_alive($_) } $postmaster, @children }, END_S)
	  or die "processes survive SIGKILL: $postmaster @children\n";
	remove_locks($node);
	return;
}

# Removes the lock files of a server that was killed.  Where no process reads
# the status of orphans, as in a container, the killed postmaster keeps its pid,
# and the next postmaster would take the lock files for those of a running
# server.  The lock file also names a segment of System V shared memory, which
# would outlive the server.
sub remove_locks
{
	my ($node) = @_;
	my $pid_file = $node->data_dir . '/postmaster.pid';
	my @lines = -e $pid_file ? split(/\n/, slurp_file($pid_file)) : ();
	my (undef, $segment) = split ' ', $lines[6] // '';

	shmctl $segment, IPC_RMID, 0 if defined $segment;
	unlink $pid_file,
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# ----- the data directory, the configuration and the log -----

# A copy of a server's data directory as it is now, under another name and at
# another port; not started yet.
sub copy_of
{
	my ($node, $name) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	mkdir $copy->basedir unless -d $copy->basedir;
	system_or_bail('cp', '-a', $node->data_dir,
		$copy->data_dir);
	unlink $copy->data_dir . '/postmaster.pid';
	settle($copy);
	return $copy;
}

# A standby of a server, not started yet, from a base backup that is taken now.
sub standby_node
{
	my ($primary, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup($name);
	$standby->init_from_backup($primary, $name, has_streaming => 1);
	return $standby;
}

# Gives a copied server a port and a socket of its own.
sub settle
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf',
		'port = ' . $node->port . "\n"
		  . "unix_socket_directories = '" . $node->host . "'\n");
	return;
}

# Replaces the parameters in case.conf.  The server's configuration has the line
# "include 'case.conf'", so a start or a reload applies the parameters.
sub configure
{
	my ($node, @settings) = @_;

	write_conf($node, 'case.conf', @settings);
	return;
}

# Replaces a file that a server's configuration includes.
sub write_conf
{
	my ($node, $name, @lines) = @_;

	replace_file($node->data_dir . "/$name", @lines);
	return;
}

# Replaces a file at once: a reader sees either the former lines or the new
# ones.
sub replace_file
{
	my ($file, @lines) = @_;

	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh map { "$_\n" } @lines;
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

# What the postmaster of a stopped server says of its configuration.  To print a
# parameter that it computes, it loads the libraries as at a start, and ends.
sub words_of_postmaster
{
	my ($node) = @_;
	my ($out, $err) =
	  run_command([ 'postgres', '-D', $node->data_dir, '-C', 'shared_memory_size' ]);
	return $out =~ /^\d+$/ ? "starts: $err" : $err;
}

# The output of statements that must succeed.  Those with a backslash may be psql's
# commands, and get a psql of their own.
sub value_of
{
	my ($node, $sql) = @_;

	return $node->safe_psql('postgres', $sql) if $sql =~ /\\/;
	my $outcome = outcome_of($node, $sql) // die $node->name . " does not answer: $sql\n";
	die "\"$sql\" failed: $outcome->{text}\n" if $outcome->{state} ne '';
	return join "\n", @{ $outcome->{rows} };
}

# What a server has logged since an offset of its log; without an offset, the
# whole log.
sub logged
{
	my ($node, $offset) = @_;
	return slurp_file($node->logfile, $offset // 0);
}

# Tests that a server logs a line that matches a pattern: waits until the line
# is in the log after an offset.
sub logs
{
	my ($node, $offset, $pattern, $what) = @_;
	my $text;

	ok(wait_for(sub { ($text = logged($node, $offset)) =~ $pattern }), $what)
	  or diag($text);
	return;
}

1;
