/*
 * shmem.c
 *	  The shared memory: its size and its first contents.
 *
 * If the library is preloaded, the postmaster makes the shared memory at its
 * start, and fixes the node.  If not, the first session that loads the library
 * makes the same struct as a named segment of dynamic shared memory, and the
 * first session that issues an id fixes the node.  A session detaches from
 * that segment after the before_shmem_exit callbacks.  After a crash the
 * postmaster throws away either kind of memory.
 *
 * Locking rules are in shmem.h.
 */
#include "postgres.h"

#include "compat.h"
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
static void initialize(SharedState *state);
static void initialize_segment(void *segment COMPAT_DSM_ARGUMENT);

void
shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
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
	{
		initialize(shared);
		shmem_fix_node();
	}
	LWLockRelease(AddinShmemInitLock);
	compat_LWLockRegisterTranche(shared->lock.tranche, TRANCHE_NAME);
	node_share(&shared->node);
	shmem_settle_node();
}

/*
 * Attaches a session of a server that does not preload the library.  Returns
 * false on PostgreSQL 15 and 16.  ERROR 55000 if sessions use a library of
 * another version.
 */
bool
shmem_attach(void)
{
	bool		found;
	SharedState *segment = GetNamedDSMSegment("snowflake", shared_size(),
											  initialize_segment, &found, NULL);

	if (segment == NULL)
		return false;
	if (segment->version != SHARED_STATE_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("other sessions use another version of the library \"snowflake\""),
				 errhint("Restart the server.")));
	shared = segment;
	compat_LWLockRegisterTranche(shared->lock.tranche, TRANCHE_NAME);
	node_share(&shared->node);
	return true;
}

/*
 * Fixes the node unless it is fixed already.  The caller holds the lock, or is
 * the postmaster.
 */
void
shmem_fix_node(void)
{
	if (shared->node.is_fixed)
		return;
	strlcpy(shared->holder, host_holder, LEASE_HOLDER_SIZE);
	strlcpy(shared->location, host_location, HOST_LOCATION_SIZE);
	node_fix(&shared->node);
}

/* Lets this process go by the fixed node. */
void
shmem_settle_node(void)
{
	strlcpy(host_holder, shared->holder, LEASE_HOLDER_SIZE);
	strlcpy(host_location, shared->location, HOST_LOCATION_SIZE);
	node_settle();
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
	return node_uses_registry() ? shared->lease.worker_id :
		node_intended_worker_id();
}

void
shmem_read_lease(Lease *lease)
{
	LWLockAcquire(&shared->lock, LW_SHARED);
	*lease = shared->lease;
	LWLockRelease(&shared->lock);
}

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
					mul_size(shmem_slot_count(), sizeof(PaddedBackendSlot)));
}

static void
initialize(SharedState *state)
{
	int			tranche_id = LWLockNewTrancheId(TRANCHE_NAME);

	memset(state, 0, shared_size());
	state->version = SHARED_STATE_VERSION;
	pg_atomic_init_u64(&state->stamp, 0);
	pg_atomic_init_u64(&state->turns, 0);
	pg_atomic_init_u64(&state->horizon, 0);
	LWLockInitialize(&state->queue, tranche_id);
	LWLockInitialize(&state->lock, tranche_id);
	for (int number = 0; number < shmem_slot_count(); number++)
		pg_atomic_init_u64(&state->slots[number].slot.hold, 0);
	state->lease.worker_id = WORKER_ID_UNSET;
	strlcpy(state->lease_reason,
			"The registry has not answered yet.",
			LEASE_REASON_SIZE);
	state->stats_reset = GetCurrentTimestamp();
}

static void
initialize_segment(void *segment COMPAT_DSM_ARGUMENT)
{
	initialize(segment);
}
