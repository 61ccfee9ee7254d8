// Timeline of one call: a lane for the host, one for each stream of the GPU. Gaps are hatched.

/** Spans of the host: operations, and calls of the user's that are none. */
function hostSpans() {
    const operations = record.operations.filter(isWork).map((operation) => ({
        start: operation.host_start,
        seconds: operation.host_seconds,
        label: shortName(operation),
        look: lookOf(operation),
        kind: kindOf(operation),
        index: operation.index,
        tip: operationTip(operation),
    }));
    const calls = record.host_calls.map((call) => ({
        start: call.start,
        seconds: call.seconds,
        label: call.name,
        look: "host",
        kind: "host",
        tip: [`${call.name}: ${seconds(call.seconds)}`, call.kind, ...whereLines(call.where)],
    }));
    return byStart([...operations, ...calls]);
}

/** Spans of the GPU by stream: its kernels, or the operation where its kernels are not known. */
function deviceSpans() {
    const spans = record.operations
        .filter((operation) => isWork(operation) && known(operation.device_start))
        .flatMap((operation) => {
            const whole = { start: operation.device_start, seconds: operation.device_seconds };
            const kernels = operation.kernels.length
                ? operation.kernels
                : [{ ...whole, name: "", stream: 0 }];
            return kernels.map((kernel) => ({
                start: kernel.start,
                seconds: kernel.seconds,
                stream: kernel.stream,
                label: shortName(operation),
                look: lookOf(operation),
                kind: kindOf(operation),
                index: operation.index,
                tip: [...operationTip(operation), kernel.name],
            }));
        });
    const streams = grouped(byStart(spans), (span) => span.stream);
    return streams.sort((a, b) => a[0].stream - b[0].stream);
}

const byStart = (spans) => spans.sort((a, b) => a.start - b.start);
const endOf = (span) => span.start + span.seconds;

const whereLines = (where) => (where.file ? [placeOf(where), where.text] : []);

function operationTip(operation) {
    const numbers = findingsOf(operation.index);
    return [
        `${shortName(operation)}: ${seconds(secondsOf(operation))}`,
        shareWords(operation),
        tensorsOf(operation),
        [
            operation.bytes_moved ? `${bytes(operation.bytes_moved)} moved` : "",
            operation.phase === "forward" ? "" : operation.phase,
            operation.waits ? "the host waits here" : "",
        ]
            .filter(Boolean)
            .join(", "),
        ...whereLines(operation.where),
        numbers.length ? `finding ${listed(numbers.map(String))}` : "",
    ];
}

function lanesOf() {
    const host = hostSpans();
    if (!onGpu) return [{ name: "CPU", spans: host, gaps: "nothing runs but Python" }];
    const streams = deviceSpans();
    return [
        { name: "Host", spans: host, gaps: "" },
        ...streams.map((spans) => ({
            name: streams.length > 1 ? `GPU, stream ${spans[0].stream}` : "GPU",
            spans,
            gaps: streams.length > 1 ? "nothing in this stream" : "the GPU waits",
        })),
    ];
}

const lanes = lanesOf();
const extent = Math.max(record.seconds * 1e-3, ...lanes.flatMap(({ spans }) => spans.map(endOf)));

// ---- what of it is shown

const view = { from: 0, to: extent, lit: new Set() };

const WIDEST = 14; // pixels of a block of several: wider would hide where they are dense

/** Spans within the view. Neighbours too short to be seen become one block. */
function blocksOf(spans, x) {
    const blocks = [];
    for (const span of spans) {
        if (endOf(span) < view.from || span.start > view.to) continue;
        const [left, right] = [x(span.start), x(endOf(span))];
        const last = blocks.at(-1);
        const short = right - left < 2;
        const fits = last && short && last.short && right - last.left < WIDEST;
        if (fits && left - last.right < 2 && lit(span) === last.lit) {
            last.right = Math.max(last.right, right);
            last.spans.push(span);
        } else blocks.push({ left, right, short, lit: lit(span), spans: [span] });
    }
    return blocks;
}

const lit = (span) => view.lit.has(span.index);

/** Where nothing runs, for at least two pixels. */
function gapsOf(spans, x) {
    const gaps = [];
    let end = 0;
    const note = (to) => {
        const [from, until] = [Math.max(end, view.from), Math.min(to, view.to)];
        if (x(until) - x(from) > 2) gaps.push({ from, until, long: to - end });
    };
    for (const span of spans) {
        if (span.start > end) note(span.start);
        end = Math.max(end, endOf(span));
    }
    if (end < extent) note(extent);
    return gaps;
}

// ---- drawing

const LANE = 34;

function timelineChart(width) {
    const [top, right] = [22, width - 2];
    const x = (t) => ((t - view.from) / (view.to - view.from)) * right;
    const height = top + lanes.length * (LANE + 24) + 6;
    const svg = s(
        "svg",
        {
            width,
            height,
            role: "group",
            "aria-label": "Timeline of one call. Arrow keys go from block to block.",
        },
        hatching(),
        s("clipPath", { id: "inside" }, s("rect", { x: 0, y: 0, width, height })),
        ...timeTicks(x, top, height, width),
    );
    const marks = lanes.flatMap((lane, i) => {
        const y = top + 18 + i * (LANE + 24);
        svg.append(s("text.lane", { x: 0, y: y - 5 }, laneTitle(lane)));
        const gaps = lane.gaps ? gapsOf(lane.spans, x).map((gap) => gapMark(gap, lane, x, y)) : [];
        const blocks = blocksOf(lane.spans, x).map((block) => blockMark(block, lane, y, width));
        svg.append(s("g", { "clip-path": "url(#inside)" }, ...gaps, ...blocks));
        const left = (mark) => Number(mark.getAttribute("data-left"));
        return [...gaps, ...blocks].sort((a, b) => left(a) - left(b));
    });
    walkable(svg, marks);
    return svg;
}

function laneTitle({ name, spans }) {
    const busy = sum(spans.map((span) => span.seconds));
    return `${name} · ${seconds(busy)} in ${plural(spans.length, "block")}`;
}

const hatching = () =>
    s(
        "defs",
        null,
        s(
            "pattern",
            {
                id: "hatch",
                width: 6,
                height: 6,
                patternUnits: "userSpaceOnUse",
                patternTransform: "rotate(45)",
            },
            s("line.hatch", { x1: 0, x2: 0, y1: 0, y2: 6 }),
        ),
    );

function timeTicks(x, top, height, width) {
    const step = roundStep((view.to - view.from) / (width < 500 ? 4 : 8));
    const ticks = [];
    for (let i = Math.ceil(view.from / step); i * step <= view.to; i++) ticks.push(i * step);
    const anchor = (at) => (at < 24 ? "start" : at > width - 30 ? "end" : "middle");
    return ticks.flatMap((t) => [
        s("line.grid", { x1: x(t), x2: x(t), y1: top - 4, y2: height }),
        s(
            "text.tick",
            { x: x(t), y: 12, "text-anchor": anchor(x(t)) },
            tickText(t, step),
        ),
    ]);
}

/** 10.51 ms: with as many digits as tell it from its neighbours. */
function tickText(t, step) {
    if (t === 0) return "0";
    const [unit, name] = [
        [1, "s"],
        [1e-3, "ms"],
        [1e-6, "µs"],
    ].find(([u]) => view.to >= u) || [1e-9, "ns"];
    const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    return (t / unit).toFixed(digits) + SPACE + name;
}

/** 1, 2 or 5 times a power of ten, at least this. */
function roundStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * [1, 2, 5, 10].find((k) => k * power >= least * 0.999);
}

function gapMark({ from, until, long }, lane, x, y) {
    const mark = s("rect.gap", {
        x: x(from),
        y: y + 3,
        width: x(until) - x(from),
        height: LANE - 6,
        fill: "url(#hatch)",
        role: "img",
        "data-left": x(from),
    });
    return withTip(mark, [`${seconds(long)}: ${lane.gaps}`, `from ${seconds(from)} on`]);
}

/** Of the time from the first to the last of several, the share in which one of them runs. */
function busyShare(spans) {
    const whole = Math.max(...spans.map(endOf)) - spans[0].start;
    return whole > 0 ? Math.min(1, sum(spans.map((span) => span.seconds)) / whole) : 1;
}

/** Several as one are as high as they are busy, and hatched above. */
function blockMark({ left, right, spans }, lane, y, width) {
    const { look, label, tip, index, kind } = longest(spans);
    const many = spans.length > 1;
    const long = Math.max(1, right - left - (right - left > 4 && !many ? 1 : 0));
    const high = LANE * (many ? Math.max(0.06, busyShare(spans)) : 1);
    const thin = many || long < 5;
    const shade = view.lit.size && (spans.some(lit) ? "lit" : "dim");
    const mark = s(
        ["g", "block", look, thin && "thin", shade].filter(Boolean).join("."),
        { role: "img", "data-left": left, "data-kind": kind, "data-index": index ?? null },
        many && lane.gaps
            ? s("rect.idle", { x: left, y, width: long, height: LANE, fill: "url(#hatch)" })
            : null,
        s("rect.run", { x: left, y: y + LANE - high, width: long, height: high }),
    );
    const seen = [Math.max(0, left), Math.min(width, right)];
    const room = seen[1] - seen[0];
    if (!many && room > 26) {
        const fits = Math.floor((room - 10) / 7);
        const cut = fits > 3 ? `${label.slice(0, fits - 1)}…` : "";
        const text = label.length <= fits ? label : cut;
        mark.append(s("text.within", { x: seen[0] + 5, y: y + LANE / 2 + 4 }, text));
    }
    if (!many) return withTip(mark, tip);
    const together = seconds(sum(spans.map((span) => span.seconds)));
    const share = `${percent(busyShare(spans))} of the time`;
    const title = `${spans.length} short blocks: ${together}, ${share}`;
    return withTip(mark, [title, mostOf(spans), "Zoom in to see each."]);
}

const longest = (spans) => spans.reduce((a, b) => (b.seconds > a.seconds ? b : a));

/** 12 × mul, 8 × add */
function mostOf(spans) {
    const groups = grouped(spans, (span) => span.label).sort((a, b) => b.length - a.length);
    const shown = groups.slice(0, 4).map((group) => `${group.length} × ${group[0].label}`);
    return shown.join(", ") + (groups.length > 4 ? " …" : "");
}

/** The kinds that are there, in the order of KINDS. */
function kindLegend() {
    const present = new Set(lanes.flatMap(({ spans }) => spans.map((span) => span.kind)));
    const kinds = Object.entries(KINDS).filter(([kind]) => present.has(kind));
    const square = (look) => h(`i.square.${look}`);
    return [
        ...kinds.map(([, [look, words]]) => h("span.key", null, square(look), words)),
        present.has("host") ? h("span.key", null, square("host"), "your own code") : null,
        h("span.key", null, square("hatched"), onGpu ? "the GPU waits" : "nothing but Python"),
    ].filter(Boolean);
}
