# Inserts by ActiveRecord into a table that a migration creates.
require 'active_record'

ActiveRecord::Base.establish_connection(
  adapter: 'postgresql', host: ENV.fetch('PGHOST'), port: ENV.fetch('PGPORT'),
  database: ENV.fetch('PGDATABASE')
)
ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table :orders, force: true, id: :bigint,
                        default: -> { 'snowflake_nextval()' } do |t|
    t.text :item
  end
end

# a row of the table
class Order < ActiveRecord::Base; end

orders = %w[one two].map { |item| Order.create!(item: item) }
ids = orders.map(&:id) + Order.insert_all!([{ item: 'three' }]).rows.flatten
ids.zip(%w[one two three]) do |id, item|
  raise "#{id} is not found" unless Order.find(id).item == item

  puts "#{id} #{id.class}"
end

# schema.rb has the default of the column
schema = StringIO.new
ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
unless schema.string.match?(/default: -> \{ "snowflake_nextval\(\)" \}/)
  raise "schema.rb has lost the default: #{schema.string}"
end
