"""Inserts rows until it is told to stop, by a connection that names all members
of a cluster, and writes down what became of each insert.

Arguments: a libpq connection string, the writer's number, the file to write,
and a file whose existence ends the run.  A line of the file:

    = TIME              connected to a server that takes writes
    + TIME SENT N ID    row N of this writer was committed with this id
    ! TIME STATE TEXT   an error, with its SQLSTATE or "-"

Times are those of the monotonic clock, in seconds.
"""
import os
import sys
import time

import psycopg2

CONNINFO, WRITER, FILE, STOP = sys.argv[1:]
PAUSE_S = 0.01
PAUSE_AFTER_ERROR_S = 0.02


def note(kind, *fields):
    out.write(" ".join([kind, "%.6f" % time.monotonic(), *map(str, fields)]))
    out.write("\n")


def insert_rows(connection, n):
    """Inserts rows until the connection breaks; returns the next row's number."""
    cursor = connection.cursor()
    while not os.path.exists(STOP):
        sent = time.monotonic()
        try:
            cursor.execute(
                "INSERT INTO item (writer, n) VALUES (%s, %s) RETURNING id",
                (WRITER, n),
            )
            note("+", "%.6f" % sent, n, cursor.fetchone()[0])
        except psycopg2.Error as error:
            note_error(error)
            # a server that has become a standby takes no writes any more
            if connection.closed or error.pgcode == "25006":
                return n + 1
        n += 1
        time.sleep(PAUSE_S)
    return n


def note_error(error):
    text = str(error).split("\n", maxsplit=1)[0]
    note("!", error.pgcode or "-", text)


def main():
    n = 1
    while not os.path.exists(STOP):
        try:
            connection = psycopg2.connect(CONNINFO)
        except psycopg2.Error as error:
            note_error(error)
            time.sleep(PAUSE_AFTER_ERROR_S)
            continue
        connection.autocommit = True
        note("=")
        n = insert_rows(connection, n)
        connection.close()


with open(FILE, "w", encoding="utf-8", buffering=1) as out:
    main()
