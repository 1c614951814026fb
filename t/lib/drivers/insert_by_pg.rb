# Inserts by ruby's pg, with results in the text and in the binary format.
require 'pg'

insert = 'INSERT INTO orders (item) VALUES ($1) RETURNING id'
connection = PG.connect(host: ENV.fetch('PGHOST'), port: ENV.fetch('PGPORT'),
                        dbname: ENV.fetch('PGDATABASE'))
connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection)
connection.prepare('insert', insert)
[connection.exec_params(insert, ['one']),
 connection.exec_prepared('insert', ['two']),
 connection.exec_params(insert, ['three'], 1)].each do |result|
  id = result.getvalue(0, 0)
  puts "#{id} #{id.class}"
end
