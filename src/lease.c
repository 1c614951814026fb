/*
 * lease.c
 *	  Where this server is, and the clock that leases are counted on.
 *
 * A place is a data directory under a running kernel.  Two that exist at once
 * never have the same one: so a server that comes with the place it had is
 * that server, started again, and one with another place may be a copy.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lease.h"
#include "miscadmin.h"
#include "storage/fd.h"

/* As long as the machine is up, and different whenever it was started. */
#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LENGTH 36

/*
 * Reads the boot's id.  Where there is none, it is one that no other start of
 * this server has.
 */
static void
read_boot_id(char *boot_id)
{
	int			fd = OpenTransientFile(BOOT_ID_FILE, O_RDONLY);
	ssize_t		length = 0;
	uint64		random[2];

	if (fd >= 0)
	{
		length = read(fd, boot_id, BOOT_ID_LENGTH);
		(void) CloseTransientFile(fd);
	}
	if (length == BOOT_ID_LENGTH)
	{
		boot_id[BOOT_ID_LENGTH] = '\0';
		return;
	}

	if (!pg_strong_random(random, sizeof(random)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number")));
	snprintf(boot_id, BOOT_ID_LENGTH + 1, UINT64_FORMAT "." UINT64_FORMAT,
			 random[0] % 100000000, random[1]);
}

/*
 * The place of this server: it is found out by the postmaster, whose children
 * inherit it.
 */
const char *
lease_place(void)
{
	static char place[LEASE_PLACE_SIZE] = "";
	char		boot_id[BOOT_ID_LENGTH + 1];
	struct stat directory;

	if (place[0] != '\0')
		return place;

	if (stat(DataDir, &directory) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not stat directory \"%s\": %m", DataDir)));
	read_boot_id(boot_id);
	snprintf(place, sizeof(place), "%s/%llx/%llu", boot_id,
			 (unsigned long long) directory.st_dev,
			 (unsigned long long) directory.st_ino);
	return place;
}

/*
 * Microseconds since the machine was started, which nobody sets.  Where the
 * kernel has such a clock, it goes on while the machine is suspended.
 */
int64
lease_clock_us(void)
{
	struct timespec now;

#ifdef CLOCK_BOOTTIME
	(void) clock_gettime(CLOCK_BOOTTIME, &now);
#else
	(void) clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
