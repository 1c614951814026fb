# Worker ids that a server derives from its host: the worker id by each source,
# which name or address the server takes, and what stops the start.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload replace_file);
use SnowflakeTest;
use Test::More;

plan skip_all => 'interfaces are read as Linux shows them'
  unless $^O eq 'linux';

my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = build_library('host');
my $node = snowflake_node('main', "include 'case.conf'");

# A layout for each number of worker id bits.
my %layout = (0 => '41/10/0/12', 4 => '41/6/4/12', 5 => '41/5/5/12',
	map { $_ => '32/0/' . "$_/" . (31 - $_) . '@100ms' } 8, 16, 20, 24, 31);

# Starts the server with these settings, on the host that facts describe (see
# lib/host.c); without facts, on this machine's own host.  Returns whether the
# server has started, and what it has logged.
sub start_on
{
	my ($facts, @settings) = @_;
	my $offset = -s $node->logfile // 0;
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
	my $started = $node->start(fail_ok => 1);
	return ($started, logged($node, $offset));
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

# The worker id that is in an id.
sub worker_id_in
{
	my ($id, $worker_bits) = @_;
	my ($sequence_bits) = $layout{$worker_bits} =~ m{(\d+)(?:@|$)};
	return ($id >> $sequence_bits) & ((1 << $worker_bits) - 1);
}

# Tests that the server starts and derives this worker id, and that ids,
# snowflake_node, the log and the page have this worker id.
sub derives
{
	my ($facts, $source, $worker_bits, $expected, $origin) = @_;
	my $case = "$source, $worker_bits bits, $origin";
	my ($started, $log) = start_on($facts, derive($source, $worker_bits));

	ok($started, "$case: the server starts") or return diag($log);
	my ($id, $shown) = split /\|/,
	  $node->safe_psql('postgres',
		'SELECT snowflake_nextval(), worker_id || \' by \' || worker_id_source FROM snowflake_node'
	  );
	is(worker_id_in($id, $worker_bits), $expected, "$case: the worker id is in ids");
	is($shown, "$expected by $source", "$case: snowflake_node shows the worker id");
	like($log,
		qr/LOG:  derived snowflake worker id $expected from \Q$origin\E$/m,
		"$case: the log names the worker id and its origin");
	$node->stop;
	isnt(mark_of(read_page($node), $expected), undef, "$case: the page has a mark of the worker id");
	return;
}

# Tests that the server refuses to start, with this DETAIL and HINT.
sub refuses_to_start
{
	my ($facts, $source, $worker_bits, $detail, $hint) = @_;
	my ($started, $log) = start_on($facts, derive($source, $worker_bits));

	ok(!$started, "$source, $worker_bits bits: no start: $detail");
	$node->stop if $started;
	like(
		$log,
		qr/FATAL:  no worker id can be derived by parameter "snowflake.worker_id_source" = "$source"$/m,
		"$detail: the log says what is wrong");
	like($log, qr/DETAIL:  \Q$detail\E$/m, "$detail: the log says why");
	like($log, qr/HINT:  .*$hint/, "$detail: the log says what to do");
	return;
}

configure($node);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
is( $node->safe_psql('postgres',
		'SELECT worker_id, worker_id_source FROM snowflake_node'),
	'7|config',
	'without a source the worker id is the configured one');
$node->stop;

# ----- hostname -----

for my $case (
	[ 'pg-3', 3 ],
	[ 'pg-0', 0 ],
	[ 'pg-31', 31 ],
	[ 'pg-3.svc.local', 3 ],
	[ 'pg-4.zone-7', 4 ],
	[ 'pg-5.', 5 ],
	[ 'pg-03', 3 ],
	[ 'pg-' . '0' x 40 . '9', 9 ],
	[ 'pg7', 7 ],
	[ '12', 12 ],
	[ 'db2-pg10', 10 ])
{
	my ($name, $expected) = @$case;
	derives([ "name $name" ], 'hostname', 5, $expected, "host name \"$name\"");
}
derives([ 'name pg-2147483647' ],
	'hostname', 31, 2147483647, 'host name "pg-2147483647"');

my $number = 'does not end in a number before its first dot.';
refuses_to_start([ "name $_" ], 'hostname', 5, "Host name \"$_\" $number",
	'as in "pg-3"')
  for 'pg', 'pg-3a', '10.0.4.2', 'pg.3', 'pg-3-';
refuses_to_start(
	[ "name pg-$_" ],
	'hostname',
	5,
	"The number of host name \"pg-$_\" is outside the range of the worker id (0 .. 31).",
	'"snowflake.layout" with more bits'
  )
  for '32', '4294967299', '9223372036854775807', '9223372036854775808',
  '18446744073709551619', '1' . '0' x 60;
refuses_to_start([ 'name pg-3' ], 'hostname', 0,
	"Layout \"$layout{0}\" has no bits for the worker id.",
	'"snowflake.layout" that has bits for the worker id');
refuses_to_start([], 'hostname', 5,
	'The host name cannot be read: File name too long.',
	'Choose another "snowflake.worker_id_source"');

# ----- ipv4 -----

my $loopback = 'inet lo 1 loopback 127.0.0.1 255.0.0.0';
my $lan = 'inet eth0 2 up 10.0.4.210 255.255.0.0';
my $docker = 'inet docker0 3 up 172.17.0.1 255.255.0.0';
for my $case (
	# The worker id is the low bits of the address, as many as the layout has
	# for the worker id: two bytes, fewer bits, or more bits.
	[ [$lan], 16, 4 * 256 + 210, '10.0.4.210/16', 'eth0' ],
	[ [$lan], 20, 4 * 256 + 210, '10.0.4.210/16', 'eth0' ],
	[ [$lan], 31, (10 << 24) + 4 * 256 + 210, '10.0.4.210/16', 'eth0' ],
	[ ['inet eth0 2 up 192.168.7.9 255.255.255.0'],
		8, 9, '192.168.7.9/24', 'eth0' ],
	[ ['inet eth0 2 up 192.168.7.201 255.255.255.240'],
		4, 9, '192.168.7.201/28', 'eth0' ],
	[ ['inet eth0 2 up 255.255.255.254 128.0.0.0'],
		31, 2147483646, '255.255.255.254/1', 'eth0' ],
	# The first interface is the one with the lowest index, whatever the order
	# of the list.
	[ [ $loopback, $lan, $docker ], 16, 1234, '10.0.4.210/16', 'eth0' ],
	[ [ $docker, $lan, $loopback ], 16, 1234, '10.0.4.210/16', 'eth0' ],
	[ [ 'inet eth1 12 up 10.1.0.1 255.255.0.0',
			'inet eth0 9 up 10.2.0.2 255.255.0.0' ],
		16, 2, '10.2.0.2/16', 'eth0' ],
	# The first address of an interface counts.
	[ [ $lan, 'inet eth0 2 up 10.0.0.9 255.255.0.0' ],
		16, 1234, '10.0.4.210/16', 'eth0' ],
	# The server passes over these entries, which come before the address that
	# it takes.
	[ [ $loopback,
			'bare tun0 3 up',
			'inet6 eth0 4 up 2001:db8::1',
			'inet eth1 5 down 10.0.0.5 255.255.0.0',
			'inet eth2 6 up 169.254.3.4 255.255.0.0',
			'inet eth3 7 up 0.0.0.0 255.255.0.0',
			'inet eth4 8 up 239.1.2.3 255.255.0.0',
			'inet eth5 9 up 127.0.0.5 255.255.0.0',
			'inet eth6 0 up 10.0.0.6 255.255.0.0',
			'inet lo 10 loopback 10.0.0.7 255.255.255.255',
			'inet eth9 11 up 10.0.0.8 255.255.0.0' ],
		16, 8, '10.0.0.8/16', 'eth9' ],
	# Addresses just outside the ranges that are refused.
	[ ['inet eth0 2 up 169.253.0.3 255.255.0.0'],
		16, 3, '169.253.0.3/16', 'eth0' ],
	[ ['inet eth0 2 up 169.255.0.4 255.255.0.0'],
		16, 4, '169.255.0.4/16', 'eth0' ],
	[ ['inet eth0 2 up 223.255.0.5 255.255.0.0'],
		16, 5, '223.255.0.5/16', 'eth0' ],
	# Networks of one or two addresses, as of containers.
	(map { [ ["inet eth0 2 up 10.244.1.17 $_->[0]"],
				16, 273, "10.244.1.17/$_->[1]", 'eth0' ] }
		  [ '255.255.255.255', 32 ], [ '255.255.255.254', 31 ],
		[ 'none', 32 ]))
{
	my ($facts, $worker_bits, $expected, $address, $interface) = @$case;
	derives($facts, 'ipv4', $worker_bits, $expected,
		"address $address of interface \"$interface\"");
}

for my $case (
	[ '10.0.4.210', '255.0.0.0', 8, 24, 16 ],
	[ '10.0.4.210', '255.255.0.0', 16, 16, 8 ],
	[ '192.168.7.9', '255.255.255.0', 24, 8, 5 ],
	[ '10.0.4.210', '255.254.0.0', 15, 17, 16 ],
	[ '10.0.4.210', '0.0.0.0', 0, 32, 31 ])
{
	my ($address, $mask, $prefix, $needed, $worker_bits) = @$case;
	refuses_to_start(
		[ $loopback, "inet eth0 2 up $address $mask", $docker ],
		'ipv4',
		$worker_bits,
		"The network of address $address/$prefix of interface \"eth0\" has $needed bits for its hosts. The worker id needs at least $needed bits, and the layout has $worker_bits.",
		"at least $needed bits");
}
refuses_to_start(
	["inet eth0 2 up 10.244.1.17 $_->[0]"],
	'ipv4',
	8,
	"No netmask tells how many bits of address 10.244.1.17/$_->[1] of interface \"eth0\" differ between servers. The worker id needs at least 16 bits, and the layout has 8.",
	'at least 16 bits'
) for [ '255.255.255.255', 32 ], [ '255.255.255.254', 31 ], [ 'none', 32 ];
refuses_to_start(
	[ $loopback,
		'inet eth0 2 down 10.0.4.210 255.255.0.0',
		'inet eth1 3 up 169.254.9.9 255.255.0.0' ],
	'ipv4',
	16,
	'There is no global IPv4 address among these: 127.0.0.1/8 of interface "lo" (loopback), 10.0.4.210/16 of interface "eth0" (down), 169.254.9.9/16 of interface "eth1" (link-local).',
	'after the network is up');
refuses_to_start(
	[ 'inet6 eth0 2 up 2001:db8::1', 'bare tun0 3 up' ],
	'ipv4', 16,
	'There is no global IPv4 address: no interface has any address of its kind.',
	'after the network is up');
refuses_to_start([ $lan, 'broken' ], 'ipv4', 16,
	'The addresses of interfaces cannot be read: Too many open files.',
	'Choose another "snowflake.worker_id_source"');
refuses_to_start([$lan], 'ipv4', 0,
	"Layout \"$layout{0}\" has no bits for the worker id.",
	'"snowflake.layout" that has bits for the worker id');

# ----- wrong settings -----

for my $case (
	[ "snowflake.worker_id_source = 'hostname'",
		qr/parameters "snowflake.worker_id" and "snowflake.worker_id_source" do not go together: 7 and "hostname"/,
		qr/HINT:  Take "snowflake.worker_id" out of the configuration/ ],
	[ "snowflake.worker_id_source = 'dice'",
		qr/invalid value for parameter "snowflake.worker_id_source": "dice"/,
		qr/HINT:  Available values: config, hostname, ipv4, registry/ ],
	[ "snowflake.worker_id_source = ''",
		qr/invalid value for parameter "snowflake.worker_id_source": ""/ ])
{
	my ($setting, $reason, $hint) = @$case;
	my ($started, $log) = start_on([ 'name pg-3' ], $setting);

	ok(!$started, "no start with $setting");
	$node->stop if $started;
	like($log, qr/FATAL:  $reason/, "$setting: the log says what is wrong");
	like($log, $hint, "$setting: the log says what to do") if defined $hint;
}

# A configured worker id goes with the source "config"; without a worker id and
# a source there are no ids.
my ($started) =
  start_on([ 'name pg-3' ], "snowflake.worker_id_source = 'config'");
ok($started, 'the server starts with the source "config" and a worker id');
is( $node->safe_psql('postgres',
		'SELECT snowflake_worker_id(snowflake_nextval()), worker_id_source FROM snowflake_node'
	),
	'7|config',
	'with the source "config" the worker id is the configured one');
$node->stop;
start_on([ 'name pg-3' ], 'snowflake.worker_id = -1');
is((sqlstate_of($node, 'SELECT snowflake_nextval()'))[0],
	'F0000', 'without a worker id and a source no id is issued');
$node->stop;

# The worker id stays while the server runs, also when the host gets another
# name.
start_on([ 'name pg-3' ], derive('hostname', 5));
replace_file("$directory/facts", 'name pg-4');
configure($node, derive('hostname', 5), 'snowflake.block_size = 2');
$node->reload;
ok( $node->poll_query_until(
		'postgres', "SELECT current_setting('snowflake.block_size') = '2'"),
	'a reload after the host was renamed');
is( $node->safe_psql('postgres',
		'SELECT snowflake_worker_id(snowflake_nextval())'),
	3,
	'a renamed host keeps its worker id while the server runs');
my ($state) =
  sqlstate_of($node, "SET snowflake.worker_id_source = 'config'");
is($state, '55P02', 'a session cannot choose the source');
$node->stop;

# Without preload no worker id is derived before the first id.
($started) = start_on(
	[ 'name pg-3' ],
	derive('hostname', 5),
	"shared_preload_libraries = ''");
ok($started, 'the server starts without preload');
is( $node->safe_psql('postgres',
		'SELECT worker_id IS NULL, worker_id_source FROM snowflake_node'),
	't|hostname',
	'without preload no worker id is derived before the first id');
SKIP: {
skip 'needs PostgreSQL 17', 2 if $node->pg_version < 17;
my $issue = 'SELECT snowflake_worker_id(snowflake_nextval())';
is($node->safe_psql('postgres', $issue), 3, 'the first id has the derived worker id');
replace_file("$directory/facts", 'name pg-4');
is($node->safe_psql('postgres', $issue), 3, 'a renamed host keeps its worker id without preload, too');
}
$node->stop;

# ----- this machine's own host name and addresses -----

# The contents of a file of the kernel, or '' if there is none.
sub contents_of
{
	my ($file) = @_;
	return '' unless -r $file;
	my $text = PostgreSQL::Test::Utils::slurp_file($file);
	chomp $text;
	return $text;
}

my @interfaces = sort { contents_of("$a/ifindex") <=> contents_of("$b/ifindex") }
  grep { contents_of("$_/ifindex") ne '' } glob('/sys/class/net/*');

# What an ioctl() says of an interface's first IPv4 address.
sub ioctl_address
{
	my ($request, $interface) = @_;
	my $name = $interface =~ s{.*/}{}r;
	my $argument = pack('Z16 x16', $name);

	socket(my $socket, 2, 2, 0) or die "socket: $!";
	return ioctl($socket, $request, $argument)
	  ? unpack('x20 N', $argument)
	  : undef;
}

SKIP:
{
	my $name = contents_of('/proc/sys/kernel/hostname');
	skip 'the host has no name in /proc', 1 if $name eq '';
	my ($expected) = $name =~ /^[^.]*?(\d+)(?:\.|$)/;

	if (!defined $expected)
	{
		refuses_to_start(undef, 'hostname', 31, "Host name \"$name\" $number",
			'as in "pg-3"');
	}
	elsif ($expected < 2**31)
	{
		derives(undef, 'hostname', 31, 0 + $expected, "host name \"$name\"");
	}
	else
	{
		skip 'the number of this host\'s name is too large', 1;
	}
}

SKIP:
{
	my ($interface, $address);
	for (@interfaces)
	{
		my $flags = hex contents_of("$_/flags");
		$address = ioctl_address(0x8915, $_);    # SIOCGIFADDR
		next if !($flags & 1) || $flags & 8 || !$address;
		next if $address >> 16 == 0xA9FE || $address >> 24 == 127;
		$interface = $_;
		last;
	}
	skip 'this machine has no global IPv4 address', 1
	  unless defined $interface;
	my $mask = ioctl_address(0x891b, $interface);    # SIOCGIFNETMASK
	my $prefix = sprintf('%b', $mask) =~ tr/1//;
	skip 'the network of this machine\'s address is too large', 1
	  if $prefix < 16;

	derives(
		undef, 'ipv4', 16,
		$address & 0xFFFF,
		sprintf('address %s/%d of interface "%s"',
			join('.', unpack 'C4', pack 'N', $address),
			$prefix,
			$interface =~ s{.*/}{}r));
}

done_testing();
