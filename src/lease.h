/*
 * lease.h
 *	  What a lease on a worker id allows.
 */
#ifndef SNOWFLAKE_LEASE_H
#define SNOWFLAKE_LEASE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "layout.h"

/* Room for a holder, as text. */
#define LEASE_HOLDER_SIZE 76

/* The worker id of a lease that was never granted; where wanted: any. */
#define LEASE_NONE (-1)

/* A lease, as it is in shared memory and in the mark's page. */
typedef struct Lease
{
	char		holder[LEASE_HOLDER_SIZE];	/* whom it was granted to */
	uint32		timeline;		/* of the WAL that has it; on the page only */
	int32		datacenter_id;
	int32		worker_id;		/* LEASE_NONE: there was never one */
	int64		incarnation;	/* of the newest grant; chosen by the holder */
	int64		next_incarnation;	/* of a question that may have been granted
									 * without an answer; 0: there is none */
	uint64		position;		/* the registry's WAL position at that grant */
	int64		ends_us;		/* by clock_boottime_us(); 0: it is over */
	TimestampTz fence;			/* no id may lie at or beyond */
	uint64		registry;		/* who is asked; see node_registry_hash() */
} Lease;

/* Does a lease still hold, at a time by clock_boottime_us()? */
static inline bool
lease_is_valid(const Lease *lease, int64 boottime_us)
{
	return lease->worker_id != LEASE_NONE && boottime_us < lease->ends_us;
}

extern bool lease_is_usable(const Lease *lease, const Layout *layout,
							int datacenter_id);
extern bool lease_can_resume(const Lease *lease, const char *holder,
							 uint32 timeline, int worker_id,
							 uint64 registry, int64 boottime_us);
extern int64 lease_reach(const Lease *lease, const Layout *layout,
						 TimestampTz now, int64 boottime_us);

#endif							/* SNOWFLAKE_LEASE_H */
