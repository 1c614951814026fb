# needs: DBD::Pg
# DBD::Pg: ids are Perl's integers.
use strict;
use warnings FATAL => 'all';

use DBI;

sub check
{
	my ($got, $wanted, $what) = @_;
	print $got eq $wanted ? '' : 'not ', "ok - $what\n";
	print "# got $got, wanted $wanted\n" if $got ne $wanted;
	return;
}

my $dbh = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, PrintError => 0 });
my $ids = $dbh->selectcol_arrayref(
	'INSERT INTO orders (item) SELECT unnest(?::text[]) RETURNING id',
	undef, [ 'one', 'two', 'three' ]);
my $stored = $dbh->selectcol_arrayref('SELECT id::text FROM orders ORDER BY id');
check("@$ids", "@$stored", 'RETURNING');
check($ids->[0] + 0 == $stored->[0] ? 'exact' : 'rounded', 'exact', 'ids are numbers');

my ($id, $number, $array, $numbers) = $dbh->selectrow_array(
	q{SELECT max(id)::snowflake, max(id), '{5}'::snowflake[], '{5}'::bigint[] FROM orders});
check($id, $stored->[2], 'snowflake: the same digits');
check($array, '{5}', 'snowflake: an array is a text');
check("@$numbers", '5', 'bigint: an array is one of Perl');

eval { $dbh->last_insert_id(undef, undef, 'orders', undef) };
check($@ =~ /(No suitable column found)/ ? $1 : $@,
	'No suitable column found', 'last_insert_id() is an error');
