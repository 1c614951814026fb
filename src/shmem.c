/*
 * shmem.c
 *	  The shared memory: its size and its first contents.
 *
 * If the library is preloaded, the postmaster makes the shared memory at its
 * start, and fixes the node.  If not, the first session that needs the shared
 * memory makes the same struct as a named segment of dynamic shared memory, and
 * the first session that issues an id fixes the node.  A session detaches from
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

/* The size for all versions of the library: room for a header and slots. */
#define HEADER_SIZE 4096
#define SLOT_SIZE 512

StaticAssertDecl(offsetof(SharedState, version) == 0 &&
				 offsetof(SharedState, node) == 8,
				 "version and node have fixed places in the shared memory");
StaticAssertDecl(offsetof(FixedNode, is_fixed) == 0 &&
				 offsetof(FixedNode, datacenter_id) == 4 &&
				 offsetof(FixedNode, worker_id) == 8 &&
				 offsetof(FixedNode, worker_id_source) == 12 &&
				 offsetof(FixedNode, layout) == 16 &&
				 offsetof(Layout, tick_bits) == 0 &&
				 offsetof(Layout, datacenter_bits) == 4 &&
				 offsetof(Layout, worker_bits) == 8 &&
				 offsetof(Layout, sequence_bits) == 12 &&
				 offsetof(Layout, tick_us) == 16 &&
				 offsetof(Layout, epoch) == 24,
				 "the fields of FixedNode have fixed places");
StaticAssertDecl(offsetof(SharedState, slots) <= HEADER_SIZE &&
				 sizeof(PaddedBackendSlot) <= SLOT_SIZE,
				 "the shared memory has room for SharedState");

SharedState *shared = NULL;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void request(void);
static void startup(void);
static const FixedNode *find_node(void);
static Size shared_size(void);
static void initialize(SharedState *state);
static SharedState *find_segment(void);
static void initialize_segment(void *segment COMPAT_DSM_ARGUMENT);

/* Lets this process, or the postmaster for all, make the shared memory. */
void
shmem_register(void)
{
	if (!node_is_preloaded)
	{
		node_find_fixed = find_node;
		return;
	}
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}

static void
request(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(shared_size());
}

/*
 * The postmaster calls this function at its start, and again after a backend's
 * crash, when it has thrown the shared memory away.  On platforms without
 * fork() every process calls the function, and copies the values that a forked
 * process inherits from the postmaster.
 */
static void
startup(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("snowflake", shared_size(), &found);
	if (!found)
	{
		initialize(shared);
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		shmem_fix_node();
		LWLockRelease(&shared->lock);
	}
	LWLockRelease(AddinShmemInitLock);
	compat_LWLockRegisterTranche(shared->lock.tranche, TRANCHE_NAME);
	shmem_settle_node();
}

/*
 * Returns the fixed node of a server that does not preload the library, NULL on
 * PostgreSQL 15 and 16.  Works with the shared memory of any version.
 */
static const FixedNode *
find_node(void)
{
	SharedState *segment = find_segment();

	return segment == NULL ? NULL : &segment->node;
}

/*
 * Attaches a session to the shared memory.  Returns false without preload on
 * PostgreSQL 15 and 16, and if sessions use a library of another version.
 */
bool
shmem_try_attach(void)
{
	SharedState *segment;

	if (likely(shared != NULL))
		return true;
	segment = find_segment();
	if (segment == NULL || segment->version != SHARED_STATE_VERSION)
		return false;
	shared = segment;
	compat_LWLockRegisterTranche(shared->lock.tranche, TRANCHE_NAME);
	return true;
}

/* As shmem_try_attach(), but ERROR 55000 in place of false. */
void
shmem_attach(void)
{
	const SharedState *segment;

	if (shmem_try_attach())
		return;
	segment = find_segment();
	if (segment == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids are neither issued nor counted because the library was not preloaded"),
				 errhint("Add \"snowflake\" to \"shared_preload_libraries\" and restart the server.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("other sessions use another version of the library \"snowflake\""),
				 errdetail("The library was replaced while the server was running: this session has version %d of its shared memory, and the server has version %d.",
						   SHARED_STATE_VERSION, segment->version),
				 errhint("Restart the server. Sessions that have issued ids before go on until then.")));
}

/* Fixes the node unless it is fixed already.  The caller holds the lock. */
void
shmem_fix_node(void)
{
	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));

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
	node_share(&shared->node);
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
	Assert(LWLockHeldByMe(&shared->lock));

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
	return add_size(HEADER_SIZE, mul_size(shmem_slot_count(), SLOT_SIZE));
}

/* Returns the named segment; NULL on PostgreSQL 15 and 16. */
static SharedState *
find_segment(void)
{
	static SharedState *segment = NULL;
	bool		found;

	if (segment == NULL)
		segment = GetNamedDSMSegment("snowflake", shared_size(),
									 initialize_segment, &found, NULL);
	return segment;
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
