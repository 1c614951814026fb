# A reader that goes by snowflake_horizon() misses no row.  The horizon of the
# server and of a table over prepared transactions, sessions that end, restarts,
# crashes, other worker ids and a promotion, and when a session is slow between two
# steps.  sql/horizon.sql shows the horizon of one session, specs/horizon_*.spec the
# order of statements, and all/ids_horizon_readers has random writers.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(sleep);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node(
	'main',
	'max_connections = 150',
	'max_prepared_transactions = 80',
	'wal_level = replica',
	'max_wal_senders = 5',
	'restart_after_crash = on',
	"include 'case.conf'");
configure($node);
start_server($node, 3);
value_of($node, 'CREATE EXTENSION snowflake');
cmp_ok(horizon(), '>', 0, 'a new cluster has a horizon before its first id');
restart_keeps_horizon('crash before the first id, clock behind', 'immediate', 0);
value_of($node, 'CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), what text)');
value_of($node, 'CREATE TABLE orders (id bigint DEFAULT snowflake_nextval())');

sub horizon
{
	my ($of) = @_;
	return value_of($of // $node, 'SELECT snowflake_horizon()');
}

sub horizon_of
{
	my ($table, $of) = @_;
	return value_of($of // $node, "SELECT snowflake_horizon('$table')");
}

# Inserts a row.  Returns its id.
sub insert
{
	my ($session) = @_;
	return $session->value("INSERT INTO outbox (what) VALUES ('one') RETURNING id");
}

# Restarts the server with other parameters.
sub restart_with
{
	my ($clock_s, @settings) = @_;

	configure($node, @settings);
	$node->stop;
	start_server($node, $clock_s);
	return;
}

# ----- prepared transactions -----

my ($anna, $bert) = map { SnowflakeSession->new($node) } 1 .. 2;
for my $end (qw(COMMIT ROLLBACK))
{
	$anna->rows('BEGIN');
	my $id = insert($anna);
	$anna->rows("PREPARE TRANSACTION 'a'");
	my $later = insert($anna);
	cmp_ok(horizon(), '<=', $id, "a prepared transaction holds the horizon until $end");
	cmp_ok(horizon_of('outbox'), '<=', $id, "a prepared transaction holds its table's horizon until $end");
	cmp_ok(horizon_of('orders'), '>', $later, 'a prepared transaction does not hold the horizon of another table');
	is( value_of($node, q{SELECT pid IS NULL, gid, xact_start < now() FROM snowflake_stat_backend('outbox') AS b JOIN pg_prepared_xacts ON transaction = prepared_xid}),
		't|a|t',
		'snowflake_stat_backend() shows which prepared transaction holds the horizon of a table');
	$bert->rows("$end PREPARED 'a'");
	cmp_ok(horizon(), '>', $later, "$end PREPARED lets the horizon go on");
	cmp_ok(horizon_of('outbox'), '>', $later, "$end PREPARED lets the table's horizon go on");
}

# Prepared transactions with and without ids take one another's slots.
$anna->rows('BEGIN');
my $oldest = insert($anna);
$anna->rows("PREPARE TRANSACTION 'oldest'");
$bert->rows('CREATE TABLE without_id ()');
for my $n (1 .. 5)
{
	$bert->rows($_)
	  for 'BEGIN', 'INSERT INTO outbox DEFAULT VALUES', "PREPARE TRANSACTION 'b'",
	  'BEGIN', 'INSERT INTO without_id DEFAULT VALUES', "PREPARE TRANSACTION 'c'",
	  "ROLLBACK PREPARED 'b'", "ROLLBACK PREPARED 'c'";
}
cmp_ok(horizon(), '<=', $oldest, 'the oldest of several prepared transactions holds the horizon');

# After a restart nobody knows the ids of a prepared transaction.
for my $how (qw(fast immediate))
{
	$node->stop($how);
	start_server($node);
	my ($state, $message, $hint) = sqlstate_of($node, 'SELECT snowflake_horizon()');
	is($state, '55000', "$how stop: no horizon while a prepared transaction is left");
	like($message, qr/prepared before the first id since the server's start/, "$how stop: the error says why");
	like($hint, qr/COMMIT PREPARED.*pg_prepared_xacts/, "$how stop: the hint says what to do");
	is((sqlstate_of($node, q{SELECT snowflake_horizon('outbox')}))[0],
		'55000', "$how stop: a table that the prepared transaction has locked has no horizon");
	cmp_ok(horizon_of('orders'), '>', $oldest, "$how stop: a table that it has not locked has one");
	is( value_of($node, q{SELECT string_agg(gid, ' '), count(b.horizon) FROM snowflake_stat_backend() AS b JOIN pg_prepared_xacts ON transaction = prepared_xid}),
		'oldest|0',
		"$how stop: snowflake_stat_backend() shows the prepared transaction");
	cmp_ok(value_of($node, 'SELECT snowflake_nextval()'), '>', $oldest, "$how stop: ids are issued");
}
($anna, $bert) = map { SnowflakeSession->new($node) } 1 .. 2;
$anna->rows('BEGIN');
my $id = insert($anna);
$anna->rows("PREPARE TRANSACTION 'new'");
value_of($node, "COMMIT PREPARED 'oldest'");
cmp_ok(horizon(), '>', $oldest, 'COMMIT PREPARED ends the error');
cmp_ok(horizon(), '<=', $id, 'a transaction prepared since then holds the horizon');
value_of($node, "COMMIT PREPARED 'new'");
cmp_ok(horizon(), '>', $id, 'COMMIT PREPARED of a transaction prepared since then lets the horizon go on');

# ----- sessions that stop between two steps -----

my $slow = "$directory/slow";
my $size = value_of($node, q{SELECT size FROM pg_shmem_allocations WHERE name = 'snowflake'});
my $library = build_with_headers('horizon');
value_of($node, "CREATE FUNCTION $_ AS '$library' LANGUAGE C STRICT")
  for 'stop_before_end(text) RETURNS void',
  'stop_with_lock(text, bigint) RETURNS void',
  'read_stamp(bigint) RETURNS bigint', 'write_hold(bigint, bigint) RETURNS void';

# Builds a library from its source in lib/ with the headers of the server and of
# the library under test.  Returns its path.
sub build_with_headers
{
	my ($name) = @_;
	my $headers = $node->config_data('--includedir-server');

	# script/test copies the server without its headers, and the sources to build/.
	$headers =~ s{^\Q$ENV{TESTDIR}\E/postgresql}{} unless -d $headers;
	my ($sources) = grep { -d } map { "$FindBin::RealBin/../$_" } 'build/src', 'src';
	system_or_bail('cc', '-shared', '-fPIC', '-O1', '-fvisibility=hidden',
		"-I$sources", "-I$headers", '-o', "$directory/$name.so",
		"$FindBin::RealBin/lib/$name.c");
	return "$directory/$name.so";
}

# Starts a statement in which a session stops, and waits until it has.
sub stop_in
{
	my ($session, $sql) = @_;

	$session->ask($sql);
	wait_for(sub { -e "$slow.stopped" }) or die "\"$sql\" does not stop\n";
	return;
}

# Lets a session go on that has stopped.
sub go_on
{
	my ($session) = @_;

	unlink "$slow.stopped";
	is(($session->answer)[0], '', 'the session that stopped goes on');
	return;
}

# Waits until a session waits for the lock of the library's shared memory.
sub wait_for_lock
{
	my ($session) = @_;

	wait_for(
		sub {
			value_of($node,
				"SELECT wait_event_type = 'LWLock' AND wait_event = 'snowflake' FROM pg_stat_activity WHERE pid = $session->{pid}"
			) eq 't';
		}) or die "session $session->{pid} does not wait for the lock\n";
	return;
}

for my $end ('COMMIT', q{PREPARE TRANSACTION 'slow'})
{
	my $session = SnowflakeSession->new($node);

	$session->rows('BEGIN');
	$session->rows("SELECT stop_before_end('$slow')");
	my $id = insert($session);
	stop_in($session, $end);
	cmp_ok(horizon(), '<=', $id, "$end: the horizon waits until others can see the end");
	cmp_ok(horizon_of('outbox'), '<=', $id, "$end: the table's horizon waits until others can see the end");
	go_on($session);
	$session->rows(q{COMMIT PREPARED 'slow'}) if $end =~ /PREPARE/;
	cmp_ok(horizon(), '>', $id, "$end: the horizon goes on");
	$session->quit;
}

# While the lock is taken, a PREPARE cannot give its hold to the prepared
# transaction, which has the locks already.
{
	my ($locker, $preparer, $reader) = map { SnowflakeSession->new($node) } 1 .. 3;

	$preparer->rows('BEGIN');
	my $id = insert($preparer);
	stop_in($locker, "SELECT stop_with_lock('$slow', $size)");
	$preparer->ask(q{PREPARE TRANSACTION 'slow'});
	wait_for_lock($preparer);
	cmp_ok(horizon(), '<=', $id, 'the session holds the horizon until the prepared transaction does');
	$reader->ask(q{SELECT snowflake_horizon('outbox')});
	wait_for_lock($reader);
	go_on($locker);
	is(($preparer->answer)[0], '', 'the PREPARE succeeds');
	cmp_ok(($reader->answer)[1], '<=', $id, "the session holds the table's horizon until the prepared transaction does");
	cmp_ok(horizon(), '<=', $id, 'then the prepared transaction holds the horizon');
	cmp_ok(horizon_of('outbox'), '<=', $id, "then the prepared transaction holds the table's horizon");
	$reader->rows(q{COMMIT PREPARED 'slow'});
	cmp_ok(horizon(), '>', $id, 'and lets it go on');
	$_->quit for $locker, $preparer, $reader;
}

# A session writes its hold after a reader has read larger ids.
{
	my $session = SnowflakeSession->new($node);

	$session->rows('SELECT snowflake_nextval()');
	my $stamp = value_of($node, "SELECT read_stamp($size)");
	value_of($node, 'SELECT snowflake_nextval()');
	my $before = horizon();
	$session->rows("SELECT write_hold($size, $stamp + 1)");
	is( value_of($node, "SELECT horizon < $before FROM snowflake_stat_backend() WHERE pid = $session->{pid}"),
		't', 'a late hold is below the horizon that was returned');
	is(horizon(), $before, 'and does not move the horizon back');
	$session->rows("SELECT write_hold($size, 0)");
	$session->quit;
}

# ----- sessions that end -----

$anna->rows('BEGIN');
$id = insert($anna);
cmp_ok(horizon(), '<=', $id, 'an open transaction holds the horizon');
is( value_of($node, 'SELECT pid FROM snowflake_stat_backend() WHERE horizon = snowflake_horizon()'),
	$anna->{pid},
	'snowflake_stat_backend() shows which session holds the horizon');
$anna->terminate;
cmp_ok(horizon(), '>', $id, 'a terminated session lets the horizon go on');
$bert->rows('BEGIN');
$id = insert($bert);
$bert->{psql}{run}->kill_kill;
ok(wait_for(sub { horizon() > $id }), 'a session whose client has gone lets the horizon go on');

# ----- restarts, crashes and a clock that steps back -----

# Tests that neither the horizon nor the next id is smaller after a stop and a
# start than the horizon was before.
sub restart_keeps_horizon
{
	my ($what, $how, $clock_s) = @_;
	my $before = horizon();

	$node->stop($how);
	start_server($node, $clock_s);
	cmp_ok(horizon(), '>=', $before, "$what: the horizon does not go back");
	cmp_ok(first_id($node), '>=', $before, "$what: no id is below the horizon");
	return;
}

restart_keeps_horizon('restart', 'fast', 0);

# With these parameters only snowflake_horizon() flushes WAL before the crash.
restart_with(0, 'synchronous_commit = off', 'wal_writer_delay = 10s');
for my $n (1 .. 2)
{
	value_of($node, 'SELECT snowflake_nextval()');
	sleep 0.6;    # until the mark has passed
	value_of($node, 'SELECT snowflake_nextval()');
	restart_keeps_horizon("crash, clock behind, $n", 'immediate', -0.5 * $n);
}
set_clock($node, 10);
value_of($node, 'SELECT snowflake_nextval()');
my $ahead = horizon();
set_clock($node, 7);
cmp_ok(horizon(), '>=', $ahead, 'a clock that steps back does not move the horizon');
restart_with(12);

# ----- other worker ids -----

# A reader that has read all rows, by both horizons, goes on after a start with
# another worker id.  The clock is behind by up to clock_tolerance.
sub position
{
	return (sort { $b <=> $a } horizon(), horizon_of('outbox'))[0];
}

my $offset_s = 12;
my $worker_id = 7;
for my $case ([ 'fast', 0 ], [ 'immediate', 3 ], [ 'fast', 5 ], [ 'immediate', 5 ])
{
	my ($how, $behind_s) = @$case;
	my $what = "$how stop, another worker id, clock $behind_s s behind";

	value_of($node, 'INSERT INTO outbox DEFAULT VALUES') for 1 .. 2;
	my $position = position();
	$offset_s -= $behind_s;
	configure($node, 'snowflake.worker_id = ' . ++$worker_id);
	$node->stop($how);
	start_server($node, $offset_s);
	cmp_ok(horizon_of('outbox'), '>=', $position, "$what: the horizon of a table does not go back before the first id");
	cmp_ok(horizon(), '>=', $position, "$what: the horizon does not go back before the first id");
	value_of($node, 'INSERT INTO outbox DEFAULT VALUES');
	is(value_of($node, "SELECT count(*), snowflake_worker_id(max(id)) FROM outbox WHERE id >= $position"),
		"1|$worker_id", "$what: no row is below the position");
	cmp_ok(position(), '>', value_of($node, 'SELECT max(id) FROM outbox'), "$what: the row is below the horizon");
}

# With a clock that is farther behind, the reader can see that the horizon is
# below its position.
my $position = position();
configure($node, 'snowflake.worker_id = 20');
$node->stop;
start_server($node, $offset_s - 600);
for my $when ('before', 'after')
{
	for my $horizon (horizon(), horizon_of('outbox'))
	{
		cmp_ok($horizon, '<', $position, "clock 10 min behind, $when the first id: the horizon is below the position");
		cmp_ok($horizon, '>', 0, "clock 10 min behind, $when the first id: the horizon is not 0");
	}
	first_id($node);
}
restart_with($offset_s + 1);

# ----- a promotion -----

# The standby has another worker id, and its clock is behind.
my $standby = standby_node($node, 'standby');
configure($standby, 'snowflake.worker_id = 21');
start_server($standby, $offset_s - 3.8);
value_of($node, "TRUNCATE outbox; BEGIN; INSERT INTO outbox DEFAULT VALUES; PREPARE TRANSACTION 'a'");
value_of($node, 'INSERT INTO outbox DEFAULT VALUES');
my $on_primary = horizon();
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
my ($state, undef, $hint) = sqlstate_of($standby, 'SELECT snowflake_horizon()');
is($state, '25006', 'a standby has no horizon');
like($hint, qr/primary/, 'a standby: the hint names the primary');
$node->stop('immediate');
$standby->promote;
is((sqlstate_of($standby, 'SELECT snowflake_horizon()'))[0],
	'55000', 'after a promotion there is no horizon while a prepared transaction is left');
value_of($standby, "COMMIT PREPARED 'a'");
cmp_ok(horizon($standby), '>=', $on_primary,
	"after a promotion the horizon is not behind the old primary's");
is(value_of($standby, 'SELECT count(*) FROM outbox WHERE id < snowflake_horizon()'),
	2, 'after a promotion all rows are below the horizon');
is( value_of($standby, 'INSERT INTO outbox DEFAULT VALUES RETURNING snowflake_worker_id(id)'),
	21, 'after a promotion ids have the new worker id');
is( value_of($standby, "SELECT count(*) FROM outbox WHERE id >= $on_primary AND id < snowflake_horizon('outbox')"),
	3, 'after a promotion no row that is left to read is below the position');
$standby->stop;

done_testing();
