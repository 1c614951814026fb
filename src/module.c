/*
 * module.c
 *	  _PG_init and nothing else: the parameters, the worker.
 *
 * A parameter that cannot be read stops the server's start or, without
 * preload, the session's first id.  PostgreSQL on its own only warns of an
 * extension's bad parameter and uses the default; a server with a default
 * identity would issue another server's ids.
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "clock.h"
#include "compat.h"
#include "fmgr.h"
#include "host.h"
#include "id_generator.h"
#include "id_horizon.h"
#include "lease_registry.h"
#include "lease_worker.h"
#include "mark_log.h"
#include "miscadmin.h"
#include "node.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC_EXT(.name = "snowflake", .version = SNOWFLAKE_VERSION);

#define PARAMETER_PREFIX "snowflake"

static const struct config_enum_entry clock_policies[] =
{
	{"wait", CLOCK_POLICY_WAIT, false},
	{"error", CLOCK_POLICY_ERROR, false},
	{"advance", CLOCK_POLICY_ADVANCE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry sequence_starts[] =
{
	{"zero", SEQUENCE_START_ZERO, false},
	{"random", SEQUENCE_START_RANDOM, false},
	{NULL, 0, false}
};

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void
request_shared_memory(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	shmem_request();
}

static void
start_shared_memory(void)
{
	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	shmem_startup();
}

/* Defines the parameters of the node, which are fixed while a server runs. */
static void
define_node_parameters(void)
{
	/*
	 * After the server's start a library cannot define a PGC_POSTMASTER
	 * parameter.  PGC_SIGHUP also keeps users from setting the parameter.
	 */
	GucContext	context = node_is_preloaded ? PGC_POSTMASTER : PGC_SIGHUP;

	DefineCustomIntVariable("snowflake.datacenter_id",
							"Sets the datacenter part of this server's node.",
							NULL,
							&node_configured_datacenter_id,
							0, 0, INT_MAX,
							context, 0,
							NULL, node_assign_number, NULL);
	DefineCustomIntVariable("snowflake.worker_id",
							"Sets the worker part of this server's node.",
							"-1 means unset: the server issues no ids unless snowflake.worker_id_source gives a worker id.",
							&node_worker_id,
							WORKER_ID_UNSET,
							WORKER_ID_UNSET, INT_MAX,
							context, 0,
							NULL, node_assign_number, NULL);
	DefineCustomEnumVariable("snowflake.worker_id_source",
							 "Sets where the worker part of this server's node comes from.",
							 NULL,
							 &node_worker_id_source,
							 WORKER_ID_SOURCE_CONFIG, node_worker_id_sources,
							 context, 0,
							 NULL, node_assign_number, NULL);
	DefineCustomStringVariable("snowflake.layout",
							   "Sets the widths of an id's fields and the length of a tick.",
							   NULL,
							   &node_layout_text,
							   LAYOUT_DEFAULT,
							   context, 0,
							   node_check_layout, node_assign_text, NULL);
	DefineCustomStringVariable("snowflake.epoch",
							   "Sets the instant that an id's ticks count from.",
							   NULL,
							   &node_epoch_text,
							   NODE_DEFAULT_EPOCH,
							   context, 0,
							   node_check_epoch, node_assign_text, NULL);
}

/* Defines the parameters of the registry. */
static void
define_registry_parameters(void)
{
	GucContext	context = node_is_preloaded ? PGC_POSTMASTER : PGC_SIGHUP;

	DefineCustomStringVariable("snowflake.registry",
							   "Sets the connection string of the database that leases worker ids.",
							   NULL,
							   &node_registry,
							   "",
							   context, GUC_SUPERUSER_ONLY,
							   registry_check_conninfo, NULL, NULL);
	DefineCustomStringVariable("snowflake.server_name",
							   "Sets a name of this server for the registry.",
							   "A server gets the worker id of the last server of the same name, if that worker id is free.",
							   &registry_server_name,
							   "",
							   PGC_SIGHUP, 0,
							   registry_check_name, NULL, NULL);
}

/* Defines the parameters of issuing. */
static void
define_generator_parameters(void)
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
	DefineCustomEnumVariable("snowflake.sequence_start",
							 "Sets where the sequence of a fresh tick starts.",
							 NULL,
							 &generator_sequence_start,
							 SEQUENCE_START_ZERO, sequence_starts,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("snowflake.block_size",
							"Sets the most ids that a session reserves at once.",
							"1 keeps ids of all sessions strictly in the order of the calls.",
							&generator_block_size,
							1, 1, GENERATOR_BLOCK_SIZE_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("snowflake.high_water_interval",
							"Sets how often the high-water mark is logged while ids are issued.",
							NULL,
							&mark_log_interval_ms,
							500, 10, 60000,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
}

/* A parameter that the configuration sets before the library defines it. */
typedef struct GivenParameter
{
	char	   *name;
	char	   *value;
	GucSource	source;
} GivenParameter;

/*
 * Finds the parameters under the prefix that the configuration sets; returns
 * their number.  PostgreSQL itself ignores what a session has set, with a
 * warning.
 */
static int
find_given_parameters(GivenParameter **given)
{
	int			variable_count;
	struct config_generic **variables = compat_guc_variables(&variable_count);
	int			given_count = 0;

	*given = palloc(variable_count * sizeof(GivenParameter));
	for (int i = 0; i < variable_count; i++)
	{
		const char *name = variables[i]->name;

		if (pg_strncasecmp(name, PARAMETER_PREFIX ".",
						   strlen(PARAMETER_PREFIX ".")) != 0 ||
			variables[i]->reset_source == PGC_S_DEFAULT)
			continue;
		(*given)[given_count].name = pstrdup(name);
		(*given)[given_count].value =
			pstrdup(GetConfigOptionResetString(name));
		(*given)[given_count].source = variables[i]->reset_source;
		given_count++;
	}
	return given_count;
}

/*
 * Stops the start if a parameter is unknown or cannot be read.  Without
 * preload, raises an ERROR for these, and for a parameter that is set for a
 * role, a database or a client: PostgreSQL ignores that setting, but the
 * session cannot see the server's any more.
 */
static void
check_given_parameters(const GivenParameter *given, int given_count)
{
	for (int i = 0; i < given_count; i++)
	{
		int			flags = GetConfigOptionFlags(given[i].name, false);

		if (flags & GUC_CUSTOM_PLACEHOLDER)
			ereport(node_error_level(),
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("unrecognized configuration parameter \"%s\"",
							given[i].name),
					 errhint("Correct its name, or take it out of the configuration.")));

		if (given[i].source > PGC_S_ARGV)
			ereport(node_error_level(),
					(errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM),
					 errmsg("parameter \"%s\" cannot be set for a role, a database or a client",
							given[i].name),
					 errhint("Set it for the server, by ALTER SYSTEM or in postgresql.conf.")));

		node_check_number(given[i].name, given[i].value);

		/* changeVal = false: only parse the value. */
		(void) set_config_option(given[i].name, given[i].value,
								 PGC_POSTMASTER, PGC_S_FILE, GUC_ACTION_SET,
								 false, node_error_level(), false);
	}
}

/*
 * Checks the parameters without preload.  Keeps an error until the session
 * asks for an id, because decoding does not need all parameters.
 */
static void
check_session_parameters(const GivenParameter *given, int given_count)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		check_given_parameters(given, given_count);

		/* Check now: the leader's parameters will replace the server's. */
		if (InitializingParallelWorker)
			node_configure();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(TopMemoryContext);
		node_fault = CopyErrorData();
		node_fault->context =
			pstrdup("snowflake parameters of this session; connect again after a correction");
		FlushErrorState();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
}

void
_PG_init(void)					/* NOLINT: PostgreSQL's name for it */
{
	GivenParameter *given = NULL;
	int			given_count;
	bool		may_issue;

	node_is_preloaded = process_shared_preload_libraries_in_progress;
	may_issue = !node_is_preloaded && shmem_attach();

	given_count = find_given_parameters(&given);
	node_is_loading = true;
	define_node_parameters();
	define_registry_parameters();
	define_generator_parameters();
	node_is_loading = false;
	if (may_issue)
		check_session_parameters(given, given_count);
	if (node_is_preloaded)
	{
		check_given_parameters(given, given_count);
		node_configure();
		if (!IsUnderPostmaster)
		{
			host_find_holder();
			node_announce();
		}

		previous_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_shared_memory;
		previous_shmem_startup_hook = shmem_startup_hook;
		shmem_startup_hook = start_shared_memory;

		if (node_uses_registry())
			lease_worker_register();
	}
	if (node_is_preloaded || may_issue)
		horizon_install_callback();
	MarkGUCPrefixReserved(PARAMETER_PREFIX);
}
