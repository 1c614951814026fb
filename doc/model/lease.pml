/*
 * lease.pml
 *	  A model, for Spin, of worker ids that are leased from a registry: of the
 *	  registry's rows, of servers that lease, renew, and release, and of all
 *	  that stops a server, delays a message, or moves a clock.  How one
 *	  server's mark keeps its ids from coming twice is in snowflake.pml: here,
 *	  its file and its memory say the same, and a write that was overtaken
 *	  moves nothing.
 *
 * Asserted:
 *	 - no (worker id, tick) is issued twice, by whomever: a client keeps one
 *	   id, whichever it likes, and that one is never issued again;
 *	 - no two servers hold one worker id, each by its own monotonic clock, or
 *	   would if they were started now, if the registry's clock measures
 *	   durations as theirs do.  So a copy never gets what its original holds.
 *	   With ANY_CLOCK, the registry may take any lease for expired at any
 *	   time; then only the first is asserted.
 *
 * In the model there are
 *	 - a registry, which executes each message at once;
 *	 - two servers: the second one may be a fresh one or, whenever it is down,
 *	   become a copy of the first.  A server that was moved, or booted anew,
 *	   is as a copy whose original does not come back;
 *	 - in each a backend, which keeps the mark and the worker id that it last
 *	   saw, a mover of the mark, and a worker.  Each may rest at any step for
 *	   as long as it likes, be it slow or suspended;
 *	 - messages and answers that come late, or never.  Who does not wait any
 *	   longer asks again, and what it had asked may yet be executed;
 *	 - wall clocks that are adversaries: a promise may be any tick, ids are
 *	   issued at any tick below the mark, and a mark is any up to the promise;
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
 * Taken for granted: no two directories that exist at once have the same
 * place, and none is set back to what it was; the old registry grants nothing
 * once its standby is promoted, and what a registry has committed only a
 * failover takes; no lease lasts longer than the standby thinks one may.
 *
 * Macros, and what each takes away:
 *	 NO_FENCE			who is granted a worker id begins where it likes
 *	 FENCE_IN_MEMORY	or after those before it, but its mark does not say so
 *	 NO_PROMISE			the mark may move beyond the promise
 *	 PROMISE_BEFORE_GRANT	it moves up to one that is not granted yet
 *	 ANSWER_TIME		a lease counts from the answer
 *	 NO_PLACE			a start uses a lease without looking at the place
 *	 EXPIRED_AT_START	or without looking when it ends
 *	 NO_FREEZE			the release is sent before the mark is frozen
 *	 FREEZE_IN_MEMORY	that it is released is not in the file
 *	 NO_HOLDER			a renewal is granted whoever asks, of whatever
 *							incarnation
 *	 PUBLISH_FIRST		the worker id is published before generators move on
 *	 MOVE_MEANWHILE		the mark may move between these two
 *	 OVERTAKEN_MOVES	who was about to move the mark for the lease before
 *						does so for the next
 *	 READ_TWICE			a backend reads the worker id and then the mark
 *	 COPY_CONTINUES		a copy or moved server begins at its own mark, if
 *						nobody has leased the worker id since
 *	 OTHER_ID_CONTINUES	a server does, for another worker id than it had
 *	 ANY_INCARNATION	or whatever happened since
 * and of a failover:
 *	 NO_GRACE			the registry grants at once
 *	 HOLDS_ALWAYS		or, within the grace, those that no longer hold
 *	 NO_FLOOR			new holders begin at the high water that is known
 *	 ANY_PROMISE		promises may be any, so nothing is beyond all of them
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
#define NOWHERE		SERVERS		/* the place of nobody */

/* A failover leaps over all incarnations that may be lost, and one. */
#ifdef FAILOVER
#define LEAP		(LAST_INCARNATION + 2)
#else
#define LEAP		0
#endif
#if defined(FAILOVER) && !defined(NO_LEAP)
#define LAST_OF_ALL	(is_failed_over -> LEAP + LAST_INCARNATION : LAST_INCARNATION)
#else
#define LAST_OF_ALL	LAST_INCARNATION
#endif

#define MAX(a, b)	((a) > (b) -> (a) : (b))

mtype = { REST, RENEW, CLAIM, RELEASE, RENEWED, GRANTED, MOVED };

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
byte floor;						/* beyond all promises that may be lost */
#else
#define grace	0
#define floor	0
#endif

/* What is asked; the place and the lease before are those of the server. */
typedef Message
{
	mtype kind;					/* 0: none */
	byte from;
	byte worker_id;
	byte promise;				/* of a release: the mark */
	bool holds;
	byte place;
	byte of_worker_id;			/* the lease before */
	byte of_incarnation
};
Message late;					/* its sender does not wait for it */

typedef Server
{
	/* the state file, and shared memory */
	byte place;
	byte worker_id;
	byte incarnation;
	byte ends;					/* steps of time */
	byte promise;
	byte mark;
	bool is_released;

	/* shared memory only */
	bool has_worker_id;			/* published */
	byte word;					/* the next tick that it may issue */

	/* the backend, and who moves the mark */
	byte cached_mark;			/* 0: none, or nothing to issue below it */
	byte cached_worker_id;
	bool is_reading;			/* READ_TWICE */
#ifdef OVERTAKEN_MOVES
	byte next_mark;				/* 0: none */
#endif

	/* the worker, and what it has asked and been answered */
	mtype at;
	byte wanted;
	byte asked_promise;
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

/* Of the message that is executed; set and used within one step. */
bool is_granted;
bool may_continue;
byte answer_incarnation;
byte answer_begins;

/* The server holds its worker id, or would if it were started. */
#ifdef ANY_CLOCK
#define IS_VALID(s)	true
#else
#define IS_VALID(s)	(server[s].ends > 0)
#endif
#define HOLDS(s)	(server[s].place == s && IS_VALID(s) && \
					 !server[s].is_released)
#define HOLD_ONE	(HOLDS(0) && HOLDS(1) && \
					 server[0].worker_id == server[1].worker_id)

inline check_holders()
{
#ifndef ANY_CLOCK
	assert(!HOLD_ONE)
#else
	skip
#endif
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
inline tidy_cache()
{
	if
	:: MY.cached_mark <= MY.word && !MY.is_reading ->
		MY.cached_mark = 0;
		MY.cached_worker_id = 0
	:: else
	fi
}

inline tidy_worker()
{
	MY.at = REST;
	MY.wanted = 0;
	MY.asked_promise = 0;
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
	late.promise = 0;
	late.holds = false;
	late.place = 0;
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

#if defined(FAILOVER) && !defined(ANY_PROMISE)
#define PROMISE_IS_FINE(promise)	((promise) <= now + DURATION)
#else
#define PROMISE_IS_FINE(promise)	true
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

inline grant(which, pledge)
{
	is_granted = true;
	answer_begins = MAX(row[which].high_water, floor);
	row[which].high_water = MAX(row[which].high_water, pledge);
	row[which].lasts = DURATION;
	row[which].is_released = false
}

#ifdef NO_HOLDER
#define IS_HOLDER		(true)
#define IS_NEWEST		(true)
#else
#define IS_HOLDER		(row[which].holder == who)
#define IS_NEWEST		(row[which].incarnation == known)
#endif

inline renew(who, which, known, pledge)
{
	if
	:: PROMISE_IS_FINE(pledge) && row[which].incarnation < (LAST_OF_ALL) &&
		IS_HOLDER && IS_NEWEST && !row[which].is_released ->
		grant(which, pledge);
		row[which].incarnation++;
		answer_incarnation = row[which].incarnation
	:: else
	fi
}

inline release(who, which, known, at_mark)
{
	if
	:: row[which].holder == who && row[which].incarnation == known && !row[which].is_released ->
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

inline claim(who, which, place_of, id_before, known, pledge, still)
{
	if
	:: PROMISE_IS_FINE(pledge) && row[which].incarnation < (LAST_OF_ALL) &&
		known < (LAST_OF_ALL) ->
		if
		:: place_of == who && SAME_ID && row[which].holder == who &&
			(grace == 0 || STILL_HOLDS(still)) ->
			may_continue = NOBODY_SINCE || grace > 0;
			grant(which, pledge)
#ifdef FAILOVER
		:: place_of == who && SAME_ID && row[which].holder != who &&
			grace > 0 && STILL_HOLDS(still) && IS_LOST(known) ->
			may_continue = true;
			grant(which, pledge)
#endif
		:: else ->
			if
			:: grace == 0 && EXPIRED ->
#ifdef COPY_CONTINUES
				may_continue = row[which].holder == place_of && id_before == which &&
					row[which].incarnation == known && known > 0;
#endif
				grant(which, pledge)
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
		renew(me, MY.worker_id, MY.incarnation, MY.asked_promise);
	:: MY.at == CLAIM ->
		claim(me, MY.wanted, MY.place, MY.worker_id, MY.incarnation,
			  MY.asked_promise, MY.asked_holds)
	:: MY.at == RELEASE ->
		release(me, MY.worker_id, MY.incarnation, MY.asked_promise)
	fi;
	if
	:: is_granted ->
		printf("registry: %e %d to %d, incarnation %d, promise %d, begins at %d, continues %d\n",
			   MY.at, MY.wanted, me, answer_incarnation, MY.asked_promise,
			   answer_begins, may_continue);
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
		renew(late.from, late.worker_id, late.of_incarnation, late.promise)
	:: late.kind == CLAIM ->
		claim(late.from, late.worker_id, late.place, late.of_worker_id,
			  late.of_incarnation, late.promise, late.holds)
	:: late.kind == RELEASE ->
		release(late.from, late.worker_id, late.of_incarnation, late.promise)
	fi;
	printf("registry: late %e of %d: %d, incarnation %d\n",
		   late.kind, late.from, is_granted, answer_incarnation);
	tidy_late();
	tidy_answer()
}

/*
 * The server.
 */

inline start()
{
	MY.word = MY.mark;
#ifdef NO_PLACE
	if
	:: MY.ends > 0 -> MY.place = me
	:: else
	fi;
#endif
#ifdef EXPIRED_AT_START
	MY.ends = DURATION;
#endif
	MY.has_worker_id = HOLDS(me);
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
		late.worker_id = (MY.at == CLAIM -> MY.wanted : MY.worker_id);
		late.promise = MY.asked_promise;
		late.of_incarnation = MY.incarnation;
		if
		:: MY.at == CLAIM ->
			late.holds = MY.asked_holds;
			late.place = MY.place;
			late.of_worker_id = MY.worker_id
		:: else
		fi
	:: true
	fi;
	tidy_worker()
}

inline stop()
{
	give_up();
#ifdef FREEZE_IN_MEMORY
	if
	:: MY.has_worker_id -> MY.is_released = false
	:: else
	fi;
#endif
	MY.has_worker_id = false;
	MY.word = 0;
	MY.cached_mark = 0;
	MY.cached_worker_id = 0;
	MY.is_reading = false
}

inline issue()
{
	choose(tick, MY.word, MY.cached_mark - 1);
	printf("%d: issues (%d, %d)\n", me, MY.cached_worker_id, tick);
	assert(kept != 1 + tick + LAST_MARK * MY.cached_worker_id);
	if
	:: kept == 0 -> kept = 1 + tick + LAST_MARK * MY.cached_worker_id
	:: true
	fi;
	MY.word = tick + 1;
	tick = 0;
	tidy_cache()
}

#ifdef NO_PROMISE
#define LIMIT	LAST_MARK
#else
#define LIMIT	MY.promise
#endif

/* The generators move on. */
inline move_generators()
{
#ifndef NO_FENCE
	MY.word = MAX(MY.word, MY.begins_at);
#endif
	MY.word = MAX(MY.word, MY.mark);
	tidy_cache()
}

inline publish()
{
	MY.place = me;
	MY.worker_id = MY.wanted;
	MY.incarnation = MY.granted_incarnation;
	MY.promise = MY.asked_promise;
	MY.ends = MY.asked_ends;
	MY.is_released = false;
	MY.has_worker_id = true;
#if !defined(FENCE_IN_MEMORY) && !defined(NO_FENCE)
	if
	:: !MY.continues -> MY.mark = MAX(MY.mark, MY.begins_at)
	:: else
	fi;
#endif
	printf("%d: publishes %d, mark %d, promise %d\n",
		   me, MY.worker_id, MY.mark, MY.promise);
	check_holders()
}

#ifdef MOVE_MEANWHILE
#define MAY_MOVE	(MY.has_worker_id && !MY.is_released)
#else
#define MAY_MOVE	(MY.has_worker_id && !MY.is_released && MY.at != MOVED)
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
		MY.place = YOUR.place;
		MY.worker_id = YOUR.worker_id;
		MY.incarnation = YOUR.incarnation;
		MY.ends = YOUR.ends;
		MY.promise = YOUR.promise;
		MY.mark = YOUR.mark;
		MY.is_released = YOUR.is_released;
		start() }

	/* the backend */
#ifndef READ_TWICE
	:: atomic { MY.has_worker_id && MY.mark > MY.word &&
			(MY.cached_mark != MY.mark ||
			 MY.cached_worker_id != MY.worker_id) ->
		MY.cached_mark = MY.mark;
		MY.cached_worker_id = MY.worker_id }
#else
	:: atomic { MY.has_worker_id && !MY.is_reading ->
		MY.cached_mark = 0;
		MY.cached_worker_id = MY.worker_id;
		MY.is_reading = true }
	:: atomic { MY.is_reading ->
		MY.cached_mark = MY.mark;
		MY.is_reading = false;
		tidy_cache() }
#endif
	:: atomic { MY.cached_mark > MY.word && !MY.is_reading -> issue() }

	/* who moves the mark: it was to be before the lease's end, once */
	:: atomic { MAY_MOVE && MY.mark < LIMIT ->
		choose(MY.mark, MY.mark + 1, LIMIT);
		printf("%d: moves the mark to %d\n", me, MY.mark) }
#ifdef OVERTAKEN_MOVES
	:: atomic { MAY_MOVE && MY.mark < LIMIT && MY.next_mark == 0 ->
		choose(MY.next_mark, MY.mark + 1, LIMIT) }
	:: atomic { MY.next_mark > 0 ->
		MY.mark = MAX(MY.mark, MY.next_mark);
		MY.next_mark = 0;
		printf("%d: moves the mark to %d\n", me, MY.mark) }
#endif

	/* the worker asks */
	:: atomic { MY.at == REST && MY.has_worker_id && !MY.is_released &&
			IS_VALID(me) ->
		MY.at = RENEW;
		MY.asked_ends = DURATION;
		choose(MY.asked_promise, MY.promise, LAST_MARK);
#ifdef PROMISE_BEFORE_GRANT
		MY.promise = MY.asked_promise;
#endif
		printf("%d: asks to renew, promise %d\n", me, MY.asked_promise) }
	:: atomic { MY.at == REST &&
			!(MY.has_worker_id && MY.is_released) ->
		MY.at = CLAIM;
		MY.asked_ends = DURATION;
#ifdef FAILOVER
		MY.asked_holds = MY.has_worker_id && MY.ends > 0;
#endif
		choose(MY.wanted, 0, WORKER_IDS - 1);
		choose(MY.asked_promise, 0, LAST_MARK);
		printf("%d: claims %d, promise %d, holds: %d\n",
			   me, MY.wanted, MY.asked_promise, MY.asked_holds) }
	:: atomic { MY.at == RENEW || MY.at == CLAIM || MY.at == RELEASE ->
		execute() }
	:: atomic { MY.at != REST && MY.at != MOVED -> give_up() }

	/* and is answered */
	:: atomic { MY.at == RENEWED && !IS_OVER ->
		ANSWERED;
		MY.incarnation = MY.granted_incarnation;
		MY.promise = MY.asked_promise;
		MY.ends = MY.asked_ends;
		printf("%d: is renewed\n", me);
		tidy_worker();
		check_holders() }
#ifndef PUBLISH_FIRST
	:: atomic { MY.at == GRANTED && !IS_OVER ->
		ANSWERED;
		if
		:: MY.continues ->
			publish();
			tidy_worker()
		:: else ->
			move_generators();
			MY.at = MOVED
		fi }
	:: atomic { MY.at == MOVED ->
		publish();
		tidy_worker() }
#else
	:: atomic { MY.at == GRANTED && !IS_OVER ->
		publish();
		MY.at = (MY.continues -> REST : MOVED);
		if
		:: MY.continues -> tidy_worker()
		:: else
		fi }
	:: atomic { MY.at == MOVED ->
		move_generators();
		tidy_worker() }
#endif

	/* a clean stop */
	:: atomic { MY.has_worker_id && !MY.is_released && MY.at != MOVED ->
#ifdef NO_FREEZE
		skip;
#else
		give_up();
#endif
		printf("%d: freezes mark %d\n", me, MY.mark);
		MY.is_released = true }
#ifdef NO_FREEZE
	:: atomic { MY.at == REST && MY.has_worker_id ->
#else
	:: atomic { MY.at == REST && MY.has_worker_id && MY.is_released ->
#endif
		MY.at = RELEASE;
		MY.asked_promise = MY.mark }
	:: atomic { MY.has_worker_id && MY.is_released ->
		printf("%d: is stopped\n", me);
		MY.mark = MY.word;
		stop();
		start() }
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
			server[i].place = NOWHERE;
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
			PASSES(server[i].ends);
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
