/*
 * support.c
 *	  What the planner may know of our functions in advance.
 *
 * The parameters snowflake.layout and snowflake.epoch make the bounds of a
 * time range STABLE.  But on a server that preloads the library they are
 * fixed while it runs, and no plan outlives it: there a bound of a constant
 * instant is a constant, and partitions are pruned before the plan is run.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "nodes/supportnodes.h"
#include "node.h"
#include "optimizer/optimizer.h"

PG_FUNCTION_INFO_V1(snowflake_bound_support);
PG_FUNCTION_INFO_V1(snowflake_nextvals_support);

/*
 * The bound of a time range as a constant, or NULL where it is none.
 *
 * Without a root, what is simplified is not a query to be planned but an
 * expression to be kept: the predicate of an index, say, which would then be
 * let pass as immutable, and be wrong after a restart with another layout.
 */
static Node *
fold_bound(const SupportRequestSimplify *request)
{
	FuncExpr   *call = request->fcall;
	Node	   *instant = (Node *) linitial(call->args);

	if (!node_is_preloaded || request->root == NULL ||
		!IsA(instant, Const) || ((Const *) instant)->constisnull)
		return NULL;

	/* by the executor, which also sees to the privilege to call it */
	return (Node *) evaluate_expr((Expr *) call, call->funcresulttype, -1,
								  call->funccollid);
}

/*
 * Support function of snowflake_min_id(timestamptz) and
 * snowflake_max_id(timestamptz), and of what snowflake_issued_between() is
 * inlined to.
 */
Datum
snowflake_bound_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestSimplify))
		PG_RETURN_POINTER(fold_bound((SupportRequestSimplify *) request));
	PG_RETURN_POINTER(NULL);
}

/* Tells how many rows a call returns, if its count can be known. */
static bool
estimate_rows(SupportRequestRows *request)
{
	Node	   *count;

	if (!is_funcclause(request->node))
		return false;
	count = estimate_expression_value(request->root, (Node *)
									  linitial(((FuncExpr *) request->node)->args));
	if (!IsA(count, Const))
		return false;

	/* NULL gives none, and so does an error */
	request->rows = ((Const *) count)->constisnull ? 0 :
		Max(0, DatumGetInt32(((Const *) count)->constvalue));
	return true;
}

/* Support function of snowflake_nextvals(integer). */
Datum
snowflake_nextvals_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestRows) &&
		estimate_rows((SupportRequestRows *) request))
		PG_RETURN_POINTER(request);
	PG_RETURN_POINTER(NULL);
}
