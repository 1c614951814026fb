# The clock of a running server is set back and forth: each
# snowflake.clock_policy does what the documentation says, no id leads the
# clock by more than the policy allows, and no id comes twice or out of order.
#
# The server's clock is set (lib/clock.c), so a step of an hour takes no time.  The
# layout has 16 ids in a tick, which even a slow machine spends.  At first the clock
# runs, because sessions spend many ticks; then it stands while the test works.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max min sum uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(usleep);

use constant {
	HOUR => 3600,
	IDS_PER_TICK => 16,
	BITS_BELOW_TICK => 5 + 5 + 4,
	LATE_MS => 30,    # less than 50 ms, the longest single sleep of the library
	TURN_S => 0.01    # less than LATE_MS: how far the clock goes at once
};

my @layout = ("snowflake.layout = '41/5/5/4'");
my $node = snowflake_node('main', 'autovacuum = off', "include 'case.conf'");
configure($node, @layout);
start_server($node, 0);
value_of($node, q{
CREATE EXTENSION snowflake;
CREATE TABLE taken (number bigserial, session int, id bigint);
-- the microseconds that an id leads the clock by
CREATE FUNCTION lead(id bigint) RETURNS bigint LANGUAGE sql AS
'SELECT (extract(epoch FROM snowflake_timestamp(id) - clock_timestamp()) * 1000000)::bigint'});
my $main = SnowflakeSession->new($node);

# Offsets from the real clock, in seconds: that of the server's clock now, and
# that of a right clock, from which step_clock() steps.  When ids have followed a
# step of an hour forward, the right clock is an hour later from then on.
my $right_offset = 0;
my $offset = 0;

sub step_clock
{
	my ($seconds) = @_;

	set_clock($node, $offset = $right_offset + $seconds);
	return;
}

# Every id of this test, in the order of issue.
my @ids;

# Waits for the outcome of a statement that selects ids and their leads.
sub taken
{
	my $outcome = $main->outcome;
	my @rows = map { [ split /\|/ ] } @{ $outcome->{rows} };

	push @ids, map { $_->[0] } @rows;
	$outcome->{count} = @rows;
	$outcome->{lead_us} = max(map { $_->[1] } @rows);
	return $outcome;
}

# How many calls of the session have waited for the clock.
sub waits
{
	return $main->value("SELECT coalesce(max(clock_waits), 0) FROM snowflake_stat_backend() WHERE pid = pg_backend_pid()");
}

# Takes one id by snowflake_nextval(), or many by snowflake_nextvals().
sub take
{
	my ($count) = @_;
	my $call = $count ? "snowflake_nextvals($count)" : 'snowflake_nextval()';
	my $waits = waits();

	$main->ask("SELECT id, lead(id) FROM (SELECT $call AS id OFFSET 0) AS s");
	my $outcome = taken();
	$outcome->{waits} = waits() - $waits;
	return $outcome;
}

# Takes an id while the clock is right.  Steps of the clock are measured from
# this id.
sub take_newest
{
	my $outcome = take();

	die "no id with a right clock: $outcome->{message}\n"
	  if $outcome->{state} ne '';
	return;
}

# Takes an id when the clock has stepped back, and sets the clock right again.
# late_ms of the outcome is how long the policy had allowed an id again, by the
# server's clock, when the call returned.
my ($policy, $tolerance_ms);
sub take_after_step_back
{
	my ($seconds) = @_;

	take_newest();
	my $newest_tick = $ids[-1] >> BITS_BELOW_TICK;
	step_clock(-$seconds);
	my $outcome = take();
	$outcome->{late_ms} = ($ids[-1] >> BITS_BELOW_TICK) - $newest_tick
	  + (allowed_lead_us() - $outcome->{lead_us}) / 1000
	  if $outcome->{state} eq '';
	step_clock(0);
	return $outcome;
}

# Sets the policy and other parameters, and waits until the session has them.
sub set_policy
{
	($policy, $tolerance_ms) = @_;
	configure($node, @layout,
		"snowflake.clock_policy = $policy",
		"snowflake.clock_tolerance = $tolerance_ms");
	$node->reload;
	$main->rows(q{LOAD 'snowflake'});
	wait_for(
		sub {
			$main->value(q{
SELECT string_agg(setting, ' ' ORDER BY name) FROM pg_settings
 WHERE name IN ('snowflake.clock_policy', 'snowflake.clock_tolerance')})
			  eq "$policy $tolerance_ms";
		}) or die "the session does not have policy $policy\n";
	return;
}

# The microseconds by which the policy allows an id to lead the clock.
sub allowed_lead_us
{
	return $policy eq 'advance' ? $tolerance_ms * 1000 : 0;
}

# ----- what each policy does after a step -----

sub is_issued
{
	my ($name, @outcomes) = @_;

	is_deeply([ map { $_->{state} } @outcomes ], [ ('') x @outcomes ], "$name is no error")
	  or return;
	cmp_ok(max(map { $_->{lead_us} } @outcomes), '<=', allowed_lead_us(), "$name: no id leads the clock too far");
	return;
}

sub is_not_waited_for
{
	my ($name, @outcomes) = @_;

	is(sum(map { $_->{waits} } @outcomes), 0, "$name is not waited for");
	return;
}

# The seconds of a duration in a message, such as "1 h 59 min", "1.500 s" or "15.250 ms".
sub seconds_of_text
{
	my ($text) = @_;
	my %unit_s = (ms => 0.001, s => 1, min => 60, h => 3600, d => 86_400);

	return sum(map { /^([\d.]+) (\w+)$/ ? $1 * $unit_s{$2} : die "no duration: $text\n" } $text =~ /\S+ \S+/g);
}

my $refusals = 0;

# Tests that calls are refused at once, and what the ERROR says.
sub is_refused
{
	my ($name, $seconds, @outcomes) = @_;
	my ($message, $hint) = @{ $outcomes[0] }{qw(message hint)};

	is_deeply([ map { $_->{state} } @outcomes ], [ ('55000') x @outcomes ], "$name is refused");
	is_not_waited_for($name, @outcomes);
	my ($duration) = $message =~ /^the clock is (.+) behind the last snowflake id$/;
	my $behind_s = defined $duration ? seconds_of_text($duration) : -1;
	ok($behind_s <= $seconds && $behind_s >= $seconds - 2,
		"$name: the message names how far the clock is behind: $message");
	like($hint, qr/Check the server's clock.* "snowflake.clock_policy" to "advance" and "snowflake.clock_tolerance" to more than \Q$duration\E, and reload.*Or wait.*"snowflake.worker_id" that no server has used/,
		"$name: the hint says what to do");
	is($main->value('SELECT clock_refusals FROM snowflake_stat()'), $refusals += @outcomes, "$name is counted");
	is_issued("$name: an id when the clock is right again", take());
	return;
}

# ----- while the clock runs -----

# A spent tick is not taken for a step back of the clock.
for my $setting ('wait 0', 'advance 0', 'advance 200')
{
	my $ticks = 150;
	my $name = "$setting ms: spent ticks";

	set_policy(split / /, $setting);
	is($main->value('SELECT count(snowflake_nextval()) FROM generate_series(1, 1600)'),
		1600, "$name are no error for single ids");
	my $outcome = take($ticks * IDS_PER_TICK);
	is_issued($name, $outcome);
	is($outcome->{count}, $ticks * IDS_PER_TICK, "$name: all ids are issued");
	cmp_ok($outcome->{ms}, '>=', $ticks - 2, "$name: the session waits for each tick")
	  if allowed_lead_us() == 0;
}

# Three sessions take ids while the clock steps back and forth by up to 20 ms,
# and passes through the same ticks again and again.
for my $setting ('wait 5000', 'advance 1000')
{
	my $name = "$setting: three sessions while the clock steps back and forth";
	set_policy(split / /, $setting);
	value_of($node, 'TRUNCATE taken');
	take_newest();
	my @takers = map { SnowflakeSession->new($node) } 0 .. 2;
	$takers[$_]->ask("DO 'BEGIN
  FOR i IN 1 .. 200 LOOP
    INSERT INTO taken (session, id) SELECT $_, snowflake_nextvals(40);
    INSERT INTO taken (session, id) SELECT $_, snowflake_nextval() FROM generate_series(1, 10);
    COMMIT;
  END LOOP;
END'") for 0 .. 2;
	for (1 .. 150)
	{
		step_clock(rand(0.04) - 0.02);
		usleep(rand(20_000));
	}
	step_clock(0);
	is(join('', map { ($_->answer)[0] } @takers), '', "$name: no call fails");
	$_->quit for @takers;

	my @taken = split /\n/, value_of($node, 'SELECT id FROM taken ORDER BY id');
	is(scalar(uniq @taken), scalar @taken, "$name: no id of " . @taken . ' comes twice');
	is( value_of($node, q{
SELECT count(DISTINCT session), count(*) FILTER (WHERE id <= previous)
  FROM (SELECT session, id, lag(id) OVER (PARTITION BY session ORDER BY number) AS previous FROM taken) AS s}),
		'3|0', "$name: the ids of each session increase");
	push @ids, @taken;
}

# ----- steps of a clock that stands -----

$main->quit;
$node->stop;
slow_down();
start_server($node);
$main = SnowflakeSession->new($node);

# The steps back in seconds, and what happens.
my %expected = (
	'wait 1000' => { 0.25 => 'waits', 0.75 => 'waits', 1.9 => 'refuses' },
	'wait 0' => { 1.5 => 'refuses' },
	'advance 1000' => { 0.3 => 'leads', 0.8 => 'leads', 1.4 => 'waits', 2.9 => 'refuses' },
	'advance 0' => { 1.5 => 'refuses' });
for my $setting (sort keys %expected)
{
	set_policy(split / /, $setting);
	for my $seconds (sort keys %{ $expected{$setting} })
	{
		my $what = $expected{$setting}{$seconds};
		my $name = "$setting ms: a step back of $seconds s";
		local $SnowflakeTime::longest_turn_s = TURN_S;
		my @outcomes = map { take_after_step_back($seconds) } 1 .. 5;

		if ($what eq 'refuses')
		{
			is_refused($name, $seconds, @outcomes);
			next;
		}
		is_issued($name, @outcomes);
		if ($what eq 'waits')
		{
			is(sum(map { $_->{waits} } @outcomes), scalar @outcomes, "$name: each call waits");

			# A busy machine delays most calls, and no machine delays each of a hundred.
			my $soon = sub { scalar grep { $_->{late_ms} < LATE_MS } @outcomes };
			push @outcomes, take_after_step_back($seconds)
			  while $soon->() < 3 && @outcomes < 100;
			cmp_ok($soon->(), '>=', 3, "$name: the wait ends as soon as an id is allowed");
			cmp_ok(min(map { $_->{late_ms} } @outcomes), '>=', 0, "$name: no wait ends earlier");
		}
		else
		{
			is_not_waited_for($name, @outcomes);
			cmp_ok(min(map { $_->{lead_us} } @outcomes), '>', 0, "$name: the ids lead the clock");
		}
	}

	# Ids follow a step of an hour forward, and the step back is refused.
	my $name = "$setting ms: a step of an hour forward";
	my $before = $ids[-1];
	step_clock(+HOUR);
	my @outcomes = map { take() } 1 .. 5;
	is_issued($name, @outcomes);
	is_not_waited_for($name, @outcomes);
	cmp_ok(($ids[-5] >> BITS_BELOW_TICK) - ($before >> BITS_BELOW_TICK),
		'>=', HOUR * 1000, "$name is followed by the ids");
	cmp_ok(max(map { $_->{lead_us} } @outcomes), '<=', 0, "$name: no id leads the clock");
	$right_offset += HOUR;
	is_refused("$name and back", HOUR, map { take_after_step_back(HOUR) } 1 .. 5);
}

# A clock that was days ahead: what the hint says first lets ids go on at once.
{
	my $days = 3 * 86_400;

	set_policy('wait', 5000);
	step_clock($days);
	is_issued('three days ahead', take());
	step_clock(0);
	my $refused = take();
	like($refused->{message}, qr/^the clock is (2 d 23 h 59 min \d+ s|3 d( \d s)?) behind the last snowflake id$/, 'a message in days');
	$refusals++;
	set_policy('advance', 1000 * ($days + 60));
	is_issued('ids go on from the last one', take(), take(100));
	set_policy('wait', 5000);
	is(take()->{state}, '55000', 'with the former values ids are refused until the clock has caught up');
	$refusals++;
	$right_offset += $days;
	step_clock(1);
	is_issued('the clock has caught up', take());
}

# When ticks are spent, ids run ahead of the clock up to the tolerance, and take
# no more ticks than they need.
set_policy('advance', 200);
my $outcome = do {
	local $SnowflakeTime::longest_turn_s = TURN_S;
	take(8000);
};
cmp_ok($outcome->{lead_us}, '>', 150_000, 'advance: ids run ahead of the clock when ticks are spent');
cmp_ok($outcome->{lead_us}, '<=', 200_000, 'advance: ids run ahead of the clock by the tolerance at most');
set_policy('advance', 5000);
take_newest();
step_clock(-2);
take(10 * IDS_PER_TICK);
step_clock(0);
cmp_ok(($ids[-1] >> BITS_BELOW_TICK) - ($ids[ -10 * IDS_PER_TICK ] >> BITS_BELOW_TICK),
	'<=', 10, 'advance: ids ahead of the clock fill their ticks');

# After a change from "advance" to "wait", a call waits until the clock has
# passed the ids that "advance" has issued ahead.
take(8000);
set_policy('wait', 5000);
is_issued('wait: after ids that "advance" has issued ahead, a call', take());

# ----- outside the layout's span -----

set_policy('wait', 5000);
my ($first, $end) = split /\|/, $main->value(q{
SELECT extract(epoch FROM snowflake_timestamp(0)), extract(epoch FROM snowflake_timestamp((1::bigint << 55) - 1))});
for my $case (
	[ 'of an hour before the epoch', $first - HOUR, 'before the epoch' ],
	[ 'of a minute after the last tick', $end + 60, 'at or past the last tick' ])
{
	my ($when, $instant, $where) = @$case;

	step_clock($instant - test_time() - $right_offset);
	$outcome = take();
	is($outcome->{state}, '54000', "a clock $when is refused");
	like($outcome->{message}, qr/^the clock is $where of snowflake ids: /,
		"a clock $when: the message says where it is");
	like($outcome->{hint}, qr/Check the server's clock/,
		"a clock $when: the hint says what to do");
	step_clock(0);
	is_issued("a clock $when: an id when the clock is right again", take());
}

# ----- while a statement waits -----

set_policy('wait', 60_000);
for my $case ([ 0, '', 'when the clock is set forward' ],
	[ -HOUR, '55000', 'when the clock falls behind the tolerance' ])
{
	my ($step, $state, $when) = @$case;

	take_newest();
	step_clock(-20);
	$main->ask('SELECT id, lead(id) FROM snowflake_nextval() AS id');
	$main->wait_until_it_waits;
	my $begin = test_time();
	step_clock($step);
	is(taken()->{state}, $state, "a wait ends $when");
	cmp_ok(test_time() - $begin, '<', 1, "a wait ends soon $when");
	step_clock(0);
}

# A reload does not change what a call that waits already does; the next call of the
# session goes by the new values.
take_newest();
step_clock(-20);
{
	my $waiting = SnowflakeSession->new($node);

	$waiting->ask('SELECT snowflake_nextval()');
	$waiting->wait_until_it_waits;
	set_policy('advance', 60_000);
	push @ids, $main->value('SELECT snowflake_nextval()');
	is($main->value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $waiting->{pid}"),
		'Extension', 'a call that waited before a reload to "advance" goes on waiting');
	$main->value("SELECT pg_cancel_backend($waiting->{pid})");
	is(($waiting->answer)[0], '57014', 'it can be cancelled');
	push @ids, $waiting->value('SELECT snowflake_nextval()');
	$waiting->quit;
}
step_clock(0);

# ----- all ids of the test -----

set_policy('wait', 5000);
take_newest();
is(scalar(grep { $ids[$_] <= $ids[ $_ - 1 ] } 1 .. $#ids),
	0, 'each of ' . @ids . ' ids is larger than the one before it');

# Ids that lead the clock end at the last tick.
set_policy('advance', 60_000);
step_clock($end - 40 - test_time() - $right_offset);
$main->ask('SELECT count(*) FROM snowflake_nextvals(700000)');
is($main->outcome->{state}, '54000', 'advance: no id after the last tick');
$main->quit;
$node->stop;

# ----- a clock that makes no steps -----

# Sessions that race for the processor see each other's progress between two
# readings of the clock.  That is no step back.
unlink mark_file($node);
configure($node, "snowflake.layout = '48/0/5/4\@10us'", 'snowflake.clock_tolerance = 0');
$node->start;
$node->pgbench(
	'--no-vacuum --client=8 --jobs=2 --time=2',
	0,
	[qr/number of failed transactions: 0 /],
	[qr/^$/],
	"tolerance 0: another session's progress is no step back",
	{ 'take' => 'SELECT count(snowflake_nextval()) FROM generate_series(1, 1000)' });
$node->stop;

done_testing();
