// needs: knex pg
// Knex: a table made by its schema builder; ids come back as pg reads them.
const {types} = require('pg');
const {is, stored} = require('./check');

async function main() {
  const knex = require('knex')({client: 'pg', connection: {}});
  await knex.schema.createTable('posts', (table) => {
    table.bigInteger('id').primary().defaultTo(knex.raw('snowflake_id()'));
    table.text('item');
  });
  const one = await knex('posts').insert({item: 'one'}).returning('id');
  const more = await knex('posts').insert([{item: 'two'}, {item: 'three'}], ['id']);
  const many = await knex.batchInsert('posts',
    Array.from({length: 50}, (_, i) => ({item: `item ${i}`})), 20).returning('id');
  is([...one, ...more, ...many].map((row) => row.id), await stored('posts'),
    'insert() and batchInsert() return the ids as strings');

  const arrays = () => knex('posts').first({list: knex.raw('array_agg(id ORDER BY id)')});
  const ids = await stored('posts');
  is((await arrays()).list, ids, 'array_agg() is an array of strings');
  await knex.raw('ALTER TABLE posts ALTER id TYPE snowflake');
  is((await knex('posts').whereIn('id', ids).select('id')).length, ids.length, 'snowflake: whereIn() finds the rows');
  is((await arrays()).list, `{${ids}}`, 'snowflake: array_agg() is a text');
  const {rows: [{oid}]} = await knex.raw("SELECT 'snowflake[]'::regtype::oid::int AS oid");
  types.setTypeParser(oid, types.getTypeParser(1016));
  is((await arrays()).list, ids, 'registered: array_agg() is an array of strings');
  await knex.destroy();
}
main();
