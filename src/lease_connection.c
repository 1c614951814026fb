/*
 * lease_connection.c
 *	  A connection to another PostgreSQL that can be interrupted.
 *
 * A process waits for libpq's socket and its own latch together, so that a
 * server that does not answer delays neither a shutdown nor a cancel.  libpq
 * would block while it looks a host name up.  So lease_resolve.c looks names
 * up, and libpq gets addresses, each with a share of the time.  Results come in
 * binary form, which no setting of the other server changes.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "id_clock.h"
#include "lease_connection.h"
#include "lease_resolve.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* The timeout of one address if other addresses remain to be tried. */
#define ADDRESS_TIMEOUT_US INT64CONST(3000000)

/* How often to test whether a name has been resolved. */
#define LOOKUP_INTERVAL_MS 10L

/* For wait_for(): wait until the deadline. */
#define UNTIL_DEADLINE (-1L)

/* More options than a connection string and this file's defaults have. */
#define OPTIONS_MAX 128

/*
 * Is a text a connection string?  If not, "detail" says why, without the part
 * that libpq quotes, which may belong to a password.
 */
bool
connection_is_valid_string(const char *conninfo, char **detail)
{
	static const char *const before_secrets[] = {": \"", " after \""};
	char	   *error = NULL;
	PQconninfoOption *options = PQconninfoParse(conninfo, &error);

	if (options != NULL)
	{
		PQconninfoFree(options);
		return true;
	}
	*detail = error != NULL ? pchomp(error) : pstrdup("out of memory");
	for (int i = 0; i < lengthof(before_secrets); i++)
	{
		char	   *found = strstr(*detail, before_secrets[i]);

		if (found != NULL)
			*found = '\0';
	}
	PQfreemem(error);
	return false;
}

/* Returns the length of a comma-separated list; 0 for NULL and for "". */
static int
count_of_list(const char *list)
{
	int			count = 1;

	if (list == NULL || *list == '\0')
		return 0;
	for (; *list != '\0'; list++)
		count += *list == ',';
	return count;
}

/*
 * Returns the element of a list for a host.  Hosts are numbered from 0.  If the
 * list has only one element, that element is for all hosts.
 */
static char *
element_of_list(const char *list, int number)
{
	if (count_of_list(list) > 1)
	{
		for (; number > 0; number--)
			list = strchr(list, ',') + 1;
	}
	return pnstrdup(list, strcspn(list, ","));
}

static bool
is_host_option(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/*
 * Returns the number of hosts that a connection string names, 1 if it names
 * none, 0 if two lists of several hosts, addresses or ports differ in length.
 * A list of one element fits any other list.
 */
static int
count_hosts(const PQconninfoOption *options)
{
	int			hosts = 1;

	for (; options->keyword != NULL; options++)
	{
		int			count = is_host_option(options->keyword) ?
			count_of_list(options->val) : 0;

		if (count <= 1)
			continue;
		if (hosts > 1 && count != hosts)
			return 0;
		hosts = count;
	}
	return hosts;
}

/*
 * Waits for one of the events, for timeout_ms at most or UNTIL_DEADLINE.
 * Returns false and sets the reason at the deadline, and at shutdown unless
 * the caller ignores a shutdown.
 */
static bool
wait_for(Remote *remote, int events, int64 deadline_us, long timeout_ms,
		 int *happened)
{
	int64		left_us = deadline_us - clock_boottime_us();
	long		left_ms = (long) (left_us / 1000 + 1);
	bool		has_socket = (events & WL_SOCKET_MASK) != 0;

	if (left_us <= 0)
	{
		remote->has_timed_out = true;
		connection_set_reason(remote, "no answer in time");
		return false;
	}
	*happened = WaitLatchOrSocket(MyLatch,
								  WL_LATCH_SET | WL_TIMEOUT |
								  WL_EXIT_ON_PM_DEATH | events,
								  has_socket ? PQsocket(remote->connection) :
								  PGINVALID_SOCKET,
								  timeout_ms == UNTIL_DEADLINE ? left_ms :
								  Min(left_ms, timeout_ms),
								  clock_wait_event(WAIT_FOR_REGISTRY));
	if (*happened & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (ShutdownRequestPending && !remote->ignores_shutdown)
	{
		connection_set_reason(remote, "this process is shutting down");
		return false;
	}
	return true;
}

/* Waits until the socket is ready.  Fails as wait_for(). */
static bool
wait_for_socket(Remote *remote, int events, int64 deadline_us)
{
	int			happened;

	do
	{
		if (!wait_for(remote, events, deadline_us, UNTIL_DEADLINE, &happened))
			return false;
	} while ((happened & events) == 0);
	return true;
}

/* Waits until a name has been resolved.  Fails as wait_for(). */
static bool
wait_for_lookup(Remote *remote, const Lookup *lookup, int64 deadline_us)
{
	int			happened;

	while (!resolve_is_done(lookup))
	{
		if (!wait_for(remote, 0, deadline_us, LOOKUP_INTERVAL_MS, &happened))
			return false;
	}
	return true;
}

/* Sets the reason of a failure, without the newline of libpq's messages. */
void
connection_set_reason(Remote *remote, const char *message)
{
	char	   *text = pchomp(message);

	strlcpy(remote->reason, text, CONNECTION_REASON_SIZE);
	pfree(text);
}

/* Stores the SQLSTATE and the message of the server's error or warning. */
static void
set_server_message(Remote *remote, const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	strlcpy(remote->sqlstate, sqlstate != NULL ? sqlstate : "",
			CONNECTION_SQLSTATE_SIZE);
	connection_set_reason(remote, message);
}

/*
 * libpq's notice receiver.  Stores a warning: it may say that the wait for a
 * synchronous standby was cancelled, and then a failover can lose what the
 * answer says.  Drops other notices, which libpq would write to this server's
 * log.
 */
static void
receive_notice(void *arg, const PGresult *notice)
{
	const char *severity = PQresultErrorField(notice,
											  PG_DIAG_SEVERITY_NONLOCALIZED);

	if (severity != NULL && strcmp(severity, "WARNING") == 0 &&
		PQresultErrorField(notice, PG_DIAG_MESSAGE_PRIMARY) != NULL)
	{
		((Remote *) arg)->has_warning = true;
		set_server_message((Remote *) arg, notice);
	}
}

/* What to connect to: one of a host's addresses, or a socket. */
typedef struct Target
{
	char	   *host;			/* as given; NULL: libpq's default */
	char	   *address;		/* NULL: a socket, or libpq's choice */
	char	   *port;			/* NULL: libpq's default */
} Target;

/* Connects to a target. */
static bool
connect_to_target(Remote *remote, const PQconninfoOption *options,
				  const Target *target, int64 deadline_us)
{
	const char *keywords[OPTIONS_MAX];
	const char *values[OPTIONS_MAX];
	int			count = 0;
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	/* libpq uses the last value of a keyword, so defaults come first. */
	keywords[count] = "fallback_application_name";
	values[count++] = "snowflake";
	keywords[count] = "target_session_attrs";
	values[count++] = "read-write";
	for (; options->keyword != NULL && count < OPTIONS_MAX - 4; options++)
	{
		if (options->val == NULL || is_host_option(options->keyword))
			continue;
		keywords[count] = options->keyword;
		values[count++] = options->val;
	}
	keywords[count] = "host";
	values[count++] = target->host;
	keywords[count] = "hostaddr";
	values[count++] = target->address;
	keywords[count] = "port";
	values[count++] = target->port;
	keywords[count] = NULL;
	values[count] = NULL;

	connection_close(remote);
	remote->has_timed_out = false;
	if (!AcquireExternalFD())
	{
		connection_set_reason(remote, "too many files are open in this process");
		return false;
	}
	remote->connection = PQconnectStartParams(keywords, values, 0);
	if (remote->connection == NULL)
	{
		ReleaseExternalFD();
		connection_set_reason(remote, "out of memory");
		return false;
	}
	(void) PQsetNoticeReceiver(remote->connection, receive_notice, remote);
	while (PQstatus(remote->connection) != CONNECTION_BAD &&
		   status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED)
	{
		if (!wait_for_socket(remote,
							 status == PGRES_POLLING_READING ?
							 WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE,
							 deadline_us))
			return false;
		status = PQconnectPoll(remote->connection);
	}
	if (PQstatus(remote->connection) == CONNECTION_OK)
		return true;
	connection_set_reason(remote, PQerrorMessage(remote->connection));
	return false;
}

/*
 * Returns the deadline of a target; "targets_left" counts this target, too.  A
 * target that does not answer must leave time for the other targets and for
 * the statement, even where the whole time is short, as at shutdown.
 */
static int64
deadline_of_target(const Remote *remote, int targets_left)
{
	int64		now_us = clock_boottime_us();
	int64		share_us = (remote->deadline_us - now_us) / (targets_left + 1);

	if (targets_left <= 1)
		return remote->deadline_us;
	return now_us + Min(share_us, ADDRESS_TIMEOUT_US);
}

/* Returns the value of an option that is a list; NULL if it is not set. */
static const char *
list_option(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword != NULL; options++)
	{
		if (strcmp(options->keyword, keyword) == 0)
			return options->val;
	}
	return NULL;
}

static char *
element_or_null(const char *list, int number)
{
	return count_of_list(list) == 0 ? NULL : element_of_list(list, number);
}

/* Is a host a name to be resolved, and not the directory of a socket? */
static bool
is_name(const char *host)
{
	return host != NULL && *host != '\0' && *host != '/' && *host != '@';
}

static List *
add_target(List *targets, char *host, char *address, char *port)
{
	Target	   *target = palloc(sizeof(Target));

	target->host = host;
	target->address = address;
	target->port = port;
	return lappend(targets, target);
}

/* Appends the reason why a host cannot be used. */
static void
add_reason(StringInfo reasons, const char *host, const char *address,
		   const char *reason)
{
	if (reasons->len > 0)
		appendStringInfoChar(reasons, '\n');

	/* Most of libpq's reasons name the host already. */
	if (host == NULL || strstr(reason, host) != NULL ||
		(address != NULL && strstr(reason, address) != NULL))
		appendStringInfoString(reasons, reason);
	else
		appendStringInfo(reasons, "%s: %s", host, reason);
}

/*
 * Returns the targets of a connection string.  Resolves all names at once, and
 * leaves out a name that takes more than half of the time left.
 */
static List *
find_targets(Remote *remote, const PQconninfoOption *options, int hosts,
			 StringInfo reasons)
{
	const char *names = list_option(options, "host");
	const char *addresses = list_option(options, "hostaddr");
	const char *ports = list_option(options, "port");
	bool		has_addresses = count_of_list(addresses) > 0;
	int64		now_us = clock_boottime_us();
	int64		deadline_us = now_us + (remote->deadline_us - now_us) / 2;
	List	   *targets = NIL;

	for (int i = 0; i < hosts; i++)
	{
		char	   *host = element_or_null(names, i);

		if (!has_addresses && is_name(host))
			(void) resolve_begin(host);
	}
	for (int i = 0; i < hosts; i++)
	{
		char	   *host = element_or_null(names, i);
		char	   *port = element_or_null(ports, i);
		char	   *error = NULL;
		Lookup	   *lookup;
		List	   *found;
		ListCell   *cell;

		if (has_addresses || !is_name(host))
		{
			targets = add_target(targets, host, element_or_null(addresses, i),
								 port);
			continue;
		}

		/* The lookup that has begun above, unless the name came before. */
		lookup = resolve_begin(host);
		if (!wait_for_lookup(remote, lookup, deadline_us))
		{
			add_reason(reasons, host, NULL,
					   psprintf("could not translate host name \"%s\" to address: %s",
								host, remote->reason));
			continue;
		}
		found = resolve_end(lookup, &error);
		if (found == NIL)
			add_reason(reasons, host, NULL,
					   psprintf("could not translate host name \"%s\" to address: %s",
								host, error));
		foreach(cell, found)
			targets = add_target(targets, host, lfirst(cell), port);
	}
	return targets;
}

/*
 * Connects to the first target that accepts the connection.  Each target has a
 * deadline of its own, so that a silent target does not use up the time of the
 * others.  If all fail, returns false and sets the reasons of all.
 */
static bool
connect_to_any(Remote *remote, const PQconninfoOption *options)
{
	StringInfoData reasons;
	int			hosts = count_hosts(options);
	List	   *targets;
	bool		has_any_timed_out = false;

	initStringInfo(&reasons);
	if (hosts == 0)
	{
		connection_set_reason(remote, "the numbers of hosts, addresses and ports do not match");
		return false;
	}
	targets = find_targets(remote, options, hosts, &reasons);
	has_any_timed_out = remote->has_timed_out;
	for (int i = 0; i < list_length(targets); i++)
	{
		const Target *target = list_nth(targets, i);

		if (connect_to_target(remote, options, target,
							  deadline_of_target(remote,
												 list_length(targets) - i)))
		{
			/* Clear the failures of the targets before this target. */
			remote->reason[0] = '\0';
			remote->has_timed_out = false;
			return true;
		}
		has_any_timed_out |= remote->has_timed_out;
		add_reason(&reasons, target->host, target->address, remote->reason);
	}
	remote->has_timed_out = has_any_timed_out;
	connection_set_reason(remote, reasons.data);
	return false;
}

/* Connects by a connection string; see connect_to_any(). */
bool
connection_connect(Remote *remote, const char *conninfo)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "snowflake connection",
												  ALLOCSET_SMALL_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContext caller = MemoryContextSwitchTo(context);
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	bool		is_connected = false;

	if (options == NULL)
		connection_set_reason(remote, "out of memory");
	else
		is_connected = connect_to_any(remote, options);
	PQconninfoFree(options);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return is_connected;
}

/*
 * Sends a statement and waits for its end.  Returns NULL and sets the reason
 * unless the statement returns rows, in time and without a warning.  After a
 * NULL the caller does not know whether the statement has taken effect.
 */
PGresult *
connection_query(Remote *remote, const char *sql,
				 const ConnectionArguments *arguments)
{
	PGconn	   *connection = remote->connection;
	PGresult   *result = NULL;
	PGresult   *next;

	remote->has_warning = false;
	if (!PQsendQueryParams(connection, sql, arguments->count,
						   arguments->types, arguments->values,
						   arguments->lengths, arguments->formats, 1))
	{
		connection_set_reason(remote, PQerrorMessage(connection));
		return NULL;
	}

	/* Read until NULL, because the commit is not certain before that. */
	for (;;)
	{
		while (PQisBusy(connection))
		{
			if (!wait_for_socket(remote, WL_SOCKET_READABLE,
								 remote->deadline_us) ||
				!PQconsumeInput(connection))
			{
				if (PQstatus(connection) == CONNECTION_BAD)
					connection_set_reason(remote, PQerrorMessage(connection));
				PQclear(result);
				return NULL;
			}
		}
		next = PQgetResult(connection);
		if (next == NULL)
			break;
		PQclear(result);
		result = next;
	}

	/* After a suspension of the machine the answer may be out of date. */
	if (clock_boottime_us() > remote->deadline_us)
	{
		remote->has_timed_out = true;
		connection_set_reason(remote, "no answer in time");
		PQclear(result);
		return NULL;
	}
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		remote->has_answered_error =
			PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) != NULL;
		if (remote->has_answered_error)
			set_server_message(remote, result);
		else
			connection_set_reason(remote, PQerrorMessage(connection));
		PQclear(result);
		return NULL;
	}
	if (remote->has_warning)
	{
		remote->has_answered_error = true;
		PQclear(result);
		return NULL;
	}
	return result;
}

/*
 * Calls a function with named arguments, and returns the given columns of the
 * function's result.  Fails as connection_query().
 */
PGresult *
connection_call(Remote *remote, const char *columns, const char *function,
				const ConnectionArguments *arguments)
{
	StringInfoData sql;
	PGresult   *result;

	initStringInfo(&sql);
	appendStringInfo(&sql, "SELECT %s FROM %s(", columns, function);
	for (int i = 0; i < arguments->count; i++)
		appendStringInfo(&sql, "%s%s => $%d", i > 0 ? ", " : "",
						 arguments->names[i], i + 1);
	appendStringInfoChar(&sql, ')');
	result = connection_query(remote, sql.data, arguments);
	pfree(sql.data);
	return result;
}

void
connection_close(Remote *remote)
{
	if (remote->connection == NULL)
		return;
	PQfinish(remote->connection);
	remote->connection = NULL;
	ReleaseExternalFD();
}

/* Adds an argument that is NULL. */
void
connection_add_null(ConnectionArguments *arguments, const char *name, Oid type)
{
	int			i = arguments->count++;

	Assert(i < CONNECTION_ARGUMENTS_MAX);
	arguments->names[i] = name;
	arguments->types[i] = type;
	arguments->values[i] = NULL;
	arguments->lengths[i] = 0;
	arguments->formats[i] = 0;
}

void
connection_add_text(ConnectionArguments *arguments, const char *name, Oid type,
					const char *text)
{
	int			i = arguments->count;

	connection_add_null(arguments, name, type);
	strlcpy(arguments->buffers[i], text, CONNECTION_ARGUMENT_SIZE);
	arguments->values[i] = arguments->buffers[i];
}

void
connection_add_number(ConnectionArguments *arguments, const char *name, Oid type,
					  int64 number)
{
	char		text[32];

	snprintf(text, sizeof(text), INT64_FORMAT, number);
	connection_add_text(arguments, name, type, text);
}

/* Adds an argument of eight bytes, in binary form. */
static void
add_bytes(ConnectionArguments *arguments, const char *name, Oid type, uint64 value)
{
	int			i = arguments->count;
	uint64		bytes = pg_hton64(value);

	connection_add_null(arguments, name, type);
	memcpy(arguments->buffers[i], &bytes, sizeof(bytes));
	arguments->values[i] = arguments->buffers[i];
	arguments->lengths[i] = sizeof(bytes);
	arguments->formats[i] = 1;
}

void
connection_add_instant(ConnectionArguments *arguments, const char *name,
					   TimestampTz instant)
{
	add_bytes(arguments, name, TIMESTAMPTZOID, (uint64) instant);
}

/* Adds a position in WAL. */
void
connection_add_position(ConnectionArguments *arguments, const char *name,
						uint64 position)
{
	add_bytes(arguments, name, PG_LSNOID, position);
}

/*
 * Returns an integer, bigint, timestamptz, pg_lsn or boolean of the first row.
 */
int64
connection_get_number(const PGresult *result, int column)
{
	const char *bytes = PQgetvalue(result, 0, column);
	uint32		four;
	uint64		eight;

	switch (PQgetlength(result, 0, column))
	{
		case sizeof(eight):
			memcpy(&eight, bytes, sizeof(eight));
			return (int64) pg_ntoh64(eight);
		case sizeof(four):
			memcpy(&four, bytes, sizeof(four));
			return (int32) pg_ntoh32(four);
		default:
			return bytes[0];
	}
}

bool
connection_is_null(const PGresult *result, int column)
{
	return PQntuples(result) == 0 || PQgetisnull(result, 0, column);
}
