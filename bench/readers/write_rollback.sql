BEGIN;
INSERT INTO outbox (event) VALUES ('one'), ('two');
ROLLBACK;
