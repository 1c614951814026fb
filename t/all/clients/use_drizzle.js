// needs: drizzle-orm pg
// Drizzle: mode 'bigint' is exact; mode 'number' rounds.
const {drizzle} = require('drizzle-orm/node-postgres');
const {bigint, pgTable, text} = require('drizzle-orm/pg-core');
const {eq, sql} = require('drizzle-orm');
const {Pool} = require('pg');
const {is, stored} = require('./check');

const table = (mode) => pgTable('orders', {
  id: bigint('id', {mode}).primaryKey().default(sql`snowflake_id()`),
  item: text('item'),
});

async function main() {
  const pool = new Pool();
  const db = drizzle(pool);
  const orders = table('bigint');
  const items = Array.from({length: 50}, (_, i) => ({item: `item ${i}`}));
  const rows = await db.insert(orders).values(items).returning({id: orders.id});
  is(rows.map((row) => row.id), (await stored('orders')).map(BigInt),
    "mode 'bigint': the ids are BigInts, and exact");
  const [found] = await db.select().from(orders).where(eq(orders.id, rows[0].id));
  is(found.item, 'item 0', 'a BigInt finds its row');

  const rounded = table('number');
  let right = 0;
  for (const {id, item} of await db.select().from(rounded)) {
    const [row] = await db.select().from(rounded).where(eq(rounded.id, id));
    right += row?.item === item;
  }
  is(right < 25, true, "mode 'number': another row is found, or none");
  await pool.end();
}
main();
