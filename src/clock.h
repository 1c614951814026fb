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
	WAIT_IN_WORKER,				/* for ids to be issued */
	WAIT_FOR_REGISTRY,			/* for its answer */
	WAIT_IN_REGISTRY_WORKER		/* for the lease to be renewed */
} WaitReason;

/* A look at the wall clock.  To start with, {0}. */
typedef struct ClockReading
{
	TimestampTz now;
	SpanPosition position;		/* of now in the layout's span */
	int64		tick;			/* that now falls into */
	TimestampTz tick_start;		/* when that one begins */
} ClockReading;

/*
 * Reads the wall clock, through the vDSO: no system call.  The reading is
 * the one before, of the same layout: while its tick lasts, nothing has to
 * be divided.
 */
static inline void
clock_read(const Layout *layout, ClockReading *reading)
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

extern uint32 wait_event_of(WaitReason reason);
extern void clock_sleep(int64 duration_us, WaitReason reason);

#endif							/* SNOWFLAKE_CLOCK_H */
