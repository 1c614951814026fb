/*
 * generator.c
 *	  Issuing: one session's way from a call to an id.
 *
 * A generator is one stamp, the newest (tick, sequence) that it has issued.
 * The stamp only ever grows, so an id never comes twice, however the clock
 * moves: the clock decides whether an id may be issued, never whether a tick
 * begins again.
 *
 * The stamp is read first and the clock after it, so that a clock behind the
 * stamp is a real step back and not another session's progress.  The next
 * stamp is chosen from the two, and put in place by compare-and-swap, which
 * fails if the stamp has changed meanwhile.  Locking rules are in shmem.h.
 *
 * Ids of two generators of one node do repeat, and are of two tables; see
 * generator_next_of_relation().  If a table moves from one generator to
 * another, as when it is restored from a dump under another OID, its ids
 * still do not repeat: no generator issues an id of a tick before the newest
 * tick of all generators; see read_last_and_clock().
 */
#include "postgres.h"

#include "access/xlog.h"
#include "clock.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "compat.h"
#include "generator.h"
#include "highwater.h"
#include "miscadmin.h"
#include "node.h"
#include "portability/instr_time.h"
#include "start.h"
#include "storage/ipc.h"

/* How many of the sessions that wait for a tick wake up for one of 1 ms. */
#define WAKEUPS_PER_MS 4

/* What one reading of the stamp and the clock comes to. */
typedef enum Outcome
{
	OUTCOME_ISSUE,
	OUTCOME_WAIT,
	OUTCOME_AT_MARK,			/* the mark has to move past the tick first */
	OUTCOME_BEHIND,				/* the clock is behind: refused */
	OUTCOME_BEFORE_SPAN,		/* the clock is before the epoch: refused */
	OUTCOME_AFTER_SPAN			/* no tick is left: refused */
} Outcome;

/* An attempt to choose the next stamp. */
typedef struct Attempt
{
	Outcome		outcome;
	int64		tick;			/* of the next id */

	/* Set by judge_lead(), for OUTCOME_WAIT and OUTCOME_BEHIND. */
	ClockVerdict verdict;
	bool		is_at_fence;	/* behind another holder's ids? */
} Attempt;

/* What a call has waited for, so that it is counted once. */
typedef struct Wait
{
	bool		is_counted_as_sequence_wait;
	bool		is_counted_as_clock_wait;
	bool		is_counted_as_regression;
	int64		wakeup_tick;	/* see take_wakeup(); -1: none yet */
} Wait;

/* This session, once it has been found fit to issue; see attach(). */
typedef struct Session
{
	BackendSlot *slot;			/* NULL: not attached */
	const Layout *layout;

	/*
	 * Ids of ticks before the limit, with these bits of the node, may be
	 * issued with no look at what is shared but the generator.  The limit is
	 * the mark as it was when the two were read.
	 */
	int64		limit;
	int64		node_bits;
	ClockReading clock;			/* the newest reading */
} Session;

/* parameters */
int			generator_sequence_start = SEQUENCE_START_ZERO;
int			generator_block_size = 1;

static Session session;

/* Called when the session ends. */
static void
leave_slot(int code, Datum arg)
{
	(void) code;
	(void) arg;
	session.slot->pid = 0;
}

/* Reads the limit, and the node whose ids it allows. */
static void
read_limit(void)
{
	int			worker_id;

	LWLockAcquire(&shared->lock, LW_SHARED);
	session.limit = shmem_mark();
	worker_id = shmem_worker_id();
	LWLockRelease(&shared->lock);
	session.node_bits = layout_node_bits(session.layout, node_datacenter_id,
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
	if (!node_is_leased() &&
		node_intended_worker_id() == NODE_WORKER_ID_UNSET)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("snowflake ids cannot be issued because \"snowflake.worker_id\" is not set"),
				 errhint("Set \"snowflake.worker_id\" to a number that no other server uses, in the range 0 .. " INT64_FORMAT ", and restart the server.",
						 layout_field_max(node_layout()->worker_bits))));
	start_begin();

	Assert(MyProcNumber >= 0 && MyProcNumber < MaxBackends);
	session.layout = node_layout();
	read_limit();

	slot = &backend_slots[MyProcNumber].slot;
	memset(&slot->block, 0, sizeof(slot->block));
	slot->before = slot->counters;

	/* Else a reader might see the session with the counters of an earlier one. */
	pg_write_barrier();
	slot->pid = MyProcPid;
	session.slot = slot;
	on_shmem_exit(leave_slot, (Datum) 0);
}

/* The sequence that a tick begins with that no id has used yet. */
static inline int64
first_sequence(void)
{
	int			bits = session.layout->sequence_bits;

	/* In the lower quarter, so that most of the tick's ids are left. */
	if (generator_sequence_start == SEQUENCE_START_RANDOM && bits > 2)
		return (int64) (pg_prng_uint64(&pg_global_prng_state) >>
						(64 - (bits - 2)));
	return 0;
}

/* How far a tick is ahead of the clock, in microseconds; behind: negative. */
static inline int64
lead_of(int64 tick)
{
	return layout_tick_start(session.layout, tick) - session.clock.now;
}

/*
 * The outcome where the next id's tick is not the clock's.  Kept out of line,
 * as wait_or_refuse() is, so that the common way needs fewer registers.
 */
static pg_noinline void
judge_lead(int64 last, Attempt *attempt)
{
	const Beginning *beginning = &shared->beginning;

	attempt->verdict =
		clock_judge(lead_of(attempt->tick),
					lead_of(layout_stamp_tick(session.layout, last)),
					last == beginning->stamp ? beginning->lead_us : 0);
	attempt->is_at_fence = last == beginning->fence_stamp;
	switch (attempt->verdict.action)
	{
		case CLOCK_GO_ON:
			attempt->outcome =
				attempt->tick > layout_max_tick(session.layout) ?
				OUTCOME_AFTER_SPAN : OUTCOME_ISSUE;
			break;
		case CLOCK_WAIT:
			attempt->outcome = OUTCOME_WAIT;
			break;
		case CLOCK_REFUSE:
			attempt->outcome = OUTCOME_BEHIND;
			break;
	}
}

/*
 * The rules of issuing.  The next stamp after the last one, which was read
 * before the clock:
 *
 *	clock against the last tick		next stamp
 *	ahead							the clock's tick, from its first sequence
 *	equal, sequence left			the next sequence
 *	equal, sequence spent			the next tick, if clock_judge() allows its
 *									lead; else that tick is waited for
 *	behind							what follows the last stamp, if clock_judge()
 *									allows its lead; else wait or refuse
 *
 * Whatever the tick, it has to be before the mark.
 */
static inline int64
choose_next(int64 last, Attempt *attempt)
{
	const Layout *layout = session.layout;
	int64		last_tick = layout_stamp_tick(layout, last);
	bool		is_fresh;

	is_fresh = session.clock.tick > last_tick ||
		layout_stamp_sequence(layout, last) ==
		layout_field_max(layout->sequence_bits);
	attempt->tick = Max(session.clock.tick,
						is_fresh ? last_tick + 1 : last_tick);

	if (unlikely(session.clock.position != SPAN_WITHIN))
		attempt->outcome = session.clock.position == SPAN_BEFORE ?
			OUTCOME_BEFORE_SPAN : OUTCOME_AFTER_SPAN;
	else if (likely(attempt->tick == session.clock.tick))
		attempt->outcome = OUTCOME_ISSUE;
	else
		judge_lead(last, attempt);

	if (likely(attempt->outcome == OUTCOME_ISSUE) &&
		unlikely(attempt->tick >= session.limit))
		attempt->outcome = OUTCOME_AT_MARK;

	return is_fresh ?
		(attempt->tick << layout->sequence_bits) | first_sequence() :
		last + 1;
}

/* ERROR 55000: the policy or the tolerance forbids waiting for the clock. */
static void
refuse_behind(const Attempt *attempt)
{
	int64		behind_us = attempt->verdict.behind_us;

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the clock is " INT64_FORMAT ".%03d ms behind %s",
					behind_us / 1000, (int) (behind_us % 1000),
					attempt->is_at_fence ?
					_("what the last holder of the worker id has promised") :
					_("the last snowflake id")),
			 clock_policy == CLOCK_POLICY_ERROR ?
			 errdetail("\"snowflake.clock_policy\" is \"error\".") :
			 errdetail("\"snowflake.clock_tolerance\" is %d ms.",
					   clock_tolerance_ms),
			 attempt->is_at_fence ?
			 errhint("It may have issued ids up to there. Ids are issued when the clock has come there, too.") :
			 errhint("Check the server's clock and its synchronization. Ids are issued again when it has caught up; with a \"snowflake.worker_id\" that no server has used, at once.")));
}

/* ERROR 54000: the clock is outside the layout's span. */
static void
refuse_outside_span(Outcome outcome)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 outcome == OUTCOME_BEFORE_SPAN ?
			 errmsg("the clock is before the epoch of snowflake ids: %s",
					timestamptz_to_str(session.clock.now)) :
			 errmsg("the clock is at or past the last tick of snowflake ids: %s",
					timestamptz_to_str(session.clock.now)),
			 errdetail("Layout \"%s\" with epoch \"%s\" ends after tick " INT64_FORMAT ".",
					   node_layout_text, node_epoch_text,
					   layout_max_tick(session.layout)),
			 errhint("Check the server's clock, \"snowflake.epoch\" and \"snowflake.layout\".")));
}

/* Lets the other generators know of a tick, before an id of it is out. */
static inline void
announce_tick(int64 tick)
{
	uint64		newest;

	if (likely(generator_count == 1))
		return;
	newest = pg_atomic_read_u64(&shared->newest_tick);
	while (newest < (uint64) tick &&
		   !pg_atomic_compare_exchange_u64(&shared->newest_tick, &newest,
										   (uint64) tick))
		 /* another session has announced one, perhaps an older tick */ ;
}

/*
 * Reads the newest tick of all generators, and then the clock.  Returns the
 * last stamp that counts: the generator's own or, if another generator is in a
 * later tick, the last one before that tick.  If the clock has stepped back
 * behind that tick, a table that changed its generator may already have ids of
 * the tick; so this generator skips it.  Under "advance" it is not: all follow the
 * generator that leads most.
 */
static inline int64
read_last_and_clock(Generator *generator, uint64 *last)
{
	int64		newest = 0;
	uint64		closed;

	if (unlikely(generator_count > 1))
		newest = (int64) pg_atomic_read_u64(&shared->newest_tick);

	/* Else some processors might read the clock before the stamps. */
	pg_read_barrier();
	clock_read(session.layout, &session.clock);

	if (likely(newest <= layout_stamp_tick(session.layout, (int64) *last)))
		return (int64) *last;
	if (likely(session.clock.tick >= newest || clock_allowed_lead_us() > 0))
		return layout_last_stamp(session.layout, newest - 1);

	closed = (uint64) layout_last_stamp(session.layout, newest);
	if (pg_atomic_compare_exchange_u64(&generator->last, last, closed))
		*last = closed;
	return (int64) Max(*last, closed);
}

/*
 * Chooses the next stamp and puts it in place, with as many more of its tick
 * as are wanted and left.  If the stamp has changed meanwhile, chooses again:
 * each time that is another session's success.  Returns the first stamp; the
 * attempt says whether there is one.
 */
static inline int64
try_to_reserve(Generator *generator, int64 wanted, int64 *reserved,
			   Attempt *attempt)
{
	uint64		last = pg_atomic_read_u64(&generator->last);

	for (;;)
	{
		int64		next = choose_next(read_last_and_clock(generator, &last),
									   attempt);

		if (unlikely(attempt->outcome != OUTCOME_ISSUE))
			return next;

		*reserved = wanted == 1 ? 1 :
			Min(wanted, layout_last_stamp(session.layout, attempt->tick) -
				next + 1);
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
 * for the first so many waiters, the one after it for as many more, and so
 * on.  Most of them would wake in vain for the next tick, using the processor
 * only to find it spent once more.  The turn of a waiter that was cancelled
 * goes unused.  As there are no more waiters than backends, no turn is more
 * than MaxBackends turns away.
 */
static int64
take_wakeup(Generator *generator, int64 next_tick)
{
	uint64		per_tick =
		(uint64) Max(1, WAKEUPS_PER_MS * session.layout->tick_us / 1000);
	uint64		first = (uint64) next_tick * per_tick;
	uint64		last = pg_atomic_read_u64(&generator->wakeups);
	uint64		mine;

	do
		mine = Min(Max(last + 1, first), first + (uint64) MaxBackends);
	while (!pg_atomic_compare_exchange_u64(&generator->wakeups, &last, mine));
	return (int64) (mine / per_tick);
}

/* Counts a call once, however often it tries. */
static inline void
count_once(bool *is_counted, uint64 *counter)
{
	if (!*is_counted)
		(*counter)++;
	*is_counted = true;
}

/* Counts a call that the clock has stopped. */
static void
count_regression(int64 regression_us, Wait *wait)
{
	if (!wait->is_counted_as_regression)
	{
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		shared->max_regression_us = Max(shared->max_regression_us,
										regression_us);
		LWLockRelease(&shared->lock);
	}
	count_once(&wait->is_counted_as_regression,
			   &session.slot->counters.clock_regressions);
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
	Counters   *counters = &session.slot->counters;
	int64		wait_us = attempt->verdict.wait_us;

	if (attempt->verdict.behind_us > 0)
	{
		count_once(&wait->is_counted_as_clock_wait, &counters->clock_waits);
		sleep_and_count(wait_us, WAIT_FOR_CLOCK, &counters->clock_wait_us);
		return;
	}

	count_once(&wait->is_counted_as_sequence_wait, &counters->sequence_waits);
	if (wait->wakeup_tick < attempt->tick)
		wait->wakeup_tick = take_wakeup(generator, attempt->tick);
	sleep_and_count(wait_us + session.layout->tick_us *
					(wait->wakeup_tick - attempt->tick),
					WAIT_FOR_TICK, &counters->sequence_wait_us);
}

/* Waits, or raises an error, as the outcome of an attempt demands. */
static pg_noinline void
wait_or_refuse(Generator *generator, const Attempt *attempt, Wait *wait)
{
	switch (attempt->outcome)
	{
		case OUTCOME_ISSUE:
			break;
		case OUTCOME_AT_MARK:
			read_limit();
			if (session.limit <= attempt->tick)
			{
				highwater_move_past(attempt->tick);
				read_limit();
			}
			break;
		case OUTCOME_WAIT:
			if (attempt->verdict.regression_us > 0)
				count_regression(attempt->verdict.regression_us, wait);
			wait_for(generator, attempt, wait);
			break;
		case OUTCOME_BEHIND:
			count_regression(attempt->verdict.regression_us, wait);
			session.slot->counters.clock_refusals++;
			refuse_behind(attempt);
			break;
		case OUTCOME_BEFORE_SPAN:
		case OUTCOME_AFTER_SPAN:
			count_regression(0, wait);
			session.slot->counters.clock_refusals++;
			refuse_outside_span(attempt->outcome);
			break;
	}
}

/*
 * Reserves "wanted" stamps of one tick, fewer where the tick has no more, and
 * returns the first of them.  After a wait it reserves one only: the caller
 * has not yet proved to need a block in the new tick.
 */
static inline int64
reserve(Generator *generator, int64 wanted, int64 *reserved)
{
	Wait		wait = {.wakeup_tick = -1};

	Assert(wanted >= 1);

	for (;;)
	{
		Attempt		attempt;
		int64		next;

		if (wanted > 1)
			LWLockAcquire(&generator->lock, LW_EXCLUSIVE);
		next = try_to_reserve(generator, wanted, reserved, &attempt);
		if (wanted > 1)
			LWLockRelease(&generator->lock);

		if (likely(attempt.outcome == OUTCOME_ISSUE))
			return next;
		wait_or_refuse(generator, &attempt, &wait);
		wanted = 1;
	}
}

/* Turns a reserved stamp into an id and enters it in the backend's slot. */
static inline int64
issue(int64 stamp)
{
	const Layout *layout = session.layout;
	int64		sequence = layout_stamp_sequence(layout, stamp);
	int64		id = ((stamp - sequence) << (layout->datacenter_bits +
											 layout->worker_bits)) |
		session.node_bits | sequence;

	session.slot->last_id = id;
	session.slot->counters.ids_issued++;
	return id;
}

/*
 * Is a block's tick still the one to issue in?  Not when it has passed, nor
 * when it now leads the clock too far, nor when other sessions have ids of a
 * later tick, which a clock that has stepped back does not show.
 */
static inline bool
block_is_current(const IdBlock *block)
{
	const Layout *layout = session.layout;
	int64		tick = layout_stamp_tick(layout, block->next - 1);
	int64		last = (int64) pg_atomic_read_u64(&block->generator->last);

	if (layout_stamp_tick(layout, last) > tick)
		return false;
	pg_read_barrier();
	clock_read(layout, &session.clock);
	return session.clock.position == SPAN_WITHIN &&
		session.clock.tick <= tick &&
		(likely(session.clock.tick == tick) ||
		 lead_of(tick) <= clock_allowed_lead_us());
}

/*
 * The next id of a block.  The block is reserved anew when it is used up, no
 * longer current or of another generator, or when this session has issued
 * another id since, which may be larger.  It doubles while it is used up
 * within its tick, to "largest" at most, so that a slow caller wastes none.
 */
static inline int64
next_of_block(IdBlock *block, Generator *generator, int64 largest)
{
	bool		is_current = block->size > 0 &&
		block->generator == generator &&
		block->node_bits == session.node_bits && block_is_current(block);

	if (!(is_current && block->left > 0 &&
		  block->last_id == session.slot->last_id))
	{
		int64		wanted = is_current && block->left == 0 ?
			Min(block->size * 2, largest) : 1;
		int64		reserved;
		int64		next = reserve(generator, wanted, &reserved);

		/* Fill in the block only now: reserve() may raise an error. */
		block->next = next;
		block->left = block->size = reserved;
		block->generator = generator;
		block->node_bits = session.node_bits;
	}
	block->left--;
	block->last_id = issue(block->next++);
	return block->last_id;
}

/* The next id of a generator. */
static inline int64
next_id(uint32 number)
{
	Generator  *generator;
	int64		reserved;

	if (unlikely(session.slot == NULL))
		attach();
	generator = &generators[number].generator;
	if (likely(generator_block_size == 1))
		return issue(reserve(generator, 1, &reserved));
	return next_of_block(&session.slot->block, generator,
						 generator_block_size);
}

/*
 * The next id.  ERROR 55000, 25006, F0000, 22023, XX001, 0A000 (see attach()
 * and start_begin()), 54000 (the clock is outside the layout's span) or 55000
 * (the clock is behind, and the policy is not to wait for it).
 */
int64
generator_next(void)
{
	return next_id(0);
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

	return next_id(hash % (uint32) generator_count);
}

/*
 * The next id of a caller that wants so many more, and keeps the block.  The
 * lock is taken once for each block.  Errors as generator_next().
 */
int64
generator_next_of_block(IdBlock *block, int64 wanted)
{
	if (unlikely(session.slot == NULL))
		attach();
	return next_of_block(block, &generators[0].generator, wanted);
}

/* The last id of this session; false if there is none yet. */
bool
generator_last_of_session(int64 *id)
{
	const BackendSlot *slot = session.slot;

	if (slot == NULL || slot->counters.ids_issued == slot->before.ids_issued)
		return false;
	*id = slot->last_id;
	return true;
}
