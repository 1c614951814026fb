# A registry that answers nonsense: a program that speaks the beginning of
# PostgreSQL's protocol and then sends what no registry sends.  Whatever the
# program sends, the server stays up, issues no id by it, logs the failure once,
# and stops in time.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use SnowflakeRegistry;
use SnowflakeScenario;
use SnowflakeServer;
use SnowflakeServer qw(replace_file);
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(sleep);

# A stop waits 2 s at most for the release; the rest is for a busy machine.  A
# stop without that limit would fail after PGCTLTIMEOUT.
use constant STOP_S => 60;

# An answer may take 64 MB of the worker's memory.
use constant MEMORY_KB => 128 * 1024;

use constant {
	BOOL => 16,
	INT8 => 20,
	INT4 => 23,
	TEXT => 25,
	TIMESTAMPTZ => 1184,
	SECONDS_TO_2000 => 946_684_800,
	WORKER_ID => 3,
	DURATION_S => 4             # short, so that a server tries again soon
};

my $directory = PostgreSQL::Test::Utils::tempdir();

# ----- messages of the protocol -----

sub message
{
	my ($type, $bytes) = @_;
	return $type . pack('N', 4 + length $bytes) . $bytes;
}

sub row_description
{
	my (@types) = @_;
	return message('T',
		pack('n', scalar @types)
		  . join '', map { "c\0" . pack 'N n N n N n', 0, 0, $_, 0, 0xFFFFFFFF, 1 }
		  @types);
}

sub data_row
{
	my (@values) = @_;
	return message('D',
		pack('n', scalar @values)
		  . join '', map { defined ? pack('N/a*', $_) : pack('N', 0xFFFFFFFF) }
		  @values);
}

# What precedes the rows of a statement, and what follows the last row.
my $before = message('1', '') . message('2', '');
my $after = message('C', "SELECT 1\0");
my $ready = message('Z', 'I');

sub error_message
{
	my (%fields) = @_;
	return message('E', join('', map { "$_$fields{$_}\0" } sort keys %fields) . "\0");
}

sub instant
{
	my ($seconds_from_now) = @_;
	return pack 'q>',
	  int((test_time() - SECONDS_TO_2000 + $seconds_from_now) * 1_000_000);
}

# ----- answers to a claim -----

my @types = (INT4, TIMESTAMPTZ, TIMESTAMPTZ, INT8, TEXT, TEXT, TIMESTAMPTZ);

# The columns of a good grant, with other values at some places.
sub grant
{
	my (%other) = @_;
	my @values = (
		pack('N', WORKER_ID),
		instant(-1), instant(120), pack('q>', DURATION_S * 1_000_000),
		undef, undef, instant(0));

	$values[$_] = $other{$_} for keys %other;
	return @values;
}

# A whole answer of these rows.
sub answer
{
	my ($types, @rows) = @_;
	return
		$before
	  . row_description(@$types)
	  . join('', map { data_row(@$_) } @rows)
	  . $after
	  . $ready;
}

sub answer_with
{
	my (%other) = @_;
	return answer(\@types, [ grant(%other) ]);
}

# An error that no kind of nonsense has.
my $marker = $before . error_message(S => 'ERROR', C => 'MARKR', M => 'marker') . $ready;

my $shape = qr/The registry's answer is not one row of the expected columns/;
my $impossible = qr/The registry grants what it must not: worker_id /;
my $late = qr/does not answer in time/;

# The kinds of nonsense.  A kind is what the registry sends, and the failure
# that the server logs.  What is sent is a string, or a function that returns
# strings until the connection is closed.
my @kinds = (
	[ 'nothing', '', $late ],
	[ 'an end', sub { return undef }, qr/server closed the connection unexpectedly/ ],
	[ 'bytes', "\x00\xff" x 1000, qr/lost synchronization|unexpected response/ ],
	[ 'no statement', $ready, qr/The registry's answer is empty/ ],
	[ 'an empty statement', $before . message('I', '') . $ready, qr/The registry's answer is not rows/ ],
	[ 'a command', $before . message('n', '') . message('C', "DO\0") . $ready, qr/The registry's answer is not rows/ ],
	[ 'no row', answer(\@types), $shape ],
	[ 'two rows', answer(\@types, ([ grant() ]) x 2), $shape ],
	[ 'too few columns', answer([ @types[ 0 .. 3 ] ], [ (grant())[ 0 .. 3 ] ]), $shape ],
	[ 'too many columns', answer([ @types, TEXT ], [ grant(), 'x' ]), $shape ],
	[ 'another type', answer([ INT8, @types[ 1 .. 6 ] ], [ grant(0 => pack 'q>', WORKER_ID) ]), $shape ],
	[ 'a short value', answer_with(3 => 'xyz'), $shape ],
	[ 'a null', answer_with(2 => undef), $impossible ],
	[ 'worker id 1000', answer_with(0 => pack 'N', 1000), $impossible ],
	[ 'worker id -1', answer_with(0 => pack 'N', 0xFFFFFFFF), $impossible ],
	[ 'another worker id', answer_with(0 => pack 'N', WORKER_ID + 1), $impossible ],
	[ 'a duration of 0', answer_with(3 => pack 'q>', 0), $impossible ],
	[ 'a negative duration', answer_with(3 => pack 'q>', -1), $impossible ],
	[ 'a duration of centuries', answer_with(3 => pack 'q>', 4_611_686_018_427_387_904), $impossible ],
	[ 'a fence at infinity', answer_with(2 => pack 'q>', 9_223_372_036_854_775_807), $impossible ],
	[ 'a fence before all time', answer_with(2 => pack 'q>', -4_611_686_018_427_387_904), $impossible ],
	[ 'ids from tomorrow', answer_with(1 => instant(86400)), $impossible ],
	[ 'ids from 2070', answer_with(1 => pack 'q>', 2_209_032_000_000_000), $impossible ],
	[ 'ids from infinity', answer_with(1 => pack 'q>', 9_223_372_036_854_775_807), $impossible ],
	[
		'a fence that has passed',
		answer_with(2 => instant(-3600), 6 => instant(-3720)),
		qr/The registry's clock is at \d{4}-\S+ \S+, and its lease on worker_id 3 is for ids before \d{4}-\S+ \S+, but this server's clock is at \d{4}-/
	],
	[
		'control characters',
		answer_with(4 => 'odd', 5 => "first\nLOG:  second\e[2J\x7f"),
		qr/DETAIL:  first LOG:  second \[2J $/m
	],
	[
		'an error',
		$before . error_message(S => 'ERROR', C => 'XX000', M => "a\n\tb") . $ready,
		qr/DETAIL:  The registry answers with an error: a  b\.$/m
	],
	[
		'an error without fields',
		$before . message('E', "\0") . $ready,
		qr/WARNING:  the registry has not granted/
	],
	[
		'an error of 10 MB',
		$before . error_message(S => 'ERROR', C => 'XX000', M => 'y' x 10_000_000) . $ready,
		qr/DETAIL:  The registry answers with an error: y{900}/
	],
	[
		'a DETAIL of 20 MB',
		answer_with(4 => 'odd', 5 => 'z' x 20_000_000),
		qr/DETAIL:  z{1000}/
	],
	[ 'COPY', $before . message('W', pack 'C n', 0, 0), qr/The registry's answer is not rows/ ],
	[
		'notices without end',
		sub { return error_message(S => 'NOTICE', M => 'x' x 1000) =~ s/^E/N/r x 100 },
		$late
	],
	[
		'rows without end',
		endless($before . row_description(@types), data_row(grant()) x 1000),
		qr/out of memory|cannot allocate memory|does not answer in time/
	],
	[
		'results without end',
		sub { return answer_with() =~ s/\Q$ready\E$//r },
		qr/does not answer in time|out of memory/
	],
	[
		'400 MB',
		endless(
			$before . row_description(@types) . 'D' . pack('N n N', 400_000_000, 7, 399_000_000),
			'x' x 1_000_000),
		qr/out of memory|cannot allocate memory|lost synchronization/
	]);

# A function that returns one string first, and then another one without end.
sub endless
{
	my ($first, $next) = @_;
	return sub { (my $bytes, $first) = ($first, $next); return $bytes };
}

# ----- the registry -----

sub read_bytes
{
	my ($socket, $length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		sysread($socket, $bytes, $length - length $bytes, length $bytes)
		  or POSIX::_exit(0);
	}
	return $bytes;
}

# Reads the messages of a statement up to Sync, and returns them.
sub read_statement
{
	my ($socket) = @_;
	my $statement = '';

	for (;;)
	{
		my ($type, $length) = unpack 'a N', read_bytes($socket, 5);

		$statement .= read_bytes($socket, $length - 4);
		return $statement if $type eq 'S' || $type eq 'X';
	}
	return;
}

# Serves one connection, in a process of its own.
sub serve
{
	my ($socket, $kind_file) = @_;

	$SIG{PIPE} = 'DEFAULT';
	read_bytes($socket, unpack('N', read_bytes($socket, 4)) - 4);
	syswrite $socket,
	  message('R', pack 'N', 0)
	  . join('',
		map { message('S', "$_\0") } "server_version\0" . '15.0',
		"in_hot_standby\0off", "default_transaction_read_only\0off")
	  . $ready;
	while (my $statement = read_statement($socket))
	{
		my ($claim, $release) = split /\n/, slurp_file($kind_file);
		my $is_release = $statement =~ /snowflake_registry\.release/;
		my $kind = $is_release ? $release : $claim;
		my $bytes = $kind =~ /^\d/ ? $kinds[$kind][1]
		  : $kind eq 'marker' ? $marker
		  : $is_release ? answer([BOOL], ["\1"])
		  : answer_with();

		if (ref $bytes)
		{
			# What has no end leaves the processor to others now and then.
			while (defined(my $next = $bytes->()))
			{
				syswrite $socket, $next or POSIX::_exit(0);
				sleep 0.001;
			}
			POSIX::_exit(0);
		}
		syswrite $socket, $bytes;
	}
	return;
}

# Starts a registry, and makes a server that leases from it: WORKER_ID, unless other
# parameters are given.  Returns the server, and a function that tells the registry
# what to send to a claim and to a release: a number of @kinds, "grant" or "marker".
sub registry_and_server
{
	my (@conf) = @_;
	my $kind_file = "$directory/kind$$";
	my $listener = IO::Socket::INET->new(Listen => 20, LocalAddr => '127.0.0.1', Proto => 'tcp')
	  or die "cannot listen: $!\n";
	my $parent = $$;
	my $pid = fork // die "cannot fork: $!\n";

	if ($pid == 0)
	{
		$SIG{CHLD} = 'IGNORE';
		while (getppid == $parent)
		{
			my $socket = $listener->accept or next;

			next if fork;
			serve($socket, $kind_file);
			POSIX::_exit(0);
		}
		POSIX::_exit(0);
	}
	at_end(sub { kill 'KILL', $pid; waitpid $pid, 0 });
	return (
		leasing_server('server',
			'host=127.0.0.1 port=' . $listener->sockport . ' dbname=x sslmode=disable gssencmode=disable',
			@conf ? @conf : wants(WORKER_ID)),
		sub { my ($claim, $release) = @_; replace_file($kind_file, $claim, $release // $claim) });
}

# ----- answers to a claim -----

# The largest amount of memory that the worker has had in kB.
sub peak_memory_kb
{
	my ($server) = @_;
	my ($kb) = slurp_file('/proc/' . worker_pid($server) . '/status') =~ /^VmHWM:\s+(\d+) kB/m;

	return $kb // die "no VmHWM of the worker\n";
}

sub to_a_claim
{
	my (@numbers) = @_;
	my ($server, $send) = registry_and_server();
	my $failures = sub { value_of($server, 'SELECT lease_failures FROM snowflake_stat()') };

	$send->('grant');
	start_server($server);
	is(worker_id_of(scalar first_id($server)), WORKER_ID, 'a good grant: an id is issued');
	for my $number (@numbers)
	{
		my ($kind, undef, $failure) = @{ $kinds[$number] };
		my $offset = -s $server->logfile;

		# A server logs only a failure that differs from the one before.
		$send->('marker');
		logs($server, $offset, qr/DETAIL:  .*marker/, "$kind: the failure before is logged");
		refuses($server, qr/marker/, 'the lease ends while the registry answers with errors') if $number == $numbers[0];
		$offset = -s $server->logfile;
		$send->($number);

		# The first of these attempts may still get the marker.
		my $before = $failures->();
		ok(wait_for(sub { $failures->() >= $before + ($failure eq $late ? 2 : 3) }),
			"$kind: attempts fail");
		my $text = logged($server, $offset);
		like($text, $failure, "$kind: the log says why");
		is(scalar(() = $text =~ /WARNING:  the registry has not granted/g), 1, "$kind: the log says so once");
		is((sqlstate_of($server, 'SELECT snowflake_nextval()'))[0], '55000', "$kind: no id is issued");
		cmp_ok(peak_memory_kb($server), '<', MEMORY_KB, "$kind: the worker's memory is bounded");
	}
	$send->('grant');
	is(worker_id_of(scalar first_id($server)), WORKER_ID, 'a good grant after all kinds of nonsense: an id is issued');
	$send->('marker', 0);
	stops_in_time($server, 'a server whose last renewal is an error');
	return;
}

# ----- answers to a renewal -----

# A renewal with ids from 2070, if the server took it, would move its mark there, for
# good.  A server without a worker id of its own takes any, but not by a renewal.
sub to_a_renewal
{
	my ($kind) = @_;
	my ($server, $send) = registry_and_server('snowflake.worker_id = -1');
	my ($number) = grep { $kinds[$_][0] eq $kind } 0 .. $#kinds;

	$send->('grant');
	start_server($server);
	first_id($server);
	my $offset = -s $server->logfile;
	$send->($number);
	logs($server, $offset, $impossible, "a renewal with $kind is refused");
	$send->('grant');
	is(worker_id_of(scalar first_id($server)), WORKER_ID, 'a good renewal follows: an id is issued');
	is(value_of($server, q{SELECT high_water_mark < now() + interval '1 hour' FROM snowflake_node()}), 't',
		'the mark has not moved to 2070');
	stops_in_time($server, "after a renewal with $kind");
	return;
}

# ----- answers to a release -----

sub stops_in_time
{
	my ($server, $what) = @_;

	cmp_ok(seconds_of(sub { $server->stop }), '<', STOP_S, "$what: the server stops in time");
	unlike(logged($server), qr/was terminated by signal|PANIC|exited with exit code [^01]/,
		"$what: no process of the server has crashed");
	return;
}

sub to_a_release
{
	my ($server, $send) = registry_and_server();

	for my $number (0 .. $#kinds)
	{
		my ($kind, undef, $failure) = @{ $kinds[$number] };

		next unless $kind =~ /^(nothing|an end|bytes|a command|no row|a null|an error|notices without end|400 MB)$/;
		$send->('grant', $number);
		start_server($server);
		first_id($server);
		my $offset = -s $server->logfile;
		stops_in_time($server, "$kind to a release");
		$failure = $shape if $kind eq 'a null';
		like(logged($server, $offset), qr/could not be given back to the registry\n.*$failure/,
			"$kind to a release: the log says why the lease is not released");
	}
	$send->('grant', 0);
	start_server($server);
	first_id($server);
	$send->(0);
	stops_in_time($server, 'nothing to the last renewal');
	return;
}

run_scenarios(
	'answers to a claim' => sub { to_a_claim(0 .. @kinds / 2) },
	'more answers to a claim' => sub { to_a_claim(@kinds / 2 + 1 .. $#kinds) },
	'a renewal with ids from 2070' => sub { to_a_renewal('ids from 2070') },
	'a renewal with another worker id' => sub { to_a_renewal('another worker id') },
	'answers to a release' => \&to_a_release);
done_testing();
