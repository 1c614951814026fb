# A disk that is slow, hangs or is full: only the first id after a start waits for
# a flush of WAL; a session ends while a flush hangs; a wait for the page's lock
# can be interrupted; and a page that cannot be created leaves no file.  The disk
# is that of lib/disk.c.  The test counts ids, rows, flushes and records of the
# mark, and compares with what the same machine does on a fast disk, or with a
# bigserial, at the same moment.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(sleep);

use constant {
	FLUSH_US => 205_000,
	LOAD_S => 2,
	PAUSES_S => 9,
	ROUNDS => 5,                # a busy machine may disturb all rounds but one
};

my $issue = 'SELECT snowflake_nextval()';
my $insert = 'INSERT INTO ours (n) VALUES (1);';
my $directory = PostgreSQL::Test::Utils::tempdir();

# ----- the disk -----

# The numbers in the file that disk.c reads, in order.
my @names = qw(delay_us is_hanging flushes hanging bytes_left is_broken);
my %number_of = map { $names[$_] => $_ } 0 .. $#names;
my $disk_file = "$directory/disk";
my $library = build_library('disk');
append_to_file($disk_file, pack 'q*', (0) x @names);

# Changes the disk of all servers.
sub set_disk
{
	my (%values) = @_;

	for my $name (sort keys %values)
	{
		# Write in place and at once: servers have the file mapped.
		open my $fh, '+<:raw', $disk_file or die $!;
		sysseek $fh, 8 * $number_of{$name}, 0;
		defined syswrite $fh, pack 'q', $values{$name} or die $!;
		close $fh;
	}
	return;
}

# Returns one of the numbers, such as how many flushes have ended.
sub disk_value
{
	my ($name) = @_;
	return (unpack 'q*', slurp_file($disk_file))[ $number_of{$name} ];
}

# Starts a server on this disk, which is fast and empty except for these values.
sub start_on_disk
{
	my ($node, %values) = @_;

	set_disk(delay_us => 0, is_hanging => 0, bytes_left => -1, is_broken => 0, %values);
	local %ENV = (%ENV, preload($library), DISK_FILE => $disk_file);
	start_server($node);
	return;
}

# ----- the page cannot be created -----

# The page has a temporary name until it is whole and on disk.
my $node = new_server('full', 'fsync = on');
my $new_file = mark_file($node) =~ s/8947/pgsql_tmp_snowflake/r;
for my $case (
	[ 'the disk is full', '53100', bytes_left => 0 ],
	[ 'the disk is full after half a page', '53100', bytes_left => 4096 ],
	[ 'the flush of the page fails', '58030', is_broken => 1 ])
{
	my ($what, $expected, @disk) = @$case;

	start_on_disk($node, @disk);
	for my $attempt ('the first call', 'the second call', 'a call after a crash')
	{
		my ($state, $message, $hint) = sqlstate_of($node, $issue);

		is($state, $expected, "$what: $attempt raises the error of the disk");
		like($hint, qr/^No snowflake id is issued until file "global\/8947"/, "$what: the hint names the file");
		ok(!-e mark_file($node) && !-e $new_file, "$what: there is no file");
		next if $attempt ne 'the second call';
		kill_hard($node);
		start_on_disk($node, @disk);
	}
	set_disk(bytes_left => -1, is_broken => 0);
	my $batch = insert_batch($node, 10);
	kill_hard($node);
	start_server($node);
	is_unique_after($node, $batch, "$what: after the cause is gone");
	$node->stop;
	set_clock($node, 0);
	unlink mark_file($node);
}

# A crash may leave the file of the temporary name.
append_to_file($new_file, 'x' x 10_000);
start_server($node);
first_id_soon($node, 'a file of the temporary name is left over');
is(-s mark_file($node), 8192, 'the new file has one block');
end_servers($node);

# ----- slow flushes -----

$node = new_server(
	'slow',
	"include 'case.conf'",
	'fsync = on',
	# While a flush hangs, WAL and changed pages have to stay in memory.
	'shared_buffers = 128MB',
	'wal_buffers = 16MB',
	'log_statement = none');
my $mark_writes = 'SELECT high_water_writes FROM snowflake_stat()';
configure($node);
start_on_disk($node);
value_of($node, $issue);
value_of($node, q{
CREATE TABLE ours (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
CREATE TABLE theirs (id bigserial PRIMARY KEY, n int);
});

# The next first id waits for that flush.
$node->stop;
start_on_disk($node);
my ($first, $watcher) = map { SnowflakeSession->new($node) } 1, 2;
set_disk(is_hanging => 1);
$first->ask($issue);
ok( wait_for(
		sub { $watcher->value("SELECT coalesce(wait_event, 'none') FROM pg_stat_activity WHERE pid = $first->{pid}") =~ /^wal/i }),
	'the first id after a start waits for a flush of WAL');
set_disk(is_hanging => 0);
is(($first->answer)[0], '', 'the first id is issued after the flush');
$_->quit for $first, $watcher;
set_disk(delay_us => FLUSH_US);

sub reload_with
{
	configure($node, @_);
	$node->reload;
	return;
}

# Runs a statement again and again in some sessions for LOAD_S or as many
# seconds as are given.  Returns how
# often it was executed, how many flushes ended meanwhile, and how many records
# of the mark were logged.
sub load
{
	my ($sessions, $sql, $seconds) = @_;
	my $file = "$directory/load.sql";
	my $writes = value_of($node, $mark_writes);
	my $flushes = disk_value('flushes');

	unlink $file;
	append_to_file($file, "$sql\n");

	# A call that never returns must not hold up the test.
	local $ENV{PGOPTIONS} = '-c statement_timeout=20s';
	my ($stdout, $stderr) = run_command(
		[
			'pgbench', '--no-vacuum', "--client=$sessions", '--jobs=1',
			'--protocol=prepared', '--time=' . ($seconds // LOAD_S), "--file=$file",
			$node->connstr('postgres')
		]);
	my ($count) = $stdout =~ /transactions actually processed: (\d+)/
	  or die "pgbench: $stderr";
	my %load = (
		count => $count,
		flushes => disk_value('flushes') - $flushes,
		marks => value_of($node, $mark_writes) - $writes);

	note "$sessions sessions, $sql: ", join ', ', map { "$_ $load{$_}" } sort keys %load;
	return \%load;
}

# Tests that one load is executed at least so many times as often as another one.
# Both run again, in turns, if this machine may have disturbed them.  Returns what
# load() returned for the first one.
sub is_as_fast
{
	my ($part, $what, $load, $other) = @_;
	my (@loads, $is_as_fast);

	for (1 .. ROUNDS)
	{
		@loads = map { $_->() } $other, $load;
		last if $is_as_fast = $loads[1]{count} >= $part * $loads[0]{count};
	}
	ok($is_as_fast, "$what: $loads[1]{count} beside $loads[0]{count}");
	cmp_ok($loads[0]{count}, '>', 0, "$what: there is something to compare with");
	return $loads[1];
}

# A load while flushes take no time.
sub load_without_delay
{
	set_disk(delay_us => 0);
	my $load = load(@_);
	set_disk(delay_us => FLUSH_US);
	return $load;
}

for my $sessions (1, 4)
{
	my $what = "flushes of 205 ms, $sessions sessions";

	my $first = value_of($node, $issue);
	my $calls = load($sessions, "$issue;");
	my $ms = (value_of($node, $issue) >> 22) - ($first >> 22);
	cmp_ok($calls->{marks}, '<=', 2 + $ms / 250, "$what: there is one record of the mark in 250 ms at most");
	is_as_fast(0.3, "$what: ids do not wait for flushes",
		sub { load($sessions, "$issue;") }, sub { load_without_delay($sessions, "$issue;") });
	is_as_fast(0.8, "$what: there are as many inserts as into a bigserial",
		sub { load($sessions, $insert) }, sub { load($sessions, $insert =~ s/ours/theirs/r) });
}

# After a pause the next id needs a mark of its own.  A flush of that mark, by
# whatever process, would hold up the flush of the insert's commit.
my $ours = is_as_fast(0.9, 'inserts after pauses: there are as many as into a bigserial',
	map { my $sql = $_; sub { load(1, "$sql\n\\sleep 600 ms", PAUSES_S) } } $insert, $insert =~ s/ours/theirs/r);
cmp_ok($ours->{marks}, '>=', $ours->{count} - 1, 'inserts after pauses: each logs a mark');

reload_with('synchronous_commit = off');
is_as_fast(0.3, 'synchronous_commit = off: inserts do not wait for flushes',
	sub { load(1, $insert) }, sub { load_without_delay(1, $insert) });

# ----- a flush that hangs -----

reload_with();
my @sessions = map { SnowflakeSession->new($node) } 1 .. 5;

# Write all WAL and all other pages before, so that there is room for more WAL in
# memory, and the checkpointer writes the mark's page first.
set_disk(delay_us => 0);
$_->value($issue) for @sessions;
value_of($node, 'CHECKPOINT');
set_disk(is_hanging => 1);
sleep 0.6;
value_of($node, $issue);    # logs a mark
ok(wait_for(sub { disk_value('hanging') > 0 }), 'a flush hangs');
my $flushes = disk_value('flushes');
my $calls = load(4, "$issue;");
cmp_ok($calls->{marks}, '>=', LOAD_S, 'sessions go on to issue ids and to log marks while a flush hangs');

# The checkpointer holds the page's lock while it flushes WAL.  A session that
# needs another mark waits for the lock.
my $checkpoint = SnowflakeSession->new($node);
my ($session, $other, @ended) = @sessions;
$checkpoint->ask('CHECKPOINT');
$session->rows("SET statement_timeout = '300ms'");
ok(wait_for(sub { $session->state_of($issue) eq '57014' }), 'statement_timeout ends a wait for the page');
$session->rows('RESET statement_timeout');
$session->ask($issue);
$session->wait_until_it_waits;
$other->rows("SELECT pg_cancel_backend($session->{pid})");
is(($session->answer)[0], '57014', 'a cancel ends a wait for the page');
$session->ask($issue);
$session->wait_until_it_waits;
is($other->value("SELECT pg_terminate_backend($session->{pid}, 600000)"),
	't', 'a session that waits for the page is terminated');
$session->{psql}{run}->kill_kill;
is_deeply([ map { $other->value("SELECT pg_terminate_backend($_->{pid}, 600000)") } @ended ],
	[ ('t') x @ended ], 'sessions that have issued ids are terminated');
$_->{psql}{run}->kill_kill for @ended;
is(disk_value('flushes'), $flushes, 'the flush has hung all the time');
set_disk(is_hanging => 0);
is(($checkpoint->answer)[0], '', 'the checkpoint ends when the flush has ended');
$_->quit for $other, $checkpoint;

# Ids and rows before a crash do not come again.
my $batch = insert_batch($node, 1000);
kill_hard($node);
start_on_disk($node);
is_unique_after($node, $batch, 'a crash after a flush has hung');
end_servers($node);

done_testing();
