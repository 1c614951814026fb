# Tables that the script of another extension creates keep their keys, although
# the event trigger converts new tables.  The test makes the other extension in
# a copy of the installation.
use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use File::Path qw(make_path);
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

# Makes an installation like the server's, and adds files to the directory of
# its extensions.  PostgreSQL finds all other files relative to its own
# program, so the function copies postgres and pg_ctl, and links to the rest.
# Returns the directory of the programs.
sub copy_installation
{
	my ($node, $root, %files) = @_;
	my ($programs, $shared, $libraries) =
	  map { $node->config_data($_) } qw(--bindir --sharedir --pkglibdir);

	make_path("$root$programs", "$root$shared/extension",
		dirname("$root$libraries"));
	for my $program ('postgres', 'pg_ctl')
	{
		copy("$programs/$program", "$root$programs/$program") or die $!;
		chmod 0755, "$root$programs/$program" or die $!;
	}
	symlink($libraries, "$root$libraries") or die $!;
	for my $file (glob("$shared/* $shared/extension/*"))
	{
		symlink($file, "$root$file") or die $!
		  unless -e "$root$file";
	}
	PostgreSQL::Test::Utils::append_to_file("$root$shared/extension/$_",
		$files{$_})
	  for keys %files;
	return "$root$programs";
}

my $node = snowflake_node('node');
my $programs = copy_installation(
	$node,
	PostgreSQL::Test::Utils::tempdir_short(),
	'library.control' => "default_version = '1.0'\n",
	'library--1.0.sql' => q{
CREATE TABLE book (id serial PRIMARY KEY, buyer integer REFERENCES customer);
},
	'library--1.0--1.1.sql' => q{
CREATE TABLE copy (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, book integer REFERENCES book);
ALTER TABLE copy ADD buyer integer REFERENCES customer;
});
{
	local $ENV{PATH} = "$programs:$ENV{PATH}";
	$node->start;
}
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION snowflake;
CREATE EXTENSION snowflake_convert;
SET snowflake_convert.schemas = '*';
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
CREATE TABLE customer (id serial PRIMARY KEY);
CREATE EXTENSION library;
ALTER EXTENSION library UPDATE TO '1.1';
CREATE TABLE loan (id serial PRIMARY KEY, copy integer REFERENCES copy, customer integer REFERENCES customer);
});
is( $node->safe_psql(
		'postgres', q{
SELECT attrelid::regclass, string_agg(format('%s %s', attname, atttypid::regtype), ', ' ORDER BY attnum)
  FROM pg_attribute
 WHERE attrelid IN ('customer'::regclass, 'book'::regclass, 'copy'::regclass, 'loan'::regclass) AND attnum > 0
 GROUP BY attrelid
 ORDER BY attrelid}),
	join("\n",
		'customer|id bigint',
		'book|id integer, buyer integer',
		'copy|id integer, book integer, buyer integer',
		'loan|id bigint, copy integer, customer bigint'),
	'tables of another extension keep their keys, tables of the user are converted');
is( $node->safe_psql(
		'postgres', 'INSERT INTO book DEFAULT VALUES RETURNING id'),
	'1',
	'a table of another extension has serial keys from 1 on');
$node->stop;

done_testing();
