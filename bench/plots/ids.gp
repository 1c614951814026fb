# Ids per second against sessions, one curve per peer.
load plots."/common.gp"
set title "Ids per second"
set xlabel "sessions"
set logscale x 2
set xtics (1, 2, 8, 64)
set xrange [0.9:66]
set ylabel "millions"
set logscale y 10
set format y "%g"
to_axis(y) = log10(y / 1e6)
from_axis(p) = 10 ** p
gap = 0.13
last = 64
end = 75
load plots."/labels.gp"
plot for [i = 2:curves + 1] data using 1:(column(i) / 1e6) \
	with linespoints lt i - 1 lw 2 pt 7 ps 0.6
