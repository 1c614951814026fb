# needs: pg
# pg: ids are Integers, in text and binary format, and prepared.
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
