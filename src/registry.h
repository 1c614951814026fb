/*
 * registry.h
 *	  A worker id leased from another PostgreSQL, and its worker.
 */
#ifndef SNOWFLAKE_REGISTRY_H
#define SNOWFLAKE_REGISTRY_H

#include "postgres.h"

/* parameters, registered by module.c */
extern int	registry_lease_duration_s;
extern char *registry_name;

extern void registry_configure(void);
extern void registry_register_worker(void);

extern PGDLLEXPORT void registry_worker_main(Datum main_arg);

#endif							/* SNOWFLAKE_REGISTRY_H */
