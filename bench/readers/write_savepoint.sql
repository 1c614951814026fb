BEGIN;
INSERT INTO outbox (event) SELECT 'before' FROM generate_series(1, 5);
SAVEPOINT s;
INSERT INTO outbox (event) SELECT 'rolled back' FROM generate_series(1, 3);
ROLLBACK TO s;
INSERT INTO outbox (event) SELECT 'after' FROM generate_series(1, 2);
COMMIT;
