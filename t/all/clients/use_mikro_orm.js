// needs: @mikro-orm/postgresql pg
// MikroORM: BigIntType('bigint') or ('string') is exact; ('number') rounds.  A schema
// update changes a key whose default has "nextval" in its text, each time.
const {BigIntType, EntitySchema, MikroORM} = require('@mikro-orm/postgresql');
const {is, stored} = require('./check');

const entity = (mode, defaultRaw) => new EntitySchema({
  name: 'Post', tableName: 'posts',
  properties: {
    id: {type: new BigIntType(mode), primary: true, autoincrement: false,
      defaultRaw},
    item: {type: 'text'},
  },
});

const connect = (mode, defaultRaw = 'snowflake_id()') => MikroORM.init({
  clientUrl: `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}`,
  dbName: process.env.PGDATABASE, entities: [entity(mode, defaultRaw)],
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
  await other.close();
}
main();
