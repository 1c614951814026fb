/*
 * clock.h
 *	  The wall clock as ticks, and an interruptible sleep.
 */
#ifndef SNOWFLAKE_CLOCK_H
#define SNOWFLAKE_CLOCK_H

#include "postgres.h"

#include "layout.h"
#include "utils/timestamp.h"

/* What a session waits for; each has its wait event. */
typedef enum ClockWait
{
	CLOCK_WAIT_TICK,			/* the sequence of the tick is spent */
	CLOCK_WAIT_CATCH_UP			/* the clock is behind the last id */
} ClockWait;

/* One look at the wall clock. */
typedef struct ClockReading
{
	TimestampTz now;
	SpanPosition position;		/* of now in the layout's span */
	int64		tick;			/* that now falls into */
} ClockReading;

/* Reads the wall clock, through the vDSO: no system call. */
static inline void
clock_read(const Layout *layout, ClockReading *reading)
{
	reading->now = GetCurrentTimestamp();
	reading->position = layout_locate(layout, reading->now, &reading->tick);
}

extern void clock_sleep(int64 duration_us, ClockWait reason);

#endif							/* SNOWFLAKE_CLOCK_H */
