# The order of shared_preload_libraries does not matter, although Citus refuses
# to be loaded after a library with hooks, and the extension has a hook for
# CREATE TABLE.  lib/hooks.c stands for Citus.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer qw(build_library);
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('order', 'restart_after_crash = on');
my $library =
  build_library('hooks', '-I' . $node->config_data('--includedir-server'));

# The notices that CREATE TABLE raises, and the key's default.
sub create_table
{
	my (undef, $stdout, $stderr) = $node->psql('postgres', q{
CREATE TABLE t (id serial PRIMARY KEY);
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 't'::regclass;
DROP TABLE t;
});
	return $stdout . ($stderr =~ /NOTICE:  (.*)/ ? ", $1" : $stderr);
}

for my $libraries ("snowflake, $library", "$library, snowflake")
{
	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$libraries'\n");
	ok($node->start(fail_ok => 1), "starts with $libraries")
	  or BAIL_OUT('the server does not start');
	$node->safe_psql('postgres', q{
DROP EXTENSION IF EXISTS snowflake CASCADE;
CREATE EXTENSION snowflake;
CREATE EVENT TRIGGER convert ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION snowflake_convert_new_tables();
});
	is(create_table(), 'snowflake_nextval(), the other hook', "$libraries: both hooks run");

	# The postmaster makes its shared memory anew, and sets the hook again.
	my $walwriter = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	kill 'KILL', $walwriter;
	ok(wait_for(sub {
			my ($rc, $now) = $node->psql('postgres',
				q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
			return $rc == 0 && $now ne '' && $now ne $walwriter;
		}), "$libraries: the server starts again after a crash");
	is(create_table(), 'snowflake_nextval(), the other hook', "$libraries: both hooks run after a crash");
	$node->stop;
}

done_testing();
