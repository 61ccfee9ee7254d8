// The page: every part, once.

function build() {
    buildTheme();
    buildContents();
    buildVerdict();
    buildFindings();
    buildTimeline();
    buildRoofline();
    buildLedger();
    document.querySelector("#machine .body").append(...machineTables());
    listenForTips();
}

build();
