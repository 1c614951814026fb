/*
 * lease.pml
 *	  A model, for Spin, of worker ids that are leased from a registry: the
 *	  worker ids' rows, servers that claim and release, and all events that stop
 *	  a server, delay a message, move a clock, or set the registry back.  The
 *	  words are those of src/README.md.  snowflake.pml models the page in WAL,
 *	  and how one server's mark keeps an id from being issued twice.
 *
 * Asserted: no id is issued twice, by any server.  A client keeps any one id of
 * worker id 0, and that id is never issued again.
 *
 * With LIAR: no server can put a fence further ahead than a quarantine's end or
 * a new lease's fence, and a server loses no lease to another server that lies,
 * unless the liar pretends to be the holder.
 *
 * With BEGINS_BY: the ids of a new lease begin no later than the server allows.
 *
 * "script/model NO_FLOOR" shows how ids are issued twice without the floor.
 *
 * The model has
 *	 - a registry, which executes each message at once.  Its clock is ahead of
 *	   the time by 0 to SLACK steps;
 *	 - two servers.  The second server may become a copy of the first: a
 *	   standby, or a server from a backup.  A server that was moved, or booted
 *	   anew, is like a copy whose original does not come back;
 *	 - in each server a page with the lease, the incarnation of the next claim,
 *	   and the mark.  Ids are issued below the mark, also after the lease is
 *	   over.  A server's clock shows any time: ids are issued at any tick below
 *	   the mark, and a mark may be any tick up to the fence;
 *	 - answers that are lost, and one message at a time that arrives after its
 *	   sender has stopped waiting.  With NONE_LATE a message is executed or lost
 *	   at once.  A server without an answer repeats its claim's incarnation.
 *	   Nothing shows the registry that a message is late;
 *	 - kills and clean stops of servers;
 *	 - a quarantine at any time, as after a restart of the registry's server;
 *	 - with ROWS=2, a second worker id.  A server without a lease gets any one:
 *	   its last, the one that its DBA wants, or one that the registry chooses;
 *	 - with BEGINS_BY, servers whose clocks are behind, and that take no lease
 *	   whose ids begin after an instant;
 *	 - with LOSSES, failovers of the registry, one after another, each to a
 *	   standby that has lost any number of the last transactions, and whose
 *	   clock is another.  The new registry begins a quarantine, which the next
 *	   standby may have lost.  With UNNOTICED the registry is set back once, and
 *	   does not notice.  With DUMP a new registry may take the place of the
 *	   standby, and the standby's rows may be restored there at any time, beside
 *	   the new row of "setting";
 *	 - with PAUSE, a server that time passes by, as in a virtual machine that is
 *	   paused: the server takes its lease for longer than the lease is;
 *	 - with SET_BACK, an event that sets the first server back, in its own
 *	   directory, to the state of the copy, on another timeline or on its own;
 *	 - with CHANGE, one change of the layout while servers run.  The row of the
 *	   new layout has no fence of the old one, but makes the same ids;
 *	 - with LOWERED, a DBA who lowers the duration of leases;
 *	 - with LIAR, a third server, which releases with any mark, and claims, once
 *	   with any fence as if it held a lease.  Its own ids do not count;
 *	 - with ANY_CLOCK, a registry's clock that is set to any time, at any time.
 *
 * Bounds: the registry grants in the first LAST_NOW steps of time.  A tick is a
 * step of time.  With NO_STOPS servers are neither stopped nor copied.  A
 * microsecond is no time.  The steps inside a server are not here.
 *
 * The registry's slack S is two numbers here.  LEAD is the S of a fence, which
 * allows for a server's clock that leads; SLACK is the S by which registries'
 * clocks differ.  LEAD can be 0, because S moves fences and a quarantine's end
 * alike.
 *
 * Assumed.  README.md says in the same names what a DBA does about each:
 *	 - durations: clocks of servers and of the registry measure durations alike.
 *	   With PAUSE they need not, if the registries' clocks are equal.
 *	 - registry clocks: the clocks of the registry's servers differ by SLACK at
 *	   most, and are not set.  With ANY_CLOCK they are, if nothing is lost and
 *	   the layout is not changed.
 *	 - one copy: no two data directories that exist at the same time are the
 *	   same holder.  Incarnations are equal only by copying.
 *	 - rollback: a directory that is set back is on another timeline, or the
 *	   registry has lost nothing and answers the first claim.  The server may
 *	   issue the ids again that it loses.
 *	 - truth: servers tell the registry the truth.  With LIAR one does not, if
 *	   nothing is lost.
 *	 - noticed losses: the registry notices each loss of what it has committed.
 *	   It commits a claim before it answers: no claim is prepared.
 *	   If it does not (UNNOTICED), a holder whose newest grant was lost claims
 *	   before a server without a lease does.
 *	 - one registry: the old registry grants nothing once the new one answers,
 *	   and a message to the old registry does not reach the new one.
 *	 - raised duration: the duration of a lease is not raised, or the raise is
 *	   not lost.  A registry that is made anew has at first the longest duration
 *	   of the leases that run.
 *	 - larger ids: a new layout makes no id of an earlier tick again.
 *
 * Macros, and what each changes in a server:
 *	 NO_FENCE			a server does not begin at the last holder's fence
 *	 FENCE_IN_MEMORY	it does, but the page does not have the mark
 *	 PAST_FENCE			the mark may move past the fence
 *	 ANSWER_TIME		a lease counts from the answer, not from the claim
 *	 ANY_HOLDER			a start resumes the lease of any holder
 *	 EXPIRED_AT_START	a start resumes a lease that has expired
 *	 ANY_TIMELINE		a start resumes a lease of another timeline (SET_BACK)
 *	 RESUME_AT_ONCE		a start resumes a lease before its first claim (SET_BACK)
 *	 NO_FREEZE			the mark may move after the release was sent
 *	 FREEZE_IN_MEMORY	the page does not have the end of a released lease
 *	 ANY_BEGIN			a server takes a lease that begins at any instant
 *						(BEGINS_BY)
 * and in the registry:
 *	 RELEASE_BOTH		a release also names the incarnation of the next claim
 *	 UNSEEN_RELEASE		a release is executed in a quarantine, before a renewal
 *	 LOWER_BEGAN		a release may lower the fence below where ids began
 *	 ANY_INCARNATION	a holder continues its lease with any incarnation
 *	 COPY_CONTINUES		a copy of a holder continues the holder's lease
 *	 ANY_ROW			a holder continues its lease with another worker id
 *						(ROWS=2)
 *	 NO_QUARANTINE		a loss begins no quarantine
 *	 NO_FLOOR			a quarantine does not raise the fence
 *	 DUMP_SEEN			rows of a dump count as they did when it was taken (DUMP)
 *	 DUMP_FENCE			the quarantine does not raise the fences of rows that
 *						were restored after it began (DUMP)
 *	 NO_SLACK			a quarantine does not allow for a clock that is behind
 *	 SHORTEN			a quarantine may end before an earlier one would have
 *	 SEEN_BY_CLOCK		a row was seen if the registry's clock then showed a
 *						later time than when the quarantine began
 *	 NEWCOMERS			in a quarantine a row that was not seen is granted
 *	 UNSEEN_CONTINUES	in a quarantine a server that holds no lease continues
 *						the lease of a row that was not seen
 *	 BELIEVE_ALL		a holder is believed although the row names none of its
 *						incarnations, and its fence is not above that of the
 *						row's last grant
 *	 BELIEVE_HOLDER		the same, if the row is the holder's
 *	 BELIEVE_SEEN		a holder is believed although its row was seen
 *	 DISPLACE			a holder is believed although another holder's lease runs,
 *						as far as the row tells (LIAR)
 *	 BELIEVE_PASSED		a holder is believed although its fence has passed
 *	 PASSED_BY_CLOCK	a fence has passed only when the clock is there, LEAD
 *						after the lease ended
 *	 BELIEVE_LATER		a holder is believed although its fence is after the
 *						quarantine
 *	 ANY_FENCE			a holder that continues its lease may raise the fence
 *	 ANY_MARK			a holder that releases its lease may raise the fence
 *	 LOWER_FENCE		a holder that is believed gets a fence below its own
 *	 NO_TOP				a grant's fence may be below that of an earlier grant
 *	 KEEP_FLOOR			a grant's fence is not below the fence of the row, which
 *						a quarantine has raised
 *	 KEEP_BEGAN			another server that is believed does not begin at its
 *						fence, so its release can lower the row's fence further
 *	 NO_TRIPWIRE		a holder's fence above the row's is no sign of a loss
 *	 CHANGE_AT_ONCE		a change of the layout begins no quarantine
 *	 FORGET_DURATION	a change of the duration begins a quarantine that may
 *						end before fences of the longer leases
 *	 PRESENT_DURATION	a registry that is made anew has the lowered duration
 *						although longer leases run (DUMP, LOWERED)
 */

#ifndef DURATION
#define DURATION	1			/* steps of time that a lease lasts */
#endif
#ifndef SLACK
#define SLACK		0			/* how far the registry's clocks may differ */
#endif
#ifndef LEAD
#define LEAD		0			/* how far a server's clock may lead */
#endif
#ifndef LAST_NOW
#define LAST_NOW	2
#endif
#ifndef ROWS
#define ROWS		1			/* worker ids: 1 or 2 */
#endif
#define LAST_TICK	(LAST_NOW + SLACK + DURATION + LEAD)

#define MAX(a, b)	((a) > (b) -> (a) : (b))
#define MIN(a, b)	((a) < (b) -> (a) : (b))

#define NOBODY		2			/* of servers 0 and 1 */
#define THIRD		3			/* a server that lies */
#define EARLIER		99			/* an incarnation of the layout before */
#define LIARS		98			/* the incarnation of the server that lies */

mtype = { CLAIM, RELEASE, GRANTED, REFUSED };

/* The registry. */
typedef Row
{
	byte holder;
	byte incarnation;
	byte began;
	byte fence;
	byte top;					/* the fence of the last grant */
	byte expires;				/* 0: released or never leased */
#ifdef SEEN_BY_CLOCK
	byte seen_at;
#endif
	bool is_seen				/* granted since the last quarantine began */
};
typedef Registry
{
	Row rows[ROWS];
	byte reopens;				/* the columns of "setting" */
	byte duration
};
Registry registry, standby, no_registry;
byte w;							/* the worker id of the row in use */
byte now;
byte clock;						/* the registry's */
#ifdef KEEP_FLOOR
byte floor;						/* the fence before a grant */
#endif
bool is_forgetful;				/* UNNOTICED: the loss may still do harm */
byte losses;					/* failovers so far */
#ifdef CHANGE
bool has_changed;				/* the layout */
#endif
bool has_replayed;				/* the standby has a state to fail over to */
#ifdef DUMP
bool has_dump;					/* the standby is a dump to restore */
#endif

#define row		registry.rows[w]
#define saved	standby.rows[w]

#define IN_QUARANTINE	(clock < registry.reopens)

/* A claim or a release, and the answer. */
typedef Message
{
	mtype kind;					/* 0: none */
	byte from;
	byte incarnation;			/* of the lease held or held last */
	byte next;					/* of this claim */
	byte fence;					/* of the lease held; RELEASE: the mark */
	bit worker;					/* held, held last or granted */
	bool is_held;
	byte begins;				/* in a grant: where the ids begin */
#ifdef BEGINS_BY
	byte begins_by;				/* where they begin at the latest */
#endif
	byte ends					/* steps of time that are left of the lease */
};
Message late;					/* a message whose sender no longer waits */
Message none;
#ifdef LIAR
Message lies;
bool has_lied;					/* about a fence */
bool has_posed;					/* as the first server */
#endif

typedef Server
{
	/* the page */
	byte holder;				/* whom the lease was granted to */
	byte incarnation;
	byte next;
	byte ends;					/* steps of time that are left; 0: over */
	byte fence;
	byte mark;					/* of worker id 0 */
#ifdef CHANGE
	bool is_old;				/* its layout is the one before the change */
#endif

	bit worker;

	/* memory */
	bool is_held;				/* the lease of the page is in use */
	bool is_pending;			/* it may be in use after the first claim */
#ifdef SET_BACK
	bool is_set_back;			/* the first claim will be answered */
#endif
	byte stamp;					/* the next tick that the server may issue */
	Message asked				/* its claim or release, and the answer */
};
Server server[2];

#define MY		server[me]
#define YOUR	server[1 - me]

byte tick;						/* of the id that a client keeps */
bool is_issued;					/* was it issued? */
#ifdef SET_BACK
byte issued_by = NOBODY;
bool copy_has_issued;			/* was it issued before the copy was made? */
#define SET(variable, value)	variable = value
#else
#define SET(variable, value)	skip
#endif

inline copy_message(to, from_)
{
	to.kind = from_.kind;
	to.from = from_.from;
	to.worker = from_.worker;
	to.incarnation = from_.incarnation;
	to.next = from_.next;
	to.fence = from_.fence;
	to.is_held = from_.is_held;
	to.begins = from_.begins;
#ifdef BEGINS_BY
	to.begins_by = from_.begins_by;
#endif
	to.ends = from_.ends
}

inline copy_row(to, from_)
{
	to.holder = from_.holder;
	to.incarnation = from_.incarnation;
	to.began = from_.began;
	to.fence = from_.fence;
	to.top = from_.top;
	to.expires = from_.expires;
#ifdef SEEN_BY_CLOCK
	to.seen_at = from_.seen_at;
#endif
	to.is_seen = from_.is_seen
}

inline copy_registry(to, from_)
{
	for (w : 0 .. ROWS - 1) {
		copy_row(to.rows[w], from_.rows[w])
	}
	w = 0;
	to.reopens = from_.reopens;
	to.duration = from_.duration
}

/* Is a number of a server's or a message's anywhere in the state? */
#define IN_SERVER(s, n) \
	(server[s].incarnation == n || server[s].next == n || \
	 server[s].asked.incarnation == n || server[s].asked.next == n)
#define IN_ROW(i, n) \
	(registry.rows[i].incarnation == n || standby.rows[i].incarnation == n)
#if ROWS > 1
#define IN_ROWS(n)	(IN_ROW(0, n) || IN_ROW(1, n))
#else
#define IN_ROWS(n)	IN_ROW(0, n)
#endif
#define IS_USED(n) \
	(IN_SERVER(0, n) || IN_SERVER(1, n) || late.incarnation == n || \
	 late.next == n || IN_ROWS(n))

/*
 * Chooses the incarnation of the next claim: a number that nothing has, odd for
 * one server and even for the other.
 */
inline choose_incarnation()
{
	MY.next = 0;
	i = 1 + me;
	do
	:: IS_USED(i) -> i = i + 2
	:: else -> break
	od;
	MY.next = i;
	i = 0
}

/*
 * So that there are fewer states to search: clears incarnations that no later
 * step can find equal to another, and rounds instants, because only one tick
 * matters and the protocol takes minima and maxima of instants.  Only the
 * fences of holders and of last grants are compared.
 */
#define FORGET(n)		n = (IN_ROWS(n) -> n : 0)
#define IS_KNOWN(n) \
	(IN_SERVER(0, n) || IN_SERVER(1, n) || late.incarnation == n || \
	 late.next == n || n == LIARS)

#define ROUND(instant)	instant = (instant > tick -> LAST_TICK : 0)

inline tidy()
{
	d_step {
	for (w : 0 .. ROWS - 1) {
#ifndef LIAR
		ROUND(row.began);		/* check_fence() needs fences as they are */
#endif
		ROUND(saved.began);
		row.incarnation = (IS_KNOWN(row.incarnation) -> row.incarnation : 0);
		saved.incarnation =
			(IS_KNOWN(saved.incarnation) -> saved.incarnation : 0)
	}
	w = 0;
	late.ends = 0;				/* nobody waits for the answer */
	for (i : 0 .. 1) {
		ROUND(server[i].mark);
		ROUND(server[i].stamp);
		ROUND(server[i].asked.begins)
	}
	for (i : 0 .. 1) {
		FORGET(server[i].incarnation);
		FORGET(server[i].asked.incarnation)
	}
	FORGET(late.incarnation);
	i = 0
	}
}

/*
 * The registry.
 */

/* In a row that was not seen, a fence counts as at least the quarantine's end. */
inline raise_fence()
{
	row.fence = MIN(MAX(row.fence, registry.reopens), LAST_TICK)
}

inline begin_quarantine()
{
	printf("registry: quarantine\n");
	is_forgetful = false;
#ifndef NO_QUARANTINE
#ifdef SHORTEN
	registry.reopens = 0;
#endif
#ifdef NO_SLACK
	registry.reopens =
		MAX(registry.reopens, clock + registry.duration + LEAD);
#else
	registry.reopens =
		MAX(registry.reopens, clock + registry.duration + LEAD + SLACK);
#endif
	for (w : 0 .. ROWS - 1) {
#ifndef NO_FLOOR
		raise_fence();
#endif
#ifdef SEEN_BY_CLOCK
		row.is_seen = row.seen_at > clock
#else
		row.is_seen = false
#endif
	}
	w = 0
#endif
}

#ifdef COPY_CONTINUES
#define IS_HOLDER(message)	true
#else
#define IS_HOLDER(message)	(row.holder == message.from)
#endif
#ifdef ANY_INCARNATION
#define IS_PREVIOUS(message)	true
#else
#define IS_PREVIOUS(message) \
	(message.incarnation > 0 && row.incarnation == message.incarnation)
#endif
#define IS_NEXT(message)	(row.incarnation == message.next)

#define IS_MINE(message) \
	(IS_HOLDER(message) && (IS_PREVIOUS(message) || IS_NEXT(message)))

/* No claim of the row's grant shows a later fence than the last one granted. */
#ifdef ANY_FENCE
#define IS_GRANTED(message)	true
#else
#define IS_GRANTED(message)	(!message.is_held || message.fence <= row.top)
#endif

#ifdef UNSEEN_CONTINUES
#define CONTINUES(message)	(IS_MINE(message) && row.expires > 0)
#else
#define CONTINUES(message) \
	(IS_MINE(message) && IS_GRANTED(message) && row.expires > 0 && \
	 row.is_seen)
#endif

#if defined(BELIEVE_ALL)
#define IS_LAST(message)	true
#elif defined(BELIEVE_HOLDER)
#define IS_LAST(message) \
	(row.holder == message.from || message.fence > row.top)
#else
#define IS_LAST(message)	(IS_MINE(message) || message.fence > row.top)
#endif
#if defined(BELIEVE_PASSED)
#define HAS_PASSED(message)	false
#elif defined(PASSED_BY_CLOCK)
#define HAS_PASSED(message)	(message.fence <= clock)
#else
#define HAS_PASSED(message)	(message.fence <= clock + LEAD)
#endif
#ifdef BELIEVE_LATER
#define IS_TOO_LATE(message)	false
#else
#define IS_TOO_LATE(message) \
	(message.fence > registry.reopens && \
	 !(IS_MINE(message) && message.fence <= row.top))
#endif
#ifdef BELIEVE_SEEN
#define WAS_SEEN	false
#else
#define WAS_SEEN	row.is_seen
#endif
#ifdef DISPLACE
#define IS_TAKEN(message)	false
#else
#define IS_TAKEN(message) \
	(row.holder != message.from && row.expires > clock)
#endif
#define IS_BELIEVED(message) \
	(message.is_held && IN_QUARANTINE && !WAS_SEEN && !IS_TAKEN(message) && \
	 !HAS_PASSED(message) && !IS_TOO_LATE(message) && IS_LAST(message))

#ifdef NEWCOMERS
#define IS_FREE		(row.expires <= clock)
#else
#define IS_FREE		(row.expires <= clock && (row.is_seen || !IN_QUARANTINE))
#endif

#if defined(BEGINS_BY) && !defined(ANY_BEGIN)
#define IS_IN_TIME(message, instant)	(instant <= message.begins_by)
#else
#define IS_IN_TIME(message, instant)	true
#endif

#ifdef NO_TOP
#define TOP		0
#else
#define TOP		row.top
#endif

/* Nobody can keep a worker id from others for longer than a quarantine. */
inline check_fence()
{
#ifdef LIAR
	assert(row.fence <= MAX(registry.reopens, clock + registry.duration + LEAD))
#else
	skip
#endif
}

inline grant(message)
{
	row.holder = message.from;
	row.incarnation = message.next;
#ifdef KEEP_FLOOR
	floor = row.fence;
#endif
#ifdef LOWER_FENCE
	row.fence = clock + registry.duration + LEAD;
#else
	row.fence =
		MAX(MAX(row.began, TOP),
			MAX(message.fence, clock + registry.duration + LEAD));
#endif
#ifdef KEEP_FLOOR
	row.fence = MAX(row.fence, floor);
#endif
	row.fence = MIN(row.fence, LAST_TICK);
	row.top = row.fence;
	check_fence();
	row.expires = clock + registry.duration;
	row.is_seen = true;
#ifdef SEEN_BY_CLOCK
	row.seen_at = clock;
#endif
	printf("registry: grants to %d, from %d to fence %d\n",
		   message.from, row.began, row.fence);
	message.kind = GRANTED;
	message.worker = w;
	message.begins = row.began;
	message.fence = row.fence;
	message.ends = MAX(message.ends + registry.duration, DURATION) - DURATION;
	message.incarnation = 0
}

/* Only a server that holds a lease does anything about a refusal. */
inline refuse(message)
{
	if
	:: message.is_held ->
		copy_message(message, none);
		message.kind = REFUSED
	:: else -> copy_message(message, none)
	fi
}

/*
 * A server without a lease gets its last worker id, one that its DBA wants, or
 * one that the registry chooses: any one.
 */
inline choose_row(message)
{
	w = message.worker;
#if ROWS > 1
	if
#ifdef ANY_ROW
	:: true
#else
	:: !message.is_held
#endif
		-> w = 1 - w
	:: true
	fi
#endif
}

inline claim(message)
{
	w = message.worker;
	if
	:: message.is_held && !IN_QUARANTINE && message.fence > row.top ->
		is_forgetful = false;
#ifndef NO_TRIPWIRE
		begin_quarantine()
#endif
	:: else
	fi;
	if
	:: is_forgetful && !message.is_held -> copy_message(message, none)
	:: else ->
	choose_row(message);
	if
	:: CONTINUES(message) -> grant(message)
	:: !CONTINUES(message) && IS_BELIEVED(message) ->
#ifndef KEEP_BEGAN
		row.began = (IS_MINE(message) && message.fence <= row.top ->
					 row.began : MAX(row.began, message.fence));
#endif
		grant(message)
	:: !CONTINUES(message) && !IS_BELIEVED(message) && IS_FREE &&
		!message.is_held && IS_IN_TIME(message, row.fence) ->
		row.began = row.fence;
		grant(message)
	:: else -> refuse(message)
	fi
	fi
}

#ifdef UNSEEN_RELEASE
#define CAN_RELEASE		true
#else
#define CAN_RELEASE		row.is_seen
#endif
#ifdef RELEASE_BOTH
#define IS_RELEASED_BY(message)	(IS_PREVIOUS(message) || IS_NEXT(message))
#else
#define IS_RELEASED_BY(message)	IS_PREVIOUS(message)
#endif
#ifdef LOWER_BEGAN
#define BEGAN	0
#else
#define BEGAN	row.began
#endif

#ifdef ANY_MARK
#define MARK(message)	message.fence
#else
#define MARK(message)	MIN(row.fence, message.fence)
#endif

inline release(message)
{
	w = message.worker;
	if
	:: CAN_RELEASE && IS_HOLDER(message) && IS_RELEASED_BY(message) &&
		row.expires > 0 ->
		printf("registry: released by %d, mark %d\n",
			   message.from, message.fence);
		row.fence = MAX(MARK(message), BEGAN);
		check_fence();
		row.expires = 0
	:: else
	fi;
	copy_message(message, none)
}

inline execute(message)
{
	if
	:: message.kind == CLAIM -> claim(message)
	:: message.kind == RELEASE -> release(message)
	:: else -> copy_message(message, none)
	fi
}

/*
 * The server.
 */

#ifdef CHANGE
#define IS_OLD	MY.is_old
#else
#define IS_OLD	false
#endif

/* Takes the lease on the page. */
inline resume()
{
	MY.is_held = MY.is_held || MY.is_pending && MY.ends > 0;
	MY.is_pending = false
}

/* Starts the server with the state of its page. */
inline start()
{
	MY.stamp = MY.mark;
#ifdef CHANGE
	if
	:: MY.is_old ->
		printf("%d: gets the new layout\n", me);
		MY.is_old = false;
		MY.next = 0;
		MY.ends = 0				/* the lease is not resumed */
	:: true
	fi;
#endif
#ifdef ANY_HOLDER
	MY.is_pending = MY.ends > 0;
#else
	MY.is_pending = MY.holder == me && MY.ends > 0;
#endif
	MY.is_held = false;
#ifdef RESUME_AT_ONCE
	resume();
#endif
	printf("%d: starts at mark %d, has a lease: %d\n",
		   me, MY.mark, MY.is_held || MY.is_pending);
	if
	:: MY.next == 0 -> choose_incarnation()
	:: else
	fi
}

/* The server stops waiting for an answer; its message may still arrive. */
inline give_up()
{
	if
#ifndef NONE_LATE
	:: late.kind == 0 && MY.asked.kind != 0 && MY.asked.kind != GRANTED ->
		copy_message(late, MY.asked)
#endif
	:: true
	fi;
	copy_message(MY.asked, none)
}

/* The first claim after a start gets no answer. */
inline resume_unanswered()
{
	if
#ifdef SET_BACK
	:: MY.is_set_back
	:: !MY.is_set_back -> resume()
#else
	:: resume()
#endif
	fi
}

/* Copies the page of the other server. */
inline copy_page()
{
	MY.holder = YOUR.holder;
	MY.worker = YOUR.worker;
	MY.incarnation = YOUR.incarnation;
	MY.next = 0;
	MY.ends = YOUR.ends;
	MY.fence = YOUR.fence;
#ifdef CHANGE
	MY.is_old = YOUR.is_old;
#endif
	MY.mark = YOUR.mark
}

#ifdef PAST_FENCE
#define LAST	LAST_TICK
#else
#define LAST	MY.fence
#endif

inline raise_mark()
{
	MY.mark = LAST;
	printf("%d: logs mark %d\n", me, MY.mark)
}

inline ask(a_kind)
{
	MY.asked.kind = a_kind;
	MY.asked.from = me;
	MY.asked.worker = MY.worker;
	MY.asked.incarnation = MY.incarnation;
#ifndef RELEASE_BOTH
	MY.asked.next = (a_kind == CLAIM -> MY.next : 0)
#else
	MY.asked.next = MY.next
#endif
}

/* The registry's answer is that the lease is over, or another's. */
inline accept_refusal()
{
	printf("%d: is refused, the lease is over\n", me);
#ifdef LIAR
	assert(has_posed || MY.ends == 0);
#endif
	MY.ends = 0;
	MY.is_held = false;
	MY.is_pending = false;
#ifdef SET_BACK
	MY.is_set_back = false;
#endif
	copy_message(MY.asked, none)
}

/* Stores a grant in the page and in memory. */
inline accept_grant()
{
	if
	:: (!(MY.is_held || MY.is_pending) || MY.ends == 0) &&
		MY.asked.worker == 0 ->
#ifdef BEGINS_BY
		assert(MY.asked.begins <= MY.asked.begins_by);
#endif
#ifndef NO_FENCE
		MY.stamp = MAX(MAX(MY.stamp, MY.mark), MY.asked.begins);
#ifndef FENCE_IN_MEMORY
		MY.mark = MY.stamp
#endif
#endif
	:: else
	fi;
	MY.holder = me;
	MY.worker = MY.asked.worker;
	MY.incarnation = MY.asked.next;
	MY.fence = MY.asked.fence;
#ifdef ANSWER_TIME
	MY.asked.ends = DURATION;
#endif
	MY.ends = MY.asked.ends;
	MY.is_held = MY.ends > 0;
	MY.is_pending = false;
#ifdef SET_BACK
	MY.is_set_back = false;
#endif
	copy_message(MY.asked, none);
	choose_incarnation();
	printf("%d: has a lease to fence %d\n", me, MY.fence)
}

proctype one_server(byte me)
{
	byte i;

end:
	do
	:: atomic {
		if

#ifndef NO_STOPS
		/* the server stops, and starts with its own page or with a copy */
		:: give_up();
			if
			:: printf("%d: is killed\n", me)
			:: me == 1 ->
				printf("1: becomes a copy of 0\n");
				SET(copy_has_issued, is_issued);
				copy_page()
#ifdef SET_BACK
			:: me == 0 && YOUR.holder == me ->
				printf("0: is set back to what 1 has\n");
				is_issued = is_issued && (issued_by != me || copy_has_issued);
				copy_page();
				if
#ifdef ANY_TIMELINE
				:: true
#else
				:: MY.ends = 0	/* another timeline */
#endif
				:: MY.is_set_back = true
				fi
#endif
			fi;
			start()
#endif

		:: MY.worker == 0 && MY.stamp <= tick && tick < MY.mark ->
			printf("%d: issues %d\n", me, tick);
			assert(!is_issued);
			is_issued = true;
			SET(issued_by, me);
			MY.stamp = MY.mark
		:: MY.is_held && MY.ends > 0 && MY.worker == 0 && MY.mark < LAST ->
			raise_mark()

		/* the lease worker claims or renews; another layout is refused */
		:: MY.asked.kind == 0 && now < LAST_NOW && !IS_OLD ->
			ask(CLAIM);
			MY.asked.ends = DURATION;
			MY.asked.is_held = (MY.is_held || MY.is_pending) && MY.ends > 0;
			MY.asked.fence = (MY.asked.is_held -> MY.fence : 0);
#ifdef BEGINS_BY
			MY.asked.begins_by = (MY.asked.is_held -> LAST_TICK : 0);
			do
			:: MY.asked.begins_by < LAST_TICK -> MY.asked.begins_by++
			:: break
			od;
#endif
			printf("%d: claims, holds a lease: %d\n", me, MY.asked.is_held)
		:: MY.asked.kind != 0 -> resume_unanswered(); give_up()
		:: MY.asked.kind == GRANTED && IS_IN_TIME(MY.asked, MY.asked.begins) ->
			accept_grant()
		:: MY.asked.kind == REFUSED -> accept_refusal()

#ifndef NO_STOPS
		/* a clean stop: the mark is frozen, and the lease ends on the page */
		:: MY.asked.kind == 0 && MY.is_held && MY.ends > 0 ->
			printf("%d: releases, mark %d\n", me, MY.mark);
			ask(RELEASE);
			MY.asked.fence = MY.mark;
#ifndef NO_FREEZE
			MY.is_held = false;
#ifndef FREEZE_IN_MEMORY
			MY.ends = 0;
			MY.fence = 0
#endif
#endif
#endif

		:: MY.asked.kind == CLAIM || MY.asked.kind == RELEASE ->
			execute(MY.asked)
		fi;
#ifdef NONE_LATE
		if
		:: MY.asked.kind == CLAIM || MY.asked.kind == RELEASE ->
			if
			:: execute(MY.asked)
			:: resume_unanswered(); copy_message(MY.asked, none)
			fi
		:: else
		fi;
#endif
		tidy() }
	od
}

/*
 * The world.
 */

#define PASSES(time)	time = (time > 0 -> time - 1 : 0)

/* One step of time passes, but not for the server PAUSED. */
inline pass_time(paused)
{
	now++;
	clock++;
	for (i : 0 .. 1) {
		if
		:: i == paused
		:: else ->
#ifndef EXPIRED_AT_START
			PASSES(server[i].ends);
#endif
			PASSES(server[i].asked.ends)
		fi
	}
	i = 0
}

/* Makes the rows of worker ids that were never leased. */
inline make_rows(seen)
{
	for (w : 0 .. ROWS - 1) {
		copy_row(row, no_registry.rows[w]);
		row.holder = NOBODY;
		row.is_seen = seen
	}
	w = 0
}

/*
 * Changes the layout: another row makes the servers' ids.  Claims by the layout
 * before are refused from now on.  A release is not: it may still arrive, of the
 * holder that the row had in the layout before, whose ids were others.
 */
inline change_layout()
{
	printf("the layout is changed\n");
	has_changed = true;
	for (i : 0 .. 1) {
		server[i].is_old = true;
		if
		:: server[i].asked.kind != GRANTED ->
			copy_message(server[i].asked, none)
		:: else
		fi
	}
	i = 0;
	copy_message(late, none);
	make_rows(true);
#ifndef CHANGE_AT_ONCE
	begin_quarantine();
#endif
	if
	:: row.holder = 0;
		row.incarnation = EARLIER;
		row.expires = LAST_TICK;
		late.kind = RELEASE;
		late.from = row.holder;
		late.incarnation = row.incarnation
	:: true
	fi
}

/* Lowers the duration of a lease. */
inline lower_duration()
{
	printf("the duration is lowered\n");
#ifdef FORGET_DURATION
	registry.duration--;
	begin_quarantine()
#else
	begin_quarantine();
	registry.duration--
#endif
}

/*
 * A third server claims with any fence, or releases with any mark, as itself or
 * as the first server.  Its own ids do not count.
 */
inline lie()
{
	if
	:: lies.from = THIRD
	:: lies.from = 0
	fi;
	has_posed = has_posed || lies.from == 0;
	if
	:: lies.worker = 0
#if ROWS > 1
	:: lies.worker = 1
#endif
	fi;
	lies.incarnation = LIARS;
	lies.next = LIARS;
	do
	:: lies.fence < LAST_TICK -> lies.fence++
	:: break
	od;
	if
	:: !has_lied ->
		has_lied = true;
		lies.is_held = true;
		printf("a liar holds fence %d\n", lies.fence);
		claim(lies)
	:: printf("a liar claims\n");
		lies.fence = 0;
		claim(lies)
	:: printf("a liar releases, mark %d\n", lies.fence);
		release(lies)
	fi;
	copy_message(lies, none)
}

/* Fails over to the standby.  No older message reaches the new registry. */
inline fail_over()
{
	printf("failover\n");
	losses++;
	has_replayed = false;
	is_forgetful = saved.fence != row.fence ||
		saved.incarnation != row.incarnation ||
		saved.holder != row.holder || saved.expires != row.expires ||
		saved.began != row.began;
	if
#ifdef DUMP
	:: printf("the registry is made anew\n");
		has_dump = true;
		make_rows(false);
#ifndef PRESENT_DURATION
		registry.duration = DURATION;	/* the longest lease may still run */
#endif
		registry.reopens = 0
#endif
	:: copy_registry(registry, standby);
		if
		:: losses < LOSSES -> has_replayed = true	/* the next has replayed no more */
		:: copy_registry(standby, no_registry)
		fi
	fi;
	for (i : 0 .. 1) {
		if
		:: server[i].asked.kind != GRANTED ->
			copy_message(server[i].asked, none)
		:: else
		fi
	}
	i = 0;
	copy_message(late, none);
	clock = now;
	do
	:: clock < now + SLACK -> clock++
	:: break
	od;
#ifndef UNNOTICED
	begin_quarantine()
#endif
}

/* Restores the rows of a dump, if there are no others. */
inline restore_dump()
{
	printf("the rows of a dump are restored\n");
	has_dump = false;
	for (w : 0 .. ROWS - 1) {
		copy_row(row, saved);
#ifndef DUMP_FENCE
		raise_fence();
#endif
#ifndef DUMP_SEEN
		row.is_seen = false
#endif
	}
	copy_registry(standby, no_registry)
}

#if ROWS > 1
#define IS_EMPTY	(registry.rows[0].holder == NOBODY && registry.rows[1].holder == NOBODY)
#else
#define IS_EMPTY	(registry.rows[0].holder == NOBODY)
#endif

init
{
	byte i;

	atomic {
		server[0].next = 1;
		server[1].next = 2;
		server[1].holder = 1;
		make_rows(true);
		registry.duration = DURATION;
		do
		:: clock < SLACK -> clock++
		:: break
		od;
		do
		:: tick < LAST_TICK - 1 -> tick++
		:: break
		od;
		run one_server(0);
		run one_server(1)
	}

end:
	do
	:: atomic {
		if
		:: now < LAST_NOW ->
			printf("time passes\n");
			pass_time(NOBODY)
#ifdef PAUSE
		:: now < LAST_NOW -> printf("0 is paused\n"); pass_time(0)
		:: now < LAST_NOW -> printf("1 is paused\n"); pass_time(1)
#endif
#ifdef CHANGE
		:: now < LAST_NOW && !has_changed -> change_layout()
#endif
#ifdef LOWERED
		:: now < LAST_NOW && registry.duration > 1 -> lower_duration()
#endif
#ifdef LIAR
		:: now < LAST_NOW -> lie()
#endif
		:: late.kind != 0 && now < LAST_NOW ->
			printf("late:\n");
			execute(late);
			copy_message(late, none)
#ifdef ANY_CLOCK
		:: clock > 0 -> clock = 0
		:: clock < LAST_NOW -> clock = LAST_NOW
#endif
#ifdef LOSSES
		:: now < LAST_NOW && losses < LOSSES && !has_replayed ->
			printf("the standby replays for the last time\n");
			has_replayed = true;
			copy_registry(standby, registry)
		:: now < LAST_NOW && has_replayed -> fail_over()
#ifdef DUMP
		:: now < LAST_NOW && has_dump && IS_EMPTY -> restore_dump()
#endif
#else
		:: now < LAST_NOW && !IN_QUARANTINE -> begin_quarantine()
#endif
		fi;
		tidy() }
	od
}
