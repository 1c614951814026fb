# Runs the regress and the isolation tests on two servers: one with the default
# layout, and one with another layout, epoch and worker id.  The tests of
# conversion and of the registry do not depend on these parameters, and run on the
# first server only.  On each server the superuser has another name,
# because no output may depend on it.
use strict;
use warnings FATAL => 'all';

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

my $tree = "$FindBin::RealBin/..";

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

die "PG_REGRESS is not set; run this by make test or make installcheck\n"
  unless defined $ENV{PG_REGRESS};
my $isolation = dirname($ENV{PG_REGRESS}) . '/../isolation/pg_isolation_regress';

my %settings = (
	default_layout => [],
	other_layout => [
		"snowflake.layout = '39/0/4/8'",
		"snowflake.epoch = '2024-01-01T00:00:00Z'",
		"snowflake.worker_id = 15"
	]);
for my $name (sort keys %settings)
{
	my $node = snowflake_node($name, @{ $settings{$name} });
	my $user = "of_$name";

	$node->start;
	$node->safe_psql('postgres', "CREATE ROLE $user SUPERUSER LOGIN");

	if ($node->pg_version >= 18)
	{
		is( $node->safe_psql(
				'postgres',
				"LOAD 'snowflake'; SELECT version LIKE default_version || '.%'
				   FROM pg_get_loaded_modules()
				   JOIN pg_available_extensions ON name = module_name
				  WHERE module_name = 'snowflake'"),
			't', "$name: the library's version is that of the extension");
	}
	run_tests($node, $user, $ENV{PG_REGRESS}, 'sql/*.sql',
		$name eq 'default_layout' ? qr/^$/ : qr/^(convert|registry)/);
	run_tests($node, $user, $isolation, 'specs/*.spec', qr/^$/);
	$node->stop;
}

done_testing();
