/*
 * sql_registry_check.c
 *	  snowflake_registry_check(): tries a registry before a server needs it.
 */
#include "postgres.h"

#include <math.h>

#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "id_clock.h"
#include "id_layout.h"
#include "lease_connection.h"
#include "miscadmin.h"
#include "node.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(snowflake_registry_check);

/* The timeout of the whole check. */
#define CHECK_TIMEOUT_US INT64CONST(10000000)

/* Adds a sentence to the result. */
static void
add_sentence(ReturnSetInfo *result, const char *sentence)
{
	Datum		value = CStringGetTextDatum(sentence);
	bool		is_null = false;

	tuplestore_putvalues(result->setResult, result->setDesc, &value, &is_null);
}

/*
 * Adds a sentence with a failure's reason, and a full stop unless the reason
 * ends in one.
 */
static void
add_failure(ReturnSetInfo *result, const char *what, const Remote *remote)
{
	size_t		length = strlen(remote->reason);
	bool		is_sentence = length > 0 &&
		strchr(".?!", remote->reason[length - 1]) != NULL;

	add_sentence(result, psprintf("%s: %s%s", what, remote->reason,
								  is_sentence ? "" : "."));
}

/* The columns of check_rights()'s query. */
enum
{
	RIGHTS_IS_THERE,
	RIGHTS_IS_ALLOWED,
	RIGHTS_ROLE
};

/* Does the database have the registry's functions?  May the role call them? */
static bool
check_rights(Remote *remote, ReturnSetInfo *result)
{
	static const ConnectionArguments none = {0};
	PGresult   *answer =
		connection_query(remote,
						 "SELECT s.oid IS NOT NULL,"
						 " coalesce(has_schema_privilege(s.oid, 'USAGE'), false)"
						 " AND (SELECT count(*) = 3 AND bool_and(has_function_privilege(p.oid, 'EXECUTE'))"
						 "        FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = s.oid"
						 "         AND p.proname IN ('claim', 'release', 'constants')),"
						 " current_user::text"
						 " FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_namespace AS s"
						 " ON s.nspname = 'snowflake_registry'",
						 &none);
	bool		is_there;
	bool		is_allowed;

	if (answer == NULL)
	{
		add_failure(result, "The database does not answer", remote);
		return false;
	}
	is_there = connection_get_number(answer, RIGHTS_IS_THERE) != 0;
	is_allowed = connection_get_number(answer, RIGHTS_IS_ALLOWED) != 0;
	if (!is_there)
		add_sentence(result, "The database is no registry: it has no extension snowflake_registry.");
	else if (!is_allowed)
		add_sentence(result, psprintf("Role \"%s\" may not claim a worker id: call snowflake_registry.allow('%s') there.",
									  PQgetvalue(answer, 0, RIGHTS_ROLE),
									  PQgetvalue(answer, 0, RIGHTS_ROLE)));
	else
		add_sentence(result, psprintf("Role \"%s\" may claim and release worker ids.",
									  PQgetvalue(answer, 0, RIGHTS_ROLE)));
	PQclear(answer);
	return is_there && is_allowed;
}

/* Compares this server's clock with the registry's. */
static void
check_clock(ReturnSetInfo *result, TimestampTz registry_clock,
			TimestampTz before, TimestampTz after, int64 largest_lead_us)
{
	int64		difference_us = before + (after - before) / 2 - registry_clock;
	double		difference_ms = (double) difference_us / 1000;

	if (difference_us > largest_lead_us)
		add_sentence(result, psprintf("The clock is %.0f ms ahead of the registry's, more than its largest_lead of %.0f ms: correct the clock.",
									  difference_ms, (double) largest_lead_us / 1000));
	else
		add_sentence(result, psprintf("The clock is %.0f ms %s the registry's, measured within %.0f ms; up to %.0f ms ahead are allowed for.",
									  fabs(difference_ms), difference_us < 0 ? "behind" : "ahead of",
									  (double) (after - before) / 2000,
									  (double) largest_lead_us / 1000));
}

/* The columns of check_constants()'s query. */
enum
{
	CONSTANTS_LAYOUT,
	CONSTANTS_EPOCH,
	CONSTANTS_LEASE_DURATION,
	CONSTANTS_LARGEST_LEAD,
	CONSTANTS_CLOCK
};

/* Compares this server's layout, epoch and clock with the registry's. */
static void
check_constants(Remote *remote, ReturnSetInfo *result)
{
	static const ConnectionArguments none = {0};
	const Layout *layout = node_layout();
	char		layout_text[LAYOUT_TEXT_SIZE];
	TimestampTz before = GetCurrentTimestamp();
	PGresult   *answer =
		connection_query(remote,
						 "SELECT layout, epoch, lease_duration_us, largest_lead_us, clock"
						 " FROM snowflake_registry.constants()",
						 &none);
	TimestampTz after = GetCurrentTimestamp();

	if (answer == NULL)
	{
		add_failure(result, "The registry cannot be used", remote);
		return;
	}
	if (connection_is_null(answer, CONSTANTS_LAYOUT))
	{
		add_sentence(result, "The registry has no constants yet: call snowflake_registry.configure() there.");
		PQclear(answer);
		return;
	}
	layout_to_text(layout, layout_text);
	if (strcmp(PQgetvalue(answer, 0, CONSTANTS_LAYOUT), layout_text) != 0)
		add_sentence(result, psprintf("The layout differs: it is \"%s\" here and \"%s\" in the registry.",
									  layout_text,
									  PQgetvalue(answer, 0, CONSTANTS_LAYOUT)));
	else if (connection_get_number(answer, CONSTANTS_EPOCH) != layout->epoch)
	{
		char	   *here = pstrdup(timestamptz_to_str(layout->epoch));
		const char *there = timestamptz_to_str(connection_get_number(answer, CONSTANTS_EPOCH));

		add_sentence(result, psprintf("The epoch differs: it is %s here and %s in the registry.",
									  here, there));
	}
	else
		add_sentence(result, psprintf("The layout, \"%s\", and the epoch are the same as the registry's.", layout_text));
	add_sentence(result, psprintf("A lease lasts %.0f s.",
								  (double) connection_get_number(answer, CONSTANTS_LEASE_DURATION) /
								  USECS_PER_SEC));
	check_clock(result, connection_get_number(answer, CONSTANTS_CLOCK), before, after,
				connection_get_number(answer, CONSTANTS_LARGEST_LEAD));
	PQclear(answer);
}

/*
 * snowflake_registry_check(conninfo text) -> setof text
 *		Tries the connection, the rights, the layout and the clock, and returns
 *		a sentence about each.  Changes nothing.  ERROR 22023 if conninfo is no
 *		connection string.
 */
Datum
snowflake_registry_check(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *conninfo = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *detail = NULL;
	Remote		remote = {.ignores_shutdown = true};

	if (!connection_is_valid_string(conninfo, &detail))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid connection string"),
				 errdetail("%s", detail)));
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	remote.deadline_us = clock_boottime_us() + CHECK_TIMEOUT_US;
	PG_TRY();
	{
		if (!connection_connect(&remote, conninfo))
			add_failure(result, "The registry cannot be reached", &remote);
		else
		{
			add_sentence(result, psprintf("Connected to database \"%s\" of %s, PostgreSQL %d.",
										  PQdb(remote.connection), PQhost(remote.connection),
										  PQserverVersion(remote.connection) / 10000));
			if (check_rights(&remote, result))
				check_constants(&remote, result);
		}
	}
	PG_FINALLY();
	{
		connection_close(&remote);
	}
	PG_END_TRY();
	return (Datum) 0;
}
