/*
 * sql_support.c
 *	  Planner support functions: constant bounds of time ranges, and how many
 *	  rows snowflake_nextvals() returns.
 *
 * snowflake_min_id() and its like are STABLE because they depend on the layout
 * of the data's ids.  But a layout that is final does not change while the
 * server runs, and no plan outlives the server.  So the planner may compute
 * the bound of a constant instant, and prune partitions at plan time.  On a
 * standby no layout is final, and the executor prunes.
 *
 * The planner also takes a constant in a CHECK for the one that every row has
 * passed.  But a layout may have changed since, before the first id or by
 * snowflake_change_layout().  Then rows have passed the CHECK by the bounds of
 * another layout, and the planner would exclude tables that have them.  So no
 * bound in a CHECK becomes a constant.
 */
#include "postgres.h"

#include "compat.h"
#include "fmgr.h"
#include "mark_layout.h"
#include "node.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "nodes/supportnodes.h"
#include "optimizer/optimizer.h"

PG_FUNCTION_INFO_V1(snowflake_bound_support);
PG_FUNCTION_INFO_V1(snowflake_rows_support);

static Node *sql_fold_bound(const SupportRequestSimplify *request);

/*
 * Support function of snowflake_min_id(timestamptz),
 * snowflake_max_id(timestamptz), and the two functions that
 * snowflake_issued_between() is inlined to.
 */
Datum
snowflake_bound_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestSimplify))
		PG_RETURN_POINTER(sql_fold_bound((SupportRequestSimplify *) request));
	PG_RETURN_POINTER(NULL);
}

/* Support function of snowflake_nextvals(integer). */
Datum
snowflake_rows_support(PG_FUNCTION_ARGS)
{
	Node	   *node = (Node *) PG_GETARG_POINTER(0);

	if (IsA(node, SupportRequestRows))
	{
		SupportRequestRows *request = (SupportRequestRows *) node;
		Node	   *count = NULL;

		if (is_funcclause(request->node))
			count = estimate_expression_value(request->root,
											  linitial(((FuncExpr *) request->node)->args));
		if (count != NULL && IsA(count, Const))
		{
			Const	   *constant = (Const *) count;

			request->rows = constant->constisnull ? 0 :
				Max(DatumGetInt32(constant->constvalue), 0);
			PG_RETURN_POINTER(request);
		}
	}
	PG_RETURN_POINTER(NULL);
}

/*
 * Returns the bound of a time range as a constant, or NULL if the bound is not
 * constant.
 *
 * A request without a "root" is not for a query.  PostgreSQL makes such a
 * request for an expression that it stores, such as the predicate of an index.
 * With a constant bound PostgreSQL would accept the predicate as immutable,
 * and the index would be wrong after a restart with another layout.
 *
 * The planner simplifies a query's expressions before it makes the array of
 * the query's relations, and the CHECKs of the relations afterwards.
 */
static Node *
sql_fold_bound(const SupportRequestSimplify *request)
{
	FuncExpr   *call = request->fcall;
	Node	   *instant = (Node *) linitial(call->args);

	if (request->root == NULL || request->root->simple_rel_array != NULL ||
		!IsA(instant, Const) || ((Const *) instant)->constisnull ||
		!node_is_preloaded() || !mark_layout_is_final())
		return NULL;

	/* The executor evaluates the call, and checks the privilege for it. */
	return (Node *) evaluate_expr((Expr *) call, call->funcresulttype, -1,
								  call->funccollid);
}
