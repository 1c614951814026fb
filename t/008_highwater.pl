# The high-water mark: what a start, a crash, a clock that is behind, a worker
# that does not run, a disk that fails and a damaged file come to.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::stat;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $clock = "$directory/clock";
set_clock($clock, 0);

my $node = snowflake_node('main', "include 'case.conf'");
my $file = state_file($node);
my $newest = 0;                 # of all ids issued in this test

sub start
{
	local %ENV = (%ENV, faketime_environment($clock));
	$node->start;
	return;
}

sub value_of
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Kills the postmaster, and waits until its children have noticed.
sub kill_server
{
	my $pids = value_of(q{SELECT string_agg(pid::text, ' ') FROM pg_stat_activity});

	$node->kill9;
	for my $pid (split / /, $pids)
	{
		usleep(1000) while kill 0, $pid;
	}
	return;
}

# Takes ids and holds them against all that were issued before.
sub take_ids
{
	my ($count, $what) = @_;
	my @ids = split /\n/, value_of("SELECT snowflake_nextvals($count)");

	is(scalar(grep { $_ <= $newest } @ids), 0, "$what: ids go on increasing")
	  or diag("$ids[0] after $newest");
	$newest = max($newest, @ids);
	return;
}

# How long a statement takes in seconds, without psql's own start.
sub duration_of
{
	my ($sql) = @_;
	my $stdout = value_of("\\timing on\n$sql");
	return (($stdout =~ /Time: ([\d.]+) ms/)[0] // die $stdout) / 1000;
}

# The mark as microseconds from the present, by the server's clock.
sub lead_of_mark
{
	my $state = read_state($node);
	return value_of(
		"SELECT round(1000000 * extract(epoch FROM snowflake_timestamp($state->{mark}::bigint << 22) - clock_timestamp()))"
	);
}

# The very first start.
write_case($node, '');
start();
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
ok(!-e $file, 'no file before the first id');
take_ids(10, 'the first start');
ok(-e $file, 'a file with the first id');
is(sprintf('%04o', stat($file)->mode & 07777), '0600', 'its mode');
cmp_ok(lead_of_mark(), '<=', 1_000_000, 'the mark leads by two intervals at most');
is(read_state($node)->{is_clean}, 0, 'it is not clean');

# A clean stop: right after the last tick.
$node->stop;
is(read_state($node)->{is_clean}, 1, 'a clean stop closes the file');
is(read_state($node)->{mark}, ($newest >> 22) + 1,
	'right after the last tick');
start();
cmp_ok(duration_of('SELECT snowflake_nextval()'),
	'<', 0.2, 'after a clean stop there is no wait');
take_ids(10, 'after a clean stop');

# An idle start and stop leaves the file as it is.
$node->stop;
my $before = PostgreSQL::Test::Utils::slurp_file($file);
start();
$node->stop;
is(PostgreSQL::Test::Utils::slurp_file($file),
	$before, 'who issues nothing writes nothing');

# Crashes: after the mark, soon, and without an error, whatever the policy.
# The long interval leaves something to wait for when the server is back.
for my $settings (
	'snowflake.clock_policy = wait',
	"snowflake.clock_policy = wait\nsnowflake.clock_tolerance = 0\nsnowflake.high_water_interval = 3s",
	"snowflake.clock_policy = error\nsnowflake.high_water_interval = 3s",
	"snowflake.clock_policy = advance\nsnowflake.clock_tolerance = 100\nsnowflake.high_water_interval = 3s")
{
	write_case($node, $settings);
	start();
	take_ids(2000, "$settings: before");
	my $mark = read_state($node)->{mark};
	kill_server();
	start();
	my $accepting = clock_gettime(CLOCK_MONOTONIC);
	take_ids(1, "$settings: after the postmaster was killed");
	my $seconds = clock_gettime(CLOCK_MONOTONIC) - $accepting;
	cmp_ok($newest >> 22, '>=', $mark, 'it is of a tick after the mark');
	cmp_ok($seconds, '<', $settings =~ /interval/ ? 6.5 : 1.5,
		'it comes soon');
	note sprintf('first id %.0f ms after the start', 1000 * $seconds);
	$node->stop;
}
write_case($node, '');

# The clock is behind at the start: the rules as if it had been running.
start();
take_ids(100, 'before the clock steps back');
kill_server();
set_clock($clock, -3);
start();
my $waited = duration_of('SELECT snowflake_nextval()');
cmp_ok($waited, '>', 1.5, 'a clock 3 s behind at the start is waited for');
cmp_ok($waited, '<', 4.5, 'and no longer');
take_ids(100, 'after the wait');
$node->stop('immediate');
is(read_state($node)->{mark}, ($newest >> 22) + 1,
	'an immediate stop closes the file too');
set_clock($clock, -3600);
start();
my $began = clock_gettime(CLOCK_MONOTONIC);
my ($state, $message, $hint) =
  sqlstate_of($node, 'SELECT snowflake_nextval()');
is($state, '55000', 'a clock an hour behind at the start is refused');
like($message, qr/behind the last snowflake id/, 'message');
is(value_of('SELECT snowflake_worker_id(910499571847892992)'),
	25, 'decoding goes on');
set_clock($clock, 0);
take_ids(100, 'when the clock is back');

# The same when the file was closed with the clock behind already.
set_clock($clock, -3600);
$node->stop;
start();
($state) = sqlstate_of($node,
	"SET statement_timeout = '3s'; SELECT snowflake_nextval()");
is($state, '55000', 'a clock an hour behind before and after a stop is refused');
set_clock($clock, 0);
take_ids(100, 'when the clock is back again');

# A backend's crash with the clock behind.
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
set_clock($clock, -2);
my $backend = IPC::Run::start(
	[ 'psql', '-XAtqc', 'SELECT pg_sleep(100)', $node->connstr('postgres') ],
	'<', \undef, '>', \my $out, '2>', \my $err);
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'pg_sleep.100' AND pid <> pg_backend_pid()");
my $offset = -s $node->logfile;
kill 'KILL',
  value_of(
	"SELECT pid FROM pg_stat_activity WHERE query ~ 'pg_sleep.100' AND pid <> pg_backend_pid()"
  );
$backend->finish;
$node->wait_for_log(qr/database system is ready to accept connections/,
	$offset);
$node->poll_query_until('postgres', 'SELECT true');
take_ids(100, 'after the crash of a backend with the clock behind');
set_clock($clock, 0);

# The worker writes while ids are issued, and only then.
sub worker_pid
{
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'snowflake high-water mark'"
	);
	return value_of(
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'snowflake high-water mark'"
	);
}
take_ids(10, 'before the idle time');
usleep(1_700_000);
my $idle = stat($file)->ctime . stat($file)->ino;
usleep(2_500_000);
is(stat($file)->ctime . stat($file)->ino, $idle, 'an idle server writes nothing');

my %marks;
my $until = clock_gettime(CLOCK_MONOTONIC) + 3;
while (clock_gettime(CLOCK_MONOTONIC) < $until)
{
	value_of('SELECT snowflake_nextvals(50)');
	$marks{ read_state($node)->{mark} } = 1;
}
cmp_ok(scalar(keys %marks), '<=', 9, 'a busy one writes once an interval');
cmp_ok(scalar(keys %marks), '>=', 4, 'and not less');
note scalar(keys %marks) . ' marks in 3 s';

# A stopped worker: backends move the mark.
my $pid = worker_pid();
kill 'STOP', $pid;
my $mark = read_state($node)->{mark};
usleep(1_500_000);
take_ids(100, 'with the worker stopped');
cmp_ok(read_state($node)->{mark}, '>', $mark, 'a backend has moved the mark');
kill 'CONT', $pid;

# A worker that is gone comes back.
kill 'TERM', $pid;
ok( $node->poll_query_until(
		'postgres',
		"SELECT pid <> $pid FROM pg_stat_activity WHERE backend_type = 'snowflake high-water mark'"
	),
	'a worker that ends is started again');
take_ids(100, 'with the new worker');
$node->stop;

# A disk that fails for the state file: refused, and served again after.
my $faults = "$directory/faults";
mkdir $faults;
my $library = build_fault_library($directory);
sub fault
{
	my ($name, $is_on) = @_;
	if ($is_on)
	{
		PostgreSQL::Test::Utils::append_to_file("$faults/$name", '');
	}
	else
	{
		unlink "$faults/$name";
	}
	return;
}
{
	local %ENV = (%ENV, preload($library), FAULT_DIRECTORY => $faults);
	write_case($node, 'fsync = on');
	$node->start;
}
take_ids(10, 'with the faulty disk at rest');
for my $case ([ 'full', '53100' ], [ 'broken', '58030' ])
{
	my ($name, $expected) = @$case;
	fault($name, 1);
	usleep(1_200_000);
	$mark = read_state($node)->{mark};
	# until the mark is reached ids may go on; then they may not
	my @refusal = ('');
	for (1 .. 40)
	{
		@refusal = sqlstate_of($node, 'SELECT snowflake_nextval()');
		last if $refusal[0] ne '';
		usleep(50_000);
	}
	is($refusal[0], $expected, "disk $name: the id is refused");
	like($refusal[1], qr/high-water mark cannot be saved/, "disk $name: message");
	like($refusal[2], qr/as soon as the file can be written/, "disk $name: hint");
	is(value_of('SELECT 1'), 1, "disk $name: the server is up");
	is(read_state($node)->{mark}, $mark, "disk $name: the mark stays");
	fault($name, 0);
	take_ids(100, "disk $name no more");
}

# A writer that is stuck: another one takes over, and the late one does not
# put its old mark back.
$pid = worker_pid();
fault("stuck.$pid", 1);
$until = clock_gettime(CLOCK_MONOTONIC) + 4;
my $slowest = 0;
while (clock_gettime(CLOCK_MONOTONIC) < $until)
{
	$slowest = max($slowest, duration_of('SELECT snowflake_nextvals(10)'));
}
cmp_ok($slowest, '<', 2, 'a stuck writer is taken over from');
note sprintf('the slowest call took %.0f ms', 1000 * $slowest);
$mark = read_state($node)->{mark};
fault("stuck.$pid", 0);
usleep(200_000);
cmp_ok(read_state($node)->{mark}, '>=', $mark,
	'the late writer does not put its mark back');
take_ids(1000, 'after a stuck writer');
cmp_ok(read_state($node)->{mark}, '>', $newest >> 22,
	'the mark on disk is past the newest id');
is_deeply([ glob($node->data_dir . '/snowflake.state.*') ],
	[], 'no temporary file is left');
$node->stop;
write_case($node, '');

# pg_checksums and its like do not mind the file.  From 18 on a server has
# checksums from its start.
if ($node->pg_version >= 18)
{
	command_ok([ 'pg_checksums', '--disable', '-D', $node->data_dir ],
		'pg_checksums disables');
}
command_ok([ 'pg_checksums', '--enable', '-D', $node->data_dir ],
	'pg_checksums enables');
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
	'pg_checksums checks');

# A file that does not verify: never an id, never overwritten, and the server
# serves everything else.
my $sound = PostgreSQL::Test::Utils::slurp_file($file);
my $size = length $sound;

sub refused_with
{
	my ($prepare, $expected, $what) = @_;

	$prepare->();
	$node->start;
	my @refusal = sqlstate_of($node, 'SELECT snowflake_nextval()');
	is($refusal[0], $expected, "$what: no id");
	isnt($refusal[2], '', "$what: hint");
	is(value_of('SELECT snowflake_worker_id(910499571847892992)'),
		25, "$what: the server is up");
	$node->stop;
	return;
}

sub write_file
{
	my ($bytes) = @_;
	open my $fh, '>:raw', $file or die "$file: $!";
	print $fh $bytes;
	close $fh or die "$file: $!";
	return;
}

# of the lease, which is empty here, one byte in eight will do; and of all of
# it where this is run once more with other settings
my $few = defined $ENV{TEMP_CONFIG};
for my $i (
	grep { !$few && ($_ < 72 || $_ >= $size - 8) || $_ % 8 == 0 }
	0 .. $size - 1)
{
	my $bytes = $sound;
	substr($bytes, $i, 1) =
	  chr(ord(substr($bytes, $i, 1)) ^ (1 << int rand 8));
	refused_with(sub { write_file($bytes) }, 'XX001', "byte $i flipped");
	is(PostgreSQL::Test::Utils::slurp_file($file),
		$bytes, "byte $i flipped: the file is left as it is");
}
for my $length (0, 1, 4, 8, 12, 40, $size - 4, $size - 1)
{
	refused_with(sub { write_file(substr($sound, 0, $length)) },
		'XX001', "truncated at $length");
}
refused_with(sub { write_file($sound . "\0") }, 'XX001', 'one byte too long');
refused_with(sub { write_file($sound x 200) }, 'XX001', 'much too long');
refused_with(sub { write_file($sound); chmod 0, $file; },
	'58030', 'unreadable');
chmod 0600, $file;
refused_with(sub { unlink $file; mkdir $file; }, '58030', 'a directory');
rmdir $file;
my $newer = $sound;
substr($newer, 4, 4) = pack 'L', 2;
refused_with(sub { write_file(seal_state($newer)) }, '0A000', 'a newer version');
is(seal_state($sound), $sound, 'the checksum is CRC-32C');

# The sound file again; and one that a crash left temporary files beside.
write_file($sound);
PostgreSQL::Test::Utils::append_to_file("$file.77.tmp", 'half');
$node->start;
take_ids(100, 'with the sound file again');
ok(!-e "$file.77.tmp", 'what a killed writer left is removed');
$node->stop;

# A changed layout or epoch: accepted only if no id can repeat.
for my $case (
	[ "snowflake.epoch = '2010-11-04 01:42:54.657+00'\nsnowflake.layout = '42/4/5/12'", 0, 'half the ids' ],
	[ "snowflake.epoch = '2015-01-01 00:00:00+00'", 0, 'a later epoch' ],
	[ "snowflake.layout = '41/5/5/12\@10ms'", 0, 'a longer tick' ],
	[ "snowflake.epoch = '2000-01-01 00:00:00+00'", 1, 'an earlier epoch' ],
	[ "snowflake.epoch = '2000-01-01 00:00:00+00'\nsnowflake.layout = '40/5/5/13'", 1, 'more bits below the tick' ],
	[ "snowflake.epoch = '2000-01-01 00:00:00+00'\nsnowflake.layout = '41/5/5/12'", 0, 'not less than what they were' ])
{
	my ($settings, $is_accepted, $what) = @$case;
	write_case($node, $settings);
	$offset = -s $node->logfile;
	is($node->start(fail_ok => 1), $is_accepted, "$what: accepted or not");
	if ($is_accepted)
	{
		take_ids(100, $what);
		$node->stop;
	}
	else
	{
		my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset);
		like($log,
			qr/FATAL:  parameters "snowflake.layout" and "snowflake.epoch" cannot be changed/,
			"$what: message");
		like($log, qr/DETAIL:  The smallest id that they make now is \d+, and ids up to \d+/,
			"$what: both values");
	}
}

done_testing();
