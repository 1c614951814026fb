/*
 * registry.h
 *	  The conversation with the registry: claim, renew, release.
 */
#ifndef SNOWFLAKE_REGISTRY_H
#define SNOWFLAKE_REGISTRY_H

#include "postgres.h"

#include "lease.h"
#include "remote.h"

/* This server's lease as the registry has it, or last had it. */
typedef struct RegistryLease
{
	Lease		lease;
	bool		has_begins_at;	/* claimed, but not renewed yet: */
	TimestampTz begins_at;		/* the last holder's fence */
	int			unanswered;		/* asked since, and perhaps granted */
} RegistryLease;

/* What came of a request. */
typedef enum RegistryAnswer
{
	REGISTRY_NONE,				/* no answer, or none that helps */
	REGISTRY_REFUSED,			/* there is no worker id for this server */
	REGISTRY_GRANTED
} RegistryAnswer;

/* parameters, registered by module.c */
extern int	registry_lease_duration_s;
extern char *registry_name;

extern void registry_configure(void);
extern int64 registry_lease_duration_us(void);

extern char *registry_find(Remote *remote);
extern RegistryAnswer registry_claim(Remote *remote, const char *schema,
									 RegistryLease *ours, bool is_held);
extern RegistryAnswer registry_renew(Remote *remote, const char *schema,
									 RegistryLease *ours);
extern bool registry_release(Remote *remote, const char *schema,
							 const Lease *lease, TimestampTz end);

#endif							/* SNOWFLAKE_REGISTRY_H */
