/*
 * promotion.pml
 *	  A model, for Spin, of what becomes of ids when a standby is promoted
 *	  that has the old primary's worker_id, and a clock that may show anything:
 *	  it issues no id that its own data holds.  The words are DESIGN's; the
 *	  rule is begin_after_recovery() of src/generator.c.  That a server's mark
 *	  is past its own ids is shown by snowflake.pml, and taken for granted.
 *
 * In the model there are
 *	 - a primary with two sessions, which take ids and commit them, and commit
 *	   transactions without ids, by a clock that only ever ticks;
 *	 - a standby, made from a base backup at any time, whose state file is as
 *	   old as that.  It replays each commit at once: one that lags is as one
 *	   that is promoted earlier;
 *	 - a promotion at any time; and then a clock that is an adversary, as in
 *	   snowflake.pml, and restarts of the new primary once it has issued.
 *
 * Asserted: an id that the new primary issues is larger than every id in the
 * data that it serves: those of the old primary's whose commit came here,
 * and its own.  It may well be one that the old primary has handed out too,
 * but whose commit never came here, if it ever came to one.
 *
 * NO_COMMIT_TIME takes away the rule, that a generator begins after the time
 * of the last commit replayed.  Other macros give the world a freedom in
 * which that rule does not suffice:
 *	 CLOCK_STEPS_BACK	the old primary's clock may step back; with
 *						BETWEEN_IDS too, not between an id and its commit
 *	 COMMITS_OVERTAKE	a commit may come into the WAL after one of a later
 *						time, for each takes its time just before
 *	 PREPARED			a transaction may be prepared there, committed here
 *	 STANDBY_RESTARTS	the standby may be restarted, and then replays only
 *						what follows its last restartpoint; a standby made
 *						from a backup of this one is the same
 *	 RESTART_BEFORE_ID	the new primary may be restarted before its first id:
 *						crash recovery does not tell the last commit's time
 * or what makes it suffice all the same:
 *	 CHECKPOINT_TIME	for STANDBY_RESTARTS: a standby also begins after the
 *						time of the checkpoint that it was started from
 *	 MARK_AT_PROMOTION	for RESTART_BEFORE_ID: the promotion also writes a
 *						mark that is past where the generator begins
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
bool has_issued;				/* an id, since it was promoted */
byte data;						/* ids in it */
byte prepared;					/* ids in transactions prepared in it */
byte mark;						/* in its state file */

/* Times in the WAL that it has replayed, as the tick after; 0: none. */
byte last_commit;				/* since its start */
byte checkpoint;				/* of the last restartpoint */
byte last_commit_since;			/* that one */

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

/* starting_word() and begin_after_recovery() */
inline begin()
{
	word = 0;
	begin_after(mark);
#ifndef NO_COMMIT_TIME
	begin_after(last_commit);
#endif
#ifdef CHECKPOINT_TIME
	begin_after(checkpoint);
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
		checkpoint = clock + 1;
		last_commit_since = 0 }

#ifdef STANDBY_RESTARTS
	:: atomic { is_there && !is_promoted ->
		printf("the standby restarts\n");
		last_commit = last_commit_since }
#endif

	:: atomic { is_there && !is_promoted ->
		printf("promotion\n");
		is_promoted = true;
		begin();
#ifdef MARK_AT_PROMOTION
		mark = (TICK(word) + 1 > mark -> TICK(word) + 1 : mark);
#endif
		/* all that no longer counts */
		clock = 0;
		last_commit = 0;
		last_commit_since = 0;
		checkpoint = 0;
		session[0].id = NONE;
		session[0].time = NONE;
		session[1].id = NONE;
		session[1].time = NONE }

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
			has_issued = true;
			if
			:: tick >= mark -> choose(mark, tick + 1, LAST_MARK)
			:: else
			fi
		:: else					/* waits, or is refused */
		fi;
		now = 0;
		tick = 0;
		fresh = false }

#ifdef RESTART_BEFORE_ID
	:: atomic { is_promoted ->
#else
	:: atomic { has_issued ->
#endif
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
