# Sessions that reserve ids in blocks (snowflake.block_size).  A session
# reserves few more ids than it uses, no id comes twice, and no id is older
# than its call.  A session drops its block when its transaction ends, when the
# clock has passed the block's tick, or when a parameter has changed.
#
# Other sessions do not get the sequences that a session has reserved.  With a
# tick of 600 s the test knows each sequence; the clock is 300 s into a tick.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use List::Util qw(max min uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeLongTick;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = long_tick_node('restart_after_crash = on');

# Sets a parameter, and waits until the sessions have the new value.
sub reload_with
{
	my ($name, $value, @sessions) = @_;

	value_of($node, "ALTER SYSTEM SET snowflake.$name = '$value'");
	$node->reload;
	for my $session (@sessions)
	{
		$session->value(q{LOAD 'snowflake'});
		usleep(10_000)
		  until $session->value(
			"SELECT current_setting('snowflake.$name')::text = '$value'") eq
		  't';
	}
	return;
}

sub reset_parameters
{
	value_of($node, 'ALTER SYSTEM RESET ALL');
	return;
}

sub issue
{
	my ($session, $sql) = @_;
	return $session->rows($sql // 'SELECT snowflake_nextval()');
}

sub tick_and_sequence
{
	my ($id, $sequence_bits) = @_;
	return ($id >> 10 + $sequence_bits, $id & (1 << $sequence_bits) - 1);
}

# Runs scripts by pgbench's clients, each of which numbers its rows.
sub run_scripts
{
	my ($what, $clients, $how_long, @scripts) = @_;
	my @files;

	for my $script (@scripts)
	{
		push @files, "$directory/script" . @files;
		unlink $files[-1];
		PostgreSQL::Test::Utils::append_to_file($files[-1], $script);
	}
	my ($stdout, $stderr) = PostgreSQL::Test::Utils::run_command(
		[
			'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2',
			$how_long, '--define=n=0', (map { "--file=$_" } @files),
			$node->connstr('postgres')
		]);
	like($stdout, qr{number of failed transactions: 0 }, "$what: no transaction failed");
	is($stderr =~ s/^pgbench \(.*\n//r, '', "$what: pgbench has no warnings");
	return;
}

# Tests all ids of a table, whose rows are numbered by the client that took
# them.
sub is_unique_and_increasing
{
	my ($what, $table) = @_;
	my ($count, $distinct, $disorder) = split /\|/, value_of($node,
		'SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= previous)'
		  . ' FROM (SELECT id, lag(id) OVER (PARTITION BY client ORDER BY n, id) AS previous'
		  . " FROM $table) AS o");

	note("$what: $count ids");
	cmp_ok($count, '>', 0, "$what: ids were issued");
	is($distinct, $count, "$what: each id comes once");
	is($disorder, 0, "$what: each session's ids increase");
	return;
}

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

# A session in a transaction, which ends its block when it ends.  An error does
# not end the transaction.
sub session_in_transaction
{
	my $session = SnowflakeSession->new($node);

	$session->{psql}{stdin} .= "\\set ON_ERROR_ROLLBACK on\n";
	$session->rows('BEGIN');
	return $session;
}

my ($anna, $bert, $carl, $dora);
sub open_sessions
{
	($anna, $bert, $carl, $dora) = map { session_in_transaction() } 1 .. 4;
	return;
}

sub close_sessions
{
	$_->quit for $anna, $bert, $carl, $dora;
	return;
}

start_afresh($node, LONG_TICK, 'snowflake.block_size = 64');
open_sessions();
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
is_deeply([ take($anna) ], [1158], 'so does a rollback');
close_sessions();

start_afresh($node, LONG_TICK, 'snowflake.block_size = 64');
open_sessions();
is_deeply(
	[ map { take($_) } $anna, $bert, $anna, $bert, $anna, $bert, $anna, $bert ],
	[ 0, 1, 2, 4, 3, 5, 6, 10 ],
	'two sessions by turns: the second block of each has two ids');
my @by_turns = map { [ take($anna), take($bert) ] } 5 .. 300;
is_deeply(
	\@by_turns,
	[ (expected_by_turns(64, 300))[ 4 .. 299 ] ],
	'two sessions by turns: blocks double up to 64 ids');

# Sessions that take one id leave no gap.
my $top = max(take($anna, 64), take($bert, 64), take($anna, 64));
($top) = take($carl);
is_deeply([ take($dora) ], [ $top + 1 ], 'for the first call of a session one id is reserved');
my @visitors = map {
	my $visitor = SnowflakeSession->new($node);
	my @sequence = take($visitor);
	$visitor->quit;
	@sequence
} 1 .. 20;
is_deeply(
	\@visitors,
	[ $top + 2 .. $top + 21 ],
	'sessions that take one id waste no sequence');
close_sessions();

for my $block_size (1, 4, 5)
{
	start_afresh($node, LONG_TICK, "snowflake.block_size = $block_size");
	open_sessions();
	is_deeply(
		[ map { [ take($anna), take($bert) ] } 1 .. 40 ],
		[ expected_by_turns($block_size, 40) ],
		"no block is larger than $block_size");
	close_sessions();
}

# A call that waits for the next tick ends by its statement_timeout.
start_afresh($node, LONG_TICK_OF_16, 'snowflake.block_size = 64');
open_sessions();
$_->rows('SET statement_timeout = 200') for $anna, $bert;
my @of_tick = map { take($_) } ($anna) x 3, ($bert) x 3, ($anna) x 4,
  ($bert) x 4, ($anna) x 2;
is_deeply(
	[ sort { $a <=> $b } @of_tick ],
	[ 0 .. 15 ],
	'the last block of a tick ends where the tick ends');
my $no_id = 'SELECT snowflake_sequence(snowflake_nextval())';
is_deeply([ map { $_->state_of($no_id) } $anna, $bert, $anna, $bert ],
	[ ('57014') x 4 ], 'calls wait for the next tick when all ids of a tick are issued');
close_sessions();

# ----- one session's ids, by all kinds of calls -----

my $seed = $ENV{SNOWFLAKE_SEED} // time() % 1_000_000;
srand($seed);
note("seed $seed");
for my $block_size (64, 3)
{
	start_afresh($node, LONG_TICK, "snowflake.block_size = $block_size");
	open_sessions();
	my (%ids, %cursors);
	for (1 .. 300)
	{
		my ($name, $session) =
		  @{ ([ anna => $anna ], [ bert => $bert ], [ carl => $carl ])[ rand 3 ] };
		my $how = int rand 5;
		my $count = 1 + int rand 12;

		if (($cursors{$name} // 0) == 0)
		{
			$session->rows('CLOSE ALL');
			$session->rows('DECLARE many CURSOR FOR SELECT snowflake_nextvals(200)');
			$cursors{$name} = 200;
		}
		my $fetched = min($count, $cursors{$name});
		$cursors{$name} -= $fetched if $how >= 3;
		push @{ $ids{$name} },
		  issue(
			$session,
			(
				'SELECT snowflake_nextval()',
				"SELECT snowflake_nextval() FROM generate_series(1, $count)",
				"SELECT snowflake_nextvals($count)",
				"FETCH $fetched FROM many",
				"FETCH $fetched FROM many"
			)[$how]);
	}
	my @all = map { @$_ } values %ids;
	is(scalar(uniq @all),
		scalar @all, "block_size $block_size: no id comes twice by different kinds of calls");
	for my $name (sort keys %ids)
	{
		my $of = $ids{$name};
		is(scalar(grep { $of->[$_] <= $of->[ $_ - 1 ] } 1 .. $#$of),
			0, "block_size $block_size: the ids of $name increase");
	}
	close_sessions();
}

# ----- a block whose session has ended -----

start_afresh($node, LONG_TICK, 'snowflake.block_size = 64');
open_sessions();
take($anna, 8);                 # 0, 1..2, 3..6 and one of 7..14
$anna->terminate;

# One of six new sessions gets the process slot of anna's backend.
my @heirs = map { session_in_transaction() } 1 .. 6;
is_deeply(
	[ map { $_->state_of('SELECT snowflake_currval()') } @heirs ],
	[ ('55000') x 6 ],
	'a new session has no snowflake_currval() of an ended backend');
is_deeply(
	[ map { take($_) } @heirs, @heirs ],
	[ 15 .. 20, map { 21 + 2 * $_ } 0 .. 5 ],
	'a session inherits neither the block of an ended backend nor its size');
$_->quit for @heirs, $bert, $carl, $dora;

# The block size changes in the middle of a block.
start_afresh($node, LONG_TICK);
open_sessions();
my %changed = map { $_ => [] } qw(anna bert);
for my $block_size (64, 1, 64, 3, 64, 1, 65536)
{
	reload_with('block_size', $block_size, $anna, $bert);
	for (1 .. 5)
	{
		push @{ $changed{anna} }, take($anna, 7);
		push @{ $changed{bert} }, take($bert, 5);
	}
}
my @changed = map { @$_ } values %changed;
is(scalar(uniq @changed), scalar @changed,
	'no id comes twice when block_size changes');
for my $name (sort keys %changed)
{
	my $of = $changed{$name};
	is(scalar(grep { $of->[$_] <= $of->[ $_ - 1 ] } 1 .. $#$of),
		0, "the ids of $name increase when block_size changes");
}
reset_parameters();
close_sessions();

# ----- sequences that start at random -----

start_afresh($node, LONG_TICK, 'snowflake.block_size = 64',
	'snowflake.sequence_start = random');
open_sessions();
my ($first) = take($anna);
cmp_ok($first, '<', 1 << 18, 'a random start is in the lower quarter');
is_deeply([ take($anna, 200) ],
	[ $first + 1 .. $first + 200 ],
	'the ids after a random start are consecutive');
set_clock($node, TICK_S);
my ($second) = take($anna);
cmp_ok($second, '<', 1 << 18, "the next tick's start is in the lower quarter");
isnt($second, $first + 201, 'the next tick does not continue the block of the last tick');
close_sessions();

# ----- a clock that is stepped in the middle of a block -----

my @answer;
for my $policy (qw(wait error advance))
{
	start_afresh($node, LONG_TICK, 'snowflake.block_size = 64',
		"snowflake.clock_policy = $policy");
	open_sessions();

	# Leave anna in the middle of a block.
	my @ids = issue($anna, 'SELECT snowflake_nextval() FROM generate_series(1, 10)');
	my ($tick, $sequence) = tick_and_sequence($ids[-1], 20);
	is($sequence, 9, "$policy: in the middle of a block");

	set_clock($node, TICK_S);
	push @ids, issue($anna);
	is_deeply(
		[ tick_and_sequence($ids[-1], 20) ],
		[ $tick + 1, 0 ],
		"$policy: a step forward ends the block");
	push @ids, issue($bert);
	is_deeply(
		[ tick_and_sequence($ids[-1], 20) ],
		[ $tick + 1, 1 ],
		"$policy: after the step forward the next block has one id");
	push @ids, issue($anna) for 1 .. 3;    # 2..3, and one of 4..7
	is_deeply(
		[ tick_and_sequence($ids[-1], 20) ],
		[ $tick + 1, 4 ],
		"$policy: in the middle of the next block");

	# The clock is behind by more than the tolerance.
	set_clock($node, 0);
	is_deeply(
		[ map { $_->state_of('SELECT snowflake_nextval()') } $anna, $bert, $anna ],
		[ ('55000') x 3 ],
		"$policy: a step back beyond the tolerance is refused to all sessions, also inside a block");

	# The clock is behind by less than the tolerance.
	reload_with('clock_tolerance', '1h', $anna, $bert, $carl, $dora);
	if ($policy eq 'error')
	{
		is($anna->state_of('SELECT snowflake_nextval()'),
			'55000', "$policy: a step back within the tolerance is refused");
	}
	elsif ($policy eq 'wait')
	{
		$_->ask('SELECT snowflake_nextval()') for $anna, $bert, $carl;
		$_->wait_until_it_waits for $anna, $bert, $carl;
		is($bert->{node}->safe_psql('postgres',
				"SELECT pg_cancel_backend($bert->{pid})"),
			't', "$policy: a session that waits is cancelled");
		is(($bert->answer)[0], '57014', "$policy: the cancelled session stops waiting");
		set_clock($node, TICK_S);
		for my $session ($anna, $carl)
		{
			@answer = $session->answer;
			is(shift @answer, '', "$policy: a step back within the tolerance is waited out");
			push @ids, @answer;
		}
	}
	else
	{
		push @ids, issue($anna) for 1 .. 3;
		is_deeply(
			[ tick_and_sequence($ids[-1], 20) ],
			[ $tick + 1, 7 ],
			"$policy: a step back within the tolerance does not end the block");
		push @ids, issue($bert);
		is_deeply(
			[ tick_and_sequence($ids[-1], 20) ],
			[ $tick + 1, 8 ],
			"$policy: another session goes on after the block");

		# The block is ahead of the clock, which policy "error" does not allow.
		reload_with('clock_policy', 'error', $anna, $bert);
		is($anna->state_of('SELECT snowflake_nextval()'),
			'55000', "$policy: after a change of the policy, a block that is ahead of the clock is dropped");
	}

	# The clock is right again.
	set_clock($node, TICK_S);
	push @ids, issue($_, 'SELECT snowflake_nextval() FROM generate_series(1, 50)')
	  for $anna, $bert, $carl, $dora, $anna;
	set_clock($node, 3 * TICK_S);
	push @ids, issue($_, 'SELECT snowflake_nextval() FROM generate_series(1, 50)')
	  for $anna, $bert, $carl, $dora, $anna;
	is(scalar(uniq @ids), scalar @ids, "$policy: no id comes twice");
	reset_parameters();
	close_sessions();
}

# Four sessions wait for a tick.  One is cancelled, one is terminated, and the
# others go on.
start_afresh($node, LONG_TICK_OF_16, 'snowflake.block_size = 4');
open_sessions();
take($anna, 16);
$_->ask('SELECT snowflake_nextval()') for $anna, $bert, $carl, $dora;
$_->wait_until_it_waits for $anna, $bert, $carl, $dora;
value_of($node, "SELECT pg_cancel_backend($bert->{pid})");
is(($bert->answer)[0], '57014', 'a session that waits for a tick is cancelled');
$carl->terminate;
set_clock($node, TICK_S);
is_deeply([ map { ($_->answer)[0] } $anna, $dora ],
	[ '', '' ], 'the other sessions get ids in the next tick');
is($bert->state_of('SELECT snowflake_nextval()'),
	'', 'the cancelled session gets an id in the next tick');
$_->quit for $anna, $bert, $dora;

# A session that has waited for a tick reserves one id only: it has not taken
# ids of this tick before.
start_afresh($node, LONG_TICK_OF_16, 'snowflake.block_size = 8');
open_sessions();
take($anna, 16);
$anna->ask('SELECT snowflake_sequence(snowflake_nextval())');
$anna->wait_until_it_waits;
set_clock($node, TICK_S);
is_deeply(
	[ ($anna->answer)[1], take($bert) ],
	[ 0, 1 ],
	'after a wait for a tick a block of one id is reserved');
close_sessions();

# ----- many sessions -----

start_afresh($node, 'snowflake.block_size = 64');
value_of($node, 'CREATE TABLE ids (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int, n int)');
value_of($node, 'CREATE TABLE pairs (a bigint, b bigint, client int, n int)');

# Bulk inserts, single inserts, and calls of snowflake_nextval() between the
# rows of snowflake_nextvals().
my @many = (
	q{
\set n :n + 1
INSERT INTO ids (client, n) SELECT :client_id, :n * 1000 + i FROM generate_series(1, 700) AS i;
},
	q{
\set n :n + 1
INSERT INTO ids (client, n) VALUES (:client_id, :n * 1000);
INSERT INTO ids (client, n) VALUES (:client_id, :n * 1000 + 1);
INSERT INTO ids SELECT snowflake_nextvals(9), :client_id, :n * 1000 + 2 + generate_series(1, 9);
INSERT INTO ids (client, n) VALUES (:client_id, :n * 1000 + 20);
},
	q{
\set n :n + 1
INSERT INTO pairs SELECT snowflake_nextvals(150), snowflake_nextval(), :client_id, :n * 1000 + generate_series(1, 150);
});
sub is_sound_under_load
{
	my ($what, $clients, $times) = @_;

	value_of($node, 'TRUNCATE ids, pairs');
	run_scripts($what, $clients, "--transactions=$times", @many);
	is(value_of($node, 'SELECT count(*) FROM pairs WHERE a >= b'),
		0, "$what: snowflake_nextval() is larger than the id of snowflake_nextvals() in its row");
	value_of($node,
		'INSERT INTO ids SELECT unnest(ARRAY[a, b]), client, n FROM pairs');
	is_unique_and_increasing($what, 'ids');
	return;
}
is_sound_under_load('32 sessions', 32, 60);

# Clients note the instants before and after each call.
value_of($node, 'CREATE TABLE calls (before timestamptz, id bigint, after timestamptz, client int)');
sub is_of_its_time
{
	my ($what, $sequence_bits) = @_;
	my $shift = 10 + $sequence_bits;

	value_of($node, 'TRUNCATE calls');
	run_scripts($what, 8, '--transactions=50', q{
INSERT INTO calls SELECT clock_timestamp(), snowflake_nextval(), clock_timestamp(), :client_id FROM generate_series(1, 500);
});
	is( value_of($node,
			'SELECT count(*), count(DISTINCT id),'
			  . ' count(*) FILTER (WHERE snowflake_timestamp(id) > after),'
			  . " count(*) FILTER (WHERE snowflake_timestamp(id) < before - interval '1 ms')"
			  . ' FROM calls'),
		'200000|200000|0|0',
		"$what: an id is of the time of its call");
	is( value_of($node, qq{
WITH events AS (
  SELECT before AS at, 0 AS is_return, id >> $shift AS tick FROM calls
   UNION ALL
  SELECT after, 1, id >> $shift FROM calls)
SELECT count(*) FILTER (WHERE is_return = 0 AND tick < newest_returned)
  FROM (SELECT is_return, tick,
               max(tick) FILTER (WHERE is_return = 1) OVER (
                 ORDER BY at, is_return ROWS UNBOUNDED PRECEDING) AS newest_returned
          FROM events) AS o}),
		0,
		"$what: a call never gets an id of an earlier tick than a call that returned before");
	return;
}
is_of_its_time('8 sessions', 12);

# Run these tests again with a layout so narrow that all ids of every tick are
# issued.
start_afresh($node, "snowflake.layout = '41/5/5/8'", 'snowflake.block_size = 64');
is_sound_under_load('32 sessions that issue all ids of each tick', 32, 10);
is_of_its_time('8 sessions that issue all ids of each tick', 8);

start_afresh($node,
	"snowflake.layout = '41/5/5/8'",
	'snowflake.block_size = 64',
	'snowflake.sequence_start = random');
is_sound_under_load('32 sessions, sequences that start at random', 32, 10);
is_of_its_time('8 sessions, sequences that start at random', 8);

# ----- a turn for each session -----

# Sessions that wait for the next tick get about as many ids each, and together
# nearly all ids of the layout, although waits are cancelled all the time.  The
# test takes the highest rate of several windows of time, because the machine
# may be busy.
use constant {
	WAITING => 32,
	IDS_PER_MS => 256,
	WINDOW_MS => 200,
};
sub is_shared_out
{
	my ($block_size) = @_;
	my $what = WAITING . " sessions that wait, block_size $block_size";
	my $cancelled_sql = "$directory/cancelled_sql";

	start_afresh($node,
		"snowflake.layout = '41/5/5/8'",
		"snowflake.block_size = $block_size",
		'synchronous_commit = off');
	value_of($node, 'DROP TABLE IF EXISTS shares;'
		  . 'CREATE TABLE shares (client int, count int, at timestamptz)');
	unlink $cancelled_sql;
	PostgreSQL::Test::Utils::append_to_file($cancelled_sql,
		"SET statement_timeout = 3;\n"
		  . "SELECT count(snowflake_nextval()) FROM generate_series(1, 2000);\n" x 1000);
	my $cancelled = IPC::Run::start(
		[ 'psql', '-XAtq', '-f', $cancelled_sql, $node->connstr('postgres') ],
		'<', \undef, '>', "$cancelled_sql.out", '2>', "$cancelled_sql.err");
	run_scripts($what, WAITING, '--time=4',
		'INSERT INTO shares SELECT :client_id, count(snowflake_nextval()), clock_timestamp() FROM generate_series(1, 256);'
	);
	$cancelled->kill_kill;
	my $cancels = () =
	  PostgreSQL::Test::Utils::slurp_file("$cancelled_sql.err") =~
	  /canceling statement due to statement timeout/g;
	cmp_ok($cancels, '>', 10, "$what: $cancels waits of another session are cancelled");

	my ($clients, $least, $mean) = split /\|/, value_of($node,
		'SELECT count(*), min(ids), avg(ids) FROM (SELECT sum(count) AS ids FROM shares GROUP BY client) AS s');
	note("$what: at least $least each, $mean on average");
	is($clients, WAITING, "$what: all sessions get ids");
	cmp_ok($least, '>', $mean / 2, "$what: no session gets less than half its share");
	my $rate = value_of($node,
		'SELECT max(ids) / ' . WINDOW_MS . ' FROM (SELECT sum(count) AS ids FROM shares '
		  . 'GROUP BY floor(extract(epoch FROM at) * 1000 / ' . WINDOW_MS . ')) AS windows');
	note("$what: $rate ids per ms");
	cmp_ok($rate, '>', 0.9 * IDS_PER_MS - 256 / WINDOW_MS,
		"$what: together the sessions get nearly all ids of the layout");
	return;
}
is_shared_out($_) for 1, 64;

# The block size changes all the time.
start_afresh($node, "snowflake.layout = '41/5/5/8'");
value_of($node, 'TRUNCATE ids, pairs');
my $script = "$directory/changing";
PostgreSQL::Test::Utils::append_to_file($script, $many[1] . $many[0]);
my $log = '';
my $load = IPC::Run::start(
	[
		$node->installed_command('pgbench'), '--no-vacuum', '--client=16',
		'--jobs=2', '--time=4', '--define=n=0', "--file=$script",
		$node->connstr('postgres')
	],
	'<', \undef, '>', \$log, '2>&1',
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
my $changes = 0;
while ($load->pumpable)
{
	reload_with('block_size', (64, 1, 16)[ $changes++ % 3 ]);
	$load->pump_nb;
	usleep(20_000);
}
ok($load->finish, "block_size changed $changes times under load") or diag($log);
is_unique_and_increasing('a changing block_size', 'ids');
reset_parameters();

# ----- crashes -----

# Crashes the server while clients receive ids.  Returns the ids that the
# clients have received.
sub take_under_load
{
	my ($what, $crash) = @_;
	my $statements = "$directory/statements";
	my (@out, @load);

	unlink $statements;
	PostgreSQL::Test::Utils::append_to_file($statements,
		"SELECT snowflake_nextval() FROM generate_series(1, 50);\n" x 20_000);
	for my $number (0 .. 7)
	{
		my $file = "$directory/received$number";
		push @load,
		  IPC::Run::start(
			[
				'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $statements,
				$node->connstr('postgres')
			],
			'<', \undef, '>', $file, '2>', "$directory/errors$number");
	}
	for my $number (0 .. 7)
	{
		usleep(5_000) until -s "$directory/received$number";
	}
	$crash->();
	$_->finish for @load;

	# The last line may have been cut off.
	for my $number (0 .. 7)
	{
		push @out, grep { s/\n\z// }
		  do { open my $fh, '<', "$directory/received$number" or die $!; <$fh> };
	}
	cmp_ok(scalar @out, '>', 8, "$what: ids were received");
	return @out;
}

start_afresh($node, 'snowflake.block_size = 64');
my @received = take_under_load(
	'SIGKILL',
	sub {
		my $offset = -s $node->logfile;
		my $pid = value_of($node,
			"SELECT pid FROM pg_stat_activity WHERE query ~ 'nextval' AND pid <> pg_backend_pid() LIMIT 1");
		is(kill('KILL', $pid), 1, "killed backend $pid");
		$node->wait_for_log(
			qr/all server processes terminated; reinitializing/, $offset);
	});
push @received, scalar first_id($node);
push @received, take_under_load('immediate stop',
	sub { $node->stop('immediate'); $node->start });
push @received, split /\n/,
  value_of($node, 'SELECT snowflake_nextval() FROM generate_series(1, 5000)');
is(scalar(uniq @received), scalar @received,
	'no id comes twice, across a crash and an immediate stop');

$node->stop;
done_testing();
