// needs: prisma/package.json @prisma/adapter-pg pg
// Prisma: the schema names the default; ids are BigInts.  Generates the client
// into a directory of its own.
const {execFileSync} = require('node:child_process');
const {mkdtempSync, rmSync, symlinkSync, writeFileSync} = require('node:fs');
const {tmpdir} = require('node:os');
const {dirname, join} = require('node:path');
const {is, stored} = require('./check');

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
  await prisma.$disconnect();
}
main().finally(() => rmSync(directory, {recursive: true}));
