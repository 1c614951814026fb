# snowflake_horizon(): a reader by id that misses no row.  First prepared
# transactions, sessions that end, restarts, crashes, promotions, leases; then 64
# writers of all kinds, and readers that poll: by the horizon, by the largest
# id, and by the clock.
#
# HORIZON_SECONDS is how long the 64 writers write, 20 by default; a few more
# write for half as long.
#
# also with: snowflake.block_size = 64
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
use Time::HiRes qw(sleep time);

use constant { WRITERS => 64, VICTIMS => 8 };
my $seconds = $ENV{HORIZON_SECONDS} // 20;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node(
	'main',
	'max_connections = 150',
	'max_prepared_transactions = 80',
	'max_worker_processes = 40',
	'max_parallel_workers = 32',
	"include 'case.conf'");
configure($node);
start_server($node, 0);
value_of($node, 'CREATE EXTENSION snowflake');
value_of($node, 'CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), what text)');

sub horizon
{
	return value_of($node, 'SELECT snowflake_horizon()');
}

# Inserts a row.  Returns its id.
sub insert
{
	my ($session) = @_;
	return $session->value("INSERT INTO outbox (what) VALUES ('one') RETURNING id");
}

# ----- prepared transactions -----

my ($anna, $bert) = map { SnowflakeSession->new($node) } 1 .. 2;
my $prepared_xact = 'SELECT transaction FROM pg_prepared_xacts';
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

# The transaction's place among the prepared ones is another's by turns.
$anna->rows('BEGIN');
my $oldest = insert($anna);
$anna->rows("PREPARE TRANSACTION 'oldest'");
for my $n (1 .. 5)
{
	$bert->rows('BEGIN');
	insert($bert);
	$bert->rows("PREPARE TRANSACTION 'b'");
	$bert->rows('CREATE TABLE IF NOT EXISTS without_id ()');
	$bert->rows('BEGIN');
	$bert->rows('INSERT INTO without_id DEFAULT VALUES');
	$bert->rows("PREPARE TRANSACTION 'c'");
	$bert->rows("ROLLBACK PREPARED 'b'");
	$bert->rows("ROLLBACK PREPARED 'c'");
}
cmp_ok(horizon(), '<=', $oldest, 'the oldest of several prepared transactions holds the horizon');

# After a restart nobody knows the ids of a prepared transaction.
for my $how (qw(fast immediate))
{
	my $before = horizon() if $how eq 'fast';

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
cmp_ok(horizon(), '>', $id, 'the horizon goes on');

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

# A block ends with its transaction: no id comes below the horizon.
($anna, $bert) = map { SnowflakeSession->new($node) } 1 .. 2;
my $below = 0;
for my $n (1 .. 300)
{
	$anna->rows('SELECT snowflake_nextval() FROM generate_series(1, 5)');
	my $horizon = $bert->value('SELECT max(snowflake_horizon()) FROM (SELECT snowflake_nextval()) AS s');
	$horizon = $bert->value('SELECT snowflake_horizon()');
	$below++ if $anna->value('SELECT snowflake_nextval()') < $horizon;
}
is($below, 0, 'no id of a later transaction is below the horizon');
$_->quit for $anna, $bert;

# ----- restarts, crashes and a clock that steps back -----

# After the server was stopped, the horizon and the next id are not smaller.
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
restart_keeps_horizon('crash', 'immediate', 0);
# Nothing flushes WAL here but the horizon.
configure($node, 'synchronous_commit = off', 'wal_writer_delay = 10s', 'snowflake.high_water_interval = 10ms');
$node->stop;
start_server($node);
for my $n (1 .. 3)
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
configure($node);
$node->stop;
start_server($node, 12);

# ----- a promotion -----

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf',
	"shared_preload_libraries = 'snowflake'\nsnowflake.worker_id = 7\nmax_prepared_transactions = 10\n");
$primary->start;
value_of($primary, 'CREATE EXTENSION snowflake; CREATE TABLE outbox (id bigint DEFAULT snowflake_nextval())');
my $standby = standby_node($primary, 'standby');
$standby->start;
value_of($primary, "BEGIN; INSERT INTO outbox DEFAULT VALUES; PREPARE TRANSACTION 'a'");
value_of($primary, 'INSERT INTO outbox DEFAULT VALUES');
my $on_primary = value_of($primary, 'SELECT snowflake_horizon()');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my ($state, undef, $hint) = sqlstate_of($standby, 'SELECT snowflake_horizon()');
is($state, '25006', 'a standby has no horizon');
like($hint, qr/primary/, 'a standby: the hint names the primary');
$primary->stop('immediate');
$standby->promote;
is((sqlstate_of($standby, 'SELECT snowflake_horizon()'))[0],
	'55000', 'after a promotion there is no horizon while a prepared transaction is left');
value_of($standby, "COMMIT PREPARED 'a'");
cmp_ok(value_of($standby, 'SELECT snowflake_horizon()'),
	'>=', $on_primary, "after a promotion the horizon is not behind the old primary's");
is(value_of($standby, 'SELECT count(*) FROM outbox WHERE id < snowflake_horizon()'),
	2, 'after a promotion all rows are below the horizon');
$standby->stop;

# ----- a lease -----

# A lease ends and another begins while a transaction is open.
my $registry = registry_node('registry');
my $leased = leased_node('leased', $registry);
$leased->start;
first_id($leased);
my $session = SnowflakeSession->new($leased);
my $last = 0;
sub goes_on_to
{
	my ($what) = @_;
	my $horizon = value_of($leased, 'SELECT snowflake_horizon()');

	cmp_ok($horizon, '>=', $last, "the horizon does not go back $what");
	$last = $horizon;
	return;
}
goes_on_to('before the transaction');
$session->rows('BEGIN');
$id = $session->value('SELECT snowflake_nextval()');
goes_on_to('in the transaction');
$registry->stop;
ok(wait_for(sub { (sqlstate_of($leased, 'SELECT snowflake_nextval()'))[0] eq '55000' }),
	'the lease ends');
goes_on_to('when the lease ends');
$registry->start;
my $of_new_lease = first_id($leased);
goes_on_to('under a new lease');
cmp_ok($last, '<=', $id, 'the transaction holds the horizon over the change of the lease');
$session->rows('COMMIT');
goes_on_to('after the transaction');
cmp_ok($last, '>', $of_new_lease, 'the horizon goes on under the new lease');
$leased->stop;
$registry->stop;

# ----- writers and readers -----

# Each kind of writer takes ids, sleeps, and ends its transaction.
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
	given => q{
BEGIN;
SELECT snowflake_nextval() AS given \gset
\sleep :ms ms
INSERT INTO outbox VALUES (:given, 'given');
COMMIT;
},
	rolled_back => q{
BEGIN;
INSERT INTO outbox (what) VALUES ('rolled back');
\sleep :ms ms
ROLLBACK;
},
	savepoint => q{
BEGIN;
SAVEPOINT s;
INSERT INTO outbox (what) VALUES ('rolled back');
\sleep :ms ms
ROLLBACK TO s;
INSERT INTO outbox (what) VALUES ('savepoint');
\sleep :ms ms
COMMIT;
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
},
	cursor => q{
BEGIN;
DECLARE ids CURSOR FOR SELECT snowflake_nextvals(3);
MOVE 2 FROM ids;
\sleep :ms ms
FETCH 1 FROM ids \gset
INSERT INTO outbox VALUES (:snowflake_nextvals, 'cursor');
\sleep :ms ms
COMMIT;
},
	procedure => q{
CALL commit_often(:ms);
},
	parallel => q{
BEGIN;
CREATE TABLE made:client_id AS SELECT snowflake_nextval() AS id FROM numbers;
\sleep :ms ms
INSERT INTO outbox SELECT id, 'parallel' FROM made:client_id;
DROP TABLE made:client_id;
COMMIT;
});

# A reader goes on where it was, up to an id.
my %bounds = (
	horizon => 'snowflake_horizon()',
	horizon_too => 'snowflake_horizon()',
	largest_id => '(SELECT max(id) + 1 FROM outbox)',
	clock => "snowflake_min_id(clock_timestamp() - interval '100 ms')");

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
CREATE TABLE numbers AS SELECT generate_series(1, 300) AS n;
ALTER TABLE numbers SET (parallel_workers = 2);
ANALYZE numbers;
CREATE PROCEDURE commit_often(ms float8) LANGUAGE plpgsql AS \$\$
BEGIN
  FOR i IN 1 .. 3 LOOP
    INSERT INTO outbox (what) VALUES ('procedure');
    PERFORM pg_sleep(ms / 1000);
    COMMIT;
  END LOOP;
END
\$\$;
@reader_sql});

# Starts pgbench's clients with all kinds of writers, or with some.
sub start_writers
{
	my ($name, $clients, $duration_s, $longest_ms, @kinds) = @_;
	my @files;

	for my $kind (@kinds)
	{
		push @files, "--file=$directory/$kind";
		next if -e "$directory/$kind";
		PostgreSQL::Test::Utils::append_to_file("$directory/$kind",
			"\\set ms random_exponential(1, :longest, 5)\n$writers{$kind}");
	}
	my $log = "$directory/$name.log";
	local $ENV{PGOPTIONS} = '-c parallel_setup_cost=0 -c parallel_tuple_cost=0'
	  . ' -c parallel_leader_participation=off -c synchronous_commit=off';
	return IPC::Run::start(
		[
			$node->installed_command('pgbench'), '--no-vacuum',
			"--client=$clients", '--jobs=2', "--time=$duration_s",
			"--define=longest=$longest_ms", @files,
			$node->connstr('postgres') . " application_name=$name"
		],
		'<', \undef, '>', $log, '2>&1');
}

my %readers = map {
	my $reader = $_;
	my $run = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-c', "CALL read_by_$reader()", $node->connstr('postgres') ],
		'<', \undef, '>', "$directory/$reader.out", '2>', "$directory/$reader.err");
	($reader => $run);
} sort keys %bounds;

my $writers = start_writers('writers', WRITERS, $seconds, 400, sort keys %writers);
my $deadline = time + $seconds;
my $kills = 0;
while (time < $deadline)
{
	my $victims = start_writers('victims', VICTIMS, 1, 400, qw(one savepoint parallel));

	for (1 .. VICTIMS / 2)
	{
		sleep 0.2;
		$kills += value_of($node, q{
SELECT count(pg_terminate_backend(pid))
  FROM (SELECT pid FROM pg_stat_activity
         WHERE application_name = 'victims' AND backend_type = 'client backend' AND xact_start IS NOT NULL
         ORDER BY random() LIMIT 1) AS s});
	}
	$victims->finish;
}
ok($writers->finish, 'the writers succeed')
  or diag(PostgreSQL::Test::Utils::slurp_file("$directory/writers.log"));

# With few writers and short sleeps, every transaction is the oldest for a while.
for my $kinds ([ sort keys %writers ], ['prepared'])
{
	ok(start_writers('few', 3, 1 + int($seconds / 4), 10, @$kinds)->finish,
		'a few writers succeed: ' . @$kinds . ' kinds')
	  or diag(PostgreSQL::Test::Utils::slurp_file("$directory/few.log"));
}
value_of($node, 'INSERT INTO stop DEFAULT VALUES');
for my $reader (sort keys %readers)
{
	ok($readers{$reader}->finish, "the reader by $reader succeeds")
	  or diag(PostgreSQL::Test::Utils::slurp_file("$directory/$reader.err"));
}
cmp_ok($kills, '>', VICTIMS, "$kills sessions are terminated in a transaction");
is( value_of($node, 'SELECT count(DISTINCT what) FROM outbox'),
	scalar(keys %writers) - 1,
	'all kinds of writers have written');
my $count = value_of($node, 'SELECT count(*) FROM outbox');
my %missed = map {
	($_ => value_of($node, "SELECT count(*) FROM outbox WHERE NOT EXISTS (SELECT FROM read_by_$_ AS r WHERE r.id = outbox.id)"))
} keys %bounds;
note("$count rows; missed: " . join(', ', map { "$_ $missed{$_}" } sort keys %missed));
is($missed{horizon}, 0, "a reader by the horizon misses none of $count rows");
is($missed{horizon_too}, 0, "another reader by the horizon misses none");
cmp_ok($missed{largest_id}, '>', 0, "a reader by the largest id misses $missed{largest_id}");
cmp_ok($missed{clock}, '>', 0, "a reader by the clock misses $missed{clock}");
is(value_of($node, 'SELECT count(*) FROM snowflake_stat_backend WHERE horizon IS NOT NULL'),
	0, 'afterwards nothing holds the horizon');

$node->stop;
done_testing();
