/*
 * stats.c
 *	  Counters, and the functions behind the views snowflake_node,
 *	  snowflake_stat and snowflake_stat_backend.
 *
 * Sessions count in their own slots; here the slots are read and added up.
 * Nothing here is on the way of an id.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "clock.h"
#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "layout.h"
#include "lease.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_node);
PG_FUNCTION_INFO_V1(snowflake_stat);
PG_FUNCTION_INFO_V1(snowflake_stat_backend);
PG_FUNCTION_INFO_V1(snowflake_stat_reset);

#define NO_ID INT64CONST(-1)

/* ERROR 55000 unless the library was preloaded; for readers of counters. */
static void
require_counters(void)
{
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids are not counted because the library was not preloaded"),
				 errhint("Add \"snowflake\" to \"shared_preload_libraries\" and restart the server.")));
}

/*
 * Adds counters, or takes them off: sign is 1 or -1.  They are read without a
 * lock while their owners go on, each as a whole; together they are no more
 * exact than that.
 */
static void
add_counters(Counters *sum, const Counters *counters, int sign)
{
	/* Unsigned, so that -1 wraps round to a subtraction. */
	uint64		factor = (uint64) (int64) sign;

	sum->ids_issued += factor * counters->ids_issued;
	sum->sequence_waits += factor * counters->sequence_waits;
	sum->sequence_wait_us += factor * counters->sequence_wait_us;
	sum->clock_waits += factor * counters->clock_waits;
	sum->clock_wait_us += factor * counters->clock_wait_us;
	sum->clock_regressions += factor * counters->clock_regressions;
	sum->clock_refusals += factor * counters->clock_refusals;
	sum->mark_writes += factor * counters->mark_writes;
	sum->lease_renewals += factor * counters->lease_renewals;
	sum->lease_failures += factor * counters->lease_failures;
}

/* The counters of all sessions since the start, and their largest id. */
static void
sum_slots(Counters *sum, int64 *last_id)
{
	memset(sum, 0, sizeof(*sum));
	*last_id = NO_ID;
	for (int i = 0; i < MaxBackends; i++)
	{
		const BackendSlot *slot = &backend_slots[i].slot;

		add_counters(sum, &slot->counters, 1);
		if (slot->counters.ids_issued > 0)
			*last_id = Max(*last_id, slot->last_id);
	}
}

static Datum
interval_datum(int64 duration_us)
{
	Interval   *interval = (Interval *) palloc0(sizeof(Interval));

	interval->time = duration_us;
	return IntervalPGetDatum(interval);
}

/* The record that a function with OUT parameters returns. */
static Datum
record_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 values, nulls));
}

/*
 * The lease that this server holds, and until when by the wall clock.  False
 * if it holds none.
 */
static bool
present_lease(Lease *lease, TimestampTz *expires_at)
{
	int64		now_us = clock_boottime_us();

	if (shared == NULL || !node_is_leased())
		return false;
	shmem_read_lease(lease);
	*expires_at = GetCurrentTimestamp() + (lease->ends_us - now_us);
	return lease_is_valid(lease, now_us);
}

/*
 * snowflake_node() -> record
 *		Who this server is, and what its layout holds.  The mark is NULL where
 *		the library is not preloaded or the page has not been read; the worker
 *		id where there is none, or no lease on it is held.  The lease's holder
 *		tells the machine and the data directory: only pg_monitor sees it.
 */
Datum
snowflake_node(PG_FUNCTION_ARGS)
{
	const Layout *layout = node_layout();
	Lease		lease = {.worker_id = LEASE_NONE};
	TimestampTz lease_expires_at = 0;
	bool		is_held = present_lease(&lease, &lease_expires_at);
	int			worker_id = node_is_leased() ?
		(is_held ? lease.worker_id : NODE_WORKER_ID_UNSET) :
		node_intended_worker_id();
	char		layout_text[LAYOUT_TEXT_SIZE];
	int64		mark = shared == NULL ? 0 : shmem_mark();
	TimestampTz elsewhere_at = shared == NULL ? 0 : shared->beginning.elsewhere_at;
	Datum		values[14];
	bool		nulls[14] = {false};
	int			i = 0;

	layout_to_text(layout, layout_text);
	values[i++] = Int32GetDatum(node_datacenter_id);
	nulls[i] = worker_id == NODE_WORKER_ID_UNSET;
	values[i++] = Int32GetDatum(worker_id);
	values[i++] = CStringGetTextDatum(node_worker_id_source_name());
	values[i++] = CStringGetTextDatum(layout_text);
	values[i++] = TimestampTzGetDatum(layout->epoch);
	values[i++] = interval_datum(layout->tick_us);
	values[i++] = Int64GetDatum((layout_field_max(layout->sequence_bits) + 1) *
								USECS_PER_SEC / layout->tick_us);
	values[i++] = TimestampTzGetDatum(layout_tick_start(layout, 0));
	values[i++] = TimestampTzGetDatum(layout_tick_start(layout,
														layout_max_tick(layout)));
	nulls[i] = mark == 0;
	values[i++] = TimestampTzGetDatum(layout_tick_start(layout, mark));
	values[i++] = BoolGetDatum(RecoveryInProgress());
	nulls[i] = !is_held ||
		!has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	values[i++] = CStringGetTextDatum(lease.holder);
	nulls[i] = !is_held;
	values[i++] = TimestampTzGetDatum(lease_expires_at);
	nulls[i] = elsewhere_at == 0;
	values[i++] = TimestampTzGetDatum(elsewhere_at);
	return record_datum(fcinfo, values, nulls);
}

/*
 * snowflake_stat() -> record
 *		What all sessions have done since the last reset, or the server's
 *		start.  ERROR 55000 if the library was not preloaded.
 */
Datum
snowflake_stat(PG_FUNCTION_ARGS)
{
	const Layout *layout = node_layout();
	Counters	totals;
	int64		last_id;
	int64		max_regression_us;
	TimestampTz stats_reset;
	IdFields	last = {0};
	TimestampTz last_issued_at;
	Datum		values[14];
	bool		nulls[14] = {false};
	int			i = 0;

	require_counters();
	LWLockAcquire(&shared->lock, LW_SHARED);
	sum_slots(&totals, &last_id);
	add_counters(&totals, &shared->counters_at_reset, -1);
	max_regression_us = shared->max_regression_us;
	stats_reset = shared->stats_reset;
	LWLockRelease(&shared->lock);
	if (last_id >= 0)
		layout_split(layout, last_id, &last);
	last_issued_at = layout_tick_start(layout, last.tick);

	values[i++] = Int64GetDatum((int64) totals.ids_issued);
	nulls[i] = nulls[i + 1] = last_id < 0;
	values[i++] = Int64GetDatum(last_id);
	values[i++] = TimestampTzGetDatum(last_issued_at);
	values[i++] = Int64GetDatum((int64) totals.sequence_waits);
	values[i++] = interval_datum((int64) totals.sequence_wait_us);
	values[i++] = Int64GetDatum((int64) totals.clock_regressions);
	values[i++] = interval_datum(max_regression_us);
	values[i++] = interval_datum((int64) totals.clock_wait_us);
	values[i++] = Int64GetDatum((int64) totals.clock_refusals);
	nulls[i] = last_id < 0;
	values[i++] = interval_datum(Max(last_issued_at - GetCurrentTimestamp(),
									 0));
	values[i++] = Int64GetDatum((int64) totals.mark_writes);
	values[i++] = Int64GetDatum((int64) totals.lease_renewals);
	values[i++] = Int64GetDatum((int64) totals.lease_failures);
	values[i++] = TimestampTzGetDatum(stats_reset);
	return record_datum(fcinfo, values, nulls);
}

/*
 * snowflake_stat_backend() -> setof record
 *		What each session has done that has asked for an id and is not over.
 *		Those without the rights of pg_read_all_stats see their own only.
 *		ERROR 55000 if the library was not preloaded.
 */
Datum
snowflake_stat_backend(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		sees_all = has_privs_of_role(GetUserId(),
											 ROLE_PG_READ_ALL_STATS);

	require_counters();
	InitMaterializedSRF(fcinfo, 0);
	for (int number = 0; number < MaxBackends; number++)
	{
		const BackendSlot *slot = &backend_slots[number].slot;
		int			pid = slot->pid;
		Counters	counters = {0};
		Datum		values[5];
		bool		nulls[5] = {false};

		if (pid == 0 || !(sees_all || pid == MyProcPid))
			continue;
		pg_read_barrier();		/* pairs with attach()'s in generator.c */

		/* Counters only grow, so what is read later is no less. */
		add_counters(&counters, &slot->before, -1);
		pg_read_barrier();
		add_counters(&counters, &slot->counters, 1);
		values[0] = Int32GetDatum(pid);
		values[1] = Int64GetDatum((int64) counters.ids_issued);
		values[2] = Int64GetDatum((int64) counters.sequence_waits);
		values[3] = Int64GetDatum((int64) counters.clock_waits);
		values[4] = Int64GetDatum(slot->last_id);
		nulls[4] = counters.ids_issued == 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values,
							 nulls);
	}
	return (Datum) 0;
}

/*
 * snowflake_stat_reset() -> void
 *		Lets snowflake_stat count from zero.  ERROR 55000 if the library was
 *		not preloaded.
 */
Datum
snowflake_stat_reset(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		last_id;

	require_counters();
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	sum_slots(&shared->counters_at_reset, &last_id);
	shared->max_regression_us = 0;
	shared->stats_reset = now;
	LWLockRelease(&shared->lock);
	PG_RETURN_VOID();
}
