# A psql session in the background.  Unlike query() of BackgroundPsql, the test
# can go on while a statement waits, and the statement may fail.
#
# outcome_of() asks the session that each server has for statements whose state no
# later one needs: a test needs no process for each.
package SnowflakeSession;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use SnowflakeTime;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(outcome_of);

# The sessions of outcome_of(), by this process and the server's name: a process
# that a test forks has its own.
my %session_of;

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

# The outcome of one or more statements, by the session that a server has for
# them.  Returns undef if the server is not there, or ends meanwhile.
#
# Afterwards the session is as a new one, but for snowflake_currval(), psql's
# variables, and counts that PostgreSQL's statistics have not taken yet.  Statements
# after one that fails run, too.
sub outcome_of
{
	my ($node, $sql) = @_;
	my $name = "$$ " . $node->name;
	my $is_query = $sql =~ /^\s*SELECT\b[^;]*\z/ && $sql !~ /\bset_config\b/;

	# A session that was there before may be one of a server that has ended.  What
	# is no query must not run twice, so the session is asked a query first.
	outcome_of($node, 'SELECT 1') // return if !$is_query && exists $session_of{$name};
	for my $is_new (exists $session_of{$name} ? 0 : (), 1)
	{
		my $outcome = eval {
			my $session = $session_of{$name} //= __PACKAGE__->new($node);

			$session->ask($sql);
			my $answer = $session->outcome;
			if (!$is_query)
			{
				$session->ask("ROLLBACK;\nRESET ROLE;\nDISCARD ALL");
				$session->outcome;
			}
			$answer;
		};
		return $outcome if defined $outcome && $outcome->{text} !~ /server closed the connection/;
		die $@ if $@ =~ /timeout/;
		my $ended = delete $session_of{$name};
		$ended->{psql}{run}->kill_kill if defined $ended;
		return if !$is_query;
	}
	return;
}

# Starts a statement; answer() waits for its end.
sub ask
{
	my ($self, $sql) = @_;
	my $psql = $self->{psql};

	$psql->{timeout}->start;
	$psql->{stderr} = '';
	$self->{asked_at} = clock_gettime(CLOCK_MONOTONIC);
	$psql->{stdin} .= "$sql\n;\n\\echo (end)\n\\warn (end)\n";
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

	wait_for_answer(
		sub {
			$psql->{run}->pump_nb;
			return $psql->{stdout} =~ /^\(end\)\n\z/m && $psql->{stderr} =~ /\(end\)\n\z/;
		},
		defined $self->{pid});
	s/\(end\)\n\z// for $psql->{stdout}, $psql->{stderr};
	my $ms = (clock_gettime(CLOCK_MONOTONIC) - $self->{asked_at}) * 1000;
	my @rows = split /\n/, $psql->{stdout};
	my ($state, $message) =
	  $psql->{stderr} =~ /(?:ERROR|FATAL):  (\w{5}): (.*)/;
	my ($detail) = $psql->{stderr} =~ /^DETAIL:  (.*)/m;
	my ($hint) = $psql->{stderr} =~ /^HINT:  (.*)/m;

	$psql->{stdout} = '';
	return {
		rows => \@rows,
		ms => $ms,
		state => $state // '',
		message => $message // '',
		detail => $detail // '',
		text => $psql->{stderr},
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
