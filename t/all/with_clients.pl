# Drivers and object-relational mappers.  Each program of t/all/clients uses one of
# them as doc/clients.md says, and shows what goes wrong otherwise.  A program
# connects to a database of its own, with a table "orders", and prints a line for
# each check.  It is skipped if a package that it "needs" is not installed.
#
#   CLIENTS   all: a missing package is a failure, as in script/clients, which
#             installs them
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeTest;
use Test::More;

my $directory = "$FindBin::RealBin/clients";
my $jars = '/usr/share/java';
my $gopath = '/usr/share/gocode';
my $crates = '/usr/share/cargo/registry';

# How programs run, and how their packages are looked for.
my %run = (
	go => [qw(go run)],
	java => [qw(sh java.sh)],
	js => ['node'],
	php => ['php'],
	pl => ['perl'],
	py => ['python3'],
	R => ['Rscript'],
	rb => ['ruby'],
	rs => [qw(sh rust.sh)],
	sh => ['sh']);
my %look_for = (
	go => sub { ('ls', '/usr/bin/go', map { "$gopath/src/github.com/$_" } @_) },
	java => sub { ('ls', '/usr/bin/javac', map { "$jars/$_.jar" } @_) },
	js => sub { ('node', '-e', join ';', map { "require('$_')" } @_) },
	php => sub {
		('php', '-r', join '', q{extension_loaded('pdo_pgsql') || exit(1);},
			map { "require '$_';" } @_);
	},
	pl => sub { ('perl', (map { "-M$_" } @_), '-e1') },
	py => sub { ('python3', '-c', 'import ' . join ',', @_) },
	R => sub { ('Rscript', '-e', join ';', map { "library($_)" } @_) },
	rb => sub { ('ruby', (map { "-r$_" } @_), '-e1') },
	# A crate's directory has its version in its name.
	rs => sub {
		('ls', '/usr/bin/cargo', map { (glob "$crates/$_-[0-9]*")[0] // "$crates/$_" } @_);
	},
	sh => sub { (@_, '--version') });

%ENV = (
	%ENV,
	LC_ALL => 'C.UTF-8',
	PYTHONDONTWRITEBYTECODE => 1,
	GO111MODULE => 'off',
	GOPATH => $gopath);

# Runs a command, and returns its exit status and its output.
sub run_in_directory
{
	my (@command) = @_;
	my ($stdout, $stderr) = ('', '');

	my $done = eval {
		IPC::Run::run(
			\@command, '<', \undef, '>', \$stdout, '2>', \$stderr,
			init => sub { chdir $directory },
			IPC::Run::timeout(3 * $PostgreSQL::Test::Utils::timeout_default));
	};
	return ($done, $stdout, $stderr . $@);
}

# Runs a program in a new database, and makes each line of its output a check.
sub test_program
{
	my ($node, $program, $language) = @_;
	my $database = lc $program =~ s/\W/_/gr;

	$node->safe_psql('postgres',
		"CREATE DATABASE $database TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql(
		$database, q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
});
	local %ENV = (
		%ENV,
		PGHOST => '127.0.0.1',
		PGSSLMODE => 'disable',
		PGPORT => $node->port,
		PGUSER => $node->safe_psql('postgres', 'SELECT current_user'),
		PGDATABASE => $database);
	my ($done, $stdout, $stderr) = run_in_directory(@{ $run{$language} }, $program);
	my @checks = $stdout =~ /^((?:not )?ok - .*)/mg;

	ok($done && @checks, "$program runs") || diag($stdout, $stderr);
	for my $check (@checks)
	{
		ok($check !~ /^not/, "$program: " . $check =~ s/.*?ok - //r)
		  || diag($stdout);
	}
	return;
}

# pgjdbc knows no Unix sockets.  The programs that test the event trigger set
# snowflake_convert.schemas themselves.
my @conf = ("listen_addresses = '127.0.0.1'", "snowflake_convert.schemas = 'none'");
my $node = snowflake_node('node', @conf);
$node->start;

for my $file (sort grep { !/numbers/ } glob "$directory/[uU]se*")
{
	my ($program, $language) = $file =~ /(\w+\.(\w+))$/;
	my @packages = split ' ', (slurp_file($file) =~ /^\W+needs: (.*)/m)[0] // '';

	SKIP:
	{
		my ($found, undef, $stderr) = run_in_directory($look_for{$language}->(@packages));

		if (!$found && ($ENV{CLIENTS} // '') eq 'all')
		{
			fail("$program: its packages are installed");
			diag($stderr);
		}
		skip "$program: its packages are not installed", 1 if !$found;
		test_program($node, $program, $language);
	}
}

# What doc/clients.md says to write, to register the type snowflake, is what a program
# has run, line by line.
my @programs = map { slurp_file($_) } glob "$directory/[uU]se*";
for my $block (slurp_file("$FindBin::RealBin/../../doc/clients.md") =~ /^```\w+\n(.*?)^```$/gms)
{
	my ($first, @lines) = grep { /\S/ } map { s/^\s+//r } split /\n/, $block;
	ok((grep { my $program = $_; !grep { index($program, $_) < 0 } $first, @lines } @programs),
		"doc/clients.md: a program has the block $first");
}

# PostgreSQL's functions for the sequence of a column, which some ORMs call.
is($node->safe_psql('postgres', q{
CREATE EXTENSION snowflake_convert CASCADE;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval());
CREATE TABLE kept (id bigserial PRIMARY KEY);
SELECT snowflake_convert.key('kept', 'id') \gexec
INSERT INTO orders DEFAULT VALUES;
SELECT currval(pg_get_serial_sequence('orders', 'id')) IS NULL, snowflake_currval() = max(id), pg_get_serial_sequence('kept', 'id') IS NULL FROM orders;
}), 't|t|t', 'a column of snowflakes has no sequence, a converted serial neither, and snowflake_currval() is the last id');
like((sqlstate_of($node, 'INSERT INTO kept DEFAULT VALUES; SELECT lastval()'))[1], qr/is not yet defined in this session/,
	'lastval() of a converted serial is an error');
$node->stop;

# With a layout of 53 bits, JavaScript's numbers are exact.
SKIP:
{
	skip 'the packages of use_pg_numbers.js are not installed', 1
	  if !(run_in_directory($look_for{js}->('pg', 'drizzle-orm')))[0];
	my $short = snowflake_node(
		'short',
		@conf,
		"snowflake.layout = '41/0/4/8'",
		"snowflake.epoch = '2026-01-01 00:00:00+00'");
	$short->start;
	test_program($short, 'use_pg_numbers.js', 'js');
	$short->stop;
}

done_testing();
