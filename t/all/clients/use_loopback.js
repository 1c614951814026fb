// needs: loopback-connector-postgresql loopback-datasource-juggler pg
// LoopBack: a number finds another row, and deletes one; a string is exact.
const {DataSource} = require('loopback-datasource-juggler');
const {Client} = require('pg');
const {consecutive, is, stored} = require('./check');

const exact = {type: String, id: true, generated: true, useDefaultIdType: false, postgresql: {dataType: 'bigint'}};
const models = {
  number: {type: Number, id: true, generated: true},
  generated: {type: String, id: true, generated: true, postgresql: {dataType: 'bigint'}},
  exact,
};

// How many of the rows are found again by their ids.
async function foundAgain(model) {
  let found = 0;
  for (const {id, item} of await model.find()) {
    found += (await model.findById(id))?.item === item;
  }
  return found;
}

async function main() {
  const client = new Client();
  await client.connect();
  await client.query('CREATE TABLE notes (id bigint PRIMARY KEY DEFAULT snowflake_id(), order_id bigint REFERENCES orders, item text)');
  await client.query(`INSERT INTO orders ${consecutive(50)}`);
  await client.query('INSERT INTO notes (order_id, item) SELECT id, item FROM orders');
  await client.query('CREATE TABLE typed AS SELECT id::snowflake AS id, item FROM orders');
  const source = new DataSource({
    connector: require('loopback-connector-postgresql'), ssl: false,
    host: process.env.PGHOST, port: Number(process.env.PGPORT),
    user: process.env.PGUSER, database: process.env.PGDATABASE,
  });
  const model = (name, table, properties) => source.createModel(name, {...properties, item: String}, {postgresql: {table}});

  for (const table of ['orders', 'typed']) {
    for (const [name, id] of Object.entries(models)) {
      const found = await foundAgain(model(`${table}_${name}`, table, {id: {...id}}));
      if (name === 'exact') is(found, 50, `${table}, ${name}: every row is found again`);
      else is(found, 1, `${table}, ${name}: another row is found`);
    }
  }
  const [, second] = await stored('typed');   // item 1
  await model('Deleted', 'typed', {id: {...models.number}}).destroyById(second);
  is([(await stored('typed')).length, (await stored('typed')).includes(second)], [49, true],
    'type Number: destroyById() deletes another row');

  const Order = model('Order', 'orders', {id: {...exact}});
  const Note = model('Note', 'notes', {id: {...exact}, orderId: {type: String, postgresql: {columnName: 'order_id', dataType: 'bigint'}}});
  Order.hasMany(Note, {as: 'notes', foreignKey: 'orderId'});
  const orders = await Order.find({include: 'notes'});
  is(orders.filter((order) => order.toJSON().notes.length === 1 && order.toJSON().notes[0].item === order.item).length, 50,
    'a string: include finds the related rows');
  const created = await Order.createAll([{item: 'one'}, {item: 'two'}]);
  is(created.map(({id}) => id), (await stored('orders')).slice(-2), 'a string: createAll() returns the ids');
  await source.disconnect();
  await client.end();
}
main();
