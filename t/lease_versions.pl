# A registry of another major version of PostgreSQL.  Few machines have a
# second version, so the caller provides the registry: SNOWFLAKE_REGISTRY is a
# connection string of a registry whose lease_duration is some seconds.  The
# user in the string may read the registry's view.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeTest;
use Test::More;

my $registry = $ENV{SNOWFLAKE_REGISTRY};
plan skip_all => 'SNOWFLAKE_REGISTRY names no registry of another version'
  unless $registry;

my $server = leased_node('server', $registry);

# The output of a query at the registry.
sub asked
{
	my ($sql) = @_;
	my ($out, $error) = ('', '');

	IPC::Run::run([ 'psql', '-XAtq', '-d', $registry, '-c', $sql ],
		'>', \$out, '2>', \$error)
	  or die "$sql: $error";
	chomp $out;
	return $out;
}

$server->start;
my $id = first_id($server);
my $holder =
  $server->safe_psql('postgres', 'SELECT lease_holder FROM snowflake_node');
note('server '
	  . $server->safe_psql('postgres', 'SHOW server_version')
	  . ', registry '
	  . asked('SHOW server_version'));
isnt(
	asked('SHOW server_version_num') - asked('SHOW server_version_num') % 10000,
	$server->safe_psql('postgres', 'SHOW server_version_num') -
	  $server->safe_psql('postgres', 'SHOW server_version_num') % 10000,
	'the registry is of another major version');
is( asked(
		"SELECT worker_id FROM snowflake_registry.lease WHERE holder = '$holder' AND state = 'held'"
	),
	$server->safe_psql('postgres', "SELECT snowflake_worker_id($id)"),
	'the registry shows a lease on the worker id that is in the ids');
ok( wait_for(
		sub {
			$server->safe_psql('postgres',
				'SELECT lease_renewals >= 4 AND lease_failures = 0 FROM snowflake_stat'
			) eq 't';
		}),
	'the server renews the lease without a failure');
$server->stop;
is(asked("SELECT state FROM snowflake_registry.lease WHERE holder = '$holder'"),
	'released', 'a clean stop releases the lease');
$server->start;
is( $server->safe_psql(
		'postgres', 'SELECT snowflake_worker_id(' . first_id($server) . ')'),
	$server->safe_psql('postgres', "SELECT snowflake_worker_id($id)"),
	'the next start leases the same worker id');
$server->stop;

done_testing();
