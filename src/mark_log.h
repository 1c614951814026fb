/*
 * mark_log.h
 *	  Keeps the high-water mark ahead of the ids.
 */
#ifndef SNOWFLAKE_MARK_LOG_H
#define SNOWFLAKE_MARK_LOG_H

#include "postgres.h"

/* parameter, registered by module.c */
extern int	mark_log_interval_ms;

extern void mark_log_next(int64 tick);
extern void mark_log_present(void);
extern int64 mark_log_lead_us(void);

#endif							/* SNOWFLAKE_MARK_LOG_H */
