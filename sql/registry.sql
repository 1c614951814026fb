-- The registry of worker ids by itself: who may do what there, and which
-- worker id a claim gets.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET DateStyle = ISO;
SET TimeZone = 'UTC';
CREATE ROLE regress_snowflake_server;
CREATE ROLE regress_snowflake_outsider;

SELECT snowflake_registry_create();
\set SHOW_CONTEXT never
DO $$ BEGIN PERFORM snowflake_registry_create();
EXCEPTION WHEN duplicate_table THEN RAISE NOTICE '% %', SQLSTATE, SQLERRM; END $$;
\set VERBOSITY terse

-- what it is made of has comments, is no member of the extension, is nobody's
-- but the owner's, and depends on no search_path
\pset format unaligned
SELECT proname, provolatile AS volatile, prosecdef AS definer, proconfig,
       proacl = ARRAY[makeaclitem(proowner, proowner, 'EXECUTE', false)] AS owner_only,
       obj_description(oid, 'pg_proc') IS NOT NULL AS comment
  FROM pg_proc WHERE proname ~ '^snowflake_(lease|registry)_' ORDER BY proname COLLATE "C";
\pset format aligned
SELECT relname, attname, format_type(atttypid, atttypmod) AS type,
       col_description(attrelid, attnum) AS comment
  FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
 WHERE relname IN ('snowflake_lease', 'snowflake_registry') AND relkind = 'r' AND attnum > 0
 ORDER BY relname, attnum;
SELECT relname, relacl IS NULL AS owner_only, obj_description(oid, 'pg_class') AS comment
  FROM pg_class WHERE relname IN ('snowflake_lease', 'snowflake_registry') ORDER BY relname;
SELECT count(*) AS members FROM pg_depend
 WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake')
   AND (classid, objid) IN (SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE proname ~ '^snowflake_lease_'
                            UNION SELECT 'pg_class'::regclass, oid FROM pg_class
                                   WHERE relname IN ('snowflake_lease', 'snowflake_registry'));

-- A server's questions, in short: what it had before is "place worker_id
-- incarnation", and whether it still holds that, "held".  Instants are told
-- as days from 2020-01-01 on, and the present is "now".
CREATE FUNCTION pg_temp.day(n float8) RETURNS timestamptz
LANGUAGE sql AS $$ SELECT timestamptz '2020-01-01 00:00+00' + n * interval '1 day' $$;
CREATE FUNCTION pg_temp.told(instant timestamptz) RETURNS text
LANGUAGE sql AS $$
SELECT CASE WHEN instant BETWEEN now() - interval '1 min' AND now() + interval '1 min' THEN 'now'
            WHEN isfinite(instant) THEN 'day ' || round(extract(epoch FROM instant - pg_temp.day(0)) / 86400, 1)
            ELSE instant::text END $$;
CREATE FUNCTION pg_temp.claim(place text, previous text DEFAULT NULL, wanted int DEFAULT NULL,
                              name text DEFAULT '', datacenter int DEFAULT 1, ids bigint DEFAULT 4,
                              clock timestamptz DEFAULT now(), duration interval DEFAULT '1 min')
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  had text[] := string_to_array(previous, ' ');
  granted record;
BEGIN
  SELECT * INTO granted
    FROM snowflake_lease_claim(datacenter, ids, wanted, place, had[1], had[2]::int, had[3]::bigint,
                               NULL, 1, coalesce(had[4] = 'held', false), name, clock, duration);
  RETURN coalesce(regexp_replace(granted.refusal, '\d{4}-\d\d-\d\d [\d:.]+\+00', '(instant)'),
                  format('%s, incarnation %s, %s', granted.granted_worker_id, granted.granted_incarnation,
                         coalesce('begins at ' || pg_temp.told(granted.begins_at), 'goes on')));
END $$;
CREATE FUNCTION pg_temp.renew(place text, worker_id int, incarnation bigint, promise timestamptz,
                              datacenter int DEFAULT 1, duration interval DEFAULT '1 min')
RETURNS text
LANGUAGE sql AS $$
SELECT coalesce(format('incarnation %s for %s', granted_incarnation, granted_duration), '')
  FROM snowflake_lease_renew(datacenter, worker_id, place, incarnation, '', promise, duration)
 WHERE granted_incarnation IS NOT NULL $$;
CREATE FUNCTION pg_temp.expire(id int, n float8) RETURNS void
LANGUAGE sql AS $$ UPDATE snowflake_lease SET expires_at = now() - n * interval '1 hour' WHERE worker_id = id $$;
CREATE TEMPORARY VIEW leases AS
SELECT datacenter_id, worker_id, holder, name, incarnation, pg_temp.told(high_water) AS high_water,
       pg_temp.told(leased_at) AS leased_at, expires_at > clock_timestamp() AS is_leased
  FROM snowflake_lease ORDER BY 1, 2;

-- a server needs three functions, and has nothing else
SET ROLE regress_snowflake_server;
SELECT pg_temp.claim('a');
SELECT * FROM snowflake_lease_renew(1, 0, 'a', 1, '', now(), '1 min');
SELECT snowflake_lease_release(1, 0, 'a', 1, now());
RESET ROLE;
GRANT EXECUTE ON FUNCTION snowflake_lease_claim, snowflake_lease_renew, snowflake_lease_release
  TO regress_snowflake_server;
SET ROLE regress_snowflake_server;
SELECT pg_temp.claim('a');
SELECT pg_temp.renew('a', 0, 1, pg_temp.day(5));
SELECT snowflake_lease_release(1, 0, 'a', 2, pg_temp.day(4));
SELECT * FROM snowflake_lease;
SELECT * FROM snowflake_registry;
UPDATE snowflake_lease SET high_water = '-infinity';
SELECT snowflake_lease_grants_from();
SELECT snowflake_registry_create();
SET ROLE regress_snowflake_outsider;
SELECT pg_temp.claim('a');
RESET ROLE;
DELETE FROM snowflake_lease;

-- each gets one of its own, and begins anywhere
SELECT place, pg_temp.claim(place) FROM unnest(ARRAY['a', 'b', 'c']) AS place;
-- a renewal goes by the incarnation, which it changes; it never takes a promise back
SELECT pg_temp.renew('a', 0, 1, pg_temp.day(5));
SELECT pg_temp.renew('a', 0, 1, pg_temp.day(6)) AS stale;
SELECT pg_temp.renew('a', 0, 3, pg_temp.day(6)) AS ahead;
SELECT pg_temp.renew('b', 0, 2, pg_temp.day(6)) AS another_place;
SELECT pg_temp.renew('a', 0, 2, pg_temp.day(6), 2) AS another_datacenter;
SELECT pg_temp.renew('a', 0, 2, pg_temp.day(4));
SELECT * FROM pg_temp.leases;
-- nobody took it, so its holder may have it on
SELECT pg_temp.expire(0, 1);
SELECT pg_temp.renew('a', 0, 3, pg_temp.day(5));

-- a release goes by the incarnation, too, and says where the next one begins
SELECT snowflake_lease_release(1, 0, 'a', 3, pg_temp.day(3)) AS stale,
       snowflake_lease_release(1, 0, 'b', 4, pg_temp.day(3)) AS another_place,
       snowflake_lease_release(1, 0, 'a', 4, pg_temp.day(3)) AS released,
       snowflake_lease_release(1, 0, 'a', 4, pg_temp.day(2)) AS again;
SELECT pg_temp.renew('a', 0, 4, pg_temp.day(9)) AS released;
SELECT * FROM pg_temp.leases WHERE worker_id = 0;

-- who comes again goes on where he was, be the lease over or not
SELECT pg_temp.claim('a', 'a 0 4');
SELECT pg_temp.claim('b', 'b 1 1 held');
-- without a page it begins after what it promised
SELECT pg_temp.renew('b', 1, 2, pg_temp.day(5));
SELECT pg_temp.claim('b');
-- a copy does not, while the original holds it; then it begins after that
SELECT pg_temp.claim('copy of a', 'a 0 5');
SELECT pg_temp.claim('another copy of a', 'a 0 5 held');
SELECT pg_temp.expire(0, 1);
SELECT pg_temp.claim('moved a', 'a 0 5');
-- to where it was it cannot come back
SELECT pg_temp.claim('a', 'a 0 5 held');

-- two machines that are one, duplicated with its memory: who has not renewed
-- the lease, and knows that, gets another one
BEGIN;
SELECT pg_temp.claim('b', 'b 1 2 held', wanted => 1) AS twin;
SELECT pg_temp.claim('b', 'b 1 2 held', ids => 9) AS twin;
ROLLBACK;

-- a full datacenter; others are apart
SELECT pg_temp.claim('e', datacenter => 2);
SELECT pg_temp.claim('e');
SELECT * FROM pg_temp.leases;

-- which one, of those that are free: the one that it had elsewhere, ...
DELETE FROM snowflake_lease;
INSERT INTO snowflake_lease
SELECT 1, id, 'place' || id, 'name ' || id, NULL, 10 * id, pg_temp.day(-10), NULL, now() - id * interval '1 hour'
  FROM generate_series(1, 3) AS id;
BEGIN;
SELECT pg_temp.claim('new', 'place1 1 10', name => 'name 2');
ROLLBACK;
BEGIN;
SELECT pg_temp.claim('new', 'another 1 10', name => 'name 2');
ROLLBACK;
-- ... the last of its name, ...
BEGIN;
SELECT pg_temp.claim('new', name => 'name 2');
ROLLBACK;
-- ... one never leased, ...
BEGIN;
SELECT pg_temp.claim('new', name => 'name 9');
-- ... and the one that was free first
SELECT pg_temp.claim('newer', name => '');
ROLLBACK;
-- no name is none to share
BEGIN;
UPDATE snowflake_lease SET name = '' WHERE worker_id = 1;
SELECT pg_temp.claim('new');
ROLLBACK;
-- what it has moved with goes before its name
BEGIN;
UPDATE snowflake_lease SET holder = 'old' WHERE worker_id = 1;
SELECT pg_temp.claim('new', 'old 1 10', name => 'name 2');
ROLLBACK;
-- a place without a memory gets what it holds before another's of its name
BEGIN;
SELECT pg_temp.claim('p', wanted => 3);
SELECT pg_temp.claim('p', name => 'name 2');
ROLLBACK;
-- not one where the clock is not there yet, unless it must be
BEGIN;
SELECT pg_temp.claim('new', name => 'name 2', clock => pg_temp.day(-11));
SELECT pg_temp.claim('newer', name => 'name 2', clock => pg_temp.day(-11));
ROLLBACK;
-- ids that a layout has not are none
BEGIN;
SELECT pg_temp.claim('new', ids => 1);
SELECT pg_temp.claim('newer', ids => 2);
-- (and how long those are leased is nothing to wait for)
SELECT refusal LIKE '%until ' || (SELECT expires_at FROM snowflake_lease WHERE datacenter_id = 1 AND worker_id = 0) || '.' AS first
  FROM snowflake_lease_claim(1, 1, NULL, 'newest', NULL, NULL, NULL, NULL, 0, false, '', now(), '1 min');
ROLLBACK;
-- of however many a layout has
BEGIN;
SELECT pg_temp.claim('new', ids => 2147483648);
SELECT pg_temp.claim('big', wanted => 2147483647, ids => 2147483648);
SELECT pg_temp.claim('newer', ids => 2147483648);
ROLLBACK;

-- a guard: that one or none
SELECT pg_temp.claim('g', wanted => 2, name => 'one of g');
SELECT pg_temp.claim('h', wanted => 2);
SELECT pg_temp.claim('h', 'h 1 10', wanted => 2);
SELECT pg_temp.claim('h', wanted => 2, datacenter => 2);
UPDATE snowflake_lease SET name = '' WHERE worker_id = 2;
SELECT pg_temp.claim('h', wanted => 2);
UPDATE snowflake_lease SET address = '192.0.2.7' WHERE worker_id = 2;
SELECT pg_temp.claim('h', wanted => 2);
UPDATE snowflake_lease SET name = 'g' WHERE worker_id = 2;
SELECT pg_temp.claim('h', wanted => 2);
SELECT pg_temp.expire(2, 1);
SELECT pg_temp.claim('h', wanted => 2);

-- a lease that is longer than any before is granted in full from the next
-- renewal on
SELECT longest_lease FROM snowflake_registry;
SELECT pg_temp.renew('h', 2, 22, pg_temp.day(1), duration => '1 hour');
SELECT longest_lease FROM snowflake_registry;
SELECT pg_temp.renew('h', 2, 23, pg_temp.day(1), duration => '1 hour');
SELECT pg_temp.renew('h', 2, 24, pg_temp.day(1), duration => '1 min');
SELECT longest_lease FROM snowflake_registry;

-- who does not know of a renewal goes on only if it may have asked for it:
-- a machine that was duplicated as it ran comes from the same place
SELECT granted_worker_id, granted_leased_at
  FROM snowflake_lease_claim(2, 1, NULL, 'twin', NULL, NULL, NULL, NULL, 0, false, '', now(), '1 min') \gset
SELECT granted_incarnation FROM snowflake_lease_renew(2, 0, 'twin', 1, '', pg_temp.day(1), '1 min');
SELECT granted_incarnation FROM snowflake_lease_renew(2, 0, 'twin', 2, '', pg_temp.day(1), '1 min');
SELECT pg_temp.told(begins_at) AS begins FROM snowflake_lease_claim(2, 1, NULL, 'twin', 'twin', 0, 1, :'granted_leased_at', 2, false, '', now(), '1 min');
SELECT pg_temp.told(begins_at) AS begins FROM snowflake_lease_claim(2, 1, NULL, 'twin', 'twin', 0, 2, :'granted_leased_at', 1, false, '', now(), '1 min');

-- whatever a server asks for, a failover can be reckoned with
BEGIN;
SELECT pg_temp.renew('h', 2, 25, 'infinity', duration => '170000000 years') AS much;
SELECT pg_temp.renew('h', 2, 26, now(), duration => '-1 day') AS little;
SELECT longest_lease, extract(year FROM now() + largest_lead) - extract(year FROM now()) AS years FROM snowflake_registry;
UPDATE snowflake_registry SET history = 'another/00000001';
SELECT pg_temp.claim('new');
ROLLBACK;

-- a dump that is restored is another registry, too: it has another table
SELECT count(*) FROM snowflake_registry
 WHERE history LIKE '%/' || 'snowflake_lease'::regclass::oid;

-- after a failover only those get one who hold it
UPDATE snowflake_registry SET history = 'another/00000001';
SELECT pg_temp.claim('new');
SELECT history <> 'another/00000001' AS is_known,
       grants_from - now() BETWEEN interval '59 min' AND interval '61 min' AS is_grace
  FROM snowflake_registry;
SELECT pg_temp.claim('h', 'h 2 25');
SELECT pg_temp.claim('h', 'h 2 25 held');
SELECT pg_temp.renew('h', 2, 26, pg_temp.day(1)) AS lost;
SELECT pg_temp.renew('h', 2, 4294967322, pg_temp.day(1));
-- even where the registry has not heard of it
SELECT pg_temp.claim('i', 'i 0 7');
SELECT pg_temp.claim('i', 'i 0 7 held');
SELECT pg_temp.claim('j', 'j 3 31 held') AS lost;
SELECT pg_temp.claim('j', 'j 2 99 held') AS known;
SELECT pg_temp.claim('k', 'j 2 99 held') AS copy;
SELECT pg_temp.claim('j', 'j 2 99 held', wanted => 1) AS another_wanted;
-- who had it before another does not, though he still counts on it
BEGIN;
UPDATE snowflake_lease SET holder = 'later', incarnation = 4294967296 + 100, leased_at = NULL WHERE worker_id = 2;
SELECT pg_temp.claim('j', 'j 2 99 held') AS earlier;
SELECT pg_temp.claim('j', 'j 2 100 held') AS unheard_of;
ROLLBACK;
-- then others do, after all that may have been promised
SELECT high_water - grants_from BETWEEN largest_lead AND largest_lead + interval '1 s' AS is_floor
  FROM snowflake_registry;
UPDATE snowflake_registry SET grants_from = now(), high_water = pg_temp.day(5);
SELECT pg_temp.claim('k', 'k 2 99 held');

-- leases answered are on disk
SET synchronous_commit = off;
BEGIN;
SELECT pg_temp.claim('k', 'k 3 99 held') IS NOT NULL AS claimed;
SHOW synchronous_commit;
COMMIT;
SHOW synchronous_commit;
RESET synchronous_commit;

-- without it the extension is what it was
DROP VIEW pg_temp.leases;
DROP TABLE snowflake_lease, snowflake_registry;
DROP FUNCTION snowflake_lease_history, snowflake_lease_grants_from, snowflake_lease_limit, snowflake_lease_choose,
  snowflake_lease_refusal, snowflake_lease_claim, snowflake_lease_renew, snowflake_lease_release;
SELECT snowflake_nextval() > 0 AS issues;
-- and it can be made anew, where the extension is by then
CREATE SCHEMA "Ids of ""all""";
ALTER EXTENSION snowflake SET SCHEMA "Ids of ""all""";
SELECT "Ids of ""all""".snowflake_registry_create();
SELECT granted_worker_id FROM "Ids of ""all""".snowflake_lease_claim(0, 32, NULL, 'a', NULL, NULL, NULL, NULL, 0, false, '', now(), '1 min');
SELECT granted_incarnation FROM "Ids of ""all""".snowflake_lease_renew(0, 0, 'a', 1, '', now(), '1 min');
SELECT "Ids of ""all""".snowflake_lease_release(0, 0, 'a', 2, now());
SELECT "Ids of ""all""".snowflake_registry_create();
DROP TABLE "Ids of ""all""".snowflake_lease, "Ids of ""all""".snowflake_registry;
DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE proname ~ '^snowflake_lease_' LOOP
    EXECUTE format('DROP FUNCTION %s', f);
  END LOOP;
END $$;
ALTER EXTENSION snowflake SET SCHEMA public;
DROP SCHEMA "Ids of ""all""";
DROP ROLE regress_snowflake_server, regress_snowflake_outsider;
