/*
 * lease_holder.h
 *	  Who holds a lease: one data directory in one place on one running machine.
 */
#ifndef SNOWFLAKE_LEASE_HOLDER_H
#define SNOWFLAKE_LEASE_HOLDER_H

#include "postgres.h"

#include "lease_rules.h"

/* Room for a location: the host's name and the data directory. */
#define HOLDER_LOCATION_SIZE 48

extern char holder_text[LEASE_HOLDER_SIZE];
extern char holder_location[HOLDER_LOCATION_SIZE];
extern void holder_find(void);
extern uint64 holder_hash(void);

#endif							/* SNOWFLAKE_LEASE_HOLDER_H */
