/*
 * statefile.h
 *	  The state file: what outlives the server of its ids.
 */
#ifndef SNOWFLAKE_STATEFILE_H
#define SNOWFLAKE_STATEFILE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lease.h"
#include "port/pg_crc32c.h"

/* in the data directory's root, which is every server process's directory */
#define STATE_FILE "snowflake.state"

/* Room for why the file cannot be used. */
#define STATE_DETAIL_SIZE 160

/* Why the state file, as it was found at the start, lets no id be issued. */
typedef enum StateFault
{
	STATE_SOUND,				/* it lets them be */
	STATE_MISSING,				/* so does that: there was no id yet */
	STATE_DAMAGED,
	STATE_UNREADABLE,
	STATE_TOO_NEW
} StateFault;

/* The file.  The checksum is the last four bytes in every version. */
typedef struct StateFile
{
	uint32		magic;
	uint32		version;
	int32		tick_bits;		/* the layout, as in Layout */
	int32		datacenter_bits;
	int32		worker_bits;
	int32		sequence_bits;
	int64		tick_us;
	TimestampTz epoch;
	int32		datacenter_id;	/* the node; for whoever reads the file */
	int32		worker_id;
	int64		mark;			/* as a tick */
	TimestampTz written_at;		/* by the wall clock; for who reads the file */
	int64		lead_us;		/* that the mark was given over the clock */
	Lease		lease;			/* of the worker id, if it is leased */
	uint32		is_clean;		/* is the mark right after the last tick? */
	pg_crc32c	checksum;		/* of all before it */
} StateFile;

extern StateFault statefile_read(StateFile *file, char *detail);
extern void statefile_seal(StateFile *file);
extern bool statefile_write(const char *name, const StateFile *file);
extern bool statefile_flush_directory(void);

#endif							/* SNOWFLAKE_STATEFILE_H */
