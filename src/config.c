/*
 * config.c
 *	  Refuses a configuration that PostgreSQL would only warn of, and says where a
 *	  parameter comes from.
 *
 * PostgreSQL on its own only warns of an extension's bad parameter, and uses
 * the default; a server with a default identity would issue another server's
 * ids.  So the postmaster notes what the configuration sets before it defines
 * the library's parameters, and compares afterwards.  Every error stops the
 * server's start.
 */
#include "postgres.h"

#include "compat.h"
#include "config.h"
#include "utils/guc.h"

/* A parameter that is set before the library defines it. */
typedef struct NotedParameter
{
	char	   *name;
	char	   *value;
	GucSource	source;
} NotedParameter;

static bool config_is_ours(const char *name);
static const struct config_generic *config_find(const char *name);
static void config_refuse_value(const NotedParameter *parameter);
static void config_add_context(void *arg);

/*
 * Returns a parameter's value in force, and the file that set it, as part of a
 * sentence.  The caller makes sure that the user may see both.
 */
char *
config_origin(const char *name)
{
	const struct config_generic *variable = config_find(name);
	const char *value = GetConfigOption(name, false, false);

	if (variable->sourcefile == NULL)
		return psprintf("\"%s\" is \"%s\" (source: %s)", name, value,
						GucSource_Names[variable->source]);
	return psprintf("\"%s\" is \"%s\" by line %d of file \"%s\"", name, value,
					variable->sourceline, variable->sourcefile);
}

/* Notes what the configuration sets, before the parameters are defined. */
List *
config_note(void)
{
	int			count;
	struct config_generic **variables = compat_guc_variables(&count);
	List	   *noted = NIL;

	for (int i = 0; i < count; i++)
	{
		NotedParameter *parameter;

		if (!config_is_ours(variables[i]->name))
			continue;
		parameter = palloc(sizeof(*parameter));
		parameter->name = pstrdup(variables[i]->name);
		parameter->value = pstrdup(GetConfigOption(variables[i]->name,
												   false, false));
		parameter->source = variables[i]->source;
		noted = lappend(noted, parameter);
	}
	return noted;
}

/*
 * Stops the start if a parameter that was noted is unknown or has a bad value.
 * The parameters are defined by now.
 */
void
config_check(const List *noted)
{
	const ListCell *cell;

	foreach(cell, noted)
	{
		const NotedParameter *parameter = lfirst(cell);
		const struct config_generic *variable =
			config_find(parameter->name);

		/* Do not show the value: it may be a string with a password. */
		if (variable->flags & GUC_CUSTOM_PLACEHOLDER)
			ereport(FATAL,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("unrecognized configuration parameter \"%s\"",
							parameter->name),
					 errdetail("It is set by: %s.",
							   GucSource_Names[parameter->source]),
					 errhint("Correct its name, or take it out of the configuration.")));
		if (variable->source == PGC_S_DEFAULT)
			config_refuse_value(parameter);
	}
}

static bool
config_is_ours(const char *name)
{
	return pg_strncasecmp(name, CONFIG_PREFIX ".",
						  strlen(CONFIG_PREFIX ".")) == 0;
}

/* Returns a parameter that exists.  Names have no case. */
static const struct config_generic *
config_find(const char *name)
{
	int			count;
	struct config_generic **variables = compat_guc_variables(&count);
	int			i = 0;

	while (pg_strcasecmp(variables[i]->name, name) != 0)
	{
		i++;
		Assert(i < count);
	}
	return variables[i];
}

/*
 * Raises PostgreSQL's own error for a value that PostgreSQL has not taken.
 * That error does not show the value of snowflake.registry; see
 * connection_check_string().
 */
static void
config_refuse_value(const NotedParameter *parameter)
{
	ErrorContextCallback errcallback = {
		.callback = config_add_context,
		.arg = unconstify(NotedParameter *, parameter),
		.previous = error_context_stack
	};

	/* changeVal = false: only parse the value. */
	error_context_stack = &errcallback;
	(void) set_config_option(parameter->name, parameter->value,
							 PGC_POSTMASTER, PGC_S_FILE, GUC_ACTION_SET,
							 false, FATAL, false);
	error_context_stack = errcallback.previous;
}

/* Error callback: says where a bad value is set. */
static void
config_add_context(void *arg)
{
	const NotedParameter *parameter = arg;

	errcontext("reading parameter \"%s\" of the server; source: %s",
			   parameter->name, GucSource_Names[parameter->source]);
}
