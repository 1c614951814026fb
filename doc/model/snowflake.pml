/*
 * snowflake.pml
 *	  A model, for Spin, of the protocol that keeps an id from being issued
 *	  twice: the generator, the page of the high-water marks, the WAL that
 *	  brings the page and the rows to a recovered server, and the clocks.  The
 *	  words are DESIGN's; the steps are those of src/generator.c, src/mark.c
 *	  and src/start.c.  lease.pml models how worker ids are leased.
 *
 * "make model" tries every order of events within the bounds below.  Without
 * a macro no assertion may fail.  Each macro of the list "Macros, and what each
 * changes" takes a step of the protocol away; with any one of them an assertion
 * has to fail.  "script/model NO_FLOOR" shows how that happens.
 *
 * Asserted, over any number of recoveries: a client keeps any one id, and every
 * later id of the same node is larger.  So no id is issued twice, and ids
 * increase.  The client gives its id up only when a standby or a backup is
 * recovered whose WAL does not have the row with that id: then the id is not in
 * the data, and may be issued again.
 *
 * The model has
 *	 - processes that issue ids under clock_policy = wait and move the mark, as
 *	   sessions and the worker do.  Each process may rest at any step for any
 *	   time, whether suspended, slow or waiting, and may be cancelled at any
 *	   step;
 *	 - a page with an entry for each node, and a floor.  The page has room for
 *	   fewer entries than there are nodes.  The model folds any other node's
 *	   entry into the floor; the code folds the smallest mark;
 *	 - WAL: images of the page, and the row with the id that the client keeps,
 *	   which is inserted at any time after the issue of the id.  WAL becomes
 *	   durable in order, record by record, at any time.  A process that flushes
 *	   WAL waits until its record is durable; nothing flushes the row;
 *	 - a clock that is an adversary: a process that reads it may see any tick.
 *	   So the clock steps ahead and back, by any amount, at any time, and the
 *	   clock of a promoted standby shows any tick.  An id that clock_policy =
 *	   advance issues ahead of the clock is like an id of a clock that is ahead;
 *	 - a mark that is put ahead by any lead, so high_water_interval and a change
 *	   of it make no difference;
 *	 - a crash at any step, which loses the memory and the WAL that is not
 *	   durable.  A clean stop is like a crash after all WAL is durable;
 *	 - a standby that has replayed any part of the durable WAL, and is promoted
 *	   at any time.  A base backup, a server after pg_rewind, and a server that
 *	   is recovered to a point in time, with or without a signal file, are like
 *	   such a standby: each has the page and the rows as of one position.  A
 *	   promoted server may be recovered again, from that position or a later
 *	   one;
 *	 - a server that may be configured as another node after any recovery.
 *
 * The library takes no part in recovery.  So it makes no difference whether the
 * library is loaded during recovery; READ_IN_RECOVERY shows what would happen if
 * the library read the page during recovery.
 *
 * Bounds: LAST_TICK + 1 ticks of two ids; PROCESSES processes; NODES nodes, and
 * room for ENTRIES entries.  At any time at most TAIL records are not durable
 * yet.  Recoveries, and records in all, are not bounded.
 *
 * Assumed: PostgreSQL's recovery brings the page and the rows exactly as of one
 * position in WAL, and only durable WAL is sent or archived; the steps under a
 * lock are one step.  Not modelled: a page that is damaged, deleted or another
 * cluster's, and a changed layout; see src/start.c.
 *
 * Macros, and what each changes:
 *	 NO_MARK			the page is not read before the first id
 *	 READ_IN_RECOVERY	the page is read before recovery has ended, not after
 *	 BEGIN_TWICE		a process that has read the page lets ids begin at the
 *						mark that it read, even if another process has let ids
 *						begin meanwhile
 *	 OTHER_ENTRY		a server begins at another node's entry
 *	 NO_FLOOR			a node without an entry does not begin at the floor
 *	 NO_FOLD			an entry is dropped, and the floor is not raised
 *	 FLOOR_STEPS_BACK	a smaller mark replaces a larger floor (with NODES=3)
 *	 MARK_AFTER_ISSUE	a process looks at the mark after it has issued an id,
 *						so the mark's record may come after the row
 *	 PUBLISH_FIRST		a mark is published before its record is flushed
 *	 NO_FLUSH_OF_OTHERS	a mark that another process has put on the page is
 *						published without a flush, as if the other process had
 *						flushed it already
 *	 PUBLISH_PAGE		a process publishes the mark that is on the page after
 *						the flush, which may be larger than the flushed mark
 *	 NO_MAX				a mark replaces a larger mark on the page
 *	 CHANGE_OUTSIDE_LOCK	the page is read and changed without a lock
 *	 LOG_OUTSIDE_LOCK	the image of the page is logged after the lock has been
 *						released
 *	 CLOCK_RESETS		an id is of the clock's tick, and begins the sequence
 *						anew, even if that tick is spent, or earlier than the
 *						last id's tick
 *	 NO_COMPARE			the stamp is set, even if it has changed since it was
 *						read
 * There is no macro that makes the published mark smaller.  That would do no
 * harm: a smaller mark allows fewer ids, and the page still has the larger mark.
 *
 * LATE_ROW adds an event that the protocol cannot survive: a client inserts into
 * the promoted standby the row with an id that the old primary has issued under
 * a mark whose WAL the standby never received.
 *
 * With CLOCK_IN_ORDER no server stops, and the clock only advances.  Then another
 * assertion holds: no process finds the clock behind the newest id.  With
 * CLOCK_FIRST a process reads the clock before the stamp, and this assertion
 * fails.
 */

#ifndef LAST_TICK
#define LAST_TICK	2			/* at most 6, for the bits of a mark */
#endif
#ifndef NODES
#define NODES		2
#endif
#ifndef ENTRIES
#define ENTRIES		1
#endif
#ifndef PROCESSES
#define PROCESSES	2
#endif
#ifndef TAIL
#define TAIL		PROCESSES	/* each process waits for its own record */
#endif

#define SEQUENCES	2			/* ids a tick */
#define LAST_MARK	(LAST_TICK + 1)

#define TICK(stamp)			((stamp) / SEQUENCES)
#define SEQUENCE(stamp)		((stamp) % SEQUENCES)
#define IS_SPENT(stamp)		(SEQUENCE(stamp) == SEQUENCES - 1)
#define END_OF_TICK(tick)	((tick) * SEQUENCES + SEQUENCES - 1)

#define MAX(a, b)	((a) > (b) -> (a) : (b))

/*
 * A page is a number: three bits for the mark of each node, 0 for a node
 * without an entry, and three bits for the floor.
 */
#define FLOOR				NODES
#define FIELD(page, which)	(((page) >> (3 * (which))) & 7)
#define WITHOUT(page, which)	((page) - (FIELD(page, which) << (3 * (which))))
#define WITH(page, which, mark) \
	(WITHOUT(page, which) + ((mark) << (3 * (which))))

#define HAS_ENTRY(page, which)	(FIELD(page, which) > 0 -> 1 : 0)
#if NODES == 2
#define COUNT_ENTRIES(page)	(HAS_ENTRY(page, 0) + HAS_ENTRY(page, 1))
#else
#define COUNT_ENTRIES(page) \
	(HAS_ENTRY(page, 0) + HAS_ENTRY(page, 1) + HAS_ENTRY(page, 2))
#endif

/* The tick at which a page lets ids of a node begin. */
#ifdef NO_FLOOR
#define BEGIN_ON(page, which)	FIELD(page, which)
#else
#define BEGIN_ON(page, which) \
	(FIELD(page, which) > 0 -> FIELD(page, which) : FIELD(page, FLOOR))
#endif

/* What a process does next. */
mtype = { CALL, BEGIN, READ_STAMP, LOOK, ADVANCE, CHANGE, LOG, FLUSH };

typedef Process
{
	mtype at;
	byte seen;					/* the stamp as the process has read it */
	byte now;					/* the clock as the process has read it; only
								 * with CLOCK_FIRST */
	byte mark;					/* the mark to begin at, put or publish */
	byte behind;				/* how many records to flush before publishing */
	short copy					/* of the page; used outside the lock */
};

/* Shared memory, and the processes: lost when the server stops. */
byte stamp;						/* of the generator: newest (tick, sequence) */
byte mark;						/* the published mark */
bool has_begun;					/* has a process read the page? */
byte node;						/* the configured node */
short page;						/* in its buffer */
Process process[PROCESSES];

/* WAL that is not durable: images of the page. */
short tail[TAIL];
byte length;

/* The newest image in durable WAL, and in the standby's part of that WAL. */
short durable;
short standby;
#ifdef READ_IN_RECOVERY
short read_early;				/* the page as the standby read it in recovery */
bool is_promoted;
#define PAGE_READ	(is_promoted -> read_early : page)
#else
#define PAGE_READ	page
#endif

/* The id that a client keeps, and its row. */
byte kept;						/* the id's stamp + 1; 0: none */
byte kept_node;
byte row;						/* where the row is; see below */
bool standby_has_row;

#define ABSENT		0
#define AFTER(n)	(1 + (n))	/* in WAL, after n records of the tail */
#define IN_DATA		(2 + TAIL)	/* durable */

#ifdef CLOCK_FIRST
#define CLOCK_IN_ORDER
#endif
byte clock;						/* CLOCK_IN_ORDER */

#define MY	process[me]

/* Chooses any number of a range. */
inline choose(number, first, last)
{
	number = first;
	do
	:: number < last -> number++
	:: break
	od
}

inline read_clock(reading)
{
#ifdef CLOCK_IN_ORDER
	reading = clock
#else
	choose(reading, 0, LAST_TICK)
#endif
}

/* The process returns to its first step. */
inline reset_process()
{
	MY.at = CALL;
	MY.seen = 0;
	MY.now = 0;
	MY.mark = 0;
	MY.behind = 0;
	MY.copy = 0
}

/*
 * Issuing.
 */

/* The compare-and-swap has succeeded: the process issues the next id. */
inline issue(next)
{
	stamp = next;
	printf("%d: issues (%d, %d) of node %d\n",
		   me, TICK(stamp), SEQUENCE(stamp), node);

#ifdef DUPLICATES_ONLY
	assert(stamp + 1 != kept || node != kept_node);
#else
	assert(stamp + 1 > kept || node != kept_node);
#endif
	if
	:: kept == 0 ->
		printf("   and a client keeps it\n");
		kept = stamp + 1;
		kept_node = node
	:: true
	fi
}

inline want_mark(tick)
{
	printf("%d: the mark has to move past %d\n", me, tick);
	reset_process();
	choose(MY.mark, tick + 1, LAST_MARK);
	MY.at = ADVANCE
}

/*
 * Reads the clock, after the stamp.  Issues the next id if the clock has reached
 * the id's tick, the mark is past that tick, and the stamp has not changed since
 * the process read it.
 */
inline try_to_issue()
{
#ifdef CLOCK_FIRST
	now = MY.now;
#else
	read_clock(now);
#endif
#ifdef CLOCK_IN_ORDER
	assert(now >= TICK(MY.seen));
#endif

#ifdef CLOCK_RESETS
	fresh = now != TICK(MY.seen) || IS_SPENT(MY.seen);
	tick = now;
#else
	fresh = now > TICK(MY.seen) || IS_SPENT(MY.seen);
	tick = MAX(now, TICK(MY.seen) + fresh);
#endif
	next = (fresh -> tick * SEQUENCES : MY.seen + 1);

	if
	:: tick > now -> reset_process()	/* waits, or raises an error */
#ifndef MARK_AFTER_ISSUE
	:: tick <= now && tick >= mark -> want_mark(tick)
	:: tick <= now && tick < mark ->
#else
	:: tick <= now ->
#endif
		if
#ifndef NO_COMPARE
		:: stamp != MY.seen -> reset_process()
		:: stamp == MY.seen ->
#else
		:: true ->
#endif
			issue(next);
			reset_process();
#ifdef MARK_AFTER_ISSUE
			if
			:: tick >= mark -> want_mark(tick)
			:: else
			fi
#endif
		fi
	fi
}

/*
 * The page.
 */

#ifdef CHANGE_OUTSIDE_LOCK
#define CHANGED		MY.copy
#define CHANGES		(MY.at == CHANGE)
#else
#define CHANGED		page
#define CHANGES		(MY.at == ADVANCE)
#endif

#ifdef PUBLISH_PAGE
#define FLUSHED_MARK	FIELD(page, node)
#else
#define FLUSHED_MARK	MY.mark
#endif

#if defined(NO_FOLD)
#define FLOOR_AFTER(mark)	FIELD(CHANGED, FLOOR)
#elif defined(FLOOR_STEPS_BACK)
#define FLOOR_AFTER(mark)	(mark)
#else
#define FLOOR_AFTER(mark)	MAX(FIELD(CHANGED, FLOOR), mark)
#endif

/* Puts the node's mark on the page; folds an entry if the page has no room. */
inline put_entry()
{
	CHANGED = WITH(CHANGED, node, MY.mark);
	if
	:: COUNT_ENTRIES(CHANGED) > ENTRIES ->
		choose(folded, 0, NODES - 1);
		do
		:: folded == node || FIELD(CHANGED, folded) == 0 ->
			folded = (folded + 1) % NODES
		:: else -> break
		od;
		printf("   and folds the entry of node %d\n", folded);
		CHANGED = WITH(CHANGED, FLOOR, FLOOR_AFTER(FIELD(CHANGED, folded)));
		CHANGED = WITHOUT(CHANGED, folded);
		folded = 0
	:: else
	fi
}

inline log_page(image)
{
	tail[length] = image;
	length++
}

/* All records so far have to be durable before the mark is published. */
inline want_flush()
{
	MY.behind = length;
	MY.at = FLUSH
}

/* Changes the page and logs it, under the buffer's lock. */
inline advance()
{
	if
#ifndef NO_MAX
	:: FIELD(CHANGED, node) >= MY.mark ->
		MY.mark = FIELD(CHANGED, node);
		printf("%d: finds mark %d on the page\n", me, MY.mark);
		want_flush();
#ifdef NO_FLUSH_OF_OTHERS
		MY.behind = 0
#endif
	:: FIELD(CHANGED, node) < MY.mark ->
#else
	:: true ->
#endif
		printf("%d: puts mark %d on the page\n", me, MY.mark);
		put_entry();
		page = CHANGED;
#ifdef PUBLISH_FIRST
		mark = MAX(mark, MY.mark);
#endif
#ifdef LOG_OUTSIDE_LOCK
		MY.copy = page;
		MY.at = LOG
#else
		log_page(page);
		want_flush()
#endif
	fi
}

proctype server_process(byte me)
{
	byte now;
	byte tick;
	byte next;
	byte folded;
	bool fresh;

end:
	do
	/* Before the first id, the first process reads the page. */
	:: atomic { !has_begun && MY.at == CALL ->
#ifdef OTHER_ENTRY
		choose(tick, 0, NODES - 1);
		if
		:: FIELD(PAGE_READ, tick) == 0 -> tick = node
		:: else
		fi;
		MY.mark = BEGIN_ON(PAGE_READ, tick);
		tick = 0;
#else
		MY.mark = BEGIN_ON(PAGE_READ, node);
#endif
		MY.at = BEGIN }

	/*
	 * Under a lock, the process lets ids begin at the mark that it has read, and
	 * publishes that mark.  No id is issued until the mark has moved further, so
	 * the process does not flush the mark here.
	 */
	:: atomic { MY.at == BEGIN ->
		if
#ifndef BEGIN_TWICE
		:: !has_begun ->
#else
		:: true ->
#endif
#ifndef NO_MARK
			mark = MY.mark;
			stamp = (MY.mark > 0 -> END_OF_TICK(MY.mark - 1) : 0);
#endif
			printf("%d: ids of node %d begin at tick %d\n", me, node, MY.mark);
			has_begun = true
#ifndef BEGIN_TWICE
		:: has_begun
#endif
		fi;
		reset_process() }

#ifdef CLOCK_FIRST
	:: atomic { has_begun && MY.at == CALL ->
		read_clock(MY.now);
		MY.at = READ_STAMP }
	:: atomic { MY.at == READ_STAMP ->
#else
	:: atomic { has_begun && MY.at == CALL ->
#endif
		MY.seen = stamp;
		MY.at = LOOK }
	:: atomic { MY.at == LOOK ->
		try_to_issue();
		now = 0;
		tick = 0;
		next = 0;
		fresh = false }

	/* A lead may have any size, so any larger mark may be due at any time. */
	:: atomic { has_begun && MY.at == CALL && mark < LAST_MARK ->
		want_mark(mark) }

#ifdef CHANGE_OUTSIDE_LOCK
	:: atomic { MY.at == ADVANCE ->
		MY.copy = page;
		MY.at = CHANGE }
#endif
	:: atomic { CHANGES && length < TAIL -> advance() }
#ifdef LOG_OUTSIDE_LOCK
	:: atomic { MY.at == LOG && length < TAIL ->
		log_page(MY.copy);
		MY.copy = 0;
		want_flush() }
#endif
	:: d_step { MY.at == FLUSH && MY.behind == 0 ->
		mark = MAX(mark, FLUSHED_MARK);
		printf("%d: has flushed, and publishes mark %d\n", me, mark);
		reset_process() }

	/* The process is cancelled; its record may become durable nevertheless. */
	:: atomic { MY.at != CALL -> reset_process() }
	od
}

/*
 * The world.
 */

/* The next record of the tail becomes durable. */
inline write_record()
{
	durable = tail[0];
	printf("a record becomes durable\n");
	me = 1;
	do
	:: me < length -> tail[me - 1] = tail[me]; me++
	:: else -> break
	od;
	length--;
	tail[length] = 0;
	me = 0;
	do
	:: me < PROCESSES ->
		MY.behind = (MY.behind > 0 -> MY.behind - 1 : 0);
		me++
	:: else -> break
	od;
	me = 0;
	row = (row > AFTER(0) && row != IN_DATA -> row - 1 : row)
}

/* Stops the server: loses the memory, and the WAL that is not durable. */
inline stop()
{
	stamp = 0;
	mark = 0;
	has_begun = false;
	me = 0;
	do
	:: me < PROCESSES -> reset_process(); me++
	:: else -> break
	od;
	me = 0;
	do
	:: length > 0 -> length--; tail[length] = 0
	:: else -> break
	od
}

/* Starts the server with the durable page, as any node. */
inline start()
{
	page = durable;
	choose(node, 0, NODES - 1);
	printf("starts as node %d\n", node)
}

init
{
	byte me;

	atomic {
		stop();
		do
		:: me < PROCESSES -> run server_process(me); me++
		:: else -> break
		od;
		me = 0
	}

end:
	do
	:: d_step { length > 0 && row != AFTER(0) -> write_record() }
#ifdef CLOCK_IN_ORDER
	:: clock < LAST_TICK -> clock++
#else
	:: d_step { row == AFTER(0) -> row = IN_DATA }
	:: d_step { kept != 0 && row == ABSENT ->
		printf("the row with the kept id is inserted\n");
		row = AFTER(length) }

	:: atomic {
		printf("the server crashes\n");
		stop();
		row = (row == IN_DATA -> IN_DATA : ABSENT);
#ifdef READ_IN_RECOVERY
		is_promoted = false;
#endif
		start() }

	:: d_step { standby != durable || standby_has_row != (row == IN_DATA) ->
		printf("the standby replays all that is durable\n");
		standby = durable;
		standby_has_row = (row == IN_DATA) }
#ifdef READ_IN_RECOVERY
	:: d_step { !is_promoted -> read_early = standby }
#endif
	:: atomic {
		printf("the standby is promoted\n");
		stop();
		durable = standby;
#ifdef READ_IN_RECOVERY
		is_promoted = true;
#endif
		if
		:: standby_has_row -> row = IN_DATA
		:: else ->
			row = ABSENT;
#ifndef LATE_ROW
			kept = 0;
			kept_node = 0
#endif
		fi;
		start() }
#endif
	od
}
