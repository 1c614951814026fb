# A Citus cluster: a coordinator and workers, each with a worker id of its own.
# The servers connect to one another by Unix sockets.  Only a clone and its
# original need the loopback interface, because Citus looks for the clone's
# address among the original's connections; the servers ask for a password
# there.
package SnowflakeCitus;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;

# The password, in a file that all servers and their clients read.
my $password = join '', map { sprintf '%x', rand 16 } 1 .. 32;
my $has_password_file = 0;

sub write_password
{
	my $file = PostgreSQL::Test::Utils::tempdir() . '/password';

	PostgreSQL::Test::Utils::append_to_file($file, "127.0.0.1:*:*:*:$password\n");
	chmod 0600, $file or die "$file: $!";
	$ENV{PGPASSFILE} = $file;
	$has_password_file = 1;
	return;
}

# Why these tests cannot be run here; '' if they can.
sub missing
{
	my $directory = `pg_config --pkglibdir`;

	chomp $directory;
	return "Citus is not installed: there is no citus.so in $directory"
	  unless -e "$directory/citus.so";
	return '';
}

# A server, not started yet, that is to be a node of a Citus cluster.  The test
# changes its parameters by configure().
sub citus_node
{
	my ($name, $worker_id, $libraries) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	write_password() unless $has_password_file;
	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf', qq{
shared_preload_libraries = '$libraries'
snowflake.worker_id = $worker_id
track_functions = 'all'
max_connections = 100
max_prepared_transactions = 100
max_wal_senders = 4
fsync = off
citus.node_conninfo = 'sslmode=disable'
citus.local_hostname = '@{[ $node->host ]}'
citus.shard_count = 8
citus.enable_statistics_collection = off
citus.max_adaptive_executor_pool_size = 1
include 'case.conf'
});
	configure($node);
	return $node;
}

# Makes a running server listen on the loopback interface as well.
sub listen_with_password
{
	my ($node) = @_;

	$node->safe_psql('postgres', "ALTER ROLE CURRENT_USER PASSWORD '$password'");
	unlink $node->data_dir . '/pg_hba.conf';
	$node->append_conf('pg_hba.conf', q{
local all,replication all trust
host all,replication all 127.0.0.1/32 scram-sha-256
});
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\n");
	$node->restart;
	return;
}

# Makes a server the coordinator of a new cluster.
sub make_coordinator
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{CREATE EXTENSION citus});
	$node->safe_psql('postgres', sprintf q{SELECT citus_set_coordinator_host('%s', %d)},
		$node->host, $node->port);
	return;
}

# Adds a server to the cluster.
sub add_worker
{
	my ($coordinator, $node) = @_;

	$node->safe_psql('postgres', q{CREATE EXTENSION citus});
	$coordinator->safe_psql('postgres', sprintf q{SELECT citus_add_node('%s', %d)},
		$node->host, $node->port);
	return;
}

# The results of a query of one row and one column on each node, in the order
# in which the nodes joined.  Where the query fails, the result is the error
# message.
sub on_all_nodes
{
	my ($coordinator, $sql) = @_;

	return split /\n/, $coordinator->safe_psql('postgres',
		"SELECT coalesce(result, '') FROM run_command_on_all_nodes(\$q\$$sql\$q\$) ORDER BY nodeid");
}

# The contents of a reference table's replicas, as one digest for each node.
sub replicas_of
{
	my ($coordinator, $table, $column) = @_;

	my @digests = split /\n/, $coordinator->safe_psql('postgres',
		"SELECT result FROM run_command_on_placements('$table', 'SELECT md5(string_agg($column\::text, '','' ORDER BY id)) FROM %s')");
	return @digests;
}

1;
