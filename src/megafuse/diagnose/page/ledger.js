// The bytes ledger: a row for each line of the user's code, and a table of every operation.

function ledgerLines() {
    const lineOf = ({ where }) => `${where.file}:${where.line}`;
    const lines = grouped(record.operations.filter(isWork), lineOf);
    return lines.map((operations) => ({
        operations,
        where: operations[0].where,
        count: operations.length,
        launches: sum(operations.map((o) => o.kernels.length)),
        moved: sum(operations.map((o) => o.bytes_moved)),
        allocated: sum(operations.map((o) => o.allocated)),
        flops: sum(operations.map((o) => o.flops)),
        time: sum(operations.map(secondsOf)),
        floor: sum(operations.map((o) => o.floor)),
    }));
}

function ledgerTable(lines) {
    const names = unique(lines.map(({ where }) => where.file).filter(Boolean));
    // One file need not be named in every line.
    const place = (where) =>
        where.file && names.length === 1 ? `line ${where.line}` : placeOf(where);
    const columns = [
        {
            title: names.length === 1 ? names[0].split("/").at(-1) : "line",
            head: true,
            value: ({ where }) => `${where.file}:${String(where.line).padStart(7, "0")}`,
            cell: ({ where }) =>
                h("span", { title: where.file || null }, stacked(place(where), where.function)),
        },
        {
            title: "code",
            value: ({ where }) => where.text || null,
            cell: ({ where }) => h("code.line", null, where.text || NONE),
        },
        number("operations", (l) => l.count, whole),
        ...(onGpu ? [number("launches", (l) => l.launches, whole)] : []),
        above(
            number("time", (l) => l.time, seconds, onGpu ? "On the GPU" : "In operations"),
            (l) => `${percent(l.time / record.seconds)} of the call`,
        ),
        above(
            number("moved", (l) => l.moved, bytes, "Bytes that its operations must read and write"),
            (l) => (l.time > 0 ? bandwidth(l.moved / l.time) : ""),
        ),
        number("new memory", (l) => l.allocated, bytes, "For results of its operations"),
        number("FLOP", (l) => l.flops || null, flopCount),
        above(
            number("at best", (l) => l.floor || null, seconds, "The least that the roofs allow"),
            (l) => (l.floor > 0 && l.time > 0 ? `${percent(l.floor / l.time)} of the roof` : ""),
        ),
    ];
    return sortable("ledger-table", "Bytes, line by line", columns, lines);
}

/** A column with something more under its number. */
const above = (column, under) => ({
    ...column,
    cell: (line) => stacked(column.cell(line), under(line)),
});

/** 2.15 GFLOP: an amount, not a rate. */
const flopCount = (x) => flopRate(x).replace("/s", "");

function totalsLine(lines) {
    const total = (key) => sum(lines.map((line) => line[key]));
    const peak = known(record.peak_bytes) ? `, ${bytes(record.peak_bytes)} at once at most` : "";
    return h(
        "p.soft.total",
        null,
        `Together ${plural(total("count"), "operation")}, ${seconds(total("time"))}, ` +
            `${bytes(total("moved"))} moved, ${bytes(total("allocated"))} of new memory${peak}.`,
    );
}

function buildLedger() {
    const lines = ledgerLines();
    const body = document.querySelector("#ledger .body");
    if (!lines.length) {
        body.append(h("p.note", null, "No operation was seen in this call."));
        return;
    }
    lines.sort((a, b) => b.moved - a.moved);
    body.append(ledgerTable(lines), totalsLine(lines));
}

// ---- every operation

const MOST = 2000; // rows of the table: more would make a phone stall

function operationsTable() {
    const all = record.operations.filter(isWork);
    const shown = all.slice(0, MOST);
    const columns = [
        { title: "#", head: true, value: (o) => o.index },
        {
            title: "operation",
            value: (o) => o.name,
            cell: (o) => h("span.who", null, h(`i.dot.${lookOf(o)}`), shortName(o)),
        },
        {
            title: "line",
            value: (o) => placeOf(o.where),
            cell: ({ where }) => h("span", { title: where.text || null }, placeOf(where)),
        },
        { title: "tensors", value: tensorsOf },
        { title: "phase", value: (o) => o.phase },
        number("host", (o) => o.host_seconds, seconds),
        ...(onGpu ? [number("GPU", (o) => o.device_seconds, seconds)] : []),
        number("moved", (o) => o.bytes_moved, bytes),
        number("at best", (o) => o.floor || null, seconds),
        number("of the roof", (o) => o.roof_share, percent),
        { title: "roof", value: (o) => o.roof || null },
    ];
    const fold = folded(`${plural(all.length, "operation")} as a table`);
    // Made when it is opened: most readers never do.
    const make = () => {
        fold.append(sortable("operations-table", "Every operation", columns, shown));
        if (all.length > MOST)
            fold.append(h("p.soft", null, `The first ${whole(MOST)} of ${whole(all.length)}.`));
    };
    fold.addEventListener("toggle", make, { once: true });
    return fold;
}
