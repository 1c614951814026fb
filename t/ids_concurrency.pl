# Many sessions at once: no id comes twice, the ids of each session increase,
# and an id is larger than all ids that any session has received before.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('main', 'max_connections = 100', 'fsync = off',
	'snowflake.datacenter_id = 3');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');

# Has each of some clients run a script some number of times, and tests that no
# transaction fails.
sub run_clients
{
	my ($clients, $times, $script, $what) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script.sql';

	PostgreSQL::Test::Utils::append_to_file($file, $script);
	my ($stdout, $stderr) = PostgreSQL::Test::Utils::run_command(
		[
			'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2',
			"--transactions=$times", '--define=n=0', "--file=$file",
			$node->connstr('postgres')
		]);
	my $all = $clients * $times;
	like($stdout,
		qr{transactions actually processed: $all/$all}, "$what: all transactions are done");
	like($stdout, qr{number of failed transactions: 0 },
		"$what: no transaction failed");
	unlink $file;
	return;
}

# Tests that the ids of a table are of this node, and were issued since an
# instant.
sub is_of_this_run
{
	my ($table, $begin, $what) = @_;

	is( value_of($node,
			"SELECT count(*) FROM $table, snowflake_decode(id) AS d
			  WHERE (d.datacenter_id, d.worker_id) <> (3, 7)
				 OR d.issued_at NOT BETWEEN timestamptz '$begin' - interval '1 ms' AND clock_timestamp()"
		),
		'0',
		"$what: the ids are of this node and of the time of the run");
	return;
}

# 32 clients insert 2 million rows, 500 in a statement.  Each client numbers
# its rows.
value_of($node, 'CREATE TABLE ids (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int, n int)');
my $begin = value_of($node, 'SELECT clock_timestamp()');
run_clients(32, 125, q{
INSERT INTO ids (client, n) SELECT :client_id, :n * 500 + i FROM generate_series(1, 500) AS i;
\set n :n + 1
}, '32 clients');
is(value_of($node, 'SELECT count(*), count(DISTINCT id) FROM ids'),
	'2000000|2000000', '32 clients: 2,000,000 ids, and none comes twice');
is( value_of($node,
		'SELECT count(*), count(*) FILTER (WHERE id <= previous)
		   FROM (SELECT id, lag(id) OVER (PARTITION BY client ORDER BY n) AS previous FROM ids) AS o'
	),
	'2000000|0',
	"32 clients: the ids of each session increase");
is_of_this_run('ids', $begin, '32 clients');

# 16 clients insert 800,000 rows, each client in one statement.
value_of($node, 'CREATE TABLE bulk (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int, n int)');
$begin = value_of($node, 'SELECT clock_timestamp()');
run_clients(16, 1,
	'INSERT INTO bulk (client, n) SELECT :client_id, i FROM generate_series(1, 50000) AS i',
	'16 clients in bulk');
is(value_of($node, 'SELECT count(*), count(DISTINCT id) FROM bulk'),
	'800000|800000', '16 clients in bulk: 800,000 ids, and none comes twice');
is_of_this_run('bulk', $begin, '16 clients in bulk');

# 8 clients record the instants before and after each of their calls.  A call
# that begins after another one has returned gets a larger id.  With larger
# blocks that does not hold: ids of different blocks are in no order inside a
# tick.
my $block_size = value_of($node, "LOAD 'snowflake'; SHOW snowflake.block_size");
$node->append_conf('postgresql.conf', 'snowflake.block_size = 1');
$node->restart;
value_of($node, 'CREATE TABLE calls (before timestamptz, id bigint, after timestamptz)');
run_clients(8, 50, q{
INSERT INTO calls SELECT clock_timestamp(), snowflake_nextval(), clock_timestamp() FROM generate_series(1, 1000);
}, '8 clients that record the clock');
is( value_of($node, q{
WITH events AS (
  SELECT before AS at, 0 AS is_return, id FROM calls
   UNION ALL
  SELECT after, 1, id FROM calls)
SELECT count(*) FILTER (WHERE is_return = 0),
       count(*) FILTER (WHERE is_return = 0 AND id <= largest_returned)
  FROM (SELECT is_return, id,
               max(id) FILTER (WHERE is_return = 1) OVER (
                 ORDER BY at, is_return ROWS UNBOUNDED PRECEDING) AS largest_returned
          FROM events) AS o}),
	'400000|0',
	'an id is larger than all ids that were returned before its call began');
is( value_of($node,
		"SELECT count(*) FROM calls WHERE snowflake_timestamp(id) > after
			OR snowflake_timestamp(id) < before - interval '1 ms'"),
	'0',
	'an id is of the time of its call');
$node->append_conf('postgresql.conf', "snowflake.block_size = $block_size");

# Starts the server with another layout, without the page of the mark: the
# server forgets the ids that it has issued.
sub change_layout
{
	my ($layout) = @_;
	$node->stop;
	unlink mark_file($node);
	$node->append_conf('postgresql.conf', "snowflake.layout = '$layout'");
	$node->start;
	return;
}

# snowflake_nextvals() beside snowflake_nextval(), with 256 ids in a tick,
# which are always spent.
change_layout('41/5/5/8');
value_of($node, 'CREATE TABLE runs (id bigint PRIMARY KEY, client int, n int)');
run_clients(16, 10, q{
INSERT INTO runs SELECT snowflake_nextvals(300), :client_id, :n * 1000 + generate_series(1, 300);
INSERT INTO runs SELECT snowflake_nextval(), :client_id, :n * 1000 + 300 + generate_series(1, 200);
\set n :n + 1
}, '16 clients with both functions');
is( value_of($node,
		'SELECT count(*), count(*) FILTER (WHERE id <= previous)
		   FROM (SELECT id, lag(id) OVER (PARTITION BY client ORDER BY n) AS previous FROM runs) AS o'
	),
	'80000|0',
	'the ids of each session by both functions increase');

# A session waits for the end of a spent tick, and issues no id ahead of the
# clock.
is( value_of($node,
		'SELECT count(*) FILTER (WHERE snowflake_timestamp(id) > after),
				max(after) - min(after) > interval \'70 ms\'
		   FROM (SELECT snowflake_nextval() AS id, clock_timestamp() AS after
				   FROM generate_series(1, 20000)) AS calls'),
	'0|t',
	'20,000 ids at 256 in a millisecond take more than 70 ms, and none leads the clock');

# Sessions wait in turns: with 64 sessions for 4 ids a millisecond, each
# session sleeps about once for an id of its own.  If all of them woke up for
# every tick, each would sleep 16 times.
SKIP:
{
	skip 'there is no /proc to read the sleeps of a process from', 3
	  unless -r '/proc/self/status';
	change_layout('41/10/10/2');
	value_of($node, q{
CREATE FUNCTION sleeps() RETURNS bigint LANGUAGE sql AS $$
  SELECT substring(pg_read_file('/proc/self/status') FROM '\nvoluntary_ctxt_switches:\s+(\d+)')::bigint $$;
CREATE TABLE waits (sleeps bigint)});
	run_clients(64, 1, q{
SELECT sleeps() AS before \gset
SELECT count(snowflake_nextval()) FROM generate_series(1, 200);
INSERT INTO waits VALUES (sleeps() - :before);
}, '64 clients');
	my $sleeps = value_of($node, 'SELECT round(avg(sleeps) / 200, 1) FROM waits');
	cmp_ok($sleeps, '<', 4, 'a waiting session wakes up for few ticks other than its own');
	note "$sleeps sleeps an id";
}

# A call takes as much memory for three million ids as for the first ones, by
# the sizes of the session's memory contexts.
change_layout('41/2/3/17');
my $grown = value_of($node, q{
SELECT max(bytes) - min(bytes)
  FROM (SELECT (SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE id IS NOT NULL) AS bytes
          FROM (SELECT snowflake_nextvals(3000000) AS id) AS ids
         WHERE id & 131071 = 0 OR random() < 0.00001) AS samples});
cmp_ok($grown, '<', 1024 * 1024,
	'memory stays flat over 3,000,000 ids of one call');
note "grown by $grown bytes";

$node->stop;
done_testing();
