/*
 * host.c
 *	  Gives a server another host's name, and another name server.  The tests
 *	  preload it.
 *
 * HOST_FACTS names a file with a fact in each line.  The server sees no host
 * name that the file does not have:
 *
 *	  name NAME						the host's name
 *	  nameserver ADDRESS PORT		the name server, for the lease worker
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_SIZE 256
#define WORD_COUNT 3

typedef struct Fact
{
	char		word[WORD_COUNT][WORD_SIZE];
} Fact;

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
	(void) sscanf(line, "%255s %255s %255s",
				  fact->word[0], fact->word[1], fact->word[2]);
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
