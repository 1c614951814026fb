/*
 * registry.c
 *	  The conversation with the registry: claim, renew, release.
 *
 * The registry is a database with the table snowflake_lease, a row for each
 * worker id, and functions that claim, renew and release; see
 * snowflake_registry_create().  The rules are there, in transactions; here is
 * what is sent and what an answer means.  lease_worker.c says when.
 *
 * What keeps ids of one worker id apart, whoever has it:
 *
 * - A lease is counted from before it was asked for, on a clock that nobody
 *	 sets, and less a margin, in case the registry's clock goes faster.  It is
 *	 renewed long before it is over.
 * - With each renewal the server promises a fence: an instant that no id of it
 *	 will lie at or beyond.  The high-water mark goes no further than the lease
 *	 and the fence, and ids stay before the mark: so the lease needs no look
 *	 on the way of an id, and a server that was suspended finds the mark in
 *	 its way when it goes on.
 * - Who gets a worker id that another holder has had begins at that holder's
 *	 fence.  So even where clocks are wrong, or one server holds the lease for
 *	 longer than the registry thinks, no id comes twice; all that depends on
 *	 clocks is whether somebody has to wait.
 * - Each claim and each renewal has a number, the incarnation, and a lease is
 *	 renewed by its present one: so what was sent once and arrives late, or
 *	 from a copy of the data directory, changes nothing.  A copy is known by
 *	 its holder (see host_find_holder()), or by a renewal that was none of
 *	 ours, and gets a worker id of its own.  An answer that comes late is not
 *	 taken, either.
 * - A registry that has failed over may have forgotten its newest leases and
 *	 fences.  It grants nothing to newcomers until those are over, and no
 *	 fence goes further than it would know even then.
 * - A restart within the lease, as the same holder, goes on without asking.
 * - A server that stops moves the mark no more, and has that in WAL, before
 *	 it gives the worker id back.
 *
 * doc/model/lease.pml tries all of that in every order.  An answer that does
 * not come is as if nobody had asked: it is asked again.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "clock.h"
#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "registry.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

/* the longest snowflake.registry_name, as that of an identifier */
#define NAME_LENGTH_MAX (NAMEDATALEN - 1)

/* parameters */
int			registry_lease_duration_s = 600;
char	   *registry_name = NULL;

/*
 * Stops the start if the parameters cannot be right.  Called as
 * node_configure() is.
 */
void
registry_configure(void)
{
	char	   *detail = NULL;

	if (!node_is_leased())
		return;
	if (!remote_is_valid_string(node_registry, &detail))
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\"",
						"snowflake.registry"),
				 errdetail("%s", detail),
				 errhint("It is a connection string, such as \"host=registry1,registry2 dbname=registry user=snowflake\".")));
	if (strlen(registry_name) > NAME_LENGTH_MAX)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"snowflake.registry_name", registry_name),
				 errdetail("A name has at most %d bytes.",
						   NAME_LENGTH_MAX)));
	if (!IsUnderPostmaster)
		host_find_holder();
}

int64
registry_lease_duration_us(void)
{
	return (int64) registry_lease_duration_s * USECS_PER_SEC;
}

/*
 * The schema that the registry is in, quoted: the extension's, which nobody
 * can put another one in front of.  NULL, and a reason, if there is none.
 */
char *
registry_find(Remote *remote)
{
	static const RemoteArguments none = {0};
	PGresult   *result =
		remote_query(remote,
					 "SELECT pg_catalog.quote_ident(nspname),"
					 " EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid"
					 " AND proname = 'snowflake_lease_claim')"
					 " FROM pg_catalog.pg_extension"
					 " JOIN pg_catalog.pg_namespace AS n ON n.oid = extnamespace"
					 " WHERE extname = 'snowflake'",
					 &none);
	char	   *schema = NULL;

	if (result == NULL)
		return NULL;
	if (remote_is_null(result, 0))
	{
		remote->is_refused = true;
		strlcpy(remote->reason,
				"the database has no extension \"snowflake\"",
				REMOTE_REASON_SIZE);
	}
	else if (remote_get_number(result, 1) == 0)
	{
		remote->is_refused = true;
		strlcpy(remote->reason,
				"the database is no registry: snowflake_registry_create() has not been called",
				REMOTE_REASON_SIZE);
	}
	else
		schema = pstrdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return schema;
}

static void
add_duration(RemoteArguments *arguments)
{
	char		text[32];

	snprintf(text, sizeof(text), "%d s", registry_lease_duration_s);
	remote_add_text(arguments, INTERVALOID, text);
}

/*
 * Renews a lease, with a fence as far ahead of the clock as it is to last;
 * the registry may grant less of both.  The lease is changed only if so.
 */
RegistryAnswer
registry_renew(Remote *remote, const char *schema, RegistryLease *ours)
{
	Lease	   *lease = &ours->lease;
	int64		asked_us = clock_boottime_us();
	TimestampTz fence = GetCurrentTimestamp() + registry_lease_duration_us();
	RemoteArguments arguments = {0};
	PGresult   *result;
	RegistryAnswer answer = REGISTRY_REFUSED;

	remote_add_number(&arguments, INT4OID, lease->datacenter_id);
	remote_add_number(&arguments, INT4OID, lease->worker_id);
	remote_add_text(&arguments, TEXTOID, lease->holder);
	remote_add_number(&arguments, INT8OID, lease->incarnation);
	remote_add_text(&arguments, TEXTOID, registry_name);
	remote_add_instant(&arguments, fence);
	add_duration(&arguments);
	ours->unanswered++;
	result = remote_query(remote,
						  psprintf("SELECT granted_incarnation,"
								   " (extract(epoch FROM granted_duration) * 1000000)::bigint,"
								   " granted_promise"
								   " FROM %s.snowflake_lease_renew($1, $2, $3, $4, $5, $6, $7)",
								   schema),
						  &arguments);
	if (result == NULL)
		return REGISTRY_NONE;

	ours->unanswered--;
	if (!remote_is_null(result, 0))
	{
		int64		granted_us = remote_get_number(result, 1);

		lease->incarnation = remote_get_number(result, 0);
		lease->fence = Max(lease->fence,
							 remote_get_number(result, 2));

		/* a tenth is the margin */
		lease->ends_us = asked_us + granted_us - granted_us / 10;
		ours->unanswered = 0;
		answer = REGISTRY_GRANTED;
	}
	PQclear(result);
	return answer;
}

/*
 * What the server had before goes with a claim, for it to get it again.  If
 * the lease has another incarnation by now, that may be by a claim or renewal
 * of ours whose answer was lost: then leased_at tells that it is ours.  If all
 * was answered it is somebody else, even even if the holder has our own identity,
 * as in a machine duplicated with its memory.
 */
static void
add_previous(RemoteArguments *arguments, const RegistryLease *ours, bool is_held)
{
	const Lease *previous = &ours->lease;

	if (previous->worker_id == LEASE_NONE)
	{
		remote_add_null(arguments, TEXTOID);
		remote_add_null(arguments, INT4OID);
		remote_add_null(arguments, INT8OID);
		remote_add_null(arguments, TIMESTAMPTZOID);
	}
	else
	{
		remote_add_text(arguments, TEXTOID, previous->holder);
		remote_add_number(arguments, INT4OID, previous->worker_id);
		remote_add_number(arguments, INT8OID, previous->incarnation);
		remote_add_instant(arguments, previous->leased_at);
	}
	remote_add_number(arguments, INT4OID, ours->unanswered);
	remote_add_text(arguments, BOOLOID, is_held ? "true" : "false");
}

/* Claims a worker id: ours, if we have had one; the configured one, if so. */
RegistryAnswer
registry_claim(Remote *remote, const char *schema, RegistryLease *ours,
			   bool is_held)
{
	Lease	   *lease = &ours->lease;
	TimestampTz fence = lease->fence;
	RemoteArguments arguments = {0};
	PGresult   *result;

	remote_add_number(&arguments, INT4OID, node_datacenter_id);
	remote_add_number(&arguments, INT8OID,
					  layout_field_max(node_layout()->worker_bits) + 1);
	if (node_intended_worker_id() == NODE_WORKER_ID_UNSET)
		remote_add_null(&arguments, INT4OID);
	else
		remote_add_number(&arguments, INT4OID, node_intended_worker_id());
	remote_add_text(&arguments, TEXTOID, host_holder);
	add_previous(&arguments, ours, is_held);
	remote_add_text(&arguments, TEXTOID, registry_name);
	remote_add_instant(&arguments, GetCurrentTimestamp());
	add_duration(&arguments);
	ours->unanswered++;
	result = remote_query(remote,
						  psprintf("SELECT granted_worker_id, granted_incarnation,"
								   " granted_leased_at, begins_at, refusal"
								   " FROM %s.snowflake_lease_claim($1, $2, $3, $4, $5, $6, $7,"
								   " $8, $9, $10, $11, $12, $13)",
								   schema),
						  &arguments);
	if (result == NULL)
		return REGISTRY_NONE;

	ours->unanswered--;
	if (remote_is_null(result, 0))
	{
		strlcpy(remote->reason,
				remote_is_null(result, 4) ? "" : PQgetvalue(result, 0, 4),
				REMOTE_REASON_SIZE);
		PQclear(result);
		return REGISTRY_REFUSED;
	}

	/*
	 * It is good for ids after the renewal that follows.  What was promised
	 * for the same worker id is not taken back: the mark may be near it.
	 */
	ours->unanswered = 0;
	memset(lease, 0, sizeof(*lease));
	strlcpy(lease->holder, host_holder, LEASE_HOLDER_SIZE);
	lease->datacenter_id = node_datacenter_id;
	lease->worker_id = (int32) remote_get_number(result, 0);
	lease->incarnation = remote_get_number(result, 1);
	lease->leased_at = remote_get_number(result, 2);
	lease->fence = fence;
	lease->registry = node_registry_hash();
	if (!remote_is_null(result, 3))
	{
		lease->fence = DT_NOBEGIN;
		ours->has_begins_at = true;
		ours->begins_at = remote_get_number(result, 3);
	}
	PQclear(result);
	return REGISTRY_GRANTED;
}

/*
 * Gives a lease back: no id of it lies at or beyond "end".  True if the
 * registry has taken it; else the reason is in "remote".
 */
bool
registry_release(Remote *remote, const char *schema, const Lease *lease,
				 TimestampTz end)
{
	RemoteArguments arguments = {0};
	PGresult   *result;
	bool		is_released;

	remote_add_number(&arguments, INT4OID, lease->datacenter_id);
	remote_add_number(&arguments, INT4OID, lease->worker_id);
	remote_add_text(&arguments, TEXTOID, lease->holder);
	remote_add_number(&arguments, INT8OID, lease->incarnation);
	remote_add_instant(&arguments, end);
	result = remote_query(remote,
						  psprintf("SELECT %s.snowflake_lease_release($1, $2, $3, $4, $5)",
								   schema),
						  &arguments);
	if (result == NULL)
		return false;
	is_released = remote_get_number(result, 0) != 0;
	if (!is_released)
		strlcpy(remote->reason, "it has been leased once more since",
				REMOTE_REASON_SIZE);
	PQclear(result);
	return is_released;
}
