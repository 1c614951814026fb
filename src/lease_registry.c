/*
 * lease_registry.c
 *	  The conversation with the registry: claim, renew, release.
 *
 * The registry is a database with the extension snowflake_registry, whose
 * functions decide who gets a lease, each call in one transaction.  This file
 * sends claims and releases, and checks the answers; lease_worker.c decides
 * when.
 *
 * The head of snowflake_registry--1.0.sql has the registry's rules, and
 * doc/model/lease.pml checks them with the server's in every order of events.
 * The server's rules:
 *
 * - The high-water mark goes no further than the fence, moves only while the
 *	 lease is in force, and ids stay before the mark.  So issuing an id needs no
 *	 look at the lease, and the mark stops a server that goes on after a
 *	 suspension.  The next holder begins at the fence, so no id is issued twice
 *	 even if clocks are wrong, or if a server holds the lease for longer than
 *	 the registry thinks; clocks only decide who waits.
 * - A server measures its lease from before it sends the claim, on a clock
 *	 that nobody can set, and ends it a tenth early, in case the registry's
 *	 clock is faster.
 * - A claim says which lease the server holds, and its fence, for a registry
 *	 that has forgotten them.  A server that is refused keeps its lease until it
 *	 ends, unless the registry says that the lease is lost.
 * - The incarnation of a claim is durable before the claim is sent.  If no
 *	 grant arrives, the next claim has the same one, also after a crash.  A claim
 *	 names the incarnation of the lease that it continues, and a release that of
 *	 the newest grant.  So a copy of the data directory continues no lease, and
 *	 a message that arrives late lets nobody issue an id: at most it leases a
 *	 free worker id until that lease ends.
 * - A server that restarts within its lease, as the same holder, on the same
 *	 timeline and in the same layout, claims the lease again before it issues
 *	 ids, and does not issue them after a refusal.  It resumes the lease by
 *	 itself only if no host of the registry answers the claim.
 * - A server that stops makes its last mark durable before it releases the
 *	 worker id, and does not raise the mark after that.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "clock.h"
#include "lease_holder.h"
#include "lease_registry.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

/* The longest snowflake.server_name: the longest identifier. */
#define NAME_LENGTH_MAX (NAMEDATALEN - 1)

/* The limits of a lease's duration, which configure() has, too. */
#define DURATION_MIN_US USECS_PER_SEC
#define DURATION_MAX_US USECS_PER_DAY

/* How far ahead of this server's clock a new lease may begin. */
#define AHEAD_MAX_US (5 * USECS_PER_SEC)

/* parameter */
char	   *registry_server_name = NULL;

static const char *const claim_sql =
"SELECT worker_id, begins_at, fence, duration_us, refusal, detail,"
" pg_catalog.clock_timestamp() FROM snowflake_registry.claim("
"layout => $1, epoch => $2, datacenter_id => $3, wanted_worker_id => $4,"
" holder => $5, name => $6, begins_by => $7, last_worker_id => $8,"
" incarnation => $9, held_fence => $10, next_incarnation => $11)";

/* The columns of an answer to a claim. */
enum
{
	COLUMN_WORKER_ID,
	COLUMN_BEGINS_AT,			/* where ids under the lease begin */
	COLUMN_FENCE,
	COLUMN_DURATION,
	COLUMN_REFUSAL,				/* a code */
	COLUMN_DETAIL,				/* of a refusal, a sentence */
	COLUMN_CLOCK				/* the registry's */
};

static const ConnectionColumn claim_columns[] = {
	{INT4OID, 4}, {TIMESTAMPTZOID, 8}, {TIMESTAMPTZOID, 8}, {INT8OID, 8},
	{TEXTOID, -1}, {TEXTOID, -1}, {TIMESTAMPTZOID, 8}
};

static const char *const release_sql =
"SELECT released FROM snowflake_registry.release("
"datacenter_id => $1, worker_id => $2, holder => $3, incarnation => $4,"
" mark => $5)";

static const ConnectionColumn release_columns[] = {{BOOLOID, 1}};

static bool registry_read_answer(SnowflakeConnection *connection,
								 const PGresult *result, int64 sent_us,
								 const SnowflakeLease *last, bool is_held,
								 RegistryGrant *grant);
static bool registry_is_possible(const PGresult *result,
								 const RegistryGrant *grant,
								 const SnowflakeLease *last, bool is_held,
								 TimestampTz now);
static const char *registry_number_text(int64 number);

/*
 * Claims a worker id, or renews the lease that is held.  "last" is the lease
 * that the server holds or held last; its next_incarnation is the incarnation
 * of this claim.  Returns false if there is no grant that can be used.
 */
bool
registry_claim(SnowflakeConnection *connection, const SnowflakeLease *last,
			   bool is_held,
			   RegistryGrant *grant)
{
	const SnowflakeLayout *layout = node_layout();
	int			wanted = node_worker_id;
	bool		is_new = last->worker_id == WORKER_ID_UNSET;
	int64		sent_us = clock_boottime_us();
	const char *arguments[] = {
		layout_to_text(layout),
		clock_text(layout->epoch),
		registry_number_text(node_datacenter_id),
		wanted == WORKER_ID_UNSET ? NULL : registry_number_text(wanted),
		holder_text,
		registry_server_name,
		clock_text(GetCurrentTimestamp() + AHEAD_MAX_US),
		is_new ? NULL : registry_number_text(last->worker_id),
		is_new ? NULL : registry_number_text(last->incarnation),
		is_held ? clock_text(last->fence) : NULL,
		registry_number_text(last->next_incarnation)
	};
	PGresult   *result;
	bool		is_granted;

	ereport(DEBUG1,
			(errmsg_internal("claiming snowflake worker_id %s of datacenter_id %d with incarnation " INT64_FORMAT,
							 wanted == WORKER_ID_UNSET ? "any" : arguments[3],
							 node_datacenter_id, last->next_incarnation),
			 is_new ? 0 : is_held ?
			 errdetail_internal("The lease held is on worker_id %d, with incarnation " INT64_FORMAT " and fence %s.",
								last->worker_id, last->incarnation,
								arguments[9]) :
			 errdetail_internal("The last lease was on worker_id %d, with incarnation " INT64_FORMAT ".",
								last->worker_id, last->incarnation)));
	Assert(last->next_incarnation != LEASE_NO_INCARNATION);

	result = connection_query(connection, claim_sql, arguments,
							  lengthof(arguments), claim_columns,
							  lengthof(claim_columns));
	if (result == NULL)
		return false;
	is_granted = registry_read_answer(connection, result, sent_us, last,
									  is_held, grant);
	strlcpy(grant->lease.holder, holder_text, LEASE_HOLDER_SIZE);
	PQclear(result);
	return is_granted;
}

/* Reads a grant or a refusal.  Returns false for all but a usable grant. */
static bool
registry_read_answer(SnowflakeConnection *connection, const PGresult *result,
					 int64 sent_us, const SnowflakeLease *last, bool is_held,
					 RegistryGrant *grant)
{
	SnowflakeLease *lease = &grant->lease;
	TimestampTz now = GetCurrentTimestamp();

	memset(grant, 0, sizeof(*grant));
	if (!PQgetisnull(result, 0, COLUMN_REFUSAL))
	{
		connection->is_refusal = true;
		connection_fail_by_answer(connection,
								  PQgetvalue(result, 0, COLUMN_REFUSAL),
								  PQgetvalue(result, 0, COLUMN_DETAIL));
		return false;
	}
	grant->begins_at = connection_get_number(result, COLUMN_BEGINS_AT);
	grant->duration_us = connection_get_number(result, COLUMN_DURATION);
	lease->datacenter_id = node_datacenter_id;
	lease->worker_id = (int32) connection_get_number(result, COLUMN_WORKER_ID);
	lease->incarnation = last->next_incarnation;
	lease->next_incarnation = LEASE_NO_INCARNATION;
	lease->ends_us = sent_us + grant->duration_us - grant->duration_us / 10;
	lease->fence = connection_get_number(result, COLUMN_FENCE);
	lease->registry = node_registry_hash();

	if (!registry_is_possible(result, grant, last, is_held, now))
		connection_fail_by_answer(connection, "impossible",
								  psprintf("The registry grants what it must not: worker_id %d for " INT64_FORMAT " us, with ids from %s to %s.",
										   lease->worker_id,
										   grant->duration_us,
										   clock_text(grant->begins_at),
										   clock_text(lease->fence)));
	else if (lease->fence <= now)
		connection_fail_by_answer(connection, "past",
								  psprintf("The registry's clock is at %s, and its lease on worker_id %d is for ids before %s, but this server's clock is at %s.",
										   clock_text(connection_get_number(result, COLUMN_CLOCK)),
										   lease->worker_id,
										   clock_text(lease->fence),
										   clock_text(now)));
	else
	{
		ereport(DEBUG1,
				(errmsg_internal("the registry grants snowflake worker_id %d for " INT64_FORMAT " us, with ids from %s to %s",
								 lease->worker_id, grant->duration_us,
								 clock_text(grant->begins_at),
								 clock_text(lease->fence))));
		return true;
	}
	return false;
}

/*
 * Can a registry have made this grant or renewal?  A server that holds a lease
 * gets no other worker id, and its ids have begun before its fence.  Ids of a
 * new lease begin at most AHEAD_MAX_US ahead of the clock, so that no wrong
 * clock puts the server's mark far ahead.
 */
static bool
registry_is_possible(const PGresult *result, const RegistryGrant *grant,
					 const SnowflakeLease *last, bool is_held, TimestampTz now)
{
	int			worker_id = grant->lease.worker_id;
	int			wanted = node_worker_id;

	for (int i = 0; i < lengthof(claim_columns); i++)
	{
		if (claim_columns[i].type != TEXTOID && PQgetisnull(result, 0, i))
			return false;
	}
	if (worker_id < 0 ||
		worker_id > layout_field_max(node_layout()->worker_bits) ||
		(wanted != WORKER_ID_UNSET && worker_id != wanted) ||
		(is_held && worker_id != last->worker_id))
		return false;
	return grant->duration_us >= DURATION_MIN_US &&
		grant->duration_us <= DURATION_MAX_US &&
		IS_VALID_TIMESTAMP(grant->lease.fence) &&
		grant->begins_at <= AHEAD_MAX_US +
		(is_held ? Max(now, last->fence) : now);
}

/* Releases a lease, whose ids are all before "mark". */
bool
registry_release(SnowflakeConnection *connection, const SnowflakeLease *lease,
				 TimestampTz mark)
{
	const char *arguments[] = {
		registry_number_text(lease->datacenter_id),
		registry_number_text(lease->worker_id),
		lease->holder,
		registry_number_text(lease->incarnation),
		clock_text(mark)
	};
	PGresult   *result = connection_query(connection, release_sql, arguments,
										  lengthof(arguments), release_columns,
										  lengthof(release_columns));
	bool		is_released;

	if (result == NULL)
		return false;
	is_released = !PQgetisnull(result, 0, 0) &&
		connection_get_number(result, 0) != 0;
	if (!is_released)
		connection_fail(connection, "The registry does not know of this lease.");
	PQclear(result);
	return is_released;
}

static const char *
registry_number_text(int64 number)
{
	return psprintf(INT64_FORMAT, number);
}

/*
 * Check hook of snowflake.server_name.  The registry refuses claims with
 * control characters in the name, and PostgreSQL those with bytes that the
 * encoding of the registry's database does not have, so that the lease would
 * run out.
 */
bool
registry_check_name(char **newval, void **extra, GucSource source)
{
	size_t		length = strlen(*newval);

	for (size_t i = 0; i < length; i++)
	{
		if ((*newval)[i] < ' ' || (*newval)[i] > '~')
		{
			GUC_check_errdetail("A name has printable ASCII characters only, and byte %zu is another one.",
								i + 1);
			return false;
		}
	}
	if (length <= NAME_LENGTH_MAX)
		return true;
	GUC_check_errdetail("A name has at most %d bytes, and this one has %zu.",
						NAME_LENGTH_MAX, length);
	return false;
}
