// The first thing a reader sees: a card for each file, with what fusion gave there.

function summaryCard(file) {
    const clock = clocksOf([file]).includes("cold") ? "cold" : clocksOf([file])[0];
    const pick = h("button.quiet", { type: "button", click: () => choose({ file: file.name }) });
    return h(
        "article.card",
        { "aria-label": file.name, "data-file": file.name },
        h(
            "div.card-head",
            null,
            h("h2", null, machineOf(file)),
            files.length > 1 ? pick : null,
            h(
                "p.soft",
                null,
                files.length > 1 ? h("b", null, file.name) : null,
                ` ${plural(file.rows.length, "row")} of suite “${file.suite}”, ${moment(file.date)}`,
            ),
        ),
        h("dl.stats", null, ...statsOf(file, clock)),
        h(
            "p.again",
            null,
            "Commit ",
            h("code", null, (file.commit || NONE).slice(0, 10)),
            file.changed ? h("span.badge.slower", null, "with uncommitted changes") : null,
            ` · ${versionsLine(file)} · made by `,
            h("code", null, file.command),
        ),
    );
}

const versionsLine = (file) =>
    ["torch", "triton", "python"]
        .filter((key) => file.versions[key])
        .map((key) => `${key} ${file.versions[key]}`)
        .join(", ");

function statsOf(file, clock) {
    const gains = gainsOf(file, clock);
    const best = bestShare(file);
    const judged = gains.reduce((sum, gain) => sum + gain.count, 0);
    const ambiguous = gains.reduce((sum, gain) => sum + gain.ambiguous, 0);
    const slower = gains.reduce((sum, gain) => sum + gain.slower, 0);
    const behind = gains.reduce((sum, gain) => sum + gain.behind, 0);
    const failed = failuresOf(file).length;
    return [
        ...gains.map((gain) =>
            stat(
                factor(gain.mean),
                `over ${gain.name}`,
                `${factor(gain.least)} to ${factor(gain.most)}`,
                gain.mean,
            ),
        ),
        best
            ? stat(
                  percent(subjectOf(best).roof_share),
                  `of the ${best.roof} roof at best`,
                  `${nameOf(best)}, ${best.dtype}, ${amount(best.elements)}`,
                  subjectOf(best).roof_share,
              )
            : null,
        judged
            ? stat(
                  `${ambiguous}`,
                  `of ${plural(judged, "comparison")} ambiguous`,
                  listed(
                      [
                          behind ? `${behind} of them behind in most rounds` : null,
                          `${slower} clearly slower`,
                          failed ? `${failed} with an error` : null,
                      ].filter(Boolean),
                  ),
                  ambiguous,
              )
            : null,
    ];
}

function stat(value, label, under, raw) {
    return h(
        "div",
        null,
        h("dt", null, label),
        h("dd", { "data-value": raw }, value),
        h("dd.under", null, under),
    );
}

function buildSummary() {
    const clock = clocks.includes("cold") ? "cold caches" : `the ${clockWord(usual.clock)} clock`;
    const subject = listed(unique(allRows(files).map((row) => row.subject)));
    const line = subject
        ? `How many times as fast ${subject} is: the geometric mean of all rows with ${clock}, and the least and the most.`
        : "These files hold no rows.";
    byId("summary").replaceChildren(
        h("p.lede", null, line),
        h("div.cards", null, ...files.map(summaryCard)),
    );
}
