/*
 * convert_schema.c
 *	  Turns all keys of some schemas into snowflakes, in one transaction.
 *
 * This file finds the keys, drops the views, rules and triggers that name the
 * keys, and puts them back.  convert.c does the conversion itself, of several
 * columns at once: the columns of a table are in one ALTER TABLE, so each
 * table is rewritten once.  The head of convert.c says what keys and
 * snowflakes are.
 *
 * - Keys that foreign keys connect are one group, which is converted as a whole
 *	 or not at all.  A group with an obstacle is not converted; a WARNING says
 *	 so.
 * - A view is dropped and created again as its owner, in a security-restricted
 *	 operation.  The new view could mean something else: a table's owner may
 *	 have renamed schemas meanwhile, and for an argument that has become bigint
 *	 PostgreSQL may select another function of the same name.  So the
 *	 conversion fails if a view depends on an object that it did not depend on
 *	 before.  The check comes before materialised views are filled, because
 *	 filling runs their queries.
 * - A dry run returns a script, whose comments describe the keys.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "compat.h"
#include "convert.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_convert_schema);

/* The keys of some schemas, and the statements that convert them. */
typedef struct SchemaPlan
{
	Conversion	all;			/* every key that is not converted yet */
	int		   *groups;			/* of each key: the first key of its group */
	List	  **obstacles;		/* of each group, indexed by its first key */
	Conversion	conversion;		/* the keys without obstacles */
	List	   *left_alone;		/* descriptions of keys without a sequence */
	List	   *before;			/* statements that drop views, rules and
								 * triggers */
	List	   *statements;		/* statements that convert */
	List	   *after;			/* statements that put views, rules and
								 * triggers back */
	List	   *filling;		/* statements that fill materialised views */
} SchemaPlan;

/* The objects that a view, or a table's rules and triggers, depended on. */
typedef struct Dependencies
{
	Oid			schema;
	char	   *name;
	Datum		objects;		/* text[] */
} Dependencies;

/* Raises ERROR 3F000 for an unknown schema, and 22004 for a NULL. */
static void
refuse_unknown_schemas(ArrayType *schemas)
{
	Datum	   *names;
	bool	   *nulls;
	int			count;

	deconstruct_array(schemas, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &names, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("name of a schema must not be null")));
		if (!SearchSysCacheExists1(NAMESPACENAME, names[i]))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_SCHEMA),
					 errmsg("schema \"%s\" does not exist", NameStr(*DatumGetName(names[i])))));
	}
}

/* Makes room for the keys of a conversion. */
static void
reserve_keys(Conversion *conversion, uint64 count)
{
	conversion->count = 0;
	conversion->tables = palloc0(sizeof(Oid) * (count + 1));
	conversion->columns = palloc0(sizeof(NameData) * (count + 1));
}

static void
add_key(Conversion *conversion, Oid table, const NameData *column)
{
	conversion->tables[conversion->count] = table;
	conversion->columns[conversion->count] = *column;
	conversion->count++;
}

/* Finds the keys to convert, and the keys whose values no sequence makes. */
static void
find_keys(SchemaPlan *plan, ArrayType *schemas)
{
	Oid			types[] = {NAMEARRAYOID};
	Datum		values[] = {PointerGetDatum(schemas)};
	const char *own_schema = quote_identifier(get_namespace_name(plan->all.own_schema));

	if (SPI_execute_with_args(psprintf("SELECT tab, attname, is_left_alone"
									   "  FROM %s.snowflake_convert_keys($1)", own_schema),
							  1, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for keys");
	reserve_keys(&plan->all, SPI_processed);
	plan->left_alone = NIL;
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Oid			table = convert_oid_at(i, "tab");
		bool		is_null;
		Name		column = DatumGetName(convert_value_at(i, "attname", &is_null));

		if (DatumGetBool(convert_value_at(i, "is_left_alone", &is_null)))
			plan->left_alone =
				lappend(plan->left_alone,
						psprintf("left alone: %s (%s): no sequence makes its values; %s.snowflake_convert(%s, %s) converts it",
								 convert_table_name(table), quote_identifier(NameStr(*column)), own_schema,
								 quote_literal_cstr(convert_table_name(table)),
								 quote_literal_cstr(NameStr(*column))));
		else
			add_key(&plan->all, table, column);
	}
}

/* Returns the first key of a key's group. */
static int
group_of(const int *groups, int key)
{
	while (groups[key] != key)
		key = groups[key];
	return key;
}

/* Finds the groups: keys that the same column references are in one group. */
static void
find_groups(SchemaPlan *plan)
{
	uint64		count;

	plan->groups = palloc(sizeof(int) * (plan->all.count + 1));
	for (int i = 0; i < plan->all.count; i++)
		plan->groups[i] = i;

	count = convert_query(&plan->all, "SELECT keys FROM %s.snowflake_convert_columns($1, $2)"
						  " WHERE cardinality(keys) > 1");
	for (uint64 row = 0; row < count; row++)
	{
		bool		is_null;
		ArrayType  *array = DatumGetArrayTypeP(convert_value_at(row, "keys", &is_null));
		int			keys = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

		for (int i = 1; i < keys; i++)
		{
			/* snowflake_convert_columns() counts the keys from 1. */
			int			one = group_of(plan->groups, ((int32 *) ARR_DATA_PTR(array))[0] - 1);
			int			other = group_of(plan->groups, ((int32 *) ARR_DATA_PTR(array))[i] - 1);

			plan->groups[Max(one, other)] = Min(one, other);
		}
	}
	for (int i = 0; i < plan->all.count; i++)
		plan->groups[i] = group_of(plan->groups, i);
}

/* Adds the keys of the group whose first key is "first". */
static void
add_group(Conversion *conversion, const SchemaPlan *plan, int first)
{
	for (int i = first; i < plan->all.count; i++)
	{
		if (plan->groups[i] == first)
			add_key(conversion, plan->all.tables[i], &plan->all.columns[i]);
	}
}

/* Returns the keys of a group as a conversion of their own. */
static Conversion
conversion_of_group(const SchemaPlan *plan, int first)
{
	Conversion	group = plan->all;

	reserve_keys(&group, plan->all.count);
	add_group(&group, plan, first);
	return group;
}

/* Lists all obstacles to a conversion. */
static List *
obstacles_of(const Conversion *conversion)
{
	List	   *obstacles = convert_obstacles(conversion);
	List	   *tables = NIL;
	Oid			distributed;
	uint64		count = convert_query(conversion,
									  "SELECT description FROM %s.snowflake_convert_put_back_obstacles($1, $2)");

	for (uint64 i = 0; i < count; i++)
		obstacles = lappend(obstacles, convert_text_at(i, "description"));

	count = convert_query(conversion, "SELECT DISTINCT tab FROM %s.snowflake_convert_columns($1, $2)");
	for (uint64 i = 0; i < count; i++)
		tables = lappend_oid(tables, convert_oid_at(i, "tab"));
	distributed = convert_find_distributed(tables);
	if (OidIsValid(distributed))
		obstacles = lappend(obstacles, psprintf("table %s is distributed by Citus: convert before the table is distributed",
												convert_table_name(distributed)));
	return obstacles;
}

/*
 * Finds the obstacles of some groups, named by their first keys.  A query
 * about many groups takes little more time than a query about one group.  So
 * the function looks for obstacles of all groups at once.  If there are any,
 * it calls itself for each half of the groups, until it knows the obstacles of
 * each group.
 */
static void
find_obstacles(SchemaPlan *plan, const int *firsts, int count)
{
	Conversion	groups = plan->all;
	List	   *obstacles;

	CHECK_FOR_INTERRUPTS();
	reserve_keys(&groups, plan->all.count);
	for (int i = 0; i < count; i++)
		add_group(&groups, plan, firsts[i]);
	obstacles = obstacles_of(&groups);
	if (obstacles == NIL)
		return;
	if (count == 1)
		plan->obstacles[firsts[0]] = obstacles;
	else
	{
		find_obstacles(plan, firsts, count / 2);
		find_obstacles(plan, firsts + count / 2, count - count / 2);
	}
}

/* Chooses the keys of the groups without obstacles. */
static void
choose_keys(SchemaPlan *plan)
{
	int		   *firsts = palloc(sizeof(int) * (plan->all.count + 1));
	int			count = 0;

	plan->obstacles = palloc0(sizeof(List *) * (plan->all.count + 1));
	for (int i = 0; i < plan->all.count; i++)
	{
		if (plan->groups[i] == i)
			firsts[count++] = i;
	}
	if (count > 0)
		find_obstacles(plan, firsts, count);

	plan->conversion = plan->all;
	reserve_keys(&plan->conversion, plan->all.count);
	for (int i = 0; i < plan->all.count; i++)
	{
		if (plan->obstacles[plan->groups[i]] == NIL)
			add_key(&plan->conversion, plan->all.tables[i], &plan->all.columns[i]);
	}
}

/*
 * Lists the statements that drop views, rules and triggers, and the statements
 * that put them back.
 */
static void
find_put_back(SchemaPlan *plan)
{
	uint64		count = convert_query(&plan->conversion,
									  "SELECT step, tab, owner, statement"
									  "  FROM %s.snowflake_convert_put_back($1, $2)");

	for (uint64 i = 0; i < count; i++)
	{
		Statement  *statement = palloc0(sizeof(Statement));
		bool		is_null;
		int			step = DatumGetInt32(convert_value_at(i, "step", &is_null));

		statement->table = convert_oid_at(i, "tab");
		statement->table_name = convert_table_name(statement->table);
		statement->schema = get_rel_namespace(statement->table);
		statement->owner = convert_oid_at(i, "owner");
		statement->text = convert_text_at(i, "statement");
		if (step < 0)
			plan->before = lappend(plan->before, statement);
		else if (step < 2)
			plan->after = lappend(plan->after, statement);
		else
			plan->filling = lappend(plan->filling, statement);
	}
}

/*
 * Finds the keys and the statements that convert them.  The caller finds the
 * views later: pg_get_viewdef() locks the tables of a view, and a session that
 * holds these locks can no longer lock all tables in order.
 */
static void
make_plan(SchemaPlan *plan, ArrayType *schemas)
{
	plan->statements = NIL;
	find_keys(plan, schemas);
	find_groups(plan);
	choose_keys(plan);
	if (plan->conversion.count == 0)
		return;
	plan->statements = convert_statements(&plan->conversion);
}

/* Lists the objects that the views, rules and triggers depend on. */
static List *
read_dependencies(const SchemaPlan *plan)
{
	List	   *noted = NIL;
	List	   *dependencies = NIL;
	ListCell   *cell;

	foreach(cell, plan->after)
	{
		Statement  *statement = lfirst(cell);
		Dependencies *one;
		bool		is_null;

		if (list_member_oid(noted, statement->table))
			continue;
		noted = lappend_oid(noted, statement->table);
		one = palloc(sizeof(Dependencies));
		one->schema = statement->schema;
		one->name = get_rel_name(statement->table);
		if (SPI_execute(psprintf("SELECT COALESCE(pg_catalog.array_agg(classid || ' ' || objid), '{}') AS objects"
								 "  FROM %s.snowflake_convert_bound(%u::pg_catalog.regclass)",
								 quote_identifier(get_namespace_name(plan->all.own_schema)), statement->table),
						false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not read the dependencies of \"%s\"", one->name);
		one->objects = convert_value_at(0, "objects", &is_null);
		dependencies = lappend(dependencies, one);
	}
	return dependencies;
}

/*
 * Raises ERROR 55000 if a view, rule or trigger that was put back depends on
 * an object that it did not depend on before.  The views that were put back,
 * and their row types, have new OIDs and do not count.
 */
static void
refuse_new_dependencies(const SchemaPlan *plan, List *dependencies)
{
	Datum	   *relations = palloc(sizeof(Datum) * (list_length(dependencies) + 1));
	Oid			types[] = {OIDOID, TEXTARRAYOID, OIDARRAYOID};
	Datum		values[3];
	ListCell   *cell;
	int			count = 0;
	char	   *query;

	foreach(cell, dependencies)
	{
		Dependencies *one = lfirst(cell);

		relations[count++] = ObjectIdGetDatum(get_relname_relid(one->name, one->schema));
	}
	values[2] = PointerGetDatum(construct_array(relations, count, OIDOID, sizeof(Oid), true,
												TYPALIGN_INT));
	query = psprintf("SELECT pg_describe_object(b.classid, b.objid, 0) AS description"
					 "  FROM %s.snowflake_convert_bound($1::regclass) AS b"
					 " WHERE b.classid || ' ' || b.objid <> ALL ($2)"
					 "   AND NOT (b.classid = 'pg_class'::regclass AND b.objid = ANY ($3))"
					 "   AND NOT (b.classid = 'pg_type'::regclass AND EXISTS ("
					 "           SELECT FROM pg_type AS t LEFT JOIN pg_type AS e ON e.oid = t.typelem"
					 "            WHERE t.oid = b.objid AND (t.typrelid = ANY ($3) OR e.typrelid = ANY ($3))))"
					 " ORDER BY 1", quote_identifier(get_namespace_name(plan->all.own_schema)));
	for (int i = 0; i < count; i++)
	{
		Dependencies *one = list_nth(dependencies, i);

		values[0] = relations[i];
		values[1] = one->objects;
		if (SPI_execute_with_args(query, lengthof(types), types, values, NULL, false, 1) != SPI_OK_SELECT)
			elog(ERROR, "could not read the dependencies of \"%s\"", one->name);
		if (SPI_processed > 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("\"%s\" cannot be put back as it was",
							quote_qualified_identifier(get_namespace_name(one->schema), one->name)),
					 errdetail("The new definition would use %s, which the present definition does not use.",
							   convert_text_at(0, "description")),
					 errhint("In one transaction, drop the object, convert, and create the object as it should be.")));
	}
}

/*
 * Executes statements that drop objects or put objects back.  Raises ERROR
 * 55000 if a name no longer means the same object: earlier statements may have
 * run code of an owner, and this code may have renamed a schema.
 */
static void
execute_put_back(const SchemaPlan *plan, List *statements)
{
	ListCell   *cell;

	foreach(cell, statements)
	{
		Statement  *statement = lfirst(cell);
		const char *schema = get_namespace_name(statement->schema);
		const char *name = get_rel_name(statement->table);	/* NULL: dropped */

		if (schema == NULL ||
			strncmp(statement->table_name, quote_identifier(schema),
					strlen(quote_identifier(schema))) != 0 ||
			statement->table_name[strlen(quote_identifier(schema))] != '.' ||
			(name && strcmp(convert_table_name(statement->table), statement->table_name) != 0))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a schema or table was renamed while %s was converted",
							convert_subject(&plan->conversion)),
					 errdetail("The next statement is: %s", statement->text)));
		convert_execute_as(statement->owner, statement->text);
	}
}

/* Warns of the groups that are not converted. */
static void
warn_of_groups(const SchemaPlan *plan)
{
	for (int first = 0; first < plan->all.count; first++)
	{
		StringInfoData text;
		Conversion	group;
		ListCell   *cell;

		if (plan->obstacles[first] == NIL)
			continue;
		group = conversion_of_group(plan, first);
		initStringInfo(&text);
		foreach(cell, plan->obstacles[first])
		{
			appendStringInfo(&text, "\n%s", (char *) lfirst(cell));
		}
		ereport(WARNING,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("%s is not converted", convert_subject(&group)),
				 errdetail("In the way:%s", text.data),
				 errhint("In one transaction, drop what is in the way, convert, and create it again. "
						 "A partition key, a domain and a row type cannot be changed in this way.")));
	}
}

/* Adds a comment to a script.  Each line of the text becomes a comment. */
static List *
add_comment(List *lines, const char *format, const char *text)
{
	StringInfoData line;

	initStringInfo(&line);
	appendStringInfo(&line, "-- ");
	for (const char *at = psprintf(format, text); *at != '\0'; at++)
	{
		appendStringInfoChar(&line, *at);
		if (*at == '\n' || *at == '\r')
			appendStringInfoString(&line, "--     ");
	}
	return lappend(lines, line.data);
}

/* Adds, as comments, what a user can do about a group's obstacles by hand. */
static List *
add_by_hand(List *lines, const SchemaPlan *plan, int first)
{
	Conversion	group = conversion_of_group(plan, first);
	uint64		count = convert_query(&group, "SELECT is_before, statement"
									  "  FROM %s.snowflake_convert_by_hand($1, $2)");

	for (uint64 i = 0; i < count; i++)
	{
		bool		is_null;

		lines = add_comment(lines, DatumGetBool(convert_value_at(i, "is_before", &is_null)) ?
							"    by hand, before: %s" : "    by hand, after: %s",
							convert_text_at(i, "statement"));
	}
	return lines;
}

/* Describes the keys, as comments. */
static List *
describe(const SchemaPlan *plan)
{
	List	   *lines = NIL;
	List	   *descriptions = NIL;
	uint64		count = convert_query(&plan->all, "SELECT description FROM %s.snowflake_convert_describe($1, $2)"
									  " ORDER BY key");
	ListCell   *cell;

	for (uint64 i = 0; i < count; i++)
		descriptions = lappend(descriptions, convert_text_at(i, "description"));
	for (int i = 0; i < list_length(descriptions); i++)
	{
		int			first = plan->groups[i];

		lines = add_comment(lines, "%s", list_nth(descriptions, i));
		if (plan->obstacles[first] != NIL && i != first)
			lines = add_comment(lines, "    in the way: the same as for table %s",
								convert_table_name(plan->all.tables[first]));
		else
		{
			foreach(cell, plan->obstacles[first])
			{
				lines = add_comment(lines, "    in the way: %s", lfirst(cell));
			}
			if (plan->obstacles[first] != NIL)
				lines = add_by_hand(lines, plan, first);
		}
	}
	foreach(cell, plan->left_alone)
	{
		lines = add_comment(lines, "%s", lfirst(cell));
	}
	return lines;
}

/*
 * Converts the keys of schemas.  Returns the statements; a dry run returns
 * comments that describe the keys, too.
 */
static List *
convert_schema(Oid own_schema, ArrayType *schemas, bool is_dry_run)
{
	SchemaPlan	plan = {.all = {.own_schema = own_schema, .is_dry_run = is_dry_run, .puts_back = true}};
	List	   *lines = NIL;
	List	   *locked = NIL;
	List	   *statements;
	ListCell   *cell;

	/* As convert() does, plan again until the locks cover all tables. */
	for (;;)
	{
		List	   *tables;

		make_plan(&plan, schemas);
		if (is_dry_run || plan.conversion.count == 0)
			break;
		convert_refuse_isolation(&plan.conversion);
		tables = convert_tables(&plan.conversion);
		if (list_difference_oid(tables, locked) == NIL)
			break;
		foreach(cell, tables)
		{
			LockRelationOid(lfirst_oid(cell), AccessExclusiveLock);
		}
		locked = list_union_oid(locked, tables);
	}

	if (plan.conversion.count > 0)
		find_put_back(&plan);
	if (is_dry_run)
		lines = describe(&plan);
	else
		warn_of_groups(&plan);
	for (int i = 0; i < plan.conversion.count; i++)
	{
		Conversion	one = plan.conversion;

		one.count = 1;
		one.tables += i;
		one.columns += i;
		convert_warn(&one);
	}
	if (!is_dry_run)
	{
		List	   *dependencies = read_dependencies(&plan);

		execute_put_back(&plan, plan.before);
		convert_execute(&plan.conversion, plan.statements);
		execute_put_back(&plan, plan.after);
		refuse_new_dependencies(&plan, dependencies);
		execute_put_back(&plan, plan.filling);
	}

	statements = list_concat(list_concat(list_concat(plan.before, plan.statements), plan.after),
							 plan.filling);
	foreach(cell, statements)
	{
		lines = lappend(lines, ((Statement *) lfirst(cell))->text);
	}
	return lines;
}

/*
 * snowflake_convert_schema(schemas name[], dry_run boolean) -> setof text
 *		Converts all keys of some schemas whose values sequences make.  Returns
 *		the statements.
 */
Datum
snowflake_convert_schema(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *schemas = PG_GETARG_ARRAYTYPE_P(0);
	List	   *lines;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	SPI_connect();
	refuse_unknown_schemas(schemas);

	/* Convert first: a LIMIT on the rows must not stop the conversion. */
	lines = convert_schema(get_func_namespace(fcinfo->flinfo->fn_oid), schemas, PG_GETARG_BOOL(1));
	foreach(cell, lines)
	{
		Datum		value = CStringGetTextDatum((char *) lfirst(cell));
		bool		is_null = false;

		tuplestore_putvalues(result->setResult, result->setDesc, &value, &is_null);
	}
	SPI_finish();
	return (Datum) 0;
}
