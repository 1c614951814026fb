# The high-water mark of a running server: at a start, after a crash, with a
# clock that is behind or wrong for a moment, and without its worker; and how
# much WAL the mark costs.  The page itself is in t/028_mark_page.pl.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
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

# The seconds that a statement takes, without psql's own start.
sub duration_of
{
	my ($sql) = @_;
	my $stdout = value_of($node, "\\timing on\n$sql");
	return (($stdout =~ /Time: ([\d.]+) ms/)[0] // die $stdout) / 1000;
}

# Ends the server while sessions issue ids without a pause, and starts it.
# Returns how many seconds after the start the server issues the first id.
sub first_id_under_load
{
	my ($end) = @_;
	my @sessions = map { SnowflakeSession->new($node) } 1 .. 2;

	$_->ask(
		'SELECT count(*) FROM generate_series(1, 1000000000), snowflake_nextvals(10)'
	) for @sessions;
	usleep(400_000);
	$end->();
	$_->{psql}{run}->kill_kill for @sessions;
	start_server($node);
	my $begin = time;
	value_of($node, 'SELECT snowflake_nextval()');
	return time - $begin;
}

configure($node, '');
start_server($node);

subtest 'the first id after an end under load' => sub {
	my %ends = (
		'a clean stop' => [ sub { $node->stop }, 0.25 ],
		'an immediate stop' => [ sub { $node->stop('immediate') }, 1 ],
		'a crash' => [ sub { kill_hard($node) }, 1 ]);

	for my $what (sort keys %ends)
	{
		my ($end, $limit_s) = @{ $ends{$what} };
		my @seconds = map { first_id_under_load($end) } 1 .. 3;

		cmp_ok(median(@seconds), '<=', $limit_s, "$what: the first id comes soon");
		note sprintf "$what: first id after %s ms", join ', ',
		  map { sprintf '%.0f', 1000 * $_ } @seconds;
		take_ids(10, $what);
	}
};

# After a crash ids begin after the mark, without an error, under every policy.
# With the long interval the mark is ahead of the clock when the server is
# back.
subtest 'crashes under every policy' => sub {
	my $interval = 'snowflake.high_water_interval = 500ms';

	for my $settings (
		[ 'snowflake.clock_policy = wait' ],
		[ 'snowflake.clock_policy = wait', 'snowflake.clock_tolerance = 0', $interval ],
		[ 'snowflake.clock_policy = error', $interval ],
		[ 'snowflake.clock_policy = advance', 'snowflake.clock_tolerance = 100', $interval ])
	{
		my $what = join ', ', @$settings;

		configure($node, @$settings);
		$node->reload;
		usleep(200_000);
		take_ids(2000, "$what: before");
		my $mark =
		  value_of($node, 'SELECT snowflake_min_id(high_water_mark) FROM snowflake_node');
		kill_hard($node);
		start_server($node);
		my $begin = time;
		take_ids(1, "$what: after the crash");
		cmp_ok($newest, '>=', $mark, "$what: the id is after the mark");
		cmp_ok(time - $begin, '<', 3, "$what: the id comes soon");
	}
	configure($node, '');
	$node->reload;

	# Wait until the clock is past the mark that the long interval has left.
	take_ids(10, 'the short interval again');
	usleep(1_000_000);
};

# A clock that is behind at the start is treated as a clock that has stepped
# back.
subtest 'the clock is behind at the start' => sub {
	for my $end ('stop', 'crash')
	{
		take_ids(100, "$end: before the clock steps back");
		$end eq 'stop' ? $node->stop : kill_hard($node);
		set_clock($node, -3);
		start_server($node);
		my $waited = duration_of('SELECT snowflake_nextval()');
		cmp_ok($waited, '>', 0.5, "$end: a call waits for a clock that is 3 s behind");
		cmp_ok($waited, '<', 3.5, "$end: a call waits for a clock that is 3 s behind for no more than 3.5 s");
		take_ids(10, "$end: after the wait");
		set_clock($node, 0);
	}
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
	set_clock($node, -1);
	kill 'KILL', $session->{pid};
	$node->wait_for_log(qr/database system is ready to accept connections/,
		$offset);
	$session->{psql}{run}->kill_kill;
	$node->poll_query_until('postgres', 'SELECT true');
	take_ids(100, 'after the crash');
	set_clock($node, 0);
};

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

# ----- what the mark costs -----

subtest 'WAL while ids are issued, and while they are not' => sub {
	my $lsn = $node->lsn('insert');
	my $writes = 'SELECT high_water_writes FROM snowflake_stat';
	my $before = value_of($node, $writes);

	my $busy_s = duration_of(
		'SELECT count(*) FROM (SELECT snowflake_nextval(), pg_sleep(0.01) FROM generate_series(1, 200)) AS s'
	);
	usleep(300_000);
	my @records = grep { $_->[0] eq 'mark' } records_since($node, $lsn);
	my $per_second = @records / $busy_s;
	my $largest = max(map { $_->[2] } @records);
	is(value_of($node, $writes) - $before, scalar(@records),
		'snowflake_stat counts the records');
	cmp_ok($per_second, '>', 5, 'the mark is moved about once in an interval of 100 ms');
	cmp_ok($per_second, '<', 12, 'the mark is moved no more than about once in an interval of 100 ms');
	cmp_ok($largest, '<', 400, 'a record of the mark has some 300 bytes');
	note sprintf '%.1f records a second of %d bytes', $per_second, $largest;

	$lsn = $node->lsn('insert');
	usleep(1_500_000);
	is(scalar(grep { $_->[0] eq 'mark' } records_since($node, $lsn)),
		0, 'an idle server writes no record of the mark');
};

# ----- the worker -----

subtest 'a worker that does not run' => sub {
	my $pid = worker_pid($node, 'high-water mark');

	kill 'STOP', $pid;
	for (1 .. 4)
	{
		usleep(300_000);
		take_ids(100, 'the worker is suspended');
		is( value_of($node,
				"SELECT high_water_mark > snowflake_timestamp($newest) FROM snowflake_node"
			),
			't', 'without the worker a session moves the mark');
	}
	kill 'CONT', $pid;
	kill 'TERM', $pid;
	take_ids(100, 'the worker is terminated');
	ok( $node->poll_query_until(
			'postgres',
			"SELECT pid <> $pid FROM pg_stat_activity WHERE backend_type = 'snowflake high-water mark'"
		),
		'the postmaster starts the worker again');
	take_ids(100, 'a new worker runs');
	kill_hard($node);
	start_server($node);
	take_ids(100, 'after a crash of the server');
};

# ----- a clock that is wrong for a moment -----

# Tests that the mark is no further ahead than the ids need: the mark in
# memory, and the mark that the server recovers after a crash.
sub is_not_ahead
{
	my ($what) = @_;

	take_ids(10, $what);
	cmp_ok(lead_of_mark(), '<', 5, "$what: the mark is not far ahead of the ids");
	kill_hard($node);
	start_server($node);
	first_id_at_once($node, "$what, after a crash");
	take_ids(10, "$what, after a crash");
	return;
}

subtest 'a clock that is an hour ahead for a moment' => sub {
	my $issue = 'SELECT count(*) FROM snowflake_nextvals(2000000)';

	take_ids(10, 'before');
	usleep(300_000);
	set_clock($node, 3600);
	$node->reload;                # wakes the worker up
	usleep(300_000);
	set_clock($node, 0);
	is_not_ahead('a clock ahead while no id is issued');

	glitch_clock($node, worker_pid($node, 'high-water mark'), 3600, 1);
	value_of($node, $issue);
	glitch_clock($node, 0, 0);
	is_not_ahead('a clock ahead for the worker alone');

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

$node->stop;

done_testing();
