/*
 * partitions.c
 *	  Range partitions of a table, by the time of its ids.
 *
 * Everything is looked at before anything is made: what there is, under a
 * lock that keeps others from making partitions meanwhile, is compared with
 * what is wanted.  The partitions are then made by CREATE TABLE, which sees
 * to privileges, locks and everything else.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "node.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "pgtime.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_create_partitions);

/* more at once is a mistake in the step */
#define PARTITIONS_MAX 10000

/* room for "_2026_01_31_13b" and for years of six digits */
#define SUFFIX_SIZE 32

/* What a step is made of, and so what a partition is named after. */
typedef enum StepUnit
{
	STEP_YEARS,
	STEP_MONTHS,
	STEP_DAYS,
	STEP_HOURS
} StepUnit;

/* the same for date_trunc() and for messages */
static const char *const unit_names[] = {"year", "month", "day", "hour"};
static const char *const units_in_words[] =
{"a year", "a month", "a day", "an hour"};

/* A range of ids, from the first on and up to but not including the last. */
typedef struct IdRange
{
	int64		from;			/* PG_INT64_MIN: MINVALUE */
	int64		to;				/* PG_INT64_MAX: MAXVALUE */
} IdRange;

/* A partition that is wanted. */
typedef struct WantedPartition
{
	IdRange		range;
	bool		exists;			/* there is one of these bounds */
	char		suffix[SUFFIX_SIZE];
} WantedPartition;

/* The table to be partitioned, as it was found. */
typedef struct Parent
{
	Oid			relid;
	char	   *name;
	char	   *schema;
	List	   *ranges;			/* of IdRange: the partitions that it has */
} Parent;

static char *
instant_text(TimestampTz instant)
{
	return pstrdup(timestamptz_to_str(instant));
}

/* A bound as the DBA thinks of it: when its tick begins. */
static char *
bound_text(int64 bound)
{
	const Layout *layout = node_layout();
	IdFields	fields;

	if (bound == PG_INT64_MIN)
		return "MINVALUE";
	if (bound == PG_INT64_MAX)
		return "MAXVALUE";
	if (bound < 0 || bound > layout_max_id(layout))
		return psprintf(INT64_FORMAT, bound);
	layout_split(layout, bound, &fields);
	return instant_text(layout_tick_start(layout, fields.tick));
}

/* Refuses a table that is not partitioned by the range of a bigint column. */
static void
check_parent(Relation relation)
{
	PartitionKey key = relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
		RelationGetPartitionKey(relation) : NULL;

	if (key != NULL &&
		get_partition_strategy(key) == PARTITION_STRATEGY_RANGE &&
		get_partition_natts(key) == 1 &&
		get_partition_col_attnum(key, 0) != 0 &&
		get_partition_col_typid(key, 0) == INT8OID)
		return;

	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("table \"%s\" is not partitioned by the range of a bigint column",
					RelationGetRelationName(relation)),
			 errhint("Create it with PARTITION BY RANGE and its id as the only column of the key.")));
}

/* A bound of the partitions there are, with infinities as integers' ends. */
static int64
bound_at(PartitionBoundInfo bounds, int i)
{
	switch (bounds->kind[i][0])
	{
		case PARTITION_RANGE_DATUM_MINVALUE:
			return PG_INT64_MIN;
		case PARTITION_RANGE_DATUM_MAXVALUE:
			return PG_INT64_MAX;
		case PARTITION_RANGE_DATUM_VALUE:
			break;
	}
	return DatumGetInt64(bounds->datums[i][0]);
}

/* The ranges of the partitions there are; the default one has none. */
static List *
existing_ranges(Relation relation)
{
	PartitionDesc partitions = RelationGetPartitionDesc(relation, false);
	PartitionBoundInfo bounds = partitions->boundinfo;
	List	   *ranges = NIL;

	if (partitions->nparts == 0)
		return NIL;

	/* what lies between two bounds is a partition's, or nobody's */
	for (int i = 1; i < bounds->ndatums; i++)
	{
		IdRange    *range;

		if (bounds->indexes[i] < 0)
			continue;
		range = palloc(sizeof(IdRange));
		range->from = bound_at(bounds, i - 1);
		range->to = bound_at(bounds, i);
		ranges = lappend(ranges, range);
	}
	return ranges;
}

/*
 * Looks at the table, and keeps others from adding partitions to it until
 * the end of the transaction.  Only its owner may hold that lock.
 */
static void
read_parent(Oid relid, Parent *parent)
{
	Relation	relation;
	char		relkind = get_rel_relkind(relid);

	if (relkind != '\0' &&
		!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(relkind),
					   get_rel_name(relid));

	relation = table_open(relid, ShareUpdateExclusiveLock);
	check_parent(relation);
	parent->relid = relid;
	parent->name = pstrdup(RelationGetRelationName(relation));
	parent->schema = get_namespace_name(RelationGetNamespace(relation));
	parent->ranges = existing_ranges(relation);

	/* CREATE TABLE refuses a table that is in use, by us too */
	table_close(relation, NoLock);
}

/* Tells what a step is made of; ERROR 22023 for a mixture. */
static StepUnit
unit_of_step(const Interval *step)
{
	if (step->month > 0 && step->day == 0 && step->time == 0)
		return step->month % MONTHS_PER_YEAR == 0 ? STEP_YEARS : STEP_MONTHS;
	if (step->month == 0 && step->day > 0 && step->time == 0)
		return STEP_DAYS;
	if (step->month == 0 && step->day == 0 && step->time > 0 &&
		step->time % USECS_PER_HOUR == 0)
		return STEP_HOURS;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid step of partitions: \"%s\"",
					DatumGetCString(DirectFunctionCall1(interval_out,
														IntervalPGetDatum(step)))),
			 errhint("Give one hour or more in whole years, months, days or hours, not mixed.")));
	return STEP_HOURS;			/* keep compilers quiet */
}

/* The instant so many steps after another, in the session's time zone. */
static TimestampTz
step_forward(TimestampTz since, const Interval *step, int count)
{
	Interval   *distance =
		DatumGetIntervalP(DirectFunctionCall2(interval_mul,
											  IntervalPGetDatum(step),
											  Float8GetDatum(count)));

	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												   TimestampTzGetDatum(since),
												   IntervalPGetDatum(distance)));
}

/* Refuses instants that no partitions can be made between. */
static void
check_instants(TimestampTz since, TimestampTz until, StepUnit unit)
{
	text	   *unit_name = cstring_to_text(unit_names[unit]);
	TimestampTz beginning;

	if (TIMESTAMP_NOT_FINITE(since) || TIMESTAMP_NOT_FINITE(until) ||
		since >= until)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot create partitions since %s until %s",
						instant_text(since), instant_text(until)),
				 errhint("Give two finite instants, the earlier first.")));

	/* else a partition's name would not tell when it begins */
	beginning =
		DatumGetTimestampTz(DirectFunctionCall2(timestamptz_trunc,
												PointerGetDatum(unit_name),
												TimestampTzGetDatum(since)));
	if (since != beginning)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is not the beginning of %s in time zone \"%s\"",
						instant_text(since), units_in_words[unit],
						pg_get_timezone_name(session_timezone)),
				 errhint("Begin at %s, or use date_trunc().",
						 instant_text(beginning))));
}

/* The ids from one instant until another; ERROR 22003 out of the span. */
static IdRange
id_range(TimestampTz from, TimestampTz to)
{
	const Layout *layout = node_layout();
	IdFields	first = {0};
	IdFields	last = {0};
	IdRange		range;

	(void) layout_locate(layout, from, &first.tick);
	if (layout_locate(layout, to, &last.tick) != SPAN_WITHIN ||
		first.tick >= last.tick)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("no partition of ids can be made from %s to %s",
						instant_text(from), instant_text(to)),
				 errdetail("Ids of this server are of the time from %s to %s.",
						   instant_text(layout->epoch),
						   instant_text(layout_tick_start(layout, layout_max_tick(layout)))),
				 errhint("Give instants within that, and a step longer than a tick.")));

	range.from = layout_compose(layout, &first);
	range.to = layout_compose(layout, &last);
	return range;
}

static void
read_local_time(TimestampTz instant, struct pg_tm *tm)
{
	fsec_t		fsec;
	int			tz;

	if (timestamp2tm(instant, &tz, tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
}

/* The end of a partition's name: when it begins, in the session's zone. */
static void
make_suffix(TimestampTz instant, StepUnit unit, char *suffix)
{
	struct pg_tm tm;
	struct pg_tm hour_before;
	int			length;

	read_local_time(instant, &tm);
	length = snprintf(suffix, SUFFIX_SIZE, "_%04d", tm.tm_year);
	if (unit >= STEP_MONTHS)
		length += snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d",
						   tm.tm_mon);
	if (unit >= STEP_DAYS)
		length += snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d",
						   tm.tm_mday);
	if (unit < STEP_HOURS)
		return;

	/* the hour that comes twice when summer time ends */
	read_local_time(instant - USECS_PER_HOUR, &hour_before);
	snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d%s", tm.tm_hour,
			 hour_before.tm_hour == tm.tm_hour ? "b" : "");
}

/* All partitions from one instant on until another is within the last. */
static List *
wanted_partitions(TimestampTz since, TimestampTz until, const Interval *step)
{
	StepUnit	unit = unit_of_step(step);
	List	   *partitions = NIL;
	TimestampTz from = since;

	check_instants(since, until, unit);
	for (int i = 1; from < until; i++)
	{
		/* each from the first, so that no short month shortens the rest */
		TimestampTz to = step_forward(since, step, i);
		WantedPartition *partition = palloc0(sizeof(WantedPartition));

		CHECK_FOR_INTERRUPTS();
		if (i > PARTITIONS_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("cannot create more than %d partitions at once",
							PARTITIONS_MAX),
					 errhint("Give a longer step or a shorter time.")));
		partition->range = id_range(from, to);
		make_suffix(from, unit, partition->suffix);
		partitions = lappend(partitions, partition);
		from = to;
	}
	return partitions;
}

/* The parent's name, cut down until the suffix fits, and the suffix. */
static char *
partition_name(const Parent *parent, const char *suffix)
{
	int			room = NAMEDATALEN - 1 - (int) strlen(suffix);
	int			length = pg_mbcliplen(parent->name,
									  (int) strlen(parent->name), room);

	return psprintf("%.*s%s", length, parent->name, suffix);
}

/* Compares one that is wanted with those there are; refuses an overlap. */
static void
check_overlap(const Parent *parent, WantedPartition *wanted)
{
	for (int i = 0; i < list_length(parent->ranges); i++)
	{
		const IdRange *range = (const IdRange *) list_nth(parent->ranges, i);

		if (range->from == wanted->range.from &&
			range->to == wanted->range.to)
			wanted->exists = true;
		else if (range->from < wanted->range.to &&
				 wanted->range.from < range->to)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("partition \"%s\" of \"%s\" would overlap one that exists",
							partition_name(parent, wanted->suffix), parent->name),
					 errdetail("It would be from %s to %s, and there is one from %s to %s.",
							   bound_text(wanted->range.from),
							   bound_text(wanted->range.to),
							   bound_text(range->from),
							   bound_text(range->to)),
					 errhint("Take the step and the time zone that the others were made with.")));
	}
}

/* Refuses to leave ids between the wanted and the nearest there are. */
static void
check_gaps(const Parent *parent, const IdRange *wanted)
{
	const IdRange *below = NULL;
	const IdRange *above = NULL;

	for (int i = 0; i < list_length(parent->ranges); i++)
	{
		const IdRange *range = (const IdRange *) list_nth(parent->ranges, i);

		if (range->to <= wanted->from)
			below = range;		/* they are in order: the last such one */
		if (range->from >= wanted->to && above == NULL)
			above = range;
	}

	if ((below != NULL && below->to < wanted->from) ||
		(above != NULL && above->from > wanted->to))
	{
		IdRange		gap;

		gap.from = below != NULL && below->to < wanted->from ?
			below->to : wanted->to;
		gap.to = gap.from == wanted->to ? above->from : wanted->from;
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("there would be a gap between partitions of \"%s\"",
						parent->name),
				 errdetail("No partition would hold ids from %s to %s.",
						   bound_text(gap.from), bound_text(gap.to)),
				 errhint("Begin where the last partition ends, and end where the next one begins.")));
	}
}

/* Makes one by CREATE TABLE; returns it. */
static Oid
create_partition(const Parent *parent, const WantedPartition *wanted)
{
	char	   *name = partition_name(parent, wanted->suffix);
	char	   *statement;

	/* in the schema of a temporary one, it is temporary, too */
	statement = psprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (" INT64_FORMAT ") TO (" INT64_FORMAT ")",
						 quote_qualified_identifier(parent->schema, name),
						 quote_qualified_identifier(parent->schema,
													parent->name),
						 wanted->range.from, wanted->range.to);
	if (SPI_execute(statement, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute: %s", statement);

	return get_relname_relid(name, get_namespace_oid(parent->schema, false));
}

/*
 * snowflake_create_partitions(parent regclass, since timestamptz,
 *							   until timestamptz, step interval)
 *		-> setof regclass: the partitions that were made.
 *		ERROR 42809 for a table that is not partitioned by the range of a
 *		bigint, 42501 for somebody else's, 42P17 for an overlap or a gap,
 *		22003 outside the layout's span, 22023 for the other arguments.
 */
Datum
snowflake_create_partitions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Parent		parent;
	List	   *partitions;
	IdRange		all;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	PreventCommandIfReadOnly("snowflake_create_partitions()");

	read_parent(PG_GETARG_OID(0), &parent);
	partitions = wanted_partitions(PG_GETARG_TIMESTAMPTZ(1),
								   PG_GETARG_TIMESTAMPTZ(2),
								   PG_GETARG_INTERVAL_P(3));
	for (int i = 0; i < list_length(partitions); i++)
		check_overlap(&parent, (WantedPartition *) list_nth(partitions, i));
	all.from = ((WantedPartition *) linitial(partitions))->range.from;
	all.to = ((WantedPartition *) llast(partitions))->range.to;
	check_gaps(&parent, &all);

	SPI_connect();
	for (int i = 0; i < list_length(partitions); i++)
	{
		const WantedPartition *wanted =
			(const WantedPartition *) list_nth(partitions, i);
		Datum		values[1];
		bool		nulls[1] = {false};

		if (wanted->exists)
			continue;
		values[0] = ObjectIdGetDatum(create_partition(&parent, wanted));
		tuplestore_putvalues(result->setResult, result->setDesc,
							 values, nulls);
	}
	SPI_finish();
	return (Datum) 0;
}
