/*
 * generator.c
 *	  The shared state, and the one place that issues ids.
 *
 * A generator is one 64-bit word, the newest (tick, sequence) that it has
 * issued, packed as (tick << sequence bits) | sequence.  The word only ever
 * grows, so an id never comes twice, however the clock moves: the clock
 * decides whether an id may be issued, never whether a tick begins again.
 *
 * Locking: a generator's LWLock protects its word.  Under it the word is
 * read first and the clock after it, so that a clock behind the word is a
 * real step back and not another session's progress.  Nothing under it
 * sleeps, does I/O, allocates or raises an error.  A backend's slot is
 * written by its owner alone, without a lock.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "clock.h"
#include "common/pg_prng.h"
#include "compat.h"
#include "generator.h"
#include "highwater.h"
#include "miscadmin.h"
#include "node.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define TRANCHE_NAME "snowflake"

typedef struct Generator
{
	LWLock		lock;			/* protects all of it */
	pg_atomic_uint64 last;		/* newest (tick, sequence) issued, packed */
	int64		start;			/* what last was before the first id */
	int64		start_lead_us;	/* how far that may be ahead of the clock */
	bool		is_past_recovery;	/* has recovery's end been allowed for? */
} Generator;

typedef struct BackendSlot
{
	int64		last_id;		/* newest id of this session, or NO_ID */
	uint64		ids_issued;		/* to this session */
} BackendSlot;

#define NO_ID INT64CONST(-1)

/* Each on cache lines of its own: other processes write its neighbours. */
typedef union PaddedGenerator
{
	Generator	generator;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedGenerator;

typedef union PaddedHighwater
{
	HighwaterState highwater;
	/* cppcheck-suppress unusedStructMember */
	char		padding[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(HighwaterState))];
} PaddedHighwater;

typedef union PaddedBackendSlot
{
	BackendSlot slot;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedBackendSlot;

/* All of our shared memory. */
typedef struct SharedState
{
	PaddedHighwater highwater;
	PaddedGenerator generator;
	PaddedBackendSlot slots[FLEXIBLE_ARRAY_MEMBER]; /* by MyProcNumber */
} SharedState;

/* What one look at the word and the clock comes to. */
typedef enum Outcome
{
	OUTCOME_RESERVED,
	OUTCOME_WAIT,				/* for wait_us */
	OUTCOME_AT_MARK,			/* the mark has to move past the tick first */
	OUTCOME_BEHIND,				/* the clock is, by behind_us: refused */
	OUTCOME_BEFORE_SPAN,		/* the clock is before the epoch */
	OUTCOME_AFTER_SPAN			/* no tick is left */
} Outcome;

typedef struct Attempt
{
	Outcome		outcome;
	ClockReading clock;
	int64		tick;			/* of the next id */
	int64		wait_us;
	int64		behind_us;		/* 0 unless it is behind the last tick */
} Attempt;

/* parameters */
int			generator_clock_policy = CLOCK_POLICY_WAIT;
int			generator_clock_tolerance_ms = 5000;
int			generator_sequence_start = SEQUENCE_START_ZERO;

static SharedState *shared = NULL;

/* Set once this session has been found fit to issue; see attach(). */
static BackendSlot *my_slot = NULL;
static const Layout *layout = NULL;
static int64 node_bits;

static Size
shared_state_size(void)
{
	return add_size(offsetof(SharedState, slots),
					mul_size(MaxBackends, sizeof(PaddedBackendSlot)));
}

void
generator_shmem_request(void)
{
	RequestAddinShmemSpace(shared_state_size());

	/* the lock itself lives in the generator; this gives it its name */
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
}

static inline int64
clock_tolerance_us(void)
{
	return (int64) generator_clock_tolerance_ms * 1000;
}

/* How far an id's tick may be ahead of the clock. */
static inline int64
allowed_lead_us(void)
{
	return generator_clock_policy == CLOCK_POLICY_ADVANCE ?
		clock_tolerance_us() : 0;
}

/* The last word of a tick. */
static int64
end_of_tick(int64 tick)
{
	const Layout *configured = node_layout();

	return (tick << configured->sequence_bits) |
		layout_field_max(configured->sequence_bits);
}

/* The word that a generator starts from. */
static int64
starting_word(const HighwaterStart *start)
{
	return start->tick > 0 ? end_of_tick(start->tick - 1) : 0;
}

/* The newest tick issued since the start, or -1; for the mark. */
static int64
newest_tick(void)
{
	Generator  *generator = &shared->generator.generator;
	int64		last = (int64) pg_atomic_read_u64(&generator->last);

	return last == generator->start ? -1 :
		last >> node_layout()->sequence_bits;
}

/*
 * Lets the generator begin after all ids in the data that recovery brought,
 * whoever issued them: after the time of the last commit replayed.  Returns
 * the last tick before the one that it begins at, or -1.
 */
static int64
end_recovery(void)
{
	Generator  *generator = &shared->generator.generator;
	TimestampTz last_commit = GetLatestXTime();
	int64		start = 0;
	int64		tick;

	if (last_commit != 0 &&
		layout_locate(node_layout(), last_commit + allowed_lead_us(),
					  &tick) != SPAN_BEFORE)
		start = end_of_tick(tick);

	LWLockAcquire(&generator->lock, LW_EXCLUSIVE);
	if (!generator->is_past_recovery && start > generator->start)
	{
		generator->start = start;
		generator->start_lead_us = 0;
		pg_atomic_write_u64(&generator->last, (uint64) start);
	}
	generator->is_past_recovery = true;
	start = generator->start;
	LWLockRelease(&generator->lock);

	return start > 0 ? start >> node_layout()->sequence_bits : -1;
}

static const HighwaterGenerators generators = {
	.newest_tick = newest_tick,
	.end_recovery = end_recovery
};

/*
 * Called by the postmaster at its start, and again when a backend's crash
 * has made it throw the shared memory away.
 */
void
generator_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("snowflake", shared_state_size(), &found);
	if (!found)
	{
		int			tranche_id =
			GetNamedLWLockTranche(TRANCHE_NAME)->lock.tranche;
		Generator  *generator = &shared->generator.generator;
		HighwaterStart start;

		memset(shared, 0, shared_state_size());
		highwater_startup(&shared->highwater.highwater, tranche_id,
						  &generators, &start);

		LWLockInitialize(&generator->lock, tranche_id);
		generator->start = starting_word(&start);
		generator->start_lead_us = start.lead_us;
		pg_atomic_init_u64(&generator->last, (uint64) generator->start);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Finds out, once a session, whether ids may be issued here, and takes the
 * backend's slot.  Every reason against it is an error of its own.
 */
static void
attach(void)
{
	BackendSlot *slot;

	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids cannot be issued because the library was not preloaded"),
				 errhint("Add \"snowflake\" to \"shared_preload_libraries\" and restart the server.")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("snowflake ids cannot be issued during recovery"),
				 errhint("Connect to the primary server, or promote this one.")));
	if (node_worker_id == NODE_WORKER_ID_UNSET)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("snowflake ids cannot be issued because \"snowflake.worker_id\" is not set"),
				 errhint("Set \"snowflake.worker_id\" to a number that no other server uses, in the range 0 .. " INT64_FORMAT ", and restart the server.",
						 layout_field_max(node_layout()->worker_bits))));

	highwater_require_sound();
	(void) end_recovery();

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	layout = node_layout();
	node_bits = layout_node_bits(layout, node_datacenter_id, node_worker_id);

	slot = &shared->slots[MyProcNumber].slot;
	slot->last_id = NO_ID;
	slot->ids_issued = 0;
	my_slot = slot;
}

static inline int64
tick_of(int64 word)
{
	return word >> layout->sequence_bits;
}

static inline int64
sequence_of(int64 word)
{
	return word & layout_field_max(layout->sequence_bits);
}

/* The sequence that a tick begins with that has not been used yet. */
static inline int64
first_sequence(void)
{
	/* in the lower quarter, so that most of the tick's ids are left */
	if (generator_sequence_start == SEQUENCE_START_RANDOM &&
		layout->sequence_bits > 2)
		return (int64) (pg_prng_uint64(&pg_global_prng_state) >>
						(64 - (layout->sequence_bits - 2)));
	return 0;
}

/* How far a tick is ahead of the clock, in microseconds; behind: negative. */
static inline int64
lead_us(int64 tick, const ClockReading *clock)
{
	return layout_tick_start(layout, tick) - clock->now;
}

/*
 * Does the policy refuse to wait for a clock that is behind?  A start after a
 * crash is ahead of a clock that is in order by what the mark was; that much
 * is waited for under every policy.
 */
static bool
is_too_far_behind(const Generator *generator, int64 last,
				  const Attempt *attempt)
{
	int64		behind_us = attempt->behind_us;

	if (last == generator->start)
		behind_us -= generator->start_lead_us;
	if (behind_us <= 0)
		return false;
	return generator_clock_policy == CLOCK_POLICY_ERROR ||
		behind_us - allowed_lead_us() > clock_tolerance_us();
}

/*
 * The rules of issuing, for a clock that is read after the generator's word:
 * the next word to issue, or the last one where there is none now, and why.
 */
static inline int64
decide(Generator *generator, Attempt *attempt)
{
	int64		last = (int64) pg_atomic_read_u64(&generator->last);
	const ClockReading *clock = &attempt->clock;
	int64		last_tick = tick_of(last);
	int64		next_tick;
	int64		lead;
	bool		fresh;

	clock_read(layout, &attempt->clock);

	/* the clock's tick, else what follows the last id */
	fresh = clock->tick > last_tick ||
		sequence_of(last) == layout_field_max(layout->sequence_bits);
	next_tick = Max(clock->tick, fresh ? last_tick + 1 : last_tick);
	attempt->tick = next_tick;

	if (unlikely(clock->position != SPAN_WITHIN))
	{
		attempt->outcome = clock->position == SPAN_BEFORE ?
			OUTCOME_BEFORE_SPAN : OUTCOME_AFTER_SPAN;
		return last;
	}

	lead = lead_us(next_tick, clock);
	if (likely(lead <= allowed_lead_us()))
	{
		if (unlikely(next_tick > layout_max_tick(layout)))
		{
			attempt->outcome = OUTCOME_AFTER_SPAN;
			return last;
		}
		if (unlikely(next_tick >= highwater_mark()))
		{
			attempt->outcome = OUTCOME_AT_MARK;
			return last;
		}
		attempt->outcome = OUTCOME_RESERVED;
		return fresh ?
			(next_tick << layout->sequence_bits) | first_sequence() :
			last + 1;
	}

	/* too early: is it the clock that is behind, or is the tick spent? */
	attempt->wait_us = lead - allowed_lead_us();
	attempt->behind_us = clock->tick < last_tick ?
		lead_us(last_tick, clock) : 0;
	attempt->outcome = is_too_far_behind(generator, last, attempt) ?
		OUTCOME_BEHIND : OUTCOME_WAIT;
	return last;
}

/* Raises the error of an attempt that failed. */
static void
refuse(const Attempt *attempt)
{
	if (attempt->outcome == OUTCOME_BEHIND)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the clock is " INT64_FORMAT ".%03d ms behind the last snowflake id",
						attempt->behind_us / 1000,
						(int) (attempt->behind_us % 1000)),
				 generator_clock_policy == CLOCK_POLICY_ERROR ?
				 errdetail("\"snowflake.clock_policy\" is \"error\".") :
				 errdetail("\"snowflake.clock_tolerance\" is %d ms.",
						   generator_clock_tolerance_ms),
				 errhint("Check the server's clock and its synchronization. Ids are issued again when it has caught up.")));

	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 attempt->outcome == OUTCOME_BEFORE_SPAN ?
			 errmsg("the clock is before the epoch of snowflake ids: %s",
					timestamptz_to_str(attempt->clock.now)) :
			 errmsg("the clock is at or past the last tick of snowflake ids: %s",
					timestamptz_to_str(attempt->clock.now)),
			 errdetail("Layout \"%s\" with epoch \"%s\" ends after tick " INT64_FORMAT ".",
					   node_layout_text, node_epoch_text,
					   layout_max_tick(layout)),
			 errhint("Check the server's clock, \"snowflake.epoch\" and \"snowflake.layout\".")));
}

/*
 * Reserves "wanted" words of one tick, fewer where the tick has no more, and
 * returns the first of them.  Waits as the rules say.
 */
static inline int64
reserve(Generator *generator, int64 wanted, int64 *reserved)
{
	Assert(wanted >= 1);

	for (;;)
	{
		Attempt		attempt;
		int64		next;

		LWLockAcquire(&generator->lock, LW_EXCLUSIVE);
		next = decide(generator, &attempt);
		if (likely(attempt.outcome == OUTCOME_RESERVED))
		{
			int64		further = layout_field_max(layout->sequence_bits) -
				sequence_of(next);

			*reserved = 1 + Min(wanted - 1, further);
			pg_atomic_write_u64(&generator->last,
								(uint64) (next + (*reserved - 1)));
		}
		LWLockRelease(&generator->lock);

		if (likely(attempt.outcome == OUTCOME_RESERVED))
			return next;
		if (attempt.outcome == OUTCOME_AT_MARK)
			highwater_move_past(attempt.tick);
		else if (attempt.outcome == OUTCOME_WAIT)
			clock_sleep(attempt.wait_us, attempt.behind_us > 0 ?
						WAIT_FOR_CLOCK : WAIT_FOR_TICK);
		else
			refuse(&attempt);
	}
}

/* Turns a reserved word into an id and enters it in the backend's slot. */
static inline int64
issue(int64 word)
{
	int64		sequence = sequence_of(word);
	int64		id = ((word - sequence) << (layout->datacenter_bits +
											layout->worker_bits)) |
		node_bits | sequence;

	my_slot->last_id = id;
	my_slot->ids_issued++;
	return id;
}

/*
 * The next id.  ERROR 55000, 25006, F0000 (see attach()), 54000 (the clock
 * is outside the layout's span) or 55000 (the clock is behind and the policy
 * does not let it be waited for).
 */
int64
generator_next(void)
{
	int64		reserved;

	if (unlikely(my_slot == NULL))
		attach();
	return issue(reserve(&shared->generator.generator, 1, &reserved));
}

/*
 * Are the words left in a run still good?  Not when its tick has passed or
 * now leads the clock too far, nor when this session has issued another id
 * since, which would be larger.
 */
static inline bool
run_is_current(const IdRun *run)
{
	ClockReading clock;

	if (run->left == 0 || run->last_id != my_slot->last_id)
		return false;
	clock_read(layout, &clock);
	return clock.position == SPAN_WITHIN &&
		clock.tick <= tick_of(run->next) &&
		lead_us(tick_of(run->next), &clock) <= allowed_lead_us();
}

/*
 * The next id of a caller that wants so many more.  It takes the lock once
 * for each run of ids.  A run doubles when the one before was used up, so
 * that a slow caller wastes next to nothing.  Errors as generator_next().
 */
int64
generator_next_of_run(IdRun *run, int64 wanted)
{
	if (unlikely(my_slot == NULL))
		attach();

	if (!run_is_current(run))
	{
		bool		used_up = run->left == 0 && run->size > 0;

		run->size = Min(wanted, used_up ? run->size * 2 : 1);
		run->next = reserve(&shared->generator.generator, run->size,
							&run->left);
	}
	run->left--;
	run->last_id = issue(run->next++);
	return run->last_id;
}

/* The last id of this session; false if there is none yet. */
bool
generator_last_of_session(int64 *id)
{
	if (my_slot == NULL || my_slot->last_id == NO_ID)
		return false;
	*id = my_slot->last_id;
	return true;
}
