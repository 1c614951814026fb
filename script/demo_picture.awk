# Draws insert activity over time as SVG, one chart below another.  Reads for each
# chart these lines, with times in milliseconds:
#
#   title TEXT
#   TIME WORKER_ID IDS     a bucket of 50 ms and its ids; in order of time
#   crash SINCE UNTIL      no ids were made between; not every chart has this line
#
# A unit is a tenth of a pixel.  All numbers are integers, because awk may read
# and print a decimal comma, as the locale has it.

BEGIN {
    bucket = 50
    left = 560; width = 7240; height = 1500
    colour[1] = "#1b6ca8"; colour[2] = "#e08e36"; colour[3] = "#2e8b57"
}

/^title / {
    chart++
    title[chart] = substr($0, 7)
    next
}

/^crash / {
    since[chart] = $2 - start[chart]
    until[chart] = $3 - start[chart]
    next
}

{
    if (!rows[chart])
        start[chart] = $1
    row = ++rows[chart]
    at[chart, row] = $1 - start[chart]
    worker[chart, row] = $2
    ids[chart, row] = $3
    has_worker[chart, $2] = 1
    end[chart] = at[chart, row] + bucket
    sum = sums[chart, $1] += $3
    if (sum > $3)
        stacked[chart] = ", stacked"
    if (sum > most[chart])
        most[chart] = sum
}

# Rounds up to an even number of steps of 10, 20, 25, 50, 100, 200, 250 ...  Takes
# the smallest step that needs at most 16, so that more than four fifths are
# filled.
function round_up(n,    two_steps, unit, i) {
    split("2 4 5 10", two_steps)
    for (unit = 10; ; unit *= 10)
        for (i = 1; i <= 4; i++)
            if (n <= 8 * two_steps[i] * unit)
                return round_up_to(n, two_steps[i] * unit)
}

function round_up_to(n, unit) {
    return unit * int((n + unit - 1) / unit)
}

# Puts commas between thousands.
function grouped(n) {
    if (n < 1000)
        return sprintf("%d", n)
    return grouped(int(n / 1000)) sprintf(",%03d", n % 1000)
}

function chart_height(c) {
    return 440 + (c in since ? 240 : 0) + height + 600
}

function x_of(c, ms) {
    return left + width * ms / end[c]
}

function text(x, y, anchor, attributes, what) {
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\"%s>%s</text>\n",
        x, y, anchor, attributes, what
}

function rect(x, y, w, h, fill) {
    printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n",
        x, y, w, h, fill
}

function draw_heading(c, y,    w, x) {
    text(left, y, "start", " font-size=\"160\" font-weight=\"bold\"", title[c])
    text(left, y + 210, "start", " fill=\"#555\"",
        "ids in each " bucket " ms" stacked[c])
    x = left + width
    for (w = 3; w >= 1; w--) {
        if (!((c, w) in has_worker))
            continue
        text(x, y + 210, "end", "", "worker id " w)
        rect(x - 920, y + 110, 110, 110, colour[w])
        x -= 1100
    }
}

function draw_axes(c, y0, ceiling,    i, y, second, seconds) {
    for (i = 0; i <= 2; i++) {
        y = y0 - height * i / 2
        rect(left, y, width, 10, i == 0 ? "#333" : "#ddd")
        text(left - 80, y + 45, "end", "", grouped(ceiling * i / 2))
    }
    seconds = int(end[c] / 8000) + 1
    for (second = 0; second * 1000 <= end[c]; second += seconds)
        text(x_of(c, second * 1000), y0 + 190, "middle", "", second " s")
}

# Shades the time without ids.  The text is above all bars.
function draw_crash(c, y0,    x, x2, hundredths) {
    x = x_of(c, since[c])
    x2 = x_of(c, until[c])
    hundredths = int((until[c] - since[c] + 5) / 10)
    rect(x, y0 - height - 60, x2 - x, height + 60, "#f6cfc9")
    text((x + x2) / 2, y0 - height - 110, "middle",
        " fill=\"#a93226\" font-weight=\"bold\"",
        sprintf("crash: %d.%02d s without ids", int(hundredths / 100),
            hundredths % 100))
}

# Draws one server's ids: a bar for each bucket that has some, upon the bars of
# the servers before.
function draw_bars(c, w, y0, ceiling,    row, y) {
    printf "<path fill=\"%s\" d=\"", colour[w]
    for (row = 1; row <= rows[c]; row++) {
        if (worker[c, row] != w)
            continue
        y = y0 - height * base[c, at[c, row]] / ceiling
        base[c, at[c, row]] += ids[c, row]
        printf "M%d %dV%dH%dV%dz\n", x_of(c, at[c, row]), y,
            y0 - height * base[c, at[c, row]] / ceiling,
            x_of(c, at[c, row] + bucket), y
    }
    print "\"/>"
}

function draw_chart(c, y,    y0, w, ceiling) {
    y0 = y + chart_height(c) - 600
    ceiling = round_up(most[c])
    draw_heading(c, y)
    draw_axes(c, y0, ceiling)
    if (c in since)
        draw_crash(c, y0)
    for (w = 1; w <= 3; w++)
        if ((c, w) in has_worker)
            draw_bars(c, w, y0, ceiling)
}

END {
    for (c = 1; c <= chart; c++)
        total += chart_height(c)
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\"" \
        " viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"130\">\n",
        (left + width + 200) / 10, total / 10, left + width + 200, total
    print "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    y = 300
    for (c = 1; c <= chart; c++) {
        draw_chart(c, y)
        y += chart_height(c)
    }
    print "</svg>"
}
