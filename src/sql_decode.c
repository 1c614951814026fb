/*
 * sql_decode.c
 *	  The SQL functions that decode and encode ids, and the one that changes the
 *	  layout of the data.
 *
 * The functions convert arguments and results, and raise errors for invalid
 * arguments: 22003 for a number that is no id of the layout or does not fit
 * its field, 22023 for a bad epoch or layout.  The rules of an id's fields are
 * in layout.h.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "clock.h"
#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "layout.h"
#include "mark_layout.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(snowflake_decode);
PG_FUNCTION_INFO_V1(snowflake_timestamp);
PG_FUNCTION_INFO_V1(snowflake_datacenter_id);
PG_FUNCTION_INFO_V1(snowflake_worker_id);
PG_FUNCTION_INFO_V1(snowflake_sequence);
PG_FUNCTION_INFO_V1(snowflake_encode);
PG_FUNCTION_INFO_V1(snowflake_min_id);
PG_FUNCTION_INFO_V1(snowflake_max_id);
PG_FUNCTION_INFO_V1(snowflake_first_id_since);
PG_FUNCTION_INFO_V1(snowflake_last_id_before);
PG_FUNCTION_INFO_V1(snowflake_format);
PG_FUNCTION_INFO_V1(snowflake_change_layout);

static SnowflakeLayout sql_layout_of_call(FunctionCallInfo fcinfo);
static inline IdFields sql_split_id(const SnowflakeLayout *layout, int64 id);
static int64 sql_field_argument(int32 value, const char *name, int bits);

/* snowflake_decode(id bigint [, epoch timestamptz, layout text]) -> record */
Datum
snowflake_decode(PG_FUNCTION_ARGS)
{
	FmgrInfo   *function = fcinfo->flinfo;
	SnowflakeLayout layout = sql_layout_of_call(fcinfo);
	IdFields	fields = sql_split_id(&layout, PG_GETARG_INT64(0));
	Datum		values[4];
	bool		nulls[4] = {false};

	/* Keep the record's description for the next call. */
	if (function->fn_extra == NULL)
	{
		MemoryContext caller = MemoryContextSwitchTo(function->fn_mcxt);
		TupleDesc	tupdesc;

		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		function->fn_extra = BlessTupleDesc(tupdesc);
		MemoryContextSwitchTo(caller);
	}

	values[0] = TimestampTzGetDatum(layout_tick_start(&layout, fields.tick));
	values[1] = Int32GetDatum((int32) fields.datacenter_id);
	values[2] = Int32GetDatum((int32) fields.worker_id);
	values[3] = Int32GetDatum((int32) fields.sequence);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(function->fn_extra,
													  values, nulls)));
}

/*
 * snowflake_timestamp(id bigint [, epoch timestamptz, layout text])
 *		-> timestamptz
 *		The beginning of the id's tick.
 */
Datum
snowflake_timestamp(PG_FUNCTION_ARGS)
{
	SnowflakeLayout layout = sql_layout_of_call(fcinfo);
	IdFields	fields = sql_split_id(&layout, PG_GETARG_INT64(0));

	PG_RETURN_TIMESTAMPTZ(layout_tick_start(&layout, fields.tick));
}

/*
 * snowflake_datacenter_id(id bigint), snowflake_worker_id(id bigint),
 * snowflake_sequence(id bigint) -> integer
 */
Datum
snowflake_datacenter_id(PG_FUNCTION_ARGS)
{
	IdFields	fields = sql_split_id(mark_layout(), PG_GETARG_INT64(0));

	PG_RETURN_INT32((int32) fields.datacenter_id);
}

Datum
snowflake_worker_id(PG_FUNCTION_ARGS)
{
	IdFields	fields = sql_split_id(mark_layout(), PG_GETARG_INT64(0));

	PG_RETURN_INT32((int32) fields.worker_id);
}

Datum
snowflake_sequence(PG_FUNCTION_ARGS)
{
	IdFields	fields = sql_split_id(mark_layout(), PG_GETARG_INT64(0));

	PG_RETURN_INT32((int32) fields.sequence);
}

/*
 * snowflake_encode(issued_at timestamptz, datacenter_id integer,
 *					worker_id integer, sequence integer) -> bigint
 */
Datum
snowflake_encode(PG_FUNCTION_ARGS)
{
	const SnowflakeLayout *layout = mark_layout();
	TimestampTz instant = PG_GETARG_TIMESTAMPTZ(0);
	IdFields	fields;

	if (layout_locate(layout, instant, &fields.tick) != SPAN_WITHIN)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("issued_at %s is out of range", clock_text(instant)),
				 errhint("The ticks of layout \"%s\" begin at %s .. %s.",
						 layout_to_text(layout), clock_text(layout->epoch),
						 clock_text(layout_tick_start(layout,
													  layout_max_tick(layout))))));
	fields.datacenter_id = sql_field_argument(PG_GETARG_INT32(1),
											  "datacenter_id",
											  layout->datacenter_bits);
	fields.worker_id = sql_field_argument(PG_GETARG_INT32(2), "worker_id",
										  layout->worker_bits);
	fields.sequence = sql_field_argument(PG_GETARG_INT32(3), "sequence",
										 layout->sequence_bits);
	PG_RETURN_INT64(layout_compose(layout, &fields));
}

/*
 * snowflake_min_id(instant timestamptz [, epoch timestamptz, layout text]),
 * snowflake_max_id(the same) -> bigint
 *		The smallest and the largest id of the instant's tick.  Instants
 *		outside the layout's span, infinite ones too, count as its nearer end.
 */
Datum
snowflake_min_id(PG_FUNCTION_ARGS)
{
	SnowflakeLayout layout = sql_layout_of_call(fcinfo);
	IdFields	fields = {0};

	(void) layout_locate(&layout, PG_GETARG_TIMESTAMPTZ(0), &fields.tick);
	PG_RETURN_INT64(layout_compose(&layout, &fields));
}

Datum
snowflake_max_id(PG_FUNCTION_ARGS)
{
	SnowflakeLayout layout = sql_layout_of_call(fcinfo);
	IdFields	fields = {
		.datacenter_id = layout_field_max(layout.datacenter_bits),
		.worker_id = layout_field_max(layout.worker_bits),
		.sequence = layout_field_max(layout.sequence_bits)
	};

	(void) layout_locate(&layout, PG_GETARG_TIMESTAMPTZ(0), &fields.tick);
	PG_RETURN_INT64(layout_compose(&layout, &fields));
}

/*
 * snowflake_first_id_since(instant timestamptz),
 * snowflake_last_id_before(instant timestamptz) -> bigint
 *		The smallest id whose time is an instant or later, and the largest id
 *		whose time is before the instant.  The instant may be infinite.
 *		Without such an id the first function returns the layout's largest id
 *		plus 1, and the second function -1.  In a layout of 63 bits no bigint
 *		is larger than the largest id; there the first function returns the
 *		largest id itself.
 */
Datum
snowflake_first_id_since(PG_FUNCTION_ARGS)
{
	int64		last_id = layout_last_id_before(mark_layout(),
												PG_GETARG_TIMESTAMPTZ(0));

	PG_RETURN_INT64(last_id == PG_INT64_MAX ? last_id : last_id + 1);
}

Datum
snowflake_last_id_before(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(layout_last_id_before(mark_layout(),
										  PG_GETARG_TIMESTAMPTZ(0)));
}

/*
 * snowflake_format(id bigint) -> text
 *		"2017-09-15 17:35:04.848, #0, @(2,5)": the time in the session's time
 *		zone, the sequence, the node.
 */
Datum
snowflake_format(PG_FUNCTION_ARGS)
{
	const SnowflakeLayout *layout = mark_layout();
	IdFields	fields = sql_split_id(layout, PG_GETARG_INT64(0));
	TimestampTz instant = layout_tick_start(layout, fields.tick);
	struct pg_tm tm;
	fsec_t		fsec;
	int			tz;
	bool		whole_ms;
	char	   *formatted;

	if (timestamp2tm(instant, &tz, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));

	/* Show microseconds only if ticks do not begin at whole milliseconds. */
	whole_ms = layout->tick_us % 1000 == 0 && layout->epoch % 1000 == 0;
	formatted = psprintf("%04d-%02d-%02d %02d:%02d:%02d.%0*d%s, #%d, @(%d,%d)",
						 tm.tm_year > 0 ? tm.tm_year : 1 - tm.tm_year,
						 tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min,
						 tm.tm_sec,
						 whole_ms ? 3 : 6, whole_ms ? fsec / 1000 : fsec,
						 tm.tm_year > 0 ? "" : " BC",
						 (int) fields.sequence,
						 (int) fields.datacenter_id, (int) fields.worker_id);
	PG_RETURN_TEXT_P(cstring_to_text(formatted));
}

/*
 * snowflake_change_layout() -> void
 *		Makes the configured layout and epoch the data's.  Errors as
 *		mark_layout_change().
 */
Datum
snowflake_change_layout(PG_FUNCTION_ARGS)
{
	node_require_preload();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to change the layout of snowflake ids")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("the layout of snowflake ids cannot be changed during recovery"),
				 errhint("Connect to the primary server.")));
	mark_layout_change();
	PG_RETURN_VOID();
}

/*
 * Returns the layout of the arguments (id or instant, epoch timestamptz,
 * layout text) or, without them, the data's.
 */
static SnowflakeLayout
sql_layout_of_call(FunctionCallInfo fcinfo)
{
	SnowflakeLayout layout;
	TimestampTz epoch;
	char	   *layout_text;
	const char *detail;

	if (PG_NARGS() == 1)
		return *mark_layout();

	epoch = PG_GETARG_TIMESTAMPTZ(1);
	layout_text = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (!layout_parse(layout_text, &layout, &detail))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid snowflake layout: \"%s\"", layout_text),
				 errdetail("%s", detail)));
	if (!layout_set_epoch(&layout, epoch, &detail))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid snowflake epoch: \"%s\"",
						timestamptz_to_str(epoch)),
				 errdetail("%s", detail)));
	return layout;
}

/* Takes an id apart.  ERROR 22003 for a number outside the layout's range. */
static inline IdFields
sql_split_id(const SnowflakeLayout *layout, int64 id)
{
	if (unlikely(id < 0 || id > layout_max_id(layout)))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg(INT64_FORMAT " is not a snowflake id", id),
				 errdetail("Ids of layout \"%s\" are in the range 0 .. " INT64_FORMAT ".",
						   layout_to_text(layout), layout_max_id(layout)),
				 errhint("Check that the column holds ids of this layout.")));
	return layout_split(layout, id);
}

/* Returns an argument.  ERROR 22003 if the value does not fit the field. */
static int64
sql_field_argument(int32 value, const char *name, int bits)
{
	if (value < 0 || value > layout_field_max(bits))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("%s %d is out of range", name, value),
				 errhint("Layout \"%s\" has %d bits for this field: 0 .. " INT64_FORMAT ".",
						 layout_to_text(mark_layout()), bits,
						 layout_field_max(bits))));
	return value;
}
