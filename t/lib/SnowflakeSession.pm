# A psql session in the background.  Unlike query() of BackgroundPsql, the test
# can go on while a statement waits, and the statement may fail.
package SnowflakeSession;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

sub new
{
	my ($class, $node, $timeout_s, $user) = @_;
	my $session = $node->background_psql(
		'postgres',
		on_error_stop => 0,
		extra_params => defined $user ? [ '-U', $user ] : [],
		timeout => $timeout_s
		  // $PostgreSQL::Test::Utils::timeout_default,
		wait => 0);
	my $self = bless { node => $node, psql => $session }, $class;

	$session->{stdin} .= "\\set VERBOSITY verbose\n";
	$self->{pid} = $self->value('SELECT pg_backend_pid()');
	return $self;
}

# Starts a statement; answer() waits for its end.
sub ask
{
	my ($self, $sql) = @_;
	my $psql = $self->{psql};

	$psql->{timeout}->start;
	$psql->{stderr} = '';
	$self->{asked_at} = clock_gettime(CLOCK_MONOTONIC);
	$psql->{stdin} .= "$sql;\n\\echo (end)\n";
	$psql->{run}->pump_nb;
	return;
}

# Waits for the end of the statement.  Returns the SQLSTATE, the message and
# the hint that it failed with, each '' for none; its rows, as psql prints
# them; and the milliseconds that it took.
sub outcome
{
	my ($self) = @_;
	my $psql = $self->{psql};

	$psql->{run}->pump until $psql->{stdout} =~ s/^\(end\)\n\z//m;
	my $ms = (clock_gettime(CLOCK_MONOTONIC) - $self->{asked_at}) * 1000;
	my @rows = split /\n/, $psql->{stdout};
	my ($state, $message) =
	  $psql->{stderr} =~ /(?:ERROR|FATAL):  (\w{5}): (.*)/;
	my ($hint) = $psql->{stderr} =~ /^HINT:  (.*)/m;

	$psql->{stdout} = '';
	return {
		rows => \@rows,
		ms => $ms,
		state => $state // '',
		message => $message // '',
		hint => $hint // ''
	};
}

# The SQLSTATE that the statement failed with, '' for none, and its rows.
sub answer
{
	my ($self) = @_;
	my $outcome = $self->outcome;
	return ($outcome->{state}, @{ $outcome->{rows} });
}

# The rows of a statement that must succeed.
sub rows
{
	my ($self, $sql) = @_;

	$self->ask($sql);
	my ($state, @rows) = $self->answer;
	die "\"$sql\" failed: $self->{psql}{stderr}\n" if $state ne '';
	return @rows;
}

sub value
{
	my ($self, $sql) = @_;
	return ($self->rows($sql))[0];
}

# The SQLSTATE that a statement fails with, or ''.
sub state_of
{
	my ($self, $sql) = @_;

	$self->ask($sql);
	return ($self->answer)[0];
}

# Waits until the session waits for a tick, for the clock or for the page of the
# mark, as pg_stat_activity shows.
sub wait_until_it_waits
{
	my ($self) = @_;

	$self->{node}->poll_query_until('postgres',
		    'SELECT wait_event_type = \'Extension\' FROM pg_stat_activity '
		  . "WHERE pid = $self->{pid}")
	  or die "session $self->{pid} does not wait\n";
	return;
}

# Terminates the backend, and waits until it has exited.
sub terminate
{
	my ($self) = @_;

	$self->{node}->safe_psql('postgres',
		"SELECT pg_terminate_backend($self->{pid}, 60000)");
	$self->{psql}{run}->kill_kill;
	return;
}

sub quit
{
	my ($self) = @_;

	$self->{psql}->quit;
	return;
}

1;
