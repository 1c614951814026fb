// needs: kysely pg
// Kysely: a table made by its schema builder; ids come back as pg reads them.
const {Kysely, PostgresDialect, sql} = require('kysely');
const {jsonArrayFrom} = require('kysely/helpers/postgres');
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
  const {nested} = await db.selectNoFrom((select) =>
    jsonArrayFrom(select.selectFrom('posts').select('id')).as('nested'))
    .executeTakeFirst();
  is(nested.filter((row) => Number.isSafeInteger(row.id)).length, 0,
    'jsonArrayFrom(): ids are rounded numbers');
  const typed = () => jsonArrayFrom(db.selectFrom('posts').select(sql`id::snowflake`.as('id')).orderBy('id')).as('nested');
  is((await db.selectNoFrom(typed).executeTakeFirst()).nested.map((row) => row.id), await stored('posts'),
    'jsonArrayFrom() of id::snowflake: the ids are strings, and exact');
  await db.destroy();
}
main();
