// needs: postgraphile pg
// GraphQL: an id is a String or an ID; Int and Float are not exact.  PostGraphile: an id
// is a string, but the cursors of a bigint key are rounded.
const {createPostGraphileSchema, withPostGraphileContext} = require('postgraphile');
const {GraphQLFloat, GraphQLID, GraphQLInt, GraphQLObjectType, GraphQLSchema, graphql} = require('graphql');
const {Pool} = require('pg');
const {consecutive, is, stored} = require('./check');

// What a client gets for an id if the schema declares this type.
async function declared(type, id) {
  const schema = new GraphQLSchema({query: new GraphQLObjectType({name: 'Query', fields: {id: {type, resolve: () => id}}})});
  const {data, errors} = await graphql({schema, source: '{ id }'});
  return [JSON.parse(JSON.stringify(data)).id, errors?.length ?? 0];
}

// How many rows, and how many different ones, the pages of a list have.
async function pages(run, list) {
  const ids = [];
  let after = null;
  for (let page = 0; page < 15; page++) {
    const {data} = await run(`query($after: Cursor) { list: ${list}(first: 10, after: $after)
      { nodes { id } pageInfo { hasNextPage endCursor } } }`, {after});
    ids.push(...data.list.nodes.map(({id}) => id));
    if (!data.list.pageInfo.hasNextPage) break;
    after = data.list.pageInfo.endCursor;
  }
  return [ids.length, new Set(ids).size];
}

async function main() {
  const pgPool = new Pool();
  await pgPool.query('CREATE VIEW api_orders WITH (security_invoker = true) AS SELECT id::snowflake AS id, item FROM orders');
  await pgPool.query("COMMENT ON VIEW api_orders IS '@primaryKey id'");
  await pgPool.query('CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), item text)');
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

  await pgPool.query('DELETE FROM orders');
  await pgPool.query(`INSERT INTO orders ${consecutive(120)}`);
  await pgPool.query('INSERT INTO typed SELECT * FROM orders');
  const [rows, different] = await pages(run, 'allOrders');
  is([rows, different], [150, 20], 'bigint: pages repeat');
  is(await pages(run, 'allApiOrders'), [120, 120], 'a view with id::snowflake: the pages have every row');
  is(await pages(run, 'allTypeds'), [120, 120], 'a column of the type: the pages have every row');
  const last = (await stored('orders'))[119];
  const byView = await run('query($id: BigFloat!) { apiOrderById(id: $id) { id item } }', {id: last});
  is(byView.data.apiOrderById, Object.assign(Object.create(null), {id: last, item: 'item 119'}), 'a view: a string finds its row');
  await pgPool.end();

  is(await declared(GraphQLID, last), [last, 0], 'ID: a string, and exact');
  is(await declared(GraphQLInt, last), [null, 1], 'Int: null, and an error');
  is(String((await declared(GraphQLFloat, last))[0]) === last, false, 'Float: rounded');
}
main();
