# What the chaos tests do to servers.  A fault may end later: after() sets the
# time, and tend() calls the functions whose time has come.  Other functions end
# servers, take base backups, send statements to servers that may be down, and
# damage the page of the mark.
package SnowflakeFaults;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(min shuffle);
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

our @EXPORT = qw(
  TIMEOUT_S
  now
  log_event
  note_counts
  shuffled
  after
  upkeep_after
  is_fault_due
  tend_also
  tend
  let_pass
  end_node
  base_backup
  write_parameters
  damage_mark
  try_value_of
  value_when_there_is_one
  wait_until
  wait_for_replay
  has_replayed
  write_signal
  commit_after
);

# How many seconds a client waits for an answer.
use constant TIMEOUT_S => 120;

# The relation file of the high-water mark's page, and its name for pg_waldump.
use constant {
	MARK_FILE => 'global/8947',
	MARK_RELATION => '1664/0/8947',
};

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

# Prints counts, a hash from a name to a number.
sub note_counts
{
	my ($what, $counts) = @_;
	note("$what: $_ $counts->{$_}") for sort keys %$counts;
	return;
}

# Returns the cards of a deck in a random order, each as often as the deck says.
sub shuffled
{
	my ($deck) = @_;
	return shuffle map { ($_) x $deck->{$_} } sort keys %$deck;
}

# ----- what is due -----

my @due;                        # [when, what, is it upkeep], earliest first
my @tend_also;

# Has a function called in so many seconds, to end a fault.
sub after
{
	my ($for_s, $what, $is_upkeep) = @_;

	@due = sort { $a->[0] <=> $b->[0] } @due,
	  [ now() + $for_s, $what, $is_upkeep ];
	return;
}

# Has a function called in so many seconds.  The function does not end a fault,
# so is_fault_due() ignores it.
sub upkeep_after
{
	my ($for_s, $what) = @_;
	return after($for_s, $what, 1);
}

# Returns whether a fault has still to end.
sub is_fault_due
{
	return scalar grep { !$_->[2] } @due;
}

# Has a function called by each tend().
sub tend_also
{
	my ($function) = @_;

	push @tend_also, $function;
	return;
}

# Calls the functions whose time has come, and those of tend_also().
sub tend
{
	while (@due && $due[0][0] <= now())
	{
		my $event = shift @due;
		$event->[1]->();
	}
	$_->() for @tend_also;
	return;
}

# Waits for so many seconds, and calls tend() meanwhile.
sub let_pass
{
	my ($for_s) = @_;
	my $until = now() + $for_s;

	tend();
	while ((my $left = $until - now()) > 0)
	{
		usleep(min(10_000, 1_000_000 * $left));
		tend();
	}
	return;
}

# ----- servers -----

# Ends a server: "fast" or "immediate" as by pg_ctl, "killed" if only the
# postmaster gets SIGKILL, "cut" if all processes get it at once.
sub end_node
{
	my ($node, $how) = @_;

	return kill_postmaster($node) if $how eq 'killed';
	return kill_hard($node) if $how eq 'cut';
	$node->stop($how);
	return;
}

# Takes a base backup of a server into the data directory of another one.
# Returns whether that succeeded.
sub base_backup
{
	my ($source, $target) = @_;

	return PostgreSQL::Test::Utils::system_log(
		'pg_basebackup', '--pgdata', $target->data_dir,
		'--dbname', $source->connstr('postgres'),
		'--checkpoint', 'fast', '--no-sync') == 0;
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

# Returns a statement's output, or nothing if the statement fails or the server
# does not answer.
sub try_value_of
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

# Waits until a statement succeeds, and calls tend() meanwhile.  Returns the
# output.
sub value_when_there_is_one
{
	my ($node, $sql) = @_;
	my $until = now() + TIMEOUT_S / 2;
	my $value;

	until (defined($value = try_value_of($node, $sql)))
	{
		die "waited in vain for: $sql\n" if now() > $until;
		let_pass(0.02);
	}
	return $value;
}

# Waits until a statement returns 't', and calls tend() meanwhile.
sub wait_until
{
	my ($node, $sql) = @_;
	my $until = now() + TIMEOUT_S / 2;

	while ((try_value_of($node, $sql) // '') ne 't')
	{
		die "waited in vain for: $sql\n" if now() > $until;
		let_pass(0.02);
	}
	return;
}

# Returns the statement that tells whether a standby has replayed all WAL up to
# an LSN.
sub replay_sql
{
	my ($lsn) = @_;
	return "SELECT pg_last_wal_replay_lsn() >= '$lsn'";
}

# Waits until a standby has replayed all WAL up to an LSN.
sub wait_for_replay
{
	my ($node, $lsn) = @_;

	wait_until($node, replay_sql($lsn));
	return;
}

# Returns whether a standby has replayed all WAL up to an LSN; false if the
# standby does not answer.
sub has_replayed
{
	my ($node, $lsn) = @_;
	return (try_value_of($node, replay_sql($lsn)) // '') eq 't';
}

# ----- recovery -----

# Writes a signal file, "standby" or "recovery", or none, for a stopped server.
sub write_signal
{
	my ($node, $signal) = @_;
	my $data = $node->data_dir;

	unlink "$data/standby.signal", "$data/recovery.signal";
	$node->append_conf("$signal.signal", '') if defined $signal;
	return;
}

# Returns the LSN of any of the first 20 commits after another LSN, in the WAL
# of a stopped server.
sub commit_after
{
	my ($node, $lsn, $timeline) = @_;
	my ($stdout) = PostgreSQL::Test::Utils::run_command(
		[
			'pg_waldump', '--path', $node->data_dir . '/pg_wal',
			'--timeline', $timeline, '--start', $lsn,
			'--rmgr', 'Transaction'
		]);
	my @commits = $stdout =~ /lsn: (\S+),.* desc: COMMIT/g;
	my $chance = rand;

	die "no commit after $lsn\n" unless @commits;
	return $commits[ $chance * min(20, scalar @commits) ];
}

# ----- the page of the mark -----

# Returns the output of pg_controldata as a hash from each line's label to its
# value.
sub control_data
{
	my ($directory) = @_;
	my ($stdout) =
	  PostgreSQL::Test::Utils::run_command([ 'pg_controldata', $directory ]);

	return { map { /^([^:]+): +(.*)/ ? ($1, $2) : () } split /\n/, $stdout };
}

# Returns whether the crash recovery of a stopped server will write the page of
# the mark anew: a record of the page comes after the redo point, on a timeline
# that is replayed to its end.
sub is_mark_in_wal
{
	my ($data) = @_;
	my $control = control_data($data);
	my $timeline = $control->{q(Latest checkpoint's TimeLineID)};
	my @timelines =
	  map { m{/0*([0-9A-F]+)\.history$} ? hex $1 : () }
	  glob "$data/pg_wal/*.history";
	my ($records) = PostgreSQL::Test::Utils::run_command(
		[
			'pg_waldump', '--path', "$data/pg_wal",
			'--timeline', $timeline,
			'--start', $control->{q(Latest checkpoint's REDO location)},
			'--relation', MARK_RELATION,
			'--limit', 1
		]);

	return !(grep { $_ > $timeline } @timelines) && $records =~ /^rmgr: /m;
}

# Damages the mark's page in the file of a server that has crashed: half of the
# page becomes zeros, or the file is removed.  Returns what was done, or nothing
# if the recovery would not rewrite the page from WAL.
sub damage_mark
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my $file = "$data/" . MARK_FILE;
	my $how = int rand 3;

	return unless -e $file && is_mark_in_wal($data);
	if ($how == 2)
	{
		unlink $file or die "$file: $!";
		return 'mark unlinked';
	}

	my $half = 4096;
	open my $fh, '+<:raw', $file or die "$file: $!";
	sysseek $fh, $how * $half, 0;
	syswrite($fh, "\0" x $half) == $half or die "$file: $!";
	close $fh;
	return 'mark torn';
}

1;
