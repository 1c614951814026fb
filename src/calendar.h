/*
 * calendar.h
 *	  Local time and days of the session's time zone.
 */
#ifndef SNOWFLAKE_CALENDAR_H
#define SNOWFLAKE_CALENDAR_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "pgtime.h"

extern void calendar_local_time(TimestampTz instant, struct pg_tm *tm,
								fsec_t *fsec);
extern Timestamp calendar_day(TimestampTz instant);
extern TimestampTz calendar_day_start(Timestamp day);
extern bool calendar_is_midnight(TimestampTz instant);

#endif							/* SNOWFLAKE_CALENDAR_H */
