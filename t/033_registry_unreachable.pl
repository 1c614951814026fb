# A registry that runs and cannot be reached: it has another password, one of
# its addresses does not answer, or the resolver does not answer.  The server's
# log says why, and neither a claim nor a stop takes long.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload replace_file);
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
		qr/$warning[^\n]*\Q${\$registry->host}\E.*(?:No such file|refused)(?:.*\n\t)+[^\n]*\Q${\$other->host}\E.*role "leaser" does not exist/,
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
		qr/$warning[^\n]*password authentication failed for user "leaser"(?:.*\n\t)*[^\n]*role "leaser" does not exist/,
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

# ----- names -----

# Starts a server whose host name and resolver are what these facts say; see
# lib/host.c.
sub start_with_facts
{
	my ($server, @facts) = @_;
	my $file = "$directory/" . $server->name . '.facts';

	write_facts($server, @facts);
	local %ENV = (%ENV, preload($host_library), HOST_FACTS => $file);
	$server->start;
	return;
}

sub write_facts
{
	my ($server, @facts) = @_;

	replace_file("$directory/" . $server->name . '.facts', 'name pg-0', @facts);
	return;
}

# A registry that listens on 127.0.0.1, and a connection string with a name.
sub named_registry
{
	my ($constants) = @_;
	my $registry = new_registry('registry', $constants);

	$registry->append_conf('postgresql.conf',
		"listen_addresses = '127.0.0.1'");
	$registry->restart;
	return ($registry,
		'host=registry.example port=' . $registry->port
		  . ' dbname=postgres user=' . getpwuid($>));
}

# The first address of the name accepts connections and never answers.
sub silent_address
{
	my ($registry, $conninfo) = named_registry({ lease_duration => '6 s' });
	my $silent = IO::Socket::INET->new(
		Listen => 100,
		LocalAddr => '127.0.0.2',
		LocalPort => $registry->port,
		Proto => 'tcp')
	  or die "127.0.0.2: $!\n";
	my $server = leasing_server('server', $conninfo);
	my @facts = map { "address registry.example $_" } '127.0.0.2', '127.0.0.1';

	start_with_facts($server, @facts);
	my ($id, $seconds) = first_id($server);
	note sprintf 'first id behind a silent address: %.1f s', $seconds;
	cmp_ok($seconds, '<', 10, 'a server gets a lease although the first address is silent');
	my $client = new_client($server);
	wait_for_grant($registry, $server) for 1 .. 4;
	is_undisturbed($client, 'a server behind a silent address issues ids while it renews its lease');
	is( $server->safe_psql('postgres',
			'SELECT lease_failures FROM snowflake_stat'),
		'0',
		'a server behind a silent address renews its lease without a failure');
	cmp_ok(seconds_of(sub { $server->stop }),
		'<', 3, 'a stop does not wait for the silent address');
	is(lease_of($registry, worker_id_of($id), 'state'),
		'released', 'the stop has released the lease');
	return;
}

# The resolver never answers.
sub hanging_resolver
{
	my ($registry, $conninfo) = named_registry({ lease_duration => '30 s' });
	my $hanging = 'hanging registry.example';
	my $unleased = leasing_server('unleased', $conninfo);
	my $holder = leasing_server('holder', $conninfo);
	my $other = leasing_server('other',
		sprintf 'host=registry.example,%s port=%d,%d dbname=postgres',
		$registry->host, $registry->port, $registry->port);

	start_with_facts($unleased, $hanging);
	start_with_facts($holder, 'address registry.example 127.0.0.1');
	start_with_facts($other, $hanging);
	my $last = first_id($holder);
	my ($id, $seconds) = first_id($other);
	note sprintf 'first id where one of two names is not resolved: %.1f s',
	  $seconds;
	cmp_ok($seconds, '<', 10, 'a server gets a lease from its second host while the first name hangs');
	$unleased->safe_psql('postgres', 'SELECT 1');
	refuses($unleased, qr/^The registry does not answer in time\.$/,
		'a server that has no lease yet, and no answer of the resolver, issues no id');
	logs($unleased, 0,
		qr/could not translate host name "registry.example" to address: no answer in time/,
		'the log says that the name was not resolved');
	cmp_ok(seconds_of(sub { $unleased->stop }),
		'<', 2, 'a stop of a server without a lease does not wait for the resolver');
	write_facts($holder, $hanging);
	cmp_ok(seconds_of(sub { $holder->stop }),
		'<', 3, 'a stop of a holder does not wait long for the resolver');
	like(logged($holder),
		qr/could not be given back to the registry\n.*DETAIL:  .*could not translate host name/,
		'the holder logs why it has not given its worker id back');
	start_with_facts($holder, $hanging);
	goes_on($holder, $last, 'the holder, started while the resolver hangs');
	cmp_ok(seconds_of(sub { $other->stop }),
		'<', 3, 'a stop of a server with a second host does not wait for the resolver');
	is(lease_of($registry, worker_id_of($id), 'state'),
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
		name => 'a silent address',
		nodes => [qw(registry server)],
		run => \&silent_address
	},
	{
		name => 'a hanging resolver',
		nodes => [qw(registry unleased holder other)],
		run => \&hanging_resolver
	});
done_testing();
