# Runs the regress and the isolation tests on a server with another layout, epoch and
# worker id than t/regress.pl does: no output may depend on them.  Tests of
# conversion and of the registry do not use these parameters, and are left out.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use SnowflakeRegress;
use Test::More;

my $tree = "$FindBin::RealBin/../..";
my $node = regress_node(
	'other_layout',
	"snowflake.layout = '39/0/4/8'",
	"snowflake.epoch = '2024-01-01T00:00:00Z'",
	"snowflake.worker_id = 15");

tests_pass($node, $tree, 'sql/*.sql', qr/^(convert|registry)/);
tests_pass($node, $tree, 'specs/*.spec');

# The parameters may be unset once the data has the layout and the epoch.
$node->append_conf('postgresql.conf', "snowflake.layout = ''\nsnowflake.epoch = ''\n");
$node->restart;
tests_pass($node, $tree, 'sql/stat.sql');
$node->stop;

done_testing();
