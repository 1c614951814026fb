# A reader that goes by snowflake_horizon() misses no row.  First the horizon
# over prepared transactions, sessions that end, restarts, crashes and leases; then writers of all kinds with two readers, of which the one that goes
# by the largest id misses rows; then a promotion.  sql/horizon.sql shows the
# horizon of one session, and specs/horizon_readers.spec the order of steps.
#
# HORIZON_SECONDS is how long 64 writers write, 10 by default; a few more write
# for half as long.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep);

my $seconds = $ENV{HORIZON_SECONDS} // 10;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node(
	'main',
	'max_connections = 150',
	'max_prepared_transactions = 80',
	'wal_level = replica',
	'max_wal_senders = 5',
	"include 'case.conf'");
configure($node);
start_server($node, 0);
value_of($node, 'CREATE EXTENSION snowflake');
value_of($node, 'CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), what text)');

sub horizon
{
	my ($of) = @_;
	return value_of($of // $node, 'SELECT snowflake_horizon()');
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
	$bert->rows("$end PREPARED 'a'");
	cmp_ok(horizon(), '>', $later, "$end PREPARED lets the horizon go on");
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
	like($message, qr/prepared before the server's start/, "$how stop: the error says why");
	like($hint, qr/COMMIT PREPARED.*pg_prepared_xacts/, "$how stop: the hint says what to do");
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

# ----- sessions that end -----

$anna->rows('BEGIN');
$id = insert($anna);
cmp_ok(horizon(), '<=', $id, 'an open transaction holds the horizon');
is( value_of($node, 'SELECT pid FROM snowflake_stat_backend WHERE horizon = snowflake_horizon()'),
	$anna->{pid},
	'snowflake_stat_backend shows which session holds the horizon');
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
restart_with(0, 'synchronous_commit = off', 'wal_writer_delay = 10s', 'snowflake.high_water_interval = 10ms');
for my $n (1 .. 2)
{
	value_of($node, 'SELECT snowflake_nextval()');
	sleep 0.1;
	value_of($node, 'SELECT snowflake_nextval()');
	restart_keeps_horizon("crash, clock behind, $n", 'immediate', -0.5 * $n);
}
set_clock($node, 10);
value_of($node, 'SELECT snowflake_nextval()');
my $ahead = horizon();
set_clock($node, 7);
cmp_ok(horizon(), '>=', $ahead, 'a clock that steps back does not move the horizon');
restart_with(12);

# ----- a lease -----

# A lease ends and another begins while a transaction is open.
my $registry = PostgreSQL::Test::Cluster->new('registry');
$registry->init;
$registry->start;
make_registry($registry);
my $leased = leased_node('leased', $registry);
$leased->start;
first_id($leased);
my $session = SnowflakeSession->new($leased);
$session->rows('BEGIN');
$id = $session->value('SELECT snowflake_nextval()');
my @horizons = horizon($leased);
$registry->stop;
ok(wait_for(sub { (sqlstate_of($leased, 'SELECT snowflake_nextval()'))[0] eq '55000' }),
	'the lease ends');
push @horizons, horizon($leased);
$registry->start;
my $of_new_lease = first_id($leased);
push @horizons, horizon($leased);
cmp_ok($horizons[-1], '<=', $id, 'the transaction holds the horizon over the change of the lease');
$session->rows('COMMIT');
push @horizons, horizon($leased);
cmp_ok($horizons[-1], '>', $of_new_lease, 'the horizon goes on under the new lease');
is_deeply(\@horizons, [ sort { $a <=> $b } @horizons ], 'the horizon never goes back');
$leased->stop;
$registry->stop;

# ----- writers and readers -----

# Each kind of writer takes ids, sleeps, and ends its transaction.
# sql/horizon.sql has more kinds.
my %writers = (
	one => q{
BEGIN;
INSERT INTO outbox (what) VALUES ('one');
\sleep :ms ms
COMMIT;
},
	many => q{
INSERT INTO outbox (what) SELECT 'many' FROM generate_series(1, 30);
\sleep :ms ms
},
	prepared => q{
BEGIN;
INSERT INTO outbox (what) VALUES ('prepared');
\sleep :ms ms
PREPARE TRANSACTION 'p:client_id';
\sleep :ms ms
COMMIT PREPARED 'p:client_id';
BEGIN;
INSERT INTO outbox (what) VALUES ('rolled back');
PREPARE TRANSACTION 'p:client_id';
\sleep :ms ms
ROLLBACK PREPARED 'p:client_id';
});

# A reader goes on where it was, up to an id.
my %bounds = (
	horizon => 'snowflake_horizon()',
	largest_id => '(SELECT max(id) + 1 FROM outbox)');

my @reader_sql = map { qq{
CREATE UNLOGGED TABLE read_by_$_ (id bigint PRIMARY KEY);
CREATE PROCEDURE read_by_$_() LANGUAGE plpgsql AS \$\$
DECLARE
  position bigint := 0;
  bound bigint;
  is_last boolean := false;
BEGIN
  LOOP
    is_last := is_last OR EXISTS (SELECT FROM stop);
    bound := $bounds{$_};
    IF bound < position THEN
      RAISE 'the bound goes back from % to %', position, bound;
    END IF;
    INSERT INTO read_by_$_ SELECT id FROM outbox WHERE id >= position AND id < bound;
    COMMIT;
    EXIT WHEN is_last;
    position := bound;
    PERFORM pg_sleep(0.002);
  END LOOP;
END
\$\$;
} } sort keys %bounds;
value_of($node, qq{
TRUNCATE outbox;
CREATE TABLE stop ();
@reader_sql});

# Starts pgbench's clients with some kinds of writers.
sub start_writers
{
	my ($name, $clients, $duration_s, $longest_ms, @kinds) = @_;
	my @files;

	for my $kind (@kinds)
	{
		push @files, "--file=$directory/$kind";
		next if -e "$directory/$kind";
		append_to_file("$directory/$kind",
			"\\set ms random_exponential(1, :longest, 5)\n$writers{$kind}");
	}
	local $ENV{PGOPTIONS} = '-c synchronous_commit=off';
	return IPC::Run::start(
		[
			$node->installed_command('pgbench'), '--no-vacuum',
			"--client=$clients", '--jobs=2', "--time=$duration_s",
			"--define=longest=$longest_ms", @files,
			$node->connstr('postgres') . " application_name=$name"
		],
		'<', \undef, '>', "$directory/$name.log", '2>&1');
}

# Tests that writers or a reader succeed.
sub succeeds
{
	my ($run, $name) = @_;

	ok($run->finish, "$name: no statement fails")
	  or diag(slurp_file("$directory/$name.log"));
	return;
}

my %readers = map {
	my $run = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-c', "CALL read_by_$_()", $node->connstr('postgres') ],
		'<', \undef, '>', "$directory/$_.log", '2>&1');
	($_ => $run);
} sort keys %bounds;

my @all_kinds = sort keys %writers;
succeeds(start_writers('writers', 64, $seconds, 400, @all_kinds), 'writers');

# With few writers and short sleeps, every transaction is the oldest for a while.
succeeds(start_writers('few', 3, 1 + int($seconds / 4), 10, @$_), 'few')
  for [@all_kinds], ['prepared'];
value_of($node, 'INSERT INTO stop DEFAULT VALUES');
succeeds($readers{$_}, $_) for sort keys %readers;
is( value_of($node, 'SELECT count(DISTINCT what) FROM outbox'),
	scalar(@all_kinds), 'all kinds of writers have written');
my %missed = map {
	($_ => value_of($node, "SELECT count(*) FROM outbox WHERE NOT EXISTS (SELECT FROM read_by_$_ AS r WHERE r.id = outbox.id)"))
} keys %bounds;
my $count = value_of($node, 'SELECT count(*) FROM outbox');
is($missed{horizon}, 0, "a reader by the horizon misses none of $count rows");
cmp_ok($missed{largest_id}, '>', 0, "a reader by the largest id misses $missed{largest_id}");
is(value_of($node, 'SELECT count(*) FROM snowflake_stat_backend WHERE horizon IS NOT NULL'),
	0, 'afterwards nothing holds the horizon');

# ----- a promotion -----

my $standby = standby_node($node, 'standby');
start_server($standby, 12);
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
$standby->stop;

done_testing();
