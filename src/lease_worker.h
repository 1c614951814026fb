/*
 * lease_worker.h
 *	  The worker that claims, renews and releases this server's lease.
 */
#ifndef SNOWFLAKE_LEASE_WORKER_H
#define SNOWFLAKE_LEASE_WORKER_H

#include "postgres.h"

extern void lease_worker_register(void);
extern PGDLLEXPORT void lease_worker_main(Datum main_arg);

#endif							/* SNOWFLAKE_LEASE_WORKER_H */
