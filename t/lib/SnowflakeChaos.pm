# What the chaos tests share: clients that keep every id that they receive,
# outside the servers, while those are killed, stopped and suspended; and what
# to say of these ids at the end.
#
# Clients are processes of their own.  Each is told what to do by a control
# file, of one line that it reads before every batch: a number that grows, an
# era (in which its ids increase), who takes part, and where.
package SnowflakeChaos;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Open3;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime time usleep CLOCK_MONOTONIC);

# how long a client waits for an answer
use constant PATIENCE_S => 120;

our @EXPORT = qw(
  PATIENCE_S
  now
  log_event
  write_clock
  write_conf
  value_of
  children_of
);

sub now
{
	return clock_gettime(CLOCK_MONOTONIC);
}

sub log_event
{
	my ($text) = @_;
	note(sprintf '%8.3f %s', time(), $text);
	return;
}

# ----- servers -----

# Sets how far a server's clock is from the real one, in seconds; see clock.c.
sub write_clock
{
	my ($file, $offset_s) = @_;
	my $bytes = pack 'q', int(1_000_000 * $offset_s);

	PostgreSQL::Test::Utils::append_to_file($file, $bytes) unless -e $file;

	# in place and at once: servers have it mapped
	open my $fh, '+<:raw', $file or die "$file: $!";
	defined syswrite $fh, $bytes or die "$file: $!";
	close $fh;
	return;
}

# Writes a file that a node's configuration includes.
sub write_conf
{
	my ($node, $name, @lines) = @_;
	my $file = $node->data_dir . "/$name";

	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh map { "$_\n" } @lines;
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

# A statement's output, or nothing if it fails.
sub value_of
{
	my ($node, $sql) = @_;
	my ($rc, $stdout) = $node->psql(
		'postgres', $sql,
		timeout => 30,
		timed_out => \my $is_late);

	return defined $rc && $rc == 0 ? $stdout : undef;
}

sub children_of
{
	my ($parent) = @_;
	my @children;

	for my $file (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $file or next;
		my $stat = <$fh> // next;
		push @children, $1 if $stat =~ /^(\d+) \(.*\) \S $parent /s;
	}
	return @children;
}

# ----- clients -----

# To be given: directory (for files), seed, and batch (a function: the
# statements of one batch of a kind of client).
sub new
{
	my ($class, %self) = @_;
	return bless {
		%self,
		main_pid => $$,
		command_number => 0,
		clients => 0,
		pids => {}                  # by number, of those not ended
	}, $class;
}

# Tells the clients of a control file what to do; returns the command's number.
sub command
{
	my ($self, $control, $era, $who, $connstr) = @_;
	my $file = "$self->{directory}/$control";

	$self->{command_number}++;
	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh join("\t", $self->{command_number}, $era, $who, $connstr // ''),
	  "\n";
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return $self->{command_number};
}

sub read_command
{
	my ($file) = @_;

	open my $fh, '<', $file or die "$file: $!";
	my $line = <$fh>;
	chomp $line;
	return split /\t/, $line, -1;
}

# What a line of psql's output means: an id, an error, or nothing.
sub entry_of
{
	my ($line) = @_;

	return $line if $line =~ /^\d+$/;
	return "! $1 $2"
	  if $line =~ /(?:ERROR|FATAL|PANIC):  (\w{5}): (.*)/
	  || $line =~ /WARNING:  (57P0\d): (.*)/;
	return "! 57P03 $1" if $line =~ /FATAL:  (the database system is .*)/;
	return "! 57P01 $1" if $line =~ /FATAL:  (terminating connection.*)/;
	return "! 08006 $line"
	  if $line =~ /server closed the connection|Connection refused/
	  || $line =~ /No such file or directory|no connection to the server/
	  || $line =~ /Connection reset|Broken pipe/;
	return ''
	  if $line =~ /^(?:DETAIL|HINT|LOCATION|CONTEXT|WARNING|[A-Z]+ NAME): /
	  || $line =~ /^\t|connection to server was lost|^$/;
	return "! ????? $line";
}

# A long-lived process that drives psql, and writes what it receives into a
# file of its own: ids, "! SQLSTATE message", "= era", and "@ time what".
sub run_client
{
	my ($self, $number, $kind, $control) = @_;
	my $directory = $self->{directory};
	my $main_pid = $self->{main_pid};
	my ($pid, $in, $out);
	my $connected_by = 0;
	my $last_era = -1;
	my $buffer = '';

	srand($self->{seed} + 1 + $number);
	open my $file, '>', "$directory/client$number" or die $!;
	$file->autoflush(0);

	my $disconnect = sub {
		return unless defined $pid;
		close $in;
		close $out;
		kill 'KILL', $pid;
		waitpid $pid, 0;
		undef $pid;
	};
	my $connect = sub {
		my ($connstr) = @_;
		$pid = open3($in, $out, undef, 'psql', '-XAtq', '-d', $connstr);
		$buffer = '';
		syswrite $in, "\\set VERBOSITY verbose\n";
		printf $file "@ %.3f connect %s\n", time(), $connstr =~ s/\s+/ /gr;
	};

	# Reads up to the end of the batch; false if psql has ended.
	my $receive = sub {
		my $until = now() + PATIENCE_S;
		for (;;)
		{
			while ($buffer =~ s/^(.*)\n//)
			{
				my $line = $1;
				return 1 if $line eq '(end)';
				my $entry = entry_of($line);
				print $file "$entry\n" if $entry ne '';
			}
			my $ready = '';
			vec($ready, fileno($out), 1) = 1;
			if (select($ready, undef, undef, 0.5) > 0)
			{
				# a line that was cut off is no id
				return 0
				  unless sysread $out, $buffer, 65536, length $buffer;
			}
			elsif (now() > $until)
			{
				print $file "! ????? no answer\n";
				return 0;
			}
			return 0 if getppid() != $main_pid;
		}
	};

	while (getppid() == $main_pid)
	{
		my ($command, $new_era, $who, $connstr) =
		  read_command("$directory/$control");

		last if $who eq 'none';
		if ($who ne 'all' && $who ne $kind)
		{
			$disconnect->();
			$file->flush;
			PostgreSQL::Test::Utils::append_to_file(
				"$directory/paused.$number.$command", '')
			  unless -e "$directory/paused.$number.$command";
			usleep(5_000);
			next;
		}

		$disconnect->() if $connected_by ne $connstr;
		if ($new_era != $last_era)
		{
			print $file "= $new_era\n";
			$last_era = $new_era;
		}
		if (!defined $pid)
		{
			$connect->($connstr);
			$connected_by = $connstr;
		}
		printf $file "@ %.3f\n", time();
		syswrite $in, $self->{batch}->($kind) . "\\echo (end)\n";
		my $is_alive = $receive->();
		$disconnect->() unless $is_alive;
		$file->flush;
		usleep($is_alive ? rand 40_000 : 50_000);
	}
	$disconnect->();
	close $file or die $!;
	return;
}

# Starts a client; returns its number.
sub start_client
{
	my ($self, $kind, $control) = @_;
	my $number = $self->{clients}++;
	my $log = "$self->{directory}/client.log";
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		$SIG{PIPE} = 'IGNORE';
		$SIG{TERM} = $SIG{INT} = 'DEFAULT';
		open STDOUT, '>>', $log;
		open STDERR, '>>', $log;
		my $is_done =
		  eval { $self->run_client($number, $kind, $control); 1 };
		print STDERR "client $number: $@\n" unless $is_done;
		STDERR->flush;
		POSIX::_exit($is_done ? 0 : 1);
	}
	$self->{pids}{$number} = $pid;
	return $number;
}

# Waits for clients that have been told to end; returns how many ended with an
# error.
sub wait_for_clients
{
	my ($self, @numbers) = @_;
	my $errors = 0;

	for my $pid (delete @{ $self->{pids} }{@numbers})
	{
		waitpid $pid, 0;
		$errors++ if $? != 0;
	}
	return $errors;
}

# Dies if a client has ended that was not told to.
sub check_clients
{
	my ($self) = @_;

	for my $pid (values %{ $self->{pids} })
	{
		next if waitpid($pid, POSIX::WNOHANG()) == 0;
		die 'a client has ended: '
		  . PostgreSQL::Test::Utils::slurp_file(
			"$self->{directory}/client.log");
	}
	return;
}

# For END, also when the test ends in the middle.
sub kill_clients
{
	my ($self) = @_;
	my @pids = values %{ $self->{pids} };

	return if $$ != $self->{main_pid};
	kill 'KILL', @pids if @pids;
	waitpid $_, 0 for @pids;
	$self->{pids} = {};
	return;
}

# Do these clients get ids?  "tend" is called meanwhile.
sub get_ids
{
	my ($self, $tend, @numbers) = @_;
	my @files = map { "$self->{directory}/client$_" } @numbers;
	my %position = map { $_ => -s $_ } @files;
	my $until = now() + 60;

	while (keys %position)
	{
		return 0 if now() > $until;
		$tend->();
		usleep(50_000);
		for my $file (keys %position)
		{
			my $text = PostgreSQL::Test::Utils::slurp_file($file,
				$position{$file});
			delete $position{$file} if $text =~ /^\d+\n/m;
		}
	}
	return 1;
}

# ----- what clients have received -----

# Reads one client's file: counts, and what is wrong.  The errors that may come
# are by SQLSTATE, with what they have to say.
sub examine
{
	my ($self, $number, $total, $allowed_errors) = @_;
	my $directory = $self->{directory};
	my ($newest, $batch) = (0, '');

	open my $fh, '<', "$directory/client$number" or die $!;
	open my $ids, '>', "$directory/ids$number" or die $!;
	while (my $line = <$fh>)
	{
		chomp $line;
		if ($line =~ /^\d+$/)
		{
			print $ids "$line $number\n";
			$total->{ids}++;
			if ($line <= $newest)
			{
				diag("client $number, $batch: $line after $newest")
				  if $total->{disorder}++ < 10;
			}
			$newest = $line;
		}
		elsif ($line =~ /^! (\S+) (.*)/)
		{
			$total->{errors}{$1}++;
			my $pattern = $allowed_errors->{$1};
			if (!defined $pattern || $2 !~ $pattern)
			{
				diag("client $number, $batch: $line")
				  if $total->{wrong_errors}++ < 10;
			}
		}
		elsif ($line =~ /^=/)
		{
			$newest = 0;
		}
		else
		{
			$batch = $line;
		}
	}
	close $ids or die $!;
	return;
}

# Calls a function with each id and the number of the client that received it,
# in the order of ids.  Sorts on disk, for the memory's sake.
sub each_id
{
	my ($self, $what) = @_;
	my $directory = $self->{directory};

	local $ENV{LC_ALL} = 'C';
	open my $sorted, '-|', 'sort', '-n', '-S', '64M', '-T', $directory,
	  glob("$directory/ids*")
	  or die "sort: $!";
	while (my $line = <$sorted>)
	{
		$what->(split ' ', $line);
	}
	close $sorted or die "sort: $?";
	return;
}

# How many ids came more than once; the first of them are told about, with the
# numbers of the clients.
sub count_duplicates
{
	my ($self, $tell) = @_;
	my ($previous, $client) = (-1, '');
	my $duplicates = 0;

	$self->each_id(
		sub {
			my ($id, $number) = @_;

			$tell->($id, $client, $number)
			  if $id == $previous && $duplicates++ < 10;
			($previous, $client) = ($id, $number);
		});
	return $duplicates;
}

1;
