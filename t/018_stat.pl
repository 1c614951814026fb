# Whose sessions snowflake_stat_backend shows to whom: one's own, and those of
# others to members of pg_read_all_stats alone.
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

done_testing();
