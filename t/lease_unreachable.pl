# A registry that runs and cannot be reached: it has another password, one of
# its hosts does not answer, or the name server does not answer.  The server's
# log says why, and neither a claim nor a stop takes long.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);
use SnowflakeTest;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $host_library = build_library('host');

# ----- the registry is down, and comes back with another password -----

sub another_password
{
	my $registry = new_registry('registry', { lease_duration => '20 s' });
	my $other = new_registry('other');
	my $password = 'Xyzzy.37';
	my $warning =
	  qr/WARNING:  the registry has not granted a lease on a snowflake worker_id\n[^\n]*DETAIL:  /;

	$registry->safe_psql(
		'postgres', q{
SET password_encryption = 'scram-sha-256';
CREATE ROLE leaser LOGIN PASSWORD 'another one';
SELECT snowflake_registry.allow('leaser')});
	my %server = (
		alone => leasing_server(
			'alone',
			$registry->connstr('postgres') . " user=leaser password=$password"),
		both => leasing_server(
			'both',
			hosts_of($registry, $other) . " user=leaser password=$password"));
	first_id(start_server($_)) for values %server;
	my %offset = map { $_ => -s $server{$_}->logfile } keys %server;

	$registry->stop;
	logs(
		$server{alone}, $offset{alone},
		qr/$warning[^\n]*\Q${\$registry->host}\E.*(?:No such file|refused)/,
		'the log says that the registry does not run');
	logs(
		$server{both}, $offset{both},
		qr/$warning[^\n]*\Q${\$registry->host}\E.*(?:No such file|refused)[^\n]*\Q${\$other->host}\E.*role "leaser" does not exist/,
		'the log has the error of each of two hosts');

	my $hba = $registry->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "local all leaser scram-sha-256\n$rules");
	%offset = map { $_ => -s $server{$_}->logfile } keys %server;
	start_server($registry);
	logs(
		$server{alone}, $offset{alone},
		qr/$warning[^\n]*password authentication failed for user "leaser"/,
		'the log says that the password is wrong when the registry is back with another password');
	logs(
		$server{both}, $offset{both},
		qr/$warning[^\n]*password authentication failed for user "leaser"/,
		'the log of the server with two hosts says that the password is wrong, too');
	unlike(logged($_), qr/\Q$password\E/, 'no log has the password')
	  for values %server;

	$registry->safe_psql('postgres',
		"SET password_encryption = 'scram-sha-256'; ALTER ROLE leaser PASSWORD '$password'"
	);
	logs($server{alone}, $offset{alone}, qr/LOG:  the lease on snowflake worker_id \d+ has been renewed/,
		'with the right password the lease is renewed');
	return;
}

# ----- a host that does not answer -----

# A socket that accepts no connection: its queue is full.
sub full_socket
{
	my $full = IO::Socket::INET->new(
		Listen => 1,
		LocalAddr => '127.0.0.2',
		Proto => 'tcp')
	  or die "127.0.0.2: $!\n";

	my @waiting = map {
		IO::Socket::INET->new(
			PeerAddr => '127.0.0.2',
			PeerPort => $full->sockport,
			Blocking => 0)
	} 1 .. 5;
	return ($full, @waiting);
}

# Returns a registry that also listens on 127.0.0.1.
sub registry_with_port
{
	my ($constants) = @_;
	my $registry = new_registry('registry', $constants);

	$registry->append_conf('postgresql.conf',
		"listen_addresses = '127.0.0.1'");
	$registry->restart;
	return $registry;
}

# The first of two hosts does not answer.
sub silent_host
{
	my $registry = registry_with_port({ lease_duration => '12 s' });
	my ($full, @waiting) = full_socket();
	my $server = leasing_server('server',
		sprintf 'host=127.0.0.2,127.0.0.1 port=%d,%d dbname=postgres user=%s',
		$full->sockport, $registry->port, scalar getpwuid($>));
	my ($id, $seconds) = first_id(start_server($server));

	note sprintf 'first id behind a silent host: %.1f s', $seconds;
	cmp_ok($seconds, '<', 10, 'a server gets a lease although the first host is silent');
	my $client = new_client($server);
	wait_for_grant($registry, $server) for 1 .. 4;
	is_undisturbed($client, 'a server behind a silent host issues ids while it renews its lease');
	is( $server->safe_psql('postgres',
			'SELECT lease_failures FROM snowflake_stat'),
		'0',
		'a server behind a silent host renews its lease without a failure');
	$seconds = seconds_of(sub { $server->stop });
	note sprintf 'stop behind a silent host: %.1f s', $seconds;
	cmp_ok($seconds, '<', 3, 'a stop does not wait for the silent host');
	is(lease_of($registry, worker_id_of($id), 'state'),
		'released', 'the stop has released the lease');
	return;
}

# ----- a name server that does not answer -----

# Starts a name server, by which each name has the address 127.0.0.1.  The name
# server is silent while a file exists.  Returns its port.
sub start_name_server
{
	my ($silence) = @_;
	my $socket = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1',
		Proto => 'udp')
	  or die "cannot listen: $!\n";
	my $parent = $$;
	my $pid = fork // die "cannot fork: $!\n";

	if ($pid == 0)
	{
		while (kill 0, $parent)
		{
			next unless defined $socket->recv(my $query, 512);
			next if -e $silence;
			my $question = substr $query, 12;
			my $length = index($question, "\0") + 5;
			my $is_a = unpack('n', substr $question, $length - 4, 2) == 1;

			$socket->send(
				substr($query, 0, 2)
				  . pack('n5', 0x8180, 1, $is_a ? 1 : 0, 0, 0)
				  . substr($question, 0, $length)
				  . (
					$is_a
					? pack('n n n N n C4', 0xC00C, 1, 1, 1, 4, 127, 0, 0, 1)
					: ''));
		}
		POSIX::_exit(0);
	}
	at_end(sub { kill 'KILL', $pid; waitpid $pid, 0 });
	return $socket->sockport;
}

# A stop waits for a look-up that has begun, and for the one of the release: 2 s
# each, and the search domains of this machine may double the first.
sub silent_name_server
{
	my $registry = registry_with_port({ lease_duration => '60 s' });
	my $silence = "$directory/silence$$";
	my $port = start_name_server($silence);
	my $conninfo = sprintf
	  'host=registry.example port=%d dbname=postgres user=%s',
	  $registry->port, scalar getpwuid($>);
	my $holder = leasing_server('holder', $conninfo);
	my $unleased = leasing_server('unleased', $conninfo);

	PostgreSQL::Test::Utils::append_to_file("$directory/facts$$",
		"name pg-0\nnameserver 127.0.0.1 $port\n");
	local %ENV = (%ENV, preload($host_library),
		HOST_FACTS => "$directory/facts$$");
	$holder->start;
	my $last = first_id($holder);
	PostgreSQL::Test::Utils::append_to_file($silence, '');
	my $client = new_client($holder);

	$unleased->start;
	refuses($unleased, qr/^The registry cannot be reached, /,
		'a server that has no lease yet, and no answer of the name server, issues no id');
	logs($unleased, 0,
		qr/could not translate host name "registry.example" to address: Temporary failure/,
		'the log says that the name was not resolved');

	# Stop again and again, because only some stops come during a look-up.
	for (1 .. 5)
	{
		my $seconds = seconds_of(sub { $unleased->stop });

		note sprintf 'stop of a server without a lease: %.1f s', $seconds;
		cmp_ok($seconds, '<', 8, 'a stop of a server without a lease does not wait long for the name server');
		$unleased->start;
		sleep rand 2;
	}
	$unleased->stop;

	is_undisturbed($client, 'the holder issues ids meanwhile');
	my $seconds = seconds_of(sub { $holder->stop });
	note sprintf 'stop of a holder: %.1f s', $seconds;
	cmp_ok($seconds, '<', 8, 'a stop of a holder does not wait long for the name server');
	like(logged($holder),
		qr/could not be given back to the registry\n.*DETAIL:  .*could not translate host name/,
		'the holder logs why it has not given its worker id back');
	$holder->start;
	goes_on($holder, $last, 'the holder, started while the name server is silent');
	unlink $silence;
	logs($holder, 0, qr/LOG:  the lease on snowflake worker_id \d+ has been renewed/,
		'the holder renews its lease when the name server answers');
	$holder->stop;
	is(lease_of($registry, worker_id_of($last), 'state'),
		'released', 'the stop has released the lease');
	return;
}

# ----- all -----

run_scenarios(
	{
		name => 'another password',
		nodes => [qw(registry other alone both)],
		run => \&another_password
	},
	{
		name => 'a silent host',
		nodes => [qw(registry server)],
		run => \&silent_host
	},
	{
		name => 'a silent name server',
		nodes => [qw(registry holder unleased)],
		run => \&silent_name_server
	});
done_testing();
