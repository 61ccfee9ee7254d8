"""The page of a diagnosis in a real browser: clicked through, and read back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Shown, started

from diagnose import made_diagnoses as made
from diagnose.test_page import HOSTILE, hostile
from megafuse.diagnose import page
from megafuse.diagnose.diagnosis import Diagnosis

pytestmark = pytest.mark.slow  # a browser for each; the page without one has quick tests


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with started() as running:
        yield running


@pytest.fixture
def show(browser, tmp_path: Path) -> Iterator:
    """Writes the page and opens it; at the end it must have been quiet."""
    opened: list[Shown] = []

    def open_page(diagnosis: Diagnosis, width: int = 1280, theme: str = "light") -> Shown:
        path = tmp_path / f"page{len(opened)}.html"
        page.write(diagnosis, path)
        opened.append(Shown(browser, path, width, theme))
        return opened[-1]

    yield open_page
    for shown in opened:
        shown.check()
        shown.page.close()


def test_the_verdict_stands_on_top(show) -> None:
    shown = show(made.naive())
    summary = shown.text("#summary")
    assert "A matrix product of your own" in summary
    for expected in ("2 findings", "50.0 ms", "7.0 %", "4.00×", "as measured"):
        assert expected in summary
    assert "a laptop · torch 2.11.0" in summary
    assert shown.find("#summary").bounding_box()["y"] < 200


def test_findings_unfold(show) -> None:
    shown = show(made.naive())
    assert shown.all(".finding summary b") == [
        "linear_relu runs at 2.1 % of the library's rate for its shape",
        "−37.5 ms",
        "3 operations go over the same 4 MB",
        "−2.50 ms",
    ]
    first, second = "#finding-1 .inside", "#finding-2 .inside"
    assert shown.find(first).is_visible()
    assert not shown.find(second).is_visible()
    inside = shown.text(first)
    for expected in (
        "Call torch.nn.functional.linear",
        "train.py in step",
        "return linear_relu(x, weight)",
        "1.70 GFLOP/s",
        "80.0 GFLOP/s",
        "40.0 ms, 80 %",
        "4.00× (3.80–4.20×) as fast",
        "+return mf.linear_relu(x, weight)",
    ):
        assert expected in inside
    assert shown.drawn(f"{first} .chart text") == [
        *("now", "50.0 ms", "predicted", "12.0 ms", "measured", "12.5 ms")
    ]
    widths = shown.find(f"{first} .chart rect").evaluate_all(
        "all => all.map(e => e.getBBox().width)"
    )
    assert widths[1] / widths[0] == pytest.approx(12 / 50, rel=0.02)
    assert widths[2] / widths[0] == pytest.approx(12.5 / 50, rel=0.02)
    shown.page.locator("#finding-2 summary").focus()
    shown.page.keyboard.press("Enter")
    assert "Put @megafuse.fuse" in shown.text(second)
    assert shown.drawn(f"{second} .chart text") == ["now", "50.0 ms", "predicted", "47.5 ms"]
    shown.page.locator("#finding-1 summary").click()
    assert not shown.find(first).is_visible()


def test_a_trial_that_failed_says_why_and_has_no_bar(show) -> None:
    shown = show(made.launches())
    assert "Tried a CUDA graph: the step prints" in shown.text("#finding-1 .inside")
    assert "measured" not in " ".join(shown.drawn("#finding-1 .chart text"))
    assert "x = 0.5 * x" in shown.text("#finding-1 .inside")
    assert shown.all("#finding-1 .source li") == [
        "12\nx = 0.5 * x * (1 + torch.tanh(x))",
        "15\nreturn linear_relu(x, weight)",
    ]
    assert shown.all("#finding-1 .source li.main") == shown.all("#finding-1 .source li")[:1]


def test_a_trial_of_the_operations_is_shown_for_the_whole_call(show) -> None:
    """It took 40 of the call's 50 ms, and a fourth of the 3 ms between its four operations: a
    quarter of that is left."""
    diagnosis = made.naive()
    trial = diagnosis.findings[0].trial
    trial.part, trial.before, trial.after = "operations", 44e-3, 11e-3
    shown = show(diagnosis)
    assert shown.drawn("#finding-1 .chart text")[-2:] == ["measured", "19.4 ms"]
    assert "these operations 4.00×" in shown.text("#finding-1 .inside")
    assert shown.text("#finding-1 .saves") == "−30.6 ms\nmeasured"


def test_leave_it(show) -> None:
    shown = show(made.fine())
    assert shown.text("h1") == "fine_add.py:step: leave it"
    assert "leave it" in shown.text("#summary .badge")
    assert "95 %" in shown.text("#summary")
    assert shown.text("#findings h2") == "Nothing to change"
    assert shown.find(".finding").count() == 0


# ---- timeline


def boxes(shown: Shown, selector: str) -> list[dict]:
    return shown.find(selector).evaluate_all(
        "all => all.map(e => ({left: e.getBBox().x, right: e.getBBox().x + e.getBBox().width}))"
    )


def test_timeline_is_to_scale_and_shows_gaps(show) -> None:
    shown = show(made.naive())
    width = shown.find("#timeline .chart svg").evaluate("e => e.clientWidth - 2")
    drawn = boxes(shown, "#timeline .block .run")
    expected = [(0, 3e-3), (4e-3, 6e-3), (6e-3, 7e-3), (7e-3, 8e-3), (9e-3, 49e-3)]
    assert len(drawn) == len(expected), "a view is no operation"
    for box, (start, end) in zip(drawn, expected, strict=True):
        assert box["left"] == pytest.approx(start / 49e-3 * width, abs=1.5)
        assert box["right"] == pytest.approx(end / 49e-3 * width, abs=2.5)
    gaps = boxes(shown, "#timeline .gap")
    assert [round(g["left"] / width * 49) for g in gaps] == [3, 8]
    assert "your own code" in shown.text("#timeline .legend")


def test_timeline_tells_of_what_is_hovered_or_focused(show) -> None:
    shown = show(made.naive())
    shown.page.locator("#timeline .block").last.hover()
    assert shown.tip.startswith("ada.linear_relu: 40.0 ms")
    for expected in ("2.0 % of the compute roof", "train.py:15", "finding 1", "float32 1024×1024"):
        assert expected in shown.tip
    shown.page.locator("#timeline .gap").first.hover()
    assert shown.tip.startswith("1.00 ms: nothing runs but Python")
    shown.page.mouse.move(2, 2)
    shown.page.locator("#timeline [tabindex='0'].block").focus()
    assert shown.tip.startswith("DataLoader.__next__: 3.00 ms")
    shown.page.keyboard.press("ArrowRight")
    assert shown.tip.startswith("1.00 ms: nothing runs")
    shown.page.keyboard.press("ArrowRight")
    assert shown.tip.startswith("tanh: 2.00 ms")
    shown.page.keyboard.press("Escape")
    assert shown.tip is None


def test_timeline_zooms_and_moves(show) -> None:
    shown = show(made.launches(3000))
    assert shown.drawn("#timeline .lane") == [
        "Host · 15.0 ms in 3,000 blocks",
        "GPU · 6.00 ms in 3,000 blocks",
    ]
    few = shown.find("#timeline .block").count()
    assert few < 3000, "what cannot be seen is drawn as one block"
    # The GPU is busy in two of seven microseconds: as high is a block that stands for many.
    block = shown.page.locator("#timeline .block").last
    block.hover()
    assert re.match(r"\d+ short blocks: .*, (29|3\d) % of the time", shown.tip)
    high, whole = (
        block.locator(part).evaluate("e => e.getBBox().height") for part in (".run", ".idle")
    )
    assert high / whole == pytest.approx(0.3, abs=0.08)
    for _ in range(9):
        shown.page.get_by_role("button", name="Zoom in").click()
    assert 2 < shown.find("#timeline .block").count() < 60
    assert set(shown.drawn("#timeline .block text")) <= {"mul", "add", ""}
    before = shown.drawn("#timeline .tick")
    assert len(set(before)) == len(before), "digits enough to tell them apart"
    shown.page.get_by_role("button", name="Later").click()
    assert shown.drawn("#timeline .tick") != before
    shown.page.get_by_role("button", name="Earlier").click()
    assert shown.drawn("#timeline .tick") == before
    for _ in range(12):
        shown.page.get_by_role("button", name="Zoom out").click()
    assert shown.drawn("#timeline .tick")[0] == "0"
    assert shown.find("#timeline .block").count() == few


def test_a_finding_is_shown_on_the_timeline(show) -> None:
    shown = show(made.naive())
    shown.page.locator("#finding-2 summary").click()
    shown.page.get_by_role("button", name="Show 3 operations on the timeline").click()
    lit = shown.page.locator("#timeline .block.lit")
    assert lit.evaluate_all("all => all.map(e => e.dataset.index)") == ["0", "1", "2"]
    width = shown.find("#timeline .chart svg").evaluate("e => e.clientWidth")
    drawn = boxes(shown, "#timeline .block.lit .run")
    assert drawn[-1]["right"] - drawn[0]["left"] > 0.8 * width, "they fill the view"
    assert shown.find("#timeline").evaluate("e => e.getBoundingClientRect().top") < 400
    shown.page.get_by_role("button", name="Whole call").click()
    assert shown.find("#timeline .lit, #timeline .dim").count() == 0
    assert shown.find("#timeline .block").count() == 5


def test_host_and_device_have_lanes_of_their_own(show) -> None:
    shown = show(made.launches(10))
    assert [lane.split(" ·")[0] for lane in shown.drawn("#timeline .lane")] == ["Host", "GPU"]
    assert shown.find("#timeline .block").count() == 20
    shown.page.locator("#timeline .gap").nth(1).hover()
    assert shown.tip.startswith("5.00 µs: the GPU waits")
    shown.page.locator("#timeline .block").last.hover()
    assert "kernel_of_aten.add.Tensor<float>" in shown.tip
    assert "backward" in shown.tip


# ---- roofline and tables


def test_every_kind_of_operation_is_on_the_roofline(show) -> None:
    shown = show(made.naive())
    points = sorted(shown.values("#roofline .mark[data-tip]"))
    expected = [67e6 / 40e-3, *(2 * 4 * 1024**2 / t for t in (2e-3, 1e-3, 1e-3))]
    assert points == pytest.approx(sorted(expected), rel=1e-4)
    shown.page.locator("#roofline .mark.s6[data-tip]").hover()
    assert shown.tip.startswith("ada.linear_relu: 2.0 % of the compute roof")
    assert "FLOP/byte" in shown.tip
    labels = " ".join(shown.drawn("#roofline .roof-label"))
    assert "float32 matrices, 120 GFLOP/s" in labels
    assert "copy, 12.0 GB/s" in labels
    shown.page.locator("#roofline .mark.s0[data-tip]").first.hover()
    assert "no arithmetic counted" in shown.tip


def test_points_lie_as_far_below_the_roof_as_their_rate(show) -> None:
    """A copy at a quarter of the memory's rate is as far down as a quarter is on the axis."""
    diagnosis = made.fine()
    (operation,) = diagnosis.record.operations
    operation.bytes_moved = int(made.LAPTOP.copy / 4 * operation.host_seconds)
    shown = show(diagnosis)
    where = """e => e.getBoundingClientRect().top + e.getBoundingClientRect().height / 2"""
    point = shown.find("#roofline .mark[data-tip]").evaluate(where)
    roof = shown.page.locator("#roofline line.roof").last.evaluate(where)
    ticks = shown.find("#roofline .tick").evaluate_all(
        "all => all.map(e => [e.textContent, Number(e.getAttribute('y'))])"
    )
    rates = [(t.replace("\u202f", " "), y) for t, y in ticks if re.search("[GM]$", t)]
    units = {"G": 1e9, "M": 1e6}
    values = [(float(t.split()[0]) * units[t.split()[1]], y) for t, y in rates]
    (low, y_low), (high, y_high) = values[0], values[-1]
    pixels = abs(y_high - y_low) / math.log(high / low)
    assert point - roof == pytest.approx(pixels * math.log(4), abs=2)


def test_ledger_by_line(show) -> None:
    shown = show(made.naive())
    rows = shown.all("#ledger-table tbody tr")
    assert len(rows) == 2
    assert shown.text("#ledger-table th") == "train.py"
    assert rows[0].startswith("line 12")
    for expected in ("x = 0.5 * x", "3", "4.00 ms", "25.2 MB", "6.29 GB/s", "50 %"):
        assert expected in rows[0]
    assert "67.0 MFLOP" in rows[1]
    assert "Together 4 operations, 44.0 ms, 33.6 MB moved" in shown.text("#ledger .total")
    shown.page.locator("#ledger-table th:has-text('time') button").first.click()
    head = shown.page.locator("#ledger-table th:has-text('time')").first
    assert head.get_attribute("aria-sort") == "ascending"


def test_every_operation_as_a_table(show) -> None:
    shown = show(made.naive())
    assert shown.find("#operations-table").count() == 0
    shown.page.locator("#timeline .fold summary").click()
    shown.page.wait_for_selector("#operations-table")  # made after the click, when it has opened
    assert shown.find("#operations-table tbody tr").count() == 4
    assert "tanh" in shown.text("#operations-table tbody tr")


# ---- screens and odd diagnoses


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["naive", "launches", "fine"])
def test_nothing_is_wider_than_the_screen(show, which: str, width: int, theme: str) -> None:
    shown = show(getattr(made, which)(), width, theme)
    for summary in shown.page.locator("main summary:visible").all():
        summary.click()
    assert shown.overflow() <= 0
    drawn = shown.find("#timeline .chart svg").bounding_box()
    assert 0.75 * width < drawn["width"] <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(show, theme: str) -> None:
    """At least 4.5:1, of what is only on this page, against the card that it lies on."""
    shown = show(made.naive(), theme=theme)
    pairs = shown.page.evaluate(
        """() => [".badge.slower", ".added", ".removed", ".count", ".within", ".evidence dt"].map(
            (selector) => {
                const node = document.querySelector(selector), style = getComputedStyle(node);
                const canvas = document.createElement("canvas").getContext("2d", {
                    willReadFrequently: true});
                const rgb = (color) => {
                    canvas.clearRect(0, 0, 1, 1);
                    canvas.fillStyle = color;
                    canvas.fillRect(0, 0, 1, 1);
                    return [...canvas.getImageData(0, 0, 1, 1).data];
                };
                let under = node;
                const beside = node.parentNode.querySelector(":scope > .run");
                const fill = selector === ".within" ? style.fill : style.color;
                const back = beside ? getComputedStyle(beside).fill : (() => {
                    while (rgb(getComputedStyle(under).backgroundColor)[3] === 0)
                        under = under.parentNode;
                    return getComputedStyle(under).backgroundColor;
                })();
                return [selector, rgb(fill), rgb(back)];
            })"""
    )

    def light(rgb: list[int]) -> float:
        parts = [c / 255 for c in rgb[:3]]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for selector, text, back in pairs:
        high, low = sorted((light(text), light(back)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (selector, text, back)


def test_odd_diagnoses(show) -> None:
    """No operations, no roofs, no lines: said, and nothing breaks."""
    empty = made.fine()
    empty.record.operations = []
    shown = show(empty)
    for part in ("timeline", "ledger"):
        assert "No operation was seen" in shown.text(f"#{part}")
    assert "No operation has both" in shown.text("#roofline")

    bare = made.naive()
    for operation in bare.record.operations:
        operation.where = made.Where()
        operation.roof_share, operation.floor, operation.flops = None, 0.0, 0
    bare.findings[0].where = made.Where()
    bare.machine = made.Machine("?", "cpu", 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    bare.record.notes = ["the backward could not be seen"]
    shown = show(bare)
    assert "no line known" in shown.text("#ledger-table")
    assert "the backward could not be seen" in shown.text("#summary")


def test_hostile_text_is_shown_as_text(show) -> None:
    shown = show(hostile())
    assert shown.find("img").count() == 0
    assert HOSTILE.replace("\u2028", "") in shown.text("#finding-1 summary").replace("\u2028", "")
    shown.page.locator("#timeline .block").last.hover()
    assert "<img" in shown.tip


def test_theme_and_contents(show) -> None:
    shown = show(made.naive(), theme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(background)
    shown.page.get_by_role("button", name="Light theme").click()
    assert shown.page.evaluate(background) != dark
    assert shown.all("nav a") == ["Findings", "Timeline", "Roofline", "Bytes", "Machine", "Method"]
    shown.page.get_by_role("link", name="Bytes").click()
    shown.page.wait_for_function("scrollY > 300")
