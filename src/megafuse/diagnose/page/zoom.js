// Moving along the timeline: by buttons, by the wheel with Ctrl, to the operations of a finding.

let timelineHost = null;

function buildTimeline() {
    const body = document.querySelector("#timeline .body");
    if (!lanes.some(({ spans }) => spans.length)) {
        body.append(h("p.note", null, "No operation was seen in this call."));
        return;
    }
    const gaps = onGpu
        ? "The host launches, the GPU computes later. Where it is hatched the GPU has nothing to do."
        : "Where it is hatched no operation runs.";
    byId("timeline-lede").textContent =
        `One call, recorded in ${seconds(extent)}; without the recording it takes ` +
        `${seconds(record.seconds)}. ${gaps}`;
    document.querySelector("#timeline .legend").replaceChildren(...kindLegend());
    timelineHost = responsive(timelineChart);
    timelineHost.addEventListener("wheel", onWheel, { passive: false });
    timelineHost.addEventListener("dblclick", (event) => zoom(0.5, shareAt(event)));
    body.append(h("div.panel", null, zoomButtons(), timelineHost), operationsTable());
}

function zoomButtons() {
    const button = (text, label, act) =>
        h("button.quiet", { type: "button", "aria-label": label, click: act }, text);
    return h(
        "div.zoom",
        { role: "toolbar", "aria-label": "Move along the timeline" },
        button("+", "Zoom in", () => zoom(0.5)),
        button("−", "Zoom out", () => zoom(2)),
        button("←", "Earlier", () => pan(-0.5)),
        button("→", "Later", () => pan(0.5)),
        button("Whole call", "Whole call", wholeCall),
    );
}

/** Where the pointer is, from 0 at the left to 1. */
function shareAt(event) {
    const box = timelineHost.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
}

function onWheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, shareAt(event));
}

function look(from, to) {
    const long = Math.min(Math.max(to - from, 1e-7), extent);
    view.from = Math.max(0, Math.min(from, extent - long));
    view.to = view.from + long;
    hideTip();
    timelineHost.replaceChildren(timelineHost.draw(timelineHost.drawnWidth));
}

/** The moment at `share` of the width stays where it is. */
function zoom(times, share = 0.5) {
    const at = view.from + share * (view.to - view.from);
    look(at - (at - view.from) * times, at + (view.to - at) * times);
}

function pan(share) {
    const by = share * (view.to - view.from);
    look(view.from + by, view.to + by);
}

function wholeCall() {
    view.lit = new Set();
    look(0, extent);
}

/** Zooms to the operations of a finding, and dims the others. */
function showOnTimeline(finding) {
    view.lit = new Set(finding.operations);
    const spans = lanes.flatMap(({ spans }) => spans.filter(lit));
    const [from, to] = [
        Math.min(...spans.map((span) => span.start)),
        Math.max(...spans.map((span) => endOf(span))),
    ];
    const margin = 0.08 * (to - from) || 1e-6;
    byId("timeline").scrollIntoView();
    if (spans.length) look(from - margin, to + margin);
}
