# Logical replication both ways between two servers that both insert: ids of
# two worker ids never conflict, and both servers end up with all rows.  The
# apply worker, a background worker, issues ids as any session does.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakePages;
use SnowflakeTest;
use Test::More;

use constant ROWS => 1000;

my @nodes;
for my $worker_id (1, 2)
{
	my $node = PostgreSQL::Test::Cluster->new("node$worker_id");
	$node->init(allows_streaming => 'logical');
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'snowflake'
snowflake.worker_id = $worker_id
max_logical_replication_workers = 8
});
	$node->start;
	$node->safe_psql(
		'postgres', q{
CREATE EXTENSION snowflake;
CREATE TABLE filtered (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), node int, seen_by int);
CREATE TABLE by_origin (LIKE filtered INCLUDING ALL);
});
	push @nodes, $node;
}
my $has_origin = $nodes[0]->pg_version >= 16;

# Each node publishes a table, with its own filter or other clauses of CREATE
# PUBLICATION, and subscribes to the other node.
sub connect_both_ways
{
	my ($table, $options, @filters) = @_;

	for my $i (0, 1)
	{
		$nodes[$i]->safe_psql('postgres',
			"CREATE PUBLICATION $table FOR TABLE $table $filters[$i]");
	}
	for my $i (0, 1)
	{
		$nodes[$i]->safe_psql(
			'postgres',
			sprintf q{CREATE SUBSCRIPTION %s_%d CONNECTION '%s dbname=postgres' PUBLICATION %s WITH (copy_data = false%s)},
			$table, $i + 1, $nodes[ 1 - $i ]->connstr, $table, $options);
	}
	return;
}

sub insert_at_both
{
	my ($table) = @_;

	$nodes[ $_ - 1 ]->safe_psql('postgres',
		"INSERT INTO $table (node) SELECT $_ FROM generate_series(1, @{[ROWS]})")
	  for 1, 2;
	return;
}

sub wait_for_both
{
	my ($table) = @_;

	for my $i (0, 1)
	{
		$nodes[$i]->wait_for_catchup("${table}_" . (2 - $i));
	}
	return;
}

sub check_both
{
	my ($table, $seen_by) = @_;
	my @found = map {
		$_->safe_psql(
			'postgres', qq{
SELECT count(*), count(*) FILTER (WHERE snowflake_worker_id(id) = 1 AND node = 1),
	   count(*) FILTER (WHERE snowflake_worker_id(id) = 2 AND node = 2),
	   md5(string_agg(${table}::text, ',' ORDER BY id)) FROM $table})
	} @nodes;

	like($found[0], qr/^@{[ join '\|', 2 * ROWS, ROWS, ROWS ]}\|/,
		"$table: a node has the rows of both nodes");
	is($found[1], $found[0], "$table: both nodes have the same rows");
	is( $_->safe_psql(
			'postgres',
			# The columns have other names in each version.
			"SELECT sum(value::bigint)
			   FROM pg_stat_subscription_stats AS s, jsonb_each_text(to_jsonb(s))
			  WHERE key LIKE '%\\_error\\_count'"),
		'0',
		"$table: no conflict on " . $_->name) for @nodes;
	return;
}

# Row filters work in every version: a node sends the rows whose ids it has
# issued.  The filter computes the worker id from the bits of the id, because a
# row filter cannot call functions of an extension.
my ($state) = sqlstate_of($nodes[0],
	'CREATE PUBLICATION refused FOR TABLE filtered WHERE (snowflake_worker_id(id) = 1)'
);
is($state, '0A000', 'a row filter may not call snowflake_worker_id()');
connect_both_ways('filtered', '',
	map { "WHERE ((id >> 12) & 1023 = $_) WITH (publish = 'insert, update, delete')" }
	  1, 2);
insert_at_both('filtered');
wait_for_both('filtered');

# Each node also sends updates of the rows that it has issued ids for.
for my $i (1, 2)
{
	$nodes[ $i - 1 ]->safe_psql('postgres',
		"UPDATE filtered SET seen_by = $i WHERE snowflake_worker_id(id) = $i");
}
wait_for_both('filtered');
check_both('filtered');
is( $nodes[0]->safe_psql(
		'postgres',
		'SELECT count(*) FROM filtered WHERE seen_by IS DISTINCT FROM node'),
	'0',
	'updates of a node\'s own rows reach the other node');

# The publications leave out TRUNCATE, because a row filter does not apply to
# it: in PostgreSQL 15 each node would send back the TRUNCATE that it has
# received, and the two nodes would truncate for ever.
$nodes[0]->safe_psql('postgres', 'TRUNCATE filtered');
wait_for_both('filtered');
cmp_ok($nodes[1]->safe_psql('postgres', 'SELECT count(*) FROM filtered'),
	'>', 0, 'a TRUNCATE is not replicated');

# From PostgreSQL 16 on, subscriptions can have origin = none: a node then
# sends only rows that clients have written on this node, and no replicated
# rows.
SKIP:
{
	skip 'subscriptions have no origin before PostgreSQL 16', 4
	  unless $has_origin;
	connect_both_ways('by_origin', ', origin = none', '', '');
	insert_at_both('by_origin');
	wait_for_both('by_origin');
	check_both('by_origin');
}

# The subscriber's table has one more column, with ids of the subscription's
# workers.  A CHECK notes how many rows it sees: in a batch it sees none.
$nodes[0]->safe_psql('postgres', q{
CREATE TABLE copied (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
INSERT INTO copied (n) SELECT generate_series(1, 500);
CREATE PUBLICATION copied FOR TABLE copied});
$nodes[1]->safe_psql('postgres', q{
CREATE TABLE seen (rows bigint);
CREATE FUNCTION note() RETURNS boolean LANGUAGE plpgsql AS
'BEGIN INSERT INTO public.seen SELECT count(*) FROM public.copied; RETURN true; END';
CREATE TABLE copied (id bigint PRIMARY KEY, n int, copy_id bigint UNIQUE DEFAULT snowflake_nextval(), CHECK (note()))});
$nodes[1]->safe_psql('postgres',
	sprintf q{CREATE SUBSCRIPTION copied CONNECTION '%s dbname=postgres' PUBLICATION copied},
	$nodes[0]->connstr);
$nodes[1]->wait_for_subscription_sync($nodes[0], 'copied');
is($nodes[1]->safe_psql('postgres', 'SELECT max(rows) FROM seen'), '0', 'the table synchronisation inserts in batches');
$nodes[0]->safe_psql('postgres', 'INSERT INTO copied (n) SELECT generate_series(501, 2500)');
$nodes[0]->wait_for_catchup('copied');
is($nodes[1]->safe_psql('postgres', q{
SELECT count(*), count(DISTINCT copy_id), count(*) FILTER (WHERE copy_id <= previous),
	   bool_and(snowflake_worker_id(id) = 1), bool_and(snowflake_worker_id(copy_id) = 2)
  FROM (SELECT *, lag(copy_id) OVER (ORDER BY n) AS previous FROM copied) AS c}),
	'2500|2500|0|t|t', 'the workers of a subscription issue ids of their own server, in the order of the rows');
# A column may be a bigint on one node and a snowflake on the other, in the text and
# in the binary format.
for my $binary ('false', 'true')
{
	my $table = "typed_$binary";
	$nodes[0]->safe_psql('postgres', qq{
CREATE TABLE $table (id snowflake PRIMARY KEY DEFAULT snowflake_nextval(), parent bigint);
INSERT INTO $table (parent) SELECT snowflake_nextvals(100);
CREATE PUBLICATION $table FOR TABLE $table});
	$nodes[1]->safe_psql('postgres', "CREATE TABLE $table (id bigint PRIMARY KEY, parent snowflake)");
	$nodes[1]->safe_psql('postgres',
		sprintf q{CREATE SUBSCRIPTION %s CONNECTION '%s dbname=postgres' PUBLICATION %s WITH (binary = %s)},
		$table, $nodes[0]->connstr, $table, $binary);
	$nodes[1]->wait_for_subscription_sync($nodes[0], $table);
	$nodes[0]->safe_psql('postgres', qq{
INSERT INTO $table (parent) SELECT snowflake_nextvals(100);
UPDATE $table SET parent = id WHERE id % 3 = 0;
DELETE FROM $table WHERE id % 3 = 1});
	$nodes[0]->wait_for_catchup($table);
	my @rows = map {
		$_->safe_psql('postgres', "SELECT id, parent FROM $table ORDER BY id")
	} @nodes;
	is($rows[1], $rows[0], "$table: both types have the same ids");
	like($rows[0], qr/^\d{19}\|\d{19}\n/, "$table: there are rows");
}

# doc/two-servers.md's statements, as they stand there.  The servers' names and, on
# PostgreSQL 15, the option that it lacks are all that differs.
my $page = 'doc/two-servers.md';
my ($create, $subscribe, $check, $publish_own) = map { block_of($page, $_) }
  'CREATE EXTENSION snowflake', 'CREATE SUBSCRIPTION', 'SELECT slot_name', 'CREATE PUBLICATION';
if (!$has_origin)
{
	$create =~ s/^.*-- not on PostgreSQL 15.*$//m or die $create;
	$subscribe =~ s/origin = none, // or die $subscribe;
}
every_block_ran();

sub insert_order
{
	my ($i, $item) = @_;

	$nodes[$i]->safe_psql('shop', "INSERT INTO orders (item) VALUES ('$item')");
	return;
}

for my $i (0, 1)
{
	my $own = $publish_own =~ s/1023 = 1/'1023 = ' . ($i + 1)/er;

	$nodes[$i]->safe_psql('postgres', 'CREATE DATABASE shop');
	$nodes[$i]->safe_psql('shop', $create . ($has_origin ? '' : $own));
}
insert_order(0, 'early');
for my $i (0, 1)
{
	my $other = $nodes[ 1 - $i ];
	my $connection = sprintf 'host=%s port=%s ', $other->host, $other->port;

	$nodes[$i]->safe_psql('shop',
		$subscribe =~ s/orders_from_db2/'orders_from_db' . (2 - $i)/er =~ s/host=db2 /$connection/r);
	insert_order(0, 'between') if $i == 0;
}
for my $i (0, 1)
{
	$nodes[$i]->wait_for_catchup('orders_from_db' . ($i + 1));
	is($nodes[$i]->safe_psql('shop', $check), 'orders_from_db' . ($i + 1) . '|t',
		"$page: a server shows the other server's subscription");
}
$nodes[$_]->safe_psql('shop', "INSERT INTO orders (item) SELECT $_ FROM generate_series(1, 100)") for 0, 1;
$nodes[$_]->wait_for_catchup('orders_from_db' . ($_ + 1)) for 0, 1;
my @orders = map { $_->safe_psql('shop', 'SELECT id, item FROM orders ORDER BY id') } @nodes;
is(join(' ', $orders[0] =~ /^\d+\|([a-z]+)$/gm), 'early between',
	"$page: rows that were inserted before both subscriptions ...");
$orders[0] =~ s/^\d+\|[a-z]+\n//gm;
is(() = $orders[0] =~ /^\d+\|/gm, 200, "$page: a server has the later rows of both");
is($orders[1], $orders[0], "$page: ... do not reach the other server, and all later ones do");
$_->stop for @nodes;

done_testing();
