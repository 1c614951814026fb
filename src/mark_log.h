/*
 * mark_log.h
 *	  Keeps the high-water mark ahead of the ids.
 */
#ifndef SNOWFLAKE_MARK_LOG_H
#define SNOWFLAKE_MARK_LOG_H

#include "postgres.h"

extern void mark_log_next(int64 tick);
extern void mark_log_present(void);

#endif							/* SNOWFLAKE_MARK_LOG_H */
