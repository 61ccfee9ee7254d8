// Findings that unfold: evidence, the line, what to do, predicted and measured.

const UNITS = {
    s: seconds,
    B: bytes,
    "B/s": bandwidth,
    "FLOP/s": flopRate,
    "×": factor,
    "%": (x) => (known(x) ? `${figures(x)}${SPACE}%` : NONE),
    "": (x) => (known(x) ? (Number.isInteger(x) ? whole(x) : figures(x)) : NONE),
};
const valueOf = ({ value, unit }) =>
    unit in UNITS ? UNITS[unit](value) : `${known(value) ? figures(value) : NONE}${SPACE}${unit}`;

function buildFindings() {
    const body = document.querySelector("#findings .body");
    byId("findings-lede").textContent = findings.length
        ? "Most important first. Each unfolds."
        : "";
    if (!findings.length) {
        byId("findings-title").textContent = "Nothing to change";
        body.append(h("p.panel", null, verdict.sentence));
        return;
    }
    body.append(h("ol.findings", null, ...findings.map(findingItem)));
}

/** The first stands open: it is what the reader came for. */
function findingItem(finding, i) {
    return h(
        "li",
        null,
        h(
            "details.finding",
            { id: `finding-${i + 1}`, open: i === 0 },
            h(
                "summary",
                null,
                h("span.count", { "aria-hidden": "true" }, String(i + 1)),
                h(
                    "span.what",
                    null,
                    h("b", null, finding.title),
                    h("span.soft", null, underTitle(finding)),
                ),
                gainBadge(finding),
            ),
            h("div.inside", null, ...findingParts(finding)),
        ),
    );
}

function underTitle({ where, seconds: part }) {
    const share = `${percent(part / record.seconds)} of the call`;
    return where.file ? `${placeOf(where)} · ${share}` : share;
}

/** What was measured, where it was; else what is predicted. */
function gainBadge({ measured, gain }) {
    const saved = known(measured) ? record.seconds - measured : gain;
    return h(
        "span.saves",
        null,
        h("b", null, saved >= 0 ? `−${seconds(saved)}` : `+${seconds(-saved)}`),
        h("span.soft", null, known(measured) ? "measured" : "predicted"),
    );
}

function findingParts(finding) {
    return [
        h("p.advice", null, h("b", null, "Do this. "), finding.advice),
        ...sourceParts(finding),
        h("div.halves", null, evidencePart(finding), predictionPart(finding)),
        finding.fix ? diffPart(finding.fix) : null,
        finding.operations.length ? showButton(finding) : null,
    ];
}

/** The lines of each function in their order; the one that matters most is marked. */
function sourceParts({ where: main, lines }) {
    const named = [main, ...lines].filter((where) => where.file);
    return grouped(named, (where) => `${where.file}:${where.function}`).map((together) =>
        h(
            "div.source",
            { title: together[0].file },
            h("span.soft", null, functionOf(together[0])),
            h(
                "ol",
                null,
                ...together
                    .sort((a, b) => a.line - b.line)
                    .map((where) => codeLine(where, where === main && named.length > 1)),
            ),
        ),
    );
}

const functionOf = (where) => fileName(where) + (where.function ? ` in ${where.function}` : "");

function codeLine({ line, text }, marked) {
    const number = h("span.soft", null, String(line));
    return h(marked ? "li.main" : "li", null, number, h("code", null, text || NONE));
}

function evidencePart({ evidence, seconds: part }) {
    const lines = [
        ["of the call’s time", `${seconds(part)}, ${percent(part / record.seconds)}`],
        ...evidence.map((each) => [each.name, valueOf(each)]),
    ];
    return h(
        "div",
        null,
        h("h3", null, "What shows it"),
        h("dl.evidence", null, ...lines.map(([name, value]) => factPair(name, value))),
    );
}

const factPair = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));

// ---- predicted and measured

function predictionPart(finding) {
    const { trial, how, sure } = finding;
    return h(
        "div",
        null,
        h("h3", null, "Predicted and measured"),
        responsive((width) => predictionBars(finding, width)),
        trial ? h("p.tried", null, trialWords(trial)) : null,
        h(
            "dl.evidence",
            null,
            how ? factPair("predicted from", h("span.words", null, how)) : null,
            factPair("how sure", h("span.words", null, SURE[sure] || sure)),
        ),
    );
}

const SURE = {
    measured: "measured",
    sure: "sure: the numbers allow no other reading",
    likely: "likely",
    perhaps: "perhaps",
};

function trialWords(trial) {
    const what = h("b", null, trial.what);
    if (trial.error) return h("span", null, "Tried ", what, `: ${trial.error}`);
    const ratio = trial.before / trial.after;
    const span = spread({ low: trial.low, high: trial.high }, factor);
    const of = trial.part === "call" ? "the whole call" : "these operations";
    return h(
        "span",
        null,
        "Tried ",
        what,
        `: ${of} ${factor(ratio)}${span && ` (${span})`} as fast`,
        trial.accuracy ? `; ${trial.accuracy}` : "",
    );
}

/** Of the whole call, from 0: now, as predicted, and as measured. */
const barsOf = ({ gain, measured }) => [
    ["now", record.seconds, "s7"],
    ["predicted", Math.max(0, record.seconds - gain), "s5"],
    ...(known(measured) ? [["measured", Math.max(0, measured), "s2"]] : []),
];

function predictionBars(finding, width) {
    const bars = barsOf(finding);
    const [left, right, line] = [76, 76, 26];
    const most = Math.max(...bars.map(([, value]) => value)) || 1;
    const room = Math.max(40, width - left - right);
    const words = bars.map(([name, value]) => `${name} ${seconds(value)}`).join(", ");
    return s(
        "svg",
        { width, height: bars.length * line, role: "img", "aria-label": words },
        ...bars.flatMap(([name, value, look], i) => {
            const [y, long] = [i * line, Math.max(1, (room * value) / most)];
            return [
                s("text", { x: 0, y: y + 16 }, name),
                s(`rect.fill.${look}`, { x: left, y: y + 4, width: long, height: 16, rx: 2 }),
                s("text.strong", { x: left + long + 8, y: y + 16 }, seconds(value)),
            ];
        }),
    );
}

function diffPart(fix) {
    const SIGNS = { "+": "added", "-": "removed" };
    const look = (line) =>
        /^(\+\+\+|---|@@)/.test(line) ? "soft" : SIGNS[line[0]] || "same";
    const lines = fix.replace(/\n$/, "").split("\n");
    return h(
        "div.fix",
        null,
        h("h3", null, "The change"),
        h(
            "pre",
            { tabindex: 0, role: "region", "aria-label": "The change as a diff" },
            ...lines.map((line) => h(`span.${look(line)}`, null, line + "\n")),
        ),
    );
}

function showButton(finding) {
    return h(
        "button.quiet",
        { type: "button", click: () => showOnTimeline(finding) },
        `Show ${plural(finding.operations.length, "operation")} on the timeline`,
    );
}
