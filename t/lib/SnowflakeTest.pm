# What the TAP tests share: servers with the library preloaded, a clock that
# can be moved under them, and sessions that go on in the background.
package SnowflakeTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeChaos ();
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  snowflake_node
  registry_node
  leased_node
  first_id
  refusal_of
  wait_for
  seconds_of
  sqlstate_of
  write_case
  preload
  faketime_environment
  set_clock
  crash
  mark_file
  read_page
  mark_of
  write_page
  seal_page
  build_clock_library
  build_host_library
);
our @EXPORT_OK = qw(
  make_registry
  set_registry
  hosts_of
  worker_id_of
  timestamp_of
);

# A server, not started yet, with the library preloaded and worker id 7;
# further lines of postgresql.conf follow and win.
sub snowflake_node
{
	my ($name, @conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init;
	$node->append_conf('postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			"snowflake.worker_id = 7",
			@conf)
		  . "\n");
	return $node;
}

# A registry of worker ids, started.  Its constants, if they come first, as for
# make_registry(); further lines of postgresql.conf follow.
sub registry_node
{
	my ($name, @conf) = @_;
	my $constants = ref $conf[0] ? shift @conf : {};
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);

	# init() allows ten connections; where each takes long, servers need more
	$node->append_conf('postgresql.conf',
		join("\n", 'max_connections = 50', @conf) . "\n");
	$node->start;
	make_registry($node, %$constants);
	return $node;
}

# Makes a database of a server a registry: "postgres", or "database" among its
# constants.  Its leases are long enough for a machine that stalls, and its
# servers' clocks are one.
sub make_registry
{
	my ($node, %constants) = @_;
	my $database = delete $constants{database} // 'postgres';

	$node->safe_psql('postgres', "CREATE DATABASE $database")
	  if $database ne 'postgres';
	$node->safe_psql(
		$database,
		'CREATE EXTENSION snowflake_registry; '
		  . configure(lease_duration => '6 s', largest_lead => '1 s', %constants));
	return;
}

sub configure
{
	my (%constants) = @_;
	return 'SELECT snowflake_registry.configure('
	  . join(', ', map { "$_ => '$constants{$_}'" } sort keys %constants) . ')';
}

# Changes a registry's constants at once, and as configure() would not: no lease
# under the former ones is to be forgotten.
sub set_registry
{
	my ($node, %constants) = @_;

	$node->safe_psql(
		'postgres',
		'UPDATE snowflake_registry.setting SET '
		  . join(', ', map { "$_ = '$constants{$_}'" } sort keys %constants));
	return;
}

# Reaches the registry by any of several servers, tried in their order.
sub hosts_of
{
	my (@nodes) = @_;
	return sprintf 'host=%s port=%s dbname=postgres',
	  join(',', map { $_->host } @nodes), join(',', map { $_->port } @nodes);
}

# A server, not started yet, that leases any worker id from a registry: a
# server, or a connection string.  Further lines of postgresql.conf follow and
# win.
sub leased_node
{
	my ($name, $registry, @conf) = @_;

	$registry = $registry->connstr('postgres') if ref $registry;
	$registry =~ s/'/''/g;
	return snowflake_node(
		$name,
		'snowflake.worker_id = -1',
		'snowflake.worker_id_source = registry',
		"snowflake.registry = '$registry'", @conf);
}

# The worker id of an id, by the default layout; and its time, in seconds since
# the Unix epoch, by the default epoch.
sub worker_id_of
{
	my ($id) = @_;
	return ($id >> 12) & 31;
}

sub timestamp_of
{
	my ($id) = @_;
	return 1_288_834_974.657 + ($id >> 22) / 1000;
}

# The seconds that something takes.
sub seconds_of
{
	my ($function) = @_;
	my $begin = time;

	$function->();
	return time - $begin;
}

# Calls a function until it returns something true, which it returns; after so
# many seconds, 30 if not said otherwise, what it returned last.
sub wait_for
{
	my ($function, $seconds) = @_;
	my $deadline = time + ($seconds // 30);
	my $outcome;

	until ($outcome = $function->())
	{
		last if time >= $deadline;
		sleep 0.02;
	}
	return $outcome;
}

# The first id of a server, as soon as it issues one, and the seconds that it
# took; a server that has not got the extension gets it.  Dies if there is no
# id in time.
sub first_id
{
	my ($node, $seconds) = @_;
	my $begin = time;
	my ($id, $error);

	wait_for(
		sub {
			my $rc;
			($rc, $id, $error) = $node->psql('postgres',
				'SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS snowflake; SELECT snowflake_nextval()');
			return $rc == 0;
		},
		$seconds) or die $node->name . " issues no id: $error\n";
	return wantarray ? ($id, time - $begin) : $id;
}

# Why a server issues no id: the DETAIL of SQLSTATE 55000.  Otherwise its id,
# or another error, as it is.
sub refusal_of
{
	my ($node) = @_;
	my ($rc, $stdout, $stderr) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT snowflake_nextval()");

	return $stdout if $rc == 0;
	return $1 if $stderr =~ /ERROR:  55000: .*DETAIL:  ([^\n]*)/s;
	return $stderr;
}

# Writes the parameters of a case, in place of those before, for a server whose
# configuration has "include 'case.conf'".
sub write_case
{
	my ($node, @settings) = @_;
	my $file = $node->data_dir . '/case.conf';

	open my $fh, '>', $file or die "$file: $!";
	print $fh map { "$_\n" } @settings;
	close $fh or die "$file: $!";
	return;
}

# The SQLSTATE, the message and the hint that a statement fails with; '' and
# its output if it succeeds.
sub sqlstate_of
{
	my ($node, $sql) = @_;
	my ($rc, $stdout, $stderr) =
	  $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	return ('', $stdout) if $rc == 0;
	my ($state, $message) = $stderr =~ /ERROR:  (\w{5}): (.*)/;
	my ($hint) = $stderr =~ /HINT:  (.*)/;
	return ($state // 'none', $message // $stderr, $hint // '');
}

# The environment that preloads a library beside those that are already.
sub preload
{
	my ($library) = @_;
	return (LD_PRELOAD => join(' ', $ENV{LD_PRELOAD} // (), $library));
}

# The environment that starts a server whose clock follows a file; see
# set_clock().  Only the wall clock is faked, not the monotonic one.
sub faketime_environment
{
	my ($file) = @_;
	my ($library) = glob('/usr/lib/*/faketime/libfaketime.so.1');

	die "libfaketime is missing: install the package libfaketime\n"
	  unless defined $library;
	return (
		preload($library),
		FAKETIME_TIMESTAMP_FILE => $file,
		FAKETIME_NO_CACHE => 1,
		FAKETIME_DISABLE_SHM => 1,
		DONT_FAKE_MONOTONIC => 1);
}

# Moves the clock of a server that was started with faketime_environment():
# so many seconds from the real one.  Replaces the file as a whole, because
# the server may read it at any time.
sub set_clock
{
	my ($file, $offset) = @_;

	open my $fh, '>', "$file.new" or die "$file.new: $!";
	printf $fh "%+.6f\n", $offset;
	close $fh or die "$file.new: $!";
	rename "$file.new", $file or die "$file: $!";
	return;
}

# Kills all processes of a server at once, as a power loss does.
sub crash
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @children = SnowflakeChaos::children_of($postmaster);

	$node->kill9;
	kill 'KILL', @children;
	for my $pid ($postmaster, @children)
	{
		sleep 0.001 while is_running($pid);
	}

	# a start would wait until nobody has the postmaster's number any more
	unlink $node->data_dir . '/postmaster.pid',
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# Does a process run?  One that has ended stays for as long as its parent has
# not asked for it.
sub is_running
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/stat" or return 0;
	my $stat = <$fh> // return 0;
	return $stat !~ /\) Z /;
}

# The file of the high-water mark: one page, of PostgreSQL's own form.
sub mark_file
{
	my ($node) = @_;
	return $node->data_dir . '/global/8947';
}

# Where the contents are in a page, and what they are; entries follow.
use constant {
	PAGE_HEADER_SIZE => 24,
	ENTRIES_OFFSET => 272,
	ENTRY_SIZE => 24
};
my @mark_fields = qw(magic version checksum entry_count
  tick_bits datacenter_bits worker_bits sequence_bits
  tick_us epoch system_identifier floor
  holder lease_datacenter_id lease_worker_id incarnation next_incarnation
  position ends_us fence registry
  mover_datacenter_id mover_worker_id mover_holder elsewhere_at mover_place);
my $mark_template = 'L4 l4 q2 Q q Z80 l2 q2 Q q2 Q l2 Q q Z48';
my $entry_template = 'l2 q2';

# The contents of the page as it is in the file: a server that runs has a newer
# one in its memory, up to the next checkpoint.
sub read_page
{
	my ($node) = @_;
	my $page = PostgreSQL::Test::Utils::slurp_file(mark_file($node));
	my $contents = substr($page, PAGE_HEADER_SIZE);
	my %mark;

	@mark{@mark_fields} = unpack $mark_template, $contents;
	for my $i (1 .. $mark{entry_count})
	{
		my %entry;
		@entry{qw(datacenter_id worker_id mark lead_us)} =
		  unpack $entry_template,
		  substr($contents, ENTRIES_OFFSET + ENTRY_SIZE * ($i - 1), ENTRY_SIZE);
		push @{ $mark{entries} }, \%entry;
	}
	return \%mark;
}

# The mark of one node on a page, if there is one.
sub mark_of
{
	my ($mark, $worker_id, $datacenter_id) = @_;
	my ($entry) =
	  grep { $_->{worker_id} == $worker_id
		  && $_->{datacenter_id} == ($datacenter_id // 0) } @{ $mark->{entries} };

	return $entry ? $entry->{mark} : undef;
}

# Puts other bytes in place of the file of the mark.  As many as there were, if
# they are to be a page.
sub write_page
{
	my ($node, $bytes) = @_;
	my $file = mark_file($node);

	open my $fh, '>:raw', $file or die "$file: $!";
	print $fh $bytes;
	close $fh or die "$file: $!";
	return;
}

sub crc32c
{
	my ($bytes) = @_;
	my $crc = 0xFFFFFFFF;

	for my $byte (unpack 'C*', $bytes)
	{
		$crc ^= $byte;
		$crc = $crc & 1 ? ($crc >> 1) ^ 0x82F63B78 : $crc >> 1 for 1 .. 8;
	}
	return $crc ^ 0xFFFFFFFF;
}

# Puts the right checksum (CRC-32C) into a page whose contents were changed.
# PostgreSQL's own checksum stays as it is: for clusters without checksums.
sub seal_page
{
	my ($page) = @_;
	my $entry_count = unpack 'L', substr($page, PAGE_HEADER_SIZE + 12, 4);
	my $size = ENTRIES_OFFSET + ENTRY_SIZE * $entry_count;

	substr($page, PAGE_HEADER_SIZE + 8, 4) = pack 'L', 0;
	substr($page, PAGE_HEADER_SIZE + 8, 4) =
	  pack 'L', crc32c(substr($page, PAGE_HEADER_SIZE, $size));
	return $page;
}

# Builds a library, to be preloaded, from its source beside this file.
# Returns its path.
sub build_library
{
	my ($name, $directory) = @_;
	my $library = "$directory/$name.so";
	my $source = __FILE__ =~ s/SnowflakeTest.pm$/$name.c/r;

	PostgreSQL::Test::Utils::system_or_bail('cc', '-shared', '-fPIC', '-O1',
		'-o', $library, $source, '-ldl');
	return $library;
}

# A library that moves a server's clock; see clock.c.
sub build_clock_library
{
	my ($directory) = @_;
	return build_library('clock', $directory);
}

# A library that gives a server another host's name and interfaces; see host.c.
sub build_host_library
{
	my ($directory) = @_;
	return build_library('host', $directory);
}

1;
