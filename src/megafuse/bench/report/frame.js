// The head of a page: links to its parts, and the theme.

/** Links that scroll: the address is taken by the choice. */
function buildContents() {
    const sections = document.querySelectorAll("main section:not([hidden])");
    for (const section of sections.length > 1 ? sections : []) {
        const title = section.dataset.short;
        const go = (event) => {
            event.preventDefault();
            section.scrollIntoView();
        };
        byId("contents").append(h("a", { href: `#${section.id}`, click: go }, title));
    }
}

function buildTheme() {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    const label = () => {
        byId("theme").textContent = isDark() ? "Light theme" : "Dark theme";
    };
    byId("theme").addEventListener("click", () => {
        root.dataset.theme = isDark() ? "light" : "dark";
        label();
    });
    system.addEventListener("change", label);
    label();
}
