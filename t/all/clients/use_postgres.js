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

  const typed = postgres({onnotice() {}});
  await typed`CREATE TABLE typed AS SELECT id::snowflake AS id, '{1,2}'::snowflake[] AS ids FROM orders LIMIT 1`;
  const [{id, ids}] = await typed`SELECT id, ids FROM typed`;
  is([id, ids], [(await stored('orders'))[0], ['1', '2']], 'snowflake: a string, and an array of strings');
  is((await typed`SELECT FROM typed WHERE id = ${id} AND ids @> ${['1']} AND id = ANY(${[id]})`).count, 1,
    'snowflake: strings, and arrays of strings, find the row');
  const [{oid}] = await typed`SELECT 'snowflake'::regtype::oid::int AS oid`;
  await typed.end();

  const options = {};
  options.types = {bigint: postgres.BigInt, snowflake: {...postgres.BigInt, to: oid, from: [oid]}};
  const registered = postgres(options);
  const [row] = await registered`SELECT id, ids FROM typed`;
  is([row.id, row.ids], [BigInt(id), [1n, 2n]], 'registered: BigInts');
  is((await registered`SELECT FROM typed WHERE id = ${row.id}`).count, 1, 'registered: a BigInt finds its row');
  await registered.end();
}
main();
