# A server logs at its start its node, or why it cannot issue ids.  The first
# session that issues an id logs if ids of the node were issued elsewhere before,
# as after a promotion.  A restart, a reboot or a new host name does not log that.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
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

my $elsewhere = qr/snowflake ids of node \(0,7\) were issued elsewhere before/;

# A server without preload, which before PostgreSQL 17, or with a registry, is
# needed.
my $plain = PostgreSQL::Test::Cluster->new('plain');
$plain->init;
$plain->append_conf('postgresql.conf', "snowflake.registry = 'host=nowhere'");
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
$primary->safe_psql('postgres', 'CREATE EXTENSION snowflake; SELECT snowflake_nextval(); DROP EXTENSION snowflake')
  unless PRELOADS;
like(logged($primary),
	qr{LOG:  snowflake node \(0,7\), snowflake.worker_id_source "config", snowflake.layout "41/5/5/12", snowflake.epoch "2010-11-04 01:42:54.657\+00"},
	'the log has the node, its source, the layout and the epoch');
($rc, $out, $err) = $primary->psql('postgres', 'CREATE EXTENSION snowflake');
unlike($err, qr/NOTICE/, 'CREATE EXTENSION with preload raises no NOTICE');
$primary->safe_psql('postgres', 'SELECT snowflake_nextval()');
unlike(logged($primary), $elsewhere, 'a new server does not log ids issued elsewhere');
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
$standby->safe_psql('postgres', 'SELECT snowflake_nextval()') for 1 .. 2;
my $log = logged($standby);
like($log, $elsewhere, 'a promoted standby logs ids issued elsewhere');
my $primary_place = substr $primary->data_dir, -19;
my $standby_place = substr $standby->data_dir, -19;
like($log, qr/issued by the server "[^"]*\Q$primary_place\E"; this server is "[^"]*\Q$standby_place\E"/,
	'the log line has the locations of both servers');
is(() = $log =~ /$elsewhere/g, 1, 'a promoted standby logs ids issued elsewhere once');
unlike(log_of_restart($standby), $elsewhere, 'a restart does not log ids issued elsewhere again');

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
$standby->stop;

# The page names the server that logged the mark last: its holder, which changes
# when the machine boots, and its location, which has the host's name.
{
	my $node = new_server('moved');
	my $issue = 'SELECT snowflake_nextval()';
	my %fields = (holder => [ 192, 'Q', 1 ], location => [ 200, 'Z48', 'other:/data' ]);

	start_server($node);
	value_of($node, $issue);
	$node->stop;
	my $page = PostgreSQL::Test::Utils::slurp_file(mark_file($node));
	for my $case (
		[ 'a reboot', 0, 'holder' ],
		[ 'a new name of the host', 0, 'location' ],
		[ 'another holder at another location', 1, 'holder', 'location' ])
	{
		my ($what, $is_elsewhere, @changed) = @$case;
		my $offset = -s $node->logfile;

		write_page($node,
			seal_page(with_field($page, map { @{ $fields{$_} } } @changed)));
		start_server($node);
		unlike(logged($node, $offset), $elsewhere, "$what: nothing is logged before the first id");
		value_of($node, $issue) for 1 .. 2;
		is(scalar(() = logged($node, $offset) =~ /$elsewhere/g),
			$is_elsewhere, "$what: logged $is_elsewhere times");
		$node->stop;
	}
	end_servers($node);
}

# A primary and a standby without a worker id.  Without preload the postmaster
# does not know the parameters.
if (!PRELOADS)
{
	done_testing();
	exit;
}
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
