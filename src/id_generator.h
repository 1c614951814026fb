/*
 * id_generator.h
 *	  Issuing ids.
 */
#ifndef SNOWFLAKE_ID_GENERATOR_H
#define SNOWFLAKE_ID_GENERATOR_H

#include "postgres.h"

#include "shmem.h"

/* snowflake.sequence_start: where a fresh tick's sequence begins */
typedef enum SequenceStart
{
	SEQUENCE_START_ZERO,
	SEQUENCE_START_RANDOM
} SequenceStart;

/* the largest snowflake.block_size */
#define GENERATOR_BLOCK_SIZE_MAX 65536

/* parameters, registered by module.c */
extern int	generator_sequence_start;
extern int	generator_block_size;

extern int64 generator_next(void);
extern int64 generator_next_of_block(IdBlock *block, int64 wanted);
extern bool generator_last_of_session(int64 *id);
extern int64 generator_horizon(void);

#endif							/* SNOWFLAKE_ID_GENERATOR_H */
