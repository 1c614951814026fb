/*
 * lease.c
 *	  What a lease on a worker id allows: pure rules.
 *
 * No clock is read here and nothing shared is looked at: the callers pass
 * what the rules depend on.
 */
#include "postgres.h"

#include "lease.h"

/*
 * Can a lease of the mark's page be told to the registry as this server's
 * last one?  Its worker id has to fit the present configuration.
 */
bool
lease_is_usable(const Lease *lease, const Layout *layout, int datacenter_id)
{
	return lease->worker_id != LEASE_NONE &&
		lease->datacenter_id == datacenter_id &&
		lease->worker_id <= layout_field_max(layout->worker_bits);
}

/*
 * May a server go on under a usable lease of the mark's page without asking?
 * Only the holder itself may, on whose machine the clock that the lease is
 * counted on has gone on; and only for the registry and the worker id
 * (LEASE_NONE: any) that are configured now.  On another timeline the data
 * directory was set back: the lease may have been given back since.
 */
bool
lease_can_resume(const Lease *lease, const char *holder, uint32 timeline,
				 int worker_id, uint64 registry, int64 boottime_us)
{
	return strcmp(lease->holder, holder) == 0 &&
		lease->timeline == timeline &&
		(worker_id == LEASE_NONE || worker_id == lease->worker_id) &&
		lease->registry == registry && lease_is_valid(lease, boottime_us);
}

/*
 * How far a lease lets the mark go: to the tick that the lease ends in, or
 * that the fence lies in, whichever is earlier.  0 if the lease is over.
 * "now" and "boottime_us" were read together.
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
