# The synchronous standby of a registry is away, and a commit waits for it.  If
# somebody cancels that wait, the answer comes with a warning that the standby
# may not have the commit.  The server does not take such an answer for a
# lease, because the registry would not know of it after a failover.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeTest;
use Test::More;

# How many claims are cancelled: more than one, as the server repeats a claim.
use constant CANCELS => 4;

my $registry = registry_node('registry', { lease_duration => '20 s' });
my $server = leased_node('server', $registry);

$registry->append_conf('postgresql.conf',
	"synchronous_standby_names = 'standby'");
$registry->reload;
ok( wait_for(
		sub {
			$registry->safe_psql('postgres',
				'SHOW synchronous_standby_names') eq 'standby';
		}),
	'the registry waits for a standby');
$server->start;

my $cancels = 0;
ok( wait_for(
		sub {
			$cancels += $registry->safe_psql('postgres',
				'SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity'
				  . " WHERE wait_event = 'SyncRep'"
				  . " AND application_name = 'snowflake'");
			return $cancels >= CANCELS;
		}),
	'claims of the server wait for the standby, and are cancelled');
is( $registry->safe_psql(
		'postgres', 'SELECT count(*) FROM snowflake_registry.lease'),
	1,
	'the registry shows a lease nevertheless');
$server->safe_psql('postgres', 'CREATE EXTENSION snowflake');
my $refusal = refusal_of($server);
like(
	$refusal,
	qr/^The registry answers with an error: canceling wait for synchronous replication/,
	'the server issues no id by a lease that the standby may not have');

$registry->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$registry->reload;
like(scalar first_id($server), qr/^\d+$/, 'the server issues ids by a lease that the registry grants without a warning');

$server->stop;
$registry->stop;

done_testing();
