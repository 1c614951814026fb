# The server's configuration: the server does not start with a value that could
# make wrong ids (or, without preload, issues no id), and issues no id without a
# worker id.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('main');
$node->append_conf('postgresql.conf', "include 'case.conf'\n");

# Replaces the settings of case.conf.  Also removes the page of the mark,
# because the library refuses a layout by which ids of the page could come
# again.
sub configure_afresh
{
	my ($settings) = @_;

	unlink mark_file($node);
	configure($node, $settings);
	return;
}

# Settings with which the server does not start, and patterns that its log then
# matches.
my $form = qr/DETAIL:  A layout is the widths of ticks/;
my $epoch_form = qr/DETAIL:  An epoch is a date and time with its time zone/;
my @refused = (
	# A node that does not fit the layout.
	[ 'snowflake.worker_id = 32',
		qr/32 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 31\)/ ],
	[ 'snowflake.worker_id = -2',
		qr/-2 is outside the valid range for parameter "snowflake.worker_id"/ ],
	(map { [ "snowflake.worker_id = '$_'",
				qr/invalid value for parameter "snowflake.worker_id": "\Q$_\E"/,
				qr/DETAIL:  It must be a decimal number/ ] }
		  '010', '0x1f', '1.6', ' 3', '1e1', '+4'),
	[ "snowflake.datacenter_id = '007'",
		qr/invalid value for parameter "snowflake.datacenter_id": "007"/ ],
	[ "snowflake.worker_id = 'seven'",
		qr/invalid value for parameter "snowflake.worker_id": "seven"/ ],
	[ "snowflake.worker_id = ''",
		qr/invalid value for parameter "snowflake.worker_id": ""/ ],
	[ 'snowflake.worker_id = 4294967303',
		qr/invalid value for parameter "snowflake.worker_id": "4294967303"/ ],
	[ 'snowflake.datacenter_id = 32',
		qr/32 is outside the valid range for parameter "snowflake.datacenter_id" \(0 \.\. 31\)/ ],
	[ 'snowflake.datacenter_id = -1',
		qr/-1 is outside the valid range for parameter "snowflake.datacenter_id"/ ],
	[ "snowflake.layout = '41/0/10/12'\nsnowflake.datacenter_id = 1",
		qr/1 is outside the valid range for parameter "snowflake.datacenter_id" \(0 \.\. 0\)/ ],
	[ "snowflake.layout = '41/5/2/12'",
		qr/7 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 3\)/ ],
	# Texts that are no layout.
	(map { [ "snowflake.layout = '$_'",
				qr/invalid value for parameter "snowflake.layout": "\Q$_\E"/, $form ] }
		  '', '41', '41/5/5', '41/5/5/12/0', '41/5/5/x', '41 /5/5/12',
		'41/5/5/12@', '41/5/5/12@0ms', '41/5/5/12@10', '41/5/5/12@1min',
		'41/5/5/12 @10ms', '-1/5/5/12', 'default'),
	[ "snowflake.layout = '41/5/5/13'",
		qr/invalid value for parameter "snowflake.layout": "41\/5\/5\/13"/,
		qr/must not add up to more than 63 bits/ ],
	[ "snowflake.layout = '0/5/5/12'", qr/invalid value for parameter "snowflake.layout": "0\/5\/5\/12"/,
		qr/ticks need at least 1 bit/ ],
	[ "snowflake.layout = '10/32/5/12'", qr/invalid value for parameter "snowflake.layout": "10\/32\/5\/12"/,
		qr/must be in the range 0 \.\. 31/ ],
	[ "snowflake.layout = '55/0/0/8\@1s'", qr/invalid value for parameter "snowflake.layout": "55\/0\/0\/8\@1s"/,
		qr/last longer than the range of timestamps/ ],
	[ "snowflake.layout = '63/0/0/0\@1us'\nsnowflake.worker_id = 0",
		qr/invalid value for parameter "snowflake.layout": "63\/0\/0\/0\@1us"/,
		qr/last longer than the range of timestamps/ ],
	# Texts that are no epoch, or that mean another epoch on another server or
	# day.
	(map { [ "snowflake.epoch = '$_'",
				qr/invalid value for parameter "snowflake.epoch": "\Q$_\E"/, $epoch_form ] }
		  '', 'yesterday', 'now', 'today UTC', 'infinity', 'epoch',
		'2016-01-01', '2016-01-01 00:00:00', '2016-13-01 00:00:00+00',
		'2016-01-01 25:00:00+00', '01/02/2016 00:00:00 UTC',
		'2016-01-01 00:00:00 Nowhere/Land', '2016-01-01 00:00:00 IST',
		'2016-01-01 00:00:00 NYC0', '12e9', '99999999999999999999'),
	[ "snowflake.layout = '53/0/5/5'\nsnowflake.epoch = '9000-01-01 00:00+00'",
		qr/parameters "snowflake.layout" and "snowflake.epoch" do not go together/,
		qr/last tick lies beyond the range of timestamps/ ],
	# How ids are issued.
	[ "snowflake.clock_policy = 'maybe'",
		qr/invalid value for parameter "snowflake.clock_policy": "maybe"/,
		qr/Available values: wait, error, advance/ ],
	[ "snowflake.clock_tolerance = -1",
		qr/-1 ms is outside the valid range for parameter "snowflake.clock_tolerance"/ ],
	[ "snowflake.clock_tolerance = '5 moons'",
		qr/invalid value for parameter "snowflake.clock_tolerance": "5 moons"/ ],
	[ "snowflake.sequence_start = 'one'",
		qr/invalid value for parameter "snowflake.sequence_start": "one"/ ],
	(map { [ "snowflake.block_size = $_",
				qr/$_ is outside the valid range for parameter "snowflake.block_size" \(1 \.\. 65536\)/ ] }
		  0, -1, 65537),
	# A misspelt name, which would leave the default in force.
	[ 'snowflake.datacentre_id = 3',
		qr/unrecognized configuration parameter "snowflake.datacentre_id"/ ],
	[ 'Snowflake.Worker = 3',
		qr/unrecognized configuration parameter "Snowflake.Worker"/i ]);

unless (PRELOADS)
{
	configure_afresh('');
	$node->start;
	value_of($node, 'CREATE EXTENSION snowflake');
	$node->stop;
}
for my $case (@refused)
{
	my ($settings, @reasons) = @$case;
	my $offset = -s $node->logfile // 0;
	my $level = PRELOADS ? 'FATAL' : 'ERROR';

	configure_afresh($settings);
	my $started = $node->start(fail_ok => 1);
	my ($rc) = $started && !PRELOADS
	  ? $node->psql('postgres', 'SELECT snowflake_nextval()') : 0;
	$node->stop if $started;
	my $log = logged($node, $offset);

	$settings =~ s/\n/, /g;
	if (PRELOADS)
	{
		ok(!$started, "no start with $settings");
	}
	else
	{
		is($rc, 3, "no id with $settings");
	}
	my $first = shift @reasons;
	like($log, qr/$level:  $first/, "$settings: the log says what is wrong");
	like($log, $_, "$settings: the log says why") for @reasons;
}

# Settings that are accepted, a query with them, and its result.
my $last = 'SELECT snowflake_format(9223372036854775807)';
my @accepted = (
	[ '', $last, '2080-07-10 17:30:30.208, #4095, @(31,31)' ],
	[ '', "SELECT snowflake_decode(910499571847892992)",
		'("2017-09-20 13:43:08.849+00",17,25,0)' ],
	[ 'snowflake.worker_id = 31',
		'SELECT snowflake_worker_id(snowflake_nextval())', '31' ],
	[ "snowflake.worker_id = 0\nsnowflake.datacenter_id = 31",
		'SELECT snowflake_worker_id(id), snowflake_datacenter_id(id) FROM snowflake_nextval() AS id',
		'0|31' ],
	[ "snowflake.epoch = '1288834974657'", $last,
		'2080-07-10 17:30:30.208, #4095, @(31,31)' ],
	[ "snowflake.epoch = '0'", 'SELECT snowflake_format(0)',
		'1970-01-01 00:00:00.000, #0, @(0,0)' ],
	[ "snowflake.epoch = '2016-01-01T00:00:00Z'", 'SELECT snowflake_format(0)',
		'2016-01-01 00:00:00.000, #0, @(0,0)' ],
	[ "snowflake.epoch = '2016-07-01 00:00:00 America/New_York'",
		'SELECT snowflake_format(0)', '2016-07-01 04:00:00.000, #0, @(0,0)' ],
	[ "snowflake.epoch = '2016-01-01 00:00:00+00'", q{
SET TimeZone = 'Asia/Shanghai';
SELECT snowflake_format(id)
  FROM unnest(ARRAY[225912364091068416, 225912364275617792, 225912364279812096,
                    225912364279812097, 225912364284006400, 225912364284006401]) AS id},
		"2017-09-15 17:35:04.848, #0, @(2,5)\n"
		  . "2017-09-15 17:35:04.892, #0, @(2,5)\n"
		  . "2017-09-15 17:35:04.893, #0, @(2,5)\n"
		  . "2017-09-15 17:35:04.893, #1, @(2,5)\n"
		  . "2017-09-15 17:35:04.894, #0, @(2,5)\n"
		  . "2017-09-15 17:35:04.894, #1, @(2,5)" ],
	# A layout of 53 bits.
	[ "snowflake.layout = '41/0/4/8'\nsnowflake.epoch = '2020-01-01 00:00+00'",
		'SELECT snowflake_max_id(\'infinity\'), id < 9007199254740992, snowflake_datacenter_id(id) FROM snowflake_nextval() AS id',
		'9007199254740991|t|0' ],
	[ "snowflake.layout = '30/10/10/13\@1s'\nsnowflake.worker_id = 1023\nsnowflake.epoch = '2020-01-01 00:00+00'",
		'SELECT snowflake_worker_id(id), now() - snowflake_timestamp(id) < \'2 s\' FROM snowflake_nextval() AS id',
		'1023|t' ],
	# Layouts with one or two fields.
	[ "snowflake.layout = '43/0/0/20'\nsnowflake.worker_id = 0",
		'SELECT count(DISTINCT id) FROM snowflake_nextvals(3000000) AS id', '3000000' ],
	[ "snowflake.layout = '53/0/0/0\@100us'\nsnowflake.worker_id = 0",
		'SELECT count(DISTINCT id) FROM snowflake_nextvals(100) AS id', '100' ],
	[ "snowflake.layout = '41/0/3/0'",
		'SELECT count(DISTINCT id) FROM snowflake_nextvals(100) AS id', '100' ],
	# With random starts, the ids of a quiet server do not all have the same
	# sequence.
	[ "snowflake.sequence_start = random",
		'SELECT count(DISTINCT snowflake_sequence(id)) > 50, max(snowflake_sequence(id)) < 1100
		   FROM (SELECT snowflake_nextval() AS id, pg_sleep(0.002) FROM generate_series(1, 100)) AS v',
		't|t' ],
	[ "snowflake.sequence_start = zero",
		'SELECT max(snowflake_sequence(id)) < 50
		   FROM (SELECT snowflake_nextval() AS id, pg_sleep(0.002) FROM generate_series(1, 100)) AS v',
		't' ]);

configure_afresh('');
$node->start;
value_of($node, 'CREATE EXTENSION IF NOT EXISTS snowflake');
$node->stop;
for my $case (@accepted)
{
	my ($settings, $sql, $expected) = @$case;

	configure_afresh("timezone = 'UTC'\n$settings");
	my $started = $node->start(fail_ok => 1);
	$settings =~ s/\n/, /g;
	ok($started, "start with '$settings'") or next;
	is(value_of($node, $sql), $expected, "'$settings': $sql");
	$node->stop;
}

# Fields at both ends of random layouts, encoded and decoded by the server.
my $seed = $ENV{SNOWFLAKE_SEED} // time;
srand($seed);
note "seed $seed";
for (1 .. 6)
{
	my @bits = (30 + int rand 12, map { int rand 8 } 1 .. 3);
	my $tick = (qw(@1ms @10ms @100us @250us))[ int rand 4 ];
	my $layout = join('/', @bits) . $tick;

	configure_afresh(
		"snowflake.worker_id = 0\nsnowflake.layout = '$layout'\nsnowflake.epoch = '2005-03-04 05:06:07.008+00'");
	$node->start;
	is(value_of($node, qq{
SELECT count(*) || ' ids, wrong: ' || count(*) FILTER (
         WHERE snowflake_decode(id) IS DISTINCT FROM (at, datacenter, worker, seq)
            OR id NOT BETWEEN snowflake_min_id(at) AND snowflake_max_id(at)
            OR snowflake_timestamp(snowflake_min_id(at) - 1) >= at
            OR snowflake_timestamp(snowflake_max_id(at) + 1) <= at)
  FROM (SELECT snowflake_timestamp((1 + random() * ((1::bigint << $bits[0]) - 3))::bigint
                                     << $bits[1] + $bits[2] + $bits[3]) AS at,
               floor(random() * (1 << $bits[1]))::int AS datacenter,
               floor(random() * (1 << $bits[2]))::int AS worker,
               floor(random() * (1 << $bits[3]))::int AS seq
          FROM generate_series(1, 2000)) AS fields,
       snowflake_encode(at, datacenter, worker, seq) AS id}),
		'2000 ids, wrong: 0', "round trip in layout $layout");
	is(value_of($node, qq{
SELECT snowflake_encode(snowflake_timestamp(snowflake_max_id('infinity')), (1 << $bits[1]) - 1,
                        (1 << $bits[2]) - 1, (1 << $bits[3]) - 1) = snowflake_max_id('infinity'),
       snowflake_max_id('infinity') = (1::bigint << $bits[0] + $bits[1] + $bits[2] + $bits[3]) - 1,
       snowflake_min_id('-infinity')}),
		't|t|0', "the ends of layout $layout");
	$node->stop;
}

# snowflake_encode() refuses values that do not fit their fields.
configure_afresh('');
$node->start;
for my $arguments (
	"'2010-11-04 01:42:54.656999+00', 0, 0, 0",
	"'2080-07-10 17:30:30.209+00', 0, 0, 0",
	"'infinity', 0, 0, 0",
	"'2020-01-01 00:00+00', 32, 0, 0",
	"'2020-01-01 00:00+00', 0, 32, 0",
	"'2020-01-01 00:00+00', 0, 0, 4096",
	"'2020-01-01 00:00+00', 0, 0, -1")
{
	my ($state) = sqlstate_of($node, "SELECT snowflake_encode($arguments)");
	is($state, '22003', "encode($arguments) is out of range");
}
is( value_of($node,
		"SELECT snowflake_encode('2080-07-10 17:30:30.208999+00', 31, 31, 4095)"),
	'9223372036854775807',
	'the largest id of the default layout');

# A change of a postmaster parameter needs a restart, as the log says.  For
# servers without preload see t/ids_no_preload.pl.
SKIP: {
skip 'without preload the postmaster does not know the parameters' unless PRELOADS;
my $offset = -s $node->logfile;
configure_afresh("snowflake.worker_id = 9\nsnowflake.clock_tolerance = '7s'");
$node->reload;
ok($node->poll_query_until('postgres',
		"SELECT current_setting('snowflake.clock_tolerance') = '7s'"),
	'a reload changes clock_tolerance');
is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
	7, 'a reload does not change the worker id');
is( value_of($node,
		"SELECT pending_restart FROM pg_settings WHERE name = 'snowflake.worker_id'"),
	't', 'after the reload pg_settings shows a pending restart of the worker id');
ok($node->wait_for_log(
		qr/parameter "snowflake.worker_id" cannot be changed without restarting the server/,
		$offset),
	'a reload logs that the worker id needs a restart');

# A reload refuses a bad value, keeps the old one, and leaves the server
# running.
for my $bad (
	[ 'snowflake.clock_tolerance', 'soon', '7s' ],
	[ 'snowflake.layout', '41', '41/5/5/12' ],
	[ 'snowflake.epoch', '2016-01-01 00:00 Nowhere/Land',
		'2010-11-04 01:42:54.657+00' ])
{
	my ($parameter, $value, $in_force) = @$bad;
	$offset = -s $node->logfile;
	configure_afresh("$parameter = '$value'");
	$node->reload;
	ok($node->wait_for_log(qr/invalid value for parameter "$parameter"/, $offset),
		"a reload refuses a bad $parameter");
	is(value_of($node, "SELECT current_setting('$parameter')"),
		$in_force, "a reload keeps the $parameter in force");
}
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
is((sqlstate_of($node, 'SELECT snowflake_currval()'))[0],
	'55000', 'snowflake_currval() without a worker id is an error');
is(value_of($node, 'SELECT snowflake_worker_id(910499571847892992)'),
	25, 'an id is decoded without a worker id');
$node->stop;

# Hooks of libraries that are loaded before and after this one go on working.
for my $libraries ('pg_stat_statements, snowflake',
	'snowflake, pg_stat_statements')
{
	configure_afresh("shared_preload_libraries = '$libraries'");
	$node->start;
	value_of($node, 'CREATE EXTENSION IF NOT EXISTS pg_stat_statements');
	is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
		7, "$libraries: ids are issued");
	is( value_of($node,
			'SELECT count(*) > 0 FROM pg_stat_statements'),
		't', "$libraries: pg_stat_statements counts statements");
	$node->stop;
}

# Without preload ids are decoded by the configured layout and epoch, and before
# PostgreSQL 17 no ids are issued.
my $elsewhere = q{
shared_preload_libraries = ''
timezone = 'UTC'
snowflake.epoch = '2016-01-01 00:00:00+00'
snowflake.layout = '41/0/10/12'};
configure_afresh($elsewhere);
$node->start;
for my $call ('snowflake_nextval()', 'snowflake_nextvals(1)')
{
	last if $node->pg_version >= 17;
	my ($state, $message, $hint) = sqlstate_of($node, "SELECT $call");
	is($state, '55000', "$call without preload");
	like($hint, qr/shared_preload_libraries/, "$call: the hint names shared_preload_libraries");
}
is( value_of($node, 'SELECT snowflake_format(225912364091068416)'),
	'2017-09-15 09:35:04.848, #0, @(0,69)',
	'decoding without preload, by the configured layout and epoch');
is( value_of($node, "SELECT snowflake_encode('2017-09-15 09:35:04.848+00', 0, 69, 0)"),
	'225912364091068416',
	'fields are encoded without preload, by the configured layout and epoch');
my ($state) = sqlstate_of($node,
	"LOAD 'snowflake'; SET snowflake.layout = '41/5/5/12'; SELECT 1");
is($state, '55P02', 'a session cannot change the layout');
($state) = sqlstate_of($node,
	"SET snowflake.nonsense = 1; SELECT snowflake_worker_id(1)");
is($state, '', 'a stray parameter does not stop decoding');
$node->stop;
for my $bad (
	[ 'layout', '41/5/5' ],
	[ 'epoch', '2016-01-01' ])
{
	my ($name, $value) = @$bad;
	configure_afresh("$elsewhere\nsnowflake.$name = '$value'");
	$node->start;
	my ($state, $message) = sqlstate_of($node, 'SELECT snowflake_timestamp(1)');
	is($state, '22023', "without preload a bad $name is an error, and no default takes its place");
	like($message, qr/"snowflake.$name": "\Q$value\E"/, "bad $name: the message has the parameter and the value");
	is( value_of($node,
			"SELECT snowflake_timestamp(0, '2015-01-01 00:00+00') = '2015-01-01 00:00+00'"
		),
		't',
		"bad $name: decoding with an explicit epoch works");
	$node->stop;
}

done_testing();
