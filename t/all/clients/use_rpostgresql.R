# needs: RPostgreSQL
# RPostgreSQL: a bigint becomes a double, which rounds.
suppressMessages(library(RPostgreSQL))

check <- function(got, wanted, what) {
  cat(if (identical(got, wanted)) "ok" else "not ok", "-", what, "\n")
  if (!identical(got, wanted)) cat("# got", format(got), ", wanted", format(wanted), "\n")
}

connection <- dbConnect(PostgreSQL(), host = Sys.getenv("PGHOST"), port = Sys.getenv("PGPORT"),
                        dbname = Sys.getenv("PGDATABASE"), user = Sys.getenv("PGUSER"))
query <- function(sql) dbGetQuery(connection, sql)
invisible(dbExecute(connection, "INSERT INTO orders (item) SELECT n FROM generate_series(1, 49) AS n"))

# How many rows a list of ids finds.
found <- function(ids) {
  ids <- paste(format(ids, digits = 22, scientific = FALSE, trim = TRUE), collapse = ",")
  query(paste0("SELECT count(*)::int AS n FROM orders WHERE id IN (", ids, ")"))$n
}

check(found(query("SELECT id FROM orders")$id) < 25L, TRUE, "a number is rounded")
check(found(query("SELECT id::text FROM orders")$id), 49L, "text is exact")
