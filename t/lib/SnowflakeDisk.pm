# A server whose disk is slow, hangs or is full, as the test says; see disk.c.
package SnowflakeDisk;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeServer qw(build_library preload);

our @EXPORT = qw(
  start_on_disk
  set_disk
  disk_value
);

# The numbers in the file that disk.c reads, in order.
my @names =
  qw(delay_us is_hanging flushes hanging bytes_left is_broken);
my %number_of = map { $names[$_] => $_ } 0 .. $#names;

my ($directory, $library);

sub disk_file
{
	my ($node) = @_;

	$directory //= PostgreSQL::Test::Utils::tempdir();
	return "$directory/" . $node->name . '.disk';
}

# Starts a server with a disk that set_disk() changes.  At first the disk is as
# these values say, and otherwise fast and empty.  The clock is as start_server()
# sets it.
sub start_on_disk
{
	my ($node, %values) = @_;
	my $file = disk_file($node);

	$library //= build_library('disk');
	PostgreSQL::Test::Utils::append_to_file($file, pack 'q*', (0) x @names)
	  unless -e $file;
	set_disk($node, delay_us => 0, is_hanging => 0, bytes_left => -1,
		is_broken => 0, %values);
	local %ENV = (%ENV, preload($library), DISK_FILE => $file);
	start_server($node);
	return;
}

# Changes the disk of a server.
sub set_disk
{
	my ($node, %values) = @_;

	for my $name (sort keys %values)
	{
		# Write in place and at once: servers have the file mapped.
		open my $fh, '+<:raw', disk_file($node) or die $!;
		sysseek $fh, 8 * $number_of{$name}, 0;
		defined syswrite $fh, pack 'q', $values{$name} or die $!;
		close $fh;
	}
	return;
}

# Returns one of the numbers, such as how many flushes have ended.
sub disk_value
{
	my ($node, $name) = @_;
	my $bytes = PostgreSQL::Test::Utils::slurp_file(disk_file($node));

	return (unpack 'q*', $bytes)[ $number_of{$name} ];
}

1;
