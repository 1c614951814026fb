# Clients that draw ids in the background, and go on after errors.  A test
# reads what a client has received since the test last read it.
package SnowflakeClient;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

our @EXPORT = qw(
  run_client
  ids_of
  new_ids
  new_errors
  wait_for_ids
  wait_for_error
  is_undisturbed
  disturbances
);

my $disturbances = 0;

# Writes statements for a client, a hundred a second.  The client does not call
# pg_sleep(), which lasts longer after the server's clock has stepped back.
my $feeder = q{
	$| = 1;
	while (print "SELECT snowflake_nextval() FROM generate_series(1, 10);\n")
	{
		select undef, undef, undef, 0.01;
	}
};

# Starts a client of a server.  The client writes its ids to FILE.out and its
# errors to FILE.err.
sub run_client
{
	my ($node, $file) = @_;
	my %client = (
		name => $node->name,
		out => "$file.out",
		err => "$file.err",
		seen => 0,
		refused => 0);

	$client{run} = IPC::Run::start(
		[ $^X, '-e', $feeder ],
		'|',
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d',
			$node->connstr('postgres') ],
		'>', $client{out}, '2>', $client{err});
	return \%client;
}

# All ids that a client has received; the last line may not be complete.
sub ids_of
{
	my ($client) = @_;
	return slurp_file($client->{out}) =~ /^(\d+)\n/gm;
}

# The ids that a client has received since they were last asked for.
sub new_ids
{
	my ($client) = @_;
	my @ids = ids_of($client);
	my @new = @ids[ $client->{seen} .. $#ids ];

	$client->{seen} = @ids;
	return @new;
}

# The SQLSTATEs that a client has received since they were last asked for.
sub new_errors
{
	my ($client) = @_;
	my @errors = slurp_file($client->{err}) =~ /ERROR:  (\w{5}):/g;
	my @new = @errors[ $client->{refused} .. $#errors ];

	$client->{refused} = @errors;
	return @new;
}

# Waits until a client has received ids that new_ids() has not returned yet.
sub wait_for_ids
{
	my ($client, $what, $seconds) = @_;
	return ok(
		wait_for(
			sub { scalar(my @ids = ids_of($client)) > $client->{seen} },
			$seconds),
		$what);
}

# Waits until a client has received an error that new_errors() has not returned
# yet.
sub wait_for_error
{
	my ($client, $what, $seconds) = @_;
	return ok(wait_for(sub { scalar(new_errors($client)) > 0 }, $seconds),
		$what);
}

# Tests that a client has received ids since the last call of new_ids(), and no
# errors since the last call of new_errors().
sub is_undisturbed
{
	my ($client, $what) = @_;
	my $count = scalar(my @ids = new_ids($client));
	my @errors = new_errors($client);
	my $is_good = $count > 0 && @errors == 0;

	$disturbances++ unless $is_good;
	return ok($is_good,
		"$what ($count ids, errors: @errors[0 .. ($#errors < 2 ? $#errors : 2)])"
	);
}

# Returns how often is_undisturbed() has failed.
sub disturbances
{
	return $disturbances;
}

1;
