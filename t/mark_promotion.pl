# Promotions: no id that is in the data of the new primary comes again,
# whatever the clocks of the old and the new primary do or did.  Both servers
# have the same worker id unless a test says otherwise.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

# The old primary's clock is so many seconds ahead when the primary issues the
# ids that must not come again.  Only WAL tells the new primary of these ids.
use constant AHEAD_S => 100;

# A primary and its standby, both started.
sub make_pair
{
	my ($name, @conf) = @_;
	my $primary = new_server("${name}_primary", @conf);

	start_server($primary);
	insert_batch($primary, 10);
	return ($primary, standby_of($primary, "${name}_standby"));
}

# The primary issues ids by a clock that is ahead, and commits once more after
# the clock is right.  Returns when the standby has replayed both.
sub insert_ahead_on_both
{
	my ($primary, $standby) = @_;
	my $batch = insert_ahead_and_commit($primary, AHEAD_S);

	wait_for_standby($primary, $standby);
	return $batch;
}

subtest 'a running standby is promoted' => sub {
	my ($primary, $standby) = make_pair('running');
	my $batch = insert_ahead_on_both($primary, $standby);

	$primary->stop('immediate');
	$standby->promote;
	is_unique_after($standby, $batch, 'promoted');
	end_servers($primary, $standby);
};

subtest 'the clock is wrong all the time' => sub {
	my ($primary, $standby) = make_pair('behind');

	set_clock($primary, AHEAD_S);
	my $batch = insert_batch($primary);
	wait_for_standby($primary, $standby);
	$primary->stop('immediate');
	$standby->promote;
	is_unique_after($standby, $batch, 'promoted');
	end_servers($primary, $standby);
};

subtest 'ids lead right clocks, nothing is left to replay' => sub {
	my ($primary, $standby) = make_pair('leading', LEADING);
	my $batch = insert_batch($primary, 120_000);

	restartpoint($primary, $standby);
	$primary->stop('immediate');
	$standby->stop;
	start_server($standby);
	is( $standby->safe_psql(
			'postgres', 'SELECT pg_last_xact_replay_timestamp()'),
		'', 'the standby has replayed no commit since its start');
	$standby->promote;
	is_unique_after($standby, $batch, 'promoted', right_clock => 1);
	end_servers($primary, $standby);
};

for my $case ([ 'fast' ], [ 'immediate' ], [ 'fast', LEADING ])
{
	my ($mode, @conf) = @$case;
	my $what =
	  "standby.signal removed, stop $mode" . (@conf ? ', ids lead' : '');
	subtest $what => sub {
		my ($primary, $standby) =
		  make_pair("signal_$mode" . scalar(@conf), @conf);
		my $batch =
			@conf
		  ? insert_batch($primary, 120_000)
		  : insert_ahead_on_both($primary, $standby);

		wait_for_standby($primary, $standby);
		$primary->stop('immediate');
		$standby->stop($mode);
		unlink $standby->data_dir . '/standby.signal' or die $!;
		start_server($standby);
		is_unique_after($standby, $batch, $what, right_clock => @conf > 0);
		end_servers($primary, $standby);
	};
}

for my $how ('fast', 'killed')
{
	subtest "ended right after the promotion: $how" => sub {
		my ($primary, $standby) = make_pair("ended_$how");
		my $batch = insert_ahead_on_both($primary, $standby);

		$primary->stop('immediate');
		$standby->promote;
		$how eq 'killed' ? kill_hard($standby) : $standby->stop($how);
		start_server($standby);
		is_unique_after($standby, $batch, $how);
		end_servers($primary, $standby);
	};
}

subtest 'the newest ids are in a prepared transaction' => sub {
	my ($primary, $standby) =
	  make_pair('prepared', 'max_prepared_transactions = 2');

	set_clock($primary, AHEAD_S);
	$primary->safe_psql(
		'postgres', q{
BEGIN;
INSERT INTO orders (batch) SELECT -1 FROM generate_series(1, 20000);
SELECT extract(epoch FROM snowflake_timestamp(min(id))) AS begin,
	   extract(epoch FROM snowflake_timestamp(max(id))) AS end
  INTO times FROM orders WHERE batch = -1;
PREPARE TRANSACTION 'orders'});
	set_clock($primary, 0);
	insert_other_row($primary);
	wait_for_standby($primary, $standby);
	$primary->stop('immediate');
	$standby->promote;
	$standby->safe_psql('postgres', q{COMMIT PREPARED 'orders'});
	my %batch = (number => -1);
	@batch{qw(begin end)} =
	  split /\|/, $standby->safe_psql('postgres', 'TABLE times');
	is_unique_after($standby, \%batch, 'promoted');
	end_servers($primary, $standby);
};

subtest 'ids an hour ahead, and then a switchover' => sub {
	my ($primary, $standby) =
	  make_pair('hour', 'snowflake.clock_tolerance = 5s');

	set_clock($primary, 3600);
	my $batch = insert_batch($primary);
	set_clock($primary, 0);
	is((sqlstate_of($primary, 'SELECT snowflake_nextval()'))[0],
		'55000', 'the old primary refuses ids when its clock is right');
	insert_other_row($primary);
	wait_for_standby($primary, $standby);
	$primary->stop;
	$standby->promote;
	is((sqlstate_of($standby, 'SELECT snowflake_nextval()'))[0],
		'55000', 'the new primary refuses ids, too');

	# An unused worker id lets the server issue ids.  After that, the former
	# worker id is set again.
	$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 9');
	$standby->stop;
	start_server($standby);
	my $id = first_id_at_once($standby, 'an unused worker_id');
	is($standby->safe_psql('postgres', "SELECT snowflake_worker_id($id)"),
		9, 'the unused worker_id is in the id');
	$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 7');
	$standby->stop;
	start_server($standby);
	is((sqlstate_of($standby, 'SELECT snowflake_nextval()'))[0],
		'55000', 'with the former worker_id ids are refused again');
	is_unique_after($standby, $batch, 'an hour later');
	end_servers($primary, $standby);
};

subtest 'two worker ids, and the old primary is an hour ahead' => sub {
	my ($primary, $standby) =
	  make_pair('own', 'snowflake.clock_tolerance = 5s');

	$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 8');
	$standby->stop;
	start_server($standby);
	set_clock($primary, 3600);
	my $batch = insert_batch($primary);
	wait_for_standby($primary, $standby);
	$primary->stop('immediate');
	$standby->promote;
	my $id = first_id_at_once($standby, 'promoted');
	is($standby->safe_psql('postgres', "SELECT snowflake_worker_id($id)"),
		8, 'the promoted standby issues ids with its own worker id');

	# The former worker id is set again.
	$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 7');
	$standby->stop;
	start_server($standby);
	is_unique_after($standby, $batch, 'with the worker_id of the old primary');
	end_servers($primary, $standby);
};

subtest 'cascading standbys' => sub {
	my ($first, $second) = make_pair('cascade');
	my $third = standby_of($second, 'cascade_third');
	my $batch = insert_ahead_on_both($first, $second);

	wait_for_standby($first, $third);
	$first->stop('immediate');
	$second->promote;
	is_unique_after($second, $batch, 'the second server');

	# Step the clock ahead by ten more seconds only, because the third server
	# waits until its clock has passed the new ids.
	set_clock($second, AHEAD_S + 10);
	my $next = insert_batch($second);
	set_clock($second, 0);
	insert_other_row($second);
	wait_for_standby($second, $third);
	$second->stop('immediate');
	$third->promote;
	is_unique_after($third, $batch, 'the third server, ids of the first');
	is_unique_after($third, $next, 'the third server, ids of the second');
	end_servers($first, $second, $third);
};

done_testing();
