// needs: typeorm pg
// TypeORM: synchronize leaves a key alone whose entity names the default.  With
// generated: 'increment' or 'identity' it drops a converted key's default, or the key
// itself.
const {DataSource, EntitySchema} = require('typeorm');
const {Client} = require('pg');
const {failure, is, stored} = require('./check');

const increment = {type: 'bigint', primary: true, generated: 'increment'};
const identity = {type: 'bigint', primary: true, generated: 'identity'};
const integer = {type: 'integer', primary: true, generated: 'increment'};
const snowflake = {type: 'bigint', primary: true, default: () => 'snowflake_id()'};

// Connects, and lets TypeORM change the tables as the entities say.
const synchronize = (schema, id, dropSchema = false) => new DataSource({
  type: 'postgres', host: process.env.PGHOST, port: process.env.PGPORT,
  username: process.env.PGUSER, database: process.env.PGDATABASE,
  schema, synchronize: true, dropSchema,
  entities: [
    new EntitySchema({name: 'post', columns: {id, item: {type: 'text'}}}),
    new EntitySchema({
      name: 'note', columns: {id},
      relations: {post: {type: 'many-to-one', target: 'post', joinColumn: true}},
    }),
  ],
}).initialize();

async function insert(source) {
  const post = await source.getRepository('post').save({item: 'one'});
  await source.getRepository('note').save({post});
  return post.id;
}

// Tables that TypeORM has made with sequences, widened by the statements of the
// script's comments, and converted by the script.
async function convertedTables(schema, id) {
  const source = await synchronize(schema, id);
  await insert(source);
  const script = async () => (await source.query(
    `SELECT snowflake_convert.schema('{${schema}}') AS line`)).map(({line}) => line);
  await source.query((await script()).filter((line) => line.startsWith('-- widen: '))
    .map((line) => line.replace('-- widen: ', '')).join('\n'));
  await source.query((await script()).join('\n'));
  await insert(source);
  const ids = await stored(`${schema}.post`);
  await source.destroy();
  return ids;
}

const notesWithPosts = async (source, schema) => (await source.query(
  `SELECT count("postId")::int FROM ${schema}.note`))[0].count;

async function main() {
  let source = await synchronize('public', snowflake);
  const made = [await insert(source), await insert(source)];
  is(made, await stored('post'), 'save() returns the ids as strings');
  const {identifiers} = await source.getRepository('post')
    .insert([{item: 'two'}, {item: 'three'}]);
  is([...made, ...identifiers.map(({id}) => id)], await stored('post'),
    'insert() of an array returns the ids');
  await source.query('CREATE SCHEMA dropped; CREATE SCHEMA dropped_identity; CREATE SCHEMA renumbered; CREATE SCHEMA kept');
  await source.destroy();

  let ids;
  for (const [schema, id] of [['dropped', increment], ['dropped_identity', identity]]) {
    ids = await convertedTables(schema, id);
    source = await synchronize(schema, id);
    is(await stored(`${schema}.post`), ids, `generated: '${id.generated}' of a bigint keeps the keys`);
    is(/null value in column "id"/.test(await failure('save()', () => insert(source))), true,
      `generated: '${id.generated}' of a bigint drops the default`);
    await source.destroy();
  }

  ids = await convertedTables('renumbered', integer);
  source = await synchronize('renumbered', integer);
  is(await stored('renumbered.post'), ['1', '2'],
    "generated: 'increment' of an integer renumbers the keys");
  is(await notesWithPosts(source, 'renumbered'), 0,
    "generated: 'increment' of an integer sets foreign keys to NULL");
  await source.destroy();

  ids = await convertedTables('kept', integer);
  source = await synchronize('kept', snowflake);
  await insert(source);
  is((await stored('kept.post')).slice(0, 2), ids,
    'default: snowflake_id() keeps the keys of a converted table');
  is(await notesWithPosts(source, 'kept'), 3,
    'default: snowflake_id() keeps the foreign keys');
  await source.destroy();

  source = await synchronize('kept', snowflake);
  await source.query('ALTER TABLE kept.post ALTER id TYPE snowflake');
  await source.destroy();
  is(await failure('the word', () => synchronize('kept', {...snowflake, type: 'snowflake'})),
    'Data type "snowflake" in "post.id" is not supported by "postgres" database.', 'snowflake: TypeORM refuses the word');
  ids = await stored('kept.post');
  is(/violates foreign key/.test(await failure('bigint', () => synchronize('kept', snowflake))), true,
    "snowflake: type: 'bigint' does not start if rows reference the key");
  const client = new Client();
  await client.connect();
  await client.query('DELETE FROM kept.note');
  await client.end();
  source = await synchronize('kept', snowflake);
  is((await stored('kept.post')).filter((id) => ids.includes(id)), [],
    "snowflake: type: 'bigint' drops the column, and the ids are lost");
  await source.destroy();

  source = await synchronize('public', snowflake, true);
  is([await insert(source)], await stored('post'), 'dropSchema leaves the extension');
  await source.destroy();
}
main();
