/*
 * compat.h
 *	  All differences between PostgreSQL versions; no other file has any.
 *
 * All other code is written for the newest PostgreSQL.  This file defines for
 * older versions what the newest version has, under the newest version's
 * names.  A "16" in a comment is PostgreSQL 16.
 */
#ifndef SNOWFLAKE_COMPAT_H
#define SNOWFLAKE_COMPAT_H

#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "fmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* 16 moves VARDATA_ANY and its like from postgres.h to varatt.h. */
#if PG_VERSION_NUM >= 160000
#include "nodes/miscnodes.h"
#include "varatt.h"
#else
#include "utils/acl.h"			/* for object_aclcheck() below */
#endif

/* 16 renames RelFileNode and its fields, and adds PGIOAlignedBlock. */
#if PG_VERSION_NUM < 160000
#define RelFileLocator RelFileNode
#define spcOid spcNode
#define dbOid dbNode
#define relNumber relNode
#define PGIOAlignedBlock PGAlignedBlock
#endif

/*
 * 16 hides a library's symbols, except those with PGDLLEXPORT, and gives
 * PGDLLEXPORT to functions that SQL calls.  For 15 the Makefile hides the
 * symbols, and this header defines PG_FUNCTION_INFO_V1() as in 16: each file
 * with such functions includes this header.  16 also declares _PG_init().
 */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#undef PG_FUNCTION_INFO_V1
#define PG_FUNCTION_INFO_V1(funcname) \
extern PGDLLEXPORT Datum funcname(PG_FUNCTION_ARGS); \
extern PGDLLEXPORT const Pg_finfo_record *CppConcat(pg_finfo_,funcname)(void); \
const Pg_finfo_record * \
CppConcat(pg_finfo_,funcname)(void) \
{ \
	static const Pg_finfo_record my_finfo = { 1 }; \
	return &my_finfo; \
} \
extern int no_such_variable
extern PGDLLEXPORT void _PG_init(void); /* NOLINT: PostgreSQL's name for it */
#endif

/* 18 shows the name and version of a library in pg_get_loaded_modules(). */
#ifndef PG_MODULE_MAGIC_EXT
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* 16 returns a copy of the list of parameters; 15 returns the list itself. */
static inline struct config_generic **
compat_guc_variables(int *count)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(count);
#else
	*count = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

/*
 * Reads a timestamp from text.  Returns false if the text is not a timestamp.
 * 16 reports that by a soft error.  Before 16 it raises an error of class 22,
 * which this function catches; it rethrows every other error.
 */
static inline bool
compat_timestamptz_in(const char *text, TimestampTz *timestamp)
{
	Datum		result;

#if PG_VERSION_NUM >= 160000
	ErrorSaveContext context = {T_ErrorSaveContext};

	if (!DirectInputFunctionCallSafe(timestamptz_in, unconstify(char *, text),
									 InvalidOid, -1, (Node *) &context,
									 &result))
		return false;
#else
	MemoryContext caller = CurrentMemoryContext;
	bool		is_read = true;

	PG_TRY();
	{
		result = DirectFunctionCall3(timestamptz_in, CStringGetDatum(text),
									 ObjectIdGetDatum(InvalidOid),
									 Int32GetDatum(-1));
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		is_read = false;
	}
	PG_END_TRY();
	if (!is_read)
		return false;
#endif
	*timestamp = DatumGetTimestampTz(result);
	return true;
}

/*
 * 16 has one check of privileges for all kinds of objects, and 15 one for each
 * kind.  The library checks privileges on functions only.
 */
#if PG_VERSION_NUM < 160000
#define object_aclcheck(class_id, object_id, role_id, mode) \
	pg_proc_aclcheck(object_id, role_id, mode)
#endif

/*
 * 17 replaces backend ids by the numbers of PGPROCs, and lets extensions name
 * their wait events.
 */
#if PG_VERSION_NUM < 170000
#define MyProcNumber (MyProc->pgprocno)
#define GetNumberFromPGProc(proc) ((proc)->pgprocno)
#define procNumber backendId	/* of a VirtualTransactionId */
#define FIRST_PREPARED_XACT_PROC_NUMBER (MaxBackends + NUM_AUXILIARY_PROCS)

static inline uint32
WaitEventExtensionNew(const char *wait_event_name)
{
	return PG_WAIT_EXTENSION;
}
#endif

/* 17 has one field in place of two. */
static inline VirtualTransactionId
compat_lock_vxid(const LockInstanceData *lock)
{
#if PG_VERSION_NUM >= 170000
	return lock->vxid;
#else
	VirtualTransactionId vxid = {lock->backend, lock->lxid};

	return vxid;
#endif
}

/* 19 keeps the names of tranches in shared memory. */
#if PG_VERSION_NUM < 190000
#define LWLockNewTrancheId(name) LWLockNewTrancheId()
#define compat_LWLockRegisterTranche(id, name) LWLockRegisterTranche(id, name)
#else
#define compat_LWLockRegisterTranche(id, name) ((void) 0)
#endif

/* 19 takes a full transaction id. */
static inline PGPROC *
compat_TwoPhaseGetDummyProc(FullTransactionId xid)
{
#if PG_VERSION_NUM >= 190000
	return TwoPhaseGetDummyProc(xid, false);
#else
	return TwoPhaseGetDummyProc(XidFromFullTransactionId(xid), false);
#endif
}

/* 19 removes PageSetChecksumCopy() and renames PageSetChecksumInplace(). */
#if PG_VERSION_NUM < 190000
#define PageSetChecksum PageSetChecksumInplace
#endif

#endif							/* SNOWFLAKE_COMPAT_H */
