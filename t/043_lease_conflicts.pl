# Who gets a worker id from a registry, who is refused one, and why: two
# servers of one number, a full datacenter, names, clocks that disagree, a
# lease that another server takes, roles without rights, parameters that stop
# the start.  All the while another server issues ids under load.
#
# Each subtest begins with servers, and a registry, that have forgotten all that
# was before: see fresh_servers().  So the order of the subtests does not matter.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $registry = registry_node('registry', { lease_duration => '6 s' });

# Servers that are as alike as copies are: four for the subtests, and one that
# is under load.
my @server = leased_node('server_0', $registry, "include 'case.conf'");
start_with_case($server[0]);
$server[0]->safe_psql('postgres', 'CREATE EXTENSION snowflake');
forget($server[0]);
push @server, copy_of($server[0], "server_$_") for 1 .. 3;
my $busy = copy_of($server[0], 'busy');

# Makes the registry of a fleet of another layout, in a database of its own.
# Returns the setting that names it.
sub other_fleet
{
	my ($database, %constants) = @_;

	make_registry(
		$registry,
		database => $database,
		lease_duration => '60 s',
		%constants);
	return "snowflake.registry = '"
	  . ($registry->connstr($database) =~ s/'/''/gr) . q{'};
}

# Does a stopped server's WAL hold what a start would bring back?
sub needs_recovery
{
	my ($node) = @_;
	my ($output) = run_command([ 'pg_controldata', $node->data_dir ]);
	return $output !~ /^Database cluster state: +shut down$/m;
}

# Stops a server and has it forget who it was.
sub forget
{
	my ($node) = @_;

	$node->stop;
	configure($node);
	if (needs_recovery($node))
	{
		$node->start;
		$node->stop;
	}
	unlink mark_file($node);

	# Without a page, the time of the last checkpoint counts.
	PostgreSQL::Test::Utils::system_or_bail('pg_resetwal', '-D',
		$node->data_dir);
	set_clock($node, 0);
	return;
}

# Returns four servers that are stopped, have no parameters of their own, right
# clocks, and have forgotten who they were.  The registry has forgotten them,
# too, but not the datacenter of the server under load.
sub fresh_servers
{
	forget($_) for @server;
	$registry->safe_psql(
		'postgres', q{
		DELETE FROM snowflake_registry.node WHERE datacenter_id <> 9;
		SELECT snowflake_registry.configure()});
	return @server;
}

my $unreachable =
  qr/^The registry cannot be reached, or does not let this server in\.$/;

# ----- the load, while all that follows goes on -----

start_with_case($busy, 'snowflake.datacenter_id = 9');
my $busy_id = worker_id_of(first_id($busy));
my $script = "$directory/load.sql";
$busy->safe_psql('postgres', 'CREATE TABLE issued (id bigint PRIMARY KEY)');
PostgreSQL::Test::Utils::append_to_file($script,
	"INSERT INTO issued SELECT snowflake_nextvals(10);\n\\sleep 1 ms\n");
my ($load_stdout, $load_stderr) = ('', '');
my $load = IPC::Run::start(
	[
		'pgbench', '-n', '-c', 2, '-T', 12, '-f', $script,
		$busy->connstr('postgres')
	],
	'>', \$load_stdout, '2>', \$load_stderr);

subtest 'one worker id for two servers: the second is refused' => sub {
	my ($one, $other, $derived) = fresh_servers();
	my $guard = "snowflake.worker_id_source = config\nsnowflake.worker_id = 17";
	my $held =
	  qr/^worker_id 17 of datacenter_id 0 is leased by one until \d{4}-/;

	start_with_case($one, $guard, "snowflake.registry_name = 'one'");
	is(worker_id_of(first_id($one)), 17, 'a server leases the number it was given');
	my $offset = -s $other->logfile;
	start_with_case($other, $guard);
	refuses($other, $held, 'another one with the same number is refused');
	my ($state, $message, $hint) =
	  sqlstate_of($other, 'SELECT snowflake_nextval()');
	is($state, '55000', 'SQLSTATE');
	is( $message,
		'snowflake ids cannot be issued because this server holds no lease on a worker id',
		'message');
	like($hint, qr/as soon as the registry grants a lease/, 'hint');
	is(worker_id_at($other), '', 'snowflake_node shows no worker id');
	is( $other->safe_psql('postgres',
			'SELECT lease_holder IS NULL AND lease_expires_at IS NULL FROM snowflake_node'),
		't',
		'snowflake_node shows no lease');
	my $refusal = refusal_of($other);
	ok(wait_for(sub { refusal_of($other) ne $refusal }),
		'the reason tells the newest renewal of the one that has it');
	is( $other->safe_psql('postgres',
			'SELECT lease_failures > 1 AND lease_renewals = 0 FROM snowflake_stat'),
		't',
		'snowflake_stat counts failures');
	is( () = logged($other, $offset) =~ /WARNING:  the registry has not granted a lease/g,
		1,
		'the log tells of the first alone');

	SKIP:
	{
		skip 'interfaces are read as Linux shows them', 2 if $^O ne 'linux';
		local %ENV = (%ENV, preload(build_library('host')),
			HOST_FACTS => "$directory/facts");

		PostgreSQL::Test::Utils::append_to_file("$directory/facts",
			"name pg-17\n");
		start_with_case($derived, 'snowflake.worker_id_source = hostname');
		refuses($derived, $held, 'a server that derived the worker id is refused, too');
		$other->stop;
		$one->stop;
		is(worker_id_of(first_id($derived)),
			17, 'which leases it once that is given back');
		$derived->stop;
		$other->start;
	}
	is(worker_id_of(first_id($other)), 17, 'the other server gets its own worker id');
};

subtest 'a full datacenter: one server more is refused' => sub {
	my ($one, $two, $three, $elsewhere) = fresh_servers();
	my $layout = '41/5/1/12';
	my @full = (
		other_fleet('narrow', layout => $layout),
		"snowflake.layout = '$layout'",
		'snowflake.datacenter_id = 3');

	start_with_case($_, @full) for $one, $two;
	first_id($_) for $one, $two;
	isnt(worker_id_at($one), worker_id_at($two), 'two servers share a datacenter of two');
	start_with_case($three, @full);
	refuses(
		$three,
		qr/^All worker ids of datacenter_id 3 are leased, the first of them until \d{4}-/,
		'a third is refused');
	start_with_case($elsewhere, @full, 'snowflake.datacenter_id = 4');
	first_id($elsewhere);
	is(leases($registry, 'narrow'), '3:0 3:1 4:0', 'datacenters are apart');

	my $free = worker_id_at($one);
	$one->stop;
	first_id($three);
	is(worker_id_at($three), $free,
		'the server gets the worker id that is given back, without a restart');
};

subtest 'a new server under an old name gets the worker id of that name' => sub {
	my ($first, $unnamed, $heir) = fresh_servers();

	start_with_case($first, "snowflake.registry_name = 'pg-a'");
	my $last = first_id($first);
	is(lease_row($registry, worker_id_of($last), 'name'), 'pg-a', 'the registry shows the name');
	$first->stop;

	# Wait: the mark of a clean stop may be a moment ahead.
	wait_for_fence($registry, worker_id_of($last));
	start_with_case($unnamed);
	isnt(worker_id_of(first_id($unnamed)),
		worker_id_of($last), 'a new server gets one that was never leased');
	start_with_case($heir, "snowflake.registry_name = 'pg-a'");
	my $id = first_id($heir);
	is(worker_id_of($id), worker_id_of($last),
		'a new server of the same name gets the last one\'s');
	ok($id > $last, 'the new server begins after the last id of the old one');
};

subtest 'clocks that disagree: no ids outside the fences' => sub {
	my ($ahead, $next) = fresh_servers();
	my @guard = (
		'snowflake.worker_id_source = config',
		'snowflake.worker_id = 20');
	my $past_fence = qr/^The fence is (\S+ \S+), and the clock is at (\S+ \S+)\.$/;

	# The clock is ahead within largest_lead, and then further.
	configure($ahead, @guard);
	start_server($ahead, 0.5);
	my $last = first_id($ahead);
	set_clock($ahead, 100);
	my $refusal;
	wait_for(sub { ($refusal = refusal_of($ahead)) =~ $past_fence });
	like($refusal, $past_fence,
		'a server whose clock is past the fence issues none');
	$ahead->kill9;
	cmp_ok(lease_row($registry, 20, 'extract(epoch FROM fence)'),
		'<', time + 7.5, 'the fence does not follow the clock of that server');
	wait_for_fence($registry, 20);

	configure($next, @guard);
	start_server($next, -100);
	ok(wait_for(sub { worker_id_at($next) eq '20' }),
		'when it is dead another one leases its worker id');
	my $fence = lease_row($registry, 20, 'extract(epoch FROM began)');
	my ($state, $message);
	ok( wait_for(
			sub {
				($state, $message) =
				  sqlstate_of($next, 'SELECT snowflake_nextval()');
				$message =~ /^the clock is \S+ ms behind/;
			}),
		'the next holder issues no id before its clock reaches the fence')
	  or diag($message);
	is($state, '55000', 'SQLSTATE');

	# Where ids may be ahead of the clock, they may not be ahead of the lease.
	my @policy = (
		'snowflake.clock_policy = advance',
		'snowflake.clock_tolerance = 300s');
	configure($next, @guard, @policy);
	$next->reload;
	ok( wait_for(
			sub {
				($state, $message) =
				  sqlstate_of($next, 'SELECT snowflake_nextval()');
				$message =~ /further ahead of the clock than the lease/;
			}),
		'under advance it issues no id beyond the lease')
	  or diag($message);
	is($state, '55000', 'SQLSTATE');
	configure($next, @guard);
	$next->reload;
	my $offset = $fence - time - 1;
	set_clock($next, $offset);
	my $id = first_id($next, 60);
	cmp_ok(
		$next->safe_psql('postgres',
			"SELECT extract(epoch FROM snowflake_timestamp($id))"),
		'>=', $fence, 'its first id is not before the fence');
	cmp_ok($id, '>', $last, 'its first id is after the last id of the dead server');

	# The clock jumps; the fence follows the registry's clock.
	set_clock($next, $offset + 1000);
	wait_for(sub { ($refusal = refusal_of($next)) =~ $past_fence });
	my ($before, $now) = $refusal =~ $past_fence;
	is( $next->safe_psql('postgres',
			"SELECT timestamptz '$now' - timestamptz '$before' > '900 s'"),
		't',
		'past the fence none is issued, and the reason tells how far the clock has jumped');
	set_clock($next, $offset);
	cmp_ok(scalar first_id($next), '>', $id, 'once it is set right they are');
};

subtest 'more worker ids than an integer counts' => sub {
	my ($node) = fresh_servers();
	my $layout = '32/0/31/0@100ms';
	my $epoch = '2025-01-01 00:00+00';

	start_with_case(
		$node,
		other_fleet(
			'large',
			layout => $layout,
			epoch => $epoch),
		"snowflake.layout = '$layout'",
		"snowflake.epoch = '$epoch'",
		'snowflake.worker_id = 2147483647');
	is(first_id($node) & 0x7FFFFFFF,
		2147483647, 'the last of two billion worker ids is leased');
};

# A machine that is duplicated with its memory is two servers with one
# identity.  The test plays the renewal of the other one.
subtest 'one server renews the lease of another one, which loses it' => sub {
	my ($one) = fresh_servers();
	my $offset = -s $one->logfile;

	start_with_case($one);
	my $old = worker_id_of(first_id($one));
	my $incarnation = lease_row($registry, $old, 'incarnation');
	ok(wait_for(sub { lease_row($registry, $old, 'incarnation') != $incarnation }),
		'a server renews its lease');
	is( $registry->safe_psql(
			'postgres', qq{
		SELECT c.worker_id FROM snowflake_registry.node AS n, snowflake_registry.setting AS s,
			snowflake_registry.claim(
				datacenter_id => n.datacenter_id, wanted_worker_id => NULL,
				holder => n.holder, name => n.name, next_incarnation => 7,
				clock => clock_timestamp(), layout => s.layout, epoch => s.epoch,
				previous_holder => n.holder, previous_worker_id => n.worker_id,
				previous_incarnation => n.incarnation, previous_fence => n.fence,
				is_held => true, previous_position => pg_current_wal_lsn()) AS c
		 WHERE (n.datacenter_id, n.worker_id) = (0, $old)}),
		$old, 'another one renews it, in the same place');
	ok(wait_for(sub { worker_id_at($one) !~ /^($old)?$/ }),
		'then the first one gets another worker id');
	like(
		logged($one, $offset),
		qr/LOG:  snowflake worker_id $old is leased to this server no more/,
		'the log tells it');
	is(lease_row($registry, $old, 'incarnation'), 7, 'the other one keeps it');
};

subtest 'a worker id that some wrong clock has spent is left alone' => sub {
	my ($node) = fresh_servers();

	$registry->safe_psql('postgres',
		q{UPDATE snowflake_registry.node SET fence = now() + interval '40 years', granted_fence = now() + interval '40 years'
		   WHERE (datacenter_id, worker_id) = (0, 0)});
	start_with_case($node);
	is(worker_id_of(first_id($node)),
		1, 'a worker id whose ids begin in forty years is not taken');
};

# What one registry has granted, another one may have granted to somebody else.
subtest 'a lease by one registry is none by another' => sub {
	my ($node) = fresh_servers();
	my $other = $registry->connstr('postgres') =~ s/port=\d+/port=1/r;
	$other =~ s/'/''/g;

	start_with_case($node);
	my $old = worker_id_of(first_id($node));
	$node->stop('immediate');
	start_with_case($node, "snowflake.registry = '$other'");
	refuses($node, $unreachable,
		'a lease by one registry is none by another');
	$node->stop('immediate');
	start_with_case($node);
	is(worker_id_of(first_id($node)), $old,
		'back at the first the server has its worker id again');
};

# Takes a server's worker id away by a change of the registry's table, so that
# another server gets it.  A session that issues ids all the while goes on
# under another worker id.  Returns the ids of the session and of the other
# server.
sub take_away
{
	my ($loser, $taker, $change) = @_;
	my $old = worker_id_at($loser);
	my $offset = -s $loser->logfile;
	my $session = SnowflakeSession->new($loser);
	my @mine = $session->rows('SELECT * FROM snowflake_nextvals(1000)');

	# The loser does not ask meanwhile: it could be the first to.
	my $claim_again = keep_from_claims($loser);
	$registry->safe_psql('postgres',
		"$change WHERE (datacenter_id, worker_id) = (0, $old)");
	start_with_case($taker, 'snowflake.worker_id_source = config',
		"snowflake.worker_id = $old");
	ok(wait_for(sub { worker_id_at($taker) eq $old }),
		"$change: another server takes the worker id");
	$claim_again->();

	# The session goes on without a stop, but for a moment without a worker id.
	ok( wait_for(
			sub {
				$session->ask('SELECT * FROM snowflake_nextvals(100)');
				my ($error, @ids) = $session->answer;
				die "unexpected $error\n" unless $error =~ /^(55000)?$/;
				push @mine, @ids;
				@ids && worker_id_of($ids[-1]) != $old;
			}),
		"$change: an open session goes on under another one");
	push @mine, $session->rows('SELECT * FROM snowflake_nextvals(1000)');
	is(scalar(grep { $mine[$_] <= $mine[ $_ - 1 ] } 1 .. $#mine),
		0, "$change: its ids only grow");
	like(
		logged($loser, $offset),
		qr/LOG:  snowflake worker_id $old is leased to this server no more/,
		"$change: the log tells the loss");

	my @yours = split /\n/, first_id($taker);
	push @yours, split /\n/,
	  $taker->safe_psql('postgres', 'SELECT * FROM snowflake_nextvals(1000)');
	is(worker_id_of($yours[0]),
		$old, "$change: the other one issues under it");
	return (\@mine, \@yours);
}

subtest 'a lease is taken away while a session issues ids' => sub {
	my ($loser, $taker, $next) = fresh_servers();

	start_with_case($loser);
	first_id($loser);
	my ($mine, $yours) = take_away($loser, $taker,
		'UPDATE snowflake_registry.node SET expires_at = now()');
	my %seen = map { $_ => 1 } @$mine, @$yours;
	is(scalar(keys %seen), @$mine + @$yours, 'no id twice');

	# A deleted row also loses the fence that keeps ids apart, and no more.
	take_away($loser, $next, 'DELETE FROM snowflake_registry.node');
};

subtest 'who may ask, and what the log says of those who may not' => sub {
	my ($node) = fresh_servers();
	my $secret = 'Xyzzy.37';
	my $password = "password=$secret";
	my $base = 'host=' . $registry->host . ' port=' . $registry->port;

	$registry->safe_psql('postgres', $_)
	  for (
		'CREATE DATABASE empty',
		'CREATE DATABASE bare',
		'SET password_encryption = \'scram-sha-256\'; '
		. "CREATE ROLE leaser LOGIN PASSWORD '$secret'");
	make_registry($registry, database => 'apart');
	$registry->safe_psql('bare', 'CREATE EXTENSION snowflake_registry');
	$registry->safe_psql($_, q{SELECT snowflake_registry.allow('leaser')})
	  for 'bare', 'apart';
	my $hba = $registry->data_dir . '/pg_hba.conf';
	my $rules = PostgreSQL::Test::Utils::slurp_file($hba);
	unlink $hba;
	PostgreSQL::Test::Utils::append_to_file($hba,
		"local all leaser scram-sha-256\n$rules");
	$registry->reload;

	for my $case (
		[
			'a wrong password', "user=leaser password=wrong$secret dbname=apart",
			$unreachable, qr/password authentication failed for user "leaser"/
		],
		[
			'no password', 'user=leaser dbname=apart',
			$unreachable, qr/no password supplied/
		],
		[
			'a role without rights', "user=leaser $password dbname=postgres",
			qr/^The registry answers with an error: permission denied for schema snowflake_registry\.$/,
			qr/permission denied for schema snowflake_registry/
		],
		[
			'a database that is not there', 'dbname=nowhere',
			$unreachable, qr/database "nowhere" does not exist/
		],
		[
			'a database without the extension', 'dbname=empty',
			qr/^The registry answers with an error: schema "snowflake_registry" does not exist\.$/,
			qr/schema "snowflake_registry" does not exist/
		],
		[
			'a registry that is not configured', "user=leaser $password dbname=bare",
			qr/snowflake_registry\.configure\(\)/,
			qr/snowflake_registry\.configure\(\)/
		])
	{
		my ($name, $connection, $reason, $cause) = @$case;
		my $offset = -s $node->logfile;

		start_with_case($node, "snowflake.registry = '$base $connection'");
		refuses($node, $reason, "$name: the reason for users");
		like(
			logged($node, $offset),
			qr/WARNING:  the registry has not granted a lease on a snowflake worker_id\n[^\n]*DETAIL:  [^\n]*(?:\n\t[^\n]*)*$cause/,
			"$name: the log tells why");
		$node->stop;
	}

	start_with_case($node,
		"snowflake.registry = '$base user=leaser $password dbname=apart'");
	like(first_id($node), qr/^\d+$/,
		'a role that has been allowed to will do');
	$node->safe_psql('postgres', 'CREATE ROLE ordinary');
	is( (sqlstate_of($node, 'SET ROLE ordinary; SHOW snowflake.registry'))[0],
		'42501',
		'an ordinary user cannot show the registry');
	is( $node->safe_psql('postgres',
			"SET ROLE ordinary; SELECT count(*) FROM pg_settings WHERE name = 'snowflake.registry'"
		),
		'0',
		'an ordinary user does not find the registry in pg_settings');
	like(
		$node->safe_psql('postgres', 'SHOW snowflake.registry'),
		qr/\Q$password\E/, 'a superuser can show the registry');
	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_settings WHERE name = 'snowflake.registry'"),
		'1',
		'a superuser finds the registry in pg_settings');
	$node->stop;
	is( $registry->safe_psql('apart',
			'SELECT count(*) FROM snowflake_registry.node WHERE is_released'),
		'1',
		'that role may give back, too');
	unlike(logged($node), qr/\Q$secret\E/, 'the password is in no log');
};

subtest 'parameters that stop the start' => sub {
	my ($node) = fresh_servers();

	for my $case (
		[
			'nonsense', ["snowflake.registry = 'nonsense'"],
			qr/FATAL:  invalid value for parameter "snowflake.registry"\n.*DETAIL:  missing "="$/m
		],
		[
			'a broken URI',
			["snowflake.registry = 'postgresql://user:Xyzzy.37\@[::1/db'"],
			qr/FATAL:  invalid value for parameter "snowflake.registry"\n.*DETAIL:  .*in URI$/m
		],
		[
			'no registry', ["snowflake.registry = ''"],
			qr/FATAL:  parameter "snowflake.worker_id_source" is "registry", but "snowflake.registry" is not set/
		],
		[
			'no source', ['snowflake.worker_id_source = config'],
			qr/FATAL:  parameter "snowflake.registry" is set, but "snowflake.worker_id_source" is "config" and "snowflake.worker_id" is not set/
		],
		[
			'a name too long',
			[ "snowflake.registry_name = '" . 'n' x 64 . q{'} ],
			qr/FATAL:  invalid value for parameter "snowflake.registry_name": "n{64}"/
		])
	{
		my ($name, $settings, $complaint) = @$case;
		my $offset = -s $node->logfile;

		configure($node, @$settings);
		ok(!$node->start(fail_ok => 1), "$name: the server does not start");
		like(logged($node, $offset), $complaint, "$name: its log says why");
		unlike(logged($node, $offset),
			qr/Xyzzy/, "$name: and tells no password");
	}
};

# ----- the end of the load -----

ok($load->finish, 'no id failed under load') or diag($load_stderr);
is( $busy->safe_psql('postgres', q{
SELECT count(*) > 1000, min(snowflake_worker_id(id)), max(snowflake_worker_id(id))
  FROM issued}),
	"t|$busy_id|$busy_id",
	'all of them are of one worker id');
is( $busy->safe_psql('postgres',
		'SELECT lease_renewals >= 5 FROM snowflake_stat'),
	't',
	'which was renewed all the while');
$busy->stop;

$registry->stop;

done_testing();
