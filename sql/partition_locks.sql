-- snowflake_partitions.locks() lists every lock that PostgreSQL takes while it creates or
-- drops a partition, on tables that are there before: a call takes these locks first,
-- without waiting for one while it holds another.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
CREATE EXTENSION IF NOT EXISTS snowflake_partitions;
RESET client_min_messages;
SET TimeZone = 'UTC';
CREATE SCHEMA locked;
SET search_path = locked, public;

-- A table that is a partition itself, with a default partition that has partitions, and
-- a foreign key.  The first partition has partitions, too.
CREATE TABLE page (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE page_1 PARTITION OF page FOR VALUES FROM (0) TO (100);
CREATE TABLE page_2 PARTITION OF page FOR VALUES FROM (100) TO (200);
CREATE TABLE shop (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE shop_rest PARTITION OF shop DEFAULT;
CREATE TABLE visits (id bigint, shop bigint, page bigint, previous bigint) PARTITION BY LIST (shop);
CREATE TABLE visit PARTITION OF visits (PRIMARY KEY (id)) DEFAULT PARTITION BY RANGE (id);
ALTER TABLE visit ADD FOREIGN KEY (page) REFERENCES page;
CREATE TABLE visit_rest PARTITION OF visit DEFAULT PARTITION BY RANGE (id);
CREATE TABLE visit_rest_1 PARTITION OF visit_rest DEFAULT;
CREATE TABLE visit_0 PARTITION OF visit FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
CREATE TABLE visit_0_1 PARTITION OF visit_0 FOR VALUES FROM (0) TO (500);
CREATE TABLE visit_1 PARTITION OF visit FOR VALUES FROM (1000) TO (snowflake_min_id('2028-01-01'));
CREATE TABLE plain PARTITION OF visits FOR VALUES IN (1);

-- Lists the locks for a new partition and for dropping the first one, and warns of each
-- lock that the statements take and the list lacks.
CREATE PROCEDURE show_locks() LANGUAGE plpgsql AS $$
DECLARE
  newest oid := (SELECT max(oid) FROM pg_class);
  locks text[];
  statements text[];
  dropped regclass;
  statement text;
  missing record;
BEGIN
  FOREACH dropped IN ARRAY ARRAY[NULL, 'visit_0'] LOOP
    locks := snowflake_partitions.locks('visit', dropped);
    IF dropped IS NULL THEN
      statements := (SELECT m.statements FROM snowflake_partitions.missing('visit', '2028-01-01', '2028-01-02', '1 day') AS m);
    ELSE
      statements := (SELECT e.statements FROM snowflake_partitions.expired('visit', '2028-01-01') AS e LIMIT 1);
    END IF;
    RAISE NOTICE '%: %', coalesce('drop ' || dropped, 'create'), (SELECT string_agg(lock, ', ' ORDER BY lock COLLATE "C") FROM unnest(locks) AS lock);
    COMMIT;
    FOREACH statement IN ARRAY statements LOOP
      EXECUTE statement;
    END LOOP;
    FOR missing IN
      SELECT l.relation::regclass AS tab, l.mode
        FROM pg_locks AS l
        JOIN pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p') AND c.relnamespace = 'locked'::regnamespace AND c.oid <= newest
       WHERE l.pid = pg_backend_pid() AND l.granted
         AND NOT EXISTS (SELECT FROM unnest(locks) AS lock, substring(lock FROM ' IN ([A-Z ]+) MODE$') AS mode
                          WHERE to_regclass(regexp_replace(lock, ' IN [A-Z ]+ MODE$', '')) = l.relation
                            AND (mode = 'ACCESS EXCLUSIVE' OR l.mode = 'AccessShareLock' OR l.mode = replace(initcap(mode), ' ', '') || 'Lock'
                                 OR mode = 'SHARE ROW EXCLUSIVE' AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock')))
       ORDER BY 1, 2
    LOOP
      RAISE WARNING '%', missing;
    END LOOP;
    ROLLBACK;
  END LOOP;
END $$;

CALL show_locks();
-- a foreign key of a partition alone
ALTER TABLE visit_0_1 ADD FOREIGN KEY (shop) REFERENCES shop;
CALL show_locks();
ALTER TABLE visit_0_1 DROP CONSTRAINT visit_0_1_shop_fkey;
-- a table with partitions references the table
CREATE TABLE note (visit bigint REFERENCES visit) PARTITION BY RANGE (visit);
CREATE TABLE note_1 PARTITION OF note DEFAULT;
CALL show_locks();
-- the table references itself
ALTER TABLE visit ADD FOREIGN KEY (previous) REFERENCES visit;
CALL show_locks();
SET client_min_messages = warning;
DROP SCHEMA locked CASCADE;
