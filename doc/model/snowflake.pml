/*
 * snowflake.pml
 *	  A model, for Spin, of the protocol that keeps one server's ids from
 *	  coming twice: the generator, the high-water mark, the worker, the disk,
 *	  the clock, and all that stops a server.  The words are DESIGN's; the
 *	  steps are those of src/generator.c and src/highwater.c, by their names.
 *	  What becomes of ids when a standby is promoted is in promotion.pml, and
 *	  how worker ids are leased, in lease.pml.
 *
 * "make model" tries every order of events within the bounds below.  As it
 * is, no assertion may fail; with any one of the macros at the end of this
 * comment, which take a step of the protocol away, one has to.
 * "script/model NO_UNLINK" shows how it comes to that; backends are 0 and 1
 * there, and the worker is 2.
 *
 * Asserted, over any number of stops and starts:
 *	 - no id is issued twice: a client keeps one id, whichever it likes, and
 *	   that one is never issued again;
 *	 - an id is larger than all that were issued before;
 *	 - the state file never becomes one that does not verify.
 *
 * In the model there are
 *	 - two backends that issue ids under clock_policy = wait, and the worker:
 *	   three writers of the mark.  Any of them may rest at any step for as
 *	   long as it likes, be it stopped, slow, or waiting;
 *	 - writers without patience: who wants to write may take over from who
 *	   writes at any time, so how long a write may take is of no account;
 *	 - a clock that is an adversary: whoever looks at it may see any tick.
 *	   So it steps ahead and back, by any amount, at any time;
 *	 - a mark that is ahead of the tick that it has to be past by any lead,
 *	   so high_water_interval is of no account, nor is a change of it;
 *	 - a disk that may fail at every step, and keeps what is fsynced: a file's
 *	   contents by its own fsync, a rename by the directory's.  What is not
 *	   fsynced yet a power loss may take, or not;
 *	 - stops at any step: the server is killed, and its memory is lost; or
 *	   the power is, and what is not safe on disk with it; or the postmaster
 *	   ends its children, wherever they are, and writes the exact last tick,
 *	   and may be killed, or lose the power, before that is safe.
 *
 * Bounds: LAST_TICK + 1 ticks of two ids, and LAST_WRITE writes of which
 * each takes over from the one before.  Stops, starts, and writes in all are
 * not bounded.
 *
 * Taken for granted: what is done under an LWLock is done at once; a rename
 * is atomic; a start removes all temporary files and finds no process of the
 * server before, which the postmaster sees to; what is read at the start has
 * a checksum, so a file that was not written whole is not taken for another.
 *
 * Macros, and what each takes away:
 *	 NO_MARK			the mark is not read at the start
 *	 MARK_BEFORE_FILE	the mark moves in memory before the file is safe
 *	 MARK_AFTER_ISSUE	the mark is looked at after issuing instead of before
 *	 CLOCK_RESETS		a tick other than the last one begins its sequence
 *						anew, even if it is an earlier one
 *	 NO_FSYNC			the temporary file is not flushed
 *	 NO_DIRECTORY_FSYNC	nor is the directory, after the rename
 *	 NO_NUMBER_CHECK	a writer does not look whether it has been overtaken
 *	 NO_UNLINK			who takes over lets temporary files be
 *	 UNLINK_ONE			or removes only that of the writer before it
 *	 LOOK_OUTSIDE_LOCK	who becomes the writer has looked at the mark before
 *						it took the lock, and not again
 *	 MARK_WITHOUT_NUMBER	an overtaken writer moves the mark all the same
 * With CLOCK_IN_ORDER nothing stops and the clock only ever ticks, and what
 * is asserted besides is that nobody finds it behind the newest id; with
 * CLOCK_FIRST too, who issues looks at the clock before it has the lock.
 */

#ifndef LAST_TICK
#define LAST_TICK	2			/* at most 5, for a set of marks is a byte */
#endif
#ifndef LAST_WRITE
#define LAST_WRITE	4			/* at most 7, so is a set of writes */
#endif

#define SEQUENCES	2			/* ids a tick */
#define LAST_MARK	(LAST_TICK + 1)
#define DAMAGED		(LAST_MARK + 1)	/* of a file that does not verify */

#define TICK(word)			((word) / SEQUENCES)
#define SEQUENCE(word)		((word) % SEQUENCES)
#define IS_SPENT(word)		(SEQUENCE(word) == SEQUENCES - 1)
#define END_OF_TICK(tick)	((tick) * SEQUENCES + SEQUENCES - 1)

#define SET(element)			(1 << (element))
#define WITHOUT(set, element)	((set) & (255 - SET(element)))
#define IN(element, set)		(((set) >> (element)) & 1)

/* What a process does next; of a writer, the steps of write_mark(). */
mtype = { CALL, BEGIN_WRITE, WRITE, CHECK, RENAME, FLUSH, END_WRITE };

typedef Process
{
	mtype at;
	byte now;					/* what it saw of the clock; CLOCK_FIRST */
	byte past;					/* the mark is to move past this tick */
	byte number;				/* of its write; 0: none */
	byte left;					/* the temporary file to remove next */
	byte mark					/* that it writes; 0: it has failed */
};

/* Shared memory, and the processes: lost when the server stops. */
byte word;						/* of the generator: newest (tick, sequence) */
byte mark;
byte write_number;				/* of the newest write begun */
byte oldest_left;				/* write whose temporary file may be left */
Process process[3];
bool is_up;

#define BACKENDS	2
#define WORKER		2

/* The disk. */
byte temporary;					/* writes that have a temporary file */
byte file;						/* the mark in the state file; 0: no file */
byte safe;						/* marks that a power loss may leave there */

/* What the rename of a file that says "file" may leave there. */
#ifdef NO_FSYNC
#define CONTENTS	(SET(file) | SET(DAMAGED))
#else
#define CONTENTS	SET(file)
#endif

#ifdef CLOCK_FIRST
#define CLOCK_IN_ORDER
#endif
byte clock;						/* CLOCK_IN_ORDER */

/* What clients have got. */
byte newest;					/* the newest id, + 1; 0: none yet */
byte kept;						/* the one that a client keeps, likewise */

#define MY	process[me]

/* Any number of these. */
inline choose(number, first, last)
{
	number = first;
	do
	:: number < last -> number++
	:: break
	od
}

inline look_at_clock(seen)
{
#ifdef CLOCK_IN_ORDER
	seen = clock
#else
	choose(seen, 0, LAST_TICK)
#endif
}

inline issue(fresh, tick)
{
	word = (fresh -> tick * SEQUENCES : word + 1);
	printf("%d: issues (%d, %d)\n", me, TICK(word), SEQUENCE(word));

	assert(word + 1 != kept);
#ifndef DUPLICATES_ONLY
	assert(word + 1 > newest);
#endif
	if
	:: kept == 0 -> kept = word + 1
	:: true
	fi;
	newest = (word + 1 > newest -> word + 1 : newest)
}

/* decide() and what reserve() makes of it, under the generator's lock. */
inline reserve()
{
#ifdef CLOCK_FIRST
	now = MY.now;
#else
	look_at_clock(now);
#endif
#ifdef CLOCK_IN_ORDER
	assert(now >= TICK(word));
#endif

#ifdef CLOCK_RESETS
	fresh = now != TICK(word) || IS_SPENT(word);
	tick = now;
#else
	fresh = now > TICK(word) || IS_SPENT(word);
	tick = (fresh -> TICK(word) + 1 : TICK(word));
	tick = (now > tick -> now : tick);
#endif

	if
	:: tick > now				/* no id: it waits, or is refused */
#ifdef MARK_AFTER_ISSUE
	:: tick <= now ->
		issue(fresh, tick);
		if
		:: tick >= mark -> want_mark(tick)
		:: else
		fi
#else
	:: tick <= now && tick >= mark -> want_mark(tick)
	:: tick <= now && tick < mark -> issue(fresh, tick)
#endif
	fi
}

inline want_mark(tick)
{
	printf("%d: the mark has to move past %d\n", me, tick);
	MY.past = tick;
	MY.at = BEGIN_WRITE
}

inline forget()
{
	MY.at = CALL;
	MY.now = 0;
	MY.past = 0;
	MY.number = 0;
	MY.left = 0;
	MY.mark = 0
}

/* Any mark that is past the tick that it has to be past. */
inline choose_mark()
{
	choose(MY.mark, MY.past + 1, LAST_MARK)
}

/* Under the mark's lock.  Who is not the writer waits, and looks again. */
inline begin_write()
{
	if
#ifndef LOOK_OUTSIDE_LOCK
	:: mark > MY.past -> forget()
	:: mark <= MY.past && write_number < LAST_WRITE ->
#else
	:: write_number < LAST_WRITE ->
#endif
		write_number++;
		MY.number = write_number;
		printf("%d: begins write %d\n", me, MY.number);
#if defined(NO_UNLINK)
		MY.left = write_number;
#elif defined(UNLINK_ONE)
		MY.left = write_number - 1;
#else
		MY.left = oldest_left;
#endif
#ifdef MARK_BEFORE_FILE
		choose_mark();
		mark = MY.mark;
#endif
		MY.at = WRITE
	:: else
	fi
}

/* Under the mark's lock. */
inline end_write()
{
	if
	:: MY.number == write_number ->
		oldest_left = write_number + 1;
		mark = (MY.mark > mark -> MY.mark : mark)
	:: else ->
#ifdef MARK_WITHOUT_NUMBER
		mark = (MY.mark > mark -> MY.mark : mark)
#else
		skip
#endif
	fi;
	printf("%d: ends write %d, mark %d\n", me, MY.number, mark);
	forget();

	/* numbers begin anew when nobody writes, which nobody can tell */
	if
	:: process[0].number + process[1].number + process[2].number == 0 ->
		write_number = 0;
		oldest_left = 1
	:: else
	fi
}

proctype server_process(byte me)
{
	byte now;
	byte tick;
	bool fresh;

end:
	do
#ifdef CLOCK_FIRST
	:: atomic { MY.at == CALL && me != WORKER -> look_at_clock(MY.now) }
#endif
	:: atomic { is_up && MY.at == CALL && me != WORKER ->
		reserve();
		now = 0;
		tick = 0;
		fresh = false }

	/* keep_ahead(): for some lead, any mark beyond this one is due */
	:: atomic { is_up && MY.at == CALL && me == WORKER && mark < LAST_MARK ->
		want_mark(mark) }

	/* move_mark(), which here leaves it to its caller to try again */
	:: atomic { MY.at == BEGIN_WRITE -> begin_write() }

	:: atomic { MY.at == WRITE && MY.left < MY.number ->
		temporary = WITHOUT(temporary, MY.left);
		MY.left++ }

	/* written and flushed at once: none but the rename shows whether it was */
	:: atomic { MY.at == WRITE && MY.left >= MY.number ->
		temporary = temporary | SET(MY.number);
		MY.left = 0;
		MY.at = CHECK }
	:: atomic { MY.at == WRITE && MY.left >= MY.number ->
		printf("%d: cannot write\n", me);
		MY.left = 0;
		MY.at = END_WRITE }

	:: atomic { MY.at == CHECK ->
		if
#ifdef NO_NUMBER_CHECK
		:: MY.at = RENAME
#else
		:: MY.number == write_number ->
			printf("%d: is complete, and has the newest number\n", me);
			MY.at = RENAME
		:: MY.number != write_number ->
			printf("%d: is complete, and was overtaken\n", me);
			temporary = WITHOUT(temporary, MY.number);
			MY.at = END_WRITE
#endif
		fi }

	:: atomic { MY.at == RENAME && IN(MY.number, temporary) ->
		temporary = WITHOUT(temporary, MY.number);
		/* what it has written: only from here on does it make a difference */
#ifndef MARK_BEFORE_FILE
		choose_mark();
#endif
		file = MY.mark;
		safe = safe | CONTENTS;
		printf("%d: renames, file %d\n", me, file);
		MY.at = FLUSH }
	:: atomic { MY.at == RENAME ->
		printf("%d: cannot rename\n", me);
		temporary = WITHOUT(temporary, MY.number);
		MY.mark = 0;
		MY.at = END_WRITE }

	:: atomic { MY.at == FLUSH ->
#ifndef NO_DIRECTORY_FSYNC
		safe = CONTENTS;
#endif
		MY.at = END_WRITE }
	:: atomic { MY.at == FLUSH ->
		printf("%d: cannot flush\n", me);
		MY.mark = 0;
		MY.at = END_WRITE }

	:: d_step { MY.at == END_WRITE -> end_write() }
	od
}

/* All that is in memory goes. */
inline stop()
{
	is_up = false;
	word = 0;
	mark = 0;
	write_number = 0;
	oldest_left = 0;
	me = 0;
	do
	:: me < 3 -> forget(); me++
	:: else -> break
	od;
	me = 0
}

/* highwater_startup() and generator_shmem_startup() */
inline start()
{
	temporary = 0;
	oldest_left = 1;
#ifndef NO_MARK
	mark = file;
	word = (file > 0 -> END_OF_TICK(file - 1) : 0);
#endif
	is_up = true;
	printf("starts after %d, mark %d\n", word, mark)
}

/* The disk comes back with what was safe, or might have been. */
inline lose_power()
{
	file = 0;
	do
	:: IN(file, safe) -> break
	:: safe >> (file + 1) -> file++
	od;
	safe = SET(file);
	printf("the power is lost, file %d\n", file);
	assert(file != DAMAGED)
}

init
{
	byte me;

	atomic {
		safe = SET(file);
		stop();
		start();
		run server_process(0);
		run server_process(1);
		run server_process(WORKER)
	}

end:
	do
#ifdef CLOCK_IN_ORDER
	:: clock < LAST_TICK -> clock++
#else
	:: atomic { is_up ->
		printf("the server is killed\n");
		stop() }
	:: atomic { is_up ->
		stop();
		lose_power() }

	/* close_at_shutdown(), up to the rename; its children are gone */
	:: atomic { is_up ->
		file = TICK(word) + 1;
		safe = safe | CONTENTS;
		printf("the postmaster stops, file %d\n", file);
		stop() }
	:: atomic { !is_up -> safe = CONTENTS }
	:: atomic { !is_up -> lose_power() }

	:: atomic { !is_up -> start() }
#endif
	od
}
