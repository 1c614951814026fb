/*
 * horizon.pml
 *	  A model, for Spin, of the steps of src/id_horizon.c, whose head says them in
 *	  words.  script/model runs it, without and with each defect.
 *
 * Asserted: when the reader takes its snapshot, no stamp below its horizon is of
 * an open transaction, and no such stamp is taken later.
 *
 * The session has two transactions, each of which takes one stamp or two, and
 * commits, aborts or prepares.  Prepared transactions end at any time.  A step
 * that a missing barrier would let another processor see in another order is a
 * defect here.
 */
mtype = {
	NONE,
	TAKE_FIRST,			/* a stamp is taken before the slot is written */
	CLEAR_FIRST,		/* the slot is cleared before others see the end */
	SLOTS_FIRST,		/* the reader reads slots, and then the newest stamp */
	NO_COPY,			/* a prepared transaction has no slot */
	COPY_LATE,			/* ... or has it after the session's slot is cleared */
	PREPARED_FIRST		/* the reader reads the prepared one's slot first */
};
#ifndef DEFECT
#define DEFECT		NONE
#endif
#define IS(defect)	(DEFECT == defect)
#define LAST		6			/* the largest stamp */
#define SESSION		1			/* owners of stamps and slots */
#define PREPARED	2

byte newest;					/* the newest stamp */
byte owner[LAST + 1];			/* a stamp's open transaction, or 0 */
byte slot[3];					/* 0: clear */
byte xid;						/* of the prepared one's slot */
byte prepared;					/* the prepared transaction's xid, 0: ended */
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
inline take(number)
{
	atomic {
		for (i : newest + 1 .. newest + number) {
			assert(i >= passed);
			owner[i] = SESSION
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

active proctype Session()
{
	byte seen, count, i;

	do
	:: count < 2 ->
		count++;
		if
		:: IS(TAKE_FIRST) -> take(1); hold()
		:: else -> hold(); take(1)
		fi;
		if
		:: take(1)
		:: take(2)
		:: true
		fi;
		if
		:: IS(CLEAR_FIRST) -> slot[SESSION] = 0
		:: else
		fi;
		if
		:: atomic { pass_on(SESSION, 0) }		/* a commit or an abort */
		:: atomic { prepared == 0 -> prepared = count; pass_on(SESSION, PREPARED) };
			if
			:: IS(NO_COPY)
			:: IS(COPY_LATE) -> seen = slot[SESSION]; slot[SESSION] = 0;
				slot[PREPARED] = seen; xid = count
			:: else -> slot[PREPARED] = slot[SESSION]; xid = count
			fi
		fi;
		slot[SESSION] = 0
	:: else -> break
	od
}

/* Nobody clears the slot: it counts while the transaction is in progress. */
active proctype Prepared()
{
	byte i;

end:
	do
	:: atomic { prepared != 0 -> pass_on(PREPARED, 0); prepared = 0 }
	od
}

inline lower_to(bound)
{
	horizon = (bound != 0 && bound < horizon -> bound : horizon)
}

inline read_prepared()
{
	whose = xid;
	value = slot[PREPARED];
	value = (prepared == whose -> value : 0);
	lower_to(value)
}

active proctype Reader()
{
	byte horizon = LAST + 1, value, whose, i;

	if
	:: IS(SLOTS_FIRST)
	:: else -> lower_to(newest + 1)
	fi;
	if
	:: IS(PREPARED_FIRST) -> read_prepared(); lower_to(slot[SESSION])
	:: else -> lower_to(slot[SESSION]); read_prepared()
	fi;
	if
	:: IS(SLOTS_FIRST) -> lower_to(newest + 1)
	:: else
	fi;
	atomic {					/* the snapshot */
		for (i : 1 .. LAST) {
			assert(i >= horizon || owner[i] == 0)
		}
		passed = horizon
	}
}
