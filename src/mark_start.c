/*
 * mark_start.c
 *	  Every rule of where a node's ids begin.
 *
 * After a start, a crash or a promotion, when recovery has ended, a process
 * reads the mark's page before its first id, unless another process has done
 * so.  No mark is kept in memory across recovery.
 *
 *	the page shows						ids begin
 *	marks that a clock which is ahead
 *	of this one by clock_tolerance at
 *	most can have logged				not before these marks, whatever
 *										their nodes
 *	a mark of the node					not before this mark
 *	a floor								not before the floor
 *	another layout than the parameters	not at all
 *	no page, or a floor of 0			at the clock
 *	a page that does not verify			not at all
 *	a lease of the last start			not before the registry has answered,
 *										or no host has, and then at its
 *										worker id's mark
 *	no lease yet						not at all; the stamp is at the floor
 *	a new lease							at its worker id's tick by the rows
 *										above, at the last holder's fence, or
 *										at the published mark: the latest
 *
 * The first mark that is logged after a start moves the beginning to the tick
 * after the present one; see mark_log_publish() in mark_log.c.
 *
 * There is no page before the first id, and after the file was deleted or not
 * copied by pg_upgrade.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "clock.h"
#include "compat.h"
#include "id_horizon.h"
#include "lease_holder.h"
#include "lease_state.h"
#include "mark_layout.h"
#include "mark_page.h"
#include "mark_start.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

/* Where the page lets a node's ids begin. */
typedef struct StartPoint
{
	int64		tick;			/* the first tick that may be used */
	int64		floor;			/* the first tick of nodes without an entry */
} StartPoint;

static void mark_start(void);
static void mark_report_elsewhere(const MarkLogger *logger, int64 begin);
static StartPoint mark_find_start(const MarkContents *contents,
								  int worker_id);
static void mark_set_start(int64 tick, bool is_fence);

/*
 * Reads the page and lets the node's ids begin, unless another process has
 * done so.  Sessions call this function before their first id, and so does the
 * lease worker.
 *
 * Errors as mark_page_read() and mark_layout_require().
 */
void
mark_start_once(void)
{
	bool		is_known;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	is_known = snowflake_shared->start.is_known;
	LWLockRelease(&snowflake_shared->lock);
	if (is_known)
		(void) mark_layout();	/* for node_layout() */
	else
		mark_start();
}

/* Reads the page.  Several processes may do so; the first result counts. */
static void
mark_start(void)
{
	MarkContents contents;
	SnowflakeLease lease = {.worker_id = WORKER_ID_UNSET};
	FullTransactionId next_xid;
	StartPoint	start;
	int64		now;
	LeaseState	state = LEASE_NONE;
	bool		is_first;

	mark_page_read(&contents);
	mark_layout_require(&contents);
	if (node_uses_registry())
		state = lease_state_inherit(&contents.lease, &lease);

	/*
	 * Without a lease no id is issued before mark_begin_lease() finds where
	 * ids begin.  Until then the stamp is at the floor, and not at the mark
	 * of the worker id that was leased last: that mark must not hold up the
	 * ids of another worker id.  The mark of a pending lease does hold them
	 * up if the registry refuses that lease, but not beyond its fence.
	 */
	start = mark_find_start(&contents,
							state == LEASE_PENDING ? lease.worker_id :
							node_uses_registry() ? WORKER_ID_UNSET :
							node_worker_id);

	/* Before the first id the horizon is where ids begin. */
	if (start.tick == 0 && !node_uses_registry() &&
		layout_locate(node_layout(), GetCurrentTimestamp(),
					  &now) == SPAN_WITHIN)
		start.tick = now;

	next_xid = ReadNextFullTransactionId();

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_first = !snowflake_shared->start.is_known;
	if (is_first)
	{
		lease_state_start(&lease, state);
		snowflake_shared->start.floor = start.floor;
		mark_set_start(start.tick, false);
		horizon_begin(next_xid);
		snowflake_shared->start.is_known = true;
	}
	LWLockRelease(&snowflake_shared->lock);
	if (is_first)
		mark_report_elsewhere(&contents.logger, start.tick);
}

/*
 * Logs if a server at another location has logged the mark of this node last.
 * A promotion, a move and a restored backup look like this, but so does a copy
 * whose original goes on: then two servers issue the same ids.  A registry
 * keeps the servers of one worker id apart.
 *
 * A reboot of this machine changes only the holder, and a new host name only
 * the location, so another server differs in both.
 */
static void
mark_report_elsewhere(const MarkLogger *logger, int64 begin)
{
	if (node_uses_registry() || logger->location[0] == '\0' ||
		logger->datacenter_id != node_datacenter_id ||
		logger->worker_id != node_worker_id ||
		strcmp(logger->location, holder_location) == 0 ||
		logger->holder == holder_hash())
		return;
	ereport(LOG,
			(errmsg("snowflake ids of node (%d,%d) were issued elsewhere before, up to %s",
					logger->datacenter_id, logger->worker_id,
					timestamptz_to_str(layout_tick_start(node_layout(),
														 begin))),
			 errdetail("The ids were issued by the server \"%s\"; this server is \"%s\".",
					   logger->location, holder_location),
			 errhint("This is normal after a promotion, a move or a restore. If the other server goes on as a primary, give one of the two another \"snowflake.worker_id\".")));
}

/*
 * Stores a lease on a worker id that another holder may have had until now.
 * That holder's ids are before its fence, "begins_at".  This server's ids
 * under the new lease begin at a tick that no earlier id has reached: sessions
 * that still use the old worker id stay before that tick.
 *
 * That tick becomes the node's mark on the page, and stays there even when a
 * wrong clock has been corrected.  So the caller takes no lease that begins far
 * ahead of the clock.
 */
void
mark_begin_lease(const SnowflakeLease *lease, TimestampTz begins_at)
{
	MarkContents contents;
	StartPoint	start;
	int64		fence = layout_first_tick_from(node_layout(), begins_at);

	mark_page_read(&contents);
	start = mark_find_start(&contents, lease->worker_id);

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	start.tick = Max(start.tick, snowflake_shared->mark);
	snowflake_shared->node_generation++;
	lease_state_grant(lease);
	mark_set_start(Max(start.tick, fence), fence > start.tick);
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Ends the lease, and makes the ids go on at the mark: they skip the ticks
 * before the mark, so no session issues another id under this lease.
 */
void
mark_end_lease(void)
{
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	snowflake_shared->node_generation++;
	lease_state_end();
	mark_set_start(snowflake_shared->mark, false);
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * How far a mark can be ahead of the clock that it was logged by, besides a
 * lead that the policy allows: the headroom, the part of a tick that had
 * passed, and the tick that the first mark of a start leaves out.
 */
int64
mark_start_excused_us(void)
{
	return MARK_HEADROOM_US + 2 * node_layout()->tick_us;
}

/*
 * Applies the table at the head of this file.  The servers that logged the
 * marks are taken to have had this server's snowflake.clock_policy and
 * snowflake.clock_tolerance.  A mark of a clock that was too far ahead does not
 * hide the other marks.
 */
static StartPoint
mark_find_start(const MarkContents *contents, int worker_id)
{
	StartPoint	start = {
		.tick = contents->floor,
		.floor = contents->floor
	};
	TimestampTz last = GetCurrentTimestamp() + mark_start_excused_us() +
		clock_allowed_lead_us() + clock_tolerance_us();

	for (int i = 0; i < contents->entry_count; i++)
	{
		const MarkEntry *entry = &contents->entries[i];

		if ((entry->datacenter_id == node_datacenter_id &&
			 entry->worker_id == worker_id) ||
			layout_tick_start(node_layout(), entry->mark) <= last)
			start.tick = Max(start.tick, entry->mark);
	}
	return start;
}

/*
 * Lets the node's ids begin at a tick, which becomes the mark; the mark was at
 * most that tick before.  So every session's limit is at most that tick, and
 * the session reads the mark and the worker id again before it issues an id of
 * that tick or a later one.  The caller holds the lock.
 */
static void
mark_set_start(int64 tick, bool is_fence)
{
	NodeStart  *start = &snowflake_shared->start;
	int64		stamp = tick > 0 ?
		layout_last_stamp(node_layout(), tick - 1) : 0;

	Assert(LWLockHeldByMeInMode(&snowflake_shared->lock, LW_EXCLUSIVE));
	Assert(snowflake_shared->mark <= tick);

	snowflake_shared->mark = tick;
	snowflake_shared->mark_due = tick;
	snowflake_shared->mark_lsn = 0;
	start->is_logged = false;
	start->stamp = stamp;
	start->fence_stamp = is_fence ? stamp : 0;
	shmem_raise_stamp(stamp);
}
