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
use IPC::Open3;
use List::Util qw(max min shuffle sum0);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

use constant {
	HOUR => 3600,
	PATIENCE_S => 120,
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
my $control_file = "$directory/control";
my $clock_library = build_clock_library($directory);
my $began = now();
my $main_pid = $$;
my %counts;                     # of faults
my @client_pids;

sub now
{
	return clock_gettime(CLOCK_MONOTONIC);
}

sub log_event
{
	my ($text) = @_;
	note(sprintf '%8.3f %s', time(), $text);
	return;
}

# ----- clients -----

# What clients are to do, in one line that they read before every batch: a
# number that grows, an era (see the head), who takes part, and where.
my $command_number = 0;
my $era = 0;

sub command_clients
{
	my ($who, $server) = @_;

	$command_number++;
	open my $fh, '>', "$control_file.new" or die "$control_file.new: $!";
	print $fh join("\t", $command_number, $era, $who,
		$server ? $server->{node}->connstr('postgres') : ''), "\n";
	close $fh or die "$control_file.new: $!";
	rename "$control_file.new", $control_file or die "$control_file: $!";
	return;
}

sub read_command
{
	open my $fh, '<', $control_file or die "$control_file: $!";
	my $line = <$fh>;
	chomp $line;
	return split /\t/, $line, -1;
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

# What a line of psql's output means: an id, an error, or nothing.
sub entry_of
{
	my ($line) = @_;

	return $line if $line =~ /^\d+$/;
	return "! $1 $2"
	  if $line =~ /(?:ERROR|FATAL|PANIC):  (\w{5}): (.*)/
	  || $line =~ /WARNING:  (57P0\d): (.*)/;
	return "! 57P03 $1" if $line =~ /FATAL:  (the database system is .*)/;
	return "! 57P01 $1" if $line =~ /FATAL:  (terminating connection.*)/;
	return "! 08006 $line"
	  if $line =~ /server closed the connection|Connection refused/
	  || $line =~ /No such file or directory|no connection to the server/
	  || $line =~ /Connection reset|Broken pipe/;
	return ''
	  if $line =~ /^(?:DETAIL|HINT|LOCATION|CONTEXT|WARNING|[A-Z]+ NAME): /
	  || $line =~ /^\t|connection to server was lost|^$/;
	return "! ????? $line";
}

# A long-lived process that drives psql, and writes what it receives into a
# file of its own: ids, "! SQLSTATE message", "= era", and "@ time what".
sub run_client
{
	my ($number, $kind) = @_;
	my ($pid, $in, $out, $is_at_end);
	my $connected_by = 0;
	my $last_era = -1;
	my $buffer = '';

	srand($seed + 1 + $number);
	open my $file, '>', "$directory/client$number" or die $!;
	$file->autoflush(0);

	my $disconnect = sub {
		return unless defined $pid;
		close $in;
		close $out;
		kill 'KILL', $pid;
		waitpid $pid, 0;
		undef $pid;
	};
	my $connect = sub {
		my ($connstr) = @_;
		$pid = open3($in, $out, undef, 'psql', '-XAtq', '-d', $connstr);
		$buffer = '';
		syswrite $in, "\\set VERBOSITY verbose\n";
		printf $file "@ %.3f connect %s\n", time(), $connstr =~ s/\s+/ /gr;
	};

	# Reads up to the end of the batch; false if psql has ended.
	my $receive = sub {
		my $until = now() + PATIENCE_S;
		for (;;)
		{
			while ($buffer =~ s/^(.*)\n//)
			{
				my $line = $1;
				return 1 if $line eq '(end)';
				my $entry = entry_of($line);
				print $file "$entry\n" if $entry ne '';
			}
			my $ready = '';
			vec($ready, fileno($out), 1) = 1;
			if (select($ready, undef, undef, 0.5) > 0)
			{
				# a line that was cut off is no id
				return 0
				  unless sysread $out, $buffer, 65536, length $buffer;
			}
			elsif (now() > $until)
			{
				print $file "! ????? no answer\n";
				return 0;
			}
			return 0 if getppid() != $main_pid;
		}
	};

	while (getppid() == $main_pid)
	{
		my ($command, $new_era, $who, $connstr) = read_command();

		last if $who eq 'none';
		if ($who ne 'all' && $who ne $kind)
		{
			$disconnect->();
			$file->flush;
			PostgreSQL::Test::Utils::append_to_file(
				"$directory/paused.$number.$command", '')
			  unless -e "$directory/paused.$number.$command";
			usleep(5_000);
			next;
		}

		$disconnect->() if $connected_by ne $connstr;
		if ($new_era != $last_era)
		{
			print $file "= $new_era\n";
			$last_era = $new_era;
		}
		if (!defined $pid)
		{
			$connect->($connstr);
			$connected_by = $connstr;
		}
		printf $file "@ %.3f\n", time();
		syswrite $in, batch_of($kind) . "\\echo (end)\n";
		my $is_alive = $receive->();
		$disconnect->() unless $is_alive;
		$file->flush;
		usleep($is_alive ? rand 40_000 : 50_000);
	}
	$disconnect->();
	close $file or die $!;
	return;
}

sub start_clients
{
	my $number = 0;

	for my $kind (sort keys %clients)
	{
		for (1 .. $clients{$kind})
		{
			my $pid = fork // die "fork: $!";
			if ($pid == 0)
			{
				$SIG{PIPE} = 'IGNORE';
				$SIG{TERM} = $SIG{INT} = 'DEFAULT';
				open STDOUT, '>>', "$directory/client.log";
				open STDERR, '>>', "$directory/client.log";
				my $is_done = eval { run_client($number, $kind); 1 };
				print STDERR "client $number: $@\n" unless $is_done;
				STDERR->flush;
				POSIX::_exit($is_done ? 0 : 1);
			}
			push @client_pids, $pid;
			$number++;
		}
	}
	return;
}

# Lets only some go on, and waits until the others have paused.
sub pause_clients
{
	my ($who, $server) = @_;
	my $until = now() + PATIENCE_S;
	my $number = 0;

	command_clients($who, $server);
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
	my $bytes = pack 'q', int(1_000_000 * ($server->{in_order} + $offset_s));

	# in place and at once: servers have it mapped
	open my $fh, '+<:raw', $server->{clock} or die "$server->{clock}: $!";
	defined syswrite $fh, $bytes or die "$server->{clock}: $!";
	close $fh;
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

	PostgreSQL::Test::Utils::append_to_file($server->{clock}, "\0" x 8);
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

# Writes a file that the server's configuration includes.
sub write_conf
{
	my ($server, $name, @lines) = @_;
	my $file = $server->{node}->data_dir . "/$name";

	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh map { "$_\n" } @lines;
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

sub write_identity
{
	my ($server) = @_;

	write_conf(
		$server, 'identity.conf',
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
		write_conf($server, 'parameters.conf',
			map { "snowflake.$_ = $parameters{$_}" } sort keys %parameters);
		$server->{node}->reload if defined $server->{node}{_pid};
	}
	return;
}

# A statement's output, or nothing if it fails.
sub value_of
{
	my ($server, $sql) = @_;
	my ($rc, $stdout) = $server->{node}->psql(
		'postgres', $sql,
		timeout => 30,
		timed_out => \my $is_late);

	return defined $rc && $rc == 0 ? $stdout : undef;
}

# Waits until a statement returns 't'.  Not for longer than settle_clock()
# leaves the clock behind.
sub wait_until
{
	my ($server, $sql) = @_;
	my $until = now() + PATIENCE_S / 4;

	while ((value_of($server, $sql) // '') ne 't')
	{
		die "waited in vain for: $sql\n" if now() > $until;
		let_pass(0.02);
	}
	return;
}

sub pid_of
{
	my ($backend_type) = @_;
	my @pids = split /\n/, value_of($primary,
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

sub children_of
{
	my ($parent) = @_;
	my @children;

	for my $file (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $file or next;
		my $stat = <$fh> // next;
		push @children, $1 if $stat =~ /^(\d+) \(.*\) \S $parent /s;
	}
	return @children;
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
			$lsn = value_of($primary, 'SELECT pg_current_wal_insert_lsn()')))
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
	write_conf($primary, 'replication.conf',
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
		$primary, 'replication.conf',
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

# ----- what clients have received -----

# Reads one client's file: counts, and what is wrong.
sub examine
{
	my ($number, $total) = @_;
	my ($newest, $batch) = (0, '');

	open my $fh, '<', "$directory/client$number" or die $!;
	open my $ids, '>', "$directory/ids$number" or die $!;
	while (my $line = <$fh>)
	{
		chomp $line;
		if ($line =~ /^\d+$/)
		{
			print $ids "$line $number\n";
			$total->{ids}++;
			if ($line <= $newest)
			{
				diag("client $number, $batch: $line after $newest")
				  if $total->{disorder}++ < 10;
			}
			$newest = $line;
		}
		elsif ($line =~ /^! (\S+) (.*)/)
		{
			$total->{errors}{$1}++;
			my $pattern = $allowed_errors{$1};
			if (!defined $pattern || $2 !~ $pattern)
			{
				diag("client $number, $batch: $line")
				  if $total->{wrong_errors}++ < 10;
			}
		}
		elsif ($line =~ /^=/)
		{
			$newest = 0;
		}
		else
		{
			$batch = $line;
		}
	}
	close $ids or die $!;
	return;
}

# How many ids came more than once.  Sorts on disk, for the memory's sake.
sub count_duplicates
{
	my ($previous, $client) = ('', '');
	my $duplicates = 0;

	local $ENV{LC_ALL} = 'C';
	open my $sorted, '-|', 'sort', '-S', '64M', '-T', $directory,
	  glob("$directory/ids*")
	  or die "sort: $!";
	while (my $line = <$sorted>)
	{
		my ($id, $number) = split ' ', $line;
		if ($id eq $previous)
		{
			diag("id $id came to clients $client and $number")
			  if $duplicates++ < 10;
		}
		($previous, $client) = ($id, $number);
	}
	close $sorted or die "sort: $?";
	return $duplicates;
}

# Do all clients get ids?
sub all_get_ids
{
	my @files = map { "$directory/client$_" } 0 .. $#client_pids;
	my %position = map { $_ => -s $_ } @files;
	my $until = now() + 60;

	while (keys %position)
	{
		return 0 if now() > $until;
		usleep(50_000);
		for my $file (keys %position)
		{
			my $text = PostgreSQL::Test::Utils::slurp_file($file,
				$position{$file});
			delete $position{$file} if $text =~ /^\d+\n/m;
		}
	}
	return 1;
}

END
{
	my $status = $?;

	# also when it ends in the middle
	if (defined $main_pid && $$ == $main_pid)
	{
		kill 'CONT', $stopped_worker if defined $stopped_worker;
		kill 'KILL', @client_pids if @client_pids;
		waitpid $_, 0 for @client_pids;
	}
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
write_conf($primary, 'replication.conf',
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
	if (waitpid(-1, POSIX::WNOHANG()) > 0)
	{
		die "a client has ended: "
		  . PostgreSQL::Test::Utils::slurp_file("$directory/client.log");
	}
}

# All in order again.
continue_worker();
put_clock_in_order();
%parameters = (%parameters, clock_policy => 'wait', clock_tolerance => 60_000);
write_parameters();
wait_until($primary, 'SELECT snowflake_nextval() > 0');
ok(all_get_ids(), 'all clients get ids when all is in order');
command_clients('none');
is(scalar(grep { waitpid $_, 0; $? != 0 } @client_pids),
	0, 'clients end without an error');
my $clients = @client_pids;
@client_pids = ();

my %total = (ids => 0, disorder => 0, wrong_errors => 0, errors => {});
examine($_, \%total) for 0 .. $clients - 1;
my $duplicates = count_duplicates();

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
is( value_of($primary, 'SELECT count(*) = count(DISTINCT id) FROM taken'),
	't', 'nor does one lie in the table twice');

$_->{node}->stop for grep { defined } $standby, $primary;

done_testing();
