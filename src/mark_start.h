/*
 * mark_start.h
 *	  Where a node's ids begin.
 */
#ifndef SNOWFLAKE_START_H
#define SNOWFLAKE_START_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lease_rules.h"

extern void start_node_once(void);

extern void start_renewed_lease(const Lease *lease);
extern void start_new_lease(const Lease *lease, TimestampTz last_fence);
extern TimestampTz start_end_lease(bool is_given_up);

#endif							/* SNOWFLAKE_START_H */
