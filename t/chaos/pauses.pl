# How long servers are without ids when a server or the registry restarts,
# fails or moves.  The test prints these times as a table, and tests that each
# is within a bound.
#
# Two servers lease any worker id.  Two have a configured worker id each, which
# the registry guards.  A client of each server draws ids all the time.  A
# pause is the longest time between two answers with ids.  A pause below 0.1 s
# means nothing, because a client waits up to 40 ms between its queries.
#
#   LEASE_SECONDS   the lease's duration (4); largest_lead is a quarter of it,
#                   but 10 s at most.  With 180, the times are those of the
#                   defaults, and the run takes about half an hour.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib", $FindBin::RealBin;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeFaults;
use SnowflakeLedger;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep);

my $lease_s = $ENV{LEASE_SECONDS} || 4;
my $lead_s = min(10, $lease_s / 4);

# How long processes take to end and to start, and clients to connect again, on
# a busy machine.  Each bound includes this time.
use constant SLACK_S => 5;

# What a quarantine of the registry lasts beyond a lease and the lead.
use constant QUARANTINE_S => 5;

# A shorter pause may come from the client alone, if the machine delays it.
use constant UNNOTICED_S => 1;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $chaos = SnowflakeChaos->new(
	directory => $directory,
	seed => 1,
	batch => sub { return "SELECT snowflake_nextval();\n" });

# ----- registries and servers -----

my @conf = split /\n/, q{
shared_buffers = 16MB
max_connections = 30
max_wal_size = 32MB
min_wal_size = 2MB
autovacuum = off};

# A server that has the extension, to copy all others from.
my $template = PostgreSQL::Test::Cluster->new('template');
$template->init(allows_streaming => 1, extra => ['--wal-segsize=1']);
$template->append_conf('postgresql.conf', join "\n", @conf, '');
$template->start;
$template->safe_psql('postgres', 'CREATE EXTENSION snowflake');
$template->backup('base');
$template->stop;

my $registry = PostgreSQL::Test::Cluster->new('registry');
$registry->init_from_backup($template, 'base');
$registry->start;
$registry->safe_psql(
	'postgres', qq{
	CREATE EXTENSION snowflake_registry;
	SELECT snowflake_registry.configure(
		lease_duration => make_interval(secs => $lease_s),
		largest_lead => make_interval(secs => $lead_s));
	UPDATE snowflake_registry.setting
	   SET slack = make_interval(secs => ${\QUARANTINE_S}), reopens_at = clock_timestamp();
	CREATE ROLE fleet LOGIN;
	SELECT snowflake_registry.allow('fleet')});
my $standby = standby_node($registry, 'standby');
$standby->start;

my $conninfo = sprintf 'host=%s,%s port=%d,%d dbname=postgres user=fleet',
  $registry->host, $standby->host, $registry->port, $standby->port;
my %mode_of = (any => 'any worker id', fixed => 'a configured worker id');

# A server, not started yet.  Its mode is "any" or "fixed"; a fixed worker id
# is its number.
sub server_of_mode
{
	my ($mode, $number) = @_;
	my $name = "${mode}_$number";
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($template, 'base');
	$node->append_conf(
		'postgresql.conf',
		join "\n",
		"shared_preload_libraries = 'snowflake'",
		"snowflake.registry = '$conninfo'",
		"snowflake.server_name = '$name'",
		$mode eq 'any'
		? ('snowflake.worker_id_source = registry')
		: wants($number),
		'');
	return { name => $name, mode => $mode, number => $number, node => $node };
}

sub start_client_of
{
	my ($server) = @_;

	($server->{client}) = $chaos->start_clients_of($server->{node}, 'single');
	return;
}

# Moves all files to a new data directory, so that the server is a new holder to
# the registry, as on another machine.  The old directory stays, so that the new
# one has another inode.
sub move_directory
{
	my ($server) = @_;
	my $data = $server->{node}->data_dir;
	my $kept = "$data.before" . ++$server->{moves};

	rename $data, $kept or die "$data: $!";
	mkdir $data, 0700 or die "$data: $!";
	rename $_, $data . substr $_, length $kept or die "$_: $!" for glob "$kept/*";
	unlink "$data/postmaster.pid";
	return;
}

# ----- measurements -----

# Reads from a client's file the times, by now(), of answers with ids that the
# client has received since the last call.  Clients flush whole answers, so
# each line is complete.
sub read_answers
{
	my ($server) = @_;
	my $has_id = 0;

	open my $fh, '<', "$directory/client$server->{client}" or return;
	seek $fh, $server->{position} // 0, 0;
	while (my $line = <$fh>)
	{
		$has_id = 1 if $line =~ /^\d+$/;
		next unless $line =~ /^\+ \S+ (\S+)\n/;
		push @{ $server->{answers} }, $1 if $has_id;
		$has_id = 0;
		$server->{position} = tell $fh;
	}
	close $fh;
	return;
}

sub answers_since
{
	my ($server, $since) = @_;

	read_answers($server);
	return grep { $_ >= $since } @{ $server->{answers} // [] };
}

# Waits until all servers' clients have received ids after an instant.
sub wait_for_answers
{
	my ($since, $seconds, @servers) = @_;

	for my $server (@servers)
	{
		wait_for(
			sub {
				read_answers($server);
				return ($server->{answers}[-3] // 0) >= $since;
			},
			$seconds)
		  or die "$server->{name} issues no ids\n";
	}
	return;
}

# The longest time without ids of a server's client since an instant.
sub pause_of
{
	my ($server, $since) = @_;
	my @answers = answers_since($server, $since);

	return max(map { $answers[$_] - $answers[ $_ - 1 ] } 1 .. $#answers);
}

my @table;                      # [what, {mode => pause}, bound]

# Measures the longest pause of servers during an event: from before the event
# until all servers have ids again.  The bounds are in seconds, by mode.
sub measure
{
	my ($what, $bound, $servers, $cause_event) = @_;
	my $begin = now();
	my %pause;

	wait_for_answers($begin, SLACK_S, @$servers);
	$cause_event->();
	wait_for_answers(now(), 2 * max(values %$bound) + 10 * SLACK_S,
		@$servers);
	for my $server (@$servers)
	{
		my $mode = $server->{mode};
		$pause{$mode} =
		  max($pause{$mode} // 0, pause_of($server, $begin));
	}
	report($what, $bound, %pause);
	return;
}

# Tests pauses against their bounds.
sub report
{
	my ($what, $bound, %pause) = @_;

	push @table, [ $what, \%pause, $bound ];
	for my $mode (sort keys %pause)
	{
		cmp_ok($pause{$mode}, '<=', $bound->{$mode},
			sprintf '%s, %s: %.2f s without ids',
			$what, $mode_of{$mode}, $pause{$mode});
	}
	return;
}

sub bound
{
	my ($any_s, $fixed_s) = @_;
	return { any => $any_s, fixed => $fixed_s // $any_s };
}

# ----- the run -----

my @servers = (
	server_of_mode(any => 1), server_of_mode(any => 2),
	server_of_mode(fixed => 21), server_of_mode(fixed => 22));
for my $server (@servers)
{
	$server->{node}->start;
	first_id($server->{node});
	start_client_of($server);
}
my ($any, undef, $fixed) = @servers;
my @pair = ($any, $fixed);

measure(
	'restart of each server, one after the other',
	bound(SLACK_S),
	\@servers,
	sub {
		for my $server (@servers)
		{
			$server->{node}->restart;
			wait_for_answers(now(), 60, $server);
		}
	});

measure(
	'crash of a server, which starts again',
	bound(SLACK_S),
	\@pair,
	sub {
		for my $server (@pair)
		{
			kill_hard($server->{node});
			$server->{node}->start;
		}
	});

my $short_s = min(10, $lease_s / 4);
measure(
	sprintf('registry down for %.3g s', $short_s),
	bound(UNNOTICED_S),
	\@servers,
	sub {
		$registry->stop('immediate');
		sleep $short_s;
		$registry->start;
	});

# The longest time between a holder's renewals.
my $renewal_s = min(60, $lease_s / 6);

# Waits until every server has renewed its lease.
sub wait_until_all_renew
{
	my $renewals = 'SELECT lease_renewals FROM snowflake_stat';
	my @before = map { $_->{node}->safe_psql('postgres', $renewals) } @servers;

	for my $i (0 .. $#servers)
	{
		my $node = $servers[$i]{node};

		wait_for(
			sub { $node->safe_psql('postgres', $renewals) > $before[$i] },
			$renewal_s + 30)
		  or die "$servers[$i]{name} does not renew its lease\n";
	}
	return;
}

# A server uses its lease for nine tenths of lease_duration after the last
# renewal.  A registry that has crashed begins a quarantine.
for my $how (qw(clean crash))
{
	wait_until_all_renew();
	measure(
		sprintf('registry down for %.3g s (%s)',
			$lease_s,
			$how eq 'clean' ? 'a clean stop' : 'a crash'),
		bound(
			$lease_s / 10 + $renewal_s
			  + ($how eq 'crash' ? $lease_s + $lead_s + QUARANTINE_S : 0)
			  + SLACK_S),
		\@servers,
		sub {
			$registry->stop($how eq 'clean' ? 'fast' : 'immediate');
			sleep $lease_s;
			$registry->start;
		});
}

measure(
	'clean stop, reboot and start of a server',
	bound(SLACK_S),
	\@pair,
	sub {
		for my $server (@pair)
		{
			$server->{node}->stop;
			move_directory($server);
			$server->{node}->start;
		}
	});

measure(
	'crash and reboot of a server',
	bound(SLACK_S, $lease_s + $lead_s + SLACK_S),
	\@pair,
	sub {
		for my $server (@pair)
		{
			kill_hard($server->{node});
			move_directory($server);
			$server->{node}->start;
		}
	});

measure(
	'crash and reboot of a server, and free()',
	bound(SLACK_S, $lead_s + SLACK_S),
	[$fixed],
	sub {
		kill_hard($fixed->{node});
		move_directory($fixed);
		$registry->safe_psql('postgres',
			"SELECT snowflake_registry.free(0, $fixed->{number})");
		$fixed->{node}->start;
	});

# A standby that has not heard of the last renewals takes over.
my @newcomers = (server_of_mode(any => 3), server_of_mode(fixed => 13));
my $promoted_at;
cut_off($registry, $standby);
wait_until_all_renew();
measure(
	'failover of the registry: holders',
	bound(UNNOTICED_S),
	\@servers,
	sub {
		$registry->stop('immediate');
		$standby->promote;
		$promoted_at = now();
	});
measure(
	'failover of the registry: holders restarted right afterwards',
	bound(SLACK_S),
	\@pair,
	sub { $_->{node}->restart for @pair });

# Start newcomers last, because the registry may grant them a worker id that a
# server has just released.
for my $server (@newcomers)
{
	$server->{node}->start;
	start_client_of($server);
}
wait_for_answers($promoted_at, 4 * ($lease_s + $lead_s) + 60, @newcomers);
report(
	'failover of the registry: newcomers, from the failover on',
	bound($lease_s + $lead_s + QUARANTINE_S + SLACK_S),
	map { $_->{mode} => (answers_since($_, $promoted_at))[0] - $promoted_at }
	  @newcomers);

# ----- what clients have received -----

push @servers, @newcomers;
$chaos->command($_->{name}, 0, 'end') for @servers;
$chaos->wait_for_clients(map { $_->{client} } @servers);
my $ledger = SnowflakeLedger->new($chaos);
my %any_error = map { $_ => qr// } qw(55000 57P01 57P02 57P03 08006);
$ledger->read_clients(\%any_error, map { $_->{client} } @servers);
is($ledger->count_duplicates(sub { diag("$_[0] came twice") }),
	0, "not one duplicate among $ledger->{ids} ids");
$ledger->test_clients;

diag(sprintf 'Longest time without ids (s), lease_duration %g s, largest_lead %g s',
	$lease_s, $lead_s);
diag(sprintf '%-60s %8s %8s %s', 'what', 'any', 'fixed', 'bound');
for my $row (@table)
{
	my ($what, $pause, $bound) = @$row;
	diag(
		sprintf '%-60s %8s %8s %s',
		$what,
		(map { defined $pause->{$_} ? sprintf('%.2f', $pause->{$_}) : '' }
			  qw(any fixed)),
		join ', ', map { sprintf '%.1f', $bound->{$_} }
		  sort keys %$pause);
}

$_->{node}->stop for @servers;
$standby->stop;

done_testing();
