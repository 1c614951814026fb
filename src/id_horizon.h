/*
 * id_horizon.h
 *	  The horizon: an id below which every transaction has ended.
 */
#ifndef SNOWFLAKE_ID_HORIZON_H
#define SNOWFLAKE_ID_HORIZON_H

#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "storage/lock.h"

/*
 * The hold of a transaction that was prepared before the first id since the
 * server's start.  Nobody knows which ids it has from earlier starts.
 */
#define HORIZON_UNKNOWN PG_UINT64_MAX

/* A transaction that holds the horizon back. */
typedef struct HorizonHold
{
	int			number;			/* of its slot */
	VirtualTransactionId vxid;	/* of the slot's PGPROC */
	uint64		hold;
	uint64		xid;			/* of a prepared transaction; else 0 */
	TimestampTz xact_start;		/* 0: unknown */
} HorizonHold;

/* Does a slot hold the horizon back for this process's transaction? */
extern bool horizon_is_held;

extern void horizon_begin(FullTransactionId next);
extern void horizon_hold(void);
extern void horizon_end_transaction(XactEvent event, void *arg);
extern int64 horizon_read(Oid table);
extern HorizonHold *horizon_find_holds(Oid table, int *count);
extern int64 horizon_of_hold(uint64 hold);

#endif							/* SNOWFLAKE_ID_HORIZON_H */
