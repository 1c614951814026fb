/*
 * layout.h
 *	  The layout of an id: fields <-> bits, spans and limits.
 */
#ifndef SNOWFLAKE_LAYOUT_H
#define SNOWFLAKE_LAYOUT_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Twitter's layout, the default of snowflake.layout and of SQL functions. */
#define LAYOUT_DEFAULT "41/5/5/12"

/* The largest width of the fields that SQL shows as integers: all but ticks. */
#define LAYOUT_FIELD_BITS_MAX 31

/* No worker id; for a server with a registry, any worker id. */
#define WORKER_ID_UNSET (-1)

/* No tick, no stamp or no id: ticks, stamps and ids are never negative. */
#define LAYOUT_NONE INT64CONST(-1)

/*
 * The widths of an id's fields, the length of a tick, and the epoch.  The
 * mark's page contains this struct.
 */
typedef struct SnowflakeLayout
{
	int			tick_bits;
	int			datacenter_bits;
	int			worker_bits;
	int			sequence_bits;
	int64		tick_us;		/* length of a tick in microseconds */
	TimestampTz epoch;			/* the instant that tick 0 begins at */
} SnowflakeLayout;

/* The fields of an id. */
typedef struct IdFields
{
	int64		tick;
	int64		datacenter_id;
	int64		worker_id;
	int64		sequence;
} IdFields;

/* Where an instant lies relative to a layout's span. */
typedef enum SpanPosition
{
	SPAN_BEFORE,
	SPAN_WITHIN,
	SPAN_AFTER
} SpanPosition;

extern bool layout_parse(const char *text, SnowflakeLayout *layout,
						 const char **detail);
extern bool layout_set_epoch(SnowflakeLayout *layout, TimestampTz epoch,
							 const char **detail);
extern char *layout_to_text(const SnowflakeLayout *layout);
extern bool layout_equal(const SnowflakeLayout *a, const SnowflakeLayout *b);

static inline int64
layout_field_max(int bits)
{
	return (INT64CONST(1) << bits) - 1;
}

static inline int
layout_id_bits(const SnowflakeLayout *layout)
{
	return layout->tick_bits + layout->datacenter_bits +
		layout->worker_bits + layout->sequence_bits;
}

static inline int64
layout_max_id(const SnowflakeLayout *layout)
{
	/* Shift down: (1 << 63) - 1 would overflow before the subtraction. */
	return PG_INT64_MAX >> (63 - layout_id_bits(layout));
}

static inline int64
layout_max_tick(const SnowflakeLayout *layout)
{
	return PG_INT64_MAX >> (63 - layout->tick_bits);
}

/*
 * A stamp is what the server holds and increments: (tick << sequence bits) |
 * sequence.  The last stamp of a tick plus 1 is the first stamp of the next
 * tick.
 */
static inline int64
layout_stamp_tick(const SnowflakeLayout *layout, int64 stamp)
{
	return stamp >> layout->sequence_bits;
}

static inline int64
layout_stamp_sequence(const SnowflakeLayout *layout, int64 stamp)
{
	return stamp & layout_field_max(layout->sequence_bits);
}

static inline int64
layout_last_stamp(const SnowflakeLayout *layout, int64 tick)
{
	return (tick << layout->sequence_bits) |
		layout_field_max(layout->sequence_bits);
}

/* Returns the bits of an id that the datacenter and the worker take. */
static inline int64
layout_node_bits(const SnowflakeLayout *layout, int64 datacenter_id,
				 int64 worker_id)
{
	return ((datacenter_id << layout->worker_bits) | worker_id)
		<< layout->sequence_bits;
}

static inline int64
layout_compose(const SnowflakeLayout *layout, const IdFields *fields)
{
	int			below_tick = layout->datacenter_bits + layout->worker_bits +
		layout->sequence_bits;

	return (fields->tick << below_tick) |
		layout_node_bits(layout, fields->datacenter_id, fields->worker_id) |
		fields->sequence;
}

static inline int64
layout_stamp_id(const SnowflakeLayout *layout, int64 stamp, int64 node_bits)
{
	int64		sequence = layout_stamp_sequence(layout, stamp);

	return ((stamp - sequence) << (layout->datacenter_bits +
								   layout->worker_bits)) |
		node_bits | sequence;
}

/*
 * Takes an id apart, the reverse of layout_compose().  The id must lie within
 * 0 .. layout_max_id().
 */
static inline IdFields
layout_split(const SnowflakeLayout *layout, int64 id)
{
	IdFields	fields;

	Assert(id >= 0 && id <= layout_max_id(layout));

	fields.sequence = id & layout_field_max(layout->sequence_bits);
	id >>= layout->sequence_bits;
	fields.worker_id = id & layout_field_max(layout->worker_bits);
	id >>= layout->worker_bits;
	fields.datacenter_id = id & layout_field_max(layout->datacenter_bits);
	fields.tick = id >> layout->datacenter_bits;
	return fields;
}

/*
 * Returns the instant at which a tick begins.  Valid for ticks of 0 ..
 * layout_max_tick() + 1; the last of these begins right after the span.
 */
static inline TimestampTz
layout_tick_start(const SnowflakeLayout *layout, int64 tick)
{
	Assert(tick >= 0 && tick <= layout_max_tick(layout) + 1);

	return layout->epoch + tick * layout->tick_us;
}

/*
 * Finds the tick that an instant, or an infinity, falls into.  Outside the
 * span the result is the tick at the nearer end.
 */
static inline SpanPosition
layout_locate(const SnowflakeLayout *layout, TimestampTz instant, int64 *tick)
{
	int64		max_tick = layout_max_tick(layout);

	if (instant < layout->epoch)
	{
		*tick = 0;
		return SPAN_BEFORE;
	}
	if (instant >= layout_tick_start(layout, max_tick + 1))
	{
		*tick = max_tick;
		return SPAN_AFTER;
	}

	/* layout_parse() has made sure that the span's length fits an int64. */
	*tick = (instant - layout->epoch) / layout->tick_us;
	return SPAN_WITHIN;
}

/*
 * Returns the first tick that begins at or after an instant or an infinity, in
 * the range 0 .. layout_max_tick() + 1.
 */
static inline int64
layout_first_tick_from(const SnowflakeLayout *layout, TimestampTz instant)
{
	int64		tick;

	if (layout_locate(layout, instant, &tick) == SPAN_BEFORE)
		return 0;
	return layout_tick_start(layout, tick) < instant ? tick + 1 : tick;
}

/*
 * Returns the largest id whose time is before an instant or an infinity,
 * LAYOUT_NONE if there is none.  An id's time is the beginning of its tick.
 */
static inline int64
layout_last_id_before(const SnowflakeLayout *layout, TimestampTz instant)
{
	IdFields	first = {.tick = layout_first_tick_from(layout, instant)};

	if (first.tick > layout_max_tick(layout))
		return layout_max_id(layout);
	return layout_compose(layout, &first) - 1;
}

#endif							/* SNOWFLAKE_LAYOUT_H */
