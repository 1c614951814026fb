/*
 * worker.c
 *	  What both background workers share: how they are started, wait, and go
 *	  on after an error.
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

/* Has the postmaster keep a worker while the server is not in recovery. */
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

/* Called when a worker ends; the argument is where its latch is. */
static void
forget_latch(int code, Datum latch)
{
	(void) code;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*(Latch **) DatumGetPointer(latch) = NULL;
	LWLockRelease(&shared->lock);
}

/*
 * The beginning of a worker's main function.  "latch" is where others find
 * the worker's latch while it runs.
 */
void
worker_begin(Latch **latch)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* To no database, but so that pg_stat_activity shows the worker. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*latch = MyLatch;
	LWLockRelease(&shared->lock);
	before_shmem_exit(forget_latch, PointerGetDatum(latch));
}

/*
 * Waits to be woken up, for timeout_ms at most; -1: without a limit.  Reads
 * the configuration again if the postmaster has been told to.  True if the
 * worker was woken up.
 */
bool
worker_wait(long timeout_ms, WaitReason reason)
{
	int			events;

	/* The views of WAL and I/O count a worker's share only when told. */
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
 * The mark's page is read and changed in a transaction, which sees to it that
 * an error leaves nothing behind: a lock, a pin, an I/O under way.
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

/*
 * Aborts the transaction after an error that the caller has caught and, if
 * need be, logged.
 */
void
worker_abort(void)
{
	AbortCurrentTransaction();
	MemoryContextSwitchTo(worker_context);
	FlushErrorState();
}
