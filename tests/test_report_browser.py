"""The page of `megafuse report` in a real browser: clicked through, and read back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import bench_results as made
import pytest
from browser import Shown, started

from megafuse.bench import report
from megafuse.bench.result import Result
from megafuse.learn import figures

pytestmark = pytest.mark.slow  # a browser for each; the page without one has quick tests

HOSTILE = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with started() as running:
        yield running


@pytest.fixture
def show(browser, tmp_path: Path) -> Iterator:
    """Writes the page of some results and opens it; at the end it must have been quiet."""
    opened: list[Shown] = []

    def open_page(
        results: dict[str, Result], width: int = 1280, theme: str = "light", pictures: Sequence = ()
    ) -> Shown:
        path = tmp_path / f"page{len(opened)}.html"
        text = report.page(list(results.values()), list(results), pictures, "Pictures")
        path.write_text(text, encoding="utf-8")
        opened.append(Shown(browser, path, width, theme))
        return opened[-1]

    yield open_page
    for shown in opened:
        shown.check()
        shown.page.close()


def here() -> Result:
    gelu = [made.row(elements=n, seconds=s) for n, s in ((1024, 2e-6), (1 << 20, 4e-6))]
    failed = made.failing(made.row("dropout_relu", 1 << 24), "compile", "wrong result: 12 are off")
    failed.warnings = ["the clock fell from 1980 to 1410 MHz"]
    failed.entries[0].accuracy = None
    failed.entries[0].missing = {"accuracy": "random numbers", "graph": "not capturable"}
    del failed.entries[0].times["graph"]
    both = made.row("add_mul_exp", 5_000_000, mode="forward+backward", rivals={"eager": 4.0})
    half = made.row(elements=1024, dtype="bfloat16", rivals={"eager": 0.5})
    return made.result([*gelu, failed, both, half])


def there() -> Result:
    """Another machine: twice as slow, and one row that `here` has not."""
    rows = [made.row(elements=1 << 20, seconds=8e-6), made.row("swiglu", 4096)]
    return made.result(rows, gpu="NVIDIA L4", commit="cd" * 20)


# ---- one file


def test_shows_the_values_of_the_file(show) -> None:
    result, shown = here(), show({"here": here()})
    row = result.rows[1]
    bars = "#times .panel:has-text('gelu_scale') table:has-text('1 Mi')"
    times = shown.values(f"{bars} td.time")
    assert times == [pytest.approx(e.times["cold"].median, rel=1e-5) for e in row.entries]
    assert shown.all(f"{bars} td.time") == ["4.00 µs", "10.0 µs", "4.04 µs", "3.60 µs"]
    assert shown.text(f"{bars} tr:has-text('eager') td.gain") == "2.50× 2.40–2.60"
    assert shown.text(f"{bars} tr:has-text('compile') td.gain").endswith("ambiguous")
    assert shown.text(f"{bars} caption").endswith("52 % of the memory roof")
    widths = shown.page.locator(f"{bars} rect.fill").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().width)"
    )
    assert len(widths) == 3  # the copy is a mark, no bar
    assert widths[1] / widths[0] == pytest.approx(2.5, rel=0.02)


def test_headline_machine_and_method(show) -> None:
    shown = show({"here": here()})
    means = shown.values("#summary dl dd[data-value]")
    assert means[0] == pytest.approx((2.5 * 2.5 * 2.5 * 4 * 0.5) ** (1 / 5), rel=1e-4)
    summary = shown.text("#summary")
    for expected in ("NVIDIA H200", "5 rows", "15 Nov 2026, 05:00 UTC", "ababababab", "2.11.0"):
        assert expected in summary
    assert "megafuse bench --suite seeds --json results.json" in summary
    machine = shown.text("#machine")
    for expected in ("60 MiB", "4.00 TB/s", "50.0 TFLOP/s", "1 min 15 s", "import torch"):
        assert expected in machine
    assert "ambiguous" in shown.text("#method")
    assert not shown.page.locator("#compare").is_visible()


def test_op_mode_dtype_and_clock(show) -> None:
    shown = show({"here": here()})
    titles = "#times h3"
    assert shown.all(titles) == ["gelu_scale forward · float32", "dropout_relu forward · float32"]
    shown.choose("op", "gelu_scale")
    assert shown.all(titles) == ["gelu_scale forward · float32"]
    shown.choose("dtype", "bfloat16")
    assert shown.all(titles) == ["gelu_scale forward · bfloat16"]
    assert "slower" in shown.text("#times td.gain:has(b)")
    shown.choose("mode", "forward+backward")
    assert "Nothing measured for this choice" in shown.text("#times")
    shown.page.get_by_role("button", name="Show all rows").first.click()
    assert len(shown.all(titles)) == 4
    shown.page.locator("label:has-text('Warm')").click()
    assert shown.text("#times-lede").startswith("Warm.")
    assert shown.values("#times td.time")[0] == pytest.approx(1e-6)
    assert shown.hash == "#mode=all&dtype=all&clock=warm"
    shown.page.locator("label:has-text('CUDA graph')").click()
    assert "not capturable" in shown.text("#times .panel:has-text('dropout_relu')")


def test_only_clocks_that_were_measured_are_offered(show) -> None:
    shown = show({"x": made.result([made.row(clocks={"cold": 1.0, "warm": 0.5})])})
    assert shown.all(".segments label") == ["Cold", "Warm"]


def test_a_view_can_be_linked(show) -> None:
    shown = show({"here": here()})
    shown.page.goto(shown.url + "#op=gelu_scale&dtype=bfloat16&clock=host")
    assert shown.all("#times h3") == ["gelu_scale forward · bfloat16"]
    assert shown.page.locator("input[value=host]").is_checked()
    assert shown.page.locator("select[name=op]").input_value() == "gelu_scale"
    shown.page.goto(shown.url + "#op=nonsense&clock=__proto__")
    assert len(shown.all("#times h3")) == 2


def test_an_error_takes_the_place_of_the_time(show) -> None:
    shown = show({"here": here()})
    line = "#times .panel:has-text('dropout_relu') tr:has-text('compile')"
    assert "wrong result: 12 are off" in shown.text(line)
    assert shown.page.locator(f"{line} td.time, {line} svg").count() == 0
    for table in ("accuracy", "details"):
        failed = f"#{table}-table tr:has-text('dropout_relu'):has-text('compile')"
        assert "wrong result: 12 are off" in shown.text(failed)
        assert "µs" not in shown.text(failed)
    assert "the clock fell" in shown.text("#times")
    assert "the clock fell" in shown.text("#details .notes")
    assert "not capturable" in shown.text("#details .notes")
    assert "random numbers" in shown.text("#accuracy")


def test_tooltips_by_pointer_and_keyboard(show) -> None:
    shown = show({"here": here()})
    point = shown.page.locator("#speedup .mark[data-tip]").first
    point.hover()
    assert shown.tip
    assert shown.tip.startswith("2.50× over eager")
    shown.page.mouse.move(2, 2)
    assert shown.tip is None
    point.focus()
    assert "gelu_scale · forward · float32, 1 Ki elements (16 × 64)" in shown.tip
    first = shown.tip
    shown.page.keyboard.press("ArrowRight")
    assert shown.tip not in (None, first)
    shown.page.keyboard.press("Escape")
    assert shown.tip is None
    shown.page.locator("#roofline .mark.solid[data-tip]").last.hover()
    assert re.search(r"fused: [\d.]+ % of the memory roof", shown.tip)
    assert "FLOP/byte" in shown.tip
    shown.page.locator("#times svg.bar").nth(1).focus()
    assert shown.tip.startswith("eager: 5.00 µs")
    shown.page.locator("label:has-text('Cold')").hover()
    assert "Nothing is in the cache" in shown.tip


def test_charts_have_their_points_and_a_table(show) -> None:
    shown = show({"here": here()})
    shown.choose("op", "gelu_scale")
    assert shown.values("#speedup .mark[data-tip]") == [2.5, 2.5, 1.01, 1.01]
    assert shown.values("#speedup tbody td.num") == [2.5, 1.01, 2.5, 1.01]
    assert shown.page.locator("#speedup .curve").count() == 2
    assert shown.page.locator("#speedup .mark.hollow").count() == 2  # the ambiguous ones
    assert shown.page.locator("#roofline .roof").count() == 2
    rates = [e.flop_per_second for r in here().rows[:2] for e in r.entries if e.name != "copy"]
    assert sorted(shown.values("#roofline .mark[data-tip]")) == pytest.approx(
        sorted(rates), rel=1e-5
    )
    shown.page.locator("#roofline summary").click()
    assert shown.page.locator("#roofline-table").is_visible()
    assert shown.page.locator("#roofline-table tbody tr").count() == 6


def test_ops_with_one_size_share_a_table(show) -> None:
    shown = show({"here": here()})
    single = "#speedup .panel:has-text('Measured at one size')"
    assert "dropout_relu" in shown.text(single)
    assert shown.values(f"{single} td.num") == [2.5]
    assert shown.page.locator("#speedup svg[role=group]").count() == 1


def test_a_wild_sample_does_not_shrink_the_bars(show) -> None:
    row = made.row(rivals={"eager": 2.0})
    median = row.entries[0].times["cold"].median
    row.entries[0].times["cold"] = made.Span(median, median, 100 * median, 40)
    shown = show({"x": made.result([row])})
    bars = shown.page.locator("#times rect.fill").evaluate_all(
        "all => all.map(e => e.getBBox().width / e.ownerSVGElement.clientWidth)"
    )
    assert bars == [pytest.approx(0.4, abs=0.01), pytest.approx(0.8, abs=0.01)]
    assert shown.page.locator("#times .arrow").count() == 1


@pytest.mark.parametrize(("table", "column"), [("accuracy", "max abs"), ("details", "warm")])
def test_tables_sort(show, table: str, column: str) -> None:
    shown = show({"here": here()})
    head = shown.page.locator(f"#{table}-table th:has(button:text-is('{column}'))")
    at = head.evaluate("e => e.cellIndex + 1")
    cells = f"#{table}-table tbody td:nth-child({at}):not([colspan])"
    before = shown.values(cells)
    head.locator("button").click()
    assert shown.values(cells) == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert shown.values(cells) == sorted(before, reverse=True)
    # What has no value stays last, and the order outlives another choice.
    assert shown.page.locator(f"#{table}-table tbody tr").last.locator("[colspan]").count() == 1
    shown.choose("op", "gelu_scale")
    assert shown.values(cells) == sorted(shown.values(cells), reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "none"


def test_details_hold_everything(show) -> None:
    shown = show({"here": here()})
    shown.choose("op", "gelu_scale")
    line = shown.text("#details-table tbody tr:has-text('eager')")
    for expected in ("5.00 µs", "4.90–5.10 µs", "2.50 µs", "2.50×", "2.40–2.60×", "1.64 GB/s"):
        assert expected in line
    for expected in ("0.041 %", "24.6 KB", "least 8.19 KB", "40", "1980 MHz, 44 °C"):
        assert expected in line
    assert "mul_kernel" not in shown.text("#details-table")
    shown.page.locator("#details-table tr:has-text('eager') .kernels summary").first.click()
    assert "mul_kernel" in shown.text("#details-table")


def test_theme(show) -> None:
    shown = show({"here": here()}, theme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(background)
    shown.page.get_by_role("button", name="Light theme").click()
    light = shown.page.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark))) < 120
    assert sum(map(int, re.findall(r"\d+", light))) > 650
    shown.page.get_by_role("button", name="Dark theme").click()
    assert shown.page.evaluate(background) == dark


# ---- layers


def layers() -> Result:
    """Two forms of a layer, and rows of two lengths: elements do not tell them apart."""
    forms = [
        made.row(
            *("linear_gelu", 3 << 18, 98e-6),
            rivals={"eager": 1.5},
            shape=[1024, 768],
            widths=[3072],
            choices={"approximate": form, "p": 0.5, "causal": True, "mask": False},
            floor=49e-6,
            roof="compute",
        )
        for form in ("tanh", "none")
    ]
    lengths = [made.row("softmax", 1 << 20, shape=[(1 << 20) // n, n]) for n in (1024, 4096)]
    for row, share in zip(forms, (0.5, 0.25), strict=True):
        row.entries[0].roof_share = share
    return made.result([*forms, *lengths])


def test_layers_are_told_apart(show) -> None:
    shown = show({"here": layers()})
    assert shown.all("#times h3") == [
        "linear_gelu tanh p=0.5 causal no mask forward · float32",
        "linear_gelu approximate=none p=0.5 causal no mask forward · float32",
        "softmax forward · float32",
    ]
    caption = shown.text("#times .panel:has-text('tanh') caption")
    assert "1,024 × 768 → 3,072" in caption
    assert caption.endswith("floor 49.0 µs, 50 % of the compute roof")
    floors = shown.page.locator("#times .floor").evaluate_all(
        "all => all.map(e => e.getAttribute('x1'))"
    )
    assert len(floors) == 4, "one through each bar, none where bytes bind"
    assert "floor where arithmetic binds" in shown.text("#times-lede")
    single = "#speedup .panel:has-text('Measured at one size')"
    for expected in (
        "tanh",
        "approximate=none",
        "1,024 × 768 → 3,072",
        "1,024 × 1,024",
        "256 × 4,096",
    ):
        assert expected in shown.text(single)
    shown.choose("op", "linear_gelu")
    assert "49.0 µs" in shown.text("#details-table tbody tr")


def test_twins_have_the_same_choices(show) -> None:
    """Another form of the same layer is another row."""
    other = layers()
    other.rows = other.rows[1:]
    shown = show({"here": layers(), "there": other})
    assert "3 rows in both files, 1 not in every file" in shown.text("#compare")
    assert "only in here" in shown.text("#compare-table tr:has-text('tanh')")


def test_float32_by_three_products_has_a_roof_of_its_own(show) -> None:
    result = layers()
    result.roofs.gemm = {"float32": 50e12, "float16": 750e12}
    result.rows[0].flops = result.rows[1].flops = int(49e-6 * 250e12)
    labels = [
        " ".join(show({"here": each}).page.locator("#roofline .roof-label").all_text_contents())
        for each in (result, here())
    ]
    assert "float32 as three float16 matrices, 250\u202fTFLOP/s" in labels[0]
    assert "three" not in labels[1]


# ---- several files


def test_files_side_by_side(show) -> None:
    shown = show({"here": here(), "there": there()})
    compare = shown.text("#compare")
    assert "Different machines and different commits" in compare
    assert "NVIDIA L4" in compare
    assert "cdcdcdcdcd" in compare
    shared = shown.text("#compare-table tr:has-text('1 Mi')")
    for expected in ("4.00 µs", "8.00 µs", "2.00×", "slower"):
        assert expected in shared
    assert "only in there" in shown.text("#compare-table tr:has-text('swiglu')")
    assert "only in here" in shown.text("#compare-table tr:has-text('dropout_relu')")
    shown.choose("base", "there")
    assert "faster" in shown.text("#compare-table tr:has-text('1 Mi')")
    shown.choose("contender", "compile")
    assert "wrong result" in shown.text("#compare-table tr:has-text('dropout_relu')")
    assert "differs" in shown.text("#machine tr:has-text('GPU')")
    assert "differs" not in shown.text("#machine tr:has-text('threads')")
    assert shown.hash == "#contender=compile&base=there"


def test_the_file_to_show_is_chosen_by_card_or_control(show) -> None:
    shown = show({"here": here(), "there": there()})
    assert "dropout_relu forward · float32" in shown.all("#times h3")
    shown.page.get_by_role("button", name="show below").click()
    assert "swiglu forward · float32" in shown.all("#times h3")
    assert shown.page.locator("select[name=file]").input_value() == "there"
    shown.choose("file", "here")
    assert "dropout_relu forward · float32" in shown.all("#times h3")
    assert shown.page.locator(".card.shown").get_attribute("data-file") == "here"


# ---- screens and odd files


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(show, width: int) -> None:
    shown = show({"here": here(), "there": there()}, width=width)
    shown.page.wait_for_selector("#roofline svg")
    assert shown.overflow() <= 0
    for op in ("gelu_scale", "dropout_relu"):
        if width < 500:
            opener = shown.page.locator(".opener")
            if opener.get_attribute("aria-expanded") == "false":
                opener.click()
        shown.choose("op", op)
        for summary in shown.page.locator("main summary:visible").all():
            summary.click()
        assert shown.overflow() <= 0
    drawn = shown.page.locator("#roofline svg[role=group]").bounding_box()
    assert 0.75 * width < drawn["width"] <= width


def test_on_a_phone_no_size_stands_on_its_bars(show) -> None:
    """A share of the roof that has no room beside the size has a line of its own."""
    shown = show({"here": here()}, width=300)
    assert shown.all(".share"), "sizes with a share of the roof"
    below = shown.find(".bars").evaluate_all(
        """all => all.filter(bars => bars.querySelector(".share")).map(bars =>
            bars.querySelector("tbody").getBoundingClientRect().top
            - bars.querySelector(".share").getBoundingClientRect().bottom)"""
    )
    assert min(below) >= 0


def test_charts_follow_the_window(show) -> None:
    shown = show({"here": here()})
    shown.page.set_viewport_size({"width": 390, "height": 844})
    shown.page.wait_for_function(
        "document.querySelector('#roofline svg[role=group]').clientWidth < 390"
    )
    assert shown.overflow() <= 0


def test_phone_controls_open_and_tell_the_choice(show) -> None:
    shown = show({"here": here()}, width=390)
    opener = shown.page.locator(".opener")
    assert opener.inner_text() == "all ops · forward · float32 · cold"
    assert not shown.page.locator("select[name=op]").is_visible()
    opener.click()
    shown.choose("op", "gelu_scale")
    assert opener.inner_text() == "gelu_scale · forward · float32 · cold"


def test_contents_scroll_and_leave_the_address(show) -> None:
    shown = show({"here": here()})
    shown.page.get_by_role("link", name="Accuracy").click()
    shown.page.wait_for_function("scrollY > 300")
    assert shown.hash == ""


def test_odd_files(show) -> None:
    """No rows, no roofs, no clocks, no counts: said, and nothing breaks."""
    empty = show({"empty": made.result([])})
    assert "These files hold no rows" in empty.text("#summary")
    assert "This file holds no rows" in empty.text("#times")

    bare = made.result([made.row(clocks={}), made.row(elements=2048)], gpu="")
    bare.roofs = bare.start_up = None
    bare.rows[0].bytes_least = bare.rows[0].flops = bare.rows[0].roof = None
    bare.rows[0].shape = []
    bare.machine = {}
    shown = show({"bare": bare})
    assert "not measured" in shown.text("#times")
    assert "unknown machine" in shown.text("#summary")
    assert "no measured roofs" in shown.text("#roofline")
    assert "1 row without a count" in shown.text("#roofline")


def test_hostile_text_is_shown_as_text(show) -> None:
    result = made.result([made.failing(made.row(op=HOSTILE, mode=HOSTILE), "eager", HOSTILE)])
    result.commit = result.command = HOSTILE
    result.rows[0].warnings = [HOSTILE]
    result.rows[0].speedups["compile"]["cold"] = made.Speedup(1, 1, 1, 1, HOSTILE)
    shown = show({HOSTILE: result, "other": there()})
    assert shown.page.locator("img").count() == 0
    assert shown.page.title() == f"megafuse benchmarks: {HOSTILE}, other"
    assert HOSTILE in shown.text("#times h3")
    assert HOSTILE in shown.text("#times tr.failed")


# ---- figures


def drawn() -> list[figures.Figure]:
    ways = {"separate": ("memory", "gelu", "memory", "mul", "memory"), "fused": ("memory", "both")}
    return [
        figures.data_paths("Paths", "", ways),
        figures.bars("Bars", "", [figures.Bar("a", 1.0), figures.Bar("b", 2.0)], "ms", roof=2.0),
        figures.lines("Lines", "", [1024, 1 << 20], {"a": [1, 2], "b": [2, 2]}, "x", "y"),
        figures.roofline("Roofline", "", 24e9, 2e11, [figures.Point("a", 0.5, 1e10)]),
    ]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_figures_alone(show, width: int, theme: str) -> None:
    shown = show({}, width, theme, drawn())
    assert shown.text("h1") == "Pictures"
    assert shown.all("main h3") == ["Paths", "Bars", "Lines", "Roofline"]
    assert shown.overflow() == 0
    assert not shown.page.locator("#controls, nav a, #summary > *").count()
    widths = shown.page.locator(".figure .fill").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().width)"
    )
    assert widths[1] / widths[0] == pytest.approx(2, rel=0.02)
    outside = """all => all.filter(e => {
        const box = e.getBoundingClientRect(), panel = e.closest("figure").getBoundingClientRect();
        return box.left < panel.left || box.right > panel.right || box.bottom > panel.bottom;
    }).length"""
    assert shown.page.locator(".figure text").evaluate_all(outside) == 0
    shown.page.locator("#theme").click()


def test_figures_beside_results(show) -> None:
    shown = show({"here": here()}, pictures=drawn())
    assert shown.all("#figures h2") == ["Pictures"]
    assert shown.all("nav a")[:2] == ["Figures", "Times"]
    assert shown.page.locator("#times table").count()
