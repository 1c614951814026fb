# The server's configuration: the server does not start with a value that could
# make wrong ids, and issues no id without a worker id.  A reload changes only
# what may change.  Without preload only what needs no node works, and the errors
# say what to do.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(words_of_postmaster);
use SnowflakeSession;
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

# ----- values that are refused -----

# Returns cases with values that a parameter cannot have, and why.
sub invalid
{
	my ($parameter, $detail, @values) = @_;
	return map {
		[ "$parameter = '$_'", qr/invalid value for parameter "$parameter": "\Q$_\E"/, $detail ]
	} @values;
}

# Settings that the postmaster refuses, and patterns of what it then says: what is
# wrong, and why.
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
		'41/5/5', '41/5/5/12@1min', 'default'),
	invalid('snowflake.layout', qr/must not add up to more than 63 bits/, '41/5/5/13'),
	invalid('snowflake.layout', qr/last longer than the range of timestamps/, '55/0/0/8@1s'),
	[ "snowflake.layout = '53/0/5/5'\nsnowflake.epoch = '9000-01-01 00:00+00'",
		qr/parameters "snowflake.layout" and "snowflake.epoch" do not go together/,
		qr/last tick lies beyond the range of timestamps/ ],

	# Texts that are no epoch, or that mean another epoch on another server or
	# day.
	invalid('snowflake.epoch', qr/An epoch is a date and time with its time zone/,
		'yesterday', 'now', 'today UTC', 'infinity', 'epoch',
		'2016-01-01', '2016-01-01 00:00:00', '2016-13-01 00:00:00+00',
		'01/02/2016 00:00:00 UTC', '2016-01-01 00:00:00 Nowhere/Land',
		'2016-01-01 00:00:00 IST', '2016-01-01 00:00:00 NYC0', '12e9',
		'99999999999999999999', '-1', '99999999999'),

	# How ids are issued.
	invalid('snowflake.clock_policy', qr/Available values: wait, advance/, 'maybe', 'error'),
	invalid('snowflake.clock_tolerance', undef, '5 moons'),

	# A registry.
	[ "snowflake.registry = 'nonsense'",
		qr/invalid value for parameter "snowflake.registry"/, qr/DETAIL:  missing "="$/m ],
	[ "snowflake.registry = 'postgresql://user:Xyzzy.37@[::1/db'",
		qr/invalid value for parameter "snowflake.registry"/, qr/DETAIL:  .*in URI$/m ],
	[ "snowflake.worker_id = -1\nsnowflake.worker_id_source = registry",
		qr/parameter "snowflake.worker_id_source" is "registry", but "snowflake.registry" is not set/ ],
	[ "snowflake.worker_id = -1\nsnowflake.registry = 'dbname=x'",
		qr/parameter "snowflake.registry" is set, but "snowflake.worker_id_source" is "config" and "snowflake.worker_id" is not set/ ],
	[ 'snowflake.server_name = ' . 'n' x 64, qr/invalid value for parameter "snowflake.server_name": "n{64}"/, qr/DETAIL:  A name has at most 63 bytes, and this one has 64\.$/m ],
	(map { [ "snowflake.server_name = $_->[0]", qr/invalid value for parameter "snowflake.server_name"/, qr/DETAIL:  A name has printable ASCII characters only, and byte $_->[1] is another one\.$/m ] }
		[ "'rack\\t7'", 5 ], [ "'rack\t7'", 5 ], [ "'rack\\n'", 5 ], [ "'rack \xE97'", 6 ], [ "'\xC3\xBC'", 1 ], [ "'\x7F'", 1 ]),

	# A misspelt name, which would leave the default in force.
	# Names have no case.
	[ "Snowflake.Datacenter_ID = '3x'", qr/invalid value for parameter "Snowflake.Datacenter_ID": "3x"/i ],
	[ 'Snowflake.Worker = 3', qr/unrecognized configuration parameter "Snowflake.Worker"/i ],
	[ 'snowflake.sequence_start = zero', qr/unrecognized configuration parameter "snowflake.sequence_start"/ ]);

like(words_of_postmaster($node), qr/^starts: $/, 'the postmaster takes the configuration');
my $said = '';
for my $case (@refused)
{
	my ($settings, $what, $why) = @$case;

	configure_afresh($settings);
	$settings =~ s/\n/, /g;
	my $words = words_of_postmaster($node);
	like($words, qr/\A(?!starts).*FATAL:  $what/, "$settings: the postmaster says what is wrong, and ends");
	like($words, $why, "$settings: the postmaster says why") if defined $why;
	$said .= $words;
}
unlike($said, qr/Xyzzy/, 'a connection string that is refused leaves no password in the log');
configure_afresh('snowflake.worker_id = 32');
ok(!$node->start(fail_ok => 1), 'a server with a refused value does not start');
like(logged($node), qr/FATAL:  32 is outside/, 'its log says what is wrong');

# ----- the defaults, reloads and restarts -----

configure_afresh();
$node->start;
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION snowflake; CREATE EXTENSION pg_stat_statements');
is($err, '', 'CREATE EXTENSION with preload raises no NOTICE');
is(value_of($node, 'SELECT snowflake_format(9223372036854775807)'), '2080-07-10 17:30:30.208, #4095, @(31,31)', 'the default layout and epoch');
is((sqlstate_of($node, 'SET snowflake.no_such_parameter = 3'))[0],
	'42602', 'no session can make up a parameter');

configure($node, 'snowflake.worker_id = 9', "snowflake.clock_tolerance = '7s'");
$node->reload;
ok($node->poll_query_until('postgres', "SELECT current_setting('snowflake.clock_tolerance') = '7s'"),
	'a reload changes clock_tolerance');
is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
	7, 'a reload does not change the worker id');
is((sqlstate_of($node, q{ALTER SYSTEM SET snowflake.server_name = E'rack\\t7'}))[0],
	'22023', "ALTER SYSTEM takes no name that the registry refuses");
is(value_of($node, "SELECT pending_restart FROM pg_settings WHERE name = 'snowflake.worker_id'"),
	't', 'after the reload pg_settings shows a pending restart of the worker id');
configure_afresh('snowflake.worker_id = 9');
$node->restart;
is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
	9, 'a restart changes the worker id');

# Tables, views and indexes that use each kind of function, for a server without
# preload; a dump restores them.
value_of($node, q{
CREATE TABLE restored (id bigint PRIMARY KEY DEFAULT snowflake_nextval(),
	issued_at timestamptz GENERATED ALWAYS AS (snowflake_timestamp(id, '2010-11-04 01:42:54.657+00')) STORED);
CREATE INDEX ON restored (snowflake_to_text(id, 58));
CREATE VIEW decoded AS SELECT id, snowflake_worker_id(id) FROM restored;
INSERT INTO restored DEFAULT VALUES});
my $kept = 'SELECT id, issued_at FROM restored';
my $row = value_of($node, $kept);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '--file', $dump, $node->connstr('postgres') ], 'pg_dump');
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

# ----- values that are accepted, and their effects -----

# Sets of parameters, and queries with their results.  pg_stat_statements stands
# before and after the library: the hooks of both go on working.
my $last = 'SELECT snowflake_format(9223372036854775807)';
my $first = 'SELECT snowflake_format(0)';
my $node_of_id = 'SELECT snowflake_datacenter_id(id), snowflake_worker_id(id) FROM snowflake_nextval() AS id';
my $distinct = 'SELECT count(DISTINCT id) FROM snowflake_nextvals(100) AS id';
my $counted = 'SELECT count(*) > 0 FROM pg_stat_statements';

# Compares snowflake_issued_between() with its definition: for the smallest and the
# largest id of some ticks, and for instants at the beginnings of these ticks, 1 us
# before, and 1 us after.
my $issued_between = q{
WITH bounds AS MATERIALIZED (
  SELECT first_instant + (1000000 + n) * tick_interval + us * interval '1 us' AS bound
    FROM snowflake_node(), generate_series(-2, 2) AS n, generate_series(-1, 1) AS us),
ids AS MATERIALIZED (
  SELECT unnest(ARRAY[snowflake_min_id(bound), snowflake_max_id(bound)]) AS id FROM bounds)
SELECT count(*) > 4000, count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)) > 200,
       count(*) FILTER (WHERE snowflake_issued_between(id, since.bound, until.bound)
		 IS DISTINCT FROM (snowflake_timestamp(id) >= since.bound AND snowflake_timestamp(id) < until.bound))
  FROM ids, bounds AS since, bounds AS until};

my @accepted = (
	[
		[ 'snowflake.datacenter_id = 31', 'snowflake.worker_id = 0', "snowflake.epoch = '1288834974657'" ],
		$node_of_id => '31|0',
		$last => '2080-07-10 17:30:30.208, #4095, @(31,31)'
	],
	# PostgreSQL's syntax of integers; a name has no case.
	[
		[ 'snowflake.datacenter_id = 1.6', "Snowflake.Worker_ID = '010'", "snowflake.epoch = '2016-01-01T00:00:00Z'" ],
		$node_of_id => '2|8',
		$first => '2016-01-01 00:00:00.000, #0, @(0,0)',
		"SET TimeZone = 'Asia/Shanghai'; SELECT snowflake_format(225912364284006401)" =>
		  '2017-09-15 17:35:04.894, #1, @(2,5)'
	],
	[
		[ "snowflake.layout = '41/0/3/0'", "snowflake.epoch = '2016-07-01 00:00:00 America/New_York'" ],
		$distinct => '100',
		$first => '2016-07-01 04:00:00.000, #0, @(0,0)'
	],
	[
		[ "snowflake.layout = '41/0/4/8'", "snowflake.epoch = '2020-01-01 00:00+00'" ],
		'SELECT snowflake_max_id(\'infinity\'), id < 9007199254740992, snowflake_datacenter_id(id) FROM snowflake_nextval() AS id' =>
		  '9007199254740991|t|0'
	],
	[
		[ "snowflake.layout = '53/0/0/0\@100us'", 'snowflake.worker_id = 0',
			"shared_preload_libraries = 'pg_stat_statements, snowflake'" ],
		$distinct => '100',
		$counted => 't'
	],
	[
		[ "snowflake.layout = '30/10/10/13\@1s'", 'snowflake.worker_id = 1023',
			"snowflake.epoch = '2020-01-01 00:00+00'",
			"shared_preload_libraries = 'snowflake, pg_stat_statements'" ],
		'SELECT snowflake_worker_id(id), now() - snowflake_timestamp(id) < \'2 s\' FROM snowflake_nextval() AS id' =>
		  '1023|t',
		$issued_between => 't|t|0',
		$counted => 't'
	],
	[
		[ "snowflake.layout = '45/3/3/4\@7us'", "snowflake.epoch = '2024-02-29 12:00:00.000001+00'" ],
		$issued_between => 't|t|0'
	]);

for my $case (@accepted)
{
	my ($settings, @results) = @$case;

	configure_afresh(@$settings);
	$node->start;
	while (my ($sql, $expected) = splice @results, 0, 2)
	{
		is(value_of($node, $sql), $expected, "@$settings: $sql");
	}
	$node->stop;
}

# ----- binary upgrade -----

# pg_upgrade starts the new cluster with -b.
configure_afresh("snowflake.worker_id = -1", 'snowflake.worker_id_source = registry', "snowflake.registry = 'host=nowhere'");
my @pg_ctl = ('pg_ctl', '--pgdata', $node->data_dir, '--log', $node->logfile, '-w');
$node->command_ok([ @pg_ctl, '-o', '-b', 'start' ], 'a server starts in binary upgrade mode');
is(value_of($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'snowflake registry'"),
	0, 'in binary upgrade mode no worker leases');
is((sqlstate_of($node, "SELECT $_"))[0], '55000', "in binary upgrade mode, $_ is refused")
  for 'snowflake_nextval()', 'snowflake_horizon()';
ok(!-e mark_file($node), 'in binary upgrade mode the page of the mark is not written');
$node->command_ok([ @pg_ctl, '-m', 'fast', 'stop' ], 'the server in binary upgrade mode stops');

# ----- without preload -----

# A session's own values of the parameters count for nothing.
configure_afresh("shared_preload_libraries = ''", 'snowflake.worker_id = 7x', 'snowflake.nonsense = 1');
$node->start;
value_of($node, 'CREATE ROLE plain');
for my $sql (
	'SELECT snowflake_nextval()', 'SELECT snowflake_id()', 'SELECT * FROM snowflake_nextvals(1)',
	'SELECT snowflake_horizon()', "SELECT snowflake_horizon('restored')",
	'INSERT INTO restored DEFAULT VALUES', 'SELECT * FROM decoded',
	'SELECT snowflake_decode(1)', 'SELECT snowflake_timestamp(1)', 'SELECT snowflake_datacenter_id(1)',
	'SELECT snowflake_worker_id(1)', 'SELECT snowflake_sequence(1)', 'SELECT snowflake_format(1)',
	'SELECT snowflake_encode(now(), 0, 0, 0)', 'SELECT snowflake_min_id(now())', 'SELECT snowflake_max_id(now())',
	"SELECT snowflake_min_id('2030-01-01 00:00+00')",
	"SELECT count(*) FROM restored WHERE snowflake_issued_between(id, now(), 'infinity')",
	'SELECT * FROM snowflake_node()', 'SELECT * FROM snowflake_stat()',
	'SELECT * FROM snowflake_stat_backend()', 'SELECT snowflake_stat_reset()',
	'SET snowflake.worker_id = 3; SELECT snowflake_nextval()', 'SET ROLE pg_monitor; SELECT snowflake_nextval()', 'SET ROLE plain; SELECT snowflake_nextval()')
{
	my $err = outcome_of($node, $sql)->{text};
	like($err,
		qr/ERROR:  55000: the library "snowflake" was not loaded at the server's start\n.*\nHINT:  Add these lines .*\nshared_preload_libraries = 'snowflake' .*\nsnowflake.worker_id = N .*\n.*restarted since.*SHOW shared_preload_libraries.*pg_file_settings/,
		"$sql without preload: the error has the lines to add");
	$sql =~ /plain/ ? unlike($err, qr/"shared_preload_libraries" is|case\.conf/, "a role that may not see the parameter does not see it")
	  : like($err, qr/DETAIL:  .*"shared_preload_libraries" is "" by line 2 of file "[^"]*case\.conf"\.$/m, "$sql without preload: the error has the line that counts");
}
is(value_of($node, "SELECT snowflake_decode(id, '2010-11-04 01:42:54.657+00') IS NOT NULL, snowflake_min_id('-infinity', '2020-01-01 00:00+00'), snowflake_from_text(snowflake_to_text(id, 58), 58) = id FROM restored"),
	't|0|t', 'explicit epochs and layouts, and ids as text, need no preload');
value_of($node, 'CREATE DATABASE other');
($rc, $out, $err) = $node->psql('other', 'CREATE EXTENSION snowflake');
like($err, qr/WARNING:  snowflake_nextval\(\) issues no ids until the library "snowflake" is loaded at the server's start\nDETAIL:  "shared_preload_libraries" is "" \(source: .*case\.conf\)\.\nHINT:  Add "snowflake" to it/,
	'CREATE EXTENSION without preload raises a WARNING');
$node->safe_psql('other', 'DROP EXTENSION snowflake');
$node->command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '--file', $dump, $node->connstr('other') ],
	'a dump is restored without preload');
is($node->safe_psql('other', $kept), $row, 'the restored row is the dumped one');
$node->stop;

done_testing();
