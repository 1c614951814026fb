/*
 * registry.c
 *	  A worker id leased from another PostgreSQL, and its worker.
 *
 * The registry is a database with the table snowflake_lease, a row for each
 * worker id, and functions that claim, renew and release; see
 * snowflake_registry_create().  The rules are there, in transactions; here is
 * who asks.  What keeps ids of one worker id apart, whoever has it:
 *
 * - A lease is counted from before it was asked for, on a clock that nobody
 *	 sets, and less a margin, in case that the registry's goes faster.  It is
 *	 renewed long before it is over.
 * - With each renewal the server promises an instant that no id of it will
 *	 lie at or beyond.  The high-water mark goes no further than the lease
 *	 and the promise, and ids stay before the mark: so the lease needs no look
 *	 on the way of an id, and a server that was suspended finds the mark in
 *	 its way when it goes on.
 * - Who gets a worker id that another server has had begins after what that
 *	 one has promised.  So even where clocks are wrong, or one server holds
 *	 the lease for longer than the registry thinks, no id comes twice; all
 *	 that depends on clocks is whether somebody has to wait.
 * - Each claim and each renewal has a number, the incarnation, and a lease is
 *	 renewed by its present one: so what was sent once and arrives late, or
 *	 from a copy of the data directory, changes nothing.  A copy is known by
 *	 its place (see lease.c), or by a renewal that was none of ours, and gets a
 *	 worker id of its own.  An answer that comes late is not taken, either.
 * - A registry that has failed over may have forgotten its newest leases and
 *	 promises.  It grants nothing to newcomers until those are over, and no
 *	 promise goes further than it would know even then.
 * - A restart within the lease, in the same place, goes on without asking.
 * - A server that stops moves the mark no more, and has that on disk, before
 *	 it gives the worker id back.
 *
 * doc/model/lease.pml tries all of that in every order.  An answer that does
 * not come is as if nobody had asked: it is asked again.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "clock.h"
#include "compat.h"
#include "highwater.h"
#include "lease.h"
#include "miscadmin.h"
#include "node.h"
#include "postmaster/interrupt.h"
#include "registry.h"
#include "remote.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

/* the longest snowflake.registry_name, as that of an identifier */
#define NAME_LENGTH_MAX (NAMEDATALEN - 1)

/* How long an attempt to reach the registry may take, and how long between. */
#define ATTEMPT_MAX_US INT64CONST(10000000)
#define ATTEMPT_MIN_US INT64CONST(1000000)
#define RETRY_MAX_US INT64CONST(5000000)
#define RETRY_MIN_US INT64CONST(200000)

/* How long the end of the server may wait for it. */
#define RELEASE_US INT64CONST(2000000)

/* parameters */
int			registry_lease_duration_s = 600;
char	   *registry_name = NULL;

/* What the worker knows beyond what all may know. */
typedef struct Tenancy
{
	Lease		lease;			/* as the registry has it, or last had it */
	bool		has_begin;		/* does it begin at an instant? */
	TimestampTz begins_at;
	int			unanswered;		/* asked since, and perhaps granted */
} Tenancy;

/* What came of an attempt. */
typedef enum Answer
{
	ANSWER_NONE,				/* none, or nothing that helps */
	ANSWER_REFUSED,				/* there is no worker id for us */
	ANSWER_GRANTED
} Answer;

/* Stops the start if the parameters cannot be right. */
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
}

static int64
lease_duration_us(void)
{
	return (int64) registry_lease_duration_s * USECS_PER_SEC;
}

/* A part of the lease's duration, within limits. */
static int64
part_of_duration_us(int part, int64 least_us, int64 most_us)
{
	return Max(least_us, Min(most_us, lease_duration_us() / part));
}

/*
 * The schema that the registry is in, quoted: the extension's, which nobody
 * can put another one in front of.  NULL, and a reason, if there is none.
 */
static char *
find_registry(Remote *remote)
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
 * Renews a lease, with a promise as far ahead of the clock as it is to last;
 * the registry may grant less of both.  The lease is changed only if so.
 */
static Answer
renew(Remote *remote, const char *schema, Tenancy *tenancy)
{
	Lease	   *lease = &tenancy->lease;
	int64		asked_us = lease_clock_us();
	TimestampTz promise = GetCurrentTimestamp() + lease_duration_us();
	RemoteArguments arguments = {0};
	PGresult   *result;
	Answer		answer = ANSWER_REFUSED;

	remote_add_number(&arguments, INT4OID, lease->datacenter_id);
	remote_add_number(&arguments, INT4OID, lease->worker_id);
	remote_add_text(&arguments, TEXTOID, lease->holder);
	remote_add_number(&arguments, INT8OID, lease->incarnation);
	remote_add_text(&arguments, TEXTOID, registry_name);
	remote_add_instant(&arguments, promise);
	add_duration(&arguments);
	tenancy->unanswered++;
	result = remote_query(remote,
						  psprintf("SELECT granted_incarnation,"
								   " (extract(epoch FROM granted_duration) * 1000000)::bigint,"
								   " granted_promise"
								   " FROM %s.snowflake_lease_renew($1, $2, $3, $4, $5, $6, $7)",
								   schema),
						  &arguments);
	if (result == NULL)
		return ANSWER_NONE;

	tenancy->unanswered--;
	if (!remote_is_null(result, 0))
	{
		int64		granted_us = remote_get_number(result, 1);

		lease->incarnation = remote_get_number(result, 0);
		lease->promise = Max(lease->promise,
							 remote_get_number(result, 2));

		/* a tenth is the margin */
		lease->ends_us = asked_us + granted_us - granted_us / 10;
		tenancy->unanswered = 0;
		answer = ANSWER_GRANTED;
	}
	PQclear(result);
	return answer;
}

/*
 * What the server had before goes with a claim, for it to get it again.  If
 * the lease has another incarnation by now, that may be by a claim or renewal
 * of ours whose answer was lost: then leased_at tells that it is ours.  If all
 * was answered it is somebody else, even if he seems to be us: a machine that
 * was duplicated with its memory has two servers in one place.
 */
static void
add_previous(RemoteArguments *arguments, const Tenancy *tenancy, bool is_held)
{
	const Lease *previous = &tenancy->lease;

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
	remote_add_number(arguments, INT4OID, tenancy->unanswered);
	remote_add_text(arguments, BOOLOID, is_held ? "true" : "false");
}

/* Claims a worker id: ours, if we have had one; the configured one, if so. */
static Answer
claim(Remote *remote, const char *schema, Tenancy *tenancy, bool is_held)
{
	Lease	   *lease = &tenancy->lease;
	TimestampTz promise = lease->promise;
	RemoteArguments arguments = {0};
	PGresult   *result;

	remote_add_number(&arguments, INT4OID, node_datacenter_id);
	remote_add_number(&arguments, INT8OID,
					  layout_field_max(node_layout()->worker_bits) + 1);
	if (node_intended_worker_id() == NODE_WORKER_ID_UNSET)
		remote_add_null(&arguments, INT4OID);
	else
		remote_add_number(&arguments, INT4OID, node_intended_worker_id());
	remote_add_text(&arguments, TEXTOID, lease_place());
	add_previous(&arguments, tenancy, is_held);
	remote_add_text(&arguments, TEXTOID, registry_name);
	remote_add_instant(&arguments, GetCurrentTimestamp());
	add_duration(&arguments);
	tenancy->unanswered++;
	result = remote_query(remote,
						  psprintf("SELECT granted_worker_id, granted_incarnation,"
								   " granted_leased_at, begins_at, refusal"
								   " FROM %s.snowflake_lease_claim($1, $2, $3, $4, $5, $6, $7,"
								   " $8, $9, $10, $11, $12, $13)",
								   schema),
						  &arguments);
	if (result == NULL)
		return ANSWER_NONE;

	tenancy->unanswered--;
	if (remote_is_null(result, 0))
	{
		strlcpy(remote->reason,
				remote_is_null(result, 4) ? "" : PQgetvalue(result, 0, 4),
				REMOTE_REASON_SIZE);
		PQclear(result);
		return ANSWER_REFUSED;
	}

	/*
	 * It is good for ids after the renewal that follows.  What was promised
	 * for the same worker id is not taken back: the mark may be near it.
	 */
	tenancy->unanswered = 0;
	memset(lease, 0, sizeof(*lease));
	strlcpy(lease->holder, lease_place(), LEASE_PLACE_SIZE);
	lease->datacenter_id = node_datacenter_id;
	lease->worker_id = (int32) remote_get_number(result, 0);
	lease->incarnation = remote_get_number(result, 1);
	lease->leased_at = remote_get_number(result, 2);
	lease->promise = promise;
	lease->registry = node_registry_hash();
	if (!remote_is_null(result, 3))
	{
		lease->promise = DT_NOBEGIN;
		tenancy->has_begin = true;
		tenancy->begins_at = remote_get_number(result, 3);
	}
	PQclear(result);
	return ANSWER_GRANTED;
}

/* Takes what has been renewed. */
static void
take(Tenancy *tenancy)
{
	highwater_take_lease(&tenancy->lease,
						 tenancy->has_begin ? &tenancy->begins_at : NULL);
	tenancy->has_begin = false;
}

/* The lease is over, or another's: no id may come any more. */
static void
lose(const Lease *held, const char *why)
{
	highwater_lose_lease();
	ereport(LOG,
			(errmsg("snowflake worker_id %d is leased to this server no more",
					held->worker_id),
			 errdetail("%s", _(why))));
}

/*
 * Asks over a connection: renews what is held, or claims and renews.  A lease
 * that is held is one that was renewed before; of one that the registry has
 * given to somebody else no use is made any more.
 */
static Answer
ask_connected(Remote *remote, Tenancy *tenancy)
{
	char	   *schema = find_registry(remote);
	Lease		held;
	bool		is_held;
	Answer		answer;

	if (schema == NULL)
		return ANSWER_NONE;

	highwater_read_lease(&held);
	is_held = lease_is_valid(&held, lease_clock_us());
	if (is_held && !tenancy->has_begin)
	{
		answer = renew(remote, schema, tenancy);
		if (answer != ANSWER_REFUSED)
			return answer;
	}

	answer = claim(remote, schema, tenancy, is_held);
	if (answer == ANSWER_NONE)
		return answer;
	if (is_held && (answer == ANSWER_REFUSED || tenancy->has_begin))
		lose(&held,
			 gettext_noop("The registry does not know of the lease."));
	if (answer == ANSWER_REFUSED)
		return answer;

	answer = renew(remote, schema, tenancy);
	if (answer == ANSWER_REFUSED)
		strlcpy(remote->reason, "what it grants is another's at once",
				REMOTE_REASON_SIZE);
	return answer;
}

/* What users are told of a failure; the log has all of it. */
static const char *
reason_for_users(const Remote *remote, Answer answer)
{
	if (answer == ANSWER_REFUSED)
		return remote->reason;
	if (remote->is_refused)
		return psprintf(_("The registry answers with an error: %s."),
						remote->reason);
	if (remote->is_out_of_time)
		return _("The registry does not answer in time.");
	return _("The registry cannot be reached, or does not let this server in.");
}

/*
 * Are two reasons the same but for their numbers?  Until when another one has
 * a lease changes with its every renewal.
 */
static bool
is_same_reason(const char *a, const char *b)
{
	const char *digits = "0123456789";

	for (;;)
	{
		a += strspn(a, digits);
		b += strspn(b, digits);
		if (*a != *b)
			return false;
		if (*a == '\0')
			return true;
		a++;
		b++;
	}
}

/* Logs what keeps us from a lease: once, until it is something else. */
static void
note_failure(const Remote *remote, Answer answer, char *last_reason)
{
	const char *reason = reason_for_users(remote, answer);

	highwater_note_failure(reason);
	if (is_same_reason(reason, last_reason))
		return;
	strlcpy(last_reason, reason, HIGHWATER_REASON_SIZE);
	ereport(WARNING,
			(errmsg("the registry has not granted a lease on a snowflake worker_id"),
			 errdetail("%s", remote->reason)));
}

/* Logs a lease that was not there before, or was in doubt. */
static void
note_grant(const Tenancy *tenancy, bool was_held, char *last_reason)
{
	const Lease *lease = &tenancy->lease;
	int64		left_us = lease->ends_us - lease_clock_us();

	if (!was_held)
		ereport(LOG,
				(errmsg("snowflake worker_id %d of datacenter_id %d is leased to this server until %s",
						lease->worker_id, lease->datacenter_id,
						timestamptz_to_str(GetCurrentTimestamp() + left_us))));
	else if (last_reason[0] != '\0')
		ereport(LOG,
				(errmsg("the lease on snowflake worker_id %d has been renewed",
						lease->worker_id)));
	last_reason[0] = '\0';
}

/* One attempt to get a lease, or to keep it. */
static Answer
ask(Tenancy *tenancy)
{
	static char last_reason[HIGHWATER_REASON_SIZE] = "";
	Remote		remote = {0};
	Lease		held;
	bool		was_held;
	Answer		answer = ANSWER_NONE;

	/* an answer must not come when what it grants is over */
	remote.deadline_us = lease_clock_us() +
		Min(part_of_duration_us(4, ATTEMPT_MIN_US, ATTEMPT_MAX_US),
			lease_duration_us() * 3 / 4);
	if (remote_connect(&remote, node_registry))
		answer = ask_connected(&remote, tenancy);
	remote_close(&remote);

	highwater_read_lease(&held);
	was_held = lease_is_valid(&held, lease_clock_us());
	if (answer == ANSWER_GRANTED)
	{
		take(tenancy);
		note_grant(tenancy, was_held, last_reason);
	}
	else if (!ShutdownRequestPending)
		note_failure(&remote, answer, last_reason);
	return answer;
}

/*
 * Gives the lease back at the end, so that the worker id is free before its
 * time.  Without an answer it may have been given back, or not.
 */
static void
release(Tenancy *tenancy)
{
	Remote		remote = {.is_urgent = true};
	Lease		lease;
	TimestampTz mark;
	char	   *schema;

	highwater_read_lease(&lease);
	if (!lease_is_valid(&lease, lease_clock_us()))
		return;

	/* out of reach: then it stays ours, for a restart that comes in time */
	remote.deadline_us = lease_clock_us() + RELEASE_US;
	if (remote_connect(&remote, node_registry) &&
		(schema = find_registry(&remote)) != NULL &&
		highwater_give_lease_up(&lease, &mark))
	{
		RemoteArguments arguments = {0};
		PGresult   *result;

		remote_add_number(&arguments, INT4OID, lease.datacenter_id);
		remote_add_number(&arguments, INT4OID, lease.worker_id);
		remote_add_text(&arguments, TEXTOID, lease.holder);
		remote_add_number(&arguments, INT8OID, tenancy->lease.incarnation);
		remote_add_instant(&arguments, mark);
		result = remote_query(&remote,
							  psprintf("SELECT %s.snowflake_lease_release($1, $2, $3, $4, $5)",
									   schema),
							  &arguments);
		if (result != NULL && remote_get_number(result, 0) != 0)
			ereport(LOG,
					(errmsg("snowflake worker_id %d has been given back to the registry",
							lease.worker_id)));
		else if (result != NULL)
			strlcpy(remote.reason, "it has been leased once more since",
					REMOTE_REASON_SIZE);
		PQclear(result);
	}
	if (remote.reason[0] != '\0')
		ereport(LOG,
				(errmsg("snowflake worker_id %d could not be given back to the registry",
						lease.worker_id),
				 errdetail("%s", remote.reason)));
	remote_close(&remote);
}

static void
forget_registry(int code, Datum arg)
{
	(void) code;
	(void) arg;
	highwater_announce_registry(NULL);
}

/*
 * When to ask next, by lease_clock_us(): in good time, or at once where the
 * clock is past what was promised.
 */
static int64
next_attempt_us(Answer answer, int64 asked_us)
{
	int64		retry_us = asked_us +
		part_of_duration_us(60, RETRY_MIN_US, RETRY_MAX_US);
	Lease		lease;

	highwater_read_lease(&lease);
	if (answer != ANSWER_GRANTED || lease.promise <= GetCurrentTimestamp())
		return retry_us;

	/* the registry may have granted less than was asked for */
	return Max(retry_us, asked_us + (lease.ends_us - asked_us) / 3);
}

/* The worker: keeps the lease. */
void
registry_worker_main(Datum main_arg)
{
	Tenancy		tenancy = {0};
	bool		is_held = false;
	Answer		answer = ANSWER_NONE;
	int64		asked_us = lease_clock_us() - lease_duration_us();
	MemoryContext attempt_context;

	worker_begin();

	/* without the state file no id is issued until the next start */
	if (highwater_state->fault != STATE_SOUND)
		proc_exit(0);

	/* whoever was here before us may have asked, and not lived to learn */
	tenancy.unanswered = 1;
	highwater_read_lease(&tenancy.lease);
	highwater_announce_registry(MyLatch);
	before_shmem_exit(forget_registry, (Datum) 0);
	attempt_context = AllocSetContextCreate(TopMemoryContext,
											"snowflake registry",
											ALLOCSET_DEFAULT_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContextSwitchTo(attempt_context);

	while (!ShutdownRequestPending)
	{
		int64		now_us = lease_clock_us();
		int64		wake_us = next_attempt_us(answer, asked_us);
		Lease		lease;

		if (now_us >= wake_us)
		{
			asked_us = now_us;
			answer = ask(&tenancy);
			MemoryContextReset(attempt_context);
			wake_us = next_attempt_us(answer, asked_us);
		}

		highwater_read_lease(&lease);
		now_us = lease_clock_us();
		if (is_held && !lease_is_valid(&lease, now_us) && lease.ends_us != 0)
			lose(&lease,
				 gettext_noop("It has not been renewed in time."));
		is_held = lease_is_valid(&lease, now_us);
		if (is_held)
			wake_us = Min(wake_us, lease.ends_us);

		if (now_us < wake_us && !ShutdownRequestPending)
			(void) WaitLatch(MyLatch,
							 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (long) ((wake_us - now_us) / 1000 + 1),
							 wait_event_of(WAIT_IN_REGISTRY_WORKER));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		worker_heed_reload();
	}

	release(&tenancy);

	/* with 0 it would not be started again, should only it be stopped */
	proc_exit(1);
}

void
registry_register_worker(void)
{
	if (node_is_leased())
		worker_register("snowflake registry", "registry_worker_main");
}
