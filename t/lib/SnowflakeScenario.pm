# Runs several scenarios at the same time, because a scenario mostly waits.
# Each scenario is a process with servers of its own, whose clocks are slow and
# can be set, and with clients that draw ids in the background and keep them.  Two servers
# that issue ids of one worker id at the same time make duplicates at once,
# because both begin every tick with sequence 0.
package SnowflakeScenario;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRegistry;
use SnowflakeServer;
use SnowflakeServer qw(clock_library);
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

our @EXPORT = qw(
  run_scenarios
  at_end
  new_server
  new_registry
  new_standby
  leasing_server
  new_client
  ids_of
  gets_ids
  gets_errors
  is_undisturbed
  is_unique
);

use constant {
	TIMEOUT_S => 3600,          # ends a scenario that hangs, on any machine
	AT_A_TIME => 4              # how many scenarios run at the same time
};

my $directory = PostgreSQL::Test::Utils::tempdir();
my $template;
my $scenario;                   # the prefix of all names in this process
my (@clients, @at_end);

# ----- scenarios as processes -----

# Runs scenarios, each given as its name and a function.  If the environment
# variable SCENARIO is set, only scenarios run whose names match that pattern.
sub run_scenarios
{
	my (@scenarios) = @_;
	my $only = $ENV{SCENARIO} // '';
	my %running;

	# Make what all scenarios share before any of their processes begins.
	template();
	clock_library();
	while (@scenarios || %running)
	{
		while (@scenarios && keys %running < AT_A_TIME)
		{
			my ($name, $function) = splice @scenarios, 0, 2;

			next if $name !~ /$only/;
			my $pid = fork // die "fork: $!\n";
			POSIX::_exit(run_scenario($name, $function)) if $pid == 0;
			$running{$pid} = $name;
		}
		my $name = delete $running{ waitpid -1, 0 } // next;
		my $is_good = $? == 0;
		my $output = slurp_file(output_of($name));

		$is_good ? note($output) : diag($output);
		ok($is_good, $name);
	}
	return;
}

sub output_of
{
	my ($name) = @_;
	return "$directory/" . $name =~ tr/a-z0-9/_/cr;
}

# Runs a scenario, in a process of its own.  Returns the exit status.
sub run_scenario
{
	my ($name, $function) = @_;
	my $builder = Test::More->builder;
	my $begin = test_time();

	$scenario = $name =~ tr/a-z0-9/_/cr;
	open my $output, '>', output_of($name) or die output_of($name) . ": $!\n";
	$output->autoflush(1);
	$builder->reset;
	$builder->$_($output) for qw(output failure_output todo_output);

	# A write to the client of a stopped server raises SIGPIPE.
	local $SIG{PIPE} = 'IGNORE';
	local $SIG{ALRM} = sub { die "the scenario takes too long\n" };
	alarm TIMEOUT_S;
	eval { slow_down(); $function->(); 1 } or fail("the scenario died: $@");
	alarm 0;
	eval {
		$_->{run}->kill_kill for @clients;
		for my $node (grep { $_ != $template } @PostgreSQL::Test::Cluster::all_nodes)
		{
			resume($node);
			$node->stop('immediate', fail_ok => 1);
			$node->clean_node if $builder->is_passing;
		}
		$_->() for @at_end;
		1;
	} or fail("the servers do not stop: $@");
	note(sprintf '%.1f s of the servers\' time', test_time() - $begin);
	done_testing();
	return $builder->is_passing ? 0 : 1;
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
max_connections = 30
max_wal_size = 32MB
min_wal_size = 2MB
});
	$template->start;
	$template->safe_psql('postgres', 'CREATE EXTENSION snowflake');

	# Two thirds of the files belong to these databases.  Without them a copy
	# takes less time.  template1 is empty, and stays for CREATE DATABASE.
	$template->safe_psql('postgres', $_)
	  for 'ALTER DATABASE template0 IS_TEMPLATE false', 'DROP DATABASE template0';
	$template->stop;
	return $template;
}

# A server of this scenario, not started yet.
sub new_server
{
	my ($name) = @_;
	return copy_of(template(), "${scenario}_$name");
}

# A registry, started, with these constants.  Its clock is so many seconds ahead
# of test_time().
sub new_registry
{
	my ($constants, $clock_s) = @_;
	my $node = start_server(new_server('registry'), $clock_s);

	make_registry($node, %$constants);
	return $node;
}

# A standby of a server, started.  Its clock is so many seconds ahead of
# test_time().
sub new_standby
{
	my ($primary, $name, $clock_s) = @_;
	return start_server(standby_node($primary, "${scenario}_$name"), $clock_s);
}

# A server, not started yet, that leases any worker id from a registry, which
# is given as a server or as a connection string.  Further lines of
# postgresql.conf follow, and override the first ones.
sub leasing_server
{
	my ($name, $registry, @conf) = @_;
	my $node = new_server($name);

	$node->append_conf(
		'postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			lease_conf($registry),
			'snowflake.clock_tolerance = 1min',
			"snowflake.server_name = '$name'", @conf)
		  . "\n");
	return $node;
}

# ----- clients in the background -----

# Writes statements for a client, fifty a second.  The client does not call
# pg_sleep(), which lasts longer after the server's clock has stepped back.
my $feeder = q{
	$| = 1;
	while (print "SELECT snowflake_nextval() FROM generate_series(1, 10);\n")
	{
		select undef, undef, undef, 0.02;
	}
};

# Starts a client of a server, which goes on after errors.  Tests that the
# client gets ids, unless the second argument says that the server issues none.
sub new_client
{
	my ($node, $is_without_ids) = @_;
	my $file = "$directory/$scenario." . scalar @clients;
	my $client = { name => $node->name, out => "$file.out", err => "$file.err", seen => { out => 0, err => 0 } };

	$client->{run} = IPC::Run::start(
		[ $^X, '-e', $feeder ],
		'|',
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr('postgres') ],
		'>', $client->{out}, '2>', $client->{err});
	push @clients, $client;
	gets_ids($client, $node->name . ' issues ids') unless $is_without_ids;
	return $client;
}

# All ids that a client has received; the last line may not be complete.
sub ids_of
{
	my ($client) = @_;
	return slurp_file($client->{out}) =~ /^(\d+)\n/gm;
}

# The lines that a client has written to one of its files since this was last
# called, without the last one while it is not complete.
sub new_lines
{
	my ($client, $file) = @_;
	my ($lines) = slurp_file($client->{$file}, $client->{seen}{$file}) =~ /^(.*\n)/s;

	$client->{seen}{$file} += length($lines //= '');
	return $lines;
}

# How many ids a client has received since news_of() was last called, and the
# SQLSTATEs of its errors.
sub news_of
{
	my ($client) = @_;
	my $ids = () = new_lines($client, 'out') =~ /^\d+$/gm;

	return ($ids, new_lines($client, 'err') =~ /ERROR:  (\w{5}):/g);
}

# Tests that a client receives ids from now on.
sub gets_ids
{
	my ($client, $what, $seconds) = @_;

	news_of($client);
	ok(wait_for(sub { (news_of($client))[0] > 0 }, $seconds), $what);
	news_of($client);
	return;
}

# Tests that a client receives an error from now on.
sub gets_errors
{
	my ($client, $what) = @_;

	news_of($client);
	return ok(wait_for(sub { my ($count, @errors) = news_of($client); return scalar @errors }), $what);
}

# Tests that a client has received ids, and no errors, since the last call of this
# function or of a gets_...() for this client.
sub is_undisturbed
{
	my ($client, $what) = @_;
	my ($count, @errors) = news_of($client);

	return ok($count > 0 && @errors == 0, "$what ($count ids, " . @errors . ' errors)');
}

# Tests that no id came twice among the ids of all clients and some others.
sub is_unique
{
	my (@others) = @_;
	my (%seen, %twice);

	for my $client (@clients, { name => 'others' })
	{
		for my $id ($client->{out} ? ids_of($client) : @others)
		{
			$twice{"$client->{name} and $seen{$id}"}++ if exists $seen{$id};
			$seen{$id} = $client->{name};
		}
	}
	cmp_ok(scalar keys %seen, '>', 100, 'the clients have received many ids');
	return is(join(', ', map { "$twice{$_} of $_" } sort keys %twice),
		'', 'no id came twice');
}

1;
