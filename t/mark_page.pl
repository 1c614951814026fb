# The page of the high-water mark: what is in it, and where ids begin after a page
# that is torn by a crash, lost, deleted, full of nodes or of another cluster.
# The server refuses ids for a page that is damaged or of a newer version, and
# decodes none by a layout that it would have to guess.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::stat;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SnowflakeRecovery;
use SnowflakeServer;
use SnowflakeServer qw(is_alive suspend_postmaster);
use SnowflakeSession;
use SnowflakeTest;
use SnowflakeTime;
use Test::More;

use constant {
	BITS_BELOW_TICK => 22,
	EPOCH_MS => 1288834974657,
	HEADER_SIZE => 24,            # of PostgreSQL, before the contents
	NODES => 16,                  # of which a page has room for the marks
};

my $issue = 'SELECT snowflake_nextval()';

sub page_bytes
{
	my ($node) = @_;
	return slurp_file(mark_file($node));
}

sub enable_checksums
{
	my ($node) = @_;
	return command_ok(
		[ 'pg_checksums', '--enable', '--no-sync', '-D', $node->data_dir ],
		'checksums enabled');
}

# Kills all processes of a server but the postmaster, which recovers the data: a
# crash without a start.  A function changes files in between.
sub crash
{
	my ($node, $change) = @_;
	my $offset = -s $node->logfile;
	my @children = suspend_postmaster($node->{_pid});

	kill 'KILL', @children;
	wait_for(sub { !grep { is_alive($_) } @children }) or die "processes survive SIGKILL: @children\n";
	$change->() if defined $change;
	resume($node);
	wait_for(sub { logged($node, $offset) =~ /database system is ready to accept connections/ })
	  or die "the server does not recover\n";
	return;
}

# ----- the contents -----

my $node = new_server('contents', "include 'case.conf'",
	'snowflake.datacenter_id = 3', 'restart_after_crash = on');
configure($node);
start_server($node);
value_of($node, 'SELECT snowflake_worker_id(910499571847892992)');
ok(!-e mark_file($node), 'there is no page before the first id');
my $newest = insert_batch($node)->{newest};
$node->stop;
my $sound = page_bytes($node);
my $page = read_page($node);

is(length $sound, 8192, 'the file has one block');
is(sprintf('%04o', stat(mark_file($node))->mode & 07777), '0600', 'only the owner may read and write the file');
is(sprintf('%X', $page->{magic}), '534E464C', 'the page has the magic number');
is($page->{version}, 1, 'the page has the version');
ok(seal_page($sound) eq $sound, 'the checksum is the CRC-32C of all contents');
is(join('/', @$page{qw(tick_bits datacenter_bits worker_bits sequence_bits tick_us)}),
	'41/5/5/12/1000', 'the page has the layout');
is($page->{lease_worker_id}, -1, 'the page has no lease');
is($page->{entry_count}, 1, 'the page has one node');
is($page->{entries}[0]{headroom_us}, 500_000, 'the entry says how far its mark is ahead of an id');
is(unpack('S', substr($sound, 12, 2)), HEADER_SIZE + 248 + 24, 'pd_lower points to the end of the last entry');
cmp_ok(mark_of($page, 7, 3), '>', $newest >> BITS_BELOW_TICK, 'the mark is after all ids');
cmp_ok(mark_of($page, 7, 3), '<=', ($newest >> BITS_BELOW_TICK) + 500 + 2,
	'the mark is two intervals after the ids at most');
start_server($node);
value_of($node, 'CHECKPOINT');
ok(page_bytes($node) eq $sound, 'a server that issues no ids does not write the page');

# ----- a page that the server refuses -----

# Tests that a server refuses ids because of its page, and serves everything else.
sub is_refused
{
	my ($what, $expected, $message_pattern, $hint_pattern, $set) = @_;
	my $bytes = page_bytes($node);

	$set //= '';
	my ($state, $message, $hint) = sqlstate_of($node, $set . $issue);
	is($state, $expected, "$what: the SQLSTATE of the refusal");
	like($message, $message_pattern, "$what: the message");
	like($hint, $hint_pattern, "$what: the hint");
	is((sqlstate_of($node, "${set}SELECT snowflake_timestamp(max(id)) FROM orders"))[0],
		$expected, "$what: no layout is guessed");
	is(value_of($node, "SELECT count(snowflake_timestamp(id, '2010-11-04 01:42:54.657+00')) > 0 FROM orders"),
		't', "$what: the server serves everything else, and decodes by an explicit epoch");
	value_of($node, 'CHECKPOINT');
	ok(page_bytes($node) eq $bytes, "$what: the page is left as it is");
	return;
}

my $damaged = qr/^the page of the high-water mark of snowflake ids is damaged/;
my $way_out = qr/move file "global\/8947" in the data directory away/;
for my $case (
	[ 'another magic, sealed', seal_page(with_field($sound, 0, 'L', 0x534E464D)) ],
	[ 'a smaller mark', with_field($sound, 256, 'q', 1) ],
	[ 'too many entries, sealed', seal_page(with_field($sound, 12, 'S', NODES + 1)) ],
	[ 'zeroed', "\0" x 8192 ],
	[ 'cut off', substr($sound, 0, 4096) ],
	[ 'empty', '' ])
{
	my ($what, $bytes) = @$case;

	crash($node, sub { write_page($node, $bytes) });
	is_refused($what, 'XX001', $damaged, $way_out);
}
crash($node, sub { write_page($node, seal_page(with_field($sound, 4, 'L', 2))) });
is_refused('a newer version', '0A000', qr/of a newer version/, qr/Install the version/);

crash($node, sub { write_page($node, $sound); chmod 0, mark_file($node) });
my ($state, $message, $hint) = sqlstate_of($node, $issue);
like($state, qr/42501|58030/, 'a file that cannot be read: the SQLSTATE is that of the failed call');
like($hint, qr/can be read and written/, 'a file that cannot be read: the hint');
$node->stop;

# A mistake that is corrected before the first row.
unlink mark_file($node) or die $!;
configure($node, "snowflake.epoch = '2015-01-01 00:00:00+00'");
start_server($node);
is(value_of($node, "SELECT snowflake_nextval() < $newest"), 't', 'without the page a later epoch is accepted');
$node->stop;

# PostgreSQL raises an error of its own for a damaged page with zero_damaged_pages
# off, and returns zeros with zero_damaged_pages on.
configure($node);
write_page($node, $sound);
enable_checksums($node);
write_page($node, with_field(page_bytes($node), 264, 'q', 1));
start_server($node);
is_refused('zero_damaged_pages = off, with checksums', 'XX001', qr/^invalid page in block 0/, $way_out);
is_refused('zero_damaged_pages = on, with checksums', 'XX001', $damaged, $way_out,
	'SET zero_damaged_pages = on; ');
end_servers($node);

# ----- a page that counts as it is -----

# A page that a DBA has copied from another cluster, as after pg_upgrade, may have
# an LSN that this cluster's WAL has not reached yet.
$node = new_server('copied', "include 'case.conf'", 'restart_after_crash = on');
configure($node);
my $ahead = int((test_time() + 2) * 1000) - EPOCH_MS;
substr(my $copied = with_field($sound, 248, 'l', 0, 256, 'q', $ahead), 0, 8) = pack 'L2', 0x7F, 0x1000;
write_page($node, seal_page($copied));
start_server($node);
my $batch = insert_batch($node);
cmp_ok($batch->{newest} >> BITS_BELOW_TICK, '>=', $ahead, 'a page of another cluster: ids begin after its mark');
value_of($node, 'CHECKPOINT');
is(unpack('L', page_bytes($node)), 0, 'a page of another cluster is logged again, with an LSN of this one');
crash($node);
is_unique_after($node, $batch, 'a page of another cluster, after a crash');

# Without a page ids begin at the clock: the way out of a damaged page.
set_clock($node, 120);
insert_batch($node, 10);
$node->stop;
unlink mark_file($node) or die $!;
set_clock($node, 0);
start_server($node);
first_id_soon($node, 'the file is deleted');
ok(-e mark_file($node), 'the file is deleted: the server writes a new file');

# An entry is that of a datacenter and a worker id.
$node->stop;
configure($node, 'snowflake.datacenter_id = 1');
start_server($node);
value_of($node, $issue);
$node->stop;
$page = read_page($node);
is($page->{entry_count}, 2, 'one worker id in two datacenters: the page has an entry of each node');
cmp_ok(mark_of($page, 7, 1) // 0, '>', mark_of($page, 7, 0) // 0, 'one worker id in two datacenters: each node has its own mark');
configure($node);
start_server($node);

# ----- a full page -----

# The smallest mark of the page becomes its floor, which is the mark of all nodes
# without an entry.
value_of($node, 'TRUNCATE orders');
$batch = insert_ahead($node, 20);
$node->stop;
$page = page_bytes($node);
my $mark = mark_of(read_page($node), 7);
my @others = map { pack 'l2 q2', 0, 7 + $_, $mark + $_, 0 } 1 .. NODES - 1;
write_page($node,
	seal_page(with_field($page, 12, 'S', NODES, 272, 'a*', join '', @others)));
configure($node, 'snowflake.worker_id = 0');
set_clock($node, 20);
start_server($node);
value_of($node, $issue);
$node->stop;
$page = read_page($node);
is($page->{entry_count}, NODES, 'a full page has sixteen entries');
is($page->{floor}, $mark, 'the smallest mark is the floor');
ok(!defined mark_of($page, 7), 'the node of the smallest mark has no entry');
is(mark_of($page, 7 + $_), $mark + $_, 'worker id ' . (7 + $_) . ' has its entry') for 1, NODES - 1;
configure($node);
start_server($node);
is_unique_after($node, $batch, 'a node without an entry on a full page begins at the floor');
end_servers($node);

# ----- a page that redo has not written yet -----

# A standby that was killed after redo had extended the file, and before it wrote the
# page, has a page of zeros until redo comes to the record again.
$node = new_server('before_first_id');
start_server($node);
$node->backup('base');
my $standby = server_of_backup('extended', $node, 'base', [ has_streaming => 1 ], "include 'case.conf'");
configure($standby);
write_page($standby, "\0" x 8192);
start_server($standby);
my $decode = 'SELECT snowflake_worker_id(28672)';
my $reader = SnowflakeSession->new($standby);
is(join(' ', $reader->rows($decode)), '7', 'a standby with a page of zeros decodes as without a page');
insert_batch($node, 10);
wait_for_standby($node, $standby);
is(join(' ', $reader->rows($decode)), '7', 'the standby decodes when redo has written the page');
is(value_of($standby, 'SELECT count(*) FILTER (WHERE snowflake_worker_id(id) = 7) FROM orders'), 10, 'the standby decodes the ids of the primary');
$reader->quit;
value_of($node, 'CHECKPOINT');
wait_for_standby($node, $standby);
value_of($standby, 'CHECKPOINT');
$standby->stop;
write_page($standby, "\0" x 8192);
unlink $standby->data_dir . '/standby.signal' or die $!;
start_server($standby);
is((sqlstate_of($standby, $_))[0], 'XX001', "after recovery a page of zeros is damage: $_") for $issue, $decode;
end_servers($node, $standby);

# ----- a page that a crash has torn -----

# WAL has the whole page if the page was logged since the last checkpoint.  With
# checksums the server is started anew after each crash.
my %torn = (
	'older in its second half' => sub { substr($_[0], 0, 256) . substr($_[1], 256) },
	'cut off' => sub { substr($_[0], 0, 4096) },
	'noise' => sub { pack 'C*', map { int rand 256 } 1 .. 8192 },
	'lost' => sub { undef });
for my $is_checksummed (0, 1)
{
	my $kind = $is_checksummed ? ', with checksums' : '';
	my $ahead_s = 0;

	$node = new_server("torn$is_checksummed",
		$is_checksummed ? ()
		: ('restart_after_crash = on', 'full_page_writes = off', 'wal_level = minimal', 'max_wal_senders = 0'));
	enable_checksums($node) if $is_checksummed;
	start_server($node);
	for my $what ('lost', $is_checksummed ? 'noise' : ('cut off', 'older in its second half'))
	{
		insert_batch($node, 10);
		value_of($node, 'CHECKPOINT');
		my $old = page_bytes($node);
		$ahead_s += 2;
		$batch = insert_ahead($node, $ahead_s);
		my $tear = sub {
			my $bytes = $torn{$what}->(page_bytes($node), $old);
			defined $bytes ? write_page($node, $bytes) : unlink mark_file($node);
		};
		if ($is_checksummed)
		{
			kill_hard($node);
			$tear->();
			start_server($node);
		}
		else
		{
			crash($node, $tear);
		}
		is_unique_after($node, $batch, "a torn page, $what$kind");
		set_clock($node, $ahead_s);
	}
	$node->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		'the page in its file has PostgreSQL\'s checksum') if $is_checksummed;
	end_servers($node);
}

done_testing();
