# The views of counters.  snowflake_stat_backend shows the sessions of other
# users to members of pg_read_all_stats only.  snowflake_stat counts calls that
# waited for the next tick, on machines of any speed.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('stat');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake; CREATE ROLE reader');
my $issuing = SnowflakeSession->new($node);
$issuing->rows('SELECT snowflake_nextval()');
my $others =
  "SET ROLE reader; SELECT count(*) FROM snowflake_stat_backend WHERE pid = $issuing->{pid}";

is($node->safe_psql('postgres', $others), '0', "a session of another user is not shown");
$node->safe_psql('postgres', 'GRANT pg_read_all_stats TO reader');
is($node->safe_psql('postgres', $others), '1', 'members of pg_read_all_stats see the session of another user');
$issuing->quit;
$node->stop;

# A tick has two ids and lasts a tenth of a second, so even a slow machine
# spends it.  40 ids take 20 ticks or more.  The session waits for each of
# these ticks, unless the clock has reached the tick meanwhile.
$node = snowflake_node('spent', "snowflake.layout = '38/5/5/1\@100ms'");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
for my $query ('count(*) FROM snowflake_nextvals(40)',
	'count(snowflake_nextval()) FROM generate_series(1, 40)')
{
	$node->safe_psql('postgres', 'SELECT snowflake_stat_reset()');
	is($node->safe_psql('postgres', "SELECT $query"), '40',
		"40 ids are issued by SELECT $query");
	is( $node->safe_psql(
			'postgres', q{
			SELECT ids_issued, sequence_waits BETWEEN 2 AND 20,
			       sequence_wait_time BETWEEN sequence_waits * interval '1 us'
			                              AND sequence_waits * interval '1 min',
			       clock_wait_time
			  FROM snowflake_stat}),
		'40|t|t|00:00:00',
		"each wait for the next tick is counted once by SELECT $query");
}
$node->stop;

done_testing();
