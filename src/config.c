/*
 * config.c
 *	  Whether this process has read the configuration faithfully.
 *
 * PostgreSQL on its own only warns of an extension's bad parameter, and uses
 * the default; a server with a default identity would issue another server's
 * ids.  So the library notes what the configuration sets before it defines its
 * parameters, and compares before the parameters count: at the server's start
 * or, without preload, while the node is not fixed.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "compat.h"
#include "config.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"

/* A parameter that is set before the library defines it. */
typedef struct NotedParameter
{
	char	   *name;
	char	   *value;
	GucSource	source;
} NotedParameter;

static NotedParameter *noted = NULL;
static int	noted_count = 0;
static bool noted_in_parallel = false;

static bool is_ours(const char *name);
static void check_files(void);
static void check_noted(const NotedParameter *parameter,
						const struct config_generic *variable);
static void refuse_bad_value(const NotedParameter *parameter);
static void add_context(void *arg);

/*
 * Notes what the configuration sets, before the parameters are defined.  What
 * a session has set by SET is not noted: PostgreSQL ignores that, with a
 * warning.  But a parallel worker gets such a value in place of the server's.
 */
void
config_note(void)
{
	int			count;
	struct config_generic **variables = compat_guc_variables(&count);
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

	noted_in_parallel = IsInParallelMode() || InitializingParallelWorker;
	noted = palloc(count * sizeof(NotedParameter));
	for (int i = 0; i < count; i++)
	{
		const char *name = variables[i]->name;
		GucSource	source = IsParallelWorker() ? variables[i]->source :
			variables[i]->reset_source;

		if (!is_ours(name) || source == PGC_S_DEFAULT)
			continue;
		noted[noted_count].name = pstrdup(name);
		noted[noted_count].value = pstrdup(IsParallelWorker() ?
										   GetConfigOption(name, false, false) :
										   GetConfigOptionResetString(name));
		noted[noted_count].source = source;
		noted_count++;
	}
	MemoryContextSwitchTo(caller);
}

/*
 * Raises an error unless this process has read the configuration faithfully: if
 * a parameter is unknown, has a bad value, is set for a role, a database or a
 * client, or could not be read in a parallel operation.  Without preload the
 * prefix is not reserved, so that a session sees an unknown parameter here.
 */
void
config_check(void)
{
	int			count;
	struct config_generic **variables = compat_guc_variables(&count);

	for (int i = 0; i < count; i++)
	{
		if (!is_ours(variables[i]->name))
			continue;
		if (variables[i]->reset_source != PGC_S_DEFAULT &&
			(variables[i]->flags & GUC_CUSTOM_PLACEHOLDER))
			ereport(config_error_level(),
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("unrecognized configuration parameter \"%s\"",
							variables[i]->name),
					 errdetail("It is set to \"%s\"; source: %s.",
							   GetConfigOptionResetString(variables[i]->name),
							   GucSource_Names[variables[i]->reset_source]),
					 errhint("Correct its name, or take it out of the configuration.")));
		for (int j = 0; j < noted_count; j++)
		{
			if (pg_strcasecmp(noted[j].name, variables[i]->name) == 0)
				check_noted(&noted[j], variables[i]);
		}
	}
	if (!process_shared_preload_libraries_in_progress)
		check_files();
}

/* Returns the message of config_check()'s error, NULL if there is none. */
char *
config_fault(void)
{
	MemoryContext caller = CurrentMemoryContext;
	char	   *volatile message = NULL;

	PG_TRY();
	{
		config_check();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		message = CopyErrorData()->message;
		FlushErrorState();
	}
	PG_END_TRY();
	return message;
}

/* A bad configuration stops the server's start; later, only one statement. */
int
config_error_level(void)
{
	return process_shared_preload_libraries_in_progress ? FATAL : ERROR;
}

static bool
is_ours(const char *name)
{
	return pg_strncasecmp(name, CONFIG_PREFIX ".",
						  strlen(CONFIG_PREFIX ".")) == 0;
}

/*
 * Raises an error if the configuration files have a bad value: a reload keeps
 * the former value, but takes the other parameters' new ones.
 */
static void
check_files(void)
{
	for (const ConfigVariable *item = compat_read_config_files();
		 item != NULL; item = item->next)
	{
		if (item->name != NULL && is_ours(item->name) && !item->ignore &&
			item->errmsg != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for parameter \"%s\" in the configuration files",
							item->name),
					 errhint("Connect again to see the value in the error, correct it, and reload the configuration.")));
	}
}

/*
 * Raises an error unless a noted parameter has the value that was noted, or one
 * that was read since, and is set for the whole server: PostgreSQL ignores
 * another value, but the session cannot see the server's any more.
 */
static void
check_noted(const NotedParameter *parameter,
			const struct config_generic *variable)
{
	const char *value = (variable->flags & GUC_SUPERUSER_ONLY) ? "..." :
		parameter->value;

	if (parameter->source > PGC_S_ARGV)
		ereport(config_error_level(),
				(errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM),
				 errmsg("parameter \"%s\" can be set for the whole server only",
						parameter->name),
				 errdetail("It is set to \"%s\"; source: %s.",
						   value, GucSource_Names[parameter->source]),
				 errhint("Remove it there, set it in postgresql.conf or a file in conf.d, and connect again.")));
	if (variable->source != PGC_S_DEFAULT)
		return;
	refuse_bad_value(parameter);

	/* The value is good, and a reload can have removed it since. */
	if (noted_in_parallel)
		ereport(ERROR,
				(errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM),
				 errmsg("parameter \"%s\" could not be read in a parallel operation",
						parameter->name),
				 errdetail("Its value is \"%s\"; source: %s.",
						   value, GucSource_Names[parameter->source]),
				 errhint("Connect again, and call snowflake_node() before the parallel operation.")));
}

/*
 * Raises PostgreSQL's own error if a value is bad.  That error does not show
 * the value of snowflake.registry; see connection_check_string().
 */
static void
refuse_bad_value(const NotedParameter *parameter)
{
	ErrorContextCallback errcallback = {
		.callback = add_context,
		.arg = unconstify(NotedParameter *, parameter),
		.previous = error_context_stack
	};

	/* changeVal = false: only parse the value. */
	error_context_stack = &errcallback;
	(void) set_config_option(parameter->name, parameter->value,
							 PGC_POSTMASTER, PGC_S_FILE, GUC_ACTION_SET,
							 false, config_error_level(), false);
	error_context_stack = errcallback.previous;
}

/* Error callback: says where a bad value is set, and what to do. */
static void
add_context(void *arg)
{
	const NotedParameter *parameter = arg;

	/* No hint, because PostgreSQL's own error may have one. */
	errcontext("reading parameter \"%s\" of the server; source: %s%s",
			   parameter->name, GucSource_Names[parameter->source],
			   config_error_level() == ERROR ?
			   "; connect again after a correction" : "");
}
