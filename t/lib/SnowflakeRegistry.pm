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
  keep_from_claims
  goes_on
  cut_off
);
our @EXPORT_OK = qw(AT_ONCE_S);

# How long a server may take for an id "at once" on a busy machine.  On an idle
# machine it takes some tenths of a second.
use constant AT_ONCE_S => 5;

# ----- registries -----

# A registry, started.  The parameters are constants as for make_registry(),
# which may be left out, and lines of postgresql.conf.
sub registry_node
{
	my ($name, @conf) = @_;
	my $constants = ref $conf[0] ? shift @conf : {};
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);

	# init() allows ten connections, which are too few on a slow machine.
	$node->append_conf('postgresql.conf',
		join("\n", 'max_connections = 50', @conf) . "\n");
	$node->start;
	make_registry($node, %$constants);
	return $node;
}

# Makes a database of a server a registry: "postgres", or the one that the
# parameter "database" names.  By default a lease outlasts a stall of a busy
# machine, and the lead is small, because all servers have the clock of one
# machine.  The slack is small for the same reason, so that a quarantine is
# short.  The registry serves newcomers at once, unless is_open is 0.
sub make_registry
{
	my ($node, %constants) = @_;
	my $database = delete $constants{database} // 'postgres';
	my $is_open = delete $constants{is_open} // 1;
	my $slack = delete $constants{slack} // '2 s';

	$node->safe_psql('postgres', "CREATE DATABASE $database")
	  if $database ne 'postgres';
	$node->safe_psql(
		$database,
		'CREATE EXTENSION snowflake_registry; '
		  . constants_sql(lease_duration => '6 s', largest_lead => '1 s', %constants)
		  . "; UPDATE snowflake_registry.setting SET slack = '$slack', reopens_at = "
		  . ($is_open ? 'clock_timestamp()' : 'reopens_at'));
	return;
}

# The statement that sets constants of a registry.
sub constants_sql
{
	my (%constants) = @_;
	return 'SELECT snowflake_registry.configure('
	  . join(', ', map { "$_ => '$constants{$_}'" } sort keys %constants) . ')';
}

# Changes a registry's constants.
sub set_registry
{
	my ($node, %constants) = @_;

	$node->safe_psql('postgres', constants_sql(%constants));
	return;
}

# A connection string of several servers, which libpq tries in this order.
sub hosts_of
{
	my (@nodes) = @_;
	return sprintf 'host=%s port=%s dbname=postgres',
	  join(',', map { $_->host } @nodes), join(',', map { $_->port } @nodes);
}

# ----- servers that lease -----

# A server, not started yet, that leases any worker id from a registry, which
# is given as a server or as a connection string.  Further lines of
# postgresql.conf follow, and override the first ones.
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

# Columns of the registry's view for the lease on a worker id.
sub lease_of
{
	my ($registry, $worker_id, $what) = @_;
	return $registry->safe_psql('postgres',
		"SELECT $what FROM snowflake_registry.lease WHERE (datacenter_id, worker_id) = (0, $worker_id)"
	);
}

# Columns of the registry's table for a worker id; all columns by default.
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

# A server's worker id by its own snowflake_node; '' if it has none.
sub worker_id_at
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT worker_id FROM snowflake_node');
}

# Waits until the lease on a worker id has expired, and the clock is past its
# fence, so that the next holder need not wait.
sub wait_for_fence
{
	my ($registry, $worker_id) = @_;

	ok( wait_for(
			sub {
				lease_row($registry, $worker_id,
					'greatest(expires_at, fence) < clock_timestamp()') eq 't';
			}),
		"the lease on worker id $worker_id has expired, and the clock is past its fence");
	return;
}

# Waits until a server refuses ids with a DETAIL of SQLSTATE 55000 that matches
# a pattern, and tests that.
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
		$server->name . ' is granted a lease');
}

# Tests that a server that has just been started issues an id at once, of the
# same worker id as its last id, and larger than its last id.
sub goes_on
{
	my ($server, $last, $what) = @_;
	my ($id, $seconds) = first_id($server);

	note sprintf '%s: first id after %.2f s', $what, $seconds;
	cmp_ok($seconds, '<', AT_ONCE_S, "$what: an id is issued at once");
	is(worker_id_of($id), worker_id_of($last), "$what: the id has the same worker id");
	cmp_ok($id, '>', $last, "$what: the id is larger than the last one");
	return;
}

# Keeps a server from claiming, by suspending its lease worker.  Returns a
# function that resumes the worker.
sub keep_from_claims
{
	my ($server) = @_;
	my $worker = worker_pid($server);

	kill 'STOP', $worker;
	return sub { kill 'CONT', $worker };
}

# ----- a standby of a registry -----

# Cuts a standby off from its primary.  The standby has replayed all WAL that
# the primary has flushed, and replays nothing more.
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
