/*
 * convert.h
 *	  What convert.c and create_table.c have for others.
 */
#ifndef SNOWFLAKE_CONVERT_H
#define SNOWFLAKE_CONVERT_H

/* Is a statement of a conversion running? */
extern bool convert_is_running(void);

/* Does snowflake_convert.schemas want the new tables of a schema converted? */
extern bool convert_wants_schema(const char *schema);

/* Installs the hook that changes CREATE TABLE; only while preloading. */
extern void create_table_install_hook(void);

#endif							/* SNOWFLAKE_CONVERT_H */
