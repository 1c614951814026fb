# A server logs at its start who it is, and what it lacks to issue ids.  A
# server also logs if ids of its node were issued in another place before, as
# after a promotion; a plain restart logs nothing of the kind.
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

sub elsewhere_at
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		'SELECT last_issued_elsewhere FROM snowflake_node');
}

my $elsewhere = qr/snowflake ids of node \(0,7\) were issued elsewhere before/;

# Without preload
my $plain = PostgreSQL::Test::Cluster->new('plain');
$plain->init;
$plain->start;
my ($rc, $out, $err) = $plain->psql('postgres', 'CREATE EXTENSION snowflake');
is($rc, 0, 'CREATE EXTENSION without preload');
like($err, qr/NOTICE:  snowflake_nextval\(\) issues no ids until the library is preloaded/,
	'says that the library has to be preloaded');
like($err, qr/HINT: .*shared_preload_libraries/, 'and how');
$plain->stop;

# At the start
my $primary = snowflake_node('primary');
$primary->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 4");
$primary->start;
like(logged($primary),
	qr{LOG:  snowflake node \(0,7\), snowflake.worker_id_source "config", snowflake.layout "41/5/5/12", snowflake.epoch "2010-11-04 01:42:54.657\+00"},
	'the log says who the server is');
($rc, $out, $err) = $primary->psql('postgres', 'CREATE EXTENSION snowflake');
unlike($err, qr/NOTICE/, 'CREATE EXTENSION with preload has nothing to say');
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
unlike(logged($primary), $elsewhere, 'no false alarm at the first start');
is(elsewhere_at($primary), '', 'and none in the view');
unlike(log_of_restart($primary), $elsewhere, 'nor at a restart');
$primary->stop('immediate');
$primary->start;
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
unlike(logged($primary), $elsewhere, 'nor after a crash');

# A standby with the same number, promoted
my $standby = standby_node($primary, 'standby');
$standby->start;
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
unlike(logged($standby), $elsewhere, 'a standby does not say so before it is promoted');
$primary->stop;
$standby->promote;
$standby->safe_psql('postgres', 'SELECT snowflake_nextval()');
my $log = logged($standby);
like($log, $elsewhere, 'a promoted standby says so');
my $primary_place = substr $primary->data_dir, -19;
my $standby_place = substr $standby->data_dir, -19;
like($log, qr/issued by the server "[^"]*\Q$primary_place\E"; this one is "[^"]*\Q$standby_place\E"/,
	'with both places');
is(() = $log =~ /$elsewhere/g, 1, 'once');
my $at = elsewhere_at($standby);
isnt($at, '', 'the view shows when');
is( $standby->safe_psql('postgres',
		"SELECT '$at'::timestamptz BETWEEN now() - interval '5 min' AND now() + interval '1 s'"),
	't', 'which is when the other one stopped');
unlike(log_of_restart($standby), $elsewhere, 'a restart does not say so again');
is(elsewhere_at($standby), $at, 'the view still shows it');

# A copied data directory, whose original goes on
$standby->stop;
my $copy = copy_of($standby, 'copy');
$copy->start;
$copy->safe_psql('postgres', 'SELECT snowflake_nextval()');
like(logged($copy), $elsewhere, 'a copy says so');
$copy->stop;

# A server with a worker id of its own logs nothing of the kind
$standby->append_conf('postgresql.conf', 'snowflake.worker_id = 8');
unlike(log_of_restart($standby), qr/issued elsewhere/, 'an unused number: nothing to say');
is(elsewhere_at($standby), '', 'nor in the view');
$standby->stop;

# Without a worker id, on a primary and on a standby
my $numberless = snowflake_node('numberless', 'snowflake.worker_id = -1',
	'wal_level = replica', 'max_wal_senders = 4');
$numberless->start;
my $warning = qr/WARNING:  parameter "snowflake.worker_id" is not set, so this server issues no snowflake ids/;
like(logged($numberless), $warning, 'the log warns of a missing number');
my $lost = standby_node($numberless, 'lost');
$lost->start;
like(logged($lost), $warning, 'on a standby, too');
$lost->stop;
$numberless->stop;

done_testing();
