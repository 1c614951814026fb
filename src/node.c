/*
 * node.c
 *	  Who this server is: its datacenter, its worker id, its layout.
 *
 * Only this file checks the parameters against each other.  The postmaster
 * calls the checks before it opens its port, where PostgreSQL makes every
 * ERROR a FATAL, and its children inherit the node.  A session that has loaded
 * the library without the postmaster has no node.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "common/hashfn.h"
#include "compat.h"
#include "config.h"
#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

const struct config_enum_entry node_worker_id_sources[] =
{
	{"config", WORKER_ID_SOURCE_CONFIG, false},
	{"hostname", WORKER_ID_SOURCE_HOSTNAME, false},
	{"registry", WORKER_ID_SOURCE_REGISTRY, false},
	{NULL, 0, false}
};

/* A smaller number for an epoch is more likely a year, or seconds. */
#define SMALLEST_UNIX_MS INT64CONST(100000000000)

/* parameters */
int			node_datacenter_id = 0;
int			node_configured_worker_id = WORKER_ID_UNSET;
int			node_worker_id_source = WORKER_ID_SOURCE_CONFIG;
char	   *node_configured_layout = NULL;
char	   *node_configured_epoch = NULL;
char	   *node_registry = NULL;

int			node_worker_id = WORKER_ID_UNSET;

/* The layout that this process uses; all 0 if the library was not preloaded. */
static SnowflakeLayout node_present_layout = {0};

static bool node_parse_epoch(const char *text, TimestampTz *epoch);
static bool node_parse_unix_ms(const char *text, TimestampTz *epoch);
static bool node_parse_instant(const char *text, TimestampTz *epoch);
static bool node_is_absolute_instant(const char *text);
static void node_check_width(const char *name, int value, int lowest,
							 const char *field, int bits,
							 const SnowflakeLayout *layout);
static void node_check_source(void);

bool
node_check_layout(char **newval, void **extra, GucSource source)
{
	SnowflakeLayout layout;
	const char *detail;

	if (**newval == '\0' || layout_parse(*newval, &layout, &detail))
		return true;
	GUC_check_errdetail("%s", detail);
	return false;
}

bool
node_check_epoch(char **newval, void **extra, GucSource source)
{
	TimestampTz epoch;

	if (**newval == '\0' || node_parse_epoch(*newval, &epoch))
		return true;
	GUC_check_errdetail("An epoch is a date and time with its time zone, as in \"2010-11-04 01:42:54.657+00\", or milliseconds since 1970, at least " INT64_FORMAT ".",
						SMALLEST_UNIX_MS);
	return false;
}

/* Returns the default layout, with the default epoch. */
void
node_default_layout(SnowflakeLayout *layout)
{
	const char *detail = NULL;

	(void) layout_parse(LAYOUT_DEFAULT, layout, &detail);
	(void) node_parse_epoch(NODE_DEFAULT_EPOCH, &layout->epoch);
}

/* Is snowflake.layout set? */
bool
node_sets_layout(void)
{
	return node_configured_layout[0] != '\0';
}

/*
 * Replaces a layout's values by those that snowflake.layout and snowflake.epoch
 * set, which have passed their check hooks.  Raises an error if the result
 * lasts beyond the range of timestamps.
 */
void
node_apply_parameters(SnowflakeLayout *layout)
{
	TimestampTz epoch = layout->epoch;
	const char *detail = NULL;

	if (node_sets_layout())
		(void) layout_parse(node_configured_layout, layout, &detail);
	if (node_configured_epoch[0] != '\0')
		(void) node_parse_epoch(node_configured_epoch, &epoch);
	if (!layout_set_epoch(layout, epoch, &detail))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"%s\" and \"%s\" do not go together: \"%s\" and \"%s\"",
						"snowflake.layout", "snowflake.epoch",
						layout_to_text(layout), timestamptz_to_str(epoch)),
				 errdetail("%s", detail),
				 errhint("Give the layout fewer tick bits or a shorter tick.")));
}

/* Makes this process use a layout; see mark_layout.c. */
void
node_set_layout(const SnowflakeLayout *layout)
{
	node_present_layout = *layout;
}

/* Does the node fit a layout? */
bool
node_fits(const SnowflakeLayout *layout)
{
	return node_datacenter_id <= layout_field_max(layout->datacenter_bits) &&
		node_worker_id <= layout_field_max(layout->worker_bits);
}

/* Raises an error if the node does not fit a layout. */
void
node_check_fields(const SnowflakeLayout *layout)
{
	node_check_width("snowflake.datacenter_id", node_datacenter_id, 0,
					 "datacenter id", layout->datacenter_bits, layout);
	node_check_width("snowflake.worker_id", node_worker_id, WORKER_ID_UNSET,
					 "worker id", layout->worker_bits, layout);
}

/*
 * Checks the parameters of this server's identity against each other and, if
 * the layout is known, against node_layout(), and derives the worker id.  The
 * postmaster calls this function at its start, and an error stops the start.
 */
void
node_configure(bool is_layout_known)
{
	const SnowflakeLayout *layout = &node_present_layout;

	node_check_source();
	if (node_worker_id_source == WORKER_ID_SOURCE_HOSTNAME)
		node_worker_id = host_id_by_name(is_layout_known ?
										 layout->worker_bits :
										 LAYOUT_FIELD_BITS_MAX);
	else
		node_worker_id = node_configured_worker_id;
	if (is_layout_known)
		node_check_fields(layout);
}

/* Has the postmaster loaded the library at the server's start? */
bool
node_is_preloaded(void)
{
	return node_present_layout.tick_bits > 0;
}

/*
 * Raises ERROR 55000 unless the library was preloaded: without that no process
 * knows the node, and none shares memory with others.
 */
void
node_require_preload(void)
{
	if (likely(node_is_preloaded()))
		return;

	/* PostgreSQL shows the parameter to the roles of this privilege only. */
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the library \"snowflake\" was not loaded at the server's start"),
			 has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_SETTINGS) ?
			 errdetail("Without that, the server has no snowflake node: it issues no ids, and decodes ids only by an explicit epoch and layout. %s.",
					   config_origin("shared_preload_libraries")) :
			 errdetail("Without that, the server has no snowflake node: it issues no ids, and decodes ids only by an explicit epoch and layout."),
			 errhint("Add these lines to postgresql.conf or a file in conf.d, and restart the server:\n"
					 "shared_preload_libraries = 'snowflake'   # with what is there already\n"
					 "snowflake.worker_id = N                  # a number that no other server has\n"
					 "If they are there, the server was not restarted since, or a later line overrides them, such as one of ALTER SYSTEM in postgresql.auto.conf: \"SHOW shared_preload_libraries\" shows the value in force, and pg_file_settings all lines.")));
}

/*
 * Returns the layout that this process uses, which is the data's if the process
 * has called mark_layout() or mark_start_once() before.  ERROR 55000 without
 * preload.
 */
const SnowflakeLayout *
node_layout(void)
{
	node_require_preload();
	return &node_present_layout;
}

/*
 * Logs this server's node, and its layout unless that is NULL, and warns if
 * the server has no worker id.  Warns on a standby, too: after a promotion the
 * warning would be too late.
 */
void
node_announce(const SnowflakeLayout *layout)
{
	if (node_worker_id == WORKER_ID_UNSET && !node_uses_registry())
		ereport(WARNING,
				(errmsg("parameter \"%s\" is not set, so this server issues no snowflake ids",
						"snowflake.worker_id"),
				 layout == NULL ?
				 errhint("Set \"snowflake.worker_id\" to a number that no other server has, and restart the server.") :
				 errhint("Set \"snowflake.worker_id\" to a number of 0 .. " INT64_FORMAT " that no other server has, and restart the server.",
						 layout_field_max(layout->worker_bits))));
	else if (node_worker_id == WORKER_ID_UNSET)
		ereport(LOG,
				(errmsg("this server leases its worker id as a snowflake node of datacenter_id %d",
						node_datacenter_id),
				 layout == NULL ? 0 :
				 errdetail("Ids are of layout \"%s\" with epoch \"%s\".",
						   layout_to_text(layout),
						   timestamptz_to_str(layout->epoch))));
	else
		ereport(LOG,
				(errmsg("this server is snowflake node (%d,%d)",
						node_datacenter_id, node_worker_id),
				 layout == NULL ?
				 errdetail("The worker id comes from \"snowflake.worker_id_source\" = \"%s\".",
						   node_worker_id_source_name()) :
				 errdetail("The worker id comes from \"snowflake.worker_id_source\" = \"%s\", and ids are of layout \"%s\" with epoch \"%s\".",
						   node_worker_id_source_name(),
						   layout_to_text(layout),
						   timestamptz_to_str(layout->epoch))));
}

/* Is the worker id leased from a registry? */
bool
node_uses_registry(void)
{
	return node_registry[0] != '\0';
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

	while (source->val != node_worker_id_source)
		source++;
	return source->name;
}

static bool
node_parse_epoch(const char *text, TimestampTz *epoch)
{
	return node_parse_unix_ms(text, epoch) || node_parse_instant(text, epoch);
}

/*
 * Reads a whole number of milliseconds since 1970.  Returns false if the text
 * is not a number, or if the number is too small or too large.
 */
static bool
node_parse_unix_ms(const char *text, TimestampTz *epoch)
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
node_parse_instant(const char *text, TimestampTz *epoch)
{
	return node_is_absolute_instant(text) &&
		compat_timestamptz_in(text, epoch);
}

/*
 * Does a text begin with an ISO 8601 date, and end in a zone that means the
 * same everywhere: an offset, UTC, or a region such as Europe/Berlin?  The
 * meaning of any other abbreviation depends on timezone_abbreviations.
 */
static bool
node_is_absolute_instant(const char *text)
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

/* Raises an error if a field of the node does not fit its width. */
static void
node_check_width(const char *name, int value, int lowest, const char *field,
				 int bits, const SnowflakeLayout *layout)
{
	if (value >= lowest && value <= layout_field_max(bits))
		return;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%d is outside the valid range for parameter \"%s\" (0 .. " INT64_FORMAT ")",
					value, name, layout_field_max(bits)),
			 errhint("Layout \"%s\" has %d bits for the %s. Choose a value that fits or, if this server has issued no id yet, another \"snowflake.layout\".",
					 layout_to_text(layout), bits, field)));
}

/*
 * Raises an error if the worker id is both configured and derived, if
 * worker_id_source is "registry" without snowflake.registry, or if
 * snowflake.registry is set and no parameter says which worker id to lease.
 */
static void
node_check_source(void)
{
	if (node_worker_id_source == WORKER_ID_SOURCE_HOSTNAME &&
		node_configured_worker_id != WORKER_ID_UNSET)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"%s\" and \"%s\" do not go together: %d and \"%s\"",
						"snowflake.worker_id", "snowflake.worker_id_source",
						node_configured_worker_id, GetConfigOption("snowflake.worker_id_source", false, false)),
				 errhint("Take \"snowflake.worker_id\" out of the configuration, or set \"snowflake.worker_id_source\" to \"config\".")));
	if (node_worker_id_source == WORKER_ID_SOURCE_REGISTRY &&
		!node_uses_registry())
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is \"%s\", but \"%s\" is not set",
						"snowflake.worker_id_source", "registry",
						"snowflake.registry"),
				 errhint("Set \"snowflake.registry\" to the connection string of the registry's database.")));
	if (node_worker_id_source == WORKER_ID_SOURCE_CONFIG &&
		node_configured_worker_id == WORKER_ID_UNSET && node_uses_registry())
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is set, but \"%s\" is \"%s\" and \"%s\" is not set",
						"snowflake.registry", "snowflake.worker_id_source",
						"config", "snowflake.worker_id"),
				 errhint("Set \"snowflake.worker_id_source\" to \"registry\" to lease any worker id that is free, or \"snowflake.worker_id\" to lease that one.")));
}
