# A server logs at its start its node, or why it cannot issue ids.  A server
# also logs if ids of its node were issued elsewhere before, as after a
# promotion; a plain restart does not log that.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;

# Restarts a server.  Returns what it logs meanwhile and at its next id.
sub log_of_restart
{
	my ($node) = @_;
	my $offset = -s $node->logfile;

	$node->restart;
	$node->safe_psql('postgres', 'SELECT snowflake_nextval()');
	return logged($node, $offset);
}

# Returns when ids of the server's node were last issued elsewhere, or ''.
sub elsewhere_at
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		'SELECT last_issued_elsewhere FROM snowflake_node');
}

my $elsewhere = qr/snowflake ids of node \(0,7\) were issued elsewhere before/;

# A server without preload.
my $plain = PostgreSQL::Test::Cluster->new('plain');
$plain->init;
$plain->start;
my ($rc, $out, $err) = $plain->psql('postgres', 'CREATE EXTENSION snowflake');
is($rc, 0, 'CREATE EXTENSION without preload');
like($err, qr/NOTICE:  snowflake_nextval\(\) issues no ids until the library is preloaded/,
	'CREATE EXTENSION without preload says that the library has to be preloaded');
like($err, qr/HINT: .*shared_preload_libraries/, 'CREATE EXTENSION without preload names shared_preload_libraries');
$plain->stop;

# A start, restarts and a crash.
my $primary = snowflake_node('primary');
$primary->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 4");
$primary->start;
like(logged($primary),
	qr{LOG:  snowflake node \(0,7\), snowflake.worker_id_source "config", snowflake.layout "41/5/5/12", snowflake.epoch "2010-11-04 01:42:54.657\+00"},
	'the log has the node, its source, the layout and the epoch');
($rc, $out, $err) = $primary->psql('postgres', 'CREATE EXTENSION snowflake');
unlike($err, qr/NOTICE/, 'CREATE EXTENSION with preload raises no NOTICE');
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
unlike(logged($primary), $elsewhere, 'a new server does not log ids issued elsewhere');
is(elsewhere_at($primary), '', 'snowflake_node of a new server shows no ids issued elsewhere');
unlike(log_of_restart($primary), $elsewhere, 'a restart does not log ids issued elsewhere');
$primary->stop('immediate');
$primary->start;
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
unlike(logged($primary), $elsewhere, 'a crash recovery does not log ids issued elsewhere');

# A standby with the same worker id is promoted.
my $standby = standby_node($primary, 'standby');
$standby->start;
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
unlike(logged($standby), $elsewhere, 'a standby does not log ids issued elsewhere before its promotion');
$primary->stop;
$standby->promote;
$standby->safe_psql('postgres', 'SELECT snowflake_nextval()');
my $log = logged($standby);
like($log, $elsewhere, 'a promoted standby logs ids issued elsewhere');
my $primary_place = substr $primary->data_dir, -19;
my $standby_place = substr $standby->data_dir, -19;
like($log, qr/issued by the server "[^"]*\Q$primary_place\E"; this server is "[^"]*\Q$standby_place\E"/,
	'the log line has the locations of both servers');
is(() = $log =~ /$elsewhere/g, 1, 'a promoted standby logs ids issued elsewhere once');
my $at = elsewhere_at($standby);
isnt($at, '', 'snowflake_node of a promoted standby shows when ids were issued elsewhere');
is( $standby->safe_psql('postgres',
		"SELECT '$at'::timestamptz BETWEEN now() - interval '5 min' AND now() + interval '1 s'"),
	't', 'snowflake_node shows about the time at which the primary stopped');
unlike(log_of_restart($standby), $elsewhere, 'a restart does not log ids issued elsewhere again');
is(elsewhere_at($standby), $at, 'after a restart snowflake_node shows the same instant');

# A copy of the data directory.
$standby->stop;
my $copy = copy_of($standby, 'copy');
$copy->start;
$copy->safe_psql('postgres', 'SELECT snowflake_nextval()');
like(logged($copy), $elsewhere, 'a copied server logs ids issued elsewhere');
$copy->stop;

# The server gets a worker id that no server has used.
$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 8');
unlike(log_of_restart($standby), qr/issued elsewhere/, 'with an unused worker id a server logs no ids issued elsewhere');
is(elsewhere_at($standby), '', 'with an unused worker id snowflake_node shows no ids issued elsewhere');
$standby->stop;

# A primary and a standby without a worker id.
my $without_id = snowflake_node('without_id', 'snowflake.worker_id = -1',
	'wal_level = replica', 'max_wal_senders = 4');
$without_id->start;
my $warning = qr/WARNING:  parameter "snowflake.worker_id" is not set, so this server issues no snowflake ids/;
like(logged($without_id), $warning, 'a server without a worker id logs a WARNING');
my $its_standby = standby_node($without_id, 'its_standby');
$its_standby->start;
like(logged($its_standby), $warning, 'a standby without a worker id logs a WARNING');
$its_standby->stop;
$without_id->stop;

done_testing();
