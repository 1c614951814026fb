/*
 * id_generator.h
 *	  Issuing ids.
 */
#ifndef SNOWFLAKE_ID_GENERATOR_H
#define SNOWFLAKE_ID_GENERATOR_H

#include "postgres.h"

extern int64 generator_next(void);
extern int64 generator_next_run(int64 wanted, int64 *count);
extern bool generator_last_of_session(int64 *id);
extern int64 generator_horizon(Oid table);

#endif							/* SNOWFLAKE_ID_GENERATOR_H */
