// needs: graphile-worker pg
// graphile-worker: an id in a payload that SQL makes as JSON is rounded, unless text.
const {Logger, runMigrations, runOnce} = require('graphile-worker');
const {Pool} = require('pg');
const {is, stored} = require('./check');

async function main() {
  const pgPool = new Pool();
  pgPool.on('error', console.error);
  pgPool.on('connect', (client) => client.on('error', console.error));
  const seen = {number: [], text: []};
  await runMigrations({pgPool});
  await pgPool.query("INSERT INTO orders (item) SELECT n FROM generate_series(1, 49) AS n");
  await pgPool.query("SELECT graphile_worker.add_job('number', json_build_object('id', id)) FROM orders");
  await pgPool.query("SELECT graphile_worker.add_job('text', json_build_object('id', id::text)) FROM orders");
  const task = (name) => ({id}) => { seen[name].push(String(id)); };
  await runOnce({pgPool, noHandleSignals: true, logger: new Logger(() => () => {}),
    taskList: {number: task('number'), text: task('text')}});
  const ids = await stored('orders');
  is(seen.text.sort(), ids, 'json_build_object() of id::text: a task gets the ids');
  is(new Set(seen.number).size < 25, true, 'of id: a task gets rounded ids');
  await pgPool.end();
}
main();
