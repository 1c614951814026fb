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
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('copy', "track_functions = 'all'");

# Returns data for COPY ... FROM stdin: the numbers from 1 to a count, as text.
sub copy_data
{
	my ($count) = @_;
	return join('', map { "$_\n" } 1 .. $count) . "\\.\n";
}

# How often SQL calls snowflake_nextval() or snowflake_id(), and their twin:
# "nextval|twin".  Rolls everything back.
sub calls_of
{
	my ($sql) = @_;
	my ($rc, $output, $error) = $node->psql('postgres', qq{
BEGIN;
$sql
RESET ROLE;
SELECT coalesce(sum(calls) FILTER (WHERE funcname IN ('snowflake_nextval', 'snowflake_id')), 0),
       coalesce(sum(calls) FILTER (WHERE funcname = 'snowflake_copy_nextval'), 0)
  FROM pg_stat_xact_user_functions;
ROLLBACK;
}, on_error_stop => 1);

	return $rc == 0 ? ($output =~ /([^\n]*)\z/)[0] : $error;
}

# Whether COPY inserts in batches, "t" or "f".  A CHECK counts the rows of the
# table: in a batch it sees no row.
sub is_batched
{
	my ($table, $sql) = @_;
	my $output = $node->safe_psql('postgres', qq{
BEGIN;
TRUNCATE seen;
ALTER TABLE $table ADD CHECK (note('$table')) NOT VALID;
$sql
SELECT max(n) = 0 FROM seen;
ROLLBACK;
});
	return ($output =~ /([^\n]*)\z/)[0];
}

# Returns a query that counts the ids of a table, its different ids, and the
# ids that are not in the order of column n.
sub order_of
{
	my ($table) = @_;
	return qq{
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= previous)
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS previous FROM $table) AS s;
};
}

$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION snowflake;
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
CREATE TABLE serial (id bigserial, n integer);
CREATE TABLE second (id bigint DEFAULT snowflake_nextval() PRIMARY KEY, n integer);
CREATE TABLE other (n integer);
INSERT INTO other SELECT generate_series(1, 10);

-- add_column() adds two columns whose values must differ, and returns how many
-- different values each of them has
CREATE TABLE verdict (added text);
CREATE FUNCTION add_column() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    different text;
BEGIN
    CREATE TABLE public.added (n integer);
    INSERT INTO public.added SELECT generate_series(1, 10);
    ALTER TABLE public.added ADD COLUMN id bigint DEFAULT public.snowflake_nextval(),
                             ADD COLUMN id2 bigint DEFAULT public.snowflake_nextval();
    SELECT count(DISTINCT id) || ' ' || count(DISTINCT id2) INTO different FROM public.added;
    DROP TABLE public.added;
    INSERT INTO public.verdict VALUES (different);
    RETURN different;
END
$$;
CREATE FUNCTION add_column_by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.add_column();
    RETURN NEW;
END
$$;
});

# 1. The ids of rows, and batches.

is(calls_of("COPY plain (n) FROM stdin;\n" . copy_data(50)),
	'0|50', 'a COPY calls the twin once for each row');
my $default = "ALTER TABLE plain ALTER id SET DEFAULT";
is(calls_of("$default snowflake_id(); COPY plain (n) FROM stdin;\n" . copy_data(50)),
	'0|50', 'a COPY with snowflake_id() calls the twin once for each row');
my %batched = (
	'a COPY inserts in batches' => [ 't', '' ],
	'PostgreSQL inserts row by row with another volatile default' =>
	  [ 'f', "$default random() * 1e18;" ],
	'a COPY inserts in batches with snowflake_id()' => [ 't', "$default snowflake_id();" ],
	'a COPY inserts in batches into a column of type snowflake' =>
	  [ 't', 'ALTER TABLE plain ALTER id TYPE snowflake;' ],
	'a COPY inserts in batches if the default is a SQL function that is inlined' => [
		't', "CREATE FUNCTION wrapped() RETURNS bigint LANGUAGE sql AS 'SELECT snowflake_nextval() + 0'; $default wrapped();"
	]);
is(is_batched('plain', "$batched{$_}[1]\nCOPY plain (n) FROM stdin;\n" . copy_data(50)),
	$batched{$_}[0], $_)
  for sort keys %batched;
is( $node->safe_psql('postgres',
		"BEGIN; COPY plain (n) FROM PROGRAM 'seq 1 50000'; " . order_of('plain') . 'ROLLBACK;'),
	'50000|50000|0',
	'ids are unique and in the order of the file');

# Rows that go to a partition by their ids.
$node->safe_psql('postgres', q{
CREATE TABLE days (id bigint DEFAULT snowflake_nextval(), n integer) PARTITION BY RANGE (id);
CREATE TABLE days_default PARTITION OF days DEFAULT;
CALL snowflake_create_partitions('days', current_date - 1, current_date + 2, '1 day');
});
is( $node->safe_psql('postgres',
		"BEGIN; COPY days (n) FROM PROGRAM 'seq 1 3000'; "
		  . order_of('days') . 'SELECT count(*) FROM days_default; ROLLBACK;'),
	"3000|3000|0\n0",
	'ids of a partitioned table are unique and in the order of the file');
is(is_batched('days', "COPY days (n) FROM stdin;\n" . copy_data(500)),
	't', 'a COPY inserts in batches into a partitioned table');

# snowflake_currval() in triggers.
sub currval_in
{
	my ($trigger, $returns, $sql, $query) = @_;
	return $node->safe_psql('postgres', qq{
BEGIN;
CREATE FUNCTION with_currval() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO seen VALUES (snowflake_currval() $returns; END';
CREATE TRIGGER with_currval $trigger INSERT ON plain FOR EACH ROW EXECUTE FUNCTION with_currval();
$sql
$query;
ROLLBACK;
});
}
is( currval_in('BEFORE', '- NEW.id); RETURN NEW',
		"COPY plain (n) FROM PROGRAM 'seq 1 3000';",
		'SELECT count(*), count(*) FILTER (WHERE n <> 0) FROM seen'),
	'3000|0', 'a BEFORE ROW trigger finds the id of its row in snowflake_currval()');
is( currval_in('AFTER', '); RETURN NULL', $_,
		'SELECT count(*), count(DISTINCT seen.n), bool_and(seen.n = (SELECT max(id) FROM plain)) FROM seen'),
	'20|1|t',
	"AFTER ROW triggers find the statement's last id in snowflake_currval(): $_")
  for "COPY plain (n) FROM PROGRAM 'seq 1 20';",
  'INSERT INTO plain (n) SELECT generate_series(1, 20);';

SKIP: {
	skip 'COPY has no option DEFAULT before 16', 4 if $node->pg_version < 16;
	my $file = $node->basedir . '/rows';
	my $data = join('', map { $_ % 2 ? "\\D\t$_\n" : "$_\t$_\n" } 1 .. 40) . "\\.\n";
	my $count = 'SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id = n) FROM';

	is(calls_of("COPY plain FROM stdin (DEFAULT '\\D');\n$data"),
		'0|20', 'option DEFAULT: a COPY calls the twin for rows that the file marks');
	is( $node->safe_psql('postgres',
			"BEGIN; COPY plain FROM stdin (DEFAULT '\\D');\n${data}$count plain; ROLLBACK;"),
		'40|40|20', 'option DEFAULT: the marked rows get ids');
	is( is_batched('plain', "COPY plain FROM stdin (DEFAULT '\\D');\n$data"),
		is_batched('serial', "COPY serial FROM stdin (DEFAULT '\\D');\n$data"),
		'option DEFAULT: a COPY inserts in batches if a COPY into a bigserial does');
	$data =~ s/\\\.\n//;
	append_to_file($file, $data);
	is( $node->safe_psql('postgres', qq{
BEGIN;
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE foreign_file (id bigint DEFAULT snowflake_nextval(), n integer)
  SERVER files OPTIONS (filename '$file', "default" '\\D');
$count foreign_file;
ROLLBACK;
}),
		'40|40|20', 'option DEFAULT: marked rows of a file_fdw table get ids');
}

# 2. ALTER TABLE ... ADD COLUMN evaluates a STABLE default once for all rows.
# Each case runs add_column() while a COPY runs, or after one.

my $copy = "COPY plain (n) FROM stdin;\n" . copy_data(3);
my %adding = (
	'in the DEFAULT of another column' =>
	  "ALTER TABLE plain ADD COLUMN a text DEFAULT add_column();\n$copy",
	'in a DEFAULT that the planner evaluates, because it is marked IMMUTABLE' => qq{
CREATE FUNCTION folded() RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN add_column(); END';
ALTER TABLE plain ADD COLUMN a text;
ALTER TABLE plain ALTER COLUMN a SET DEFAULT folded();
$copy},
	'after a COPY inside a COPY' => qq{
CREATE FUNCTION copies() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN COPY second (n) FROM PROGRAM ''seq 1 3''; PERFORM add_column(); RETURN NULL; END';
CREATE TRIGGER copies BEFORE INSERT ON plain EXECUTE FUNCTION copies();
$copy},
	'after COPYs that have failed' => qq{
\\set ON_ERROR_STOP off
SAVEPOINT a;
COPY plain (n) FROM stdin;
1
x
\\.
ROLLBACK TO a;
ALTER TABLE plain ADD COLUMN a integer;
ALTER TABLE plain ALTER COLUMN a SET DEFAULT snowflake_nextval(0/0);
COPY plain (n) FROM '/dev/null';
ROLLBACK TO a;
SELECT add_column() AS unused \\gset
},
	'in a trigger' =>
	  "CREATE TRIGGER adds BEFORE INSERT ON plain EXECUTE FUNCTION add_column_by_trigger();\n$copy");
is( $node->safe_psql('postgres',
		"BEGIN;\n$adding{$_}\nSELECT DISTINCT added FROM verdict;\nROLLBACK;"),
	'10 10', "ADD COLUMN $_: each row has its own id")
  for sort keys %adding;

# 3. Other statements that are planned while a COPY runs.

is( calls_of(qq{
ALTER TABLE plain ADD CHECK (id <= snowflake_nextval());
COPY plain (n) FROM stdin;
} . copy_data(20)),
	'20|20', 'a CHECK calls snowflake_nextval(), not the twin');
my $where = "COPY plain (n) FROM stdin WHERE snowflake_nextval() > 0;\n" . copy_data(20);
is(calls_of($where), '20|20', 'a WHERE of COPY calls snowflake_nextval(), not the twin');
is(is_batched('plain', $where),
	'f', 'a COPY with snowflake_nextval() in its WHERE inserts row by row');
is( calls_of(qq{
CREATE DOMAIN checked AS integer CHECK (snowflake_nextval() > VALUE);
CREATE TABLE target (id bigint DEFAULT snowflake_nextval(), n checked, a checked);
ALTER TABLE target ALTER a SET DEFAULT 1;
COPY target (n) FROM stdin;
} . copy_data(20)
		  . "SELECT 5::checked AS unused \\gset\n"),
	'41|20', 'the CHECK of a domain calls snowflake_nextval(), not the twin, during a COPY and after it');
is( calls_of(q{
CREATE FUNCTION in_sql() RETURNS SETOF bigint LANGUAGE sql AS
'SELECT snowflake_nextval() + 0 FROM generate_series(1, 2) OFFSET 0';
CREATE FUNCTION in_plpgsql() RETURNS bigint LANGUAGE plpgsql AS
'DECLARE id bigint := snowflake_nextval();
 BEGIN
   SELECT sum(v) / 2 INTO id FROM in_sql() AS v;
   INSERT INTO second (id, n) VALUES (snowflake_nextval(), 0);
   RETURN id + 1;
 END';
CREATE FUNCTION calls() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN NEW.n := in_plpgsql() % 2; RETURN NEW; END';
CREATE TRIGGER calls BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION calls();
PREPARE kept AS SELECT snowflake_nextval() FROM in_sql();
COPY plain (n) FROM stdin;
} . copy_data(10) . q{
SELECT in_plpgsql() AS unused \gset
EXECUTE kept \g /dev/null
}),
	# Each of eleven calls of in_plpgsql() makes 4 calls, and the prepared
	# statement makes 2 + 2.
	'48|10', 'statements of functions, whose plans are kept, call snowflake_nextval(), not the twin');
is( calls_of(q{
COPY (SELECT snowflake_nextval() FROM other) TO '/dev/null';
COPY (INSERT INTO plain (n) SELECT n FROM other RETURNING id) TO '/dev/null';
INSERT INTO plain (n) SELECT n FROM other;
}),
	'30|0', 'COPY TO and INSERT ... SELECT call snowflake_nextval(), not the twin');

# A call of the twin that a user has written is refused.
for my $sql (
	'SELECT snowflake_copy_nextval()',
	'ALTER TABLE other ADD COLUMN a bigint DEFAULT snowflake_copy_nextval()',
	"$default snowflake_copy_nextval(); COPY plain (n) FROM PROGRAM 'echo 1'",
	"CREATE FUNCTION wraps() RETURNS bigint LANGUAGE sql AS 'SELECT snowflake_copy_nextval()'; $default wraps(); COPY plain (n) FROM PROGRAM 'echo 1'")
{
	my ($state, $message) = sqlstate_of($node, "BEGIN; $sql; ROLLBACK;");

	is("$state $message",
		'0A000 function snowflake_copy_nextval() is for COPY alone', "refused: $sql");
}

# 4. A COPY needs the right to EXECUTE snowflake_nextval(), and no other right.  It
# works where the extension's schema was renamed, the twin is missing, or another
# author's function has the twin's name.

$node->safe_psql('postgres', q{
CREATE ROLE app;
GRANT INSERT, SELECT ON plain, seen TO app;
});
$copy = "COPY plain (n) FROM stdin;\n" . copy_data(5);
my $revoke = 'REVOKE EXECUTE ON FUNCTION';
for my $rights (
	"$revoke snowflake_nextval() FROM PUBLIC",
	"$revoke snowflake_nextval() FROM PUBLIC; GRANT EXECUTE ON FUNCTION snowflake_copy_nextval() TO app")
{
	my (undef, undef, $stderr) =
	  $node->psql('postgres', "BEGIN; $rights; SET LOCAL ROLE app;\n$copy");

	like($stderr, qr/ERROR:  permission denied for function snowflake_nextval$/m,
		"a COPY is refused: $rights");
}
my $drop = q{
ALTER EXTENSION snowflake DROP FUNCTION snowflake_copy_nextval();
DROP FUNCTION snowflake_copy_nextval();};
for my $case (
	[ 'SET LOCAL ROLE app;', '0|5', 'a COPY by a role with EXECUTE on both calls the twin' ],
	[ "$revoke snowflake_copy_nextval() FROM PUBLIC; SET LOCAL ROLE app;",
		'5|0', 'a COPY without EXECUTE on the twin calls snowflake_nextval()' ],
	[ 'ALTER SCHEMA public RENAME TO ids; SET LOCAL search_path = ids;',
		'0|5', 'a COPY calls the twin after its schema was renamed' ],
	[ $drop, '5|0', 'a COPY calls snowflake_nextval() if the twin is missing' ],
	[ "$drop CREATE FUNCTION snowflake_copy_nextval() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';",
		'5|0', "a COPY does not call a function of the twin's name that is not the extension's" ])
{
	my ($sql, $calls, $what) = @$case;
	is(calls_of("$sql\n$copy"), $calls, $what);
}

$node->stop;
done_testing();
