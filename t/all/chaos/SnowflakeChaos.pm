# Clients that keep every id that they receive, outside the servers, while
# servers are killed, stopped and suspended.
#
# Each client is a process, which drives a psql.  Before each batch of
# statements it reads a control file, which says which server to connect to.
# After each batch it writes a line to a file of its own: the life of the server
# that its connection was to, when the batch was sent, when the answer was
# received, and the ids.
#
# A life is the time of a server between two crashes or stops.  The test gives
# it a number, and writes it into the server's configuration as chaos.life.
package SnowflakeChaos;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Utils;
use SnowflakeFaults;
use SnowflakeServer qw(replace_file);
use SnowflakeTime qw(wait_for);
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  start_clients
  draw_from
  end_clients
  check_clients
  get_ids
  clients_of
  next_batch
  count_finding
  has_no_findings
);

# How many seconds a client waits for an answer.
use constant TIMEOUT_S => 120;

# How many findings of one kind are described.
use constant MOST_DESCRIBED => 10;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $main_pid = $$;
my @clients;                    # each with its pid, control file and own file
my %findings;                   # how many, by kind
my %errors;                     # how many, by their text

# What clients see of a server that starts, ends or crashes.
my $is_down = qr/(?:FATAL|WARNING): +(?:57P0\d: )?(?:the database system is|terminating connection)|server closed the connection|Connection refused|No such file or directory|no connection to the server|Connection reset|Broken pipe|connection to server was lost/;

# Kills the clients even if the test dies.
END
{
	my $status = $?;

	if ($$ == $main_pid)
	{
		my @pids = grep { defined } map { $_->{pid} } @clients;

		kill 'KILL', @pids;
		waitpid $_, 0 for @pids;
	}
	$? = $status;
}

# ----- a client's process -----

sub connect_to
{
	my ($connstr) = @_;
	my $psql = { connstr => $connstr, in => '', out => '', timeout => IPC::Run::timeout(TIMEOUT_S) };

	$psql->{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $connstr ],
		'<', \$psql->{in}, '>', \$psql->{out}, '2>&1', $psql->{timeout});
	my (@lines) = ask($psql,
		"\\set VERBOSITY verbose\nSELECT 'life ' || coalesce(current_setting('chaos.life', true), '0');\n");
	($psql->{life}) = map { /^life (\d+)$/ } @lines;
	return ($psql, grep { !/^life/ } @lines);
}

sub disconnect
{
	my ($psql) = @_;

	$psql->{run}->signal('KILL');
	eval { $psql->{run}->finish };
	return;
}

# Sends statements, and returns the lines of the answer.  Notes if psql has
# ended.
sub ask
{
	my ($psql, $statements) = @_;

	$psql->{out} = '';
	$psql->{in} .= "$statements\\echo (end)\n";
	$psql->{timeout}->start;
	$psql->{is_over} = !eval { $psql->{run}->pump until $psql->{out} =~ /^\(end\)\n/m; 1 };
	my @no_answer = $psql->{is_over} && $@ =~ /timeout/ ? 'no answer' : ();

	# A line that was cut off is no id.
	return (@no_answer, grep { $_ ne '(end)' } $psql->{out} =~ /^(.*)\n/mg);
}

# Draws ids until the control file says "end".  "batch" is a function of the
# server's life and the present time, which returns the statements of a batch.
sub run_client
{
	my ($name, $control, $batch) = @_;
	my $psql;

	open my $file, '>', $name or die "$name: $!";
	while (getppid() == $main_pid)
	{
		my $connstr = PostgreSQL::Test::Utils::slurp_file($control) =~ s/\n//r;
		my ($sent_at, @lines);

		last if $connstr eq 'end';
		if (defined $psql && ($psql->{is_over} || $psql->{connstr} ne $connstr))
		{
			disconnect($psql);
			undef $psql;
		}
		($psql, @lines) = connect_to($connstr) unless defined $psql;
		if (defined $psql->{life})
		{
			$sent_at = now();
			push @lines, ask($psql, $batch->($psql->{life}, $sent_at));
		}
		print $file "! $_\n"
		  for grep { !/^(?:\d*$|\t|DETAIL:|HINT:|LOCATION:|CONTEXT:|SCHEMA NAME:|TABLE NAME:|CONSTRAINT NAME:)/ } @lines;
		printf $file "%d %.6f %.6f%s\n", $psql->{life}, $sent_at, now(),
		  join '', map { " $_" } grep { /^\d+$/ } @lines
		  if defined $psql->{life};
		$file->flush;
		usleep($psql->{is_over} ? 50_000 : rand 40_000);
	}
	disconnect($psql) if defined $psql;
	close $file or die $!;
	return;
}

# ----- clients, as the test sees them -----

# Has the clients that obey a control file draw ids from a server.
sub draw_from
{
	my ($control, $node) = @_;

	replace_file("$directory/$control", $node->connstr('postgres'));
	return;
}

# Starts clients that obey a control file, one for each of these functions.
sub start_clients
{
	my ($control, $node, @batches) = @_;

	draw_from($control, $node);
	for my $batch (@batches)
	{
		my $name = "$directory/client" . @clients;
		my $seed = int rand 2**31;
		my $pid = fork // die "fork: $!";

		if ($pid == 0)
		{
			$SIG{PIPE} = 'IGNORE';
			$SIG{TERM} = $SIG{INT} = 'DEFAULT';
			srand $seed;
			my $is_done = eval { run_client($name, "$directory/$control", $batch); 1 };
			print STDERR "client: $@\n" unless $is_done;
			STDERR->flush;
			POSIX::_exit($is_done ? 0 : 1);
		}
		push @clients, { pid => $pid, control => $control, name => $name };
	}
	return;
}

# Returns the clients that obey a control file.
sub clients_of
{
	my ($control) = @_;
	return grep { $_->{control} eq $control } @clients;
}

# Ends the clients that obey a control file.
sub end_clients
{
	my ($control) = @_;

	replace_file("$directory/$control", 'end');
	for my $client (clients_of($control))
	{
		waitpid delete $client->{pid}, 0;
		count_finding('client that failed', $client->{name}) if $? != 0;
	}
	return;
}

# Dies if a client has ended without being told to.
sub check_clients
{
	for my $client (grep { defined $_->{pid} } @clients)
	{
		die "$client->{name} has ended\n"
		  if waitpid($client->{pid}, POSIX::WNOHANG()) != 0;
	}
	return;
}

# Waits until all clients that obey these control files get ids, and calls
# tend() meanwhile.  Returns false if that takes more than so many seconds, as
# wait_for() counts them.
sub get_ids
{
	my ($seconds, @controls) = @_;
	my %position =
	  map { $_->{name} => -s $_->{name} // 0 } map { clients_of($_) } @controls;

	return wait_for(
		sub {
			tend();
			for my $name (keys %position)
			{
				delete $position{$name}
				  if -e $name
				  && PostgreSQL::Test::Utils::slurp_file($name, $position{$name}) =~
				  /^\d+ \S+ \S+ \d/m;
			}
			return !keys %position;
		},
		$seconds);
}

# ----- what clients have received -----

# Returns the next batch of a client that has ended, or nothing after the last
# one.
sub next_batch
{
	my ($client) = @_;

	open $client->{reader}, '<', $client->{name} or die "$client->{name}: $!"
	  unless defined $client->{reader};
	while (defined(my $line = readline $client->{reader}))
	{
		chomp $line;
		if ($line =~ s/^! //)
		{
			$errors{$line}++;
			next;
		}
		my %batch;

		(@batch{qw(life sent_at received_at)}, @{ $batch{ids} }) =
		  split / /, $line;
		return \%batch;
	}
	return;
}

# Counts something that is wrong, and describes the first findings of a kind.
sub count_finding
{
	my ($kind, $description) = @_;

	diag("$kind: $description") if $findings{$kind}++ < MOST_DESCRIBED;
	return;
}

# Tests that there are no findings.  One kind of finding is an error that a client
# received, unless the server was down or the error matches a pattern.
sub has_no_findings
{
	my ($allowed, $what) = @_;

	for my $error (sort keys %errors)
	{
		count_finding('error that clients must not see', "$errors{$error} times $error")
		  if $error !~ $is_down && $error !~ $allowed;
	}
	return is_deeply(\%findings, {}, $what);
}

1;
