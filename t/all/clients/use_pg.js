// needs: pg
// node-postgres: ids are strings, unless a parser makes them numbers.
const pg = require('pg');
const {failure, is, stored} = require('./check');

const all = 'SELECT id, item FROM orders ORDER BY id';
const insert = 'INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id';
const items = Array.from({length: 50}, (_, i) => `item ${i}`);

// How many of the rows that have been read are found again by their ids.
async function foundAgain(client, rows) {
  let found = 0;
  for (const {id, item} of rows) {
    const again = await client.query('SELECT item FROM orders WHERE id = $1', [id]);
    found += again.rows[0]?.item === item;
  }
  return found;
}

// Arrays of snowflakes become arrays of strings, as those of bigint are.
async function register(pool) {
  const {rows: [{oid}]} = await pool.query("SELECT 'snowflake[]'::regtype::oid::int AS oid");
  pg.types.setTypeParser(oid, pg.types.getTypeParser(1016));   // 1016 is bigint[]
}

// How many ids of 20 inserts, each in a tick of its own, a number does not hold.
async function rounded(client) {
  let count = 0;
  for (let i = 0; i < 20; i++) {
    const {rows: [{id}]} = await client.query('SELECT snowflake_nextval() AS id FROM pg_sleep(0.003)');
    count += String(BigInt(Number(id))) !== id;
  }
  return count;
}

async function main() {
  const client = new pg.Client();
  await client.connect();

  is(await rounded(client), 0, 'ids of a quiet server look exact as numbers');
  const {rows: run} = await client.query('SELECT id FROM snowflake_nextvals(100) AS id');
  is(run.filter(({id}) => String(BigInt(Number(id))) !== id).length > 50, true,
    '100 ids at once show that they are rounded');

  const strings = (await client.query(insert, [items])).rows.map((row) => row.id);
  is(strings, await stored('orders'), 'ids are strings, and exact');
  is(await foundAgain(client, (await client.query(all)).rows), 50, 'each string finds its row');

  const array = await client.query('SELECT json_agg(id ORDER BY id) AS ids FROM orders');
  is(new Set(array.rows[0].ids).size < 25, true,
    'json_agg(id): parsed as JSON, ids are rounded to a few numbers');
  const texts = await client.query(
    'SELECT json_agg(id::text ORDER BY id) AS ids FROM orders');
  is(texts.rows[0].ids, strings, 'json_agg(id::text): ids are exact');

  pg.types.setTypeParser(pg.types.builtins.INT8, Number);
  is(await foundAgain(client, (await client.query(all)).rows) < 25, true,
    'parser Number: another row is found, or none');

  pg.types.setTypeParser(pg.types.builtins.INT8, BigInt);
  const {rows} = await client.query(all);
  is(rows.map((row) => row.id), strings.map(BigInt), 'parser BigInt: ids are exact');
  is(await foundAgain(client, rows), 50, 'each BigInt finds its row');
  is(await failure('JSON.stringify', () => JSON.stringify({id: rows[0].id})),
    'Do not know how to serialize a BigInt', 'JSON.stringify() refuses a BigInt');
  BigInt.prototype.toJSON = function () { return this.toString(); };
  is(JSON.stringify({id: rows[0].id}), `{"id":"${strings[0]}"}`,
    'BigInt.prototype.toJSON: JSON.stringify() writes a string');

  await client.query("CREATE TABLE typed AS SELECT id::snowflake AS id, '{1,2}'::snowflake[] AS ids FROM orders LIMIT 1");
  const typed = `SELECT id, ids, array_agg(id) AS agg, count(*), id = '${strings[0]}' AS same FROM typed GROUP BY 1, 2`;
  const [before] = (await client.query(typed)).rows;
  is(before, {id: strings[0], ids: '{1,2}', agg: `{${strings[0]}}`, count: 1n, same: true},
    'snowflake: a string, also with the parser BigInt, and arrays as text');
  is(before.id === BigInt(strings[0]), false, 'snowflake: === of the string and a BigInt is false');
  await register(client);
  const [{id, ids, agg}] = (await client.query(typed)).rows;
  is([id, ids, agg], [strings[0], ['1', '2'], [strings[0]]], 'registered: arrays of strings');
  await client.end();
}
main();
