/*
 * config.h
 *	  Refuses a configuration that PostgreSQL would only warn of.
 */
#ifndef SNOWFLAKE_CONFIG_H
#define SNOWFLAKE_CONFIG_H

#include "postgres.h"

#include "nodes/pg_list.h"

#define CONFIG_PREFIX "snowflake"

extern char *config_origin(const char *name);
extern List *config_note(void);
extern void config_check(const List *noted);

#endif							/* SNOWFLAKE_CONFIG_H */
