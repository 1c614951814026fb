# Runs the regress and the isolation tests on a server with the default layout.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use SnowflakeRegress;
use Test::More;

my $tree = "$FindBin::RealBin/..";
my $node = regress_node('default_layout');

tests_pass($node, $tree, 'sql/*.sql');
tests_pass($node, $tree, 'specs/*.spec');
if ($node->pg_version >= 18)
{
	is( $node->safe_psql(
			'postgres',
			"LOAD 'snowflake'; SELECT version LIKE default_version || '.%'
			   FROM pg_get_loaded_modules()
			   JOIN pg_available_extensions ON name = module_name
			  WHERE module_name = 'snowflake'"),
		't', "the library's version is that of the extension");
}
$node->stop;

done_testing();
