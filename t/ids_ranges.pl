# Bounds of time ranges on a server that does not preload the library, where a
# reload can change the layout.  No plan keeps a bound of the old layout, and
# snowflake_issued_between() is right in every layout.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

my $plan = q{EXPLAIN (COSTS OFF) SELECT * FROM ids
  WHERE id >= snowflake_min_id('2030-01-01 00:00+00')};

my $preloaded =
  snowflake_node('preloaded', "shared_preload_libraries = 'snowflake'");
$preloaded->start;
$preloaded->safe_psql('postgres',
	'CREATE EXTENSION snowflake; CREATE TABLE ids (id bigint)');
like($preloaded->safe_psql('postgres', $plan),
	qr/Filter: \(id >= '\d+'::bigint\)/, 'preloaded: a bound is a constant in the plan');
$preloaded->stop;

my $node = PostgreSQL::Test::Cluster->new('not_preloaded');
$node->init;
$node->start;
$node->safe_psql('postgres',
	'CREATE EXTENSION snowflake; CREATE TABLE ids (id bigint)');
like($node->safe_psql('postgres', $plan),
	qr/snowflake_min_id/, 'not preloaded: a bound is a function call in the plan');

# One session, one prepared statement, two layouts.
my $data = $node->data_dir;
my $result = $node->safe_psql(
	'postgres', qq{
SET plan_cache_mode = force_generic_plan;
PREPARE bound AS SELECT snowflake_min_id('2030-01-01 00:00+00');
EXECUTE bound;
COPY (SELECT 'snowflake.layout = ''41/5/5/11''') TO PROGRAM 'cat >> "$data/postgresql.conf"';
SELECT pg_reload_conf();
SELECT pg_sleep(0.1) FROM generate_series(1, 20)
 WHERE current_setting('snowflake.layout') <> '41/5/5/11';
EXECUTE bound;});
my @bounds = grep { /^\d+$/ } split /\n/, $result;
is(scalar(@bounds), 2, 'the prepared statement returns a bound before and after the reload') or diag($result);
is($bounds[1], $bounds[0] / 2, 'after the reload the bound is that of the new layout');

# Compares snowflake_issued_between() with its definition, in layouts with
# ticks of different lengths.  The ids are the smallest and the largest of some
# ticks.  The bounds are the beginnings of these ticks and of the ticks beside
# them, instants 1 us before and after these beginnings, and instants outside
# the layout's span.
$node->safe_psql(
	'postgres', q{
CREATE VIEW ticks AS
SELECT tick FROM snowflake_node, LATERAL (SELECT extract(epoch FROM last_instant - first_instant) / extract(epoch FROM tick_interval)) AS l(last),
  LATERAL (VALUES (0), (1), (2), (trunc(last / 2)), (last - 1), (last)) AS t(tick);
CREATE VIEW edges AS
SELECT first_instant + tick * tick_interval AS instant FROM snowflake_node, ticks;
CREATE VIEW of_edges AS
SELECT id FROM edges, LATERAL (VALUES (snowflake_min_id(instant)), (snowflake_max_id(instant))) AS i(id)
 WHERE id < 9223372036854775807;
CREATE VIEW bounds AS
SELECT instant + n * tick_interval + us * interval '1 us' AS bound
  FROM edges, snowflake_node, generate_series(-1, 1) AS n, unnest(ARRAY[-1, 0, 1]) AS us
UNION SELECT unnest(ARRAY['-infinity', 'infinity', '1800-01-01', '9000-01-01']::timestamptz[]);
});
for my $layout (
	[ '41/5/5/12', '2010-11-04 01:42:54.657+00' ],
	[ '39/0/16/8@10ms', '2014-09-01 00:00+00' ],
	[ '30/10/10/13@1s', '2020-01-01 00:00+00' ],
	[ '45/3/3/4@7us', '2024-02-29 12:00:00.000001+00' ],
	[ '20/1/1/1@1us', '2026-01-01 00:00+00' ],
	[ '40/0/13/10', '2011-08-24 21:07:01.721+00' ])
{
	$node->append_conf('postgresql.conf',
		"snowflake.layout = '$layout->[0]'\nsnowflake.epoch = '$layout->[1]'");
	$node->reload;
	ok( wait_for(
			sub {
				$node->safe_psql('postgres', 'SELECT layout FROM snowflake_node') eq
				  $layout->[0];
			}),
		"$layout->[0] is in force");
	is( $node->safe_psql(
			'postgres', q{
SELECT count(*) > 4000, count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)) > 200,
       count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)
		 IS DISTINCT FROM (snowflake_timestamp(id) >= since.bound AND snowflake_timestamp(id) < until.bound))
  FROM of_edges, bounds AS since, bounds AS until}),
		't|t|0',
		"$layout->[0]: snowflake_issued_between() is as defined");
}
$node->stop;

done_testing();
