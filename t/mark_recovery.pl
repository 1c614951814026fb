# Recovery from backups, to a point in time, by pg_rewind, without the library
# and after crashes: no id comes again that is in the data that was recovered,
# whatever the clocks do.  Promotions are in t/mark_promotion.pl.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(usleep);

# The clock is so many seconds ahead when the server issues the ids that must
# not come again.  Only WAL tells a recovered server of these ids.
use constant AHEAD_S => 100;

sub started_server
{
	my $node = new_server(@_);

	start_server($node);
	insert_batch($node, 10);
	return $node;
}

# A base backup in the worst order: ids are issued after all files have been
# copied, so only its WAL has them.  The backup is started without a signal
# file.
for my $is_leading (0, 1)
{
	my $what =
	  'a base backup without a signal file' . ($is_leading ? ', ids lead' : '');
	subtest $what => sub {
		my $primary =
		  started_server("base$is_leading", $is_leading ? LEADING : ());
		my $session = SnowflakeSession->new($primary);
		my $backup = $primary->backup_dir . '/base';
		my $batch;

		$session->value(q{SELECT pg_backup_start('base', true)});
		$primary->backup_fs_cold('base');
		$batch =
			$is_leading
		  ? insert_batch($primary, 120_000)
		  : insert_ahead_and_commit($primary, AHEAD_S);
		my @label = $session->rows(
			q{SELECT labelfile FROM pg_backup_stop(false)});
		$session->quit;
		PostgreSQL::Test::Utils::append_to_file("$backup/backup_label",
			join("\n", @label) . "\n");
		rmtree("$backup/pg_wal");
		PostgreSQL::Test::RecursiveCopy::copypath(
			$primary->data_dir . '/pg_wal', "$backup/pg_wal");
		$primary->stop('immediate');

		my $copy = server_of_backup("base_copy$is_leading", $primary, 'base');
		start_server($copy);
		is_unique_after($copy, $batch, $what, right_clock => $is_leading);
		end_servers($primary, $copy);
	};
}

subtest 'a base backup of a standby' => sub {
	my $primary = started_server('backup_primary');
	my $standby = standby_of($primary, 'backup_standby');
	my $batch = insert_ahead_and_commit($primary, AHEAD_S);

	wait_for_standby($primary, $standby);
	$standby->backup('copy');
	$primary->stop('immediate');
	$standby->stop('immediate');
	for my $is_promoted (0, 1)
	{
		my $what = $is_promoted ? 'promoted' : 'started without a signal file';
		my $copy =
		  server_of_backup("backup_copy$is_promoted", $standby, 'copy');

		$copy->set_standby_mode if $is_promoted;
		$copy->adjust_conf('postgresql.conf', 'primary_conninfo', "''");
		unlink $copy->data_dir . '/standby.signal' unless $is_promoted;
		start_server($copy);
		$copy->promote if $is_promoted;
		is_unique_after($copy, $batch, $what);
		end_servers($copy);
	}
	end_servers($primary, $standby);
};

subtest 'to a point in time' => sub {
	my $primary = started_server('pitr');

	$primary->backup('base');
	my $lsn = $primary->lsn('insert');
	insert_ahead_and_commit($primary, AHEAD_S);
	set_clock($primary, 2 * AHEAD_S);
	for (1 .. 12)
	{
		insert_batch($primary, 200);
		usleep(40_000);
	}
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');

	my @records = records_since($primary, $lsn);
	my @marks = grep { $_->[0] eq 'mark' } @records;
	my @commits = grep { $_->[0] eq 'commit' } @records;
	cmp_ok(scalar(@marks), '>=', 3, 'WAL has three advances of the mark or more');
	my %targets = (
		'to a commit, inclusive' => [ $commits[0][1], 'on' ],
		'to the last commit, inclusive' => [ $commits[-1][1], 'on' ],
		'between two advances of the mark' => [ $marks[-1][1], 'off' ],
		'to an advance of the mark, inclusive' => [ $marks[-2][1], 'on' ]);
	for my $what (sort keys %targets)
	{
		my ($target, $is_inclusive) = @{ $targets{$what} };
		my $copy = server_of_backup(
			'copy' . $what =~ s/\W/_/gr,
			$primary,
			'base',
			[],
			"restore_command = 'cp \"" . $primary->data_dir . "/pg_wal/%f\" \"%p\"'",
			"recovery_target_lsn = '$target'",
			"recovery_target_inclusive = $is_inclusive",
			'recovery_target_action = promote');

		$copy->set_recovery_mode;
		start_server($copy);
		$copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
		is_unique_after($copy, newest_batch($copy), $what);
		end_servers($copy);
	}
	end_servers($primary);
};

# A restore may start the server without shared_preload_libraries.
subtest 'without the library' => sub {
	my $primary = started_server('bare_primary');
	my $standby = standby_of($primary, 'bare_standby');

	$standby->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$standby->stop;
	start_server($standby);
	my $batch = insert_ahead_and_commit($primary, AHEAD_S);
	wait_for_standby($primary, $standby);
	restartpoint($primary, $standby);
	$standby->promote;
	insert_other_row($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');

	for my $node ($standby, $primary)
	{
		my $what = $node->name;

		# Crash, recover without the library, and crash again.
		kill_hard($node);
		$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
		start_server($node);
		insert_other_row($node);
		kill_hard($node);
		start_server($node);
		$node->stop;
		$node->append_conf('postgresql.conf', preload_line());
		start_server($node);
		is_unique_after($node, $batch, $what);
	}
	end_servers($primary, $standby);
};

subtest 'pg_rewind, there and back' => sub {
	my $first = started_server('rewind_first');
	my $second = standby_of($first, 'rewind_second');
	my @servers = ($first, $second);

	for my $round (1 .. 2)
	{
		my ($old, $new) = @servers;
		my $what = 'round ' . $round;
		my $conf = $old->data_dir . '/postgresql.conf';
		my $saved = PostgreSQL::Test::Utils::slurp_file($conf);

		# Each server issues ids that the other does not have.
		wait_for_standby($old, $new);
		$new->promote;
		set_clock($old, 3 * AHEAD_S);
		insert_batch($old, 1000);
		$old->stop;
		insert_ahead_and_commit($new, $round * AHEAD_S);
		$new->safe_psql('postgres', 'CHECKPOINT');
		command_ok(
			[
				'pg_rewind', '--no-sync', '-D', $old->data_dir,
				'--source-server', $new->connstr('postgres')
			],
			"$what: pg_rewind");
		unlink $conf;
		PostgreSQL::Test::Utils::append_to_file($conf, $saved);

		# The old server follows the new one, and is promoted in its turn.
		my $more = insert_ahead_and_commit($new, ($round + 0.5) * AHEAD_S);
		$old->enable_streaming($new);
		set_clock($old, 0);
		start_server($old);
		wait_for_standby($new, $old);
		if ($round == 2)
		{
			$new->stop('immediate');
			$old->promote;
			is_unique_after($old, $more, 'promoted after pg_rewind');
		}
		@servers = ($new, $old);
	}
	end_servers(@servers);
};

# Crashes, and after them a clock that is behind.
my %settings = (
	'wal_level = minimal, full_page_writes = off' => [
		'wal_level = minimal',
		'max_wal_senders = 0',
		'full_page_writes = off'
	],
	'checksums' => [],
	'checksums enabled later' => []);
for my $what (sort keys %settings)
{
	subtest $what => sub {
		my $node = new_server($what =~ s/\W/_/gr, @{ $settings{$what} });
		my $is_checksummed = $what =~ /checksums/;
		my $enable = sub {
			command_ok(
				[ 'pg_checksums', '--enable', '--no-sync', '-D', $node->data_dir ],
				'pg_checksums --enable');
		};

		$enable->() if $what eq 'checksums';
		start_server($node);
		insert_batch($node);
		if ($what eq 'checksums enabled later')
		{
			$node->stop;
			$enable->();
			start_server($node);
		}
		is($node->safe_psql('postgres', 'SHOW data_checksums'),
			$is_checksummed ? 'on' : 'off',
			'data_checksums is ' . ($is_checksummed ? 'on' : 'off'));
		my $batch = insert_ahead_and_commit($node, AHEAD_S);
		kill_hard($node);
		start_server($node);
		is_unique_after($node, $batch, 'after a crash');

		# After a clean stop the page is read from its file, not from WAL.
		$batch = insert_ahead_and_commit($node, AHEAD_S);
		$node->stop;
		command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
			'pg_checksums --check')
		  if $is_checksummed;
		start_server($node);
		is_unique_after($node, $batch, 'after a clean stop');
		end_servers($node);
	};
}

subtest 'incremental backup' => sub {
	plan skip_all => 'needs PostgreSQL 17' if server_version() < 17;
	my $primary = new_server('incremental', 'summarize_wal = on');

	start_server($primary);
	insert_batch($primary, 10);
	my $batch;
	my @backups;
	for my $name ('full', 'second', 'third')
	{
		$primary->backup(
			$name,
			backup_options => [
				map { ('--incremental', "$_/backup_manifest") } $backups[-1] // ()
			]);
		push @backups, $primary->backup_dir . "/$name";
		$batch = insert_ahead_and_commit($primary, @backups * AHEAD_S);
	}

	# The last backup has the newest ids.
	$primary->backup('fourth',
		backup_options => [ '--incremental', "$backups[-1]/backup_manifest" ]);
	push @backups, $primary->backup_dir . '/fourth';
	$primary->stop('immediate');

	my $combined = $primary->backup_dir . '/combined';
	command_ok(
		[ 'pg_combinebackup', '--no-sync', '-o', $combined, @backups ],
		'pg_combinebackup');
	my $copy = server_of_backup('incremental_copy', $primary, 'combined');
	start_server($copy);
	is_unique_after($copy, $batch, 'the combined backup');
	end_servers($primary, $copy);
};

done_testing();
