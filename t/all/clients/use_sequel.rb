# needs: sequel pg
# Sequel: a table made by its schema methods; insert returns the primary key.
require 'sequel'
require_relative 'check'

db = Sequel.connect(adapter: 'postgres', host: ENV.fetch('PGHOST'),
                    port: ENV.fetch('PGPORT'), database: ENV.fetch('PGDATABASE'),
                    user: ENV['PGUSER'])
db.create_table(:posts) do
  Bignum :id, primary_key: true, default: Sequel.lit('snowflake_id()')
  String :item
end
ids = [db[:posts].insert(item: 'one')]
ids << Class.new(Sequel::Model(db[:posts])).create(item: 'two').id
rows = [{ item: 'three' }, { item: 'four' }]
ids += db[:posts].multi_insert(rows, return: :primary_key)
stored = db['SELECT id::text AS id FROM posts ORDER BY id'].map { |row| row[:id].to_i }
check ids, stored, 'insert, create and multi_insert'
check db[:posts][id: ids[0]][:item], 'one', 'a row is found by its id'

db.run("CREATE TABLE typed AS SELECT 5::snowflake AS id, '{1,2}'::snowflake[] AS ids")
db.extension :pg_array
check db[:typed].first, { id: '5', ids: '{1,2}' }, 'snowflake: Strings'
oid, array = db["SELECT 'snowflake'::regtype::oid::bigint AS oid, 'snowflake[]'::regtype::oid::bigint AS array"].first.values
db.add_conversion_proc(oid, &:to_i)
db.register_array_type('snowflake', oid: array, scalar_oid: oid)
check db[:typed].where(id: 5).first, { id: 5, ids: [1, 2] }, 'registered: Integers'
