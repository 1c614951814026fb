# Clients that keep every id that they receive, outside the servers, while
# servers are killed, stopped and suspended.  What these ids say at the end is
# in SnowflakeLedger.
#
# Clients are processes of their own.  A control file tells each client what to
# do.  The file has one line, which the client reads before every batch: the
# number of the command, the stage (see SnowflakeLedger), which clients draw
# ids, and the connection string of the server that they draw ids from.
package SnowflakeChaos;

use strict;
use warnings FATAL => 'all';

use IPC::Open3;
use POSIX ();
use PostgreSQL::Test::Utils;
use SnowflakeFaults;
use Time::HiRes qw(time usleep);

my @chaos;

# Kills the clients even if the test dies.
END
{
	my $status = $?;

	$_->kill_clients for @chaos;
	$? = $status;
}

# Returns the clients of a run, none of which is started yet.  Parameters are
# the directory for their files, the seed of their random numbers, and "batch",
# a function of a client's kind, the stage and the client's number that returns
# the statements of one batch.
sub new
{
	my ($class, %self) = @_;
	my $chaos = bless {
		%self,
		main_pid => $$,
		command_number => 0,
		clients => 0,
		kinds => {},                # by number
		pids => {}                  # by number, of clients that still run
	}, $class;

	push @chaos, $chaos;
	return $chaos;
}

# Writes a command for the clients that obey a control file.  Returns the
# command's number.
sub command
{
	my ($self, $control, $stage, $who, $connstr) = @_;
	my $file = "$self->{directory}/$control";

	$self->{command_number}++;
	open my $fh, '>', "$file.new" or die "$file.new: $!";
	print $fh join("\t", $self->{command_number}, $stage, $who, $connstr // ''),
	  "\n";
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return $self->{command_number};
}

# Returns the fields of the command in a control file.
sub read_command
{
	my ($file) = @_;

	open my $fh, '<', $file or die "$file: $!";
	my $line = <$fh>;
	chomp $line;
	return split /\t/, $line, -1;
}

# Returns what a line of psql's output means: an id, an error, or nothing.
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

# Runs a client: drives psql until the command is to end, and writes what psql
# receives into the client's file.  The lines of the file are ids,
# "! SQLSTATE message", "= stage", "@ time what", and after each batch
# "+ sent received": when the batch was sent, and when its answer was received,
# by now().
sub drive_psql
{
	my ($self, $number, $kind, $control) = @_;
	my $directory = $self->{directory};
	my $main_pid = $self->{main_pid};
	my ($pid, $in, $out);
	my $connected_by = 0;
	my $last_stage = -1;
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

	# Reads up to the end of the batch.  Returns false if psql has ended.
	my $receive = sub {
		my $until = now() + TIMEOUT_S;
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
				# A line that was cut off is no id.
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
		my ($command, $new_stage, $who, $connstr) =
		  read_command("$directory/$control");

		last if $who eq 'end';
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
		if ($new_stage != $last_stage)
		{
			print $file "= $new_stage\n";
			$last_stage = $new_stage;
		}
		if (!defined $pid)
		{
			$connect->($connstr);
			$connected_by = $connstr;
		}
		printf $file "@ %.3f\n", time();
		my $sent_at = now();
		syswrite $in,
		  $self->{batch}->($kind, $new_stage, $number) . "\\echo (end)\n";
		my $is_alive = $receive->();
		printf $file "+ %.6f %.6f\n", $sent_at, now();
		$disconnect->() unless $is_alive;
		$file->flush;
		usleep($is_alive ? rand 40_000 : 50_000);
	}
	$disconnect->();
	close $file or die $!;
	return;
}

# Starts a client of a kind that obeys a control file.  Returns its number.
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
		  eval { $self->drive_psql($number, $kind, $control); 1 };
		print STDERR "client $number: $@\n" unless $is_done;
		STDERR->flush;
		POSIX::_exit($is_done ? 0 : 1);
	}
	$self->{pids}{$number} = $pid;
	$self->{kinds}{$number} = $kind;
	return $number;
}

# Starts clients of these kinds that draw ids from one server, and obey a
# control file of the server's name.  Returns their numbers.
sub start_clients_of
{
	my ($self, $node, @kinds) = @_;

	$self->command($node->name, 0, 'all', $node->connstr('postgres'));
	return map { $self->start_client($_, $node->name) } @kinds;
}

# Waits for clients that have been told to end.  Returns how many ended with an
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

# Dies if a client has ended without being told to.
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

# Kills all clients.
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

# Waits until each of these clients gets ids, for a minute at most, and calls
# the function "tend" meanwhile.  Returns whether all of the clients get ids.
sub get_ids
{
	my ($self, $tend, @numbers) = @_;
	return $self->get_ids_until($tend, now() + 60, @numbers);
}

# Waits until each of these clients gets ids, up to an instant by now(), and
# calls the function "tend" meanwhile.  Returns whether all of the clients get
# ids.
sub get_ids_until
{
	my ($self, $tend, $until, @numbers) = @_;
	my @files = map { "$self->{directory}/client$_" } @numbers;
	my %position = map { $_ => -s $_ } @files;

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

1;
