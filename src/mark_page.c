/*
 * mark_page.c
 *	  The page in WAL that holds the high-water marks: reading and logging it.
 *
 * The page is block 0 of a relation file in the global tablespace that no
 * catalog names.  The page is read and written through shared buffers, changed
 * under the buffer's exclusive lock, and logged whole with PostgreSQL's own
 * record for a full page: 345 bytes of WAL with one node, 24 more for each
 * other node.  So redo, base backups, standbys and pg_rewind carry the page
 * without this library.
 *
 * A page that does not verify is never overwritten.
 *
 * Callers call the functions here in a transaction and outside of critical
 * sections.  During recovery they only read.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_tablespace_d.h"
#include "clock.h"
#include "compat.h"
#include "mark_page.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "storage/lock.h"

/*
 * The relation file's number, as in MARK_FILE.  PostgreSQL keeps 8000 .. 9999
 * for patches in development: no released catalog has such an OID, and new
 * relation files get only larger numbers.
 */
#define MARK_RELFILENUMBER 8947

/*
 * The file while it is written for the first time.  PostgreSQL's tools pass
 * over files that begin with pgsql_tmp.
 */
#define MARK_NEW_FILE "global/pgsql_tmp_snowflake"

/* How long to wait for the page's lock before the next attempt. */
#define PAGE_RETRY_US 1000

#define MARK_MAGIC 0x534E464CU
#define MARK_VERSION 1

/*
 * The contents lie on disk and in WAL, so no field may move or change its
 * width; t/mark_page.pl reads every field by its offset.  The structs have no
 * padding: an assignment may leave the bytes of padding unset, and the
 * checksum would cover them.
 */
StaticAssertDecl(sizeof(SnowflakeLayout) == 32 && sizeof(SnowflakeLease) ==
				 128 &&
				 sizeof(MarkLogger) == 64 && sizeof(MarkEntry) == 24,
				 "the structs on the mark's page have fixed sizes");
StaticAssertDecl(offsetof(MarkContents, checksum) == 8 &&
				 offsetof(MarkContents, entry_count) == 12 &&
				 offsetof(MarkContents, unused) == 14 &&
				 offsetof(MarkContents, layout) == 16 &&
				 offsetof(MarkContents, floor) == 48 &&
				 offsetof(MarkContents, lease) == 56 &&
				 offsetof(MarkContents, logger) == 184 &&
				 offsetof(MarkContents, entries) == 248 &&
				 sizeof(MarkContents) == 632,
				 "fields have fixed places on the mark's page");
StaticAssertDecl(sizeof(MarkContents) + MAXALIGN(SizeOfPageHeaderData) <= 1024,
				 "the mark's page fits the smallest block");

static const RelFileLocator mark_locator = {
	.spcOid = GLOBALTABLESPACE_OID,
	.dbOid = InvalidOid,
	.relNumber = MARK_RELFILENUMBER
};

static void mark_page_ensure(void);
static bool mark_page_exists(void);
static void mark_page_create_file(void);
static Buffer mark_page_read_buffer(int lock_mode);
static void mark_page_get_contents(Page page, MarkContents *contents);
static void mark_page_put_contents(Page page, const MarkContents *contents);
static void mark_page_refuse_damaged(const char *detail);
static void mark_page_add_hint(void *arg);
static bool mark_page_is_verified(const MarkContents *contents);
static pg_crc32c mark_page_checksum(const MarkContents *contents);
static Size mark_page_contents_size(int entry_count);

/*
 * Reads the page from its file, in the postmaster, before recovery.  Returns
 * false, and all contents are 0, if there is no sound page.
 */
bool
mark_page_peek(MarkContents *contents)
{
	PGIOAlignedBlock block;
	int			fd = OpenTransientFile(MARK_FILE, O_RDONLY | PG_BINARY);
	bool		is_sound = fd >= 0 && read(fd, block.data, BLCKSZ) == BLCKSZ;

	if (fd >= 0)
		(void) CloseTransientFile(fd);
	if (is_sound)
	{
		memcpy(contents, PageGetContents((Page) block.data),
			   sizeof(*contents));
		is_sound = contents->magic == MARK_MAGIC &&
			contents->version <= MARK_VERSION &&
			mark_page_is_verified(contents);
	}
	if (!is_sound)
		memset(contents, 0, sizeof(*contents));
	return is_sound;
}

/*
 * Reads the page.  Without a page all contents are 0, and there is no lease;
 * during recovery a page of zeros is none.  Raises ERROR XX001 or 0A000 if the
 * page cannot be used, or PostgreSQL's own error.
 */
void
mark_page_read(MarkContents *contents)
{
	ErrorContextCallback errcallback = {
		.callback = mark_page_add_hint,
		.previous = error_context_stack
	};

	Assert(IsTransactionState() && CritSectionCount == 0);

	memset(contents, 0, sizeof(*contents));
	contents->lease.worker_id = WORKER_ID_UNSET;
	error_context_stack = &errcallback;
	if (mark_page_exists())
	{
		Buffer		buffer = mark_page_read_buffer(BUFFER_LOCK_SHARE);

		mark_page_get_contents(BufferGetPage(buffer), contents);
		UnlockReleaseBuffer(buffer);
	}
	error_context_stack = errcallback.previous;
}

/*
 * Reads the page for a change, and creates it if there is none.  The page
 * remains locked until the caller releases the buffer.  Errors as
 * mark_page_read(), and ERROR 55000 while pg_upgrade makes a new cluster, into
 * which the DBA copies the old cluster's page.
 */
Buffer
mark_page_lock(MarkContents *contents)
{
	ErrorContextCallback errcallback = {
		.callback = mark_page_add_hint,
		.previous = error_context_stack
	};
	Buffer		buffer;

	Assert(IsTransactionState() && CritSectionCount == 0);
	Assert(!RecoveryInProgress());

	if (IsBinaryUpgrade)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("snowflake ids cannot be issued in binary upgrade mode"),
				 errhint("Start the server without the option \"-b\".")));
	error_context_stack = &errcallback;
	mark_page_ensure();
	buffer = mark_page_read_buffer(BUFFER_LOCK_EXCLUSIVE);
	mark_page_get_contents(BufferGetPage(buffer), contents);
	error_context_stack = errcallback.previous;
	return buffer;
}

/*
 * Writes new contents to the page and logs the page.  The caller has locked
 * the page, and releases it.
 */
void
mark_page_log(Buffer buffer, MarkContents *contents)
{
	contents->checksum = mark_page_checksum(contents);

	START_CRIT_SECTION();
	mark_page_put_contents(BufferGetPage(buffer), contents);
	MarkBufferDirty(buffer);
	log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();

	shmem_my_slot()->counters.mark_writes++;
}

/*
 * Creates the file unless it exists.  The lock that PostgreSQL takes to extend
 * a relation keeps two processes from creating the file at once: the second
 * would overwrite on disk what the first has in its buffer.
 */
static void
mark_page_ensure(void)
{
	LOCKTAG		tag;

	if (mark_page_exists())
		return;

	SET_LOCKTAG_RELATION_EXTEND(tag, InvalidOid, MARK_RELFILENUMBER);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	if (!mark_page_exists())
		mark_page_create_file();
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Is there a page?  A file that is shorter than the page is damage, unless
 * recovery is about to write the page.
 */
static bool
mark_page_exists(void)
{
	struct stat file;

	if (stat(MARK_FILE, &file) != 0)
	{
		if (errno != ENOENT)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not stat file \"%s\": %m", MARK_FILE)));
		return false;
	}
	if (file.st_size < BLCKSZ && RecoveryInProgress())
		return false;
	if (file.st_size < BLCKSZ)
		mark_page_refuse_damaged(file.st_size == 0 ? "The file is empty." :
								 "The file is shorter than a page.");
	return true;
}

/*
 * Creates the file with a page that has no entries.  The file gets its name
 * when it is whole and on disk, so that neither a full disk nor a crash leaves
 * a file that is damaged.
 */
static void
mark_page_create_file(void)
{
	PGIOAlignedBlock block;
	MarkContents contents;
	int			fd;

	mark_page_set_empty(&contents, node_layout());
	PageInit((Page) block.data, BLCKSZ, 0);
	mark_page_put_contents((Page) block.data, &contents);
	PageSetChecksum((Page) block.data, 0);

	fd = OpenTransientFile(MARK_NEW_FILE,
						   O_CREAT | O_TRUNC | O_WRONLY | PG_BINARY);
	if (fd >= 0)
		errno = ENOSPC;			/* a write that is cut short sets no errno */
	if (fd < 0 || write(fd, block.data, BLCKSZ) != BLCKSZ ||
		CloseTransientFile(fd) != 0 ||
		durable_rename(MARK_NEW_FILE, MARK_FILE, LOG) != 0)
	{
		int			save_errno = errno;

		(void) unlink(MARK_NEW_FILE);
		errno = save_errno;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", MARK_NEW_FILE)));
	}
}

/*
 * Reads the page into a buffer, pinned and locked.  A process that writes the
 * page to disk, such as the checkpointer, holds the page's lock while it
 * flushes WAL.  So a session asks for the exclusive lock again and again: it
 * could not be interrupted while it waits in the lock's queue.
 */
static Buffer
mark_page_read_buffer(int lock_mode)
{
	Buffer		buffer = ReadBufferWithoutRelcache(mark_locator, MAIN_FORKNUM,
												   0, RBM_NORMAL, NULL, true);

	if (lock_mode == BUFFER_LOCK_SHARE)
		LockBuffer(buffer, lock_mode);
	else
	{
		while (!ConditionalLockBuffer(buffer))
			clock_sleep(PAGE_RETRY_US, WAIT_FOR_PAGE);
	}
	return buffer;
}

/*
 * Copies and verifies a page's contents.  A page of zeros is damage: with
 * zero_damaged_pages on, PostgreSQL returns zeros for a damaged page, and a
 * server that took the zeros for a fresh page would forget its marks.  But
 * during recovery such a page is no page yet: redo extends the file, and the
 * page can be lost in a crash until redo comes to its record again.
 *
 * After an error the transaction's abort releases the page's lock and pin.
 */
static void
mark_page_get_contents(Page page, MarkContents *contents)
{
	if (PageIsNew(page) && RecoveryInProgress())
		return;
	if (PageIsNew(page))
		mark_page_refuse_damaged("The page is empty.");
	memcpy(contents, PageGetContents(page), sizeof(*contents));
	if (contents->magic != MARK_MAGIC)
		mark_page_refuse_damaged("It does not begin with the magic number of a mark's page.");
	if (contents->version > MARK_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the page of the high-water mark of snowflake ids is of a newer version"),
				 errdetail("File \"%s\" in the data directory is of version %u, and this library knows version %d.",
						   MARK_FILE, contents->version, MARK_VERSION),
				 errhint("Install the version of the extension that wrote the file, and restart the server.")));
	if (!mark_page_is_verified(contents))
		mark_page_refuse_damaged("Its checksum does not match its contents.");
}

static void
mark_page_put_contents(Page page, const MarkContents *contents)
{
	Size		size = mark_page_contents_size(contents->entry_count);

	memcpy(PageGetContents(page), contents, size);

	/* WAL leaves out the bytes between pd_lower and pd_upper. */
	((PageHeader) page)->pd_lower =
		(LocationIndex) (PageGetContents(page) + size - (char *) page);
}

/* The page does not verify.  mark_page_add_hint() adds what to do. */
static void
mark_page_refuse_damaged(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the page of the high-water mark of snowflake ids is damaged"),
			 errdetail("File \"%s\" in the data directory: %s",
					   MARK_FILE, detail)));
}

/* Error callback: adds a context and a hint, also to PostgreSQL's errors. */
static void
mark_page_add_hint(void *arg)
{
	int			code = geterrcode();

	if (code == ERRCODE_DATA_CORRUPTED)
		errhint("Make sure that the clock is past the newest id in the data, or choose a \"snowflake.worker_id\" that no server has used. If the ids are not of the default layout and epoch, set \"snowflake.layout\" and \"snowflake.epoch\" to theirs. Then stop the server, move file \"%s\" in the data directory away and start the server.",
				MARK_FILE);
	else if (code == ERRCODE_INSUFFICIENT_PRIVILEGE ||
			 ERRCODE_TO_CATEGORY(code) == ERRCODE_SYSTEM_ERROR ||
			 ERRCODE_TO_CATEGORY(code) == ERRCODE_INSUFFICIENT_RESOURCES)
		errhint("No snowflake id is issued until file \"%s\" in the data directory can be read and written.",
				MARK_FILE);
	else
		return;
	errcontext("accessing the high-water mark of snowflake ids");
}

/*
 * Finds or adds a node's entry.  If the page is full, the new entry replaces
 * the entry with the smallest mark, and the floor rises to that mark.
 */
MarkEntry *
mark_page_add_entry(MarkContents *contents, int datacenter_id, int worker_id)
{
	MarkEntry  *entry;

	for (int i = 0; i < contents->entry_count; i++)
	{
		entry = &contents->entries[i];
		if (entry->datacenter_id == datacenter_id &&
			entry->worker_id == worker_id)
			return entry;
	}

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
	entry->headroom_us = 0;
	return entry;
}

/* Returns a tick that no id of any node has reached. */
int64
mark_page_largest(const MarkContents *contents)
{
	int64		largest = contents->floor;

	for (int i = 0; i < contents->entry_count; i++)
		largest = Max(largest, contents->entries[i].mark);
	return largest;
}

/* Makes contents without an entry. */
void
mark_page_set_empty(MarkContents *contents, const SnowflakeLayout *layout)
{
	memset(contents, 0, sizeof(*contents));
	contents->magic = MARK_MAGIC;
	contents->version = MARK_VERSION;
	contents->layout = *layout;
	contents->lease.worker_id = WORKER_ID_UNSET;
	contents->checksum = mark_page_checksum(contents);
}

/* Are the count of entries and the checksum right? */
static bool
mark_page_is_verified(const MarkContents *contents)
{
	return contents->entry_count <= MARK_ENTRIES_MAX &&
		contents->checksum == mark_page_checksum(contents);
}

/* The caller has checked that entry_count is in range. */
static pg_crc32c
mark_page_checksum(const MarkContents *contents)
{
	const char *bytes = (const char *) contents;
	const pg_crc32c none = 0;
	Size		after = offsetof(MarkContents, checksum) + sizeof(none);
	pg_crc32c	crc;

	Assert(contents->entry_count <= MARK_ENTRIES_MAX);

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, bytes, offsetof(MarkContents, checksum));
	COMP_CRC32C(crc, &none, sizeof(none));
	COMP_CRC32C(crc, bytes + after,
				mark_page_contents_size(contents->entry_count) - after);
	FIN_CRC32C(crc);
	return crc;
}

static Size
mark_page_contents_size(int entry_count)
{
	return offsetof(MarkContents, entries) + entry_count * sizeof(MarkEntry);
}
