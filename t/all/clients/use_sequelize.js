// needs: sequelize pg
// Sequelize: the model names the default; ids are strings.
const {DataTypes, Op, Sequelize, literal} = require('sequelize');
const {failure, is, stored} = require('./check');

async function main() {
  const sequelize = new Sequelize(process.env.PGDATABASE, process.env.PGUSER, '', {
    dialect: 'postgres', host: process.env.PGHOST, port: process.env.PGPORT,
    logging: false,
  });
  const Post = sequelize.define('post', {
    id: {type: DataTypes.BIGINT, primaryKey: true,
      defaultValue: literal('snowflake_id()')},
    item: DataTypes.TEXT,
  }, {timestamps: false});
  await sequelize.sync();
  const one = await Post.create({item: 'one'});
  const more = await Post.bulkCreate([{item: 'two'}, {item: 'three'}]);
  is([one, ...more].map((post) => post.id), await stored('posts'),
    'create() and bulkCreate() return the ids as strings');
  is((await Post.findByPk(one.id)).item, 'one', 'findByPk() finds the row');
  await sequelize.sync({alter: true});
  const [[column]] = await sequelize.query(
    "SELECT column_default FROM information_schema.columns WHERE table_name = 'posts' AND column_name = 'id'");
  is(column.column_default, 'snowflake_id()', 'sync({alter: true}) keeps the default');

  const Line = sequelize.define('line', {
    id: {type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true},
  }, {timestamps: false});
  await sequelize.sync();
  const [script] = await sequelize.query(
    "SELECT snowflake_convert.key('lines', 'id') AS line");
  await sequelize.query(script.map(({line}) => line).join('\n'));
  await sequelize.sync({alter: true});
  is([(await Line.create({})).id], await stored('lines'),
    'autoIncrement, after a conversion: sync({alter: true}) leaves the key');

  await sequelize.query("CREATE TABLE typed AS SELECT snowflake_nextval()::snowflake AS id, '{1,2}'::snowflake[] AS ids");
  const Typed = sequelize.define('typed', {
    id: {type: DataTypes.BIGINT, primaryKey: true}, ids: DataTypes.ARRAY(DataTypes.BIGINT),
  }, {timestamps: false, freezeTableName: true});
  const [{id, ids}] = await Typed.findAll();
  is([[id], ids], [await stored('typed'), '{1,2}'], 'snowflake: the key is a string, an array a text');
  const contains = () => Typed.findAll({where: {ids: {[Op.contains]: ['1']}}});
  is(await failure('contains', contains), 'operator does not exist: snowflake[] @> bigint[]',
    'snowflake: Op.contains is an error');
  await sequelize.sync({alter: true});
  const [types] = await sequelize.query(
    "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'typed'::regclass AND attnum > 0 ORDER BY attnum");
  is(types.map(({atttypid}) => atttypid), ['snowflake', 'bigint[]'], 'sync({alter: true}) leaves the key, and makes the array bigint[]');
  await sequelize.close();
}
main();
