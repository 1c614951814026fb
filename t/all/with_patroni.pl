# A cluster of two members that Patroni runs, with one worker id for both.
# Writers insert by connections that name both members, while the leader hands
# over by a switchover, and is killed.  The old leader's clock is ahead, and the
# new leader's is behind.  No id comes twice, and no id is lost.
#
# All programs listen on the loopback interface only.  The servers ask for a
# password there; Patroni's REST interface asks for one before it changes
# anything; etcd does not.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use HTTP::Tiny;
use IPC::Run;
use JSON::PP ();
use List::Util qw(first uniq);
use MIME::Base64 qw(encode_base64);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer qw(clock_library is_alive suspend_postmaster write_clock);
use SnowflakeTime qw(wait_for);
use Test::More;
use Time::HiRes qw(sleep);

# How far the old leader's clock is ahead when it hands over and when it is
# killed, and how far the new leader's clock is behind, in seconds.  After a kill
# the new leader takes over no earlier than Patroni's ttl.
use constant {
	AHEAD_AT_SWITCHOVER_S => 3,
	AHEAD_AT_KILL_S => 8,
	BEHIND_S => -2,
};

# How long the leader keeps its role without renewing it, how often Patroni looks
# at the cluster, and for how long Patroni retries: the shortest times that
# Patroni 3 allows.  Patroni 4 raises ttl to 20 s.
use constant PATRONI_TIMES =>
  (ttl => 7, loop_wait => 1, retry_timeout => 3);
use constant CLUSTER => 'shop';
use constant WRITERS => 2;
use constant TIMEOUT_S => 90;

for my $program ('etcd', 'patroni', 'patronictl')
{
	plan skip_all => "$program is missing: install etcd-server and patroni"
	  if system("command -v $program >/dev/null") != 0;
}

# Programs that the test starts take no parameters of the server under test.
delete $ENV{$_} for grep { /^(?:PG|PATRONI)/ } keys %ENV;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $sockets = PostgreSQL::Test::Utils::tempdir_short();
my $logs = $PostgreSQL::Test::Utils::log_path;
my $password = encode_base64(join('', map { chr rand 256 } 1 .. 18), '');
my $etcd_port = PostgreSQL::Test::Cluster::get_free_port();

my @members = map { {
	name => "member$_",
	data => "$directory/member$_/pgdata",
	clock => "$directory/member$_/clock",
	port => PostgreSQL::Test::Cluster::get_free_port(),
	api_port => PostgreSQL::Test::Cluster::get_free_port(),
} } 1, 2;
my $conninfo = join ' ', "host=$sockets,$sockets",
  'port=' . join(',', map { $_->{port} } @members),
  'user=postgres dbname=postgres connect_timeout=5 target_session_attrs=read-write';

# Calls a function, which starts programs, until it returns something true.
# Returns that, or dies.
sub await
{
	my ($what, $function) = @_;

	return wait_for(
		sub {
			my $outcome = $function->();
			sleep 0.2 unless $outcome;
			return $outcome;
		},
		TIMEOUT_S) || die "waited in vain for $what\n";
}

# ----- processes -----

my @running;

# Starts a program, which writes to a log of this name.
sub start_program
{
	my ($name, @command) = @_;

	push @running, IPC::Run::start(\@command, '<', \undef, '>', "$logs/$name.log", '2>&1');
	return $running[-1];
}

sub kill_program
{
	my ($run) = @_;

	$run->signal('KILL');
	$run->finish;
	return;
}

# Kills all processes of a server at once.
sub kill_server
{
	my ($member) = @_;

	open my $file, '<', "$member->{data}/postmaster.pid" or return;
	my ($postmaster) = (<$file> // '') =~ /^(\d+)$/ or return;
	return unless kill 0, $postmaster;
	my @all = ($postmaster, suspend_postmaster($postmaster));

	kill 'KILL', @all;
	wait_for(sub { !grep { is_alive($_) } @all }, TIMEOUT_S)
	  or die "processes survive SIGKILL\n";
	return;
}

# Ends a member's Patroni and PostgreSQL at once, as when a machine loses its
# power.
sub kill_member
{
	my ($member) = @_;

	kill_program($member->{run});
	kill_server($member);
	unlink "$member->{data}/postmaster.pid",
	  "$sockets/.s.PGSQL.$member->{port}.lock";
	return;
}

# Ends all programs, however the test ends.
END
{
	my $status = $?;

	kill_program($_) for @running;
	kill_server($_) for @members;
	$? = $status;
}

# ----- etcd and the members -----

sub start_etcd
{
	my $client = "http://127.0.0.1:$etcd_port";
	my $peer = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();

	start_program(
		'etcd', 'etcd',
		'--data-dir' => "$directory/etcd",
		'--unsafe-no-fsync',
		'--listen-client-urls' => $client,
		'--advertise-client-urls' => $client,
		'--listen-peer-urls' => $peer,
		'--initial-advertise-peer-urls' => $peer,
		'--initial-cluster' => "default=$peer");
	await('etcd', sub { HTTP::Tiny->new(timeout => 1)->get("$client/health")->{success} });
	return;
}

# Makes a directory of programs in which "postgres" runs with a clock that can
# be set.  The clock is right at each start, because Patroni compares the start
# time that the server reports with that of the process.
sub write_programs
{
	my ($member) = @_;
	my $programs = "$directory/$member->{name}/bin";
	my $clock_library = clock_library();
	my ($real) = run_command([ 'pg_config', '--bindir' ]);

	mkdir $programs or die "$programs: $!";
	for my $name (map { m{([^/]+)$} } glob "$real/*")
	{
		symlink "$real/$name", "$programs/$name" or die "$name: $!"
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

# Starts a member's Patroni.  Its configuration is YAML, of which JSON is a part.
sub start_member
{
	my ($member) = @_;
	my $file = "$directory/$member->{name}/patroni.yml";
	my $address = "127.0.0.1:$member->{port}";
	my $api = "127.0.0.1:$member->{api_port}";
	my %superuser = (username => 'postgres', password => $password);

	if (!-e $file)
	{
		mkdir "$directory/$member->{name}" or die $!;
		append_to_file($file, JSON::PP->new->encode({
			scope => CLUSTER,
			name => $member->{name},
			etcd3 => { host => "127.0.0.1:$etcd_port" },
			restapi => {
				listen => $api,
				connect_address => $api,
				authentication => \%superuser,
			},
			bootstrap => {
				dcs => {
					PATRONI_TIMES,
					# keeps ids from getting lost with the leader
					synchronous_mode => JSON::PP::true,
					postgresql => {
						use_pg_rewind => JSON::PP::true,
						parameters => {
							shared_preload_libraries => 'snowflake',
							'snowflake.worker_id' => 7,
							shared_buffers => '16MB',
							fsync => 'off',
							max_wal_size => '128MB',
							wal_retrieve_retry_interval => '200ms',
						},
					},
				},
				initdb => [ { encoding => 'UTF8' }, 'no-sync' ],
				pg_hba => [
					'local all,replication all trust',
					'host all,replication all 127.0.0.1/32 scram-sha-256',
				],
			},
			postgresql => {
				listen => $address,
				connect_address => $address,
				data_dir => $member->{data},
				bin_dir => write_programs($member),
				pgpass => "$directory/$member->{name}/pgpass",
				use_unix_socket => JSON::PP::true,
				authentication => {
					replication => { username => 'replicator', password => $password },
					superuser => \%superuser,
				},
				basebackup => [ { checkpoint => 'fast' }, 'no-sync' ],
				parameters => { unix_socket_directories => $sockets },
			},
		}));
		chmod 0600, $file;
	}
	$member->{run} = start_program("patroni_$member->{name}", 'patroni', $file);
	return;
}

# What a member's REST interface says of it; nothing if it does not answer.
sub state_of
{
	my ($member) = @_;
	my $answer = HTTP::Tiny->new(timeout => 2)
	  ->get("http://127.0.0.1:$member->{api_port}/patroni");

	return eval { JSON::PP::decode_json($answer->{content}) } // {};
}

# The leader; waits until there is one.
sub leader
{
	return await('a leader', sub {
		return first {
			my $state = state_of($_);
			($state->{role} // '') =~ /^(?:master|primary)$/ && $state->{state} eq 'running'
		} @members;
	});
}

# Returns the replica, once commits wait for it and etcd knows that: before, no
# switchover to it is possible.
sub replica
{
	return await('a synchronous replica', sub { first { state_of($_)->{sync_standby} } @members });
}

# A statement's output, by the connection that finds the leader.
sub value
{
	my ($sql) = @_;
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $conninfo, '-c', $sql ],
		'>', \$stdout, '2>', \$stderr)
	  or die "$sql: $stderr\n";
	chomp $stdout;
	return $stdout;
}

# ----- writers -----

# Inserts rows until a file exists, and connects again after a hundred rows or an
# error of the connection.  Prints the ids and the errors.
my $writer = <<'SHELL';
until [ -e "$2" ]; do
	yes 'INSERT INTO item DEFAULT VALUES RETURNING id;' | head -n 100 |
		psql -XAtq -v VERBOSITY=verbose -d "$1"
done
SHELL

# The ids that writers have received.
sub received
{
	my (@numbers) = @_;
	return map { slurp_file("$logs/writer$_.log") =~ /^(\d+)\n/gm } @numbers;
}

# Waits until every writer has received ids after this call.
sub wait_for_writers
{
	for my $number (1 .. WRITERS)
	{
		my $before = () = received($number);

		await("writer $number", sub { (() = received($number)) > $before + 1 });
	}
	return;
}

# ----- steps -----

# Sets the leader's clock ahead and the replica's behind, and waits for ids.
sub part_clocks
{
	my ($leader, $replica, $ahead_s) = @_;

	write_clock($leader->{clock}, $ahead_s);
	write_clock($replica->{clock}, BEHIND_S);
	wait_for_writers();
	sleep 1;
	return;
}

start_etcd();
start_member($members[0]);    # makes the cluster, which the other member copies
leader();
start_member($members[1]);
value(q{
CREATE EXTENSION snowflake;
CREATE TABLE item (id bigint PRIMARY KEY DEFAULT snowflake_nextval());
});
my @writers = map {
	start_program("writer$_", 'sh', '-c', $writer, 'sh', $conninfo, "$directory/stop")
} 1 .. WRITERS;

my ($old, $new) = (leader(), replica());
part_clocks($old, $new, AHEAD_AT_SWITCHOVER_S);
system_or_bail(
	'patronictl', '-c', "$directory/$old->{name}/patroni.yml", 'switchover', CLUSTER,
	'--leader' => $old->{name}, '--candidate' => $new->{name}, '--force');
is(leader(), $new, 'the replica takes over by a switchover');
wait_for_writers();
is(replica(), $old, 'the old leader is the replica');

part_clocks($new, $old, AHEAD_AT_KILL_S);
kill_member($new);
is(leader(), $old, 'the replica takes over from the killed leader');
wait_for_writers();

# ----- the ids of all writers -----

append_to_file("$directory/stop", '');
$_->finish for @writers;

my @ids = received(1 .. WRITERS);
my %kept = map { $_ => 1 } split /\n/, value('SELECT id FROM item');
my @errors = map { slurp_file("$logs/writer$_.log") =~ /(?:ERROR|FATAL):  (\w{5}):/g } 1 .. WRITERS;

is(scalar(uniq @ids), scalar(@ids), scalar(@ids) . ' ids: none was received twice');
is_deeply([ grep { !$kept{$_} } @ids ], [], 'no id was lost');

# A duplicate of a row that no writer was told of is an error, 23505.
is_deeply([ grep { !/^(?:25006|40001|55000|57P0[1-5]|08...)$/ } @errors ], [],
	'writers have no unexpected errors');
done_testing();
