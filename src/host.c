/*
 * host.c
 *	  This host's name and addresses, from which worker ids are derived, and
 *	  this server's identity as the holder of a lease.
 *
 * The worker id is derived once a start, and a failure stops the start.
 *
 * A worker id that two servers derive alike is worse than no worker id.  So
 * the functions fail where the layout has too few bits to distinguish the
 * hosts of one network.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "host.h"
#include "layout.h"
#include "lease_rules.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/fd.h"
#include "utils/guc.h"

/* Longer than any host name. */
#define HOST_NAME_SIZE 1024

/* The kernel's id of its present run, which changes with every boot. */
#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LENGTH 36

/*
 * The least worker bits for an address of a point-to-point network, whose
 * netmask does not tell how many bits differ between servers.
 */
#define BITS_WITHOUT_NETWORK 16

/* See host_find_holder(); the location is for people. */
char		host_holder[LEASE_HOLDER_SIZE] = "";
char		host_location[HOST_LOCATION_SIZE] = "";

static void refuse(const char *detail, const char *hint);
static bool is_random_name(const char *name);
static bool name_number(const char *name, int64 *number);
static const struct ifaddrs *first_ipv4(const struct ifaddrs *list,
										StringInfo seen);
static const char *ipv4_why_not(const struct ifaddrs *entry);
static uint32 ipv4_of(const struct sockaddr *address);
static char *ipv4_to_text(const struct ifaddrs *entry);
static int	ipv4_host_bits(const struct ifaddrs *entry);
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

/* Takes the low bits of the first global address. */
int
host_id_by_ipv4(int worker_bits)
{
	struct ifaddrs *list;
	const struct ifaddrs *first;
	StringInfoData seen;
	char	   *origin = NULL;
	char	   *why;
	uint32		address = 0;
	int			needed_bits = 0;
	int			worker_id;

	if (getifaddrs(&list) != 0)
		refuse(psprintf("The addresses of interfaces cannot be read: %s.",
						strerror(errno)),
			   "Choose another \"snowflake.worker_id_source\".");
	initStringInfo(&seen);
	first = first_ipv4(list, &seen);
	if (first != NULL)
	{
		origin = psprintf("address %s of interface \"%s\"",
						  ipv4_to_text(first), first->ifa_name);
		address = ipv4_of(first->ifa_addr);
		needed_bits = ipv4_host_bits(first);
	}
	freeifaddrs(list);

	if (origin == NULL)
		refuse(seen.len > 0 ?
			   psprintf("There is no global IPv4 address among these: %s.",
						seen.data) :
			   "There is no global IPv4 address: no interface has any address of its kind.",
			   "Let the server start after the network is up, or choose another \"snowflake.worker_id_source\".");

	why = psprintf("The network of %s has %d bits for its hosts",
				   origin, needed_bits);

	/* A network of one or two addresses counts as point-to-point. */
	if (needed_bits <= 1)
	{
		why = psprintf("No netmask tells how many bits of %s differ between servers",
					   origin);
		needed_bits = BITS_WITHOUT_NETWORK;
	}
	if (needed_bits > worker_bits)
		refuse(psprintf("%s. The worker id needs at least %d bits, and the layout has %d.",
						why, needed_bits, worker_bits),
			   psprintf("Choose a \"snowflake.layout\" with at least %d bits for the worker id, or another \"snowflake.worker_id_source\".",
						needed_bits));
	worker_id = (int) (address & layout_field_max(worker_bits));
	ereport(LOG,
			(errmsg("derived snowflake worker id %d from %s",
					worker_id, origin)));
	return worker_id;
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

/*
 * Returns the first suitable address, in the order of the interfaces' numbers
 * and, for one interface, in the order of the list; NULL if there is none.
 * Appends the addresses that are not suitable to "seen", each with the reason.
 */
static const struct ifaddrs *
first_ipv4(const struct ifaddrs *list, StringInfo seen)
{
	const struct ifaddrs *first = NULL;
	unsigned int first_index = 0;

	for (const struct ifaddrs *entry = list; entry != NULL;
		 entry = entry->ifa_next)
	{
		unsigned int index;
		const char *reason;

		if (entry->ifa_addr == NULL || entry->ifa_addr->sa_family != AF_INET)
			continue;
		index = if_nametoindex(entry->ifa_name);
		reason = index == 0 ? "gone" : ipv4_why_not(entry);
		if (reason == NULL)
		{
			if (first == NULL || index < first_index)
			{
				first = entry;
				first_index = index;
			}
			continue;
		}
		appendStringInfo(seen, "%s%s of interface \"%s\" (%s)",
						 seen->len > 0 ? ", " : "", ipv4_to_text(entry),
						 entry->ifa_name, reason);
	}
	return first;
}

static const char *
ipv4_why_not(const struct ifaddrs *entry)
{
	uint32		address = ipv4_of(entry->ifa_addr);

	if (!(entry->ifa_flags & IFF_UP))
		return "down";
	if ((entry->ifa_flags & IFF_LOOPBACK) || address >> 24 == 127)
		return "loopback";
	if (address >> 16 == ((169 << 8) | 254))
		return "link-local";
	if (address == 0)
		return "no address";
	if (address >> 28 == 14)
		return "multicast";
	return NULL;
}

static uint32
ipv4_of(const struct sockaddr *address)
{
	return ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr);
}

static char *
ipv4_to_text(const struct ifaddrs *entry)
{
	uint32		address = ipv4_of(entry->ifa_addr);

	return psprintf("%u.%u.%u.%u/%d",
					address >> 24, address >> 16 & 255, address >> 8 & 255,
					address & 255, 32 - ipv4_host_bits(entry));
}

/* Returns how many bits differ between the hosts of an address's network. */
static int
ipv4_host_bits(const struct ifaddrs *entry)
{
	uint32		host_mask;

	if (entry->ifa_netmask == NULL)
		return 0;
	host_mask = ~ipv4_of(entry->ifa_netmask);
	return host_mask == 0 ? 0 : pg_leftmost_one_pos32(host_mask) + 1;
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
