/*
 * calendar.c
 *	  Local time and days of the session's time zone, and the instants at which
 *	  days begin.
 *
 * A day is a timestamp without time zone: the day's midnight.  Where summer
 * time begins at midnight, as in Cairo, the day has no midnight and begins at
 * 01:00.  Where summer time ends at midnight, as in Havana, the day has two
 * midnights: PostgreSQL converts the day to the second midnight, but the day
 * begins at the first.
 */
#include "postgres.h"

#include "calendar.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

/* The seconds from Unix's epoch to PostgreSQL's. */
#define EPOCH_DISTANCE_S \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY)

/* Breaks a finite instant down into local date and time. */
void
calendar_local_time(TimestampTz instant, struct pg_tm *tm, fsec_t *fsec)
{
	int			tz;

	if (timestamp2tm(instant, &tz, tm, fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
}

/* Returns the day of a finite instant. */
Timestamp
calendar_day(TimestampTz instant)
{
	struct pg_tm tm;
	fsec_t		fsec;

	calendar_local_time(instant, &tm, &fsec);
	return (date2j(tm.tm_year, tm.tm_mon, tm.tm_mday) - POSTGRES_EPOCH_JDATE)
		* USECS_PER_DAY;
}

/*
 * Do local clocks show 00:00:00 at an instant?  On a day with two midnights,
 * the function returns true for both.
 */
bool
calendar_is_midnight(TimestampTz instant)
{
	struct pg_tm tm;
	fsec_t		fsec;

	calendar_local_time(instant, &tm, &fsec);
	return tm.tm_hour == 0 && tm.tm_min == 0 && tm.tm_sec == 0 && fsec == 0;
}

/*
 * Returns the first instant at which clocks show a day's midnight or later.  A
 * day that the zone left out, as Apia's did when it crossed the date line,
 * begins when the next day begins.
 */
TimestampTz
calendar_day_start(Timestamp day)
{
	pg_time_t	midnight = day / USECS_PER_SEC + EPOCH_DISTANCE_S;

	/*
	 * Begin two days earlier, which is early enough in every zone: offsets
	 * from UTC are less than two days.
	 */
	pg_time_t	since = midnight - 2 * (pg_time_t) SECS_PER_DAY;

	/* Go from one change of the zone's offset to the next. */
	for (;;)
	{
		long int	offset;
		long int	next_offset;
		int			is_dst;
		int			next_is_dst;
		pg_time_t	next_change;
		pg_time_t	start;
		int			found = pg_next_dst_boundary(&since, &offset, &is_dst,
												 &next_change, &next_offset,
												 &next_is_dst,
												 session_timezone);

		if (found < 0)
			ereport(ERROR,
					(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
					 errmsg("timestamp out of range")));
		start = Max(since, midnight - offset);
		if (found == 0 || start < next_change)
			return (start - EPOCH_DISTANCE_S) * USECS_PER_SEC;
		since = next_change;
	}
}
