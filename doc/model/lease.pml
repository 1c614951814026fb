/*
 * lease.pml
 *	  A model, for Spin, of worker ids that are leased from a registry: of the
 *	  registry's rows, of servers that lease, renew and release, and of all
 *	  that stops a server, delays a message, or moves a clock.  The words are
 *	  DESIGN's.  How one server's mark keeps its ids from coming twice is in
 *	  snowflake.pml.  So here a change of the page is durable at once: what is
 *	  changed and not flushed has no effect but through a later flush.
 *
 * "script/model NO_FENCE" shows how ids come twice without that step.
 *
 * Asserted:
 *	 - no (worker id, tick) is issued twice, by whomever: a client keeps one
 *	   id, whichever it likes, and that id is never issued again;
 *	 - no two servers hold one worker id, each by its own monotonic clock, or
 *	   would if they were started now, if the registry's clock measures
 *	   durations as theirs do.  So a copy never gets what its original holds.
 *	   With ANY_CLOCK, the registry may take any lease for expired at any
 *	   time; then only the first is asserted.
 *
 * In the model there are
 *	 - a registry, which executes each message at once;
 *	 - two servers.  The second one may be a fresh one or, whenever it is down,
 *	   become a copy of the first: a standby, or a server from a backup, which
 *	   is promoted at once or later.  A server that was moved, or booted anew,
 *	   is as a copy whose original does not come back;
 *	 - with SET_BACK, the first server may also be set back, in its own
 *	   directory, to what the copy has of it: rewound to a standby, or
 *	   restored from a backup, that has not heard of its release.  It is on
 *	   another timeline then;
 *	 - in each a page with the lease and its worker id's mark, which become
 *	   durable in one record, whoever logs it; and shared memory, which has
 *	   the newest lease, and the mark that is published;
 *	 - in each a session, which keeps the mark and the worker id that it last
 *	   read, a process that moves the mark, and the lease's worker.  Each may
 *	   rest at any step for as long as it likes, be it slow or suspended;
 *	 - messages and answers that come late, or never.  Who does not wait any
 *	   longer asks again, and what it had asked may yet be executed;
 *	 - wall clocks that are adversaries: a fence may be any tick, ids are
 *	   issued at any tick below the mark, and a mark is any up to the fence;
 *	 - servers that are killed at any step, and clean stops;
 *	 - with FAILOVER, one failover of the registry to a standby which has lost
 *	   any number of the last transactions.  The registry's wall clock, the
 *	   standby's too, is then in order, for what they have lost nobody can
 *	   tell but by time; those of servers are adversaries still.
 *
 * Bounds: LAST_MARK ticks of one id, LAST_INCARNATION grants and renewals
 * of a worker id (and as many after a failover), one message at a time that
 * comes after its sender has given it up (with NONE_LATE, none does).  A lease
 * lasts DURATION steps of time; steps are not bounded, but with FAILOVER,
 * where a step is a tick.
 *
 * Taken for granted: no two directories that exist at once are the same
 * holder, and none is set back on the same timeline; ids of its own that a
 * server loses when it is set back may come again; the old registry grants
 * nothing once its standby is promoted, and what a registry has committed only
 * a failover takes; no lease lasts longer than the standby thinks one may.
 *
 * Macros, and what each takes away:
 *	 NO_FENCE			who is granted a worker id does not begin at the fence
 *						of the holder before
 *	 FENCE_IN_MEMORY	or begins there, but the record of the lease has not
 *						the mark
 *	 PAST_FENCE			the mark may move past the fence
 *	 FENCE_BEFORE_GRANT	it moves up to a fence that is not granted yet
 *	 ANSWER_TIME		a lease counts from the answer
 *	 ANY_HOLDER			a start resumes a lease whoever the holder is
 *	 EXPIRED_AT_START	or without looking when it ends
 *	 ANY_TIMELINE		or on another timeline than it was logged on; SET_BACK
 *	 NO_FREEZE			the release is sent before the mark is frozen
 *	 FREEZE_IN_MEMORY	that the lease is released is not on the page
 *	 ANYBODY_RENEWS		a renewal is granted whoever asks, of whatever
 *						incarnation
 *	 LEASE_FIRST		a new lease is published before generators move on
 *	 MOVE_MEANWHILE		the mark may move between these two
 *	 LEASE_BEFORE_LOCK	who moves the mark has read the lease before it has
 *						locked the page, and puts the lease before over the
 *						newest one
 *	 NO_GENERATION		a mark that was put on the page under the lease before
 *						is published under the next one
 *	 READ_TWICE			a session reads the worker id and then the mark
 *	 COPY_CONTINUES		a copy or moved server begins at its own mark, if
 *						nobody has leased the worker id since
 *	 OTHER_ID_CONTINUES	a server does, for another worker id than it had
 *	 ANY_INCARNATION	or whatever happened since
 * and of a failover:
 *	 NO_GRACE			the registry grants at once
 *	 HOLDS_ALWAYS		or, within the grace, those that no longer hold
 *	 NO_FLOOR			new holders begin at the high water that is known
 *	 ANY_FENCE			fences may be any, so nothing is beyond all of them
 *	 NO_LEAP			incarnations go on from the one that is known
 *	 ADOPT_LATE			a server adopts what is granted when it is over
 */

#ifndef LAST_MARK
#define LAST_MARK			2
#endif
#ifndef LAST_INCARNATION
#define LAST_INCARNATION	2
#endif
#ifdef ANY_CLOCK
#define DURATION			0
#endif
#ifndef DURATION
#define DURATION			1
#endif
#ifndef WORKER_IDS
#define WORKER_IDS			1
#endif

#define SERVERS		2
#define NOWHERE		SERVERS		/* the holder of nobody */

/* A failover leaps over all incarnations that may be lost, and one. */
#ifdef FAILOVER
#define LEAP		(LAST_INCARNATION + 2)
#else
#define LEAP		0
#endif
#if defined(FAILOVER) && !defined(NO_LEAP)
#define LAST_OF_ALL \
	(is_failed_over -> LEAP + LAST_INCARNATION : LAST_INCARNATION)
#else
#define LAST_OF_ALL	LAST_INCARNATION
#endif

#define MAX(a, b)	((a) > (b) -> (a) : (b))

mtype = { REST, RENEW, CLAIM, RELEASE, RENEWED, GRANTED, MOVED, TAKEN,
	FROZEN };

/* The registry. */
typedef Row
{
	byte holder;
	byte incarnation;			/* 0: never leased */
	byte high_water;
	byte lasts;					/* steps of time until it expires */
	bool is_released
};
Row row[WORKER_IDS];
#ifdef FAILOVER
Row standby[WORKER_IDS];
bool is_failed_over;
byte grace;						/* steps of time */
byte now;						/* the registry's wall clock */
byte floor;						/* beyond all fences that may be lost */
#else
#define grace	0
#define floor	0
#endif

/* What is asked; the holder and the lease before are those of the server. */
typedef Message
{
	mtype kind;					/* 0: none */
	byte from;
	byte worker_id;
	byte fence;					/* of a release: the mark */
	bool holds;
	byte holder;
	byte of_worker_id;			/* the lease before */
	byte of_incarnation
};
Message late;					/* its sender does not wait for it */

/* A lease, on the page or in shared memory. */
typedef Lease
{
	byte holder;
	byte worker_id;
	byte incarnation;
	byte ends;					/* steps of time */
	byte fence;
	bool is_released
};

typedef Server
{
	/* the page */
	Lease logged;
	byte entry;					/* the mark of its worker id */

	/* shared memory */
	Lease lease;
	bool has_worker_id;
	byte mark;					/* published */
	byte stamp;					/* the next tick that it may issue */

	/* the session */
	byte limit;					/* 0: none, or nothing to issue below it */
	byte worker_id;				/* that it has read with the limit */
	bool is_reading;			/* READ_TWICE */

	/* who moves the mark */
	byte flushed;				/* the mark that it is to publish; 0: none */
#ifdef LEASE_BEFORE_LOCK
	Lease copy;
	bool has_copy;
	bool is_overtaken;
#endif

	/* the lease's worker, and what it has asked and been answered */
	mtype at;
	byte wanted;
	byte asked_fence;
	bool asked_holds;
	byte asked_ends;
	byte granted_incarnation;
	byte begins_at;
	bool continues
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

/* Of the message that is executed; set and used within one step. */
bool is_granted;
bool may_continue;
byte answer_incarnation;
byte answer_begins;

/* A server holds a lease, or would if it were started. */
#ifdef ANY_CLOCK
#define IS_VALID(a_lease)	true
#else
#define IS_VALID(a_lease)	(a_lease.ends > 0)
#endif
#define HOLDS(s, a_lease) \
	(a_lease.holder == s && IS_VALID(a_lease) && !a_lease.is_released)
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
	to.ends = from.ends;
	to.fence = from.fence;
	to.is_released = from.is_released
}

inline choose(number, first, last)
{
	number = first;
	do
	:: number < last -> number++
	:: break
	od
}

/* As little as possible in the state where it makes no difference. */
inline tidy_limit()
{
	if
	:: MY.limit <= MY.stamp && !MY.is_reading ->
		MY.limit = 0;
		MY.worker_id = 0
	:: else
	fi
}

inline tidy_worker()
{
	MY.at = REST;
	MY.wanted = 0;
	MY.asked_fence = 0;
	MY.asked_holds = false;
	MY.asked_ends = 0;
	MY.granted_incarnation = 0;
	MY.begins_at = 0;
	MY.continues = false
}

inline tidy_late()
{
	late.kind = 0;
	late.from = 0;
	late.worker_id = 0;
	late.fence = 0;
	late.holds = false;
	late.holder = 0;
	late.of_worker_id = 0;
	late.of_incarnation = 0
}

/*
 * The registry.
 */

#ifdef ANY_CLOCK
#define EXPIRED		true
#else
#define EXPIRED		(row[which].is_released || row[which].lasts == 0)
#endif

#if defined(FAILOVER) && !defined(ANY_FENCE)
#define FENCE_IS_FINE(fence)	((fence) <= now + DURATION)
#else
#define FENCE_IS_FINE(fence)	true
#endif

#ifdef FAILOVER
#ifdef HOLDS_ALWAYS
#define STILL_HOLDS(holds)	true
#else
#define STILL_HOLDS(holds)	(holds)
#endif
#else
#define STILL_HOLDS(holds)	true
#endif

/* Has nobody leased it since the failover? */
#ifdef NO_LEAP
#define IS_LOST(incarnation_of)	((incarnation_of) > row[which].incarnation)
#else
#define IS_LOST(incarnation_of)	(row[which].incarnation == LEAP)
#endif

inline grant(which, its_fence)
{
	is_granted = true;
	answer_begins = MAX(row[which].high_water, floor);
	row[which].high_water = MAX(row[which].high_water, its_fence);
	row[which].lasts = DURATION;
	row[which].is_released = false
}

#ifdef ANYBODY_RENEWS
#define IS_HOLDER		(true)
#define IS_NEWEST		(true)
#else
#define IS_HOLDER		(row[which].holder == who)
#define IS_NEWEST		(row[which].incarnation == known)
#endif

inline renew(who, which, known, its_fence)
{
	if
	:: FENCE_IS_FINE(its_fence) && row[which].incarnation < (LAST_OF_ALL) &&
		IS_HOLDER && IS_NEWEST && !row[which].is_released ->
		grant(which, its_fence);
		row[which].incarnation++;
		answer_incarnation = row[which].incarnation
	:: else
	fi
}

inline release(who, which, known, at_mark)
{
	if
	:: row[which].holder == who && row[which].incarnation == known &&
		!row[which].is_released ->
		printf("registry: released by %d, high water %d\n", who, at_mark);
		row[which].is_released = true;
		row[which].lasts = 0;
		row[which].high_water = at_mark
	:: else
	fi
}

/* Nobody has leased it since: at most one answer to this holder was lost. */
#ifdef ANY_INCARNATION
#define NOBODY_SINCE	true
#else
#define NOBODY_SINCE	(known + 1 >= row[which].incarnation)
#endif
#ifdef OTHER_ID_CONTINUES
#define SAME_ID			true
#else
#define SAME_ID			(id_before == which)
#endif

inline claim(who, which, holder_before, id_before, known, its_fence, still)
{
	if
	:: FENCE_IS_FINE(its_fence) && row[which].incarnation < (LAST_OF_ALL) &&
		known < (LAST_OF_ALL) ->
		if
		:: holder_before == who && SAME_ID && row[which].holder == who &&
			(grace == 0 || STILL_HOLDS(still)) ->
			may_continue = NOBODY_SINCE || grace > 0;
			grant(which, its_fence)
#ifdef FAILOVER
		:: holder_before == who && SAME_ID && row[which].holder != who &&
			grace > 0 && STILL_HOLDS(still) && IS_LOST(known) ->
			may_continue = true;
			grant(which, its_fence)
#endif
		:: else ->
			if
			:: grace == 0 && EXPIRED ->
#ifdef COPY_CONTINUES
				may_continue = row[which].holder == holder_before && id_before == which &&
					row[which].incarnation == known && known > 0;
#endif
				grant(which, its_fence)
			:: else
			fi
		fi;
		if
		:: is_granted ->
			row[which].holder = who;
			row[which].incarnation =
				1 + (id_before == which -> MAX(row[which].incarnation, known) :
					 row[which].incarnation);
			answer_incarnation = row[which].incarnation
		:: else
		fi
	:: else
	fi
}

inline tidy_answer()
{
	is_granted = false;
	may_continue = false;
	answer_incarnation = 0;
	answer_begins = 0
}

inline execute()
{
	if
	:: MY.at == RENEW ->
		renew(me, MY.lease.worker_id, MY.lease.incarnation, MY.asked_fence);
	:: MY.at == CLAIM ->
		claim(me, MY.wanted, MY.lease.holder, MY.lease.worker_id,
			  MY.lease.incarnation, MY.asked_fence, MY.asked_holds)
	:: MY.at == RELEASE ->
		release(me, MY.lease.worker_id, MY.lease.incarnation, MY.asked_fence)
	fi;
	if
	:: is_granted ->
		printf("registry: %e %d to %d, incarnation %d, fence %d",
			   MY.at, MY.wanted, me, answer_incarnation, MY.asked_fence);
		printf(", begins at %d, continues %d\n", answer_begins, may_continue);
		MY.at = (MY.at == RENEW -> RENEWED : GRANTED);
		MY.granted_incarnation = answer_incarnation;
		MY.begins_at = (MY.at == GRANTED -> answer_begins : 0);
		MY.continues = may_continue;
		MY.asked_holds = false
	:: else -> tidy_worker()
	fi;
	tidy_answer()
}

inline execute_late()
{
	if
	:: late.kind == RENEW ->
		renew(late.from, late.worker_id, late.of_incarnation, late.fence)
	:: late.kind == CLAIM ->
		claim(late.from, late.worker_id, late.holder, late.of_worker_id,
			  late.of_incarnation, late.fence, late.holds)
	:: late.kind == RELEASE ->
		release(late.from, late.worker_id, late.of_incarnation, late.fence)
	fi;
	printf("registry: late %e of %d: %d, incarnation %d\n",
		   late.kind, late.from, is_granted, answer_incarnation);
	tidy_late();
	tidy_answer()
}

/*
 * The server.
 */

/* The generation of the lease changes: nothing of the one before goes on. */
inline change_generation()
{
#ifndef NO_GENERATION
	MY.flushed = 0;
#endif
#ifdef LEASE_BEFORE_LOCK
	MY.is_overtaken = MY.has_copy
#else
	skip
#endif
}

/*
 * Logs the page with the lease as it is in shared memory, and the mark where
 * it is, and flushes.
 */
inline save()
{
#ifdef FENCE_IN_MEMORY
	skip;
#else
	if
	:: MY.logged.worker_id == MY.lease.worker_id ->
		MY.entry = MAX(MY.entry, MY.mark)
	:: else -> MY.entry = MY.mark
	fi;
#endif
	copy_lease(MY.logged, MY.lease);
	printf("%d: logs its lease on %d, mark %d\n",
		   me, MY.lease.worker_id, MY.entry);
	check_holders()
}

#ifdef SET_BACK
#define MAY_COME_BACK	(me == 1)
#else
#define MAY_COME_BACK	false
#endif

/* Forgets the end and the fence of a lease that is not resumed. */
inline tidy_lease()
{
	if
	:: !MY.has_worker_id && !MAY_COME_BACK ->
		MY.logged.ends = 0;
		MY.logged.fence = 0;
		MY.lease.ends = 0;
		MY.lease.fence = 0
	:: else
	fi
}

/* Begins with what is on the page. */
inline start()
{
#ifdef ANY_HOLDER
	if
	:: MY.logged.ends > 0 -> MY.logged.holder = me
	:: else
	fi;
#endif
#ifdef EXPIRED_AT_START
	MY.logged.ends = DURATION;
#endif
	copy_lease(MY.lease, MY.logged);
	MY.mark = MY.entry;
	MY.stamp = MY.entry;
	MY.has_worker_id = HOLDS(me, MY.lease);
	tidy_lease();
	printf("%d: starts at mark %d, has a worker id: %d\n",
		   me, MY.mark, MY.has_worker_id);
	check_holders()
}

#ifdef NONE_LATE
#define MAY_BE_LATE	false
#else
#define MAY_BE_LATE	true
#endif

/* Does not wait any longer; what it has asked may still come. */
inline give_up()
{
	if
	:: MAY_BE_LATE && late.kind == 0 &&
		(MY.at == RENEW || MY.at == CLAIM || MY.at == RELEASE) ->
		late.kind = MY.at;
		late.from = me;
		late.worker_id = (MY.at == CLAIM -> MY.wanted : MY.lease.worker_id);
		late.fence = MY.asked_fence;
		late.of_incarnation = MY.lease.incarnation;
		if
		:: MY.at == CLAIM ->
			late.holds = MY.asked_holds;
			late.holder = MY.lease.holder;
			late.of_worker_id = MY.lease.worker_id
		:: else
		fi
	:: true
	fi;
	tidy_worker()
}

inline stop()
{
	give_up();
	change_generation();
	MY.flushed = 0;
#ifdef LEASE_BEFORE_LOCK
	MY.has_copy = false;
	MY.is_overtaken = false;
#endif
	MY.has_worker_id = false;
	MY.stamp = 0;
	MY.limit = 0;
	MY.worker_id = 0;
	MY.is_reading = false
}

inline issue()
{
	choose(tick, MY.stamp, MY.limit - 1);
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
#define LAST_OF(a_lease)	LAST_MARK
#else
#define LAST_OF(a_lease)	a_lease.fence
#endif

/* Moves the mark under a lease: on the page; publishing is another step. */
inline log_mark(a_lease)
{
	choose(tick, MY.mark + 1, LAST_OF(a_lease));
	if
	:: MY.logged.worker_id == a_lease.worker_id && MY.entry >= tick ->
		/* it may be of an earlier lease that let it go further */
		tick = (MY.entry < LAST_OF(a_lease) -> MY.entry : LAST_OF(a_lease))
	:: else ->
		MY.entry = tick;
		copy_lease(MY.logged, a_lease)
	fi;
	printf("%d: has flushed mark %d of worker id %d\n",
		   me, tick, MY.logged.worker_id);
	MY.flushed = tick;
	tick = 0;
	check_holders()
}

/* The generators move on. */
inline move_generators()
{
#ifndef NO_FENCE
	MY.stamp = MAX(MY.stamp, MY.begins_at);
#endif
	MY.stamp = MAX(MY.stamp, MY.mark);
	tidy_limit()
}

/* Takes what has been granted, in shared memory. */
inline take()
{
	MY.lease.holder = me;
	MY.lease.worker_id = MY.wanted;
	MY.lease.incarnation = MY.granted_incarnation;
	MY.lease.fence = MY.asked_fence;
	MY.lease.ends = MY.asked_ends;
	MY.lease.is_released = false;
	MY.has_worker_id = true;
	if
	:: !MY.continues ->
		change_generation();
#ifndef NO_FENCE
		MY.mark = MAX(MY.mark, MY.begins_at)
#endif
	:: else
	fi;
	printf("%d: publishes worker id %d, mark %d, fence %d\n",
		   me, MY.lease.worker_id, MY.mark, MY.lease.fence);
	check_holders()
}

#ifdef MOVE_MEANWHILE
#define MAY_MOVE	(MY.has_worker_id && !MY.lease.is_released)
#else
#define MAY_MOVE	(MY.has_worker_id && !MY.lease.is_released && MY.at != MOVED)
#endif

#if defined(ADOPT_LATE) || defined(ANSWER_TIME) || defined(ANY_CLOCK)
#define IS_OVER		false
#else
#define IS_OVER		(MY.asked_ends == 0)
#endif

#ifdef ANSWER_TIME
#define ANSWERED	MY.asked_ends = DURATION
#else
#define ANSWERED	skip
#endif

/* Takes over what is durable of the other server. */
inline copy_page()
{
	copy_lease(MY.logged, YOUR.logged);
	MY.entry = YOUR.entry
}

proctype one_server(byte me)
{
	byte tick;

end:
	do
	:: atomic { true ->
		printf("%d: is killed\n", me);
		stop();
		start() }
	:: atomic { me == 1 ->
		printf("1: becomes a copy of 0\n");
		stop();
		copy_page();
#ifdef SET_BACK
		copy_has_kept = kept != 0;
#endif
		start() }
#ifdef SET_BACK
	:: atomic { me == 0 && YOUR.logged.holder == me ->
		printf("0: is set back to what 1 has\n");
		stop();
		copy_page();
#ifndef ANY_TIMELINE
		MY.logged.is_released = true;	/* it is not resumed */
#endif
		kept = (kept_of == me && !copy_has_kept -> 0 : kept);
		start() }
#endif

	/* the session */
#ifndef READ_TWICE
	:: atomic { MY.has_worker_id && MY.mark > MY.stamp &&
			(MY.limit != MY.mark || MY.worker_id != MY.lease.worker_id) ->
		MY.limit = MY.mark;
		MY.worker_id = MY.lease.worker_id }
#else
	:: atomic { MY.has_worker_id && !MY.is_reading ->
		MY.limit = 0;
		MY.worker_id = MY.lease.worker_id;
		MY.is_reading = true }
	:: atomic { MY.is_reading ->
		MY.limit = MY.mark;
		MY.is_reading = false;
		tidy_limit() }
#endif
	:: atomic { MY.limit > MY.stamp && !MY.is_reading -> issue() }

	/* who moves the mark: it was to be before the lease's end, once */
#ifndef LEASE_BEFORE_LOCK
	:: atomic { MAY_MOVE && MY.flushed == 0 && MY.mark < LAST_OF(MY.lease) ->
		log_mark(MY.lease) }
#else
	:: atomic { MAY_MOVE && MY.flushed == 0 && !MY.has_copy ->
		copy_lease(MY.copy, MY.lease);
		MY.has_copy = true }
	:: atomic { MY.has_copy && MY.mark < LAST_OF(MY.copy) ->
		log_mark(MY.copy);
		MY.flushed = (MY.is_overtaken -> 0 : MY.flushed);
		MY.has_copy = false;
		MY.is_overtaken = false }
#endif
	:: atomic { MY.flushed > 0 ->
		MY.mark = MAX(MY.mark, MY.flushed);
		MY.flushed = 0;
		printf("%d: publishes mark %d\n", me, MY.mark) }

	/* the lease's worker asks */
	:: atomic { MY.at == REST && MY.has_worker_id && !MY.lease.is_released &&
			IS_VALID(MY.lease) ->
		MY.at = RENEW;
		MY.wanted = MY.lease.worker_id;
		MY.asked_ends = DURATION;
		choose(MY.asked_fence, MY.lease.fence, LAST_MARK);
#ifdef FENCE_BEFORE_GRANT
		MY.lease.fence = MY.asked_fence;
#endif
		printf("%d: asks to renew, fence %d\n", me, MY.asked_fence) }
	:: atomic { MY.at == REST &&
			!(MY.has_worker_id && MY.lease.is_released) ->
		MY.at = CLAIM;
		MY.asked_ends = DURATION;
#ifdef FAILOVER
		MY.asked_holds = MY.has_worker_id && MY.lease.ends > 0;
#endif
		choose(MY.wanted, 0, WORKER_IDS - 1);
		choose(MY.asked_fence, 0, LAST_MARK);
		printf("%d: claims %d, fence %d, holds: %d\n",
			   me, MY.wanted, MY.asked_fence, MY.asked_holds) }
	:: atomic { MY.at == RENEW || MY.at == CLAIM || MY.at == RELEASE ->
		execute() }
	:: atomic { MY.at != REST && MY.at != MOVED && MY.at != TAKEN &&
			MY.at != FROZEN ->
		give_up() }

	/* and is answered */
	:: atomic { MY.at == RENEWED && !IS_OVER ->
		ANSWERED;
		MY.continues = true;
		take();
		tidy_worker();
		MY.at = TAKEN }
	:: atomic { MY.at == GRANTED && !IS_OVER ->
		ANSWERED;
#if defined(LEASE_FIRST)
		take();
		MY.at = (MY.continues -> TAKEN : MOVED)
#elif defined(MOVE_MEANWHILE)
		if
		:: MY.continues ->
			take();
			MY.at = TAKEN
		:: else ->
			move_generators();
			MY.at = MOVED
		fi
#else
		if
		:: MY.continues
		:: else -> move_generators()
		fi;
		take();
		tidy_worker();
		MY.at = TAKEN
#endif
		}
#if defined(LEASE_FIRST)
	:: atomic { MY.at == MOVED ->
		move_generators();
		MY.at = TAKEN }
#elif defined(MOVE_MEANWHILE)
	:: atomic { MY.at == MOVED ->
		take();
		MY.at = TAKEN }
#endif
	:: d_step { MY.at == TAKEN ->
		save();
		tidy_worker() }

	/* a clean stop */
#ifndef NO_FREEZE
	:: atomic { MY.has_worker_id && !MY.lease.is_released && MY.at != MOVED ->
		give_up();
		printf("%d: freezes mark %d\n", me, MY.mark);
		change_generation();
		MY.lease.is_released = true;
		MY.lease.ends = 0;
		MY.lease.fence = 0;
		MY.stamp = MAX(MY.stamp, MY.mark);
		tidy_limit() }
	:: atomic { MY.at == REST && MY.has_worker_id && MY.lease.is_released ->
		MY.at = FROZEN }
#else
	:: atomic { MY.at == REST && MY.has_worker_id ->
		MY.at = FROZEN }
#endif
	:: atomic { MY.at == FROZEN ->
#ifndef FREEZE_IN_MEMORY
		save();
#endif
		MY.at = RELEASE;
		MY.asked_fence = MY.mark }
	od
}

/*
 * The world.
 */

#define PASSES(time)	time = (time > 0 -> time - 1 : 0)

inline copy_row(to, from)
{
	to.holder = from.holder;
	to.incarnation = from.incarnation;
	to.high_water = from.high_water;
	to.lasts = from.lasts;
	to.is_released = from.is_released
}

init
{
	byte i;

	atomic {
		i = 0;
		do
		:: i < SERVERS ->
			server[i].lease.holder = NOWHERE;
			server[i].logged.holder = NOWHERE;
			server[i].at = REST;
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < WORKER_IDS ->
			row[i].holder = NOWHERE;
#ifdef FAILOVER
			standby[i].holder = NOWHERE;
#endif
			i++
		:: else -> break
		od;
		i = 0;
		run one_server(0);
		run one_server(1)
	}

end:
	do
#ifndef ANY_CLOCK
	:: d_step {
#ifdef FAILOVER
		now < LAST_MARK - DURATION ->
		now++;
		PASSES(grace);
#else
		true ->
#endif
		printf("time passes\n");
		do
		:: i < SERVERS ->
			PASSES(server[i].lease.ends);
			PASSES(server[i].logged.ends);
			PASSES(server[i].asked_ends);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < WORKER_IDS ->
			PASSES(row[i].lasts);
#ifdef FAILOVER
			PASSES(standby[i].lasts);
#endif
			i++
		:: else -> break
		od;
		i = 0 }
#endif

	:: atomic { late.kind != 0 -> execute_late() }

#ifdef FAILOVER
	:: d_step { !is_failed_over ->
		printf("the standby replays\n");
		do
		:: i < WORKER_IDS -> copy_row(standby[i], row[i]); i++
		:: else -> break
		od;
		i = 0 }

	:: d_step { !is_failed_over ->
		printf("failover\n");
		is_failed_over = true;
#ifndef NO_GRACE
		grace = DURATION;
#endif
#ifndef NO_FLOOR
		floor = now + DURATION;
#endif
		do
		:: i < WORKER_IDS ->
			copy_row(row[i], standby[i]);
			standby[i].holder = 0;
			standby[i].incarnation = 0;
			standby[i].high_water = 0;
			standby[i].lasts = 0;
			standby[i].is_released = false;
#ifndef NO_LEAP
			row[i].incarnation = LEAP;
#endif
			i++
		:: else -> break
		od;
		i = 0 }
#endif
	od
}
