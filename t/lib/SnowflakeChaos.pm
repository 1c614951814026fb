# What the chaos tests share: clients that keep every id that they receive,
# outside the servers, while servers are killed, stopped and suspended; and
# what these ids say at the end.
#
# Clients are processes of their own.  A control file tells each client what to
# do.  The file has one line, which the client reads before every batch: a
# number that grows, the era, who takes part, and where.
#
# An era is a part of the run.  The test begins a new era when another server
# takes over.  Ids of the old era that were lost with the old server may come
# again in a later era, and only they: see end_era().
package SnowflakeChaos;

use strict;
use warnings FATAL => 'all';

use IPC::Open3;
use POSIX ();
use PostgreSQL::Test::Utils;
use SnowflakeFaults;
use Test::More;
use Time::HiRes qw(time usleep);

# ----- clients -----

my @chaos;

# Ends the clients also of a test that ends in the middle.
END
{
	my $status = $?;

	$_->kill_clients for @chaos;
	$? = $status;
}

# Parameters: directory, for files; seed; and batch, a function of a client's
# kind, the era and the client's number that returns the statements of one
# batch.
sub new
{
	my ($class, %self) = @_;
	my $chaos = bless {
		%self,
		main_pid => $$,
		command_number => 0,
		clients => 0,
		kinds => {},                # by number
		pids => {},                 # by number, of those not ended
		kept => {},                 # by era that has ended; see end_era()
		stopped_at => [],           # when no server was running, by now()
		others => 0                 # ids that no client has received
	}, $class;

	push @chaos, $chaos;
	return $chaos;
}

# Writes a command for the clients of a control file.  Returns its number.
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
# file of its own: ids, "! SQLSTATE message", "= era", "@ time what", and after
# a batch "+ begin end", by now(): when it was sent and when it was received.
sub drive_psql
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
		my $sent_at = now();
		syswrite $in,
		  $self->{batch}->($kind, $new_era, $number) . "\\echo (end)\n";
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
		  eval { $self->drive_psql($number, $kind, $control); 1 };
		print STDERR "client $number: $@\n" unless $is_done;
		STDERR->flush;
		POSIX::_exit($is_done ? 0 : 1);
	}
	$self->{pids}{$number} = $pid;
	$self->{kinds}{$number} = $kind;
	return $number;
}

# Starts clients of these kinds that draw ids from one server, by a control
# file of its name.  Returns their numbers.
sub start_clients_of
{
	my ($self, $node, @kinds) = @_;

	$self->command($node->name, 0, 'all', $node->connstr('postgres'));
	return map { $self->start_client($_, $node->name) } @kinds;
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

# Waits until these clients get ids, for a minute at most, and calls "tend"
# meanwhile.  Returns whether they do.
sub get_ids
{
	my ($self, $tend, @numbers) = @_;
	return $self->get_ids_until($tend, now() + 60, @numbers);
}

# The same, until an instant by now().
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

# ----- what has been received -----

# Ends an era, and says which of its ids are kept, because the data goes on in
# another server.  An id is kept
#
#   - if it is in "rows", which are the data, by id, with the client's number;
#   - if a client had received it before one of these rows was asked for;
#   - if a client of the kind "kind" received it, or of any kind if "is_all".
#
# All other ids of this era are lost: they may come again in a later era.
#
# With "is_other_node", ids of the next era need not be larger than those that
# are kept, because they are of another (datacenter_id, worker_id).
sub end_era
{
	my ($self, $era, %kept) = @_;

	$self->{kept}{$era} = {
		rows => {},
		kind => '',
		is_all => 0,
		is_other_node => 0,
		%kept,
		newest_asked_at => 0        # of the rows
	};
	return;
}

# Finds out when the newest row that is kept of each era was asked for.  To be
# called for each client before any client is examined.
sub find_newest_rows
{
	my ($self, $number) = @_;
	my ($era, $has_row) = (0, 0);

	open my $fh, '<', "$self->{directory}/client$number" or die $!;
	while (my $line = <$fh>)
	{
		my $kept = $self->{kept}{$era};

		if ($line =~ /^(\d+)$/)
		{
			$has_row = 1
			  if defined $kept && ($kept->{rows}{$1} // '') eq $number;
		}
		elsif ($line =~ /^\+ (\S+)/)
		{
			$kept->{newest_asked_at} = $1
			  if $has_row && $1 > $kept->{newest_asked_at};
			$has_row = 0;
		}
		elsif ($line =~ /^= (\d+)/)
		{
			$era = $1;
		}
	}
	return;
}

# To be called while no server runs that issues ids.  What was sent before this
# call has been answered, so the ids of what is sent later come later; see
# count_overlaps().
sub note_stop
{
	my ($self) = @_;

	push @{ $self->{stopped_at} }, now();
	return;
}

# Keeps an id that no client has received.  Its life is unknown unless given;
# see each_id().
sub add_id
{
	my ($self, $id, $era, $life) = @_;

	$life //= -1;
	PostgreSQL::Test::Utils::append_to_file("$self->{directory}/ids.others",
		"$id others $era 1 $life\n");
	$self->{others}++;
	return;
}

# Is an id kept when its era ends?  An id that is found in the data is removed
# there, so that the ids left in the end were received by nobody.
sub is_kept
{
	my ($self, $number, $era, $id, $received_at) = @_;
	my $kept = $self->{kept}{$era} // return 1;
	my $owner = $kept->{rows}{$id};

	if (defined $owner && $owner eq $number)
	{
		delete $kept->{rows}{$id};
		return 1;
	}
	return $kept->{is_all}
	  || $kept->{kind} eq $self->{kinds}{$number}
	  || $received_at < $kept->{newest_asked_at};
}

# Reads one client's file: counts its ids, and what is wrong.  The errors that
# are allowed are by SQLSTATE, with patterns of their messages.
sub examine
{
	my ($self, $number, $total, $allowed_errors) = @_;
	my $directory = $self->{directory};
	my ($era, $batch, @unsettled) = (0, '');
	my $newest = 0;             # of this era, and what it has to be above
	my $newest_kept = 0;
	my @stopped_at = @{ $self->{stopped_at} };
	my $life = 0;               # how often servers had been stopped

	open my $fh, '<', "$directory/client$number" or die $!;
	open my $ids, '>', "$directory/ids$number" or die $!;
	while (my $line = <$fh>)
	{
		chomp $line;
		if ($line =~ /^\d+$/)
		{
			push @unsettled, $line;
			$total->{ids}++;
			if ($line <= $newest)
			{
				diag("client $number, era $era, $batch: $line after $newest")
				  if $total->{disorder}++ < 10;
			}
			$newest = $line;
		}
		elsif ($line =~ /^\+ (\S+) (\S+)/)
		{
			my ($sent_at, $received_at) = ($1, $2);

			while (@stopped_at && $sent_at > $stopped_at[0])
			{
				shift @stopped_at;
				$life++;
			}
			for my $id (@unsettled)
			{
				my $is_kept =
				  $self->is_kept($number, $era, $id, $received_at) ? 1 : 0;

				print $ids "$id $number $era $is_kept $life\n";
				$total->{lost}++ unless $is_kept;
				$newest_kept = $id if $is_kept && $id > $newest_kept;
			}
			@unsettled = ();
		}
		elsif ($line =~ /^! (\S+) (.*)/)
		{
			$total->{errors}{$1}++;
			my $pattern = $allowed_errors->{$1};
			if (!defined $pattern || $2 !~ $pattern)
			{
				diag("client $number, era $era, $batch: $line")
				  if $total->{wrong_errors}++ < 10;
			}
		}
		elsif ($line =~ /^= (\d+)/)
		{
			# A client that was late may have missed eras.
			for (; $era < $1; $era++)
			{
				my $kept = $self->{kept}{$era} // {};
				$newest_kept = 0 if $kept->{is_other_node};
			}
			$newest = $newest_kept;
		}
		else
		{
			$batch = $line;
		}
	}
	die "client $number has not said when it received its last ids\n"
	  if @unsettled;
	close $ids or die $!;
	return;
}

# Keeps the ids that are in the data and that no client has received.  To be
# called after all clients have been examined.
sub keep_other_rows
{
	my ($self) = @_;

	for my $era (sort keys %{ $self->{kept} })
	{
		$self->add_id($_, $era) for keys %{ $self->{kept}{$era}{rows} };
	}
	return;
}

# Calls a function with each id, the number of the client that received it, its
# era, whether it was kept, and its life (the number of stops before it), in
# the order of ids.  Sorts on disk, to save memory.
sub each_id
{
	my ($self, $what) = @_;
	my $directory = $self->{directory};

	local $ENV{LC_ALL} = 'C';
	open my $sorted, '-|', 'sort', '-k1,1n', '-k3,3n', '-S', '64M',
	  '-T', $directory, glob("$directory/ids*")
	  or die "sort: $!";
	while (my $line = <$sorted>)
	{
		$what->(split ' ', $line);
	}
	close $sorted or die "sort: $?";
	return;
}

# How many ids came more than once: twice in one era, or again in a later era
# after they were kept.  Calls a function for the first of them, with the
# numbers of the clients and the eras.
sub count_duplicates
{
	my ($self, $tell) = @_;
	my $duplicates = 0;
	my ($previous, @earlier) = (-1);

	$self->each_id(
		sub {
			my ($id, $client, $era, $is_kept) = @_;

			@earlier = () if $id != $previous;
			my ($one) = grep { $_->{era} == $era || $_->{is_kept} } @earlier;
			$tell->($id, $one->{client}, $client, $one->{era}, $era)
			  if defined $one && $duplicates++ < 10;
			push @earlier,
			  { client => $client, era => $era, is_kept => $is_kept };
			$previous = $id;
		});
	return $duplicates;
}

# How many kept ids are larger than an id of the same node that was issued
# later, after a stop.  Each of them may come again, even if by chance none
# has.  A function says which node an id is of; another one is called for the
# first of them.
sub count_overlaps
{
	my ($self, $node_of, $tell) = @_;
	my $overlaps = 0;
	my %newest;                 # by node: the latest life of smaller ids

	$self->each_id(
		sub {
			my ($id, undef, $era, $is_kept, $life) = @_;
			return if $life < 0;
			my $newest = $newest{ $node_of->($id) } //= { life => $life };

			$tell->($id, $era, $newest->{id}, $newest->{era})
			  if $is_kept && $newest->{life} > $life && $overlaps++ < 10;
			$newest->@{qw(life id era)} = ($life, $id, $era)
			  if $newest->{life} <= $life;
		});
	return $overlaps;
}

1;
