# Without preload the layout can change under a running server: no plan may
# then keep a bound of the old one.
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

my $preloaded = snowflake_node('preloaded');
$preloaded->start;
$preloaded->safe_psql('postgres',
	'CREATE EXTENSION snowflake; CREATE TABLE ids (id bigint)');
unlike($preloaded->safe_psql('postgres', $plan),
	qr/snowflake_min_id/, 'preloaded: a bound is a constant in the plan');
$preloaded->stop;

my $node = PostgreSQL::Test::Cluster->new('not_preloaded');
$node->init;
$node->start;
$node->safe_psql('postgres',
	'CREATE EXTENSION snowflake; CREATE TABLE ids (id bigint)');
like($node->safe_psql('postgres', $plan),
	qr/snowflake_min_id/, 'not preloaded: it is not');

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
is(scalar(@bounds), 2, 'two bounds') or diag($result);
is($bounds[1], $bounds[0] / 2, 'the second is by the new layout');
$node->stop;

done_testing();
