// Speed-up against size: a line for each rival, with the band that its samples fill.

/** A chart for every op with several sizes, and one table for all that have a single one. */
function speedupPanels(rows, clock, lookOf) {
    const panels = panelsOf(rows).filter((panel) => rivalsOf(panel, clock).length);
    const isSingle = (panel) => unique(panel.map((row) => row.elements)).length === 1;
    const charts = panels.filter((panel) => !isSingle(panel));
    const single = panels.filter(isSingle).flat();
    return [
        ...charts.map((panel) => speedupPanel(panel, clock, lookOf)),
        single.length ? singleSizes(single, clock) : null,
    ];
}

/** The names of rivals with a speed-up in any of these rows. */
const rivalsOf = (rows, clock) =>
    unique(
        rows.flatMap((row) =>
            row.entries
                .filter((e) => isRival(row, e) && speedupOf(row, e.name, clock))
                .map((e) => e.name),
        ),
    );

function speedupPanel(rows, clock, lookOf) {
    const pointsOf = (name) =>
        rows.map((row) => ({ row, span: speedupOf(row, name, clock) })).filter((p) => p.span);
    const names = rivalsOf(rows, clock);
    const lines = names.map((name) => ({ name, look: lookOf(name), points: pointsOf(name) }));
    return h(
        "article.panel",
        null,
        panelTitle(rows[0]),
        responsive((width) => speedupChart(rows, lines, clock, width)),
        folded("The same as a table", speedupTable(titleOf(rows[0]), rows, clock)),
    );
}

const singleSizes = (rows, clock) =>
    h(
        "article.panel.wide",
        null,
        h("h3", null, "Measured at one size"),
        speedupTable("one size", rows, clock),
    );

function speedupTable(title, rows, clock) {
    const lines = rows.map((row) => ({ row }));
    const rivals = rivalsOf(rows, clock).map((name) => ({
        title: `over ${name}`,
        num: true,
        value: ({ row }) => speedupOf(row, name, clock)?.median ?? null,
        cell: ({ row }) => {
            const text = gainText(row, { name }, clock);
            return text.length ? h("span", null, ...text) : NONE;
        },
    }));
    return sortable(
        `speedup ${title}`,
        `Speed-up, ${title}`,
        [...rowColumns(lines), ...rivals],
        lines,
    );
}

function speedupChart(rows, lines, clock, width) {
    const height = Math.round(Math.max(210, Math.min(300, width * 0.5)));
    const box = { left: 46, right: width - 18, top: 14, bottom: height - 40 };
    const spans = lines.flatMap((line) => line.points.map((p) => p.span));
    const sizes = unique(rows.map((row) => row.elements));
    const least = Math.min(0.9, ...spans.map((p) => Math.min(p.low, p.median)));
    const most = Math.max(1.2, ...spans.map((p) => Math.max(p.high, p.median)));
    const x = logScale([sizes[0], sizes.at(-1)], [box.left + 14, box.right - 14]);
    const y = logScale([least / 1.06, most * 1.06], [box.bottom, box.top]);
    const svg = s(
        "svg",
        {
            width,
            height,
            role: "group",
            "aria-label": `Speed-up of ${rows[0].subject} against size, ${titleOf(rows[0])}. Arrow keys go from point to point.`,
        },
        ...valueGrid(gridLines(least / 1.06, most * 1.06, 5), box, y),
        ...sizeTicks(sizes, box, x),
        s("line.unity", { x1: box.left, x2: box.right, y1: y(1), y2: y(1) }),
        s("text.tick.strong", { x: box.left - 8, y: y(1) + 4, "text-anchor": "end" }, "1×"),
        s("text.axis", { x: box.right, y: height - 4, "text-anchor": "end" }, "elements"),
        ...lines.map((line) => band(line, x, y)),
        ...lines.map((line) => curve(line, x, y)),
    );
    const points = lines.flatMap((line) =>
        line.points.map((point) => speedupPoint(point, line, clock, x, y)),
    );
    svg.append(...points);
    walkable(svg, points);
    return svg;
}

/** The 1× line has a label of its own: what comes too close to it has none. */
function valueGrid(values, box, y) {
    return values
        .filter((v) => v !== 1)
        .flatMap((v) => [
            s("line.grid", { x1: box.left, x2: box.right, y1: y(v), y2: y(v) }),
            Math.abs(y(v) - y(1)) < 13
                ? null
                : s(
                      "text.tick",
                      { x: box.left - 8, y: y(v) + 4, "text-anchor": "end" },
                      `${Number(v.toPrecision(3))}×`,
                  ),
        ])
        .filter(Boolean);
}

/** Sizes that were measured, less those whose label would touch the one before. */
function sizeTicks(sizes, box, x) {
    let free = -Infinity;
    return sizes.flatMap((size) => {
        const at = x(size);
        const tick = s("line.grid", { x1: at, x2: at, y1: box.top, y2: box.bottom + 4 });
        if (at < free) return [tick];
        free = at + 46;
        return [
            tick,
            s("text.tick", { x: at, y: box.bottom + 18, "text-anchor": "middle" }, amount(size)),
        ];
    });
}

const pathThrough = (points) => points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");

function band({ look, points }, x, y) {
    if (points.length === 1) {
        const [{ row, span }] = points;
        const at = x(row.elements);
        return s(`line.spread.${look}`, { x1: at, x2: at, y1: y(span.low), y2: y(span.high) });
    }
    const upper = points.map(({ row, span }) => [x(row.elements), y(span.high)]);
    const lower = points.map(({ row, span }) => [x(row.elements), y(span.low)]).reverse();
    return s(`path.band.${look}`, { d: `M${pathThrough([...upper, ...lower])}Z` });
}

function curve({ look, points }, x, y) {
    const through = points.map(({ row, span }) => [x(row.elements), y(span.median)]);
    return s(`path.curve.${look}`, { d: `M${pathThrough(through)}` });
}

function speedupPoint({ row, span }, { name, look }, clock, x, y) {
    const point = mark(look, x(row.elements), y(span.median));
    if (span.verdict === "ambiguous") point.classList.add("hollow");
    point.setAttribute("role", "img");
    point.setAttribute("data-value", span.median);
    return withTip(point, [
        `${factor(span.median)} over ${name}${span.verdict === "faster" ? "" : `, ${span.verdict}`}`,
        `${spread(span, factor)}, n = ${span.n}, ${clockWord(clock)}`,
        `${titleOf(row)}, ${sizeOf(row)}`,
    ]);
}
