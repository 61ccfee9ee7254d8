"""Pictures of text: they fit 80 columns and show what the numbers say."""

from __future__ import annotations

from megafuse.learn.figures import Point
from megafuse.learn.pictures import roofline

RUNGS = [
    Point("naive", 0.75, 2e9),
    Point("coalesced", 0.75, 6e9),
    Point("fused", 1.5, 12e9),
    Point("a name that is far too long for any table", 1.5, 6e9),
]


def test_roofline_shows_each_rung_and_the_way_there():
    lines = roofline.text(14e9, 3e11, RUNGS)
    assert max(map(len, lines)) <= 80
    plot = [line.partition("│")[2] for line in lines if "│" in line]
    rows = {n: i for i, row in enumerate(plot) for n in "134" if n in row}
    columns = {n: row.index(n) for row in plot for n in "134" if n in row}
    assert rows["3"] < rows["4"] < rows["1"]  # faster is up
    assert columns["1"] < columns["3"] == columns["4"]  # fewer bytes are to the right
    assert "∘" in "".join(plot)
    told = lines[-4:]
    assert told[0].split() == ["1", "naive", "0.75", "2", "G", "19%"]
    assert told[1].endswith("57%  ↑ 3×")
    assert told[2].endswith("57%  ↑ 2× → 2×")
    assert told[3].endswith("29%  ↓ 2×")


def test_roofline_of_points_beyond_its_roof():
    lines = roofline.text(1e9, 1e10, [Point("cached", 0.1, 1e12), Point("slow", 1e5, 1.0)])
    assert max(map(len, lines)) <= 80
    drawn = "".join(line for line in lines if "│" in line)
    assert "1" in drawn
    assert "2" in drawn
