/*
 * mark_page.h
 *	  The page in WAL that holds the high-water marks.
 */
#ifndef SNOWFLAKE_MARK_H
#define SNOWFLAKE_MARK_H

#include "postgres.h"

#include "host.h"
#include "id_layout.h"
#include "lease_rules.h"
#include "port/pg_crc32c.h"

/* How many nodes have a mark of their own on the page. */
#define MARK_ENTRIES_MAX 16

/* MarkMover.elsewhere_until if ids of no other location are known. */
#define MARK_NEVER_ELSEWHERE INT64CONST(0)

/* A node's mark. */
typedef struct MarkEntry
{
	int32		datacenter_id;
	int32		worker_id;
	int64		mark;			/* a tick that no id of the node has reached */
	int64		lead_us;		/* how far the mark was put ahead of an id */
} MarkEntry;

/* The server that moved a mark last. */
typedef struct MarkMover
{
	int32		datacenter_id;	/* of the node whose mark was moved */
	int32		worker_id;
	uint64		holder;			/* a hash of the server's holder */
	TimestampTz elsewhere_until;	/* another location issued ids of the node
									 * until then; or MARK_NEVER_ELSEWHERE */
	char		location[HOST_LOCATION_SIZE];	/* host and data directory */
} MarkMover;

/*
 * The contents of the page, after PostgreSQL's page header, in the machine's
 * byte order and alignment.
 */
typedef struct MarkContents
{
	uint32		magic;
	uint32		version;
	pg_crc32c	checksum;		/* of all contents, with this field as 0 */
	uint32		entry_count;
	Layout		layout;			/* of the ticks on this page */
	uint64		system_identifier;	/* of the cluster that wrote the page */
	int64		floor;			/* the mark of nodes without an entry */
	Lease		lease;			/* of the server that wrote the page */
	MarkMover	mover;
	MarkEntry	entries[MARK_ENTRIES_MAX];
} MarkContents;

/* For mark_move(): make the lease durable, and do not move the mark. */
#define MARK_KEEP INT64CONST(-1)

extern bool mark_read(MarkContents *contents);
extern bool mark_is_foreign(const MarkContents *contents);
extern const MarkEntry *mark_entry(const MarkContents *contents,
								   int datacenter_id, int worker_id);
extern bool mark_is_moved_elsewhere(const MarkContents *contents);
extern int64 mark_largest(const MarkContents *contents);

extern bool mark_move(int64 past, int64 mark, int64 lead_us);

#endif							/* SNOWFLAKE_MARK_H */
