/*
 * mark_page.h
 *	  The page in WAL that holds the high-water marks.
 */
#ifndef SNOWFLAKE_MARK_PAGE_H
#define SNOWFLAKE_MARK_PAGE_H

#include "postgres.h"

#include "layout.h"
#include "lease_holder.h"
#include "lease_rules.h"
#include "port/pg_crc32c.h"
#include "storage/buf.h"

/*
 * How often the mark is logged while ids are issued, and how far a mark is put
 * ahead of an id.
 */
#define MARK_INTERVAL_US INT64CONST(250000)
#define MARK_HEADROOM_US (2 * MARK_INTERVAL_US)

/* The page's file, in the data directory. */
#define MARK_FILE "global/8947"

/* How many nodes have a mark of their own on the page. */
#define MARK_ENTRIES_MAX 16

/* A node's mark. */
typedef struct MarkEntry
{
	int32		datacenter_id;
	int32		worker_id;
	int64		mark;			/* a tick that no id of the node has reached */
	int64		headroom_us;	/* how far the mark was put ahead of an id;
								 * written, for people, and not read */
} MarkEntry;

/* The server that logged a mark last. */
typedef struct MarkLogger
{
	int32		datacenter_id;	/* of the node whose mark was logged */
	int32		worker_id;
	uint64		holder;			/* a hash of the server's holder */
	char		location[HOLDER_LOCATION_SIZE]; /* host and data directory */
} MarkLogger;

/*
 * The contents of the page, after PostgreSQL's page header, in the machine's
 * byte order and alignment.
 */
typedef struct MarkContents
{
	uint32		magic;
	uint32		version;
	pg_crc32c	checksum;		/* of all contents, with this field as 0 */
	uint16		entry_count;
	uint16		unused;			/* 0 */
	SnowflakeLayout layout;		/* of the ticks on this page */
	int64		floor;			/* the mark of nodes without an entry */
	SnowflakeLease lease;		/* of the server that wrote the page */
	MarkLogger	logger;
	MarkEntry	entries[MARK_ENTRIES_MAX];
} MarkContents;

extern bool mark_page_peek(MarkContents *contents);
extern void mark_page_read(MarkContents *contents);
extern MarkEntry *mark_page_add_entry(MarkContents *contents,
									  int datacenter_id, int worker_id);
extern int64 mark_page_largest(const MarkContents *contents);
extern void mark_page_set_empty(MarkContents *contents,
								const SnowflakeLayout *layout);

extern Buffer mark_page_lock(MarkContents *contents);
extern void mark_page_log(Buffer buffer, MarkContents *contents);

#endif							/* SNOWFLAKE_MARK_PAGE_H */
