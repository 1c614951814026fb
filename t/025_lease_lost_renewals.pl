# A registry's standby that has not heard of the last renewals is promoted, and
# the server that had made them does not come back.  The clock of the next
# holder of its worker id is far behind: it issues no id that is smaller.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeTest;
use Test::More;

# more than a lease, and what a failover takes: the next holder is to wait
use constant AHEAD_S => 15;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock_library = build_clock_library($directory);

my $registry = PostgreSQL::Test::Cluster->new('registry');
$registry->init(allows_streaming => 1);
$registry->start;
$registry->safe_psql(
	'postgres', q{
	CREATE EXTENSION snowflake;
	SELECT snowflake_registry_create();
	UPDATE snowflake_registry SET longest_lease = '3 s';
});
$registry->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($registry, 'base', has_streaming => 1);
$standby->start;

my $conninfo = sprintf 'host=%s,%s port=%d,%d dbname=postgres',
  $registry->host, $standby->host, $registry->port, $standby->port;

# A server whose clock is ahead, started.
sub start_server
{
	my ($name, $ahead_s) = @_;
	my $server = leased_node(
		$name, $conninfo,
		'snowflake.worker_id = 0',
		'snowflake.lease_duration = 3s',
		'snowflake.clock_tolerance = 1min');
	local %ENV = (
		%ENV,
		preload($clock_library),
		CLOCK_OFFSET_FILE => "$directory/$name.clock");

	write_clock("$directory/$name.clock", $ahead_s);
	$server->start;
	return $server;
}

my $first = start_server('first', AHEAD_S);
my $last_id = first_id($first);
$registry->wait_for_catchup('standby');
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
ok( wait_for(
		sub {
			my $id = value_of($first, 'SELECT snowflake_nextval()');

			$last_id = $id if defined $id;
			return $standby->safe_psql('postgres',
				"SELECT snowflake_timestamp($last_id) - high_water > '2 s'"
				  . ' FROM snowflake_lease') eq 't';
		}),
	'a server issues ids beyond what the standby knows of');

$first->stop('immediate');
$registry->stop('immediate');
$standby->promote;
my $next_id = first_id(start_server('next', 0), 60);
cmp_ok($next_id, '>', $last_id,
	'the next holder of its worker id begins after them');
is( $standby->safe_psql(
		'postgres',
		"SELECT snowflake_worker_id($last_id), snowflake_worker_id($next_id)"
	),
	'0|0',
	'it is the same worker id');

done_testing();
