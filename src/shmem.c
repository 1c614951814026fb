/*
 * shmem.c
 *	  The shared memory: its size and its first contents.
 *
 * Locking rules are in shmem.h.
 */
#include "postgres.h"

#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#define TRANCHE_NAME "snowflake"

SharedState *shared = NULL;

static Size shared_size(void);
static void initialize(void);

void
shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());

	/* Only names the tranche: the locks themselves are in the structs. */
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
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
	return node_uses_registry() ? shared->lease.worker_id :
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

/* Returns the mark. */
int64
shmem_mark(void)
{
	int64		mark;

	LWLockAcquire(&shared->lock, LW_SHARED);
	mark = shared->mark;
	LWLockRelease(&shared->lock);
	return mark;
}

/*
 * Raises the newest stamp to at least the given stamp.  Other sessions may
 * issue ids meanwhile.
 */
void
shmem_raise_stamp(int64 stamp)
{
	uint64		seen = pg_atomic_read_u64(&shared->stamp);

	while ((int64) seen < stamp &&
		   !pg_atomic_compare_exchange_u64(&shared->stamp, &seen,
										   (uint64) stamp))
		 /* the stamp has grown meanwhile */ ;
}

static Size
shared_size(void)
{
	return add_size(offsetof(SharedState, slots),
					mul_size(MaxBackends, sizeof(PaddedBackendSlot)));
}

static void
initialize(void)
{
	int			tranche_id = GetNamedLWLockTranche(TRANCHE_NAME)->lock.tranche;

	memset(shared, 0, shared_size());
	pg_atomic_init_u64(&shared->stamp, 0);
	pg_atomic_init_u64(&shared->turns, 0);
	LWLockInitialize(&shared->queue, tranche_id);
	LWLockInitialize(&shared->lock, tranche_id);
	shared->derived_worker_id = node_derived_worker_id;
	strlcpy(shared->holder, host_holder, LEASE_HOLDER_SIZE);
	strlcpy(shared->location, host_location, HOST_LOCATION_SIZE);
	shared->lease.worker_id = WORKER_ID_UNSET;
	strlcpy(shared->lease_reason,
			"The registry has not answered yet.",
			LEASE_REASON_SIZE);
	shared->stats_reset = GetCurrentTimestamp();
}
