// needs: zapatos/db pg
// zapatos lets PostgreSQL make the JSON of each row: ids are rounded, unless its parser
// is set, or they are snowflakes.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const pg = require('pg');
const db = require('zapatos/db');
const {generate} = require('zapatos/generate');
const {is, stored} = require('./check');

async function main() {
  const pool = new pg.Pool();
  await pool.query("INSERT INTO orders SELECT id, 'item ' || id FROM snowflake_nextvals(50) AS id");
  await pool.query('CREATE VIEW api_orders AS SELECT id::snowflake AS id, item FROM orders');
  await pool.query("CREATE TABLE typed AS SELECT id::snowflake AS id, '{1,2}'::snowflake[] AS ids FROM orders");
  await pool.query('CREATE TABLE notes (id bigint PRIMARY KEY DEFAULT snowflake_id(), order_id bigint REFERENCES orders)');
  await pool.query('INSERT INTO notes (order_id) SELECT id FROM orders');
  const ids = await stored('orders');
  const read = async (table) => (await db.select(table, db.all, {order: {by: 'id', direction: 'ASC'}}).run(pool)).map(({id}) => id);
  is(new Set(await read('orders')).size < 25, true, 'bigint: ids are rounded to a few numbers');
  is(await read('api_orders'), ids, 'a view with id::snowflake: strings, and exact');
  is(await read('typed'), ids, 'a column of the type: strings, and exact');

  db.enableCustomJSONParsingForLargeNumbers(pg);
  is(await read('orders'), ids, 'enableCustomJSONParsingForLargeNumbers(): strings, and exact');
  const nested = await db.selectExactlyOne('orders', {id: ids[1]},
    {lateral: {notes: db.select('notes', {order_id: db.parent('id')})}}).run(pool);
  is([nested.id, nested.notes.map((note) => note.order_id)], [ids[1], [ids[1]]], 'lateral: related rows are exact');
  const inserted = await db.insert('orders', [{item: 'one'}, {item: 'two'}]).run(pool);
  is(inserted.map(({id}) => id), (await stored('orders')).slice(-2), 'insert() of an array returns the ids');

  const outDir = fs.mkdtempSync(path.join(os.tmpdir(), 'zapatos'));
  const url = `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}`;
  await generate({db: {connectionString: url}, outDir, schemas: {public: {include: ['orders', 'typed'], exclude: []}}, warningListener: false});
  const custom = fs.readFileSync(path.join(outDir, 'zapatos/custom/PgSnowflake.d.ts'), 'utf8');
  is(custom.includes('export type PgSnowflake = any;'), true, 'the generated type of a snowflake is any');
  fs.rmSync(outDir, {recursive: true});
  await pool.end();
}
main();
