# A Citus cluster of a coordinator and two workers: inserts at every node and in
# every way that Citus has, time ranges, partitions, a load at all nodes, a clone
# of a worker and a failover of a worker.  No id comes twice, and each id has the
# worker id of the server that issued it.  The test also shows what Citus refuses
# or does wrong, and the statements to use instead, as in doc/citus.md.
#
# The servers connect to one another by Unix sockets.  Only a clone and its
# original need the loopback interface, because Citus looks for the clone's
# address among the original's connections; they ask for a password there.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakePages;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my ($library_directory) = run_command([ 'pg_config', '--pkglibdir' ]);
plan skip_all => "Citus is not installed: there is no citus.so in $library_directory"
  unless -e "$library_directory/citus.so";

use constant LOAD_S => 3;

# All servers and their clients read the password from this file.
my $directory = PostgreSQL::Test::Utils::tempdir();
my $password = join '', map { sprintf '%x', rand 16 } 1 .. 32;
append_to_file("$directory/password", "127.0.0.1:*:*:*:$password\n");
chmod 0600, "$directory/password" or die $!;
$ENV{PGPASSFILE} = "$directory/password";

# A server, not started yet.  The test changes its parameters by configure().
sub citus_node
{
	my ($name, $worker_id, $libraries) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf', qq{
shared_preload_libraries = '$libraries'
snowflake.worker_id = $worker_id
track_functions = 'all'
max_connections = 100
max_prepared_transactions = 100
max_wal_senders = 4
fsync = off
citus.node_conninfo = 'sslmode=disable'
citus.local_hostname = '@{[ $node->host ]}'
citus.shard_count = 8
citus.enable_statistics_collection = off
citus.max_adaptive_executor_pool_size = 1
include 'case.conf'
});
	configure($node);
	return $node;
}

# Servers with the libraries in either order.
my $coordinator = citus_node('coordinator', 1, 'citus, snowflake');
my $worker1 = citus_node('worker1', 2, 'snowflake, citus');
my $worker2 = citus_node('worker2', 3, 'citus, snowflake');
my @nodes = ($coordinator, $worker1, $worker2);
my %worker_id = (coordinator => 1, worker1 => 2, worker2 => 3);

# The output of SQL that the coordinator must run without an error.
sub sql
{
	my ($sql) = @_;
	return $coordinator->safe_psql('postgres', $sql);
}

# Adds a server to the cluster.
sub add_worker
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'CREATE EXTENSION citus');
	sql(sprintf q{SELECT citus_add_node('%s', %d)}, $node->host, $node->port);
	return;
}

# The results of a query of one row and one column on each node, in the order
# in which the nodes joined.  Where the query fails, the result is the error
# message.
sub on_all_nodes
{
	my ($sql) = @_;
	return split /\n/, sql("SELECT coalesce(result, '') FROM run_command_on_all_nodes(\$q\$$sql\$q\$) ORDER BY nodeid");
}

sub worker_ids
{
	return join ' ', on_all_nodes('SELECT snowflake_worker_id(snowflake_nextval())');
}

# How many different contents a column has in the replicas of a reference table.
sub contents_of
{
	my ($table, $column) = @_;
	return sql("SELECT count(DISTINCT result) FROM run_command_on_placements('$table', 'SELECT md5(string_agg($column\::text, '','' ORDER BY id)) FROM %s')");
}

# How many ids of each node are among the rows that a condition selects:
# "worker id:count" for each node.
sub issuers
{
	my ($table, $condition) = @_;
	return sql(sprintf q{SELECT string_agg(format('%%s:%%s', w, n), ' ' ORDER BY w) FROM (SELECT snowflake_worker_id(id) AS w, count(*) AS n FROM %s WHERE %s GROUP BY 1) AS s},
		$table, $condition // 'true');
}

# The number of different snowflakes in tables, and how many of them come more
# than once.  Ids up to a million are not counted: they come from sequences.
sub count_ids
{
	my (@tables) = @_;
	my %seen;

	for my $table (@tables)
	{
		$seen{$_}++ for split /\n/, sql("SELECT id FROM $table WHERE id > 1000000");
	}
	return (scalar(keys %seen), scalar(grep { $_ > 1 } values %seen));
}

# Checks that a statement is refused with this SQLSTATE and message.
sub is_refused
{
	my ($sql, $error, $what) = @_;

	like(join(': ', sqlstate_of($coordinator, $sql)), $error, ($what // $sql) . ': refused');
	return;
}

# Restarts a server with further parameters, and ends the coordinator's sessions, in
# which Citus keeps connections to the server as it was.
sub restart_with
{
	my ($node, @settings) = @_;

	configure($node, @settings);
	$node->restart;
	sql(q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	return;
}

# ----- set up -----

$_->start for @nodes;
sql('CREATE EXTENSION citus');
sql(sprintf q{SELECT citus_set_coordinator_host('%s', %d)}, $coordinator->host, $coordinator->port);
add_worker($worker1);
sql('CREATE EXTENSION snowflake');
sql('CREATE EXTENSION snowflake_partitions');
add_worker($worker2);
is(worker_ids(), '1 2 3', 'CREATE EXTENSION reaches all workers, and each node issues ids with its own worker id');
sql(q{
-- orders is distributed by its id, visit by its customer, and country has a
-- replica on each node
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), node int, item text);
SELECT create_distributed_table('orders', 'id');
CREATE TABLE visit (customer int, id bigint DEFAULT snowflake_nextval(), node int, note text, PRIMARY KEY (customer, id));
SELECT create_distributed_table('visit', 'customer');
CREATE TABLE old_visit (LIKE visit INCLUDING ALL);
SELECT create_distributed_table('old_visit', 'customer', colocate_with => 'visit');
CREATE TABLE country (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), node int, name text);
SELECT create_reference_table('country');
});

# ----- rows inserted at every node -----

for my $node (@nodes)
{
	my $name = $node->name;
	my $worker_id = $worker_id{$name};
	my @ids = map { split /\n/, $node->safe_psql('postgres', $_) } (
		"INSERT INTO orders (node, item) VALUES ($worker_id, 'one') RETURNING id",
		"INSERT INTO orders (node, item) VALUES ($worker_id, 'two'), ($worker_id, 'three') RETURNING id",
		"INSERT INTO orders (id, node, item) VALUES (snowflake_nextval(), $worker_id, 'four') RETURNING id",
		"PREPARE p AS INSERT INTO orders (node, item) VALUES (\$1, 'five') RETURNING id;" . "EXECUTE p($worker_id);" x 7,
		"INSERT INTO country (node, name) VALUES ($worker_id, 'one') RETURNING id");
	is(join(' ', map { worker_id_of($_) } @ids), join(' ', ($worker_id) x 12), "$name: VALUES get ids of the node that the client is connected to");

	is($node->safe_psql('postgres', qq{
BEGIN;
COPY orders (node, item) FROM PROGRAM 'seq 500 | sed "s/.*/$worker_id,copied/"' WITH (FORMAT csv);
COPY country (node, name) FROM PROGRAM 'seq 20 | sed "s/.*/$worker_id,copied/"' WITH (FORMAT csv);
SELECT pg_stat_get_xact_function_calls('snowflake_copy_nextval()'::regprocedure),
	   pg_stat_get_xact_function_calls('snowflake_nextval()'::regprocedure);
COMMIT;
}), '520|', "$name: COPY inserts in batches into a distributed and a reference table");

	$node->safe_psql('postgres', "INSERT INTO orders (node, item) SELECT $worker_id, 'series' FROM generate_series(1, 300)");
	is(issuers('orders', "node = $worker_id"), "$worker_id:811", "$name: all rows have ids of the node that the client is connected to");
}
is(issuers('country'), '1:21 2:21 3:21', 'a reference table has ids of all nodes');
is(contents_of('country', 'id'), 1, 'the replicas of a reference table have the same ids');

# ----- INSERT ... SELECT -----

sql(q{INSERT INTO visit (customer, note) SELECT g, 'first' FROM generate_series(1, 2000) AS g});
for (
	# Citus inserts between co-located shards only if no function is VOLATILE.
	# Here the ids are those of the selected rows.
	[ 'INSERT INTO old_visit SELECT * FROM visit', qr/^1:2000$/ ],
	[ q{INSERT INTO visit (customer, note) SELECT customer, 'again' FROM old_visit}, qr/^2:\d+ 3:\d+$/ ],
	[ q{INSERT INTO orders (item) SELECT note FROM old_visit}, qr/^2:\d+ 3:\d+$/ ],
	# All selected rows may come from one worker.
	[ q{INSERT INTO orders (item) SELECT note FROM old_visit LIMIT 700}, qr/^(?:[23]:\d+ ?)+$/ ],
	[ q{INSERT INTO country (name) SELECT note FROM old_visit LIMIT 30}, qr/^(?:[23]:\d+ ?)+$/ ],
	[ q{INSERT INTO orders (item) SELECT name FROM country LIMIT 40}, qr/^[123]:40$/ ])
{
	my ($insert, $issuers) = @$_;
	my ($table) = $insert =~ /INTO (\w+)/;
	my $last = sql("SELECT max(id) FROM $table") || 0;

	sql($insert);
	like(issuers($table, "id > $last"), $issuers, "$insert: the nodes that issue the ids");
}

# snowflake_currval() returns an id of the node that the client is connected to.
is(sql(q{
CREATE TEMP TABLE seen AS SELECT snowflake_nextval() AS id;
INSERT INTO visit (customer, note) SELECT customer, 'currval' FROM old_visit;
SELECT snowflake_currval() = id FROM seen;
}), 't', 'snowflake_currval() does not see the ids that workers issue');

# ----- time ranges and partitions -----

my $today = sql(q{SELECT date_trunc('day', now())});
my $row_count = sql('SELECT count(*) FROM orders');
is(sql(q{SELECT count(*) FROM orders WHERE id >= snowflake_min_id(now() - interval '1 hour')}), $row_count, 'a range of time selects all rows');
like(sql(q{SET enable_seqscan = off; EXPLAIN SELECT count(*) FROM orders WHERE id >= snowflake_min_id(now() - interval '1 hour')}),
	qr/Index Cond: \(id >= snowflake_min_id/, 'a range of time uses the index of each shard');
sql(qq{
CREATE TABLE daily (customer int, id bigint DEFAULT snowflake_nextval(), PRIMARY KEY (customer, id)) PARTITION BY RANGE (id);
SELECT create_distributed_table('daily', 'customer');
CALL snowflake_partitions.create_range('daily', timestamptz '$today' - interval '1 day', timestamptz '$today' + interval '3 days', '1 day');
});
is(sql(q{SELECT count(*) FROM pg_dist_partition WHERE logicalrelid::text LIKE 'daily\_%'}), 4,
	'snowflake_partitions.create_range() makes distributed partitions');
$_->safe_psql('postgres', 'INSERT INTO daily (customer) SELECT generate_series(1, 300)') for @nodes;
is(issuers('daily'), '1:300 2:300 3:300', 'each node issues the ids of 300 rows');
like(sql('EXPLAIN SELECT count(*) FROM daily WHERE id >= snowflake_min_id(now())'), qr/Subplans Removed: \d/,
	'a range of time prunes partitions on the workers');
sql("CALL snowflake_partitions.drop_before('daily', '$today')");
is(join(' ', on_all_nodes(q{SELECT count(*) FROM pg_inherits WHERE inhparent = 'daily'::regclass})), '3 3 3', 'all nodes have the same partitions');
sql(qq{
CREATE TABLE before (id bigint PRIMARY KEY DEFAULT snowflake_nextval()) PARTITION BY RANGE (id);
CALL snowflake_partitions.create_range('before', '$today', timestamptz '$today' + interval '2 days', '1 day');
SELECT create_distributed_table('before', 'id');
INSERT INTO before SELECT FROM generate_series(1, 50);
});
is(sql('SELECT count(*) FROM before'), 50, 'a table that has partitions can be distributed');
like((sqlstate_of($worker1,
		qq{CALL snowflake_partitions.create_range('before', timestamptz '$today' + interval '2 days', timestamptz '$today' + interval '3 days', '1 day')}))[1],
	qr/operation is not allowed on this node/, 'partitions are made at the coordinator only');

# ----- what Citus refuses, and what to write instead -----

sql(q{
ALTER TABLE orders ADD COLUMN ticket bigint;
CREATE TABLE stock (customer int PRIMARY KEY, id bigint DEFAULT snowflake_nextval(), note text);
SELECT create_distributed_table('stock', 'customer', colocate_with => 'visit');
});
is_refused(@$_) for (
	(map { [ $_, qr/^0A000: .*functions used in UPDATE queries on distributed tables must not be VOLATILE/ ] }
		'UPDATE orders SET id = DEFAULT', 'UPDATE country SET id = DEFAULT', 'UPDATE orders SET ticket = snowflake_nextval()'),
	[ q{INSERT INTO country (name) VALUES ('x') RETURNING id, snowflake_timestamp(id)},
		qr/^0A000: .*non-IMMUTABLE functions are not allowed in the RETURNING clause/ ],
	(map { [ "$_ WHERE snowflake_issued_between(id, now() - interval '1 hour', now())",
			qr/^0A000: .*STABLE functions used in (?:UPDATE|DELETE) queries cannot be called with column references/ ] }
		'UPDATE orders SET node = 0', 'DELETE FROM orders'),
	[ q{MERGE INTO stock AS s USING old_visit AS v ON s.customer = v.customer WHEN NOT MATCHED THEN INSERT (customer, note) VALUES (v.customer, v.note)},
		qr/^XX000: .*non-IMMUTABLE functions are not yet supported in MERGE/ ]);
is(sql(q{INSERT INTO country (name) VALUES ('x') RETURNING snowflake_timestamp(id, '2010-11-04 01:42:54.657+00') > '2026-01-01'}),
	't', 'in place of RETURNING a STABLE function, decode with an explicit epoch, which is IMMUTABLE');
is(sql(q{
WITH n AS MATERIALIZED (SELECT id, snowflake_nextval() AS ticket FROM orders) UPDATE orders AS o SET ticket = n.ticket FROM n WHERE n.id = o.id;
SELECT count(*) = count(DISTINCT ticket) FROM orders;
}), 't', 'in place of UPDATE to new ids, take the ids from a WITH that is materialized');
for my $change ('UPDATE orders SET node = 0', 'DELETE FROM orders')
{
	is(sql("BEGIN; WITH u AS ($change WHERE id >= snowflake_min_id(now() - interval '1 hour') AND id < snowflake_min_id(now() + interval '1 hour') RETURNING 1) SELECT count(*) FROM u; ROLLBACK"),
		sql('SELECT count(*) FROM orders'), "in place of $change WHERE a decoding function, compare the id with both ends of the range");
}
is(sql(q{
INSERT INTO stock (customer, note) SELECT customer, note FROM old_visit;
INSERT INTO stock (customer, note) VALUES (1, 'x'), (3001, 'y') ON CONFLICT (customer) DO UPDATE SET note = excluded.note;
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE note IN ('x', 'y')) FROM stock;
}), '2001|2001|2', 'in place of MERGE with the default, INSERT ... ON CONFLICT');

# ----- a column that is added -----

sql(q{
CREATE TABLE currency (id bigint PRIMARY KEY);
SELECT create_reference_table('currency');
INSERT INTO currency SELECT generate_series(1, 50);
ALTER TABLE currency ADD COLUMN ticket bigint DEFAULT snowflake_nextval();
});
is(contents_of('currency', 'ticket'), 3, 'ADD COLUMN with the default: each replica of a reference table has other ids');
sql('ALTER TABLE currency DROP COLUMN ticket;'
	  . block_of('doc/citus.md', 'ALTER TABLE country ADD COLUMN ticket') =~ s/\bcountry\b/currency/gr
	  . 'INSERT INTO currency (id) VALUES (51)');
is(contents_of('currency', 'ticket'), 1,
	'in place of ADD COLUMN with the default, add the column, set its default, and update the old rows');
is(sql('SELECT count(*), count(DISTINCT ticket) FROM currency'), '51|51', 'in place of ADD COLUMN with the default: each row has its own id');
is(sql(q{
ALTER TABLE old_visit ADD COLUMN ticket bigint DEFAULT snowflake_nextval();
SELECT count(*) > 0, count(*) = count(DISTINCT ticket) FROM old_visit;
}), 't|t', 'ADD COLUMN with the default on a distributed table: each row has its own id');

# ----- tables that have a serial key, and tables that an ORM makes -----

sql(q{
CREATE EXTENSION snowflake_convert;
CREATE TABLE legacy (id serial PRIMARY KEY, note text);
CREATE TABLE legacy_line (id bigserial PRIMARY KEY, legacy_id int REFERENCES legacy, note text);
INSERT INTO legacy (note) SELECT 'old' FROM generate_series(1, 20);
INSERT INTO legacy_line (legacy_id, note) SELECT id, note FROM legacy;
SELECT create_reference_table('legacy');
SELECT create_distributed_table('legacy_line', 'id');
});
sql(q{
SELECT undistribute_table('legacy_line', cascade_via_foreign_keys => true);
CREATE SEQUENCE legacy_ids OWNED BY legacy.id;
ALTER TABLE legacy_line ALTER legacy_id TYPE bigint;
ALTER TABLE legacy ALTER id SET DEFAULT nextval('legacy_ids'), ALTER id TYPE bigint;
SELECT snowflake_convert.key('legacy', 'id') \gexec
SELECT snowflake_convert.key('legacy_line', 'id') \gexec
SELECT create_reference_table('legacy');
SELECT create_distributed_table('legacy_line', 'id');
SET snowflake_convert.schemas = 'public, tenant';
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
CREATE TABLE author (id bigserial PRIMARY KEY, name text);
SELECT create_reference_table('author');
CREATE TABLE book (id bigserial PRIMARY KEY, author_id bigint REFERENCES author, name text);
SELECT create_distributed_table('book', 'id');
SET citus.enable_schema_based_sharding = on;
CREATE SCHEMA tenant;
CREATE TABLE tenant.bill (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, name text);
CREATE TABLE tenant.item (id bigserial PRIMARY KEY, bill_id bigint REFERENCES tenant.bill, name text);
DROP EVENT TRIGGER snowflakes;
});
for my $node (@nodes)
{
	$node->safe_psql('postgres', q{
WITH i AS (INSERT INTO legacy (note) VALUES ('new') RETURNING id) INSERT INTO legacy_line (legacy_id, note) SELECT id, 'new' FROM i;
WITH i AS (INSERT INTO author (name) VALUES ('new') RETURNING id) INSERT INTO book (author_id) SELECT id FROM i;
WITH i AS (INSERT INTO tenant.bill (name) VALUES ('new') RETURNING id) INSERT INTO tenant.item (bill_id) SELECT id FROM i;
});
}
is(sql(q{SELECT count(*), count(*) FILTER (WHERE o.id > 20 AND l.id > 20) FROM legacy AS o JOIN legacy_line AS l ON legacy_id = o.id}),
	'23|3', 'in place of converting a distributed table: undistribute, convert, distribute; old keys stay, and new keys are snowflakes');
is(join(' ', map { issuers($_) } qw(author tenant.bill)), '1:1 2:1 3:1 1:1 2:1 3:1',
	'distributed tables that the event trigger has converted get ids of all nodes');
is(sql(q{SELECT count(*) FROM author JOIN book ON author_id = author.id}), 3, 'rows reference the keys that the event trigger has converted');

# ----- load -----

append_to_file("$directory/load.sql", q{
\set customer random(1, 100000)
INSERT INTO orders (node, item) VALUES (:node, 'load');
INSERT INTO visit (customer, node, note) VALUES (:customer, :node, 'load'), (:customer + 1, :node, 'load');
INSERT INTO orders (node, item) SELECT :node, 'load' FROM generate_series(1, 10);
});
append_to_file("$directory/reference.sql", q{
INSERT INTO country (node, name) VALUES (:node, 'load');
INSERT INTO visit (customer, note) SELECT customer, 'moved' FROM stock WHERE customer % 50 = 0;
});
my @tables = qw(orders visit country);

# Runs a load at all nodes at the same time, and checks the rows.
sub check_load
{
	my ($seconds, $what) = @_;
	my ($before) = count_ids(@tables);
	my @runs = map {
		IPC::Run::start(
			[ 'pgbench', '-n', '-c', 2, '-T', $seconds, '-M', 'prepared',
				'-D', 'node=' . $worker_id{ $_->name },
				'-f', "$directory/load.sql\@20", '-f', "$directory/reference.sql\@1",
				$_->connstr('postgres') ],
			'>', \my $out, '2>', \my $err)
	} @nodes;

	is(scalar(grep { $_->finish } @runs), scalar(@nodes), "$what: the load ends without an error at all nodes");
	my ($after, $duplicates) = count_ids(@tables);
	is($duplicates, 0, "$what: no id comes twice");
	cmp_ok($after, '>', $before + 100, "$what: the load has inserted more than 100 rows");
	is(sql("SELECT count(*) FROM $_ WHERE node > 0 AND snowflake_worker_id(id) <> node"), 0,
		"$what: the id of each row of $_ is of the node that inserted it")
	  for @tables;
	return;
}
check_load(LOAD_S, 'a load at all nodes');

# ----- a worker without preload, without a worker id, or with another epoch -----

# The workers issue the ids of the first INSERT, and the coordinator issues
# those of the second.
my $by_workers = q{INSERT INTO visit (customer, note) SELECT customer, 'lacking' FROM stock};
my $by_coordinator = q{INSERT INTO orders (item) SELECT 'lacking' FROM generate_series(1, 20)};

for my $case (
	[ q{shared_preload_libraries = 'citus'}, '55000', q{the library "snowflake" was not loaded at the server's start} ],
	[ 'snowflake.worker_id = -1', 'F0000', '"snowflake.worker_id" is not set' ],
	[ q{snowflake.epoch = '2020-01-01 00:00:00+00'}, '22023', '"snowflake.layout" and "snowflake.epoch" are not the data\'s' ])
{
	my ($setting, $sqlstate, $message) = @$case;

	restart_with($worker2, $setting);
	is((sqlstate_of($coordinator, $by_coordinator))[0], '', "worker 2 with $setting: worker 2 accepts rows with ids of the coordinator");
	is_refused($by_workers, qr/^$sqlstate: .*$message/, "worker 2 with $setting: INSERT ... SELECT on the workers");
	is_refused('ALTER TABLE visit ADD COLUMN ticket bigint DEFAULT snowflake_nextval()',
		qr/^$sqlstate: .*$message/, "worker 2 with $setting: ADD COLUMN with the default");
	like(worker_ids(), qr/$message/, "worker 2 with $setting: the query for all nodes shows the error of worker 2");

	# Without preload nothing is decoded, either.
	next if $sqlstate eq '55000';
	is(sql(q{SELECT count(*) FROM orders WHERE snowflake_timestamp(id) > now() + interval '1 year'}),
		0, "worker 2 with $setting: ids are decoded by the data's epoch");
}

# Equal worker ids.  The INSERT is repeated until both workers have issued ids
# in the same tick.
my $equal = q{INSERT INTO visit (customer, note) SELECT v.customer, 'equal' FROM old_visit AS v, generate_series(1, 20)};

sub equal_duplicates
{
	return sql(q{SELECT count(*) - count(DISTINCT id) FROM visit WHERE note = 'equal'});
}

restart_with($worker2, 'snowflake.worker_id = 2');
cmp_ok(wait_for(sub { sql($equal); return equal_duplicates() }), '>', 0,
	'two workers with one worker id issue the same ids, which a key of (customer, id) accepts');
my ($on_all_nodes) = block_of('doc/citus.md', 'SELECT nodename') =~ /(run_command_on_all_nodes\(.*?\$\$\))/s
  or die 'no query for all nodes';
is(sql("SELECT string_agg(result, ' ') FROM (SELECT result FROM $on_all_nodes GROUP BY result HAVING count(*) > 1) AS s"),
	'0/2, 41/5/5/12, 1288834974.657000', 'a query for all nodes finds two workers with one worker id');
sql(q{DELETE FROM visit WHERE note = 'equal'});
restart_with($worker2);
sql($equal);
is(equal_duplicates(), 0, 'the same INSERT with a worker id for each worker: no id comes twice');

# ----- a worker is cloned -----

SKIP:
{
	skip 'this Citus clones no nodes', 6
	  if sql(q{SELECT to_regproc('citus_add_clone_node') IS NULL}) eq 't';

	# The original listens on the loopback interface as well.
	$worker1->safe_psql('postgres', "ALTER ROLE CURRENT_USER PASSWORD '$password'");
	write_conf($worker1, 'pg_hba.conf', 'local all,replication all trust', 'host all,replication all 127.0.0.1/32 scram-sha-256');
	$worker1->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\n");
	$worker1->restart;
	my $clone = standby_node($worker1, 'clone');
	$clone->append_conf('postgresql.conf', sprintf
		"primary_conninfo = 'host=127.0.0.1 port=%d'\nlisten_addresses = '127.0.0.1'\n", $worker1->port);
	$clone->start;
	$worker1->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'})
	  or die 'the clone does not stream';
	sql(sprintf q{SELECT citus_promote_clone_and_rebalance(citus_add_clone_node('127.0.0.1', %d, '%s', %d))},
		$clone->port, $worker1->host, $worker1->port);
	is(worker_ids(), '1 2 3 2', 'a clone has the worker id of its original');
	like(logged($clone), qr/LOG:  snowflake ids of node \(0,2\) were issued elsewhere before/,
		'the clone logs that ids of its node were issued elsewhere');
	restart_with($clone, 'snowflake.worker_id = 4');
	is(worker_ids(), '1 2 3 4', 'the clone issues ids with a worker id of its own');
	$worker_id{clone} = 4;
	push @nodes, $clone;
	sql(q{DELETE FROM visit WHERE note = 'equal'});
	sql($equal);
	like(issuers('visit', q{note = 'equal'}), qr/ 4:\d+$/, 'the clone issues ids of INSERT ... SELECT with its own worker id');
	is(equal_duplicates(), 0, 'no id of the clone and its original comes twice');
}

# ----- a worker fails -----

my $standby = standby_node($worker2, 'standby');
$standby->start;
sql($by_workers);
$worker2->wait_for_catchup($standby);
kill_hard($worker2);
$standby->promote;
sql(sprintf q{SELECT citus_update_node(nodeid, '%s', %d) FROM pg_dist_node WHERE nodeport = %d},
	$standby->host, $standby->port, $worker2->port);
$worker_id{standby} = 3;
$nodes[2] = $standby;
sql($by_workers);
check_load(1, q{a promoted standby in a worker's place});
is((count_ids(@tables, qw(daily before stock legacy legacy_line author book tenant.bill tenant.item)))[1], 0,
	'no id comes twice in all tables of the test');

$_->stop for reverse @nodes;
done_testing();
