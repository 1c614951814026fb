/*
 * worker.c
 *	  What both background workers share: registration, initialization,
 *	  waiting, and recovery from an error.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "worker.h"

/*
 * Registers a worker.  The postmaster starts the worker when recovery has
 * ended, and restarts the worker unless its exit code was 0.
 */
void
worker_register(const char *name, const char *function_name)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, name, BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "snowflake", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, function_name, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/* before_shmem_exit callback: clears the shared pointer to the latch. */
static void
clear_latch(int code, Datum latch)
{
	(void) code;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*(Latch **) DatumGetPointer(latch) = NULL;
	LWLockRelease(&shared->lock);
}

/*
 * Initializes a worker's process.  Other processes find the worker's latch at
 * "latch" while the worker runs.
 */
void
worker_initialize(Latch **latch)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* Connects to no database, but makes pg_stat_activity show the worker. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*latch = MyLatch;
	LWLockRelease(&shared->lock);
	before_shmem_exit(clear_latch, PointerGetDatum(latch));
}

/*
 * Waits until another process sets the worker's latch, for timeout_ms at most
 * or WORKER_WAIT_FOREVER.  Reloads the configuration after a SIGHUP.  Returns
 * true if the latch was set.
 */
bool
worker_wait(long timeout_ms, WaitReason reason)
{
	int			events;

	/* Without this call the views of WAL and I/O do not count the worker. */
	pgstat_report_wal(timeout_ms < 0);
	events = WaitLatch(MyLatch,
					   WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
					   (timeout_ms >= 0 ? WL_TIMEOUT : 0),
					   timeout_ms, clock_wait_event(reason));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	return (events & WL_LATCH_SET) != 0;
}

/* The memory context that the worker returns to after a transaction. */
static MemoryContext worker_context = NULL;

/*
 * Starts a transaction.  A worker reads and changes the mark's page in a
 * transaction, whose abort after an error releases locks, pins and pending
 * I/O.
 */
void
worker_start_transaction(void)
{
	worker_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}

void
worker_commit(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(worker_context);
}

/* Aborts the transaction, in a PG_CATCH() block. */
void
worker_abort(void)
{
	AbortCurrentTransaction();
	MemoryContextSwitchTo(worker_context);
	FlushErrorState();
}
