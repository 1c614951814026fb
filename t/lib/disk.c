/*
 * disk.c
 *	  Gives a server a slow, hanging or full disk.  The tests preload it.
 *
 * The file DISK_FILE has 64-bit numbers, which a test changes while the server
 * runs; t/mark_disk.pl has their names.  A flush is a call of fdatasync() or
 * fsync() for a file of pg_wal.  It does not reach the real disk, so that the
 * disk under the test adds nothing to the delay.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The contents of DISK_FILE. */
typedef struct DiskFile
{
	int64_t		delay_us;		/* how long a flush takes */
	int64_t		is_hanging;		/* 1: flushes do not end before this is 0 */
	int64_t		flushes;		/* how many flushes have ended */
	int64_t		hanging;		/* how many flushes hang now */
	int64_t		bytes_left;		/* of a page of the mark that is created; -1:
								 * there is room for all of it */
	int64_t		is_broken;		/* 1: fsync() of such a page fails */
} DiskFile;

static volatile DiskFile *disk = NULL;
static int	(*real_fdatasync) (int) = NULL;
static int	(*real_fsync) (int) = NULL;
static ssize_t (*real_write) (int, const void *, size_t) = NULL;

__attribute__((constructor))
static void
find_disk(void)
{
	const char *name = getenv("DISK_FILE");
	int			fd = name != NULL ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void	   *map;

	*(void **) &real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
	*(void **) &real_fsync = dlsym(RTLD_NEXT, "fsync");
	*(void **) &real_write = dlsym(RTLD_NEXT, "write");
	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*disk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		disk = map;
	close(fd);
}

/* Does the path of an open file have this part? */
static int
has_in_path(int fd, const char *part)
{
	char		link[64];
	char		path[PATH_MAX + 1];
	ssize_t		length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, PATH_MAX);
	if (length < 0)
		return 0;
	path[length] = '\0';
	return strstr(path, part) != NULL;
}

/* Sleeps, although signals arrive. */
static void
sleep_us(int64_t us)
{
	struct timespec left = {us / 1000000, us % 1000000 * 1000};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

static void
flush(void)
{
	if (disk->is_hanging)
		__atomic_add_fetch(&disk->hanging, 1, __ATOMIC_SEQ_CST);
	while (disk->is_hanging)
		sleep_us(1000);
	sleep_us(disk->delay_us);
	__atomic_add_fetch(&disk->flushes, 1, __ATOMIC_SEQ_CST);
}

int
fdatasync(int fd)
{
	if (disk == NULL || !has_in_path(fd, "/pg_wal/"))
		return real_fdatasync(fd);
	flush();
	return 0;
}

int
fsync(int fd)
{
	if (disk != NULL && disk->is_broken && has_in_path(fd, "pgsql_tmp_snowflake"))
	{
		errno = EIO;
		return -1;
	}
	if (disk == NULL || !has_in_path(fd, "/pg_wal/"))
		return real_fsync(fd);
	flush();
	return 0;
}

ssize_t
write(int fd, const void *bytes, size_t count)
{
	size_t		left;

	if (disk == NULL || disk->bytes_left < 0 ||
		!has_in_path(fd, "pgsql_tmp_snowflake"))
		return real_write(fd, bytes, count);

	left = (size_t) disk->bytes_left;
	if (left == 0)
	{
		errno = ENOSPC;
		return -1;
	}
	return real_write(fd, bytes, count < left ? count : left);
}
