/*
 * lease_resolve.c
 *	  Addresses of host names, looked up without blocking.
 *
 * libpq looks names up by getaddrinfo(), which returns when the resolver has
 * answered or given up; this may take half a minute, and no signal interrupts
 * the call.  glibc's getaddrinfo_a() looks names up in a thread of its own.
 * Where there is no such function, the lookup blocks.
 *
 * A lookup goes on after its caller has stopped waiting.  The next caller that
 * asks for the same name waits for the same lookup, so that repeated attempts
 * to reach a registry send a silent resolver only one query.
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "lease_resolve.h"
#include "utils/memutils.h"

/* Since version 2.34 glibc has getaddrinfo_a() without another library. */
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
	int			begin_error;	/* 0, or why the lookup could not begin */
	struct gaicb request;
#else
	int			result;
	struct addrinfo *addresses;
#endif
};

/* The lookups in progress, which the C library's thread writes to. */
static List *lookups = NIL;

/* Begins to look a name up, or returns the name's lookup in progress. */
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

		/*
		 * If the C library cannot start a thread, this call fails, and
		 * gai_error() would return EAI_INPROGRESS for ever.
		 */
		lookup->begin_error = getaddrinfo_a(GAI_NOWAIT, requests, 1, NULL);
	}
#else
	lookup->result = getaddrinfo(lookup->name, NULL, &lookup->hints,
								 &lookup->addresses);
#endif
	return lookup;
}

/*
 * Returns EAI_INPROGRESS for a lookup in progress, 0 for a lookup that has
 * succeeded, and an error code for a lookup that has failed or could not
 * begin.
 */
static int
lookup_status(const Lookup *lookup)
{
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	return lookup->begin_error != 0 ? lookup->begin_error :
		gai_error(unconstify(struct gaicb *, &lookup->request));
#else
	return lookup->result;
#endif
}

bool
resolve_is_done(const Lookup *lookup)
{
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	return lookup_status(lookup) != EAI_INPROGRESS;
#else
	(void) lookup;
	return true;
#endif
}

/*
 * Returns the addresses that a finished lookup has found, as texts, and frees
 * the lookup.  Returns NIL and sets *error if there are no addresses.
 */
List *
resolve_end(Lookup *lookup, char **error)
{
	int			result = lookup_status(lookup);
#ifdef HAVE_ASYNCHRONOUS_LOOKUP
	struct addrinfo *addresses = lookup->request.ar_result;
#else
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
