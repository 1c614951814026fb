# Clusters to recover: small, so that copying one takes little time, with a
# table that accepts an id twice, and a test that a server issues no id again.
# For this test, the server issues ids while its clock passes the times of the
# ids in its data.
package SnowflakeRecovery;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  new_server
  server_of_backup
  standby_of
  insert_batch
  insert_ahead
  newest_batch
  insert_other_row
  wait_for_standby
  records_since
  end_servers
  is_unique_after
  first_id_soon
);

my $template;
my $batches = 0;

# ----- servers -----

# A stopped cluster that all others are copies of.
sub template
{
	return $template if defined $template;

	my $node = PostgreSQL::Test::Cluster->new('template');
	$node->init(
		allows_streaming => 1,
		# Keep the files that are copied small.
		extra => [
			'--wal-segsize=1',
			$node->pg_version >= 18 ? '--no-data-checksums' : ()
		]);
	$node->append_conf(
		'postgresql.conf', q{
shared_preload_libraries = 'snowflake'
snowflake.worker_id = 7
snowflake.clock_tolerance = 60s
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_keep_size = 64
autovacuum = off
});
	$node->start;

	# Two thirds of the files belong to the template databases.
	value_of($node, $_) for
	  'UPDATE pg_database SET datistemplate = false',
	  'DROP DATABASE template0', 'DROP DATABASE template1', q{
CREATE EXTENSION snowflake;
CREATE EXTENSION pg_walinspect;
CREATE TABLE orders (id bigint DEFAULT snowflake_nextval(), batch int);

-- inserts ids until their time is past an instant
CREATE PROCEDURE insert_until(number int, instant double precision) LANGUAGE plpgsql AS $$
DECLARE
	newest bigint;
BEGIN
	LOOP
		INSERT INTO orders (batch) SELECT number FROM generate_series(1, 2000);
		newest := snowflake_currval();
		COMMIT;
		EXIT WHEN extract(epoch FROM snowflake_timestamp(newest)) > instant;
	END LOOP;
END $$};
	$node->stop;
	$node->backup_fs_cold('cold');
	return $template = $node;
}

# A server, not started yet, with worker id 7 and a clock that is right and can
# be set.  Further lines of postgresql.conf follow, and override the first
# ones.
sub new_server
{
	my ($name, @conf) = @_;
	return server_of_backup($name, template(), 'cold', [], @conf);
}

# A server like that of new_server(), from any backup.  The parameters are those
# of init_from_backup().
sub server_of_backup
{
	my ($name, $origin, $backup, $parameters, @conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($origin, $backup, @$parameters);
	$node->append_conf('postgresql.conf', join("\n", @conf) . "\n");
	set_clock($node, 0);
	return $node;
}

# A standby, started, from a base backup that is taken now.
sub standby_of
{
	my ($primary, $name, @conf) = @_;

	$primary->backup($name);
	return start_server(server_of_backup($name, $primary, $name,
			[ has_streaming => 1 ], @conf));
}

# Ends servers at once, and removes them.
sub end_servers
{
	my (@nodes) = @_;

	$_->teardown_node for @nodes;
	$_->clean_node for @nodes;
	return;
}

# Waits until a standby has replayed all WAL that the primary has flushed; the
# standby may follow another standby.  The function does not wait for WAL that
# is written and not flushed: after a step back of the clock, the WAL writer
# flushes nothing until the clock has caught up.
sub wait_for_standby
{
	my ($primary, $standby) = @_;
	my $lsn = value_of($primary,
		'SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END');

	wait_for(sub { value_of($standby, "SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' })
	  or die $standby->name . " does not replay\n";
	return;
}

# The commits and the advances of the mark in a server's WAL from a position
# on, as lists of "commit" or "mark", where the record begins, and its size.
# The position has to be the beginning of a record, as the insert position is.
sub records_since
{
	my ($node, $lsn) = @_;
	my $end = $node->lsn('flush');

	# PostgreSQL 15 raises an error for an empty range.
	return if value_of($node, "SELECT '$end'::pg_lsn <= '$lsn'") eq 't';
	return map { [ split /\|/ ] } split /\n/, value_of($node, qq{
SELECT CASE resource_manager WHEN 'XLOG' THEN 'mark' ELSE 'commit' END,
	   start_lsn, record_length
  FROM pg_get_wal_records_info('$lsn', '$end')
 WHERE (resource_manager, record_type) = ('Transaction', 'COMMIT')
	OR (resource_manager, record_type) = ('XLOG', 'FPI')
   AND block_ref ~ '1664/0/8947'
 ORDER BY start_lsn});
}

# ----- ids -----

# Inserts rows with ids, 20,000 by default.  Returns what newest_batch() does.
sub insert_batch
{
	my ($node, $count) = @_;
	my $number = ++$batches;

	$count //= 20_000;
	value_of($node,
		"INSERT INTO orders (batch) SELECT $number FROM generate_series(1, $count)"
	);
	return newest_batch($node);
}

# Inserts a batch while the clock is so many seconds ahead.  Sets the clock
# right again, and commits once more, so that the commit flushes WAL.
sub insert_ahead
{
	my ($node, $ahead_s) = @_;

	set_clock($node, $ahead_s);
	my $batch = insert_batch($node);
	set_clock($node, 0);
	insert_other_row($node);
	return $batch;
}

# The newest batch in a server's data: its number, the times of its first and
# last id (in seconds since 1970), and its newest id.
sub newest_batch
{
	my ($node) = @_;
	my %batch;

	@batch{qw(number begin end newest)} = split /\|/, value_of($node, q{
SELECT batch, extract(epoch FROM snowflake_timestamp(min(id))),
	   extract(epoch FROM snowflake_timestamp(max(id))), max(id)
  FROM orders WHERE batch = (SELECT max(batch) FROM orders) GROUP BY batch});
	return \%batch;
}

# Commits a row without an id of the server.
sub insert_other_row
{
	my ($node) = @_;

	value_of($node, 'INSERT INTO orders VALUES (0, 0)');
	return;
}

# Tests that a server has a batch in its data, and issues no id of the data
# again: sets the clock to a time before the batch, unless "right_clock" is
# given, and issues ids until they are later than the batch.
sub is_unique_after
{
	my ($node, $batch, $what, %how) = @_;
	my $number = ++$batches;
	my $until = test_time() + 60;

	is(value_of($node, "SELECT count(*) > 0 FROM orders WHERE batch = $batch->{number}"),
		't', "$what: the batch is in the data");
	set_clock($node, $batch->{begin} - 0.1 - test_time()) unless $how{right_clock};

	# The server refuses a clock that is behind by more than clock_tolerance,
	# until the clock has come far enough.
	for (;;)
	{
		my ($state, $message) =
		  sqlstate_of($node, "CALL insert_until($number, $batch->{end})");
		last if $state eq '';
		die "$what: no ids: $message\n" if $state ne '55000' || test_time() > $until;
		usleep(20_000);
	}
	is(value_of($node,
			"SELECT count(*) FILTER (WHERE batch = $number) > 0, count(id) - count(DISTINCT id) FROM orders WHERE id <> 0"),
		't|0', "$what: ids are issued, and no id comes twice");
	return;
}

# Tests that a server issues an id within 5 s, and returns the id.  In the tests
# that call this, a server with a wrong mark refuses ids, or waits for minutes.
sub first_id_soon
{
	my ($node, $what) = @_;
	my $id = eval { first_id($node, 5) };

	ok(defined $id, "$what: an id is issued soon") or diag($@);
	return $id // 0;
}

1;
