// needs: prisma/package.json @prisma/adapter-pg pg
// Prisma: the schema names the default; ids are BigInts.  Generates the client
// into a directory of its own.
const {execFileSync} = require('node:child_process');
const {mkdtempSync, rmSync, symlinkSync, writeFileSync} = require('node:fs');
const {tmpdir} = require('node:os');
const {dirname, join} = require('node:path');
const {failure, is, stored} = require('./check');

const directory = mkdtempSync(join(tmpdir(), 'prisma'));
const schema = `
generator client {
  provider = "prisma-client-js"
  output   = "${directory}/client"
}
datasource db {
  provider = "postgresql"
}
model Order {
  id   BigInt @id @default(dbgenerated("snowflake_id()"))
  item String?
  @@map("orders")
}
model Typed {
  id  BigInt @id
  ids BigInt[]
  @@map("typed")
}
`;

async function main() {
  writeFileSync(`${directory}/schema.prisma`, schema);
  const modules = join(dirname(require.resolve('prisma/package.json')), '..');
  symlinkSync(modules, `${directory}/node_modules`);
  // "generate" insists on the engine of migrations, and does not use it.
  execFileSync(process.execPath,
    [`${modules}/prisma/build/index.js`, 'generate'],
    {env: {...process.env, PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true'}, stdio: 'pipe',
      cwd: directory});

  const {PrismaClient} = require(`${directory}/client`);
  const {PrismaPg} = require('@prisma/adapter-pg');
  const prisma = new PrismaClient({adapter: new PrismaPg({})});
  const one = await prisma.order.create({data: {item: 'one'}});
  const more = await prisma.order.createManyAndReturn({
    data: [{item: 'two'}, {item: 'three'}]});
  is([one, ...more].map((order) => order.id), (await stored('orders')).map(BigInt),
    'create() and createManyAndReturn() return the ids as BigInts');
  is((await prisma.order.findUnique({where: {id: one.id}})).item, 'one',
    'findUnique() finds the row');

  await prisma.$executeRaw`CREATE TABLE typed AS SELECT id::snowflake AS id, '{1,2}'::snowflake[] AS ids FROM orders LIMIT 1`;
  is((await prisma.typed.findFirst({select: {id: true}})).id, one.id, 'snowflake: the key is a BigInt');
  is(/is not a function/.test(await failure('list', () => prisma.typed.findFirst())), true, 'snowflake: a list is an error');
  await prisma.$executeRaw`ALTER TABLE typed ALTER ids TYPE bigint[]`;
  is((await prisma.typed.findFirst()).ids, [1n, 2n], 'bigint[]: a list of BigInts');
  await prisma.$disconnect();
}
main().finally(() => rmSync(directory, {recursive: true}));
