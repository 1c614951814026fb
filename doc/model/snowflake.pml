/*
 * snowflake.pml
 *	  A model, for Spin, of the protocol that keeps an id from being issued
 *	  twice: the stamp, the page of the high-water marks, the WAL that brings
 *	  the page and the rows to a recovered server, and the clocks.  The words
 *	  are src/README.md's; the steps are those of src/id_generator.c, src/mark_log.c
 *	  and src/mark_start.c.  lease.pml models how worker ids are leased.
 *
 * script/model tries every order of events within the bounds.  Without a defect
 * no assertion may fail; with one of the list below some assertion has to fail.
 * "script/model NO_FLOOR" shows how an id is issued twice with the defect NO_FLOOR.
 *
 * Asserted, over any number of recoveries, for any one id that a client keeps:
 * every later id of the same node is larger; with WITHIN, where no clock is
 * behind by more than clock_tolerance, every later id of any node.  A client keeps
 * an id for a row, and gives it up if a recovery loses the row.  Or a client
 * keeps an id that it has seen, and gives it up if the recovered WAL ends before
 * the record of the id's mark.  With CLOCK_IN_ORDER the clock never steps back, and no id is ever
 * given up, even if a recovery takes less than a tick.  So an id that is not in
 * the data is issued again only if the record of its mark is lost, and the clock
 * is behind the id after the recovery.
 *
 * The model has
 *	 - sessions, which begin, issue ids under clock_policy = wait, log marks and
 *	   end.  Each may rest at any step for any time, be cancelled, end by itself
 *	   or be terminated;
 *	 - a page with an entry for each node, and a floor.  The model folds any
 *	   other node's entry into the floor; the code folds the smallest mark;
 *	 - WAL, which becomes durable in order, at any time: images of the page, and
 *	   a row, which is inserted at any time after its id was issued;
 *	 - a clock that shows any tick at any time.  An id that clock_policy =
 *	   advance issues ahead of the clock is like an id of a clock that is ahead;
 *	 - a mark that is logged at any time, and put ahead by any lead;
 *	 - a crash at any step, which loses the memory and the WAL that is not
 *	   durable.  A clean stop is like a crash after all WAL is durable;
 *	 - a standby that has replayed any part of the durable WAL, and is promoted
 *	   at any time, also more than once.  A base backup, a server after
 *	   pg_rewind, and a point-in-time recovery are like such a standby;
 *	 - a server that may be configured as another node after any recovery.
 *
 * Bounds: LAST_TICK + 1 ticks of two ids; SESSIONS sessions at a time; NODES
 * nodes, and room for ENTRIES entries; two records that are not durable.
 *
 * Assumed: a recovery brings the page and the rows exactly as of one position
 * in WAL, and only durable WAL is sent or archived.  Not modelled: a page that
 * is damaged or deleted, and a changed layout; see src/mark_start.c.
 */

mtype = {
	NONE,
	READ_IN_RECOVERY,	/* the page is read before recovery has ended */
	BEGIN_TWICE,		/* ids begin at a page read before they had begun */
	OTHER_ENTRY,		/* a server begins at another node's entry */
	OWN_ENTRY,			/* with WITHIN: a server begins at its own entry */
	NO_FLOOR,			/* a node without an entry begins at 0 */
	NO_FOLD,			/* an entry is dropped, and the floor stays */
	FLOOR_STEPS_BACK,	/* a smaller mark replaces a larger floor */
	MARK_AFTER_ISSUE,	/* a session issues an id, and then logs the mark: the
						 * record may come after the row */
	PUBLISH_FIRST,		/* a mark is published before it is logged */
	NO_PAGE_LOCK,		/* the page is changed and logged without a lock */
	NO_MAX,				/* a mark replaces a larger mark on the page */
	CLOCK_RESETS,		/* an id begins the clock's tick anew, even if that
						 * tick is spent or earlier than the last id's */
	NO_COMPARE,			/* the stamp is set, even if it has changed since */
	CLOCK_FIRST,		/* with CLOCK_IN_ORDER: a session also waits and
						 * refuses by a clock that it has read before the
						 * stamp, and that then seems to step back */
	SAME_TICK,			/* with CLOCK_IN_ORDER: ids begin in the tick that
						 * the first mark of a start is logged in */

	/* An event that the protocol cannot survive. */
	LATE_ROW,			/* the row is inserted after the mark was lost */

	/* A defect with which no assertion fails. */
	NO_FIRST_FLUSH		/* the first mark of a start is not flushed; but an
						 * assertion fails with FIRST_LASTS, where no client
						 * gives up an id before that mark in a crash */
};

#ifndef DEFECT
#define DEFECT		NONE
#endif
#ifndef CLOCK_IN_ORDER
#define CLOCK_IN_ORDER	0
#endif
#ifndef FIRST_LASTS
#define FIRST_LASTS	0
#endif
#ifndef WITHIN
#define WITHIN		0
#endif
#ifndef LAST_TICK
#define LAST_TICK	2			/* at most 6, for the bits of a mark */
#endif
#ifndef NODES
#define NODES		2			/* at most 3 */
#endif
#ifndef ENTRIES
#define ENTRIES		1
#endif
#ifndef SESSIONS
#define SESSIONS	2
#endif
#define TAIL		2			/* records that are not durable */

#define IS(defect)			(DEFECT == defect)
#define MAX(a, b)			((a) > (b) -> (a) : (b))
#define LAST_MARK			(LAST_TICK + 1)
#define TICK(stamp)			((stamp) / 2)

/*
 * A page is a number: three bits for the mark of each node, 0 for a node
 * without an entry, and three bits for the floor.
 */
#define FLOOR				NODES
#define FIELD(page, which)	(((page) >> (3 * (which))) & 7)
#define WITH(page, which, mark) \
	((page) + (((mark) - FIELD(page, which)) << (3 * (which))))
#define HAS(page, which)	((which) < NODES && FIELD(page, which) > 0)
#define COUNT_ENTRIES(page)	(HAS(page, 0) + HAS(page, 1) + HAS(page, 2))

/* The tick at which a page lets ids of a node begin. */
#define BEGIN_ON(page, which) \
	(HAS(page, which) || IS(NO_FLOOR) -> FIELD(page, which) : \
	 FIELD(page, FLOOR))

/* The largest mark on a page, the floor included. */
#define LARGEST_ON(page) \
	MAX(MAX(FIELD(page, 0), FIELD(page, 1)), \
		MAX(FIELD(page, 2), FIELD(page, 3)))

/* What a session does next. */
mtype = { AWAY, BEGIN, CALL, SWAP, READ, LOOK, CHANGE, LOG, LOG_FIRST, FLUSH,
		  PUBLISH };

typedef Session
{
	mtype at;
	byte seen;					/* the stamp as the session has read it; from
								 * CHANGE on, the last stamp of the tick that
								 * the session wants a mark for */
	byte limit;
	byte mark;					/* to begin at or to publish; at SWAP, the
								 * clock */
	byte behind					/* how many records have to become durable */
};

/* Shared memory: lost when the server stops. */
byte stamp;						/* of the newest id: 2 * tick + sequence */
byte mark;						/* the published mark */
byte begin;						/* with CLOCK_IN_ORDER: ids begin after it */
byte first;						/* with FIRST_LASTS: the first mark logged */
bool has_begun;					/* has a session read the page? */
bool is_logged;					/* is a mark of this start durable? */
bool is_locked;					/* is the page? */
short page;						/* in its buffer */
Session session[SESSIONS];
#define MY	session[me]

byte node;						/* the configured node */
byte clock;						/* with CLOCK_IN_ORDER */

/* The page in WAL: not durable; durable; replayed by a standby, and earlier. */
short tail[TAIL];
byte length;
short durable, standby;
short early;					/* with READ_IN_RECOVERY */

/* The id that a client keeps, and when the client may rely on the id. */
byte kept;						/* the id's stamp + 1; 0: none */
byte kept_node;
byte held;
bool standby_holds;				/* also after the standby's promotion? */
#define NOT_YET		0			/* when the row is inserted */
#define AFTER(n)	(1 + (n))	/* when n records of the tail are durable, and
								 * then the row if there is one */
#define HELD		(2 + TAIL)	/* now */

inline go_to(step)
{
	MY.at = step; MY.seen = 0; MY.mark = 0; MY.behind = 0
}

#define COVERS(image)	(BEGIN_ON(image, node) > TICK(stamp))

/*
 * A client may keep the new id.  The record of the id's mark is the first from
 * which on all records have a mark past the id.
 */
inline issue(next)
{
	stamp = next;
	printf("%d: issues (%d, %d) of node %d\n",
		   me, TICK(stamp), stamp % 2, node);
#ifdef DUPLICATES_ONLY
	assert(stamp + 1 != kept || node != kept_node);
#else
	assert(stamp + 1 > kept || node != kept_node);
#endif
	assert(!WITHIN || stamp + 1 > kept);
	if
	:: true
	:: kept == 0 ->
		kept = stamp + 1;
		kept_node = node;
		if
		:: printf("   and a client keeps it for a row\n")
		:: (length > 0 -> COVERS(tail[length - 1]) : COVERS(durable)) ->
			printf("   and a client has seen it\n");
			held = length;
			do
			:: held > 0 && COVERS(tail[held - 1]) -> held--
			:: else -> break
			od;
			held = (held == 0 && COVERS(durable) -> HELD : AFTER(held + 1))
		:: FIRST_LASTS && TICK(stamp) < first ->
			printf("   and a client has seen it, before the first mark\n");
			held = HELD
		fi
	fi
}

inline want_mark(tick)
{
	go_to(CHANGE);
	MY.seen = (is_logged -> 0 : tick * 2 + 1);
	select(other : tick + 1 .. LAST_MARK);
	MY.mark = other;
	other = 0
}

/* Chooses the stamp that follows MY.seen, by the clock "now". */
inline choose_next()
{
	fresh = now > TICK(MY.seen) || MY.seen % 2 == 1 ||
		IS(CLOCK_RESETS) && now != TICK(MY.seen);
	tick = (IS(CLOCK_RESETS) -> now : MAX(now, TICK(MY.seen) + fresh));
	next = (fresh -> tick * 2 : MY.seen + 1)
}

inline forget_choice()
{
	now = 0; tick = 0; next = 0; fresh = false
}

#define IS_RIGHT	(now >= TICK(MY.seen) || MY.seen == begin)

/*
 * Swaps, by a clock that was read earlier: a swap that succeeds has the newest
 * stamp, which the session has guessed, or got from a swap that failed.  Issues
 * the next id if that clock has reached the id's tick, and the limit is past
 * that tick.  Otherwise the session reads the stamp and then the clock.
 */
inline try_to_swap()
{
	now = MY.mark;
	MY.seen = stamp;
	choose_next();
	if
	:: tick <= now && tick < MY.limit -> issue(next); go_to(CALL)
	:: else ->
		assert(IS_RIGHT || !IS(CLOCK_FIRST));
		go_to(READ)
	fi;
	forget_choice()
}

/*
 * Reads the clock, after the stamp.  Issues the next id if the clock has
 * reached the id's tick, the limit is past that tick, and the stamp has not
 * changed since the session read it.
 */
inline try_to_issue()
{
	if
	:: !CLOCK_IN_ORDER -> select(now : 0 .. LAST_TICK)
	:: CLOCK_IN_ORDER -> now = clock; assert(IS_RIGHT)
	fi;
	choose_next();
	if
	:: tick > now || stamp != MY.seen && !IS(NO_COMPARE) -> go_to(CALL)
	:: else ->
		if
		:: tick < MY.limit || IS(MARK_AFTER_ISSUE) -> issue(next)
		:: else -> MY.limit = mark
		fi;
		if
		:: tick >= mark -> want_mark(tick)
		:: else -> go_to(CALL)
		fi
	fi;
	forget_choice()
}

#define LOCK_PAGE	is_locked = !IS(NO_PAGE_LOCK)

/* The first mark of a start moves the beginning past the present tick. */
inline publish()
{
	stamp = (is_logged || IS(SAME_TICK) -> stamp : MAX(stamp, MY.seen));
	is_logged = true;
	mark = MAX(mark, MY.mark);
	printf("%d: publishes mark %d\n", me, mark)
}

#define FLOOR_AFTER(mark) \
	(IS(NO_FOLD) || FIELD(page, FLOOR) >= mark && !IS(FLOOR_STEPS_BACK) -> \
	 FIELD(page, FLOOR) : mark)

/* Puts the node's mark on the page; folds an entry if the page has no room. */
inline put_entry()
{
	printf("%d: puts mark %d on the page\n", me, MY.mark);
	page = WITH(page, node, MY.mark);
	if
	:: COUNT_ENTRIES(page) > ENTRIES ->
		select(other : 0 .. NODES - 1);
		do
		:: other != node && HAS(page, other) -> break
		:: else -> other = (other + 1) % NODES
		od;
		printf("   and folds the entry of node %d\n", other);
		page = WITH(page, FLOOR, FLOOR_AFTER(FIELD(page, other)));
		page = WITH(page, other, 0);
		other = 0
	:: else
	fi
}

/* Puts the mark on the page, unless the page has one that is as large. */
inline change()
{
	LOCK_PAGE;
	MY.mark = (IS(NO_MAX) -> MY.mark : MAX(MY.mark, mark));
	if
	:: FIELD(page, node) >= MY.mark && !IS(NO_MAX) ->
		MY.mark = FIELD(page, node);
		is_locked = is_locked && !is_logged;
		MY.at = (is_logged -> PUBLISH : LOG_FIRST)
	:: else ->
		put_entry();
		mark = (IS(PUBLISH_FIRST) -> MAX(mark, MY.mark) : mark);
		MY.at = (is_logged -> LOG : LOG_FIRST)
	fi
}

inline log_page()
{
	printf("%d: logs the page\n", me);
	tail[length] = page;
	length++;
	is_locked = false
}

/*
 * Before the first id, the first session reads the page.  The model counts all
 * marks of other nodes or none; the code counts those that clock_tolerance
 * allows, and a beginning between the model's two is like a clock that is ahead.
 */
inline read_page()
{
	if
	:: !WITHIN || IS(OWN_ENTRY) ->
		MY.mark = BEGIN_ON((IS(READ_IN_RECOVERY) -> early : page), node)
	:: NODES > 1 ->
		MY.mark = LARGEST_ON((IS(READ_IN_RECOVERY) -> early : page))
	:: IS(OTHER_ENTRY) && HAS(page, 1 - node) -> MY.mark = FIELD(page, 1 - node)
	fi;
	MY.at = BEGIN
}

/* Under a lock it lets ids begin at the mark that it has read. */
inline let_begin()
{
	if
	:: has_begun && !IS(BEGIN_TWICE)
	:: else ->
		mark = MY.mark;
		stamp = (mark > 0 -> mark * 2 - 1 : 0);
		begin = (CLOCK_IN_ORDER -> stamp : 0);
		has_begun = true;
		printf("%d: ids of node %d begin at tick %d\n", me, node, mark)
	fi;
	go_to(AWAY)
}

proctype server_process(byte me)
{
	byte now, tick, next, other;
	bool fresh;

end:
	do
	:: atomic { MY.at == AWAY && !has_begun -> read_page() }
	:: atomic { MY.at == BEGIN -> let_begin() }
	:: atomic { MY.at == AWAY && has_begun ->
		printf("%d: begins\n", me);
		MY.at = CALL }

	/* Only with CLOCK_IN_ORDER does it matter when the clock is read. */
	:: atomic { MY.at == CALL && CLOCK_IN_ORDER ->
		MY.mark = clock; MY.at = SWAP }
	:: atomic { MY.at == SWAP -> try_to_swap() }
	:: atomic { MY.at == (CLOCK_IN_ORDER -> READ : CALL) ->
		MY.seen = stamp; MY.at = LOOK }
	:: atomic { MY.at == LOOK -> try_to_issue() }

	/* A lead may have any size, so any larger mark may be due at any time. */
	:: atomic { MY.at == CALL && is_logged && mark < LAST_MARK ->
		want_mark(mark) }
	:: atomic { MY.at == CHANGE && !is_locked -> change() }
	:: atomic { MY.at == LOG && length < TAIL -> log_page(); MY.at = PUBLISH }
	:: atomic { MY.at == LOG_FIRST && length < TAIL ->
		log_page();
		first = (FIRST_LASTS && first == 0 -> FIELD(page, node) : first);
		MY.behind = (IS(NO_FIRST_FLUSH) -> 0 : length);
		MY.at = FLUSH }
	:: atomic { MY.at == FLUSH && MY.behind == 0 -> MY.at = PUBLISH }
	:: atomic { MY.at == PUBLISH -> publish(); go_to(CALL) }

	/* A session is cancelled or ends where it does not hold the lock. */
	:: atomic { MY.at == SWAP || MY.at == READ || MY.at == LOOK ||
		MY.at == CHANGE || MY.at == FLUSH -> go_to(CALL) }
	:: atomic { MY.at == CALL ->
		printf("%d: ends\n", me);
		go_to(AWAY); MY.limit = 0 }
	od
}

/* The next record of the tail becomes durable. */
inline write_record()
{
	printf("a record becomes durable\n");
	durable = tail[0]; tail[0] = tail[1]; tail[1] = 0; length--;
	for (me : 0 .. SESSIONS - 1) {
		MY.behind = MAX(MY.behind, 1) - 1
	}
	me = 0;
	held = (held > AFTER(0) && held != HELD -> held - 1 : held)
}

/*
 * The server stops, loses the memory and the WAL that is not durable, and
 * starts with an image of the page, as any node.
 */
inline restart(image, id_is_held)
{
	for (me : 0 .. SESSIONS - 1) {
		go_to(AWAY); MY.limit = 0
	}
	me = 0;
	stamp = 0; mark = 0; begin = 0; first = 0;
	has_begun = false; is_logged = false; is_locked = false;
	tail[0] = 0; tail[1] = 0; length = 0;
	durable = image; page = image;
	select(node : 0 .. NODES - 1);
	printf("the server starts as node %d\n", node);
	standby_holds = standby_holds && id_is_held;
	if
	:: id_is_held -> held = HELD
	:: !id_is_held && (CLOCK_IN_ORDER || IS(LATE_ROW)) -> held = NOT_YET
	:: else -> held = NOT_YET; kept = 0; kept_node = 0
	fi
}

init
{
	byte me;

	atomic {
		for (me : 0 .. SESSIONS - 1) {
			MY.at = AWAY; run server_process(me)
		}
		me = 0
	}

end:
	do
	:: CLOCK_IN_ORDER && clock < LAST_TICK -> clock++
	:: d_step { length > 0 && held != AFTER(0) -> write_record() }
	:: d_step { held == AFTER(0) -> held = HELD }
	:: d_step { kept != 0 && held == NOT_YET ->
		printf("the row with the kept id is inserted\n");
		held = AFTER(length) }
	:: d_step { standby != durable || standby_holds != (held == HELD) ->
		printf("the standby replays all that is durable\n");
		standby = durable; standby_holds = (held == HELD) }
	:: IS(READ_IN_RECOVERY) -> early = standby
	:: atomic {
		printf("the server crashes\n");
		restart(durable, held == HELD) }
	:: atomic {
		printf("the standby is promoted\n");
		restart(standby, standby_holds) }
	od
}
