// MikroORM: BigIntType('bigint') or ('string') is exact; ('number') rounds.
const {BigIntType, EntitySchema, MikroORM} = require('@mikro-orm/postgresql');
const {is, stored} = require('./check');

const entity = (mode) => new EntitySchema({
  name: 'Post', tableName: 'posts',
  properties: {
    id: {type: new BigIntType(mode), primary: true, autoincrement: false,
      defaultRaw: 'snowflake_nextval()'},
    item: {type: 'text'},
  },
});

const connect = (mode) => MikroORM.init({
  clientUrl: `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}`,
  dbName: process.env.PGDATABASE, entities: [entity(mode)],
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
  is(/default/.test(await orm.schema.getUpdateSchemaSQL()), false,
    'updateSchema() leaves the default');
  await orm.close();

  const numbers = await connect('number');
  const rows = await numbers.em.fork().find('Post', {});
  let right = 0;
  for (const {id, item} of rows) {
    right += (await numbers.em.fork().findOne('Post', {id}))?.item === item;
  }
  is(right < 25, true, "'number': another row is found, or none");
  await numbers.close();
}
main();
