// needs: postgres pg
// Postgres.js: ids are strings; with its type bigint they are BigInts.
const postgres = require('postgres');
const {is, stored} = require('./check');

async function main() {
  const sql = postgres({onnotice() {}});
  const items = [{item: 'one'}, {item: 'two'}, {item: 'three'}];
  const rows = await sql`INSERT INTO orders ${sql(items)} RETURNING id`;
  is(rows.map((row) => row.id), await stored('orders'),
    'the ids are strings, and exact');
  await sql.end();

  const big = postgres({types: {bigint: postgres.BigInt}});
  const bigints = await big`SELECT id FROM orders ORDER BY id`;
  is(bigints.map((row) => row.id), (await stored('orders')).map(BigInt),
    'types: {bigint: postgres.BigInt}: the ids are BigInts');
  is((await big`SELECT FROM orders WHERE id = ${bigints[0].id}`).count, 1,
    'a BigInt finds its row');
  await big.end();
}
main();
