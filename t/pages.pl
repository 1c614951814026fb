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
# outputs.  The commands for a shell run below.  Each block of a page's language that
# is named anywhere has to run.
#
# Other tests run the blocks that need more than one server: with_logical_replication
# those of doc/two-servers.md.
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

my $node = regress_node('pages');
tests_pass($node, $folder, 'sql/*.sql');

# Runs a page's commands in the folder, and tests that they succeed.
sub run_commands
{
	my ($page, $beginning) = @_;
	my $commands = block_of($page, $beginning, 'sh');
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} =
	  ($node->host, $node->port, 'of_pages', 'mydb');
	local $ENV{LC_ALL} = 'C';

	my $rc = system('bash', '-euo', 'pipefail', '-c', "cd '$folder'; $commands");
	is($rc, 0, "$page: $beginning");
	return;
}

# The tables of doc/migration.md; one key is an integer.
sub defaults
{
	return $node->safe_psql('mydb', q{
SELECT string_agg(format('%s %s %s', attrelid::regclass, atttypid::regtype, pg_get_expr(adbin, adrelid)), ', ' ORDER BY adrelid::regclass::text)
  FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attnum = 1 AND attrelid::regclass::text LIKE 'shop.%'});
}

$node->safe_psql('postgres', 'CREATE ROLE shop_owner LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE mydb');
$node->safe_psql('mydb', q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE SCHEMA shop AUTHORIZATION shop_owner;
SET ROLE shop_owner;
CREATE TABLE shop.customers (id bigserial PRIMARY KEY);
CREATE TABLE shop.orders (id serial PRIMARY KEY, customer_id bigint REFERENCES shop.customers);
});
my $before = q{shop.customers bigint nextval('shop.customers_id_seq'::regclass), shop.orders %s nextval('shop.orders_id_seq'::regclass)};
is(defaults(), sprintf($before, 'integer'), 'the keys before the commands of doc/migration.md');
my ($make, $run, $widen, $back) = ('psql -XAt', 'psql -X -v', q{sed -n '/^DO /q; s/^-- widen}, q{sed -n '/^DO /q; s/^-- back});
run_commands('doc/migration.md', $make);
run_commands('doc/migration.md', $widen);
is(defaults(), sprintf($before, 'bigint'), 'an integer key is widened');
run_commands('doc/migration.md', $make);
run_commands('doc/migration.md', $run);
is(defaults(), 'shop.customers bigint snowflake_id(), shop.orders bigint snowflake_id()', 'the keys are converted');
run_commands('doc/migration.md', $back);
is(defaults(), sprintf($before, 'bigint'), 'the way back');

$node->safe_psql('mydb', file_of('doc/examples/outbox.sql') . q{
INSERT INTO consumer VALUES ('export');
INSERT INTO outbox (event) VALUES ('one')});
run_commands('doc/outbox.md', 'psql -X1');
is(join(' ', map { slurp_file($_) =~ /^\d+,\d+,(.*)/ } glob "$folder/outbox-*.csv"), 'one', 'an export has the rows');
$node->stop;

every_block_ran();
done_testing();
