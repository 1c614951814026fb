/*
 * sql_issue.c
 *	  The SQL functions that issue ids.
 *
 * The functions convert arguments and results, and raise errors for invalid
 * arguments.  The rules of issuing are in id_generator.c.
 */
#include "postgres.h"

#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "id_generator.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/regproc.h"
#include "utils/tuplestore.h"

/* The most ids that one swap takes: other sessions want some of the tick, too. */
#define RUN_MAX 256

PG_FUNCTION_INFO_V1(snowflake_nextval);
PG_FUNCTION_INFO_V1(snowflake_nextvals);
PG_FUNCTION_INFO_V1(snowflake_currval);
PG_FUNCTION_INFO_V1(snowflake_horizon);

static void sql_refuse_foreign_function(FunctionCallInfo fcinfo);

/* snowflake_nextval() -> bigint */
Datum
snowflake_nextval(PG_FUNCTION_ARGS)
{
	if (unlikely(PG_NARGS() != 0))
		sql_refuse_foreign_function(fcinfo);
	PG_RETURN_INT64(generator_next());
}

/*
 * snowflake_nextvals(count integer) -> setof bigint
 *		"count" ids, in increasing order, all issued before the first is
 *		returned.
 */
Datum
snowflake_nextvals(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int32		wanted = PG_GETARG_INT32(0);

	if (wanted < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot issue %d ids", wanted),
				 errhint("Ask for a count in the range 0 .. %d.",
						 PG_INT32_MAX)));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	while (wanted > 0)
	{
		int64		count;
		int64		id = generator_next_run(Min(wanted, RUN_MAX), &count);

		CHECK_FOR_INTERRUPTS();
		wanted -= (int32) count;
		for (; count > 0; count--, id++)
		{
			Datum		value = Int64GetDatum(id);
			bool		is_null = false;

			tuplestore_putvalues(result->setResult, result->setDesc, &value,
								 &is_null);
		}
	}
	return (Datum) 0;
}

/* snowflake_currval() -> bigint */
Datum
snowflake_currval(PG_FUNCTION_ARGS)
{
	int64		id;

	if (PG_NARGS() != 0)
		sql_refuse_foreign_function(fcinfo);
	node_require_preload();
	if (!generator_last_of_session(&id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no snowflake id has been issued in this session"),
				 errhint("Call snowflake_nextval() first.")));
	PG_RETURN_INT64(id);
}

/*
 * snowflake_horizon([rel regclass]) -> bigint
 *		An id below which every transaction, or every transaction that writes
 *		to a table, has ended.  Errors as generator_horizon().
 */
Datum
snowflake_horizon(PG_FUNCTION_ARGS)
{
	if (PG_NARGS() != 0 && !OidIsValid(PG_GETARG_OID(0)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID 0 does not exist")));
	PG_RETURN_INT64(generator_horizon(PG_NARGS() == 0 ? InvalidOid :
									  PG_GETARG_OID(0)));
}

/*
 * pgEdge's extension of the same name has functions with the same C symbols,
 * but with an argument.  A database may still have these functions, and then
 * PostgreSQL calls this library for them.  Always raises ERROR 55000.
 */
static void
sql_refuse_foreign_function(FunctionCallInfo fcinfo)
{
	char	   *name = format_procedure(fcinfo->flinfo->fn_oid);

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("function %s is of another extension named \"snowflake\"", name),
			 errdetail("The library that is loaded is not that extension's."),
			 errhint("See \"From another snowflake scheme\" in the documentation, doc/migration.md.")));
}
