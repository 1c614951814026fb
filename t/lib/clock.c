/*
 * clock.c
 *	  Preloaded into a server, moves its wall clock by as many microseconds as
 *	  the first eight bytes of the file CLOCK_OFFSET_FILE say, at any time.
 *
 * In place of libfaketime where the postmaster's own clock matters: libfaketime
 * stands aside while it waits in pselect(), and before PostgreSQL 16 that is
 * where the postmaster's signal handlers run.  So they, and every process that
 * they fork (the startup process, background workers), would see the real
 * clock.  It also is as fast as the real clock, which libfaketime is not.
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
static const volatile int64_t *offset_us = NULL;

__attribute__((constructor))
static void
find_clock(void)
{
	const char *name = getenv("CLOCK_OFFSET_FILE");
	int			fd = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

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

	ns = now->tv_sec * NS_PER_S + now->tv_nsec + *offset_us * 1000;
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
