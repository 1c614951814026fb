# snowflake_registry_check() is called on a server that is to lease its worker
# id.  It returns a sentence each about the connection, the role's rights,
# layout, epoch, lease and clock, and changes nothing.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time);

use constant {
	LAYOUT => '41/5/5/12',
	EPOCH => '2010-11-04 01:42:54.657+00'
};

my $registry = registry_node('registry', { largest_lead => '10 s' });
my $server = snowflake_node('server', "timezone = 'UTC'");
my $version = $registry->pg_version->major;

start_server($server);
$server->safe_psql('postgres', 'CREATE EXTENSION snowflake');

# Returns the sentences that the function returns for a connection string.
sub sentences_of
{
	my ($conninfo) = @_;

	$conninfo =~ s/'/''/g;
	return split /\n/,
	  $server->safe_psql('postgres',
		"SELECT replace(sentence, chr(10), '|') FROM snowflake_registry_check('$conninfo') AS sentence"
	  );
}

# Tests that the function returns these sentences: texts or patterns.
sub check_returns
{
	my ($conninfo, $what, @expected) = @_;
	my @sentences = sentences_of($conninfo);

	is(scalar @sentences, scalar @expected, "$what: the number of sentences")
	  or diag(join "\n", @sentences);
	for my $i (0 .. $#expected)
	{
		my $sentence = $sentences[$i] // '';
		my $name = "$what: sentence " . ($i + 1);

		ref $expected[$i]
		  ? like($sentence, $expected[$i], $name)
		  : is($sentence, $expected[$i], $name);
	}
	return;
}

my $conninfo = $registry->connstr('postgres');
my $user = getpwuid $>;
my $near =
  qr/^The clock is \d{1,4} ms (?:behind|ahead of) the registry's, measured within \d+ ms; up to 10000 ms ahead are allowed for\.$/;
my $lasts = 'A lease lasts 6 s.';
my $fits = 'The layout, "' . LAYOUT . '", and the epoch are the same as the registry\'s.';

sub connected
{
	my ($database) = @_;
	return "Connected to database \"$database\" of "
	  . $registry->host
	  . ", PostgreSQL $version.";
}

sub allowed
{
	my ($role) = @_;
	return "Role \"$role\" may claim and release worker ids.";
}

# ----- all is well -----

{
	my $rows =
	  'SELECT string_agg(n::text, chr(10) ORDER BY datacenter_id, worker_id) FROM snowflake_registry.node AS n';
	my $setting = 'SELECT s::text FROM snowflake_registry.setting AS s';
	my @before = map { $registry->safe_psql('postgres', $_) } $rows, $setting;

	check_returns($conninfo, 'all is well',
		connected('postgres'), allowed($user), $fits, $lasts, $near);
	is_deeply([ map { $registry->safe_psql('postgres', $_) } $rows, $setting ],
		\@before, 'the check changes nothing in the registry');
	is( $server->safe_psql('postgres',
			'SELECT worker_id_source, worker_id FROM snowflake_node'),
		'config|7',
		'the check changes nothing on this server');
}

# ----- the connection -----

{
	my ($state, $message) = sqlstate_of($server,
		q{SELECT snowflake_registry_check('host')});

	is($state, '22023', 'an invalid connection string is an error');
	is($message, 'invalid connection string', 'the message says that the connection string is invalid');
	my (undef, undef, $stderr) = $server->psql('postgres',
		q{SELECT snowflake_registry_check('postgresql://user:Xyzzy.37@[::1/db')}
	);
	note($stderr);
	like($stderr, qr/ERROR:  invalid connection string/, 'the message says that a URI is invalid');
	unlike($stderr, qr/Xyzzy/, 'the error of an invalid URI does not have its password');

	check_returns('host=/nowhere dbname=postgres', 'a host without a server',
		qr{^The registry cannot be reached: .*/nowhere.*No such file.*\?$});
	check_returns("$conninfo dbname=nowhere", 'a database that does not exist',
		qr/^The registry cannot be reached: .*database "nowhere" does not exist\.$/);

	check_returns("host=" . $registry->host . ',/nowhere port=1',
		'several hosts',
		qr{^The registry cannot be reached: .*\Q${\$registry->host}\E/\S*.*\|.*/nowhere/});

	$registry->safe_psql('postgres', $_)
	  for 'CREATE DATABASE reader',
	  'ALTER DATABASE reader SET default_transaction_read_only = on';
	check_returns("$conninfo dbname=reader", 'a registry that is read-only',
		qr/^The registry cannot be reached: .*read-only\.$/);
	my $deaf = IO::Socket::INET->new(
		Listen => 10,
		LocalAddr => '127.0.0.1',
		Proto => 'tcp')
	  or die "127.0.0.1: $!\n";
	my $begin = time;
	check_returns('host=127.0.0.1 dbname=postgres port=' . $deaf->sockport,
		'a server that does not answer', qr/^The registry cannot be reached: .*no answer in time\.$/);
	cmp_ok(time - $begin, '<', 15, 'the check gives up after ten seconds without an answer');
}

# ----- the rights -----

$registry->safe_psql('postgres', $_)
  for 'CREATE ROLE stranger LOGIN', 'CREATE ROLE "its server" LOGIN',
  'CREATE DATABASE empty', q{SELECT snowflake_registry.allow('its server')};
check_returns("$conninfo dbname=empty", 'a database that is no registry', connected('empty'),
	'The database is no registry: it has no extension snowflake_registry.');
check_returns("$conninfo user=stranger", 'a role that is not allowed', connected('postgres'),
	q{Role "stranger" may not claim a worker id: call snowflake_registry.allow('stranger') there.}
);
check_returns("$conninfo user='its server'",
	'a role that is allowed', connected('postgres'), allowed('its server'),
	$fits, $lasts, $near);

# ----- the constants -----

$registry->safe_psql('empty', 'CREATE EXTENSION snowflake_registry');
check_returns("$conninfo dbname=empty", 'a registry that is not configured', connected('empty'),
	allowed($user),
	'The registry has no constants yet: call snowflake_registry.configure() there.'
);

make_registry($registry, database => 'layout', layout => '41/4/6/12',
	largest_lead => '10 s');
check_returns("$conninfo dbname=layout", 'another layout', connected('layout'),
	allowed($user),
	'The layout differs: it is "' . LAYOUT . '" here and "41/4/6/12" in the registry.',
	$lasts, $near);

make_registry($registry, database => 'epoch',
	epoch => '2020-01-01 00:00+00', largest_lead => '10 s');
check_returns("$conninfo dbname=epoch", 'another epoch', connected('epoch'),
	allowed($user),
	'The epoch differs: it is 2010-11-04 01:42:54.657+00 here and 2020-01-01 00:00:00+00 in the registry.',
	$lasts, $near);

make_registry($registry, database => 'broken');
$registry->safe_psql('broken',
	'ALTER TABLE snowflake_registry.setting RENAME TO other');
check_returns("$conninfo dbname=broken", 'a registry that fails',
	connected('broken'), allowed($user),
	'The registry cannot be used: relation "snowflake_registry.setting" does not exist.'
);

# ----- the clock -----

set_clock($server, 5);
check_returns($conninfo, 'the clock is ahead',
	connected('postgres'), allowed($user), $fits, $lasts,
	qr/^The clock is (?:49|50)\d\d ms ahead of the registry's, measured within \d+ ms; up to 10000 ms ahead are allowed for\.$/
);
set_clock($server, 3600);
check_returns($conninfo, 'the clock is too far ahead',
	connected('postgres'), allowed($user), $fits, $lasts,
	qr/^The clock is (?:3599|3600)\d{3} ms ahead of the registry's, more than its largest_lead of 10000 ms: correct the clock\.$/
);
set_clock($server, -3600);
check_returns($conninfo, 'the clock is behind',
	connected('postgres'), allowed($user), $fits, $lasts,
	qr/^The clock is (?:3599|3600)\d{3} ms behind the registry's, measured within \d+ ms; up to 10000 ms ahead are allowed for\.$/
);
set_clock($server, 0);

# ----- who may call the function -----

$server->safe_psql('postgres', 'CREATE ROLE ordinary');
is( (   sqlstate_of($server,
			"SET ROLE ordinary; SELECT snowflake_registry_check('host=/nowhere')"))[0],
	'42501',
	'an ordinary role may not call snowflake_registry_check()');

# ----- the resolver has no thread -----

# The function looks a name up in a thread.  At the limit of processes no
# thread can begin: the call reports that at once, and the next call starts a
# new lookup.
my $session = SnowflakeSession->new($server);
my $check = "SELECT snowflake_registry_check('host=localhost port=1 dbname=x')";

sub limit_processes
{
	my ($limit) = @_;
	run_command([ 'prlimit', '--pid', $session->{pid}, "--nproc=$limit:" ]);
	return;
}

my ($processes) = run_command(
	[ 'prlimit', '--pid', $session->{pid}, '--nproc', '--output', 'SOFT', '--noheadings' ]);
limit_processes(1);
$session->ask($check);
my $answer = $session->outcome;
like("@{$answer->{rows}}",
	qr/could not translate host name "localhost" to address: System error/,
	'at the limit of processes a name cannot be looked up');
cmp_ok($answer->{ms}, '<', 3000, 'a lookup that cannot begin is reported without a wait');
limit_processes($processes =~ s/\s//gr);
$session->ask($check);
like("@{$session->outcome->{rows}}",
	qr/port 1 failed/, 'the next call looks the name up again');
$session->quit;

$_->stop for $server, $registry;
done_testing();
