// needs: massive pg
// MassiveJS: ids are strings, in batches and joins, too.
const massive = require('massive');
const {is, stored} = require('./check');

async function main() {
  const connect = () => massive({
    host: process.env.PGHOST, port: Number(process.env.PGPORT), user: process.env.PGUSER, database: process.env.PGDATABASE,
  });
  let db = await connect();
  await db.query(`CREATE TABLE notes (id bigint PRIMARY KEY DEFAULT snowflake_id(), order_id bigint REFERENCES orders);
    CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), ids snowflake[], numbers bigint[])`);
  await db.reload();
  const rows = await db.orders.insert([{item: 'one'}, {item: 'two'}]);
  const ids = await stored('orders');
  is(rows.map(({id}) => id), ids, 'insert() of an array returns the ids as strings');
  is((await db.orders.find({id: ids})).length, 2, 'find() by several ids');
  await db.notes.insert(ids.map((id) => ({order_id: id})));
  const joined = await db.orders.join({notes: {type: 'LEFT OUTER', on: {order_id: 'orders.id'}}}).find({'orders.id': ids[1]});
  is(joined.map(({id, notes}) => [id, notes.map((note) => note.order_id)]), [[ids[1], [ids[1]]]], 'join() finds the related rows');
  await db.orders.save({id: ids[1], item: 'saved'});
  is((await db.orders.findOne(ids[1])).item, 'saved', 'save() changes the row');

  const typed = await db.typed.insert({ids: '{1,2}', numbers: '{1,2}'});
  is([typed.id, typed.ids, typed.numbers], [(await stored('typed'))[0], '{1,2}', ['1', '2']],
    'snowflake: a string, and an array as text');
  is((await db.typed.findOne(typed.id)).id, typed.id, 'snowflake: the row is found');
  await db.instance.$pool.end();
}
main();
