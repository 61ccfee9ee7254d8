// What the diagnosis says: operations, lines, and words for them. Nothing here draws.

const diagnosis = JSON.parse(byId("data").textContent);
const { record, machine, verdict, findings } = diagnosis;
record.operations = record.operations.map(unpacked);
const onGpu = record.device === "cuda";

/** Tensors and lines stand once each, and what is empty was left out. */
function unpacked(packed) {
    const operation = { ...diagnosis.empty, ...packed };
    operation.where = diagnosis.lines[operation.where];
    for (const side of ["reads", "writes"])
        operation[side] = operation[side].map((place) => diagnosis.tensors[place]);
    return operation;
}

/** Colour and shape of each kind of operation. Kinds that are rare share the last. */
const KINDS = {
    product: ["s1", "matrix products"],
    pointwise: ["s0", "pointwise"],
    reduction: ["s2", "reductions"],
    attention: ["s3", "attention"],
    copy: ["s4", "copies and casts"],
    index: ["s5", "gather and scatter"],
    extension: ["s6", "your extension"],
    other: ["s7", "other"],
};
const kindOf = (operation) => (operation.kind in KINDS ? operation.kind : "other");
const lookOf = (operation) => KINDS[kindOf(operation)][0];

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

/** Seconds on the device that does the work. */
const secondsOf = (operation) => operation.device_seconds ?? operation.host_seconds;

/** mul, of aten.mul.Tensor; of others the first two parts. */
function shortName({ name }) {
    const parts = name.split(".");
    return parts[0] === "aten" && parts.length > 1 ? parts[1] : parts.slice(0, 2).join(".");
}

const fileName = (where) => where.file.split("/").at(-1);

/** train.py:12, with the last part of the path. */
const placeOf = (where) => (where.file ? `${fileName(where)}:${where.line}` : "no line known");

const tensorOf = ({ shape, dtype }) => `${dtype} ${shape.map(String).join("×") || "scalar"}`;

/** float32 64×2048 and float32 2048 → float32 64×2048 */
function tensorsOf({ reads, writes }) {
    const few = (tensors) => {
        const shown = tensors.slice(0, 3).map(tensorOf);
        if (tensors.length > 3) shown.push(`${tensors.length - 3} more`);
        return listed(shown);
    };
    return [few(reads), few(writes)].filter(Boolean).join(" → ");
}

/** 43 % of the memory roof, or nothing where it is not known. */
const shareWords = ({ roof, roof_share: share }) =>
    known(share) ? `${percent(share)} of the ${roof || "measured"} roof` : "";

/** Which findings an operation belongs to, by number from 1. */
const findingsOf = (index) => numbersOf.get(index) || [];
const numbersOf = new Map();
findings.forEach(({ operations }, i) =>
    operations.forEach((index) => numbersOf.set(index, [...findingsOf(index), i + 1])),
);

const isWork = (operation) => operation.kind !== "view";

/** Operations with the same of something, in the order of the first. */
function grouped(operations, keyOf) {
    const groups = new Map();
    for (const operation of operations) {
        const key = keyOf(operation);
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(operation);
    }
    return [...groups.values()];
}
