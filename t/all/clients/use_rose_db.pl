# needs: Rose::DB::Object::Manager Rose::DB::Object::Loader DBD::Pg
# Rose::DB::Object, with classes made by its loader: a generator asks for the id.
use strict;
use warnings FATAL => 'all';

package My::DB;
use parent -norequire, 'Rose::DB';
use Rose::DB;
My::DB->use_private_registry;
My::DB->register_db(
	driver => 'pg', host => $ENV{PGHOST}, port => $ENV{PGPORT},
	database => $ENV{PGDATABASE}, username => $ENV{PGUSER});

package main;
use Rose::DB::Object::Loader;

sub check
{
	my ($got, $wanted, $what) = @_;
	print $got eq $wanted ? '' : 'not ', "ok - $what\n";
	print "# got $got, wanted $wanted\n" if $got ne $wanted;
	return;
}

my $dbh = My::DB->new->retain_dbh;
$dbh->do('CREATE TABLE notes (id bigint PRIMARY KEY DEFAULT snowflake_id(), order_id bigint REFERENCES orders, item text)');
$dbh->do('CREATE TABLE typed (id snowflake PRIMARY KEY DEFAULT snowflake_id(), ids snowflake[])');
Rose::DB::Object::Loader->new(db => My::DB->new, class_prefix => 'My')->make_classes;
# The loader takes the text of a DEFAULT for a value.
check(!eval { My::Order->new(item => 'one')->save } && $@ =~ /(invalid input syntax for type bigint)/ ? $1 : $@,
	'invalid input syntax for type bigint', 'without a generator, save() is an error');
for my $class (qw(My::Order My::Note My::Typed))
{
	$class->meta->column('id')->default(undef);
	$class->meta->primary_key_generator(sub { $_[1]->dbh->selectrow_array('SELECT snowflake_nextval()') });
	$class->meta->initialize(replace_existing => 1);
}
my $order = My::Order->new(item => 'one', notes => [ { item => 'a' }, { item => 'b' } ]);
$order->save;
my $stored = $dbh->selectcol_arrayref('SELECT id::text FROM orders');
check($order->id, $stored->[0], 'save() returns the id');
check(join(' ', map { $_->order_id } $order->notes), "$stored->[0] $stored->[0]", 'one to many: related rows have the id');
my $found = Rose::DB::Object::Manager->get_objects(object_class => 'My::Order', query => [ id => [ $order->id ] ], with_objects => ['notes']);
check(join(' ', map { $_->item } sort { $a->id <=> $b->id } $found->[0]->notes), 'a b', 'get_objects() finds the row and its related rows');
eval { My::Typed->new->save };
check($@ =~ /(is too long.  Maximum length is 8 characters)/ ? $1 : $@, 'is too long.  Maximum length is 8 characters',
	'snowflake: the key is taken for a string of 8 characters');
