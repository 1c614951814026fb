# COPY FROM inserts in batches, as with PostgreSQL's nextval(), because COPY's
# defaults are planned with snowflake_copy_nextval(), the STABLE twin of
# snowflake_nextval().  Each row has its own id, in the order of the file, and
# PostgreSQL's counts of function calls show that nothing else calls the twin.
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

my $node = snowflake_node('copy', "track_functions = 'all'");

# Returns a COPY of the numbers from 1 to a count into column n.
sub copy_into
{
	my ($table, $count, $where) = @_;
	return "COPY $table (n) FROM stdin " . ($where // '') . ";\n" . join('', map { "$_\n" } 1 .. $count) . "\\.\n";
}

# The last row of statements that are rolled back, or the text of their error.  The
# flush sets the session's counts of calls back to 0.
sub last_row
{
	my ($sql) = @_;
	my $outcome = outcome_of($node, "SELECT pg_stat_force_next_flush();\nBEGIN;\n$sql");

	return $outcome->{state} eq '' ? $outcome->{rows}[-1] : $outcome->{text};
}

# How often SQL calls snowflake_nextval() or snowflake_id(), and their twin:
# "nextval|twin".
sub calls_of
{
	my ($sql) = @_;
	return last_row(qq{$sql
RESET ROLE;
SELECT coalesce(sum(calls) FILTER (WHERE funcname IN ('snowflake_nextval', 'snowflake_id')), 0),
       coalesce(sum(calls) FILTER (WHERE funcname = 'snowflake_copy_nextval'), 0)
  FROM pg_stat_xact_user_functions});
}

# Whether COPY inserts in batches, "t" or "f".  A CHECK counts the rows of the
# table: in a batch it sees no row.
sub is_batched
{
	my ($table, $sql) = @_;
	return last_row(qq{ALTER TABLE $table ADD CHECK (note('$table')) NOT VALID;
$sql
SELECT max(n) = 0 FROM seen});
}

$node->start;
value_of($node, q{
CREATE EXTENSION snowflake_partitions CASCADE;
CREATE TABLE seen (n bigint);
CREATE FUNCTION note(rel regclass) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    visible bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s', rel) INTO visible;
    INSERT INTO public.seen VALUES (visible);
    RETURN true;
END
$$;
CREATE TABLE plain (id bigint DEFAULT snowflake_nextval() PRIMARY KEY, n integer);
CREATE TABLE other AS SELECT generate_series(1, 10) AS n;
CREATE TABLE days (id bigint DEFAULT snowflake_nextval(), n integer) PARTITION BY RANGE (id);
CREATE TABLE days_default PARTITION OF days DEFAULT;

-- add_column() adds two columns whose values must differ, and notes how many
-- different values each of them has
CREATE TABLE verdict (added text);
CREATE FUNCTION add_column() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    different text;
BEGIN
    CREATE TABLE public.added AS TABLE public.other;
    ALTER TABLE public.added ADD COLUMN id bigint DEFAULT public.snowflake_nextval(),
                             ADD COLUMN id2 bigint DEFAULT public.snowflake_nextval();
    SELECT count(DISTINCT id) || ' ' || count(DISTINCT id2) INTO different FROM public.added;
    DROP TABLE public.added;
    INSERT INTO public.verdict VALUES (different);
    RETURN different;
END
$$;
});

# ----- batches, and the ids of rows -----

my $default = 'ALTER TABLE plain ALTER id SET DEFAULT';
my $copy = copy_into('plain', 50);
for my $case (
	[ 'snowflake_nextval()', 't', '' ],
	[ 'snowflake_id()', 't', "$default snowflake_id();" ],
	[ 'a column of type snowflake', 't', 'ALTER TABLE plain ALTER id TYPE snowflake;' ],
	[ 'a SQL function that is inlined', 't',
		"CREATE FUNCTION wrapped() RETURNS bigint LANGUAGE sql AS 'SELECT snowflake_nextval() + 0'; $default wrapped();" ],
	[ 'another volatile default, as in PostgreSQL', 'f', "$default random() * 1e18;" ])
{
	my ($what, $expected, $sql) = @$case;

	is(is_batched('plain', "$sql\n$copy"), $expected, "in batches with $what: $expected");
	is(calls_of("$sql\n$copy"), $expected eq 't' ? '0|50' : '0|0', "$what: calls of the twin");
}
is(is_batched('days', copy_into('days', 500)), 't', 'a COPY inserts in batches into a partitioned table');
is( last_row(q{
CREATE FUNCTION with_currval() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO seen VALUES (snowflake_currval() - NEW.id); RETURN NEW; END';
CREATE TRIGGER with_currval BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION with_currval();
COPY plain (n) FROM PROGRAM 'seq 1 3000';
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= previous),
       (SELECT count(*) FROM seen WHERE n <> 0)
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS previous FROM plain) AS s}),
	'3000|3000|0|0', 'ids are unique, in the order of the file, and in snowflake_currval() of a trigger');

SKIP: {
	skip 'COPY has no option DEFAULT before 16', 1 if $node->pg_version < 16;
	is(calls_of("COPY plain FROM stdin (DEFAULT '\\D');\n" . join('', map { "\\D\t$_\n$_\t$_\n" } 1 .. 20) . "\\.\n"),
		'0|20', 'option DEFAULT: a COPY calls the twin for rows that the file marks');
}

# ----- what else is planned while a COPY runs -----

# ALTER TABLE ... ADD COLUMN evaluates a STABLE default once for all rows.
$copy = copy_into('plain', 3);
my %adding = (
	'in the DEFAULT of another column' =>
	  "ALTER TABLE plain ADD COLUMN a text DEFAULT add_column();\n$copy",
	'in a DEFAULT that the planner evaluates, because it is marked IMMUTABLE' => qq{
CREATE FUNCTION folded() RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN add_column(); END';
ALTER TABLE plain ADD COLUMN a text;
ALTER TABLE plain ALTER COLUMN a SET DEFAULT folded();
$copy},
	'in a trigger' => qq{
CREATE FUNCTION adds() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM add_column(); RETURN NEW; END';
CREATE TRIGGER adds BEFORE INSERT ON plain EXECUTE FUNCTION adds();
$copy});
is(last_row("$adding{$_}\nSELECT DISTINCT added FROM verdict"),
	'10 10', "ADD COLUMN $_: each row has its own id")
  for sort keys %adding;

is(calls_of("ALTER TABLE plain ADD CHECK (id <= snowflake_nextval());\n" . copy_into('plain', 20)),
	'20|20', 'a CHECK calls snowflake_nextval(), not the twin');
is(calls_of(copy_into('plain', 20, 'WHERE snowflake_nextval() > 0')),
	'20|20', 'a WHERE of COPY calls snowflake_nextval(), not the twin');
is( calls_of(q{
CREATE DOMAIN checked AS integer CHECK (snowflake_nextval() > VALUE);
CREATE TABLE target (id bigint DEFAULT snowflake_nextval(), n checked, a checked);
ALTER TABLE target ALTER a SET DEFAULT 1;
} . copy_into('target', 20) . "SELECT 5::checked AS unused \\gset\n"),
	'41|20', 'the CHECK of a domain calls snowflake_nextval(), not the twin, during a COPY and after it');
is( calls_of(q{
CREATE FUNCTION calls() RETURNS trigger LANGUAGE plpgsql AS
'DECLARE id bigint := snowflake_nextval();
 BEGIN SELECT snowflake_nextval() INTO id FROM other LIMIT 1; NEW.n := id % 2; RETURN NEW; END';
CREATE TRIGGER calls BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION calls();
} . copy_into('plain', 10) . "INSERT INTO plain (n) VALUES (0);\n"),
	'23|10', 'statements of functions, whose plans are kept, call snowflake_nextval(), not the twin');
is( calls_of(q{
COPY (SELECT snowflake_nextval() FROM other) TO '/dev/null';
COPY (INSERT INTO plain (n) SELECT n FROM other RETURNING id) TO '/dev/null';}),
	'20|0', 'COPY TO calls snowflake_nextval(), not the twin');

# A call of the twin that a user has written is refused.
for my $sql (
	'SELECT snowflake_copy_nextval()',
	"$default snowflake_copy_nextval(); COPY plain (n) FROM PROGRAM 'echo 1'",
	"CREATE FUNCTION wraps() RETURNS bigint LANGUAGE sql AS 'SELECT snowflake_copy_nextval()'; $default wraps(); COPY plain (n) FROM PROGRAM 'echo 1'")
{
	my ($state, $message) = sqlstate_of($node, "BEGIN; $sql");

	is("$state $message",
		'0A000 function snowflake_copy_nextval() can be called only by COPY', "refused: $sql");
}

# ----- rights, and what the twin is -----

# A COPY needs the right to EXECUTE snowflake_nextval(), and no other right.  It
# works where the extension's schema was renamed, the twin is missing, or another
# author's function has the twin's name.
value_of($node, 'CREATE ROLE app; GRANT INSERT, SELECT ON plain, seen TO app');
$copy = copy_into('plain', 5);
my $revoke = 'REVOKE EXECUTE ON FUNCTION';
my $drop = q{
ALTER EXTENSION snowflake DROP FUNCTION snowflake_copy_nextval();
DROP FUNCTION snowflake_copy_nextval();};
for my $case (
	[ "$revoke snowflake_nextval() FROM PUBLIC; SET LOCAL ROLE app;",
		qr/ERROR:  42501: permission denied for function snowflake_nextval$/m,
		'a COPY without EXECUTE on snowflake_nextval() is refused' ],
	[ 'SET LOCAL ROLE app;', qr/^0\|5$/, 'a COPY by a role with EXECUTE on both calls the twin' ],
	[ "$revoke snowflake_copy_nextval() FROM PUBLIC; SET LOCAL ROLE app;",
		qr/^5\|0$/, 'a COPY without EXECUTE on the twin calls snowflake_nextval()' ],
	[ 'ALTER SCHEMA public RENAME TO ids; SET LOCAL search_path = ids;',
		qr/^0\|5$/, 'a COPY calls the twin after its schema was renamed' ],
	[ $drop, qr/^5\|0$/, 'a COPY calls snowflake_nextval() if the twin is missing' ],
	[ "$drop CREATE FUNCTION snowflake_copy_nextval() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';",
		qr/^5\|0$/, "a COPY does not call a function of the twin's name that is not the extension's" ])
{
	my ($sql, $expected, $what) = @$case;
	like(calls_of("$sql\n$copy"), $expected, $what);
}

$node->stop;
done_testing();
