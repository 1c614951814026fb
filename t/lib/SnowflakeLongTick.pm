# A server with a tick of 600 s, so that a test knows the sequence of each id
# that is issued, however slow the machine is.
package SnowflakeLongTick;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use SnowflakeServer;
use SnowflakeTest;
use Time::HiRes qw(time);

our @EXPORT = qw(
  TICK_S
  LONG_TICK
  LONG_TICK_OF_16
  long_tick_node
  start_afresh
  take
);

# LONG_TICK has a million ids in a tick, LONG_TICK_OF_16 has 16.
use constant {
	TICK_S => 600,
	LONG_TICK => "snowflake.layout = '30/5/5/20\@600s'",
	LONG_TICK_OF_16 => "snowflake.layout = '30/5/5/4\@600s'",
};

# A server, not started yet, that accepts many sessions.
sub long_tick_node
{
	my (@conf) = @_;

	return snowflake_node(
		'main',
		'max_connections = 100',
		'fsync = off',
		'autovacuum = off',
		@conf,
		"include 'case.conf'");
}

# Starts a server that has issued no id yet, with its clock right and in the
# middle of a tick.  Further lines of case.conf follow, and override the first
# ones.
sub start_afresh
{
	my ($node, @settings) = @_;

	$node->stop if defined $node->{_pid};
	unlink mark_file($node);
	set_clock($node, 0);
	configure(
		$node,
		'snowflake.block_size = 1',
		'snowflake.epoch = ' . int(1000 * (time() - TICK_S * 1.5)),
		@settings);
	start_server($node);
	$node->safe_psql('postgres',
		'SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS snowflake'
	);
	return;
}

# Takes ids by a number of calls of snowflake_nextval().  Returns the sequences
# of the ids.
sub take
{
	my ($session, $count) = @_;

	$count //= 1;
	return $session->rows(
		    'SELECT snowflake_sequence(snowflake_nextval()) '
		  . "FROM generate_series(1, $count)");
}

1;
