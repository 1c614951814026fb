#ifndef LAST_TICK
#define LAST_TICK	3			/* at most 5: sets of marks are bytes */
#endif
#ifndef LAST_WRITE
#define LAST_WRITE	4			/* at most 7 */
#endif

#define SEQUENCES	2			/* ids a tick */
#define LAST_MARK	(LAST_TICK + 1)
#define DAMAGED		(LAST_TICK + 2)	/* "mark" of a file that does not verify */

#define TICK(word)			((word) / SEQUENCES)
#define SEQUENCE(word)		((word) % SEQUENCES)
#define END_OF_TICK(tick)	((tick) * SEQUENCES + SEQUENCES - 1)

#define SET(element)		(1 << (element))
#define IN(set, element)	(((set) >> (element)) & 1)
#define NEITHER(set, other)	((set) & (255 - (other)))

#define BACKENDS	2
#define WORKER		BACKENDS
#define PROCESSES	(BACKENDS + 1)

/* what a process does next */
mtype = { CALL, LOOK, BEGIN, REMOVE, WRITE, CHECK, RENAME, FLUSH, END };

typedef Process
{
	mtype at;
	byte past;			/* a tick: the mark is to move past it */
	byte number;		/* of its write */
	byte due;			/* the mark that it writes */
	byte left;			/* the next temporary file to remove */
	bool done			/* is the mark that it writes safe? */
};

/* shared memory, and the processes: lost when the server stops */
bool is_up;
byte word;				/* the generator: newest (tick, sequence) */
byte mark;
byte write_number;		/* of the newest write begun */
bool is_writing;		/* is that one under way? */
byte oldest_left;		/* the oldest write whose temporary file may be left */
Process process[PROCESSES];

/* the disk */
byte temporary;			/* writes that have a temporary file */
byte file;				/* the mark in the state file; 0: there is none */
byte contents;			/* marks that it may have after a power loss */
byte safe;				/* marks that the directory may lead to after one */

/* what clients have got, for the assertions */
byte newest;			/* the newest id + 1; 0: none yet */
byte kept;				/* the id that a client keeps + 1; 0: none yet */

inline choose(number, from, to)
{
	number = from;
	do
	:: number < to -> number++
	:: break
	od
}

inline issue()
{
	assert(word + 1 != kept);
#ifndef DUPLICATES_ONLY
	assert(word + 1 > newest);
#endif
	newest = (word + 1 > newest -> word + 1 : newest);
	if
	:: kept == 0 -> kept = word + 1
	:: true
	fi
}

#define AT	process[me].at

inline forget()
{
	process[me].past = 0;
	process[me].number = 0;
	process[me].due = 0;
	process[me].left = 0;
	process[me].done = false
}

proctype server_process(byte me)
{
	byte now;
	byte tick;
	bool fresh;

	do
	/* reserve(), under the generator's lock */
	:: atomic { is_up && AT == CALL && me != WORKER ->
		choose(now, 0, LAST_TICK);
#ifdef CLOCK_RESETS
		fresh = now != TICK(word) || SEQUENCE(word) == SEQUENCES - 1;
		tick = now;
#else
		fresh = now > TICK(word) || SEQUENCE(word) == SEQUENCES - 1;
		tick = (fresh -> TICK(word) + 1 : TICK(word));
		tick = (now > tick -> now : tick);
#endif
		if
		:: tick > now			/* wait, or refuse: no id */
#ifdef MARK_AFTER_ISSUE
		:: tick <= now ->
			word = (fresh -> tick * SEQUENCES : word + 1);
			issue();
			if
			:: tick >= mark -> process[me].past = tick; AT = LOOK
			:: else
			fi
#else
		:: tick <= now && tick >= mark -> process[me].past = tick; AT = LOOK
		:: tick <= now && tick < mark ->
			word = (fresh -> tick * SEQUENCES : word + 1);
			issue()
#endif
		fi;
		now = 0;
		tick = 0;
		fresh = false }

	/* keep_ahead() */
	:: atomic { is_up && AT == CALL && me == WORKER ->
		choose(process[me].past, TICK(word), LAST_TICK);
		AT = LOOK }

	/* move_mark() */
	:: atomic { AT == LOOK ->
		if
		:: mark > process[me].past -> forget(); AT = CALL
		:: else -> AT = BEGIN
		fi }

	:: atomic { AT == BEGIN ->
		if
#ifndef LOOK_OUTSIDE_LOCK
		:: mark > process[me].past -> forget(); AT = CALL
		:: mark <= process[me].past && write_number < LAST_WRITE ->
#else
		:: write_number < LAST_WRITE ->
#endif
			is_writing = true;
			write_number++;
			process[me].number = write_number;
#if defined(NO_UNLINK)
			process[me].left = write_number;
#elif defined(UNLINK_ONE)
			process[me].left = write_number - 1;
#else
			process[me].left = oldest_left;
#endif
#ifdef MARK_BEFORE_FILE
			choose(process[me].due, process[me].past + 1, LAST_MARK);
			mark = process[me].due;
#endif
			AT = REMOVE
		:: is_writing -> AT = LOOK
		fi }

	:: atomic { AT == REMOVE ->
		if
		:: process[me].left < process[me].number ->
			temporary = NEITHER(temporary, SET(process[me].left));
			process[me].left++
		:: else -> process[me].left = 0; AT = WRITE
		fi }

	:: atomic { AT == WRITE ->
		temporary = temporary | SET(process[me].number);
		if
		:: AT = CHECK
		:: temporary = NEITHER(temporary, SET(process[me].number)); AT = END
		fi }

	:: atomic { AT == CHECK ->
		if
#ifndef NO_NUMBER_CHECK
		:: process[me].number != write_number ->
			temporary = NEITHER(temporary, SET(process[me].number));
			AT = END
		:: process[me].number == write_number -> AT = RENAME
#else
		:: AT = RENAME
#endif
		fi }

	:: atomic { AT == RENAME ->
		if
		:: IN(temporary, process[me].number) ->
			temporary = NEITHER(temporary, SET(process[me].number));
			if
			:: AT = END
			:: 
#ifndef MARK_BEFORE_FILE
			choose(process[me].due, process[me].past + 1, LAST_MARK);
#endif
			file = process[me].due;
#ifdef NO_FSYNC
			contents = SET(file) | SET(DAMAGED);
#else
			contents = SET(file);
#endif
			safe = safe | contents;
			AT = FLUSH
			fi
		:: else -> AT = END
		fi }

	:: atomic { AT == FLUSH ->
		if
		:: true ->
#ifndef NO_DIRECTORY_FSYNC
			safe = contents;
#endif
			process[me].done = true
		:: true
		fi;
		AT = END }

	/* end_write() */
	:: atomic { AT == END ->
		if
		:: process[me].number == write_number ->
			is_writing = false;
			oldest_left = write_number + 1;
			if
			:: process[me].done && mark < process[me].due ->
				mark = process[me].due
			:: else
			fi
		:: else
		fi;
		process[me].number = 0;
		process[me].due = 0;
		process[me].done = false;
		if
		:: AT = LOOK
		:: forget(); AT = CALL
		fi }
	od
}

inline start()
{
	d_step {
	temporary = 0;
	mark = file;
	word = (file > 0 -> END_OF_TICK(file - 1) : 0);
#ifdef NO_MARK
	word = 0;
#endif
	write_number = 0;
	is_writing = false;
	oldest_left = 1;
	me = 0;
	do
	:: me < PROCESSES -> forget(); AT = CALL; me++
	:: else -> break
	od;
	me = 0;
	is_up = true
	}
}

inline lose_power()
{
	file = 0;
	do
	:: IN(safe, file) -> break
	:: safe >> (file + 1) -> file++
	od;
	contents = SET(file);
	safe = SET(file);
	assert(file != DAMAGED)
}

init
{
	byte me;

	atomic {
		contents = SET(0);
		safe = SET(0);
		start();
		run server_process(0);
		run server_process(1);
		run server_process(2)
	}
	do
	:: atomic { is_up -> start() }
	:: atomic { is_up -> lose_power(); start() }
	/* the postmaster stops it: its children are gone, wherever they were */
	:: atomic { is_up ->
		is_up = false;
		d_step {
		me = 0;
		do
		:: me < PROCESSES -> forget(); AT = CALL; me++
		:: else -> break
		od;
		me = 0; mark=0; write_number=0; is_writing=false; oldest_left=0; temporary=0;
		}
		file = TICK(word) + 1;
		contents = SET(file);
		safe = safe | contents }
	:: atomic { !is_up -> start() }
	:: atomic { !is_up -> lose_power(); start() }
	:: atomic { !is_up -> safe = contents; start() }
	od
}
