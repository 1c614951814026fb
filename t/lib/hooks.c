/*
 * hooks.c
 *	  A library that refuses to be loaded after a library that has hooks, as
 *	  Citus does, and that has a hook itself.  t/037_load_order.pl preloads it.
 */
#include "postgres.h"

#include "commands/explain.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "optimizer/planner.h"
#include "tcop/utility.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static ProcessUtility_hook_type previous_hook = NULL;

static void
process_utility(PlannedStmt *statement, const char *query, bool is_read_only,
				ProcessUtilityContext context, ParamListInfo parameters,
				QueryEnvironment *environment, DestReceiver *destination,
				QueryCompletion *completion)
{
	if (IsA(statement->utilityStmt, CreateStmt))
		elog(NOTICE, "the other hook");
	(previous_hook ? previous_hook : standard_ProcessUtility)
		(statement, query, is_read_only, context, parameters, environment,
		 destination, completion);
}

void
_PG_init(void)
{
	if (planner_hook != NULL || ProcessUtility_hook != NULL ||
		ExecutorStart_hook != NULL || ExecutorRun_hook != NULL ||
		ExplainOneQuery_hook != NULL)
		ereport(ERROR, (errmsg("this library has to be loaded first")));
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
