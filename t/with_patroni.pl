# Clusters of three members that Patroni runs, in three variants: a worker id
# for each member, one worker id for the cluster, or leased worker ids.
# Writers insert by a connection that names all members, while the leader is
# switched over, is killed, crashes while Patroni is paused, and is switched
# over again after a reinit of a member.  At two of these steps the old
# leader's clock is ahead and the new leader's is behind.  No id comes twice.
# The test prints how long the writers were without ids.
#
# By default only the variant with one worker id for the cluster runs.
# PATRONI_VARIANTS, such as "member cluster leased", names the variants that
# run.  The clusters of all variants take each step at the same time.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib", "$FindBin::RealBin/chaos";
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeFaults qw(now log_event);
use SnowflakePatroni;
use SnowflakeServer qw(write_clock);
use Test::More;
use Time::HiRes qw(sleep);

# How far the old leader's clock is ahead, and how far the new one's is behind,
# in seconds.
use constant {
	AHEAD_S => 8,
	BEHIND_S => -2,
};
use constant WRITERS => 2;

my $missing = SnowflakePatroni::missing();
plan skip_all => $missing if $missing;

# ----- set up -----

my %wanted = map { $_ => 1 } split ' ',
  $ENV{PATRONI_VARIANTS} // 'cluster';
my @clusters;
my $registry;

sub start_registry
{
	my $node = PostgreSQL::Test::Cluster->new('registry');

	$node->init;
	$node->start;
	$node->safe_psql('postgres', q{
CREATE EXTENSION snowflake_registry;
SELECT snowflake_registry.configure(lease_duration => '30 s', largest_lead => '10 s');
UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp();
});
	return $node;
}

SnowflakePatroni::start_etcd();
if ($wanted{member})
{
	push @clusters,
	  SnowflakePatroni->new(
		name => 'member',
		member_parameters => [ map { { 'snowflake.worker_id' => $_ } } 1 .. 3 ]);
}
if ($wanted{cluster})
{
	# Only in this variant the new leader has the old leader's worker id, so
	# that ids which are lost with the old leader could come again.
	# Synchronous commits keep ids from getting lost.
	push @clusters,
	  SnowflakePatroni->new(
		name => 'cluster',
		parameters => { 'snowflake.worker_id' => 7 },
		dcs => { synchronous_mode => JSON::PP::true });
}
if ($wanted{leased})
{
	$registry = start_registry();
	push @clusters,
	  SnowflakePatroni->new(
		name => 'leased',
		parameters => {
			'snowflake.worker_id_source' => 'registry',
			'snowflake.registry' => $registry->connstr('postgres'),
		});
}

# The first member makes the cluster, the others copy it.
$_->start_member($_->{members}[0]) for @clusters;
for my $cluster (@clusters)
{
	$cluster->leader;
	$cluster->start_member($_) for @{ $cluster->{members} }[ 1, 2 ];
	$cluster->value(q{
CREATE EXTENSION snowflake;
CREATE TABLE item (
    id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
    writer int NOT NULL,
    n int NOT NULL
);
});
}
$_->wait_for_replicas for @clusters;
$_->start_writers(WRITERS) for @clusters;
$_->wait_for_writers for @clusters;
sleep 1;

# ----- steps -----

my $clocks = sprintf
  'the old leader\'s clock %d s ahead, the new leader\'s %d s behind',
  AHEAD_S, -BEHIND_S;

# Takes a step in all clusters, and waits until writers receive ids again.  The
# test computes the pauses at its end.
my @steps;

sub step
{
	my ($what, $do, $finish) = @_;
	my %step = (what => $what, from => now());

	log_event($what);
	$do->($_) for @clusters;
	for my $cluster (@clusters)
	{
		$finish->($cluster) if $finish;
		$cluster->leader;
		$cluster->wait_for_writers;
		$step{until}{ $cluster->{name} } = now();
	}
	push @steps, \%step;
	pass($what);
	return;
}

# The members of a cluster that are not its leader.
sub other_members
{
	my ($cluster) = @_;
	my $leader = $cluster->leader;

	return grep { $_ != $leader } @{ $cluster->{members} };
}

sub begin_switchover
{
	my ($cluster, $candidate) = @_;

	$cluster->{former} = $cluster->leader;
	$cluster->begin_patronictl(
		'switchover', $cluster->{name},
		'--leader' => $cluster->{former}{name},
		'--candidate' => $candidate->{name},
		'--force');
	return;
}

# A replica to which a switchover is possible.  If commits are synchronous,
# only the synchronous replica is.
sub candidate_of
{
	my ($cluster) = @_;

	return $cluster->synchronous_replica // (other_members($cluster))[0];
}

sub end_switchover
{
	my ($cluster) = @_;

	$cluster->end_patronictl;
	isnt($cluster->leader, $cluster->{former},
		"$cluster->{name}: another member is the leader");
	return;
}

step(
	'switchover',
	sub { begin_switchover($_[0], candidate_of($_[0])) },
	\&end_switchover);
$_->wait_for_replicas for @clusters;

# The new leader's clock is still behind the old one's ids when it takes over.
for my $cluster (@clusters)
{
	$cluster->{former} = $cluster->leader;
	write_clock($_->{clock}, $_ == $cluster->{former} ? AHEAD_S : BEHIND_S)
	  for @{ $cluster->{members} };
}
$_->wait_for_writers for @clusters;
sleep 1;
step(
	"leader killed, $clocks",
	sub { $_[0]->kill_member($_[0]{former}) },
	sub {
		my ($cluster) = @_;
		isnt($cluster->leader, $cluster->{former},
			"$cluster->{name}: another member is the leader");
	});
for my $cluster (@clusters)
{
	write_clock($_->{clock}, 0) for @{ $cluster->{members} };
	$cluster->start_member($cluster->{former});
}
$_->wait_for_replicas for @clusters;

# While Patroni is paused, it starts no server: the server that is killed stays
# down until Patroni goes on.
$_->pause for @clusters;
$_->wait_for_writers for @clusters;
$_->{former} = $_->leader for @clusters;
step(
	'server killed while Patroni is paused, and Patroni resumed',
	sub {
		my ($cluster) = @_;
		SnowflakePatroni::kill_postgres($cluster->{former}{data});
		$cluster->begin_patronictl('resume', $cluster->{name});
	},
	sub { $_[0]->end_patronictl });
$_->wait_for_replicas for @clusters;

for my $cluster (@clusters)
{
	my $synchronous = $cluster->synchronous_replica // 0;

	$cluster->{reinitialized} =
	  (grep { $_ != $synchronous } other_members($cluster))[0];
	$cluster->begin_patronictl('reinit', $cluster->{name},
		$cluster->{reinitialized}{name}, '--force', '--wait');
}
$_->end_patronictl for @clusters;
$_->wait_for_replicas for @clusters;

for my $cluster (@clusters)
{
	$cluster->{candidate} =
	  $cluster->synchronous_replica // $cluster->{reinitialized};
	write_clock($cluster->leader->{clock}, AHEAD_S);
	write_clock($cluster->{candidate}{clock}, BEHIND_S);
}
$_->wait_for_writers for @clusters;
sleep 1;
step(
	"switchover, $clocks",
	sub { begin_switchover($_[0], $_[0]{candidate}) },
	\&end_switchover);
sleep 1;

# ----- the ids of all writers -----

sub check_history
{
	my ($cluster) = @_;
	my $history = $cluster->history;
	my ($duplicates, $lost, $of_other_rows) = (0, 0, 0);
	my %received;

	for my $one (@{ $history->{ids} })
	{
		$duplicates++ if $received{ $one->[0] }++;
	}
	my %row = map { my ($id, @row) = split /\|/; $id => "@row" }
	  split /\n/, $cluster->value('SELECT id, writer, n FROM item');
	for my $one (@{ $history->{ids} })
	{
		my ($id, $writer, $n) = @$one;

		$lost++ if !exists $row{$id};
		$of_other_rows++ if exists $row{$id} && $row{$id} ne "$writer $n";
	}
	my $nodes = $cluster->value(
		"SELECT string_agg(w || ' (' || ids || ')', ', ' ORDER BY w) FROM (SELECT snowflake_worker_id(id) AS w, count(*) AS ids FROM item GROUP BY 1) AS x"
	);

	diag(
		sprintf
		  '%s: %d ids received, %d rows, %d received ids lost with a leader, of worker ids %s',
		$cluster->{name}, scalar @{ $history->{ids} }, scalar keys %row,
		$lost, $nodes);
	for my $step (@steps)
	{
		diag(
			sprintf '%s: no ids for %.1f s, with a connection for %.1f s of these: %s',
			$cluster->{name},
			SnowflakePatroni::longest_gap(
				$history, $step->{from}, $step->{until}{ $cluster->{name} }),
			$step->{what});
	}
	note("$cluster->{name}: $_ $history->{errors}{$_}{count} times, such as "
		  . $history->{errors}{$_}{text})
	  for sort keys %{ $history->{errors} };

	is($duplicates, 0, "$cluster->{name}: no id was received twice");
	is($of_other_rows, 0, "$cluster->{name}: no row has an id that was received for another row");
	ok(!exists $history->{errors}{23505},
		"$cluster->{name}: no row was refused because of a duplicate id");
	is($lost, 0, "$cluster->{name}: no id was lost")
	  if $cluster->{dcs}{synchronous_mode};
	my @surprises =
	  grep { !/^(?:-|25006|40001|55000|57P0[1-5]|08...)$/ }
	  keys %{ $history->{errors} };
	is("@surprises", '', "$cluster->{name}: writers have no unexpected errors");
	return;
}

$_->stop_writers for @clusters;
check_history($_) for @clusters;
SnowflakePatroni::end_all();
$registry->stop if $registry;
done_testing();
