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
use SnowflakePages;
use SnowflakeRegress;
use Test::More;

# A test's text with the pages' blocks, whose statements psql does not print.
sub with_blocks
{
	my ($text) = @_;
	my $expand = sub {
		my ($line, $page, $beginning) = @_;
		my $code = defined $beginning ? block_of($page, $beginning) : file_of($page);
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
every_block_ran();

my $node = regress_node('pages');
tests_pass($node, $folder, 'sql/*.sql');
$node->stop;

done_testing();
