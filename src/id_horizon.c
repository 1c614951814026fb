/*
 * id_horizon.c
 *	  The horizon: an id below which every transaction has ended.
 *
 * An id is taken before its row can be seen.  So a row can appear after a
 * larger id has been read, and a reader that goes on from the largest id
 * misses the row.  A reader that asks for the horizon first, and then reads
 * the ids below the horizon in a new snapshot, misses none: every transaction
 * that took a smaller id on this server has ended, and no smaller id will be
 * issued.
 *
 * Each transaction holds the horizon back while it is open.  Steps in this
 * order, which the barriers below keep:
 *
 *	a transaction							a reader
 *	1 reads the newest stamp				1 reads the newest stamp
 *	2 writes that stamp plus 1 into its		2 reads the holds of sessions, then
 *	  slot, as its hold						  of prepared transactions
 *	3 takes its ids							3 takes the smallest of the holds
 *	4 ends: others can see its rows			  and the newest stamp plus 1
 *	5 clears its hold						4 takes a snapshot
 *
 * Proof.  Let h be what the reader takes in step 3, and s the stamp of an id
 * with s < h.  The newest stamp that the reader has read is at least s, so the
 * transaction had taken the id, and written its hold, before the reader read
 * the holds.  The hold is at most s, and h is at most every hold that the
 * reader has found.  So the reader has not found this hold: steps 4 and 5 were
 * done before the snapshot is taken.  No stamp below h is taken later, because
 * the newest stamp only grows.  doc/model/horizon.pml has the same steps.
 *
 * PREPARE TRANSACTION copies the hold into the slot of the prepared transaction
 * before the session's hold is cleared.  A reader reads that slot after the
 * session's, so it finds the hold in one of them.  The copy counts while
 * PostgreSQL says that the transaction is in progress, which is until others
 * can see its end.  A transaction's parallel workers take no ids.
 *
 * A horizon stays true, so the horizon never goes back, whatever the clock
 * does and whichever worker id is leased.  The reader also waits until the
 * mark is flushed, so that ids begin after the horizon even after a crash.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "id_horizon.h"
#include "layout.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/procarray.h"

/*
 * The hold of a transaction that was prepared before the server's start.  No
 * process of this start knows which ids it has.
 */
#define HOLD_UNKNOWN PG_UINT64_MAX

bool		horizon_is_held = false;

static void end_transaction(XactEvent event, void *arg);
static pg_noinline void release(bool is_prepared);
static void hold_for_prepared(uint64 hold);
static uint64 smallest_hold(uint64 hold);
static uint64 hold_of_prepared(BackendSlot *slot);

/* Registers end_transaction() in a session, before its first id. */
void
horizon_install_callback(void)
{
	RegisterXactCallback(end_transaction, NULL);
}

/*
 * Notes the transactions that were prepared before the server's start.  Notes
 * those prepared since as well, which have no ids, because nothing
 * distinguishes them.  The caller holds the lock; recovery has ended, and no
 * id has been issued yet.
 */
void
horizon_begin(void)
{
	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		const PGPROC *proc = &PreparedXactProcs[i];
		BackendSlot *slot = &shared->slots[GetNumberFromPGProc(proc)].slot;

		if (!TransactionIdIsValid(proc->xid))
			continue;
		slot->xid = proc->xid;
		pg_atomic_write_u64(&slot->hold, HOLD_UNKNOWN);
	}
}

/*
 * Holds the horizon back until this transaction ends.  The caller has not yet
 * taken an id in this transaction.
 */
void
horizon_hold(void)
{
	/* The swap that takes the transaction's first id is a full barrier. */
	pg_atomic_write_u64(&shmem_my_slot()->hold,
						pg_atomic_read_u64(&shared->stamp) + 1);
	horizon_is_held = true;
}

/*
 * Returns the horizon.  The server is not in recovery, and knows where ids
 * begin.  Raises ERROR 55000 while a transaction is left that was prepared
 * before the server's start.
 */
int64
horizon_read(void)
{
	uint64		hold;
	XLogRecPtr	mark_lsn;
	uint64		horizon;
	uint64		returned = pg_atomic_read_u64(&shared->horizon);

	LWLockAcquire(&shared->lock, LW_SHARED);
	hold = pg_atomic_read_u64(&shared->stamp) + 1;
	mark_lsn = shared->mark_lsn;
	LWLockRelease(&shared->lock);

	XLogFlush(mark_lsn);
	horizon = (uint64) horizon_of_hold(smallest_hold(hold));
	while (returned < horizon &&
		   !pg_atomic_compare_exchange_u64(&shared->horizon, &returned, horizon))
		 /* another reader has changed it meanwhile */ ;
	return (int64) Max(returned, horizon);
}

/*
 * Returns an id that is above this node's ids of earlier stamps, and not above
 * its ids of this stamp and later ones.  If the stamp is of an earlier lease,
 * returns the smallest id of the stamp's tick, because ids of that tick may
 * have another worker id.
 */
int64
horizon_of_hold(uint64 hold)
{
	const Layout *layout = node_layout();
	int64		stamp = (int64) hold;
	int64		node_bits;
	bool		is_of_this_node;

	LWLockAcquire(&shared->lock, LW_SHARED);
	is_of_this_node = stamp - 1 > shared->start.stamp;
	node_bits = layout_node_bits(layout, node_datacenter_id,
								 Max(shmem_worker_id(), 0));
	LWLockRelease(&shared->lock);

	if (is_of_this_node)
		return layout_stamp_id(layout, stamp - 1, node_bits) + 1;
	return layout_stamp_id(layout,
						   stamp - layout_stamp_sequence(layout, stamp), 0);
}

/*
 * Transaction callback: lets the horizon go on.  PostgreSQL calls it for a
 * commit, an abort or a PREPARE after others can see that.
 */
static void
end_transaction(XactEvent event, void *arg)
{
	if (horizon_is_held && event != XACT_EVENT_PRE_COMMIT &&
		event != XACT_EVENT_PRE_PREPARE)
		release(event == XACT_EVENT_PREPARE);
}

/* Clears this process's hold.  First copies the hold for a PREPARE. */
static pg_noinline void
release(bool is_prepared)
{
	BackendSlot *slot = shmem_my_slot();
	uint64		hold = pg_atomic_read_u64(&slot->hold);

	horizon_is_held = false;
	if (is_prepared)
		hold_for_prepared(hold);

	/* A reader that finds no hold must see the end, or the copy. */
	pg_write_barrier();
	pg_atomic_write_u64(&slot->hold, 0);
}

/*
 * Copies this transaction's hold into the slot of the prepared transaction,
 * which no other session can end yet.
 */
static void
hold_for_prepared(uint64 hold)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	const PGPROC *prepared = compat_TwoPhaseGetDummyProc(xid);
	BackendSlot *slot = &shared->slots[GetNumberFromPGProc(prepared)].slot;

	/* A reader that reads this xid must read this hold, too. */
	pg_atomic_write_u64(&slot->hold, hold);
	pg_write_barrier();
	slot->xid = XidFromFullTransactionId(xid);
}

/* Returns the smallest of a value and all holds. */
static uint64
smallest_hold(uint64 hold)
{
	for (int number = 0; number < shmem_slot_count(); number++)
	{
		BackendSlot *slot = &shared->slots[number].slot;
		uint64		other;

		/* Read this slot after the newest stamp and all slots before it. */
		pg_read_barrier();
		other = number < FIRST_PREPARED_XACT_PROC_NUMBER ?
			pg_atomic_read_u64(&slot->hold) : hold_of_prepared(slot);
		if (other != 0)
			hold = Min(hold, other);
	}

	/* The caller's snapshot comes after all slots. */
	pg_read_barrier();
	return hold;
}

/* Returns the hold of a prepared transaction or, if that has ended, 0. */
static uint64
hold_of_prepared(BackendSlot *slot)
{
	TransactionId xid = slot->xid;
	uint64		hold;

	pg_read_barrier();			/* pairs with the barrier in hold_for_prepared() */
	hold = pg_atomic_read_u64(&slot->hold);
	if (hold == 0)
		return 0;
	if (!TransactionIdIsInProgress(xid))
	{
		/* Clear it before another transaction gets this xid. */
		if (hold == HOLD_UNKNOWN)
			(void) pg_atomic_compare_exchange_u64(&slot->hold, &hold, 0);
		return 0;
	}
	if (hold == HOLD_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the horizon of snowflake ids is unknown because a transaction is left that was prepared before the server's start"),
				 errdetail("The transaction's id is %u.", xid),
				 errhint("End it by COMMIT PREPARED or ROLLBACK PREPARED; pg_prepared_xacts has its name.")));
	return hold;
}
