# No id comes again, and ids increase, on one node.  Clients keep every id that
# they receive, outside the servers, while faults hit a primary, and other
# servers take over from it.
#
# The clock steps, a backend or the server is killed or stopped, parameters
# change, or a standby takes over, promoted or by a start without a signal file.
# The other kinds of recovery, such as base backups, are in mark_recovery alone.  At
# most starts the clock is behind for a while, and at some the server gets another
# worker id: a new one, or one that it had before.
#
# Each crash, stop and take-over ends a life.  Then some ids are kept, and the
# ids of all later lives of the node have to be larger than these:
#
# - the ids in the data of the server that goes on;
# - all ids that clients had received before a client sent a batch whose rows are
#   in these data: in WAL the marks of these ids come before the rows;
# - all ids of the life, after a fast stop of the primary that goes on or that a
#   standby takes over from.
#
# All other ids were lost with WAL that was not flushed or not replayed, and may
# come again (promise 1).  In one life no id comes twice, and a call that begins
# after another one returned gets a larger id (promise 2).
#
#   CHAOS_SECONDS   the seconds in which new faults begin (15)
#   CHAOS_SEED      chooses the same order of faults as in an earlier run with
#                   this seed; the timing still differs
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", $FindBin::RealBin;
use List::Util qw(max min shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeFaults;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time);

use constant {
	ANSWER_S => 60,               # the most seconds to wait for a server's answer
	HOUR_S => 3600,
	WORKER_IDS_PER_DATACENTER => 32,
	NODE_SHIFT => 12,
	NODE_MASK => 1023
};

# How often each fault is in the deck.
my %deck = (
	clock_back => 3,
	clock_forward => 1,
	backend_killed => 2,
	fast => 2,
	killed => 2,
	cut => 3,
	parameters => 2,
	take_over => 5);

# How the standby takes over, and how often.
my %take_overs = (promotion => 1, start => 1);

my $seconds = $ENV{CHAOS_SECONDS} || 15;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
srand($seed);
my $synchronous_commit = (qw(on off))[ rand 2 ];
my $wal_writer_delay = (qw(200ms 10s))[ rand 2 ];
note("seed $seed, $seconds s, "
	  . "synchronous_commit $synchronous_commit, wal_writer_delay $wal_writer_delay");

my ($primary, $standby);
my $servers = 0;                # how many the test has made
my $life = 0;
my @kept;                       # by life: see keep_ids()
my $worker_id = 7;              # counts on through the datacenters
my %used_until;                 # by worker id: the clock when it was used last
my %parameters = (
	clock_policy => 'wait',
	clock_tolerance => 5000);

# ----- servers -----

# Waits until a statement succeeds and, if a value is given, returns that value.
# Calls tend() meanwhile.  Returns the output.
sub value_when
{
	my ($node, $sql, $wanted) = @_;
	my $until = now() + ANSWER_S;

	for (;;)
	{
		my $value = try_value($node, $sql);

		return $value if defined $value && $value eq ($wanted // $value);
		die "waited in vain for: $sql\n" if now() > $until;
		let_pass(0.02);
	}
}

# Returns a number of seconds up to an hour, of any order of magnitude.
sub some_seconds
{
	return HOUR_S**rand() - 1 + rand 0.2;
}

sub new_server
{
	return SnowflakeFaults->new(
		PostgreSQL::Test::Cluster->new('server' . ++$servers));
}

# Writes a server's life, and the worker id that it has in this life.
sub write_identity
{
	my ($server) = @_;

	write_conf(
		$server->{node}, 'identity.conf',
		"chaos.life = $life",
		'snowflake.datacenter_id = ' . int($worker_id / WORKER_IDS_PER_DATACENTER),
		'snowflake.worker_id = ' . $worker_id % WORKER_IDS_PER_DATACENTER);
	return;
}

sub write_all_parameters
{
	write_parameters($_->{node}, %parameters)
	  for grep { defined } $primary, $standby;
	return;
}

sub make_primary
{
	$primary = new_server();
	my $node = $primary->{node};

	$node->init(
		allows_streaming => 1,
		extra => [ '--wal-segsize=1', $seed % 2 ? '--data-checksums' : () ]);
	$node->append_conf(
		'postgresql.conf',
		join "\n",
		chaos_conf(),
		"shared_preload_libraries = 'snowflake'",
		"synchronous_commit = $synchronous_commit",
		"wal_writer_delay = $wal_writer_delay",
		map { "include '$_.conf'" } qw(identity parameters));
	write_identity($primary);
	write_all_parameters();
	$primary->start;
	# The first fault can be a crash before anything has been flushed.
	$node->safe_psql(
		'postgres', q{
		SET synchronous_commit = on;
		CREATE EXTENSION snowflake;
		CREATE TABLE taken (
			id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
			life int,
			sent_at double precision)});
	return;
}

sub make_standby
{
	$standby = new_server();
	base_backup($primary->{node}, $standby->{node})
	  or die "no base backup can be taken\n";
	write_identity($standby);
	$standby->{worker_id} = $worker_id;
	write_all_parameters();
	$standby->follow($primary);
	return;
}

sub discard
{
	my ($server) = @_;

	$server->end('immediate') if $server->is_up;
	$server->{node}->clean_node;
	return;
}

# ----- lives -----

# Begins the next life, at a time when the primary is down.  In 40 % of the cases
# the server gets another worker id.
sub begin_life
{
	my ($is_same_node) = @_;

	$life++;
	$used_until{$worker_id} = $primary->right_time;
	return if $is_same_node || rand() < 0.6;
	my @former =
	  shuffle grep { $_ != $worker_id } sort { $a <=> $b } keys %used_until;

	push @former, 1 + max keys %used_until;
	$worker_id = $former[ rand() < 0.5 ? 0 : -1 ];
	log_event("worker id $worker_id");
	return;
}

# In most cases sets the primary's clock behind, until it has recovered and a
# while longer: to about the time when its worker id was used last, or by up to
# an hour.
sub set_clock_behind
{
	my $since_s = $primary->right_time - ($used_until{$worker_id} // 0);

	$primary->step_clock(
		-(rand() < 0.8 ? min(HOUR_S, $since_s) + rand 3 : some_seconds()),
		HOUR_S)
	  if rand() < 0.8;
	return;
}

# Notes which ids of the last life are kept, when the primary has recovered.
sub keep_ids
{
	my ($is_all) = @_;
	my $row = value_when($primary->{node},
		'SELECT coalesce(max(id), 0), coalesce(max(sent_at), 0) FROM taken'
		  . ' WHERE life = ' . ($life - 1));

	@{ $kept[ $life - 1 ] }{qw(newest before)} = split /\|/, $row;
	$kept[ $life - 1 ]{before} = 'inf' if $is_all;
	$primary->step_clock($primary->{step_s}, 0.3 + rand 1)
	  if $primary->{step_s} != 0;
	return;
}

# Ends the primary, and starts it.
sub restart
{
	my ($how) = @_;

	if ($how eq 'cut' && rand() < 0.5)
	{
		$primary->suspend_process('walwriter', HOUR_S);
		let_pass(rand 1.5);
	}
	$primary->end($how);
	begin_life();
	write_identity($primary);
	set_clock_behind();
	$primary->start;
	keep_ids($how eq 'fast');
	return;
}

# ----- another server takes over -----

# Commits a transaction on the primary, and returns an LSN up to which WAL is
# flushed then.
sub flush_wal
{
	return value_when(
		$primary->{node}, q{
		SET synchronous_commit = local;
		SELECT pg_logical_emit_message(true, 'chaos', '') IS NULL;
		SELECT pg_current_wal_flush_lsn()}) =~ s/.*\n//sr;
}

# Makes a standby unless there is one, and waits until it has replayed all WAL.
sub find_successor
{
	make_standby() unless defined $standby;
	value_when($standby->{node},
		"SELECT pg_last_wal_replay_lsn() >= '" . flush_wal() . "'", 't');
	return;
}

# Promotes the new primary, or starts it without a signal file.  If it runs with
# another worker id, it is stopped before.
sub recover
{
	my ($way) = @_;
	my $node = $primary->{node};

	if ($way eq 'start' || $primary->{worker_id} != $worker_id)
	{
		# After a checkpoint the recovery may find no record of the mark.
		try_value($node, 'CHECKPOINT') if rand() < 0.3;
		$primary->end((qw(fast cut))[ rand 2 ]);
		write_signal($node, $way eq 'promotion' ? 'standby' : undef);
		$primary->start;
	}
	$node->promote if $way eq 'promotion';
	value_when($node, 'SELECT pg_is_in_recovery()', 'f');
	return;
}

my @take_over_hand;

sub take_over
{
	my $old = $primary;
	my $how = (qw(fast killed cut))[ rand 3 ];
	my $way = draw(\@take_over_hand, \%take_overs);

	find_successor();
	log_event("$standby->{name}: takes over, $way");
	let_pass(rand 0.5);
	flush_wal();
	$old->end($how);
	begin_life();
	$primary = $standby;
	undef $standby;
	write_identity($primary);
	write_all_parameters();
	set_clock_behind();

	# Clients may ask for ids before the recovery has ended.
	draw_from('clients', $primary->{node}) if rand() < 0.5;
	recover($way);
	keep_ids($how eq 'fast');
	draw_from('clients', $primary->{node});
	let_pass(rand 0.5);
	restart((qw(killed cut))[ rand 2 ]) if rand() < 0.4;
	discard($old);
	make_standby() if rand() < 0.5;
	return;
}

# ----- other faults -----

my %fault = (
	fast => sub { restart('fast') },
	killed => sub { restart('killed') },
	cut => sub { restart('cut') },
	take_over => \&take_over);

$fault{clock_back} = sub {
	$primary->step_clock(-some_seconds(), 0.02 + rand 1.5);
	let_pass(rand 1);
	return;
};

$fault{clock_forward} = sub {
	put_forward(some_seconds());
	return;
};

$fault{backend_killed} = sub {
	set_clock_behind();
	keep_ids(0)
	  if $primary->kill_process(
		'postgres \[local\]',
		sub {
			begin_life('same node');
			write_identity($primary);
		});
	return;
};

$fault{parameters} = sub {
	%parameters = (
		%parameters,
		clock_policy => (qw(wait advance))[ rand 2 ],
		clock_tolerance => 1000 + int rand 4000);
	write_all_parameters();
	return;
};

# ----- the run -----

sub inserts
{
	my ($of_life, $sent_at) = @_;

	return "INSERT INTO taken (life, sent_at) SELECT $of_life, $sent_at"
	  . ' FROM generate_series(1, ' . (1 + int rand 10) . ") RETURNING id;\n"
	  . "INSERT INTO taken (life, sent_at) VALUES ($of_life, $sent_at) RETURNING id;\n" x 4;
}

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };
make_primary();
start_clients(
	'clients', $primary->{node},
	(sub { "SELECT snowflake_nextval();\n" x 20 }) x 2,
	(sub { 'SELECT snowflake_nextvals(' . (1 + int rand 200) . ");\n" }) x 2,
	(\&inserts) x 2);
let_pass(0.5);

# Deal faults until the time is over and every kind of fault has been dealt.
my @hand = shuffle sort keys %deck;
my %counts;
my $until = now() + $seconds;
while (now() < $until || keys %counts < keys %deck)
{
	my $name = draw(\@hand, \%deck);

	$fault{$name}->();
	$counts{$name}++;
	let_pass(0.3 + rand 0.7);
	check_clients();
}
let_pass(0.1) while $primary->{step_s} != 0;
%parameters = (%parameters, clock_policy => 'wait', clock_tolerance => 60_000);
write_all_parameters();
ok(get_ids(60, 'clients'), 'all clients get ids after the last fault has ended');
end_clients('clients');
$life++;
keep_ids('all');

# ----- what the ids say -----

# Reads the batches of a life, which clients have received in the order of
# lives.
my (%next, $id_count);

sub batches_of_life
{
	my ($number) = @_;
	my @batches;

	for my $client (clients_of('clients'))
	{
		my $batch = $next{ $client->{name} } // next_batch($client);

		while (defined $batch && $batch->{life} == $number)
		{
			push @batches, $batch if @{ $batch->{ids} };
			$id_count += @{ $batch->{ids} };
			$batch = next_batch($client);
		}
		$next{ $client->{name} } = $batch;
	}
	return @batches;
}

# Checks that no id of a life comes twice, and that each batch's ids increase.
sub check_batches
{
	my ($number, @batches) = @_;
	my %is_taken;

	for my $batch (@batches)
	{
		my $last = 0;

		for my $id (@{ $batch->{ids} })
		{
			count_finding('id that comes twice in a life', "$id in life $number")
			  if $is_taken{$id}++;
			count_finding('id that is out of order in its batch', "$id after $last in life $number")
			  if $id <= $last;
			$last = $id;
		}
	}
	return;
}

# Checks that each batch's ids are larger than those that had been received
# before it was sent.
sub check_order
{
	my ($number, @batches) = @_;
	my @received = sort { $a->{received_at} <=> $b->{received_at} } @batches;
	my $newest = 0;

	for my $batch (sort { $a->{sent_at} <=> $b->{sent_at} } @batches)
	{
		while ($received[0]{received_at} < $batch->{sent_at})
		{
			$newest = max($newest, (shift @received)->{ids}[-1]);
		}
		my $first = $batch->{ids}[0];

		count_finding('id that goes back behind ids received before', "$first after $newest in life $number")
		  if $first <= $newest;
	}
	return;
}

my %floor;                      # by node: the largest id that is kept
for my $number (0 .. $life - 1)
{
	my @batches = batches_of_life($number);
	my $kept = $kept[$number];
	my $newest = $kept->{newest};

	check_batches($number, @batches);
	check_order($number, @batches);
	for my $batch (@batches)
	{
		my $first = $batch->{ids}[0];
		my $floor = $floor{ $first >> NODE_SHIFT & NODE_MASK } // 0;

		count_finding('id that goes back behind ids kept before', "$first of life $number after $floor")
		  if $first <= $floor;
		$newest = max($newest, $batch->{ids}[-1])
		  if $batch->{received_at} < $kept->{before};
	}
	my $node = $newest >> NODE_SHIFT & NODE_MASK;
	$floor{$node} = max($floor{$node} // 0, $newest);
}
count_finding('batch that was not checked', "of life $_->{life}") for grep { defined } values %next;
note("faults: $_ $counts{$_}") for sort keys %counts;
note(sprintf 'seed %d: %d ids in %d lives, %d worker ids',
	$seed, $id_count, $life, scalar keys %used_until);

cmp_ok($id_count, '>', 100 * $seconds, 'clients have received more than a hundred ids a second');
has_no_findings(
	qr/ERROR:  55000: the clock is [\w. ]+ behind the last snowflake id|25006: .*(?:during recovery|in a read-only transaction)/,
	'no id comes twice or goes back, no client fails, and clients see only allowed errors');
$_->{node}->stop for grep { defined } $standby, $primary;

done_testing();
