// needs: objection knex pg
// Objection: ids come back as pg reads them, in graphs, too.
const {Model} = require('objection');
const {is, stored} = require('./check');

class Note extends Model {
  static tableName = 'notes';
}
class Post extends Model {
  static tableName = 'posts';
  static relationMappings = {
    notes: {relation: Model.HasManyRelation, modelClass: Note, join: {from: 'posts.id', to: 'notes.post_id'}},
  };
}

async function main() {
  const knex = require('knex')({client: 'pg', connection: {}});
  Model.knex(knex);
  for (const name of ['posts', 'notes']) {
    await knex.schema.createTable(name, (table) => {
      table.bigInteger('id').primary().defaultTo(knex.raw('snowflake_id()'));
      table.bigInteger('post_id');
      table.text('item');
    });
  }
  const posts = await Post.query().insertGraph(
    [{item: 'one', notes: [{item: 'a'}, {item: 'b'}]}, {item: 'two', notes: [{item: 'c'}]}]);
  is(posts.map(({id}) => id), await stored('posts'), 'insertGraph() returns the ids as strings');
  const found = await Post.query().withGraphFetched('notes').orderBy('id');
  is(found.map(({notes}) => notes.map(({item}) => item).sort()), [['a', 'b'], ['c']],
    'withGraphFetched() finds the rows');

  await knex.raw('ALTER TABLE posts ALTER id TYPE snowflake');
  const graph = () => Post.query().withGraphFetched('notes').orderBy('id');
  is((await graph()).map(({notes}) => notes.length), [2, 1], 'snowflake: withGraphFetched() finds the rows');
  is((await Post.query().select(Model.raw('array_agg(id ORDER BY id) AS ids')).first()).ids,
    `{${await stored('posts')}}`, 'snowflake: array_agg() is a text');
  await knex.destroy();
}
main();
