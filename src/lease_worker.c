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

/* How long an attempt to reach the registry may take, and how long between. */
#define ATTEMPT_MAX_US INT64CONST(10000000)
#define ATTEMPT_MIN_US INT64CONST(1000000)
#define RETRY_MAX_US INT64CONST(5000000)
#define RETRY_MIN_US INT64CONST(200000)

/* How long the end of the server may wait for the registry. */
#define RELEASE_US INT64CONST(2000000)

/* A part of the lease's duration, within limits. */
static int64
part_of_duration_us(int part, int64 least_us, int64 most_us)
{
	return Max(least_us, Min(most_us, registry_lease_duration_us() / part));
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

/* Takes a lease that has been renewed, after a claim or not. */
static void
take(RegistryLease *ours)
{
	worker_start_transaction();
	if (ours->has_begins_at)
		start_new_lease(&ours->lease, ours->begins_at);
	else
		start_renewed_lease(&ours->lease);
	worker_commit();
	ours->has_begins_at = false;
}

/*
 * Ends the lease, and makes that durable.  Returns the instant that no id
 * under the lease, which is copied to "lease", has reached.
 */
static TimestampTz
end_lease(Lease *lease, bool is_given_up)
{
	TimestampTz end;

	worker_start_transaction();
	end = start_end_lease(lease, is_given_up);
	(void) mark_move(MARK_KEEP, 0, 0);
	worker_commit();
	return end;
}

/* The lease is over, or another's: no id may come any more. */
static void
lose(const Lease *held, const char *why)
{
	Lease		ended;

	(void) end_lease(&ended, false);
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
static RegistryAnswer
renew_or_claim(Remote *remote, RegistryLease *ours)
{
	char	   *schema = registry_find(remote);
	Lease		held;
	bool		is_held;
	RegistryAnswer answer;

	if (schema == NULL)
		return REGISTRY_NONE;

	shmem_read_lease(&held);
	is_held = lease_is_valid(&held, clock_boottime_us());
	if (is_held && !ours->has_begins_at)
	{
		answer = registry_renew(remote, schema, ours);
		if (answer != REGISTRY_REFUSED)
			return answer;
	}

	answer = registry_claim(remote, schema, ours, is_held);
	if (answer == REGISTRY_NONE)
		return answer;
	if (is_held && (answer == REGISTRY_REFUSED || ours->has_begins_at))
		lose(&held,
			 gettext_noop("The registry does not know of the lease."));
	if (answer == REGISTRY_REFUSED)
		return answer;

	answer = registry_renew(remote, schema, ours);
	if (answer == REGISTRY_REFUSED)
		strlcpy(remote->reason, "another server got the lease before it was renewed",
				REMOTE_REASON_SIZE);
	return answer;
}

/* What users are told of a failure; the log has all of it. */
static const char *
reason_for_users(const Remote *remote, RegistryAnswer answer)
{
	if (answer == REGISTRY_REFUSED)
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
note_failure(const Remote *remote, RegistryAnswer answer, char *last_reason)
{
	const char *reason = reason_for_users(remote, answer);

	count_failure(reason);
	if (is_same_reason(reason, last_reason))
		return;
	strlcpy(last_reason, reason, LEASE_REASON_SIZE);
	ereport(WARNING,
			(errmsg("the registry has not granted a lease on a snowflake worker_id"),
			 errdetail("%s", remote->reason)));
}

/* Logs a lease that was not there before, or was in doubt. */
static void
note_grant(const RegistryLease *ours, bool was_held, char *last_reason)
{
	const Lease *lease = &ours->lease;
	int64		left_us = lease->ends_us - clock_boottime_us();

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
static RegistryAnswer
try_renew(RegistryLease *ours)
{
	static char last_reason[LEASE_REASON_SIZE] = "";
	Remote		remote = {0};
	Lease		held;
	bool		was_held;
	RegistryAnswer answer = REGISTRY_NONE;

	/* An answer is useless once the lease that it grants is over. */
	remote.deadline_us = clock_boottime_us() +
		Min(part_of_duration_us(4, ATTEMPT_MIN_US, ATTEMPT_MAX_US),
			registry_lease_duration_us() * 3 / 4);
	if (remote_connect(&remote, node_registry))
		answer = renew_or_claim(&remote, ours);
	remote_close(&remote);

	shmem_read_lease(&held);
	was_held = lease_is_valid(&held, clock_boottime_us());
	if (answer == REGISTRY_GRANTED)
	{
		take(ours);
		note_grant(ours, was_held, last_reason);
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
release(const RegistryLease *ours)
{
	Remote		remote = {.is_urgent = true};
	Lease		lease;
	TimestampTz end;
	char	   *schema;

	shmem_read_lease(&lease);
	if (!lease_is_valid(&lease, clock_boottime_us()))
		return;

	/* A lease that cannot be given back is kept for a restart in time. */
	remote.deadline_us = clock_boottime_us() + RELEASE_US;
	if (remote_connect(&remote, node_registry) &&
		(schema = registry_find(&remote)) != NULL)
	{
		end = end_lease(&lease, true);
		lease.incarnation = ours->lease.incarnation;
		if (lease_is_valid(&lease, clock_boottime_us()) &&
			registry_release(&remote, schema, &lease, end))
			ereport(LOG,
					(errmsg("snowflake worker_id %d has been given back to the registry",
							lease.worker_id)));
	}
	if (remote.reason[0] != '\0')
		ereport(LOG,
				(errmsg("snowflake worker_id %d could not be given back to the registry",
						lease.worker_id),
				 errdetail("%s", remote.reason)));
	remote_close(&remote);
}

/*
 * When to ask next, by clock_boottime_us(): in good time, or at once where
 * the clock is past the fence.
 */
static int64
next_attempt_us(RegistryAnswer answer, int64 asked_us)
{
	int64		retry_us = asked_us +
		part_of_duration_us(60, RETRY_MIN_US, RETRY_MAX_US);
	Lease		lease;

	shmem_read_lease(&lease);
	if (answer != REGISTRY_GRANTED || lease.fence <= GetCurrentTimestamp())
		return retry_us;

	/* The registry may have granted less than was asked for. */
	return Max(retry_us, asked_us + (lease.ends_us - asked_us) / 3);
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
keep_lease(RegistryLease *ours, MemoryContext attempt_context)
{
	int64		asked_us = clock_boottime_us() - registry_lease_duration_us();
	RegistryAnswer answer = REGISTRY_NONE;
	bool		is_held = false;

	while (!ShutdownRequestPending)
	{
		int64		now_us = clock_boottime_us();
		int64		wake_us = next_attempt_us(answer, asked_us);
		Lease		lease;

		if (now_us >= wake_us)
		{
			asked_us = now_us;
			answer = try_renew(ours);
			MemoryContextReset(attempt_context);
			wake_us = next_attempt_us(answer, asked_us);
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
	/* An earlier worker may have died before an answer arrived. */
	RegistryLease ours = {.unanswered = 1};
	MemoryContext attempt_context;

	(void) main_arg;
	worker_begin(&shared->lease_worker_latch);
	wait_for_beginning();
	shmem_read_lease(&ours.lease);
	attempt_context = AllocSetContextCreate(TopMemoryContext,
											"snowflake registry",
											ALLOCSET_DEFAULT_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContextSwitchTo(attempt_context);
	keep_lease(&ours, attempt_context);
	release(&ours);

	/* After exit code 0 the postmaster would not restart the worker. */
	proc_exit(1);
}
