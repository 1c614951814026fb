# Ids per second against sessions, one curve per peer.
load plots."/common.gp"
set title "Ids per second"
set xlabel "sessions"
set logscale x 2
set xtics (1, 2, 8, 64)
set xrange [0.9:72]
set ylabel "millions"
set logscale y 10
set format y "%g"
stats data skip 1 nooutput
plot for [i = 2:STATS_columns] data using 1:(column(i) / 1e6) \
	with linespoints lw 2 pt 7 ps 0.6 title columnheader(i)
