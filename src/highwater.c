/*
 * highwater.c
 *	  The high-water mark on disk: read at the start, kept ahead of the clock
 *	  by a worker, closed at a clean shutdown.
 *
 * An id may be issued only while its tick is before the mark, and the mark
 * moves in shared memory only after it is safe on disk.  So whatever becomes
 * of the memory, the file tells where no id has been, and generators begin
 * there.  While ids are issued the worker keeps the mark ahead, and nobody
 * waits for the disk; should it be late, or gone, the backend that comes to
 * the mark moves it.
 *
 * The file is written under a temporary name, flushed, and renamed.  One
 * process writes at a time, but none holds a lock meanwhile: a writer takes a
 * number, and whoever finds it stuck (stopped, or dead slow) takes the next
 * one.  That must not let a writer that wakes up late put an old mark in
 * place of a newer one.  So the temporary file is named by the number; the
 * one who takes over removes those of all who are overtaken (who took over
 * before may be stuck before it has done so) before it writes its own, and a
 * writer looks, once its own is complete, whether its number is still the
 * newest.  If it is not, it gives up; if it is, and is overtaken between that
 * look and the rename, its file is gone and the rename fails.
 *
 * A file that does not verify is never overwritten.
 *
 * Where the worker id is leased, the file holds the lease, too, and the mark
 * goes no further than the lease lasts and the registry has been promised.  So
 * nothing on the way of an id has to look at the lease; see registry.c.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_control.h"
#include "clock.h"
#include "common/controldata_utils.h"
#include "compat.h"
#include "highwater.h"
#include "layout.h"
#include "miscadmin.h"
#include "node.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "statefile.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "worker.h"

/* How long a writer may take before another one takes over. */
#define PATIENCE_US INT64CONST(1000000)
#define PATIENCE_MAX_US (64 * PATIENCE_US)

/* How often a session that waits for a writer looks whether it is stuck. */
#define LOOK_AGAIN_MS 50

/* parameter */
int			highwater_interval_ms = 500;

HighwaterState *highwater_state = NULL;
static const HighwaterGenerators *generators = NULL;

static void close_at_shutdown(int code, Datum arg);

/* Microseconds on a clock that is not set, for how long a write takes. */
static int64
monotonic_us(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Remembers why no id may be issued until the next start. */
static void
set_fault(StateFault fault, const char *detail)
{
	highwater_state->fault = fault;
	strlcpy(highwater_state->fault_detail, detail,
			sizeof(highwater_state->fault_detail));
	ereport(LOG,
			(errmsg("snowflake ids will not be issued: file \"%s\": %s",
					STATE_FILE, highwater_state->fault_detail)));
}

/* The layout that a state file was written with. */
static Layout
layout_of_file(const StateFile *file)
{
	Layout		layout = {0};

	layout.tick_bits = file->tick_bits;
	layout.datacenter_bits = file->datacenter_bits;
	layout.worker_bits = file->worker_bits;
	layout.sequence_bits = file->sequence_bits;
	layout.tick_us = file->tick_us;
	layout.epoch = file->epoch;
	return layout;
}

static bool
same_layout(const Layout *a, const Layout *b)
{
	return a->tick_bits == b->tick_bits &&
		a->datacenter_bits == b->datacenter_bits &&
		a->worker_bits == b->worker_bits &&
		a->sequence_bits == b->sequence_bits &&
		a->tick_us == b->tick_us &&
		a->epoch == b->epoch;
}

/*
 * Where generators of a changed layout begin: at the first tick whose ids
 * all lie above every id that can have been issued before.  Stops the start
 * if the clock has not come that far, for then ids would repeat.
 */
static int64
start_of_changed_layout(const Layout *layout, const StateFile *file)
{
	Layout		previous = layout_of_file(file);
	IdFields	newest = {
		.tick = file->mark - 1,
		.datacenter_id = layout_field_max(previous.datacenter_bits),
		.worker_id = layout_field_max(previous.worker_bits),
		.sequence = layout_field_max(previous.sequence_bits)
	};
	IdFields	first = {0};
	IdFields	now = {0};
	int64		largest_before;
	ClockReading clock = {0};

	if (file->mark == 0)
		return 0;

	largest_before = layout_compose(&previous, &newest);
	clock_read(layout, &clock);
	now.tick = clock.tick;
	if (largest_before < layout_max_id(layout))
		layout_split(layout, largest_before, &first);
	if (clock.position != SPAN_WITHIN ||
		largest_before >= layout_max_id(layout) || clock.tick <= first.tick)
	{
		char		previous_text[LAYOUT_TEXT_SIZE];

		layout_to_text(&previous, previous_text);
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"snowflake.layout\" and \"snowflake.epoch\" cannot be changed to \"%s\" and \"%s\"",
						node_layout_text, node_epoch_text),
				 errdetail("The smallest id that they make now is " INT64_FORMAT ", and ids up to " INT64_FORMAT " may have been issued with \"%s\" and \"%s\".",
						   layout_compose(layout, &now), largest_before,
						   previous_text, timestamptz_to_str(previous.epoch)),
				 errhint("Put the previous values back, or choose values whose ids are larger, such as an earlier epoch or more tick bits.")));
	}
	return first.tick + 1;
}

/*
 * A standby that starts again replays only the commits after its last
 * restartpoint.  Those before are in its data, too, so that their ids count:
 * none is later than the checkpoint's time, which is in whole seconds and
 * taken a little before the checkpoint.
 */
static void
begin_after_restartpoint(HighwaterStart *start)
{
	const pg_time_t unix_epoch =
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * (pg_time_t) SECS_PER_DAY;
	const Layout *layout = node_layout();
	bool		is_sound;
	ControlFileData *control = get_controlfile(DataDir, &is_sound);
	int64		tick;

	if (is_sound &&
		(control->state == DB_SHUTDOWNED_IN_RECOVERY ||
		 control->state == DB_IN_ARCHIVE_RECOVERY) &&
		layout_locate(layout,
					  (control->checkPointCopy.time - unix_epoch + 2) *
					  USECS_PER_SEC, &tick) != SPAN_BEFORE &&
		tick >= start->tick)
	{
		start->tick = tick + 1;
		start->lead_us = 0;
	}
	pfree(control);
}

/*
 * Takes the lease up from the state file.  It is good only in the place that
 * it was leased to, where the clock that it is counted on has gone on; and for
 * the node and the registry that are configured now.
 */
static void
begin_lease(const Lease *lease)
{
	int			wanted = node_intended_worker_id();

	if (lease->worker_id == LEASE_NONE ||
		lease->datacenter_id != node_datacenter_id ||
		lease->worker_id > layout_field_max(node_layout()->worker_bits))
		return;

	highwater_state->lease = *lease;
	if (strcmp(lease->holder, lease_place()) != 0 ||
		lease->registry != node_registry_hash() ||
		(wanted != NODE_WORKER_ID_UNSET && wanted != lease->worker_id) ||
		!lease_is_valid(lease, lease_clock_us()))
		highwater_state->lease.ends_us = 0;
	else
		ereport(LOG,
				(errmsg("snowflake worker_id %d is still leased to this server",
						lease->worker_id)));
}

/* What the state file says of where generators begin. */
static void
read_start(HighwaterStart *start)
{
	const Layout *layout = node_layout();
	StateFile	file;
	StateFault	fault;
	char		detail[STATE_DETAIL_SIZE];
	Layout		previous;

	memset(start, 0, sizeof(*start));

	/* while there is only one process to find it out */
	if (node_is_leased())
		(void) lease_place();
	fault = statefile_read(&file, detail);
	if (fault == STATE_MISSING)
		return;
	if (fault != STATE_SOUND)
	{
		set_fault(fault, detail);
		return;
	}

	if (node_is_leased())
		begin_lease(&file.lease);

	previous = layout_of_file(&file);
	if (same_layout(layout, &previous))
	{
		start->tick = file.mark;
		start->lead_us = file.lead_us;
	}
	else
		start->tick = start_of_changed_layout(layout, &file);

	/* of a changed layout there is none on disk until the first id */
	pg_atomic_write_u64(&highwater_state->mark, (uint64) start->tick);
}

static void
temporary_name(char *name, uint64 write_number)
{
	snprintf(name, MAXPGPATH, "%s." UINT64_FORMAT ".tmp",
			 STATE_FILE, write_number);
}

static void
remove_temporary_file(uint64 write_number)
{
	char		name[MAXPGPATH];

	temporary_name(name, write_number);
	(void) unlink(name);
}

/* Removes what writers have left that were killed in the middle. */
static void
remove_temporary_files(void)
{
	DIR		   *directory = AllocateDir(".");
	struct dirent *entry;

	while ((entry = ReadDirExtended(directory, ".", LOG)) != NULL)
	{
		size_t		length = strlen(entry->d_name);

		if (strncmp(entry->d_name, STATE_FILE ".",
					strlen(STATE_FILE ".")) == 0 &&
			length > 4 && strcmp(entry->d_name + length - 4, ".tmp") == 0)
			(void) unlink(entry->d_name);
	}
	FreeDir(directory);
}

/*
 * Called by the postmaster, before any other process is there, when it has
 * allocated the shared memory: at the server's start and after a backend's
 * crash.
 */
void
highwater_startup(HighwaterState *shared_state, int tranche_id,
				  const HighwaterGenerators *known_generators,
				  HighwaterStart *start)
{
	highwater_state = shared_state;
	generators = known_generators;

	pg_atomic_init_u64(&highwater_state->mark, 0);
	LWLockInitialize(&highwater_state->lock, tranche_id);
	ConditionVariableInit(&highwater_state->write_ended);
	highwater_state->patience_us = PATIENCE_US;
	highwater_state->lease.worker_id = LEASE_NONE;
	strlcpy(highwater_state->lease_reason,
			_("The registry has not answered yet."), HIGHWATER_REASON_SIZE);

	remove_temporary_files();
	read_start(start);
	begin_after_restartpoint(start);
	on_shmem_exit(close_at_shutdown, (Datum) 0);
}

/*
 * ERROR XX001, 58030 or 0A000 if the state file that was found cannot be
 * trusted, or read.
 */
void
highwater_require_sound(void)
{
	if (likely(highwater_state->fault == STATE_SOUND))
		return;

	if (highwater_state->fault == STATE_TOO_NEW)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("snowflake ids cannot be issued because file \"%s\" is of a newer version",
						STATE_FILE),
				 errdetail("The file in the data directory: %s.",
						   highwater_state->fault_detail),
				 errhint("Install the version of the extension that wrote it, and restart the server.")));
	if (highwater_state->fault == STATE_UNREADABLE)
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("snowflake ids cannot be issued because file \"%s\" could not be read",
						STATE_FILE),
				 errdetail("The file in the data directory: %s.",
						   highwater_state->fault_detail),
				 errhint("Mend its owner and mode, or the disk, and restart the server.")));
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("snowflake ids cannot be issued because file \"%s\" is damaged",
					STATE_FILE),
			 errdetail("The file in the data directory: %s.",
					   highwater_state->fault_detail),
			 errhint("Make sure that the clock is past the newest id in the data, or choose a \"snowflake.worker_id\" that no server has used. Then move the file away and restart the server.")));
}

/* What came of a write. */
typedef struct WriteResult
{
	bool		is_done;
	bool		is_refused;		/* for want of a lease */
	int64		mark;
	int			error;			/* errno if it failed; 0 if it was overtaken */
	const char *step;			/* that failed */
} WriteResult;

/* How far a write puts the mark ahead: two intervals. */
static int64
mark_lead_us(void)
{
	return 2 * (int64) highwater_interval_ms * 1000;
}

/* A copy of the lease; the postmaster is alone when it wants one. */
void
highwater_read_lease(Lease *lease)
{
	if (IsUnderPostmaster)
		LWLockAcquire(&highwater_state->lock, LW_SHARED);
	*lease = highwater_state->lease;
	if (IsUnderPostmaster)
		LWLockRelease(&highwater_state->lock);
}

/* The worker id of ids up to the mark, under a lease if it takes one. */
static int
worker_id_under(const Lease *lease)
{
	return node_is_leased() ? lease->worker_id : node_intended_worker_id();
}

static void
fill_state_file(StateFile *file, int64 mark, bool is_clean)
{
	const Layout *layout = node_layout();

	memset(file, 0, sizeof(*file));
	highwater_read_lease(&file->lease);
	file->tick_bits = layout->tick_bits;
	file->datacenter_bits = layout->datacenter_bits;
	file->worker_bits = layout->worker_bits;
	file->sequence_bits = layout->sequence_bits;
	file->tick_us = layout->tick_us;
	file->epoch = layout->epoch;
	file->datacenter_id = node_datacenter_id;
	file->worker_id = worker_id_under(&file->lease);
	file->mark = mark;
	file->written_at = GetCurrentTimestamp();
	file->lead_us = is_clean ? 0 : mark_lead_us();
	file->is_clean = is_clean;
	statefile_seal(file);
}

/* Is a write still the newest one begun? */
static bool
is_newest_write(uint64 write_number)
{
	bool		is_newest;

	LWLockAcquire(&highwater_state->lock, LW_SHARED);
	is_newest = highwater_state->write_number == write_number;
	LWLockRelease(&highwater_state->lock);
	return is_newest;
}

/*
 * Puts a mark on disk, by the protocol at the head of this file.  Raises no
 * error.
 */
static WriteResult
write_mark(uint64 write_number, int64 mark, bool is_clean)
{
	WriteResult result = {.mark = mark};
	char		name[MAXPGPATH];
	StateFile	file;

	temporary_name(name, write_number);
	fill_state_file(&file, mark, is_clean);

	if (!statefile_write(name, &file))
		result.step = "write";
	else if (IsUnderPostmaster && !is_newest_write(write_number))
	{
		remove_temporary_file(write_number);
		return result;
	}
	else if (rename(name, STATE_FILE) != 0)
	{
		/* no such file: it was taken away by whoever overtook us */
		if (errno == ENOENT)
			return result;
		result.step = "rename";
	}
	else if (!statefile_flush_directory())
		result.step = "flush";
	else
		result.is_done = true;

	if (!result.is_done)
	{
		result.error = errno;
		remove_temporary_file(write_number);
	}
	return result;
}

/* The mark that is due, two intervals ahead of the clock and of a tick. */
static int64
due_mark(int64 tick)
{
	const Layout *layout = node_layout();
	TimestampTz ahead = Max(GetCurrentTimestamp(),
							layout_tick_start(layout, tick)) +
		mark_lead_us();
	int64		mark_tick;

	(void) layout_locate(layout, ahead, &mark_tick);
	return Max(mark_tick, tick) + 1;
}

/*
 * The tick that a lease lets the mark go to: the first that is not over
 * before the lease is, or that was not promised.  None: 0.
 */
static int64
limit_of_lease(const Lease *lease, TimestampTz now, int64 lease_now_us)
{
	int64		tick;

	if (!lease_is_valid(lease, lease_now_us) ||
		layout_locate(node_layout(),
					  Min(lease->promise,
						  now + (lease->ends_us - lease_now_us)),
					  &tick) == SPAN_BEFORE)
		return 0;
	return tick;
}

/* A write that has begun. */
typedef struct Write
{
	uint64		number;			/* 0: another process is the writer */
	uint64		settled;		/* writes after this one are overtaken */
	int64		limit;			/* the mark may not go further */
} Write;

/*
 * Becomes the writer, unless another process is and is not stuck, or the mark
 * has moved past the tick meanwhile: the one to be written now could be lower;
 * or a lease does not let it.  A write that is forced leaves the mark alone.
 */
static Write
begin_write(int64 past, bool is_forced)
{
	int64		now_us = monotonic_us();
	int64		lease_now_us = lease_clock_us();
	TimestampTz now = GetCurrentTimestamp();
	Write		write = {.limit = PG_INT64_MAX};

	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	if (node_is_leased())
		write.limit = limit_of_lease(&highwater_state->lease, now,
									 lease_now_us);
	if ((is_forced || (highwater_mark() <= past && past < write.limit)) &&
		(!highwater_state->is_writing ||
		 now_us - highwater_state->writing_since_us >
		 highwater_state->patience_us))
	{
		if (highwater_state->is_writing)
		{
			/* more patience with the next, lest a slow disk starve us all */
			highwater_state->patience_us =
				Min(highwater_state->patience_us * 2, PATIENCE_MAX_US);
		}
		write.settled = highwater_state->settled_number;
		write.number = ++highwater_state->write_number;
		highwater_state->is_writing = true;
		highwater_state->writing_since_us = now_us;
	}
	LWLockRelease(&highwater_state->lock);
	return write;
}

/* Ends a write, and moves the mark if it is safe. */
static void
end_write(uint64 write_number, const WriteResult *result)
{
	Latch	   *worker_latch;

	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	if (highwater_state->write_number == write_number)
	{
		highwater_state->is_writing = false;
		highwater_state->settled_number = write_number;
		if (result->is_done)
		{
			highwater_state->patience_us = PATIENCE_US;
			highwater_state->counts.writes++;
			if (highwater_mark() < result->mark)
				pg_atomic_write_u64(&highwater_state->mark,
									(uint64) result->mark);
		}
	}
	worker_latch = highwater_state->worker_latch;
	LWLockRelease(&highwater_state->lock);

	ConditionVariableBroadcast(&highwater_state->write_ended);

	/* it goes to sleep while no ids are issued */
	if (worker_latch != NULL && worker_latch != MyLatch)
		SetLatch(worker_latch);
}

/* Does a write that has begun. */
static WriteResult
do_write(const Write *write, int64 mark)
{
	WriteResult result;

	for (uint64 n = write->settled + 1; n < write->number; n++)
		remove_temporary_file(n);
	result = write_mark(write->number, mark, false);
	end_write(write->number, &result);
	return result;
}

/*
 * Moves the mark past a tick, or waits until another process has; a write
 * puts it well ahead of "newest".  Returns what came of the write that failed,
 * or is_done.
 */
static WriteResult
move_mark(int64 past, int64 newest)
{
	WriteResult result = {.is_done = true};

	ConditionVariablePrepareToSleep(&highwater_state->write_ended);
	while (highwater_mark() <= past)
	{
		Write		write = begin_write(past, false);

		if (write.limit <= past)
		{
			result.is_done = false;
			result.is_refused = true;
			break;
		}
		if (write.number == 0)
		{
			(void) ConditionVariableTimedSleep(&highwater_state->write_ended,
											   LOOK_AGAIN_MS,
											   wait_event_of(WAIT_FOR_MARK));
			continue;
		}

		result = do_write(&write, Min(Max(due_mark(newest), past + 1),
									  write.limit));
		if (!result.is_done && result.error != 0)
			break;
		result.is_done = true;
	}
	ConditionVariableCancelSleep();
	return result;
}

/* What has been done since the server's start. */
void
highwater_count(HighwaterCounts *counts)
{
	LWLockAcquire(&highwater_state->lock, LW_SHARED);
	*counts = highwater_state->counts;
	LWLockRelease(&highwater_state->lock);
}

static void
report_failure(int level, const WriteResult *result)
{
	errno = result->error;
	ereport(level,
			(errcode_for_file_access(),
			 errmsg("snowflake ids cannot be issued because the high-water mark cannot be saved: %m"),
			 errdetail("Could not %s file \"%s\" in the data directory.",
					   result->step, STATE_FILE),
			 errhint("Free disk space, or repair what the server's log complains of. Ids are issued again as soon as the file can be written.")));
}

/* ERROR 55000: there is no lease. */
static void
refuse_without_lease(const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because this server holds no lease on a worker id"),
			 errdetail("%s", reason),
			 errhint("Ids are issued as soon as the registry grants a lease; the server's log says more.")));
}

/* ERROR 55000: the clock has jumped ahead, and it takes a new promise. */
static void
refuse_past_promise(TimestampTz promise, TimestampTz now, Latch *registry_latch)
{
	char	   *promise_text = pstrdup(timestamptz_to_str(promise));

	if (registry_latch != NULL)
		SetLatch(registry_latch);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because the clock is past what the registry has been promised"),
			 errdetail("Ids before %s have been promised, and the clock is at %s.",
					   promise_text, timestamptz_to_str(now)),
			 errhint("Check the server's clock. Ids are issued as soon as the lease has been renewed.")));
}

/* ERROR 55000: ids are ahead of the clock, by more than the lease lasts. */
static void
refuse_past_lease(int64 tick, TimestampTz ends_at)
{
	char	   *tick_text =
		pstrdup(timestamptz_to_str(layout_tick_start(node_layout(), tick)));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("snowflake ids cannot be issued because they are further ahead of the clock than the lease on the worker id lasts"),
			 errdetail("The next id is of %s, and the lease lasts until %s.",
					   tick_text, timestamptz_to_str(ends_at)),
			 errhint("Ids are issued as the clock comes nearer. A longer \"snowflake.lease_duration\" lets them be further ahead.")));
}

/*
 * Says why the lease does not let the mark move past a tick.  Returns if it
 * does by now.
 */
static void
explain_refusal(int64 tick)
{
	char		reason[HIGHWATER_REASON_SIZE];
	int64		now_us = lease_clock_us();
	TimestampTz now = GetCurrentTimestamp();
	Lease		lease;
	Latch	   *registry_latch;

	LWLockAcquire(&highwater_state->lock, LW_SHARED);
	lease = highwater_state->lease;
	memcpy(reason, highwater_state->lease_reason, sizeof(reason));
	registry_latch = highwater_state->registry_latch;
	LWLockRelease(&highwater_state->lock);

	if (tick < limit_of_lease(&lease, now, now_us))
		return;
	if (!lease_is_valid(&lease, now_us))
		refuse_without_lease(reason);
	if (lease.promise <= now)
		refuse_past_promise(lease.promise, now, registry_latch);
	refuse_past_lease(tick, now + (lease.ends_us - now_us));
}

/*
 * Moves the mark past a tick that an id is to be issued of.  ERROR (53100,
 * 58030 or what else the file system says) if it cannot be written, and 55000
 * if there is no lease to do so.
 */
void
highwater_move_past(int64 tick)
{
	WriteResult result = move_mark(tick, tick);

	while (result.is_refused)
	{
		explain_refusal(tick);
		result = move_mark(tick, tick);
	}
	if (!result.is_done)
		report_failure(ERROR, &result);
}

/*
 * The mark, and the worker id of ids up to it, together: whoever keeps both
 * may issue so far with no more looks.
 */
int64
highwater_read(int *worker_id)
{
	int64		mark;

	LWLockAcquire(&highwater_state->lock, LW_SHARED);
	mark = highwater_mark();
	*worker_id = worker_id_under(&highwater_state->lease);
	LWLockRelease(&highwater_state->lock);
	return mark;
}

/*
 * Writes the file as all is now, with the mark where it is.  False, and a
 * line in the log, if it cannot be written.
 */
static bool
save(void)
{
	WriteResult result = {.is_done = false};

	ConditionVariablePrepareToSleep(&highwater_state->write_ended);
	for (;;)
	{
		Write		write = begin_write(0, true);

		if (write.number != 0)
		{
			result = do_write(&write, highwater_mark());
			if (result.is_done || result.error != 0)
				break;
		}
		else
			(void) ConditionVariableTimedSleep(&highwater_state->write_ended,
											   LOOK_AGAIN_MS,
											   wait_event_of(WAIT_FOR_MARK));
	}
	ConditionVariableCancelSleep();

	if (!result.is_done)
		report_failure(LOG, &result);
	return result.is_done;
}

/* The first tick that is not before an instant; of -infinity it is 0. */
static int64
first_tick_from(TimestampTz instant)
{
	int64		tick;

	if (layout_locate(node_layout(), instant, &tick) == SPAN_BEFORE)
		return 0;
	return instant > layout_tick_start(node_layout(), tick) ? tick + 1 : tick;
}

/* Lets no write that is under way move the mark; the caller has the lock. */
static void
overtake_writes(void)
{
	highwater_state->write_number++;
	highwater_state->is_writing = false;
}

/*
 * Takes a lease that has been granted or renewed.  With begins_at, another
 * server may have had the worker id before, and issued up to that instant; or
 * it is another worker id.  Ids then begin in a tick that none was issued of
 * here: so sessions that still have the old worker id cannot use it, nor one
 * that has the new one an earlier tick.
 */
void
highwater_take_lease(const Lease *lease, const TimestampTz *begins_at)
{
	bool		is_taken = false;

	while (!is_taken)
	{
		int64		mark = highwater_mark();
		int64		begin = mark;

		if (begins_at != NULL)
		{
			begin = Max(mark, first_tick_from(*begins_at));
			generators->begin_after(begin - 1,
									begin == mark ? mark_lead_us() : 0,
									begin > mark);
		}

		LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
		if (highwater_mark() == mark)
		{
			if (begins_at != NULL)
				overtake_writes();
			highwater_state->lease = *lease;
			highwater_state->counts.lease_renewals++;
			strlcpy(highwater_state->lease_reason,
					_("The lease has run out, and the registry has not answered since."),
					HIGHWATER_REASON_SIZE);
			pg_atomic_write_u64(&highwater_state->mark, (uint64) begin);
			is_taken = true;
		}
		LWLockRelease(&highwater_state->lock);
	}
	(void) save();
}

/* Ends the lease, and returns the mark, which goes no further. */
static int64
end_lease(Lease *lease)
{
	int64		mark;

	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	overtake_writes();
	*lease = highwater_state->lease;
	highwater_state->lease.ends_us = 0;
	mark = highwater_mark();
	LWLockRelease(&highwater_state->lock);
	return mark;
}

/* The lease is over, or another server's: closes what the mark has left. */
void
highwater_lose_lease(void)
{
	Lease		lease;

	generators->begin_after(end_lease(&lease) - 1, mark_lead_us(), false);
	(void) save();
}

/*
 * Ends the lease before its time, and safely so: even if this server starts
 * again without having asked.  Returns what it was, and the instant that no
 * id lies at or beyond; false if there was none, or it has to be kept.
 */
bool
highwater_give_lease_up(Lease *lease, TimestampTz *mark)
{
	*mark = layout_tick_start(node_layout(), end_lease(lease));

	/* the registry is to know of no more, so it is not promised any more */
	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	highwater_state->lease.promise = Min(lease->promise, *mark);
	LWLockRelease(&highwater_state->lock);
	return lease_is_valid(lease, lease_clock_us()) && save();
}

/* Remembers why there is no lease, or why it has not been renewed. */
void
highwater_note_failure(const char *reason)
{
	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	highwater_state->counts.lease_failures++;
	strlcpy(highwater_state->lease_reason, reason, HIGHWATER_REASON_SIZE);
	LWLockRelease(&highwater_state->lock);
}

/* Tells whom to wake up if a lease does not reach far enough; NULL: nobody. */
void
highwater_announce_registry(Latch *latch)
{
	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	highwater_state->registry_latch = latch;
	LWLockRelease(&highwater_state->lock);
}

/*
 * Writes the exact last tick: in the postmaster, after its last child is
 * gone, which at an immediate stop is no later.  Not after a crash (the memory
 * may be what crashed us), and not over a file that was not understood.
 */
static void
close_at_shutdown(int code, Datum arg)
{
	int64		newest;
	WriteResult result;

	if (code != 0 || highwater_state->fault != STATE_SOUND)
		return;
	newest = generators->newest_tick();
	if (newest < 0)
		return;

	result = write_mark(++highwater_state->write_number, newest + 1, true);
	if (!result.is_done)
		report_failure(LOG, &result);
}

static void
forget_worker(int code, Datum arg)
{
	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	highwater_state->worker_latch = NULL;
	LWLockRelease(&highwater_state->lock);
}

/* Moves the mark; what fails is logged, once until it succeeds again. */
static void
move_mark_or_log(int64 past, int64 newest)
{
	static bool has_failed = false;
	WriteResult result = move_mark(past, newest);

	/* of a lease that does not let it, the registry's worker tells */
	if (result.is_refused)
		return;
	if (!result.is_done && !has_failed)
		report_failure(LOG, &result);
	has_failed = !result.is_done;
}

/*
 * Keeps the mark ahead: true if ids have been issued since "seen", the newest
 * tick when we last looked.
 */
static bool
keep_ahead(int64 *seen)
{
	int64		newest = generators->newest_tick();
	int64		half_interval = (int64) highwater_interval_ms * 500 /
		node_layout()->tick_us;

	if (newest == *seen)
		return false;
	*seen = newest;

	/* a backend may have just moved it */
	move_mark_or_log(due_mark(newest) - 1 - half_interval, newest);
	return true;
}

/* The worker: writes the mark while ids are issued, sleeps while none are. */
void
highwater_worker_main(Datum main_arg)
{
	int64		seen = -1;
	int64		past;

	worker_begin();

	LWLockAcquire(&highwater_state->lock, LW_EXCLUSIVE);
	highwater_state->worker_latch = MyLatch;
	LWLockRelease(&highwater_state->lock);
	before_shmem_exit(forget_worker, (Datum) 0);

	/* nothing to write, then, until the next start; with 0 it stays away */
	if (highwater_state->fault != STATE_SOUND)
		proc_exit(0);

	/* before a crash makes us forget what recovery brought */
	past = generators->end_recovery();
	if (past >= 0)
		move_mark_or_log(past, past);

	while (!ShutdownRequestPending)
	{
		bool		is_busy = keep_ahead(&seen);

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (is_busy ? WL_TIMEOUT : 0),
						 highwater_interval_ms,
						 wait_event_of(WAIT_IN_WORKER));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		worker_heed_reload();
	}

	/* with 0 it would not be started again, should only it be stopped */
	proc_exit(1);
}

void
highwater_register_worker(void)
{
	worker_register("snowflake high-water mark", "highwater_worker_main");
}
