/*
 * lease.h
 *	  A lease on a worker id: who has it, which one, and for how long.
 */
#ifndef SNOWFLAKE_LEASE_H
#define SNOWFLAKE_LEASE_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Room for a place, as text. */
#define LEASE_PLACE_SIZE 80

/* The worker id of a lease that there is none of. */
#define LEASE_NONE (-1)

/* A lease, as it is in shared memory and in the state file. */
typedef struct Lease
{
	char		holder[LEASE_PLACE_SIZE];	/* the place that it was leased to */
	int32		datacenter_id;
	int32		worker_id;		/* LEASE_NONE: there was never one */
	int64		incarnation;
	TimestampTz leased_at;		/* by the registry's clock; as a name only */
	int64		ends_us;		/* lease_clock_us() from which it is over; 0: it is */
	TimestampTz promise;		/* no id may lie at or beyond */
	uint64		registry;		/* who granted it; see node_registry_hash() */
} Lease;

extern const char *lease_place(void);
extern int64 lease_clock_us(void);

/* Is a lease still good for an id, at a time by lease_clock_us()? */
static inline bool
lease_is_valid(const Lease *lease, int64 now_us)
{
	return lease->worker_id != LEASE_NONE && now_us < lease->ends_us;
}

#endif							/* SNOWFLAKE_LEASE_H */
