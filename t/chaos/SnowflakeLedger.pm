# The ledger of the ids that the clients of SnowflakeChaos have received, and
# what these ids say at the end of a run: whether an id came twice, whether
# each client's ids increase, and which errors clients saw.
#
# A stage is a part of the run.  The test begins a new stage when another server
# takes over.  Ids of the old stage that were lost with the old server may come
# again in a later stage, and only they: see end_stage().
#
# A life is the time between two stops.  An id that was issued after a stop has
# to be larger than all ids that were issued before it: see count_overlaps().
#
# Of the ids that are not in the data, some may come again after a crash: see
# is_excused().
package SnowflakeLedger;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use SnowflakeFaults;
use SnowflakeTest;
use Test::More;

# How many findings of one kind the ledger describes in the test's output.
use constant MOST_DESCRIBED => 10;

# Returns a new ledger of these clients, a SnowflakeChaos.  Parameters are the
# functions "node_of", "tick_of" and "time_of" of an id: the bits of its node,
# its tick and its time in seconds since 1970.
sub new
{
	my ($class, $clients, %self) = @_;

	return bless {
		%self,
		clients => $clients,
		crashes => [],              # see note_crashes()
		excused => { duplicate => 0, order => 0 },
		beyond_mark => 0,           # ids in the data, but not before the mark
		rows_sent_at => [],         # when batches were sent that left rows
		directory => $clients->{directory},
		kept => {},                 # by stage that has ended; see end_stage()
		stopped_at => [],           # now(), while no server ran
		ids => 0,                   # that clients have received
		lost => 0,                  # ids among these that may come again
		disorder => 0,              # ids that are not larger than the one before
		wrong_errors => 0,          # errors that are not allowed
		errors => {}                # their number, by SQLSTATE
	}, $class;
}

# ----- what the test notes during the run -----

# Ends a stage, and says which of its ids are kept, because the data goes on in
# another server.  An id is kept
#
#   - if it is in "rows", the data as a hash from the id to the client's number;
#   - if a client had received it before a client sent the last batch of which
#     "rows" has an id;
#   - if a client of the kind "kind" received it, or of any kind if "is_all".
#
# All other ids of this stage are lost: they may come again in a later stage.
#
# With "is_other_node", ids of the next stage need not be larger than those that
# are kept, because they are of another (datacenter_id, worker_id).
sub end_stage
{
	my ($self, $stage, %kept) = @_;

	$self->{kept}{$stage} = {
		rows => {},
		kind => '',
		is_all => 0,
		is_other_node => 0,
		%kept,
		newest_asked_at => 0        # when the last batch with kept rows was sent
	};
	return;
}

# Notes a stop.  The test calls this while no server runs that issues ids, so
# each batch was answered before the stop or is sent after it, unless it was on
# its way to a psql that had not connected yet.
sub note_stop
{
	my ($self) = @_;

	push @{ $self->{stopped_at} }, now();
	return;
}

# Enters an id that no client has received.  Its life is unknown, which is -1,
# unless the test gives it.
sub add_id
{
	my ($self, $id, $stage, $life) = @_;

	$life //= -1;
	my $now = now();

	PostgreSQL::Test::Utils::append_to_file("$self->{directory}/ids.others",
		"$id others $stage 1 $life $now $now\n");
	return;
}

# Notes the crashes of a run, as crashes() of SnowflakeChaosServer returns them,
# before the clients' files are read.  "server_of" is the name of the server of
# each client, if each client draws ids from one server.
sub note_crashes
{
	my ($self, $crashes, $server_of) = @_;

	$self->{crashes} = $crashes;
	$self->{server_of} = $server_of;
	return;
}

# ----- the exception of promise 1 -----

# Returns the mark that a crash has left of an id's node.
sub mark_after
{
	my ($self, $crash, $id) = @_;
	my $page = $crash->{page} // return 0;
	my $node = $self->{node_of}->($id);
	my $worker_bits = $page->{worker_bits};

	return mark_of($page, $node & ((1 << $worker_bits) - 1), $node >> $worker_bits)
	  // $page->{floor};
}

# Returns whether an id that a client received may come again, or be followed by
# a smaller one, which a client received later.  That is so only if the first id
# is not in the data, and there was a crash between the two
#
#   - of the server of both clients,
#   - whose recovery found no mark after the first id,
#   - that no row survived which a client sent when the first id had been
#     received,
#   - after which the clock showed a time before that of the first id.
sub is_excused
{
	my ($self, $kind, $first, $later) = @_;

	return 0 if $first->{is_row};
	for my $crash (@{ $self->{crashes} })
	{
		my $server = $crash->{server};

		next
		  if $first->{received_at} > $crash->{to}
		  || $later->{received_at} < $crash->{from}
		  || grep { ($self->{server_of}{ $_->{client} } // $server->{name}) ne
			  $server->{name} } $first, $later;
		next
		  if $self->mark_after($crash, $first->{id}) > $self->{tick_of}->($first->{id})
		  || $self->next_row_after($first->{received_at}) < $crash->{from};
		next
		  if $server->earliest_time($crash->{from}, $later->{received_at}) >
		  $self->{time_of}->($first->{id});
		$self->{excused}{$kind}++;
		return 1;
	}
	return 0;
}

# Returns when the first batch after an instant was sent that left rows in the
# data.
sub next_row_after
{
	my ($self, $instant) = @_;
	my $sent_at = $self->{rows_sent_at};
	my ($low, $high) = (0, scalar @$sent_at);

	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);

		if ($sent_at->[$middle] > $instant) { $high = $middle }
		else { $low = $middle + 1 }
	}
	return $sent_at->[$low] // 'inf';
}

# Counts an id in the data if a crash has left no mark after it.
sub check_row
{
	my ($self, $row) = @_;

	for my $crash (@{ $self->{crashes} })
	{
		$self->count_finding('beyond_mark',
			"id $row->{id} is in the data, and not before the mark that "
			  . "$crash->{server}{name} recovered")
		  if $row->{received_at} < $crash->{from}
		  && $self->mark_after($crash, $row->{id}) <=
		  $self->{tick_of}->($row->{id});
	}
	return;
}

# ----- reading the clients' files -----

# Reads the files of all these clients after they have ended.  "allowed_errors"
# has a pattern of messages for each SQLSTATE that is allowed.  Returns for each
# client how many ids it has received.
sub read_clients
{
	my ($self, $allowed_errors, @numbers) = @_;
	my %received;

	$self->count_receipts($_) for @numbers;
	$self->find_newest_rows($_) for @numbers;
	@{ $self->{rows_sent_at} } = sort { $a <=> $b } @{ $self->{rows_sent_at} };
	for my $number (@numbers)
	{
		my $before = $self->{ids};

		$self->read_client($number, $allowed_errors);
		$received{$number} = $self->{ids} - $before;
	}

	# Enter the rows that are left: no client has received their ids.
	for my $stage (sort keys %{ $self->{kept} })
	{
		$self->add_id($_, $stage) for keys %{ $self->{kept}{$stage}{rows} };
	}
	return %received;
}

# Counts how often one client has received the id of each of its kept rows.  By
# the exception of promise 1 that can be twice: the row is of the last time.
sub count_receipts
{
	my ($self, $number) = @_;
	my $stage = 0;

	open my $fh, '<', "$self->{directory}/client$number" or die $!;
	while (my $line = <$fh>)
	{
		my $kept = $self->{kept}{$stage};

		$stage = $1 if $line =~ /^= (\d+)/;
		$kept->{receipts}{$1}++
		  if defined $kept
		  && $line =~ /^(\d+)$/
		  && ($kept->{rows}{$1} // '') eq $number;
	}
	return;
}

# Finds out for each stage when one client sent its last batch with kept rows.
# settle_id() needs the newest of these times of all clients.
sub find_newest_rows
{
	my ($self, $number) = @_;
	my ($stage, $has_row) = (0, 0);
	my %received;

	open my $fh, '<', "$self->{directory}/client$number" or die $!;
	while (my $line = <$fh>)
	{
		my $kept = $self->{kept}{$stage};

		if ($line =~ /^(\d+)$/)
		{
			$has_row = 1
			  if defined $kept
			  && ($kept->{rows}{$1} // '') eq $number
			  && ++$received{"$stage $1"} == $kept->{receipts}{$1};
		}
		elsif ($line =~ /^\+ (\S+)/)
		{
			push @{ $self->{rows_sent_at} }, $1 if $has_row;
			$kept->{newest_asked_at} = $1
			  if $has_row && $1 > $kept->{newest_asked_at};
			$has_row = 0;
		}
		elsif ($line =~ /^= (\d+)/)
		{
			$stage = $1;
		}
	}
	return;
}

# Returns whether an id is kept when its stage ends, or 2 if it is in the data.
# If the id is in "rows", removes it from there, so that only ids that no client
# received are left in "rows" at the end.
sub settle_id
{
	my ($self, $number, $stage, $id, $received_at) = @_;
	my $kept = $self->{kept}{$stage} // return 1;
	my $owner = $kept->{rows}{$id};

	if (defined $owner && $owner eq $number && --$kept->{receipts}{$id} == 0)
	{
		delete $kept->{rows}{$id};
		return 2;
	}
	return
		 $kept->{is_all}
	  || $kept->{kind} eq $self->{clients}{kinds}{$number}
	  || $received_at < $kept->{newest_asked_at};
}

# Counts something that is wrong with a client, and describes the first
# MOST_DESCRIBED findings.
sub count_finding
{
	my ($self, $what, $description) = @_;

	diag($description) if $self->{$what}++ < MOST_DESCRIBED;
	return;
}

# Reads one client's file: counts its ids, its errors and what is wrong, and
# writes a file with a line for each id: see each_id().
sub read_client
{
	my ($self, $number, $allowed_errors) = @_;
	my $directory = $self->{directory};
	my ($stage, $batch, @unsettled) = (0, '');
	my $none = { id => 0 };
	my $newest = $none;         # the next id has to be larger than this one
	my $newest_kept = $none;
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
			$self->{ids}++;
		}
		elsif ($line =~ /^\+ (\S+) (\S+)/)
		{
			my ($sent_at, $received_at) = ($1, $2);

			while (@stopped_at && $sent_at > $stopped_at[0])
			{
				shift @stopped_at;
				$life++;
			}

			# A psql that was slow to connect may have sent the batch after
			# the stop.
			my $life_of_batch =
			  @stopped_at && $received_at > $stopped_at[0] ? -1 : $life;
			for my $id (@unsettled)
			{
				my $is_kept =
				  $self->settle_id($number, $stage, $id, $received_at) || 0;
				my $entry = {
					id => $id,
					client => $number,
					received_at => $received_at,
					is_row => $is_kept == 2
				};

				print $ids
				  "$id $number $stage $is_kept $life_of_batch $sent_at $received_at\n";
				$self->{lost}++ unless $is_kept;
				$self->check_row($entry) if $entry->{is_row};
				$self->count_finding('disorder',
					"client $number, stage $stage, $batch: $id after $newest->{id}")
				  if $id <= $newest->{id}
				  && !$self->is_excused('order', $newest, $entry);
				$newest = $entry;
				$newest_kept = $entry if $is_kept && $id > $newest_kept->{id};
			}
			@unsettled = ();
		}
		elsif ($line =~ /^! (\S+) (.*)/)
		{
			my $pattern = $allowed_errors->{$1};

			$self->{errors}{$1}++;
			$self->count_finding('wrong_errors',
				"client $number, stage $stage, $batch: $line")
			  if !defined $pattern || $2 !~ $pattern;
		}
		elsif ($line =~ /^= (\d+)/)
		{
			# A client that was late may have missed stages.
			for (; $stage < $1; $stage++)
			{
				my $kept = $self->{kept}{$stage} // {};
				$newest_kept = $none if $kept->{is_other_node};
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

# ----- what the ids say -----

# Calls a function with each id, the number of the client that received it, its
# stage, whether it was kept (2 if it is in the data), its life (the number of
# stops before it), and when it was asked for and received, in the order of ids.
# Sorts on disk, to save memory.
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

# Returns how many ids came more than once: twice in one stage, or again in a
# later stage after they were kept.  Calls a function for the first
# MOST_DESCRIBED of them, with the id, the numbers of both clients and both
# stages.
sub count_duplicates
{
	my ($self, $tell) = @_;
	my $duplicates = 0;
	my ($previous, @earlier) = (-1);

	$self->each_id(
		sub {
			my ($id, $client, $stage, $is_kept, undef, undef, $received_at) = @_;
			my $this = {
				id => $id,
				client => $client,
				stage => $stage,
				is_kept => $is_kept,
				is_row => $is_kept == 2,
				received_at => $received_at
			};

			@earlier = () if $id != $previous;
			for my $one (@earlier)
			{
				next unless $one->{stage} == $stage || $one->{is_kept};
				next
				  if $self->is_excused('duplicate',
					sort { $a->{received_at} <=> $b->{received_at} } $one, $this);
				$tell->($id, $one->{client}, $client, $one->{stage}, $stage)
				  if $duplicates++ < MOST_DESCRIBED;
				last;
			}
			push @earlier, $this;
			$previous = $id;
		});
	return $duplicates;
}

# Returns how many kept ids are larger than an id of the same node that was
# issued later, after a stop.  Each such id could come again, even if by chance
# it has not.  The function "tell" is called for the first MOST_DESCRIBED of these ids, with the id, its
# stage, and the id and the stage of the later id.
sub count_overlaps
{
	my ($self, $tell) = @_;
	my $overlaps = 0;
	my %newest;                 # by node: the smaller id with the latest life

	$self->each_id(
		sub {
			my ($id, $client, $stage, $is_kept, $life, undef, $received_at) = @_;
			return if $life < 0;
			my $this = {
				id => $id,
				client => $client,
				stage => $stage,
				is_row => $is_kept == 2,
				life => $life,
				received_at => $received_at
			};
			my $newest = $newest{ $self->{node_of}->($id) } //= $this;

			$tell->($id, $stage, $newest->{id}, $newest->{stage})
			  if $is_kept
			  && $newest->{life} > $life
			  && !$self->is_excused('order', $this, $newest)
			  && $overlaps++ < MOST_DESCRIBED;
			%$newest = %$this if $newest->{life} <= $life;
		});
	return $overlaps;
}

# Returns how often clients saw an error of a SQLSTATE.
sub errors_of
{
	my ($self, $sqlstate) = @_;
	return $self->{errors}{$sqlstate} // 0;
}

# Tests that the ids of each client increase, and that clients saw only allowed
# errors.
sub test_clients
{
	my ($self) = @_;

	is($self->{disorder}, 0, "every client's ids increase");
	is($self->{wrong_errors}, 0, 'clients received only allowed errors');
	return;
}

1;
