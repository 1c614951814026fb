/*
 * lease_connection.h
 *	  A connection to another PostgreSQL that can be interrupted.
 */
#ifndef SNOWFLAKE_LEASE_CONNECTION_H
#define SNOWFLAKE_LEASE_CONNECTION_H

#include "postgres.h"

#include <libpq-fe.h>

#include "datatype/timestamp.h"

#define CONNECTION_ARGUMENTS_MAX 16
#define CONNECTION_ARGUMENT_SIZE 80 /* of an argument as text */
#define CONNECTION_REASON_SIZE 1024
#define CONNECTION_SQLSTATE_SIZE 6

/* The arguments of a statement. */
typedef struct ConnectionArguments
{
	int			count;
	const char *names[CONNECTION_ARGUMENTS_MAX];
	Oid			types[CONNECTION_ARGUMENTS_MAX];
	const char *values[CONNECTION_ARGUMENTS_MAX];
	int			lengths[CONNECTION_ARGUMENTS_MAX];
	int			formats[CONNECTION_ARGUMENTS_MAX];
	char		buffers[CONNECTION_ARGUMENTS_MAX][CONNECTION_ARGUMENT_SIZE];
} ConnectionArguments;

/*
 * A connection and its state.  Every wait fails at the deadline and, unless
 * ignores_shutdown is set, when this process is told to exit.  The caller sets
 * deadline_us and ignores_shutdown, and all other fields to 0.
 */
typedef struct Remote
{
	int64		deadline_us;	/* by clock_boottime_us() */
	bool		ignores_shutdown;
	PGconn	   *connection;

	/* Why the last operation has failed. */
	bool		has_timed_out;
	bool		has_answered_error; /* was the answer an error or a warning? */
	bool		has_warning;	/* has a warning come?  See receive_notice() */
	char		sqlstate[CONNECTION_SQLSTATE_SIZE]; /* of that error or warning */
	char		reason[CONNECTION_REASON_SIZE];
} Remote;

extern bool connection_is_valid_string(const char *conninfo, char **detail);
extern bool connection_connect(Remote *remote, const char *conninfo);
extern PGresult *connection_query(Remote *remote, const char *sql,
								  const ConnectionArguments *arguments);
extern PGresult *connection_call(Remote *remote, const char *columns,
								 const char *function,
								 const ConnectionArguments *arguments);
extern void connection_set_reason(Remote *remote, const char *message);
extern void connection_close(Remote *remote);

extern void connection_add_null(ConnectionArguments *arguments, const char *name,
								Oid type);
extern void connection_add_text(ConnectionArguments *arguments, const char *name,
								Oid type, const char *text);
extern void connection_add_number(ConnectionArguments *arguments, const char *name,
								  Oid type, int64 number);
extern void connection_add_instant(ConnectionArguments *arguments, const char *name,
								   TimestampTz instant);
extern void connection_add_position(ConnectionArguments *arguments, const char *name,
									uint64 position);

extern int64 connection_get_number(const PGresult *result, int column);
extern bool connection_is_null(const PGresult *result, int column);

#endif							/* SNOWFLAKE_LEASE_CONNECTION_H */
