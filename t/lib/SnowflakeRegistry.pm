# Registries, and servers that lease their worker ids from one.
package SnowflakeRegistry;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

our @EXPORT = qw(
  registry_node
  make_registry
  set_registry
  hosts_of
  leased_node
  wants
  lease_of
  lease_row
  leases
  worker_id_at
  wait_for_fence
  refuses
  wait_for_grant
  keep_from_asking
  goes_on
  cut_off
);
our @EXPORT_OK = qw(AT_ONCE_S);

# How long a server may take for an id where it waits for nothing but a machine
# that is busy.  On an idle machine it takes some tenths of a second.
use constant AT_ONCE_S => 5;

# ----- registries -----

# A registry, started.  Constants may come first, as for make_registry();
# further lines of postgresql.conf follow.
sub registry_node
{
	my ($name, @conf) = @_;
	my $constants = ref $conf[0] ? shift @conf : {};
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);

	# init() allows ten connections, which are too few where each takes long.
	$node->append_conf('postgresql.conf',
		join("\n", 'max_connections = 50', @conf) . "\n");
	$node->start;
	make_registry($node, %$constants);
	return $node;
}

# Makes a database of a server a registry: "postgres", or "database" among the
# constants.  By default, leases are long enough for a machine that stalls, and
# the servers' clocks are one.
sub make_registry
{
	my ($node, %constants) = @_;
	my $database = delete $constants{database} // 'postgres';

	$node->safe_psql('postgres', "CREATE DATABASE $database")
	  if $database ne 'postgres';
	$node->safe_psql(
		$database,
		'CREATE EXTENSION snowflake_registry; '
		  . constants_sql(lease_duration => '6 s', largest_lead => '1 s', %constants));
	return;
}

# The statement that sets constants of a registry.
sub constants_sql
{
	my (%constants) = @_;
	return 'SELECT snowflake_registry.configure('
	  . join(', ', map { "$_ => '$constants{$_}'" } sort keys %constants) . ')';
}

# Changes a registry's constants at once, where configure() would wait until
# all leases under the former ones are over.
sub set_registry
{
	my ($node, %constants) = @_;

	$node->safe_psql(
		'postgres',
		'UPDATE snowflake_registry.setting SET '
		  . join(', ', map { "$_ = '$constants{$_}'" } sort keys %constants));
	return;
}

# A connection string to several servers, which are tried in their order.
sub hosts_of
{
	my (@nodes) = @_;
	return sprintf 'host=%s port=%s dbname=postgres',
	  join(',', map { $_->host } @nodes), join(',', map { $_->port } @nodes);
}

# ----- servers that lease -----

# A server, not started yet, that leases any worker id from a registry: a
# server, or a connection string.  Further lines of postgresql.conf follow and
# win.
sub leased_node
{
	my ($name, $registry, @conf) = @_;

	$registry = $registry->connstr('postgres') if ref $registry;
	$registry =~ s/'/''/g;
	return snowflake_node(
		$name,
		'snowflake.worker_id = -1',
		'snowflake.worker_id_source = registry',
		"snowflake.registry = '$registry'", @conf);
}

# The parameters of a server that wants one worker id and takes no other.
sub wants
{
	my ($worker_id) = @_;
	return ('snowflake.worker_id_source = config',
		"snowflake.worker_id = $worker_id");
}

# ----- leases -----

# What the registry's view shows of the lease on a worker id.
sub lease_of
{
	my ($registry, $worker_id, $what) = @_;
	return $registry->safe_psql('postgres',
		"SELECT $what FROM snowflake_registry.lease WHERE (datacenter_id, worker_id) = (0, $worker_id)"
	);
}

# What the registry's table has of the lease on a worker id; without a column,
# the whole row.
sub lease_row
{
	my ($registry, $worker_id, $what) = @_;

	$what //= '*';
	return $registry->safe_psql('postgres',
		"SELECT $what FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, $worker_id)"
	);
}

# The nodes of a registry that were leased, as datacenter_id:worker_id.
sub leases
{
	my ($registry, $database) = @_;

	return $registry->safe_psql($database // 'postgres',
		q{SELECT string_agg(datacenter_id || ':' || worker_id, ' ' ORDER BY datacenter_id, worker_id) FROM snowflake_registry.lease}
	);
}

# A server's worker id as it says itself; '' if it has none.
sub worker_id_at
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT worker_id FROM snowflake_node');
}

# Waits until a lease on a worker id is over, and the clock is past the fence:
# no id of the holder can be as late.
sub wait_for_fence
{
	my ($registry, $worker_id) = @_;

	ok( wait_for(
			sub {
				lease_row($registry, $worker_id,
					'greatest(expires_at, fence) < clock_timestamp()') eq 't';
			}),
		"the lease on $worker_id is over, and its fence is past");
	return;
}

# Waits until a server issues no id for a reason, and tests that; the reason is
# the DETAIL of SQLSTATE 55000.
sub refuses
{
	my ($node, $reason, $what) = @_;
	my $refusal;

	wait_for(sub { ($refusal = refusal_of($node)) =~ $reason });
	return like($refusal, $reason, $what);
}

# Waits until a registry has granted or renewed a server's lease.
sub wait_for_grant
{
	my ($registry, $server) = @_;
	my $holder = $server->safe_psql('postgres',
		'SELECT lease_holder FROM snowflake_node');
	my $leased = "SELECT seen_at FROM snowflake_registry.lease WHERE holder = '$holder'";
	my $before = $registry->safe_psql('postgres', $leased);

	return ok(
		wait_for(
			sub {
				my $seen = $registry->safe_psql('postgres', $leased);
				$seen ne '' && $seen ne $before;
			}),
		$server->name . ' comes forward');
}

# Tests that a server that has just been started issues an id at once, under
# the same worker id as its last id, and larger than that.
sub goes_on
{
	my ($server, $last, $what) = @_;
	my ($id, $seconds) = first_id($server);

	note sprintf '%s: first id after %.2f s', $what, $seconds;
	cmp_ok($seconds, '<', AT_ONCE_S, "$what: an id at once");
	is(worker_id_of($id), worker_id_of($last), "$what: under the same worker id");
	cmp_ok($id, '>', $last, "$what: ids go on");
	return;
}

# Keeps a server from asking its registry, until the function that this returns
# is called.
sub keep_from_asking
{
	my ($server) = @_;
	my $worker = worker_pid($server, 'registry');

	kill 'STOP', $worker;
	return sub { kill 'CONT', $worker };
}

# ----- a standby of a registry -----

# Cuts a standby off from its primary, once it has replayed all that the
# primary has flushed: from then on the standby learns of nothing.
sub cut_off
{
	my ($primary, $standby) = @_;

	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	ok( wait_for(
			sub {
				$standby->safe_psql('postgres',
					'SELECT count(*) FROM pg_stat_wal_receiver') eq '0';
			}),
		'the standby is cut off');
	return;
}

1;
