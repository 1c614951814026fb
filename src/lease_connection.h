/*
 * lease_connection.h
 *	  A connection to the registry that can be interrupted.
 */
#ifndef SNOWFLAKE_LEASE_CONNECTION_H
#define SNOWFLAKE_LEASE_CONNECTION_H

#include "postgres.h"

#include <libpq-fe.h>

#include "utils/guc.h"

#define CONNECTION_CODE_SIZE 32
#define CONNECTION_REASON_SIZE 1024

/* A column of an answer. */
typedef struct ConnectionColumn
{
	Oid			type;
	int			length;			/* of its values in binary form; -1: any */
} ConnectionColumn;

/*
 * A connection and its state.  Every wait fails at the deadline and, unless
 * ignores_shutdown is set, when this process is told to exit.  The caller sets
 * deadline_us and ignores_shutdown, and all other fields to 0.
 */
typedef struct SnowflakeConnection
{
	int64		deadline_us;	/* by clock_boottime_us() */
	bool		ignores_shutdown;
	PGconn	   *libpq;
	int			host;			/* that this attempt asks */
	int			host_count;		/* of the connection string */

	/* Why the last operation has failed. */
	bool		is_answer;		/* did the registry answer? */
	bool		is_refusal;		/* and was it a refusal of a claim? */

	/*
	 * Failures of one cause have the same code, and without a code ("") the
	 * same reason.
	 */
	char		code[CONNECTION_CODE_SIZE];
	char		reason[CONNECTION_REASON_SIZE];
} SnowflakeConnection;

extern bool connection_check_string(char **newval, void **extra,
									GucSource source);
extern void connection_limit_memory(void);

extern bool connection_open(SnowflakeConnection *connection,
							const char *conninfo);
extern PGresult *connection_query(SnowflakeConnection *connection,
								  const char *sql,
								  const char *const *arguments,
								  int argument_count,
								  const ConnectionColumn *columns,
								  int column_count);
extern void connection_fail(SnowflakeConnection *connection,
							const char *reason);
extern void connection_fail_by_answer(SnowflakeConnection *connection,
									  const char *code,
									  const char *reason);
extern void connection_close(SnowflakeConnection *connection);

extern int64 connection_get_number(const PGresult *result, int column);

#endif							/* SNOWFLAKE_LEASE_CONNECTION_H */
