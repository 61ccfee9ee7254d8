// Time of each contender at each size: a table whose second column is drawn.

function barsPanel(rows, clock, lookOf) {
    const tables = rows.map((row) => barsOfSize(row, clock, lookOf));
    const panel = h(
        rows.length > 1 ? "article.panel.wide" : "article.panel",
        null,
        panelTitle(rows[0]),
        h("div.sizes", null, ...tables),
    );
    walkable(panel, [...panel.querySelectorAll("svg.bar")]);
    return panel;
}

function barsOfSize(row, clock, lookOf) {
    const spans = row.entries.map((entry) => timeOf(entry, clock)).filter(Boolean);
    // A few wild samples must not make all bars short: their whisker is cut instead.
    const longest = Math.max(...spans.map((span) => span.median));
    const most = Math.min(1.25 * longest, Math.max(longest, ...spans.map((span) => span.high)));
    const yard = timeOf(entryOf(row, COPY), clock);
    const titles = ["contender", "bar", `${clockName(clock)} time`, `speed-up of ${row.subject}`];
    const lines = row.entries.map((entry) =>
        barLine(row, entry, clock, { most, yard, look: lookOf(entry.name) }),
    );
    const warnings = row.warnings.map((text) =>
        h("tr.warning", { role: "row" }, h("td", { colspan: 4, role: "cell" }, `Careful: ${text}`)),
    );
    // Named roles: on a phone the lines are laid out as a grid, which takes the table's own away.
    return h(
        "table.bars",
        { role: "table" },
        sizeCaption(row),
        h("colgroup", null, ...["name", "drawn", "time", "gain"].map((kind) => h(`col.${kind}`))),
        h(
            "thead.unseen",
            { role: "rowgroup" },
            h(
                "tr",
                { role: "row" },
                ...titles.map((title) => h("th", { scope: "col", role: "columnheader" }, title)),
            ),
        ),
        h("tbody", { role: "rowgroup" }, ...lines, ...warnings),
    );
}

function sizeCaption(row) {
    const share = subjectOf(row)?.roof_share;
    const floor = known(row.floor) ? `floor ${seconds(row.floor)}, ` : "";
    return h(
        "caption",
        null,
        h("b", null, amount(row.elements)),
        " ",
        h("span.soft", null, sizeWords(row)),
        known(share)
            ? h("span.share", null, `${floor}${percent(share)} of the ${row.roof || "measured"} roof`)
            : null,
    );
}

function barLine(row, entry, clock, scale) {
    const name = h(
        "th.name",
        { scope: "row", role: "rowheader", title: entry.about || null },
        entry.name,
    );
    if (entry.error) {
        return h(
            "tr.failed",
            { role: "row" },
            name,
            h("td.reason", { colspan: 3, role: "cell" }, `no time: ${entry.error}`),
        );
    }
    const span = timeOf(entry, clock);
    if (!span) {
        const why = entry.missing[clock] || "not measured";
        return h(
            "tr.absent",
            { role: "row" },
            name,
            h("td.reason", { colspan: 3, role: "cell" }, why),
        );
    }
    return h(
        isYardstick(entry) ? "tr.yardstick" : "tr",
        { role: "row" },
        name,
        h("td.drawn", { role: "cell" }, drawnBar(row, entry, span, clock, scale)),
        h("td.time", { role: "cell", "data-value": span.median }, seconds(span.median)),
        h("td.gain", { role: "cell" }, ...gainText(row, entry, clock)),
    );
}

function gainText(row, entry, clock) {
    if (entry.name === row.subject || isYardstick(entry)) return [];
    const span = speedupOf(row, entry.name, clock);
    if (!span) return [];
    return [
        h("b", { "data-value": span.median }, factor(span.median)),
        " ",
        h("span.soft", null, spread(span, figures)),
        " ",
        badge(span.verdict),
    ];
}

/** In percent of the column, so that it follows the width by itself. */
function drawnBar(row, entry, span, clock, { most, yard, look }) {
    // A floor of bytes is what the copy shows.
    const floor = clock === "cold" && row.roof === "compute" && row.floor < most ? row.floor : 0;
    const at = (x) => `${((100 * x) / most).toFixed(3)}%`;
    const upright = (x, top, bottom, kind) =>
        s(`line.${kind}`, { x1: at(x), x2: at(x), y1: top, y2: bottom });
    const whisker = isYardstick(entry) ? [] : whiskerOf(span, most, at, upright);
    const bar = s(
        `svg.bar.${look}`,
        { width: "100%", height: 20, role: "img" },
        isYardstick(entry)
            ? null
            : s("rect.fill", { x: 0, y: 4, height: 12, width: at(span.median), rx: 1.5 }),
        isYardstick(entry) ? upright(span.median, 0, 20, "yard") : null,
        yard && !isYardstick(entry) ? upright(yard.median, 0, 20, "yard.through") : null,
        floor && !isYardstick(entry) ? upright(floor, 0, 20, "floor") : null,
        ...whisker,
    );
    return withTip(bar, barTip(row, entry, span, clock));
}

function whiskerOf({ low, high }, most, at, upright) {
    if (!known(low) || !known(high)) return [];
    const cut = high > most * 1.001;
    const arrow = s(
        "svg",
        { x: "100%", y: 10, overflow: "visible" },
        s("path.arrow", { d: "M-1,-4L5,0L-1,4Z" }),
    );
    return [
        s("line.whisker", { x1: at(low), x2: at(Math.min(high, most)), y1: 10, y2: 10 }),
        upright(low, 7, 13, "whisker"),
        cut ? arrow : upright(high, 7, 13, "whisker"),
    ];
}

function barTip(row, entry, span, clock) {
    const gain = isRival(row, entry) && speedupOf(row, entry.name, clock);
    return [
        `${entry.name}: ${seconds(span.median)}`,
        `${clockName(clock)}, ${spread(span, seconds)}, n = ${span.n}`,
        gain
            ? `${row.subject} is ${factor(gain.median)} as fast (${spread(gain, factor)}), ${gain.verdict}`
            : "",
        entry.name !== row.subject || !known(entry.roof_share)
            ? ""
            : `${percent(entry.roof_share)} of the ${row.roof} roof`,
        `${titleOf(row)}, ${sizeOf(row)}`,
    ];
}
