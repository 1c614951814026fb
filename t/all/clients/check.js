// What the programs of this directory share: node has no TAP of its own that
// prints one line a check.
const {isDeepStrictEqual, inspect} = require('node:util');

const show = (value) => inspect(value, {maxArrayLength: 5});

exports.is = (got, wanted, what) => {
  const ok = isDeepStrictEqual(got, wanted);
  console.log(`${ok ? 'ok' : 'not ok'} - ${what}`);
  if (!ok) console.log(`# got ${show(got)}, wanted ${show(wanted)}`);
};

// The error's message; fails if there is none.
exports.failure = async (what, run) => {
  try {
    await run();
  } catch (error) {
    return error.message;
  }
  console.log(`not ok - ${what}: no error`);
};

// A query of at most 128 consecutive ids of 2020-01-01.  One double stands for all of
// them, and JavaScript writes it as 1212161512139915300, the id of item 36.
exports.consecutive = (count) =>
  `SELECT 1212161512139915264 + n AS id, 'item ' || n AS item FROM generate_series(0, ${count} - 1) AS n`;

// The stored ids as text, in their order, by a client that reads them so.
exports.stored = async (table) => {
  const client = new (require('pg').Client)({types: {getTypeParser: () => String}});
  await client.connect();
  const {rows} = await client.query(`SELECT id::text FROM ${table} ORDER BY id`);
  await client.end();
  return rows.map((row) => row.id);
};
