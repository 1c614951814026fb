# Drivers and object-relational mappers: an insert brings its id back as an
# integer, without loss.  The programs are in t/lib/drivers; those whose
# packages are not installed are skipped.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

# The program, its interpreter, what the interpreter has to load, and the type
# that ids have to have.
my @drivers = (
	[ 'insert_by_psycopg2.py', [ 'python3', '-c' ], 'import psycopg2', 'int' ],
	[ 'insert_by_psycopg3.py', [ 'python3', '-c' ], 'import psycopg', 'int' ],
	[
		'insert_by_sqlalchemy.py', [ 'python3', '-c' ],
		'import sqlalchemy, psycopg2', 'int'
	],
	[ 'insert_by_django.py', [ 'python3', '-c' ], 'import django, psycopg2', 'int' ],
	[ 'insert_by_pg.rb', [ 'ruby', '-e' ], 'require "pg"', 'Integer' ],
	[
		'insert_by_active_record.rb', [ 'ruby', '-e' ],
		'require "active_record"; require "pg"', 'Integer'
	]);

my $node = snowflake_node('node');
$node->start;
for my $driver (@drivers)
{
	my ($program, $interpreter, $probe, $type) = @$driver;
	my ($stdout, $stderr) = ('', '');

	SKIP:
	{
		skip "$program: its packages are not installed", 5
		  unless eval {
			IPC::Run::run([ @$interpreter, $probe ],
				'>', \$stdout, '2>', \$stderr);
		  };
		my ($database) = $program =~ /^insert_by_(\w+)/;

		$node->safe_psql('postgres', "CREATE DATABASE $database");
		$node->safe_psql(
			$database, q{
CREATE EXTENSION snowflake;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
});
		local %ENV = (
			%ENV,
			PGHOST => $node->host,
			PGPORT => $node->port,
			PGDATABASE => $database,
			PYTHONDONTWRITEBYTECODE => 1);
		my $ran = IPC::Run::run(
			[ $interpreter->[0], "$FindBin::RealBin/lib/drivers/$program" ],
			'>', \$stdout, '2>', \$stderr,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		ok($ran, "$program runs") || diag($stderr);
		my @got = split /\n/, $stdout;
		my @stored = split /\n/,
		  $node->safe_psql(
			$database,
			'SELECT id FROM orders ORDER BY array_position(ARRAY[$$one$$, $$two$$, $$three$$], item)'
		  );

		is(scalar(@stored), 3, "$program: the program has inserted three rows");
		is_deeply(\@got, [ map { "$_ $type" } @stored ],
			"$program: the program has read the ids as $type");
		is( $node->safe_psql(
				$database,
				'SELECT count(*) FROM orders WHERE id > (1::bigint << 53) AND snowflake_worker_id(id) = 7'
			),
			'3',
			"$program: the ids are of this node, and have more than 53 bits");
		is_deeply(
			[ sort { $a <=> $b } @stored ],
			\@stored, "$program: the ids are in the order of the inserts");
	}
}
$node->stop;

done_testing();
