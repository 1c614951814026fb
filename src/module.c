/*
 * module.c
 *	  _PG_init(), which defines the parameters and registers the worker.
 *
 * shared_preload_libraries is the one way to load the library: the postmaster
 * runs _PG_init() once, and its children inherit the result.  A parameter that
 * cannot be read stops the server's start; see config.c.
 */
#include "postgres.h"

#include <limits.h>

#include "clock.h"
#include "compat.h"
#include "config.h"
#include "fmgr.h"
#include "lease_connection.h"
#include "lease_holder.h"
#include "lease_registry.h"
#include "lease_worker.h"
#include "mark_layout.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "utils/guc.h"

PG_MODULE_MAGIC_EXT(
					.name = "snowflake",
					.version = SNOWFLAKE_VERSION
);

static const struct config_enum_entry clock_policies[] =
{
	{"wait", CLOCK_POLICY_WAIT, false},
	{"advance", CLOCK_POLICY_ADVANCE, false},
	{NULL, 0, false}
};

/* Defines the parameters of the node, which are fixed while a server runs. */
static void
module_define_node_parameters(void)
{
	DefineCustomIntVariable("snowflake.datacenter_id",
							"Sets the datacenter part of this server's node.",
							NULL,
							&node_datacenter_id,
							0, 0, INT_MAX,
							PGC_POSTMASTER, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("snowflake.worker_id",
							"Sets the worker part of this server's node.",
							"-1 means unset: the server issues no ids unless snowflake.worker_id_source gives a worker id.",
							&node_configured_worker_id,
							WORKER_ID_UNSET,
							WORKER_ID_UNSET, INT_MAX,
							PGC_POSTMASTER, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("snowflake.worker_id_source",
							 "Sets where the worker part of this server's node comes from.",
							 NULL,
							 &node_worker_id_source,
							 WORKER_ID_SOURCE_CONFIG, node_worker_id_sources,
							 PGC_POSTMASTER, 0,
							 NULL, NULL, NULL);
	DefineCustomStringVariable("snowflake.layout",
							   "Sets the widths of an id's fields and the length of a tick.",
							   "If unset, the layout of the data's ids is used.",
							   &node_configured_layout,
							   "",
							   PGC_POSTMASTER, 0,
							   node_check_layout, NULL, NULL);
	DefineCustomStringVariable("snowflake.epoch",
							   "Sets the instant that an id's ticks count from.",
							   "If unset, the epoch of the data's ids is used.",
							   &node_configured_epoch,
							   "",
							   PGC_POSTMASTER, 0,
							   node_check_epoch, NULL, NULL);
	DefineCustomStringVariable("snowflake.registry",
							   "Sets the connection string of the database that leases worker ids.",
							   NULL,
							   &node_registry,
							   "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY,
							   connection_check_string, NULL, NULL);
}

/* Defines the parameters that a reload changes. */
static void
module_define_other_parameters(void)
{
	DefineCustomEnumVariable("snowflake.clock_policy",
							 "Sets what to do when the clock is behind the last id.",
							 NULL,
							 &clock_policy,
							 CLOCK_POLICY_WAIT, clock_policies,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("snowflake.clock_tolerance",
							"Sets how far the clock may be behind the last id before ids are refused.",
							"With clock_policy = advance, ids also lead the clock by this much at most.",
							&clock_tolerance_ms,
							5000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomStringVariable("snowflake.server_name",
							   "Sets a name of this server for the registry.",
							   "A server gets the worker id of the last server of the same name, if that worker id is free.",
							   &registry_server_name,
							   "",
							   PGC_SIGHUP, 0,
							   registry_check_name, NULL, NULL);
}

/*
 * Without the preload a session loads the library for functions that need no
 * node; see node_require_preload().
 */
void
_PG_init(void)					/* NOLINT: PostgreSQL's name for it */
{
	List	   *noted;

	if (!process_shared_preload_libraries_in_progress)
		return;

	noted = config_note();
	module_define_node_parameters();
	module_define_other_parameters();
	config_check(noted);
	node_configure(mark_layout_begin());
	holder_find();
	node_announce(mark_layout_to_announce());
	shmem_register();

	/* pg_upgrade's new cluster must not lease, nor write the mark's page. */
	if (node_uses_registry() && !IsBinaryUpgrade)
		lease_worker_register();
	MarkGUCPrefixReserved(CONFIG_PREFIX);
}
