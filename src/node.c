/*
 * node.c
 *	  Who this server is: its datacenter, its worker id, its layout.
 *
 * Only this file checks the parameters against each other.  The postmaster
 * calls the checks before it opens its port, and its children inherit the
 * node.
 *
 * Without preload, the first session that issues an id fixes the node in shared
 * memory.  Two rules hold:
 *
 * - The node is fixed: no session looks at a parameter of the node any more.
 * - The node is not fixed: a session goes by its parameters, and raises an
 *	 error if it could not read the configuration faithfully.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "compat.h"
#include "config.h"
#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

const struct config_enum_entry node_worker_id_sources[] =
{
	{"config", WORKER_ID_SOURCE_CONFIG, false},
	{"hostname", WORKER_ID_SOURCE_HOSTNAME, false},
	{"ipv4", WORKER_ID_SOURCE_IPV4, false},
	{"registry", WORKER_ID_SOURCE_REGISTRY, false},
	{NULL, 0, false}
};

/* A smaller number for an epoch is more likely a year, or seconds. */
#define SMALLEST_UNIX_MS INT64CONST(100000000000)

/* parameters */
int			node_configured_datacenter_id = 0;
int			node_worker_id = WORKER_ID_UNSET;
int			node_worker_id_source = WORKER_ID_SOURCE_CONFIG;
char	   *node_layout_text = NULL;
char	   *node_epoch_text = NULL;
char	   *node_registry = NULL;

bool		node_is_preloaded = false;
const FixedNode *(*node_find_fixed) (void) = NULL;

/* The fixed node, in shared memory; NULL before shared memory is attached. */
static const FixedNode *fixed_node = NULL;

/*
 * The node that this process goes by; node_datacenter_id is its datacenter id.
 * Final when the node is fixed.  Before, the session has read the parameters
 * after the reload at present_reload_time.
 */
static FixedNode present = {.worker_id = WORKER_ID_UNSET};
int			node_datacenter_id = 0;
static bool present_is_final = false;
static TimestampTz present_reload_time = 0;

static bool parse_epoch(const char *text, TimestampTz *epoch);
static bool parse_unix_ms(const char *text, TimestampTz *epoch);
static bool parse_instant(const char *text, TimestampTz *epoch);
static bool is_absolute(const char *text);
static void set_present(const FixedNode *node);
static void look_at_node(void);
static FixedNode read_parameters(void);
static bool is_derived(int worker_id_source);
static void add_change(StringInfo changes, bool is_changed, const char *name);
static void read_layout(Layout *layout);
static void check_field(const char *name, int value, int lowest,
						const char *field, int bits);
static void check_source(void);

bool
node_check_layout(char **newval, void **extra, GucSource source)
{
	Layout		layout;
	const char *detail;

	if (layout_parse(*newval, &layout, &detail))
		return true;
	GUC_check_errdetail("%s", detail);
	return false;
}

bool
node_check_epoch(char **newval, void **extra, GucSource source)
{
	TimestampTz epoch;

	if (parse_epoch(*newval, &epoch))
		return true;
	GUC_check_errdetail("An epoch is a date and time with its time zone, as in \"2010-11-04 01:42:54.657+00\", or milliseconds since 1970, at least " INT64_FORMAT ".",
						SMALLEST_UNIX_MS);
	return false;
}

/*
 * Checks the parameters of this server's identity against each other.  The
 * postmaster calls this function at its start, and an error stops the start.
 * On platforms without fork() every process calls this function, but only the
 * postmaster derives a worker id.
 */
void
node_configure(void)
{
	FixedNode	node = read_parameters();

	check_field("snowflake.datacenter_id", node_configured_datacenter_id, 0,
				"datacenter id", node.layout.datacenter_bits);
	check_field("snowflake.worker_id", node_worker_id, WORKER_ID_UNSET,
				"worker id", node.layout.worker_bits);
	check_source();
	if (!node_is_preloaded || !IsUnderPostmaster)
	{
		if (node_worker_id_source == WORKER_ID_SOURCE_HOSTNAME)
			node.worker_id = host_id_by_name(node.layout.worker_bits);
		else if (node_worker_id_source == WORKER_ID_SOURCE_IPV4)
			node.worker_id = host_id_by_ipv4(node.layout.worker_bits);
	}
	set_present(&node);
	present_is_final = node_is_preloaded;
}

/*
 * Prepares a session's first id: by the fixed node, or by the parameters.
 * ERROR 55000 without preload if a registry leases the worker id.
 */
void
node_prepare(void)
{
	if (!node_is_fixed())
	{
		if (node_registry[0] != '\0' ||
			node_worker_id_source == WORKER_ID_SOURCE_REGISTRY)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("snowflake ids cannot be issued because a registry needs the library to be preloaded"),
					 errdetail("Parameter \"%s\" is set.", node_registry[0] != '\0' ? "snowflake.registry" : "snowflake.worker_id_source"),
					 errhint("Add \"snowflake\" to \"shared_preload_libraries\" and restart the server.")));
		node_configure();
		host_find_holder();
	}
	look_at_node();
}

/*
 * Fixes the node as this process has configured it.  The caller is
 * shmem_fix_node().
 */
void
node_fix(FixedNode *fixed)
{
	*fixed = present;
	pg_write_barrier();
	fixed->is_fixed = true;
}

/* Lets this process go by the node in shared memory. */
void
node_share(const FixedNode *fixed)
{
	fixed_node = fixed;
	present_is_final = false;
	look_at_node();
}

/* Is the node fixed until the server's next start? */
bool
node_is_fixed(void)
{
	if (fixed_node == NULL && node_find_fixed != NULL)
		fixed_node = node_find_fixed();
	return fixed_node != NULL && fixed_node->is_fixed;
}

/*
 * Returns the parameters that differ from the fixed node, or why this session
 * could not read them, as text; NULL if none differs.
 */
char *
node_pending_restart(void)
{
	StringInfoData changes;
	Layout		layout;
	TimestampTz epoch;
	const char *detail;
	char	   *fault;

	if (node_is_preloaded || !node_is_fixed())
		return NULL;
	look_at_node();
	fault = config_fault();
	if (fault != NULL)
		return fault;

	(void) layout_parse(node_layout_text, &layout, &detail);
	(void) parse_epoch(node_epoch_text, &epoch);
	layout.epoch = present.layout.epoch;
	initStringInfo(&changes);
	add_change(&changes, node_configured_datacenter_id != present.datacenter_id,
			   "snowflake.datacenter_id");
	add_change(&changes, !is_derived(node_worker_id_source) &&
			   node_worker_id != present.worker_id, "snowflake.worker_id");
	add_change(&changes, node_worker_id_source != present.worker_id_source,
			   "snowflake.worker_id_source");
	add_change(&changes, !layout_equal(&layout, &present.layout),
			   "snowflake.layout");
	add_change(&changes, epoch != present.layout.epoch, "snowflake.epoch");
	if (node_registry[0] != '\0')
		appendStringInfo(&changes, "%ssnowflake.registry",
						 changes.len > 0 ? ", " : "");
	return changes.len > 0 ? changes.data : NULL;
}

/* Adds a parameter and its value to a list, if the parameter has changed. */
static void
add_change(StringInfo changes, bool is_changed, const char *name)
{
	if (is_changed)
		appendStringInfo(changes, "%s%s = %s", changes->len > 0 ? ", " : "",
						 name, GetConfigOption(name, false, false));
}

/*
 * Returns the layout of the fixed node or, before there is one, the configured
 * layout.  Without preload and a fixed node, raises the errors of
 * config_check() and read_layout().
 */
const Layout *
node_layout(void)
{
	if (unlikely(!present_is_final))
		look_at_node();
	return &present.layout;
}

/* Reads the fixed node or, before there is one, the parameters. */
static void
look_at_node(void)
{
	if (node_is_fixed())
	{
		pg_read_barrier();		/* pairs with the barrier in node_fix() */
		set_present(fixed_node);
		present_is_final = true;
	}
	else if (present_reload_time != PgReloadTime)
	{
		FixedNode	node = read_parameters();

		set_present(&node);
	}
}

/* Returns the parameters, but no worker id that is derived or unusable. */
static FixedNode
read_parameters(void)
{
	FixedNode	node = {
		.datacenter_id = node_configured_datacenter_id,
		.worker_id = is_derived(node_worker_id_source) ? WORKER_ID_UNSET :
		node_worker_id,
		.worker_id_source = node_worker_id_source
	};

	config_check();
	read_layout(&node.layout);
	if (node.worker_id > layout_field_max(node.layout.worker_bits) ||
		node.datacenter_id > layout_field_max(node.layout.datacenter_bits) ||
		(!node_is_preloaded &&
		 (node_registry[0] != '\0' ||
		  node_worker_id_source == WORKER_ID_SOURCE_REGISTRY)))
		node.worker_id = WORKER_ID_UNSET;
	return node;
}

/* Lets this process go by a node. */
static void
set_present(const FixedNode *node)
{
	present = *node;
	node_datacenter_id = node->datacenter_id;
	present_reload_time = PgReloadTime;
}

/* Is the worker id derived from the host? */
static bool
is_derived(int worker_id_source)
{
	return worker_id_source == WORKER_ID_SOURCE_HOSTNAME ||
		worker_id_source == WORKER_ID_SOURCE_IPV4;
}

/*
 * Returns the worker id that the configuration gives or derives, or
 * WORKER_ID_UNSET.  With a registry the server has to lease that worker id or,
 * if unset, any worker id.  Without preload, no worker id is derived before
 * the first id after a start.
 */
int
node_intended_worker_id(void)
{
	return present.worker_id;
}

/*
 * Logs this server's node, and warns if the server has no worker id.  Warns on
 * a standby, too: after a promotion the warning would be too late.
 */
void
node_announce(void)
{
	int			worker_id = node_intended_worker_id();

	if (worker_id == WORKER_ID_UNSET && !node_uses_registry())
		ereport(WARNING,
				(errmsg("parameter \"%s\" is not set, so this server issues no snowflake ids",
						"snowflake.worker_id"),
				 errhint("Set \"snowflake.worker_id\" to a number of 0 .. " INT64_FORMAT " that no other server has, and restart the server.",
						 layout_field_max(present.layout.worker_bits))));
	else
		ereport(LOG,
				(errmsg("snowflake node (%d,%s), %s \"%s\", %s \"%s\", %s \"%s\"",
						node_datacenter_id,
						worker_id == WORKER_ID_UNSET ? "leased" : psprintf("%d", worker_id),
						"snowflake.worker_id_source",
						node_worker_id_source_name(),
						"snowflake.layout", layout_to_text(&present.layout),
						"snowflake.epoch", node_epoch_text)));
}

/*
 * Is the worker id leased from a registry?  The worker that leases needs the
 * preload.
 */
bool
node_uses_registry(void)
{
	return node_is_preloaded && node_registry[0] != '\0';
}

/*
 * Returns a hash of snowflake.registry.  A lease counts only for the registry
 * that granted it: another registry may have granted the same worker id to
 * another server.
 */
uint64
node_registry_hash(void)
{
	return hash_bytes_extended((const unsigned char *) node_registry,
							   (int) strlen(node_registry), 0);
}

const char *
node_worker_id_source_name(void)
{
	const struct config_enum_entry *source = node_worker_id_sources;

	while (source->val != present.worker_id_source)
		source++;
	return source->name;
}

/* Reads snowflake.epoch. */
static bool
parse_epoch(const char *text, TimestampTz *epoch)
{
	return parse_unix_ms(text, epoch) || parse_instant(text, epoch);
}

/*
 * Reads a whole number of milliseconds since 1970.  Returns false if the text
 * is not a number, or if the number is too small or too large.
 */
static bool
parse_unix_ms(const char *text, TimestampTz *epoch)
{
	const int64 unix_epoch_us =
		(UNIX_EPOCH_JDATE - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY;
	char	   *end;
	int64		ms;

	errno = 0;
	ms = strtoi64(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' ||
		ms > END_TIMESTAMP / 1000 || ms < SMALLEST_UNIX_MS)
		return false;

	*epoch = ms * 1000 + unix_epoch_us;
	return IS_VALID_TIMESTAMP(*epoch);
}

/*
 * Reads an ISO 8601 date and time that names its zone.  Refuses a text whose
 * meaning depends on a session's settings (no zone, 11/04/2010) or on the day
 * ("today").
 */
static bool
parse_instant(const char *text, TimestampTz *epoch)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool valid = is_absolute(text);

	/* An error must not end the postmaster. */
	PG_TRY();
	{
		if (valid)
			*epoch = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
															 CStringGetDatum(text),
															 ObjectIdGetDatum(InvalidOid),
															 Int32GetDatum(-1)));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		valid = false;
	}
	PG_END_TRY();

	return valid;
}

/*
 * Does a text begin with an ISO 8601 date, and end in a zone that means the same
 * everywhere: an offset, UTC, or a region such as Europe/Berlin?  The meaning of
 * any other abbreviation depends on timezone_abbreviations.
 */
static bool
is_absolute(const char *text)
{
	const char *digits = "0123456789";
	const char *zone;

	if (strspn(text, digits) != 4 || text[4] != '-' ||
		strspn(text + 5, digits) != 2 || text[7] != '-' ||
		strspn(text + 8, digits) != 2)
		return false;
	zone = text + 10 + strspn(text + 10, "0123456789:.Tt ");
	if (*zone == '+' || *zone == '-')
		return zone[1 + strspn(zone + 1, "0123456789:")] == '\0';
	return pg_strcasecmp(zone, "Z") == 0 || pg_strcasecmp(zone, "UTC") == 0 ||
		strchr(zone, '/') != NULL;
}

/*
 * Reads the layout and the epoch, whose check hooks have passed, and checks that
 * they fit each other.
 */
static void
read_layout(Layout *layout)
{
	TimestampTz epoch = 0;
	const char *detail = NULL;

	(void) layout_parse(node_layout_text, layout, &detail);
	(void) parse_epoch(node_epoch_text, &epoch);
	if (!layout_set_epoch(layout, epoch, &detail))
		ereport(config_error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"%s\" and \"%s\" do not go together: \"%s\" and \"%s\"",
						"snowflake.layout", "snowflake.epoch",
						node_layout_text, node_epoch_text),
				 errdetail("%s", detail),
				 errhint("Give the layout fewer tick bits or a shorter tick.")));
}

/* Raises an error if a field of the node does not fit its width. */
static void
check_field(const char *name, int value, int lowest, const char *field,
			int bits)
{
	if (value >= lowest && value <= layout_field_max(bits))
		return;

	ereport(config_error_level(),
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%d is outside the valid range for parameter \"%s\" (0 .. " INT64_FORMAT ")",
					value, name, layout_field_max(bits)),
			 errhint("Layout \"%s\" has %d bits for the %s. Choose a value that fits, or another \"snowflake.layout\".",
					 node_layout_text, bits, field)));
}

/*
 * Raises an error if the worker id is both configured and derived, if
 * worker_id_source is "registry" without snowflake.registry, or if
 * snowflake.registry is set and no parameter says which worker id to lease.
 */
static void
check_source(void)
{
	if (is_derived(node_worker_id_source) &&
		node_worker_id != WORKER_ID_UNSET)
		ereport(config_error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"%s\" and \"%s\" do not go together: %d and \"%s\"",
						"snowflake.worker_id", "snowflake.worker_id_source",
						node_worker_id, GetConfigOption("snowflake.worker_id_source", false, false)),
				 errhint("Take \"snowflake.worker_id\" out of the configuration, or set \"snowflake.worker_id_source\" to \"config\".")));
	if (node_worker_id_source == WORKER_ID_SOURCE_REGISTRY &&
		!node_uses_registry())
		ereport(config_error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is \"%s\", but \"%s\" is not set",
						"snowflake.worker_id_source", "registry",
						"snowflake.registry"),
				 errhint("Set \"snowflake.registry\" to the connection string of the registry's database.")));
	if (node_worker_id_source == WORKER_ID_SOURCE_CONFIG &&
		node_worker_id == WORKER_ID_UNSET && node_uses_registry())
		ereport(config_error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is set, but \"%s\" is \"%s\" and \"%s\" is not set",
						"snowflake.registry", "snowflake.worker_id_source",
						"config", "snowflake.worker_id"),
				 errhint("Set \"snowflake.worker_id_source\" to \"registry\" to lease any worker id that is free, or \"snowflake.worker_id\" to lease that one.")));
}
