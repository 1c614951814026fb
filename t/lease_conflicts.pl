# Which server gets a worker id from a registry, which server is refused, and
# why: two servers want one worker id, a datacenter is full, servers have
# names, clocks differ, another server takes a lease away, a role has no
# rights, and parameters keep the server from starting.  Meanwhile another
# server issues ids under load.
#
# Each subtest begins with servers and a registry that keep nothing from
# earlier subtests: see fresh_servers().  So the order of the subtests does not
# matter.
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

# Servers that are copies of one server: four for the subtests, and one that is
# under load.
my @server = leased_node('server_0', $registry, "include 'case.conf'");
start_with_case($server[0]);
$server[0]->safe_psql('postgres', 'CREATE EXTENSION snowflake');
forget($server[0]);
push @server, copy_of($server[0], "server_$_") for 1 .. 3;
my $busy = copy_of($server[0], 'busy');

# Makes a registry with other constants, in a database of its own.  Returns the
# setting with the connection string of this registry.
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

# Returns whether a stopped server would recover from WAL at its next start.
sub needs_recovery
{
	my ($node) = @_;
	my ($output) = run_command([ 'pg_controldata', $node->data_dir ]);
	return $output !~ /^Database cluster state: +shut down$/m;
}

# Stops a server, and removes its parameters and its page of the mark.
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
	set_clock($node, 0);
	return;
}

# Returns four stopped servers with right clocks, and without parameters,
# leases and pages of the mark.  The registry has no leases either, except
# those in the datacenter of the server under load.
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
  qr/^The registry cannot be reached, does not answer in time, or does not let this server in\.$/;

# ----- the load, which runs during the subtests -----

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
	my $worker_id_17 = "snowflake.worker_id_source = config\nsnowflake.worker_id = 17";
	my $held =
	  qr/^worker_id 17 of datacenter_id 0 is leased by one until \d{4}-/;

	start_with_case($one, $worker_id_17, "snowflake.server_name = 'one'");
	is(worker_id_of(first_id($one)), 17, 'a server leases its configured worker id');
	my $offset = -s $other->logfile;
	start_with_case($other, $worker_id_17);
	refuses($other, $held, 'another server with the same configured worker id is refused');
	my ($state, $message, $hint) =
	  sqlstate_of($other, 'SELECT snowflake_nextval()');
	is($state, '55000', 'a call of the refused server is an error');
	is( $message,
		'snowflake ids cannot be issued because this server holds no lease on a worker id',
		'the message says that the server holds no lease');
	like($hint, qr/as soon as the registry grants a lease/, 'the hint says when ids will be issued');
	is(worker_id_at($other), '', 'snowflake_node shows no worker id');
	is( $other->safe_psql('postgres',
			'SELECT lease_holder IS NULL AND lease_expires_at IS NULL FROM snowflake_node'),
		't',
		'snowflake_node shows no lease');
	my $refusal = refusal_of($other);
	ok(wait_for(sub { refusal_of($other) ne $refusal }),
		'the reason of the refusal changes when the holder renews its lease');
	is( $other->safe_psql('postgres',
			'SELECT lease_failures > 1 AND lease_renewals = 0 FROM snowflake_stat'),
		't',
		'snowflake_stat counts failures');
	is( () = logged($other, $offset) =~ /WARNING:  the registry has not granted a lease/g,
		1,
		'the log has the first refusal only');

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
			17, 'the server that derived the worker id leases it when the others have stopped');
		$derived->stop;
		$other->start;
	}
	is(worker_id_of(first_id($other)), 17, 'the other server leases the worker id when it is free again');
};

subtest 'a full datacenter: a further server is refused' => sub {
	my ($one, $two, $three, $elsewhere) = fresh_servers();
	my $layout = '41/5/1/12';
	my @full = (
		other_fleet('narrow', layout => $layout),
		"snowflake.layout = '$layout'",
		'snowflake.datacenter_id = 3');

	start_with_case($_, @full) for $one, $two;
	first_id($_) for $one, $two;
	isnt(worker_id_at($one), worker_id_at($two), 'two servers lease both worker ids of a datacenter');
	start_with_case($three, @full);
	refuses(
		$three,
		qr/^All worker ids of datacenter_id 3 are leased, the first of them until \d{4}-/,
		'a third server in a datacenter of two worker ids is refused');
	start_with_case($elsewhere, @full, 'snowflake.datacenter_id = 4');
	first_id($elsewhere);
	is(leases($registry, 'narrow'), '3:0 3:1 4:0', 'a server of another datacenter leases a worker id there');

	my $free = worker_id_at($one);
	$one->stop;
	first_id($three);
	is(worker_id_at($three), $free,
		'the server gets the worker id that is given back, without a restart');
};

subtest 'a new server under an old name gets the worker id of that name' => sub {
	my ($first, $unnamed, $heir) = fresh_servers();

	start_with_case($first, "snowflake.server_name = 'pg-a'");
	my $last = first_id($first);
	is(lease_row($registry, worker_id_of($last), 'name'), 'pg-a', 'the registry shows the name');
	$first->stop;

	# Wait, because the fence that a clean stop leaves may be a moment ahead.
	wait_for_fence($registry, worker_id_of($last));
	start_with_case($unnamed);
	isnt(worker_id_of(first_id($unnamed)),
		worker_id_of($last), 'a new server without a name gets a worker id that was never leased');
	start_with_case($heir, "snowflake.server_name = 'pg-a'");
	my $id = first_id($heir);
	is(worker_id_of($id), worker_id_of($last),
		'a new server of the same name gets the worker id of the old one');
	ok($id > $last, 'the new server begins after the last id of the old one');
};

subtest 'clocks that differ: no ids outside the fences' => sub {
	my ($ahead, $next) = fresh_servers();
	my @worker_id_20 = (
		'snowflake.worker_id_source = config',
		'snowflake.worker_id = 20');
	my $past_fence = qr/^The fence is (\S+ \S+), and the clock is at (\S+ \S+)\.$/;

	# First the server's clock is ahead by less than largest_lead, then by more.
	configure($ahead, @worker_id_20);
	start_server($ahead, 0.5);
	my $last = first_id($ahead);
	set_clock($ahead, 100);
	my $refusal;
	wait_for(sub { ($refusal = refusal_of($ahead)) =~ $past_fence });
	like($refusal, $past_fence,
		'a server whose clock is past the fence issues no ids');
	$ahead->kill9;
	cmp_ok(lease_row($registry, 20, 'extract(epoch FROM fence)'),
		'<', time + 7.5, 'the fence does not follow the clock of that server');
	wait_for_fence($registry, 20);

	# The next holder's clock is behind the fence.
	my $fence = lease_row($registry, 20, 'extract(epoch FROM fence)');
	configure($next, @worker_id_20);
	start_server($next, -100);
	refuses($next, qr/^Ids of worker_id 20 of datacenter_id 0 begin at .*, ahead of the server's clock/,
		'after the server is killed, another server is refused while its clock is far behind the fence');
	my $offset = $fence - time - 3;
	set_clock($next, $offset);
	my $id = first_id($next, 60);
	cmp_ok(
		$next->safe_psql('postgres',
			"SELECT extract(epoch FROM snowflake_timestamp($id))"),
		'>=', $fence, 'the first id of the next holder is not before the fence');
	cmp_ok($id, '>', $last, 'the first id of the next holder is after the last id of the dead server');

	# Under "advance" ids may be ahead of the clock, but not further than the
	# lease lasts.
	configure(
		$next, @worker_id_20,
		'snowflake.clock_policy = advance',
		'snowflake.clock_tolerance = 300s');
	$next->stop('immediate');
	start_server($next, $offset - 100);
	my ($state, $message);
	ok( wait_for(
			sub {
				($state, $message) =
				  sqlstate_of($next, 'SELECT snowflake_nextval()');
				$message =~ /further ahead of the clock than the lease/;
			}),
		'under "advance" the next holder issues no id further ahead than its lease lasts')
	  or diag($message);
	is($state, '55000', 'the refused call has SQLSTATE 55000');
	configure($next, @worker_id_20);
	$next->reload;
	set_clock($next, $offset);
	$id = first_id($next, 60);

	# Step the server's clock ahead.  The fence of a renewal does not follow
	# that clock, but the registry's.
	set_clock($next, $offset + 1000);
	wait_for(sub { ($refusal = refusal_of($next)) =~ $past_fence });
	my ($before, $now) = $refusal =~ $past_fence;
	is( $next->safe_psql('postgres',
			"SELECT timestamptz '$now' - timestamptz '$before' > '900 s'"),
		't',
		'past the fence no id is issued, and the reason has the fence and the clock');
	set_clock($next, $offset);
	cmp_ok(scalar first_id($next), '>', $id, 'ids are issued again when the clock is set right');
};

subtest 'a layout of 31 bits for the worker id' => sub {
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

# If a machine is cloned with its memory, two servers have one identity.  The
# test makes the claim by which the clone renews the lease.
subtest 'a clone renews the lease of a server, which loses the lease' => sub {
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
				clock => clock_timestamp(), boot_clock => n.boot_clock + 1,
				layout => s.layout, epoch => s.epoch,
				last_worker_id => n.worker_id, incarnation => n.incarnation,
				held_fence => n.fence) AS c
		 WHERE (n.datacenter_id, n.worker_id) = (0, $old)}),
		$old, 'the clone renews the lease');
	ok(wait_for(sub { worker_id_at($one) !~ /^($old)?$/ }),
		'the first server then gets another worker id');
	like(
		logged($one, $offset),
		qr/LOG:  snowflake worker_id $old is leased to this server no more/,
		'the log of the first server says that it has lost the lease');
	is(lease_row($registry, $old, 'incarnation'), 7, 'the clone keeps the lease');
};

subtest 'a worker id whose fence is years ahead is not granted' => sub {
	my ($node) = fresh_servers();

	start_with_case($node);
	my $worker_id = worker_id_of(first_id($node));
	forget($node);
	$registry->safe_psql('postgres',
		"UPDATE snowflake_registry.node SET fence = now() + interval '40 years' WHERE datacenter_id = 0");
	start_with_case($node);
	isnt(worker_id_of(first_id($node)),
		$worker_id, 'a new server gets another worker id than one whose fence is forty years ahead');
};

# Two registries may grant one worker id to two servers, so a server must not go
# on with the lease of another registry.
subtest 'the lease of one registry does not count with another registry' => sub {
	my ($node) = fresh_servers();
	my $other = $registry->connstr('postgres') =~ s/port=\d+/port=1/r;
	$other =~ s/'/''/g;

	start_with_case($node);
	my $old = worker_id_of(first_id($node));
	$node->stop('immediate');
	start_with_case($node, "snowflake.registry = '$other'");
	refuses($node, $unreachable,
		'with the lease of another registry a server issues no ids');
	$node->stop('immediate');
	start_with_case($node);
	is(worker_id_of(first_id($node)), $old,
		'with the first registry the server has its worker id again');
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

	# Keep the loser from claiming first, because it would get the worker id
	# again.
	my $claim_again = keep_from_claims($loser);
	$registry->safe_psql('postgres',
		"$change WHERE (datacenter_id, worker_id) = (0, $old)");
	start_with_case($taker, 'snowflake.worker_id_source = config',
		"snowflake.worker_id = $old");
	ok(wait_for(sub { worker_id_at($taker) eq $old }),
		"$change: another server takes the worker id");
	$claim_again->();

	# The session goes on issuing ids.  Calls fail only while the server has no
	# worker id.
	ok( wait_for(
			sub {
				$session->ask('SELECT * FROM snowflake_nextvals(100)');
				my ($error, @ids) = $session->answer;
				die "unexpected $error\n" unless $error =~ /^(55000)?$/;
				push @mine, @ids;
				@ids && worker_id_of($ids[-1]) != $old;
			}),
		"$change: an open session issues ids of another worker id");
	push @mine, $session->rows('SELECT * FROM snowflake_nextvals(1000)');
	is(scalar(grep { $mine[$_] <= $mine[ $_ - 1 ] } 1 .. $#mine),
		0, "$change: the ids of the open session increase");
	like(
		logged($loser, $offset),
		qr/LOG:  snowflake worker_id $old is leased to this server no more/,
		"$change: the log says that the lease was lost");

	my @yours = split /\n/, first_id($taker);
	push @yours, split /\n/,
	  $taker->safe_psql('postgres', 'SELECT * FROM snowflake_nextvals(1000)');
	is(worker_id_of($yours[0]),
		$old, "$change: the other server issues ids of the worker id");
	return (\@mine, \@yours);
}

subtest 'a lease is taken away while a session issues ids' => sub {
	my ($loser, $taker) = fresh_servers();

	start_with_case($loser);
	first_id($loser);
	my ($mine, $yours) = take_away($loser, $taker,
		'UPDATE snowflake_registry.node SET expires_at = now()');
	my %seen = map { $_ => 1 } @$mine, @$yours;
	is(scalar(keys %seen), @$mine + @$yours, 'no id comes twice');
};

subtest 'who may claim, and what the log says if a claim fails' => sub {
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
			"$name: the log says why");
		$node->stop;
	}

	start_with_case($node,
		"snowflake.registry = '$base user=leaser $password dbname=apart'");
	like(first_id($node), qr/^\d+$/,
		'a role that is allowed to claim gets a worker id for its server');
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
			q{SELECT count(*) FROM snowflake_registry.lease WHERE state = 'released'}),
		'1',
		'the role that is allowed to claim may also release the lease');
	unlike(logged($node), qr/\Q$secret\E/, 'the password is in no log');
};

subtest 'parameters that keep the server from starting' => sub {
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
			[ "snowflake.server_name = '" . 'n' x 64 . q{'} ],
			qr/FATAL:  invalid value for parameter "snowflake.server_name": "n{64}"/
		])
	{
		my ($name, $settings, $complaint) = @$case;
		my $offset = -s $node->logfile;

		configure($node, @$settings);
		ok(!$node->start(fail_ok => 1), "$name: the server does not start");
		like(logged($node, $offset), $complaint, "$name: its log says why");
		unlike(logged($node, $offset),
			qr/Xyzzy/, "$name: its log has no password");
	}
};

# ----- the end of the load -----

ok($load->finish, 'no id failed under load') or diag($load_stderr);
is( $busy->safe_psql('postgres', q{
SELECT count(*) > 1000, min(snowflake_worker_id(id)), max(snowflake_worker_id(id))
  FROM issued}),
	"t|$busy_id|$busy_id",
	'all ids of the server under load are of one worker id');
is( $busy->safe_psql('postgres',
		'SELECT lease_renewals >= 5 FROM snowflake_stat'),
	't',
	'the server under load has renewed its lease');
$busy->stop;

$registry->stop;

done_testing();
