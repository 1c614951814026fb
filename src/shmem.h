/*
 * shmem.h
 *	  The shared memory: one struct, with the stamp, the mark and the sessions'
 *	  slots.
 *
 * Locking.  SharedState.lock protects the fields of SharedState whose comment
 * does not say otherwise.  A process may take SharedState.lock while it holds
 * the lock of the mark's page, but never the other way round.  A process that
 * holds SharedState.lock does not sleep, do I/O, allocate or raise an error.
 *
 * Read without the lock: "stamp", "turns" and "horizon", which are changed by
 * compare-and-swap only; "start.stamp" and "start.fence_stamp", see NodeStart;
 * "mark_lsn", of which generator_horizon() needs to know only whether it is 0;
 * and "layout_is_final", after which a session reads the layout under the
 * lock.
 *
 * Only the owner of a slot writes the slot, without a lock; for "hold", see
 * id_horizon.c.  Counters and the horizon are read off the slots, also without
 * a lock.
 */
#ifndef SNOWFLAKE_SHMEM_H
#define SNOWFLAKE_SHMEM_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "compat.h"
#include "layout.h"
#include "lease_rules.h"
#include "node.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/* Room for the sentence that says why this server holds no lease. */
#define LEASE_REASON_SIZE 256

/*
 * The counters of one process, or a sum over several processes: only fields of
 * uint64, because sql_stats.c adds them as an array.
 */
typedef struct SnowflakeCounters
{
	uint64		ids_issued;
	uint64		sequence_waits; /* calls that waited for a new tick */
	uint64		sequence_wait_us;
	uint64		clock_waits;	/* calls that waited for the clock */
	uint64		clock_wait_us;
	uint64		clock_regressions;	/* calls that found the clock stepped back
									 * or outside the span */
	uint64		clock_refusals; /* regressions that ended in an error */
	uint64		mark_writes;	/* WAL records of the mark's page */
	uint64		lease_renewals; /* leases granted or renewed */
	uint64		lease_failures; /* failed attempts to get or renew a lease */
} SnowflakeCounters;

/*
 * A backend's slot.  The counters are never cleared: a session that ends
 * copies them to "before" instead.  So totals lose nothing when a session
 * ends.
 */
typedef struct BackendSlot
{
	/*
	 * Every id of the open transaction has this stamp or a later one; 0:
	 * none.
	 */
	pg_atomic_uint64 hold;
	uint64		xid;			/* the full id of the prepared transaction
								 * that "hold" is of */
	TimestampTz xact_start;		/* of the transaction that "hold" is of */
	int64		last_id;		/* the newest id of all sessions of the slot */
	SnowflakeCounters counters; /* of all sessions that have had the slot */
	SnowflakeCounters before;	/* the counters when the session before ended */
	int			pid;			/* of the session; 0: the slot is free */
} BackendSlot;

/* Each slot has cache lines of its own, because its owner writes it often. */
typedef struct PaddedBackendSlot
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) BackendSlot slot;
} PaddedBackendSlot;

/* How many tables' horizons are remembered. */
#define TABLE_HORIZONS_MAX 64

/* The largest horizon of a table that was returned. */
typedef struct TableHorizon
{
	Oid			database;
	Oid			table;
	uint64		horizon;
} TableHorizon;

/*
 * Where this node's ids begin, since the server's start or a new lease.
 *
 * Sessions read stamp and fence_stamp without the lock, after they have read
 * SharedState.stamp.  That stamp is raised after they are set, so a
 * session that reads the raised stamp reads the new values, too.
 */
typedef struct NodeStart
{
	bool		is_known;		/* has a process read the mark's page? */
	bool		is_logged;		/* is a mark of this start in flushed WAL? */
	int64		stamp;			/* ids begin after this stamp */
	int64		fence_stamp;	/* equal to "stamp" if ids begin at the last
								 * holder's fence; else 0 */
	int64		floor;			/* the page's floor has to rise to this tick */
} NodeStart;

/*
 * The state of the lease.  A lease that is pending or held ends by itself when
 * clock_boottime_us() comes to its ends_us; lease_is_valid() says so until the
 * lease worker ends it.
 */
typedef enum LeaseState
{
	LEASE_NONE,					/* none was granted, or the last one has ended */
	LEASE_PENDING,				/* read off the page: no id is issued before
								 * the registry has answered, or no host has */
	LEASE_REFUSED,				/* pending, and only a grant lets it go on */
	LEASE_HELD					/* granted, or resumed without an answer */
} LeaseState;

typedef struct SharedState
{
	/* The newest stamp taken.  Never goes back. */
	pg_atomic_uint64 stamp pg_attribute_aligned(PG_CACHE_LINE_SIZE);

	/* The last waiter's turn; see generator_choose_wakeup_tick(). */
	pg_atomic_uint64 turns pg_attribute_aligned(PG_CACHE_LINE_SIZE);

	/* The largest horizon that was returned.  Never goes back. */
	pg_atomic_uint64 horizon;

	/* Protects the fields below. */
	LWLock		lock pg_attribute_aligned(PG_CACHE_LINE_SIZE);

	/*
	 * The mark: only ids of ticks before the mark may be issued.  At first
	 * the mark is the tick that ids begin at, so the first id needs a larger
	 * mark.  Each larger mark is logged before it is published here.  0 until
	 * a process has read the page.
	 */
	int64		mark;

	/* The first session to issue an id of this tick logs the next mark. */
	int64		mark_due;

	/* No crash loses the mark when WAL is flushed to here; 0: not logged. */
	XLogRecPtr	mark_lsn;

	NodeStart	start;

	/* The layout of the data's ids, when it is final; see mark_layout.c. */
	SnowflakeLayout layout;
	bool		layout_is_final;
	bool		layout_is_reported; /* has a process warned of parameters? */

	/*
	 * Counts the changes of the node and the ends of its lease.  A process
	 * that logged a mark before such a change does not publish the mark after
	 * the change.
	 */
	uint64		node_generation;

	/*
	 * The lease, if worker ids are leased.  mark_start_once() reads it off
	 * the page; from then on only the lease worker writes it.
	 */
	SnowflakeLease lease;
	LeaseState	lease_state;	/* only lease_state.c uses it */
	char		lease_reason[LEASE_REASON_SIZE];	/* why there is no lease */
	Latch	   *lease_worker_latch; /* NULL while the worker does not run */

	/* The counters at the last reset, which snowflake_stat() subtracts. */
	SnowflakeCounters counters_at_reset;
	TimestampTz stats_reset;	/* the last reset, or the server's start */
	int64		max_regression_us;	/* the clock's largest step back since the
									 * last reset */

	/* The smallest horizon gives way to another table's. */
	TableHorizon table_horizons[TABLE_HORIZONS_MAX];

	/* The slots of sessions and prepared transactions, by their PGPROC. */
	PaddedBackendSlot slots[FLEXIBLE_ARRAY_MEMBER];
} SharedState;

/* The shared memory; NULL in a process without the preloaded library. */
extern SharedState *snowflake_shared;

/* Returns the slot of this process. */
static inline BackendSlot *
shmem_my_slot(void)
{
	return &snowflake_shared->slots[MyProcNumber].slot;
}

extern void shmem_register(void);
extern int	shmem_slot_count(void);
extern int	shmem_worker_id(void);
extern int64 shmem_mark(void);
extern void shmem_raise_stamp(int64 stamp);

#endif							/* SNOWFLAKE_SHMEM_H */
