/*
 * shmem.h
 *	  The shared memory: one struct, the generators and the backends' slots.
 *
 * Locking.  SharedState.lock protects the fields of SharedState whose comment
 * does not say otherwise.  A process may take SharedState.lock while it holds
 * the lock of the mark's page, but never the other way round.  A process that
 * holds SharedState.lock does not sleep, do I/O, allocate or raise an error.
 *
 * A generator's stamp is changed only by compare-and-swap.  The generator's
 * own lock is a queue for reservations of more than one stamp: the sessions
 * wait for each other instead of making each other's swap fail.
 *
 * Only the owner of a backend's slot writes the slot, without a lock.  The
 * views read the slots, also without a lock.
 */
#ifndef SNOWFLAKE_SHMEM_H
#define SNOWFLAKE_SHMEM_H

#include "postgres.h"

#include "host.h"
#include "id_layout.h"
#include "lease_rules.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/* Room for the sentence that says why this server holds no lease. */
#define LEASE_REASON_SIZE 256

/* the largest snowflake.generators */
#define GENERATOR_COUNT_MAX 1024

typedef struct Generator
{
	LWLock		lock;			/* the queue of sessions that reserve a block */
	pg_atomic_uint64 last;		/* the newest stamp taken; never goes back */
	pg_atomic_uint64 turns;		/* the last turn that a waiter has taken; see
								 * choose_wakeup_tick() */
} Generator;

/*
 * Each generator has cache lines of its own, because other processes write
 * the neighbouring generators.  On s390x, whose cache lines have 256 bytes,
 * two generators share a line.
 */
typedef union PaddedGenerator
{
	Generator	generator;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedGenerator;

/* A block: stamps of one tick that a session has reserved and not issued. */
typedef struct IdBlock
{
	int64		next;			/* the first stamp left */
	int64		left;			/* how many stamps are left */
	int64		size;			/* how many were reserved; 0: no block yet */
	int64		last_id;		/* the last id issued from the block */
	int64		node_bits;		/* of the node that the ids are for */
	Generator  *generator;		/* the source of the stamps */
} IdBlock;

/* The counters of one process, or a sum over several processes. */
typedef struct Counters
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
} Counters;

/*
 * A backend's slot.  The counters are never cleared: a session that takes the
 * slot copies them to "before" instead.  So totals lose nothing when a session
 * ends.
 */
typedef struct BackendSlot
{
	int64		last_id;		/* the newest id of all sessions of the slot */
	Counters	counters;		/* of all sessions that have had the slot */
	IdBlock		block;			/* of snowflake_nextval() */
	Counters	before;			/* the counters when this session began */
	int			pid;			/* of the session; 0: the slot is free */
} BackendSlot;

typedef union PaddedBackendSlot
{
	BackendSlot slot;
	/* cppcheck-suppress unusedStructMember */
	char		padding[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(BackendSlot))];
} PaddedBackendSlot;

/* Where this node's ids begin, since the server's start or a new lease. */
typedef struct NodeStart
{
	bool		is_known;		/* has a process read the mark's page? */
	int64		stamp;			/* ids of all generators begin after this */
	int64		lead_us;		/* how far the stamp may lead a clock that is
								 * right */
	int64		fence_stamp;	/* equal to "stamp" if ids begin at the last
								 * holder's fence; else 0 */
	int64		floor;			/* the page's floor has to rise to this tick */
	TimestampTz elsewhere_until;	/* another location issued ids of the node
									 * until then; or MARK_NEVER_ELSEWHERE */
} NodeStart;

typedef struct SharedState
{
	/*
	 * The mark: a tick that no id of the node has reached so far.  At first
	 * the mark is the tick that ids begin at, so the first id has to move it;
	 * a moved mark is in flushed WAL.  0 until a process has read the page.
	 * Written under the lock, read without the lock.
	 */
	pg_atomic_uint64 mark;

	/* Protects the fields whose comment does not say otherwise. */
	LWLock		lock;

	/* The time from the id that the mark was last moved for to the mark. */
	int64		mark_lead_us;

	/* Copied from pg_control when this memory is made.  Never changes. */
	TimestampTz last_checkpoint;

	/* Written by mark_start.c; generators and views read it without the lock. */
	NodeStart	start;

	/*
	 * Counts the changes of the node and the ends of its lease.  A process
	 * that moved a mark before such a change does not publish the mark after
	 * the change.
	 */
	uint64		node_generation;

	/*
	 * The lease, if worker ids are leased.  start_node_once() reads it off the
	 * page; from then on only the lease worker writes it.
	 */
	Lease		lease;
	char		lease_reason[LEASE_REASON_SIZE];	/* why there is no lease */

	/* Computed by the postmaster at its start; see shmem_startup(). */
	int			derived_worker_id;
	char		holder[LEASE_HOLDER_SIZE];
	char		location[HOST_LOCATION_SIZE];

	/* Each worker's latch; NULL while the worker does not run. */
	Latch	   *highwater_worker_latch;
	Latch	   *lease_worker_latch;

	/* The counters at the last reset, which snowflake_stat subtracts. */
	Counters	counters_at_reset;
	TimestampTz stats_reset;	/* the last reset, or the server's start */
	int64		max_regression_us;	/* the clock's largest step back since the
									 * last reset */

	/* Keeps newest_tick out of the cache line of the fields above. */
	char		padding[PG_CACHE_LINE_SIZE];

	/*
	 * The newest tick that any generator has issued in.  Maintained only if
	 * there are several generators; every call then reads this field without
	 * a lock.
	 */
	pg_atomic_uint64 newest_tick;
} SharedState;

/* parameter, registered by module.c */
extern int	generator_count;

/* Set in every process; NULL if the library was not preloaded. */
extern SharedState *shared;
extern PaddedGenerator *generators; /* an array of generator_count */
extern PaddedBackendSlot *backend_slots;	/* indexed by MyProcNumber */

/* Returns the mark: only ids of ticks before the mark may be issued. */
static inline int64
shmem_mark(void)
{
	return (int64) pg_atomic_read_u64(&shared->mark);
}

extern void shmem_request(void);
extern void shmem_startup(void);
extern int	shmem_worker_id(void);
extern void shmem_read_lease(Lease *lease);
extern int64 shmem_newest_stamp(void);
extern void shmem_raise_stamps(int64 stamp);

#endif							/* SNOWFLAKE_SHMEM_H */
