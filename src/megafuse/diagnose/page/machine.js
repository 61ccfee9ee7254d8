// The call and the machine that it is held against.

function machineTables() {
    const groups = [
        [
            "Call",
            [
                ["name", h("code", null, record.name)],
                ["mode", record.mode],
                ["calls timed", whole(record.calls)],
                ["median", seconds(record.seconds)],
                ["spread", `${seconds(record.low)} to ${seconds(record.high)}`],
                ["first call", seconds(record.first_seconds)],
                ["host busy", seconds(record.host)],
                ["device busy", seconds(record.busy)],
                ["most memory at once", known(record.peak_bytes) ? bytes(record.peak_bytes) : null],
                ["compiled", record.compiled ? "yes" : "no"],
                ["compiled again", record.recompiled ? plural(record.recompiled, "time") : null],
                ["graph breaks", record.graph_breaks.join("; ") || null],
                ["allocator retries", record.allocator_retries || null],
                ["diagnosed in", duration(diagnosis.seconds_taken)],
            ],
        ],
        [
            "Measured roofs",
            [
                ["copy", bandwidth(machine.copy)],
                ["read", bandwidth(machine.read)],
                ["copy into new memory", bandwidth(machine.fresh)],
                [`in the cache of ${cacheBytes(machine.cache_bytes)}`, bandwidth(machine.cached)],
                ...Object.entries(machine.gemm).map(([dtype, rate]) => [
                    `matrix product, ${dtype}`,
                    flopRate(rate),
                ]),
                ["smallest operation", seconds(machine.call)],
                ["smallest kernel", known(machine.launch) ? seconds(machine.launch) : null],
            ],
        ],
        [
            "Machine",
            [
                ["name", machine.name],
                ["threads", whole(machine.threads)],
                ...Object.entries(machine.versions),
            ],
        ],
    ];
    const line = ([name, value]) =>
        h("tr", null, h("th", { scope: "row" }, name), h("td", null, value));
    return groups.map(([title, lines]) =>
        h(
            "div",
            null,
            h("h3", null, title),
            scroller(
                title,
                h(
                    "table.data.facts",
                    null,
                    h("tbody", null, ...lines.filter(([, value]) => value !== null).map(line)),
                ),
            ),
        ),
    );
}
