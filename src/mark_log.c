/*
 * mark_log.c
 *	  Keeps the high-water mark ahead of the ids: how far, when, and the
 *	  worker that does it.
 *
 * While ids are issued, the worker moves the mark before the ids reach the
 * mark, so no session waits for a flush of WAL.  A session whose id reaches
 * the mark before the worker has moved it, as after a pause, moves the mark
 * itself.
 *
 * The mark is put ahead of an id that was issued or is about to be issued, not
 * ahead of the clock: a clock that is wrong for a moment must not leave a mark
 * on the page that keeps the node from issuing ids after its next start.
 */
#include "postgres.h"

#include "id_clock.h"
#include "mark_log.h"
#include "mark_page.h"
#include "mark_start.h"
#include "miscadmin.h"
#include "node.h"
#include "postmaster/interrupt.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

/* parameter */
int			highwater_interval_ms = 100;

/* Returns how far to put the mark ahead of an id: two intervals. */
static int64
lead_us(void)
{
	return 2 * (int64) highwater_interval_ms * 1000;
}

/* Returns the mark that is due when a session issues an id of a tick. */
static int64
due_mark(int64 tick)
{
	const Layout *layout = node_layout();

	return Min(tick + lead_us() / layout->tick_us, layout_max_tick(layout)) + 1;
}

/* Wakes the worker, which sleeps while no ids are issued. */
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

/* Raises ERROR 55000, because there is no lease. */
static void
refuse_without_lease(const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because this server holds no lease on a worker id"),
			 errdetail("%s", reason[0] == '\0' ? "" : _(reason)),
			 errhint("Ids are issued as soon as the registry grants a lease; the server's log says more.")));
}

/*
 * Raises ERROR 55000, because the clock has jumped past the fence.  Wakes the
 * lease worker, because a renewal brings a later fence.
 */
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

/* Raises ERROR 55000, because ids lead the clock beyond the lease's end. */
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
			 errhint("Ids are issued again when the clock has come nearer to them. A longer lease_duration of the registry lets ids be further ahead of the clock.")));
}

/*
 * Raises ERROR 55000, because the lease does not allow a mark past a tick.
 * Returns if the lease has changed meanwhile and allows that mark now.
 */
static void
refuse_beyond_lease(int64 tick)
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
 * Moves the mark past a tick, so that the caller can issue an id of the tick.
 * Does nothing if the clock has stepped back meanwhile, so that the policy
 * does not allow the tick's lead any more; the caller reads the clock again.
 *
 * Raises ERROR 55000 if the lease does not allow that mark, and the errors of
 * mark_move().
 */
void
highwater_move_past(int64 tick)
{
	TimestampTz tick_start = layout_tick_start(node_layout(), tick);

	CHECK_FOR_INTERRUPTS();
	if (tick_start - GetCurrentTimestamp() > clock_allowed_lead_us())
		return;
	while (!mark_move(tick, due_mark(tick), lead_us()))
		refuse_beyond_lease(tick);
	wake_worker();
}

/* Does the configuration let this server issue ids? */
static bool
is_configured(void)
{
	return node_is_leased() ||
		node_intended_worker_id() != WORKER_ID_UNSET;
}

/*
 * Moves the mark if a move is due.  "last_seen" is the newest stamp that the
 * previous call saw.  Returns true if sessions have issued ids since that
 * call.
 */
static bool
keep_ahead(int64 *last_seen)
{
	int64		newest;
	int64		newest_tick;
	int64		half_interval_us = (int64) highwater_interval_ms * 500;
	int64		due;
	int64		past;

	start_node_once();
	newest = shmem_newest_stamp();
	if (newest == *last_seen || newest <= shared->start.stamp)
		return false;
	*last_seen = newest;

	/*
	 * Do not move a mark that is within half an interval of the due mark: a
	 * session has moved it half an interval ago at most.  But move any mark
	 * that the newest tick has reached: near the layout's last tick, the due
	 * mark may be less than half an interval ahead.
	 */
	newest_tick = layout_stamp_tick(node_layout(), newest);
	due = due_mark(newest_tick);
	past = Max(newest_tick,
			   due - 1 - half_interval_us / node_layout()->tick_us);

	/* If the lease does not allow the mark, the lease worker logs why. */
	if (shmem_mark() <= past)
		(void) mark_move(past, due, lead_us());
	return true;
}

/*
 * As keep_ahead(), but logs an error, such as that of a damaged page, and goes
 * on.  Logs nothing more until a call has succeeded, because the sessions
 * raise the error, too.
 */
static bool
try_to_keep_ahead(int64 *last_seen)
{
	static bool has_failed = false;
	volatile bool is_busy = false;

	PG_TRY();
	{
		worker_start_transaction();
		is_busy = keep_ahead(last_seen);
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

/*
 * The worker's main function: moves the mark while ids are issued, and sleeps
 * while no ids are issued.
 */
void
highwater_worker_main(Datum main_arg)
{
	int64		last_seen = LAYOUT_NONE;
	bool		was_woken = false;

	(void) main_arg;
	worker_initialize(&shared->highwater_worker_latch);
	while (!ShutdownRequestPending)
	{
		bool		is_busy = is_configured() && try_to_keep_ahead(&last_seen);

		/*
		 * A session that has just woken the worker may not have issued its id
		 * yet: so sleep for one interval only.
		 */
		was_woken = worker_wait(is_busy || was_woken ?
								highwater_interval_ms : WORKER_WAIT_FOREVER,
								WAIT_IN_HIGHWATER_WORKER);
	}

	/* The postmaster would not restart the worker after exit code 0. */
	proc_exit(1);
}
