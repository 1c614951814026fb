/*
 * worker.h
 *	  What our background workers have in common.
 */
#ifndef SNOWFLAKE_WORKER_H
#define SNOWFLAKE_WORKER_H

#include "postgres.h"

extern void worker_register(const char *name, const char *function_name);
extern void worker_begin(void);
extern void worker_heed_reload(void);
extern void worker_recover(MemoryContext context);

#endif							/* SNOWFLAKE_WORKER_H */
