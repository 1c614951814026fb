/*
 * shmem.c
 *	  The shared memory: its size and its first contents.
 *
 * The postmaster makes the shared memory at its start, and its children
 * inherit the mapping.  After a crash the postmaster throws the shared memory
 * away and makes it anew.
 *
 * Locking rules are in shmem.h.
 */
#include "postgres.h"

#include "compat.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

/* The name of the struct, and of the tranche of its lock. */
#define SHMEM_NAME "snowflake"

SharedState *snowflake_shared = NULL;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void shmem_request(void);
static void shmem_startup(void);
static Size shmem_size(void);
static void shmem_initialize(void);

/* Lets the postmaster make the shared memory. */
void
shmem_register(void)
{
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

static void
shmem_request(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(shmem_size());
}

static void
shmem_startup(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	snowflake_shared = ShmemInitStruct(SHMEM_NAME, shmem_size(), &found);
	if (!found)
		shmem_initialize();
	LWLockRelease(AddinShmemInitLock);
	compat_LWLockRegisterTranche(snowflake_shared->lock.tranche, SHMEM_NAME);
}

/* Returns the number of slots; those of prepared transactions are the last. */
int
shmem_slot_count(void)
{
	return FIRST_PREPARED_XACT_PROC_NUMBER + max_prepared_xacts;
}

/*
 * Returns the worker id that the server issues ids with, WORKER_ID_UNSET while
 * it has none.  The caller holds the lock, because the lease may change.
 */
int
shmem_worker_id(void)
{
	Assert(LWLockHeldByMe(&snowflake_shared->lock));

	return node_uses_registry() ? snowflake_shared->lease.worker_id :
		node_worker_id;
}

int64
shmem_mark(void)
{
	int64		mark;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	mark = snowflake_shared->mark;
	LWLockRelease(&snowflake_shared->lock);
	return mark;
}

/*
 * Raises the newest stamp to at least the given stamp.  Other sessions may
 * issue ids meanwhile.
 */
void
shmem_raise_stamp(int64 stamp)
{
	uint64		seen = pg_atomic_read_u64(&snowflake_shared->stamp);

	while ((int64) seen < stamp &&
		   !pg_atomic_compare_exchange_u64(&snowflake_shared->stamp, &seen,
										   (uint64) stamp))
		 /* the stamp has grown meanwhile */ ;
}

static Size
shmem_size(void)
{
	return add_size(offsetof(SharedState, slots),
					mul_size(shmem_slot_count(), sizeof(PaddedBackendSlot)));
}

static void
shmem_initialize(void)
{
	memset(snowflake_shared, 0, shmem_size());
	pg_atomic_init_u64(&snowflake_shared->stamp, 0);
	pg_atomic_init_u64(&snowflake_shared->turns, 0);
	pg_atomic_init_u64(&snowflake_shared->horizon, 0);
	LWLockInitialize(&snowflake_shared->lock, LWLockNewTrancheId(SHMEM_NAME));
	for (int number = 0; number < shmem_slot_count(); number++)
		pg_atomic_init_u64(&snowflake_shared->slots[number].slot.hold, 0);
	snowflake_shared->lease.worker_id = WORKER_ID_UNSET;
	snowflake_shared->lease_state = LEASE_NONE;
	strlcpy(snowflake_shared->lease_reason,
			"The registry has not answered yet.",
			LEASE_REASON_SIZE);
	snowflake_shared->stats_reset = GetCurrentTimestamp();
}
