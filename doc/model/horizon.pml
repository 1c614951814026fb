/*
 * horizon.pml
 *	  A model, for Spin, of the steps of src/id_horizon.c, whose head says them in
 *	  words.  script/model runs it, without and with each defect.
 *
 * Asserted: when the reader takes its snapshot, no stamp below its horizon is of
 * an open transaction, and no such stamp is taken later.  With TABLE the reader
 * asks for the horizon of a table, and this is asserted of the stamps that are in
 * rows of the table.  The reader asks twice, and its horizon does not go back.
 *
 * The session has two transactions, each of which takes a few stamps, and
 * commits, aborts or prepares; then the session ends.  Prepared transactions end
 * at any time.  A step that a missing barrier would let another processor see in
 * another order is a defect here.
 *
 * With TABLE all rows are in one partition, which is attached at any time.  A
 * transaction first takes a stamp for a row of another table, or none.  Then, if
 * the partition is attached, it writes to the partition, straight or through the
 * parent, in any case after it has locked the table that it names.  It can roll
 * back to a savepoint, which releases the locks, and write again.
 */
mtype = {
	NONE,
	TAKE_FIRST,			/* a stamp is taken before the slot is written */
	CLEAR_FIRST,		/* the slot is cleared before others see the end */
	SLOTS_FIRST,		/* the reader reads slots, and then the newest stamp */
	NO_COPY,			/* a prepared transaction has no slot */
	COPY_LATE,			/* ... or has it after the session's slot is cleared */
	PREPARED_FIRST,		/* the reader reads the prepared one's slot first */
	CLEAR_ANY,			/* the reader clears the slot of a prepared transaction
						 * that has ended, whoever has the slot by then */

	/* With TABLE. */
	LOCK_LATE,			/* a stamp is taken before the table is locked */
	UNLOCK_FIRST,		/* locks are released before others see the end */
	LIST_FIRST,			/* the reader lists writers before the newest stamp */
	NO_PREPARED,		/* ... and passes over prepared transactions */
	NEW_NUMBER,			/* a prepared transaction's locks do not keep the number
						 * of their session */
	NUMBER_LATE,		/* the reader reads a session's number after the slots,
						 * when the session may have ended */
	NO_ANCESTORS,		/* only the partition's locks count */
	NO_PARTITIONS,		/* only the parent's locks count */
	STALE_TREE,			/* the reader lists the tables before the newest stamp */
	NO_MEMORY,			/* the last horizon is forgotten */

	/* A defect with which no assertion fails. */
	LIST_EARLY			/* writers are listed after the newest stamp, but before
						 * the holds are read */
};
#ifndef DEFECT
#define DEFECT		NONE
#endif
#ifndef TABLE
#define TABLE		0
#endif
#define IS(defect)	(DEFECT == defect)
#define LAST		6			/* the largest stamp */
#define SESSION		1			/* owners of stamps and slots */
#define PREPARED	2
#define PARENT		1			/* bits of locks */
#define PARTITION	2

byte newest;					/* the newest stamp */
byte owner[LAST + 1];			/* a stamp's open transaction, or 0 */
bool counts[LAST + 1];			/* is the stamp in a row that the reader reads? */
byte slot[3];					/* 0: clear */
byte xid;						/* of the prepared one's slot */
byte prepared;					/* the prepared transaction's xid, 0: ended */
byte locks[3];					/* of the session's first and second transaction */
bool has_ended;					/* has the session? */
bool attached;					/* is the partition? */
byte passed;					/* the reader has read the stamps below */

/* Gives the stamps of one owner to another. */
inline pass_on(from, to)
{
	for (i : 1 .. LAST) {
		owner[i] = (owner[i] == from -> to : owner[i])
	}
	i = 0
}

/* Takes the next stamps, all by one swap. */
inline take(number, is_row)
{
	atomic {
		for (i : newest + 1 .. newest + number) {
			assert(i >= passed);
			owner[i] = SESSION;
			counts[i] = is_row
		}
		newest = newest + number;
		i = 0
	}
}

/* Reads the newest stamp, and writes its successor into the slot. */
inline hold()
{
	seen = newest + 1;
	slot[SESSION] = seen;
	seen = 0
}

inline hold_and_take(is_row)
{
	if
	:: slot[SESSION] != 0 -> take(1, is_row)
	:: slot[SESSION] == 0 && IS(TAKE_FIRST) -> take(1, is_row); hold()
	:: else -> hold(); take(1, is_row)
	fi
}

/* Writes a row to the partition, straight or through the parent. */
inline write_row()
{
	if
	:: !attached
	:: attached && IS(LOCK_LATE) ->
		hold_and_take(true);
		locks[count] = PARTITION
	:: else ->
		if
		:: locks[count] = locks[count] | PARTITION
		:: locks[count] = locks[count] | PARENT
		fi;
		hold_and_take(true);
		locks[count] = locks[count] | PARTITION
	fi
}

inline write_table()
{
	if
	:: hold_and_take(false)
	:: true
	fi;
	write_row();
	if
	:: atomic {					/* ROLLBACK TO */
			for (i : 1 .. LAST) {
				counts[i] = counts[i] && owner[i] != SESSION
			}
			i = 0;
			locks[count] = 0
		};
		if
		:: write_row()
		:: true
		fi
	:: true
	fi
}

active proctype Session()
{
	byte seen, count, i;

	do
	:: count < 2 ->
		count++;
		if
		:: TABLE -> write_table()
		:: else ->
			hold_and_take(true);
			if
			:: take(1, true)
			:: take(2, true)
			:: true
			fi
		fi;
		if
		:: IS(CLEAR_FIRST) -> slot[SESSION] = 0
		:: IS(UNLOCK_FIRST) -> locks[count] = 0
		:: else
		fi;
		if
		:: atomic { pass_on(SESSION, 0) };		/* a commit or an abort */
			slot[SESSION] = 0;
			locks[count] = 0
		:: atomic { prepared == 0 -> prepared = count; pass_on(SESSION, PREPARED) };
			if
			:: IS(NO_COPY)
			:: IS(COPY_LATE) -> seen = slot[SESSION]; slot[SESSION] = 0;
				atomic { slot[PREPARED] = seen; xid = count; seen = 0 }
			:: else -> atomic { slot[PREPARED] = slot[SESSION]; xid = count }
			fi;
			slot[SESSION] = 0
		fi
	:: else -> break
	od;
	has_ended = true
}

active proctype Owner()
{
	attached = TABLE
}

/* A reader clears the slot: it counts while the transaction is in progress. */
active proctype Prepared()
{
	byte i, ended;

end:
	do
	:: atomic { prepared != 0 -> pass_on(PREPARED, 0); ended = prepared; prepared = 0 };
		locks[ended] = 0;
		ended = 0
	od
}

/* Lists who has a lock on one table. */
inline list_one(table)
{
	atomic {
		for (i : 1 .. 2) {
			if
			:: (locks[i] & table) && !(IS(NO_PREPARED) && prepared == i) ->
				listed = listed | i;
				is_listed = is_listed || !(IS(NEW_NUMBER) && prepared == i)
			:: else
			fi
		}
		i = 0
	}
}

/* The tables are locked one by one, and listed in any order. */
inline list()
{
	if
	:: IS(STALE_TREE)
	:: else -> knows = attached
	fi;
	if
	:: IS(NO_ANCESTORS) -> list_one(PARTITION)
	:: IS(NO_PARTITIONS) || !knows -> list_one(PARENT)
	:: else ->
		if
		:: list_one(PARTITION); list_one(PARENT)
		:: list_one(PARENT); list_one(PARTITION)
		fi
	fi
}

inline read_session()
{
	of_session = slot[SESSION];
	is_known = !has_ended
}

/* A transaction that has ended does not count, and its slot is cleared. */
inline read_prepared()
{
	atomic { whose = xid; of_prepared = slot[PREPARED] }
}

inline judge_prepared()
{
	if
	:: prepared != whose ->
		of_prepared = 0;
		atomic { slot[PREPARED] = (xid == whose || IS(CLEAR_ANY) -> 0 : slot[PREPARED]) }
	:: else
	fi
}

inline lower_to(bound)
{
	horizon = (bound != 0 && bound < horizon -> bound : horizon)
}

active proctype Reader()
{
	byte horizon, of_session, of_prepared, whose, listed, rounds, i;
	bool is_listed, is_known, knows;

	do
	:: rounds < 2 ->
		rounds++;
		horizon = LAST + 1;
		if
		:: TABLE && IS(STALE_TREE) -> knows = attached
		:: TABLE && IS(LIST_FIRST) -> list()
		:: else
		fi;
		if
		:: IS(SLOTS_FIRST)
		:: else -> lower_to(newest + 1)
		fi;
		if
		:: TABLE && IS(LIST_EARLY) -> list()
		:: else
		fi;
		if
		:: IS(PREPARED_FIRST) -> read_prepared(); read_session()
		:: else -> read_session(); read_prepared()
		fi;
		if
		:: TABLE && !IS(LIST_EARLY) && !IS(LIST_FIRST) -> list()
		:: else
		fi;
		if
		:: IS(NUMBER_LATE) -> is_known = !has_ended
		:: else
		fi;
		judge_prepared();
		if
		:: IS(SLOTS_FIRST) -> lower_to(newest + 1)
		:: else
		fi;
		lower_to((TABLE && !(is_listed && is_known) -> 0 : of_session));
		lower_to((TABLE && !(listed & whose) -> 0 : of_prepared));
		atomic {				/* the snapshot */
			if
			:: IS(NO_MEMORY)
			:: else -> horizon = (horizon > passed -> horizon : passed)
			fi;
			assert(horizon >= passed);
			for (i : 1 .. LAST) {
				assert(i >= horizon || owner[i] == 0 || !counts[i])
			}
			passed = horizon;
			of_session = 0;
			of_prepared = 0;
			whose = 0;
			listed = 0;
			is_listed = false;
			is_known = false;
			knows = false;
			i = 0
		}
	:: else -> break
	od
}
