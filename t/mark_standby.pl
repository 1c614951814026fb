# A standby decodes ids and issues none.  Once promoted, the standby issues ids
# of its own worker id.  A background worker issues ids as any session does.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 'logical');
$primary->append_conf(
	'postgresql.conf', preload_line() . q{
snowflake.worker_id = 7
});
$primary->start;
$primary->safe_psql(
	'postgres', q{
CREATE EXTENSION snowflake;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
INSERT INTO orders (n) SELECT generate_series(1, 1000);
});

# A standby with a worker id of its own.
my $standby = standby_node($primary, 'standby');
$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 8');
$standby->start;
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));

for my $call ('snowflake_nextval()', 'snowflake_nextvals(1)')
{
	my ($state, $message, $hint) = sqlstate_of($standby, "SELECT $call");
	is($state, '25006', "$call on a standby is an error");
	like($message, qr/during recovery/, "$call on a standby: the message names the recovery");
	like($hint, qr/primary/, "$call on a standby: the hint names the primary");
}
is( $standby->safe_psql('postgres',
		'SELECT count(*), bool_and(snowflake_worker_id(id) = 7) FROM orders'),
	'1000|t',
	'a standby decodes replicated ids');

# One session is refused before the promotion, and gets an id after it.
my ($stdin, $stdout, $stderr) = ("SELECT snowflake_nextval();\n", '', '');
my $session = IPC::Run::start(
	[ 'psql', '-XAtq', $standby->connstr('postgres') ],
	'<', \$stdin, '>', \$stdout, '2>', \$stderr,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
$session->pump until $stderr =~ /\n/ || $stdout ne '';
like($stderr, qr/during recovery/, 'a session on the standby is refused');
is($stdout, '', 'a session on the standby gets no id');
$standby->promote;
$stdin .= "SELECT snowflake_worker_id(snowflake_nextval());\n";
$session->pump until $stdout =~ /\n/;
is($stdout, "8\n", 'the same session gets an id after the promotion');
$session->finish;

$standby->safe_psql('postgres',
	'INSERT INTO orders (n) SELECT generate_series(1001, 2000)');
is( $standby->safe_psql(
		'postgres',
		'SELECT count(*), count(*) FILTER (WHERE (n <= 1000) <> (snowflake_worker_id(id) = 7)),
				max(id) FILTER (WHERE n <= 1000) < min(id) FILTER (WHERE n > 1000)
		   FROM orders'),
	'2000|0|t',
	'the promoted server issues ids of its own worker id, larger than the replicated ones');
$standby->stop;

# Logical replication into a table with one more column: the ids are issued
# by the apply worker, a background worker.
my $subscriber = snowflake_node('subscriber', 'snowflake.worker_id = 9');
$subscriber->start;
$subscriber->safe_psql(
	'postgres', q{
CREATE EXTENSION snowflake;
CREATE TABLE orders (id bigint PRIMARY KEY, n int, copy_id bigint UNIQUE DEFAULT snowflake_nextval());
});
$primary->safe_psql('postgres', 'CREATE PUBLICATION orders FOR TABLE orders');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION orders CONNECTION '"
	  . $primary->connstr
	  . " dbname=postgres' PUBLICATION orders");
$subscriber->wait_for_subscription_sync($primary, 'orders');
$primary->safe_psql('postgres',
	'INSERT INTO orders (n) SELECT generate_series(1001, 3000)');
$primary->wait_for_catchup('orders');
is( $subscriber->safe_psql(
		'postgres',
		'SELECT count(*), count(DISTINCT copy_id),
				bool_and(snowflake_worker_id(id) = 7), bool_and(snowflake_worker_id(copy_id) = 9)
		   FROM orders'),
	'3000|3000|t|t',
	'the apply worker of a subscription issues ids');
$subscriber->stop;
$primary->stop;

done_testing();
