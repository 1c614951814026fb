/*
 * horizon.c
 *	  Stops sessions between two steps of src/id_horizon.c.  t/ids_horizon.pl
 *	  builds it with the server's headers and those of src/, and calls its
 *	  functions by SQL.
 *
 * A session that stops creates the file "NAME.stopped", and goes on when the
 * file is removed.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xact.h"
#include "compat.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "shmem.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(stop_before_end);
PG_FUNCTION_INFO_V1(stop_with_lock);
PG_FUNCTION_INFO_V1(read_stamp);
PG_FUNCTION_INFO_V1(write_hold);

SharedState *snowflake_shared = NULL;

static char *stop_file = NULL;	/* NULL: do not stop */

/* Finds the shared memory of the library under test. */
static void
attach(Size size)
{
	bool		found;

	snowflake_shared = ShmemInitStruct("snowflake", size, &found);
	if (!found)
		elog(ERROR, "the library has no shared memory");
}

static char *
file_of(const text *name)
{
	return MemoryContextStrdup(TopMemoryContext,
							   psprintf("%s.stopped", text_to_cstring(name)));
}

static void
stop(const char *file)
{
	int			fd = open(file, O_CREAT | O_WRONLY | O_EXCL, 0600);

	if (fd < 0)
		elog(ERROR, "%s: %m", file);
	close(fd);
	while (access(file, F_OK) == 0)
		pg_usleep(1000);
}

static void
before_end(XactEvent event, void *arg)
{
	if (stop_file == NULL ||
		(event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE))
		return;
	stop(stop_file);
	stop_file = NULL;
}

/*
 * stop_before_end(name text)
 *		Lets the session stop when it commits or prepares this transaction: after
 *		all callbacks for that have run, and before others can see the end.
 *		PostgreSQL calls callbacks in the reverse order of their registration,
 *		so the session must not have taken an id.
 */
Datum
stop_before_end(PG_FUNCTION_ARGS)
{
	static bool is_registered = false;

	if (!is_registered)
		RegisterXactCallback(before_end, NULL);
	is_registered = true;
	stop_file = file_of(PG_GETARG_TEXT_PP(0));
	PG_RETURN_VOID();
}

/*
 * stop_with_lock(name text, size bigint)
 *		Stops while it has the library's lock in shared mode: others can read
 *		what the lock protects, and a session that has to write waits.  "size" is
 *		that of the library's shared memory.
 */
Datum
stop_with_lock(PG_FUNCTION_ARGS)
{
	const char *file = file_of(PG_GETARG_TEXT_PP(0));

	attach((Size) PG_GETARG_INT64(1));
	LWLockAcquire(&snowflake_shared->lock, LW_SHARED);
	stop(file);
	LWLockRelease(&snowflake_shared->lock);
	PG_RETURN_VOID();
}

/*
 * read_stamp(size bigint) -> bigint
 * write_hold(size bigint, hold bigint)
 *		The two halves of horizon_hold(): a session that is slow reads the newest
 *		stamp long before it writes its hold.
 */
Datum
read_stamp(PG_FUNCTION_ARGS)
{
	attach((Size) PG_GETARG_INT64(0));
	PG_RETURN_INT64((int64) pg_atomic_read_u64(&snowflake_shared->stamp));
}

Datum
write_hold(PG_FUNCTION_ARGS)
{
	attach((Size) PG_GETARG_INT64(0));
	pg_atomic_write_u64(&shmem_my_slot()->hold, (uint64) PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}
