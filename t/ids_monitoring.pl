# The queries of doc/examples/, of which doc/monitoring.md tells, on a server without a worker
# id, with one, with a lease, and on a standby, for a role that has pg_monitor.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $page = slurp_file("$FindBin::RealBin/../doc/monitoring.md");
my ($query, $metrics) = slurp_file("$FindBin::RealBin/../doc/examples/postgres_exporter.yml")
  =~ /^  query: \|\n(.*?)^  metrics:\n(.*)/ms or die 'no query';
my ($check) = slurp_file("$FindBin::RealBin/../doc/examples/check_postgres.sh")
  =~ /^check_postgres .*--query="(.*)" "\$@"$/m or die 'no check';

# ----- the page -----

my $registry = PostgreSQL::Test::Cluster->new('registry');
$registry->init;
$registry->start;
make_registry($registry);
my $node = snowflake_node('node', 'wal_level = replica', "include = 'case.conf'");
configure($node, 'snowflake.worker_id = -1');
$node->start;
value_of($node, 'CREATE EXTENSION snowflake; CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher');

# Returns a row of the query, by column.
sub row_of
{
	my ($sql) = @_;
	my ($names, $values) = split /\n/,
	  $node->safe_psql('postgres', $sql, extra_params => [ '-U', 'watcher', '-P', 'tuples_only=off', '-P', 'footer=off' ]);
	my %row;

	@row{ split /\|/, $names } = split /\|/, $values, -1;
	return \%row;
}

my $row = row_of($query);
is(join(' ', sort keys %$row), join(' ', sort $metrics =~ /^ +- (\w+):/mg),
	'the metrics are the columns of the query');
is(join(' ', grep { !exists $row->{$_} } $page =~ /^\| `(\w+)`/mg), '',
	'the conditions are on columns of the query');

# ----- the server -----

is("@$row{qw(worker_id in_recovery ids_issued lease_seconds)}", '-1 0 0 ', 'a server without a worker id');
is(row_of($check)->{result}, 2, 'a server without a worker id is critical');

configure($node);
$node->restart;
value_of($node, 'SELECT snowflake_nextval() FROM generate_series(1, 10)');
$row = row_of("BEGIN; SELECT snowflake_nextval() \\g /dev/null\nSELECT pg_sleep(1.1) \\g /dev/null\n$query");
is("@$row{qw(worker_id ids_per_second ids_issued clock_refusals)}",
	'7 4096000 11 0', 'a server with a worker id');
cmp_ok($row->{horizon_seconds}, '>', 1, 'the age of the horizon is that of the oldest id of an open transaction');
cmp_ok($row->{span_seconds}, '>', 50 * 365 * 86400, 'the span of the default layout lasts for decades');
is(row_of($check)->{result}, 0, 'a server with a worker id is well');

configure($node, lease_conf($registry));
$node->restart;
wait_for_grant($registry, $node);
cmp_ok(row_of($query)->{lease_seconds}, '>', 0, 'a server with a lease');
is(row_of($check)->{result}, 2, 'a lease of less than 45 s is critical');

configure($node);
$node->stop;
$node->set_standby_mode;
$node->start;
$row = row_of($query);
is("@$row{qw(worker_id in_recovery horizon_seconds)}", '7 1 0', 'a standby');
is(row_of($check)->{result}, 0, 'a standby is well');
$node->stop;
$registry->stop;

done_testing();
