# Registries, and servers that lease their worker ids from one.
package SnowflakeRegistry;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

our @EXPORT = qw(
  AT_ONCE_S
  make_registry
  lease_conf
  wants
  lease_of
  lease_row
  worker_id_at
  refuses
  wait_for_grant
  wait_for_renewals
  keep_from_claims
  goes_on
);

# How long a server may take for an id "at once" on a busy machine.  On an idle
# machine it takes some tenths of a second.
use constant AT_ONCE_S => 10;

# Makes a database of a server a registry: "postgres", or the one that the
# parameter "database" names.  The slack is small, because all servers have the
# clock of one machine.  The registry serves newcomers at once.
sub make_registry
{
	my ($node, %constants) = @_;
	my $database = delete $constants{database} // 'postgres';

	%constants = (lease_duration => '6 s', slack => '1 s', %constants);
	my $arguments = join ', ', map { "$_ => '$constants{$_}'" } sort keys %constants;
	$node->safe_psql('postgres', "CREATE DATABASE $database")
	  if $database ne 'postgres';
	$node->safe_psql(
		$database, qq{
		CREATE EXTENSION snowflake_registry;
		SELECT snowflake_registry.configure($arguments);
		UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp()});
	return;
}

# The lines of postgresql.conf for a server that leases any worker id from a
# registry, which is given as a server or as a connection string.
sub lease_conf
{
	my ($registry) = @_;

	$registry = $registry->connstr('postgres') if ref $registry;
	$registry =~ s/'/''/g;
	return ('snowflake.worker_id = -1', 'snowflake.worker_id_source = registry',
		"snowflake.registry = '$registry'");
}

# The parameters of a server that wants one worker id and takes no other.
sub wants
{
	my ($worker_id) = @_;
	return ('snowflake.worker_id_source = config', "snowflake.worker_id = $worker_id");
}

# Columns of the registry's view for the lease on a worker id.
sub lease_of
{
	my ($registry, $worker_id, $what) = @_;
	return value_of($registry,
		"SELECT $what FROM snowflake_registry.lease WHERE (datacenter_id, worker_id) = (0, $worker_id)");
}

# The registry's row of a worker id.
sub lease_row
{
	my ($registry, $worker_id) = @_;
	return value_of($registry,
		"SELECT * FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, $worker_id)");
}

# A server's worker id by its own snowflake_node(); '' if it has none.
sub worker_id_at
{
	my ($node) = @_;
	return value_of($node, 'SELECT worker_id FROM snowflake_node()');
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
	my $holder = wait_for(sub { value_of($server, 'SELECT lease_holder FROM snowflake_node()') }) // '';
	my $seen_at = "SELECT seen_at FROM snowflake_registry.lease WHERE holder = '$holder'";
	my $before = value_of($registry, $seen_at);

	return ok(wait_for(sub { my $now = value_of($registry, $seen_at); $now ne '' && $now ne $before }),
		$server->name . ' is granted a lease');
}

# Waits until a server has renewed its lease so many times.
sub wait_for_renewals
{
	my ($node, $count) = @_;
	my $renewals = 'SELECT lease_renewals FROM snowflake_stat()';
	my $before = value_of($node, $renewals);

	wait_for(sub { value_of($node, $renewals) >= $before + $count })
	  or die $node->name . " does not renew its lease\n";
	return;
}

# Tests that a server that has just been started issues an id at once, of the
# same worker id as its last id, and larger than its last id.
sub goes_on
{
	my ($server, $last, $what) = @_;
	my ($id, $seconds) = first_id($server);

	cmp_ok($seconds, '<', AT_ONCE_S, sprintf '%s: an id is issued at once, after %.2f s', $what, $seconds);
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

1;
