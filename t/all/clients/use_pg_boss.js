// needs: pg-boss pg
// pg-boss: a job's data is JSON, which takes ids as strings.
const PgBoss = require('pg-boss');
const {Client} = require('pg');
const {is, failure} = require('./check');

async function main() {
  const boss = new PgBoss(`postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}`);
  boss.on('error', console.error);
  await boss.start();
  await boss.createQueue('q');
  const client = new Client();
  await client.connect();
  const {rows: [{id}]} = await client.query("INSERT INTO orders (item) VALUES ('one') RETURNING id");
  await boss.send('q', {id});
  const [job] = await boss.fetch('q');
  is(job.data.id, id, 'a string comes back');
  is(await failure('send()', () => boss.send('q', {id: BigInt(id)})),
    'Do not know how to serialize a BigInt', 'a BigInt is refused');
  await client.end();
  await boss.stop({graceful: false});
}
main();
