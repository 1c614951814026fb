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
