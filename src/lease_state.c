/*
 * lease_state.c
 *	  The state of this server's lease, and every change of it.
 *
 *	state before		what happens						state after
 *	none				a start finds its own lease on
 *						the page							pending
 *	pending				the registry refuses the claim		refused
 *	pending				no host answers						held
 *	any					the registry grants or renews		held
 *	any but none		the lease runs out, is lost or is
 *						given back							none
 *
 * Ids are issued only while the lease is held, and before its end.  The lease
 * worker makes the changes, after mark_start_once() has found the first state;
 * mark_start.c says where ids begin when the lease begins or ends.
 *
 * Locking rules are in shmem.h.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "clock.h"
#include "lease_holder.h"
#include "lease_state.h"
#include "node.h"

/* Copies the lease, which may have come to its end, and returns its state. */
LeaseState
lease_state_read(SnowflakeLease *lease)
{
	LeaseState	state;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	*lease = snowflake_shared->lease;
	state = snowflake_shared->lease_state;
	LWLockRelease(&snowflake_shared->lock);
	return state;
}

/*
 * Returns the lease as sessions may use it: one that is not held has ended.
 * The caller holds the lock.
 */
SnowflakeLease
lease_state_in_force(void)
{
	SnowflakeLease lease = snowflake_shared->lease;

	Assert(LWLockHeldByMe(&snowflake_shared->lock));

	if (snowflake_shared->lease_state != LEASE_HELD)
		lease.ends_us = 0;
	return lease;
}

void
lease_state_read_in_force(SnowflakeLease *lease)
{
	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	*lease = lease_state_in_force();
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Takes over the page's lease if the lease fits the present configuration, and
 * returns its state.  Only a lease that was taken over can be named to the
 * registry as this server's last one.
 *
 * The lease is pending, and not over, if the registry and the worker id are
 * the configured ones, and if both of these conditions hold:
 *
 * - The server is the holder.  A restart of the machine changes the holder, so
 *	 clock_boottime_us() has counted since the grant without a break.
 * - The timeline is the lease's.  A data directory on another timeline was
 *	 restored to an earlier state, and the lease may have been released after
 *	 that state.
 *
 * Otherwise the lease is over.  The page may also have the incarnation of a
 * claim whose answer never arrived, which is repeated on the same conditions.
 *
 * On another timeline, ids of the lease may be lost, so the registry must not
 * renew it either: the server names no incarnation, and begins anew, after the
 * fence or with another worker id.
 */
LeaseState
lease_state_inherit(const SnowflakeLease *logged, SnowflakeLease *lease)
{
	int			wanted = node_worker_id;
	bool		is_same_timeline = logged->timeline == GetWALInsertionTimeLine();
	bool		is_own = is_same_timeline &&
		strcmp(logged->holder, holder_text) == 0 &&
		logged->registry == node_registry_hash();

	if (logged->worker_id != WORKER_ID_UNSET &&
		logged->datacenter_id == node_datacenter_id &&
		logged->worker_id <= layout_field_max(node_layout()->worker_bits))
		*lease = *logged;
	if (!is_same_timeline)
		lease->incarnation = LEASE_NO_INCARNATION;
	lease->next_incarnation = is_own ? logged->next_incarnation :
		LEASE_NO_INCARNATION;
	if (is_own && (wanted == WORKER_ID_UNSET || wanted == lease->worker_id) &&
		lease_is_valid(lease, clock_boottime_us()))
		return LEASE_PENDING;
	lease->ends_us = 0;
	return LEASE_NONE;
}

/* Stores what a start has found.  The caller holds the lock. */
void
lease_state_start(const SnowflakeLease *lease, LeaseState state)
{
	Assert(LWLockHeldByMeInMode(&snowflake_shared->lock, LW_EXCLUSIVE));
	Assert(state == LEASE_NONE || state == LEASE_PENDING);

	snowflake_shared->lease = *lease;
	snowflake_shared->lease_state = state;
}

/*
 * Stores a lease, together with the reason that users see if the lease runs
 * out.  The caller holds the lock, and makes the change durable.
 */
void
lease_state_grant(const SnowflakeLease *lease)
{
	Assert(LWLockHeldByMeInMode(&snowflake_shared->lock, LW_EXCLUSIVE));

	snowflake_shared->lease = *lease;
	snowflake_shared->lease_state = LEASE_HELD;
	shmem_my_slot()->counters.lease_renewals++;
	strlcpy(snowflake_shared->lease_reason,
			"The lease has ended, and the registry has not answered since.",
			LEASE_REASON_SIZE);
}

/* Stores a lease on the worker id that this server has. */
void
lease_state_renew(const SnowflakeLease *lease)
{
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	lease_state_grant(lease);
	LWLockRelease(&snowflake_shared->lock);
}

/*
 * Lets the lease of the last start go on without an answer of the registry.
 * Returns false if the registry has refused the lease, or the lease is over.
 */
bool
lease_state_resume(void)
{
	bool		is_resumed;

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_resumed = snowflake_shared->lease_state == LEASE_PENDING &&
		lease_is_valid(&snowflake_shared->lease, clock_boottime_us());
	if (is_resumed)
		snowflake_shared->lease_state = LEASE_HELD;
	LWLockRelease(&snowflake_shared->lock);
	return is_resumed;
}

/*
 * Notes that the registry has refused the lease of the last start.  Only a
 * grant lets the lease go on, also under the next lease worker.
 */
void
lease_state_refuse(void)
{
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	if (snowflake_shared->lease_state == LEASE_PENDING)
		snowflake_shared->lease_state = LEASE_REFUSED;
	LWLockRelease(&snowflake_shared->lock);
}

/* Ends the lease.  The caller holds the lock, and makes the end durable. */
void
lease_state_end(void)
{
	Assert(LWLockHeldByMeInMode(&snowflake_shared->lock, LW_EXCLUSIVE));

	snowflake_shared->lease.ends_us = 0;
	snowflake_shared->lease_state = LEASE_NONE;
}

/* Stores why there is no lease, for sessions. */
void
lease_state_set_reason(const char *reason)
{
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	strlcpy(snowflake_shared->lease_reason, reason, LEASE_REASON_SIZE);
	for (char *c = snowflake_shared->lease_reason; *c != '\0'; c++)
	{
		/* In a session's encoding, only ASCII is sure to be valid. */
		if (IS_HIGHBIT_SET(*c))
			*c = '?';
	}
	LWLockRelease(&snowflake_shared->lock);
}
