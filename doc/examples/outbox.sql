-- The tables and functions of doc/outbox.md, by which readers of new rows miss none.

CREATE TABLE outbox (
    id       bigint NOT NULL DEFAULT snowflake_nextval(),         -- the application's key
    position bigint NOT NULL UNIQUE DEFAULT snowflake_nextval(),  -- no application sets it
    event    text NOT NULL
) PARTITION BY RANGE (position);
CREATE TABLE outbox_default PARTITION OF outbox DEFAULT;
CREATE TABLE consumer (
    name     text PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0   -- the consumer has read all rows below
);

CREATE FUNCTION read_outbox(consumer_name text, batch bigint DEFAULT 1000)
RETURNS SETOF outbox LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    since   bigint;
    until   bigint;
    horizon bigint;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE 'read_outbox() cannot read in a transaction of isolation level %', current_setting('transaction_isolation')
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Use read committed.';
    END IF;
    -- One session at a time reads for a consumer.
    SELECT position INTO since FROM consumer WHERE name = consumer_name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE 'there is no consumer "%"', consumer_name
            USING ERRCODE = 'no_data_found', HINT = 'Insert a row for it into the table "consumer".';
    END IF;
    -- The rows are read by a later snapshot than the horizon.
    horizon := snowflake_horizon('outbox');
    IF horizon < since THEN
        RAISE 'the horizon % is below position % of consumer "%"', horizon, since, consumer_name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'If another server was promoted, stop all readers, and set the positions back.';
    END IF;
    -- A full batch ends after its last row.
    SELECT position + 1 INTO until FROM outbox
     WHERE position >= since AND position < horizon ORDER BY position OFFSET batch - 1 LIMIT 1;
    until := coalesce(until, horizon);
    RETURN QUERY SELECT * FROM outbox WHERE position >= since AND position < until ORDER BY position;
    UPDATE consumer SET position = until WHERE name = consumer_name;
END
$$;

-- The instant before which all consumers have read all rows; NULL without consumers.
CREATE FUNCTION outbox_read_until()
RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT snowflake_timestamp(min(position)) FROM consumer;
$$;
