# The clock of a running server is set back and forth: each
# snowflake.clock_policy does what the documentation says, no id leads the
# clock by more than the policy allows, and no id comes twice or out of order.
#
# The server's clock is the real clock plus an offset (lib/clock.c), so a step
# of an hour takes no time.  The layout has 16 ids in a tick, which even a slow
# machine spends.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

use constant {
	HOUR => 3600,
	YEAR => 365.25 * 86400,
	IDS_PER_TICK => 16,
	BITS_BELOW_TICK => 5 + 5 + 4,
	AT_ONCE_MS => 50,
	LATE_MS => 30,    # less than 50 ms, the longest single sleep of the library
};

my $node = snowflake_node(
	'main',
	"snowflake.layout = '41/5/5/4'",
	"autovacuum = off");

# Offsets from the real clock, in seconds.  The server's clock is right at
# $right_offset, from which step_clock() steps the clock.  This offset grows by
# an hour when ids have followed the clock an hour ahead, and never shrinks.
# $offset is the offset that is set now.
my $right_offset = 0;
my $offset = 0;

# Every id of this test, in the order of issue.
my @ids;

sub step_clock
{
	my ($seconds) = @_;

	$offset = $right_offset + $seconds;
	set_clock($node, $offset);
	return;
}

# Tests the median: a busy machine delays single measurements only.
sub is_within
{
	my ($limit_ms, $name, @ms) = @_;

	note(sprintf '%s: %s ms', $name, join ' ', map { sprintf '%.1f', $_ } @ms);
	cmp_ok(median(@ms), '<', $limit_ms, $name);
	return;
}

# ----- sessions -----

start_server($node);
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION snowflake;
	CREATE TABLE taken (number bigserial, session int, id bigint);

	-- takes an id; returns its time and its lead right after it was issued, in
	-- microseconds
	CREATE FUNCTION take(OUT id bigint, OUT time_us bigint,
						 OUT lead_us bigint)
	LANGUAGE plpgsql AS $$
	DECLARE
		now timestamptz;
	BEGIN
		id := snowflake_nextval();
		now := clock_timestamp();
		time_us := extract(epoch FROM snowflake_timestamp(id)) * 1000000;
		lead_us := time_us - extract(epoch FROM now) * 1000000;
	END $$;

	CREATE FUNCTION take_many(count int, OUT id bigint, OUT lead_us bigint)
	RETURNS SETOF record LANGUAGE SQL AS $$
		SELECT id, (extract(epoch FROM snowflake_timestamp(id)
									   - clock_timestamp()) * 1000000)::bigint
		FROM (SELECT snowflake_nextvals(count) AS id OFFSET 0) s
	$$;});

my $main = SnowflakeSession->new($node, 30);
my $monitor = SnowflakeSession->new($node, 30);

# Waits for the end of a statement.  Each of its rows is a list of columns.
sub result
{
	my ($session) = @_;
	my $outcome = $session->outcome;

	$_ = [ split /\|/ ] for @{ $outcome->{rows} };
	return $outcome;
}

sub query
{
	my ($session, $sql) = @_;

	$session->ask($sql);
	return result($session);
}

# Adds the ids of an answer to @ids, and returns the answer.
sub taken
{
	my ($answer) = @_;

	return $answer if $answer->{state} ne '';
	push @ids, map { $_->[0] } @{ $answer->{rows} };
	if (@{ $answer->{rows} } == 1)
	{
		($answer->{id}, $answer->{time_us}, $answer->{lead_us}) =
		  @{ $answer->{rows}[0] };
	}
	return $answer;
}

sub take_id
{
	return taken(query($main, 'SELECT * FROM take()'));
}

# Takes an id while the clock is right.  Steps of the clock are measured from
# this id.
sub take_newest
{
	my $answer = take_id();

	die "no id with a right clock: $answer->{message}\n"
	  if $answer->{state} ne '';
	return $answer;
}

sub is_issued
{
	my ($name) = @_;
	my $answer = take_id();

	is($answer->{state}, '', $name) or diag($answer->{message});
	return $answer;
}

my ($policy, $tolerance_ms) = ('wait', 5000);

sub set_policy
{
	($policy, $tolerance_ms) = @_;

	query($monitor, "ALTER SYSTEM SET snowflake.clock_policy = $policy");
	query($monitor,
		"ALTER SYSTEM SET snowflake.clock_tolerance = $tolerance_ms");
	query($monitor, 'SELECT pg_reload_conf()');
	query($main, q{LOAD 'snowflake'});
	usleep(1000)
	  until query($main, q{
			SELECT string_agg(setting, ' ' ORDER BY name) FROM pg_settings
			WHERE name IN ('snowflake.clock_policy',
						   'snowflake.clock_tolerance')}
	  )->{rows}[0][0] eq "$policy $tolerance_ms";
	return;
}

# The lead that the policy allows an id.
sub allowed_lead_us
{
	return $policy eq 'advance' ? $tolerance_ms * 1000 : 0;
}

# Returns how many milliseconds ago the clock reached the time from which the
# policy allows an id after the newest one.
sub ms_since_allowed
{
	my ($newest) = @_;

	return (time() + $offset) * 1000 -
	  ($newest->{time_us} - allowed_lead_us()) / 1000;
}

# ----- what each policy does after a step -----

# Tests that a call after a step back waits until the policy allows an id, and
# does not wait for longer.
sub is_waited_out
{
	my ($seconds, $times) = @_;
	my $name = "$policy: a step back of $seconds s";
	my @answers;
	my @late_ms;

	for (1 .. $times)
	{
		my $newest = take_newest();

		step_clock(-$seconds);
		push @answers, take_id();
		push @late_ms, ms_since_allowed($newest);
		step_clock(0);
	}

	is_deeply([ map { $_->{state} } @answers ],
		[ ('') x $times ], "$name is no error");
	cmp_ok(max(map { $_->{lead_us} // 0 } @answers),
		'<=', allowed_lead_us(), "$name: no id leads the clock too far");
	note(sprintf '%s took: %s ms',
		$name, join ' ', map { sprintf '%.1f', $_->{ms} } @answers);
	is_within(LATE_MS, "$name: the wait ends as soon as an id is allowed",
		@late_ms);
	return;
}

# Takes an id when the clock has stepped back, and sets the clock right again.
sub take_after_step_back
{
	my ($seconds) = @_;

	take_newest();
	step_clock(-$seconds);
	my $answer = take_id();
	step_clock(0);
	return $answer;
}

# Tests that after a step back ids are issued at once, ahead of the clock.
sub is_issued_ahead
{
	my ($seconds) = @_;
	my $name = "$policy: a step back of $seconds s";
	my @answers = map { take_after_step_back($seconds) } 1 .. 5;

	is_deeply([ map { $_->{state} } @answers ], [ ('') x 5 ],
		"$name is no error");
	is_within(AT_ONCE_MS, "$name is not waited for",
		map { $_->{ms} } @answers);

	my @leads = map { $_->{lead_us} // 0 } @answers;
	note("$name: leads of @leads us");
	cmp_ok(max(@leads), '<=', allowed_lead_us(),
		"$name: no id leads the clock too far");
	cmp_ok(min(@leads), '>', 0, "$name: the ids lead the clock");
	return;
}

# Tests that ids ahead of the clock take no more ticks than the layout needs
# for so many ids.
sub is_issued_ahead_in_full_ticks
{
	my ($seconds) = @_;
	my $ticks = 10;

	take_newest();
	step_clock(-$seconds);
	my $answer = taken(
		query($main, "SELECT * FROM take_many($ticks * @{[IDS_PER_TICK]})"));
	step_clock(0);

	my ($first_tick, $last_tick) =
	  map { $_->[0] >> BITS_BELOW_TICK } @{ $answer->{rows} }[ 0, -1 ];
	cmp_ok($last_tick - $first_tick,
		'<=', $ticks, "$policy: ids ahead of the clock fill their ticks");
	return;
}

# Tests that calls are refused at once, and what the ERROR says.
sub is_refusal
{
	my ($name, $seconds, @answers) = @_;

	is_deeply(
		[ map { $_->{state} } @answers ],
		[ ('55000') x @answers ],
		"$name is refused");
	is_within(AT_ONCE_MS, "$name is refused at once",
		map { $_->{ms} } @answers);

	note($answers[0]{message});
	my ($behind_ms) = $answers[0]{message} =~
	  /^the clock is (\d+\.\d{3}) ms behind the last snowflake id$/;
	ok( defined $behind_ms
		  && $behind_ms <= $seconds * 1000
		  && $behind_ms > $seconds * 1000 - 1000,
		"$name: the message names how far the clock is behind");
	like($answers[0]{hint}, qr/Check the server's clock/,
		"$name: the hint says what to do");
	return;
}

sub is_refused
{
	my ($seconds) = @_;
	my $name = "$policy, $tolerance_ms ms: a step back of $seconds s";
	my @answers = map { take_after_step_back($seconds) } 1 .. 5;

	is_refusal($name, $seconds, @answers);
	is_issued("$name: ids are issued again when the clock is right");
	return;
}

# Tests that ids follow a step of an hour forward, and that a step of an hour
# back from there is refused.
sub is_followed_forward
{
	my $name = "$policy: a step of an hour forward";

	my $before = take_newest();
	step_clock(+HOUR);
	my @answers = map { take_id() } 1 .. 5;
	is_deeply([ map { $_->{state} } @answers ], [ ('') x 5 ],
		"$name is no error");
	is_within(AT_ONCE_MS, "$name is not waited for",
		map { $_->{ms} } @answers);
	cmp_ok($answers[0]{time_us} - $before->{time_us},
		'>=', HOUR * 1_000_000, "$name is followed by the ids");
	cmp_ok(max(map { $_->{lead_us} } @answers),
		'<=', 0, "$name: no id leads the clock");

	step_clock(0);
	is_refusal("$name and back", HOUR, map { take_id() } 1 .. 5);

	step_clock(+HOUR);
	is_issued("$name: ids are issued when the clock is an hour ahead again");
	$right_offset = $offset;
	return;
}

# Tests that a spent tick is not taken for a step back of the clock.
sub is_spent_tick_no_error
{
	my $name = "$policy, $tolerance_ms ms: a spent tick";
	my $ticks = 150;

	my $answer = query($main, 'SELECT count(*) FROM '
		  . '(SELECT snowflake_nextvals(20000)) s');
	is($answer->{rows}[0][0], 20000, "$name is no error for 20,000 ids in a subquery");

	$answer = taken(query($main,
		'SELECT * FROM take_many(' . $ticks * IDS_PER_TICK . ')'));
	is($answer->{state}, '', "$name is no error") or diag($answer->{message});
	is( scalar @{ $answer->{rows} },
		$ticks * IDS_PER_TICK,
		"$name: all ids are issued");
	cmp_ok(max(map { $_->[1] } @{ $answer->{rows} }),
		'<=', allowed_lead_us(), "$name: no id leads the clock too far");
	note(sprintf '%d ids in %.1f ms', $ticks * IDS_PER_TICK, $answer->{ms});
	cmp_ok($answer->{ms}, '>=', $ticks - 2, "$name: the session waits for each tick")
	  if $policy ne 'advance';
	return;
}

# ----- wait -----

set_policy('wait', 5000);
is_waited_out(0.2, 5);
is_waited_out(2, 3);
is_refused(6);
is_refused(HOUR);
is_followed_forward();
is_spent_tick_no_error();

set_policy('wait', 0);
is_refused(1);
is_refused(HOUR);
is_spent_tick_no_error();

# ----- error -----

set_policy('error', 5000);
is_refused(1);
is_refused(2);
is_refused(HOUR);
is_followed_forward();
is_spent_tick_no_error();

# The clock catches up by itself.
my $newest = take_newest();
step_clock(-0.2);
my $refusals = 0;
my $answer;
while (($answer = take_id())->{state} eq '55000')
{
	$refusals++;
	usleep(1000);
}
cmp_ok($refusals, '>', 0, 'error: ids are refused while the clock is behind');
is($answer->{state}, '', 'error: ids are issued again when the clock has caught up');
note(sprintf 'refused %d times, issued %.1f ms after the clock caught up',
	$refusals, ms_since_allowed($newest));
cmp_ok($answer->{lead_us}, '<=', 0, 'error: the id after the refusals does not lead the clock');
step_clock(0);

# ----- advance -----

set_policy('advance', 5000);
is_issued_ahead(0.3);
is_issued_ahead(2);
is_issued_ahead_in_full_ticks(2);
is_waited_out(6, 3);
is_refused(11);
is_refused(HOUR);
is_followed_forward();

# When ticks are spent, ids run ahead of the clock up to the tolerance, and no
# further.
set_policy('advance', 200);
is_spent_tick_no_error();
$answer = taken(query($main, 'SELECT * FROM take_many(8000)'));
my $largest_lead_us = max(map { $_->[1] } @{ $answer->{rows} });
note("largest lead $largest_lead_us us, allowed 200000");
cmp_ok($largest_lead_us, '>', 150_000,
	'advance: ids run ahead of the clock when ticks are spent');
cmp_ok($largest_lead_us, '<=', 200_000,
	'advance: ids run ahead of the clock by no more than the tolerance');

# After a change from "advance" to "wait", a call waits until the clock has
# passed the ids that "advance" has issued ahead.
set_policy('wait', 5000);
$answer = is_issued('wait: ids that "advance" has issued ahead are no error');
cmp_ok($answer->{lead_us}, '<=', 0, 'wait: the next id after those of "advance" does not lead the clock');

set_policy('advance', 0);
is_refused(1);
is_spent_tick_no_error();

# ----- outside the layout's span -----

set_policy('wait', 5000);
my ($first, $end) = @{
	query($main, q{
		SELECT extract(epoch FROM snowflake_timestamp(0)),
			   extract(epoch FROM snowflake_timestamp((1::bigint << 55) - 1))}
	)->{rows}[0] };
my %outside = (
	'of an hour before the epoch' => [ $first - HOUR, 'before the epoch' ],
	'of 40 years ago' => [ time() - 40 * YEAR, 'before the epoch' ],
	'of a minute after the last tick' => [ $end + 60, 'at or past the last tick' ],
	'of 60 years ahead' => [ time() + 60 * YEAR, 'at or past the last tick' ]);
for my $when (sort keys %outside)
{
	my ($instant, $where) = @{ $outside{$when} };

	step_clock($instant - time() - $right_offset);
	$answer = take_id();
	is($answer->{state}, '54000', "a clock $when is refused");
	like($answer->{message}, qr/^the clock is $where of snowflake ids: /,
		"a clock $when: the message says where it is");
	like($answer->{hint}, qr/Check the server's clock/,
		"a clock $when: the hint says what to do");
	step_clock(0);
	is_issued("a clock $when: ids are issued again when the clock is right");
}

# ----- several sessions at once -----

# Three sessions take ids while the clock makes 200 steps of up to 20 ms back
# and forth, and passes through the same ticks again and again.
sub are_ids_sound_while_clock_steps
{
	my $name = "$policy: three sessions while the clock steps back and forth";
	my $script = PostgreSQL::Test::Utils::tempdir() . '/take.sql';
	my $log = '';

	PostgreSQL::Test::Utils::append_to_file($script,
			'INSERT INTO taken (session, id) '
		  . "SELECT :client_id, snowflake_nextvals(40);\n"
		  . 'INSERT INTO taken (session, id) '
		  . "VALUES (:client_id, snowflake_nextval());\n");
	query($monitor, 'TRUNCATE taken');

	take_newest();
	my $takers = IPC::Run::start(
		[
			$node->installed_command('pgbench'), '--no-vacuum',
			'--client=3', '--jobs=3', '--time=3', "--file=$script",
			$node->connstr('postgres')
		],
		'<', \undef, '>', \$log, '2>&1', IPC::Run::timeout(30));
	usleep(1000)
	  until query($monitor, 'SELECT max(number) IS NOT NULL FROM taken')
	  ->{rows}[0][0] eq 't';
	note('seed ' . srand());
	for (1 .. 200)
	{
		step_clock(rand(0.04) - 0.02);
		usleep(rand(20_000));
	}
	step_clock(0);
	ok($takers->finish, "$name: no call fails") or diag($log);

	my $rows = query($monitor,
		'SELECT session, id FROM taken ORDER BY session, number')->{rows};
	my (%newest_of, %seen);
	my $disorder = 0;
	my $repeated = 0;
	for my $row (@$rows)
	{
		my ($session, $id) = @$row;

		$disorder++ if $id <= ($newest_of{$session} // 0);
		$repeated++ if $seen{$id}++;
		$newest_of{$session} = $id;
	}
	note(scalar(@$rows) . ' ids');
	is(scalar keys %newest_of, 3, "$name: each session takes ids");
	is($disorder, 0, "$name: the ids of each session increase");
	is($repeated, 0, "$name: no id comes twice");

	push @ids, sort { $a <=> $b } keys %seen;
	return;
}

set_policy('wait', 5000);
are_ids_sound_while_clock_steps();
set_policy('advance', 1000);
are_ids_sound_while_clock_steps();
set_policy('wait', 5000);
is_issued('wait: ids are issued when the clock steps no more');

# ----- while a statement runs, or waits -----

# A statement reserves several ids at once.  If the clock steps back before the
# statement has returned them, these ids are refused, too.
my @states;
for (1 .. 10)
{
	take_newest();
	query($main, 'BEGIN');
	query($main, 'DECLARE ids CURSOR FOR SELECT snowflake_nextvals(1000)');
	taken(query($main, 'FETCH 5 FROM ids'));
	step_clock(-HOUR);
	push @states, taken(query($main, 'FETCH 1 FROM ids'))->{state};
	query($main, 'ROLLBACK');
	step_clock(0);
}
is_deeply(\@states, [ ('55000') x 10 ],
	'reserved ids are not returned while the clock is behind');

set_policy('wait', 60_000);
sub wait_event_of_main
{
	my $answer = query($monitor, 'SELECT wait_event_type, wait_event '
		  . "FROM pg_stat_activity WHERE pid = $main->{pid}");

	return join ' ', @{ $answer->{rows}[0] };
}

# Begins a call 20 s before the clock allows an id.  Returns the wait event.
sub begin_to_wait
{
	my $event;

	take_newest();
	step_clock(-20);
	$main->ask('SELECT * FROM take()');
	for (1 .. 5000)
	{
		$event = wait_event_of_main();
		last if $event =~ /^Extension/;
		usleep(1000);
	}
	return $event;
}

is( begin_to_wait(),
	$node->pg_version < 17
	? 'Extension Extension'
	: 'Extension SnowflakeClock',
	'a wait for the clock shows as a wait event');

my $set_forward = clock_gettime(CLOCK_MONOTONIC);
step_clock(0);
$answer = taken(result($main));
my $noticed_ms = (clock_gettime(CLOCK_MONOTONIC) - $set_forward) * 1000;
is($answer->{state}, '', 'a wait ends without an error');
note(sprintf 'the clock set forward is noticed after %.1f ms', $noticed_ms);
cmp_ok($noticed_ms, '<', 1000, 'a wait ends when the clock is set forward');

begin_to_wait();
step_clock(-HOUR);
is(taken(result($main))->{state},
	'55000', 'a wait ends when the clock falls behind the tolerance');
step_clock(0);

# ----- all ids of the test -----

take_newest();
my $not_larger = grep { $ids[$_] <= $ids[ $_ - 1 ] } 1 .. $#ids;
note(scalar(@ids) . ' ids in all');
is($not_larger, 0, 'every id is larger than the one before it');

$_->quit for $main, $monitor;
$node->stop;

# ----- a clock that makes no steps -----

# Sessions that race for the processor see each other's progress between two
# readings of the clock.  That is no step back.
my $racing = snowflake_node(
	'racing',
	"snowflake.layout = '41/2/3/17'",
	"snowflake.clock_policy = error");
$racing->start;
$racing->safe_psql('postgres', 'CREATE EXTENSION snowflake');
$racing->pgbench(
	'--no-vacuum --client=8 --jobs=2 --time=2',
	0,
	[qr/number of failed transactions: 0 /],
	[qr/^$/],
	"error: another session's progress is no step back",
	{
		'take' => 'SELECT count(snowflake_nextval()) '
		  . 'FROM generate_series(1, 1000)'
	});
$racing->stop;

done_testing();
