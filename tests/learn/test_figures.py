"""Figures: well-formed SVG, text that stays text, and no two texts in one place on a phone."""

from __future__ import annotations

import math
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from megafuse.learn import figures
from megafuse.learn.figures import Bar, Figure, Point

HOSTILE = "<script>alert('&')</script> \"x\""
WORD = "a_word_without_spaces_that_is_longer_than_any_line_of_a_phone"
LONG = f"a label that goes on and on, with {WORD} in it"
SVG = "{http://www.w3.org/2000/svg}"
PHONE = 296  # pixels


def every_kind(label: str = "gelu") -> list[Figure]:
    ways = {label: ("memory", label, "memory", "mul", "memory"), "fused": ("memory", "both")}
    return [
        figures.data_paths(label, label, ways),
        figures.bars(label, label, [Bar(label, 1.5), Bar("b", 3.0, label)], label, roof=4.0),
        figures.lines(label, label, [1024, 1 << 20], {label: [1.0, 2.0]}, label[:20], label[:20]),
        figures.roofline(label, label, 24e9, 2e11, [Point(label, 0.5, 1e10)]),
    ]


EXTREMES = {
    "zero": lambda: figures.bars("t", "", [Bar("a", 0.0)], "ms", roof=0.0),
    "one bar": lambda: figures.bars("t", "", [Bar("a", 1e-9)], "s"),
    "twenty bars": lambda: figures.bars("t", "", [Bar(f"b{i}", i) for i in range(20)], "ms", 7.0),
    "long labels": lambda: figures.bars("t", "", [Bar(LONG, 1, LONG), Bar("b", 2, LONG)], "ms"),
    "nine kernels": lambda: figures.data_paths(
        "t", "", {LONG: [s for i in range(9) for s in ("memory", f"{WORD} {i}")], "b": ("a", "b")}
    ),
    "one x": lambda: figures.lines("t", "", [7], {"a": [0.0]}, "x", "y"),
    "twenty x": lambda: figures.lines(
        "t", "", [10007.0 * 2**i for i in range(20)], {LONG: range(20), "b": range(20)}, "x", "y"
    ),
    "no point": lambda: figures.roofline("t", "", 1.0, 1.0, []),
    "far points": lambda: figures.roofline(
        "t", "", 3.9e12, 5e13, [Point("a", 1e-5, 1e3), *[Point(LONG, 1e5, 4e13)] * 3]
    ),
    "many that moved": lambda: figures.roofline(
        *("t", "", 1e10, 1e11),
        [
            Point(LONG, 0.3 + i / 40, 1e9 * (1 + i / 9), i, Point("", 0.1, 1e8))
            for i in range(1, 16)
        ],
        one_thread=5e9,
    ),
}


def shapes(svg: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(SVG + kind))


@pytest.mark.parametrize("label", ["gelu", HOSTILE, LONG, ""])
def test_well_formed_and_nothing_but_drawing(label):
    for figure in every_kind(label):
        root = ElementTree.fromstring(figure.svg)
        elements = list(root.iter())
        assert {e.tag.removeprefix(SVG) for e in elements} <= {
            *("svg", "g", "rect", "line", "path", "circle", "text")
        }
        attributes = {name for e in elements for name in e.attrib}
        assert not {a for a in attributes if a == "style" or a.startswith("on")}
        assert "url(" not in figure.svg
        assert root.get("role") == "img"
        assert label in root.get("aria-label")


def test_labels_are_escaped_and_shown():
    for figure in every_kind(HOSTILE):
        assert "<script" not in figure.svg
        shown = " ".join([*(t.text or "" for t in shapes(figure.svg, "text")), *figure.legend])
        assert "<script>alert('&')" in shown


@pytest.mark.parametrize("draw", EXTREMES.values(), ids=EXTREMES)
def test_no_text_on_another(draw):
    boxes = [text_box(t, *place) for t, *place in texts(ElementTree.fromstring(draw().svg))]
    assert boxes
    for (a, one), (b, two) in combinations(boxes, 2):
        apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
        assert apart, f"{a!r} and {b!r} meet"
    assert min(box[0] for _, box in boxes) >= -1
    assert max(box[2] for _, box in boxes) <= PHONE + 1


def texts(root: ElementTree.Element):
    """(text, x and y of the svg it stands in)"""
    nested = [e for e in root if e.tag == SVG + "svg"]
    for e in root.iter(SVG + "text"):
        inside = next((n for n in nested if e in list(n)), None)
        yield (
            e,
            pixels(inside.get("x")) if inside is not None else 0.0,
            (float(inside.get("y")) if inside is not None else 0.0),
        )


def pixels(place: str) -> float:
    return float(place[:-1]) * PHONE / 100 if place.endswith("%") else float(place)


def text_box(element: ElementTree.Element, dx: float, dy: float):
    """Left, top, right, bottom of a text at 13 pixels on a phone, a character as 6.6 wide."""
    text = element.text or ""
    width = 6.6 * len(text)
    shift = {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0.0)
    left, base = pixels(element.get("x")) + dx - shift, float(element.get("y")) + dy
    return text, (left, base - 10, left + width, base + 3)


# ---- what is drawn follows the numbers


def test_the_line_at_zero_crosses_no_label():
    drawn = figures.bars("t", "", [Bar(LONG, 1.0, "1 ms"), Bar("b", 2.0)], "ms", roof=3.0)
    root = ElementTree.fromstring(drawn.svg)
    zero = [e for e in root.iter(f"{SVG}line") if e.get("class") == "grid"]
    assert len(zero) == 2
    for text in root.iter(f"{SVG}text"):
        base = float(text.get("y"))
        assert not any(float(e.get("y1")) < base - 2 < float(e.get("y2")) for e in zero), text.text


def test_bars_are_as_long_as_their_values():
    figure = figures.bars("t", "", [Bar("a", 1.0), Bar("b", 3.0)], "ms", roof=4.0)
    assert [r.get("width") for r in shapes(figure.svg, "rect")] == ["25%", "75%"]
    assert [e.get("x1") for e in shapes(figure.svg, "line")] == ["0", "100%"] * 2
    said = [t.text for t in shapes(figure.svg, "text")]
    assert said == ["dashed: the roof, 4 ms", "a", "1 ms", "b", "3 ms"]


def test_a_path_has_an_arrow_for_every_pass():
    ways = {
        "separate": ("memory", "gelu", "memory", "mul", "memory"),
        "fused": ("memory", "gelu", "mul", "memory"),
    }
    svg = figures.data_paths("t", "", ways).svg
    said = [t.text for t in shapes(svg, "text")]
    assert "separate: 2 reads, 2 writes" in said
    assert "fused: 1 read, 1 write" in said
    assert "gelu, mul" in said  # one box: no memory between them
    assert len([p for p in shapes(svg, "path") if "V" in p.get("d")]) == 6


def test_lines_rise_with_their_values():
    svg = figures.lines("t", "", [1024, 1 << 20], {"a": [1.0, 2.0]}, "floats", "speed-up").svg
    low, high = (float(c.get("cy")) for c in shapes(svg, "circle")[1:])
    assert low - high == pytest.approx(110)
    said = {t.text for t in shapes(svg, "text")}
    assert {"1 Ki", "1 Mi", "floats", "speed-up", "0", "2"} <= said


def test_x_is_logarithmic():
    svg = figures.lines("t", "", [1, 10, 100], {"a": [1, 1, 1]}, "x", "y").svg
    at = [float(c.get("cx")[:-1]) for c in shapes(svg, "circle")[1:]]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1], abs=0.01)


def test_a_point_on_the_roof_is_on_the_line():
    bandwidth, peak = 100e9, 1e12
    svg = figures.roofline("t", "", bandwidth, peak, [Point("a", peak / bandwidth, peak)]).svg
    (slope, flat) = [e for e in shapes(svg, "line") if e.get("class") == "curve"]
    disc = next(e for e in shapes(svg, "svg") if e.get("x"))
    assert (disc.get("x"), disc.get("y")) == (slope.get("x2"), slope.get("y2"))
    assert flat.get("y1") == flat.get("y2")
    assert "100% of the roof" in ElementTree.fromstring(svg).get("aria-label")


def test_a_trail_leads_from_rung_to_rung():
    points = [Point("naive", 0.5, 1e9), Point("coalesced", 0.5, 4e9), Point("fused", 1.0, 8e9)]
    figure = figures.roofline("t", "", 1e10, 1e12, points, trail=True)
    moves = [e for e in shapes(figure.svg, "line") if e.get("class") == "move"]
    discs = [(e.get("x"), e.get("y")) for e in shapes(figure.svg, "svg") if e.get("x")]
    assert [(m.get("x1"), m.get("y1")) for m in moves] == discs[:-1]
    assert [(m.get("x2"), m.get("y2")) for m in moves] == discs[1:]
    assert float(moves[0].get("y2")) < float(moves[0].get("y1"))  # faster is up
    alone = figures.roofline("t", "", 1e10, 1e12, points)
    assert 'class="move"' not in alone.svg


def test_a_point_that_moved_has_its_first_place():
    before = Point("walk", 0.01, 1e8)
    point = Point("walk", 0.1, 9e8, number=3, before=before, bandwidth=1e10)
    figure = figures.roofline("t", "", 4e10, 1e12, [point], one_thread=1e10)
    (first,) = [e for e in shapes(figure.svg, "circle") if e.get("class") == "first"]
    (move,) = [e for e in shapes(figure.svg, "line") if e.get("class") == "move"]
    assert (first.get("cx"), first.get("cy")) == (move.get("x1"), move.get("y1"))
    assert "3" in [t.text for t in shapes(figure.svg, "text")]
    told = "3 walk: 9× as fast, 10× the operations per byte; now 90% of the roof"
    assert figure.legend[-1] == told
    assert told in ElementTree.fromstring(figure.svg).get("aria-label")
    assert "Dashed: a copy in one thread, 10 GB/s." in figure.legend


# ---- what cannot be drawn


BAD = {
    "nan bar": lambda: figures.bars("times", "", [Bar("eager", math.nan)], "ms"),
    "infinite bar": lambda: figures.bars("times", "", [Bar("eager", math.inf)], "ms"),
    "negative bar": lambda: figures.bars("times", "", [Bar("eager", -1.0)], "ms"),
    "nan roof": lambda: figures.bars("times", "", [Bar("a", 1.0)], "ms", roof=math.nan),
    "no bar": lambda: figures.bars("times", "", [], "ms"),
    "nan line": lambda: figures.lines("times", "", [1.0], {"eager": [math.nan]}, "x", "y"),
    "zero on a log axis": lambda: figures.lines("times", "", [0.0], {"a": [1.0]}, "x", "y"),
    "other length": lambda: figures.lines("times", "", [1.0], {"eager": [1.0, 2.0]}, "x", "y"),
    "nan point": lambda: figures.roofline("times", "", 1.0, 1.0, [Point("eager", math.nan, 1.0)]),
    "no bandwidth": lambda: figures.roofline("times", "", 0.0, 1.0, []),
    "no way": lambda: figures.data_paths("times", "", {}),
    "no operation": lambda: figures.data_paths("times", "", {"eager": ("memory",)}),
}


@pytest.mark.parametrize("draw", BAD.values(), ids=BAD)
def test_refused_with_its_name(draw):
    with pytest.raises(ValueError, match=r"^times: .*(expected|eager)"):
        draw()


# ---- in the page


def test_a_page_of_figures_alone(tmp_path):
    page = tmp_path / "page.html"
    figures.write(page, every_kind(HOSTILE), "Why & how")
    text = page.read_text("utf-8")
    assert "<h1>Why &amp; how</h1>" in text
    assert text.count("<figure ") == 4
    assert "<form" not in text
    assert 'id="times"' not in text
    assert " style=" not in text
    assert len(re.findall("<script", text)) == 2  # the data, which is empty, and the page's own
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_in_a_notebook():
    shown = figures.bars("a < b", "c & d", [Bar("a", 1.0)], "ms")._repr_html_()
    assert "<b>a &lt; b</b><svg" in shown
    assert "c &amp; d" in shown
