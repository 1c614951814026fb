/*
 * mark.c
 *	  The page in WAL that holds the high-water marks: reading and changing it.
 *
 * An id may be issued only while its tick is before the mark of its node, and
 * a mark is published in shared memory only when its WAL record is flushed.
 * So in WAL the record of a mark comes before every row that carries an id
 * below it: whoever has the row, by whatever kind of recovery, has the mark.
 *
 * The page is block 0 of a relation file in the global tablespace that no
 * catalog names.  It is read and written through shared buffers, changed
 * under the buffer's exclusive lock, and logged whole with PostgreSQL's own
 * record for a full page.  So redo, base backups, standbys and pg_rewind
 * carry it without this library.  Two writers need no election: the page has
 * the larger mark, and each publishes what it has flushed.
 *
 * A page that does not verify is never overwritten.
 *
 * The functions here are called only after recovery has ended, in a
 * transaction, and outside of critical sections.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_tablespace_d.h"
#include "clock.h"
#include "compat.h"
#include "mark.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/smgr.h"

/*
 * The relation file's number, global/8947.  8000 .. 9999 are for patches in
 * development: no released catalog has such an OID, and PostgreSQL gives new
 * relation files only larger numbers.
 */
#define MARK_RELFILENUMBER 8947
#define MARK_FILE "global/8947"

#define MARK_MAGIC 0x534E464CU
#define MARK_VERSION 1

/* The contents lie on disk and in WAL: their layout must not change. */
StaticAssertDecl(sizeof(Layout) == 32 &&
				 offsetof(MarkContents, lease) == 64 &&
				 sizeof(Lease) == 128 &&
				 offsetof(MarkContents, entries) == 192 &&
				 sizeof(MarkEntry) == 24,
				 "the contents of the mark's page have a fixed layout");
StaticAssertDecl(sizeof(MarkContents) + MAXALIGN(SizeOfPageHeaderData) <= 1024,
				 "the mark's page fits the smallest block");

/* What a change of the page depends on, read together. */
typedef struct NodeState
{
	uint64		generation;
	int			datacenter_id;
	int			worker_id;		/* LEASE_NONE: there is no node yet */
	Lease		lease;
	int64		limit;			/* the lease lets the mark go so far */
	int64		mark;			/* as it is published */
	int64		mark_lead_us;
	int64		floor;
} NodeState;

static RelFileLocator
mark_locator(void)
{
	RelFileLocator locator = {
		.spcOid = GLOBALTABLESPACE_OID,
		.dbOid = InvalidOid,
		.relNumber = MARK_RELFILENUMBER
	};

	return locator;
}

static Size
contents_size(uint32 entry_count)
{
	return offsetof(MarkContents, entries) + entry_count * sizeof(MarkEntry);
}

/* The checksum of contents whose entry_count is in range. */
static pg_crc32c
checksum_of(const MarkContents *contents)
{
	const char *bytes = (const char *) contents;
	const pg_crc32c none = 0;
	Size		after = offsetof(MarkContents, checksum) + sizeof(none);
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, bytes, offsetof(MarkContents, checksum));
	COMP_CRC32C(crc, &none, sizeof(none));
	COMP_CRC32C(crc, bytes + after,
				contents_size(contents->entry_count) - after);
	FIN_CRC32C(crc);
	return crc;
}

/* Contents without an entry, in the configured layout. */
static void
set_empty(MarkContents *contents)
{
	memset(contents, 0, sizeof(*contents));
	contents->magic = MARK_MAGIC;
	contents->version = MARK_VERSION;
	contents->layout = *node_layout();
	contents->system_identifier = GetSystemIdentifier();
	contents->lease.worker_id = LEASE_NONE;
	contents->checksum = checksum_of(contents);
}

/* Puts contents on a page whose header is initialized. */
static void
put_contents(Page page, const MarkContents *contents)
{
	Size		size = contents_size(contents->entry_count);

	memcpy(PageGetContents(page), contents, size);

	/* What lies between pd_lower and pd_upper is left out of WAL. */
	((PageHeader) page)->pd_lower =
		(LocationIndex) (PageGetContents(page) + size - (char *) page);
}

/*
 * Copies a page's contents.  A page of zeros is damage, not a fresh page: or
 * zero_damaged_pages would make the server forget its marks.
 */
static MarkState
get_contents(Page page, MarkContents *contents, const char **detail)
{
	memset(contents, 0, sizeof(*contents));
	if (PageIsNew(page))
	{
		*detail = gettext_noop("The page is empty.");
		return MARK_DAMAGED;
	}
	memcpy(contents, PageGetContents(page), sizeof(*contents));
	if (contents->magic != MARK_MAGIC)
	{
		*detail = gettext_noop("The page does not begin as it should.");
		return MARK_DAMAGED;
	}
	if (contents->version > MARK_VERSION)
	{
		*detail = gettext_noop("Its version is larger than any that this library knows.");
		return MARK_TOO_NEW;
	}
	if (contents->entry_count > MARK_ENTRIES_MAX ||
		contents->checksum != checksum_of(contents))
	{
		*detail = gettext_noop("Its checksum does not match its contents.");
		return MARK_DAMAGED;
	}
	return MARK_SOUND;
}

/* For ereport(): what to do about a damaged page. */
static int
hint_at_damage(void)
{
	return errhint("Make sure that the clock is past the newest id in the data, or choose a \"snowflake.worker_id\" that no server has used. Then stop the server, move file \"%s\" in the data directory away and start the server.",
				   MARK_FILE);
}

/* Raises the error of a page that cannot be used: XX001 or 0A000. */
void
mark_refuse(MarkState state, const char *detail)
{
	if (state == MARK_TOO_NEW)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("snowflake ids cannot be issued because the page of the high-water mark is of a newer version"),
				 errdetail("File \"%s\" in the data directory: %s",
						   MARK_FILE, _(detail)),
				 errhint("Install the version of the extension that wrote the file, and restart the server.")));
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("snowflake ids cannot be issued because the page of the high-water mark is damaged"),
			 errdetail("File \"%s\" in the data directory: %s",
					   MARK_FILE, _(detail)),
			 hint_at_damage()));
}

/* Adds to PostgreSQL's own errors what they mean here. */
static void
add_hint(void *arg)
{
	(void) arg;
	if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
		return;
	errcontext("accessing the high-water mark of snowflake ids");
	if (geterrcode() == ERRCODE_DATA_CORRUPTED)
		hint_at_damage();
	else
		errhint("No snowflake id is issued until file \"%s\" in the data directory can be read and written.",
				MARK_FILE);
}

/* Is there a block to read? */
static bool
has_page(void)
{
	SMgrRelation reln = smgropen(mark_locator(), INVALID_PROC_NUMBER);

	return smgrexists(reln, MAIN_FORKNUM) &&
		smgrnblocks(reln, MAIN_FORKNUM) > 0;
}

/*
 * Makes the file and its block, with contents that say nothing yet.  Both are
 * on disk before the page is used, so that a crash of the machine does not
 * leave a block of zeros.
 */
static void
extend_file(void)
{
	SMgrRelation reln = smgropen(mark_locator(), INVALID_PROC_NUMBER);
	PGIOAlignedBlock block;
	MarkContents contents;

	set_empty(&contents);
	PageInit((Page) block.data, BLCKSZ, 0);
	put_contents((Page) block.data, &contents);
	PageSetChecksum((Page) block.data, 0);

	/* The file may be there without its block, after a crash. */
	smgrcreate(reln, MAIN_FORKNUM, true);
	smgrextend(reln, MAIN_FORKNUM, 0, block.data, false);
	smgrimmedsync(reln, MAIN_FORKNUM);
}

/*
 * Sees to it that there is a block.  PostgreSQL's lock for the extension of a
 * relation keeps two processes from doing so at once: the later one would
 * overwrite the block on disk under the first one's buffer.
 */
static void
ensure_page(void)
{
	LOCKTAG		tag;

	if (has_page())
		return;

	SET_LOCKTAG_RELATION_EXTEND(tag, InvalidOid, MARK_RELFILENUMBER);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	if (!has_page())
		extend_file();
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Reads the page into a buffer, pinned and locked.  Without a page a reader
 * gets InvalidBuffer, and a writer makes one.  PostgreSQL's own errors, as for
 * a page that fails its checks, get our hint.
 */
static Buffer
lock_page(int lock_mode)
{
	ErrorContextCallback errcallback = {
		.callback = add_hint,
		.previous = error_context_stack
	};
	Buffer		buffer = InvalidBuffer;

	Assert(!RecoveryInProgress());

	error_context_stack = &errcallback;
	if (lock_mode == BUFFER_LOCK_EXCLUSIVE)
		ensure_page();
	if (has_page())
	{
		buffer = ReadBufferWithoutRelcache(mark_locator(), MAIN_FORKNUM, 0,
										   RBM_NORMAL, NULL, true);
		LockBuffer(buffer, lock_mode);
	}
	error_context_stack = errcallback.previous;
	return buffer;
}

/* Reads the page.  "detail" says, untranslated, why it cannot be used. */
MarkState
mark_read(MarkContents *contents, const char **detail)
{
	Buffer		buffer = lock_page(BUFFER_LOCK_SHARE);
	MarkState	state;

	if (!BufferIsValid(buffer))
	{
		memset(contents, 0, sizeof(*contents));
		return MARK_MISSING;
	}
	state = get_contents(BufferGetPage(buffer), contents, detail);
	UnlockReleaseBuffer(buffer);
	return state;
}

/* Was the page written by another cluster? */
bool
mark_is_foreign(const MarkContents *contents)
{
	return contents->system_identifier != GetSystemIdentifier();
}

/* The entry of a node; NULL if there is none. */
const MarkEntry *
mark_entry(const MarkContents *contents, int datacenter_id, int worker_id)
{
	for (uint32 i = 0; i < contents->entry_count; i++)
	{
		const MarkEntry *entry = &contents->entries[i];

		if (entry->datacenter_id == datacenter_id &&
			entry->worker_id == worker_id)
			return entry;
	}
	return NULL;
}

/* A tick that no id of any node has reached. */
int64
mark_largest(const MarkContents *contents)
{
	int64		largest = contents->floor;

	for (uint32 i = 0; i < contents->entry_count; i++)
		largest = Max(largest, contents->entries[i].mark);
	return largest;
}

/*
 * Finds a node's entry, or makes one.  Where there is no room, the smallest
 * mark is given up: nodes without an entry begin after the floor.
 */
static MarkEntry *
find_or_add_entry(MarkContents *contents, int datacenter_id, int worker_id)
{
	MarkEntry  *entry =
		unconstify(MarkEntry *,
				   mark_entry(contents, datacenter_id, worker_id));

	if (entry != NULL)
		return entry;

	if (contents->entry_count < MARK_ENTRIES_MAX)
		entry = &contents->entries[contents->entry_count++];
	else
	{
		entry = &contents->entries[0];
		for (int i = 1; i < MARK_ENTRIES_MAX; i++)
		{
			if (contents->entries[i].mark < entry->mark)
				entry = &contents->entries[i];
		}
		contents->floor = Max(contents->floor, entry->mark);
	}
	entry->datacenter_id = datacenter_id;
	entry->worker_id = worker_id;
	entry->mark = 0;
	entry->lead_us = 0;
	return entry;
}

/* Reads what a change of the page depends on. */
static void
read_node_state(NodeState *state)
{
	int64		boottime_us = clock_boottime_us();
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(&shared->lock, LW_SHARED);
	state->generation = shared->node_generation;
	state->datacenter_id = node_datacenter_id;
	state->worker_id = shmem_worker_id();
	state->lease = shared->lease;
	state->mark = shmem_mark();
	state->mark_lead_us = shared->mark_lead_us;
	state->floor = shared->beginning.floor;
	LWLockRelease(&shared->lock);

	state->limit = node_is_leased() ?
		lease_limit(&state->lease, node_layout(), now, boottime_us) :
		PG_INT64_MAX;
}

/*
 * Logs the page with new contents, and releases it.  Returns the position
 * that WAL has to be flushed to.
 */
static XLogRecPtr
log_page(Buffer buffer, MarkContents *contents)
{
	Page		page = BufferGetPage(buffer);
	XLogRecPtr	lsn;

	contents->system_identifier = GetSystemIdentifier();
	contents->checksum = checksum_of(contents);

	START_CRIT_SECTION();
	put_contents(page, contents);
	MarkBufferDirty(buffer);
	lsn = log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();

	UnlockReleaseBuffer(buffer);
	return lsn;
}

/*
 * Publishes a mark that is flushed, unless the node has changed meanwhile.
 * The entry's mark may be of an earlier lease that let it go further.
 */
static void
publish(const NodeState *state, const MarkEntry *entry, bool is_written)
{
	int64		mark = Min(entry->mark, state->limit);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (is_written)
		shared->counts.mark_writes++;
	if (shared->node_generation == state->generation && mark > shmem_mark())
	{
		shared->mark_lead_us = entry->lead_us;
		pg_atomic_write_u64(&shared->mark, (uint64) mark);
	}
	LWLockRelease(&shared->lock);
}

/*
 * Puts the node's mark on the page, unless a mark past "past" is there
 * already, and the lease with it; flushes and publishes.  False if a lease
 * does not let the mark move so far: nothing has changed then.
 */
static bool
change_page(int64 past, int64 mark, int64 lead_us)
{
	Buffer		buffer = lock_page(BUFFER_LOCK_EXCLUSIVE);
	Page		page = BufferGetPage(buffer);
	XLogRecPtr	lsn = PageGetLSN(page);
	MarkContents contents;
	const char *detail;
	MarkState	found = get_contents(page, &contents, &detail);
	NodeState	state;
	MarkEntry  *entry;
	bool		is_written;

	if (found != MARK_SOUND)
	{
		UnlockReleaseBuffer(buffer);
		mark_refuse(found, detail);
	}

	/* Read under the page's lock, so the newest lease is the last written. */
	read_node_state(&state);
	if (state.worker_id == LEASE_NONE || state.limit <= past)
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}

	if (!layout_equal(node_layout(), &contents.layout))
		set_empty(&contents);
	contents.floor = Max(contents.floor, state.floor);
	entry = find_or_add_entry(&contents, state.datacenter_id,
							  state.worker_id);

	/* A file that was copied in may have a position of another WAL. */
	is_written = past < 0 || entry->mark <= past ||
		lsn > GetXLogInsertRecPtr();
	if (is_written)
	{
		mark = Min(mark, state.limit);
		if (mark < state.mark)
		{
			mark = state.mark;
			lead_us = state.mark_lead_us;
		}
		if (mark > entry->mark)
		{
			entry->mark = mark;
			entry->lead_us = lead_us;
		}
		contents.lease = state.lease;
		lsn = log_page(buffer, &contents);
	}
	else
		UnlockReleaseBuffer(buffer);

	XLogFlush(lsn);
	publish(&state, entry, is_written);
	return true;
}

/*
 * Moves the node's mark past a tick, to "mark" or as far towards it as the
 * lease allows; it was put ahead of an id by lead_us.  Costs one flush of WAL
 * at most.  False if the lease does not let the mark move past the tick.  The
 * caller reads the mark again: the node may have changed meanwhile.
 *
 * ERROR XX001 or 0A000 for a page that cannot be used, and PostgreSQL's own
 * errors for a file that cannot be read or made.
 */
bool
mark_move(int64 past, int64 mark, int64 lead_us)
{
	Assert(past >= 0 && mark > past);
	return change_page(past, mark, lead_us);
}

/*
 * Makes the lease durable as it is now, with the mark where it is.  Errors as
 * mark_move().
 */
void
mark_save_lease(void)
{
	(void) change_page(-1, 0, 0);
}
