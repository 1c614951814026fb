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

/* Codes of snowflake_registry.refuse() that end a lease. */
#define REGISTRY_TAKEN "taken"
#define REGISTRY_ALL_TAKEN "all_taken"

#define REGISTRY_CODE_SIZE 32

/* The outcome of a claim. */
typedef enum RegistryOutcome
{
	REGISTRY_NO_ANSWER,			/* no answer or an error: the registry may have
								 * granted the claim nevertheless */
	REGISTRY_REFUSED,			/* this server gets no worker id now */
	REGISTRY_GRANTED
} RegistryOutcome;

typedef struct RegistryAnswer
{
	RegistryOutcome outcome;
	Lease		lease;			/* the granted lease */
	bool		continues;		/* has no other holder had the worker id since
								 * the previous lease? */
	TimestampTz last_fence;		/* ids of earlier holders are before this */
	int64		duration_us;	/* of the lease, by the registry's clock */
	char		code[REGISTRY_CODE_SIZE];	/* of a refusal, such as "taken" */
	char		reason[CONNECTION_REASON_SIZE]; /* of a refusal, as a sentence */
} RegistryAnswer;

/* parameter, registered by module.c */
extern char *registry_server_name;

extern bool registry_check_conninfo(char **newval, void **extra,
									GucSource source);
extern bool registry_check_name(char **newval, void **extra,
								GucSource source);

extern void registry_claim(Remote *remote, const Lease *previous, bool is_held,
						   RegistryAnswer *answer);
extern bool registry_release(Remote *remote, const Lease *lease,
							 TimestampTz end);

#endif							/* SNOWFLAKE_LEASE_REGISTRY_H */
