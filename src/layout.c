/*
 * layout.c
 *	  The layout of an id: reading it from text, and back.
 *
 * The functions here are pure: they use no globals, do no I/O and raise no
 * errors of their own.  For an invalid layout or epoch a function returns
 * false and a detail.  The caller raises the error, because only the caller
 * knows whether the error stops the server's start or one statement.
 */
#include "postgres.h"

#include <ctype.h>

#include "common/int.h"
#include "layout.h"
#include "utils/timestamp.h"

#define ID_BITS_MAX 63			/* the sign bit stays clear */

/* The units in which text gives the length of a tick, from the smallest. */
typedef struct TickUnit
{
	const char *name;
	int64		us;
} TickUnit;

static const TickUnit tick_units[] = {
	{"us", 1},
	{"ms", 1000},
	{"s", USECS_PER_SEC}
};

#define DEFAULT_TICK_US 1000

static int	layout_parse_number(const char **text);
static bool layout_parse_tick(const char *text, int64 *tick_us);
static bool layout_check_widths(const SnowflakeLayout *layout,
								const char **detail);

/*
 * Reads a layout: the widths of ticks, datacenter, worker and sequence, and
 * an optional tick, as in "41/5/5/12" or "39/0/16/8@10ms".  Does not set the
 * epoch; layout_set_epoch() does.
 */
bool
layout_parse(const char *text, SnowflakeLayout *layout, const char **detail)
{
	int		   *const widths[] = {
		&layout->tick_bits, &layout->datacenter_bits,
		&layout->worker_bits, &layout->sequence_bits
	};

	*detail = "A layout is the widths of ticks, datacenter, worker and sequence, as in \"41/5/5/12\", with an optional tick in us, ms or s, as in \"39/0/16/8@10ms\".";

	for (int i = 0; i < lengthof(widths); i++)
	{
		if (i > 0 && *text++ != '/')
			return false;
		*widths[i] = layout_parse_number(&text);
		if (*widths[i] < 0)
			return false;
	}
	return layout_parse_tick(text, &layout->tick_us) &&
		layout_check_widths(layout, detail);
}

/*
 * Sets the epoch.  Returns false if the epoch is not finite, or if the last
 * tick of the layout would then end beyond the range of timestamps.
 */
bool
layout_set_epoch(SnowflakeLayout *layout, TimestampTz epoch,
				 const char **detail)
{
	int64		span_us = (layout_max_tick(layout) + 1) * layout->tick_us;
	TimestampTz end;

	if (!IS_VALID_TIMESTAMP(epoch))
	{
		*detail = "The epoch must be a finite instant.";
		return false;
	}
	if (pg_add_s64_overflow(epoch, span_us, &end) || end > END_TIMESTAMP)
	{
		*detail = "The layout's last tick lies beyond the range of timestamps.";
		return false;
	}

	layout->epoch = epoch;
	return true;
}

/* Returns text that layout_parse() reads.  Leaves out a tick of 1 ms. */
char *
layout_to_text(const SnowflakeLayout *layout)
{
	char	   *widths = psprintf("%d/%d/%d/%d",
								  layout->tick_bits, layout->datacenter_bits,
								  layout->worker_bits, layout->sequence_bits);
	int			unit = lengthof(tick_units) - 1;

	if (layout->tick_us == DEFAULT_TICK_US)
		return widths;

	/* Use the largest unit that divides the tick's length. */
	while (layout->tick_us % tick_units[unit].us != 0)
		unit--;
	return psprintf("%s@" INT64_FORMAT "%s", widths,
					layout->tick_us / tick_units[unit].us,
					tick_units[unit].name);
}

/* Do two layouts give every id the same meaning? */
bool
layout_equal(const SnowflakeLayout *a, const SnowflakeLayout *b)
{
	return memcmp(a, b, sizeof(SnowflakeLayout)) == 0;	/* has no padding */
}

/*
 * Reads an unsigned decimal number of at most nine digits, and moves *text
 * behind it.  Returns -1 if *text does not begin with such a number.
 */
static int
layout_parse_number(const char **text)
{
	const char *p = *text;
	int			number = 0;

	while (isdigit((unsigned char) *p) && p - *text < 9)
		number = number * 10 + (*p++ - '0');

	if (p == *text || isdigit((unsigned char) *p))
		return -1;
	*text = p;
	return number;
}

/* Reads the last part of a layout's text, such as "@10ms". */
static bool
layout_parse_tick(const char *text, int64 *tick_us)
{
	int			number;

	if (*text == '\0')
	{
		*tick_us = DEFAULT_TICK_US;
		return true;
	}
	if (*text++ != '@')
		return false;
	number = layout_parse_number(&text);
	if (number <= 0)
		return false;

	for (int i = 0; i < lengthof(tick_units); i++)
	{
		if (strcmp(text, tick_units[i].name) == 0)
		{
			*tick_us = number * tick_units[i].us;
			return true;
		}
	}
	return false;
}

/*
 * Checks that ids fit into a bigint, their fields into an integer, and the
 * span in microseconds into an int64.
 */
static bool
layout_check_widths(const SnowflakeLayout *layout, const char **detail)
{
	if (layout->tick_bits < 1)
		*detail = "The ticks need at least 1 bit.";
	else if (layout->datacenter_bits > LAYOUT_FIELD_BITS_MAX ||
			 layout->worker_bits > LAYOUT_FIELD_BITS_MAX ||
			 layout->sequence_bits > LAYOUT_FIELD_BITS_MAX)
		*detail = "A datacenter, worker or sequence width must be in the range 0 .. 31.";
	else if (layout_id_bits(layout) > ID_BITS_MAX)
		*detail = "The four widths must not add up to more than 63 bits.";
	else if (layout_max_tick(layout) >= PG_INT64_MAX / layout->tick_us)
		*detail = "All ticks together last longer than the range of timestamps.";
	else
		return true;
	return false;
}
