/*
 * config.h
 *	  Whether this process has read the configuration faithfully.
 */
#ifndef SNOWFLAKE_CONFIG_H
#define SNOWFLAKE_CONFIG_H

#include "postgres.h"

#define CONFIG_PREFIX "snowflake"

extern void config_note(void);
extern void config_check(void);
extern char *config_fault(void);
extern int	config_error_level(void);

#endif							/* SNOWFLAKE_CONFIG_H */
