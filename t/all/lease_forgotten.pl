# A registry that has forgotten leases, because it was restored from an old
# dump, or because it is a standby that lagged when its primary failed.  No id
# comes twice, a server that holds a lease keeps its worker id and goes on, also
# when it restarts, and other servers wait for the end of the quarantine.
use strict;
use warnings FATAL => 'all';

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

# Long enough that holders still have their leases when the next registry runs,
# on a busy machine.
use constant { LEASE_S => 20, SLACK_S => 3 };

my %constants = (lease_duration => LEASE_S . ' s', slack => SLACK_S . ' s');
my $directory = PostgreSQL::Test::Utils::tempdir();
my $quarantine =
  qr/^The registry is new, or may have forgotten leases at \d{4}-[^;]*; servers without a lease get worker ids from \d{4}-/;
my $leased_by_lost = qr/^worker_id 5 of datacenter_id 0 is leased by lost/;

# A connection string of several servers, which a server tries in this order.
sub hosts_of
{
	my (@nodes) = @_;
	return sprintf 'host=%s port=%s dbname=postgres',
	  join(',', map { $_->host } @nodes), join(',', map { $_->port } @nodes);
}

# ----- a dump that is older than a lease -----

# The dump is restored into another database cluster, to which holders turn.
sub old_dump
{
	my $registry = new_registry({%constants});
	my $restored = start_server(new_server('restored'));
	my $either = hosts_of($registry, $restored);
	my $dump = "$directory/dump.sql";
	my $known = start_server(leasing_server('known', $either));
	my $known_client = new_client($known);

	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'), '-f', $dump);
	my $lost = start_server(leasing_server('lost', $either, wants(5)));
	my $lost_client = new_client($lost);
	$registry->stop('immediate');
	system_or_bail('psql', '-XqAt', '-o', '/dev/null', '-v', 'ON_ERROR_STOP=1',
		'-d', $restored->connstr('postgres'), '-f', $dump);

	my $rival = start_server(leasing_server('rival', $either, wants(5)));
	my $newcomer = start_server(leasing_server('newcomer', $either));
	my $rival_client = new_client($rival, 'without ids');
	refuses($newcomer, $quarantine, 'a newcomer waits for the end of the quarantine');
	wait_for_grant($restored, $lost);
	refuses($rival, $leased_by_lost,
		'the rival of the holder that the dump does not have is refused');
	isnt(worker_id_of(scalar first_id($newcomer, 90)),
		worker_id_at($known), 'after the quarantine the newcomer gets a worker id that nobody has');
	new_client($newcomer);
	is_undisturbed($known_client, 'the holder that the dump has issues ids all the time');
	is_undisturbed($lost_client, 'the holder that the dump does not have issues ids all the time');
	is(scalar(my @ids = ids_of($rival_client)), 0, 'the rival has issued no id');
	is_unique();
	return;
}

# ----- a registry that is recreated soon after its leases were made shorter -----

# By the present constants the quarantine would end before the holder's fence.
sub recreated
{
	my $registry = new_registry({ lease_duration => '100 s' });
	my $holder = start_server(leasing_server('holder', $registry, wants(5)));
	my $client = new_client($holder);
	my $go_on = keep_from_claims($holder);

	value_of($registry, $_)
	  for q{SELECT snowflake_registry.configure(lease_duration => '2 s')},
	  'DROP EXTENSION snowflake_registry', 'CREATE EXTENSION snowflake_registry',
	  q{SELECT snowflake_registry.configure(lease_duration => '100 s', slack => '1 s')},
	  q{SELECT snowflake_registry.configure(lease_duration => '2 s')};
	my $rival = start_server(leasing_server('rival', $registry, wants(5)));
	my $rival_client = new_client($rival, 'without ids');
	refuses($rival, $quarantine, 'the rival waits for the end of the longer quarantine');
	let_pass(8);
	$go_on->();
	ok(wait_for(sub { lease_of($registry, 5, 'name') eq 'holder' }), 'the registry believes the holder');
	refuses($rival, qr/^worker_id 5 of datacenter_id 0 is leased by holder/, 'the rival is refused');
	is_undisturbed($client, 'the holder issues ids all the time');
	is(scalar(my @ids = ids_of($rival_client)), 0, 'the rival has issued no id');
	is_unique();
	return;
}

# ----- the registry fails over to a standby that lags -----

# Cuts a standby off from its primary.  The standby has replayed all WAL that
# the primary has flushed, and replays nothing more.
sub cut_off
{
	my ($primary, $standby) = @_;

	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	ok(wait_for(sub { value_of($standby, 'SELECT count(*) FROM pg_stat_wal_receiver') eq '0' }),
		'the standby is cut off');
	return;
}

# The standby knows only the holder "known".  The holder "lost" comes forward in
# the quarantine; the holder "dead", whose clock was ahead, does not.  The clocks
# of the standby and of the next holders are behind, so that at the end of the
# quarantine the clock of the server "next" has not reached the ids of "dead".
sub fails_over
{
	my ($start_standby) = @_;
	my $registry = new_registry({%constants});
	my $standby = new_standby($registry, 'standby', -1.5);
	my $either = hosts_of($registry, $standby);
	my $known = start_server(leasing_server('known', $either));
	my %client = (known => new_client($known));

	# The standby has the newest grant of "known".
	my $known_goes_on = keep_from_claims($known);
	cut_off($registry, $standby);
	my $lost = start_server(leasing_server('lost', $either, wants(5)));
	my $dead = start_server(leasing_server('dead', $either, wants(3)), SLACK_S - 0.5);
	$client{lost} = new_client($lost);
	first_id($dead);
	my $go_on = keep_from_claims($lost);
	$registry->stop('immediate');
	my %last = (dead => scalar first_id($dead));
	kill_hard($dead);
	$start_standby->($standby);
	$known_goes_on->();
	is(lease_of($standby, $_, 'holder'), '', "the standby does not know the holder of worker id $_")
	  for 3, 5;

	# The rival and the next holder want the worker ids of "lost" and "dead".
	my %next = (
		lost => start_server(leasing_server('rival', $either, wants(5)), -2),
		dead => start_server(leasing_server('next', $either, wants(3)), -20));
	my $newcomer = start_server(leasing_server('newcomer', $either, wants(9)));
	refuses($_, $quarantine, $_->name . ' gets no lease in the quarantine')
	  for $next{lost}, $newcomer;
	$go_on->();
	wait_for_grant($standby, $lost);
	refuses($next{lost}, $leased_by_lost, 'the rival is refused when the holder has come forward');
	is_undisturbed($client{$_}, "the holder \"$_\" has issued ids all the time") for sort keys %client;

	# Holders restart in the quarantine.  A clean stop asks one host only: the one
	# that has answered last.
	wait_for_grant($standby, $known);
	$last{known} = first_id($known);
	$known->stop;
	like(logged($known), qr/has been given back to the registry/,
		'a clean stop in the quarantine releases the lease');
	start_server($known);
	goes_on($known, $last{known}, 'a holder after a clean stop in the quarantine');
	$client{known} = new_client($known);
	$last{lost} = first_id($lost);
	$lost->stop;
	like(logged($lost), qr/could not be given back to the registry\n.*DETAIL:  The registry has forgotten a grant of this lease/,
		'a clean stop of a holder that the registry had forgotten keeps the lease');
	start_server($lost);
	goes_on($lost, $last{lost}, 'a holder that the registry had forgotten, after a clean stop');
	$last{lost} = first_id($lost);
	$lost->stop('immediate');
	start_server($lost);
	goes_on($lost, $last{lost}, 'a holder after an immediate stop in the quarantine');
	$last{lost} = first_id($lost);
	kill_hard($lost);

	is(worker_id_of(scalar first_id($newcomer, 90)), 9, 'after the quarantine the newcomer gets its worker id');
	refuses($next{dead}, qr/^Ids of worker_id 3 of datacenter_id 0 begin at .*, ahead of the server's clock/,
		'the next holder after "dead" is refused while its clock is behind the fence');
	set_clock($next{dead}, 0);
	for my $name (sort keys %next)
	{
		cmp_ok(scalar first_id($next{$name}, 90), '>', $last{$name},
			"the next holder after \"$name\" begins after its last id");
	}
	is_undisturbed($client{known}, 'the holder that the standby knows has issued ids all the time');
	is_unique();
	return;
}

# A server without its signal file is no standby, but recovers as after a crash,
# and stays on its timeline.
sub start_without_promotion
{
	my ($standby) = @_;

	$standby->stop;
	unlink $standby->data_dir . '/standby.signal' or die "standby.signal: $!";
	start_server($standby);
	is(value_of($standby, 'SELECT timeline_id FROM pg_control_checkpoint()'),
		1, 'the standby without a signal file stays on its timeline');
	return;
}

# ----- the registry and a database fail over together -----

# The promoted database is another holder than its primary was.
sub fails_over_together
{
	my $registry = new_registry({%constants});
	my $standby = new_standby($registry, 'standby');
	my $primary = start_server(leasing_server('primary', hosts_of($registry, $standby), wants(5)));

	first_id($primary);
	my $heir = new_standby($primary, 'heir');
	cut_off($registry, $standby);
	my $last = first_id($primary);
	$primary->wait_for_catchup($heir, 'replay', $primary->lsn('flush'));
	$_->stop('immediate') for $registry, $primary;
	$_->promote for $standby, $heir;
	my $id = first_id($heir, 90);
	is(worker_id_of($id), 5, 'the promoted database has its configured worker id');
	cmp_ok($id, '>', $last, q{the promoted database's ids are larger than its primary's});
	return;
}

run_scenarios(
	'a promoted standby' => sub { fails_over(sub { $_[0]->promote }) },
	'a standby without promotion' => sub { fails_over(\&start_without_promotion) },
	'an old dump' => \&old_dump,
	'recreated' => \&recreated,
	'fails over together' => \&fails_over_together);
done_testing();
