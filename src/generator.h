/*
 * generator.h
 *	  The shared state, and the one place that issues ids.
 */
#ifndef SNOWFLAKE_GENERATOR_H
#define SNOWFLAKE_GENERATOR_H

#include "postgres.h"

/* snowflake.clock_policy: what to do when the clock is behind the last id */
typedef enum ClockPolicy
{
	CLOCK_POLICY_WAIT,
	CLOCK_POLICY_ERROR,
	CLOCK_POLICY_ADVANCE
} ClockPolicy;

/* snowflake.sequence_start: where a fresh tick's sequence begins */
typedef enum SequenceStart
{
	SEQUENCE_START_ZERO,
	SEQUENCE_START_RANDOM
} SequenceStart;

/*
 * Ids of one tick that this backend has reserved and not handed out yet, as
 * a generator's words.  To start with, {0}.
 */
typedef struct IdRun
{
	int64		next;			/* the first of those left */
	int64		left;			/* how many */
	int64		size;			/* how many were asked for; 0: no run yet */
	int64		last_id;		/* the last id handed out of it */
	struct Generator *generator;	/* whose they are */
} IdRun;

/* the largest snowflake.block_size and snowflake.generators */
#define GENERATOR_BLOCK_SIZE_MAX 65536
#define GENERATOR_COUNT_MAX 1024

/* parameters, registered by module.c */
extern int	generator_clock_policy;
extern int	generator_clock_tolerance_ms;
extern int	generator_sequence_start;
extern int	generator_block_size;
extern int	generator_count;

extern void generator_shmem_request(void);
extern void generator_shmem_startup(void);

extern int64 generator_next(void);
extern int64 generator_next_of_relation(Oid relation);
extern int64 generator_next_of_run(IdRun *run, int64 wanted);
extern bool generator_last_of_session(int64 *id);

#endif							/* SNOWFLAKE_GENERATOR_H */
