# Snowflake for PostgreSQL
#
#   make && sudo make install     builds and installs, by PG_CONFIG's PostgreSQL
#   make installcheck             tests against a running server, by PGPASSWORD if
#                                 it asks roles of the tests for one
#   make demo, make test          on a copy of PostgreSQL; see README.md
#   make test-all                 also random faults, other programs and more
#   make test SANITIZE=1          tests under AddressSanitizer and UBSan
#   make test ASSERTS=1           tests with the library's Asserts
#   make dist                     packs the sources as PGXN takes them
#   make -f DIRECTORY/Makefile VPATH=DIRECTORY
#                                 builds outside of the sources
#   make model                    checks the models of doc/model by Spin
#   make bench                    compares speed with sequences and UUIDs

MODULE_big = snowflake
OBJS = \
	src/clock.o \
	src/config.o \
	src/host.o \
	src/id_generator.o \
	src/id_horizon.o \
	src/layout.o \
	src/lease_connection.o \
	src/lease_holder.o \
	src/lease_registry.o \
	src/lease_rules.o \
	src/lease_state.o \
	src/lease_worker.o \
	src/mark_layout.o \
	src/mark_log.o \
	src/mark_page.o \
	src/mark_start.o \
	src/module.o \
	src/node.o \
	src/shmem.o \
	src/sql_copy.o \
	src/sql_decode.o \
	src/sql_issue.o \
	src/sql_stats.o \
	src/sql_support.o \
	src/sql_text.o

# As in PGXS, VPATH is where the sources are if that is not here.
sources := $(or $(VPATH),.)

EXTENSION = snowflake snowflake_convert snowflake_partitions snowflake_registry
DATA = $(sort $(notdir $(wildcard $(sources)/snowflake*--*.sql)))
PGFILEDESC = "snowflake - 64-bit, time-ordered, cluster-unique ids"

REGRESS = $(sort $(basename $(notdir $(wildcard $(sources)/sql/*.sql))))
ISOLATION = $(sort $(basename $(notdir $(wildcard $(sources)/specs/*.spec))))
TAP_TESTS = 1

EXTRA_CLEAN = tmp_check output_iso results built-for

# The version of the archive and of the library.  src/README.md says where a new
# version is written.
SNOWFLAKE_VERSION := $(shell sed -n 's/^  "version": "\(.*\)",$$/\1/p' $(sources)/META.json)
PG_CPPFLAGS += -DSNOWFLAKE_VERSION='"$(SNOWFLAKE_VERSION)"'

# The library exports only what PostgreSQL calls, as 16 and later have it.
PG_CFLAGS += -fvisibility=hidden

# No bitcode, from which a server can inline functions: if it does not optimize them,
# too, LLVM looks for what the library does not export, and ends the session.
override with_llvm = no

# libpq, for the connection to a registry.
PG_CPPFLAGS += -I$(libpq_srcdir)
SHLIB_LINK += $(libpq)

# Debian has PGXS without the server's headers where only a client is installed.
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
POSTGRES_H := $(wildcard $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)/postgres.h)

# Debian's PostgreSQL is built by gcc, with flags that clang does not know.
ifneq (,$(findstring clang,$(CC)))
PG_CFLAGS += -Wno-unknown-warning-option -Wno-ignored-optimization-argument \
	-Wno-ignored-attributes
endif

# Without PostgreSQL, demo and test still work: they install it.
ifneq (,$(and $(PGXS),$(POSTGRES_H)))
include $(PGXS)

# PGXS makes no directories for objects.
$(if $(VPATH),$(shell mkdir -p src))

# Objects for another PostgreSQL are made anew.
$(OBJS): built-for
built-for: FORCE
	@echo '$(pkglibdir) $(VERSION)' | cmp -s - $@ || echo '$(pkglibdir) $(VERSION)' >$@
FORCE:

# The default PostgreSQL need not be the one that has the extension.
ifeq (file,$(origin PG_CONFIG))
uninstall: is-built-for-default
is-built-for-default:
	@test ! -e built-for || echo '$(pkglibdir) $(VERSION)' | cmp -s - built-for || \
		{ read -r built <built-for; \
		echo "The extension was built for $$built, not for $(pkglibdir)." >&2; \
		echo "Set PG_CONFIG= to the pg_config that \"make install\" had." >&2; exit 1; }
endif
else
all install uninstall installcheck clean:
ifneq (1,$(words $(PG_CONFIG)))
	@echo "PGXS takes no PG_CONFIG with a space: $(PG_CONFIG)" >&2
	@echo "Make a symbolic link to its PostgreSQL, and set PG_CONFIG= to the path by the link." >&2
else
	@echo "PG_CONFIG=$(PG_CONFIG) leads to no PostgreSQL with its server's headers." >&2
	@echo "Install postgresql-server-dev-NN, or set PG_CONFIG=." >&2
endif
	@exit 1
endif

bench:
	@PG_CONFIG='$(PG_CONFIG)' $(sources)/bench/run

demo:
	@PG_CONFIG='$(PG_CONFIG)' $(sources)/script/demo

test test-all:
	@PG_CONFIG='$(PG_CONFIG)' SANITIZE='$(SANITIZE)' ASSERTS='$(ASSERTS)' \
		SLOW_START='$(SLOW_START)' $(sources)/script/test t $(if $(filter test-all,$@),t/all)

model:
	@$(sources)/script/model

# The archive for PGXN has the files of the last commit, with their times in UTC, so
# that it is the same wherever it is made.  "make dist" fails if there are changes
# that are not committed.  Changes of debian/control do not count, because a build
# of Debian's packages writes that file.
dist: archive = snowflake-$(SNOWFLAKE_VERSION)
dist:
	@git rev-parse --git-dir >/dev/null || \
		{ echo "make dist packs a commit: it needs git and a clone." >&2; exit 1; }
	@git diff --quiet HEAD -- . ':!debian/control' || \
		{ echo "There are changes not committed." >&2; exit 1; }
	@TZ=UTC git archive --format=zip --prefix=$(archive)/ -o $(archive).zip HEAD
	@echo $(archive).zip

.PHONY: bench demo dist FORCE is-built-for-default model test test-all
