# A standby of a server that leases its worker id is promoted, and leases
# another worker id.  The old primary's clock was ahead, but its mark does not
# delay ids of the new worker id.  The mark does not delay them either in a new
# cluster to which the page is copied, as after pg_upgrade.
use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

# How far the old primary's clock is ahead of all others, in seconds.
use constant AHEAD_S => 25;

# How soon a promoted server has an id, in seconds, on a busy machine.
use constant SOON_S => 10;

my $registry = registry_node('registry',
	{ lease_duration => '20 s', largest_lead => '60 s' });
my $primary = leased_node(
	'primary', $registry,
	'wal_level = replica',
	'max_wal_senders = 4');
start_server($primary, AHEAD_S);
my $id = first_id($primary);
my $worker_id = worker_id_of($id);
cmp_ok(timestamp_of($id), '>', time + AHEAD_S - 5,
	"the primary's clock is ahead");

my $standby = standby_node($primary, 'standby');
$standby->start;
$id = first_id($primary);
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
kill_hard($primary);

$standby->promote;
($id, my $took) = first_id($standby, AHEAD_S + SOON_S);
note(sprintf 'an id after %.1f s', $took);
isnt(worker_id_of($id), $worker_id,
	'a promoted standby leases another worker id');
cmp_ok($took, '<', SOON_S, 'the promoted standby issues ids at once');
$worker_id = worker_id_of($id);
$standby->stop;

my $upgraded = leased_node('upgraded', $registry, wants($worker_id));
copy(mark_file($standby), mark_file($upgraded)) || die "cannot copy: $!";
start_server($upgraded);
my $new_id;
($new_id, $took) = first_id($upgraded, AHEAD_S + SOON_S);
note(sprintf 'an id after %.1f s', $took);
is(worker_id_of($new_id), $worker_id,
	'a new cluster with the page leases the same worker id');
cmp_ok($new_id, '>', $id, 'ids of the new cluster are larger than those of the standby');
cmp_ok($took, '<', SOON_S, 'the new cluster issues ids at once');
$upgraded->stop;
$registry->stop;

done_testing();
