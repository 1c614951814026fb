# The high-water mark of a running server: when it is logged and how far ahead,
# where ids begin after a stop and after a crash, and what happens when the clock
# is behind or wrong for a moment.  The page itself is in t/mark_page.pl, and
# slow disks are in t/mark_slow_disk.pl.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_server(
	'main',
	"include 'case.conf'",
	'snowflake.clock_tolerance = 5s',
	'restart_after_crash = on',
	'log_statement = none');
my $newest = 0;                 # of all ids issued in this test

# Takes ids, and tests that they are larger than all that were issued before.
sub take_ids
{
	my ($count, $what) = @_;
	my @ids = split /\n/, value_of($node, "SELECT snowflake_nextvals($count)");

	is(scalar(grep { $_ <= $newest } @ids), 0, "$what: ids go on increasing")
	  or diag("$ids[0] after $newest");
	$newest = max($newest, @ids);
	return;
}

# The mark as seconds from the present, by the server's clock.
sub lead_of_mark
{
	return value_of($node,
		'SELECT extract(epoch FROM high_water_mark - clock_timestamp()) FROM snowflake_node'
	);
}

# The mark as a tick.
sub high_water_mark
{
	return value_of($node, 'SELECT snowflake_min_id(high_water_mark) FROM snowflake_node') >> 22;
}

# The seconds that a statement takes, without psql's own start.
sub duration_of
{
	my ($sql) = @_;
	my $stdout = value_of($node, "\\timing on\n$sql");
	return (($stdout =~ /Time: ([\d.]+) ms/)[0] // die $stdout) / 1000;
}

# Commits, so that all WAL is flushed.  Without that, a crash may lose the mark
# of ids that nobody has committed: see the subtest of promise 1's exception.
sub flush_wal
{
	value_of($node, q{SELECT pg_logical_emit_message(true, 'test', '') IS NULL});
	return;
}

# The tick of an instant, which is a time() of this process.
sub tick_at
{
	my ($instant) = @_;
	return int(1000 * ($instant - timestamp_of(0)));
}

# Ends the server while sessions issue ids without a pause.  Returns a tick that
# their ids have passed, and the tick after the end.
sub end_under_load
{
	my ($end) = @_;
	my @sessions = map { SnowflakeSession->new($node) } 1 .. 2;

	my $began = tick_at(time);
	my $before;

	$_->ask('SELECT count(snowflake_nextval()) FROM (SELECT generate_series(1, 1000000000)) AS s')
	  for @sessions;
	wait_for(
		sub {
			$before = value_of($node, 'SELECT coalesce(max(last_id), 0) FROM snowflake_stat_backend') >> 22;
			return $before > $began + 100;
		}) or die "the sessions issue no ids\n";
	$end->();
	$_->{psql}{run}->kill_kill for @sessions;
	return ($before, tick_at(time));
}

# Sets a long interval, and waits until the mark is that far ahead.
sub put_mark_far_ahead
{
	configure($node, 'snowflake.high_water_interval = 60s');
	$node->reload;
	wait_for(
		sub {
			value_of($node, 'SELECT snowflake_nextval()');
			return high_water_mark() > tick_at(time) + 100_000;
		}) or die "the mark is not far ahead\n";
	return;
}

configure($node, '');
start_server($node);
is(scalar(processes_of($node, qr/snowflake/)), 0, 'the server has no process for the mark');

# ----- after a stop and after a crash -----

for my $interval ('500ms', '60s')
{
	subtest "a clean restart under load, high_water_interval = $interval" => sub {
		configure($node, "snowflake.high_water_interval = $interval");
		$node->reload;
		take_ids(10, 'before');
		for (1 .. 3)
		{
			my ($before, $after) = end_under_load(sub { $node->stop });
			my $mark = mark_of(read_page($node), 7);

			cmp_ok($mark, '>', $before, 'the mark on the page is after the ids');
			cmp_ok($mark, '<=', $after + 1, 'the mark on the page is no later than the ids');
			start_server($node);
			my ($id, $waits) = split /\n/, value_of($node,
				'SELECT snowflake_nextval(); SELECT clock_waits FROM snowflake_stat_backend WHERE pid = pg_backend_pid()');
			is($waits, 0, 'the first id does not wait');
			cmp_ok($id >> 22, '>=', $mark, 'the first id is after the mark');
			take_ids(10, 'after');
		}
	};
}

subtest 'a crash under load' => sub {
	configure($node, '');
	end_under_load(sub { $node->stop });
	start_server($node);
	for my $end (sub { $node->stop('immediate') }, sub { kill_hard($node) })
	{
		my ($before, $after) = end_under_load($end);

		start_server($node);
		my $mark = mark_of(read_page($node), 7);
		cmp_ok($mark, '<=', $after + 1000 + 1, 'the recovered mark is two intervals after the ids at most');
		take_ids(10, 'after');
	}
};

# Sessions that are terminated one by one: only the last one has a mark to
# lower, because the others' limits lie before the same mark.
subtest 'terminated sessions' => sub {
	put_mark_far_ahead();
	my @sessions = map { SnowflakeSession->new($node) } 1 .. 2;
	$_->value('SELECT snowflake_nextval()') for @sessions;
	my $mark = high_water_mark();

	$sessions[0]->terminate;
	is(high_water_mark(), $mark, 'the mark stays while another session has issued ids');
	take_ids(10, 'a session ends by itself');
	is(high_water_mark(), $mark, 'the mark stays when a session ends by itself');
	my $lsn = $node->lsn('insert');
	$sessions[1]->terminate;
	cmp_ok(high_water_mark(), '<', $mark, 'the last session that is terminated lowers the mark');
	cmp_ok(high_water_mark(), '>', $newest >> 22, 'the lowered mark is after all ids');
	flush_wal();
	is(scalar(grep { $_->[0] eq 'mark' } records_since($node, $lsn)), 1, 'the lowered mark is logged');
	my ($id) = value_of($node, 'SELECT snowflake_nextval()');
	cmp_ok(high_water_mark(), '>', $id >> 22, 'the next id has a mark again');
	$newest = $id;
	kill_hard($node);
	configure($node, '');
	start_server($node);
	take_ids(10, 'after a crash');
};

# Sessions that begin while others are terminated read a mark that is lowered
# at the same time.
subtest 'sessions come and go' => sub {
	my $sql = "$ENV{TESTDATADIR}/come_and_go.sql";
	my $until = time + 4;
	my ($taken, $terminated) = (0, 0);

	put_mark_far_ahead();
	value_of($node, 'CREATE TABLE come (id bigint PRIMARY KEY, mark timestamptz)');
	PostgreSQL::Test::Utils::append_to_file($sql,
		"WITH i AS MATERIALIZED (SELECT snowflake_nextval() AS id) INSERT INTO come SELECT id, (SELECT high_water_mark FROM snowflake_node WHERE id > 0) FROM i;\n");
	my @clients = map {
		IPC::Run::start(
			[ 'bash', '-c', "while :; do pgbench --no-vacuum --client=1 --transactions=5 --file=$sql '" . $node->connstr('postgres') . " application_name=come'; done" ],
			'>', '/dev/null', '2>', "$sql.err")
	} 1 .. 2;

	# On a busy machine sessions come slowly.
	while (time < $until || $terminated <= 10 && time < $until + 60)
	{
		$terminated += value_of($node,
			q{SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'come'});
		usleep(20_000);
	}
	$_->kill_kill for @clients;
	value_of($node, q{SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = 'come'});
	cmp_ok($terminated, '>', 10, 'sessions were terminated');
	cmp_ok(value_of($node, 'SELECT count(*) FROM come'), '>', 10, 'sessions issued ids');
	is(value_of($node, 'SELECT count(*) FROM come WHERE snowflake_timestamp(id) >= mark'),
		0, 'each id is before the mark that is published when it was issued');
	$newest = value_of($node, 'SELECT max(id) FROM come');
	$node->stop;
	cmp_ok(mark_of(read_page($node), 7), '>', $newest >> 22, 'the mark on the page is after all ids');
	configure($node, '');
	start_server($node);
	take_ids(10, 'after a stop');
};

# After a crash ids begin after the mark, without an error, under every policy,
# although the mark is ahead of the clock when the server is back.
subtest 'crashes under every policy' => sub {
	for my $settings (
		[ 'snowflake.clock_policy = wait' ],
		[ 'snowflake.clock_policy = wait', 'snowflake.clock_tolerance = 0' ],
		[ 'snowflake.clock_policy = error' ],
		[ 'snowflake.clock_policy = advance', 'snowflake.clock_tolerance = 100' ])
	{
		my $what = join ', ', @$settings;

		configure($node, @$settings);
		$node->reload;
		take_ids(2000, "$what: before");
		my $mark =
		  value_of($node, 'SELECT snowflake_min_id(high_water_mark) FROM snowflake_node');
		flush_wal();
		kill_hard($node);
		start_server($node);
		my $begin = time;
		take_ids(1, "$what: after the crash");
		cmp_ok($newest, '>=', $mark, "$what: the id is after the mark");
		cmp_ok(time - $begin, '<', 3, "$what: the id comes soon");
	}
	configure($node, '');
	$node->reload;
};

# A clock that is behind at the start is treated as a clock that has stepped
# back.
subtest 'the clock is behind at the start' => sub {
	for my $end ('stop', 'crash')
	{
		take_ids(100, "$end: before the clock steps back");
		flush_wal();
		$end eq 'stop' ? $node->stop : kill_hard($node);
		set_clock($node, -3);
		start_server($node);
		my $waited = duration_of('SELECT snowflake_nextval()');
		cmp_ok($waited, '>', 0.5, "$end: a call waits for a clock that is 3 s behind");
		cmp_ok($waited, '<', 5, "$end: a call waits for a clock that is 3 s behind for no more than 5 s");
		take_ids(10, "$end: after the wait");
		set_clock($node, 0);
	}
	flush_wal();
	kill_hard($node);
	set_clock($node, -3600);
	start_server($node);
	my ($state, $message) = sqlstate_of($node, 'SELECT snowflake_nextval()');
	is($state, '55000', 'a server whose clock is an hour behind refuses ids');
	like($message, qr/behind the last snowflake id/, 'the message says that the clock is behind');
	is(value_of($node, 'SELECT snowflake_worker_id(910499571847892992)'),
		25, 'an id is decoded while the clock is behind');
	set_clock($node, 0);
	take_ids(100, 'the clock is right again');
};

subtest 'a backend crashes while the clock is behind' => sub {
	my $session = SnowflakeSession->new($node);
	my $offset = -s $node->logfile;

	take_ids(100, 'before the crash');
	flush_wal();
	set_clock($node, -1);
	kill 'KILL', $session->{pid};
	$node->wait_for_log(qr/database system is ready to accept connections/,
		$offset);
	$session->{psql}{run}->kill_kill;
	first_id($node);
	take_ids(100, 'after the crash');
	set_clock($node, 0);
};

# Promise 1's exception: an id that a client has seen and that no committed
# transaction holds comes again only if the server crashes before WAL is flushed
# past the mark's record, and the clock is behind after the crash.
subtest 'the exception of promise 1' => sub {
	my @cases = (
		# what, is the WAL writer suspended, is there a commit, is the clock
		# behind, can the id come again
		[ 'not flushed, clock behind', 1, 0, 1, 1 ],
		[ 'not flushed, clock right', 1, 0, 0, 0 ],
		[ 'another session has committed, clock behind', 1, 1, 1, 0 ],
		[ 'the WAL writer runs, clock behind', 0, 0, 1, 0 ]);

	for my $case (@cases)
	{
		my ($what, $is_suspended, $has_commit, $is_behind, $can_repeat) = @$case;
		my ($writer) = processes_of($node, qr/walwriter/);

		# After a pause, the next id needs a mark of its own.
		flush_wal();
		my $mark = high_water_mark();
		wait_for(sub { tick_at(time) >= $mark }) or die;
		kill 'STOP', $writer if $is_suspended;
		my $id = value_of($node, 'SELECT snowflake_nextval()');
		cmp_ok(high_water_mark(), '>', $id >> 22, "$what: the mark is published");
		flush_wal() if $has_commit;
		$node->poll_query_until('postgres', 'SELECT pg_current_wal_lsn() >= pg_current_wal_insert_lsn()')
		  if !$is_suspended;
		kill_hard($node);
		set_clock($node, -3) if $is_behind;
		start_server($node);
		my $recovered = mark_of(read_page($node), 7);
		is($recovered <= $id >> 22 ? 1 : 0, $is_suspended && !$has_commit ? 1 : 0,
			"$what: the mark is " . ($recovered > $id >> 22 ? 'recovered' : 'lost'));
		my $next = value_of($node, 'SELECT snowflake_nextval()');
		is($next <= $id ? 1 : 0, $can_repeat, "$what: ids go on " . ($next <= $id ? 'before' : 'after') . ' the id that was lost');
		set_clock($node, 0);
		$newest = max($next, $newest, $id);
		wait_for(sub { tick_at(time) > $newest >> 22 }) or die;
	}
};

# ----- what the mark costs -----

subtest 'WAL while ids are issued, and while they are not' => sub {
	my $writes = 'SELECT high_water_writes FROM snowflake_stat';

	for my $interval_ms (500, 100)
	{
		configure($node, "snowflake.high_water_interval = $interval_ms");
		$node->reload;
		wait_for(
			sub {
				value_of($node,
					"LOAD 'snowflake'; SELECT setting = '$interval_ms' FROM pg_settings WHERE name = 'snowflake.high_water_interval'"
				) eq 't';
			});
		take_ids(10, 'before');
		my $lsn = $node->lsn('insert');
		my $before = value_of($node, $writes);
		my ($first, $last) = split /\|/, value_of($node,
			'SELECT min(id), max(id) FROM (SELECT snowflake_nextval() AS id, pg_sleep(0.01) FROM generate_series(1, 200)) AS s');

		flush_wal();
		my @records = grep { $_->[0] eq 'mark' } records_since($node, $lsn);
		my $intervals = (($last >> 22) - ($first >> 22)) / $interval_ms;
		is(value_of($node, $writes) - $before, scalar(@records),
			'snowflake_stat counts the records');
		cmp_ok(scalar(@records), '<=', $intervals + 1, "interval $interval_ms ms: there is one record in an interval at most");
		cmp_ok(scalar(@records), '>=', int($intervals / 1.5), "interval $interval_ms ms: there is about one record in an interval");
		cmp_ok(max(map { $_->[2] } @records), '<', 400, 'a record of the mark has some 300 bytes');
		note sprintf '%d records in %.1f intervals', scalar(@records), $intervals;
	}

	# A session that waits for its next statement writes nothing either, and its
	# end does not.
	my $session = SnowflakeSession->new($node);
	$session->value('SELECT snowflake_nextval()');
	flush_wal();
	my $lsn = $node->lsn('insert');
	my $before = value_of($node, $writes);
	usleep(1_500_000);
	flush_wal();
	is(scalar(grep { $_->[0] eq 'mark' } records_since($node, $lsn)), 0, 'an idle server writes no record');
	$session->quit;
	take_ids(1, 'a connection of one id');
	is(value_of($node, $writes) - $before, 1, 'a connection that ends by itself writes no record');
	configure($node, '');
	$node->reload;
};

# ----- a clock that is wrong for a moment -----

# Tests that the mark is no further ahead than the ids need: the mark in
# memory, and the mark that the server recovers after a crash.
sub is_not_ahead
{
	my ($what) = @_;

	take_ids(10, $what);
	flush_wal();
	cmp_ok(lead_of_mark(), '<', 5, "$what: the mark is not far ahead of the ids");
	kill_hard($node);
	start_server($node);
	first_id_at_once($node, "$what, after a crash", 2);
	take_ids(10, "$what, after a crash");
	return;
}

subtest 'a clock that is an hour ahead for a moment' => sub {
	my $issue = 'SELECT count(*) FROM snowflake_nextvals(2000000)';

	# Each third or seventh reading of the clock by the session is wrong, but
	# never two readings in succession.
	for my $every (3, 7)
	{
		my $session = SnowflakeSession->new($node);

		$session->value('SELECT snowflake_nextval()');
		glitch_clock($node, $session->{pid}, 3600, $every);
		$session->rows($issue);
		my $id = $session->value('SELECT max(id) FROM snowflake_nextvals(1000) AS id');
		glitch_clock($node, 0, 0);
		$session->quit;
		is(value_of($node, "SELECT snowflake_timestamp($id) < clock_timestamp() + interval '1 s'"),
			't', "a clock ahead at one in $every readings of a session: no id is ahead");
		is_not_ahead("a clock ahead at one in $every readings of a session");
	}
};

# ----- another worker id -----

subtest 'ids an hour ahead of a right clock, and another worker id' => sub {
	set_clock($node, 3600);
	my $ahead = value_of($node, 'SELECT snowflake_nextval()');
	set_clock($node, 0);
	is((sqlstate_of($node, 'SELECT snowflake_nextval()'))[0],
		'55000', 'a server with a right clock refuses ids after ids of an hour ahead');
	configure($node, 'snowflake.worker_id = 9');
	$node->stop;
	start_server($node);
	my $id = first_id_at_once($node, 'an unused worker_id');
	is(value_of($node, "SELECT snowflake_worker_id($id)"), 9, 'the unused worker_id is in the id');
	cmp_ok($id, '<', $ahead, 'the id of the unused worker_id is not an hour ahead');
	$newest = $id;
};

$node->stop;

done_testing();
