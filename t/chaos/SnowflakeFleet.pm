# The servers of t/chaos/leases.pl that lease their worker ids, their copies,
# and the clients that draw ids from each of them.
package SnowflakeFleet;

use strict;
use warnings FATAL => 'all';

use List::Util qw(min shuffle);
use PostgreSQL::Test::Cluster;
use SnowflakeChaosServer;
use SnowflakeFaults;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeServer qw(settle);

# How long a standby may take to replay what its primary has.
use constant REPLAY_S => 10;

# Returns a fleet without servers, whose clients are a SnowflakeChaos.
sub new
{
	my ($class, $clients) = @_;

	return bless {
		clients => $clients,
		client_errors => 0,         # clients that ended with an error
		servers => [],
		names => 0                  # the number in the next name of a node
	}, $class;
}

# Adds a server that leases its worker id, and starts the server.  Parameters
# are a connection string to the registry, how many seconds its clock is ahead
# of the real one, snowflake.block_size, and further lines of postgresql.conf.
sub add_server
{
	my ($self, $conninfo, $skew_s, $block_size, @conf) = @_;
	my $name = 'server' . $self->{names}++;
	my $node = leased_node(
		$name, $conninfo, chaos_conf(),
		"snowflake.server_name = '$name'",
		"include 'parameters.conf'", @conf);
	my $server = SnowflakeChaosServer->new($node, $skew_s);

	write_parameters($node, block_size => $block_size);
	$server->bring_back;
	$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
	push @{ $self->{servers} }, $server;
	return;
}

# ----- which server -----

# Returns all servers of the run, also those that are gone.
sub servers
{
	my ($self) = @_;
	return @{ $self->{servers} };
}

# Returns the servers that are up.
sub servers_up
{
	my ($self) = @_;
	return grep { $_->is_up } $self->servers;
}

# Returns a random server that is up, or nothing.
sub any_server
{
	my ($self) = @_;
	return (shuffle $self->servers_up)[0];
}

# Returns a random server that is up and whose clock has no step, or nothing.
sub any_server_with_right_clock
{
	my ($self) = @_;
	return (shuffle grep { $_->{step_s} == 0 } $self->servers_up)[0];
}

# Returns all copies of the run, also those that are gone.
sub copies
{
	my ($self) = @_;
	return grep { $_->{name} =~ /^copy/ } $self->servers;
}

# Returns whether a copy runs, or will run again.
sub has_copy
{
	my ($self) = @_;
	return scalar grep { $_->{state} ne 'gone' } $self->copies;
}

# Returns the servers that are not copies and have not been replaced.
sub members
{
	my ($self) = @_;

	return grep { $_->{name} =~ /^server/ && $_->{state} ne 'gone' }
	  $self->servers;
}

# Returns how many seconds of a server's lease are left, by its own clock.
sub lease_left_s
{
	my ($self, $server) = @_;

	return try_value_of($server->{node},
		'SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM snowflake_node'
	) || 0;
}

# Returns the time by the slowest clock of these servers.
sub slowest_time
{
	my ($self, @servers) = @_;

	return min map {
		value_when_there_is_one($_->{node},
			'SELECT extract(epoch FROM clock_timestamp())')
	} @servers;
}

# Returns the server whose lease ends last, and how many seconds of the lease
# are left.  Returns nothing if no server is up.
sub newest_lease
{
	my ($self) = @_;
	my %left_s =
	  map { $_->{name} => $self->lease_left_s($_) } $self->servers_up;
	my ($server) = sort { $left_s{ $b->{name} } <=> $left_s{ $a->{name} } }
	  $self->servers_up;

	return defined $server ? ($server, $left_s{ $server->{name} }) : ();
}

# ----- clients -----

# Starts clients that draw ids from a server.
sub draw_ids
{
	my ($self, $server) = @_;

	push @{ $server->{clients} },
	  $self->{clients}->start_clients_of($server->{node}, qw(single many));
	return;
}

# Returns the numbers of the clients of these servers.
sub clients_of
{
	my ($self, @servers) = @_;
	return map { @{ $_->{clients} } } @servers;
}

# Tells the clients of these servers to end.
sub dismiss_clients
{
	my ($self, @servers) = @_;

	$self->{clients}->command($_->{name}, 0, 'end') for @servers;
	return;
}

# Waits for the clients of these servers, which were told to end.
sub await_clients
{
	my ($self, @servers) = @_;

	$self->{client_errors} +=
	  $self->{clients}->wait_for_clients($self->clients_of(@servers));
	return;
}

# ----- copies -----

# Returns a server with a copy of another server's data directory.  If the other
# server runs, it is suspended while the directory is copied.
sub copied_server
{
	my ($self, $original, $prefix) = @_;
	my $is_running = $original->is_up;

	$original->suspend_all if $is_running;
	my $node = copy_of($original->{node}, $prefix . $self->{names}++);
	my $copy = SnowflakeChaosServer->new($node, $original->{skew_s});
	$original->resume_all if $is_running;
	return $copy;
}

# Returns a base backup as a server that is not started yet, or nothing if the
# backup failed.
sub restored_backup
{
	my ($self, $original, $prefix) = @_;
	my $node = PostgreSQL::Test::Cluster->new($prefix . $self->{names}++);
	my $backup = SnowflakeChaosServer->new($node, $original->{skew_s});

	base_backup($original->{node}, $node) or return;
	settle($node);
	return $backup;
}

# Returns a standby that has replayed all WAL of its primary up to now, or
# nothing if that takes more than REPLAY_S.
sub caught_up_standby
{
	my ($self, $original, $prefix) = @_;
	my $standby = $self->restored_backup($original, $prefix) // return;
	my $until = now() + REPLAY_S;
	my $lsn;

	$standby->{node}->append_conf('postgresql.conf',
		"primary_conninfo = '" . $original->{node}->connstr . "'");
	write_signal($standby->{node}, 'standby');
	$standby->bring_back;
	$lsn = try_value_of($original->{node}, 'SELECT pg_current_wal_flush_lsn()');
	while (defined $lsn && now() < $until)
	{
		return $standby if has_replayed($standby->{node}, $lsn);
		let_pass(0.05);
	}
	$standby->stop('immediate');
	return;
}

# Adds a server that was copied from another one.  Starts the server, or
# promotes it if it runs, because it is then a standby.  Sets its clock first,
# because all clocks may have been put forward since the copy was made.
sub add_copy
{
	my ($self, $server) = @_;

	push @{ $self->{servers} }, $server;
	$server->adjust_clock;
	if ($server->is_up)
	{
		$server->{node}->promote;
		log_event("$server->{name}: promoted");
	}
	else
	{
		$server->bring_back;
	}
	$self->draw_ids($server);
	return;
}

# Removes a copy for good.
sub remove_copy
{
	my ($self, $copy) = @_;

	# A copy that is suspended or stopped comes back first.
	unless ($copy->is_up)
	{
		after(0.2, sub { $self->remove_copy($copy) });
		return;
	}
	$self->dismiss_clients($copy);
	$copy->stop((qw(fast immediate))[ rand 2 ]);
	$self->await_clients($copy);
	log_event("$copy->{name}: removed");
	$copy->{state} = 'gone';
	$copy->{node}->clean_node;
	return;
}

# Ends a stopped server's part in the test.  The data directory stays: its inode
# is part of a holder's identity, so no new data directory may get the same
# inode.
sub retire
{
	my ($self, $server) = @_;

	$self->dismiss_clients($server);
	$self->await_clients($server);
	$server->{state} = 'gone';
	return;
}

1;
