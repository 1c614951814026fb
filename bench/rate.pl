#!/usr/bin/perl
# Prints the rate of a load from pgbench's log of its transactions.
#
#   rate.pl COUNT LOG...    each transaction counts for COUNT
#
# The rate is measured over the time in which every session was at work, less
# the longest transaction at each end.  A transaction that lies only partly in
# this time then still ran while all sessions were at work: it was not faster
# because some of them had not begun or had ended.
use strict;
use warnings;

my $count = shift;
my %transactions_of;    # session => [ when begun, when ended ], microseconds
my $longest = 0;

while (<>)
{
	my ($session, undef, $lasted, undef, $s, $us) = split;
	my $ended = $s * 1_000_000 + $us;
	push @{ $transactions_of{$session} }, [ $ended - $lasted, $ended ];
	$longest = $lasted if $lasted > $longest;
}

my ($from, $to);
foreach my $transactions (values %transactions_of)
{
	my ($first, $last) = ($transactions->[0][0], $transactions->[-1][1]);
	$from = $first if !defined $from || $first > $from;
	$to = $last if !defined $to || $last < $to;
}
die "Too short for a rate; set BENCH_SECONDS to more.\n"
  unless defined $from && $to - $from - 2 * $longest > 100_000;
$from += $longest;
$to -= $longest;

my $done = 0;
foreach (map { @$_ } values %transactions_of)
{
	my ($begun, $ended) = @$_;
	my $lasted = $ended - $begun;

	$begun = $from if $begun < $from;
	$ended = $to if $ended > $to;
	$done += ($ended - $begun) / $lasted if $ended > $begun;
}
printf "%.0f\n", $done * $count * 1_000_000 / ($to - $from);
