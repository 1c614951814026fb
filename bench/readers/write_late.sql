\set ms random(1, 200)
BEGIN;
INSERT INTO outbox (event) VALUES ('one'), ('two');
\sleep :ms ms
INSERT INTO outbox (event) VALUES ('three');
COMMIT;
