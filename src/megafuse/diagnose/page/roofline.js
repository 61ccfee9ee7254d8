// Roofline: a point for each operation, under what the machine was measured to allow.

/** Operations of one name, line and shape are one point. */
function rooflinePoints() {
    const measured = record.operations.filter(
        (o) => isWork(o) && secondsOf(o) > 0 && o.bytes_moved > 0,
    );
    const key = (o) => JSON.stringify([o.name, placeOf(o.where), tensorsOf(o)]);
    return grouped(measured, key).map((operations) => {
        const time = sum(operations.map(secondsOf));
        const moved = sum(operations.map((o) => o.bytes_moved));
        const flops = sum(operations.map((o) => o.flops));
        return { operations, time, moved, flops, rate: flops / time, bandwidth: moved / time };
    });
}

/** The compute roofs that matter here: of the dtypes that products have, else of float32. */
function computeRoofs() {
    const products = record.operations.filter((o) => o.flops > 0);
    const dtypes = new Set(products.flatMap((o) => o.reads.slice(0, 1).map((t) => t.dtype)));
    const gemm = Object.entries(machine.gemm).filter(([, rate]) => rate > 0);
    const shown = gemm.filter(([dtype]) => dtypes.has(dtype));
    return (shown.length ? shown : gemm.filter(([dtype]) => dtype === "float32")).sort(
        (a, b) => a[1] - b[1],
    );
}

const DEPTH = 1e6; // what is this far below the highest roof lies on the lower edge

/** Dashed, where an operation found its numbers in the cache. */
function cacheRoof(points, xRange, yRange, box, x, y) {
    if (!(machine.cached > 0) || !points.some((p) => p.operations[0].roof === "cache")) return [];
    const from = Math.max(xRange[0], yRange[0] / machine.cached);
    const to = Math.min(xRange[1], yRange[1] / machine.cached);
    const [x1, y1, x2, y2] = [x(from), y(from * machine.cached), x(to), y(to * machine.cached)];
    const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
    const third = [x1 + (x2 - x1) / 3, y1 + (y2 - y1) / 3].map((v) => v.toFixed(1));
    const turned = `translate(${third}) rotate(${angle.toFixed(1)}) translate(0,-7)`;
    return [
        s("line.roof.cache", { x1, y1, x2, y2 }),
        s(
            "text.roof-label",
            { "text-anchor": "middle", transform: turned },
            `cache, ${bandwidth(machine.cached)}`,
        ),
    ];
}

function rooflineChart(points, width) {
    const height = Math.round(Math.max(340, Math.min(480, width * 0.5)));
    const gemm = computeRoofs();
    const idle = points.some((p) => !p.flops); // moves only: a strip of its own at the left
    const strip = idle ? (width < 500 ? 44 : 70) : 0;
    const box = { left: 62, right: width - 14, top: 22, bottom: height - 46 };
    const memory = machine.copy > 0 ? machine.copy : null;
    const counted = points.filter((p) => p.flops);
    const ridges = memory ? gemm.map(([, rate]) => rate / memory) : [];
    const xs = [...counted.map((p) => p.flops / p.moved), ...ridges, 1];
    const least = Math.min(...xs) / (idle ? 4 : 2.5);
    const plain = { ...box, left: box.left + strip };
    const xRange = [least, Math.max(...xs) * 3];
    const x = logScale(xRange, [plain.left, box.right]);
    // What computes nothing has a bandwidth only: it is drawn as if at the strip's intensity,
    // so that its distance from the roof is right.
    const heightOf = (p) => p.rate || p.bandwidth * least;
    const ys = [...points.map(heightOf), ...gemm.map(([, rate]) => rate)];
    if (memory) ys.push(memory * least);
    const most = Math.max(...ys) * 2.5;
    const yRange = [Math.max(Math.min(...ys) / 2.5, most / DEPTH), most];
    const scale = logScale(yRange, [box.bottom, box.top]);
    const y = (rate) => scale(Math.max(rate, yRange[0]));
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
        ...roofLines(memory, gemm, xRange, yRange, plain, x, y),
        ...cacheRoof(points, xRange, yRange, plain, x, y),
        ...(idle ? stripMarks(box, plain, memory && y(memory * least)) : []),
    );
    const places = spreadOver(points.filter((p) => !p.flops), box.left + 10, plain.left - 10);
    // Large ones first, so that small ones lie on top.
    const marks = [...points]
        .sort((a, b) => b.time - a.time)
        .map((p) => pointMark(p, p.flops ? x(p.flops / p.moved) : places.get(p), y(heightOf(p))));
    svg.append(...marks);
    walkable(svg, marks);
    return svg;
}

/** Side by side within the strip, in their order. */
function spreadOver(points, from, to) {
    const step = points.length > 1 ? (to - from) / (points.length - 1) : 0;
    const start = points.length > 1 ? from : (from + to) / 2;
    return new Map(points.map((p, i) => [p, start + i * step]));
}

function stripMarks(box, plain, roof) {
    return [
        s("line.strip", { x1: plain.left, x2: plain.left, y1: box.top, y2: box.bottom }),
        roof && s("line.roof", { x1: box.left, x2: plain.left, y1: roof, y2: roof }),
        s(
            "text.tick",
            { x: (box.left + plain.left) / 2, y: box.bottom + 18, "text-anchor": "middle" },
            "none",
        ),
    ];
}

function pointMark(point, x, y) {
    const [first] = point.operations;
    const size = 0.8 + 1.8 * Math.sqrt(Math.min(1, point.time / record.seconds));
    const look = lookOf(first);
    const shape = s(`path.mark.solid.${look}`, {
        d: shapeFor(look),
        transform: `translate(${x.toFixed(1)},${y.toFixed(1)}) scale(${size.toFixed(2)})`,
        role: "img",
        "data-value": point.rate || point.bandwidth,
    });
    const arithmetic = point.flops
        ? `${flopRate(point.rate)} at ${figures(point.flops / point.moved)} FLOP/byte`
        : "no arithmetic counted";
    const times = point.operations.length > 1 ? `${point.operations.length} × ` : "";
    return withTip(shape, [
        `${times}${shortName(first)}: ${shareWords(shareOf(point)) || seconds(point.time)}`,
        `${percent(point.time / record.seconds)} of the call, ${seconds(point.time)}`,
        `${bandwidth(point.bandwidth)}, ${arithmetic}`,
        tensorsOf(first),
        ...whereLines(first.where),
    ]);
}

/** Of several operations together: their least time over their time. */
function shareOf({ operations, time }) {
    const floors = sum(operations.map((o) => o.floor));
    return { roof: operations[0].roof, roof_share: floors > 0 && time > 0 ? floors / time : null };
}

function buildRoofline() {
    const points = rooflinePoints();
    const body = document.querySelector("#roofline .body");
    if (!points.length) {
        body.append(h("p.note", null, "No operation has both a time and a count of bytes."));
        return;
    }
    document.querySelector("#roofline .legend").replaceChildren(
        ...legend(
            Object.entries(KINDS)
                .filter(([kind]) => points.some((p) => kindOf(p.operations[0]) === kind))
                .map(([, [look, name]]) => ({ name, look })),
        ),
    );
    body.append(h("div.panel", null, responsive((width) => rooflineChart(points, width))));
}
