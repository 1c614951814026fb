/*
 * partitions.c
 *	  Range partitions of a table, by the time of its ids.
 *
 * Each function first looks at the existing partitions, under a lock that
 * keeps other sessions from creating partitions meanwhile; a dry run takes no
 * such lock.  Then the function creates or drops partitions by SQL statements,
 * which take care of privileges, locks and everything else.
 *
 * The statements run as the table's owner, whoever the caller is; only DROP
 * runs as the partition's owner.  So partitions that a superuser's scheduler
 * creates belong to the table's owner, and code that an owner has put into a
 * table's expressions gets no more rights than that owner has.  PostgreSQL
 * does the same for VACUUM and REINDEX.
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
#include "convert.h"
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

/* A call for more partitions than this probably has a wrong step. */
#define PARTITIONS_MAX 10000

/* Room for "_2026_01_31_13b", and for years of six digits. */
#define SUFFIX_SIZE 32

/* Room for "_1a2b3c4d". */
#define HASH_SIZE 10

/* The unit of a step, which decides how a partition's name ends. */
typedef enum StepUnit
{
	STEP_YEARS,
	STEP_MONTHS,
	STEP_DAYS,
	STEP_HOURS
} StepUnit;

/* Names of StepUnit, for date_trunc() and for messages. */
static const char *const unit_names[] = {"year", "month", "day", "hour"};
static const char *const units_in_words[] =
{"a year", "a month", "a day", "an hour"};

/* A range of ids: "from" is inclusive, "to" exclusive. */
typedef struct IdRange
{
	int64		from;			/* PG_INT64_MIN: MINVALUE */
	int64		to;				/* PG_INT64_MAX: MAXVALUE */
} IdRange;

/* A partition that the caller wants. */
typedef struct WantedPartition
{
	IdRange		range;
	bool		exists;			/* has the table a partition of this range? */
	char		suffix[SUFFIX_SIZE];
} WantedPartition;

/* A partition that the table has. */
typedef struct PresentPartition
{
	IdRange		range;
	Oid			relid;
} PresentPartition;

/* The partitioned table. */
typedef struct Parent
{
	Oid			relid;
	char	   *name;
	char	   *schema;
	List	   *partitions;		/* of PresentPartition, without the default */
} Parent;

/* The user and settings to return to after acting as the table's owner. */
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

/* Returns a bound for messages: the instant at which its tick begins. */
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

/* ERROR 42809 unless a table is partitioned by the range of a bigint. */
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

/* Returns a bound of the existing partitions, as in IdRange. */
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

/* Lists the existing partitions in order, without the default partition. */
static List *
present_partitions(Relation relation)
{
	PartitionDesc desc = RelationGetPartitionDesc(relation, false);
	PartitionBoundInfo bounds = desc->boundinfo;
	List	   *partitions = NIL;

	if (desc->nparts == 0)
		return NIL;

	/* The range between two bounds is of one partition, or of none. */
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

/* ERROR 42501 unless a user has the rights of a table's owner. */
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
 * Switches to the rights of a table's owner, until act_as_caller() or the end
 * of the transaction.  A security-restricted operation keeps code of the owner
 * from changing the session.  The operation is not restricted for the caller's
 * own temporary table, where PostgreSQL would refuse the statements.
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
 * Locks the table until the end of the transaction, reads its partitions, and
 * switches to the rights of its owner.  ShareUpdateExclusiveLock keeps other
 * sessions from creating and dropping partitions.  Raises ERROR 42501 unless
 * the user has the owner's rights.
 */
static void
lock_parent_as_owner(Oid relid, LOCKMODE lock, Parent *parent, Caller *caller)
{
	Relation	relation;
	Oid			owner;

	check_owned(relid, GetUserId());
	relation = table_open(relid, lock);

	/* The owner may have changed before the lock was granted. */
	check_owned(relid, GetUserId());
	owner = relation->rd_rel->relowner;
	act_as_owner(owner, owner == GetUserId() && relation->rd_islocaltemp,
				 caller);

	check_parent(relation);
	parent->relid = relid;
	parent->name = pstrdup(RelationGetRelationName(relation));
	parent->schema = get_namespace_name(RelationGetNamespace(relation));
	parent->partitions = present_partitions(relation);

	/* CREATE TABLE refuses a parent that this session has open. */
	table_close(relation, NoLock);
}

static void
execute(const char *statement)
{
	if (SPI_execute(statement, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute: %s", statement);
}

/* Returns the unit of a step; ERROR 22023 for a mixture of units. */
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
 * Returns the instant "count" steps after "since", in the session's time zone.
 * Hours are elapsed time.  Days, months and years count by the calendar,
 * even if a day does not begin at midnight.
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

/* Returns the beginning of the year, month, day or hour of an instant. */
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
 * Raises ERROR 22023 unless the instants are finite, "since" is before
 * "until", and "since" is the beginning of a unit.  Where a day has two midnights,
 * '2026-11-01' and date_trunc() give the second midnight, but the day begins
 * at the first; the function replaces the second by the first.
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

	/* A partition's name has to tell when the partition begins. */
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

/*
 * Returns the range of ids of a range of time.  Raises ERROR 22003 if the end
 * is outside the span, or if both ends are in one tick.
 */
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
				 errdetail("The ticks of this server's layout begin at %s .. %s.",
						   instant_text(layout->epoch),
						   instant_text(layout_tick_start(layout, layout_max_tick(layout)))),
				 errhint("Give instants in that range, and a step longer than a tick.")));

	range.from = layout_compose(layout, &first);
	range.to = layout_compose(layout, &last);
	return range;
}

/*
 * Makes the end of a partition's name: when the partition begins, in the
 * session's time zone.
 */
static void
make_suffix(TimestampTz instant, StepUnit unit, char *suffix)
{
	struct pg_tm tm;
	struct pg_tm hour_before;
	fsec_t		fsec;
	int			length;

	calendar_local_time(instant, &tm, &fsec);
	length = snprintf(suffix, SUFFIX_SIZE, "_%04d", tm.tm_year);
	if (unit >= STEP_MONTHS)
		length += snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d",
						   tm.tm_mon);
	if (unit >= STEP_DAYS)
		length += snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d",
						   tm.tm_mday);
	if (unit < STEP_HOURS)
		return;

	/* When summer time ends, an hour comes twice: mark the second with "b". */
	calendar_local_time(instant - USECS_PER_HOUR, &hour_before, &fsec);
	snprintf(suffix + length, SUFFIX_SIZE - length, "_%02d%s", tm.tm_hour,
			 hour_before.tm_hour == tm.tm_hour ? "b" : "");
}

/* Lists the partitions from "since" on; the last ends at "until" or later. */
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
		/* Count from the first: a short month must not shorten later steps. */
		TimestampTz to = step_forward(since, unit, step, i);
		WantedPartition *partition;

		CHECK_FOR_INTERRUPTS();
		if (i > PARTITIONS_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("cannot create more than %d partitions at once",
							PARTITIONS_MAX),
					 errhint("Give a longer step or a shorter time.")));

		/* The time zone has left this day out. */
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
 * Returns a partition's name: the parent's name and the suffix.  If the result
 * would be too long, cuts the parent's name and adds a checksum of it.  So the
 * partitions of parents whose names begin alike have different names.  Unlike
 * PostgreSQL's hash_bytes(), the checksum does not depend on the processor's
 * byte order: all servers give a table's partitions the same names.
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

/* Returns the range of an existing partition. */
static const IdRange *
present_range(const Parent *parent, int i)
{
	return &((const PresentPartition *) list_nth(parent->partitions, i))->range;
}

/*
 * Compares a wanted partition with the existing partitions.  Sets "exists" if
 * there is a partition of the same range.  Raises ERROR 42P17 for an overlap.
 */
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
					 errmsg("partition \"%s\" of \"%s\" would overlap an existing partition",
							partition_name(parent, wanted->suffix), parent->name),
					 errdetail("The new partition would be from %s to %s, and the existing partition is from %s to %s.",
							   bound_text(wanted->range.from),
							   bound_text(wanted->range.to),
							   bound_text(range->from),
							   bound_text(range->to)),
					 errhint("Use the step and the time zone that the existing partitions were made with.")));
	}
}

/*
 * Raises ERROR 42P17 for a gap between the wanted partitions and the nearest
 * existing partitions.
 */
static void
check_gaps(const Parent *parent, const IdRange *wanted)
{
	const IdRange *below = NULL;
	const IdRange *above = NULL;

	for (int i = 0; i < list_length(parent->partitions); i++)
	{
		const IdRange *range = present_range(parent, i);

		if (range->to <= wanted->from)
			below = range;		/* ranges are in order: keep the last */
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
 * Raises ERROR 55000 if a statement did not change the intended table: another
 * session may have renamed the table's schema and reused the schema's name.
 */
static void
check_effect(bool is_as_intended, const char *statement)
{
	if (!is_as_intended)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a schema was renamed while partitions were created or dropped"),
				 errdetail("The statement was: %s", statement),
				 errhint("Try again.")));
}

/* Creates a partition, and returns its OID. */
static Oid
create_partition(const Parent *parent, const WantedPartition *wanted)
{
	char	   *name = partition_name(parent, wanted->suffix);
	char	   *statement;
	Oid			relid;

	/* In the schema of a temporary parent, the partition is temporary, too. */
	statement = psprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (" INT64_FORMAT ") TO (" INT64_FORMAT ")",
						 quote_qualified_identifier(parent->schema, name),
						 quote_qualified_identifier(parent->schema,
													parent->name),
						 wanted->range.from, wanted->range.to);
	execute(statement);
	relid = get_relname_relid(name, get_namespace_oid(parent->schema, false));
	check_effect(OidIsValid(relid) && get_rel_relispartition(relid) &&
				 get_partition_parent(relid, false) == parent->relid,
				 statement);
	return relid;
}

/*
 * snowflake_create_partitions(parent regclass, since timestamptz,
 *							   until timestamptz, step interval)
 *		-> setof regclass
 *		Creates partitions, and returns them.  ERROR 42809 for a table that is
 *		not partitioned by the range of a bigint, 42501 for another role's
 *		table, 42P17 for an overlap or a gap, 22003 for a range that ends
 *		outside the layout's span, 22023 for a bad range of time or a bad step.
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

	lock_parent_as_owner(PG_GETARG_OID(0), ShareUpdateExclusiveLock, &parent,
						 &caller);
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

/* Returns the statement that detaches a partition. */
static char *
detach_statement(const Parent *parent, Oid partition)
{
	return psprintf("ALTER TABLE %s DETACH PARTITION %s%s;",
					quote_qualified_identifier(parent->schema, parent->name),
					convert_table_name(partition),
					PartitionHasPendingDetach(partition) ? " FINALIZE" : "");
}

/* Returns the statement that drops a detached partition. */
static char *
drop_statement(Oid partition)
{
	return psprintf("DROP %s %s;",
					get_rel_relkind(partition) == RELKIND_FOREIGN_TABLE ?
					"FOREIGN TABLE" : "TABLE",
					convert_table_name(partition));
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
 * Drops a partition.  Detaches the partition as the parent's owner, and drops
 * the table as its own owner: a partition that a superuser has created by hand
 * belongs to the superuser.
 */
static void
drop_partition(Oid partition, const char *detach, const char *drop)
{
	Caller		parent_owner;

	execute(detach);
	check_effect(!get_rel_relispartition(partition), detach);
	GetUserIdAndSecContext(&parent_owner.user_id,
						   &parent_owner.security_context);
	SetUserIdAndSecContext(table_owner(partition),
						   parent_owner.security_context);
	execute(drop);
	SetUserIdAndSecContext(parent_owner.user_id,
						   parent_owner.security_context);
	check_effect(!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(partition)),
				 drop);
}

/*
 * Lists the partitions whose ids are all before an instant, oldest first.
 * Raises ERROR 42501 unless the user has the rights of the partitions' owners.
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
 * Takes the locks of DETACH, in the order of DETACH, so that no other session
 * renames the tables before the statements name them.
 */
static void
lock_partitions(const Parent *parent, List *partitions)
{
	LockRelationOid(parent->relid, AccessExclusiveLock);
	for (int i = 0; i < list_length(partitions); i++)
		LockRelationOid(list_nth_oid(partitions, i), AccessExclusiveLock);
}

/*
 * Raises ERROR 42501 if DETACH would run code of another role as the table's
 * owner.  For each foreign key that references the partition, DETACH runs a
 * query on the partition and on the referencing table.  The query evaluates
 * expressions of the referencing table's indexes and CHECKs, which belong to
 * that table's owner.  Locks the referencing tables, so that their owners add
 * no index meanwhile.
 */
static void
check_references(Oid own_schema, const Parent *parent, List *partitions)
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
						 quote_identifier(get_namespace_name(own_schema)), table);
		if (SPI_execute(query.data, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not execute: %s", query.data);
		if (!DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										1, &is_null)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("detaching partitions of \"%s\" would run code of table \"%s\", which belongs to another role",
							parent->name, get_rel_name(table)),
					 errdetail("The table references \"%s\". It has inheritors, or it has indexes, checks, statistics or foreign keys whose expressions or types can run code.",
							   parent->name),
					 errhint("Drop the foreign key, and add it again afterwards.")));
	}
}

static void
add_row(ReturnSetInfo *result, const char *text)
{
	Datum		values[1] = {CStringGetTextDatum(text)};
	bool		nulls[1] = {false};

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * snowflake_drop_partitions(parent regclass, before timestamptz,
 *							 dry_run boolean)
 *		-> setof text
 *		Detaches and drops the partitions that end at or before an instant, and
 *		returns the statements; with dry_run, does not execute them.  ERROR
 *		42809 for a table that is not partitioned by the range of a bigint,
 *		42501 for another role's table and if another role's code would run,
 *		22023 for an infinite instant.
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

	lock_parent_as_owner(PG_GETARG_OID(0),
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

		add_row(result, detach);
		add_row(result, drop);
		if (!dry_run)
			drop_partition(partition, detach, drop);
	}
	SPI_finish();
	act_as_caller(&caller);
	return (Datum) 0;
}
