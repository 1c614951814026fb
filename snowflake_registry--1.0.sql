/*
 * snowflake_registry 1.0: a database that leases worker ids to servers.
 *
 * The registry is SQL and PL/pgSQL only, so that any PostgreSQL 15 or later can
 * be a registry.  Where the extension's files cannot be installed, run this
 * file by "psql -1 -v ON_ERROR_STOP=1 -f" as the owner of the database.
 *
 *   SELECT snowflake_registry.configure();
 *   SELECT snowflake_registry.allow('the role of a server');
 *
 * Table "setting" has one row: the servers' constants and the quarantine.  Each
 * call locks that row first, so calls are serial.  A call waits for less than
 * deadlock_timeout, because with many waiters the search for deadlocks takes
 * longer than their claims.  Table "node" has a row for each worker id that was
 * ever leased.  The holder's ids are before the row's fence, and the next
 * holder's ids begin at the fence.
 *
 * A quarantine begins at the first call after the registry may have forgotten
 * leases: when it is new, after every start of its server, a failover or a
 * restore, after a change of a constant, and when a holder shows a fence that
 * the registry does not know.  Each quarantine has a random number, which a row
 * gets when its holder claims.  A row with another number was not seen since
 * the quarantine began, or comes from a dump.  Until the quarantine ends, the
 * holder of such a worker id is believed, and nobody else gets it.  The row's
 * fence counts as at least the quarantine's end, which is after all fences that
 * may have been forgotten.
 *
 * doc/model/lease.pml checks these rules, and lists what they assume.
 *
 * What a client that has a server's password can do:
 *
 * - It can lease all free worker ids.  It can also keep all other servers from
 *   claiming as long as it has a transaction open or prepared; a prepared one
 *   also survives restarts.  Then terminate its session, or roll the
 *   transaction back.
 * - It can begin a quarantine.  In each quarantine it can take a worker id whose
 *   lease has not been renewed yet, if it has the holder's text, or if no other
 *   holder's lease on that worker id runs as far as the registry knows.
 * - So servers that tell the truth can issue equal ids: if the registry had
 *   forgotten the holder's grant, the next holder begins before the holder's fence.
 * - It cannot renew, release or take a lease that was renewed since the last
 *   quarantine began.  Nor can it move the fence of such a lease, except by
 *   beginning a quarantine, or read a table.
 */

-- In this transaction an unqualified name means an object of PostgreSQL.  SQL
-- functions are bound to the objects when they are created.
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
-- Tables, and the layout of ids
--

-- The width of a layout's field: 1 is ticks, 2 datacenter_id, 3 worker_id, 4 sequence.
CREATE FUNCTION snowflake_registry.bits(layout text, field integer)
RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN split_part(split_part(layout, '@', 1), '/', field)::integer;

-- The smallest id of an instant's tick.
CREATE FUNCTION snowflake_registry.first_id(layout text, epoch timestamptz, instant timestamptz)
RETURNS numeric LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN floor(extract(epoch FROM instant - epoch) /
             extract(epoch FROM coalesce(substring(layout, '@(.*)'), '1 ms')::interval)) *
       (1::bigint << snowflake_registry.bits(layout, 2) + snowflake_registry.bits(layout, 3) +
                     snowflake_registry.bits(layout, 4));

CREATE TABLE snowflake_registry.setting (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    lease_duration interval NOT NULL,
    slack interval NOT NULL,
    layout text NOT NULL,
    epoch timestamptz NOT NULL,
    history text,
    server_start timestamptz,
    quarantine uuid NOT NULL DEFAULT gen_random_uuid(),
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reopens_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT lease_duration_is_1_s_to_1_day CHECK (lease_duration BETWEEN '1 s' AND '1 day'),
    CONSTRAINT slack_is_0_to_1_hour CHECK (slack BETWEEN '0' AND '1 hour'),
    CONSTRAINT epoch_is_finite CHECK (isfinite(epoch)),
    CONSTRAINT layout_is_as_servers_write_it CHECK (
        layout ~ '^[1-9][0-9]?(/(0|[1-9][0-9]?)){3}(@(?!1ms)[1-9][0-9]{0,11}(s|(?<!000)[mu]s))?$' AND
        snowflake_registry.bits(layout, 1) + snowflake_registry.bits(layout, 2) +
        snowflake_registry.bits(layout, 3) + snowflake_registry.bits(layout, 4) <= 63)
);
COMMENT ON TABLE snowflake_registry.setting IS 'one row, made by configure(): the servers'' constants, and the quarantine';
COMMENT ON COLUMN snowflake_registry.setting.lease_duration IS 'how long a lease lasts without renewal';
COMMENT ON COLUMN snowflake_registry.setting.slack IS
'how far a server''s clock may be ahead of the registry''s, and how far the clocks of the registry''s hosts may differ: a quarantine lasts lease_duration + 2 * slack';
COMMENT ON COLUMN snowflake_registry.setting.history IS 'the identity of the registry''s data when the last quarantine began';
COMMENT ON COLUMN snowflake_registry.setting.server_start IS 'the start of the registry''s server before the last quarantine began';
COMMENT ON COLUMN snowflake_registry.setting.quarantine IS 'the random number of the last quarantine';
COMMENT ON COLUMN snowflake_registry.setting.quarantined_at IS 'when the last quarantine began';
COMMENT ON COLUMN snowflake_registry.setting.reopens_at IS 'when the last quarantine ends: no lease that was forgotten has a later fence';

CREATE TABLE snowflake_registry.node (
    datacenter_id integer,
    worker_id integer,
    holder text NOT NULL,
    name text NOT NULL,
    address inet,
    incarnation bigint NOT NULL,
    began timestamptz NOT NULL,
    fence timestamptz NOT NULL,
    top timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    released_at timestamptz,
    quarantine uuid NOT NULL,
    CONSTRAINT node_pkey PRIMARY KEY (datacenter_id, worker_id)
);
CREATE INDEX node_holder_idx ON snowflake_registry.node (holder);
CREATE INDEX node_expires_at_idx ON snowflake_registry.node (datacenter_id, expires_at);
COMMENT ON TABLE snowflake_registry.node IS
'a row for each worker id that was ever leased; the row stays, because the next holder begins at its fence';
COMMENT ON COLUMN snowflake_registry.node.holder IS
'the identity that the worker id is leased to: one data directory in one place on one running machine';
COMMENT ON COLUMN snowflake_registry.node.name IS 'the holder''s snowflake.server_name';
COMMENT ON COLUMN snowflake_registry.node.incarnation IS 'a random number that the holder has chosen for its newest claim';
COMMENT ON COLUMN snowflake_registry.node.began IS 'where the holder''s ids begin';
COMMENT ON COLUMN snowflake_registry.node.fence IS 'the holder''s ids are before this instant; the next holder''s ids begin here';
COMMENT ON COLUMN snowflake_registry.node.top IS
'the largest fence ever granted; a larger one is of a grant that the registry has forgotten';
COMMENT ON COLUMN snowflake_registry.node.expires_at IS 'when the lease ends, or has ended';
COMMENT ON COLUMN snowflake_registry.node.released_at IS 'when the lease was released; NULL: it was not';
COMMENT ON COLUMN snowflake_registry.node.quarantine IS
'the number of the last quarantine when the holder claimed; after the next one the registry may have forgotten another holder';

-- The view calls no function of this file, because a role that may read the view
-- need not have the privilege to call the functions.
CREATE VIEW snowflake_registry.lease AS
SELECT n.datacenter_id, n.worker_id, n.name, n.address,
       CASE WHEN n.released_at IS NOT NULL THEN 'released'
            WHEN n.quarantine <> s.quarantine AND clock_timestamp() < s.reopens_at THEN 'unseen'
            WHEN n.expires_at > clock_timestamp() THEN 'held'
            ELSE 'expired' END AS state,
       n.began, n.seen_at, n.expires_at,
       CASE WHEN n.quarantine = s.quarantine THEN n.fence ELSE greatest(n.fence, s.reopens_at) END AS fence,
       n.holder
  FROM snowflake_registry.node AS n CROSS JOIN snowflake_registry.setting AS s;
COMMENT ON VIEW snowflake_registry.lease IS 'who holds which worker id, where, until when, and where the next holder would begin';

-- The arguments of claim(), as it passes them to other functions.
CREATE TYPE snowflake_registry.claim_arguments AS (
    datacenter_id integer, wanted_worker_id integer, holder text, name text, begins_by timestamptz,
    last_worker_id integer, incarnation bigint, held_fence timestamptz, next_incarnation bigint,
    claimed_at timestamptz
);
COMMENT ON TYPE snowflake_registry.claim_arguments IS
'internal: the arguments of a claim, and when it has locked the registry';

--
-- Quarantine
--

-- Returns the identity of the registry's data: the system identifier, the database,
-- and the table's file, which differs after a dump was restored (or a VACUUM FULL).
-- If it differs from the one that was stored, the data may have been restored.
CREATE FUNCTION snowflake_registry.history()
RETURNS text LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN concat_ws('/', (SELECT c.system_identifier FROM pg_control_system() AS c),
                 (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),
                 pg_relation_filenode('snowflake_registry.node'));

-- Begins a quarantine: the registry serves only holders until all leases that may
-- have been forgotten are over.  A quarantine that is pending never becomes shorter.
CREATE FUNCTION snowflake_registry.quarantine()
RETURNS snowflake_registry.setting LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s snowflake_registry.setting;
BEGIN
    UPDATE snowflake_registry.setting AS k
       SET history = snowflake_registry.history(), server_start = pg_postmaster_start_time(),
           quarantine = gen_random_uuid(), quarantined_at = clock_timestamp(),
           reopens_at = greatest(k.reopens_at, clock_timestamp() + k.lease_duration + 2 * k.slack)
    RETURNING * INTO s;
    RETURN s;
END
$$;

-- Locks the registry until the end of the transaction.  Begins a quarantine if
-- the registry is new or was restored, or its server was started.  Returns NULL
-- before the first configure().
CREATE FUNCTION snowflake_registry.lock_registry()
RETURNS snowflake_registry.setting LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s snowflake_registry.setting;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING
            MESSAGE = 'a registry can be called only in transactions of isolation level read committed',
            HINT = format('ALTER ROLE %I IN DATABASE %I SET default_transaction_isolation = ''read committed''',
                          session_user, current_database());
    END IF;
    -- The registry must not forget in a crash a lease that it has granted.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT * INTO s FROM snowflake_registry.setting FOR UPDATE;
    IF FOUND AND (s.history, s.server_start) IS DISTINCT FROM (snowflake_registry.history(), pg_postmaster_start_time()) THEN
        s := snowflake_registry.quarantine();
    END IF;
    RETURN s;
END
$$;

--
-- For servers: claim, release, about, and their internal functions
--

-- Raises an error for arguments that no server sends.
CREATE FUNCTION snowflake_registry.check_arguments(
    s snowflake_registry.setting, datacenter_id integer, worker_ids integer[], texts text[])
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF datacenter_id::bigint >> snowflake_registry.bits(s.layout, 2) <> 0 OR
       EXISTS (SELECT FROM unnest(worker_ids) AS id
                WHERE id::bigint >> snowflake_registry.bits(s.layout, 3) <> 0) OR
       -- The logs of other servers show the name: it must not begin a new line there.
       EXISTS (SELECT FROM unnest(texts) AS t WHERE octet_length(t) > 80 OR t ~ E'[\\x01-\\x1f\\x7f]') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'an argument of snowflake_registry.claim() or release() is out of range';
    END IF;
END
$$;

-- Returns the row of a worker id.  For a worker id that was never leased, makes
-- up a row, and does not store it.  Returns NULL for no worker id.
CREATE FUNCTION snowflake_registry.row_of(
    s snowflake_registry.setting, of_datacenter_id integer, of_worker_id integer)
RETURNS snowflake_registry.node LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n snowflake_registry.node;
BEGIN
    SELECT * INTO n FROM snowflake_registry.node AS r
     WHERE (r.datacenter_id, r.worker_id) = (of_datacenter_id, of_worker_id);
    IF NOT FOUND AND of_worker_id IS NOT NULL THEN
        n.datacenter_id := of_datacenter_id;
        n.worker_id := of_worker_id;
        n.began := s.epoch;
        n.fence := '-infinity';
        n.top := '-infinity';
        n.expires_at := '-infinity';
    END IF;
    RETURN n;
END
$$;

-- Has the row's holder claimed since the last quarantine began?
CREATE FUNCTION snowflake_registry.is_seen(n snowflake_registry.node, s snowflake_registry.setting)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN n.quarantine IS NOT DISTINCT FROM s.quarantine;

-- Returns where the next holder's ids begin.  No lease that was forgotten has a fence
-- after the quarantine.
CREATE FUNCTION snowflake_registry.fence(n snowflake_registry.node, s snowflake_registry.setting)
RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN n.quarantine = s.quarantine THEN n.fence ELSE greatest(n.fence, s.reopens_at) END;

-- Can a server without a lease get a worker id?  A worker id that was released is
-- free even if the clock has been set back since.
CREATE FUNCTION snowflake_registry.is_free(
    n snowflake_registry.node, s snowflake_registry.setting, c snowflake_registry.claim_arguments)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (n.released_at IS NOT NULL OR n.expires_at <= c.claimed_at) AND
       (snowflake_registry.is_seen(n, s) OR c.claimed_at >= s.reopens_at) AND
       snowflake_registry.fence(n, s) <= c.begins_by;

-- Returns the row of the lease that a server continues, or NULL.
CREATE FUNCTION snowflake_registry.continued(s snowflake_registry.setting, c snowflake_registry.claim_arguments)
RETURNS snowflake_registry.node LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n snowflake_registry.node;
BEGIN
    -- If the row still has the incarnation, no other holder has had it since.
    SELECT * INTO n FROM snowflake_registry.node AS r
     WHERE r.holder = c.holder AND r.datacenter_id = c.datacenter_id
       AND r.worker_id = coalesce(c.wanted_worker_id, r.worker_id)
       AND r.incarnation IN (c.incarnation, c.next_incarnation)
       AND r.quarantine = s.quarantine AND r.released_at IS NULL
       AND (c.held_fence IS NULL OR r.worker_id = c.last_worker_id AND c.held_fence <= r.top)
     LIMIT 1;
    IF FOUND OR c.held_fence IS NULL THEN
        RETURN n;
    END IF;
    -- In a quarantine, believe a holder that was not seen if all of this is true: its
    -- lease is not over; as far as the registry knows, no other holder's lease runs; and
    -- the row's grant is the holder's own, or a forgotten grant can have had its fence.
    n := snowflake_registry.row_of(s, c.datacenter_id, c.last_worker_id);
    IF c.claimed_at >= s.reopens_at OR snowflake_registry.is_seen(n, s) OR c.held_fence <= c.claimed_at + s.slack OR
       n.holder <> c.holder AND n.released_at IS NULL AND n.expires_at > c.claimed_at THEN
        RETURN NULL;
    ELSIF n.holder = c.holder AND n.incarnation IN (c.incarnation, c.next_incarnation) AND c.held_fence <= n.top THEN
        RETURN n;
    ELSIF c.held_fence <= n.top OR c.held_fence > s.reopens_at THEN
        RETURN NULL;
    END IF;
    -- A liar must not lower another holder's fence by a release.
    n.began := greatest(n.began, c.held_fence);
    n.top := c.held_fence;
    RETURN n;
END
$$;

CREATE FUNCTION snowflake_registry.worker_id_count(s snowflake_registry.setting)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 1::bigint << snowflake_registry.bits(s.layout, 3);

-- Returns a worker id above all that were leased, or NULL.
CREATE FUNCTION snowflake_registry.next_worker_id(s snowflake_registry.setting, of_datacenter_id integer)
RETURNS integer LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN (SELECT (max(r.worker_id)::bigint + 1)::integer FROM snowflake_registry.node AS r
         WHERE r.datacenter_id = of_datacenter_id
        HAVING max(r.worker_id)::bigint + 1 < snowflake_registry.worker_id_count(s));

-- Returns the row that a server without a lease gets if the row is free.  It is the
-- row of the worker id that the server wants.  If the server wants none, it is the
-- row of the first of these that there is: its last worker id, if that is free; one
-- above all that were leased; the one that has been free longest; one that was never
-- leased; the one that will be free first.
CREATE FUNCTION snowflake_registry.choose(s snowflake_registry.setting, c snowflake_registry.claim_arguments)
RETURNS snowflake_registry.node LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n snowflake_registry.node := snowflake_registry.row_of(s, c.datacenter_id,
                                                           coalesce(c.wanted_worker_id, c.last_worker_id));
    worker_count bigint := snowflake_registry.worker_id_count(s);
BEGIN
    IF c.wanted_worker_id IS NOT NULL OR snowflake_registry.is_free(n, s, c) THEN
        RETURN n;
    END IF;
    RETURN snowflake_registry.row_of(s, c.datacenter_id, coalesce(
        snowflake_registry.next_worker_id(s, c.datacenter_id),
        (SELECT r.worker_id FROM snowflake_registry.node AS r
          WHERE r.datacenter_id = c.datacenter_id AND r.expires_at <= c.claimed_at
            AND r.worker_id < worker_count AND snowflake_registry.is_free(r, s, c)
          ORDER BY r.expires_at LIMIT 1),
        (SELECT min(g)::integer
           FROM generate_series(0, nullif((SELECT count(*) FROM snowflake_registry.node AS r
                                            WHERE r.datacenter_id = c.datacenter_id
                                              AND r.worker_id < worker_count), worker_count)) AS g
          WHERE NOT EXISTS (SELECT FROM snowflake_registry.node AS r
                             WHERE (r.datacenter_id, r.worker_id) = (c.datacenter_id, g))),
        (SELECT r.worker_id FROM snowflake_registry.node AS r
          WHERE r.datacenter_id = c.datacenter_id AND r.worker_id < worker_count
          ORDER BY r.expires_at LIMIT 1)));
END
$$;

-- Returns why a claim does not get the lease of a row: a code, and a sentence.
CREATE FUNCTION snowflake_registry.refuse(
    s snowflake_registry.setting, c snowflake_registry.claim_arguments, n snowflake_registry.node,
    OUT code text, OUT sentence text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (snowflake_registry.is_seen(n, s) OR c.claimed_at >= s.reopens_at) AND n.released_at IS NULL AND
       n.expires_at > c.claimed_at AND num_nonnulls(c.held_fence, c.wanted_worker_id) > 0 THEN
        code := CASE WHEN c.held_fence IS NULL THEN 'taken' ELSE 'lost' END;
        sentence := format('worker_id %s of datacenter_id %s is leased by %s until %s.',
                           n.worker_id, c.datacenter_id,
                           concat_ws(' at ', coalesce(quote_ident(nullif(n.name, '')), 'another server'),
                                     host(n.address)),
                           n.expires_at);
    ELSIF c.claimed_at < s.reopens_at AND (c.held_fence IS NULL OR NOT snowflake_registry.is_seen(n, s)) THEN
        code := 'quarantine';
        sentence := format('The registry is new, or may have forgotten leases at %s; servers without a lease get worker ids from %s.', s.quarantined_at, s.reopens_at);
    ELSIF c.held_fence IS NOT NULL THEN
        code := 'lost';
        sentence := format('The lease on worker_id %s of datacenter_id %s is over: it has ended, or was released.',
                           n.worker_id, c.datacenter_id);
    ELSIF n.released_at IS NULL AND n.expires_at > c.claimed_at THEN
        code := 'all_taken';
        sentence := format('All worker ids of datacenter_id %s are leased, the first of them until %s.',
                           c.datacenter_id, n.expires_at);
    ELSE
        code := 'ahead';
        sentence := format('Ids of worker_id %s of datacenter_id %s begin at %s, ahead of the server''s clock: the server takes none that begin after %s.',
                           n.worker_id, c.datacenter_id, snowflake_registry.fence(n, s), c.begins_by);
    END IF;
END
$$;

-- Stores a grant or a renewal in a row, and returns the row.
CREATE FUNCTION snowflake_registry.grant_lease(
    s snowflake_registry.setting, c snowflake_registry.claim_arguments, n snowflake_registry.node)
RETURNS snowflake_registry.node LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    n.holder := c.holder;
    n.name := c.name;
    n.address := inet_client_addr();
    n.incarnation := c.next_incarnation;
    -- Each fence is above all that were granted before.
    n.fence := greatest(n.began, n.top + interval '1 us', c.claimed_at + s.lease_duration + s.slack);
    n.top := n.fence;
    n.seen_at := c.claimed_at;
    n.expires_at := c.claimed_at + s.lease_duration;
    n.released_at := NULL;
    n.quarantine := s.quarantine;
    INSERT INTO snowflake_registry.node
    SELECT n.*
    ON CONFLICT ON CONSTRAINT node_pkey DO UPDATE
       SET holder = excluded.holder, name = excluded.name, address = excluded.address,
           incarnation = excluded.incarnation,
           began = excluded.began, fence = excluded.fence, top = excluded.top, seen_at = excluded.seen_at,
           expires_at = excluded.expires_at, released_at = NULL,
           quarantine = excluded.quarantine;
    RETURN n;
END
$$;

-- Claims a worker id, or renews the lease that is held.  A claim with a
-- held_fence is answered by a renewal of last_worker_id or by a refusal.
CREATE FUNCTION snowflake_registry.claim(
    layout text, epoch timestamptz, datacenter_id integer, wanted_worker_id integer, holder text, name text,
    begins_by timestamptz, last_worker_id integer, incarnation bigint, held_fence timestamptz,
    next_incarnation bigint,
    OUT worker_id integer, OUT begins_at timestamptz, OUT fence timestamptz, OUT duration_us bigint,
    OUT refusal text, OUT detail text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '900ms'
AS $$
DECLARE
    s snowflake_registry.setting := snowflake_registry.lock_registry();
    -- One reading of the clock serves the whole claim, so its answer agrees with itself.
    c snowflake_registry.claim_arguments := (datacenter_id, wanted_worker_id, holder, name, begins_by, last_worker_id,
                                             incarnation, held_fence, next_incarnation, clock_timestamp());
    n snowflake_registry.node;
BEGIN
    IF s.layout IS NULL THEN
        refusal := 'not_configured';
        detail := 'The registry has no constants yet: snowflake_registry.configure() has not been called.';
        RETURN;
    ELSIF (claim.layout, claim.epoch) IS DISTINCT FROM (s.layout, s.epoch) THEN
        refusal := 'layout';
        detail := format('The server''s layout "%s" and epoch %s are not the registry''s, which are "%s" and %s.',
                         left(claim.layout, 80), claim.epoch, s.layout, s.epoch);
        RETURN;
    ELSIF num_nulls(datacenter_id, holder, name, begins_by, next_incarnation) > 0 OR
          held_fence IS NOT NULL AND num_nulls(last_worker_id, incarnation) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'a required argument of snowflake_registry.claim() is null';
    END IF;
    PERFORM snowflake_registry.check_arguments(s, datacenter_id, ARRAY[wanted_worker_id, last_worker_id],
                                               ARRAY[holder, name]);

    -- The registry has forgotten the grant of a fence that it does not know.
    IF c.claimed_at >= s.reopens_at AND
       held_fence > (snowflake_registry.row_of(s, datacenter_id, last_worker_id)).top THEN
        s := snowflake_registry.quarantine();
    END IF;
    n := snowflake_registry.continued(s, c);
    IF n.worker_id IS NULL THEN
        n := CASE WHEN held_fence IS NULL THEN snowflake_registry.choose(s, c)
                  ELSE snowflake_registry.row_of(s, datacenter_id, last_worker_id) END;
        IF held_fence IS NOT NULL OR NOT snowflake_registry.is_free(n, s, c) THEN
            SELECT r.code, r.sentence INTO refusal, detail FROM snowflake_registry.refuse(s, c, n) AS r;
            RETURN;
        END IF;
        n.began := snowflake_registry.fence(n, s);
    END IF;
    n := snowflake_registry.grant_lease(s, c, n);
    worker_id := n.worker_id;
    begins_at := n.began;
    fence := n.fence;
    duration_us := extract(epoch FROM s.lease_duration) * 1000000;
END
$$;
COMMENT ON FUNCTION snowflake_registry.claim IS 'for servers: lease a worker id, or renew the lease that is held';

-- Releases a lease, so that the worker id is free at once.  All ids of the lease
-- are before the mark.  The incarnation is that of the newest grant: a release that
-- arrives after a later claim changes nothing.
CREATE FUNCTION snowflake_registry.release(
    datacenter_id integer, worker_id integer, holder text, incarnation bigint, mark timestamptz,
    OUT released boolean)
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '900ms'
AS $$
DECLARE
    s snowflake_registry.setting := snowflake_registry.lock_registry();
BEGIN
    IF s.layout IS NOT NULL THEN
        PERFORM snowflake_registry.check_arguments(s, datacenter_id, ARRAY[worker_id], ARRAY[holder]);
    END IF;
    UPDATE snowflake_registry.node AS r
       SET fence = greatest(least(mark, r.fence), r.began),
           seen_at = clock_timestamp(), expires_at = clock_timestamp(), released_at = clock_timestamp()
     WHERE (r.datacenter_id, r.worker_id, r.holder, r.incarnation)
           = (release.datacenter_id, release.worker_id, release.holder, release.incarnation)
       AND r.quarantine = s.quarantine AND r.released_at IS NULL;
    released := FOUND;
END
$$;
COMMENT ON FUNCTION snowflake_registry.release IS 'for servers: release a lease, all of whose ids are before the mark';

-- Tells the DBA of a server whether the server can depend on the registry.
CREATE FUNCTION snowflake_registry.about()
RETURNS SETOF text LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s snowflake_registry.setting;
BEGIN
    RETURN NEXT format('The clock of the registry shows %s.', clock_timestamp());
    IF pg_is_in_recovery() THEN
        RETURN NEXT 'This server is in recovery and grants no leases: connect with target_session_attrs=read-write.';
        RETURN;
    END IF;
    SELECT * INTO s FROM snowflake_registry.setting;
    IF NOT FOUND THEN
        RETURN NEXT 'The registry has no constants yet: snowflake_registry.configure() has not been called.';
        RETURN;
    END IF;
    RETURN NEXT format('The layout is "%s", and the epoch is %s.', s.layout, s.epoch);
    RETURN NEXT format('A lease lasts %s without renewal; a clock may be ahead of the registry''s by %s.', s.lease_duration, s.slack);
    IF (s.history, s.server_start) IS DISTINCT FROM (snowflake_registry.history(), pg_postmaster_start_time()) THEN
        RETURN NEXT format('The registry was restored, or its server was started: the next claim begins a quarantine of at least %s.', s.lease_duration + 2 * s.slack);
    ELSIF clock_timestamp() < s.reopens_at THEN
        RETURN NEXT format('The registry is new, or may have forgotten leases at %s; servers without a lease get worker ids from %s.', s.quarantined_at, s.reopens_at);
    ELSE
        RETURN NEXT 'No quarantine is in force.';
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_registry.about IS
'for servers: what a DBA wants to know of the registry before a server depends on it';

--
-- For the DBA: configure, allow, declare_restored
--

-- The first call makes the row of "setting".  Each call that changes the row begins
-- a quarantine, which lasts until the leases by the old constants are over as well,
-- because an id of the old layout can be equal to one of any node of the new layout.
CREATE FUNCTION snowflake_registry.configure(
    lease_duration interval DEFAULT NULL, slack interval DEFAULT NULL, layout text DEFAULT NULL,
    epoch timestamptz DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old snowflake_registry.setting := snowflake_registry.lock_registry();
    s snowflake_registry.setting := old;
BEGIN
    -- Store seconds, because the length of a day depends on the session's time zone.
    s.lease_duration := make_interval(secs => extract(epoch FROM coalesce(configure.lease_duration, old.lease_duration, '100 s')));
    s.slack := make_interval(secs => extract(epoch FROM coalesce(configure.slack, old.slack, '10 s')));
    s.layout := coalesce(configure.layout, old.layout, '41/5/5/12');
    s.epoch := coalesce(configure.epoch, old.epoch, '2010-11-04 01:42:54.657+00');
    IF s = old THEN
        RETURN;
    END IF;
    PERFORM snowflake_registry.quarantine();
    INSERT INTO snowflake_registry.setting AS k (lease_duration, slack, layout, epoch)
    VALUES (s.lease_duration, s.slack, s.layout, s.epoch)
    ON CONFLICT ON CONSTRAINT setting_pkey DO UPDATE
       SET lease_duration = excluded.lease_duration, slack = excluded.slack,
           layout = excluded.layout, epoch = excluded.epoch;
    s := snowflake_registry.quarantine();
    IF snowflake_registry.first_id(s.layout, s.epoch, s.reopens_at)
       < snowflake_registry.first_id(old.layout, old.epoch, s.reopens_at) AND
       EXISTS (SELECT FROM snowflake_registry.node) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'the new layout and epoch would make ids again that servers have issued';
    END IF;
END
$$;
COMMENT ON FUNCTION snowflake_registry.configure IS
'set the servers'' constants: how long a lease lasts, how far clocks may differ, layout and epoch; a NULL changes nothing';

CREATE FUNCTION snowflake_registry.allow(role name)
RETURNS void LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A dump that was restored without its privileges lets PUBLIC execute all functions, and
    -- only the schema, which is opened here, protects them.
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA snowflake_registry FROM PUBLIC;
    EXECUTE format('GRANT USAGE ON SCHEMA snowflake_registry TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION snowflake_registry.claim, snowflake_registry.release, '
                   'snowflake_registry.about TO %I', role);
END
$$;
COMMENT ON FUNCTION snowflake_registry.allow IS 'let the server that connects as this role claim and release worker ids';

CREATE FUNCTION snowflake_registry.declare_restored()
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM snowflake_registry.lock_registry();
    PERFORM snowflake_registry.quarantine();
END
$$;
COMMENT ON FUNCTION snowflake_registry.declare_restored IS
'declare that the registry was set back: new servers wait until all leases that it may have forgotten are over';

--
-- Privileges and dumps
--

-- PostgreSQL grants EXECUTE on new functions to PUBLIC, and ALTER DEFAULT
-- PRIVILEGES may have granted more, to any role; only allow() is to grant.
DO $$
DECLARE
    grantee text;
    routine regprocedure;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR grantee IN
        SELECT 'PUBLIC' UNION
        SELECT quote_ident(pg_get_userbyid(a.grantee))
          FROM pg_default_acl AS d, aclexplode(d.defaclacl) AS a
         WHERE a.grantee <> 0 AND pg_get_userbyid(a.grantee) <> current_user
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA snowflake_registry FROM %1$s; '
                       'REVOKE ALL ON ALL TABLES IN SCHEMA snowflake_registry FROM %1$s; '
                       'REVOKE ALL ON ALL FUNCTIONS IN SCHEMA snowflake_registry FROM %1$s', grantee);
    END LOOP;
    -- The other functions are internal.
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL LOOP
        EXECUTE format('COMMENT ON FUNCTION %s IS ''internal''', routine);
    END LOOP;
END
$$;

-- Makes pg_dump dump the constants, although the table belongs to an extension.  It
-- does not dump the leases: in any dump they are out of date, and holders show theirs.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'snowflake_registry') THEN
        PERFORM pg_catalog.pg_extension_config_dump('snowflake_registry.setting', '');
    END IF;
END
$$;
