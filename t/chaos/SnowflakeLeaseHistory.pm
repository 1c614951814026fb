# The history of the leases in t/chaos/leases.pl: which server held which
# lease when.  The history is in the ids that clients received, in the servers'
# logs, and in a table of the registry that keeps each change of a lease.
package SnowflakeLeaseHistory;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use SnowflakeFaults;
use SnowflakeServer;
use Test::More;

our @EXPORT = qw(
  LAYOUT
  worker_bit_of
  tick_of
  instant_of
  keep_history
  count_hand_overs
  count_grants
  tell_of_duplicate
);

# The layout of the ids: one bit is the worker id.
use constant {
	LAYOUT => '41/5/1/12',
	EPOCH_S => 1288834974.657,
	BITS_BELOW_TICK => 18,
	BITS_BELOW_WORKER => 12,
};

# Returns the worker id of an id.
sub worker_bit_of
{
	my ($id) = @_;
	return $id >> BITS_BELOW_WORKER & 1;
}

# Returns the tick of an id.
sub tick_of
{
	my ($id) = @_;
	return $id >> BITS_BELOW_TICK;
}

# Returns the time of an id in seconds since the Unix epoch.
sub instant_of
{
	my ($id) = @_;
	return ($id >> BITS_BELOW_TICK) / 1000 + EPOCH_S;
}

# Has a registry keep each change of a lease in a table "history".
sub keep_history
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE IF NOT EXISTS history (
			number bigint GENERATED ALWAYS AS IDENTITY,
			at timestamptz DEFAULT clock_timestamp(),
			lease jsonb);
		CREATE OR REPLACE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.history (lease) VALUES (to_jsonb(NEW));
			RETURN NULL;
		END $$;
		CREATE TRIGGER history AFTER INSERT OR UPDATE ON snowflake_registry.node
			FOR EACH ROW EXECUTE FUNCTION keep_history();
	});
	return;
}

# Returns the hand-overs of each worker id: in the order of the ids, each place
# where an id of one server is followed by an id of another server.  A server
# that gets a worker id begins after all ids that the last holder may have
# issued, so there is at most one hand-over for each grant.  If there are more
# hand-overs than grants, two servers had the worker id at once, even if by
# chance no id came twice.
#
# "server_of" is the name of the server of each client.
sub count_hand_overs
{
	my ($ledger, $server_of) = @_;
	my (%last, %hand_overs);

	$ledger->each_id(
		sub {
			my ($id, $client) = @_;
			my $worker_id = worker_bit_of($id);
			my $server = $server_of->{$client};

			return if ($last{$worker_id} // '') eq $server;
			push @{ $hand_overs{$worker_id} },
			  sprintf '%.3f %s', instant_of($id), $server
			  if defined $last{$worker_id};
			$last{$worker_id} = $server;
		});
	return %hand_overs;
}

# Returns for each worker id how often the servers' logs say that a server got a
# lease on it that this server did not have before.
sub count_grants
{
	my (@servers) = @_;
	my %grants;

	for my $server (@servers)
	{
		my $log = logged($server->{node});

		$grants{$1}++
		  while $log =~
		  /snowflake worker_id (\d+) .*is leased to this server until/g;
	}
	return %grants;
}

# Prints an id that came twice, to two clients, and the leases at about its
# time.
sub tell_of_duplicate
{
	my ($registry, $server_of, $id, @clients) = @_;
	my $worker_id = worker_bit_of($id);
	my $at = instant_of($id);

	diag(sprintf 'id %d of worker_id %d and %.3f came to %s', $id, $worker_id,
		$at, join ' and ', map { "client $_ of $server_of->{$_}" } @clients);
	diag(
		try_value_of(
			$registry->{node}, qq{
			SELECT at, lease FROM history
			WHERE lease->>'worker_id' = '$worker_id'
			  AND (lease->>'fence')::timestamptz
				BETWEEN to_timestamp($at) - interval '10 s'
				    AND to_timestamp($at) + interval '10 s'
			ORDER BY number}) // '');
	return;
}

1;
