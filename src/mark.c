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

#include <sys/stat.h>

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
				 sizeof(Lease) == 136 &&
				 sizeof(MarkMover) == 72 &&
				 offsetof(MarkContents, entries) == 272 &&
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
	int64		reach;			/* how far the lease lets the mark go */
	int64		mark;			/* as it is published */
	int64		mark_lead_us;
	int64		floor;
	TimestampTz elsewhere_at;
} NodeState;

static const RelFileLocator mark_locator = {
	.spcOid = GLOBALTABLESPACE_OID,
	.dbOid = InvalidOid,
	.relNumber = MARK_RELFILENUMBER
};

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

/* For ereport(): what to do about a damaged page. */
static int
hint_at_damage(void)
{
	return errhint("Make sure that the clock is past the newest id in the data, or choose a \"snowflake.worker_id\" that no server has used. Then stop the server, move file \"%s\" in the data directory away and start the server.",
				   MARK_FILE);
}

/* ERROR XX001: the page does not verify.  "detail" is translated here. */
static void
refuse_damaged(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("snowflake ids cannot be issued because the page of the high-water mark is damaged"),
			 errdetail("File \"%s\" in the data directory: %s",
					   MARK_FILE, _(detail)),
			 hint_at_damage()));
}

/*
 * Copies a page's contents.  A page of zeros is damage: with
 * zero_damaged_pages on, PostgreSQL returns zeros for a damaged page; taken as
 * a fresh page, they would make the server forget its marks.
 *
 * ERROR XX001 if the page does not verify, 0A000 if it is of a newer version.
 * The abort releases the page.
 */
static void
get_contents(Page page, MarkContents *contents)
{
	if (PageIsNew(page))
		refuse_damaged(gettext_noop("The page is empty."));
	memcpy(contents, PageGetContents(page), sizeof(*contents));
	if (contents->magic != MARK_MAGIC)
		refuse_damaged(gettext_noop("It does not begin with the magic number of a mark's page."));
	if (contents->version > MARK_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("snowflake ids cannot be issued because the page of the high-water mark is of a newer version"),
				 errdetail("File \"%s\" in the data directory is of version %u, and this library knows version %d.",
						   MARK_FILE, contents->version, MARK_VERSION),
				 errhint("Install the version of the extension that wrote the file, and restart the server.")));
	if (contents->entry_count > MARK_ENTRIES_MAX ||
		contents->checksum != checksum_of(contents))
		refuse_damaged(gettext_noop("Its checksum does not match its contents."));
}

/* Error callback: adds our context and hint to PostgreSQL's own errors. */
static void
add_hint(void *arg)
{
	int			code = geterrcode();

	(void) arg;
	if (code == ERRCODE_DATA_CORRUPTED)
		hint_at_damage();
	else if (code == ERRCODE_INSUFFICIENT_PRIVILEGE ||
			 ERRCODE_TO_CATEGORY(code) == ERRCODE_SYSTEM_ERROR ||
			 ERRCODE_TO_CATEGORY(code) == ERRCODE_INSUFFICIENT_RESOURCES)
		errhint("No snowflake id is issued until file \"%s\" in the data directory can be read and written.",
				MARK_FILE);
	else
		return;
	errcontext("accessing the high-water mark of snowflake ids");
}

/* Is there a block to read? */
static bool
has_page(void)
{
	SMgrRelation reln = smgropen(mark_locator, INVALID_PROC_NUMBER);

	return smgrexists(reln, MAIN_FORKNUM) &&
		smgrnblocks(reln, MAIN_FORKNUM) > 0;
}

/*
 * Makes the file and its block, without entries.  Both are on disk before the
 * page is used, so that a crash of the machine does not leave a block of
 * zeros.
 */
static void
extend_file(void)
{
	SMgrRelation reln = smgropen(mark_locator, INVALID_PROC_NUMBER);
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
 * Sees to it that there is a block.  Two processes must not make it at once:
 * the second would overwrite on disk what the first has in its buffer.
 * PostgreSQL's lock for the extension of a relation prevents that.
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

/* Reads the page into a buffer, pinned and locked. */
static Buffer
lock_page(int lock_mode)
{
	Buffer		buffer = ReadBufferWithoutRelcache(mark_locator, MAIN_FORKNUM,
												   0, RBM_NORMAL, NULL, true);

	LockBuffer(buffer, lock_mode);
	return buffer;
}

/*
 * Reads the page; false if it has no entry: there is no page, or one that was
 * made but not logged before a crash, or that has only what was asked of a
 * registry, as its lease.  ERROR XX001 or 0A000 if it cannot
 * be used, or PostgreSQL's own error.
 */
bool
mark_read(MarkContents *contents)
{
	ErrorContextCallback errcallback = {
		.callback = add_hint,
		.previous = error_context_stack
	};
	struct stat file;

	Assert(!RecoveryInProgress());

	memset(contents, 0, sizeof(*contents));
	contents->lease.worker_id = LEASE_NONE;
	error_context_stack = &errcallback;
	if (has_page())
	{
		Buffer		buffer = lock_page(BUFFER_LOCK_SHARE);

		get_contents(BufferGetPage(buffer), contents);
		UnlockReleaseBuffer(buffer);
	}
	else if (stat(MARK_FILE, &file) == 0 && file.st_size > 0)
		refuse_damaged(gettext_noop("The file is shorter than a page."));
	error_context_stack = errcallback.previous;
	return contents->entry_count > 0;
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

/*
 * Was a mark last moved in another place than this server's?  A place is
 * another one if both its name and its holder differ: a holder changes when the
 * machine is booted, and the name when the host is renamed.
 */
bool
mark_is_moved_elsewhere(const MarkContents *contents)
{
	const MarkMover *mover = &contents->mover;

	return mover->place[0] != '\0' &&
		strcmp(mover->place, host_place) != 0 &&
		mover->holder != host_holder_hash();
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
 * Finds a node's entry, or makes one.  If the page is full, the entry with the
 * smallest mark makes room, and the floor rises to that mark.
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
	state->elsewhere_at = shared->beginning.elsewhere_at;
	LWLockRelease(&shared->lock);

	state->reach = node_is_leased() ?
		lease_reach(&state->lease, node_layout(), now, boottime_us) :
		PG_INT64_MAX;
}

/* This server as the one that moves a node's mark. */
static void
set_mover(MarkContents *contents, const NodeState *state)
{
	MarkMover  *mover = &contents->mover;

	memset(mover, 0, sizeof(*mover));
	mover->datacenter_id = state->datacenter_id;
	mover->worker_id = state->worker_id;
	mover->holder = host_holder_hash();
	mover->elsewhere_at = state->elsewhere_at;
	strlcpy(mover->place, host_place, HOST_PLACE_SIZE);
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
	backend_slots[MyProcNumber].slot.counters.mark_writes++;
	return lsn;
}

/*
 * Publishes a mark that is flushed, unless the node has changed meanwhile.
 * The mark is cut to what the present lease allows: an earlier lease may have
 * let the entry go further.
 */
static void
publish(const NodeState *state, const MarkEntry *entry)
{
	int64		mark = Min(entry->mark, state->reach);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (shared->node_generation == state->generation && mark > shmem_mark())
	{
		shared->mark_lead_us = entry->lead_us;
		pg_atomic_write_u64(&shared->mark, (uint64) mark);
	}
	LWLockRelease(&shared->lock);
}

/*
 * Enters the node's mark: "mark", or as far towards it as the lease allows.
 * The entry must not be behind what is published.
 */
static void
set_mark(MarkEntry *entry, const NodeState *state, int64 mark, int64 lead_us)
{
	mark = Min(mark, state->reach);
	if (mark < state->mark)
	{
		mark = state->mark;
		lead_us = state->mark_lead_us;
	}
	if (mark > entry->mark)
	{
		entry->mark = mark;
		entry->lead_us = lead_us;
	}
}

/*
 * What the page has to be before this cluster writes it: of the configured
 * layout, and with no mark below what start.c has found.
 */
static void
adopt(MarkContents *contents, int64 floor)
{
	if (!layout_equal(node_layout(), &contents->layout))
		set_empty(contents);
	contents->floor = Max(contents->floor, floor);
	if (mark_is_foreign(contents))
	{
		for (uint32 i = 0; i < contents->entry_count; i++)
			contents->entries[i].mark = Max(contents->entries[i].mark, floor);
	}
}

/*
 * Moves the node's mark past a tick, to "mark" or as far towards it as the
 * lease allows; it was put ahead of an id by lead_us.  If a mark past the tick
 * is on the page already, nothing is written.  Makes the lease durable in the
 * same record.  With MARK_KEEP for "past" that is all: the mark stays, and there
 * need not be a worker id yet.
 *
 * Costs one flush of WAL at most.  False if the lease does not let the mark
 * move past the tick.  The caller reads the mark again: the node may have
 * changed meanwhile.  Errors as mark_read().
 */
bool
mark_move(int64 past, int64 mark, int64 lead_us)
{
	ErrorContextCallback errcallback = {
		.callback = add_hint,
		.previous = error_context_stack
	};
	MarkContents contents;
	NodeState	state;
	MarkEntry  *entry = NULL;	/* without a worker id there is none */
	Buffer		buffer;
	XLogRecPtr	lsn;

	Assert(!RecoveryInProgress());

	error_context_stack = &errcallback;
	ensure_page();
	buffer = lock_page(BUFFER_LOCK_EXCLUSIVE);
	lsn = PageGetLSN(BufferGetPage(buffer));
	get_contents(BufferGetPage(buffer), &contents);
	error_context_stack = errcallback.previous;

	/*
	 * The lease is read under the page's lock, so an older lease never
	 * overwrites a newer one.
	 */
	read_node_state(&state);
	if (past != MARK_KEEP &&
		(state.worker_id == LEASE_NONE || state.reach <= past))
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}

	adopt(&contents, state.floor);
	if (state.worker_id != LEASE_NONE)
		entry = find_or_add_entry(&contents, state.datacenter_id,
								  state.worker_id);

	/*
	 * The LSN of a file copied from another cluster may be beyond our WAL;
	 * XLogFlush() could not reach it.
	 */
	if (past == MARK_KEEP || entry->mark <= past ||
		lsn > GetXLogInsertRecPtr())
	{
		if (entry != NULL)
		{
			set_mark(entry, &state, mark, lead_us);
			set_mover(&contents, &state);
		}
		contents.lease = state.lease;
		contents.lease.timeline = GetWALInsertionTimeLine();
		lsn = log_page(buffer, &contents);
	}
	else
		UnlockReleaseBuffer(buffer);

	XLogFlush(lsn);
	if (entry != NULL)
		publish(&state, entry);
	return true;
}
