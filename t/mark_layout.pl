# The layout and the epoch of ids are those of the data: every copy of the data
# decodes by them and, once it is a primary, issues ids of them, without a line of
# configuration.  A server whose lines say something else says so as early as it
# can, and issues no id; snowflake_change_layout() is the way to another layout.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeServer qw(settle words_of_postmaster);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my $issue = 'SELECT snowflake_nextval()';
my $horizon = 'SELECT snowflake_horizon()';
my @layout = ("snowflake.layout = '41/0/4/8'", "snowflake.epoch = '2020-01-01 00:00+00'");
my $shown = '41/0/4/8|2020-01-01 00:00:00+00';
my $not_the_data = qr/this server issues no snowflake ids because "snowflake.layout" and "snowflake.epoch" are not the data's/;

# What a server says of its layout.
sub layout_of
{
	my ($node) = @_;
	return value_of($node, "SET timezone = 'UTC'; SELECT layout, epoch FROM snowflake_node()");
}

# Tests that a server goes by the layout of the data.
sub decodes
{
	my ($node, $what) = @_;

	is(layout_of($node), $shown, "$what: snowflake_node() shows the data's layout");
	is( value_of($node, q{
SELECT count(*) > 0, count(*) FILTER (WHERE snowflake_timestamp(id) <> snowflake_timestamp(id, '2020-01-01 00:00+00', '41/0/4/8')
   OR snowflake_datacenter_id(id) <> 0) FROM orders WHERE id > 0}),
		't|0', "$what: ids are decoded by the data's layout");
	return;
}

# Tests that a primary issues ids of the data's layout.
sub issues
{
	my ($node, $worker_id, $what) = @_;

	decodes($node, $what);
	my $id = first_id_soon($node, $what);
	is(($id >> 8) & 15, $worker_id, "$what: the id has the worker id in its place");
	cmp_ok($id, '<', 2**53, "$what: the id is of the data's layout");
	cmp_ok($id, '>', value_of($node, 'SELECT max(id) FROM orders'), "$what: the id is larger than those of the data");
	return;
}

# Tests that a server refuses ids, and says which values the data has.
sub refuses_other
{
	my ($node, $what, $asked) = @_;

	for my $sql ($issue, $horizon, 'SELECT snowflake_nextvals(2)')
	{
		like(outcome_of($node, "SET timezone = 'UTC'; $sql")->{text},
			qr/ERROR:  22023: $not_the_data\nDETAIL:  The data's ids are of "41\/0\/4\/8" and "2020-01-01 00:00:00\+00", and the parameters ask for $asked\.\nHINT: .*snowflake_change_layout\(\)/,
			"$what: $sql: the error has the data's values and the parameters'");
	}
	return;
}

my $change = 'SELECT snowflake_change_layout()';

# Tests that the layout of a server cannot be changed to what the parameters ask for,
# because the smallest id now is not above every id that the page allows.
sub refuses_change
{
	my ($node, $what, $asked) = @_;
	my ($state, $message, $hint) = sqlstate_of($node, $change);

	is($state, '22023', "$what: the change is refused");
	like($message, qr/the layout of snowflake ids cannot be changed to .*\Q$asked\E/, "$what: the message has the layout");
	like($hint, qr/larger.*"A mistake before the first row"/, "$what: the hint");
	is(layout_of($node), $shown, "$what: the layout stays");
	return;
}

# Inserts rows that pass a CHECK by a bound of this layout, and would not by the
# next one's.
sub insert_old_rows
{
	my ($node, $id) = @_;

	value_of($node, $_) for
	  'CREATE TABLE visits (id bigint)',
	  "CREATE TABLE visits_since (CHECK (snowflake_issued_between(id, '2026-01-01 00:00+00', '2126-01-01 00:00+00'))) INHERITS (visits)",
	  "CREATE TABLE visits_from (CHECK (id >= snowflake_min_id('2026-01-01 00:00+00') AND id <= snowflake_max_id('2126-01-01 00:00+00'))) INHERITS (visits)",
	  "INSERT INTO visits_since SELECT $id FROM generate_series(1, 5) AS i", "INSERT INTO visits_from SELECT $id FROM generate_series(6, 10) AS i";
	return;
}

# Tests that a query by the parent finds the rows of before the change.
sub finds_old_rows
{
	my ($node, $what) = @_;

	is(value_of($node, 'SELECT count(*) FROM (SELECT id FROM visits_since UNION ALL SELECT id FROM visits_from) AS v, LATERAL (SELECT FROM visits WHERE id = v.id) AS found'),
		10, "$what: a join finds all rows");
	my @ids = split /\n/, value_of($node, 'SELECT min(id) FROM visits_since UNION ALL SELECT min(id) FROM visits_from');
	is(join(' ', map { value_of($node, "SELECT count(*) FROM visits WHERE id = $_") } @ids), '1 1', "$what: a key finds its row");
	like(value_of($node, 'EXPLAIN SELECT FROM visits WHERE id = 131072'), qr/visits_since.*visits_from/s, "$what: no table is excluded by a bound of the present layout");
	return;
}

# ----- copies without the lines -----

my $primary = new_server('primary', "include 'case.conf'", 'wal_log_hints = on', 'snowflake.clock_tolerance = 5s');
configure($primary, @layout);
start_server($primary);
insert_batch($primary, 100);
$primary->backup('base');

# Starts a copy from the backup, with these settings in place of the lines.
sub copy_from_base
{
	my ($name, $parameters, @settings) = @_;
	my $copy = server_of_backup($name, $primary, 'base', $parameters);

	configure($copy, @settings);
	return $copy;
}

my $standby = start_server(copy_from_base('standby', [ has_streaming => 1 ], 'snowflake.worker_id = 8'));
insert_batch($primary, 100);
wait_for_standby($primary, $standby);
decodes($standby, 'a standby');

my $wrong = start_server(copy_from_base('wrong', [ has_streaming => 1 ], "snowflake.layout = '42/0/4/7'"));
like(logged($wrong), qr/WARNING:  $not_the_data\n.*DETAIL:  The data's ids are of "41\/0\/4\/8"/,
	'a standby with another layout in its configuration logs a WARNING at its start');
decodes($wrong, 'a standby with another layout in its configuration');

my $point = value_of($primary, 'SELECT pg_current_wal_flush_lsn()');
insert_batch($primary, 100);
value_of($primary, 'SELECT pg_switch_wal()');

my $in_time = copy_from_base('in_time', [], 'snowflake.worker_id = 9',
	"restore_command = 'cp \"" . $primary->data_dir . "/pg_wal/%f\" \"%p\"'",
	"recovery_target_lsn = '$point'", 'recovery_target_action = promote');
append_to_file($in_time->data_dir . '/recovery.signal', '');
start_server($in_time);
$in_time->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
issues($in_time, 9, 'a base backup, up to a point in time');
end_servers($in_time);

my $reader = SnowflakeSession->new($standby);
is($reader->value('SELECT snowflake_worker_id(256)'), 1, 'a session of the standby decodes');
$standby->promote;
issues($standby, 8, 'a promoted standby');
is($reader->value('SELECT snowflake_worker_id(snowflake_nextval())'), 8, 'a session from before the promotion issues ids of the layout');
$reader->quit;

# The former primary goes on for a while, and then follows the new one.
insert_batch($primary, 100);
$primary->stop;
insert_batch($standby, 100);
value_of($standby, 'CHECKPOINT');
command_ok(
	[
		'pg_rewind', '--no-sync', '--source-server', $standby->connstr('postgres'),
		'--target-pgdata', $primary->data_dir
	],
	'pg_rewind');
configure($primary, 'snowflake.worker_id = 10');
settle($primary);
$primary->enable_streaming($standby);
$primary->set_standby_mode;
start_server($primary);
wait_for_standby($standby, $primary);
decodes($primary, 'a rewound server');
$standby->stop;
$primary->promote;
issues($primary, 10, 'a rewound server, promoted');
end_servers($primary, $standby);

# The file of the mark is copied by hand after pg_upgrade.
$wrong->promote;
refuses_other($wrong, 'a promoted standby with another layout in its configuration', '"42\/0\/4\/7" and "2020-01-01 00:00:00\+00"');
refuses_change($wrong, 'half the ids', '42/0/4/7');
decodes($wrong, 'a promoted standby with another layout in its configuration');
$wrong->stop;
my $upgraded = new_server('upgraded');
start_server($upgraded);
is(value_of($upgraded, 'SELECT snowflake_worker_id(131072)'), 0, 'a new cluster decodes by the default layout');
system_or_bail('cp', '-p', mark_file($wrong), mark_file($upgraded));
my ($late_state, $late_message) = sqlstate_of($upgraded, $issue);
is("$late_state $late_message", '22023 the page of the high-water mark of snowflake ids has been replaced while the server was running',
	'a file that is copied under a running server: no id');
$upgraded->stop;
start_server($upgraded);
like(logged($upgraded), qr/LOG:  this server is snowflake node \(0,7\)\n.*layout "41\/0\/4\/8" with epoch "2020-01-01 00:00:00\+00"/, "the log of a start has the data's layout");
value_of($upgraded, 'INSERT INTO orders SELECT 256, 0');
issues($upgraded, 7, 'a file that was copied to another cluster');
$upgraded->stop;
$upgraded->append_conf('postgresql.conf', 'snowflake.worker_id = 16');
like(words_of_postmaster($upgraded), qr/FATAL:  16 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 15\)/,
	"the postmaster refuses a worker id that does not fit the data's layout");
end_servers($upgraded);

# ----- a standby that is older than the first id -----

$primary = new_server('young', "include 'case.conf'");
configure($primary, "snowflake.layout = '41/0/10/12'", 'snowflake.worker_id = 5');
start_server($primary);
$primary->backup('base');
my @young = map {
	start_server(copy_from_base("young_$_->[0]", [ has_streaming => 1 ], $_->[1]))
  } [ 'right', 'snowflake.worker_id = 1000' ],
  [ 'beyond', 'snowflake.worker_id = 2000' ],
  [ 'wrong', "snowflake.layout = '41/5/5/12'" ];
my ($right, $beyond, $other) = @young;
$reader = SnowflakeSession->new($right);
$reader->rows('SET plan_cache_mode = force_generic_plan');
$reader->rows("PREPARE bound AS SELECT snowflake_max_id('2030-01-01 00:00+00') & 4194303");
is($reader->value('EXECUTE bound'), 4194303, 'a standby without a page computes a bound');
my $datacenter = 'SELECT snowflake_datacenter_id(131072), snowflake_worker_id(131072)';
is($reader->value($datacenter), '1|0', 'a standby without a page decodes by the default layout');
my $newest = insert_batch($primary, 10)->{newest};
wait_for_standby($primary, $_) for @young;
value_of($beyond, 'SELECT snowflake_worker_id(1)');
is($reader->value($datacenter), '0|32', "when the page has come, the session decodes by the data's layout");
is($reader->value("SELECT snowflake_worker_id($newest)"), 5, 'an id of the primary has its worker id on the standby');
$reader->quit;
my $offset = -s $other->logfile;
my ($rc, $out, $err) = $other->psql('postgres', $datacenter);
is($out, '0|32', "a standby with another layout decodes by the data's");
like($err, qr/WARNING:  $not_the_data/, 'the first session to see the page is warned');
like(logged($other, $offset), qr/WARNING:  $not_the_data/, 'the log has the WARNING');
($rc, $out, $err) = $other->psql('postgres', $datacenter);
is($err, '', 'the WARNING comes once');
$primary->stop;
$_->promote for @young;
is((first_id_soon($right, 'a standby with a worker id beyond the default layout') >> 12) & 1023, 1000, 'it issues ids of its worker id');
$right->stop;
write_page($right, 'x' x 8192);
like(words_of_postmaster($right), qr/^starts: $/, 'a damaged page, which recovery might mend, says nothing of worker ids');
like(logged($beyond), qr/WARNING:  this server will issue no snowflake ids because its node \(0,2000\) does not fit the data's layout\n.*DETAIL:  The data's ids are of "41\/0\/10\/12"/,
	"a standby with a worker id beyond the data's layout has logged a WARNING");
my ($state, $message) = sqlstate_of($beyond, $issue);
is($state, '22023', "a worker id beyond the data's layout: no id");
like($message, qr/2000 is outside the valid range for parameter "snowflake.worker_id" \(0 \.\. 1023\)/, "a worker id beyond the data's layout: the message");
end_servers($primary, @young);

# ----- other parameters before the first id -----

my $early = new_server('early', "include 'case.conf'");
configure($early);
start_server($early);
insert_old_rows($early, "snowflake_encode('2026-06-01 00:00+00', 0, 0, i)");
configure($early, "snowflake.epoch = '2000-01-01 00:00+00'");
$early->stop;
start_server($early);
finds_old_rows($early, 'after a change of the parameters before the first id');
value_of($early, $issue);
finds_old_rows($early, 'after a change of the parameters and the first id');
end_servers($early);

# ----- snowflake_change_layout() -----

$primary = $wrong;

# Starts the server with these settings, and with a clock that is past the ids of
# before.
my $clock_s = 0;
sub start_with
{
	my (@settings) = @_;

	configure($primary, @settings);
	$primary->stop if defined $primary->{_pid};
	start_server($primary, $clock_s += 2);
	return;
}

$primary->append_conf('postgresql.conf', "max_wal_senders = 5");
start_with(@layout);
issues($primary, 7, "the standby after a correction, with lines of the data's values");
($rc, $out, $err) = $primary->psql('postgres', $change);
is("$rc $err", qq{0 psql:<stdin>:1: NOTICE:  the layout of snowflake ids is "41/0/4/8" with epoch "2020-01-01 00:00:00+00" already},
	'there is nothing to change');
$primary->backup('follower');
$standby = server_of_backup('follower', $primary, 'follower', [ has_streaming => 1 ]);
configure($standby, 'snowflake.worker_id = 3');
start_server($standby);
is((sqlstate_of($standby, $change))[0], '25006', 'a standby changes nothing');
is((sqlstate_of($primary, "CREATE ROLE plain; GRANT pg_write_all_data TO plain; SET ROLE plain; $change"))[0], '42501', 'only a superuser changes the layout');

insert_old_rows($primary, 'snowflake_nextval()');

$newest = value_of($primary, $issue);
start_with("snowflake.epoch = '2021-01-01 00:00:00+00'");
refuses_other($primary, 'a later epoch', '.*');
refuses_change($primary, 'a later epoch', '2021-01-01 00:00:00+00');

# A wider layout, with a session that was refused before.
start_with('snowflake.worker_id = 16', "snowflake.layout = '41/5/5/12'");
my $largest = (max(map { $_->{mark} } @{ read_page($primary)->{entries} }) << 12) - 1;    # that the page allows
my $session = SnowflakeSession->new($primary);
$reader = SnowflakeSession->new($standby);
wait_for_standby($primary, $standby);
$reader->rows('SET plan_cache_mode = force_generic_plan');
$reader->rows("PREPARE bound AS SELECT snowflake_min_id('2030-01-01 00:00+00')");
is($reader->value($datacenter), '0|0', 'the standby decodes by the layout before the change');
my $before = $reader->value('EXECUTE bound');
is($session->state_of($issue), '22023', 'a session gets no id before the change');
is($session->value($datacenter), '0|0', 'the session decodes by the layout before the change');

# Statements that have decoded an id before the change, and go on after the first
# id of the new layout.  Locks hold them up.
my %halfway = map { $_->name => SnowflakeSession->new($_) } $primary, $standby;
my %hold = map { $_->name => SnowflakeSession->new($_) } $primary, $standby;
$_->rows('SELECT pg_advisory_lock(1)') for values %hold;
$halfway{ $primary->name }->ask("DO \$\$ BEGIN PERFORM snowflake_worker_id(1), pg_advisory_lock(1); RAISE EXCEPTION '% %', snowflake_nextval(), snowflake_horizon(); END \$\$");
$halfway{ $standby->name }->ask("DO \$\$ BEGIN PERFORM snowflake_worker_id(1), pg_advisory_xact_lock(1); COMMIT; RAISE EXCEPTION '%', snowflake_datacenter_id(131072); END \$\$");
my $block = SnowflakeSession->new($standby);
$block->ask("DO \$\$ BEGIN PERFORM snowflake_worker_id(1), pg_advisory_xact_lock(1); RAISE EXCEPTION '% %', snowflake_datacenter_id(131072), (SELECT count(*) FROM orders WHERE id = 0); END \$\$");
my $others = value_of($standby, 'SELECT count(*) FROM orders WHERE id = 0');
for my $node ($primary, $standby)
{
	my $waiting = $node == $standby ? 2 : 1;
	wait_for(sub { value_of($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'") eq $waiting }) or die;
}

# The WAL writer, which could flush the change by itself, is suspended.
my $writer = process_of($primary, qr/walwriter/);
kill 'STOP', $writer;
my $lsn = $primary->lsn('insert');
$session->rows($change);
is($session->value("SELECT pg_current_wal_flush_lsn() > '$lsn'"), 't', 'a change of the layout is flushed when the call returns');
kill 'CONT', $writer;
is($session->value($datacenter), '1|0', 'the session decodes by the new layout');
is($session->value($horizon) >> 22, ($largest >> 22) + 1, 'ids begin in the first tick whose ids are above all that the page has allowed');
set_clock($primary, 1_577_923_200 - test_time());
is($session->state_of($issue), '55000', 'in January 2020, when ids of the new layout were smaller than those before, there is no id');
set_clock($primary, $clock_s);
my $id = $session->value($issue);
cmp_ok($id, '>', $newest, 'the session gets an id above all before');
is(($id >> 12) & 31, 16, 'a wider layout has room for another worker id');
$newest = $session->value('SELECT max(id) FROM snowflake_nextvals(100) AS id');
insert_other_row($primary);
wait_for_standby($primary, $standby);
is($reader->value($datacenter), '1|0', 'a session of the standby decodes by the new layout');
$_->quit for values %hold;
my ($halfway_id, $halfway_horizon) = split / /, $halfway{ $primary->name }->outcome->{message};
cmp_ok($halfway_id, '>', $newest, 'a statement from before the change issues ids of the new layout');
ok($halfway_horizon <= $halfway_id && $halfway_horizon > $halfway_id / 2,
	"a statement from before the change gets a horizon of the new layout: $halfway_horizon, id $halfway_id");
is($halfway{ $standby->name }->outcome->{message}, 1, 'a procedure of the standby decodes by the new layout after its COMMIT');
is($block->outcome->{message}, '1 ' . ($others + 1), 'a statement of the standby that goes on reads a row of after the change, and decodes by the new layout');
$_->quit for $block, values %halfway;
is($reader->value('EXECUTE bound'), $before * 1024, 'no plan of the standby keeps a bound of the layout before');
$_->quit for $session, $reader;
finds_old_rows($primary, 'after the change');
finds_old_rows($standby, 'on a standby after the change');

# The page's file has the layout before: WAL has the other one.
kill_hard($primary);
start_server($primary);
unlike(logged($primary) =~ s/.*database system was interrupted//sr, qr/$not_the_data/, 'a start after a crash does not judge by the file');
is(layout_of($primary), '41/5/5/12|2020-01-01 00:00:00+00', 'the change outlives a crash');
cmp_ok(first_id_soon($primary, 'after a crash'), '>', $newest, 'ids go on above those before');
start_with('snowflake.worker_id = 16');
is(layout_of($primary), '41/5/5/12|2020-01-01 00:00:00+00', 'the new layout needs no line');
finds_old_rows($primary, 'after a restart');
end_servers($primary, $standby);

done_testing();
