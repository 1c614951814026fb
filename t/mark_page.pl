# The page of the high-water mark: what is in it, how it is created, and what
# becomes of a page that is torn, lost, deleted, damaged, of another cluster, of
# a newer version, or of another layout.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::stat;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeDisk;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeTest;
use Test::More;
use Time::HiRes qw(time);

use constant {
	AHEAD_S => 20,
	DAY_S => 86_400,
	BITS_BELOW_TICK => 22,
	HEADER_SIZE => 24,            # of PostgreSQL, before the contents
	OLD_ID => 910499571847892992
};

sub page_bytes
{
	my ($node) = @_;
	return PostgreSQL::Test::Utils::slurp_file(mark_file($node));
}

subtest 'what is in the page' => sub {
	my $node = new_server('contents', 'snowflake.datacenter_id = 3');

	start_server($node);
	$node->safe_psql('postgres', 'SELECT snowflake_worker_id(' . OLD_ID . ')');
	ok(!-e mark_file($node), 'there is no page before the first id');
	my $batch = insert_batch($node);
	$node->stop;
	my $bytes = page_bytes($node);
	my $page = read_page($node);
	my $lower = unpack 'S', substr($bytes, 12, 2);

	is(length $bytes, 8192, 'the file has one block');
	is(sprintf('%04o', stat(mark_file($node))->mode & 07777), '0600', 'only the owner may read and write the file');
	is(sprintf('%X', $page->{magic}), '534E464C', 'the page has the magic number');
	is($page->{version}, 1, 'the page has the version');
	ok(seal_page($bytes) eq $bytes, 'the checksum is CRC-32C');
	is( join('/', @$page{qw(tick_bits datacenter_bits worker_bits sequence_bits)}),
		'41/5/5/12', 'the page has the layout');
	is($page->{tick_us}, 1000, 'the page has the length of a tick');
	is($page->{lease_worker_id}, -1, 'the page has no lease');
	is($page->{entry_count}, 1, 'the page has one node');
	is($lower, HEADER_SIZE + 248 + 24, 'pd_lower points to the end of the last entry');
	ok(defined mark_of($page, 7, 3), 'the page has a mark of the node');
	my $newest_tick = $batch->{newest} >> BITS_BELOW_TICK;
	cmp_ok(mark_of($page, 7, 3), '>', $newest_tick, 'the mark is after all ids');
	cmp_ok(mark_of($page, 7, 3), '<=', $newest_tick + 1000 + 1,
		'the mark is two intervals after the ids at most');

	# A server that issues no ids does not write the page.
	start_server($node);
	$node->safe_psql('postgres', 'SELECT 1');
	$node->stop;
	ok(page_bytes($node) eq $bytes, 'a server that issues no ids does not write the page');

	# The page may be copied from another cluster, and then have an LSN that
	# this cluster's WAL has not reached yet.
	substr(my $copied = $bytes, 0, 8) = pack 'L2', 0x7F, 0x1000;
	write_page($node, $copied);
	start_server($node);
	insert_batch($node, 10);
	$node->safe_psql('postgres', 'CHECKPOINT');
	is(unpack('L', page_bytes($node)), 0, 'a page with an LSN ahead of the WAL is logged again');
	kill_hard($node);
	start_server($node);
	insert_batch($node, 10);
	is(duplicates_in($node), 0, 'a page that was logged again is recovered');
	end_servers($node);
};

# WAL has the whole page if the page was logged since the last checkpoint.
my %torn = (
	'first half zeroed' => sub { "\0" x 4096 . substr($_[0], 4096) },
	'second half zeroed' => sub { substr($_[0], 0, 4096) . "\0" x 4096 },
	'first sector older' => sub { substr($_[1], 0, 512) . substr($_[0], 512) },
	'128 bytes newer' => sub { substr($_[0], 0, 128) . substr($_[1], 128) },
	'zeroed' => sub { "\0" x 8192 },
	'noise' => sub { pack 'C*', map { int rand 256 } 1 .. 8192 },
	'cut off' => sub { substr($_[0], 0, 4096) },
	'empty' => sub { '' },
	'lost' => sub { undef });
for my $is_checksummed (0, 1)
{
	my $kind = $is_checksummed ? ', with checksums' : '';
	subtest "a page that a crash has torn$kind" => sub {
		my $node = new_server("torn$is_checksummed",
			$is_checksummed ? () : 'full_page_writes = off');

		command_ok(
			[ 'pg_checksums', '--enable', '--no-sync', '-D', $node->data_dir ],
			'checksums enabled')
		  if $is_checksummed;
		start_server($node);
		my $ahead_s = 0;
		for my $what (sort keys %torn)
		{
			next if $is_checksummed && $what =~ /sector|newer|noise|empty/;
			insert_batch($node, 10);
			$node->safe_psql('postgres', 'CHECKPOINT');
			my $old = page_bytes($node);
			$ahead_s += 2;
			my $batch = insert_ahead($node, $ahead_s);
			kill_hard($node);
			my $bytes = $torn{$what}->(page_bytes($node), $old);
			defined $bytes ? write_page($node, $bytes) : unlink mark_file($node);
			start_server($node);
			is_unique_after($node, $batch, $what);
			set_clock($node, $ahead_s);
		}
		end_servers($node);
	};
}

# Without a page ids begin at the clock: the way out of a damaged page.
subtest 'the file is deleted' => sub {
	my $node = new_server('deleted', 'snowflake.clock_tolerance = 5s');

	start_server($node, 60);
	insert_batch($node, 10);
	$node->stop;
	unlink mark_file($node) or die $!;
	set_clock($node, 0);
	start_server($node);
	first_id_at_once($node, 'the file was deleted');
	ok(-e mark_file($node), 'the server has written a new file');
	end_servers($node);
};

# The clock is a day ahead at the first start of all, and then it is corrected.
for my $how ('stop', 'crash')
{
	subtest "the clock is a day ahead at the first start, $how" => sub {
		my $node = new_server("day_$how", "include 'case.conf'",
			'snowflake.clock_tolerance = 5s');
		my $restart = sub {
			my ($worker_id) = @_;

			$how eq 'stop' ? $node->stop : kill_hard($node);
			set_clock($node, 0);
			configure($node, "snowflake.worker_id = $worker_id");
			start_server($node);
		};

		configure($node, 'snowflake.worker_id = 6');
		start_server($node, DAY_S);
		$node->safe_psql('postgres', 'CHECKPOINT');
		$restart->(6);
		first_id_at_once($node, 'no id was issued by the wrong clock');
		set_clock($node, DAY_S);
		configure($node, 'snowflake.worker_id = 7');
		$node->stop;
		start_server($node);
		my $ahead = insert_batch($node, 10)->{newest};
		$restart->(7);
		my ($state, $message, $hint) =
		  sqlstate_of($node, 'SELECT snowflake_nextval()');
		is($state, '55000', 'the worker id with ids of tomorrow issues no ids');
		like($hint, qr/"snowflake.worker_id" that no server has used/,
			'the hint names the way out');
		$restart->(8);
		cmp_ok(first_id_at_once($node, 'a worker id never used before'),
			'<', $ahead, 'its ids are of today');
		$restart->(7);
		is((sqlstate_of($node, 'SELECT snowflake_nextval()'))[0],
			'55000', 'the worker id with ids of tomorrow still issues no ids');
		is(duplicates_in($node), 0, 'no id came twice');
		end_servers($node);
	};
}

# The page gets its name when it is whole and on disk.
subtest 'the page cannot be created' => sub {
	my $node = new_server('full', 'fsync = on');
	my $new_file = mark_file($node) =~ s/8947/pgsql_tmp_snowflake/r;
	my @cases = (
		[ 'the disk is full', '53100', bytes_left => 0 ],
		[ 'the disk is full after half a page', '53100', bytes_left => 4096 ],
		[ 'the flush of the page fails', '58030', is_broken => 1 ]);

	for my $case (@cases)
	{
		my ($what, $expected, @disk) = @$case;

		start_on_disk($node, @disk);
		for (1 .. 2)
		{
			my ($state, $message, $hint) =
			  sqlstate_of($node, 'SELECT snowflake_nextval()');
			is($state, $expected, "$what: the SQLSTATE is that of the failed call");
			like($hint, qr/^No snowflake id is issued until file "global\/8947"/,
				"$what: the hint names the file");
		}
		ok(!-e mark_file($node), "$what: there is no file");
		ok(!-e $new_file, "$what: there is no file of another name");
		kill_hard($node);
		start_on_disk($node, @disk);
		is((sqlstate_of($node, 'SELECT snowflake_nextval()'))[0],
			$expected, "$what: after a crash the error is the same");
		set_disk($node, bytes_left => -1, is_broken => 0);
		my $batch = insert_batch($node, 10);
		ok(-e mark_file($node), "$what: there is a file when the cause is gone");
		kill_hard($node);
		start_server($node);
		is_unique_after($node, $batch, "$what: after the cause is gone");
		$node->stop;
		set_clock($node, 0);
		unlink mark_file($node);
	}

	# A crash may leave the file of the first name.
	PostgreSQL::Test::Utils::append_to_file($new_file, 'x' x 10_000);
	start_server($node);
	first_id_at_once($node, 'a file of the first name is left over');
	$node->stop;
	is(-s mark_file($node), 8192, 'the new file has one block');
	end_servers($node);
};

# A page that pg_upgrade or a DBA has copied from another cluster.
subtest 'a page of another cluster' => sub {
	my $one = new_server('one');
	my $two = PostgreSQL::Test::Cluster->new('two');

	# Make this cluster by initdb, so that it has a system identifier of its
	# own: all other clusters are copies of one cluster.
	$two->init(extra => [ $two->pg_version >= 18 ? '--no-data-checksums' : () ]);
	$two->append_conf(
		'postgresql.conf', preload_line() . q{
snowflake.worker_id = 7
snowflake.clock_tolerance = 60s
});
	start_server($two, 20);
	make_table($two);
	my $ahead = insert_batch($two, 10)->{newest};
	$two->stop;
	write_page($one, page_bytes($two));
	start_server($one);
	cmp_ok($one->safe_psql('postgres', 'SELECT snowflake_nextval()'),
		'>', $ahead, 'ids begin after the mark of the page');
	end_servers($one, $two);
};

# The page has room for sixteen nodes.  Its floor is the mark of all others.
subtest 'twenty worker ids, one after the other' => sub {
	my $node = new_server('many', "include 'case.conf'");
	my %batch;

	for my $worker_id (0 .. 19)
	{
		configure($node, "snowflake.worker_id = $worker_id");
		start_server($node);
		set_clock($node, AHEAD_S - $worker_id / 4);
		$batch{$worker_id} = insert_batch($node, 2000);
		$node->stop;
	}
	my $page = read_page($node);
	is($page->{entry_count}, 16, 'the page has sixteen entries');
	cmp_ok($page->{floor}, '>', 0, 'the page has a floor');
	for my $worker_id (0 .. 19)
	{
		my $begin = mark_of($page, $worker_id) // $page->{floor};
		cmp_ok($begin, '>', $batch{$worker_id}{newest} >> BITS_BELOW_TICK,
			"worker id $worker_id begins after its ids");
	}
	for my $worker_id (19, 0, 1)
	{
		configure($node, "snowflake.worker_id = $worker_id");
		start_server($node);
		is_unique_after($node, $batch{$worker_id}, "worker id $worker_id");
		$node->stop;
	}
	end_servers($node);
};

# ----- a page that the server refuses -----

my $node = new_server('main', "include 'case.conf'", 'log_statement = none');
my $file = mark_file($node);
configure($node, '');
start_server($node);
my $newest = insert_batch($node, 1000)->{newest};
$node->stop;
my $sound = page_bytes($node);

# Starts the server with these bytes as the page, and tests that the server
# issues no id and serves everything else.  Returns the SQLSTATE, the message
# and the hint of the refusal.
sub refusal_with
{
	my ($bytes, $what, @settings) = @_;

	configure($node, @settings);
	write_page($node, $bytes) if defined $bytes;
	start_server($node);
	my @refusal =
	  sqlstate_of($node, "SET statement_timeout = '5s'; SELECT snowflake_nextval()");
	isnt($refusal[0], '', "$what: no id is issued");
	isnt($refusal[2] // '', '', "$what: the refusal has a hint");
	is($node->safe_psql('postgres', 'SELECT count(*) > 0 FROM orders'),
		't', "$what: the server serves everything else");
	$node->stop;
	ok(page_bytes($node) eq $bytes, "$what: the page is left as it is")
	  if defined $bytes;
	return @refusal;
}

subtest 'a damaged page' => sub {
	my %fields = (
		magic => 0, version => 4, checksum => 8, entry_count => 12,
		tick_bits => 16, sequence_bits => 28, tick_us => 32, epoch => 40,
		floor => 48, holder => 56, lease_worker_id => 140, fence => 168,
		registry => 176, mover_holder => 192, entry_worker_id => 252,
		mark => 256, lead => 264);

	for my $field (sort keys %fields)
	{
		my $at = HEADER_SIZE + $fields{$field};
		my $bytes = $sound;

		substr($bytes, $at, 1) =
		  chr(ord(substr($bytes, $at, 1)) ^ (1 << int rand 8));
		my ($state, $message) = refusal_with($bytes, "$field flipped");
		like($state, $field eq 'version' ? qr/XX001|0A000/ : qr/^XX001$/,
			"$field flipped: the SQLSTATE is that of a damaged page");
		like($message, qr/^snowflake ids cannot be issued because the page/,
			"$field flipped: the message names the page");
	}
	my %others = (
		'zeroed' => "\0" x 8192,
		'noise' => pack('C*', map { int rand 256 } 1 .. 8192),
		'first half zeroed' => "\0" x 4096 . substr($sound, 4096),
		'cut off' => substr($sound, 0, 4096),
		'one byte' => 'x',
		'empty' => '',
		'too many entries' =>
		  seal_page(with_field($sound, 12, 'L', 17)),
		'very many entries' => with_field($sound, 12, 'L', 0x10000000));
	for my $what (sort keys %others)
	{
		is((refusal_with($others{$what}, $what))[0], 'XX001', "$what: the SQLSTATE is that of a damaged page");
	}
};

subtest 'a newer version' => sub {
	my ($state, $message) = refusal_with(
		seal_page(with_field($sound, 4, 'L', 2)), 'newer version');
	is($state, '0A000', 'a newer version: the SQLSTATE is feature_not_supported');
	like($message, qr/of a newer version/, 'a newer version: the message names it');
};

SKIP:
{
	skip 'root may read everything', 1 if $> == 0;
	subtest 'a file that cannot be read' => sub {
		write_page($node, $sound);
		chmod 0, $file;
		like((refusal_with(undef, 'mode 000'))[0], qr/42501|58030/,
			'mode 000: the SQLSTATE is that of a file that cannot be read');
		chmod 0600, $file;
		ok(page_bytes($node) eq $sound, 'the page is left as it is');
	};
}

subtest 'zero_damaged_pages, with checksums' => sub {
	write_page($node, $sound);
	command_ok(
		[ 'pg_checksums', '--enable', '--no-sync', '-D', $node->data_dir ],
		'checksums enabled');
	my $summed = page_bytes($node);
	for my $settings ('zero_damaged_pages = on', 'ignore_checksum_failure = on',
		'zero_damaged_pages = off')
	{
		is( (refusal_with(
					with_field($summed, 264, 'q', 1), $settings, $settings))[0],
			'XX001', "$settings: the SQLSTATE is that of a damaged page");
	}
	write_page($node, $summed);
	command_ok([ 'pg_checksums', '--disable', '--no-sync', '-D', $node->data_dir ],
		'checksums disabled');
};

# A layout is accepted only if every id that can be made now is above every id
# that the page allows to exist.
subtest 'another layout or epoch' => sub {
	my @cases = (
		[ 'half the ids', 0, "snowflake.layout = '42/4/5/12'" ],
		[ 'a later epoch', 0, "snowflake.epoch = '2015-01-01 00:00:00+00'" ],
		[ 'a longer tick', 0, "snowflake.layout = '41/5/5/12\@10ms'" ],
		[ 'an earlier epoch', 1, "snowflake.epoch = '2000-01-01 00:00:00+00'" ],
		[   'more bits below the tick', 1,
			"snowflake.epoch = '2000-01-01 00:00:00+00'",
			"snowflake.layout = '40/5/5/13'" ],
		[   'an earlier epoch, but fewer bits below the tick', 0,
			"snowflake.epoch = '2000-01-01 00:00:00+00'" ]);

	write_page($node, $sound);
	for my $case (@cases)
	{
		my ($what, $is_accepted, @settings) = @$case;

		if ($is_accepted)
		{
			configure($node, @settings);
			start_server($node);
			is( $node->safe_psql('postgres',
					"SELECT min(id) > $newest FROM snowflake_nextvals(100) AS id"),
				't',
				"$what: accepted, and all ids are above those before");
			$newest = $node->safe_psql('postgres', 'SELECT snowflake_nextval()');
			$node->stop;
			next;
		}
		my $bytes = page_bytes($node);
		my ($state, $message, $hint) = refusal_with($bytes, $what, @settings);
		is($state, '22023', "$what: the SQLSTATE is invalid_parameter_value");
		like($message,
			qr/with the present "snowflake.layout" and "snowflake.epoch"/,
			"$what: the message names the parameters");
		like($hint, qr/4[01]\/5\/5\/1[23]/, "$what: the hint names the layout");
	}
	configure($node,
		"snowflake.epoch = '2000-01-01 00:00:00+00'",
		"snowflake.layout = '40/5/5/13'");
	start_server($node);
	cmp_ok($node->safe_psql('postgres', 'SELECT snowflake_nextval()'),
		'>', $newest, 'with the former layout ids are issued again');
	$node->stop;
};

done_testing();
