/*
 * lease_registry.h
 *	  The conversation with the registry: claim, renew, release.
 */
#ifndef SNOWFLAKE_LEASE_REGISTRY_H
#define SNOWFLAKE_LEASE_REGISTRY_H

#include "postgres.h"

#include "lease_connection.h"
#include "lease_rules.h"
#include "utils/guc.h"

/* The code of a refusal that ends a lease: another holder may have it. */
#define REGISTRY_LOST "lost"

/* A granted or renewed lease. */
typedef struct RegistryGrant
{
	SnowflakeLease lease;
	TimestampTz begins_at;		/* ids of earlier holders are before this */
	int64		duration_us;	/* of the lease, by the registry's clock */
} RegistryGrant;

/* parameter, registered by module.c */
extern char *registry_server_name;

extern bool registry_check_name(char **newval, void **extra,
								GucSource source);

extern bool registry_claim(SnowflakeConnection *connection,
						   const SnowflakeLease *last,
						   bool is_held, RegistryGrant *grant);
extern bool registry_release(SnowflakeConnection *connection,
							 const SnowflakeLease *lease,
							 TimestampTz mark);

#endif							/* SNOWFLAKE_LEASE_REGISTRY_H */
