/*
 * mark_page.c
 *	  The page in WAL that holds the high-water marks: reading and changing it.
 *
 * An id may be issued only while its tick is before the mark of its node, and
 * a moved mark is published in shared memory only when its WAL record is
 * flushed.  So in WAL the record of a mark comes before every row that carries
 * an id below that mark: a server that has the row, by whatever kind of
 * recovery, has the mark.
 *
 * The page is block 0 of a relation file in the global tablespace that no
 * catalog names.  The page is read and written through shared buffers, changed
 * under the buffer's exclusive lock, and logged whole with PostgreSQL's own
 * record for a full page: 369 bytes of WAL with one node, 24 more for each
 * other node.  So redo, base backups, standbys and pg_rewind carry the page
 * without this library.  Any process may move the mark at any time: the page
 * keeps the larger mark, and each process publishes a mark that it has
 * flushed.
 *
 * A page that does not verify is never overwritten.
 *
 * Callers call the functions here only after recovery has ended, in a
 * transaction, and outside of critical sections.
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_tablespace_d.h"
#include "compat.h"
#include "id_clock.h"
#include "mark_page.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/smgr.h"

/*
 * The relation file's number, global/8947.  PostgreSQL keeps 8000 .. 9999 for
 * patches in development: no released catalog has such an OID, and new
 * relation files get only larger numbers.
 */
#define MARK_RELFILENUMBER 8947
#define MARK_FILE "global/8947"

#define MARK_MAGIC 0x534E464CU
#define MARK_VERSION 1

/*
 * The contents lie on disk and in WAL, so no field may move or change its
 * width.  The structs have no padding: an assignment may leave the bytes of
 * padding unset, and the checksum would cover them.
 */
#define ASSERT_STORED_AT(type, field, offset, width) \
	StaticAssertDecl(offsetof(type, field) == (offset) && \
					 sizeof(((type *) NULL)->field) == (width), \
					 #type "." #field " has a fixed place in the mark's page")

ASSERT_STORED_AT(Layout, tick_bits, 0, 4);
ASSERT_STORED_AT(Layout, datacenter_bits, 4, 4);
ASSERT_STORED_AT(Layout, worker_bits, 8, 4);
ASSERT_STORED_AT(Layout, sequence_bits, 12, 4);
ASSERT_STORED_AT(Layout, tick_us, 16, 8);
ASSERT_STORED_AT(Layout, epoch, 24, 8);
StaticAssertDecl(sizeof(Layout) == 32, "Layout has no padding");

ASSERT_STORED_AT(Lease, holder, 0, 76);
ASSERT_STORED_AT(Lease, timeline, 76, 4);
ASSERT_STORED_AT(Lease, datacenter_id, 80, 4);
ASSERT_STORED_AT(Lease, worker_id, 84, 4);
ASSERT_STORED_AT(Lease, incarnation, 88, 8);
ASSERT_STORED_AT(Lease, next_incarnation, 96, 8);
ASSERT_STORED_AT(Lease, position, 104, 8);
ASSERT_STORED_AT(Lease, ends_us, 112, 8);
ASSERT_STORED_AT(Lease, fence, 120, 8);
ASSERT_STORED_AT(Lease, registry, 128, 8);
StaticAssertDecl(sizeof(Lease) == 136, "Lease has no padding");

ASSERT_STORED_AT(MarkMover, datacenter_id, 0, 4);
ASSERT_STORED_AT(MarkMover, worker_id, 4, 4);
ASSERT_STORED_AT(MarkMover, holder, 8, 8);
ASSERT_STORED_AT(MarkMover, elsewhere_until, 16, 8);
ASSERT_STORED_AT(MarkMover, location, 24, 48);
StaticAssertDecl(sizeof(MarkMover) == 72, "MarkMover has no padding");

ASSERT_STORED_AT(MarkEntry, datacenter_id, 0, 4);
ASSERT_STORED_AT(MarkEntry, worker_id, 4, 4);
ASSERT_STORED_AT(MarkEntry, mark, 8, 8);
ASSERT_STORED_AT(MarkEntry, lead_us, 16, 8);
StaticAssertDecl(sizeof(MarkEntry) == 24, "MarkEntry has no padding");

ASSERT_STORED_AT(MarkContents, magic, 0, 4);
ASSERT_STORED_AT(MarkContents, version, 4, 4);
ASSERT_STORED_AT(MarkContents, checksum, 8, 4);
ASSERT_STORED_AT(MarkContents, entry_count, 12, 4);
ASSERT_STORED_AT(MarkContents, layout, 16, sizeof(Layout));
ASSERT_STORED_AT(MarkContents, system_identifier, 48, 8);
ASSERT_STORED_AT(MarkContents, floor, 56, 8);
ASSERT_STORED_AT(MarkContents, lease, 64, sizeof(Lease));
ASSERT_STORED_AT(MarkContents, mover, 200, sizeof(MarkMover));
ASSERT_STORED_AT(MarkContents, entries, 272, 16 * sizeof(MarkEntry));
StaticAssertDecl(sizeof(MarkContents) == 656, "MarkContents has no padding");
StaticAssertDecl(sizeof(MarkContents) + MAXALIGN(SizeOfPageHeaderData) <= 1024,
				 "the mark's page fits the smallest block");

/* What a change of the page depends on, read under one lock. */
typedef struct NodeState
{
	uint64		generation;
	int			datacenter_id;
	int			worker_id;		/* WORKER_ID_UNSET: there is no node yet */
	Lease		lease;
	int64		reach;			/* the largest mark that the lease allows */
	int64		mark;			/* the published mark */
	int64		mark_lead_us;
	int64		floor;
	TimestampTz elsewhere_until;
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

/*
 * Computes the checksum of contents.  The caller has checked that entry_count
 * is in range.
 */
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

/* Makes contents without an entry, in the configured layout. */
static void
set_empty(MarkContents *contents)
{
	memset(contents, 0, sizeof(*contents));
	contents->magic = MARK_MAGIC;
	contents->version = MARK_VERSION;
	contents->layout = *node_layout();
	contents->system_identifier = GetSystemIdentifier();
	contents->lease.worker_id = WORKER_ID_UNSET;
	contents->checksum = checksum_of(contents);
}

/* Copies contents to a page whose header is initialized. */
static void
put_contents(Page page, const MarkContents *contents)
{
	Size		size = contents_size(contents->entry_count);

	memcpy(PageGetContents(page), contents, size);

	/* WAL leaves out the bytes between pd_lower and pd_upper. */
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

/* Raises ERROR XX001: the page does not verify.  Translates "detail". */
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
 * Copies and verifies a page's contents.  A page of zeros is damage: with
 * zero_damaged_pages on, PostgreSQL returns zeros for a damaged page, and a
 * server that took the zeros for a fresh page would forget its marks.
 *
 * Raises ERROR XX001 if the page does not verify, 0A000 if the page is of a
 * newer version.  The transaction's abort releases the page's lock and pin.
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

/* Error callback: adds a context and a hint to PostgreSQL's own errors. */
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

/* Does the file exist, with its block? */
static bool
has_page(void)
{
	SMgrRelation reln = smgropen(mark_locator, INVALID_PROC_NUMBER);

	return smgrexists(reln, MAIN_FORKNUM) &&
		smgrnblocks(reln, MAIN_FORKNUM) > 0;
}

/*
 * Creates the file with a block that has no entries.  Syncs file and block
 * before the page is used, so that a crash of the machine does not leave a
 * block of zeros.
 */
static void
create_file(void)
{
	SMgrRelation reln = smgropen(mark_locator, INVALID_PROC_NUMBER);
	PGIOAlignedBlock block;
	MarkContents contents;

	set_empty(&contents);
	PageInit((Page) block.data, BLCKSZ, 0);
	put_contents((Page) block.data, &contents);
	PageSetChecksum((Page) block.data, 0);

	/* isRedo = true: after a crash the file may exist without its block. */
	smgrcreate(reln, MAIN_FORKNUM, true);
	smgrextend(reln, MAIN_FORKNUM, 0, block.data, false);
	smgrimmedsync(reln, MAIN_FORKNUM);
}

/*
 * Creates the block unless it exists.  The lock that PostgreSQL takes to
 * extend a relation keeps two processes from creating the block at once: the
 * second would overwrite on disk what the first has in its buffer.
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
		create_file();
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
 * Reads the page.  Returns false if the page has no entry: the page does not
 * exist, was created but not logged before a crash, or holds only the
 * incarnation of a first claim.  Raises ERROR XX001 or 0A000 if the page
 * cannot be used, or PostgreSQL's own error.
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
	contents->lease.worker_id = WORKER_ID_UNSET;
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

/* Has another cluster written the page? */
bool
mark_is_foreign(const MarkContents *contents)
{
	return contents->system_identifier != GetSystemIdentifier();
}

/* Returns the entry of a node; NULL if there is none. */
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
 * Did a server at another location move a mark last?  Such a server differs
 * from this one in both its location and its holder: a reboot of this machine
 * changes only the holder, and a new host name changes only the location.
 */
bool
mark_is_moved_elsewhere(const MarkContents *contents)
{
	const MarkMover *mover = &contents->mover;

	return mover->location[0] != '\0' &&
		strcmp(mover->location, host_location) != 0 &&
		mover->holder != host_holder_hash();
}

/* Returns a tick that no id of any node has reached. */
int64
mark_largest(const MarkContents *contents)
{
	int64		largest = contents->floor;

	for (uint32 i = 0; i < contents->entry_count; i++)
		largest = Max(largest, contents->entries[i].mark);
	return largest;
}

/*
 * Finds or adds a node's entry.  If the page is full, the new entry replaces
 * the entry with the smallest mark, and the floor rises to that mark.
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
	state->floor = shared->start.floor;
	state->elsewhere_until = shared->start.elsewhere_until;
	LWLockRelease(&shared->lock);

	state->reach = node_is_leased() ?
		lease_reach(&state->lease, node_layout(), now, boottime_us) :
		PG_INT64_MAX;
}

/* Records this server as the mover of a node's mark. */
static void
set_mover(MarkContents *contents, const NodeState *state)
{
	MarkMover  *mover = &contents->mover;

	memset(mover, 0, sizeof(*mover));
	mover->datacenter_id = state->datacenter_id;
	mover->worker_id = state->worker_id;
	mover->holder = host_holder_hash();
	mover->elsewhere_until = state->elsewhere_until;
	strlcpy(mover->location, host_location, HOST_LOCATION_SIZE);
}

/*
 * Writes new contents to the page, logs the page and releases it.  Returns the
 * position up to which the caller has to flush WAL.
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
 * Publishes a flushed mark, unless the node has changed meanwhile.  Cuts the
 * mark to what the present lease allows, because an earlier lease may have
 * allowed a larger mark in the entry.
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
 * Stores the node's mark: "mark", or the largest mark that the lease allows if
 * that is smaller.  The entry never falls behind the published mark.
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
 * Prepares contents for this cluster to write, in the configured layout.  The
 * page's floor, which is the mark of nodes without an entry, rises to the
 * floor that mark_start.c has found.  On a page of another cluster the marks of the
 * entries rise to that floor, too, because mark_start.c lets no node's ids begin
 * before it.
 */
static void
prepare_contents(MarkContents *contents, int64 floor)
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
 * Moves the node's mark past the tick "past": to "mark", or to the largest
 * mark that the lease allows if that is smaller.  The caller has put "mark"
 * ahead of an id that was issued or is about to be issued; "lead_us" is the
 * distance.  The same record makes the lease durable.  If the page already has
 * a mark past the tick, nothing is written.
 *
 * If "past" is MARK_KEEP, makes the lease durable, and the mark that is
 * published already; the server need not have a worker id yet.
 *
 * Costs one flush of WAL at most.  Returns false if the lease does not allow a
 * mark past the tick.  The caller has to read the mark again, because the node
 * may have changed meanwhile.  Raises the errors of mark_read().
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
	MarkEntry  *entry = NULL;	/* remains NULL without a worker id */
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
	 * Read the lease under the page's lock, so that an older lease never
	 * overwrites a newer lease.
	 */
	read_node_state(&state);
	if (past != MARK_KEEP &&
		(state.worker_id == WORKER_ID_UNSET || state.reach <= past))
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}

	prepare_contents(&contents, state.floor);
	if (state.worker_id != WORKER_ID_UNSET)
		entry = find_or_add_entry(&contents, state.datacenter_id,
								  state.worker_id);

	/*
	 * The LSN of a file copied from another cluster may be beyond the end of
	 * this cluster's WAL, where XLogFlush() would fail.  So log such a page
	 * anew.
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
