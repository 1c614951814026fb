# The examples of README.md and doc/, for tests that run them as they stand on the page.
package SnowflakePages;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(block_of file_of every_block_ran);

my $tree = dirname(__FILE__) . '/../..';
my %blocks_of;    # by page and language: its blocks, and whether they ran

# A file of the sources, such as a page.
sub file_of
{
	my ($file) = @_;

	return slurp_file("$tree/$file");
}

# The blocks of a page, without the indentation that they have in a list.
sub blocks_of
{
	my ($page, $language) = @_;
	my $text = file_of($page);
	my @blocks;

	push @blocks, { text => $2 =~ s/^$1//gmr }
	  while $text =~ /^( *)```$language\n(.*?)^\1```$/gms;
	die "$page: no block of $language\n" if !@blocks;
	return \@blocks;
}

# The block of a page that begins with a text.
sub block_of
{
	my ($page, $beginning, $language) = @_;
	$language //= 'sql';
	my @found = grep { index($_->{text}, $beginning) == 0 }
	  @{ $blocks_of{$page}{$language} //= blocks_of($page, $language) };

	die "$page: " . @found . " blocks begin with: $beginning\n" if @found != 1;
	$found[0]{has_run} = 1;
	return $found[0]{text};
}

# Tests that block_of() has returned each block of the pages that it has read.
sub every_block_ran
{
	for my $page (sort keys %blocks_of)
	{
		is(join('', map { $_->{text} =~ /(.*)/ }
				  grep { !$_->{has_run} } map { @$_ } values %{ $blocks_of{$page} }),
			'', "$page: every block runs");
	}
	return;
}

1;
