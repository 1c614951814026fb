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

my $node = snowflake_node('privileges');
my $event_trigger = q{
CREATE EVENT TRIGGER snowflakes ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE SCHEMA', 'ALTER TABLE')
  EXECUTE FUNCTION snowflake_convert_new_tables();
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

# Runs SQL as a role.  Returns its errors and warnings.
sub as_role
{
	my ($database, $role, $sql) = @_;
	my (undef, undef, $stderr) = $node->psql($database, "SET ROLE $role; $sql");

	return $stderr;
}

my $superuser;

$node->start;
$superuser = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', q{
CREATE ROLE attacker;
CREATE ROLE victim;
CREATE ROLE member IN ROLE attacker;
});

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
CREATE FUNCTION $where.snowflake_convert_is_done(oid, smallint) RETURNS boolean LANGUAGE sql AS 'SELECT attic.evil(1)';
CREATE TYPE $where.regclass AS ENUM ();
CREATE FUNCTION $where.to_oid($where.regclass) RETURNS oid LANGUAGE sql AS 'SELECT 0::oid';
CREATE CAST ($where.regclass AS oid) WITH FUNCTION $where.to_oid AS IMPLICIT;
CREATE FUNCTION $where.to_regclass($where.regclass) RETURNS pg_catalog.regclass LANGUAGE sql AS 'SELECT 0::pg_catalog.regclass';
CREATE CAST ($where.regclass AS pg_catalog.regclass) WITH FUNCTION $where.to_regclass AS IMPLICIT;
CREATE TABLE $where.pg_class (oid oid);"
		  if $schema eq 'ids';
		$node->safe_psql($database, $sql);
	}
	my (undef, undef, $error) = $node->psql($database, "CREATE EXTENSION snowflake SCHEMA $schema");
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
}), '0|', "no object of the extension in schema $schema depends on a planted one");
	is( $node->safe_psql($database, q{
SET search_path = pg_catalog;
SELECT count(*) FROM pg_proc WHERE proname = 'snowflake_create_partitions' AND pronamespace = (SELECT extnamespace FROM pg_extension WHERE extname = 'snowflake')
}), '1', "the functions are in schema $schema");
	$node->safe_psql($database, $event_trigger =~ s/(snowflake_convert_new_tables)/$schema.$1/r);
	is(ran_as(), '', "in schema $schema: CREATE EXTENSION runs no planted code");
	$node->safe_psql($database, "SET search_path = pg_catalog; CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (id > 0)); SELECT $schema.snowflake_convert('attic.a', 'id', true)");
	is(ran_as(), '', "in schema $schema: conversion runs no planted code");
  }
}

# 2. The event trigger: a superuser alters somebody else's table, or adds a
# column that references one.
my $database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger");

$node->safe_psql($database, q{
CREATE TABLE own (id serial PRIMARY KEY);
GRANT REFERENCES (id) ON own TO attacker;
ALTER EVENT TRIGGER snowflakes DISABLE;
SET ROLE attacker;
CREATE TABLE attic.t (own integer REFERENCES public.own);
CREATE INDEX ON attic.t (own) WHERE attic.folded();
RESET ROLE;
ALTER EVENT TRIGGER snowflakes ENABLE;
});
ran_as();
as_role($database, $superuser, 'ALTER TABLE attic.t SET (fillfactor = 90)');
is(ran_as(), 'attacker', q{a superuser's ALTER TABLE runs code of the table's owner as the owner});

$database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger");
$node->safe_psql($database, q{
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA house TO attacker;
CREATE TABLE own (id serial PRIMARY KEY);
GRANT REFERENCES ON own TO victim;
ALTER EVENT TRIGGER snowflakes DISABLE;
SET ROLE victim;
CREATE TABLE house.key (id integer PRIMARY KEY REFERENCES public.own);
GRANT REFERENCES (id) ON house.key TO attacker;
SET ROLE attacker;
CREATE TABLE attic.t (key integer REFERENCES house.key);
CREATE INDEX ON attic.t (key) WHERE attic.folded();
RESET ROLE;
GRANT SELECT ON ALL TABLES IN SCHEMA attic TO victim;
GRANT USAGE ON SCHEMA attic TO victim;
ALTER EVENT TRIGGER snowflakes ENABLE;
});
ran_as();
like(as_role($database, 'victim', 'ALTER TABLE house.key SET (fillfactor = 90)'),
	qr/WARNING:  column "key" of table "attic.t" has not become bigint\nDETAIL:  must be owner of table attic.t/,
	'a referencing table of another owner keeps its type, with a WARNING');
is(ran_as(), '', 'code of a referencing table of another owner does not run');

# A superuser's own table references the attacker's.  To check the foreign key,
# PostgreSQL would plan a query on both tables, and the planner would run code
# of the attacker's index as the superuser.
$database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger");
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE TABLE attic.key (id serial PRIMARY KEY);
RESET ROLE;
ALTER EVENT TRIGGER snowflakes DISABLE;
CREATE TABLE public.mine (key integer REFERENCES attic.key);
ALTER EVENT TRIGGER snowflakes ENABLE;
SET ROLE attacker;
CREATE INDEX ON attic.key (id) WHERE attic.folded();
RESET ROLE;
});
ran_as();
like(as_role($database, $superuser, 'ALTER TABLE public.mine SET (fillfactor = 90)'),
	qr/would run code of another role/, 'a foreign key whose check would run code of another role is not checked');
is(ran_as(), '', 'code in an index of the referenced table does not run');
$node->safe_psql($database, 'SET ROLE attacker; DROP INDEX attic.key_id_idx');
is(as_role($database, $superuser, 'ALTER TABLE public.mine SET (fillfactor = 80)'), '', 'without that index the ALTER TABLE has no warning');
is($node->safe_psql($database, q{SELECT atttypid::regtype FROM pg_attribute WHERE attrelid = 'mine'::regclass AND attname = 'key'}),
	'bigint', 'without that index the column becomes bigint');

# The check for such indexes also finds an index that was made after the
# transaction's snapshot.
my $repeats = SnowflakeSession->new($node);
$repeats->rows("\\c $database\nALTER EVENT TRIGGER snowflakes DISABLE; ALTER TABLE public.mine ALTER key TYPE integer; ALTER EVENT TRIGGER snowflakes ENABLE");
$repeats->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
$repeats->rows('SELECT 1');
$node->safe_psql($database, 'SET ROLE attacker; CREATE INDEX ON attic.key (id) WHERE attic.folded()');
ran_as();
$repeats->rows('ALTER TABLE public.mine SET (fillfactor = 70)');
$repeats->rows('COMMIT');
$repeats->quit;
is(ran_as(), '', 'code in an index that is younger than the snapshot does not run');

# A superuser makes a table for another role.
like(as_role($database, $superuser, 'CREATE SCHEMA extra AUTHORIZATION attacker CREATE TABLE t (id serial PRIMARY KEY, CHECK (attic.folded()))'),
	qr/^$/, 'CREATE SCHEMA AUTHORIZATION makes a table for another role');
is(ran_as(), '', 'CREATE SCHEMA AUTHORIZATION runs no code of that role');

# 3. Conversion: a dry run executes no code of the owner, and a run executes it
# as the owner.
for my $type ('integer', 'bigint')
{
	$database = database_under_attack('CREATE EXTENSION snowflake');
	$node->safe_psql($database, qq{
SET ROLE attacker;
CREATE TABLE attic.a (id $type PRIMARY KEY, CHECK (attic.evil(id)));
CREATE INDEX ON attic.a (id) WHERE attic.folded();
CREATE TABLE attic.b (a $type REFERENCES attic.a, CHECK (attic.evil(a)));
INSERT INTO attic.a VALUES (1);
INSERT INTO attic.b VALUES (1);
RESET ROLE;
});
	ran_as();
	is(as_role($database, $superuser, q{SELECT snowflake_convert('attic.a', 'id', true)}),
		'', "a superuser's dry run of a table of another role ($type)");
	is(ran_as(), '', "a superuser's dry run runs no code of the owner ($type)");
	is(as_role($database, 'member', q{SELECT snowflake_convert('attic.a', 'id')}),
		'', "a member of the owner's role converts the table ($type)");
	is(ran_as(), $type eq 'integer' ? 'attacker' : '', "a member's conversion runs code as the owner alone ($type)");
	$node->safe_psql($database, 'ALTER TABLE attic.a ALTER id DROP DEFAULT') if $type eq 'bigint';
	ran_as();
}
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (attic.evil(id)));
CREATE INDEX ON attic.a (id) WHERE attic.folded();
INSERT INTO attic.a VALUES (1);
RESET ROLE;
});
ran_as();
is(as_role($database, $superuser, q{SELECT snowflake_convert('attic.a', 'id')}), '', 'a superuser converts a table of another role');
is(ran_as(), 'attacker', q{a superuser's conversion runs code of the owner as the owner});
is($node->safe_psql($database, q{SELECT atttypid::regtype FROM pg_attribute WHERE attrelid = 'attic.a'::regclass AND attname = 'id'}),
	'bigint', q{a superuser's conversion makes the column bigint});

# Settings that the owner's code changes are restored.
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE FUNCTION attic.leaves() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('search_path', 'attic', false);
    RETURN true;
END $$;
CREATE TABLE attic.c (id serial PRIMARY KEY, CHECK (attic.leaves() OR id > 0));
INSERT INTO attic.c VALUES (1);
});
is($node->safe_psql($database, q{SET search_path = public; SELECT count(*) FROM snowflake_convert('attic.c', 'id'); SHOW search_path}),
	"2\npublic", 'settings that code of the owner has changed are restored');

# An error names tables of other owners that are in the way of a conversion.
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE TABLE attic.p (id integer) PARTITION BY LIST (id);
CREATE TABLE attic.key (id serial PRIMARY KEY, CHECK (attic.evil(id)));
RESET ROLE;
CREATE TABLE public.p1 PARTITION OF attic.p DEFAULT;
CREATE TABLE public.mine (key integer REFERENCES attic.key);
ALTER TABLE attic.p ALTER id TYPE bigint;
} =~ s/ALTER TABLE attic.p ALTER.*;//r);
my $refused = as_role($database, $superuser, q{SELECT snowflake_convert('attic.key', 'id')});
like($refused, qr/foreign key constraint mine_key_fkey of table public.mine: checking it would run code of table attic.key, which belongs to another role/,
	'a foreign key between tables of two owners is in the way');
$refused = as_role($database, $superuser, q{SELECT snowflake_convert('attic.p', 'id')});
like($refused, qr/table public.p1, which does not belong to attacker as table attic.p does/, 'a partition of another owner is in the way');

# A dry run parses expressions again, and the parser reads their constants.  To
# read a constant of an array of a domain, it would run the domain's CHECK.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, q{
SET ROLE attacker;
CREATE DOMAIN attic.dom AS integer CHECK (attic.evil(1));
CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (id > 0 AND '{1}'::attic.dom[] IS NOT NULL));
RESET ROLE;
});
ran_as();
is(as_role($database, $superuser, q{SELECT snowflake_convert('attic.a', 'id', true)}), '', 'a dry run accepts a constant of an array of a domain');
is(ran_as(), '', 'a dry run reads no constant of a domain, whose CHECK would run');
is(as_role($database, $superuser, q{SELECT snowflake_convert('attic.a', 'id')}), '', 'the conversion accepts the constant');
is(ran_as(), 'attacker', 'the conversion reads the constant as the owner');

# The owner's code changes other tables while a conversion is under way.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, q{
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA attic TO victim;
SET ROLE attacker;
CREATE TABLE attic.key (id serial PRIMARY KEY);
GRANT SELECT, REFERENCES ON attic.key TO victim;
CREATE FUNCTION attic.plants(bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('attic.armed') IS NOT NULL AND to_regclass('attic.trap') IS NULL THEN
        CREATE INDEX trap ON attic.key (id) WHERE attic.folded();
    END IF;
    RETURN true;
END $$;
CREATE TABLE attic.b (a integer REFERENCES attic.key, CHECK (attic.plants(a)));
INSERT INTO attic.b VALUES (NULL);
CREATE TABLE attic.armed ();
SET ROLE victim;
CREATE TABLE house.fk (key integer REFERENCES attic.key);
});
like(as_role($database, $superuser, q{SELECT snowflake_convert('attic.key', 'id')}),
	qr/ERROR:  checking a foreign key between tables "house.fk" and "attic.key" would run code of another role/,
	'an index that the owner makes during a conversion is found');
is(ran_as(), 'attacker', 'code of an index that is made during a conversion runs as no other role');

$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, qq{
ALTER DATABASE $database OWNER TO attacker;
CREATE TABLE public.own (id serial PRIMARY KEY);
GRANT REFERENCES ON own TO attacker;
CREATE TABLE public.lines (own integer REFERENCES own);
GRANT USAGE ON SCHEMA attic TO PUBLIC;
SET ROLE attacker;
CREATE FUNCTION attic.tells(anyelement) RETURNS boolean LANGUAGE plpgsql AS \$\$
BEGIN RAISE WARNING 'ran as %', current_user; RETURN true; END \$\$;
CREATE FUNCTION attic.swaps(anyelement) RETURNS boolean LANGUAGE plpgsql AS \$\$
BEGIN
    IF to_regclass('attic.armed') IS NOT NULL AND to_regnamespace('old') IS NULL THEN
        ALTER SCHEMA public RENAME TO old;
        CREATE SCHEMA public;
        CREATE TABLE public.lines (own integer, CHECK (attic.tells(own)));
        INSERT INTO public.lines VALUES (1);
    END IF;
    RETURN true;
END \$\$;
CREATE TABLE attic.b (own integer REFERENCES own, CHECK (attic.swaps(own)));
INSERT INTO attic.b VALUES (NULL);
CREATE TABLE attic.armed ();
});
my $swapped = as_role($database, $superuser, q{SELECT snowflake_convert('own', 'id')});
like($swapped, qr/ERROR:  a schema or table was renamed while column "id" of table "old.own" was converted/,
	'a schema that is renamed during a conversion is found');
unlike($swapped, qr/ran as $superuser/, 'no code of a schema that is renamed during a conversion runs as superuser');

# The planner inlines the cast of a foreign key.
$database = database_under_attack("CREATE EXTENSION snowflake; $event_trigger");
$node->safe_psql($database, q{
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA house TO attacker;
GRANT USAGE ON SCHEMA attic TO PUBLIC;
ALTER EVENT TRIGGER snowflakes DISABLE;
CREATE TABLE own (id bigint PRIMARY KEY DEFAULT snowflake_nextval());
GRANT REFERENCES ON own TO victim;
SET ROLE victim;
CREATE TABLE house.t (own integer REFERENCES public.own, x bigint, UNIQUE (own, x));
GRANT REFERENCES ON house.t TO attacker;
SET ROLE attacker;
CREATE TYPE attic.e AS ENUM ('a');
CREATE FUNCTION attic.cast(attic.e) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$SELECT CASE WHEN attic.folded() THEN 1::bigint END$$;
CREATE CAST (attic.e AS bigint) WITH FUNCTION attic.cast AS IMPLICIT;
CREATE TABLE attic.f (own integer, x attic.e, FOREIGN KEY (own, x) REFERENCES house.t (own, x));
GRANT SELECT ON attic.f TO victim;
RESET ROLE;
ALTER EVENT TRIGGER snowflakes ENABLE;
});
ran_as();
like(as_role($database, 'victim', 'ALTER TABLE house.t SET (fillfactor = 90)'),
	qr/checking a foreign key between tables "house.t" and "attic.f" would run code of another role/, 'a foreign key with a cast by another role is not checked');
is(ran_as(), '', 'a cast by another role does not run');

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
SET ROLE victim;
CREATE TABLE house.p (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
GRANT REFERENCES (id) ON house.p TO attacker;
SELECT snowflake_create_partitions('house.p', '2026-01-01', '2026-02-01', '1 month');
SET ROLE attacker;
CREATE TABLE attic.f (p bigint REFERENCES house.p);
CREATE INDEX trap ON attic.f (p) WHERE attic.folded();
GRANT SELECT ON attic.f TO victim;
CREATE TABLE attic.p (id bigint PRIMARY KEY, n integer) PARTITION BY RANGE (id);
CREATE INDEX ON attic.p (n) WHERE attic.folded();
SELECT snowflake_create_partitions('attic.p', '2026-01-01', '2026-02-01', '1 month');
RESET ROLE;
CREATE TABLE attic.mixed (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE attic.mixed_rest PARTITION OF attic.mixed DEFAULT;
ALTER TABLE attic.mixed_rest OWNER TO attacker;
SET ROLE attacker;
ALTER TABLE attic.mixed_rest ADD CHECK (attic.folded());
});
ran_as();
for my $call ($make, $drop)
{
	like(as_role($database, 'victim', sprintf($call, 'house.p')), qr/ERROR:  table attic.f belongs to another role than house.p/,
		"refused if another role's table refers to the partitions: $call");
	like(as_role($database, $_, sprintf($call, 'attic.p')), qr/ERROR:  must be owner of table attic.p\n.*SET ROLE attacker first/,
		"refused to role $_ that is not the owner: $call")
	  for $superuser, 'member';
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

# 5. A whole schema: views are restored for their owners, and no code runs as
# another role.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, qq{
CREATE SCHEMA house AUTHORIZATION victim;
GRANT ALL ON SCHEMA attic TO victim;
SET ROLE attacker;
CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (attic.evil(id)));
CREATE INDEX ON attic.a (id) WHERE attic.folded();
INSERT INTO attic.a VALUES (1);
CREATE VIEW attic.v AS SELECT id FROM attic.a WHERE attic.evil(id);
CREATE MATERIALIZED VIEW attic.m AS SELECT id FROM attic.v;
CREATE INDEX ON attic.m (id) WHERE attic.folded();
RESET ROLE;
});
ran_as();
my $dry_run = q{SELECT snowflake_convert_schema('{attic}', true)};
my $run = q{SELECT snowflake_convert_schema('{attic}')};
is(as_role($database, $superuser, $dry_run), '', q{a superuser's dry run of a schema of another role});
is(ran_as(), '', q{a superuser's dry run of a schema runs no code of the owner});
is(as_role($database, 'member', $run), '', q{a member of the owner's role converts the schema});
is(ran_as(), 'attacker', 'the conversion of a schema runs code of the owner as the owner alone');
is($node->safe_psql($database, q{SELECT relname, pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'attic'::regnamespace AND relkind IN ('v', 'm') ORDER BY 1}),
	"m|attacker\nv|attacker", 'the views that were put back belong to their owner');

# Views of a superuser would run code of the attacker: the materialised view
# reads the attacker's table, and the other view has a constant of the
# attacker's domain.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, qq{
SET ROLE attacker;
CREATE DOMAIN attic.dom AS integer CHECK (attic.evil(1));
CREATE TABLE attic.a (id serial PRIMARY KEY);
INSERT INTO attic.a VALUES (1);
RESET ROLE;
CREATE MATERIALIZED VIEW public.m AS SELECT id FROM attic.a;
CREATE VIEW public.v AS SELECT id FROM attic.a WHERE '{1}'::attic.dom[] IS NOT NULL;
SET ROLE attacker;
CREATE INDEX ON attic.a (id) WHERE attic.folded();
RESET ROLE;
});
ran_as();
my $theirs = as_role($database, $superuser, $run);
like($theirs, qr/materialized view public.m: filling it may run code of table attic.a, which belongs to another role/,
	q{a superuser's materialised view on a table of another role is in the way});
like($theirs, qr/view public.v: making it again may run code of type attic.dom\[\], which belongs to another role/,
	q{a view with a constant of another role's domain is in the way});
is(ran_as(), '', 'a conversion with such views in the way runs no code');
like(as_role($database, 'attacker', $run), qr/view public.v belongs to role $superuser, which you are not a member of/,
	q{the owner of a table cannot drop another role's view on the table});
$node->safe_psql($database, 'DROP VIEW public.v; REFRESH MATERIALIZED VIEW public.m WITH NO DATA');
ran_as();
is(as_role($database, $superuser, $run), '', 'a materialised view without data is no obstacle');
is(ran_as(), 'attacker', 'the conversion with a materialised view runs code as the owner alone');

# The owner's code changes objects while views are dropped.
for my $attack (
	[ q{ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC},
		qr/a schema or table was renamed while column "id" of table "attic.a" was converted/, 'a schema that is renamed' ],
	[ q{CREATE FUNCTION attic.f(bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN attic.evil(1); END'},
		qr/"public.v" cannot be put back as it was\nDETAIL:  The new definition would use function attic.f\(bigint\), which the present definition does not use/,
		'a new function that fits better' ])
{
	my ($sql, $error, $name) = @$attack;

	$database = database_under_attack('CREATE SCHEMA ids; GRANT USAGE ON SCHEMA ids TO PUBLIC; CREATE EXTENSION snowflake SCHEMA ids');
	$node->safe_psql($database, qq{
ALTER DATABASE $database OWNER TO attacker;
GRANT USAGE ON SCHEMA attic TO PUBLIC;
SET ROLE attacker;
CREATE FUNCTION attic.f(integer) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION attic.swaps(bigint) RETURNS boolean LANGUAGE plpgsql AS \$\$
BEGIN
    IF to_regclass('attic.armed') IS NOT NULL AND to_regclass('public.v') IS NULL THEN
        DROP TABLE attic.armed;
        EXECUTE \$a\$ $sql \$a\$;
    END IF;
    RETURN true;
END \$\$;
CREATE TABLE attic.a (id serial PRIMARY KEY, CHECK (attic.swaps(id)));
INSERT INTO attic.a VALUES (1);
RESET ROLE;
CREATE VIEW public.v AS SELECT id FROM attic.a WHERE attic.f(id);
SET ROLE attacker;
CREATE TABLE attic.armed ();
});
	like(as_role($database, $superuser, $run =~ s/SELECT /SELECT ids./r), $error, "$name during a conversion is found");
	is(ran_as(), '', "$name during a conversion runs no code");
	is($node->safe_psql($database, q{SELECT attic.v FROM (SELECT count(*) AS v FROM public.v) AS attic}), '1', "$name during a conversion: the view is as it was");
}

# Names of objects in the comments of a script.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, qq{
SET ROLE attacker;
CREATE TABLE attic."a\r\n;SELECT attic.evil(1); --" (id serial PRIMARY KEY, g bigint GENERATED ALWAYS AS (id) STORED);
});
my $attack_script = $node->safe_psql($database, $dry_run);
$node->safe_psql($database, $attack_script);
is(ran_as(), '', 'a name with a line break does not end its comment in a script');

# Only an owner may convert a table.
$database = database_under_attack('CREATE EXTENSION snowflake');
$node->safe_psql($database, q{CREATE TABLE t (id serial PRIMARY KEY); GRANT ALL ON t TO attacker});
like(as_role($database, 'attacker', q{SELECT snowflake_convert('t', 'id')}), qr/must be owner of table public.t/, 'a role that does not own a table cannot convert it');

# The event trigger runs no code of an extension schema that the role cannot
# use.
$node->safe_psql($database, q{REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE SCHEMA ids; ALTER EXTENSION snowflake SET SCHEMA ids});
$node->safe_psql($database, $event_trigger =~ s/(snowflake_convert_new_tables)/ids.$1/r);
like(as_role($database, 'attacker', 'CREATE TABLE attic.t (id serial PRIMARY KEY)'),
	qr/WARNING:  column "id" of new table "attic.t" has not become a snowflake\nDETAIL:  permission denied for schema ids/,
	q{without USAGE on the extension's schema a new table stays as written});

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
