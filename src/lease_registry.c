/*
 * lease_registry.c
 *	  The conversation with the registry: claim, renew, release.
 *
 * The registry is a database with the extension snowflake_registry, whose
 * functions decide who gets a lease, each call in one transaction.  This file
 * sends claims and releases, and reads the answers; lease_worker.c decides
 * when.
 *
 * The registry and the servers keep the ids of two holders of one worker id
 * apart by these rules:
 *
 * - The registry grants each lease with a fence: an instant that the holder's
 *	 ids stay before.  The high-water mark goes no further than the end of the
 *	 lease and the fence, and ids stay before the mark.  So issuing an id needs
 *	 no look at the lease, and the mark stops a server that goes on after a
 *	 suspension.
 * - The next holder of a worker id begins at the fence of the last holder.  So
 *	 no id is issued twice even if clocks are wrong, or if a server holds the
 *	 lease for longer than the registry thinks; clocks only decide who waits.
 * - A server measures its lease from before it sends the claim, on a clock
 *	 that nobody can set, and ends it a tenth early, in case the registry's
 *	 clock is faster.
 * - One function both claims and renews, and its arguments tell what the
 *	 server holds.  So a registry that has failed over, or was restored, learns
 *	 of leases and fences that it has forgotten, and grants nothing to newcomers
 *	 until the forgotten leases are over.
 * - Each grant has an incarnation, a random number that the server has chosen
 *	 and made durable before it sent the claim.  The server repeats a claim
 *	 without an answer with the same incarnation, also after a crash, and the
 *	 registry repeats its grant.  The registry changes no lease for a message
 *	 that arrives late, nor for a copy of the data directory: the message has
 *	 an old incarnation, and the copy is another holder.
 * - A server that restarts within its lease, as the same holder and on the same
 *	 timeline, resumes the lease without asking the registry.
 * - A server that stops makes its last mark durable before it releases the
 *	 worker id, and does not raise the mark after that.
 *
 * doc/model/lease.pml checks these rules in every order of events.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "host.h"
#include "id_clock.h"
#include "lease_registry.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

/* The longest snowflake.server_name: the longest identifier. */
#define NAME_LENGTH_MAX (NAMEDATALEN - 1)

/* parameter */
char	   *registry_server_name = NULL;

/* The columns of an answer to a claim. */
enum
{
	COLUMN_WORKER_ID,
	COLUMN_BEGINS_AT,			/* the last holder's fence */
	COLUMN_FENCE,
	COLUMN_DURATION,
	COLUMN_CONTINUES,
	COLUMN_POSITION,
	COLUMN_REFUSAL,
	COLUMN_DETAIL
};

static const char *const claim_columns =
"worker_id, begins_at, fence, duration_us, continues, registry_position,"
" refusal, detail";

static void add_server(ConnectionArguments *arguments, const Lease *previous);
static void add_previous(ConnectionArguments *arguments, const Lease *previous,
						 bool is_held);
static void read_grant(const PGresult *result, int64 asked_us,
					   const Lease *previous, RegistryAnswer *answer);

/*
 * Claims a worker id, or renews the lease that is held.  "previous" is the
 * lease that the server holds or held last; its next_incarnation is the
 * incarnation of this claim.
 */
void
registry_claim(Remote *remote, const Lease *previous, bool is_held,
			   RegistryAnswer *answer)
{
	ConnectionArguments arguments = {0};
	int64		asked_us = clock_boottime_us();
	PGresult   *result;

	memset(answer, 0, sizeof(*answer));
	add_server(&arguments, previous);
	add_previous(&arguments, previous, is_held);
	result = connection_call(remote, claim_columns, "snowflake_registry.claim",
							 &arguments);
	if (result == NULL)
		return;
	if (!connection_is_null(result, COLUMN_WORKER_ID))
		read_grant(result, asked_us, previous, answer);
	else
	{
		answer->outcome = REGISTRY_REFUSED;
		strlcpy(answer->code, PQgetvalue(result, 0, COLUMN_REFUSAL),
				REGISTRY_CODE_SIZE);
		strlcpy(answer->reason, PQgetvalue(result, 0, COLUMN_DETAIL),
				CONNECTION_REASON_SIZE);
	}
	PQclear(result);
}

/*
 * Adds the arguments of a claim that describe this server: its layout and
 * epoch, the worker id that it wants, its names and its clock.
 */
static void
add_server(ConnectionArguments *arguments, const Lease *previous)
{
	const Layout *layout = node_layout();
	char		layout_text[LAYOUT_TEXT_SIZE];
	int			wanted = node_intended_worker_id();

	layout_to_text(layout, layout_text);
	connection_add_text(arguments, "layout", TEXTOID, layout_text);
	connection_add_instant(arguments, "epoch", layout->epoch);
	connection_add_number(arguments, "datacenter_id", INT4OID, node_datacenter_id);
	if (wanted != WORKER_ID_UNSET)
		connection_add_number(arguments, "wanted_worker_id", INT4OID, wanted);
	else
		connection_add_null(arguments, "wanted_worker_id", INT4OID);
	connection_add_text(arguments, "holder", TEXTOID, host_holder);
	connection_add_text(arguments, "name", TEXTOID, registry_server_name);
	connection_add_instant(arguments, "clock", GetCurrentTimestamp());
	connection_add_number(arguments, "next_incarnation", INT8OID,
						  previous->next_incarnation);
}

/* Adds the lease that this server holds or, without one, held last. */
static void
add_previous(ConnectionArguments *arguments, const Lease *previous, bool is_held)
{
	connection_add_text(arguments, "is_held", BOOLOID, is_held ? "true" : "false");
	if (previous->worker_id == WORKER_ID_UNSET)
		return;
	connection_add_text(arguments, "previous_holder", TEXTOID, previous->holder);
	connection_add_number(arguments, "previous_worker_id", INT4OID,
						  previous->worker_id);
	connection_add_number(arguments, "previous_incarnation", INT8OID,
						  previous->incarnation);
	connection_add_instant(arguments, "previous_fence", previous->fence);
	connection_add_position(arguments, "previous_position", previous->position);
}

/*
 * Reads a grant.  The server's lease ends a tenth of the duration before the
 * registry's, in case the registry's clock is faster.
 */
static void
read_grant(const PGresult *result, int64 asked_us, const Lease *previous,
		   RegistryAnswer *answer)
{
	Lease	   *lease = &answer->lease;

	answer->outcome = REGISTRY_GRANTED;
	answer->continues = connection_get_number(result, COLUMN_CONTINUES) != 0;
	answer->last_fence = connection_get_number(result, COLUMN_BEGINS_AT);
	answer->duration_us = connection_get_number(result, COLUMN_DURATION);
	strlcpy(lease->holder, host_holder, LEASE_HOLDER_SIZE);
	lease->datacenter_id = node_datacenter_id;
	lease->worker_id = (int32) connection_get_number(result, COLUMN_WORKER_ID);
	lease->incarnation = previous->next_incarnation;
	lease->next_incarnation = LEASE_NO_INCARNATION;
	lease->position = (uint64) connection_get_number(result, COLUMN_POSITION);
	lease->ends_us = asked_us + answer->duration_us - answer->duration_us / 10;
	lease->fence = connection_get_number(result, COLUMN_FENCE);
	lease->registry = node_registry_hash();
}

/*
 * Releases a lease, whose ids are all before "end".  Returns true if the
 * registry has released the lease; else "remote" has the reason.
 */
bool
registry_release(Remote *remote, const Lease *lease, TimestampTz end)
{
	ConnectionArguments arguments = {0};
	PGresult   *result;
	bool		is_released;

	connection_add_number(&arguments, "datacenter_id", INT4OID,
						  lease->datacenter_id);
	connection_add_number(&arguments, "worker_id", INT4OID, lease->worker_id);
	connection_add_text(&arguments, "holder", TEXTOID, lease->holder);
	connection_add_number(&arguments, "incarnation", INT8OID, lease->incarnation);
	connection_add_instant(&arguments, "mark", end);
	result = connection_call(remote, "release", "snowflake_registry.release",
							 &arguments);
	if (result == NULL)
		return false;
	is_released = connection_get_number(result, 0) != 0;
	if (!is_released)
		connection_set_reason(remote, "The registry does not know of this lease.");
	PQclear(result);
	return is_released;
}

/*
 * GUC check hook of snowflake.registry: the value has to be a connection
 * string.  The error does not show the value, which may have a password.
 */
bool
registry_check_conninfo(char **newval, void **extra, GucSource source)
{
	char	   *detail = NULL;

	(void) extra;
	(void) source;
	if (connection_is_valid_string(*newval, &detail))
		return true;
	GUC_check_errmsg("invalid value for parameter \"%s\"", "snowflake.registry");
	GUC_check_errdetail("%s", detail);
	GUC_check_errhint("It is a connection string, such as \"host=registry1,registry2 dbname=registry user=snowflake\".");
	return false;
}

/* GUC check hook of snowflake.server_name. */
bool
registry_check_name(char **newval, void **extra, GucSource source)
{
	(void) extra;
	(void) source;
	if (strlen(*newval) <= NAME_LENGTH_MAX)
		return true;
	GUC_check_errdetail("A name has at most %d bytes.", NAME_LENGTH_MAX);
	return false;
}
