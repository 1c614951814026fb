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
use SnowflakeTest qw(hosts_of timestamp_of worker_id_of);
use Test::More;

# The first holder's clock is ahead, within largest_lead, and the next one's so
# far behind that it is to wait, although nobody gets a worker id for as long as
# a lease lasts and a clock leads.
use constant {
	LEASE_S => 3,
	LARGEST_LEAD_S => 5,
	AHEAD_S => 4.5,
	BEHIND_S => -6
};

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock_library = build_clock_library($directory);

my $registry = registry_node(
	'registry',
	{
		lease_duration => LEASE_S . ' s',
		largest_lead => LARGEST_LEAD_S . ' s'
	});
$registry->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($registry, 'base', has_streaming => 1);
$standby->start;

# A server whose clock is ahead, started.
sub start_server
{
	my ($name, $ahead_s) = @_;
	my $server = leased_node(
		$name, hosts_of($registry, $standby),
		'snowflake.worker_id = 0',
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
				    'SELECT extract(epoch FROM fence) < '
				  . (timestamp_of($last_id) - 0.5)
				  . ' FROM snowflake_registry.lease') eq 't';
		}),
	'a server issues ids beyond what the standby knows of');

$first->stop('immediate');
$registry->stop('immediate');
$standby->promote;
my $next_id = first_id(start_server('next', BEHIND_S), 60);
cmp_ok($next_id, '>', $last_id,
	'the next holder of its worker id begins after them');
is(join('|', map { worker_id_of($_) } $last_id, $next_id),
	'0|0', 'it is the same worker id');

done_testing();
