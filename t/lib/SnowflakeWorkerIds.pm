# The nodes of which the primary of t/010_chaos.pl has issued ids.  For each
# node, the module knows up to which time there may be ids, so that a test can
# choose a clock that is behind them.
#
# A number stands for a node: a (datacenter_id, worker_id).
package SnowflakeWorkerIds;

use strict;
use warnings FATAL => 'all';

use List::Util qw(max);

use constant {
	# By how much the mark may be ahead of the clock.
	LEAD_S => 2,

	# How many nodes the mark's page has room for, and of how many nodes the ids
	# may be ahead of the clock.
	NODES_ON_PAGE => 16,
	NODES_AHEAD => 6,

	# Worker ids of a datacenter.
	WORKER_IDS => 32
};

# Returns the nodes of a primary that begins with this number.
sub new
{
	my ($class, $number) = @_;
	return bless { number => $number, newest => { $number => 0 } }, $class;
}

# Returns the number that the primary has now.
sub number
{
	my ($self) = @_;
	return $self->{number};
}

# Returns the parameters of a server that has the present number.
sub parameters
{
	my ($self) = @_;

	return ('snowflake.datacenter_id = ' . int($self->{number} / WORKER_IDS),
		'snowflake.worker_id = ' . $self->{number} % WORKER_IDS);
}

# Gives the primary a number.  Returns whether it was never used before.
sub take
{
	my ($self, $number) = @_;
	my $is_new = !exists $self->{newest}{$number};

	$self->{number} = $number;
	$self->{newest}{$number} //= 0;
	return $is_new;
}

# Notes that the primary may have issued ids up to this time.
sub note_time
{
	my ($self, $clock) = @_;
	my $newest = \$self->{newest}{ $self->{number} };

	$$newest = max($$newest, $clock + LEAD_S);
	return;
}

# Returns a number that was never used before.
sub new_number
{
	my ($self) = @_;
	return 1 + max keys %{ $self->{newest} };
}

# Returns a number other than the present one, of which ids were issued before,
# and none that may be ahead of a clock.  In half of the cases this is the
# number whose ids are oldest.  Returns a new number if there is no such number.
sub former_number
{
	my ($self, $clock) = @_;
	my $newest = $self->{newest};
	my @numbers =
	  grep { $_ != $self->{number} && $newest->{$_} < $clock }
	  sort { $newest->{$a} <=> $newest->{$b} } keys %$newest;
	my $chance = max(0, 2 * rand() - 1);

	return @numbers ? $numbers[ $chance * @numbers ] : $self->new_number;
}

# Returns by how much a clock is ahead of the newest ids of the present number.
sub seconds_since_newest
{
	my ($self, $clock) = @_;
	return max(0, $clock - $self->{newest}{ $self->{number} });
}

# Returns the time up to which there may be ids of any number.
sub newest_of_all
{
	my ($self) = @_;
	return max(values %{ $self->{newest} });
}

# Returns whether the mark's page has room for more nodes.
sub has_room
{
	my ($self) = @_;
	return keys %{ $self->{newest} } < NODES_ON_PAGE;
}

# Returns whether too many numbers may have ids that are ahead of a clock.  On a
# full page a new number begins after the oldest mark, which must not be ahead
# of the clock.
sub are_too_many_ahead
{
	my ($self, $clock) = @_;

	return NODES_AHEAD <= grep { $_ > $clock }
	  values %{ $self->{newest} };
}

1;
