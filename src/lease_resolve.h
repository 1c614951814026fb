/*
 * lease_resolve.h
 *	  Addresses of host names, looked up without blocking.
 */
#ifndef SNOWFLAKE_LEASE_RESOLVE_H
#define SNOWFLAKE_LEASE_RESOLVE_H

#include "postgres.h"

#include "nodes/pg_list.h"

typedef struct Lookup Lookup;

extern Lookup *resolve_begin(const char *name);
extern bool resolve_is_done(const Lookup *lookup);
extern List *resolve_end(Lookup *lookup, char **error);

#endif							/* SNOWFLAKE_LEASE_RESOLVE_H */
