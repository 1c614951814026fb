/*
 * snowflake_convert 1.0: scripts that make bigint keys snowflakes.
 *
 * The functions read the catalogue and return the text of a script.  They
 * execute nothing: the tables' owner looks at the script, and runs it.
 *
 * A script changes the DEFAULT of a key, and drops its identity or sequence.  No
 * column gets another type, so PostgreSQL parses no expression anew and reads no
 * row.  Integer keys, and what references them, are listed, and left unchanged.
 */

-- complain if the script is sourced in psql, rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake_convert" to load this file. \quit

-- The control file names pg_catalog, and not this schema: this statement fails if
-- somebody has made a schema of this name before.
CREATE SCHEMA snowflake_convert;
COMMENT ON SCHEMA snowflake_convert IS 'scripts that make bigint keys snowflakes';

-- Names below are looked up in this path.  The bodies set the same path.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- ALTER DEFAULT PRIVILEGES may have granted more, such as CREATE to a role whose functions
-- would then be found in the schema.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
          FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
         WHERE n.nspname = 'snowflake_convert' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA snowflake_convert FROM %s', grantee);
    END LOOP;
END
$$;
GRANT USAGE ON SCHEMA snowflake_convert TO PUBLIC;

--
-- What the catalogue shows of a key.  Most functions are PL/pgSQL, whose plans are kept
-- for a session, because the event trigger calls them for each new table.
--

-- Makes id_functions(), which returns the extension's functions, snowflake_id() first, and
-- new_id(), which calls snowflake_id().  Both are bound by OID, because the functions'
-- schema may belong to a role that makes functions of the same names.
DO $$
DECLARE
    ids regprocedure[] := (SELECT array_agg(p.oid::regprocedure ORDER BY p.proname)
                             FROM pg_proc AS p
                             JOIN pg_depend AS d ON (d.classid, d.objid, d.deptype) = ('pg_proc'::regclass, p.oid, 'e')
                             JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'snowflake'
                            WHERE p.proname IN ('snowflake_id', 'snowflake_nextval') AND p.pronargs = 0);
BEGIN
    EXECUTE format('CREATE FUNCTION snowflake_convert.id_functions() RETURNS regprocedure[] LANGUAGE sql IMMUTABLE PARALLEL SAFE '
                   'RETURN ARRAY[%L::regprocedure, %L::regprocedure]', ids[1], ids[2]);
    EXECUTE format('CREATE FUNCTION snowflake_convert.new_id() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL RESTRICTED RETURN %s', ids[1]);
    IF snowflake_convert.id_functions() <> ids
       OR NOT EXISTS (SELECT FROM pg_depend
                       WHERE (classid, objid) = ('pg_proc'::regclass, 'snowflake_convert.new_id()'::regprocedure)
                         AND (refclassid, refobjid) = ('pg_proc'::regclass, ids[1])) THEN
        RAISE EXCEPTION 'the schema of extension "snowflake" was renamed meanwhile';
    END IF;
END
$$;

-- Returns the largest value of a sequence that is not larger than a new id.
CREATE FUNCTION snowflake_convert.new_id(start bigint, increment bigint)
RETURNS bigint LANGUAGE sql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT (id - mod(id::numeric - start, increment))::bigint FROM snowflake_convert.new_id() AS id;
END;

-- Returns the types of keys that can become snowflakes: bigint, and the extension's type
-- snowflake, which is a bigint, too.
CREATE FUNCTION snowflake_convert.key_types()
RETURNS oid[] LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN 'bigint'::regtype::oid
        || ARRAY(SELECT t.oid
                   FROM pg_type AS t
                   JOIN pg_depend AS d ON (d.classid, d.objid, d.deptype) = ('pg_type'::regclass, t.oid, 'e')
                   JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'snowflake'
                  WHERE t.typname = 'snowflake');
END
$$;

-- Says whether a column is a snowflake: its DEFAULT calls one of the extension's functions
-- and, apart from types, uses nothing else that is not PostgreSQL's own.
CREATE FUNCTION snowflake_convert.is_snowflake(rel regclass, num smallint)
RETURNS boolean LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN coalesce((
        SELECT bool_and(d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (snowflake_convert.id_functions()))
          FROM pg_attrdef AS f
          JOIN pg_depend AS d ON (d.classid, d.objid, d.deptype) = ('pg_attrdef'::regclass, f.oid, 'n')
                             AND d.refclassid <> 'pg_type'::regclass
         WHERE (f.adrelid, f.adnum) = (rel, num)), false);
END
$$;

-- Finds a sequence that a column owns and uses: that of an identity, or of a DEFAULT.  A
-- DEFAULT can use several; such a DEFAULT is not that of sequence_of().
CREATE FUNCTION snowflake_convert.own_sequence(rel regclass, num smallint)
RETURNS regclass LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT s.oid
              FROM pg_depend AS d
              JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
              LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (rel, num)
              LEFT JOIN pg_depend AS u ON (u.classid, u.objid, u.deptype) = ('pg_attrdef'::regclass, f.oid, 'n')
                                      AND (u.refclassid, u.refobjid) = ('pg_class'::regclass, s.oid)
             WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, rel, num)
               AND d.classid = 'pg_class'::regclass
               AND (d.deptype = 'i' OR d.deptype = 'a' AND u.objid IS NOT NULL)
             ORDER BY s.oid LIMIT 1);
END
$$;

-- Returns own_sequence() if the column takes its values unchanged from that sequence: if
-- its DEFAULT is nextval() and no more, which only the text of the expression shows.
CREATE FUNCTION snowflake_convert.sequence_of(rel regclass, num smallint)
RETURNS regclass LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sequence regclass := snowflake_convert.own_sequence(rel, num);
BEGIN
    RETURN CASE WHEN sequence IS NOT NULL AND NOT EXISTS (
                         SELECT FROM pg_attrdef AS f
                          WHERE (f.adrelid, f.adnum) = (rel, num)
                            AND pg_get_expr(f.adbin, f.adrelid) !~ '^"?nextval"?[(]''([^'']|'''')*''::"?regclass"?[)]$') THEN sequence END;
END
$$;

-- Says whether a column has values of a sequence: it is an identity, or its DEFAULT, or its
-- domain's, uses a sequence or mentions nextval().
CREATE FUNCTION snowflake_convert.uses_sequence(rel regclass, num smallint)
RETURNS boolean LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT a.attidentity <> ''
                   OR EXISTS (SELECT FROM pg_depend AS d JOIN pg_class AS s ON s.oid = d.refobjid AND s.relkind = 'S'
                               WHERE (d.classid, d.objid) IN (('pg_attrdef'::regclass, f.oid), ('pg_type'::regclass, t.oid)) AND d.refclassid = 'pg_class'::regclass)
                   OR coalesce(pg_get_expr(f.adbin, f.adrelid), t.typdefault) ~* E'\\mnextval\\M'
              FROM pg_attribute AS a
              LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
              LEFT JOIN pg_type AS t ON t.oid = a.atttypid AND t.typtype = 'd' AND f.oid IS NULL
             WHERE (a.attrelid, a.attnum) = (rel, num)
               AND a.attgenerated = '' AND (a.attidentity <> '' OR f.oid IS NOT NULL OR t.oid IS NOT NULL));
END
$$;

-- Says what keeps a column, whatever its DEFAULT is, from becoming a snowflake.
CREATE FUNCTION snowflake_convert.reason(rel regclass, num smallint)
RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT CASE WHEN EXISTS (SELECT FROM pg_depend AS d WHERE (d.classid, d.objid, d.deptype) = ('pg_class'::regclass, rel, 'e')) THEN 'its table belongs to an extension'
                        WHEN t.relkind NOT IN ('r', 'p') THEN 'it is no column of a table'
                        WHEN a.attinhcount > 0 THEN 'it is inherited'
                        WHEN a.atttypid <> ALL (snowflake_convert.key_types()) THEN format('its type is %s', format_type(a.atttypid, a.atttypmod))
                        ELSE (SELECT format('its values have to be those of %s', min(k.confrelid::regclass::text COLLATE "C"))
                                FROM pg_constraint AS k
                               WHERE k.conrelid = rel AND k.contype = 'f' AND a.attnum = ANY (k.conkey)
                              HAVING count(*) > 0) END
              FROM pg_attribute AS a JOIN pg_class AS t ON t.oid = a.attrelid
             WHERE (a.attrelid, a.attnum) = (rel, num));
END
$$;

-- Lists the column of a table and of its inheritors and partitions, which ALTER TABLE
-- changes with it.  OFFSET 0: where many tables have partitions, the planner would read all
-- of pg_attribute.
CREATE FUNCTION snowflake_convert.family(rel regclass, col name)
RETURNS TABLE (tab regclass, attnum smallint) LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        WITH RECURSIVE tree(relid) AS (
            SELECT rel::oid
            UNION
            SELECT i.inhrelid FROM tree AS t, LATERAL (SELECT inhrelid FROM pg_inherits WHERE inhparent = t.relid OFFSET 0) AS i
        )
        SELECT relid::regclass, a.attnum
          FROM tree, LATERAL (SELECT attnum FROM pg_attribute WHERE attrelid = relid AND attname = col OFFSET 0) AS a;
END
$$;

-- Says whether a column is in a partition key of some strategies, or in an expression of
-- one: PostgreSQL notes that such a column depends on its table.
CREATE FUNCTION snowflake_convert.is_partitioning(rel regclass, num smallint, strategies "char"[] DEFAULT '{h,l,r}')
RETURNS boolean LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN EXISTS (SELECT FROM pg_attribute AS a, snowflake_convert.family(a.attrelid, a.attname) AS f
                     JOIN pg_depend AS d ON (d.classid, d.objid, d.objsubid) = ('pg_class'::regclass, f.tab, f.attnum)
                                        AND (d.refclassid, d.refobjid, d.refobjsubid, d.deptype) = ('pg_class'::regclass, f.tab, 0, 'i')
                     JOIN pg_partitioned_table AS p ON p.partrelid = f.tab AND p.partstrat = ANY (strategies)
                    WHERE (a.attrelid, a.attnum) = (rel, num));
END
$$;

-- Lists the columns that reference a key by foreign keys, to any depth.
CREATE FUNCTION snowflake_convert.references_to(rel regclass, col name)
RETURNS TABLE (tab regclass, attnum smallint) LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        WITH RECURSIVE reached(tab, attnum, is_key) AS (
            SELECT f.tab, f.attnum, true FROM snowflake_convert.family(rel, col) AS f
            UNION
            SELECT n.tab, n.attnum, false
              FROM reached AS r,
                   -- pg_constraint has no index on the referenced table, but pg_depend has one
                   LATERAL (SELECT k.conrelid::regclass, k.conkey[array_position(k.confkey, r.attnum)]
                              FROM pg_depend AS d JOIN pg_constraint AS k ON k.oid = d.objid
                             WHERE (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, r.tab, r.attnum)
                               AND d.classid = 'pg_constraint'::regclass
                               AND k.contype = 'f' AND k.confrelid = r.tab AND r.attnum = ANY (k.confkey)
                            OFFSET 0) AS n(tab, attnum)
        )
        SELECT DISTINCT r.tab, r.attnum FROM reached AS r WHERE NOT r.is_key;
END
$$;

-- Lists what keeps a column from becoming a snowflake.
CREATE FUNCTION snowflake_convert.obstacles(rel regclass, col name, owner oid)
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    key record;
    sequence regclass;
    expression text;
    family regclass[] := ARRAY(SELECT f.tab FROM snowflake_convert.family(rel, col) AS f);
BEGIN
    SELECT a.* INTO key FROM pg_attribute AS a WHERE a.attrelid = rel AND a.attname = col;
    sequence := snowflake_convert.sequence_of(rel, key.attnum);
    expression := (SELECT pg_get_expr(f.adbin, f.adrelid) FROM pg_attrdef AS f WHERE (f.adrelid, f.adnum) = (rel, key.attnum));
    RETURN QUERY
        SELECT o.text
          FROM (VALUES (snowflake_convert.reason(rel, key.attnum), true),
                       ('it is generated', key.attgenerated <> ''),
                       ('a name has a line break', concat(rel, col, sequence, owner::regrole, (snowflake_convert.id_functions())[1],
                                                             (SELECT string_agg(e.grantee::regrole::text, '') FROM pg_class AS s, aclexplode(s.relacl) AS e
                                                               WHERE s.oid = sequence)) ~ E'[\n\r]'),
                       ('its sequence descends', (SELECT q.seqincrement < 0 FROM pg_sequence AS q WHERE q.seqrelid = sequence)),
                       ('its owner may not execute the function of new ids',
                        NOT has_function_privilege(owner, (snowflake_convert.id_functions())[1], 'EXECUTE')),
                       (format('its DEFAULT is %s, and not nextval() of a sequence that it owns', expression),
                        expression IS NOT NULL AND sequence IS NULL AND NOT snowflake_convert.is_snowflake(rel, key.attnum))) AS o(text, is_found)
         WHERE o.is_found AND o.text IS NOT NULL
        UNION ALL
        SELECT format('table %s belongs to %s', t.oid::regclass, CASE WHEN d.objid IS NOT NULL THEN 'an extension' ELSE 'role ' || t.relowner::regrole END)
          FROM pg_class AS t
          LEFT JOIN pg_depend AS d ON (d.classid, d.objid, d.deptype) = ('pg_class'::regclass, t.oid, 'e')
         WHERE t.oid = ANY (family) AND (t.relowner <> obstacles.owner OR d.objid IS NOT NULL AND t.oid <> rel)
        UNION ALL
        -- A script locks all tables first, and no foreign table can be locked.
        SELECT format('table %s, which inherits it, is a foreign table', t.oid::regclass)
          FROM pg_class AS t
         WHERE t.oid = ANY (family) AND t.relkind = 'f'
        UNION ALL
        SELECT format('table %s, which inherits it, has another DEFAULT, none, or a sequence for it', a.attrelid::regclass)
          FROM pg_attribute AS a LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
         WHERE a.attrelid = ANY (family) AND a.attrelid <> rel AND a.attname = col
           AND (coalesce(pg_get_expr(f.adbin, f.adrelid), '') <> coalesce(expression, '') OR snowflake_convert.sequence_of(a.attrelid, a.attnum) IS NOT NULL)
        UNION ALL
        SELECT format('%s uses sequence %s', pg_describe_object(d.classid, d.objid, d.objsubid), sequence)
          FROM pg_depend AS d LEFT JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
         WHERE (d.refclassid, d.refobjid, d.deptype) = ('pg_class'::regclass, sequence, 'n')
           AND NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = ANY (family) AND a.attname = col AND (a.attrelid, a.attnum) = (f.adrelid, f.adnum))
        UNION ALL
        SELECT format('column %I of table %s references it, and is %s', a.attname, r.tab, format_type(a.atttypid, a.atttypmod))
          FROM snowflake_convert.references_to(rel, col) AS r
          JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (r.tab, r.attnum) AND a.attlen IN (2, 4)    -- domains have the length of their type
         WHERE NOT EXISTS (SELECT FROM pg_inherits AS i JOIN snowflake_convert.references_to(rel, col) AS p ON p.tab = i.inhparent
                            WHERE i.inhrelid = r.tab AND a.attinhcount > 0);
END
$$;

--
-- Statements
--

-- Without this check, a script could call functions of a schema that another role has made.
CREATE FUNCTION snowflake_convert.check_extension()
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'IF NOT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) ''snowflake_convert'') THEN RAISE ''extension "snowflake_convert" is not installed''; END IF;';

CREATE FUNCTION snowflake_convert.statements(rel regclass, col name)
RETURNS text[] LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT array_remove(ARRAY[
                       format('ALTER TABLE %s %sALTER COLUMN %I SET DEFAULT %s', a.attrelid::regclass,
                              CASE WHEN a.attidentity <> '' THEN format('ALTER COLUMN %I DROP IDENTITY, ', a.attname) END,
                              a.attname, (snowflake_convert.id_functions())[1]),
                       CASE WHEN a.attidentity = '' THEN 'DROP SEQUENCE ' || snowflake_convert.sequence_of(a.attrelid, a.attnum) END], NULL)
              FROM pg_attribute AS a
             WHERE a.attrelid = rel AND a.attname = col);
END
$$;

-- Lists the statements, of PL/pgSQL, that give a key its sequence again, as it is now.  The
-- sequence continues after a new id, which is larger than all values that the key had from
-- its sequence or as a snowflake, also in rows that were deleted, unless the sequence had
-- reached values above snowflakes.  So the sequence is a bigint, and has no MAXVALUE of its
-- own.
CREATE FUNCTION snowflake_convert.way_back(rel regclass, col name)
RETURNS text[] LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
AS $$
#variable_conflict use_column
DECLARE
    key record;
    column_text text := format('ALTER TABLE %s ALTER COLUMN %I ', rel, col);
    options text;
BEGIN
    SELECT s.oid::regclass AS sequence, a.attidentity, s.relpersistence, s.relacl, s.relowner, q.* INTO key
      FROM pg_attribute AS a
      LEFT JOIN pg_class AS s ON s.oid = snowflake_convert.sequence_of(a.attrelid, a.attnum)
      LEFT JOIN pg_sequence AS q ON q.seqrelid = s.oid
     WHERE a.attrelid = rel AND a.attname = col;
    IF key.sequence IS NULL THEN
        RETURN ARRAY[column_text || 'DROP DEFAULT'];
    END IF;
    options := concat_ws(' ', 'INCREMENT BY ' || nullif(key.seqincrement, 1), 'MINVALUE ' || nullif(key.seqmin, 1),
                         'START WITH ' || nullif(key.seqstart, key.seqmin), 'CACHE ' || nullif(key.seqcache, 1), CASE WHEN key.seqcycle THEN 'CYCLE' END);
    RETURN CASE WHEN key.attidentity <> ''
                THEN ARRAY[format('%sDROP DEFAULT, ALTER COLUMN %I ADD GENERATED %s AS IDENTITY (%s)', column_text, col,
                                  CASE key.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END,
                                  concat_ws(' ', 'SEQUENCE NAME ' || key.sequence, nullif(options, '')))]
                ELSE ARRAY[concat_ws(' ', CASE key.relpersistence WHEN 'u' THEN 'CREATE UNLOGGED SEQUENCE' ELSE 'CREATE SEQUENCE' END,
                                     key.sequence, nullif(options, ''), format('OWNED BY %s.%I', rel, col)),
                           format('%sSET DEFAULT pg_catalog.nextval(%L)', column_text, key.sequence)] END
        -- Keep to START and INCREMENT BY, by which several servers may share the keys.
        || format('PERFORM pg_catalog.setval(%L, snowflake_convert.new_id(%s, %s))', key.sequence, key.seqstart, key.seqincrement)
        || ARRAY(SELECT format('GRANT %s ON SEQUENCE %s TO %s%s', e.privilege_type, key.sequence,
                               coalesce(nullif(e.grantee, 0)::regrole::text, 'PUBLIC'), CASE WHEN e.is_grantable THEN ' WITH GRANT OPTION' END)
                   FROM aclexplode(key.relacl) AS e
                  WHERE e.grantee <> key.relowner);
END
$$;

-- Lists the tables that PostgreSQL locks, reads or checks when columns get another type:
-- the table and its inheritors, and what foreign keys of these columns connect.
CREATE FUNCTION snowflake_convert.affected(rel regclass, cols name[])
RETURNS SETOF regclass LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        WITH RECURSIVE tree(relid) AS (
            SELECT t.relid
              FROM (SELECT rel::oid
                    UNION ALL
                    SELECT unnest(ARRAY[k.conrelid, k.confrelid])
                      FROM unnest(cols) AS c(col)
                     CROSS JOIN LATERAL snowflake_convert.family(rel, c.col) AS f
                      JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, f.tab, f.attnum)
                                         AND d.classid = 'pg_constraint'::regclass
                      JOIN pg_constraint AS k ON k.oid = d.objid AND k.contype = 'f') AS t(relid)
            UNION
            SELECT i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.relid
        )
        SELECT relid::regclass FROM tree;
END
$$;

-- Says why the owner of a table should not widen columns: PostgreSQL would run what
-- another role has put into indexes and CHECKs, the schema's owner could exchange tables,
-- or an expression that PostgreSQL parses anew could find another function of that name.
-- A foreign table is an obstacle because the statement could not lock it.
CREATE FUNCTION snowflake_convert.widening_obstacle(rel regclass, cols name[], owner oid)
RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT o.obstacle
              FROM (SELECT 1, format('table %s belongs to role %s', t.oid::regclass, t.relowner::regrole)
                      FROM pg_class AS t
                     WHERE t.oid IN (SELECT snowflake_convert.affected(rel, cols)) AND t.relowner <> owner
                    UNION ALL
                    SELECT 1, format('table %s is a foreign table', t.oid::regclass)
                      FROM pg_class AS t
                     WHERE t.oid IN (SELECT snowflake_convert.affected(rel, cols)) AND t.relkind = 'f'
                    UNION ALL
                    SELECT 2, format('schema %I belongs to role %s', n.nspname, r.oid::regrole)
                      FROM pg_class AS t
                      JOIN pg_namespace AS n ON n.oid = t.relnamespace
                      JOIN pg_database AS d ON d.datname = current_database()
                      JOIN pg_roles AS r ON r.oid = CASE n.nspowner WHEN 'pg_database_owner'::regrole THEN d.datdba ELSE n.nspowner END
                     WHERE t.oid IN (SELECT snowflake_convert.affected(rel, cols)) AND r.oid <> owner AND NOT r.rolsuper
                    UNION ALL
                    -- pg_depend has no row for what is PostgreSQL's own
                    SELECT 3, format('%s uses %s', pg_describe_object(d.classid, d.objid, 0), pg_describe_object(u.refclassid, u.refobjid, 0))
                      FROM unnest(cols) AS c(col)
                     CROSS JOIN LATERAL snowflake_convert.family(rel, c.col) AS f
                      JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.refobjsubid) = ('pg_class'::regclass, f.tab, f.attnum)
                      JOIN pg_depend AS u ON (u.classid, u.objid) = (d.classid, d.objid)
                                         AND u.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
                     WHERE d.classid IN ('pg_constraint'::regclass, 'pg_class'::regclass, 'pg_statistic_ext'::regclass)) AS o(n, obstacle)
             ORDER BY o.n, o.obstacle COLLATE "C" LIMIT 1);
END
$$;

-- Lists the statements that widen integer columns: first the columns that reference keys,
-- then the keys.  ALTER TABLE rewrites a table once for all its columns.  Each statement
-- has a keyword in front, by which sed takes statements out of a script's comments.  A
-- statement that another role has to run, or that needs care, has another keyword.
CREATE FUNCTION snowflake_convert.widening(tabs regclass[], cols name[], owner oid)
RETURNS TABLE (line text) LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
BEGIN ATOMIC
    WITH columns(tab, attnum, is_key, is_partitioning) AS (
        SELECT c.tab, c.attnum, bool_or(c.is_key), snowflake_convert.is_partitioning(c.tab, c.attnum)
          FROM unnest(tabs, cols) AS k(tab, col),
               LATERAL (SELECT k.tab, (SELECT attnum FROM pg_attribute WHERE attrelid = k.tab AND attname = k.col), true
                        UNION ALL
                        SELECT r.tab, r.attnum, false FROM snowflake_convert.references_to(k.tab, k.col) AS r) AS c(tab, attnum, is_key)
         GROUP BY c.tab, c.attnum
    ), lines(is_key, tab, statement, line) AS (
        SELECT s.is_key, s.tab::text, s.statement,
               CASE WHEN s.is_partitioning THEN 'no ALTER TABLE widens a partition key: ' || s.statement
                    WHEN o.obstacle IS NOT NULL THEN format('widen by hand, because %s: %s;%s', o.obstacle, s.statement, z.size)
                    ELSE format('widen%s: %s%s', CASE WHEN t.relowner <> owner THEN format(' as role %I', pg_get_userbyid(t.relowner)) END,
                                -- The statement checks again, because a role can make a foreign key to the table meanwhile.
                                CASE WHEN s.cols IS NULL THEN s.statement || ';'
                                     ELSE format('DO $widen$DECLARE path CONSTANT pg_catalog.text := pg_catalog.current_setting(''search_path''); '
                                                 'BEGIN %s CALL snowflake_convert.begin_widening(%L, %L, %L, ''5s''); '
                                                 -- PostgreSQL parses indexes and CHECKs anew.
                                                 'PERFORM pg_catalog.set_config(''search_path'', ''pg_catalog, pg_temp'', true); %s; '
                                                 'PERFORM pg_catalog.set_config(''search_path'', path, true); END$widen$;',
                                                 snowflake_convert.check_extension(), pg_get_userbyid(t.relowner), s.tab, s.cols, s.statement) END,
                                z.size) END
          FROM (SELECT c.tab, bool_or(c.is_key), c.is_partitioning,
                       format(CASE WHEN c.is_partitioning THEN '%s (%s)' ELSE 'ALTER TABLE %s %s' END, c.tab,
                              string_agg(format(CASE WHEN c.is_partitioning THEN '%I' ELSE 'ALTER COLUMN %I TYPE bigint' END, a.attname), ', ' ORDER BY c.attnum)),
                       (SELECT sum(pg_total_relation_size(f.tab))::bigint FROM snowflake_convert.family(c.tab, min(a.attname)::name) AS f),
                       array_agg(a.attname ORDER BY c.attnum)
                  FROM columns AS c
                  JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum)
                 WHERE a.atttypid IN ('smallint'::regtype, 'integer'::regtype) AND a.attinhcount = 0
                 GROUP BY c.tab, c.is_partitioning
                UNION ALL
                -- A serial's sequence would end at the largest integer; that of an identity is widened with it.
                SELECT c.tab, c.is_key, false, format('ALTER SEQUENCE %s AS bigint', q.seqrelid::regclass), NULL, NULL
                  FROM columns AS c
                  JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.tab, c.attnum) AND a.attidentity = ''
                  JOIN pg_sequence AS q ON q.seqrelid = snowflake_convert.sequence_of(c.tab, c.attnum) AND q.seqtypid <> 'bigint'::regtype
                 WHERE c.is_key AND NOT c.is_partitioning AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype)) AS s(tab, is_key, is_partitioning, statement, size, cols)
          JOIN pg_class AS t ON t.oid = s.tab,
               LATERAL (SELECT CASE WHEN concat(s.statement, t.relowner::regrole) ~ E'[\n\r$]' THEN 'a name has a line break or a $'
                                    ELSE snowflake_convert.widening_obstacle(s.tab, s.cols, t.relowner) END) AS o(obstacle),
               LATERAL (SELECT ' -- ' || pg_size_pretty(s.size)) AS z(size)
    )
    SELECT line FROM lines ORDER BY is_key, tab COLLATE "C", statement COLLATE "C";
END;

--
-- The comments of a script
--

-- Makes each line of a text a comment, whatever names are in it.
CREATE FUNCTION snowflake_convert.comment(text text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN '-- ' || regexp_replace(text, E'[\n\r]', E'\n--     ', 'g');

-- Lists integer columns of all schemas that have no foreign key and are named after a
-- key's table, such as shop_order_id and orderIds for shop_orders, or rev_page for page.
CREATE FUNCTION snowflake_convert.named_columns(tabs regclass[])
RETURNS TABLE (line text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH words(word, is_whole) AS (
        SELECT w, bool_or(n.name = t.relname)
          FROM pg_class AS t,
               LATERAL unnest(ARRAY[t.relname, regexp_replace(t.relname, '^.*_', '')]) AS n(name),
               LATERAL unnest(ARRAY[lower(n.name), regexp_replace(lower(n.name), 's$', ''), regexp_replace(lower(n.name), 'es$', ''),
                                    regexp_replace(lower(n.name), 'ies$', 'y')]) AS w
         WHERE t.oid = ANY (tabs::oid[]) AND w <> ''
         GROUP BY w
    )
    SELECT format('integers without a foreign key, named after a key''s table: %s (%s)', a.attrelid::regclass,
                  string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum))
      FROM pg_class AS t
      JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attinhcount = 0 AND a.attidentity = ''
      JOIN pg_type AS y ON y.oid = a.atttypid
      JOIN pg_type AS e ON e.oid IN (y.oid, y.typelem) AND e.typoutput IN ('int2out'::regproc, 'int4out'::regproc),    -- as domains of them
           LATERAL regexp_replace(lower(a.attname), '_?ids?$', '') AS n(name)
     WHERE t.relkind IN ('r', 'p', 'f') AND t.relpersistence <> 't' AND t.oid >= 16384
       AND EXISTS (SELECT FROM words AS w WHERE w.word IN (n.name, regexp_replace(n.name, '^.*_', '')) AND (w.is_whole OR n.name <> lower(a.attname)))
       AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = t.oid AND k.contype = 'f' AND a.attnum = ANY (k.conkey))
       AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE (d.classid, d.objid, d.deptype) = ('pg_class'::regclass, t.oid, 'e'))
       AND snowflake_convert.sequence_of(t.oid, a.attnum) IS NULL
     GROUP BY a.attrelid
     ORDER BY a.attrelid::regclass::text COLLATE "C";
END;

-- Lists functions that may call nextval() of a sequence that the script drops.
CREATE FUNCTION snowflake_convert.callers(sequences regclass[])
RETURNS TABLE (line text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('function %s mentions %s', p.oid::regprocedure, coalesce('sequence ' || min(s.oid::regclass::text), 'nextval()'))
      FROM pg_proc AS p
      JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname NOT IN ('internal', 'c')
      LEFT JOIN pg_class AS s ON s.oid = ANY (sequences::oid[]) AND strpos(p.prosrc, s.relname) > 0
     WHERE p.oid >= 16384 AND cardinality(sequences) > 0 AND (s.oid IS NOT NULL OR p.prosrc ~* E'\\mnextval\\s*[(]')
       AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE (d.classid, d.objid, d.deptype) = ('pg_proc'::regclass, p.oid, 'e'))
     GROUP BY p.oid
     ORDER BY p.oid::regprocedure::text COLLATE "C";
END;

--
-- What a script calls
--

-- Returns a hash of a script's statements, and of those of the way back, so that a script
-- whose way back would now be another one does not run either.
CREATE FUNCTION snowflake_convert.digest(tabs regclass[], cols name[])
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT encode(sha256(convert_to(string_agg(concat(snowflake_convert.statements(k.tab, k.col), snowflake_convert.way_back(k.tab, k.col)), ';' ORDER BY k.n),
                                    getdatabaseencoding())), 'hex')
      FROM ROWS FROM (unnest(tabs), unnest(cols)) WITH ORDINALITY AS k(tab, col, n);
END;

-- Raises an error unless a script runs as the tables' owner, and sees what others commit.
-- Returns the owner.
CREATE FUNCTION snowflake_convert.check_session(owner name)
RETURNS oid LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    role oid := (SELECT oid FROM pg_roles WHERE rolname = owner);
    -- Neither SET ROLE nor SET SESSION AUTHORIZATION changes this role, whose rights the
    -- owner's code could take.  pg_execute_server_program, pg_read_server_files and
    -- pg_write_server_files have as much power as a superuser.  Before 16, a role with
    -- CREATEROLE can grant these to anybody.
    connected oid := coalesce((SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid())), 10);
BEGIN
    -- "role" is NULL for a name that is NULL, and for a role that is renamed meanwhile.
    IF role IS NULL
       OR owner <> current_user
       OR role <> connected AND (NOT pg_has_role(connected, role, 'MEMBER')
                                 OR EXISTS (SELECT FROM pg_roles AS s
                                            WHERE (s.rolsuper OR s.rolcreaterole OR s.rolname ~ '^pg_.*_server_') AND pg_has_role(connected, s.oid, 'MEMBER'))) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('this script has to run as role "%s", not as "%s"', owner, CASE WHEN owner <> current_user THEN current_user ELSE pg_get_userbyid(connected) END),
            HINT = format('Connect as role "%s" or as a member of it without the rights of a superuser, CREATEROLE or a role pg_*_server_*, and SET ROLE to it.', owner);
    END IF;
    -- One snapshot would hide what has changed during a wait for a lock.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE invalid_transaction_state USING
            MESSAGE = format('this script does not run at isolation level "%s"', current_setting('transaction_isolation')),
            HINT = 'First SET default_transaction_isolation = ''read committed''.';
    END IF;
    RETURN role;
END
$$;

-- Locks a table or a sequence against everybody.
CREATE FUNCTION snowflake_convert.lock_relation(rel regclass, wait interval)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    class record;
BEGIN
    SELECT c.relkind, format('%I.%I', n.nspname, c.relname) AS name, pg_get_userbyid(c.relowner) AS owner INTO class
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = rel;
    PERFORM set_config('lock_timeout', greatest(1, ceil(extract(epoch FROM wait) * 1000))::text, true);
    CASE WHEN class.name IS NULL THEN
        NULL;    -- lock_relations() notices it
    WHEN class.relkind = 'S' THEN
        -- No statement locks a sequence and does nothing else; this one changes nothing.
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', class.name, class.owner);
    ELSE
        EXECUTE format('LOCK TABLE ONLY %s %s', class.name, CASE WHEN wait = interval '0' THEN 'NOWAIT' END);
    END CASE;
END
$$;

-- Lists who has, or waits for, locks on relations.
CREATE FUNCTION snowflake_convert.locks(rels regclass[])
RETURNS TABLE (rel regclass, is_mine boolean) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT l.relation::regclass, l.pid IS NOT DISTINCT FROM pg_backend_pid() AND l.granted AND l.mode = 'AccessExclusiveLock'
          FROM pg_locks AS l
         WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.relation = ANY (rels::oid[])
           AND (l.pid IS DISTINCT FROM pg_backend_pid() OR l.mode = 'AccessExclusiveLock');
END
$$;

-- Locks tables and their sequences.  The function holds none of these locks while it
-- waits for another one, so a session that has locked one table and needs another goes on.
-- A deadlock is possible with locks that the transaction has taken before, and with CREATE
-- INDEX CONCURRENTLY and the like.  Other sessions queue behind a wait, so a wait is short,
-- and a pause as long follows.  Waits become longer, because PostgreSQL cancels an
-- autovacuum only for a session that has waited for deadlock_timeout.
CREATE FUNCTION snowflake_convert.lock_relations(tabs regclass[], sequences regclass[], timeout interval)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + timeout;
    wait interval := '50 ms';
    is_waiting boolean;
    awaited regclass;
    rel regclass;
BEGIN
    LOOP
        BEGIN
            rel := awaited;
            is_waiting := awaited IS NOT NULL;
            PERFORM snowflake_convert.lock_relation(rel, least(wait, deadline - clock_timestamp())) WHERE is_waiting;
            is_waiting := false;
            FOREACH rel IN ARRAY tabs LOOP
                PERFORM snowflake_convert.lock_relation(rel, interval '0');
            END LOOP;
            -- There is no NOWAIT for a sequence.
            rel := (SELECT min(l.rel::oid) FROM snowflake_convert.locks(sequences) AS l WHERE NOT l.is_mine);
            IF rel IS NOT NULL THEN
                RAISE lock_not_available;
            END IF;
            FOREACH rel IN ARRAY sequences LOOP
                PERFORM snowflake_convert.lock_relation(rel, interval '0');
            END LOOP;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() >= deadline THEN
                RAISE lock_not_available USING
                    MESSAGE = format('could not lock %s and %s other relations within %s s', rel, cardinality(tabs || sequences) - 1, trim_scale(extract(epoch FROM timeout))),
                    HINT = 'Run the script when fewer transactions use them, or raise its lock_timeout.';
            END IF;
            awaited := rel;
        END;
        PERFORM pg_sleep_for(CASE WHEN is_waiting THEN least(wait, deadline - clock_timestamp()) ELSE '5 ms' END);
        wait := CASE WHEN is_waiting THEN wait * 2 ELSE wait END;
    END LOOP;
    -- Names may have led to other tables while this session waited.
    IF EXISTS (SELECT unnest(tabs || sequences) EXCEPT SELECT l.rel FROM snowflake_convert.locks(tabs || sequences) AS l WHERE l.is_mine) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tables or names have changed while this script waited for locks',
            HINT = 'Make the script again.';
    END IF;
END
$$;

-- Locks the tables, and makes sure that the same script would be made now or, without a
-- digest, that the keys are snowflakes, as the way back needs.
CREATE PROCEDURE snowflake_convert.begin_script(owner name, tabs regclass[], cols name[], digest text, timeout interval, OUT sequences regclass[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan    -- the same small queries for each key
AS $$
#variable_conflict use_variable
DECLARE
    role oid := snowflake_convert.check_session(owner);
    rels regclass[];
BEGIN
    sequences := ARRAY(SELECT s.sequence
                         FROM unnest(tabs, cols) AS k(tab, col) JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col,
                              LATERAL snowflake_convert.own_sequence(k.tab, a.attnum) AS s(sequence)
                        WHERE s.sequence IS NOT NULL);
    rels := ARRAY(SELECT unnest(tabs)::oid UNION SELECT f.tab::oid FROM unnest(tabs, cols) AS k(tab, col), snowflake_convert.family(k.tab, k.col) AS f ORDER BY 1);
    PERFORM snowflake_convert.lock_relations(rels, sequences, timeout);
    IF digest IS NULL THEN
        -- ALTER TABLE also changes the DEFAULT of inheritors; one without a DEFAULT loses none.
        IF EXISTS (SELECT FROM unnest(tabs, cols) AS k(tab, col)
                     LEFT JOIN LATERAL snowflake_convert.family(k.tab, k.col) AS f ON true
                     LEFT JOIN pg_class AS c ON c.oid = f.tab
                    WHERE c.relowner IS DISTINCT FROM role
                       OR snowflake_convert.is_snowflake(f.tab, f.attnum) IS NOT TRUE AND
                          (f.tab = k.tab OR EXISTS (SELECT FROM pg_attribute AS a WHERE (a.attrelid, a.attnum) = (f.tab, f.attnum)
                                                       AND (a.atthasdef OR a.attidentity <> '')))) THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = 'a key, or a column that inherits it, is not a snowflake of this owner, so this way back does not apply';
        END IF;
    ELSIF digest IS DISTINCT FROM snowflake_convert.digest(tabs, cols)
          -- Each key needs an ALTER TABLE of its own, so that none is left for another table.
       OR EXISTS (SELECT FROM unnest(tabs, cols) AS k(tab, col) JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col
                   WHERE snowflake_convert.is_snowflake(k.tab, a.attnum))
       OR EXISTS (SELECT FROM unnest(tabs, cols) AS k(tab, col) GROUP BY k.tab::oid, k.col HAVING count(*) > 1)
       OR EXISTS (SELECT FROM unnest(tabs, cols) AS k(tab, col), snowflake_convert.obstacles(k.tab, k.col, role)) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tables, what depends on them, or names have changed since the script was made',
            HINT = 'Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.begin_script(name, regclass[], name[], text, interval) IS
'for scripts: lock the tables; an error if the role is not the tables'' owner, or if a different script would be made now';

-- Locks the tables that an ALTER TABLE to bigint needs, and makes sure that they are all
-- the owner's.
CREATE PROCEDURE snowflake_convert.begin_widening(owner name, rel regclass, cols name[], timeout interval)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    role oid := snowflake_convert.check_session(owner);
    tabs regclass[] := ARRAY(SELECT snowflake_convert.affected(rel, cols));
    obstacle text := snowflake_convert.widening_obstacle(rel, cols, role);
BEGIN
    IF obstacle IS NULL THEN
        PERFORM snowflake_convert.lock_relations(tabs, '{}', timeout);
        obstacle := coalesce(snowflake_convert.widening_obstacle(rel, cols, role),
                             (SELECT min(format('table %s is affected, too', a)) FROM snowflake_convert.affected(rel, cols) AS a WHERE a <> ALL (tabs::oid[])));
    END IF;
    IF obstacle IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('tables or names have changed since the script was made: %s', obstacle),
            HINT = 'Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.begin_widening(name, regclass, name[], interval) IS
'for scripts: lock the tables; an error if the role is not the tables'' owner, or if a table of another role is affected';

-- A schema's owner can exchange names while a script runs; this procedure detects that.
CREATE PROCEDURE snowflake_convert.end_script(tabs regclass[], cols name[], sequences regclass[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan    -- the same small queries for each key
AS $$
DECLARE
    wrong text := (SELECT min(format('%I of %s', k.col, coalesce(f.tab, k.tab)))
                     FROM unnest(tabs, cols) AS k(tab, col) LEFT JOIN LATERAL snowflake_convert.family(k.tab, k.col) AS f ON true
                    WHERE snowflake_convert.is_snowflake(f.tab, f.attnum) IS NOT TRUE);
    kept text := (SELECT min(oid::regclass::text) FROM pg_class WHERE oid = ANY (sequences::oid[]));
BEGIN
    IF wrong IS NOT NULL OR kept IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = CASE WHEN wrong IS NOT NULL THEN format('the DEFAULT of column %s is not snowflake_id() of the extension snowflake', wrong)
                           ELSE format('the script has dropped a sequence other than %s', kept) END,
            HINT = 'Names may have been exchanged. Make the script again.';
    END IF;
END
$$;
COMMENT ON PROCEDURE snowflake_convert.end_script(regclass[], name[], regclass[]) IS
'for scripts: make sure that the keys have the extension''s function, and that their sequences are gone';

--
-- The script
--

-- Writes one DO statement, because a client that ignores an error goes on with the next
-- statement.  The tag of its quote is a hash of all texts, so that no name ends the quote.
CREATE FUNCTION snowflake_convert.do_statement(tabs regclass[], cols name[], owner oid, is_back boolean)
RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
BEGIN ATOMIC
    SELECT concat_ws(E'\n    ', format(E'DO $script_%s$\nDECLARE', d.digest),
               'lock_timeout CONSTANT pg_catalog.interval := ''5s'';    -- of all locks together',
               'timeout CONSTANT pg_catalog.text := pg_catalog.current_setting(''lock_timeout'');',
               'schemas CONSTANT pg_catalog.text := pg_catalog.current_setting(''snowflake_convert.schemas'', true);',
               'keys pg_catalog.regclass[];', 'columns pg_catalog.name[];', E'sequences pg_catalog.regclass[];\nBEGIN',
               snowflake_convert.check_extension(),
               format('keys := %L;', tabs), format('columns := %L;', cols),
               'PERFORM pg_catalog.set_config(''snowflake_convert.schemas'', ''none'', true);    -- new_tables() has to leave the tables alone',
               format('CALL snowflake_convert.begin_script(%L, keys, columns, %L, lock_timeout, sequences);', pg_get_userbyid(owner), CASE WHEN NOT is_back THEN d.digest END),
               'PERFORM pg_catalog.set_config(''lock_timeout'', ''100ms'', true);    -- for an open GRANT, which no lock shows',
               (SELECT string_agg(s.statement || ';', E'\n    ' ORDER BY k.n, s.n)
                  FROM ROWS FROM (unnest(tabs), unnest(cols)) WITH ORDINALITY AS k(tab, col, n),
                       unnest(CASE WHEN is_back THEN snowflake_convert.way_back(k.tab, k.col)
                                   ELSE snowflake_convert.statements(k.tab, k.col) END) WITH ORDINALITY AS s(statement, n)),
               CASE WHEN NOT is_back THEN 'CALL snowflake_convert.end_script(keys, columns, sequences);' END,
               'PERFORM pg_catalog.set_config(''lock_timeout'', timeout, true);',
               'PERFORM pg_catalog.set_config(''snowflake_convert.schemas'', schemas, true);') || format(E'\nEND $script_%s$;', d.digest)
      FROM snowflake_convert.digest(tabs, cols) AS d(digest);
END;

-- Writes the script for the keys that can become snowflakes, and comments on the others.
CREATE FUNCTION snowflake_convert.script(tabs regclass[], cols name[], owner oid)
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan    -- the same small queries for each key
AS $$
#variable_conflict use_variable
DECLARE
    keys regclass[];
    columns name[];
    sequences regclass[];
BEGIN
    RETURN QUERY
        SELECT snowflake_convert.comment(CASE WHEN a.atttypid IN ('smallint'::regtype, 'integer'::regtype) THEN format('stays integer: %s (%I)', k.tab, k.col)
                                              ELSE format('in the way of %s (%I): %s', k.tab, k.col, o.obstacle) END)
          FROM ROWS FROM (unnest(tabs), unnest(cols)) WITH ORDINALITY AS k(tab, col, n)
          JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col,
               LATERAL (SELECT o FROM snowflake_convert.obstacles(k.tab, k.col, owner) AS o
                         WHERE a.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype) AND NOT snowflake_convert.is_snowflake(k.tab, a.attnum)
                        UNION ALL
                        SELECT NULL WHERE a.atttypid IN ('smallint'::regtype, 'integer'::regtype)) AS o(obstacle)
         ORDER BY k.n, o.obstacle COLLATE "C";
    RETURN QUERY SELECT snowflake_convert.comment(w.line) FROM snowflake_convert.widening(tabs, cols, owner) AS w;
    RETURN QUERY SELECT snowflake_convert.comment(n.line) FROM snowflake_convert.named_columns(tabs) AS n;

    SELECT array_agg(k.tab ORDER BY k.n), array_agg(k.col ORDER BY k.n), array_agg(snowflake_convert.sequence_of(k.tab, a.attnum)) INTO keys, columns, sequences
      FROM ROWS FROM (unnest(tabs), unnest(cols)) WITH ORDINALITY AS k(tab, col, n)
      JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col
     WHERE NOT snowflake_convert.is_snowflake(k.tab, a.attnum) AND NOT EXISTS (SELECT FROM snowflake_convert.obstacles(k.tab, k.col, owner));
    IF keys IS NULL THEN
        RETURN NEXT '-- no key to convert';
        RETURN;
    END IF;
    RETURN QUERY SELECT snowflake_convert.comment(c.line) FROM snowflake_convert.callers(sequences) AS c;
    RETURN QUERY
        SELECT snowflake_convert.comment(format('new ids need partitions that take them: %s (%I)', k.tab, k.col))
          FROM unnest(keys, columns) AS k(tab, col) JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col
         WHERE snowflake_convert.is_partitioning(k.tab, a.attnum, '{l,r}');    -- partitions by hash take any id
    -- The keys of another scheme may be larger than new ids, or equal to one.
    RETURN QUERY
        SELECT snowflake_convert.comment(format('new ids have to be larger than the keys, so this has to be true: SELECT max(%I) < %s FROM %s', k.col,
                                                regexp_replace((snowflake_convert.id_functions())[1]::text, '[^.]*$', 'snowflake_min_id(now())'), k.tab))
          FROM unnest(keys, columns) AS k(tab, col) JOIN pg_attribute AS a ON a.attrelid = k.tab AND a.attname = k.col
         WHERE snowflake_convert.sequence_of(k.tab, a.attnum) IS NULL;
    RETURN QUERY
        SELECT '-- back: ' || l.line
          FROM string_to_table(snowflake_convert.do_statement(keys, columns, owner, true), E'\n') WITH ORDINALITY AS l(line, n) ORDER BY l.n;
    IF cardinality(keys) > 100 THEN
        RETURN NEXT '-- PostgreSQL may need some locks for each table: "out of shared memory" asks for a larger max_locks_per_transaction';
    END IF;
    RETURN NEXT snowflake_convert.do_statement(keys, columns, owner, false);
END
$$;

CREATE FUNCTION snowflake_convert.key(rel regclass, col name)
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = rel AND attname = col AND attnum > 0 AND NOT attisdropped) THEN
        RAISE undefined_column USING MESSAGE = format('column "%s" of table "%s" does not exist', col, rel);
    END IF;
    RETURN QUERY SELECT snowflake_convert.script(ARRAY[rel], ARRAY[col], (SELECT relowner FROM pg_class WHERE oid = rel));
END
$$;
COMMENT ON FUNCTION snowflake_convert.key(regclass, name) IS 'a script that gives a bigint key DEFAULT snowflake_id(), and drops its sequence';

-- Lists the keys of schemas, except columns that reference another key, from which they
-- have their values.  A key whose values neither a sequence nor a function makes may be a
-- natural key, and is left alone; if it is an integer without a DEFAULT, it is not listed.
CREATE FUNCTION snowflake_convert.keys(schemas name[])
RETURNS TABLE (tab regclass, attname name, owner oid, is_left_alone boolean)
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT t.oid::regclass, a.attname, t.relowner, NOT d.is_made
      FROM pg_namespace AS s
      JOIN pg_class AS t ON t.relnamespace = s.oid AND t.relkind IN ('r', 'p') AND t.relpersistence <> 't'
      JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attinhcount = 0 AND a.attgenerated = ''
           CROSS JOIN LATERAL (
               SELECT a.attidentity <> ''
                      OR EXISTS (SELECT FROM pg_attrdef AS f
                                   JOIN pg_depend AS p ON (p.classid, p.objid, p.deptype) = ('pg_attrdef'::regclass, f.oid, 'n')
                                  WHERE (f.adrelid, f.adnum) = (a.attrelid, a.attnum) AND p.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass))
                      OR a.atthasdef AND snowflake_convert.uses_sequence(a.attrelid, a.attnum),
                      a.atttypid IN ('smallint'::regtype, 'integer'::regtype)) AS d(is_made, is_integer)
     WHERE s.nspname = ANY (schemas)
       AND CASE WHEN is_integer THEN d.is_made OR a.atthasdef ELSE a.atttypid = ANY (snowflake_convert.key_types()) END
       AND EXISTS (SELECT FROM pg_constraint AS k
                    WHERE k.conrelid = t.oid AND k.contype = 'p' AND a.attnum = ANY (k.conkey) AND (d.is_made OR cardinality(k.conkey) = 1)
                       OR k.confrelid = t.oid AND k.contype = 'f' AND a.attnum = ANY (k.confkey) AND d.is_made)
       AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = t.oid AND k.contype = 'f' AND a.attnum = ANY (k.conkey))
       AND NOT EXISTS (SELECT FROM pg_depend AS e WHERE (e.classid, e.objid, e.deptype) = ('pg_class'::regclass, t.oid, 'e'))
     ORDER BY t.oid::regclass::text COLLATE "C", a.attnum;
END;

-- Lists what a script of schemas leaves alone: keys that are perhaps natural, or excepted,
-- and columns that have values of a sequence and are no keys.
CREATE FUNCTION snowflake_convert.left_alone(schemas name[], excepted text[])
RETURNS TABLE (line text) LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH keys AS (
        SELECT k.tab, k.attname, k.is_left_alone, format('%s.%I', k.tab, k.attname) = ANY (excepted) AS is_excepted FROM snowflake_convert.keys(schemas) AS k
    )
    SELECT format('left alone: %s.%I, %s', l.tab, l.attname, l.reason)
      FROM (SELECT k.tab, k.attname,
                   CASE WHEN k.is_left_alone THEN 'perhaps a natural key: see snowflake_convert.key()' ELSE 'it is in except_keys' END
              FROM keys AS k
             WHERE k.is_left_alone OR k.is_excepted
            UNION ALL
            SELECT t.oid::regclass, a.attname,
                   coalesce(snowflake_convert.reason(t.oid, a.attnum), 'it is in no primary key, and no foreign key references it: see snowflake_convert.key()')
              FROM pg_namespace AS n
              JOIN pg_class AS t ON t.relnamespace = n.oid AND t.relkind IN ('r', 'p', 'f', 'v') AND t.relpersistence <> 't'
              JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
             WHERE n.nspname = ANY (schemas)
               AND CASE WHEN a.atthasdef OR a.attidentity <> '' OR a.atttypid >= 16384 THEN snowflake_convert.uses_sequence(t.oid, a.attnum) END
               AND (t.oid, a.attname) NOT IN (SELECT k.tab::oid, k.attname FROM keys AS k)
               -- A column with values of a parent's sequence stays or changes with the parent's.
               AND NOT EXISTS (SELECT FROM pg_inherits AS i
                                 JOIN pg_class AS p ON p.oid = i.inhparent
                                 JOIN pg_namespace AS s ON s.oid = p.relnamespace AND s.nspname = ANY (schemas)
                                 JOIN pg_attribute AS of_p ON of_p.attrelid = p.oid AND of_p.attname = a.attname
                                 LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
                                 LEFT JOIN pg_attrdef AS of_f ON (of_f.adrelid, of_f.adnum) = (of_p.attrelid, of_p.attnum)
                                WHERE i.inhrelid = t.oid AND a.attinhcount > 0 AND snowflake_convert.own_sequence(t.oid, a.attnum) IS NULL
                                  AND coalesce(pg_get_expr(f.adbin, f.adrelid), '') = coalesce(pg_get_expr(of_f.adbin, of_f.adrelid), ''))) AS l(tab, attname, reason)
     ORDER BY l.tab::text COLLATE "C", l.attname COLLATE "C";
END;

CREATE FUNCTION snowflake_convert.schema(schemas name[], except_keys text[] DEFAULT '{}')
RETURNS SETOF text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan    -- the same small queries for each key
AS $$
DECLARE
    tabs regclass[];
    cols name[];
    owners oid[];
    me oid := quote_ident(current_user)::regrole;
    excepted text[] := ARRAY(SELECT (SELECT string_agg(quote_ident(p.part), '.' ORDER BY p.n) FROM unnest(parse_ident(e)) WITH ORDINALITY AS p(part, n))
                               FROM unnest(except_keys) AS e);
    missing text;
BEGIN
    PERFORM quote_ident(s)::regnamespace FROM unnest(schemas) AS s;    -- an error if there is none
    SELECT min(e) INTO missing
      FROM unnest(excepted) AS e
     WHERE e NOT IN (SELECT format('%s.%I', k.tab, k.attname) FROM snowflake_convert.keys(schemas) AS k);
    IF missing IS NOT NULL THEN
        RAISE undefined_column USING MESSAGE = format('there is no key "%s"', missing), HINT = 'Write schema.table.column, with quotes as in SQL.';
    END IF;
    RETURN QUERY SELECT snowflake_convert.comment(l.line) FROM snowflake_convert.left_alone(schemas, excepted) AS l;
    SELECT array_agg(k.tab ORDER BY k.n), array_agg(k.attname ORDER BY k.n), array_agg(DISTINCT k.owner) INTO tabs, cols, owners
      FROM snowflake_convert.keys(schemas) WITH ORDINALITY AS k(tab, attname, owner, is_left_alone, n)
     WHERE NOT k.is_left_alone AND format('%s.%I', k.tab, k.attname) <> ALL (excepted);
    IF cardinality(owners) > 1 AND me <> ALL (owners) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('the keys belong to several roles: %s', (SELECT string_agg(o::regrole::text, ', ' ORDER BY o) FROM unnest(owners) AS o)),
            HINT = 'SET ROLE to one of them: the script then has the keys of this role.';
    END IF;
    RETURN QUERY SELECT snowflake_convert.script(coalesce(tabs, '{}'), coalesce(cols, '{}'),
                            CASE WHEN cardinality(owners) = 1 THEN owners[1] ELSE me END);
END
$$;
COMMENT ON FUNCTION snowflake_convert.schema(name[], text[]) IS
'a script that makes the bigint keys of some schemas snowflakes; its comments list integer keys';

--
-- New tables
--

-- Says what keeps a column of a table that was just made from becoming a snowflake.
CREATE FUNCTION snowflake_convert.new_obstacle(
    rel regclass, num smallint, owner oid, sequence regclass, is_key boolean, is_parent boolean, is_made_here boolean)
RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(snowflake_convert.reason(rel, num), CASE
                WHEN NOT is_key THEN 'it is in no primary key so far'
                -- One snapshot would hide what uses a table that is older than this transaction.
                WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT is_made_here
                     THEN format('the isolation level is %s', current_setting('transaction_isolation'))
                WHEN is_parent THEN 'the table has partitions or inheritors'
                WHEN pg_relation_size(rel) > 0 THEN 'the table has rows'
                WHEN NOT has_sequence_privilege(sequence, 'USAGE') THEN format('no privilege to read sequence %s', sequence)
                WHEN pg_sequence_last_value(sequence) IS NOT NULL THEN format('sequence %s has given values', sequence)
                ELSE (SELECT min(o) FROM pg_attribute AS a, snowflake_convert.obstacles(rel, a.attname, owner) AS o
                       WHERE (a.attrelid, a.attnum) = (rel, num)) END);
END
$$;

-- Changes a column as a script would.  Returns an error's text.
CREATE FUNCTION snowflake_convert.convert_new(rel regclass, num smallint, col name, sequence regclass)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    setting text := current_setting('snowflake_convert.schemas', true);
    statement text;
BEGIN
    PERFORM set_config('snowflake_convert.schemas', 'none', true);
    FOREACH statement IN ARRAY snowflake_convert.statements(rel, col) LOOP
        EXECUTE statement;
    END LOOP;
    PERFORM set_config('snowflake_convert.schemas', setting, true);
    -- A schema's owner can exchange names meanwhile.
    IF NOT snowflake_convert.is_snowflake(rel, num) OR EXISTS (SELECT FROM pg_class WHERE oid = sequence) THEN
        RAISE 'names were exchanged';
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END
$$;

-- The event trigger runs as the role that runs the DDL, and changes only a table that has
-- no rows and whose sequence has given no value, so that nobody uses the table yet.  Any
-- other column stays as it is written, and a NOTICE says so once in a transaction.
CREATE FUNCTION snowflake_convert.new_tables()
RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan    -- CREATE TABLE must not take long
SET lock_timeout = '100ms'    -- ALTER TABLE may have a weaker lock on the table
AS $$
DECLARE
    -- A parameter that was once set for a transaction is '', and not NULL, afterwards.
    setting text := coalesce(nullif(current_setting('snowflake_convert.schemas', true), ''), 'public');
    told text := current_setting('snowflake_convert.told', true);
    new record;
    sequence regclass;
    reason text;
BEGIN
    IF setting = 'none' THEN	-- set by the user, by a script, or by convert_new()
        RETURN;
    END IF;
    FOR new IN
        SELECT c.oid::regclass AS tab, c.relowner, c.relhassubclass, a.attnum, a.attname,
               bool_or(k.oid IS NOT NULL) AS is_key,
               -- A column of the system has the xmin of its CREATE TABLE for good.
               bool_or(d.command_tag = 'CREATE TABLE' OR m.xmin = pg_current_xact_id()::xid) AS is_made_here,
               -- only for messages: an old xmin may have wrapped around
               bool_or(d.command_tag = 'CREATE TABLE'
                       OR coalesce(least(age(k.xmin), age(f.xmin), CASE WHEN f.oid IS NULL THEN age(a.xmin) END) <= 0, false)) AS is_new
          FROM pg_event_trigger_ddl_commands() AS d
          JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
          JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = ANY (regexp_split_to_array(btrim(setting), '[[:space:]]*,[[:space:]]*'))
          JOIN pg_attribute AS m ON m.attrelid = c.oid AND m.attname = 'xmin'
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                                AND CASE WHEN a.atthasdef OR a.attidentity <> '' OR a.atttypid >= 16384 THEN snowflake_convert.uses_sequence(c.oid, a.attnum) END
          LEFT JOIN pg_attrdef AS f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
          LEFT JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p' AND a.attnum = ANY (k.conkey)
         WHERE d.command_tag IN ('CREATE TABLE', 'ALTER TABLE') AND NOT d.in_extension AND NOT (c.relispartition AND a.attinhcount > 0)
         GROUP BY c.oid, a.attnum, a.attname
         ORDER BY c.oid, a.attnum
    LOOP
        sequence := snowflake_convert.sequence_of(new.tab, new.attnum);
        reason := coalesce(snowflake_convert.new_obstacle(new.tab, new.attnum, new.relowner, sequence, new.is_key, new.relhassubclass, new.is_made_here),
                           snowflake_convert.convert_new(new.tab, new.attnum, new.attname, sequence));
        CONTINUE WHEN reason IS NULL OR NOT new.is_new OR format('%s.%s', new.tab::oid, new.attnum) = ANY (string_to_array(told, ' '));
        told := concat_ws(' ', told, format('%s.%s', new.tab::oid, new.attnum));
        PERFORM set_config('snowflake_convert.told', told, true);
        RAISE NOTICE 'left alone: %.%, %', new.tab, quote_ident(new.attname), reason;
    END LOOP;
END
$$;
COMMENT ON FUNCTION snowflake_convert.new_tables() IS
'for CREATE EVENT TRIGGER ... ON ddl_command_end: makes bigserial and bigint identity primary keys of new tables snowflakes, in the schemas that snowflake_convert.schemas names (public, if it is unset; no schema, if it is "none")';

-- Any role that runs DDL needs these functions, whatever the default privileges are.
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA snowflake_convert TO PUBLIC;

-- The other functions are internal.
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'snowflake_convert'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL LOOP
        EXECUTE format('COMMENT ON FUNCTION %s IS ''internal''', routine);
    END LOOP;
END
$$;
