/*
 * mark_layout.c
 *	  The layout and the epoch of the data's ids.
 *
 * The mark's page has the layout and the epoch of all ids in the data, from
 * the first id on, and comes with the data to every copy.  So the page's
 * layout counts, on standbys too, and the parameters count only while there is
 * no page:
 *
 *	the page has			the parameters				ids are
 *	no layout yet			are set, or the defaults	issued and decoded by them
 *	a layout				are unset, or the same		issued and decoded by it
 *	a layout				are others					decoded by it, and not issued
 *
 * A server that issues ids by other parameters than the data's makes ids that
 * all other servers decode wrongly, and that can be issued a second time.
 *
 * When recovery has ended and the parameters do not differ, the layout is
 * final: it cannot change until the server's next start.  Before that, recovery
 * may bring a page, or snowflake_change_layout() may write one, so a session
 * reads the page again for each snapshot.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "clock.h"
#include "common/controldata_utils.h"
#include "mark_layout.h"
#include "mark_page.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/bufmgr.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * What a reading of the page was made for.  The reading is used as long as the
 * statement is the same and its snapshots see the same transactions, because a
 * later snapshot can bring rows of another layout.  In a procedure each
 * transaction counts as a statement.
 */
typedef struct LayoutReading
{
	TimestampTz statement;		/* when it began; DT_NOBEGIN: no reading */
	TransactionId xmin;
	TransactionId xmax;
	uint32		xcnt;
	int32		subxcnt;
} LayoutReading;

/* Is node_layout() of this process final? */
static bool layout_is_final = false;

/* What node_layout() of this process was read for. */
static LayoutReading layout_reading = {.statement = DT_NOBEGIN};

/* Is the layout known at the server's start, so that the log names it? */
static bool layout_is_announced = false;

/* Has this process, or the postmaster, warned of other parameters? */
static bool layout_is_reported = false;

static void mark_layout_look(void);
static LayoutReading mark_layout_present_reading(void);
static bool mark_layout_may_be_recovered(bool has_page);
static SnowflakeLayout mark_layout_of_data(const MarkContents *contents);
static bool mark_layout_is_wanted(const SnowflakeLayout *data);
static void mark_layout_settle(const SnowflakeLayout *layout);
static void mark_layout_warn(const SnowflakeLayout *data);
static void mark_layout_report_same(const SnowflakeLayout *layout);
static void mark_layout_report_other(int elevel, const SnowflakeLayout *data);
static int64 mark_layout_first_tick(const MarkContents *contents,
									const SnowflakeLayout *layout);
static void mark_layout_refuse_change(const MarkContents *contents,
									  const SnowflakeLayout *layout,
									  int64 largest_before,
									  int64 smallest_now);

/*
 * Finds the layout in the postmaster, before recovery, for the checks and the
 * log of the server's start.  Sets node_layout() to what the configuration
 * asks for.  Returns false if the layout is not known because recovery may
 * bring a page with another one.
 *
 * The page is read from its file, and WAL may be ahead of the file, as after a
 * snowflake_change_layout().  So parameters that differ from the file cause
 * only a WARNING here, and do not stop the start: ids are refused later.
 */
bool
mark_layout_begin(void)
{
	MarkContents contents;
	bool		has_page = mark_page_peek(&contents);
	SnowflakeLayout data = mark_layout_of_data(&contents);
	SnowflakeLayout wanted = data;
	bool		is_known;

	node_apply_parameters(&wanted);
	node_set_layout(&wanted);
	is_known = !mark_layout_may_be_recovered(has_page);
	layout_is_announced = is_known && layout_equal(&wanted, &data);
	if (!layout_equal(&wanted, &data) && has_page &&
		(is_known || access("standby.signal", F_OK) == 0))
	{
		mark_layout_report_other(WARNING, &data);
		layout_is_reported = true;
	}
	return is_known || node_sets_layout();
}

/* Returns the layout for the log of the server's start, NULL if not known. */
const SnowflakeLayout *
mark_layout_to_announce(void)
{
	return layout_is_announced ? node_layout() : NULL;
}

/*
 * Returns the layout that ids are decoded by.  Errors as
 * node_require_preload() and mark_page_read().
 */
const SnowflakeLayout *
mark_layout(void)
{
	if (unlikely(!layout_is_final))
		mark_layout_look();
	return node_layout();
}

/* Is mark_layout() the same until the server's next start? */
bool
mark_layout_is_final(void)
{
	(void) mark_layout();
	return layout_is_final;
}

/*
 * Makes the layout final before the first id.  ERROR 22023 if the parameters
 * ask for another layout than the page's, or if the node does not fit the
 * layout.  The caller has read the page after recovery had ended.
 */
void
mark_layout_require(const MarkContents *contents)
{
	SnowflakeLayout data = mark_layout_of_data(contents);

	if (!mark_layout_is_wanted(&data))
		mark_layout_report_other(ERROR, &data);
	node_check_fields(&data);
	mark_layout_settle(&data);
	if (!layout_equal(node_layout(), &data))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the page of the high-water mark of snowflake ids has been replaced while the server was running"),
				 errdetail("This server uses layout \"%s\" and epoch \"%s\", and the page has \"%s\" and epoch \"%s\".",
						   layout_to_text(node_layout()),
						   clock_text(node_layout()->epoch),
						   layout_to_text(&data), clock_text(data.epoch)),
				 errhint("Restart the server.")));
}

/*
 * Makes the configured layout and epoch the data's: replaces the page by one
 * whose floor is the first tick with ids above all ids that the page allows.
 * ERROR 22023 while the clock is before that tick.
 *
 * No process issues ids meanwhile, because the parameters differ from the
 * page.  So the page's marks do not change between its reading and its
 * locking.
 */
void
mark_layout_change(void)
{
	MarkContents contents;
	SnowflakeLayout layout;
	Buffer		buffer;
	XLogRecPtr	lsn;
	int64		floor;

	if (mark_layout_is_final())
	{
		mark_layout_report_same(node_layout());
		return;
	}

	/* Raise errors before the page is locked. */
	mark_page_read(&contents);
	layout = contents.layout;
	node_apply_parameters(&layout);
	node_check_fields(&layout);
	floor = mark_layout_first_tick(&contents, &layout);

	buffer = mark_page_lock(&contents);
	if (layout_equal(&layout, &contents.layout))
	{
		/* Another session has just changed the layout, and may issue ids. */
		UnlockReleaseBuffer(buffer);
		mark_layout_report_same(&layout);
		return;
	}
	mark_page_set_empty(&contents, &layout);
	contents.floor = floor;
	mark_page_log(buffer, &contents);
	lsn = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	XLogFlush(lsn);
	layout_reading.statement = DT_NOBEGIN;
	ereport(LOG,
			(errmsg("the layout of snowflake ids is \"%s\" with epoch \"%s\" from now on",
					layout_to_text(&layout), clock_text(layout.epoch))));
}

/* Sets node_layout() unless that was done for the present snapshot. */
static void
mark_layout_look(void)
{
	LayoutReading reading = mark_layout_present_reading();
	MarkContents contents;
	SnowflakeLayout layout;
	bool		is_recovering;
	bool		is_final;

	node_require_preload();

	/* Another session may have taken the first id within this statement. */
	if (memcmp(&layout_reading, &reading, sizeof(reading)) == 0 &&
		!snowflake_shared->layout_is_final)
		return;

	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	is_final = snowflake_shared->layout_is_final;
	layout = snowflake_shared->layout;
	LWLockRelease(&snowflake_shared->lock);
	if (is_final)
	{
		node_set_layout(&layout);
		layout_is_final = true;
		return;
	}

	/* A page that is read during recovery is not the last one. */
	is_recovering = RecoveryInProgress();
	mark_page_read(&contents);
	layout = mark_layout_of_data(&contents);
	if (contents.magic != 0 &&
		(!mark_layout_is_wanted(&layout) || !node_fits(&layout)))
		mark_layout_warn(&layout);
	if (!is_recovering && mark_layout_is_wanted(&layout))
	{
		mark_layout_settle(&layout);
		return;
	}
	node_set_layout(&layout);
	layout_reading = reading;
}

/*
 * Describes the present statement and snapshot.  Two snapshots of one statement
 * with the same xmax see the same transactions if the same number of
 * transactions below xmax is in progress, because no further one can begin.
 */
static LayoutReading
mark_layout_present_reading(void)
{
	LayoutReading reading = {
		.statement = Max(GetCurrentStatementStartTimestamp(),
						 GetCurrentTransactionStartTimestamp())
	};

	if (ActiveSnapshotSet())
	{
		Snapshot	snapshot = GetActiveSnapshot();

		reading.xmin = snapshot->xmin;
		reading.xmax = snapshot->xmax;
		reading.xcnt = snapshot->xcnt;
		reading.subxcnt = snapshot->subxcnt;
	}
	return reading;
}

/*
 * Can recovery bring another page than that of the file, sound or not?  It
 * cannot after a clean stop of a primary.  Recovery after a crash cannot bring
 * the first page: the file exists before the first record of the page.
 */
static bool
mark_layout_may_be_recovered(bool has_page)
{
	bool		is_sound;
	ControlFileData *control = get_controlfile(DataDir, &is_sound);
	bool		is_clean = is_sound && control->state == DB_SHUTDOWNED;

	pfree(control);
	return (access(MARK_FILE, F_OK) == 0 && (!has_page || !is_clean)) ||
		access("standby.signal", F_OK) == 0 ||
		access("recovery.signal", F_OK) == 0 ||
		access("backup_label", F_OK) == 0;
}

/* Returns a page's layout or, without a page, what the parameters ask for. */
static SnowflakeLayout
mark_layout_of_data(const MarkContents *contents)
{
	SnowflakeLayout layout;

	if (contents->magic != 0)
		return contents->layout;
	node_default_layout(&layout);
	node_apply_parameters(&layout);
	return layout;
}

/* Do the parameters ask for the data's layout, or for none? */
static bool
mark_layout_is_wanted(const SnowflakeLayout *data)
{
	SnowflakeLayout wanted = *data;

	node_apply_parameters(&wanted);
	return layout_equal(&wanted, data);
}

/*
 * Makes a layout final, so that all processes use it until the server's next
 * start.  If a layout is final already, this process uses that one.
 */
static void
mark_layout_settle(const SnowflakeLayout *layout)
{
	SnowflakeLayout settled;
	bool		is_first;

	Assert(!RecoveryInProgress());

	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_first = !snowflake_shared->layout_is_final;
	if (is_first)
	{
		snowflake_shared->layout = *layout;
		snowflake_shared->layout_is_final = true;
	}
	settled = snowflake_shared->layout;
	LWLockRelease(&snowflake_shared->lock);
	node_set_layout(&settled);
	layout_is_final = true;
	if (is_first && !layout_is_announced)
		ereport(LOG,
				(errmsg("snowflake ids are of layout \"%s\" with epoch \"%s\"",
						layout_to_text(&settled),
						timestamptz_to_str(settled.epoch))));
}

/*
 * Warns of parameters that are not the data's, or of a node that does not fit,
 * unless a process has done so since the start.
 */
static void
mark_layout_warn(const SnowflakeLayout *data)
{
	bool		is_first;

	if (layout_is_reported)
		return;
	layout_is_reported = true;
	LWLockAcquire(&snowflake_shared->lock, LW_EXCLUSIVE);
	is_first = !snowflake_shared->layout_is_reported;
	snowflake_shared->layout_is_reported = true;
	LWLockRelease(&snowflake_shared->lock);
	if (is_first && !mark_layout_is_wanted(data))
		mark_layout_report_other(WARNING, data);
	else if (is_first)
		ereport(WARNING,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("this server will issue no snowflake ids because its node (%d,%d) does not fit the data's layout",
						node_datacenter_id, node_worker_id),
				 errdetail("The data's ids are of \"%s\".", layout_to_text(data)),
				 errhint("Choose a \"snowflake.datacenter_id\" and a worker id that fit, and restart the server.")));
}

static void
mark_layout_report_same(const SnowflakeLayout *layout)
{
	ereport(NOTICE,
			(errmsg("the layout of snowflake ids is \"%s\" with epoch \"%s\" already",
					layout_to_text(layout), clock_text(layout->epoch))));
}

static void
mark_layout_report_other(int elevel, const SnowflakeLayout *data)
{
	SnowflakeLayout wanted = *data;

	node_apply_parameters(&wanted);
	ereport(elevel,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("this server issues no snowflake ids because \"snowflake.layout\" and \"snowflake.epoch\" are not the data's"),
			 errdetail("The data's ids are of \"%s\" and \"%s\", and the parameters ask for \"%s\" and \"%s\".",
					   layout_to_text(data), clock_text(data->epoch),
					   layout_to_text(&wanted), clock_text(wanted.epoch)),
			 errhint("Take both parameters out of the configuration, or set them to the data's values, and restart the server. To issue ids of the other layout, call snowflake_change_layout() as superuser on the primary server. If no row holds an id yet, see \"A mistake before the first row\" in doc/operations.md.")));
}

/*
 * Returns the first tick of a layout whose ids are above all ids that the page
 * allows.  ERROR 22023 if the clock is before that tick.
 */
static int64
mark_layout_first_tick(const MarkContents *contents,
					   const SnowflakeLayout *layout)
{
	const SnowflakeLayout *previous = &contents->layout;
	IdFields	newest_before = {
		.tick = mark_page_largest(contents) - 1,
		.datacenter_id = layout_field_max(previous->datacenter_bits),
		.worker_id = layout_field_max(previous->worker_bits),
		.sequence = layout_field_max(previous->sequence_bits)
	};
	IdFields	newest_now = {0};	/* the same id, split by the new layout */
	IdFields	now = {0};
	SpanPosition position;
	int64		largest_before;

	if (newest_before.tick < 0)
		return 0;

	largest_before = layout_compose(previous, &newest_before);
	position = layout_locate(layout, GetCurrentTimestamp(), &now.tick);
	if (largest_before < layout_max_id(layout))
		newest_now = layout_split(layout, largest_before);
	if (position != SPAN_WITHIN ||
		largest_before >= layout_max_id(layout) ||
		now.tick <= newest_now.tick)
		mark_layout_refuse_change(contents, layout, largest_before,
								  layout_compose(layout, &now));
	return newest_now.tick + 1;
}

static void
mark_layout_refuse_change(const MarkContents *contents,
						  const SnowflakeLayout *layout,
						  int64 largest_before, int64 smallest_now)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("the layout of snowflake ids cannot be changed to \"%s\" with epoch \"%s\"",
					layout_to_text(layout), clock_text(layout->epoch)),
			 errdetail("The smallest id that it makes now is " INT64_FORMAT ", and ids up to " INT64_FORMAT " may have been issued with \"%s\" and epoch \"%s\".",
					   smallest_now, largest_before,
					   layout_to_text(&contents->layout),
					   clock_text(contents->layout.epoch)),
			 errhint("Choose values whose ids are larger, such as an earlier epoch or more tick bits, and make sure that the clock is right. If no row holds an id yet, see \"A mistake before the first row\" in doc/operations.md.")));
}
