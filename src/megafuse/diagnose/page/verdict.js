// The first thing a reader sees: the verdict, and the numbers that it rests on.

const BINDS = {
    memory: "memory’s bandwidth",
    cache: "the cache’s bandwidth",
    compute: "arithmetic",
    host: "the host",
    call: "the cost of calls",
    data: "waiting for data",
};

function buildVerdict() {
    const card = h(
        "article.card.verdict",
        { "aria-label": "Verdict" },
        h(
            "p.says",
            null,
            h(
                `span.badge.${verdict.leave_it ? "fine" : "slower"}`,
                null,
                verdict.leave_it ? "leave it" : plural(findings.length, "finding"),
            ),
            verdict.sentence,
        ),
        h("dl.stats", null, ...verdictStats()),
        h(
            "p.again",
            null,
            [machine.name, versionsLine(), moment(diagnosis.date)].filter(Boolean).join(" · "),
            diagnosis.command ? " · made by " : "",
            diagnosis.command ? h("code", null, diagnosis.command) : "",
        ),
    );
    byId("summary").append(card, ...record.notes.map((note) => h("p.note", null, note)));
}

const versionsLine = () =>
    ["torch", "python"]
        .filter((key) => machine.versions[key])
        .map((key) => `${key} ${machine.versions[key]}`)
        .join(", ");

function verdictStats() {
    const best = findings[0];
    return [
        stat(
            seconds(record.seconds),
            "a call",
            spread({ low: record.low, high: record.high, n: record.calls }, seconds),
        ),
        stat(percent(verdict.roof_share), "of what the roofs allow", bindWords()),
        stat(
            percent(Math.min(1, record.busy / record.seconds)),
            onGpu ? "of it the GPU computes" : "of it operations run",
            `${seconds(record.idle)} nothing computes`,
        ),
        stat(
            whole(record.launches),
            onGpu ? "launches" : "operations",
            `${bytes(sum(record.operations.map((o) => o.bytes_moved)))} moved`,
        ),
        best ? bestStat(best) : null,
    ];
}

function bestStat({ measured, gain }) {
    const after = known(measured) ? measured : record.seconds - gain;
    const how = known(measured) ? "as measured" : "as predicted";
    return stat(factor(record.seconds / after), "as fast without the first", how);
}

const bindWords = () => `${BINDS[verdict.binds] || verdict.binds} binds`;

function stat(number, what, under) {
    return h(
        "div",
        null,
        h("dt", null, what),
        h("dd", null, number),
        under ? h("dd.under", null, under) : null,
    );
}
