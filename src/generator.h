/*
 * generator.h
 *	  The shared state, and the one place that issues ids.
 */
#ifndef SNOWFLAKE_GENERATOR_H
#define SNOWFLAKE_GENERATOR_H

#include "postgres.h"

#include "datatype/timestamp.h"

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
	int64		node_bits;		/* of the node that they were reserved for */
	struct Generator *generator;	/* whose they are */
} IdRun;

/* What a session has done, or all of them; see stats.c. */
typedef struct GeneratorCounters
{
	uint64		ids_issued;
	uint64		sequence_waits; /* calls that waited for a spent tick */
	uint64		sequence_wait_us;
	uint64		clock_waits;	/* calls that waited for the clock */
	uint64		clock_wait_us;
	uint64		clock_regressions;	/* calls that found it stepped back */
	uint64		clock_refusals; /* calls refused because of the clock */
} GeneratorCounters;

/* All sessions together, since the last reset. */
typedef struct GeneratorTotals
{
	GeneratorCounters counters;
	int64		last_id;		/* the sessions' largest last one; -1: none */
	int64		max_regression_us;
	uint64		high_water_writes;
	uint64		lease_renewals;
	uint64		lease_failures;
	TimestampTz since;
} GeneratorTotals;

/* One session. */
typedef struct GeneratorSession
{
	int			pid;			/* 0: none that has issued */
	GeneratorCounters counters;
	int64		last_id;		/* -1: none */
} GeneratorSession;

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

extern void generator_require_counters(void);
extern void generator_totals(GeneratorTotals *totals);
extern void generator_session(int number, GeneratorSession *session);
extern void generator_reset_totals(void);

#endif							/* SNOWFLAKE_GENERATOR_H */
