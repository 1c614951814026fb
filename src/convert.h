/*
 * convert.h
 *	  What convert.c and create_table.c have for others.
 */
#ifndef SNOWFLAKE_CONVERT_H
#define SNOWFLAKE_CONVERT_H

/* Is a conversion running, whose own DDL is to be left alone? */
extern bool convert_is_running(void);

/* Are new tables of a schema to be converted, by snowflake_convert.schemas? */
extern bool convert_wants_schema(const char *schema);

/* Makes keys of a CREATE TABLE snowflakes where the event trigger would. */
extern void create_table_install_hook(void);

#endif							/* SNOWFLAKE_CONVERT_H */
