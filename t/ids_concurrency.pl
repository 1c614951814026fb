# Many sessions at once, by snowflake_nextval() and snowflake_nextvals(): no id
# comes twice, a call that begins after another one returned gets a larger id, a
# call takes what is left of a tick at once, and an id is of this node and of the
# time of its call.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node('main', 'max_connections = 100', 'fsync = off',
	'autovacuum = off', "include 'case.conf'");

# Tests that no call fails while clients run scripts, which number their rows by
# :n.
sub run_clients
{
	my ($clients, $times, $scripts) = @_;
	my @files;

	for my $script (@$scripts)
	{
		push @files, "$directory/script" . @files;
		unlink $files[-1];
		append_to_file($files[-1], $script);
	}
	$node->command_ok(
		[
			'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2',
			"--transactions=$times", '--define=n=0',
			(map { "--file=$_" } @files), $node->connstr('postgres')
		],
		"no call of $clients clients fails");
	return;
}

# Bulk inserts; single inserts between ids of snowflake_nextvals(); and calls of
# snowflake_nextval() between the rows of a call of snowflake_nextvals(), whose
# ids are all smaller.
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

# Clients that record the ids of each of their calls, and the instants before and
# after.
my $recorder = q{
INSERT INTO calls SELECT clock_timestamp(),
  CASE n % 3 WHEN 0 THEN ARRAY(SELECT snowflake_nextvals(1 + n % 40)) ELSE ARRAY[snowflake_nextval()] END,
  clock_timestamp() FROM generate_series(1, 500) AS n;
};

# In the second case all ids of each tick are issued.
my %cases = (
	'the default layout' => [],
	'spent ticks, from random starts' => [
		"snowflake.layout = '41/5/5/8'", 'snowflake.sequence_start = random'
	]);

for my $name (sort keys %cases)
{
	my @settings = @{ $cases{$name} };

	subtest $name => sub {
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
CREATE TABLE calls (before timestamptz, ids bigint[], after timestamptz);
SELECT clock_timestamp();});

		run_clients(32, 40, \@writers);
		is(value_of($node, 'SELECT count(*) FROM pairs WHERE a >= b'),
			0, 'snowflake_nextval() is larger than the id of snowflake_nextvals() in its row');
		value_of($node, 'INSERT INTO ids SELECT unnest(ARRAY[a, b]), client, unnest(ARRAY[n - n % 1000, n]) FROM pairs');
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

		run_clients(8, 50, [$recorder]);
		is( value_of($node, q{
WITH events AS (
  SELECT before AS at, 0 AS is_return, ids[1] AS id FROM calls
   UNION ALL
  SELECT after, 1, ids[cardinality(ids)] FROM calls)
SELECT count(*) FILTER (WHERE is_return = 0), count(*) FILTER (WHERE is_return = 0 AND id <= largest_returned)
  FROM (SELECT is_return, id,
               max(id) FILTER (WHERE is_return = 1) OVER (
                 ORDER BY at, is_return ROWS UNBOUNDED PRECEDING) AS largest_returned
          FROM events) AS o}),
			'200000|0',
			'a call that begins after another one returned gets larger ids');
		is( value_of($node, q{
WITH runs AS (
  SELECT call, min(id) AS first, max(id) AS last, count(*) AS length
    FROM (SELECT row_number() OVER () AS call, ids FROM calls) AS c, unnest(ids) WITH ORDINALITY AS u(id, n)
   GROUP BY call, id - n)
SELECT sum(length) > 1000000,
       count(*) FILTER (WHERE length % 256 > 0 AND snowflake_timestamp(next) = snowflake_timestamp(last))
  FROM (SELECT *, lead(first) OVER (PARTITION BY call ORDER BY first) AS next FROM runs) AS o}),
			't|0',
			'the ids of a call come in consecutive runs of 256, but where a tick ends');
		is( value_of($node, q{
SELECT count(*), count(*) FILTER (WHERE snowflake_timestamp(ids[cardinality(ids)]) > after),
       count(*) FILTER (WHERE snowflake_timestamp(ids[1]) < before - interval '1 ms') FROM calls}),
			'200000|0|0',
			'an id is of the time of its call');

		value_of($node, "INSERT INTO ids SELECT unnest(ids), -1, 0 FROM calls");
		my ($ticks, $starts, $gaps, $late) = split /\|/, value_of($node, q{
SELECT count(*), count(DISTINCT first), count(*) FILTER (WHERE last - first >= ids), count(*) FILTER (WHERE first >= 64)
  FROM (SELECT count(*) AS ids, min(snowflake_sequence(id)) AS first, max(snowflake_sequence(id)) AS last
          FROM ids GROUP BY snowflake_timestamp(id)) AS ticks});
		is("$gaps of $ticks", "0 of $ticks", 'no sequence of a tick is left out');
		if (@settings)
		{
			is($late, 0, 'a random start is in the lower quarter of a tick');
			is($starts, 64, 'ticks start at each sequence there');
		}
		else
		{
			is($starts, 1, 'each tick starts at sequence 0');
		}
		$node->stop;
	};
}

# ----- one session -----

unlink mark_file($node);
configure($node);
start_server($node, 0);

# The rows of a call that do not fit into work_mem go to a file.
my $grown = value_of($node, q{
SET work_mem = '1MB';
SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \gset
SELECT (SELECT sum(total_bytes) - :before FROM pg_backend_memory_contexts WHERE id IS NOT NULL)
  FROM (SELECT snowflake_nextvals(3000000) AS id) AS ids LIMIT 1});
cmp_ok($grown, '<', 4 * 1024 * 1024,
	"a call of 3,000,000 ids takes little memory: $grown bytes");

# One of six new sessions gets the process slot of the backend that has ended.
# Their first calls are refused, because the clock is behind.
my $ended = SnowflakeSession->new($node);
$ended->rows('SELECT snowflake_nextval()');
$ended->terminate;
my @heirs = map { SnowflakeSession->new($node) } 1 .. 6;
set_clock($node, -3600);
my @states = map {
	my $heir = $_;
	map { $heir->state_of("SELECT $_()") } 'snowflake_nextval', 'snowflake_currval'
} @heirs;
is_deeply(\@states, [ ('55000') x 12 ], 'a new session has no snowflake_currval() of an ended backend');
$_->quit for @heirs;
$node->stop;

done_testing();
