/*
 * mark_log.c
 *	  Keeps the high-water mark ahead of the ids: how far, when, and in which
 *	  order.
 *
 * An id may be issued only while its tick is before the mark of its node.  A
 * session publishes a mark in shared memory only when the mark's record is in
 * WAL, but need not wait until that record is flushed.  WAL is flushed in
 * order: the record of a row comes after the record of the mark above the
 * row's id, so a server that has the row, by whatever kind of recovery, has
 * the mark.  Only an id that no surviving record holds can lose its mark.
 *
 * The mark is two intervals ahead of an id, and the first session that comes
 * within one interval of the mark logs the next one.  The other sessions go
 * on meanwhile, since their ids are still before the mark.  After a pause the
 * mark has passed, and every session that needs an id logs the next one or
 * waits for the page's lock.  No session holds that lock during a flush; only
 * a process that writes the page to disk, such as the checkpointer, does.
 *
 * The first mark after a start is flushed before it is published, so no id
 * before that mark can be issued again.  Each later mark is flushed while ids
 * are still before the previous mark, except after a pause, or if a flush or
 * wal_writer_delay takes longer than an interval.
 *
 * The end of the transaction that logged a mark flushes the mark's record, or
 * makes the WAL writer flush it.  If a session asked the WAL writer at once,
 * that flush would often begin just before the flush of the commit, and the
 * commit would have to wait for both.  If the transaction goes on, the session
 * that logs the next mark asks for the flush.
 *
 * A mark is published after the page has it, and only grows.  So no id is ever
 * at or past the mark on the page.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "clock.h"
#include "lease_holder.h"
#include "lease_state.h"
#include "mark_log.h"
#include "mark_page.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

/* The page, locked, and what a change of the page depends on. */
typedef struct LockedPage
{
	Buffer		buffer;
	MarkContents contents;
	MarkEntry  *entry;			/* of this node; NULL: it has no worker id yet */
	uint64		generation;
	int64		reach;			/* the largest mark that the lease allows */
	bool		is_logged;		/* see NodeStart */
} LockedPage;

static bool mark_log_begin_next(int64 tick);
static bool mark_log_try_next(int64 tick);
static void mark_log_lock_page(LockedPage *page);
static void mark_log_write_page(LockedPage *page);
static void mark_log_publish(const LockedPage *page, int64 tick,
							 XLogRecPtr lsn);
static void mark_log_check_lease(int64 tick);

/*
 * Makes sure that an id of a tick can be issued: logs the next mark if one is
 * due.  The caller reads the mark afterwards, because the node may change.
 * Errors as mark_log_check_lease() and mark_page_read().
 */
void
mark_log_next(int64 tick)
{
	CHECK_FOR_INTERRUPTS();
	if (!mark_log_begin_next(tick))
		return;
	while (!mark_log_try_next(tick) && shmem_mark() <= tick)
		mark_log_check_lease(tick);
}

/*
 * Returns whether this session has to log the next mark.  While the tick is
 * before the mark, one session is enough; if that session fails, the next one
 * logs the mark half an interval later.
 */
static bool
mark_log_begin_next(int64 tick)
{
	bool		is_due;

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_due = tick >= snowflake_shared->mark_due ||
		tick >= snowflake_shared->mark;
	if (is_due)
		snowflake_shared->mark_due = tick + 1 +
			MARK_INTERVAL_US / 2 / node_layout()->tick_us;
	LWLockRelease(&snowflake_shared->lock);
	return is_due;
}

/*
 * Logs the next mark, past a tick, unless the page has it already, and
 * publishes it.  Returns false if the lease does not allow a mark past the
 * tick.
 */
static bool
mark_log_try_next(int64 tick)
{
	const SnowflakeLayout *layout = node_layout();
	LockedPage	page;
	int64		mark;
	XLogRecPtr	lsn;

	mark_log_lock_page(&page);
	if (page.entry == NULL || page.reach <= tick)
	{
		UnlockReleaseBuffer(page.buffer);
		return false;
	}

	/* A start's first ids are of the next tick; see mark_log_publish(). */
	mark = tick + (page.is_logged ? 1 : 2) +
		MARK_HEADROOM_US / layout->tick_us;
	mark = Min(Min(mark, layout_max_tick(layout) + 1), page.reach);
	if (mark > page.entry->mark)
	{
		page.entry->mark = mark;
		page.entry->headroom_us = MARK_HEADROOM_US;
		mark_log_write_page(&page);
	}
	else if (!page.is_logged)
		mark_log_write_page(&page);
	lsn = PageGetLSN(BufferGetPage(page.buffer));
	UnlockReleaseBuffer(page.buffer);

	if (!page.is_logged)
		XLogFlush(lsn);
	mark_log_publish(&page, tick, lsn);
	return true;
}

/* Makes durable where the ids of this start begin, and the lease, if any. */
void
mark_log_present(void)
{
	LockedPage	page;
	XLogRecPtr	lsn;

	mark_log_lock_page(&page);
	mark_log_write_page(&page);
	lsn = PageGetLSN(BufferGetPage(page.buffer));
	UnlockReleaseBuffer(page.buffer);
	XLogFlush(lsn);

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	if (snowflake_shared->node_generation == page.generation)
		snowflake_shared->mark_lsn = Max(snowflake_shared->mark_lsn, lsn);
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Locks the page, and brings its contents up to date: the floor that
 * mark_start.c has found, the present lease, and an entry of this node that is
 * not behind the published mark.  The lease is read under the page's lock, so
 * that an older lease never overwrites a newer one.
 */
static void
mark_log_lock_page(LockedPage *page)
{
	MarkContents *contents = &page->contents;
	int64		boottime_us;
	int			worker_id;
	int64		mark;
	SnowflakeLease in_force;

	page->buffer = mark_page_lock(contents);
	Assert(layout_equal(node_layout(), &contents->layout));
	boottime_us = clock_boottime_us();

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	page->generation = snowflake_shared->node_generation;
	page->is_logged = snowflake_shared->start.is_logged;
	worker_id = shmem_worker_id();
	mark = snowflake_shared->mark;
	contents->lease = snowflake_shared->lease;
	in_force = lease_state_in_force();
	contents->floor = Max(contents->floor, snowflake_shared->start.floor);
	LWLockRelease(&snowflake_shared->lock);

	page->reach = node_uses_registry() ?
		lease_reach(&in_force, node_layout(), boottime_us) :
		PG_INT64_MAX;
	page->entry = NULL;
	if (worker_id != WORKER_ID_UNSET)
	{
		page->entry = mark_page_add_entry(contents, node_datacenter_id,
										  worker_id);
		page->entry->mark = Max(page->entry->mark, mark);
	}
}

/*
 * Logs the page, with this server as the logger.  Asks for the flush of the
 * previous record; see the head of this file.
 */
static void
mark_log_write_page(LockedPage *page)
{
	XLogRecPtr	previous = PageGetLSN(BufferGetPage(page->buffer));

	/* The LSN of a page of another cluster may be beyond the end of WAL. */
	if (page->is_logged && GetFlushRecPtr(NULL) < previous)
		XLogSetAsyncXactLSN(previous);
	if (page->entry != NULL)
	{
		MarkLogger *logger = &page->contents.logger;

		memset(logger, 0, sizeof(*logger));
		logger->datacenter_id = page->entry->datacenter_id;
		logger->worker_id = page->entry->worker_id;
		logger->holder = holder_hash();
		strlcpy(logger->location, holder_location, HOLDER_LOCATION_SIZE);
	}
	page->contents.lease.timeline = GetWALInsertionTimeLine();
	mark_page_log(page->buffer, &page->contents);
}

/*
 * Publishes the mark of the page, unless the node has changed meanwhile.  Cuts
 * the mark to what the present lease allows, because an earlier lease may have
 * allowed a larger mark in the entry.  Another session may have published a
 * later mark already.  "lsn" is the end of a record that has the entry.
 *
 * The ids of a start begin after the tick that its first mark was logged in.
 * A crash can lose a mark together with ids of the present tick, and then the
 * mark on the page can be in that tick.
 */
static void
mark_log_publish(const LockedPage *page, int64 tick, XLogRecPtr lsn)
{
	const SnowflakeLayout *layout = node_layout();
	int64		mark = Min(page->entry->mark, page->reach);

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	if (snowflake_shared->node_generation == page->generation)
	{
		if (!snowflake_shared->start.is_logged)
			shmem_raise_stamp(layout_last_stamp(layout, tick));
		snowflake_shared->start.is_logged = true;
		snowflake_shared->mark = Max(snowflake_shared->mark, mark);
		snowflake_shared->mark_lsn = Max(snowflake_shared->mark_lsn, lsn);
		snowflake_shared->mark_due =
			Max(snowflake_shared->mark_due,
				mark - Max(1, MARK_INTERVAL_US / layout->tick_us));
	}
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Raises ERROR 55000, unless the lease has changed meanwhile and allows a mark
 * past a tick now.
 */
static void
mark_log_check_lease(int64 tick)
{
	char		reason[LEASE_REASON_SIZE];
	int64		boottime_us = clock_boottime_us();
	SnowflakeLease lease;
	Latch	   *lease_worker;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	lease = lease_state_in_force();
	memcpy(reason, snowflake_shared->lease_reason, sizeof(reason));
	lease_worker = snowflake_shared->lease_worker_latch;
	LWLockRelease(&snowflake_shared->lock);

	if (tick < lease_reach(&lease, node_layout(), boottime_us))
		return;
	if (!lease_is_valid(&lease, boottime_us) && lease_worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids cannot be issued because this server holds no lease on a worker id"),
				 errdetail("The process \"snowflake registry\", which asks the registry for one, is not running."),
				 errhint("If it does not start in a moment, the server's log says why. If there are too many background workers, raise \"max_worker_processes\" and restart the server.")));
	if (!lease_is_valid(&lease, boottime_us))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids cannot be issued because this server holds no lease on a worker id"),
				 reason[0] == '\0' ? 0 : errdetail("%s", reason),
				 errhint("Ids are issued as soon as the registry grants a lease; the server's log says more.")));

	/* A renewal brings a later fence. */
	if (lease_worker != NULL)
		SetLatch(lease_worker);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because the next one is past the fence of the lease on the worker id"),
			 errdetail("The fence is %s, the next id is of %s, and the clock is at %s.",
					   clock_text(lease.fence),
					   clock_text(layout_tick_start(node_layout(), tick)),
					   clock_text(GetCurrentTimestamp())),
			 errhint("Ids are issued as soon as a renewal has moved the fence past them. Check the server's clock and the registry's. A longer lease_duration of the registry lets ids be further ahead of the clock.")));
}
