# The registry answers late, or is behind a host or a name server that does not
# answer.  A server issues ids for as long as its lease lasts, and no longer; its log
# says why it gets no lease; and neither a claim nor a stop takes long.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $host_library = build_library('host');
my $unreachable = qr/^The registry (?:cannot be reached|has not answered)/;

# Makes a registry that was restarted serve newcomers at once, as if its server
# had not been restarted.
sub serve_newcomers
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'UPDATE snowflake_registry.setting SET server_start = pg_postmaster_start_time()');
	return;
}

# ----- the registry answers late -----

# Keeps claims waiting in the registry, which executes them when the returned
# function is called.
sub hold_claims
{
	my ($registry) = @_;
	return queue_to_hold_claims($registry)->();
}

# Queues for the lock that keeps claims waiting, and readers not.  The returned
# function waits for this lock, and returns what hold_claims() does.
sub queue_to_hold_claims
{
	my ($registry) = @_;
	my $session = SnowflakeSession->new($registry);

	$session->rows('BEGIN');
	$session->ask('LOCK TABLE snowflake_registry.setting IN EXCLUSIVE MODE');
	wait_for(sub { value_of($registry,
		"SELECT count(*) FROM pg_locks WHERE pid = $session->{pid} AND mode = 'ExclusiveLock' AND locktype = 'relation'") })
	  or die "the lock is not asked for\n";
	return sub {
		$session->answer;
		return sub { $session->rows('COMMIT'); $session->quit };
	};
}

# Waits until a claim waits in the registry, and returns its process.
sub waiting_claim
{
	my ($registry) = @_;
	my $pid;

	wait_for(sub { $pid = value_of($registry,
		q{SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%snowflake_registry.claim(%'}) })
	  or die "no claim waits\n";
	return $pid;
}

sub answers_late
{
	my $registry = new_registry({});
	my $server = start_server(leasing_server('server', $registry, wants(5)));
	my $client = new_client($server);
	my $failures = 'SELECT lease_failures FROM snowflake_stat()';

	$registry->safe_psql('postgres', q{ALTER FUNCTION snowflake_registry.claim SET lock_timeout = '1min'});

	# The registry executes claims whose server no longer waits for the answer.
	my $let_go = hold_claims($registry);
	my $row = lease_row($registry, 5);
	ok(wait_for(sub { value_of($server, $failures) > 0 }), 'a claim fails while the registry is silent');
	my $claim_again = keep_from_claims($server);
	$let_go->();
	ok(wait_for(sub { lease_row($registry, 5) ne $row }), 'the registry executes the late claim');
	$claim_again->();
	wait_for_renewals($server, 2);
	is_undisturbed($client, 'the lease is renewed after late answers, and ids have been issued all the time');

	# A lease of 6 s ends 5.4 s after its claim was sent, not after the answer.
	# The next lock waits behind the claim that is held: no other claim is
	# executed before both leases are read.
	$let_go = hold_claims($registry);
	waiting_claim($registry);
	let_pass(0.4);
	my $renewals = 'SELECT lease_renewals FROM snowflake_stat()';
	my $before = value_of($server, $renewals);
	my $next = queue_to_hold_claims($registry);
	$let_go->();
	$let_go = $next->();
	ok(wait_for(sub { value_of($server, $renewals) > $before }), 'the claim that was held renews the lease');
	my $at_registry = lease_of($registry, 5, 'expires_at');
	is(value_of($server, "SELECT lease_expires_at < '$at_registry'::timestamptz - interval '0.8 s' FROM snowflake_node()"),
		't', 'the lease ends by the time at which its claim was sent');

	gets_errors($client, 'without an answer the lease ends, and ids are refused');
	refuses($server, $unreachable, 'the refusal says that the registry does not answer in time');
	$let_go->();
	gets_ids($client, 'ids are issued when the registry answers', AT_ONCE_S);

	# The registry executes a server's first claim only after the server's release.
	$server->stop;
	$let_go = hold_claims($registry);
	start_server($server);
	my $claim = waiting_claim($registry);
	kill 'STOP', $claim;
	$let_go->();
	my $last = first_id($server);
	is(worker_id_of($last), 5, 'a claim after the one that is held is granted');
	$server->stop;
	is(lease_of($registry, 5, 'state'), 'released', 'the server releases its lease');

	# Lower the fence, so that the claim takes the worker id in spite of its age.
	$registry->safe_psql('postgres', 'UPDATE snowflake_registry.node SET fence = began');
	kill 'CONT', $claim;
	ok(wait_for(sub { value_of($registry, "SELECT count(*) FROM pg_stat_activity WHERE pid = $claim") eq '0' }),
		'the first claim is executed');
	is(lease_of($registry, 5, 'state'), 'held', 'the late claim is granted, and nobody knows');
	start_server($server);
	refuses($server, qr/^worker_id 5 of datacenter_id 0 is leased by server until/, 'the server waits for the end of that lease');
	cmp_ok(scalar first_id($server, 90), '>', $last, 'and then ids go on');
	return;
}

# ----- no worker -----

# Another worker has the one slot.
sub no_worker
{
	my $server = start_server(leasing_server('server', 'host=/nowhere', 'max_worker_processes = 1'));
	my $outcome = outcome_of($server, 'SELECT snowflake_nextval()');

	is($outcome->{detail}, 'The process "snowflake registry", which asks the registry for one, is not running.',
		'without a slot for the worker the refusal names the process');
	like($outcome->{hint}, qr/raise "max_worker_processes"/, 'and the parameter');
	$server->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$server->stop;
	start_server($server);
	refuses($server, qr/^The registry cannot be reached/, 'with the worker the refusal names the registry');
	return;
}

# ----- many attempts -----

# A process of so few files may have some 20 connections open at a time.
sub many_attempts
{
	my $registry = new_registry({ lease_duration => '1 s' });
	my $server = start_server(leasing_server('server', $registry, 'max_files_per_process = 80'));

	wait_for_renewals($server, 40);
	$registry->stop;
	ok(wait_for(sub { value_of($server, 'SELECT lease_failures FROM snowflake_stat()') >= 40 }), 'many attempts fail');
	unlike(logged($server), qr/too many files/, 'no connection stays open');
	return;
}

# ----- a host that does not answer -----

# A socket that accepts no connection: its queue is full.
sub full_socket
{
	my $full = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.2', Proto => 'tcp')
	  or die "127.0.0.2: $!\n";

	my @waiting = map {
		IO::Socket::INET->new(PeerAddr => '127.0.0.2', PeerPort => $full->sockport, Blocking => 0)
	} 1 .. 5;
	return ($full, @waiting);
}

# Returns a registry that also listens on 127.0.0.1.
sub registry_with_port
{
	my ($constants) = @_;
	my $registry = new_registry($constants);

	$registry->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
	$registry->stop;
	start_server($registry);
	serve_newcomers($registry);
	return $registry;
}

# The first of two hosts drops connections, accepts them and says nothing, lacks
# the role, or is a standby: that costs one attempt, and none at a stop.
sub first_host
{
	my $registry = registry_with_port({ lease_duration => '20 s' });
	my $other = start_server(new_server('other'));
	my $standby = new_standby($registry, 'standby');
	my ($full, @waiting) = full_socket();
	my $mute = IO::Socket::INET->new(Listen => 100, LocalAddr => '127.0.0.1', Proto => 'tcp')
	  or die "127.0.0.1: $!\n";
	# The first host's address, and what the log says of it.
	my %first = (
		dropping => [ '127.0.0.2', $full->sockport, qr/timed out|does not answer in time/ ],
		mute => [ '127.0.0.1', $mute->sockport, qr/does not answer in time/ ],
		erring => [ $other->host, $other->port, qr/role "leaser" does not exist/ ],
		standby => [ $standby->host, $standby->port, qr/read-only|hot standby/ ]);

	$registry->safe_psql('postgres', q{CREATE ROLE leaser LOGIN; SELECT snowflake_registry.allow('leaser')});
	$registry->wait_for_catchup($standby, 'replay', $registry->lsn('flush'));
	for my $name (sort keys %first)
	{
		my ($host, $port, $failure) = @{ $first{$name} };
		my $server = start_server(leasing_server("behind_$name",
				sprintf 'host=%s,127.0.0.1 port=%d,%d dbname=postgres user=leaser', $host, $port, $registry->port));
		my ($id, $seconds) = first_id($server);

		note(sprintf q{first host %s: an id %.1f s after the start}, $name, $seconds);
		my $client = new_client($server);
		wait_for_grant($registry, $server) for 1 .. 2;
		is_undisturbed($client, "first host $name: ids are issued while the lease is renewed");
		is(value_of($server, 'SELECT lease_failures FROM snowflake_stat()'),
			'1', "first host $name: it has cost one attempt");
		like(logged($server), qr/has not granted a lease on a snowflake worker_id\n.*DETAIL:  .*$failure/,
			"first host $name: the log has its error");
		$server->stop;
		is(lease_of($registry, worker_id_of($id), 'state'), 'released', "first host $name: a stop releases the lease");
	}
	return;
}

# ----- a start within a lease -----

# The registry is asked before the first id of a start.  Only without an answer of
# any host the server resumes its lease.
sub starts
{
	my $registry = registry_with_port({ lease_duration => '60 s' });
	my $mute = IO::Socket::INET->new(Listen => 100, LocalAddr => '127.0.0.1', Proto => 'tcp')
	  or die "127.0.0.1: $!\n";
	my $server = start_server(leasing_server('server',
			sprintf 'host=127.0.0.1,127.0.0.1 port=%d,%d dbname=postgres user=%s',
			$mute->sockport, $registry->port, scalar getpwuid $>));
	my $last = first_id($server);
	my $resumes = qr/LOG:  snowflake worker_id \d+ is still leased to this server\n.*DETAIL:  The registry has not answered/;
	my $is_granted = qr/LOG:  snowflake worker_id \d+ of datacenter_id 0 is leased to this server until/;

	# How to make the registry like that, and back; and what the log says.
	for my $case (
		[ 'healthy', sub { }, sub { }, $is_granted ],
		[ 'mute', sub { suspend($registry) }, sub { resume($registry) }, $resumes ],
		[ 'stopped', sub { $registry->stop }, sub { start_server($registry); serve_newcomers($registry) }, $resumes ])
	{
		my ($kind, $break, $mend, $logged) = @$case;

		wait_for_renewals($server, 1);
		$last = first_id($server);
		$server->stop('immediate');
		my $offset = -s $server->logfile;
		$break->();
		start_server($server);
		goes_on($server, $last, "a start within a lease, the first host mute, the registry $kind");
		like(logged($server, $offset), $logged, "the registry $kind: the log says why ids are issued");
		$mend->();
	}

	# An error is an answer: the registry may refuse the lease next.
	wait_for_renewals($server, 1);
	$last = first_id($server);
	$server->stop('immediate');
	my $let_go = hold_claims($registry);
	start_server($server);
	refuses($server, qr/^The registry answers with an error: canceling statement due to lock timeout\.$/,
		'a lease of a start is not resumed while the registry answers with errors');
	$let_go->();
	goes_on($server, $last, 'the lease, when the registry answers');

	# A refusal is an answer, also if the registry is silent after it.
	wait_for_renewals($server, 1);
	$last = first_id($server);
	$server->stop('immediate');
	$registry->safe_psql('postgres', 'CREATE TABLE kept AS TABLE snowflake_registry.setting; DELETE FROM snowflake_registry.setting');
	start_server($server);
	refuses($server, qr/^The registry has no constants yet/, 'the registry refuses the lease of a start');
	suspend($registry);
	is(value_of($server, 'SELECT num_nulls(worker_id, lease_holder, lease_expires_at) FROM snowflake_node()'),
		3, 'snowflake_node() shows no lease');
	kill 'TERM', worker_pid($server);
	refuses($server, $unreachable, 'then the registry is silent, for the next lease worker');
	let_pass(5);
	is((sqlstate_of($server, 'SELECT snowflake_nextval()'))[0], '55000', 'a lease that was refused is not resumed');
	resume($registry);
	$registry->safe_psql('postgres', 'INSERT INTO snowflake_registry.setting TABLE kept');
	goes_on($server, $last, 'the lease, when the registry grants it again');

	# A worker that is told to exit has not waited for an answer.
	my $single = start_server(leasing_server('single', $registry));
	$last = first_id($single);
	$single->stop('immediate');
	suspend($registry);
	my $offset = -s $single->logfile;
	start_server($single);
	kill 'TERM', worker_pid($single);
	logs($single, $offset, qr/snowflake registry.*exited with exit code 1/, 'a worker ends while it waits for an answer');
	unlike(logged($single, $offset), $resumes, 'the worker that has ended does not resume the lease');
	resume($registry);
	goes_on($single, $last, 'the lease, under the next worker');

	# The registry has another holder, as after the data directory was set back.
	wait_for_renewals($server, 1);
	$last = first_id($server);
	my $worker_id = worker_id_of($last);
	$server->stop('immediate');
	$registry->safe_psql('postgres',
		"UPDATE snowflake_registry.node SET incarnation = incarnation + 1 WHERE worker_id = $worker_id");
	$offset = -s $server->logfile;
	my $client = new_client(start_server($server));
	unlike(logged($server, $offset), $resumes, 'a lease that the registry does not know is not resumed');
	is(scalar(grep { worker_id_of($_) == $worker_id } ids_of($client)),
		0, 'no id comes of its worker id, although the first host is mute');
	return;
}

# ----- a name server that does not answer -----

# Starts a name server, by which each name has the address 127.0.0.1.  The name
# server is silent while a file exists.  Returns its port.
sub start_name_server
{
	my ($silence) = @_;
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'udp')
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
			my $answer = $is_a ? pack('n n n N n C4', 0xC00C, 1, 1, 1, 4, 127, 0, 0, 1) : '';

			$socket->send(substr($query, 0, 2)
				  . pack('n5', 0x8180, 1, $is_a ? 1 : 0, 0, 0)
				  . substr($question, 0, $length) . $answer);
		}
		POSIX::_exit(0);
	}
	at_end(sub { kill 'KILL', $pid; waitpid $pid, 0 });
	return $socket->sockport;
}

# A stop waits for a look-up that has begun, and then for the look-up of the
# release: for 2 s each.  Search domains of this machine may double the first.
sub silent_name_server
{
	my $registry = registry_with_port({ lease_duration => '60 s' });
	my $silence = "$directory/silence";
	my $port = start_name_server($silence);
	my $conninfo = sprintf 'host=registry.example port=%d dbname=postgres user=%s',
	  $registry->port, scalar getpwuid($>);
	my $holder = leasing_server('holder', $conninfo);
	my $unleased = leasing_server('unleased', $conninfo);

	append_to_file("$directory/facts", "name pg-0\nnameserver 127.0.0.1 $port\n");
	local %ENV = (%ENV, preload($host_library), HOST_FACTS => "$directory/facts");
	start_server($holder);
	my $last = first_id($holder);
	append_to_file($silence, '');
	my $client = new_client($holder);

	start_server($unleased);
	refuses($unleased, qr/^The registry cannot be reached, /,
		'a server that has no lease yet, and no answer of the name server, issues no id');
	like(logged($unleased), qr/could not translate host name "registry.example" to address: Temporary failure/,
		'the log says that the name was not resolved');

	# Stop again and again, because only some stops come during a look-up.
	for (1 .. 3)
	{
		start_server($unleased) unless $unleased->{_pid};
		let_pass(rand 2);
		cmp_ok(seconds_of(sub { $unleased->stop }),
			'<', 8, 'a stop of a server without a lease does not wait long for the name server');
	}
	is_undisturbed($client, 'the holder issues ids while the name server is silent');
	cmp_ok(seconds_of(sub { $holder->stop }), '<', 8, 'a stop of a holder does not wait long for the name server');
	like(logged($holder), qr/could not be given back to the registry\n.*DETAIL:  .*could not translate host name/,
		'the holder logs why it has not given its worker id back');
	start_server($holder);
	goes_on($holder, $last, 'the holder, started while the name server is silent');
	unlink $silence;
	logs($holder, 0, qr/LOG:  the lease on snowflake worker_id \d+ has been renewed/,
		'the holder renews its lease when the name server answers');
	return;
}

run_scenarios(
	'a silent name server' => \&silent_name_server,
	'the registry answers late' => \&answers_late,
	'a start' => \&starts,
	'the first host' => \&first_host,
	'no worker' => \&no_worker,
	'many attempts' => \&many_attempts);
done_testing();
