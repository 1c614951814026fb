/*
 * sql_stats.c
 *	  Counters, and the functions behind the views snowflake_node,
 *	  snowflake_stat and snowflake_stat_backend.
 *
 * Sessions count in their own slots, and this file adds the slots up.  No
 * function of this file is called to issue an id.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "clock.h"
#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "id_horizon.h"
#include "layout.h"
#include "lease_rules.h"
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

static bool read_held_lease(Lease *lease, TimestampTz *expires_at);
static Datum interval_datum(int64 duration_us);
static Datum record_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls);
static void sum_slots(Counters *sum, int64 *last_id);
static void add_counters(Counters *sum, const Counters *counters, int sign);

/* The columns of snowflake_node(). */
enum
{
	NODE_DATACENTER_ID,
	NODE_WORKER_ID,
	NODE_WORKER_ID_SOURCE,
	NODE_LAYOUT,
	NODE_EPOCH,
	NODE_TICK_INTERVAL,
	NODE_IDS_PER_SECOND,
	NODE_FIRST_INSTANT,
	NODE_LAST_INSTANT,
	NODE_HIGH_WATER_MARK,
	NODE_IN_RECOVERY,
	NODE_LEASE_HOLDER,
	NODE_LEASE_EXPIRES_AT,
	NODE_PENDING_RESTART,
	NODE_COLUMN_COUNT
};

/*
 * snowflake_node() -> record
 *		This server's node and layout.  The mark is NULL if the library is not
 *		preloaded or no process has read the page yet.  The worker id is NULL if
 *		the server has none, or holds no lease on one.  Only pg_monitor sees the
 *		lease's holder, which shows the machine and the data directory.
 */
Datum
snowflake_node(PG_FUNCTION_ARGS)
{
	const Layout *layout = node_layout();
	Lease		lease = {.worker_id = WORKER_ID_UNSET};
	TimestampTz lease_expires_at = 0;
	bool		is_held = read_held_lease(&lease, &lease_expires_at);
	int			worker_id = node_uses_registry() ?
		(is_held ? lease.worker_id : WORKER_ID_UNSET) :
		node_intended_worker_id();
	char		layout_text[LAYOUT_TEXT_SIZE];
	char	   *pending_restart = node_pending_restart();
	int64		mark = shmem_try_attach() ? shmem_mark() : 0;
	Datum		values[NODE_COLUMN_COUNT];
	bool		nulls[NODE_COLUMN_COUNT] = {false};

	layout_to_text(layout, layout_text);
	values[NODE_DATACENTER_ID] = Int32GetDatum(node_datacenter_id);
	values[NODE_WORKER_ID] = Int32GetDatum(worker_id);
	nulls[NODE_WORKER_ID] = worker_id == WORKER_ID_UNSET;
	values[NODE_WORKER_ID_SOURCE] =
		CStringGetTextDatum(node_worker_id_source_name());
	values[NODE_LAYOUT] = CStringGetTextDatum(layout_text);
	values[NODE_EPOCH] = TimestampTzGetDatum(layout->epoch);
	values[NODE_TICK_INTERVAL] = interval_datum(layout->tick_us);
	values[NODE_IDS_PER_SECOND] =
		Int64GetDatum((layout_field_max(layout->sequence_bits) + 1) *
					  USECS_PER_SEC / layout->tick_us);
	values[NODE_FIRST_INSTANT] =
		TimestampTzGetDatum(layout_tick_start(layout, 0));
	values[NODE_LAST_INSTANT] =
		TimestampTzGetDatum(layout_tick_start(layout, layout_max_tick(layout)));
	values[NODE_HIGH_WATER_MARK] =
		TimestampTzGetDatum(layout_tick_start(layout, mark));
	nulls[NODE_HIGH_WATER_MARK] = mark == 0;
	values[NODE_IN_RECOVERY] = BoolGetDatum(RecoveryInProgress());
	values[NODE_LEASE_HOLDER] = CStringGetTextDatum(lease.holder);
	nulls[NODE_LEASE_HOLDER] = !is_held ||
		!has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	values[NODE_LEASE_EXPIRES_AT] = TimestampTzGetDatum(lease_expires_at);
	nulls[NODE_LEASE_EXPIRES_AT] = !is_held;
	nulls[NODE_PENDING_RESTART] = pending_restart == NULL;
	if (pending_restart != NULL)
		values[NODE_PENDING_RESTART] = CStringGetTextDatum(pending_restart);
	return record_datum(fcinfo, values, nulls);
}

/* The columns of snowflake_stat(). */
enum
{
	STAT_IDS_ISSUED,
	STAT_LAST_ID,
	STAT_LAST_ISSUED_AT,
	STAT_SEQUENCE_WAITS,
	STAT_SEQUENCE_WAIT_TIME,
	STAT_CLOCK_REGRESSIONS,
	STAT_MAX_REGRESSION,
	STAT_CLOCK_WAIT_TIME,
	STAT_CLOCK_REFUSALS,
	STAT_LEAD,
	STAT_HIGH_WATER_WRITES,
	STAT_LEASE_RENEWALS,
	STAT_LEASE_FAILURES,
	STAT_STATS_RESET,
	STAT_COLUMN_COUNT
};

/*
 * snowflake_stat() -> record
 *		The counters of all sessions since the last reset, or since the
 *		server's start.  ERROR 55000 if the library was not preloaded.
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
	bool		is_unused;
	Datum		values[STAT_COLUMN_COUNT];
	bool		nulls[STAT_COLUMN_COUNT] = {false};

	shmem_attach();
	LWLockAcquire(&shared->lock, LW_SHARED);
	sum_slots(&totals, &last_id);
	add_counters(&totals, &shared->counters_at_reset, -1);
	max_regression_us = shared->max_regression_us;
	stats_reset = shared->stats_reset;
	LWLockRelease(&shared->lock);
	is_unused = last_id == LAYOUT_NONE;
	if (!is_unused)
		layout_split(layout, last_id, &last);
	last_issued_at = layout_tick_start(layout, last.tick);

	values[STAT_IDS_ISSUED] = Int64GetDatum((int64) totals.ids_issued);
	values[STAT_LAST_ID] = Int64GetDatum(last_id);
	nulls[STAT_LAST_ID] = is_unused;
	values[STAT_LAST_ISSUED_AT] = TimestampTzGetDatum(last_issued_at);
	nulls[STAT_LAST_ISSUED_AT] = is_unused;
	values[STAT_SEQUENCE_WAITS] = Int64GetDatum((int64) totals.sequence_waits);
	values[STAT_SEQUENCE_WAIT_TIME] =
		interval_datum((int64) totals.sequence_wait_us);
	values[STAT_CLOCK_REGRESSIONS] =
		Int64GetDatum((int64) totals.clock_regressions);
	values[STAT_MAX_REGRESSION] = interval_datum(max_regression_us);
	values[STAT_CLOCK_WAIT_TIME] = interval_datum((int64) totals.clock_wait_us);
	values[STAT_CLOCK_REFUSALS] = Int64GetDatum((int64) totals.clock_refusals);
	values[STAT_LEAD] =
		interval_datum(Max(last_issued_at - GetCurrentTimestamp(), 0));
	nulls[STAT_LEAD] = is_unused;
	values[STAT_HIGH_WATER_WRITES] = Int64GetDatum((int64) totals.mark_writes);
	values[STAT_LEASE_RENEWALS] = Int64GetDatum((int64) totals.lease_renewals);
	values[STAT_LEASE_FAILURES] = Int64GetDatum((int64) totals.lease_failures);
	values[STAT_STATS_RESET] = TimestampTzGetDatum(stats_reset);
	return record_datum(fcinfo, values, nulls);
}

/* The columns of snowflake_stat_backend(). */
enum
{
	BACKEND_PID,
	BACKEND_IDS_ISSUED,
	BACKEND_SEQUENCE_WAITS,
	BACKEND_CLOCK_WAITS,
	BACKEND_LAST_ID,
	BACKEND_HORIZON,
	BACKEND_COLUMN_COUNT
};

/*
 * snowflake_stat_backend() -> setof record
 *		The counters of each session that is connected and has asked for an id.
 *		Column "horizon" is where the transaction holds the horizon, NULL if
 *		the transaction has no id.  A user without the rights of
 *		pg_read_all_stats sees only the present session.  Errors as
 *		shmem_attach().
 */
Datum
snowflake_stat_backend(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		sees_all = has_privs_of_role(GetUserId(),
											 ROLE_PG_READ_ALL_STATS);

	shmem_attach();
	InitMaterializedSRF(fcinfo, 0);
	for (int number = 0; number < MaxBackends; number++)
	{
		BackendSlot *slot = &shared->slots[number].slot;
		uint64		hold = pg_atomic_read_u64(&slot->hold);
		int			pid = slot->pid;
		Counters	counters = {0};
		Datum		values[BACKEND_COLUMN_COUNT];
		bool		nulls[BACKEND_COLUMN_COUNT] = {false};

		if (pid == 0 || !(sees_all || pid == MyProcPid))
			continue;
		pg_read_barrier();		/* pairs with the barrier in take_slot() */

		/* Counters only grow, so reading "before" first gives no negatives. */
		add_counters(&counters, &slot->before, -1);
		pg_read_barrier();
		add_counters(&counters, &slot->counters, 1);
		values[BACKEND_PID] = Int32GetDatum(pid);
		values[BACKEND_IDS_ISSUED] = Int64GetDatum((int64) counters.ids_issued);
		values[BACKEND_SEQUENCE_WAITS] =
			Int64GetDatum((int64) counters.sequence_waits);
		values[BACKEND_CLOCK_WAITS] = Int64GetDatum((int64) counters.clock_waits);
		values[BACKEND_LAST_ID] = Int64GetDatum(slot->last_id);
		nulls[BACKEND_LAST_ID] = counters.ids_issued == 0;
		nulls[BACKEND_HORIZON] = hold == 0;
		if (hold != 0)
			values[BACKEND_HORIZON] = Int64GetDatum(horizon_of_hold(hold));
		tuplestore_putvalues(result->setResult, result->setDesc, values,
							 nulls);
	}
	return (Datum) 0;
}

/*
 * snowflake_stat_reset() -> void
 *		Makes snowflake_stat count from zero again.  ERROR 55000 if the library
 *		was not preloaded.
 */
Datum
snowflake_stat_reset(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		last_id;

	shmem_attach();
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	sum_slots(&shared->counters_at_reset, &last_id);
	shared->max_regression_us = 0;
	shared->stats_reset = now;
	LWLockRelease(&shared->lock);
	PG_RETURN_VOID();
}

/*
 * Finds the lease that this server holds, and when it ends by the wall clock.
 * Returns false if the server holds no lease.
 */
static bool
read_held_lease(Lease *lease, TimestampTz *expires_at)
{
	int64		now_us = clock_boottime_us();

	if (!node_uses_registry())
		return false;
	shmem_read_lease(lease);
	*expires_at = GetCurrentTimestamp() + (lease->ends_us - now_us);
	return lease_is_valid(lease, now_us);
}

static Datum
interval_datum(int64 duration_us)
{
	Interval   *interval = (Interval *) palloc0(sizeof(Interval));

	interval->time = duration_us;
	return IntervalPGetDatum(interval);
}

/* Makes the record that a function with OUT parameters returns. */
static Datum
record_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 values, nulls));
}

/* Adds up the counters since the server's start, and finds the largest id. */
static void
sum_slots(Counters *sum, int64 *last_id)
{
	memset(sum, 0, sizeof(*sum));
	*last_id = LAYOUT_NONE;
	for (int i = 0; i < MaxBackends; i++)
	{
		const BackendSlot *slot = &shared->slots[i].slot;

		add_counters(sum, &slot->counters, 1);
		if (slot->counters.ids_issued > 0)
			*last_id = Max(*last_id, slot->last_id);
	}
}

/*
 * Adds counters to a sum, or subtracts them; sign is 1 or -1.  Reads each
 * counter without a lock while the counters' owners go on counting.  So two
 * counters may be of slightly different instants.
 */
static void
add_counters(Counters *sum, const Counters *counters, int sign)
{
	/* In unsigned arithmetic, adding a number times -1 subtracts it. */
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
