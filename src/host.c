/*
 * host.c
 *	  This host's name, from which a worker id is derived, and this server's
 *	  identity as the holder of a lease.
 *
 * The worker id is derived once a start, and a failure stops the start.
 *
 * A worker id that two servers derive alike is worse than no worker id.  So a
 * name whose number is not its own is refused.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "host.h"
#include "layout.h"
#include "lease_rules.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/guc.h"

/* Longer than any host name. */
#define HOST_NAME_SIZE 1024

/* The kernel's id of its present run, which changes with every boot. */
#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LENGTH 36

/* See host_find_holder(); the location is for people. */
char		host_holder[LEASE_HOLDER_SIZE] = "";
char		host_location[HOST_LOCATION_SIZE] = "";

static void refuse(const char *detail, const char *hint);
static bool is_random_name(const char *name);
static bool name_number(const char *name, int64 *number);
static void find_location(void);
static void read_boot_id(char *boot_id);

int
host_id_by_name(int worker_bits)
{
	char		name[HOST_NAME_SIZE] = "";
	int64		number = 0;

	/* Leave room for a zero, which gethostname() may omit from a cut name. */
	if (gethostname(name, sizeof(name) - 1) != 0)
		refuse(psprintf("The host name cannot be read: %s.", strerror(errno)),
			   "Choose another \"snowflake.worker_id_source\".");
	if (is_random_name(name))
		refuse(psprintf("Host name \"%s\" has the form of a container's random name.",
						name),
			   "Give the container a host name with a number that no other server has, as in \"pg-3\", or choose another \"snowflake.worker_id_source\".");
	if (!name_number(name, &number))
		refuse(psprintf("Host name \"%s\" does not end in a number before its first dot.",
						name),
			   "Give the host a name with a number that no other server has, as in \"pg-3\", or choose another \"snowflake.worker_id_source\".");
	if (number > layout_field_max(worker_bits))
		refuse(psprintf("The number of host name \"%s\" is outside the range of the worker id (0 .. " INT64_FORMAT ").",
						name, layout_field_max(worker_bits)),
			   "Choose a \"snowflake.layout\" with more bits for the worker id, or another \"snowflake.worker_id_source\".");
	ereport(LOG,
			(errmsg("derived snowflake worker id %d from host name \"%s\"",
					(int) number, name)));
	return (int) number;
}

/*
 * Finds this server's holder and location.  A holder is a data directory under
 * a running kernel.  Two holders that exist at the same time differ in their
 * texts, unless a virtual machine was copied with its memory.  So a server
 * with the same text as a lease's holder is the server that the lease was
 * granted to, started again; a server with another text may be a copy.
 *
 * The postmaster calls this function once, and its children inherit the
 * results.
 */
void
host_find_holder(void)
{
	char		boot_id[BOOT_ID_LENGTH + 1];
	struct stat directory;

	if (stat(DataDir, &directory) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not stat directory \"%s\": %m", DataDir)));
	find_location();
	read_boot_id(boot_id);
	snprintf(host_holder, sizeof(host_holder), "%s/%llx/%llu", boot_id,
			 (unsigned long long) directory.st_dev,
			 (unsigned long long) directory.st_ino);
}

uint64
host_holder_hash(void)
{
	return hash_bytes_extended((const unsigned char *) host_holder,
							   (int) strlen(host_holder), 0);
}

static void
refuse(const char *detail, const char *hint)
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
 * Has a host name the form of those that Docker and Podman draw, twelve
 * hexadecimal digits?  Such a name may end in a number, which says nothing.
 */
static bool
is_random_name(const char *name)
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
name_number(const char *name, int64 *number)
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

/* Finds the location.  A path that is too long loses its beginning. */
static void
find_location(void)
{
	char		name[HOST_LOCATION_SIZE / 2];
	size_t		room;
	size_t		length = strlen(DataDir);

	if (gethostname(name, sizeof(name)) != 0)
		strlcpy(name, "?", sizeof(name));
	name[sizeof(name) - 1] = '\0';
	room = HOST_LOCATION_SIZE - strlen(name) - 2;
	snprintf(host_location, sizeof(host_location), "%s:%s", name,
			 length > room ? DataDir + length - room : DataDir);
}

/*
 * Reads the boot id.  Where the kernel has no boot id, the text is random and
 * differs at each start of the server.
 */
static void
read_boot_id(char *boot_id)
{
	int			fd = OpenTransientFile(BOOT_ID_FILE, O_RDONLY);
	ssize_t		length = 0;
	uint64		random[2];

	if (fd >= 0)
	{
		length = read(fd, boot_id, BOOT_ID_LENGTH);
		(void) CloseTransientFile(fd);
	}
	if (length == BOOT_ID_LENGTH)
	{
		boot_id[BOOT_ID_LENGTH] = '\0';
		return;
	}

	if (!pg_strong_random(random, sizeof(random)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number")));
	snprintf(boot_id, BOOT_ID_LENGTH + 1, UINT64_FORMAT "." UINT64_FORMAT,
			 random[0] % 100000000, random[1]);
}
