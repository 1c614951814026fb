# needs: rails pg
# Rails: an application's migration, schema.rb and fixtures.
require 'open3'
require 'tmpdir'
require_relative 'check'

FILES = {
  'config/application.rb' => <<~RUBY,
    require 'rails'
    require 'active_record/railtie'
    require 'rails/test_unit/railtie'
    class Shop < Rails::Application
      config.load_defaults 7.2
      config.eager_load = false
      config.logger = Logger.new(nil)
    end
  RUBY
  'config/environment.rb' => "require_relative 'application'\nRails.application.initialize!\n",
  'config/database.yml' => <<~YAML,
    development: &shop
      {adapter: postgresql, template: template0, database: rails_development}
    test: {<<: *shop, database: rails_test}
  YAML
  'Rakefile' => "require_relative 'config/application'\nRails.application.load_tasks\n",
  'db/migrate/1_posts.rb' => <<~RUBY,
    class Posts < ActiveRecord::Migration[7.2]
      def change
        enable_extension 'snowflake'
        create_table(:posts, id: :bigint, default: -> { 'snowflake_id()' }) { |t| t.text :item }
        create_table(:notes, id: :bigint, default: -> { 'snowflake_id()' }) { |t| t.references :post }
      end
    end
  RUBY
  'app/models/post.rb' => "class Post < ActiveRecord::Base; end\n",
  'app/models/note.rb' => "class Note < ActiveRecord::Base; belongs_to :post; end\n",
  'test/fixtures/posts.yml' => "one: {item: one}\n",
  'test/fixtures/notes.yml' => "first: {post: one}\n",
  'test/note_test.rb' => <<~RUBY
    require_relative '../config/environment'
    require 'rails/test_help'
    class NoteTest < ActiveSupport::TestCase
      fixtures :all
      test 'fixtures and a new row' do
        assert_equal 'one', notes(:first).post.item
        assert_operator Note.create!(post: posts(:one)).id, :>, 2**53
      end
    end
  RUBY
}.freeze

# Runs a command in the application; shows its output if it fails.
def succeeds(what, *command, env: {})
  output, status = Open3.capture2e(env, *command)
  puts output.gsub(/^/, '# ') unless status.success?
  check status.success?, true, what
end

Dir.mktmpdir do |directory|
  Dir.chdir directory
  FILES.each do |name, text|
    system('mkdir', '-p', File.dirname(name))
    File.write(name, text)
  end
  succeeds 'db:create and db:migrate', 'rake', 'db:create', 'db:migrate'
  check File.read('db/schema.rb').scan('default: -> { "snowflake_id()" }').size, 2, 'schema.rb has the defaults'
  succeeds 'db:schema:load', 'rake', 'db:schema:load'
  succeeds 'db:test:prepare', 'rake', 'db:test:prepare'
  succeeds 'tests with fixtures', 'ruby', '-Itest', 'test/note_test.rb', env: { 'RAILS_ENV' => 'test' }
  system('psql', '-Xqd', 'rails_development', '-c', 'CREATE EXTENSION snowflake_convert')
  system('rake', 'db:schema:dump')
  output, = Open3.capture2e('rake', 'db:schema:load')
  check output.include?('schema "snowflake_convert" already exists'), true,
        'with snowflake_convert, db:schema:load fails'
  system('psql', '-Xqd', 'rails_development', '-c', 'DROP EXTENSION snowflake_convert')
  succeeds 'without it, db:schema:load works', 'rake', 'db:schema:dump', 'db:schema:load'
end
