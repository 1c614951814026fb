/*
 * convert.h
 *	  Converting key columns: the functions of convert.c and create_table.c.
 */
#ifndef SNOWFLAKE_CONVERT_H
#define SNOWFLAKE_CONVERT_H

#include "nodes/pg_list.h"

/* One conversion: the key columns, and how they are converted. */
typedef struct Conversion
{
	Oid			own_schema;		/* the extension's schema */
	int			count;			/* of keys */
	Oid		   *tables;
	NameData   *columns;
	bool		is_dry_run;
	bool		is_new;			/* is the table created by the statement that
								 * fires the event trigger? */
	bool		puts_back;		/* drops views, rules and triggers, and puts
								 * them back */
} Conversion;

/* One statement of a conversion. */
typedef struct Statement
{
	Oid			table;
	Oid			other;			/* a sequence, or the table referenced */
	char	   *table_name;		/* names of "table" and "other" in "text" */
	char	   *other_name;
	char	   *text;
	bool		needs_superuser;

	/*
	 * The owner and the schema of "table".  Set only if the statement drops or
	 * puts back a view, a rule or a trigger, because "table" may not exist
	 * when such a statement is executed.
	 */
	Oid			owner;
	Oid			schema;
} Statement;

/* Is a statement of a conversion running? */
extern bool convert_is_running(void);

/* Does the setting snowflake_convert.schemas choose the tables of a schema? */
extern bool convert_wants_schema(const char *schema);

/*
 * The parts of a conversion that convert_schema.c calls, too.  The caller has
 * called SPI_connect().
 */
extern uint64 convert_query(const Conversion *conversion, const char *format);
extern char *convert_text_at(uint64 row, const char *column);
extern Datum convert_value_at(uint64 row, const char *column, bool *is_null);
extern Oid	convert_oid_at(uint64 row, const char *column);
extern char *convert_table_name(Oid table);	/* qualified and quoted */
extern char *convert_shown_name(Oid table);
extern char *convert_subject(const Conversion *conversion);
extern List *convert_statements(const Conversion *conversion);
extern List *convert_tables(const Conversion *conversion);
extern List *convert_obstacles(const Conversion *conversion);
extern Oid	convert_find_distributed(List *tables);
extern void convert_refuse_isolation(const Conversion *conversion);
extern void convert_warn(const Conversion *conversion);
extern void convert_execute_as(Oid owner, const char *statement);
extern void convert_execute(const Conversion *conversion, List *statements);

/* Installs the hook that changes CREATE TABLE; only while preloading. */
extern void create_table_install_hook(void);

#endif							/* SNOWFLAKE_CONVERT_H */
