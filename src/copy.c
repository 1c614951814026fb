/*
 * copy.c
 *	  COPY at a sequence's speed.
 *
 * COPY FROM inserts rows in batches unless a column's default is volatile: a
 * volatile function may read the table, and would miss the rows that are still
 * held back.  PostgreSQL excepts its own nextval() alone.  A snowflake reads
 * no table either.  So while COPY FROM plans its defaults, and only then, the
 * support function below replaces snowflake_nextval() by a twin that does the
 * same and is labelled STABLE.  COPY evaluates a default once a row, whatever
 * its label.
 *
 * The twin must never be planned anywhere else.  ALTER TABLE ... ADD COLUMN
 * evaluates a default that is not volatile once for all rows.
 * is_copy_planning_a_default() says how the one place is told from all others,
 * and insist_on_copy() how a twin that got elsewhere is refused.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "compat.h"
#include "fmgr.h"
#include "generator.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/memnodes.h"
#include "nodes/supportnodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(snowflake_copy_nextval);
PG_FUNCTION_INFO_V1(snowflake_copy_nextval_of_relation);
PG_FUNCTION_INFO_V1(snowflake_copy_support);

#define TWIN_NAME "snowflake_copy_nextval"

/*
 * The place in the statement's text that the call of a twin is said to be at.
 * The parser's places are 0 or more, and -1 is a place not known.  So this one
 * marks the calls that the support function made.
 */
#define TWIN_LOCATION (-8947)

/*
 * Are the constraints of a domain being loaded?  PostgreSQL 19 plans them in
 * the context that is the current one, after it has made a child of that to
 * keep them in.
 */
static inline bool
is_loading_domain(void)
{
	for (MemoryContext child = CurrentMemoryContext->firstchild; child != NULL; child = child->nextchild)
	{
		if (strcmp(child->name, "Domain constraints") == 0)
			return true;
	}
	return false;
}

/*
 * Is the expression that is being planned a default of a COPY FROM?
 *
 * BeginCopyFrom() makes a memory context, named "COPY", and plans the defaults
 * with that as the current one, from PostgreSQL 14 on.  Whatever code it
 * calls that runs a statement or a function, or keeps a plan, does so in a
 * context of its own.  So this is true of no expression that is planned while
 * a COPY runs, by however deep a trigger: it is no state that would have to be
 * set, hidden from what is nested, and taken back after an error.
 *
 * BeginCopyTo() has a context of that name, too.  What it plans there is a
 * query, and so has a root.  Only what catalogs keep has none: expressions of
 * indexes and partitions, which are immutable, and of extended statistics,
 * which are compared and never evaluated.
 */
static inline bool
is_copy_planning_a_default(const SupportRequestSimplify *request)
{
	return request->root == NULL &&
		strcmp(CurrentMemoryContext->name, "COPY") == 0 &&
		!is_loading_domain();
}

/*
 * The twin of a function: in the same schema, with the same arguments, of the
 * same extension.  InvalidOid if there is none.
 */
static Oid
twin_of(Oid function)
{
	Oid			extension = getExtensionOfObject(ProcedureRelationId, function);
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
 * May a call be replaced by one of the twin, whose privileges the executor
 * will look at instead?  Only if the user may execute both functions: a user
 * who may not execute snowflake_nextval() is refused by the executor as
 * anywhere else, and COPY is merely slower for a user who may not execute the
 * twin.  A security module sees the function that the user has named.
 */
static bool
may_replace(Oid function, Oid twin)
{
	if (FmgrHookIsNeeded(function) ||
		object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK ||
		object_aclcheck(ProcedureRelationId, twin, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK)
		return false;
	InvokeFunctionExecuteHook(function);
	return true;
}

/* The call of the twin in place of a call, or NULL to leave that as it is. */
static Node *
replace_by_twin(const FuncExpr *call)
{
	Oid			twin = twin_of(call->funcid);
	FuncExpr   *replacement;

	if (!OidIsValid(twin) || !may_replace(call->funcid, twin))
		return NULL;
	replacement = makeFuncExpr(twin, call->funcresulttype, call->args,
							   call->funccollid, call->inputcollid,
							   call->funcformat);
	replacement->location = TWIN_LOCATION;
	return (Node *) replacement;
}

/* Support function of snowflake_nextval() and snowflake_nextval(regclass). */
Datum
snowflake_copy_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestSimplify) &&
		is_copy_planning_a_default((SupportRequestSimplify *) request))
		PG_RETURN_POINTER(replace_by_twin(((SupportRequestSimplify *) request)->fcall));
	PG_RETURN_POINTER(NULL);
}

/*
 * Refuses a call that the support function has not made: in SQL that somebody
 * wrote, a function labelled STABLE may be evaluated once for many rows.
 */
static inline void
insist_on_copy(FunctionCallInfo fcinfo)
{
	Node	   *call = fcinfo->flinfo->fn_expr;

	if (unlikely(call == NULL || !IsA(call, FuncExpr) ||
				 ((FuncExpr *) call)->location != TWIN_LOCATION))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function %s() is for COPY alone", TWIN_NAME),
				 errhint("Call snowflake_nextval(). COPY replaces the call by itself.")));
}

/*
 * snowflake_copy_nextval() -> bigint
 * snowflake_copy_nextval(generator regclass) -> bigint
 *		The twins.  ERROR 0A000 outside COPY, else as snowflake_nextval().
 */
Datum
snowflake_copy_nextval(PG_FUNCTION_ARGS)
{
	insist_on_copy(fcinfo);
	PG_RETURN_INT64(generator_next());
}

Datum
snowflake_copy_nextval_of_relation(PG_FUNCTION_ARGS)
{
	insist_on_copy(fcinfo);
	PG_RETURN_INT64(generator_next_of_relation(PG_GETARG_OID(0)));
}
