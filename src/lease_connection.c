/*
 * lease_connection.c
 *	  A connection to the registry: libpq with one deadline over all.
 *
 * A process waits for libpq's socket and its own latch together, so a registry
 * that does not answer delays no shutdown.  One attempt asks one host of the
 * connection string, because libpq stops at the first host that answers with
 * an error or not at all; after a failure it is the next host's turn.  Results
 * are in binary form, which no setting of the registry changes.
 *
 * What the registry sends is not trusted: an answer counts only if it is one
 * row of the expected columns, and connection_limit_memory() bounds the memory
 * that an answer can take.
 */
#include "postgres.h"

#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "lease_connection.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/latch.h"

/* After PostgreSQL's headers, because resolv.h makes "_res" a macro. */
#ifdef __GLIBC__
#include <netinet/in.h>
#include <resolv.h>
#endif

/* How much memory this process may allocate from now on. */
#define MEMORY_MAX_BYTES (INT64CONST(64) * 1024 * 1024)

/* How long the C library may wait for a name server, and how often it asks. */
#define RESOLVER_TIMEOUT_S 2
#define RESOLVER_ATTEMPTS 1

/*
 * After this time libpq goes on to the next address of a host, if the kernel
 * applies TCP_USER_TIMEOUT to connections that have not been accepted yet.
 */
#define ADDRESS_TIMEOUT_MS "1500"

/* The least time for a connection to one of several hosts. */
#define CONNECT_MIN_US INT64CONST(500000)

/* More keywords than libpq has. */
#define KEYWORDS_MAX 100

/* Which host of the connection string the next attempt asks. */
static int	next_host = 0;

static PGconn *connection_start(SnowflakeConnection *connection,
								const char *conninfo);
static int	connection_count_hosts(const char *list);
static const char *connection_choose_host(const char *list, int host);
static void connection_limit_resolver(void);
static bool connection_wait_for_socket(SnowflakeConnection *connection,
									   int events);
static void connection_drop_notice(void *arg, const PGresult *notice);
static PGresult *connection_read_answer(SnowflakeConnection *connection);
static bool connection_is_expected(const PGresult *result,
								   const ConnectionColumn *columns,
								   int column_count);
static void connection_fail_by_result(SnowflakeConnection *connection,
									  const PGresult *result);

/*
 * Check hook of snowflake.registry.  The error shows neither the value, which
 * may have a password, nor the part of the value that libpq quotes, except the
 * name of an option that libpq does not know.
 */
bool
connection_check_string(char **newval, void **extra, GucSource source)
{
	static const char *const before_secrets[] = {": \"", " after \""};
	char	   *error = NULL;
	PQconninfoOption *options = PQconninfoParse(*newval, &error);
	char	   *detail;

	if (options != NULL)
	{
		PQconninfoFree(options);
		return true;
	}
	detail = error != NULL ? pchomp(error) : pstrdup("out of memory");
	PQfreemem(error);
	for (int i = 0; i < lengthof(before_secrets); i++)
	{
		char	   *found = strstr(detail, before_secrets[i]);

		if (found != NULL)
			*found = '\0';
	}
	GUC_check_errmsg("invalid value for parameter \"%s\"", "snowflake.registry");
	GUC_check_errdetail("%s", detail);
	GUC_check_errhint("It is a connection string, such as \"host=registry1,registry2 dbname=registry user=snowflake\".");
	return false;
}

/*
 * Limits the memory of this process.  libpq allocates room for an answer of
 * any size that the answer's first bytes announce, and has no limit of its
 * own.  Beyond this limit the allocation fails, and libpq closes the
 * connection.
 */
void
connection_limit_memory(void)
{
	FILE	   *file = AllocateFile("/proc/self/statm", "r");
	struct rlimit limit;
	long		pages;

	/* Only Linux has this file, and limits what malloc() maps. */
	if (file == NULL)
		return;
	/* NOLINTNEXTLINE: the kernel writes numbers that fit */
	if (fscanf(file, "%*d %*d %*d %*d %*d %ld", &pages) == 1 &&
		getrlimit(RLIMIT_DATA, &limit) == 0)
	{
		rlim_t		most = (rlim_t) pages * sysconf(_SC_PAGESIZE) +
			MEMORY_MAX_BYTES;

		limit.rlim_cur = Min(limit.rlim_cur, most);
		(void) setrlimit(RLIMIT_DATA, &limit);
	}
	FreeFile(file);
}

bool
connection_open(SnowflakeConnection *connection, const char *conninfo)
{
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;
	int64		deadline_us = connection->deadline_us;
	int64		now_us = clock_boottime_us();

	connection_limit_resolver();
	if (!AcquireExternalFD())
	{
		connection_fail(connection, "Too many files are open in this process.");
		return false;
	}
	connection->libpq = connection_start(connection, conninfo);
	if (connection->libpq == NULL)
	{
		ReleaseExternalFD();
		connection_fail(connection, "This process is out of memory.");
		return false;
	}
	(void) PQsetNoticeReceiver(connection->libpq, connection_drop_notice,
							   NULL);

	/*
	 * Connecting may take half of the time, of which each host gets an equal
	 * part.  The rest is for the claim.
	 */
	if (connection->host_count > 1)
		connection->deadline_us =
			Min(deadline_us, now_us + Max(CONNECT_MIN_US,
										  (deadline_us - now_us) /
										  (INT64CONST(2) * connection->host_count)));
	while (PQstatus(connection->libpq) != CONNECTION_BAD &&
		   status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED)
	{
		if (!connection_wait_for_socket(connection,
										status == PGRES_POLLING_READING ?
										WL_SOCKET_READABLE :
										WL_SOCKET_WRITEABLE))
			return false;
		status = PQconnectPoll(connection->libpq);
	}
	connection->deadline_us = deadline_us;
	if (PQstatus(connection->libpq) == CONNECTION_OK)
		return true;
	connection_fail(connection, PQerrorMessage(connection->libpq));
	return false;
}

/* Starts to connect to the host whose turn it is. */
static PGconn *
connection_start(SnowflakeConnection *connection, const char *conninfo)
{
	/* libpq uses the last value of a keyword, so defaults come first. */
	const char *keywords[KEYWORDS_MAX + 1] = {
		"fallback_application_name", "target_session_attrs", "tcp_user_timeout"
	};
	const char *values[KEYWORDS_MAX + 1] = {
		"snowflake", "read-write", ADDRESS_TIMEOUT_MS
	};
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	PGconn	   *libpq;
	int			count = 3;

	if (options == NULL)
		return NULL;
	connection->host_count = 1;
	for (PQconninfoOption *o = options; o->keyword != NULL; o++)
	{
		if (o->val != NULL && strncmp(o->keyword, "host", 4) == 0)
			connection->host_count = Max(connection->host_count,
										 connection_count_hosts(o->val));
	}
	connection->host = next_host++ % connection->host_count;
	for (PQconninfoOption *o = options; o->keyword != NULL; o++)
	{
		if (o->val == NULL || count == KEYWORDS_MAX)
			continue;
		keywords[count] = o->keyword;
		values[count] = o->val;

		/* libpq reports lists of different lengths, and ignores "". */
		if ((strncmp(o->keyword, "host", 4) == 0 ||
			 strcmp(o->keyword, "port") == 0) &&
			connection_count_hosts(o->val) == connection->host_count)
			values[count] = connection_choose_host(o->val, connection->host);
		count++;
	}
	libpq = PQconnectStartParams(keywords, values, 0);
	PQconninfoFree(options);
	if (libpq != NULL)
		ereport(DEBUG2,
				(errmsg_internal("connecting to host \"%s\", %d of %d in snowflake.registry",
								 PQhost(libpq), connection->host + 1,
								 connection->host_count)));
	return libpq;
}

static int
connection_count_hosts(const char *list)
{
	int			count = 1;

	for (; *list != '\0'; list++)
		count += *list == ',';
	return count;
}

/* Returns a part of a list. */
static const char *
connection_choose_host(const char *list, int host)
{
	for (; host > 0; host--)
		list = strchr(list, ',') + 1;
	return pnstrdup(list, strcspn(list, ","));
}

/*
 * Limits how long a host name's look-up takes: libpq waits for it in the C
 * library, where neither a deadline nor a shutdown ends the wait.  The C
 * library reads its configuration here, and not again before the next call.
 */
static void
connection_limit_resolver(void)
{
#ifdef __GLIBC__
	if (res_init() != 0)
		return;
	_res.retrans = Min(_res.retrans, RESOLVER_TIMEOUT_S);
	_res.retry = Min(_res.retry, RESOLVER_ATTEMPTS);
#endif
}

/*
 * Waits until the socket is ready.  Returns false at the deadline, and at
 * shutdown unless the caller ignores a shutdown.
 */
static bool
connection_wait_for_socket(SnowflakeConnection *connection, int events)
{
	for (;;)
	{
		int64		left_us = connection->deadline_us - clock_boottime_us();
		int			happened;

		if (ShutdownRequestPending && !connection->ignores_shutdown)
		{
			connection_fail(connection, "This process is shutting down.");
			return false;
		}
		if (left_us <= 0)
		{
			connection_fail(connection, "The registry does not answer in time.");
			return false;
		}
		happened = WaitLatchOrSocket(MyLatch,
									 WL_LATCH_SET | WL_TIMEOUT |
									 WL_EXIT_ON_PM_DEATH | events,
									 PQsocket(connection->libpq),
									 (long) (left_us / 1000 + 1),
									 clock_wait_event(WAIT_FOR_REGISTRY));
		if (happened & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		else if (happened & events)
			return true;
	}
}

/* libpq's notice receiver: this server's log is not for notices. */
static void
connection_drop_notice(void *arg, const PGresult *notice)
{
}

/*
 * Sends a statement and waits for its end.  Returns one row of the given
 * columns, whose values can be null; or returns NULL if the answer is anything
 * else, and then the statement may have taken effect or not.
 */
PGresult *
connection_query(SnowflakeConnection *connection, const char *sql,
				 const char *const *arguments, int argument_count,
				 const ConnectionColumn *columns, int column_count)
{
	PGresult   *result;

	if (!PQsendQueryParams(connection->libpq, sql, argument_count, NULL,
						   arguments, NULL, NULL, 1))
	{
		connection_fail(connection, PQerrorMessage(connection->libpq));
		return NULL;
	}
	result = connection_read_answer(connection);
	if (result == NULL)
		return NULL;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		connection_fail_by_result(connection, result);
	else if (!connection_is_expected(result, columns, column_count))
		connection_fail(connection, "The registry's answer is not one row of the expected columns.");

	/* After a suspension of the machine the answer may be out of date. */
	else if (clock_boottime_us() > connection->deadline_us)
		connection_fail(connection, "The registry does not answer in time.");
	else
	{
		/* Stay with a host that answers as a registry does. */
		next_host = connection->host;
		return result;
	}
	PQclear(result);
	return NULL;
}

/*
 * Reads the last result of a statement.  Reads until libpq says that there are
 * no more, because the commit is not certain before that.
 */
static PGresult *
connection_read_answer(SnowflakeConnection *connection)
{
	PGconn	   *libpq = connection->libpq;
	PGresult   *result = NULL;

	while (PQstatus(libpq) != CONNECTION_BAD)
	{
		PGresult   *next;
		ExecStatusType status;

		if (PQisBusy(libpq))
		{
			if (!connection_wait_for_socket(connection, WL_SOCKET_READABLE))
			{
				PQclear(result);
				return NULL;
			}
			if (!PQconsumeInput(libpq))
				break;
			continue;
		}
		next = PQgetResult(libpq);
		if (next == NULL)
		{
			if (result == NULL)
				connection_fail(connection, "The registry's answer is empty.");
			return result;
		}
		PQclear(result);
		result = next;

		/* libpq would return the result of a COPY again and again. */
		status = PQresultStatus(result);
		if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT ||
			status == PGRES_COPY_BOTH)
			return result;
	}
	connection_fail(connection, PQerrorMessage(libpq));
	PQclear(result);
	return NULL;
}

/* Is a result one row of the given columns? */
static bool
connection_is_expected(const PGresult *result, const ConnectionColumn *columns,
					   int column_count)
{
	if (PQntuples(result) != 1 || PQnfields(result) != column_count)
		return false;
	for (int i = 0; i < column_count; i++)
	{
		if (PQftype(result, i) != columns[i].type ||
			PQfmod(result, i) != -1 || PQfformat(result, i) != 1)
			return false;
		if (columns[i].length != -1 && !PQgetisnull(result, 0, i) &&
			PQgetlength(result, 0, i) != columns[i].length)
			return false;
	}
	return true;
}

static void
connection_fail_by_result(SnowflakeConnection *connection,
						  const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (message != NULL)
		connection_fail_by_answer(connection, sqlstate != NULL ? sqlstate : "",
								  psprintf("The registry answers with an error: %.*s.",
										   CONNECTION_REASON_SIZE, message));
	else if (PQresultStatus(result) == PGRES_FATAL_ERROR)
		connection_fail(connection, PQresultErrorMessage(result));
	else
		connection_fail(connection, "The registry's answer is not rows.");
}

/*
 * Sets the reason of a failure, a sentence or libpq's message.  The reason must
 * not contain times.
 */
void
connection_fail(SnowflakeConnection *connection, const char *reason)
{
	connection_fail_by_answer(connection, "", reason);
	connection->is_answer = false;
}

/*
 * Sets the code and the reason of a failure that the registry has answered
 * with.  Replaces control characters, which could forge lines of this server's
 * log.
 */
void
connection_fail_by_answer(SnowflakeConnection *connection, const char *code,
						  const char *reason)
{
	connection->is_answer = true;
	strlcpy(connection->code, code, CONNECTION_CODE_SIZE);
	strlcpy(connection->reason, reason, CONNECTION_REASON_SIZE);

	/* libpq's messages end a line. */
	for (size_t n = strlen(connection->reason);
		 n > 0 && connection->reason[n - 1] == '\n'; n--)
		connection->reason[n - 1] = '\0';
	for (char *c = connection->reason; *c != '\0'; c++)
	{
		if ((unsigned char) *c < ' ' || *c == '\x7f')
			*c = ' ';
	}
}

void
connection_close(SnowflakeConnection *connection)
{
	if (connection->libpq == NULL)
		return;
	PQfinish(connection->libpq);
	connection->libpq = NULL;
	ReleaseExternalFD();
}

/* Returns an integer, bigint, timestamptz or boolean of an expected row. */
int64
connection_get_number(const PGresult *result, int column)
{
	const char *bytes = PQgetvalue(result, 0, column);
	uint64		number = (uint64) (int64) (signed char) bytes[0];

	for (int i = 1; i < PQgetlength(result, 0, column); i++)
		number = number << 8 | (unsigned char) bytes[i];
	return (int64) number;
}
