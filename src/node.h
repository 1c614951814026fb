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
	WORKER_ID_SOURCE_REGISTRY
} WorkerIdSource;

/* The values of snowflake.worker_id_source. */
extern const struct config_enum_entry node_worker_id_sources[];

/* parameters, registered by module.c */
extern int	node_datacenter_id;
extern int	node_configured_worker_id;
extern int	node_worker_id_source;
extern char *node_configured_layout;
extern char *node_configured_epoch;
extern char *node_registry;

/*
 * The worker id that the configuration gives or derives, or WORKER_ID_UNSET.
 * With a registry the server has to lease that worker id or, if unset, any
 * worker id.
 */
extern int	node_worker_id;

extern bool node_check_layout(char **newval, void **extra, GucSource source);
extern bool node_check_epoch(char **newval, void **extra, GucSource source);

extern void node_default_layout(SnowflakeLayout *layout);
extern bool node_sets_layout(void);
extern void node_apply_parameters(SnowflakeLayout *layout);
extern void node_set_layout(const SnowflakeLayout *layout);
extern bool node_fits(const SnowflakeLayout *layout);
extern void node_check_fields(const SnowflakeLayout *layout);
extern void node_configure(bool is_layout_known);
extern void node_announce(const SnowflakeLayout *layout);
extern bool node_is_preloaded(void);
extern void node_require_preload(void);
extern const SnowflakeLayout *node_layout(void);
extern bool node_uses_registry(void);
extern uint64 node_registry_hash(void);
extern const char *node_worker_id_source_name(void);

#endif							/* SNOWFLAKE_NODE_H */
