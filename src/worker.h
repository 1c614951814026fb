/*
 * worker.h
 *	  What both background workers share.
 */
#ifndef SNOWFLAKE_WORKER_H
#define SNOWFLAKE_WORKER_H

#include "postgres.h"

#include "id_clock.h"
#include "storage/latch.h"

/* For worker_wait(): wait without a timeout. */
#define WORKER_WAIT_FOREVER (-1L)

extern void worker_register(const char *name, const char *function_name);
extern void worker_initialize(Latch **latch);
extern bool worker_wait(long timeout_ms, WaitReason reason);
extern void worker_start_transaction(void);
extern void worker_commit(void);
extern void worker_abort(void);

#endif							/* SNOWFLAKE_WORKER_H */
