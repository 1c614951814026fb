/*
 * lease_rules.c
 *	  What a lease on a worker id allows: pure rules, which read no clock and no
 *	  shared memory.
 */
#include "postgres.h"

#include "lease_rules.h"

/*
 * Returns the largest mark that a lease allows: the tick in which the lease
 * ends, or the tick of the fence if that is earlier.  Returns 0 if the lease
 * is over.  The caller has read "now" and "boottime_us" at the same time.
 */
int64
lease_reach(const SnowflakeLease *lease, const SnowflakeLayout *layout,
			TimestampTz now,
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
