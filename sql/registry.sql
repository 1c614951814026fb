-- The registry's SQL without a server: privileges, which worker id a claim gets,
-- and where its ids begin.
SET client_min_messages = warning;
CREATE EXTENSION snowflake_registry;
RESET client_min_messages;
SET DateStyle = ISO;
SET TimeZone = 'UTC';
\set SHOW_CONTEXT never
\set VERBOSITY terse
CREATE ROLE regress_snowflake_server;
CREATE ROLE regress_snowflake_outsider;

-- Every object has a comment, only the owner may use the objects, the servers'
-- functions are SECURITY DEFINER, and no name depends on the caller's
-- search_path.
\pset format unaligned
SELECT p.proname, p.provolatile AS volatile, p.prosecdef AS definer, p.proconfig,
       p.proacl = ARRAY[makeaclitem(p.proowner, p.proowner, 'EXECUTE', false)] AS owner_only,
       obj_description(p.oid, 'pg_proc') IS NOT NULL AS comment
  FROM pg_proc AS p WHERE p.pronamespace = 'snowflake_registry'::regnamespace
 ORDER BY p.proname COLLATE "C";
\pset format aligned
SELECT c.relname, c.relkind, c.relpersistence, coalesce(c.relacl IS NULL OR c.relacl = ARRAY[makeaclitem(c.relowner, c.relowner, 'INSERT, SELECT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER', false)], false) AS owner_only,
       obj_description(c.oid, 'pg_class') IS NOT NULL AS comment, c.oid = ANY (e.extconfig) AS dumped
  FROM pg_class AS c, pg_extension AS e
 WHERE c.relnamespace = 'snowflake_registry'::regnamespace AND c.relkind IN ('r', 'v')
   AND e.extname = 'snowflake_registry'
 ORDER BY c.relname COLLATE "C";
SELECT e.extname, e.extrelocatable FROM pg_extension AS e WHERE e.extname = 'snowflake_registry';

-- Returns the SQLSTATE and the message of an error, without instants.
CREATE FUNCTION pg_temp.error(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  sentence text;
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS sentence = PG_EXCEPTION_DETAIL;
  RETURN regexp_replace(concat_ws(' ', SQLSTATE, SQLERRM, nullif(sentence, '')),
                        '\d{4}-\d\d-\d\d [\d:.]+\+00', '(instant)', 'g');
END $$;

-- A registry has no constants before configure() is called.
SELECT c.layout, c.epoch, c.lease_duration_us, c.largest_lead_us, c.clock IS NOT NULL AS has_clock
  FROM snowflake_registry.constants() AS c;
SELECT c.worker_id, c.refusal, c.detail
  FROM snowflake_registry.claim('41/5/5/12', '2010-11-04 01:42:54.657+00', 1, 'a', '', now(), 1, false) AS c;
SELECT snowflake_registry.release(1, 0, 'a', 1, now());
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '0.9 s')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '25 h')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(largest_lead => '-1 s')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(largest_lead => '61 min')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(epoch => '-infinity')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(layout => '41/5/5/13')$$);
SELECT t.layout, snowflake_registry.canonical_layout(t.layout) AS canonical
  FROM unnest(ARRAY['41/5/5/12', '41/05/5/12', '39/0/16/8@10ms', '39/0/16/8@1ms', '39/0/16/8@2000ms',
                    '39/0/16/8@7000us', '39/0/16/8@10us']) AS t (layout);
SELECT count(*) FROM snowflake_registry.node;
SELECT snowflake_registry.configure();
SELECT c.layout, c.epoch, c.lease_duration_us, c.largest_lead_us FROM snowflake_registry.constants() AS c;
SELECT count(*), min(n.datacenter_id), max(n.datacenter_id), min(n.worker_id), max(n.worker_id)
  FROM snowflake_registry.node AS n;

-- A lease of an hour, a lead of a minute, and a datacenter of four worker ids.
TRUNCATE snowflake_registry.setting, snowflake_registry.node;
SELECT snowflake_registry.configure('1 h', '1 min', '41/1/2/12', '2020-01-01 00:00+00');

-- Claims for a server.  The previous lease is "holder worker_id incarnation", and
-- "held" if the server still holds it.  Shows instants as minutes from now.
CREATE FUNCTION pg_temp.minute(n float8) RETURNS timestamptz
LANGUAGE sql AS $$ SELECT clock_timestamp() + n * interval '1 min' $$;
CREATE FUNCTION pg_temp.told(instant timestamptz) RETURNS text
LANGUAGE sql AS $$
SELECT CASE WHEN isfinite(instant) THEN round(extract(epoch FROM instant - clock_timestamp()) / 60) || ' min'
            ELSE instant::text END $$;
CREATE FUNCTION pg_temp.claim(holder text, next_incarnation bigint, previous text DEFAULT NULL,
                              wanted int DEFAULT NULL, name text DEFAULT '', datacenter int DEFAULT 1,
                              clock timestamptz DEFAULT clock_timestamp(), fence timestamptz DEFAULT now(),
                              wal pg_lsn DEFAULT NULL, layout text DEFAULT '41/1/2/12')
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  had text[] := string_to_array(previous, ' ');
  answer record;
BEGIN
  SELECT * INTO answer
    FROM snowflake_registry.claim(
           layout => layout, epoch => '2020-01-01 00:00+00', datacenter_id => datacenter, holder => holder,
           name => name, clock => clock, next_incarnation => next_incarnation,
           is_held => coalesce(had[4] = 'held', false), wanted_worker_id => wanted,
           previous_holder => had[1], previous_worker_id => had[2]::int, previous_incarnation => had[3]::bigint,
           previous_fence => CASE WHEN had IS NOT NULL THEN fence END, previous_position => wal);
  RETURN coalesce(answer.refusal || ': ' || regexp_replace(answer.detail, '\d{4}-\d\d-\d\d [\d:.]+\+00', '(instant)', 'g'),
                  format('%s %s, fence %s', answer.worker_id,
                         CASE WHEN answer.continues THEN 'goes on' ELSE 'begins at ' || pg_temp.told(answer.begins_at) END,
                         pg_temp.told(answer.fence)));
END $$;
CREATE FUNCTION pg_temp.expire(id int, minutes float8) RETURNS void
LANGUAGE sql AS $$
UPDATE snowflake_registry.node SET expires_at = pg_temp.minute(-minutes) WHERE (datacenter_id, worker_id) = (1, id) $$;
-- the address depends on how the test connects
CREATE FUNCTION pg_temp.no_addresses() RETURNS void
LANGUAGE sql AS $$ UPDATE snowflake_registry.node SET address = NULL $$;
CREATE TEMPORARY VIEW leases AS
SELECT l.datacenter_id AS dc, l.worker_id AS id, l.holder, l.name, l.state, pg_temp.told(l.claimed_at) AS claimed,
       pg_temp.told(l.seen_at) AS seen, pg_temp.told(l.expires_at) AS expires, pg_temp.told(l.fence) AS fence
  FROM snowflake_registry.lease AS l ORDER BY 1, 2;

-- After allow() a server may call three functions, and use nothing else.
SET ROLE regress_snowflake_server;
SELECT pg_temp.error($$SELECT pg_temp.claim('a', 1)$$);
RESET ROLE;
SELECT snowflake_registry.allow('nobody');
SELECT snowflake_registry.allow('regress_snowflake_server');
SET ROLE regress_snowflake_server;
SELECT c.lease_duration_us FROM snowflake_registry.constants() AS c;
SELECT pg_temp.claim('a', 1);
SELECT snowflake_registry.release(1, 0, 'a', 1, now());
SELECT * FROM snowflake_registry.lease;
SELECT * FROM snowflake_registry.node;
SELECT * FROM snowflake_registry.setting;
SELECT * FROM snowflake_registry.running;
UPDATE snowflake_registry.node SET fence = '-infinity';
DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'snowflake_registry'::regnamespace ORDER BY proname COLLATE "C" LOOP
    IF has_function_privilege(f, 'EXECUTE') THEN
      RAISE NOTICE '% may be called', f::oid::regproc;
    END IF;
  END LOOP;
END $$;
SELECT snowflake_registry.free(1, 0);
SET ROLE regress_snowflake_outsider;
SELECT pg_temp.claim('a', 1);
RESET ROLE;

-- Arguments that no server sends are errors.
SELECT pg_temp.claim('b', 1, layout => '41/5/5/12');
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, datacenter => -1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, datacenter => 2)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, wanted => -7)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, wanted => 4)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, 'b 2147483647 1')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim(repeat('b', 81), 1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, name => repeat(E'\xC3\xA9', 41))$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, name => E'b\n')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, clock => 'infinity')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, 'b 1 1', fence => '-infinity')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim(NULL, 1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, 'b 1 1 held', fence => NULL)$$);
SELECT pg_temp.error($$SELECT snowflake_registry.release(1, 0, 'a', 1, 'infinity')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.release(1, 4, 'a', 1, now())$$);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1)$$);
ROLLBACK;

-- When no worker id has had a holder, each server gets a worker id of its own,
-- and no fence delays its ids.
UPDATE snowflake_registry.node SET holder = NULL, fence = '-infinity', granted_fence = '-infinity',
       began = '-infinity', expires_at = '-infinity', is_released = false;
SELECT p.place, pg_temp.claim(p.place, 1) FROM unnest(ARRAY['a', 'b', 'c']) AS p (place);
SELECT * FROM leases;
-- A renewal needs the present incarnation, and stores the next one.
SELECT pg_temp.claim('a', 2, 'a 0 1 held');
SELECT pg_temp.no_addresses();
SELECT pg_temp.claim('a', 3, 'a 0 1 held', wanted => 0) AS stale;
SELECT pg_temp.claim('b', 9, 'a 0 2 held', wanted => 0) AS another_holder;
SELECT pg_temp.claim('a', 3, 'a 0 2 held', wanted => 0, datacenter => 0) AS another_datacenter;
-- A claim whose answer was lost gets the same worker id again.
SELECT pg_temp.claim('a', 2, 'a 0 1 held');
SELECT pg_temp.claim('d', 1);
SELECT pg_temp.claim('d', 1);
-- No other server has leased the worker id, so its holder may renew it.
SELECT pg_temp.expire(0, 5);
SELECT pg_temp.claim('a', 3, 'a 0 2');
SELECT pg_temp.no_addresses();
SELECT pg_temp.claim('e', 1);

-- A release needs the incarnation, too.  The next holder begins at the released
-- mark, but not before the released lease began.
SELECT snowflake_registry.release(1, 0, 'a', 2, pg_temp.minute(3)) AS stale,
       snowflake_registry.release(1, 0, 'b', 3, pg_temp.minute(3)) AS another_holder,
       snowflake_registry.release(0, 0, 'a', 3, pg_temp.minute(3)) AS another_datacenter,
       snowflake_registry.release(1, 0, 'a', 3, pg_temp.minute(3)) AS released,
       snowflake_registry.release(1, 0, 'a', 3, pg_temp.minute(2)) AS again;
SELECT * FROM leases WHERE id = 0 AND dc = 1;
BEGIN;
SELECT pg_temp.claim('e', 1);
SELECT snowflake_registry.release(1, 0, 'e', 1, pg_temp.minute(-900)) AS below;
SELECT * FROM leases WHERE id = 0 AND dc = 1;
SELECT pg_temp.claim('f', 1);
SELECT snowflake_registry.release(1, 0, 'f', 1, pg_temp.minute(99999999)) AS above;
SELECT * FROM leases WHERE id = 0 AND dc = 1;
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('a', 4, 'a 0 3 held') AS released;
ROLLBACK;
-- A server that has restarted within its lease continues it.
SELECT pg_temp.claim('a', 4, 'a 0 3');
-- A server that has lost its page begins after the ids that it may have issued.
SELECT pg_temp.claim('a', 5);
-- A copy gets another worker id while the original holds its lease; later the
-- copy may get the original's worker id, and begins after the original's fence.
UPDATE snowflake_registry.node SET address = '192.0.2.7', name = 'shop' WHERE (datacenter_id, worker_id) = (1, 0);
SELECT pg_temp.claim('copy of a', 1, 'a 0 5', wanted => 0);
SELECT pg_temp.claim('copy of a', 1, 'a 0 5 held', wanted => 0);
UPDATE snowflake_registry.node SET address = '::1', name = 'The "shop"' WHERE (datacenter_id, worker_id) = (1, 0);
SELECT pg_temp.claim('copy of a', 1, wanted => 0);
SELECT pg_temp.expire(0, 5);
SELECT pg_temp.claim('moved a', 1, 'a 0 5');
-- Then the original cannot renew.
SELECT pg_temp.claim('a', 6, 'a 0 5 held');

-- Which free worker id a claim gets: the one that the server had as another
-- holder, ...
UPDATE snowflake_registry.node
   SET holder = 'place' || worker_id, name = 'name ' || worker_id, incarnation = 10 * worker_id,
       fence = pg_temp.minute(-30 - worker_id), granted_fence = pg_temp.minute(-30), began = pg_temp.minute(-100),
       expires_at = pg_temp.minute(-30 - worker_id), is_released = false
 WHERE datacenter_id = 1 AND worker_id > 0;
UPDATE snowflake_registry.node
   SET holder = NULL, name = NULL, incarnation = NULL, fence = '-infinity', granted_fence = '-infinity',
       began = '-infinity', expires_at = '-infinity', is_released = false
 WHERE worker_id = 0;
BEGIN;
SELECT pg_temp.claim('new', 1, 'place1 1 10', name => 'name 2');
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('new', 1, 'place1 1 11', name => 'name 2');
ROLLBACK;
-- ... the one that it had as the same holder, ...
BEGIN;
SELECT pg_temp.claim('place3', 1, name => 'name 2');
ROLLBACK;
-- ... the last one of a server of its name, ...
BEGIN;
SELECT pg_temp.claim('new', 1, name => 'name 2');
ROLLBACK;
BEGIN;
UPDATE snowflake_registry.node SET name = 'name' WHERE worker_id > 0;
SELECT pg_temp.claim('new', 1, name => 'name');
ROLLBACK;
-- ... one never leased, ...
BEGIN;
SELECT pg_temp.claim('new', 1, name => 'name 9');
-- ... and the one that is free longest.
SELECT pg_temp.claim('newer', 1, name => '');
ROLLBACK;
-- Servers without a name have no name in common.
BEGIN;
UPDATE snowflake_registry.node SET name = '' WHERE worker_id = 1;
SELECT pg_temp.claim('new', 1);
ROLLBACK;
-- A worker id whose ids begin after the server's clock is the last choice.
BEGIN;
SELECT pg_temp.claim('new', 1, name => 'name 2', clock => pg_temp.minute(-40));
SELECT pg_temp.claim('newer', 1, name => 'name 2', clock => pg_temp.minute(-40));
ROLLBACK;

-- A server with a configured worker_id gets that worker id, or none.
SELECT pg_temp.claim('g', 1, wanted => 2, name => 'one of g');
SELECT pg_temp.no_addresses();
SELECT pg_temp.claim('h', 1, wanted => 2);
SELECT pg_temp.claim('h', 1, wanted => 2, datacenter => 0);
-- free() certifies that the holder is dead: the next holder need not wait.
BEGIN;
SELECT snowflake_registry.free(1, 2);
SELECT * FROM leases WHERE id = 2 AND dc = 1;
SELECT pg_temp.claim('h', 1, wanted => 2);
SELECT pg_temp.no_addresses();
SELECT pg_temp.claim('g', 2, 'g 2 1 held', wanted => 2) AS alive;
ROLLBACK;
BEGIN;
SELECT snowflake_registry.free(1, 2);
SELECT snowflake_registry.release(1, 2, 'g', 1, now()) AS alive;
SELECT pg_temp.claim('g', 2, 'g 2 1 held', wanted => 2) AS alive;
ROLLBACK;
SELECT pg_temp.error('SELECT snowflake_registry.free(0, 3)');
SELECT pg_temp.error('SELECT snowflake_registry.free(5, 3)');

-- The first claim after a failover or a restore detects another history.  Then
-- only holders are served, whether or not the registry knows them.
BEGIN;
UPDATE snowflake_registry.setting SET history = 'another/00000001';
SELECT pg_temp.claim('new', 1);
SELECT pg_temp.claim('g', 2, 'g 2 1');
SELECT pg_temp.claim('g', 2, 'g 2 1 held');
SELECT snowflake_registry.release(1, 2, 'g', 2, pg_temp.minute(1));
SELECT pg_temp.claim('new', 1);
SELECT pg_temp.claim('lost', 1, 'lost 1 7 held', fence => pg_temp.minute(50));
SELECT pg_temp.claim('place3', 1, 'place3 3 7 held', fence => pg_temp.minute(50)) AS lost_renewals;
SELECT pg_temp.no_addresses();
SELECT pg_temp.claim('late', 1, 'late 1 8 held', wanted => 1, fence => pg_temp.minute(49)) AS older;
SELECT pg_temp.claim('liar', 1, 'liar 0 8 held', fence => pg_temp.minute(26 * 60 + 1)) AS beyond;
-- free() does not shorten the wait for a row that may have been forgotten
SELECT snowflake_registry.free(1, 1);
SELECT snowflake_registry.free(1, 3);
-- After the wait newcomers begin after all fences that may have been forgotten.
UPDATE snowflake_registry.setting SET grants_from = '-infinity', window_until = '-infinity';
SELECT pg_temp.claim('newer', 1, wanted => 0);
ROLLBACK;
-- declare_complete() ends the wait, and declare_restored() begins one.
BEGIN;
UPDATE snowflake_registry.setting SET history = 'another/00000001';
SELECT pg_temp.claim('new', 1);
SELECT snowflake_registry.declare_complete();
SELECT pg_temp.claim('new', 1);
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.claim('newer', 1);
ROLLBACK;

-- A start after a stop that was not clean opens a window for holders.
BEGIN;
UPDATE snowflake_registry.setting SET instance = '2020-01-01 00:00+00';
SELECT pg_temp.claim('new', 1);
SELECT pg_temp.claim('g', 2, 'g 2 1');
SELECT pg_temp.claim('g', 2, 'g 2 1 held');
UPDATE snowflake_registry.setting SET grants_from = '-infinity', window_until = '-infinity';
SELECT pg_temp.claim('new', 1);
ROLLBACK;
-- In a window the fence of any holder is evidence of a forgotten lease.
BEGIN;
UPDATE snowflake_registry.setting SET instance = '2020-01-01 00:00+00';
SELECT pg_temp.claim('lost', 1, 'lost 1 7 held', fence => pg_temp.minute(50));
UPDATE snowflake_registry.setting SET window_until = '-infinity';
SELECT pg_temp.claim('new', 1);
ROLLBACK;
-- A start after a clean stop opens no window.
BEGIN;
UPDATE snowflake_registry.setting SET instance = '2020-01-01 00:00+00';
UPDATE snowflake_registry.running SET instance = '2020-01-01 00:00+00';
SELECT pg_temp.claim('new', 1);
SELECT s.instance = pg_postmaster_start_time() AND r.instance = pg_postmaster_start_time() AS is_noticed
  FROM snowflake_registry.setting AS s, snowflake_registry.running AS r;
ROLLBACK;
-- After the window only a holder that the registry knows is believed, by its
-- fence or by the position of the registry's WAL that it has seen.
BEGIN;
SELECT pg_temp.claim('lost', 1, 'lost 1 7 held', wanted => 1, fence => pg_temp.minute(50), wal => 'FFFFFFFF/FFFFFFFF');
SELECT pg_temp.claim('newer', 1);
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('g', 2, 'g 2 1 held', fence => pg_temp.minute(80));
SELECT pg_temp.claim('new', 1);
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('g', 2, 'g 2 1 held', wal => 'FFFFFFFF/FFFFFFFF');
SELECT pg_temp.claim('new', 1);
ROLLBACK;

-- New constants apply to all servers: grants use the smaller constants until all
-- leases of the former constants are over.
BEGIN;
SELECT snowflake_registry.configure(lease_duration => '2 h');
SELECT pg_temp.claim('g', 2, 'g 2 1 held');
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '3 h')$$);
ROLLBACK;
BEGIN;
SELECT snowflake_registry.configure(lease_duration => '2 h');
UPDATE snowflake_registry.setting SET former_until = now();
SELECT pg_temp.claim('g', 2, 'g 2 1 held');
SELECT snowflake_registry.configure(lease_duration => '2 min', largest_lead => '0');
SELECT pg_temp.claim('g', 3, 'g 2 2 held');
SELECT pg_temp.expire(2, 1);
SELECT pg_temp.claim('h', 1, wanted => 2);
ROLLBACK;
-- The raise of a duration is limited: a registry that is restored from a dump of
-- before the raise must not grant before all holders have come forward.
BEGIN;
UPDATE snowflake_registry.setting SET lease_duration = '20 s', largest_lead = '5 s', shortest_grace = '25 s';
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '51 s')$$);
SELECT snowflake_registry.configure(lease_duration => '50 s');
ROLLBACK;
-- The layout and the epoch cannot change while a worker id is leased.
SELECT pg_temp.error($$SELECT snowflake_registry.configure(layout => '41/1/1/13')$$);
SELECT snowflake_registry.configure(layout => '41/1/2/12', epoch => '2020-01-01 00:00+00');

-- A granted lease is on disk.
SET synchronous_commit = off;
BEGIN;
SELECT pg_temp.claim('g', 2, 'g 2 1 held');
SHOW synchronous_commit;
COMMIT;
SHOW synchronous_commit;
RESET synchronous_commit;

-- A layout with more nodes than rows: a claim adds the row of the worker id that
-- it wants.
DROP VIEW pg_temp.leases;
DROP EXTENSION snowflake_registry;
SET client_min_messages = warning;
CREATE EXTENSION snowflake_registry;
RESET client_min_messages;
SELECT snowflake_registry.configure('1 h', '1 min', '30/10/20/3@1s', '2020-01-01 00:00+00');
SELECT count(*), max(n.datacenter_id), max(n.worker_id) FROM snowflake_registry.node AS n;
SELECT pg_temp.claim('a', 1, layout => '30/10/20/3@1s');
SELECT pg_temp.claim('a', 1, wanted => 1000000, datacenter => 1023, layout => '30/10/20/3@1s');
-- After a restore, the registry believes a holder for whose worker id it has no
-- row.
UPDATE snowflake_registry.setting SET history = 'another/00000001';
SELECT pg_temp.claim('b', 2, 'b 999999 1 held', wanted => 999999, fence => pg_temp.minute(50), layout => '30/10/20/3@1s');
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, wanted => 1048576, datacenter => 1023, layout => '30/10/20/3@1s')$$);
SELECT l.datacenter_id, l.worker_id, l.holder FROM snowflake_registry.lease AS l ORDER BY 1;

DROP EXTENSION snowflake_registry;
-- If a new layout has fewer worker ids, the rows of the others stay, and are not
-- granted.  If it has more worker ids, new rows are added, which are not granted
-- during a grace.  configure() refuses another layout during a grace.
SET client_min_messages = warning;
CREATE EXTENSION snowflake_registry;
RESET client_min_messages;
SELECT snowflake_registry.configure('1 h', '1 min', '41/1/2/12', '2020-01-01 00:00+00');
SELECT snowflake_registry.configure(layout => '41/1/1/13');
SELECT pg_temp.claim('a', 1, layout => '41/1/1/13');
SELECT pg_temp.claim('b', 1, layout => '41/1/1/13');
SELECT pg_temp.claim('c', 1, layout => '41/1/1/13');
SELECT count(*) FROM snowflake_registry.node AS n;
SELECT snowflake_registry.free(1, 0), snowflake_registry.free(1, 1), snowflake_registry.declare_restored();
SELECT pg_temp.error($$SELECT snowflake_registry.configure(layout => '41/1/3/11')$$);
UPDATE snowflake_registry.setting SET layout = '41/1/3/11';
SELECT snowflake_registry.configure();
SELECT pg_temp.claim('c', 1, layout => '41/1/3/11');
SELECT count(*) FROM snowflake_registry.node AS n;

DROP EXTENSION snowflake_registry;
SELECT count(*) FROM pg_namespace WHERE nspname = 'snowflake_registry';
DROP ROLE regress_snowflake_server, regress_snowflake_outsider;
