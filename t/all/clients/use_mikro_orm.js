// needs: @mikro-orm/postgresql pg
// MikroORM: BigIntType('bigint') or ('string') is exact; ('number') rounds.  A schema
// update changes a key whose default has "nextval" in its text, each time.
const {BigIntType, EntitySchema, MikroORM} = require('@mikro-orm/postgresql');
const {is, stored} = require('./check');

const entity = (type, defaultRaw) => new EntitySchema({
  name: 'Post', tableName: 'posts',
  properties: {
    id: {...type, primary: true, autoincrement: false,
      defaultRaw},
    item: {type: 'text'},
  },
});

const connect = (mode, defaultRaw) => connectWith({type: new BigIntType(mode)}, defaultRaw);
const connectWith = (type, defaultRaw = 'snowflake_id()') => MikroORM.init({
  clientUrl: `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}`,
  dbName: process.env.PGDATABASE, entities: [entity(type, defaultRaw)],
  discovery: {warnWhenNoEntities: false},
});

async function main() {
  const orm = await connect('string');
  await orm.schema.createSchema();
  const em = orm.em.fork();
  const posts = Array.from({length: 50}, (_, i) => em.create('Post', {item: `item ${i}`}));
  await em.persistAndFlush(posts);
  is(posts.map((post) => post.id), await stored('posts'),
    "'string': flush() returns the ids as strings");
  is(await orm.schema.getUpdateSchemaSQL({safe: true}), '',
    'snowflake_id(): a schema update has no statement');
  await orm.close();

  const numbers = await connect('number');
  const rows = await numbers.em.fork().find('Post', {});
  let right = 0;
  for (const {id, item} of rows) {
    right += (await numbers.em.fork().findOne('Post', {id}))?.item === item;
  }
  is(right < 25, true, "'number': another row is found, or none");
  await numbers.close();

  const other = await connect('string', 'snowflake_nextval()');
  await other.schema.updateSchema({safe: true});
  is(/alter column "id" type/.test(await other.schema.getUpdateSchemaSQL({safe: true})), true,
    'snowflake_nextval(): each schema update has a statement');
  await other.schema.execute('ALTER TABLE posts ALTER id TYPE snowflake, ALTER id SET DEFAULT snowflake_id()');
  await other.close();

  const again = await connect('string');
  is(/alter column "id" type bigint/.test(await again.schema.getUpdateSchemaSQL({safe: true})), true,
    'snowflake: a schema update makes the key a bigint again');
  await again.close();
  const typed = await connectWith({type: 'string', columnType: 'snowflake'});
  is(await typed.schema.getUpdateSchemaSQL({safe: true}), '',
    "columnType: 'snowflake': a schema update has no statement");
  const post = typed.em.fork().create('Post', {item: 'new'});
  await typed.em.fork().persistAndFlush(post);
  is((await typed.em.fork().findOne('Post', {id: post.id})).item, 'new', "columnType: 'snowflake': the row is found");
  await typed.close();
}
main();
