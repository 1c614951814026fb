-- The registry's SQL without a server: privileges, which worker id a claim gets,
-- and where its ids begin.
CREATE ROLE regress_snowflake_server;
CREATE ROLE regress_snowflake_outsider;
SET client_min_messages = warning;
-- Whatever default privileges say, nothing is granted.
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO regress_snowflake_outsider;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_snowflake_outsider, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO regress_snowflake_outsider;
CREATE EXTENSION snowflake_registry;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM regress_snowflake_outsider;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM regress_snowflake_outsider, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM regress_snowflake_outsider;
SELECT has_schema_privilege('regress_snowflake_outsider', 'snowflake_registry', 'USAGE') AS outsider_sees_the_schema;
RESET client_min_messages;
SET DateStyle = ISO;
SET TimeZone = 'UTC';
SET IntervalStyle = postgres;
\set SHOW_CONTEXT never
\set VERBOSITY terse

-- Every object has a comment, only the owner may use the objects, and the
-- functions that people and servers call are SECURITY DEFINER.  A function's
-- names are bound when it is created, or its search_path is pinned.
\pset format unaligned
SELECT p.proname, p.provolatile AS volatile, p.prosecdef AS definer,
       p.prosqlbody IS NOT NULL OR 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) AS bound,
       p.proacl = ARRAY[makeaclitem(p.proowner, p.proowner, 'EXECUTE', false)] AS owner_only,
       obj_description(p.oid, 'pg_proc') IS NOT NULL AS comment
  FROM pg_proc AS p WHERE p.pronamespace = 'snowflake_registry'::regnamespace
 ORDER BY p.proname COLLATE "C";
\pset format aligned
SELECT c.relname, c.relkind, c.relpersistence,
       NOT EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner) AS owner_only,
       obj_description(c.oid, 'pg_class') IS NOT NULL AS comment, c.oid = ANY (e.extconfig) AS dumped
  FROM pg_class AS c, pg_extension AS e
 WHERE c.relnamespace = 'snowflake_registry'::regnamespace AND c.relkind IN ('r', 'v')
   AND e.extname = 'snowflake_registry'
 ORDER BY c.relname COLLATE "C";

-- A text without instants and the address of the test, and the SQLSTATE and
-- message of an error.
CREATE FUNCTION pg_temp.told(sentence text) RETURNS text
LANGUAGE sql AS $$
SELECT regexp_replace(regexp_replace(sentence, '\d{4}-\d\d-\d\d [\d:.]+\+00', '(instant)', 'g'), ' at (127.0.0.1|::1) until', ' until') $$;
CREATE FUNCTION pg_temp.error(statement text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  RETURN pg_temp.told(concat_ws(' ', SQLSTATE, SQLERRM));
END $$;

-- Claims for a server.  The last lease is "worker_id incarnation"; a server that
-- still holds it gives its fence, in units from now.  Shows instants as units from
-- now.  A unit is 10 minutes, so that a busy machine rounds as an idle one does.
CREATE FUNCTION pg_temp.unit(n float8) RETURNS timestamptz
LANGUAGE sql AS $$ SELECT clock_timestamp() + n * interval '10 min' $$;
CREATE FUNCTION pg_temp.units(instant timestamptz) RETURNS text
LANGUAGE sql AS $$ SELECT CASE WHEN instant > '2021-01-01' THEN round(extract(epoch FROM instant - clock_timestamp()) / 600)::text ELSE 'epoch' END $$;
CREATE FUNCTION pg_temp.claim(holder text, next_incarnation bigint, last text DEFAULT NULL, fence float8 DEFAULT NULL,
                              wanted int DEFAULT NULL, name text DEFAULT '', datacenter int DEFAULT 1,
                              begins_by timestamptz DEFAULT clock_timestamp(), layout text DEFAULT '41/1/2/12')
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  answer record;
BEGIN
  SELECT * INTO answer
    FROM snowflake_registry.claim(
           layout => layout, epoch => '2020-01-01 00:00+00', datacenter_id => datacenter, wanted_worker_id => wanted,
           holder => holder, name => name, begins_by => begins_by,
           last_worker_id => split_part(last, ' ', 1)::int, incarnation => split_part(last, ' ', 2)::bigint,
           held_fence => pg_temp.unit(fence), next_incarnation => next_incarnation);
  RETURN coalesce(answer.refusal || ': ' || pg_temp.told(answer.detail),
                  format('%s begins at %s, fence %s', answer.worker_id,
                         pg_temp.units(answer.begins_at), pg_temp.units(answer.fence)));
END $$;
CREATE FUNCTION pg_temp.release(holder text, id int, incarnation bigint, mark float8) RETURNS boolean
LANGUAGE sql AS $$
SELECT snowflake_registry.release(1, id, holder, incarnation, pg_temp.unit(mark)) $$;
CREATE FUNCTION pg_temp.expire(id int) RETURNS void
LANGUAGE sql AS $$
UPDATE snowflake_registry.node SET expires_at = now(), fence = now() WHERE (datacenter_id, worker_id) = (1, id) $$;
-- the end of the quarantine that the first configure() has begun, or a later one
CREATE FUNCTION pg_temp.reopen() RETURNS void
LANGUAGE sql AS $$ UPDATE snowflake_registry.setting SET reopens_at = clock_timestamp() $$;
CREATE TEMPORARY VIEW leases AS
SELECT l.datacenter_id AS dc, l.worker_id AS id, l.holder, l.name, l.state, pg_temp.units(l.began) AS began,
       pg_temp.units(l.expires_at) AS expires, pg_temp.units(l.fence) AS fence
  FROM snowflake_registry.lease AS l ORDER BY 1, 2;

-- A registry has no constants before configure() is called.
SELECT pg_temp.claim('a', 1);
SELECT pg_temp.release('a', 0, 1, 0);
SELECT pg_temp.told(about) FROM snowflake_registry.about() AS about;
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '0.9 s')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(lease_duration => '25 h')$$);
BEGIN;
SELECT snowflake_registry.configure(lease_duration => '1 day', slack => '1 min');
SELECT lease_duration, slack FROM snowflake_registry.setting;
ROLLBACK;
SELECT pg_temp.error($$SELECT snowflake_registry.configure(slack => '-1 s')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(slack => '61 min')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(epoch => '-infinity')$$);
BEGIN;
SELECT t.layout, pg_temp.error(format('SELECT snowflake_registry.configure(layout => %L)', t.layout))
  FROM unnest(ARRAY['41/5/5/12', '41/5/5/13', '41/05/5/12', '41/5/5', '39/0/16/8@10ms', '39/0/16/8@1ms', '39/0/16/8@2000ms',
                    '39/0/16/8@7000us', '39/0/16/8@10us', '39/0/16/8@0us', '30/10/10/13@1000s']) AS t (layout);
ROLLBACK;
BEGIN;
SELECT snowflake_registry.configure();
SELECT lease_duration, slack, layout, epoch, date_trunc('second', reopens_at - quarantined_at) AS quarantine FROM snowflake_registry.setting;
ROLLBACK;

-- A new registry may have forgotten everything: a holder keeps its worker id.
SELECT snowflake_registry.configure('10 h', '10 min', '41/1/2/12', '2020-01-01 00:00+00');
SELECT pg_temp.told(about) FROM snowflake_registry.about() AS about;
BEGIN;
SELECT pg_temp.claim('new', 1);
SELECT pg_temp.claim('new', 1, wanted => 3);
SELECT pg_temp.claim('live', 8, '3 7', 30);
SELECT pg_temp.claim('live', 9, '3 8', 30);
SELECT pg_temp.claim('another', 8, '3 7', 30);
SELECT * FROM leases;
ROLLBACK;
SELECT pg_temp.reopen();
-- about() notices a start, and changes nothing.
BEGIN;
UPDATE snowflake_registry.setting SET server_start = server_start - interval '1 s';
SELECT pg_temp.told(about) FROM snowflake_registry.about() AS about;
ROLLBACK;

-- After allow() a server may call three functions, and use nothing else, even if the
-- registry was restored without privileges.
SET ROLE regress_snowflake_server;
SELECT pg_temp.error($$SELECT pg_temp.claim('a', 1)$$);
RESET ROLE;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA snowflake_registry TO PUBLIC;
SELECT snowflake_registry.allow('regress_snowflake_nobody');
SELECT snowflake_registry.allow('regress_snowflake_server');
SET ROLE regress_snowflake_server;
SELECT pg_temp.claim('a', 1);
SELECT pg_temp.release('a', 0, 1, 0);
SELECT count(*) FROM snowflake_registry.about();
SELECT * FROM snowflake_registry.lease;
SELECT * FROM snowflake_registry.node;
SELECT * FROM snowflake_registry.setting;
UPDATE snowflake_registry.node SET fence = '-infinity';
SELECT string_agg(p.proname, ' ' ORDER BY p.proname COLLATE "C") FROM pg_proc AS p
 WHERE p.pronamespace = 'snowflake_registry'::regnamespace AND has_function_privilege(p.oid, 'EXECUTE');
SET ROLE regress_snowflake_outsider;
SELECT pg_temp.claim('a', 1);
RESET ROLE;
-- A role that watches the registry needs SELECT on the view, and nothing else.
BEGIN;
GRANT USAGE ON SCHEMA snowflake_registry TO regress_snowflake_outsider;
GRANT SELECT ON snowflake_registry.lease TO regress_snowflake_outsider;
SET ROLE regress_snowflake_outsider;
SELECT worker_id, state, fence > now() AS has_fence FROM snowflake_registry.lease;
ROLLBACK;
DELETE FROM snowflake_registry.node;

-- A claim uses no table, function or operator of the caller's search_path.
BEGIN;
CREATE SCHEMA regress_snowflake_attic AUTHORIZATION regress_snowflake_server;
SET ROLE regress_snowflake_server;
CREATE TEMPORARY TABLE setting (trap int);
CREATE TEMPORARY TABLE node (trap int);
CREATE TEMPORARY TABLE pg_database (oid oid, datname name);
CREATE TABLE regress_snowflake_attic.ran (n int);
CREATE FUNCTION regress_snowflake_attic.clock_timestamp() RETURNS timestamptz
LANGUAGE plpgsql AS $$ BEGIN INSERT INTO regress_snowflake_attic.ran VALUES (1); RETURN 'infinity'; END $$;
CREATE FUNCTION regress_snowflake_attic.later(timestamptz, timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$ BEGIN INSERT INTO regress_snowflake_attic.ran VALUES (1); RETURN true; END $$;
CREATE OPERATOR regress_snowflake_attic.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = regress_snowflake_attic.later);
CREATE OPERATOR regress_snowflake_attic.>= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = regress_snowflake_attic.later);
SET search_path = regress_snowflake_attic, pg_temp, pg_catalog, public;
SELECT 'infinity' = clock_timestamp() AS is_a_trap;
SELECT worker_id, refusal, fence < now() + interval '11 h' AS fence_is_right
  FROM snowflake_registry.claim('41/1/2/12', '2020-01-01 00:00+00', 1, NULL, 'trapper', '', now(), NULL, NULL, NULL, 1);
SELECT count(*) AS only_the_call_above FROM regress_snowflake_attic.ran;
ROLLBACK;

-- Arguments that no server sends are errors, and change nothing.
SELECT pg_temp.claim('b', 1, layout => '41/5/5/12');
SELECT pg_temp.claim('b', 1, layout => NULL);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, datacenter => -1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, datacenter => 2)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, datacenter => NULL)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, wanted => -7)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, wanted => 4)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, '2147483647 1')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim(repeat('b', 81), 1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, name => repeat('b', 200000000))$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, name => E'b\n')$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, fence => 1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim(NULL, 1)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', NULL)$$);
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1, begins_by => NULL)$$);
SELECT pg_temp.error($$SELECT snowflake_registry.release(1, 4, 'a', 1, now())$$);
SELECT snowflake_registry.release(1, 0, 'a', 1, NULL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.error($$SELECT pg_temp.claim('b', 1)$$);
ROLLBACK;
SELECT count(*) FROM leases;

-- Each server gets a worker id of its own, and renews it with the incarnation of
-- its last grant.  A claim whose answer was lost gets the same worker id again.
SELECT p.place, pg_temp.claim(p.place, 1) FROM unnest(ARRAY['a', 'b', 'c']) AS p (place);
SELECT pg_temp.claim('a', 2, '0 1', 30);
SELECT pg_temp.claim('a', 2, '0 1', 30) AS again;
SELECT pg_temp.claim('d', 1);
SELECT pg_temp.claim('d', 1);
SELECT pg_temp.claim('e', 1);
SELECT pg_temp.claim('e', 1, wanted => 2);
SELECT pg_temp.claim('e', 1, wanted => 2, begins_by => pg_temp.unit(70)) AS clock_ahead;
SELECT pg_temp.claim('e', 1, wanted => 2, datacenter => 0);
-- A clone with memory, whose original has renewed, loses its lease.  A holder
-- whose lease has ended goes on if no other server has had its worker id.
SELECT pg_temp.claim('a', 3, '0 1', 30) AS clone;
SELECT pg_temp.expire(0);
SELECT pg_temp.claim('a', 3, '0 2');
SELECT * FROM leases;
-- A release needs the incarnation, too.  The next holder begins at the released
-- mark, but not before the released lease began.
SELECT pg_temp.release('a', 0, 2, 3) AS stale, pg_temp.release('b', 0, 3, 3) AS another_holder;
SELECT pg_temp.release('a', 0, 3, 3) AS released;
SELECT pg_temp.release('a', 0, 3, 2) AS again;
SELECT pg_temp.claim('a', 4, '0 3', 30) AS released;
SELECT pg_temp.claim('e', 1);
SELECT pg_temp.claim('e', 1, begins_by => pg_temp.unit(3));
-- Also if the registry's clock was set back since the release.
BEGIN;
SELECT pg_temp.release('e', 0, 1, 3) AS released;
UPDATE snowflake_registry.node SET expires_at = pg_temp.unit(1) WHERE (datacenter_id, worker_id) = (1, 0);
SELECT pg_temp.claim('e', 2, '0 1', begins_by => pg_temp.unit(4), wanted => 0);
ROLLBACK;
BEGIN;
SELECT pg_temp.release('e', 0, 1, -900) AS below;
SELECT * FROM leases WHERE id = 0 AND dc = 1;
ROLLBACK;
BEGIN;
SELECT pg_temp.release('e', 0, 1, 9999) AS above;
SELECT * FROM leases WHERE id = 0 AND dc = 1;
ROLLBACK;

-- Which worker id a claim gets: the server's last one, if it is free, ...
DELETE FROM snowflake_registry.node WHERE datacenter_id = 0;
UPDATE snowflake_registry.node
   SET holder = 'place' || worker_id, name = 'name ' || worker_id, incarnation = 10 * worker_id, began = now(),
       fence = now(), top = now(), seen_at = now(), expires_at = now(), released_at = CASE WHEN worker_id > 1 THEN pg_temp.unit(-worker_id) END;
DELETE FROM snowflake_registry.node WHERE worker_id = 0;
BEGIN;
SELECT pg_temp.claim('new', 1, '1 10', name => 'name 2');
SELECT pg_temp.claim('copy', 1, '1 10', name => 'name 2') AS also_last_of_1;
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('place3', 1, '3 11', name => 'name 2');
ROLLBACK;
-- ... one above all that were leased, ...
BEGIN;
DELETE FROM snowflake_registry.node WHERE worker_id = 3;
SELECT pg_temp.claim('new', 1, name => 'name 2');
ROLLBACK;
-- ... the one that has been free longest, released or expired, and one that was
-- never leased.
BEGIN;
UPDATE snowflake_registry.node SET expires_at = pg_temp.unit(-CASE worker_id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 3 END);
SELECT n, pg_temp.claim('new ' || n, 1) FROM generate_series(1, 5) AS n;
ROLLBACK;
-- A worker id whose ids would begin after the server's clock is not granted.
BEGIN;
UPDATE snowflake_registry.node SET fence = pg_temp.unit(60 * 24) WHERE worker_id > 1;
SELECT pg_temp.claim('place2', 1, '2 20', name => 'name 3', wanted => 2);
SELECT pg_temp.claim('new', 1, wanted => 0, begins_by => pg_temp.unit(-1));
SELECT pg_temp.claim('place2', 1, '2 20', name => 'name 3');
SELECT pg_temp.claim('ahead', 1, wanted => 3, begins_by => pg_temp.unit(60 * 24));
ROLLBACK;

-- Nor is one that was never leased, after a quarantine.
BEGIN;
DELETE FROM snowflake_registry.node WHERE worker_id = 3;
UPDATE snowflake_registry.node SET fence = pg_temp.unit(1), expires_at = pg_temp.unit(1), released_at = NULL;
SELECT pg_temp.claim('behind', 1, begins_by => pg_temp.unit(-60));
ROLLBACK;
-- A refusal names the worker id also where none was leased before.
SELECT pg_temp.claim('first', 1, datacenter => 0, begins_by => pg_temp.unit(-1e6));
-- A refusal names the holder, and where it is.
SELECT pg_temp.claim('h', 1, wanted => 2, name => 'one of h');
UPDATE snowflake_registry.node SET address = '192.0.2.7' WHERE worker_id = 2;
SELECT pg_temp.claim('g', 1, wanted => 2);
UPDATE snowflake_registry.node SET name = '', address = '::2' WHERE worker_id = 2;
SELECT pg_temp.claim('g', 1, wanted => 2);

-- In a quarantine only holders are served, whether or not the registry knows
-- them, and each worker id has one holder.
BEGIN;
SELECT pg_temp.claim('leaver', 1, wanted => 1);
SELECT snowflake_registry.declare_restored();
SELECT * FROM leases;
SELECT pg_temp.release('h', 2, 1, 0) AS not_seen;
SELECT pg_temp.claim('new', 1);
SELECT pg_temp.claim('new', 1, wanted => 0, begins_by => pg_temp.unit(70)) AS free_but_not_seen;
SELECT pg_temp.claim('h', 2, '2 1') AS holds_no_lease;
SELECT pg_temp.claim('another', 8, '2 7', 30) AS earlier_fence_than_of_h;
SELECT pg_temp.claim('h', 2, '2 1', 30);
UPDATE snowflake_registry.node SET top = pg_temp.unit(-1) WHERE worker_id = 3;
SELECT pg_temp.claim('passed', 8, '3 7', -0.1);
SELECT pg_temp.claim('never granted', 8, '3 7', 63) AS after_the_quarantine;
SELECT pg_temp.claim('forgotten', 8, '3 7', 30);
SELECT pg_temp.claim('late', 8, '3 7', 30);
SELECT pg_temp.claim('late', 8, '3 7', 65) AS later_fence;
SELECT pg_temp.claim('leaver', 2, '1 1', 30);
SELECT pg_temp.release('leaver', 1, 2, 1);
SELECT pg_temp.claim('leaver', 3, '1 2', begins_by => pg_temp.unit(1));
SELECT pg_temp.release('forgotten', 3, 8, 25);
SELECT pg_temp.claim('new', 1, wanted => 3, begins_by => pg_temp.unit(31));
SELECT pg_temp.claim('new', 1, begins_by => pg_temp.unit(70)) AS wants_any;
SELECT * FROM leases;
-- After it no lease is left that may have been forgotten.
SELECT pg_temp.reopen();
SELECT pg_temp.claim('new', 1, wanted => 3, begins_by => pg_temp.unit(61));
ROLLBACK;

BEGIN;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.reopen();
SELECT pg_temp.claim('h', 9, '2 99', 30) AS of_another_incarnation;
ROLLBACK;

-- A holder's fence above its row's shows that the registry has forgotten a
-- grant.  The holder goes on.
BEGIN;
SELECT pg_temp.claim('h', 3, '2 1', 61.5);
SELECT pg_temp.claim('new', 1);
SELECT reopens_at > now() AS is_quarantine FROM snowflake_registry.setting;
SELECT pg_temp.claim('h', 4, '2 3', 61.9) AS never_granted;
SELECT pg_temp.units(reopens_at) FROM snowflake_registry.setting;
ROLLBACK;
-- So does the lease on a worker id that was never leased.
BEGIN;
DELETE FROM snowflake_registry.node WHERE worker_id = 3;
SELECT pg_temp.claim('forgotten', 8, '3 7', 30);
SELECT pg_temp.claim('new', 1);
ROLLBACK;

-- A holder is not displaced while the registry knows that its lease runs, except by
-- a liar that knows its text.
BEGIN;
SELECT pg_temp.claim('liar', 8, '0 7', 100000) AS begins_a_quarantine;
SELECT pg_temp.claim('liar', 9, '2 8', 61.9) AS runs;
SELECT pg_temp.claim('h', 9, '2 8', 61.9) AS knows_the_text;
ROLLBACK;
BEGIN;
UPDATE snowflake_registry.node SET expires_at = now() WHERE worker_id = 2;
SELECT pg_temp.claim('liar', 8, '0 7', 100000) AS begins_a_quarantine;
SELECT pg_temp.claim('liar', 9, '2 8', 61.9) AS over;
ROLLBACK;

-- A liar, also one that knows a holder's text, neither puts a fence beyond the
-- quarantine nor lets the next holder begin before the present one's fence.
BEGIN;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.claim('liar', 8, '3 7', 30);
SELECT pg_temp.claim('liar', 9, '3 8', 100000);
SELECT pg_temp.claim('h', 99, '2 77', 30);
SELECT pg_temp.claim('h', 99, '2 77', 61.5);
SELECT pg_temp.release('h', 2, 99, 0);
SELECT * FROM leases WHERE id IN (2, 3);
ROLLBACK;
-- A holder that was set back is not believed when the row is its own anew, nor when
-- the lease is over but for the slack.
BEGIN;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.claim('h', 9, '2 77', 60) AS earlier_lease;
SELECT pg_temp.claim('h', 2, '2 1', 0.9) AS over;
ROLLBACK;
-- A fence after the quarantine is believed if the registry has granted it.
BEGIN;
UPDATE snowflake_registry.node SET fence = pg_temp.unit(1000), top = pg_temp.unit(1000) WHERE worker_id = 2;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.claim('h', 2, '2 1', 1001) AS not_granted;
SELECT pg_temp.claim('h', 2, '2 1', 999) AS granted;
ROLLBACK;
-- A renewal in a quarantine has a fence as outside of one, so that the next
-- quarantine outlasts the fence.  Each fence of a worker id is above all before.
BEGIN;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.claim('h', 2, '2 1', 30);
SELECT * FROM leases WHERE id = 2;
UPDATE snowflake_registry.node SET top = pg_temp.unit(90) WHERE worker_id = 2;
SELECT top AS top_before FROM snowflake_registry.node WHERE worker_id = 2 \gset
SELECT pg_temp.claim('h', 3, '2 2', 30);
SELECT top > :'top_before' AS above_top FROM snowflake_registry.node WHERE worker_id = 2;
ROLLBACK;

-- Rows that were restored beside a new row of "setting" were not seen: a server that
-- held the worker id once does not continue, and their fences are after the quarantine.
BEGIN;
CREATE TEMPORARY TABLE dump AS TABLE snowflake_registry.node;
DELETE FROM snowflake_registry.node;
DELETE FROM snowflake_registry.setting;
SELECT snowflake_registry.configure('10 h', '10 min', '41/1/2/12', '2020-01-01 00:00+00');
INSERT INTO snowflake_registry.node TABLE dump;
SELECT pg_temp.claim('h', 3, '2 1') AS holds_no_lease;
SELECT pg_temp.claim('h', 3, '2 1', 30) AS holds_it;
SELECT * FROM leases;
ROLLBACK;

-- Each start of the server begins a quarantine, and so does a restored dump.
BEGIN;
UPDATE snowflake_registry.setting SET server_start = server_start - interval '1 s';
SELECT pg_temp.claim('new', 1);
SELECT server_start = pg_postmaster_start_time() AS is_noticed FROM snowflake_registry.setting;
ROLLBACK;
BEGIN;
UPDATE snowflake_registry.setting SET history = 'another';
SELECT pg_temp.claim('new', 1);
SELECT history <> 'another' AS is_noticed FROM snowflake_registry.setting;
ROLLBACK;
BEGIN;
TRUNCATE snowflake_registry.node;
SELECT pg_temp.claim('new', 1);
ROLLBACK;

-- configure() begins a quarantine if it changes anything.  The quarantine outlasts
-- leases by the old constants, and no later one is shorter.
SELECT snowflake_registry.configure();
SELECT snowflake_registry.configure('10 h', '10 min', '41/1/2/12', '2020-01-01 00:00+00');
SELECT reopens_at > now() AS is_quarantine FROM snowflake_registry.setting;
BEGIN;
SELECT snowflake_registry.configure(lease_duration => '20 min', slack => '0');
SELECT pg_temp.units(reopens_at) AS by_the_old_constants FROM snowflake_registry.setting;
SELECT pg_temp.claim('h', 2, '2 1', 30);
SELECT * FROM leases WHERE id = 2;
SELECT snowflake_registry.declare_restored();
SELECT pg_temp.units(reopens_at) AS not_shorter FROM snowflake_registry.setting;
SELECT snowflake_registry.configure(slack => '20 min');
SELECT pg_temp.units(reopens_at) AS not_shorter FROM snowflake_registry.setting;
SELECT snowflake_registry.configure(lease_duration => '20 h');
SELECT pg_temp.units(reopens_at) AS longer FROM snowflake_registry.setting;
ROLLBACK;
-- In a new layout no worker id was leased before.
BEGIN;
SELECT snowflake_registry.configure(layout => '41/1/1/13');
SELECT p.place, pg_temp.claim(p.place, 1, layout => '41/1/1/13', begins_by => pg_temp.unit(5)) FROM unnest(ARRAY['a', 'b', 'c']) AS p (place);
SELECT pg_temp.reopen();
SELECT * FROM leases;
ROLLBACK;
BEGIN;
SELECT snowflake_registry.configure(epoch => '2019-12-31 00:00+00');
SELECT reopens_at > now() AS is_quarantine FROM snowflake_registry.setting;
ROLLBACK;
-- A fence that a wrong clock of the registry has put far ahead does not make that
-- quarantine longer.
BEGIN;
UPDATE snowflake_registry.node SET fence = pg_temp.unit(9999) WHERE worker_id = 3;
SELECT snowflake_registry.configure(epoch => '2019-12-31 00:00+00');
SELECT pg_temp.units(reopens_at) FROM snowflake_registry.setting;
ROLLBACK;
-- Smaller ids than before may have been issued.
SELECT pg_temp.error($$SELECT snowflake_registry.configure(epoch => '2020-01-02 00:00+00')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(layout => '41/1/2/11')$$);
SELECT pg_temp.error($$SELECT snowflake_registry.configure(layout => '40/1/2/12@2ms')$$);
SELECT layout, epoch, reopens_at > now() AS is_quarantine FROM snowflake_registry.setting;
BEGIN;
DELETE FROM snowflake_registry.node;
SELECT pg_temp.error($$SELECT snowflake_registry.configure(epoch => '2020-01-02 00:00+00')$$) AS no_id_was_issued;
ROLLBACK;

-- A granted lease is on disk.
SET synchronous_commit = off;
BEGIN;
SELECT pg_temp.claim('h', 2, '2 1', 30);
SHOW synchronous_commit;
COMMIT;
SHOW synchronous_commit;
RESET synchronous_commit;

CREATE SCHEMA regress_snowflake_attic;
SELECT pg_temp.error('ALTER EXTENSION snowflake_registry SET SCHEMA regress_snowflake_attic');
DROP SCHEMA regress_snowflake_attic;
DROP VIEW pg_temp.leases;
DROP EXTENSION snowflake_registry;
SELECT count(*) FROM pg_namespace WHERE nspname = 'snowflake_registry';
DROP ROLE regress_snowflake_server, regress_snowflake_outsider;
