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
use lib "$FindBin::RealBin/../lib";
use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeServer;
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

my $node = snowflake_node('privileges', "snowflake_convert.schemas = 'public, attic'");
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

# Members of the attacker whose rights its code must not get.
my @mighty = qw(operator programmer writer reader grantor);

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
CREATE ROLE operators SUPERUSER;
CREATE ROLE operator LOGIN IN ROLE attacker, operators;
CREATE ROLE programmer LOGIN IN ROLE attacker, pg_execute_server_program;
CREATE ROLE writer LOGIN IN ROLE attacker, pg_write_server_files;
CREATE ROLE reader LOGIN IN ROLE attacker, pg_read_server_files;
CREATE ROLE grantor LOGIN CREATEROLE IN ROLE attacker;
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
CREATE FUNCTION $where.snowflake_last_id_before(timestamp) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION $where.snowflake_encode(timestamptz, bigint, bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION $where.snowflake_nextval(VARIADIC integer[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE TYPE $where.regclass AS ENUM ();
CREATE FUNCTION $where.to_oid($where.regclass) RETURNS oid LANGUAGE sql AS 'SELECT 0::oid';
CREATE CAST ($where.regclass AS oid) WITH FUNCTION $where.to_oid AS IMPLICIT;
CREATE FUNCTION $where.to_regclass($where.regclass) RETURNS pg_catalog.regclass LANGUAGE sql AS 'SELECT 0::pg_catalog.regclass';
CREATE CAST ($where.regclass AS pg_catalog.regclass) WITH FUNCTION $where.to_regclass AS IMPLICIT;
CREATE TABLE $where.pg_class (oid oid);");
}
is(as_role($superuser, 'CREATE EXTENSION snowflake SCHEMA ids; CREATE EXTENSION snowflake_convert; CREATE EXTENSION snowflake_partitions; CREATE EXTENSION snowflake_registry'), '',
	'CREATE EXTENSION succeeds in spite of planted objects');
is(superuser(q{
SET search_path = pg_catalog;
SELECT count(DISTINCT m.refobjid), string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FILTER (
         WHERE d.refobjid >= 16384 AND d.refclassid <> 'pg_namespace'::pg_catalog.regclass
           AND NOT EXISTS (SELECT FROM pg_depend AS own WHERE (own.classid, own.objid, own.deptype) = (d.refclassid, d.refobjid, 'e'))
           AND pg_describe_object(d.refclassid, d.refobjid, 0) !~ '(type|table) snowflake_(convert|partitions|registry)\.')   -- such as row types
  FROM pg_depend AS m
  JOIN pg_depend AS d ON (d.classid, d.objid) = (m.classid, m.objid) AND d.deptype = 'n'
  JOIN pg_extension AS e ON e.oid = m.refobjid AND e.extname ~ '^snowflake'
 WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::pg_catalog.regclass
}), '4|', 'no object of the extensions depends on a planted one');
superuser("CREATE TABLE public.a (id bigserial PRIMARY KEY, CHECK (id > 0)); $event_trigger
CREATE TABLE public.b (id bigserial PRIMARY KEY, CHECK (id > 0));
SELECT snowflake_convert.key('public.a', 'id') \\gexec");
is(ran_as(), '', 'CREATE EXTENSION, the event trigger and scripts run no planted code');

# ----- the event trigger -----

new_database("CREATE EXTENSION snowflake; $event_trigger");
superuser(q{
SET ROLE attacker;
CREATE TABLE attic.later (id bigserial, n integer, CHECK (attic.evil(n)));
CREATE INDEX ON attic.later (n) WHERE attic.folded();
RESET ROLE;
CREATE TABLE later (id bigserial UNIQUE);
GRANT REFERENCES ON later TO attacker;
SET ROLE attacker;
CREATE TABLE attic.reference (id bigint REFERENCES public.later (id) CHECK (attic.evil(id)));
CREATE INDEX ON attic.reference (id) WHERE attic.folded();
});
superuser("ALTER DATABASE $database OWNER TO attacker");    # and so owner of public, which has the extension
ran_as();
for (
	[ 'SET ROLE attacker; CREATE TABLE attic.a (id bigserial PRIMARY KEY)', 'attic.a', 'SET ROLE' ],
	[ 'CREATE TABLE attic.b (id bigserial PRIMARY KEY)', 'attic.b', 'a table in a schema of another role' ],
	[ 'ALTER TABLE later ADD PRIMARY KEY (id)', 'later', 'a table that another role references' ])
{
	my ($sql, $table, $name) = @$_;

	is(as_role($superuser, $sql), '', "$name: no message");
	is(superuser("SELECT snowflake_convert.is_snowflake('$table', 1::smallint)"), 't', "$name: the key is a snowflake");
}
is(ran_as(), '', 'the event trigger runs no code of other roles');

# PostgreSQL's own part of ALTER TABLE runs code of the table's owner.
as_role($superuser, 'ALTER TABLE attic.later ADD PRIMARY KEY (id)');
is(ran_as(), '', 'ALTER TABLE of a table without rows runs no code of its owner');
is(superuser(q{SELECT snowflake_convert.is_snowflake('attic.later', 1::smallint)}), 't', 'and its key is a snowflake');

# ----- scripts of conversion -----

# Neither making nor running a script runs code of a table's owner.
new_database('CREATE EXTENSION snowflake_convert CASCADE');
superuser(q{
SET SESSION AUTHORIZATION attacker;
CREATE TABLE attic.a (id bigserial PRIMARY KEY, n integer, CHECK (attic.evil(id)));
CREATE INDEX ON attic.a (n) WHERE attic.folded();
CREATE TABLE attic.b (a_id bigint REFERENCES attic.a, n integer);
CREATE INDEX ON attic.b (n) WHERE attic.folded();
CREATE FUNCTION attic.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN NEW; END';
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON attic.a FOR EACH ROW EXECUTE FUNCTION attic.trap();
CREATE VIEW attic.v AS SELECT id FROM attic.a WHERE attic.evil(id);
ALTER TABLE attic.a ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON attic.a USING (attic.evil(id));
CREATE TABLE attic.of_function (id bigint PRIMARY KEY DEFAULT attic.evil(1)::integer::bigint);
CREATE TABLE attic."a\r\n;SELECT attic.evil(1); --" (id bigserial PRIMARY KEY, "\r\n;SELECT attic.evil(1); --_id" integer REFERENCES attic."a\r\n;SELECT attic.evil(1); --");
INSERT INTO attic.a VALUES (1);
INSERT INTO attic.b VALUES (1);
} =~ s/\\r\\n/\r\n/gr);
ran_as();
for my $make (q{SELECT snowflake_convert.schema('{attic}')}, q{SELECT snowflake_convert.key('attic.a', 'id')})
{
	my $script = superuser($make);

	is(ran_as(), '', "$make runs no code of the tables' owner");
	for my $sql ($script, "$make \\gexec\n")
	{
		# With these settings psql goes on after an error, also in a transaction.
		my (undef, undef, $refused) = $node->psql($database, "\\set ON_ERROR_ROLLBACK on\n$sql\n", on_error_stop => 0);
		like($refused, qr/this script has to run as role "attacker", not as "$superuser"/, "$make: the script is refused to a superuser");
	}
	for my $set ('ROLE', 'SESSION AUTHORIZATION')
	{
		like(as_role($superuser, "SET $set attacker;\n$script"),
			qr/has to run as role "attacker", not as "$superuser"/, "$make: SET $set in a session of a superuser is refused");
	}
	like(as_role('victim', $script), qr/has to run as role "attacker", not as "victim"/, "$make: the script is refused to another role");
	is(as_role('member', "BEGIN; SET ROLE attacker;\n$script\nROLLBACK"), '', "$make: a member of the owner runs the script");
	is(as_role('attacker', "BEGIN;\n$script\nROLLBACK"), '', "$make: the owner runs the script");
	is(ran_as(), '', "$make: the script runs no code of the owner, as nobody");
}
my $script = superuser(q{SELECT snowflake_convert.schema('{attic}')});
like($script, qr/^-- in the way of attic."a\n--     \n--     ;SELECT/m, 'a name with a line break is in a comment');
like($script, qr/^-- widen by hand, because a name has a line break or a \$: ALTER TABLE attic."a\n/m,
	'a statement with a line break has a keyword of its own');

# ----- statements that widen -----

# PostgreSQL checks foreign keys again, whatever their type, and runs the code of
# the indexes and CHECKs of all tables that the statement reads.
sub statements_of
{
	my ($keyword, $lines) = @_;
	return join '', "$lines\n" =~ /^-- $keyword: (.*\n)/mg;
}

new_database(q{CREATE EXTENSION snowflake_convert CASCADE;
CREATE SCHEMA house AUTHORIZATION victim;
GRANT USAGE ON SCHEMA house TO PUBLIC;
GRANT CREATE ON SCHEMA house TO attacker;
});
my %keys = map { $_ => "CREATE TABLE house.$_ (id serial PRIMARY KEY); INSERT INTO house.$_ DEFAULT VALUES; GRANT REFERENCES, TRIGGER ON house.$_ TO attacker;" }
  qw(by_bigint by_smallint by_domain by_parts by_two later free fired);
superuser("SET SESSION AUTHORIZATION victim; @keys{sort keys %keys}" . q{
CREATE TABLE house.middle (id bigint PRIMARY KEY REFERENCES house.by_two, n integer UNIQUE REFERENCES house.by_two);
INSERT INTO house.middle VALUES (1, 1);
GRANT REFERENCES ON house.middle TO attacker;
CREATE TABLE house.mixed (id serial, tenant integer, PRIMARY KEY (id, tenant)) PARTITION BY LIST (tenant);
CREATE TABLE house.mixed_1 PARTITION OF house.mixed FOR VALUES IN (1) PARTITION BY LIST (tenant);
CREATE TABLE house.mixed_1_1 PARTITION OF house.mixed_1 FOR VALUES IN (1);
CREATE TABLE house.parent (id serial PRIMARY KEY);
CREATE TABLE house.child () INHERITS (house.parent);
CREATE TABLE house."d$widen$; SELECT attic.evil(1); --" (id serial PRIMARY KEY);
CREATE TABLE house.even (id serial PRIMARY KEY, CHECK (id % 2 >= 0));
CREATE INDEX ON house.even ((id % 100));
CREATE FUNCTION house.is_fine(integer) RETURNS boolean IMMUTABLE RETURN $1 > 0;
CREATE TABLE house.called (id serial PRIMARY KEY, CHECK (house.is_fine(id)));
CREATE TABLE house.called_2 (id serial PRIMARY KEY, k integer REFERENCES house.called_2);
CREATE INDEX ON house.called_2 (k) WHERE house.is_fine(k);
INSERT INTO house.even DEFAULT VALUES;
SET SESSION AUTHORIZATION attacker;
CREATE FUNCTION house.rest(bigint, integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM attic.evil(1); RETURN 0; END';
CREATE OPERATOR house.% (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = house.rest);
CREATE FUNCTION house.is_fine(bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT attic.evil(1)';
CREATE DOMAIN attic.whole_number AS bigint;
CREATE TABLE attic.of_bigint (k bigint REFERENCES house.by_bigint);
CREATE TABLE attic.of_smallint (k smallint REFERENCES house.by_smallint);
CREATE TABLE attic.of_domain (k attic.whole_number REFERENCES house.by_domain);
CREATE TABLE attic.of_parts (k bigint REFERENCES house.by_parts) PARTITION BY LIST (k);
CREATE TABLE attic.of_parts_1 PARTITION OF attic.of_parts FOR VALUES IN (1);
CREATE TABLE attic.of_middle (k bigint REFERENCES house.middle (n));
CREATE TABLE attic.key (id integer PRIMARY KEY);
CREATE FUNCTION attic.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN NEW; END';
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON house.fired FOR EACH ROW EXECUTE FUNCTION attic.trap();
GRANT REFERENCES ON attic.key TO victim;
RESET SESSION AUTHORIZATION;
ALTER TABLE house.mixed_1_1 OWNER TO attacker;
ALTER TABLE house.child OWNER TO attacker;
SET SESSION AUTHORIZATION attacker;
ALTER TABLE house.mixed_1_1 ADD CHECK (attic.evil(id));
ALTER TABLE house.child ADD CHECK (attic.evil(id));
INSERT INTO attic.key VALUES (1);
GRANT SELECT ON ALL TABLES IN SCHEMA attic TO victim;
SET SESSION AUTHORIZATION victim;
CREATE TABLE house.of_key (id integer PRIMARY KEY REFERENCES attic.key);
INSERT INTO house.of_key VALUES (1);
INSERT INTO house.mixed VALUES (1, 1);
});
# The partial indexes and CHECKs of the attacker's tables; the functions they call
# run as whoever reads or checks the tables.
superuser("SET SESSION AUTHORIZATION attacker;" . join '', map { "CREATE INDEX ON $_ WHERE attic.folded();" }
	'attic.of_bigint (k)', 'attic.of_smallint (k)', 'attic.of_domain (k)', 'attic.of_parts_1 (k)', 'attic.of_middle (k)', 'attic.key (id)', 'house.mixed_1_1 (id)', 'house.child (id)');
superuser("INSERT INTO attic.$_ VALUES (1)") for qw(of_bigint of_smallint of_domain of_parts of_middle);
superuser('CREATE TABLE attic.supers (id serial PRIMARY KEY); CREATE TABLE attic.victims (id serial PRIMARY KEY); ALTER TABLE attic.victims OWNER TO victim;
CREATE TABLE house.to_victims (k integer REFERENCES attic.victims); ALTER TABLE house.to_victims OWNER TO victim');
ran_as();
my $of_house = superuser(q{SELECT snowflake_convert.schema('{house}')})
  . "\n" . superuser(q{SELECT snowflake_convert.key('house.of_key', 'id')}) . "\n" . superuser(q{SELECT snowflake_convert.key('attic.supers', 'id')})
  . "\n" . superuser(q{SELECT snowflake_convert.key('attic.victims', 'id')});
is(ran_as(), '', 'listing the statements runs no code of another role');
for (
	[ 'by_bigint', 'table attic.of_bigint belongs to role attacker', 'a bigint column of another role references the key' ],
	[ 'by_smallint', 'table attic.of_smallint belongs to role attacker', 'so does a smallint column' ],
	[ 'by_domain', 'table attic.of_domain belongs to role attacker', 'so does a column of a domain' ],
	[ 'by_parts', 'table attic.of_parts belongs to role attacker', 'so does a partitioned table' ],
	[ 'middle', 'table attic.of_middle belongs to role attacker', 'so does a column, the reference' ],
	[ 'mixed', 'table house.mixed_1_1 belongs to role attacker', 'another role has a partition of a partition' ],
	[ 'parent', 'table house.child belongs to role attacker', 'another role has an inheritor' ],
	[ 'of_key', 'table attic.key belongs to role attacker', 'the column references a table of another role' ],
	[ 'called', 'constraint called_id_check on table house.called uses function house.is_fine\(integer\)', 'another role has a function of the name that a CHECK calls' ],
	[ 'called_2', 'index house.called_2_k_idx uses function house.is_fine\(integer\)', 'so it is with an index' ])
{
	my ($table, $why, $name) = @$_;

	like($of_house, qr/^-- widen by hand, because $why: ALTER TABLE house.$table /m, "$name: by hand");
}
like($of_house, qr/^-- widen by hand, because schema attic belongs to role attacker: ALTER TABLE attic.supers /m,
	q{a superuser's table in a schema of another role: by hand});
# The attacker could exchange two schemas, in which the victim has tables of one name.
like($of_house, qr/^-- widen by hand, because schema attic belongs to role attacker: ALTER TABLE attic.victims /m,
	q{a victim's table in a schema of another role: by hand});
like($of_house, qr/^-- widen by hand, because schema attic belongs to role attacker: ALTER TABLE house.to_victims /m,
	q{and a column that references it, because PostgreSQL checks the foreign key by the tables' names: by hand});
like($of_house, qr/^-- widen by hand, because a name has a line break or a \$: ALTER TABLE house."d\$/m, 'a name that would end the quote: by hand');
my $widen = statements_of('widen', $of_house);
my $later = join '', grep { /house\.later / } $widen =~ /(.*\n)/g;
my $free = join '', grep { /house\.(free|fired|by_two|even) / } $widen =~ /(.*\n)/g;
is(scalar(() = $free =~ /ALTER TABLE house\.(?:free|fired|by_two|even) /g), 4, 'tables that only their owner has something to do with have statements to run');

# After the script was made, the attacker references the key.
is(as_role('attacker', q{CREATE TABLE attic.of_later (k bigint REFERENCES house.later); CREATE INDEX ON attic.of_later (k) WHERE attic.folded();
GRANT SELECT ON attic.of_later TO victim; }), '', 'the attacker references a key after the script was made');
superuser('INSERT INTO attic.of_later VALUES (1)');
ran_as();
like(as_role('victim', $later), qr/ERROR:  tables or names have changed since the script was made: table attic.of_later belongs to role attacker/, 'its statement is refused');
like(as_role($superuser, $free), qr/has to run as role "victim", not as "$superuser"/, 'a superuser does not run the statements');
like(as_role($superuser, "SET ROLE victim; $free"), qr/has to run as role "victim", not as "$superuser"/, 'nor after SET ROLE');
is(as_role('victim', "SET search_path = house;\n$free"), '', 'the owner runs the statements, with planted names in the path of the session');
is(superuser(q{SELECT count(*) FROM pg_attribute WHERE attrelid IN ('house.free'::regclass, 'house.fired'::regclass, 'house.by_two'::regclass, 'house.even'::regclass) AND attname = 'id' AND atttypid = 'bigint'::regtype}),
	'4', 'and the keys are widened');
is(ran_as(), '', 'no statement runs code of another role');
as_role('victim', 'ALTER TABLE house.by_bigint ALTER id TYPE bigint');
is(ran_as(), 'victim', q{the same ALTER TABLE by hand runs the attacker's code as the owner of the key});
superuser('CREATE TABLE attic.whole (id serial PRIMARY KEY); ALTER TABLE attic.whole OWNER TO attacker');
like(superuser(q{SET ROLE victim; SELECT snowflake_convert.schema('{attic,house}')}), qr/^-- widen as role attacker: DO .* ALTER TABLE attic.whole /m,
	'a table of another role, with all that it needs, has a keyword of its own');

# Without the extension, the statements do not call what has its name.
superuser(q{DROP EXTENSION snowflake_convert; CREATE SCHEMA snowflake_convert AUTHORIZATION attacker; GRANT USAGE ON SCHEMA snowflake_convert TO PUBLIC;
SET ROLE attacker;
CREATE PROCEDURE snowflake_convert.begin_widening(name, regclass, name[], interval) LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); END'});
is(scalar(() = ($node->psql($database, $widen, extra_params => [ '-U', 'victim' ], on_error_stop => 0))[2] =~ /ERROR:  extension "snowflake_convert" is not installed/g),
	scalar(() = $widen =~ /^DO /mg), 'without the extension, each of the statements fails');
is(ran_as(), '', 'also if psql goes on after an error');

# ----- names that a script looks up -----

# A script runs under the search_path of its session.
new_database('CREATE EXTENSION snowflake_convert CASCADE; CREATE TABLE public.b (id bigserial PRIMARY KEY); CREATE TABLE public.c (id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT BY 2) PRIMARY KEY)');
superuser(q{SET ROLE attacker;
CREATE FUNCTION attic.same(name, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN attic.evil(1); END';
CREATE FUNCTION attic.same(name, name) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN attic.evil(1); END';
CREATE OPERATOR attic.= (LEFTARG = name, RIGHTARG = text, FUNCTION = attic.same);
CREATE OPERATOR attic.= (LEFTARG = name, RIGHTARG = name, FUNCTION = attic.same);
CREATE FUNCTION attic.nextval(text) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
CREATE FUNCTION attic.setval(text, bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
CREATE FUNCTION attic.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN $2; END';
CREATE FUNCTION attic.current_setting(text, boolean) RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN NULL; END';
CREATE FUNCTION attic.snowflake_id() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); RETURN 1; END';
CREATE DOMAIN attic.text AS pg_catalog.text CHECK (attic.evil(VALUE));
CREATE DOMAIN attic.name AS pg_catalog.name CHECK (attic.evil(VALUE));
CREATE DOMAIN attic.regclass AS pg_catalog.regclass CHECK (attic.evil(1));
CREATE DOMAIN attic.interval AS pg_catalog.interval CHECK (attic.evil(1));
CREATE DOMAIN attic.int8 AS pg_catalog.int8 CHECK (attic.evil(1));
CREATE VIEW attic.pg_extension AS SELECT 'snowflake_convert'::pg_catalog.text AS extname WHERE attic.evil(1)});
my $of_public = superuser(q{SELECT snowflake_convert.schema('{public}')});
ran_as();
is(as_role($superuser, "SET search_path = attic, pg_catalog, public;\n$_"), '', 'a script runs, with planted names in the path of the session') for $of_public, statements_of('back', $of_public);
superuser('INSERT INTO public.b DEFAULT VALUES; INSERT INTO public.c DEFAULT VALUES');
is(ran_as(), '', 'and finds none of them, nor do the DEFAULTs afterwards');

# Between making a script and running it, the attacker puts a table of its own in
# place of the superuser's.  It owns the database, and so public.
new_database('CREATE EXTENSION snowflake_convert CASCADE');
superuser('CREATE TABLE done (id bigserial PRIMARY KEY); CREATE TABLE kept (id bigserial PRIMARY KEY)');
my %script_of = map { $_ => superuser("SELECT snowflake_convert.key('public.$_', 'id')") } qw(done kept);
superuser("ALTER DATABASE $database OWNER TO attacker");
is(as_role('attacker', q{
DROP TABLE public.done;
CREATE TABLE public.done (id bigserial PRIMARY KEY, CHECK (attic.evil(id)));
INSERT INTO public.done VALUES (1);
CREATE INDEX ON public.done (id) WHERE attic.folded();
}), '', 'the attacker exchanges what a script names');
ran_as();
like(as_role($superuser, $script_of{done}), qr/ERROR:  tables, what depends on them, or names have changed/, 'a script of an exchanged table is refused');
is(as_role($superuser, $script_of{kept}), '', q{a superuser's script runs in a database of another role});
is(ran_as(), '', 'neither runs code of the attacker');

# The attacker, who owns the schemas of the tables and of the extension, exchanges
# schemas after the script has looked at them.
new_database('CREATE SCHEMA ids AUTHORIZATION attacker; CREATE EXTENSION snowflake SCHEMA ids; CREATE EXTENSION snowflake_convert');
superuser(q{
CREATE TABLE attic.mine (id bigserial PRIMARY KEY);
CREATE SCHEMA false_ids AUTHORIZATION attacker;
CREATE SCHEMA false_attic AUTHORIZATION attacker;
SET ROLE attacker;
CREATE FUNCTION false_ids.snowflake_id() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT attic.evil(1)::integer::bigint';
CREATE TABLE false_attic.mine (id bigserial PRIMARY KEY);
});
ran_as();
for my $schema ('ids', 'attic')
{
	my $exchange = superuser(q{SELECT snowflake_convert.key('attic.mine', 'id')});

	$exchange =~ s/^(    CALL snowflake_convert.begin_script.*\n)/$1 ALTER SCHEMA $schema RENAME TO true_$schema; ALTER SCHEMA false_$schema RENAME TO $schema;\n/m or die;
	like(as_role($superuser, $exchange), qr/ERROR:  the DEFAULT of column id of \S+ is not snowflake_id\(\) of the extension/,
		"a script that sees another schema $schema is undone");
}
is(ran_as(), '', 'such a script runs no code of the attacker');

# ----- the way back -----

superuser('CREATE TABLE attic.theirs (id bigserial PRIMARY KEY); CREATE INDEX ON attic.theirs (id) WHERE attic.folded(); ALTER TABLE attic.theirs OWNER TO attacker');
my $theirs = superuser(q{SELECT snowflake_convert.key('attic.theirs', 'id')});
my $refused = qr/ERROR:  this script has to run as role "attacker"/;
like(as_role($_, "SET ROLE attacker;\n$theirs"), $refused, "a member with the rights of $_ does not run the script") for @mighty;
is(as_role('attacker', $theirs), '', 'the owner runs the script');
ran_as();
like(as_role($superuser, statements_of('back', $theirs)), $refused, 'a superuser does not run the way back');
like(as_role($_, "SET ROLE attacker;\n" . statements_of('back', $theirs)), $refused, "neither does a member with the rights of $_") for @mighty;
is(ran_as(), '', 'no code of the owner runs as somebody else');
is(as_role('attacker', statements_of('back', $theirs)), '', 'the owner runs the way back');
is(ran_as(), '', 'which runs no code of the owner, as nobody');
like(as_role('attacker', statements_of('back', $theirs)), qr/ERROR:  a key, .* is not a snowflake of this owner/, 'the way back runs once');
superuser('GRANT USAGE ON SCHEMA ids TO victim; GRANT CREATE ON SCHEMA attic TO victim; CREATE TABLE attic.ours (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY); ALTER TABLE attic.ours OWNER TO victim');
my $ours = superuser(q{SELECT snowflake_convert.key('attic.ours', 'id')});
is(as_role('victim', $ours), '', 'a table in a schema of another role is converted');
is(as_role('victim', statements_of('back', $ours)), '', 'and the way back leads there');

# A key whose owner could not issue an id keeps its sequence.
superuser('REVOKE EXECUTE ON FUNCTION ids.snowflake_id() FROM PUBLIC; CREATE TABLE attic.mute (id bigserial PRIMARY KEY); ALTER TABLE attic.mute OWNER TO victim');
like(superuser(q{SELECT snowflake_convert.key('attic.mute', 'id')}), qr/^-- in the way .*: its owner may not execute the function of new ids$/m,
	'a key whose owner may not issue ids is in the way');
superuser('GRANT EXECUTE ON FUNCTION ids.snowflake_id() TO PUBLIC');

# Each line of a name would be a statement for sed and psql.
superuser(qq{CREATE TABLE attic."x\n-- back: SELECT attic.evil(1); --\n" (id bigserial PRIMARY KEY)});
my $lines = superuser(q{SELECT snowflake_convert.schema('{attic}')});
like($lines, qr/^-- in the way of .*\n(?:--     .*\n)*.*: a name has a line break$/m, 'a name with a line break is in the way');
unlike($lines, qr/^-- back: SELECT attic/m, 'no line of a name is a statement of the comments');
if (superuser('SHOW server_version_num') < 190000)    # 19 lets no role have such a name
{
	superuser(qq{CREATE ROLE "app\r--"; CREATE TABLE attic.granted (id bigserial PRIMARY KEY); GRANT USAGE ON attic.granted_id_seq TO "app\r--"});
	like(superuser(q{SELECT snowflake_convert.key('attic.granted', 'id')}), qr/: a name has a line break$/m, 'so is that of a role that has a privilege');
}

# A name leads to another table after the wait for the lock.
superuser('CREATE SCHEMA other; CREATE TABLE attic.moved (id bigserial PRIMARY KEY); CREATE TABLE other.moved (id bigserial PRIMARY KEY)');
my $moved = superuser(q{SELECT snowflake_convert.key('attic.moved', 'id')});
my ($holder, $runner) = map { SnowflakeSession->new($node) } 1 .. 2;
$_->rows("\\c $database") for $holder, $runner;
$holder->rows('BEGIN');
$holder->rows('DROP TABLE attic.moved');
$holder->rows('ALTER TABLE other.moved SET SCHEMA attic');
$runner->ask($moved =~ s/;\z//r);
ok(wait_for(sub { superuser(q{SELECT count(*) FROM pg_locks WHERE NOT granted}) eq '1' }), 'a script waits for its table');
$holder->rows('COMMIT');
like($runner->outcome->{text}, qr/tables or names have changed while this script waited for locks/, 'a script whose table was dropped meanwhile is refused');
$_->quit for $holder, $runner;

# ----- partitions -----

# ATTACH, DETACH and DROP evaluate expressions of partitions and of tables that
# foreign keys connect, as the role that calls; the functions refuse tables of two
# roles, and callers that are not the owner, or a member of it after SET ROLE.
new_database(q{CREATE EXTENSION snowflake_partitions CASCADE;
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
my $create = q{CALL snowflake_partitions.create_range('%s', '2026-02-01', '2026-03-01', '1 month')};
my $drop = q{CALL snowflake_partitions.drop_before('%s', '2026-02-01')};
for my $call ($create, $drop)
{
	for (
		[ 'victim', '', 'house.p', 'table attic.f belongs to another role than house.p' ],
		[ $superuser, '', 'public.mixed', 'table attic.mixed_rest belongs to another role than public.mixed' ],
		[ $superuser, '', 'attic.p', 'must be owner of table attic.p\n.*Connect as role "attacker" or' ],
		[ $superuser, 'SET ROLE attacker;', 'attic.p', 'must be owner of table attic.p\n' ],
		[ $superuser, 'SET SESSION AUTHORIZATION attacker;', 'attic.p', 'must be owner of table attic.p\n' ],
		[ 'victim', '', 'house.part', 'table attic.whole belongs to another role than house.part' ])
	{
		my ($role, $set_role, $table, $error) = @$_;

		like(as_role($role, $set_role . sprintf($call, $table)), qr/ERROR:  $error/, "$role is refused: $set_role$call of $table");
	}
}
is(ran_as(), '', 'a refused call runs no code of another role');
unlike(as_role('member', 'SET ROLE attacker;' . sprintf($create, 'attic.p')), qr/ERROR/, 'a member of the owner creates partitions');
like(as_role($_, 'SET ROLE attacker;' . sprintf($create, 'attic.p')), qr/ERROR:  must be owner of table attic.p/, "a member with the rights of $_ does not") for @mighty;
is(ran_as(), 'attacker', q{and the owner's code runs as the owner});

# ATTACH by hand runs such code, so the check above can fail.
as_role($superuser, q{CREATE TABLE attic.x (id bigint PRIMARY KEY); ALTER TABLE public.mixed ATTACH PARTITION attic.x FOR VALUES FROM (1) TO (2)});
is(ran_as(), $superuser, q{ATTACH by hand runs code of the default partition's owner});
superuser('DROP INDEX attic.trap; DROP TABLE attic.f');
unlike(as_role('victim', sprintf($create, 'house.p') . ';' . sprintf($drop, 'house.p')), qr/ERROR/, 'without the foreign key of another role, partitions are created and dropped');

# The attacker plants a function of an internal name, and types that the bodies use.
superuser(q{
GRANT CREATE ON SCHEMA public TO attacker;
CREATE SCHEMA safe;
CREATE TABLE safe.p (id bigint) PARTITION BY RANGE (id);
});
is(as_role('attacker', q{
CREATE FUNCTION public.check_parent(regclass) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM attic.evil(1); END';
}), '', 'the attacker plants a function');
superuser(join ';', 'CREATE FUNCTION attic.equal(text, text) RETURNS boolean LANGUAGE sql AS $$SELECT attic.evil(1)$$',
	'CREATE OPERATOR attic.= (LEFTARG = text, RIGHTARG = text, FUNCTION = attic.equal)',
	map { "CREATE DOMAIN attic.$_ AS pg_catalog.$_ CHECK (attic.evil(1))" } qw(regclass text timestamptz interval float8));
unlike(as_role($superuser, 'SET search_path = attic, pg_catalog, public;' . sprintf($create, 'safe.p') . ';' . sprintf($drop, 'safe.p')), qr/ERROR/, 'partitions are created and dropped beside a planted function');
is(ran_as(), '', 'the functions for partitions call no planted function');

# A schema's owner could put another table in place of a superuser's.
superuser('CREATE TABLE attic.mine (id bigint) PARTITION BY RANGE (id)');
like(as_role($superuser, sprintf($create, 'attic.mine')), qr/ERROR:  the schema of table attic.mine belongs to role "attacker"\n.*\n.*GRANT "$superuser" TO "attacker"/,
	q{partitions of a superuser's table in a schema of another role are refused});

# While a call waits for the lock, the schema gets another name, and the attacker
# makes one of the old name.
superuser("GRANT CREATE ON DATABASE $database TO attacker");
my ($writer, $caller) = map { SnowflakeSession->new($node) } 1 .. 2;
$_->rows("\\c $database") for $writer, $caller;
$writer->rows('BEGIN');
$writer->rows('LOCK TABLE safe.p IN SHARE MODE');
$caller->ask(q{CALL snowflake_partitions.create_range('safe.p', '2026-03-01', '2026-04-01', '1 month', '1 min')});
ok(wait_for(sub { superuser(q{SELECT count(*) FROM pg_locks WHERE NOT granted}) eq '1' }), 'a call waits for its table');
superuser('ALTER SCHEMA safe RENAME TO still_safe');
is(as_role('attacker', 'CREATE SCHEMA safe; GRANT ALL ON SCHEMA safe TO PUBLIC'), '', 'the attacker makes a schema of the old name');
$writer->rows('COMMIT');
$caller->outcome;
is(superuser(q{SELECT max(inhrelid)::regclass FROM pg_inherits WHERE inhparent = 'still_safe.p'::regclass}), 'still_safe.p_2026_03',
	'the partition is made in the schema of its table');
$_->quit for $writer, $caller;

# The attacker owns the database and the schema of extension "snowflake".  It exchanges
# that schema for one with functions that match calls equally well.
new_database('CREATE SCHEMA ids AUTHORIZATION attacker; CREATE EXTENSION snowflake SCHEMA ids; CREATE EXTENSION snowflake_partitions; CREATE SCHEMA safe');
superuser(qq{
ALTER DATABASE $database OWNER TO attacker;
CREATE ROLE crew;
CREATE ROLE sailor LOGIN IN ROLE crew;
ALTER ROLE sailor SET role = crew;
CREATE SCHEMA team AUTHORIZATION crew;
GRANT USAGE ON SCHEMA ids TO PUBLIC;
SET ROLE crew;
CREATE TABLE team.p (id ids.snowflake PRIMARY KEY) PARTITION BY RANGE (id);
RESET ROLE;
CREATE TABLE safe.p (id bigint) PARTITION BY RANGE (id);
SET SESSION AUTHORIZATION attacker;
ALTER SCHEMA ids RENAME TO true_ids;
CREATE SCHEMA ids;
GRANT USAGE ON SCHEMA ids TO PUBLIC;
CREATE FUNCTION ids.snowflake_min_id(timestamptz) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION ids.snowflake_encode(timestamptz, int, int, int) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
CREATE FUNCTION ids.snowflake_last_id_before(timestamptz) RETURNS bigint LANGUAGE sql AS 'SELECT attic.evil(1)::int::bigint';
});
ran_as();
for ([ $superuser, 'safe.p' ], [ 'sailor', 'team.p' ])
{
	my ($role, $table) = @$_;

	unlike(as_role($role, join ';', map { sprintf($_, $table) } $create, $create =~ s{2026-02-01', '2026-03}{2026-01-01', '2026-04}r, $drop), qr/ERROR/,
		"$role creates and drops partitions of $table in a database of the attacker");
	is(superuser("SELECT min(inhrelid)::regclass, count(*) FROM pg_inherits WHERE inhparent = '$table'::regclass"), "${table}_2026_02|2", 'as the call says');
}
is(ran_as(), '', 'no call runs code of the attacker');
$node->stop;

done_testing();
