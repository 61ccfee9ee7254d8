// Elements, tooltips, keyboard, sortable tables. Text goes in as text nodes only, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** h("td.num", {title: "…"}, "text", node, null): the null is left out. */
function h(name, attributes, ...children) {
    const [tag, ...classes] = name.split(".");
    return fill(document.createElement(tag), classes, attributes, children);
}

/** The same for SVG. */
function s(name, attributes, ...children) {
    const [tag, ...classes] = name.split(".");
    return fill(document.createElementNS(SVG, tag), classes, attributes, children);
}

function fill(node, classes, attributes, children) {
    classes.forEach((c) => c && node.classList.add(c));
    for (const [key, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false) continue;
        if (typeof value === "function") node.addEventListener(key, value);
        else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.flat().filter((c) => c !== null && c !== undefined));
    return node;
}

// ---- tooltips: one box for the page, shown on hover, on focus and on touch

const tips = new WeakMap();

/** Gives a node a tooltip of several lines; the first is the title. Screen readers hear it too. */
function withTip(node, lines, label = true) {
    tips.set(node, lines.filter(Boolean));
    node.setAttribute("data-tip", "");
    if (label) node.setAttribute("aria-label", tips.get(node).join(". "));
    return node;
}

let tipped = null; // the node whose tooltip is shown

function showTip(node) {
    const [title, ...rest] = tips.get(node);
    const box = byId("tip");
    box.replaceChildren(h("b", null, title), ...rest.map((line) => h("span", null, line)));
    box.hidden = false;
    tipped = node;
    placeTip();
}

/** Above its node, or under it where there is no room; never beyond the edges of the window. */
function placeTip() {
    const box = byId("tip");
    const at = tipped.getBoundingClientRect();
    const most = document.documentElement.clientWidth - box.offsetWidth - 8;
    const left = at.left + at.width / 2 - box.offsetWidth / 2;
    const above = at.top - box.offsetHeight - 10;
    box.style.left = `${Math.max(8, Math.min(left, most))}px`;
    box.style.top = `${above > 4 ? above : at.bottom + 10}px`;
}

function hideTip() {
    byId("tip").hidden = true;
    tipped = null;
}

function listenForTips() {
    // A pointer that lies elsewhere does not take the tooltip from what the keyboard is at.
    const atKeyboard = () => document.querySelector("[data-tip]:focus-visible");
    const over = (event) => {
        const under = event.target instanceof Element && event.target.closest("[data-tip]");
        const node = under || atKeyboard();
        if (node && tips.has(node)) showTip(node);
        else hideTip();
    };
    document.addEventListener("pointerover", over);
    document.addEventListener("focusin", over);
    document.addEventListener("focusout", hideTip);
    document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
    // A focused mark is scrolled into view: its tooltip goes along.
    const follow = () => tipped && placeTip();
    document.addEventListener("scroll", follow, { passive: true, capture: true });
}

/** One tab stop for all marks of a chart; the arrow keys go from mark to mark. */
function walkable(container, marks) {
    const go = (i) => {
        marks.forEach((mark, j) => mark.setAttribute("tabindex", i === j ? 0 : -1));
        marks[i].focus();
    };
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    marks.forEach((mark, i) => mark.setAttribute("tabindex", i === 0 ? 0 : -1));
    container.addEventListener("keydown", (event) => {
        const i = marks.indexOf(document.activeElement);
        if (i < 0 || !(event.key in steps)) return;
        event.preventDefault();
        go((i + steps[event.key] + marks.length) % marks.length);
    });
}

// ---- charts follow the width they are given, so that their text keeps its size

const watcher = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
        const width = Math.floor(contentRect.width);
        if (width > 0 && width !== target.drawnWidth) {
            target.drawnWidth = width;
            target.replaceChildren(target.draw(width));
        }
    }
});

function responsive(draw) {
    const host = h("div.chart");
    host.draw = draw;
    watcher.observe(host);
    return host;
}

// ---- tables

const folded = (title, ...content) =>
    h("details.fold", null, h("summary", null, title), ...content);

/** Wide tables scroll inside this; it takes the focus so that the keyboard can scroll it. */
const scroller = (label, table) =>
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, table);

const sorting = {}; // by table: the column's title and whether it descends; kept across choices

/**
 * A table whose heads sort it.
 * columns: {title, hint, num, value(row): what it sorts by, cell(row): what is shown}.
 * error(row): a node that takes the place of the columns from `errorAt` on.
 */
function sortable(id, label, columns, rows, { error = () => null, errorAt = 0 } = {}) {
    const body = h("tbody");
    const heads = columns.map((column) => headOf(column, () => turn(column.title)));
    const show = () => {
        const chosen = sorting[id];
        heads.forEach((head, i) => {
            const mine = chosen && chosen.title === columns[i].title;
            head.setAttribute(
                "aria-sort",
                !mine ? "none" : chosen.down ? "descending" : "ascending",
            );
        });
        body.replaceChildren(...ordered(rows, columns, chosen).map(rowOf));
    };
    const rowOf = (row) => {
        const text = error(row);
        const shown = text ? columns.slice(0, errorAt) : columns;
        const cells = shown.map((column) => cellOf(column, row));
        if (text) cells.push(h("td.instead", { colspan: columns.length - errorAt }, text));
        return h("tr", null, ...cells);
    };
    // Up, down, and back to the order of the file.
    const turn = (title) => {
        const chosen = sorting[id];
        if (!chosen || chosen.title !== title) sorting[id] = { title, down: false };
        else if (!chosen.down) chosen.down = true;
        else delete sorting[id];
        show();
    };
    show();
    const head = h("thead", null, h("tr", null, ...heads));
    return scroller(label, h("table.data", { id }, h("caption.unseen", null, label), head, body));
}

function headOf({ title, hint, num }, onclick) {
    const button = h("button", { type: "button", click: onclick }, title);
    if (hint) withTip(button, [title, hint], false);
    return h(num ? "th.num" : "th", { scope: "col" }, button);
}

function cellOf({ num, value, cell, head }, row) {
    const raw = value(row);
    const shown = cell ? cell(row) : (raw ?? NONE);
    const attributes = { "data-value": raw ?? null, scope: head ? "row" : null };
    return h((head ? "th" : "td") + (num ? ".num" : ""), attributes, shown);
}

/** Sorted by the chosen column. What was not measured comes last in both directions. */
function ordered(rows, columns, chosen) {
    const column = chosen && columns.find(({ title }) => title === chosen.title);
    if (!column) return rows;
    const { value } = column;
    const compare = (a, b) =>
        typeof a === "number" && typeof b === "number"
            ? a - b
            : String(a).localeCompare(String(b), "en", { numeric: true });
    const absent = (x) => x === null || x === undefined;
    return [...rows].sort((left, right) => {
        const [a, b] = [value(left), value(right)];
        if (absent(a) || absent(b)) return absent(a) - absent(b);
        return chosen.down ? compare(b, a) : compare(a, b);
    });
}

/** A column of numbers; what was not measured has none. */
const number = (title, value, format, hint) => ({
    title,
    hint,
    num: true,
    value: (line) => {
        const x = value(line);
        return known(x) ? x : null;
    },
    cell: (line) => format(value(line)),
});

/** A number, and under it what belongs to it. */
const stacked = (main, under) =>
    h("span.stacked", null, h("span", null, main), under ? h("small", null, under) : null);
