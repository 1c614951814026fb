/*
 * remote.h
 *	  Questions to another PostgreSQL.
 */
#ifndef SNOWFLAKE_REMOTE_H
#define SNOWFLAKE_REMOTE_H

#include "postgres.h"

#include <libpq-fe.h>

#include "datatype/timestamp.h"

#define REMOTE_ARGUMENTS_MAX 16
#define REMOTE_ARGUMENT_SIZE 80 /* of each, as text */
#define REMOTE_REASON_SIZE 1024

/* What a statement is sent with. */
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
 * A conversation.  It is over at its deadline, by clock_boottime_us(), or, if it
 * may be broken off, when this process is to end.  To start with, {0} but for
 * these two.
 */
typedef struct Remote
{
	int64		deadline_us;
	bool		is_urgent;		/* not to be broken off */
	PGconn	   *connection;
	bool		is_out_of_time;
	bool		is_refused;		/* it is there, and has answered an error */
	bool		is_warned;		/* with a warning, so it is not to be relied on */
	char		reason[REMOTE_REASON_SIZE]; /* why something has failed */
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
