/*
 * lease_rules.h
 *	  What a lease on a worker id allows.
 */
#ifndef SNOWFLAKE_LEASE_RULES_H
#define SNOWFLAKE_LEASE_RULES_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "layout.h"

/* Room for a holder, as text. */
#define LEASE_HOLDER_SIZE 76

/* SnowflakeLease.next_incarnation while no claim waits for a grant. */
#define LEASE_NO_INCARNATION INT64CONST(0)

/* A lease, as shared memory and the mark's page have it. */
typedef struct SnowflakeLease
{
	char		holder[LEASE_HOLDER_SIZE];	/* whom the lease was granted to */
	uint32		timeline;		/* of WAL when the page was logged; valid on
								 * the page only */
	int32		datacenter_id;
	int32		worker_id;		/* WORKER_ID_UNSET: no lease was ever granted */
	int64		incarnation;	/* of the newest grant; chosen by the holder */
	int64		next_incarnation;	/* of a claim that may have been granted
									 * although no grant has arrived; else
									 * LEASE_NO_INCARNATION */
	int64		ends_us;		/* by clock_boottime_us(); 0: it has ended */
	TimestampTz fence;			/* the holder's ids are before this instant */
	uint64		registry;		/* node_registry_hash() of the registry that
								 * granted the lease */
} SnowflakeLease;

/* Is a lease in force at a time of clock_boottime_us()? */
static inline bool
lease_is_valid(const SnowflakeLease *lease, int64 boottime_us)
{
	return lease->worker_id != WORKER_ID_UNSET && boottime_us < lease->ends_us;
}

extern int64 lease_reach(const SnowflakeLease *lease,
						 const SnowflakeLayout *layout, int64 boottime_us);

#endif							/* SNOWFLAKE_LEASE_RULES_H */
