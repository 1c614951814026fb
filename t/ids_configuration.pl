# The server's configuration: the server does not start with a value that could
# make wrong ids (or, without preload, issues no id), and issues no id without a
# worker id.  A reload changes only what may change.  Without preload ids are
# decoded by the configured layout and epoch, and no plan keeps a bound of a
# former layout.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('main', "include 'case.conf'");

# Replaces the settings of case.conf.  Also removes the page of the mark,
# because the library refuses a layout by which ids of the page could come
# again.
sub configure_afresh
{
	unlink mark_file($node);
	configure($node, "timezone = 'UTC'", @_);
	return;
}

configure_afresh();
$node->start;
value_of($node, 'CREATE EXTENSION snowflake');
$node->stop;

# ----- values that are refused -----

# Returns cases with values that a parameter cannot have, and why.
sub invalid
{
	my ($parameter, $detail, @values) = @_;
	return map {
		[ "$parameter = '$_'", qr/invalid value for parameter "$parameter": "\Q$_\E"/, $detail ]
	} @values;
}

# Settings with which the server does not start, and patterns that its log then
# matches: what is wrong, and why.
my @refused = (
	# A node that does not fit the layout, or is no number.
	[ 'snowflake.worker_id = 32',
		qr/32 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 31\)/ ],
	[ 'snowflake.worker_id = -2',
		qr/-2 is outside the valid range for parameter "snowflake.worker_id"/ ],
	[ 'snowflake.datacenter_id = 32',
		qr/32 is outside the valid range for parameter "snowflake.datacenter_id" \(0 \.\. 31\)/ ],
	[ "snowflake.layout = '41/5/2/12'",
		qr/7 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 3\)/ ],
	invalid('snowflake.worker_id', undef, 'seven', '', '7 7', '09', '4294967303'),

	# Layouts; sql/decoding.sql has more texts that are no layout.
	invalid('snowflake.layout', qr/A layout is the widths of ticks/,
		'', '41/5/5', '41/5/5/12@1min', 'default'),
	invalid('snowflake.layout', qr/must not add up to more than 63 bits/, '41/5/5/13'),
	invalid('snowflake.layout', qr/last longer than the range of timestamps/, '55/0/0/8@1s'),
	[ "snowflake.layout = '53/0/5/5'\nsnowflake.epoch = '9000-01-01 00:00+00'",
		qr/parameters "snowflake.layout" and "snowflake.epoch" do not go together/,
		qr/last tick lies beyond the range of timestamps/ ],

	# Texts that are no epoch, or that mean another epoch on another server or
	# day.
	invalid('snowflake.epoch', qr/An epoch is a date and time with its time zone/,
		'', 'yesterday', 'now', 'today UTC', 'infinity', 'epoch',
		'2016-01-01', '2016-01-01 00:00:00', '2016-13-01 00:00:00+00',
		'01/02/2016 00:00:00 UTC', '2016-01-01 00:00:00 Nowhere/Land',
		'2016-01-01 00:00:00 IST', '2016-01-01 00:00:00 NYC0', '12e9',
		'99999999999999999999', '-1', '99999999999'),

	# How ids are issued.
	invalid('snowflake.clock_policy', qr/Available values: wait, error, advance/, 'maybe'),
	invalid('snowflake.clock_tolerance', undef, '5 moons'),
	invalid('snowflake.sequence_start', undef, 'one'),
	(map { [ "snowflake.high_water_interval = $_",
				qr/$_ ms is outside the valid range for parameter "snowflake.high_water_interval"/ ] }
		  9, 60001),

	# A registry, which needs the preload.
	PRELOADS
	? ( [ "snowflake.registry = 'nonsense'",
			qr/invalid value for parameter "snowflake.registry"/, qr/DETAIL:  missing "="$/m ],
		[ "snowflake.registry = 'postgresql://user:Xyzzy.37@[::1/db'",
			qr/invalid value for parameter "snowflake.registry"/, qr/DETAIL:  .*in URI$/m ],
		[ "snowflake.worker_id = -1\nsnowflake.worker_id_source = registry",
			qr/parameter "snowflake.worker_id_source" is "registry", but "snowflake.registry" is not set/ ],
		[ "snowflake.worker_id = -1\nsnowflake.registry = 'dbname=x'",
			qr/parameter "snowflake.registry" is set, but "snowflake.worker_id_source" is "config" and "snowflake.worker_id" is not set/ ],
		[ 'snowflake.server_name = ' . 'n' x 64, qr/invalid value for parameter "snowflake.server_name": "n{64}"/ ])
	: (),

	# A misspelt name, which would leave the default in force.
	# Names have no case.
	[ "Snowflake.Datacenter_ID = '3x'", qr/invalid value for parameter "Snowflake.Datacenter_ID": "3x"/i ],
	[ 'Snowflake.Worker = 3', qr/unrecognized configuration parameter "Snowflake.Worker"/i ],
	[ 'snowflake.block_size = 1', qr/unrecognized configuration parameter "snowflake.block_size"/ ]);

for my $case (@refused)
{
	my ($settings, $what, $why) = @$case;
	my $offset = -s $node->logfile;
	my $level = PRELOADS ? 'FATAL' : 'ERROR';

	configure_afresh($settings);
	$settings =~ s/\n/, /g;
	my $started = $node->start(fail_ok => 1);
	if (PRELOADS)
	{
		ok(!$started, "no start with $settings");
	}
	else
	{
		is(($node->psql('postgres', 'SELECT snowflake_nextval()'))[0], 3, "no id with $settings");
	}
	$node->stop if $started;
	my $log = logged($node, $offset);
	like($log, qr/$level:  $what/, "$settings: the log says what is wrong");
	like($log, $why, "$settings: the log says why") if defined $why;
}
unlike(logged($node), qr/Xyzzy/, 'a connection string that is refused leaves no password in the log');

# ----- values that are accepted -----

# Settings, a query with them, and its result.
my $last = 'SELECT snowflake_format(9223372036854775807)';
my $first = 'SELECT snowflake_format(0)';
my $distinct = 'SELECT count(DISTINCT id) FROM snowflake_nextvals(100) AS id';
my @accepted = (
	[ '', $last, '2080-07-10 17:30:30.208, #4095, @(31,31)' ],
	[ "snowflake.worker_id = 0\nsnowflake.datacenter_id = 31",
		'SELECT snowflake_worker_id(id), snowflake_datacenter_id(id) FROM snowflake_nextval() AS id',
		'0|31' ],
	# PostgreSQL's syntax of integers.
	[ "snowflake.worker_id = '010'\nsnowflake.datacenter_id = 1.6",
		'SELECT snowflake_worker_id(id), snowflake_datacenter_id(id) FROM snowflake_nextval() AS id',
		'8|2' ],
	[ "snowflake.epoch = '1288834974657'", $last, '2080-07-10 17:30:30.208, #4095, @(31,31)' ],
	[ "snowflake.epoch = '2016-01-01T00:00:00Z'", $first, '2016-01-01 00:00:00.000, #0, @(0,0)' ],
	[ "snowflake.epoch = '2016-07-01 00:00:00 America/New_York'",
		$first, '2016-07-01 04:00:00.000, #0, @(0,0)' ],
	[ "snowflake.epoch = '2016-01-01 00:00:00+00'",
		"SET TimeZone = 'Asia/Shanghai'; SELECT snowflake_format(225912364284006401)",
		'2017-09-15 17:35:04.894, #1, @(2,5)' ],

	# Layouts of 53 bits, with a long tick, and with one or two fields.
	[ "snowflake.layout = '41/0/4/8'\nsnowflake.epoch = '2020-01-01 00:00+00'",
		'SELECT snowflake_max_id(\'infinity\'), id < 9007199254740992, snowflake_datacenter_id(id) FROM snowflake_nextval() AS id',
		'9007199254740991|t|0' ],
	[ "snowflake.layout = '30/10/10/13\@1s'\nsnowflake.worker_id = 1023\nsnowflake.epoch = '2020-01-01 00:00+00'",
		'SELECT snowflake_worker_id(id), now() - snowflake_timestamp(id) < \'2 s\' FROM snowflake_nextval() AS id',
		'1023|t' ],
	[ "snowflake.layout = '53/0/0/0\@100us'\nsnowflake.worker_id = 0", $distinct, '100' ],
	[ "snowflake.layout = '41/0/3/0'", $distinct, '100' ]);

for my $case (@accepted)
{
	my ($settings, $sql, $expected) = @$case;

	configure_afresh($settings);
	$node->start;
	$settings =~ s/\n/, /g;
	is(value_of($node, $sql), $expected, "'$settings': $sql");
	$node->stop;
}

# ----- reloads and restarts -----

configure_afresh();
$node->start;
# For servers without preload see t/ids_no_preload.pl.
SKIP: {
	skip 'without preload the postmaster does not know the parameters' unless PRELOADS;
	is((sqlstate_of($node, 'SET snowflake.no_such_parameter = 3'))[0],
		'42602', 'no session can make up a parameter');

	configure($node, 'snowflake.worker_id = 9', "snowflake.clock_tolerance = '7s'");
	$node->reload;
	ok($node->poll_query_until('postgres', "SELECT current_setting('snowflake.clock_tolerance') = '7s'"),
		'a reload changes clock_tolerance');
	is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
		7, 'a reload does not change the worker id');
	is(value_of($node, "SELECT pending_restart FROM pg_settings WHERE name = 'snowflake.worker_id'"),
		't', 'after the reload pg_settings shows a pending restart of the worker id');
}
configure_afresh('snowflake.worker_id = 9');
$node->restart;
is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
	9, 'a restart changes the worker id');
$node->stop;

# Without a worker id no ids are issued, but ids are decoded.
configure_afresh('snowflake.worker_id = -1');
$node->start;
for my $call ('snowflake_nextval()', 'snowflake_nextvals(1)')
{
	my ($state, $message, $hint) = sqlstate_of($node, "SELECT $call");
	is($state, 'F0000', "$call without a worker id");
	like($message, qr/"snowflake.worker_id" is not set/, "$call: the message names the missing parameter");
	like($hint, qr/in the range 0 \.\. 31/, "$call: the hint has the range of worker ids");
}
is(value_of($node, 'SELECT snowflake_worker_id(910499571847892992)'),
	25, 'an id is decoded without a worker id');
$node->stop;

# Hooks of libraries that are loaded before and after this one go on working.
for my $libraries ('pg_stat_statements, snowflake', 'snowflake, pg_stat_statements')
{
	configure_afresh("shared_preload_libraries = '$libraries'");
	$node->start;
	value_of($node, 'CREATE EXTENSION IF NOT EXISTS pg_stat_statements');
	is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
		7, "$libraries: ids are issued");
	is(value_of($node, 'SELECT count(*) > 0 FROM pg_stat_statements'),
		't', "$libraries: pg_stat_statements counts statements");
	$node->stop;
}

# ----- without preload -----

# Ids are decoded by the configured layout and epoch, and before PostgreSQL 17
# no ids are issued.
my @elsewhere = (
	"shared_preload_libraries = ''",
	"snowflake.epoch = '2016-01-01 00:00:00+00'",
	"snowflake.layout = '41/0/10/12'");
configure_afresh(@elsewhere);
$node->start;
for my $call ('snowflake_nextval()', 'snowflake_nextvals(1)')
{
	last if $node->pg_version >= 17;
	my ($state, undef, $hint) = sqlstate_of($node, "SELECT $call");
	is($state, '55000', "$call without preload");
	like($hint, qr/shared_preload_libraries/, "$call: the hint names shared_preload_libraries");
}
is(value_of($node, 'SELECT snowflake_format(225912364091068416)'),
	'2017-09-15 09:35:04.848, #0, @(0,69)',
	'ids are decoded without preload');
is(value_of($node, "SELECT snowflake_encode('2017-09-15 09:35:04.848+00', 0, 69, 0)"),
	'225912364091068416', 'fields are encoded without preload');
is((sqlstate_of($node, "LOAD 'snowflake'; SET snowflake.layout = '41/5/5/12'; SELECT 1"))[0],
	'55P02', 'a session cannot change the layout');
is((sqlstate_of($node, "SET snowflake.nonsense = 1; SELECT snowflake_worker_id(1)"))[0],
	'', 'a stray parameter does not stop decoding');

# Replaces the layout and the epoch, and waits until new sessions have them.
sub reload_with
{
	my ($layout, $epoch) = @_;

	configure($node, "timezone = 'UTC'", "shared_preload_libraries = ''",
		"snowflake.layout = '$layout'", "snowflake.epoch = '$epoch'");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('snowflake.layout') || current_setting('snowflake.epoch') = '$layout$epoch'")
	  or die "no layout $layout\n";
	return;
}

for my $bad ([ 'layout', '41/5/5', '2016-01-01 00:00+00' ],
	[ 'epoch', '41/5/5/12', '2016-01-01' ])
{
	my ($name, @values) = @$bad;
	reload_with(@values);
	my ($state, $message) = sqlstate_of($node, 'SELECT snowflake_timestamp(1)');
	is($state, '22023', "without preload a bad $name is an error, and no default takes its place");
	like($message, qr/"snowflake.$name": "(41\/5\/5|2016-01-01)"/,
		"bad $name: the message has the parameter and the value");
	is(value_of($node, "SELECT snowflake_timestamp(0, '2015-01-01 00:00+00') = '2015-01-01 00:00+00'"),
		't', "bad $name: decoding with an explicit epoch works");
}

# A value in another place, a misspelt name, and a first use in a parallel
# operation; t/ids_no_preload.pl has more for servers that issue ids.
reload_with('41/0/10/12', '2016-01-01 00:00+00');
value_of($node, "ALTER DATABASE postgres SET snowflake.epoch = '2016-01-01 00:00+00'");
is((sqlstate_of($node, 'SELECT snowflake_timestamp(1)'))[0],
	'55P02', 'an epoch that is set for a database is an error');
value_of($node, 'ALTER DATABASE postgres RESET snowflake.epoch');
value_of($node, "ALTER DATABASE postgres SET snowflake.epoche = '2016-01-01 00:00+00'");
is((sqlstate_of($node, 'SELECT snowflake_timestamp(1)'))[0],
	'42704', 'a misspelt name is an error');
value_of($node, 'ALTER DATABASE postgres RESET snowflake.epoche');
value_of($node, q{
CREATE FUNCTION wrapped(id bigint) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS 'BEGIN RETURN snowflake_format(id); END';
CREATE TABLE many AS SELECT 225912364091068416 AS id FROM generate_series(1, 10000); ANALYZE many});
is( value_of($node, q{
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SELECT DISTINCT wrapped(id) FROM many}),
	'2017-09-15 09:35:04.848, #0, @(0,69)',
	'a parallel query whose session has not loaded the library decodes by the configured layout');

# A reload can change the layout between two executions of a prepared statement.
reload_with('41/5/5/12', '2016-01-01 00:00+00');
value_of($node, 'CREATE TABLE ids (id bigint)');
like(value_of($node, q{EXPLAIN (COSTS OFF) SELECT * FROM ids WHERE id >= snowflake_min_id('2030-01-01 00:00+00')}),
	qr/snowflake_min_id/, 'not preloaded: a bound is a function call in the plan');
my $conf = $node->data_dir . '/case.conf';
my @bounds = value_of($node, qq{
SET plan_cache_mode = force_generic_plan;
PREPARE bound AS SELECT snowflake_min_id('2030-01-01 00:00+00');
EXECUTE bound;
COPY (SELECT 'snowflake.layout = ''41/5/5/11''') TO PROGRAM 'cat >> "$conf"';
SELECT pg_reload_conf();
SELECT pg_sleep(0.1) FROM generate_series(1, 20)
 WHERE current_setting('snowflake.layout') <> '41/5/5/11';
EXECUTE bound;}) =~ /^(\d+)$/mg;
is(scalar(@bounds), 2, 'the prepared statement returns a bound before and after the reload');
is($bounds[1], $bounds[0] / 2, 'after the reload the bound is that of the new layout');

# Compares snowflake_issued_between() with its definition, in layouts with ticks
# of different lengths: for the smallest and the largest id of some ticks, and for
# instants at the beginnings of these ticks, 1 us before, and 1 us after.
for my $layout (
	[ '30/10/10/13@1s', '2020-01-01 00:00+00' ],
	[ '45/3/3/4@7us', '2024-02-29 12:00:00.000001+00' ])
{
	reload_with(@$layout);
	is( value_of($node, q{
WITH bounds AS MATERIALIZED (
  SELECT first_instant + (1000000 + n) * tick_interval + us * interval '1 us' AS bound
    FROM snowflake_node(), generate_series(-2, 2) AS n, generate_series(-1, 1) AS us),
ids AS MATERIALIZED (
  SELECT unnest(ARRAY[snowflake_min_id(bound), snowflake_max_id(bound)]) AS id FROM bounds)
SELECT count(*) > 4000, count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)) > 200,
       count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)
		 IS DISTINCT FROM (snowflake_timestamp(id) >= since.bound AND snowflake_timestamp(id) < until.bound))
  FROM ids, bounds AS since, bounds AS until}),
		't|t|0',
		"$layout->[0]: snowflake_issued_between() is as defined");
}
$node->stop;

done_testing();
