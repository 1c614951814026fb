/*
 * lease_worker.c
 *	  The worker that claims, renews and releases this server's lease.  After
 *	  the server's start no other process changes the lease.
 *
 * lease_registry.c sends the worker's claims and releases to the registry,
 * lease_rules.c says what a lease allows, and mark_start.c says where ids begin
 * under a new lease.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "host.h"
#include "id_clock.h"
#include "lease_connection.h"
#include "lease_registry.h"
#include "lease_worker.h"
#include "mark_log.h"
#include "mark_start.h"
#include "miscadmin.h"
#include "node.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* The longest time between two renewals, whatever the lease's duration. */
#define RENEW_MAX_US INT64CONST(60000000)

/* The limits of the timeout of one attempt. */
#define ATTEMPT_MAX_US INT64CONST(10000000)
#define ATTEMPT_MIN_US INT64CONST(1000000)

/* The limits of the time between two attempts' beginnings after a failure. */
#define RETRY_MAX_US INT64CONST(5000000)
#define RETRY_MIN_US INT64CONST(200000)

/* The timeout of the release, for which the server's shutdown waits. */
#define RELEASE_TIMEOUT_US INT64CONST(2000000)

/* The lease's duration to assume until the registry has sent it. */
#define DURATION_UNKNOWN_US INT64CONST(120000000)

/* Why a claim or a release is not sent. */
#define PAGE_FAILURE "the high-water mark's page cannot be written"

/* What the worker keeps from one attempt to the next. */
typedef struct LeaseWorkerState
{
	int64		duration_us;	/* of the newest grant */
	int64		attempted_us;	/* when the last attempt began */
	int64		retry_us;		/* how long to wait after a failure */
	bool		is_granted;		/* did the last attempt succeed? */

	/* The code of the failure logged last; a grant empties the field. */
	char		failure_code[CONNECTION_REASON_SIZE];
} LeaseWorkerState;

/* The memory context that the worker returns to after a transaction. */
static MemoryContext worker_context = NULL;

/*
 * A change of the lease.  apply_change() makes the change in shared memory
 * first, and then in WAL.
 */
typedef struct LeaseChange
{
	const RegistryAnswer *grant;	/* the grant to store, or NULL */
	bool		is_new;			/* is the grant a new lease, not a renewal? */
	bool		is_end;			/* does the lease end? */
	bool		is_given_up;	/* does it end because it is released? */
	TimestampTz end;			/* result: an instant that no id under the
								 * ended lease has reached */
} LeaseChange;

/* The SQLSTATE of the last change's error; 0: the change was made durable. */
static int	page_sqlerrcode = 0;

static void initialize_worker(void);
static void clear_latch(int code, Datum arg);
static void wait_for_start(void);
static void keep_lease(MemoryContext attempt_context);
static int64 next_attempt_us(const LeaseWorkerState *state);
static void wait_until(int64 wake_us);
static void try_renew(LeaseWorkerState *state);
static int64 part_of_duration_us(const LeaseWorkerState *state, int part,
								 int64 least_us, int64 most_us);
static void report_grant(const Lease *held, bool was_held,
						 const RegistryAnswer *answer, LeaseWorkerState *state);
static void report_failure(const Remote *remote, const RegistryAnswer *answer,
						   LeaseWorkerState *state);
static void record_failure(const char *reason);
static const char *reason_for_users(const Remote *remote,
									const RegistryAnswer *answer);
static const char *failure_code(const Remote *remote,
								const RegistryAnswer *answer);
static void release_lease(void);
static bool renew_and_release(Remote *remote);
static bool prepare_incarnation(Remote *remote);
static void claim_lease(Remote *remote, RegistryAnswer *answer);
static void clear_incarnation(void);
static void accept_grant(const RegistryAnswer *answer, const Lease *held,
						 bool is_held);
static bool is_renewal(const Lease *held, bool is_held,
					   const RegistryAnswer *answer);
static bool is_granted_to_other(const RegistryAnswer *answer);
static void end_lost_lease(const Lease *held, const char *why);
static bool make_durable(LeaseChange *change);
static void apply_change(LeaseChange *change);
static void start_transaction(void);
static void commit(void);
static void abort_transaction(void);
static void report_page_error(void);

/*
 * Registers the worker.  The postmaster starts the worker when recovery has
 * ended, and restarts the worker unless its exit code was 0.
 */
void
lease_worker_register(void)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, "snowflake registry", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "snowflake registry", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "snowflake", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lease_worker_main", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/* The worker's main function: keeps the lease, and releases it at shutdown. */
void
lease_worker_main(Datum main_arg)
{
	MemoryContext attempt_context;

	(void) main_arg;
	initialize_worker();
	wait_for_start();
	attempt_context = AllocSetContextCreate(TopMemoryContext,
											"snowflake registry",
											ALLOCSET_DEFAULT_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContextSwitchTo(attempt_context);
	keep_lease(attempt_context);
	release_lease();

	/* The postmaster would not restart the worker after exit code 0. */
	proc_exit(1);
}

/* Initializes the worker's process, and shares its latch. */
static void
initialize_worker(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* Connects to no database, but makes pg_stat_activity show the worker. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease_worker_latch = MyLatch;
	LWLockRelease(&shared->lock);
	before_shmem_exit(clear_latch, (Datum) 0);
}

/* before_shmem_exit callback: clears the shared pointer to the latch. */
static void
clear_latch(int code, Datum arg)
{
	(void) code;
	(void) arg;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease_worker_latch = NULL;
	LWLockRelease(&shared->lock);
}

/*
 * Waits until this server has read the mark's page, because a claim names the
 * lease that is stored in the page.  If the page cannot be used, logs the
 * reason and tries again.
 */
static void
wait_for_start(void)
{
	volatile bool is_started = false;

	while (!is_started && !ShutdownRequestPending)
	{
		PG_TRY();
		{
			start_transaction();
			mark_start_once();
			commit();
			is_started = true;
		}
		PG_CATCH();
		{
			report_page_error();
			abort_transaction();
		}
		PG_END_TRY();
		if (!is_started)
			wait_until(clock_boottime_us() + RETRY_MAX_US);
	}
}

/*
 * Claims a lease and renews it until the server stops.  Ends a lease that was
 * not renewed in time.
 */
static void
keep_lease(MemoryContext attempt_context)
{
	LeaseWorkerState state = {
		.duration_us = DURATION_UNKNOWN_US,
		.attempted_us = clock_boottime_us() - RETRY_MIN_US,
		.retry_us = RETRY_MIN_US
	};
	bool		is_held = false;

	while (!ShutdownRequestPending)
	{
		int64		wake_us = next_attempt_us(&state);
		int64		now_us = clock_boottime_us();
		Lease		lease;

		if (now_us >= wake_us)
		{
			try_renew(&state);
			MemoryContextReset(attempt_context);
			wake_us = next_attempt_us(&state);
		}

		shmem_read_lease(&lease);
		now_us = clock_boottime_us();
		if (is_held && !lease_is_valid(&lease, now_us) &&
			lease.ends_us != LEASE_OVER)
			end_lost_lease(&lease,
						   "The lease has not been renewed in time.");
		is_held = lease_is_valid(&lease, now_us);
		if (is_held)
			wake_us = Min(wake_us, lease.ends_us);
		wait_until(wake_us);
	}
}

/*
 * Returns when to make the next attempt, as a time of clock_boottime_us().
 * After a grant the worker waits for a third of the lease or for RENEW_MAX_US,
 * whichever is shorter.  After a failure the worker waits only for retry_us.
 * The worker does the same while the clock is past the fence, because no id is
 * issued then until a renewal moves the fence.
 */
static int64
next_attempt_us(const LeaseWorkerState *state)
{
	Lease		lease;

	shmem_read_lease(&lease);
	if (!state->is_granted || lease.fence <= GetCurrentTimestamp())
		return state->attempted_us + state->retry_us;
	return state->attempted_us +
		Min(RENEW_MAX_US, (lease.ends_us - state->attempted_us) / 3);
}

/*
 * Waits until a time of clock_boottime_us(), or until another process sets the
 * worker's latch.  Reloads the configuration after a SIGHUP.
 */
static void
wait_until(int64 wake_us)
{
	int64		now_us = clock_boottime_us();

	if (now_us >= wake_us || ShutdownRequestPending)
		return;

	/* Without this call the views of WAL and I/O do not count the worker. */
	pgstat_report_wal(false);
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_TIMEOUT,
					 (long) ((wake_us - now_us) / 1000 + 1),
					 clock_wait_event(WAIT_IN_LEASE_WORKER));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Makes one attempt to get or to renew a lease. */
static void
try_renew(LeaseWorkerState *state)
{
	Remote		remote = {0};
	RegistryAnswer answer = {0};
	Lease		held;
	bool		was_held;

	state->attempted_us = clock_boottime_us();
	shmem_read_lease(&held);
	was_held = lease_is_valid(&held, state->attempted_us);

	/*
	 * The time of a lease begins before the claim is sent, not when the answer
	 * arrives.  An answer that takes longer than the lease is useless, so a
	 * short lease shortens the timeout.
	 */
	remote.deadline_us = state->attempted_us +
		Min(part_of_duration_us(state, 4, ATTEMPT_MIN_US, ATTEMPT_MAX_US),
			state->duration_us * 3 / 4);
	if (prepare_incarnation(&remote) &&
		connection_connect(&remote, node_registry))
		claim_lease(&remote, &answer);
	connection_close(&remote);

	state->is_granted = answer.outcome == REGISTRY_GRANTED;
	if (state->is_granted)
	{
		state->duration_us = answer.duration_us;
		state->retry_us = RETRY_MIN_US;
		report_grant(&held, was_held, &answer, state);
		return;
	}
	state->retry_us = Min(state->retry_us * 2,
						  part_of_duration_us(state, 60, RETRY_MIN_US,
											  RETRY_MAX_US));
	if (!ShutdownRequestPending)
		report_failure(&remote, &answer, state);
}

/* Returns the lease's duration divided by "part", within the given limits. */
static int64
part_of_duration_us(const LeaseWorkerState *state, int part, int64 least_us,
					int64 most_us)
{
	return Max(least_us, Min(most_us, state->duration_us / part));
}

/* Logs a grant that is a new lease, or that is a renewal after a failure. */
static void
report_grant(const Lease *held, bool was_held, const RegistryAnswer *answer,
			 LeaseWorkerState *state)
{
	const Lease *lease = &answer->lease;
	int64		left_us = lease->ends_us - clock_boottime_us();

	if (!was_held || held->worker_id != lease->worker_id)
		ereport(LOG,
				(errmsg("snowflake worker_id %d of datacenter_id %d is leased to this server until %s",
						lease->worker_id, lease->datacenter_id,
						timestamptz_to_str(GetCurrentTimestamp() + left_us))));
	else if (state->failure_code[0] != '\0')
		ereport(LOG,
				(errmsg("the lease on snowflake worker_id %d has been renewed",
						lease->worker_id)));
	state->failure_code[0] = '\0';
}

/*
 * Counts a failed attempt.  Logs the failure, unless the failure logged last
 * has the same code.
 */
static void
report_failure(const Remote *remote, const RegistryAnswer *answer,
			   LeaseWorkerState *state)
{
	const char *code = failure_code(remote, answer);

	record_failure(reason_for_users(remote, answer));
	if (strcmp(code, state->failure_code) == 0)
		return;
	strlcpy(state->failure_code, code, CONNECTION_REASON_SIZE);
	ereport(WARNING,
			(errmsg("the registry has not granted a lease on a snowflake worker_id"),
			 errdetail("%s", answer->outcome == REGISTRY_REFUSED ?
					   answer->reason : remote->reason)));
}

/*
 * Counts a failure, and stores the reason that sessions without a lease show
 * in their error.
 */
static void
record_failure(const char *reason)
{
	shmem_my_slot()->counters.lease_failures++;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	strlcpy(shared->lease_reason, reason, LEASE_REASON_SIZE);
	LWLockRelease(&shared->lock);
}

/*
 * Returns the reason of a failure without hosts and roles, so that any user
 * may see the reason.  The log has the whole reason.
 */
static const char *
reason_for_users(const Remote *remote, const RegistryAnswer *answer)
{
	if (answer->outcome == REGISTRY_REFUSED)
		return answer->reason;
	if (remote->has_answered_error)
		return psprintf("The registry answers with an error: %s.",
						remote->reason);
	if (remote->has_timed_out)
		return "The registry does not answer in time.";
	return "The registry cannot be reached, or does not let this server in.";
}

/*
 * Returns a code that is the same for all failures of one cause.  Their
 * messages can differ, because messages contain times.  A refusal by the
 * registry has a code, and an error of the registry has an SQLSTATE.  For
 * other failures the code is the reason itself: an error of a pooler may have
 * no SQLSTATE, libpq has no code for a connection that fails, and this
 * server's own reasons contain no times.
 */
static const char *
failure_code(const Remote *remote, const RegistryAnswer *answer)
{
	if (answer->outcome == REGISTRY_REFUSED)
		return answer->code;
	if (remote->has_answered_error && remote->sqlstate[0] != '\0')
		return remote->sqlstate;
	return remote->reason;
}

/* Releases the lease at shutdown, so that the worker id is free at once. */
static void
release_lease(void)
{
	Remote		remote = {.ignores_shutdown = true};
	Lease		lease;

	shmem_read_lease(&lease);
	if (!lease_is_valid(&lease, clock_boottime_us()))
		return;

	remote.deadline_us = clock_boottime_us() + RELEASE_TIMEOUT_US;
	if (prepare_incarnation(&remote) &&
		connection_connect(&remote, node_registry) && renew_and_release(&remote))
		ereport(LOG,
				(errmsg("snowflake worker_id %d has been given back to the registry",
						lease.worker_id)));
	else
		ereport(LOG,
				(errmsg("snowflake worker_id %d could not be given back to the registry",
						lease.worker_id),
				 remote.reason[0] != '\0' ? errdetail("%s", remote.reason) : 0));
	connection_close(&remote);
}

/*
 * Renews the lease over a connection and then releases it.  The renewal comes
 * first because a registry that has failed over may not know this lease, and
 * such a registry refuses the release.  By the renewal the registry learns
 * that this server holds the worker id.  So the registry can release the
 * lease, and later grant this server the worker id again.
 *
 * If the registry does not renew the lease, the server keeps the lease, and
 * can resume it at a start before the lease ends.  But if the registry has
 * granted the worker id to another server, the lease is over.
 */
static bool
renew_and_release(Remote *remote)
{
	RegistryAnswer answer;
	LeaseChange change = {.is_end = true, .is_given_up = true};
	Lease		lease;
	int			worker_id;

	shmem_read_lease(&lease);
	worker_id = lease.worker_id;
	claim_lease(remote, &answer);
	shmem_read_lease(&lease);
	if (answer.outcome == REGISTRY_REFUSED)
		connection_set_reason(remote, answer.reason);
	if (answer.outcome != REGISTRY_GRANTED || lease.worker_id != worker_id)
		return false;

	if (!make_durable(&change))
	{
		connection_set_reason(remote, PAGE_FAILURE);
		return false;
	}
	return lease_is_valid(&lease, clock_boottime_us()) &&
		registry_release(remote, &lease, change.end);
}

/*
 * Chooses the incarnation of the next claim and makes the incarnation durable,
 * so that a server which crashes before the answer arrives can repeat the
 * claim with the same incarnation.  If an earlier claim has had no answer, the
 * function keeps that claim's incarnation.  Returns false and sets the reason
 * if there is no random number, or if the mark's page cannot be written.
 */
static bool
prepare_incarnation(Remote *remote)
{
	LeaseChange nothing = {0};
	int64		incarnation;
	Lease		lease;

	shmem_read_lease(&lease);
	if (lease.next_incarnation != LEASE_NO_INCARNATION)
		return true;
	do
	{
		if (!pg_strong_random(&incarnation, sizeof(incarnation)))
		{
			connection_set_reason(remote, "the server has no source of random numbers");
			return false;
		}
	} while (incarnation == LEASE_NO_INCARNATION);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease.next_incarnation = incarnation;
	if (shared->lease.worker_id == WORKER_ID_UNSET)
	{
		/*
		 * After a restart these fields show which holder has sent the claim,
		 * and to which registry.
		 */
		strlcpy(shared->lease.holder, host_holder, LEASE_HOLDER_SIZE);
		shared->lease.registry = node_registry_hash();
	}
	LWLockRelease(&shared->lock);
	if (make_durable(&nothing))
		return true;
	clear_incarnation();
	connection_set_reason(remote, PAGE_FAILURE);
	return false;
}

/* Claims or renews a lease over a connection, and applies the answer. */
static void
claim_lease(Remote *remote, RegistryAnswer *answer)
{
	Lease		held;
	bool		is_held;

	shmem_read_lease(&held);
	is_held = lease_is_valid(&held, clock_boottime_us());
	registry_claim(remote, &held, is_held, answer);
	if (answer->outcome == REGISTRY_NO_ANSWER)
		return;
	clear_incarnation();
	if (answer->outcome == REGISTRY_GRANTED)
		accept_grant(answer, &held, is_held);
	else if (is_held && is_granted_to_other(answer))
		end_lost_lease(&held, "The registry has leased the worker id to another server.");
}

/*
 * Removes the incarnation of a claim that the registry has answered, or that
 * cannot be sent, so that the next claim gets another incarnation.
 */
static void
clear_incarnation(void)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->lease.next_incarnation = LEASE_NO_INCARNATION;
	LWLockRelease(&shared->lock);
}

/* Stores a grant.  If the grant is no renewal, ends the held lease first. */
static void
accept_grant(const RegistryAnswer *answer, const Lease *held, bool is_held)
{
	LeaseChange change = {.grant = answer};

	change.is_new = !is_renewal(held, is_held, answer);
	if (is_held && change.is_new)
		end_lost_lease(held, "The registry has not renewed the lease, but has granted a new lease.");
	(void) make_durable(&change);
}

/*
 * Returns whether a grant renews the lease that is held, so that sessions go
 * on issuing.  If the lease had expired or was free in the registry, a grant
 * of the same worker id is no renewal, because another holder may have had the
 * worker id meanwhile.
 */
static bool
is_renewal(const Lease *held, bool is_held, const RegistryAnswer *answer)
{
	return is_held && answer->continues &&
		held->worker_id == answer->lease.worker_id;
}

/*
 * Returns whether a refusal says that another server now has the lease that
 * this server holds.  After any other refusal the lease stays in force, and
 * the worker repeats its claim.
 */
static bool
is_granted_to_other(const RegistryAnswer *answer)
{
	return strcmp(answer->code, REGISTRY_TAKEN) == 0 ||
		strcmp(answer->code, REGISTRY_ALL_TAKEN) == 0;
}

/*
 * Ends a lease that has expired, or that the registry has granted to another
 * server.  From now on no session issues an id under the lease.
 */
static void
end_lost_lease(const Lease *held, const char *why)
{
	LeaseChange change = {.is_end = true};

	(void) make_durable(&change);
	ereport(LOG,
			(errmsg("snowflake worker_id %d is leased to this server no more",
					held->worker_id),
			 errdetail("%s", why)));
}

/*
 * Makes a change of the lease, and makes the change durable.  If the mark's
 * page cannot be read or written, the function logs the error and returns
 * false.  The change then exists in shared memory only, or not at all.  That
 * is safe, because without writing the page no process can raise the mark, and
 * ids stay before the mark.
 */
static bool
make_durable(LeaseChange *change)
{
	volatile bool is_durable = false;

	PG_TRY();
	{
		start_transaction();
		apply_change(change);
		commit();
		is_durable = true;
		page_sqlerrcode = 0;
	}
	PG_CATCH();
	{
		report_page_error();
		abort_transaction();
	}
	PG_END_TRY();
	return is_durable;
}

static void
apply_change(LeaseChange *change)
{
	if (change->is_end)
		change->end = mark_end_lease(change->is_given_up);
	else if (change->grant != NULL && change->is_new)
		mark_begin_lease(&change->grant->lease, change->grant->last_fence);
	else if (change->grant != NULL)
		mark_renew_lease(&change->grant->lease);
	mark_log_lease();
}

/*
 * Starts a transaction.  The worker reads and changes the mark's page in a
 * transaction, whose abort after an error releases locks, pins and pending
 * I/O.
 */
static void
start_transaction(void)
{
	worker_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}

static void
commit(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(worker_context);
}

/* Aborts the transaction, in a PG_CATCH() block. */
static void
abort_transaction(void)
{
	AbortCurrentTransaction();
	MemoryContextSwitchTo(worker_context);
	FlushErrorState();
}

/*
 * Logs an error that prevented writing the mark's page, unless the error
 * logged before has the same SQLSTATE.
 */
static void
report_page_error(void)
{
	int			sqlerrcode = geterrcode();

	if (sqlerrcode != page_sqlerrcode)
	{
		page_sqlerrcode = sqlerrcode;
		EmitErrorReport();
	}
}
