// What all charts of results share: titles and verdicts.

const nameOf = (row) => [row.op, variantOf(row)].filter(Boolean).join(" ");
const titleOf = (row) => `${nameOf(row)} · ${row.mode} · ${row.dtype}`;
const sizeOf = (row) => `${amount(row.elements)} elements (${sizeWords(row)})`;

function panelTitle(row) {
    return h("h3", null, nameOf(row), " ", h("span.soft", null, `${row.mode} · ${row.dtype}`));
}

/** The verdict as a word, so that no meaning hangs on colour. */
function verdictBadge(verdict) {
    const look = ["faster", "slower", "ambiguous"].includes(verdict) ? verdict : "ambiguous";
    return h(`span.badge.${look}`, null, verdict);
}

/** Nothing for "faster": a speed-up is what the reader expects. */
const badge = (verdict) => (verdict === "faster" ? null : verdictBadge(verdict));
