# Runs the regress and the isolation tests on a server with another layout, epoch and
# worker id than t/regress.pl does: no output may depend on them.  Tests of
# conversion and of the registry know no layout, and are left out.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use SnowflakeRegress;
use Test::More;

regress_passes(
	'other_layout', qr/^(convert|registry)/,
	"snowflake.layout = '39/0/4/8'",
	"snowflake.epoch = '2024-01-01T00:00:00Z'",
	"snowflake.worker_id = 15")->stop;

done_testing();
