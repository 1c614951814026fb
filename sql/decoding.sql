-- Decoding and encoding.  The tests depend on the server's node, layout and epoch
-- only where a comment says so.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS snowflake;
RESET client_min_messages;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';

-- an id of the default layout and epoch
SELECT * FROM snowflake_decode(910499571847892992, '2010-11-04 01:42:54.657+00');
SELECT snowflake_timestamp(910499571847892992, '2010-11-04 01:42:54.657+00');

-- ids of another epoch, in its own time zone
SET TimeZone = 'Asia/Shanghai';
SELECT upper(lpad(to_hex(id), 16, '0')) AS hex, d.*
  FROM unnest(ARRAY[225912364091068416, 225912364275617792,
                    225912364279812096, 225912364279812097,
                    225912364284006400, 225912364284006401]) AS id,
       snowflake_decode(id, '2016-01-01 00:00:00+00') AS d;
SET TimeZone = 'UTC';

-- both ends of the default layout
SELECT * FROM snowflake_decode(0, '2010-11-04 01:42:54.657+00');
SELECT * FROM snowflake_decode(9223372036854775807, '2010-11-04 01:42:54.657+00');
SELECT snowflake_decode(-1, '2010-11-04 01:42:54.657+00');
SELECT snowflake_timestamp(-9223372036854775808, '2010-11-04 01:42:54.657+00');

-- 53 bits, for JavaScript; no datacenter at all; ticks of 10 ms and of 1 s
SELECT * FROM snowflake_decode(9007199254740991, '2020-01-01 00:00+00', '41/0/4/8');
SELECT snowflake_decode(9007199254740992, '2020-01-01 00:00+00', '41/0/4/8');
SELECT * FROM snowflake_decode(9223372036854775807, '2014-09-01 00:00+00', '39/0/16/8@10ms');
SELECT * FROM snowflake_decode(9223372036854775807, '2020-01-01 00:00+00', '30/10/10/13@1s');
SELECT * FROM snowflake_decode((123456::bigint << 8) | 200, '2020-01-01 00:00+00', '55/0/0/8@100us');
SELECT * FROM snowflake_decode(1, '2020-01-01 00:00+00', '1/0/0/0');
-- the widest fields that fit SQL's integer
SELECT * FROM snowflake_decode(4611686018427387903, '2020-01-01 00:00+00', '1/31/30/0');
SELECT * FROM snowflake_decode(9223372036854775807, '2020-01-01 00:00+00', '32/0/0/31');

-- ids made elsewhere: Discord, Instagram, Mastodon
SELECT snowflake_timestamp(175928847299117063, '2015-01-01 00:00+00');
SELECT * FROM snowflake_decode(1551205041815357441, '2011-08-24 21:07:01.721+00', '40/0/13/10');
SELECT snowflake_timestamp(108254958312457216, '1970-01-01 00:00+00', '47/0/0/16');

-- an epoch before 2000, before 1970, and one with microseconds
SELECT snowflake_timestamp(0, '1999-12-31 23:59:59.999999+00');
SELECT snowflake_timestamp(1::bigint << 22, '1900-01-01 00:00:00.000001+00');
SELECT snowflake_min_id('1900-01-01 00:00:00.001+00', '1900-01-01 00:00:00.000001+00'),
       snowflake_min_id('1900-01-01 00:00:00.001001+00', '1900-01-01 00:00:00.000001+00');

-- the smallest and the largest id of an instant's tick
SELECT snowflake_min_id(t, e) AS min_id, snowflake_max_id(t, e) AS max_id,
       snowflake_timestamp(snowflake_min_id(t, e), e) AS first,
       snowflake_timestamp(snowflake_max_id(t, e), e) AS last
  FROM (VALUES (timestamptz '2017-09-15 09:35:04.848+00'),
               ('2017-09-15 09:35:04.848999+00'),
               ('2017-09-15 09:35:04.849+00'),
               ('2016-01-01 00:00:00+00'),
               ('2015-12-31 23:59:59.999999+00'),
               ('1950-01-01 00:00:00+00'),
               ('-infinity'),
               ('2085-09-06 15:47:35.551999+00'),
               ('2085-09-06 15:47:35.552+00'),
               ('294276-12-31 23:59:59.999999+00'),
               ('infinity')) AS instants(t),
       (SELECT timestamptz '2016-01-01 00:00:00+00') AS epochs(e);
SELECT snowflake_min_id('4713-01-01 00:00:00+00 BC', '2016-01-01 00:00+00'),
       snowflake_max_id('infinity', '2020-01-01 00:00+00', '41/0/4/8');

-- invalid layouts
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/13');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12/0');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12 ');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/-5/5/12');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '0/5/5/12');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '20/32/5/1');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '99999999999999999999/5/5/12');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12@');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12@0ms');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12@1h');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '41/5/5/12@1ms ');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '63/0/0/0');
SELECT snowflake_timestamp(1, '2020-01-01 00:00+00', '62/0/0/0@1us');
SELECT snowflake_timestamp(1, 'infinity');
SELECT snowflake_timestamp(1, '294000-01-01 00:00+00', '53/0/0/10');

-- arguments are strict
SELECT snowflake_decode(NULL) IS NULL AND snowflake_timestamp(NULL) IS NULL
       AND snowflake_timestamp(1, NULL) IS NULL
       AND snowflake_min_id(NULL) IS NULL AND snowflake_format(NULL) IS NULL
       AND snowflake_encode(NULL, 0, 0, 0) IS NULL AS all_null;

-- one call in a query, with several epochs and layouts
SELECT layout, snowflake_timestamp(1::bigint << 40, epoch, layout)
  FROM (VALUES ('2020-01-01 00:00+00'::timestamptz, '41/5/5/12'),
               ('2021-01-01 00:00+00', '41/5/5/12'),
               ('2021-01-01 00:00+00', '43/0/8/12'),
               ('2021-01-01 00:00+00', '43/0/8/12@10ms'),
               ('2020-01-01 00:00+00', '41/5/5/12')) AS v(epoch, layout);

-- by the server's own layout: decoding undoes encoding, in any layout
SELECT count(*) AS wrong
  FROM generate_series(timestamptz '2024-02-28 22:00:00+00',
                       '2024-03-01 02:00:00+00', '00:07:13.251') AS t,
       snowflake_encode(t, 0, 0, 0) AS id,
       snowflake_decode(id) AS d
 WHERE d.issued_at <> snowflake_timestamp(id)
    OR d.issued_at > t OR d.issued_at <= t - interval '1 s'
    OR (d.datacenter_id, d.worker_id, d.sequence) <> (0, 0, 0)
    OR (snowflake_datacenter_id(id), snowflake_worker_id(id), snowflake_sequence(id)) <> (0, 0, 0)
    OR id <> snowflake_min_id(t) OR snowflake_max_id(t) < id
    OR snowflake_format(id) <> to_char(d.issued_at, 'YYYY-MM-DD HH24:MI:SS.MS') || ', #0, @(0,0)';
-- both ends of the span are within it
SELECT snowflake_encode(first_instant, 0, 0, 0) AS first, snowflake_encode(last_instant, 0, 0, 0) = snowflake_min_id('infinity') AS last FROM snowflake_node();
-- just-in-time compilation that inlines functions, and does not optimize them
SET jit = on;
SET jit_above_cost = 0;
SET jit_inline_above_cost = 0;
SET jit_optimize_above_cost = -1;
SELECT count(*) FROM (SELECT snowflake_nextval() AS id FROM generate_series(1, 3)) AS new
 WHERE num_nulls(snowflake_timestamp(id), snowflake_datacenter_id(id), snowflake_worker_id(id), snowflake_sequence(id),
                 snowflake_decode(id), snowflake_format(id), snowflake_to_text(id, 62), snowflake_from_text(snowflake_to_text(id, 62), 62),
                 snowflake_timestamp(id, '2010-11-04 01:42:54.657+00', '41/5/5/12'),
                 snowflake_encode(snowflake_timestamp(id), 0, 0, 0),
                 snowflake_min_id(snowflake_timestamp(id)), snowflake_max_id(snowflake_timestamp(id)),
                 snowflake_min_id(snowflake_timestamp(id), '2010-11-04 01:42:54.657+00')) = 0;
RESET jit;
RESET jit_above_cost;
RESET jit_inline_above_cost;
RESET jit_optimize_above_cost;
-- the expected output must not depend on the server's layout
\set VERBOSITY terse
SELECT snowflake_decode(-1);
SELECT snowflake_timestamp(-1);
SELECT snowflake_datacenter_id(-1);
SELECT snowflake_worker_id(-1);
SELECT snowflake_sequence(-1);
SELECT snowflake_format(-1);
SELECT snowflake_encode('2024-01-01 00:00+00', -1, 0, 0);
SELECT snowflake_encode('2024-01-01 00:00+00', 0, -1, 0);
SELECT snowflake_encode('2024-01-01 00:00+00', 0, 0, -1);
SELECT snowflake_encode('-infinity', 0, 0, 0);
SELECT snowflake_encode('infinity', 0, 0, 0);
-- fields that are too large, and a tick too early and too late, by either layout
\set VERBOSITY sqlstate
SELECT snowflake_encode('2024-01-01 00:00+00', 32, 0, 0);
SELECT snowflake_encode('2024-01-01 00:00+00', 0, 32, 0);
SELECT snowflake_encode('2024-01-01 00:00+00', 0, 0, 4096);
SELECT snowflake_encode('2010-11-04 01:42:54.656999+00', 0, 0, 0);
SELECT snowflake_encode('2080-07-10 17:30:30.209+00', 0, 0, 0);
\set VERBOSITY default
