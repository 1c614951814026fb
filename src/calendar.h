/*
 * calendar.h
 *	  Days of the session's time zone.
 */
#ifndef SNOWFLAKE_CALENDAR_H
#define SNOWFLAKE_CALENDAR_H

#include "postgres.h"

#include "datatype/timestamp.h"

extern Timestamp calendar_day(TimestampTz instant);
extern TimestampTz calendar_day_start(Timestamp day);
extern bool calendar_is_midnight(TimestampTz instant);

#endif							/* SNOWFLAKE_CALENDAR_H */
