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
 * Each transaction holds the horizon back while it is open.  The steps have
 * this order, which the barriers below keep:
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
 * PREPARE TRANSACTION moves the hold to the slot of the prepared transaction.
 * A reader reads that slot after the session's, so it finds the hold in one of
 * them.  The hold counts while PostgreSQL says that the transaction is in
 * progress, which is until others can see its end.  A transaction's parallel
 * workers take no ids.
 *
 * The horizon of a table needs only the holds of transactions that write to
 * the table.  An INSERT locks its table before a DEFAULT takes an id, and the
 * lock is released after others can see the end.  So between its steps 2 and 3
 * the reader lists the table with its ancestors and descendants, because an
 * INSERT into a partitioned table locks that table first, and the partition
 * only when it has computed the row.  Then the reader finds the transactions
 * that have a writer's lock on one of these tables, and ignores the holds of
 * all others: they have ended, or have taken no id for a row of this table.
 *
 * The list is current: it is one state of pg_inherits, read after step 1.  So
 * it has every two tables that were parent and child when an id below h was
 * taken, unless they were separated since.  If they were, either the row was
 * separated from the table, too, or no further row reaches the table through
 * this parent: DETACH PARTITION waits until the parent's writers have ended,
 * and with CONCURRENTLY the entry stays in pg_inherits until all have ended
 * that were writing when it began.  A row does not count if its table became
 * part of the tree after the row's id was taken, or if the row is inserted
 * through a former parent; doc/outbox.md says so.
 *
 * The locks are read after the list, so the reader finds every lock that is
 * held from step 1 until then.  It reads the locks of few tables one table
 * after the other, and those of many tables in one pass over all locks.
 * PostgreSQL reads the fast-path locks of sessions before the lock table, and
 * such a lock can move to the lock table, but never back.  It reads a table's
 * locks as of one moment, so it finds a lock that PREPARE TRANSACTION hands
 * over with the old owner or with the new one.  A parallel worker writes
 * nothing, so its locks do not matter.
 *
 * A horizon stays true, so the server's horizon never goes back, whatever the
 * clock does and whichever worker id is leased.  Nor does the horizon of a
 * table, unless readers ask for more than TABLE_HORIZONS_MAX tables.  The
 * reader also waits until the mark is flushed, so that ids begin after the
 * horizon even after a crash.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "compat.h"
#include "id_horizon.h"
#include "layout.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Up to this number of tables, the reader asks for the locks of each table,
 * which takes some 20 us a table.  One pass over the lock table takes 0.1 to
 * 10 ms, depending on the lock table's configured size, and meanwhile blocks
 * every session that takes or releases a lock.
 */
#define FEW_TABLES 16

bool		horizon_is_held = false;

static pg_noinline void horizon_release(bool is_prepared);
static void horizon_copy_to_prepared(uint64 hold);
static void horizon_clear_prepared(const HorizonHold *hold);
static bool horizon_is_in_progress(uint64 xid);
static void horizon_check_table(Oid table);
static List *horizon_list_tree(Oid table);
static List *horizon_list_inheritors(Relation inherits, Snapshot snapshot,
									 Oid table);
static List *horizon_list_ancestors(Relation inherits, Snapshot snapshot,
									Oid table);
static bool horizon_is_partitioned(Oid table);
static List *horizon_scan_inherits(Relation inherits, Snapshot snapshot,
								   AttrNumber key, Oid table);
static VirtualTransactionId *horizon_list_writers(const List *tables,
												  int *count);
static VirtualTransactionId *horizon_list_conflicts(const List *tables,
													int *count);
static VirtualTransactionId *horizon_scan_locks(const List *tables,
												int *count);
static bool horizon_is_writer(const VirtualTransactionId *writers, int count,
							  const HorizonHold *hold);
static int	horizon_compare_numbers(const void *a, const void *b);
static int	horizon_compare_vxids(const void *a, const void *b);
static uint64 horizon_raise_of_table(Oid table, uint64 horizon);

/*
 * Notes the transactions that were prepared before the first id since the
 * server's start.  The caller has read the next transaction id after recovery
 * had ended, and then taken the lock.
 */
void
horizon_begin(FullTransactionId next)
{
	Assert(LWLockHeldByMeInMode(&snowflake_shared->lock, LW_EXCLUSIVE));

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		const PGPROC *proc = &PreparedXactProcs[i];
		BackendSlot *slot =
			&snowflake_shared->slots[GetNumberFromPGProc(proc)].slot;

		if (!TransactionIdIsValid(proc->xid))
			continue;
		slot->xid = U64FromFullTransactionId(next) +
			(int32) (proc->xid - XidFromFullTransactionId(next));
		pg_atomic_write_u64(&slot->hold, HORIZON_UNKNOWN);
	}
}

/*
 * Holds the horizon back until this transaction ends.  The caller has not yet
 * taken an id in this transaction.
 */
void
horizon_hold(void)
{
	BackendSlot *slot = shmem_my_slot();

	Assert(!horizon_is_held);

	slot->xact_start = GetCurrentTransactionStartTimestamp();
	pg_atomic_write_u64(&slot->hold,
						pg_atomic_read_u64(&snowflake_shared->stamp) + 1);
	horizon_is_held = true;

	/* The swap that takes the transaction's first id is a full barrier. */
}

/*
 * Returns the horizon of the server or, unless "table" is InvalidOid, of a
 * table.  Errors as horizon_find_holds(), and ERROR 55000 while a transaction
 * that holds the horizon was prepared before the first id since the start.
 */
int64
horizon_read(Oid table)
{
	HorizonHold *holds;
	int			count;
	uint64		hold;
	XLogRecPtr	mark_lsn;
	uint64		horizon;
	uint64		returned = pg_atomic_read_u64(&snowflake_shared->horizon);

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	hold = pg_atomic_read_u64(&snowflake_shared->stamp) + 1;
	mark_lsn = snowflake_shared->mark_lsn;
	LWLockRelease(&snowflake_shared->lock);

	XLogFlush(mark_lsn);
	holds = horizon_find_holds(table, &count);
	for (int i = 0; i < count; i++)
	{
		if (holds[i].hold == HORIZON_UNKNOWN)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the horizon of snowflake ids is unknown because a transaction is left that was prepared before the first id since the server's start"),
					 errdetail("The transaction's id is %u.", (TransactionId) holds[i].xid),
					 errhint("End it by COMMIT PREPARED or ROLLBACK PREPARED; pg_prepared_xacts has its name.")));
		hold = Min(hold, holds[i].hold);
	}
	pfree(holds);

	horizon = (uint64) horizon_of_hold(hold);
	if (OidIsValid(table))
		return (int64) horizon_raise_of_table(table, Max(returned, horizon));
	while (returned < horizon &&
		   !pg_atomic_compare_exchange_u64(&snowflake_shared->horizon,
										   &returned,
										   horizon))
		 /* another reader has changed it meanwhile */ ;
	return (int64) Max(returned, horizon);
}

/*
 * Raises the horizon of a table to the largest one that was returned for it,
 * and remembers the result.  Without this the horizon would go back when an
 * open transaction that has ids of other tables begins to write to this table.
 */
static uint64
horizon_raise_of_table(Oid table, uint64 horizon)
{
	TableHorizon *entry = &snowflake_shared->table_horizons[0];

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < TABLE_HORIZONS_MAX; i++)
	{
		TableHorizon *other = &snowflake_shared->table_horizons[i];

		if (other->database == MyDatabaseId && other->table == table)
		{
			entry = other;
			horizon = Max(horizon, entry->horizon);
			break;
		}
		if (other->horizon < entry->horizon)
			entry = other;
	}
	entry->database = MyDatabaseId;
	entry->table = table;
	entry->horizon = horizon;
	LWLockRelease(&snowflake_shared->lock);
	return horizon;
}

/*
 * Returns the holds of all open transactions or, unless "table" is InvalidOid,
 * of those that write to a table.  Raises ERROR 42P01 or 42809 if there is no
 * such table.
 */
HorizonHold *
horizon_find_holds(Oid table, int *count)
{
	int			sessions = FIRST_PREPARED_XACT_PROC_NUMBER;
	HorizonHold *holds = palloc(shmem_slot_count() * sizeof(HorizonHold));
	VirtualTransactionId *writers = NULL;
	int			writer_count = 0;
	int			found = 0;

	if (OidIsValid(table))
		horizon_check_table(table);
	for (int number = 0; number < shmem_slot_count(); number++)
	{
		BackendSlot *slot = &snowflake_shared->slots[number].slot;

		/* Read this slot after the newest stamp and all slots before it. */
		pg_read_barrier();
		if (number == sessions)
			LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
		holds[found].number = number;
		holds[found].hold = pg_atomic_read_u64(&slot->hold);
		holds[found].xid = number < sessions ? 0 : slot->xid;
		holds[found].xact_start = slot->xact_start;
		if (holds[found].hold == 0)
			continue;

		/*
		 * If the session has ended since, then its transaction has ended, or
		 * the slot of a prepared transaction has this hold by now.
		 */
		pg_read_barrier();
		GET_VXID_FROM_PGPROC(holds[found].vxid, *GetPGProcByNumber(number));
		found++;
	}
	if (shmem_slot_count() > sessions)
		LWLockRelease(&snowflake_shared->lock);

	if (found > 0 && OidIsValid(table))
		writers = horizon_list_writers(horizon_list_tree(table),
									   &writer_count);
	*count = 0;
	for (int i = 0; i < found; i++)
	{
		if (holds[i].xid != 0 && !horizon_is_in_progress(holds[i].xid))
			horizon_clear_prepared(&holds[i]);
		else if (!OidIsValid(table) || holds[i].number == MyProcNumber ||
				 horizon_is_writer(writers, writer_count, &holds[i]))
			holds[(*count)++] = holds[i];
	}

	/* The caller's snapshot comes after all slots. */
	pg_read_barrier();
	return holds;
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
	const SnowflakeLayout *layout = node_layout();
	int64		stamp = Min((int64) hold,
							layout_last_stamp(layout,
											  layout_max_tick(layout)));
	int64		node_bits;
	bool		is_of_this_node;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	is_of_this_node = stamp - 1 > snowflake_shared->start.stamp;
	node_bits = layout_node_bits(layout, node_datacenter_id,
								 Max(shmem_worker_id(), 0));
	LWLockRelease(&snowflake_shared->lock);

	if (is_of_this_node)
		return layout_stamp_id(layout, stamp - 1, node_bits) + 1;
	return layout_stamp_id(layout,
						   stamp - layout_stamp_sequence(layout, stamp), 0);
}

/*
 * Transaction callback: lets the horizon go on.  PostgreSQL calls it for a
 * commit, an abort or a PREPARE after others can see that.
 */
void
horizon_end_transaction(XactEvent event, void *arg)
{
	if (horizon_is_held && event != XACT_EVENT_PRE_COMMIT &&
		event != XACT_EVENT_PRE_PREPARE)
		horizon_release(event == XACT_EVENT_PREPARE);
}

/* Clears this process's hold.  First copies the hold for a PREPARE. */
static pg_noinline void
horizon_release(bool is_prepared)
{
	BackendSlot *slot = shmem_my_slot();
	uint64		hold = pg_atomic_read_u64(&slot->hold);

	horizon_is_held = false;
	if (is_prepared)
		horizon_copy_to_prepared(hold);

	/* A reader that finds no hold must see the end, or the copy. */
	pg_write_barrier();
	pg_atomic_write_u64(&slot->hold, 0);
}

/*
 * Copies this transaction's hold into the slot of the prepared transaction,
 * which no other session can end yet.
 */
static void
horizon_copy_to_prepared(uint64 hold)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	const PGPROC *prepared = compat_TwoPhaseGetDummyProc(xid);
	BackendSlot *slot =
		&snowflake_shared->slots[GetNumberFromPGProc(prepared)].slot;

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	slot->xid = U64FromFullTransactionId(xid);
	slot->xact_start = shmem_my_slot()->xact_start;
	pg_atomic_write_u64(&slot->hold, hold);
	LWLockRelease(&snowflake_shared->lock);
}

/* Clears the hold of a prepared transaction that has ended. */
static void
horizon_clear_prepared(const HorizonHold *hold)
{
	BackendSlot *slot = &snowflake_shared->slots[hold->number].slot;

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	if (slot->xid == hold->xid)
		pg_atomic_write_u64(&slot->hold, 0);
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Is a prepared transaction in progress?  PostgreSQL knows the low half of its
 * id only, which another transaction can get when this one has ended.  No
 * transaction stays open for 2^31 others.
 */
static bool
horizon_is_in_progress(uint64 xid)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	return next - xid <= PG_INT32_MAX &&
		TransactionIdIsInProgress((TransactionId) xid);
}

/* Raises ERROR 42P01 or 42809 unless there is such a table. */
static void
horizon_check_table(Oid table)
{
	char		kind = get_rel_relkind(table);

	if (kind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", table)));
	if (kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", get_rel_name(table)),
				 errhint("Name the table that holds the rows. Only a table of this server has a horizon.")));
}

/*
 * Returns a table, its partitions and inheritors, and the tables that it is a
 * partition of, as they are in one snapshot that is taken now.  PostgreSQL's
 * own functions take a snapshot for each table, believe a cached
 * relhassubclass, and raise errors if a table is dropped or detached
 * meanwhile.
 */
static List *
horizon_list_tree(Oid table)
{
	Relation	inherits;
	Snapshot	snapshot;
	List	   *tables;

	/* Without this, GetCatalogSnapshot() might return an earlier snapshot. */
	AcceptInvalidationMessages();
	inherits = table_open(InheritsRelationId, AccessShareLock);
	snapshot = RegisterSnapshot(GetCatalogSnapshot(InheritsRelationId));
	tables = list_concat(horizon_list_inheritors(inherits, snapshot, table),
						 horizon_list_ancestors(inherits, snapshot, table));
	UnregisterSnapshot(snapshot);
	table_close(inherits, AccessShareLock);
	return tables;
}

/* Lists a table and its partitions and inheritors of all generations. */
static List *
horizon_list_inheritors(Relation inherits, Snapshot snapshot, Oid table)
{
	List	   *tables = NIL;
	List	   *generation = list_make1_oid(table);

	while (generation != NIL)
	{
		List	   *next = NIL;
		const ListCell *cell;

		tables = list_concat(tables, generation);
		foreach(cell, generation)
		{
			Oid			parent = lfirst_oid(cell);
			bool		is_partitioned = horizon_is_partitioned(parent);
			List	   *children = horizon_scan_inherits(inherits, snapshot,
														 Anum_pg_inherits_inhparent,
														 parent);
			const ListCell *child;

			CHECK_FOR_INTERRUPTS();

			/* No table inherits from a partition. */
			foreach(child, children)
			{
				if (is_partitioned &&
					!horizon_is_partitioned(lfirst_oid(child)))
					tables = lappend_oid(tables, lfirst_oid(child));
				else
					next = lappend_oid(next, lfirst_oid(child));
			}
		}

		/* A table can inherit from several. */
		list_sort(next, list_oid_cmp);
		list_deduplicate_oid(next);
		generation = next;
	}
	return tables;
}

/* Lists the tables whose rows can go to a table because it is a partition. */
static List *
horizon_list_ancestors(Relation inherits, Snapshot snapshot, Oid table)
{
	List	   *ancestors = NIL;

	for (;;)
	{
		List	   *parents = horizon_scan_inherits(inherits, snapshot,
													Anum_pg_inherits_inhrelid,
													table);

		/* A partition has one parent. */
		if (list_length(parents) != 1 ||
			!horizon_is_partitioned(linitial_oid(parents)))
			return ancestors;
		table = linitial_oid(parents);
		ancestors = lappend_oid(ancestors, table);
	}
}

/* Is a table partitioned?  A table that was dropped meanwhile is not. */
static bool
horizon_is_partitioned(Oid table)
{
	return get_rel_relkind(table) == RELKIND_PARTITIONED_TABLE;
}

/*
 * Lists the parents of a table if the key is inhrelid, its partitions and
 * inheritors if the key is inhparent.  A partition that is being detached
 * still gets rows by its parent, and counts.
 */
static List *
horizon_scan_inherits(Relation inherits, Snapshot snapshot, AttrNumber key,
					  Oid table)
{
	bool		finds_parents = key == Anum_pg_inherits_inhrelid;
	ScanKeyData scan_key;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *tables = NIL;

	ScanKeyInit(&scan_key, key, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	scan = systable_beginscan(inherits,
							  finds_parents ? InheritsRelidSeqnoIndexId :
							  InheritsParentIndexId,
							  true, snapshot, 1, &scan_key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(tuple);

		tables = lappend_oid(tables, finds_parents ? form->inhparent :
							 form->inhrelid);
	}
	systable_endscan(scan);
	return tables;
}

/*
 * Lists the transactions that have a lock of a writer on one of the tables, in
 * the order of horizon_compare_vxids().  Only granted locks count: a session
 * that waits for a lock takes its id only after it has the lock.
 */
static VirtualTransactionId *
horizon_list_writers(const List *tables, int *count)
{
	VirtualTransactionId *writers = list_length(tables) <= FEW_TABLES ?
		horizon_list_conflicts(tables, count) :
		horizon_scan_locks(tables, count);

	qsort(writers, *count, sizeof(VirtualTransactionId),
		  horizon_compare_vxids);
	return writers;
}

/* Asks for the locks of each table. */
static VirtualTransactionId *
horizon_list_conflicts(const List *tables, int *count)
{
	VirtualTransactionId *writers =
		palloc(list_length(tables) * shmem_slot_count() * sizeof(*writers));
	const ListCell *cell;

	*count = 0;
	foreach(cell, tables)
	{
		LOCKTAG		tag;
		VirtualTransactionId *found;
		int			found_count;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(cell));
		found = GetLockConflicts(&tag, ShareLock, &found_count);
		memcpy(writers + *count, found, found_count * sizeof(*writers));
		*count += found_count;
		pfree(found);
	}
	return writers;
}

/* Reads all locks once. */
static VirtualTransactionId *
horizon_scan_locks(const List *tables, int *count)
{
	int			table_count = list_length(tables);
	Oid		   *sorted = palloc(table_count * sizeof(Oid));
	LockData   *data;
	VirtualTransactionId *writers;
	int			found = 0;

	for (int i = 0; i < table_count; i++)
		sorted[i] = list_nth_oid(tables, i);
	qsort(sorted, table_count, sizeof(Oid), oid_cmp);

	data = GetLockStatusData();
	writers = palloc(data->nelements * sizeof(VirtualTransactionId));
	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];
		const LOCKTAG *tag = &lock->locktag;

		if (tag->locktag_type == LOCKTAG_RELATION &&
			tag->locktag_field1 == MyDatabaseId &&
			(lock->holdMask &
			 GetLockTagsMethodTable(tag)->conflictTab[ShareLock]) != 0 &&
			bsearch(&tag->locktag_field2, sorted, table_count, sizeof(Oid),
					oid_cmp) != NULL)
			writers[found++] = compat_lock_vxid(lock);
	}
	*count = found;
	return writers;
}

/*
 * Is a hold of one of the writers?  A session can prepare its transaction
 * after its slot was read.  The prepared transaction keeps the session's
 * number, so all transactions with that number count.
 */
static bool
horizon_is_writer(const VirtualTransactionId *writers, int count,
				  const HorizonHold *hold)
{
	return count > 0 &&
		bsearch(&hold->vxid, writers, count, sizeof(VirtualTransactionId),
				hold->xid == 0 ? horizon_compare_numbers :
				horizon_compare_vxids) != NULL;
}

static int
horizon_compare_numbers(const void *a, const void *b)
{
	const VirtualTransactionId *left = a;
	const VirtualTransactionId *right = b;

	return (left->procNumber > right->procNumber) -
		(left->procNumber < right->procNumber);
}

/* Compares numbers, then the numbers' transactions. */
static int
horizon_compare_vxids(const void *a, const void *b)
{
	const VirtualTransactionId *left = a;
	const VirtualTransactionId *right = b;
	int			numbers = horizon_compare_numbers(a, b);

	if (numbers != 0)
		return numbers;
	return (left->localTransactionId > right->localTransactionId) -
		(left->localTransactionId < right->localTransactionId);
}
