<?php
// needs: Illuminate/Database/autoload.php
// Laravel's query builder and Eloquent: insertGetId() uses RETURNING.  The extension
// has no view that dropAllViews() would drop.
require 'check.php';
require 'Illuminate/Database/autoload.php';

use Illuminate\Database\Capsule\Manager;
use Illuminate\Database\Eloquent\Model;

class Post extends Model
{
    public $timestamps = false;
    protected $guarded = [];
}

$manager = new Manager;
$manager->addConnection([
    'driver' => 'pgsql', 'host' => getenv('PGHOST'), 'port' => getenv('PGPORT'),
    'database' => getenv('PGDATABASE'), 'username' => getenv('PGUSER'),
    'charset' => 'utf8']);
$manager->setAsGlobal();
$manager->bootEloquent();
Manager::schema()->create('posts', function ($table) {
    $table->bigInteger('id')->primary()->default(Manager::raw('snowflake_id()'));
    $table->text('item');
});
$ids = [Manager::table('posts')->insertGetId(['item' => 'one']),
    Post::create(['item' => 'two'])->id];
check($ids, stored(connect(), 'posts'), 'insertGetId() and create()');
check(Post::find($ids[0])->item, 'one', 'find() finds the row');

Manager::schema()->dropAllViews();
Manager::schema()->dropAllTables();
Manager::schema()->create('posts', function ($table) {
    $table->bigInteger('id')->primary()->default(Manager::raw('snowflake_id()'));
    $table->text('item');
});
check(Post::create(['item' => 'one'])->id, stored(connect(), 'posts')[0],
    'dropAllViews() and dropAllTables() leave the extension');

class StringPost extends Post
{
    protected $table = 'posts';
    protected $keyType = 'string';
}
$id = stored(connect(), 'posts')[0];
check(Post::first()->toJson(), "{\"id\":$id,\"item\":\"one\"}", 'toJson(): the id is a number');
check(StringPost::first()->toJson(), "{\"id\":\"$id\",\"item\":\"one\"}", "\$keyType = 'string': a string");
Manager::connection()->unprepared('ALTER TABLE posts ALTER id TYPE snowflake');
check([Post::first()->id, Post::find($id)->item, Manager::table('posts')->first()->id], [$id, 'one', (string) $id],
    'snowflake: an int in the model, a string in the query builder');
