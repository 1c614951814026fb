# ALTER EXTENSION UPDATE: a database that is updated from an earlier version has the
# same objects, with the same definitions, grants and comments, as a new one.
#
# pg_dump lists the members of an extension in its mode for pg_upgrade.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('node');
my @extensions = qw(snowflake snowflake_convert snowflake_partitions snowflake_registry);

# Writes the definitions of all members of the extensions, without OIDs and the
# numbers of transactions, to a file, and returns its name.
sub members
{
	my ($database) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$database";
	my ($stdout, $stderr) = run_command(
		[ 'pg_dump', '--binary-upgrade', '--schema-only', '-d', $node->connstr($database) ]);

	die "$stderr\n" if $stderr ne '';
	$stdout =~ s/^(?:.*binary_upgrade_set|\\(?:un)?restrict |SET relfrozenxid|WHERE oid = '\d).*\n//gm;
	$stdout =~ s/'\{\d+(?:,\d+)*\}'/oids/g;
	append_to_file($file, $stdout);
	return $file;
}

sub create
{
	my ($database, %versions) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, join ';',
		map { "CREATE EXTENSION $_" . ($versions{$_} ? " VERSION '$versions{$_}'" : '') } @extensions);
	return;
}

$node->start;
my @updates = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', q{
SELECT e.name, p.source
  FROM pg_available_extensions AS e, pg_extension_update_paths(e.name) AS p
 WHERE e.name LIKE 'snowflake%' AND p.target = e.default_version AND p.path IS NOT NULL});
plan skip_all => 'an earlier version to update from; there is none yet' if !@updates;

create('new');
my $new = members('new');
like(slurp_file($new), qr/ALTER EXTENSION $_ ADD FUNCTION/, "$_ has members") for @extensions;
for my $update (@updates)
{
	my ($extension, $version) = @$update;
	my $database = "${extension}_$version" =~ tr/./_/r;

	create($database, $extension => $version);
	like($node->safe_psql($database, 'SELECT snowflake_nextval()'), qr/^\d+$/,
		"$extension $version issues an id with the present library");
	$node->safe_psql($database, "ALTER EXTENSION $extension UPDATE");
	is((run_command([ 'diff', members($database), $new ]))[0],
		'', "$extension $version, updated, equals a new one");
}
$node->stop;
done_testing();
