# How another server takes over from the primary in t/chaos/primary.pl.  Each
# take-over is dealt one card of each of these decks at random:
#
#   origin  Which data go on: those of a standby, of a standby of the standby,
#           of a base backup of the standby, of a base backup of the primary, or
#           of a base backup that is restored up to the LSN of a commit.
#   way     How the new primary's recovery ends: by a promotion; by a start
#           without its standby.signal; by a promotion after a restart that has
#           no commit left to replay; or without the library, which the server
#           gets at a later start.
#   load    Whether the clients draw ids when the old primary ends, and whether
#           replication is synchronous then.
#   ending  How the old primary ends.
#   lead    How far ids are ahead of clocks when the old primary ends.
#   clock   Whether the new primary's clock is right, behind for good by some
#           seconds ("slower"), behind for a while by up to an hour, or ahead
#           for good by up to an hour.
#   node    Whether the new primary has the same worker id, a new one, or one of
#           an earlier primary.
#   after   Whether the new primary crashes at once, or begins without workers
#           and may be restarted soon.
#   old     Whether the old primary becomes a standby by pg_rewind, or is
#           discarded.
#
# Every card of every deck comes up in a run.
package SnowflakeTakeOver;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(any first sum0);
use PostgreSQL::Test::Utils;
use SnowflakeChaosCluster;
use SnowflakeFaults;
use SnowflakeServer;

our @EXPORT = qw(take_over take_over_kinds take_over_counts);

# ----- the cards -----

# How many cards there are of each kind in each deck.
my %decks = (
	origin => {
		standby => 3,
		cascade => 1,
		standby_backup => 1,
		backup => 1,
		restore => 1
	},
	way =>
	  { promotion => 2, no_signal => 2, restartpoint => 1, no_library => 2 },
	load => { nothing => 1, synchronous => 1, asynchronous => 2 },
	ending => { immediate => 2, killed => 1, fast => 1 },
	lead => { none => 2, by_policy => 1, with_clock => 1, corrected => 1 },
	clock => { right => 1, slower => 2, behind => 3, ahead => 1 },
	node => { same => 4, new => 1, former => 1 },
	after => { nothing => 2, crash => 2, no_worker => 1 },
	old => { discarded => 1, rewound => 1 });

my %hands;
my %counts;

# Returns how many kinds of cards there are in all decks.
sub take_over_kinds
{
	return sum0(map { scalar keys %$_ } values %decks);
}

# Returns how often each kind was dealt, by the names of deck and card.
sub take_over_counts
{
	return \%counts;
}

# Returns a deck's next card that may be used now.
sub deal
{
	my ($name, $may_be_used) = @_;
	my $deck = $decks{$name};
	my $hand = $hands{$name} //= [];
	my $i;

	until (
		defined(
			$i = first { $may_be_used->($hand->[$_]) } 0 .. $#$hand))
	{
		push @$hand, shuffled($deck);
	}
	my ($card) = splice @$hand, $i, 1;
	$counts{"$name $card"}++;
	return $card;
}

# Returns how another server takes over: a card of each deck, by its name, and
# as "has_signal" whether there is a signal file.
sub deal_take_over
{
	my %how;
	my $is_streaming = sub { $how{origin} =~ /^(?:standby|cascade)$/ };

	$how{origin} = deal('origin', sub { 1 });
	$how{way} = deal(
		'way',
		sub {
			return 1 if $is_streaming->();
			return $_[0] ne 'restartpoint'
			  && !($how{origin} eq 'restore' && $_[0] eq 'no_signal');
		});
	$how{load} = deal('load',
		sub { $_[0] ne 'synchronous' || $how{origin} eq 'standby' });

	# No commit is left to replay if the restartpoint is that of the primary's
	# shutdown checkpoint.
	$how{ending} = deal('ending',
		sub { $how{way} ne 'restartpoint' || $_[0] eq 'fast' });
	$how{$_} = deal($_, sub { 1 }) for qw(lead node after);

	# Only a clock that is behind shows whether the new primary knows the mark
	# of the former worker id.
	$how{clock} = deal('clock',
		sub { $how{node} ne 'former' || $_[0] eq 'behind' });

	# A server without the library may have a signal file or not.
	$how{has_signal} = $how{way} ne 'no_signal'
	  && ($how{way} ne 'no_library'
		|| $how{origin} eq 'restore'
		|| rand() < 0.5);

	# pg_rewind needs a new timeline.
	$how{old} = deal('old',
		sub { $_[0] ne 'rewound' || $how{has_signal} });
	return %how;
}

# ----- before the old primary ends -----

# Moves ids ahead of the clock: with "by_policy" as far as the clock_policy
# "advance" allows; with "with_clock" together with the clock; with "corrected"
# together with the clock, which is then set right.  Returns by how many seconds
# the successor's clock has to be put forward.
sub lead_clock
{
	my ($cluster, $lead) = @_;
	my $lead_s = rand($cluster->{parameters}{clock_tolerance}) / 1000;

	return 0
	  if $lead eq 'none'
	  || $lead eq 'by_policy'
	  && !any { $_ eq 'advance' } @{ $cluster->{policies} };
	$cluster->put_clock_in_order;
	if ($lead eq 'by_policy')
	{
		$cluster->change_parameters(clock_policy => 'advance');
		$cluster->step_primary(-$lead_s, TIMEOUT_S);
		let_pass(0.3);
		return 0;
	}
	$lead_s = some_seconds();
	$cluster->step_primary($lead_s, TIMEOUT_S);
	let_pass(0.3);
	$cluster->put_clock_in_order if $lead eq 'corrected';
	return $lead_s;
}

# Commits a transaction that issues no id on a primary.  Returns an LSN after
# the commit, up to which WAL is flushed.  A standby may have to wait for
# minutes for WAL that is not flushed, because the WAL writer waits by a clock
# that steps back.
sub commit_without_id
{
	my ($primary) = @_;
	my $output = value_when_there_is_one(
		$primary->{node}, q{
		SET synchronous_commit = local;
		SELECT pg_logical_emit_message(true, 'chaos', '') IS NULL;
		SELECT pg_current_wal_flush_lsn()});

	return $output =~ s/.*\n//sr;
}

# Has the primary wait for its standby at each commit.
sub replicate_synchronously
{
	my ($cluster) = @_;
	my $primary = $cluster->{primary};

	$cluster->write_replication(
		$primary,
		'synchronous_commit = remote_apply',
		"synchronous_standby_names = '*'");
	wait_until($primary->{node},
		'SELECT count(*) = 1 FROM pg_stat_replication'
		  . " WHERE sync_state = 'sync'");
	return;
}

# Returns the server that is to take over, and makes the server if there is
# none.  For a restore, notes in "how" where in the WAL the target may be.
sub find_successor
{
	my ($cluster, $how) = @_;
	my ($primary, $standby) = @$cluster{qw(primary standby)};
	my $server = $standby;

	return $cluster->base_backup_of($primary) if $how->{origin} eq 'backup';
	if ($how->{origin} eq 'restore')
	{
		$server = $cluster->base_backup_of($primary);
		$how->{restore_after} = commit_without_id($primary);
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
				"CHECKPOINT;\nSELECT pg_current_wal_flush_lsn()"));
		return $cluster->base_backup_of($standby);
	}
	if ($how->{origin} eq 'cascade')
	{
		$server = $cluster->base_backup_of($standby);
		$cluster->follow($server, $standby);
		$server->start;
	}
	wait_for_replay($server->{node}, commit_without_id($primary));
	return $server;
}

# ----- the successor -----

# Returns by how many seconds the new primary's clock is ahead of the real clock
# while it has no temporary step.
sub clock_of_successor
{
	my ($old, $how, $forward_s) = @_;
	my $skew_s = $old->{skew_s};

	$skew_s += $forward_s if $how->{node} eq 'same';
	$skew_s -= rand SLOWEST_CLOCK_S if $how->{clock} eq 'slower';
	$skew_s += some_seconds() if $how->{clock} eq 'ahead';
	return $skew_s;
}

# Gives the new primary its worker id.  Restarts the server if it runs with
# another worker id.  Returns whether the worker id was never used before.
sub identify_successor
{
	my ($cluster, $how) = @_;
	my $new = $cluster->{primary};
	my $worker_ids = $cluster->{worker_ids};
	my $worker_id = $worker_ids->present;
	my $is_new;

	$worker_id = $worker_ids->new_worker_id if $how->{node} eq 'new';
	$worker_id = $worker_ids->former_worker_id($cluster->primary_time)
	  if $how->{node} eq 'former';
	$is_new = $worker_ids->take($worker_id);
	if ($new->{worker_id} != $worker_id)
	{
		log_event("worker id $worker_id" . ($is_new ? ', new' : ''));
		$cluster->write_identity($new);
		if ($new->is_up)
		{
			$new->end_life('fast');
			$new->start;
		}
	}
	return $is_new;
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

		# The old primary's pg_wal may also have the history of a newer timeline:
		# PostgreSQL returns to the older one if it starts a standby without
		# standby.signal before the first restartpoint on the newer one.
		write_conf(
			$server->{node}, 'upstream.conf',
			"restore_command = 'cp \""
			  . $old->{node}->data_dir
			  . "/pg_wal/%f\" \"%p\"'",
			"recovery_target_lsn = '$target'",
			'recovery_target_timeline = current',
			'recovery_target_action = promote');
		write_signal($server->{node}, 'recovery');
		return;
	}
	write_conf($server->{node}, 'upstream.conf');
	write_signal($server->{node}, $how->{has_signal} ? 'standby' : undef);
	return;
}

# Ends the recovery of the new primary.
sub end_recovery
{
	my ($cluster, $old, $how) = @_;
	my $server = $cluster->{primary};
	my $is_without_library = $how->{way} eq 'no_library';
	my $has_no_workers = $how->{after} eq 'no_worker';

	if ($how->{way} eq 'restartpoint')
	{
		value_when_there_is_one($server->{node}, "CHECKPOINT;\nSELECT 1");
	}
	if (!$server->is_up || $how->{way} ne 'promotion' || $has_no_workers)
	{
		$server->end_life((qw(fast immediate))[ rand 2 ]) if $server->is_up;
		write_recovery($server, $old, $how);
		$cluster->write_library($server, 0) if $is_without_library;
		$cluster->write_workers($server, 0) if $has_no_workers;
		$server->start;
	}
	$server->{node}->promote
	  if $how->{has_signal} && $how->{origin} ne 'restore';
	wait_until($server->{node}, 'SELECT NOT pg_is_in_recovery()');
	if ($is_without_library)
	{
		try_value_of($server->{node}, 'CHECKPOINT') if rand() < 0.5;
		$server->end_life((qw(fast immediate killed))[ rand 3 ]);
		log_event('recovered without the library');
		$cluster->write_library($server, 1);
		$server->start;
	}

	# The next start reads these files.
	$cluster->write_workers($server, 8);
	write_conf($server->{node}, 'upstream.conf');
	return;
}

# Crashes the new primary right after its recovery, and starts the server again.
sub crash_successor
{
	my ($cluster) = @_;
	my $server = $cluster->{primary};

	let_pass(rand 0.1);
	$cluster->end_life($server, (qw(immediate killed))[ rand 2 ]);
	log_event('crashed');
	$server->damage_page if rand() < 0.5;
	$server->start;
	return;
}

# Makes the old primary a standby of the new one.  A client may still connect to
# the old primary's port, so the standby gets another port.
sub rewind
{
	my ($cluster, $old) = @_;
	my $primary = $cluster->{primary};
	my $server = $cluster->add_server($old->{skew_s});

	# pg_rewind recognises a promotion only by the checkpoint after the
	# promotion.
	value_when_there_is_one($primary->{node}, "CHECKPOINT;\nSELECT 1");
	rename $old->{node}->data_dir, $server->{node}->data_dir
	  or die 'rename: ' . $old->{node}->data_dir . ": $!";
	$old->{node}->clean_node;
	PostgreSQL::Test::Utils::system_or_bail(
		'pg_rewind', '--no-sync',
		'--target-pgdata', $server->{node}->data_dir,
		'--source-server', $primary->{node}->connstr('postgres'));
	$cluster->start_standby($server);
	log_event('old primary rewound');
	return;
}

# ----- the take-over -----

# Has another server take over from the primary of a SnowflakeChaosCluster.
sub take_over
{
	my ($cluster) = @_;
	my %how = deal_take_over();
	my $old = $cluster->{primary};
	my $old_worker_id = $cluster->{worker_ids}->present;
	my $is_early = $how{way} ne 'no_library' && rand() < 0.5;

	log_event(join ' ', "stage $cluster->{stage} ends:",
		map { "$_ $how{$_}" } sort keys %how);
	$cluster->make_standby
	  if !defined $cluster->{standby} && $how{origin} =~ /standby|cascade/;
	my $forward_s = lead_clock($cluster, $how{lead});
	$cluster->pause_clients if $how{load} eq 'nothing';
	replicate_synchronously($cluster) if $how{load} eq 'synchronous';

	# End the old primary.
	my $new = find_successor($cluster, \%how);
	let_pass(rand 0.5);
	commit_without_id($old) for 1 .. 2;
	my $stopped_at = now();
	$cluster->end_life($old, $how{ending});
	$cluster->note_time;
	log_event("old primary ended, $how{ending}");

	# Settle who the new primary is, and what its clock shows.
	undef $cluster->{clock_due};
	$new->{step_s} = 0;
	$new->{skew_s} = clock_of_successor($old, \%how, $forward_s);
	$cluster->{primary} = $new;
	my $is_new = identify_successor($cluster, \%how);
	undef $cluster->{standby} if ($cluster->{standby} // 0) == $new;
	$cluster->discard_standby;
	$cluster->write_all_parameters;
	$new->adjust_clock;
	my $behind_s =
	    $how{node} eq 'former' && !$is_new ? $cluster->seconds_around_newest
	  : $how{clock} eq 'behind' ? $cluster->seconds_behind($stopped_at)
	  : $how{lead} eq 'corrected' && $how{node} eq 'same' ? $forward_s
	  : 0;
	$cluster->step_primary(-$behind_s, TIMEOUT_S) if $behind_s > 0;

	# Recover.  Clients of the new stage may already ask for ids.
	$cluster->command_clients('all', $new, $cluster->{stage} + 1) if $is_early;
	end_recovery($cluster, $old, \%how);
	log_event(sprintf 'recovered, clock %+.3f s', $new->{skew_s});
	crash_successor($cluster) if $how{after} eq 'crash';
	$cluster->write_replication($new);
	$cluster->next_stage(
		$new,
		is_all => $how{load} eq 'nothing'
		  || $how{ending} eq 'fast' && $how{origin} eq 'standby',
		kind => $how{load} eq 'synchronous' ? 'insert' : '',
		is_other_node => $cluster->{worker_ids}->present != $old_worker_id);
	$cluster->command_clients('all', $new);

	# Go on with the new primary.
	$cluster->expect_prompt_id if $is_new;
	$cluster->step_primary(-$behind_s, 0.3 + rand 1) if $behind_s > 0;
	let_pass(0.3 + rand 0.3);
	$cluster->end_and_start('fast')
	  if $how{after} eq 'no_worker' && rand() < 0.5;
	$how{old} eq 'rewound' ? rewind($cluster, $old) : $old->{node}->clean_node;
	$cluster->pass_ids_ahead;
	return;
}

1;
