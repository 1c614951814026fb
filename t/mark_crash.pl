# Backends are killed and servers are stopped at once, under load.  The server
# issues ids again, and no id of a row comes again.  Clients keep the ids of their
# rows in files, outside the server, when the rows are committed: an id without
# a committed row may come again while ids lead the clock.
#
# also with: snowflake.block_size = 64
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(usleep);

my $clients = 8;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $script = "$directory/script.sql";
PostgreSQL::Test::Utils::append_to_file($script,
	join '', ("INSERT INTO taken SELECT snowflake_nextval() RETURNING id;\n"
		  . "INSERT INTO taken SELECT snowflake_nextvals(5) RETURNING id;\n") x 100_000);

# Starts the clients; each writes into a file of its own.
sub start_clients
{
	my ($node, $files) = @_;
	my @runs;

	for (1 .. $clients)
	{
		my $file = "$directory/" . scalar(@$files) . '.ids';
		push @$files, $file;
		push @runs,
		  IPC::Run::start(
			[
				'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $script,
				$node->connstr('postgres')
			],
			'<', \undef, '>', $file, '2>', "$file.err");
	}
	return @runs;
}

# Waits until each client has received some ids.
sub wait_for_output
{
	my (@files) = @_;
	for my $file (@files)
	{
		for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
		{
			last if -f $file && -s $file > 10_000;
			usleep(10_000);
		}
	}
	return;
}

# Tests all ids that clients have received.  The files are in the order in
# which their clients were started.
sub check_ids
{
	my ($files, $rounds, $what) = @_;
	my (%seen, $repeated, $out_of_order);
	my $largest_before = 0;
	my $too_small = 0;
	my $count = 0;

	$repeated = $out_of_order = 0;
	for my $round (0 .. $rounds - 1)
	{
		my $largest = $largest_before;
		for my $file (@$files[ $round * $clients .. ($round + 1) * $clients - 1 ])
		{
			my $previous = 0;
			open my $fh, '<', $file or die "$file: $!";
			while (my $id = <$fh>)
			{
				# The last line may have been cut off.
				next unless $id =~ /^(\d+)\n\z/;
				$id = $1 + 0;
				$count++;
				$repeated++ if $seen{$id}++;
				$out_of_order++ if $id <= $previous;
				$too_small++ if $id <= $largest_before;
				$previous = $id;
				$largest = $id if $id > $largest;
			}
			close $fh;
		}
		$largest_before = $largest;
	}
	note "$what: $count ids";
	cmp_ok($count, '>', $rounds * $clients * 100, "$what: clients got ids");
	is($repeated, 0, "$what: no id came twice");
	is($out_of_order, 0, "$what: each client's ids increase");
	is($too_small, 0, "$what: ids increase across the crashes");
	return;
}

# Kills a backend, or stops the server at once, again and again under load.
sub crash_repeatedly
{
	my ($node, $what, $crash) = @_;
	my $rounds = 3;
	my @files;

	for my $round (1 .. $rounds)
	{
		my $first = @files;
		my @runs = start_clients($node, \@files);
		wait_for_output(@files[ $first .. $#files ]);
		$crash->();
		$_->finish for @runs;
		ok(scalar first_id($node), "$what $round: the server issues ids again");
	}
	check_ids(\@files, $rounds, $what);
	return;
}

# Kills a client's backend by SIGKILL.  The postmaster then ends all other
# backends and makes its shared memory anew.
sub kill_a_backend
{
	my ($node) = @_;
	my $pid = $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE query ~ 'snowflake_nextval' AND pid <> pg_backend_pid() LIMIT 1");
	die "no client is connected" if $pid eq '';
	my $offset = -s $node->logfile;

	is(kill('KILL', $pid), 1, "killed backend $pid");
	$node->wait_for_log(qr/all server processes terminated; reinitializing/,
		$offset);
	return;
}

sub stop_at_once
{
	my ($node) = @_;
	$node->stop('immediate');
	$node->start;
	return;
}

# With ticks of a second, the server is back within the tick in which it
# crashed.  With clock_policy = advance, the newest ids are ahead of the clock
# as well.
my %settings = (
	default_layout => [],
	second_ticks => ["snowflake.layout = '31/5/5/22\@1s'"],
	leading => [
		"snowflake.layout = '41/5/5/3'",
		"snowflake.clock_policy = advance",
		"snowflake.clock_tolerance = 2s"
	]);
for my $name (sort keys %settings)
{
	my $node = snowflake_node($name, 'restart_after_crash = on', 'fsync = off',
		@{ $settings{$name} });

	$node->start;
	$node->safe_psql('postgres',
		'CREATE EXTENSION snowflake; CREATE TABLE taken (id bigint)');
	crash_repeatedly($node, "$name: SIGKILL", sub { kill_a_backend($node) });
	crash_repeatedly($node, "$name: immediate stop",
		sub { stop_at_once($node) });
	$node->stop;
}

done_testing();
