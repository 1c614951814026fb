# How another server takes over in t/010_chaos.pl: by chance, in combinations
# of these, each of which comes up.
#
#   origin  What goes on: a standby, a standby of the standby, a base backup of
#           the standby, a base backup of the primary, or a base backup that is
#           restored up to the LSN of a commit.
#   way     How its recovery ends: it is promoted; its standby.signal is
#           removed and it is started; it is promoted after a restart that has
#           no commit left to replay; or a server without the library recovers,
#           and the one that has it is started later.
#   load    What clients do when the old primary ends: nothing, or everything,
#           with replication that is synchronous or is not.
#   ending  How the old primary ends.
#   lead    How far ids are ahead of clocks then.
#   clock   The new server's clock: right, slower, or wrong by up to an hour,
#           behind for a while or ahead for good.
#   node    The worker id: the same, a new one, or one of an earlier server.
#   after   The new server crashes at once; or it has no worker, and may be
#           restarted soon.
#   old     What becomes of the old primary: a standby by pg_rewind, or nothing.
package SnowflakeTakeOver;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(first sum0);
use SnowflakeFaults;

our @EXPORT = qw(deal_take_over take_over_kinds take_over_counts);

# A deck for each line: how many cards there are of each kind.
my %decks = (
	origin => {
		standby => 3,
		cascade => 1,
		standby_backup => 1,
		backup => 1,
		restore => 1
	},
	way =>
	  { promotion => 2, no_signal => 2, restartpoint => 1, no_library => 2 },
	load => { nothing => 1, synchronous => 1, asynchronous => 2 },
	ending => { immediate => 2, killed => 1, fast => 1 },
	lead => { none => 2, by_policy => 1, with_clock => 1, corrected => 1 },
	clock => { right => 1, slower => 2, behind => 3, ahead => 1 },
	node => { same => 4, new => 1, former => 1 },
	after => { nothing => 2, crash => 2, no_worker => 1 },
	old => { discarded => 1, rewound => 1 });

my %hands;
my %counts;

# How many kinds of cards there are in all decks.
sub take_over_kinds
{
	return sum0(map { scalar keys %$_ } values %decks);
}

# How often each kind was dealt, by the names of deck and card.
sub take_over_counts
{
	return \%counts;
}

# Takes the next card of a deck that may be used now.
sub deal
{
	my ($name, $may_be_used) = @_;
	my $deck = $decks{$name};
	my $hand = $hands{$name} //= [];
	my $i;

	until (
		defined(
			$i = first { $may_be_used->($hand->[$_]) } 0 .. $#$hand))
	{
		push @$hand, shuffled($deck);
	}
	my ($card) = splice @$hand, $i, 1;
	$counts{"$name $card"}++;
	return $card;
}

# How another server takes over: a card of each deck, and whether there is a
# signal file.
sub deal_take_over
{
	my %how;
	my $is_streaming = sub { $how{origin} =~ /^(?:standby|cascade)$/ };

	$how{origin} = deal('origin', sub { 1 });
	$how{way} = deal(
		'way',
		sub {
			return 1 if $is_streaming->();
			return $_[0] ne 'restartpoint'
			  && !($how{origin} eq 'restore' && $_[0] eq 'no_signal');
		});
	$how{load} = deal('load',
		sub { $_[0] ne 'synchronous' || $how{origin} eq 'standby' });

	# The last restartpoint is made of the shutdown checkpoint.
	$how{ending} = deal('ending',
		sub { $how{way} ne 'restartpoint' || $_[0] eq 'fast' });
	$how{$_} = deal($_, sub { 1 }) for qw(lead node after);

	# Only a clock that is behind shows whether a former mark is known.
	$how{clock} = deal('clock',
		sub { $how{node} ne 'former' || $_[0] eq 'behind' });

	# A server without the library may have a signal file or not.
	$how{has_signal} = $how{way} ne 'no_signal'
	  && ($how{way} ne 'no_library'
		|| $how{origin} eq 'restore'
		|| rand() < 0.5);

	# pg_rewind needs a new timeline.
	$how{old} = deal('old',
		sub { $_[0] ne 'rewound' || $how{has_signal} });
	return %how;
}

1;
