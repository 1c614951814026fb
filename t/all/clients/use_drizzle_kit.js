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

const psql = (query) => execFileSync('psql', ['-XAtqc', query], {encoding: 'utf8'}).trim();
psql('ALTER TABLE notes ALTER id TYPE snowflake; ALTER TABLE notes ADD ids snowflake[]');
kit('pull');
const typed = fs.readFileSync(path.join(directory, 'pulled/schema.ts'), 'utf8');
is(/id: unknown\("id"\)\.primaryKey\(\)\.notNull\(\),/.test(typed), true, 'snowflake: pull writes unknown("id"), without the default');
fs.writeFileSync(path.join(directory, 'schema.js'), `
const {bigint, customType, pgTable, text} = require('drizzle-orm/pg-core');
const {sql} = require('drizzle-orm');
const snowflake = customType({dataType: () => 'snowflake'});
exports.orders = pgTable('orders', {id: bigint('id', {mode: 'bigint'}).primaryKey().default(sql\`snowflake_id()\`), item: text('item')});
exports.notes = pgTable('notes', {id: snowflake('id').primaryKey().default(sql\`snowflake_id()\`), item: text('item'), ids: snowflake('ids').array()});
`);
is(kit('push').includes('No changes detected'), true, 'customType: push has no changes');
const {arrayContains} = require('drizzle-orm');
const {drizzle} = require('drizzle-orm/node-postgres');
const {notes} = require(path.join(directory, 'schema.js'));
const url = `postgresql://${process.env.PGUSER}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}`;
const use = async (db) => {
  const [row] = await db.insert(notes).values({item: 'one', ids: ['1', '2']}).returning();
  is([row.id, row.ids], [psql('SELECT id FROM notes'), ['1', '2']], 'customType: a string, and an array of strings');
  is((await db.select().from(notes).where(arrayContains(notes.ids, ['1']))).length, 1, 'customType: arrayContains()');
  await db.$client.end();
};
use(drizzle(url)).finally(() => fs.rmSync(directory, {recursive: true}));
