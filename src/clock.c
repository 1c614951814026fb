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
#include "lib/stringinfo.h"
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
 * The rule for a clock that has stepped back, and so is behind the last id by
 * more than the allowed lead: is an id refused at once, or does the session
 * wait for the clock?  "regression_us" is the last id's lead without what is
 * excused after a start.
 */
bool
clock_must_refuse(int64 regression_us)
{
	return regression_us > 0 &&
		regression_us - clock_allowed_lead_us() > clock_tolerance_us();
}

/* Returns an instant as text, in memory of its own. */
char *
clock_text(TimestampTz instant)
{
	return pstrdup(timestamptz_to_str(instant));
}

/*
 * Returns a duration as text, in memory of its own: in milliseconds, from a
 * second on in seconds and, from a minute on, in days, hours, minutes and
 * whole seconds.
 */
char *
clock_duration_text(int64 duration_us)
{
	static const struct
	{
		const char *name;
		int64		us;
	}			units[] = {
		{"d", USECS_PER_DAY},
		{"h", USECS_PER_HOUR},
		{"min", USECS_PER_MINUTE},
		{"s", USECS_PER_SEC}
	};
	StringInfoData text;

	if (duration_us < USECS_PER_SEC)
		return psprintf(INT64_FORMAT ".%03d ms", duration_us / 1000,
						(int) (duration_us % 1000));
	if (duration_us < USECS_PER_MINUTE && duration_us % USECS_PER_SEC != 0)
		return psprintf(INT64_FORMAT ".%03d s", duration_us / USECS_PER_SEC,
						(int) (duration_us % USECS_PER_SEC / 1000));

	initStringInfo(&text);
	for (int i = 0; i < lengthof(units); i++)
	{
		if (duration_us >= units[i].us)
			appendStringInfo(&text, "%s" INT64_FORMAT " %s",
							 text.len > 0 ? " " : "",
							 duration_us / units[i].us, units[i].name);
		duration_us %= units[i].us;
	}
	return text.data;
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
	Assert(InterruptHoldoffCount == 0); /* no LWLock is held */

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
