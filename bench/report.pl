#!/usr/bin/perl
# Prints the report, in Markdown, and writes the plots' data.
#
#   report.pl SAMPLES CONDITIONS PLOTS
#
# A cell is the median over the repeats, with the smallest and the largest in
# parentheses.  A ratio is taken within each repeat first, between samples
# taken side by side, and its median and spread are shown.
use strict;
use warnings;

my ($samples_file, $conditions_file, $plots) = @ARGV;
my $ceiling = 4096 * 1000;    # ids per second of the layout 41/5/5/12

# measurement => peer => sessions => unit => [ a value each repeat ]
my %samples;
# Samples that failed; cells and plots leave them out.
my @missing;

sub read_file
{
	my ($name) = @_;
	open my $file, '<', $name or die "cannot read $name: $!\n";
	return <$file>;
}

sub read_samples
{
	my (undef, @lines) = read_file($samples_file);

	foreach (@lines)
	{
		chomp;
		my ($measurement, $peer, $sessions, $repeat, $unit, $value) =
		  split /,/;
		if ($value eq '')
		{
			push @missing, "$peer, $sessions sessions, repeat $repeat";
			next;
		}
		$samples{$measurement}{$peer}{$sessions}{$unit}[ $repeat - 1 ] =
		  $value;
	}
}

# Statistics over lists with a value for each repeat.  Of an empty list, each
# function but median() returns an empty list.

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return @sorted % 2
	  ? $sorted[ $#sorted / 2 ]
	  : ($sorted[ @sorted / 2 - 1 ] + $sorted[ @sorted / 2 ]) / 2;
}

sub pairwise
{
	my ($function, $x, $y) = @_;
	# A sample may be missing.
	return [ map { $function->($x->[$_], $y->[$_]) }
		  grep { defined $x->[$_] && defined $y->[$_] } 0 .. $#$x ];
}

sub ratio { return pairwise(sub { $_[0] / $_[1] }, @_) }
sub difference { return pairwise(sub { $_[0] - $_[1] }, @_) }
sub scaled { my ($by, $x) = @_; return [ map { $_ * $by } grep { defined } @$x ] }
sub ns { return [ map { defined $_ ? 1e9 / $_ : undef } @{ $_[0] } ] }

# The samples of a measurement, a peer, a number of sessions, in a unit.
sub values_of
{
	my $level = \%samples;

	# Do not create hash entries by reading them.
	$level = $level->{$_} // return [] foreach @_;
	return $level;
}

# Cells and tables

sub cell
{
	my ($format, $values) = @_;
	my ($min, @more) = sort { $a <=> $b } grep { defined } @$values;
	return '-' unless defined $min;
	my $text = sprintf "**$format**", median($min, @more);
	$text .= sprintf " ($format .. $format)", $min, $more[-1] if @more;
	return $text;
}

sub row { print '| ', join(' | ', @_), " |\n" }

sub heading
{
	my ($title, $note, @columns) = @_;
	print "\n### $title\n\n";
	print "$note\n\n" if $note;
	row(@columns);
	row(map { '---' } @columns);
}

my @sessions = (1, 2, 8, 64);

sub ids { my ($peer, $n) = @_; return values_of('ids', $peer, $n, 'ids/s') }

# a row with a cell for each number of sessions
sub over_sessions
{
	my ($title, $format, $values, $aim) = @_;
	row($title, (map { cell($format, $values->($_)) } @sessions), $aim);
}

sub report_ids
{
	heading('Ids per second at the ceiling',
		'Layout `41/5/5/12`: 4096 ids a millisecond. In millions.',
		'sessions', @sessions, 'aim');
	my $default = sub { ids('default layout', $_[0]) };
	over_sessions('snowflake_nextval()', '%.3f',
		sub { scaled(1e-6, $default->(@_)) }, '');
	over_sessions('of the ceiling, %', '%.2f',
		sub { scaled(100 / $ceiling, $default->(@_)) }, '>= 99');

	heading('What one id costs',
		'One session, layout `41/2/2/18`, nanoseconds a row.',
		'function', 'time of a row', 'more than the no-op\'s',
		'ratio to the clock function\'s', 'aim');
	my ($noop, $clock) = map { ns(ids($_, 1)) } 'no-op', 'clock';
	foreach my $peer ('no-op', 'clock', peers_of_ids())
	{
		my $cost = ns(ids($peer, 1));
		next unless @$cost;
		row($peer, cell('%.1f', $cost),
			cell('%.1f', difference($cost, $noop)),
			cell('%.2f', ratio($cost, $clock)),
			$peer eq 'snowflake' ? '<= 1.3' : '');
	}

	heading('Ids per second without the ceiling',
		'Layout `41/2/2/18`. In millions.', 'sessions', @sessions, '');
	foreach my $peer (peers_of_ids())
	{
		over_sessions($peer, '%.2f',
			sub { scaled(1e-6, ids($peer, @_)) }, '');
	}

	heading('Ratios of ids per second without the ceiling', '', 'sessions', @sessions, 'aim');
	foreach my $peer (grep { !/^snowflake/ } peers_of_ids())
	{
		over_sessions("snowflake to $peer", '%.2f',
			sub { ratio(ids('snowflake', @_), ids($peer, @_)) },
			$peer eq 'nextval CACHE 1' ? '>= 3, 2, 2, 2' : '');
	}
	# The no-op shows the speed of the machine itself.
	foreach my $peer ('no-op', 'snowflake')
	{
		over_sessions("$peer to the same in 1 session", '%.2f',
			sub { ratio(ids($peer, @_), ids($peer, 1)) },
			$peer =~ /64/ ? '>= 1.8 at 2' : '');
	}
}

sub peers_of_ids
{
	return grep { exists $samples{ids}{$_} } 'snowflake',
	  'snowflake_nextvals', 'nextval CACHE 1', 'nextval CACHE 100', 'pgEdge', 'gen_random_uuid', 'uuidv7',
	  'PL/pgSQL snowflake';
}

sub report_waiting
{
	heading('What waiting costs',
		"Sessions that want more ids than layout `41/5/5/12` has room for. "
		  . "The cores are what all processes of the cluster use together. The "
		  . "cores for making ids are those that one session needs for as many "
		  . "ids in layout `41/2/2/18`, where no session waits. The other cores "
		  . "are for waiting.",
		'sessions', 'ids/s, millions', 'cores', 'cores for making ids',
		'cores for waiting', 'aim');
	my @wide = ('waiting', 'wide', 1);
	my $an_id =
	  ratio(values_of(@wide, 'cores'), values_of(@wide, 'ids/s'));
	foreach my $n (1, 8, 64)
	{
		my $rate = values_of('waiting', 'standard', $n, 'ids/s');
		my $cores = values_of('waiting', 'standard', $n, 'cores');
		my $making = pairwise(sub { $_[0] * $_[1] }, $rate, $an_id);
		row($n, cell('%.3f', scaled(1e-6, $rate)), cell('%.2f', $cores),
			cell('%.2f', $making), cell('%.2f', difference($cores, $making)),
			'< 0.5');
	}
	printf "\nMaking an id took %s ns of a processor.\n",
	  cell('%.1f', scaled(1e9, $an_id));
}

sub report_wal
{
	heading('What the high-water mark writes',
		'"issuing": one session issues ids as fast as it can, and nothing else '
		  . 'is written. "idle": no id is issued. A mark is one WAL record, '
		  . 'and no session waits for its flush.',
		'', 'marks a second', 'WAL bytes a second', 'bytes a mark',
		'aim');
	foreach my $state ('issuing', 'idle')
	{
		my $marks = values_of('wal', $state, 1, 'marks/s');
		my $bytes = values_of('wal', $state, 1, 'bytes/s');
		row($state, cell('%.1f', $marks), cell('%.0f', $bytes),
			$state eq 'idle' ? '' : cell('%.0f', ratio($bytes, $marks)),
			$state eq 'idle' ? '0' : '<= 5');
	}
}

sub report_latency
{
	my @percentiles = map { "p$_ us" } 50, 90, 99, 99.9;
	my @statements = ('SELECT snowflake_nextval()',
		"SELECT nextval('bench_cache_1')", 'SELECT 1');
	my $of = sub { values_of('latency', $_[0], 8, $_[1]) };

	heading('Latency',
		'Eight connections, prepared statements, microseconds. The median '
		  . 'of a percentile over many short runs.',
		'statement', @percentiles, 'aim');
	foreach my $statement (@statements)
	{
		row("`$statement`",
			(map { cell('%.0f', $of->($statement, $_)) } @percentiles), '');
	}
	foreach my $i (1, 2)
	{
		row("ratio of medians, snowflake to `$statements[$i]`",
			(map { ratio_of_medians($of->($statements[0], $_),
					$of->($statements[$i], $_)) } @percentiles),
			$i == 1 ? 'p99.9 <= 1.05' : 'p99.9 <= 1.10');
	}
}

# Percentiles of single repeats vary too much for a median of their ratios, so
# this is the ratio of the medians.
sub ratio_of_medians
{
	my ($x, $y) = @_;
	return '-' unless @$x && @$y;
	return sprintf '**%.3f**', median(@$x) / median(@$y);
}

my @keys = ('bigint supplied', 'snowflake', 'bigserial', 'identity', 'pgEdge', 'counter', 'uuid v4', 'uuid v7');

sub report_inserts
{
	my %aim = (
		'INSERT ... SELECT' =>
		  { counter => '<= 1.05', bigserial => '<= 1', identity => '<= 1' },
		COPY => { 'bigint supplied' => '<= 1.15', bigserial => '<= 1.02' });

	foreach my $way ('INSERT ... SELECT', 'COPY')
	{
		my $of = sub { values_of('inserts', $_[0], 1, "$way s") };
		my $processor =
		  sub { values_of('inserts', $_[0], 1, "$way processor s") };

		heading("Inserts in bulk: $way",
			'All rows in one statement. Processor seconds are those of the '
			  . 'session\'s process; they depend less on other work of the machine.',
			'key', 'seconds', 'processor seconds', 'index, MB',
			'snowflake to this', 'snowflake to this, processor', 'aim');
		foreach my $key (@keys)
		{
			my $bytes = values_of('inserts', $key, 1, "$way index bytes");
			next unless @{ $of->($key) };
			row($key, cell('%.3f', $of->($key)),
				cell('%.3f', $processor->($key)),
				@$bytes ? sprintf('%.1f', median(@$bytes) / 1e6) : '-',
				cell('%.3f', ratio($of->('snowflake'), $of->($key))),
				cell('%.3f', ratio($processor->('snowflake'), $processor->($key))),
				$aim{$way}{$key} // '');
		}
	}

	heading('Inserts one by one',
		'Microseconds a row in a session, a transaction each; every session takes turns between the keys.',
		'sessions', 'snowflake', 'bigserial', 'snowflake to bigserial', 'aim');
	foreach my $n (1, 8)
	{
		my @both = map { values_of('inserts', $_, $n, 'single row us') }
		  'snowflake', 'bigserial';
		row($n, (map { cell('%.0f', $_) } @both), cell('%.3f', ratio(@both)),
			'1, within the spread');
	}
}

sub report_flushes
{
	heading('Single inserts after a pause and with slow flushes',
		'A row a transaction. Each flush is a sleep: of that time, or of a '
		  . 'random time between two. "Two a second": one session pauses for '
		  . 'half a second after each row. Times are milliseconds. Rows a '
		  . 'second are the sessions divided by the mean time.',
		'load', 'a flush, ms', 'synchronous_commit', 'sessions', 'figure',
		'snowflake', 'bigserial', 'snowflake to bigserial', 'aim');
	foreach (
		[ 'two a second', '5-5', 'on', 1, 'p50', '<= 1.1' ],
		[ 'two a second', '5-5', 'on', 1, 'p99', '<= 1.1' ],
		[ 'two a second', '5-5', 'off', 1, 'p50', '' ],
		[ 'two a second', '5-5', 'off', 1, 'p99', '' ],
		[ 'no pause', '205-205', 'on', 1, 'rows/s', '>= 0.9' ],
		[ 'no pause', '205-205', 'on', 4, 'rows/s', '>= 0.9' ],
		[ 'no pause', '205-205', 'on', 64, 'rows/s', '>= 0.9' ],
		[ 'no pause', '100-400', 'on', 1, 'p50', '<= 1.1' ],
		[ 'no pause', '100-400', 'on', 1, 'p99', '<= 1.1' ],
		[ 'no pause', '205-205', 'off', 1, 'rows/s', '' ])
	{
		my ($load, $flush, $commit, $n, $figure, $aim) = @$_;
		my @both = map { flushes($_, $flush, $commit, $n, $figure) }
		  'snowflake', 'bigserial';
		my $format = $figure eq 'rows/s' ? '%.4g' : '%.2f';

		row($load, $flush =~ s/^(\d+)-\1$/$1/r, $commit, $n, $figure,
			(map { cell($format, $_) } @both), ratio_of_medians(@both), $aim);
	}
}

# Rows a second, or milliseconds.
sub flushes
{
	my ($peer, $flush, $commit, $n, $figure) = @_;
	my $statistic = $figure eq 'rows/s' ? 'mean' : $figure;
	my $us =
	  values_of('flushes', $peer, $n, "$flush $commit $statistic us");

	return $figure eq 'rows/s'
	  ? [ map { $n * 1e6 / $_ } grep { defined } @$us ]
	  : scaled(1e-3, $us);
}

sub report_horizon
{
	heading('The horizon',
		'Eight sessions insert rows one by one; one more session asks the '
		  . 'statement all the time.',
		'statement', 'rows a second', 'ratio to nobody\'s', 'p50 of the statement, us',
		'p99');
	my $of = sub { values_of('horizon', $_[0], 8, $_[1]) };
	foreach my $reader ('nobody', 'SELECT pg_current_snapshot()',
		'SELECT snowflake_horizon()')
	{
		my $rows = $of->($reader, 'rows/s');
		row($reader eq 'nobody' ? $reader : "`$reader`",
			cell('%.0f', $rows), cell('%.3f', ratio($rows, $of->('nobody', 'rows/s'))),
			map { cell('%.0f', $of->($reader, "$_ us")) } 'p50', 'p99');
	}
}

sub report_decoding
{
	my $of = sub { values_of('decoding', $_[0], 1, 'ns a row') };

	heading('Decoding', 'Nanoseconds a row of a table scan.',
		'function', 'time of a row', 'ratio to the no-op\'s', 'aim');
	foreach (
		[ 'no function', 'no-op', '' ],
		[ 'no-op', 'no-op', '' ],
		[ 'snowflake_timestamp', 'no-op', '<= 1.2' ],
		[ 'no-op record', 'no-op record', '' ],
		[ 'snowflake_decode', 'no-op record', '<= 2' ])
	{
		my ($peer, $noop, $aim) = @$_;
		row($peer, cell('%.1f', $of->($peer)),
			cell('%.2f', ratio($of->($peer), $of->($noop))), $aim);
	}
}

# The plots' data: a line for each x, a column for each curve, names in line 1.

# What the plots call peers whose names only the report explains.
my %label = (
	ids => {
		'default layout' => 'snowflake_nextval, 41/5/5/12',
		snowflake => 'snowflake_nextval, 41/2/2/18',
		snowflake_nextvals => 'snowflake_nextvals, 41/2/2/18'
	},
	inserts => { 'bigint supplied' => 'ids made before', counter => 'counter in C' },
	latency => { 'SELECT 1' => 'SELECT 1, no id' });

sub labels { my ($plot, @names) = @_; return map { $label{$plot}{$_} // $_ } @names }

sub write_plot
{
	my ($name, @lines) = @_;
	open my $file, '>', "$plots/$name.dat" or die "cannot write: $!\n";
	print $file join("\t", @$_), "\n" foreach @lines;
	close $file or die "cannot write: $!\n";
}

sub median_or_gap
{
	my @values = grep { defined } @{ $_[0] };
	return @values ? median(@values) : 'NaN';
}

sub plot_ids
{
	my @peers = ('default layout', peers_of_ids());
	write_plot('ids', [ 'sessions', labels('ids', @peers) ],
		map { my $n = $_; [ $n, map { median_or_gap(ids($_, $n)) } @peers ] }
		  @sessions);
}

sub plot_inserts
{
	my @measured = grep { exists $samples{inserts}{$_} } @keys;
	my @ways = ('INSERT ... SELECT', 'COPY');
	write_plot('inserts', [ 'key', @ways ],
		map { my $key = $_;
			[ labels('inserts', $key), map { median_or_gap(
					values_of('inserts', $key, 1, "$_ s")) } @ways ] }
		  @measured);
}

sub plot_latency
{
	my @statements = sort keys %{ $samples{latency} };
	write_plot('latency', [ 'percentile', labels('latency', @statements) ],
		map { my $percent = $_;
			[ $percent, map { median_or_gap(
					values_of('latency', $_, 8, "p$percent us")) } @statements ] }
		  50, 90, 99, 99.9);
}

read_samples();
print "A figure is the median of the repeats, with their smallest and largest "
  . "in parentheses. A ratio is taken between samples of the same repeat.\n\n";
print read_file($conditions_file);
print "\n**Missing samples**, because the machine was too slow for them:\n\n", map { "- $_\n" } @missing
  if @missing;
my @parts = (
	[ ids => \&report_ids, \&plot_ids ],
	[ waiting => \&report_waiting ],
	[ wal => \&report_wal ],
	[ latency => \&report_latency, \&plot_latency ],
	[ inserts => \&report_inserts, \&plot_inserts ],
	[ flushes => \&report_flushes ],
	[ horizon => \&report_horizon ],
	[ decoding => \&report_decoding ]);
foreach (@parts)
{
	my ($part, @functions) = @$_;
	next unless exists $samples{$part};
	$_->() foreach @functions;
}
