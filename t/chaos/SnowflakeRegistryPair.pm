# The registry of t/chaos/leases.pl and its standby, which becomes the
# registry time and again: by a promotion, or by a start without a promotion,
# which sets the registry back.  The registry is also created anew.
#
# There are two ports.  The registry has one of them, its standby the other, and
# each server of the fleet tries both.  After a while the test removes the
# former registry and makes a new standby at its port.
package SnowflakeRegistryPair;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaosServer;
use SnowflakeFaults;
use SnowflakeLeaseHistory;
use SnowflakeServer;
use Time::HiRes qw(usleep);

# How many seconds a standby may take to replay what its primary has, and a
# registry to answer.
use constant {
	REPLAY_S => 2,
	ANSWER_S => 20,
};

# Returns the pair.  Parameters are the fleet (a SnowflakeFleet), lease_s,
# lead_s, slack_s and layout: what the registry is configured with.
sub new
{
	my ($class, %self) = @_;

	return bless {
		%self,
		ports =>
		  [ map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2 ],
		nodes => 0,                 # how many the test has made
		registry => undef,
		standby => undef,           # has the fields is_synchronous and is_ready
		former => undef,            # the last registry, until it is removed
		is_taking_over => 0,        # is the standby cut off or being promoted?
		unnoticed => 0              # set-backs that no registry has noticed
	}, $class;
}

# Returns a new server at one of the ports.
sub new_server
{
	my ($self, $port) = @_;
	my $node = PostgreSQL::Test::Cluster->new('registry' . ++$self->{nodes},
		port => $port);

	return SnowflakeChaosServer->new($node, 0);
}

# Makes and starts the first registry, with further lines of postgresql.conf.
sub make_registry
{
	my ($self, @conf) = @_;
	my $registry = $self->new_server($self->{ports}[0]);
	my $node = $registry->{node};

	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf',
		join "\n", chaos_conf(), @conf, "include 'replication.conf'");
	write_conf($node, 'replication.conf', '');
	$registry->bring_back;
	$self->{registry} = $registry;
	$node->safe_psql('postgres', 'CREATE ROLE fleet LOGIN');
	$self->create_extension;
	$node->safe_psql('postgres',
		'UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp()');
	return;
}

# Returns the connection string of the fleet's servers.
sub conninfo
{
	my ($self) = @_;

	return sprintf 'host=%s,%s port=%d,%d dbname=postgres user=fleet',
	  ($self->{registry}{node}->host) x 2, @{ $self->{ports} };
}

# Returns whether the registry runs and is not suspended.
sub is_up
{
	my ($self) = @_;
	return $self->{registry}->is_up;
}

# ----- the clock -----

# Returns whether the clock of the registry may be stepped.  The clock is not
# stepped while the standby is cut off: the registry would grant fences that are
# far ahead, and the standby could learn them neither from its data nor from its
# own clock.
sub may_step_clock
{
	my ($self) = @_;

	return
		 $self->is_up
	  && $self->{registry}{step_s} == 0
	  && !$self->{is_taking_over};
}

# Steps the clock of the registry for some seconds.
sub step_clock_for
{
	my ($self, $step_s, $for_s) = @_;

	# The registry granted fences by the clock that was ahead.  All clocks have
	# to reach these fences.
	$self->{registry}->step_clock_for($step_s, $for_s,
		sub { put_forward($step_s) if $step_s > 0 });
	return;
}

# ----- the standby -----

# Makes a standby of the registry, as soon as the registry is up.  Three in ten
# standbys are synchronous.
sub make_standby
{
	my ($self) = @_;
	my $registry = $self->{registry};
	my ($port) =
	  grep { $_ != $registry->{node}->port } @{ $self->{ports} };

	# The registry may be down or suspended just now.
	unless ($registry->is_up)
	{
		upkeep_after(0.3, sub { $self->make_standby });
		return;
	}
	my $standby = $self->new_server($port);
	$registry->{node}->backup('base');
	$standby->{node}
	  ->init_from_backup($registry->{node}, 'base', has_streaming => 1);
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf',
		$registry->{node}->backup_dir . '/base');
	$standby->bring_back;
	$standby->{is_synchronous} = rand() < 0.3;
	if ($standby->{is_synchronous})
	{
		write_conf($registry->{node}, 'replication.conf',
			"synchronous_standby_names = '\"$standby->{name}\"'");
		$registry->{node}->reload;
	}
	$self->{standby} = $standby;
	upkeep_after(0.5, sub { $self->await_standby });
	return;
}

# Looks again and again whether the standby streams, and notes that.  If the
# standby is to be synchronous, the registry must also wait for it at each
# commit, so that the standby has every lease that is granted.
sub await_standby
{
	my ($self) = @_;
	my ($registry, $standby) = @$self{qw(registry standby)};
	my $state = $standby->{is_synchronous} ? 'sync' : 'async';
	my $is_ready = $registry->is_up
	  && (try_value_of($registry->{node},
			"SELECT true FROM pg_stat_replication WHERE state = 'streaming'"
			  . " AND sync_state = '$state'") // '') eq 't';

	$standby->{is_ready} = $is_ready;
	log_event("$standby->{name}: ready, $state") if $is_ready;
	upkeep_after(0.3, sub { $self->await_standby }) unless $is_ready;
	return;
}

# Returns whether the standby can become the registry now.
sub is_standby_ready
{
	my ($self) = @_;

	return
		 $self->may_step_clock
	  && defined $self->{standby}
	  && $self->{standby}{is_ready};
}

# Lets the standby replay all WAL up to now, and then cuts the standby off.
# Calls a method later, which makes the standby the registry.  Returns false if
# the standby does not replay in time.
sub cut_standby_off
{
	my ($self, $method) = @_;
	my $standby = $self->{standby};
	my $lsn = try_value_of($self->{registry}{node},
		'SELECT pg_current_wal_lsn()') // return 0;
	my $until = now() + REPLAY_S;

	until (has_replayed($standby->{node}, $lsn))
	{
		return 0 if now() > $until;
		usleep(10_000);
	}
	$self->{is_taking_over} = 1;
	$standby->{node}->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->{node}->reload;
	log_event("$standby->{name}: cut off");
	after(0.2 + rand 3, sub { $self->$method });
	return 1;
}

# Treats the standby as the registry from now on.  The caller has stopped the
# old registry, or has suspended it and later resumes it for a while.
sub switch
{
	my ($self) = @_;

	$self->{former} = $self->{registry};
	$self->{registry} = $self->{standby};
	undef $self->{standby};
	$self->{is_taking_over} = 0;
	write_conf($self->{registry}{node}, 'replication.conf', '');
	return;
}

# Removes the former registry, and soon makes a standby in its place.
sub remove_former
{
	my ($self) = @_;
	my $former = $self->{former};

	$former->stop('immediate') if $former->is_up;
	$former->{node}->clean_node;
	undef $self->{former};
	upkeep_after(1, sub { $self->make_standby });
	return;
}

# ----- a promotion -----

# Fails over to the standby: an asynchronous one misses the last leases.
# Returns false if the standby is not ready.
sub fail_over
{
	my ($self) = @_;

	return 0 unless $self->is_standby_ready;
	return $self->cut_standby_off('promote_standby')
	  unless $self->{standby}{is_synchronous};
	$self->{is_taking_over} = 1;
	$self->promote_standby;
	return 1;
}

# Promotes the standby.  If the standby is synchronous, in half of the cases the
# old registry is only suspended, and comes back for a while.
sub promote_standby
{
	my ($self) = @_;
	my ($old, $new) = @$self{qw(registry standby)};
	my $comes_back = $new->{is_synchronous} && rand() < 0.5;

	# The registry may be suspended or down just now.
	unless ($old->is_up)
	{
		after(0.2, sub { $self->promote_standby });
		return;
	}
	if ($comes_back)
	{
		$old->suspend_all;
		log_event("$old->{name}: suspended");
	}
	else
	{
		$old->stop('immediate');
	}
	$self->set_clock_of_new;
	$self->switch;
	$new->{node}->promote;
	log_event(sprintf '%s: promoted, clock %+.3f s',
		$new->{name}, $new->{skew_s} - $old->{skew_s});

	my $for_s = $comes_back ? 1 + rand 4 : 0;
	after($for_s, sub { $old->come_back }) if $comes_back;
	upkeep_after($for_s + rand 3, sub { $self->remove_former });
	return;
}

# Sets the clock of the standby that is to be promoted.  In half of the cases
# the clock is first behind that of the old registry, by up to a lease, unless
# the old registry's own clock is more than 1 s behind.
sub set_clock_of_new
{
	my ($self) = @_;
	my ($old, $new) = @$self{qw(registry standby)};

	$new->{skew_s} = rand() - 0.5;
	if (rand() < 0.5 && $old->{skew_s} > -1)
	{
		$new->{skew_s} = $old->{skew_s} - rand $self->{lease_s};
		after(
			1 + rand 4,
			sub {
				$new->{skew_s} = rand() - 0.5;
				$new->adjust_clock;
			});
	}
	$new->adjust_clock;
	return;
}

# ----- a registry that is set back -----

# Cuts off an asynchronous standby, which is started without a promotion later.
# Returns false if the standby is synchronous or not ready.
sub begin_set_back
{
	my ($self) = @_;

	return 0
	  unless $self->is_standby_ready && !$self->{standby}{is_synchronous};
	return $self->cut_standby_off('set_back');
}

# Returns when a registry's newest quarantine began.  Asks again until the
# registry answers, and dies if there is no answer in time: an empty answer would
# look like a change.
sub quarantined_at
{
	my ($node) = @_;
	my $sql = 'SELECT quarantined_at FROM snowflake_registry.setting';
	my $until = now() + ANSWER_S;
	my $answer;

	until (($answer = try_value_of($node, $sql) // '') ne '')
	{
		die $node->name . " does not answer\n" if now() > $until;
		usleep(50_000);
	}
	return $answer;
}

# Makes the standby the registry without a promotion, so that it stays on the
# same timeline.  It lacks the leases that the old registry granted last, like
# a registry whose data directory was replaced by an older copy.  The registry
# has to notice this by its start, which no clean stop preceded.
sub set_back
{
	my ($self) = @_;
	my ($old, $new) = @$self{qw(registry standby)};
	my $node = $new->{node};

	unless ($old->is_up)
	{
		after(0.2, sub { $self->set_back });
		return;
	}
	my $before = quarantined_at($node);

	$old->stop('immediate');
	$new->stop((qw(fast immediate))[ rand 2 ]);
	unlink $node->data_dir . '/standby.signal' or die "standby.signal: $!";
	$new->{skew_s} = $old->{skew_s};
	$new->adjust_clock;
	$self->switch;
	$new->bring_back;
	log_event("$new->{name}: set back");
	upkeep_after(rand 3, sub { $self->remove_former });

	# The next claim shows the registry that it was started.
	my $until = now() + $self->{lease_s};
	until (quarantined_at($node) ne $before)
	{
		next if now() < $until && usleep(50_000);

		# All servers may be suspended: do what a claim does first.
		try_value_of($node, 'SELECT snowflake_registry.lock_registry()');
		last if quarantined_at($node) ne $before;
		log_event("$new->{name}: has not noticed");
		$self->{unnoticed}++;
		last;
	}
	return;
}

# ----- a registry that is created anew -----

# Makes the extension in the registry's database.
sub create_extension
{
	my ($self) = @_;

	$self->{registry}{node}->safe_psql(
		'postgres', qq{
		CREATE EXTENSION snowflake_registry;
		SELECT snowflake_registry.configure(
			lease_duration => '$self->{lease_s} s',
			largest_lead => '$self->{lead_s} s',
			layout => '$self->{layout}');
		SELECT snowflake_registry.allow('fleet');
		UPDATE snowflake_registry.setting SET slack = '$self->{slack_s} s',
			reopens_at = reopens_at - slack + '$self->{slack_s} s'});
	keep_history($self->{registry}{node});
	return;
}

# Creates the registry anew while servers hold leases.  Returns false if the
# registry is down or about to be replaced.
sub create_anew
{
	my ($self) = @_;

	return 0 unless $self->may_step_clock;
	$self->{registry}{node}->safe_psql('postgres',
		'DROP EXTENSION snowflake_registry CASCADE');
	$self->create_extension;
	log_event("$self->{registry}{name}: created anew");
	return 1;
}

1;
