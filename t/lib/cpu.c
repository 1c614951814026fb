/*
 * cpu.c
 *	  Runs a command, and writes the processor's seconds that it and all that it
 *	  has started took, servers included, into a file.
 *
 *	  cpu FILE COMMAND [ARGUMENT ...]
 *
 * A server leaves the process that started it.  This process becomes the parent
 * of such servers, so their seconds count when they have ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long servers may take to end after the command. */
#define END_MS 5000

static double
seconds(struct timeval time)
{
	return time.tv_sec + time.tv_usec / 1e6;
}

int
main(int argc, char **argv)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	struct rusage usage;
	pid_t		command;
	pid_t		ended;
	int			status = 0;
	int			result = 1;
	FILE	   *file;

	if (argc < 3)
		return 2;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	command = fork();
	if (command == 0)
	{
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}

	/* Servers may end before the command. */
	while (command > 0 && (ended = wait(&status)) != command)
		if (ended < 0 && errno != EINTR)
			return 1;
	if (WIFEXITED(status))
		result = WEXITSTATUS(status);
	for (int ms = 0; ms < END_MS && (ended = waitpid(-1, NULL, WNOHANG)) >= 0; ms += 10)
		if (ended == 0)
			nanosleep(&pause, NULL);

	getrusage(RUSAGE_CHILDREN, &usage);
	file = fopen(argv[1], "w");
	if (file == NULL)
		return 1;
	fprintf(file, "%.0f s of the processor: %.0f user, %.0f system\n",
			seconds(usage.ru_utime) + seconds(usage.ru_stime),
			seconds(usage.ru_utime), seconds(usage.ru_stime));
	return fclose(file) == 0 ? result : 1;
}
