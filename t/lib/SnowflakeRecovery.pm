# What the tests of recovery share: small clusters, a table that accepts an id
# twice, and a test that a server issues no id again.  For this test, the server
# issues ids while its clock passes the times of the ids in its data.
package SnowflakeRecovery;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  make_table
  server_version
  new_server
  server_of_backup
  standby_of
  insert_batch
  insert_ahead
  insert_ahead_and_commit
  newest_batch
  insert_other_row
  wait_for_standby
  restartpoint
  records_since
  end_servers
  duplicates_in
  is_unique_after
  first_id_at_once
  LEADING
);

# The default number of ids in a batch.
use constant BATCH => 20_000;

# Parameters of a server whose clock is right and whose ids are ahead of the
# clock, because a tick has only eight ids.
use constant LEADING => (
	"snowflake.layout = '41/5/5/3'",
	'snowflake.clock_policy = advance',
	'snowflake.clock_tolerance = 60s');

my $template;
my $batches = 0;

# ----- servers -----

# A stopped cluster that all others are copies of.  Its table accepts an id
# twice.
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
		'postgresql.conf', preload_line() . q{
snowflake.worker_id = 7
snowflake.clock_tolerance = 60s
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_keep_size = 64
autovacuum = off
});
	$node->start;
	make_table($node);

	# Two thirds of the files belong to these databases.  Without them a copy
	# takes less time.
	$node->safe_psql('postgres', $_) for
	  'UPDATE pg_database SET datistemplate = false',
	  'DROP DATABASE template0', 'DROP DATABASE template1';
	$node->stop;
	$node->backup_fs_cold('cold');
	return $template = $node;
}

sub server_version
{
	return template()->pg_version;
}

# Creates the extension, and the table for ids.
sub make_table
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
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
END $$;
});
	return;
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
	my $standby;

	$primary->backup($name);
	$standby = server_of_backup($name, $primary, $name,
		[ has_streaming => 1 ], @conf);
	start_server($standby);
	return $standby;
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
	my $lsn = $primary->lsn('flush');

	$standby->poll_query_until('postgres',
		"SELECT pg_last_wal_replay_lsn() >= '$lsn'")
	  or die $standby->name . " does not replay\n";
	return;
}

# Makes a restartpoint, at which a recovery of the standby will begin.
sub restartpoint
{
	my ($primary, $standby) = @_;

	$primary->safe_psql('postgres', 'CHECKPOINT');
	wait_for_standby($primary, $standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
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
	return
	  if $node->safe_psql('postgres', "SELECT '$end'::pg_lsn <= '$lsn'") eq 't';
	return map { [ split /\|/ ] } split /\n/, $node->safe_psql(
		'postgres', qq{
SELECT CASE resource_manager WHEN 'XLOG' THEN 'mark' ELSE 'commit' END,
	   start_lsn, record_length
  FROM pg_get_wal_records_info('$lsn', '$end')
 WHERE (resource_manager, record_type) = ('Transaction', 'COMMIT')
	OR (resource_manager, record_type) = ('XLOG', 'FPI')
   AND block_ref ~ '1664/0/8947'
 ORDER BY start_lsn});
}

# ----- ids -----

# Inserts rows with ids.  Returns the number of the batch, the times of its
# first and last id (in seconds since 1970), and its newest id.
sub insert_batch
{
	my ($node, $count) = @_;
	my $number = ++$batches;

	$count //= BATCH;
	$node->safe_psql('postgres',
		"INSERT INTO orders (batch) SELECT $number FROM generate_series(1, $count)"
	);
	return newest_batch($node);
}

# Inserts a batch while the clock is so many seconds ahead, and sets the clock
# right again.
sub insert_ahead
{
	my ($node, $ahead_s) = @_;

	set_clock($node, $ahead_s);
	my $batch = insert_batch($node);
	set_clock($node, 0);
	return $batch;
}

# Does what insert_ahead() does, and commits a transaction without ids
# afterwards.
sub insert_ahead_and_commit
{
	my ($node, $ahead_s) = @_;
	my $batch = insert_ahead($node, $ahead_s);

	insert_other_row($node);
	return $batch;
}

# The newest batch in a server's data, as insert_batch() returns it.
sub newest_batch
{
	my ($node) = @_;
	my %batch;

	@batch{qw(number begin end newest)} = split /\|/, $node->safe_psql(
		'postgres', q{
SELECT batch, extract(epoch FROM snowflake_timestamp(min(id))),
	   extract(epoch FROM snowflake_timestamp(max(id))), max(id)
  FROM orders WHERE batch = (SELECT max(batch) FROM orders) GROUP BY batch});
	return \%batch;
}

# Commits a row without an id.
sub insert_other_row
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'INSERT INTO orders VALUES (0, 0)');
	return;
}

# Sets the clock to a time before a batch, unless "right_clock" is given.
# Issues ids until they are later than the batch.  Returns how many ids were
# issued.
sub pass_batch
{
	my ($node, $batch, %how) = @_;
	my $number = ++$batches;
	my $until = time + 60;

	set_clock($node, $batch->{begin} - 0.1 - time) unless $how{right_clock};

	# The server refuses a clock that is behind by more than clock_tolerance,
	# until the clock has come far enough.
	for (;;)
	{
		my ($rc, $stdout, $stderr) = $node->psql('postgres',
			"\\set VERBOSITY verbose\nCALL insert_until($number, $batch->{end})");
		last if $rc == 0;
		die "no ids: $stderr\n"
		  if $stderr !~ /ERROR:  55000:/ || time > $until;
		usleep(20_000);
	}
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM orders WHERE batch = $number");
}

# How many rows of a server have an id that another row has already.
sub duplicates_in
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		'SELECT count(id) - count(DISTINCT id) FROM orders WHERE id <> 0');
}

# Tests that a server has a batch in its data, issues ids while its clock
# passes the times of the batch, and issues no id of the batch again.
sub is_unique_after
{
	my ($node, $batch, $what, %how) = @_;

	is( $node->safe_psql('postgres',
			"SELECT count(*) > 0 FROM orders WHERE batch = $batch->{number}"),
		't',
		"$what: the batch is in the data");
	my $count = pass_batch($node, $batch, %how);
	cmp_ok($count, '>', 0, "$what: ids are issued");
	my $duplicates = duplicates_in($node);
	is($duplicates, 0, "$what: no id came twice");
	note "$what: $duplicates duplicates among $count new ids";
	return;
}

# Tests that a server issues an id at once.
sub first_id_at_once
{
	my ($node, $what, $limit_s) = @_;
	my ($id, $seconds) = eval { first_id($node, 5) };

	return fail("$what: an id is issued: $@") unless defined $id;
	cmp_ok($seconds, '<', $limit_s // 1, "$what: an id is issued at once");
	note sprintf '%s: first id after %.0f ms', $what, 1000 * $seconds;
	return $id;
}

1;
