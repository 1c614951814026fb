# Scenarios that have nothing in common and mostly wait: each is a process, with
# servers of its own, whose clocks can be moved, and clients in the background
# that keep every id that they receive.  Two servers with the same worker id
# that issue at the same time make duplicates at once: each begins every tick
# with sequence 0.
package SnowflakeScenario;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeClient;
use SnowflakeTest;
use SnowflakeTest qw(make_registry);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  run_scenarios
  new_server
  new_registry
  standby_of
  start
  move_clock
  start_client
  ids_of
  wait_for_ids
  is_undisturbed
  is_unique
);

# as long as a scenario may take, and how many run at the same time
use constant { PATIENCE_S => 240, AT_A_TIME => 4 };

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock_library = build_clock_library($directory);
my $template;
my $scenario;
my @clients;

# ----- scenarios as processes -----

# Runs some of them at a time: a name, the names of the servers, and a function.
# SCENARIO is a pattern of their names.
sub run_scenarios
{
	my (@scenarios) = @_;
	my $only = $ENV{SCENARIO} // '';

	template();
	@scenarios = grep { $_->{name} =~ /$only/ } @scenarios;

	# made beforehand, lest two have the same port
	for my $each (@scenarios)
	{
		my $prefix = $each->{name} =~ tr/a-z/_/cr;

		$each->{file} = "$directory/$prefix";
		$each->{cluster}{$_} =
		  PostgreSQL::Test::Cluster->new("${prefix}_$_")
		  for @{ $each->{nodes} };
	}
	my @waiting = @scenarios;
	my %running;
	while (@waiting || %running)
	{
		while (@waiting && keys %running < AT_A_TIME)
		{
			my $next = shift @waiting;
			my $pid = fork // die "fork: $!\n";

			POSIX::_exit(run_scenario($next)) if $pid == 0;
			$running{$pid} = $next;
		}
		my $ended = delete $running{ waitpid -1, 0 } or next;
		my $is_good = $? == 0;
		my $output = slurp_file($ended->{file});

		$is_good ? note($output) : diag($output);
		ok($is_good, $ended->{name});
	}
	return;
}

# In a process of its own; returns its exit status.
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

	# clients of servers that were stopped are written to no more
	local $SIG{PIPE} = 'IGNORE';
	local $SIG{ALRM} = sub { die "the scenario takes too long\n" };
	alarm PATIENCE_S;
	eval { $each->{run}->(); 1 } or fail("runs to its end: $@");
	alarm 0;
	$_->{run}->kill_kill for @clients;
	eval {
		$_->stop('immediate', fail_ok => 1) for values %{ $each->{cluster} };
		1;
	} or fail("stops: $@");
	note(sprintf '%.1f s', time - $begin);
	done_testing();
	return $builder->is_passing ? 0 : 1;
}

# ----- servers -----

# A stopped server that has the extension, to copy all others from.
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

	# two thirds of the files to copy
	$template->safe_psql('postgres', $_) for
	  'UPDATE pg_database SET datistemplate = false',
	  'DROP DATABASE template0', 'DROP DATABASE template1';
	$template->backup('base');
	$template->stop;
	return $template;
}

sub cluster
{
	my ($name) = @_;
	return $scenario->{cluster}{$name} // die "no server \"$name\"\n";
}

sub clock_file
{
	my ($node) = @_;
	return "$directory/" . $node->name . '.clock';
}

# Starts a server; its clock is so many seconds off.
sub start
{
	my ($node, $clock_s) = @_;

	move_clock($node, $clock_s // 0) if defined $clock_s || !-e clock_file($node);
	local %ENV =
	  (%ENV, preload($clock_library), CLOCK_OFFSET_FILE => clock_file($node));
	$node->start;
	return $node;
}

# Sets the clock of a server: so many seconds from the real one.
sub move_clock
{
	my ($node, $clock_s) = @_;

	SnowflakeChaos::write_clock(clock_file($node), $clock_s);
	return;
}

# A registry with these constants, started; its clock is so many seconds off.
sub new_registry
{
	my ($name, $constants, $clock_s) = @_;
	my $node = cluster($name);

	$node->init_from_backup(template(), 'base');
	start($node, $clock_s);
	make_registry($node, %$constants) if $constants;
	return $node;
}

# Its standby, started.
sub standby_of
{
	my ($primary, $name, $clock_s) = @_;
	my $node = cluster($name);

	$primary->backup($name);
	$node->init_from_backup($primary, $name, has_streaming => 1);
	return start($node, $clock_s);
}

# A server that leases, not started yet; its registry is a connection string.
# Further parameters follow and win.
sub new_server
{
	my ($name, $registry, @conf) = @_;
	my $node = cluster($name);

	$registry =~ s/'/''/g;
	$node->init_from_backup(template(), 'base');
	$node->append_conf(
		'postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			'snowflake.worker_id_source = registry',
			'snowflake.clock_tolerance = 1min',
			"snowflake.registry = '$registry'",
			"snowflake.registry_name = '$name'", @conf)
		  . "\n");
	return $node;
}

# ----- clients in the background -----

# Starts a client that draws ids, and goes on after errors.  It has the first
# ones, unless the server has none yet.
sub start_client
{
	my ($node, $is_without_ids) = @_;
	my $client = run_client($node, "$scenario->{file}.sql",
		"$scenario->{file}." . scalar @clients);

	push @clients, $client;
	wait_for_ids($client, $node->name . ' issues ids')
	  unless $is_without_ids;
	return $client;
}

# Tests that a client has got ids since the last time, and nothing else.
sub is_undisturbed
{
	my ($client, $what) = @_;
	my $count = scalar(my @ids = ids_of($client));
	my @errors = slurp_file($client->{err}) =~ /ERROR:  (\w{5}):/g;
	my $new = $count - $client->{seen};
	my $refused = @errors - $client->{refused};

	@$client{qw(seen refused)} = ($count, scalar @errors);
	return ok($new > 0 && $refused == 0,
		"$what ($new ids, $refused errors)");
}

# Tests all ids of all clients, and others.
sub is_unique
{
	my (@others) = @_;
	my (%seen, $count, %twice);

	for my $client (@clients, { name => 'others', ids => \@others })
	{
		for my $id ($client->{ids} ? @{ $client->{ids} } : ids_of($client))
		{
			$count++;
			$twice{"$client->{name} and $seen{$id}"}++ if exists $seen{$id};
			$seen{$id} = $client->{name};
		}
	}
	return is(join(', ', map { "$twice{$_} of $_" } sort keys %twice),
		'', "not one duplicate among $count ids");
}

1;
