# Names each curve at its right end, in the curve's colour.  The caller sets
# to_axis(y) and from_axis(position), which turn a value into its position on the axis
# and back, gap, the least distance of two names, and end, where they begin.
unset key
set rmargin 31
stats data skip 1 nooutput
curves = STATS_columns - 1
array position[curves]
do for [i = 1:curves] {
	stats data using (last = column(i + 1)) skip 1 nooutput
	position[i] = to_axis(last)
}
do for [round = 1:100] {
	do for [i = 1:curves] {
		do for [j = 1:curves] {
			if (i < j && abs(position[i] - position[j]) < 0.99 * gap) {
				move = (gap - abs(position[i] - position[j])) / 2 * \
					(position[i] > position[j] ? 1 : -1)
				position[i] = position[i] + move
				position[j] = position[j] - move
			}
		}
	}
}
do for [i = 1:curves] {
	name = system(sprintf("head -n 1 '%s' | cut -f %d", data, i + 1))
	set label i name at end, from_axis(position[i]) left textcolor linetype i noenhanced
}
