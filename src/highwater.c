/*
 * highwater.c
 *	  Keeps the high-water mark ahead of the clock: how far, when, and the
 *	  worker that does it.
 *
 * While ids are issued, the worker moves the mark in time, and no session
 * waits for the flush of WAL.  A session that comes to the mark first, as
 * after a pause or when the worker does not run, moves it itself.
 *
 * The mark is put ahead of an id that was issued or is about to be, not of
 * the clock: a clock that is wrong for a moment must not leave a mark behind
 * that keeps the node from issuing ids after its next start.
 */
#include "postgres.h"

#include "clock.h"
#include "highwater.h"
#include "mark.h"
#include "miscadmin.h"
#include "node.h"
#include "postmaster/interrupt.h"
#include "shmem.h"
#include "start.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

/* parameter */
int			highwater_interval_ms = 100;

/* How far the mark is put ahead of an id: two intervals. */
static int64
lead_us(void)
{
	return 2 * (int64) highwater_interval_ms * 1000;
}

/* The mark that is due when an id of a tick is issued. */
static int64
due_mark(int64 tick)
{
	const Layout *layout = node_layout();

	return Min(tick + lead_us() / layout->tick_us, layout_max_tick(layout)) + 1;
}

/* Wakes the worker up, which sleeps while no ids are issued. */
static void
wake_worker(void)
{
	Latch	   *latch;

	LWLockAcquire(&shared->lock, LW_SHARED);
	latch = shared->highwater_worker_latch;
	LWLockRelease(&shared->lock);
	if (latch != NULL)
		SetLatch(latch);
}

/* ERROR 55000: there is no lease. */
static void
refuse_without_lease(const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because this server holds no lease on a worker id"),
			 errdetail("%s", reason[0] == '\0' ? "" : _(reason)),
			 errhint("Ids are issued as soon as the registry grants a lease; the server's log says more.")));
}

/* ERROR 55000: the clock has jumped ahead, and it takes a later fence. */
static void
refuse_past_fence(TimestampTz fence, TimestampTz now, Latch *lease_worker)
{
	char	   *fence_text = pstrdup(timestamptz_to_str(fence));

	if (lease_worker != NULL)
		SetLatch(lease_worker);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because the clock is past the fence of the lease on the worker id"),
			 errdetail("The fence is %s, and the clock is at %s.",
					   fence_text, timestamptz_to_str(now)),
			 errhint("Check the server's clock. Ids are issued as soon as the lease has been renewed.")));
}

/* ERROR 55000: ids are ahead of the clock, by more than the lease lasts. */
static void
refuse_past_lease(int64 tick, TimestampTz ends_at)
{
	char	   *tick_text =
		pstrdup(timestamptz_to_str(layout_tick_start(node_layout(), tick)));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because they are further ahead of the clock than the lease on the worker id lasts"),
			 errdetail("The next id is of %s, and the lease lasts until %s.",
					   tick_text, timestamptz_to_str(ends_at)),
			 errhint("Ids are issued as the clock comes nearer. A longer lease_duration of the registry lets them be further ahead.")));
}

/*
 * Says why the lease does not let the mark move past a tick.  Returns if it
 * does by now.
 */
static void
explain_refusal(int64 tick)
{
	char		reason[LEASE_REASON_SIZE];
	int64		boottime_us = clock_boottime_us();
	TimestampTz now = GetCurrentTimestamp();
	Lease		lease;
	Latch	   *lease_worker;

	LWLockAcquire(&shared->lock, LW_SHARED);
	lease = shared->lease;
	memcpy(reason, shared->lease_reason, sizeof(reason));
	lease_worker = shared->lease_worker_latch;
	LWLockRelease(&shared->lock);

	if (tick < lease_reach(&lease, node_layout(), now, boottime_us))
		return;
	if (!lease_is_valid(&lease, boottime_us))
		refuse_without_lease(reason);
	if (lease.fence <= now)
		refuse_past_fence(lease.fence, now, lease_worker);
	refuse_past_lease(tick, now + (lease.ends_us - boottime_us));
}

/*
 * Moves the mark past a tick that an id is to be issued of, unless the clock
 * no longer shows that tick: then nothing is done, and the caller reads the
 * clock again.
 *
 * ERROR 55000 if the lease does not allow it; else as mark_move().
 */
void
highwater_move_past(int64 tick)
{
	TimestampTz begins_at = layout_tick_start(node_layout(), tick);

	CHECK_FOR_INTERRUPTS();
	if (begins_at - GetCurrentTimestamp() > clock_allowed_lead_us())
		return;
	while (!mark_move(tick, due_mark(tick), lead_us()))
		explain_refusal(tick);
	wake_worker();
}

/* Can ids be issued here at all? */
static bool
has_node(void)
{
	return node_is_leased() ||
		node_intended_worker_id() != NODE_WORKER_ID_UNSET;
}

/*
 * Keeps the mark ahead.  True if ids have been issued since the last time,
 * when the newest stamp was "seen".
 */
static bool
keep_ahead(int64 *seen)
{
	int64		newest;
	int64		half_interval_us = (int64) highwater_interval_ms * 500;
	int64		due;
	int64		past;

	start_begin();
	newest = shmem_newest_stamp();
	if (newest == *seen || newest <= shared->beginning.stamp)
		return false;
	*seen = newest;

	/*
	 * Leave a mark alone that is more than half an interval ahead of what is
	 * issued: a session has just moved it.
	 */
	newest = layout_stamp_tick(node_layout(), newest);
	due = due_mark(newest);
	past = Max(newest, due - 1 - half_interval_us / node_layout()->tick_us);

	/* The lease worker logs why a lease does not allow it. */
	if (shmem_mark() <= past)
		(void) mark_move(past, due, lead_us());
	return true;
}

/*
 * Keeps the mark ahead.  An error, such as that of a damaged page, is logged
 * once until all goes well again: sessions raise it, too.
 */
static bool
try_to_keep_ahead(int64 *seen)
{
	static bool has_failed = false;
	volatile bool is_busy = false;

	PG_TRY();
	{
		worker_start_transaction();
		is_busy = keep_ahead(seen);
		worker_commit();
		has_failed = false;
	}
	PG_CATCH();
	{
		if (!has_failed)
			EmitErrorReport();
		has_failed = true;
		worker_abort();
	}
	PG_END_TRY();
	return is_busy;
}

/* The worker: moves the mark while ids are issued, sleeps while none are. */
void
highwater_worker_main(Datum main_arg)
{
	int64		seen = -1;
	bool		is_awake = false;

	(void) main_arg;
	worker_begin(&shared->highwater_worker_latch);
	while (!ShutdownRequestPending)
	{
		bool		is_busy = has_node() && try_to_keep_ahead(&seen);

		/*
		 * The session that woke the worker has moved the mark and is issuing
		 * ids: look again after one interval.
		 */
		is_awake = worker_wait(is_busy || is_awake ? highwater_interval_ms : -1,
							   WAIT_IN_HIGHWATER_WORKER);
	}

	/* After exit code 0 the postmaster would not restart the worker. */
	proc_exit(1);
}
