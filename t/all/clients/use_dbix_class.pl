# needs: DBIx::Class DBD::Pg
# DBIx::Class: create() and populate() return the ids.
use strict;
use warnings FATAL => 'all';

sub check
{
	my ($got, $wanted, $what) = @_;
	print $got eq $wanted ? '' : 'not ', "ok - $what\n";
	print "# got $got, wanted $wanted\n" if $got ne $wanted;
	return;
}

package Shop::Result::Order
{
	use parent 'DBIx::Class::Core';
	__PACKAGE__->table('orders');
	__PACKAGE__->add_columns(
		id => { data_type => 'bigint', is_auto_increment => 1 },
		item => { data_type => 'text' });
	__PACKAGE__->set_primary_key('id');
}

package Shop
{
	use parent 'DBIx::Class::Schema';
	__PACKAGE__->register_class(Order => 'Shop::Result::Order');
}

package main;

my $shop = Shop->connect("dbi:Pg:dbname=$ENV{PGDATABASE}", $ENV{PGUSER}, '', { AutoCommit => 1 });
my $order = $shop->resultset('Order')->create({ item => 'one' });
my ($stored) = $shop->storage->dbh->selectrow_array('SELECT id::text FROM orders');
check($order->id, $stored, 'create() returns the id');
check($shop->resultset('Order')->find($stored)->item, 'one', 'find() finds the row');
my @rows = $shop->resultset('Order')->populate([ { item => 'two' }, { item => 'three' } ]);
check(join(' ', sort map { $_->id } @rows),
	join(' ', @{ $shop->storage->dbh->selectcol_arrayref(q{SELECT id::text FROM orders WHERE item <> 'one' ORDER BY id}) }),
	'populate() in list context returns the ids');
