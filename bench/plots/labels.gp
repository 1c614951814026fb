# Names each curve at its right end, in the curve's colour, and joins the two by a
# line.  The names are in the order of the curves' ends.  The caller sets to_axis(y)
# and from_axis(position), which turn a value into its position on the axis and back,
# gap, the least distance of two names, last, where the curves end, and end, where the
# names begin.
unset key
set rmargin 31
stats data skip 1 nooutput
curves = STATS_columns - 1
array value[curves]
array position[curves]
array rank[curves]    # the curves, from the lowest end to the highest
do for [i = 1:curves] {
	stats data using (value[i] = column(i + 1)) skip 1 nooutput
	position[i] = to_axis(value[i])
	rank[i] = i
}
do for [round = 1:curves] {
	do for [k = 1:curves - 1] {
		if (value[rank[k]] > value[rank[k + 1]]) {
			swapped = rank[k]
			rank[k] = rank[k + 1]
			rank[k + 1] = swapped
		}
	}
}
# Push neighbours apart until all have room.
do for [round = 1:200] {
	do for [k = 1:curves - 1] {
		missing = gap - (position[rank[k + 1]] - position[rank[k]])
		if (missing > 0.01 * gap) {
			position[rank[k]] = position[rank[k]] - missing / 2
			position[rank[k + 1]] = position[rank[k + 1]] + missing / 2
		}
	}
}
do for [i = 1:curves] {
	name = system(sprintf("head -n 1 '%s' | cut -f %d", data, i + 1))
	set arrow i from last, from_axis(to_axis(value[i])) to end, from_axis(position[i]) nohead linetype i linewidth 0.5
	set label i name at end, from_axis(position[i]) left textcolor linetype i noenhanced offset 0.3, 0
}
