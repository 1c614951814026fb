# needs: active_record pg
# ActiveRecord: a migration names the default; fixtures need the name snowflake_id().
require 'active_record'
require 'active_record/fixtures'
require 'tmpdir'
require_relative 'check'

ActiveRecord::Base.establish_connection(
  adapter: 'postgresql', host: ENV.fetch('PGHOST'), port: ENV.fetch('PGPORT'),
  database: ENV.fetch('PGDATABASE'), username: ENV['PGUSER']
)
ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table :posts, id: :bigint, default: -> { 'snowflake_id()' } do |t|
    t.text :item
  end
  create_table(:lines, id: :bigint, default: -> { 'snowflake_nextval()' }) { |t| t.text :item }
end

# a row of the table that names the default
class Post < ActiveRecord::Base; end

posts = %w[one two].map { |item| Post.create!(item: item) }
ids = posts.map(&:id) + Post.insert_all!([{ item: 'three' }]).rows.flatten
connection = ActiveRecord::Base.connection
stored = connection.select_values('SELECT id::text FROM posts ORDER BY id').map(&:to_i)
check ids, stored, 'create! and insert_all!'
check Post.find(ids[0]).item, 'one', 'find finds the row'

schema = StringIO.new
dumped = ActiveRecord.version < Gem::Version.new('7.2') ? connection : ActiveRecord::Base.connection_pool
ActiveRecord::SchemaDumper.dump(dumped, schema)
check schema.string.match?(/default: -> \{ "snowflake_id\(\)" \}/), true,
      'schema.rb has the default'

# Loads a fixture into a table; returns the error, if there is one.
def load_fixture(table, column = 'item')
  Dir.mktmpdir do |directory|
    File.write("#{directory}/#{table}.yml", "one:\n  #{column}: one\n")
    ActiveRecord::FixtureSet.reset_cache
    ActiveRecord::FixtureSet.create_fixtures(directory, [table])
  end
  nil
rescue ActiveRecord::StatementInvalid => e
  e.message
end

check load_fixture('posts'), nil, 'snowflake_id(): fixtures work'
check connection.reset_pk_sequence!('posts'), nil, 'snowflake_id(): reset_pk_sequence! works'
check load_fixture('lines')&.match?(/relation "public" does not exist/), true,
      'snowflake_nextval(): fixtures fail'

# new tables, which the event trigger converts
connection.execute("SET snowflake_convert.schemas = 'public'")
ActiveRecord::Schema.define do
  create_table(:authors) { |t| t.text :name }
  create_table(:books) { |t| t.references :author, foreign_key: true }
  create_table(:tags, id: :bigserial) { |t| t.bigint :book_id }
  add_foreign_key :tags, :books
end
class Author < ActiveRecord::Base; end

class Book < ActiveRecord::Base; belongs_to :author; end

class Tag < ActiveRecord::Base; belongs_to :book; end

tag = Tag.create!(book: Book.create!(author: Author.create!(name: 'Ann')))
check [tag.id, tag.book_id, tag.book.author_id].min > 2**53, true,
      'the event trigger converts the keys of new tables'
check Tag.find(tag.id).book.author.name, 'Ann', 'rows of new tables find each other'
check load_fixture('authors', 'name'), nil, 'fixtures work in a converted table'

ActiveRecord::Base.connection.execute('ALTER TABLE books ALTER author_id TYPE snowflake; ALTER TABLE authors ALTER id TYPE snowflake')
[Author, Book].each(&:reset_column_information)
check Author.first.id.class, String, 'snowflake: a String'
schema = StringIO.new
ActiveRecord::SchemaDumper.dump(dumped, schema)
check schema.string.include?('# Could not dump table "authors"'), true, 'snowflake: schema.rb leaves the table out'
