/*
 * clock.h
 *	  The wall clock as ticks; the policy for a clock that is behind;
 *	  interruptible sleep.
 */
#ifndef SNOWFLAKE_CLOCK_H
#define SNOWFLAKE_CLOCK_H

#include "postgres.h"

#include "layout.h"
#include "utils/timestamp.h"

/* snowflake.clock_policy: what to do when the clock is behind the last id */
typedef enum ClockPolicy
{
	CLOCK_POLICY_WAIT,
	CLOCK_POLICY_ADVANCE
} ClockPolicy;

/* The reasons for which a process waits; each has a wait event. */
typedef enum WaitReason
{
	WAIT_FOR_TICK,				/* the sequence of the tick is spent */
	WAIT_FOR_CLOCK,				/* the clock is behind the last id */
	WAIT_FOR_PAGE,				/* another process has locked the mark's page */
	WAIT_FOR_REGISTRY,			/* the registry has not answered yet */
	WAIT_IN_LEASE_WORKER		/* the next renewal is not due yet */
} WaitReason;

/* A reading of the wall clock; {0} before the first reading. */
typedef struct ClockReading
{
	TimestampTz now;
	SpanPosition position;		/* of "now" in the layout's span */
	int64		tick;			/* the tick that "now" falls into */
	TimestampTz tick_start;		/* the beginning of that tick */
} ClockReading;

/* parameters, registered by module.c */
extern int	clock_policy;
extern int	clock_tolerance_ms;

/*
 * Reads the wall clock.  On entry "reading" is the caller's previous reading
 * with the same layout, or {0}.  The function is called for every id: it
 * divides only if the tick has changed, and PostgreSQL reads the clock without
 * a system call where the kernel has a vDSO.
 */
static inline void
clock_read(const SnowflakeLayout *layout, ClockReading *reading)
{
	reading->now = GetCurrentTimestamp();
	if (unlikely(reading->position != SPAN_WITHIN ||
				 (uint64) (reading->now - reading->tick_start) >=
				 (uint64) layout->tick_us))
	{
		reading->position = layout_locate(layout, reading->now,
										  &reading->tick);
		reading->tick_start = layout_tick_start(layout, reading->tick);
	}
}

static inline int64
clock_tolerance_us(void)
{
	return (int64) clock_tolerance_ms * 1000;
}

/* How far the policy lets the tick of an id be ahead of the clock. */
static inline int64
clock_allowed_lead_us(void)
{
	return clock_policy == CLOCK_POLICY_ADVANCE ? clock_tolerance_us() : 0;
}

extern bool clock_must_refuse(int64 regression_us);
extern char *clock_text(TimestampTz instant);
extern char *clock_duration_text(int64 duration_us);
extern int64 clock_boottime_us(void);
extern uint32 clock_wait_event(WaitReason reason);
extern void clock_sleep(int64 duration_us, WaitReason reason);

#endif							/* SNOWFLAKE_CLOCK_H */
