/*
 * activity.c
 *	  The busy curve of a table, read off its ids.
 *
 * One query, put together from the names of a table and a column and run as
 * the caller, so that privileges and row security hold.  In C because its
 * result has a column of the name of an argument, which PL/pgSQL refuses.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "calendar.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_activity);

/* What buckets count from: a Monday, in the session's time zone. */
#define ORIGIN "2001-01-01"

/* The arguments, of which the last three are the query's $1 to $3. */
enum
{
	ARG_REL,
	ARG_COL,
	ARG_BUCKET,
	ARG_SINCE,
	ARG_UNTIL
};

static void
refuse_null(FunctionCallInfo fcinfo, int argument, const char *name)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" of snowflake_activity() must not be null",
						name)));
}

/* Is a bucket one of the calendar's days or months? */
static bool
is_of_calendar(const Interval *bucket)
{
	return bucket->time == 0;
}

/*
 * An expression for the beginning of the bucket that issued_at falls into.
 * Buckets of hours and less all have one length, and begin at an instant.
 * Those of days and of months are the calendar's, in the session's time zone:
 * for these it is the local day, and bucket_start() finds the instant.
 */
static char *
bucket_expression(const Interval *bucket)
{
	if (bucket->month > 0 && bucket->day == 0 && bucket->time == 0)
		return psprintf("date_trunc('month', issued_at::timestamp) - make_interval(months =>"
						" (extract(year FROM issued_at) * 12 + extract(month FROM issued_at) - 1)::integer %% %d)",
						bucket->month);
	if (bucket->month == 0 && bucket->day > 0 && bucket->time == 0)
		return "date_bin($1, issued_at::timestamp, '" ORIGIN "')";
	if (bucket->month == 0 && bucket->day == 0 && bucket->time > 0)
		return "date_bin($1, issued_at, '" ORIGIN "')";

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid bucket of snowflake_activity(): \"%s\"",
					DatumGetCString(DirectFunctionCall1(interval_out,
														IntervalPGetDatum(bucket)))),
			 errhint("Give a positive length in months, in days, or in hours and less, not mixed.")));
	return NULL;				/* keep compilers quiet */
}

/* The instant that a bucket begins at, from what the expression gives. */
static Datum
bucket_start(const Interval *bucket, Datum beginning)
{
	return is_of_calendar(bucket) ?
		TimestampTzGetDatum(calendar_day_start(DatumGetTimestamp(beginning))) :
		beginning;
}

/* A relation's name as a query may have it; ERROR 42P01 if there is none. */
static const char *
relation_name(Oid relation)
{
	char	   *name = get_rel_name(relation);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
									  name);
}

/*
 * The column's name as a query may have it; ERROR 42703 if there is none,
 * 42804 if it holds no ids.
 */
static const char *
column_name(Oid relation, const char *name)
{
	AttrNumber	number = get_attnum(relation, name);
	Oid			type;

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist",
						name, get_rel_name(relation))));
	type = getBaseType(get_atttype(relation, number));
	if (type != INT8OID && type != INT4OID && type != INT2OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of relation \"%s\" has type %s",
						name, get_rel_name(relation), format_type_be(type)),
				 errhint("Give a column that holds ids: its type is bigint.")));
	return quote_identifier(name);
}

/*
 * The query.  Our own functions are in the schema that this one is in, and
 * everything else in pg_catalog: the function's search_path is that.  The ids
 * are cast, for our functions to match exactly whatever overloads there are;
 * the column is compared as it is, for its index.
 */
static char *
build_query(FunctionCallInfo fcinfo)
{
	const char *schema = quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));
	const char *table = relation_name(PG_GETARG_OID(ARG_REL));
	const char *column = column_name(PG_GETARG_OID(ARG_REL),
									 NameStr(*PG_GETARG_NAME(ARG_COL)));
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfo(&query,
					 "SELECT %s, datacenter_id, worker_id, count(*)"
					 " FROM (SELECT %s.snowflake_timestamp(id) AS issued_at,"
					 " %s.snowflake_datacenter_id(id) AS datacenter_id,"
					 " %s.snowflake_worker_id(id) AS worker_id"
					 " FROM (SELECT r.%s::pg_catalog.int8 AS id FROM %s AS r"
					 " WHERE r.%s IS NOT NULL",
					 bucket_expression(PG_GETARG_INTERVAL_P(ARG_BUCKET)),
					 schema, schema, schema, column,
					 table, column);
	if (!PG_ARGISNULL(ARG_SINCE))
		appendStringInfo(&query, " AND r.%s >= %s.snowflake_min_id($2)",
						 column, schema);
	if (!PG_ARGISNULL(ARG_UNTIL))
		appendStringInfo(&query, " AND r.%s < %s.snowflake_min_id($3)",
						 column, schema);
	appendStringInfoString(&query,
						   ") AS ids) AS fields GROUP BY 1, 2, 3 ORDER BY 1, 2, 3");
	return query.data;
}

/*
 * snowflake_activity(rel regclass, col name, bucket interval,
 *					  since timestamptz, until timestamptz)
 *		-> setof (bucket timestamptz, datacenter_id integer,
 *				  worker_id integer, ids bigint)
 *		since and until may be null: open.  ERROR 22004 for another null,
 *		22023 for a bad bucket, 42703 and 42804 for a column without ids, 22003
 *		for what is no id.
 */
Datum
snowflake_activity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			types[] = {INTERVALOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[lengthof(types)];
	char		nulls[lengthof(types)];
	char	   *query;

	refuse_null(fcinfo, ARG_REL, "rel");
	refuse_null(fcinfo, ARG_COL, "col");
	refuse_null(fcinfo, ARG_BUCKET, "bucket");
	InitMaterializedSRF(fcinfo, 0);

	for (int i = 0; i < lengthof(types); i++)
	{
		values[i] = PG_GETARG_DATUM(ARG_BUCKET + i);
		nulls[i] = PG_ARGISNULL(ARG_BUCKET + i) ? 'n' : ' ';
	}

	SPI_connect();
	query = build_query(fcinfo);
	if (SPI_execute_with_args(query, lengthof(types), types, values, nulls,
							  true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute: %s", query);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Datum		columns[4];
		bool		column_nulls[4];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
						  columns, column_nulls);
		if (!column_nulls[0])
			columns[0] = bucket_start(PG_GETARG_INTERVAL_P(ARG_BUCKET),
									  columns[0]);
		tuplestore_putvalues(result->setResult, result->setDesc, columns,
							 column_nulls);
	}
	SPI_finish();
	return (Datum) 0;
}
