// needs: pg drizzle-orm
// With a layout of 53 bits, ids are exact as JavaScript's numbers.
const pg = require('pg');
const {drizzle} = require('drizzle-orm/node-postgres');
const {bigint, pgTable} = require('drizzle-orm/pg-core');
const {is, stored} = require('./check');

async function main() {
  const client = new pg.Client();
  await client.connect();
  await client.query("INSERT INTO orders SELECT FROM generate_series(1, 20000)");
  const ids = (await stored('orders')).map(Number);
  is(ids.length === 20000 && ids.every(Number.isSafeInteger), true,
    '20000 ids are safe integers');

  pg.types.setTypeParser(pg.types.builtins.INT8, Number);
  const {rows} = await client.query('SELECT id FROM orders ORDER BY id');
  is(rows.map((row) => row.id), ids, 'parser Number: ids are exact');
  const json = await client.query('SELECT json_agg(id ORDER BY id) AS ids FROM orders');
  is(json.rows[0].ids, ids, 'json_agg(id): ids are exact');
  is(JSON.parse(JSON.stringify(ids)), ids, 'JSON keeps the ids');

  const orders = pgTable('orders', {id: bigint('id', {mode: 'number'})});
  const read = await drizzle(client).select().from(orders).orderBy(orders.id);
  is(read.map(({id}) => id), ids, "Drizzle's mode 'number': ids are exact");
  is((await stored('orders')).map(BigInt).map(String), ids.map(String),
    'as text, numbers are what the server has');
  await client.end();
}
main();
