/*
 * promotion.pml
 *	  A model, for Spin, of what becomes of ids when a standby is promoted
 *	  that has the old primary's worker_id, and a clock that may show anything:
 *	  it issues no id that its own data holds.  The words are DESIGN's; the
 *	  steps are begin_after_restartpoint() of src/highwater.c, end_recovery()
 *	  of src/generator.c, and what the worker does first.  That a server's
 *	  mark is past its own ids is shown by snowflake.pml, and taken for granted.
 *
 * In the model there are
 *	 - a primary with two sessions, which take ids and commit them, and commit
 *	   transactions without ids, by a clock that only ever ticks;
 *	 - a standby, made from a base backup at any time, whose state file is as
 *	   old as that.  It replays each commit at once: one that lags is as one
 *	   that is promoted earlier.  It may be restarted at any time, and then
 *	   replays again only what follows its last restartpoint;
 *	 - a promotion at any time; and then a clock that is an adversary, as in
 *	   snowflake.pml, and restarts of the new primary at any time.
 *
 * A standby made from a backup of a standby is as one that was restarted.
 *
 * Asserted: an id that the new primary issues is larger than every id in the
 * data that it serves: those of the old primary's whose commit came here,
 * and its own.  It may well be one that the old primary has handed out too,
 * but whose commit never came here, if it ever came to one.
 *
 * Macros that take a step of the protocol away:
 *	 NO_COMMIT_TIME			the generator does not begin after the time of the
 *							last commit replayed
 *	 NO_CHECKPOINT_TIME		nor, in a standby that was restarted, after that
 *							of the checkpoint that it started from
 *	 NO_MARK_AT_PROMOTION	no mark past where the generator begins is written
 *							after the promotion, unless ids are issued; crash
 *							recovery does not tell the last commit's time
 *	 MARK_OF_COMMIT_ONLY	or one past the last commit's time only, not the
 *							checkpoint's
 * and those that give the world a freedom in which it does not suffice:
 *	 CLOCK_STEPS_BACK		the old primary's clock may step back; with
 *							BETWEEN_IDS, not between an id and its commit
 *	 COMMITS_OVERTAKE		a commit may come into the WAL after one of a
 *							later time, for each takes its time just before
 *	 PREPARED				a transaction may be prepared there, committed
 *							here
 *	 RESTART_BEFORE_MARK	the new primary may be restarted before it has
 *							written that mark
 */

#ifndef LAST_TICK
#define LAST_TICK	3			/* at most 3, for a set of ids is a byte */
#endif

#define SEQUENCES	2			/* ids a tick */
#define LAST_MARK	(LAST_TICK + 1)
#define NONE		255

#define TICK(word)			((word) / SEQUENCES)
#define SEQUENCE(word)		((word) % SEQUENCES)
#define IS_SPENT(word)		(SEQUENCE(word) == SEQUENCES - 1)
#define END_OF_TICK(tick)	((tick) * SEQUENCES + SEQUENCES - 1)

#define SET(element)		(1 << (element))
#define IN(element, set)	(((set) >> (element)) & 1)

#define SESSIONS	2

/* The primary, the old one and then the new one. */
byte word;						/* of the generator: newest (tick, sequence) */

/* The old one. */
byte clock;

typedef Session
{
	byte id;					/* of its transaction, or NONE */
	byte time					/* of its commit that is under way, or NONE */
};
Session session[SESSIONS];

/* The standby, and the new one. */
bool is_there;
bool is_promoted;
bool has_mark;					/* a mark past where it began at its promotion */
byte data;						/* ids in it */
byte prepared;					/* ids in transactions prepared in it */
byte mark;						/* in its state file */

/* Times in the WAL that it has replayed, as the tick after; 0: none. */
byte checkpoint;				/* that it was started from, if restarted */
byte last_commit;				/* replayed since its start */
byte restartpoint;				/* the last checkpoint, for the next start */
byte last_commit_since;			/* replayed since that */

#define MY	session[me]

#ifdef BETWEEN_IDS
#define MAY_STEP_BACK	(session[0].id == NONE && session[1].id == NONE)
#else
#define MAY_STEP_BACK	true
#endif

inline choose(number, first, last)
{
	number = first;
	do
	:: number < last -> number++
	:: break
	od
}

/* decide(); the mark's part in it is left to snowflake.pml */
inline decide(now)
{
	fresh = now > TICK(word) || IS_SPENT(word);
	tick = (fresh -> TICK(word) + 1 : TICK(word));
	tick = (now > tick -> now : tick)
}

inline issue()
{
	word = (fresh -> tick * SEQUENCES : word + 1);
	printf("issues (%d, %d)\n", TICK(word), SEQUENCE(word))
}

inline replay(time_of_commit)
{
	printf("commit, time %d\n", time_of_commit);
	if
	:: is_there ->
		last_commit = time_of_commit + 1;
		last_commit_since = time_of_commit + 1
	:: else
	fi
}

inline begin_after(tick_after)
{
	if
	:: tick_after > 0 && END_OF_TICK(tick_after - 1) > word ->
		word = END_OF_TICK(tick_after - 1)
	:: else
	fi
}

/* Where the generator begins. */
inline begin()
{
	word = 0;
	begin_after(mark);
#ifndef NO_CHECKPOINT_TIME
	begin_after(checkpoint);
#endif
#ifndef NO_COMMIT_TIME
	begin_after(last_commit);
#endif
	printf("begins after (%d, %d)\n", TICK(word), SEQUENCE(word))
}

inline commit()
{
	replay(MY.time);
	if
	:: MY.id != NONE -> data = data | SET(MY.id)
	:: else
	fi;
	MY.id = NONE;
	MY.time = NONE
}

proctype old_session(byte me)
{
	byte tick;
	bool fresh;

end:
	do
	:: atomic { !is_promoted && MY.id == NONE && MY.time == NONE ->
		decide(clock);
		if
		:: tick <= clock ->
			issue();
			MY.id = word
		:: else					/* waits */
		fi;
		tick = 0;
		fresh = false }

	/* takes the time of its commit, whether it has an id or not */
	:: atomic { !is_promoted && MY.time == NONE ->
#ifdef COMMITS_OVERTAKE
		MY.time = clock }
#else
		MY.time = clock;
		commit() }
#endif
	:: atomic { !is_promoted && MY.time != NONE -> commit() }

#ifdef PREPARED
	:: atomic { !is_promoted && MY.id != NONE && MY.time == NONE ->
		printf("prepares (%d, %d)\n", TICK(MY.id), SEQUENCE(MY.id));
		prepared = prepared | SET(MY.id);
		MY.id = NONE }
#endif
	od
}

proctype new_primary()
{
	byte now;
	byte tick;
	bool fresh;

end:
	do
	/* its state file's mark is past every id so far */
	:: atomic { !is_there ->
		is_there = true;
		choose(mark, TICK(word) + 1, LAST_MARK);
		printf("base backup, mark %d\n", mark) }

	:: atomic { is_there && !is_promoted ->
		printf("restartpoint, time %d\n", clock);
		restartpoint = clock + 1;
		last_commit_since = 0 }

	:: atomic { is_there && !is_promoted ->
		printf("the standby restarts\n");
		checkpoint = restartpoint;
		last_commit = last_commit_since }

	:: atomic { is_there && !is_promoted ->
		printf("promotion\n");
		is_promoted = true;
		begin();
#ifdef NO_MARK_AT_PROMOTION
		last_commit = 0;
		has_mark = true;
#endif
		/* all that no longer counts */
		clock = 0;
		checkpoint = 0;
		restartpoint = 0;
		last_commit_since = 0;
		session[0].id = NONE;
		session[0].time = NONE;
		session[1].id = NONE;
		session[1].time = NONE }

	/* the worker starts */
	:: atomic { is_promoted && !has_mark ->
#ifdef MARK_OF_COMMIT_ONLY
		mark = (last_commit > mark -> last_commit : mark);
#else
		mark = (TICK(word) + 1 > mark -> TICK(word) + 1 : mark);
#endif
		printf("mark %d\n", mark);
		last_commit = 0;
		has_mark = true }

	:: atomic { is_promoted ->
		choose(now, 0, LAST_TICK);
		decide(now);
		if
		:: tick <= now ->
			issue();
			assert(!IN(word, data) && !IN(word, prepared));
#ifndef DUPLICATES_ONLY
			assert(data >> word == 0 && prepared >> word == 0);
#endif
			data = data | SET(word);
			has_mark = true;
			last_commit = 0;
			if
			:: tick >= mark -> choose(mark, tick + 1, LAST_MARK)
			:: else
			fi
		:: else					/* waits, or is refused */
		fi;
		now = 0;
		tick = 0;
		fresh = false }

#ifdef RESTART_BEFORE_MARK
	:: atomic { is_promoted ->
#else
	:: atomic { has_mark ->
#endif
		has_mark = true;
		last_commit = 0;
		printf("the new primary restarts\n");
		begin() }
	od
}

init
{
	atomic {
		session[0].id = NONE;
		session[0].time = NONE;
		session[1].id = NONE;
		session[1].time = NONE;
		run old_session(0);
		run old_session(1);
		run new_primary()
	}

end:
	do
	:: atomic { !is_promoted && clock < LAST_TICK -> clock++ }
#ifdef CLOCK_STEPS_BACK
	:: atomic { !is_promoted && clock > 0 && MAY_STEP_BACK ->
		printf("the clock steps back\n");
		clock-- }
#endif
	od
}
