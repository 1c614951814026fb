/*
 * convert.c
 *	  Turns key columns of existing and of new tables into snowflakes.
 *
 * A snowflake is a bigint column whose DEFAULT calls snowflake_nextval().  A
 * key is a column of a primary key, a column that foreign keys reference, or
 * another column that snowflake_convert() is called for.
 *
 * SQL functions of the extension's script read the catalogue.  They return the
 * statements that convert a column, as snowflake_convert_statements() does,
 * and the obstacles to a conversion.  This file executes the statements.  It
 * is written in C because ALTER TABLE and queries run code of a table's owner,
 * such as CHECKs, index predicates and triggers, and only C can switch to the
 * owner safely.
 *
 * - A statement runs as the owner of the table that it changes.  If the owner
 *	 is not the caller, the statement is a security-restricted operation, like
 *	 VACUUM and REINDEX.  Only a statement that needs a superuser runs as the
 *	 caller.  No code of an owner runs with the rights of another role.  A
 *	 conversion adds a foreign key between tables of two owners only if
 *	 PostgreSQL's check of that key runs no code of the other owner.
 * - To find whether a table has rows, and which key is the largest, this file
 *	 reads the table or its index directly.  A query would not do, because the
 *	 planner evaluates the owner's index predicates and CHECKs.
 * - The event trigger runs at the end of every DDL statement, so it does
 *	 little.  Only one query runs every time; it lists the tables that the
 *	 statement has created or altered.  The event trigger finds their keys by
 *	 scans of indexes of the catalogue, without planning another query.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "commands/event_trigger.h"
#include "compat.h"
#include "convert.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_convert);
PG_FUNCTION_INFO_V1(snowflake_convert_new_tables);

/*
 * True while a statement of a conversion runs.  An ALTER TABLE of a conversion
 * fires the event trigger, which then does nothing.
 */
static bool is_converting = false;

/* Returns the quoted name of the extension's schema. */
static const char *
own_schema_name(Oid own_schema)
{
	return quote_identifier(get_namespace_name(own_schema));
}

char *
convert_table_name(Oid table)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
									  get_rel_name(table));
}

/*
 * Returns a table's name for messages, qualified unless search_path finds the
 * table.
 */
char *
convert_shown_name(Oid table)
{
	return DatumGetCString(DirectFunctionCall1(regclassout,
											   ObjectIdGetDatum(table)));
}

/* Returns the text by which messages name the columns of a conversion. */
char *
convert_subject(const Conversion *conversion)
{
	char	   *first = psprintf("column \"%s\" of table \"%s\"",
								 NameStr(conversion->columns[0]),
								 convert_shown_name(conversion->tables[0]));

	if (conversion->count == 1)
		return first;
	return psprintf("%s (and %d more)", first, conversion->count - 1);
}

static Oid
owner_of(Oid table)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", table)));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Runs a statement as an owner.  If the owner is not the caller, the statement
 * runs as a security-restricted operation: the owner's code cannot leave code
 * in the session that would later run with the caller's rights.  After such a
 * statement the function also restores the settings.
 */
void
convert_execute_as(Oid owner, const char *statement)
{
	Oid			caller;
	int			security_context;
	bool		is_others;
	bool		was_converting = is_converting;
	int			nest_level = 0;

	GetUserIdAndSecContext(&caller, &security_context);
	is_others = owner != caller;
	if (is_others)
	{
		SetUserIdAndSecContext(owner, security_context | SECURITY_RESTRICTED_OPERATION);
		nest_level = NewGUCNestLevel();
	}
	is_converting = true;
	PG_TRY();
	{
		if (SPI_execute(statement, false, 0) < 0)
			elog(ERROR, "could not execute: %s", statement);
	}
	PG_FINALLY();
	{
		is_converting = was_converting;
	}
	PG_END_TRY();
	if (is_others)
	{
		AtEOXact_GUC(false, nest_level);
		SetUserIdAndSecContext(caller, security_context);
	}
}

static void
execute_as_owner(Oid table, const char *statement)
{
	convert_execute_as(owner_of(table), statement);
}

/*
 * Calls a function in a subtransaction.  If the function raises an error,
 * rolls back the function's effects and returns the error; else returns NULL.
 */
static ErrorData *
call_in_subtransaction(void (*function) (void *), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		function(argument);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	/* A cancel must end the user's statement, not only the subtransaction. */
	if (error && (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
				  error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN))
		ReThrowError(error);
	return error;
}

/* Returns an error's message and detail, for the DETAIL of a warning. */
static char *
error_text(const ErrorData *error)
{
	if (error->detail == NULL)
		return error->message;
	return psprintf("%s\n%s", error->message, error->detail);
}

/*
 * Locks a table, its partitions and its inheritors for reading, and returns a
 * list of them.  find_all_inheritors() does not lock the table itself.
 */
static List *
lock_inheritors(Oid table)
{
	LockRelationOid(table, AccessShareLock);
	return find_all_inheritors(table, AccessShareLock, NULL);
}

/* Is there a row in a table or in one of its partitions and inheritors? */
static bool
has_rows(Oid table)
{
	List	   *tables = lock_inheritors(table);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		is_found = false;
	ListCell   *cell;

	foreach(cell, tables)
	{
		Relation	relation = table_open(lfirst_oid(cell), NoLock);

		/* Assume that a foreign table has rows, without asking its server. */
		if (relation->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			is_found = true;
		else if (relation->rd_rel->relkind == RELKIND_RELATION &&
				 RelationGetNumberOfBlocks(relation) > 0)
		{
			TupleTableSlot *slot = table_slot_create(relation, NULL);
			TableScanDesc scan = table_beginscan(relation, snapshot, 0, NULL, 0);

			if (table_scan_getnextslot(scan, ForwardScanDirection, slot))
				is_found = true;
			table_endscan(scan);
			ExecDropSingleTupleTableSlot(slot);
		}
		table_close(relation, NoLock);
		if (is_found)
			break;
	}
	UnregisterSnapshot(snapshot);
	return is_found;
}

/*
 * Reads the largest value of a bigint column from an index, and raises
 * *largest to that value.  Returns false if the index cannot show the value,
 * because the index does not begin with the column in bigint's order, is not
 * valid, or does not contain all rows.
 */
static bool
largest_of_index(Relation relation, AttrNumber attnum, Oid index_id,
				 Snapshot snapshot, int64 *largest)
{
	Relation	index = index_open(index_id, AccessShareLock);
	bool		is_usable = false;

	if (index->rd_rel->relam == BTREE_AM_OID &&
		index->rd_index->indisvalid &&
		index->rd_index->indkey.values[0] == attnum &&
		index->rd_opfamily[0] == INTEGER_BTREE_FAM_OID &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
	{
		bool		is_descending = (index->rd_indoption[0] & INDOPTION_DESC) != 0;
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		is_usable = true;
		ScanKeyEntryInitialize(&key, SK_ISNULL | SK_SEARCHNOTNULL, attnum,
							   InvalidStrategy, InvalidOid, InvalidOid,
							   InvalidOid, (Datum) 0);
		scan = systable_beginscan_ordered(relation, index, snapshot, 1, &key);
		tuple = systable_getnext_ordered(scan, is_descending ? ForwardScanDirection :
										 BackwardScanDirection);
		if (HeapTupleIsValid(tuple))
		{
			bool		is_null;
			Datum		value = heap_getattr(tuple, attnum, RelationGetDescr(relation),
											 &is_null);

			*largest = Max(*largest, DatumGetInt64(value));
		}
		systable_endscan_ordered(scan);
	}
	index_close(index, AccessShareLock);
	return is_usable;
}

/*
 * Returns the largest key in a table, its partitions and inheritors.  Skips
 * tables without a suitable index, columns that are not bigint, and foreign
 * tables.  Returns PG_INT64_MIN if there is no key in the other tables.
 */
static int64
largest_key(Oid table, const char *column)
{
	int64		largest = PG_INT64_MIN;
	List	   *tables = lock_inheritors(table);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ListCell   *cell;

	foreach(cell, tables)
	{
		Relation	relation = table_open(lfirst_oid(cell), NoLock);
		AttrNumber	attnum = get_attnum(RelationGetRelid(relation), column);

		if (relation->rd_rel->relkind == RELKIND_RELATION &&
			!RELATION_IS_OTHER_TEMP(relation) &&
			get_atttype(RelationGetRelid(relation), attnum) == INT8OID)
		{
			ListCell   *index;

			foreach(index, RelationGetIndexList(relation))
			{
				if (largest_of_index(relation, attnum, lfirst_oid(index), snapshot,
									 &largest))
					break;
			}
		}
		table_close(relation, NoLock);
	}
	UnregisterSnapshot(snapshot);
	return largest;
}

/*
 * Runs a query about a conversion's columns.  In the query, %s stands for the
 * extension's schema, $1 for the tables and $2 for the columns.  Returns the
 * number of rows in SPI_tuptable.
 */
uint64
convert_query(const Conversion *conversion, const char *format)
{
	Oid			types[] = {REGCLASSARRAYOID, NAMEARRAYOID};
	Datum		values[2];
	Datum	   *tables = palloc(sizeof(Datum) * conversion->count);
	Datum	   *columns = palloc(sizeof(Datum) * conversion->count);
	StringInfoData query;

	for (int i = 0; i < conversion->count; i++)
	{
		tables[i] = ObjectIdGetDatum(conversion->tables[i]);
		columns[i] = NameGetDatum(&conversion->columns[i]);
	}
	values[0] = PointerGetDatum(construct_array(tables, conversion->count, REGCLASSOID,
												sizeof(Oid), true, TYPALIGN_INT));
	values[1] = PointerGetDatum(construct_array(columns, conversion->count, NAMEOID,
												NAMEDATALEN, false, TYPALIGN_CHAR));

	initStringInfo(&query);
	for (const char *at = format; *at != '\0'; at++)
	{
		if (at[0] == '%' && at[1] == 's')
		{
			appendStringInfoString(&query, own_schema_name(conversion->own_schema));
			at++;
		}
		else
			appendStringInfoChar(&query, *at);
	}
	if (SPI_execute_with_args(query.data, lengthof(types), types, values, NULL,
							  false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute: %s", query.data);
	return SPI_processed;
}

/* Returns the number of a column of SPI_tuptable. */
static int
column_number(const char *column)
{
	int			number = SPI_fnumber(SPI_tuptable->tupdesc, column);

	if (number <= 0)
		elog(ERROR, "a query has no column \"%s\"", column);
	return number;
}

char *
convert_text_at(uint64 row, const char *column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						column_number(column));
}

Datum
convert_value_at(uint64 row, const char *column, bool *is_null)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						 column_number(column), is_null);
}

Oid
convert_oid_at(uint64 row, const char *column)
{
	bool		is_null;
	Datum		value = convert_value_at(row, column, &is_null);

	return is_null ? InvalidOid : DatumGetObjectId(value);
}

/* Lists the statements of a conversion, in order. */
List *
convert_statements(const Conversion *conversion)
{
	List	   *statements = NIL;
	uint64		count = convert_query(conversion, "SELECT tab, other, statement, needs_superuser"
									  "  FROM %s.snowflake_convert_statements($1, $2)");

	for (uint64 i = 0; i < count; i++)
	{
		Statement  *statement = palloc0(sizeof(Statement));
		bool		is_null;

		statement->table = convert_oid_at(i, "tab");
		statement->other = convert_oid_at(i, "other");
		statement->table_name = convert_table_name(statement->table);
		statement->other_name = OidIsValid(statement->other) ? convert_table_name(statement->other) : NULL;
		statement->text = convert_text_at(i, "statement");
		statement->needs_superuser = DatumGetBool(convert_value_at(i, "needs_superuser", &is_null));
		statements = lappend(statements, statement);
	}
	return statements;
}

/*
 * Parts of the queries in convert_tables().  The second column is true if the
 * conversion only locks the table, and does not change it.
 */
#define LOCKED_TABLES \
	"    SELECT tab, false FROM %s.snowflake_convert_statements($1, $2)" \
	"    UNION ALL" \
	"    SELECT tab, false FROM %s.snowflake_convert_columns($1, $2) WHERE is_key OR is_narrow" \
	"    UNION ALL" \
	"    SELECT references_tab, true FROM %s.snowflake_convert_foreign_keys($1, $2)"
#define ANCESTORS \
	"(WITH RECURSIVE up(tab) AS (" \
	"     SELECT s.tab::oid" \
	"     UNION" \
	"     SELECT inhparent FROM up JOIN pg_inherits ON inhrelid = up.tab)" \
	" SELECT count(*) FROM up)"

/*
 * Lists the tables that a conversion locks: the tables that change, and the
 * tables that the foreign keys of the conversion reference.  The list is in
 * the order in which PostgreSQL's own statements lock tables.  Views come
 * before tables.  Parents come before their inheritors and partitions, because
 * the tables are sorted by their number of ancestors, and then by OID.  Raises
 * ERROR 42501 if a table that changes is not the caller's.
 */
List *
convert_tables(const Conversion *conversion)
{
	List	   *tables = NIL;
	uint64		count;

	if (conversion->puts_back)
		count = convert_query(conversion,
							  "SELECT s.tab, bool_and(is_only_locked) AS is_only_locked FROM (" LOCKED_TABLES
							  "    UNION ALL"
							  "    SELECT view, false FROM %s.snowflake_convert_views($1, $2)"
							  "    UNION ALL"
							  "    SELECT tab, false FROM %s.snowflake_convert_rules($1, $2)"
							  ") AS s(tab, is_only_locked)"
							  "  LEFT JOIN %s.snowflake_convert_views($1, $2) AS v ON v.view = s.tab"
							  " GROUP BY s.tab ORDER BY max(v.place) DESC NULLS LAST, " ANCESTORS ", s.tab");
	else
		count = convert_query(conversion,
							  "SELECT s.tab, bool_and(is_only_locked) AS is_only_locked FROM (" LOCKED_TABLES ") AS s(tab, is_only_locked)"
							  " GROUP BY s.tab ORDER BY " ANCESTORS ", s.tab");
	for (uint64 i = 0; i < count; i++)
	{
		Oid			table = convert_oid_at(i, "tab");
		bool		is_null;

		if (!DatumGetBool(convert_value_at(i, "is_only_locked", &is_null)) &&
			!object_ownercheck(RelationRelationId, table, GetUserId()))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("must be owner of table %s", convert_shown_name(table)),
					 errhint("Converting %s changes this table, too.", convert_subject(conversion))));
		tables = lappend_oid(tables, table);
	}
	return tables;
}

/* Raises ERROR 42501 if only a superuser can execute one of the statements. */
static void
refuse_without_superuser(const Conversion *conversion, List *statements)
{
	ListCell   *cell;

	if (superuser())
		return;
	foreach(cell, statements)
	{
		Statement  *statement = lfirst(cell);

		if (statement->needs_superuser)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("table \"%s\" has a sequence that only a superuser can remove",
							convert_shown_name(statement->table)),
					 errdetail("Another extension has cleared a column's identity, but has left the identity's sequence behind."),
					 errhint("Convert %s as a superuser, or let a superuser execute: %s",
							 convert_subject(conversion), statement->text)));
	}
}

/*
 * Replaces constants by NULLs of the same type, so that the analysis of a
 * query runs no code of an owner.  The analysis passes a constant to the input
 * function of its type.  The input function of an array or a composite type
 * evaluates the CHECKs of the domains that the type contains.
 */
static bool
replace_constants_by_nulls(Node *node, void *unused)
{
	if (node == NULL)
		return false;
	if (IsA(node, TypeCast) && IsA(((TypeCast *) node)->arg, A_Const))
		((A_Const *) ((TypeCast *) node)->arg)->isnull = true;
	return raw_expression_tree_walker(node, replace_constants_by_nulls, unused);
}

/* Parses and analyzes a query without executing it. */
static void
analyze_query(void *query)
{
	RawStmt    *statement = linitial(raw_parser(query, RAW_PARSE_DEFAULT));

	replace_constants_by_nulls(statement->stmt, NULL);
	parse_analyze_fixedparams(statement, query, NULL, 0, NULL);
}

/*
 * Lists the objects that keep the columns' types from being changed.  Views,
 * rules and triggers are no obstacles to a conversion that puts them back.
 */
List *
convert_obstacles(const Conversion *conversion)
{
	List	   *obstacles = NIL;
	uint64		count;
	char	  **descriptions;
	char	  **queries;

	count = convert_query(conversion, conversion->puts_back ?
						  "SELECT %s.snowflake_convert_obstacles($1, $2, true) AS obstacle" :
						  "SELECT %s.snowflake_convert_obstacles($1, $2, false) AS obstacle");
	for (uint64 i = 0; i < count; i++)
		obstacles = lappend(obstacles, convert_text_at(i, "obstacle"));

	count = convert_query(conversion, "SELECT description, query"
						  "  FROM %s.snowflake_convert_expressions($1, $2)");
	descriptions = palloc(sizeof(char *) * (count + 1));
	queries = palloc(sizeof(char *) * (count + 1));
	for (uint64 i = 0; i < count; i++)
	{
		descriptions[i] = convert_text_at(i, "description");
		queries[i] = convert_text_at(i, "query");
	}
	for (uint64 i = 0; i < count; i++)
	{
		ErrorData  *error = call_in_subtransaction(analyze_query, queries[i]);

		if (error)
			obstacles = lappend(obstacles, psprintf("%s: %s", descriptions[i], error->message));
	}
	return obstacles;
}

/* Raises ERROR 2BP01 if an object keeps a type from being changed. */
static void
refuse_obstacles(const Conversion *conversion)
{
	List	   *obstacles = convert_obstacles(conversion);
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	foreach(cell, obstacles)
	{
		appendStringInfo(&text, "\n%s", (char *) lfirst(cell));
	}
	if (obstacles != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot change the type of %s and of the columns that reference it",
						convert_subject(conversion)),
				 errdetail("In the way:%s", text.data),
				 errhint("In one transaction, drop what is in the way, convert, and create it again. "
						 "A partition key, a domain and a row type cannot be changed in this way.")));
}

/* Returns one of the tables that Citus has distributed, or InvalidOid. */
Oid
convert_find_distributed(List *tables)
{
	ListCell   *cell;

	if (!OidIsValid(get_relname_relid("pg_dist_partition", PG_CATALOG_NAMESPACE)))
		return InvalidOid;
	foreach(cell, tables)
	{
		char	   *query = psprintf("SELECT FROM pg_catalog.pg_dist_partition WHERE logicalrelid = %u",
									 lfirst_oid(cell));

		if (SPI_execute(query, false, 1) == SPI_OK_SELECT && SPI_processed > 0)
			return lfirst_oid(cell);
	}
	return InvalidOid;
}

/* Raises ERROR 0A000 if Citus has distributed one of the tables. */
static void
refuse_distributed(const Conversion *conversion, List *tables)
{
	Oid			table = convert_find_distributed(tables);

	if (OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be converted because table \"%s\" is distributed by Citus",
						convert_subject(conversion), convert_shown_name(table)),
				 errhint("Convert before the tables are distributed: undistribute_table() them, convert, and distribute them again.")));
}

/*
 * Warns of objects that may refuse new keys.  "format" is a query whose column
 * "doubt" describes these objects.
 */
static void
warn_of_doubts(const Conversion *conversion, const char *format)
{
	StringInfoData doubts;
	uint64		count;

	initStringInfo(&doubts);
	count = convert_query(conversion, format);
	for (uint64 i = 0; i < count; i++)
		appendStringInfo(&doubts, "%s%s", i == 0 ? "" : "\n", convert_text_at(i, "doubt"));
	if (count > 0)
		ereport(WARNING,
				(errmsg("new keys of %s may be refused", convert_subject(conversion)),
				 errdetail("%s", doubts.data),
				 errhint("New keys need 64 bits. Change these objects before rows are inserted.")));
}

/*
 * Warns if a new key may be refused, or if the converted column has keys that
 * are larger than new keys.  The caller passes a conversion of one column.
 */
void
convert_warn(const Conversion *conversion)
{
	warn_of_doubts(conversion, "SELECT %s.snowflake_convert_doubts($1, $2) AS doubt");

	/*
	 * A column that is not converted yet may have larger keys, if these come
	 * from a scheme with another layout or epoch.
	 */
	if (convert_query(conversion, "SELECT %s.snowflake_min_id(clock_timestamp()) AS smallest"
					  "  FROM pg_attribute"
					  " WHERE attrelid = $1[1] AND attname = $2[1]"
					  "   AND NOT %s.snowflake_convert_is_done(attrelid::pg_catalog.regclass, attnum)") == 1)
	{
		bool		is_null;
		int64		smallest = DatumGetInt64(convert_value_at(0, "smallest", &is_null));
		int64		largest = largest_key(conversion->tables[0], NameStr(conversion->columns[0]));

		if (largest >= smallest)
			ereport(WARNING,
					(errmsg("%s has keys that are larger than new keys", convert_subject(conversion)),
					 errdetail("The largest key is " INT64_FORMAT "; a new key would now be " INT64_FORMAT " or slightly more.",
							   largest, smallest),
					 errhint("New keys sort before the larger keys, and may be equal to one of them. "
							 "If the larger keys are snowflake ids, set snowflake.layout and snowflake.epoch to the values that they were made with.")));
	}
}

/*
 * Runs a query on the catalogue with the latest snapshot.  The transaction's
 * own snapshot may be older than a lock that the transaction has waited for,
 * and does not show what other sessions changed before the lock was granted.
 */
static void
query_latest(const char *query)
{
	SPIPlanPtr	plan = SPI_prepare(query, 0, NULL);

	if (plan == NULL ||
		SPI_execute_snapshot(plan, NULL, NULL, GetLatestSnapshot(), InvalidSnapshot,
							 false, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute: %s", query);
	SPI_freeplan(plan);
}

/* Returns true if queries on a table run no code of the table's owner. */
static bool
is_plain(Oid own_schema, Oid table)
{
	bool		is_null;

	query_latest(psprintf("SELECT %s.snowflake_convert_is_plain(%u::pg_catalog.regclass) AS is_plain",
						  own_schema_name(own_schema), table));
	return DatumGetBool(convert_value_at(0, "is_plain", &is_null));
}

/*
 * Raises an error if a statement has become unsafe since the conversion was
 * checked: 55000 if the names in the statement now mean other tables, and
 * 42501 if checking a foreign key would now run code of another role.  Both
 * can happen because earlier statements of the conversion may have run code of
 * an owner, and that code may have renamed a schema or added an index.
 */
static void
refuse_changed(const Conversion *conversion, const Statement *statement)
{
	Oid			owner = owner_of(statement->table);
	Oid			other_owner = OidIsValid(statement->other) ? owner_of(statement->other) : owner;

	if (strcmp(convert_table_name(statement->table), statement->table_name) != 0 ||
		(OidIsValid(statement->other) &&
		 strcmp(convert_table_name(statement->other), statement->other_name) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a schema or table was renamed while %s was converted",
						convert_subject(conversion)),
				 errdetail("The next statement is: %s", statement->text)));
	if (owner != other_owner && !is_plain(conversion->own_schema, statement->other))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("checking a foreign key between tables \"%s\" and \"%s\" would run code of another role",
						convert_shown_name(statement->table), convert_shown_name(statement->other)),
				 errdetail("Table \"%s\" has been changed while %s was converted.",
						   convert_shown_name(statement->other), convert_subject(conversion))));
}

/*
 * Raises ERROR 0A000 in REPEATABLE READ and SERIALIZABLE, unless this is a dry
 * run.  A conversion has to see the changes that other sessions committed
 * before it locked the tables, and the snapshot of such a transaction does not
 * show these changes.  The conversion of a new table need not call this
 * function, because no other session can have changed the table.
 */
void
convert_refuse_isolation(const Conversion *conversion)
{
	if (!conversion->is_dry_run && IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be converted in a transaction of isolation level %s",
						convert_subject(conversion),
						GetConfigOption("transaction_isolation", false, false)),
				 errhint("Such a transaction does not show what other sessions have just changed. "
						 "Convert in a transaction of isolation level read committed.")));
}

/* Executes the statements of a conversion, in order. */
void
convert_execute(const Conversion *conversion, List *statements)
{
	ListCell   *cell;

	foreach(cell, statements)
	{
		Statement  *statement = lfirst(cell);

		refuse_changed(conversion, statement);

		/*
		 * A statement that needs a superuser runs as the caller, who is one.
		 * That is safe, because such a statement runs no user's code.
		 */
		if (statement->needs_superuser)
			SPI_execute(statement->text, false, 0);
		else
			execute_as_owner(statement->table, statement->text);
	}
}

/*
 * Converts a column and all columns that reference it.  Returns the statements
 * of the conversion, or NIL if the column was converted before.
 */
static List *
convert(const Conversion *conversion)
{
	List	   *statements;
	List	   *locked = NIL;

	if (!conversion->is_new)
		convert_refuse_isolation(conversion);

	/*
	 * Another session may have added a foreign key or an obstacle before the
	 * locks were granted.  So list and check everything again after locking,
	 * until the list has no table that is not locked yet.
	 */
	for (;;)
	{
		List	   *tables;

		convert_query(conversion, "SELECT %s.snowflake_convert_check($1[1], $2[1])");
		statements = convert_statements(conversion);
		if (statements == NIL)
			return NIL;
		tables = convert_tables(conversion);
		refuse_without_superuser(conversion, statements);
		refuse_obstacles(conversion);
		refuse_distributed(conversion, tables);

		if (conversion->is_dry_run || list_difference_oid(tables, locked) == NIL)
			break;
		/* All conversions lock in the same order, so they do not deadlock. */
		for (int i = 0; i < list_length(tables); i++)
			LockRelationOid(list_nth_oid(tables, i), AccessExclusiveLock);
		locked = list_union_oid(locked, tables);
	}

	convert_warn(conversion);
	if (!conversion->is_dry_run)
		convert_execute(conversion, statements);
	return statements;
}

/*
 * snowflake_convert(rel regclass, col name, dry_run boolean) -> setof text
 *		Makes a key column bigint DEFAULT snowflake_nextval(), and the columns
 *		that reference the key bigint.  Returns the statements.
 */
Datum
snowflake_convert(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			table = PG_GETARG_OID(0);
	Conversion	conversion = {
		.own_schema = get_func_namespace(fcinfo->flinfo->fn_oid),
		.count = 1,
		.tables = &table,
		.columns = PG_GETARG_NAME(1),
		.is_dry_run = PG_GETARG_BOOL(2),
	};
	List	   *statements;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	SPI_connect();

	/*
	 * Convert before any row is returned, because the caller may not read all
	 * rows, as with LIMIT.
	 */
	statements = convert(&conversion);
	foreach(cell, statements)
	{
		Datum		value = CStringGetTextDatum(((Statement *) lfirst(cell))->text);
		bool		is_null = false;

		tuplestore_putvalues(result->setResult, result->setDesc, &value, &is_null);
	}
	SPI_finish();
	return (Datum) 0;
}

/*
 * Finds the sequence of a serial column: the column owns the sequence, and the
 * column's DEFAULT calls nextval() on the sequence.  Sets *is_shared if
 * another object depends on the sequence, too.
 */
static Oid
serial_sequence(Relation depend, Oid table, AttrNumber attnum, bool *is_shared)
{
	Oid			attrdef = GetAttrDefaultOid(table, attnum);
	Oid			sequence = InvalidOid;
	bool		is_serial = false;
	ScanKeyData keys[3];
	SysScanDesc scan;
	HeapTuple	tuple;

	*is_shared = false;
	if (!OidIsValid(attrdef))
		return InvalidOid;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	ScanKeyInit(&keys[2], Anum_pg_depend_refobjsubid, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(attnum));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 3, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend row = (Form_pg_depend) GETSTRUCT(tuple);

		if (row->classid == RelationRelationId && row->deptype == DEPENDENCY_AUTO &&
			get_rel_relkind(row->objid) == RELKIND_SEQUENCE)
			sequence = row->objid;
	}
	systable_endscan(scan);
	if (!OidIsValid(sequence))
		return InvalidOid;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(sequence));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend row = (Form_pg_depend) GETSTRUCT(tuple);

		if (row->classid == AttrDefaultRelationId && row->objid == attrdef)
			is_serial = true;
		else if (row->deptype != DEPENDENCY_INTERNAL)
			*is_shared = true;
	}
	systable_endscan(scan);
	return is_serial ? sequence : InvalidOid;
}

/* Reads an array of column numbers from a catalogue row. */
static List *
numbers_in(HeapTuple tuple, AttrNumber attribute, TupleDesc descriptor)
{
	bool		is_null;
	Datum		value = heap_getattr(tuple, attribute, descriptor, &is_null);
	List	   *numbers = NIL;
	ArrayType  *array;

	if (is_null)
		return NIL;
	array = DatumGetArrayTypeP(value);
	for (int i = 0; i < ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)); i++)
		numbers = lappend_int(numbers, ((int16 *) ARR_DATA_PTR(array))[i]);
	return numbers;
}

/* Finds a table's columns in its primary key, foreign keys and CHECKs. */
static void
read_keys(Oid table, List **primary, List **foreign, List **checked)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	*primary = *foreign = *checked = NIL;
	ScanKeyInit(&key, Anum_pg_constraint_conrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	scan = systable_beginscan(constraints, ConstraintRelidTypidNameIndexId, true,
							  NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_constraint row = (Form_pg_constraint) GETSTRUCT(tuple);
		List	   *numbers;

		if (row->contype != CONSTRAINT_PRIMARY && row->contype != CONSTRAINT_FOREIGN &&
			row->contype != CONSTRAINT_CHECK)
			continue;
		numbers = numbers_in(tuple, Anum_pg_constraint_conkey,
							 RelationGetDescr(constraints));
		if (row->contype == CONSTRAINT_PRIMARY)
			*primary = numbers;
		else if (row->contype == CONSTRAINT_CHECK)
			*checked = list_concat(*checked, numbers);
		else if (!OidIsValid(row->conparentid))
			*foreign = list_concat(*foreign, numbers);
	}
	systable_endscan(scan);
	table_close(constraints, AccessShareLock);
}

/* A column in the primary key of a new table. */
typedef struct NewKey
{
	Oid			own_schema;
	Oid			table;
	NameData	column;
	bool		is_bigint;
	bool		has_default;	/* has a DEFAULT, and is not inherited */
	bool		is_identity;
	bool		is_serial;
	Oid			sequence;		/* of a serial column, or InvalidOid */
	bool		is_simple;		/* can one ALTER TABLE convert the column?
								 * See make_snowflake(). */
} NewKey;

/*
 * Fills in the fields of NewKey that describe a column.  Returns true if the
 * column is serial or an identity column, and is not inherited.
 */
static bool
read_new_key(NewKey *key, AttrNumber attnum)
{
	Relation	depend;
	Relation	relation = table_open(key->table, AccessShareLock);
	Form_pg_attribute column = TupleDescAttr(RelationGetDescr(relation), attnum - 1);
	bool		is_own = column->attinhcount == 0;
	bool		is_shared;

	key->column = column->attname;
	key->is_bigint = column->atttypid == INT8OID;
	key->has_default = column->atthasdef && is_own;
	key->is_identity = column->attidentity != '\0';
	key->is_simple = key->is_simple && !relation->rd_rel->relhassubclass;
	table_close(relation, AccessShareLock);
	if (!is_own)
		return false;

	depend = table_open(DependRelationId, AccessShareLock);
	key->sequence = serial_sequence(depend, key->table, attnum, &is_shared);
	table_close(depend, AccessShareLock);
	key->is_serial = OidIsValid(key->sequence);
	if (is_shared)
		key->is_simple = false; /* convert() checks the other objects */
	return key->is_identity || key->is_serial;
}

/*
 * Makes a column of a new table a snowflake.  A key is simple if the table has
 * no foreign keys and no inheritors, if no other table can reference the
 * table, and if no other object depends on the column's sequence.  A simple
 * key needs one ALTER TABLE only, because no other table changes with the
 * column; the sequence of a serial column is dropped afterwards.
 */
static void
make_snowflake(void *argument)
{
	NewKey	   *key = argument;
	const char *column = quote_identifier(NameStr(key->column));

	if (key->is_simple)
	{
		StringInfoData alter;

		initStringInfo(&alter);
		appendStringInfo(&alter, "ALTER TABLE %s ", convert_table_name(key->table));
		if (key->is_identity)
			appendStringInfo(&alter, "ALTER COLUMN %s DROP IDENTITY, ", column);
		if (!key->is_bigint)
			appendStringInfo(&alter, "ALTER COLUMN %s TYPE bigint, ", column);
		appendStringInfo(&alter, "ALTER COLUMN %s SET DEFAULT %s.snowflake_nextval()",
						 column, own_schema_name(key->own_schema));
		execute_as_owner(key->table, alter.data);
		if (OidIsValid(key->sequence))
			execute_as_owner(key->table, psprintf("DROP SEQUENCE %s", convert_table_name(key->sequence)));
	}
	else
	{
		Conversion	conversion = {
			.own_schema = key->own_schema, .count = 1, .tables = &key->table, .columns = &key->column,
			.is_new = true
		};

		convert(&conversion);
	}
}

/* Warns of CHECKs that refuse the new keys of a snowflake column. */
static void
warn_of_bounds(NewKey *key)
{
	Conversion	conversion = {
		.own_schema = key->own_schema, .count = 1, .tables = &key->table, .columns = &key->column,
		.is_new = true
	};

	warn_of_doubts(&conversion,
				   "SELECT %s.snowflake_convert_bounds(attrelid::pg_catalog.regclass, attnum) AS doubt"
				   "  FROM pg_attribute"
				   " WHERE attrelid = $1[1] AND attname = $2[1]"
				   "   AND %s.snowflake_convert_is_done(attrelid::pg_catalog.regclass, attnum)");
}

/* Converts the serial and identity columns in a new table's primary key. */
static void
convert_primary_key(Oid own_schema, Oid table, List *primary, List *checked, bool is_simple)
{
	ListCell   *cell;

	foreach(cell, primary)
	{
		NewKey		key = {.own_schema = own_schema, .table = table, .is_simple = is_simple};
		char	   *reason = NULL;

		if (!read_new_key(&key, lfirst_int(cell)))
		{
			if (key.is_bigint && key.has_default && list_member_int(checked, lfirst_int(cell)))
				warn_of_bounds(&key);
			continue;
		}
		if (!object_ownercheck(RelationRelationId, table, GetUserId()))
			reason = "The table belongs to another role.";
		else
		{
			ErrorData  *error = call_in_subtransaction(make_snowflake, &key);

			if (error)
				reason = error_text(error);
		}
		if (reason)
			ereport(WARNING,
					(errmsg("column \"%s\" of new table \"%s\" has not become a snowflake",
							NameStr(key.column), convert_shown_name(table)),
					 errdetail("%s", reason)));
		else if (key.is_simple && list_member_int(checked, lfirst_int(cell)))
			warn_of_bounds(&key);
	}
}

/* An integer column that references a snowflake. */
typedef struct Reference
{
	Oid			own_schema;
	Oid			table;
	AttrNumber	attnum;
	Oid			key_table;
	char	   *key_column;
} Reference;

/*
 * Lists the tables of other owners that foreign keys connect with the
 * referencing column.
 */
static List *
tables_of_other_owners(const Reference *reference)
{
	List	   *tables = NIL;

	query_latest(psprintf("SELECT tab FROM %s.snowflake_convert_other_owners(%u::pg_catalog.regclass, %d::smallint)"
						  " ORDER BY tab", own_schema_name(reference->own_schema), reference->table, reference->attnum));
	for (uint64 i = 0; i < SPI_processed; i++)
		tables = lappend_oid(tables, convert_oid_at(i, "tab"));
	return tables;
}

/* Makes a referencing column bigint, or warns if its table has rows. */
static void
widen_reference(void *argument)
{
	Reference  *reference = argument;
	Oid			table = reference->table;
	const char *column;
	List	   *others;
	ListCell   *cell;

	/* The lock keeps the table's owner from being changed. */
	LockRelationOid(table, AccessShareLock);
	column = get_attname(table, reference->attnum, false);
	if (!object_ownercheck(RelationRelationId, table, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", convert_shown_name(table))));
	if (has_rows(table))
	{
		ereport(WARNING,
				(errmsg("column \"%s\" of table \"%s\" is too narrow for the ids of column \"%s\" of table \"%s\"",
						column, convert_shown_name(table), reference->key_column,
						convert_shown_name(reference->key_table)),
				 errhint("SELECT %s.snowflake_convert(%s, %s) makes the narrow column bigint, and rewrites its table.",
						 own_schema_name(reference->own_schema), quote_literal_cstr(convert_shown_name(reference->key_table)),
						 quote_literal_cstr(reference->key_column))));
		return;
	}

	/*
	 * PostgreSQL checks a foreign key by a query on both tables, which must
	 * run no code of the other owner.  Take the locks of ALTER TABLE before
	 * is_plain() looks at the tables, so that their owners cannot add a
	 * foreign key or an index afterwards.
	 */
	LockRelationOid(table, AccessExclusiveLock);
	others = tables_of_other_owners(reference);
	foreach(cell, others)
	{
		LockRelationOid(lfirst_oid(cell), ShareRowExclusiveLock);
	}
	foreach(cell, others)
	{
		Oid			other = lfirst_oid(cell);

		if (!is_plain(reference->own_schema, other))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("checking a foreign key between tables \"%s\" and \"%s\" would run code of another role",
							convert_shown_name(table), convert_shown_name(other)),
					 errdetail("Table \"%s\" is partitioned or has inheritors, or it has indexes, checks, statistics or foreign keys whose expressions or types can run code.",
							   convert_shown_name(other))));
	}
	execute_as_owner(table, psprintf("ALTER TABLE %s ALTER COLUMN %s TYPE bigint",
									 convert_table_name(table), quote_identifier(column)));
}

/*
 * Makes integer columns bigint if a foreign key of one of the given tables
 * connects them with a snowflake.
 */
static void
widen_references(Oid own_schema, List *tables)
{
	Datum	   *elements = palloc(sizeof(Datum) * list_length(tables));
	Oid			types[] = {OIDARRAYOID};
	Datum		values[1];
	List	   *references = NIL;
	ListCell   *cell;
	int			count = 0;

	foreach(cell, tables)
		elements[count++] = ObjectIdGetDatum(lfirst_oid(cell));
	values[0] = PointerGetDatum(construct_array(elements, count, OIDOID, sizeof(Oid),
												true, TYPALIGN_INT));
	if (SPI_execute_with_args(psprintf("SELECT tab, attnum, key_tab, key_attname"
									   "  FROM %s.snowflake_convert_new_references($1::pg_catalog.regclass[])"
									   " ORDER BY tab, attnum", own_schema_name(own_schema)),
							  1, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for references");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Reference  *reference = palloc(sizeof(Reference));
		bool		is_null;

		reference->own_schema = own_schema;
		reference->table = convert_oid_at(i, "tab");
		reference->attnum = DatumGetInt16(convert_value_at(i, "attnum", &is_null));
		reference->key_table = convert_oid_at(i, "key_tab");
		reference->key_column = convert_text_at(i, "key_attname");
		references = lappend(references, reference);
	}

	foreach(cell, references)
	{
		Reference  *reference = lfirst(cell);
		ErrorData  *error = call_in_subtransaction(widen_reference, reference);

		if (error)
			ereport(WARNING,
					(errmsg("column \"%s\" of table \"%s\" has not become bigint",
							get_attname(reference->table, reference->attnum, false),
							convert_shown_name(reference->table)),
					 errdetail("%s", error_text(error))));
	}
}

bool
convert_is_running(void)
{
	return is_converting;
}

/*
 * Returns whether new tables in a schema are to be converted.  The setting
 * snowflake_convert.schemas lists schemas by their names in the catalogue,
 * separated by commas.  An empty setting means all schemas.
 */
bool
convert_wants_schema(const char *schema)
{
	const char *setting = GetConfigOption("snowflake_convert.schemas", true, false);

	/* A SET LOCAL leaves an empty setting behind when its transaction ends. */
	if (setting == NULL || setting[0] == '\0')
		return true;
	for (const char *at = setting;;)
	{
		const char *end = at + strcspn(at, ",");
		const char *last = end;

		while (at < last && isspace((unsigned char) *at))
			at++;
		while (last > at && isspace((unsigned char) last[-1]))
			last--;
		if (schema && strlen(schema) == (size_t) (last - at) &&
			memcmp(schema, at, last - at) == 0)
			return true;
		if (*end == '\0')
			return false;
		at = end + 1;
	}
}

/* Does the event trigger convert the keys and references of a table? */
static bool
is_wanted(Oid table)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	Form_pg_class row;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	row = (Form_pg_class) GETSTRUCT(tuple);
	/* A temporary table needs no ids that are unique among servers. */
	result = (row->relkind == RELKIND_RELATION || row->relkind == RELKIND_PARTITIONED_TABLE) &&
		row->relpersistence != RELPERSISTENCE_TEMP &&
		convert_wants_schema(get_namespace_name(row->relnamespace));
	ReleaseSysCache(tuple);
	return result;
}

/* Does the event trigger's work.  The caller turns errors into warnings. */
static void
convert_new_tables(void *argument)
{
	static SPIPlanPtr plan = NULL;
	Oid			own_schema = *(Oid *) argument;
	List	   *tables = NIL;
	List	   *new_tables = NIL;
	List	   *referencing = NIL;
	ListCell   *cell;

	if (plan == NULL)
	{
		SPIPlanPtr	prepared =
			SPI_prepare("SELECT objid, pg_catalog.bool_or(command_tag = 'CREATE TABLE') AS is_new"
						"  FROM pg_catalog.pg_event_trigger_ddl_commands()"
						" WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass"
						"   AND command_tag IN ('CREATE TABLE', 'ALTER TABLE')"
						"   AND NOT in_extension"	/* an extension may rely on its column types */
						" GROUP BY objid ORDER BY objid", 0, NULL);

		if (prepared == NULL || SPI_keepplan(prepared) != 0)
			elog(ERROR, "could not prepare the look at new tables");
		plan = prepared;
	}
	if (SPI_execute_plan(plan, NULL, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look at new tables");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Oid			table = convert_oid_at(i, "objid");
		bool		is_null;

		if (!is_wanted(table))
			continue;
		tables = lappend_oid(tables, table);
		if (DatumGetBool(convert_value_at(i, "is_new", &is_null)))
			new_tables = lappend_oid(new_tables, table);
	}

	foreach(cell, tables)
	{
		Oid			table = lfirst_oid(cell);
		List	   *primary;
		List	   *foreign;
		List	   *checked;

		read_keys(table, &primary, &foreign, &checked);
		if (foreign != NIL)
			referencing = lappend_oid(referencing, table);

		/*
		 * A key is simple only if no foreign key references it.  The table is
		 * new, so only the table itself or another table of the statement can
		 * have such a foreign key.
		 */
		if (list_member_oid(new_tables, table))
			convert_primary_key(own_schema, table, primary, checked,
								foreign == NIL && list_length(tables) == 1);
	}
	if (referencing != NIL)
		widen_references(own_schema, referencing);
}

/*
 * snowflake_convert_new_tables() -> event_trigger
 *		Makes the serial and identity columns in the primary keys of new tables
 *		snowflakes.  Makes integer columns of new and altered tables bigint if
 *		they reference a snowflake.  Errors become warnings, so that no DDL
 *		fails.
 */
Datum
snowflake_convert_new_tables(PG_FUNCTION_ARGS)
{
	Oid			own_schema;
	ErrorData  *error;

	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("snowflake_convert_new_tables() can only be called as an event trigger")));
	if (is_converting)
		PG_RETURN_NULL();

	SPI_connect();
	own_schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	error = call_in_subtransaction(convert_new_tables, &own_schema);
	if (error)					/* e.g. no privilege on own_schema */
		ereport(WARNING,
				(errmsg("no column of new tables has become a snowflake"),
				 errdetail("%s", error_text(error))));
	SPI_finish();
	PG_RETURN_NULL();
}
