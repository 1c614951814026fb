# Clusters of PostgreSQL servers that Patroni runs, with one etcd for all of
# them, and writers that insert rows meanwhile.
#
# All programs listen on the loopback interface only.  The servers ask for a
# password there; Patroni's REST interface asks for one before it changes
# anything; etcd does not.
package SnowflakePatroni;

use strict;
use warnings FATAL => 'all';

use HTTP::Tiny;
use IPC::Run ();
use JSON::PP ();
use MIME::Base64 qw(encode_base64);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeFaults qw(now log_event);
use SnowflakeServer qw(clock_library is_alive suspend_postmaster write_clock);
use SnowflakeTest qw(wait_for);
use Test::More;
use Time::HiRes qw(sleep);

# Patroni's ttl, loop_wait and retry_timeout: how long the leader keeps its role
# without renewing it, how often Patroni looks at the cluster, and for how long
# it retries.  These are the shortest times that Patroni 3 allows; Patroni 4
# raises ttl to 20 s.
use constant {
	TTL_S => 7,
	LOOP_WAIT_S => 1,
	RETRY_TIMEOUT_S => 3,
};
use constant TIMEOUT_S => 90;

# Why these tests cannot be run here; '' if they can.
sub missing
{
	for my $program ('etcd', 'patroni', 'patronictl')
	{
		return "$program is missing: install etcd-server and patroni"
		  if system("command -v $program >/dev/null") != 0;
	}
	return 'python3-psycopg2 is missing'
	  if system(python(), '-c', 'import psycopg2') != 0;
	return '';
}

# The interpreter for which Debian's packages, such as python3-psycopg2, are
# installed.
sub python
{
	return -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
}

# Calls a function until it returns something true, and returns that.  Pauses
# for longer than wait_for(), because these functions call Patroni or start
# programs.
sub wait_slowly
{
	my ($function) = @_;
	my $deadline = now() + TIMEOUT_S;
	my $outcome;

	until ($outcome = $function->())
	{
		last if now() >= $deadline;
		sleep 0.2;
	}
	return $outcome;
}

# ----- processes -----

my %running;                    # pid => description

sub start_process
{
	my ($what, $log, $environment, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', $log;
		open STDERR, '>&', \*STDOUT;
		delete $ENV{$_} for grep { /^(?:PG|PATRONI)/ } keys %ENV;
		@ENV{ keys %$environment } = values %$environment;
		exec @command or POSIX::_exit(127);
	}
	$running{$pid} = $what;
	return $pid;
}

sub end_process
{
	my ($pid, $signal) = @_;

	kill $signal, $pid;
	waitpid $pid, 0;
	delete $running{$pid};
	return;
}

# The pid of the postmaster of a data directory, if there is one.
sub postmaster_of
{
	my ($data) = @_;

	open my $file, '<', "$data/postmaster.pid" or return;
	my $pid = <$file> // return;
	chomp $pid;
	return $pid =~ /^\d+$/ && kill(0, $pid) ? $pid : undef;
}

# Kills all processes of a server at once.
sub kill_postgres
{
	my ($data) = @_;
	my $pid = postmaster_of($data) // return;
	my @all = ($pid, suspend_postmaster($pid));

	kill 'KILL', @all;
	wait_for(sub { !grep { is_alive($_) } @all })
	  or die "processes survive SIGKILL\n";
	return;
}

# ----- etcd -----

my ($etcd_port, $directory, @clusters);

sub start_etcd
{
	my $client = PostgreSQL::Test::Cluster::get_free_port();
	my $peer = PostgreSQL::Test::Cluster::get_free_port();

	$directory = PostgreSQL::Test::Utils::tempdir();
	start_process(
		'etcd',
		"$PostgreSQL::Test::Utils::log_path/etcd.log",
		{},
		'etcd',
		'--data-dir' => "$directory/etcd",
		'--unsafe-no-fsync',
		'--listen-client-urls' => "http://127.0.0.1:$client",
		'--advertise-client-urls' => "http://127.0.0.1:$client",
		'--listen-peer-urls' => "http://127.0.0.1:$peer",
		'--initial-advertise-peer-urls' => "http://127.0.0.1:$peer",
		'--initial-cluster' => "default=http://127.0.0.1:$peer");
	my $http = HTTP::Tiny->new(timeout => 1);
	wait_for(sub { $http->get("http://127.0.0.1:$client/health")->{success} })
	  or die "etcd does not start\n";
	$etcd_port = $client;
	return;
}

# ----- clusters -----

# A cluster of three members, not started yet.  Parameters: name; parameters,
# of all members; member_parameters, a hash for each member; dcs, further
# settings of the cluster.
sub new
{
	my ($class, %given) = @_;
	my $self = bless {
		dcs => {},
		%given,
		sockets => PostgreSQL::Test::Utils::tempdir_short(),
		password => encode_base64(join('', map { chr rand 256 } 1 .. 18), ''),
		members => [],
		writers => {},
	}, $class;

	for my $i (0 .. 2)
	{
		my $name = "$self->{name}$i";
		my $base = "$PostgreSQL::Test::Utils::tmp_check/patroni_$name";
		my $member = {
			name => $name,
			base => $base,
			data => "$base/pgdata",
			clock => "$base/clock",
			port => PostgreSQL::Test::Cluster::get_free_port(),
			api_port => PostgreSQL::Test::Cluster::get_free_port(),
			parameters => $given{member_parameters}[$i] // {},
		};
		mkdir $base or die "$base: $!";
		push @{ $self->{members} }, $member;
	}
	$self->{conninfo} = join ' ',
	  'host=' . join(',', ($self->{sockets}) x 3),
	  'port=' . join(',', map { $_->{port} } @{ $self->{members} }),
	  'user=postgres dbname=postgres connect_timeout=5';
	$self->write_member($_) for @{ $self->{members} };
	push @clusters, $self;
	return $self;
}

# Makes a directory of programs in which "postgres" runs with a clock that can
# be set.  The clock is right at each start, because Patroni compares the start
# time that the server reports with that of the process.
sub write_programs
{
	my ($member) = @_;
	my $programs = "$member->{base}/bin";
	my $clock_library = clock_library();
	my ($real) = run_command([ 'pg_config', '--bindir' ]);

	mkdir $programs or die "$programs: $!";
	for my $program (glob "$real/*")
	{
		my ($name) = $program =~ m{([^/]+)$};
		symlink $program, "$programs/$name" or die "$programs/$name: $!"
		  if $name ne 'postgres';
	}
	append_to_file("$programs/postgres", <<"END");
#!/bin/sh
printf '\\0\\0\\0\\0\\0\\0\\0\\0' >'$member->{clock}'
export CLOCK_OFFSET_FILE='$member->{clock}'
LD_PRELOAD="\${LD_PRELOAD:+\$LD_PRELOAD }$clock_library" exec '$real/postgres' "\$@"
END
	chmod 0755, "$programs/postgres";
	return $programs;
}

# Writes the configuration of Patroni for a member.  Patroni reads YAML, of
# which JSON is a part.
sub write_member
{
	my ($self, $member) = @_;
	my %replication = (username => 'replicator', password => $self->{password});
	my %superuser = (username => 'postgres', password => $self->{password});
	my $api = "127.0.0.1:$member->{api_port}";

	$member->{file} = "$member->{base}/patroni.yml";
	append_to_file(
		$member->{file},
		JSON::PP->new->pretty->canonical->encode(
			{
				scope => $self->{name},
				name => $member->{name},
				etcd3 => { host => "127.0.0.1:$etcd_port" },
				restapi => {
					listen => $api,
					connect_address => $api,
					authentication => \%superuser,
				},
				bootstrap => {
					dcs => {
						ttl => TTL_S,
						loop_wait => LOOP_WAIT_S,
						retry_timeout => RETRY_TIMEOUT_S,
						%{ $self->{dcs} },
						postgresql => {
							use_pg_rewind => JSON::PP::true,
							parameters => {
								shared_preload_libraries => 'snowflake',
								shared_buffers => '16MB',
								fsync => 'off',
								max_wal_size => '128MB',
								wal_retrieve_retry_interval => '200ms',
								%{ $self->{parameters} // {} },
							},
						},
					},
					initdb => [ { encoding => 'UTF8' }, 'no-sync' ],
					pg_hba => [
						'local all all trust',
						'local replication all trust',
						'host all all 127.0.0.1/32 scram-sha-256',
						'host replication all 127.0.0.1/32 scram-sha-256',
					],
				},
				postgresql => {
					listen => "127.0.0.1:$member->{port}",
					connect_address => "127.0.0.1:$member->{port}",
					data_dir => $member->{data},
					bin_dir => write_programs($member),
					pgpass => "$member->{base}/pgpass",
					use_unix_socket => JSON::PP::true,
					authentication => {
						replication => \%replication,
						superuser => \%superuser,
					},
					basebackup => [ { checkpoint => 'fast' }, 'no-sync' ],
					parameters => {
						unix_socket_directories => $self->{sockets},
						%{ $member->{parameters} },
					},
				},
			}));
	chmod 0600, $member->{file};
	return;
}

sub start_member
{
	my ($self, $member) = @_;

	# Remove what a killed server has left.
	unlink "$self->{sockets}/.s.PGSQL.$member->{port}.lock";
	$member->{pid} = start_process(
		"patroni $member->{name}",
		"$PostgreSQL::Test::Utils::log_path/patroni_$member->{name}.log",
		{}, 'patroni', $member->{file});
	return;
}

# Ends Patroni and PostgreSQL at once, as a machine that loses its power does.
sub kill_member
{
	my ($self, $member) = @_;

	end_process($member->{pid}, 'KILL');
	kill_postgres($member->{data});
	unlink "$member->{data}/postmaster.pid";
	log_event("$member->{name} is killed");
	return;
}

# What Patroni's REST interface says of a member; nothing if it does not
# answer.
sub member_state
{
	my ($self, $member) = @_;
	my $answer =
	  HTTP::Tiny->new(timeout => 2)
	  ->get("http://127.0.0.1:$member->{api_port}/patroni");

	return eval { JSON::PP::decode_json($answer->{content}) } // {};
}

sub is_leader
{
	my ($self, $member) = @_;
	my $state = $self->member_state($member);

	return ($state->{role} // '') =~ /^(?:master|primary)$/
	  && $state->{state} eq 'running';
}

# The member that is the leader; waits until there is one.
sub leader
{
	my ($self) = @_;

	return wait_slowly(
		sub {
			my ($leader) = grep { $self->is_leader($_) } @{ $self->{members} };
			return $leader;
		}) // die "$self->{name} has no leader\n";
}

# Waits until both replicas stream from the leader.  In a cluster with
# synchronous_mode, also waits until etcd has the replica that commits wait
# for: before that, Patroni lets no other member become the leader.
sub wait_for_replicas
{
	my ($self) = @_;
	my $is_there = 'SELECT count(*) = 2 FROM pg_stat_replication'
	  . " WHERE state = 'streaming' AND application_name ~ '^$self->{name}'";

	wait_slowly(sub { (eval { $self->value($is_there) } // '') eq 't' })
	  or die "the replicas of $self->{name} do not stream\n";
	return if !$self->{dcs}{synchronous_mode};
	wait_slowly(sub { $self->synchronous_replica })
	  or die "$self->{name} has no synchronous replica\n";
	return;
}

# The replica that commits wait for, if there is one and etcd knows it.
sub synchronous_replica
{
	my ($self) = @_;
	my ($replica) =
	  grep { $self->member_state($_)->{sync_standby} } @{ $self->{members} };

	return $replica;
}

# Starts a command of patronictl; end_patronictl() waits for its end.
sub begin_patronictl
{
	my ($self, @command) = @_;
	my $log =
	  "$PostgreSQL::Test::Utils::log_path/patronictl_$self->{name}.log";

	$self->{patronictl} = start_process("patronictl @command", $log, {},
		'patronictl', '-c', $self->{members}[0]{file}, @command);
	log_event("$self->{name}: patronictl @command");
	return;
}

sub end_patronictl
{
	my ($self) = @_;
	my $pid = delete $self->{patronictl};

	waitpid $pid, 0;
	die "$running{$pid} failed\n" if $? != 0;
	delete $running{$pid};
	return;
}

# Pauses Patroni, and waits until all members know.
sub pause
{
	my ($self) = @_;

	$self->begin_patronictl('pause', $self->{name});
	$self->end_patronictl;
	wait_slowly(
		sub {
			return 3 == grep { $self->member_state($_)->{pause} }
			  @{ $self->{members} };
		}) or die "$self->{name} is not paused\n";
	return;
}

# A statement's output, by the connection that finds the leader.
sub value
{
	my ($self, $sql) = @_;
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run(
		[
			'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d',
			"$self->{conninfo} target_session_attrs=read-write", '-c', $sql
		],
		'>' => \$stdout, '2>' => \$stderr)
	  or die "$self->{name}: $sql: $stderr\n";
	chomp $stdout;
	return $stdout;
}

# ----- writers -----

sub start_writers
{
	my ($self, $count) = @_;
	my $stop = "$directory/stop_$self->{name}";
	my $program = __FILE__ =~ s/SnowflakePatroni.pm$/patroni_writer.py/r;

	for my $number (1 .. $count)
	{
		my $file = "$directory/writer_$self->{name}$number";
		my $pid = start_process(
			'writer',
			"$PostgreSQL::Test::Utils::log_path/writer_$self->{name}$number.log",
			{}, python(), $program,
			"$self->{conninfo} target_session_attrs=read-write",
			$number, $file, $stop);
		$self->{writers}{$number} = { pid => $pid, file => $file };
	}
	return;
}

sub stop_writers
{
	my ($self) = @_;

	append_to_file("$directory/stop_$self->{name}", '');
	for my $writer (values %{ $self->{writers} })
	{
		waitpid $writer->{pid}, 0;
		die "a writer of $self->{name} failed\n" if $? != 0;
		delete $running{ $writer->{pid} };
	}
	return;
}

# Waits until every writer has received an id of an insert that began after
# this call.
sub wait_for_writers
{
	my ($self) = @_;
	my $since = now();

	for my $writer (values %{ $self->{writers} })
	{
		wait_slowly(
			sub {
				my $newest = '';
				open my $file, '<', $writer->{file} or return 0;
				seek $file, -4096, 2;
				for my $line (<$file>)
				{
					$newest = $1 if $line =~ /^\+ \S+ (\S+) \d+ \d+$/;
				}
				return $newest ne '' && $newest > $since;
			})
		  or die "the writers of $self->{name} receive no ids\n";
	}
	return;
}

# What the writers have recorded: ids, the times of their receipt, the times of
# connections, and errors by SQLSTATE.
sub history
{
	my ($self) = @_;
	my %history = (ids => [], received => [], connected => [], errors => {});

	for my $number (sort keys %{ $self->{writers} })
	{
		open my $file, '<', $self->{writers}{$number}{file} or die $!;
		while (my $line = <$file>)
		{
			if ($line =~ /^\+ (\S+) (\S+) (\d+) (\d+)$/)
			{
				push @{ $history{ids} }, [ $4, $number, $3 ];
				push @{ $history{received} }, $1;
			}
			elsif ($line =~ /^= (\S+)$/)
			{
				push @{ $history{connected} }, $1;
			}
			elsif ($line =~ /^! (\S+) (\S+) (.*)/)
			{
				$history{errors}{$2}{count}++;
				$history{errors}{$2}{text} //= $3;
			}
		}
	}
	@{ $history{$_} } = sort { $a <=> $b } @{ $history{$_} }
	  for 'received', 'connected';
	return \%history;
}

# The longest time between two ids within a period, and how much of that time
# passed after a writer had connected to a server that takes writes.
sub longest_gap
{
	my ($history, $from, $until) = @_;
	my ($longest, $begin, $end) = (0, $from, $from);
	my $previous = $from;

	for my $time (grep { $_ > $from && $_ < $until } @{ $history->{received} })
	{
		($longest, $begin, $end) = ($time - $previous, $previous, $time)
		  if $time - $previous > $longest;
		$previous = $time;
	}
	my ($connected) =
	  grep { $_ > $begin && $_ < $end } @{ $history->{connected} };
	return ($longest, defined $connected ? $end - $connected : 0);
}

# ----- the end -----

# Ends all programs, however the test ends.
sub end_all
{
	kill 'KILL', keys %running;
	waitpid $_, 0 for keys %running;
	%running = ();
	kill_postgres($_->{data}) for map { @{ $_->{members} } } @clusters;
	@clusters = ();
	return;
}

my $main_pid = $$;

END
{
	my $status = $?;
	end_all() if $$ == $main_pid;
	$? = $status;
}

1;
