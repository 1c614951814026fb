/*
 * node.c
 *	  Who this server is: its datacenter, its worker id, its layout.
 *
 * Only this file checks the parameters against each other.  The postmaster
 * calls the checks before it opens its port.  On a server that does not
 * preload the library, a session reads the layout and the epoch when it first
 * decodes an id; such a server has no identity and issues no ids.
 */
#include "postgres.h"

#include <ctype.h>

#include "common/hashfn.h"
#include "compat.h"
#include "host.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/timestamp.h"

/* parameters */
int			node_datacenter_id = 0;
int			node_worker_id = WORKER_ID_UNSET;
int			node_worker_id_source = WORKER_ID_SOURCE_CONFIG;
char	   *node_layout_text = NULL;
char	   *node_epoch_text = NULL;
char	   *node_registry = NULL;

bool		node_is_preloaded = false;

/* Computed in the postmaster; shmem_startup() says how its children get it. */
int			node_derived_worker_id = WORKER_ID_UNSET;

/* The configured layout, valid if layout_is_read. */
static Layout configured_layout;
static bool layout_is_read = false;

static bool check_hook_result(bool valid, const char *detail);
static bool parse_epoch(const char *text, TimestampTz *epoch,
						const char **detail);
static bool parse_unix_ms(const char *text, TimestampTz *epoch);
static bool parse_instant(const char *text, TimestampTz *epoch);
static bool begins_with_iso_date(const char *text);
static bool ends_in_absolute_zone(const char *text);
static bool decode_date_time(const char *text, struct pg_tm *tm, fsec_t *fsec,
							 int *tz);
static void refuse_parameter(const char *name, const char *value,
							 const char *detail);
static int error_level(void);
static void read_layout(void);
static void check_field(const char *name, int value, int lowest,
						const char *field, int bits);
static void check_source(void);
static void check_registry(void);
static void derive_worker_id(void);
static bool find_worker_id(HostFinding *finding);

bool
node_check_layout(char **newval, void **extra, GucSource source)
{
	Layout		layout;
	const char *detail;
	bool		valid = layout_parse(*newval, &layout, &detail);

	return check_hook_result(valid, detail);
}

bool
node_check_epoch(char **newval, void **extra, GucSource source)
{
	TimestampTz epoch;
	const char *detail = NULL;
	bool		valid = parse_epoch(*newval, &epoch, &detail);

	return check_hook_result(valid, detail);
}

/*
 * GUC assign hook of snowflake.layout and snowflake.epoch, which may change
 * while the server runs if the library is not preloaded.
 */
void
node_assign_text(const char *newval, void *extra)
{
	layout_is_read = false;
}

/*
 * Stops the start unless datacenter_id and worker_id are plain decimal
 * numbers: PostgreSQL also accepts octal and hexadecimal numbers, and rounds
 * fractions.
 */
void
node_check_number(const char *name, const char *text)
{
	const char *digits = *text == '-' ? text + 1 : text;

	if (pg_strcasecmp(name, "snowflake.datacenter_id") != 0 &&
		pg_strcasecmp(name, "snowflake.worker_id") != 0)
		return;
	if (strcmp(text, "0") == 0 ||
		(*digits >= '1' && *digits <= '9' &&
		 digits[strspn(digits, "0123456789")] == '\0'))
		return;
	refuse_parameter(name, text,
					 "It must be a decimal number without leading zeros.");
}

/*
 * Checks the parameters of this server's identity against each other.  The
 * postmaster calls this function at its start, and an error stops the start.
 * On platforms without fork() every process calls this function.
 */
void
node_configure(void)
{
	read_layout();
	check_field("snowflake.datacenter_id", node_datacenter_id, 0,
				"datacenter id", configured_layout.datacenter_bits);
	check_field("snowflake.worker_id", node_worker_id, WORKER_ID_UNSET,
				"worker id", configured_layout.worker_bits);
	check_source();
	check_registry();
	if (!IsUnderPostmaster &&
		node_worker_id_source != WORKER_ID_SOURCE_CONFIG &&
		node_worker_id_source != WORKER_ID_SOURCE_REGISTRY)
		derive_worker_id();
}

/*
 * Returns the configured layout.  Without preload, raises ERROR 22023 if the
 * configuration is not valid.
 */
const Layout *
node_layout(void)
{
	if (unlikely(!layout_is_read))
		read_layout();
	return &configured_layout;
}

/*
 * Returns the worker id that the configuration gives or derives, or
 * WORKER_ID_UNSET.  With a registry the server has to lease that worker id or,
 * if unset, any worker id.  Without preload no worker id is derived.
 */
int
node_intended_worker_id(void)
{
	return node_worker_id_source == WORKER_ID_SOURCE_CONFIG ||
		node_worker_id_source == WORKER_ID_SOURCE_REGISTRY ?
		node_worker_id : node_derived_worker_id;
}

/*
 * Logs this server's node, and warns if the server has no worker id.  Warns on
 * a standby, too: after a promotion the warning would be too late.
 */
void
node_announce(void)
{
	char		layout_text[LAYOUT_TEXT_SIZE];
	int			worker_id = node_intended_worker_id();

	layout_to_text(&configured_layout, layout_text);
	if (worker_id == WORKER_ID_UNSET && !node_uses_registry())
		ereport(WARNING,
				(errmsg("parameter \"%s\" is not set, so this server issues no snowflake ids",
						"snowflake.worker_id"),
				 errhint("Set \"snowflake.worker_id\" to a number of 0 .. " INT64_FORMAT " that no other server has, and restart the server.",
						 layout_field_max(configured_layout.worker_bits))));
	else
		ereport(LOG,
				(errmsg("snowflake node (%d,%s), %s \"%s\", %s \"%s\", %s \"%s\"",
						node_datacenter_id,
						worker_id == WORKER_ID_UNSET ? "leased" : psprintf("%d", worker_id),
						"snowflake.worker_id_source",
						node_worker_id_source_name(),
						"snowflake.layout", layout_text,
						"snowflake.epoch", node_epoch_text)));
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
	return GetConfigOption("snowflake.worker_id_source", false, false);
}

/*
 * Returns the result of a check hook.  Without preload a check hook accepts a
 * bad value, and read_layout() refuses the value later: if the hook refused
 * it, PostgreSQL would use the default and decode ids with a wrong layout.
 */
static bool
check_hook_result(bool valid, const char *detail)
{
	if (!valid && node_is_preloaded)
	{
		GUC_check_errdetail("%s", detail);
		return false;
	}
	return true;
}

/* Reads snowflake.epoch. */
static bool
parse_epoch(const char *text, TimestampTz *epoch, const char **detail)
{
	if (parse_unix_ms(text, epoch) || parse_instant(text, epoch))
		return true;

	*detail = "An epoch is a date and time with its time zone, as in \"2010-11-04 01:42:54.657+00\", or milliseconds since 1970.";
	return false;
}

/*
 * Reads a whole number of milliseconds since 1970.  Returns false if the text
 * is not a number, or if the instant is outside the range of timestamps.
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
		ms > END_TIMESTAMP / 1000 || ms < MIN_TIMESTAMP / 1000)
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
	struct pg_tm tm;
	fsec_t		fsec;
	int			tz;
	volatile bool valid = false;

	if (!begins_with_iso_date(text) || !ends_in_absolute_zone(text))
		return false;

	/* An unknown zone raises an error, which must not end the postmaster. */
	PG_TRY();
	{
		valid = !decode_date_time(text, &tm, &fsec, NULL) &&
			decode_date_time(text, &tm, &fsec, &tz) &&
			tm2timestamp(&tm, fsec, &tz, epoch) == 0;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();

	return valid;
}

/* Does a text begin with an ISO 8601 date, such as 2010-11-04? */
static bool
begins_with_iso_date(const char *text)
{
	const char *pattern = "dddd-dd-dd";

	for (; *pattern != '\0'; pattern++, text++)
	{
		if (*pattern == 'd' ? !isdigit((unsigned char) *text) :
			*text != *pattern)
			return false;
	}
	return true;
}

/*
 * Does a date and time end in a zone that means the same everywhere: an
 * offset, UTC, or a region such as Europe/Berlin?  The meaning of any other
 * abbreviation depends on timezone_abbreviations.
 */
static bool
ends_in_absolute_zone(const char *text)
{
	const char *zone = text + strspn(text, "0123456789-:.Tt ");

	/*
	 * strspn() has skipped an offset that begins with a minus, or the text has
	 * no zone, which parse_instant() finds out and refuses.
	 */
	if (*zone == '\0')
		return true;
	if (*zone == '+')
		return zone[1 + strspn(zone + 1, "0123456789:")] == '\0';
	return pg_strcasecmp(zone, "Z") == 0 || pg_strcasecmp(zone, "UTC") == 0 ||
		strchr(zone, '/') != NULL;
}

/*
 * Decodes a date and time, and sets *tz to its zone.  If "tz" is NULL, only a
 * text without a zone can be decoded.  Returns false if the text cannot be
 * decoded, or is not a finite instant.
 */
static bool
decode_date_time(const char *text, struct pg_tm *tm, fsec_t *fsec, int *tz)
{
	char		buffer[MAXDATELEN + MAXDATEFIELDS];
	char	   *field[MAXDATEFIELDS];
	int			ftype[MAXDATEFIELDS];
	int			nf;
	int			dtype;

	return ParseDateTime(text, buffer, sizeof(buffer), field, ftype,
						 MAXDATEFIELDS, &nf) == 0 &&
		compat_DecodeDateTime(field, ftype, nf, &dtype, tm, fsec, tz) == 0 &&
		dtype == DTK_DATE;
}

static void
refuse_parameter(const char *name, const char *value, const char *detail)
{
	ereport(error_level(),
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for parameter \"%s\": \"%s\"",
					name, value),
			 errdetail("%s", detail)));
}

/* A bad configuration stops the server's start; later, only one statement. */
static int
error_level(void)
{
	return process_shared_preload_libraries_in_progress ? FATAL : ERROR;
}

/* Reads the layout and the epoch, and checks that they fit each other. */
static void
read_layout(void)
{
	Layout		layout;
	TimestampTz epoch = 0;
	const char *detail = NULL;

	if (!layout_parse(node_layout_text, &layout, &detail))
		refuse_parameter("snowflake.layout", node_layout_text, detail);
	if (!parse_epoch(node_epoch_text, &epoch, &detail))
		refuse_parameter("snowflake.epoch", node_epoch_text, detail);
	if (!layout_set_epoch(&layout, epoch, &detail))
		ereport(error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"%s\" and \"%s\" do not go together: \"%s\" and \"%s\"",
						"snowflake.layout", "snowflake.epoch",
						node_layout_text, node_epoch_text),
				 errdetail("%s", detail),
				 errhint("Give the layout fewer tick bits or a shorter tick.")));

	configured_layout = layout;
	layout_is_read = true;
}

/* Stops the start if a field of the node does not fit its width. */
static void
check_field(const char *name, int value, int lowest, const char *field,
			int bits)
{
	if (value >= lowest && value <= layout_field_max(bits))
		return;

	ereport(error_level(),
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%d is outside the valid range for parameter \"%s\" (0 .. " INT64_FORMAT ")",
					value, name, layout_field_max(bits)),
			 errhint("Layout \"%s\" has %d bits for the %s. Choose a value that fits, or another \"snowflake.layout\".",
					 node_layout_text, bits, field)));
}

/* Stops the start if the worker id is both configured and derived. */
static void
check_source(void)
{
	if (node_worker_id_source == WORKER_ID_SOURCE_CONFIG ||
		node_worker_id_source == WORKER_ID_SOURCE_REGISTRY ||
		node_worker_id == WORKER_ID_UNSET)
		return;

	ereport(error_level(),
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameters \"%s\" and \"%s\" do not go together: %d and \"%s\"",
					"snowflake.worker_id", "snowflake.worker_id_source",
					node_worker_id, node_worker_id_source_name()),
			 errhint("Take \"snowflake.worker_id\" out of the configuration, or set \"snowflake.worker_id_source\" to \"config\".")));
}

/*
 * Stops the start if worker_id_source is "registry" without
 * snowflake.registry, or if snowflake.registry is set and no parameter says
 * which worker id to lease.
 */
static void
check_registry(void)
{
	if (node_worker_id_source == WORKER_ID_SOURCE_REGISTRY &&
		!node_uses_registry())
		ereport(error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is \"%s\", but \"%s\" is not set",
						"snowflake.worker_id_source", "registry",
						"snowflake.registry"),
				 errhint("Set \"snowflake.registry\" to the connection string of the registry's database.")));
	if (node_worker_id_source == WORKER_ID_SOURCE_CONFIG &&
		node_worker_id == WORKER_ID_UNSET && node_uses_registry())
		ereport(error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is set, but \"%s\" is \"%s\" and \"%s\" is not set",
						"snowflake.registry", "snowflake.worker_id_source",
						"config", "snowflake.worker_id"),
				 errhint("Set \"snowflake.worker_id_source\" to \"registry\" to lease any worker id that is free, or \"snowflake.worker_id\" to lease that one.")));
}

/* Derives the worker id, or stops the start. */
static void
derive_worker_id(void)
{
	HostFinding finding = {0};

	if (!find_worker_id(&finding))
		ereport(error_level(),
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no worker id can be derived by parameter \"%s\" = \"%s\"",
						"snowflake.worker_id_source",
						node_worker_id_source_name()),
				 errdetail("%s", finding.detail),
				 errhint("%s", finding.hint)));

	node_derived_worker_id = finding.worker_id;
	ereport(LOG,
			(errmsg("derived snowflake worker id %d from %s",
					node_derived_worker_id, finding.origin)));
}

/* Derives the worker id.  Returns false and sets the reason if it fails. */
static bool
find_worker_id(HostFinding *finding)
{
	int			worker_bits = configured_layout.worker_bits;

	if (worker_bits == 0)
	{
		finding->detail = psprintf("Layout \"%s\" has no bits for the worker id.",
								   node_layout_text);
		finding->hint = "Choose a \"snowflake.layout\" that has bits for the worker id, or set \"snowflake.worker_id_source\" to \"config\".";
		return false;
	}

	switch ((WorkerIdSource) node_worker_id_source)
	{
		case WORKER_ID_SOURCE_HOSTNAME:
			return host_id_by_name(worker_bits, finding);
		case WORKER_ID_SOURCE_IPV4:
			return host_id_by_ipv4(worker_bits, finding);
		case WORKER_ID_SOURCE_CONFIG:
		case WORKER_ID_SOURCE_REGISTRY:
			break;
	}
	elog(error_level(), "no worker id can be derived from source %d",
		 node_worker_id_source);
	return false;				/* not reached */
}
