# The regress tests of sql/ and the isolation tests of specs/, on a server of their
# own, whose superuser has another name than the role that initdb makes: no output
# may depend on the name.
package SnowflakeRegress;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

our @EXPORT = qw(regress_passes);

my $tree = dirname(__FILE__) . '/../..';

# Runs pg_regress or pg_isolation_regress with all tests that match a pattern,
# except some.
sub run_tests
{
	my ($node, $user, $tool, $pattern, $except) = @_;
	my @tests = grep { !/$except/ }
	  map { (fileparse($_, qr/\.\w+/))[0] } glob("$tree/$pattern");
	my $output = PostgreSQL::Test::Utils::tempdir();

	ok(@tests > 0, "$pattern matches test files");
	my $passed = run_log(
		[
			$tool, "--inputdir=$tree", "--outputdir=$output",
			'--bindir=', '--dbname=contrib_regression',
			'--host=' . $node->host, '--port=' . $node->port, "--user=$user",
			'--max-concurrent-tests=1', @tests
		]);
	ok($passed, $node->name . ": $pattern");
	if (!$passed && -f "$output/regression.diffs")
	{
		diag(slurp_file(
				"$output/regression.diffs"));
	}
	return;
}

# Tests that all of sql/, except some, and specs/ pass on a server with further
# lines of postgresql.conf.
sub regress_passes
{
	my ($name, $except, @conf) = @_;
	my $node = snowflake_node($name, @conf);
	my $user = "of_$name";

	die "PG_REGRESS is not set; run this by make test or make installcheck\n"
	  unless defined $ENV{PG_REGRESS};
	$node->start;
	$node->safe_psql('postgres', "CREATE ROLE $user SUPERUSER LOGIN");
	run_tests($node, $user, $ENV{PG_REGRESS}, 'sql/*.sql', $except);
	run_tests($node, $user, dirname($ENV{PG_REGRESS}) . '/../isolation/pg_isolation_regress',
		'specs/*.spec', qr/^$/);
	return $node;
}

1;
