/*
 * remote.c
 *	  Questions to another PostgreSQL, from a background worker.
 *
 * By libpq, whose sockets are waited for together with our latch: so a server
 * that does not answer holds up neither a shutdown nor anything else.  Only a
 * host name's address is looked up without such care, as libpq does it.
 * What the other server answers is asked for in binary form.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "clock.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "remote.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* How long one of several hosts may take before the next one is tried. */
#define HOST_PATIENCE_US INT64CONST(3000000)

/* More than a connection string has, with what is added to it. */
#define OPTIONS_MAX 128

/*
 * Is it a connection string?  If not, "detail" says why, without what libpq
 * quotes: that may be of a password.
 */
bool
remote_is_valid_string(const char *conninfo, char **detail)
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

/* How many elements a comma-separated list has; NULL has none. */
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

/* An element of such a list; a single one stands for all. */
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
is_list_of_hosts(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/*
 * How many hosts a connection string names, 1 if none.  0 if its lists do not
 * agree: libpq then finds the words for that.
 */
static int
count_hosts(const PQconninfoOption *options)
{
	int			hosts = 1;

	for (; options->keyword != NULL; options++)
	{
		int			count = is_list_of_hosts(options->keyword) ?
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
 * Waits until the socket is ready, or one of the things has happened that end
 * a conversation: false then.
 */
static bool
wait_for_socket(Remote *remote, int events, int64 deadline_us)
{
	int			happened;

	do
	{
		int64		left_us = deadline_us - clock_boottime_us();

		if (left_us <= 0)
		{
			remote->is_out_of_time = true;
			strlcpy(remote->reason, "no answer in time",
					REMOTE_REASON_SIZE);
			return false;
		}
		happened = WaitLatchOrSocket(MyLatch,
									 WL_LATCH_SET | WL_TIMEOUT |
									 WL_EXIT_ON_PM_DEATH | events,
									 PQsocket(remote->connection),
									 (long) (left_us / 1000 + 1),
									 clock_wait_event(WAIT_FOR_REGISTRY));
		if (happened & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		if (ShutdownRequestPending && !remote->is_urgent)
		{
			strlcpy(remote->reason, "this process is to end",
					REMOTE_REASON_SIZE);
			return false;
		}
	} while ((happened & events) == 0);
	return true;
}

/* Keeps what libpq says of a failure. */
static void
keep_reason(Remote *remote, const char *message)
{
	char	   *text = pchomp(message);

	strlcpy(remote->reason, text, REMOTE_REASON_SIZE);
	pfree(text);
}

/*
 * Keeps what the server says beside an answer, instead of libpq's writing it
 * into the log.  A warning tells that the answer is not safe: somebody has
 * ended the wait for a synchronous standby.
 */
static void
heed_notice(void *arg, const PGresult *notice)
{
	Remote	   *remote = arg;
	const char *severity = PQresultErrorField(notice,
											  PG_DIAG_SEVERITY_NONLOCALIZED);
	const char *message = PQresultErrorField(notice,
											 PG_DIAG_MESSAGE_PRIMARY);

	if (severity == NULL || message == NULL ||
		strcmp(severity, "WARNING") != 0)
		return;
	remote->is_warned = true;
	strlcpy(remote->reason, message, REMOTE_REASON_SIZE);
}

/* Connects to the one of the hosts that has this number. */
static bool
connect_to_host(Remote *remote, const PQconninfoOption *options, int number,
				int64 deadline_us)
{
	const char *keywords[OPTIONS_MAX];
	const char *values[OPTIONS_MAX];
	int			count = 0;
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	/* what comes later wins: those are defaults */
	keywords[count] = "fallback_application_name";
	values[count++] = "snowflake";
	keywords[count] = "target_session_attrs";
	values[count++] = "read-write";
	for (; options->keyword != NULL && count < OPTIONS_MAX - 1; options++)
	{
		if (options->val == NULL)
			continue;
		keywords[count] = options->keyword;
		values[count++] = is_list_of_hosts(options->keyword) && number >= 0 ?
			element_of_list(options->val, number) : options->val;
	}
	keywords[count] = NULL;
	values[count] = NULL;

	remote_close(remote);
	remote->is_out_of_time = false;
	remote->connection = PQconnectStartParams(keywords, values, 0);
	if (remote->connection == NULL)
	{
		keep_reason(remote, "out of memory");
		return false;
	}
	(void) PQsetNoticeReceiver(remote->connection, heed_notice, remote);
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
	{
		/* that of another host, which failed, does not count */
		remote->reason[0] = '\0';
		return true;
	}
	keep_reason(remote, PQerrorMessage(remote->connection));
	return false;
}

/*
 * Until when to try a host, if so many are left with it.  Should it be silent,
 * there has to be time for the others, and to ask one of them: in a short
 * lease, too, or when the server stops.
 */
static int64
deadline_of_host(const Remote *remote, int hosts_left)
{
	int64		now_us = clock_boottime_us();
	int64		share_us = (remote->deadline_us - now_us) / (hosts_left + 1);

	if (hosts_left == 1)
		return remote->deadline_us;
	return now_us + Min(share_us, HOST_PATIENCE_US);
}

/*
 * Connects to the first of the hosts that takes it.  Each has its own time:
 * one that is silent does not keep us from the next.  False, and a reason, if
 * there is none.
 */
bool
remote_connect(Remote *remote, const char *conninfo)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "snowflake connection",
												  ALLOCSET_SMALL_SIZES);	/* NOLINT: PostgreSQL's macro */
	MemoryContext caller = MemoryContextSwitchTo(context);
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	bool		is_connected = false;

	if (options == NULL)
		keep_reason(remote, "out of memory");
	else
	{
		int			hosts = count_hosts(options);

		if (hosts == 0)
			is_connected = connect_to_host(remote, options, -1,
										   remote->deadline_us);
		for (int i = 0; i < hosts && !is_connected; i++)
			is_connected = connect_to_host(remote, options, i,
										   deadline_of_host(remote,
															hosts - i));
		PQconninfoFree(options);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return is_connected;
}

/*
 * Sends a statement and waits for its end.  NULL, and a reason, unless it
 * brings rows, and no warning: what became of it there is not known then.
 */
PGresult *
remote_query(Remote *remote, const char *sql,
			 const RemoteArguments *arguments)
{
	PGconn	   *connection = remote->connection;
	PGresult   *result = NULL;
	PGresult   *next;

	remote->is_warned = false;
	if (!PQsendQueryParams(connection, sql, arguments->count,
						   arguments->types, arguments->values,
						   arguments->lengths, arguments->formats, 1))
	{
		keep_reason(remote, PQerrorMessage(connection));
		return NULL;
	}

	/* all of them: only then it is committed */
	for (;;)
	{
		while (PQisBusy(connection))
		{
			if (!wait_for_socket(remote, WL_SOCKET_READABLE,
								 remote->deadline_us) ||
				!PQconsumeInput(connection))
			{
				if (PQstatus(connection) == CONNECTION_BAD)
					keep_reason(remote, PQerrorMessage(connection));
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

	/* if we were suspended, it may say what is not so any more */
	if (clock_boottime_us() > remote->deadline_us)
	{
		remote->is_out_of_time = true;
		keep_reason(remote, "no answer in time");
		PQclear(result);
		return NULL;
	}
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		const char *message = PQresultErrorField(result,
												 PG_DIAG_MESSAGE_PRIMARY);

		remote->is_refused = message != NULL;
		keep_reason(remote, message != NULL ? message :
					PQerrorMessage(connection));
		PQclear(result);
		return NULL;
	}
	if (remote->is_warned)
	{
		remote->is_refused = true;
		PQclear(result);
		return NULL;
	}
	return result;
}

void
remote_close(Remote *remote)
{
	PQfinish(remote->connection);
	remote->connection = NULL;
}

/* Makes room for one more, which is NULL. */
void
remote_add_null(RemoteArguments *arguments, Oid type)
{
	int			i = arguments->count++;

	Assert(i < REMOTE_ARGUMENTS_MAX);
	arguments->types[i] = type;
	arguments->values[i] = NULL;
	arguments->lengths[i] = 0;
	arguments->formats[i] = 0;
}

void
remote_add_text(RemoteArguments *arguments, Oid type, const char *text)
{
	int			i = arguments->count;

	remote_add_null(arguments, type);
	strlcpy(arguments->buffers[i], text, REMOTE_ARGUMENT_SIZE);
	arguments->values[i] = arguments->buffers[i];
}

void
remote_add_number(RemoteArguments *arguments, Oid type, int64 number)
{
	char		text[32];

	snprintf(text, sizeof(text), INT64_FORMAT, number);
	remote_add_text(arguments, type, text);
}

/* In binary form, which no setting has a say in. */
void
remote_add_instant(RemoteArguments *arguments, TimestampTz instant)
{
	int			i = arguments->count;
	uint64		bytes = pg_hton64((uint64) instant);

	remote_add_null(arguments, TIMESTAMPTZOID);
	memcpy(arguments->buffers[i], &bytes, sizeof(bytes));
	arguments->values[i] = arguments->buffers[i];
	arguments->lengths[i] = sizeof(bytes);
	arguments->formats[i] = 1;
}

/* An integer, a bigint, a timestamptz or a boolean of the first row. */
int64
remote_get_number(const PGresult *result, int column)
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
remote_is_null(const PGresult *result, int column)
{
	return PQntuples(result) == 0 || PQgetisnull(result, 0, column);
}
