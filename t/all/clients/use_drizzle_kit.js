// needs: drizzle-kit drizzle-orm pg
// drizzle-kit: push has nothing to change; pull writes mode "number", which rounds.
const {execFileSync} = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const {is} = require('./check');

const modules = process.env.NODE_PATH.split(path.delimiter)[0];
const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'drizzle'));
fs.symlinkSync(modules, path.join(directory, 'node_modules'));
fs.writeFileSync(path.join(directory, 'drizzle.config.js'), `module.exports = {
  dialect: 'postgresql', schema: './schema.js', out: './pulled',
  dbCredentials: {url: 'postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}'},
};`);
fs.writeFileSync(path.join(directory, 'schema.js'), `
const {bigint, pgTable, text} = require('drizzle-orm/pg-core');
const {sql} = require('drizzle-orm');
const id = bigint('id', {mode: 'bigint'}).primaryKey().default(sql\`snowflake_id()\`);
exports.orders = pgTable('orders', {id, item: text('item')});
exports.notes = pgTable('notes', {id, item: text('item')});
`);
const kit = (command) => execFileSync('node', [path.join(modules, 'drizzle-kit/bin.cjs'), command],
  {cwd: directory, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], timeout: 60000});

is(kit('push').includes('Changes applied'), true, 'push makes the table');
is(kit('push').includes('No changes detected'), true, 'a second push has no changes');
kit('pull');
const pulled = fs.readFileSync(path.join(directory, 'pulled/schema.ts'), 'utf8');
is(pulled.match(/mode: "number"/g)?.length, 2, "pull writes mode 'number' for each id");
is(pulled.match(/default\(sql`snowflake_id\(\)`\)/g)?.length, 2, 'pull writes the defaults');
fs.rmSync(directory, {recursive: true});
