/*
 * lease.pml
 *	  A model, for Spin, of worker ids that are leased from a registry: the
 *	  registry's rows, servers that claim and release, and all events that
 *	  stop a server, delay a message, move a clock, or set the registry back.
 *	  The words are DESIGN's.  snowflake.pml models the page in WAL, and how
 *	  one server's mark keeps an id from being issued twice.  So here a change
 *	  of the page is durable at once: a real server logs the change before it
 *	  issues an id that depends on it, so data that survives has the change.
 *
 * "script/model NO_FENCE" shows how ids are issued twice without the fence.
 *
 * Asserted:
 *	 - no (worker id, tick) is issued twice, by any server: a client keeps any
 *	   one id, and that id is never issued again;
 *	 - no two servers hold leases on the same worker id at the same time, where
 *	   each server measures its lease by its own monotonic clock; and no two
 *	   servers would hold such leases if they were killed and started now.  This
 *	   needs a registry whose clock measures durations as the servers' clocks
 *	   do.  With ANY_CLOCK the registry may take any lease for expired at any
 *	   time, and the model makes only the first assertion.
 *
 * The model has
 *	 - a registry, which executes each message at once.  The holder that knows
 *	   the incarnation of a row continues its lease; any other server begins at
 *	   the row's fence.  A grant may move the fence ahead to any tick; with
 *	   FAILOVER the fence follows from the registry's clock;
 *	 - two servers.  The second server may become a copy of the first: a
 *	   standby, or a server from a backup.  A server that was moved, or booted
 *	   anew, is like a copy whose original does not come back;
 *	 - with SET_BACK, an event that sets the first server back, in its own
 *	   directory, to the state of the copy;
 *	 - in each server a page with the lease, the incarnation of the next claim,
 *	   and the worker id's mark, which become durable in one record; and shared
 *	   memory, which has the newest lease, and the published mark;
 *	 - in each server a session, which keeps the mark and the worker id that it
 *	   last read, a process that moves the mark, and the lease worker.  Each may
 *	   rest at any step for any time;
 *	 - answers that are lost, and one message at a time that arrives after its
 *	   sender has stopped waiting.  With NONE_LATE no message arrives late: it is
 *	   executed or lost at once.  A server without an answer uses the same
 *	   incarnation for its next claim;
 *	 - wall clocks of servers that show any time: ids are issued at any tick
 *	   below the mark, and a mark may be any tick up to the fence;
 *	 - kills and clean stops of servers;
 *	 - with FAILOVER, one failover of the registry to a standby that has lost
 *	   any number of the last transactions, and whose clock is BEHIND.  The new
 *	   registry detects the failover at once; with UNNOTICED it detects only the
 *	   evidence of a holder, in a window in which only holders are served;
 *	 - with FREE, a DBA who certifies that a holder is dead; with LONGER, a DBA
 *	   who raises the duration.
 *
 * Bounds: LAST_MARK ticks of each worker id; with FAILOVER, LAST_NOW steps of
 * time, where a step is a tick.  Without FAILOVER time has no bounds.  The
 * number of claims has no bound unless LAST_GRANT sets one: an incarnation is
 * used again when it no longer occurs in the state.
 *
 * Assumed:
 *	 - Clocks of servers and of the registry measure durations alike.  If they
 *	   do not, ids can be issued twice, but only if the registry is set back.
 *	 - No two data directories that exist at the same time are the same holder,
 *	   and a directory that is set back is on another timeline.
 *	 - A server may issue the ids again that it loses when it is set back.
 *	 - Incarnations are equal only by copying, and each grant of a worker id
 *	   moves the fence.
 *	 - Servers tell the registry the truth.
 *	 - The registry loses what it has committed only when it is set back: by a
 *	   failover, a restored backup or a snapshot.  Then it is not set back again
 *	   before the grace is over.
 *	 - The old registry grants nothing once the new registry answers, and a
 *	   message to the old registry does not reach the new registry.
 *	 - The new registry's clock is behind the old registry's by no more than the
 *	   registry's floor allows for.
 *	 - If a registry loses a grant because it is set back, and its history, such
 *	   as its timeline, does not change, then a holder whose newest grant was
 *	   lost claims within the window.
 *	 - A failover loses no transaction that is older than the duration of a
 *	   lease, so the standby knows a longer duration before a lease of that
 *	   duration is granted.
 *	 - A holder that is freed is dead, does not come back, and has issued no id
 *	   beyond the registry's clock and the largest lead.
 *
 * Macros, and what each changes.  "(FREE)" means: only together with FREE.
 *	 NO_FENCE			a server does not begin at the last holder's fence
 *	 FENCE_IN_MEMORY	a server begins at the last holder's fence, but the
 *						record of the new lease does not have the mark
 *	 HOLDER_IGNORES		a server does not begin at the last holder's fence if
 *						it still holds a lease on the same worker id
 *	 NO_OWN_MARK		a server that was started without a lease does not begin
 *						at the worker id's own mark
 *	 PAST_FENCE			the mark may move past the fence
 *	 ANSWER_TIME		a lease counts from the answer, not from the claim
 *	 ANY_HOLDER			a start resumes the lease of any holder
 *	 EXPIRED_AT_START	a start resumes a lease that has expired
 *	 ANY_TIMELINE		a start resumes a lease of another timeline (SET_BACK)
 *	 ASK_OF_ANY_TIMELINE	a claim of another timeline is repeated
 *	 NO_FREEZE			the release is sent before the mark is frozen
 *	 FREEZE_IN_MEMORY	the page does not have the end of a released lease
 *	 LEASE_BEFORE_LOCK	the process that moves the mark overwrites the newest
 *						lease by one that it has read before it locked the page
 *	 LEASE_FIRST		a new lease is published before the generators skip the
 *						ticks before its beginning
 *	 MOVE_MEANWHILE		the mark may move after the generators have skipped
 *						ticks and before the new lease is published
 *	 NO_GENERATION		a mark that was put on the page under one lease is
 *						published under the next lease
 *	 READ_TWICE			a session reads the worker id and then the mark
 *	 ANY_INCARNATION	a holder continues its lease with any incarnation
 *	 COPY_CONTINUES		a copy of a holder continues the holder's lease
 * Macros of a registry that is set back, and what each changes:
 *	 NO_GRACE			the registry grants at once
 *	 NO_WINDOW			the registry grants at once (UNNOTICED)
 *	 HOLDS_ALWAYS		in the grace and in the window, the registry continues
 *						the lease of a server that no longer holds the lease
 *	 RETRY_IN_GRACE		for a repeated claim whose answer was lost, the registry
 *						continues a lease granted before it was set back
 *	 ADOPT_ALWAYS		the registry believes a holder, even if it has granted
 *						the worker id since it was set back
 *	 RELEASE_FIRST		a holder that has not come forward may release
 *	 NO_FLOOR			new holders begin at the fences that the registry knows
 *	 KNOWN_BEHIND=0		the floor does not allow for a clock that is behind
 *	 LOWER_FENCE		a holder that comes forward gets a fence below its own
 *	 FREE_IN_GRACE		a freed worker id is granted in the grace (FREE)
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
#define LONGER		DURATION	/* the duration after the DBA has raised it */
#endif
#ifndef LEAD
#define LEAD		0			/* the largest lead of a server's clock */
#endif
#ifndef BEHIND
#define BEHIND		0			/* how far the new registry's clock is behind */
#endif
#ifndef LAST_NOW
#define LAST_NOW	1
#endif
#ifndef LAST_GRANT
#define LAST_GRANT	0			/* no bound */
#endif

#define SERVERS		2
#define NOWHERE		SERVERS		/* a holder that is neither server */

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
	byte granted;				/* the largest fence so far; with FAILOVER */
	byte lasts;					/* steps of time until the lease expires */
	bool is_present				/* false after the registry was set back, until
								 * the row is granted or the window is over */
};
Row row[WORKER_IDS];
byte grants;
Row standby[WORKER_IDS];		/* the rows that the standby has replayed */
Row no_row;
bool has_replayed;
bool is_failed_over;
byte clock_now;					/* the registry's */
byte grace;						/* steps of time */
byte floor;
bool is_window;					/* UNNOTICED: only holders are served */
bool is_forgetful;				/* in the window: the registry lost a grant */
bool is_raised;
bool standby_is_raised;
byte raised_for;				/* steps of time until the raise takes effect */

/* A claim or a release, and the answer. */
typedef Message
{
	mtype kind;					/* 0: none */
	byte from;
	byte worker_id;
	byte incarnation;			/* of the previous lease of this worker id */
	byte next;
	byte fence;					/* of the lease held; RELEASE: the mark */
	bool is_held;
	byte last_fence;			/* in a grant: where the ids begin */
	byte ends					/* the end of a lease that begins with the claim */
};
Message late;					/* a message whose sender no longer waits */
Message none;

#define IS_IN_FLIGHT(message) \
	(message.kind == CLAIM || message.kind == RELEASE)

/* A lease, on the page or in shared memory. */
typedef Lease
{
	byte holder;
	byte worker_id;
	byte incarnation;
	byte next;					/* the incarnation of the next claim, or 0 */
	byte ends;					/* steps of time; 0: over or released */
	byte fence
};

typedef Server
{
	/* the page */
	Lease logged;
	byte entry;					/* the mark of the lease's worker id */

	/* shared memory */
	Lease lease;
	byte found;					/* the page's mark, until the first lease */
	byte mark;					/* the published mark */
	byte stamp;					/* the next tick that the server may issue */

	/* the session */
	byte limit;					/* 0: none, or no tick below it is left */
	byte worker_id;				/* read together with the limit */
	bool is_reading;			/* READ_TWICE */

	/* the process that moves the mark */
	byte flushed;				/* the mark to publish; 0: none */

	/* the lease worker */
	Message asked				/* its claim or release, and the answer */
};
Server server[SERVERS];

#define MY		server[me]
#define YOUR	server[1 - me]

/* The id that a client keeps: 1 + tick + LAST_MARK * worker id; 0: none yet */
byte kept;
#ifdef SET_BACK
byte kept_of;					/* the server that has issued the id */
bool copy_has_kept;				/* was the id issued before the copy was made? */
#endif

/*
 * Does a server hold a lease that is in its memory?  Would the server hold a
 * lease that is on its page, if it were started now?
 */
#define HOLDS(s, a_lease)	(a_lease.holder == s && a_lease.ends > 0)
#define BOTH_HOLD(a_lease, another) \
	(HOLDS(0, a_lease) && HOLDS(1, another) && \
	 a_lease.worker_id == another.worker_id)

bool both_hold;					/* do both servers hold one worker id? */

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
	to.last_fence = from_.last_fence;
	to.ends = from_.ends
}

/*
 * The "tidy" macros clear what has no further effect, so that there are fewer
 * states to search.
 */
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

/*
 * Clears each incarnation in the rows that no server and no message has, and
 * each incarnation of a server or a message that no row has: no later step can
 * find such an incarnation equal to another.  For the same reason a late claim
 * whose incarnation nothing else has gets an incarnation that nobody chooses.
 */
inline tidy_incarnations()
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

/* Raises a number by any amount, up to "last". */
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

/* The registry has forgotten something, and begins an era. */
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
	message.last_fence = ROW.began;
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
		printf("registry: %d holds a forgotten lease\n", message.from);
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

/* The node's generation changes: no mark of the last lease is published. */
#ifdef NO_GENERATION
#define CHANGE_GENERATION	skip
#else
#define CHANGE_GENERATION	MY.flushed = 0
#endif

/* Logs and flushes the page, with shared memory's lease and published mark. */
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
 * Chooses the incarnation of the next claim and stores it on the page before
 * the claim.  The incarnation is a number that is not used anywhere: an even
 * number for one server, and an odd number for the other.
 */
inline choose_incarnation()
{
	i = 2 + me;
	do
	:: IS_IN_ROWS(i) || IS_KNOWN(i) -> i = i + 2
	:: else -> break
	od;
	MY.lease.next = i;
	MY.logged.next = i
}

/* Starts the server with the state of its page. */
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
	:: MY.lease.next == 0 -> choose_incarnation()
	:: else
	fi;
	check_holders()
}

/* The server stops waiting for an answer; its message may still arrive. */
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

/* Moves the mark on the page, under the lease; publishing is another step. */
inline log_mark()
{
	tick = MY.mark + 1;
	raise(tick, LAST_MARK);
	tick = MIN(tick, LAST);
	/* An earlier lease may have allowed a larger mark on the page. */
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

/*
 * Does a grant begin a new lease?  It renews the lease that the server holds if
 * "last_fence", where the grant's ids begin, is before the fence of that lease.
 */
#ifdef HOLDER_IGNORES
#define BEGINS_ANEW	(MY.lease.ends == 0 || \
					 MY.asked.worker_id != MY.lease.worker_id)
#else
#define BEGINS_ANEW	(MY.lease.ends == 0 || \
					 MY.asked.worker_id != MY.lease.worker_id || \
					 MY.asked.last_fence >= MY.lease.fence)
#endif

/* The page's mark of the granted worker id at the start, or 0. */
#ifdef NO_OWN_MARK
#define FOUND	0
#else
#define FOUND \
	(MY.logged.worker_id == MY.asked.worker_id -> MY.found : 0)
#endif

/* The generators skip the ticks before the beginning of the new lease. */
inline move_generators()
{
#ifndef NO_FENCE
	MY.stamp = MAX(MY.stamp, MY.asked.last_fence);
#endif
	MY.stamp = MAX(MY.stamp, MAX(MY.mark, FOUND));
	tidy_limit()
}

/* Stores a grant in shared memory, and then on the page. */
inline accept_grant()
{
	if
	:: BEGINS_ANEW ->
		CHANGE_GENERATION;
#ifndef NO_FENCE
		MY.mark = MAX(MY.mark, MY.asked.last_fence);
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
	choose_incarnation();
	save()
}

/*
 * Copies the durable page of the other server.  The incarnation of the next
 * claim on that page belongs to another holder or another timeline, and is not
 * used.
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
/*
 * The DBA frees the worker ids of a dead server.  The server that starts next
 * has the dead server's number in the model, but is another holder.
 */
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

/* May a server claim to be the holder of the lease in its memory? */
#ifdef COPY_CONTINUES
#define IS_OWN_LEASE	true
#else
#define IS_OWN_LEASE	(MY.lease.holder == me)
#endif

#if defined(LEASE_FIRST)
#define BEGIN_ANEW	accept_grant(); MY.asked.kind = MOVED
#define END_ANEW	move_generators()
#elif defined(MOVE_MEANWHILE)
#define BEGIN_ANEW	move_generators(); MY.asked.kind = MOVED
#define END_ANEW	accept_grant()
#else
#define BEGIN_ANEW	move_generators(); accept_grant(); tidy_message(MY.asked)
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

		/* the server stops, and starts with its own page or with a copy */
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
				MY.logged.ends = 0;		/* the lease is not resumed */
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

		/* the process that moves the mark; publishing needs no lease in force */
		:: MAY_MOVE && MY.flushed == 0 && MY.mark < LAST -> log_mark()
		:: MY.flushed > 0 ->
			MY.mark = MAX(MY.mark, MY.flushed);
			MY.flushed = 0;
			printf("%d: publishes mark %d\n", me, MY.mark)

		/* the lease worker claims or renews */
		:: MY.asked.kind == 0 && (LAST_GRANT == 0 || grants < LAST_GRANT) ->
			raise(MY.asked.worker_id, WORKER_IDS - 1);
			MY.asked.kind = CLAIM;
			MY.asked.from = me;
			MY.asked.next = MY.lease.next;
			MY.asked.ends = LONGER;
			if
			:: MY.lease.worker_id == MY.asked.worker_id && IS_OWN_LEASE ->
				MY.asked.incarnation = MY.lease.incarnation;
				MY.asked.is_held = MY.lease.ends > 0;
				MY.asked.fence = MY.lease.fence
			:: else
			fi;
			printf("%d: claims %d, incarnation %d, holds: %d\n", me,
				   MY.asked.worker_id, MY.asked.next, MY.asked.is_held)
		:: MY.asked.kind != 0 && MY.asked.kind != MOVED -> give_up()

		/* the lease worker has an answer */
		:: MY.asked.kind == GRANTED && !BEGINS_ANEW ->
			accept_grant();
			tidy_message(MY.asked)
		:: MY.asked.kind == GRANTED && BEGINS_ANEW ->
			BEGIN_ANEW
		:: MY.asked.kind == MOVED ->
			END_ANEW;
			tidy_message(MY.asked)

		/* a clean stop: the mark is frozen, and the lease ends on the page */
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
		tidy_incarnations() }
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

/* Fails over to the standby.  No older message reaches the new registry. */
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
		tidy_incarnations() }
	od
}
