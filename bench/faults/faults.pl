# Runs each fault against all peers at once, each with servers and clients of its
# own, and prints a line for each fault.  bench/faults/run calls this.
#
# Four sessions insert 20 rows at a time and keep each id that they receive; a
# reader asks for the rows above the largest id that it has read.  A cell has
#
#   s           the longest time without an id since the fault; "to the end" if no id
#               came again before the sample ended
#   twice       ids that a client had received before
#   disordered  ids smaller than one that a client had received from this server, or
#               the server that it has taken over from, before it asked
#   missed      rows that are in the table and that the reader has not read
#   errors      inserts that a server refused; the sessions then wait for 50 ms
use strict;
use warnings FATAL => 'all';

use IPC::Open3;
use List::Util qw(max min);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(clock_library);
use SnowflakeTime qw(make_pace_file);
use Time::HiRes qw(clock_gettime sleep time CLOCK_MONOTONIC);

use constant {
	BEFORE_S => 2,              # how long ids are issued before a fault
	AFTER_S => 6,               # and after it
	BACK_S => 3,                # how far a clock is behind after a crash
	SESSIONS => 4,
	ROWS => 20,
	SLOWNESS => 2000,           # of the clock, for many ids in one millisecond
	TIMEOUT_S => 120
};

# ----- the peers -----

# Each is configured as its documentation says.  "number" is the parameter for a
# server's number.  In "setup", :number is the number (1 if nobody has configured
# one), :servers how many servers share the numbers, and :secret is of the server.
my @peers = (
	{
		name => 'this extension',
		preload => 'snowflake',
		number => 'snowflake.worker_id',
		setup => 'CREATE EXTENSION snowflake',
		default => 'snowflake_nextval()',
		horizon => 'snowflake_horizon()'
	},
	{
		name => 'pgEdge',
		lacks => $ENV{PGEDGE} ? undef : 'not installed',
		number => 'snowflake.node',
		setup => qq{CREATE SEQUENCE ids; CREATE FUNCTION pgedge_nextval(regclass)
			RETURNS bigint AS '$ENV{PGEDGE}', 'snowflake_nextval' LANGUAGE C},
		default => q{pgedge_nextval('ids')}
	},
	{
		name => 'uuidv7()',
		lacks => $ENV{PG_MAJOR} >= 18 ? undef : 'needs 18',
		type => 'uuid',
		setup => '',
		default => 'uuidv7()'
	},
	{
		name => 'bigserial',
		setup => 'CREATE SEQUENCE ids START :number INCREMENT :servers',
		default => q{nextval('ids')}
	},
	{
		# 41 bits of milliseconds since an epoch, 13 of a shard's number, 10 of a
		# sequence, as Instagram has described it.
		name => "Instagram's function",
		setup => q{CREATE SEQUENCE ids;
CREATE FUNCTION shard_id() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1300000000000 << 23)
		| (:number << 10) | (nextval('ids') & 1023);
END $$},
		default => 'shard_id()'
	},
	{
		# 48 bits of the transaction's milliseconds, and 16 of a sequence plus a hash
		# of the table's name, a secret and the milliseconds, as Mastodon has
		# described it.  There is no place for a server's number.
		name => "Mastodon's function",
		setup => q{CREATE SEQUENCE ids;
CREATE FUNCTION timestamp_id(relation text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	ms bigint := extract(epoch FROM now()) * 1000;
	hash text := md5(relation || ':secret' || ms);
BEGIN
	RETURN (ms << 16)
		| (('x' || left(hash, 4))::bit(16)::bigint + nextval('ids') & 65535);
END $$},
		default => q{timestamp_id('orders')}
	});

# ----- the faults -----

my $nothing = sub { };
my $promoted = 'promotion of a standby that lacks ' . BEFORE_S . ' s of WAL';
my $behind = 'clock ' . BACK_S . ' s behind';

# Each has a name, what happens, the servers' numbers, and what is there before.
my @faults = (
	[ 'none', $nothing ],
	[ 'two servers, nothing configured', $nothing, [ undef, undef ] ],
	[ 'two servers, a number each', $nothing, [ 1, 2 ] ],
	[ 'two servers, equal numbers by mistake', $nothing, [ 1, 1 ] ],
	[ 'clock back 1 s', sub { set_clock($_[0]{nodes}[0], -1) } ],
	[ 'clock back 1 h', sub { set_clock($_[0]{nodes}[0], -3600) } ],
	[
		"SIGKILL, restart, $behind",
		sub { kill_hard($_[0]{nodes}[0]); start_server($_[0]{nodes}[0], -BACK_S) }
	],
	[ $promoted, \&promote, [1], sub { add_standby($_[0], 2, 0) } ],
	[ "$promoted, $behind", \&promote, [1], sub { add_standby($_[0], 2, -BACK_S) } ],
	[
		"$promoted, $behind, number of the primary",
		\&promote, [1], sub { add_standby($_[0], 1, -BACK_S) }
	],
	[
		'restore of a backup',
		\&restore, [1], sub { $_[0]{nodes}[0]->backup($_[0]{name}) }
	],
	[ '5 rows commit late, reader by id', \&commit_late ],
	[ '5 rows commit late, reader by horizon', \&commit_late ],
	[ '1,000 ids in 1 ms', sub { issue_burst($_[0], 1000) } ],
	[ '10,000 ids in 1 ms', sub { issue_burst($_[0], 10_000) } ]);

# Adds a standby whose clock differs from the primary's.
sub add_standby
{
	my ($world, $number, $clock_s) = @_;
	my $standby = standby_node($world->{nodes}[0], "$world->{name}_standby");

	$standby->append_conf('postgresql.conf', conf_of($world->{peer}, $number));
	$world->{standby} = start_server($standby, $clock_s);
	return;
}

# The primary crashes after the standby has received nothing for a while.
sub promote
{
	my ($world) = @_;
	my ($primary, $standby) = ($world->{nodes}[0], $world->{standby});

	value_of($standby, $_)
	  for q{ALTER SYSTEM SET primary_conninfo = ''}, 'SELECT pg_reload_conf()';
	$standby->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or die "the standby still receives\n";
	issue($world, BEFORE_S);
	begin_of_fault($world);
	kill_hard($primary);
	$standby->promote;
	$world->{nodes} = [$standby];
	return;
}

sub restore
{
	my ($world) = @_;
	my $node = PostgreSQL::Test::Cluster->new("$world->{name}_restored");

	kill_hard($world->{nodes}[0]);
	$node->init_from_backup($world->{nodes}[0], $world->{name});
	begin_of_fault($world);
	$world->{nodes} = [ start_server($node, 0) ];
	return;
}

sub commit_late
{
	my ($world) = @_;

	for (1 .. 5)
	{
		my $late = connect_to($world->{nodes}[0]);

		ask($late, 'BEGIN; ' . insert($world, 1));
		keep_ids($world, 0, $world->{largest}[0], answer_of($late));
		issue($world, 0.5);
		ask($late, 'COMMIT');
		answer_of($late);
		disconnect($late);
		issue($world, 0.3);
	}
	return;
}

# Has one session insert while the clock is so slow that all ids fall into one
# millisecond, unless the peer waits.  The time is that of the server's clock.
sub issue_burst
{
	my ($world, $rows) = @_;
	my $clock = 'SELECT 1000 * extract(epoch FROM clock_timestamp())';

	# Begin where a sequence is in use, and with a millisecond.
	issue_once($world, 1, 500);
	my $ms = value_of($world->{nodes}[0], $clock);
	sleep((1.05 - ($ms - int $ms)) * SLOWNESS / 1000);
	$ms = value_of($world->{nodes}[0], $clock);
	issue_once($world, 1, $rows);
	$world->{burst_s} = (value_of($world->{nodes}[0], $clock) - $ms) / 1000;
	return;
}

# ----- servers -----

my $template;

# A stopped cluster that all others are copies of.
sub make_template
{
	$template = PostgreSQL::Test::Cluster->new('template');
	$template->init(allows_streaming => 1, extra => ['--wal-segsize=1']);
	$template->append_conf('postgresql.conf', "wal_keep_size = 64\n");
	$template->start;

	# Most files belong to the template databases.
	value_of($template, $_) for
	  'UPDATE pg_database SET datistemplate = false',
	  'DROP DATABASE template0', 'DROP DATABASE template1';
	$template->stop;
	$template->backup_fs_cold('cold');
	return;
}

sub conf_of
{
	my ($peer, $number) = @_;
	return ($peer->{preload} ? "shared_preload_libraries = '$peer->{preload}'\n" : '')
	  . ($peer->{number} && defined $number ? "$peer->{number} = $number\n" : '');
}

# Starts a peer's server with a table.
sub new_server
{
	my ($world, $name, $number, $servers) = @_;
	my $peer = $world->{peer};
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %values = (
		number => $number // 1,
		servers => defined $number ? $servers : 1,
		secret => rand);

	$node->init_from_backup($template, 'cold');
	$node->append_conf('postgresql.conf', conf_of($peer, $number));
	local $ENV{CLOCK_PACE_FILE} = (make_pace_file(SLOWNESS))[0] if $world->{is_burst};
	start_server($node, 0);
	value_of($node, $_) for
	  $peer->{setup} =~ s/:(number|servers|secret)/$values{$1}/gr,
	  'CREATE TABLE orders (id ' . ($peer->{type} // 'bigint')
	  . " DEFAULT $peer->{default}, n bigint)",
	  'CREATE INDEX ON orders (id)';
	return $node;
}

# ----- sessions -----

sub connect_to
{
	my ($node) = @_;
	my $psql = { buffer => '' };

	$psql->{pid} = open3($psql->{in}, $psql->{out}, undef,
		'psql', '-XAtq', '-d', $node->connstr('postgres'));
	return $psql;
}

sub disconnect
{
	my ($psql) = @_;

	close $psql->{in};
	kill 'KILL', $psql->{pid};
	waitpid $psql->{pid}, 0;
	return;
}

sub ask
{
	my ($psql, $statement) = @_;

	syswrite $psql->{in}, "$statement;\n\\echo (end)\n";
	return;
}

# The lines of an answer; nothing if the connection is lost.
sub answer_of
{
	my ($psql) = @_;

	for (;;)
	{
		return [ split /\n/, $1 ] if $psql->{buffer} =~ s/\A(.*?)^\(end\)\n//ms;
		sysread $psql->{out}, $psql->{buffer}, 65536, length $psql->{buffer}
		  or return undef;
	}
}

sub insert
{
	my ($world, $rows) = @_;
	my $first = $world->{n} + 1;

	$world->{n} += $rows;
	return
	  "INSERT INTO orders (n) SELECT generate_series($first, $world->{n}) RETURNING id";
}

# ----- what clients see -----

# Begins to count the time without ids.
sub begin_of_fault
{
	my ($world) = @_;

	$world->{gap_s} = 0;
	$world->{last_at} = clock_gettime(CLOCK_MONOTONIC);
	return;
}

# Counts the ids of an answer.  "before" is the largest id of the server when the
# client asked.  Returns whether there are ids.
sub keep_ids
{
	my ($world, $server, $before, $lines) = @_;
	my $now = clock_gettime(CLOCK_MONOTONIC);

	return 0 unless defined $lines;
	if (grep { /^(?:ERROR|FATAL)/ } @$lines)
	{
		$world->{errors}++;
		return 0;
	}
	for my $id (@$lines)
	{
		# Texts that compare as the ids do.
		$id = sprintf '%020d', $id if $id =~ /^\d+$/;
		$world->{twice}++ if $world->{seen}{$id}++;
		$world->{disordered}++ if $id lt $before;
		$before = $id if $id gt $before;
	}
	$world->{largest}[$server] = $before if $before gt $world->{largest}[$server];
	$world->{gap_s} = max($world->{gap_s}, $now - $world->{last_at});
	$world->{last_at} = $now;
	return 1;
}

# Has some sessions insert at the same time.
sub issue_once
{
	my ($world, $sessions, $rows) = @_;
	my @before = @{ $world->{largest} };
	my $is_issuing = 0;

	for my $i (0 .. $sessions - 1)
	{
		$world->{session}[$i] //= connect_to($world->{nodes}[ $i % @before ]);
		ask($world->{session}[$i], insert($world, $rows));
	}
	for my $i (0 .. $sessions - 1)
	{
		my $server = $i % @before;
		my $lines = answer_of($world->{session}[$i]);

		$is_issuing |= keep_ids($world, $server, $before[$server], $lines);
		disconnect(delete $world->{session}[$i]) unless defined $lines;
	}
	sleep($is_issuing ? 0.005 : 0.05);
	return;
}

# Reads the rows above the largest id that was read.
sub read_on
{
	my ($world) = @_;
	my $sql = "SELECT n, id FROM orders WHERE id > '$world->{read_to}'";

	$sql = "SELECT $world->{horizon} AS horizon \\gset\n$sql AND id < :horizon"
	  if $world->{horizon};
	$world->{reader} //= connect_to($world->{nodes}[0]);
	ask($world->{reader}, "$sql ORDER BY id");
	my $lines = answer_of($world->{reader});
	disconnect(delete $world->{reader}) unless defined $lines;
	for (grep { /^\d+\|/ } @{ $lines // [] })
	{
		my ($n, $id) = split /\|/;
		$world->{is_read}{$n} = 1;
		$world->{read_to} = $id;
	}
	return;
}

sub issue
{
	my ($world, $seconds) = @_;
	my $until = clock_gettime(CLOCK_MONOTONIC) + $seconds;

	while (clock_gettime(CLOCK_MONOTONIC) < $until)
	{
		issue_once($world, SESSIONS, ROWS);
		read_on($world) if $world->{round}++ % 4 == 0;
	}
	return;
}

# ----- cells and lines of the table -----

# Runs a fault against a peer.  Returns a cell, and how many ids there were.
sub run_fault
{
	my ($fault, $peer, $name) = @_;
	my ($title, $act, $numbers, $prepare) = @$fault;
	my @numbers = @{ $numbers // [1] };
	my $is_burst = $title =~ / ids in /;
	my $world = {
		name => $name,
		peer => $peer,
		is_burst => $is_burst,
		horizon => $title =~ /by horizon/ ? $peer->{horizon} : undef,
		n => 0,
		largest => [ map { '' } @numbers ],
		read_to => $peer->{type} ? '00000000-0000-0000-0000-000000000000' : 0
	};

	$world->{nodes} = [ map { new_server($world, "${name}_$_", $numbers[$_], scalar @numbers) }
		  0 .. $#numbers ];
	$prepare->($world) if $prepare;
	begin_of_fault($world);
	issue($world, BEFORE_S) unless $is_burst;
	begin_of_fault($world);
	$act->($world);
	issue($world, AFTER_S) unless $is_burst;
	return (cell_of($world), scalar keys %{ $world->{seen} });
}

sub cell_of
{
	my ($world) = @_;
	my $silent_s = clock_gettime(CLOCK_MONOTONIC) - $world->{last_at};
	my $seconds =
	  defined $world->{burst_s} ? sprintf '%.3f s', $world->{burst_s}
	  : $silent_s > 1 ? sprintf '%.1f s to the end', $silent_s
	  :                 sprintf '%.1f s', $world->{gap_s};

	read_on($world);
	$world->{missed} = grep { !$world->{is_read}{$_} } split /\n/,
	  value_of($world->{nodes}[0], 'SELECT n FROM orders');
	return join ', ', $seconds,
	  map { $world->{$_} ? "$world->{$_} $_" : () } qw(twice disordered missed errors);
}

# Runs a fault against a peer, in a process of its own, whose result is a file.
sub start_cell
{
	my ($fault, $peer, $name, $file) = @_;
	my $pid = fork // die "fork: $!";
	my @result;

	return $pid if $pid != 0;
	srand;
	$SIG{ALRM} = sub { die "this takes too long\n" };
	alarm TIMEOUT_S;
	eval { @result = run_fault($fault, $peer, $name); 1 } or @result = ("no figure: $@", 0);
	$_->teardown_node, $_->clean_node
	  for grep { $_ != $template } @PostgreSQL::Test::Cluster::all_nodes;
	append_to_file($file, join "\n", map { s/\n/ /gr } @result);
	POSIX::_exit(0);
}

# The standard output is not Test::More's.
open my $table, '>&=', 3 or die $!;
$table->autoflush;
make_template();
clock_library();
my $directory = PostgreSQL::Test::Utils::tempdir();
my @totals;

print $table '| fault | ', join(' | ', map { $_->{name} } @peers), " |\n";
print $table '|', ' --- |' x (1 + @peers), "\n";
for my $i (grep { $faults[$_][0] =~ /$ENV{BENCH_ONLY}/ } 0 .. $#faults)
{
	my %pids;
	my @cells = map { $_->{lacks} } @peers;

	for my $j (grep { !$peers[$_]{lacks} } 0 .. $#peers)
	{
		$pids{$j} = start_cell($faults[$i], $peers[$j], "f${i}_$j", "$directory/$i.$j");
	}
	for my $j (keys %pids)
	{
		waitpid $pids{$j}, 0;
		($cells[$j], my $total) = split /\n/, slurp_file("$directory/$i.$j");
		push @totals, $total if $total && $faults[$i][0] !~ / ids in /;
	}
	print $table join(' | ', "| $faults[$i][0]", @cells), " |\n";
}
printf $table "\n- Ids in a cell, but for those in 1 ms: %d to %d\n", min(@totals), max(@totals)
  if @totals;
