# What all TAP tests share: a server with the library, its ids and its refusals,
# and the page of the high-water mark.
package SnowflakeTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTime;
use Test::More;

our @EXPORT = qw(
  snowflake_node
  first_id
  worker_id_of
  timestamp_of
  refusal_of
  sqlstate_of
  mark_file
  read_page
  mark_of
  write_page
  with_field
  seal_page
);

# A server, not started yet, with the library and worker id 7.  Further lines of
# postgresql.conf follow, and override the first ones.
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

# Waits until a server issues an id.  Returns the id, and in list context the
# seconds that this took.  Creates the extension if the server does not have
# it.  Dies if there is no id in time.
sub first_id
{
	my ($node, $seconds) = @_;
	my $begin = test_time();
	my ($id, $error);

	wait_for(
		sub {
			my $outcome = outcome_of($node, 'SELECT snowflake_nextval()');

			$error = defined $outcome ? $outcome->{text} : 'it is not there';
			outcome_of($node, 'CREATE EXTENSION snowflake')
			  if $error =~ /function snowflake_nextval\(\) does not exist/;
			return defined $outcome && $outcome->{state} eq '' && defined($id = $outcome->{rows}[0]);
		},
		$seconds) or die $node->name . ' issues no id: ' . ($error // '') . "\n";
	return wantarray ? ($id, test_time() - $begin) : $id;
}

# The worker id of an id, by the default layout.
sub worker_id_of
{
	my ($id) = @_;
	return ($id >> 12) & 31;
}

# The time of an id in seconds since the Unix epoch, by the default layout and
# epoch.
sub timestamp_of
{
	my ($id) = @_;
	return 1_288_834_974.657 + ($id >> 22) / 1000;
}

# Why a server issues no id: the DETAIL of SQLSTATE 55000.  Returns the id if
# the server issues one, and the whole text of any other error.
sub refusal_of
{
	my ($node) = @_;
	my $outcome = outcome_of($node, 'SELECT snowflake_nextval()') // return '';

	return $outcome->{rows}[0] if $outcome->{state} eq '';
	return $outcome->{state} eq '55000' ? $outcome->{detail} : $outcome->{text};
}

# The SQLSTATE, the message and the hint of the error that a statement raises;
# '' and the output if the statement succeeds.
sub sqlstate_of
{
	my ($node, $sql) = @_;

	my $outcome = outcome_of($node, $sql) // die $node->name . " does not answer: $sql\n";

	return ('', join "\n", @{ $outcome->{rows} }) if $outcome->{state} eq '';
	return @$outcome{qw(state message hint)};
}

# The file of the high-water mark: one page, of PostgreSQL's own format.
sub mark_file
{
	my ($node) = @_;
	return $node->data_dir . '/global/8947';
}

# The page begins with PostgreSQL's header, which the contents follow.  The
# entries begin at ENTRIES_OFFSET in the contents.  Sizes and offsets are in
# bytes.
use constant {
	PAGE_HEADER_SIZE => 24,
	ENTRIES_OFFSET => 248,
	ENTRY_SIZE => 24
};
my @mark_fields = qw(magic version checksum entry_count unused
  tick_bits datacenter_bits worker_bits sequence_bits
  tick_us epoch floor
  holder timeline lease_datacenter_id lease_worker_id incarnation
  next_incarnation ends_us fence registry
  logger_datacenter_id logger_worker_id logger_holder logger_location);
my $mark_template = 'L3 S2 l4 q3 Z76 L l2 q2 q2 Q l2 Q Z48';
my $entry_template = 'l2 q2';

# The contents of the page in its file.  A running server may have a newer page
# in its memory, up to the next checkpoint.
sub read_page
{
	my ($node) = @_;
	my $page = slurp_file(mark_file($node));
	my $contents = substr($page, PAGE_HEADER_SIZE);
	my %mark;

	@mark{@mark_fields} = unpack $mark_template, $contents;
	for my $i (1 .. $mark{entry_count})
	{
		my %entry;
		@entry{qw(datacenter_id worker_id mark headroom_us)} =
		  unpack $entry_template,
		  substr($contents, ENTRIES_OFFSET + ENTRY_SIZE * ($i - 1), ENTRY_SIZE);
		push @{ $mark{entries} }, \%entry;
	}
	return \%mark;
}

# The mark of one node on a page; undefined without an entry of the node.
sub mark_of
{
	my ($mark, $worker_id, $datacenter_id) = @_;
	my ($entry) =
	  grep { $_->{worker_id} == $worker_id
		  && $_->{datacenter_id} == ($datacenter_id // 0) } @{ $mark->{entries} };

	return $entry ? $entry->{mark} : undef;
}

# Replaces the bytes of the mark's file.
sub write_page
{
	my ($node, $bytes) = @_;
	my $file = mark_file($node);

	open my $fh, '>:raw', $file or die "$file: $!";
	print $fh $bytes;
	close $fh or die "$file: $!";
	return;
}

# A page with bytes replaced: each field is an offset in the contents, a
# template of pack() and its value.
sub with_field
{
	my ($page, @fields) = @_;

	while (my ($offset, $template, $value) = splice @fields, 0, 3)
	{
		my $bytes = pack $template, $value;
		substr($page, PAGE_HEADER_SIZE + $offset, length $bytes) = $bytes;
	}
	return $page;
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

# Puts the right CRC-32C into a page whose contents were changed.  PostgreSQL's
# own checksum of the page stays as it is, so this is for clusters without
# checksums.
sub seal_page
{
	my ($page) = @_;
	my $entry_count = unpack 'S', substr($page, PAGE_HEADER_SIZE + 12, 2);
	my $size = ENTRIES_OFFSET + ENTRY_SIZE * $entry_count;

	substr($page, PAGE_HEADER_SIZE + 8, 4) = pack 'L', 0;
	substr($page, PAGE_HEADER_SIZE + 8, 4) =
	  pack 'L', crc32c(substr($page, PAGE_HEADER_SIZE, $size));
	return $page;
}

1;
