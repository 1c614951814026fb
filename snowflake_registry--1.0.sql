/*
 * snowflake_registry 1.0: a database that leases worker ids to servers.
 *
 * The registry is SQL and PL/pgSQL only, so that any PostgreSQL 15 or later can
 * be a registry.  Where the extension's files cannot be installed, run this
 * file by "psql -1 -v ON_ERROR_STOP=1 -f" as the owner of the database.
 *
 *   SELECT snowflake_registry.configure();
 *   SELECT snowflake_registry.allow('the role of the servers');
 *
 * Table "setting" has one row: the servers' constants and the registry's own
 * state.  Table "node" has a row for each worker id of each datacenter: its
 * holder, when the lease expires, and the fence.  The holder's ids are before
 * the fence, and the next holder's ids begin at the fence.
 *
 * Words of this file:
 *
 * - a newcomer: a server that claims a worker id and, as far as the registry
 *   knows, has no lease on that worker id to continue;
 * - to come forward: a holder renews its lease, and so tells the registry which
 *   lease it holds;
 * - an era: a number that grows whenever the registry may have forgotten leases;
 * - the grace: the time after the beginning of an era in which newcomers get
 *   only worker ids that were granted in this era before;
 * - a window: the time in which the registry believes a holder whose lease it
 *   does not know;
 * - evidence: what shows that the registry has forgotten a lease.  A holder has
 *   a later fence than any that the registry has recorded for the worker id, or
 *   was told a position in the registry's WAL that the registry has not reached.
 *
 * What can go wrong, and what keeps an id from being issued twice:
 *
 * - The registry forgets: its standby was promoted without the last
 *   transactions, or a backup was restored.  A changed history (timeline, system
 *   identifier, database or table) begins an era with a window; evidence begins
 *   an era without a window.  Until all leases that may have been forgotten are
 *   over, rows of an earlier era are granted to their holders only.  After that,
 *   a new holder of such a row begins at the floor or later.  The floor is after
 *   all fences that may have been forgotten.
 * - The registry is set back without a trace: by a file-system snapshot, or by a
 *   standby whose standby.signal was removed.  The registry's server then starts
 *   although it was not stopped cleanly.  After every such start an era begins
 *   with a window: only holders are served, so that the holders of forgotten
 *   leases come forward before a newcomer gets their worker ids.  (The registry
 *   does not detect the copy of a cleanly stopped server: call declare_restored()
 *   after restoring such a copy.)
 * - A server claims late or twice, or is a copy of another server.  After each
 *   grant the holder chooses a new incarnation for the next claim, and a claim
 *   that names an older incarnation continues no lease.
 *
 * What a server with the password can do to other servers:
 *
 * - lease all free worker ids, for as long as it renews them or keeps a
 *   transaction open;
 * - begin eras, which makes newcomers and restarting holders wait;
 * - in a window after a restart or a failover, take a worker id whose holder has
 *   not come forward yet, and move that worker id's fence ahead of the clock, by
 *   25 hours and the duration of a lease at most; free() moves the fence back.
 *
 * Such a server cannot renew, release or take a lease whose holder has come
 * forward: no function shows the holder, which a claim or a release has to give.
 * Such a server cannot move any other fence beyond what the constants allow, or
 * below the beginning of the holder's ids.  Open transactions of such a server
 * keep no other server from renewing or coming forward, because locked rows are
 * skipped.
 */

-- In this transaction an unqualified name means an object of PostgreSQL.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- The schema must not exist yet: another role may have put functions into it,
-- and could replace the functions of this file.  psql goes on after an error in
-- CREATE SCHEMA, unless ON_ERROR_STOP is set.  So if the schema is another
-- role's, make the session's next transactions read-only.
CREATE SCHEMA snowflake_registry;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace AS n
                WHERE n.nspname OPERATOR(pg_catalog.=) 'snowflake_registry'
                  AND pg_catalog.pg_get_userbyid(n.nspowner) OPERATOR(pg_catalog.<>) current_user) THEN
        PERFORM pg_catalog.set_config('default_transaction_read_only', 'on', false);
    END IF;
END
$$;

--
-- Tables: constants and state, a row for each worker id, evidence, and the view
--

CREATE TABLE snowflake_registry.setting (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    lease_duration interval NOT NULL,
    largest_lead interval NOT NULL,
    layout text NOT NULL,
    epoch timestamptz NOT NULL,
    former_lease_duration interval NOT NULL,
    former_largest_lead interval NOT NULL,
    former_until timestamptz NOT NULL,
    shortest_grace interval NOT NULL,
    era bigint NOT NULL,
    history text NOT NULL,
    instance timestamptz NOT NULL,
    grants_from timestamptz NOT NULL,
    window_era bigint NOT NULL,
    window_until timestamptz NOT NULL,
    floor_era bigint NOT NULL,
    floor timestamptz NOT NULL
);
COMMENT ON TABLE snowflake_registry.setting IS
'one row, made by configure(): the servers'' constants, and the registry''s own state';
COMMENT ON COLUMN snowflake_registry.setting.lease_duration IS
'how long a lease lasts without renewal';
COMMENT ON COLUMN snowflake_registry.setting.largest_lead IS
'how far a server''s clock may be ahead of the registry''s';
COMMENT ON COLUMN snowflake_registry.setting.former_until IS
'until then leases under the former constants may exist: a grant uses the smaller of the former and the present value, and a wait the larger';
COMMENT ON COLUMN snowflake_registry.setting.shortest_grace IS
'the smallest sum of lease_duration and largest_lead so far; a dump that is restored may bring these two values back';
COMMENT ON COLUMN snowflake_registry.setting.era IS
'grows whenever the registry has been restarted without a clean stop, or notices that it has forgotten something';
COMMENT ON COLUMN snowflake_registry.setting.history IS
'system identifier, timeline, database and table: one of them differs after a failover or a restore';
COMMENT ON COLUMN snowflake_registry.setting.instance IS
'the start time of the registry''s server, as notice() last saw it';
COMMENT ON COLUMN snowflake_registry.setting.grants_from IS
'until then rows of an earlier era are granted to their holders only';
COMMENT ON COLUMN snowflake_registry.setting.window_until IS
'until then a server that claims to hold a row of an era before window_era is believed, even if the registry has another holder';
COMMENT ON COLUMN snowflake_registry.setting.floor IS
'a new holder of a row of an era before floor_era begins here or later: all ids of forgotten leases are before this instant';

CREATE TABLE snowflake_registry.node (
    datacenter_id integer,
    worker_id integer,
    holder text,
    name text,
    address inet,
    incarnation bigint,
    fence timestamptz NOT NULL DEFAULT '-infinity',
    granted_fence timestamptz NOT NULL DEFAULT '-infinity',
    began timestamptz NOT NULL DEFAULT '-infinity',
    claimed_at timestamptz,
    seen_at timestamptz,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    era bigint NOT NULL,
    is_released boolean NOT NULL DEFAULT false,
    is_freed boolean NOT NULL DEFAULT false,
    CONSTRAINT node_pkey PRIMARY KEY (datacenter_id, worker_id)
);
CREATE INDEX node_expires_at_idx ON snowflake_registry.node (datacenter_id, expires_at, worker_id);
CREATE INDEX node_holder_idx ON snowflake_registry.node (holder);
CREATE INDEX node_name_idx ON snowflake_registry.node (datacenter_id, name);
COMMENT ON TABLE snowflake_registry.node IS
'a row for each worker id; the row stays after its lease, because the next holder begins at its fence';
COMMENT ON COLUMN snowflake_registry.node.holder IS
'the identity that the worker id is leased to: one data directory in one place on one running machine; NULL: never leased';
COMMENT ON COLUMN snowflake_registry.node.name IS
'the holder''s snowflake.server_name';
COMMENT ON COLUMN snowflake_registry.node.incarnation IS
'a random number that the holder has chosen for its newest claim';
COMMENT ON COLUMN snowflake_registry.node.fence IS
'the holder''s ids are before this instant; the next holder''s ids begin here';
COMMENT ON COLUMN snowflake_registry.node.granted_fence IS
'the largest fence that was ever granted; the registry has forgotten the lease of a holder with a larger fence';
COMMENT ON COLUMN snowflake_registry.node.began IS
'where the present holder''s ids begin';
COMMENT ON COLUMN snowflake_registry.node.era IS
'the era in which the row was last granted';

-- A clean stop keeps the rows of an unlogged table; a crash, a backup and a
-- standby do not.
CREATE UNLOGGED TABLE snowflake_registry.running (
    instance timestamptz NOT NULL
);
COMMENT ON TABLE snowflake_registry.running IS
'the value of setting.instance; the table is empty after a stop that was not clean, until notice() runs';

-- A claim inserts its evidence here, because another session may have locked
-- "setting".  So a holder comes forward without waiting for that session.
CREATE TABLE snowflake_registry.evidence (
    fence timestamptz NOT NULL,
    is_covered boolean NOT NULL
);
COMMENT ON TABLE snowflake_registry.evidence IS
'the fence of each holder whose claim was evidence; notice() deletes the row, and begins an era or, if is_covered is true, only raises the floor';

CREATE VIEW snowflake_registry.lease AS
SELECT n.datacenter_id, n.worker_id, n.name, n.address,
       CASE WHEN n.is_freed THEN 'freed'
            WHEN n.is_released THEN 'released'
            WHEN n.expires_at > pg_catalog.clock_timestamp() THEN 'held'
            ELSE 'expired' END AS state,
       n.claimed_at, n.seen_at, n.expires_at, n.fence, n.holder
  FROM snowflake_registry.node AS n
 WHERE n.holder IS NOT NULL;
COMMENT ON VIEW snowflake_registry.lease IS
'who holds which worker id, where, until when, and where the next holder would begin';

--
-- The registry's own state: constants, history, eras and windows
--

-- Returns an identity of the registry's data.  The timeline in it differs after a
-- failover, the system identifier or the timeline after a restore of the cluster,
-- the database and the table after a restore of a dump.
CREATE FUNCTION snowflake_registry.history()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                     left(pg_walfile_name(pg_current_wal_lsn()), 8),
                     (SELECT oid FROM pg_database WHERE datname = current_database()),
                     'snowflake_registry.node'::regclass::oid)
$$;
COMMENT ON FUNCTION snowflake_registry.history() IS
'internal: an identity of the registry''s data, which differs after a failover or a restore';

-- While leases of former constants may exist, grants use the smaller constants,
-- because a failover may yet forget the change, and waits use the larger ones.
CREATE FUNCTION snowflake_registry.constants_in_force(
    OUT duration interval, OUT lead interval,
    OUT longest_duration interval, OUT longest_lead interval)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN is_changing THEN least(lease_duration, former_lease_duration) ELSE lease_duration END,
           CASE WHEN is_changing THEN least(largest_lead, former_largest_lead) ELSE largest_lead END,
           CASE WHEN is_changing THEN greatest(lease_duration, former_lease_duration) ELSE lease_duration END,
           CASE WHEN is_changing THEN greatest(largest_lead, former_largest_lead) ELSE largest_lead END
      FROM (SELECT *, clock_timestamp() < former_until AS is_changing
              FROM snowflake_registry.setting) AS s
$$;
COMMENT ON FUNCTION snowflake_registry.constants_in_force() IS
'internal: the constants of a new lease, and the constants of the longest lease that may exist';

-- Raises the floor above the fence of a forgotten lease, by the longest duration
-- and lead.  So no lease that was granted before the instant of that fence has a
-- fence above the floor.  The caller has locked "setting".
-- The clock of a new primary may be behind the old primary's by up to the
-- duration of a lease.  So a fence is ahead of the new clock by at most twice the
-- sum of duration and lead.
CREATE FUNCTION snowflake_registry.raise_floor(seen_fence timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c record := snowflake_registry.constants_in_force();
    longest interval := c.longest_duration + c.longest_lead;
BEGIN
    UPDATE snowflake_registry.setting AS k
       SET floor = greatest(k.floor, longest + least(seen_fence, clock_timestamp() + 2 * longest));
END
$$;
COMMENT ON FUNCTION snowflake_registry.raise_floor(timestamptz) IS
'internal: let newcomers begin after the fence of a forgotten lease';

-- Begins an era, because the registry has forgotten something.  The floor is
-- above every fence that a forgotten lease can have: above the fence of a lease
-- granted just now, all fences that the registry knows of, and the fence that a
-- holder has shown.  With a window, holders are believed until all leases that
-- may have been forgotten are over.
CREATE FUNCTION snowflake_registry.begin_era(seen_fence timestamptz, with_window boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c record := snowflake_registry.constants_in_force();
    now_at timestamptz := clock_timestamp();
    ends_at timestamptz := now_at + c.longest_duration + c.longest_lead;
BEGIN
    UPDATE snowflake_registry.setting
       SET era = era + 1, floor_era = era + 1,
           history = snowflake_registry.history(),
           grants_from = ends_at,
           window_era = CASE WHEN with_window THEN era + 1 ELSE window_era END,
           window_until = CASE WHEN with_window THEN ends_at ELSE window_until END;
    PERFORM snowflake_registry.raise_floor(greatest(
        now_at + c.longest_duration, seen_fence,
        (SELECT max(n.granted_fence) FROM snowflake_registry.node AS n)));
END
$$;
COMMENT ON FUNCTION snowflake_registry.begin_era(timestamptz, boolean) IS
'internal: begin an era: serve only holders until all leases that may exist are over';

-- Detects a changed history, a start after a stop that was not clean, and
-- evidence.  Begins an era for each, but only raises the floor for evidence that
-- the grace of the present era covers.  Returns false if another session has
-- locked "setting".
CREATE FUNCTION snowflake_registry.notice()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c record;
    s snowflake_registry.setting;
    seen_fence timestamptz;
    covered_fence timestamptz;
BEGIN
    PERFORM FROM snowflake_registry.setting AS known
      WHERE known.history = snowflake_registry.history()
        AND known.instance = pg_postmaster_start_time()
        AND NOT EXISTS (SELECT FROM snowflake_registry.evidence);
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT * INTO s FROM snowflake_registry.setting FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;

    IF s.history <> snowflake_registry.history() THEN
        PERFORM snowflake_registry.begin_era(NULL, true);
    END IF;
    IF s.instance <> pg_postmaster_start_time() THEN
        IF NOT EXISTS (SELECT FROM snowflake_registry.running AS r WHERE r.instance = s.instance) THEN
            c := snowflake_registry.constants_in_force();
            -- Holders renew every minute, or every third of a shorter lease.
            UPDATE snowflake_registry.setting
               SET era = era + 1, window_era = era + 1,
                   window_until = greatest(window_until,
                                           clock_timestamp() + least(interval '1 min', c.longest_duration / 3)
                                           + greatest(interval '1 s', c.longest_duration / 12));
            UPDATE snowflake_registry.setting SET grants_from = greatest(grants_from, window_until);
        END IF;
        UPDATE snowflake_registry.setting SET instance = pg_postmaster_start_time();
        DELETE FROM snowflake_registry.running;
        INSERT INTO snowflake_registry.running VALUES (pg_postmaster_start_time());
    END IF;
    WITH folded AS (DELETE FROM snowflake_registry.evidence AS e RETURNING e.*)
    SELECT max(f.fence) FILTER (WHERE NOT f.is_covered), max(f.fence) FILTER (WHERE f.is_covered)
      INTO seen_fence, covered_fence FROM folded AS f;
    IF seen_fence IS NOT NULL THEN
        PERFORM snowflake_registry.begin_era(seen_fence, false);
    END IF;
    IF covered_fence IS NOT NULL THEN
        PERFORM snowflake_registry.raise_floor(covered_fence);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION snowflake_registry.notice() IS
'internal: detect that the registry has been switched over, restored or restarted';

-- Does the registry know for certain who holds a row?  During the grace, only if
-- the row was granted in this era.  After the grace all forgotten leases are over.
-- But if the row was last granted before floor_era, a forgotten lease may have had
-- another holder, whose ids the row's holder must not repeat.
CREATE FUNCTION snowflake_registry.is_known(n snowflake_registry.node, s snowflake_registry.setting)
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$
    SELECT n.era OPERATOR(pg_catalog.>=)
           CASE WHEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<) s.grants_from THEN s.era ELSE s.floor_era END
$$;
COMMENT ON FUNCTION snowflake_registry.is_known(snowflake_registry.node, snowflake_registry.setting) IS
'internal: does the registry know for certain who holds a row?';

-- Does the grace of the present era cover a forgotten lease on this row?  Until
-- the grace ends no newcomer gets the row, so a further forgotten lease on the row
-- needs no further era, only a higher floor.
CREATE FUNCTION snowflake_registry.is_covered(
    n snowflake_registry.node, s snowflake_registry.setting, instant timestamptz)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL UNSAFE
AS $$
    SELECT n.era OPERATOR(pg_catalog.<) s.floor_era AND instant OPERATOR(pg_catalog.<) s.grants_from
$$;
COMMENT ON FUNCTION snowflake_registry.is_covered(
    snowflake_registry.node, snowflake_registry.setting, timestamptz) IS
'internal: does the grace of the present era cover a forgotten lease on a row?';

-- Returns where a new holder of a row would begin.
CREATE FUNCTION snowflake_registry.begins_at(n snowflake_registry.node, s snowflake_registry.setting)
RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$
    SELECT greatest(
        n.fence,
        CASE WHEN n.era OPERATOR(pg_catalog.<) s.floor_era THEN s.floor END,
        -- A forgotten lease may be in force until the window ends.
        CASE WHEN n.era OPERATOR(pg_catalog.<) s.window_era
             THEN s.window_until OPERATOR(pg_catalog.+) greatest(s.largest_lead, s.former_largest_lead) END)
$$;
COMMENT ON FUNCTION snowflake_registry.begins_at(snowflake_registry.node, snowflake_registry.setting) IS
'internal: where a new holder of a row would begin';

CREATE FUNCTION snowflake_registry.datacenter_count(layout text)
RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 1::bigint << split_part(layout, '/', 2)::integer
$$;
COMMENT ON FUNCTION snowflake_registry.datacenter_count(text) IS
'internal: how many datacenter ids a layout has';

CREATE FUNCTION snowflake_registry.worker_count(layout text)
RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 1::bigint << split_part(layout, '/', 3)::integer
$$;
COMMENT ON FUNCTION snowflake_registry.worker_count(text) IS
'internal: how many worker ids a datacenter has in a layout';

--
-- For servers: claim, release, constants, and their internal functions
--

-- Returns why a claim gets no worker id: a code, and a sentence.
CREATE FUNCTION snowflake_registry.refuse(
    s snowflake_registry.setting,
    for_datacenter_id integer,
    wanted integer,
    OUT code text,
    OUT sentence text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n snowflake_registry.node;
    worker_count bigint := snowflake_registry.worker_count(s.layout);
    is_waiting boolean := clock_timestamp() < s.grants_from;
BEGIN
    IF wanted IS NOT NULL THEN
        SELECT * INTO n FROM snowflake_registry.node AS known
         WHERE (known.datacenter_id, known.worker_id) = (for_datacenter_id, wanted);
        IF n.expires_at > clock_timestamp() AND (NOT is_waiting OR snowflake_registry.is_known(n, s)) THEN
            code := 'taken';
            sentence := format('worker_id %s of datacenter_id %s is leased by %s until %s.',
                               wanted, for_datacenter_id,
                               concat_ws(' at ', coalesce(quote_ident(nullif(n.name, '')), 'another server'),
                                         host(n.address)),
                               n.expires_at);
            RETURN;
        END IF;
    END IF;
    IF is_waiting THEN
        code := 'grace';
        sentence := format('The registry has been switched over or restarted, and may not know of all leases; '
                           'it grants worker ids to new holders from %s.',
                           s.grants_from);
        RETURN;
    END IF;
    SELECT * INTO n FROM snowflake_registry.node AS known
     WHERE known.datacenter_id = for_datacenter_id AND known.worker_id < worker_count
       AND known.expires_at > clock_timestamp()
     ORDER BY known.expires_at LIMIT 1;
    IF NOT FOUND OR wanted IS NOT NULL OR
       EXISTS (SELECT FROM snowflake_registry.node AS known
                WHERE known.datacenter_id = for_datacenter_id AND known.worker_id < worker_count
                  AND known.expires_at <= clock_timestamp()) THEN
        code := 'busy';
        sentence := 'The worker ids that are free are being granted to other servers at this moment.';
    ELSE
        code := 'all_taken';
        sentence := format('All worker ids of datacenter_id %s are leased, the first of them until %s.',
                           for_datacenter_id, n.expires_at);
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_registry.refuse(snowflake_registry.setting, integer, integer) IS
'internal: why a claim gets no worker id';

-- Chooses and locks a row for a newcomer.  Skips rows that other sessions have
-- locked.  "says_held" is true if the server says that it holds a lease.  The row
-- of "for_holder" may then be in use, and is not chosen before it expires.  The
-- last three arguments are the server's last lease.
CREATE FUNCTION snowflake_registry.choose(
    s snowflake_registry.setting,
    for_datacenter_id integer,
    wanted integer,
    for_holder text,
    for_name text,
    server_clock timestamptz,
    says_held boolean,
    of_holder text,
    of_worker_id integer,
    of_incarnation bigint)
RETURNS snowflake_registry.node
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n snowflake_registry.node;
    now_at timestamptz := clock_timestamp();
    worker_count bigint := snowflake_registry.worker_count(s.layout);
    is_waiting boolean := now_at < s.grants_from;
    latest timestamptz;
BEGIN
    IF wanted IS NOT NULL THEN
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = for_datacenter_id AND r.worker_id = wanted
           AND (r.expires_at <= now_at OR r.holder = for_holder AND NOT says_held)
           AND (NOT is_waiting OR snowflake_registry.is_known(r, s))
           FOR UPDATE SKIP LOCKED;
        RETURN n;
    END IF;

    -- First look for a row whose ids begin before the server's clock, so that
    -- the server need not wait; then for any row.
    FOREACH latest IN ARRAY ARRAY[server_clock, 'infinity'::timestamptz] LOOP
        -- the row that the server had as another holder, e.g. before a reboot
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = for_datacenter_id AND r.worker_id = of_worker_id
           AND r.holder = of_holder AND r.incarnation = of_incarnation
           AND r.expires_at <= now_at
           AND (NOT is_waiting OR snowflake_registry.is_known(r, s))
           AND snowflake_registry.begins_at(r, s) <= latest
           FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            RETURN n;
        END IF;
        -- this holder's row: expired, or granted in an answer that was lost
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = for_datacenter_id AND r.worker_id < worker_count AND r.holder = for_holder
           AND (r.expires_at <= now_at OR NOT says_held)
           AND (NOT is_waiting OR snowflake_registry.is_known(r, s))
           AND snowflake_registry.begins_at(r, s) <= latest
         LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            RETURN n;
        END IF;
        -- the last row of a server of the same name
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = for_datacenter_id AND r.worker_id < worker_count AND r.name = nullif(for_name, '')
           AND r.expires_at <= now_at
           AND (NOT is_waiting OR snowflake_registry.is_known(r, s))
           AND snowflake_registry.begins_at(r, s) <= latest
         ORDER BY r.expires_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            RETURN n;
        END IF;

        -- the lowest row that was never leased; then the row that has been free longest
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = for_datacenter_id AND r.worker_id < worker_count AND r.expires_at <= now_at
           AND (NOT is_waiting OR snowflake_registry.is_known(r, s))
           AND snowflake_registry.begins_at(r, s) <= latest
         ORDER BY r.expires_at, r.worker_id LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            RETURN n;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION snowflake_registry.choose(snowflake_registry.setting, integer, integer, text,
    text, timestamptz, boolean, text, integer, bigint) IS
'internal: choose and lock the row that a newcomer gets';

-- Writes a grant to a row.  Each grant has a larger fence than the one before,
-- so that the fence of a forgotten grant is evidence.
CREATE FUNCTION snowflake_registry.enter(
    INOUT n snowflake_registry.node,
    s snowflake_registry.setting,
    for_holder text,
    for_name text,
    for_incarnation bigint,
    begins_at timestamptz,
    known_fence timestamptz,
    is_new boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c record := snowflake_registry.constants_in_force();
    now_at timestamptz := clock_timestamp();
    new_fence timestamptz := greatest(n.granted_fence + interval '1 us', begins_at, known_fence,
                                      now_at + c.duration + c.lead);
BEGIN
    UPDATE snowflake_registry.node AS r
       SET holder = for_holder, name = for_name, address = inet_client_addr(),
           incarnation = for_incarnation,
           fence = new_fence, granted_fence = new_fence, began = begins_at,
           claimed_at = CASE WHEN is_new THEN now_at ELSE coalesce(r.claimed_at, now_at) END,
           seen_at = now_at, expires_at = now_at + c.duration,
           era = s.era, is_released = false, is_freed = false
     WHERE (r.datacenter_id, r.worker_id) = (n.datacenter_id, n.worker_id)
    RETURNING * INTO n;
END
$$;
COMMENT ON FUNCTION snowflake_registry.enter(snowflake_registry.node, snowflake_registry.setting,
    text, text, bigint, timestamptz, timestamptz, boolean) IS
'internal: write a grant to a row';

-- Raises an error for arguments that no server sends.
CREATE FUNCTION snowflake_registry.check_arguments(
    s snowflake_registry.setting,
    datacenter_id integer,
    ids integer[],
    texts text[],
    instants timestamptz[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    datacenter_count bigint := snowflake_registry.datacenter_count(s.layout);
    worker_count bigint := snowflake_registry.worker_count(s.layout);
    worker_id integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING
            MESSAGE = 'a registry can be called only in transactions of isolation level read committed';
    END IF;
    IF datacenter_id IS NULL OR datacenter_id < 0 OR datacenter_id >= datacenter_count THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('datacenter_id %s is not in the range 0 .. %s of layout "%s"',
                             datacenter_id, datacenter_count - 1, s.layout);
    END IF;
    FOREACH worker_id IN ARRAY ids LOOP
        IF worker_id < 0 OR worker_id >= worker_count THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('worker_id %s is not in the range 0 .. %s of layout "%s"',
                                 worker_id, worker_count - 1, s.layout);
        END IF;
    END LOOP;
    -- The logs of other servers show the name: it must not begin a new line there.
    IF EXISTS (SELECT FROM unnest(texts) AS t WHERE octet_length(t) > 80 OR t ~ '[\x01-\x1f\x7f]') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a holder or a name is longer than 80 bytes or has control characters';
    END IF;
    IF EXISTS (SELECT FROM unnest(instants) AS i WHERE NOT isfinite(i)) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an instant is not finite';
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_registry.check_arguments(snowflake_registry.setting, integer, integer[], text[], timestamptz[]) IS
'internal: an error for arguments that no server sends';

-- Claims a worker id, or renews the lease that is held.  The result begins_at is
-- where ids under the lease begin; for a newcomer, see the function begins_at().
CREATE FUNCTION snowflake_registry.claim(
    layout text,
    epoch timestamptz,
    datacenter_id integer,
    holder text,
    name text,
    clock timestamptz,
    next_incarnation bigint,
    is_held boolean,
    wanted_worker_id integer DEFAULT NULL,
    previous_holder text DEFAULT NULL,
    previous_worker_id integer DEFAULT NULL,
    previous_incarnation bigint DEFAULT NULL,
    previous_fence timestamptz DEFAULT NULL,
    previous_position pg_lsn DEFAULT NULL,
    OUT worker_id integer,
    OUT begins_at timestamptz,
    OUT fence timestamptz,
    OUT duration_us bigint,
    OUT continues boolean,
    OUT registry_clock timestamptz,
    OUT registry_position pg_lsn,
    OUT refusal text,
    OUT detail text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    s snowflake_registry.setting;
    c record;
    own snowflake_registry.node;        -- the row of the server's previous lease
    n snowflake_registry.node;          -- the row that the server gets
    is_settled boolean;                 -- notice() has recorded all that it can detect
    is_same boolean;                    -- same holder as before, and no other worker id wanted
    is_holder boolean;                  -- the registry has the server as the holder of "own"
    is_stale boolean;                   -- a restart or another history that notice() could not record yet
    is_window boolean;                  -- a window is open, or has to be opened
    is_believed boolean;                -- believe that the server holds "own", whatever the row says
    is_evidence boolean;                -- the claim proves that a lease was forgotten
BEGIN
    registry_clock := clock_timestamp();
    continues := false;
    SELECT * INTO s FROM snowflake_registry.setting;
    IF NOT FOUND THEN
        refusal := 'not_configured';
        detail := 'The registry has no constants yet: snowflake_registry.configure() has not been called.';
        RETURN;
    END IF;
    IF claim.layout IS DISTINCT FROM s.layout OR claim.epoch IS DISTINCT FROM s.epoch THEN
        refusal := 'layout';
        detail := format('The server''s layout "%s" and epoch %s are not the registry''s, which are "%s" and %s.',
                         left(claim.layout, 80), claim.epoch, s.layout, s.epoch);
        RETURN;
    END IF;
    PERFORM snowflake_registry.check_arguments(
        s, claim.datacenter_id, ARRAY[wanted_worker_id, previous_worker_id],
        ARRAY[claim.holder, claim.name, previous_holder], ARRAY[claim.clock, previous_fence]);
    IF claim.holder IS NULL OR claim.name IS NULL OR claim.clock IS NULL OR
       next_incarnation IS NULL OR is_held IS NULL OR
       is_held AND num_nulls(previous_holder, previous_worker_id, previous_incarnation, previous_fence) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'a required argument of snowflake_registry.claim() is null';
    END IF;

    -- The registry must not forget in a crash a lease that it has granted.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    is_settled := snowflake_registry.notice();
    SELECT * INTO s FROM snowflake_registry.setting;
    c := snowflake_registry.constants_in_force();

    -- configure() makes no more than 65536 rows; add the rows of this claim.
    INSERT INTO snowflake_registry.node (datacenter_id, worker_id, era)
    SELECT claim.datacenter_id, id, 0
      FROM unnest(ARRAY[wanted_worker_id, CASE WHEN is_held THEN previous_worker_id END]) AS id
     WHERE id IS NOT NULL
       AND NOT EXISTS (SELECT FROM snowflake_registry.node AS r
                        WHERE (r.datacenter_id, r.worker_id) = (claim.datacenter_id, id))
    ON CONFLICT ON CONSTRAINT node_pkey DO NOTHING;

    -- The row of the previous lease.  Only the row's holder waits for the row's lock.
    is_same := coalesce(previous_holder = claim.holder, false) AND
               coalesce(wanted_worker_id = previous_worker_id, true);
    IF is_same THEN
        SELECT * INTO own FROM snowflake_registry.node AS r
         WHERE (r.datacenter_id, r.worker_id, r.holder)
               = (claim.datacenter_id, previous_worker_id, claim.holder)
           FOR UPDATE;
        is_holder := FOUND;
        IF NOT FOUND THEN
            SELECT * INTO own FROM snowflake_registry.node AS r
             WHERE (r.datacenter_id, r.worker_id) = (claim.datacenter_id, previous_worker_id);
        END IF;
    END IF;

    -- Does the claim prove that the registry has forgotten a lease?  If the row
    -- has another holder, believe the server only in a window, when the server's
    -- lease may have been forgotten, and only until another server has come forward
    -- with the row.  A window that notice() could not open yet, because another
    -- session has locked "setting", counts as open.
    is_stale := s.history <> snowflake_registry.history() OR s.instance <> pg_postmaster_start_time();
    is_window := is_stale OR registry_clock < s.window_until;
    is_believed := is_same AND is_held AND
        (is_holder OR is_window AND (is_stale OR own.era < s.window_era));
    is_evidence := is_believed AND
        (previous_fence > own.granted_fence OR
         coalesce(previous_position > pg_current_wal_lsn(), false));
    -- The registry's clock may be behind the old primary's by up to the duration
    -- of a lease.  In a window the registry may have forgotten larger constants,
    -- too: allow for the largest constants that configure() accepts.
    IF is_evidence AND previous_fence > own.granted_fence AND
       previous_fence > registry_clock + (CASE WHEN is_window THEN interval '1 day 1 hour' + c.longest_duration
                                               ELSE 2 * (c.longest_duration + c.longest_lead) END) THEN
        refusal := 'fence';
        detail := format('The fence of the lease that the server holds, %s, is further ahead of the registry''s clock, %s, than any that could be granted.',
                         previous_fence, registry_clock);
        RETURN;
    END IF;
    -- Record the evidence, unless the present era covers the row already.
    IF is_evidence AND NOT snowflake_registry.is_covered(own, s, registry_clock) THEN
        INSERT INTO snowflake_registry.evidence VALUES (previous_fence, false);
        is_settled := snowflake_registry.notice();
        SELECT * INTO s FROM snowflake_registry.setting;
    END IF;

    IF is_same AND is_holder AND NOT own.is_freed AND
       own.incarnation IN (previous_incarnation, next_incarnation) AND
       (is_held AND NOT own.is_released OR
        NOT is_held AND is_settled AND snowflake_registry.is_known(own, s)) THEN
        -- The server continues its lease: no other holder has had the row since
        -- the server's last grant.
        continues := true;
        n := snowflake_registry.enter(own, s, claim.holder, claim.name, next_incarnation,
                                      own.began, CASE WHEN is_held THEN previous_fence END, own.is_released);
    ELSIF is_same AND is_holder AND is_held AND own.is_released AND
          own.incarnation IN (previous_incarnation, next_incarnation) THEN
        -- A late claim: the server sent the claim before it released the row.
        refusal := 'late';
        detail := format('The server has released worker_id %s of datacenter_id %s since it sent this claim.',
                         own.worker_id, claim.datacenter_id);
        RETURN;
    ELSIF is_evidence AND previous_fence > own.granted_fence THEN
        -- The server holds a lease that the registry has forgotten.
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE (r.datacenter_id, r.worker_id, r.granted_fence)
               = (own.datacenter_id, own.worker_id, own.granted_fence)
           FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            refusal := 'busy';
            detail := 'Another server is now claiming the lease that this server holds.';
            RETURN;
        END IF;
        -- The evidence of another holder may have begun the era, with a floor
        -- that is not above this fence.  If another session has locked "setting",
        -- the next claim raises the floor because of the evidence inserted here.
        PERFORM FROM snowflake_registry.setting FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM snowflake_registry.raise_floor(previous_fence);
        ELSE
            INSERT INTO snowflake_registry.evidence
            VALUES (previous_fence, snowflake_registry.is_covered(own, s, registry_clock));
        END IF;
        continues := true;
        n := snowflake_registry.enter(n, s, claim.holder, claim.name, next_incarnation,
                                      CASE WHEN is_holder THEN n.began ELSE greatest(n.began, n.fence) END,
                                      previous_fence, NOT is_holder);
    ELSIF NOT is_settled THEN
        refusal := 'busy';
        detail := 'The registry has been switched over or restarted, and another session is recording that at this moment.';
        RETURN;
    ELSE
        -- A claim whose answer was lost gets the same worker id again.
        SELECT * INTO n FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = claim.datacenter_id AND r.holder = claim.holder
           AND r.incarnation = next_incarnation AND NOT r.is_freed AND NOT r.is_released
           AND coalesce(r.worker_id = wanted_worker_id, true)
           AND snowflake_registry.is_known(r, s)
         LIMIT 1 FOR UPDATE;
        IF FOUND THEN
            n := snowflake_registry.enter(n, s, claim.holder, claim.name, next_incarnation,
                                          n.began, NULL, false);
        ELSE
            n := snowflake_registry.choose(s, claim.datacenter_id, wanted_worker_id, claim.holder,
                                           claim.name, claim.clock, is_held, previous_holder,
                                           previous_worker_id, previous_incarnation);
            IF n.worker_id IS NULL THEN
                SELECT r.code, r.sentence INTO refusal, detail
                  FROM snowflake_registry.refuse(s, claim.datacenter_id, wanted_worker_id) AS r;
                RETURN;
            END IF;
            n := snowflake_registry.enter(n, s, claim.holder, claim.name, next_incarnation,
                                          snowflake_registry.begins_at(n, s), NULL, true);
        END IF;
    END IF;

    worker_id := n.worker_id;
    begins_at := n.began;
    fence := n.fence;
    duration_us := extract(epoch FROM c.duration) * 1000000;
    registry_position := pg_current_wal_lsn();
END
$$;
COMMENT ON FUNCTION snowflake_registry.claim(text, timestamptz, integer, text, text, timestamptz,
    bigint, boolean, integer, text, integer, bigint, timestamptz, pg_lsn) IS
'for servers: lease a worker id, or renew the lease that is held';

-- Releases a lease, so that the worker id is free at once.
CREATE FUNCTION snowflake_registry.release(
    datacenter_id integer,
    worker_id integer,
    holder text,
    incarnation bigint,
    mark timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    s snowflake_registry.setting;
BEGIN
    SELECT * INTO s FROM snowflake_registry.setting;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM snowflake_registry.check_arguments(s, release.datacenter_id, ARRAY[release.worker_id],
                                               ARRAY[release.holder], ARRAY[mark]);
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF NOT snowflake_registry.notice() THEN
        RETURN false;
    END IF;
    SELECT * INTO s FROM snowflake_registry.setting;

    -- Release no row whose newest lease the registry may have forgotten.
    UPDATE snowflake_registry.node AS r
       SET fence = greatest(least(mark, r.fence), r.began),
           expires_at = clock_timestamp(), seen_at = clock_timestamp(), is_released = true
     WHERE (r.datacenter_id, r.worker_id, r.holder, r.incarnation)
           = (release.datacenter_id, release.worker_id, release.holder, release.incarnation)
       AND NOT r.is_released AND NOT r.is_freed AND snowflake_registry.is_known(r, s);
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION snowflake_registry.release(integer, integer, text, bigint, timestamptz) IS
'for servers: release a lease; all of its ids are before the mark';

-- Returns the servers' constants, for snowflake_registry_check().
CREATE FUNCTION snowflake_registry.constants(
    OUT layout text,
    OUT epoch timestamptz,
    OUT lease_duration_us bigint,
    OUT largest_lead_us bigint,
    OUT clock timestamptz)
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.layout, s.epoch,
           (extract(epoch FROM s.lease_duration) * 1000000)::bigint,
           (extract(epoch FROM s.largest_lead) * 1000000)::bigint,
           clock_timestamp()
      FROM (SELECT) AS one LEFT JOIN snowflake_registry.setting AS s ON true
$$;
COMMENT ON FUNCTION snowflake_registry.constants() IS
'for servers: their constants, and the registry''s clock';

--
-- For the DBA: configure, allow, free, declare_restored, declare_complete
--

-- Returns a layout as servers write it; raises an error for a text that is no
-- layout.
CREATE FUNCTION snowflake_registry.canonical_layout(layout text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts text[] := regexp_match(layout, '^(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})(?:@(\d{1,12})(us|ms|s))?$');
    tick_us bigint;
BEGIN
    IF parts IS NULL OR parts[1]::integer < 1 OR
       greatest(parts[2]::integer, parts[3]::integer, parts[4]::integer) > 31 OR
       parts[1]::integer + parts[2]::integer + parts[3]::integer + parts[4]::integer > 63 OR
       parts[5]::bigint = 0 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('"%s" is not a layout', layout),
            HINT = 'A layout is what snowflake.layout is on the servers, such as ''41/5/5/12'' or ''39/0/16/8@10ms''.';
    END IF;
    tick_us := coalesce(parts[5]::bigint, 1)
               * CASE parts[6] WHEN 'us' THEN 1 WHEN 's' THEN 1000000 ELSE 1000 END;
    RETURN concat_ws('/', parts[1]::integer, parts[2]::integer, parts[3]::integer, parts[4]::integer)
           || CASE WHEN tick_us = 1000 THEN ''
                   WHEN tick_us % 1000000 = 0 THEN '@' || tick_us / 1000000 || 's'
                   WHEN tick_us % 1000 = 0 THEN '@' || tick_us / 1000 || 'ms'
                   ELSE '@' || tick_us || 'us' END;
END
$$;
COMMENT ON FUNCTION snowflake_registry.canonical_layout(text) IS
'internal: a layout as servers write it';

-- Makes rows for the worker ids of a layout, 65536 at most.  claim() makes a row
-- beyond these for a server that claims, or already holds, that worker id.
CREATE FUNCTION snowflake_registry.make_nodes(layout text)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    -- A new row is of era 0, before the first era, as if its lease were forgotten:
    -- the registry may have been restored from a time before the row.
    INSERT INTO snowflake_registry.node (datacenter_id, worker_id, era)
    SELECT d, w, 0
      FROM (SELECT least(snowflake_registry.datacenter_count(layout), 65536) AS datacenters) AS l,
           generate_series(0, l.datacenters - 1) AS d,
           generate_series(0, least(snowflake_registry.worker_count(layout), 65536 / l.datacenters) - 1) AS w
    ON CONFLICT ON CONSTRAINT node_pkey DO NOTHING
$$;
COMMENT ON FUNCTION snowflake_registry.make_nodes(text) IS
'internal: make the rows that can be leased';

CREATE FUNCTION snowflake_registry.configure(
    lease_duration interval DEFAULT NULL,
    largest_lead interval DEFAULT NULL,
    layout text DEFAULT NULL,
    epoch timestamptz DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old snowflake_registry.setting;
    is_first boolean;
    duration interval;
    lead interval;
    new_layout text;
    new_epoch timestamptz;
    n snowflake_registry.node;
BEGIN
    LOCK TABLE snowflake_registry.setting IN SHARE ROW EXCLUSIVE MODE;
    PERFORM snowflake_registry.notice();
    SELECT * INTO old FROM snowflake_registry.setting;
    is_first := NOT FOUND;
    duration := coalesce(configure.lease_duration, old.lease_duration, interval '10 min');
    lead := coalesce(configure.largest_lead, old.largest_lead, interval '10 s');
    new_layout := snowflake_registry.canonical_layout(coalesce(configure.layout, old.layout, '41/5/5/12'));
    new_epoch := coalesce(configure.epoch, old.epoch, '2010-11-04 01:42:54.657+00');
    IF duration NOT BETWEEN interval '1 s' AND interval '1 day' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('lease_duration %s is not in the range 1 s .. 1 day', duration);
    END IF;
    IF lead NOT BETWEEN interval '0' AND interval '1 hour' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('largest_lead %s is not in the range 0 .. 1 hour', lead);
    END IF;
    IF NOT isfinite(new_epoch) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the epoch must be a finite instant';
    END IF;

    IF is_first THEN
        INSERT INTO snowflake_registry.setting
        VALUES (true, duration, lead, new_layout, new_epoch, duration, lead, '-infinity',
                duration + lead, 1, snowflake_registry.history(), pg_postmaster_start_time(),
                '-infinity', 0, '-infinity', 0, '-infinity');
        DELETE FROM snowflake_registry.running;
        INSERT INTO snowflake_registry.running VALUES (pg_postmaster_start_time());
        PERFORM snowflake_registry.make_nodes(new_layout);
        RETURN;
    END IF;

    IF (new_layout, new_epoch) <> (old.layout, old.epoch) THEN
        SELECT * INTO n FROM snowflake_registry.node AS r WHERE r.expires_at > clock_timestamp()
         ORDER BY r.expires_at DESC LIMIT 1;
        IF FOUND THEN
            RAISE object_in_use USING
                MESSAGE = 'the layout and the epoch cannot be changed while a worker id is leased',
                DETAIL = format('worker_id %s of datacenter_id %s is leased until %s.',
                                n.worker_id, n.datacenter_id, n.expires_at),
                HINT = 'Stop all servers, change the layout and the epoch in the registry and in each server''s configuration, and start the servers.';
        END IF;
        -- A server of another layout could not come forward.
        IF clock_timestamp() < old.grants_from THEN
            RAISE object_in_use USING
                MESSAGE = 'the layout and the epoch cannot be changed while the registry may not know of all leases',
                DETAIL = format('The registry knows of all leases from %s.', old.grants_from);
        END IF;
    END IF;
    IF (duration, lead) <> (old.lease_duration, old.largest_lead) THEN
        IF clock_timestamp() < old.former_until THEN
            RAISE object_in_use USING
                MESSAGE = format('the last change of the constants takes effect only at %s', old.former_until),
                HINT = 'Change the constants again after that.';
        END IF;
        -- A dump from before a change has the old constants only.  After such a
        -- dump is restored, all holders must come forward within the grace of
        -- the old constants.  Holders renew every minute, so a grace of 65 s is
        -- long enough for any lease.  A shorter grace is long enough for a lease
        -- of at most twice the grace: its holder renews every third of the
        -- lease, which is at most 2/3 of the grace.
        IF old.shortest_grace < interval '65 s' AND
           duration > greatest(2 * old.shortest_grace, old.lease_duration) THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('lease_duration cannot be raised from %s to %s', old.lease_duration, duration),
                DETAIL = format('A dump of the registry may have a lease_duration and a largest_lead of no more than %s together. '
                                'After a restore the registry would wait no longer than that for servers to renew their leases.',
                                old.shortest_grace),
                HINT = format('Raise lease_duration to %s at most, or make a new registry.',
                              greatest(2 * old.shortest_grace, old.lease_duration));
        END IF;
        UPDATE snowflake_registry.setting AS s
           SET former_lease_duration = s.lease_duration, former_largest_lead = s.largest_lead,
               former_until = clock_timestamp() + s.lease_duration + s.largest_lead,
               lease_duration = duration, largest_lead = lead,
               shortest_grace = least(s.shortest_grace, duration + lead);
    END IF;
    UPDATE snowflake_registry.setting AS s SET layout = new_layout, epoch = new_epoch;
    PERFORM snowflake_registry.make_nodes(new_layout);
END
$$;
COMMENT ON FUNCTION snowflake_registry.configure(interval, interval, text, timestamptz) IS
'set the servers'' constants: how long a lease lasts, how far a clock may lead, layout and epoch; a NULL changes nothing';

CREATE FUNCTION snowflake_registry.allow(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA snowflake_registry TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION snowflake_registry.claim, snowflake_registry.release, '
                   'snowflake_registry.constants TO %I', role);
END
$$;
COMMENT ON FUNCTION snowflake_registry.allow(name) IS
'let the servers that connect as this role claim and release worker ids';

CREATE FUNCTION snowflake_registry.free(datacenter_id integer, worker_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c record := snowflake_registry.constants_in_force();
BEGIN
    UPDATE snowflake_registry.node AS r
       SET expires_at = least(r.expires_at, clock_timestamp()), is_freed = true,
           fence = greatest(least(r.fence, clock_timestamp() + c.longest_lead), r.began)
     WHERE (r.datacenter_id, r.worker_id) = (free.datacenter_id, free.worker_id)
       AND r.holder IS NOT NULL;
    IF NOT FOUND THEN
        RAISE no_data_found USING
            MESSAGE = format('worker_id %s of datacenter_id %s has never been leased',
                             free.worker_id, free.datacenter_id);
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_registry.free(integer, integer) IS
'certify that the holder of a worker id is dead, and that its clock was no more than largest_lead ahead: another server may lease the worker id at once';

CREATE FUNCTION snowflake_registry.declare_restored()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM snowflake_registry.setting FOR UPDATE;
    PERFORM snowflake_registry.begin_era(NULL, true);
END
$$;
COMMENT ON FUNCTION snowflake_registry.declare_restored() IS
'declare that the registry was set back: new servers wait until all leases that it may have forgotten are over';

CREATE FUNCTION snowflake_registry.declare_complete()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM snowflake_registry.setting FOR UPDATE;
    PERFORM snowflake_registry.notice();
    UPDATE snowflake_registry.setting
       SET grants_from = '-infinity', window_until = '-infinity', floor_era = 0, floor = '-infinity';
END
$$;
COMMENT ON FUNCTION snowflake_registry.declare_complete() IS
'certify that the registry has forgotten nothing, as after a switchover to a standby that had everything: new servers need not wait';

--
-- Privileges and dumps
--

-- PostgreSQL grants EXECUTE on new functions to PUBLIC; only allow() is to grant it.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA snowflake_registry FROM PUBLIC;

-- pg_dump dumps the rows of these tables, although they belong to an extension.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'snowflake_registry') THEN
        PERFORM pg_catalog.pg_extension_config_dump('snowflake_registry.setting', '');
        PERFORM pg_catalog.pg_extension_config_dump('snowflake_registry.node', '');
    END IF;
END
$$;
