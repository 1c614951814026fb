// needs: kysely pg
// Kysely: a table made by its schema builder; ids come back as pg reads them.
const {Kysely, PostgresDialect, sql} = require('kysely');
const {Pool} = require('pg');
const {is, stored} = require('./check');

async function main() {
  const db = new Kysely({dialect: new PostgresDialect({pool: new Pool()})});
  await db.schema.createTable('posts')
    .addColumn('id', 'bigint', (column) =>
      column.primaryKey().defaultTo(sql`snowflake_id()`))
    .addColumn('item', 'text').execute();
  const rows = await db.insertInto('posts')
    .values([{item: 'one'}, {item: 'two'}, {item: 'three'}])
    .returning('id').execute();
  is(rows.map((row) => row.id), await stored('posts'),
    'returning(): the ids are strings, and exact');
  await db.destroy();
}
main();
