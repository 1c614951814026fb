# Sessions that reserve ids in blocks (snowflake.block_size).  A session
# reserves few more ids than it uses, and no id comes twice or out of order.  A
# block ends with its transaction and with its session, when the clock has passed
# the block's tick, and when the block leads the clock too far.  A tick's sequence
# starts at zero, or at random in the lower quarter.
#
# A tick lasts 600 s, and the test steps the clock from the middle of one tick to
# that of another.  So the test knows the sequence of each id: it tells which
# sequences other sessions have reserved.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max min uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time);

# The first layout has a million ids in a tick, the second has 16.
use constant {
	TICK_S => 600,
	LONG_TICK => "snowflake.layout = '30/5/5/20\@600s'",
	LONG_TICK_OF_16 => "snowflake.layout = '30/5/5/4\@600s'",
};

my $node = snowflake_node('main', 'max_connections = 100', 'fsync = off',
	'autovacuum = off', "include 'case.conf'");
my @node_settings;
my $offset_s;
my ($anna, $bert, $carl, $dora);

# Sets the clock to so many ticks later.
sub step_clock
{
	my ($ticks) = @_;

	set_clock($node, $offset_s += $ticks * TICK_S);
	return;
}

# Starts the server in a layout, without the page of the mark: the server
# forgets the ids that it has issued.
sub start_in
{
	my ($layout) = @_;

	unlink mark_file($node);
	@node_settings = ($layout, 'snowflake.epoch = ' . int(1000 * (time() - TICK_S * 1.5)));
	configure($node, @node_settings);
	start_server($node, $offset_s = 0);
	return;
}

# A session in a transaction, so that its block does not end with each call.  An
# error does not end the transaction.
sub session_in_transaction
{
	my $session = SnowflakeSession->new($node);

	$session->{psql}{stdin} .= "\\set ON_ERROR_ROLLBACK on\n";
	$session->rows('BEGIN');
	return $session;
}

# Sets parameters, and waits until some sessions have them.
sub set_parameters
{
	my ($parameters, @sessions) = @_;

	configure($node, @node_settings,
		map { "snowflake.$_ = $parameters->{$_}" } keys %$parameters);
	$node->reload;
	for my $session (@sessions)
	{
		$session->rows(q{LOAD 'snowflake'});
		for my $name (keys %$parameters)
		{
			wait_for(sub { $session->value("SHOW snowflake.$name") eq $parameters->{$name} })
			  or die "no $name = $parameters->{$name}\n";
		}
	}
	return;
}

# Begins a tick, with four new sessions that have these parameters.
sub begin_tick
{
	my (%parameters) = @_;

	step_clock(1);
	($anna, $bert, $carl, $dora) = map { session_in_transaction() } 1 .. 4;
	set_parameters(\%parameters, $anna, $bert, $carl, $dora);
	return;
}

sub end_tick
{
	$_->quit for $anna, $bert, $carl, $dora;
	return;
}

# Takes ids by a number of calls.  Returns the ids or, by take(), their
# sequences.
sub issue
{
	my ($session, $count) = @_;

	$count //= 1;
	return $session->rows("SELECT snowflake_nextval() FROM generate_series(1, $count)");
}

sub take
{
	return map { $_ & (1 << 20) - 1 } issue(@_);
}

start_in(LONG_TICK);
value_of($node, 'CREATE EXTENSION snowflake');

# ----- how much is reserved -----

# The sequences of two sessions that take ids by turns: each session has blocks
# of 1, 2, 4, ...
sub expected_by_turns
{
	my ($block_size, $count) = @_;
	my ($next, $size) = (0, 1);
	my @expected;

	while (@expected < $count)
	{
		push @expected, map { [ $next + $_, $next + $size + $_ ] } 0 .. $size - 1;
		$next += 2 * $size;
		$size = min(2 * $size, $block_size);
	}
	return @expected[ 0 .. $count - 1 ];
}

for my $block_size (1, 4, 5, 64)
{
	begin_tick(block_size => $block_size);
	is_deeply(
		[ map { [ take($anna), take($bert) ] } 1 .. 200 ],
		[ expected_by_turns($block_size, 200) ],
		"two sessions by turns: blocks double up to $block_size");
	end_tick() if $block_size < 64;
}

# A session that takes one id leaves no gap.
take($_, 64) for $anna, $bert, $anna;
my ($only) = take($carl);
is_deeply([ take($dora) ], [ $only + 1 ], 'for the first call of a session one id is reserved');
end_tick();

# ----- the end of a transaction and of a session -----

begin_tick(block_size => 64);
is_deeply([ take($anna, 1000), map { take($anna) } 1 .. 100 ],
	[ 0 .. 1099 ], 'a session alone gets consecutive ids');
$anna->rows('SAVEPOINT s');
take($anna);
$anna->rows('ROLLBACK TO s');
is_deeply([ take($anna) ], [1101], 'a savepoint that is rolled back does not end the block');
$anna->rows('COMMIT AND CHAIN');
is_deeply(
	[ map { take($anna) } 1 .. 4 ],
	# blocks of 1, 2, ..., 64, 64, ... begin at 0, 1, 3, ..., 63, 127, ...
	[ 1151 .. 1154 ],
	'a commit ends the block: the next transaction begins after it');
$anna->rows('ROLLBACK AND CHAIN');
is_deeply([ take($anna) ], [1158], 'a rollback ends the block');
end_tick();

begin_tick(block_size => 64);
take($anna, 8);                 # 0, 1..2, 3..6 and one of 7..14
$anna->terminate;

# One of six new sessions gets the process slot of anna's backend.
my @heirs = map { session_in_transaction() } 1 .. 6;
is_deeply([ map { $_->state_of('SELECT snowflake_currval()') } @heirs ],
	[ ('55000') x 6 ], 'a new session has no snowflake_currval() of an ended backend');
is_deeply(
	[ map { take($_) } @heirs, @heirs ],
	[ 15 .. 20, map { 21 + 2 * $_ } 0 .. 5 ],
	'a session inherits neither the block of an ended backend nor its size');
$_->quit for @heirs, $bert, $carl, $dora;

# ----- one session's ids, by all kinds of calls -----

my $seed = $ENV{SNOWFLAKE_SEED} // time() % 1_000_000;
srand($seed);
note("seed $seed");
for my $block_size (64, 3)
{
	begin_tick(block_size => $block_size);
	my %session = (anna => $anna, bert => $bert, carl => $carl);
	my %ids = map { $_ => [] } keys %session;
	$_->rows('DECLARE many CURSOR FOR SELECT snowflake_nextvals(10000)') for values %session;
	for (1 .. 200)
	{
		my $name = (keys %session)[ rand 3 ];
		my $count = 1 + int rand 12;

		push @{ $ids{$name} }, $session{$name}->rows(
			(
				'SELECT snowflake_nextval()',
				"SELECT snowflake_nextval() FROM generate_series(1, $count)",
				"SELECT snowflake_nextvals($count)",
				"FETCH $count FROM many"
			)[ rand 4 ]);
	}
	my @all = map { @$_ } values %ids;
	is(scalar(uniq @all), scalar @all, "all kinds of calls, block_size $block_size: no id comes twice");
	for my $of (values %ids)
	{
		is(scalar(grep { $of->[$_] <= $of->[ $_ - 1 ] } 1 .. $#$of),
			0, "all kinds of calls, block_size $block_size: the ids of a session increase");
	}
	end_tick();
}

# ----- sequences that start at random -----

begin_tick(block_size => 64, sequence_start => 'random');
my ($first) = take($anna);
cmp_ok($first, '<', 1 << 18, 'a random start is in the lower quarter');
is_deeply([ take($anna, 200) ],
	[ $first + 1 .. $first + 200 ],
	'the ids after a random start are consecutive');
my @starts = map { step_clock(1); take($anna) } 1 .. 5;
cmp_ok(max(@starts), '<', 1 << 18, 'the starts of the next ticks are in the lower quarter');
is(scalar(uniq $first, @starts), 6, 'each tick has another start');
end_tick();

# ----- a clock that is stepped in the middle of a block -----

# Policy "advance" has a tolerance of an hour, which is more than a tick.
begin_tick(block_size => 64, clock_policy => 'advance', clock_tolerance => '1h');
my @ids = issue($anna, 10);
my $tick = $ids[0] >> 30;

# How many ticks the newest id is after the first one, and its sequence.
sub newest
{
	return [ ($ids[-1] >> 30) - $tick, $ids[-1] & (1 << 20) - 1 ];
}
is_deeply(newest(), [ 0, 9 ], 'before the clock steps: ten consecutive ids of one tick');
step_clock(1);
push @ids, issue($anna);
is_deeply(newest(), [ 1, 0 ], 'a step forward ends the block');
push @ids, issue($bert);
is_deeply(newest(), [ 1, 1 ], 'after the step forward the next block has one id');
push @ids, issue($anna) for 1 .. 3;    # 2..3, and one of 4..7
is_deeply(newest(), [ 1, 4 ], 'in the next tick a session takes its second block, and the third in part');

step_clock(-1);
push @ids, issue($anna) for 1 .. 3;
is_deeply(newest(), [ 1, 7 ], 'a step back within the tolerance does not end the block');
push @ids, issue($bert);
is_deeply(newest(), [ 1, 8 ], 'another session goes on after the block');
push @ids, issue($anna) for 1 .. 3;    # three of 10..17

# The block is ahead of the clock, which no other policy allows.
for my $policy ('wait', 'error')
{
	set_parameters({ block_size => 64, clock_policy => $policy, clock_tolerance => '5s' },
		$anna, $bert);
	is_deeply(
		[ map { $_->state_of('SELECT snowflake_nextval()') } $anna, $bert, $anna ],
		[ ('55000') x 3 ],
		"$policy: a step back is refused to all sessions, also inside a block");
}

# Another session's id is of a later tick than the block, and the clock steps
# back to the block's tick.
set_parameters({ block_size => 64, clock_policy => 'advance', clock_tolerance => '1h' },
	$anna, $bert);
push @ids, issue($anna, 40);
step_clock(2);
push @ids, issue($bert);
step_clock(-1);
push @ids, issue($_) for $anna, $bert;
is(scalar(grep { $ids[$_] <= $ids[ $_ - 1 ] } 1 .. $#ids),
	0, 'ids increase from session to session while the clock steps');
end_tick();

# ----- the end of a tick -----

$node->stop;
start_in(LONG_TICK_OF_16);

begin_tick(block_size => 64);
my @of_tick = map { issue($_) } ($anna) x 3, ($bert) x 3, ($anna) x 4,
  ($bert) x 4, ($anna) x 2;
is_deeply([ sort { $a <=> $b } map { $_ & 15 } @of_tick ],
	[ 0 .. 15 ], 'the last block of a tick ends where the tick ends');

# Four sessions wait for a tick.  One is cancelled, one is terminated, and the
# others go on, with blocks of one id: they have not taken ids of this tick
# before.
$_->ask('SELECT snowflake_nextval() & 15') for $anna, $bert, $carl, $dora;
$_->wait_until_it_waits for $anna, $bert, $carl, $dora;
value_of($node, "SELECT pg_cancel_backend($bert->{pid})");
is(($bert->answer)[0], '57014', 'a session that waits for a tick is cancelled');
$carl->terminate;
step_clock(1);
my @woken = map { [ $_->answer ] } $anna, $dora;
is_deeply([ sort { $a->[1] <=> $b->[1] } @woken ],
	[ [ '', 0 ], [ '', 1 ] ], 'the other sessions get one id each in the next tick');
is_deeply([ map { $_ & 15 } issue($bert) ], [2], 'the cancelled session gets the next id when it asks again');
$_->quit for $anna, $bert, $dora;

$node->stop;
done_testing();
