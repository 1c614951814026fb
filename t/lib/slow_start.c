/*
 * slow_start.c
 *	  Makes any machine one that is slow at starting processes, as some virtual
 *	  machines are: SLOW_START=1 preloads this library into every process of a
 *	  run of the tests.
 *
 * A program waits for SLOW_EXEC_US microseconds before its main(), and a process
 * that was forked waits for SLOW_FORK_US.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static void
wait_for_us(const char *variable)
{
	const char *us = getenv(variable);

	if (us != NULL)
		usleep((useconds_t) atoi(us));
}

__attribute__((constructor))
static void
start_program(void)
{
	wait_for_us("SLOW_EXEC_US");
}

pid_t
fork(void)
{
	pid_t		(*real_fork) (void);
	pid_t		pid;

	*(void **) &real_fork = dlsym(RTLD_NEXT, "fork");
	pid = real_fork();
	if (pid == 0)
		wait_for_us("SLOW_FORK_US");
	return pid;
}
