/*
 * snowflake_convert 1.0: scripts that turn serial and identity keys into
 * snowflakes.
 *
 * The functions read the catalogue and return the text of a script.  They
 * execute nothing: the tables' owner looks at the script, and runs it.
 *
 * What a script cannot put back as it was, and what PostgreSQL might parse anew
 * as something else, is not changed: the key is left out, and the script names
 * what is in the way.  So is what another role could exchange meanwhile.
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake_convert" to load this file. \quit

-- The control file names no schema: this statement fails if somebody has made a
-- schema of this name before.
CREATE SCHEMA snowflake_convert;
GRANT USAGE ON SCHEMA snowflake_convert TO PUBLIC;
COMMENT ON SCHEMA snowflake_convert IS 'scripts that turn serial and identity keys into snowflakes';

-- Names below are looked up here.  The bodies pin the same path.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- Finds the functions by their OIDs: the schema of the extension snowflake may
-- belong to a role that makes functions and operators of the same names.
CREATE FUNCTION snowflake_convert.id_functions()
RETURNS regprocedure[] LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(p.oid::regprocedure ORDER BY p.proname)    -- snowflake_id() first
      FROM pg_extension AS e
      JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.deptype) = ('pg_extension'::regclass, e.oid, 'e')
                         AND d.classid = 'pg_proc'::regclass
      JOIN pg_proc AS p ON p.oid = d.objid
     WHERE e.extname = 'snowflake' AND p.proname IN ('snowflake_id', 'snowflake_nextval') AND p.pronargs = 0;
END;

-- A snowflake is a column whose DEFAULT calls one of them.
CREATE FUNCTION snowflake_convert.is_snowflake(tab regclass, attnum smallint)
RETURNS boolean LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = on    -- for one column, whoever calls
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_attrdef AS f
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_attrdef'::regclass, f.oid) AND d.refclassid = 'pg_proc'::regclass
         WHERE (f.adrelid, f.adnum) = (tab, attnum) AND d.refobjid = ANY (snowflake_convert.id_functions()));
END;

-- Finds the sequence that makes a column's values, by an identity or a DEFAULT that is
-- nextval() and no more.
CREATE FUNCTION snowflake_convert.sequence_of(tab regclass, attnum smallint)
RETURNS regclass LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = on    -- for one column, whoever calls
BEGIN ATOMIC
    SELECT s.oid
      FROM (SELECT d.objid FROM pg_depend AS d
             WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, tab, attnum)
               AND (d.classid, d.deptype) = ('pg_class'::regclass, 'i')
            UNION ALL
            SELECT d.refobjid FROM pg_attrdef AS f
              JOIN pg_depend AS d ON (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
             WHERE (f.adrelid, f.adnum) = (tab, attnum)
               AND pg_get_expr(f.adbin, f.adrelid) = format('nextval(%L::regclass)', d.refobjid::regclass)) AS u(sequence)
      JOIN pg_class AS s ON s.oid = u.sequence AND s.relkind = 'S'
     LIMIT 1;
END;

--
-- What changes: columns, sequences, foreign keys
--

-- One column that a script reaches from the columns that it is made for.
CREATE TYPE snowflake_convert.reached AS (
    tab regclass,
    attnum smallint,
    attname name,
    keys integer[],         -- the given columns, counted from 1, whose type this column must have
    is_key boolean,         -- a given key, or the same column of an inheritor
    is_inherited boolean,   -- ALTER TABLE on the parent changes this column, too
    type regtype,           -- what it is to have
    is_changed boolean,     -- has another type now
    back jsonb);            -- what it is to become again; NULL: bigint, and a key a snowflake
COMMENT ON TYPE snowflake_convert.reached IS 'internal: a column that a script changes because of inheritance or foreign keys';

-- The first key_count of the given columns are keys.  "back" is the argument of
-- snowflake_convert.revert(), with normal names; a column that it does not name
-- becomes what its key becomes.
CREATE FUNCTION snowflake_convert.reach(rels regclass[], cols name[], key_count integer, back jsonb DEFAULT '{}')
RETURNS SETOF snowflake_convert.reached LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off    -- use indexes only; see below
BEGIN ATOMIC
    -- The catalogue may have thousands of partitions, and the planner expects a
    -- recursion to reach most rows.  So each step has to use an index.
    -- pg_constraint has no index on the referenced table, but pg_depend has one.
    WITH RECURSIVE reached(key, tab, attnum, attname, is_key) AS (
        SELECT k.key::integer, a.attrelid, a.attnum, a.attname, k.key <= key_count
          FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(rel, col, key)
          JOIN pg_attribute AS a ON a.attrelid = k.rel AND a.attname = k.col AND NOT a.attisdropped
        UNION
        SELECT r.key, next.tab, next.attnum, next.attname, r.is_key AND next.is_inheritor
          FROM reached AS r,
               LATERAL (
                   SELECT a.attrelid, a.attnum, a.attname, false
                     FROM pg_depend AS d
                     JOIN pg_constraint AS k ON k.oid = d.objid
                     JOIN pg_attribute AS a ON a.attrelid = k.conrelid
                                           AND a.attnum = k.conkey[array_position(k.confkey, r.attnum)]
                    WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, r.tab, r.attnum)
                      AND d.classid = 'pg_constraint'::regclass
                      AND k.contype = 'f' AND k.confrelid = r.tab
                   UNION ALL
                   -- A column has the same name and type in parents and inheritors.
                   SELECT c.attrelid, c.attnum, c.attname, true
                     FROM pg_inherits,
                          LATERAL (SELECT attrelid, attnum, attname FROM pg_attribute
                                    WHERE attrelid = inhrelid AND attname = r.attname
                                   OFFSET 0) AS c   -- keeps the planner from looking up attname in all tables first
                    WHERE inhparent = r.tab
                   UNION ALL
                   SELECT p.attrelid, p.attnum, p.attname, false
                     FROM pg_inherits
                     JOIN pg_attribute AS p ON p.attrelid = inhparent AND p.attname = r.attname
                    WHERE inhrelid = r.tab
               ) AS next(tab, attnum, attname, is_inheritor)
    )
    SELECT c.tab::regclass, c.attnum, c.attname, c.keys, c.is_key, a.attinhcount > 0, t.type, a.atttypid <> t.type, b.back
      FROM (SELECT tab, attnum, attname, array_agg(DISTINCT key), bool_or(is_key)
              FROM reached GROUP BY tab, attnum, attname) AS c(tab, attnum, attname, keys, is_key)
      JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum),
           LATERAL (SELECT CASE WHEN back <> '{}' THEN coalesce(back -> format('%s.%I', c.tab::regclass, c.attname),
                                                                back -> format('%s.%I', rels[c.keys[1]], cols[c.keys[1]])) END) AS b(back),
           LATERAL (SELECT coalesce(b.back ->> 'type', 'bigint')::regtype) AS t(type);
END;

-- Finds the foreign keys that contain or reference a column whose type changes.
-- The script drops them first and adds them last, so that PostgreSQL checks each
-- foreign key only once.
CREATE FUNCTION snowflake_convert.foreign_keys(reach snowflake_convert.reached[])
RETURNS TABLE (oid oid, keys integer[], conname name, tab regclass, references_tab regclass)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT k.oid, array_agg(DISTINCT key), k.conname, k.conrelid::regclass, k.confrelid::regclass
      FROM (SELECT oid, conname, conrelid, confrelid, conrelid AS tab, unnest(conkey) AS attnum FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
            UNION ALL
            SELECT oid, conname, conrelid, confrelid, confrelid, unnest(confkey) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0) AS k
      JOIN unnest(reach) AS c ON c.is_changed AND (c.tab::oid, c.attnum) = (k.tab, k.attnum),
           unnest(c.keys) AS key
     GROUP BY k.oid, k.conname, k.conrelid, k.confrelid;
END;

-- Lists the tables that change, in the order in which PostgreSQL's own statements
-- lock tables: parents before inheritors and partitions, then by OID.
CREATE FUNCTION snowflake_convert.locks(reach snowflake_convert.reached[])
RETURNS regclass[] LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE locked(tab) AS (
        SELECT c.tab FROM unnest(reach) AS c WHERE c.is_key OR c.is_changed
        UNION
        SELECT t FROM snowflake_convert.foreign_keys(reach) AS f, unnest(ARRAY[f.tab, f.references_tab]) AS t
    ), up(tab, ancestor) AS (
        SELECT l.tab, l.tab::oid FROM locked AS l
        UNION
        SELECT u.tab, i.inhparent FROM up AS u JOIN pg_inherits AS i ON i.inhrelid = u.ancestor
    )
    SELECT array_agg(l.tab ORDER BY u.ancestors, l.tab::oid)
      FROM locked AS l
      JOIN (SELECT tab, count(*) AS ancestors FROM up GROUP BY tab) AS u USING (tab);
END;

-- Lists the statements that change the columns.  A serial's sequence stays, for
-- the way back; it is bigint, because clients set it to the largest key.
CREATE FUNCTION snowflake_convert.statements(reach snowflake_convert.reached[])
RETURNS TABLE (step integer, place integer, name text, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH keys AS MATERIALIZED (
        SELECT c.*, a.attidentity, t.relispartition, t.relowner, coalesce(s.name, s.sequence::text) AS sequence,
               CASE WHEN NOT t.relispartition THEN c.back ->> 'identity' END AS identity,
               CASE WHEN c.back IS NOT NULL THEN c.back ->> 'as' WHEN o.objid IS NOT NULL AND q.seqtypid <> 'bigint'::regtype THEN 'bigint' END AS sequence_type
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
         CROSS JOIN LATERAL (
                   SELECT CASE WHEN c.back IS NULL THEN snowflake_convert.sequence_of(c.tab, c.attnum) END,
                          (SELECT string_agg(quote_ident(part), '.') FROM unnest(parse_ident(nullif(c.back ->> 'sequence', ''))) AS part)
               ) AS s(sequence, name)
          LEFT JOIN pg_sequence AS q ON q.seqrelid = s.sequence
          LEFT JOIN pg_depend AS o ON (o.classid, o.objid, o.deptype) = ('pg_class'::regclass, s.sequence, 'a')
                                  AND (o.refclassid, o.refobjid, o.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum)
         WHERE c.is_key AND (c.back IS NOT NULL OR NOT snowflake_convert.is_snowflake(c.tab, c.attnum))
    ), constraints AS MATERIALIZED (
        SELECT * FROM snowflake_convert.foreign_keys(reach)
    ), steps(step, place, tab, statement) AS (
        SELECT 50, 0, tab, format('ALTER TABLE %s DROP CONSTRAINT %I', tab, conname) FROM constraints
        UNION ALL
        SELECT 51, attnum, tab, format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY', tab, attname)
          FROM keys
         WHERE back IS NULL AND attidentity <> '' AND NOT relispartition
        UNION ALL
        SELECT 52, 0, tab, format('ALTER SEQUENCE %s AS %s', sequence, sequence_type) FROM keys WHERE sequence_type IS NOT NULL
        UNION ALL
        SELECT 53, 0, tab, format('ALTER TABLE %s %s', tab, string_agg(format('ALTER COLUMN %I TYPE %s', attname, type), ', ' ORDER BY attnum))
          FROM unnest(reach)
         WHERE is_changed AND NOT is_inherited
         GROUP BY tab
        UNION ALL
        SELECT 54, attnum, tab, format('ALTER TABLE ONLY %s ALTER COLUMN %I %s', tab, attname,
                                       CASE WHEN back IS NULL THEN format('SET DEFAULT %s', (snowflake_convert.id_functions())[1])
                                            WHEN sequence IS NULL OR back ? 'identity' THEN 'DROP DEFAULT'
                                            ELSE format('SET DEFAULT pg_catalog.nextval(%L)', sequence) END)
          FROM keys
        UNION ALL
        SELECT 55, attnum, tab, format('ALTER TABLE %s ALTER COLUMN %I ADD GENERATED %s AS IDENTITY (%s)', tab, attname, identity,
                                       concat_ws(' ', 'SEQUENCE NAME ' || sequence, back ->> 'options'))
          FROM keys
         WHERE identity IS NOT NULL
        UNION ALL
        -- The new sequence has default privileges: revoke them before the grants.
        SELECT 56, 0, k.tab, format('REVOKE ALL ON SEQUENCE %s FROM %s', k.sequence,
                                    string_agg(DISTINCT coalesce(nullif(r.oid, 0)::regrole::text, 'PUBLIC'), ', '))
          FROM keys AS k, LATERAL (SELECT k.relowner WHERE k.back ? 'acl'
                                   UNION ALL
                                   SELECT e.grantee FROM pg_default_acl AS f, aclexplode(f.defaclacl) AS e
                                    WHERE f.defaclrole = k.relowner AND f.defaclobjtype = 'S' AND e.grantee <> k.relowner) AS r(oid)
         WHERE k.identity IS NOT NULL
         GROUP BY k.tab, k.sequence
        UNION ALL
        SELECT 56, 1, k.tab, format('GRANT %s ON SEQUENCE %s TO %s%s', e.privilege_type, k.sequence,
                                    coalesce(nullif(e.grantee, 0)::regrole::text, 'PUBLIC'),
                                    CASE WHEN e.is_grantable THEN ' WITH GRANT OPTION' END)
          FROM keys AS k, aclexplode((k.back ->> 'acl')::aclitem[]) AS e
         WHERE k.identity IS NOT NULL
        UNION ALL
        SELECT 57, 0, tab, format('SELECT pg_catalog.setval(%L, %s)', sequence, (back ->> 'last')::bigint)
          FROM keys
         WHERE identity IS NOT NULL AND back ? 'last'
        UNION ALL
        -- Foreign keys and sequences have to fit all rows.
        SELECT f.step, 0, t.oid::regclass, format('ALTER TABLE %s %s ROW LEVEL SECURITY', t.oid::regclass, f.action)
          FROM pg_class AS t, (VALUES (49, 'NO FORCE'), (60, 'FORCE')) AS f(step, action)
         WHERE t.relforcerowsecurity AND t.oid::regclass = ANY (snowflake_convert.locks(reach))
        UNION ALL
        -- Somebody may have put a view in place of the sequence: nothing reads from that name.
        SELECT 57, 1, tab, format('SELECT pg_catalog.setval(%1$L, %4$s(%2$I)) FROM %3$s HAVING %4$s(%2$I) %5$s= (SELECT coalesce(pg_catalog.pg_sequence_last_value(seqrelid), seqstart)'
                                  ' FROM pg_catalog.pg_sequence WHERE seqrelid = %1$L::pg_catalog.regclass AND seqincrement %5$s 0)',
                                  sequence, attname, tab, d.extreme, d.beyond)
          FROM keys JOIN (VALUES ('max', '>', false), ('min', '<', true)) AS d(extreme, beyond, is_descending)
                      ON d.is_descending = coalesce(back ->> 'options', '') ~ 'INCREMENT BY -'
         WHERE back IS NOT NULL AND sequence IS NOT NULL AND NOT relispartition
        UNION ALL
        SELECT 59, 0, tab, format('ALTER TABLE %s ADD CONSTRAINT %I %s', tab, conname, pg_get_constraintdef(oid))
          FROM constraints
    )
    SELECT step, place, tab::text, statement FROM steps;
END;

--
-- Expressions that are parsed anew
--
-- Finds the domains, arrays and ranges that are made of some types, and these types.
CREATE FUNCTION snowflake_convert.types_of(types oid[])
RETURNS SETOF oid LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE parts(type, part) AS MATERIALIZED (
        SELECT oid, unnest(ARRAY[typbasetype, typelem]) FROM pg_type
        UNION ALL
        SELECT unnest(ARRAY[rngtypid, rngmultitypid]), rngsubtype FROM pg_range
    ), made(type) AS (
        SELECT unnest(types)
        UNION
        SELECT p.type FROM made AS m JOIN parts AS p ON p.part = m.type
    )
    SELECT type FROM made;
END;

-- Reads the trees of an object's expressions.
CREATE FUNCTION snowflake_convert.tree(classid oid, objid oid)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN CASE classid
       WHEN 'pg_class'::regclass THEN (SELECT concat(indexprs, indpred) FROM pg_index WHERE indexrelid = objid)
       WHEN 'pg_constraint'::regclass THEN (SELECT conbin::text FROM pg_constraint WHERE oid = objid)
       WHEN 'pg_trigger'::regclass THEN (SELECT tgqual::text FROM pg_trigger WHERE oid = objid)
       WHEN 'pg_policy'::regclass THEN (SELECT concat(polqual, polwithcheck) FROM pg_policy WHERE oid = objid)
       WHEN 'pg_statistic_ext'::regclass THEN (SELECT stxexprs::text FROM pg_statistic_ext WHERE oid = objid)
       WHEN 'pg_attrdef'::regclass THEN (SELECT adbin::text FROM pg_attrdef WHERE oid = objid)
       WHEN 'pg_rewrite'::regclass THEN (SELECT ev_action::text FROM pg_rewrite WHERE oid = objid) END;

-- The owner of a schema can rename it, and put other objects in place of those that a
-- script names, while the script runs.  Returns the name of that role, unless it has
-- the rights of the tables' owner anyway.
CREATE FUNCTION snowflake_convert.stranger(schema name, owner oid)
RETURNS name LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_get_userbyid(r.oid)
      FROM pg_namespace AS n
      JOIN pg_database AS d ON d.datname = current_database(),
           LATERAL (SELECT CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END) AS r(oid)
     WHERE n.nspname = schema AND NOT pg_has_role(r.oid, owner, 'USAGE');
END;

-- PostgreSQL parses an expression anew when the type of a column in it changes.  A
-- function or operator outside pg_catalog may then be another one of the same name,
-- which takes a bigint, and whose author is not the caller.  Only objects that are
-- not PostgreSQL's own have entries in pg_depend.
--
-- Names the first such function or operator of an object in the catalogue; or a type
-- that integers are cast to, because the cast itself is chosen anew, too, and new ids
-- do not fit a domain of integers; or any object in a schema of a stranger, or a type
-- that is made of a type of a stranger, who can make casts that were not there before.
CREATE FUNCTION snowflake_convert.foreign_code(classid oid, objid oid, owner oid)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH uses AS MATERIALIZED (
        SELECT d.refclassid, d.refobjid
          FROM pg_depend AS d
         WHERE (d.classid, d.objid) = (foreign_code.classid, foreign_code.objid) AND d.deptype = 'n'
        UNION
        -- PostgreSQL's own casts of a column have no entries for the column's type.
        SELECT 'pg_type'::regclass, t[1]::oid
          FROM regexp_matches(snowflake_convert.tree(classid, objid), ':\w*typ(?!e?[mM]od)\w* (\d{5,}) ', 'g') AS t
    )
    SELECT min(pg_describe_object(u.refclassid, u.refobjid, 0))
      FROM uses AS u,
           LATERAL pg_identify_object(u.refclassid, u.refobjid, 0) AS o
     WHERE u.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass) AND classid <> 'pg_attrdef'::regclass
           AND NOT (classid = 'pg_trigger'::regclass AND u.refobjid IN (SELECT tgfoid FROM pg_trigger WHERE oid = objid))
        OR u.refclassid = 'pg_type'::regclass
           AND (u.refobjid IN (SELECT oid FROM pg_type WHERE typtype = 'c')
                OR u.refobjid IN (SELECT snowflake_convert.types_of('{smallint,integer,bigint}'::regtype[]::oid[] || ARRAY(
                                             SELECT casttarget FROM pg_cast
                                              WHERE castsource IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) AND casttarget >= 16384
                                             UNION ALL
                                             SELECT oid FROM pg_type WHERE NOT pg_has_role(typowner, owner, 'USAGE')))))
        OR snowflake_convert.stranger((parse_ident(o.schema))[1]::name, owner) IS NOT NULL;
END;

-- Of PostgreSQL's own functions and operators, comparisons and the four basic
-- operations mean the same for a bigint, and come back as they were.  Others may
-- not exist for a bigint, such as date + integer, or get casts that stay on the way
-- back, such as COALESCE(id, 0).
--
-- Names the first other one that an expression has.  pg_depend has no entries for
-- these, so this reads the tree of the expression.  It does not look at arguments:
-- rather a key too many is left out.  Of a bigint, only casts to smaller integers
-- are named, because new ids do not pass them.  A view may get casts that stay: of
-- a view this names only what takes an integer column, or an operation on integers,
-- and does not exist for bigint.
CREATE FUNCTION snowflake_convert.integer_code(classid oid, objid oid, is_bigint boolean)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH trees(tree, is_view) AS MATERIALIZED (
        SELECT snowflake_convert.tree(classid, objid), classid = 'pg_rewrite'::regclass AND NOT is_bigint
    ), calls(kind, oid) AS (
        SELECT DISTINCT c[1], c[2]::oid
          FROM trees AS t,
               regexp_matches(t.tree, '\{\w+ :(opno|funcid|winfnoid) (\d+) ' || CASE WHEN t.is_view THEN
                   '[^{}]*:args \((?:\{\w+ [^{}]*\} )*\{(?:VAR [^{}]*:vartype|OPEXPR [^{}]*:opresulttype) (?:21|23) ' ELSE '' END, 'g') AS c
         WHERE t.tree ~ ':vartype (20|21|23) ' AND c[2]::oid < 16384
    ), code(description, arguments, is_cast, has_bigint) AS (
        SELECT pg_describe_object('pg_proc'::regclass, p.oid, 0), p.proargtypes::oid[],
               (p.proargtypes::text, p.prorettype::integer) IN (('20', 21), ('20', 23), ('23', 21)),
               p.oid IN (SELECT castfunc FROM pg_cast)
               OR EXISTS (SELECT FROM pg_proc AS b
                           WHERE (b.proname, b.pronamespace, b.proargtypes::text) = (p.proname, p.pronamespace, regexp_replace(p.proargtypes::text, '\m(21|23)\M', '20', 'g')))
          FROM calls AS c JOIN pg_proc AS p ON p.oid = c.oid AND c.kind <> 'opno'
        UNION ALL
        SELECT pg_describe_object('pg_operator'::regclass, o.oid, 0), ARRAY[o.oprleft, o.oprright], false,
               NOT ARRAY[o.oprleft, o.oprright] && '{21,23}'
               OR EXISTS (SELECT FROM pg_operator AS b
                           WHERE b.oprname = o.oprname AND 'bigint'::regtype IN (b.oprleft, b.oprright)
                             AND (b.oprleft = o.oprleft OR o.oprleft IN ('smallint'::regtype, 'integer'::regtype))
                             AND (b.oprright = o.oprright OR o.oprright IN ('smallint'::regtype, 'integer'::regtype)))
          FROM calls AS c JOIN pg_operator AS o ON o.oid = c.oid AND c.kind = 'opno'
         WHERE NOT (o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/')
                    AND ARRAY[o.oprleft, o.oprright] <@ '{0,20,21,23}')
        UNION ALL
        SELECT 'a subscript, a cast to oid, or NULL in WITH RECURSIVE', '{20}', false, false
          FROM trees
         WHERE tree ~ (':ref(upper|lower)indexpr \(\{(VAR [^{}]*:vartype|OPEXPR [^{}]*:opresulttype) (21|23) |\{RELABELTYPE :arg \{VAR [^{}]*:vartype (21|23) '
                       '|:hasRecursive true .*\{CONST :consttype (21|23) [^{}]*:constisnull true')
        UNION ALL
        SELECT 'COALESCE, CASE, GREATEST, LEAST or ARRAY', '{20}', false, true
          FROM trees
         WHERE tree ~ (':(coalescetype|minmaxtype) (21|23) |:(result|defresult) \{(VAR [^{}]*:vartype|OPEXPR [^{}]*:opresulttype) (21|23) '
                       '|\{ARRAYEXPR [^{}]*:elements \((\{CONST [^{}]*\} )*\{VAR [^{}]*:vartype (21|23) ')
    )
    SELECT min(c.description)
      FROM code AS c, trees AS t
     WHERE NOT t.is_view AND c.is_cast
        OR NOT is_bigint AND NOT (t.is_view AND c.has_bigint) AND EXISTS (
               SELECT FROM unnest(c.arguments) AS a(type) JOIN pg_type AS t ON t.oid = a.type
                WHERE t.oid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) OR t.typtype = 'p' AND t.typname NOT IN ('any', 'anyenum'));
END;

--
-- What is put back: views, with their triggers
--

-- Lists the views on columns whose type changes, and the views on these views;
-- "depth" orders them.  A materialised view is in the way.
CREATE FUNCTION snowflake_convert.views(reach snowflake_convert.reached[])
RETURNS TABLE (view regclass, rule oid, type oid, typarray oid, keys integer[], depth integer)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reads(oid, rule, used, subid) AS MATERIALIZED (
        SELECT DISTINCT v.oid, r.oid, d.refobjid, d.refobjsubid
          FROM pg_rewrite AS r
          JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind = 'v' AND v.oid >= 16384
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_rewrite'::regclass, r.oid)
                             AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
         WHERE r.ev_type = '1' AND d.refobjid <> r.ev_class   -- OLD and NEW are the view itself
    ), views(oid, rule, key, depth) AS (
        SELECT r.oid, r.rule, key, 1
          FROM unnest(reach) AS c
          JOIN reads AS r ON (r.used, r.subid) = (c.tab, c.attnum),
               unnest(c.keys) AS key
         WHERE c.is_changed
        UNION
        SELECT r.oid, r.rule, v.key, v.depth + 1 FROM views AS v JOIN reads AS r ON r.used = v.oid
    )
    SELECT v.oid::regclass, v.rule, t.oid, t.typarray, array_agg(DISTINCT v.key), max(v.depth)
      FROM views AS v
      JOIN pg_type AS t ON t.typrelid = v.oid
     GROUP BY v.oid, v.rule, t.oid, t.typarray;
END;

-- Lists the statements that create a view as it is now, without its comments.
CREATE FUNCTION snowflake_convert.view_statements(view regclass)
RETURNS TABLE (place integer, statement text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH v AS MATERIALIZED (
        SELECT c.relowner, c.relacl, c.reloptions, ARRAY(SELECT e.grantee FROM pg_default_acl AS f, aclexplode(f.defaclacl) AS e
                           WHERE f.defaclrole = c.relowner AND f.defaclobjtype = 'r' AND f.defaclnamespace IN (0, c.relnamespace)) AS defaults
          FROM pg_class AS c
         WHERE c.oid = view
    ), grants AS (
        SELECT 0 AS attnum, NULL::name AS attname, coalesce(relacl, acldefault('r', relowner)) AS acl
          FROM v WHERE relacl IS NOT NULL OR defaults <> '{}'
        UNION ALL
        SELECT attnum, attname, attacl FROM pg_attribute WHERE attrelid = view AND attacl IS NOT NULL AND NOT attisdropped
    )
    SELECT 0, format('CREATE VIEW %s%s AS %s', view, ' WITH (' || array_to_string(v.reloptions, ', ') || ')', rtrim(ltrim(pg_get_viewdef(view)), ';'))
      FROM v
    UNION ALL
    -- The new view has default privileges: revoke them before the grants.
    SELECT 2, format('REVOKE ALL ON TABLE %s FROM PUBLIC, %s', view,
                     (SELECT string_agg(DISTINCT r::regrole::text, ', ') FROM unnest(v.defaults || v.relowner) AS r WHERE r <> 0))
      FROM v JOIN grants AS g ON g.attnum = 0
    UNION ALL
    SELECT (g.attnum * 10000 + 2 + min(e.ord))::integer,
           format('GRANT %s ON TABLE %s TO %s%s',
                  string_agg(e.privilege_type || coalesce(' (' || quote_ident(g.attname) || ')', ''), ', ' ORDER BY e.ord), view,
                  coalesce(nullif(e.grantee, 0)::regrole::text, 'PUBLIC'),
                  CASE WHEN e.is_grantable THEN ' WITH GRANT OPTION' END)
      FROM grants AS g,
           LATERAL aclexplode(g.acl) WITH ORDINALITY AS e(grantor, grantee, privilege_type, is_grantable, ord)
     GROUP BY g.attnum, g.attname, e.grantee, e.is_grantable
    UNION ALL
    SELECT 1, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = view;
END;

-- Lists the statements that drop what is in the way, and put it back.
CREATE FUNCTION snowflake_convert.put_back(reach snowflake_convert.reached[])
RETURNS TABLE (step integer, place integer, name text, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT * FROM snowflake_convert.views(reach)
    ), changed AS MATERIALIZED (
        SELECT c.tab, string_agg(quote_ident(c.attname), ', ' ORDER BY c.attnum) AS columns
          FROM unnest(reach) AS c
         WHERE c.is_changed
         GROUP BY c.tab
    )
    SELECT 30, -v.depth, v.view::text, format('DROP VIEW %s', v.view) FROM views AS v
    UNION ALL
    SELECT 70, v.depth * 1000000 + s.place, v.view::text, s.statement
      FROM views AS v, LATERAL snowflake_convert.view_statements(v.view) AS s
    UNION ALL
    -- PostgreSQL drops the statistics of a column whose type changes, and of an index's expressions.
    SELECT 77, 0, c.tab::text, format('ANALYZE %s%s', c.tab, CASE WHEN c.tab NOT IN (SELECT indrelid FROM pg_index WHERE indexprs IS NOT NULL)
                                                                  THEN ' (' || c.columns || ')' END)
      FROM changed AS c JOIN pg_class AS t ON t.oid = c.tab AND NOT t.relispartition    -- ANALYZE of the parent analyzes partitions
    UNION ALL
    -- Indexes and statistics are made again without their statistics targets.
    SELECT 75, 0, c.tab::text, format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', x.indexrelid::regclass, a.attnum, a.attstattarget)
      FROM changed AS c
      JOIN pg_index AS x ON x.indrelid = c.tab
      JOIN pg_attribute AS a ON a.attrelid = x.indexrelid AND a.attstattarget >= 0
    UNION ALL
    SELECT 75, 0, c.tab::text, format('ALTER STATISTICS %s SET STATISTICS %s', o.identity, x.stxstattarget)
      FROM changed AS c
      JOIN pg_statistic_ext AS x ON x.stxrelid = c.tab AND x.stxstattarget >= 0,
           LATERAL pg_identify_object('pg_statistic_ext'::regclass, x.oid, 0) AS o
    UNION ALL
    SELECT 76, 0, o.identity, format('COMMENT ON %s %s IS %L', CASE o.type WHEN 'table constraint' THEN 'CONSTRAINT'
                                                                           ELSE regexp_replace(upper(o.type), '.* COLUMN', 'COLUMN') END, o.identity, d.description)
      FROM (SELECT 'pg_class'::regclass, view FROM views
            UNION ALL
            SELECT 'pg_trigger'::regclass, g.oid FROM views JOIN pg_trigger AS g ON g.tgrelid = view
            UNION ALL
            SELECT 'pg_constraint'::regclass, oid FROM snowflake_convert.foreign_keys(reach)) AS p(classid, objid)
      JOIN pg_description AS d ON (d.classoid, d.objoid) = (p.classid, p.objid),
           LATERAL pg_identify_object(d.classoid, d.objoid, d.objsubid) AS o;
END;

--
-- What a script says: obstacles and warnings
--

-- Writes the statement that drops what is in the way.
CREATE FUNCTION snowflake_convert.drop_statement(classid oid, objid oid)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(
               (SELECT format('ALTER TABLE %s DROP CONSTRAINT %I;', conrelid::regclass, conname) FROM pg_constraint
                 WHERE classid = 'pg_constraint'::regclass AND oid = objid OR classid = 'pg_class'::regclass AND conindid = objid AND contype = 'x'),
               (SELECT format('ALTER TABLE %s ALTER COLUMN %I DROP DEFAULT;', a.attrelid::regclass, a.attname)
                  FROM pg_attrdef AS f JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (f.adrelid, f.adnum)
                 WHERE classid = 'pg_attrdef'::regclass AND f.oid = objid AND a.attgenerated = ''),
               -- The query of a view is its rule _RETURN.
               (SELECT format('DROP %sVIEW %s;', CASE WHEN c.relkind = 'm' THEN 'MATERIALIZED ' END, c.oid::regclass)
                  FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class
                 WHERE classid = 'pg_rewrite'::regclass AND r.oid = objid AND r.ev_type = '1'),
               CASE WHEN o.type IN ('index', 'statistics object', 'trigger', 'policy', 'rule', 'function')
                    THEN format('DROP %s %s;', upper(split_part(o.type, ' ', 1)), o.identity) END, '')
      FROM pg_identify_object(classid, objid, 0) AS o;
END;

-- Lists objects with expressions that PostgreSQL parses anew, or that the script
-- does not know how to put back.
CREATE FUNCTION snowflake_convert.object_obstacles(reach snowflake_convert.reached[], owner oid)
RETURNS TABLE (keys integer[], description text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT * FROM snowflake_convert.views(reach)
    ), depending AS MATERIALIZED (
        SELECT c.keys, c.is_changed, d.classid, d.objid, d.objsubid,
               -- ALTER TYPE makes constraints, indexes and statistics anew; a DEFAULT of the column itself is replaced.
               c.is_changed AND v.rule IS NULL AND k.oid IS NULL AND x.oid IS NULL AND f.adnum IS DISTINCT FROM c.attnum
               AND coalesce(i.relkind, 't') NOT IN ('i', 'I', 'S') AS is_in_the_way,
               k.contype IN ('c', 'x') OR n.indexrelid IS NOT NULL OR x.stxexprs IS NOT NULL
               OR d.classid IN ('pg_trigger'::regclass, 'pg_policy'::regclass) OR f.oid IS NOT NULL AND NOT c.is_changed AS has_expression,
               -- A reference's DEFAULT is not parsed anew, but cast anew to the column's type.
               f.oid IS NOT NULL AND NOT c.is_key AS is_default
          FROM unnest(reach) AS c
          JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND (d.refobjid, d.refobjsubid) = (c.tab, c.attnum)
          LEFT JOIN pg_constraint AS k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
          LEFT JOIN pg_class AS i ON d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND i.oid = d.objid
          LEFT JOIN pg_index AS n ON n.indexrelid = i.oid AND (n.indexprs IS NOT NULL OR n.indpred IS NOT NULL)
          LEFT JOIN pg_statistic_ext AS x ON d.classid = 'pg_statistic_ext'::regclass AND x.oid = d.objid
          LEFT JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid AND f.adrelid = c.tab
          LEFT JOIN views AS v ON (d.classid, d.objid) = ('pg_rewrite'::regclass, v.rule)
         WHERE (c.is_changed OR c.is_key)
           AND (d.classid <> 'pg_trigger'::regclass OR EXISTS (SELECT FROM pg_trigger AS g WHERE g.oid = d.objid AND g.tgparentid = 0))
    ), found(keys, classid, objid, objsubid, reason) AS (
        SELECT keys, classid, objid, objsubid, '' FROM depending WHERE is_in_the_way
        UNION ALL
        SELECT v.keys, d.classid, d.objid, d.objsubid, format(' depends on view %s', v.view)
          FROM views AS v,
               LATERAL (VALUES ('pg_class'::regclass, v.view::oid), ('pg_type'::regclass, v.type), ('pg_type'::regclass, v.typarray)) AS o(classid, objid)
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = (o.classid, o.objid) AND d.deptype <> 'i'
          LEFT JOIN views AS w ON (d.classid, d.objid) = ('pg_rewrite'::regclass, w.rule)
         WHERE w.rule IS NULL AND NOT (d.classid = 'pg_trigger'::regclass AND d.objid IN (SELECT oid FROM pg_trigger WHERE tgrelid = v.view))
        UNION ALL
        SELECT e.keys, e.classid, e.objid, 0, format(' depends on %s, which could be another one when the script runs', f.code)
          FROM (SELECT keys, classid, objid FROM depending WHERE is_changed AND (has_expression OR is_default) AND NOT is_in_the_way
                UNION ALL
                SELECT keys, 'pg_rewrite'::regclass, rule FROM views
                UNION ALL
                SELECT v.keys, 'pg_trigger'::regclass, g.oid FROM views AS v JOIN pg_trigger AS g ON g.tgrelid = v.view) AS e(keys, classid, objid),
               LATERAL snowflake_convert.foreign_code(e.classid, e.objid, owner) AS f(code)
         WHERE f.code IS NOT NULL
        UNION ALL
        SELECT e.keys, e.classid, e.objid, 0, format(' uses %s, which is another one for a bigint, or fails', f.code)
          FROM (SELECT keys, classid, objid, is_changed FROM depending WHERE has_expression AND NOT is_in_the_way
                UNION ALL
                SELECT keys, 'pg_rewrite'::regclass, rule, true FROM views) AS e,
               LATERAL snowflake_convert.integer_code(e.classid, e.objid, NOT e.is_changed) AS f(code)
         WHERE f.code IS NOT NULL
    )
    SELECT f.keys, concat(pg_describe_object(f.classid, f.objid, f.objsubid), f.reason, '. ' || nullif(snowflake_convert.drop_statement(f.classid, f.objid), ''))
      FROM found AS f
    UNION ALL
    -- What a view that is made again would lose.
    SELECT v.keys, format('view %s %s', v.view, p.problem)
      FROM views AS v
      JOIN pg_class AS c ON c.oid = v.view,
           LATERAL (VALUES
               ('is temporary', c.relpersistence = 't'),
               ('belongs to an extension', v.view::oid IN (SELECT objid FROM pg_depend WHERE (classid, deptype) = ('pg_class'::regclass, 'e'))),
               ('has privileges on its type, or a comment on its type or rule', v.type IN (SELECT oid FROM pg_type WHERE typacl IS NOT NULL)
                OR EXISTS (SELECT FROM pg_description WHERE (classoid, objoid) IN (('pg_type'::regclass, v.type), ('pg_rewrite'::regclass, v.rule)))),
               ('has a security label', v.view::oid IN (SELECT objoid FROM pg_seclabel WHERE classoid = 'pg_class'::regclass)),
               ('has privileges that another role has granted', c.relowner <> ANY (ARRAY(
                   SELECT e.grantor FROM (SELECT c.relacl UNION ALL SELECT attacl FROM pg_attribute WHERE attrelid = c.oid) AS l(acl), aclexplode(l.acl) AS e)))) AS p(problem, is_found)
     WHERE p.is_found
    UNION ALL
    SELECT d.keys, format('%s has an operator class that is not the default for integers. %s', pg_describe_object(d.classid, d.objid, 0),
                          snowflake_convert.drop_statement(d.classid, d.objid))
      FROM depending AS d
      JOIN pg_index AS i ON d.is_changed AND (d.classid, d.objid) = ('pg_class'::regclass, i.indexrelid)
     WHERE i.indclass::oid[] && ARRAY(SELECT oid FROM pg_opclass WHERE opcintype IN ('smallint'::regtype, 'integer'::regtype) AND NOT opcdefault)
    UNION ALL
    -- ALTER TYPE makes a partition's index anew, as its parent's is.
    SELECT c.keys, format('index %s of a partition has a comment, settings or a use that its parent lacks', i.indexrelid::regclass)
      FROM unnest(reach) AS c
      JOIN pg_index AS i ON c.is_changed AND i.indrelid = c.tab AND c.attnum = ANY (i.indkey)
      JOIN pg_class AS x ON x.oid = i.indexrelid AND x.relispartition
     WHERE i.indisreplident OR i.indisclustered OR obj_description(x.oid, 'pg_class') IS NOT NULL
        OR x.reloptions IS DISTINCT FROM (SELECT u.reloptions FROM pg_inherits JOIN pg_class AS u ON u.oid = inhparent WHERE inhrelid = x.oid);
END;

-- Lists what keeps columns from being changed, or cannot be put back.
CREATE FUNCTION snowflake_convert.obstacles(reach snowflake_convert.reached[], owner oid)
RETURNS TABLE (keys integer[], description text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT c.*, a.atttypid, a.attinhcount, a.attgenerated, a.attidentity, t.relnamespace, t.relowner, t.reltype, t.reloftype, t.relkind, f.oid AS default, f.adbin,
               format('column %I of table %s', c.attname, c.tab) AS description,
               c.is_key AND f.oid IS NOT NULL AND snowflake_convert.sequence_of(c.tab, c.attnum) IS NULL
               AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum) AS has_default,
               c.is_key AND c.is_inherited AND (c.tab, c.attname) NOT IN (
                   SELECT i.inhrelid, p.attname FROM unnest(reach) AS p JOIN pg_inherits AS i ON i.inhparent = p.tab WHERE p.is_key) AS is_childs,
               c.is_key AND (c.tab, c.attnum) IN (SELECT conrelid, unnest(conkey) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0) AS is_reference,
               t.reltype IN (SELECT unnest(ARRAY[y.oid, y.typelem, y.typbasetype]) FROM pg_depend AS d JOIN pg_type AS y ON y.oid = d.refobjid
                              WHERE d.refclassid = 'pg_type'::regclass AND (d.classid = 'pg_class'::regclass AND d.objsubid > 0
                                    OR d.classid IN ('pg_rewrite'::regclass, 'pg_constraint'::regclass, 'pg_attrdef'::regclass))) AS is_row_type,
               -- The columns of a partition key depend on their own table.
               (c.tab, c.attnum) IN (SELECT objid, objsubid FROM pg_depend
                                      WHERE (classid, refclassid, refobjsubid, deptype) = ('pg_class'::regclass, 'pg_class'::regclass, 0, 'i')
                                        AND objid = refobjid) AS is_partition_key
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
          LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (c.tab, c.attnum)
         WHERE c.is_key OR c.is_changed
    ), owned(keys, owner, schema, description) AS (
        SELECT c.keys, t.relowner, t.relnamespace, 'table ' || c.tab FROM columns AS c JOIN pg_class AS t ON t.oid = c.tab
        UNION ALL
        SELECT f.keys, t.relowner, t.relnamespace, 'table ' || t.oid::regclass
          FROM snowflake_convert.foreign_keys(reach) AS f,
               LATERAL (SELECT r FROM unnest(ARRAY[f.tab, f.references_tab]) AS r
                        UNION ALL
                        SELECT p.relid FROM unnest(ARRAY[f.tab, f.references_tab]) AS r, pg_partition_tree(r) AS p) AS r(tab)
          JOIN pg_class AS t ON t.oid = r.tab
        UNION ALL
        SELECT v.keys, c.relowner, c.relnamespace, 'view ' || v.view FROM snowflake_convert.views(reach) AS v JOIN pg_class AS c ON c.oid = v.view
        UNION ALL
        SELECT c.keys, CASE t.relowner WHEN c.relowner THEN obstacles.owner ELSE t.relowner END, t.relnamespace, 'sequence ' || t.oid::regclass
          FROM columns AS c JOIN pg_class AS t ON t.oid = CASE WHEN c.back IS NULL AND c.is_key THEN snowflake_convert.sequence_of(c.tab, c.attnum)
                                                               WHEN NOT c.back ? 'identity' THEN to_regclass(nullif(c.back ->> 'sequence', '')) END
    ), found(keys, description) AS (
        SELECT n.keys, n.description || p.problem
          FROM columns AS n,
               LATERAL (VALUES
                   (', of type ' || format_type(n.atttypid, NULL), n.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)),
                   (', which is generated', n.attgenerated <> ''),
                   (', of a foreign table', n.relkind = 'f'),
                   (', which is no column of a table', n.relkind NOT IN ('r', 'p', 'f')),
                   (', inherited from several tables', n.attinhcount > 1),
                   (', of a table of type ' || format_type(n.reloftype, NULL), n.reloftype <> 0),
                   (CASE WHEN n.has_default THEN format(', which has the DEFAULT %s, and would not get it back. %s', pg_get_expr(n.adbin, n.tab),
                                                        snowflake_convert.drop_statement('pg_attrdef'::regclass, n.default)) END, n.has_default),
                   (', which is inherited: it changes with its parent''s', n.is_childs),
                   (', which references another table: it changes with the key there', n.is_reference),
                   (', of a table whose row type is the type of a column', n.is_changed AND n.is_row_type),
                   (', in its partition key', n.is_changed AND n.is_partition_key)) AS p(problem, is_found)
         WHERE p.is_found
        UNION ALL
        -- Since PostgreSQL 18 a column can have only one NOT NULL constraint, which has a
        -- name.  ALTER COLUMN TYPE would add the parent's to the inheritor's column.
        SELECT n.keys, format('NOT NULL constraint %I of table %s, which has another name than that of table %s', k.conname, n.tab, p.conrelid::regclass)
          FROM columns AS n
          JOIN pg_constraint AS k ON k.conrelid = n.tab AND k.contype = 'n' AND k.conkey[1] = n.attnum AND k.conislocal
          JOIN pg_inherits AS i ON i.inhrelid = n.tab
          JOIN pg_attribute AS a ON a.attrelid = i.inhparent AND a.attname = n.attname
          JOIN pg_constraint AS p ON p.conrelid = i.inhparent AND p.contype = 'n' AND p.conkey[1] = a.attnum AND p.conname <> k.conname
         WHERE n.is_changed
        UNION ALL
        -- A script runs as one role.
        SELECT o.keys, format('%s belongs to role %I', o.description, pg_get_userbyid(o.owner)) FROM owned AS o WHERE o.owner <> obstacles.owner
        UNION ALL
        SELECT s.keys, format('schema %I belongs to role %I', n.nspname, r.stranger)
          FROM (SELECT keys, schema FROM owned AS o WHERE o.owner = obstacles.owner
                UNION
                SELECT c.keys, p.pronamespace FROM columns AS c JOIN pg_proc AS p ON p.oid = (snowflake_convert.id_functions())[1] WHERE c.is_key) AS s(keys, oid)
          JOIN pg_namespace AS n ON n.oid = s.oid,
               LATERAL snowflake_convert.stranger(n.nspname, obstacles.owner) AS r(stranger)
         WHERE r.stranger IS NOT NULL
        UNION ALL
        -- A script makes views, and the way back identities.
        SELECT DISTINCT s.keys, format('role %I lacks CREATE on schema %I. GRANT CREATE ON SCHEMA %2$I TO %1$I;', pg_get_userbyid(obstacles.owner), n.nspname)
          FROM (SELECT v.keys, c.relnamespace FROM snowflake_convert.views(reach) AS v JOIN pg_class AS c ON c.oid = v.view
                UNION ALL
                SELECT c.keys, c.relnamespace FROM columns AS c WHERE c.attidentity <> '' OR c.back ? 'identity') AS s(keys, oid)
          JOIN pg_namespace AS n ON n.oid = s.oid
         WHERE NOT has_schema_privilege(obstacles.owner, n.oid, 'CREATE')
        UNION ALL
        SELECT p.keys, p.description FROM snowflake_convert.object_obstacles(reach, owner) AS p
    )
    SELECT f.keys, f.description FROM found AS f;
END;

-- Lists what a script does not see.
CREATE FUNCTION snowflake_convert.warnings(reach snowflake_convert.reached[])
RETURNS TABLE (description text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH tables AS MATERIALIZED (
        SELECT DISTINCT c.tab::text AS name, lower(t.relname) AS word FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab WHERE NOT c.is_inherited
    ), words(oid, word) AS MATERIALIZED (
        SELECT DISTINCT p.oid, lower(w)
          FROM pg_proc AS p
          JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname NOT IN ('internal', 'c'),
               LATERAL regexp_split_to_table(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), '\W+') AS w
         WHERE p.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_depend WHERE (classid, objid, deptype) = ('pg_proc'::regclass, p.oid, 'e'))
        UNION
        SELECT g.tgfoid, lower(t.relname) FROM pg_trigger AS g JOIN unnest(reach) AS c ON c.tab = g.tgrelid JOIN pg_class AS t ON t.oid = c.tab WHERE NOT g.tgisinternal
    )
    SELECT format('function %s mentions %s', w.oid::regprocedure, string_agg(n.name, ', ' ORDER BY n.name COLLATE "C"))
      FROM tables AS n JOIN words AS w USING (word)
     GROUP BY w.oid
    UNION ALL
    SELECT DISTINCT format('view %s has a cast to a smaller integer, which new keys may not pass', r.ev_class::regclass)
      FROM unnest(reach) AS c
      JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid, d.classid) = ('pg_class'::regclass, c.tab, c.attnum, 'pg_rewrite'::regclass)
      JOIN pg_rewrite AS r ON r.oid = d.objid
     WHERE snowflake_convert.integer_code(d.classid, d.objid, true) IS NOT NULL
    UNION ALL
    SELECT DISTINCT format('new ids may not pass constraint %I of table %s: %s', k.conname, c.tab, d.text)
      FROM unnest(reach) AS c
      JOIN pg_constraint AS k ON k.conrelid = c.tab AND k.contype = 'c' AND c.attnum = ANY (k.conkey),
           LATERAL (SELECT pg_get_constraintdef(k.oid, true)) AS d(text)
     WHERE k.conislocal AND replace(d.text, '<>', '') ~ '<|\d\D? >|= ANY'
    UNION ALL
    -- The keys of another scheme may be larger than new ids, or equal to one.
    SELECT format('new ids have to be larger than the keys, so this has to be true: SELECT max(%I) < %s FROM %s', c.attname,
                  regexp_replace((snowflake_convert.id_functions())[1]::text, '[^.]*$', 'snowflake_min_id(now())'), c.tab)
      FROM unnest(reach) AS c
     WHERE c.is_key AND NOT c.is_inherited AND NOT c.is_changed AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum)
       AND snowflake_convert.sequence_of(c.tab, c.attnum) IS NULL;
END;

-- Writes what is said about columns of integers that stay as they are, of all
-- schemas, arrays, domains and ranges too.  A column looks like a reference if its
-- name ends in "id", or is the name of a key's table.
CREATE FUNCTION snowflake_convert.integers(reach snowflake_convert.reached[])
RETURNS TABLE (line text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH stay AS MATERIALIZED (
        SELECT a.attrelid::regclass AS tab, a.attname, a.atttypid::regtype AS type,
               a.attname ~* 'ids?$' OR a.attname IN (SELECT k.relname FROM unnest(reach) AS c JOIN pg_class AS k ON k.oid = c.tab WHERE c.is_key) AS is_like,
               t.relowner IN (SELECT relowner FROM pg_class WHERE oid = (reach[1]).tab) AS is_own
          FROM pg_class AS t
          JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attinhcount = 0 AND a.attidentity = '' AND a.attgenerated = ''
         WHERE t.relkind IN ('r', 'p', 'f') AND t.relpersistence <> 't' AND t.oid >= 16384
           AND a.atttypid IN (SELECT snowflake_convert.types_of('{smallint,integer}'::regtype[]::oid[]))
           AND t.oid NOT IN (SELECT objid FROM pg_depend WHERE (classid, deptype) = ('pg_class'::regclass, 'e'))
           AND (a.attrelid, a.attnum) NOT IN (SELECT tab, attnum FROM unnest(reach))
           AND (a.attrelid, a.attnum) NOT IN (SELECT conrelid, unnest(conkey) FROM pg_constraint WHERE contype = 'f')
           AND (a.attrelid, a.attnum) NOT IN (SELECT adrelid, adnum FROM pg_attrdef WHERE pg_get_expr(adbin, adrelid) ~ '\mnextval\(')
    )
    SELECT l.line
      FROM (SELECT 1, format('stays %s, and looks like a reference: %s (%I)', type, tab, attname) FROM stay WHERE is_like
            UNION ALL
            SELECT 2, format('to widen these, too: also => %L', array_agg(format('%s.%I', tab, attname) ORDER BY tab::text COLLATE "C", attname))
              FROM stay WHERE is_like AND is_own AND type IN ('smallint'::regtype, 'integer'::regtype) HAVING count(*) > 0
            UNION ALL
            SELECT 3, 'stay integers, too: ' || string_agg(DISTINCT concat(quote_ident(attname), ' ' || nullif(type::text, 'integer')), ', ')
              FROM stay WHERE NOT is_like HAVING count(*) > 0) AS l(place, line)
     ORDER BY l.place, l.line COLLATE "C";
END;

-- Describes keys: type, size of the tables that are rewritten, references.
CREATE FUNCTION snowflake_convert.describe(reach snowflake_convert.reached[], rels regclass[], cols name[], key_count integer)
RETURNS SETOF text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT c.*, key, t.relkind, row_number() OVER (PARTITION BY key, c.tab ORDER BY NOT is_changed) AS nth
          FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab, unnest(c.keys) AS key
    ), described AS (
        SELECT key, count(*) FILTER (WHERE is_changed AND nth = 1 AND relkind = 'r') AS tables,
               sum(pg_total_relation_size(tab)) FILTER (WHERE is_changed AND nth = 1 AND relkind = 'r') AS size,
               string_agg(format('%s (%I)', tab, attname), ', ' ORDER BY tab::text COLLATE "C", attnum)
                   FILTER (WHERE NOT is_inherited AND (tab, attname) <> (rels[key], cols[key])) AS list
          FROM columns
         GROUP BY key
    )
    SELECT format('%s %s (%I): %s, %s%s', CASE WHEN d.key <= key_count THEN 'key' ELSE 'also' END, rels[d.key], cols[d.key], format_type(a.atttypid, NULL),
                  CASE WHEN d.size IS NULL THEN 'rewrites no table' ELSE format('rewrites %s table%s of %s', d.tables, CASE WHEN d.tables > 1 THEN 's' END, pg_size_pretty(d.size)) END,
                  '; referenced by ' || d.list)
      FROM described AS d
      JOIN pg_attribute AS a ON (a.attrelid, a.attname) = (rels[d.key], cols[d.key])
     ORDER BY d.key;
END;

--
-- The way back
--

-- Afterwards nothing shows what a column was, so the script that converts has a
-- comment with the argument of snowflake_convert.revert(): for each key, and each
-- column that is not what its key is, its type; for keys also the sequence, or '',
-- and of identities what makes the sequence again.
CREATE FUNCTION snowflake_convert.way_back(reach snowflake_convert.reached[], rels regclass[], cols name[], key_count integer)
RETURNS jsonb LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT c.*, (c.tab, c.attname) = (rels[c.keys[1]], cols[c.keys[1]]) AS is_given,
               t.relispartition AND a.attidentity = '' AND f.oid IS NULL AS is_bare_partition,
               jsonb_strip_nulls(jsonb_build_object('type', format_type(a.atttypid, NULL)) || CASE WHEN NOT c.is_key THEN '{}' ELSE jsonb_build_object(
                   'sequence', coalesce(s.sequence::text, ''),
                   'identity', CASE a.attidentity WHEN 'a' THEN 'ALWAYS' WHEN 'd' THEN 'BY DEFAULT' END,
                   'options', CASE WHEN a.attidentity <> '' THEN nullif(concat_ws(' ',
                       'INCREMENT BY ' || nullif(q.seqincrement, 1), 'MINVALUE ' || nullif(q.seqmin, CASE WHEN q.seqincrement > 0 THEN 1 END),
                       'MAXVALUE ' || nullif(q.seqmax, CASE WHEN q.seqincrement < 0 THEN -1 WHEN q.seqtypid = 'smallint'::regtype THEN 32767
                                                            WHEN q.seqtypid = 'integer'::regtype THEN 2147483647 ELSE 9223372036854775807 END),
                       'START WITH ' || nullif(q.seqstart, CASE WHEN q.seqincrement > 0 THEN q.seqmin ELSE q.seqmax END), 'CACHE ' || nullif(q.seqcache, 1), CASE WHEN q.seqcycle THEN 'CYCLE' END), '') END,
                   'acl', (SELECT l.relacl::text FROM pg_class AS l WHERE a.attidentity <> '' AND l.oid = s.sequence),
                   'last', CASE WHEN a.attidentity <> '' AND has_sequence_privilege(s.sequence, 'SELECT') THEN pg_sequence_last_value(s.sequence) END,
                   'as', CASE WHEN o.objid IS NOT NULL THEN format_type(nullif(q.seqtypid, 'bigint'::regtype), NULL) END) END) AS entry
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
          LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (c.tab, c.attnum)
         CROSS JOIN LATERAL (SELECT CASE WHEN c.is_key THEN snowflake_convert.sequence_of(c.tab, c.attnum) END) AS s(sequence)
          LEFT JOIN pg_sequence AS q ON q.seqrelid = s.sequence
          LEFT JOIN pg_depend AS o ON (o.classid, o.objid, o.deptype) = ('pg_class'::regclass, s.sequence, 'a')
                                  AND (o.refclassid, o.refobjid, o.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum)
    )
    SELECT jsonb_object_agg(format('%s.%I', c.tab, c.attname), c.entry ORDER BY c.tab::text COLLATE "C", c.attnum)
      FROM columns AS c
      LEFT JOIN columns AS k ON k.is_given AND k.keys[1] = c.keys[1]
     WHERE c.is_given OR c.entry <> CASE WHEN c.is_key THEN k.entry ELSE jsonb_build_object('type', k.entry -> 'type') END
                         AND NOT (c.is_bare_partition AND k.entry ? 'identity');
END;

--
-- The script
--

-- A script calls these procedures.  Before the script has locked its tables, other
-- roles could exchange objects, or add a foreign key.  So the script locks the tables,
-- and then makes sure that the same script would be made now.
CREATE PROCEDURE snowflake_convert.run_as(owner name) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Neither SET ROLE nor SET SESSION AUTHORIZATION changes this role, whose rights
    -- the owner's code could take.
    connected name := pg_get_userbyid((SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid())));
BEGIN
    IF owner <> current_user OR owner IS DISTINCT FROM connected THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('this script has to run as role "%s", not as "%s"', owner, CASE WHEN current_user <> owner THEN current_user ELSE connected END),
            HINT = format('Connect as role "%s".', owner);
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.run_as(name) IS 'for scripts: refuse to go on as another role than the tables'' owner';

-- Locks tables one by one.  All locks together may take the time of lock_timeout,
-- so that a reader of the first table waits no longer; a later call has the rest.
CREATE PROCEDURE snowflake_convert.lock_tables(tables regclass[], lock_mode text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    timeout interval := nullif(current_setting('lock_timeout')::interval, interval '0');    -- NULL: no limit
    began timestamptz := clock_timestamp();
    tab regclass;
BEGIN
    FOREACH tab IN ARRAY tables LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', tab, lock_mode);
        PERFORM set_config('lock_timeout', greatest(1, extract(epoch FROM began + timeout - clock_timestamp()) * 1000)::integer::text, true)
          WHERE timeout IS NOT NULL;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.lock_tables(regclass[], text) IS 'for scripts: lock tables, before one deadline';

-- Lists the lines of a script that change something.  Each change is a constant for
-- EXECUTE, so that no setting of PL/pgSQL changes its meaning.  Names and constants
-- in them must not depend on the settings of the session that asks.
CREATE FUNCTION snowflake_convert.steps(reach snowflake_convert.reached[])
RETURNS text[] LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on SET quote_all_identifiers = off SET bytea_output = hex
SET datestyle = iso SET intervalstyle = postgres SET timezone = utc SET extra_float_digits = 3
BEGIN ATOMIC
    WITH changes AS MATERIALIZED (
        SELECT * FROM snowflake_convert.put_back(reach)
        UNION ALL
        SELECT * FROM snowflake_convert.statements(reach)
    )
    SELECT array_agg(s.line ORDER BY s.step, s.place, s.name COLLATE "C", s.line COLLATE "C")
      FROM (SELECT step, place, name, format('EXECUTE %L;', statement) FROM changes
            UNION ALL
            SELECT 40, 0, '', format('CALL snowflake_convert.lock_tables(%L, ''ACCESS EXCLUSIVE'');', snowflake_convert.locks(reach))) AS s(step, place, name, line);
END;

CREATE FUNCTION snowflake_convert.digest(steps text[])
RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN encode(sha256(convert_to(array_to_string(steps, E'\n'), getdatabaseencoding())), 'hex');

CREATE PROCEDURE snowflake_convert.check_unchanged(rels regclass[], cols name[], key_count integer, back jsonb, digest text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    reach snowflake_convert.reached[] := ARRAY(SELECT c FROM snowflake_convert.reach(rels, cols, key_count, back) AS c);
BEGIN
    IF digest <> snowflake_convert.digest(snowflake_convert.steps(reach) || back::text)
       OR EXISTS (SELECT FROM snowflake_convert.obstacles(reach, (SELECT oid FROM pg_roles WHERE rolname = current_user))) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tables, what depends on them, or names have changed since the script was made',
            HINT = 'Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.check_unchanged(regclass[], name[], integer, jsonb, text) IS
'for scripts: refuse to go on unless the same script would be made now';

-- Each line of the text becomes a comment, whatever names are in it.
CREATE FUNCTION snowflake_convert.comment(text text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN '-- ' || regexp_replace(text, '[\n\r]', E'\n--     ', 'g');

-- Writes a script: comments, and one DO statement, because a client that ignores an
-- error goes on with the next statement.
CREATE FUNCTION snowflake_convert.script(rels regclass[], cols name[], key_count integer, back jsonb DEFAULT '{}')
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    reach snowflake_convert.reached[] := ARRAY(SELECT c FROM snowflake_convert.reach(rels, cols, key_count, back) AS c);
    owner oid := (SELECT relowner FROM pg_class WHERE oid = rels[1]);
    steps text[] := snowflake_convert.steps(reach);
    digest text := snowflake_convert.digest(steps || back::text);
    locks regclass[] := snowflake_convert.locks(reach);
BEGIN
    RETURN QUERY SELECT snowflake_convert.comment(d) FROM snowflake_convert.describe(reach, rels, cols, key_count) AS d;
    IF back = '{}' THEN
        RETURN QUERY SELECT snowflake_convert.comment('warning: ' || w.description) FROM snowflake_convert.warnings(reach) AS w ORDER BY w.description COLLATE "C";
        RETURN QUERY SELECT snowflake_convert.comment(i.line) FROM snowflake_convert.integers(reach) AS i;
    END IF;
    IF cardinality(steps) = 1 THEN    -- nothing but the locks
        RETURN;
    END IF;
    IF cardinality(locks) > 100 THEN
        RETURN NEXT '-- PostgreSQL may need some locks for each table: "out of shared memory" asks for a larger max_locks_per_transaction';
    END IF;
    IF back = '{}' THEN
        RETURN NEXT snowflake_convert.comment(format('back: SELECT snowflake_convert.revert(%L);', snowflake_convert.way_back(reach, rels, cols, key_count)));
    END IF;
    -- The quote's tag is a hash of all texts but names, so none of them ends the quote.
    RETURN NEXT concat_ws(E'\n    ', format('DO $script_%s$ BEGIN', digest),
        'SET LOCAL lock_timeout = ''5s'';',
        'SET LOCAL search_path = pg_catalog, pg_temp;',
        -- Without the extension, the schema could be a stranger's.
        'IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = ''snowflake_convert'') THEN RAISE ''extension "snowflake_convert" is not installed''; END IF;',
        format('CALL snowflake_convert.run_as(%L);', pg_get_userbyid(owner)),
        'SET LOCAL standard_conforming_strings = on;',
        CASE WHEN back <> '{}' THEN 'SET LOCAL row_security = off;' END,    -- max() has to see all rows
        'SET LOCAL default_tablespace = '''';',
        'SET LOCAL default_table_access_method = heap;',
        'SET LOCAL snowflake_convert.schemas = none;',    -- new_tables() has to leave the tables alone
        format('CALL snowflake_convert.lock_tables(%L, ''SHARE UPDATE EXCLUSIVE'');', locks),
        format('CALL snowflake_convert.check_unchanged(%L, %L, %L, %L, %L);', rels, cols, key_count, back, digest),
        format('EXECUTE %L;', format('EXPLAIN SELECT %s', (snowflake_convert.id_functions())[1])),    -- an error if the owner may not call it, or it is ambiguous
        array_to_string(steps, E'\n    ')) || format(E'\nEND $script_%s$;', digest);
END
$$;

-- Finds the columns that arguments name as schema.table.column.
CREATE FUNCTION snowflake_convert.named(paths text[])
RETURNS TABLE (tab regclass, attname name) LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    path text;
BEGIN
    FOREACH path IN ARRAY paths LOOP
        RETURN QUERY
            SELECT a.attrelid::regclass, a.attname
              FROM parse_ident(path) AS p
              JOIN pg_namespace AS n ON n.nspname = p[1]
              JOIN pg_class AS t ON t.relnamespace = n.oid AND t.relname = p[2] AND t.relkind IN ('r', 'p')
              JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = p[3] AND a.attnum > 0 AND NOT a.attisdropped
             WHERE cardinality(p) = 3;
        IF NOT FOUND THEN
            RAISE undefined_column USING
                MESSAGE = format('there is no column "%s"', path),
                HINT = 'Write schema.table.column, with quotes as in SQL.';
        END IF;
    END LOOP;
END
$$;

-- Writes the script for keys and other columns.  Keys with obstacles are left out; a
-- key that is left out can be an obstacle to other keys, so look again.  It is an
-- error if that is not wanted, or if one of the other columns has an obstacle.
CREATE FUNCTION snowflake_convert.convert(
    rels regclass[], cols name[], also_rels regclass[], also_cols name[], owner oid, leaves_out boolean, back jsonb DEFAULT '{}')
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    count integer := cardinality(rels);
    bad integer[];
    wrong integer;
    problems text;
BEGIN
    LOOP
        SELECT array_agg(DISTINCT k), min(k) FILTER (WHERE NOT leaves_out OR k > count),
               string_agg(DISTINCT E'\n' || o.description, '') FILTER (WHERE NOT leaves_out OR k > count) INTO bad, wrong, problems
          FROM snowflake_convert.obstacles(ARRAY(SELECT c FROM snowflake_convert.reach(rels || also_rels, cols || also_cols, count, back) AS c), owner) AS o,
               unnest(o.keys) AS k;
        EXIT WHEN bad IS NULL;
        IF wrong IS NOT NULL THEN
            RAISE dependent_objects_still_exist USING
                MESSAGE = format('cannot change column "%s" of table "%s" and the columns that reference it',
                                 (cols || also_cols)[wrong], (rels || also_rels)[wrong]),
                DETAIL = 'In the way:' || problems,
                HINT = 'Drop the object that is in the way, run the script, and create it again. '
                       'A column itself, a partition key, a domain and a row type cannot be changed in this way.';
        END IF;
        RETURN QUERY
            SELECT snowflake_convert.comment(format('left out: %s: in the way: %s', string_agg(format('%s (%I)', rels[k], cols[k]), ', ' ORDER BY k), o.description))
              FROM (SELECT DISTINCT o.description, k
                      FROM snowflake_convert.obstacles(ARRAY(SELECT c FROM snowflake_convert.reach(rels || also_rels, cols || also_cols, count, back) AS c), owner) AS o,
                           unnest(o.keys) AS k) AS o(description, k)
             GROUP BY o.description
             ORDER BY min(k), o.description COLLATE "C";
        SELECT array_agg(k.rel ORDER BY k.n), array_agg(k.col ORDER BY k.n), count(*) INTO rels, cols, count
          FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(rel, col, n)
         WHERE k.n <> ALL (bad);
        EXIT WHEN rels IS NULL;
    END LOOP;
    IF count > 0 THEN
        RETURN QUERY SELECT snowflake_convert.script(rels || also_rels, cols || also_cols, count, back);
    ELSE
        RETURN NEXT snowflake_convert.comment(concat('no key to convert', ', so no statement for ' || (
            SELECT string_agg(format('%s.%I', a.tab, a.col), ', ') FROM unnest(also_rels, also_cols) AS a(tab, col))));
    END IF;
END
$$;

CREATE FUNCTION snowflake_convert.key(rel regclass, col name, also text[] DEFAULT '{}')
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = rel AND attname = col AND attnum > 0 AND NOT attisdropped) THEN
        RAISE undefined_column USING MESSAGE = format('column "%s" of table "%s" does not exist', col, rel);
    END IF;
    RETURN QUERY SELECT snowflake_convert.convert(
        ARRAY[rel], ARRAY[col], ARRAY(SELECT n.tab FROM snowflake_convert.named(also) AS n), ARRAY(SELECT n.attname FROM snowflake_convert.named(also) AS n),
        (SELECT relowner FROM pg_class WHERE oid = rel), false);
END
$$;
COMMENT ON FUNCTION snowflake_convert.key(regclass, name, text[]) IS
'a script that makes a key column bigint DEFAULT snowflake_id(), and the columns that reference it bigint';

CREATE FUNCTION snowflake_convert.revert(columns jsonb)
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    wrong text;
    rels regclass[];
    cols name[];
    key_count integer;
    back jsonb;
BEGIN
    SELECT format('column "%s" cannot become %s again', c.key, c.value) INTO wrong
      FROM jsonb_each(columns) AS c
     WHERE NOT coalesce(c.value ->> 'type' IN ('smallint', 'integer', 'bigint') AND c.value ->> 'identity' IN ('ALWAYS', 'BY DEFAULT') IS NOT FALSE
                        AND c.value ->> 'as' IN ('smallint', 'integer', 'bigint') IS NOT FALSE AND c.value ->> 'options' ~ '^[A-Z0-9 -]*$' IS NOT FALSE, false)
        OR NOT c.value ? 'identity' AND c.value ->> 'sequence' <> '' AND to_regclass(c.value ->> 'sequence')::oid IN (SELECT seqrelid FROM pg_sequence) IS NOT TRUE;
    IF FOUND THEN
        RAISE invalid_parameter_value USING MESSAGE = wrong, HINT = 'The last comment of the script that has converted the keys has the argument.';
    END IF;
    -- Inheritors' columns, which the argument may name for their sequences, are no keys of their own.
    WITH given AS (
        SELECT n.tab, n.attname, j.value, j.value ? 'sequence' AND a.attinhcount = 0 AS is_key, a.attinhcount > 0 AS is_inherited,
               snowflake_convert.is_snowflake(n.tab, a.attnum) AS is_snowflake
          FROM jsonb_each(columns) AS j, LATERAL snowflake_convert.named(ARRAY[j.key]) AS n
          JOIN pg_attribute AS a ON (a.attrelid, a.attname) = (n.tab, n.attname)
    )
    SELECT array_agg(g.tab ORDER BY g.is_key DESC, g.tab, g.attname) FILTER (WHERE NOT g.is_inherited),
           array_agg(g.attname ORDER BY g.is_key DESC, g.tab, g.attname) FILTER (WHERE NOT g.is_inherited),
           count(*) FILTER (WHERE g.is_key), jsonb_object_agg(format('%s.%I', g.tab, g.attname), g.value),
           min(format('column %I of table %s does not take its DEFAULT from the extension snowflake', g.attname, g.tab)) FILTER (WHERE g.is_key AND NOT g.is_snowflake)
      INTO rels, cols, key_count, back, wrong
      FROM given AS g;
    IF wrong IS NOT NULL OR coalesce(key_count, 0) = 0 THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = coalesce(wrong, 'no column has a "sequence", so there is no key to revert');
    END IF;
    IF columns @? '$.*.type ? (@ != "bigint")' THEN
        RETURN NEXT '-- If a row has a new id, this fails with "out of range": give all columns the type bigint.';
    END IF;
    RETURN QUERY SELECT snowflake_convert.convert(
        rels[:key_count], cols[:key_count], rels[key_count + 1:], cols[key_count + 1:], (SELECT relowner FROM pg_class WHERE oid = rels[1]), false, back);
END
$$;
COMMENT ON FUNCTION snowflake_convert.revert(jsonb) IS 'a script that makes snowflakes serial or identity columns again';

-- Lists the keys of schemas.  A key whose values neither a sequence nor the
-- extension makes may be a natural key, and is left alone.  Such a key is listed if
-- it is the only column of a primary key.  A snowflake is listed only if something
-- is still to do, such as a reference that is not bigint yet.
CREATE FUNCTION snowflake_convert.keys(schemas name[])
RETURNS TABLE (tab regclass, attname name, owner oid, is_left_alone boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH keys AS MATERIALIZED (
        SELECT t.oid::regclass AS tab, a.attname, a.attnum, t.relowner,
               snowflake_convert.is_snowflake(t.oid, a.attnum) AS is_done,
               snowflake_convert.sequence_of(t.oid, a.attnum) IS NOT NULL AS is_generated
          FROM pg_namespace AS s
          JOIN pg_class AS t ON t.relnamespace = s.oid AND t.relkind IN ('r', 'p') AND t.relpersistence <> 't'
          JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
                                AND a.attinhcount = 0 AND a.attgenerated = ''
                                AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
         WHERE s.nspname = ANY (schemas)
           AND (t.oid, a.attnum) IN (SELECT conrelid, unnest(conkey) FROM pg_constraint WHERE contype = 'p'
                                     UNION ALL
                                     SELECT confrelid, unnest(confkey) FROM pg_constraint WHERE contype = 'f')
           -- A column that references another key is converted with that key.
           AND (t.oid, a.attnum) NOT IN (SELECT conrelid, unnest(conkey) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0)
           AND t.oid NOT IN (SELECT objid FROM pg_depend WHERE (classid, deptype) = ('pg_class'::regclass, 'e'))
    )
    SELECT tab, attname, relowner, NOT is_done AND NOT is_generated
      FROM keys
     WHERE CASE WHEN is_done
                THEN EXISTS (SELECT FROM snowflake_convert.reach(ARRAY[tab], ARRAY[attname], 1) AS c
                              WHERE c.is_changed OR c.is_key AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum))
                ELSE is_generated
                     OR EXISTS (SELECT FROM pg_constraint AS k
                                 WHERE k.contype = 'p' AND k.conrelid = tab AND k.conkey = ARRAY[attnum]) END
     ORDER BY tab::text COLLATE "C", attnum;
END;

CREATE FUNCTION snowflake_convert.schema(schemas name[], except_keys text[] DEFAULT '{}', also text[] DEFAULT '{}')
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    rels regclass[];
    cols name[];
    owner oid := (SELECT oid FROM pg_roles WHERE rolname = current_user);
    owners oid[];
BEGIN
    PERFORM quote_ident(s)::regnamespace FROM unnest(schemas) AS s;    -- an error if there is none
    RETURN QUERY SELECT snowflake_convert.comment(format('left alone: %s (%I): %s', k.tab, k.attname,
                            CASE WHEN n.tab IS NULL THEN 'no sequence makes its values; snowflake_convert.key() makes a script for it'
                                 ELSE 'it is in except_keys' END))
                   FROM snowflake_convert.keys(schemas) AS k
                   LEFT JOIN snowflake_convert.named(except_keys) AS n ON (n.tab, n.attname) = (k.tab, k.attname)
                  WHERE k.is_left_alone OR n.tab IS NOT NULL;
    SELECT array_agg(k.tab ORDER BY k.n), array_agg(k.attname ORDER BY k.n), array_agg(DISTINCT k.owner) INTO rels, cols, owners
      FROM snowflake_convert.keys(schemas) WITH ORDINALITY AS k(tab, attname, owner, is_left_alone, n)
     WHERE NOT k.is_left_alone
       AND (k.tab, k.attname) NOT IN (SELECT n.tab, n.attname FROM snowflake_convert.named(except_keys) AS n);
    IF cardinality(owners) = 1 THEN
        owner := owners[1];
    ELSIF NOT owner = ANY (owners) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('the keys belong to several roles: %s',
                             (SELECT string_agg(o::regrole::text, ', ' ORDER BY o) FROM unnest(owners) AS o)),
            HINT = 'SET ROLE to one of them: the script then has the keys of this role.';
    END IF;
    RETURN QUERY SELECT snowflake_convert.convert(
        coalesce(rels, '{}'), coalesce(cols, '{}'), ARRAY(SELECT n.tab FROM snowflake_convert.named(also) AS n),
        ARRAY(SELECT n.attname FROM snowflake_convert.named(also) AS n), owner, true);
END
$$;
COMMENT ON FUNCTION snowflake_convert.schema(name[], text[], text[]) IS
'a script that converts, in some schemas, all keys whose values sequences make, and rewrites each table once';

--
-- New tables
--

-- age() alone takes a frozen row of 2^31 transactions ago for one of the future.
-- A transaction locks its own number and those of its subtransactions.
CREATE FUNCTION snowflake_convert.is_own(transaction xid)
RETURNS boolean LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
RETURN age(transaction) = 0
    OR age(transaction) < 0 AND EXISTS (
        SELECT FROM pg_locks AS l
         WHERE (l.locktype, l.mode, l.pid) = ('transactionid', 'ExclusiveLock', pg_backend_pid()) AND l.transactionid = transaction);

-- Finds the serial and identity columns of a new primary key, and the integer
-- columns that reference a snowflake, or a bigint column that is a reference itself.
CREATE FUNCTION snowflake_convert.new_columns(tab regclass)
RETURNS TABLE (attname name, is_key boolean) LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH referencing(attnum, tab, key) AS MATERIALIZED (
        SELECT f.attnum, k.confrelid, f.key
          FROM pg_constraint AS k, unnest(k.conkey, k.confkey) AS f(attnum, key)
         WHERE k.conrelid = new_columns.tab AND k.contype = 'f'
    )
    SELECT a.attname, true
      FROM pg_attribute AS a
      JOIN pg_constraint AS k ON k.conrelid = a.attrelid AND k.contype = 'p' AND a.attnum = ANY (k.conkey)
     WHERE a.attrelid = new_columns.tab AND a.attinhcount = 0 AND snowflake_convert.is_own(k.xmin)
       AND a.attnum NOT IN (SELECT attnum FROM referencing)
       AND snowflake_convert.sequence_of(a.attrelid, a.attnum) = CASE WHEN NOT a.attisdropped THEN pg_get_serial_sequence(new_columns.tab::text, a.attname)::regclass END
    UNION ALL
    SELECT DISTINCT a.attname, false
      FROM pg_attribute AS a
      JOIN referencing AS r ON r.attnum = a.attnum
      JOIN pg_attribute AS k ON (k.attrelid, k.attnum) = (r.tab, r.key) AND k.atttypid = 'bigint'::regtype
     WHERE a.attrelid = new_columns.tab AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype)
       AND (snowflake_convert.is_snowflake(r.tab, r.key)
            OR EXISTS (SELECT FROM pg_constraint AS c WHERE c.conrelid = r.tab AND c.contype = 'f' AND r.key = ANY (c.conkey)));
END;

-- The event trigger runs as who runs the DDL, and executes the statements of a
-- script if nothing is in the way of that very role, so that nobody's code runs as
-- somebody else.
--
-- Under REPEATABLE READ, the snapshot can lack a new foreign key.  ALTER TABLE then
-- fails before it checks that foreign key.
CREATE FUNCTION snowflake_convert.new_tables()
RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'	-- other sessions wait for the locks that it has
AS $$
DECLARE
    -- Once set for a transaction, it is '' and not NULL later.
    setting text := coalesce(nullif(current_setting('snowflake_convert.schemas', true), ''), 'public');
    me oid := (SELECT oid FROM pg_roles WHERE rolname = current_user);
    tables regclass[];
    tab regclass;
    col record;
    reach snowflake_convert.reached[];
    change text;
    reason text;
    detail text;
BEGIN
    IF setting = 'none' THEN	-- set by the user, or below for the changes
        RETURN;
    END IF;
    -- The tables for which this transaction has made a primary or foreign key.
    tables := ARRAY(
        SELECT DISTINCT c.oid
          FROM pg_event_trigger_ddl_commands() AS d
          JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE d.command_tag IN ('CREATE TABLE', 'ALTER TABLE') AND NOT d.in_extension
           AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
           AND n.nspname = ANY (regexp_split_to_array(btrim(setting), '\s*,\s*'))
           AND EXISTS (SELECT FROM pg_constraint AS k
                        WHERE k.conrelid = c.oid AND k.contype IN ('p', 'f') AND snowflake_convert.is_own(k.xmin)));
    FOREACH tab IN ARRAY tables LOOP
        FOR col IN SELECT * FROM snowflake_convert.new_columns(tab) LOOP
            reach := ARRAY(SELECT c FROM snowflake_convert.reach(ARRAY[tab], ARRAY[col.attname], col.is_key::integer) AS c);
            SELECT min(o.description) INTO reason
              FROM (SELECT b.description FROM snowflake_convert.obstacles(reach, me) AS b
                    UNION ALL
                    SELECT format('another role has connected, whose rights the code of role %I could take', current_user)
                      FROM pg_stat_get_activity(pg_backend_pid()) WHERE usesysid <> me
                    UNION ALL
                    SELECT format('table %s has rows', c.tab) FROM unnest(reach) AS c WHERE pg_relation_size(c.tab) > 0) AS o;
            IF reason IS NOT NULL THEN
                RAISE WARNING 'column % of table % stays as it is', quote_ident(col.attname), tab USING DETAIL = format('In the way: %s', reason);
                CONTINUE;
            END IF;
            PERFORM set_config('snowflake_convert.schemas', 'none', true);
            FOREACH change IN ARRAY ARRAY(SELECT s.statement FROM snowflake_convert.statements(reach) AS s ORDER BY s.step, s.place, s.name COLLATE "C") LOOP
                EXECUTE change;
            END LOOP;
            PERFORM set_config('snowflake_convert.schemas', setting, true);
        END LOOP;
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail := PG_EXCEPTION_DETAIL;
    RAISE WARNING '% as written', coalesce('table ' || tab::regclass || ' stays', 'new tables stay')
        USING DETAIL = concat_ws(': ', SQLERRM, nullif(detail, ''));
END
$$;
COMMENT ON FUNCTION snowflake_convert.new_tables() IS
'for CREATE EVENT TRIGGER ... ON ddl_command_end: serial and identity primary keys of new tables become snowflakes, in the schemas that the setting snowflake_convert.schemas names (unset: public; none: in no schema)';

-- The other functions are no interface.
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'snowflake_convert'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL LOOP
        EXECUTE format('COMMENT ON FUNCTION %s IS ''internal''', routine);
    END LOOP;
END
$$;
