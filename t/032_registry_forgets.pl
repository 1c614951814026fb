# A registry that forgets, is split or stands in the way: from a dump, on a
# standby that lags, with a clock of its own; out of reach behind a password, a
# silent address or a resolver that does not answer.  No id comes twice, and
# whoever has a lease, or had it last, need not wait.
#
# "ahead" and "behind" are of the real clock, which is the registry's if not
# said otherwise.
use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeScenario;
use SnowflakeTest;
use SnowflakeTest qw(hosts_of set_registry timestamp_of worker_id_of);
use Test::More;
use Time::HiRes qw(sleep time);

# How long an id may take where nobody is to wait for anything but the machine,
# which may be busy: alone it is some tenths.
use constant AT_ONCE_S => 5;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $host_library = build_host_library($directory);

# Why a newcomer gets nothing at first.
my $in_grace =
  qr/^The registry has been switched over or restarted, and may not know of all leases; it grants worker ids to other servers from \d{4}-/;

# ----- what scenarios share -----

# Parameters of a server that wants one worker id, and no other.
sub wants
{
	my ($worker_id) = @_;
	return ('snowflake.worker_id_source = config',
		"snowflake.worker_id = $worker_id");
}

# A column of the lease on a worker id, as a registry has it.
sub lease_of
{
	my ($registry, $worker_id, $what) = @_;
	return $registry->safe_psql('postgres',
		"SELECT $what FROM snowflake_registry.lease WHERE worker_id = $worker_id");
}

# Waits until a registry has granted or renewed a server's lease.
sub wait_for_grant
{
	my ($registry, $server) = @_;
	my $holder = $server->safe_psql('postgres',
		'SELECT lease_holder FROM snowflake_node');
	my $leased = "SELECT seen_at FROM snowflake_registry.lease WHERE holder = '$holder'";
	my $before = $registry->safe_psql('postgres', $leased);

	return ok(
		wait_for(
			sub {
				my $seen = $registry->safe_psql('postgres', $leased);
				$seen ne '' && $seen ne $before;
			}),
		$server->name . ' comes forward');
}

# A server does not ask, until the function is called that is returned.
sub keep_from_asking
{
	my ($server) = @_;
	my $worker = $server->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'snowflake registry'"
	);

	kill 'STOP', $worker;
	return sub { kill 'CONT', $worker };
}

# Waits until a server has asked a registry that is there, and got an answer or
# not.
sub wait_for_question
{
	my ($server) = @_;
	return ok(
		wait_for(
			sub {
				$server->safe_psql('postgres',
					'SELECT lease_renewals > 0 FROM snowflake_stat') eq 't'
				  || refusal_of($server) =~ $in_grace;
			}),
		$server->name . ' asks');
}

# Checks that a server issues no id, and why.
sub refuses
{
	my ($node, $reason, $case) = @_;
	my $refusal;

	wait_for(sub { ($refusal = refusal_of($node)) =~ $reason });
	return like($refusal, $reason, $case);
}

sub logged
{
	my ($node, $offset) = @_;
	return slurp_file($node->logfile, $offset // 0);
}

# Waits until a server has logged something since an offset.
sub logs
{
	my ($node, $offset, $pattern, $what) = @_;
	my $text;

	ok(wait_for(sub { ($text = logged($node, $offset)) =~ $pattern }), $what)
	  or diag($text);
	return;
}

# Cuts a standby off from its primary: from now on it hears of nothing.
sub cut_off
{
	my ($primary, $standby) = @_;

	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	ok( wait_for(
			sub {
				$standby->safe_psql('postgres',
					'SELECT count(*) FROM pg_stat_wal_receiver') eq '0';
			}),
		'the standby is cut off');
	return;
}

# Tests that a server that has just been started has an id at once, and that
# its ids go on where they were.
sub goes_on
{
	my ($server, $last, $what) = @_;
	my ($id, $seconds) = first_id($server);

	note sprintf '%s: first id after %.2f s', $what, $seconds;
	cmp_ok($seconds, '<', AT_ONCE_S, "$what: an id at once");
	is(worker_id_of($id), worker_id_of($last), "$what: under the same worker id");
	cmp_ok($id, '>', $last, "$what: ids go on");
	return;
}

# ----- a dump that is older than a raise of lease_duration -----

# The holder, whose lease is long by now, comes forward before another server
# gets its worker id, and is believed.
sub old_dump
{
	my ($former, $lead, $present, $is_to_restart) = @_;
	my $registry = new_registry('registry',
		{ lease_duration => $former, largest_lead => $lead });
	my $restored = new_registry('restored');
	my $either = hosts_of($registry, $restored);
	my $holder = start(new_server('holder', $either, wants(5)));
	my $client = start_client($holder);
	my $dump = "$directory/$$.sql";
	my $held = qr/^worker_id 5 of datacenter_id 0 is leased by holder/;

	# it would ask by itself, in a minute
	my $ask = sub {
		return unless $is_to_restart;
		$holder->stop('immediate');
		start($holder);
		$client = start_client($holder);
	};

	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'),
		'-f', $dump);
	set_registry($registry, lease_duration => $present);
	$ask->();
	ok( wait_for(
			sub {
				$holder->safe_psql('postgres',
					"SELECT lease_expires_at > clock_timestamp() + 0.8 * interval '$present' FROM snowflake_node"
				) eq 't';
			}),
		'the holder has a longer lease');
	$registry->stop('immediate');

	# or its history would be the same, and there would be but a window
	$restored->safe_psql('postgres', 'CREATE TABLE other ()')
	  if $is_to_restart;
	system_or_bail('psql', '-XqAt', '-o', '/dev/null', '-v',
		'ON_ERROR_STOP=1', '-d', $restored->connstr('postgres'), '-f', $dump);

	my $rival = start(new_server('rival', $either, wants(5)));
	my $rival_client = start_client($rival, 'without ids at first');
	refuses($rival, qr/$in_grace|$held/, 'nobody else gets the worker id at first');
	$ask->();
	refuses($rival, $held, '... nor when the holder has come forward');
	wait_for_grant($restored, $holder) unless $is_to_restart;
	is_undisturbed($client, 'who has issued ids all the time');
	is(scalar(my @ids = ids_of($rival_client)), 0, '... and the other one none');
	is_unique();
	return;
}

# A raise takes effect when no lease of before may be forgotten; and it is not
# so large that a dump of before would not wait for the holders.
sub raise
{
	my $registry = new_registry('registry',
		{ lease_duration => '6 s', largest_lead => '1 s' });
	my $holder = start(new_server('holder', $registry->connstr('postgres')));
	my $id = first_id($holder);
	my $lasts = 'expires_at - seen_at';
	my $configure = 'SELECT snowflake_registry.configure';

	my ($state, $message) =
	  sqlstate_of($registry, "$configure(lease_duration => '15 s')");
	is($state, '22023', 'a large raise is refused');
	is($message, 'lease_duration cannot be raised from 00:00:06 to 00:00:15',
		'message');
	$registry->safe_psql('postgres', "$configure(lease_duration => '14 s')");
	is((sqlstate_of($registry, "$configure(lease_duration => '5 s')"))[0],
		'55006', 'the constants are not changed again at once');
	my $is_early;
	ok( wait_for(
			sub {
				$is_early ||= $registry->safe_psql('postgres',
					"SELECT count(*) FROM snowflake_registry.lease WHERE $lasts > '6 s' AND seen_at < (SELECT former_until FROM snowflake_registry.setting)"
				);
				return lease_of($registry, worker_id_of($id), $lasts) eq '00:00:14';
			}),
		'a raise takes effect');
	ok(!$is_early, '... after a lease and a lead');
	is((sqlstate_of($registry, "$configure(lease_duration => '15 s')"))[0],
		'22023', 'a second raise is limited as the first one, for old dumps');
	$registry->safe_psql('postgres', "$configure(lease_duration => '3 s')");
	wait_for_grant($registry, $holder) for 1 .. 2;
	is(lease_of($registry, worker_id_of($id), $lasts),
		'00:00:03', 'less takes effect at once');
	return;
}

# ----- a standby that lags becomes a server without being promoted -----

sub no_promotion
{
	my $registry = new_registry('registry', { lease_duration => '12 s' });
	my $standby = standby_of($registry, 'standby');
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start(new_server('holder', $either));
	my $client = start_client($holder);
	my $go_on = keep_from_asking($holder);
	$registry->stop('immediate');
	$standby->stop;
	unlink $standby->data_dir . '/standby.signal' or die "standby.signal: $!";
	start($standby);
	is( $standby->safe_psql('postgres',
			'SELECT timeline_id FROM pg_control_checkpoint()'),
		1,
		'the timeline stays');
	my $newcomer = start(new_server('newcomer', $either));
	wait_for_question($newcomer);
	$go_on->();
	my $id = first_id($newcomer, 60);
	start_client($newcomer);
	isnt(worker_id_of($id), worker_id_of(first_id($holder)),
		'a newcomer gets another worker id than the holder, whom the registry had forgotten');
	is_undisturbed($client, 'the holder has issued ids all the time');
	is_unique();
	return;
}

# The same, and nobody comes forward: the holder has died, and its clock was
# ahead, and that of the next one is behind.
sub no_promotion_no_holder
{
	my $registry = new_registry('registry',
		{ lease_duration => '3 s', largest_lead => '5 s' });
	my $standby = standby_of($registry, 'standby');
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start(new_server('holder', $either, wants(5)), 4.5);
	my $last = first_id($holder);
	$registry->stop('immediate');
	$last = first_id($holder);
	crash($holder);
	$standby->stop;
	unlink $standby->data_dir . '/standby.signal' or die "standby.signal: $!";
	start($standby);
	my $id = first_id(start(new_server('next', $either, wants(5)), -6), 60);
	cmp_ok($id, '>', $last, 'the next holder begins after the last one');
	return;
}

# ----- a registry that is moved -----

sub moved
{
	my $registry = new_registry('registry', { lease_duration => '6 s' });
	my $holder = start(new_server('holder', $registry->connstr('postgres')));
	my $client = start_client($holder);
	my $offset = -s $holder->logfile;

	my ($state) = sqlstate_of($registry,
		'CREATE SCHEMA elsewhere; ALTER EXTENSION snowflake_registry SET SCHEMA elsewhere');
	is($state, '0A000', 'ALTER EXTENSION SET SCHEMA is refused');

	$registry->safe_psql('postgres',
		'ALTER SCHEMA snowflake_registry RENAME TO moved');
	logs(
		$holder, $offset,
		qr/WARNING:  the registry has not granted a lease.*\n[^\n]*DETAIL:  schema "snowflake_registry" does not exist/,
		'where it has another name servers say so');
	unlike(logged($holder, $offset),
		qr/CREATE EXTENSION|configure/, 'and nobody is told to make another one');
	$registry->safe_psql('postgres',
		'ALTER SCHEMA moved RENAME TO snowflake_registry');
	wait_for_grant($registry, $holder);
	is_undisturbed($client, 'ids go on');
	return;
}

# ----- a holder comes forward, and crashes -----

# What it has issued is known from what it said, and from nothing else: its ids
# are later than the clock of the next one, which is behind, when its turn
# comes.
sub forward_and_crash
{
	my $registry = new_registry('registry',
		{ lease_duration => '3 s', largest_lead => '5 s' });
	my $standby = standby_of($registry, 'standby');
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start(new_server('holder', $either, wants(5)), 4.5);
	my $last = first_id($holder);
	$registry->stop('immediate');
	$standby->promote;
	wait_for_grant($standby, $holder);
	$last = first_id($holder);
	crash($holder);
	my $id = first_id(start(new_server('next', $either, wants(5)), -6), 60);
	cmp_ok($id, '>', $last, 'the next holder begins after its last id');
	return;
}

# ----- the new primary's clock is behind -----

sub slow_clock
{
	my $ahead_s = 2.5;
	my $registry = new_registry('registry',
		{ lease_duration => '6 s', largest_lead => '2 s' }, $ahead_s);
	my $standby = standby_of($registry, 'standby', 0);
	my $either = hosts_of($registry, $standby);

	cut_off($registry, $standby);
	my $holder = start(new_server('holder', $either, wants(5)), $ahead_s);
	my $victim = start(new_server('victim', $either, wants(6)), $ahead_s + 1.5);
	my $client = start_client($holder);
	my $last = first_id($victim);
	$registry->stop('immediate');
	$last = first_id($victim);
	crash($victim);
	$standby->promote;

	# one is alive and tells what it has; what the other had nobody tells
	my $rival = start(new_server('rival', $either, wants(5)));
	my $next = start(new_server('next', $either, wants(6)), -8);
	my $newcomer = start(new_server('newcomer', $either));
	wait_for_grant($standby, $holder);
	refuses($rival, qr/^worker_id 5 of datacenter_id 0 is leased by /,
		'nobody gets the worker id of the one who has come forward');
	my $id = first_id($next, 60);
	cmp_ok($id, '>', $last, 'the next holder begins after the last one');
	start_client($newcomer);
	is_undisturbed($client, 'who has a lease goes on');
	is_unique($last, $id);
	return;
}

# ----- restarts after a failover -----

# Others wait for half a minute; none of these, whatever the new registry knows
# of them, and whenever they stop.
sub restarts
{
	my $registry = new_registry('registry', { lease_duration => '30 s' });
	my $standby = standby_of($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my %server = map {
		my ($name, @conf) = @$_;
		$name => new_server($name, $either, @conf)
	} ['known'], [ 'given', wants(20) ], ['lost'],
	  [ 'lost_given', wants(21) ], ['between'], ['immediate'];
	my %last;

	for my $name (qw(known given))
	{
		start($server{$name});
		first_id($server{$name});
	}
	cut_off($registry, $standby);
	for my $name (qw(lost lost_given between immediate))
	{
		start($server{$name});
		first_id($server{$name});
	}
	$last{$_} = first_id($server{$_}) for keys %server;

	$registry->stop('immediate');
	$server{between}->stop;
	start($server{between});
	goes_on($server{between}, $last{between}, 'restarted without a registry');
	$last{between} = first_id($server{between});
	$server{between}->stop;

	$standby->promote;
	start($server{between});
	goes_on($server{between}, $last{between},
		'stopped without a registry, and started with the new one');
	for my $name (qw(known given lost lost_given between))
	{
		my $offset = -s $server{$name}->logfile;

		$last{$name} = first_id($server{$name});
		$server{$name}->stop;
		like(logged($server{$name}, $offset),
			qr/has been given back to the registry/, "$name: a stop gives back");
		start($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, after a failover");
	}
	$server{immediate}->stop('immediate');
	start($server{immediate});
	goes_on($server{immediate}, $last{immediate}, 'immediate, after a failover');

	# once more, now that all have come forward
	for my $name (qw(known lost))
	{
		$last{$name} = first_id($server{$name});
		$server{$name}->stop;
		start($server{$name});
		goes_on($server{$name}, $last{$name}, "$name, once more");
	}
	refuses(start(new_server('newcomer', $either)),
		$in_grace, 'somebody new is to wait');
	return;
}

# ----- a server whose clock is wrong for a while -----

sub wrong_clock
{
	my $registry = new_registry('registry',
		{ lease_duration => '4 s', largest_lead => '2 s' });
	my $standby = standby_of($registry, 'standby');
	my $either = hosts_of($registry, $standby);
	my $wrong = start(new_server('wrong', $either));
	my $last = first_id($wrong);

	move_clock($wrong, 365 * 86400);
	wait_for_grant($registry, $wrong);
	refuses($wrong, qr/^The fence is /, 'a year ahead, a server issues no id');
	sleep 4;
	move_clock($wrong, 0);
	my ($id, $seconds) = first_id($wrong);
	cmp_ok($seconds, '<', AT_ONCE_S, 'set right, it does at once');
	cmp_ok($id, '>', $last, '... and ids go on');
	cmp_ok(timestamp_of($id), '<', time + 1, '... where they were');

	$registry->wait_for_catchup($standby, 'replay', $registry->lsn('insert'));
	$registry->stop('immediate');
	$standby->promote;
	ok(first_id(start(new_server('newcomer', $either)), 60),
		'after a failover a newcomer does not wait for a year');
	is( $standby->safe_psql(
			'postgres',
			"SELECT grants_from - clock_timestamp() < '6 s' AND (SELECT max(fence) FROM snowflake_registry.lease) < clock_timestamp() + '20 s' FROM snowflake_registry.setting"
		),
		't',
		'... but for a lease and a lead');
	return;
}

# ----- a worker id of one's own -----

# The directory has moved, and the registry takes it for a copy of a server that
# is alive.
sub certified_dead
{
	my $registry = new_registry('registry', { lease_duration => '10 min' });
	my $old = start(new_server('old', $registry->connstr('postgres'), wants(7)));
	my $client = start_client($old);
	my $new = start(new_server('new', $registry->connstr('postgres'), wants(8)));
	first_id($new);
	my ($state) =
	  sqlstate_of($registry, 'SELECT snowflake_registry.free(0, 9)');
	isnt($state, '', 'a worker id that nobody had cannot be freed');

	my $last = first_id($old);
	$old->stop('immediate');
	$new->stop;
	rmtree($new->data_dir);
	system_or_bail('cp', '-a', $old->data_dir, $new->data_dir);
	rmtree($old->data_dir);
	$new->append_conf('postgresql.conf',
		'port = ' . $new->port . "\n"
		  . "unix_socket_directories = '" . $new->host . "'\n");
	unlink $new->data_dir . '/postmaster.pid';
	start($new);
	refuses(
		$new,
		qr/^worker_id 7 of datacenter_id 0 is leased by old\b.* until \d{4}-/,
		'a server that has moved is refused because of itself');
	is(lease_of($registry, 7, 'state'), 'held', 'the registry shows a holder');
	$registry->safe_psql('postgres', 'SELECT snowflake_registry.free(0, 7)');
	my ($id, $seconds) = first_id($new);
	cmp_ok($seconds, '<', 8,
		'when somebody says that it is dead, there are ids within seconds');
	is(worker_id_of($id), 7, '... of the worker id');
	cmp_ok($id, '>', $last, '... after the last one');
	start_client($new);
	is_unique();
	return;
}

# ----- the registry is back, and does not let anybody in -----

sub other_reasons
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
		alone => new_server(
			'alone',
			$registry->connstr('postgres') . " user=leaser password=$password"),
		both => new_server(
			'both',
			hosts_of($registry, $other) . " user=leaser password=$password"));
	first_id(start($_)) for values %server;
	my %offset = map { $_ => -s $server{$_}->logfile } keys %server;

	$registry->stop;
	logs(
		$server{alone}, $offset{alone},
		qr/$warning[^\n]*\Q${\$registry->host}\E.*(?:No such file|refused)/,
		'the log tells that the registry is not there');
	logs(
		$server{both}, $offset{both},
		qr/$warning[^\n]*\Q${\$registry->host}\E.*(?:No such file|refused)(?:.*\n\t)+[^\n]*\Q${\$other->host}\E.*role "leaser" does not exist/,
		'... and what each of two hosts says');

	my $hba = $registry->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "local all leaser scram-sha-256\n$rules");
	%offset = map { $_ => -s $server{$_}->logfile } keys %server;
	start($registry);
	logs(
		$server{alone}, $offset{alone},
		qr/$warning[^\n]*password authentication failed for user "leaser"/,
		'back with another password, it has a new reason');
	logs(
		$server{both}, $offset{both},
		qr/$warning[^\n]*password authentication failed for user "leaser"(?:.*\n\t)*[^\n]*role "leaser" does not exist/,
		'... and so has the one of two hosts');
	unlike(logged($_), qr/\Q$password\E/, 'no log has the password')
	  for values %server;

	$registry->safe_psql('postgres',
		"SET password_encryption = 'scram-sha-256'; ALTER ROLE leaser PASSWORD '$password'"
	);
	logs($server{alone}, $offset{alone}, qr/LOG:  the lease on snowflake worker_id \d+ has been renewed/,
		'the password is set right, and the lease renewed');
	return;
}

# ----- names -----

# Starts a server with a resolver and a host of its own.
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
	my $file = "$directory/" . $server->name . '.facts';

	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh map { "$_\n" } 'name pg-0', @facts;
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

# A registry that listens on 127.0.0.1, and as what it is reached by name.
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

# The first of a name's addresses takes connections and says nothing.
sub silent_address
{
	my ($registry, $conninfo) = named_registry({ lease_duration => '6 s' });
	my $silent = IO::Socket::INET->new(
		Listen => 100,
		LocalAddr => '127.0.0.2',
		LocalPort => $registry->port,
		Proto => 'tcp')
	  or die "127.0.0.2: $!\n";
	my $server = new_server('server', $conninfo);
	my @facts = map { "address registry.example $_" } '127.0.0.2', '127.0.0.1';

	start_with_facts($server, @facts);
	my ($id, $seconds) = first_id($server);
	note sprintf 'first id behind a silent address: %.1f s', $seconds;
	cmp_ok($seconds, '<', 10, 'a server gets a lease');
	my $client = start_client($server);
	wait_for_grant($registry, $server) for 1 .. 4;
	is_undisturbed($client, 'which it renews');
	is( $server->safe_psql('postgres',
			'SELECT lease_failures FROM snowflake_stat'),
		'0',
		'... each time');
	cmp_ok(seconds_of(sub { $server->stop }),
		'<', 3, 'a stop does not take longer for it');
	is(lease_of($registry, worker_id_of($id), 'state'),
		'released', '... and gives the worker id back');
	return;
}

# The resolver does not answer.
sub hanging_resolver
{
	my ($registry, $conninfo) = named_registry({ lease_duration => '30 s' });
	my $hanging = 'hanging registry.example';
	my $without = new_server('without', $conninfo);
	my $holder = new_server('holder', $conninfo);
	my $other = new_server('other',
		sprintf 'host=registry.example,%s port=%d,%d dbname=postgres',
		$registry->host, $registry->port, $registry->port);

	start_with_facts($without, $hanging);
	start_with_facts($holder, 'address registry.example 127.0.0.1');
	start_with_facts($other, $hanging);
	my $last = first_id($holder);
	my ($id, $seconds) = first_id($other);
	note sprintf 'first id where one of two names is not resolved: %.1f s',
	  $seconds;
	cmp_ok($seconds, '<', 10, 'another host is as good');
	$without->safe_psql('postgres', 'SELECT 1');
	refuses($without, qr/^The registry does not answer in time\.$/,
		'without an answer there is no id');
	logs($without, 0,
		qr/could not translate host name "registry.example" to address: no answer in time/,
		'... and the log says that it is the name');
	cmp_ok(seconds_of(sub { $without->stop }),
		'<', 2, 'a stop does not wait for it');
	write_facts($holder, $hanging);
	cmp_ok(seconds_of(sub { $holder->stop }),
		'<', 3, '... nor does that of a holder for long');
	like(logged($holder),
		qr/could not be given back to the registry\n.*DETAIL:  .*could not translate host name/,
		'... which tells why it has not given its worker id back');
	start_with_facts($holder, $hanging);
	goes_on($holder, $last, '... and which it has again when it starts');
	cmp_ok(seconds_of(sub { $other->stop }),
		'<', 3, 'where another host is there a stop is as short');
	is(lease_of($registry, worker_id_of($id), 'state'),
		'released', '... and gives the worker id back');
	return;
}

# ----- all -----

run_scenarios(
	{
		name => 'an old dump',
		nodes => [qw(registry restored holder rival)],
		run => sub { old_dump('2 s', '1 s', '6 s') }
	},
	{
		name => 'a very old dump',
		nodes => [qw(registry restored holder rival)],
		run => sub { old_dump('60 s', '5 s', '1 day', 'is to restart') }
	},
	{
		name => 'a raise',
		nodes => [qw(registry holder)],
		run => \&raise
	},
	{
		name => 'no promotion',
		nodes => [qw(registry standby holder newcomer)],
		run => \&no_promotion
	},
	{
		name => 'no promotion and no holder',
		nodes => [qw(registry standby holder next)],
		run => \&no_promotion_no_holder
	},
	{
		name => 'a registry is moved',
		nodes => [qw(registry holder)],
		run => \&moved
	},
	{
		name => 'forward and crash',
		nodes => [qw(registry standby holder next)],
		run => \&forward_and_crash
	},
	{
		name => 'a slow clock',
		nodes => [qw(registry standby holder victim rival next newcomer)],
		run => \&slow_clock
	},
	{
		name => 'restarts',
		nodes => [
			qw(registry standby known given lost lost_given between immediate newcomer)
		],
		run => \&restarts
	},
	{
		name => 'a wrong clock',
		nodes => [qw(registry standby wrong newcomer)],
		run => \&wrong_clock
	},
	{
		name => 'certified dead',
		nodes => [qw(registry old new)],
		run => \&certified_dead
	},
	{
		name => 'other reasons',
		nodes => [qw(registry other alone both)],
		run => \&other_reasons
	},
	{
		name => 'a silent address',
		nodes => [qw(registry server)],
		run => \&silent_address
	},
	{
		name => 'a hanging resolver',
		nodes => [qw(registry without holder other)],
		run => \&hanging_resolver
	});
done_testing();
