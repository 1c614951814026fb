# The registry by itself.  The test claims for servers in SQL, as a role that
# has what allow() grants and nothing else.  The test shows what such a role
# can do to other servers, what the registry does after restarts, dumps and
# repeated claims, and how fast the registry is.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('registry');
my $epoch = '2020-01-01 00:00+00';

$node->init;
$node->append_conf('postgresql.conf', 'max_connections = 130');
$node->start;
$node->safe_psql('postgres',
	'CREATE ROLE server LOGIN; CREATE ROLE outsider LOGIN; CREATE ROLE dba LOGIN');

# ask() calls claim() as a server does; any role may call ask().  The text
# "previous" describes the server's last lease: "holder worker_id incarnation",
# with "held" at its end if the server still holds that lease.  The fence of
# the lease is given as an interval from now.  The answer has instants as
# seconds from now.
my $asking = <<'SQL';
CREATE FUNCTION ask(holder text, next_incarnation bigint, previous text, fence interval, wal pg_lsn,
                    wanted integer, datacenter integer, name text, clock timestamptz)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    had text[] := string_to_array(previous, ' ');
    k record;
    a record;
BEGIN
    SELECT * INTO k FROM snowflake_registry.constants();
    SELECT * INTO a FROM snowflake_registry.claim(
        layout => coalesce(k.layout, '41/5/5/12'), epoch => coalesce(k.epoch, now()), datacenter_id => datacenter,
        holder => holder, name => name, clock => clock, next_incarnation => next_incarnation,
        is_held => coalesce(had[4] = 'held', false), wanted_worker_id => wanted, previous_holder => had[1],
        previous_worker_id => had[2]::integer, previous_incarnation => had[3]::bigint,
        previous_fence => CASE WHEN isfinite(clock) THEN clock_timestamp() + fence ELSE clock END,
        previous_position => wal);
    RETURN concat_ws('|', coalesce(a.worker_id, -1), a.continues::integer,
                     CASE WHEN isfinite(a.begins_at) THEN extract(epoch FROM a.begins_at - clock_timestamp()) ELSE -1e9 END,
                     coalesce(extract(epoch FROM a.fence - clock_timestamp()), -1e9), coalesce(a.refusal, ''), a.detail);
END $$;
GRANT EXECUTE ON FUNCTION ask TO PUBLIC;
SQL

# Sessions of the registry's owner and of a server.
my ($owner, $server);

sub make_registry_anew
{
	my (@constants) = @_;
	my $constants = join(', ', map { "'$_'" } @constants);

	$node->safe_psql(
		'postgres', qq{
		DROP EXTENSION IF EXISTS snowflake_registry;
		DROP FUNCTION IF EXISTS ask;
		CREATE EXTENSION snowflake_registry;
		$asking
		SELECT snowflake_registry.configure($constants), snowflake_registry.allow('server')});
	return;
}

sub session
{
	my ($role) = @_;
	my $session = SnowflakeSession->new($node);

	$session->rows("SET SESSION AUTHORIZATION $role") if defined $role;
	return $session;
}

sub quoted
{
	my ($value) = @_;

	return 'NULL' if !defined $value;
	$value =~ s/'/''/g;
	return "'$value'";
}

# The SQL of a claim.  The default fence of a previous lease is 1 s from now.
sub claim_sql
{
	my ($holder, $next, %about) = @_;

	return sprintf "SELECT ask(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
	  map { quoted($_) } $holder, $next, $about{previous},
	  $about{fence} // (defined $about{previous} ? '1 s' : undef),
	  $about{wal}, $about{wanted}, $about{datacenter} // 0,
	  $about{name} // '', $about{clock} // 'now';
}

# The answer to a claim, as a hash.  After an error the refusal is the
# SQLSTATE.
sub claim
{
	my ($session, @claim) = @_;

	$session->ask(claim_sql(@claim));
	my ($state, $row) = $session->answer;
	return { refusal => $state } if $state ne '';
	my %answer;
	@answer{qw(worker_id continues begins fence refusal detail)} =
	  split /\|/, $row, -1;
	return \%answer;
}

# The worker id that an answer grants, or why it grants none.
sub outcome_of
{
	my ($answer) = @_;
	return $answer->{refusal} ne '' ? $answer->{refusal} : $answer->{worker_id};
}

sub setting
{
	my ($expression) = @_;
	return $owner->value("SELECT $expression FROM snowflake_registry.setting AS s");
}

# Makes the registry believe that it was restarted after a crash: the next
# claim opens a window.
sub pretend_crash
{
	$owner->rows("UPDATE snowflake_registry.setting SET instance = '2020-01-01'");
	return;
}

$owner = session();

#
# Arguments that no server sends
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
for my $attack (
	[ 'worker id -7', 22023, 'x', 1, wanted => -7 ],
	[ 'worker id 2147483647', 22023, 'x', 1, wanted => 2147483647 ],
	[ 'previous worker id -7', 22023, 'x', 1, previous => 'x -7 1 held' ],
	[ 'previous worker id 2147483647', 22023, 'x', 1, previous => 'x 2147483647 1 held' ],
	[ 'datacenter -1', 22023, 'x', 1, datacenter => -1 ],
	[ 'datacenter 32', 22023, 'x', 1, datacenter => 32 ],
	[ 'a long holder', 22023, 'x' x 81, 1 ],
	[ 'a long name', 22023, 'x', 1, name => 'x' x 81 ],
	[ 'a name of two lines', 22023, 'x', 1, name => "x\nLOG:  y" ],
	[ 'a long previous holder', 22023, 'x', 1, previous => 'x' x 81 . ' 1 1' ],
	[ 'clock infinity', 22023, 'x', 1, clock => 'infinity' ],
	[ 'clock and fence -infinity', 22023, 'x', 1, clock => '-infinity', previous => 'x 1 1 held' ],
	[ 'NULL as holder', 22004, undef, 1 ],
	[ 'NULL as incarnation', 22004, 'x', undef ])
{
	my ($what, $state, @claim) = @$attack;
	is(claim($server, @claim)->{refusal}, $state, "$what is refused");
}
for my $mark ('infinity', '-infinity')
{
	is($server->state_of("SELECT snowflake_registry.release(0, 0, 'x', 1, '$mark')"), 22023, "mark $mark is refused");
}
is( $server->state_of(
		"SELECT snowflake_registry.claim('41/5/3/14', '$epoch', 0, 'x', repeat('x', 200000000), now(), 1, false)"),
	22023, 'a name of 200 MB is refused');
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	$server->rows("BEGIN ISOLATION LEVEL $level");
	is(claim($server, 'x', 1)->{refusal}, '0A000', "$level is refused");
	$server->rows('ROLLBACK');
}

# Functions, tables and the rights of other roles.
my @others = $owner->rows(
	q{SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace
	  AND proname NOT IN ('claim', 'release', 'constants')});
cmp_ok(@others, '>=', 15, 'the registry has at least 15 functions beside the three that servers call');
is( $owner->value(
		q{SELECT string_agg(oid::regproc::text, ' ' ORDER BY proname) FROM pg_proc
		   WHERE pronamespace = 'snowflake_registry'::regnamespace AND has_function_privilege('server', oid, 'EXECUTE')}),
	'snowflake_registry.claim snowflake_registry.constants snowflake_registry.release',
	'a server may call three functions of the registry only');
is($server->state_of('SELECT snowflake_registry.begin_era(now(), true)'), 42501, 'a server may not call an internal function');
is($server->state_of("SELECT * FROM snowflake_registry.$_"), 42501, "a server may not read $_")
  for qw(node setting running evidence lease);
is( $owner->value(
		q{SELECT count(*) FROM pg_proc
		   WHERE pronamespace = 'snowflake_registry'::regnamespace AND has_function_privilege('outsider', oid, 'EXECUTE')}),
	0, 'a role without allow() may execute no function of the registry');
is( session('outsider')->state_of("SELECT snowflake_registry.claim('41/5/3/14', '$epoch', 0, 'x', '', now(), 1, false)"),
	42501, 'a role without allow() may not claim');

# No object of the caller's schemas is used.
$node->safe_psql('postgres', 'CREATE SCHEMA attic AUTHORIZATION server');
$server->rows($_)
  for (
	'CREATE TEMP TABLE setting (trap integer)', 'CREATE TEMP TABLE node (trap integer)',
	'CREATE TEMP TABLE pg_database (oid oid, datname name)', 'CREATE TEMP TABLE ran (n integer)',
	q{CREATE FUNCTION attic.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO pg_temp.ran VALUES (1); RETURN 'infinity'; END $f$},
	q{CREATE FUNCTION attic.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO pg_temp.ran VALUES (1); RETURN true; END $f$},
	'CREATE OPERATOR attic.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = attic.later)',
	q{SELECT set_config('search_path', 'attic, pg_temp, pg_catalog, public', false)},
	q{SELECT set_config('lock_timeout', '0', false)}, 'SET synchronous_commit = off');
my $answer;
is( $server->value(
		"SELECT worker_id || ' ' || (fence < pg_catalog.now() + interval '75 s') FROM snowflake_registry.claim('41/5/3/14', '$epoch', 0, 'trapper', '', pg_catalog.now(), 1, false)"),
	'0 true', q{a claim uses no table, function or operator of the caller's search_path});
is($server->value('SELECT count(*) FROM pg_temp.ran'), 0, q{a claim runs no function of the caller's schemas});

#
# Fences
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
my $other = session('server');
is(outcome_of(claim($server, 'victim', 11)), 0, 'the first server gets worker id 0');
is(outcome_of(claim($server, 'thief', 21)), 1, 'a second server gets worker id 1');
is(claim($server, 'thief', 22, previous => 'thief 1 21 held', fence => '99 years')->{refusal},
	'fence', 'a fence 99 years ahead is refused');
is(claim($server, 'thief', 22, previous => 'thief 1 20 held', fence => '131 s')->{refusal},
	'fence', 'a fence that is more than two leases and two leads ahead is refused');
is(claim($server, 'thief', 22, previous => 'thief 0 21 held', fence => '99 years', wanted => 0)->{refusal},
	'taken', q{a claim of another server's worker id is refused as taken, also with a fence 99 years ahead});
for my $incarnation ('9223372036854775806', '9223372036854775807', '-9223372036854775808')
{
	my $had = $owner->value("SELECT incarnation FROM snowflake_registry.node WHERE holder = 'thief'");
	is(claim($server, 'thief', $incarnation, previous => "thief 1 $had held", fence => '1 s')->{continues}, 1, "a claim with incarnation $incarnation is a renewal");
}
is( $server->value("SELECT snowflake_registry.release(0, 1, 'thief', -9223372036854775808, '2100-01-01')"),
	't', 'a release with a mark in 2100 succeeds');
is( $owner->value("SELECT max(fence) <= clock_timestamp() + interval '65 s' FROM snowflake_registry.node"),
	't', 'the release with a mark in 2100 moves no fence ahead');
my $before = $owner->value('SELECT fence FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 1)');
claim($server, 'thief', 31, wanted => 1);
is( $server->value("SELECT snowflake_registry.release(0, 1, 'thief', 31, '1970-01-01')"),
	't', 'a release with a mark in 1970 succeeds');
is( $owner->value("SELECT fence = '$before' FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 1)"),
	't', 'the release with a mark in 1970 moves the fence no further back than where the holder began');
is($server->value("SELECT snowflake_registry.release(0, 0, 'victim', 12, now())"), 'f', q{a release of another server's lease with a guessed incarnation returns false});
is(claim($server, 'victim', 12, previous => 'victim 0 11 held')->{continues}, 1, q{another server renews its lease after the thief's claims and releases});
is(setting("grants_from = '-infinity' AND floor = '-infinity' AND era = 1"), 't', 'fences that are refused or limited begin no grace, floor or era');

#
# A thief begins eras, and claims the worker ids of other servers
#
is(outcome_of(claim($server, 'thief', 41)), 2, 'the thief gets a worker id of its own');
for my $n (1 .. 12)
{
	claim($server, 'thief', 41 + $n, previous => 'thief 2 ' . (40 + $n) . ' held', wal => 'FFFFFFFF/FFFFFFFF', fence => '1 s');
}
cmp_ok(setting('era'), '>=', 10, 'a server that lies about the WAL position begins eras');
is(setting("floor <= clock_timestamp() + 3 * interval '65 s'"), 't', 'many eras move the floor no further than three leases and leads');
is(claim($server, 'newcomer', 1)->{refusal}, 'grace', 'a newcomer waits in the grace of the eras that the thief has begun');
is(outcome_of(claim($server, 'thief', 99, previous => 'thief 0 99 held', fence => '120 s', wanted => 0)),
	'grace', 'the thief does not get a worker id that another server holds');
is(claim($server, 'victim', 13, previous => 'victim 0 12 held')->{continues}, 1, 'a holder renews its lease in the eras that the thief has begun');
$owner->rows('SELECT snowflake_registry.declare_complete()');
is(outcome_of(claim($server, 'newcomer', 1)), 3, 'declare_complete() ends the grace');

pretend_crash();
is(claim($server, 'victim', 14, previous => 'victim 0 13 held')->{continues}, 1, 'a holder comes forward in a window');
claim($server, 'thief', 61, previous => 'thief 2 53 held', wal => 'FFFFFFFF/FFFFFFFF', fence => '1 s');
is(outcome_of(claim($server, 'thief', 99, previous => 'thief 0 99 held', fence => '120 s', wanted => 0)),
	'grace', 'the thief does not get the worker id of a holder that has come forward');
is(claim($server, 'victim', 15, previous => 'victim 0 14 held')->{continues}, 1, 'the holder that has come forward renews its lease again');
my $fence = $owner->value(q{SELECT fence FROM snowflake_registry.node WHERE holder = 'newcomer'});
is(claim($server, 'thief', 99, previous => 'thief 3 99 held', fence => '120 s', wanted => 3)->{continues}, 1, 'the thief gets the worker id of a holder that has not come forward');
is($owner->value("SELECT began = '$fence' FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 3)"),
	't', q{the thief's ids begin at the fence of the holder that has not come forward});
is(outcome_of(claim($server, 'newcomer', 2, previous => 'newcomer 3 1 held', wanted => 3)), 'taken', 'a holder that has lost its worker id to the thief cannot renew its lease');
is(claim($server, 'liar', 1, previous => 'liar 4 1 held', fence => '27 h')->{refusal}, 'fence', 'a fence that no constants allow is refused in a window');
is(claim($server, 'liar', 1, previous => 'liar 4 1 held', fence => '20 h')->{continues}, 1, 'a fence that the largest constants allow is believed in a window');
is(setting("floor <= clock_timestamp() + 3 * interval '65 s'"), 't', 'a fence 20 h ahead moves the floor no further than three leases and leads');
claim($server, 'thief', 62, previous => 'thief 2 61 held', wal => 'FFFFFFFF/FFFFFFFF', fence => '1 s');
is(setting("floor <= clock_timestamp() + 3 * interval '65 s'"), 't', 'a fence 20 h ahead moves the floor of the next era no further than three leases and leads');
$owner->rows('SELECT snowflake_registry.free(0, 4)');
is($owner->value("SELECT fence <= clock_timestamp() + interval '5 s' FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 4)"),
	't', 'free() moves a fence 20 h ahead back to at most largest_lead after the clock');

# A claim of a worker id that the layout has, and that has no row in the
# registry.
make_registry_anew('60 s', '5 s', '40/0/20/3', $epoch);
$server = session('server');
claim($server, 'a', 1);
pretend_crash();
claim($server, 'liar', 1, previous => 'liar 1000000 1 held', fence => '20 h', wal => 'FFFFFFFF/FFFFFFFF');
is(setting("floor <= clock_timestamp() + 3 * interval '65 s'"), 't', 'a claim of a worker id without a row moves the floor no further than three leases and leads');

#
# Transactions that stay open
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
$other = session('server');
claim($server, 'victim', 11);
$other->rows('BEGIN');
is(outcome_of(claim($other, 'holdup', 1)), 1, 'a claim in an open transaction gets a worker id');
my $begin = time;
is(outcome_of(claim($server, 'newcomer', 1)), 2, 'another claim passes over a worker id that an open transaction has claimed');
is(claim($server, 'victim', 12, previous => 'victim 0 11 held')->{continues}, 1, 'a holder renews its lease beside an open transaction');
claim($other, 'holdup', 2, previous => 'holdup 1 1 held', wal => 'FFFFFFFF/FFFFFFFF');
is(claim($server, 'victim', 13, previous => 'victim 0 12 held')->{continues}, 1, 'a holder renews its lease beside an open transaction that begins an era');
is(outcome_of(claim($server, 'newer', 1)), 3, 'a newcomer gets a worker id beside an open transaction that begins an era');
cmp_ok(time - $begin, '<', 1.9, 'claims do not wait for an open transaction');
$other->rows('COMMIT');
is(claim($server, 'newest', 1)->{refusal}, 'grace', 'after the COMMIT the era has begun, and a newcomer waits');
$owner->rows('SELECT snowflake_registry.declare_complete()');
$other->rows('BEGIN');
claim($other, "all $_", 1) for 1 .. 8;
is(claim($server, 'newest', 1)->{refusal}, 'busy', 'if open transactions have claimed all worker ids, a claim is refused as busy');
$other->rows('ROLLBACK');
is(outcome_of(claim($server, 'newest', 1)), 4, 'after a ROLLBACK the claim gets a worker id');

# An open transaction has recorded an unclean restart, so that other claims
# cannot record the restart.  Holders come forward nevertheless.  After the
# open transaction has ended, no other server gets the worker ids of these
# holders.
make_registry_anew('6 s', '0', '41/5/3/14', $epoch);
$server = session('server');
$other = session('server');
claim($server, 'former', 1);
$server->value("SELECT snowflake_registry.release(0, 0, 'former', 1, clock_timestamp())");
pretend_crash();
$other->rows('BEGIN');
is(claim($other, 'holdup', 1)->{refusal}, 'grace', 'a claim in an open transaction detects the restart');
$answer = claim($server, 'forgotten', 2, previous => 'forgotten 0 1 held', fence => '7 s', wanted => 0);
is($answer->{continues}, 1, 'a holder whose lease was forgotten comes forward beside the open transaction');
$owner->rows(
	q{UPDATE snowflake_registry.node SET expires_at = clock_timestamp() WHERE holder = 'forgotten'});

# The window of 3 s ends after the COMMIT, and before the thief claims.
sleep 2.7;
$other->rows('COMMIT');
sleep 0.5;
is(claim($server, 'thief', 1, wanted => 0)->{refusal}, 'grace', 'after the COMMIT no other server gets the worker id of the holder that has come forward');

# An attacker begins a transaction that records an unclean restart, and rolls
# the transaction back.  The rollback must not lose the evidence of another
# server.
make_registry_anew('6 s', '0', '41/5/3/14', $epoch);
$server = session('server');
$other = session('server');
claim($server, 'holdup', 1);
pretend_crash();
$other->rows('BEGIN');
claim($other, 'holdup', 2, previous => 'holdup 0 1 held', wal => 'FFFFFFFF/FFFFFFFF');
claim($server, 'forgotten', 2, previous => 'forgotten 1 1 held', fence => '6 s', wanted => 1);
$other->rows('ROLLBACK');
claim($server, 'anybody', 1, wanted => 7);
is(setting("grants_from > clock_timestamp() + interval '3 s'"), 't', 'the evidence of a holder begins a grace although the transaction that recorded the restart was rolled back');

# After a failover, two holders whose last renewals the registry has forgotten
# come forward at the same moment.  The second one begins no second era: in a
# second era a lease that was released in the first one would not be granted.
make_registry_anew('6 s', '0', '41/5/3/14', $epoch);
$server = session('server');
$other = session('server');
claim($server, $_, 1) for 'first', 'second', 'leaver';
$owner->rows(q{UPDATE snowflake_registry.setting SET history = 'another'});
claim($server, 'leaver', 2, previous => 'leaver 2 1 held');
is($server->value("SELECT snowflake_registry.release(0, 2, 'leaver', 2, now())"), 't', 'a holder comes forward and releases its lease');
my $era = setting('era');
$other->rows('BEGIN');
claim($other, 'first', 6, previous => 'first 0 5 held', fence => '7 s');
is(claim($server, 'second', 6, previous => 'second 1 5 held', fence => '8 s')->{continues}, 1, 'two other holders come forward at the same moment');
$other->rows('COMMIT');
is($owner->value('SELECT count(*) FROM snowflake_registry.evidence'), 1, 'the second holder leaves evidence, because the first one holds the lock');
is(outcome_of(claim($server, 'leaver', 3, previous => 'leaver 2 2')), 2, 'the leaver gets its released worker id again at once');
is(setting('era'), $era, 'the evidence begins no second era');
is(setting("floor >= clock_timestamp() + interval '13 s'"), 't', 'the floor is above the fences of both holders');

#
# Refusals
#
make_registry_anew('60 s', '5 s', '41/5/1/16', $epoch);
$server = session('server');
my %sentence;
for my $case (
	[ 'taken' => 'c', 1, wanted => 0 ], [ 'all_taken' => 'c', 1 ],
	[ 'late' => 'b', 2, previous => 'b 1 1 held' ], [ 'grace' => 'c', 1 ])
{
	my ($code, @claim) = @$case;

	if ($code eq 'taken')
	{
		claim($server, $_, 1, name => "name of $_") for 'a', 'b';
	}
	$server->rows("SELECT snowflake_registry.release(0, 1, 'b', 1, now())") if $code eq 'late';
	$owner->rows('SELECT snowflake_registry.declare_restored()') if $code eq 'grace';
	my $answer = claim($server, @claim);
	is($answer->{refusal}, $code, "a claim is refused as $code");
	like($answer->{detail}, qr/^[A-Zw].{20,300}\.$/, "refusal $code: the detail is a sentence");
	$sentence{$code} = $answer->{detail};
}
like($sentence{taken}, qr/^worker_id 0 of datacenter_id 0 is leased by "name of a".* until \d{4}-/, 'refusal taken: the detail names the holder and the end of the lease');
like($server->value("SELECT refusal || ': ' || detail FROM snowflake_registry.claim('41/5/5/12', '2010-11-04 01:42:54.657+00', 0, 'x', '', now(), 1, false)"),
	qr{^layout: The server's layout "41/5/5/12" and epoch 2010.* are not the registry's, which are "41/5/1/16" and 2020}, 'refusal layout: the detail names both layouts and epochs');
$owner->rows('DELETE FROM snowflake_registry.setting');
is(claim($server, 'c', 1)->{refusal}, 'not_configured', 'a claim is refused as not_configured before configure()');

#
# Changes of the constants, and the length of a grace after a change
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
sub grace_is
{
	my ($seconds, $what) = @_;

	$owner->rows('BEGIN; SELECT snowflake_registry.declare_restored()');
	my $is = setting('round(extract(epoch FROM grants_from - clock_timestamp()))');
	$owner->rows('ROLLBACK');
	cmp_ok(abs $is - $seconds, '<=', 2, "the grace is $seconds s, because $what") or diag $is;
	return;
}
grace_is(65, 'a lease lasts 60 s and the lead is 5 s');
$owner->rows("SELECT snowflake_registry.configure(lease_duration => '120 s')");
cmp_ok(abs claim($server, 'a', 1)->{fence} - 65, '<', 3, 'a raise has no effect on the next grant');
grace_is(125, 'leases of the raised duration may exist');
is($owner->state_of("SELECT snowflake_registry.configure(lease_duration => '130 s')"), 55006, 'a second raise is refused until the first one has taken effect');
$owner->rows("UPDATE snowflake_registry.setting SET former_until = clock_timestamp()");
cmp_ok(abs claim($server, 'a', 2, previous => 'a 0 1 held')->{fence} - 125, '<', 3, 'the raise takes effect when the leases of the former constants are over');
$owner->rows("SELECT snowflake_registry.configure(lease_duration => '30 s', largest_lead => '1 s')");
cmp_ok(abs claim($server, 'b', 1)->{fence} - 31, '<', 3, 'a shorter duration takes effect at once');
grace_is(125, 'leases of the former, longer duration may exist');
$owner->rows("UPDATE snowflake_registry.setting SET former_until = clock_timestamp()");
grace_is(31, 'the leases of the longer duration are over');

# free() during a grace and outside of it
is(claim($server, 'd', 1, wanted => 1)->{refusal}, 'taken', 'a worker id that is held is refused');
$owner->rows('SELECT snowflake_registry.free(0, 1)');
$answer = claim($server, 'd', 1, wanted => 1);
is(outcome_of($answer), 1, 'free() lets another server have the worker id');
cmp_ok($answer->{begins}, '<=', 1, 'after free() ids begin at most largest_lead after the clock');
$owner->rows('SELECT snowflake_registry.declare_restored()');
$owner->rows('SELECT snowflake_registry.free(0, 1)');
is(claim($server, 'e', 1, wanted => 1)->{refusal}, 'grace', 'a worker id that is freed in a grace is not granted before the end of the grace');

#
# Claims that are repeated, and claims that arrive late
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
my $first = claim($server, 'a', 1);
my $again = claim($server, 'a', 1);
is("$again->{worker_id} $again->{begins}", "$first->{worker_id} $first->{begins}", 'a repeated claim gets the same answer');
is(claim($server, 'a', 2, previous => 'a 0 1 held')->{continues}, 1, 'a renewal continues the lease');
is(claim($server, 'a', 2, previous => 'a 0 1 held')->{continues}, 1, 'the repeated renewal continues the lease');
is(claim($server, 'a', 2, previous => 'a 0 2 held')->{continues}, 1, 'a renewal with the incarnation that is stored already continues the lease');
is(outcome_of(claim($server, 'a', 9, previous => 'a 0 7 held', wanted => 0)), 'taken', 'a claim with an unknown incarnation does not continue the lease');
my $late = claim($server, 'a', 1);
is(outcome_of($late), 1, 'a late copy of the first claim does not get the worker id of the holder');
is(claim($server, 'a', 3, previous => 'a 0 2 held', wanted => 0)->{continues}, 1, 'the holder renews its lease after the late copy');
# If no other worker id is free, a late copy of a claim gets the holder's
# worker id, and the holder loses its lease.
claim($server, $_, 1) for 'b' .. 'g';
my $mine = $owner->value(q{SELECT fence FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 0)});
is(outcome_of(claim($server, 'a', 2)), 0, 'a late copy gets the worker id if all others are taken');
is($owner->value("SELECT began = '$mine' FROM snowflake_registry.node WHERE (datacenter_id, worker_id) = (0, 0)"), 't', q{ids of the late copy begin at the holder's fence});
is(outcome_of(claim($server, 'a', 4, previous => 'a 0 3 held', wanted => 0)), 'taken', 'a holder that has lost its worker id to a late copy cannot renew its lease');

#
# Restarts
#
make_registry_anew('6 s', '1 s', '41/5/3/14', $epoch);
$server = session('server');
claim($server, 'holder', 1);
$_->{psql}->quit for $server, $other, $owner;
$node->restart;
$owner = session();
$server = session('server');
is(outcome_of(claim($server, 'newcomer', 1)), 1, 'after a clean restart a newcomer gets a worker id at once');
is(setting('era'), 1, 'a clean restart begins no era');
$_->{psql}->quit for $server, $owner;
kill_hard($node);
$node->start;
$owner = session();
$server = session('server');
is(claim($server, 'newer', 1)->{refusal}, 'grace', 'after kill -9 a newcomer waits');
is(claim($server, 'holder', 2, previous => 'holder 0 1 held')->{continues}, 1, 'after kill -9 a holder renews its lease');
is(setting("grants_from <= clock_timestamp() + interval '3 s'"), 't', 'after kill -9 newcomers wait for half a lease at most');
$owner->rows(q{SELECT pg_sleep(greatest(0, extract(epoch FROM grants_from - clock_timestamp()))) FROM snowflake_registry.setting});
like(outcome_of(claim($server, 'newer', 1)), qr/^[0-7]$/, 'a newcomer gets a worker id when the wait after kill -9 is over');
is(setting("floor = '-infinity'"), 't', 'a restart that has forgotten nothing sets no floor');

#
# A dump
#
make_registry_anew('60 s', '5 s', '41/5/3/14', $epoch);
$server = session('server');
claim($server, 'holder', 1);
claim($server, 'leaver', 1);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump of a registry');
claim($server, 'holder', 2, previous => 'holder 0 1 held');
$server->value("SELECT snowflake_registry.release(0, 1, 'leaver', 1, now())");
claim($server, 'forgotten', 1, wanted => 1);

# Move the fence of a lease that the dump does not have beyond the fence of a
# new lease, as if the registry's clock had been set back since the grant.
$owner->rows(q{UPDATE snowflake_registry.node SET fence = fence + interval '55 s', granted_fence = granted_fence + interval '55 s' WHERE holder = 'forgotten'});
my ($held, $forgotten) = map { $owner->value("SELECT fence FROM snowflake_registry.node WHERE holder = '$_'") } 'holder', 'forgotten';
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], 'psql restores the dump');

# The output of a statement in the restored registry, or its error.
sub restored
{
	my ($sql, @options) = @_;
	my (undef, $out, $error) = $node->psql('restored', $sql, @options);
	return $error eq '' ? $out : $error;
}
my @as_server = (extra_params => [ '-U', 'server' ]);
is(restored('SELECT count(*) FROM snowflake_registry.lease'), 2, 'the restored registry has the leases of the dump');
like(restored(claim_sql('newcomer', 1), @as_server), qr/\|grace\|/, 'the restored registry answers a newcomer with a grace');
is(restored('SELECT era FROM snowflake_registry.setting'), 2, 'the restored registry has begun an era');

# The SQL of a claim with a fence that is a given instant, or slightly later:
# ask() adds the interval to a later clock.
sub with_fence
{
	my ($sql, $fence) = @_;
	my $interval = restored("SELECT timestamptz '$fence' - clock_timestamp()");
	$sql =~ s/'FENCE'/interval '$interval'/;
	return $sql;
}
like(restored(with_fence(claim_sql('forgotten', 2, previous => 'forgotten 1 1 held', fence => 'FENCE'), $forgotten), @as_server),
	qr/^1\|1\|/, 'a holder that the dump does not have comes forward');
is(restored("SELECT fence >= '$forgotten' FROM snowflake_registry.node WHERE holder = 'forgotten'"), 't', 'the restored registry takes over the fence of that holder');
like(restored(with_fence(claim_sql('holder', 3, previous => 'holder 0 2 held', fence => 'FENCE'), $held), @as_server),
	qr/^0\|1\|/, 'a holder whose last renewal the dump does not have comes forward');
like(restored(claim_sql('leaver', 2, previous => 'leaver 1 1'), @as_server), qr/\|grace\|/, 'a server that has released its lease does not come forward');
is(restored('SELECT era FROM snowflake_registry.setting'), 2, 'holders that come forward begin no further era');
$node->safe_psql('restored', q{UPDATE snowflake_registry.setting SET grants_from = '-infinity', window_until = '-infinity'});
$answer = restored(claim_sql('newcomer', 1), @as_server);
is(restored("SELECT began >= timestamptz '$forgotten' + interval '65 s' FROM snowflake_registry.node WHERE holder = 'newcomer'"), 't',
	'after the grace ids of a newcomer begin beyond all fences that may have been forgotten') or diag $answer;
$node->safe_psql('postgres', 'DROP DATABASE restored');

#
# A role that owns only a database makes a registry there by running the script
# of the extension in psql
#
my $script = $node->safe_psql('postgres', q{SELECT setting || '/extension/snowflake_registry--1.0.sql' FROM pg_config WHERE name = 'SHAREDIR'});
my @as_dba = (extra_params => [ '-U', 'dba' ]);
$node->safe_psql('postgres', 'CREATE DATABASE managed OWNER dba');
for my $round (1, 2)
{
	$node->command_ok([ 'psql', '-Xq', '-U', 'dba', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('managed'), '-f', $script ],
		"psql runs the script of the extension, round $round");
	$node->safe_psql('managed', "$asking SELECT snowflake_registry.configure(), snowflake_registry.allow('server')", @as_dba);
	is((split /\|/, $node->safe_psql('managed', claim_sql('a', 1), @as_server))[0], 0, 'the registry of this database grants a worker id');
	like(($node->psql('managed', 'SELECT * FROM snowflake_registry.node', @as_server))[2],
		qr/permission denied for table node/, 'a server may not read the tables of this registry');
	is( $node->safe_psql('managed', q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace}),
		$owner->value(q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace}),
		'the registry has the same functions as a registry that CREATE EXTENSION makes');
	$node->safe_psql('managed', 'SET client_min_messages = warning; DROP SCHEMA snowflake_registry CASCADE; DROP FUNCTION ask', @as_dba);
}
$node->safe_psql('managed', 'CREATE EXTENSION snowflake_registry', @as_dba);
is( $node->safe_psql('managed', q{SELECT DISTINCT proowner::regrole FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace}),
	'dba', q{the owner of a database may create the extension});
$node->safe_psql('managed', 'DROP EXTENSION snowflake_registry', @as_dba);
$node->safe_psql('managed', 'GRANT CREATE ON DATABASE managed TO outsider; SET ROLE outsider; CREATE SCHEMA snowflake_registry; GRANT ALL ON SCHEMA snowflake_registry TO PUBLIC');
my $error;
IPC::Run::run([ 'psql', '-Xq', '-U', 'dba', '-d', $node->connstr('managed'), '-f', $script ], '>', \my $ignored, '2>', \$error);
like($error, qr/schema "snowflake_registry" already exists/, q{the script fails if another role has made the schema already});
is( $node->safe_psql('managed', q{SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'snowflake_registry'::regnamespace}),
	0, 'the script makes nothing in the schema of another role');

#
# Nothing is granted twice
#
# Honest servers record the time ranges of the ids that they issue: one row of
# "issued" is a stretch.  Liars have the rights of a server, and send wrong
# claims.  Windows and eras begin at any time.
make_registry_anew('1 s', '0.1 s', '41/5/2/15', $epoch);
$owner->rows(q{SELECT setseed(0.31)});
$owner->rows(q{CREATE TABLE issued (worker_id integer, grant_no integer, since timestamptz, until timestamptz)});
$owner->rows(<<'SQL' =~ s/;\n\z//r);
CREATE FUNCTION play(duration interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    server record;
    a record;
    asked timestamptz;
    ends_at timestamptz := clock_timestamp() + duration;
    grants integer := 0;
    calls integer := 0;
    stretches integer := 0;
    is_held boolean;
    lost boolean;
BEGIN
    CREATE TEMP TABLE honest AS
    SELECT 'honest ' || n AS holder, NULL::integer AS worker_id, NULL::bigint AS incarnation, NULL::timestamptz AS fence,
           timestamptz '-infinity' AS ends_at, timestamptz '-infinity' AS mark, 0 AS grant_no
      FROM generate_series(1, 7) AS n;
    WHILE stretches < 100 AND clock_timestamp() < ends_at LOOP
        PERFORM pg_sleep(0.003 * random());
        calls := calls + 1;
        IF random() < 0.003 THEN    -- a restart that is not clean
            UPDATE snowflake_registry.setting SET instance = '2020-01-01';
        END IF;
        IF random() < 0.3 THEN      -- a liar
            SELECT * INTO a FROM snowflake_registry.node WHERE datacenter_id = 0 ORDER BY random() LIMIT 1;
            BEGIN
                PERFORM snowflake_registry.claim('41/5/2/15', '2020-01-01 00:00+00', 0, 'liar ' || (random() * 3)::integer, '', clock_timestamp(), (random() * 3)::bigint,
                    random() < 0.5, CASE WHEN random() < 0.5 THEN a.worker_id END, 'liar ' || (random() * 3)::integer, a.worker_id,
                    (random() * 3)::bigint, clock_timestamp() + random() * interval '3 s',
                    CASE WHEN random() < 0.01 THEN 'FFFFFFFF/FFFFFFFF'::pg_lsn END);
                PERFORM snowflake_registry.release(0, a.worker_id, 'liar ' || (random() * 3)::integer, (random() * 3)::bigint, clock_timestamp() - random() * interval '5 s');
            END;
            CONTINUE;
        END IF;
        SELECT * INTO server FROM honest ORDER BY random() LIMIT 1;
        -- record the ids that the server has issued since its last claim
        is_held := server.ends_at > clock_timestamp();
        IF server.worker_id IS NOT NULL AND least(server.ends_at, server.fence, clock_timestamp()) > server.mark THEN
            INSERT INTO issued VALUES (server.worker_id, server.grant_no, server.mark, least(server.ends_at, server.fence, clock_timestamp()));
            server.mark := least(server.ends_at, server.fence, clock_timestamp());
            stretches := stretches + 1;
        END IF;
        asked := clock_timestamp();
        lost := random() < 0.1;
        IF is_held AND random() < 0.15 THEN
            PERFORM snowflake_registry.release(0, server.worker_id, server.holder, server.incarnation, server.mark);
            server.ends_at := '-infinity';
        ELSE
            SELECT * INTO a FROM snowflake_registry.claim('41/5/2/15', '2020-01-01 00:00+00', 0, server.holder, '', asked, (random() * 1e15)::bigint,
                is_held, NULL, CASE WHEN server.worker_id IS NOT NULL THEN server.holder END, server.worker_id, server.incarnation, server.fence, NULL);
            IF a.worker_id IS NOT NULL AND NOT lost THEN
                grants := grants + 1;
                SELECT n.incarnation INTO server.incarnation FROM snowflake_registry.node AS n WHERE (n.datacenter_id, n.worker_id) = (0, a.worker_id);
                IF NOT (is_held AND a.continues AND a.worker_id = server.worker_id) THEN
                    server.grant_no := grants;
                    server.mark := greatest(clock_timestamp(), a.begins_at, server.mark);
                END IF;
                server.worker_id := a.worker_id;
                server.fence := a.fence;
                server.ends_at := asked + a.duration_us * interval '0.9 us';
            ELSIF is_held AND NOT lost AND a.refusal IN ('taken', 'all_taken') THEN
                server.ends_at := '-infinity';
            END IF;
        END IF;
        UPDATE honest SET worker_id = server.worker_id, incarnation = server.incarnation, fence = server.fence,
               ends_at = server.ends_at, mark = server.mark, grant_no = server.grant_no
         WHERE holder = server.holder;
    END LOOP;
    RETURN format('%s calls, %s grants, %s stretches of ids', calls, grants, stretches);
END $$;
SQL
my $played = $owner->value(q{SELECT play('40 s')});
note $played;
cmp_ok(($played =~ /(\d+) stretches/)[0], '>=', 20, 'honest servers issue ids beside servers that lie');
is( $owner->value(q{SELECT count(*) FROM issued AS a JOIN issued AS b ON a.worker_id = b.worker_id AND a.ctid < b.ctid AND a.since < b.until AND b.since < a.until}),
	0, 'no two servers issue ids of one worker id for the same instant');

#
# Scale
#
make_registry_anew('10 min', '10 s', '41/0/14/8', $epoch);
$owner->rows(q{UPDATE snowflake_registry.node SET holder = 'held ' || worker_id, name = '', incarnation = 1, expires_at = clock_timestamp() + interval '5 min',
	fence = clock_timestamp() + interval '5 min', granted_fence = clock_timestamp() + interval '5 min', began = now(), claimed_at = now(), seen_at = now(), era = 1
	WHERE worker_id < 10000});
$owner->rows('VACUUM ANALYZE snowflake_registry.node');
$server = session('server');
$server->rows(<<'SQL' =~ s/\n\z//r);
DO $$
DECLARE
    began timestamptz;
BEGIN
    CREATE TEMP TABLE took (ms float8);
    FOR n IN 1 .. 200 LOOP
        began := clock_timestamp();
        PERFORM snowflake_registry.claim('41/0/14/8', '2020-01-01 00:00+00', 0, 'new ' || n, '', clock_timestamp(), n, false);
        INSERT INTO took VALUES (extract(epoch FROM clock_timestamp() - began) * 1000);
    END LOOP;
END $$
SQL
my $median = $server->value('SELECT round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 2) FROM took');
note "a claim beside 10,000 leases: $median ms";
cmp_ok($median, '<', 20, 'a claim beside 10,000 leases takes less than 20 ms');
is($owner->value(q{SELECT count(DISTINCT worker_id) FROM snowflake_registry.lease WHERE holder LIKE 'new %'}), 200, '200 claims beside 10,000 leases get 200 different worker ids');

my $bench = PostgreSQL::Test::Utils::tempdir() . '/claim.sql';
append_to_file($bench, <<'SQL');
\set n random(1, 9000000000000000000)
SELECT worker_id FROM snowflake_registry.claim('41/0/14/8', '2020-01-01 00:00+00', 0, 'at once ' || :n, '', clock_timestamp(), :n, false);
SQL
$begin = time;
$node->command_ok(
	[ 'pgbench', '-n', '-c', 100, '-j', 2, '-t', 10, '-U', 'server', '-f', $bench, $node->connstr('postgres') ],
	'pgbench makes the claims of 1,000 servers');
my $took = time - $begin;
note sprintf '1,000 servers had their worker ids after %.1f s', $took;
cmp_ok($took, '<', 10, '1,000 servers have their worker ids within 10 s');
is($owner->value(q{SELECT count(*) || ' ' || count(DISTINCT worker_id) FROM snowflake_registry.lease WHERE holder LIKE 'at once %' AND state = 'held'}),
	'1000 1000', '1,000 servers have 1,000 different worker ids');

$_->{psql}->quit for $server, $owner;
$node->stop;
done_testing();
