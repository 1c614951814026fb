# Percentiles of the latency, one curve per statement.
load plots."/common.gp"
set title "Latency of one id, eight connections"
set xlabel "percentile"
set ylabel "microseconds"
set yrange [0:*]
set key inside left top
stats data skip 1 nooutput
plot for [i = 2:STATS_columns] data using 0:(column(i)):xtic(1) \
	with linespoints lw 2 pt 7 ps 0.6 title columnheader(i)
