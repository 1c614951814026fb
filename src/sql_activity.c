/*
 * sql_activity.c
 *	  snowflake_activity(): insert activity over time, from a table's ids.
 *
 * The function runs one query on the table, as the caller, so that privileges
 * and row security apply.  It is in C because a column of its result has the
 * name of an argument, which PL/pgSQL does not allow.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "calendar.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_activity);

/* The origin of buckets: a Monday, in the session's time zone. */
#define ORIGIN "2001-01-01"

/* The arguments.  The last three are also the query's $1 to $3. */
enum
{
	ARG_REL,
	ARG_COL,
	ARG_BUCKET,
	ARG_SINCE,
	ARG_UNTIL
};

/* The columns of the query and of the result. */
enum
{
	COLUMN_BUCKET,
	COLUMN_DATACENTER_ID,
	COLUMN_WORKER_ID,
	COLUMN_IDS,
	COLUMN_COUNT
};

static void refuse_null(FunctionCallInfo fcinfo, int argument,
						const char *name);
static char *build_query(FunctionCallInfo fcinfo);
static const char *relation_name(Oid relation);
static const char *column_name(Oid relation, const char *name);
static char *bucket_expression(const Interval *bucket);
static Datum bucket_start(const Interval *bucket, Datum beginning);
static bool is_of_calendar(const Interval *bucket);

/*
 * snowflake_activity(rel regclass, col name, bucket interval,
 *					  since timestamptz, until timestamptz)
 *		-> setof (bucket timestamptz, datacenter_id integer,
 *				  worker_id integer, ids bigint)
 *		A NULL for since or until leaves that end of the range open.  ERROR
 *		22004 for another NULL, 22023 for a bad bucket, 42703 and 42804 for a
 *		column without ids, 22003 for a number that is not an id.
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
		Datum		columns[COLUMN_COUNT];
		bool		column_nulls[COLUMN_COUNT];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
						  columns, column_nulls);
		if (!column_nulls[COLUMN_BUCKET])
			columns[COLUMN_BUCKET] =
				bucket_start(PG_GETARG_INTERVAL_P(ARG_BUCKET),
							 columns[COLUMN_BUCKET]);
		tuplestore_putvalues(result->setResult, result->setDesc, columns,
							 column_nulls);
	}
	SPI_finish();
	return (Datum) 0;
}

static void
refuse_null(FunctionCallInfo fcinfo, int argument, const char *name)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" of snowflake_activity() must not be null",
						name)));
}

/*
 * Builds the query.  The extension's functions are qualified by their schema;
 * all other names are pg_catalog's, which is the function's search_path.  The
 * ids are cast to bigint, so that no overload of a function matches better.
 * The column in WHERE is not cast, so that its index can be used.
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

/* Returns a relation's quoted name; ERROR 42P01 if there is no relation. */
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
 * Returns a column's quoted name.  ERROR 42703 if there is no such column,
 * 42804 if its type is not an integer type.
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
 * Returns an SQL expression for the bucket that issued_at falls into.  For
 * buckets of hours or less the expression is the instant at which the bucket
 * begins.  For buckets of calendar days or months, whose lengths differ, the
 * expression is the bucket's first local day, and bucket_start() finds the
 * instant.
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

/* Returns the beginning of a bucket, from the value of its expression. */
static Datum
bucket_start(const Interval *bucket, Datum beginning)
{
	return is_of_calendar(bucket) ?
		TimestampTzGetDatum(calendar_day_start(DatumGetTimestamp(beginning))) :
		beginning;
}

/* Is a bucket's length in days or months of the calendar? */
static bool
is_of_calendar(const Interval *bucket)
{
	return bucket->time == 0;
}
