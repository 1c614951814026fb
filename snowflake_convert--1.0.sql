/*
 * snowflake_convert 1.0: scripts that turn serial and identity keys into
 * snowflakes.
 *
 * The functions read the catalogue and return the text of a script.  They
 * execute nothing: the tables' owner looks at the script, and runs it.
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake_convert" to load this file. \quit

-- The control file names no schema: this statement fails if somebody has made a
-- schema of this name before.
CREATE SCHEMA snowflake_convert;
GRANT USAGE ON SCHEMA snowflake_convert TO PUBLIC;
COMMENT ON SCHEMA snowflake_convert IS
'scripts that turn serial and identity keys into snowflakes';

-- Names below are looked up here.  The bodies pin the same path.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- Finds the function by its OID: the schema of the extension snowflake may belong
-- to a role that makes functions and operators of the same names.
CREATE FUNCTION snowflake_convert.nextval_function()
RETURNS regprocedure
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.oid::regprocedure
      FROM pg_extension AS e
      JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.deptype) = ('pg_extension'::regclass, e.oid, 'e')
                         AND d.classid = 'pg_proc'::regclass
      JOIN pg_proc AS p ON p.oid = d.objid
     WHERE e.extname = 'snowflake' AND p.proname = 'snowflake_nextval' AND p.pronargs = 0;
END;
COMMENT ON FUNCTION snowflake_convert.nextval_function() IS
'internal: snowflake_nextval() of the extension snowflake';

-- A snowflake is a column whose DEFAULT calls snowflake_nextval().
CREATE FUNCTION snowflake_convert.is_snowflake(tab regclass, attnum smallint)
RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_attrdef AS f
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_attrdef'::regclass, f.oid)
         WHERE (f.adrelid, f.adnum) = (tab, attnum)
           AND (d.refclassid, d.refobjid) = ('pg_proc'::regclass, snowflake_convert.nextval_function()));
END;
COMMENT ON FUNCTION snowflake_convert.is_snowflake(regclass, smallint) IS
'internal: whether a column takes its DEFAULT from snowflake_nextval()';

--
-- What changes: columns, sequences, constraints
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
    way text,               -- what a key is to become: snowflake, serial, always or by default
    sequence text);         -- name and options of the sequence of a key that is to become no snowflake
COMMENT ON TYPE snowflake_convert.reached IS
'internal: a column that a script changes because of inheritance or foreign keys';

-- The first key_count of the given columns are keys.  All columns are to become
-- bigint, and keys snowflakes, unless "back" says what they are to become again, as
-- in snowflake_convert.revert().  A column that "back" does not name gets the type
-- of the key that it references.
CREATE FUNCTION snowflake_convert.reach(rels regclass[], cols name[], key_count integer, back jsonb DEFAULT '{}')
RETURNS SETOF snowflake_convert.reached
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off    -- use indexes only; see below
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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
                          LATERAL (SELECT * FROM pg_attribute
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
    SELECT c.tab::regclass, c.attnum, c.attname, c.keys, c.is_key, a.attinhcount > 0, t.type, a.atttypid <> t.type,
           coalesce(b.key ->> 'way', 'snowflake'), b.key ->> 'sequence'
      FROM (SELECT tab, attnum, attname, array_agg(DISTINCT key), bool_or(is_key)
              FROM reached GROUP BY tab, attnum, attname) AS c(tab, attnum, attname, keys, is_key)
      JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum),
           LATERAL (VALUES (back -> format('%s.%I', c.tab::regclass, c.attname),
                            back -> format('%s.%I', rels[c.keys[1]], cols[c.keys[1]]))) AS b(own, key),
           LATERAL (SELECT coalesce(b.own ->> 'type', b.key ->> 'type', 'bigint')::regtype) AS t(type);
END;
COMMENT ON FUNCTION snowflake_convert.reach(regclass[], name[], integer, jsonb) IS
'internal: columns, and all columns that must have the same type because of inheritance or foreign keys';

CREATE FUNCTION snowflake_convert.sequences(reach snowflake_convert.reached[])
RETURNS TABLE (
    tab regclass,
    attname name,
    sequence regclass,
    is_identity boolean,
    is_owned boolean,
    is_default boolean,     -- used by the key's DEFAULT
    is_shared boolean)      -- used by another object than the keys
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.tab, c.attname, s.oid::regclass, bool_or(o.deptype = 'i'), bool_or(o.deptype <> 'n'), bool_or(o.deptype = 'n'),
           EXISTS (SELECT FROM pg_depend AS u
                     LEFT JOIN pg_attrdef AS f ON (u.classid, u.objid) = ('pg_attrdef'::regclass, f.oid)
                    WHERE (u.refclassid, u.refobjid) = ('pg_class'::regclass, s.oid) AND u.deptype <> 'i'
                      AND NOT EXISTS (SELECT FROM unnest(reach) AS k WHERE k.is_key AND (k.tab, k.attnum) = (f.adrelid, f.adnum)))
      FROM unnest(reach) AS c,
           LATERAL (SELECT d.objid, d.deptype FROM pg_depend AS d
                     WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum)
                       AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
                    UNION ALL
                    SELECT d.refobjid, 'n' FROM pg_attrdef AS f
                      JOIN pg_depend AS d ON (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
                     WHERE (f.adrelid, f.adnum) = (c.tab, c.attnum)) AS o(sequence, deptype)
      JOIN pg_class AS s ON s.oid = o.sequence AND s.relkind = 'S'
     WHERE c.is_key
     GROUP BY c.tab, c.attname, s.oid;
END;
COMMENT ON FUNCTION snowflake_convert.sequences(snowflake_convert.reached[]) IS
'internal: the sequences that keys own or use';

-- Finds the foreign keys that contain or reference a column whose type changes.
-- The script drops them first and adds them last, so that PostgreSQL checks each
-- foreign key only once.
CREATE FUNCTION snowflake_convert.foreign_keys(reach snowflake_convert.reached[])
RETURNS TABLE (oid oid, keys integer[], conname name, tab regclass, references_tab regclass)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT k.oid, array_agg(DISTINCT key), k.conname, k.conrelid::regclass, k.confrelid::regclass
      FROM pg_constraint AS k,
           LATERAL (VALUES (k.conrelid, k.conkey), (k.confrelid, k.confkey)) AS side(tab, attnums)
      JOIN unnest(reach) AS c ON c.is_changed AND c.tab = side.tab::regclass AND c.attnum = ANY (side.attnums),
           unnest(c.keys) AS key
     WHERE k.contype = 'f' AND k.conparentid = 0
     GROUP BY k.oid;
END;
COMMENT ON FUNCTION snowflake_convert.foreign_keys(snowflake_convert.reached[]) IS
'internal: the foreign keys that are dropped and added again';

-- Lists the statements that change the columns.
CREATE FUNCTION snowflake_convert.statements(reach snowflake_convert.reached[], keep_sequence boolean)
RETURNS TABLE (step integer, place integer, name text, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH undone AS MATERIALIZED (
        SELECT unnest(keys) AS key
          FROM unnest(reach)
         WHERE is_key AND (way <> 'snowflake' OR NOT snowflake_convert.is_snowflake(tab, attnum))
    ), columns AS MATERIALIZED (
        SELECT c.*, a.attidentity, t.relispartition,
               c.is_key AND (c.tab, c.attnum) IN (SELECT r.tab, r.attnum FROM unnest(reach) AS r, unnest(r.keys) AS k(key) JOIN undone USING (key))
               AS wants_default
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
    ), own_sequences AS MATERIALIZED (
        SELECT s.*, c.way FROM snowflake_convert.sequences(reach) AS s JOIN columns AS c USING (tab, attname) WHERE c.wants_default AND s.is_owned
    ), serials AS MATERIALIZED (
        SELECT c.tab, c.attname, c.way, row_number() OVER (PARTITION BY c.sequence ORDER BY c.tab::text COLLATE "C", c.attnum) AS nth, c.sequence AS definition,
               (SELECT string_agg(quote_ident(part), '.') FROM unnest(parse_ident(c.sequence, false)) AS part) AS sequence
          FROM columns AS c
         WHERE c.wants_default AND NOT c.is_inherited AND c.way <> 'snowflake'
    ), actions AS (
        SELECT c.tab, c.attnum, v.place, format('ALTER COLUMN %I %s', c.attname, v.action) AS action
          FROM columns AS c
          LEFT JOIN serials AS s USING (tab, attname),
               LATERAL (VALUES (1, 'DROP IDENTITY', c.way = 'snowflake' AND c.wants_default AND c.attidentity <> ''),
                               (1, 'DROP DEFAULT', c.way IN ('always', 'by default') AND c.is_key),
                               (2, format('TYPE %s', c.type), c.is_changed),
                               (3, format('SET DEFAULT %s', snowflake_convert.nextval_function()),
                                c.way = 'snowflake' AND c.wants_default),
                               (3, format('SET DEFAULT pg_catalog.nextval(%L)', s.sequence), c.way = 'serial' AND s.sequence IS NOT NULL)
                       ) AS v(place, action, is_wanted)
         WHERE v.is_wanted AND NOT c.is_inherited
    ), constraints AS MATERIALIZED (
        SELECT * FROM snowflake_convert.foreign_keys(reach)
    ), steps(step, place, tab, statement) AS (
        SELECT 50, 0, tab, format('ALTER TABLE %s DROP CONSTRAINT %I', tab, conname) FROM constraints
        UNION ALL
        -- An inheritor has an identity of its own; a partition has its parent's.
        SELECT 51, 0, tab, format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY', tab, attname)
          FROM columns
         WHERE wants_default AND is_inherited AND NOT relispartition AND attidentity <> ''
        UNION ALL
        SELECT 51, 1, s.tab, CASE WHEN to_regclass(s.sequence) IS NULL
                                  THEN format('CREATE SEQUENCE %s OWNED BY %s.%I', s.definition, s.tab, s.attname)
                                  ELSE format('ALTER SEQUENCE %s RESTART', s.definition) END
          FROM serials AS s
         WHERE s.way = 'serial' AND s.nth = 1 AND (to_regclass(s.sequence) IS NULL OR to_regclass(s.sequence) IN (SELECT o.sequence FROM own_sequences AS o))
        UNION ALL
        SELECT 53, 0, tab, format('ALTER TABLE %s %s', tab, string_agg(action, ', ' ORDER BY attnum, place))
          FROM actions
         GROUP BY tab
        UNION ALL
        SELECT 55, 0, tab, CASE WHEN keep_sequence AND is_identity
                                THEN format('CREATE SEQUENCE %s OWNED BY %s.%I', sequence, tab, attname)
                                WHEN keep_sequence THEN format('ALTER SEQUENCE %s AS bigint', sequence)
                                ELSE format('DROP SEQUENCE %s', sequence) END
          FROM own_sequences
         WHERE CASE WHEN way = 'snowflake' THEN is_identity AND keep_sequence OR is_default AND (keep_sequence OR NOT is_shared)
                    ELSE way <> 'serial' AND NOT is_identity AND NOT is_shared END
        UNION ALL
        SELECT 56, 0, tab, format('ALTER TABLE %s ALTER COLUMN %I ADD GENERATED %s AS IDENTITY (SEQUENCE NAME %s)',
                                  tab, attname, upper(way), definition)
          FROM serials
         WHERE way <> 'serial'
        UNION ALL
        -- The first new value is above those in the table, of all rows.
        SELECT f.step, 0, s.tab, format('ALTER TABLE %s %s ROW LEVEL SECURITY', s.tab, f.action)
          FROM serials AS s
          JOIN pg_class AS t ON t.oid = s.tab AND t.relforcerowsecurity,
               LATERAL (VALUES (54, 'NO FORCE'), (58, 'FORCE')) AS f(step, action)
        UNION ALL
        SELECT 57, 0, tab, format('SELECT pg_catalog.setval(%1$L, max(%2$I)) FROM %3$s HAVING max(%2$I) >= (SELECT last_value FROM %1$s)',
                                  sequence, attname, tab)
          FROM serials
        UNION ALL
        SELECT 59, 0, tab, format('ALTER TABLE %s ADD CONSTRAINT %I %s', tab, conname, pg_get_constraintdef(oid))
          FROM constraints
    )
    SELECT step, place, tab::text, statement FROM steps;
END;
COMMENT ON FUNCTION snowflake_convert.statements(snowflake_convert.reached[], boolean) IS
'internal: the statements that change columns';

--
-- Expressions that are parsed anew
--

-- Finds the domains, arrays and ranges that are made of some types, and these types.
CREATE FUNCTION snowflake_convert.types_of(types oid[])
RETURNS SETOF oid
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION snowflake_convert.types_of(oid[]) IS 'internal: types, and the types that are made of them';

-- PostgreSQL parses an expression anew when the type of a column in it changes.  A
-- function or operator outside pg_catalog may then be another one of the same name,
-- which takes a bigint, and whose author is not the caller.  Only objects that are
-- not PostgreSQL's own have entries in pg_depend.
--
-- Names the first such function or operator, of an object in the catalogue, that
-- takes an integer, something that an integer is cast to, or a polymorphic type; or
-- a type that integers are cast to, because the cast itself is chosen anew, too.
CREATE FUNCTION snowflake_convert.foreign_code(classid oid, objid oid)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH casts(type, is_implicit) AS (
        SELECT unnest('{smallint,integer,bigint}'::regtype[]::oid[]), true
        UNION
        SELECT casttarget, castcontext = 'i' FROM pg_cast
         WHERE castsource IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
    ), targets(type) AS (
        SELECT snowflake_convert.types_of(ARRAY(SELECT type FROM casts WHERE type >= 16384))
    ), uses AS MATERIALIZED (
        SELECT d.refclassid, d.refobjid, f.proargtypes, o.oprleft, o.oprright
          FROM pg_depend AS d
          LEFT JOIN pg_proc AS f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid
          LEFT JOIN pg_operator AS o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
         WHERE (d.classid, d.objid) = (foreign_code.classid, foreign_code.objid) AND d.deptype = 'n'
           AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
    )
    SELECT min(pg_describe_object(u.refclassid, u.refobjid, 0))
      FROM uses AS u
     WHERE CASE WHEN u.refclassid <> 'pg_type'::regclass
                THEN EXISTS (SELECT FROM unnest(coalesce(u.proargtypes::oid[], ARRAY[u.oprleft, u.oprright])) AS a(type)
                               JOIN pg_type AS t ON t.oid = a.type
                              WHERE t.typtype = 'p'
                                 OR t.oid IN (SELECT snowflake_convert.types_of(ARRAY(SELECT type FROM casts WHERE is_implicit))))
                ELSE u.refobjid IN (SELECT type FROM targets)
                     OR EXISTS (SELECT FROM pg_type AS t JOIN pg_attribute AS a ON a.attrelid = t.typrelid
                                 WHERE t.oid = u.refobjid AND a.atttypid IN (SELECT type FROM targets)) END;
END;
COMMENT ON FUNCTION snowflake_convert.foreign_code(oid, oid) IS
'internal: a function, operator or type that an expression uses, and that takes an integer and is not PostgreSQL''s';

-- Names the first of PostgreSQL's own functions and operators that an expression
-- calls on an integer column, and that takes no bigint, such as date + integer.
-- pg_depend has no entries for them, so this reads the tree of the expression.
CREATE FUNCTION snowflake_convert.integer_code(classid oid, objid oid, attnum smallint)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH trees(classid, objid, tree) AS (
        SELECT 'pg_rewrite'::regclass, oid, concat(ev_action, ev_qual) FROM pg_rewrite WHERE oid = integer_code.objid
        UNION ALL
        SELECT 'pg_class'::regclass, indexrelid, concat(indexprs, indpred) FROM pg_index WHERE indexrelid = integer_code.objid
        UNION ALL
        SELECT 'pg_constraint'::regclass, oid, conbin::text FROM pg_constraint WHERE oid = integer_code.objid
        UNION ALL
        SELECT 'pg_trigger'::regclass, oid, tgqual::text FROM pg_trigger WHERE oid = integer_code.objid
        UNION ALL
        SELECT 'pg_policy'::regclass, oid, concat(polqual, polwithcheck) FROM pg_policy WHERE oid = integer_code.objid
    ), calls(kind, oid, place) AS (
        SELECT c[1], c[2]::oid, a.place::integer
          FROM trees AS t,
               regexp_matches(t.tree, '\{(OPEXPR :opno|FUNCEXPR :funcid) (\d+)[^{}]*:args \(((?:\{[^{}]*\} ?)+)\)', 'g') AS c,
               regexp_matches(c[3], '\{([^{}]*)\}', 'g') WITH ORDINALITY AS a(arg, place)
         WHERE t.classid = integer_code.classid
           AND a.arg[1] ~ format('^VAR :varno \d+ :varattno %s :vartype (21|23) ', integer_code.attnum)
    ), functions(kind, oid, name, schema, types) AS MATERIALIZED (
        SELECT 'FUNCEXPR :funcid', oid, proname, pronamespace, ARRAY(SELECT unnest(proargtypes)) FROM pg_proc
         WHERE EXISTS (SELECT FROM calls) AND proname IN (SELECT p.proname FROM calls AS c JOIN pg_proc AS p ON p.oid = c.oid AND c.kind ~ 'FUNC')
        UNION ALL
        SELECT 'OPEXPR :opno', oid, oprname, oprnamespace, ARRAY[oprleft, oprright] FROM pg_operator WHERE EXISTS (SELECT FROM calls)
    )
    SELECT min(pg_describe_object(CASE WHEN f.kind ~ 'FUNC' THEN 'pg_proc'::regclass ELSE 'pg_operator'::regclass END, f.oid, 0))
      FROM calls AS c
      JOIN functions AS f USING (kind, oid)
     WHERE f.oid < 16384 AND f.types[c.place] IN ('smallint'::regtype, 'integer'::regtype)
       -- a cast to bigint is no longer needed
       AND NOT EXISTS (SELECT FROM pg_cast AS t WHERE f.kind ~ 'FUNC' AND t.castfunc = f.oid AND t.casttarget = 'bigint'::regtype)
       AND NOT EXISTS (SELECT FROM functions AS o
                        WHERE (o.kind, o.name, o.schema, o.types[c.place]) = (f.kind, f.name, f.schema, 'bigint'::regtype)
                          AND cardinality(o.types) = cardinality(f.types)
                          AND NOT EXISTS (SELECT FROM unnest(f.types, o.types) AS t(old, new)
                                           WHERE t.old <> t.new
                                             AND NOT ('{smallint,integer,bigint}'::regtype[]::oid[] @> ARRAY[t.old, t.new])));
END;
COMMENT ON FUNCTION snowflake_convert.integer_code(oid, oid, smallint) IS
'internal: a function or operator that an expression calls on a column, and that takes no bigint';

--
-- What is put back: views, rules, triggers, policies, publications
--

-- Lists the views and materialised views on columns whose type changes, and the
-- views on these views.  "place" is how many views a view depends on.
CREATE FUNCTION snowflake_convert.views(reach snowflake_convert.reached[])
RETURNS TABLE (view regclass, keys integer[], place bigint)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE reads(oid, used, subid) AS MATERIALIZED (
        SELECT DISTINCT v.oid, d.refobjid, d.refobjsubid
          FROM pg_rewrite AS r
          JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind IN ('v', 'm')
          JOIN pg_depend AS d ON (d.classid, d.objid) = ('pg_rewrite'::regclass, r.oid)
                             AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
         WHERE r.ev_type = '1' AND d.refobjid <> r.ev_class   -- OLD and NEW are the view itself
    ), views(oid, key) AS (
        SELECT r.oid, key
          FROM unnest(reach) AS c
          JOIN reads AS r ON (r.used, r.subid) = (c.tab, c.attnum),
               unnest(c.keys) AS key
         WHERE c.is_changed
        UNION
        SELECT r.oid, v.key FROM views AS v JOIN reads AS r ON r.used = v.oid
    ), uses(oid, used) AS (
        SELECT r.oid, r.used FROM reads AS r WHERE r.oid IN (SELECT oid FROM views) AND r.used IN (SELECT r.oid FROM reads AS r)
        UNION
        SELECT u.oid, r.used FROM uses AS u JOIN reads AS r ON r.oid = u.used WHERE r.used IN (SELECT r.oid FROM reads AS r)
    )
    SELECT v.oid::regclass, array_agg(DISTINCT v.key), count(DISTINCT u.used)
      FROM views AS v
      LEFT JOIN uses AS u ON u.oid = v.oid
     GROUP BY v.oid;
END;
COMMENT ON FUNCTION snowflake_convert.views(snowflake_convert.reached[]) IS
'internal: the views that are dropped and put back when types change';

-- Lists the other objects that depend on a column whose type changes or on a view
-- of snowflake_convert.views().
CREATE FUNCTION snowflake_convert.dependents(reach snowflake_convert.reached[])
RETURNS TABLE (kind text, classid oid, objid oid, keys integer[], tab regclass, name name, enabled "char", owner oid, is_of_view boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT view, keys FROM snowflake_convert.views(reach)
    ), changed(classid, objid, subid, keys) AS MATERIALIZED (
        SELECT 'pg_class'::regclass::oid, tab::oid, attnum::integer, keys FROM unnest(reach) WHERE is_changed
        UNION ALL
        SELECT p.classid, p.objid, NULL, v.keys
          FROM views AS v
          JOIN pg_type AS t ON t.typrelid = v.view,
               LATERAL (VALUES ('pg_class'::regclass, v.view::oid), ('pg_type'::regclass, t.oid),
                               ('pg_type'::regclass, t.typarray)) AS p(classid, objid)
    ), depending AS MATERIALIZED (
        SELECT d.classid, d.objid, array_agg(DISTINCT key) AS keys
          FROM changed AS c
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = (c.classid, c.objid)
                             AND d.refobjsubid = coalesce(c.subid, d.refobjsubid),
               unnest(c.keys) AS key
         WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass,
                             'pg_policy'::regclass, 'pg_publication_rel'::regclass)
         GROUP BY d.classid, d.objid
    )
    SELECT CASE WHEN w.oid IS NOT NULL THEN 'RULE' WHEN g.oid IS NOT NULL THEN 'TRIGGER' WHEN p.oid IS NOT NULL THEN 'POLICY' ELSE 'PUBLICATION' END,
           d.*, t.oid::regclass, coalesce(w.rulename, g.tgname, p.polname, u.pubname), coalesce(w.ev_enabled, g.tgenabled),
           coalesce(u.pubowner, t.relowner), v.view IS NOT NULL
      FROM depending AS d
      LEFT JOIN pg_rewrite AS w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid AND w.ev_type <> '1'
      LEFT JOIN pg_trigger AS g ON d.classid = 'pg_trigger'::regclass AND g.oid = d.objid AND NOT g.tgisinternal AND g.tgparentid = 0
      LEFT JOIN pg_policy AS p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid
      LEFT JOIN pg_publication_rel AS r ON d.classid = 'pg_publication_rel'::regclass AND r.oid = d.objid
      LEFT JOIN pg_publication AS u ON u.oid = r.prpubid
      JOIN pg_class AS t ON t.oid = coalesce(w.ev_class, g.tgrelid, p.polrelid, r.prrelid)
      LEFT JOIN views AS v ON v.view = t.oid;
END;
COMMENT ON FUNCTION snowflake_convert.dependents(snowflake_convert.reached[]) IS
'internal: the rules, triggers, policies and publications that are dropped and put back when types change';

-- Lists the statements that create a view as it is now, without its rules,
-- triggers and comments.  A materialised view is created empty, and filled later.
CREATE FUNCTION snowflake_convert.view_statements(view regclass)
RETURNS TABLE (place integer, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH v AS MATERIALIZED (
        SELECT c.*, CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END AS kind
          FROM pg_class AS c
         WHERE c.oid = view
    ), options AS (
        SELECT string_agg(format('%s=%L', left(o, strpos(o, '=') - 1), substr(o, strpos(o, '=') + 1)), ', '
                          ORDER BY place) AS list
          FROM (SELECT 0, o FROM v, unnest(v.reloptions) AS o
                UNION ALL
                SELECT 1, 'toast.' || o FROM v JOIN pg_class AS t ON t.oid = v.reltoastrelid, unnest(t.reloptions) AS o
               ) AS s(place, o)
    ), indexes AS MATERIALIZED (
        SELECT x.indexrelid::regclass AS index, x.indisclustered, i.reltablespace, i.relname, x.indrelid
          FROM pg_index AS x
          JOIN pg_class AS i ON i.oid = x.indexrelid
         WHERE x.indrelid = view
    ), grants AS (
        SELECT a.attnum, a.attname, a.acl
          FROM (SELECT 0, NULL::name, coalesce(v.relacl, acldefault('r', v.relowner)) FROM v
                 WHERE v.relacl IS NOT NULL
                    OR EXISTS (SELECT FROM pg_default_acl AS f WHERE f.defaclrole = v.relowner AND f.defaclobjtype = 'r'
                                                                 AND f.defaclnamespace IN (0, v.relnamespace))
                UNION ALL
                SELECT attnum, attname, attacl FROM pg_attribute
                 WHERE attrelid = view AND attacl IS NOT NULL AND NOT attisdropped) AS a(attnum, attname, acl)
    ), steps(place, ord, statement) AS (
        SELECT 0, 0, format('CREATE %s %s%s%s%s AS %s%s', v.kind, view,
                            CASE WHEN m.amname <> 'heap' THEN format(' USING %I', m.amname) END,
                            ' WITH (' || o.list || ')',
                            ' TABLESPACE ' || quote_ident(s.spcname),
                            rtrim(ltrim(pg_get_viewdef(view)), ';'),
                            CASE v.relkind WHEN 'm' THEN E'\n WITH NO DATA' END)
          FROM v
         CROSS JOIN options AS o
          LEFT JOIN pg_am AS m ON m.oid = v.relam
          LEFT JOIN pg_tablespace AS s ON s.oid = v.reltablespace
        UNION ALL
        SELECT 2, f.adnum, format('ALTER VIEW %s ALTER COLUMN %I SET DEFAULT %s', view, a.attname,
                                  pg_get_expr(f.adbin, f.adrelid))
          FROM pg_attrdef AS f
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (f.adrelid, f.adnum)
         WHERE f.adrelid = view
        UNION ALL
        SELECT 3, a.attnum, format('ALTER MATERIALIZED VIEW %s ALTER COLUMN %I %s', view, a.attname, s.action)
          FROM pg_attribute AS a,
               LATERAL (
                   SELECT format('SET STATISTICS %s', a.attstattarget) WHERE a.attstattarget >= 0
                   UNION ALL
                   -- Some servers, such as PostgreSQL 15.20, store an option pg_attver, which pg_dump skips, too.
                   SELECT format('SET (%s)', string_agg(o, ', ')) FROM unnest(a.attoptions) AS o
                    WHERE o NOT LIKE 'pg\_attver=%' HAVING count(*) > 0
               ) AS s(action)
         WHERE a.attrelid = view AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT 4, 0, pg_get_indexdef(i.index) FROM indexes AS i
        UNION ALL
        SELECT 5, 0, format('ALTER INDEX %s SET TABLESPACE %I', i.index, s.spcname)
          FROM indexes AS i
          JOIN pg_tablespace AS s ON s.oid = i.reltablespace
        UNION ALL
        SELECT 5, 2, format('ALTER MATERIALIZED VIEW %s CLUSTER ON %I', view, i.relname)
          FROM indexes AS i
         WHERE i.indisclustered
        UNION ALL
        SELECT 6, 0, pg_get_statisticsobjdef(x.oid) FROM pg_statistic_ext AS x WHERE x.stxrelid = view
        UNION ALL
        -- The new view has default privileges: revoke them before the grants.
        SELECT 8, 0, format('REVOKE ALL ON TABLE %s FROM PUBLIC, %s', view,
                            (SELECT string_agg(DISTINCT quote_ident(pg_get_userbyid(r.oid)), ', ')
                               FROM (SELECT v.relowner
                                     UNION
                                     SELECT e.grantee FROM pg_default_acl AS f, aclexplode(f.defaclacl) AS e
                                      WHERE f.defaclrole = v.relowner AND f.defaclobjtype = 'r'
                                        AND f.defaclnamespace IN (0, v.relnamespace) AND e.grantee <> 0) AS r(oid)))
          FROM v
          JOIN grants AS g ON g.attnum = 0
        UNION ALL
        SELECT 9, (g.attnum * 10000 + min(e.ord))::integer,
               format('GRANT %s ON TABLE %s TO %s%s',
                      string_agg(e.privilege_type || coalesce(' (' || quote_ident(g.attname) || ')', ''), ', ' ORDER BY e.ord), view,
                      CASE e.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(e.grantee)) END,
                      CASE WHEN e.is_grantable THEN ' WITH GRANT OPTION' END)
          FROM grants AS g,
               LATERAL aclexplode(g.acl) WITH ORDINALITY AS e(grantor, grantee, privilege_type, is_grantable, ord)
         GROUP BY g.attnum, g.attname, e.grantee, e.is_grantable
    )
    SELECT row_number() OVER (ORDER BY s.place, s.ord, s.statement COLLATE "C")::integer, s.statement
      FROM steps AS s;
END;
COMMENT ON FUNCTION snowflake_convert.view_statements(regclass) IS
'internal: the statements that create a view as it is now, without its rules, triggers and comments';

-- Lists the objects that a script makes anew, but for foreign keys.
CREATE FUNCTION snowflake_convert.parts(reach snowflake_convert.reached[])
RETURNS TABLE (keys integer[], classid oid, objid oid)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT v.keys, p.classid, p.objid
      FROM snowflake_convert.views(reach) AS v,
           LATERAL (
               SELECT 'pg_class'::regclass::oid, v.view::oid
               UNION ALL
               SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid = v.view
               UNION ALL
               SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxrelid = v.view
               UNION ALL
               SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid = v.view
               UNION ALL
               SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class = v.view
               UNION ALL
               SELECT 'pg_type'::regclass, typarray FROM pg_type WHERE typrelid = v.view
           ) AS p(classid, objid)
    UNION ALL
    SELECT keys, classid, objid FROM snowflake_convert.dependents(reach);
END;
COMMENT ON FUNCTION snowflake_convert.parts(snowflake_convert.reached[]) IS
'internal: the objects that a script makes anew, but for foreign keys';

-- Lists the statements that drop what is in the way, and put it back.
CREATE FUNCTION snowflake_convert.put_back(reach snowflake_convert.reached[])
RETURNS TABLE (step integer, place integer, name text, statement text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT v.view, v.place::integer, c.relkind = 'm' AND c.relispopulated AS is_filled,
               CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END AS kind
          FROM snowflake_convert.views(reach) AS v
          JOIN pg_class AS c ON c.oid = v.view
    ), others AS MATERIALIZED (
        SELECT d.*, format('%I ON %s', d.name, d.tab) AS named FROM snowflake_convert.dependents(reach) AS d
    )
    -- A rule may depend on a view: drop rules first.
    SELECT s.step, s.place, r.name || ' ' || coalesce(r.tab::text, ''), s.statement
      FROM others AS r,
           LATERAL (
               SELECT CASE r.kind WHEN 'RULE' THEN 20 ELSE 45 END, 0, format('DROP %s %s', r.kind, r.named)
                WHERE r.kind IN ('RULE', 'TRIGGER', 'POLICY') AND (r.kind <> 'TRIGGER' OR NOT r.is_of_view)
               UNION ALL
               SELECT 72, 0, CASE r.kind WHEN 'TRIGGER' THEN pg_get_triggerdef(r.objid) ELSE rtrim(pg_get_ruledef(r.objid), ';') END
                WHERE r.kind IN ('RULE', 'TRIGGER')
               UNION ALL
               SELECT 72, 1, format('ALTER TABLE %s %s %s %I', r.tab,
                                    CASE r.enabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END,
                                    r.kind, r.name)
                WHERE r.enabled <> 'O'
               UNION ALL
               SELECT 72, 0, format('CREATE POLICY %s AS %s FOR %s TO %s%s%s', r.named,
                                    CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
                                    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                                                  WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
                                    (SELECT string_agg(CASE o WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(o)) END, ', ')
                                       FROM unnest(p.polroles) AS o),
                                    ' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')',
                                    ' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')')
                 FROM pg_policy AS p WHERE r.kind = 'POLICY' AND p.oid = r.objid
               UNION ALL
               SELECT 45, 0, format('ALTER PUBLICATION %I DROP TABLE ONLY %s', r.name, r.tab) WHERE r.kind = 'PUBLICATION'
               UNION ALL
               SELECT 73, 0, format('ALTER PUBLICATION %I ADD TABLE ONLY %s%s%s', r.name, r.tab,
                                    (SELECT ' (' || string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) || ')'
                                       FROM pg_attribute AS a
                                      WHERE p.prattrs IS NOT NULL AND a.attrelid = p.prrelid
                                        AND a.attnum = ANY (p.prattrs::smallint[])),
                                    ' WHERE (' || pg_get_expr(p.prqual, p.prrelid) || ')')
                 FROM pg_publication_rel AS p WHERE r.kind = 'PUBLICATION' AND p.oid = r.objid
           ) AS s(step, place, statement)
    UNION ALL
    SELECT s.step, s.place, v.view::text, s.statement
      FROM views AS v,
           LATERAL (
               SELECT 30, -v.place, format('DROP %s %s', v.kind, v.view)
               UNION ALL
               SELECT 70, v.place * 10000 + s.place, s.statement FROM snowflake_convert.view_statements(v.view) AS s
               UNION ALL
               SELECT 74, v.place, format('REFRESH MATERIALIZED VIEW %s', v.view) WHERE v.is_filled
           ) AS s(step, place, statement)
    UNION ALL
    -- PostgreSQL drops the statistics of a column whose type changes, and of an index's expressions.
    SELECT 77, 0, t.oid::regclass::text, format('ANALYZE %s%s', t.oid::regclass, CASE WHEN NOT x.has_expressions THEN c.columns END)
      FROM (SELECT tab, format(' (%s)', string_agg(quote_ident(attname), ', ' ORDER BY attnum)) FROM unnest(reach) WHERE is_changed GROUP BY tab
            UNION ALL
            SELECT view, NULL FROM views WHERE is_filled) AS c(tab, columns)
      JOIN pg_class AS t ON t.oid = c.tab AND NOT t.relispartition,    -- ANALYZE of the parent analyzes partitions
           LATERAL (SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = t.oid AND indexprs IS NOT NULL)) AS x(has_expressions)
    UNION ALL
    -- Indexes and statistics are made again without their statistics targets.
    SELECT 75, 0, c.tab::text, t.statement
      FROM (SELECT tab FROM unnest(reach) WHERE is_changed
            UNION
            SELECT view FROM views) AS c,
           LATERAL (
               SELECT format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', x.indexrelid::regclass, a.attnum, a.attstattarget)
                 FROM pg_index AS x
                 JOIN pg_attribute AS a ON a.attrelid = x.indexrelid AND a.attstattarget >= 0
                WHERE x.indrelid = c.tab
               UNION ALL
               SELECT format('ALTER STATISTICS %I.%I SET STATISTICS %s', n.nspname, x.stxname, x.stxstattarget)
                 FROM pg_statistic_ext AS x
                 JOIN pg_namespace AS n ON n.oid = x.stxnamespace
                WHERE x.stxrelid = c.tab AND x.stxstattarget >= 0
           ) AS t(statement)
    UNION ALL
    SELECT 76, 0, o.identity, format('COMMENT ON %s %s IS %L', CASE o.type WHEN 'table constraint' THEN 'CONSTRAINT' WHEN 'statistics object' THEN 'STATISTICS'
                                     ELSE regexp_replace(upper(o.type), '.* COLUMN', 'COLUMN') END, o.identity, d.description)
      FROM (SELECT classid, objid FROM snowflake_convert.parts(reach)
            UNION
            SELECT 'pg_constraint'::regclass, oid FROM snowflake_convert.foreign_keys(reach)) AS p
      JOIN pg_description AS d ON (d.classoid, d.objoid) = (p.classid, p.objid),
           LATERAL pg_identify_object(d.classoid, d.objoid, d.objsubid) AS o;
END;
COMMENT ON FUNCTION snowflake_convert.put_back(snowflake_convert.reached[]) IS
'internal: the statements that drop views and other dependents, and put them back';

--
-- What a script says: obstacles and warnings
--

-- Reads the catalogue of Citus, if that is installed.  Only a superuser can create
-- a table in pg_catalog.
CREATE FUNCTION snowflake_convert.is_distributed(tab regclass)
RETURNS boolean
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    result boolean := false;
BEGIN
    IF EXISTS (SELECT FROM pg_class
                WHERE relnamespace = 'pg_catalog'::regnamespace AND relname = 'pg_dist_partition') THEN
        EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition WHERE logicalrelid = $1)' INTO result USING tab;
    END IF;
    RETURN result;
END
$$;
COMMENT ON FUNCTION snowflake_convert.is_distributed(regclass) IS
'internal: whether Citus has distributed a table';

-- Writes the statement that drops what is in the way.
CREATE FUNCTION snowflake_convert.drop_statement(classid oid, objid oid)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE o.type
           WHEN 'table constraint' THEN (SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint WHERE oid = objid)
           WHEN 'index' THEN coalesce((SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint WHERE conindid = objid AND contype = 'x'),
                                      'DROP INDEX ' || o.identity)
           WHEN 'default value' THEN (SELECT format('ALTER TABLE %s ALTER COLUMN %I DROP DEFAULT', a.attrelid::regclass, a.attname)
                                        FROM pg_attrdef AS f JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (f.adrelid, f.adnum) WHERE f.oid = objid)
           -- The query of a view is its rule _RETURN.
           WHEN 'rule' THEN (SELECT CASE WHEN r.ev_type <> '1' THEN format('DROP RULE %s', o.identity)
                                         ELSE format('DROP %s %s', CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END, c.oid::regclass) END
                               FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class WHERE r.oid = objid)
           ELSE format('DROP %s %s', CASE o.type WHEN 'statistics object' THEN 'STATISTICS' ELSE upper(o.type) END, o.identity) END
      FROM pg_identify_object(classid, objid, 0) AS o;
END;
COMMENT ON FUNCTION snowflake_convert.drop_statement(oid, oid) IS 'internal: the statement that drops an object';

-- Lists what cannot be dropped and put back as it is, and what must not be parsed anew.
CREATE FUNCTION snowflake_convert.put_back_obstacles(reach snowflake_convert.reached[])
RETURNS TABLE (keys integer[], description text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH views AS MATERIALIZED (
        SELECT v.*, c.relowner, c.relacl, t.oid AS type, t.typarray,
               pg_describe_object('pg_class'::regclass, c.oid, 0) AS description
          FROM snowflake_convert.views(reach) AS v
          JOIN pg_class AS c ON c.oid = v.view
          JOIN pg_type AS t ON t.oid = c.reltype
    ), parts AS MATERIALIZED (
        SELECT * FROM snowflake_convert.parts(reach)
    ), found(keys, description) AS (
        SELECT v.keys, format('%s depends on %s', pg_describe_object(d.classid, d.objid, d.objsubid), v.description)
          FROM views AS v
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) IN (('pg_class'::regclass, v.view), ('pg_type'::regclass, v.type),
                                                                ('pg_type'::regclass, v.typarray))
         WHERE d.deptype <> 'i' AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM parts)
        UNION ALL
        SELECT v.keys, format('%s has a security label of provider %s', v.description, l.provider)
          FROM views AS v
          JOIN pg_seclabel AS l ON (l.classoid, l.objoid) = ('pg_class'::regclass, v.view)
        UNION ALL
        SELECT v.keys, format('column %I of %s has another storage or compression than its type', a.attname, v.description)
          FROM views AS v
          JOIN pg_attribute AS a ON a.attrelid = v.view AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pg_type AS t ON t.oid = a.atttypid
         WHERE a.attstorage <> t.typstorage OR a.attcompression <> ''
        UNION ALL
        SELECT o.keys, format('%s is enabled or disabled differently on partition %s', o.description, g.tgrelid::regclass)
          FROM (SELECT *, pg_describe_object(classid, objid, 0) AS description FROM snowflake_convert.dependents(reach)) AS o
          JOIN pg_trigger AS p ON o.kind = 'TRIGGER' AND p.oid = o.objid
          JOIN pg_trigger AS g ON g.tgparentid = p.oid
         WHERE g.tgenabled <> p.tgenabled
        UNION ALL
        SELECT v.keys, format('%s has privileges that role %I has granted', v.description, pg_get_userbyid(a.grantor))
          FROM views AS v, LATERAL (SELECT DISTINCT e.grantor FROM aclexplode(v.relacl) AS e WHERE e.grantor <> v.relowner) AS a
        UNION ALL
        SELECT e.keys, format('%s depends on %s, which takes an integer, and could be another one for a bigint. %s;',
                              pg_describe_object(e.classid, e.objid, 0), f.code, snowflake_convert.drop_statement(e.classid, e.objid))
          FROM (SELECT n.keys, d.classid, d.objid
                  FROM unnest(reach) AS n
                  JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, n.tab, n.attnum)
                 WHERE n.is_changed AND d.classid IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_attrdef'::regclass, 'pg_statistic_ext'::regclass)
                   AND d.objsubid = 0
                UNION
                SELECT keys, classid, objid FROM parts WHERE objid NOT IN (SELECT view FROM views)) AS e(keys, classid, objid),
               LATERAL snowflake_convert.foreign_code(e.classid, e.objid) AS f(code)
         WHERE f.code IS NOT NULL
        UNION ALL
        SELECT n.keys, format('%s calls %s, which takes no bigint. %s;',
                              pg_describe_object(d.classid, d.objid, 0), i.code, snowflake_convert.drop_statement(d.classid, d.objid))
          FROM unnest(reach) AS n
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, n.tab, n.attnum) AND d.objsubid = 0,
               LATERAL snowflake_convert.integer_code(d.classid, d.objid, n.attnum) AS i(code)
         WHERE n.is_changed AND i.code IS NOT NULL
    )
    SELECT f.keys, f.description FROM found AS f;
END;
COMMENT ON FUNCTION snowflake_convert.put_back_obstacles(snowflake_convert.reached[]) IS
'internal: what a script cannot drop and put back, and expressions that must not be parsed anew';

-- Lists what keeps columns from being changed, or cannot be put back.
CREATE FUNCTION snowflake_convert.obstacles(reach snowflake_convert.reached[], owner oid)
RETURNS TABLE (keys integer[], description text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH changed AS MATERIALIZED (
        SELECT c.keys, c.tab, c.attnum, c.attname, a.atttypid, a.attinhcount, t.reltype, t.reloftype,
               format('column %I of table %s', c.attname, c.tab) AS description
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
          JOIN pg_class AS t ON t.oid = c.tab
         WHERE c.is_changed
    ), owned(keys, owner, description) AS (
        SELECT c.keys, t.relowner, 'table ' || c.tab
          FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab
         WHERE c.is_key OR c.is_changed
        UNION ALL
        SELECT f.keys, t.relowner, 'table ' || t.oid::regclass
          FROM snowflake_convert.foreign_keys(reach) AS f JOIN pg_class AS t ON t.oid IN (f.tab, f.references_tab)
        UNION ALL
        SELECT v.keys, c.relowner, pg_describe_object('pg_class'::regclass, c.oid, 0)
          FROM snowflake_convert.views(reach) AS v JOIN pg_class AS c ON c.oid = v.view
        UNION ALL
        SELECT o.keys, o.owner, pg_describe_object(o.classid, o.objid, 0) FROM snowflake_convert.dependents(reach) AS o
        UNION ALL
        SELECT v.keys, x.stxowner, pg_describe_object('pg_statistic_ext'::regclass, x.oid, 0)
          FROM snowflake_convert.views(reach) AS v JOIN pg_statistic_ext AS x ON x.stxrelid = v.view
    ), found(keys, description) AS (
        SELECT n.keys, pg_describe_object(d.classid, d.objid, d.objsubid)
          FROM changed AS n
          JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass
                             AND (d.refobjid, d.refobjsubid) = (n.tab, n.attnum)
         WHERE d.classid = 'pg_proc'::regclass
            OR d.classid = 'pg_class'::regclass AND d.objsubid > 0
            OR d.classid = 'pg_attrdef'::regclass AND NOT EXISTS (
                SELECT FROM pg_attrdef AS f WHERE f.oid = d.objid AND (f.adrelid, f.adnum) = (n.tab, n.attnum))
        UNION ALL
        SELECT c.keys, format('foreign table %s', c.tab)
          FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab AND t.relkind = 'f'
        UNION ALL
        SELECT n.keys, n.description || p.problem
          FROM changed AS n,
               LATERAL (VALUES
                   (', of type ' || format_type(n.atttypid, NULL),
                    n.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)),
                   (', inherited from several tables', n.attinhcount > 1),
                   (', of a table of type ' || format_type(n.reloftype, NULL), n.reloftype <> 0),
                   (', of a table whose row type is the type of a column',
                    EXISTS (SELECT FROM pg_depend AS d
                             WHERE (d.refclassid, d.refobjid) = ('pg_type'::regclass, n.reltype)
                               AND d.classid = 'pg_class'::regclass AND d.objsubid > 0)),
                   -- The columns of a partition key depend on their own table.
                   (', in its partition key', EXISTS (
                       SELECT FROM pg_depend AS d
                        WHERE (d.classid, d.objid, d.objsubid) = ('pg_class'::regclass, n.tab, n.attnum)
                          AND (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, n.tab, 0)
                          AND d.deptype = 'i'))) AS p(problem, is_found)
         WHERE p.is_found
        UNION ALL
        -- Since PostgreSQL 18 a column can have only one NOT NULL constraint, which has a
        -- name.  ALTER COLUMN TYPE would add the parent's to the inheritor's column.
        SELECT n.keys, format('NOT NULL constraint %I of table %s, which has another name than that of table %s',
                              k.conname, n.tab, p.conrelid::regclass)
          FROM changed AS n
          JOIN pg_constraint AS k ON k.conrelid = n.tab AND k.contype = 'n' AND k.conkey[1] = n.attnum AND k.conislocal
          JOIN pg_inherits AS i ON i.inhrelid = n.tab
          JOIN pg_attribute AS a ON a.attrelid = i.inhparent AND a.attname = n.attname
          JOIN pg_constraint AS p ON p.conrelid = i.inhparent AND p.contype = 'n' AND p.conkey[1] = a.attnum AND p.conname <> k.conname
        UNION ALL
        -- A column that references two columns needs values that fit both.
        SELECT c.keys, format('column %I of table %s, which references column %I of table %s as well',
                              c.attname, c.tab, f.attname, f.attrelid::regclass)
          FROM unnest(reach) AS c
          JOIN pg_constraint AS k ON k.conrelid = c.tab AND k.contype = 'f' AND k.conparentid = 0
                                 AND c.attnum = ANY (k.conkey)
          JOIN pg_attribute AS f ON f.attrelid = k.confrelid
                                AND f.attnum = k.confkey[array_position(k.conkey, c.attnum)]
         WHERE c.type = 'bigint'::regtype AND f.atttypid IN ('smallint'::regtype, 'integer'::regtype)
           AND NOT EXISTS (SELECT FROM unnest(reach) AS o WHERE (o.tab, o.attnum) = (f.attrelid, f.attnum))
        UNION ALL
        SELECT c.keys, format('table %s is distributed by Citus: convert before the table is distributed', c.tab)
          FROM unnest(reach) AS c
         WHERE snowflake_convert.is_distributed(c.tab)
        UNION ALL
        -- pgEdge's extension of the same name leaves such sequences.
        SELECT c.keys, format('sequence %s of an identity that column %I of table %s no longer has: a superuser has to execute '
                              'UPDATE pg_catalog.pg_attribute SET attidentity = ''d'' '
                              'WHERE attrelid = %L::pg_catalog.regclass AND attname = %L', s.sequence, s.attname, s.tab, s.tab, s.attname)
          FROM snowflake_convert.sequences(reach) AS s
          JOIN unnest(reach) AS c USING (tab, attname)
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
         WHERE s.is_identity AND a.attidentity = ''
        UNION ALL
        -- A script runs as one role.
        SELECT o.keys, format('%s belongs to role %I', o.description, pg_get_userbyid(o.owner))
          FROM owned AS o
         WHERE o.owner <> obstacles.owner
        UNION ALL
        SELECT p.keys, p.description FROM snowflake_convert.put_back_obstacles(reach) AS p
    )
    SELECT f.keys, f.description FROM found AS f;
END;
COMMENT ON FUNCTION snowflake_convert.obstacles(snowflake_convert.reached[], oid) IS
'internal: what keeps columns from being changed, or cannot be put back';

-- Lists what a script does not change, and what may fail with new ids.  Reads
-- expressions by regular expressions on their text, and functions word by word.
CREATE FUNCTION snowflake_convert.warnings(reach snowflake_convert.reached[], owner oid, keep_sequence boolean)
RETURNS TABLE (description text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT c.*, t.relname, t.relnamespace FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab
    ), own_sequences AS MATERIALIZED (
        SELECT s.*, q.relname FROM snowflake_convert.sequences(reach) AS s JOIN pg_class AS q ON q.oid = s.sequence
    ), routines AS MATERIALIZED (
        SELECT p.oid, coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) AS body
          FROM pg_proc AS p
          JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname NOT IN ('internal', 'c')
         WHERE p.oid >= 16384
           AND NOT EXISTS (SELECT FROM pg_depend WHERE (classid, objid, deptype) = ('pg_proc'::regclass, p.oid, 'e'))
    ), words(oid, word) AS MATERIALIZED (
        SELECT DISTINCT r.oid, lower(w) FROM routines AS r, regexp_split_to_table(r.body, '\W+') AS w
        UNION
        SELECT r.oid, lower(w[1]) FROM routines AS r, regexp_matches(r.body, '"([^"]*\W[^"]*)"', 'g') AS w
        UNION
        SELECT g.tgfoid, lower(c.relname) FROM pg_trigger AS g JOIN columns AS c ON c.tab = g.tgrelid
         WHERE g.tgfoid IN (SELECT r.oid FROM routines AS r)
    ), expressions AS MATERIALIZED (
        SELECT d.classid, d.objid, quote_ident(c.attname) AS name,
               CASE d.classid WHEN 'pg_class'::regclass THEN CASE WHEN i.indexrelid IS NOT NULL THEN pg_get_indexdef(d.objid) END
                              WHEN 'pg_constraint'::regclass THEN pg_get_constraintdef(d.objid)
                              WHEN 'pg_trigger'::regclass THEN pg_get_triggerdef(d.objid)
                              WHEN 'pg_rewrite'::regclass THEN pg_get_ruledef(d.objid)
                              ELSE pg_get_expr(f.adbin, f.adrelid) END AS definition
          FROM columns AS c
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, c.tab, c.attnum) AND d.objsubid = 0
          LEFT JOIN pg_index AS i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
          LEFT JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
         WHERE d.classid IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_trigger'::regclass, 'pg_rewrite'::regclass, 'pg_attrdef'::regclass)
    ), warnings(description) AS (
        SELECT format('new ids may not pass %s: %s', pg_describe_object(e.classid, e.objid, 0), e.definition)
          FROM expressions AS e, regexp_replace(e.name, '(\W)', '\\\1', 'g') AS n(name)
         WHERE e.definition ~ format('(?:^|[^[:alnum:]_"])%s\)*::(?:smallint|integer)', n.name)    -- a cast of the key
            OR e.classid = 'pg_constraint'::regclass AND e.definition ~ '^CHECK'    -- or its bound
               AND (e.definition ~ format('(?:^|[^[:alnum:]_."])%s\)*(?:::bigint)? (?:<=?|=) \(*''?\d', n.name)
                    OR e.definition ~ format('\d''?(?:::\w+)?\)* (?:>=?|=) \(*%s(?![[:alnum:]_"])', n.name))
        UNION
        SELECT format('function %s mentions %s', w.oid::regprocedure, string_agg(DISTINCT n.name, ', '))
          FROM (SELECT relname, tab::text FROM columns WHERE NOT is_inherited
                UNION
                SELECT relname, 'sequence ' || sequence FROM own_sequences) AS n(word, name)
          JOIN words AS w ON w.word = lower(n.word)
         GROUP BY w.oid
        UNION
        SELECT format('sequence %s is used by %s%s', s.sequence, pg_describe_object(d.classid, d.objid, d.objsubid),
                      ': ' || pg_get_expr(f.adbin, f.adrelid))
          FROM own_sequences AS s
          JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = ('pg_class'::regclass, s.sequence) AND d.deptype <> 'i'
          LEFT JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
         WHERE s.is_shared AND NOT EXISTS (SELECT FROM columns AS c WHERE c.is_key AND (c.tab, c.attnum) = (f.adrelid, f.adnum))
        UNION
        SELECT format('sequence %s stays: %s', s.sequence,
                      CASE WHEN s.is_owned THEN format('column %I of table %s owns it, but its DEFAULT does not use it', s.attname, s.tab)
                           ELSE 'the key does not own it' END)
          FROM own_sequences AS s
         WHERE NOT s.is_identity AND NOT (s.is_owned AND s.is_default)
           AND (s.is_owned OR s.sequence NOT IN (SELECT o.sequence FROM own_sequences AS o WHERE o.is_owned))
        UNION
        SELECT format('sequence %s stays for pg_get_serial_sequence(): nothing calls nextval() on it, and lastval() and currval() do not know new ids',
                      s.sequence)
          FROM own_sequences AS s
         WHERE keep_sequence AND (s.is_identity OR s.is_owned AND s.is_default)
        UNION
        -- The keys of another scheme may be larger than new ids, or equal to one.
        SELECT format('new ids have to be larger than the keys, so this has to be true: SELECT max(%I) < %s FROM %s', c.attname,
                      replace(snowflake_convert.nextval_function()::text, 'snowflake_nextval()', 'snowflake_min_id(now())'), c.tab)
          FROM columns AS c
         WHERE c.is_key AND NOT c.is_inherited AND NOT c.is_changed AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum)
           AND NOT EXISTS (SELECT FROM own_sequences AS s WHERE s.is_identity OR s.is_default)
        UNION
        SELECT format('role %I, the owner of schema %I, can exchange names while the script runs', pg_get_userbyid(o.oid), n.nspname)
          FROM (SELECT DISTINCT relnamespace FROM columns) AS c
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
          JOIN pg_roles AS o ON o.oid = CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner'
                                        THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
                                        ELSE n.nspowner END
         WHERE o.oid <> warnings.owner AND NOT o.rolsuper
           AND NOT (SELECT rolsuper FROM pg_roles WHERE oid = warnings.owner)
    )
    SELECT w.description FROM warnings AS w ORDER BY w.description COLLATE "C";
END;
COMMENT ON FUNCTION snowflake_convert.warnings(snowflake_convert.reached[], oid, boolean) IS
'internal: what a script does not change, and what may fail with new ids';

-- Takes the plural and the "id" off a name: page_id, pageId and pages become page.
CREATE FUNCTION snowflake_convert.singular(name text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT regexp_replace(regexp_replace(lower(name), '_?id$|([^s])s$', '\1'), 'ie$', 'y');
END;
COMMENT ON FUNCTION snowflake_convert.singular(text) IS
'internal: a name in lower case without its plural and its id';

-- Lists the columns of integers that stay as they are, of all schemas, arrays,
-- domains and ranges too.  A column looks like a reference if its name ends in
-- "id", or in the name of a key or of a key's table; "because" says which, or is NULL.
CREATE FUNCTION snowflake_convert.integers(reach snowflake_convert.reached[])
RETURNS TABLE (tab regclass, attname name, type regtype, because text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH keys AS MATERIALIZED (
        SELECT min(format('%s (%I)', c.tab, c.attname)) AS key, name
          FROM unnest(reach) AS c JOIN pg_class AS t ON t.oid = c.tab,
               LATERAL (VALUES (snowflake_convert.singular(c.attname)), (snowflake_convert.singular(t.relname))) AS s(name)
         WHERE c.is_key AND NOT c.is_inherited AND length(name) > 2
         GROUP BY name
    ), types(oid) AS MATERIALIZED (
        SELECT type FROM snowflake_convert.types_of('{smallint,integer}'::regtype[]::oid[]) AS m(type)
    ), columns AS MATERIALIZED (
        SELECT a.*, snowflake_convert.singular(a.attname) AS singular
          FROM pg_class AS t
          JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attinhcount = 0
                                AND a.attidentity = '' AND a.attgenerated = '' AND a.atttypid IN (SELECT oid FROM types)
         WHERE t.relkind IN ('r', 'p', 'f') AND t.relpersistence <> 't' AND t.oid >= 16384
           AND NOT EXISTS (SELECT FROM pg_depend WHERE (classid, objid, deptype) = ('pg_class'::regclass, t.oid, 'e'))
    ), names AS MATERIALIZED (
        SELECT s.singular, min(k.key) AS key
          FROM (SELECT DISTINCT singular FROM columns) AS s
          JOIN keys AS k ON right(s.singular, length(k.name)) = k.name
         GROUP BY s.singular
    )
    SELECT a.attrelid::regclass, a.attname, a.atttypid::regtype,
           coalesce('a reference to ' || n.key, CASE WHEN a.attname ~* 'ids?$' THEN 'an id' END)
      FROM columns AS a
      LEFT JOIN names AS n USING (singular)
     WHERE (a.attrelid::regclass, a.attnum) NOT IN (SELECT tab, attnum FROM unnest(reach))
       AND NOT EXISTS (SELECT FROM pg_constraint AS f
                        WHERE f.conrelid = a.attrelid AND f.contype = 'f' AND a.attnum = ANY (f.conkey))
       AND NOT EXISTS (SELECT FROM pg_attrdef AS f
                        WHERE (f.adrelid, f.adnum) = (a.attrelid, a.attnum) AND pg_get_expr(f.adbin, f.adrelid) ~ '\mnextval\(');
END;
COMMENT ON FUNCTION snowflake_convert.integers(snowflake_convert.reached[]) IS
'internal: columns of integers that no foreign key leads from, and which look like references';

-- Describes keys: type, size of the tables that are rewritten, references.
CREATE FUNCTION snowflake_convert.describe(reach snowflake_convert.reached[], rels regclass[], cols name[])
RETURNS SETOF text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH tables AS (
        SELECT k.key, count(*) AS count, sum(pg_total_relation_size(k.tab)) AS size
          FROM (SELECT DISTINCT unnest(keys), tab FROM unnest(reach) WHERE is_changed) AS k(key, tab)
          JOIN pg_class AS t ON t.oid = k.tab AND t.relkind = 'r'
         GROUP BY k.key
    ), refs AS (
        SELECT key, string_agg(format('%s (%I)', c.tab, c.attname), ', ' ORDER BY c.tab::text COLLATE "C", c.attnum) AS list
          FROM unnest(reach) AS c, unnest(c.keys) AS key
         WHERE (c.tab, c.attname) <> (rels[key], cols[key]) AND NOT c.is_inherited
         GROUP BY key
    )
    SELECT format('%s %s (%I): %s, %s%s%s', CASE WHEN a.is_key THEN 'key' ELSE 'also' END, k.tab, k.col, format_type(f.atttypid, NULL),
                  CASE WHEN t.size IS NULL THEN 'rewrites no table'
                       ELSE format('rewrites %s table%s of %s', t.count, CASE WHEN t.count > 1 THEN 's' END,
                                   pg_size_pretty(t.size)) END,
                  '; referenced by ' || r.list,
                  CASE WHEN a.is_key AND s.sequence IS NULL AND NOT snowflake_convert.is_snowflake(a.tab, a.attnum)
                       THEN '; has had the DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) END)
      FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(tab, col, key)
      JOIN unnest(reach) AS a ON (a.tab, a.attname) = (k.tab, k.col)
      JOIN pg_attribute AS f ON (f.attrelid, f.attnum) = (a.tab, a.attnum)
      LEFT JOIN tables AS t ON t.key = k.key
      LEFT JOIN refs AS r ON r.key = k.key
      LEFT JOIN snowflake_convert.sequences(reach) AS s ON (s.tab, s.attname) = (k.tab, k.col) AND (s.is_default OR s.is_identity)
      LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.tab, a.attnum)
     ORDER BY k.key;
END;
COMMENT ON FUNCTION snowflake_convert.describe(snowflake_convert.reached[], regclass[], name[]) IS 'internal: keys in words';

-- Lists what the columns are now, for snowflake_convert.revert(): keys with their
-- sequences, and columns whose type is not that of the key that they reference.
CREATE FUNCTION snowflake_convert.way_back(reach snowflake_convert.reached[], rels regclass[], cols name[], key_count integer)
RETURNS jsonb
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH columns AS MATERIALIZED (
        SELECT format('%s.%I', c.tab, c.attname) AS path, format_type(a.atttypid, NULL) AS type, a.atttypid, a.attidentity,
               c.tab, c.attname, c.keys[1] AS key, (c.tab, c.attname) = (rels[c.keys[1]], cols[c.keys[1]]) AS is_given
          FROM unnest(reach) AS c
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
    ), keys AS MATERIALIZED (
        SELECT c.*, concat(s.sequence, CASE WHEN NOT s.is_identity THEN ' AS ' || format_type(q.seqtypid, NULL) END,
                           ' INCREMENT BY ' || nullif(q.seqincrement, 1), ' MINVALUE ' || nullif(q.seqmin, 1),
                           ' MAXVALUE ' || nullif(q.seqmax, CASE q.seqtypid WHEN 'smallint'::regtype THEN 32767
                                                            WHEN 'integer'::regtype THEN 2147483647
                                                            ELSE 9223372036854775807 END),
                           ' START WITH ' || nullif(q.seqstart, 1), ' CACHE ' || nullif(q.seqcache, 1),
                           CASE WHEN q.seqcycle THEN ' CYCLE' END) AS sequence
          FROM columns AS c
          JOIN snowflake_convert.sequences(reach) AS s ON (s.tab, s.attname) = (c.tab, c.attname) AND (s.is_default OR s.is_identity)
          JOIN pg_sequence AS q ON q.seqrelid = s.sequence
         WHERE c.is_given AND c.key <= key_count
    )
    SELECT jsonb_object_agg(path, value)
      FROM (SELECT path, jsonb_build_object('type', type, 'sequence', sequence,
                                            'way', CASE attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by default' ELSE 'serial' END)
              FROM keys
            UNION ALL
            SELECT c.path, jsonb_build_object('type', c.type)
              FROM columns AS c
              LEFT JOIN columns AS k ON k.is_given AND k.key = c.key
             WHERE CASE WHEN c.is_given THEN c.key > key_count ELSE c.atttypid <> k.atttypid END) AS v(path, value)
     WHERE EXISTS (SELECT FROM keys);
END;
COMMENT ON FUNCTION snowflake_convert.way_back(snowflake_convert.reached[], regclass[], name[], integer) IS
'internal: the argument of snowflake_convert.revert() that leads back';

-- Lists the tables that change, in the order in which PostgreSQL's own statements
-- lock tables: parents before inheritors and partitions, then by OID.
CREATE FUNCTION snowflake_convert.locks(reach snowflake_convert.reached[])
RETURNS regclass[]
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION snowflake_convert.locks(snowflake_convert.reached[]) IS 'internal: the tables that a script locks, in order';

--
-- The script
--

-- A script calls these procedures.  Before the script has locked its tables, other
-- roles could rename schemas, exchange objects, or add a foreign key.  So the script
-- locks the rows of schemas, if its role is a superuser, and then the tables, and
-- then makes sure that the same script would be made now.
CREATE PROCEDURE snowflake_convert.run_as(owner name)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The role that has connected, which neither SET ROLE nor SET SESSION AUTHORIZATION changes.
    connected oid := (SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid()));
BEGIN
    -- The owner's code can take any role back that the connected role can.
    IF current_user <> owner
       OR pg_get_userbyid(connected) <> owner AND EXISTS (SELECT FROM pg_roles WHERE rolsuper AND pg_has_role(connected, oid, 'MEMBER')) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('this script has to run as role "%s", not as "%s"', owner,
                             CASE WHEN current_user <> owner THEN current_user ELSE pg_get_userbyid(connected) END),
            HINT = format('Connect as role "%s". SET ROLE is enough only for a member that cannot become a superuser.', owner);
    ELSIF (SELECT rolsuper FROM pg_roles WHERE rolname = owner) THEN
        PERFORM FROM pg_namespace FOR SHARE;
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.run_as(name) IS
'for scripts: refuse to go on as another role than the tables'' owner';

CREATE PROCEDURE snowflake_convert.verify(rels regclass[], cols name[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    SELECT format('column "%s" of table "%s"', c.attname, c.tab) INTO wrong
      FROM snowflake_convert.reach(rels, cols, cardinality(rels)) AS c
     WHERE c.is_changed OR c.is_key AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum);
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = wrong || ' has not become what it should be',
            DETAIL = 'Tables, foreign keys or names have changed since the script was made.',
            HINT = 'Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.verify(regclass[], name[]) IS
'for scripts: refuse to commit unless keys call the extension''s function, and what references them is bigint';

-- Each line of the text becomes a comment, whatever names are in it.
CREATE FUNCTION snowflake_convert.comment(text text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT '-- ' || regexp_replace(text, '[\n\r]', E'\n--     ', 'g');
END;
COMMENT ON FUNCTION snowflake_convert.comment(text) IS
'internal: a text as a comment of SQL';

-- Locks tables one by one.  All locks together may take the time of lock_timeout,
-- so that a reader of the first table waits no longer; a later call has the rest.
CREATE PROCEDURE snowflake_convert.lock_tables(tables regclass[], lock_mode text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
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

-- Lists the statements that change something, in order.  Names and constants in
-- them must not depend on the settings of the session that asks.
CREATE FUNCTION snowflake_convert.steps(reach snowflake_convert.reached[], keep_sequence boolean)
RETURNS text[]
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET datestyle = iso
SET intervalstyle = postgres
SET timezone = utc
SET extra_float_digits = 3
SET quote_all_identifiers = off
SET bytea_output = hex
BEGIN ATOMIC
    SELECT array_agg(s.statement ORDER BY s.step, s.place, s.name COLLATE "C", s.statement COLLATE "C")
      FROM (SELECT step, place, name, statement FROM snowflake_convert.put_back(reach)
            UNION ALL
            SELECT step, place, name, statement FROM snowflake_convert.statements(reach, keep_sequence)
            UNION ALL
            SELECT 40, 0, '', format('CALL snowflake_convert.lock_tables(%L, ''ACCESS EXCLUSIVE'')', snowflake_convert.locks(reach))
           ) AS s;
END;
COMMENT ON FUNCTION snowflake_convert.steps(snowflake_convert.reached[], boolean) IS
'internal: the statements that change something';

CREATE FUNCTION snowflake_convert.digest(steps text[])
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
RETURN encode(sha256(convert_to(array_to_string(steps, E'\n'), getdatabaseencoding())), 'hex');
COMMENT ON FUNCTION snowflake_convert.digest(text[]) IS
'internal: a hash of statements';

CREATE PROCEDURE snowflake_convert.check_unchanged(
    rels regclass[], cols name[], key_count integer, keep_sequence boolean, back jsonb, digest text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    reach snowflake_convert.reached[] := ARRAY(SELECT c FROM snowflake_convert.reach(rels, cols, key_count, back) AS c);
BEGIN
    IF digest <> snowflake_convert.digest(snowflake_convert.steps(reach, keep_sequence))
       OR EXISTS (SELECT FROM snowflake_convert.obstacles(reach, (SELECT oid FROM pg_roles WHERE rolname = current_user))) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tables, what depends on them, or names have changed since the script was made',
            HINT = 'Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.check_unchanged(regclass[], name[], integer, boolean, jsonb, text) IS
'for scripts: refuse to go on unless the same script would be made now';

-- Writes a script: comments, and one DO statement.  Each change is a constant for
-- EXECUTE, so that no setting of PL/pgSQL changes its meaning.
CREATE FUNCTION snowflake_convert.script(
    rels regclass[], cols name[], key_count integer, keep_sequence boolean, back jsonb DEFAULT '{}')
RETURNS SETOF text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    reach snowflake_convert.reached[] := ARRAY(SELECT c FROM snowflake_convert.reach(rels, cols, key_count, back) AS c);
    owner oid := (SELECT relowner FROM pg_class WHERE oid = rels[1]);
    steps text[] := snowflake_convert.steps(reach, keep_sequence);
    digest text := snowflake_convert.digest(steps);
BEGIN
    RETURN QUERY SELECT snowflake_convert.comment(d) FROM snowflake_convert.describe(reach, rels, cols) AS d;
    IF back = '{}' THEN
        RETURN QUERY SELECT snowflake_convert.comment('warning: ' || w)
                       FROM snowflake_convert.warnings(reach, owner, keep_sequence) AS w;
        RETURN QUERY
            WITH stay AS MATERIALIZED (
                SELECT i.tab, i.attname, i.type, i.because, i.because IS NOT NULL AND i.type IN ('smallint'::regtype, 'integer'::regtype) AS is_reference
                  FROM snowflake_convert.integers(reach) AS i
            )
            SELECT snowflake_convert.comment(l.line)
              FROM (SELECT 1, format('stays %s, and looks like %s: %s (%I)', stay.type, because, tab, attname), tab::text
                      FROM stay WHERE because IS NOT NULL
                    UNION ALL
                    SELECT 2, format('to widen these, too: also => %L',
                                     array_agg(format('%s.%I', tab, attname) ORDER BY tab::text COLLATE "C", attname)), NULL
                      FROM stay WHERE is_reference HAVING count(*) > 0
                    UNION ALL
                    SELECT 3, 'stay integers, too: ' || string_agg(n.name, ', ' ORDER BY n.name COLLATE "C"), NULL
                      FROM (SELECT concat(quote_ident(attname), ' ' || nullif(stay.type, 'integer'::regtype), ' (' || nullif(count(*), 1) || ')')
                              FROM stay WHERE because IS NULL GROUP BY attname, stay.type) AS n(name)
                    HAVING count(*) > 0) AS l(place, line, tab)
             ORDER BY l.place, l.tab COLLATE "C", l.line COLLATE "C";
    END IF;
    IF cardinality(steps) = 1 THEN    -- nothing but the locks
        RETURN;
    END IF;
    IF cardinality(snowflake_convert.locks(reach)) > 100 THEN
        RETURN NEXT '-- PostgreSQL may need some locks for each table: "out of shared memory" asks for a larger max_locks_per_transaction';
    END IF;
    RETURN QUERY SELECT snowflake_convert.comment(format('back: SELECT snowflake_convert.revert(%L);', w))
                   FROM snowflake_convert.way_back(reach, rels, cols, key_count) AS w WHERE back = '{}' AND w IS NOT NULL;
    -- One statement, because a client that ignores an error goes on with the next.
    -- The quote's tag is a hash of the statements, so no text in them ends the quote.
    RETURN NEXT concat_ws(E'\n    ', format('DO $script_%s$ BEGIN', digest),
        'SET LOCAL lock_timeout = ''5s'';',
        format('CALL snowflake_convert.run_as(%L);', pg_get_userbyid(owner)),
        'SET LOCAL search_path = pg_catalog, pg_temp;',
        'SET LOCAL standard_conforming_strings = on;',
        CASE WHEN back <> '{}' THEN 'SET LOCAL row_security = off;' END,    -- max() has to see all rows
        'SET LOCAL default_tablespace = '''';',
        'SET LOCAL default_table_access_method = heap;',
        'SET LOCAL snowflake_convert.schemas = none;',    -- new_tables() has to leave the tables alone
        format('CALL snowflake_convert.lock_tables(%L, ''SHARE UPDATE EXCLUSIVE'');', snowflake_convert.locks(reach)),
        format('CALL snowflake_convert.check_unchanged(%L, %L, %L, %L, %L, %L);', rels, cols, key_count, keep_sequence, back, digest),
        (SELECT string_agg(format('EXECUTE %L;', s.step), E'\n    ' ORDER BY s.n) FROM unnest(steps) WITH ORDINALITY AS s(step, n)),
        CASE WHEN back = '{}' THEN format('CALL snowflake_convert.verify(%L, %L);', rels[:key_count], cols[:key_count]) END)
        || format(E'\nEND $script_%s$;', digest);
END
$$;
COMMENT ON FUNCTION snowflake_convert.script(regclass[], name[], integer, boolean, jsonb) IS
'internal: the script for columns without obstacles';

-- Finds the columns that arguments name as schema.table.column.
CREATE FUNCTION snowflake_convert.named(paths text[])
RETURNS TABLE (tab regclass, attname name)
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION snowflake_convert.named(text[]) IS
'internal: the columns that arguments name';

-- Raises an error if the first column is no key, or if something keeps the columns
-- from being changed.
CREATE FUNCTION snowflake_convert.check_key(
    rels regclass[], cols name[], key_count integer, back jsonb DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    owner oid;
    problem text;
BEGIN
    SELECT t.relowner, CASE
           WHEN t.relkind NOT IN ('r', 'p') THEN 'it is no column of a table'
           WHEN a.attgenerated <> '' THEN 'it is a generated column'
           WHEN a.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
           THEN 'its type is ' || format_type(a.atttypid, a.atttypmod)
           WHEN a.attinhcount > 0
           THEN 'it is inherited, and changes with the column of ' ||
                (SELECT string_agg(inhparent::regclass::text, ', ' ORDER BY inhseqno) FROM pg_inherits WHERE inhrelid = t.oid)
           ELSE 'it changes with the column that it references, of table ' ||
                (SELECT min(k.confrelid::regclass::text) FROM pg_constraint AS k
                  WHERE k.contype = 'f' AND k.conrelid = t.oid AND k.conparentid = 0 AND a.attnum = ANY (k.conkey)) END
      INTO owner, problem
      FROM pg_class AS t
      JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = cols[1] AND a.attnum > 0 AND NOT a.attisdropped
     WHERE t.oid = rels[1];
    IF NOT FOUND THEN
        RAISE undefined_column USING
            MESSAGE = format('column "%s" of table "%s" does not exist', cols[1], rels[1]);
    ELSIF problem IS NOT NULL AND key_count > 0 THEN
        RAISE wrong_object_type USING
            MESSAGE = format('column "%s" of table "%s" cannot be converted: %s', cols[1], rels[1], problem);
    END IF;

    SELECT string_agg(DISTINCT E'\n' || o.description, '') INTO problem
      FROM snowflake_convert.obstacles(ARRAY(SELECT c FROM snowflake_convert.reach(rels, cols, key_count, back) AS c), owner) AS o;
    IF problem IS NOT NULL THEN
        RAISE dependent_objects_still_exist USING
            MESSAGE = format('cannot change the type of column "%s" of table "%s" and of the columns that reference it', cols[1], rels[1]),
            DETAIL = 'In the way:' || problem,
            HINT = 'Drop what is in the way, run the script, and create it again. '
                   'A partition key, a domain and a row type cannot be changed in this way.';
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_convert.check_key(regclass[], name[], integer, jsonb) IS
'internal: raises an error unless columns can be changed';

CREATE FUNCTION snowflake_convert.key(
    rel regclass, col name, also text[] DEFAULT '{}', keep_sequence boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    rels regclass[] := rel || ARRAY(SELECT n.tab FROM snowflake_convert.named(also) AS n);
    cols name[] := col || ARRAY(SELECT n.attname FROM snowflake_convert.named(also) AS n);
BEGIN
    PERFORM snowflake_convert.check_key(rels, cols, 1);
    RETURN QUERY SELECT snowflake_convert.script(rels, cols, 1, keep_sequence);
END
$$;
COMMENT ON FUNCTION snowflake_convert.key(regclass, name, text[], boolean) IS
'a script that makes a key column bigint DEFAULT snowflake_nextval(), and the columns that reference it bigint';

-- Afterwards nothing shows what a key was, so the script that converts keys has a
-- comment with the argument that leads back: an object of "schema.table.column",
-- {"type", "way", "sequence"} for keys, and {"type"} for other columns.
CREATE FUNCTION snowflake_convert.revert(columns jsonb)
RETURNS SETOF text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    rels regclass[];
    cols name[];
    key_count integer;
    back jsonb;
    wrong record;
BEGIN
    SELECT e.path, e.type, e.way INTO wrong
      FROM (SELECT j.key, j.value ->> 'type', j.value ->> 'way' FROM jsonb_each(columns) AS j) AS e(path, type, way)
     WHERE e.type IS NULL OR e.type NOT IN ('smallint', 'integer', 'bigint') OR e.way NOT IN ('serial', 'always', 'by default');
    IF FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('column "%s" cannot become "%s"%s again', wrong.path, wrong.type, ' and "' || wrong.way || '"'),
            HINT = 'type is smallint, integer or bigint; way is serial, always or by default, for a key.';
    END IF;
    WITH given AS (
        SELECT n.tab, n.attname, j.value, j.value ? 'way' AS is_key
          FROM jsonb_each(columns) AS j, LATERAL snowflake_convert.named(ARRAY[j.key]) AS n
    )
    SELECT array_agg(g.tab ORDER BY g.is_key DESC, g.tab, g.attname), array_agg(g.attname ORDER BY g.is_key DESC, g.tab, g.attname),
           count(*) FILTER (WHERE g.is_key),
           jsonb_object_agg(format('%s.%I', g.tab, g.attname), jsonb_build_object('sequence',
               coalesce(pg_get_serial_sequence(g.tab::text, g.attname),
                        format('%I.%I', n.nspname, left(t.relname || '_' || g.attname, 59) || '_seq'))
               || CASE g.value ->> 'way' WHEN 'serial' THEN ' AS ' || (g.value ->> 'type') ELSE '' END) || g.value)
      INTO rels, cols, key_count, back
      FROM given AS g
      JOIN pg_class AS t ON t.oid = g.tab
      JOIN pg_namespace AS n ON n.oid = t.relnamespace;
    SELECT k.tab, k.attname INTO wrong
      FROM unnest(rels[:key_count], cols[:key_count]) AS k(tab, attname)
      JOIN pg_attribute AS a ON (a.attrelid, a.attname) = (k.tab, k.attname)
     WHERE NOT snowflake_convert.is_snowflake(a.attrelid, a.attnum);
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('column "%s" of table "%s" does not take its DEFAULT from snowflake_nextval()', wrong.attname, wrong.tab);
    ELSIF coalesce(key_count, 0) = 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'no column has a "way", so there is no key to revert';
    END IF;
    PERFORM snowflake_convert.check_key(rels, cols, key_count, back);
    IF columns @? '$.*.type ? (@ != "bigint")' THEN
        RETURN NEXT '-- If a row has a new id, this fails with "out of range": give its key and its references the type bigint.';
    END IF;
    RETURN QUERY SELECT snowflake_convert.script(rels, cols, key_count, false, back);
END
$$;
COMMENT ON FUNCTION snowflake_convert.revert(jsonb) IS
'a script that makes snowflakes serial or identity columns again';

-- Lists the keys of schemas.  A key whose values neither a sequence nor
-- snowflake_nextval() makes may be a natural key, and is left alone.  Such a key
-- is listed if it is the only column of a primary key.  A snowflake is listed only
-- if something is still to do, such as a reference that is not bigint yet.
CREATE FUNCTION snowflake_convert.keys(schemas name[])
RETURNS TABLE (tab regclass, attname name, owner oid, is_left_alone boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH keys AS MATERIALIZED (
        SELECT t.oid::regclass AS tab, a.attname, a.attnum, t.relowner,
               snowflake_convert.is_snowflake(t.oid, a.attnum) AS is_done,
               EXISTS (SELECT FROM pg_depend AS d
                        WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, t.oid, a.attnum)
                          AND d.classid = 'pg_class'::regclass AND d.deptype = 'i')
               OR EXISTS (SELECT FROM pg_attrdef AS f
                           WHERE (f.adrelid, f.adnum) = (t.oid, a.attnum) AND pg_get_expr(f.adbin, f.adrelid) ~ '\mnextval\(') AS is_generated
          FROM pg_namespace AS s
          JOIN pg_class AS t ON t.relnamespace = s.oid AND t.relkind IN ('r', 'p') AND t.relpersistence <> 't'
          JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
                                AND a.attinhcount = 0 AND a.attgenerated = ''
                                AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
         WHERE s.nspname = ANY (schemas)
           AND EXISTS (SELECT FROM pg_constraint AS k
                        WHERE k.contype = 'p' AND k.conrelid = t.oid AND a.attnum = ANY (k.conkey)
                           OR k.contype = 'f' AND k.confrelid = t.oid AND a.attnum = ANY (k.confkey))
           -- A column that references another key is converted with that key.
           AND NOT EXISTS (SELECT FROM pg_constraint AS k
                            WHERE k.contype = 'f' AND k.conrelid = t.oid AND k.conparentid = 0
                              AND a.attnum = ANY (k.conkey))
           AND NOT EXISTS (SELECT FROM pg_depend AS d
                            WHERE (d.classid, d.objid, d.deptype) = ('pg_class'::regclass, t.oid, 'e'))
    )
    SELECT tab, attname, relowner, NOT is_done AND NOT is_generated
      FROM keys
     WHERE CASE WHEN is_done AND NOT is_generated
                THEN EXISTS (SELECT FROM snowflake_convert.reach(ARRAY[tab], ARRAY[attname], 1) AS c
                              WHERE c.is_changed OR c.is_key AND NOT snowflake_convert.is_snowflake(c.tab, c.attnum))
                ELSE is_generated
                     OR EXISTS (SELECT FROM pg_constraint AS k
                                 WHERE k.contype = 'p' AND k.conrelid = tab AND k.conkey = ARRAY[attnum]) END
     ORDER BY tab::text COLLATE "C", attnum;
END;
COMMENT ON FUNCTION snowflake_convert.keys(name[]) IS
'internal: the keys of schemas, and which of them are left alone because no sequence makes them';

CREATE FUNCTION snowflake_convert.schema(
    schemas name[], except_keys text[] DEFAULT '{}', also text[] DEFAULT '{}', keep_sequence boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    also_rels regclass[] := ARRAY(SELECT n.tab FROM snowflake_convert.named(also) AS n);
    also_cols name[] := ARRAY(SELECT n.attname FROM snowflake_convert.named(also) AS n);
    rels regclass[];
    cols name[];
    owner oid := (SELECT oid FROM pg_roles WHERE rolname = current_user);
    owners oid[];
    obstacle record;
    bad integer[];
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
                             (SELECT string_agg(quote_ident(pg_get_userbyid(o)), ', ' ORDER BY o) FROM unnest(owners) AS o)),
            HINT = 'SET ROLE to one of them: the script then has the keys of this role.';
    END IF;

    -- Leave out keys with obstacles.  A key that is left out can be an obstacle to other
    -- keys, so look again.
    LOOP
        bad := '{}';
        FOR obstacle IN
            SELECT o.description, min(k) AS key, array_agg(DISTINCT k) AS keys
              FROM snowflake_convert.obstacles(ARRAY(SELECT c FROM snowflake_convert.reach(rels || also_rels, cols || also_cols,
                                                                                           cardinality(rels)) AS c), owner) AS o,
                   unnest(o.keys) AS k
             GROUP BY o.description
             ORDER BY 2, o.description COLLATE "C"
        LOOP
            IF obstacle.key > cardinality(rels) THEN
                PERFORM snowflake_convert.check_key(also_rels, also_cols, 0);
            END IF;
            bad := bad || obstacle.keys;
            RETURN NEXT snowflake_convert.comment(format('left out: %s: in the way: %s',
                            (SELECT string_agg(format('%s (%I)', rels[k], cols[k]), ', ' ORDER BY k)
                               FROM unnest(obstacle.keys) AS k WHERE k <= cardinality(rels)), obstacle.description));
        END LOOP;
        EXIT WHEN bad = '{}';
        SELECT array_agg(k.rel ORDER BY k.n), array_agg(k.col ORDER BY k.n) INTO rels, cols
          FROM ROWS FROM (unnest(rels), unnest(cols)) WITH ORDINALITY AS k(rel, col, n)
         WHERE k.n <> ALL (bad);
        EXIT WHEN rels IS NULL;
    END LOOP;
    IF rels IS NULL THEN
        RETURN NEXT snowflake_convert.comment(concat('no key to convert', ', so no statement for ' || nullif(array_to_string(also, ', '), '')));
    ELSE
        RETURN QUERY SELECT snowflake_convert.script(rels || also_rels, cols || also_cols, cardinality(rels), keep_sequence);
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_convert.schema(name[], text[], text[], boolean) IS
'a script that converts, in some schemas, all keys whose values sequences make, and rewrites each table once';

--
-- New tables
--

-- age() alone takes a frozen row of 2^31 transactions ago for one of the future.
-- A transaction locks its own number and those of its subtransactions.
CREATE FUNCTION snowflake_convert.is_own(transaction xid)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN age(transaction) = 0
    OR age(transaction) < 0 AND EXISTS (
        SELECT FROM pg_locks AS l
         WHERE (l.locktype, l.mode, l.pid) = ('transactionid', 'ExclusiveLock', pg_backend_pid()) AND l.transactionid = transaction);
COMMENT ON FUNCTION snowflake_convert.is_own(xid) IS
'internal: whether a row with this xmin, which the transaction sees, is made by the transaction or its subtransactions';

-- Finds the serial and identity columns of a new primary key, and the integer
-- columns from which foreign keys lead to a snowflake; "change" is the action of
-- ALTER TABLE.
--
-- "obstacle" says why ALTER TABLE must not change the column.  ALTER TABLE checks
-- the foreign keys of a column by queries on both tables, and the planner
-- evaluates expressions of their indexes, so both must have the same owner.
-- ALTER TABLE also locks both tables ACCESS EXCLUSIVE.  If the other table has
-- rows, only a column of a CREATE TABLE is worth that lock.
CREATE FUNCTION snowflake_convert.new_columns(tab oid, is_created boolean)
RETURNS TABLE (attnum smallint, attname name, is_key boolean, obstacle text, change text)
LANGUAGE plpgsql STABLE STRICT	-- a body in SQL is planned at each call
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE referenced(origin, tab, attnum) AS (
        SELECT unnest(k.conkey), k.confrelid, unnest(k.confkey)
          FROM pg_constraint AS k
         WHERE k.conrelid = new_columns.tab AND k.contype = 'f'
        UNION
        SELECT r.origin, k.confrelid, f.key
          FROM referenced AS r
          JOIN pg_constraint AS k ON k.conrelid = r.tab AND k.contype = 'f',
               unnest(k.conkey, k.confkey) AS f(attnum, key)
         WHERE f.attnum = r.attnum
    ), integers AS (
        SELECT a.*, pg_get_expr(d.adbin, d.adrelid) AS value,
               CASE WHEN a.attinhcount > 0 THEN 'The table inherits them.'
                    WHEN o.of_others THEN 'Foreign keys connect them with tables of other roles.'
                    WHEN o.has_rows AND NOT new_columns.is_created THEN 'Foreign keys connect them with tables that have rows.'
                    WHEN a.atttypid <> 'bigint'::regtype THEN 'Expressions use ' || x.code || '.'
                    END AS obstacle
          FROM pg_class AS t
          JOIN pg_attribute AS a ON a.attrelid = t.oid
          LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum),
               LATERAL (SELECT bool_or(o.relowner <> t.relowner) AS of_others, bool_or(pg_relation_size(o.oid) > 0) AS has_rows
                          FROM pg_depend AS e
                          JOIN pg_constraint AS k ON e.classid = 'pg_constraint'::regclass AND k.oid = e.objid AND k.contype = 'f'
                          JOIN pg_class AS o ON o.oid IN (k.conrelid, k.confrelid) AND o.oid <> t.oid
                         WHERE (e.refclassid, e.refobjid, e.refobjsubid) = ('pg_class'::regclass, t.oid, a.attnum)) AS o,
               LATERAL (SELECT min(snowflake_convert.foreign_code(e.classid, e.objid)) AS code FROM pg_depend AS e
                         WHERE (e.refclassid, e.refobjid, e.refobjsubid) = ('pg_class'::regclass, t.oid, a.attnum)) AS x
         WHERE t.oid = new_columns.tab AND a.attnum > 0
           AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
    )
    SELECT i.attnum, i.attname, true, i.obstacle,
           CASE WHEN i.attidentity <> '' THEN format('ALTER %I DROP IDENTITY, ', i.attname) ELSE '' END ||
           CASE WHEN i.atttypid <> 'bigint'::regtype THEN format('ALTER %I TYPE bigint, ', i.attname) ELSE '' END ||
           format('ALTER %I SET DEFAULT %s', i.attname, snowflake_convert.nextval_function())
      FROM integers AS i
      JOIN pg_constraint AS k ON k.conrelid = i.attrelid AND k.contype = 'p' AND i.attnum = ANY (k.conkey)
     WHERE i.attinhcount = 0
       AND snowflake_convert.is_own(k.xmin)
       AND i.attnum NOT IN (SELECT origin FROM referenced)
       AND (i.attidentity <> '' OR
            EXISTS (SELECT FROM pg_depend AS s
                     WHERE (s.classid, s.refclassid, s.refobjid, s.refobjsubid, s.deptype) =
                           ('pg_class'::regclass, 'pg_class'::regclass, i.attrelid, i.attnum, 'a')
                       AND i.value = format('nextval(%L::regclass)', s.objid::regclass)))
    UNION ALL
    SELECT DISTINCT i.attnum, i.attname, false, i.obstacle, format('ALTER %I TYPE bigint', i.attname)
      FROM integers AS i
      JOIN referenced AS r ON r.origin = i.attnum
     WHERE i.atttypid <> 'bigint'::regtype AND snowflake_convert.is_snowflake(r.tab, r.attnum);
END
$$;
COMMENT ON FUNCTION snowflake_convert.new_columns(oid, boolean) IS
'internal: the columns of a new table that become snowflakes, or bigint because they reference snowflakes';

-- The event trigger runs as who runs the DDL, and changes only tables of that
-- very role, so that nobody's code runs as somebody else.  The owner of a schema
-- could rename it while the function runs, so that the ALTER TABLE finds another
-- table or function: the owner must be that role, too, or a superuser.  Besides,
-- the function checks by OIDs what its ALTER TABLE has done, and an error undoes
-- all that the function has done.
--
-- Under REPEATABLE READ, the snapshot can lack a new foreign key.  ALTER TABLE then
-- fails before it checks that foreign key.
CREATE FUNCTION snowflake_convert.new_tables()
RETURNS event_trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'	-- other sessions wait for the locks that it has
AS $$
DECLARE
    -- Once set for a transaction, it is '' and not NULL later.
    setting text := coalesce(nullif(current_setting('snowflake_convert.schemas', true), ''), 'public');
    schemas text[] := regexp_split_to_array(btrim(setting), '\s*,\s*');
    me oid := (SELECT oid FROM pg_roles WHERE rolname = current_user);
    home oid := (SELECT pronamespace FROM pg_proc WHERE oid = snowflake_convert.nextval_function());
    tables oid[];
    created oid[];
    seen oid[] := '{}';
    tab oid;
    changed smallint[];
    keys smallint[];
    changes text;
    others text;
    reason text;
    detail text;
BEGIN
    IF setting = 'none' THEN	-- set by the user, or below for the ALTER TABLE
        RETURN;
    END IF;

    -- The tables for which this transaction has made a primary or foreign key.
    SELECT array_agg(DISTINCT c.oid), array_agg(c.oid) FILTER (WHERE d.command_tag = 'CREATE TABLE') INTO tables, created
      FROM pg_event_trigger_ddl_commands() AS d
      JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
     WHERE d.command_tag IN ('CREATE TABLE', 'ALTER TABLE') AND NOT d.in_extension
       AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
       AND EXISTS (SELECT FROM pg_constraint AS k
                    WHERE k.conrelid = c.oid AND k.contype IN ('p', 'f') AND snowflake_convert.is_own(k.xmin));
    IF tables IS NULL THEN
        RETURN;
    END IF;

    tables := ARRAY(SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                     WHERE c.oid = ANY (tables) AND n.nspname = ANY (schemas));

    WHILE cardinality(tables) > 0 LOOP
        tab := tables[1];
        tables := tables[2:];
        SELECT array_agg(c.attnum) FILTER (WHERE c.obstacle IS NULL),
               coalesce(array_agg(c.attnum) FILTER (WHERE c.is_key), '{}'),
               string_agg(c.change, ', ') FILTER (WHERE c.obstacle IS NULL),
               string_agg(quote_ident(c.attname), ', ') FILTER (WHERE c.obstacle IS NOT NULL), max(c.obstacle)
          INTO changed, keys, changes, others, reason
          FROM snowflake_convert.new_columns(tab, tab = ANY (coalesce(created, '{}'))) AS c;
        IF others IS NOT NULL AND tab <> ALL (seen) THEN
            RAISE WARNING 'columns of table % stay as they are: %', tab::regclass, others
                USING DETAIL = reason;
        END IF;
        seen := seen || tab;
        CONTINUE WHEN changed IS NULL;

        SELECT CASE
               WHEN t.relowner <> me THEN 'The table belongs to another role.'
               WHEN s.schema IS NOT NULL THEN format('The schema %I belongs to another role, which is no superuser.', s.schema)
               WHEN t.relhassubclass THEN 'The table has partitions or inheritors.'
               WHEN pg_relation_size(tab) > 0 THEN 'The table has rows; see snowflake_convert.key().'
               END INTO reason
          FROM pg_class AS t,
               LATERAL (SELECT max(n.nspname) AS schema
                          FROM pg_namespace AS n
                          JOIN pg_database AS b ON b.datname = current_database()
                          JOIN pg_roles AS o ON o.oid = CASE n.nspowner WHEN 'pg_database_owner'::regrole THEN b.datdba ELSE n.nspowner END
                         WHERE n.oid IN (home, t.relnamespace) AND o.oid <> me AND NOT o.rolsuper) AS s
         WHERE t.oid = tab;
        IF reason IS NOT NULL THEN
            RAISE '%', reason;
        END IF;

        PERFORM set_config('snowflake_convert.schemas', 'none', true);
        EXECUTE (SELECT format('ALTER TABLE %I.%I %s', n.nspname, t.relname, changes)
                   FROM pg_class AS t JOIN pg_namespace AS n ON n.oid = t.relnamespace WHERE t.oid = tab);
        PERFORM set_config('snowflake_convert.schemas', setting, true);
        IF EXISTS (SELECT FROM pg_attribute AS a
                    WHERE a.attrelid = tab AND a.attnum = ANY (changed)
                      AND (a.atttypid <> 'bigint'::regtype OR
                           a.attnum = ANY (keys) AND NOT snowflake_convert.is_snowflake(tab, a.attnum))) THEN
            RAISE 'A schema was renamed at the same time.';
        END IF;

        -- Integer columns that reference the changed columns have to follow.
        tables := tables || ARRAY(SELECT DISTINCT k.conrelid
                                    FROM pg_depend AS d
                                    JOIN pg_constraint AS k ON k.oid = d.objid AND k.contype = 'f' AND k.conparentid = 0
                                   WHERE (d.classid, d.refclassid, d.refobjid) =
                                         ('pg_constraint'::regclass, 'pg_class'::regclass, tab)
                                     AND k.confrelid = tab);
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail := PG_EXCEPTION_DETAIL;
    RAISE WARNING '% as written', coalesce('table ' || tab::regclass || ' stays', 'new tables stay')
        USING DETAIL = concat_ws(': ', SQLERRM, nullif(detail, ''));
END
$$;
COMMENT ON FUNCTION snowflake_convert.new_tables() IS
'for CREATE EVENT TRIGGER ... ON ddl_command_end: serial and identity primary keys of new tables become snowflakes, in the schemas that the setting snowflake_convert.schemas names (unset: public; none: in no schema)';
