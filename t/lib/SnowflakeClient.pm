# Clients that draw ids in the background, and go on after errors.
package SnowflakeClient;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

our @EXPORT = qw(run_client ids_of wait_for_ids);

# Starts a client of a server.  It reads the script, which is written if it is
# not there yet, and writes ids and errors into files of this name.
sub run_client
{
	my ($node, $script, $file) = @_;
	my %client = (
		name => $node->name,
		out => "$file.out",
		err => "$file.err",
		seen => 0,
		refused => 0);

	if (!-e $script)
	{
		open my $fh, '>', "$script.$$" or die "$script.$$: $!";

		# psql sleeps: where the clock steps back, pg_sleep() would last as long
		print $fh "SELECT snowflake_nextval() FROM generate_series(1, 10);\n"
		  . "\\! sleep 0.005\n"
		  for 1 .. 40000;
		close $fh or die "$script.$$: $!";
		rename "$script.$$", $script or die "$script: $!";
	}
	$client{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-f', $script, '-d',
			$node->connstr('postgres') ],
		'<', '/dev/null', '>', $client{out}, '2>', $client{err});
	return \%client;
}

# All ids of a client so far; the last line may not be complete.
sub ids_of
{
	my ($client) = @_;
	return slurp_file($client->{out}) =~ /^(\d+)\n/gm;
}

# Waits until a client has got ids since the last time.
sub wait_for_ids
{
	my ($client, $what, $seconds) = @_;
	return ok(
		wait_for(
			sub { scalar(my @ids = ids_of($client)) > $client->{seen} },
			$seconds),
		$what);
}

1;
