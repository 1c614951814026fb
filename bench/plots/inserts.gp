# Time to insert by type of key, one bar per way of inserting.  The caller sets
# rows.
load plots."/common.gp"
set title sprintf("Inserting %s rows, by type of key", rows)
set ylabel "seconds"
set yrange [0:*]
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.85
set xtics rotate by -25 noenhanced
plot for [i = 2:3] data using i:xtic(1) title columnheader(i)
