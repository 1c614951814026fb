# Jobs of pg_cron create partitions ahead of the clock and drop partitions
# behind it.  After a time without these jobs, rows are in the default partition,
# and a transaction moves them to their partitions.  The statements are those of
# doc/partitions.md; script/check-docs compares them.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(time);

use constant DAY_S => 86_400;

my ($libraries) = run_command(
	[ 'pg_config', '--pkglibdir' ]);
plan skip_all => 'pg_cron is missing: install postgresql-NN-cron'
  unless -e "$libraries/pg_cron.so";

my $node = snowflake_node(
	'cron',
	"shared_preload_libraries = 'snowflake, pg_cron'",
	"cron.database_name = 'postgres'",
	'cron.use_background_workers = on',
	"timezone = 'UTC'");
# The server's clock starts at this instant: midnight of day 0.
my $first_day = (int(time / DAY_S) + 1) * DAY_S;

sub set_time
{
	my ($day, $hour, $minute, $second) = @_;
	my $instant = $first_day + $day * DAY_S + $hour * 3600 + $minute * 60 + $second;

	set_clock($node, $instant - time);
	return $instant;
}

# Sets the clock to two seconds before the minute of a job, and waits for the
# run.  Returns the run's status and message.  Earlier runs do not count.
sub run_of
{
	my ($job, $day, $hour, $minute) = @_;
	my $since = set_time($day, $hour, $minute - 1, 58);

	return wait_for(
		sub {
			$node->safe_psql(
				'postgres', qq{
SELECT status || ': ' || coalesce(return_message, '')
  FROM cron.job_run_details JOIN cron.job USING (jobid)
 WHERE jobname = '$job' AND start_time >= to_timestamp($since)
   AND status IN ('succeeded', 'failed')});
		});
}

# The days of the first and the last partition, counted from day 0, and the
# number of partitions.
sub partitions
{
	return value_of($node, q{
SELECT min(day) - first_day, max(day) - first_day, count(*)
  FROM pg_inherits, LATERAL (SELECT to_date(substring(inhrelid::regclass::text, '\d{4}_\d\d_\d\d$'), 'YYYY_MM_DD')) AS d(day), day_0 AS z(first_day)
 WHERE inhparent = 'visits'::regclass AND day IS NOT NULL
 GROUP BY first_day});
}

set_time(0, 0, 0, 0);
start_server($node);
value_of($node, q{
CREATE EXTENSION snowflake;
CREATE EXTENSION pg_cron;
CREATE TABLE day_0 AS SELECT current_date;
CREATE TABLE visits (
    id   bigint PRIMARY KEY DEFAULT snowflake_nextval(),
    page text
) PARTITION BY RANGE (id);
CREATE TABLE visits_default PARTITION OF visits DEFAULT;
CALL snowflake_create_partitions('visits', date_trunc('day', now()) - interval '30 days', now() + interval '7 days', '1 day');
});
is(partitions(), '-30|7|38', 'there are partitions of 30 past days, of today, and of 7 days ahead');
value_of($node, q{
SELECT cron.schedule('visits: drop', '5 * * * *', $$
CALL snowflake_drop_partitions('visits', now() - interval '30 days');
$$);
SELECT cron.schedule('visits: create', '10 * * * *', $$
CALL snowflake_create_partitions('visits', date_trunc('day', now()) - interval '30 days', now() + interval '7 days', '1 day');
$$);
});

my $watched = q{
SELECT EXISTS (SELECT FROM visits_default) AS in_default,
       snowflake_timestamp(max((regexp_match(pg_get_expr(c.relpartbound, c.oid), $$TO \('(\d+)'\)$$))[1]::bigint)) - now() AS ready_for
  FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
 WHERE inhparent = 'visits'::regclass;
};

# Day 1: the jobs drop the oldest partition and create one more.
value_of($node, "INSERT INTO visits (page) VALUES ('day 0')");
like(run_of('visits: drop', 1, 0, 5), qr/^succeeded/, 'the job that drops runs on day 1');
is(partitions(), '-29|7|37', 'the partition that is older than 30 days is dropped, and no other');
like(run_of('visits: create', 1, 0, 10), qr/^succeeded/, 'the job that creates runs on day 1');
is(partitions(), '-29|8|38', 'the partition of one more day is created');
like(value_of($node, $watched), qr/^f\|7 days 23:/, 'the query to watch shows for how long partitions are ready');

# The jobs were off for longer than partitions were ready: rows go to the
# default partition.
set_time(20, 0, 20, 0);
value_of($node, "INSERT INTO visits (page) VALUES ('day 20')");
like(value_of($node, $watched), qr/^t\|-11 days/, 'the query to watch shows rows in the default partition');
like(run_of('visits: create', 20, 1, 10),
	qr/^failed: ERROR: +updated partition constraint for default partition "visits_default" would be violated by some row/,
	'the job that creates fails while the default partition has rows of its partitions');

# Day 60 is after all partitions, so the transaction drops all of them.
set_time(60, 0, 20, 0);
value_of($node, "INSERT INTO visits (page) VALUES ('day 60')");
my $rows = q{SELECT page || ' ' || id FROM visits ORDER BY id};
my @before = split /\n/, value_of($node, $rows);
my $mend = q{
CALL snowflake_drop_partitions('visits', now() - interval '30 days');
BEGIN;
SET LOCAL lock_timeout = '10s';
LOCK TABLE visits;
ALTER TABLE visits DETACH PARTITION visits_default;
SELECT snowflake_create_partition('visits', date_trunc('day', now()) - interval '30 days', now() + interval '7 days', '1 day')
  FROM generate_series(1, 38);
WITH moved AS (
    DELETE FROM visits_default
     WHERE id >= snowflake_min_id(date_trunc('day', now()) - interval '30 days')
       AND id < snowflake_min_id(date_trunc('day', now()) + interval '8 days')
    RETURNING *)
INSERT INTO visits SELECT * FROM moved;
ALTER TABLE visits ATTACH PARTITION visits_default DEFAULT;
COMMIT;
};
value_of($node, $mend);
is(partitions(), '30|67|38', 'the transaction that moves rows creates the partitions of 38 days');
is(value_of($node, q{SELECT string_agg(page || CASE WHEN tableoid = 'visits_default'::regclass THEN ' in default' ELSE '' END, ', ' ORDER BY id) FROM visits}),
	'day 20 in default, day 60', 'only rows that are older than 30 days stay in the default partition');
is(value_of($node, $rows), join("\n", grep { /^day (?:20|60) / } @before),
	'rows keep their ids, and only rows of dropped partitions are gone');
value_of($node, 'DELETE FROM visits_default');
like(run_of('visits: create', 61, 0, 10), qr/^succeeded/, 'the job that creates runs on day 61');
is(partitions(), '30|68|39', 'the job creates partitions again after that transaction');
$node->stop;

done_testing();
