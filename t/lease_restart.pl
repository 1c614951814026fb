# Worker ids leased from a registry: each server has a worker id of its own,
# and keeps the worker id over restarts, over crashes, and while the registry
# is down.  A copy of a server gets another worker id.
# t/lease_conflicts.pl tests refusals.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

# Leases outlast a stall of a busy machine.
my $registry = registry_node('registry', { lease_duration => '60 s' });

# Eight servers: one, and seven copies of its data directory.
my @server = leased_node(
	'server_0', $registry,
	'wal_level = replica',
	'max_wal_senders = 4',
	'restart_after_crash = on',
	"include 'case.conf'");
for my $number (1 .. 7)
{
	push @server, copy_of($server[0], "server_$number");
}

sub next_id
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT snowflake_nextval()');
}

my $unreachable =
  qr/^The registry cannot be reached, does not answer in time, or does not let this server in\.$/;

# ----- eight servers at once -----

my %worker_id;
{
	my %ids;
	my $begin = time;

	configure($_) for @server;
	my @starts = map {
		my $output = '';
		IPC::Run::start(
			[
				'pg_ctl', '--pgdata', $_->data_dir, '--log', $_->logfile,
				'--options', '--cluster-name=' . $_->name, 'start'
			],
			'>', \$output, '2>&1')
	} @server;
	$_->finish for @starts;
	$_->_update_pid(1) for @server;
	first_id($_) for @server;
	note sprintf 'eight servers start at once: %.2f s to the last one\'s first id',
	  time - $begin;

	for my $node (@server)
	{
		my @issued = split /\n/,
		  $node->safe_psql('postgres', 'SELECT * FROM snowflake_nextvals(1000)');
		my $name = $node->name;

		$worker_id{$name} = worker_id_at($node);
		is(scalar(grep { worker_id_of($_) != $worker_id{$name} } @issued),
			0, "$name issues ids of its own worker id $worker_id{$name}");
		$ids{$_}++ for @issued;
		is( $registry->safe_psql('postgres',
				"SELECT worker_id FROM snowflake_registry.lease WHERE holder = '"
				  . $node->safe_psql('postgres',
					'SELECT lease_holder FROM snowflake_node')
				  . "' AND expires_at > now()"),
			$worker_id{$name},
			"the registry shows $name as the holder of worker id $worker_id{$name}");
	}
	is_deeply([ sort values %worker_id ], [ 0 .. 7 ], 'eight servers have eight worker ids');
	is(scalar(keys %ids), 8000, 'no id of eight servers comes twice');
}

# ----- restarts -----

{
	my ($clean, $immediate, $crash) = @server[ 0 .. 2 ];
	my ($id, $before);

	$before = next_id($clean);
	$clean->stop;
	is(lease_of($registry, $worker_id{ $clean->name }, 'state'),
		'released', 'a clean stop gives the worker id back');
	is( lease_row(
			$registry,
			$worker_id{ $clean->name },
			"fence > clock_timestamp() - interval '10 s' AND fence < clock_timestamp() + interval '1 s'"
		),
		't',
		'a clean stop lowers the fence to about the time of the last id');
	$clean->start;
	$id = first_id($clean);
	is(worker_id_of($id), $worker_id{ $clean->name },
		'after a clean stop the server gets its worker id again');
	ok($id > $before, 'after a clean stop ids go on');
	like(
		logged($clean),
		qr/LOG:  snowflake worker_id $worker_id{$clean->name} has been given back to the registry/,
		'the log says that the worker id was given back');

	# Change the incarnation in the registry, as another claim in the name of
	# this holder would, so that the server does not know the newest lease.
	$registry->safe_psql('postgres',
		"UPDATE snowflake_registry.node SET incarnation = incarnation + 1 WHERE (datacenter_id, worker_id) = (0, $worker_id{$clean->name})"
	);
	$clean->stop;
	is(lease_of($registry, $worker_id{ $clean->name }, 'state'),
		'held', 'a stop does not release a lease that the server does not know');
	like(
		logged($clean),
		qr/LOG:  snowflake worker_id $worker_id{$clean->name} could not be given back to the registry/,
		'the log says that the worker id was not given back');
	$clean->start;
	$id = worker_id_of(first_id($clean));
	ok(!(grep { $_ == $id } values %worker_id), 'after a stop without a release the server gets another worker id');
	$worker_id{ $clean->name } = $id;

	$before = next_id($immediate);
	$immediate->stop('immediate');
	$immediate->start;
	$id = next_id($immediate);
	is(worker_id_of($id), $worker_id{ $immediate->name },
		'after an immediate stop the first statement issues an id of the same worker id');
	ok($id > $before, 'after an immediate stop ids go on');
	like(
		logged($immediate),
		qr/LOG:  snowflake worker_id $worker_id{$immediate->name} is still leased to this server/,
		'the log says that the lease is still in force');

	$before = next_id($crash);
	my $victim = SnowflakeSession->new($crash);
	my $offset = -s $crash->logfile;
	kill 'KILL', $victim->{pid};
	ok( wait_for(
			sub {
				logged($crash, $offset) =~
				  /reinitializing.*ready to accept connections/s;
			}),
		'a backend is killed, and the server starts all processes again');
	$id = next_id($crash);
	is(worker_id_of($id), $worker_id{ $crash->name },
		'after a crash the first statement issues an id of the same worker id');
	ok($id > $before, 'after a crash ids go on');
}

# The time from the start to the first id.
{
	my $node = $server[1];
	my $begin;

	$node->stop;
	unlink mark_file($node);
	$begin = time;
	$node->start;
	first_id($node);
	note sprintf 'start to first id, with a lease from the registry: %.2f s',
	  time - $begin;
	isnt(worker_id_at($node), '', 'a server without a page leases a worker id');
	$worker_id{ $node->name } = worker_id_at($node);

	$registry->stop;
	$node->stop('immediate');
	$begin = time;
	$node->start;
	my $id = next_id($node);
	note sprintf 'start to first id, with the registry down: %.2f s',
	  time - $begin;
	is(worker_id_of($id), $worker_id{ $node->name },
		'while the registry is down a server restarts with the lease of its page');

	# While the registry is down, a stop cannot release the lease, so the
	# server keeps the lease.
	$node->stop;
	$node->start;
	is(worker_id_of(next_id($node)), $worker_id{ $node->name },
		'while the registry is down a server keeps its worker id over a clean stop');
	$registry->start;
}

# ----- what the server shows -----

{
	my $node = $server[2];

	is( $node->safe_psql('postgres', q{
SELECT worker_id_source, worker_id = } . $worker_id{ $node->name } . q{,
       lease_holder ~ '^[-0-9a-f]{36}/[0-9a-f]+/[0-9]+$',
       lease_expires_at BETWEEN now() AND now() + interval '60 s'
  FROM snowflake_node}),
		'registry|t|t|t',
		'snowflake_node shows the lease');
	is( $node->safe_psql('postgres', q{
CREATE ROLE watcher IN ROLE pg_monitor;
CREATE ROLE passer_by;
SET ROLE watcher;
SELECT lease_holder IS NULL, lease_expires_at IS NULL FROM snowflake_node;
SET ROLE passer_by;
SELECT lease_holder IS NULL, lease_expires_at IS NULL FROM snowflake_node;
RESET ROLE;
DROP ROLE watcher, passer_by;}),
		"f|f\nt|f",
		'snowflake_node shows the holder to members of pg_monitor only');
	is( $node->safe_psql('postgres',
			'SELECT lease_renewals > 0 FROM snowflake_stat'),
		't',
		'snowflake_stat counts renewals');

	# Only the lease worker is terminated.
	my $offset = -s $node->logfile;
	$node->safe_psql('postgres',
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'snowflake registry'"
	);
	ok( wait_for(
			sub { logged($node, $offset) =~ /is leased to this server until/ }),
		'the lease worker is terminated, and a new one leases a worker id');
	is(worker_id_of(first_id($node)), $worker_id{ $node->name },
		'the new lease worker leases the same worker id');

	$node->safe_psql('postgres', 'SELECT snowflake_stat_reset()');
	is( $node->safe_psql('postgres',
			'SELECT lease_renewals, lease_failures FROM snowflake_stat'),
		'0|0',
		'snowflake_stat_reset() resets renewals and failures');
}

# ----- copies -----

{
	my ($stopped, $running) = @server[ 3, 5 ];

	$stopped->stop('immediate');
	my $copy = copy_of($stopped, 'copy_of_stopped');
	$stopped->start;
	$running->backup('base');
	my $base = PostgreSQL::Test::Cluster->new('copy_of_running');
	$base->init_from_backup($running, 'base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($running, 'base', has_streaming => 1);

	$registry->stop;
	$_->start for $copy, $base, $standby;
	refuses($_, $unreachable, $_->name . ' has no lease with the registry down')
	  for $copy, $base;
	is(worker_id_of(next_id($_)),
		$worker_id{ $_->name }, $_->name . ' issues ids while the registry is down')
	  for $stopped, $running;
	$registry->start;

	my %seen = map { $_ => 1 } values %worker_id;
	for my $node ($copy, $base)
	{
		my $id = worker_id_of(first_id($node));
		ok(!$seen{$id}++, $node->name . " gets worker id $id, which no server has");
	}
	is(worker_id_of(next_id($_)),
		$worker_id{ $_->name }, $_->name . ' keeps its worker id beside the copy')
	  for $stopped, $running;

	# A standby does not ask for a worker id before it is promoted.
	my $leases = leases($registry);
	$running->wait_for_catchup($standby, 'replay', $running->lsn('flush'));
	is((sqlstate_of($standby, 'SELECT snowflake_nextval()'))[0],
		'25006', 'a standby of a server with a lease issues nothing');
	is(worker_id_at($standby), '', 'a standby of a server with a lease has no worker id');
	is(leases($registry), $leases, 'a standby of a server with a lease has no lease');
	$standby->promote;
	my $id = worker_id_of(first_id($standby));
	ok(!$seen{$id}, "a standby promoted beside its primary gets worker id $id, which no server has");
	is(worker_id_of(next_id($running)),
		$worker_id{ $running->name }, 'the primary keeps its worker id');
	$_->stop('immediate') for $copy, $base, $standby;
}

$_->stop for grep { defined $_->{_pid} } @server;
$registry->stop;

done_testing();
