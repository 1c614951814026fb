# A slow disk: ids do not wait for flushes of WAL, but for the first after a
# start.  The disk is that of lib/disk.c.  The test counts ids, rows, flushes
# and records of the mark; it measures no times.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeDisk;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

use constant {
	FLUSH_US => 205_000,
	LOAD_S => 4,
};

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = new_server(
	'slow',
	"include 'case.conf'",
	'fsync = on',
	'autovacuum = off',
	# While a flush hangs, WAL and changed pages have to stay in memory.
	'shared_buffers = 128MB',
	'wal_buffers = 16MB',
	'log_statement = none',
	'max_connections = 30');
my $mark_writes = 'SELECT high_water_writes FROM snowflake_stat';

# Runs a statement again and again in some sessions for LOAD_S.  Returns how
# often it was executed, how many flushes ended meanwhile, and how many records
# of the mark were logged.
sub load
{
	my ($sessions, $sql, @options) = @_;
	my $file = "$directory/load.sql";
	my $flushes = disk_value($node, 'flushes');
	my $writes = value_of($node, $mark_writes);

	unlink $file;
	PostgreSQL::Test::Utils::append_to_file($file, "$sql\n");

	# A call that never returns must not hold up the test.
	local $ENV{PGOPTIONS} = '-c statement_timeout=20s';
	my ($stdout, $stderr) = PostgreSQL::Test::Utils::run_command(
		[
			'pgbench', '--no-vacuum', "--client=$sessions", '--jobs=1',
			'--protocol=prepared', '--time=' . LOAD_S, "--file=$file", @options,
			$node->connstr('postgres')
		]);
	my ($count) = $stdout =~ /transactions actually processed: (\d+)/
	  or die "pgbench: $stderr";
	return {
		count => $count,
		flushes => disk_value($node, 'flushes') - $flushes,
		marks => value_of($node, $mark_writes) - $writes
	};
}

configure($node, '');
start_on_disk($node);
$node->safe_psql(
	'postgres', q{
CREATE TABLE ours (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
CREATE TABLE theirs (id bigserial PRIMARY KEY, n int);
});

# ----- slow flushes -----

set_disk($node, delay_us => FLUSH_US);
for my $interval ('500ms', '10ms')
{
	configure($node, "snowflake.high_water_interval = $interval");
	$node->reload;
	for my $sessions (1, 4)
	{
		my $what = "flushes of 205 ms, high_water_interval $interval, $sessions sessions";
		my $calls = load($sessions, 'SELECT snowflake_nextval();');
		my $theirs = load($sessions, 'INSERT INTO theirs (n) VALUES (1);');
		my $ours = load($sessions, 'INSERT INTO ours (n) VALUES (1);');

		cmp_ok($calls->{count}, '>', 200 * ($calls->{flushes} + 1), "$what: there are hundreds of ids for each flush");
		cmp_ok($calls->{marks}, '<=', 2 + LOAD_S * 1000 / ($interval =~ s/ms//r), "$what: there is one record of the mark in an interval at most");
		cmp_ok($ours->{count}, '>=', 0.8 * $theirs->{count}, "$what: there are as many inserts as into a bigserial");
		cmp_ok($ours->{count}, '>=', LOAD_S, "$what: rows are inserted");
		note "$what: $calls->{count} ids, $calls->{flushes} flushes, $calls->{marks} marks; "
		  . "$ours->{count} inserts, bigserial $theirs->{count}";
	}
}

# After a pause the next id needs a mark of its own.  A flush of that mark, by
# whatever process, would hold up the flush of the insert's commit.
{
	my $insert = "INSERT INTO %s (n) VALUES (1);\n\\sleep 30 ms";

	configure($node, 'snowflake.high_water_interval = 10ms');
	$node->reload;
	my $theirs = load(1, sprintf $insert, 'theirs');
	my $ours = load(1, sprintf $insert, 'ours');
	cmp_ok($ours->{marks}, '>=', $ours->{count} - 1, 'inserts after pauses: each logs a mark');
	cmp_ok($ours->{count}, '>=', 0.8 * $theirs->{count}, 'inserts after pauses: there are as many as into a bigserial');
	note "inserts after pauses: $ours->{count}, $ours->{marks} marks, $ours->{flushes} flushes; "
	  . "bigserial $theirs->{count}, $theirs->{flushes} flushes";
}

for my $interval ('500ms', '10ms')
{
	configure($node, "snowflake.high_water_interval = $interval",
		'synchronous_commit = off');
	$node->reload;
	my $ours = load(1, 'INSERT INTO ours (n) VALUES (1);');
	cmp_ok($ours->{count}, '>', 50 * ($ours->{flushes} + 1), "synchronous_commit = off, high_water_interval $interval: inserts do not wait for flushes");
	note "synchronous_commit = off, high_water_interval $interval: $ours->{count} inserts, $ours->{flushes} flushes";
}

# ----- a flush that hangs -----

configure($node, 'snowflake.high_water_interval = 10ms');
$node->reload;
{
	my @sessions = map { SnowflakeSession->new($node) } 1 .. 3;

	$_->value('SELECT snowflake_nextval()') for @sessions;
	set_disk($node, is_hanging => 1);
	value_of($node, 'SELECT snowflake_nextval()');    # logs a mark
	ok(wait_for(sub { disk_value($node, 'hanging') > 0 }), 'a flush hangs');
	my $flushes = disk_value($node, 'flushes');
	my $calls = load(4, 'SELECT snowflake_nextval();');
	cmp_ok($calls->{count}, '>', 1000, 'sessions go on to issue ids while a flush hangs');
	cmp_ok($calls->{marks}, '>', 10, 'sessions go on to log marks while a flush hangs');
	note "a flush that hangs: $calls->{count} ids, $calls->{marks} marks";

	# A statement that issues ids for ever ends at once.
	my $endless = 'SELECT count(snowflake_nextval()) FROM (SELECT generate_series(1, 1000000000)) AS s';
	$sessions[0]->rows("SET statement_timeout = '300ms'");
	is($sessions[0]->state_of($endless), '57014', 'statement_timeout ends a statement while a flush hangs');
	$sessions[1]->ask($endless);
	value_of($node, "SELECT pg_cancel_backend($sessions[1]{pid})")
	  if $node->poll_query_until('postgres',
		"SELECT state = 'active' FROM pg_stat_activity WHERE pid = $sessions[1]{pid}");
	is(($sessions[1]->answer)[0], '57014', 'a cancel ends a statement while a flush hangs');

	# A session that has issued ids ends, and so does one that is terminated.
	$sessions[1]->quit;
	is($sessions[0]->value("SELECT pg_terminate_backend($sessions[2]{pid}, 60000)"),
		't', 'a session is terminated while a flush hangs');
	$sessions[2]{psql}{run}->kill_kill;
	is(value_of($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $sessions[2]{pid}"),
		0, 'the terminated session has ended');
	is(disk_value($node, 'flushes'), $flushes, 'the flush has hung all the time');
	set_disk($node, is_hanging => 0, delay_us => 0);
	value_of($node, 'INSERT INTO ours (n) VALUES (1)');
	ok(1, 'rows are committed when the flush has ended');
	$sessions[0]->quit;
}

# Ids and rows before a crash do not come again.
{
	my $batch = insert_batch($node, 1000);

	kill_hard($node);
	start_on_disk($node);
	is_unique_after($node, $batch, 'after a crash');
}

# ----- the first id after a start -----

# It waits for one flush, that of its mark.
{
	set_clock($node, 0);
	$node->stop;
	unlink mark_file($node);
	start_on_disk($node);
	my $flushes = disk_value($node, 'flushes');
	value_of($node, 'SELECT snowflake_nextval()');
	cmp_ok(disk_value($node, 'flushes'), '>', $flushes, 'the first id after a start comes after a flush');
}
$node->stop;

done_testing();
