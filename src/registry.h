/*
 * registry.h
 *	  The conversation with the registry: claim, renew, release.
 */
#ifndef SNOWFLAKE_REGISTRY_H
#define SNOWFLAKE_REGISTRY_H

#include "postgres.h"

#include "lease.h"
#include "remote.h"
#include "utils/guc.h"

#define REGISTRY_CODE_SIZE 32

/* What came of a claim. */
typedef enum RegistryOutcome
{
	REGISTRY_NO_ANSWER,			/* or none that helps; it may be granted */
	REGISTRY_REFUSED,			/* there is no worker id for this server */
	REGISTRY_GRANTED
} RegistryOutcome;

typedef struct RegistryAnswer
{
	RegistryOutcome outcome;
	Lease		lease;			/* that was granted */
	bool		continues;		/* nobody else has had it since */
	TimestampTz begins_at;		/* no earlier holder has an id at or beyond */
	int64		duration_us;	/* how long the registry keeps it */
	char		code[REGISTRY_CODE_SIZE];	/* why it was refused: "taken" ... */
	char		reason[REMOTE_REASON_SIZE]; /* the same in a sentence */
} RegistryAnswer;

/* parameter, registered by module.c */
extern char *registry_name;

extern bool registry_check_conninfo(char **newval, void **extra,
									GucSource source);
extern bool registry_check_name(char **newval, void **extra,
								GucSource source);

extern void registry_claim(Remote *remote, const Lease *previous, bool is_held,
						   RegistryAnswer *answer);
extern bool registry_release(Remote *remote, const Lease *lease,
							 TimestampTz end);

#endif							/* SNOWFLAKE_REGISTRY_H */
