/*
 * faults.c
 *	  A disk that fails for the state file alone: preloaded into a server by
 *	  the tests.
 *
 * FAULT_DIRECTORY names a directory.  While it holds a file "full", writes to
 * the state file fail with ENOSPC; while "broken", its fsync fails with EIO;
 * while "stuck.PID", the fsync of that process does not return.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int
is_state_file(int fd)
{
	char		link[64];
	char		path[4096];
	ssize_t		length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return 0;
	path[length] = '\0';
	return strstr(path, "/snowflake.state") != NULL;
}

static int
has_fault(const char *name)
{
	const char *directory = getenv("FAULT_DIRECTORY");
	char		path[4096];

	if (directory == NULL)
		return 0;
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return access(path, F_OK) == 0;
}

ssize_t
write(int fd, const void *data, size_t size)
{
	static ssize_t (*real_write) (int, const void *, size_t) = NULL;

	if (real_write == NULL)
		*(void **) &real_write = dlsym(RTLD_NEXT, "write");
	if (is_state_file(fd) && has_fault("full"))
	{
		errno = ENOSPC;
		return -1;
	}
	return real_write(fd, data, size);
}

int
fsync(int fd)
{
	static int	(*real_fsync) (int) = NULL;

	if (real_fsync == NULL)
		*(void **) &real_fsync = dlsym(RTLD_NEXT, "fsync");
	if (is_state_file(fd))
	{
		const struct timespec moment = {0, 5000000};
		char		stuck[32];

		snprintf(stuck, sizeof(stuck), "stuck.%d", (int) getpid());
		while (has_fault(stuck))
			nanosleep(&moment, NULL);
		if (has_fault("broken"))
		{
			errno = EIO;
			return -1;
		}
	}
	return real_fsync(fd);
}
