// needs: postgraphile pg
// PostGraphile: an id is a BigInt of GraphQL, which is a string.
const {createPostGraphileSchema, withPostGraphileContext} = require('postgraphile');
const {graphql} = require('graphql');
const {Pool} = require('pg');
const {is, stored} = require('./check');

async function main() {
  const pgPool = new Pool();
  const schema = await createPostGraphileSchema(pgPool, 'public');
  const run = (source, variableValues) => withPostGraphileContext({pgPool},
    (contextValue) => graphql({schema, source, contextValue, variableValues}));
  const created = await run('mutation { createOrder(input: {order: {item: "one"}}) { order { id item } } }');
  const [id] = await stored('orders');
  is(created.data.createOrder.order.id, id, 'a mutation returns the id as a string');
  const found = await run('query($id: BigInt!) { orderById(id: $id) { item } }', {id});
  is(found.data.orderById.item, 'one', 'a string finds its row');
  const number = await run(`{ orderById(id: ${id}) { item } }`);
  is(/Can only parse string values/.test(number.errors?.[0].message), true, 'a number is refused');
  await pgPool.end();
}
main();
