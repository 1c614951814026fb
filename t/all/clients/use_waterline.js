// needs: waterline sails-postgresql pg
// Waterline, the ORM of Sails: a number finds another row; a string is exact.
const {Client} = require('pg');
const Waterline = require('waterline');
const {consecutive, is, stored} = require('./check');

const number = {type: 'number', autoMigrations: {autoIncrement: true}};
const string = {type: 'string', autoMigrations: {columnType: 'bigint', autoIncrement: true}};

function initialize(id) {
  const waterline = new Waterline();
  const model = (identity, attributes) => waterline.registerModel(Waterline.Collection.extend({
    identity, tableName: identity, datastore: 'default', primaryKey: 'id',
    attributes: {id, item: {type: 'string', allowNull: true}, ...attributes},
  }));
  model('orders', {notes: {collection: 'notes', via: 'order'}});
  model('notes', {order: {model: 'orders'}});
  model('typed', {});
  const url = `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}`;
  return new Promise((resolve, reject) => waterline.initialize({
    adapters: {postgresql: require('sails-postgresql')},
    datastores: {default: {adapter: 'postgresql', url}},
  }, (error, {collections} = {}) => error ? reject(error) : resolve({
    ...collections, teardown: () => new Promise((done) => waterline.teardown(done)),
  })));
}

// How many of the rows are found again by their ids.
async function foundAgain(model) {
  let found = 0;
  for (const {id, item} of await model.find()) {
    found += (await model.findOne({id}))?.item === item;
  }
  return found;
}

async function main() {
  const client = new Client();
  await client.connect();
  await client.query('CREATE TABLE notes (id bigint PRIMARY KEY DEFAULT snowflake_id(), "order" bigint REFERENCES orders, item text)');
  await client.query(`INSERT INTO orders ${consecutive(50)}`);
  await client.query('INSERT INTO notes ("order", item) SELECT id, item FROM orders');
  await client.query('CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), item text)');
  await client.query('INSERT INTO typed SELECT * FROM orders');
  await client.end();

  let models = await initialize(number);
  for (const name of ['orders', 'typed']) {
    is(await foundAgain(models[name]), 1, `${name}, number: another row is found`);
  }
  await models.teardown();
  models = await initialize(string);
  for (const name of ['orders', 'typed']) {
    is(await foundAgain(models[name]), 50, `${name}, string: every row is found again`);
  }
  const populated = await models.orders.find().populate('notes');
  is(populated.filter(({item, notes}) => notes.length === 1 && notes[0].item === item).length, 50,
    'string: populate() finds the related rows');
  const created = await models.orders.createEach([{item: 'one'}, {item: 'two'}]).fetch();
  is(created.map(({id}) => id), (await stored('orders')).slice(-2), 'string: createEach() returns the ids');
  await models.teardown();
}
main();
