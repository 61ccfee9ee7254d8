// The page: every part, drawn for what is chosen.

const bodyOf = (id) => document.querySelector(`#${id} .body`);

function put(id, nodes, shownContenders = []) {
    const present = nodes.filter(Boolean);
    bodyOf(id).replaceChildren(...(present.length ? present : [nothing()]));
    document
        .querySelector(`#${id} .legend`)
        ?.replaceChildren(...legend(present.length ? shownContenders : []));
}

function nothing() {
    if (!chosenFile()?.rows.length) return h("p.note", null, "This file holds no rows.");
    return h(
        "p.note",
        null,
        "Nothing measured for this choice. ",
        h(
            "button.quiet",
            { type: "button", click: () => choose({ op: "all", mode: "all", dtype: "all" }) },
            "Show all rows",
        ),
    );
}

function drawTimes(rows, present) {
    const [name, words] = CLOCKS[choice.clock] || [choice.clock, ""];
    byId("times-lede").replaceChildren(
        h("b", null, `${name}. `),
        words,
        " Every size has its own scale from 0. The whisker holds four of five samples; one with an arrow goes on further.",
        present.some(({ name }) => name === COPY) ? " The dashed line is a plain copy of as many bytes." : "",
        rows.some((row) => row.roof === "compute" && known(row.floor))
            ? " The solid one is the floor where arithmetic binds."
            : "",
    );
    put(
        "times",
        panelsOf(rows).map((panel) => barsPanel(panel, choice.clock, lookOf)),
        present,
    );
}

function drawSpeedup(rows, present) {
    const rivals = present.filter(
        (one) => !isYardstick(one) && rows.some((row) => row.subject !== one.name),
    );
    byId("speedup-title").textContent = `Speed-up against size, ${clockWord(choice.clock)}`;
    put("speedup", speedupPanels(rows, choice.clock, lookOf), rivals);
}

function drawRoofline(file, rows, present) {
    const points = rooflinePoints(rows, lookOf);
    const gemm = computeRoofs(file.roofs, rows);
    const uncounted = rows.filter((row) => !(row.flops > 0 && row.bytes_least > 0)).length;
    const remarks = [
        file.roofs ? null : "This file holds no measured roofs, so only the points are drawn.",
        uncounted
            ? `${plural(uncounted, "row")} without a count of operations or bytes left out.`
            : null,
    ].filter(Boolean);
    put(
        "roofline",
        points.length
            ? [
                  ...remarks.map((text) => h("p.note", null, text)),
                  h(
                      "div.panel",
                      null,
                      responsive((width) => rooflineChart(points, file.roofs, gemm, width)),
                  ),
                  folded("The same as a table", rooflineTable(points, lookOf)),
              ]
            : [],
        present.filter((one) => !isYardstick(one)),
    );
}

function drawComparison() {
    if (files.length < 2) return;
    put("compare", comparison(files, choice));
}

function draw() {
    const file = chosenFile();
    hideTip();
    showChoice();
    if (!file) return;
    const rows = matching(file.rows, choice);
    const present = contenders.filter(({ name }) => rows.some((row) => entryOf(row, name)));
    drawTimes(rows, present);
    drawSpeedup(rows, present);
    drawRoofline(file, rows, present);
    drawComparison();
    put("accuracy", rows.length ? [accuracyTable(rows, lookOf)] : []);
    put("details", rows.length ? detailsTable(file, rows, choice.clock, lookOf) : []);
}

// ---- once

function buildResults() {
    byId("compare").hidden = files.length < 2;
    byId("compare-picks").append(
        picker("contender", "Contender", offered.contender),
        picker("base", "Baseline", offered.base),
    );
    byId("clocks").append(
        ...clocks.map((clock) =>
            h(
                "div",
                null,
                h("dt", null, clockName(clock)),
                h("dd", null, CLOCKS[clock]?.[1] || ""),
            ),
        ),
    );
    bodyOf("machine").append(machineTable(files));
    buildSummary();
    buildControls();
    listenForTips();
    window.addEventListener("hashchange", () => {
        readAddress();
        draw();
    });
    readAddress();
    draw();
}

/** A page may hold figures alone: they are drawn already. */
function build() {
    if (byId("controls")) buildResults();
    buildTheme();
    buildContents();
}

build();
