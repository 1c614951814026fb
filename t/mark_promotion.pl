# What a promotion changes: a standby issues no ids.  After its promotion its ids
# are larger than those of the old primary; with another worker id it issues ids
# at once, whatever those are, and larger ids if the new clock is behind by
# clock_tolerance at most.  The log says at a start who the server is, and at
# its first id whether another server has issued ids of its node.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;
use Time::HiRes qw(usleep);

my $issue = 'SELECT snowflake_nextval()';
my $elsewhere = qr/snowflake ids of node \(0,7\) were issued elsewhere before/;

# Has a server issue two ids.  Tests how often the server has then logged, since
# an offset of its log, that ids of its node were issued elsewhere.  Returns the
# log.
sub logs_elsewhere
{
	my ($node, $times, $what, $offset) = @_;

	value_of($node, $issue) for 1 .. 2;
	my $log = logged($node, $offset);
	is(scalar(() = $log =~ /$elsewhere/g), $times,
		"$what: ids issued elsewhere are logged $times times");
	return $log;
}

# Stops and starts a server, with these parameters in case.conf.
sub restart_with
{
	my ($node, @settings) = @_;
	my $offset = -s $node->logfile;

	configure($node, @settings);
	$node->stop;
	start_server($node);
	return $offset;
}

# ----- one worker id -----

my $primary = new_server('primary', "include 'case.conf'",
	'snowflake.clock_tolerance = 5s', 'restart_after_crash = on');
configure($primary);
start_server($primary);
my $log = logs_elsewhere($primary, 0, 'a new server');
like($log,
	qr{LOG:  this server is snowflake node \(0,7\)\n.*DETAIL:  The worker id comes from "snowflake.worker_id_source" = "config", and ids are of layout "41/5/5/12" with epoch "2010-11-04 01:42:54.657\+00"\.\n},
	'the log has the node, its source, the layout and the epoch');
logs_elsewhere($primary, 0, 'a restart', restart_with($primary));
my $offset = -s $primary->logfile;
kill_hard($primary);
start_server($primary);
logs_elsewhere($primary, 0, 'a crash', $offset);
my $newest = insert_batch($primary, 1000)->{newest};

my $standby = standby_of($primary, 'standby');
for my $call ('snowflake_nextval()', 'snowflake_nextvals(1)')
{
	my ($state, $message, $hint) = sqlstate_of($standby, "SELECT $call");

	is($state, '25006', "$call on a standby is an error");
	like($message, qr/during recovery/, "$call on a standby: the message names the recovery");
	like($hint, qr/primary/, "$call on a standby: the hint names the primary");
}
is(value_of($standby, 'SELECT count(*), bool_and(snowflake_worker_id(id) = 7) FROM orders'),
	'1000|t', 'a standby decodes replicated ids');

my $session = SnowflakeSession->new($standby);
is($session->state_of($issue), '25006', 'a session on the standby is refused');
unlike(logged($standby), $elsewhere, 'a standby logs nothing before its promotion');
wait_for_standby($primary, $standby);
$primary->stop('immediate');
$standby->promote;
cmp_ok($session->value($issue), '>', $newest,
	'a session that the standby has refused gets an id after the promotion, larger than the replicated ids');
$session->quit;
$log = logs_elsewhere($standby, 1, 'a promotion');
my ($old_place, $new_place) = map { substr $_->data_dir, -19 } $primary, $standby;
like($log, qr/issued by the server "[^"]*\Q$old_place\E"; this server is "[^"]*\Q$new_place\E"/,
	'the log line has the locations of both servers');
logs_elsewhere($standby, 0, 'a restart after the promotion', restart_with($standby));
$standby->stop;
my $copy = copy_of($standby, 'copy');
$offset = -s $copy->logfile // 0;
start_server($copy);
logs_elsewhere($copy, 1, 'a copied data directory', $offset);
end_servers($primary, $copy);

# The page names the server that logged the mark last: its holder, which changes
# when the machine boots, and its location, which has the host's name.
my $page = slurp_file(mark_file($standby));
my %fields = (holder => [ 192, 'Q', 1 ], location => [ 200, 'Z48', 'other:/data' ]);
for my $case (
	[ 'a reboot', 0, 'holder' ],
	[ "a new name of the host", 0, 'location' ],
	[ 'another holder at another location', 1, 'holder', 'location' ])
{
	my ($what, $times, @changed) = @$case;

	$offset = -s $standby->logfile;
	write_page($standby,
		seal_page(with_field($page, map { @{ $fields{$_} } } @changed)));
	start_server($standby);
	unlike(logged($standby, $offset), $elsewhere, "$what: nothing is logged before the first id");
	logs_elsewhere($standby, $times, $what, $offset);
	$standby->stop;
}

# ----- another worker id -----

# The primary issues ids an hour ahead of a right clock.
$primary = $standby;
start_server($primary, 3600);
my $batch = insert_batch($primary);
set_clock($primary, 0);
my ($state, $message, $hint) = sqlstate_of($primary, $issue);
is($state, '55000', 'a primary with ids of an hour ahead refuses ids');
like($message, qr/behind the last snowflake id/, 'a primary with ids of an hour ahead: the message says that the clock is behind');
like($hint, qr/"snowflake.worker_id" that no server has used/,
	'a primary with ids of an hour ahead: the hint names another worker id');
insert_other_row($primary);
$standby = standby_of($primary, 'other');
restart_with($standby, 'snowflake.worker_id = 8');
wait_for_standby($primary, $standby);
$primary->stop;
$standby->promote;
my $id = first_id_soon($standby, 'a standby with a worker id of its own, promoted');
is(worker_id_of($id), 8, 'the promoted standby issues ids of its own worker id');
cmp_ok($id, '<', $batch->{newest}, 'ids of the new worker id are not an hour ahead');
unlike(logged($standby), qr/issued elsewhere/, 'a promoted standby with a worker id of its own does not log ids issued elsewhere');
restart_with($standby, 'snowflake.worker_id = 7');
is((sqlstate_of($standby, $issue))[0], '55000', "with the old primary's worker id ids are refused");
restart_with($standby, 'snowflake.worker_id = 9');
is(worker_id_of(first_id_soon($standby, 'a worker id never used before')),
	9, 'the worker id never used before is in the id');

# The mark an hour ahead does not hide the mark of the ids before a failover.
$id = insert_batch($standby, 1)->{newest};
set_clock($standby, -4);
restart_with($standby, 'snowflake.worker_id = 10');
cmp_ok(scalar first_id($standby), '>', $id, 'ids increase over a failover to another worker id, 4 s behind, beside a mark of an hour ahead');
set_clock($standby, 0);
restart_with($standby, 'snowflake.worker_id = 7');
is_unique_after($standby, $batch, "an hour later, with the old primary's worker id");
end_servers($primary, $standby);

# ----- a clock that is behind by less than clock_tolerance -----

# The mark is ahead of the last id by its headroom, by up to two ticks, and by the
# lead of the ids.  A start with another worker id goes on after the mark, although
# the mark is further ahead of the new clock than clock_tolerance; a start with the
# same worker id waits and is not refused.
for my $case (
	[ 'ticks of 10 s', 10, 0.5, "snowflake.layout = '30/10/10/10\@10s'" ],
	[ 'ticks of 10 s, 4.9 s behind', 10, 4.9, "snowflake.layout = '30/10/10/10\@10s'" ],
	[ 'ticks of 1 s', 1, 4.9, "snowflake.layout = '30/10/10/13\@1s'" ],
	[ 'ids that lead', 0.001, 4, "snowflake.layout = '41/5/5/3'", 'snowflake.clock_policy = advance' ],
	[ 'ticks of 1 ms', 0.001, 4.9 ],
	[ 'ticks of 10 s, no tolerance', 10, 0, "snowflake.layout = '30/10/10/10\@10s'", 'snowflake.clock_tolerance = 0' ],
	[ 'ticks of 1 s, no tolerance', 1, 0, "snowflake.layout = '30/10/10/13\@1s'", 'snowflake.clock_tolerance = 0' ])
{
	my ($what, $tick_s, $behind_s, @settings) = @$case;
	my $server = new_server('behind_' . $what =~ tr/a-z0-9/_/cr, 'snowflake.clock_tolerance = 5s', @settings, "include 'case.conf'");
	my $offset_s = 0;

	# Sets the clock to the beginning of a later tick.
	my $to_next_tick = sub {
		my $epoch = 1_288_834_974.657;
		my $now = test_time() + $offset_s - $epoch;
		$offset_s += $tick_s * (4 + int($now / $tick_s)) + $tick_s / 100 - $now;
		set_clock($server, $offset_s);
	};
	# Takes ids, the last of which a committed row holds.
	my $take = sub {
		my $count = $what eq 'ids that lead' ? 36_000 : 1;
		return insert_batch($server, $count)->{newest};
	};
	# Asks for an id in a session of its own, and waits until the call waits or ends.
	my $waits;
	my $ask = sub {
		my $session = SnowflakeSession->new($server);

		$waits = sub {
			wait_for(sub { value_of($server, "SELECT count(*) FROM pg_stat_activity WHERE pid = $session->{pid} AND (state = 'idle' OR wait_event_type = 'Extension')") eq '1' })
			  or die "$what: the call neither waits nor ends\n";
		};
		$session->ask($issue);
		$waits->();
		return $session;
	};
	# The call may wait for the mark, and then for the tick after.
	my $answer = sub {
		my ($session) = @_;

		for (1 .. 3)
		{
			$waits->();
			set_clock($server, $offset_s += 20);
			usleep(100_000);
		}
		my $outcome = $session->outcome;
		$session->quit;
		return $outcome;
	};

	# A crash while the first call waits for its tick.
	configure($server, 'snowflake.worker_id = 8');
	start_server($server);
	$to_next_tick->();
	my $first = $ask->();
	value_of($server, "SELECT pg_cancel_backend($first->{pid})");
	$first->outcome;
	$first->quit;
	my $horizon = value_of($server, 'SELECT snowflake_horizon()');
	$first = $ask->();
	$server->stop('immediate');
	$first->{psql}{run}->kill_kill;
	configure($server, 'snowflake.worker_id = 6');
	start_server($server);
	cmp_ok(value_of($server, 'SELECT snowflake_horizon()'), '>=', $horizon, "$what: the horizon does not go back under another worker id, before the first id");
	$server->stop('immediate');
	configure($server, 'snowflake.worker_id = 8');
	set_clock($server, $offset_s -= $behind_s);
	start_server($server);
	my $outcome = $answer->($ask->());
	is("$outcome->{state} $outcome->{message}", ' ', "$what: the first call after a crash is not refused");
	is(value_of($server, 'SELECT clock_regressions FROM snowflake_stat()'), 0, "$what: no step back is counted")
	  if $behind_s == 0;
	$to_next_tick->();
	my $last = $take->();

	# Another worker id, whose ids of the same tick would be smaller.
	$server->stop('immediate');
	configure($server, 'snowflake.worker_id = 7');
	set_clock($server, $offset_s -= $behind_s);
	start_server($server);
	cmp_ok(value_of($server, 'SELECT snowflake_horizon()'), '>', $last, "$what: another worker id begins after the last id");
	$outcome = $answer->($ask->());
	cmp_ok($outcome->{rows}[0] // 0, '>', $last, "$what: the ids of another worker id are larger") or diag($outcome->{text});
	end_servers($server);
}

# ----- a server that issues no ids -----

my $warning = qr/WARNING:  parameter "snowflake.worker_id" is not set, so this server issues no snowflake ids/;

my $without = new_server('without_id', 'snowflake.worker_id = -1');
start_server($without);
like(logged($without), $warning, 'a server without a worker id logs a WARNING');
my $its_standby = standby_of($without, 'its_standby');
like(logged($its_standby), $warning, 'a standby without a worker id logs a WARNING');
end_servers($its_standby, $without);

done_testing();
