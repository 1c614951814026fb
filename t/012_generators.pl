# Tables with several generators (snowflake.generators): each generator has a
# budget of ids of its own, and the ids of one table are unique and increase,
# although the number of generators, the clock and the table's OID change.
#
# With a tick of 600 s the test knows each sequence; the clock is 300 s into a
# tick.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeLongTick;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time usleep);

# 256 ids a millisecond.
use constant SMALL_TICK => "snowflake.layout = '41/5/5/8'";

my $directory = PostgreSQL::Test::Utils::tempdir();
my $node = long_tick_node();

# ----- several generators -----

# Relations of the OIDs 1 to 64, which need not exist.  Relations with the same
# generator share its sequences, so the first of them gets sequence 0.
start_afresh($node, LONG_TICK, 'snowflake.generators = 8');
my $anna = SnowflakeSession->new($node);
my $bert = SnowflakeSession->new($node);

my @shared = map { take($anna, 1, "$_\::regclass") } 1 .. 64;
is(scalar(grep { $_ == 0 } @shared), 8, '64 relations use 8 generators');
cmp_ok(scalar(uniq @shared), '<', 30, '64 relations are spread over the generators');
take($anna);
my @representatives = grep { $shared[ $_ - 1 ] == 0 } 1 .. 64;

# Finds the generator of a relation, and returns the first of the relations 1
# to 64 that has the same generator, or nothing.  If two relations have the
# same generator, an id of one takes the sequence between two ids of the other.
sub generator_of
{
	my ($relation) = @_;

	for my $representative (@representatives)
	{
		my ($before) = take($anna, 1, "$representative\::regclass");
		take($bert, 1, "$relation\::regclass");
		my ($after) = take($anna, 1, "$representative\::regclass");
		return $representative if $after == $before + 2;
	}
	return;
}
is(generator_of($_), $_, "relation $_ has the same generator in another session")
  for @representatives[ 0 .. 1 ];
my $of_no_argument = (grep {
		my ($before) = take($anna, 1, "$_\::regclass");
		take($anna, 3);
		(take($anna, 1, "$_\::regclass"))[0] == $before + 4
	  } @representatives)[0];
ok(defined $of_no_argument, 'snowflake_nextval() without an argument uses one of the 8 generators');
my ($other, $third) = grep { $_ != $of_no_argument } @representatives;
my @generators = map { generator_of($_) } 65 .. 84;
is(scalar(grep { defined } @generators), 20, 'each relation uses one of the 8 generators');
is_deeply([ map { generator_of($_) } 65 .. 84 ],
	\@generators, 'each relation keeps its generator');
is( $node->safe_psql('template1',
		'CREATE EXTENSION snowflake; SELECT count(DISTINCT snowflake_nextval(1::regclass)) FROM generate_series(1, 3)'
	),
	'3',
	'relations of another database have generators as well');
$_->quit for $anna, $bert;

# When a generator's tick is spent, only the relations that share the generator
# wait.
start_afresh($node, LONG_TICK_OF_16, 'snowflake.generators = 8');
$anna = SnowflakeSession->new($node);
$anna->rows("SET statement_timeout = 200");
is_deeply(
	[ take($anna, 16, "$other\::regclass") ],
	[ 0 .. 15 ],
	'one generator spends the tick');
is( $anna->state_of("SELECT snowflake_nextval($other\::regclass)"),
	'57014', 'a relation of the generator whose tick is spent waits');
is_deeply(
	[ take($anna, 16, "$third\::regclass"), take($anna, 16) ],
	[ 0 .. 15, 0 .. 15 ],
	'relations of other generators get ids in the same tick');
$anna->quit;

start_afresh($node, LONG_TICK, 'snowflake.generators = 1');
$anna = SnowflakeSession->new($node);
is_deeply(
	[ take($anna, 1, '1::regclass'), take($anna), take($anna, 1, '2::regclass') ],
	[ 0, 1, 2 ],
	'with one generator all relations share its sequences');
$anna->quit;

# Creates the tables that the following tests fill.
sub create_tables
{
	value_of($node,
		'DROP TABLE IF EXISTS a, b, c;'
		  . join ';',
		map { "CREATE TABLE $_ (id bigint PRIMARY KEY, client int, n int, at timestamptz DEFAULT clock_timestamp())" }
		  qw(a b c));
	return;
}

# ----- the newest tick of all generators -----

# No generator begins before the newest tick of all generators.
start_afresh($node, LONG_TICK, 'snowflake.generators = 8',
	'snowflake.clock_policy = advance', 'snowflake.clock_tolerance = 2h');
$anna = SnowflakeSession->new($node);
my $tick_of = 'SELECT snowflake_nextval(%s) >> 30';
my $start_tick = $anna->value(sprintf $tick_of, "$other\::regclass");
set_clock($node, 2 * TICK_S);
is($anna->value(sprintf $tick_of, "$other\::regclass"),
	$start_tick + 2, 'a generator is two ticks ahead');
set_clock($node, 0);
is_deeply(
	[ map { $anna->value(sprintf $tick_of, $_) } "$third\::regclass", '' ],
	[ ($start_tick + 2) x 2 ],
	'the clock steps back: other generators begin at the newest tick of all');
$anna->rows('SET statement_timeout = 0');
for my $setting ("clock_policy = 'error'", "clock_tolerance = '5s'")
{
	value_of($node, "ALTER SYSTEM SET snowflake.$setting");
}
$node->reload;
my ($fourth) = grep { $_ != $of_no_argument && $_ != $other && $_ != $third }
  @representatives;
$node->poll_query_until('postgres',
	"SELECT current_setting('snowflake.clock_policy') = 'error'");
is((sqlstate_of($node, "SELECT snowflake_nextval($fourth\::regclass)"))[0],
	'55000', 'under policy "error" a generator that has issued no id refuses ids behind the newest tick');
value_of($node, 'ALTER SYSTEM RESET ALL');
$anna->quit;

# ----- the number of generators changes -----

create_tables();
my $n = 0;
sub fill_tables
{
	my ($what) = @_;
	my $file = "$directory/fill";

	unlink $file;
	PostgreSQL::Test::Utils::append_to_file($file, join ";\n",
		map { "INSERT INTO $_ (id, client, n) SELECT snowflake_nextval('$_'), :client_id, $n * 1000000 + i FROM generate_series(1, 200) AS i" }
		  qw(a b c));
	$n++;
	my ($log) = PostgreSQL::Test::Utils::run_command(
		[
			'pgbench', '--no-vacuum', '--client=8', '--jobs=2',
			'--transactions=3', "--file=$file", $node->connstr('postgres')
		]);
	like($log, qr{processed: 24/24\n}, "$what: ids are issued");
	return;
}

sub is_in_order
{
	my ($what) = @_;

	for my $table (qw(a b c))
	{
		is( value_of($node,
				"SELECT count(*) FILTER (WHERE smallest <= before) FROM (SELECT min(id) AS smallest, lag(max(id)) OVER (ORDER BY n / 1000000) AS before FROM $table GROUP BY n / 1000000) AS o"
			),
			0,
			"$what: ids of $table increase from one start of the server to the next");
	}
	return;
}

$node->stop;
unlink mark_file($node);
set_clock($node, 0);
my $offset = 0;
start_with_case($node, SMALL_TICK, 'snowflake.generators = 8');
fill_tables('8 generators');
for my $case (
	[ 1, 'fast', 0 ],
	[ 3, 'fast', 0 ],
	[ 8, 'immediate', 0 ],
	[ 1, 'immediate', -1 ],
	[ 8, 'fast', -1 ],
	[ 3, 'immediate', -0.5 ],
	[ 1024, 'immediate', -1 ])
{
	my ($count, $mode, $step) = @$case;

	$node->stop($mode);
	$offset += $step;
	set_clock($node, $offset);
	start_with_case($node, SMALL_TICK, "snowflake.generators = $count");
	fill_tables("$count generators after stop $mode, clock stepped $step s");
}
is_in_order('changes of snowflake.generators');

# ----- a table that moves to another generator -----

# A table has another OID after a dump and restore.  The clock steps back, and
# comes back to where it was.  The table's new generator must not begin in a
# tick in which the old one has issued ids.
{
	start_afresh($node, SMALL_TICK, 'snowflake.generators = 8',
		'snowflake.clock_policy = wait', 'snowflake.clock_tolerance = 10s');
	create_tables();
	my $repeated = 0;
	for my $round (1 .. 5)
	{
		value_of($node, 'TRUNCATE a');
		value_of($node,
			"INSERT INTO a (id) SELECT snowflake_nextval($other\::regclass) FROM generate_series(1, 300)"
		);
		my $newest = value_of($node, 'SELECT max(id) FROM a');
		set_clock($node, -0.3);
		$repeated++
		  if value_of($node, "SELECT min(id) FROM (SELECT snowflake_nextval($third\::regclass) AS id FROM generate_series(1, 300)) AS i") <= $newest;
		set_clock($node, 0);
		usleep(400_000);
	}
	is($repeated, 0,
		'a table that moves to another generator gets larger ids after a step back of the clock');
}

# ----- two generators of one session -----

# A session's block belongs to one generator, also after a call for another
# generator has failed.
start_afresh($node, LONG_TICK_OF_16, 'snowflake.generators = 8',
	'snowflake.block_size = 64');
$anna = SnowflakeSession->new($node);
$bert = SnowflakeSession->new($node);
my @of_third = take($bert, 16, "$third\::regclass");
take($anna, 4, "$other\::regclass");    # in the middle of a block
$anna->rows('SET statement_timeout = 200');
is($anna->state_of("SELECT snowflake_nextval($third\::regclass)"),
	'57014', 'a call for a generator whose tick is spent waits');
is($anna->state_of("SELECT snowflake_nextval($third\::regclass)"),
	'57014', "the next call does not issue from another generator's block");
$_->quit for $anna, $bert;

start_afresh($node, LONG_TICK, 'snowflake.generators = 8',
	'snowflake.block_size = 64');
$anna = SnowflakeSession->new($node);
$bert = SnowflakeSession->new($node);
my %taken;
for (1 .. 400)
{
	my $session = ($anna, $bert)[ rand 2 ];
	my $relation = ($other, $third)[ rand 2 ];

	push @{ $taken{$relation} },
	  take($session, 1 + int rand 5, "$relation\::regclass");
}
is(scalar(uniq @{ $taken{$_} }), scalar @{ $taken{$_} },
	"two sessions with blocks of two generators: no id of generator $_ comes twice")
  for sort keys %taken;
$_->quit for $anna, $bert;

# ----- a standby, and a server without preload -----

my $primary = snowflake_node('primary', 'snowflake.generators = 8',
	'wal_level = replica', 'max_wal_senders = 2');
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION snowflake; CREATE TABLE a (id bigint)');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base');
$standby->set_standby_mode;
$standby->start;
is((sqlstate_of($standby, "SELECT snowflake_nextval('a')"))[0],
	'25006', 'no id is issued for a table on a standby');
$standby->stop;
$primary->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$primary->restart;
my ($state, undef, $hint) =
  sqlstate_of($primary, "SELECT snowflake_nextval('a')");
is($state, '55000', 'no id is issued for a table without preload');
like($hint, qr/shared_preload_libraries/, 'without preload the hint names shared_preload_libraries');
$primary->append_conf('postgresql.conf',
	"shared_preload_libraries = 'snowflake'\nsnowflake.worker_id = -1");
$primary->restart;
is((sqlstate_of($primary, "SELECT snowflake_nextval('a')"))[0],
	'F0000', 'no id is issued for a table without a worker id');
$primary->stop;

$node->stop;
done_testing();
