// Roofline: how fast each contender computes, under what the machine was measured to allow.

/** One point for every contender of every row whose operations and bytes are known. */
function rooflinePoints(rows, lookOf) {
    return rows
        .filter((row) => row.flops > 0 && row.bytes_least > 0)
        .flatMap((row) =>
            row.entries
                .filter((e) => !e.error && !isYardstick(e) && e.flop_per_second > 0)
                .map((entry) => ({
                    row,
                    entry,
                    look: lookOf(entry.name),
                    x: row.flops / row.bytes_least,
                    y: entry.flop_per_second,
                })),
        );
}

/** The compute roofs that these rows stand under: float32, and that of each dtype shown. */
function computeRoofs(roofs, rows) {
    const gemm = roofs?.gemm || {};
    const dtypes = new Set(["float32", ...rows.map((row) => row.dtype)]);
    const shown = Object.entries(gemm).filter(([dtype, rate]) => dtypes.has(dtype) && rate > 0);
    // Matrices of float32 may be multiplied as three of float16: the roof of rows that do.
    const split = gemm.float16 / 3;
    const below = (row) => row.flops / row.floor > 1.001 * gemm.float32;
    if (split > gemm.float32 && rows.some((row) => row.dtype === "float32" && below(row)))
        shown.push(["float32 as three float16", split]);
    return shown.sort((a, b) => a[1] - b[1]);
}

function rooflineChart(points, roofs, gemm, width) {
    const height = Math.round(Math.max(340, Math.min(480, width * 0.5)));
    const box = { left: 62, right: width - 14, top: 22, bottom: height - 46 };
    const memory = roofs?.copy > 0 ? roofs.copy : null;
    const ridges = memory ? gemm.map(([, rate]) => rate / memory) : [];
    const xs = [...points.map((p) => p.x), ...ridges];
    const ys = [...points.map((p) => p.y), ...gemm.map(([, rate]) => rate)];
    const xRange = [Math.min(...xs) / 2.5, Math.max(...xs) * 3];
    const yRange = [Math.min(...points.map((p) => p.y)) / 2.5, Math.max(...ys) * 2.5];
    const x = logScale(xRange, [box.left, box.right]);
    const y = logScale(yRange, [box.bottom, box.top]);
    const svg = s(
        "svg",
        {
            width,
            height,
            role: "group",
            "aria-label":
                "Roofline: arithmetic intensity against rate. Arrow keys go from point to point.",
        },
        ...rooflineGrid(xRange, yRange, box, x, y, width),
    );
    svg.append(
        ...roofLines(memory, gemm, xRange, yRange, box, x, y),
        ...(width < 500 ? [] : opLabels(points, memory, box, x, y)),
    );
    // Rivals first: the subject lies on top.
    const behind = [...points].sort(
        (a, b) => (a.entry.name === a.row.subject) - (b.entry.name === b.row.subject),
    );
    const marks = behind.map((point) => rooflinePoint(point, x, y));
    svg.append(...marks);
    walkable(svg, marks);
    return svg;
}

/** The op's name above the roof, where there is room for it. */
function opLabels(points, memory, box, x, y) {
    const ops = new Map();
    for (const { row, x: intensity } of points) {
        const at = Math.round(x(intensity) / 15) * 15; // names closer than a line's height share one
        ops.set(at, {
            at: x(intensity),
            intensity,
            names: unique([...(ops.get(at)?.names || []), row.op]),
        });
    }
    return [...ops.values()].flatMap(({ at, intensity, names }) => {
        const top = memory
            ? y(intensity * memory) - 14
            : Math.min(...points.map((p) => y(p.y))) - 14;
        const text =
            names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(", ");
        if (top - box.top < text.length * 6.6) return [];
        return [
            s(
                "text.op-label",
                { transform: `translate(${(at + 4).toFixed(1)},${top.toFixed(1)}) rotate(-90)` },
                text,
            ),
        ];
    });
}

function rooflinePoint({ row, entry, look, x: intensity, y: rate }, x, y) {
    const point = mark(look, x(intensity), y(rate));
    point.classList.add(entry.name === row.subject ? "solid" : "hollow");
    point.setAttribute("role", "img");
    point.setAttribute("data-value", rate);
    const share = known(entry.roof_share)
        ? `${percent(entry.roof_share)} of the ${row.roof || "measured"} roof`
        : "";
    return withTip(point, [
        `${entry.name}${share && `: ${share}`}`,
        `${flopRate(rate)}, ${bandwidth(entry.bytes_per_second)} at ${figures(intensity)} FLOP/byte`,
        `${titleOf(row)}, ${sizeOf(row)}`,
    ]);
}

function rooflineTable(points, lookOf) {
    const columns = [
        ...rowColumns(points),
        contenderColumn(lookOf),
        number(
            "FLOP/byte",
            (p) => p.x,
            (x) => figures(x),
        ),
        number("rate", (p) => p.y, flopRate),
        number("bandwidth", (p) => p.entry.bytes_per_second, bandwidth),
        number("of the roof", (p) => p.entry.roof_share, percent),
        { title: "roof", value: (p) => p.row.roof },
    ];
    return sortable("roofline-table", "Points of the roofline", columns, points);
}
