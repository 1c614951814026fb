/*
 * sql_copy.c
 *	  COPY at a sequence's speed.
 *
 * COPY FROM inserts rows in batches unless a column's default is volatile: a
 * volatile function may read the table, and would miss the rows of the batch.
 * PostgreSQL makes an exception only for its own nextval().
 * snowflake_nextval(), whose other name is snowflake_id(), reads no table
 * either.  So while COPY FROM plans its defaults, and only then, the support
 * function below replaces their calls by a twin: a function that does the same
 * but is labelled STABLE.  COPY evaluates a default once a row, whatever its
 * label.
 *
 * No other statement may call the twin.  ALTER TABLE ... ADD COLUMN, for
 * example, evaluates a default that is not volatile once for all rows.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "compat.h"
#include "fmgr.h"
#include "id_generator.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/memnodes.h"
#include "nodes/supportnodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(snowflake_copy_support);
PG_FUNCTION_INFO_V1(snowflake_copy_nextval);

#define TWIN_NAME "snowflake_copy_nextval"

/*
 * The location of a call of the twin in the statement's text.  A location from
 * the parser is 0 or more, or -1 if unknown, so this value marks the calls
 * that the support function has made.
 */
#define TWIN_LOCATION (-8947)

static bool sql_is_copy_planning(const SupportRequestSimplify *request);
static bool sql_is_loading_domain(void);
static Node *sql_replace_by_twin(const FuncExpr *call);
static Oid	sql_find_twin(Oid function);
static bool sql_may_replace(Oid function, Oid twin);
static inline void sql_refuse_call_outside_copy(FunctionCallInfo fcinfo);

/* Support function of snowflake_nextval() and snowflake_id(). */
Datum
snowflake_copy_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestSimplify))
	{
		SupportRequestSimplify *simplify = (SupportRequestSimplify *) request;

		if (sql_is_copy_planning(simplify))
			PG_RETURN_POINTER(sql_replace_by_twin(simplify->fcall));
	}
	PG_RETURN_POINTER(NULL);
}

/* snowflake_copy_nextval() -> bigint: the twin */
Datum
snowflake_copy_nextval(PG_FUNCTION_ARGS)
{
	sql_refuse_call_outside_copy(fcinfo);
	PG_RETURN_INT64(generator_next());
}

/*
 * Is PostgreSQL planning a default of a COPY FROM?
 *
 * Since PostgreSQL 14 BeginCopyFrom() makes a memory context named "COPY", and
 * plans the defaults in that context.  All code that runs a statement or a
 * function, or keeps a plan, switches to another context.  So the result is
 * false for every expression that a trigger or a function plans while a COPY
 * runs.
 *
 * BeginCopyTo() has a context of that name, too, but plans a query there, and
 * a request for a query has a "root".  The only other requests without a root
 * in COPY's context are for expressions of the catalogue.  The twin does no
 * harm there: expressions of indexes and partitions are immutable, and
 * expressions of extended statistics are never evaluated.
 */
static bool
sql_is_copy_planning(const SupportRequestSimplify *request)
{
	return request->root == NULL &&
		strcmp(CurrentMemoryContext->name, "COPY") == 0 &&
		!sql_is_loading_domain();
}

/*
 * Is PostgreSQL loading the constraints of a domain?  PostgreSQL 19 makes a
 * child of the current memory context for these constraints, but plans their
 * expressions in the current context, which may be COPY's.
 */
static bool
sql_is_loading_domain(void)
{
	for (MemoryContext child = CurrentMemoryContext->firstchild;
		 child != NULL; child = child->nextchild)
	{
		if (strcmp(child->name, "Domain constraints") == 0)
			return true;
	}
	return false;
}

/* Returns a call of the twin, or NULL if the call is not to be replaced. */
static Node *
sql_replace_by_twin(const FuncExpr *call)
{
	Oid			twin = sql_find_twin(call->funcid);
	FuncExpr   *replacement;

	if (!OidIsValid(twin) || !sql_may_replace(call->funcid, twin))
		return NULL;
	replacement = makeFuncExpr(twin, call->funcresulttype, call->args,
							   call->funccollid, call->inputcollid,
							   call->funcformat);
	replacement->location = TWIN_LOCATION;
	return (Node *) replacement;
}

/*
 * Returns the twin of a function: the function TWIN_NAME in the same schema,
 * with the same arguments, of the same extension.  InvalidOid if there is
 * none.
 */
static Oid
sql_find_twin(Oid function)
{
	Oid			extension = getExtensionOfObject(ProcedureRelationId,
												 function);
	Oid		   *types;
	int			count;
	Oid			twin;

	(void) get_func_signature(function, &types, &count);
	twin = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
						   CStringGetDatum(TWIN_NAME),
						   PointerGetDatum(buildoidvector(types, count)),
						   ObjectIdGetDatum(get_func_namespace(function)));
	if (!OidIsValid(twin) || !OidIsValid(extension) ||
		getExtensionOfObject(ProcedureRelationId, twin) != extension)
		return InvalidOid;
	return twin;
}

/*
 * May the support function replace a call by a call of the twin?  The executor
 * then checks only the privilege for the twin, so the user must have the
 * privileges for both functions here.  COPY is merely slower for a user who
 * lacks the privilege for the twin.  The hook of a security module is called
 * for the function that the user has named.
 */
static bool
sql_may_replace(Oid function, Oid twin)
{
	if (FmgrHookIsNeeded(function) ||
		object_aclcheck(ProcedureRelationId, function, GetUserId(),
						ACL_EXECUTE) != ACLCHECK_OK ||
		object_aclcheck(ProcedureRelationId, twin, GetUserId(),
						ACL_EXECUTE) != ACLCHECK_OK)
		return false;
	InvokeFunctionExecuteHook(function);
	return true;
}

/*
 * ERROR 0A000 unless the support function has made the call: in other SQL,
 * PostgreSQL may evaluate a STABLE function once for many rows.
 */
static inline void
sql_refuse_call_outside_copy(FunctionCallInfo fcinfo)
{
	Node	   *call = fcinfo->flinfo->fn_expr;

	if (unlikely(call == NULL || !IsA(call, FuncExpr) ||
				 ((FuncExpr *) call)->location != TWIN_LOCATION))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function %s() can be called only by COPY", TWIN_NAME),
				 errhint("Call snowflake_nextval(). COPY replaces the call by itself.")));
}
