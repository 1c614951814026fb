/*
 * sql_stats.c
 *	  This server's node, the layout of its data, and counters.
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
#include "lease_state.h"
#include "mark_layout.h"
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

/* The most columns of a function here. */
#define COLUMNS_MAX 14

/* A row of a function's result. */
typedef struct SnowflakeRow
{
	int			count;
	Datum		values[COLUMNS_MAX];
	bool		nulls[COLUMNS_MAX];
} SnowflakeRow;

static void sql_row_add(SnowflakeRow *row, Datum value, bool is_null);
static void sql_row_add_number(SnowflakeRow *row, uint64 number);
static void sql_row_add_interval(SnowflakeRow *row, int64 duration_us,
								 bool is_null);
static void sql_row_add_backend(SnowflakeRow *row, const BackendSlot *slot,
								int pid,
								const HorizonHold *hold);
static Datum sql_row_datum(FunctionCallInfo fcinfo, SnowflakeRow *row);
static void sql_sum_slots(SnowflakeCounters *sum, int64 *last_id);
static void sql_add_counters(SnowflakeCounters *sum,
							 const SnowflakeCounters *counters,
							 int sign);

/*
 * snowflake_node() -> record
 *		The mark is NULL before a process has read the page.  The worker id is
 *		NULL if the server has none, or none at this time.  Only pg_monitor
 *		sees the lease's holder, by which another server could pose as this one.
 */
Datum
snowflake_node(PG_FUNCTION_ARGS)
{
	const SnowflakeLayout *layout = mark_layout();
	SnowflakeLease lease = {.worker_id = WORKER_ID_UNSET};
	int64		now_us = clock_boottime_us();
	bool		is_held = false;
	int64		mark = shmem_mark();
	int			worker_id = node_worker_id;
	SnowflakeRow row = {0};

	if (node_uses_registry())
	{
		lease_state_read_in_force(&lease);
		is_held = lease_is_valid(&lease, now_us);
		worker_id = is_held && lease.fence > GetCurrentTimestamp() ?
			lease.worker_id : WORKER_ID_UNSET;
	}

	sql_row_add(&row, Int32GetDatum(node_datacenter_id), false);
	sql_row_add(&row, Int32GetDatum(worker_id), worker_id == WORKER_ID_UNSET);
	sql_row_add(&row, CStringGetTextDatum(node_worker_id_source_name()),
				false);
	sql_row_add(&row, CStringGetTextDatum(layout_to_text(layout)), false);
	sql_row_add(&row, TimestampTzGetDatum(layout->epoch), false);
	sql_row_add_interval(&row, layout->tick_us, false);
	sql_row_add_number(&row,
					   (uint64) (layout_field_max(layout->sequence_bits) + 1) *
					   USECS_PER_SEC / layout->tick_us);
	sql_row_add(&row, TimestampTzGetDatum(layout_tick_start(layout, 0)),
				false);
	sql_row_add(&row, TimestampTzGetDatum(layout_tick_start(layout,
															layout_max_tick(layout))),
				false);
	sql_row_add(&row, TimestampTzGetDatum(layout_tick_start(layout, mark)),
				mark == 0);
	sql_row_add(&row, BoolGetDatum(RecoveryInProgress()), false);
	sql_row_add(&row, CStringGetTextDatum(lease.holder),
				!is_held || !has_privs_of_role(GetUserId(), ROLE_PG_MONITOR));
	sql_row_add(&row, TimestampTzGetDatum(GetCurrentTimestamp() +
										  (lease.ends_us - now_us)), !is_held);
	return sql_row_datum(fcinfo, &row);
}

/*
 * snowflake_stat() -> record
 *		The counters of all sessions since the last reset, or since the
 *		server's start.
 */
Datum
snowflake_stat(PG_FUNCTION_ARGS)
{
	const SnowflakeLayout *layout = mark_layout();
	SnowflakeCounters totals;
	int64		last_id;
	int64		max_regression_us;
	TimestampTz stats_reset;
	IdFields	last = {0};
	TimestampTz last_issued_at;
	bool		is_unused;
	SnowflakeRow row = {0};

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	sql_sum_slots(&totals, &last_id);
	sql_add_counters(&totals, &snowflake_shared->counters_at_reset, -1);
	max_regression_us = snowflake_shared->max_regression_us;
	stats_reset = snowflake_shared->stats_reset;
	LWLockRelease(&snowflake_shared->lock);
	is_unused = last_id == LAYOUT_NONE;
	if (!is_unused)
		last = layout_split(layout, last_id);
	last_issued_at = layout_tick_start(layout, last.tick);

	sql_row_add_number(&row, totals.ids_issued);
	sql_row_add(&row, Int64GetDatum(last_id), is_unused);
	sql_row_add(&row, TimestampTzGetDatum(last_issued_at), is_unused);
	sql_row_add_number(&row, totals.sequence_waits);
	sql_row_add_interval(&row, (int64) totals.sequence_wait_us, false);
	sql_row_add_number(&row, totals.clock_regressions);
	sql_row_add_interval(&row, max_regression_us, false);
	sql_row_add_interval(&row, (int64) totals.clock_wait_us, false);
	sql_row_add_number(&row, totals.clock_refusals);
	sql_row_add_interval(&row, Max(last_issued_at - GetCurrentTimestamp(), 0),
						 is_unused);
	sql_row_add_number(&row, totals.mark_writes);
	sql_row_add_number(&row, totals.lease_renewals);
	sql_row_add_number(&row, totals.lease_failures);
	sql_row_add(&row, TimestampTzGetDatum(stats_reset), false);
	return sql_row_datum(fcinfo, &row);
}

/*
 * snowflake_stat_backend(rel regclass DEFAULT NULL) -> setof record
 *		The counters of each session that is connected and has asked for an id,
 *		and the prepared transactions that hold the horizon back.  Column
 *		"horizon" is where a transaction holds the horizon, NULL if it has no
 *		id.  With a table, only the sessions and prepared transactions that
 *		hold back the horizon of the table.  A user without the rights of
 *		pg_read_all_stats sees only the present session.
 */
Datum
snowflake_stat_backend(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			table = PG_ARGISNULL(0) ? InvalidOid : PG_GETARG_OID(0);
	bool		sees_all = has_privs_of_role(GetUserId(),
											 ROLE_PG_READ_ALL_STATS);
	HorizonHold *holds;
	int			count;
	int			next = 0;

	(void) mark_layout();		/* for horizon_of_hold() */
	InitMaterializedSRF(fcinfo, 0);
	holds = horizon_find_holds(table, &count);
	for (int number = 0; number < shmem_slot_count(); number++)
	{
		const BackendSlot *slot = &snowflake_shared->slots[number].slot;
		int			pid = slot->pid;
		HorizonHold hold = {0};
		SnowflakeRow row = {0};

		if (next < count && holds[next].number == number)
			hold = holds[next++];
		else if (OidIsValid(table))
			continue;

		/* A session can have ended since its hold was read. */
		if (pid == 0 && hold.xid == 0)
			continue;
		if (!(sees_all || pid == MyProcPid))
			continue;
		sql_row_add_backend(&row, slot, pid, &hold);
		tuplestore_putvalues(result->setResult, result->setDesc, row.values,
							 row.nulls);
	}
	return (Datum) 0;
}

/* snowflake_stat_reset() -> void */
Datum
snowflake_stat_reset(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		last_id;

	node_require_preload();
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	sql_sum_slots(&snowflake_shared->counters_at_reset, &last_id);
	snowflake_shared->max_regression_us = 0;
	snowflake_shared->stats_reset = now;
	LWLockRelease(&snowflake_shared->lock);
	PG_RETURN_VOID();
}

static void
sql_row_add(SnowflakeRow *row, Datum value, bool is_null)
{
	Assert(row->count < COLUMNS_MAX);
	row->values[row->count] = value;
	row->nulls[row->count++] = is_null;
}

static void
sql_row_add_number(SnowflakeRow *row, uint64 number)
{
	sql_row_add(row, Int64GetDatum((int64) number), false);
}

static void
sql_row_add_interval(SnowflakeRow *row, int64 duration_us, bool is_null)
{
	Interval   *interval = (Interval *) palloc0(sizeof(Interval));

	interval->time = duration_us;
	sql_row_add(row, IntervalPGetDatum(interval), is_null);
}

/* Adds the columns of snowflake_stat_backend(); pid was read off the slot. */
static void
sql_row_add_backend(SnowflakeRow *row, const BackendSlot *slot, int pid,
					const HorizonHold *hold)
{
	SnowflakeCounters counters = {0};

	/* pairs with the barrier in generator_attach_session() */
	pg_read_barrier();

	/* Counters only grow, so reading "before" first gives no negatives. */
	sql_add_counters(&counters, &slot->before, -1);
	pg_read_barrier();
	sql_add_counters(&counters, &slot->counters, 1);

	sql_row_add(row, Int32GetDatum(pid), pid == 0);
	sql_row_add(row, TransactionIdGetDatum((TransactionId) hold->xid),
				hold->xid == 0);
	sql_row_add(row, Int64GetDatum((int64) counters.ids_issued), pid == 0);
	sql_row_add(row, Int64GetDatum((int64) counters.sequence_waits), pid == 0);
	sql_row_add(row, Int64GetDatum((int64) counters.clock_waits), pid == 0);
	sql_row_add(row, Int64GetDatum(slot->last_id), counters.ids_issued == 0);
	sql_row_add(row, TimestampTzGetDatum(hold->xact_start),
				hold->xact_start == 0);
	if (hold->hold == 0 || hold->hold == HORIZON_UNKNOWN)
		sql_row_add(row, (Datum) 0, true);
	else
		sql_row_add(row, Int64GetDatum(horizon_of_hold(hold->hold)), false);
}

static Datum
sql_row_datum(FunctionCallInfo fcinfo, SnowflakeRow *row)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 row->values, row->nulls));
}

/* Adds up the counters since the server's start, and finds the largest id. */
static void
sql_sum_slots(SnowflakeCounters *sum, int64 *last_id)
{
	memset(sum, 0, sizeof(*sum));
	*last_id = LAYOUT_NONE;
	for (int i = 0; i < MaxBackends; i++)
	{
		const BackendSlot *slot = &snowflake_shared->slots[i].slot;

		sql_add_counters(sum, &slot->counters, 1);
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
sql_add_counters(SnowflakeCounters *sum, const SnowflakeCounters *counters,
				 int sign)
{
	uint64	   *sums = (uint64 *) sum;
	const uint64 *numbers = (const uint64 *) counters;

	/* In unsigned arithmetic, adding a number times -1 subtracts it. */
	for (int i = 0; i < sizeof(SnowflakeCounters) / sizeof(uint64); i++)
		sums[i] += (uint64) (int64) sign * numbers[i];
}
