# Many sessions at once, by single ids and by blocks: no id comes twice, the ids
# of each session increase, and an id is of this node and of the time of its
# call.  With block_size = 1 an id is larger than all ids that any session has
# received before the call; with larger blocks it is of no earlier tick.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(usleep);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node('main', 'max_connections = 100', 'fsync = off',
	'autovacuum = off', "include 'case.conf'");

# Tests that no call fails while clients run scripts, which number their rows by
# :n.  Calls a function, if one is given, again and again meanwhile.
sub run_clients
{
	my ($clients, $times, $scripts, $meanwhile) = @_;
	my $log = '';
	my @files;

	for my $script (@$scripts)
	{
		push @files, "$directory/script" . @files;
		unlink $files[-1];
		append_to_file($files[-1], $script);
	}
	my $run = IPC::Run::start(
		[
			$node->installed_command('pgbench'), '--no-vacuum',
			"--client=$clients", '--jobs=2', "--transactions=$times",
			'--define=n=0', (map { "--file=$_" } @files),
			$node->connstr('postgres')
		],
		'<', \undef, '>', \$log, '2>&1',
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	while ($meanwhile && $run->pumpable)
	{
		$meanwhile->();
		$run->pump_nb;
		usleep(20_000);
	}
	ok($run->finish, "no call of $clients clients fails") or diag($log);
	return;
}

# Bulk inserts; single inserts between ids of snowflake_nextvals(); and calls of
# snowflake_nextval() between the rows of snowflake_nextvals().
my @writers = (
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

# Clients that record the instants before and after each of their calls.
my $recorder = 'INSERT INTO calls SELECT clock_timestamp(), snowflake_nextval(), clock_timestamp() FROM generate_series(1, 500);';

# Each case: the number of low bits of an id that do not follow the order of
# calls, the block_size that reloads switch to and from while the writers run, and
# the parameters.
my %cases = (
	'single ids' => [ 0, 1, 'snowflake.block_size = 1' ],
	'blocks of a changing size' => [ 22, 16, 'snowflake.block_size = 64' ],
	'blocks that issue all ids of each tick, from random starts' => [
		18, 1,
		'snowflake.block_size = 64',
		"snowflake.layout = '41/5/5/8'",
		'snowflake.sequence_start = random'
	]);

for my $name (sort keys %cases)
{
	my ($open_bits, $other_size, @settings) = @{ $cases{$name} };

	subtest $name => sub {
		my $changes = 0;

		# Without the page of the mark the server forgets the ids it has issued.
		unlink mark_file($node);
		configure($node, @settings, 'snowflake.datacenter_id = 3');
		$node->start;
		my $begin = value_of($node, q{
SET client_min_messages = warning;
DROP TABLE IF EXISTS ids, pairs, calls;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE TABLE ids (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), client int, n int);
CREATE TABLE pairs (a bigint, b bigint, client int, n int);
CREATE TABLE calls (before timestamptz, id bigint, after timestamptz);
SELECT clock_timestamp();});

		run_clients(32, 40, \@writers, sub {
			configure($node, @settings, 'snowflake.datacenter_id = 3',
				$changes++ % 2 ? () : "snowflake.block_size = $other_size");
			$node->reload;
		});
		is(value_of($node, 'SELECT count(*) FROM pairs WHERE a >= b'),
			0, 'snowflake_nextval() is larger than the id of snowflake_nextvals() in its row');
		value_of($node, 'INSERT INTO ids SELECT unnest(ARRAY[a, b]), client, n FROM pairs');
		like( value_of($node, q{
SELECT count(*), count(*) - count(DISTINCT id), count(*) FILTER (WHERE id <= previous)
  FROM (SELECT id, lag(id) OVER (PARTITION BY client ORDER BY n, id) AS previous FROM ids) AS o}),
			qr/^\d{6,}\|0\|0$/,
			'32 clients: no id comes twice, and the ids of each session increase');
		is( value_of($node, qq{
SELECT count(*) FROM ids, snowflake_decode(id) AS d
 WHERE (d.datacenter_id, d.worker_id) <> (3, 7)
    OR d.issued_at NOT BETWEEN timestamptz '$begin' - interval '1 ms' AND clock_timestamp()}),
			0, 'the ids are of this node and of the time of the run');

		configure($node, @settings, 'snowflake.datacenter_id = 3');
		$node->reload;
		run_clients(8, 50, [$recorder]);
		is( value_of($node, qq{
WITH events AS (
  SELECT before AS at, 0 AS is_return, id >> $open_bits AS rank FROM calls
   UNION ALL
  SELECT after, 1, id >> $open_bits FROM calls)
SELECT count(*) FILTER (WHERE is_return = 0), count(*) FILTER (WHERE is_return = 0 AND rank < largest_returned)
  FROM (SELECT is_return, rank,
               max(rank) FILTER (WHERE is_return = 1) OVER (
                 ORDER BY at, is_return ROWS UNBOUNDED PRECEDING) AS largest_returned
          FROM events) AS o}),
			'200000|0',
			'no call gets an id below one that was returned before the call began');
		is( value_of($node, q{
SELECT count(DISTINCT id), count(*) FILTER (WHERE snowflake_timestamp(id) > after),
       count(*) FILTER (WHERE snowflake_timestamp(id) < before - interval '1 ms') FROM calls}),
			'200000|0|0',
			'an id is of the time of its call');
		$node->stop;
	};
}

# A call takes as much memory for three million ids as for the first ones, by
# the sizes of the session's memory contexts.
unlink mark_file($node);
configure($node);
$node->start;
my $grown = value_of($node, q{
SELECT max(bytes) - min(bytes)
  FROM (SELECT (SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE id IS NOT NULL) AS bytes
          FROM (SELECT snowflake_nextvals(3000000) AS id) AS ids
         WHERE random() < 0.00003) AS samples});
cmp_ok($grown, '<', 1024 * 1024,
	"memory stays flat over 3,000,000 ids of one call: grown by $grown bytes");
$node->stop;

done_testing();
