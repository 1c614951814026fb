# The worker ids that the primary of t/chaos/primary.pl has had.  For each worker
# id, the module knows up to which time the primary may have issued ids, so
# that a test can choose a clock that is behind these ids.
#
# The worker ids of this module count on through the datacenters: 37 stands for
# worker_id 5 of datacenter_id 1.
package SnowflakeWorkerIds;

use strict;
use warnings FATAL => 'all';

use List::Util qw(max);

use constant {
	# By how much the mark may be ahead of the clock: two intervals.
	LEAD_S => 2,

	# How many worker ids the mark's page has room for.
	WORKER_IDS_ON_PAGE => 16,

	# How many worker ids with ids ahead of the clock are too many.
	WORKER_IDS_AHEAD => 6,

	WORKER_IDS_PER_DATACENTER => 32
};

# Returns the worker ids of a primary whose first one is given.
sub new
{
	my ($class, $worker_id) = @_;
	return
	  bless { present => $worker_id, newest => { $worker_id => 0 } }, $class;
}

# Returns the worker id that the primary has now.
sub present
{
	my ($self) = @_;
	return $self->{present};
}

# Returns the parameters of a server that has the present worker id.
sub parameters
{
	my ($self) = @_;

	return (
		'snowflake.datacenter_id = '
		  . int($self->{present} / WORKER_IDS_PER_DATACENTER),
		'snowflake.worker_id = '
		  . $self->{present} % WORKER_IDS_PER_DATACENTER);
}

# Gives the primary a worker id.  Returns whether that worker id was never used
# before.
sub take
{
	my ($self, $worker_id) = @_;
	my $is_new = !exists $self->{newest}{$worker_id};

	$self->{present} = $worker_id;
	$self->{newest}{$worker_id} //= 0;
	return $is_new;
}

# Notes that the primary may have issued ids up to this time.
sub note_time
{
	my ($self, $clock) = @_;
	my $newest = \$self->{newest}{ $self->{present} };

	$$newest = max($$newest, $clock + LEAD_S);
	return;
}

# Returns a worker id that was never used before.
sub new_worker_id
{
	my ($self) = @_;
	return 1 + max keys %{ $self->{newest} };
}

# Returns a worker id that the primary had before the present one, and whose ids
# are all behind a clock.  In half of the cases this is the worker id whose ids
# are oldest.  If there is no such worker id, returns one that was never used.
sub former_worker_id
{
	my ($self, $clock) = @_;
	my $newest = $self->{newest};
	my @former =
	  grep { $_ != $self->{present} && $newest->{$_} < $clock }
	  sort { $newest->{$a} <=> $newest->{$b} } keys %$newest;
	my $chance = max(0, 2 * rand() - 1);

	return @former ? $former[ $chance * @former ] : $self->new_worker_id;
}

# Returns by how much a clock is ahead of the newest ids of the present worker
# id, or 0 if the clock is behind these ids.
sub seconds_since_newest
{
	my ($self, $clock) = @_;
	return max(0, $clock - $self->{newest}{ $self->{present} });
}

# Returns the time up to which there may be ids of any worker id.
sub newest_of_all
{
	my ($self) = @_;
	return max(values %{ $self->{newest} });
}

# Returns whether the mark's page has room for more worker ids.
sub has_room
{
	my ($self) = @_;
	return keys %{ $self->{newest} } < WORKER_IDS_ON_PAGE;
}

# Returns whether too many worker ids may have ids that are ahead of a clock.
# If the page is full, the ids of a new worker id begin after the oldest mark,
# which must not be ahead of the clock.
sub are_too_many_ahead
{
	my ($self, $clock) = @_;

	return WORKER_IDS_AHEAD <= grep { $_ > $clock }
	  values %{ $self->{newest} };
}

1;
