/*
 * slow_flush.c
 *	  A library to preload into a server: a sleep in the place of each flush.
 *
 * The name of a file is in the environment variable SLOW_FLUSH.  The file has
 * two numbers, the shortest and the longest time of a flush in milliseconds,
 * and may change while the server runs.  A flush takes a random time between
 * them, and no time without the file.
 *
 * The disk is not flushed, so that its noise is not measured, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int			fdatasync(int fd);
int			fsync(int fd);

static int
slow_flush(void)
{
	const char *name = getenv("SLOW_FLUSH");
	FILE	   *file = name == NULL ? NULL : fopen(name, "r");
	double		shortest_ms;
	double		longest_ms;
	struct timespec now;
	struct timespec duration;
	long		us;

	if (file == NULL)
		return 0;
	if (fscanf(file, "%lf %lf", &shortest_ms, &longest_ms) != 2)
		shortest_ms = longest_ms = 0;
	fclose(file);

	/* A generator of random numbers would begin alike in each session. */
	clock_gettime(CLOCK_MONOTONIC, &now);
	us = (long) (1000 * (shortest_ms + (longest_ms - shortest_ms) *
						 (now.tv_nsec / 7 % 1000) / 1000));
	duration.tv_sec = us / 1000000;
	duration.tv_nsec = us % 1000000 * 1000;
	while (nanosleep(&duration, &duration) != 0)
		;
	return 0;
}

int
fdatasync(int fd)
{
	(void) fd;
	return slow_flush();
}

int
fsync(int fd)
{
	(void) fd;
	return slow_flush();
}
