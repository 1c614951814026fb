# Promise 1: no id that is in the data comes again after a recovery of any kind,
# although the clock after the recovery is behind these ids.
#
# A primary issues ids while its clock is ahead, so that only the mark in WAL
# tells a recovered server of these ids.  Then all servers end, and each kind of
# recovery begins with a copy of what they leave behind.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

# How many seconds the clock is ahead.
use constant AHEAD_S => 100;

# Starts a primary, a standby and its standby, has ids issued, and ends all of
# them.  Returns the servers, their newest batches, and the WAL records from
# which a point in time is chosen:
#
#   primary    crashed; its newest batch comes after a checkpoint
#   standby    stopped fast; the batch comes before its restartpoint
#   cascading  stopped at once; the batch comes after its restartpoint
#
# The backup "base" of the primary is older than the batches, and the backup
# "of_standby" has the batch of the standby.
sub leave_behind
{
	my $primary = new_server('primary');
	my %left = (primary => $primary);

	start_server($primary);
	my $has_incremental = $primary->pg_version >= 17;
	$primary->append_conf('postgresql.conf', 'summarize_wal = on')
	  if $has_incremental;
	$primary->reload;
	insert_batch($primary, 10);
	$primary->backup('base');
	my $standby = $left{standby} = standby_of($primary, 'standby');
	$left{cascading} = standby_of($standby, 'cascading');

	my $lsn = $primary->lsn('insert');
	for (1 .. 8)
	{
		# After two of these steps a mark is due.
		set_clock($primary, AHEAD_S + 0.15 * $_);
		insert_batch($primary, 200);
	}
	$left{records} = [ records_since($primary, $lsn) ];
	$left{batch}{standby} = $left{batch}{cascading} =
	  insert_ahead($primary, 2 * AHEAD_S);
	wait_for_standby($primary, $left{cascading});
	$left{cascading}->stop('immediate');

	value_of($primary, 'CHECKPOINT');
	wait_for_standby($primary, $standby);
	value_of($standby, 'CHECKPOINT');
	$standby->backup('of_standby');
	$standby->stop;
	$left{batch}{primary} = insert_ahead($primary, 3 * AHEAD_S);
	$primary->backup('incremental', backup_options =>
		  [ '--incremental', $primary->backup_dir . '/base/backup_manifest' ])
	  if $has_incremental;
	kill_hard($primary);
	return \%left;
}

# ----- how a copy recovers -----

sub start_without_signal
{
	my ($node) = @_;

	unlink $node->data_dir . '/standby.signal' or die $!;
	start_server($node);
	return;
}

sub start_and_promote
{
	my ($node) = @_;

	start_server($node);
	$node->promote;
	return;
}

# Starts and, if it is a standby, promotes a server without the library, which
# then crashes twice and is stopped.  Starts the server with the library.
sub recover_without_library
{
	my ($node, $is_standby) = @_;

	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	start_server($node);
	$node->promote if $is_standby;
	insert_other_row($node);
	value_of($node, 'CHECKPOINT') if $is_standby;
	for (1 .. 2)
	{
		kill_hard($node);
		start_server($node);
		insert_other_row($node);
	}
	$node->stop;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'snowflake'");
	start_server($node);
	return;
}

# Starts a server from the primary's base backup and the primary's WAL.
sub start_base_backup
{
	my ($name, $primary, @target) = @_;
	my $wal = $primary->data_dir . '/pg_wal';
	my $node = server_of_backup($name, $primary, 'base', [], @target,
		"restore_command = 'cp \"$wal/%f\" \"%p\"'");

	if (@target)
	{
		$node->set_recovery_mode;
		start_server($node);
		$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
		return $node;
	}
	rmtree($node->data_dir . '/pg_wal');
	system_or_bail('cp', '-a', $wal,
		$node->data_dir . '/pg_wal');
	return start_server($node);
}

# The kinds of recovery: a name, the server whose data is recovered, and a function
# that recovers.
my @kinds = (
	[ 'a crash', 'primary', \&start_server ],
	[ 'crashes without the library', 'primary', \&recover_without_library ],
	[ 'a promotion with nothing left to replay', 'standby', \&start_and_promote ],
	[ 'no standby.signal and nothing left to replay', 'standby', \&start_without_signal ],
	[ 'no standby.signal', 'cascading', \&start_without_signal ],
	[   'a promotion and then a crash', 'cascading',
		sub { start_and_promote(@_); kill_hard(@_); start_server(@_) } ],
	[   'a promotion without the library', 'cascading',
		sub { recover_without_library(@_, 1) } ]);

my $left = leave_behind();
my ($primary, $standby) = @$left{qw(primary standby)};
my $number = 0;

# Tests that no id of a batch comes again, and removes the server.
sub check
{
	my ($node, $batch, $what) = @_;

	is_unique_after($node, $batch, $what);
	end_servers($node);
	return;
}

for my $kind (@kinds)
{
	my ($what, $origin, $recover) = @$kind;
	my $node = copy_of($left->{$origin}, 'copy' . ++$number);

	$recover->($node);
	check($node, $left->{batch}{$origin}, $what);
}

# A base backup whose files were copied before the ids: only WAL has them.
check(start_base_backup('base', $primary), $left->{batch}{primary}, 'a base backup without a signal file');

for my $is_promoted (0, 1)
{
	my $node = server_of_backup("of_standby$is_promoted", $standby, 'of_standby');

	$node->adjust_conf('postgresql.conf', 'primary_conninfo', "''");
	$is_promoted ? start_and_promote($node) : start_without_signal($node);
	check($node, $left->{batch}{standby}, 'a backup of a standby, '
		  . ($is_promoted ? 'promoted' : 'without a signal file'));
}

# Points in time around an advance of the mark.
my @marks = grep { $_->[0] eq 'mark' } @{ $left->{records} };
my @commits = grep { $_->[0] eq 'commit' } @{ $left->{records} };
cmp_ok(scalar(@marks), '>=', 3, 'WAL has three advances of the mark or more');
for my $target (
	[ 'a commit, inclusive', $commits[1], 'on' ],
	[ 'an advance of the mark, inclusive', $marks[-2], 'on' ],
	[ 'an advance of the mark, exclusive', $marks[-1], 'off' ])
{
	my ($what, $record, $is_inclusive) = @$target;
	my $node = start_base_backup(
		'point' . ++$number, $primary,
		"recovery_target_lsn = '$record->[1]'",
		"recovery_target_inclusive = $is_inclusive",
		'recovery_target_action = promote');

	check($node, newest_batch($node), "a point in time: $what");
}

# A former primary has ids that the new one does not have, is rewound, and is
# promoted in its turn.
my $old = copy_of($primary, 'old');
my $new = copy_of($left->{cascading}, 'new');
my $conf = $old->data_dir . '/postgresql.conf';
my $saved = slurp_file($conf);

start_server($old);
$old->stop;
start_and_promote($new);
insert_ahead($new, 2.1 * AHEAD_S);
value_of($new, 'CHECKPOINT');
command_ok(
	[
		'pg_rewind', '--no-sync', '-D', $old->data_dir,
		'--source-server', $new->connstr('postgres')
	],
	'pg_rewind succeeds');
unlink $conf;
append_to_file($conf, $saved);
my $rewound = insert_ahead($new, 2.2 * AHEAD_S);
$old->enable_streaming($new);
start_server($old);
wait_for_standby($new, $old);
$new->stop('immediate');
$old->promote;
check($old, $rewound, 'a promotion after pg_rewind');
end_servers($new);

if ($primary->pg_version >= 17)
{
	my @backups = map { $primary->backup_dir . "/$_" } qw(base incremental);

	command_ok(
		[
			'pg_combinebackup', '--no-sync', '-o',
			$primary->backup_dir . '/combined', @backups
		],
		'pg_combinebackup succeeds');
	my $node = server_of_backup('combined', $primary, 'combined');
	start_server($node);
	check($node, $left->{batch}{primary}, 'an incremental backup');
}
end_servers($primary, @$left{qw(standby cascading)});

# Ids that lead a clock that is right, because a tick has only eight ids.
my $leading = new_server(
	'leading',
	"snowflake.layout = '41/5/5/3'",
	'snowflake.clock_policy = advance',
	'snowflake.clock_tolerance = 60s');
start_server($leading);
insert_batch($leading, 10);
my $batch = insert_ahead($leading, AHEAD_S);
kill_hard($leading);
start_server($leading);
check($leading, $batch, 'a crash, with ids that lead the clock');

done_testing();
