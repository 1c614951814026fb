/*
 * peers.c
 *	  Peers of the extension's functions: C functions that cost little more
 *	  than the call itself.
 *
 * bench/run compiles this and loads it by its path; it is never installed.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/timestamp.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(bench_noop);
PG_FUNCTION_INFO_V1(bench_counter);
PG_FUNCTION_INFO_V1(bench_clock);
PG_FUNCTION_INFO_V1(bench_same);
PG_FUNCTION_INFO_V1(bench_record);

/*
 * bench_noop() -> bigint
 *		The cost of a call.
 */
Datum
bench_noop(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(1);
}

/*
 * bench_counter() -> bigint
 *		The least cost of a function that makes keys: 1, 2, 3 in each session.
 */
Datum
bench_counter(PG_FUNCTION_ARGS)
{
	static int64 last = 0;

	PG_RETURN_INT64(++last);
}

/*
 * bench_clock() -> bigint
 *		The least cost of a function that reads the clock.
 */
Datum
bench_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(GetCurrentTimestamp());
}

/*
 * bench_same(bigint) -> bigint
 *		The cost of a call with an argument: snowflake_timestamp()'s peer.
 */
Datum
bench_same(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(PG_GETARG_INT64(0));
}

/*
 * bench_record(bigint) -> (timestamptz, integer, integer, integer)
 *		The cost of making a record: snowflake_decode()'s peer.  Like that
 *		function, it looks its result type up only once in a query.
 */
Datum
bench_record(PG_FUNCTION_ARGS)
{
	TupleDesc	tupdesc = fcinfo->flinfo->fn_extra;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (tupdesc == NULL)
	{
		MemoryContext caller = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "bench_record() must return a record");
		fcinfo->flinfo->fn_extra = BlessTupleDesc(tupdesc);
		MemoryContextSwitchTo(caller);
	}

	values[0] = TimestampTzGetDatum(PG_GETARG_INT64(0));
	values[1] = Int32GetDatum(1);
	values[2] = Int32GetDatum(2);
	values[3] = Int32GetDatum(3);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}
