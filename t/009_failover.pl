# Failover to a standby with the same worker id and a slower clock: no id that
# the promoted server issues reaches back into the ids that its data holds.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(usleep);

my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';

# A primary with ids in a table, and its standby, whose clock is slower.
sub make_pair
{
	my ($name, @conf) = @_;
	my $primary = PostgreSQL::Test::Cluster->new("${name}_primary");
	my $standby = PostgreSQL::Test::Cluster->new("${name}_standby");

	$primary->init(allows_streaming => 1);
	$primary->append_conf('postgresql.conf',
		join("\n",
			"shared_preload_libraries = 'snowflake'",
			'snowflake.worker_id = 7', @conf)
		  . "\n");
	$primary->start;
	$primary->safe_psql(
		'postgres', q{
CREATE EXTENSION snowflake;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), n int);
INSERT INTO orders (n) VALUES (0);
});
	$primary->backup('base');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	set_clock($clock, -3);
	start($standby);
	usleep(1_500_000);    # past the mark that the backup has brought
	$primary->safe_psql('postgres',
		'INSERT INTO orders (n) SELECT generate_series(1, 20000)');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return ($primary, $standby);
}

sub start
{
	my ($node) = @_;
	local %ENV = (%ENV, faketime_environment($clock));
	$node->start;
	return;
}

# A primary key would refuse a repeated id; here not even a smaller one comes.
sub check_promoted
{
	my ($standby, $what) = @_;

	is( $standby->safe_psql(
			'postgres', q{
SELECT max(id) AS newest FROM orders \gset
INSERT INTO orders (n) SELECT generate_series(20001, 40000);
SELECT count(*), min(id) FILTER (WHERE n > 20000) > :newest,
	   extract(epoch FROM clock_timestamp() - snowflake_timestamp(:newest)) > -0.5
  FROM orders}),
		'40001|t|t',
		"$what: ids go on after those in the data");
	return;
}

# Kills a process that every backend must end for, before any id was issued.
sub crash
{
	my ($node) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'snowflake high-water mark'"
	);
	usleep(200_000);
	my $offset = -s $node->logfile;
	kill 'KILL',
	  $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
	$node->wait_for_log(qr/database system is ready to accept connections/,
		$offset);
	$node->poll_query_until('postgres', 'SELECT true');
	return;
}

# Promoted as it runs; and crashed before its first id.
for my $is_crashed (0, 1)
{
	my $what = 'promoted' . ($is_crashed ? ' and crashed' : '');
	my ($primary, $standby) =
	  make_pair("running$is_crashed", 'restart_after_crash = on');

	$primary->stop('immediate');
	$standby->promote;
	crash($standby) if $is_crashed;
	check_promoted($standby, $what);
	$standby->stop;
}

# Started again after a restartpoint: nothing is left to replay.
for my $is_crashed (0, 1)
{
	my $what = 'promoted after a restart' . ($is_crashed ? ' and crashed' : '');
	my ($primary, $standby) =
	  make_pair("restarted$is_crashed", 'restart_after_crash = on');

	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$primary->stop('immediate');
	$standby->stop;
	start($standby);
	is( $standby->safe_psql(
			'postgres', 'SELECT pg_last_xact_replay_timestamp()'),
		'', 'the standby has replayed no commit since its start');
	$standby->promote;
	crash($standby) if $is_crashed;
	check_promoted($standby, $what);
	$standby->stop;
}

done_testing();
