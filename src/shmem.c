/*
 * shmem.c
 *	  The shared memory: its size, its first contents, and the operations on
 *	  all generators at once.
 *
 * Locking rules are in shmem.h.
 */
#include "postgres.h"

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#define TRANCHE_NAME "snowflake"

/* parameter */
int			generator_count = 1;

SharedState *shared = NULL;
PaddedGenerator *generators = NULL;
PaddedBackendSlot *backend_slots = NULL;

static Size
generators_offset(void)
{
	return CACHELINEALIGN(sizeof(SharedState));
}

static Size
slots_offset(void)
{
	return add_size(generators_offset(),
					mul_size(generator_count, sizeof(PaddedGenerator)));
}

static Size
shared_size(void)
{
	return add_size(slots_offset(),
					mul_size(MaxBackends, sizeof(PaddedBackendSlot)));
}

void
shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());

	/* Only names the tranche: the locks themselves are in the structs. */
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
}

/*
 * Returns the time of the last checkpoint before this start: recovery has not
 * yet made a checkpoint of its own.  "is_sound" is not tested, because the
 * postmaster has verified pg_control.
 */
static TimestampTz
read_last_checkpoint(void)
{
	bool		is_sound;
	ControlFileData *control = get_controlfile(DataDir, &is_sound);
	TimestampTz result = time_t_to_timestamptz(control->checkPointCopy.time);

	pfree(control);
	return result;
}

static void
initialize(void)
{
	int			tranche_id = GetNamedLWLockTranche(TRANCHE_NAME)->lock.tranche;

	memset(shared, 0, shared_size());
	pg_atomic_init_u64(&shared->mark, 0);
	LWLockInitialize(&shared->lock, tranche_id);
	shared->derived_worker_id = node_derived_worker_id;
	strlcpy(shared->holder, host_holder, LEASE_HOLDER_SIZE);
	strlcpy(shared->location, host_location, HOST_LOCATION_SIZE);
	shared->lease.worker_id = WORKER_ID_UNSET;
	strlcpy(shared->lease_reason,
			gettext_noop("The registry has not answered yet."),
			LEASE_REASON_SIZE);
	shared->last_checkpoint = read_last_checkpoint();
	shared->stats_reset = GetCurrentTimestamp();
	pg_atomic_init_u64(&shared->newest_tick, 0);
	for (int i = 0; i < generator_count; i++)
	{
		Generator  *generator = &generators[i].generator;

		LWLockInitialize(&generator->lock, tranche_id);
		pg_atomic_init_u64(&generator->last, 0);
		pg_atomic_init_u64(&generator->turns, 0);
	}
}

/*
 * The postmaster calls this function at its start, and again after a backend's
 * crash, when it has thrown the shared memory away.  On platforms without
 * fork() every process calls the function, and copies the values that a forked
 * process inherits from the postmaster.
 */
void
shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("snowflake", shared_size(), &found);
	generators = (PaddedGenerator *) ((char *) shared + generators_offset());
	backend_slots = (PaddedBackendSlot *) ((char *) shared + slots_offset());
	if (!found)
		initialize();
	else
	{
		node_derived_worker_id = shared->derived_worker_id;
		strlcpy(host_holder, shared->holder, LEASE_HOLDER_SIZE);
		strlcpy(host_location, shared->location, HOST_LOCATION_SIZE);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Returns the worker id that the server issues ids with, WORKER_ID_UNSET while
 * it has none.  The caller holds the lock, because the lease may change.
 */
int
shmem_worker_id(void)
{
	return node_is_leased() ? shared->lease.worker_id :
		node_intended_worker_id();
}

/* Copies the lease. */
void
shmem_read_lease(Lease *lease)
{
	LWLockAcquire(&shared->lock, LW_SHARED);
	*lease = shared->lease;
	LWLockRelease(&shared->lock);
}

/* Returns the newest stamp of all generators. */
int64
shmem_newest_stamp(void)
{
	int64		newest = 0;

	for (int i = 0; i < generator_count; i++)
		newest = Max(newest,
					 (int64) pg_atomic_read_u64(&generators[i].generator.last));
	return newest;
}

/*
 * Raises the stamps of all generators to at least the given stamp.  Other
 * sessions may issue ids meanwhile.
 */
void
shmem_raise_stamps(int64 stamp)
{
	for (int i = 0; i < generator_count; i++)
	{
		pg_atomic_uint64 *last = &generators[i].generator.last;
		uint64		seen = pg_atomic_read_u64(last);

		while ((int64) seen < stamp &&
			   !pg_atomic_compare_exchange_u64(last, &seen, (uint64) stamp))
			 /* the stamp has grown meanwhile */ ;
	}
}
