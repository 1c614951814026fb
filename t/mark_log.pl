# The high-water mark of a running server: when it is logged and how far ahead,
# where ids begin after a stop and after a crash, what a crash may lose (promise
# 1's exception), and what happens when the clock is behind.
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
use SnowflakeTime;
use Test::More;

my $node = new_server(
	'main',
	"include 'case.conf'",
	'snowflake.clock_tolerance = 5s',
	'restart_after_crash = on',
	'log_statement = none');
my $issue = 'SELECT snowflake_nextval()';
my $endless = 'SELECT count(snowflake_nextval()) FROM (SELECT generate_series(1, 1000000000)) AS s';
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

# The mark as a tick.
sub high_water_mark
{
	return value_of($node, 'SELECT snowflake_min_id(high_water_mark) FROM snowflake_node()') >> 22;
}

# The mark on the page, as a tick.
sub mark_on_page
{
	return mark_of(read_page($node), 7);
}

# Commits, so that all WAL is flushed.  Without that, a crash may lose the mark
# of ids that nobody has committed: see the subtest of promise 1's exception.
sub flush_wal
{
	value_of($node, q{SELECT pg_logical_emit_message(true, 'test', '') IS NULL});
	return;
}

# The tick of the present, by test_time().
sub present_tick
{
	return int(1000 * (test_time() - timestamp_of(0)));
}

sub reload_with
{
	configure($node, @_);
	$node->reload;
	return;
}

sub crash_and_start
{
	kill_hard($node);
	start_server($node);
	return;
}

# Ends the server while sessions issue ids without a pause.  Returns a tick that
# their ids have passed, and the tick after the end.
sub end_under_load
{
	my ($end) = @_;
	my @sessions = map { SnowflakeSession->new($node) } 1 .. 2;
	my $began = present_tick();
	my $before;

	$_->ask($endless) for @sessions;
	wait_for(
		sub {
			$before = value_of($node, 'SELECT coalesce(max(last_id), 0) FROM snowflake_stat_backend()') >> 22;
			return $before > $began + 100;
		}) or die "the sessions issue no ids\n";
	$end->();
	$_->{psql}{run}->kill_kill for @sessions;
	return ($before, present_tick());
}

slow_down();
configure($node);
start_server($node);
is(scalar(processes_of($node, qr/snowflake/)), 0, 'the server has no process for the mark');

# ----- after a stop and after a crash -----

# The first id waits until the clock has reached the mark: after a clean stop for
# half a second at most, with the default interval.
for my $end ('a clean stop', 'a crash')
{
	my ($before, $after) = end_under_load(sub { $end eq 'a crash' ? kill_hard($node) : $node->stop });
	my $mark = mark_on_page();

	if ($end eq 'a clean stop')
	{
		cmp_ok($mark, '>', $before, "$end: the mark on the page is after the ids");
		cmp_ok($mark, '<=', $after + 500 + 1, "$end: the mark is half a second after the stop at most");
	}
	start_server($node);
	cmp_ok(mark_on_page(), '<=', $after + 500 + 1, "$end: the mark is half a second after the ids at most");
	take_ids(10, $end);
	cmp_ok($newest >> 22, '>=', $mark, "$end: ids go on after the mark");
}

# The first id of a start waits until its mark is flushed.  The WAL writer, which
# could flush the mark by itself, is suspended.
{
	$node->stop;
	start_server($node);
	my $writer = process_of($node, qr/walwriter/);
	kill 'STOP', $writer;
	my $lsn = $node->lsn('insert');
	take_ids(1, 'the first id of a start');
	is(scalar(grep { $_->[0] eq 'mark' } records_since($node, $lsn)), 1, 'the mark of the first id of a start is flushed');
	kill 'CONT', $writer;
}

# After a crash ids begin after the mark, without an error, under every policy,
# although the mark is ahead of the clock when the server is back.
for my $settings (
	[ 'snowflake.clock_policy = wait', 'snowflake.clock_tolerance = 0' ],
	[ 'snowflake.clock_policy = advance', 'snowflake.clock_tolerance = 100' ])
{
	my $what = join ', ', 'a crash', @$settings;

	reload_with(@$settings);
	take_ids(2000, "$what: before");
	my $mark = high_water_mark();
	flush_wal();
	crash_and_start();
	first_id_soon($node, $what);
	take_ids(1, "$what: after");
	cmp_ok($newest >> 22, '>=', $mark, "$what: the id is after the mark");
}

reload_with();

# A clock that is behind at the start counts as one that has stepped back.
subtest 'the clock is behind at the start' => sub {
	for my $end ('stop', 'crash')
	{
		take_ids(100, "$end: before the clock steps back");
		flush_wal();
		$end eq 'stop' ? $node->stop : kill_hard($node);
		set_clock($node, -2);
		start_server($node);
		my $waited = seconds_of(sub { $newest = max($newest, value_of($node, $issue)) });
		cmp_ok($waited, '>', 0.3, "$end: a call waits for a clock that is 2 s behind");
		cmp_ok($waited, '<', 4, "$end: a call waits for the clock no longer than necessary");
		take_ids(10, "$end: after the wait");
		set_clock($node, 0);
	}
	flush_wal();
	kill_hard($node);
	set_clock($node, -3600);
	start_server($node);
	is((sqlstate_of($node, $issue))[0], '55000', 'a server whose clock is an hour behind refuses ids');
	is(value_of($node, 'SELECT snowflake_worker_id(910499571847892992)'),
		25, 'an id is decoded while the clock is behind');
	set_clock($node, 0);
	take_ids(100, 'the clock is right again');
};

# Promise 1's exception: an id that a client has seen and that no committed
# transaction holds comes again only if the server crashes before WAL is flushed
# past the mark's record, and the clock is behind after the crash.
for my $case (
	# what, is the WAL writer suspended, is there a commit, is the clock
	# behind, can the id come again
	[ 'not flushed, clock behind', 1, 0, 1, 1 ],
	[ 'not flushed, clock right', 1, 0, 0, 0 ],
	[ 'another session has committed, clock behind', 1, 1, 1, 0 ],
	[ 'the WAL writer runs, clock behind', 0, 0, 1, 0 ])
{
	my ($what, $is_suspended, $has_commit, $is_behind, $can_repeat) = @$case;
	my $writer = process_of($node, qr/walwriter/);

	# After a pause, the next id needs a mark of its own.  The pause is longer
	# than a wait for the mark can last beyond it.
	flush_wal();
	my $mark = high_water_mark();
	wait_for(sub { present_tick() >= $mark + 500 }) or die;
	kill 'STOP', $writer if $is_suspended;
	my $id = value_of($node, $issue);
	cmp_ok(high_water_mark(), '>', $id >> 22, "$what: the mark is published");
	flush_wal() if $has_commit;
	$node->poll_query_until('postgres', 'SELECT pg_current_wal_lsn() >= pg_current_wal_insert_lsn()')
	  if !$is_suspended;
	kill_hard($node);
	set_clock($node, -2) if $is_behind;
	start_server($node);
	is(mark_on_page() <= $id >> 22 ? 'lost' : 'recovered',
		$is_suspended && !$has_commit ? 'lost' : 'recovered', "$what: the mark");
	my $next = value_of($node, $issue);
	is($next <= $id ? 1 : 0, $can_repeat, "$what: whether ids go on before the id that was lost");
	set_clock($node, 0);
	$newest = max($next, $newest, $id);
	wait_for(sub { present_tick() > $newest >> 22 }) or die;
}

# While ids are issued, each mark but the newest is flushed, although no
# transaction ends.
{
	my $session = SnowflakeSession->new($node);
	my $insert_lsn = 'SELECT pg_current_wal_insert_lsn()';
	my $lsn;

	# A page of WAL that is full is flushed by itself.
	do
	{
		$session->rows('ROLLBACK');
		flush_wal();
		$session->rows('BEGIN');
		my $mark = high_water_mark();
		wait_for(sub { $session->value($issue); return high_water_mark() > $mark });
		$lsn = $session->value($insert_lsn);
	} until hex($lsn =~ s{.*/}{}r) % 8192 < 4096;
	ok( wait_for(
			sub {
				$session->value($issue);
				return $session->value("SELECT pg_current_wal_flush_lsn() >= '$lsn'") eq 't';
			}, 10), 'the flush of a mark is asked for before its transaction ends');
	cmp_ok($session->value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$lsn')"), '<', 4096, 'the mark lies on a page of WAL that is not full');
	$session->quit;
}

# ----- what the mark costs -----

subtest 'WAL while ids are issued, and while they are not' => sub {
	my $writes = 'SELECT high_water_writes FROM snowflake_stat()';

	take_ids(10, 'before');
	flush_wal();
	my $first_lsn = $node->lsn('insert');
	my $before = value_of($node, $writes);
	my ($first, $last) = split /\|/, value_of($node,
		'SELECT min(id), max(id) FROM (SELECT snowflake_nextval() AS id, pg_sleep(0.01) FROM generate_series(1, 150)) AS s');

	flush_wal();
	my @records = grep { $_->[0] eq 'mark' } records_since($node, $first_lsn);
	is(value_of($node, $writes) - $before, scalar(@records),
		'snowflake_stat() counts the records');
	cmp_ok(scalar(@records), '<=', (($last >> 22) - ($first >> 22)) / 250 + 1, 'there is one record in 250 ms at most');
	cmp_ok(max(map { $_->[2] } @records), '<', 400, 'a record of the mark has some 300 bytes');

	# A session that waits for its next statement logs no mark, and neither does
	# its end, in whatever way.
	my @sessions = map { SnowflakeSession->new($node) } 1, 2;
	$_->value($issue) for @sessions;
	my $mark = high_water_mark();
	flush_wal();
	my $lsn = $node->lsn('insert');
	let_pass(1);
	$sessions[0]->quit;
	$sessions[1]->terminate;
	flush_wal();
	is(scalar(grep { $_->[0] eq 'mark' } records_since($node, $lsn)), 0, 'an idle server, and sessions that end, write no record');
	is(high_water_mark(), $mark, 'the mark stays when all sessions have ended');
};

# A session that comes within 250 ms of the mark logs the next one.  On a busy
# machine the id may come after the mark, and shows nothing.
{
	my ($mark, $id);

	set_clock($node, my $offset_s = 0);
	wait_for(
		sub {
			take_ids(1, 'an id far from the mark');
			$mark = high_water_mark();
			$offset_s += ($mark - 150 - present_tick()) / 1000 - $offset_s;
			set_clock($node, $offset_s);
			$id = value_of($node, $issue);
			return $id >> 22 < $mark;
		}) or die "no id within 150 ms\n";
	cmp_ok(high_water_mark(), '>', $mark, 'the next mark is logged 250 ms before the ids reach the mark');
}

# ----- long ticks -----

# After a pause, ids are of the tick of the mark before.  A crash that loses their
# own mark then leaves a mark in the present tick.  The clock is set back by the
# time that recovery took, so that it is right in the same tick.
for my $tick_ms (1000, 100)
{
	my $what = "a backend is killed, ticks of $tick_ms ms";
	my $epoch_ms = int(1000 * test_time()) - 86_400_000;

	$node->stop;
	unlink mark_file($node);
	configure($node, "snowflake.layout = '30/10/10/13\@${tick_ms}ms'", "snowflake.epoch = $epoch_ms");
	start_server($node, 0);
	value_of($node, $issue);
	is(value_of($node, 'SELECT high_water_writes FROM snowflake_stat()'),
		1, "$what: the first mark of a start, which is flushed, is after the first id");
	flush_wal();
	my $mark = value_of($node, 'SELECT snowflake_min_id(high_water_mark) FROM snowflake_node()') >> 33;
	my $instant = ($epoch_ms + $mark * $tick_ms) / 1000;
	my ($session, $victim) = map { SnowflakeSession->new($node) } 1 .. 2;
	my $writer = process_of($node, qr/walwriter/);
	my $offset = -s $node->logfile;

	kill 'STOP', $writer;
	set_clock($node, $instant - test_time());
	my @ids = $session->rows('SELECT snowflake_nextvals(50)');
	kill 'KILL', $victim->{pid}, $writer;
	$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
	$_->{psql}{run}->kill_kill for $session, $victim;
	is(mark_on_page(), $mark, "$what: the mark of the ids is lost");

	$session = SnowflakeSession->new($node);
	set_clock($node, $instant - test_time());
	my ($next) = $session->rows($issue);
	cmp_ok($next, '>', $ids[-1], "$what: none of 50 ids comes again");
	$session->quit;
}

$node->stop;

done_testing();
