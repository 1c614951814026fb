# needs: pg
# pg: ids are Integers, in text and binary format, and prepared; those of the type
# snowflake are, too, once it is registered.
require 'pg'
require_relative 'check'

insert = 'INSERT INTO orders (item) VALUES ($1) RETURNING id'
connection = PG.connect(host: ENV.fetch('PGHOST'), port: ENV.fetch('PGPORT'),
                        dbname: ENV.fetch('PGDATABASE'))
connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection)
connection.prepare('insert', insert)
ids = [connection.exec_params(insert, ['one']),
       connection.exec_prepared('insert', ['two']),
       connection.exec_params(insert, ['three'], 1)].map { |result| result.getvalue(0, 0) }
stored = connection.exec('SELECT id::text FROM orders ORDER BY id').column_values(0)
check ids, stored.map(&:to_i), 'RETURNING: text, prepared, binary'

def register_snowflake(connection, map)
  oid, array = connection.exec("SELECT 'snowflake'::regtype::oid::text, 'snowflake[]'::regtype::oid::text").values.first
  map.add_coder(PG::TextDecoder::Integer.new(oid: oid.to_i, name: 'snowflake'))
  map.add_coder(PG::TextDecoder::Array.new(oid: array.to_i, name: 'snowflake[]', elements_type: PG::TextDecoder::Integer.new))
end

connection.exec("CREATE TABLE typed AS SELECT 5::snowflake AS id, '{1,2}'::snowflake[] AS ids")
check connection.exec('SELECT * FROM typed').values, [['5', '{1,2}']], 'snowflake: Strings'
map = PG::BasicTypeMapForResults.new(connection)
register_snowflake(connection, map)
connection.type_map_for_results = map
check connection.exec('SELECT * FROM typed').values, [[5, [1, 2]]], 'registered: Integers'
