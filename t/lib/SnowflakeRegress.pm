# Runs regress tests and isolation tests on a server whose superuser has another
# name than the role that initdb makes: no output may depend on the name.
package SnowflakeRegress;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

our @EXPORT = qw(regress_node tests_pass);

# A server, started, for tests_pass(), with further lines of postgresql.conf.
sub regress_node
{
	my ($name, @conf) = @_;
	my $node = snowflake_node($name, @conf);

	die "PG_REGRESS is not set; run this by make test or make installcheck\n"
	  unless defined $ENV{PG_REGRESS};
	$node->start;
	$node->safe_psql('postgres', "CREATE ROLE of_$name SUPERUSER LOGIN");
	return $node;
}

# Tests that all files of a folder that match a pattern, such as sql/*.sql, have the
# outputs of the folder's expected/, except some.
sub tests_pass
{
	my ($node, $folder, $pattern, $except) = @_;
	my @tests = grep { !defined $except || !/$except/ }
	  map { (fileparse($_, qr/\.\w+/))[0] } glob("$folder/$pattern");
	my $output = PostgreSQL::Test::Utils::tempdir();
	my $tool = $ENV{PG_REGRESS};

	$tool = dirname($tool) . '/../isolation/pg_isolation_regress' if $pattern =~ /\.spec$/;
	ok(@tests > 0, "$pattern matches test files");
	my $passed = run_log(
		[
			$tool, "--inputdir=$folder", "--outputdir=$output",
			# From 16 on, an output in the present directory would come first.
			($node->pg_version >= 16 ? "--expecteddir=$folder" : ()),
			'--bindir=', '--dbname=contrib_regression',
			'--host=' . $node->host, '--port=' . $node->port, '--user=of_' . $node->name,
			'--max-concurrent-tests=1', @tests
		]);
	ok($passed, $node->name . ": $pattern");
	diag(slurp_file("$output/regression.diffs")) if !$passed && -f "$output/regression.diffs";
	return;
}

1;
