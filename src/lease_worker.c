/*
 * lease_worker.c
 *	  The worker that claims, renews and releases this server's lease.  After
 *	  the server's start no other process changes the lease.
 *
 * lease_registry.c sends the worker's claims and releases to the registry,
 * lease_rules.c says what a lease allows, and mark_start.c says where ids
 * begin under a new lease.
 */
#include "postgres.h"

#include "access/xact.h"
#include "clock.h"
#include "common/hashfn.h"
#include "compat.h"
#include "lease_connection.h"
#include "lease_holder.h"
#include "lease_registry.h"
#include "lease_state.h"
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

/*
 * The longest time between two renewals: a part of the lease's duration, and
 * no more than RENEW_MAX_US.
 */
#define RENEW_PART 6
#define RENEW_MAX_US INT64CONST(60000000)

/* The limits of the timeout of one attempt. */
#define ATTEMPT_MAX_US INT64CONST(10000000)
#define ATTEMPT_MIN_US INT64CONST(1000000)

/* The limits of the time between two attempts' beginnings after a failure. */
#define RETRY_MAX_US INT64CONST(5000000)
#define RETRY_MIN_US INT64CONST(200000)

/*
 * The timeout of the release, for which the server's shutdown waits, and of
 * the claim at a start, before which no id is issued.  Where it is too short
 * for a slow network, a start goes on as if the registry were silent.
 */
#define SHORT_TIMEOUT_US INT64CONST(2000000)

/* The duration of a lease that is assumed until the registry has sent one. */
#define DURATION_UNKNOWN_US INT64CONST(120000000)

/* How many hosts have failures that are logged once. */
#define HOSTS_MAX 8

/* Why a claim or a release is not sent. */
#define PAGE_FAILURE "The high-water mark's page cannot be written."

/* What the worker keeps from one attempt to the next. */
typedef struct LeaseWorkerState
{
	int64		duration_us;	/* of the newest grant */
	int64		attempted_us;	/* when the last attempt began */
	int64		retry_us;		/* how long to wait after a failure; 0:
								 * granted */
	int			silent_attempts;	/* in a row, while a lease is pending */
	uint64		failures[HOSTS_MAX];	/* hashes of each host's last failure;
										 * 0 after a grant */
} LeaseWorkerState;

/* What one transaction does. */
typedef enum LeaseChange
{
	LEASE_READ,					/* reads the page, and changes nothing */
	LEASE_CLAIM,				/* logs the incarnation of the next claim */
	LEASE_BEGIN,
	LEASE_RENEW,
	LEASE_END
} LeaseChange;

/* The SQLSTATE of the last transaction's error; 0: it was committed. */
static int	page_sqlerrcode = 0;

static void worker_initialize(void);
static void worker_clear_latch(int code, Datum arg);
static void worker_keep_lease(MemoryContext attempt_context);
static int64 worker_next_attempt_us(const LeaseWorkerState *state);
static void worker_wait_until(int64 wake_us);
static void worker_try_to_renew(LeaseWorkerState *state);
static void worker_report_grant(const SnowflakeLease *held, bool was_held,
								const SnowflakeLease *lease,
								const LeaseWorkerState *state);
static void worker_report_failure(const SnowflakeConnection *connection,
								  LeaseWorkerState *state);
static void worker_resume_without_answer(const SnowflakeConnection *connection,
										 LeaseWorkerState *state);
static void worker_release_lease(void);
static bool worker_renew_and_release(SnowflakeConnection *connection);
static bool worker_claim_lease(SnowflakeConnection *connection,
							   RegistryGrant *grant);
static void worker_end_lost_lease(const SnowflakeLease *lease,
								  const char *why);
static bool worker_prepare_incarnation(SnowflakeConnection *connection);
static bool worker_change_lease(LeaseChange change,
								const RegistryGrant *grant);

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

void
lease_worker_main(Datum main_arg)
{
	MemoryContext attempt_context;

	worker_initialize();

	/* A claim names the lease that is stored in the mark's page. */
	while (!ShutdownRequestPending && !worker_change_lease(LEASE_READ, NULL))
		worker_wait_until(clock_boottime_us() + RETRY_MAX_US);

	/* NOLINTNEXTLINE: PostgreSQL's macro */
	attempt_context = AllocSetContextCreate(TopMemoryContext,
											"snowflake registry",
											ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(attempt_context);
	worker_keep_lease(attempt_context);
	worker_release_lease();

	/* The postmaster would not restart the worker after exit code 0. */
	proc_exit(1);
}

static void
worker_initialize(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* Connects to no database, but makes pg_stat_activity show the worker. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	connection_limit_memory();

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	snowflake_shared->lease_worker_latch = MyLatch;
	LWLockRelease(&snowflake_shared->lock);
	before_shmem_exit(worker_clear_latch, (Datum) 0);
}

/* before_shmem_exit callback */
static void
worker_clear_latch(int code, Datum arg)
{
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	snowflake_shared->lease_worker_latch = NULL;
	LWLockRelease(&snowflake_shared->lock);
}

/* Claims a lease and renews it until the server stops. */
static void
worker_keep_lease(MemoryContext attempt_context)
{
	LeaseWorkerState state = {
		.duration_us = DURATION_UNKNOWN_US,
		.attempted_us = clock_boottime_us() - RENEW_MAX_US
	};

	while (!ShutdownRequestPending)
	{
		int64		wake_us = worker_next_attempt_us(&state);
		SnowflakeLease lease;
		LeaseState	lease_state;

		if (clock_boottime_us() >= wake_us)
		{
			worker_try_to_renew(&state);
			MemoryContextReset(attempt_context);
			wake_us = worker_next_attempt_us(&state);
		}

		lease_state = lease_state_read(&lease);
		if (lease_is_valid(&lease, clock_boottime_us()))
			wake_us = Min(wake_us, lease.ends_us);
		else if (lease_state != LEASE_NONE)
			worker_end_lost_lease(&lease,
								  "The lease has not been renewed in time.");
		worker_wait_until(wake_us);
	}
}

/*
 * Returns when to make the next attempt, as a time of clock_boottime_us().
 * The worker waits only for retry_us after a failure, and while the clock is
 * past the fence: no id is issued then, until a renewal moves the fence.
 */
static int64
worker_next_attempt_us(const LeaseWorkerState *state)
{
	SnowflakeLease lease;

	(void) lease_state_read(&lease);
	if (state->retry_us != 0 || lease.fence <= GetCurrentTimestamp())
		return state->attempted_us + Max(RETRY_MIN_US, state->retry_us);
	return state->attempted_us +
		Min(RENEW_MAX_US, state->duration_us / RENEW_PART);
}

/*
 * Waits until a time of clock_boottime_us(), or until another process sets the
 * worker's latch.  Reloads the configuration after a SIGHUP.
 */
static void
worker_wait_until(int64 wake_us)
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

static void
worker_try_to_renew(LeaseWorkerState *state)
{
	SnowflakeConnection connection = {0};
	RegistryGrant grant;
	SnowflakeLease held;
	LeaseState	lease_state;
	bool		is_pending;
	bool		was_held;

	state->attempted_us = clock_boottime_us();
	lease_state = lease_state_read(&held);
	is_pending = lease_state == LEASE_PENDING || lease_state == LEASE_REFUSED;
	was_held = !is_pending && lease_is_valid(&held, state->attempted_us);

	/*
	 * The time of a lease begins before the claim is sent, not when the
	 * answer arrives.  An answer that takes longer than the lease is useless,
	 * so a short lease shortens the timeout.
	 */
	connection.deadline_us = state->attempted_us +
		(is_pending ? SHORT_TIMEOUT_US :
		 Min(Min(ATTEMPT_MAX_US, state->duration_us * 3 / 4),
			 Max(ATTEMPT_MIN_US, state->duration_us / 4)));
	if (worker_claim_lease(&connection, &grant))
	{
		worker_report_grant(&held, was_held, &grant.lease, state);
		state->duration_us = grant.duration_us;
		state->retry_us = 0;
		memset(state->failures, 0, sizeof(state->failures));
	}
	else
	{
		state->retry_us = Min(Min(RETRY_MAX_US, state->duration_us / 60),
							  state->retry_us * 2);
		state->retry_us = Max(RETRY_MIN_US, state->retry_us);
		if (!ShutdownRequestPending)
		{
			worker_report_failure(&connection, state);
			if (is_pending)
				worker_resume_without_answer(&connection, state);
		}
	}
	connection_close(&connection);
}

/* Logs a grant that is a new lease, or that is a renewal after a failure. */
static void
worker_report_grant(const SnowflakeLease *held, bool was_held,
					const SnowflakeLease *lease,
					const LeaseWorkerState *state)
{
	int64		left_us = lease->ends_us - clock_boottime_us();

	if (!was_held || held->worker_id != lease->worker_id)
		ereport(LOG,
				(errmsg("snowflake worker_id %d of datacenter_id %d is leased to this server until %s",
						lease->worker_id, lease->datacenter_id,
						timestamptz_to_str(GetCurrentTimestamp() + left_us))));
	else if (state->retry_us != 0)
		ereport(LOG,
				(errmsg("the lease on snowflake worker_id %d has been renewed",
						lease->worker_id)));
}

/*
 * Counts a failed attempt, and stores the reason that sessions without a lease
 * show in their error.  Any user may see what the registry has answered.  What
 * libpq says is for the log only, because it can contain hosts and roles.
 *
 * Logs the failure as a WARNING or, if the host's last failure had the same
 * cause, as DEBUG1.  Failures have the same cause if they have the same code
 * or, without a code, the same reason.
 */
static void
worker_report_failure(const SnowflakeConnection *connection,
					  LeaseWorkerState *state)
{
	const char *reason = connection->is_answer ? connection->reason :
		"The registry cannot be reached, does not answer in time, or does not let this server in.";
	const char *failure = connection->code[0] != '\0' ?
		connection->code : connection->reason;
	uint64		hash = hash_bytes_extended((const unsigned char *) failure,
										   (int) strlen(failure), 0) | 1;
	uint64	   *last = &state->failures[connection->host % HOSTS_MAX];

	shmem_my_slot()->counters.lease_failures++;
	lease_state_set_reason(reason);

	if (*last == hash)
	{
		ereport(DEBUG1,
				(errmsg_internal("the registry has not granted a lease again: %s",
								 connection->reason)));
		return;
	}
	*last = hash;
	ereport(WARNING,
			(errmsg("the registry has not granted a lease on a snowflake worker_id"),
			 errdetail("%s", connection->reason)));
}

/*
 * Resumes the lease of the server's last start when each host of the registry
 * has been asked in turn, and none has answered the claim.  An error of the
 * claim is an answer, because the registry may refuse the lease next.  A host
 * that lets nobody in is silent: it may be no registry.
 */
static void
worker_resume_without_answer(const SnowflakeConnection *connection,
							 LeaseWorkerState *state)
{
	SnowflakeLease lease;

	/* An attempt that asked no host counts neither way. */
	if (connection->host_count == 0)
		return;
	if (connection->is_refusal)
		lease_state_refuse();
	state->silent_attempts = connection->is_answer ?
		0 : state->silent_attempts + 1;
	(void) lease_state_read(&lease);
	if (state->silent_attempts < connection->host_count ||
		!lease_state_resume())
		return;
	ereport(LOG,
			(errmsg("snowflake worker_id %d is still leased to this server",
					lease.worker_id),
			 errdetail("The registry has not answered since the server's start.")));
}

static void
worker_release_lease(void)
{
	SnowflakeConnection connection = {.ignores_shutdown = true};
	SnowflakeLease lease;

	(void) lease_state_read(&lease);
	if (!lease_is_valid(&lease, clock_boottime_us()))
		return;

	connection.deadline_us = clock_boottime_us() + SHORT_TIMEOUT_US;
	if (worker_renew_and_release(&connection))
		ereport(LOG,
				(errmsg("snowflake worker_id %d has been given back to the registry",
						lease.worker_id)));
	else
		ereport(LOG,
				(errmsg("snowflake worker_id %d could not be given back to the registry",
						lease.worker_id),
				 errdetail("%s", connection.reason)));
	connection_close(&connection);
}

/*
 * Renews the lease and then releases it.  The renewal comes first because a
 * registry that has failed over may not know this lease, and would refuse the
 * release.  A server whose lease is not renewed keeps the lease, and can claim
 * it again at a start before the lease ends.  So does a server that the
 * registry had forgotten: the registry would not give the worker id to anybody
 * before the forgotten fence, and not to this server either.
 */
static bool
worker_renew_and_release(SnowflakeConnection *connection)
{
	RegistryGrant grant;
	SnowflakeLease lease;

	if (!worker_claim_lease(connection, &grant))
		return false;
	if (grant.begins_at > layout_tick_start(node_layout(), shmem_mark()))
	{
		connection_fail(connection, "The registry has forgotten a grant of this lease.");
		return false;
	}
	if (!worker_change_lease(LEASE_END, NULL))
	{
		connection_fail(connection, PAGE_FAILURE);
		return false;
	}
	(void) lease_state_read(&lease);

	/* Without a lease nobody raises the mark. */
	return registry_release(connection, &lease,
							layout_tick_start(node_layout(), shmem_mark()));
}

static bool
worker_claim_lease(SnowflakeConnection *connection, RegistryGrant *grant)
{
	SnowflakeLease held;
	bool		is_held;

	if (!worker_prepare_incarnation(connection) ||
		!connection_open(connection, node_registry))
		return false;
	(void) lease_state_read(&held);
	is_held = lease_is_valid(&held, clock_boottime_us());
	if (!registry_claim(connection, &held, is_held, grant))
	{
		if (is_held && strcmp(connection->code, REGISTRY_LOST) == 0)
			worker_end_lost_lease(&held,
								  "The registry does not know of this lease.");
		return false;
	}

	/* The lease may have run out meanwhile. */
	is_held = lease_is_valid(&held, clock_boottime_us());
	(void) worker_change_lease(is_held ? LEASE_RENEW : LEASE_BEGIN, grant);
	return true;
}

static void
worker_end_lost_lease(const SnowflakeLease *lease, const char *why)
{
	(void) worker_change_lease(LEASE_END, NULL);
	ereport(LOG,
			(errmsg("snowflake worker_id %d is no longer leased to this server",
					lease->worker_id),
			 errdetail("%s", why)));
}

/*
 * Chooses the incarnation of the next claim and makes the incarnation durable,
 * so that a server which crashes before the answer arrives can repeat the
 * claim with the same incarnation.  Keeps the incarnation of a claim that was
 * not granted.
 */
static bool
worker_prepare_incarnation(SnowflakeConnection *connection)
{
	int64		incarnation;
	bool		is_waiting;

	if (!pg_strong_random(&incarnation, sizeof(incarnation)))
	{
		connection_fail(connection, "The server has no source of random numbers.");
		return false;
	}
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_waiting =
		snowflake_shared->lease.next_incarnation != LEASE_NO_INCARNATION;
	if (!is_waiting)
		snowflake_shared->lease.next_incarnation = incarnation | 1; /* never 0 */
	if (snowflake_shared->lease.worker_id == WORKER_ID_UNSET)
	{
		/*
		 * After a restart these fields show which holder has sent the claim,
		 * and to which registry.
		 */
		strlcpy(snowflake_shared->lease.holder, holder_text,
				LEASE_HOLDER_SIZE);
		snowflake_shared->lease.registry = node_registry_hash();
	}
	LWLockRelease(&snowflake_shared->lock);
	if (is_waiting || worker_change_lease(LEASE_CLAIM, NULL))
		return true;

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	snowflake_shared->lease.next_incarnation = LEASE_NO_INCARNATION;
	LWLockRelease(&snowflake_shared->lock);
	connection_fail(connection, PAGE_FAILURE);
	return false;
}

/*
 * Changes the lease in shared memory first, and then in WAL, in a transaction:
 * its abort after an error releases locks, pins and pending I/O.
 *
 * If the mark's page cannot be read or written, logs the error, unless the
 * error before had the same SQLSTATE, and returns false.  The change then
 * exists in shared memory only, or not at all.  That is safe, because without
 * writing the page no process can raise the mark, and ids stay before the
 * mark.
 */
static bool
worker_change_lease(LeaseChange change, const RegistryGrant *grant)
{
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		if (change == LEASE_READ)
			mark_start_once();
		else if (change == LEASE_BEGIN)
			mark_begin_lease(&grant->lease, grant->begins_at);
		else if (change == LEASE_RENEW)
			lease_state_renew(&grant->lease);
		else if (change == LEASE_END)
			mark_end_lease();
		if (change != LEASE_READ)
			mark_log_present();
		CommitTransactionCommand();
		page_sqlerrcode = 0;
	}
	PG_CATCH();
	{
		if (geterrcode() != page_sqlerrcode)
			EmitErrorReport();
		page_sqlerrcode = geterrcode();
		AbortCurrentTransaction();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return page_sqlerrcode == 0;
}
