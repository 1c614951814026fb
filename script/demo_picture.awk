# Draws insert activity over time as SVG, one chart below another.  Reads for each
# chart a line "title ..." and then lines of milliseconds, worker id and ids, in
# order of time.

BEGIN {
    width = 760; height = 220; left = 70; top = 50
    colour[1] = "#1b6ca8"; colour[2] = "#d9822b"; colour[3] = "#2e8b57"
}

/^title / {
    chart++
    title[chart] = substr($0, 7)
    next
}

{
    row = ++rows[chart]
    at[chart, row] = $1
    worker[chart, row] = $2
    ids[chart, row] = $3
    if ($1 + 0 > last[chart])
        last[chart] = $1 + 0
    if ($3 + 0 > most[chart])
        most[chart] = $3 + 0
}

function round_up(n,    unit) {
    unit = 1
    while (n > unit * 10)
        unit *= 10
    return unit * int(n / unit + 1)
}

# Draws one server's ids: a bar for each bucket that has some.
function draw(c, w, y0, ceiling,    row, h) {
    printf "<g fill=\"%s\" fill-opacity=\"0.75\">\n", colour[w]
    for (row = 1; row <= rows[c]; row++) {
        if (worker[c, row] != w)
            continue
        h = height * ids[c, row] / ceiling
        printf "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            left + width * at[c, row] / (last[c] + 50), y0 - base[c, at[c, row]] - h,
            width * 50 / (last[c] + 50), h
        base[c, at[c, row]] += h
    }
    print "</g>"
}

function draw_chart(c,    w, y0, row, ceiling, sum, second, x) {
    y0 = top + height + (c - 1) * (height + 110)
    for (row = 1; row <= rows[c]; row++) {
        sum[at[c, row]] += ids[c, row]
        if (sum[at[c, row]] > most[c])
            most[c] = sum[at[c, row]]
    }
    ceiling = round_up(most[c])
    printf "<text x=\"%d\" y=\"%d\" font-size=\"16\">%s</text>\n",
        left, y0 - height - 16, title[c]
    x = left + 420
    for (w = 1; w <= 3; w++) {
        for (row = 1; row <= rows[c] && worker[c, row] != w; row++)
            ;
        if (row > rows[c])
            continue
        draw(c, w, y0, ceiling)
        printf "<text x=\"%d\" y=\"%d\" fill=\"%s\">worker id %d</text>\n",
            x, y0 - height - 16, colour[w], w
        x += 100
    }
    printf "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#555\"/>\n",
        left, y0 - height, y0, left + width
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n",
        left - 6, y0 - height + 10, ceiling
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">ids in</text>\n",
        left - 6, y0 - height / 2
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">50 ms</text>\n",
        left - 6, y0 - height / 2 + 16
    for (second = 0; second * 1000 <= last[c]; second++)
        printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d s</text>\n",
            left + width * second * 1000 / (last[c] + 50), y0 + 20, second
}

END {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\"" \
        " font-family=\"sans-serif\" font-size=\"13\">\n",
        left + width + 30, chart * (height + 110)
    print "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    for (c = 1; c <= chart; c++)
        draw_chart(c)
    print "</svg>"
}
