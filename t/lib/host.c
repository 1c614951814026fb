/*
 * host.c
 *	  Gives a server another host's name and interfaces, and another name
 *	  server.  The tests preload it.
 *
 * HOST_FACTS names a file with a fact in each line.  The server sees no host
 * name or interface that the file does not have:
 *
 *	  name NAME							the host's name
 *	  inet INTERFACE INDEX FLAGS ADDRESS MASK	an IPv4 address; mask "none"
 *	  inet6 INTERFACE INDEX FLAGS ADDRESS
 *	  bare INTERFACE INDEX FLAGS		an interface without an address, such as a tunnel
 *	  nameserver ADDRESS PORT			the name server, for the lease worker
 *
 * FLAGS are "up", "down" or "loopback".  Index 0 stands for an interface that
 * was removed after getifaddrs() had listed it.  With a fact "broken",
 * getifaddrs() fails.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_SIZE 256
#define WORD_COUNT 6

typedef struct Fact
{
	int			count;
	char		word[WORD_COUNT][WORD_SIZE];
} Fact;

/* An entry of the list that getifaddrs() returns, with what it points to. */
typedef struct Entry
{
	struct ifaddrs head;
	char		name[WORD_SIZE];
	union
	{
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	}			address;
	struct sockaddr_in mask;
} Entry;

static FILE *
open_facts(void)
{
	const char *name = getenv("HOST_FACTS");
	FILE	   *file = name != NULL ? fopen(name, "r") : NULL;

	if (file == NULL)
		abort();
	return file;
}

/* Reads the next fact.  Returns 0 at the end. */
static int
next_fact(FILE *file, Fact *fact)
{
	char		line[WORD_COUNT * WORD_SIZE];

	if (fgets(line, sizeof(line), file) == NULL)
		return 0;
	memset(fact, 0, sizeof(*fact));
	fact->count = sscanf(line, "%255s %255s %255s %255s %255s %255s",
						 fact->word[0], fact->word[1], fact->word[2],
						 fact->word[3], fact->word[4], fact->word[5]);
	return 1;
}

int
gethostname(char *name, size_t size)
{
	FILE	   *file = open_facts();
	Fact		fact;
	int			result = -1;

	errno = ENAMETOOLONG;
	while (result != 0 && next_fact(file, &fact))
	{
		if (strcmp(fact.word[0], "name") != 0)
			continue;
		strncpy(name, fact.word[1], size);
		result = 0;
	}
	fclose(file);
	return result;
}

/* What a fortified build calls where it does not see the buffer's size. */
int
__gethostname_chk(char *name, size_t size, size_t buffer_size)
{
	if (size > buffer_size)
		abort();
	return gethostname(name, size);
}

static unsigned int
flags_of(const char *text)
{
	if (strcmp(text, "loopback") == 0)
		return IFF_UP | IFF_LOOPBACK;
	return strcmp(text, "up") == 0 ? IFF_UP : 0;
}

/* The entry of a fact; NULL if the fact is not about an interface. */
static Entry *
entry_of(const Fact *fact)
{
	Entry	   *entry = calloc(1, sizeof(Entry));

	strcpy(entry->name, fact->word[1]);
	entry->head.ifa_name = entry->name;
	entry->head.ifa_flags = flags_of(fact->word[3]);
	entry->head.ifa_addr = &entry->address.any;
	if (strcmp(fact->word[0], "inet") == 0)
	{
		entry->address.in.sin_family = AF_INET;
		inet_pton(AF_INET, fact->word[4], &entry->address.in.sin_addr);
		entry->mask.sin_family = AF_INET;
		if (inet_pton(AF_INET, fact->word[5], &entry->mask.sin_addr) == 1)
			entry->head.ifa_netmask = (struct sockaddr *) &entry->mask;
	}
	else if (strcmp(fact->word[0], "inet6") == 0)
	{
		entry->address.in6.sin6_family = AF_INET6;
		inet_pton(AF_INET6, fact->word[4], &entry->address.in6.sin6_addr);
	}
	else if (strcmp(fact->word[0], "bare") == 0)
		entry->head.ifa_addr = NULL;
	else
	{
		free(entry);
		return NULL;
	}
	return entry;
}

void
freeifaddrs(struct ifaddrs *list)
{
	while (list != NULL)
	{
		struct ifaddrs *next = list->ifa_next;

		free(list);
		list = next;
	}
}

int
getifaddrs(struct ifaddrs **list)
{
	FILE	   *file = open_facts();
	struct ifaddrs **end = list;
	Fact		fact;

	*list = NULL;
	while (next_fact(file, &fact))
	{
		Entry	   *entry;

		if (strcmp(fact.word[0], "broken") == 0)
		{
			fclose(file);
			freeifaddrs(*list);
			errno = EMFILE;
			return -1;
		}
		entry = entry_of(&fact);
		if (entry == NULL)
			continue;
		*end = &entry->head;
		end = &entry->head.ifa_next;
	}
	fclose(file);
	return 0;
}

unsigned int
if_nametoindex(const char *name)
{
	FILE	   *file = open_facts();
	Fact		fact;
	unsigned int index = 0;

	while (index == 0 && next_fact(file, &fact))
	{
		if (fact.count >= 4 && strcmp(fact.word[1], name) == 0)
			index = (unsigned int) atoi(fact.word[2]);
	}
	fclose(file);
	return index;
}

/*
 * The C library reads the configuration of its resolver.  The test's name server
 * replaces those of the system.
 */
int
res_init(void)
{
	static int	(*real) (void) = NULL;
	FILE	   *file = open_facts();
	Fact		fact;
	int			result;

	if (real == NULL)
		*(void **) &real = dlsym(RTLD_NEXT, "__res_init");
	result = real();
	while (next_fact(file, &fact))
	{
		struct sockaddr_in *server = &_res.nsaddr_list[0];

		if (strcmp(fact.word[0], "nameserver") != 0)
			continue;
		_res.nscount = 1;
		server->sin_family = AF_INET;
		server->sin_port = htons((uint16_t) atoi(fact.word[2]));
		inet_pton(AF_INET, fact.word[1], &server->sin_addr);
	}
	fclose(file);
	return result;
}
