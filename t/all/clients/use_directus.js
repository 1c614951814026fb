// needs: directus/package.json pg
// Directus: collections with bigint keys, converted; after a restart REST and
// GraphQL find the rows, and a changed field keeps the default.  Without isolated-vm,
// which only scripts in flows use, and which npm would have to compile.
const {execFileSync, spawn} = require('node:child_process');
const {mkdtempSync, rmSync, writeFileSync} = require('node:fs');
const {createServer} = require('node:net');
const {tmpdir} = require('node:os');
const {join} = require('node:path');
const {setTimeout: sleep} = require('node:timers/promises');
const {Client} = require('pg');
const {is, stored} = require('./check');

const cli = require.resolve('directus/package.json').replace('package.json', 'cli.js');
const directory = mkdtempSync(join(tmpdir(), 'directus'));
const login = {email: 'admin@example.com', password: 'secret'};
let origin;
let token;
let server;

const freePort = () => new Promise((resolve) => {
  const socket = createServer().listen(0, '127.0.0.1', () => {
    const {port} = socket.address();
    socket.close(() => resolve(port));
  });
});

async function environment() {
  const port = await freePort();
  origin = `http://127.0.0.1:${port}`;
  writeFileSync(`${directory}/stub.js`, `
    const modules = require('node:module');
    const load = modules._load;
    modules._load = (name, ...rest) => /isolated.vm/.test(name) ? {} : load(name, ...rest);`);
  return {...process.env, NODE_OPTIONS: `--require ${directory}/stub.js`,
    SECRET: 's'.repeat(32), HOST: '127.0.0.1', PORT: port,
    ADMIN_EMAIL: login.email, ADMIN_PASSWORD: login.password, DB_CLIENT: 'pg',
    DB_HOST: process.env.PGHOST, DB_PORT: process.env.PGPORT, DB_PASSWORD: 'none',
    DB_USER: process.env.PGUSER, DB_DATABASE: process.env.PGDATABASE,
    TELEMETRY: 'false', LOG_LEVEL: 'error'};
}

async function call(method, path, body) {
  const response = await fetch(origin + path, {method, body: JSON.stringify(body),
    headers: {'Content-Type': 'application/json', ...token && {Authorization: `Bearer ${token}`}}});
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${text}`);
  return text && JSON.parse(text).data;
}

async function start(env) {
  server = spawn(process.execPath, [cli, 'start'], {cwd: directory, env, stdio: 'ignore'});
  while (server.exitCode === null && !await fetch(`${origin}/server/ping`).catch(() => null)) await sleep(200);
  token = undefined;
  token = (await call('POST', '/auth/login', login)).access_token;
}

async function stop() {
  const ended = new Promise((resolve) => server.on('exit', resolve));
  server.kill('SIGKILL');
  await ended;
}

const field = (name, type, schema = {}) => ({field: name, type, schema, meta: {}});
const key = field('id', 'bigInteger', {is_primary_key: true, has_auto_increment: true});

async function main() {
  const env = await environment();
  execFileSync(process.execPath, [cli, 'bootstrap'], {cwd: directory, env, stdio: 'pipe'});
  await start(env);
  await call('POST', '/collections', {collection: 'post', schema: {}, meta: {}, fields: [key, field('item', 'string')]});
  await call('POST', '/collections', {collection: 'note', schema: {}, meta: {}, fields: [key, field('post', 'bigInteger')]});
  await call('POST', '/relations', {collection: 'note', field: 'post', related_collection: 'post', schema: {}, meta: {}});
  await call('POST', '/items/post', {item: 'old'});

  const client = new Client();
  await client.connect();
  const {rows} = await client.query("SELECT snowflake_convert.schema('{public}') AS line");
  const script = rows.map(({line}) => line);
  await client.query(script.join('\n'));
  await client.end();
  is([script.filter((line) => /^-- stays integer: public\.directus_/.test(line)).length > 5,
    script.some((line) => /^-- stays integer: public\.(post|note)/.test(line))], [true, false],
  "Directus's own tables stay integer, collections with bigint keys do not");

  await stop();
  await start(env);
  const {id} = await call('POST', '/items/post', {item: 'one'});
  const more = await call('POST', '/items/post', [{item: 'two'}, {item: 'three'}]);
  is(['1', id, ...more.map((post) => post.id)], await stored('post'), 'REST: a POST returns the ids');
  is(BigInt(id) > 2n ** 53n, true, 'they are snowflakes');
  await call('PATCH', `/items/post/${id}`, {item: 'changed'});
  is((await call('GET', `/items/post?filter[id][_eq]=${id}`))[0].item, 'changed', 'REST: PATCH and a filter find the row');
  const note = await call('POST', '/items/note', {post: {item: 'nested'}});
  is((await call('GET', `/items/note/${note.id}?fields=post.item`)).post.item, 'nested', 'REST: a nested row has its reference');

  const graphql = async (query) => call('POST', '/graphql', {query});
  const made = (await graphql('mutation { create_post_item(data: {item: "four"}) { id } }')).create_post_item;
  is((await stored('post')).includes(made.id), true, 'GraphQL: a mutation returns the id');
  is(await graphql(`{ post_by_id(id: "${id}") { item } note(filter: {post: {id: {_eq: "${note.post}"}}}) { id } }`),
    {post_by_id: {item: 'changed'}, note: [{id: note.id}]}, 'GraphQL: ids find their rows, through a relation too');

  await call('PATCH', '/fields/post/item', {type: 'text', schema: {data_type: 'text'}});
  await call('POST', '/fields/post', field('extra', 'string'));
  const last = await call('POST', '/items/post', {item: 'five', extra: 'new'});
  is((await stored('post')).at(-1), last.id, 'after fields are changed and added, ids go on');
  await stop();
}
main().finally(() => {
  server?.kill('SIGKILL');
  rmSync(directory, {recursive: true, force: true});
});
