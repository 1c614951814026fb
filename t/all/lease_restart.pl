# A copy of a server with a lease gets another worker id, and so does a standby that
# is promoted; the mark of the old worker id does not delay its ids.
#
#   SNOWFLAKE_REGISTRY   a connection string of a registry on another major
#                        version of PostgreSQL, whose lease_duration is some
#                        seconds; one more scenario leases from it
use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

# How far the clock of a server that is copied is ahead of all others.
use constant AHEAD_S => 25;

# ----- copies -----

# Copies of a server, whose clock is ahead, start while the registry is suspended,
# and get worker ids of their own when the registry is resumed.
sub copies
{
	my $registry = new_registry({ lease_duration => '60 s', slack => '60 s' });
	my $original = start_server(leasing_server('original', $registry), AHEAD_S);
	my $last = first_id($original);

	cmp_ok(timestamp_of($last), '>', test_time() + AHEAD_S - 5, q{the original's clock is ahead});
	$original->stop('immediate');
	my $copy = copy_of($original, 'copy_of_stopped');
	start_server($original);
	$original->backup('base');
	my $base = PostgreSQL::Test::Cluster->new('copy_of_running');
	$base->init_from_backup($original, 'base');
	my $standby = new_standby($original, 'standby');

	suspend($registry);
	for my $node ($copy, $base)
	{
		start_server($node);
		refuses($node, qr/^The registry cannot be reached, does not answer in time, or does not let this server in\.$/,
			$node->name . ' has no lease while the registry is suspended');
	}
	goes_on($original, $last, 'the original, beside its copies');
	resume($registry);
	my %seen = (worker_id_of($last) => 1);
	for my $node ($copy, $base)
	{
		my ($id, $seconds) = first_id($node);

		ok(!$seen{ worker_id_of($id) }++, $node->name . ' gets a worker id that no server has');
		cmp_ok($seconds, '<', AT_ONCE_S, $node->name . ' issues ids at once');
	}

	# A standby does not ask for a worker id before it is promoted.
	$original->wait_for_catchup($standby, 'replay', $original->lsn('flush'));
	is((sqlstate_of($standby, 'SELECT snowflake_nextval()'))[0],
		'25006', 'a standby of a server with a lease issues nothing');
	is(value_of($registry, 'SELECT count(*) FROM snowflake_registry.lease'), 3, 'the standby has no lease');

	# The original's mark is so far ahead that the standby begins at its own.
	$standby->append_conf('postgresql.conf', 'snowflake.clock_tolerance = 5s');
	$standby->reload;
	$standby->promote;
	my ($id, $seconds) = first_id($standby);
	my $worker_id = worker_id_of($id);
	ok(!$seen{$worker_id}, 'the standby, promoted beside its primary, gets a worker id that no server has');
	cmp_ok($seconds, '<', AT_ONCE_S, 'the promoted standby issues ids at once');
	goes_on($original, $last, 'the original, beside the promoted standby');
	$standby->stop;

	# The page goes to a new cluster, as by pg_upgrade.
	my $upgraded = leasing_server('upgraded', $registry, wants($worker_id), 'snowflake.clock_tolerance = 5s');
	copy(mark_file($standby), mark_file($upgraded)) || die "cannot copy: $!";
	start_server($upgraded);
	goes_on($upgraded, $id, 'a new cluster with the page of the promoted standby');

	# The second horizon is the original's mark; the pending lease's mark keeps it.
	suspend($registry);
	my @horizons = map {
		$upgraded->append_conf('postgresql.conf', "snowflake.clock_tolerance = $_");
		$upgraded->stop('immediate');
		value_of(start_server($upgraded), 'SELECT snowflake_horizon()') } '5s', '60s', '5s';
	cmp_ok($horizons[2], '>=', $horizons[1], 'a crash does not set back a horizon under a pending lease');
	return;
}

# ----- a registry of another major version -----

sub other_version
{
	my $conninfo = $ENV{SNOWFLAKE_REGISTRY};
	my $server = start_server(leasing_server('server', $conninfo));
	my $id = first_id($server);
	my $of_registry = sub { (run_command([ 'psql', '-XAtq', '-d', $conninfo, '-c', $_[0] ]))[0] };

	isnt(int($of_registry->('SHOW server_version_num') / 10000), int($server->pg_version),
		'the registry is of another major version');
	ok( wait_for(sub {
			value_of($server, 'SELECT lease_renewals >= 4 AND lease_failures = 0 FROM snowflake_stat()') eq 't' }),
		'the server renews the lease without a failure');
	$server->stop;
	is($of_registry->('SELECT state FROM snowflake_registry.lease WHERE worker_id = ' . worker_id_of($id)),
		'released', 'a clean stop releases the lease');
	return;
}

run_scenarios(
	copies => \&copies,
	$ENV{SNOWFLAKE_REGISTRY} ? ('a registry of another version' => \&other_version) : ());
done_testing();
