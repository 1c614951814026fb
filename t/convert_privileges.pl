# No code of one role runs as another role: attacks on CREATE EXTENSION, the event
# trigger, the scripts of conversion and the functions for partitions, by a role
# that has no more rights than each test grants.
#
# The attacker's code is the function attic.evil(), which writes the role that it
# runs as to the server's log, because the log outlives a rollback.  The function
# attic.folded() calls attic.evil() and is marked IMMUTABLE, so that the planner
# evaluates attic.folded() in predicates of indexes.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use Test::More;

my $node = snowflake_node('privileges', "snowflake_convert.schemas = 'public, attic, d'");
my $event_trigger = q{
CREATE EXTENSION IF NOT EXISTS snowflake_convert;
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
};
my $database;
my $database_count = 0;

# Makes the database that the functions below use.  The attacker owns its schema
# attic, and the two functions of the head.
sub new_database
{
	my ($sql) = @_;

	$database = 'attack_' . ++$database_count;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	superuser(q{
CREATE SCHEMA attic AUTHORIZATION attacker;
GRANT USAGE ON SCHEMA attic TO PUBLIC;
CREATE FUNCTION attic.evil(anyelement) RETURNS boolean LANGUAGE plpgsql VOLATILE AS
'BEGIN RAISE LOG ''code of the attacker runs as role %'', current_user; RETURN true; END';
ALTER FUNCTION attic.evil OWNER TO attacker;
CREATE FUNCTION attic.folded() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
'BEGIN PERFORM attic.evil(1); RETURN true; END';
ALTER FUNCTION attic.folded OWNER TO attacker;
} . $sql);
	return;
}

# The output of SQL that must succeed.
sub superuser
{
	my ($sql) = @_;
	return $node->safe_psql($database, $sql);
}

# Runs SQL in a session of a role.  Returns its errors and warnings.
sub as_role
{
	my ($role, $sql) = @_;
	return ($node->psql($database, $sql, extra_params => [ '-U', $role ]))[2];
}

my $log_position = 0;

# Returns the roles as which the attacker's code has run since the last call,
# also in transactions that were rolled back.
sub ran_as
{
	my $text = logged($node, $log_position);

	$log_position = -s $node->logfile;
	return join ' ', sort(uniq($text =~ /LOG:  code of the attacker runs as role (\S+)/g));
}

$node->start;
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', qq{
CREATE ROLE attacker LOGIN;
CREATE ROLE victim LOGIN;
CREATE ROLE member LOGIN IN ROLE attacker;
});

# ----- CREATE EXTENSION -----

# Before CREATE EXTENSION, the attacker plants operators, functions, types and
# casts in public and in the extension's schema.  They match calls better than
# pg_catalog's.
new_database('CREATE SCHEMA ids; GRANT ALL ON SCHEMA ids, public TO attacker');
for my $where ('public', 'ids')
{
	my $sql = "SET ROLE attacker;\n";

	for my $planted ('<> oid regtype', '= oid regclass', '= regclass oid', '= name text', '> smallint integer')
	{
		my ($operator, $left, $right) = split / /, $planted;

		$sql .= "CREATE FUNCTION $where.planted($left, $right) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
		  'BEGIN PERFORM attic.evil(1); RETURN false; END';
		CREATE OPERATOR $where.$operator (LEFTARG = $left, RIGHTARG = $right, FUNCTION = $where.planted);\n";
	}
	superuser("$sql
CREATE FUNCTION $where.format(text, name, pg_catalog.regclass) RETURNS text LANGUAGE sql AS \$\$SELECT attic.evil(1)::text\$\$;
CREATE FUNCTION $where.snowflake_first_id_since(timestamp) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION $where.snowflake_day_start(date) RETURNS timestamptz LANGUAGE sql AS \$\$SELECT attic.evil(1)::text::timestamptz\$\$;
CREATE FUNCTION $where.snowflake_nextval(VARIADIC integer[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE TYPE $where.regclass AS ENUM ();
CREATE FUNCTION $where.to_oid($where.regclass) RETURNS oid LANGUAGE sql AS 'SELECT 0::oid';
CREATE CAST ($where.regclass AS oid) WITH FUNCTION $where.to_oid AS IMPLICIT;
CREATE FUNCTION $where.to_regclass($where.regclass) RETURNS pg_catalog.regclass LANGUAGE sql AS 'SELECT 0::pg_catalog.regclass';
CREATE CAST ($where.regclass AS pg_catalog.regclass) WITH FUNCTION $where.to_regclass AS IMPLICIT;
CREATE TABLE $where.pg_class (oid oid);");
}
is(as_role($superuser, 'CREATE EXTENSION snowflake SCHEMA ids; CREATE EXTENSION snowflake_convert; CREATE EXTENSION snowflake_registry'), '',
	'CREATE EXTENSION succeeds in spite of planted objects');
is(superuser(q{
SET search_path = pg_catalog;
SELECT count(DISTINCT m.refobjid), string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FILTER (
         WHERE d.refobjid >= 16384 AND d.refclassid <> 'pg_namespace'::pg_catalog.regclass
           AND NOT EXISTS (SELECT FROM pg_depend AS own WHERE (own.classid, own.objid, own.deptype) = (d.refclassid, d.refobjid, 'e'))
           AND pg_describe_object(d.refclassid, d.refobjid, 0) !~ '(type|table) snowflake_(convert|registry)\.')   -- such as row types
  FROM pg_depend AS m
  JOIN pg_depend AS d ON (d.classid, d.objid) = (m.classid, m.objid) AND d.deptype = 'n'
  JOIN pg_extension AS e ON e.oid = m.refobjid AND e.extname ~ '^snowflake'
 WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::pg_catalog.regclass
}), '3|', 'no object of the extensions depends on a planted one');
superuser("$event_trigger
CREATE TABLE public.a (id serial PRIMARY KEY, CHECK (id > 0)); SELECT snowflake_convert.key('public.a', 'id') \\gexec
SELECT snowflake_convert.revert('{\"public.a.id\": {\"type\": \"integer\", \"sequence\": \"public.a_id_seq\"}}')");
is(ran_as(), '', 'CREATE EXTENSION, the event trigger and scripts run no planted code');

# ----- the event trigger -----

new_database("CREATE EXTENSION snowflake; $event_trigger");
superuser(q{
CREATE TABLE own (id serial UNIQUE);
CREATE TABLE later (id serial UNIQUE);
CREATE TABLE parent (id bigint PRIMARY KEY DEFAULT snowflake_nextval()) PARTITION BY RANGE (id);
CREATE TABLE attic.part PARTITION OF parent DEFAULT;
ALTER TABLE attic.part OWNER TO attacker;
GRANT REFERENCES (id) ON own TO attacker;
GRANT REFERENCES ON later TO attacker;
SET ROLE attacker;
CREATE TABLE attic.key (id bigint PRIMARY KEY DEFAULT public.snowflake_id());
CREATE INDEX ON attic.key (id) WHERE attic.folded();
CREATE INDEX ON attic.part (id) WHERE attic.folded();
CREATE TABLE attic.t (own integer REFERENCES public.own (id));
CREATE INDEX ON attic.t (own) WHERE attic.folded();
RESET ROLE;
CREATE TABLE theirs (id serial);
ALTER TABLE theirs OWNER TO attacker;
CREATE TABLE attic.ours (id bigint PRIMARY KEY DEFAULT snowflake_id());
});
ran_as();

# PostgreSQL checks a foreign key by queries on both tables, and for these the
# planner evaluates predicates of both tables' indexes.  The owner of a schema can
# put other objects in place of those that the event trigger names; the owner of a
# database owns schema public.
for (
	[ 'ALTER TABLE own ADD PRIMARY KEY (id)', 'own stays as it is\n.*attic.t', 'a table of another role that references the key' ],
	[ 'CREATE TABLE a (id integer REFERENCES attic.key)', 'a stays as it is\n.*table attic.key belongs', 'a referenced table of another role' ],
	[ 'CREATE TABLE b (id integer REFERENCES parent)', 'b stays as it is\n.*table attic.part belongs', 'a partition of another role' ],
	[ 'ALTER TABLE theirs ADD PRIMARY KEY (id)', 'theirs stays as it is\n.*table public.theirs belongs', 'a table of another role' ],
	[ 'CREATE TABLE e (id integer REFERENCES attic.ours)', 'e stays as it is\n.*schema attic belongs', 'the schema of a referenced table' ],
	[ 'SET ROLE attacker; CREATE TABLE attic.f (id serial PRIMARY KEY)', 'f stays as it is\n.*another role has connected', 'SET ROLE' ],
	[ 'CREATE TABLE attic.c (id serial PRIMARY KEY)', 'c stays as it is\n.*schema attic belongs', 'a schema of another role' ],
	[ "ALTER DATABASE $database OWNER TO attacker; CREATE SCHEMA d CREATE TABLE d (id serial PRIMARY KEY)", 'd stays as it is\n.*schema public belongs',
		q{the extension in public, which is the database owner's} ])
{
	my ($sql, $warning, $name) = @$_;

	like(as_role($superuser, $sql), qr/WARNING:  .*table \S*$warning/, "$name: the column stays as it is");
}
is(ran_as(), '', 'the event trigger runs no code of other roles');
superuser("ALTER DATABASE $database OWNER TO $superuser");

# The snapshot is older than a foreign key of the attacker, whose definition
# ALTER TABLE then does not find.
my $repeats = SnowflakeSession->new($node);
$repeats->rows("\\c $database\nBEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
superuser(q{
SET ROLE attacker;
CREATE TABLE attic.late (id integer REFERENCES later (id));
CREATE INDEX ON attic.late (id) WHERE attic.folded();
});
ran_as();
$repeats->rows('ALTER TABLE later ADD PRIMARY KEY (id)');
$repeats->rows('COMMIT');
$repeats->quit;
is(ran_as(), '', 'the event trigger runs no code of a table that its snapshot does not show');

# ----- scripts of conversion -----

# Making a script runs no code of a table's owner, and a superuser cannot run a
# script for another role's tables.  Here indexes run code of the attacker as the
# role that rewrites the tables.
new_database('CREATE EXTENSION snowflake_convert CASCADE');
superuser(q{
SET SESSION AUTHORIZATION attacker;
CREATE TABLE attic.a (id serial PRIMARY KEY, n integer);
CREATE INDEX ON attic.a (n) WHERE attic.folded();
CREATE TABLE attic.b (a_id integer REFERENCES attic.a, n integer);
CREATE INDEX ON attic.b (n) WHERE attic.folded();
INSERT INTO attic.a VALUES (1);
INSERT INTO attic.b VALUES (1);
CREATE VIEW attic.v AS SELECT id FROM attic.a;
CREATE TABLE attic."a\r\n;SELECT attic.evil(1); --" (id serial PRIMARY KEY, g bigint GENERATED ALWAYS AS (id) STORED, "\r\n;SELECT attic.evil(1); --_id" integer);
} =~ s/\\r\\n/\r\n/gr);
ran_as();

# Checks who can run a script, as text and by \gexec of the statement that makes
# the script.
sub check_script
{
	my ($what, $make, $script) = @_;

	is(ran_as(), '', "$what: making the script runs no code of the tables' owner");
	for my $sql ($script, "$make \\gexec\n")
	{
		# With these settings psql goes on after an error, also in a transaction.
		my (undef, undef, $refused) = $node->psql($database, "\\set ON_ERROR_ROLLBACK on\n$sql\n", on_error_stop => 0);
		like($refused, qr/this script has to run as role "attacker", not as "$superuser"/, "$what: the script is refused to a superuser");
	}

	# The owner's code can go back to the role that has connected.
	for my $session ([ $superuser, 'ROLE' ], [ 'member', 'ROLE' ], [ $superuser, 'SESSION AUTHORIZATION' ])
	{
		my ($role, $set) = @$session;
		like(as_role($role, "SET $set attacker;\n$script"),
			qr/this script has to run as role "attacker", not as "$role"/, "$what: SET $set in a session of $role is refused");
	}
	is(ran_as(), '', "$what: a script that is refused runs no code");
	is(as_role('attacker', $script), '', "$what: the owner runs the script");
	is(ran_as(), 'attacker', "$what: the script runs code as its owner");
	return;
}
my $make = q{SELECT snowflake_convert.schema('{attic}')};
my $script = superuser($make);
like($script, qr/^-- left out: attic."a\n--     \n--     ;SELECT/m, 'the script has a name with a line break in a comment');
check_script('schema()', $make, $script);
is(superuser(q{SELECT relname, pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'attic'::regnamespace AND relkind IN ('v', 'm') ORDER BY 1}),
	"v|attacker", 'the view that was put back belongs to its owner');
check_script('revert()', $_, superuser($_)) for q{SELECT snowflake_convert.revert('{"attic.a.id": {"type": "integer", "sequence": "attic.a_id_seq"}}')};
check_script('key()', $_, superuser($_)) for q{SELECT snowflake_convert.key('attic.a', 'id')};

# ALTER TYPE parses expressions anew.  The attacker, who may create objects in
# public, plants an operator and functions that match a bigint better than those
# that the superuser's tables use.
new_database("CREATE EXTENSION snowflake_convert CASCADE; GRANT CREATE ON SCHEMA public TO attacker; $event_trigger");
superuser(q{
CREATE FUNCTION near(integer, integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $1 - $2';
CREATE OPERATOR <-> (FUNCTION = near, LEFTARG = integer, RIGHTARG = integer);
CREATE FUNCTION place(integer[], numeric) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
SET snowflake_convert.schemas = 'none';
CREATE TABLE checked (id serial PRIMARY KEY, CHECK (id <-> 1 < 100));
CREATE TYPE span AS (a text, b text);
CREATE FUNCTION valid(span) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE FUNCTION same(span, span) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE OPERATOR = (FUNCTION = same, LEFTARG = span, RIGHTARG = span);
CREATE TABLE of_row (id serial PRIMARY KEY, f text, CHECK (id > 0 AND valid(ROW(f, f))));
CREATE TABLE of_distinct (id serial PRIMARY KEY, s span, CHECK (id > 0 AND s IS NOT DISTINCT FROM '(a,b)'::span));
INSERT INTO of_row VALUES (1);
CREATE FUNCTION idx(integer[], integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT array_position($1, $2)';
CREATE TABLE of_array (id serial PRIMARY KEY, CHECK (idx(ARRAY[id], id) > 0));
INSERT INTO of_array VALUES (1);
CREATE TABLE seen (id serial PRIMARY KEY);
CREATE VIEW m AS SELECT place('{1}', id) FROM seen;
INSERT INTO checked VALUES (1);
INSERT INTO seen VALUES (1);
CREATE TABLE big (id bigserial PRIMARY KEY);
CREATE FUNCTION alike(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) = lower($2)';
CREATE OPERATOR === (FUNCTION = alike, LEFTARG = text, RIGHTARG = text);
CREATE TABLE of_sublink (id serial PRIMARY KEY, name varchar(20));
CREATE VIEW sublink AS SELECT id FROM of_sublink WHERE name OPERATOR(public.===) ANY (SELECT o.name FROM of_sublink AS o);
-- what a view names in a schema of the attacker
CREATE FUNCTION attic.fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE SCHEMA "My attic" AUTHORIZATION attacker;
CREATE TABLE "My attic".list (id bigint);
CREATE TABLE of_quoted (id serial PRIMARY KEY);
CREATE VIEW quoted AS SELECT o.id FROM of_quoted AS o JOIN "My attic".list AS l ON l.id = o.id;
CREATE TYPE shade AS ENUM ('a');
ALTER TYPE shade OWNER TO attacker;
CREATE TABLE of_cast (id serial PRIMARY KEY, shade shade, CHECK (id > 0 AND shade::text <> 'b'));
CREATE TABLE of_shade (id serial PRIMARY KEY, shade shade);
CREATE VIEW shades AS SELECT id, shade::text FROM of_shade;
CREATE TABLE of_trigger (id serial PRIMARY KEY);
CREATE VIEW triggers AS SELECT id FROM of_trigger;
CREATE TRIGGER fire INSTEAD OF INSERT ON triggers FOR EACH ROW EXECUTE FUNCTION attic.fire();
});
superuser(q{SELECT snowflake_convert.key('big', 'id') \gexec});
is(as_role('attacker', q{
CREATE FUNCTION public.planted(bigint, integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
CREATE FUNCTION public.idx(bigint[], bigint) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
CREATE FUNCTION public.valid(record) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN attic.evil(1); END';
CREATE OPERATOR public.<-> (FUNCTION = public.planted, LEFTARG = bigint, RIGHTARG = integer);
CREATE FUNCTION public.place(integer[], bigint) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
}), '', 'the attacker plants an operator and a function');
$make = q{SELECT snowflake_convert.schema('{public}')};
superuser("$make \\gexec");
superuser(q{
CREATE TABLE new_key (id serial PRIMARY KEY, CHECK (id <-> 1 < 100), CHECK (idx(ARRAY[id], id) > 0));
CREATE TABLE new_reference (id integer REFERENCES big CHECK (id <-> 1 < 100));
INSERT INTO new_key VALUES (1); INSERT INTO new_reference VALUES (NULL);
DROP TABLE new_reference});
is(ran_as(), '', 'no expression is parsed anew with a planted operator or function');
is(join(' ', uniq(superuser($make) =~ /^-- left out: public\.(\w+) \(id\): in the way/gm)), 'checked new_key of_array of_cast of_distinct of_quoted of_row of_shade of_sublink of_trigger seen',
	'keys with such expressions are left out');

# A serial's sequence, which nothing uses after the conversion, may be gone, and a
# view of the attacker's have its name.
superuser('DROP SEQUENCE big_id_seq; INSERT INTO big DEFAULT VALUES');
is(as_role('attacker', 'CREATE VIEW public.big_id_seq AS SELECT 1 AS last_value WHERE attic.evil(1)'), '', 'the attacker makes a view');
like(as_role($superuser, q{SELECT snowflake_convert.revert('{"public.big.id": {"type": "bigint", "sequence": "public.big_id_seq"}}') \gexec}),
	qr/ERROR/, 'the way back fails without the sequence');
is(superuser(q{SELECT count(DISTINCT substring(s FROM 'script_[0-9a-f]+')) FROM unnest('{1,2}'::text[]) AS x,
  snowflake_convert.revert(jsonb_build_object('public.big.id', jsonb_build_object('type', 'bigint', 'sequence', '', 'x', x))) AS s WHERE s ~ 'DO'}),
	'2', "who writes the argument of revert() does not know the script's quotes");
is(ran_as(), '', q{the way back does not read from a sequence's name});

# The owner of a schema could exchange names in it while a script runs.  The owner of
# the database owns public, with the extension and the tables.
new_database('CREATE EXTENSION snowflake_convert CASCADE');
superuser(q{
CREATE TABLE done (id serial PRIMARY KEY);
CREATE TABLE referenced (id serial PRIMARY KEY);
INSERT INTO referenced VALUES (1);
GRANT REFERENCES, SELECT ON referenced TO attacker;
});
my %script_of = map { $_ => superuser("SELECT snowflake_convert.key('public.$_', 'id')") } qw(done referenced);
superuser("ALTER DATABASE $database OWNER TO attacker");
like(as_role($superuser, $script_of{done}), qr/ERROR:  tables, what depends on them, or names have changed/,
	q{a superuser's script is refused in a database of another role});

# Between making a script and running it, the attacker puts a table of its own in
# place of the superuser's, or adds a foreign key.
is(as_role('attacker', q{
DROP TABLE public.done;
CREATE TABLE public.done (id integer PRIMARY KEY, CHECK (attic.evil(id)));
INSERT INTO public.done VALUES (1);
CREATE INDEX ON public.done (id) WHERE attic.folded();
CREATE TABLE attic.c (a integer REFERENCES public.referenced);
INSERT INTO attic.c VALUES (1);
CREATE INDEX ON attic.c (a) WHERE attic.folded();
}), '', 'the attacker exchanges what a script names');
superuser("ALTER DATABASE $database OWNER TO $superuser");
ran_as();
for my $table (sort keys %script_of)
{
	like(as_role($superuser, $script_of{$table}), qr/ERROR:  tables, what depends on them, or names have changed/,
		"a script that is not the present one is refused: $table");
}
is(ran_as(), '', 'a script that is not the present one runs no code');

# ----- partitions -----

# ATTACH, DETACH and DROP evaluate expressions of partitions and of tables that
# foreign keys connect, as the role that calls; the functions refuse tables of two
# roles, and callers that are not the owner.
new_database(q{CREATE EXTENSION snowflake;
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA house TO attacker;
});
superuser(q{
SET SESSION AUTHORIZATION victim;
CREATE TABLE house.p (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
GRANT REFERENCES (id) ON house.p TO attacker;
CREATE TABLE house.p_2026_01 PARTITION OF house.p FOR VALUES FROM (snowflake_min_id('2026-01-01')) TO (snowflake_min_id('2026-02-01'));
SET SESSION AUTHORIZATION attacker;
CREATE TABLE attic.f (p bigint REFERENCES house.p);
CREATE INDEX trap ON attic.f (p) WHERE attic.folded();
GRANT SELECT ON attic.f TO victim;
CREATE TABLE attic.p (id bigint PRIMARY KEY, n integer) PARTITION BY RANGE (id);
CREATE INDEX ON attic.p (n) WHERE attic.folded();
CREATE TABLE attic.p_2026_01 PARTITION OF attic.p FOR VALUES FROM (snowflake_min_id('2026-01-01')) TO (snowflake_min_id('2026-02-01'));
RESET SESSION AUTHORIZATION;
CREATE TABLE public.mixed (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE attic.mixed_rest PARTITION OF public.mixed DEFAULT;
ALTER TABLE attic.mixed_rest OWNER TO attacker;
SET SESSION AUTHORIZATION attacker;
ALTER TABLE attic.mixed_rest ADD CHECK (attic.folded());
CREATE TABLE attic.whole (id bigint) PARTITION BY LIST ((id * 0 + attic.folded()::integer));
RESET SESSION AUTHORIZATION;
CREATE TABLE house.part PARTITION OF attic.whole FOR VALUES IN (1) PARTITION BY RANGE (id);
ALTER TABLE house.part OWNER TO victim;
});
ran_as();
my $create = q{CALL snowflake_create_partitions('%s', '2026-02-01', '2026-03-01', '1 month')};
my $drop = q{CALL snowflake_drop_partitions('%s', '2026-02-01')};
for my $call ($create, $drop)
{
	for (
		[ 'victim', '', 'house.p', 'table attic.f, its schema, or that of the extension belongs to another role than house.p' ],
		[ $superuser, '', 'public.mixed', 'table attic.mixed_rest, its schema, or that of the extension belongs to another role than public.mixed' ],
		[ $superuser, '', 'attic.p', 'must be owner of table attic.p\n.*Connect as role "attacker"' ],
		[ $superuser, 'SET ROLE attacker;', 'attic.p', 'must be owner of table attic.p\n' ],
		[ $superuser, 'SET SESSION AUTHORIZATION attacker;', 'attic.p', 'must be owner of table attic.p\n' ],
		[ 'victim', '', 'house.part', 'table attic.whole, its schema, or that of the extension belongs to another role than house.part' ])
	{
		my ($role, $set_role, $table, $error) = @$_;

		like(as_role($role, $set_role . sprintf($call, $table)), qr/ERROR:  $error/, "$role is refused: $set_role$call of $table");
	}
}
is(ran_as(), '', 'a refused call runs no code of another role');

# ATTACH by hand runs such code, so the check above can fail.
as_role($superuser, q{CREATE TABLE attic.x (id bigint PRIMARY KEY); ALTER TABLE public.mixed ATTACH PARTITION attic.x FOR VALUES FROM (1) TO (2)});
is(ran_as(), $superuser, q{ATTACH by hand runs code of the default partition's owner});
superuser('DROP INDEX attic.trap; DROP TABLE attic.f');
unlike(as_role('victim', sprintf($create, 'house.p') . ';' . sprintf($drop, 'house.p')), qr/ERROR/, 'without the foreign key of another role, partitions are created and dropped');

# The attacker plants functions of the same names, which match arguments of the
# type unknown better.
superuser(q{
GRANT CREATE ON SCHEMA public TO attacker;
CREATE SCHEMA safe;
CREATE TABLE safe.p (id bigint) PARTITION BY RANGE (id);
});
is(as_role('attacker', q{
CREATE FUNCTION public.snowflake_lock_partitions(regclass, text, timestamptz) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); END';
}), '', 'the attacker plants a function');
superuser(q{CREATE DOMAIN attic.regclass AS pg_catalog.regclass CHECK (attic.evil(1)); CREATE DOMAIN attic.text AS pg_catalog.text CHECK (attic.evil(1))});
unlike(as_role($superuser, 'SET search_path = attic, pg_catalog, public;' . sprintf($create, 'safe.p') . ';' . sprintf($drop, 'safe.p')), qr/ERROR/, 'partitions are created and dropped beside a planted function');
is(ran_as(), '', 'the functions for partitions call no planted function');

# A schema's owner could put another table in place of a superuser's.
superuser('CREATE TABLE attic.mine (id bigint) PARTITION BY RANGE (id)');
like(as_role($superuser, sprintf($create, 'attic.mine')), qr/ERROR:  table attic.mine, its schema, or that of the extension belongs to another role/,
	q{partitions of a superuser's table in a schema of another role are refused});
$node->stop;

done_testing();
