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

my $node = snowflake_node('main', 'max_connections = 100', 'fsync = off',
	'autovacuum = off', "include 'case.conf'");

# Clients record the ids of each of their calls, and the instants before and after.
my $recorder = q{
INSERT INTO calls SELECT clock_timestamp(),
  CASE n % 3 WHEN 0 THEN ARRAY(SELECT snowflake_nextvals(1 + n % 40)) ELSE ARRAY[snowflake_nextval()] END,
  clock_timestamp() FROM generate_series(1, 500) AS n;
};

# In the second case all ids of each tick are issued.
my %cases = (
	'the default layout' => [],
	'spent ticks' => [ "snowflake.layout = '41/5/5/8'" ]);

for my $name (sort keys %cases)
{
	my @settings = @{ $cases{$name} };

	subtest $name => sub {
		# Without the page of the mark the server forgets the ids it has issued.
		unlink mark_file($node);
		configure($node, @settings, 'snowflake.datacenter_id = 3');
		$node->start;
		value_of($node, q{
SET client_min_messages = warning;
DROP TABLE IF EXISTS ids, calls;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE TABLE calls (before timestamptz, ids bigint[], after timestamptz)});

		$node->pgbench(
			'--no-vacuum --client=32 --jobs=2 --transactions=13',
			0, [], [],
			'no call of 32 clients fails',
			{ 'record' . @settings => $recorder });
		value_of($node, 'CREATE TABLE ids AS SELECT unnest(ids) AS id FROM calls');
		is(value_of($node, 'SELECT count(*) - count(DISTINCT id) FROM ids'), 0, 'no id comes twice');
		is(value_of($node, 'SELECT DISTINCT snowflake_datacenter_id(id), snowflake_worker_id(id) FROM ids'), '3|7', 'the ids are of this node');
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
			'208000|0',
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
			'208000|0|0',
			'an id is of the time of its call');

		my ($ticks, $first, $gaps) = split /\|/, value_of($node, q{
SELECT count(*), max(first), count(*) FILTER (WHERE last - first >= ids)
  FROM (SELECT count(*) AS ids, min(snowflake_sequence(id)) AS first, max(snowflake_sequence(id)) AS last
          FROM ids GROUP BY snowflake_timestamp(id)) AS ticks});
		is("$gaps of $ticks", "0 of $ticks", 'no sequence of a tick is left out');
		is($first, 0, 'each tick starts at sequence 0');
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
