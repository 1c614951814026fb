/*
 * lease_holder.c
 *	  Who holds a lease: one data directory in one place on one running machine.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "lease_holder.h"
#include "lease_rules.h"
#include "miscadmin.h"
#include "storage/fd.h"

/* The kernel's id of its present run, which changes with every boot. */
#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LENGTH 36

/* See holder_find(); the location is for people. */
char		holder_text[LEASE_HOLDER_SIZE] = "";
char		holder_location[HOLDER_LOCATION_SIZE] = "";

static void holder_find_location(void);
static void holder_read_boot_id(char *boot_id);

/*
 * Finds this server's holder and location.  A holder is a data directory under
 * a running kernel.  Two holders that exist at the same time differ in their
 * texts, unless a virtual machine was copied with its memory.  So a server
 * with the same text as a lease's holder is the server that the lease was
 * granted to, started again; a server with another text may be a copy.
 *
 * The postmaster calls this function once, and its children inherit the
 * results.
 */
void
holder_find(void)
{
	char		boot_id[BOOT_ID_LENGTH + 1];
	struct stat directory;

	if (stat(DataDir, &directory) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not stat directory \"%s\": %m", DataDir)));
	holder_find_location();
	holder_read_boot_id(boot_id);
	snprintf(holder_text, sizeof(holder_text), "%s/%llx/%llu", boot_id,
			 (unsigned long long) directory.st_dev,
			 (unsigned long long) directory.st_ino);
}

uint64
holder_hash(void)
{
	return hash_bytes_extended((const unsigned char *) holder_text,
							   (int) strlen(holder_text), 0);
}

/* Finds the location.  A path that is too long loses its beginning. */
static void
holder_find_location(void)
{
	char		name[HOLDER_LOCATION_SIZE / 2];
	size_t		room;
	size_t		length = strlen(DataDir);

	if (gethostname(name, sizeof(name)) != 0)
		strlcpy(name, "?", sizeof(name));
	name[sizeof(name) - 1] = '\0';
	room = HOLDER_LOCATION_SIZE - strlen(name) - 2;
	snprintf(holder_location, sizeof(holder_location), "%s:%s", name,
			 length > room ? DataDir + length - room : DataDir);
}

/*
 * Reads the boot id.  Where the kernel has no boot id, the text is random and
 * differs at each start of the server.
 */
static void
holder_read_boot_id(char *boot_id)
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
