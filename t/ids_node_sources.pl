# Worker ids that a server derives from its host's name: which number it takes,
# and what stops the start.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload replace_file words_of_postmaster);
use SnowflakeTest;
use Test::More;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = build_library('host');
my $node = snowflake_node('main', "include 'case.conf'");

# A layout for each number of worker id bits.
my %layout = (0 => '41/10/0/12', 5 => '41/5/5/12', 31 => '32/0/31/0@100ms');

# Calls a function with these settings, on the host that facts describe (see
# lib/host.c); without facts, on this machine's own host.
sub on_host
{
	my ($function, $facts, @settings) = @_;
	local %ENV = %ENV;

	# Remove the page of the mark: with it the library refuses a layout by
	# which ids could come again.
	unlink mark_file($node);
	configure($node, @settings);
	if (defined $facts)
	{
		replace_file("$directory/facts", @$facts);
		%ENV = (%ENV, preload($library), HOST_FACTS => "$directory/facts");
	}
	return $function->();
}

# Starts the server with these settings on a host.  Returns what the server has
# logged.
sub start_on
{
	my (@on) = @_;
	my $offset = -s $node->logfile // 0;

	on_host(sub { $node->start }, @on);
	return logged($node, $offset);
}

# The settings with which a server derives its worker id from a source, in a
# layout with this number of worker id bits.
sub derive
{
	my ($source, $worker_bits) = @_;
	return (
		'snowflake.worker_id = -1',
		"snowflake.worker_id_source = '$source'",
		"snowflake.layout = '$layout{$worker_bits}'",
		"snowflake.epoch = '2025-01-01 00:00+00'");
}

# Tests that the server starts and derives this worker id, and that ids,
# snowflake_node() and the log have this worker id.
sub derives
{
	my ($facts, $source, $worker_bits, $expected, $origin) = @_;
	my $case = "$source, $worker_bits bits, $origin";
	my $log = start_on($facts, derive($source, $worker_bits));

	is( value_of($node, "SELECT snowflake_worker_id(snowflake_nextval()), worker_id || ' by ' || worker_id_source FROM snowflake_node()"),
		"$expected|$expected by $source",
		"$case: ids and snowflake_node() have the worker id");
	like($log, qr/LOG:  derived snowflake worker id $expected from \Q$origin\E$/m,
		"$case: the log names the worker id and its origin");
	$node->stop;
	return;
}

# Tests that the postmaster refuses to start, with this DETAIL and HINT.
sub refuses_to_start
{
	my ($facts, $source, $worker_bits, $detail, $hint) = @_;
	like(on_host(sub { words_of_postmaster($node) }, $facts, derive($source, $worker_bits)),
		qr/\A(?!starts).*FATAL:  no worker id can be derived by parameter "snowflake.worker_id_source" = "$source"\n.*DETAIL:  \Q$detail\E\n.*HINT:  .*$hint/,
		"$source, $worker_bits bits: $detail: the postmaster says what is wrong, why, and what to do");
	return;
}

# ----- without a source, and wrong settings -----

configure($node);
$node->start;
value_of($node, 'CREATE EXTENSION snowflake');
is(value_of($node, 'SELECT worker_id, worker_id_source FROM snowflake_node()'),
	'7|config', 'without a source the worker id is the configured one');
$node->stop;
for my $case (
	[ 'hostname', qr/parameters "snowflake.worker_id" and "snowflake.worker_id_source" do not go together: 7 and "hostname"\n.*HINT:  Take "snowflake.worker_id" out of the configuration/ ],
	[ 'dice', qr/invalid value for parameter "snowflake.worker_id_source": "dice"\n.*HINT:  Available values: config, hostname, registry/ ])
{
	my ($source, $reason) = @$case;
	like(on_host(sub { words_of_postmaster($node) }, [ 'name pg-3' ], "snowflake.worker_id_source = '$source'"),
		qr/\A(?!starts).*FATAL:  $reason/,
		"source $source and a worker id: the postmaster says what is wrong, and what to do");
}

# ----- hostname -----

for my $case (
	[ 'pg-3', 3 ],
	[ 'pg-31.svc.local', 31 ],
	[ 'pg-4.zone-7', 4 ],
	[ 'pg-' . '0' x 40 . '9', 9 ],
	[ '12', 12 ],
	[ 'f0e608f61c2', 2 ],
	[ '3f0e608f61c-2', 2 ],
	[ 'db2-pg10.', 10 ])
{
	my ($name, $expected) = @$case;
	derives([ "name $name" ], 'hostname', 5, $expected, "host name \"$name\"");
}
derives([ 'name pg-2147483647' ],
	'hostname', 31, 2147483647, 'host name "pg-2147483647"');

my $number = 'does not end in a number before its first dot.';
refuses_to_start([ "name $_" ], 'hostname', 5, "Host name \"$_\" $number", 'as in "pg-3"')
  for 'pg', 'pg-3a', '10.0.4.2', 'pg.3';
refuses_to_start([ "name $_" ], 'hostname', 5, "Host name \"$_\" has the form of a container's random name.", 'as in "pg-3"')
  for '3f0e608f61c2', '000000000003', 'abcdefabcdef.local';
refuses_to_start(
	[ "name pg-$_" ], 'hostname', 5,
	"The number of host name \"pg-$_\" is outside the range of the worker id (0 .. 31).",
	'"snowflake.layout" with more bits'
  ) for '32', '4294967299', '18446744073709551619';
refuses_to_start([ 'name pg-3' ], 'hostname', 0,
	'The number of host name "pg-3" is outside the range of the worker id (0 .. 0).',
	'"snowflake.layout" with more bits');
refuses_to_start([], 'hostname', 5,
	'The host name cannot be read: File name too long.',
	'Choose another "snowflake.worker_id_source"');

# ----- while the server runs -----

# The worker id stays while the server runs, also when the host gets another
# name.
my @derived = derive('hostname', 5);
start_on([ 'name pg-3' ], @derived);
replace_file("$directory/facts", 'name pg-4');
configure($node, @derived, 'snowflake.clock_tolerance = 2s');
$node->reload;
ok($node->poll_query_until('postgres', "SELECT current_setting('snowflake.clock_tolerance') = '2s'"),
	'a reload after the host was renamed');
is(value_of($node, 'SELECT snowflake_worker_id(snowflake_nextval())'),
	3, 'a renamed host keeps its worker id while the server runs');
is((sqlstate_of($node, "SET snowflake.worker_id_source = 'config'"))[0],
	'55P02', 'a session cannot choose the source');
$node->stop;

# ----- this machine's own host name -----

my ($name) = slurp_file('/proc/sys/kernel/hostname') =~ /(.*)/;
my $offset = -s $node->logfile;

on_host(sub { $node->start(fail_ok => 1) }, undef, derive('hostname', 31));
$node->stop if defined $node->{_pid};
like(logged($node, $offset), qr/host name "\Q$name\E"/i, "the server reads this host's own name, $name");

done_testing();
