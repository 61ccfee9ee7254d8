// The bar that stays on screen: file, op, mode, dtype, clock.

function picker(key, label, values, name = (value) => value) {
    const options = values.map((value) => h("option", { value }, name(value)));
    const select = h(
        "select",
        { name: key, change: (event) => choose({ [key]: event.target.value }) },
        ...options,
    );
    return h("label.pick", null, h("span", null, label), select);
}

function clockPicker() {
    const option = (clock) => {
        const input = h("input", {
            type: "radio",
            name: "clock",
            value: clock,
            change: () => choose({ clock }),
        });
        const [name, words] = CLOCKS[clock] || [clock, ""];
        return withTip(h("label", null, input, h("span", null, name)), [name, words], false);
    };
    return h(
        "fieldset.clock",
        null,
        h("legend", null, "Clock"),
        h("div.segments", null, ...clocks.map(option)),
    );
}

function buildControls() {
    const all = (what) => (value) => (value === "all" ? `all ${what}` : value);
    const form = byId("controls");
    const opener = h("button.opener", {
        type: "button",
        "aria-expanded": "false",
        "aria-controls": "picks",
        click: () => {
            opener.setAttribute("aria-expanded", String(form.classList.toggle("open")));
        },
    });
    form.append(
        opener,
        h(
            "div",
            { id: "picks" },
            files.length > 1 ? picker("file", "File", offered.file) : null,
            picker("op", "Op", offered.op, all("ops")),
            picker("mode", "Mode", offered.mode, all("modes")),
            picker("dtype", "Dtype", offered.dtype, all("dtypes")),
            clocks.length ? clockPicker() : null,
        ),
    );
    form.addEventListener("submit", (event) => event.preventDefault());
}

/** The controls show the choice, also after it came from the address. */
function showChoice() {
    const form = byId("controls");
    for (const select of document.querySelectorAll("select")) select.value = choice[select.name];
    for (const radio of form.querySelectorAll("input"))
        radio.checked = radio.value === choice.clock;
    const words = [
        files.length > 1 ? choice.file : null,
        choice.op === "all" ? "all ops" : choice.op,
        choice.mode === "all" ? "all modes" : choice.mode,
        choice.dtype === "all" ? "all dtypes" : choice.dtype,
        clockWord(choice.clock),
    ];
    for (const card of document.querySelectorAll(".card")) showWhetherChosen(card);
    form.querySelector(".opener").textContent = words.filter(Boolean).join(" · ");
}

function showWhetherChosen(card) {
    const button = card.querySelector("button");
    if (!button) return;
    const shown = card.dataset.file === choice.file;
    card.classList.toggle("shown", shown);
    button.setAttribute("aria-pressed", String(shown));
    button.textContent = shown ? "shown below" : "show below";
}
