# The style of all plots.  The caller sets data and output_file.
set terminal svg size 760,440 font "sans-serif,12" background "white"
set output output_file
set datafile separator "\t"
set datafile missing "NaN"
set key outside right top Left reverse noenhanced
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror

# Ten colours, so that no two series have one.
set linetype 1 lc rgb "#1b6ca8"
set linetype 2 lc rgb "#d1495b"
set linetype 3 lc rgb "#e08e36"
set linetype 4 lc rgb "#2e8b57"
set linetype 5 lc rgb "#7b4ea3"
set linetype 6 lc rgb "#8c564b"
set linetype 7 lc rgb "#17a2b8"
set linetype 8 lc rgb "#c2569b"
set linetype 9 lc rgb "#7f7f00"
set linetype 10 lc rgb "#333333"
set linetype cycle 10
