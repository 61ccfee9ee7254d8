// Machine, versions, roofs: a column for each file.

function machineTable(files) {
    const groups = [
        [
            "Run",
            [
                ["suite", (f) => f.suite],
                ["command", (f) => h("code", null, f.command)],
                ["date", (f) => moment(f.date)],
                [
                    "commit",
                    (f) =>
                        h("code", null, f.commit + (f.changed ? ", with uncommitted changes" : "")),
                ],
                ["took", (f) => duration(f.seconds_taken)],
            ],
        ],
        [
            "Machine",
            keysOf(files, (f) => f.machine).map((key) => [
                machineWord(key),
                (f) =>
                    /_bytes$/.test(key)
                        ? cacheBytes(f.machine[key])
                        : String(f.machine[key] ?? NONE),
            ]),
        ],
        [
            "Versions",
            keysOf(files, (f) => f.versions).map((key) => [key, (f) => f.versions[key] ?? NONE]),
        ],
        [
            "Measured roofs",
            [
                ["copy", (f) => bandwidth(f.roofs?.copy)],
                ["read", (f) => bandwidth(f.roofs?.read)],
                ...keysOf(files, (f) => f.roofs?.gemm).map((key) => [
                    `matrix product, ${key}`,
                    (f) => flopRate(f.roofs?.gemm[key]),
                ]),
                ["empty launch", (f) => seconds(f.roofs?.launch)],
            ],
        ],
        [
            "Start-up",
            keysOf(files, (f) => f.start_up).map((key) => [
                key,
                (f) => spanCell(f.start_up?.[key], seconds),
            ]),
        ],
    ];
    const heads = files.map((file) => h("th", { scope: "col" }, file.name));
    return scroller(
        "Machine and versions",
        h(
            "table.data.facts",
            null,
            files.length > 1 ? h("thead", null, h("tr", null, h("td"), ...heads)) : null,
            ...groups
                .filter(([, lines]) => lines.length)
                .map(([title, lines]) =>
                    h(
                        "tbody",
                        null,
                        h(
                            "tr.group",
                            null,
                            h("th", { colspan: files.length + 1, scope: "rowgroup" }, title),
                        ),
                        ...lines.map(([name, of]) => factLine(files, name, of)),
                    ),
                ),
        ),
    );
}

const machineWord = (key) =>
    ({ gpu: "GPU", cpu: "CPU", cuda: "CUDA", l2_bytes: "L2 cache", cache_bytes: "cache" })[key] ||
    key.replace(/_bytes$/, "").replaceAll("_", " ");

const keysOf = (files, of) => unique(files.flatMap((file) => Object.keys(of(file) || {})));

function factLine(files, name, of) {
    const cells = files.map((file) => h("td", null, of(file)));
    const differ = unique(cells.map((cell) => cell.textContent)).length > 1;
    return h(
        "tr",
        null,
        h("th", { scope: "row" }, name, differ ? h("span.badge.differs", null, "differs") : null),
        ...cells,
    );
}
