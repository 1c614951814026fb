/*
 * latency.c
 *	  Runs a statement in many sessions at once, each in a process of its own,
 *	  and prints percentiles and the mean of how long it took the client.
 *
 *	  latency CONNINFO SESSIONS SECONDS PAUSE_MS STATEMENT
 *
 * A session pauses after each statement.
 *
 * pgbench is not used, because it reads its clock once for all statements that
 * it finds finished.  If the server answers before the call that has sent the
 * statement returns, as on a shared processor, pgbench logs a latency of 0, and
 * adds the time to the next statement.
 */
#include <libpq-fe.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S		INT64_C(1000000000)
#define MAX_SAMPLES		(1 << 20)	/* of one session */
#define WARM_UP_NS		(NS_PER_S / 4)	/* of all sessions, not measured */

/* The samples of a session, in memory that it shares with its parent. */
typedef struct Session
{
	int			count;
	uint32_t	latency_ns[MAX_SAMPLES];
} Session;

static int64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void
check(PGconn *conn, PGresult *result, ExecStatusType expected)
{
	if (PQresultStatus(result) != expected)
	{
		fprintf(stderr, "%s", PQerrorMessage(conn));
		exit(1);
	}
	PQclear(result);
}

static void
run_session(Session *session, const char *conninfo, const char *statement,
			int pause_ms, int64_t from_ns, int64_t until_ns)
{
	struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000L};
	PGconn	   *conn = PQconnectdb(conninfo);
	int64_t		begun_ns;

	check(conn, PQprepare(conn, "s", statement, 0, NULL), PGRES_COMMAND_OK);
	while ((begun_ns = now_ns()) < until_ns && session->count < MAX_SAMPLES)
	{
		PGresult   *result = PQexecPrepared(conn, "s", 0, NULL, NULL, NULL, 0);
		int64_t		ended_ns = now_ns();

		check(conn, result, PGRES_TUPLES_OK);
		if (begun_ns >= from_ns)
			session->latency_ns[session->count++] = ended_ns - begun_ns;
		if (pause_ms > 0)
			nanosleep(&pause, NULL);
	}
	PQfinish(conn);
}

static int
compare(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static void
print_statistics(const Session *sessions, int nsessions)
{
	static const double percentiles[] = {50, 90, 99, 99.9};
	uint32_t   *all = malloc(sizeof(uint32_t) * MAX_SAMPLES * nsessions);
	size_t		count = 0;
	double		sum = 0;

	for (int i = 0; i < nsessions; i++)
		for (int j = 0; j < sessions[i].count; j++)
			sum += all[count++] = sessions[i].latency_ns[j];
	qsort(all, count, sizeof(uint32_t), compare);
	for (int i = 0; i < 4 && count > 0; i++)
		printf("p%g %.1f\n", percentiles[i],
			   all[(size_t) (percentiles[i] / 100 * count)] / 1000.0);
	if (count > 0)
		printf("mean %.1f\n", sum / count / 1000.0);
	free(all);
}

int
main(int argc, char **argv)
{
	int			nsessions = argc == 6 ? atoi(argv[2]) : 0;
	int64_t		from_ns = now_ns() + WARM_UP_NS;
	int			failed = nsessions < 1;
	int			status;
	Session    *sessions;

	sessions = mmap(NULL, sizeof(Session) * (nsessions + 1),
					PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (failed || sessions == MAP_FAILED)
		return 1;
	for (int i = 0; i < nsessions; i++)
	{
		pid_t		pid = fork();

		failed |= pid < 0;
		if (pid == 0)
		{
			run_session(&sessions[i], argv[1], argv[5], atoi(argv[4]), from_ns,
						from_ns + (int64_t) (atof(argv[3]) * NS_PER_S));
			exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= status != 0;
	if (!failed)
		print_statistics(sessions, nsessions);
	return failed;
}
