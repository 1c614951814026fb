/*
 * clock.c
 *	  Sets a server's wall clock at any time.  The tests preload it.
 *
 * The file CLOCK_OFFSET_FILE has a 64-bit number: the offset of the clock from
 * the real one, in microseconds.  With CLOCK_SLOWNESS=1000 the clock runs 1,000
 * times slower: a thousandth of the real one, plus the offset.
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

static int	(*real_clock_gettime) (clockid_t, struct timespec *) = NULL;

/* The contents of CLOCK_OFFSET_FILE. */
static const volatile int64_t *offset_us = NULL;
static int64_t slowness = 1;

__attribute__((constructor))
static void
find_clock(void)
{
	const char *name = getenv("CLOCK_OFFSET_FILE");
	const char *slow = getenv("CLOCK_SLOWNESS");
	int			fd = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

	if (slow != NULL)
		slowness = atoi(slow);

	*(void **) &real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*offset_us), PROT_READ, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		offset_us = map;
	close(fd);
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	int64_t		ns;

	if (real_clock_gettime == NULL)
		find_clock();
	if (real_clock_gettime(id, now) != 0)
		return -1;
	if (offset_us == NULL ||
		(id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
		return 0;

	ns = now->tv_sec * NS_PER_S + now->tv_nsec;
	if (slowness > 1)
		ns /= slowness;
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
