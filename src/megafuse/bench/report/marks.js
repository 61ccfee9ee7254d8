// Marks, a shape for each colour, and scales.

const SHAPES = [
    "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z", // circle
    "M-4.4,-4.4H4.4V4.4H-4.4Z", // square
    "M0,-5.6L5.4,4.2H-5.4Z", // triangle
    "M0,-6L6,0L0,6L-6,0Z", // diamond
    "M0,5.6L5.4,-4.2H-5.4Z", // triangle on its tip
    "M-2,-5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z", // plus
    "M-5.5,-3H5.5V3H-5.5Z", // lying bar
    "M-3,-5.5H3V5.5H-3Z", // standing bar
];
const shapeFor = (look) =>
    SHAPES[Number(look.slice(1))] || "M-1.2,-6.5H1.2V-1H-1.2ZM-1.2,1.5H1.2V6.5H-1.2Z";

function mark(look, x, y) {
    const at = x === undefined ? null : `translate(${x.toFixed(1)},${y.toFixed(1)})`;
    return s(`path.mark.${look}`, { d: shapeFor(look), transform: at });
}

function legend(contenders) {
    return contenders.map(({ name, about, look }) =>
        h(
            "span.key",
            null,
            s(
                "svg",
                { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" },
                mark(look),
            ),
            h("b", null, name),
            about ? h("span.soft", null, about) : null,
        ),
    );
}

// ---- scales

function logScale([from, to], [start, end]) {
    const [a, b] = [Math.log(from), Math.log(to)];
    return (x) => start + ((Math.log(x) - a) / (b - a || 1)) * (end - start);
}

/** The finest of several grids that has at most `most` lines between the two. */
function gridLines(from, to, most = 6) {
    const decades = [];
    for (let e = Math.floor(Math.log10(from)); e <= Math.ceil(Math.log10(to)); e++) decades.push(e);
    const within = (values) => values.filter((x) => x >= from * 0.9999 && x <= to * 1.0001);
    const powers = (steps) => within(decades.flatMap((e) => steps.map((k) => k * 10 ** e)));
    const even = (step) =>
        to / step > 1000
            ? []
            : within(
                  Array.from({ length: Math.floor(to / step + 1e-9) }, (_, i) =>
                      Number(((i + 1) * step).toFixed(2)),
                  ),
              );
    const grids = [
        powers([1]),
        powers([1, 3]),
        powers([1, 2, 5]),
        even(1),
        even(0.5),
        even(0.2),
        even(0.1),
    ];
    const sparse = decades.filter((e, i) => i % Math.ceil(decades.length / most) === 0);
    return grids
        .filter((grid) => grid.length <= most && grid.length > 1)
        .reduce(
            (best, grid) => (grid.length > best.length ? grid : best),
            within(sparse.map((e) => 10 ** e)),
        );
}
