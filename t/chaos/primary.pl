# No id comes twice.  Clients keep every id that they receive, outside the
# servers, while faults hit a primary, and other servers take over from it.
#
# The seed chooses the order of the faults.  The faults of the primary are:
#
# - Its clock steps back by milliseconds, by seconds (within the tolerance and
#   beyond it) and by an hour, and ahead by up to an hour.
# - A backend gets SIGKILL, so that the postmaster makes its shared memory anew.
# - The postmaster gets SIGKILL, or the server is stopped, immediately or fast.
#   In half of the cases the server starts again while its clock is behind.
#   After a crash the mark's page may also be torn in its file, or the file may
#   be removed, but only if the recovery rewrites the page from WAL.
# - The WAL writer is suspended, so that only commits flush WAL.
# - All processes get SIGKILL while the WAL writer is suspended and clients
#   commit nothing, so that the last marks are lost ("cut").
# - Its parameters change.
# - The server gets another worker id.
#
# The standby is restarted, too.  Other servers take over in the ways that
# SnowflakeTakeOver.pm lists.
#
# Ids may be lost with the old primary, and only lost ids may come again.  An id
# is kept if
#
# - it is in the data of the server that goes on;
# - a client had received it before a client sent the last batch of which these
#   data have an id;
# - a client had received it at any time, and either the clients were paused and
#   the new primary had replayed everything, or a standby took over from a
#   primary that was stopped fast;
# - a client had inserted it with synchronous replication.
#
# An id may also come again by the exception of promise 1: see is_excused() of
# SnowflakeLedger.pm, which checks its conditions for each such id.
#
# At the end the test checks that
#
# - no id came twice, whichever clients received it;
# - the ids that a node issues after a stop of its server are larger than all
#   kept ids that the node issued before the stop;
# - each mark that was recovered after a crash is after all ids in the data;
# - each client's ids increase.  After a take-over, an id need only be larger
#   than the client's kept ids.  After a change of the worker id, an id may be
#   smaller than the client's ids from before the change;
# - clients received only the errors of %allowed_errors, and got each answer
#   within TIMEOUT_S;
# - a worker id never used before gets ids at once, even if the ids of all
#   others are ahead of the clock;
# - all clients get ids again.
#
# In a third of the runs the mark's page is full of the marks of other worker
# ids from the beginning.  In half of the runs the WAL writer is so slow that
# WAL is mostly flushed only when a process calls XLogFlush(), as for a commit.
#
# The servers are in SnowflakeChaosCluster.pm, the ids in
# SnowflakeLedger.pm.
#
#   CHAOS_SECONDS             the seconds in which new faults begin (30)
#   CHAOS_SEED                chooses the same order of faults as in an earlier
#                             run with this seed; the timing still differs
#   CHAOS_CLOCK_POLICY        the clock_policy until the last fault; if it is not
#                             set, the clock_policy changes during the run
#   CHAOS_SYNCHRONOUS_COMMIT  on or off; the seed chooses if it is not set
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib", $FindBin::RealBin;
use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use SnowflakeChaos;
use SnowflakeChaosCluster;
use SnowflakeChaosServer;
use SnowflakeFaults;
use SnowflakeLedger;
use SnowflakeTakeOver;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time);

# How many worker ids the primary has had before a run with former workers: more
# than the mark's page has room for.
use constant FORMER_WORKERS => 17;

# What clients do, and how many of each.
my %clients = (single => 2, many => 2, insert => 2);

# Faults, and how many cards of each are in the deck.
my %deck = (
	back_by_ms => 2,
	back_by_s => 2,
	back_beyond_tolerance => 1,
	back_by_an_hour => 1,
	ahead => 1,
	forward => 1,
	backend_killed => 2,
	wal_writer_suspended => 1,
	cut => 3,
	postmaster_killed => 3,
	immediate_stop => 2,
	fast_stop => 2,
	replaced_worker_id => 1,
	standby_restarted => 1,
	parameters => 3,
	take_over => 10);

# The errors that a client may receive, and their messages.
my %allowed_errors = (
	'23505' => qr/^duplicate key value violates unique constraint/,
	'55000' => qr/^the clock is \d+\.\d{3} ms behind the last snowflake id$/,
	'57P01' =>
	  qr/^terminating connection|^canceling the wait for synchronous replication/,
	'57P02' => qr/^terminating connection because of crash/,
	'57P03' => qr/^the database system is/,
	'08006' => qr//,
	'25006' => qr/during recovery|in a read-only transaction/);

my $seconds = $ENV{CHAOS_SECONDS} || 30;
my $seed = $ENV{CHAOS_SEED} // int(time() * 1000) % 1_000_000;
my $synchronous_commit = $ENV{CHAOS_SYNCHRONOUS_COMMIT}
  // (qw(on off))[ $seed % 2 ];
my $has_checksums = $seed % 4 < 2;
my $has_former_workers = $seed % 3 == 0;
my $wal_writer_delay = (qw(200ms 10s))[ $seed % 8 < 4 ];
my @policies =
  defined $ENV{CHAOS_CLOCK_POLICY}
  ? $ENV{CHAOS_CLOCK_POLICY}
  : qw(wait error advance);
srand($seed);
note("seed $seed, $seconds s, policy @policies, "
	  . "synchronous_commit $synchronous_commit, "
	  . "wal_writer_delay $wal_writer_delay, "
	  . ($has_checksums ? '' : 'no ')
	  . 'checksums, '
	  . ($has_former_workers ? '' : 'no ')
	  . 'former workers');

# ----- clients and servers -----

# Returns the statements of one batch.
sub statements
{
	my ($kind, $stage, $number) = @_;

	return "SELECT snowflake_nextval();\n" x 20 if $kind eq 'single';
	return 'SELECT snowflake_nextvals(' . (1 + int rand 200) . ");\n"
	  if $kind eq 'many';
	return
	  "INSERT INTO taken (client, stage) VALUES ($number, $stage) RETURNING id;\n"
	  x 8
	  . "INSERT INTO taken (client, stage) SELECT $number, $stage"
	  . ' FROM generate_series(1, '
	  . (1 + int rand 10)
	  . ") RETURNING id;\n";
}

my $began = now();
my %counts;                     # of faults
my $chaos = SnowflakeChaos->new(
	directory => PostgreSQL::Test::Utils::tempdir(),
	seed => $seed,
	batch => \&statements);
my $ledger = SnowflakeLedger->new(
	$chaos,
	node_of => sub { $_[0] >> 12 & 1023 },
	tick_of => sub { $_[0] >> 22 },
	time_of => \&timestamp_of);
my $cluster = SnowflakeChaosCluster->new(
	clients => $chaos,
	client_count => sum0(values %clients),
	ledger => $ledger,
	policies => \@policies,
	synchronous_commit => $synchronous_commit);

# ----- faults -----

my %fault;

$fault{back_by_ms} = sub {
	$cluster->step_primary(-0.001 - rand 0.2, 0.02 + rand 0.5);
	let_pass(rand 0.3);
	return;
};

$fault{back_by_s} = sub {
	$cluster->step_primary(-1 - rand 3, 0.2 + rand 2);
	let_pass(rand 1);
	return;
};

$fault{back_beyond_tolerance} = sub {
	my $tolerance_s = $cluster->{parameters}{clock_tolerance} / 1000;

	$cluster->step_primary(-$tolerance_s - 1 - rand 3, 0.2 + rand 1);
	let_pass(rand 1);
	return;
};

$fault{back_by_an_hour} = sub {
	$cluster->step_primary(-HOUR_S, 0.2 + rand 1);
	let_pass(rand 1);
	return;
};

# Puts the clock forward for good.
$fault{forward} = sub {
	$cluster->put_clock_in_order(0.001 + rand 2);
	log_event('clock forward');
	return;
};

# Steps the clock ahead, so that ids are issued ahead of the right time.  Then
# either the clock stays ahead, or the clock is set right and the primary gets a
# new worker id, because the old one could issue no ids for up to an hour.
$fault{ahead} = sub {
	my $ahead_s = some_seconds();

	$cluster->step_primary($ahead_s, TIMEOUT_S);
	let_pass(0.2 + rand 0.5);
	if (rand() < 0.5)
	{
		$cluster->put_clock_in_order($ahead_s);
		return;
	}
	$cluster->put_clock_in_order;
	$cluster->change_worker_id($cluster->{worker_ids}->new_worker_id);
	return;
};

$fault{backend_killed} = sub { $cluster->kill_backend };

$fault{wal_writer_suspended} = sub {
	$cluster->suspend_wal_writer(0.2 + rand 1.5);
	let_pass(rand 1);
	return;
};

$fault{cut} = sub { $cluster->end_and_start('cut') };

$fault{postmaster_killed} = sub { $cluster->end_and_start('killed') };

$fault{immediate_stop} = sub { $cluster->end_and_start('immediate') };

$fault{fast_stop} = sub { $cluster->end_and_start('fast') };

$fault{replaced_worker_id} = sub {
	my $worker_ids = $cluster->{worker_ids};

	$cluster->put_clock_in_order;
	$cluster->change_worker_id(
		rand() < 0.5
		? $worker_ids->new_worker_id
		: $worker_ids->former_worker_id($cluster->primary_time));
	return;
};

$fault{standby_restarted} = sub {
	$cluster->make_standby unless defined $cluster->{standby};
	$cluster->{standby}->end_life((qw(fast immediate))[ rand 2 ]);
	$cluster->{standby}->start;
	log_event('standby restarted');
	return;
};

$fault{parameters} = sub {
	my $policy = $policies[ rand @policies ];

	# A session may wait for as long as the tolerance, but under "advance" it
	# seldom waits.
	my $most_ms = $policy eq 'advance' ? 60_000 : 5000;
	my %parameters = (
		clock_policy => $policy,
		clock_tolerance => 1000 + int rand($most_ms - 1000),
		sequence_start => (qw(zero random))[ rand 2 ],
		high_water_interval => int 10 * 100**rand);

	log_event(
		join ' ', 'parameters', map { $parameters{$_} } sort keys %parameters);
	$cluster->change_parameters(%parameters);
	return;
};

$fault{take_over} = sub { take_over($cluster) };

# ----- the run -----

$SIG{TERM} = $SIG{INT} = sub { die "interrupted\n" };

$cluster->make_primary(
	has_checksums => $has_checksums,
	wal_writer_delay => $wal_writer_delay);
$cluster->use_worker_ids(FORMER_WORKERS) if $has_former_workers;
$cluster->{first_id_at} = time();
$cluster->command_clients('all', $cluster->{primary});
for my $kind (sort keys %clients)
{
	$chaos->start_client($kind, 'control') for 1 .. $clients{$kind};
}
let_pass(1);
$cluster->make_standby;

# Deal faults until the time is over and every kind of fault has been dealt,
# however slow the machine is.
my @hand;
my $until = now() + $seconds;
my $kinds = keys(%deck) + take_over_kinds();
while (now() < $until || keys(%counts) + keys(%{ take_over_counts() }) < $kinds)
{
	@hand = shuffled(\%deck) unless @hand;
	my $name = pop @hand;

	$fault{$name}->();
	$counts{$name}++;
	let_pass(rand 0.5);
	$chaos->check_clients;
}

# Put everything in order again.
$cluster->{primary}->resume_workers;
$cluster->put_clock_in_order;
$cluster->pass_all_ids;
$cluster->change_parameters(clock_policy => 'wait', clock_tolerance => 60_000);
wait_until($cluster->{primary}{node}, 'SELECT snowflake_nextval() > 0');
my @clients = 0 .. sum0(values %clients) - 1;
ok($chaos->get_ids(\&tend, @clients),
	'all clients get ids after the last fault has ended');
$cluster->command_clients('end');
is($chaos->wait_for_clients(@clients), 0, 'clients end without an error');

# ----- what the ids say -----

$cluster->next_stage($cluster->{primary}, is_all => 1);
$ledger->note_crashes([ crashes() ]);
$ledger->read_clients(\%allowed_errors, @clients);
my $duplicates = $ledger->count_duplicates(
	sub {
		diag("id $_[0] came to clients $_[1] and $_[2], "
			  . "in stages $_[3] and $_[4]");
	});
my $overlaps = $ledger->count_overlaps(
	sub {
		diag("id $_[0] of stage $_[1] is larger than id $_[2] of stage $_[3], "
			  . 'which was issued later, after a stop');
	});

note("seed $seed, synchronous_commit $synchronous_commit: "
	  . "$ledger->{ids} ids in " . int(now() - $began) . ' s, '
	  . sum0(@counts{ keys %deck })
	  . " faults, $cluster->{stage} stages, $ledger->{lost} ids lost, "
	  . $ledger->errors_of('55000')
	  . ' refusals, '
	  . marks_damaged()
	  . " marks damaged, $overlaps overlaps, $duplicates duplicates");
note(scalar(crashes()) . " crashes; by the exception of promise 1, "
	  . "$ledger->{excused}{duplicate} ids came again, and "
	  . "$ledger->{excused}{order} ids are not larger than an earlier one");
note_counts(faults => { %counts, %{ take_over_counts() } });
note_counts(errors => $ledger->{errors});

cmp_ok($ledger->{ids}, '>', 100 * $seconds, 'clients got ids');
is($duplicates, 0, 'no id came twice');
is($overlaps, 0,
	'ids issued after a stop are larger than all kept ids issued before the stop'
);
is($ledger->{beyond_mark}, 0,
	'each mark that was recovered after a crash is after all ids in the data');
is($ledger->errors_of('23505'), 0, 'no id was in the table already');
$ledger->test_clients;

# With former workers the mark's page has no room, so a new worker id may wait.
is($cluster->{late_ids}, 0, 'a worker id never used before gets ids at once')
  if $cluster->{prompt_ids} + $cluster->{late_ids} > 0;

# A short run may damage no page; t/mark_page.pl always does.
cmp_ok(marks_damaged(), '>', 0, 'the page of the mark was damaged')
  if $seconds >= 120;

$_->{node}->stop for grep { defined } @$cluster{qw(standby primary)};

done_testing();
