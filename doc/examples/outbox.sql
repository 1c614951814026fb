-- The tables and the function of doc/outbox.md: readers of new rows that miss none.

CREATE TABLE outbox (
    id       bigint NOT NULL DEFAULT snowflake_nextval(),         -- the application's key
    position bigint NOT NULL UNIQUE DEFAULT snowflake_nextval(),  -- no application sets it
    event    text NOT NULL
) PARTITION BY RANGE (position);
CREATE TABLE outbox_default PARTITION OF outbox DEFAULT;
CREATE TABLE consumer (
    name     text PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0   -- rows below are read
);
INSERT INTO consumer (name) VALUES ('mail'), ('search');

CREATE FUNCTION read_outbox(consumer_name text, batch bigint DEFAULT 1000)
RETURNS SETOF outbox LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    since   bigint;
    until   bigint;
    horizon bigint;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE 'read_outbox() needs isolation level read committed';
    END IF;
    -- one session at a time for each consumer
    SELECT position INTO STRICT since FROM consumer WHERE name = consumer_name FOR UPDATE;
    -- first the horizon, then the rows
    horizon := snowflake_horizon('outbox');
    IF horizon < since THEN
        RAISE 'the horizon % is below position %', horizon, since
            USING HINT = 'Stop all readers, and set the positions back.';
    END IF;
    -- a full batch ends after its last row
    SELECT position + 1 INTO until FROM outbox
     WHERE position >= since AND position < horizon ORDER BY position OFFSET batch - 1 LIMIT 1;
    until := coalesce(until, horizon);
    RETURN QUERY SELECT * FROM outbox WHERE position >= since AND position < until ORDER BY position;
    UPDATE consumer SET position = until WHERE name = consumer_name;
END
$$;
