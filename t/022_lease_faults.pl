# Leased worker ids while everything about them fails: the registry is down,
# comes back, fails over to a standby that has not heard of all leases, or is
# restored from a dump; servers are suspended for longer than their leases;
# clocks disagree and are set; the network holds requests and answers back.
# Ids go on for as long as a lease lasts, and not one comes twice.
#
# Clients in the background keep every id that they receive.  Two servers with
# the same worker id that issue at the same time make duplicates at once: each
# begins every tick with sequence 0.
#
# The scenarios have nothing in common, and mostly wait; each is a process.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRelay;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

# Ids of the default layout.
use constant { BITS_BELOW_WORKER => 12, WORKER_MAX => 31 };

# How far clocks may lead the registry's where they do.
use constant LARGEST_LEAD_S => 400;

# Why a registry that may have forgotten leases grants none.
use constant GRACE => qr/^The registry /;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock_library = build_clock_library($directory);

# ----- scenarios as processes -----

my %nodes;    # by name; made beforehand, lest two have the same port
my @started;
my @relays;

# Runs all of them at the same time.  SCENARIO is a pattern of their names.
sub run_scenarios
{
	my (@scenarios) = @_;
	my $only = $ENV{SCENARIO} // '';

	@scenarios = grep { $_->{name} =~ /$only/ } @scenarios;
	for my $scenario (@scenarios)
	{
		$nodes{$_} = PostgreSQL::Test::Cluster->new($_)
		  for @{ $scenario->{nodes} };
	}
	for my $scenario (@scenarios)
	{
		$scenario->{output} = "$directory/" . ($scenario->{name} =~ tr/ /_/r);
		$scenario->{pid} = fork // die "fork: $!\n";
		POSIX::_exit(run_scenario($scenario)) if $scenario->{pid} == 0;
	}
	for my $scenario (@scenarios)
	{
		waitpid $scenario->{pid}, 0;
		my $is_good = $? == 0;
		my $output = slurp_file($scenario->{output});

		$is_good ? note($output) : diag($output);
		ok($is_good, $scenario->{name});
	}
	return;
}

# In a process of its own; returns its exit status.
sub run_scenario
{
	my ($scenario) = @_;
	my $builder = Test::More->builder;
	my $begin = time;

	open my $output, '>', $scenario->{output}
	  or die "$scenario->{output}: $!\n";
	$output->autoflush(1);
	$builder->reset;
	$builder->output($output);
	$builder->failure_output($output);
	$builder->todo_output($output);

	# clients of servers that were stopped are written to no more
	local $SIG{PIPE} = 'IGNORE';
	local $SIG{ALRM} = sub { die "the scenario takes too long\n" };
	alarm 170;
	eval { $scenario->{run}->(); 1 } or fail("runs to its end: $@");
	alarm 0;
	eval { stop_everything(); 1 } or fail("stops: $@");
	note(sprintf '%.1f s', time - $begin);
	done_testing();
	return $builder->is_passing ? 0 : 1;
}

sub stop_everything
{
	resume($_) for @started;
	$_->stop('immediate', fail_ok => 1) for reverse @started;
	$_->stop for @relays;
	return;
}

# ----- servers -----

# A server that has the extension, to copy all others from.
my $template = PostgreSQL::Test::Cluster->new('template');
$template->init(allows_streaming => 1, extra => ['--wal-segsize=1']);
$template->append_conf(
	'postgresql.conf', q{
autovacuum = off
max_wal_size = 32MB
min_wal_size = 2MB
});
$template->start;
$template->safe_psql('postgres', 'CREATE EXTENSION snowflake');
$template->backup('base');
$template->stop;

# Starts a server; with the file of an offset, its clock is so far off.
sub start
{
	my ($node, $clock) = @_;
	local %ENV = (%ENV,
		defined $clock
		? (preload($clock_library), CLOCK_OFFSET_FILE => $clock)
		: ());

	push @started, $node unless grep { $_ == $node } @started;
	$node->start;
	return $node;
}

# Sets the clock of a server: so many seconds from the real one.
sub move_clock
{
	my ($clock, $offset) = @_;

	# in place and at once: servers have it mapped
	open my $fh, -e $clock ? '+<:raw' : '>:raw', $clock or die "$clock: $!";
	defined syswrite $fh, pack('q', int(1_000_000 * $offset))
	  or die "$clock: $!";
	close $fh;
	return;
}

# A registry, started.  To be given if it is not these: lease_duration and
# largest_lead, and the file of its clock's offset.
sub make_registry
{
	my ($name, %of) = @_;
	my $node = $nodes{$name};

	%of = (lease_duration => '6s', largest_lead => '1s', %of);
	$node->init_from_backup($template, 'base');
	start($node, $of{clock});
	$node->safe_psql(
		'postgres', qq{
		CREATE EXTENSION snowflake_registry;
		SELECT snowflake_registry.configure(
			lease_duration => '$of{lease_duration}',
			largest_lead => '$of{largest_lead}')});
	return $node;
}

# A server that leases, not started yet; further parameters follow and win.
sub make_server
{
	my ($name, $registry, @conf) = @_;
	my $node = $nodes{$name};

	$registry = $registry->connstr('postgres') if ref $registry;
	$registry =~ s/'/''/g;
	$node->init_from_backup($template, 'base');
	$node->append_conf('postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			'snowflake.worker_id_source = registry',
			"snowflake.registry = '$registry'",
			"snowflake.registry_name = '$name'",
			@conf)
		  . "\n");
	return $node;
}

# Parameters of a server that wants one worker id, and no other.
sub wants
{
	my ($worker_id) = @_;
	return ('snowflake.worker_id_source = config',
		"snowflake.worker_id = $worker_id");
}

# A connection string with several hosts, tried in their order.
sub any_of
{
	my (@hosts) = @_;
	return sprintf 'host=%s port=%s dbname=postgres',
	  join(',', map { $_->host } @hosts), join(',', map { $_->port } @hosts);
}

sub worker_id_of
{
	my ($id) = @_;
	return ($id >> BITS_BELOW_WORKER) & WORKER_MAX;
}

# The row of a worker id, or one column of it, as the registry has it.
sub lease_of
{
	my ($registry, $worker_id, $column) = @_;

	$column //= '*';
	return $registry->safe_psql('postgres',
		"SELECT $column FROM snowflake_registry.node WHERE datacenter_id = 0 AND worker_id = $worker_id"
	);
}

# Who has a worker id, or had it last and has not given it back.
sub holder_of
{
	my ($registry, $worker_id) = @_;
	return $registry->safe_psql('postgres',
		"SELECT name FROM snowflake_registry.node WHERE datacenter_id = 0 AND worker_id = $worker_id AND NOT is_released"
	);
}

# Was a server's lease claimed after the registry's grace?
sub is_after_grace
{
	my ($registry, $name, $what) = @_;
	return is(
		$registry->safe_psql(
			'postgres',
			"SELECT claimed_at >= grants_from FROM snowflake_registry.node, snowflake_registry.setting WHERE name = '$name'"
		),
		't', $what);
}

sub stat_of
{
	my ($node, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM snowflake_stat");
}

sub wait_for_renewals
{
	my ($node, $count) = @_;
	my $before = stat_of($node, 'lease_renewals');

	wait_for(sub { stat_of($node, 'lease_renewals') >= $before + $count })
	  or die $node->name . " does not renew its lease\n";
	return;
}

# Checks that a server issues no id, and why.
sub is_refused
{
	my ($node, $pattern, $name) = @_;
	return like(refusal_of($node), $pattern, $name);
}

# ----- servers that are suspended -----

sub processes_of
{
	my ($node) = @_;
	my ($postmaster) = split /\n/,
	  slurp_file($node->data_dir . '/postmaster.pid');
	my @children;

	for (split /\n/, qx(ps -A -o pid= -o ppid=))
	{
		my ($pid, $parent) = split;
		push @children, $pid if $parent == $postmaster;
	}
	return ($postmaster, @children);
}

sub suspend
{
	my ($node) = @_;

	# the postmaster first, so that there are no new children
	my ($postmaster) = processes_of($node);
	kill 'STOP', $postmaster;
	kill 'STOP', processes_of($node);
	return;
}

sub resume
{
	my ($node, @except) = @_;

	return unless -e $node->data_dir . '/postmaster.pid';
	for my $pid (processes_of($node))
	{
		kill 'CONT', $pid unless grep { $_ == $pid } @except;
	}
	return;
}

sub registry_worker
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'snowflake registry'"
	);
}

# ----- clients in the background -----

my @clients;

# Starts a client that draws ids, and goes on after errors.
sub start_client
{
	my ($node) = @_;
	my $client = run_client($node, "$directory/client.sql",
		"$directory/$$." . scalar @clients);

	push @clients, $client;
	return $client;
}

# Those since the last time, and what was refused since then.
sub new_ids
{
	my ($client) = @_;
	my @ids = ids_of($client);
	my @new = @ids[ $client->{seen} .. $#ids ];

	$client->{seen} = @ids;
	return @new;
}

# SQLSTATEs that the client has got since the last time.
sub new_errors
{
	my ($client) = @_;
	my @errors = slurp_file($client->{err}) =~ /ERROR:  (\w{5}):/g;
	my @new = @errors[ $client->{refused} .. $#errors ];

	$client->{refused} = @errors;
	return @new;
}

sub wait_for_error
{
	my ($client, $what, $seconds) = @_;
	return ok(wait_for(sub { scalar(new_errors($client)) > 0 }, $seconds),
		$what);
}

# Checks that a client has got ids since the last time, and nothing else.
sub is_undisturbed
{
	my ($client, $what) = @_;
	my $count = scalar(my @ids = new_ids($client));
	my @errors = new_errors($client);

	return ok($count > 0 && @errors == 0,
		"$what ($count ids, errors: @errors[0 .. ($#errors < 2 ? $#errors : 2)])"
	);
}

# Checks all ids of all clients.
sub is_unique
{
	my ($at_least) = @_;
	my (%seen, $count, %twice);

	for my $client (@clients)
	{
		for my $id (ids_of($client))
		{
			$count++;
			$twice{"$client->{name} and $seen{$id}"}++ if exists $seen{$id};
			$seen{$id} = $client->{name};
		}
	}
	cmp_ok($count, '>', $at_least, 'there are many ids');
	is( join(', ', map { "$twice{$_} of $_" } sort keys %twice),
		'', "not one duplicate among $count ids");
	$_->{run}->kill_kill for @clients;
	return;
}

# ----- the registry is down, and is restored -----

sub registry_down
{
	my $registry = make_registry('down_registry', lease_duration => '12s');
	my $restored = $nodes{down_restored};
	my $either = any_of($registry, $restored);
	my $holder = make_server('down_holder', $either);
	my $late = make_server('down_late', $either);
	my $new = make_server('down_new', $either);
	my ($client, $seconds);

	start($holder);
	my $worker_id = worker_id_of(scalar first_id($holder));

	# all of the lease is ahead
	wait_for_renewals($holder, 1);
	$client = start_client($holder);
	wait_for_ids($client, 'a client gets ids');
	$registry->stop('immediate');
	my $down_since = time;

	start($late);
	is_refused($late, qr/^The registry (?:cannot be reached|has not answered)/,
		'a server that starts while the registry is down is up, without ids');
	sleep 0.5;
	is_undisturbed($client, 'ids go on while the registry is down');

	$holder->restart;
	my ($state, $id) = sqlstate_of($holder, 'SELECT snowflake_nextval()');
	is($state, '', 'restarted within the lease, there are ids at once')
	  or diag(sprintf '%.1f s after the registry went down', time - $down_since);
	is(worker_id_of($id), $worker_id, '... with the same worker id');
	$holder->stop('immediate');
	$holder->start;
	($state, $id) = sqlstate_of($holder, 'SELECT snowflake_nextval()');
	is($state, '', 'and so after a crash');
	$client = start_client($holder);
	wait_for_ids($client, 'a client gets ids');

	my $ends = $holder->safe_psql('postgres',
		'SELECT lease_expires_at FROM snowflake_node');

	# sessions need nobody to tell them
	my $worker = registry_worker($holder);
	kill 'STOP', $worker;
	wait_for_error($client, 'when the lease is over there are none');
	kill 'CONT', $worker;
	my $newest = (ids_of($client))[-1];
	is( $holder->safe_psql(
			'postgres',
			"SELECT snowflake_timestamp($newest) <= '$ends'::timestamptz + '50 ms'"
		),
		't',
		'... not one beyond its end');
	is_refused($holder, qr/^The registry cannot be reached/,
		'... and the error says why');
	$holder->restart;
	is_refused($holder, qr/^The registry (?:cannot be reached|has not answered)/,
		'restarted after the lease there are none');

	$registry->start;
	($id, $seconds) = first_id($holder);

	# it asks every 5 s, and a registry that has crashed waits for others first
	cmp_ok($seconds, '<', 15, 'ids are back soon after the registry');
	is(worker_id_of($id), $worker_id, '... with the same worker id');
	my $late_worker_id = worker_id_of(scalar first_id($late));
	isnt($late_worker_id, $worker_id, 'the other server gets another');
	$client = start_client($holder);
	wait_for_ids($client, 'a client gets ids');

	# restored into another database cluster, where the holders go on
	my $dump = "$directory/registry.sql";
	$restored->init;
	start($restored);
	system_or_bail('pg_dump', '-d', $registry->connstr('postgres'),
		'-f', $dump);
	system_or_bail('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$restored->connstr('postgres'), '-f', $dump);
	$registry->stop('immediate');
	start($new);
	ok(wait_for(sub { refusal_of($new) =~ GRACE }),
		'a registry that was restored grants no worker id at first');
	my $new_worker_id = worker_id_of(scalar first_id($new));
	ok($new_worker_id != $worker_id && $new_worker_id != $late_worker_id,
		'... and one that nobody has, later');
	is_after_grace($restored, 'down_new', '... after its grace');
	wait_for_renewals($holder, 1);
	is_undisturbed($client, 'who has one goes on');
	is_unique(1000);
	return;
}

# ----- the registry fails over -----

sub failover
{
	my $registry = make_registry('over_registry');
	my $standby = $nodes{over_standby};
	my $either = any_of($registry, $standby);
	my $known = make_server('over_known', $either);
	my $lost = make_server('over_lost', $either);
	my $new = make_server('over_new', $either);
	my $rival = make_server('over_rival', $either, wants(1));
	my $again = make_server('over_again', $either);

	$registry->backup('base');
	$standby->init_from_backup($registry, 'base', has_streaming => 1);
	start($standby);
	start($known);
	my $known_client = start_client($known);
	is(worker_id_of(scalar first_id($known)), 0, 'a server gets a worker id');
	wait_for_renewals($known, 2);
	$registry->wait_for_catchup($standby, 'replay', $registry->lsn('insert'));

	# a claim that the standby never hears of
	$standby->safe_psql('postgres',
		q{ALTER SYSTEM SET primary_conninfo = ''});
	$standby->reload;
	$standby->poll_query_until('postgres',
		'SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)')
	  or die "the standby goes on\n";
	start($lost);
	my $lost_client = start_client($lost);
	is(worker_id_of(scalar first_id($lost)),
		1, 'two servers, two worker ids');
	start($again);
	is(worker_id_of(scalar first_id($again)), 2, '... and a third');
	$registry->stop('immediate');
	isnt(holder_of($standby, 1),
		'over_lost', 'the standby does not know of the second lease');
	new_ids($_), new_errors($_) for ($known_client, $lost_client);

	$standby->promote;
	$again->restart;
	my ($id, $seconds) = first_id($again);
	cmp_ok($seconds, '<', 3,
		'restarted after the failover, a server has ids at once');
	is(worker_id_of($id), 2, '... with the same worker id');
	start($rival);
	start($new);
	start_client($_) for ($rival, $new);
	for my $node ($new, $rival)
	{
		ok(wait_for(sub { refusal_of($node) =~ GRACE }),
			$node->name . ' gets no lease at first');
	}
	is(worker_id_of(scalar first_id($new)),
		3, 'later there is one, which nobody has');
	is_after_grace($standby, 'over_new', '... after the grace');
	is_refused($rival,
		qr/^worker_id 1 of datacenter_id 0 is leased by over_lost/,
		'nobody else gets the one whose lease was lost');
	wait_for_renewals($known, 1);
	is_undisturbed($known_client, 'who had a lease goes on');
	is_undisturbed($lost_client, 'who had a lease that was lost goes on');
	is_unique(1000);
	return;
}

# ----- a server is suspended, and the registry's clock is set -----

sub suspended
{
	my $clock = "$directory/suspended_registry";
	move_clock($clock, 0);
	my $registry = make_registry(
		'still_registry',
		clock => $clock,
		lease_duration => '4s');
	my $first = make_server('still_first', $registry, wants(5));
	my $second = make_server('still_second', $registry, wants(5));

	start($first);
	first_id($first);
	my $first_client = start_client($first);
	start($second);
	ok( wait_for(
			sub {
				refusal_of($second) =~
				  /^worker_id 5 of datacenter_id 0 is leased by still_first/;
			}),
		'a worker id that is taken is refused');
	my $second_client = start_client($second);
	wait_for_ids($first_client, 'the first server issues ids');

	my $worker = registry_worker($first);
	suspend($first);
	wait_for_ids($second_client, 'suspended, the first loses its lease');

	# sessions come first, before their server has noticed anything
	new_ids($first_client);
	resume($first, $worker);
	wait_for_error($first_client, 'resumed, it refuses ids at once');
	sleep 0.3;
	is(scalar(my @ids = new_ids($first_client)), 0, '... and issues none');
	resume($first);
	ok( wait_for(
			sub {
				refusal_of($first) =~
				  /^worker_id 5 of datacenter_id 0 is leased by still_second/;
			}),
		'its lease is another\'s');
	new_errors($second_client);
	wait_for_renewals($second, 1);
	is_undisturbed($second_client, 'the second is not disturbed');
	is(scalar(@ids = new_ids($first_client)), 0, 'the first issues no id');
	$second->stop;
	wait_for_ids($first_client, 'when the second is stopped it gets its own');

	# the registry takes every lease for one that is over
	start($second);
	$second_client = start_client($second);
	wait_for_error($second_client, 'the second server is up again');
	my $offset = 0;
	until (holder_of($registry, 5) eq 'still_second' || $offset > 30 * 3600)
	{
		move_clock($clock, $offset += 3600);
		sleep 0.5;
	}
	is(holder_of($registry, 5), 'still_second',
		'the registry\'s clock is set forward: the second gets the lease');
	wait_for_ids($second_client, '... and issues ids');
	is_refused($first, qr/^worker_id 5 of datacenter_id 0 is leased by/,
		'... and the first does not');
	new_errors($second_client);
	move_clock($clock, 0);
	wait_for_renewals($second, 2);
	is_undisturbed($second_client,
		'the registry\'s clock is set back: nobody is disturbed');
	is_unique(1000);
	return;
}

# ----- clocks disagree -----

sub clocks
{
	my $registry = make_registry(
		'clocks_registry',
		lease_duration => '4s',
		largest_lead => LARGEST_LEAD_S . 's');
	my %clock = map { $_ => "$directory/clock_$_" } qw(fast slow);
	my $fast = make_server('clocks_fast', $registry, wants(5));
	my $slow = make_server('clocks_slow', $registry, wants(5));

	# the next holder has a clock that is behind
	move_clock($clock{fast}, LARGEST_LEAD_S);
	move_clock($clock{slow}, -300);
	start($fast, $clock{fast});
	first_id($fast);
	my $fast_client = start_client($fast);
	start($slow, $clock{slow});
	my $slow_client = start_client($slow);
	wait_for_ids($fast_client, 'a server whose clock is fast issues ids');
	sleep 1;
	my $worker = registry_worker($fast);
	suspend($fast);
	my $suspended_at = time;
	ok(wait_for(sub { holder_of($registry, 5) eq 'clocks_slow' }),
		'one whose clock is slow gets its worker id');
	wait_for_renewals($slow, 1);
	is(scalar(my @ids = new_ids($slow_client)),
		0, '... and does not issue before it');

	# its clock goes through what the other one has issued
	move_clock($clock{slow},
		LARGEST_LEAD_S - (time - $suspended_at) - 1);
	sleep 1.5;
	is(scalar(@ids = new_ids($slow_client)), 0, '... nor among its ids');
	move_clock($clock{slow}, LARGEST_LEAD_S);
	wait_for_ids($slow_client, '... but when its clock is past the fence');

	# both issue at the same time, by the same clock
	new_ids($fast_client);
	new_errors($fast_client);
	resume($fast, $worker);
	wait_for_error($fast_client, 'the fast one, resumed, refuses ids');
	sleep 0.3;
	is(scalar(@ids = new_ids($fast_client)), 0, '... and issues none');

	# set back, it has ids that nobody else can have, or none
	move_clock($clock{fast}, LARGEST_LEAD_S - 15);
	sleep 0.5;
	resume($fast);
	move_clock($clock{fast}, LARGEST_LEAD_S);
	wait_for_renewals($slow, 1);

	# the next holder has a clock that is ahead of the last one's
	$slow->stop;
	new_ids($fast_client);
	wait_for_ids($fast_client, 'the first has its worker id again');
	move_clock($clock{slow}, LARGEST_LEAD_S + 2);
	start($slow, $clock{slow});
	$slow_client = start_client($slow);
	wait_for_error($slow_client, 'the second is up again');
	$worker = registry_worker($fast);
	suspend($fast);
	wait_for_ids($slow_client, 'it has a clock that is ahead, and issues ids');
	move_clock($clock{fast}, LARGEST_LEAD_S + 2);
	new_ids($fast_client);
	new_errors($fast_client);
	resume($fast, $worker);
	wait_for_error($fast_client, 'the first refuses them');
	sleep 0.3;
	is(scalar(@ids = new_ids($fast_client)), 0, '... and issues none');
	resume($fast);

	# a clock that is past the fence
	new_ids($slow_client);
	new_errors($slow_client);
	move_clock($clock{slow}, LARGEST_LEAD_S + 60);
	ok( wait_for(
			sub {
				slurp_file($slow_client->{err}) =~
				  /55000: snowflake ids cannot be issued because the clock is past the fence of the lease/;
			}),
		'past the fence there are no ids');
	wait_for_renewals($slow, 1);
	new_ids($slow_client);
	sleep 0.3;
	is(scalar(@ids = new_ids($slow_client)), 0,
		'... not even when the lease is renewed');
	move_clock($clock{slow}, LARGEST_LEAD_S + 2);
	wait_for_ids($slow_client, '... until the clock is set back', 5);
	new_errors($slow_client);
	wait_for_renewals($slow, 1);
	is_undisturbed($slow_client, '... and then they go on');

	# set back, it has to come so far again
	move_clock($clock{slow}, LARGEST_LEAD_S - 28);
	my (undef, $message) = sqlstate_of($slow, 'SELECT snowflake_nextval()');
	like(
		$message,
		qr/^the clock is \d+\.\d+ ms behind the last snowflake id/,
		'set back, the clock is refused as ever');
	wait_for_renewals($slow, 2);
	new_ids($slow_client);
	move_clock($clock{slow}, LARGEST_LEAD_S + 2);
	wait_for_ids($slow_client, '... and the lease is there all the time', 5);
	is_unique(1000);
	return;
}

# ----- the network holds bytes back -----

# Waits until a request of this kind is held back; others will not be.
sub hold_request
{
	my ($relay, $kind) = @_;

	$relay->hold('up', 'snowflake_registry.claim');
	ok(wait_for(sub { $relay->count_held > 0 }),
		"a request to $kind is held back");
	$relay->hold_no_more;
	return;
}

# Lets what is held back go to the registry, after who has sent it has gone.
sub let_go_late
{
	my ($relay, $name) = @_;
	my $answers = $relay->count_late_answers;

	$relay->let_go;
	ok(wait_for(sub { $relay->count_late_answers > $answers }), $name);
	return;
}

sub network
{
	my $registry = make_registry('net_registry');
	my $relay = SnowflakeRelay->new($registry);
	my $silent = SnowflakeRelay->new($registry);
	push @relays, $relay, $silent;
	$silent->hold('up');
	my $first = make_server('net_first', $relay->connection_string, wants(5));
	my $second = make_server('net_second', $registry, wants(5));
	my $patient = make_server('net_patient', $silent->connection_string);
	my $double =
	  make_server('net_double', $silent->connection_string($registry));
	my $seconds;

	# an attempt of this one takes up to ten seconds
	cmp_ok(seconds_of(sub { start($patient) }),
		'<', 8, 'a start does not wait for a registry that is silent');
	is_refused($patient, qr/^The registry has not answered yet/,
		'... and there are no ids');

	# one of several hosts is silent
	start($double);
	(undef, $seconds) = first_id($double);
	cmp_ok($seconds, '<', 8, 'a host that is silent does not hide the next');
	my $double_client = start_client($double);

	# answers come too late, for a while and for good
	start($first);
	first_id($first);
	my $client = start_client($first);
	wait_for_ids($client, 'a client gets ids');
	wait_for_renewals($first, 1);
	my $failures = stat_of($first, 'lease_failures');
	$relay->hold('down', 'snowflake_registry.claim');
	ok(wait_for(sub { stat_of($first, 'lease_failures') > $failures }),
		'answers are held back: the lease is not renewed');
	$relay->let_go;
	wait_for_renewals($first, 2);
	is_undisturbed($client, '... but when they are not, and ids go on');

	$relay->hold('down', 'snowflake_registry.claim');
	wait_for_error($client, 'held back for good, they end the lease');
	is_refused($first, qr/^The registry does not answer in time/,
		'... and the error says why');
	$relay->let_go;
	new_ids($client);
	wait_for_ids($client, 'answers are there again, and so are ids', 10);

	# a release that comes after the server has started again
	$relay->hold('up', 'snowflake_registry.release');
	cmp_ok(seconds_of(sub { $first->stop }), '<', 3,
		'a stop does not wait for an answer to a release');
	is($relay->count_held, 1, 'a release is held back');
	$relay->hold_no_more;
	start($first);
	first_id($first);
	$client = start_client($first);
	wait_for_ids($client, 'the server is up again');
	$failures = stat_of($first, 'lease_failures');
	let_go_late($relay, 'the release comes late');
	is(lease_of($registry, 5, 'is_released'), 'f', '... and releases nothing');
	wait_for_renewals($first, 2);
	is_undisturbed($client, '... and ids go on');
	is(stat_of($first, 'lease_failures'),
		$failures, '... and so does the lease');

	# a renewal that comes after the release
	hold_request($relay, 'renew');
	$first->stop;
	my $lease = lease_of($registry, 5);
	let_go_late($relay, 'a renewal comes after the release');
	is(lease_of($registry, 5), $lease, '... and changes nothing');

	# ... and one that comes after another server has the worker id
	start($first);
	first_id($first);
	start($second);
	ok(wait_for(sub { refusal_of($second) =~ /is leased by net_first/ }),
		'the other server waits for the worker id');
	hold_request($relay, 'renew');
	$first->stop;
	first_id($second);
	my $second_client = start_client($second);
	$lease = lease_of($registry, 5);
	let_go_late($relay, 'a renewal comes after another server\'s claim');
	is(lease_of($registry, 5), $lease, '... and changes nothing');

	# and a claim
	$relay->hold('up', 'snowflake_registry.claim');
	start($first);
	ok(wait_for(sub { $relay->count_held > 0 }), 'a claim is held back');
	$relay->hold_no_more;
	$first->stop;
	let_go_late($relay, 'the claim comes after its server has gone');
	is(lease_of($registry, 5), $lease, '... and changes nothing');
	wait_for_ids($second_client, 'ids go on');

	is_undisturbed($double_client,
		'all the time, the second host has been as good as the first');
	cmp_ok(seconds_of(sub { $patient->stop }),
		'<', 3, 'a stop does not wait for a silent registry');
	my $double_worker_id = worker_id_of((ids_of($double_client))[0]);
	cmp_ok(seconds_of(sub { $double->stop }),
		'<', 3, '... nor where it is one of several hosts');
	is(holder_of($registry, $double_worker_id),
		'', '... and gives the worker id back to the other');
	is_unique(1000);
	return;
}

run_scenarios(
	{
		name => 'the registry is down, and restored',
		nodes => [
			qw(down_registry down_restored down_holder down_late down_new)],
		run => \&registry_down
	},
	{
		name => 'the registry fails over',
		nodes => [
			qw(over_registry over_standby over_known over_lost over_new over_rival
			  over_again)
		],
		run => \&failover
	},
	{
		name => 'a server is suspended',
		nodes => [qw(still_registry still_first still_second)],
		run => \&suspended
	},
	{
		name => 'clocks disagree',
		nodes => [qw(clocks_registry clocks_fast clocks_slow)],
		run => \&clocks
	},
	{
		name => 'the network holds bytes back',
		nodes => [
			qw(net_registry net_first net_second net_patient net_double)],
		run => \&network
	});
done_testing();
