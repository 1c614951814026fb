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

eval { $dbh->last_insert_id(undef, undef, 'orders', undef) };
check($@ =~ /(No suitable column found)/ ? $1 : $@,
	'No suitable column found', 'last_insert_id() is an error');
