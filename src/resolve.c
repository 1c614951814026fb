/*
 * resolve.c
 *	  Addresses of host names, looked up without blocking.
 *
 * libpq looks a name up by getaddrinfo(), which returns when the resolver has
 * answered or given up; that may take half a minute, and no signal ends it.
 * The C library of Linux can do the same beside the process.  Where it cannot,
 * the lookup blocks.
 *
 * A lookup that nobody waits for any more goes on.  Whoever asks for the same
 * name again waits for that one, so that a resolver which does not answer is
 * asked once for each name, and not at every attempt.
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "resolve.h"
#include "utils/memutils.h"

/* glibc has it without a library of its own since 2.34 */
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
#define HAVE_ASYNCHRONOUS_LOOKUP
#endif
#endif

struct Lookup
{
	char	   *name;
	struct addrinfo hints;
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	struct gaicb request;
#else
	int			result;
	struct addrinfo *addresses;
#endif
};

/* Those that are under way.  The C library writes into them. */
static List *lookups = NIL;

/* Begins to look a name up, or returns the lookup that is under way. */
Lookup *
resolve_begin(const char *name)
{
	MemoryContext caller;
	Lookup	   *lookup;
	ListCell   *cell;

	foreach(cell, lookups)
	{
		lookup = lfirst(cell);
		if (strcmp(lookup->name, name) == 0)
			return lookup;
	}

	caller = MemoryContextSwitchTo(TopMemoryContext);
	lookup = palloc0(sizeof(Lookup));
	lookup->name = pstrdup(name);
	lookup->hints.ai_family = AF_UNSPEC;
	lookup->hints.ai_socktype = SOCK_STREAM;
	lookups = lappend(lookups, lookup);
	MemoryContextSwitchTo(caller);

#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	{
		struct gaicb *requests[] = {&lookup->request};

		lookup->request.ar_name = lookup->name;
		lookup->request.ar_request = &lookup->hints;
		/* if it fails, gai_error() tells */
		(void) getaddrinfo_a(GAI_NOWAIT, requests, 1, NULL);
	}
#else
	lookup->result = getaddrinfo(lookup->name, NULL, &lookup->hints,
								 &lookup->addresses);
#endif
	return lookup;
}

bool
resolve_is_done(const Lookup *lookup)
{
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	return gai_error(unconstify(struct gaicb *, &lookup->request)) != EAI_INPROGRESS;
#else
	(void) lookup;
	return true;
#endif
}

/*
 * The addresses that a finished lookup has found, as texts; NIL, and the
 * resolver's words, if there are none.
 */
List *
resolve_end(Lookup *lookup, char **error)
{
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	int			result = gai_error(&lookup->request);
	struct addrinfo *addresses = lookup->request.ar_result;
#else
	int			result = lookup->result;
	struct addrinfo *addresses = lookup->addresses;
#endif
	List	   *found = NIL;

	if (result != 0)
		*error = pstrdup(gai_strerror(result));
	else
	{
		for (struct addrinfo *at = addresses; at != NULL; at = at->ai_next)
		{
			char		text[NI_MAXHOST];

			if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text),
							NULL, 0, NI_NUMERICHOST) == 0)
				found = lappend(found, pstrdup(text));
		}
		if (found == NIL)
			*error = pstrdup("no address");
		freeaddrinfo(addresses);
	}

	lookups = list_delete_ptr(lookups, lookup);
	pfree(lookup->name);
	pfree(lookup);
	return found;
}
