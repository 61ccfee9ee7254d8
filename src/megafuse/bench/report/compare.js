// Files side by side: the same row of each, and what may be said of the difference.

function comparison(files, choice) {
    const base = Math.max(
        0,
        files.findIndex((file) => file.name === choice.base),
    );
    const twins = twinsOf(files, choice);
    const common = twins.filter((twin) => twin.in.every(Boolean));
    const single = twins.length - common.length;
    const said =
        `${plural(common.length, "row")} in ${files.length === 2 ? "both" : `all ${files.length}`} files` +
        (single ? `, ${single} not in every file.` : ".");
    return [
        h("p.lede", null, kinship(files)),
        whoIsWho(files, base),
        h("p.soft", null, said),
        comparisonTable(files, twins, base, choice),
    ];
}

/** What the reader must know before comparing. */
function kinship(files) {
    const differ = (of) => unique(files.map(of)).length > 1;
    const machines = differ((f) => `${machineOf(f)} ${f.machine.threads} ${f.machine.device}`);
    const commits = differ((f) => f.commit);
    if (machines && commits)
        return "Different machines and different commits: a ratio tells of both at once.";
    if (machines)
        return "Different machines, the same commit: a ratio tells how the machines compare.";
    if (commits)
        return "The same kind of machine, different commits: a ratio tells what the changes did.";
    return "The same kind of machine and the same commit: a ratio tells how far two runs agree.";
}

function whoIsWho(files, base) {
    return h(
        "ul.files",
        null,
        ...files.map((file, i) =>
            h(
                "li",
                null,
                h("b", null, file.name),
                " ",
                i === base ? h("span.badge.base", null, "baseline") : null,
                h(
                    "span.soft",
                    null,
                    `${machineOf(file)}, ${plural(file.machine.threads ?? 0, "thread")}`,
                ),
                h("span.soft", null, h("code", null, commitOf(file))),
                h("span.soft", null, moment(file.date)),
            ),
        ),
    );
}

function comparisonTable(files, twins, base, { contender, clock }) {
    const spanIn = (twin, i) => (twin.in[i] ? timeOf(entryOf(twin.in[i], contender), clock) : null);
    const columns = rowColumns(twins);
    files.forEach((file, i) => {
        columns.push({
            title: file.name,
            num: true,
            hint: `${contender} on ${machineOf(file)}, ${commitOf(file)}`,
            value: (twin) => spanIn(twin, i)?.median ?? null,
            cell: (twin) =>
                spanIn(twin, i)
                    ? spanCell(spanIn(twin, i), seconds)
                    : whyNot(twin, i, files, contender, clock),
        });
        const ratioIn = (twin) => ratioOf(spanIn(twin, base), spanIn(twin, i));
        if (i !== base) columns.push(ratioColumn(file, files[base], ratioIn, twins));
    });
    return sortable(
        "compare-table",
        `${contender} in each file, ${clockWord(clock)}`,
        columns,
        twins,
    );
}

function whyNot(twin, i, files, contender, clock) {
    const row = twin.in[i];
    const entry = row && entryOf(row, contender);
    if (!row) {
        const holders = files.filter((_, j) => twin.in[j]).map((file) => file.name);
        return h("span.soft", null, `only in ${listed(holders)}`);
    }
    if (!entry) return h("span.soft", null, `no ${contender} here`);
    if (entry.error) return h("span.failed", null, entry.error);
    return h("span.soft", null, entry.missing[clock] || `no ${clockWord(clock)} time`);
}

function ratioColumn(file, baseFile, ratioIn, twins) {
    const ratios = twins.map(ratioIn).filter(Boolean);
    const most = Math.max(1.1, ...ratios.map(({ median }) => Math.max(median, 1 / median)));
    return {
        title: `${file.name} against ${baseFile.name}`,
        num: true,
        hint: `How many times as fast or as slow ${file.name} is. Sorted as times as fast.`,
        value: (twin) => ratioIn(twin)?.median ?? null,
        cell: (twin) => {
            const ratio = ratioIn(twin);
            if (!ratio) return NONE;
            // 217× slower is easier to read than 0.0046×.
            const shown = ratio.verdict === "slower" ? 1 / ratio.median : ratio.median;
            return h(
                "span.ratio",
                null,
                leaning(ratio, most),
                h("b", null, factor(shown)),
                verdictBadge(ratio.verdict),
            );
        },
    };
}

/** A bar from the middle, right for faster, left for slower; as long as the ratio's logarithm. */
function leaning(ratio, most) {
    const length = (45 * Math.abs(Math.log(ratio.median))) / Math.log(most);
    const x = ratio.median >= 1 ? 50 : 50 - length;
    return s(
        "svg.leaning",
        {
            width: 72,
            height: 14,
            viewBox: "0 0 100 14",
            preserveAspectRatio: "none",
            "aria-hidden": "true",
        },
        s(`rect.${ratio.verdict}`, { x, y: 3, width: length, height: 8 }),
        s("line", { x1: 50, x2: 50, y1: 0, y2: 14 }),
    );
}
