/*
 * generator.c
 *	  The shared state, and the one place that issues ids.
 *
 * A generator is one 64-bit word, the newest (tick, sequence) that it has
 * issued, packed as (tick << sequence bits) | sequence.  The word only ever
 * grows, so an id never comes twice, however the clock moves: the clock
 * decides whether an id may be issued, never whether a tick begins again.
 *
 * Ids of two generators of one node do repeat, and are of two tables; see
 * generator_next_of_relation().  Should a table move from one to another, as
 * when it is restored from a dump under another OID, its ids still do not
 * repeat: no generator issues an id of a tick before the newest of them all;
 * see look().
 *
 * Locking: a generator's word is changed by compare-and-swap and nothing
 * else, once ids are issued.  The word is read first and the clock after it,
 * so that a clock behind the word is a real step back and not another
 * session's progress; the swap fails if the word has changed meanwhile.  A
 * reservation of more than one id takes the generator's LWLock around that,
 * so that those who want much queue instead of failing each other.  Nothing
 * under it sleeps, does I/O, allocates or raises an error.  A backend's slot
 * is written by its owner alone, without a lock.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "clock.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "compat.h"
#include "generator.h"
#include "highwater.h"
#include "miscadmin.h"
#include "node.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define TRANCHE_NAME "snowflake"

typedef struct Generator
{
	LWLock		lock;			/* the queue of those who reserve many */
	pg_atomic_uint64 last;		/* newest (tick, sequence) issued, packed */
	pg_atomic_uint64 wakeups;	/* newest one given out; see take_wakeup() */
} Generator;

/* What generators begin with, the same for all. */
typedef struct Beginning
{
	LWLock		lock;			/* protects all of it */
	int64		word;			/* what last was before the first id */
	int64		lead_us;		/* how far that may be ahead of the clock */
	int64		foreign_word;	/* the same, if it is of another server */
	bool		is_past_recovery;	/* has recovery's end been allowed for? */
} Beginning;

/*
 * Its counters are of all sessions that have had it; what they were when the
 * present one came is kept, so nothing is lost when a session ends.
 */
typedef struct BackendSlot
{
	int64		last_id;		/* newest id, of this session or before */
	GeneratorCounters counters;
	IdRun		block;			/* see snowflake.block_size */
	GeneratorCounters before;	/* what counters were at the start */
	int			pid;			/* of the session; 0: it is over */
} BackendSlot;

/* What snowflake_stat takes off, and what is rare enough to be shared. */
typedef struct Totals
{
	LWLock		lock;			/* protects what follows */
	GeneratorCounters before;	/* the counters at the last reset */
	HighwaterCounts highwater_before;
	TimestampTz since;			/* the last reset, or the start */
	int64		max_regression_us;
} Totals;

#define NO_ID INT64CONST(-1)

/* How many of the sessions that wait for a tick wake up for one of 1 ms. */
#define WAKEUPS_PER_MS 4

/* Each on cache lines of its own: other processes write its neighbours. */
typedef union PaddedGenerator
{
	Generator	generator;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedGenerator;

typedef union PaddedBeginning
{
	Beginning	beginning;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedBeginning;

typedef union PaddedTick
{
	pg_atomic_uint64 tick;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedTick;

typedef union PaddedTotals
{
	Totals		totals;
	/* cppcheck-suppress unusedStructMember */
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedTotals;

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
	char		padding[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(BackendSlot))];
} PaddedBackendSlot;

/* All of our shared memory, but for the slots that follow it. */
typedef struct SharedState
{
	PaddedHighwater highwater;
	PaddedBeginning beginning;
	PaddedTotals totals;

	/* the newest tick issued by any generator; kept only if there are more */
	PaddedTick	newest;
	PaddedGenerator generators[FLEXIBLE_ARRAY_MEMBER];
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
	int64		tick;			/* of the next id */
	int64		wait_us;
	int64		behind_us;		/* 0 unless it is behind the last tick */
	int64		regression_us;	/* the same, but for the mark's lead */
	bool		is_foreign;		/* behind ids of another server? */
} Attempt;

/* parameters */
int			generator_clock_policy = CLOCK_POLICY_WAIT;
int			generator_clock_tolerance_ms = 5000;
int			generator_sequence_start = SEQUENCE_START_ZERO;
int			generator_block_size = 1;
int			generator_count = 1;

static SharedState *shared = NULL;
static PaddedBackendSlot *slots = NULL; /* by MyProcNumber */

/* Set once this session has been found fit to issue; see attach(). */
static BackendSlot *my_slot = NULL;
static const Layout *layout = NULL;

/*
 * What this session may issue with no more looks at what is shared: ids of
 * ticks before the limit, with these bits of the node.  The limit is the mark
 * as it was when they were read.
 */
static int64 limit = 0;
static int64 node_bits;

/* This session's newest look at the clock. */
static ClockReading clock_now;

static Size
slots_offset(void)
{
	return add_size(offsetof(SharedState, generators),
					mul_size(generator_count, sizeof(PaddedGenerator)));
}

static Size
shared_state_size(void)
{
	return add_size(slots_offset(),
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
	int64		start = shared->beginning.beginning.word;
	int64		newest = start;

	for (int i = 0; i < generator_count; i++)
	{
		Generator  *generator = &shared->generators[i].generator;

		newest = Max(newest, (int64) pg_atomic_read_u64(&generator->last));
	}
	return newest == start ? -1 : newest >> node_layout()->sequence_bits;
}

/* Sets where generators begin, before the first id. */
static void
begin_at(int64 word, int64 lead_us)
{
	Beginning  *beginning = &shared->beginning.beginning;

	beginning->word = word;
	beginning->lead_us = lead_us;
	for (int i = 0; i < generator_count; i++)
		pg_atomic_write_u64(&shared->generators[i].generator.last,
							(uint64) word);
}

/*
 * Lets the generators begin after all ids in the data that recovery brought,
 * whoever issued them: after the time of the last commit replayed.  Returns
 * the last tick before the one that they begin at, or -1.
 */
static int64
end_recovery(void)
{
	Beginning  *beginning = &shared->beginning.beginning;
	TimestampTz last_commit = GetLatestXTime();
	int64		start = 0;
	int64		tick;

	if (last_commit != 0 &&
		layout_locate(node_layout(), last_commit + allowed_lead_us(),
					  &tick) != SPAN_BEFORE)
		start = end_of_tick(tick);

	/* nobody issues before having been here; see attach() */
	LWLockAcquire(&beginning->lock, LW_EXCLUSIVE);
	if (!beginning->is_past_recovery && start > beginning->word)
		begin_at(start, 0);
	beginning->is_past_recovery = true;
	start = beginning->word;
	LWLockRelease(&beginning->lock);

	return start > 0 ? start >> node_layout()->sequence_bits : -1;
}

/* Lets the generators begin after a tick, as ids may be issued already. */
static void
begin_after(int64 tick, int64 lead_us, bool is_foreign)
{
	Beginning  *beginning = &shared->beginning.beginning;
	uint64		word;

	if (tick < 0)
		return;
	word = (uint64) end_of_tick(tick);

	LWLockAcquire(&beginning->lock, LW_EXCLUSIVE);
	if ((int64) word > beginning->word)
	{
		beginning->word = (int64) word;
		beginning->lead_us = lead_us;
		beginning->foreign_word = is_foreign ? (int64) word : 0;
	}
	for (int i = 0; i < generator_count; i++)
	{
		pg_atomic_uint64 *last = &shared->generators[i].generator.last;
		uint64		seen = pg_atomic_read_u64(last);

		while (seen < word &&
			   !pg_atomic_compare_exchange_u64(last, &seen, word))
			 /* it has grown meanwhile */ ;
	}
	LWLockRelease(&beginning->lock);
}

static const HighwaterGenerators generators = {
	.newest_tick = newest_tick,
	.end_recovery = end_recovery,
	.begin_after = begin_after
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
	slots = (PaddedBackendSlot *) ((char *) shared + slots_offset());
	if (!found)
	{
		int			tranche_id =
			GetNamedLWLockTranche(TRANCHE_NAME)->lock.tranche;
		HighwaterStart start;

		memset(shared, 0, shared_state_size());
		highwater_startup(&shared->highwater.highwater, tranche_id,
						  &generators, &start);

		LWLockInitialize(&shared->beginning.beginning.lock, tranche_id);
		LWLockInitialize(&shared->totals.totals.lock, tranche_id);
		shared->totals.totals.since = GetCurrentTimestamp();
		pg_atomic_init_u64(&shared->newest.tick, 0);
		for (int i = 0; i < generator_count; i++)
		{
			LWLockInitialize(&shared->generators[i].generator.lock,
							 tranche_id);
			pg_atomic_init_u64(&shared->generators[i].generator.last, 0);
			pg_atomic_init_u64(&shared->generators[i].generator.wakeups, 0);
		}
		begin_at(starting_word(&start), start.lead_us);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* ERROR 55000 unless there is shared memory of ours. */
static void
require_preloaded(const char *message)
{
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s", _(message)),
				 errhint("Add \"snowflake\" to \"shared_preload_libraries\" and restart the server.")));
}

/* The session is over. */
static void
leave_slot(int code, Datum arg)
{
	(void) code;
	(void) arg;
	my_slot->pid = 0;
}

/* Reads the limit of this session, and whose ids there are up to it. */
static void
read_limit(void)
{
	int			worker_id;

	limit = highwater_read(&worker_id);
	node_bits = layout_node_bits(layout, node_datacenter_id,
								 Max(worker_id, 0));
}

/*
 * Finds out, once a session, whether ids may be issued here, and takes the
 * backend's slot.  Every reason against it is an error of its own.
 */
static void
attach(void)
{
	BackendSlot *slot;

	require_preloaded(gettext_noop("snowflake ids cannot be issued because the library was not preloaded"));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("snowflake ids cannot be issued during recovery"),
				 errhint("Connect to the primary server, or promote this one.")));
	if (!node_is_leased() &&
		node_intended_worker_id() == NODE_WORKER_ID_UNSET)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("snowflake ids cannot be issued because \"snowflake.worker_id\" is not set"),
				 errhint("Set \"snowflake.worker_id\" to a number that no other server uses, in the range 0 .. " INT64_FORMAT ", and restart the server.",
						 layout_field_max(node_layout()->worker_bits))));

	highwater_require_sound();
	(void) end_recovery();

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	layout = node_layout();
	read_limit();

	slot = &slots[MyProcNumber].slot;
	memset(&slot->block, 0, sizeof(slot->block));
	slot->before = slot->counters;
	slot->pid = MyProcPid;
	my_slot = slot;
	on_shmem_exit(leave_slot, 0);
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
lead_us(int64 tick)
{
	return layout_tick_start(layout, tick) - clock_now.now;
}

/* Does the policy refuse to wait for a clock that is behind? */
static bool
is_too_far_behind(int64 regression_us)
{
	if (regression_us <= 0)
		return false;
	return generator_clock_policy == CLOCK_POLICY_ERROR ||
		regression_us - allowed_lead_us() > clock_tolerance_us();
}

/*
 * What it comes to where the next id's tick is not the clock's: whether it
 * leads too far, and then whether to wait for it.  A start after a crash is
 * ahead of a clock that is in order by what the mark was; that much is waited
 * for under every policy.
 */
static void
decide_on_lead(int64 last, Attempt *attempt)
{
	const Beginning *beginning = &shared->beginning.beginning;
	int64		lead = lead_us(attempt->tick);
	int64		last_lead = lead_us(tick_of(last));

	attempt->outcome = OUTCOME_RESERVED;
	if (lead <= allowed_lead_us())
	{
		if (attempt->tick > layout_max_tick(layout))
			attempt->outcome = OUTCOME_AFTER_SPAN;
		return;
	}

	/* too early: is it the clock that is behind, or is the tick spent? */
	attempt->wait_us = lead - allowed_lead_us();
	if (last_lead > allowed_lead_us())
	{
		attempt->behind_us = last_lead;
		attempt->regression_us = last_lead -
			(last == beginning->word ? beginning->lead_us : 0);
		attempt->is_foreign = last == beginning->foreign_word;
	}
	attempt->outcome = is_too_far_behind(attempt->regression_us) ?
		OUTCOME_BEHIND : OUTCOME_WAIT;
}

/*
 * The rules of issuing: the next word to issue after the last one, which was
 * read before the clock; if there is none now, the outcome says why.
 */
static inline int64
decide(int64 last, Attempt *attempt)
{
	int64		last_tick = tick_of(last);
	bool		fresh;

	/* the clock's tick, else what follows the last id */
	fresh = clock_now.tick > last_tick ||
		sequence_of(last) == layout_field_max(layout->sequence_bits);
	attempt->tick = Max(clock_now.tick, fresh ? last_tick + 1 : last_tick);

	if (unlikely(clock_now.position != SPAN_WITHIN))
		attempt->outcome = clock_now.position == SPAN_BEFORE ?
			OUTCOME_BEFORE_SPAN : OUTCOME_AFTER_SPAN;
	else if (likely(attempt->tick == clock_now.tick))
		attempt->outcome = OUTCOME_RESERVED;
	else
		decide_on_lead(last, attempt);

	if (likely(attempt->outcome == OUTCOME_RESERVED) &&
		unlikely(attempt->tick >= limit))
		attempt->outcome = OUTCOME_AT_MARK;

	return fresh ?
		(attempt->tick << layout->sequence_bits) | first_sequence() :
		last + 1;
}

/* Raises the error of an attempt that failed. */
static void
refuse(const Attempt *attempt)
{
	if (attempt->outcome == OUTCOME_BEHIND)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the clock is " INT64_FORMAT ".%03d ms behind %s",
						attempt->behind_us / 1000,
						(int) (attempt->behind_us % 1000),
						attempt->is_foreign ?
						_("what the last holder of the worker id has promised") :
						_("the last snowflake id")),
				 generator_clock_policy == CLOCK_POLICY_ERROR ?
				 errdetail("\"snowflake.clock_policy\" is \"error\".") :
				 errdetail("\"snowflake.clock_tolerance\" is %d ms.",
						   generator_clock_tolerance_ms),
				 attempt->is_foreign ?
				 errhint("It may have issued ids up to there. Ids are issued when the clock has come there, too.") :
				 errhint("Check the server's clock and its synchronization. Ids are issued again when it has caught up.")));

	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 attempt->outcome == OUTCOME_BEFORE_SPAN ?
			 errmsg("the clock is before the epoch of snowflake ids: %s",
					timestamptz_to_str(clock_now.now)) :
			 errmsg("the clock is at or past the last tick of snowflake ids: %s",
					timestamptz_to_str(clock_now.now)),
			 errdetail("Layout \"%s\" with epoch \"%s\" ends after tick " INT64_FORMAT ".",
					   node_layout_text, node_epoch_text,
					   layout_max_tick(layout)),
			 errhint("Check the server's clock, \"snowflake.epoch\" and \"snowflake.layout\".")));
}

/* Lets the other generators know of a tick, before an id of it is out. */
static inline void
announce_tick(int64 tick)
{
	uint64		newest;

	if (likely(generator_count == 1))
		return;
	newest = pg_atomic_read_u64(&shared->newest.tick);
	while (newest < (uint64) tick &&
		   !pg_atomic_compare_exchange_u64(&shared->newest.tick, &newest,
										   (uint64) tick))
		 /* another one has, perhaps of an older tick */ ;
}

/*
 * Looks at the word and then at the clock, and returns the last word that
 * counts: the generator's own or, if another one is in a later tick, the last
 * before that tick.  If the clock has stepped back behind that tick, a table
 * may come to it with ids of another generator; then the tick is closed to
 * this one.  Under "advance" it is not: all follow the one that leads most.
 */
static inline int64
look(Generator *generator, uint64 *last)
{
	int64		newest = 0;

	if (unlikely(generator_count > 1))
		newest = (int64) pg_atomic_read_u64(&shared->newest.tick);

	/* else some processors might read the clock before the words */
	pg_read_barrier();
	clock_read(layout, &clock_now);

	if (likely(newest <= tick_of((int64) *last)))
		return (int64) *last;
	if (likely(clock_now.tick >= newest || allowed_lead_us() > 0))
		return end_of_tick(newest - 1);
	if (pg_atomic_compare_exchange_u64(&generator->last, last,
									   (uint64) end_of_tick(newest)))
		*last = (uint64) end_of_tick(newest);
	return Max((int64) *last, end_of_tick(newest));
}

/*
 * One look at the word and the clock, and again if the word has changed
 * before it could be moved on.  Each time that is another session's success.
 */
static inline int64
try_to_reserve(Generator *generator, int64 wanted, int64 *reserved,
			   Attempt *attempt)
{
	uint64		last = pg_atomic_read_u64(&generator->last);

	for (;;)
	{
		int64		next = decide(look(generator, &last), attempt);

		if (unlikely(attempt->outcome != OUTCOME_RESERVED))
			return next;

		*reserved = wanted == 1 ? 1 :
			Min(wanted, layout_field_max(layout->sequence_bits) -
				sequence_of(next) + 1);
		if (likely(pg_atomic_compare_exchange_u64(&generator->last, &last,
												  (uint64) (next + *reserved - 1))))
		{
			announce_tick(attempt->tick);
			return next;
		}
	}
}

/*
 * The tick that a session waits for when the last one is spent: the next one
 * for the first so many of them, the one after it for as many more, and so
 * on.  All the others would only wake up to find it spent once more, while
 * they use the processor and come in no order.  One that does not come back
 * leaves its place empty.
 */
static int64
take_wakeup(Generator *generator, int64 next_tick)
{
	int64		per_tick = Max(1, WAKEUPS_PER_MS * layout->tick_us / 1000);
	uint64		last = pg_atomic_read_u64(&generator->wakeups);
	uint64		mine;

	do
		mine = Max(last + 1, (uint64) (next_tick * per_tick));
	while (!pg_atomic_compare_exchange_u64(&generator->wakeups, &last, mine));
	return (int64) (mine / (uint64) per_tick);
}

/* Remembers how far the clock was found behind, at most. */
static void
note_regression(int64 behind_us)
{
	Totals	   *totals = &shared->totals.totals;

	LWLockAcquire(&totals->lock, LW_EXCLUSIVE);
	totals->max_regression_us = Max(totals->max_regression_us, behind_us);
	LWLockRelease(&totals->lock);
}

/* What a call keeps while it waits. */
typedef struct Wait
{
	bool		has_waited_for_tick;
	bool		has_waited_for_clock;
	bool		has_regressed;
	int64		wakeup_tick;	/* see take_wakeup() */
} Wait;

/* Counts a call once, however often it looks. */
static inline void
count_once(bool *is_counted, uint64 *counter)
{
	if (!*is_counted)
		(*counter)++;
	*is_counted = true;
}

/* Sleeps, and counts the time that it took. */
static void
sleep_and_count(int64 duration_us, WaitReason reason, uint64 *counter_us)
{
	instr_time	begin;
	instr_time	end;

	INSTR_TIME_SET_CURRENT(begin);
	clock_sleep(duration_us, reason);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, begin);
	*counter_us += INSTR_TIME_GET_MICROSEC(end);
}

/* Waits for the clock, or for the tick after a spent one. */
static void
wait_for(Generator *generator, const Attempt *attempt, Wait *wait)
{
	GeneratorCounters *counters = &my_slot->counters;

	if (attempt->behind_us > 0)
	{
		count_once(&wait->has_waited_for_clock, &counters->clock_waits);
		sleep_and_count(attempt->wait_us, WAIT_FOR_CLOCK,
						&counters->clock_wait_us);
	}
	else
	{
		count_once(&wait->has_waited_for_tick, &counters->sequence_waits);
		if (wait->wakeup_tick < attempt->tick)
			wait->wakeup_tick = take_wakeup(generator, attempt->tick);
		sleep_and_count(attempt->wait_us + layout->tick_us *
						(wait->wakeup_tick - attempt->tick), WAIT_FOR_TICK,
						&counters->sequence_wait_us);
	}
}

/* Moves the limit past a tick, and the mark, if that is not there yet. */
static void
move_limit_past(int64 tick)
{
	read_limit();
	if (limit <= tick)
	{
		highwater_move_past(tick);
		read_limit();
	}
}

/* Waits, or raises an error, as the outcome of an attempt demands. */
static void
wait_or_refuse(Generator *generator, const Attempt *attempt, Wait *wait)
{
	GeneratorCounters *counters = &my_slot->counters;

	if (attempt->regression_us > 0)
	{
		if (!wait->has_regressed)
			note_regression(attempt->regression_us);
		count_once(&wait->has_regressed, &counters->clock_regressions);
	}

	if (attempt->outcome == OUTCOME_AT_MARK)
		move_limit_past(attempt->tick);
	else if (attempt->outcome == OUTCOME_WAIT)
		wait_for(generator, attempt, wait);
	else
	{
		counters->clock_refusals++;
		refuse(attempt);
	}
}

/*
 * Reserves "wanted" words of one tick, fewer where the tick has no more, and
 * returns the first of them.  Waits as the rules say, and then reserves one:
 * it is another tick, in which the caller has not shown to be fast.
 */
static inline int64
reserve(Generator *generator, int64 wanted, int64 *reserved)
{
	Wait		wait = {.wakeup_tick = -1};

	Assert(wanted >= 1);

	for (;;)
	{
		Attempt		attempt = {0};
		int64		next;

		if (wanted > 1)
			LWLockAcquire(&generator->lock, LW_EXCLUSIVE);
		next = try_to_reserve(generator, wanted, reserved, &attempt);
		if (wanted > 1)
			LWLockRelease(&generator->lock);

		if (likely(attempt.outcome == OUTCOME_RESERVED))
			return next;
		wait_or_refuse(generator, &attempt, &wait);
		wanted = 1;
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
	my_slot->counters.ids_issued++;
	return id;
}

/*
 * Is a run's tick still the one to issue in?  Not when it has passed, nor
 * when it now leads the clock too far, nor when others have ids of a later
 * one, which a clock that has stepped back does not show.
 */
static inline bool
run_is_current(const IdRun *run)
{
	int64		tick = tick_of(run->next - 1);	/* of the last handed out */

	if (tick_of((int64) pg_atomic_read_u64(&run->generator->last)) > tick)
		return false;
	pg_read_barrier();
	clock_read(layout, &clock_now);
	return clock_now.position == SPAN_WITHIN &&
		clock_now.tick <= tick &&
		(likely(clock_now.tick == tick) || lead_us(tick) <= allowed_lead_us());
}

/*
 * The next id of a run, which is taken up anew when it is used up, not
 * current any more or of another generator, or when this session has issued
 * another id since, which may be larger.  It doubles while it is used up
 * within its tick, to "largest" at most, so that a slow caller wastes none.
 */
static inline int64
next_of_run(IdRun *run, Generator *generator, int64 largest)
{
	bool		is_current = run->size > 0 &&
		run->generator == generator && run->node_bits == node_bits &&
		run_is_current(run);

	if (!(is_current && run->left > 0 && run->last_id == my_slot->last_id))
	{
		int64		wanted = is_current && run->left == 0 ?
			Min(run->size * 2, largest) : 1;
		int64		reserved;
		int64		next = reserve(generator, wanted, &reserved);

		/* an error must not leave half of a run, so not before this */
		run->next = next;
		run->left = run->size = reserved;
		run->generator = generator;
		run->node_bits = node_bits;
	}
	run->left--;
	run->last_id = issue(run->next++);
	return run->last_id;
}

static inline int64
next_id(Generator *generator)
{
	int64		reserved;

	if (likely(generator_block_size == 1))
		return issue(reserve(generator, 1, &reserved));
	return next_of_run(&my_slot->block, generator, generator_block_size);
}

/*
 * The next id.  ERROR 55000, 25006, F0000 (see attach()), 54000 (the clock
 * is outside the layout's span) or 55000 (the clock is behind and the policy
 * does not let it be waited for).
 */
int64
generator_next(void)
{
	if (unlikely(my_slot == NULL))
		attach();
	return next_id(&shared->generators[0].generator);
}

/*
 * The next id for a relation of this database, by the generator that it maps
 * to.  Errors as generator_next().
 */
int64
generator_next_of_relation(Oid relation)
{
	uint32		hash = hash_combine(murmurhash32(MyDatabaseId),
									murmurhash32(relation));

	if (unlikely(my_slot == NULL))
		attach();
	return next_id(&shared->generators[hash % generator_count].generator);
}

/*
 * The next id of a caller that wants so many more.  It takes the lock once
 * for each run of ids.  Errors as generator_next().
 */
int64
generator_next_of_run(IdRun *run, int64 wanted)
{
	if (unlikely(my_slot == NULL))
		attach();
	return next_of_run(run, &shared->generators[0].generator, wanted);
}

/* Has this session issued an id? */
static bool
has_issued(const BackendSlot *slot)
{
	return slot->counters.ids_issued > slot->before.ids_issued;
}

/* The last id of this session; false if there is none yet. */
bool
generator_last_of_session(int64 *id)
{
	if (my_slot == NULL || !has_issued(my_slot))
		return false;
	*id = my_slot->last_id;
	return true;
}

/* The same for those who want to know about them. */
void
generator_require_counters(void)
{
	require_preloaded(gettext_noop("snowflake ids are not counted because the library was not preloaded"));
}

/*
 * Adds counters, or takes them off: sign is 1 or -1.  They are read without a
 * lock while their owners go on, each as a whole; together they are no more
 * exact than that.
 */
static void
add_counters(GeneratorCounters *sum, const GeneratorCounters *counters,
			 int sign)
{
	/* unsigned, so that -1 wraps round to a subtraction */
	uint64		factor = (uint64) (int64) sign;

	sum->ids_issued += factor * counters->ids_issued;
	sum->sequence_waits += factor * counters->sequence_waits;
	sum->sequence_wait_us += factor * counters->sequence_wait_us;
	sum->clock_waits += factor * counters->clock_waits;
	sum->clock_wait_us += factor * counters->clock_wait_us;
	sum->clock_regressions += factor * counters->clock_regressions;
	sum->clock_refusals += factor * counters->clock_refusals;
}

/* The counters of all sessions since the start, and their largest id. */
static void
sum_slots(GeneratorCounters *sum, int64 *last_id)
{
	memset(sum, 0, sizeof(*sum));
	*last_id = NO_ID;
	for (int i = 0; i < MaxBackends; i++)
	{
		const BackendSlot *slot = &slots[i].slot;

		add_counters(sum, &slot->counters, 1);
		if (slot->counters.ids_issued > 0)
			*last_id = Max(*last_id, slot->last_id);
	}
}

/* All sessions together; ERROR 55000 if the library was not preloaded. */
void
generator_totals(GeneratorTotals *result)
{
	Totals	   *totals;
	HighwaterCounts counts;

	generator_require_counters();
	totals = &shared->totals.totals;

	LWLockAcquire(&totals->lock, LW_SHARED);
	sum_slots(&result->counters, &result->last_id);
	add_counters(&result->counters, &totals->before, -1);
	highwater_count(&counts);
	result->high_water_writes = counts.writes - totals->highwater_before.writes;
	result->lease_renewals = counts.lease_renewals -
		totals->highwater_before.lease_renewals;
	result->lease_failures = counts.lease_failures -
		totals->highwater_before.lease_failures;
	result->max_regression_us = totals->max_regression_us;
	result->since = totals->since;
	LWLockRelease(&totals->lock);
}

/* One session by its number, 0 .. MaxBackends - 1. */
void
generator_session(int number, GeneratorSession *session)
{
	const BackendSlot *slot = &slots[number].slot;
	GeneratorCounters before = slot->before;

	/* counters only grow, so what is read later is no less */
	pg_read_barrier();
	session->pid = slot->pid;
	session->counters = slot->counters;
	add_counters(&session->counters, &before, -1);
	session->last_id = has_issued(slot) ? slot->last_id : NO_ID;
}

/* Lets the totals begin anew; ERROR 55000 if not preloaded. */
void
generator_reset_totals(void)
{
	TimestampTz now = GetCurrentTimestamp();
	Totals	   *totals;
	int64		last_id;

	generator_require_counters();
	totals = &shared->totals.totals;
	LWLockAcquire(&totals->lock, LW_EXCLUSIVE);
	sum_slots(&totals->before, &last_id);
	highwater_count(&totals->highwater_before);
	totals->max_regression_us = 0;
	totals->since = now;
	LWLockRelease(&totals->lock);
}
