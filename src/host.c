/*
 * host.c
 *	  This host's name, from which a worker id is derived.
 *
 * The worker id is derived once, at the server's start.  A failure stops the
 * start.
 *
 * Two servers that derive the same worker id are worse than a server without
 * one.  So a name is refused if its number may not be the host's own.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <unistd.h>

#include "host.h"
#include "layout.h"
#include "utils/guc.h"

/* Longer than any host name. */
#define HOST_NAME_SIZE 1024

static void host_refuse(const char *detail, const char *hint);
static bool host_has_random_name(const char *name);
static bool host_find_number(const char *name, int64 *number);

int
host_id_by_name(int worker_bits)
{
	char		name[HOST_NAME_SIZE] = "";
	int64		number = 0;

	/* Leave room for a zero, which gethostname() may omit from a cut name. */
	if (gethostname(name, sizeof(name) - 1) != 0)
		host_refuse(psprintf("The host name cannot be read: %s.",
							 strerror(errno)),
					"Choose another \"snowflake.worker_id_source\".");
	if (host_has_random_name(name))
		host_refuse(psprintf("Host name \"%s\" has the form of a container's random name.",
							 name),
					"Give the container a host name with a number that no other server has, as in \"pg-3\", or choose another \"snowflake.worker_id_source\".");
	if (!host_find_number(name, &number))
		host_refuse(psprintf("Host name \"%s\" does not end in a number before its first dot.",
							 name),
					"Give the host a name with a number that no other server has, as in \"pg-3\", or choose another \"snowflake.worker_id_source\".");
	if (number > layout_field_max(worker_bits))
		host_refuse(psprintf("The number of host name \"%s\" is outside the range of the worker id (0 .. " INT64_FORMAT ").",
							 name, layout_field_max(worker_bits)),
					"Choose a \"snowflake.layout\" with more bits for the worker id, or another \"snowflake.worker_id_source\".");
	ereport(LOG,
			(errmsg("derived snowflake worker id %d from host name \"%s\"",
					(int) number, name)));
	return (int) number;
}

static void
host_refuse(const char *detail, const char *hint)
{
	ereport(FATAL,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("no worker id can be derived by parameter \"%s\" = \"%s\"",
					"snowflake.worker_id_source",
					GetConfigOption("snowflake.worker_id_source", false, false)),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/*
 * Has a host name the form of the random names that Docker and Podman give,
 * twelve hexadecimal digits?  Such a name may end in a number by chance.
 */
static bool
host_has_random_name(const char *name)
{
	size_t		length = strspn(name, "0123456789abcdefABCDEF");

	return length == 12 && (name[length] == '\0' || name[length] == '.');
}

/*
 * Finds the number at the end of a host name, or before the name's first dot:
 * Kubernetes numbers the pods of a StatefulSet in this way.  A number beyond
 * the range of int64 becomes PG_INT64_MAX.  Returns false if there is no such
 * number, or if the name is an IPv4 address, whose first number is the same on
 * many hosts.
 */
static bool
host_find_number(const char *name, int64 *number)
{
	const char *end = name + strcspn(name, ".");
	const char *digits = end;
	struct in_addr address;

	while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
		digits--;
	if (digits == end || inet_pton(AF_INET, name, &address) == 1)
		return false;

	*number = strtoi64(digits, NULL, 10);
	return true;
}
