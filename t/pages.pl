# Runs the examples of README.md and doc/ as they stand on the page.
#
# A line of t/pages/sql/*.sql such as
#
#   -- RUN doc/outbox.md: DELETE FROM job
#
# stands for the page's ```sql block that begins with this text, and a line without
# a text for a whole file.  The block may end a statement that begins above the
# line, such as CREATE VIEW v AS.  The rest of the file prepares what the page
# takes for granted, and looks at what came of it; t/pages/expected has the
# outputs.  Each ```sql block of a page that is named anywhere has to run.
use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use SnowflakeRegress;
use Test::More;

my $tree = "$FindBin::RealBin/..";
my %blocks_of;    # by page: its blocks that did not run yet, and those that did

# The blocks of a page, without the indentation that they have in a list.
sub blocks_of
{
	my ($page) = @_;
	my @blocks;

	my $text = slurp_file("$tree/$page");
	push @blocks, { text => $2 =~ s/^$1//gmr } while $text =~ /^( *)```sql\n(.*?)^\1```$/gms;
	die "$page: no block\n" if !@blocks;
	return \@blocks;
}

# The block of a page that begins with a text.
sub block_of
{
	my ($page, $beginning) = @_;
	my @found = grep { index($_->{text}, $beginning) == 0 } @{ $blocks_of{$page} //= blocks_of($page) };

	die "$page: " . @found . " blocks begin with: $beginning\n" if @found != 1;
	$found[0]{has_run} = 1;
	return $found[0]{text};
}

# A test's text with the pages' blocks, whose statements psql does not print.
sub with_blocks
{
	my ($text) = @_;
	my $expand = sub {
		my ($line, $page, $beginning) = @_;
		my $code = defined $beginning ? block_of($page, $beginning) : slurp_file("$tree/$page");
		return "$line\n\\set ECHO none\n$code\\set ECHO all\n";
	};

	return $text =~ s/^(-- RUN (\S+?)(?:: (.+))?)\n/$expand->($1, $2, $3)/gmer;
}

my $folder = PostgreSQL::Test::Utils::tempdir();
mkdir "$folder/$_" or die "$folder/$_: $!" for 'sql', 'expected';
for my $test (glob "$FindBin::RealBin/pages/sql/*.sql")
{
	append_to_file("$folder/sql/" . basename($test), with_blocks(slurp_file($test)));
}
copy($_, "$folder/expected") or die "$_: $!" for glob "$FindBin::RealBin/pages/expected/*.out";
for my $page (sort keys %blocks_of)
{
	is(join('', map { $_->{text} =~ /(.*)/ } grep { !$_->{has_run} } @{ $blocks_of{$page} }),
		'', "$page: every block runs");
}

my $node = regress_node('pages');
tests_pass($node, $folder, 'sql/*.sql');
$node->stop;

done_testing();
