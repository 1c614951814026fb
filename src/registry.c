/*
 * registry.c
 *	  The conversation with the registry: claim, renew, release.
 *
 * The registry is a database with the extension snowflake_registry.  The rules
 * are there, in transactions; here is what is sent and what an answer means.
 * lease_worker.c says when.
 *
 * What keeps ids of one worker id apart, whoever has it:
 *
 * - The registry grants each lease with a fence: an instant that no id of the
 *	 holder lies at or beyond.  The high-water mark goes no further than the
 *	 lease and the fence, and ids stay before the mark.  So no id needs a look
 *	 at the lease, and a server that was suspended finds the mark in its way
 *	 when it goes on.
 * - The next holder of a worker id begins at the fence of the last one.  So
 *	 even where clocks are wrong, or one server holds the lease for longer than
 *	 the registry thinks, no id comes twice; clocks only decide who waits.
 * - A server counts its lease from before it asked, on a clock that nobody
 *	 sets, and less a tenth, in case the registry's clock goes faster.
 * - One question both claims and renews: "this is what I hold".  A registry
 *	 that has failed over, or was restored, so learns of leases and fences that
 *	 it has forgotten, and grants nothing to newcomers until those are over.
 * - Each grant has an incarnation, which is random, and which the server has
 *	 chosen and made durable before it asked.  A question without an answer is
 *	 asked again with the same incarnation, also after a crash, and is granted
 *	 again if it was granted before.  A copy of the data directory, which is
 *	 another holder, and a late message have an old incarnation and change
 *	 nothing.
 * - A restart within the lease, as the same holder and on the same timeline,
 *	 goes on without asking.
 * - A server that stops moves the mark no more, and has that in WAL, before
 *	 it gives the worker id back.
 *
 * doc/model/lease.pml tries all of that in every order.
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

/* parameter */
char	   *registry_name = NULL;

/*
 * GUC check hook of snowflake.registry: the value has to be a connection
 * string.  The message is without the value, which may have a password.
 */
bool
registry_check_conninfo(char **newval, void **extra, GucSource source)
{
	char	   *detail = NULL;

	(void) extra;
	(void) source;
	if (remote_is_valid_string(*newval, &detail))
		return true;
	GUC_check_errmsg("invalid value for parameter \"%s\"", "snowflake.registry");
	GUC_check_errdetail("%s", detail);
	GUC_check_errhint("It is a connection string, such as \"host=registry1,registry2 dbname=registry user=snowflake\".");
	return false;
}

/* GUC check hook of snowflake.registry_name. */
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

/* What is asked: the fleet's constants, who asks, and what it is to get. */
static void
add_server(RemoteArguments *arguments, const Lease *previous)
{
	const Layout *layout = node_layout();
	char		layout_text[LAYOUT_TEXT_SIZE];
	int			wanted = node_intended_worker_id();

	layout_to_text(layout, layout_text);
	remote_add_text(arguments, "layout", TEXTOID, layout_text);
	remote_add_instant(arguments, "epoch", layout->epoch);
	remote_add_number(arguments, "datacenter_id", INT4OID, node_datacenter_id);
	if (wanted != NODE_WORKER_ID_UNSET)
		remote_add_number(arguments, "wanted_worker_id", INT4OID, wanted);
	else
		remote_add_null(arguments, "wanted_worker_id", INT4OID);
	remote_add_text(arguments, "holder", TEXTOID, host_holder);
	remote_add_text(arguments, "name", TEXTOID, registry_name);
	remote_add_instant(arguments, "clock", GetCurrentTimestamp());
	remote_add_number(arguments, "next_incarnation", INT8OID,
					  previous->next_incarnation);
}

/* What the server holds or, if it holds nothing, what it held last. */
static void
add_previous(RemoteArguments *arguments, const Lease *previous, bool is_held)
{
	remote_add_text(arguments, "is_held", BOOLOID, is_held ? "true" : "false");
	if (previous->worker_id == LEASE_NONE)
		return;
	remote_add_text(arguments, "previous_holder", TEXTOID, previous->holder);
	remote_add_number(arguments, "previous_worker_id", INT4OID,
					  previous->worker_id);
	remote_add_number(arguments, "previous_incarnation", INT8OID,
					  previous->incarnation);
	remote_add_instant(arguments, "previous_fence", previous->fence);
	remote_add_position(arguments, "previous_position", previous->position);
}

/* The columns of an answer to a claim. */
enum
{
	COLUMN_WORKER_ID,
	COLUMN_BEGINS_AT,
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

/* Reads a grant: a tenth of the duration is the margin. */
static void
read_grant(const PGresult *result, int64 asked_us, const Lease *previous,
		   RegistryAnswer *answer)
{
	Lease	   *lease = &answer->lease;

	answer->outcome = REGISTRY_GRANTED;
	answer->continues = remote_get_number(result, COLUMN_CONTINUES) != 0;
	answer->begins_at = remote_get_number(result, COLUMN_BEGINS_AT);
	answer->duration_us = remote_get_number(result, COLUMN_DURATION);
	strlcpy(lease->holder, host_holder, LEASE_HOLDER_SIZE);
	lease->datacenter_id = node_datacenter_id;
	lease->worker_id = (int32) remote_get_number(result, COLUMN_WORKER_ID);
	lease->incarnation = previous->next_incarnation;
	lease->next_incarnation = 0;
	lease->position = (uint64) remote_get_number(result, COLUMN_POSITION);
	lease->ends_us = asked_us + answer->duration_us - answer->duration_us / 10;
	lease->fence = remote_get_number(result, COLUMN_FENCE);
	lease->registry = node_registry_hash();
}

/*
 * Claims a worker id, or renews the lease on the one that is held: "previous"
 * is what the server holds or held last, and has the incarnation to ask with.
 */
void
registry_claim(Remote *remote, const Lease *previous, bool is_held,
			   RegistryAnswer *answer)
{
	RemoteArguments arguments = {0};
	int64		asked_us = clock_boottime_us();
	PGresult   *result;

	memset(answer, 0, sizeof(*answer));
	add_server(&arguments, previous);
	add_previous(&arguments, previous, is_held);
	result = remote_call(remote, claim_columns, "snowflake_registry.claim",
						 &arguments);
	if (result == NULL)
		return;
	if (!remote_is_null(result, COLUMN_WORKER_ID))
		read_grant(result, asked_us, previous, answer);
	else
	{
		answer->outcome = REGISTRY_REFUSED;
		strlcpy(answer->code, PQgetvalue(result, 0, COLUMN_REFUSAL),
				REGISTRY_CODE_SIZE);
		strlcpy(answer->reason, PQgetvalue(result, 0, COLUMN_DETAIL),
				REMOTE_REASON_SIZE);
	}
	PQclear(result);
}

/*
 * Gives a lease back: no id of it lies at or beyond "end".  True if the
 * registry has taken it; else the reason is in "remote".
 */
bool
registry_release(Remote *remote, const Lease *lease, TimestampTz end)
{
	RemoteArguments arguments = {0};
	PGresult   *result;
	bool		is_released;

	remote_add_number(&arguments, "datacenter_id", INT4OID,
					  lease->datacenter_id);
	remote_add_number(&arguments, "worker_id", INT4OID, lease->worker_id);
	remote_add_text(&arguments, "holder", TEXTOID, lease->holder);
	remote_add_number(&arguments, "incarnation", INT8OID, lease->incarnation);
	remote_add_instant(&arguments, "mark", end);
	result = remote_call(remote, "release", "snowflake_registry.release",
						 &arguments);
	if (result == NULL)
		return false;
	is_released = remote_get_number(result, 0) != 0;
	if (!is_released)
		remote_set_reason(remote, "The registry does not know of this lease.");
	PQclear(result);
	return is_released;
}
