/*
 * lease_rules.c
 *	  What a lease on a worker id allows: a pure rule, which reads no clock and
 *	  no shared memory.
 */
#include "postgres.h"

#include "lease_rules.h"

/*
 * Returns the largest mark that a lease allows: the tick of the fence, or 0 if
 * the lease is over.  The next holder's ids begin at the fence, so a mark that
 * was logged just before the lease's end may be after that end.
 */
int64
lease_reach(const SnowflakeLease *lease, const SnowflakeLayout *layout,
			int64 boottime_us)
{
	int64		tick;

	if (!lease_is_valid(lease, boottime_us) ||
		layout_locate(layout, lease->fence, &tick) == SPAN_BEFORE)
		return 0;
	return tick;
}
