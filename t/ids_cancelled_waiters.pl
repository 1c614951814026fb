# Sessions that wait for a tick are cancelled again and again.  They leave
# nothing behind that slows down the sessions after them.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	SESSIONS => 50,
	SECONDS => 5,
	PER_SECOND => 4000,           # ids of this layout
};

my $node = snowflake_node(
	'main',
	"snowflake.layout = '42/0/10/2'",
	'max_connections = 70',
	'log_min_messages = panic',
	'log_min_error_statement = panic');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION snowflake');

# How many ids a second one session gets now.
sub rate
{
	my $count = PER_SECOND / 4;
	my $stdout = $node->safe_psql('postgres',
		"\\timing on\nSELECT count(snowflake_nextval()) FROM generate_series(1, $count)"
	);
	return 1000 * $count / ($stdout =~ /Time: ([\d.]+) ms/)[0];
}

my $before = rate();
note sprintf 'alone: %.0f ids a second', $before;

my $script = PostgreSQL::Test::Utils::tempdir() . '/script.sql';
PostgreSQL::Test::Utils::append_to_file($script,
	"SELECT count(snowflake_nextval()) FROM generate_series(1, 100);\n" x 100_000);
my @runs;
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=1ms';
	@runs = map {
		IPC::Run::start(
			[ 'psql', '-XAtq', '-f', $script, $node->connstr('postgres') ],
			'<', \undef, '>', '/dev/null', '2>', '/dev/null')
	} 1 .. SESSIONS;
}
usleep(1_000_000 * SECONDS);
$_->kill_kill for @runs;
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
	),
	'the cancelled sessions have ended');

# A defect once cut the rate to 10 %, for longer than these sessions had run.
my $after = rate();
note sprintf 'after %d sessions: %.0f ids a second', SESSIONS, $after;
cmp_ok($after, '>', $before / 2, 'after the cancelled sessions one session gets more than half its rate at once');
cmp_ok(rate(), '>', $before * 0.7, 'one session gets more than 70 % of its rate from then on');

$node->stop;

done_testing();
