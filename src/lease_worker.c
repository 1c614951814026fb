/*
 * lease_worker.c
 *	  The worker that claims, renews and releases this server's lease; the
 *	  only process that changes a lease.
 *
 * What is said to the registry is in registry.c, what a lease allows in
 * lease.c, and where ids begin under a new lease in start.c.
 */
#include "postgres.h"

#include "clock.h"
#include "compat.h"
#include "host.h"
#include "lease_worker.h"
#include "mark.h"
#include "miscadmin.h"
#include "node.h"
#include "postmaster/interrupt.h"
#include "registry.h"
#include "remote.h"
#include "shmem.h"
#include "start.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

/* How often to renew at least, whatever the lease's duration. */
#define RENEW_MAX_US INT64CONST(60000000)

/* How long an attempt to reach the registry may take, and how long between. */
#define ATTEMPT_MAX_US INT64CONST(10000000)
#define ATTEMPT_MIN_US INT64CONST(1000000)
#define RETRY_MAX_US INT64CONST(5000000)
#define RETRY_MIN_US INT64CONST(200000)

/* How long the end of the server may wait for the registry. */
#define RELEASE_US INT64CONST(2000000)

/* The duration that is assumed before the registry has told its own. */
#define DURATION_UNKNOWN_US INT64CONST(120000000)

/* What the worker remembers from one attempt to the next. */
typedef struct Renewal
{
	int64		duration_us;	/* of the newest grant */
	int64		asked_us;		/* when the last attempt began */
	int64		retry_us;		/* how long to wait after a failure */
	bool		is_granted;		/* did that attempt succeed? */
	char		failure[REMOTE_REASON_SIZE];	/* the last one that was
												 * logged; empty: none since */
} Renewal;

/* A part of the lease's duration, within limits. */
static int64
part_of_duration_us(const Renewal *renewal, int part, int64 least_us,
					int64 most_us)
{
	return Max(least_us, Min(most_us, renewal->duration_us / part));
}

/* Remembers why there is no lease, or why it has not been renewed. */
static void
count_failure(const char *reason)
{
	backend_slots[MyProcNumber].slot.counters.lease_failures++;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	strlcpy(shared->lease_reason, reason, LEASE_REASON_SIZE);
	LWLockRelease(&shared->lock);
}

/* The changes of the lease in shared memory, which become durable at once. */
typedef struct Change
{
	const RegistryAnswer *grant;	/* to be taken; NULL: none */
	bool		is_new;			/* of a worker id that is not held now */
	bool		is_end;			/* the lease ends */
	bool		is_given_up;	/* because it is to be released */
	TimestampTz end;			/* out: no id of the ended lease reaches it */
} Change;

static void
apply(Change *change)
{
	if (change->is_end)
		change->end = start_end_lease(change->is_given_up);
	else if (change->grant != NULL && change->is_new)
		start_new_lease(&change->grant->lease, change->grant->begins_at);
	else if (change->grant != NULL)
		start_renewed_lease(&change->grant->lease);
	(void) mark_move(MARK_KEEP, 0, 0);
}

/* Logs an error of the mark's page once, until it is another. */
static void
note_page_error(void)
{
	static char last[REMOTE_REASON_SIZE] = "";
	MemoryContext error_context = MemoryContextSwitchTo(TopTransactionContext);
	ErrorData  *error = CopyErrorData();

	if (strcmp(error->message, last) != 0)
	{
		strlcpy(last, error->message, sizeof(last));
		EmitErrorReport();
	}
	MemoryContextSwitchTo(error_context);
}

/*
 * Makes a change of the lease durable.  If the mark's page cannot be written,
 * the change is made in shared memory alone, where no mark can move either;
 * then the error is logged, and the result is false.
 */
static bool
make_durable(Change *change)
{
	volatile bool is_durable = false;

	PG_TRY();
	{
		worker_start_transaction();
		apply(change);
		worker_commit();
		is_durable = true;
	}
	PG_CATCH();
	{
		note_page_error();
		worker_abort();
	}
	PG_END_TRY();
	return is_durable;
}

/* The lease is over, or another's: no id may come any more. */
static void
lose(const Lease *held, const char *why)
{
	Change		change = {.is_end = true};

	(void) make_durable(&change);
	ereport(LOG,
			(errmsg("snowflake worker_id %d is leased to this server no more",
					held->worker_id),
			 errdetail("%s", _(why))));
}

/*
 * Sees to it that there is an incarnation to ask with, and that it is durable:
 * if the server crashes before the answer, it asks with the same one again.
 */
static bool
prepare_incarnation(void)
{
	Change		nothing = {0};
	int64		incarnation;
	Lease		lease;

	shmem_read_lease(&lease);
	if (lease.next_incarnation != 0)
		return true;
	do
	{
		if (!pg_strong_random(&incarnation, sizeof(incarnation)))
			return false;
	} while (incarnation == 0);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease.next_incarnation = incarnation;
	if (shared->lease.worker_id == LEASE_NONE)
	{
		/* it is this server's question, and of this registry */
		strlcpy(shared->lease.holder, host_holder, LEASE_HOLDER_SIZE);
		shared->lease.registry = node_registry_hash();
	}
	LWLockRelease(&shared->lock);
	return make_durable(&nothing);
}

/* The question was answered: the next one has another incarnation. */
static void
forget_incarnation(void)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease.next_incarnation = 0;
	LWLockRelease(&shared->lock);
}

/*
 * Does a grant renew the lease that is held?  Then ids go on as they are.  Not
 * if the registry has taken it for expired or free, even if it grants the same
 * worker id anew: another holder may have had it in between.
 */
static bool
is_renewal(const Lease *held, bool is_held, const RegistryAnswer *answer)
{
	return is_held && answer->continues &&
		held->worker_id == answer->lease.worker_id;
}

/* Takes what was granted; a worker id that was held before is lost, if other. */
static void
take(const RegistryAnswer *answer, const Lease *held, bool is_held)
{
	Change		change = {.grant = answer};

	change.is_new = !is_renewal(held, is_held, answer);
	if (is_held && change.is_new)
		lose(held, gettext_noop("The registry has leased it to another server."));
	(void) make_durable(&change);
}

/*
 * Does a refusal say that a lease which this server holds is another's by now?
 * Other refusals leave it in force: the registry will be asked again.
 */
static bool
is_lost_by(const RegistryAnswer *answer)
{
	return strcmp(answer->code, "taken") == 0 ||
		strcmp(answer->code, "all_taken") == 0;
}

/* Asks over a connection, and acts on the answer. */
static void
ask(Remote *remote, RegistryAnswer *answer)
{
	Lease		held;
	bool		is_held;

	shmem_read_lease(&held);
	is_held = lease_is_valid(&held, clock_boottime_us());
	registry_claim(remote, &held, is_held, answer);
	if (answer->outcome == REGISTRY_NO_ANSWER)
		return;
	forget_incarnation();
	if (answer->outcome == REGISTRY_GRANTED)
		take(answer, &held, is_held);
	else if (is_held && is_lost_by(answer))
		lose(&held, gettext_noop("The registry has leased it to another server."));
}

/* What users are told of a failure; the log has all of it. */
static const char *
reason_for_users(const Remote *remote, const RegistryAnswer *answer)
{
	if (answer->outcome == REGISTRY_REFUSED)
		return answer->reason;
	if (remote->is_refused)
		return psprintf(_("The registry answers with an error: %s."),
						remote->reason);
	if (remote->is_out_of_time)
		return _("The registry does not answer in time.");
	return _("The registry cannot be reached, or does not let this server in.");
}

/*
 * Logs what keeps us from a lease: once, until it is something else.  A
 * refusal is told by its code from another: its sentence has instants.
 */
static void
note_failure(const Remote *remote, const RegistryAnswer *answer,
			 Renewal *renewal)
{
	bool		is_refused = answer->outcome == REGISTRY_REFUSED;
	const char *failure = is_refused ? answer->code : remote->reason;

	count_failure(reason_for_users(remote, answer));
	if (strcmp(failure, renewal->failure) == 0)
		return;
	strlcpy(renewal->failure, failure, REMOTE_REASON_SIZE);
	ereport(WARNING,
			(errmsg("the registry has not granted a lease on a snowflake worker_id"),
			 errdetail("%s", is_refused ? answer->reason : remote->reason)));
}

/* Logs a lease that was not there before, or was in doubt. */
static void
note_grant(const Lease *held, bool was_held, const RegistryAnswer *answer,
		   Renewal *renewal)
{
	const Lease *lease = &answer->lease;
	int64		left_us = lease->ends_us - clock_boottime_us();

	if (!was_held || held->worker_id != lease->worker_id)
		ereport(LOG,
				(errmsg("snowflake worker_id %d of datacenter_id %d is leased to this server until %s",
						lease->worker_id, lease->datacenter_id,
						timestamptz_to_str(GetCurrentTimestamp() + left_us))));
	else if (renewal->failure[0] != '\0')
		ereport(LOG,
				(errmsg("the lease on snowflake worker_id %d has been renewed",
						lease->worker_id)));
	renewal->failure[0] = '\0';
}

/* One attempt to get a lease, or to keep it. */
static void
try_renew(Renewal *renewal)
{
	Remote		remote = {0};
	RegistryAnswer answer = {0};
	Lease		held;
	bool		was_held;

	renewal->asked_us = clock_boottime_us();
	shmem_read_lease(&held);
	was_held = lease_is_valid(&held, renewal->asked_us);

	/* An answer is useless once the lease that it grants is over. */
	remote.deadline_us = renewal->asked_us +
		Min(part_of_duration_us(renewal, 4, ATTEMPT_MIN_US, ATTEMPT_MAX_US),
			renewal->duration_us * 3 / 4);
	if (!prepare_incarnation())
		remote_set_reason(&remote, "the high-water mark's page cannot be written");
	else if (remote_connect(&remote, node_registry))
		ask(&remote, &answer);
	remote_close(&remote);

	renewal->is_granted = answer.outcome == REGISTRY_GRANTED;
	if (renewal->is_granted)
	{
		renewal->duration_us = answer.duration_us;
		renewal->retry_us = RETRY_MIN_US;
		note_grant(&held, was_held, &answer, renewal);
		return;
	}
	renewal->retry_us = Min(renewal->retry_us * 2,
							part_of_duration_us(renewal, 60, RETRY_MIN_US,
												RETRY_MAX_US));
	if (!ShutdownRequestPending)
		note_failure(&remote, &answer, renewal);
}

/*
 * Gives the lease back over a connection.  Renews it first: a registry that
 * has forgotten it, after a failover, learns of it and will let this server
 * have it again.  If it does not renew, the lease is kept for a restart in
 * time.
 */
static bool
release_over(Remote *remote)
{
	RegistryAnswer answer;
	Change		change = {.is_end = true, .is_given_up = true};
	Lease		lease;
	int			worker_id;

	shmem_read_lease(&lease);
	worker_id = lease.worker_id;
	ask(remote, &answer);
	shmem_read_lease(&lease);
	if (answer.outcome == REGISTRY_REFUSED)
		remote_set_reason(remote, answer.reason);
	if (answer.outcome != REGISTRY_GRANTED || lease.worker_id != worker_id)
		return false;

	if (!make_durable(&change))
	{
		remote_set_reason(remote, "the high-water mark's page cannot be written");
		return false;
	}
	return lease_is_valid(&lease, clock_boottime_us()) &&
		registry_release(remote, &lease, change.end);
}

/* Gives the lease back at the end, so that the worker id is free at once. */
static void
release(void)
{
	Remote		remote = {.is_urgent = true};
	Lease		lease;

	shmem_read_lease(&lease);
	if (!lease_is_valid(&lease, clock_boottime_us()))
		return;

	remote.deadline_us = clock_boottime_us() + RELEASE_US;
	if (prepare_incarnation() &&
		remote_connect(&remote, node_registry) && release_over(&remote))
		ereport(LOG,
				(errmsg("snowflake worker_id %d has been given back to the registry",
						lease.worker_id)));
	else
		ereport(LOG,
				(errmsg("snowflake worker_id %d could not be given back to the registry",
						lease.worker_id),
				 remote.reason[0] != '\0' ? errdetail("%s", remote.reason) : 0));
	remote_close(&remote);
}

/*
 * When to ask next, by clock_boottime_us(): in good time, or at once where
 * the clock is past the fence.
 */
static int64
next_attempt_us(const Renewal *renewal)
{
	Lease		lease;

	shmem_read_lease(&lease);
	if (!renewal->is_granted || lease.fence <= GetCurrentTimestamp())
		return renewal->asked_us + renewal->retry_us;
	return renewal->asked_us +
		Min(RENEW_MAX_US, (lease.ends_us - renewal->asked_us) / 3);
}

static void
wait_until(int64 wake_us)
{
	int64		now_us = clock_boottime_us();

	if (now_us < wake_us && !ShutdownRequestPending)
		(void) worker_wait((long) ((wake_us - now_us) / 1000 + 1),
						   WAIT_IN_LEASE_WORKER);
}

/*
 * Waits until the mark's page has been read: before that no lease is asked
 * for.  The other worker logs why the page cannot be used.
 */
static void
wait_for_beginning(void)
{
	volatile bool has_begun = false;

	while (!has_begun && !ShutdownRequestPending)
	{
		PG_TRY();
		{
			worker_start_transaction();
			start_begin();
			worker_commit();
			has_begun = true;
		}
		PG_CATCH();
		{
			worker_abort();
		}
		PG_END_TRY();
		if (!has_begun)
			wait_until(clock_boottime_us() + RETRY_MAX_US);
	}
}

/*
 * Asks whenever it is time, until the server stops.  Ends a lease that has
 * not been renewed in time.
 */
static void
keep_lease(MemoryContext attempt_context)
{
	Renewal		renewal = {
		.duration_us = DURATION_UNKNOWN_US,
		.asked_us = clock_boottime_us() - RETRY_MIN_US,
		.retry_us = RETRY_MIN_US
	};
	bool		is_held = false;

	while (!ShutdownRequestPending)
	{
		int64		wake_us = next_attempt_us(&renewal);
		int64		now_us = clock_boottime_us();
		Lease		lease;

		if (now_us >= wake_us)
		{
			try_renew(&renewal);
			MemoryContextReset(attempt_context);
			wake_us = next_attempt_us(&renewal);
		}

		shmem_read_lease(&lease);
		now_us = clock_boottime_us();
		if (is_held && !lease_is_valid(&lease, now_us) && lease.ends_us != 0)
			lose(&lease,
				 gettext_noop("It has not been renewed in time."));
		is_held = lease_is_valid(&lease, now_us);
		if (is_held)
			wake_us = Min(wake_us, lease.ends_us);
		wait_until(wake_us);
	}
}

/* The worker: keeps the lease, and gives it back at the end. */
void
lease_worker_main(Datum main_arg)
{
	MemoryContext attempt_context;

	(void) main_arg;
	worker_begin(&shared->lease_worker_latch);
	wait_for_beginning();
	attempt_context = AllocSetContextCreate(TopMemoryContext,
											"snowflake registry",
											ALLOCSET_DEFAULT_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContextSwitchTo(attempt_context);
	keep_lease(attempt_context);
	release();

	/* After exit code 0 the postmaster would not restart the worker. */
	proc_exit(1);
}
