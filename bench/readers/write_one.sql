INSERT INTO outbox (event) VALUES ('one');
