/*
 * host.h
 *	  This host's name, from which a worker id is derived.
 */
#ifndef SNOWFLAKE_HOST_H
#define SNOWFLAKE_HOST_H

#include "postgres.h"

extern int	host_id_by_name(int worker_bits);

#endif							/* SNOWFLAKE_HOST_H */
