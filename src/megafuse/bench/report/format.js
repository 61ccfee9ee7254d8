"use strict";
// Numbers as people read them: 3.50 µs, 16 Mi, 4.21 TB/s, 97 %.

const NONE = "–";
const SPACE = "\u202f"; // narrow and unbreakable, between a number and its unit

const unique = (values) => [...new Set(values)];
const known = (x) => typeof x === "number" && Number.isFinite(x);

/** Three figures: 3.50, 35.0, 350, 3500. */
function figures(x) {
    const size = Math.abs(x);
    if (size === 0) return "0";
    if (size < 0.01) return scientific(x);
    if (size < 0.9995) return x.toFixed(3).replace(/0+$/, "");
    return x.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

function scaled(x, units, rest) {
    if (!known(x)) return NONE;
    // 999.6 of a unit would print as 1000: it belongs to the next one.
    const [unit, name] = units.find(([u]) => Math.abs(x) >= 0.9995 * u) || rest || units.at(-1);
    return figures(x / unit) + SPACE + name;
}

const seconds = (x) =>
    scaled(x, [
        [1, "s"],
        [1e-3, "ms"],
        [1e-6, "µs"],
        [1e-9, "ns"],
    ]);

const bytes = (x) =>
    scaled(
        x,
        [
            [1e12, "TB"],
            [1e9, "GB"],
            [1e6, "MB"],
            [1e3, "KB"],
        ],
        [1, "B"],
    );

const cacheBytes = (x) =>
    scaled(
        x,
        [
            [2 ** 30, "GiB"],
            [2 ** 20, "MiB"],
            [2 ** 10, "KiB"],
        ],
        [1, "B"],
    ).replace(/\.0+(?=\D)/, "");

const bandwidth = (x) =>
    scaled(x, [
        [1e12, "TB/s"],
        [1e9, "GB/s"],
        [1e6, "MB/s"],
    ]);

const flopRate = (x) =>
    scaled(x, [
        [1e15, "PFLOP/s"],
        [1e12, "TFLOP/s"],
        [1e9, "GFLOP/s"],
        [1e6, "MFLOP/s"],
    ]);

const factor = (x) => (known(x) ? figures(x) + "×" : NONE);

/** 13.2–13.9 µs; where the units differ, 990 ns–1.10 µs. One sample has no spread. */
function spread(span, unit) {
    if (span.n === 1 || !known(span.low) || !known(span.high)) return "";
    const [low, high] = [unit(span.low), unit(span.high)];
    const name = (text) => text.replace(/^[\d.e−]+/, "");
    return `${name(low) === name(high) ? low.slice(0, low.length - name(low).length) : low}–${high}`;
}

function percent(share) {
    if (!known(share)) return NONE;
    const x = 100 * share;
    const rounded = x >= 9.95 ? x.toFixed(0) : x >= 0.095 ? x.toFixed(1) : figures(x);
    // 99.7 % must not read as all of it.
    const nearly = rounded === "100" && x < 100;
    return (nearly ? x.toFixed(x >= 99.95 ? 3 : 1) : rounded) + SPACE + "%";
}

/** 1.2e−7: errors differ by powers of ten. */
function scientific(x) {
    if (!known(x)) return NONE;
    if (Math.abs(x) >= 0.1 && Math.abs(x) < 100) return x.toPrecision(2);
    return x === 0 ? "0" : x.toExponential(1).replace("e-", "e−").replace("e+", "e");
}

const whole = (x) => (known(x) ? x.toLocaleString("en") : NONE);

/** 16 Mi when it is exactly that, 5 M when it is that, else rounded: 1.23 M. */
function amount(n) {
    if (n < 1000) return String(n);
    const decimal = [
        [1e9, "G"],
        [1e6, "M"],
        [1e3, "K"],
    ].find(([unit]) => n >= unit);
    const short = Number((n / decimal[0]).toPrecision(3));
    if (short * decimal[0] === n) return short + SPACE + decimal[1];
    const binary = [
        [2 ** 30, "Gi"],
        [2 ** 20, "Mi"],
        [2 ** 10, "Ki"],
    ].find(([unit]) => n % unit === 0);
    return binary ? n / binary[0] + SPACE + binary[1] : short + SPACE + decimal[1];
}

const shapeOf = (shape) => shape.map(whole).join(" × ") || "scalar";

const plural = (n, one, many) => `${whole(n)} ${n === 1 ? one : many || one + "s"}`;

/** eager, compile and copy */
function listed(words) {
    if (words.length < 2) return words.join("");
    return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** 15 Nov 2026, 05:00 UTC. A date without a time of day is shown as it is. */
function moment(text) {
    const date = new Date(text);
    if (!/T/.test(text || "") || Number.isNaN(date.getTime())) return text || NONE;
    const options = {
        day: "numeric",
        month: "short",
        year: "numeric",
        hour: "2-digit",
        minute: "2-digit",
        hourCycle: "h23",
        timeZone: "UTC",
    };
    return date.toLocaleString("en-GB", options) + " UTC";
}

function duration(x) {
    if (!known(x)) return NONE;
    if (x < 60) return seconds(x);
    const minutes = Math.floor(x / 60);
    return `${minutes}${SPACE}min ${Math.round(x % 60)}${SPACE}s`;
}
