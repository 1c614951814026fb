/*
 * shmem.h
 *	  The shared memory: one struct, the generators and the backends' slots.
 *
 * Locking.  SharedState.lock protects the fields of SharedState that do not
 * say otherwise.  It may be taken while the mark's page is locked, never the
 * other way round.  Nothing under it sleeps, does I/O, allocates or raises
 * an error.
 *
 * A generator's stamp is changed by compare-and-swap and nothing else.  The
 * generator's own lock is a queue for reservations of more than one stamp: so
 * they wait for each other instead of failing each other's swap.
 *
 * A backend's slot is written by its owner alone, without a lock; the views
 * read it.
 */
#ifndef SNOWFLAKE_SHMEM_H
#define SNOWFLAKE_SHMEM_H

#include "postgres.h"

#include "layout.h"
#include "host.h"
#include "lease.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/* Room for why there is no lease, in a sentence. */
#define LEASE_REASON_SIZE 256

/* the largest snowflake.generators */
#define GENERATOR_COUNT_MAX 1024

typedef struct Generator
{
	LWLock		lock;			/* the queue of those who reserve a block */
	pg_atomic_uint64 last;		/* the newest stamp issued; never goes back */
	pg_atomic_uint64 wakeups;	/* the newest wake-up promised to a waiter for
								 * a tick; see take_wakeup() */
} Generator;

/* Other processes write its neighbours: each has cache lines of its own. */
typedef union PaddedGenerator
{
	Generator	generator;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedGenerator;

/* A block: stamps of one tick that a backend has reserved and not issued. */
typedef struct IdBlock
{
	int64		next;			/* the first stamp left */
	int64		left;			/* how many stamps are left */
	int64		size;			/* how many were asked for; 0: no block yet */
	int64		last_id;		/* the last id issued from it */
	int64		node_bits;		/* of the node that it was reserved for */
	Generator  *generator;		/* that it was reserved from */
} IdBlock;

/* What a process has done, or all processes have. */
typedef struct Counters
{
	uint64		ids_issued;
	uint64		sequence_waits; /* calls that waited for a spent tick */
	uint64		sequence_wait_us;
	uint64		clock_waits;	/* calls that waited for the clock */
	uint64		clock_wait_us;
	uint64		clock_regressions;	/* calls that the clock stopped */
	uint64		clock_refusals; /* those of them that ended in an error */
	uint64		mark_writes;	/* WAL records of the mark's page */
	uint64		lease_renewals; /* leases granted or renewed */
	uint64		lease_failures; /* attempts that failed */
} Counters;

/*
 * A backend's slot.  The counters are never cleared.  A session that takes the
 * slot keeps their values in "before", so totals lose nothing when a session
 * ends.
 */
typedef struct BackendSlot
{
	int64		last_id;		/* the newest id, of this session or before */
	Counters	counters;		/* of all sessions that have had the slot */
	IdBlock		block;			/* of snowflake_nextval() */
	Counters	before;			/* what counters were when this session came */
	int			pid;			/* of the session; 0: it is over */
} BackendSlot;

typedef union PaddedBackendSlot
{
	BackendSlot slot;
	/* cppcheck-suppress unusedStructMember */
	char		padding[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(BackendSlot))];
} PaddedBackendSlot;

/* Where this node's ids begin, since the server's start or a lease's. */
typedef struct Beginning
{
	bool		has_begun;		/* has the mark's page been read? */
	int64		stamp;			/* what generators hold before their first id */
	int64		lead_us;		/* how far that may be ahead of a correct clock */
	int64		fence_stamp;	/* equal to stamp if ids begin at another
								 * holder's fence; else 0 */
	int64		floor;			/* the page's may not be lower, from the next
								 * record on */
	TimestampTz elsewhere_at;	/* up to when another place had issued for the
								 * node before; 0: none that is known of */
} Beginning;

typedef struct SharedState
{
	/*
	 * The mark as a tick: every id issued so far is of a tick before it, and
	 * WAL says so durably.  0 before the beginning.  Written under the lock,
	 * read without.
	 */
	pg_atomic_uint64 mark;

	/* Protects the fields that do not say otherwise; see above. */
	LWLock		lock;

	/* How far the mark was put ahead of an id that was to be issued. */
	int64		mark_lead_us;

	/* By pg_control when this memory was made.  Never changes. */
	TimestampTz last_checkpoint;

	/* Written by start.c; the stamps are read without the lock. */
	Beginning	beginning;

	/*
	 * Counts the changes of the node and the ends of its lease.  A mark that
	 * was moved before such a change is not published after it.
	 */
	uint64		node_generation;

	/* The lease, if worker ids are leased.  Written by the lease worker. */
	Lease		lease;
	char		lease_reason[LEASE_REASON_SIZE];	/* why there is none */

	/* What the postmaster has found out at its start; see shmem_startup(). */
	int			derived_worker_id;
	char		holder[LEASE_HOLDER_SIZE];
	char		place[HOST_PLACE_SIZE];

	/* Each worker's latch; NULL while the worker does not run. */
	Latch	   *highwater_worker_latch;
	Latch	   *lease_worker_latch;

	/* The counters at the last reset, which snowflake_stat subtracts. */
	Counters	counters_at_reset;
	TimestampTz stats_reset;	/* the last reset, or the server's start */
	int64		max_regression_us;	/* the farthest that the clock was behind
									 * since then */

	/* Separates what follows from the fields above. */
	char		padding[PG_CACHE_LINE_SIZE];

	/*
	 * The newest tick that any generator has issued in; kept only if there
	 * are several generators.  Read by every call then, without a lock.
	 */
	pg_atomic_uint64 newest_tick;
} SharedState;

/* parameter, registered by module.c */
extern int	generator_count;

/* Set in every process; NULL if the library was not preloaded. */
extern SharedState *shared;
extern PaddedGenerator *generators; /* generator_count of them */
extern PaddedBackendSlot *backend_slots;	/* by MyProcNumber */

/* The mark as a tick: ids of this tick and of later ones may not be issued. */
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
