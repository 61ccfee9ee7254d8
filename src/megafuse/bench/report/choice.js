// What the page holds, and what of it is chosen. The choice is in the address: a view can be linked.

const files = JSON.parse(byId("data").textContent);
const contenders = contendersOf(files);
const clocks = clocksOf(files);
const lookOf = (name) => contenders.find((c) => c.name === name)?.look || "yardstick";

const valuesOf = (key) => unique(allRows(files).map((row) => row[key]));
const offered = {
    file: files.map((file) => file.name),
    op: ["all", ...valuesOf("op")],
    mode: ["all", ...valuesOf("mode")],
    dtype: ["all", ...valuesOf("dtype")],
    clock: clocks,
    contender: contenders.map((c) => c.name),
    base: files.map((file) => file.name),
};
const usual = {
    file: offered.file[0],
    op: "all",
    mode: offered.mode[1] || "all",
    dtype: offered.dtype[1] || "all",
    clock: clocks[0] || "cold",
    contender: offered.contender[0] || "",
    base: offered.base[0],
};
const choice = { ...usual };

function readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const key of Object.keys(usual)) {
        const value = asked.get(key);
        choice[key] = offered[key].includes(value) ? value : usual[key];
    }
}

function writeAddress() {
    const changed = Object.entries(choice).filter(([key, value]) => value !== usual[key]);
    history.replaceState(null, "", "#" + new URLSearchParams(changed));
}

function choose(changes) {
    Object.assign(choice, changes);
    writeAddress();
    draw();
}

const chosenFile = () => files.find((file) => file.name === choice.file);
