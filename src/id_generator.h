/*
 * id_generator.h
 *	  Issuing ids.
 */
#ifndef SNOWFLAKE_ID_GENERATOR_H
#define SNOWFLAKE_ID_GENERATOR_H

#include "postgres.h"

/* snowflake.sequence_start: where a fresh tick's sequence begins */
typedef enum SequenceStart
{
	SEQUENCE_START_ZERO,
	SEQUENCE_START_RANDOM
} SequenceStart;

/* parameters, registered by module.c */
extern int	generator_sequence_start;

extern int64 generator_next(void);
extern int64 generator_next_run(int64 wanted, int64 *count);
extern bool generator_last_of_session(int64 *id);
extern int64 generator_horizon(Oid table);

#endif							/* SNOWFLAKE_ID_GENERATOR_H */
