/*
 * partitions.c
 *	  Range partitions of a table, by the time of its ids.
 *
 * Everything is looked at before anything is done: what there is, under a
 * lock that keeps others from making partitions meanwhile, is compared with
 * what is wanted.  The partitions are then made and dropped by statements,
 * which see to privileges, locks and everything else.
 *
 * Whoever calls, the table's owner acts: partitions that a superuser's
 * scheduler makes belong to the owner, and what the owner has planted in the
 * table's expressions gains no more rights than the owner has.  So PostgreSQL
 * does it for VACUUM, REINDEX and the like.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "calendar.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "node.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "pgtime.h"
#include "port/pg_crc32c.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_create_partitions);
PG_FUNCTION_INFO_V1(snowflake_drop_partitions);

/* more at once is a mistake in the step */
#define PARTITIONS_MAX 10000

/* room for "_2026_01_31_13b" and for years of six digits */
#define SUFFIX_SIZE 32

/* room for "_1a2b3c4d" */
#define HASH_SIZE 10

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

/* A partition that there is. */
typedef struct PresentPartition
{
	IdRange		range;
	Oid			relid;
} PresentPartition;

/* The table to be partitioned, as it was found. */
typedef struct Parent
{
	Oid			relid;
	char	   *name;
	char	   *schema;
	List	   *partitions;		/* of PresentPartition, without the default */
} Parent;

/* Who the session was before the table's owner acted in its place. */
typedef struct Caller
{
	Oid			user_id;
	int			security_context;
	int			guc_nest_level;
} Caller;

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

/* The partitions there are, in order; the default one has no range. */
static List *
present_partitions(Relation relation)
{
	PartitionDesc desc = RelationGetPartitionDesc(relation, false);
	PartitionBoundInfo bounds = desc->boundinfo;
	List	   *partitions = NIL;

	if (desc->nparts == 0)
		return NIL;

	/* what lies between two bounds is a partition's, or nobody's */
	for (int i = 1; i < bounds->ndatums; i++)
	{
		PresentPartition *partition;

		if (bounds->indexes[i] < 0)
			continue;
		partition = palloc(sizeof(PresentPartition));
		partition->range.from = bound_at(bounds, i - 1);
		partition->range.to = bound_at(bounds, i);
		partition->relid = desc->oids[bounds->indexes[i]];
		partitions = lappend(partitions, partition);
	}
	return partitions;
}

/* ERROR 42501 unless a user has the rights of the table's owner. */
static void
check_owned(Oid relid, Oid user_id)
{
	char		relkind = get_rel_relkind(relid);

	if (relkind != '\0' &&
		!object_ownercheck(RelationRelationId, relid, user_id))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(relkind),
					   get_rel_name(relid));
}

/*
 * Lets a table's owner act, until act_as_caller() or the end of the
 * transaction.  Nothing of the session's can be changed meanwhile; a session
 * may only make partitions of its own temporary tables.
 */
static void
act_as_owner(Oid owner, bool is_own_temp, Caller *caller)
{
	GetUserIdAndSecContext(&caller->user_id, &caller->security_context);
	SetUserIdAndSecContext(owner,
						   caller->security_context |
						   (is_own_temp ? SECURITY_LOCAL_USERID_CHANGE :
							SECURITY_RESTRICTED_OPERATION));
	caller->guc_nest_level = NewGUCNestLevel();
	RestrictSearchPath();
}

static void
act_as_caller(const Caller *caller)
{
	AtEOXact_GUC(false, caller->guc_nest_level);
	SetUserIdAndSecContext(caller->user_id, caller->security_context);
}

/*
 * Looks at the table and lets its owner act.  The lock is held until the end
 * of the transaction; ShareUpdateExclusiveLock keeps others from making and
 * dropping partitions.  Only who has the owner's rights may hold that.
 */
static void
open_parent(Oid relid, LOCKMODE lock, Parent *parent, Caller *caller)
{
	Relation	relation;
	Oid			owner;

	check_owned(relid, GetUserId());
	relation = table_open(relid, lock);

	/* The owner cannot change any more, but may have changed meanwhile. */
	check_owned(relid, GetUserId());
	owner = relation->rd_rel->relowner;
	act_as_owner(owner, owner == GetUserId() && relation->rd_islocaltemp,
				 caller);

	check_parent(relation);
	parent->relid = relid;
	parent->name = pstrdup(RelationGetRelationName(relation));
	parent->schema = get_namespace_name(RelationGetNamespace(relation));
	parent->partitions = present_partitions(relation);

	/* CREATE TABLE refuses a table that is in use, by us too */
	table_close(relation, NoLock);
}

static void
execute(const char *statement)
{
	if (SPI_execute(statement, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute: %s", statement);
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

/*
 * The beginning of a partition so many steps after another's, in the
 * session's time zone.  Hours are counted by the clock; days, months and
 * years by the calendar, whatever the time that each day begins at.
 */
static TimestampTz
step_forward(TimestampTz since, StepUnit unit, const Interval *step, int count)
{
	Datum		distance = DirectFunctionCall2(interval_mul,
											   IntervalPGetDatum(step),
											   Float8GetDatum(count));
	Datum		day;

	if (unit == STEP_HOURS)
		return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													   TimestampTzGetDatum(since),
													   distance));
	day = DirectFunctionCall2(timestamp_pl_interval,
							  TimestampGetDatum(calendar_day(since)),
							  distance);
	return calendar_day_start(DatumGetTimestamp(day));
}

/* The beginning of the year, month, day or hour that an instant is in. */
static TimestampTz
beginning_of_unit(TimestampTz instant, StepUnit unit)
{
	Datum		unit_name = PointerGetDatum(cstring_to_text(unit_names[unit]));
	Datum		day;

	if (unit == STEP_HOURS)
		return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_trunc,
													   unit_name,
													   TimestampTzGetDatum(instant)));
	day = DirectFunctionCall2(timestamp_trunc, unit_name,
							  TimestampGetDatum(calendar_day(instant)));
	return calendar_day_start(DatumGetTimestamp(day));
}

static void
refuse_instants(TimestampTz since, TimestampTz until)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("cannot create partitions since %s until %s",
					instant_text(since), instant_text(until)),
			 errhint("Give two finite instants, the earlier first.")));
}

/*
 * Refuses instants that no partitions can be made between.  Where midnight
 * comes twice, '2026-11-01' and date_trunc() mean the second one, and the day
 * begins at the first: that is taken for it.
 */
static void
check_instants(TimestampTz *since, TimestampTz *until, StepUnit unit)
{
	TimestampTz beginning;

	if (TIMESTAMP_NOT_FINITE(*since) || TIMESTAMP_NOT_FINITE(*until))
		refuse_instants(*since, *until);
	if (unit != STEP_HOURS)
	{
		if (calendar_is_midnight(*since))
			*since = calendar_day_start(calendar_day(*since));
		if (calendar_is_midnight(*until))
			*until = calendar_day_start(calendar_day(*until));
	}
	if (*since >= *until)
		refuse_instants(*since, *until);

	/* else a partition's name would not tell when it begins */
	beginning = beginning_of_unit(*since, unit);
	if (*since != beginning)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is not the beginning of %s in time zone \"%s\"",
						instant_text(*since), units_in_words[unit],
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
	TimestampTz from;

	check_instants(&since, &until, unit);
	from = since;
	for (int i = 1; from < until; i++)
	{
		/* each from the first, so that no short month shortens the rest */
		TimestampTz to = step_forward(since, unit, step, i);
		WantedPartition *partition;

		CHECK_FOR_INTERRUPTS();
		if (i > PARTITIONS_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("cannot create more than %d partitions at once",
							PARTITIONS_MAX),
					 errhint("Give a longer step or a shorter time.")));

		/* a day that the time zone left out */
		if (to == from)
			continue;
		partition = palloc0(sizeof(WantedPartition));
		partition->range = id_range(from, to);
		make_suffix(from, unit, partition->suffix);
		partitions = lappend(partitions, partition);
		from = to;
	}
	return partitions;
}

/*
 * The parent's name and the suffix.  A name that is too long for that is cut
 * down, and a checksum of all of it keeps it apart from others that begin so.
 * The checksum does not depend on the processor's byte order, as PostgreSQL's
 * hash_bytes() does: all servers give a table's partitions the same names.
 */
static char *
partition_name(const Parent *parent, const char *suffix)
{
	int			length = (int) strlen(parent->name);
	int			room = NAMEDATALEN - 1 - (int) strlen(suffix);
	char		hash[HASH_SIZE] = "";

	if (length > room)
	{
		pg_crc32c	crc;

		INIT_CRC32C(crc);
		COMP_CRC32C(crc, parent->name, length);
		FIN_CRC32C(crc);
		snprintf(hash, sizeof(hash), "_%08x", crc);
		length = pg_mbcliplen(parent->name, length,
							  room - (int) strlen(hash));
	}
	return psprintf("%.*s%s%s", length, parent->name, hash, suffix);
}

/* The range of one of the partitions that there are. */
static const IdRange *
present_range(const Parent *parent, int i)
{
	return &((const PresentPartition *) list_nth(parent->partitions, i))->range;
}

/* Compares one that is wanted with those there are; refuses an overlap. */
static void
check_overlap(const Parent *parent, WantedPartition *wanted)
{
	for (int i = 0; i < list_length(parent->partitions); i++)
	{
		const IdRange *range = present_range(parent, i);

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

	for (int i = 0; i < list_length(parent->partitions); i++)
	{
		const IdRange *range = present_range(parent, i);

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

/*
 * ERROR 55000 unless a statement that named a table did what was meant: its
 * schema may have been renamed, and another one have got the name.
 */
static void
check_done(bool is_done, const char *statement)
{
	if (!is_done)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a schema was renamed while partitions were created or dropped"),
				 errdetail("The statement was: %s", statement),
				 errhint("Try again.")));
}

/* Makes one by CREATE TABLE; returns it. */
static Oid
create_partition(const Parent *parent, const WantedPartition *wanted)
{
	char	   *name = partition_name(parent, wanted->suffix);
	char	   *statement;
	Oid			relid;

	/* in the schema of a temporary one, it is temporary, too */
	statement = psprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (" INT64_FORMAT ") TO (" INT64_FORMAT ")",
						 quote_qualified_identifier(parent->schema, name),
						 quote_qualified_identifier(parent->schema,
													parent->name),
						 wanted->range.from, wanted->range.to);
	execute(statement);
	relid = get_relname_relid(name, get_namespace_oid(parent->schema, false));
	check_done(OidIsValid(relid) && get_rel_relispartition(relid) &&
			   get_partition_parent(relid, false) == parent->relid,
			   statement);
	return relid;
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
	Caller		caller;
	List	   *partitions;
	IdRange		all;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	PreventCommandIfReadOnly("snowflake_create_partitions()");

	open_parent(PG_GETARG_OID(0), ShareUpdateExclusiveLock, &parent, &caller);
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
	act_as_caller(&caller);
	return (Datum) 0;
}

/* A table's name as a statement has it. */
static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* The statement that makes a partition a table of its own. */
static char *
detach_statement(const Parent *parent, Oid partition)
{
	return psprintf("ALTER TABLE %s DETACH PARTITION %s%s;",
					quote_qualified_identifier(parent->schema, parent->name),
					qualified_name(partition),
					PartitionHasPendingDetach(partition) ? " FINALIZE" : "");
}

/* The statement that drops it then. */
static char *
drop_statement(Oid partition)
{
	return psprintf("DROP %s %s;",
					get_rel_relkind(partition) == RELKIND_FOREIGN_TABLE ?
					"FOREIGN TABLE" : "TABLE",
					qualified_name(partition));
}

static Oid
table_owner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Drops a partition.  The parent's owner detaches it.  Its own owner drops
 * it: one that a superuser has made by hand is the superuser's.
 */
static void
drop_partition(Oid partition, const char *detach, const char *drop)
{
	Caller		parent_owner;

	execute(detach);
	check_done(!get_rel_relispartition(partition), detach);
	GetUserIdAndSecContext(&parent_owner.user_id,
						   &parent_owner.security_context);
	SetUserIdAndSecContext(table_owner(partition),
						   parent_owner.security_context);
	execute(drop);
	SetUserIdAndSecContext(parent_owner.user_id,
						   parent_owner.security_context);
	check_done(!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(partition)),
			   drop);
}

/*
 * The partitions without an id of that instant or later, oldest first.  All
 * must be the user's to drop.
 */
static List *
partitions_before(const Parent *parent, TimestampTz instant, Oid user_id)
{
	int64		last_id = layout_last_id_before(node_layout(), instant);
	List	   *partitions = NIL;

	for (int i = 0; i < list_length(parent->partitions); i++)
	{
		const PresentPartition *partition =
			(const PresentPartition *) list_nth(parent->partitions, i);

		if (partition->range.to == PG_INT64_MAX ||
			partition->range.to - 1 > last_id)
			break;
		check_owned(partition->relid, user_id);
		partitions = lappend_oid(partitions, partition->relid);
	}
	return partitions;
}

/*
 * The locks that DETACH takes, in its order: the names of what is locked do
 * not change.
 */
static void
lock_partitions(const Parent *parent, List *partitions)
{
	LockRelationOid(parent->relid, AccessExclusiveLock);
	for (int i = 0; i < list_length(partitions); i++)
		LockRelationOid(list_nth_oid(partitions, i), AccessExclusiveLock);
}

/*
 * ERROR 42501 if DETACH would run code of somebody else's as the table's owner:
 * it looks for what references the partition, by a query on both.  Locks the
 * referencing tables, so that their owners make no index meanwhile.
 */
static void
check_references(Oid home, const Parent *parent, List *partitions)
{
	Oid			owner = table_owner(parent->relid);
	StringInfoData query;
	SPITupleTable *tables;
	uint64		count;

	initStringInfo(&query);
	appendStringInfo(&query, "SELECT DISTINCT conrelid FROM pg_catalog.pg_constraint"
					 " JOIN pg_catalog.pg_class AS c ON c.oid = conrelid"
					 " WHERE contype = 'f' AND conparentid <> 0 AND c.relowner <> %u"
					 " AND confrelid IN (", owner);
	for (int i = 0; i < list_length(partitions); i++)
		appendStringInfo(&query, "%s%u", i == 0 ? "" : ", ", list_nth_oid(partitions, i));
	appendStringInfoString(&query, ") ORDER BY conrelid");
	if (SPI_execute(query.data, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute: %s", query.data);
	tables = SPI_tuptable;
	count = SPI_processed;

	for (uint64 i = 0; i < count; i++)
	{
		bool		is_null;
		Oid			table = DatumGetObjectId(SPI_getbinval(tables->vals[i], tables->tupdesc,
														   1, &is_null));

		LockRelationOid(table, ShareRowExclusiveLock);
		resetStringInfo(&query);
		appendStringInfo(&query, "SELECT %s.snowflake_convert_is_plain(%u::pg_catalog.regclass)",
						 quote_identifier(get_namespace_name(home)), table);
		if (SPI_execute(query.data, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not execute: %s", query.data);
		if (!DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										1, &is_null)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("detaching partitions of \"%s\" would run code of table \"%s\", which belongs to another role",
							parent->name, get_rel_name(table)),
					 errdetail("The table references \"%s\", and has inheritors, or indexes, checks, statistics or foreign keys with expressions or types of its owner's.",
							   parent->name),
					 errhint("Drop the foreign key, and add it again afterwards.")));
	}
}

static void
put_text(ReturnSetInfo *result, const char *text)
{
	Datum		values[1] = {CStringGetTextDatum(text)};
	bool		nulls[1] = {false};

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * snowflake_drop_partitions(parent regclass, before timestamptz,
 *							 dry_run boolean)
 *		-> setof text: the statements that detach and drop what ends at or
 *		before an instant; with dry_run they are not executed.  ERROR 42809
 *		for a table that is not partitioned by the range of a bigint, 42501
 *		for somebody else's table, or where somebody else's code would
 *		run, 22023 for an infinite instant.
 */
Datum
snowflake_drop_partitions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TimestampTz before = PG_GETARG_TIMESTAMPTZ(1);
	bool		dry_run = PG_GETARG_BOOL(2);
	Parent		parent;
	Caller		caller;
	List	   *partitions;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (!dry_run)
		PreventCommandIfReadOnly("snowflake_drop_partitions()");
	if (TIMESTAMP_NOT_FINITE(before))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot drop partitions before %s",
						instant_text(before)),
				 errhint("Give a finite instant.")));

	open_parent(PG_GETARG_OID(0),
				dry_run ? AccessShareLock : ShareUpdateExclusiveLock,
				&parent, &caller);
	partitions = partitions_before(&parent, before, caller.user_id);
	if (!dry_run && partitions != NIL)
		lock_partitions(&parent, partitions);

	SPI_connect();
	if (!dry_run && partitions != NIL)
		check_references(get_func_namespace(fcinfo->flinfo->fn_oid), &parent, partitions);
	for (int i = 0; i < list_length(partitions); i++)
	{
		Oid			partition = list_nth_oid(partitions, i);
		char	   *detach = detach_statement(&parent, partition);
		char	   *drop = drop_statement(partition);

		put_text(result, detach);
		put_text(result, drop);
		if (!dry_run)
			drop_partition(partition, detach, drop);
	}
	SPI_finish();
	act_as_caller(&caller);
	return (Datum) 0;
}
