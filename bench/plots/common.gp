# The style of all plots.  The caller sets data and output_file.
set terminal svg size 760,440 font "sans-serif,12" background "white"
set output output_file
set datafile separator "\t"
set datafile missing "NaN"
set key outside right top Left reverse noenhanced
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror

# gnuplot's own eight colours, without its pale yellow.
set linetype 5 lc rgb "#b59f00"
