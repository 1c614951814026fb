-- Ids as text.  The test vectors are texts of other programs.  No result depends
-- on the server's configuration.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SELECT setseed(0.415512) IS NOT NULL AS seeded;

-- known values
SELECT id, base, snowflake_to_text(id, base)
  FROM unnest(ARRAY[0, 1, 2123963931868688386, 9223372036854775807]) AS id,
       unnest(ARRAY[2, 16, 32, 36, 58, 62]) AS base
 ORDER BY id, base;
-- PostgreSQL's own hexadecimal and binary
SELECT count(*) AS wrong
  FROM (SELECT (random() * 9223372036854770000)::bigint AS id FROM generate_series(1, 1000)) AS ids
 WHERE snowflake_to_text(id, 16) <> to_hex(id)
    OR snowflake_to_text(id, 2) <> ltrim((id::bit(64))::text, '0');

-- round trips, at every length and at both sides of each power of the base
CREATE TEMP TABLE ids AS
SELECT DISTINCT id
  FROM (SELECT (random() * 2::float8 ^ bits)::bigint AS id
          FROM generate_series(0, 62) AS bits, generate_series(1, 30)
         UNION ALL
        SELECT least(base ^ digits, 9223372036854775807)::bigint + d
          FROM unnest(ARRAY[2, 16, 32, 36, 58, 62]::numeric[]) AS base,
               generate_series(0, 63) AS digits, generate_series(-1, 0) AS d
         UNION ALL
        VALUES (0), (1), (9223372036854775806), (9223372036854775807)) AS v;
SELECT count(*) > 1500 AS many FROM ids;
SELECT base, count(*) AS wrong
  FROM ids, unnest(ARRAY[2, 16, 32, 36, 58, 62]) AS base
 WHERE snowflake_from_text(snowflake_to_text(id, base), base) IS DISTINCT FROM id
 GROUP BY base;
-- different ids have different texts
SELECT base, count(*) = count(DISTINCT snowflake_to_text(id, base) COLLATE "C") AS all_differ
  FROM ids, unnest(ARRAY[2, 16, 32, 36, 58, 62]) AS base
 GROUP BY base ORDER BY base;

-- texts of the same length sort as their ids do, under COLLATE "C"
SELECT base, count(*) > 100 AS many, bool_and(by_id = by_text) AS in_order
  FROM (SELECT base,
               row_number() OVER (PARTITION BY base, length(text) ORDER BY id) AS by_id,
               row_number() OVER (PARTITION BY base, length(text) ORDER BY text COLLATE "C") AS by_text
          FROM ids, unnest(ARRAY[2, 16, 32, 36, 58, 62]) AS base, snowflake_to_text(id, base) AS text) AS ranks
 GROUP BY base ORDER BY base;
-- Under another collation texts may sort differently: this one takes both cases
-- of a letter for equal.
SELECT string_agg(text, ' ' ORDER BY text COLLATE "C") AS sorted,
       string_agg(text, ' ' ORDER BY lower(text) COLLATE "C") AS without_case
  FROM (SELECT snowflake_to_text(id, 62) AS text FROM generate_series(9, 37, 9) AS id) AS texts;

-- Leading zeros do not matter.  Upper and lower case are equal in bases 16, 32
-- and 36, and differ in base 62.
SELECT snowflake_from_text('0000000000000000000000000000000000000000000000000000000000000000000101', 2) AS binary,
       snowflake_from_text('00Ff', 16) AS hex,
       snowflake_from_text('111112', 58) AS base58,
       snowflake_from_text('7zzzzZZZZZZZZ', 32) AS crockford,
       snowflake_from_text('1Y2P0ij32e8E7', 36) AS base36,
       snowflake_from_text('a', 62) AS lower62, snowflake_from_text('A', 62) AS upper62;
-- Crockford's letters that look like digits
SELECT letter, snowflake_from_text(letter, 32) FROM unnest(ARRAY['I', 'i', 'L', 'l', 'O', 'o']) AS letter;

-- the first number past 63 bits, and a much larger one
SELECT snowflake_from_text('8000000000000000', 16);
SELECT snowflake_from_text('1000000000000000000000000000000000000000000000000000000000000000', 2);
SELECT snowflake_from_text('8000000000000', 32);
SELECT snowflake_from_text('1y2p0ij32e8e8', 36);
SELECT snowflake_from_text('NQm6nKp8qFD', 58);
SELECT snowflake_from_text('AzL8n0Y58m8', 62);
SELECT snowflake_from_text(repeat('z', 40), 62);
SELECT snowflake_from_text('1' || repeat('0', 70), 2);
SELECT snowflake_from_text('1' || repeat('0', 20), 16);
SELECT snowflake_to_text(-1, 62);
SELECT snowflake_to_text(-9223372036854775808, 2);

-- the error names the wrong character and its position
SELECT snowflake_from_text('102', 2);
SELECT snowflake_from_text('0x1f', 16);
SELECT snowflake_from_text('7ZZU', 32);
SELECT snowflake_from_text('7Z-ZZ', 32);
SELECT snowflake_from_text('-1', 36);
SELECT snowflake_from_text('0', 58);
SELECT snowflake_from_text('12l', 58);
SELECT snowflake_from_text('12I', 58);
SELECT snowflake_from_text(' 1', 62);
SELECT snowflake_from_text('zzzzzzzzzzzzzzzzzzzzz_', 62);
SELECT snowflake_from_text('', 62);

-- other bases
SELECT snowflake_to_text(1, 10);
SELECT snowflake_to_text(1, 64);
SELECT snowflake_from_text('1', 0);
SELECT snowflake_from_text('1', -62);

-- the functions are strict and immutable: a generated column may use them
SELECT snowflake_to_text(NULL, 62) IS NULL AND snowflake_to_text(1, NULL) IS NULL
       AND snowflake_from_text(NULL, 62) IS NULL AND snowflake_from_text('1', NULL) IS NULL AS all_null;
CREATE TABLE links (
  id bigint PRIMARY KEY,
  slug text GENERATED ALWAYS AS (snowflake_to_text(id, 58)) STORED
);
CREATE INDEX ON links (snowflake_from_text(slug, 58));
INSERT INTO links VALUES (2123963931868688386) RETURNING slug;
DROP TABLE links;

-- the SQLSTATEs
\set VERBOSITY sqlstate
SELECT snowflake_from_text('8000000000000000', 16);
SELECT snowflake_to_text(-1, 16);
SELECT snowflake_from_text('g', 16);
SELECT snowflake_from_text('', 16);
SELECT snowflake_to_text(1, 10);
