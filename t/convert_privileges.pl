# No code of one role runs as another role.  The test attacks the conversion,
# the event trigger and CREATE EXTENSION, by roles that have no more rights
# than each test grants.
#
# The attacker's code is a function that writes the role it runs as to the
# server's log, which keeps what a rolled back transaction has done.  Another
# function that calls it is marked IMMUTABLE, so that the planner evaluates it
# in index predicates.
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

my $node = snowflake_node('privileges', "snowflake_convert.schemas = '*'");
my $event_trigger = q{
CREATE EXTENSION IF NOT EXISTS snowflake_convert;
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert.new_tables();
};
my $database_count = 0;

# Makes a database in which the attacker may create objects in a schema of its
# own, with functions that log their current_user.  Returns its name.
sub database_under_attack
{
	my ($sql) = @_;
	my $name = 'attack_' . ++$database_count;

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, q{
CREATE SCHEMA attic AUTHORIZATION attacker;
CREATE FUNCTION attic.evil(anyelement) RETURNS boolean LANGUAGE plpgsql VOLATILE AS
'BEGIN RAISE LOG ''code of the attacker runs as role %'', current_user; RETURN true; END';
ALTER FUNCTION attic.evil OWNER TO attacker;
-- marked IMMUTABLE, so that the planner calls the function
CREATE FUNCTION attic.folded() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
'BEGIN PERFORM attic.evil(1); RETURN true; END';
ALTER FUNCTION attic.folded OWNER TO attacker;
} . ($sql // ''));
	return $name;
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

# Runs SQL in a session of a role.  Returns its errors and warnings.
sub as_role
{
	my ($database, $role, $sql) = @_;
	my (undef, undef, $stderr) = $node->psql($database, "SET SESSION AUTHORIZATION $role; $sql");

	return $stderr;
}

my $superuser;

$node->start;
$superuser = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', q{
CREATE ROLE attacker;
CREATE ROLE victim;
CREATE ROLE member IN ROLE attacker;
CREATE ROLE deputy IN ROLE attacker;
} . "GRANT $superuser TO deputy");

# 1. Before CREATE EXTENSION, the attacker creates operators, functions, types
# and casts in the extension's schema and in public, which match calls better
# than those of pg_catalog.
for my $schema ('public', 'ids')
{
	my $database = database_under_attack('CREATE SCHEMA ids; GRANT ALL ON SCHEMA ids, public TO attacker');

	for my $where ($schema eq 'public' ? 'public' : ('public', 'ids'))
	{
		my $sql = "SET ROLE attacker;\n";

		# An earlier version of the extension's script used the first operator.
		# The others only made CREATE EXTENSION fail.
		my @planted = ('<> oid regtype');
		push @planted, '= oid regclass', '= regclass oid', '= name text', '> smallint integer'
		  if $schema eq 'ids';
		for my $planted (@planted)
		{
			my ($operator, $left, $right) = split / /, $planted;

			$sql .= "CREATE FUNCTION $where.planted($left, $right) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
			  'BEGIN PERFORM attic.evil(1); RETURN false; END';
			CREATE OPERATOR $where.$operator (LEFTARG = $left, RIGHTARG = $right, FUNCTION = $where.planted);\n";
		}
		$sql .= "
CREATE FUNCTION $where.format(text, name, pg_catalog.regclass) RETURNS text LANGUAGE sql AS \$\$SELECT attic.evil(1)::text\$\$;
CREATE FUNCTION $where.snowflake_first_id_since(timestamp) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION $where.snowflake_day_start(date) RETURNS timestamptz LANGUAGE sql AS \$\$SELECT attic.evil(1)::text::timestamptz\$\$;
CREATE FUNCTION $where.snowflake_nextval(VARIADIC integer[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE TYPE $where.regclass AS ENUM ();
CREATE FUNCTION $where.to_oid($where.regclass) RETURNS oid LANGUAGE sql AS 'SELECT 0::oid';
CREATE CAST ($where.regclass AS oid) WITH FUNCTION $where.to_oid AS IMPLICIT;
CREATE FUNCTION $where.to_regclass($where.regclass) RETURNS pg_catalog.regclass LANGUAGE sql AS 'SELECT 0::pg_catalog.regclass';
CREATE CAST ($where.regclass AS pg_catalog.regclass) WITH FUNCTION $where.to_regclass AS IMPLICIT;
CREATE TABLE $where.pg_class (oid oid);"
		  if $schema eq 'ids';
		$node->safe_psql($database, $sql);
	}
	my (undef, undef, $error) = $node->psql($database, "CREATE EXTENSION snowflake SCHEMA $schema; CREATE EXTENSION snowflake_convert");
	is($error, '', "CREATE EXTENSION in schema $schema succeeds in spite of planted objects");
  SKIP: {
	skip 'there is no extension', 4 if $error ne '';
	is( $node->safe_psql($database, q{
SET search_path = pg_catalog;
SELECT count(DISTINCT d.refobjid), string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ')
  FROM pg_depend AS m
  JOIN pg_depend AS d ON (d.classid, d.objid) = (m.classid, m.objid) AND d.deptype = 'n'
 WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::pg_catalog.regclass
   AND d.refobjid >= 16384
   AND d.refclassid <> 'pg_namespace'::pg_catalog.regclass
   AND NOT EXISTS (SELECT FROM pg_depend AS own
                    WHERE (own.classid, own.objid, own.deptype) = (d.refclassid, d.refobjid, 'e'))
   AND pg_describe_object(d.refclassid, d.refobjid, 0) !~ 'type snowflake_convert.reached'   -- a member's parts
}), '0|', "no object of the extension in schema $schema depends on a planted one");
	is( $node->safe_psql($database, q{
SET search_path = pg_catalog;
SELECT count(*) FROM pg_proc WHERE proname = 'snowflake_create_partitions' AND pronamespace = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake')
}), '1', "the functions are in schema $schema");
	$node->safe_psql($database, $event_trigger);
	is(ran_as(), '', "in schema $schema: CREATE EXTENSION runs no planted code");
	$node->safe_psql($database, "CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (id > 0)); SELECT snowflake_convert.key('attic.a', 'id') \\gexec\n; SELECT snowflake_convert.revert('attic.a', 'id')");
	is(ran_as(), '', "in schema $schema: scripts run no planted code");
  }
}

# 2. The event trigger changes only tables of the role that runs the DDL.
my $database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger");

$node->safe_psql($database, q{
CREATE TABLE own (id serial UNIQUE);
CREATE TABLE parent (id bigint PRIMARY KEY DEFAULT snowflake_nextval()) PARTITION BY RANGE (id);
CREATE TABLE attic.part PARTITION OF parent DEFAULT;
ALTER TABLE attic.part OWNER TO attacker;
GRANT REFERENCES (id) ON own TO attacker;
SET ROLE attacker;
CREATE TABLE attic.key (id serial PRIMARY KEY);
CREATE INDEX ON attic.key (id) WHERE attic.folded();
CREATE INDEX ON attic.part (id) WHERE attic.folded();
CREATE TABLE attic.t (own integer REFERENCES public.own (id));
CREATE INDEX ON attic.t (own) WHERE attic.folded();
RESET ROLE;
CREATE TABLE theirs (id serial);
ALTER TABLE theirs OWNER TO attacker;
});

# PostgreSQL checks a foreign key by queries on both tables, and the planner
# evaluates predicates of their indexes.
my @of_others = (
	[ 'ALTER TABLE own ADD PRIMARY KEY (id)', 'own stay as they are: id', 'a table of another role that references the key' ],
	[ 'CREATE TABLE a (id integer REFERENCES attic.key)', 'a stay as they are: id', 'a referenced table of another role' ],
	[ 'CREATE TABLE b (id integer REFERENCES parent)', 'b stay as they are: id', 'a partition of another role' ],
	[ 'ALTER TABLE theirs ADD PRIMARY KEY (id)', 'theirs stays as written', 'a table of another role' ]);
ran_as();
for (@of_others)
{
	my ($sql, $warning, $name) = @$_;

	like(as_role($database, $superuser, $sql), qr/WARNING:  .*table \S*$warning/, "$name: the column stays as it is");
}
is(ran_as(), '', 'the event trigger runs no code of other roles');

# The snapshot is older than a foreign key of the attacker, whose definition
# ALTER TABLE then does not find.
my $repeats = SnowflakeSession->new($node);
$node->safe_psql($database, q{CREATE TABLE later (id serial UNIQUE); GRANT REFERENCES ON later TO attacker});
$repeats->rows("\\c $database\nBEGIN ISOLATION LEVEL REPEATABLE READ");
$repeats->rows('SELECT 1');
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE TABLE attic.late (id integer REFERENCES later (id));
CREATE INDEX ON attic.late (id) WHERE attic.folded();
});
ran_as();
$repeats->rows('ALTER TABLE later ADD PRIMARY KEY (id)');
$repeats->rows('COMMIT');
$repeats->quit;
is(ran_as(), '', 'the event trigger runs no code of a table that its snapshot does not show');

# The attacker owns the database, and so public, or the schema of the table.  It
# renames this schema and another one back and forth, while the superuser creates
# tables.
sub rename_during
{
	my ($attacked, $schema, $other, $tables) = @_;
	my ($stdout, $stderr) = ('', '');
	my $loop = "DO \$\$ BEGIN FOR i IN 1..10000 LOOP "
	  . "EXECUTE 'ALTER SCHEMA $schema RENAME TO away'; EXECUTE 'ALTER SCHEMA $other RENAME TO $schema'; "
	  . "EXECUTE 'ALTER SCHEMA away RENAME TO $other'; COMMIT; PERFORM pg_sleep(0.001); END LOOP; END \$\$";
	my $attack = IPC::Run::start([ 'psql', '-Xq', '-d', $node->connstr($attacked), '-c', 'SET ROLE attacker', '-c', $loop ],
		'>', \$stdout, '2>', \$stderr);
	my (undef, undef, $warnings) = $node->psql($attacked,
		join("\n", map { "CREATE TABLE $tables$_ (id serial PRIMARY KEY);" } 1 .. 100), on_error_stop => 0);

	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '$attacked' AND query LIKE 'DO %'");
	$attack->finish;
	return $warnings;
}

$database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger CREATE SCHEMA own");
$node->safe_psql($database, qq{
ALTER DATABASE $database OWNER TO attacker;
SET ROLE attacker;
CREATE FUNCTION attic.snowflake_nextval() RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::integer::bigint';
});
ran_as();
like(rename_during($database, 'public', 'attic', 'own.t'), qr/The schema \w+ belongs to another role, which is no superuser/,
	q{public belongs to the database's owner: new tables stay as written});
is($node->safe_psql($database, q{
SELECT count(*), count(*) FILTER (WHERE pg_get_expr(adbin, adrelid) LIKE '%snowflake_nextval%')
  FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'own'::regnamespace)
}), '100|0', 'no DEFAULT is bound to a function in a schema that its owner renames');
is(ran_as(), '', 'no code of an owner that renames public runs');

$database = database_under_attack("CREATE SCHEMA ids; CREATE EXTENSION snowflake SCHEMA ids; $event_trigger");
$node->safe_psql($database, qq{
ALTER DATABASE $database OWNER TO attacker;
CREATE SCHEMA front AUTHORIZATION attacker;
CREATE SCHEMA back AUTHORIZATION attacker;
SET ROLE attacker;
} . join(' ', map { "CREATE TABLE back.t$_ (id integer CHECK (attic.evil(id))); INSERT INTO back.t$_ VALUES (1);" } 1 .. 100));
ran_as();
like(rename_during($database, 'front', 'back', 'front.t'), qr/The schema \w+ belongs to another role, which is no superuser/,
	'a new table in a schema of another role stays as written');
is(ran_as(), '', q{no code of a table runs that takes the new table's name});

# 3. Scripts of conversion.  Making one runs no code of a table's owner, and no
# superuser runs one of somebody else's tables: each part of these tables would
# run code of the attacker as who changes the table.
$database = database_under_attack(q{CREATE EXTENSION snowflake_convert CASCADE});
$node->safe_psql($database, q{
SET SESSION AUTHORIZATION attacker;
CREATE DOMAIN attic.dom AS integer CHECK (attic.evil(1));
CREATE FUNCTION attic.back(anyelement) RETURNS boolean LANGUAGE plpgsql AS
'BEGIN PERFORM set_config(''role'', ''none'', false); RETURN attic.evil(1); END';
CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (attic.back(id)), CHECK (attic.evil(id)), CHECK (id > 0 AND '{1}'::attic.dom[] IS NOT NULL));
CREATE INDEX ON attic.a (id) WHERE attic.folded();
CREATE TABLE attic.b (a_id integer REFERENCES attic.a, CHECK (attic.evil(a_id)));
INSERT INTO attic.a VALUES (1);
INSERT INTO attic.b VALUES (1);
CREATE VIEW attic.v AS SELECT id FROM attic.a WHERE attic.evil(id) AND '{1}'::attic.dom[] IS NOT NULL;
CREATE MATERIALIZED VIEW attic.m AS SELECT id FROM attic.v;
CREATE INDEX ON attic.m (id) WHERE attic.folded();
CREATE TABLE attic."a\r\n;SELECT attic.evil(1); --" (id serial PRIMARY KEY, g bigint GENERATED ALWAYS AS (id) STORED, "\r\n;SELECT attic.evil(1); --_id" integer);
} =~ s/\\r\\n/\r\n/gr);
ran_as();
my $make_script = q{SELECT snowflake_convert.schema('{attic}')};
my $attack_script = $node->safe_psql($database, $make_script);
like($attack_script, qr/^-- left out: attic."a\n--     \n--     ;SELECT/m, 'the script has a name with a line break in a comment');
is(ran_as(), '', q{making a script runs no code of the tables' owner});
for my $sql ($attack_script, "$make_script \\gexec")
{
	# psql then rolls back the statement that fails, and goes on.
	my (undef, undef, $refused) = $node->psql($database, "\\set ON_ERROR_ROLLBACK on\n$sql\n", on_error_stop => 0);
	like($refused, qr/this script has to run as role "attacker", not as "$superuser"/, 'the script is refused to a superuser');
	is(ran_as(), '', 'a script that is refused runs no code');
}
# After SET ROLE, the owner's code can go back to the role of the session.
for my $session ($superuser, 'deputy')
{
	like(as_role($database, $session, "SET ROLE attacker;\n$attack_script"),
		qr/this script has to run as role "attacker", not as "$session"/, "SET ROLE in a session of $session is refused");
	is(ran_as(), '', 'a script that is refused after SET ROLE runs no code');
}
is(as_role($database, 'member', "SET ROLE attacker;\nBEGIN;\n$attack_script\nROLLBACK"), '', 'a member that cannot become a superuser runs the script after SET ROLE');
is(ran_as(), 'attacker member', q{the owner's code can take a member's rights});
is(as_role($database, 'attacker', $attack_script), '', 'the owner runs the script');
is(ran_as(), 'attacker', 'the script runs code as its owner');
is($node->safe_psql($database, q{SELECT relname, pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'attic'::regnamespace AND relkind IN ('v', 'm') ORDER BY 1}),
	"m|attacker\nv|attacker", 'the views that were put back belong to their owner');

# What a superuser's script would do with objects of another role is left out.
$database = database_under_attack(q{CREATE EXTENSION snowflake_convert CASCADE});
$node->safe_psql($database, q{
GRANT USAGE ON SCHEMA attic TO PUBLIC;
CREATE TABLE public.p (id integer PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE public.mine (id serial PRIMARY KEY);
CREATE TABLE public.seen (id serial PRIMARY KEY);
CREATE TABLE public.done (id serial PRIMARY KEY);
CREATE TABLE public.parent (id serial PRIMARY KEY);
GRANT REFERENCES, SELECT ON mine, seen TO attacker;
SET ROLE attacker;
CREATE TABLE attic.b (a integer REFERENCES public.mine);
CREATE VIEW attic.v AS SELECT id FROM public.seen;
CREATE TABLE attic.child (id integer NOT NULL);
RESET ROLE;
ALTER TABLE attic.child INHERIT public.parent;
});
my $left_out = $node->safe_psql($database, q{SELECT string_agg(s, ' ') FROM snowflake_convert.schema('{public}') AS s WHERE s LIKE '-- left out%'});
like($left_out, qr/public.mine \(id\): in the way: table attic.b belongs to role attacker/, 'a referencing table of another role is in the way');
like($left_out, qr/public.seen \(id\): in the way: view attic.v belongs to role attacker/, 'a view of another role is in the way');
like($left_out, qr/public.parent \(id\): in the way: table attic.child belongs to role attacker/, 'an inheritor of another role is in the way');

# The schema's owner, or the database's, exchanges names.  The schema's rows are
# locked, so the first waits; a table that the schema's owner has put in place of
# the superuser's is found before anything is done with it.
$node->safe_psql($database, "ALTER DATABASE $database OWNER TO attacker; ALTER TABLE public.done OWNER TO $superuser");
my $done_script = $node->safe_psql($database, q{SELECT snowflake_convert.key('public.done', 'id')});
my $runs = SnowflakeSession->new($node);
$runs->rows("\\c $database\nBEGIN;\n$done_script");
for my $exchange ('ALTER SCHEMA public RENAME TO old', 'DROP SCHEMA attic CASCADE')
{
	like(as_role($database, 'attacker', "SET lock_timeout = '100ms'; $exchange"),
		qr/canceling statement due to lock timeout/, "while a superuser's script runs: no $exchange");
}
$runs->quit;
is(as_role($database, 'attacker', q{DROP TABLE public.done; CREATE TABLE public.done (id integer PRIMARY KEY, CHECK (attic.evil(id))); INSERT INTO public.done VALUES (1);
	CREATE INDEX ON public.done (id) WHERE attic.folded()}), '', q{the schema's owner puts its own table in place of the superuser's});
ran_as();
like(as_role($database, $superuser, $done_script), qr/ERROR:  tables, what depends on them, or names have changed/, 'a table that was put in its place is found');
is(ran_as(), '', 'a table that was put in its place runs no code');

# Between making a script and running it, the attacker adds a foreign key, or puts
# its own schema and function in place of those that a trigger calls.
$database = database_under_attack(q{CREATE EXTENSION snowflake_convert CASCADE});
$node->safe_psql($database, qq{
GRANT CREATE ON DATABASE $database TO attacker;
CREATE SCHEMA lib AUTHORIZATION attacker;
CREATE FUNCTION lib.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE public.referenced (id serial PRIMARY KEY);
CREATE TABLE public.touched (id serial PRIMARY KEY);
CREATE TRIGGER touch BEFORE UPDATE OF id ON public.touched FOR EACH ROW EXECUTE FUNCTION lib.touch();
INSERT INTO public.referenced VALUES (1);
GRANT REFERENCES, SELECT ON public.referenced TO attacker;
});
my %stale = map { $_ => $node->safe_psql($database, "SELECT snowflake_convert.key('public.$_', 'id')") } 'referenced', 'touched';
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE TABLE attic.b (a integer REFERENCES public.referenced);
INSERT INTO attic.b VALUES (1);
CREATE INDEX ON attic.b (a) WHERE attic.folded();
ALTER SCHEMA lib RENAME TO old;
CREATE SCHEMA lib;
CREATE FUNCTION lib.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN NEW; END';
});
ran_as();
for my $table (sort keys %stale)
{
	like(as_role($database, $superuser, $stale{$table}), qr/ERROR:  tables, what depends on them, or names have changed/,
		"a script that is not the present one is refused: $table");
}
is(ran_as(), '', 'a script that is refused runs no code');
is($node->safe_psql($database, q{SELECT tgfoid::regprocedure FROM pg_trigger WHERE tgname = 'touch'}), 'old.touch()', 'the trigger calls the same function');

# A script has the same constants, whatever the settings of who makes and runs it.
$database = database_under_attack(q{CREATE EXTENSION snowflake_convert CASCADE});
$node->safe_psql($database, q{
CREATE TABLE t (id serial PRIMARY KEY, d date, f float8);
CREATE VIEW v AS SELECT id, 'a\'::text AS a, ' b; --'::text AS b FROM t WHERE d < '2026-02-03' AND f < '0.30000000000000004' AND d::timestamp + '-1 day +2 hours' < now();
});
my $view = $node->safe_psql($database, q{SELECT pg_get_viewdef('v')});
# From 19 on, the parameter is always on.
my $strings = $node->safe_psql('postgres', 'SHOW server_version_num') < 190000 ? ' -c standard_conforming_strings=off' : '';
{
	local $ENV{PGOPTIONS} = "-c datestyle=sql,dmy -c intervalstyle=sql_standard -c extra_float_digits=-10$strings";
	my $settings_script = $node->safe_psql($database, q{SELECT snowflake_convert.key('t', 'id')});

	local $ENV{PGOPTIONS} = "-c datestyle=sql,mdy$strings";
	$node->safe_psql($database, $settings_script);
}
is($node->safe_psql($database, q{SELECT pg_get_viewdef('v')}), $view, 'a view has the same constants');

# 4. Partitions.  ATTACH, DETACH and DROP evaluate expressions of partitions and of
# tables that foreign keys connect, as the role that calls; the functions refuse
# tables of two roles, and callers that are not the owner.
$database = database_under_attack(q{CREATE EXTENSION snowflake;
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA house TO attacker;
GRANT USAGE ON SCHEMA attic TO PUBLIC;
});
my $make = q{SELECT snowflake_create_partitions('%s', '2026-02-01', '2026-03-01', '1 month')};
my $drop = q{SELECT snowflake_drop_partitions('%s', '2026-02-01')};
$node->safe_psql($database, q{
SET SESSION AUTHORIZATION victim;
CREATE TABLE house.p (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
GRANT REFERENCES (id) ON house.p TO attacker;
SELECT snowflake_create_partitions('house.p', '2026-01-01', '2026-02-01', '1 month');
SET SESSION AUTHORIZATION attacker;
CREATE TABLE attic.f (p bigint REFERENCES house.p);
CREATE INDEX trap ON attic.f (p) WHERE attic.folded();
GRANT SELECT ON attic.f TO victim;
CREATE TABLE attic.p (id bigint PRIMARY KEY, n integer) PARTITION BY RANGE (id);
CREATE INDEX ON attic.p (n) WHERE attic.folded();
SELECT snowflake_create_partitions('attic.p', '2026-01-01', '2026-02-01', '1 month');
RESET SESSION AUTHORIZATION;
CREATE TABLE attic.mixed (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE attic.mixed_rest PARTITION OF attic.mixed DEFAULT;
ALTER TABLE attic.mixed_rest OWNER TO attacker;
SET SESSION AUTHORIZATION attacker;
ALTER TABLE attic.mixed_rest ADD CHECK (attic.folded());
});
ran_as();
for my $call ($make, $drop)
{
	like(as_role($database, 'victim', sprintf($call, 'house.p')), qr/ERROR:  table attic.f belongs to another role than house.p/,
		"refused if another role's table refers to the partitions: $call");
	like(as_role($database, $_, sprintf($call, 'attic.p')), qr/ERROR:  must be owner of table attic.p\n.*Connect as role "attacker"/,
		"refused to role $_ that is not the owner: $call")
	  for $superuser, 'member';
	like(as_role($database, $_, 'SET ROLE attacker; ' . sprintf($call, 'attic.p')), qr/ERROR:  must be owner of table attic.p\n/,
		"refused after SET ROLE in a session of $_: $call")
	  for $superuser, 'deputy';
	like(as_role($database, $superuser, sprintf($call, 'attic.mixed')), qr/ERROR:  table attic.mixed_rest belongs to another role than attic.mixed/,
		"refused if a partition is another role's: $call");
}
is(ran_as(), '', 'a refused call runs no code of another role');
# The same statements by hand run that code, so the checks above can fail.
as_role($database, $superuser, q{CREATE TABLE attic.x (id bigint PRIMARY KEY); ALTER TABLE attic.mixed ATTACH PARTITION attic.x FOR VALUES FROM (1) TO (2)});
is(ran_as(), $superuser, q{ATTACH by hand runs code of the default partition's owner});
$node->safe_psql($database, 'DROP INDEX attic.trap; DROP TABLE attic.f');
is(as_role($database, 'victim', sprintf($make, 'house.p') . ';' . sprintf($drop, 'house.p')), '', 'without them both succeed');
# A schema's owner cannot put another table in place of a superuser's.
$node->safe_psql($database, "CREATE TABLE attic.mine (id bigint) PARTITION BY RANGE (id); GRANT CREATE ON DATABASE $database TO attacker");
my $caller = SnowflakeSession->new($node);
$caller->rows("\\c $database\nBEGIN; " . sprintf($make, 'attic.mine'));
like(as_role($database, 'attacker', q{SET lock_timeout = '100ms'; ALTER SCHEMA attic RENAME TO taken}),
	qr/canceling statement due to lock timeout/, "a schema is not renamed while a superuser's call is under way");
$caller->quit;

# The library refuses calls by functions of pgEdge's extension, which is named
# snowflake, too.
$node->safe_psql($database, q{
CREATE FUNCTION nextval_of_other(regclass) RETURNS bigint AS '$libdir/snowflake', 'snowflake_nextval' LANGUAGE C;
CREATE FUNCTION currval_of_other(regclass) RETURNS bigint AS '$libdir/snowflake', 'snowflake_currval' LANGUAGE C;
});
for my $function ('nextval_of_other', 'currval_of_other')
{
	my (undef, undef, $stderr) = $node->psql($database, "SELECT $function('pg_class')");
	like($stderr, qr/function $function\(regclass\) is of another extension named "snowflake"/, "$function is refused");
}

$node->stop;
done_testing();
