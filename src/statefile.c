/*
 * statefile.c
 *	  The state file: what outlives the server of its ids.
 *
 * Its form, and how it is read and written as a whole.  What is in it, and
 * when, is highwater.c's matter; here nothing is in shared memory.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "statefile.h"
#include "storage/fd.h"

#define STATE_MAGIC 0x534E464CU /* SNFL */
#define STATE_VERSION 1

/* Longer than a version of this file will ever be. */
#define STATE_SIZE_MAX 8192

static pg_crc32c
checksum_of(const void *data, size_t size)
{
	pg_crc32c	checksum;

	INIT_CRC32C(checksum);
	COMP_CRC32C(checksum, data, size);
	FIN_CRC32C(checksum);
	return checksum;
}

/*
 * Reads the whole file into a buffer of STATE_SIZE_MAX bytes.  Returns its
 * size, 0 if there is none, -1 with errno set if it cannot be read.
 */
static ssize_t
read_whole_file(char *buffer)
{
	int			fd = OpenTransientFile(STATE_FILE, O_RDONLY | PG_BINARY);
	ssize_t		size = 0;
	ssize_t		got;

	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	do
	{
		got = read(fd, buffer + size, STATE_SIZE_MAX - size);
		if (got > 0)
			size += got;
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (got < 0)
	{
		int			save_errno = errno;

		(void) CloseTransientFile(fd);
		errno = save_errno;
		return -1;
	}
	(void) CloseTransientFile(fd);

	/* an empty file is one that is damaged, not one that is missing */
	return Max(size, 1);
}

/* Says why the file cannot be used. */
static StateFault
fault_of(StateFault fault, char *detail, const char *text)
{
	strlcpy(detail, text, STATE_DETAIL_SIZE);
	return fault;
}

/*
 * Reads and verifies the state file.  Unless it is sound, "file" is left as it
 * was; if there is one that cannot be used, "detail" says why.
 */
StateFault
statefile_read(StateFile *file, char *detail)
{
	union
	{
		char		data[STATE_SIZE_MAX];
		StateFile	file;
	}			buffer;
	ssize_t		size = read_whole_file(buffer.data);
	pg_crc32c	checksum;

	if (size == 0)
		return STATE_MISSING;
	if (size < 0)
		return fault_of(STATE_UNREADABLE, detail,
						psprintf("it cannot be read: %m"));
	if (size < (ssize_t) (2 * sizeof(uint32) + sizeof(checksum)) ||
		size == STATE_SIZE_MAX)
		return fault_of(STATE_DAMAGED, detail, "its size is wrong");

	memcpy(&checksum, buffer.data + size - sizeof(checksum),
		   sizeof(checksum));
	if (!EQ_CRC32C(checksum,
				   checksum_of(buffer.data, size - sizeof(checksum))) ||
		buffer.file.magic != STATE_MAGIC)
		return fault_of(STATE_DAMAGED, detail, "its checksum does not match");
	if (buffer.file.version > STATE_VERSION)
		return fault_of(STATE_TOO_NEW, detail,
						psprintf("it has version %u, and this library reads up to version %u",
								 buffer.file.version, STATE_VERSION));
	if (buffer.file.version != STATE_VERSION || size != sizeof(StateFile))
		return fault_of(STATE_DAMAGED, detail,
						"its version and its size disagree");

	*file = buffer.file;
	return STATE_SOUND;
}

/* Makes a file one that verifies. */
void
statefile_seal(StateFile *file)
{
	file->magic = STATE_MAGIC;
	file->version = STATE_VERSION;
	file->checksum = checksum_of(file, offsetof(StateFile, checksum));
}

/* Flushes and closes; false with errno set if either fails. */
static bool
flush_and_close(int fd)
{
	int			save_errno = 0;

	if (pg_fsync(fd) != 0)
		save_errno = errno;
	if (CloseTransientFile(fd) != 0 && save_errno == 0)
		save_errno = errno;
	errno = save_errno;
	return save_errno == 0;
}

/* Writes a file and flushes it.  True, or false with errno set. */
bool
statefile_write(const char *name, const StateFile *file)
{
	ssize_t		written;
	int			fd = OpenTransientFilePerm(name,
										   O_WRONLY | O_CREAT | O_TRUNC |
										   PG_BINARY,
										   pg_file_create_mode);

	if (fd < 0)
		return false;

	errno = 0;
	written = write(fd, file, sizeof(*file));
	if (written != (ssize_t) sizeof(*file))
	{
		/* a short write without an error is a full disk */
		int			save_errno = errno != 0 ? errno : ENOSPC;

		(void) CloseTransientFile(fd);
		errno = save_errno;
		return false;
	}
	return flush_and_close(fd);
}

/* Makes a rename safe.  True, or false with errno set. */
bool
statefile_flush_directory(void)
{
	int			fd = OpenTransientFile(".", O_RDONLY);

	return fd >= 0 && flush_and_close(fd);
}

