# Percentiles of the latency, one curve per statement.
load plots."/common.gp"
set title "Latency of one id, eight connections"
set xlabel "percentile"
set ylabel "microseconds"
set yrange [0:*]
to_axis(y) = y
from_axis(p) = p
gap = 20
last = 4
end = 4.1
load plots."/labels.gp"
plot for [i = 2:curves + 1] data using 0:(column(i)):xtic(1) \
	with linespoints lt i - 1 lw 2 pt 7 ps 0.6
