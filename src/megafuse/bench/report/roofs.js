// What lies behind the points of a roofline: the grid, and the roofs of the machine.

function rooflineGrid(xRange, yRange, box, x, y, width) {
    const columns = gridLines(...xRange, width < 500 ? 5 : 8);
    const lines = gridLines(...yRange, 8);
    return [
        ...columns.flatMap((v) => [
            s("line.grid", { x1: x(v), x2: x(v), y1: box.top, y2: box.bottom }),
            s(
                "text.tick",
                { x: x(v), y: box.bottom + 18, "text-anchor": "middle" },
                String(Number(v.toPrecision(2))),
            ),
        ]),
        ...lines.flatMap((v) => [
            s("line.grid", { x1: box.left, x2: box.right, y1: y(v), y2: y(v) }),
            s("text.tick", { x: box.left - 8, y: y(v) + 4, "text-anchor": "end" }, shortRate(v)),
        ]),
        s(
            "text.axis",
            { x: box.right, y: box.bottom + 38, "text-anchor": "end" },
            "operations per byte (FLOP/B)",
        ),
        s("text.axis", { x: 2, y: 12 }, "FLOP/s"),
    ];
}

/** 10 T: the axis says that it is FLOP/s. */
function shortRate(x) {
    const [unit, name] = [
        [1e15, "P"],
        [1e12, "T"],
        [1e9, "G"],
        [1e6, "M"],
        [1e3, "K"],
    ].find(([u]) => x >= u * 0.999) || [1, ""];
    return `${Number((x / unit).toPrecision(2))}${name && SPACE + name}`;
}

function roofLines(memory, gemm, xRange, yRange, box, x, y) {
    const flat = gemm.flatMap(([dtype, rate]) => {
        const start = memory ? Math.max(rate / memory, xRange[0]) : xRange[0];
        return [
            s("line.roof", { x1: x(start), x2: box.right, y1: y(rate), y2: y(rate) }),
            s(
                "text.roof-label",
                { x: box.right - 4, y: y(rate) - 7, "text-anchor": "end" },
                `${dtype} matrices, ${flopRate(rate)}`,
            ),
        ];
    });
    if (!memory) return flat;
    const end = gemm.length ? gemm.at(-1)[1] / memory : xRange[1];
    // The slope starts where it enters the picture: at its left edge, or at its lower one.
    const from = Math.max(xRange[0], yRange[0] / memory);
    const [x1, y1, x2, y2] = [x(from), y(from * memory), x(end), y(end * memory)];
    const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
    const [cx, cy] = [x1 + (x2 - x1) * 0.75, y1 + (y2 - y1) * 0.75]; // away from most points
    return [
        ...flat,
        s("line.roof", { x1, y1, x2, y2 }),
        s(
            "text.roof-label",
            {
                "text-anchor": "middle",
                transform: `translate(${cx.toFixed(1)},${cy.toFixed(1)}) rotate(${angle.toFixed(1)}) translate(0,17)`,
            },
            `copy, ${bandwidth(memory)}`,
        ),
    ];
}
