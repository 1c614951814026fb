/*
 * worker.c
 *	  What our background workers have in common: how they are started, and
 *	  which signals they heed.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
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

/* The beginning of a worker's main function. */
void
worker_begin(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* To no database, but so that pg_stat_activity shows the worker. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/* Buffers are read outside of transactions, by their owner. */
	CreateAuxProcessResourceOwner();
}

/* Reads the configuration again if the postmaster has been told to. */
void
worker_heed_reload(void)
{
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Goes on after an error that was caught, outside of any transaction: gives
 * up what the error has left behind.
 */
void
worker_recover(MemoryContext context)
{
	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	LWLockReleaseAll();
	UnlockBuffers();
	ReleaseAuxProcessResources(false);
	FlushErrorState();
	RESUME_INTERRUPTS();
}
