// needs: pg
// doc/json.md: a server answers with JSON that the database makes, and a browser
// sends an id back.  With the type snowflake, all rows are found again.
const {createServer} = require('node:http');
const {Pool} = require('pg');
const {is} = require('./check');

const rows = 50;
const lists = {
  orders: 'SELECT json_agg(o) AS list FROM orders AS o',
  converted: 'SELECT json_agg(c) AS list FROM converted AS c',
  by_view: 'SELECT json_agg(v) AS list FROM by_view AS v',
};

// GET /orders is a list, GET /orders/id one item of it.
function serve(pool) {
  return createServer(async (request, response) => {
    const [, table, id] = request.url.split('/');
    response.setHeader('Content-Type', 'application/json');
    if (id) {
      const found = await pool.query(`SELECT item FROM ${table} WHERE id = $1`, [id]);
      response.end(JSON.stringify(found.rows));
    } else {
      response.end(JSON.stringify((await pool.query(lists[table])).rows[0].list));
    }
  });
}

// How many of the items of a list are found again by the ids of the list.
async function foundAgain(base, table) {
  const list = await (await fetch(`${base}/${table}`)).json();
  let found = 0;
  for (const {id, item} of list) {
    const again = await (await fetch(`${base}/${table}/${id}`)).json();
    found += again[0]?.item === item;
  }
  return found;
}

async function main() {
  const pool = new Pool();
  // Many ids of one tick have odd sequences.
  await pool.query(`INSERT INTO orders SELECT id, 'item ' || id FROM snowflake_nextvals(${rows}) AS id`);
  await pool.query('CREATE TABLE converted (LIKE orders INCLUDING ALL)');
  await pool.query('INSERT INTO converted SELECT * FROM orders');
  await pool.query('ALTER TABLE converted ALTER id TYPE snowflake');
  await pool.query('CREATE VIEW by_view AS SELECT id::snowflake AS id, item FROM orders');

  const server = serve(pool).listen(0, '127.0.0.1', async () => {
    const base = `http://127.0.0.1:${server.address().port}`;
    is((await foundAgain(base, 'orders')) < rows / 2, true, 'bigint: most rows are not found again');
    is(await foundAgain(base, 'converted'), rows, 'ALTER TABLE ... TYPE snowflake: every row is found again');
    is(await foundAgain(base, 'by_view'), rows, 'a view with id::snowflake: every row is found again');
    server.close();
    await pool.end();
  });
}
main();
