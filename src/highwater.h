/*
 * highwater.h
 *	  The high-water mark: an instant, safe on disk, that no id issued so far
 *	  lies beyond.
 */
#ifndef SNOWFLAKE_HIGHWATER_H
#define SNOWFLAKE_HIGHWATER_H

#include "postgres.h"

#include "lease.h"
#include "port/atomics.h"
#include "statefile.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/* Room for why there is no lease, in a sentence. */
#define HIGHWATER_REASON_SIZE 256

/* What has been done since the server's start; for stats. */
typedef struct HighwaterCounts
{
	uint64		writes;			/* of the file */
	uint64		lease_renewals; /* claims are among them */
	uint64		lease_failures; /* attempts to get or to renew one */
} HighwaterCounts;

/*
 * The mark's part of shared memory.  The lock protects all of it but the
 * mark itself, which is read without, and what is fixed after the start.
 * Nobody writes the file under the lock: who does is named by write_number.
 */
typedef struct HighwaterState
{
	/*
	 * The mark as a tick: every id issued so far is of a tick before this
	 * one, and the file on disk says so or more.  It never goes back.
	 */
	pg_atomic_uint64 mark;

	/* fixed at the start */
	StateFault	fault;
	char		fault_detail[STATE_DETAIL_SIZE];

	LWLock		lock;
	uint64		write_number;	/* of the newest write begun */
	uint64		settled_number; /* up to here no write can rename any more */
	bool		is_writing;		/* is that one under way? */
	int64		writing_since_us;	/* on the monotonic clock */
	int64		patience_us;	/* until its writer counts as stuck */
	Latch	   *worker_latch;	/* NULL while there is no worker */
	ConditionVariable write_ended;

	/*
	 * With a registry, the worker id is the lease's, and the mark goes no
	 * further than it lasts.  Only the registry's worker changes it.
	 */
	Lease		lease;
	char		lease_reason[HIGHWATER_REASON_SIZE];	/* why there is none */
	Latch	   *registry_latch; /* NULL while there is no such worker */
	HighwaterCounts counts;
} HighwaterState;

/* Where generators begin, as the state file has it. */
typedef struct HighwaterStart
{
	int64		tick;			/* the first tick that may be used, or 0 */
	int64		lead_us;		/* how far that may lead a clock in order */
} HighwaterStart;

/* What the mark needs to know of the generators, who know of the mark. */
typedef struct HighwaterGenerators
{
	/* the newest tick issued since the start, or -1 if there is none */
	int64		(*newest_tick) (void);

	/*
	 * Allows for what recovery has brought, when it is over; returns the last
	 * tick before the one that generators begin at, or -1.
	 */
	int64		(*end_recovery) (void);

	/*
	 * Lets them begin after a tick, if they are not past it.  That may lead a
	 * clock in order by lead_us, or be what another server has come to.
	 */
	void		(*begin_after) (int64 tick, int64 lead_us, bool is_foreign);
} HighwaterGenerators;

/* parameter, registered by module.c */
extern int	highwater_interval_ms;

extern HighwaterState *highwater_state;

/* The mark as a tick: ids of this one and of later ones may not be issued. */
static inline int64
highwater_mark(void)
{
	return (int64) pg_atomic_read_u64(&highwater_state->mark);
}

extern void highwater_startup(HighwaterState *state, int tranche_id,
							  const HighwaterGenerators *generators,
							  HighwaterStart *start);
extern void highwater_require_sound(void);
extern int64 highwater_read(int *worker_id);
extern void highwater_count(HighwaterCounts *counts);
extern void highwater_move_past(int64 tick);
extern void highwater_register_worker(void);

/* for the registry's worker and the views; see registry.c */
extern void highwater_read_lease(Lease *lease);
extern void highwater_take_lease(const Lease *lease,
								 const TimestampTz *begins_at);
extern void highwater_lose_lease(void);
extern bool highwater_give_lease_up(Lease *lease, TimestampTz *mark);
extern void highwater_note_failure(const char *reason);
extern void highwater_announce_registry(Latch *latch);

extern PGDLLEXPORT void highwater_worker_main(Datum main_arg);

#endif							/* SNOWFLAKE_HIGHWATER_H */
