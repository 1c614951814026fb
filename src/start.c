/*
 * start.c
 *	  Every rule of where a node's ids begin.
 *
 * After a start, a crash or a promotion the mark's page is read, once, when
 * recovery has ended and before the first id; nothing is kept in memory
 * across recovery.
 *
 *	what is found						ids begin
 *	an entry of the node				at its mark
 *	none, but those of other nodes		at the floor of the page
 *	another layout						at the first tick whose ids are all above
 *										those that the page allows to exist; not
 *										at all before the clock is past it
 *	a page of another cluster			at the node's mark, else at the largest
 *										one; but not before the last checkpoint
 *	no page								not before the last checkpoint, which
 *										becomes the page's floor
 *	a page that does not verify			not at all
 *	a lease that is resumed				at its worker id's mark
 *	no lease yet						at the floor; no id is issued there
 *	a new lease							as for an entry, and not before the last
 *										holder's fence
 *
 * A page of another cluster is there after pg_upgrade if the DBA has copied
 * the file, as doc/operations.md says; or the files of two clusters were
 * swapped.  Then, and where there is no page (the first start, or the file was
 * deleted), the time of the last checkpoint before this start is a bound that
 * holds even if the clock has stepped back since.  To the second where there
 * is no page: a new cluster's first id need not wait.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "clock.h"
#include "compat.h"
#include "host.h"
#include "mark.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "start.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

/* What is found of a node. */
typedef struct StartPoint
{
	int64		tick;			/* the first that may be used */
	int64		lead_us;		/* how far it may be ahead of a correct clock */
	int64		floor;			/* the least for nodes without an entry */
} StartPoint;

/* The first tick at or after an instant; of an instant before the span, 0. */
static int64
first_tick_from(TimestampTz instant)
{
	const Layout *layout = node_layout();
	int64		tick;

	if (layout_locate(layout, instant, &tick) == SPAN_BEFORE)
		return 0;
	return instant > layout_tick_start(layout, tick) ? tick + 1 : tick;
}

/*
 * The tick of the last checkpoint before this start, of which pg_control has
 * the second: a tick in that second's beginning or, if ids may have been issued
 * in it, after its end.  0 before the span.
 */
static int64
tick_of_last_checkpoint(bool has_issued)
{
	TimestampTz instant = shared->last_checkpoint +
		(has_issued ? USECS_PER_SEC : 0);
	int64		tick;

	(void) layout_locate(node_layout(), instant, &tick);
	return tick;
}

/* ERROR 22023: ids of the present layout may repeat those of the page's. */
static void
refuse_layout(const Layout *previous, int64 largest_before,
			  int64 smallest_now)
{
	char		previous_text[LAYOUT_TEXT_SIZE];
	char	   *previous_epoch = pstrdup(timestamptz_to_str(previous->epoch));

	layout_to_text(previous, previous_text);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("snowflake ids cannot be issued with the present \"snowflake.layout\" and \"snowflake.epoch\""),
			 errdetail("The smallest id that \"%s\" and \"%s\" make now is " INT64_FORMAT ", and ids up to " INT64_FORMAT " may have been issued with \"%s\" and \"%s\".",
					   node_layout_text, node_epoch_text, smallest_now,
					   largest_before, previous_text, previous_epoch),
			 errhint("Put \"snowflake.layout\" = '%s' and \"snowflake.epoch\" = '%s' back, or choose values whose ids are larger, such as an earlier epoch or more tick bits.",
					 previous_text, previous_epoch)));
}

/*
 * Where ids begin in a changed layout: at the first tick whose ids are all
 * above every id that the page allows to exist.  ERROR 22023 if the clock has
 * not come so far.
 */
static int64
first_tick_of_changed_layout(const MarkContents *contents)
{
	const Layout *layout = node_layout();
	const Layout *previous = &contents->layout;
	IdFields	newest = {
		.tick = mark_largest(contents) - 1,
		.datacenter_id = layout_field_max(previous->datacenter_bits),
		.worker_id = layout_field_max(previous->worker_bits),
		.sequence = layout_field_max(previous->sequence_bits)
	};
	IdFields	same = {0};
	IdFields	now = {0};
	ClockReading clock = {0};
	int64		largest_before;

	if (newest.tick < 0)
		return 0;

	largest_before = layout_compose(previous, &newest);
	clock_read(layout, &clock);
	now.tick = clock.tick;
	if (largest_before < layout_max_id(layout))
		layout_split(layout, largest_before, &same);
	if (clock.position != SPAN_WITHIN ||
		largest_before >= layout_max_id(layout) || clock.tick <= same.tick)
		refuse_layout(previous, largest_before,
					  layout_compose(layout, &now));
	return same.tick + 1;
}

/* Where ids of a node begin by the page; see the head of this file. */
static StartPoint
find_start(const MarkContents *contents, bool exists, int worker_id)
{
	StartPoint	start = {0};
	const MarkEntry *entry = mark_entry(contents, node_datacenter_id,
										worker_id);
	bool		is_foreign = exists && mark_is_foreign(contents);

	/* a page without entries may have a floor */
	if (contents->magic != 0 &&
		!layout_equal(node_layout(), &contents->layout))
	{
		start.floor = first_tick_of_changed_layout(contents);
		entry = NULL;
	}
	else
		start.floor = is_foreign && entry == NULL ?
			mark_largest(contents) : contents->floor;
	if (is_foreign || !exists)
		start.floor = Max(start.floor, tick_of_last_checkpoint(is_foreign));

	start.tick = start.floor;
	if (entry != NULL)
	{
		start.tick = is_foreign ? Max(entry->mark, start.floor) : entry->mark;
		start.lead_us = entry->lead_us;
	}
	return start;
}

/*
 * Lets the node's ids begin at a tick; the caller holds the lock.  The mark
 * then is that tick: so every session reads the node anew before it issues
 * an id of that tick or a later one.
 */
static void
begin_at(int64 tick, int64 lead_us, bool is_fence)
{
	Beginning  *beginning = &shared->beginning;
	int64		stamp = tick > 0 ?
		layout_last_stamp(node_layout(), tick - 1) : 0;

	shared->mark_lead_us = lead_us;
	beginning->stamp = stamp;
	beginning->lead_us = lead_us;
	beginning->fence_stamp = is_fence ? stamp : 0;
	shmem_raise_stamps(stamp);
	pg_atomic_write_u64(&shared->mark, (uint64) tick);
}

/*
 * Takes over the page's lease.  If it still holds and is this server's, the
 * server resumes it.  Else the lease is over, and a claim names it as the
 * previous one.  A question without an answer is this server's to ask again
 * only if it was this server's, for the same registry, and the data directory
 * has not been set back since, which shows by the timeline.
 */
static void
inherit_lease(const Lease *logged, Lease *lease)
{
	bool		is_own = strcmp(logged->holder, host_holder) == 0 &&
		logged->timeline == GetWALInsertionTimeLine() &&
		logged->registry == node_registry_hash();

	if (lease_is_usable(logged, node_layout(), node_datacenter_id))
		*lease = *logged;
	lease->next_incarnation = is_own ? logged->next_incarnation : 0;
	if (lease->worker_id == LEASE_NONE)
		return;
	if (!lease_can_resume(lease, host_holder, GetWALInsertionTimeLine(),
						  node_intended_worker_id(), node_registry_hash(),
						  clock_boottime_us()))
		lease->ends_us = 0;
}

/*
 * Up to when another place has issued ids for this server's node: the mark that
 * it moved last, or an earlier time that this server has noted since.  0 if no
 * other place is known of.  A registry that leases worker ids knows better.
 */
static TimestampTz
find_elsewhere(const MarkContents *contents, bool exists)
{
	const MarkMover *mover = &contents->mover;
	const MarkEntry *entry = mark_entry(contents, node_datacenter_id,
										node_intended_worker_id());

	if (!exists || node_is_leased() || entry == NULL ||
		!layout_equal(node_layout(), &contents->layout) ||
		mover->datacenter_id != entry->datacenter_id ||
		mover->worker_id != entry->worker_id)
		return 0;
	return mark_is_moved_elsewhere(contents) ?
		layout_tick_start(node_layout(), entry->mark) : mover->elsewhere_at;
}

/*
 * A promotion, a move and a restored backup look like this, and so does a copy
 * whose original goes on: then two servers issue the same ids.
 */
static void
report_elsewhere(const MarkMover *mover, TimestampTz elsewhere_at)
{
	ereport(LOG,
			(errmsg("snowflake ids of node (%d,%d) were issued elsewhere before, up to %s",
					mover->datacenter_id, mover->worker_id,
					timestamptz_to_str(elsewhere_at)),
			 errdetail("They were issued by the server \"%s\"; this one is \"%s\".",
					   mover->place, host_place),
			 errhint("That is so after a promotion, a move and a restore. If that server goes on as a primary, give one of the two another \"snowflake.worker_id\".")));
}

/* Has the page been read since the server's start? */
static bool
has_begun(void)
{
	bool		result;

	LWLockAcquire(&shared->lock, LW_SHARED);
	result = shared->beginning.has_begun;
	LWLockRelease(&shared->lock);
	return result;
}

/*
 * Reads the page and lets the node's ids begin, unless that has been done.
 * Called after recovery by every session before its first id, and by the
 * workers.
 *
 * ERROR XX001, 0A000 (a page that cannot be used), 22023 (ids of the present
 * layout may repeat), or PostgreSQL's own error for a file that cannot be
 * read.
 */
void
start_begin(void)
{
	MarkContents contents;
	bool		exists;
	Lease		lease = {.worker_id = LEASE_NONE};
	StartPoint	start;
	TimestampTz elsewhere_at;
	bool		is_resumed = false;
	bool		is_first = false;

	if (has_begun())
		return;

	exists = mark_read(&contents);
	if (node_is_leased())
		inherit_lease(&contents.lease, &lease);
	is_resumed = lease.worker_id != LEASE_NONE && lease.ends_us != 0;

	/*
	 * Without a lease no id is issued before start_new_lease() finds where the
	 * ids of the leased worker id begin.  The mark of the worker id that was
	 * held before, perhaps by another server, must not hold up those of a new
	 * one.
	 */
	if (node_is_leased())
		start = find_start(&contents, exists,
						   is_resumed ? lease.worker_id : LEASE_NONE);
	else
		start = find_start(&contents, exists, node_intended_worker_id());
	elsewhere_at = find_elsewhere(&contents, exists);

	/* Two processes may come here; the first one's result counts. */
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (!shared->beginning.has_begun)
	{
		shared->lease = lease;
		shared->beginning.floor = start.floor;
		shared->beginning.elsewhere_at = elsewhere_at;
		is_first = true;
		begin_at(start.tick, start.lead_us, false);
		shared->beginning.has_begun = true;
	}
	LWLockRelease(&shared->lock);

	if (is_first && elsewhere_at != 0 && mark_is_moved_elsewhere(&contents))
		report_elsewhere(&contents.mover, elsewhere_at);
	if (is_first && is_resumed)
		ereport(LOG,
				(errmsg("snowflake worker_id %d is still leased to this server",
						lease.worker_id)));
}

/*
 * Enters a lease, and the reason that users see if it runs out.  The caller
 * holds the lock.
 */
static void
set_lease(const Lease *lease)
{
	shared->lease = *lease;
	backend_slots[MyProcNumber].slot.counters.lease_renewals++;
	strlcpy(shared->lease_reason,
			gettext_noop("The lease has run out, and the registry has not answered since."),
			LEASE_REASON_SIZE);
}

/*
 * Takes a lease that has been renewed.  The caller makes this durable, as for
 * the next two.
 */
void
start_renewed_lease(const Lease *lease)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	set_lease(lease);
	LWLockRelease(&shared->lock);
}

/*
 * Takes a lease on a worker id that another holder may have had until now.
 * That holder's ids are before begins_at.  Here ids begin at a tick that no id
 * was issued in: sessions with the old worker id stay before that tick,
 * sessions with the new one at or after it.
 */
void
start_new_lease(const Lease *lease, TimestampTz begins_at)
{
	MarkContents contents;
	bool		exists = mark_read(&contents);
	StartPoint	start = find_start(&contents, exists, lease->worker_id);
	int64		fence = first_tick_from(begins_at);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (shmem_mark() >= start.tick)
	{
		start.tick = shmem_mark();
		start.lead_us = shared->mark_lead_us;
	}
	shared->node_generation++;
	set_lease(lease);
	if (fence > start.tick)
		begin_at(fence, 0, true);
	else
		begin_at(start.tick, start.lead_us, false);
	LWLockRelease(&shared->lock);
}

/*
 * Ends the lease, and lets the generators go on at the mark: the ticks before
 * it are closed, so no more ids are issued under this lease.  If it is given
 * up, the fence comes down to the mark, as the registry will be told.  Returns
 * the instant that no id under the lease has reached.
 */
TimestampTz
start_end_lease(bool is_given_up)
{
	TimestampTz end;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->node_generation++;
	end = layout_tick_start(node_layout(), shmem_mark());
	shared->lease.ends_us = 0;
	if (is_given_up)
		shared->lease.fence = Min(shared->lease.fence, end);
	begin_at(shmem_mark(), shared->mark_lead_us, false);
	LWLockRelease(&shared->lock);
	return end;
}
