/*
 * mark_log.h
 *	  Keeps the high-water mark ahead of the ids.
 */
#ifndef SNOWFLAKE_HIGHWATER_H
#define SNOWFLAKE_HIGHWATER_H

#include "postgres.h"

/* parameter, registered by module.c */
extern int	highwater_interval_ms;

extern void highwater_move_past(int64 tick);

extern PGDLLEXPORT void highwater_worker_main(Datum main_arg);

#endif							/* SNOWFLAKE_HIGHWATER_H */
