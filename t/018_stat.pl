# The views of counters.  Whose sessions snowflake_stat_backend shows to whom:
# one's own, and those of others to members of pg_read_all_stats alone.  And
# calls that waited for a spent tick, on machines of any speed.
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

is($node->safe_psql('postgres', $others), '0', "another's live session is not shown");
$node->safe_psql('postgres', 'GRANT pg_read_all_stats TO reader');
is($node->safe_psql('postgres', $others), '1', 'but to pg_read_all_stats');
$issuing->quit;
$node->stop;

# The slowest machine spends a tick of a tenth of a second that has two ids.
# 40 ids take 20 ticks or more.  The session waits for each of these ticks,
# unless the clock has reached the tick by itself.
$node = snowflake_node('spent', "snowflake.layout = '38/5/5/1\@100ms'");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');
for my $query ('count(*) FROM snowflake_nextvals(40)',
	'count(snowflake_nextval()) FROM generate_series(1, 40)')
{
	$node->safe_psql('postgres', 'SELECT snowflake_stat_reset()');
	is($node->safe_psql('postgres', "SELECT $query"), '40',
		"40 ids: $query");
	is( $node->safe_psql(
			'postgres', q{
			SELECT ids_issued, sequence_waits BETWEEN 2 AND 20,
			       sequence_wait_time BETWEEN sequence_waits * interval '1 us'
			                              AND sequence_waits * interval '1 min',
			       clock_wait_time
			  FROM snowflake_stat}),
		'40|t|t|00:00:00',
		'calls that waited for a spent tick are counted once each');
}
$node->stop;

done_testing();
