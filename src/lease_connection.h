/*
 * lease_connection.h
 *	  A connection to another PostgreSQL that can be interrupted.
 */
#ifndef SNOWFLAKE_REMOTE_H
#define SNOWFLAKE_REMOTE_H

#include "postgres.h"

#include <libpq-fe.h>

#include "datatype/timestamp.h"

#define REMOTE_ARGUMENTS_MAX 16
#define REMOTE_ARGUMENT_SIZE 80 /* of an argument as text */
#define REMOTE_REASON_SIZE 1024
#define REMOTE_SQLSTATE_SIZE 6

/* The arguments of a statement. */
typedef struct RemoteArguments
{
	int			count;
	const char *names[REMOTE_ARGUMENTS_MAX];
	Oid			types[REMOTE_ARGUMENTS_MAX];
	const char *values[REMOTE_ARGUMENTS_MAX];
	int			lengths[REMOTE_ARGUMENTS_MAX];
	int			formats[REMOTE_ARGUMENTS_MAX];
	char		buffers[REMOTE_ARGUMENTS_MAX][REMOTE_ARGUMENT_SIZE];
} RemoteArguments;

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
	char		sqlstate[REMOTE_SQLSTATE_SIZE]; /* of that error or warning */
	char		reason[REMOTE_REASON_SIZE];
} Remote;

extern bool remote_is_valid_string(const char *conninfo, char **detail);
extern bool remote_connect(Remote *remote, const char *conninfo);
extern PGresult *remote_query(Remote *remote, const char *sql,
							  const RemoteArguments *arguments);
extern PGresult *remote_call(Remote *remote, const char *columns,
							 const char *function,
							 const RemoteArguments *arguments);
extern void remote_set_reason(Remote *remote, const char *message);
extern void remote_close(Remote *remote);

extern void remote_add_null(RemoteArguments *arguments, const char *name,
							Oid type);
extern void remote_add_text(RemoteArguments *arguments, const char *name,
							Oid type, const char *text);
extern void remote_add_number(RemoteArguments *arguments, const char *name,
							  Oid type, int64 number);
extern void remote_add_instant(RemoteArguments *arguments, const char *name,
							   TimestampTz instant);
extern void remote_add_position(RemoteArguments *arguments, const char *name,
								uint64 position);

extern int64 remote_get_number(const PGresult *result, int column);
extern bool remote_is_null(const PGresult *result, int column);

#endif							/* SNOWFLAKE_REMOTE_H */
