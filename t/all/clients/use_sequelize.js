// needs: sequelize pg
// Sequelize: the model names the default; ids are strings.
const {DataTypes, Sequelize, literal} = require('sequelize');
const {is, stored} = require('./check');

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
  await sequelize.close();
}
main();
