// needs: pg
// doc/json.md: a server answers with JSON that the database makes, and a browser
// sends an id back.  With the type snowflake, all rows are found again.  A list in the
// browser is sorted by lengths first.
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

// The strings of ids of a layout, one a day from a day after the epoch on.
const daily = (first, count, bits = 22n) =>
  Array.from({length: count}, (_, day) => String(BigInt(first + day) * 86400000n << bits));
const grows = (ids) => ids.flatMap((id, n) => n && id.length > ids[n - 1].length ? [n] : []);

function checkSorting() {
  const ids = daily(1, 3000);
  const sorted = [...ids].reverse();
  sorted.sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
  is(sorted, ids, 'lengths first: strings are in the order of ids');
  is([...ids].sort().indexOf(ids.at(-1)) === ids.length - 1, false, 'as text they are not');
  is(grows(ids), [2, 27, 275, 2759], 'the number of digits grows after 2, 27, 275 and 2,759 days');
  is(grows(daily(1, 25000, 12n)).filter((day) => day > 1), [2, 28, 282, 2825],
    'of ids of 53 bits, after 2, 28, 282 and 2,825 days');
  const since = (Date.parse('2018-05-27') - Date.parse('2010-11-04T01:42:54.657Z')) / 86400000;
  const until = (Date.parse('2080-07-10') - Date.parse('2010-11-04T01:42:54.657Z')) / 86400000;
  const now = daily(Math.floor(since), Math.floor(until - since));
  is([...now].sort(), now, 'by the default epoch, ids since 2018-05-26 sort as text');
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
  checkSorting();
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
