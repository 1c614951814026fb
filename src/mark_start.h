/*
 * mark_start.h
 *	  Where a node's ids begin.
 */
#ifndef SNOWFLAKE_MARK_START_H
#define SNOWFLAKE_MARK_START_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lease_rules.h"

extern void mark_start_once(void);
extern int64 mark_start_excused_us(void);

extern void mark_begin_lease(const SnowflakeLease *lease,
							 TimestampTz begins_at);
extern void mark_end_lease(void);

#endif							/* SNOWFLAKE_MARK_START_H */
