/*
 * id_generator.c
 *	  Issuing: one session's way from a call to an id.
 *
 * Shared memory holds one stamp: the (tick, sequence) of the newest id.  The
 * stamp only grows, so no id is issued twice, however the clock moves.  A
 * clock that steps back can delay or refuse the next id, but it never makes
 * the server use an earlier tick again.
 *
 * A session chooses the next stamp from the newest stamp and the clock, and
 * stores it by compare-and-swap, which fails if another session has changed
 * the stamp meanwhile.  The session reads the clock first, and guesses that
 * the newest stamp is the session's own last one.  A swap that fails brings
 * the newest stamp, and the session chooses again with the same reading.
 *
 * Before a session waits or refuses, it reads the stamp and then the clock.  A
 * clock behind the stamp then shows that the clock has stepped back, and not
 * that another session has issued an id between the two readings.  The locking
 * rules are in shmem.h.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xlog.h"
#include "clock.h"
#include "compat.h"
#include "id_generator.h"
#include "id_horizon.h"
#include "mark_layout.h"
#include "mark_log.h"
#include "mark_start.h"
#include "miscadmin.h"
#include "node.h"
#include "portability/instr_time.h"
#include "shmem.h"
#include "storage/ipc.h"

/* The number of waiting sessions that wake up for a tick of 1 ms. */
#define WAKEUPS_PER_MS 4

/*
 * The waits of one call.  The call may wait several times, but each counter
 * counts the call once.
 */
typedef struct SnowflakeWait
{
	bool		has_counted_clock;
	bool		has_counted_regression;
	int64		wakeup_tick;	/* the tick that the session wakes up for;
								 * LAYOUT_NONE before its first wait for one */
} SnowflakeWait;

/* The state of this session; generator_attach_session() fills it in. */
typedef struct SnowflakeSession
{
	BackendSlot *slot;			/* NULL until the session is attached */
	const SnowflakeLayout *layout;

	/*
	 * The session may issue ids with these node bits in ticks before the
	 * limit, without another look at the mark and the lease.
	 * generator_read_limit() sets both fields, and the limit is at most the
	 * mark at that time.
	 */
	int64		limit;
	int64		node_bits;
	ClockReading clock;			/* the newest reading */
	uint64		last_stamp;		/* the newest stamp that the session knows of */
} SnowflakeSession;

static SnowflakeSession session;

static void generator_attach_session(void);
static void generator_prepare(void);
static void generator_end_session(int code, Datum arg);
static inline int64 generator_issue(int64 wanted, int64 *count);
static inline bool generator_may_issue(int64 tick);
static inline bool generator_take_stamps(const SnowflakeLayout *layout,
										 int64 tick,
										 int64 wanted, int64 *first,
										 int64 *count);
static inline int64 generator_lead_us(int64 tick);
static pg_noinline void generator_wait_or_refuse(int64 tick,
												 SnowflakeWait *wait);
static void generator_read_limit(void);
static void generator_wait_for_tick(int64 tick, int64 wait_us,
									SnowflakeWait *wait);
static void generator_wait_for_clock(int64 behind_us, int64 wait_us,
									 SnowflakeWait *wait);
static int64 generator_choose_wakeup_tick(int64 next_tick);
static void generator_sleep_and_count(int64 duration_us, WaitReason reason,
									  uint64 *counter_us);
static void generator_count_regression(int64 regression_us,
									   SnowflakeWait *wait);
static void generator_refuse_behind(int64 behind_us);
static void generator_refuse_at_fence(int64 behind_us);
static void generator_refuse_outside_span(void);

/*
 * Returns the next id.  Errors as generator_attach_session() and
 * mark_log_next(), ERROR 54000 if the clock is outside the layout's span, and
 * 55000 if the clock is behind and the policy does not wait.
 */
int64
generator_next(void)
{
	int64		count;

	return generator_issue(1, &count);
}

/*
 * Returns the first of *count ids, each larger by 1 than the one before it:
 * what is left of a tick, "wanted" ids at most.  Errors as generator_next().
 */
int64
generator_next_run(int64 wanted, int64 *count)
{
	return generator_issue(wanted, count);
}

/* Returns false if the session has no last id yet. */
bool
generator_last_of_session(int64 *id)
{
	const BackendSlot *slot = session.slot;

	if (slot == NULL || slot->counters.ids_issued == slot->before.ids_issued)
		return false;
	*id = slot->last_id;
	return true;
}

/*
 * Returns the horizon of the server or, unless "table" is InvalidOid, of a
 * table.  Afterwards logs where ids begin if a start or a new lease has set
 * that and no mark was logged since, so that no later start begins below the
 * horizon.  Errors as generator_next(), except those of the clock.
 */
int64
generator_horizon(Oid table)
{
	int64		horizon;

	generator_prepare();
	horizon = horizon_read(table);
	if (snowflake_shared->mark_lsn == 0)
		mark_log_present();
	return horizon;
}

/*
 * Takes the backend's slot, and reads the session's first limit.  The checks
 * come first, so that a session that may not issue ids takes no slot.
 */
static void
generator_attach_session(void)
{
	BackendSlot *slot;

	generator_prepare();

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	RegisterXactCallback(horizon_end_transaction, NULL);
	before_shmem_exit(generator_end_session, (Datum) 0);
	session.layout = node_layout();
	slot = shmem_my_slot();

	/* A reader that sees the new pid must see the present "before", too. */
	pg_write_barrier();
	slot->pid = MyProcPid;
	session.slot = slot;
	generator_read_limit();
}

/* Refuses a process that may not issue ids, and finds where ids begin. */
static void
generator_prepare(void)
{
	/* A worker cannot hold the horizon until its leader's transaction ends. */
	if (IsParallelWorker())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("snowflake ids cannot be issued in a parallel worker"),
				 errhint("Label the function that asks for an id PARALLEL RESTRICTED or PARALLEL UNSAFE.")));
	node_require_preload();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("snowflake ids cannot be issued during recovery"),
				 errhint("Connect to the primary server, or promote this one.")));
	if (!node_uses_registry() && node_worker_id == WORKER_ID_UNSET)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("snowflake ids cannot be issued because \"snowflake.worker_id\" is not set"),
				 errhint("Set \"snowflake.worker_id\" in postgresql.conf or a file in conf.d to a number that no other server uses, in the range 0 .. " INT64_FORMAT ", and restart the server.",
						 layout_field_max(mark_layout()->worker_bits))));
	mark_start_once();
}

/* before_shmem_exit callback: frees the slot. */
static void
generator_end_session(int code, Datum arg)
{
	session.slot->before = session.slot->counters;
	session.slot->pid = 0;
	session.slot = NULL;
}

/*
 * Takes "wanted" stamps of one tick, or as many as the tick has left, and
 * returns the id of the first one.
 *
 *	clock against the last tick		next stamp
 *	ahead							the clock's tick, from its first sequence
 *	equal, sequence left			the next sequence
 *	equal, sequence spent			the next tick, if the policy allows its
 *									lead; else wait for that tick
 *	behind							the last stamp's successor, if the policy
 *									allows its lead; else wait or refuse
 *
 * Chooses again if another session has changed the stamp meanwhile; some
 * session always succeeds.
 */
static inline int64
generator_issue(int64 wanted, int64 *count)
{
	SnowflakeWait wait = {.wakeup_tick = LAYOUT_NONE};
	bool		is_clock_newer = false; /* was the clock read after the stamp? */
	const SnowflakeLayout *layout;
	int64		first;

	Assert(wanted >= 1);

	if (unlikely(!horizon_is_held))
	{
		if (session.slot == NULL)
			generator_attach_session();
		horizon_hold();
	}
	layout = session.layout;
	clock_read(layout, &session.clock);
	for (;;)
	{
		/* The stamp after a tick's last one is the first of the next tick. */
		int64		tick = Max(session.clock.tick,
							   (int64) ((session.last_stamp + 1) >>
										layout->sequence_bits));

		if (likely(generator_may_issue(tick)))
		{
			if (likely(generator_take_stamps(layout, tick, wanted, &first,
											 count)))
				break;
			is_clock_newer = false;
			continue;
		}

		if (is_clock_newer)
			generator_wait_or_refuse(tick, &wait);

		/*
		 * On arm64 the barrier orders the load of the stamp before the vDSO's
		 * loads, and the vDSO's own instruction barrier orders these before
		 * the counter.  x86 and s390x keep the order of loads.  Without the
		 * barrier the clock would seem to step back.
		 */
		session.last_stamp = pg_atomic_read_u64(&snowflake_shared->stamp);
		pg_read_barrier();
		clock_read(layout, &session.clock);
		is_clock_newer = true;
	}

	first = layout_stamp_id(layout, first, session.node_bits);
	session.slot->last_id = first + *count - 1;
	session.slot->counters.ids_issued += (uint64) *count;
	return first;
}

/*
 * May the session issue an id of a tick?  The tick is the clock's or later.
 * The limit is within the layout's span.
 */
static inline bool
generator_may_issue(int64 tick)
{
	return likely(tick < session.limit) &&
		likely(session.clock.position == SPAN_WITHIN) &&
		(likely(tick == session.clock.tick) ||
		 generator_lead_us(tick) <= clock_allowed_lead_us());
}

/*
 * Takes the next stamps, which are of a tick.  Returns false if another
 * session has changed the newest stamp meanwhile; then this session knows that
 * stamp.
 */
static inline bool
generator_take_stamps(const SnowflakeLayout *layout, int64 tick, int64 wanted,
					  int64 *first, int64 *count)
{
	int64		last = (int64) session.last_stamp;
	int64		newest;

	/* The second is larger if the tick is later than the last stamp's. */
	*first = Max(last + 1, tick << layout->sequence_bits);
	newest = *first;
	if (wanted > 1)
		newest = Min(*first + wanted - 1, layout_last_stamp(layout, tick));

	/* A swap that fails sets last_stamp to the newest stamp. */
	if (unlikely(!pg_atomic_compare_exchange_u64(&snowflake_shared->stamp,
												 &session.last_stamp,
												 (uint64) newest)))
		return false;
	session.last_stamp = (uint64) newest;
	*count = newest - *first + 1;
	return true;
}

/* In microseconds; negative if the tick is behind the clock. */
static inline int64
generator_lead_us(int64 tick)
{
	return layout_tick_start(session.layout, tick) - session.clock.now;
}

/*
 * Waits, or reads the limit again and logs the next mark if one is due, so
 * that the session can issue an id of a tick; or raises an error.  The clock
 * was read after the stamp.  This function is not inlined, so that the common
 * path needs fewer registers.
 */
static pg_noinline void
generator_wait_or_refuse(int64 tick, SnowflakeWait *wait)
{
	const SnowflakeLayout *layout = session.layout;
	int64		allowed_us = clock_allowed_lead_us();
	int64		wait_us = generator_lead_us(tick) - allowed_us;
	int64		last = (int64) session.last_stamp;
	int64		behind_us = generator_lead_us(layout_stamp_tick(layout, last));

	if (session.clock.position != SPAN_WITHIN ||
		(wait_us <= 0 && tick > layout_max_tick(layout)))
	{
		generator_count_regression(0, wait);
		generator_refuse_outside_span();
	}
	else if (wait_us <= 0)
	{
		generator_read_limit();
		if (session.limit <= tick)
			mark_log_next(tick);
	}
	else if (behind_us <= allowed_us)
		generator_wait_for_tick(tick, wait_us, wait);
	else
		generator_wait_for_clock(behind_us, wait_us, wait);
}

/*
 * Reads the limit and the worker id under one lock, because a limit is valid
 * only for the worker id that the mark belongs to.
 */
static void
generator_read_limit(void)
{
	int			worker_id;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	session.limit = Min(snowflake_shared->mark, snowflake_shared->mark_due);
	worker_id = shmem_worker_id();
	LWLockRelease(&snowflake_shared->lock);
	session.node_bits = layout_node_bits(session.layout, node_datacenter_id,
										 Max(worker_id, 0));
}

/* Waits for a tick because the last tick is spent. */
static void
generator_wait_for_tick(int64 tick, int64 wait_us, SnowflakeWait *wait)
{
	SnowflakeCounters *counters = &session.slot->counters;

	if (wait->wakeup_tick == LAYOUT_NONE)
		counters->sequence_waits++;
	if (wait->wakeup_tick < tick)
		wait->wakeup_tick = generator_choose_wakeup_tick(tick);
	generator_sleep_and_count(wait_us + session.layout->tick_us *
							  (wait->wakeup_tick - tick),
							  WAIT_FOR_TICK, &counters->sequence_wait_us);
}

/*
 * The last id is ahead of the clock by behind_us.  After a start, a lead may
 * be excused: the ids begin at the mark, which a server had put ahead of its
 * clock, so their first tick can lead a clock that has never stepped back.
 */
static void
generator_wait_for_clock(int64 behind_us, int64 wait_us, SnowflakeWait *wait)
{
	const NodeStart *start = &snowflake_shared->start;
	SnowflakeCounters *counters = &session.slot->counters;
	int64		last = (int64) session.last_stamp;
	bool		is_at_fence = last == start->fence_stamp;
	int64		regression_us = behind_us;

	if (last == start->stamp && !is_at_fence)
		regression_us -= mark_start_excused_us();
	if (regression_us > 0)
		generator_count_regression(regression_us, wait);
	if (clock_must_refuse(regression_us) && is_at_fence)
		generator_refuse_at_fence(behind_us);
	if (clock_must_refuse(regression_us))
		generator_refuse_behind(behind_us);

	if (!wait->has_counted_clock)
		counters->clock_waits++;
	wait->has_counted_clock = true;
	generator_sleep_and_count(wait_us, WAIT_FOR_CLOCK,
							  &counters->clock_wait_us);
}

/*
 * Returns the tick that a session waits for when the last tick is spent.  Each
 * waiter takes the next free turn.  The first few turns are in the next tick,
 * the next few in the tick after it, and so on.  If all waiters woke up for
 * the next tick, most would find that tick spent, too, and would have used the
 * processor in vain.
 *
 * A waiter that is cancelled leaves its turn unused.  Unused turns do not add
 * up: there are at most MaxBackends waiters, so the turn after that many is
 * the first turn of the next tick again.
 */
static int64
generator_choose_wakeup_tick(int64 next_tick)
{
	uint64		per_tick =
		(uint64) Max(1, WAKEUPS_PER_MS * session.layout->tick_us / 1000);
	uint64		first = (uint64) next_tick * per_tick;
	uint64		last = pg_atomic_read_u64(&snowflake_shared->turns);
	uint64		mine;

	do
		mine = last - first < (uint64) MaxBackends ? last + 1 : first;
	while (!pg_atomic_compare_exchange_u64(&snowflake_shared->turns, &last,
										   mine));
	return (int64) (mine / per_tick);
}

static void
generator_sleep_and_count(int64 duration_us, WaitReason reason,
						  uint64 *counter_us)
{
	instr_time	begin;
	instr_time	end;

	INSTR_TIME_SET_CURRENT(begin);
	clock_sleep(duration_us, reason);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, begin);
	*counter_us += INSTR_TIME_GET_MICROSEC(end);
}

/*
 * Counts a call that waits or fails because the clock has stepped back or is
 * outside the layout's span.
 */
static void
generator_count_regression(int64 regression_us, SnowflakeWait *wait)
{
	if (!wait->has_counted_regression)
		session.slot->counters.clock_regressions++;
	wait->has_counted_regression = true;
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	snowflake_shared->max_regression_us =
		Max(snowflake_shared->max_regression_us, regression_us);
	LWLockRelease(&snowflake_shared->lock);
}

static void
generator_refuse_behind(int64 behind_us)
{
	bool		can_advance = behind_us / 1000 < PG_INT32_MAX;

	session.slot->counters.clock_refusals++;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the clock is %s behind the last snowflake id",
					clock_duration_text(behind_us)),
			 errdetail("\"snowflake.clock_tolerance\" is %s.",
					   clock_duration_text(clock_tolerance_us())),
			 can_advance ?
			 errhint("Check the server's clock and its synchronization. If the clock was ahead and is right now, set \"snowflake.clock_policy\" to \"advance\" and \"snowflake.clock_tolerance\" to more than %s, and reload: ids go on from the last one. Set both back when the clock has caught up. Or wait until then, or take a \"snowflake.worker_id\" that no server has used.",
					 clock_duration_text(behind_us)) :
			 errhint("Check the server's clock and its synchronization. Ids are issued again when the clock has caught up, or at once with a \"snowflake.worker_id\" that no server has used.")));
}

static void
generator_refuse_at_fence(int64 behind_us)
{
	session.slot->counters.clock_refusals++;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the clock is %s behind the fence of the worker id's last holder",
					clock_duration_text(behind_us)),
			 errdetail("\"snowflake.clock_tolerance\" is %s.",
					   clock_duration_text(clock_tolerance_us())),
			 errhint("The last holder may have issued ids up to its fence. Ids are issued when the clock has reached the fence.")));
}

static void
generator_refuse_outside_span(void)
{
	session.slot->counters.clock_refusals++;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 session.clock.position == SPAN_BEFORE ?
			 errmsg("the clock is before the epoch of snowflake ids: %s",
					timestamptz_to_str(session.clock.now)) :
			 errmsg("the clock is at or past the last tick of snowflake ids: %s",
					timestamptz_to_str(session.clock.now)),
			 errdetail("Layout \"%s\" with epoch \"%s\" ends after tick " INT64_FORMAT ".",
					   layout_to_text(session.layout),
					   timestamptz_to_str(session.layout->epoch),
					   layout_max_tick(session.layout)),
			 errhint("Check the server's clock, \"snowflake.epoch\" and \"snowflake.layout\".")));
}
