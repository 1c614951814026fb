#!/usr/bin/perl
# Prints how many processors all processes of a cluster use together on average:
# user and system time, from /proc.
#
#   cpu.pl POSTMASTER_PID DELAY SECONDS
#
# The delay excludes the start of the sessions.  The sessions must run until the
# end, because /proc does not show the time of a process that has exited.
use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(sleep time);

my ($postmaster, $delay, $seconds) = @ARGV;

sub processor_seconds
{
	my $ticks = 0;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $stat, '<', $file or next;
		my $line = <$stat> // next;
		my ($pid) = $line =~ /^(\d+)/;
		# The process's name, in parentheses, can contain any character.
		my @fields = split ' ', $line =~ s/^.*\)//r;
		next unless $pid == $postmaster || $fields[1] == $postmaster;
		$ticks += $fields[11] + $fields[12];
	}
	return $ticks / POSIX::sysconf(&POSIX::_SC_CLK_TCK);
}

sleep $delay;
my ($used, $begun) = (processor_seconds(), time);
sleep $seconds;
printf "%.3f\n", (processor_seconds() - $used) / (time - $begun);
