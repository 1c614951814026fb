// needs: knex pg
// Knex: a table made by its schema builder; ids come back as pg reads them.
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
  await knex.destroy();
}
main();
