# Writers of all kinds and crashes with four readers: those that go by
# snowflake_horizon(), of the server or of a table, miss no row, and the one that
# goes by the largest id misses rows.
#
# HORIZON_SECONDS is how long 16 and 64 writers write, 6 by default; a few more
# write for half as long.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(sleep);

my $seconds = $ENV{HORIZON_SECONDS} // 6;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = snowflake_node(
	'main',
	'max_connections = 150',
	'max_prepared_transactions = 80',
	'restart_after_crash = on');
start_server($node);
value_of($node, 'CREATE EXTENSION snowflake');

# Each kind of writer takes ids, sleeps, and ends its transaction.
# sql/horizon.sql has more kinds.
my %writers = (
	one => q{
BEGIN;
INSERT INTO outbox (what) VALUES ('one');
\sleep :ms ms
COMMIT;
},
	many => q{
INSERT INTO outbox (what, lane) SELECT 'many', n % 3 FROM generate_series(1, 30) AS n;
\sleep :ms ms
},
	straight => q{
BEGIN;
INSERT INTO outbox_1 (what) VALUES ('straight');
\sleep :ms ms
COMMIT;
},
	# has an id of another table first
	late => q{
BEGIN;
INSERT INTO orders DEFAULT VALUES;
\sleep :ms ms
INSERT INTO outbox (what, lane) VALUES ('late', 1);
\sleep :ms ms
COMMIT;
},
	other => q{
BEGIN;
INSERT INTO orders DEFAULT VALUES;
\sleep :ms ms
PREPARE TRANSACTION 'o:client_id';
\sleep :ms ms
COMMIT PREPARED 'o:client_id';
},
	prepared => q{
BEGIN;
INSERT INTO outbox (what) VALUES ('prepared');
\sleep :ms ms
PREPARE TRANSACTION 'p:client_id';
\sleep :ms ms
COMMIT PREPARED 'p:client_id';
BEGIN;
INSERT INTO outbox (what) VALUES ('rolled back');
PREPARE TRANSACTION 'p:client_id';
\sleep :ms ms
ROLLBACK PREPARED 'p:client_id';
});

# A reader goes on where it was, up to an id.  Its position survives a crash.
my %bounds = (
	horizon => 'snowflake_horizon()',
	horizon_of_table => q{snowflake_horizon('outbox')},
	horizon_of_partition => q{snowflake_horizon('outbox_1')},
	largest_id => '(SELECT coalesce(max(id) + 1, 0) FROM outbox)');
my %sources = map { ($_ => /partition/ ? 'outbox_1' : 'outbox') } keys %bounds;

my @reader_sql = map { qq{
CREATE TABLE read_by_$_ (id bigint PRIMARY KEY);
INSERT INTO readers VALUES ('$_');
CREATE PROCEDURE read_by_$_() LANGUAGE plpgsql AS \$\$
DECLARE
  since bigint;
  bound bigint;
  is_last boolean := false;
BEGIN
  LOOP
    is_last := is_last OR EXISTS (SELECT FROM stop);
    SELECT position INTO STRICT since FROM readers WHERE reader = '$_';
    bound := $bounds{$_};
    IF bound < since THEN
      RAISE 'the bound goes back from % to %', since, bound USING ERRCODE = 'XX000';
    END IF;
    INSERT INTO read_by_$_ SELECT id FROM $sources{$_} WHERE id >= since AND id < bound;
    UPDATE readers SET position = bound WHERE reader = '$_';
    COMMIT;
    EXIT WHEN is_last;
    PERFORM pg_sleep(0.002);
  END LOOP;
END
\$\$;
} } sort keys %bounds;
value_of($node, qq{
CREATE TABLE orders (id bigint DEFAULT snowflake_nextval());
CREATE TABLE outbox (id bigint DEFAULT snowflake_nextval(), what text, lane int DEFAULT 1) PARTITION BY LIST (lane);
CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES IN (0);
CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2);
CREATE INDEX ON outbox (id);
CREATE TABLE stop ();
CREATE TABLE readers (reader text PRIMARY KEY, position bigint DEFAULT 0);
@reader_sql});

# Starts pgbench's clients with some kinds of writers.
sub start_writers
{
	my ($name, $clients, $duration_s, $longest_ms, @kinds) = @_;
	my @files;

	for my $kind (@kinds)
	{
		push @files, "--file=$directory/$kind";
		next if -e "$directory/$kind";
		append_to_file("$directory/$kind",
			"\\set ms random_exponential(1, :longest, 5)\n$writers{$kind}");
	}
	local $ENV{PGOPTIONS} = '-c synchronous_commit=off';
	return IPC::Run::start(
		[
			$node->installed_command('pgbench'), '--no-vacuum',
			"--client=$clients", '--jobs=2', "--time=$duration_s",
			"--define=longest=$longest_ms", @files,
			$node->connstr('postgres')
		],
		'<', \undef, '>', "$directory/$name.log", '2>&1');
}

# Starts a reader, which connects again after each crash.
sub start_reader
{
	my ($name) = @_;

	return IPC::Run::start(
		[
			'sh', '-c', 'until psql -XAtq -v ON_ERROR_STOP=1 -c "CALL $1()" "$2"; do sleep 0.01; done',
			'sh', $name, $node->connstr('postgres')
		],
		'<', \undef, '>', "$directory/$name.log", '2>&1');
}

# Tests that writers or a reader succeed.
sub succeeds
{
	my ($run, $name) = @_;

	ok($run->finish, "$name: no statement fails")
	  or diag(slurp_file("$directory/$name.log"));
	return;
}

# Ends the prepared transactions that pgbench has left.
sub end_prepared
{
	value_of($node, "COMMIT PREPARED '$_'")
	  for split /\n/, value_of($node, 'SELECT gid FROM pg_prepared_xacts');
	return;
}

my %readers = map { ($_ => start_reader("read_by_$_")) } sort keys %bounds;

my @all_kinds = sort keys %writers;
succeeds(start_writers("writers_$_", $_, 1 + int($seconds / 2), 400, @all_kinds), "writers_$_")
  for 16, 64;

# With few writers and short sleeps, every transaction is the oldest for a while.
succeeds(start_writers('few', 3, 1 + int($seconds / 4), 10, @$_), 'few')
  for [@all_kinds], ['prepared'];

# A crash ends all sessions, but no prepared transaction and no position.
for my $n (1 .. 2 + int($seconds / 30))
{
	my $writers = start_writers("crash_$n", 16, 60, 100, @all_kinds);
	my $victim = SnowflakeSession->new($node);

	sleep 1 + rand;
	kill 'KILL', $victim->{pid};
	$writers->finish;
	ok(wait_for(sub { eval { ($node->psql('postgres', 'SELECT'))[0] == 0 } }), "crash $n: the server comes back");
	end_prepared();
}

value_of($node, 'INSERT INTO stop DEFAULT VALUES');
succeeds($readers{$_}, "read_by_$_") for sort keys %readers;
is( value_of($node, q{SELECT count(DISTINCT what) FROM outbox WHERE what <> 'rolled back'}),
	5, 'all kinds of writers have written');
for my $reader (sort keys %bounds)
{
	my $count = value_of($node, "SELECT count(*) FROM $sources{$reader}");
	my $missed = value_of($node, "SELECT count(*) FROM $sources{$reader} AS o WHERE NOT EXISTS (SELECT FROM read_by_$reader AS r WHERE r.id = o.id)");
	my $log = slurp_file("$directory/read_by_$reader.log");

	if ($reader eq 'largest_id')
	{
		cmp_ok($missed, '>', 0, "a reader by the largest id misses $missed of $count");
		next;
	}
	is($missed, 0, "a reader by $bounds{$reader} misses none of $count rows");
	unlike($log, qr/duplicate key|goes back/, "a reader by $bounds{$reader} reads no row twice, and its bound never goes back");
	is(value_of($node, "SELECT count(*) FROM read_by_$reader AS r WHERE NOT EXISTS (SELECT FROM $sources{$reader} AS o WHERE r.id = o.id)"),
		0, "a reader by $bounds{$reader} reads no row that a crash takes back");
}
is(value_of($node, 'SELECT count(*) FROM snowflake_stat_backend() WHERE horizon IS NOT NULL'),
	0, 'afterwards nothing holds the horizon');
$node->stop;

done_testing();
