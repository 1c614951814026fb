# A Citus cluster of a coordinator and two workers: inserts at every node and
# in every way that Citus has, time ranges, partitions, a load at all nodes, a
# clone of a worker and a failover of a worker.  No id comes twice, and each id
# has the worker id of the server that issued it.  The test also shows what
# Citus refuses or does wrong, and the statements to use instead, as in
# doc/citus.md.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeCitus;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $missing = SnowflakeCitus::missing();
plan skip_all => $missing if $missing;

use constant LOAD_S => 3;

# A Citus worker with this epoch decodes the times of ids nine years too late.
use constant OTHER_EPOCH => "'2020-01-01 00:00:00+00'";

# Servers with the libraries in either order.
my $coordinator = SnowflakeCitus::citus_node('coordinator', 1, 'citus, snowflake');
my $worker1 = SnowflakeCitus::citus_node('worker1', 2, 'snowflake, citus');
my $worker2 = SnowflakeCitus::citus_node('worker2', 3, 'citus, snowflake');
my @nodes = ($coordinator, $worker1, $worker2);
my %worker_id = (coordinator => 1, worker1 => 2, worker2 => 3);

# Returns the output of SQL that the coordinator must run without an error.
sub sql
{
	my ($sql) = @_;
	return $coordinator->safe_psql('postgres', $sql);
}

# Returns how Citus executes an INSERT ... SELECT, as EXPLAIN shows.
sub insert_method_of
{
	my ($sql, $node) = @_;
	my $plan = ($node // $coordinator)->safe_psql('postgres', "EXPLAIN (COSTS OFF) $sql");

	return $1 if $plan =~ /INSERT\/SELECT method: (.*)/;
	return $plan =~ /->  Insert on \w+_\d+ citus_table_alias/ ? 'co-located' : $plan;
}

# Returns how many ids of each node are among the rows that a condition selects:
# "worker id:count" for each node.
sub issuers
{
	my ($table, $condition) = @_;
	return sql(sprintf q{SELECT string_agg(format('%%s:%%s', w, n), ' ' ORDER BY w) FROM (SELECT snowflake_worker_id(id) AS w, count(*) AS n FROM %s WHERE %s GROUP BY 1) AS s},
		$table, $condition // 'true');
}

# Returns the number of snowflakes in tables, and the number of snowflakes that
# come more than once.  Smaller ids come from sequences.
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

# Returns how many different contents a column has in the replicas of a table.
sub contents_of
{
	my %digests = map { $_ => 1 } SnowflakeCitus::replicas_of($coordinator, @_);
	return scalar keys %digests;
}

# Checks that a statement is refused.
sub is_refused_by_citus
{
	my ($sql, $state, $message, $what) = @_;
	my @outcome = sqlstate_of($coordinator, $sql);

	is($outcome[0], $state, "$what: refused") or diag("@outcome");
	like($outcome[1] // '', $message, "$what: the error says why");
	return;
}

# Restarts a server with further parameters.
sub restart_with
{
	my ($node, @settings) = @_;

	configure($node, @settings);
	$node->restart;
	return;
}

# ----- libraries in either order -----

$_->start for @nodes;
for my $node ($coordinator, $worker1)
{
	my $libraries = $node->safe_psql('postgres', 'SHOW shared_preload_libraries');

	# A database without Citus's extension, and one with it.
	for my $extensions ('snowflake', 'snowflake, citus')
	{
		my $database = $extensions =~ s/\W+/_/gr;
		$node->safe_psql('postgres', "CREATE DATABASE $database");
		$node->safe_psql($database, "CREATE EXTENSION $_")
		  for reverse split /, /, $extensions;
		is( $node->safe_psql($database, q{
CREATE EXTENSION snowflake_convert;
SET snowflake_convert.schemas = '*';
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
CREATE TABLE orm (id serial PRIMARY KEY, n int);
SELECT format_type(atttypid, -1), pg_get_expr(adbin, adrelid)
  FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
 WHERE attrelid = 'orm'::regclass;
}),
			'bigint|snowflake_nextval()',
			"$libraries: the event trigger changes a new table, with $extensions");
		is( $node->safe_psql($database, q{
BEGIN;
COPY orm (n) FROM PROGRAM 'seq 1000';
SELECT pg_stat_get_xact_function_calls('snowflake_copy_nextval()'::regprocedure),
	   pg_stat_get_xact_function_calls('snowflake_nextval()'::regprocedure),
	   (SELECT count(DISTINCT id) FROM orm);
ROLLBACK;
}), '1000||1000', "$libraries: COPY inserts in batches, with $extensions");
		$node->safe_psql('postgres', "DROP DATABASE $database WITH (FORCE)");
	}
}

# ----- set up -----

SnowflakeCitus::make_coordinator($coordinator);
SnowflakeCitus::add_worker($coordinator, $worker1);
sql('CREATE EXTENSION snowflake');
SnowflakeCitus::add_worker($coordinator, $worker2);
is_deeply([ SnowflakeCitus::on_all_nodes($coordinator, q{SELECT extname FROM pg_extension WHERE extname = 'snowflake'}) ],
	[ ('snowflake') x 3 ],
	'CREATE EXTENSION reaches all workers, also a worker that joins later');
is_deeply([ SnowflakeCitus::on_all_nodes($coordinator, 'SELECT snowflake_worker_id(snowflake_nextval())') ],
	[ 1, 2, 3 ], 'each node issues ids with its own worker id');

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
	my @ids;

	push @ids, split /\n/, $node->safe_psql('postgres', $_) for (
		"INSERT INTO orders (node, item) VALUES ($worker_id, 'one') RETURNING id",
		"INSERT INTO orders (node, item) VALUES ($worker_id, 'two'), ($worker_id, 'three') RETURNING id",
		"INSERT INTO orders (id, node, item) VALUES (snowflake_nextval(), $worker_id, 'four') RETURNING id",
		"PREPARE p AS INSERT INTO orders (node, item) VALUES (\$1, 'five') RETURNING id;"
		  . "EXECUTE p($worker_id);" x 7,
		"INSERT INTO country (node, name) VALUES ($worker_id, 'one') RETURNING id");
	is(join(' ', map { SnowflakeTest::worker_id_of($_) } @ids),
		join(' ', ($worker_id) x 12), "$name: VALUES get ids of the node that the client is connected to");

	is( $node->safe_psql('postgres', qq{
BEGIN;
COPY orders (node, item) FROM PROGRAM 'seq 500 | sed "s/.*/$worker_id,copied/"' WITH (FORMAT csv);
COPY country (node, name) FROM PROGRAM 'seq 20 | sed "s/.*/$worker_id,copied/"' WITH (FORMAT csv);
SELECT pg_stat_get_xact_function_calls('snowflake_copy_nextval()'::regprocedure),
	   pg_stat_get_xact_function_calls('snowflake_nextval()'::regprocedure);
COMMIT;
}), '520|', "$name: COPY inserts in batches into a distributed and a reference table");
	is(issuers('orders', "item = 'copied' AND node = $worker_id"), "$worker_id:500",
		"$name: COPY gets ids of the node that the client is connected to");

	is(insert_method_of("INSERT INTO orders (node, item) SELECT $worker_id, 'series' FROM generate_series(1, 300)", $node),
		'pull to coordinator', "$name: this node makes the rows of an INSERT ... SELECT without a table");
	$node->safe_psql('postgres', "INSERT INTO orders (node, item) SELECT $worker_id, 'series' FROM generate_series(1, 300)");
	is(issuers('orders', "item = 'series' AND node = $worker_id"), "$worker_id:300",
		"$name: the rows of an INSERT ... SELECT without a table get ids of this node");
}
is(issuers('country'), '1:21 2:21 3:21', 'a reference table has ids of all nodes');
is(scalar(SnowflakeCitus::replicas_of($coordinator, 'country', 'id')), 3,
	'a reference table has a replica on each node');
is(contents_of('country', 'id'), 1, 'the replicas of a reference table have the same ids');

# ----- INSERT ... SELECT -----

sql(q{INSERT INTO visit (customer, note) SELECT g, 'first' FROM generate_series(1, 2000) AS g});
for my $case (
	# Citus inserts between co-located shards only if no function is VOLATILE.
	# Here the ids are those of the selected rows.
	[ 'INSERT INTO old_visit SELECT * FROM visit', 'co-located', qr/^1:2000$/ ],
	[ q{INSERT INTO visit (customer, note) SELECT customer, 'again' FROM old_visit}, 'repartition', qr/^2:\d+ 3:\d+$/ ],
	[ q{INSERT INTO orders (item) SELECT note FROM old_visit}, 'repartition', qr/^2:\d+ 3:\d+$/ ],
	# All selected rows may come from one worker.
	[ q{INSERT INTO orders (item) SELECT note FROM old_visit LIMIT 700}, 'pull to coordinator', qr/^(?:[23]:\d+ ?)+$/ ],
	[ q{INSERT INTO country (name) SELECT note FROM old_visit LIMIT 30}, 'pull to coordinator', qr/^(?:[23]:\d+ ?)+$/ ],
	[ q{INSERT INTO orders (item) SELECT name FROM country LIMIT 40}, 'pull to coordinator', qr/^[123]:40$/ ])
{
	my ($insert, $way, $issuers) = @$case;
	my ($table) = $insert =~ /INTO (\w+)/;
	my $last = sql("SELECT max(id) FROM $table") || 0;

	is(insert_method_of($insert), $way, "$insert: $way");
	sql($insert);
	like(issuers($table, $way eq 'co-located' ? 'true' : "id > $last"),
		$issuers, "$insert: the nodes that issue the ids");
}

# Citus adds the DEFAULT to the SELECT.  Duplicate rows must still be removed,
# as if the ids were not there.
sql('CREATE TABLE summary (id bigint DEFAULT snowflake_nextval(), note text)');
sql(q{SELECT create_distributed_table('summary', 'id')});
for my $select (q{SELECT DISTINCT note FROM orders AS t(id, node, note)}, q{SELECT note FROM visit UNION SELECT note FROM old_visit},
	q{SELECT note FROM visit GROUP BY note}, q{SELECT DISTINCT ON (note) note FROM visit ORDER BY note})
{
	is(sql("TRUNCATE summary; INSERT INTO summary (note) $select; SELECT count(*), count(DISTINCT id) FROM summary"),
		sql("SELECT count(*), count(*) FROM ($select) AS s"), "$select: each row of the result gets one id");
}

# ----- time ranges -----

my $today = sql(q{SELECT date_trunc('day', now())});
my $row_count = sql('SELECT count(*) FROM orders');
is(sql(q{SELECT count(*) FROM orders WHERE id >= snowflake_min_id(now() - interval '1 hour')}),
	$row_count, 'a range of time selects all rows');
is(sql(q{SELECT count(*) FROM orders WHERE snowflake_issued_between(id, now() - interval '2 hours', now() - interval '1 hour')}),
	0, 'an earlier range of time selects no row');
like(sql(q{SET enable_seqscan = off; EXPLAIN SELECT count(*) FROM orders WHERE id >= snowflake_min_id(now() - interval '1 hour')}),
	qr/Index Cond: \(id >= snowflake_min_id/, 'a range of time uses the index of each shard');
is(sql(q{SELECT sum(ids) FROM snowflake_activity('orders', 'id', '1 hour')}),
	$row_count, 'snowflake_activity() reads all shards');

# ----- partitions -----

for my $key ('customer', 'id')
{
	my $table = "by_$key";
	sql(qq{
CREATE TABLE $table (customer int, id bigint DEFAULT snowflake_nextval(), PRIMARY KEY (customer, id)) PARTITION BY RANGE (id);
SELECT create_distributed_table('$table', '$key');
SELECT snowflake_create_partitions('$table', timestamptz '$today' - interval '1 day', timestamptz '$today' + interval '3 days', '1 day');
});
	is(sql(qq{SELECT count(*) FROM pg_dist_partition WHERE logicalrelid::text LIKE '$table\\_%'}),
		4, "$table: snowflake_create_partitions() makes distributed partitions");
	$_->safe_psql('postgres', "INSERT INTO $table (customer) SELECT generate_series(1, 300)") for @nodes;
	is(issuers($table), '1:300 2:300 3:300', "$table: each node issues the ids of 300 rows");
	like(sql("EXPLAIN SELECT count(*) FROM $table WHERE id >= snowflake_min_id(now())"),
		qr/Subplans Removed: \d/, "$table: a range of time prunes partitions on the workers");
	is(sql("SELECT sum(ids) FROM snowflake_activity('$table', 'id', '1 hour')"), 900,
		"$table: snowflake_activity() counts the rows of all shards");
	is(sql("SELECT count(*) FROM snowflake_drop_partitions('$table', '$today')"), 2,
		"$table: snowflake_drop_partitions() detaches and drops");
	is_deeply([ SnowflakeCitus::on_all_nodes($coordinator, "SELECT count(*) FROM pg_inherits WHERE inhparent = '$table'::regclass") ],
		[ 3, 3, 3 ], "$table: all nodes have the same partitions");
}
sql(qq{
CREATE TABLE before (id bigint PRIMARY KEY DEFAULT snowflake_nextval()) PARTITION BY RANGE (id);
SELECT snowflake_create_partitions('before', '$today', timestamptz '$today' + interval '2 days', '1 day');
SELECT create_distributed_table('before', 'id');
INSERT INTO before SELECT FROM generate_series(1, 50);
});
is(sql('SELECT count(*) FROM before'), 50, 'a table that has partitions can be distributed');
my (undef, $message) = sqlstate_of($worker1,
	qq{SELECT snowflake_create_partitions('before', timestamptz '$today' + interval '2 days', timestamptz '$today' + interval '3 days', '1 day')});
like($message, qr/operation is not allowed on this node/, 'partitions are made at the coordinator only');

# ----- what Citus refuses, and what to write instead -----

is_refused_by_citus(q{INSERT INTO country (name) VALUES ('x') RETURNING id, snowflake_timestamp(id)},
	'0A000', qr/non-IMMUTABLE functions are not allowed in the RETURNING clause/,
	'RETURNING a STABLE decoding function');
is(sql(q{WITH i AS (INSERT INTO country (name) VALUES ('x') RETURNING id) SELECT snowflake_worker_id(id), snowflake_timestamp(id) > now() - interval '1 minute' FROM i}),
	'1|t', 'in place of RETURNING a STABLE function, decode the ids that a WITH returns');
is(sql(q{INSERT INTO country (name) VALUES ('x') RETURNING snowflake_timestamp(id, '2010-11-04 01:42:54.657+00') > '2026-01-01'}),
	't', 'in place of RETURNING a STABLE function, decode with an explicit epoch, which is IMMUTABLE');

sql('ALTER TABLE orders ADD COLUMN ticket bigint');
for my $table ('orders', 'country')
{
	is_refused_by_citus("UPDATE $table SET id = DEFAULT", '0A000',
		qr/functions used in UPDATE queries on distributed tables must not be VOLATILE/,
		"$table: UPDATE to a default");
}
is_refused_by_citus('UPDATE orders SET ticket = snowflake_nextval()', '0A000',
	qr/functions used in UPDATE queries on distributed tables must not be VOLATILE/,
	'UPDATE to new ids');
sql('WITH n AS MATERIALIZED (SELECT id, snowflake_nextval() AS ticket FROM orders) UPDATE orders AS o SET ticket = n.ticket FROM n WHERE n.id = o.id');
is(sql('SELECT count(*) = count(DISTINCT ticket) FROM orders'), 't',
	'in place of UPDATE to new ids, take the ids from a WITH that is materialized');
for my $change ('UPDATE orders SET node = 0', 'DELETE FROM orders')
{
	is_refused_by_citus("$change WHERE snowflake_issued_between(id, now() - interval '1 hour', now())", '0A000',
		qr/STABLE functions used in (?:UPDATE|DELETE) queries cannot be called with column references/,
		"$change WHERE a decoding function");
	is(sql("BEGIN; WITH u AS ($change WHERE id >= snowflake_min_id(now() - interval '1 hour') AND id < snowflake_min_id(now() + interval '1 hour') RETURNING 1) SELECT count(*) FROM u; ROLLBACK"),
		sql('SELECT count(*) FROM orders'), "in place of $change WHERE a decoding function, compare the id with both ends of the range");
}

sql(q{
CREATE TABLE stock (customer int PRIMARY KEY, id bigint DEFAULT snowflake_nextval(), note text);
SELECT create_distributed_table('stock', 'customer', colocate_with => 'visit');
CREATE TABLE staged (customer int, id bigint DEFAULT snowflake_nextval(), note text);
SELECT create_distributed_table('staged', 'customer', colocate_with => 'visit');
});
is_refused_by_citus(q{MERGE INTO stock AS s USING old_visit AS v ON s.customer = v.customer WHEN NOT MATCHED THEN INSERT (customer, note) VALUES (v.customer, v.note)},
	'XX000', qr/non-IMMUTABLE functions are not yet supported in MERGE/, 'MERGE that takes the default');
sql(q{
INSERT INTO staged (customer, note) SELECT customer, note FROM old_visit;
INSERT INTO stock (customer, id, note) SELECT customer, id, note FROM staged WHERE customer <= 500;
MERGE INTO stock AS s USING staged AS n ON s.customer = n.customer
  WHEN MATCHED THEN UPDATE SET note = 'matched'
  WHEN NOT MATCHED THEN INSERT (customer, id, note) VALUES (n.customer, n.id, n.note);
});
is(sql(q{SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE note = 'matched') FROM stock}),
	'2000|2000|500', 'in place of MERGE with the default, MERGE with ids from a table');
sql(q{INSERT INTO stock (customer, note) VALUES (1, 'x'), (3001, 'y') ON CONFLICT (customer) DO UPDATE SET note = excluded.note});
is(sql(q{SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE note IN ('x', 'y')) FROM stock}),
	'2001|2001|2', 'in place of MERGE with the default, INSERT ... ON CONFLICT');

# snowflake_currval() returns an id of the node that the client is connected
# to.
is(sql(q{
CREATE TEMP TABLE seen AS SELECT snowflake_nextval() AS id;
INSERT INTO visit (customer, note) SELECT customer, 'currval' FROM old_visit;
SELECT snowflake_currval() = id FROM seen;
}), 't', 'snowflake_currval() does not see the ids that workers issue');

# ----- a column that is added -----

sql('CREATE TABLE currency (id bigint PRIMARY KEY); SELECT create_reference_table(\'currency\'); INSERT INTO currency SELECT generate_series(1, 50)');
sql('ALTER TABLE currency ADD COLUMN ticket bigint DEFAULT snowflake_nextval()');
is(contents_of('currency', 'ticket'), 3,
	'ADD COLUMN with the default: each replica of a reference table has other ids');
sql('WITH n AS MATERIALIZED (SELECT id, snowflake_nextval() AS ticket FROM currency) UPDATE currency AS c SET ticket = n.ticket FROM n WHERE n.id = c.id');
is(contents_of('currency', 'ticket'), 1, 'an UPDATE from a WITH gives all replicas the same ids');
sql(q{
ALTER TABLE currency DROP COLUMN ticket;
ALTER TABLE currency ADD COLUMN ticket bigint;
ALTER TABLE currency ALTER COLUMN ticket SET DEFAULT snowflake_nextval();
WITH n AS MATERIALIZED (SELECT id, snowflake_nextval() AS ticket FROM currency WHERE ticket IS NULL)
UPDATE currency AS c SET ticket = n.ticket FROM n WHERE n.id = c.id;
INSERT INTO currency (id) VALUES (51);
});
is(contents_of('currency', 'ticket'), 1,
	'in place of ADD COLUMN with the default, add the column, set its default, and update the old rows');
is(sql('SELECT count(*), count(DISTINCT ticket) FROM currency'), '51|51', 'in place of ADD COLUMN with the default: each row has its own id');
is(sql(q{
ALTER TABLE old_visit ADD COLUMN ticket bigint DEFAULT snowflake_nextval();
SELECT count(*) > 0, count(*) = count(DISTINCT ticket) FROM old_visit;
}), 't|t', 'ADD COLUMN with the default on a distributed table: each row has its own id');

# ----- tables that have a serial key -----

sql(q{
CREATE EXTENSION snowflake_convert;
CREATE TABLE legacy (id serial PRIMARY KEY, note text);
CREATE TABLE legacy_line (id bigserial PRIMARY KEY, legacy_id int REFERENCES legacy, note text);
INSERT INTO legacy (note) SELECT 'old' FROM generate_series(1, 20);
INSERT INTO legacy_line (legacy_id, note) SELECT id, note FROM legacy;
SELECT create_reference_table('legacy');
SELECT create_distributed_table('legacy_line', 'id');
});
for my $table ('legacy', 'legacy_line')
{
	is_refused_by_citus("SELECT snowflake_convert.key('$table', 'id')", '2BP01',
		qr/cannot change the type of column "id" of table "public.$table"/,
		"snowflake_convert.key() of $table");
}
like(sql(q{SELECT snowflake_convert.schema('{public}')}),
	qr/table public.legacy is distributed by Citus: convert before the table is distributed/,
	'snowflake_convert.schema() names a table that Citus has distributed');
sql(q{
SELECT undistribute_table('legacy_line', cascade_via_foreign_keys => true);
SELECT snowflake_convert.key('legacy', 'id') \gexec
SELECT snowflake_convert.key('legacy_line', 'id') \gexec
SELECT create_reference_table('legacy');
SELECT create_distributed_table('legacy_line', 'id');
});
for my $node (@nodes)
{
	$node->safe_psql('postgres', q{
WITH i AS (INSERT INTO legacy (note) VALUES ('new') RETURNING id)
INSERT INTO legacy_line (legacy_id, note) SELECT id, 'new' FROM i;
});
}
is(sql(q{SELECT count(*), count(*) FILTER (WHERE o.id > 20 AND l.id > 20) FROM legacy AS o JOIN legacy_line AS l ON legacy_id = o.id}),
	'23|3', 'in place of converting a distributed table: undistribute, convert, distribute; old keys stay, and new keys are snowflakes');

# ----- tables that an ORM makes -----

sql(q{
CREATE EXTENSION snowflake_convert;
SET snowflake_convert.schemas = '*';
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
CREATE TABLE author (id serial PRIMARY KEY, name text);
SELECT create_reference_table('author');
CREATE TABLE book (id serial PRIMARY KEY, author_id int REFERENCES author, name text);
SELECT create_distributed_table('book', 'id');
SET citus.enable_schema_based_sharding = on;
CREATE SCHEMA tenant;
CREATE TABLE tenant.bill (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, name text);
CREATE TABLE tenant.item (id serial PRIMARY KEY, bill_id int REFERENCES tenant.bill, name text);
DROP EVENT TRIGGER snowflakes;
});
for my $node (@nodes)
{
	$node->safe_psql('postgres', q{
WITH i AS (INSERT INTO author (name) VALUES ('new') RETURNING id) INSERT INTO book (author_id) SELECT id FROM i;
WITH i AS (INSERT INTO tenant.bill (name) VALUES ('new') RETURNING id) INSERT INTO tenant.item (bill_id) SELECT id FROM i;
});
}
is(join(' ', map { issuers($_) } qw(author tenant.bill)), '1:1 2:1 3:1 1:1 2:1 3:1',
	'distributed tables that the event trigger has converted get ids of all nodes');
is(sql(q{SELECT count(*) FROM author JOIN book ON author_id = author.id}), 3, 'rows reference the keys that the event trigger has converted');

# ----- load -----

my $directory = PostgreSQL::Test::Utils::tempdir();
PostgreSQL::Test::Utils::append_to_file("$directory/load.sql", q{
\set customer random(1, 100000)
INSERT INTO orders (node, item) VALUES (:node, 'load');
INSERT INTO visit (customer, node, note) VALUES (:customer, :node, 'load'), (:customer + 1, :node, 'load');
INSERT INTO orders (node, item) SELECT :node, 'load' FROM generate_series(1, 10);
});
PostgreSQL::Test::Utils::append_to_file("$directory/reference.sql", q{
INSERT INTO country (node, name) VALUES (:node, 'load');
INSERT INTO visit (customer, note) SELECT customer, 'moved' FROM stock WHERE customer % 50 = 0;
});

# Runs a load at some nodes at the same time.  Returns at how many nodes the
# load ended without an error.
sub load
{
	my ($seconds, @load_nodes) = @_;
	my @runs = map {
		IPC::Run::start(
			[ 'pgbench', '-n', '-c', 2, '-T', $seconds, '-M', 'prepared',
				'-D', 'node=' . $worker_id{$_->name},
				'-f', "$directory/load.sql\@20", '-f', "$directory/reference.sql\@1",
				$_->connstr('postgres') ],
			'>', \my $out, '2>', \my $err)
	} @load_nodes;
	return scalar grep { $_->finish } @runs;
}

my @tables = qw(orders visit country);
my ($ids_before) = count_ids(@tables);
is(load(LOAD_S, @nodes), 3, 'the load ends without an error at all nodes');
for my $table (@tables)
{
	is(sql("SELECT count(*) FROM $table WHERE node > 0 AND snowflake_worker_id(id) <> node"), 0,
		"$table: each row's id is of the node that inserted it");
	cmp_ok(sql("SELECT count(DISTINCT node) FROM $table WHERE node > 0"), '==', 3, "$table: all nodes have inserted rows");
}
my ($id_count, $duplicates) = count_ids(@tables);
is($duplicates, 0, 'no id comes twice under a load at all nodes');
cmp_ok($id_count, '>', $ids_before + 100, 'the load has inserted more than 100 rows');
note($id_count - $ids_before, ' ids in ', LOAD_S, ' s');

# ----- a worker without preload, without a worker id, or with another epoch -----

# The workers issue the ids of the first INSERT, and the coordinator issues
# those of the second.
my $by_workers = q{INSERT INTO visit (customer, note) SELECT customer, 'lacking' FROM stock};
my $by_coordinator = q{INSERT INTO orders (item) SELECT 'lacking' FROM generate_series(1, 20)};

for my $case (
	$coordinator->pg_version < 17
	? [ q{shared_preload_libraries = 'citus'}, '55000', qr/the library was not preloaded/ ]
	: (),
	[ 'snowflake.worker_id = -1', 'F0000', qr/"snowflake.worker_id" is not set/ ],
	[ 'snowflake.epoch = ' . OTHER_EPOCH, '22023', qr/with the present "snowflake.layout" and "snowflake.epoch"/ ])
{
	my ($setting, $sqlstate, $message_of_worker) = @$case;

	restart_with($worker2, $setting);
	is((sqlstate_of($coordinator, $by_coordinator))[0], '', "worker 2 with $setting: worker 2 accepts rows with ids of the coordinator");
	is_refused_by_citus($by_workers, $sqlstate, $message_of_worker, "worker 2 with $setting: INSERT ... SELECT on the workers");
	is_refused_by_citus('ALTER TABLE visit ADD COLUMN ticket bigint DEFAULT snowflake_nextval()',
		$sqlstate, $message_of_worker, "worker 2 with $setting: ADD COLUMN with the default");
	my @answers = SnowflakeCitus::on_all_nodes($coordinator, 'SELECT snowflake_worker_id(snowflake_nextval())');
	like($answers[2], $message_of_worker, "worker 2 with $setting: the query for all nodes shows the error of worker 2");

	# Each node decodes by its own epoch; a wrong epoch raises no error.
	my $future = sql(q{SELECT count(*) FROM orders WHERE snowflake_timestamp(id) > now() + interval '1 year'});
	if ($setting =~ /epoch/)
	{
		cmp_ok($future, '>', 0, 'a worker with another epoch: ids are decoded wrongly there');
		my %epochs = map { $_ => 1 } SnowflakeCitus::on_all_nodes($coordinator, q{SELECT format('%s %s', layout, epoch) FROM snowflake_node});
		is(scalar(keys %epochs), 2, 'a query for all nodes finds the worker with another epoch');
	}
	else
	{
		is($future, 0, "worker 2 with $setting: ids are decoded as on the other nodes");
	}
}

# Equal worker ids.  The INSERT is repeated until both workers have issued ids
# in the same tick.
my $equal = q{INSERT INTO visit (customer, note) SELECT v.customer, 'equal' FROM old_visit AS v, generate_series(1, 20)};

sub equal_duplicates
{
	return sql(q{SELECT count(*) - count(DISTINCT id) FROM visit WHERE note = 'equal'});
}

restart_with($worker2, 'snowflake.worker_id = 2');
is(insert_method_of($equal), 'repartition', 'an INSERT lets both workers issue ids');
cmp_ok(wait_for(sub { sql($equal); return equal_duplicates() }), '>', 0,
	'two workers with one worker id issue the same ids, which a key of (customer, id) accepts');
note(equal_duplicates(), ' duplicates among ', sql(q{SELECT count(*) FROM visit WHERE note = 'equal'}));
is(sql(q{SELECT string_agg(result, ' ') FROM (SELECT result FROM run_command_on_all_nodes($$
       SELECT format('%s/%s, %s, %s', datacenter_id, snowflake_worker_id(snowflake_nextval()), layout, extract(epoch FROM epoch))
         FROM snowflake_node$$) GROUP BY result HAVING count(*) > 1) AS s}),
	'0/2, 41/5/5/12, 1288834974.657000', 'a query for all nodes finds two workers with one worker id');
sql(q{DELETE FROM visit WHERE note = 'equal'});
restart_with($worker2);
sql($equal);
is(equal_duplicates(), 0,
	'the same INSERT with a worker id for each worker: no id comes twice');

# ----- a worker is cloned -----

SKIP:
{
	skip 'this Citus clones no nodes', 7
	  if sql(q{SELECT to_regproc('citus_add_clone_node') IS NULL}) eq 't';
	SnowflakeCitus::listen_with_password($worker1);
	my $clone = standby_node($worker1, 'clone');
	$clone->append_conf('postgresql.conf', sprintf
		"primary_conninfo = 'host=127.0.0.1 port=%d'\nlisten_addresses = '127.0.0.1'\n", $worker1->port);
	$clone->start;
	ok($worker1->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'}),
		'a clone of worker 1 streams');
	sql(sprintf q{SELECT citus_promote_clone_and_rebalance(citus_add_clone_node('127.0.0.1', %d, '%s', %d))},
		$clone->port, $worker1->host, $worker1->port);
	is((SnowflakeCitus::on_all_nodes($coordinator, 'SELECT snowflake_worker_id(snowflake_nextval())'))[3], 2,
		'a clone has the worker id of its original');
	like(logged($clone),
		qr/LOG:  snowflake ids of node \(0,2\) were issued elsewhere before/,
		'the clone logs that ids of its node were issued elsewhere');
	is( join(' ', map { $_ ? 1 : 0 } SnowflakeCitus::on_all_nodes($coordinator, q{SELECT coalesce(last_issued_elsewhere::text, '') FROM snowflake_node})),
		'0 0 0 1', 'snowflake_node of the clone shows that ids were issued elsewhere');
	restart_with($clone, 'snowflake.worker_id = 4');
	is((SnowflakeCitus::on_all_nodes($coordinator, 'SELECT snowflake_worker_id(snowflake_nextval())'))[3], 4,
		'the clone issues ids with a worker id of its own');
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
is(load(1, @nodes), scalar(@nodes), 'the load ends without an error at all nodes, with a promoted standby in a worker\'s place');
is(sql('SELECT count(*) FROM orders WHERE node > 0 AND snowflake_worker_id(id) <> node'), 0,
	'after the failover each row\'s id is of the node that inserted it');
($id_count, $duplicates) = count_ids(@tables, qw(by_customer by_id before staged legacy legacy_line author book tenant.bill tenant.item));
is($duplicates, 0, 'no id comes twice in all tables of the test');
note("$id_count ids");

$_->stop for reverse @nodes;
done_testing();
