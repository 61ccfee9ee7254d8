// Columns that several tables share, and the accuracy table.

const KINDS = {
    op: (r) => r.row.op,
    choices: (r) => variantOf(r.row),
    mode: (r) => r.row.mode,
    dtype: (r) => r.row.dtype,
};

/** The first columns of most tables, less those in which all rows have the same. */
function rowColumns(lines) {
    const varied = (of) => unique(lines.map(of)).length > 1;
    const columns = [{ title: "op", head: true, value: KINDS.op }];
    for (const title of ["choices", "mode", "dtype"]) {
        if (varied(KINDS[title])) columns.push({ title, value: KINDS[title] });
    }
    columns.push({
        title: "size",
        value: ({ row }) => row.elements,
        cell: ({ row }) =>
            h("span", null, amount(row.elements), " ", h("small", null, sizeWords(row))),
    });
    return columns;
}

const contenderColumn = (lookOf) => ({
    title: "contender",
    value: ({ entry }) => entry.name,
    cell: ({ entry }) => h("span.who", null, h(`i.dot.${lookOf(entry.name)}`), entry.name),
});

const linesOf = (rows) => rows.flatMap((row) => row.entries.map((entry) => ({ row, entry })));

const spanCell = (span, format) =>
    span ? stacked(format(span.median), spread(span, format)) : NONE;

// ---- accuracy

function accuracyTable(rows, lookOf) {
    const lines = linesOf(rows).filter(
        ({ entry }) => !isYardstick(entry) || entry.accuracy || entry.error,
    );
    const first = [...rowColumns(lines), contenderColumn(lookOf)];
    const columns = [...first, ...errorColumns(percentilesOf(lines))];
    return sortable("accuracy-table", "Errors of each contender against float64", columns, lines, {
        error: ({ entry }) =>
            failure(entry, entry.error) || (entry.accuracy ? null : unmeasured(entry)),
        errorAt: first.length,
    });
}

const unmeasured = ({ missing }) =>
    h("span.soft", null, missing.accuracy ? `not measured: ${missing.accuracy}` : "not measured");

const failure = (entry, text) => (entry.error ? h("span.failed", null, text) : null);

const percentilesOf = (lines) =>
    unique(lines.flatMap(({ entry }) => Object.keys(entry.accuracy?.rel_percentiles || {}))).sort(
        (a, b) => Number(a) - Number(b),
    );

function errorColumns(percentiles) {
    const error = (title, of, hint) =>
        number(title, ({ entry }) => entry.accuracy && of(entry.accuracy), scientific, hint);
    const zeros = "results that are exactly 0 are left out";
    return [
        error("max abs", (a) => a.max_abs, "Largest absolute error"),
        error("mean abs", (a) => a.mean_abs, "Mean absolute error"),
        error("max rel", (a) => a.max_rel, `Largest relative error; ${zeros}`),
        error("mean rel", (a) => a.mean_rel, `Mean relative error; ${zeros}`),
        ...percentiles.map((p) =>
            error(
                `${p} % rel`,
                (a) => a.rel_percentiles[p],
                `${p} % of results err by at most this`,
            ),
        ),
        number(
            "exact",
            ({ entry }) => entry.accuracy?.exact,
            percent,
            "Share of results equal to the float64 one, rounded to the dtype",
        ),
    ];
}
