/*
 * lease.pml
 *	  A model, for Spin, of worker ids that are leased from a registry: of the
 *	  registry's rows, of servers that claim and release, and of all that
 *	  stops a server, delays a message, moves a clock, or sets the registry
 *	  back.  The words are DESIGN's.  How one server's mark keeps its ids from
 *	  coming twice is in snowflake.pml.  So here a change of the page is
 *	  durable at once: a change that is not flushed has no effect but through
 *	  a later flush.
 *
 * "script/model NO_FENCE" shows how ids come twice without that step.
 *
 * Asserted:
 *	 - no (worker id, tick) is issued twice, by whomever: a client keeps one
 *	   id, whichever it likes, and that id is never issued again;
 *	 - no two servers hold one worker id, each by its own monotonic clock, or
 *	   would if they were started now, if the registry's clock measures
 *	   durations as theirs do.  With ANY_CLOCK, the registry may take any
 *	   lease for expired at any time and grants any fence; then only the
 *	   first is asserted.
 *
 * In the model there are
 *	 - a registry, which executes each message at once.  A row continues for
 *	   the holder that knows its incarnation; anybody else begins at its fence;
 *	 - two servers.  The second one may become a copy of the first: a standby,
 *	   or one from a backup.  A server that was moved, or booted anew, is as a
 *	   copy whose original does not come back;
 *	 - with SET_BACK, the first server may also be set back, in its own
 *	   directory, to what the copy has of it;
 *	 - in each a page with the lease, the incarnation that is asked next, and
 *	   the worker id's mark, which become durable in one record; and shared
 *	   memory, which has the newest lease, and the mark that is published;
 *	 - in each a session, which keeps the mark and the worker id that it last
 *	   read, a process that moves the mark, and the lease's worker.  Each may
 *	   rest at any step for as long as it likes;
 *	 - answers that are lost, and one message at a time that comes after its
 *	   sender has given it up (with NONE_LATE, none does, and who asks is heard
 *	   at once).  A question without an answer is asked again as it was;
 *	 - wall clocks of servers that are adversaries: ids are issued at any tick
 *	   below the mark, and a mark is any up to the fence; kills, clean stops;
 *	 - with FAILOVER, one failover of the registry to a standby which has lost
 *	   any number of the last transactions, and whose clock is BEHIND.  It is
 *	   noticed at once; with UNNOTICED, only by what a holder has, in a window
 *	   in which nobody but holders is served;
 *	 - with FREE, an admin who certifies that a holder is dead; with LONGER,
 *	   one who raises the duration.
 *
 * Bounds: LAST_MARK ticks of one id; with FAILOVER, LAST_NOW steps of time,
 * where a step is a tick.  Without it time has no bounds.  Nor have claims,
 * but with LAST_GRANT: an incarnation that nothing can be equal to any more is
 * used again.
 *
 * Taken for granted:
 *	 - Clocks of servers and of the registry measure durations alike.  Where
 *	   they do not, ids come twice only if the registry is set back besides.
 *	 - No two data directories that exist at once are the same holder, and a
 *	   directory that is set back is on another timeline.
 *	 - Ids that a server loses when it is set back may be issued again by it.
 *	 - No two incarnations are equal but by copying, and each grant of a
 *	   worker id moves its fence.
 *	 - Servers tell the registry the truth.
 *	 - The registry loses what it has committed only by being set back: by a
 *	   failover, a restored backup, a snapshot.  That happens again only when
 *	   the grace after the last time is over.
 *	 - The old registry grants nothing once the new one answers, and what was
 *	   sent to the old one does not reach the new one.
 *	 - The new registry's clock is behind the old one's by no more than the
 *	   registry's floor allows for.
 *	 - A registry that is set back without being another in its history, its
 *	   timeline for one, is asked within the window by a holder whose newest
 *	   grant it has lost, if it has lost any.
 *	 - What a failover loses is not older than a lease, so that the standby
 *	   knows of a longer duration before it is granted.
 *	 - A holder that is freed is dead, does not come back, and has issued
 *	   nothing beyond the registry's clock and the largest lead.
 *
 * Macros, and what each takes away:
 *	 NO_FENCE			who is granted a worker id does not begin where it is
 *						told to
 *	 FENCE_IN_MEMORY	or begins there, but the record of the lease has not
 *						the mark
 *	 HOLDER_IGNORES		or does, but not while it holds the worker id itself
 *	 PAST_FENCE			the mark may move past the fence
 *	 ANSWER_TIME		a lease counts from the answer
 *	 ANY_HOLDER			a start resumes a lease whoever the holder is
 *	 EXPIRED_AT_START	or without looking when it ends
 *	 ANY_TIMELINE		or on another timeline than it was logged on; SET_BACK
 *	 ASK_OF_ANY_TIMELINE	what was to be asked there is asked again
 *	 NO_FREEZE			the release is sent before the mark is frozen
 *	 FREEZE_IN_MEMORY	that the lease is released is not on the page
 *	 LEASE_BEFORE_LOCK	who moves the mark puts the lease that it has read
 *						before it locked the page over the newest one
 *	 LEASE_FIRST		a new lease is published before generators move on
 *	 MOVE_MEANWHILE		the mark may move between these two
 *	 NO_GENERATION		a mark that was put on the page under the lease before
 *						is published under the next one
 *	 READ_TWICE			a session reads the worker id and then the mark
 *	 ANY_INCARNATION	a row continues for its holder, of whatever incarnation
 *	 COPY_CONTINUES		or for a copy of its holder
 * and of a registry that is set back:
 *	 NO_GRACE			it grants at once
 *	 NO_WINDOW			or when it was set back UNNOTICED
 *	 HOLDS_ALWAYS		or, within both, to those that no longer hold
 *	 RETRY_IN_GRACE		or to those that were not answered
 *	 ADOPT_ALWAYS		or to a holder who comes forward twice
 *	 RELEASE_FIRST		who has not come forward since may release
 *	 NO_FLOOR			new holders begin at the fences that are known
 *	 KNOWN_BEHIND=0		or without regard to a clock that is behind
 *	 LOWER_FENCE		a holder that comes forward gets a fence below its own
 *	 FREE_IN_GRACE		a worker id that is freed waits for no grace; FREE
 *	 RAISE_AT_ONCE		the longer duration is granted at once
 */

#ifndef LAST_MARK
#define LAST_MARK	2
#endif
#ifndef WORKER_IDS
#define WORKER_IDS	1
#endif
#ifndef DURATION
#define DURATION	1			/* steps of time that a lease lasts */
#endif
#ifndef LONGER
#define LONGER		DURATION	/* and how long when that is raised */
#endif
#ifndef LEAD
#define LEAD		0
#endif
#ifndef BEHIND
#define BEHIND		0			/* the new registry's clock, at most */
#endif
#ifndef LAST_NOW
#define LAST_NOW	1
#endif
#ifndef LAST_GRANT
#define LAST_GRANT	0			/* no bound */
#endif

#define SERVERS		2
#define NOWHERE		SERVERS		/* the holder of nobody */

#define MAX(a, b)	((a) > (b) -> (a) : (b))
#define MIN(a, b)	((a) < (b) -> (a) : (b))

mtype = { CLAIM, RELEASE, GRANTED, MOVED };

/* The registry. */
typedef Row
{
	byte holder;
	byte incarnation;			/* 0: never leased, or freed */
	byte began;
	byte fence;
	byte granted;				/* the highest fence ever; FAILOVER */
	byte lasts;					/* steps of time until it expires */
	bool is_present				/* touched since the registry was set back */
};
Row row[WORKER_IDS];
byte grants;
Row standby[WORKER_IDS];		/* has replayed to there and no further */
Row no_row;
bool has_replayed;
bool is_failed_over;
byte clock_now;					/* the registry's */
byte grace;						/* steps of time */
byte floor;
bool is_window;					/* UNNOTICED: only holders are served */
bool is_forgetful;				/* in the window: a grant is lost */
bool is_raised;
bool standby_is_raised;
byte raised_for;				/* steps of time until that takes effect */

/* A question, and the answer to it. */
typedef Message
{
	mtype kind;					/* 0: none */
	byte from;
	byte worker_id;
	byte incarnation;			/* of the lease before, if of this worker id */
	byte next;
	byte fence;					/* what the server holds; RELEASE: the mark */
	bool is_held;
	byte begins_at;
	byte ends					/* of a lease that counts from the question */
};
Message late;					/* its sender does not wait for it */
Message none;

#define IS_IN_FLIGHT(message) \
	(message.kind == CLAIM || message.kind == RELEASE)

/* A lease, on the page or in shared memory. */
typedef Lease
{
	byte holder;
	byte worker_id;
	byte incarnation;
	byte next;					/* what is asked, or 0 */
	byte ends;					/* steps of time; 0: it is over or released */
	byte fence
};

typedef Server
{
	/* the page */
	Lease logged;
	byte entry;					/* the mark of its worker id */

	/* shared memory */
	Lease lease;
	byte found;					/* the page's mark, until the first lease */
	byte mark;					/* published */
	byte stamp;					/* the next tick that it may issue */

	/* the session */
	byte limit;					/* 0: none, or nothing to issue below it */
	byte worker_id;				/* that it has read with the limit */
	bool is_reading;			/* READ_TWICE */

	/* who moves the mark */
	byte flushed;				/* the mark that it is to publish; 0: none */

	/* the lease's worker */
	Message asked
};
Server server[SERVERS];

#define MY		server[me]
#define YOUR	server[1 - me]

/* What a client keeps: 1 + tick + LAST_MARK * worker id; 0: none yet */
byte kept;
#ifdef SET_BACK
byte kept_of;					/* the server that has issued it */
bool copy_has_kept;				/* was it issued before the copy was made? */
#endif

/* A server holds a lease, or would if it were started. */
#define HOLDS(s, a_lease)	(a_lease.holder == s && a_lease.ends > 0)
#define BOTH_HOLD(a_lease, another) \
	(HOLDS(0, a_lease) && HOLDS(1, another) && \
	 a_lease.worker_id == another.worker_id)

bool both_hold;					/* one worker id: never */

inline check_holders()
{
#ifndef ANY_CLOCK
	both_hold = BOTH_HOLD(server[0].lease, server[1].lease) ||
		BOTH_HOLD(server[0].lease, server[1].logged) ||
		BOTH_HOLD(server[0].logged, server[1].lease) ||
		BOTH_HOLD(server[0].logged, server[1].logged);
	assert(!both_hold)
#else
	skip
#endif
}

inline copy_lease(to, from)
{
	to.holder = from.holder;
	to.worker_id = from.worker_id;
	to.incarnation = from.incarnation;
	to.next = from.next;
	to.ends = from.ends;
	to.fence = from.fence
}

inline copy_message(to, from_)
{
	to.kind = from_.kind;
	to.from = from_.from;
	to.worker_id = from_.worker_id;
	to.incarnation = from_.incarnation;
	to.next = from_.next;
	to.fence = from_.fence;
	to.is_held = from_.is_held;
	to.begins_at = from_.begins_at;
	to.ends = from_.ends
}

/* As little as possible in the state where it makes no difference. */
inline tidy_message(message)
{
	copy_message(message, none)
}

inline tidy_limit()
{
	if
	:: MY.limit <= MY.stamp && !MY.is_reading ->
		MY.limit = 0;
		MY.worker_id = 0
	:: else
	fi
}

#define IS_IN_ROWS(n) \
	(row[0].incarnation == n || row[WORKER_IDS - 1].incarnation == n || \
	 standby[0].incarnation == n || standby[WORKER_IDS - 1].incarnation == n)
#define IS_ASKED(n) \
	(server[0].lease.next == n || server[1].lease.next == n || \
	 server[0].logged.next == n || server[1].logged.next == n)
#define IS_KNOWN(n) \
	(server[0].lease.incarnation == n || server[0].logged.incarnation == n || \
	 server[1].lease.incarnation == n || server[1].logged.incarnation == n || \
	 late.incarnation == n || late.next == n || IS_ASKED(n))
#define FORGET(n)	n = (IS_IN_ROWS(n) -> n : 0)

/* No number is kept that nothing can be equal to any more. */
inline tidy_numbers()
{
	d_step {
	for (i : 0 .. WORKER_IDS - 1) {
		row[i].incarnation =
			(IS_KNOWN(row[i].incarnation) -> row[i].incarnation : 0);
		standby[i].incarnation =
			(IS_KNOWN(standby[i].incarnation) -> standby[i].incarnation : 0)
	}
	for (i : 0 .. SERVERS - 1) {
		FORGET(server[i].lease.incarnation);
		FORGET(server[i].logged.incarnation);
		FORGET(server[i].asked.incarnation)
	}
	FORGET(late.incarnation);
	if
	:: late.kind == CLAIM && !IS_ASKED(late.next) && !IS_IN_ROWS(late.next) ->
		late.next = 100 + late.from
	:: else
	fi;
	i = 0
	}
}

inline raise(number, last)
{
	do
	:: number < last -> number++
	:: break
	od
}

/*
 * The registry.
 */

#define ROW		row[message.worker_id]

#ifdef RAISE_AT_ONCE
#define PRESENT_DURATION	LONGEST_DURATION
#else
#define PRESENT_DURATION	(is_raised && raised_for == 0 -> LONGER : DURATION)
#endif
#define LONGEST_DURATION	(is_raised -> LONGER : DURATION)

#define IS_ITS_NEXT	(ROW.incarnation == message.next)
#define IS_ITS_LAST	(message.incarnation > 0 && \
					 ROW.incarnation == message.incarnation)
#if defined(COPY_CONTINUES)
#define MATCHES		(IS_ITS_NEXT || IS_ITS_LAST)
#elif defined(ANY_INCARNATION)
#define MATCHES		(ROW.holder == message.from)
#else
#define MATCHES \
	(ROW.holder == message.from && (IS_ITS_NEXT || IS_ITS_LAST))
#endif

#ifdef ANY_CLOCK
#define IS_EXPIRED	true
#else
#define IS_EXPIRED	(ROW.lasts == 0)
#endif
#define IS_FREE \
	(IS_EXPIRED || ROW.holder == message.from && !message.is_held)

#ifdef ADOPT_ALWAYS
#define MAY_ADOPT		(grace > 0)
#else
#define MAY_ADOPT		(grace > 0 && !ROW.is_present)
#endif
#define IS_ADOPTED \
	(MAY_ADOPT && message.is_held && message.fence >= ROW.granted)

#ifdef RELEASE_FIRST
#define MAY_RELEASE		true
#else
#define MAY_RELEASE		ROW.is_present
#endif
#if defined(HOLDS_ALWAYS)
#define CONTINUES		MATCHES
#elif defined(RETRY_IN_GRACE)
#define CONTINUES \
	(MATCHES && (ROW.is_present || message.is_held || IS_ITS_NEXT))
#else
#define CONTINUES		(MATCHES && (ROW.is_present || message.is_held))
#endif

#ifndef KNOWN_BEHIND
#define KNOWN_BEHIND	BEHIND
#endif

/* The registry has forgotten something. */
inline begin_era()
{
	is_window = false;
	is_forgetful = false;
#ifndef NO_GRACE
	grace = LONGEST_DURATION;
#endif
#ifndef NO_FLOOR
	floor = clock_now + KNOWN_BEHIND + LONGEST_DURATION + LEAD;
#endif
	for (i : 0 .. WORKER_IDS - 1) {
		row[i].is_present = false
	}
}

inline grant(message)
{
	ROW.holder = message.from;
	ROW.incarnation = message.next;
	ROW.lasts = PRESENT_DURATION;
#ifdef FAILOVER
	ROW.granted = MAX(ROW.granted, clock_now + PRESENT_DURATION + LEAD);
	ROW.granted = MAX(ROW.granted, ROW.began);
#ifndef LOWER_FENCE
	ROW.granted = MAX(ROW.granted, message.fence);
#endif
	ROW.fence = ROW.granted;
#else
	ROW.fence = MAX(ROW.fence, ROW.began);
	raise(ROW.fence, LAST_MARK);
#endif
	ROW.is_present = true;
	grants = grants + (LAST_GRANT > 0);
	message.kind = GRANTED;
	message.incarnation = 0;
	message.is_held = false;
	message.fence = ROW.fence;
	message.begins_at = ROW.began;
	message.ends = (message.ends > LONGER - PRESENT_DURATION ->
					message.ends - LONGER + PRESENT_DURATION : 0);
	printf("registry: grants %d to %d, incarnation %d, from %d to fence %d\n",
		   message.worker_id, message.from, ROW.incarnation, ROW.began,
		   ROW.fence)
}

inline claim(message)
{
#ifdef UNNOTICED
	if
	:: is_window && message.is_held &&
		(!MATCHES || message.fence > ROW.granted) ->
		printf("registry: %d holds what is forgotten\n", message.from);
		begin_era()
	:: else
	fi;
#endif
	if
	:: CONTINUES
	:: !CONTINUES && IS_ADOPTED ->
		ROW.began = (ROW.holder == message.from -> ROW.began :
					 MAX(ROW.began, ROW.fence))
	:: !CONTINUES && !IS_ADOPTED && IS_FREE &&
		(grace == 0 && !is_window || ROW.is_present) ->
		ROW.began = MAX(ROW.fence, (ROW.is_present -> 0 : floor));
		message.fence = 0
	:: else -> tidy_message(message)
	fi;
	if
	:: message.kind == CLAIM -> grant(message)
	:: else
	fi
}

inline release(message)
{
	if
	:: ROW.holder == message.from && IS_ITS_LAST && MAY_RELEASE ->
		printf("registry: %d is released, mark %d\n",
			   message.worker_id, message.fence);
		ROW.lasts = 0;
		ROW.is_present = true;
		ROW.fence = MAX(MIN(ROW.fence, message.fence), ROW.began)
	:: else
	fi;
	tidy_message(message)
}

inline execute(message)
{
	if
	:: message.kind == CLAIM -> claim(message)
	:: message.kind == RELEASE -> release(message)
	fi
}

/*
 * The server.
 */

/* The generation of the lease changes: nothing of the one before goes on. */
#ifdef NO_GENERATION
#define CHANGE_GENERATION	skip
#else
#define CHANGE_GENERATION	MY.flushed = 0
#endif

/*
 * Logs the page with the lease as it is in shared memory, and the mark where
 * it is, and flushes.
 */
inline save()
{
#ifndef FENCE_IN_MEMORY
	MY.entry = (MY.logged.worker_id == MY.lease.worker_id ->
				MAX(MY.entry, MY.mark) : MY.mark);
#endif
	copy_lease(MY.logged, MY.lease);
	printf("%d: logs its lease, mark %d\n", me, MY.entry);
	check_holders()
}

/*
 * What is to be asked next is on the page before: an incarnation that is
 * nowhere else, even of one server, odd of the other.
 */
inline draw()
{
	i = 2 + me;
	do
	:: IS_IN_ROWS(i) || IS_KNOWN(i) -> i = i + 2
	:: else -> break
	od;
	MY.lease.next = i;
	MY.logged.next = i
}

/* Begins with what is on the page. */
inline start()
{
#ifdef ANY_HOLDER
	MY.logged.holder = (MY.logged.ends > 0 -> me : MY.logged.holder);
#endif
	copy_lease(MY.lease, MY.logged);
	MY.found = 0;
	MY.mark = MY.entry;
	MY.stamp = MY.entry;
	if
	:: !HOLDS(me, MY.lease) ->
		MY.lease.ends = 0;
		MY.lease.fence = 0;
		MY.found = MY.entry;
		MY.mark = 0;
		MY.stamp = 0;
#ifndef SET_BACK
		copy_lease(MY.logged, MY.lease)
#endif
	:: else
	fi;
	printf("%d: starts, holds a lease: %d\n", me, MY.lease.ends > 0);
	if
	:: MY.lease.next == 0 -> draw()
	:: else
	fi;
	check_holders()
}

/* Does not wait any longer; what it has asked may still come. */
inline give_up()
{
	if
#ifndef NONE_LATE
	:: late.kind == 0 && IS_IN_FLIGHT(MY.asked) ->
		copy_message(late, MY.asked)
#endif
	:: true
	fi;
	tidy_message(MY.asked)
}

inline stop()
{
	give_up();
	MY.flushed = 0;
	MY.limit = 0;
	MY.worker_id = 0;
	MY.is_reading = false
}

inline issue()
{
	tick = MY.stamp;
	raise(tick, MY.limit - 1);
	printf("%d: issues (%d, %d)\n", me, MY.worker_id, tick);
	assert(kept != 1 + tick + LAST_MARK * MY.worker_id);
	if
	:: kept == 0 ->
		kept = 1 + tick + LAST_MARK * MY.worker_id;
#ifdef SET_BACK
		kept_of = me
#endif
	:: true
	fi;
	MY.stamp = tick + 1;
	tick = 0;
	tidy_limit()
}

#ifdef PAST_FENCE
#define LAST	LAST_MARK
#else
#define LAST	MIN(MY.lease.fence, LAST_MARK)
#endif

/* Moves the mark under the lease: on the page; publishing is another step. */
inline log_mark()
{
	tick = MY.mark + 1;
	raise(tick, LAST_MARK);
	tick = MIN(tick, LAST);
	/* the page's may be of an earlier lease that let it go further */
	tick = (MY.logged.worker_id == MY.lease.worker_id && MY.entry >= tick ->
			MIN(MY.entry, LAST) : tick);
	MY.entry = (MY.logged.worker_id == MY.lease.worker_id ->
				MAX(MY.entry, tick) : tick);
	copy_lease(MY.logged, MY.lease);
	printf("%d: has flushed mark %d\n", me, tick);
	MY.flushed = tick;
	tick = 0;
	check_holders()
}

/* What lies before the fence that a server holds is its own. */
#ifdef HOLDER_IGNORES
#define BEGINS_ANEW	(MY.lease.ends == 0 || \
					 MY.asked.worker_id != MY.lease.worker_id)
#else
#define BEGINS_ANEW	(MY.lease.ends == 0 || \
					 MY.asked.worker_id != MY.lease.worker_id || \
					 MY.asked.begins_at >= MY.lease.fence)
#endif

/* The mark of the worker id that is granted, if the page had one at the start. */
#define FOUND \
	(MY.logged.worker_id == MY.asked.worker_id -> MY.found : 0)

/* The generators move on. */
inline move_generators()
{
#ifndef NO_FENCE
	MY.stamp = MAX(MY.stamp, MY.asked.begins_at);
#endif
	MY.stamp = MAX(MY.stamp, MAX(MY.mark, FOUND));
	tidy_limit()
}

/* Takes what has been granted, in shared memory. */
inline take()
{
	if
	:: BEGINS_ANEW ->
		CHANGE_GENERATION;
#ifndef NO_FENCE
		MY.mark = MAX(MY.mark, MY.asked.begins_at);
#endif
		MY.mark = MAX(MY.mark, FOUND);
		MY.found = 0
	:: else
	fi;
	MY.lease.holder = me;
	MY.lease.worker_id = MY.asked.worker_id;
	MY.lease.incarnation = MY.asked.next;
	MY.lease.fence = MY.asked.fence;
#ifdef ANSWER_TIME
	MY.asked.ends = DURATION;
#endif
	MY.lease.ends = MY.asked.ends;
	printf("%d: publishes worker id %d, mark %d, fence %d\n",
		   me, MY.lease.worker_id, MY.mark, MY.lease.fence);
	draw();
	save()
}

/*
 * Takes over what is durable of the other server.  What was to be asked next
 * is of another holder or timeline.
 */
inline copy_page()
{
	copy_lease(MY.logged, YOUR.logged);
	MY.entry = YOUR.entry;
#ifndef ASK_OF_ANY_TIMELINE
	MY.logged.next = 0;
#endif
}

#ifdef READ_TWICE
#define MAY_READ	(MY.lease.ends > 0 && !MY.is_reading)
#else
#define MAY_READ \
	(MY.lease.ends > 0 && MY.mark > MY.stamp && \
	 (MY.limit != MY.mark || MY.worker_id != MY.lease.worker_id))
#endif

#ifdef MOVE_MEANWHILE
#define MAY_MOVE	(MY.lease.ends > 0)
#else
#define MAY_MOVE	(MY.lease.ends > 0 && MY.asked.kind != MOVED)
#endif

#ifdef FREE
/* The server is dead; what comes with its number is another. */
inline free()
{
	printf("%d: is dead, and its rows are freed\n", me);
	MY.logged.holder = NOWHERE;
	MY.logged.incarnation = 0;
	MY.logged.next = 0;
	for (i : 0 .. WORKER_IDS - 1) {
		if
		:: row[i].holder == me ->
			row[i].incarnation = 0;
			row[i].fence = MIN(row[i].fence, clock_now + LEAD);
			row[i].fence = MAX(row[i].fence, row[i].began);
#ifdef FREE_IN_GRACE
			row[i].is_present = true;
#endif
			row[i].lasts = 0
		:: else
		fi
	}
}
#endif

#ifdef COPY_CONTINUES
#define HAD_IT		true
#else
#define HAD_IT		(MY.lease.holder == me)
#endif

#if defined(LEASE_FIRST)
#define BEGIN_ANEW	take(); MY.asked.kind = MOVED
#define END_ANEW	move_generators()
#elif defined(MOVE_MEANWHILE)
#define BEGIN_ANEW	move_generators(); MY.asked.kind = MOVED
#define END_ANEW	take()
#else
#define BEGIN_ANEW	move_generators(); take(); tidy_message(MY.asked)
#define END_ANEW	skip
#endif

proctype one_server(byte me)
{
	byte tick;
	byte i;

end:
	do
	:: atomic {
		if

		/* it is stopped, and starts with what is on its page, or another's */
		:: stop();
			if
			:: printf("%d: is killed\n", me)
			:: me == 1 ->
				printf("1: becomes a copy of 0\n");
#ifdef SET_BACK
				copy_has_kept = kept != 0;
#endif
				copy_page()
#ifdef SET_BACK
			:: me == 0 && YOUR.logged.holder == me ->
				printf("0: is set back to what 1 has\n");
				copy_page();
#ifndef ANY_TIMELINE
				MY.logged.ends = 0;		/* it is not resumed */
#endif
				kept = (kept_of == me && !copy_has_kept -> 0 : kept)
#endif
#ifdef FREE
			:: kept == 0 || (kept - 1) % LAST_MARK < clock_now + LEAD ->
				free()
#endif
			fi;
			start()

		/* the session */
		:: MAY_READ ->
			MY.worker_id = MY.lease.worker_id;
#ifdef READ_TWICE
			MY.limit = 0;
			MY.is_reading = true
		:: MY.is_reading ->
			MY.is_reading = false;
#endif
			MY.limit = MY.mark;
			tidy_limit()
		:: MY.limit > MY.stamp -> issue()

		/* who moves the mark: it was to be before the lease's end, once */
		:: MAY_MOVE && MY.flushed == 0 && MY.mark < LAST -> log_mark()
		:: MY.flushed > 0 ->
			MY.mark = MAX(MY.mark, MY.flushed);
			MY.flushed = 0;
			printf("%d: publishes mark %d\n", me, MY.mark)

		/* the lease's worker claims, or claims again what it holds */
		:: MY.asked.kind == 0 && (LAST_GRANT == 0 || grants < LAST_GRANT) ->
			raise(MY.asked.worker_id, WORKER_IDS - 1);
			MY.asked.kind = CLAIM;
			MY.asked.from = me;
			MY.asked.next = MY.lease.next;
			MY.asked.ends = LONGER;
			if
			:: MY.lease.worker_id == MY.asked.worker_id && HAD_IT ->
				MY.asked.incarnation = MY.lease.incarnation;
				MY.asked.is_held = MY.lease.ends > 0;
				MY.asked.fence = MY.lease.fence
			:: else
			fi;
			printf("%d: claims %d, incarnation %d, holds: %d\n", me,
				   MY.asked.worker_id, MY.asked.next, MY.asked.is_held)
		:: MY.asked.kind != 0 && MY.asked.kind != MOVED -> give_up()

		/* and is answered */
		:: MY.asked.kind == GRANTED && !BEGINS_ANEW ->
			take();
			tidy_message(MY.asked)
		:: MY.asked.kind == GRANTED && BEGINS_ANEW ->
			BEGIN_ANEW
		:: MY.asked.kind == MOVED ->
			END_ANEW;
			tidy_message(MY.asked)

		/* a clean stop: the mark moves no more, and that is durable */
		:: MY.asked.kind == 0 && MY.lease.ends > 0 ->
			printf("%d: freezes mark %d\n", me, MY.mark);
			MY.asked.kind = RELEASE;
			MY.asked.from = me;
			MY.asked.worker_id = MY.lease.worker_id;
			MY.asked.incarnation = MY.lease.incarnation;
			MY.asked.fence = MY.mark;
#ifndef NO_FREEZE
			CHANGE_GENERATION;
			MY.lease.ends = 0;
			MY.lease.fence = 0;
			MY.stamp = MAX(MY.stamp, MY.mark);
			tidy_limit();
#if defined(LEASE_BEFORE_LOCK)
			MY.entry = MAX(MY.entry, MY.mark)
#elif !defined(FREEZE_IN_MEMORY)
			save()
#endif
#endif

#ifndef NONE_LATE
		:: IS_IN_FLIGHT(MY.asked) -> execute(MY.asked)
		fi;
#else
		fi;
		if
		:: IS_IN_FLIGHT(MY.asked) -> execute(MY.asked)
		:: IS_IN_FLIGHT(MY.asked) -> tidy_message(MY.asked)
		:: else
		fi;
#endif
		tidy_numbers() }
	od
}

/*
 * The world.
 */

#define PASSES(time)	time = (time > 0 -> time - 1 : 0)

inline copy_row(to, from_)
{
	to.holder = from_.holder;
	to.incarnation = from_.incarnation;
	to.began = from_.began;
	to.fence = from_.fence;
	to.lasts = from_.lasts;
	to.granted = from_.granted
}

/* What comes from before it does not reach the new registry. */
inline fail_over()
{
	printf("failover\n");
	is_failed_over = true;
	has_replayed = false;
	clock_now = (clock_now > BEHIND -> clock_now - BEHIND : 0);
#if defined(UNNOTICED) && !defined(NO_WINDOW)
	is_window = true;
#endif
	for (i : 0 .. WORKER_IDS - 1) {
#ifdef UNNOTICED
		is_forgetful = is_window &&
			(is_forgetful || row[i].granted > standby[i].granted ||
			 row[i].fence > standby[i].fence ||
			 row[i].holder != standby[i].holder ||
			 row[i].incarnation != standby[i].incarnation);
		row[i].is_present = !is_window;
#endif
		copy_row(row[i], standby[i]);
		copy_row(standby[i], no_row)
	}
	for (i : 0 .. SERVERS - 1) {
		if
		:: IS_IN_FLIGHT(server[i].asked) -> tidy_message(server[i].asked)
		:: else
		fi
	}
	tidy_message(late);
	is_raised = standby_is_raised;
	raised_for = (is_raised -> raised_for : 0);
	standby_is_raised = false;
#ifndef UNNOTICED
	begin_era()
#endif
}

init
{
	byte i;

	atomic {
		for (i : 0 .. SERVERS - 1) {
			server[i].lease.holder = NOWHERE;
			server[i].logged.holder = NOWHERE;
			server[i].lease.next = 2 + i;
			server[i].logged.next = 2 + i
		}
		for (i : 0 .. WORKER_IDS - 1) {
			row[i].holder = NOWHERE;
			row[i].is_present = true
		}
		i = 0;
		run one_server(0);
		run one_server(1)
	}

end:
	do
	:: atomic {
		if
#ifndef ANY_CLOCK
#ifdef FAILOVER
		:: clock_now < LAST_NOW ->
			clock_now++;
			PASSES(grace);
			PASSES(raised_for);
#else
		:: true ->
#endif
			printf("time passes\n");
			for (i : 0 .. SERVERS - 1) {
				PASSES(server[i].lease.ends);
#ifndef EXPIRED_AT_START
				PASSES(server[i].logged.ends);
#endif
				PASSES(server[i].asked.ends)
			}
			for (i : 0 .. WORKER_IDS - 1) {
				PASSES(row[i].lasts);
				PASSES(standby[i].lasts)
			}
#endif
		:: late.kind != 0 && (LAST_GRANT == 0 || grants < LAST_GRANT) ->
			printf("late:\n");
			execute(late);
			tidy_message(late)
#ifdef FAILOVER
		:: !has_replayed && !is_failed_over ->
			printf("the standby replays for the last time\n");
			standby_is_raised = is_raised;
			for (i : 0 .. WORKER_IDS - 1) {
				copy_row(standby[i], row[i])
			}
			has_replayed = true
		:: has_replayed &&
			(!is_raised || raised_for > 0 || standby_is_raised) -> fail_over()
		:: LONGER > DURATION && !is_raised && !is_failed_over ->
			printf("the duration is raised\n");
			is_raised = true;
			raised_for = DURATION
#endif
#ifdef UNNOTICED
		:: is_window && !is_forgetful ->
			printf("the window is over\n");
			is_window = false;
			for (i : 0 .. WORKER_IDS - 1) {
				row[i].is_present = true
			}
#endif
		fi;
		tidy_numbers() }
	od
}
