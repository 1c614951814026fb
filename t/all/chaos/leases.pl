# No id comes twice among servers that lease their worker ids.  Three servers
# and their copies contend for two worker ids, while faults hit the servers and
# the registry.  Clients keep every id that they receive from any server.
#
# Faults of servers: clocks that step, processes that are killed or suspended,
# servers that stop and come back, other parameters, and copies of a server that
# start beside it.  Faults of the registry: it is stopped or suspended, its clock
# steps, and a standby that misses the last leases takes its place.
#
# A registry whose clock is ahead grants fences that are ahead, too, and the
# next holder of a worker id issues no ids before the fence.  So the test puts
# all clocks forward to the registry's clock when such a fault ends.
#
# Each call commits, so the mark of each id that a client has received is in
# flushed WAL, and a crash loses no id (promise 1).  At the end no id came twice,
# no two servers had one worker id at the same time, the ids that a client
# received of one worker id increase, clients received allowed errors only, and
# every server gets ids again.  How soon depends on the machine here, so there is no
# limit but the tests' time-out; the files lease_*, whose clocks are slow, have limits.
#
#   CHAOS_SECONDS   the seconds in which new faults begin (15)
#   CHAOS_SEED      chooses the same order of faults as in an earlier run with
#                   this seed; the timing still differs
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", $FindBin::RealBin;
use List::Util qw(first shuffle sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeFaults;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime qw(wait_for);
use Test::More;
use Time::HiRes qw(time);

use constant {
	SERVERS => 3,
	LAYOUT => '41/5/1/12',
	WORKER_SHIFT => 12,
	LEASE_S => 3,
	SLACK_S => 2,
	REPLAY_S => 3,              # how long a standby may take to replay
	REGISTRY_WORKER => 'snowflake registry'
};

# How often each fault is in the deck.
my %deck = (
	clock => 5,
	killed_process => 2,
	worker_ended => 6,
	worker_suspended => 4,
	ended => 4,
	suspended => 3,
	parameters => 2,
	copied => 8,
	registry_ended => 2,
	registry_suspended => 2,
	registry_clock => 1,
	registry_replaced => 3);

my $allowed_errors =
  qr/ERROR:  55000: (?:the clock is [\w. ]+ behind (?:the last snowflake id|the fence of the worker id's last holder)|snowflake ids cannot be issued because (?:this server holds no lease on a worker id|the next one is past the fence of the lease on the worker id))|sorry, too many clients|remaining connection slots/;

my $seconds = $ENV{CHAOS_SECONDS} || 15;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
srand($seed);
note("seed $seed, $seconds s");

my @servers;                    # all, also those that are gone
my $names = 0;                  # the number in the next server's name
my $copy;                       # the copy that runs or will run again
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
my $registries = 0;             # how many the test has made
my ($registry, $standby);       # each has one of the ports
my $is_cut_off = 0;             # is the standby about to take over?

# ----- servers that lease -----

# The clients of a server obey a control file of its name.
sub start_clients_of
{
	my ($server) = @_;
	my $commit = "WITH c AS MATERIALIZED (SELECT pg_logical_emit_message(true, '', ''))";

	start_clients(
		$server->{name},
		$server->{node},
		sub { "$commit SELECT snowflake_nextval() FROM c;\n" x 20 },
		sub {
			"$commit SELECT snowflake_nextvals(" . (1 + int rand 200) . ") FROM c;\n";
		});
	return;
}

sub make_server
{
	my $name = 'server' . $names++;
	my $node = snowflake_node(
		$name,
		lease_conf(sprintf 'host=%s,%s port=%d,%d dbname=postgres user=fleet',
			($registry->{node}->host) x 2, @ports),
		chaos_conf(),
		'wal_level = replica',
		'max_wal_senders = 4',
		"snowflake.server_name = '$name'",
		"snowflake.layout = '" . LAYOUT . "'",
		"include 'parameters.conf'");
	# The first server's clock is slow, and the third server's is fast.
	my $server = SnowflakeFaults->new($node, @servers - 1);

	write_parameters($node);
	$server->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
	push @servers, $server;
	start_clients_of($server);
	return;
}

# Returns the servers that are in a state, in random order.
sub servers_in
{
	my ($state) = @_;
	return shuffle grep { $_->{state} eq $state } @servers;
}

sub has_lease
{
	my ($server) = @_;
	return (try_value($server->{node},
			'SELECT lease_expires_at > clock_timestamp() FROM snowflake_node()') // '') eq 't';
}

# Returns a server that is up: one with a lease, if there is any, so that another
# server can take its worker id over.
sub any_server
{
	my @up = servers_in('up');
	return (first { has_lease($_) } @up) // $up[0];
}

# Returns a random number of seconds: far below a lease, about a lease, or until
# after the fence of a lease.
sub around_lease_s
{
	return (rand 1.5, 1 + rand LEASE_S, LEASE_S + SLACK_S + rand 3)[ rand 3 ];
}

# ----- copies -----

# Waits until a standby has replayed all that its primary has flushed.  Returns
# false if that takes too long.
sub catches_up
{
	my ($follower, $leader) = @_;
	my $lsn = try_value($leader->{node}, 'SELECT pg_current_wal_flush_lsn()')
	  // return 0;
	my $replayed = "SELECT pg_last_wal_replay_lsn() >= '$lsn'";

	return wait_for(sub { (try_value($follower->{node}, $replayed) // '') eq 't' }, REPLAY_S);
}

# Starts a copy of a server: of its data directory while all its processes are
# suspended or ended, a base backup, or a standby, which is promoted.  The fate says what happens to the original: "up"
# if it goes on, "suspended", or how it ends for a while.
sub start_copy
{
	my ($original, $kind, $fate) = @_;
	my $name = 'server' . $names++;
	my $is_ended = $fate =~ /^(?:fast|immediate|killed)$/;

	$original->end($fate) if $kind eq 'directory' && $is_ended;
	my $node;
	if ($kind eq 'directory')
	{
		suspend($original->{node}) if $original->is_up;
		$node = copy_of($original->{node}, $name);
		resume($original->{node}) if $original->is_up;
	}
	else
	{
		$node = PostgreSQL::Test::Cluster->new($name);
		base_backup($original->{node}, $node) or return 0;
	}
	$copy = SnowflakeFaults->new($node, $original->{skew_s});
	push @servers, $copy;
	if ($kind eq 'standby')
	{
		$copy->follow($original);
		note('the standby is late') unless catches_up($copy, $original);
	}
	$original->end($fate) if $original->is_up && $is_ended;
	after(around_lease_s(), sub { $original->start }) if $is_ended;
	$original->suspend_for(around_lease_s()) if $fate eq 'suspended';
	$registry->suspend_for(1 + rand 2) if $registry->is_up && rand() < 0.6;
	log_event("$copy->{name}: copy of $original->{name}, $kind, $fate");
	$kind eq 'standby' ? $copy->{node}->promote : $copy->start;
	start_clients_of($copy);
	after(2 + rand 4, sub { end_one_of($copy, $original) });
	return 1;
}

# Ends a copy or its original for good.  A data directory that stays keeps its
# inode, which is a part of the holder's identity.
sub end_one_of
{
	my ($one, $original) = @_;

	# Servers that are suspended or stopped come back first.
	return after(0.2, sub { end_one_of($one, $original) })
	  if grep { !$_->is_up } $one, $original;
	my $gone = rand() < 0.3 ? $original : $one;

	end_clients($gone->{name});
	$gone->end((qw(fast immediate))[ rand 2 ]);
	$gone->{state} = 'gone';
	$gone->{node}->clean_node if $gone == $one;
	undef $copy;
	return;
}

# ----- the registry -----

sub new_registry
{
	my ($port) = @_;
	return SnowflakeFaults->new(
		PostgreSQL::Test::Cluster->new('registry' . ++$registries, port => $port));
}

sub make_first_registry
{
	$registry = new_registry($ports[0]);
	$registry->{node}->init(allows_streaming => 1);
	$registry->{node}->append_conf('postgresql.conf', join "\n", chaos_conf());
	$registry->start;
	make_registry(
		$registry->{node},
		lease_duration => LEASE_S . ' s',
		slack => SLACK_S . ' s',
		layout => LAYOUT);
	$registry->{node}->safe_psql('postgres',
		q{CREATE ROLE fleet LOGIN; SELECT snowflake_registry.allow('fleet')});
	return;
}

# Makes a standby of the registry as soon as the registry is up.
sub make_standby
{
	my ($port) = grep { $_ != $registry->{node}->port } @ports;

	return after(0.3, \&make_standby) unless $registry->is_up;
	my $server = new_registry($port);

	base_backup($registry->{node}, $server->{node})
	  or die "no base backup of the registry can be taken\n";
	$server->follow($registry);
	$standby = $server;
	return;
}

# Returns whether the registry's clock may be stepped.  It may not while the
# standby misses leases: neither the standby's data nor its clock would tell of
# fences that are far ahead.
sub is_registry_settled
{
	return $registry->is_up && $registry->{step_s} == 0 && !$is_cut_off;
}

# Puts the standby, which was cut off, in the place of the registry.
sub replace_registry
{
	my ($old, $new) = ($registry, $standby);

	return after(0.2, \&replace_registry) unless $old->is_up;
	$old->end('immediate');
	if (rand() < 0.5)
	{
		$new->step_clock(-rand(SLACK_S - 1), 1 + rand 4) if rand() < 0.5;
		$new->{node}->promote;
		log_event("$new->{name}: promoted");
	}
	else
	{
		$new->end((qw(fast immediate))[ rand 2 ]);
		write_signal($new->{node});
		$new->start;
	}
	($registry, $standby, $is_cut_off) = ($new, undef, 0);
	after(
		rand 3,
		sub {
			$old->{node}->clean_node;
			make_standby();
		});
	return;
}

# ----- faults -----

# Each function returns false if the fault cannot happen now.  These are faults of a
# server that is up.
my %server_fault = (
	clock => sub {
		my ($server) = @_;

		return 0 if $server->{step_s} != 0;
		$server->step_clock((1, -1)[ rand 2 ] * 0.001 * 150_000**rand(),
			0.02 + rand 4);
		return 1;
	},
	killed_process => sub {
		my ($server) = @_;
		return $server->kill_process((REGISTRY_WORKER, 'postgres \[local\]')[ rand 2 ]);
	},
	# pg_terminate_backend() sends this signal as well.
	worker_ended => sub {
		my ($server) = @_;
		my ($pid) = processes_of($server->{node}, REGISTRY_WORKER);

		# PostgreSQL restarts a worker when a second has passed by the clock.
		return 0 if $server->{step_s} > 0 || !defined $pid;
		log_event("$server->{name}: registry worker ended");
		return kill('TERM', $pid) == 1;
	},
	worker_suspended => sub {
		my ($server) = @_;
		return $server->suspend_process(REGISTRY_WORKER, around_lease_s());
	},
	ended => sub {
		my ($server) = @_;

		$server->end((qw(fast immediate killed))[ rand 3 ]);
		after(around_lease_s(), sub { $server->start });
		return 1;
	},
	suspended => sub {
		my ($server) = @_;

		$server->suspend_for(around_lease_s());
		return 1;
	},
	parameters => sub {
		my ($server) = @_;

		write_parameters(
			$server->{node},
			clock_policy => (qw(wait advance))[ rand 2 ],
			clock_tolerance => 1000 + int rand 4000);
		return 1;
	},
	copied => sub {
		my ($server) = @_;

		return 0 if defined $copy || !has_lease($server);
		return start_copy(
			$server,
			(qw(directory directory backup standby))[ rand 4 ],
			(qw(up up up suspended fast immediate))[ rand 6 ]);
	});

my %fault = map {
	my $function = $server_fault{$_};
	$_ => sub { my $server = any_server(); return defined $server ? $function->($server) : 0 }
} keys %server_fault;

$fault{registry_ended} = sub {
	return 0 unless $registry->is_up;
	my $ended = $registry;

	$ended->end((qw(fast fast immediate killed))[ rand 4 ]);
	after(rand LEASE_S, sub { $ended->start });
	return 1;
};

$fault{registry_suspended} = sub {
	return 0 unless $registry->is_up;
	$registry->suspend_for(rand(1.5 * LEASE_S));
	return 1;
};

# In some cases the clock is so far ahead that leases seem to be over.
$fault{registry_clock} = sub {
	return 0 unless is_registry_settled();
	my $step_s = (-1 - rand 60, 0.5 + rand 4, 4 + rand 60)[ rand 3 ];

	$registry->step_clock($step_s, 0.5 + rand 3,
		sub { put_forward($step_s) if $step_s > 0 });
	return 1;
};

$fault{registry_replaced} = sub {
	return 0
	  unless is_registry_settled()
	  && defined $standby
	  && catches_up($standby, $registry);
	$is_cut_off = 1;
	$standby->{node}->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->{node}->reload;
	log_event("$standby->{name}: cut off");

	# The standby does not learn that a worker id changes hands.
	after(rand 0.5, $fault{worker_ended});
	after(0.2 + rand 3, \&replace_registry);
	return 1;
};

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };
make_first_registry();
make_server() for 1 .. SERVERS;
make_standby();

# Deal faults until the time is over.  A fault that cannot happen now is lost.
# At first two servers have leases.
my @hand = ((shuffle sort keys %deck), 'copied');
my %counts;
my $until = now() + $seconds;
while (now() < $until)
{
	my $name = draw(\@hand, \%deck);
	my $is_done = $fault{$name}->();

	$counts{$name}++ if $is_done;
	let_pass(rand($is_done ? 0.8 : 0.05));
	check_clients();
}
log_event('no new faults');
let_pass(0.1) while is_due();
my @members = sort { $a->{name} cmp $b->{name} } servers_in('up');
write_parameters($_->{node}, clock_policy => 'wait', clock_tolerance => 60_000)
  for @members;

# There is one server more than there are worker ids.  So stop one server at a
# time, and expect ids of all others.
for my $server (@members)
{
	my $begin = now();

	$server->end('fast');
	my $is_good = get_ids($PostgreSQL::Test::Utils::timeout_default, map { $_->{name} } servers_in('up'));
	note(sprintf 'after %.1f s', now() - $begin);
	ok($is_good, "all servers but $server->{name} have ids again")
	  or diag(
		(map { "$_->{name}: " . refusal_of($_->{node}) . "\n" } servers_in('up')),
		try_value($registry->{node},
			'SELECT clock_timestamp(), n, s FROM snowflake_registry.node n, snowflake_registry.setting s'));
	$server->start;
}
end_clients($_->{name}) for @members;

# ----- what the ids say -----

sub worker_id_in
{
	my ($id) = @_;
	return $id >> WORKER_SHIFT & 1;
}

# Writes the ids of all clients into one file, and checks that each client's ids
# of one worker id increase.  Returns their number.
sub write_ids
{
	my ($file) = @_;
	my $count = 0;

	open my $fh, '>', $file or die "$file: $!";
	for my $server (@servers)
	{
		for my $client (clients_of($server->{name}))
		{
			my @last = (0, 0);

			while (my $batch = next_batch($client))
			{
				for my $id (@{ $batch->{ids} })
				{
					my $last = \$last[ worker_id_in($id) ];

					count_finding('id that goes back behind ids of its client',
						"$id after $$last, of $server->{name}")
					  if $id <= $$last;
					$$last = $id;
					$count++;
					print $fh "$id $server->{name}\n";
				}
			}
		}
	}
	close $fh or die "$file: $!";
	return $count;
}

# Counts the hand-overs of each worker id: in the order of the ids, each place
# where an id of one server is followed by an id of another one.  Finds ids that
# came twice.  Sorts on disk, to save memory.
#
# A server that gets a worker id begins after all ids that the last holder may
# have issued, so there is at most one hand-over for each grant.  If there are
# more, two servers had the worker id at once, even if by chance no id came
# twice.
sub count_hand_overs
{
	my ($file) = @_;
	my @hand_overs = (0, 0);
	my @holder = ('', '');
	my ($last, $last_name) = (0, '');

	local $ENV{LC_ALL} = 'C';
	open my $sorted, '-|', 'sort', '-n', '-S', '64M', $file or die "sort: $!";
	while (my $line = <$sorted>)
	{
		my ($id, $name) = split ' ', $line;
		my $worker_id = worker_id_in($id);

		count_finding('id that came twice', "$id, of $last_name and $name")
		  if $id == $last;
		$hand_overs[$worker_id]++
		  if $holder[$worker_id] ne $name && $holder[$worker_id] ne '';
		$holder[$worker_id] = $name;
		($last, $last_name) = ($id, $name);
	}
	close $sorted or die "sort: $?";
	return @hand_overs;
}

# Returns how often a server's log says that it got a lease on a worker id that
# it did not have before.
sub count_grants
{
	my ($server, $worker_id) = @_;
	return scalar(() = logged($server->{node}) =~
		  /snowflake worker_id $worker_id .*is leased to this server until/g);
}

my $file = PostgreSQL::Test::Utils::tempdir() . '/ids';
my $id_count = write_ids($file);
my @hand_overs = count_hand_overs($file);

note("faults: $_ $counts{$_}") for sort keys %counts;
note(sprintf 'seed %d: %d ids of %d servers, %d hand-overs',
	$seed, $id_count, scalar @servers, sum0(@hand_overs));
cmp_ok($id_count, '>', 100 * $seconds, 'clients have received more than a hundred ids a second');
for my $worker_id (0, 1)
{
	cmp_ok(
		$hand_overs[$worker_id],
		'<=',
		sum0(map { count_grants($_, $worker_id) } @servers),
		"worker_id $worker_id: no two servers have had it at once");
}
has_no_findings($allowed_errors,
	'no id comes twice or goes back, no client fails, and clients see only allowed errors');
$_->{node}->stop for @members, grep { defined } $standby, $registry;

done_testing();
