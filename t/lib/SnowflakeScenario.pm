# Runs several scenarios at the same time, because a scenario mostly waits.
# Each scenario is a process with servers of its own, whose clocks can be set,
# and with clients in the background that keep every id that they receive.  Two
# servers that issue ids of one worker id at the same time make duplicates at
# once, because both begin every tick with sequence 0.
#
# Leases run out while the machine stands still, as a virtual machine does when
# its host suspends it.  So a scenario runs a second time if the machine stood
# still meanwhile, and the only checks that failed are those of clients that a
# lease must not disturb.  Any other check that fails, such as one that finds an
# id twice, fails the test at once.
package SnowflakeScenario;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeServer qw(clock_library replace_file);
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  run_scenarios
  at_end
  server_named
  leasing_server
  new_registry
  new_standby
  new_client
  is_unique
);

use constant {
	TIMEOUT_S => 240,           # how long a scenario may take
	AT_A_TIME => 4,             # how many scenarios run at the same time
	STALL_S => 1,               # the machine stood still if it is this late
	DISTURBED => 1,             # exit status: only clients were disturbed
	FAILED => 2                 # exit status: another check has failed
};

my $directory = PostgreSQL::Test::Utils::tempdir();
my $template;
my $scenario;
my @clients;
my @at_end;
my $stalled_at = 0;             # when the machine last stood still

# ----- scenarios as processes -----

# Runs scenarios, each with a name, the names of its servers, and a function.
# If the environment variable SCENARIO is set, only scenarios run whose names
# match that pattern.
sub run_scenarios
{
	my (@scenarios) = @_;
	my $only = $ENV{SCENARIO} // '';

	# Make what all scenarios share before any of their processes begins.
	template();
	clock_library();
	@scenarios = grep { $_->{name} =~ /$only/ } @scenarios;

	prepare($_, 1) for @scenarios;
	my @waiting = @scenarios;
	my %running;
	while (@waiting || %running)
	{
		while (@waiting && keys %running < AT_A_TIME)
		{
			my $next = shift @waiting;

			$next->{began_at} = time;
			my $pid = fork // die "fork: $!\n";

			POSIX::_exit(run_scenario($next)) if $pid == 0;
			$running{$pid} = $next;
		}
		my ($pid, $status) = wait_for_one();
		my $ended = delete $running{$pid} or next;
		my $is_good = $status == 0;
		my $output = slurp_file($ended->{file});

		if (   $status == DISTURBED << 8
			&& $ended->{attempt} == 1
			&& $stalled_at > $ended->{began_at})
		{
			diag($output . "$ended->{name} runs again: the machine stood still\n");
			prepare($ended, 2);
			unshift @waiting, $ended;
			next;
		}
		$is_good ? note($output) : diag($output);
		ok($is_good, $ended->{name});
	}
	return;
}

# Makes the servers for an attempt to run a scenario.  The first process makes
# them, so that no two servers have the same port.
sub prepare
{
	my ($each, $attempt) = @_;
	my $prefix = $each->{name} =~ tr/a-z/_/cr;

	$prefix .= "_$attempt" if $attempt > 1;
	$each->{attempt} = $attempt;
	$each->{file} = "$directory/$prefix";
	$each->{servers}{$_} = PostgreSQL::Test::Cluster->new("${prefix}_$_")
	  for @{ $each->{nodes} };
	return;
}

# Waits until a scenario has ended.  Returns the scenario's process and its wait
# status.  Notes when the machine stood still: this loop then
# continues late after its sleep or its write to the disk, or the clock steps.
sub wait_for_one
{
	my $at = time;

	for (;;)
	{
		my $pid = waitpid -1, POSIX::WNOHANG();

		return ($pid, $?) if $pid != 0;
		sleep 0.1;
		replace_file("$directory/alive", $at);
		my $late_s = time - $at - 0.1;
		$at = time;
		next if abs $late_s < STALL_S;
		diag(sprintf 'the machine stood still for %.1f s', $late_s);
		$stalled_at = $at;
	}
}

# Runs a scenario, in a process of its own.  Returns the exit status.
sub run_scenario
{
	my ($each) = @_;
	my $builder = Test::More->builder;
	my $begin = time;

	$scenario = $each;
	open my $output, '>', $each->{file} or die "$each->{file}: $!\n";
	$output->autoflush(1);
	$builder->reset;
	$builder->output($output);
	$builder->failure_output($output);
	$builder->todo_output($output);

	# A write to the client of a stopped server raises SIGPIPE.
	local $SIG{PIPE} = 'IGNORE';
	local $SIG{ALRM} = sub { die "the scenario takes too long\n" };
	alarm TIMEOUT_S;
	eval { $each->{run}->(); 1 } or fail("the scenario died: $@");
	alarm 0;
	$_->{run}->kill_kill for @clients;
	eval {
		resume($_) for values %{ $each->{servers} };
		$_->stop('immediate', fail_ok => 1) for values %{ $each->{servers} };
		$_->() for @at_end;
		1;
	} or fail("the servers do not stop: $@");
	note(sprintf '%.1f s', time - $begin);
	done_testing();
	return 0 if $builder->is_passing;
	return disturbances() == grep({ !$_ } $builder->summary)
	  ? DISTURBED
	  : FAILED;
}

# Has a function called at the end of the scenario, whatever its outcome.
sub at_end
{
	my ($function) = @_;

	push @at_end, $function;
	return;
}

# ----- servers -----

# A stopped server that has the extension.  All other servers are copies of it.
sub template
{
	return $template if defined $template;

	$template = PostgreSQL::Test::Cluster->new('template');
	$template->init(allows_streaming => 1, extra => ['--wal-segsize=1']);
	$template->append_conf(
		'postgresql.conf', q{
autovacuum = off
log_statement = none
max_wal_size = 32MB
min_wal_size = 2MB
});
	$template->start;
	$template->safe_psql('postgres', 'CREATE EXTENSION snowflake');

	# Two thirds of the files belong to these databases.  Without them a copy
	# takes less time.
	$template->safe_psql('postgres', $_) for
	  'UPDATE pg_database SET datistemplate = false',
	  'DROP DATABASE template0', 'DROP DATABASE template1';
	$template->backup('base');
	$template->stop;
	return $template;
}

# The server of this scenario that has a name.
sub server_named
{
	my ($name) = @_;
	return $scenario->{servers}{$name} // die "no server \"$name\"\n";
}

# A registry, started, with these constants; without constants, a server that is
# to become a registry.  Its clock is so many seconds ahead of the real one.
sub new_registry
{
	my ($name, $constants, $clock_s) = @_;
	my $node = server_named($name);

	$node->init_from_backup(template(), 'base');
	start_server($node, $clock_s);
	make_registry($node, %$constants) if $constants;
	return $node;
}

# A standby of a server, started.  Its clock is so many seconds ahead of the
# real one.
sub new_standby
{
	my ($primary, $name, $clock_s) = @_;
	my $node = server_named($name);

	$primary->backup($name);
	$node->init_from_backup($primary, $name, has_streaming => 1);
	return start_server($node, $clock_s);
}

# A server, not started yet, that leases any worker id from a registry, which
# is given as a server or as a connection string.  Further lines of
# postgresql.conf follow, and override the first ones.
sub leasing_server
{
	my ($name, $registry, @conf) = @_;
	my $node = server_named($name);

	$registry = $registry->connstr('postgres') if ref $registry;
	$registry =~ s/'/''/g;
	$node->init_from_backup(template(), 'base');
	$node->append_conf(
		'postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			'snowflake.worker_id_source = registry',
			'snowflake.clock_tolerance = 1min',
			"snowflake.registry = '$registry'",
			"snowflake.server_name = '$name'", @conf)
		  . "\n");
	return $node;
}

# ----- clients in the background -----

# Starts a client that draws ids, and goes on after errors.  Tests that the
# client gets ids, unless the second argument says that the server issues none
# yet.  Errors before the first id do not count as disturbances: a server issues
# no ids in the tenth of a second until its lease is granted.
sub new_client
{
	my ($node, $is_without_ids) = @_;
	my $client = run_client($node, "$scenario->{file}." . scalar @clients);

	push @clients, $client;
	unless ($is_without_ids)
	{
		wait_for_ids($client, $node->name . ' issues ids');
		new_errors($client);
	}
	return $client;
}

# Tests that no id came twice among the ids of all clients and those of the
# parameter others.  With the parameter at_least, also tests that there are
# more ids than its value.
sub is_unique
{
	my (%of) = @_;
	my (%seen, %twice);
	my $count = 0;

	for my $client (@clients, { name => 'others', ids => $of{others} // [] })
	{
		for my $id ($client->{ids} ? @{ $client->{ids} } : ids_of($client))
		{
			$count++;
			$twice{"$client->{name} and $seen{$id}"}++ if exists $seen{$id};
			$seen{$id} = $client->{name};
		}
	}
	cmp_ok($count, '>', $of{at_least}, 'the clients have received many ids')
	  if defined $of{at_least};
	return is(join(', ', map { "$twice{$_} of $_" } sort keys %twice),
		'', "not one duplicate among $count ids");
}

1;
