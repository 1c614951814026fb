# Never a duplicate: clients keep every id that they receive, outside the
# server, while everything goes wrong that the rules speak of.
#
# Faults, in an order that the seed chooses: the clock steps back by
# milliseconds, by seconds (within the tolerance and beyond) and by an hour,
# and forward; backends and the worker get SIGKILL, and the postmaster makes
# its shared memory anew; the postmaster gets SIGKILL; immediate and fast stops,
# half of them with a start while the clock is behind; the worker is stopped,
# or ended; parameters change; the primary is stopped at once and a standby
# with a slower clock is promoted.  There are three kinds of promotion:
#
#   handover  The same worker id.  The clients pause, one more row is
#             inserted, and the standby has replayed it when the primary ends.
#             Thus the new primary's data is beyond all ids that were handed
#             out, and all of them are checked.
#   failover  The same worker id, in the middle of the load of the clients
#             that INSERT, with synchronous replication; so every id that they
#             receive is in the data that the new primary serves, and all of
#             them are checked.  The others pause, as in a handover, because
#             ids that were never replicated are not covered.
#   new id    A worker id never used before, under full load, nothing
#             replicated synchronously.  All ids are checked.
#
# Before the first two, one row more is committed by a clock that is not stepped
# until the primary ends, because a new primary begins after the time of the
# last commit that it has replayed.  In half of them the policy is "advance",
# and ids are ahead of the clock then.
#
# At the end: no id came twice, to whichever clients; each client's ids
# increase, across all of the above except a promotion with a new id, which
# may be behind ids that it has never heard of; no client saw an error that
# the rules do not name, nor waited for longer than PATIENCE_S; and all get
# ids again.
#
# The clock is moved by a library of our own; see lib/clock.c.
#
#   CHAOS_SECONDS             how long (45)
#   CHAOS_SEED                repeats the order of an earlier run, though not
#                             its timing
#   CHAOS_SYNCHRONOUS_COMMIT  on or off; the seed chooses if it is not set
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(rmtree);
use List::Util qw(max min shuffle sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	HOUR => 3600,
	BITS_BELOW_TICK => 22,
	SLOWEST_STANDBY_S => 3,
};

# What clients do, and how many of each.
my %clients = (single => 2, many => 2, insert => 2);

# Faults, and how often each is in the deck that is shuffled and dealt.
my %deck = (
	back_by_ms => 5,
	back_by_s => 4,
	back_beyond_tolerance => 2,
	back_by_an_hour => 2,
	forward => 2,
	backend_killed => 4,
	worker_killed => 1,
	worker_stopped => 3,
	worker_ended => 2,
	postmaster_killed => 3,
	immediate_stop => 3,
	fast_stop => 2,
	parameters => 5,
	handover => 2,
	failover => 2,
	new_id => 2);

# The errors that the rules name, and what they have to say.
my %allowed_errors = (
	'55000' => qr/^the clock is \d+\.\d{3} ms behind the last snowflake id$/,
	'57P01' => qr/^terminating connection/,
	'57P02' => qr/^terminating connection because of crash/,
	'57P03' => qr/^the database system is/,
	'08006' => qr//,
	'25006' => qr/during recovery|in a read-only transaction/);

my $seconds = $ENV{CHAOS_SECONDS} || 45;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
my $synchronous_commit = $ENV{CHAOS_SYNCHRONOUS_COMMIT}
  // (qw(on off))[ $seed % 2 ];
srand($seed);
note("seed $seed, synchronous_commit $synchronous_commit, $seconds s");

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock_library = build_clock_library($directory);
my $began = now();
my %counts;                     # of faults
my $chaos = SnowflakeChaos->new(
	directory => $directory,
	seed => $seed,
	batch => \&batch_of);

# ----- clients -----

# Who takes part is a kind of clients, or all; for eras see the head.
my $era = 0;

sub command_clients
{
	my ($who, $server) = @_;

	return $chaos->command('control', $era, $who,
		$server ? $server->{node}->connstr('postgres') : '');
}

# The statements of one batch.
sub batch_of
{
	my ($kind) = @_;

	return "SELECT snowflake_nextval();\n" x 20 if $kind eq 'single';
	return 'SELECT snowflake_nextvals(' . (1 + int rand 200) . ");\n"
	  if $kind eq 'many';
	return "INSERT INTO taken (client) VALUES ($$) RETURNING id;\n" x 8
	  . "INSERT INTO taken (client) SELECT $$ FROM generate_series(1, "
	  . (1 + int rand 10)
	  . ") RETURNING id;\n";
}

sub start_clients
{
	for my $kind (sort keys %clients)
	{
		$chaos->start_client($kind, 'control') for 1 .. $clients{$kind};
	}
	return;
}

# Lets only some go on, and waits until the others have paused.
sub pause_clients
{
	my ($who, $server) = @_;
	my $until = now() + PATIENCE_S;
	my $number = 0;
	my $command_number = command_clients($who, $server);

	for my $kind (sort keys %clients)
	{
		for (1 .. $clients{$kind})
		{
			my $name = "$directory/paused." . $number++ . ".$command_number";
			next if $kind eq $who;
			until (-e $name)
			{
				die "a client does not pause\n" if now() > $until;
				tend();
				usleep(2_000);
			}
		}
	}
	unlink glob("$directory/paused.*");
	return;
}

# ----- servers and their clocks -----

# A server: its node, its clock's file, how far its clock is from the real one
# when it is in order, and when a stepped one is to be put in order again.
my ($primary, $standby);
my $servers = 0;
my $worker_number = 7;          # the newest (datacenter_id, worker_id)
my %parameters = (
	clock_policy => 'wait',
	clock_tolerance => 5000,
	sequence_start => 'zero',
	high_water_interval => 500);
my ($clock_due, $stopped_worker, $worker_due);

sub move_clock
{
	my ($server, $offset_s) = @_;

	write_clock($server->{clock}, $server->{in_order} + $offset_s);
	return;
}

sub step_clock
{
	my ($offset_s, $for_s) = @_;

	log_event(sprintf 'clock %+.3f s for %.3f s', $offset_s, $for_s);
	move_clock($primary, $offset_s);
	$clock_due = now() + $for_s;
	return;
}

sub put_clock_in_order
{
	move_clock($primary, 0);
	log_event('clock in order') if defined $clock_due;
	undef $clock_due;
	return;
}

sub continue_worker
{
	kill 'CONT', $stopped_worker if defined $stopped_worker;
	undef $stopped_worker;
	return;
}

# Ends what is due.
sub tend
{
	put_clock_in_order() if defined $clock_due && now() >= $clock_due;
	continue_worker() if defined $stopped_worker && now() >= $worker_due;
	return;
}

sub let_pass
{
	my ($for_s) = @_;
	my $until = now() + $for_s;

	while ((my $left = $until - now()) > 0)
	{
		tend();
		usleep(min(10_000, 1_000_000 * $left));
	}
	return;
}

sub new_server
{
	my ($in_order) = @_;
	my $name = 'server' . ++$servers;
	my $server = {
		node => PostgreSQL::Test::Cluster->new($name),
		clock => "$directory/$name.clock",
		in_order => $in_order
	};

	move_clock($server, 0);
	return $server;
}

sub start_server
{
	my ($server) = @_;
	local %ENV = (
		%ENV,
		preload($clock_library),
		CLOCK_OFFSET_FILE => $server->{clock});

	$server->{node}->start;
	return;
}

sub write_identity
{
	my ($server) = @_;

	write_conf(
		$server->{node}, 'identity.conf',
		'snowflake.datacenter_id = ' . int($worker_number / 32),
		'snowflake.worker_id = ' . $worker_number % 32);
	return;
}

# Of all servers alike: a standby is to begin after ids that lead the clock as
# far as its own parameters allow.
sub write_parameters
{
	for my $server (grep { defined } $primary, $standby)
	{
		write_conf($server->{node}, 'parameters.conf',
			map { "snowflake.$_ = $parameters{$_}" } sort keys %parameters);
		$server->{node}->reload if defined $server->{node}{_pid};
	}
	return;
}

# Waits until a statement returns 't'.  Not for longer than settle_clock()
# leaves the clock behind.
sub wait_until
{
	my ($server, $sql) = @_;
	my $until = now() + PATIENCE_S / 4;

	while ((value_of($server->{node}, $sql) // '') ne 't')
	{
		die "waited in vain for: $sql\n" if now() > $until;
		let_pass(0.02);
	}
	return;
}

sub pid_of
{
	my ($backend_type) = @_;
	my @pids = split /\n/, value_of($primary->{node},
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$backend_type'"
		  . ' AND pid <> pg_backend_pid() ORDER BY pid') // '';
	my $chance = rand;

	return @pids ? $pids[ $chance * @pids ] : undef;
}

# ----- faults -----

sub back_by_ms
{
	step_clock(-0.001 - rand 0.2, 0.02 + rand 0.5);
	let_pass(rand 0.3);
	return;
}

sub back_by_s
{
	step_clock(-1 - rand 3, 0.2 + rand 2);
	let_pass(rand 1);
	return;
}

sub back_beyond_tolerance
{
	step_clock(-$parameters{clock_tolerance} / 1000 - 1 - rand 3,
		0.2 + rand 1);
	let_pass(rand 1);
	return;
}

sub back_by_an_hour
{
	step_clock(-HOUR, 0.2 + rand 1);
	let_pass(rand 1);
	return;
}

# For good.
sub forward
{
	$primary->{in_order} += 0.001 + rand 2;
	log_event('clock forward');
	put_clock_in_order();
	return;
}

# A backend's end by SIGKILL makes the postmaster end the others and make its
# shared memory anew.
sub kill_process
{
	my ($backend_type) = @_;
	my $offset = -s $primary->{node}->logfile;
	my $pid = pid_of($backend_type);

	continue_worker();
	if (!defined $pid || kill('KILL', $pid) != 1)
	{
		log_event("no $backend_type to kill");
		return;
	}
	log_event("$backend_type killed");
	$primary->{node}->wait_for_log(
		qr/all server processes terminated; reinitializing/, $offset);
	wait_until($primary, 'SELECT true');
	return;
}

sub backend_killed
{
	kill_process('client backend');
	return;
}

sub worker_killed
{
	kill_process('snowflake high-water mark');
	return;
}

sub worker_stopped
{
	my $for_s = 0.5 + rand 2;
	my $pid = pid_of('snowflake high-water mark');

	continue_worker();
	return unless defined $pid && kill('STOP', $pid) == 1;
	log_event(sprintf 'worker stopped for %.3f s', $for_s);
	$stopped_worker = $pid;
	$worker_due = now() + $for_s;
	let_pass(rand 1.5);
	return;
}

sub worker_ended
{
	my $pid = pid_of('snowflake high-water mark');

	kill 'TERM', $pid if defined $pid;
	log_event('worker ended');
	return;
}

# Half of all starts find the clock behind.
sub start_again
{
	my $how = int rand 8;
	my $seconds_back = rand 4;
	my $for_s = 0.3 + rand 1.7;

	step_clock(-$seconds_back, $for_s) if $how < 3;
	step_clock(-HOUR, $for_s) if $how == 3;
	start_server($primary);
	log_event('started');
	let_pass(0.3);
	return;
}

sub postmaster_killed
{
	my $pid = $primary->{node}{_pid};

	continue_worker();
	kill 'STOP', $pid;          # so that it has no more children
	my @children = children_of($pid);
	$primary->{node}->kill9;
	log_event('postmaster killed');
	my $until = now() + PATIENCE_S;
	while (grep { kill 0, $_ } @children)
	{
		die "children survive the postmaster\n" if now() > $until;
		let_pass(0.005);
	}
	start_again();
	return;
}

sub stop_and_start
{
	my ($mode) = @_;

	continue_worker();
	$primary->{node}->stop($mode);
	log_event("stopped, $mode");
	start_again();
	return;
}

sub immediate_stop
{
	stop_and_start('immediate');
	return;
}

sub fast_stop
{
	stop_and_start('fast');
	return;
}

sub parameters
{
	%parameters = (
		clock_policy => (qw(wait error advance))[ rand 3 ],
		clock_tolerance => 1000 + int rand 4000,
		sequence_start => (qw(zero random))[ rand 2 ],
		high_water_interval => 50 + int rand 950);
	log_event(
		join ' ', 'parameters', map { $parameters{$_} } sort keys %parameters);
	write_parameters();
	return;
}

# ----- promotions -----

sub make_standby
{
	my ($from) = ($primary);
	my $new = new_server($from->{in_order});

	# rows that are old are of no use; a copy of them takes time
	wait_until($from,
		'WITH d AS (DELETE FROM taken WHERE id < (SELECT max(id) FROM taken)'
		  . ' - (60000::bigint << ' . BITS_BELOW_TICK . ')) SELECT true');
	$from->{node}->backup('base');
	$new->{node}->init_from_backup($from->{node}, 'base', has_streaming => 1);
	rmtree($from->{node}->backup_dir . '/base');
	$standby = $new;
	write_parameters();
	move_clock($standby, -rand SLOWEST_STANDBY_S);
	start_server($standby);
	log_event('new standby');
	return;
}

# Has the standby replayed all that was committed up to now?
sub wait_for_standby
{
	my $lsn;

	wait_until($primary, 'SELECT NOT pg_is_in_recovery()');
	until (
		defined(
			$lsn = value_of(
				$primary->{node}, 'SELECT pg_current_wal_insert_lsn()')))
	{
		let_pass(0.02);
	}
	wait_until($standby, "SELECT pg_last_wal_replay_lsn() >= '$lsn'");
	return;
}

# Leaves the clock alone up to a promotion: in order, or behind ids that are
# ahead of it as far as the policy allows.
sub settle_clock
{
	my $is_ahead = rand() < 0.5;
	my $lead_s = rand($parameters{clock_tolerance}) / 1000;

	put_clock_in_order();
	if ($is_ahead)
	{
		$parameters{clock_policy} = 'advance';
		write_parameters();
		step_clock(-$lead_s, PATIENCE_S);
	}
	return;
}

# Inserts one more row, by whatever clock rule is in force.
sub insert_last_row
{
	wait_until($primary,
		'SET synchronous_commit = on;'
		  . 'INSERT INTO taken (client) VALUES (0) RETURNING true');
	return;
}

# Stops the primary at once and promotes the standby, by a clock that is
# slower.  Clients find it at once, or when it is promoted.
sub promote_standby
{
	my ($who) = @_;
	my $slow_s = rand SLOWEST_STANDBY_S;
	my $is_early = rand() < 0.5;
	my $old = $primary;

	continue_worker();
	$old->{node}->stop('immediate');
	undef $clock_due;
	$primary = $standby;
	undef $standby;
	$primary->{in_order} = $old->{in_order} - $slow_s;
	move_clock($primary, 0);
	command_clients($who, $primary) if $is_early;
	$primary->{node}->promote;
	log_event(sprintf 'promoted, clock slower by %.3f s', $slow_s);
	write_conf($primary->{node}, 'replication.conf',
		"synchronous_commit = $synchronous_commit");
	$primary->{node}->reload;
	command_clients('all', $primary);
	$old->{node}->clean_node;
	let_pass(0.5);
	return;
}

sub handover
{
	make_standby() unless defined $standby;
	settle_clock();
	pause_clients('nobody');
	insert_last_row();
	wait_for_standby();
	log_event('handover');
	promote_standby('all');
	return;
}

sub failover
{
	my $load_s = 0.2 + rand 0.8;

	make_standby() unless defined $standby;
	settle_clock();
	pause_clients('nobody');
	write_conf(
		$primary->{node}, 'replication.conf',
		'synchronous_commit = remote_apply',
		"synchronous_standby_names = '*'");
	$primary->{node}->reload;
	wait_until($primary,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
	insert_last_row();
	wait_for_standby();
	command_clients('insert', $primary);
	let_pass($load_s);
	log_event('failover');
	promote_standby('insert');
	return;
}

sub new_id
{
	make_standby() unless defined $standby;
	$worker_number++;
	log_event("failover to worker $worker_number");
	write_identity($standby);
	$standby->{node}->stop('fast');
	start_server($standby);
	$era++;
	promote_standby('all');
	return;
}

END
{
	my $status = $?;

	# also when it ends in the middle
	kill 'CONT', $stopped_worker if defined $stopped_worker;
	$chaos->kill_clients if defined $chaos;
	$? = $status;
}

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };

$primary = new_server(0);
$primary->{node}->init(allows_streaming => 1);
$primary->{node}->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'snowflake'
restart_after_crash = on
max_connections = 40
shared_buffers = 16MB
autovacuum = off
wal_keep_size = 256MB
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_retrieve_retry_interval = 100ms
log_statement = none
log_replication_commands = off
log_checkpoints = off
log_min_messages = log
log_min_error_statement = panic
include 'identity.conf'
include 'parameters.conf'
include 'replication.conf'
});
write_identity($primary);
write_parameters();
write_conf($primary->{node}, 'replication.conf',
	"synchronous_commit = $synchronous_commit");
start_server($primary);
$primary->{node}->safe_psql(
	'postgres', q{
	CREATE EXTENSION snowflake;
	CREATE TABLE taken (
		id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
		client int);
});
command_clients('all', $primary);
start_clients();
let_pass(1);
make_standby();

# Every kind of fault at least once, however slow the machine is.
my @hand;
my $until = now() + $seconds;
my $is_dealt = 0;
while (now() < $until || !$is_dealt)
{
	@hand = shuffle map { ($_) x $deck{$_} } sort keys %deck unless @hand;
	my $fault = pop @hand;

	{
		no strict 'refs';
		&$fault();
	}
	$counts{$fault}++;
	$is_dealt = keys %counts == keys %deck;
	let_pass(rand 0.6);
	$chaos->check_clients;
}

# All in order again.
continue_worker();
put_clock_in_order();
%parameters = (%parameters, clock_policy => 'wait', clock_tolerance => 60_000);
write_parameters();
wait_until($primary, 'SELECT snowflake_nextval() > 0');
my @clients = 0 .. sum0(values %clients) - 1;
ok($chaos->get_ids(\&tend, @clients),
	'all clients get ids when all is in order');
command_clients('none');
is($chaos->wait_for_clients(@clients), 0, 'clients end without an error');

my %total = (ids => 0, disorder => 0, wrong_errors => 0, errors => {});
$chaos->examine($_, \%total, \%allowed_errors) for @clients;
my $duplicates = $chaos->count_duplicates(
	sub { diag("id $_[0] came to clients $_[1] and $_[2]") });

note("seed $seed, synchronous_commit $synchronous_commit: "
	  . "$total{ids} ids in " . int(now() - $began) . ' s, '
	  . sum0(values %counts) . ' faults, '
	  . ($total{errors}{'55000'} // 0) . " refusals, $duplicates duplicates");
note("faults: $_ $counts{$_}") for sort keys %counts;
note("errors: $_ $total{errors}{$_}") for sort keys %{ $total{errors} };

cmp_ok($total{ids}, '>', 100 * $seconds, 'clients got ids');
is($duplicates, 0, 'no id came twice');
is($total{disorder}, 0, "every client's ids increase");
is($total{wrong_errors}, 0, 'only errors that the rules name');
is( value_of(
		$primary->{node}, 'SELECT count(*) = count(DISTINCT id) FROM taken'),
	't', 'nor does one lie in the table twice');

$_->{node}->stop for grep { defined } $standby, $primary;

done_testing();
