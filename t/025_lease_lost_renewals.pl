# A registry's standby that has not heard of the last renewals is promoted, and
# the server that had made them does not come back.  The next holder of its
# worker id, whose clock is far behind, issues no id that is smaller than the
# last one of the first holder.
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

# The first holder's clock is ahead, within largest_lead.  The next holder gets
# the worker id only after a lease duration and largest_lead have passed; its
# clock is so far behind that the server even then has to wait for the fence.
use constant {
	LEASE_S => 3,
	LARGEST_LEAD_S => 5,
	AHEAD_S => 4.5,
	BEHIND_S => -6
};

my $registry = registry_node(
	'registry',
	{
		lease_duration => LEASE_S . ' s',
		largest_lead => LARGEST_LEAD_S . ' s'
	});
my $standby = standby_node($registry, 'standby');
$standby->start;

# Starts a server that wants worker id 0, with its clock so many seconds ahead.
sub start_leasing
{
	my ($name, $clock_s) = @_;

	return start_server(
		leased_node(
			$name, hosts_of($registry, $standby),
			'snowflake.worker_id = 0',
			'snowflake.clock_tolerance = 1min'),
		$clock_s);
}

my $first = start_leasing('first', AHEAD_S);
my $last_id = first_id($first);
cut_off($registry, $standby);
ok( wait_for(
		sub {
			my ($state, $id) = sqlstate_of($first, 'SELECT snowflake_nextval()');

			$last_id = $id if $state eq '';
			return $standby->safe_psql('postgres',
				    'SELECT extract(epoch FROM fence) < '
				  . (timestamp_of($last_id) - 0.5)
				  . ' FROM snowflake_registry.lease') eq 't';
		}),
	'the first holder issues ids beyond the fence that the standby has');

$first->stop('immediate');
$registry->stop('immediate');
$standby->promote;
my $next_id = first_id(start_leasing('next', BEHIND_S), 60);
cmp_ok($next_id, '>', $last_id,
	'the next holder of the worker id begins after the ids of the first holder');
is(join('|', map { worker_id_of($_) } $last_id, $next_id),
	'0|0', 'both holders have the same worker id');

done_testing();
