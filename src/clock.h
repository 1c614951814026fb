/*
 * clock.h
 *	  The wall clock as ticks, and an interruptible sleep.
 */
#ifndef SNOWFLAKE_CLOCK_H
#define SNOWFLAKE_CLOCK_H

#include "postgres.h"

#include "layout.h"
#include "utils/timestamp.h"

/* What a process of ours waits for; each has its wait event. */
typedef enum WaitReason
{
	WAIT_FOR_TICK,				/* the sequence of the tick is spent */
	WAIT_FOR_CLOCK,				/* the clock is behind the last id */
	WAIT_FOR_MARK,				/* another process moves the mark */
	WAIT_IN_WORKER				/* for ids to be issued */
} WaitReason;

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

extern uint32 wait_event_of(WaitReason reason);
extern void clock_sleep(int64 duration_us, WaitReason reason);

#endif							/* SNOWFLAKE_CLOCK_H */
