// What the results say: which rows, which contenders, how they compare. Nothing here draws.

const COPY = "copy"; // the yardstick that every bar is held against

const CLOCKS = {
    cold: ["Cold", "Nothing is in the cache: inputs come from memory, as in a large model."],
    warm: ["Warm", "The same inputs were just used, so what fits in the cache is still there."],
    host: ["Host", "How long the CPU is busy with the call, without waiting for the GPU."],
    graph: ["CUDA graph", "Replayed from a CUDA graph: the GPU’s work without the CPU’s part."],
    step: ["Step", "Steps of a whole model back to back, as in a loop."],
};
const clockName = (clock) => (CLOCKS[clock] || [clock])[0];
const clockWord = (clock) => clockName(clock).replace(/^[A-Z](?=[a-z])/, (c) => c.toLowerCase());

const allRows = (files) => files.flatMap((file) => file.rows);
const keyOf = (row) =>
    JSON.stringify([row.op, row.mode, row.dtype, sizeWords(row), variantOf(row)]);
const entryOf = (row, name) => row.entries.find((entry) => entry.name === name);
const subjectOf = (row) => entryOf(row, row.subject);
/** It computes nothing: drawn as a mark, never as a rival. */
const isYardstick = ({ yardstick }) => Boolean(yardstick);
const isRival = (row, entry) => entry.name !== row.subject && !isYardstick(entry);

/** 64 × 768 → 3,072: the first tensor, and how wide a layer makes it. */
const sizeWords = (row) => [shapeOf(row.shape), ...(row.widths || []).map(whole)].join(" → ");

/** causal, no mask, tanh, approximate=none, p=0.1: the arguments that set a row apart. */
const variantOf = (row) =>
    Object.entries(row.choices || {})
        .map(([name, value]) => {
            if (typeof value === "boolean") return value ? name : `no ${name}`;
            return typeof value === "string" && value !== "none" ? value : `${name}=${value}`;
        })
        .join(" ");

const timeOf = (entry, clock) => {
    const span = entry && !entry.error && entry.times[clock];
    return span && known(span.median) ? span : null;
};

const speedupOf = (row, name, clock) => {
    const span = (row.speedups[name] || {})[clock];
    return span && known(span.median) ? span : null;
};

/** Every contender of all files, in order of appearance: its place is its colour. */
function contendersOf(files) {
    const rows = allRows(files);
    const subjects = rows.map((row) => row.subject);
    const usual = ["eager", "compile", "compile-max"]; // these look the same on every page
    const present = new Set(rows.flatMap((row) => row.entries.map((entry) => entry.name)));
    const names = unique([...subjects, ...usual.filter((name) => present.has(name)), ...present]);
    const any = (name) => rows.map((row) => entryOf(row, name)).find(Boolean);
    let place = 0;
    return names.map((name) => {
        const { about = "", yardstick = false } = any(name) || {};
        return { name, about, yardstick, look: yardstick ? "yardstick" : `s${place++ % 8}` };
    });
}

/** Clocks that any contender of these files has, in the usual order. */
function clocksOf(files) {
    const seen = new Set(
        allRows(files).flatMap((row) => row.entries.flatMap((entry) => Object.keys(entry.times))),
    );
    return unique([...Object.keys(CLOCKS), ...seen]).filter((clock) => seen.has(clock));
}

function matching(rows, { op, mode, dtype }) {
    const wanted = (choice, value) => choice === "all" || choice === value;
    return rows.filter(
        (row) => wanted(op, row.op) && wanted(mode, row.mode) && wanted(dtype, row.dtype),
    );
}

/** Rows that differ in size only, smallest first: one panel of a chart. */
function panelsOf(rows) {
    const panels = new Map();
    for (const row of rows) {
        const key = JSON.stringify([row.op, row.mode, row.dtype, variantOf(row)]);
        if (!panels.has(key)) panels.set(key, []);
        panels.get(key).push(row);
    }
    return [...panels.values()].map((panel) => [...panel].sort((a, b) => a.elements - b.elements));
}

function geometricMean(values) {
    return Math.exp(values.reduce((sum, x) => sum + Math.log(x), 0) / values.length);
}

/** Over each rival: the geometric mean of all rows, the least and the most. */
function gainsOf(file, clock) {
    const byRival = new Map();
    for (const row of file.rows) {
        for (const entry of row.entries.filter((e) => isRival(row, e))) {
            const span = speedupOf(row, entry.name, clock);
            if (!span) continue;
            if (!byRival.has(entry.name)) byRival.set(entry.name, []);
            byRival.get(entry.name).push(span);
        }
    }
    return [...byRival].map(([name, spans]) => {
        const medians = spans.map((span) => span.median);
        return {
            name,
            mean: geometricMean(medians),
            least: Math.min(...medians),
            most: Math.max(...medians),
            count: spans.length,
            ambiguous: spans.filter((span) => span.verdict === "ambiguous").length,
            slower: spans.filter((span) => span.verdict === "slower").length,
            // Slower in nearly every round, though the two spreads overlap.
            behind: spans.filter((span) => span.verdict === "ambiguous" && span.high < 1).length,
        };
    });
}

/** The row whose subject comes closest to its roof. */
function bestShare(file) {
    const rows = file.rows.filter((row) => known(subjectOf(row)?.roof_share));
    return rows.reduce(
        (best, row) =>
            !best || subjectOf(row).roof_share > subjectOf(best).roof_share ? row : best,
        null,
    );
}

const failuresOf = (file) => file.rows.flatMap((row) => row.entries.filter((entry) => entry.error));

const machineOf = (file) => file.machine.gpu || file.machine.cpu || "unknown machine";

const commitOf = (file) =>
    (file.commit ? file.commit.slice(0, 10) : "no commit") +
    (file.changed ? " with uncommitted changes" : "");

/** How many times as fast as the base, and whether the spreads allow to say so. */
function ratioOf(base, other) {
    if (!base || !other) return null;
    const overlap = base.low <= other.high && other.low <= base.high;
    const median = base.median / other.median;
    return {
        median,
        low: base.low / other.high,
        high: base.high / other.low,
        verdict: overlap ? "ambiguous" : median > 1 ? "faster" : "slower",
    };
}

/** Every row of any file once, with its twin in each file or undefined. */
function twinsOf(files, choice) {
    const twins = new Map();
    files.forEach((file, i) => {
        for (const row of matching(file.rows, choice)) {
            const key = keyOf(row);
            if (!twins.has(key)) twins.set(key, { row, in: files.map(() => undefined) });
            twins.get(key).in[i] = row;
        }
    });
    return [...twins.values()];
}
