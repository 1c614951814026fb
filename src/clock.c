/*
 * clock.c
 *	  The wall clock as ticks, and an interruptible sleep.
 *
 * What a tick is waited for with.  The caller must hold no LWLock.
 */
#include "postgres.h"

#include "clock.h"
#include "compat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"

/*
 * Up to here a sleep is one in microseconds, as a tick's rest is and that of
 * the ticks given to others first; a signal that slips in just before it
 * costs no more than this.  Longer ones wait on the latch, which counts in
 * milliseconds.
 */
#define SHORT_SLEEP_US 20000

/*
 * No sleep is longer, because the clock may be set forward meanwhile, and
 * nobody tells us.
 */
#define LONGEST_SLEEP_US 50000

/* The wait event of a reason, as pg_stat_activity shows it. */
uint32
wait_event_of(WaitReason reason)
{
	static const char *const names[] = {
		[WAIT_FOR_TICK] = "SnowflakeTick",
		[WAIT_FOR_CLOCK] = "SnowflakeClock",
		[WAIT_FOR_MARK] = "SnowflakeMark",
		[WAIT_IN_WORKER] = "SnowflakeMarkMain",
		[WAIT_FOR_REGISTRY] = "SnowflakeRegistry",
		[WAIT_IN_REGISTRY_WORKER] = "SnowflakeRegistryMain"
	};
	static uint32 wait_events[lengthof(names)] = {0};

	if (wait_events[reason] == 0)
		wait_events[reason] = WaitEventExtensionNew(names[reason]);
	return wait_events[reason];
}

/*
 * Sleeps for a while: at most duration_us (microseconds), often less.  The
 * caller looks at the clock again and decides anew.  Ends at once, by an
 * error or the process's exit, on cancel, timeout, shutdown and the
 * postmaster's death.
 */
void
clock_sleep(int64 duration_us, WaitReason reason)
{
	CHECK_FOR_INTERRUPTS();

	if (duration_us <= SHORT_SLEEP_US)
	{
		pgstat_report_wait_start(wait_event_of(reason));
		pg_usleep((long) Max(duration_us, 1));
		pgstat_report_wait_end();

		/* an orphan at the ceiling would never come by a latch */
		if (IsUnderPostmaster && !PostmasterIsAlive())
			proc_exit(1);
	}
	else
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (Min(duration_us, LONGEST_SLEEP_US) / 1000),
						 wait_event_of(reason));
		ResetLatch(MyLatch);
	}

	CHECK_FOR_INTERRUPTS();
}
