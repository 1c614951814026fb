/*
 * node.h
 *	  Who this server is: its datacenter, its worker id, its layout.
 */
#ifndef SNOWFLAKE_NODE_H
#define SNOWFLAKE_NODE_H

#include "postgres.h"

#include "layout.h"
#include "utils/guc.h"

/* Twitter's epoch.  With the default layout the last tick is of 2080-07-10. */
#define NODE_DEFAULT_EPOCH "2010-11-04 01:42:54.657+00"

/* snowflake.worker_id_source */
typedef enum WorkerIdSource
{
	WORKER_ID_SOURCE_CONFIG,
	WORKER_ID_SOURCE_HOSTNAME,
	WORKER_ID_SOURCE_IPV4,
	WORKER_ID_SOURCE_REGISTRY
} WorkerIdSource;

/*
 * The node that all processes of this server go by.  The postmaster fixes the
 * node if it preloads the library; if not, the first session that issues an id
 * does.
 */
typedef struct FixedNode
{
	bool		is_fixed;		/* the other fields are set before this one */
	int			datacenter_id;
	int			worker_id;		/* see node_intended_worker_id() */
	int			worker_id_source;
	Layout		layout;
} FixedNode;

/* The values of snowflake.worker_id_source. */
extern const struct config_enum_entry node_worker_id_sources[];

/* parameters, registered by module.c */
extern int	node_configured_datacenter_id;
extern int	node_worker_id;		/* see node_intended_worker_id() */
extern int	node_worker_id_source;
extern char *node_layout_text;
extern char *node_epoch_text;
extern char *node_registry;

/* Was the library loaded by shared_preload_libraries?  Set by module.c. */
extern bool node_is_preloaded;

/*
 * Without preload, finds the fixed node in shared memory; NULL if there is no
 * shared memory.  Set by shmem.c.
 */
extern const FixedNode *(*node_find_fixed) (void);

/* The datacenter id that goes with node_layout(). */
extern int	node_datacenter_id;

extern bool node_check_layout(char **newval, void **extra, GucSource source);
extern bool node_check_epoch(char **newval, void **extra, GucSource source);

extern void node_configure(void);
extern void node_prepare(void);
extern void node_fix(FixedNode *fixed);
extern void node_share(const FixedNode *fixed);
extern bool node_is_fixed(void);
extern char *node_pending_restart(void);
extern const Layout *node_layout(void);
extern int	node_intended_worker_id(void);
extern void node_announce(void);
extern bool node_uses_registry(void);
extern uint64 node_registry_hash(void);
extern const char *node_worker_id_source_name(void);

#endif							/* SNOWFLAKE_NODE_H */
