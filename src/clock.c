/*
 * clock.c
 *	  The wall clock as ticks; the policy for a clock that is behind;
 *	  interruptible sleep.
 *
 * A caller of clock_sleep() must hold no LWLock.
 */
#include "postgres.h"

#include <time.h>

#include "clock.h"
#include "compat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"

/*
 * A sleep of at most this time calls pg_usleep(), which counts microseconds:
 * a tick is too short for a latch, which counts milliseconds.  A signal that
 * arrives right before pg_usleep() is handled at the end of the sleep.  Longer
 * sleeps wait on the latch, which a signal interrupts.
 */
#define SHORT_SLEEP_US 20000

/*
 * The longest sleep.  Setting the clock forward wakes no sleeper, so every
 * sleeper has to read the clock again after this time.
 */
#define LONGEST_SLEEP_US 50000

/* parameters */
int			clock_policy = CLOCK_POLICY_WAIT;
int			clock_tolerance_ms = 5000;

/*
 * Decides what to do where the next id's tick is ahead of the clock.  The
 * arguments are the leads of the next and of the last id's tick, in
 * microseconds.  Policy "advance" allows a lead of clock_tolerance; the other
 * policies allow no lead.  The first row that applies counts:
 *
 *	the next id's lead is allowed						issue the id
 *	the last id's lead is allowed: its tick is spent	wait for the next tick
 *	the last id's lead is excused						wait for the clock
 *	the policy is "error"								refuse
 *	the clock has stepped back by more than the allowed
 *	lead plus clock_tolerance							refuse
 *	the clock has stepped back by less					wait for the clock
 *
 * A lead of up to "excused_us" is excused after a start.  The ids then begin
 * at the mark, which the server had put ahead of its ids, so their first
 * tick can lead a clock that has never stepped back.
 */
void
clock_judge(Attempt *attempt, int64 next_lead_us, int64 last_lead_us,
			int64 excused_us)
{
	int64		allowed_us = clock_allowed_lead_us();
	bool		is_behind = last_lead_us > allowed_us;

	attempt->wait_us = next_lead_us - allowed_us;
	attempt->behind_us = is_behind ? last_lead_us : 0;
	attempt->regression_us = is_behind ? last_lead_us - excused_us : 0;
	if (next_lead_us <= allowed_us)
		attempt->outcome = OUTCOME_ISSUE;
	else if (attempt->regression_us > 0 &&
			 (clock_policy == CLOCK_POLICY_ERROR ||
			  attempt->regression_us - allowed_us > clock_tolerance_us()))
		attempt->outcome = OUTCOME_BEHIND;
	else
		attempt->outcome = OUTCOME_WAIT;
}

/*
 * Returns the microseconds since the machine was started, on a clock that
 * nobody can set.  CLOCK_BOOTTIME, where the kernel has it, also counts while
 * the machine is suspended.
 */
int64
clock_boottime_us(void)
{
	struct timespec now;

#ifdef CLOCK_BOOTTIME
	(void) clock_gettime(CLOCK_BOOTTIME, &now);
#else
	(void) clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

uint32
clock_wait_event(WaitReason reason)
{
	static const char *const names[] = {
		[WAIT_FOR_TICK] = "SnowflakeTick",
		[WAIT_FOR_CLOCK] = "SnowflakeClock",
		[WAIT_FOR_PAGE] = "SnowflakePage",
		[WAIT_FOR_REGISTRY] = "SnowflakeRegistry",
		[WAIT_IN_LEASE_WORKER] = "SnowflakeRegistryMain"
	};
	static uint32 wait_events[lengthof(names)] = {0};

	if (wait_events[reason] == 0)
		wait_events[reason] = WaitEventExtensionNew(names[reason]);
	return wait_events[reason];
}

/*
 * Sleeps for about duration_us or for less, so the caller has to read the
 * clock again.  A cancel, a timeout, a shutdown or the postmaster's death ends
 * the sleep within SHORT_SLEEP_US, by an error or by the process's exit.
 */
void
clock_sleep(int64 duration_us, WaitReason reason)
{
	CHECK_FOR_INTERRUPTS();

	if (duration_us <= SHORT_SLEEP_US)
	{
		pgstat_report_wait_start(clock_wait_event(reason));
		pg_usleep((long) Max(duration_us, 1));
		pgstat_report_wait_end();

		/*
		 * pg_usleep() does not notice the postmaster's death.  A session that
		 * issues many ids in one statement may sleep by pg_usleep() only.
		 */
		if (IsUnderPostmaster && !PostmasterIsAlive())
			proc_exit(1);
	}
	else
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (Min(duration_us, LONGEST_SLEEP_US) / 1000),
						 clock_wait_event(reason));
		ResetLatch(MyLatch);
	}

	CHECK_FOR_INTERRUPTS();
}
