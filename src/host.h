/*
 * host.h
 *	  This host's name, from which a worker id is derived, and this server's
 *	  identity as the holder of a lease.
 */
#ifndef SNOWFLAKE_HOST_H
#define SNOWFLAKE_HOST_H

#include "postgres.h"

#include "lease_rules.h"

extern int	host_id_by_name(int worker_bits);

/* Room for a location: the host's name and the data directory. */
#define HOST_LOCATION_SIZE 48

extern char host_holder[LEASE_HOLDER_SIZE];
extern char host_location[HOST_LOCATION_SIZE];
extern void host_find_holder(void);
extern uint64 host_holder_hash(void);

#endif							/* SNOWFLAKE_HOST_H */
