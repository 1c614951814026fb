/*
 * lease_rules.c
 *	  What a lease on a worker id allows: pure rules.
 *
 * The functions here read no clock and no shared memory: the callers pass all
 * that the rules depend on.
 */
#include "postgres.h"

#include "lease_rules.h"

/* Was a lease granted to a holder, with or without a nonce? */
bool
lease_is_of(const Lease *lease, const char *holder)
{
	size_t		length = strlen(holder);

	return strncmp(lease->holder, holder, length) == 0 &&
		(lease->holder[length] == '\0' || lease->holder[length] == LEASE_NONCE);
}

/*
 * Does a lease of the mark's page fit the present configuration?  Only then
 * can this server resume the lease, or name it to the registry as its last
 * lease.
 */
bool
lease_is_usable(const Lease *lease, const Layout *layout, int datacenter_id)
{
	return lease->worker_id != WORKER_ID_UNSET &&
		lease->datacenter_id == datacenter_id &&
		lease->worker_id <= layout_field_max(layout->worker_bits);
}

/*
 * May a server resume a usable lease of the mark's page without asking the
 * registry?  The server must be the holder: a restart of the machine changes
 * the holder, so clock_boottime_us() has counted since the grant without a
 * break.  The registry and the worker id (WORKER_ID_UNSET: any) must be the
 * configured ones.  The timeline must be the lease's: a data directory on
 * another timeline was restored to an earlier state, and the lease may have
 * been released after that state.
 */
bool
lease_can_resume(const Lease *lease, const char *holder, uint32 timeline,
				 int worker_id, uint64 registry, int64 boottime_us)
{
	return lease_is_of(lease, holder) &&
		lease->timeline == timeline &&
		(worker_id == WORKER_ID_UNSET || worker_id == lease->worker_id) &&
		lease->registry == registry && lease_is_valid(lease, boottime_us);
}

/*
 * Returns the largest mark that a lease allows: the tick in which the lease
 * ends, or the tick of the fence if that is earlier.  Returns 0 if the lease
 * is over.  The caller has read "now" and "boottime_us" at the same time.
 */
int64
lease_reach(const Lease *lease, const Layout *layout, TimestampTz now,
			int64 boottime_us)
{
	TimestampTz ends_at = now + (lease->ends_us - boottime_us);
	int64		tick;

	if (!lease_is_valid(lease, boottime_us) ||
		layout_locate(layout, Min(lease->fence, ends_at),
					  &tick) == SPAN_BEFORE)
		return 0;
	return tick;
}
