// The table of every number, with the reasons for those that are missing under it.

function detailsTable(file, rows, clock, lookOf) {
    const notes = footnotes();
    const lines = linesOf(rows);
    const first = [...rowColumns(lines), contenderColumn(lookOf)];
    annotate(first[0], notes, ({ row, entry }) =>
        entry.name === row.subject ? warningsOf(row) : [],
    );
    annotate(first.at(-1), notes, ({ entry }) => reasonsOf(entry));
    const columns = [
        ...first,
        ...clocksOf([file]).map(clockColumn),
        speedupColumn(clock),
        ...rateColumns(),
        ...memoryColumns(),
        number("n", ({ entry }) => timeOf(entry, clock)?.n, whole, "Samples of the chosen clock"),
        ...conditionsColumn(lines),
    ];
    const table = sortable("details-table", "Every number of every contender", columns, lines, {
        error: ({ entry }) => failure(entry, `no time: ${entry.error}`),
        errorAt: first.length,
    });
    return [table, notes.list()];
}

// ---- notes

/** Collects remarks and numbers them; the same remark keeps its number. */
function footnotes() {
    const texts = [];
    const refer = (text) => {
        if (!texts.includes(text)) texts.push(text);
        const n = texts.indexOf(text) + 1;
        return withTip(h("sup.ref", { tabindex: 0 }, String(n)), [`Note ${n}`, text]);
    };
    const list = () =>
        texts.length ? h("ol.notes", null, ...texts.map((text) => h("li", null, text))) : null;
    return { refer, list };
}

/** The column's cells, each followed by the numbers of its remarks. */
function annotate(column, notes, remarksOf) {
    const plain = column.cell || column.value;
    column.cell = (line) => h("span", null, plain(line), ...remarksOf(line).map(notes.refer));
}

const warningsOf = (row) =>
    row.warnings.map((text) => `${nameOf(row)}, ${sizeWords(row)}: ${text}`);

/** Without the contender's name: where several lack the same, one note is enough. */
function reasonsOf(entry) {
    const words = { bytes_real: "bytes moved", peak_extra_bytes: "extra memory" };
    const word = (what) => words[what] || clockWord(what).replaceAll("_", " ");
    return Object.entries(entry.missing).map(([what, why]) => `no ${word(what)}: ${why}`);
}

// ---- columns

const clockColumn = (clock) => ({
    title: clockWord(clock),
    hint: CLOCKS[clock]?.[1],
    num: true,
    value: ({ entry }) => timeOf(entry, clock)?.median ?? null,
    cell: ({ entry }) => spanCell(timeOf(entry, clock), seconds),
});

const speedupColumn = (clock) => ({
    title: "times as long",
    num: true,
    hint: `How many times as long as the subject took, ${clockWord(clock)}`,
    value: ({ row, entry }) => speedupOf(row, entry.name, clock)?.median ?? null,
    cell: ({ row, entry }) => {
        const span = speedupOf(row, entry.name, clock);
        if (!span) return NONE;
        return h(
            "span.with-badge",
            null,
            spanCell(span, factor),
            isYardstick(entry) ? null : badge(span.verdict),
        );
    },
});

const rateColumns = () => [
    number(
        "GB/s",
        ({ entry }) => entry.bytes_per_second,
        bandwidth,
        "The least bytes the op can move, over the cold time",
    ),
    number("FLOP/s", ({ entry }) => entry.flop_per_second, flopRate, "Over the cold time"),
    number("floor", ({ row }) => row.floor, seconds, "The least time that the roofs allow"),
    {
        ...number("of roof", ({ entry }) => entry.roof_share, percent, "Of the roof that binds"),
        cell: ({ row, entry }) =>
            known(entry.roof_share) ? stacked(percent(entry.roof_share), row.roof) : NONE,
    },
];

const memoryColumns = () => [
    {
        ...number("launches", ({ entry }) => entry.launches, whole, "As the profiler counted them"),
        cell: ({ entry }) => launchesCell(entry),
    },
    {
        ...number(
            "bytes",
            ({ entry }) => entry.bytes_real,
            bytes,
            "Really moved; the least possible",
        ),
        cell: ({ row, entry }) =>
            stacked(bytes(entry.bytes_real), `least ${bytes(row.bytes_least)}`),
    },
    number(
        "extra memory",
        ({ entry }) => entry.peak_extra_bytes,
        bytes,
        "Peak, beyond inputs and results",
    ),
];

/** How many kernels; opened, their names. */
function launchesCell(entry) {
    if (!known(entry.launches)) return NONE;
    if (!entry.kernels.length) return whole(entry.launches);
    return h(
        "details.kernels",
        null,
        h("summary", null, whole(entry.launches)),
        h("ol", null, ...entry.kernels.map((name) => h("li", null, h("code", null, name)))),
    );
}

/** Clock and temperature of the GPU, where the driver told them. */
function conditionsColumn(lines) {
    const shown = (value) => (Array.isArray(value) ? value.join(", ") : String(value));
    const units = { clock_mhz: (x) => `${x}${SPACE}MHz`, temperature_c: (x) => `${x}${SPACE}°C` };
    const text = ({ row }) =>
        Object.entries(row.conditions)
            .filter(
                ([, value]) =>
                    value !== null && value !== "" && !(Array.isArray(value) && !value.length),
            )
            .map(([key, value]) =>
                units[key]
                    ? units[key](shown(value))
                    : `${key.replaceAll("_", " ")} ${shown(value)}`,
            )
            .join(", ");
    return lines.some(text) ? [{ title: "conditions", value: (line) => text(line) || null }] : [];
}
