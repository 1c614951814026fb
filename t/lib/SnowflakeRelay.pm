# A relay of bytes between a server and its registry.  The relay can hold bytes
# back in either direction for as long as the test wants, and pass them on even
# after their sender has closed its connection.
package SnowflakeRelay;

use strict;
use warnings FATAL => 'all';

use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw(AF_UNIX PF_UNSPEC SOCK_STREAM SHUT_WR);

# Listens on a TCP port of this machine, for a PostgreSQL server that listens
# on a Unix socket.
sub new
{
	my ($class, $node) = @_;
	my $self = bless {
		target => $node->host . '/.s.PGSQL.' . $node->port,
		rules => [],
		connections => [],
		late_answers => 0
	}, $class;
	my $listener = IO::Socket::INET->new(
		Listen => 20,
		LocalAddr => '127.0.0.1',
		Proto => 'tcp')
	  or die "the relay cannot listen: $!\n";

	socketpair($self->{control}, my $child_end, AF_UNIX, SOCK_STREAM,
		PF_UNSPEC)
	  or die "the relay gets no control socket: $!\n";
	$self->{port} = $listener->sockport;
	$self->{pid} = fork // die "the relay cannot fork: $!\n";
	if ($self->{pid} == 0)
	{
		$self->{control} = $child_end;
		$self->{control}->autoflush(1);
		eval { $self->serve($listener); 1 } or warn "relay: $@";
		POSIX::_exit(0);
	}
	$self->{control}->autoflush(1);
	return $self;
}

# A connection string of this relay, followed by the hosts of other servers.
sub connection_string
{
	my ($self, @nodes) = @_;

	return sprintf
	  'host=%s port=%s dbname=postgres sslmode=disable gssencmode=disable',
	  join(',', '127.0.0.1', map { $_->host } @nodes),
	  join(',', $self->{port}, map { $_->port } @nodes);
}

# ----- commands -----

# Holds back all bytes that go "up" to the registry or "down" from it.  With a
# word, holds back only on connections on which the server has sent a request
# with this word, from that request on.
sub hold
{
	my ($self, $direction, $word) = @_;
	return $self->command("hold $direction " . ($word // ''));
}

# Holds back nothing new.  What is held back already stays held back.
sub hold_nothing_new
{
	my ($self) = @_;
	return $self->command('hold_nothing_new');
}

# Passes on everything that is held back, and holds back nothing new.
sub let_go
{
	my ($self) = @_;
	return $self->command('let_go');
}

# How many connections there are on which bytes are held back.
sub count_held
{
	my ($self) = @_;
	return $self->command('count_held');
}

# How many connections the registry has answered on after the server had gone.
sub count_late_answers
{
	my ($self) = @_;
	return $self->command('count_late_answers');
}

sub stop
{
	my ($self) = @_;

	# Closing the control socket would not end the relay, because children that
	# were forked later have this socket as well.
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	return;
}

sub command
{
	my ($self, $command) = @_;

	print { $self->{control} } "$command\n" or die "the relay is gone: $!\n";
	my $answer = readline $self->{control};
	die "the relay is gone\n" unless defined $answer;
	chomp $answer;
	return $answer;
}

# ----- the process that relays -----

sub serve
{
	my ($self, $listener) = @_;
	my $parent = getppid;

	while (getppid == $parent)
	{
		my $select =
		  IO::Select->new($listener, $self->{control}, $self->sources);

		for my $handle ($select->can_read(1))
		{
			if ($handle == $listener)
			{
				$self->accept_client($listener);
			}
			elsif ($handle == $self->{control})
			{
				return unless sysread $handle, my $line, 1000;
				chomp $line;
				syswrite $handle, $self->obey(split / /, $line) . "\n";
			}
			else
			{
				$self->read_from($handle);
			}
		}
		$self->flush($_) for @{ $self->{connections} };
		@{ $self->{connections} } =
		  grep { !is_over($_) } @{ $self->{connections} };
	}
	return;
}

sub obey
{
	my ($self, $what, $direction, $word) = @_;
	my $connections = $self->{connections};

	if ($what eq 'hold')
	{
		push @{ $self->{rules} }, [ $direction, $word // '' ];
		$self->apply_rules($_, '') for @$connections;
	}
	elsif ($what eq 'hold_nothing_new' || $what eq 'let_go')
	{
		$self->{rules} = [];
		for my $connection (@$connections)
		{
			for my $way (qw(up down))
			{
				$connection->{$way}{is_held} = 0
				  if $what eq 'let_go' || $connection->{$way}{bytes} eq '';
			}
		}
	}
	elsif ($what eq 'count_held')
	{
		return scalar grep {
			($_->{up}{is_held} && $_->{up}{bytes} ne '')
			  || ($_->{down}{is_held} && $_->{down}{bytes} ne '')
		} @$connections;
	}
	elsif ($what eq 'count_late_answers')
	{
		return $self->{late_answers};
	}
	return 'done';
}

sub accept_client
{
	my ($self, $listener) = @_;
	my $client = $listener->accept or return;
	my $server = IO::Socket::UNIX->new(Peer => $self->{target});

	# The registry is down.
	return unless $server;

	my $connection = {
		up => { from => $client, to => $server, bytes => '', is_held => 0 },
		down => { from => $server, to => $client, bytes => '', is_held => 0 }
	};
	push @{ $self->{connections} }, $connection;
	$self->apply_rules($connection, '');
	return;
}

# Begins to hold a connection back if a rule applies to a request on it.
sub apply_rules
{
	my ($self, $connection, $request) = @_;

	for my $rule (@{ $self->{rules} })
	{
		my ($direction, $word) = @$rule;
		$connection->{$direction}{is_held} = 1
		  if index($request, $word) >= 0;
	}
	return;
}

# The sockets to read from.
sub sources
{
	my ($self) = @_;
	return map { $_->{from} }
	  grep { !$_->{is_closed} }
	  map { ($_->{up}, $_->{down}) } @{ $self->{connections} };
}

sub read_from
{
	my ($self, $handle) = @_;

	for my $connection (@{ $self->{connections} })
	{
		my ($up, $down) = @{$connection}{qw(up down)};
		my $way = $handle == $up->{from} ? $up : $down;

		next if $handle != $way->{from};
		if (!sysread $handle, my $bytes, 65536)
		{
			$way->{is_closed} = 1;
		}
		else
		{
			$way->{bytes} .= $bytes;
			$self->apply_rules($connection, $bytes) if $way == $up;
		}
		return;
	}
	return;
}

# Passes on all bytes that are not held back, and the end of the stream after
# them.
sub flush
{
	my ($self, $connection) = @_;
	my ($up, $down) = @{$connection}{qw(up down)};

	for my $way ($up, $down)
	{
		next if $way->{is_held};
		if ($way == $down && $up->{is_closed} && $way->{bytes} ne '')
		{
			# The server has closed the connection, so the answer is late.
			$self->{late_answers}++ unless $connection->{has_late_answer}++;
		}
		elsif ($way->{bytes} ne '')
		{
			local $SIG{PIPE} = 'IGNORE';
			syswrite $way->{to}, $way->{bytes};
		}
		$way->{bytes} = '';
		if ($way->{is_closed} && !$way->{is_ended}++)
		{
			shutdown $way->{to}, SHUT_WR;
		}
	}
	return;
}

# Whether a connection is over: the registry has closed it, and all bytes from
# the registry are passed on.  Bytes of a server are not waited for: the
# registry no longer reads them.
sub is_over
{
	my ($connection) = @_;
	my ($up, $down) = @{$connection}{qw(up down)};

	return $down->{is_closed} && $down->{is_ended};
}

1;
