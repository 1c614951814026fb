# A session that waits for the clock or for the next tick shows this as a wait
# event, and stops waiting on a cancel, on statement_timeout, on termination, on a
# fast shutdown and when the postmaster dies.  Each wait is counted.  Sessions that
# wait for ticks take turns, get about the same number of ids, and leave nothing
# behind when they are cancelled.
#
# Each cause has to end each wait three times, from any moment within a sleep of the
# library.  A wait that did not look for the cause would go on for half an hour or
# more, and fail by the test's time-out.  How long one sleep lasts, ids_clock tests.
# The times from the cause until the client sees its effect are in the log only,
# because they depend on the machine.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use List::Util qw(min uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(is_alive remove_locks);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

use constant {
	TIMES => 3,
	STATEMENT_TIMEOUT_MS => 100,
};

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node('main', 'max_connections = 70', 'fsync = off',
	'autovacuum = off', "include 'case.conf'");

# ----- what ends a wait -----

# The offset of the right clock from the real clock, in seconds, and a session
# that watches the others.
my $right_offset = 0;
my $monitor;

sub start_watched
{
	# Put the clock past the ids that the server issued before this start.
	start_server($node, $right_offset += 10);
	$monitor = SnowflakeSession->new($node);
	return;
}

# The kinds of waits: a statement that waits, how far the clock is set back
# before it, and the wait event.
my %waits = (
	'a wait for the clock' =>
	  [ 'SELECT snowflake_nextval()', 1800, 'ExtensionSnowflakeClock' ],
	'a wait for ticks' => [
		'SELECT count(*) FROM (SELECT snowflake_nextvals(2000000000)) AS s',
		0, 'ExtensionSnowflakeTick'
	]);

# What ends a wait: the SQLSTATE that the client receives ('' if the backend
# sends none), and the cause, a function of the backend's pid.
my %ends = (
	'statement_timeout' => ['57014'],
	'pg_cancel_backend' =>
	  [ '57014', sub { $monitor->value("SELECT pg_cancel_backend($_[0])") } ],
	'pg_terminate_backend' =>
	  [ '57P01', sub { $monitor->value("SELECT pg_terminate_backend($_[0])") } ],
	'a fast shutdown' => [ '57P01', sub { kill 'INT', $node->{_pid} } ],
	"the postmaster's death" => [ '', sub { $node->kill9 } ]);

# Returns a session whose statement waits.  Without a timeout pg_stat_activity
# shows the wait already; with a timeout the statement has just begun.
sub waiting_session
{
	my ($timeout_ms, $statement, $back_s, $event) = @_;
	my $session = SnowflakeSession->new($node);

	set_clock($node, $right_offset);
	$session->rows('SELECT snowflake_nextval()');
	set_clock($node, $right_offset - $back_s);
	$session->rows("SET statement_timeout = $timeout_ms");
	$session->ask($statement);
	return $session if $timeout_ms;

	$event =~ s/Snowflake.*/Extension/ if $node->pg_version < 17;
	wait_for(
		sub {
			$monitor->value("SELECT coalesce(wait_event_type || wait_event, 'none') FROM pg_stat_activity WHERE pid = $session->{pid}")
			  eq $event;
		}) or die "pg_stat_activity does not show the wait\n";

	# The library sleeps for 50 ms at most.  Begin at any time within a sleep.
	usleep(rand(60_000));
	return $session;
}

# Waits until a session's backend has exited.  Returns the SQLSTATE of the
# backend's last message, or ''.
sub state_at_exit
{
	my ($session) = @_;
	my $psql = $session->{psql};

	$psql->{run}->pump
	  until $psql->{stderr} =~ /connection to server was lost/;
	$psql->{run}->finish;
	return $psql->{stderr} =~ /FATAL:  (\w{5}): / ? $1 : '';
}

# Ends a wait.  Returns how many milliseconds the end took, and the SQLSTATE
# that the client received.
sub end_of_wait
{
	my ($end, @wait) = @_;
	my ($sqlstate, $cause) = @{ $ends{$end} };
	my $timeout_ms = $cause ? 0 : STATEMENT_TIMEOUT_MS;
	my $session = waiting_session($timeout_ms, @wait);
	my @pids;

	if ($cause)
	{
		@pids = ($node->{_pid}, $monitor->rows('SELECT pid FROM pg_stat_activity'));
		$session->{asked_at} = clock_gettime(CLOCK_MONOTONIC);
		$cause->($session->{pid});
	}
	if ($sqlstate eq '57014')
	{
		my $outcome = $session->outcome;
		$session->quit;
		return ($outcome->{ms} - $timeout_ms, $outcome->{state});
	}
	my $state = state_at_exit($session);
	my $ms = (clock_gettime(CLOCK_MONOTONIC) - $session->{asked_at}) * 1000;
	if ($end ne 'pg_terminate_backend')
	{
		# A shutdown is under way, or over.
		$node->stop('fast', fail_ok => 1);
		wait_for(sub { !grep { is_alive($_) } @pids })
		  or die "still there: @pids\n";
		remove_locks($node);
		$monitor->{psql}{run}->finish;
		start_watched();
	}
	return ($ms, $state);
}

# With few ids in a tick, a session that waits for ticks hardly needs the processor.
configure($node, "snowflake.clock_tolerance = '1h'", "snowflake.layout = '41/5/5/4'");
start_watched();
value_of($node, 'CREATE EXTENSION snowflake');
for my $wait (sort keys %waits)
{
	for my $end (sort keys %ends)
	{
		my $name = "$end ends $wait";
		my $sqlstate = $ends{$end}[0];
		my (@ms, @states);

		for (1 .. TIMES)
		{
			my ($ms, $state) = end_of_wait($end, @{ $waits{$wait} });

			push @ms, $ms;
			push @states, $state;
		}
		is_deeply(\@states, [ ($sqlstate) x @states ],
			"$name with SQLSTATE '$sqlstate'");
		@ms = sort { $a <=> $b } @ms;
		note("$name after " . join(' ', map { sprintf '%.1f', $_ } @ms) . ' ms');
		cmp_ok($ms[0], '>=', 0, "$name, and not before the timeout")
		  if $end eq 'statement_timeout';
	}
}
$monitor->quit;

# Starts the server with other parameters, without the page of the mark: the
# server forgets the ids that it has issued.
sub start_afresh
{
	my (@settings) = @_;

	$node->stop;
	unlink mark_file($node);
	configure($node, @settings);
	start_server($node);
	return;
}

# ----- how waits are counted -----

# A tick has two ids and lasts a tenth of a second, so even a slow machine
# spends it.  20 ids take 10 ticks or more.  The session waits for each of
# these ticks, unless the clock has reached the tick meanwhile.
start_afresh("snowflake.layout = '38/5/5/1\@100ms'");
for my $query ('count(*) FROM snowflake_nextvals(20)',
	'count(snowflake_nextval()) FROM generate_series(1, 20)')
{
	value_of($node, 'SELECT snowflake_stat_reset()');
	value_of($node, "SELECT $query");
	is( value_of($node, q{
SELECT ids_issued, sequence_waits BETWEEN 2 AND 10,
       sequence_wait_time BETWEEN sequence_waits * interval '1 us' AND sequence_waits * interval '1 min',
       clock_wait_time FROM snowflake_stat()}),
		'20|t|t|00:00:00',
		"each wait for the next tick is counted once by SELECT $query");
}

my $issuing = SnowflakeSession->new($node);
$issuing->rows('SELECT snowflake_nextval()');
my $others =
  "SET ROLE reader; SELECT count(*) FROM snowflake_stat_backend() WHERE pid = $issuing->{pid}";
is(value_of($node, "CREATE ROLE reader; $others"),
	0, "snowflake_stat_backend() does not show a session of another user");
is(value_of($node, "GRANT pg_read_all_stats TO reader; $others"),
	1, 'snowflake_stat_backend() shows a session of another user to members of pg_read_all_stats');
$issuing->quit;

# ----- a call of many ids that does not wait -----

# The next two sections have ticks of ten hours, and begin in the middle of one: no
# machine takes so long that another tick begins by itself.
my $tick_s = 36_000;
my $epoch = 'snowflake.epoch = ' . int(1000 * (time() - 1.5 * $tick_s));

# Without its timeout the call would fail when its rows fill this space.  No mark
# becomes due meanwhile: a session that logs one looks for interrupts, too.
start_afresh("snowflake.layout = '27/2/3/31\@${tick_s}s'", $epoch);
{
	my $session = SnowflakeSession->new($node);

	$session->ask('SELECT snowflake_nextval()');
	$session->wait_until_it_waits;
	set_clock($node, $right_offset += $tick_s);
	is(($session->answer)[0], '', 'the first id of a start waits for the next tick');
	$session->quit;
}
is( (sqlstate_of($node, q{
SELECT snowflake_nextval();
SET temp_file_limit = '1GB';
SET work_mem = '64kB';
SET statement_timeout = '200ms';
SELECT snowflake_nextvals(2000000000)}))[0],
	'57014', 'a call of snowflake_nextvals() that does not wait is interrupted');

# ----- a turn for each session -----

# Four sessions wait for a tick of 16 ids.  One is cancelled, one is terminated, and
# the others go on.
start_afresh("snowflake.layout = '24/5/5/4\@${tick_s}s'", $epoch);
my @waiting = map { SnowflakeSession->new($node) } 1 .. 4;
$_->ask('SELECT snowflake_nextval() & 15') for @waiting;
$_->wait_until_it_waits for @waiting;
value_of($node, "SELECT pg_cancel_backend($waiting[0]{pid})");
is(($waiting[0]->answer)[0], '57014', 'a session that waits for a tick is cancelled');
$waiting[1]->terminate;
set_clock($node, $right_offset += $tick_s);
is_deeply([ sort { $a <=> $b } map { ($_->answer)[1] } @waiting[ 2, 3 ] ],
	[ 0, 1 ], 'the other sessions get one id each in the next tick');
is($waiting[0]->value('SELECT snowflake_nextval() & 15'),
	2, 'the cancelled session gets the next id when it asks again');

# A call takes what is left of a tick, and goes on in the next one.
$waiting[0]->ask('SELECT string_agg((id & 15)::text, \' \') FROM snowflake_nextvals(16) AS id');
$waiting[0]->wait_until_it_waits;
set_clock($node, $right_offset += $tick_s);
is(($waiting[0]->answer)[1], join(' ', 3 .. 15, 0 .. 2), 'a call of snowflake_nextvals() waits for a tick, and goes on');
is($waiting[0]->value('SELECT snowflake_nextval() & 15'),
	3, 'a call of snowflake_nextvals() takes no more than it wants');
$_->quit for @waiting[ 0, 2, 3 ];

# Starts a number of sessions whose calls take so many ids, wait, and are
# cancelled after so many milliseconds.
sub start_cancelled
{
	my ($sessions, $ids, $timeout_ms, $calls) = @_;
	local $ENV{PGOPTIONS} = "-c statement_timeout=$timeout_ms";

	unlink "$directory/cancelled", "$directory/cancelled.err";
	append_to_file("$directory/cancelled", join '',
		map { "SELECT count(snowflake_nextval()) FROM generate_series(1, $ids) /* $_ */;\n" } 1 .. $calls // 100_000);
	return map {
		IPC::Run::start(
			[ 'psql', '-XAtq', '-f', "$directory/cancelled", $node->connstr('postgres') ],
			'<', \undef, '>', '/dev/null', '2>>', "$directory/cancelled.err")
	} 1 .. $sessions;
}

# The ids a second of one session.
sub rate
{
	my ($ids) = @_;
	my $stdout = value_of($node,
		"\\timing on\nSELECT count(snowflake_nextval()) FROM generate_series(1, $ids)");
	return $ids * 1000 / ($stdout =~ /Time: ([\d.]+) ms/)[0];
}

# Sessions that wait for the next tick get about as many ids each, although waits are
# cancelled all the time: when the first of them has taken all that it wants, no
# session has taken less than half of the mean.
use constant { WAITING => 32, CALLS => 100, IDS_PER_MS => 256 };
my $what = WAITING . ' sessions';

# The ids a second that the sessions take together.
sub rate_of_waiting
{
	value_of($node, 'TRUNCATE shares');
	unlink $node->basedir . '/shares';
	$node->pgbench(
		'--no-vacuum --jobs=2 --transactions=' . CALLS . ' --client=' . WAITING,
		0, [], [],
		"$what wait for ticks",
		{ shares => 'INSERT INTO shares SELECT :client_id, count(snowflake_nextval()), clock_timestamp() FROM generate_series(1, 256)' });
	return value_of($node,
		'SELECT sum(count) / extract(epoch FROM max(at) - min(at)) FROM shares');
}

start_afresh("snowflake.layout = '41/5/5/8'", 'synchronous_commit = off');
value_of($node, 'CREATE TABLE shares (client int, count int, at timestamptz)');
my ($cancelled) = start_cancelled(1, 2000, 3);
rate_of_waiting();
my ($clients, $least, $mean) = split /\|/, value_of($node, q{
SELECT count(*), min(calls), round(avg(calls), 1)
  FROM (SELECT count(*) FILTER (WHERE at <= ended.first) AS calls
          FROM shares, (SELECT min(at) AS first FROM (SELECT max(at) AS at FROM shares GROUP BY client) AS s) AS ended
         GROUP BY client) AS s});
is($clients, WAITING, "$what: all sessions get ids");
cmp_ok($least, '>', $mean / 2, "$what: no session gets less than half its share of $mean calls");
my $cancels = sub { scalar(() = slurp_file("$directory/cancelled.err") =~ /canceling statement due to/g) };
ok(wait_for(sub { $cancels->() > 10 }), "$what: waits of another session are cancelled");
$cancelled->kill_kill;

# Together they get nearly all ids of the layout, or as many as one session gets if
# this machine is too busy for that at the moment.
my ($rate, $one) = (0, 0);
for (1 .. 10)
{
	$rate = rate_of_waiting();
	$one = rate(IDS_PER_MS * 200);
	last if $rate > 0.9 * min(1000 * IDS_PER_MS, $one);
}
cmp_ok($rate, '>', 0.9 * min(1000 * IDS_PER_MS, $one), "$what: together they get nearly all ids of the layout");
note("$what: $rate ids a second, one session $one");

# With 64 sessions for 4 ids a millisecond, each session sleeps about once for
# an id of its own.  If all of them woke up for every tick, each would sleep 16
# times.
start_afresh("snowflake.layout = '42/0/10/2'", 'log_min_messages = panic',
	'log_min_error_statement = panic');
value_of($node, q{
CREATE FUNCTION sleeps() RETURNS bigint LANGUAGE sql AS $$
  SELECT substring(pg_read_file('/proc/self/status') FROM '\nvoluntary_ctxt_switches:\s+(\d+)')::bigint $$;
CREATE TABLE slept (sleeps bigint)});
$node->pgbench(
	'--no-vacuum --jobs=2 --client=64 --transactions=1',
	0, [], [],
	'64 clients wait for ticks', {
		sleeps => q{
SELECT sleeps() AS before \gset
SELECT count(snowflake_nextval()) FROM generate_series(1, 100);
INSERT INTO slept VALUES (sleeps() - :before);
} });
my $sleeps = value_of($node, 'SELECT round(avg(sleeps) / 100, 1) FROM slept');
cmp_ok($sleeps, '<', 4,
	"a waiting session wakes up for few ticks other than its own: $sleeps sleeps an id");

# Calls are cancelled again and again.  Their turns go unused, and do not delay the
# session after them: the median of ten waits for ticks that others do not spend is as it
# was before.  The clock stands, and each call is cancelled once, when it waits.
{
	my ($sessions, $calls) = (20, 50);

	$node->stop;
	slow_down(1_000_000);
	start_server($node);
	local $SnowflakeTime::longest_turn_s = 0.001;
	my ($session, $canceller) = map { SnowflakeSession->new($node) } 1, 2;
	my $median_wait = sub {
		my @ticks = uniq(map { $_ >> 12 } $session->rows('SELECT snowflake_nextval() FROM generate_series(1, 41)'));
		my @waits = map { $ticks[$_] - $ticks[ $_ - 1 ] } 1 .. $#ticks;
		note("waits of @waits ticks");
		return (sort { $a <=> $b } @waits)[5];
	};
	my $before = $median_wait->();

	$canceller->ask(q{
DO $$
DECLARE
  cancelled text[] := '{}';
BEGIN
  LOOP
    PERFORM pg_stat_clear_snapshot();
    cancelled := cancelled || ARRAY(
      SELECT call
        FROM (SELECT pid, pid || query AS call FROM pg_stat_activity
               WHERE wait_event_type = 'Extension' AND pid || query <> ALL (cancelled) OFFSET 0) AS waiting
       WHERE pg_cancel_backend(pid));
  END LOOP;
END $$});
	$_->finish for start_cancelled($sessions, 10, 0, $calls);
	is($cancels->(), $sessions * $calls, 'all calls are cancelled');
	$session->rows("SELECT pg_terminate_backend($canceller->{pid}, 600000)");
	$canceller->{psql}{run}->kill_kill;

	cmp_ok($median_wait->(), '<=', 2 * $before + 1, "after cancelled calls a session does not wait for each turn that is unused");
	$session->quit;
}

$node->stop;
done_testing();
