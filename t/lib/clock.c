/*
 * clock.c
 *	  Sets a server's wall clock at any time, and slows all its clocks down.  The
 *	  tests preload it; SnowflakeTime.pm writes the two files that it reads.
 *
 * The file CLOCK_OFFSET_FILE has a 64-bit number: how far the wall clock is set
 * ahead, in microseconds.
 *
 * The file CLOCK_PACE_FILE has a Pace: the wall clock, the monotonic clock and
 * the boot-time clock run so many times slower than the real ones, and go on
 * when a test lets time pass.  All servers with this file have the same time.
 *
 * libfaketime cannot replace this library, for two reasons.  It shows the real
 * clock while the postmaster waits in pselect(); before PostgreSQL 16 the
 * postmaster's signal handlers run there, so the handlers, and the startup
 * process and background workers that they fork, would see the real clock.  And
 * its clock is slower to read than the real one, so that no test could issue all
 * ids of a tick.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S INT64_C(1000000000)

/* Where the clocks began to be slow, by the real clocks. */
enum
{
	BEGAN_REALTIME,
	BEGAN_MONOTONIC,
	BEGAN_BOOTTIME,
	CLOCKS
};

typedef struct Pace
{
	int64_t		slowness;
	int64_t		passed_ns;		/* what the test has let pass besides */
	int64_t		began_ns[CLOCKS];
} Pace;

static int	(*real_clock_gettime) (clockid_t, struct timespec *) = NULL;
static const volatile int64_t *offset_us = NULL;
static const volatile Pace *pace = NULL;

/* Returns the contents of the file that an environment variable names. */
static const void *
map_file(const char *variable, size_t size)
{
	const char *name = getenv(variable);
	int			fd = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

	if (fd < 0)
		return NULL;
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return map == MAP_FAILED ? NULL : map;
}

__attribute__((constructor))
static void
find_clock(void)
{
	*(void **) &real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	offset_us = map_file("CLOCK_OFFSET_FILE", sizeof(*offset_us));
	pace = map_file("CLOCK_PACE_FILE", sizeof(*pace));
}

/* Returns the number of a clock in Pace, -1 for one that is left alone. */
static int
clock_number(clockid_t id)
{
	switch (id)
	{
		case CLOCK_REALTIME:
		case CLOCK_REALTIME_COARSE:
			return BEGAN_REALTIME;
		case CLOCK_MONOTONIC:
		case CLOCK_MONOTONIC_COARSE:
		case CLOCK_MONOTONIC_RAW:
			return BEGAN_MONOTONIC;
		case CLOCK_BOOTTIME:
			return BEGAN_BOOTTIME;
		default:
			return -1;
	}
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	int			number = clock_number(id);
	int64_t		ns;

	if (real_clock_gettime == NULL)
		find_clock();
	if (real_clock_gettime(id, now) != 0)
		return -1;
	if (number < 0 || (offset_us == NULL && pace == NULL))
		return 0;

	ns = now->tv_sec * NS_PER_S + now->tv_nsec;
	if (pace != NULL)
	{
		int64_t		began_ns = pace->began_ns[number];

		ns = began_ns + (ns - began_ns) / pace->slowness + pace->passed_ns;
	}
	if (offset_us != NULL && number == BEGAN_REALTIME)
		ns += *offset_us * 1000;
	now->tv_sec = ns / NS_PER_S;
	now->tv_nsec = ns % NS_PER_S;
	return 0;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec precise;

	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	if (now != NULL)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
