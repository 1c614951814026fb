/*
 * create_table.c
 *	  Changes serial and identity keys in CREATE TABLE before it runs.
 *
 * The event trigger of convert.c runs after CREATE TABLE.  A change of the
 * key's type then rebuilds the table and its index, and drops the sequence:
 * CREATE TABLE takes twice the time and the locks.  So where an enabled event
 * trigger calls snowflake_convert_new_tables() and the library is preloaded, a
 * ProcessUtility hook changes the statement before it runs: "id serial PRIMARY
 * KEY" is executed as "id bigint DEFAULT snowflake_nextval() PRIMARY KEY".
 *
 * The hook changes only statements that succeed and mean the same after the
 * change.  The hook does not change tables with foreign keys, partitions,
 * inheritors or LIKE, a key that a generated column or a CHECK (other than a
 * bound) names, and statements that name a serial's sequence.  The event
 * trigger converts such tables after CREATE TABLE, and warns of bounds that
 * new keys exceed.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_event_trigger.h"
#include "catalog/pg_language.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "compat.h"
#include "convert.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_type.h"
#include "parser/parser.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

static ProcessUtility_hook_type previous_hook = NULL;

/* Is a function this extension's snowflake_convert_new_tables()? */
static bool
is_convert_new_tables(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		is_found = false;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc row = (Form_pg_proc) GETSTRUCT(tuple);

		if (row->prolang == ClanguageId &&
			strcmp(NameStr(row->proname), "snowflake_convert_new_tables") == 0 &&
			getExtensionOfObject(ProcedureRelationId, function) ==
			get_extension_oid("snowflake", true))
			is_found = true;
		ReleaseSysCache(tuple);
	}
	return is_found;
}

/* Does an event trigger fire for CREATE TABLE?  One without tags does. */
static bool
fires_for_create_table(HeapTuple tuple, TupleDesc descriptor)
{
	bool		is_null;
	Datum		tags = heap_getattr(tuple, Anum_pg_event_trigger_evttags, descriptor, &is_null);
	Datum	   *elements;
	int			count;

	if (is_null)
		return true;
	deconstruct_array(DatumGetArrayTypeP(tags), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		if (pg_strcasecmp(TextDatumGetCString(elements[i]), "CREATE TABLE") == 0)
			return true;
	}
	return false;
}

/*
 * Finds an event trigger that would fire, and returns its function, which is
 * snowflake_convert_new_tables(); InvalidOid if there is none.
 */
static Oid
find_event_trigger_function(void)
{
	Relation	relation;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			function = InvalidOid;

	if (!IsUnderPostmaster || !compat_event_triggers)
		return InvalidOid;
	relation = table_open(EventTriggerRelationId, AccessShareLock);
	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (!OidIsValid(function) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_event_trigger row = (Form_pg_event_trigger) GETSTRUCT(tuple);
		char		skipped = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ?
			TRIGGER_FIRES_ON_ORIGIN : TRIGGER_FIRES_ON_REPLICA;

		if (row->evtenabled != TRIGGER_DISABLED && row->evtenabled != skipped &&
			strcmp(NameStr(row->evtevent), "ddl_command_end") == 0 &&
			is_convert_new_tables(row->evtfoid) &&
			fires_for_create_table(tuple, RelationGetDescr(relation)))
			function = row->evtfoid;
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return function;
}

/*
 * Returns the schema of a table that a statement will create; NULL if there is
 * no such schema, or if the schema is of temporary tables.
 */
static const char *
schema_of(const RangeVar *relation)
{
	Oid			schema = InvalidOid;

	if (relation->schemaname)
		schema = LookupNamespaceNoError(relation->schemaname);
	else
	{
		List	   *path = fetch_search_path(false);

		if (path != NIL)
			schema = linitial_oid(path);
	}
	return !OidIsValid(schema) || isAnyTempNamespace(schema) ? NULL : get_namespace_name(schema);
}

/* Is a name one of "count" names? */
static bool
is_one_of(const char *name, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

/* Is an expression a bound, such as "column > 0", which fits bigint, too? */
static bool
is_bound(Node *expression)
{
	static const char *const operators[] = {"<", "<=", "=", ">=", ">", "<>"};
	A_Expr	   *comparison = (A_Expr *) expression;

	if (!IsA(expression, A_Expr) || comparison->kind != AEXPR_OP ||
		list_length(comparison->name) != 1 ||
		comparison->lexpr == NULL || !IsA(comparison->lexpr, ColumnRef) ||
		!IsA(comparison->rexpr, A_Const) ||
		((A_Const *) comparison->rexpr)->isnull ||
		!IsA(&((A_Const *) comparison->rexpr)->val, Integer))
		return false;
	return is_one_of(strVal(linitial(comparison->name)), operators,
					 lengthof(operators));
}

/*
 * Does an expression name a column, other than in a bound?  "column" may be
 * the table's name, too, which stands for the whole row.
 */
static bool
names_column(Node *expression, void *column)
{
	if (expression == NULL || is_bound(expression))
		return false;
	if (IsA(expression, ColumnRef))
	{
		Node	   *last = llast(((ColumnRef *) expression)->fields);

		/* Assume that "table.*" names the column. */
		return !IsA(last, String) || strcmp(strVal(last), column) == 0;
	}
	return raw_expression_tree_walker(expression, names_column, column);
}

/*
 * Does an expression name a serial's sequence, as in nextval('t_id_seq')?
 * Such a name always contains "_seq".  The changed statement would create no
 * sequence, and the parser would not find the name.
 */
static bool
names_sequence(Node *expression, void *unused)
{
	if (expression == NULL)
		return false;
	if (IsA(expression, A_Const))
	{
		const A_Const *constant = (const A_Const *) expression;

		if (!constant->isnull && IsA(&constant->val, String))
		{
			for (const char *at = strVal(&constant->val); *at != '\0'; at++)
			{
				if (pg_strncasecmp(at, "_seq", 4) == 0)
					return true;
			}
		}
		return false;
	}
	return raw_expression_tree_walker(expression, names_sequence, unused);
}

/*
 * Returns the columns of the primary key, and collects the statement's
 * expressions.  Returns NIL if there is no primary key, or if the statement
 * has a part that the hook does not handle.
 */
static List *
primary_key_columns(const CreateStmt *statement, List **expressions)
{
	List	   *columns = NIL;
	ListCell   *cell;

	if (statement->relation->relpersistence == RELPERSISTENCE_TEMP ||
		statement->inhRelations != NIL || statement->partbound != NULL ||
		statement->partspec != NULL || statement->ofTypename != NULL ||
		statement->constraints != NIL)
		return NIL;
	foreach(cell, statement->tableElts)
	{
		Node	   *element = lfirst(cell);

		if (IsA(element, Constraint))
		{
			Constraint *constraint = (Constraint *) element;

			if (constraint->contype == CONSTR_PRIMARY)
			{
				ListCell   *key;

				foreach(key, constraint->keys)
					columns = lappend(columns, strVal(lfirst(key)));
			}
			else if (constraint->contype == CONSTR_CHECK)
				*expressions = lappend(*expressions, constraint->raw_expr);
			else if (constraint->contype != CONSTR_UNIQUE)
				return NIL;
		}
		else if (IsA(element, ColumnDef))
		{
			ColumnDef  *column = (ColumnDef *) element;
			ListCell   *inner;

			foreach(inner, column->constraints)
			{
				Constraint *constraint = lfirst(inner);

				switch (constraint->contype)
				{
					case CONSTR_PRIMARY:
						columns = lappend(columns, column->colname);
						break;
					case CONSTR_CHECK:
					case CONSTR_GENERATED:
					case CONSTR_DEFAULT:
						*expressions = lappend(*expressions, constraint->raw_expr);
						break;
					case CONSTR_NULL:
					case CONSTR_NOTNULL:
					case CONSTR_UNIQUE:
					case CONSTR_IDENTITY:
						break;
					default:
						return NIL;
				}
			}
		}
		else
			return NIL;			/* LIKE */
	}
	return columns;
}

/* Is a type's name one of serial's names, which have no schema? */
static bool
is_serial(const TypeName *type)
{
	static const char *const names[] = {
		"smallserial", "serial2", "serial", "serial4", "bigserial", "serial8"
	};

	if (list_length(type->names) != 1 || type->pct_type || type->setof ||
		type->arrayBounds != NIL || type->typmods != NIL)
		return false;
	return is_one_of(strVal(linitial(type->names)), names, lengthof(names));
}

/* Is a type an integer, as an identity column's type must be? */
static bool
is_integer(const TypeName *type)
{
	Oid			oid;

	if (type->pct_type || type->setof || type->arrayBounds != NIL || type->typmods != NIL)
		return false;
	oid = LookupTypeNameOid(NULL, type, true);
	return oid == INT2OID || oid == INT4OID || oid == INT8OID;
}

/* Makes a serial or identity column a snowflake; ignores other columns. */
static void
change_column(ColumnDef *column, char *own_schema)
{
	List	   *others = NIL;
	bool		is_identity = false;
	Constraint *constraint;
	ListCell   *cell;

	if (column->collClause != NULL || column->fdwoptions != NIL || column->compression != NULL)
		return;
	foreach(cell, column->constraints)
	{
		constraint = lfirst(cell);
		if (constraint->contype == CONSTR_DEFAULT || constraint->contype == CONSTR_NULL ||
			(constraint->contype == CONSTR_IDENTITY && is_identity))
			return;				/* no serial column, or PostgreSQL refuses it */
		if (constraint->contype == CONSTR_IDENTITY)
			is_identity = true;
		else
			others = lappend(others, constraint);
	}
	if (is_serial(column->typeName) == is_identity ||
		(is_identity && !is_integer(column->typeName)))
		return;

	constraint = makeNode(Constraint);
	constraint->contype = CONSTR_DEFAULT;
	constraint->location = -1;
	constraint->raw_expr = (Node *)
		makeFuncCall(list_make2(makeString(own_schema), makeString("snowflake_nextval")),
					 NIL, COERCE_EXPLICIT_CALL, -1);
	column->constraints = lappend(others, constraint);
	column->typeName = SystemTypeName("int8");
}

/* Makes the keys of a statement snowflakes, as the event trigger would. */
static void
change_statement(CreateStmt *statement)
{
	List	   *expressions = NIL;
	List	   *primary = primary_key_columns(statement, &expressions);
	Oid			function;
	Oid			nextval;
	Oid			own_schema;
	char	   *own_schema_name;
	const char *schema;
	ListCell   *cell;

	if (primary == NIL || creating_extension || convert_is_running())
		return;
	function = find_event_trigger_function();
	if (!OidIsValid(function))
		return;
	if (names_sequence((Node *) expressions, NULL))
		return;
	schema = schema_of(statement->relation);
	if (schema == NULL || !convert_wants_schema(schema))
		return;

	/* convert.c warns a role that may not call snowflake_nextval(). */
	own_schema = get_func_namespace(function);
	own_schema_name = get_namespace_name(own_schema);
	nextval = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
							  CStringGetDatum("snowflake_nextval"),
							  PointerGetDatum(buildoidvector(NULL, 0)),
							  ObjectIdGetDatum(own_schema));
	if (!OidIsValid(nextval) ||
		object_aclcheck(NamespaceRelationId, own_schema, GetUserId(), ACL_USAGE) != ACLCHECK_OK ||
		object_aclcheck(ProcedureRelationId, nextval, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK)
		return;

	foreach(cell, statement->tableElts)
	{
		ColumnDef  *column = lfirst(cell);
		ListCell   *key;

		if (!IsA(column, ColumnDef) || column->typeName == NULL)
			continue;
		foreach(key, primary)
		{
			if (strcmp(lfirst(key), column->colname) == 0)
			{
				/* An expression may accept an integer and not a bigint. */
				if (!names_column((Node *) expressions, column->colname) &&
					!names_column((Node *) expressions, statement->relation->relname))
					change_column(column, own_schema_name);
				break;
			}
		}
	}
}

static void
process_utility(PlannedStmt *statement, const char *query, bool is_read_only,
				ProcessUtilityContext context, ParamListInfo parameters,
				QueryEnvironment *environment, DestReceiver *destination,
				QueryCompletion *completion)
{
	/* The event trigger converts the tables of a CREATE SCHEMA. */
	if (IsA(statement->utilityStmt, CreateStmt) && context != PROCESS_UTILITY_SUBCOMMAND)
	{
		if (is_read_only)
		{
			statement = copyObject(statement);
			is_read_only = false;
		}
		change_statement((CreateStmt *) statement->utilityStmt);
	}

	if (previous_hook)
		previous_hook(statement, query, is_read_only, context, parameters,
					  environment, destination, completion);
	else
		standard_ProcessUtility(statement, query, is_read_only, context, parameters,
								environment, destination, completion);
}

void
create_table_install_hook(void)
{
	static bool is_installed = false;

	/* The postmaster calls this function again after a backend's crash. */
	if (is_installed)
		return;
	is_installed = true;
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
